/* Replicas of one process over a local store: what is voted, committed, left open, and lost; and a store that fails, or a replica that
 * is killed, at every step. What a replica makes of a set is here a flag. */
#include "../loop/util.h"

#include "base/err.h"
#include "base/log.h"
#include "rollout/rollout.h"

#include <stdio.h>
#include <stdlib.h>

enum mode { WILLING, REFUSING, SILENT };

typedef struct replica {
    bt_store_client_t *client;
    bt_rollout_t *rollout;
    enum mode mode, take_mode;
    bt_rollout_set_t *trying; /* SILENT: reference, until said */
    unsigned tries, takes;
    char trouble[64];
    bool is_pinned, is_gone, is_ended;
} replica_t;

enum change { PUT, DROP, BACK };

typedef struct told {
    enum change change; /* what was asked for */
    const char *name, *text;
    unsigned times, status;
    uint64_t number;
    bool is_changed;
    char why[1024];
} told_t;

static bt_loop_t loop;
static bt_store_t *store;
static char space[32];
static uint64_t expiry_ms, interval_ms, vote_ms; /* of the replicas that are made */

/* ---- a store that fails ---- */

enum fault { NO_FAULT, BEFORE, AFTER }; /* it was not done; or it was, and nobody is told so */

typedef struct broken {
    bt_store_op_t op, *asked;
    replica_t *replica;
} broken_t;

static unsigned steps; /* what was asked for, readings of the log and the table aside */
static unsigned
    fault_step; /* from this one on the store fails, with the first one of them as `fault` says */
static enum fault fault;
static void (*on_step)(void);

static void on_broken(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    const bt_store_reply_t failed = {.rc = BT_E_STORE_UNAVAILABLE,
                                     .error = "the spec has stopped it"};
    broken_t *b = bt_container_of(op, broken_t, op);

    (void) reply;
    if (!b->replica->is_ended)
        b->asked->cb(b->asked, &failed);
    free(b);
}

static void store_do(bt_store_client_t *client, bt_store_op_t *op);

/* ---- replicas ---- */

#define ALL_MAX 4
static replica_t *all[ALL_MAX]; /* those that live */

static void store_do(bt_store_client_t *client, bt_store_op_t *op)
{
    const bool is_step = op->what == BT_STORE_LOG_ADD || op->what == BT_STORE_CELL_SET ||
                         op->what == BT_STORE_CELL_GET || op->what == BT_STORE_CELL_DROP;
    broken_t *b;

    if (is_step && steps++ == fault_step && on_step != NULL)
        on_step();
    if (fault == NO_FAULT || steps <= fault_step) {
        bt_store_do(client, op);
        return;
    }
    b = calloc(1, sizeof *b);
    assert_non_null(b);
    for (unsigned i = 0; i < ALL_MAX; i++)
        if (all[i] != NULL && all[i]->client == client)
            b->replica = all[i];
    b->asked = op;
    b->op = *op;
    if (fault == BEFORE || steps > fault_step + 1)
        b->op = (bt_store_op_t){
            .what = BT_STORE_CELL_GET, .space = op->space, .key = BT_STR("nothing")};
    b->op.cb = on_broken;
    bt_store_do(client, &b->op);
}

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
                                        .interval_ms = interval_ms,
                                        .expiry_ms = expiry_ms,
                                        .vote_ms = vote_ms,
                                        .spread_ms = 300,
                                        .ops = &ops,
                                        .user = r,
                                        .store_do = store_do};
    bt_rollout_config_t with_client = config;

    *r = (replica_t){0};
    assert_int_equal(bt_store_client_new(&r->client, store, &loop, NULL, NULL), 0);
    with_client.client = r->client;
    assert_int_equal(bt_rollout_new(&r->rollout, &loop, &with_client), 0);
    for (unsigned i = 0; i < ALL_MAX; i++)
        if (all[i] == NULL) {
            all[i] = r;
            break;
        }
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
    r->is_ended = true;
    bt_rollout_free(r->rollout);
    bt_rollout_set_unref(r->trying);
    bt_store_client_free(r->client, on_gone, r);
    TURN_UNTIL(&loop, r->is_gone);
    for (unsigned i = 0; i < ALL_MAX; i++)
        if (all[i] == r)
            all[i] = NULL;
}

static const bt_rollout_peer_t *peer_of(const replica_t *r, const char *name)
{
    bt_rollout_view_t view;

    bt_rollout_view(r->rollout, &view);
    for (unsigned i = 0; i < view.peer_count; i++)
        if (strcmp(view.peers[i].name, name) == 0)
            return &view.peers[i];
    return NULL;
}

static bool knows(const replica_t *r, const char *name)
{
    return peer_of(r, name) != NULL;
}

