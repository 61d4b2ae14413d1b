/* What every store does: the life of an op, and clients on several loops. */
#include "suite_impl.h"

#include <pthread.h>
#include <stdatomic.h>

static void test_many_in_order(void **state)
{
    enum { N = 500 };
    static bt_store_op_t ops[N];
    static told_t tolds[N];
    bt_store_stats_t before, after;

    memset(tolds, 0, sizeof(tolds));
    bt_store_stats(rig.store, &before);
    for (unsigned i = 0; i < N; i++) {
        ops[i] = OP(COUNTER_ADD, "n", .amount = 1, .cb = rig_note, .user = &tolds[i]);
        bt_store_do(rig.client, &ops[i]);
    }
    TURN_UNTIL(&rig.loop, tolds[N - 1].times == 1);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(tolds[i].times, 1);
        assert_int_equal(tolds[i].number, i + 1);
    }
    bt_store_stats(rig.store, &after);
    assert_int_equal(after.ops - before.ops, N);
    assert_int_equal(after.errors, before.errors);
    assert_true(after.round_trips - before.round_trips <= 1); /* a turn's commands leave together */
}

static void test_strings_may_go_at_once(void **state)
{
    char key[8] = "k", value[8] = "v", space[40];
    told_t told = {0};
    bt_store_op_t op = OP(TABLE_SYNC, "", .cb = rig_note, .user = &told);

    snprintf(space, sizeof(space), "%.*s", BT_STR_ARG(op.space));
    op.space = bt_str(space);
    op.key = bt_str(key);
    op.field = bt_str(key);
    op.value = bt_str(value);
    bt_store_do(rig.client, &op);
    memset(key, 'X', sizeof(key));
    memset(value, 'X', sizeof(value));
    memset(space, 'X', sizeof(space));
    TURN_UNTIL(&rig.loop, told.times == 1);
    assert_string_equal(told.names[0], "k");
    assert_string_equal(told.values[0], "v");
    assert_string_equal(DO(TABLE_ALL, "k").values[0], "v");
}

static void test_cancel(void **state)
{
    told_t told = {0}, last = {0};
    bt_store_op_t op = OP(COUNTER_ADD, "n", .amount = 1, .cb = rig_note, .user = &told);
    bt_store_op_t bad = OP(CELL_GET, "", .cb = rig_note, .user = &told);
    bt_store_op_t idle = {0};

    bt_store_cancel(&idle);
    bt_store_do(rig.client, &op);
    bt_store_do(rig.client, &bad);
    bt_store_cancel(&op);
    bt_store_cancel(&bad);
    bt_store_cancel(&op);
    memset(&op, 0xa5, sizeof(op)); /* the caller's again */
    bt_store_op_t next = OP(COUNTER_ADD, "n", .amount = 1, .cb = rig_note, .user = &last);
    bt_store_do(rig.client, &next);
    TURN_UNTIL(&rig.loop, last.times == 1);
    assert_int_equal(last.number, 2); /* it happened all the same */
    assert_int_equal(told.times, 0);
}

static bt_store_op_t chain, victim;
static told_t chain_told;
static unsigned chain_left;

static void on_chain(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    rig_note(op, reply);
    bt_store_cancel(&victim);
    if (--chain_left > 0)
        bt_store_do(rig.client, op);
}

/* From inside a callback: the same op again, and the end of another one. */
static void test_again_from_the_callback(void **state)
{
    told_t told = {0};

    chain_left = 5;
    memset(&chain_told, 0, sizeof(chain_told));
    chain = OP(COUNTER_ADD, "n", .amount = 1, .cb = on_chain, .user = &chain_told);
    victim = OP(COUNTER_ADD, "n", .amount = 1, .cb = rig_note, .user = &told);
    bt_store_do(rig.client, &chain);
    bt_store_do(rig.client, &victim);
    TURN_UNTIL(&rig.loop, chain_left == 0);
    assert_int_equal(chain_told.times, 5);
    assert_int_equal(told.times, 0);
}

static void test_too_many(void **state)
{
    bt_store_config_t few = *suite_config;
    told_t tolds[4] = {0};
    bt_store_op_t ops[4];
    rig_t small;

    few.max_pending = 3;
    rig_open(&small, &few);
    rig_wait_health(&small, BT_STORE_UP);
    for (unsigned i = 0; i < 4; i++) {
        ops[i] = OP(COUNTER_ADD, "n", .amount = 1, .cb = rig_note, .user = &tolds[i]);
        bt_store_do(small.client, &ops[i]);
    }
    TURN_UNTIL(&small.loop, tolds[0].times + tolds[1].times + tolds[2].times + tolds[3].times == 4);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(tolds[i].rc, 0);
    assert_int_equal(tolds[3].rc, BT_E_LIMIT);
    rig_close(&small);
}

