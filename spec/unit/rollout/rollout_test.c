/* Replicas of one process over a local store: what is voted, committed, left open, and lost. What a replica makes of a set is here a flag. */
#include "../loop/util.h"

#include "base/err.h"
#include "rollout/rollout.h"

#include <stdio.h>

enum mode { WILLING, REFUSING, SILENT };

typedef struct replica {
    bt_store_client_t *client;
    bt_rollout_t *rollout;
    enum mode mode, take_mode;
    bt_rollout_set_t *trying; /* SILENT: reference, until said */
    unsigned tries, takes;
    char trouble[64];
    bool is_pinned, is_gone;
} replica_t;

typedef struct told {
    unsigned times, status;
    char text[4096];
} told_t;

static bt_loop_t loop;
static bt_store_t *store;
static char space[32];
static uint64_t expiry_ms; /* of the replicas that are made */

/* ---- replicas ---- */

static void try_set(void *user, bt_rollout_set_t *set)
{
    replica_t *r = user;

    r->tries++;
    if (r->mode == SILENT)
        r->trying = bt_rollout_set_ref(set);
    else
        bt_rollout_tried(r->rollout, set, r->mode == WILLING ? 0 : BT_E_POLICY, "x.lua:1: no");
}

static void take_set(void *user, bt_rollout_set_t *set)
{
    replica_t *r = user;

    r->takes++;
    bt_rollout_taken(r->rollout, set, r->take_mode == WILLING ? 0 : BT_E_AGAIN, "no room");
}

static void set_pinned(void *user, bool is_pinned)
{
    ((replica_t *) user)->is_pinned = is_pinned;
}

static void trouble(void *user, char *out, size_t size)
{
    snprintf(out, size, "%s", ((replica_t *) user)->trouble);
}

static void make(replica_t *r, const char *name)
{
    static const bt_rollout_ops_t ops = {try_set, take_set, set_pinned, trouble};
    const bt_rollout_config_t config = {.space = space,
                                        .replica = name,
                                        .interval_ms = 10,
                                        .expiry_ms = expiry_ms,
                                        .vote_ms = 600,
                                        .spread_ms = 300,
                                        .ops = &ops,
                                        .user = r};
    bt_rollout_config_t with_client = config;

    *r = (replica_t){0};
    assert_int_equal(bt_store_client_new(&r->client, store, &loop, NULL, NULL), 0);
    with_client.client = r->client;
    assert_int_equal(bt_rollout_new(&r->rollout, &loop, &with_client), 0);
}

static void start(replica_t *r, const char *name)
{
    make(r, name);
    bt_rollout_join(r->rollout, NULL, NULL);
    TURN_UNTIL(&loop, bt_rollout_has_joined(r->rollout));
    bt_rollout_begin(r->rollout, NULL);
}

static void on_gone(void *user)
{
    ((replica_t *) user)->is_gone = true;
}

/* As a process that is killed: says nothing. */
static void end(replica_t *r)
{
    bt_rollout_free(r->rollout);
    bt_rollout_set_unref(r->trying);
    bt_store_client_free(r->client, on_gone, r);
    TURN_UNTIL(&loop, r->is_gone);
}

static bool knows(const replica_t *r, const char *name)
{
    char wanted[64];
    bt_text_t text;

    bt_text_init(&text);
    bt_rollout_describe(r->rollout, &text);
    snprintf(wanted, sizeof wanted, "\"replica\":\"%s\",\"why\"", name);
    const bool is_there = bt_str_find(bt_text_str(&text), bt_str(wanted)) >= 0;
    bt_text_fini(&text);
    return is_there;
}

static bool says(const replica_t *r, const char *part)
{
    bt_text_t text;

    bt_text_init(&text);
    bt_rollout_describe(r->rollout, &text);
    const bool is_there = bt_str_find(bt_text_str(&text), bt_str(part)) >= 0;
    bt_text_fini(&text);
    return is_there;
}