static bool has_trouble(const replica_t *r, const char *name, const char *part)
{
    return knows(r, name) && strstr(peer_of(r, name)->trouble, part) != NULL;
}

/* "proposed", "committed", "aborted"; "" when it is not known. */
static const char *state_of(const replica_t *r, uint64_t number)
{
    static const char *const names[] = {"proposed", "committed", "aborted"};
    bt_rollout_view_t view;

    bt_rollout_view(r->rollout, &view);
    for (unsigned i = 0; i < view.log->row_count; i++)
        if (view.log->rows[i].info.number == number)
            return names[view.log->rows[i].state];
    return "";
}

static const char *text_of(const replica_t *r)
{
    const bt_rollout_set_t *set = bt_rollout_held(r->rollout);

    return set->count > 0 ? set->files[0].text : "";
}

/* ---- asking ---- */

static unsigned edit(void *arg, bt_rollout_set_t *set, char *err, size_t err_size)
{
    const told_t *told = arg;

    if (told->change == PUT)
        return bt_rollout_set_put(set, told->name, bt_str(told->text)) == 0 ? 0 : 400;
    snprintf(err, err_size, "%s: not there", told->name);
    return bt_rollout_set_drop(set, told->name) ? 0 : 404;
}

static void on_told(void *arg, const bt_rollout_outcome_t *outcome)
{
    told_t *told = arg;

    told->times++;
    told->status = outcome->status;
    told->is_changed = outcome->is_changed;
    told->number = outcome->set != NULL ? outcome->set->info.number : 0;
    snprintf(told->why, sizeof told->why, "%s", outcome->why != NULL ? outcome->why : "");
}

static int begin_change(replica_t *r, told_t *told, uint64_t back)
{
    return bt_rollout_change(r->rollout,
                             &(bt_rollout_change_t){.edit = told->change == BACK ? NULL : edit,
                                                    .back = back,
                                                    .by = "ann",
                                                    .done = on_told,
                                                    .arg = told});
}

static int begin(replica_t *r, const char *text, told_t *told)
{
    *told = (told_t){.change = PUT, .name = "m", .text = text};
    return begin_change(r, told, 0);
}

static told_t finish(replica_t *r, told_t *told, uint64_t back)
{
    assert_int_equal(begin_change(r, told, back), 0);
    TURN_UNTIL(&loop, told->times > 0);
    assert_int_equal(told->times, 1);
    return *told;
}

static told_t ask(replica_t *r, const char *text)
{
    told_t told = {.change = PUT, .name = "m", .text = text};

    return finish(r, &told, 0);
}

static told_t back(replica_t *r, uint64_t number)
{
    told_t told = {.change = BACK};

    return finish(r, &told, number);
}

static void push(replica_t *r, const char *text)
{
    told_t told = ask(r, text);

    if (told.status != 200)
        print_error("%u %s\n", told.status, told.why);
    assert_int_equal(told.status, 200);
}

/* ---- the store by hand ---- */

typedef struct hand {
    bt_store_op_t op;
    bool is_done, is_none;
    const char *name; /* whose words are counted */
    uint64_t number;  /* about which set */
    bool is_trying;   /* its last word about it */
    unsigned entries;
} hand_t;

static void on_hand(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    hand_t *h = bt_container_of(op, hand_t, op);
    bt_rollout_entry_t e;

    assert_int_equal(reply->rc, 0);
    for (unsigned i = 0; i < reply->row_count && op->what == BT_STORE_LOG_READ; i++) {
        bt_rollout_entry_read(&e, reply->rows[i].value);
        if (h->name != NULL && e.info.number == h->number && e.process[0] != '\0' &&
            strcmp(e.info.replica, h->name) == 0)
            h->is_trying = e.kind == BT_ROLLOUT_TRYING;
    }
    h->entries = reply->row_count;
    h->is_none = reply->is_none;
    h->is_done = true;
}

static hand_t by_hand(bt_store_op_t op, const char *name, uint64_t number)
{
    hand_t h = {.op = op, .name = name, .number = number};
    bt_store_client_t *client = NULL;

    for (unsigned i = 0; i < ALL_MAX && client == NULL; i++)
        client = all[i] != NULL ? all[i]->client : NULL;
    h.op.space = bt_str(space);
    h.op.cb = on_hand;
    bt_store_do(client, &h.op);
    TURN_UNTIL(&loop, h.is_done);
    return h;
}

/* Does the log say that it tries it, and not what came of it? */
static bool is_trying(const char *name, uint64_t number)
{
    return by_hand((bt_store_op_t){.what = BT_STORE_LOG_READ,
                                   .key = BT_STR("policy_log"),
                                   .field = BT_STR("0"),
                                   .limit = 10000},
                   name, number)
        .is_trying;
}

