/* A real server that dies, stops, slows down, refuses, forgets: what is answered, how the store looks, and that it comes back. */
#include "redis_server.h"
#include "rig.h"

#include "base/clock.h"

#include <stdio.h>

static redis_server_t server;
static rig_t rig;
static char url[160];

#define DO(...) rig_do(&rig, OP(__VA_ARGS__))
#define ASK(...) rig_ask(&rig, OP(__VA_ARGS__))
#define S(lit) BT_STR(lit)

/* Deadlines that a loaded machine keeps, and short ones for those that are to be missed. */
enum { PATIENT_MS = 20000, HASTY_MS = 100 };

static void open_at(uint32_t op_ms)
{
    rig_open(&rig, &(bt_store_config_t){.url = url, .op_ms = op_ms, .connect_ms = 2000});
}

static void begin(const char *const *words, uint32_t op_ms)
{
    redis_start(&server, words);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", server.port);
    open_at(op_ms);
}

static void end(void)
{
    rig_close(&rig);
    redis_end(&server);
}

static void wait_up(void)
{
    unsigned ups = rig.ups;

    TURN_UNTIL(&rig.loop, rig_health(&rig) == BT_STORE_UP && (rig.ups > ups || ups > 0));
}

static bool why_has(const char *text)
{
    return strstr(rig_why(&rig), text) != NULL;
}

static void test_killed_and_restarted(void **state)
{
    bt_store_stats_t stats;

    begin(NULL, PATIENT_MS);
    wait_up();
    DO(CELL_SET, "c", .value = S("x"));
    /* Under way when it dies: told so, not left waiting. */
    redis_freeze(&server);
    told_t told = {0};
    bt_store_op_t op = OP(COUNTER_ADD, "n", .amount = 1, .cb = rig_note, .user = &told);
    bt_store_do(rig.client, &op);
    turn(&rig.loop, 3);
    redis_stop(&server);
    TURN_UNTIL(&rig.loop, told.times == 1);
    assert_int_equal(told.rc, BT_E_STORE_UNAVAILABLE);
    rig_wait_health(&rig, BT_STORE_UNAVAILABLE);
    assert_true(strlen(rig_why(&rig)) > 0);
    /* Nothing is queued while it is away: each fails at once. */
    for (int i = 0; i < 100; i++)
        assert_int_equal(ASK(CELL_GET, "c").rc, BT_E_STORE_UNAVAILABLE);
    TURN_UNTIL(&rig.loop, why_has("onnection refused"));
    unsigned ups = rig.ups;
    redis_again(&server);
    TURN_UNTIL(&rig.loop, rig.ups > ups);
    assert_int_equal(rig_health(&rig), BT_STORE_UP);
    assert_true(DO(CELL_GET, "c").is_none);
    assert_int_equal(DO(LEASE_TAKE, "l", .value = S("a"), .ttl_ms = 1000).rc,
                     0); /* scripts went too */
    bt_store_stats(rig.store, &stats);
    assert_int_equal(stats.connects, 2);
    assert_true(stats.connect_failures >= 1);
    assert_true(stats.errors >= 101);
    end();
}

static void test_not_there_at_start(void **state)
{
    redis_start(&server, NULL);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", server.port);
    redis_stop(&server);
    open_at(PATIENT_MS);
    assert_int_equal(rig_health(&rig), BT_STORE_STARTING);
    assert_int_equal(ASK(CELL_GET, "c").rc, BT_E_STORE_UNAVAILABLE);
    rig_wait_health(&rig, BT_STORE_UNAVAILABLE);
    assert_int_equal(rig.ups, 0);
    redis_again(&server);
    TURN_UNTIL(&rig.loop, rig.ups == 1);
    DO(CELL_SET, "c", .value = S("x"));
    end();
}