/* ---- asking ---- */

static void on_told(void *arg, unsigned status, bt_str_t text)
{
    told_t *told = arg;

    told->times++;
    told->status = status;
    snprintf(told->text, sizeof told->text, "%.*s", BT_STR_ARG(text));
}

static int begin(replica_t *r, enum bt_rollout_edit edit, const char *name, const char *text,
                 told_t *told)
{
    bt_rollout_item_t item = {.edit = edit, .text = bt_str(text)};
    const bt_rollout_change_t change = {.items = &item, .count = 1, .by = "ann"};
    char err[256];

    *told = (told_t){0};
    bt_str_copy(item.name, sizeof item.name, name);
    return bt_rollout_change(r->rollout, &change, on_told, told, err, sizeof err);
}

static told_t ask(replica_t *r, enum bt_rollout_edit edit, const char *name, const char *text)
{
    told_t told;

    assert_int_equal(begin(r, edit, name, text, &told), 0);
    TURN_UNTIL(&loop, told.times > 0);
    assert_int_equal(told.times, 1);
    return told;
}

static void push(replica_t *r, const char *text)
{
    told_t told = ask(r, BT_ROLLOUT_PUT, "m", text);

    if (told.status != 200)
        print_error("%s\n", told.text);
    assert_int_equal(told.status, 200);
}

/* ---- the store by hand ---- */

typedef struct hand {
    bt_store_op_t op;
    bool is_done;
    int64_t number;
    unsigned row_count;
    char text[256];
    struct {
        char name[64], value[64];
    } rows[4]; /* the first ones */
} hand_t;

static void on_hand(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    hand_t *h = bt_container_of(op, hand_t, op);

    assert_int_equal(reply->rc, 0);
    h->number = reply->number;
    h->row_count = reply->row_count;
    for (unsigned i = 0; i < reply->row_count && i < 4; i++) {
        snprintf(h->rows[i].name, sizeof h->rows[i].name, "%.*s", BT_STR_ARG(reply->rows[i].name));
        snprintf(h->rows[i].value, sizeof h->rows[i].value, "%.*s",
                 BT_STR_ARG(reply->rows[i].value));
    }
    snprintf(h->text, sizeof h->text, "%.*s", BT_STR_ARG(reply->text));
    h->is_done = true;
}

static hand_t by_hand(replica_t *r, bt_store_op_t op)
{
    hand_t h = {.op = op};

    h.op.space = bt_str(space);
    h.op.cb = on_hand;
    bt_store_do(r->client, &h.op);
    TURN_UNTIL(&loop, h.is_done);
    return h;
}

static void forget_all(replica_t *r, unsigned numbers)
{
    char key[32];

    for (unsigned n = 1; n <= numbers; n++) {
        snprintf(key, sizeof key, "policy_set:%u", n);
        (void) by_hand(r, (bt_store_op_t){.what = BT_STORE_CELL_DROP, .key = bt_str(key)});
        snprintf(key, sizeof key, "policy_done:%u", n);
        (void) by_hand(r, (bt_store_op_t){.what = BT_STORE_CELL_DROP, .key = bt_str(key)});
        snprintf(key, sizeof key, "%u", n);
        (void) by_hand(r, (bt_store_op_t){.what = BT_STORE_TABLE_DROP,
                                          .key = BT_STR("policy"),
                                          .field = bt_str(key)});
    }
}

static unsigned count_pins(replica_t *r)
{
    return by_hand(r, (bt_store_op_t){.what = BT_STORE_TABLE_ALL, .key = BT_STR("policy_pins")})
        .row_count;
}

static void put_row(replica_t *r, const char *number, const char *value)
{
    (void) by_hand(r, (bt_store_op_t){.what = BT_STORE_TABLE_PUT,
                                      .key = BT_STR("policy"),
                                      .field = bt_str(number),
                                      .value = bt_str(value)});
}