static bool has_cell(const char *what, const char *whose)
{
    char key[128];

    snprintf(key, sizeof key, "%s:%s", what, whose);
    return !by_hand((bt_store_op_t){.what = BT_STORE_CELL_GET, .key = bt_str(key)}, NULL, 0)
                .is_none;
}

static void drop(const char *key)
{
    (void) by_hand((bt_store_op_t){.what = BT_STORE_CELL_DROP, .key = bt_str(key)}, NULL, 0);
}

/* FLUSHALL. */
static void forget_all(const replica_t *r)
{
    bt_rollout_view_t view;
    char key[64];

    bt_rollout_view(r->rollout, &view);
    for (unsigned i = 0; i < view.log->row_count; i++) {
        snprintf(key, sizeof key, "policy_set:%s", view.log->rows[i].info.uuid);
        drop(key);
    }
    drop("policy_log");
    drop(BT_ROLLOUT_TABLE);
    drop("policy_pin:a");
    drop("policy_pin:b");
}

static void add_by_hand(const bt_rollout_entry_t *e)
{
    bt_text_t text;

    bt_text_init(&text);
    bt_rollout_entry_write(e, &text);
    (void) by_hand((bt_store_op_t){.what = BT_STORE_LOG_ADD,
                                   .key = BT_STR("policy_log"),
                                   .value = bt_text_str(&text),
                                   .limit = 4096},
                   NULL, 0);
    bt_text_fini(&text);
}

static bt_rollout_entry_t proposal_by_hand(const replica_t *r, uint64_t number, const char *members)
{
    const bt_rollout_info_t *held = &bt_rollout_held(r->rollout)->info;
    bt_rollout_entry_t e = {.kind = BT_ROLLOUT_PROPOSE,
                            .info = {.number = number, .previous = held->number},
                            .members = bt_str(members)};

    snprintf(e.info.uuid, sizeof e.info.uuid, "by-hand-%u", (unsigned) number);
    bt_str_copy(e.info.replica, sizeof e.info.replica, "gone");
    memcpy(e.info.previous_uuid, held->uuid, sizeof held->uuid);
    return e;
}

/* ---- specs ---- */