/* Stopped: a deadline, after which nobody waits for one any more; then the connection is given up. What it answers after all goes nowhere. */
static void test_stopped(void **state)
{
    bt_store_stats_t stats;

    begin(NULL, HASTY_MS);
    wait_up();
    redis_freeze(&server);
    uint64_t begun = bt_clock_ms();
    told_t late = ASK(COUNTER_ADD, "n", .amount = 1);
    assert_int_equal(late.rc, BT_E_TOTAL_TIMEOUT);
    assert_in_range(bt_clock_ms() - begun, HASTY_MS, 60000);
    /* One that was late makes it suspect, a probe that is late, too, away. */
    TURN_UNTIL(&rig.loop, !bt_store_client_is_up(rig.client));
    assert_int_equal(rig_health(&rig), BT_STORE_UP);
    assert_int_equal(ASK(CELL_GET, "c").rc, BT_E_STORE_UNAVAILABLE);
    rig_wait_health(&rig, BT_STORE_UNAVAILABLE);
    assert_true(why_has("no answer in 100 ms"));
    /* A stopped server's kernel takes connections all the same: what is asked on them fails at once, too. */
    do
        assert_int_equal(ASK(CELL_GET, "c").rc, BT_E_STORE_UNAVAILABLE);
    while (!why_has("no answer in 400 ms"));
    assert_true(bt_clock_ms() - begun >= 4 * HASTY_MS);
    do {
        assert_int_equal(ASK(CELL_GET, "c").rc, BT_E_STORE_UNAVAILABLE);
        bt_store_stats(rig.store, &stats);
    } while (stats.connects < 3);
    assert_int_equal(stats.timeouts, 1);
    assert_int_equal(rig_health(&rig), BT_STORE_UNAVAILABLE);
    redis_thaw(&server);
    rig_wait_health(&rig, BT_STORE_UP);
    end();
}

/* Slow, but answering before it is given up: ops are not sent until it answers in time; late replies are dropped, and the next ones belong to the right ops. */
static void test_slow(void **state)
{
    enum { N = 8 };
    told_t late[N] = {0};
    bt_store_op_t ops[N];
    bt_store_stats_t stats;

    begin(NULL, 400);
    wait_up();
    redis_send(&server, "CLIENT PAUSE 1200 ALL");
    for (unsigned i = 0; i < N; i++) {
        ops[i] = OP(COUNTER_ADD, "n", .amount = 1, .cb = rig_note, .user = &late[i]);
        bt_store_do(rig.client, &ops[i]);
    }
    TURN_UNTIL(&rig.loop, late[N - 1].times == 1);
    assert_int_equal(late[0].rc, BT_E_TOTAL_TIMEOUT);
    TURN_UNTIL(&rig.loop, !bt_store_client_is_up(rig.client));
    for (unsigned i = 1; i < N; i++) { /* not one after the other */
        assert_int_equal(late[i].times, 1);
        assert_true(late[i].rc == BT_E_STORE_UNAVAILABLE || late[i].rc == BT_E_TOTAL_TIMEOUT);
    }
    assert_int_equal(rig_health(&rig), BT_STORE_UP);
    assert_int_equal(rig.ups, 1);
    rig_wait_health(&rig, BT_STORE_UNAVAILABLE);
    assert_true(why_has("no answer in 400 ms"));
    told_t told = ASK(CELL_GET, "c");
    assert_int_equal(told.rc, BT_E_STORE_UNAVAILABLE);
    assert_string_equal(told.error, "no answer in 400 ms");
    unsigned ups = rig.ups;
    TURN_UNTIL(&rig.loop, rig.ups > ups);
    assert_int_equal(rig_health(&rig), BT_STORE_UP);
    assert_int_equal(DO(COUNTER_ADD, "n", .amount = 0).number, N); /* late is not undone */
    bt_store_stats(rig.store, &stats);
    assert_int_equal(stats.connects, 1);
    end();
}

/* Late replies come first, whoever left: the next ones are not theirs. */
static void test_replies_of_those_that_left(void **state)
{
    enum { N = 8 };
    told_t left = {0}, next[N] = {0};
    bt_store_op_t ops[N], more[N];
    char value[16];

    begin(NULL, PATIENT_MS);
    wait_up();
    redis_send(&server, "CLIENT PAUSE 200 ALL");
    for (unsigned i = 0; i < N; i++) {
        ops[i] = OP(COUNTER_ADD, "n", .amount = 1, .cb = rig_note, .user = &left);
        bt_store_do(rig.client, &ops[i]);
    }
    turn(&rig.loop, 2);
    for (unsigned i = 0; i < N; i++)
        bt_store_cancel(&ops[i]);
    for (unsigned i = 0; i < N; i++) {
        snprintf(value, sizeof(value), "k%u", i);
        more[i] =
            OP(CELL_SET, "", .value = S("x"), .if_absent = true, .cb = rig_note, .user = &next[i]);
        more[i].key = bt_str(value);
        bt_store_do(rig.client, &more[i]);
    }
    TURN_UNTIL(&rig.loop, next[N - 1].times == 1);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(next[i].rc, 0);
        assert_int_equal(next[i].number, 1); /* not a counter's reply */
    }
    assert_int_equal(left.times, 0);
    assert_int_equal(DO(COUNTER_ADD, "n", .amount = 0).number, N);
    end();
}

