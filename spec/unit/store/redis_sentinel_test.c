/* Sentinel: the master is found, lost, found again where the Sentinels moved it. */
#include "redis_server.h"
#include "rig.h"

#include <stdio.h>

static redis_server_t master, replica, sentinels[2];
static rig_t rig;

/* Two that saw it down at once would both want to lead and wait long for the next try: only the first looks closely, the other votes. */
static void watch(redis_server_t *sentinel, unsigned down_ms)
{
    char config[512];

    snprintf(config, sizeof(config),
             "sentinel monitor m 127.0.0.1 %u 1\n"
             "sentinel down-after-milliseconds m %u\n"
             "sentinel failover-timeout m 3000\n"
             "sentinel parallel-syncs m 1\n",
             master.port, down_ms);
    redis_start_sentinel(sentinel, config);
}

static int64_t number_of(redis_server_t *server, const char *field)
{
    redisReply *reply = redis_ask(server, "SENTINEL master m");
    int64_t number = -1;

    for (size_t i = 0; i + 1 < reply->elements; i += 2)
        if (strcmp(reply->element[i]->str, field) == 0)
            number = strtoll(reply->element[i + 1]->str, NULL, 10);
    freeReplyObject(reply);
    return number;
}

static bool knows_all(redis_server_t *sentinel)
{
    return number_of(sentinel, "num-slaves") == 1 &&
           number_of(sentinel, "num-other-sentinels") == 1;
}

static int start_all(void **state)
{
    redis_start(&master, NULL);
    redis_start(&replica, NULL);
    redis_send(&replica, "REPLICAOF 127.0.0.1 %u", master.port);
    watch(&sentinels[0], 500);
    watch(&sentinels[1], 60000);
    return 0;
}

static int end_all(void **state)
{
    redis_end(&sentinels[0]);
    redis_end(&sentinels[1]);
    redis_end(&replica);
    redis_end(&master);
    return 0;
}

static void test_failover(void **state)
{
    char url[160];
    uint64_t tried = 0, failed = 0;

    /* The first one does not answer at all: the next is asked. */
    snprintf(url, sizeof(url), "sentinel://127.0.0.1:1,localhost:%u,127.0.0.1:%u/m",
             sentinels[0].port, sentinels[1].port);
    rig_open(&rig, &(bt_store_config_t){.url = url, .op_ms = 5000});
    TURN_UNTIL(&rig.loop, rig.ups == 1);
    rig_do(&rig, OP(CELL_SET, "c", .value = BT_STR("x")));
    TURN_UNTIL(&rig.loop, knows_all(&sentinels[0]) && knows_all(&sentinels[1]));
    /* What the replica has not, a failover loses. */
    redis_send(&master, "WAIT 1 0");
    redis_stop(&master);
    while (rig.ups < 2) {
        told_t told = rig_ask(&rig, OP(COUNTER_ADD, "n", .amount = 1));
        tried++;
        failed += told.rc != 0;
        assert_true(told.rc == 0 || told.rc == BT_E_STORE_UNAVAILABLE || told.rc == BT_E_STORE);
    }
    assert_true(failed > 0 && failed <= tried);
    rig_do(&rig, OP(CELL_SET, "d", .value = BT_STR("y")));
    redisReply *reply = redis_ask(&replica, "ROLE");
    assert_string_equal(reply->element[0]->str, "master");
    freeReplyObject(reply);
    /* The old one comes back, and is made a replica: it is not gone to. */
    redis_again(&master);
    assert_string_equal(rig_do(&rig, OP(CELL_GET, "d")).text, "y");
    rig_close(&rig);
}

/* A master that is demoted under us answers READONLY, or throws us out: the Sentinels are asked again. */
static void test_moved_by_hand(void **state)
{
    char url[160];

    snprintf(url, sizeof(url), "sentinel://127.0.0.1:%u,127.0.0.1:%u/m/2", sentinels[0].port,
             sentinels[1].port);
    rig_open(&rig, &(bt_store_config_t){.url = url, .op_ms = 5000});
    TURN_UNTIL(&rig.loop, rig.ups == 1);
    TURN_UNTIL(&rig.loop, knows_all(&sentinels[0]) && knows_all(&sentinels[1]));
    unsigned ups = rig.ups;
    for (;;) { /* refused until it knows a replica that is fit */
        redisReply *reply = redis_ask(&sentinels[0], "SENTINEL FAILOVER m");
        bool is_ok = reply->type == REDIS_REPLY_STATUS;
        freeReplyObject(reply);
        if (is_ok)
            break;
        turn_once(&rig.loop);
    }
    do
        rig_ask(&rig, OP(CELL_SET, "c", .value = BT_STR("x")));
    while (rig.ups == ups);
    rig_do(&rig, OP(CELL_SET, "c", .value = BT_STR("x")));
    redisReply *reply = redis_ask(&master, "ROLE");
    assert_string_equal(reply->element[0]->str, "master");
    freeReplyObject(reply);
    rig_close(&rig);
}

static void test_unknown_master(void **state)
{
    char url[160];

    snprintf(url, sizeof(url), "sentinel://127.0.0.1:%u/other", sentinels[0].port);
    rig_open(&rig, &(bt_store_config_t){.url = url, .op_ms = 5000});
    rig_wait_health(&rig, BT_STORE_DEGRADED);
    assert_non_null(strstr(rig_why(&rig), "it knows no such master"));
    rig_close(&rig);
}

/* Named as a Sentinel, and none. */
static void test_no_sentinel(void **state)
{
    char url[160];

    snprintf(url, sizeof(url), "sentinel://127.0.0.1:%u/m", replica.port);
    rig_open(&rig, &(bt_store_config_t){.url = url, .op_ms = 5000});
    rig_wait_health(&rig, BT_STORE_DEGRADED);
    assert_non_null(strstr(rig_why(&rig), "unknown command"));
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_master),
        cmocka_unit_test(test_no_sentinel),
        cmocka_unit_test(test_failover),
        cmocka_unit_test(test_moved_by_hand),
    };

    if (redis_program() == NULL)
        return 77;
    return cmocka_run_group_tests(tests, start_all, end_all);
}