static void test_all_or_none(void **state)
{
    replica_t a, b;
    told_t told, second;

    (void) state;
    start(&a, "a");
    start(&b, "b");
    TURN_UNTIL(&loop, knows(&a, "b") && knows(&b, "a"));
    push(&a, "one");
    assert_int_equal(bt_rollout_number(a.rollout), 1);
    assert_int_equal(bt_rollout_number(b.rollout), 1);
    assert_int_equal(b.tries, 1);
    b.mode = REFUSING;
    told = ask(&a, "two");
    assert_int_equal(told.status, 400);
    assert_string_equal(told.why, "set 2 is committed nowhere: replica b refuses: x.lua:1: no");
    assert_int_equal(bt_rollout_number(a.rollout), 1);
    assert_int_equal(a.takes, 1);
    /* A number is never used twice. */
    b.mode = WILLING;
    push(&b, "two");
    assert_int_equal(bt_rollout_number(a.rollout), 3);
    told = ask(&b, "two");
    assert_int_equal(told.status, 200);
    assert_false(told.is_changed);
    assert_int_equal(told.number, 3);
    told = (told_t){.change = DROP, .name = "none"};
    told = finish(&b, &told, 0);
    assert_int_equal(told.status, 404);
    assert_string_equal(told.why, "none: not there");
    /* One at a time at one replica. */
    assert_int_equal(begin(&a, "three", &told), 0);
    assert_int_equal(begin(&a, "four", &second), BT_E_AGAIN);
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
    told = ask(&a, "one");
    assert_int_equal(told.status, 504);
    assert_string_equal(told.why, "set 1 is committed nowhere: no vote within 600 ms from b");
    /* Its late word counts for nothing. */
    bt_rollout_tried(b.rollout, b.trying, 0, "");
    TURN_UNTIL(&loop, !is_trying("b", 1) && strcmp(state_of(&b, 1), "aborted") == 0);
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

static void test_nothing_needs_the_proposer(void **state)
{
    replica_t a, b, c;
    told_t told;

    (void) state;
    start(&a, "a");
    start(&b, "b");
    start(&c, "c");
    TURN_UNTIL(&loop, knows(&a, "b") && knows(&a, "c"));
    c.mode = SILENT;
    assert_int_equal(begin(&a, "one", &told), 0);
    TURN_UNTIL(&loop, c.trying != NULL);
    end(&a);
    assert_int_equal(told.times, 0);
    bt_rollout_tried(c.rollout, c.trying, 0, "");
    TURN_UNTIL(&loop, bt_rollout_number(b.rollout) == 1 && bt_rollout_number(c.rollout) == 1);
    /* And where a vote never comes, anybody ends it. */
    start(&a, "a");
    TURN_UNTIL(&loop, knows(&a, "b") && knows(&a, "c"));
    bt_rollout_set_unref(c.trying);
    c.trying = NULL;
    assert_int_equal(begin(&a, "two", &told), 0);
    TURN_UNTIL(&loop, c.trying != NULL);
    end(&a);
    TURN_UNTIL(&loop, strcmp(state_of(&b, 2), "aborted") == 0);
    bt_rollout_tried(c.rollout, c.trying, 0, "");
    c.mode = WILLING;
    push(&b, "three");
    assert_int_equal(bt_rollout_number(c.rollout), 3);
    end(&b);
    end(&c);
}

static void test_a_proposal_without_texts_ends(void **state)
{
    bt_rollout_entry_t e;
    replica_t a;

    (void) state;
    start(&a, "a");
    push(&a, "one");
    e = proposal_by_hand(&a, 2, "[\"a\"]");
    add_by_hand(&e);
    TURN_UNTIL(&loop, strcmp(state_of(&a, 2), "proposed") == 0);
    assert_int_equal(ask(&a, "two").status, 409);
    TURN_UNTIL(&loop, strcmp(state_of(&a, 2), "aborted") == 0);
    /* Texts that are not what was proposed are refused at once. */
    e = proposal_by_hand(&a, 3, "[\"a\"]");
    (void) by_hand((bt_store_op_t){.what = BT_STORE_CELL_SET,
                                   .key = BT_STR("policy_set:by-hand-3"),
                                   .value = BT_STR("what is this")},
                   NULL, 0);
    add_by_hand(&e);
    TURN_UNTIL(&loop, strcmp(state_of(&a, 3), "aborted") == 0);
    push(&a, "two");
    assert_int_equal(bt_rollout_number(a.rollout), 4);
    assert_int_equal(a.tries, 2);
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
    assert_int_equal(begin(&a, "one", &first), 0);
    TURN_UNTIL(&loop, b.trying != NULL);
    second = ask(&b, "two");
    assert_int_equal(second.status, 409);
    assert_string_equal(second.why,
                        "replica a is rolling something out: try again when it is done");
    bt_rollout_tried(b.rollout, b.trying, 0, "");
    TURN_UNTIL(&loop, first.times > 0);
    assert_int_equal(first.status, 200);
    end(&a);
    end(&b);
}

/* Both have read the same, and both propose: the log's order decides. */
static void test_of_two_at_once_one_is_first(void **state)
{
    replica_t a, b;
    told_t first, second;

    (void) state;
    start(&a, "a");
    start(&b, "b");
    TURN_UNTIL(&loop, knows(&a, "b") && knows(&b, "a"));
    push(&a, "zero");
    assert_int_equal(begin(&a, "one", &first), 0);
    assert_int_equal(begin(&b, "two", &second), 0);
    TURN_UNTIL(&loop, first.times > 0 && second.times > 0);
    assert_int_equal(first.status + second.status, 200 + 409);
    assert_int_equal(bt_rollout_number(a.rollout), 2);
    assert_int_equal(bt_rollout_number(b.rollout), 2);
    assert_string_equal(text_of(&a), first.status == 200 ? "one" : "two");
    end(&a);
    end(&b);
}

static void test_back(void **state)
{
    replica_t a;
    told_t told;

    (void) state;
    start(&a, "a");
    told = back(&a, 0);
    assert_int_equal(told.status, 409);
    push(&a, "one");
    push(&a, "two");
    push(&a, "three");
    told = back(&a, 0);
    assert_int_equal(told.status, 200);
    assert_string_equal(text_of(&a), "two");
    assert_int_equal(bt_rollout_held(a.rollout)->info.copy_of, 2);
    assert_int_equal(back(&a, 1).status, 200); /* its texts are in the store only */
    assert_string_equal(text_of(&a), "one");
    assert_int_equal(back(&a, 77).status, 400);
    a.mode = REFUSING;
    assert_int_equal(ask(&a, "no").status, 400);
    a.mode = WILLING;
    assert_int_equal(back(&a, 6).status, 400); /* it was aborted */
    for (unsigned i = 0; i < 10; i++) {
        push(&a, "x");
        push(&a, "y");
    }
    told = back(&a, 1);
    assert_int_equal(told.status, 409);
    assert_string_equal(told.why, "the store does not have the texts of set 1 any more");
    end(&a);
}

/* However many were refused since, and whoever is asked. */
static void test_the_set_before_can_always_be_gone_back_to(void **state)
{
    char text[16];
    replica_t a;

    (void) state;
    start(&a, "a");
    push(&a, "one");
    push(&a, "two");
    a.mode = REFUSING;
    for (unsigned i = 0; i < 24; i++) {
        snprintf(text, sizeof text, "refused %u", i);
        assert_int_equal(ask(&a, text).status, 400);
    }
    end(&a);
    start(&a, "a"); /* it has its texts from the store only */
    assert_int_equal(back(&a, 0).status, 200);
    assert_string_equal(text_of(&a), "one");
    end(&a);
}

static void test_texts_of_what_is_forgotten_are_removed(void **state)
{
    char first[BT_ROLLOUT_UUID_BYTES], text[16];
    replica_t a;

    (void) state;
    start(&a, "a");
    push(&a, "first");
    memcpy(first, bt_rollout_held(a.rollout)->info.uuid, sizeof first);
    for (unsigned i = 0; i < 12; i++) {
        assert_true(i > 7 || has_cell("policy_set", first));
        snprintf(text, sizeof text, "%u", i);
        push(&a, text);
    }
    TURN_UNTIL(&loop, !has_cell("policy_set", first));
    assert_true(has_cell("policy_set", bt_rollout_held(a.rollout)->info.uuid));
    end(&a);
}

static void test_it_is_put_back_when_the_store_forgets(void **state)
{
    char uuid[BT_ROLLOUT_UUID_BYTES], key[64];
    replica_t a, b;

    (void) state;
    start(&a, "a");
    push(&a, "one");
    push(&a, "two");
    memcpy(uuid, bt_rollout_held(a.rollout)->info.uuid, sizeof uuid);
    forget_all(&a);
    TURN_UNTIL(&loop, has_cell("policy_set", uuid));
    TURN_UNTIL(&loop, strcmp(state_of(&a, 2), "committed") == 0);
    start(&b, "b");
    assert_int_equal(bt_rollout_held(b.rollout)->info.number, 2);
    TURN_UNTIL(&loop, bt_rollout_number(b.rollout) == 2);
    assert_int_equal(back(&a, 0).status, 200); /* it still has what was before */
    assert_string_equal(text_of(&b), "one");
    /* The texts alone: whoever needs them says so, whoever has them puts them there. */
    snprintf(key, sizeof key, "policy_set:%s", bt_rollout_held(a.rollout)->info.uuid);
    drop(key);
    end(&b);
    make(&b, "b");
    bt_rollout_join(b.rollout, NULL, NULL);
    bt_rollout_begin(b.rollout, NULL);
    TURN_UNTIL(&loop, bt_rollout_number(b.rollout) == 3);
    end(&a);
    end(&b);
}

/* The highest wins: a store that has lost its newest entries does not take a replica back. */
static void test_a_store_that_has_lost_the_newest(void **state)
{
    bt_rollout_entry_t older = {.kind = BT_ROLLOUT_BASE, .info.number = 1, .info.uuid = "u1"};
    replica_t a, b;

    (void) state;
    start(&a, "a");
    push(&a, "one");
    push(&a, "two");
    drop("policy_log");
    add_by_hand(&older);
    TURN_UNTIL(&loop, strcmp(state_of(&a, 2), "committed") == 0);
    start(&b, "b");
    TURN_UNTIL(&loop, bt_rollout_number(b.rollout) == 2);
    assert_int_equal(bt_rollout_number(a.rollout), 2);
    push(&b, "three");
    assert_int_equal(bt_rollout_number(a.rollout), 3);
    end(&a);
    end(&b);
}

static unsigned since_of(const replica_t *r)
{
    bt_rollout_view_t view;

    bt_rollout_view(r->rollout, &view);
    return view.log->since;
}

/* The log is bounded: what is committed is named again before it is cut off. */
static void test_a_log_that_grows_and_grows(void **state)
{
    bt_rollout_entry_t noise = {.kind = BT_ROLLOUT_YES, .info.uuid = "none"};
    replica_t a, b;

    (void) state;
    start(&a, "a");
    push(&a, "one");
    for (unsigned i = 0; i < 20; i++) {
        const unsigned before = since_of(&a);
        for (unsigned k = 0; k < 500; k++)
            add_by_hand(&noise);
        TURN_UNTIL(&loop, since_of(&a) >= before + 500 || since_of(&a) < before);
    }
    start(&b, "b");
    assert_int_equal(bt_rollout_held(b.rollout)->info.number, 1);
    TURN_UNTIL(&loop, bt_rollout_number(b.rollout) == 1);
    end(&a);
    end(&b);
}

static void test_what_cannot_be_taken_is_tried_again(void **state)
{
    replica_t a, b;

    (void) state;
    start(&a, "a");
    start(&b, "b");
    TURN_UNTIL(&loop, knows(&a, "b"));
    b.take_mode = REFUSING;
    push(&a, "one"); /* it is committed; who is behind is in the answer */
    assert_true(has_trouble(&a, "b", "set 1 does not serve here: no room"));
    assert_int_equal(bt_rollout_number(b.rollout), 0);
    b.take_mode = WILLING;
    TURN_UNTIL(&loop, bt_rollout_number(b.rollout) == 1);
    TURN_UNTIL(&loop, !has_trouble(&a, "b", "no room"));
    snprintf(b.trouble, sizeof b.trouble, "taken back");
    TURN_UNTIL(&loop, has_trouble(&a, "b", "taken back"));
    end(&a);
    end(&b);
}

/* ---- pins ---- */

static bool is_pinned_there(const replica_t *r, const char *name)
{
    return knows(r, name) && peer_of(r, name)->is_pinned;
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
    TURN_UNTIL(&loop, is_pinned_there(&a, "b"));
    b.mode = SILENT; /* it is not asked, and not waited for */
    push(&a, "two");
    assert_int_equal(bt_rollout_number(b.rollout), 1);
    TURN_UNTIL(&loop, bt_rollout_committed(b.rollout) == 2);
    assert_int_equal(b.tries, 1);
    end(&b);
    start(&b, "b");
    assert_true(b.is_pinned);
    assert_int_equal(bt_rollout_held(b.rollout)->info.number, 1);
    TURN_UNTIL(&loop, bt_rollout_number(b.rollout) == 1);
    bt_rollout_pin(a.rollout, true);
    told = ask(&a, "three");
    assert_int_equal(told.status, 409);
    assert_non_null(strstr(told.why, "every replica is pinned"));
    bt_rollout_pin(b.rollout, false);
    TURN_UNTIL(&loop, bt_rollout_number(b.rollout) == 2);
    TURN_UNTIL(&loop, !has_cell("policy_pin", "b") && has_cell("policy_pin", "a"));
    end(&b);
    start(&b, "b");
    assert_false(b.is_pinned);
    end(&a);
    end(&b);
}

/* It stays with it however many come after it, and after a flush, and over a restart after both. */
static void test_a_pin_needs_nobody(void **state)
{
    char text[16];
    replica_t a, b;

    (void) state;
    start(&a, "a");
    start(&b, "b");
    TURN_UNTIL(&loop, knows(&a, "b"));
    push(&a, "stay");
    bt_rollout_pin(b.rollout, true);
    TURN_UNTIL(&loop, is_pinned_there(&a, "b"));
    for (unsigned i = 0; i < 12; i++) {
        snprintf(text, sizeof text, "%u", i);
        push(&a, text);
    }
    forget_all(&a);
    TURN_UNTIL(&loop, has_cell("policy_pin", "b"));
    end(&b);
    start(&b, "b");
    assert_true(b.is_pinned);
    assert_string_equal(text_of(&b), "stay");
    end(&a);
    end(&b);
}

static void test_a_pin_made_while_the_store_is_away(void **state)
{
    replica_t a;
    told_t told;

    (void) state;
    start(&a, "a");
    push(&a, "one");
    fault = BEFORE;
    fault_step = 0;
    told = ask(&a, "two");
    assert_int_equal(told.status, 503);
    assert_string_equal(told.why,
                        "the shared store does not do it: the spec has stopped it; nothing has "
                        "changed");
    const unsigned before = steps;
    bt_rollout_pin(a.rollout, true);
    TURN_UNTIL(&loop, steps > before + 3); /* told, and told again */
    fault = NO_FAULT;
    TURN_UNTIL(&loop, has_cell("policy_pin", "a"));
    end(&a);
    start(&a, "a");
    assert_true(a.is_pinned);
    fault = BEFORE;
    bt_rollout_pin(a.rollout, false);
    const unsigned again = steps;
    TURN_UNTIL(&loop, steps > again + 3);
    fault = NO_FAULT;
    TURN_UNTIL(&loop, !has_cell("policy_pin", "a"));
    end(&a);
}

/* ---- what a trial has killed ---- */

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
    b.mode = SILENT;
    assert_int_equal(begin(&a, "two", &told), 0);
    TURN_UNTIL(&loop, b.trying != NULL);
    assert_true(is_trying("b", 2)); /* before it tries */
    end(&b);
    start(&b, "b");
    TURN_UNTIL(&loop, told.times > 0);
    assert_int_equal(told.status, 400);
    assert_string_equal(
        told.why,
        "set 2 is committed nowhere: replica b refuses: it brought this replica down before");
    assert_int_equal(b.tries, 0);
    TURN_UNTIL(&loop, bt_rollout_number(b.rollout) == 1); /* what served before serves again */
    /* It is about that set: another is tried like any. */
    push(&a, "two");
    assert_int_equal(b.tries, 1);
    assert_int_equal(bt_rollout_number(b.rollout), 3);
    TURN_UNTIL(&loop, !is_trying("b", 2) && !is_trying("b", 3));
    end(&a);
    end(&b);
}