/* ---- specs ---- */

static void test_all_or_none(void **state)
{
    replica_t a, b;
    told_t told;

    (void) state;
    start(&a, "a");
    start(&b, "b");
    TURN_UNTIL(&loop, knows(&a, "b") && knows(&b, "a"));
    push(&a, "one");
    assert_int_equal(bt_rollout_number(a.rollout), 1);
    assert_int_equal(bt_rollout_number(b.rollout), 1);
    assert_int_equal(b.tries, 1);
    b.mode = REFUSING;
    told = ask(&a, BT_ROLLOUT_PUT, "m", "two");
    assert_int_equal(told.status, 400);
    assert_string_equal(told.text, "set 2 is committed nowhere: replica b refuses: x.lua:1: no");
    assert_int_equal(bt_rollout_number(a.rollout), 1);
    assert_int_equal(a.takes, 1);
    /* A number is never used twice. */
    b.mode = WILLING;
    push(&b, "two");
    assert_int_equal(bt_rollout_number(a.rollout), 3);
    told = ask(&b, BT_ROLLOUT_PUT, "m", "two");
    assert_int_equal(told.status, 200);
    assert_non_null(strstr(told.text, "\"changed\":false"));
    told = ask(&b, BT_ROLLOUT_DROP, "none", "");
    assert_int_equal(told.status, 404);
    assert_string_equal(told.text, "none: not in the fleet's set");
    /* One at a time at one replica. */
    assert_int_equal(begin(&a, BT_ROLLOUT_PUT, "m", "three", &told), 0);
    told_t second;
    assert_int_equal(begin(&a, BT_ROLLOUT_PUT, "m", "four", &second), BT_E_AGAIN);
    TURN_UNTIL(&loop, told.times > 0);
    end(&a);
    end(&b);
}

static void test_who_is_silent_is_named(void **state)
{
    replica_t a, b;
    told_t told;

    (void) state;
    start(&a, "a");
    start(&b, "b");
    TURN_UNTIL(&loop, knows(&a, "b"));
    b.mode = SILENT;
    told = ask(&a, BT_ROLLOUT_PUT, "m", "one");
    assert_int_equal(told.status, 504);
    assert_string_equal(told.text, "set 1 is committed nowhere: no vote within 600 ms from b");
    /* Its late word counts for nothing. */
    bt_rollout_tried(b.rollout, b.trying, 0, "");
    b.mode = WILLING;
    push(&a, "two");
    assert_int_equal(bt_rollout_number(b.rollout), 2);
    end(&a);
    end(&b);
}

static void test_who_is_gone_is_not_waited_for(void **state)
{
    replica_t a, b;

    (void) state;
    start(&a, "a");
    start(&b, "b");
    TURN_UNTIL(&loop, knows(&a, "b"));
    end(&b);
    push(&a, "one");
    assert_int_equal(bt_rollout_number(a.rollout), 1);
    assert_false(knows(&a, "b"));
    end(&a);
}

static void test_a_proposer_that_ends_leaves_nothing_open(void **state)
{
    replica_t a, b, c;
    told_t told;

    (void) state;
    start(&a, "a");
    start(&b, "b");
    start(&c, "c");
    TURN_UNTIL(&loop, knows(&a, "b") && knows(&a, "c"));
    c.mode = SILENT;
    assert_int_equal(begin(&a, BT_ROLLOUT_PUT, "m", "one", &told), 0);
    TURN_UNTIL(&loop, c.trying != NULL);
    end(&a);
    assert_int_equal(told.times, 0);
    /* A while after nobody can decide it any more, a replica does. */
    TURN_UNTIL(&loop, says(&b, "\"state\":\"aborted\""));
    assert_true(says(&b, "the replica that has proposed it is gone"));
    c.mode = WILLING;
    do /* its lease has to run out */
        told = ask(&b, BT_ROLLOUT_PUT, "m", "two");
    while (told.status == 409);
    assert_int_equal(told.status, 200);
    assert_int_equal(bt_rollout_number(b.rollout), 2);
    assert_int_equal(bt_rollout_number(c.rollout), 2);
    end(&b);
    end(&c);
}