/* An owner for whom the store holds the wrong thing: told beside the store's own health, by whoever sees the store. */
static void test_complaint(void **state)
{
    begin(NULL, PATIENT_MS);
    bt_store_client_complain(rig.client, "early");
    TURN_UNTIL(&rig.loop, rig.ups == 1);
    assert_int_equal(rig_health(&rig), BT_STORE_DEGRADED);
    assert_string_equal(rig_why(&rig), "early");
    bt_store_client_complain(rig.client, "another\ntype");
    assert_null(strchr(rig_why(&rig), '\n'));
    redis_stop(&server);
    TURN_UNTIL(&rig.loop, rig_health(&rig) == BT_STORE_UNAVAILABLE);
    redis_again(&server);
    TURN_UNTIL(&rig.loop, rig_health(&rig) == BT_STORE_DEGRADED && why_has("another"));
    DO(CELL_SET, "c", .value = S("x"));
    bt_store_client_complain(rig.client, NULL);
    assert_int_equal(rig_health(&rig), BT_STORE_UP);
    assert_string_equal(rig_why(&rig), "");
    end();
}

/* A loop that was away itself for longer than the deadline finds the answers in the socket. */
static void test_our_own_delay_is_not_the_stores(void **state)
{
    told_t told = {0};

    begin(NULL, HASTY_MS);
    wait_up();
    bt_store_op_t op = OP(COUNTER_ADD, "n", .amount = 1, .cb = rig_note, .user = &told);
    bt_store_do(rig.client, &op);
    uv_run(&rig.loop.uv, UV_RUN_NOWAIT); /* the command leaves */
    redis_send(&server, "PING");         /* and was answered before this */
    uint64_t until = bt_clock_ms() + 5 * HASTY_MS;
    while (bt_clock_ms() < until)
        continue;
    TURN_UNTIL(&rig.loop, told.times == 1);
    assert_int_equal(told.rc, 0);
    assert_int_equal(rig_health(&rig), BT_STORE_UP);
    end();
}

/* Nor is what passed before the command left, however long: its op fails unless the answer is quicker than the
 * look that is taken first (loop/timer.c), and nothing follows from that. */
static void test_our_own_delay_before_it_leaves(void **state)
{
    enum { OP_MS = 300 };
    told_t told = {0};

    begin(NULL, OP_MS);
    wait_up();
    bt_store_op_t op = OP(COUNTER_ADD, "n", .amount = 1, .cb = rig_note, .user = &told);
    bt_store_do(rig.client, &op);
    uint64_t until = bt_clock_ms() + 5 * OP_MS; /* more than a connection may be silent */
    while (bt_clock_ms() < until)
        continue;
    TURN_UNTIL(&rig.loop, told.times == 1);
    assert_true(told.rc == 0 || told.rc == BT_E_TOTAL_TIMEOUT);
    assert_true(bt_store_client_is_up(rig.client));
    for (until = bt_clock_ms() + 2 * OP_MS; bt_clock_ms() < until; turn_once(&rig.loop))
        assert_true(bt_store_client_is_up(rig.client));
    assert_int_equal(DO(COUNTER_ADD, "n", .amount = 0).number, 1);
    assert_int_equal(rig.ups, 1);
    end();
}

/* What somebody else has put into a table is passed over: our rows are read, and written, all the same. */
static void test_foreign_values(void **state)
{
    bt_str_t space;

    begin(NULL, PATIENT_MS);
    wait_up();
    space = rig_space();
    redis_send(&server, "HSET baton:{%b}:t word x colon : no x:y nan nan:y old 1:gone ours 0:kept",
               space.p, space.n);
    told_t told = DO(TABLE_SYNC, "t", .field = S("me"), .value = S("v"), .ttl_ms = 60000);
    assert_int_equal(told.row_count, 2);
    assert_string_equal(told.names[0], "me");
    assert_string_equal(told.values[1], "kept");
    DO(TABLE_PUT, "t", .field = S("word"), .value = S("v"));
    assert_int_equal(DO(TABLE_ALL, "t").row_count, 3);
    assert_int_equal(DO(TABLE_DROP, "t", .field = S("colon")).number, 0);
    redisReply *left = redis_ask(&server, "HKEYS baton:{%b}:t", space.p, space.n);
    assert_int_equal(left->elements, 5); /* of theirs two, which nobody has taken away */
    freeReplyObject(left);
    assert_int_equal(rig_health(&rig), BT_STORE_UP);
    end();
}