/* One that is killed and has not begun to try it votes like any other when it is back. */
static void test_who_was_killed_before_it_tried_may_try(void **state)
{
    replica_t a, b;
    told_t told;

    (void) state;
    expiry_ms = 4000;
    start(&a, "a");
    start(&b, "b");
    TURN_UNTIL(&loop, knows(&a, "b"));
    a.mode = SILENT; /* the proposal stays open */
    assert_int_equal(begin(&a, "one", &told), 0);
    end(&b); /* its row lives on */
    TURN_UNTIL(&loop, a.trying != NULL);
    start(&b, "b");
    TURN_UNTIL(&loop, b.tries == 1);
    bt_rollout_tried(a.rollout, a.trying, 0, "");
    TURN_UNTIL(&loop, told.times > 0);
    assert_int_equal(told.status, 200);
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

static bool is_blocked(const replica_t *r)
{
    return bt_rollout_is_blocked(r->rollout, bt_rollout_held(r->rollout));
}

static void test_a_replica_begins_without_what_brought_it_down(void **state)
{
    replica_t a, b;

    (void) state;
    start(&a, "a");
    push(&a, "one");
    join(&b, "b");
    assert_true(is_trying("b", 1));
    assert_false(is_blocked(&b));
    bt_rollout_begin(b.rollout, bt_rollout_held(b.rollout));
    TURN_UNTIL(&loop, !is_trying("b", 1)); /* it has begun */
    end(&b);
    join(&b, "b");
    end(&b); /* killed while it begins */
    for (int i = 0; i < 2; i++) {
        join(&b, "b");
        assert_true(is_blocked(&b));
        bt_rollout_begin(b.rollout, NULL);
        TURN_UNTIL(
            &loop,
            has_trouble(&a, "b", "set 1 does not serve here: it brought this replica down before"));
        assert_int_equal(b.takes, 0);
        assert_int_equal(bt_rollout_number(b.rollout), 0);
        assert_true(is_trying("b", 1));
        if (i == 0)
            end(&b);
    }
    push(&a, "two");
    assert_int_equal(bt_rollout_number(b.rollout), 2);
    TURN_UNTIL(&loop, !has_trouble(&a, "b", "brought this replica down"));
    end(&a);
    end(&b);
}

/* Whoever ends in order was not brought down, and is not waited for. */
static void test_who_leaves_says_so(void **state)
{
    replica_t a, b;
    told_t told;

    (void) state;
    expiry_ms = 4000;
    start(&a, "a");
    start(&b, "b");
    TURN_UNTIL(&loop, knows(&a, "b"));
    b.mode = SILENT;
    assert_int_equal(begin(&a, "one", &told), 0);
    TURN_UNTIL(&loop, b.trying != NULL);
    bt_rollout_leave(b.rollout);
    TURN_UNTIL(&loop, !is_trying("b", 1));
    end(&b);
    TURN_UNTIL(&loop, told.times > 0);
    assert_int_equal(told.status, 200);
    join(&b, "b");
    assert_false(is_blocked(&b));
    bt_rollout_begin(b.rollout, bt_rollout_held(b.rollout));
    assert_int_equal(bt_rollout_number(b.rollout), 1);
    end(&a);
    end(&b);
}

/* ---- at every step ---- */

#define STEPS 22 /* more than a push of three replicas has */

enum accident { STOPPED, LOST_REPLY, FLUSHED, PROPOSER, MEMBER };

static bool is_due; /* the step has come */

static void on_due(void)
{
    is_due = true;
}

static void flush_now(replica_t *r)
{
    fault = NO_FAULT;
    forget_all(r);
}

static void run_accident(enum accident accident, unsigned at)
{
    const char *const names[] = {"a", "b", "c"};
    replica_t r[3];
    told_t told;

    for (unsigned i = 0; i < 3; i++)
        start(&r[i], names[i]);
    for (unsigned i = 0; i < 3; i++)
        TURN_UNTIL(&loop, knows(&r[i], "a") && knows(&r[i], "b") && knows(&r[i], "c"));
    push(&r[0], "one");
    for (unsigned i = 0; i < 3; i++)
        TURN_UNTIL(&loop, !is_trying(names[i], 1));
    steps = 0;
    fault_step = at;
    is_due = false;
    on_step = on_due;
    if (accident == STOPPED || accident == FLUSHED)
        fault = BEFORE;
    if (accident == LOST_REPLY)
        fault = AFTER;
    assert_int_equal(begin(&r[0], "two", &told), 0);
    for (unsigned i = 0; !is_due && told.times == 0 && i < 10000; i++)
        uv_run(&loop.uv, UV_RUN_ONCE);
    on_step = NULL;
    const unsigned victim = accident == PROPOSER ? 0 : 1;
    if (is_due && accident >= PROPOSER)
        end(&r[victim]);
    for (unsigned i = 0; fault != NO_FAULT && i < 10; i++)
        uv_run(&loop.uv, UV_RUN_ONCE); /* the store stands still for a while */
    if (accident == FLUSHED)
        flush_now(&r[2]);
    fault = NO_FAULT;
    if (is_due && accident >= PROPOSER)
        start(&r[victim], names[victim]);
    if (!is_due || accident != PROPOSER)
        TURN_UNTIL(&loop, told.times == 1);
    /* All are of one mind, and it is what was told. */
    for (unsigned i = 0; i < 3; i++)
        TURN_UNTIL(&loop, knows(&r[i], "a") && knows(&r[i], "b") && knows(&r[i], "c") &&
                              strcmp(state_of(&r[i], 2), "proposed") != 0);
    TURN_UNTIL(&loop, bt_rollout_number(r[0].rollout) == bt_rollout_number(r[1].rollout) &&
                          bt_rollout_number(r[1].rollout) == bt_rollout_number(r[2].rollout));
    const bool is_new = bt_rollout_number(r[0].rollout) == 2;
    if (!is_new)
        assert_int_equal(bt_rollout_number(r[0].rollout), 1);
    if (told.times > 0 && told.status == 200)
        assert_true(is_new);
    if (told.times > 0 && told.status != 200 && told.status != 502)
        assert_false(is_new);
    for (unsigned i = 0; i < 3; i++)
        assert_string_equal(text_of(&r[i]), is_new ? "two" : "one");
    push(&r[1], "three"); /* nothing is in the way of the next one */
    for (unsigned i = 0; i < 3; i++)
        TURN_UNTIL(&loop, strcmp(text_of(&r[i]), "three") == 0);
    for (unsigned i = 0; i < 3; i++)
        end(&r[i]);
}

static void run_accidents(enum accident accident)
{
    static unsigned number;

    interval_ms = 3;
    expiry_ms = 100;
    vote_ms = 250;
    for (unsigned at = 0; at < STEPS; at++) {
        snprintf(space, sizeof space, "accident%u", number++);
        run_accident(accident, at);
    }
}

static void test_a_store_that_stops_at_each_step(void **state)
{
    (void) state;
    run_accidents(STOPPED);
}

static void test_a_store_whose_reply_is_lost_at_each_step(void **state)
{
    (void) state;
    run_accidents(LOST_REPLY);
}

static void test_a_store_that_is_flushed_at_each_step(void **state)
{
    (void) state;
    run_accidents(FLUSHED);
}

static void test_a_proposer_that_is_killed_at_each_step(void **state)
{
    (void) state;
    run_accidents(PROPOSER);
}

static void test_a_member_that_is_killed_at_each_step(void **state)
{
    (void) state;
    run_accidents(MEMBER);
}

static int setup(void **state)
{
    static unsigned number;
    const bt_store_config_t config = {0};
    char err[256];

    (void) state;
    snprintf(space, sizeof space, "spec%u", number++);
    expiry_ms = 200;
    interval_ms = 10;
    vote_ms = 600;
    fault = NO_FAULT;
    on_step = NULL;
    steps = fault_step = 0;
    memset(all, 0, sizeof all);
    bt_log_set(BT_LOG_ERROR, false, 2);
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
        TEST(test_nothing_needs_the_proposer),
        TEST(test_a_proposal_without_texts_ends),
        TEST(test_a_busy_fleet_says_who),
        TEST(test_of_two_at_once_one_is_first),
        TEST(test_back),
        TEST(test_the_set_before_can_always_be_gone_back_to),
        TEST(test_texts_of_what_is_forgotten_are_removed),
        TEST(test_it_is_put_back_when_the_store_forgets),
        TEST(test_a_store_that_has_lost_the_newest),
        TEST(test_a_log_that_grows_and_grows),
        TEST(test_what_cannot_be_taken_is_tried_again),
        TEST(test_pins),
        TEST(test_a_pin_needs_nobody),
        TEST(test_a_pin_made_while_the_store_is_away),
        TEST(test_what_brought_a_replica_down_is_not_tried_again),
        TEST(test_who_was_killed_before_it_tried_may_try),
        TEST(test_a_replica_begins_without_what_brought_it_down),
        TEST(test_who_leaves_says_so),
        TEST(test_a_store_that_stops_at_each_step),
        TEST(test_a_store_whose_reply_is_lost_at_each_step),
        TEST(test_a_store_that_is_flushed_at_each_step),
        TEST(test_a_proposer_that_is_killed_at_each_step),
        TEST(test_a_member_that_is_killed_at_each_step),
    };

    alarm(120);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