/* The proposer ended between its decision and telling it. */
static void test_a_decision_that_was_not_told_counts(void **state)
{
    replica_t a, b;
    told_t told;

    (void) state;
    start(&a, "a");
    b.mode = WILLING;
    start(&b, "b");
    TURN_UNTIL(&loop, knows(&a, "b"));
    b.mode = SILENT;
    assert_int_equal(begin(&a, BT_ROLLOUT_PUT, "m", "one", &told), 0);
    TURN_UNTIL(&loop, b.trying != NULL);
    (void) by_hand(&b, (bt_store_op_t){.what = BT_STORE_CELL_SET,
                                       .key = BT_STR("policy_done:1"),
                                       .value = BT_STR("commit")});
    end(&a);
    TURN_UNTIL(&loop, bt_rollout_number(b.rollout) == 1);
    TURN_UNTIL(&loop, says(&b, "\"state\":\"committed\""));
    assert_int_equal(bt_rollout_committed(b.rollout), 1);
    end(&b);
}

/* The same, and the next proposer finds it before anybody has looked. */
static void test_the_next_proposer_settles_what_is_open(void **state)
{
    replica_t a;

    (void) state;
    start(&a, "a");
    push(&a, "one");
    /* Another's, who had a number and a row, but no votes. */
    (void) by_hand(&a, (bt_store_op_t){.what = BT_STORE_CELL_SET,
                                       .key = BT_STR("policy_set:2"),
                                       .value = BT_STR("what is this"),
                                       .if_absent = true});
    put_row(&a, "2", "{\"state\":\"proposed\",\"hash\":\"00\",\"replica\":\"gone\"}");
    /* And a number of which nobody has heard more. */
    (void) by_hand(&a, (bt_store_op_t){.what = BT_STORE_CELL_SET,
                                       .key = BT_STR("policy_set:3"),
                                       .value = BT_STR("x"),
                                       .if_absent = true});
    TURN_UNTIL(&loop, says(&a, "\"replica\":\"gone\""));
    push(&a, "two");
    assert_int_equal(bt_rollout_number(a.rollout), 4);
    assert_true(says(&a, "\"number\":2,\"state\":\"aborted\""));
    assert_memory_equal(
        by_hand(&a, (bt_store_op_t){.what = BT_STORE_CELL_GET, .key = BT_STR("policy_done:2")})
            .text,
        "abort ", 6);
    end(&a);
}

static void test_a_row_that_comes_late_changes_nothing(void **state)
{
    replica_t a;

    (void) state;
    start(&a, "a");
    push(&a, "one");
    push(&a, "two");
    put_row(&a, "1", "{\"state\":\"proposed\",\"hash\":\"00\"}");
    put_row(&a, "nonsense", "{\"state\":\"committed\",\"hash\":\"00\"}");
    put_row(&a, "9", "no JSON");
    TURN_UNTIL(&loop, says(&a, "\"number\":1,\"state\":\"proposed\""));
    push(&a, "three");
    assert_int_equal(bt_rollout_number(a.rollout), 3);
    assert_int_equal(a.tries, 3);
    end(&a);
}

static void test_a_busy_fleet_says_who(void **state)
{
    replica_t a, b;
    told_t first, second;

    (void) state;
    start(&a, "a");
    start(&b, "b");
    TURN_UNTIL(&loop, knows(&a, "b"));
    b.mode = SILENT;
    assert_int_equal(begin(&a, BT_ROLLOUT_PUT, "m", "one", &first), 0);
    TURN_UNTIL(&loop, b.trying != NULL);
    second = ask(&b, BT_ROLLOUT_PUT, "m", "two");
    assert_int_equal(second.status, 409);
    assert_string_equal(second.text,
                        "replica a is rolling something out: try again when it is done");
    bt_rollout_tried(b.rollout, b.trying, 0, "");
    TURN_UNTIL(&loop, first.times > 0);
    assert_int_equal(first.status, 200);
    end(&a);
    end(&b);
}