static void test_wrong_password(void **state)
{
    static const char *const words[] = {"--requirepass", "right", NULL};

    redis_start(&server, words);
    snprintf(url, sizeof(url), "redis://:wrong@127.0.0.1:%u", server.port);
    open_at(PATIENT_MS);
    rig_wait_health(&rig, BT_STORE_DEGRADED);
    assert_true(why_has("AUTH is answered with: WRONGPASS"));
    assert_null(strstr(rig_why(&rig), "wrong@"));
    assert_int_equal(ASK(CELL_GET, "c").rc, BT_E_STORE);
    /* Once it is right, nobody has to restart anything. */
    redis_send(&server, "ACL SETUSER default on >wrong");
    wait_up();
    DO(CELL_SET, "c", .value = S("x"));
    end();
}

static void test_no_password(void **state)
{
    static const char *const words[] = {"--requirepass", "right", NULL};

    begin(words, PATIENT_MS);
    rig_wait_health(&rig, BT_STORE_DEGRADED);
    assert_true(why_has("NOAUTH"));
    assert_int_equal(ASK(CELL_GET, "c").rc, BT_E_STORE);
    end();
}

static void test_password_that_is_not_asked_for(void **state)
{
    redis_start(&server, NULL);
    snprintf(url, sizeof(url), "redis://:extra@127.0.0.1:%u", server.port);
    open_at(PATIENT_MS);
    rig_wait_health(&rig, BT_STORE_DEGRADED);
    assert_true(why_has("AUTH is answered with: ERR"));
    end();
}

static void test_user_who_may_only_read(void **state)
{
    redis_start(&server, NULL);
    redis_send(&server, "SET baton:{x}:c seen");
    redis_send(&server, "ACL SETUSER reader on >p ~baton:* +@read +@connection +@scripting +time");
    snprintf(url, sizeof(url), "redis://reader:p@127.0.0.1:%u", server.port);
    open_at(PATIENT_MS);
    rig_wait_health(&rig, BT_STORE_DEGRADED);
    assert_true(why_has("NOPERM") || why_has("permission") || why_has("can't run this command"));
    bt_store_op_t get = OP(CELL_GET, "c");
    get.space = S("x");
    assert_string_equal(rig_do(&rig, get).text, "seen");
    assert_int_equal(ASK(CELL_SET, "c", .value = S("x")).rc, BT_E_STORE);
    assert_int_equal(ASK(LEASE_TAKE, "l", .value = S("a"), .ttl_ms = 1000).rc, BT_E_STORE);
    assert_int_equal(DO(TABLE_ALL, "t").row_count, 0);
    redis_send(&server, "ACL SETUSER reader +@all");
    wait_up();
    DO(LEASE_TAKE, "l", .value = S("a"), .ttl_ms = 1000);
    end();
}

static void test_full(void **state)
{
    begin(NULL, PATIENT_MS);
    wait_up();
    DO(CELL_SET, "c", .value = S("x"));
    redis_send(&server, "CONFIG SET maxmemory 1");
    told_t full = ASK(CELL_SET, "d", .value = S("x"));
    assert_int_equal(full.rc, BT_E_STORE);
    assert_int_equal(strncmp(full.error, "OOM", 3), 0);
    assert_int_equal(rig_health(&rig), BT_STORE_DEGRADED);
    assert_true(why_has("OOM"));
    assert_int_equal(ASK(LEASE_TAKE, "l", .value = S("a"), .ttl_ms = 1000).rc, BT_E_STORE);
    assert_int_equal(ASK(LOG_ADD, "log", .value = S("a"), .limit = 5).rc, BT_E_STORE);
    assert_string_equal(DO(CELL_GET, "c").text, "x");
    unsigned ups = rig.ups;
    redis_send(&server, "CONFIG SET maxmemory 0");
    TURN_UNTIL(&rig.loop, rig.ups > ups);
    DO(CELL_SET, "d", .value = S("x"));
    end();
}

static void test_replica(void **state)
{
    redis_server_t master;

    redis_start(&master, NULL);
    begin(NULL, PATIENT_MS);
    wait_up();
    DO(TABLE_PUT, "gone", .field = S("f"), .value = S("v"), .ttl_ms = 1);
    DO(CELL_SET, "c", .value = S("x"));
    redis_send(&server, "REPLICAOF 127.0.0.1 %u", master.port);
    told_t refused = ASK(CELL_SET, "c", .value = S("y"));
    assert_int_equal(refused.rc, BT_E_STORE);
    assert_non_null(strstr(refused.error, "READONLY"));
    assert_int_equal(rig_health(&rig), BT_STORE_DEGRADED);
    assert_int_equal(ASK(COUNTER_ADD, "n", .amount = 1, .ttl_ms = 1000).rc, BT_E_STORE);
    told_t all = ASK(TABLE_ALL, "gone"); /* reads, though there is something to clean */
    assert_int_equal(all.rc, 0);
    assert_int_equal(all.row_count, 0);
    unsigned ups = rig.ups;
    redis_send(&server, "REPLICAOF NO ONE");
    TURN_UNTIL(&rig.loop, rig.ups > ups);
    DO(CELL_SET, "c", .value = S("y"));
    end();
    redis_end(&master);
}

