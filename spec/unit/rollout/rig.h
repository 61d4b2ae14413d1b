/* rig.h - replicas of one process over a local store that may be made to fail; what a replica makes
 * of a set is a flag. Shared by the specs of core/rollout. */
#ifndef SPEC_ROLLOUT_RIG_H
#define SPEC_ROLLOUT_RIG_H

#include "../loop/util.h"

#include "base/err.h"
#include "base/log.h"
#include "rollout/rollout.h"

#include <stdio.h>
#include <stdlib.h>

/* Ends with a message, however slow the machine is. */
#define WAIT_UNTIL(condition)                                                                      \
    do {                                                                                           \
        const uint64_t late_ms = bt_clock_ms() + 20000;                                            \
        while (!(condition)) {                                                                     \
            turn_once(&loop);                                                                      \
            if (bt_clock_ms() > late_ms)                                                           \
                fail_msg("%s:%d: not so in time: %s", __FILE__, __LINE__, #condition);             \
        }                                                                                          \
    } while (0)

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
    bool is_changed, is_dry_run;
    char why[1024];
} told_t;

static bt_loop_t loop;
static bt_store_t *store;
static char space[32];
static uint64_t expiry_ms, interval_ms, vote_ms, spread_ms; /* of the replicas that are made */

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

static inline void on_broken(bt_store_op_t *op, const bt_store_reply_t *reply)
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

static inline void store_do(bt_store_client_t *client, bt_store_op_t *op)
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

static inline void try_set(void *user, bt_rollout_set_t *set)
{
    replica_t *r = user;

    r->tries++;
    if (r->mode == SILENT)
        r->trying = bt_rollout_set_ref(set);
    else
        bt_rollout_tried(r->rollout, set, r->mode == WILLING ? 0 : BT_E_POLICY, "x.lua:1: no");
}

static inline void take_set(void *user, bt_rollout_set_t *set)
{
    replica_t *r = user;

    r->takes++;
    bt_rollout_taken(r->rollout, set, r->take_mode == WILLING ? 0 : BT_E_AGAIN, "no room");
}

static inline void set_pinned(void *user, bool is_pinned)
{
    ((replica_t *) user)->is_pinned = is_pinned;
}

static inline void trouble(void *user, char *out, size_t size)
{
    snprintf(out, size, "%s", ((replica_t *) user)->trouble);
}