static void test_free_with_ops_under_way(void **state)
{
    enum { N = 20 };
    bt_store_op_t ops[N], late;
    told_t tolds[N] = {0}, late_told = {0};
    rig_t other;

    rig_join(&other, rig.store);
    TURN_UNTIL(&other.loop, other.ups == 1);
    for (unsigned i = 0; i < N; i++) {
        ops[i] = OP(COUNTER_ADD, "n", .amount = 1, .cb = rig_note, .user = &tolds[i]);
        if (i % 2 == 0)
            ops[i].key = BT_STR("");
        bt_store_do(other.client, &ops[i]);
    }
    bt_store_cancel(&ops[0]);
    bt_store_client_t *client = other.client;
    bt_store_client_free(client, NULL, NULL);
    late = OP(CELL_GET, "n", .cb = rig_note, .user = &late_told);
    bt_store_do(client, &late); /* before the loop has turned: still there to refuse */
    TURN_UNTIL(&other.loop, late_told.times == 1);
    assert_int_equal(late_told.rc, BT_E_CANCELLED);
    for (unsigned i = 1; i < N; i++) {
        assert_int_equal(tolds[i].times, 1);
        if (bt_store_is_shared(rig.store) || i % 2 == 0)
            assert_int_equal(tolds[i].rc, i % 2 ? BT_E_CANCELLED : BT_E_INVAL);
    }
    assert_int_equal(tolds[0].times, 0);
    while (uv_loop_alive(&other.loop.uv) && uv_backend_timeout(&other.loop.uv) == 0)
        turn_once(&other.loop);
    turn(&other.loop, 5);
    bt_loop_fini(&other.loop);
}

static void test_free_at_once(void **state)
{
    rig_t other;

    rig_join(&other, rig.store);
    rig_leave(&other);
}

/* ---- several loops ---- */
static void test_health_and_up(void **state)
{
    assert_int_equal(rig.ups, 1);
    assert_int_equal(rig_health(&rig), BT_STORE_UP);
    assert_string_equal(rig_why(&rig), "");
}

enum { THREADS = 8, TAKES = 200, LIMIT = 500 };

typedef struct hammer {
    pthread_t thread;
    rig_t own;
    bt_store_op_t op;
    unsigned left;
    int64_t by_window[2]; /* of the first window seen, and of later ones */
    uint64_t first_window;
    unsigned bad;
} hammer_t;

static _Atomic uint64_t hammer_window;

static void on_hammer(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    hammer_t *hammer = op->user;
    uint64_t none = 0;

    if (reply->rc != 0)
        hammer->bad++;
    else if (!atomic_compare_exchange_strong(&hammer_window, &none, reply->window) &&
             none != reply->window)
        hammer->by_window[1] += reply->number;
    else
        hammer->by_window[0] += reply->number;
    if (--hammer->left > 0)
        bt_store_do(hammer->own.client, op);
}

static void *run_hammer(void *arg)
{
    hammer_t *hammer = arg;

    while (hammer->own.ups == 0)
        turn_once(&hammer->own.loop);
    bt_store_do(hammer->own.client, &hammer->op);
    while (hammer->left > 0)
        turn_once(&hammer->own.loop);
    return NULL;
}

/* Eight clients on eight loops, each in a thread of its own, take from one window. */
static void test_window_is_never_overdrawn(void **state)
{
    static hammer_t hammers[THREADS];
    int64_t granted = 0, later = 0;
    unsigned bad = 0;

    atomic_store(&hammer_window, 0);
    memset(hammers, 0, sizeof(hammers));
    for (unsigned i = 0; i < THREADS; i++) {
        hammer_t *h = &hammers[i];
        rig_join(&h->own, rig.store);
        h->left = TAKES;
        h->op = OP(WINDOW_TAKE, "w", .limit = LIMIT, .window_ms = 3600000, .amount = 1,
                   .cb = on_hammer, .user = h);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&hammers[i].thread, NULL, run_hammer, &hammers[i]);
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(hammers[i].thread, NULL);
        granted += hammers[i].by_window[0];
        later += hammers[i].by_window[1];
        bad += hammers[i].bad;
        rig_leave(&hammers[i].own);
    }
    assert_int_equal(bad, 0);
    if (later > 0)
        skip(); /* the hour has turned */
    assert_int_equal(granted, LIMIT);
}

int suite_run_life(const char *name)
{
    const struct CMUnitTest tests[] = {
        T(test_many_in_order),
        T(test_strings_may_go_at_once),
        T(test_cancel),
        T(test_again_from_the_callback),
        T(test_too_many),
        T(test_free_with_ops_under_way),
        T(test_free_at_once),
        T(test_health_and_up),
        T(test_window_is_never_overdrawn),
    };

    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}