/* Everything forgotten while ops run: some answers change, none is an error. */
static void test_flushed_under_load(void **state)
{
    enum { N = 64, ROUNDS = 20 };
    static bt_store_op_t ops[N];
    static told_t tolds[N];

    begin(NULL, PATIENT_MS);
    wait_up();
    for (unsigned round = 0; round < ROUNDS; round++) {
        memset(tolds, 0, sizeof(tolds));
        for (unsigned i = 0; i < N; i++) {
            ops[i] = i % 2
                         ? OP(WINDOW_TAKE, "w", .limit = 1 << 30, .window_ms = 60000, .amount = 1)
                         : OP(TABLE_SYNC, "t", .field = S("me"), .value = S("v"), .ttl_ms = 60000);
            ops[i].cb = rig_note;
            ops[i].user = &tolds[i];
            bt_store_do(rig.client, &ops[i]);
        }
        redis_send(&server, round % 2 ? "SCRIPT FLUSH" : "FLUSHALL");
        for (unsigned i = 0; i < N; i++) {
            TURN_UNTIL(&rig.loop, tolds[i].times == 1);
            assert_int_equal(tolds[i].rc, 0);
            if (i % 2)
                assert_int_equal(tolds[i].number, 1);
            else
                assert_int_equal(tolds[i].row_count, 1);
        }
    }
    assert_int_equal(rig_health(&rig), BT_STORE_UP);
    end();
}

/* An admin's CLIENT KILL, and more connections than the server takes. */
static void test_thrown_out(void **state)
{
    begin(NULL, PATIENT_MS);
    wait_up();
    unsigned ups = rig.ups;
    redis_send(&server, "CLIENT KILL TYPE normal SKIPME yes");
    TURN_UNTIL(&rig.loop, rig.ups > ups);
    redis_send(&server, "CONFIG SET maxclients 2");
    redisContext *c = redisConnect("127.0.0.1", (int) server.port);
    rig_t second;
    rig_join(&second, rig.store);
    TURN_UNTIL(&second.loop, rig_health(&second) == BT_STORE_DEGRADED);
    assert_non_null(strstr(rig_why(&second), "max number of clients"));
    redisFree(c);
    TURN_UNTIL(&second.loop, second.ups == 1);
    rig_leave(&second);
    end();
}

/* A script that does not end: BUSY is an answer, and the health says so. */
static void test_busy(void **state)
{
    static const char *const words[] = {"--lua-time-limit", "50", NULL};

    begin(words, PATIENT_MS);
    wait_up();
    redisContext *c = redisConnect("127.0.0.1", (int) server.port);
    redisAppendCommand(c, "EVAL %s 0", "while true do end");
    int done = 0;
    while (!done)
        assert_int_equal(redisBufferWrite(c, &done), REDIS_OK);
    told_t told;
    do
        told = ASK(CELL_SET, "c", .value = S("x"));
    while (told.rc == 0);
    assert_int_equal(told.rc, BT_E_STORE);
    assert_true(why_has("BUSY"));
    unsigned ups = rig.ups;
    redis_send(&server, "SCRIPT KILL");
    TURN_UNTIL(&rig.loop, rig.ups > ups);
    redisFree(c);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_and_restarted),
        cmocka_unit_test(test_not_there_at_start),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_slow),
        cmocka_unit_test(test_replies_of_those_that_left),
        cmocka_unit_test(test_complaint),
        cmocka_unit_test(test_our_own_delay_is_not_the_stores),
        cmocka_unit_test(test_our_own_delay_before_it_leaves),
        cmocka_unit_test(test_foreign_values),
        cmocka_unit_test(test_wrong_password),
        cmocka_unit_test(test_no_password),
        cmocka_unit_test(test_password_that_is_not_asked_for),
        cmocka_unit_test(test_user_who_may_only_read),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_replica),
        cmocka_unit_test(test_flushed_under_load),
        cmocka_unit_test(test_thrown_out),
        cmocka_unit_test(test_busy),
    };

    if (redis_program() == NULL)
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