static void test_back(void **state)
{
    bt_rollout_item_t item = {.edit = BT_ROLLOUT_BACK};
    const bt_rollout_change_t change = {.items = &item, .count = 1, .by = "ann"};
    replica_t a;
    told_t told;
    char err[256];

    (void) state;
    start(&a, "a");
    told = ask(&a, BT_ROLLOUT_BACK, "", "");
    assert_int_equal(told.status, 409);
    push(&a, "one");
    push(&a, "two");
    push(&a, "three");
    told = ask(&a, BT_ROLLOUT_BACK, "", "");
    assert_int_equal(told.status, 200);
    assert_string_equal(bt_rollout_held(a.rollout)->files[0].text, "two");
    assert_int_equal(bt_rollout_held(a.rollout)->copy_of, 2);
    item.number = 1; /* its texts are in the store only */
    told = (told_t){0};
    assert_int_equal(bt_rollout_change(a.rollout, &change, on_told, &told, err, sizeof err), 0);
    TURN_UNTIL(&loop, told.times > 0);
    assert_int_equal(told.status, 200);
    assert_string_equal(bt_rollout_held(a.rollout)->files[0].text, "one");
    /* Before the first there were none. */
    for (unsigned i = 0; i < 10; i++) {
        push(&a, "x");
        push(&a, "y");
    }
    told = (told_t){0};
    assert_int_equal(bt_rollout_change(a.rollout, &change, on_told, &told, err, sizeof err), 0);
    TURN_UNTIL(&loop, told.times > 0);
    assert_int_equal(told.status, 409);
    assert_string_equal(told.text, "the store does not have the texts of set 1 any more");
    end(&a);
}

static void test_it_is_put_back_when_the_store_forgets(void **state)
{
    replica_t a, b;

    (void) state;
    start(&a, "a");
    push(&a, "one");
    push(&a, "two");
    forget_all(&a, 2);
    TURN_UNTIL(&loop, by_hand(&a, (bt_store_op_t){.what = BT_STORE_CELL_GET,
                                                  .key = BT_STR("policy_set:2")})
                              .text[0] != '\0');
    start(&b, "b");
    assert_int_equal(bt_rollout_held(b.rollout)->number, 2);
    TURN_UNTIL(&loop, bt_rollout_number(b.rollout) == 2);
    /* The texts alone: whoever needs them says so, whoever has them puts them there. */
    (void) by_hand(&a, (bt_store_op_t){.what = BT_STORE_CELL_DROP, .key = BT_STR("policy_set:2")});
    end(&b);
    make(&b, "b");
    bt_rollout_join(b.rollout, NULL, NULL);
    bt_rollout_begin(b.rollout, NULL);
    TURN_UNTIL(&loop, bt_rollout_number(b.rollout) == 2);
    end(&a);
    end(&b);
}

static void test_what_cannot_be_taken_is_tried_again(void **state)
{
    replica_t a, b;
    told_t told;

    (void) state;
    start(&a, "a");
    start(&b, "b");
    TURN_UNTIL(&loop, knows(&a, "b"));
    b.take_mode = REFUSING;
    told = ask(&a, BT_ROLLOUT_PUT, "m", "one");
    assert_int_equal(told.status, 200); /* it is committed; who is behind is in the answer */
    assert_non_null(strstr(told.text, "set 1 does not serve here: no room"));
    assert_int_equal(bt_rollout_number(b.rollout), 0);
    b.take_mode = WILLING;
    TURN_UNTIL(&loop, bt_rollout_number(b.rollout) == 1);
    TURN_UNTIL(&loop, !says(&a, "no room"));
    snprintf(b.trouble, sizeof b.trouble, "taken back");
    TURN_UNTIL(&loop, says(&a, "\"error\":\"taken back\""));
    end(&a);
    end(&b);
}