static inline void make(replica_t *r, const char *name)
{
    static const bt_rollout_ops_t ops = {try_set, take_set, set_pinned, trouble};
    const bt_rollout_config_t config = {.space = space,
                                        .replica = name,
                                        .interval_ms = interval_ms,
                                        .expiry_ms = expiry_ms,
                                        .vote_ms = vote_ms,
                                        .spread_ms = spread_ms,
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

static inline void start(replica_t *r, const char *name)
{
    make(r, name);
    bt_rollout_join(r->rollout, NULL, NULL);
    WAIT_UNTIL(bt_rollout_has_joined(r->rollout));
    bt_rollout_begin(r->rollout, NULL);
}

static inline void on_gone(void *user)
{
    ((replica_t *) user)->is_gone = true;
}

/* As a process that is killed: says nothing. */
static inline void end(replica_t *r)
{
    r->is_ended = true;
    bt_rollout_free(r->rollout);
    bt_rollout_set_unref(r->trying);
    bt_store_client_free(r->client, on_gone, r);
    WAIT_UNTIL(r->is_gone);
    for (unsigned i = 0; i < ALL_MAX; i++)
        if (all[i] == r)
            all[i] = NULL;
}

static inline const bt_rollout_peer_t *peer_of(const replica_t *r, const char *name)
{
    bt_rollout_view_t view;

    bt_rollout_view(r->rollout, &view);
    for (unsigned i = 0; i < view.peer_count; i++)
        if (strcmp(view.peers[i].name, name) == 0)
            return &view.peers[i];
    return NULL;
}

static inline bool knows(const replica_t *r, const char *name)
{
    return peer_of(r, name) != NULL;
}

static inline bool has_trouble(const replica_t *r, const char *name, const char *part)
{
    return knows(r, name) && strstr(peer_of(r, name)->trouble, part) != NULL;
}

/* "proposed", "committed", "aborted"; "" when it is not known. */
static inline const char *state_of(const replica_t *r, uint64_t number)
{
    static const char *const names[] = {"proposed", "committed", "aborted"};
    bt_rollout_view_t view;

    bt_rollout_view(r->rollout, &view);
    for (unsigned i = 0; i < view.log->row_count; i++)
        if (view.log->rows[i].info.number == number)
            return names[view.log->rows[i].state];
    return "";
}

static inline const char *text_of(const replica_t *r)
{
    const bt_rollout_set_t *set = bt_rollout_held(r->rollout);

    return set->count > 0 ? set->files[0].text : "";
}

/* ---- asking ---- */

static inline unsigned edit(void *arg, bt_rollout_set_t *set, char *err, size_t err_size)
{
    const told_t *told = arg;

    if (told->change == PUT)
        return bt_rollout_set_put(set, told->name, bt_str(told->text)) == 0 ? 0 : 400;
    snprintf(err, err_size, "%s: not there", told->name);
    return bt_rollout_set_drop(set, told->name) ? 0 : 404;
}

static inline void on_told(void *arg, const bt_rollout_outcome_t *outcome)
{
    told_t *told = arg;

    told->times++;
    told->status = outcome->status;
    told->is_changed = outcome->is_changed;
    told->number = outcome->set != NULL ? outcome->set->info.number : 0;
    snprintf(told->why, sizeof told->why, "%s", outcome->why != NULL ? outcome->why : "");
}

static inline int begin_change(replica_t *r, told_t *told, uint64_t back)
{
    return bt_rollout_change(r->rollout,
                             &(bt_rollout_change_t){.edit = told->change == BACK ? NULL : edit,
                                                    .back = back,
                                                    .is_dry_run = told->is_dry_run,
                                                    .by = "ann",
                                                    .done = on_told,
                                                    .arg = told});
}

static inline int begin(replica_t *r, const char *text, told_t *told)
{
    *told = (told_t){.change = PUT, .name = "m", .text = text};
    return begin_change(r, told, 0);
}

static inline told_t finish(replica_t *r, told_t *told, uint64_t back)
{
    assert_int_equal(begin_change(r, told, back), 0);
    WAIT_UNTIL(told->times > 0);
    assert_int_equal(told->times, 1);
    return *told;
}

static inline told_t ask(replica_t *r, const char *text)
{
    told_t told = {.change = PUT, .name = "m", .text = text};

    return finish(r, &told, 0);
}

static inline told_t back(replica_t *r, uint64_t number)
{
    told_t told = {.change = BACK};

    return finish(r, &told, number);
}

static inline void push(replica_t *r, const char *text)
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

static inline void on_hand(bt_store_op_t *op, const bt_store_reply_t *reply)
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

static inline hand_t by_hand(bt_store_op_t op, const char *name, uint64_t number)
{
    hand_t h = {.op = op, .name = name, .number = number};
    bt_store_client_t *client = NULL;

    for (unsigned i = 0; i < ALL_MAX && client == NULL; i++)
        client = all[i] != NULL ? all[i]->client : NULL;
    h.op.space = bt_str(space);
    h.op.cb = on_hand;
    bt_store_do(client, &h.op);
    WAIT_UNTIL(h.is_done);
    return h;
}

/* Does the log say that it tries it, and not what came of it? */
static inline bool is_trying(const char *name, uint64_t number)
{
    return by_hand((bt_store_op_t){.what = BT_STORE_LOG_READ,
                                   .key = BT_STR("policy_log"),
                                   .field = BT_STR("0"),
                                   .limit = 10000},
                   name, number)
        .is_trying;
}

static inline bool has_cell(const char *what, const char *whose)
{
    char key[128];

    snprintf(key, sizeof key, "%s:%s", what, whose);
    return !by_hand((bt_store_op_t){.what = BT_STORE_CELL_GET, .key = bt_str(key)}, NULL, 0)
                .is_none;
}

static inline void drop(const char *key)
{
    (void) by_hand((bt_store_op_t){.what = BT_STORE_CELL_DROP, .key = bt_str(key)}, NULL, 0);
}

/* FLUSHALL. */
static inline void forget_all(const replica_t *r)
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

static inline void add_by_hand(const bt_rollout_entry_t *e)
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

static inline bt_rollout_entry_t proposal_by_hand(const replica_t *r, uint64_t number,
                                                  const char *members)
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

/* ---- every spec ---- */

static inline int setup(void **state)
{
    static unsigned number;
    const bt_store_config_t config = {0};
    char err[256];

    snprintf(space, sizeof space, "spec%u", number++);
    expiry_ms = 200;
    interval_ms = 10;
    vote_ms = 5000;
    spread_ms = 300;
    fault = NO_FAULT;
    on_step = NULL;
    steps = fault_step = 0;
    memset(all, 0, sizeof all);
    bt_log_set(BT_LOG_ERROR, false, 2);
    assert_int_equal(bt_loop_init(&loop, 0), 0);
    assert_int_equal(bt_store_open(&store, &config, err, sizeof err), 0);
    return 0;
}

static inline int teardown(void **state)
{
    bt_store_close(store);
    bt_loop_fini(&loop);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