static void test_pins(void **state)
{
    replica_t a, b;
    told_t told;

    (void) state;
    start(&a, "a");
    start(&b, "b");
    TURN_UNTIL(&loop, knows(&a, "b"));
    push(&a, "one");
    bt_rollout_pin(b.rollout, true);
    assert_true(b.is_pinned);
    TURN_UNTIL(&loop, says(&a, "\"pinned\":true"));
    b.mode = REFUSING; /* it is not asked */
    push(&a, "two");
    assert_int_equal(bt_rollout_number(b.rollout), 1);
    assert_int_equal(bt_rollout_committed(b.rollout), 2);
    assert_int_equal(b.tries, 1);
    end(&b);
    start(&b, "b");
    assert_true(b.is_pinned);
    assert_int_equal(bt_rollout_held(b.rollout)->number, 1);
    TURN_UNTIL(&loop, bt_rollout_number(b.rollout) == 1);
    bt_rollout_pin(a.rollout, true);
    told = ask(&a, BT_ROLLOUT_PUT, "m", "three");
    assert_int_equal(told.status, 409);
    assert_non_null(strstr(told.text, "every replica is pinned"));
    bt_rollout_pin(b.rollout, false);
    assert_int_equal(bt_rollout_number(b.rollout), 2);
    TURN_UNTIL(&loop, count_pins(&a) == 1);
    end(&b);
    start(&b, "b");
    assert_false(b.is_pinned);
    end(&a);
    end(&b);
}

/* ---- notes ---- */

/* What stands in the store of what it has begun to try; "" = nothing. */
static const char *noted(replica_t *asked, const char *name)
{
    static char value[64];
    unsigned at = 0;

    const hand_t all =
        by_hand(asked, (bt_store_op_t){.what = BT_STORE_TABLE_ALL, .key = BT_STR("policy_trying")});
    value[0] = '\0';
    for (; at < all.row_count && at < 4; at++)
        if (strcmp(all.rows[at].name, name) == 0)
            snprintf(value, sizeof value, "%s", all.rows[at].value);
    return value;
}

static void test_what_brought_a_replica_down_is_not_tried_again(void **state)
{
    replica_t a, b;
    told_t told;

    (void) state;
    expiry_ms = 4000; /* a killed one is waited for */
    start(&a, "a");
    start(&b, "b");
    TURN_UNTIL(&loop, knows(&a, "b"));
    push(&a, "one");
    TURN_UNTIL(&loop, noted(&a, "a")[0] == '\0' && noted(&a, "b")[0] == '\0');
    b.mode = SILENT;
    assert_int_equal(begin(&a, BT_ROLLOUT_PUT, "m", "two", &told), 0);
    TURN_UNTIL(&loop, b.trying != NULL);
    assert_string_equal(noted(&a, "b"), "2"); /* before it tries */
    end(&b);
    start(&b, "b");
    TURN_UNTIL(&loop, told.times > 0);
    assert_int_equal(told.status, 400);
    assert_string_equal(
        told.text,
        "set 2 is committed nowhere: replica b refuses: it brought this replica down before");
    assert_int_equal(b.tries, 0);
    TURN_UNTIL(&loop, bt_rollout_number(b.rollout) == 1); /* what served before serves again */
    /* It is about that number: another is tried like any, and then the note goes. */
    push(&a, "two");
    assert_int_equal(b.tries, 1);
    assert_int_equal(bt_rollout_number(b.rollout), 3);
    TURN_UNTIL(&loop, noted(&a, "b")[0] == '\0');
    end(&a);
    end(&b);
}

static void on_joined(void *user)
{
    *(bool *) user = true;
}

/* As the gateway begins: with what is committed. */
static void join(replica_t *r, const char *name)
{
    bool has_joined = false;

    make(r, name);
    bt_rollout_join(r->rollout, on_joined, &has_joined);
    TURN_UNTIL(&loop, has_joined);
}

static void test_a_replica_begins_without_what_brought_it_down(void **state)
{
    replica_t a, b;

    (void) state;
    start(&a, "a");
    push(&a, "one");
    join(&b, "b");
    assert_string_equal(noted(&a, "b"), "1");
    assert_false(bt_rollout_is_blocked(b.rollout, 1));
    bt_rollout_begin(b.rollout, bt_rollout_held(b.rollout));
    TURN_UNTIL(&loop, noted(&a, "b")[0] == '\0'); /* it has begun */
    end(&b);
    join(&b, "b");
    end(&b); /* killed while it begins */
    for (int i = 0; i < 2; i++) {
        join(&b, "b");
        assert_true(bt_rollout_is_blocked(b.rollout, 1));
        bt_rollout_begin(b.rollout, NULL);
        TURN_UNTIL(&loop,
                   says(&a, "set 1 does not serve here: it brought this replica down before"));
        assert_int_equal(b.takes, 0);
        assert_int_equal(bt_rollout_number(b.rollout), 0);
        assert_string_equal(noted(&a, "b"), "1");
        if (i == 0)
            end(&b);
    }
    push(&a, "two");
    assert_int_equal(bt_rollout_number(b.rollout), 2);
    assert_false(says(&b, "brought this replica down"));
    TURN_UNTIL(&loop, noted(&a, "b")[0] == '\0');
    end(&a);
    end(&b);
}

/* Whoever ends in order was not brought down. */
static void test_who_leaves_takes_its_notes_along(void **state)
{
    replica_t a, b;
    told_t told;

    (void) state;
    expiry_ms = 4000;
    start(&a, "a");
    start(&b, "b");
    TURN_UNTIL(&loop, knows(&a, "b"));
    b.mode = SILENT;
    assert_int_equal(begin(&a, BT_ROLLOUT_PUT, "m", "one", &told), 0);
    TURN_UNTIL(&loop, b.trying != NULL);
    bt_rollout_leave(b.rollout);
    end(&b);
    TURN_UNTIL(&loop, noted(&a, "b")[0] == '\0');
    start(&b, "b");
    TURN_UNTIL(&loop, told.times > 0);
    assert_int_equal(told.status, 200);
    assert_int_equal(b.tries, 1);
    end(&a);
    end(&b);
}

static int setup(void **state)
{
    static unsigned number;
    const bt_store_config_t config = {0};
    char err[256];

    (void) state;
    snprintf(space, sizeof space, "spec%u", number++);
    expiry_ms = 200;
    assert_int_equal(bt_loop_init(&loop, 0), 0);
    assert_int_equal(bt_store_open(&store, &config, err, sizeof err), 0);
    return 0;
}

static int teardown(void **state)
{
    (void) state;
    bt_store_close(store);
    bt_loop_fini(&loop);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_all_or_none),
        TEST(test_who_is_silent_is_named),
        TEST(test_who_is_gone_is_not_waited_for),
        TEST(test_a_proposer_that_ends_leaves_nothing_open),
        TEST(test_a_decision_that_was_not_told_counts),
        TEST(test_the_next_proposer_settles_what_is_open),
        TEST(test_a_row_that_comes_late_changes_nothing),
        TEST(test_a_busy_fleet_says_who),
        TEST(test_back),
        TEST(test_it_is_put_back_when_the_store_forgets),
        TEST(test_what_cannot_be_taken_is_tried_again),
        TEST(test_pins),
        TEST(test_what_brought_a_replica_down_is_not_tried_again),
        TEST(test_a_replica_begins_without_what_brought_it_down),
        TEST(test_who_leaves_takes_its_notes_along),
    };

    alarm(120);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
