/* A real cluster: the owner of the fleet's slot is found from any seed, followed when the slot moves, and when it dies. */
#include "redis_server.h"
#include "rig.h"

#include <stdio.h>

#define MASTERS 3
#define SLOTS 16384

static const char *const words[] = {"--cluster-enabled",
                                    "yes",
                                    "--cluster-node-timeout",
                                    "2000",
                                    "--cluster-require-full-coverage",
                                    "no",
                                    "--cluster-config-file",
                                    "conf",
                                    "--repl-ping-replica-period",
                                    "1",
                                    NULL};
static redis_server_t nodes[MASTERS + 1]; /* the last one is a replica, of nobody at first */
static rig_t rig;

static void id_of(const redis_server_t *node, char id[41])
{
    redisReply *reply = redis_ask(node, "CLUSTER MYID");

    assert_int_equal(reply->type, REDIS_REPLY_STRING);
    snprintf(id, 41, "%s", reply->str);
    freeReplyObject(reply);
}

static bool says(const redis_server_t *node, const char *command, const char *text)
{
    redisReply *reply = redis_ask(node, command);
    bool is = reply->str != NULL && strstr(reply->str, text) != NULL;

    freeReplyObject(reply);
    return is;
}

static void wait_says(const redis_server_t *node, const char *command, const char *text)
{
    while (!says(node, command, text))
        usleep(10000);
}

/* A busy machine outlasts a handshake, and then a node forgets whom it was to meet. */
static void meet_all(void)
{
    char text[32];
    unsigned tenths = 0, known;

    snprintf(text, sizeof(text), "cluster_known_nodes:%u", MASTERS + 1);
    do {
        for (unsigned i = 1; tenths % 20 == 0 && i <= MASTERS; i++)
            redis_send(&nodes[0], "CLUSTER MEET 127.0.0.1 %u", nodes[i].port);
        usleep(100000);
        tenths++;
        known = 0;
        for (unsigned i = 0; i <= MASTERS; i++)
            known += says(&nodes[i], "CLUSTER INFO", text);
    } while (known <= MASTERS);
}

static int start_all(void **state)
{
    for (unsigned i = 0; i <= MASTERS; i++)
        redis_start(&nodes[i], words);
    for (unsigned i = 0; i < MASTERS; i++)
        redis_send(&nodes[i], "CLUSTER ADDSLOTSRANGE %u %u", i * SLOTS / MASTERS,
                   (i + 1) * SLOTS / MASTERS - 1);
    meet_all();
    for (unsigned i = 0; i <= MASTERS; i++) {
        wait_says(&nodes[i], "CLUSTER INFO", "cluster_state:ok");
        wait_says(&nodes[i], "CLUSTER INFO", "cluster_slots_assigned:16384");
    }
    return 0;
}

static int end_all(void **state)
{
    for (unsigned i = 0; i <= MASTERS; i++)
        redis_end(&nodes[i]);
    return 0;
}

static unsigned slot_of_space(void)
{
    redisReply *reply = redis_ask(&nodes[0], "CLUSTER KEYSLOT {baton}");
    unsigned slot = (unsigned) reply->integer;

    freeReplyObject(reply);
    return slot;
}

static unsigned owner_of(unsigned slot)
{
    for (unsigned i = 0; i < MASTERS; i++)
        if (slot < (i + 1) * SLOTS / MASTERS)
            return i;
    return MASTERS;
}

/* The store's own space, as a fleet has it: the probe's key and all others share their slot. */
#define KEY(kind, name, ...)                                                                       \
    ((bt_store_op_t){                                                                              \
        .what = BT_STORE_##kind, .space = BT_STR("baton"), .key = BT_STR(name), ##__VA_ARGS__})

static void open_at(unsigned first, unsigned count)
{
    char url[160] = "redis-cluster://";

    for (unsigned i = 0; i < count; i++) {
        size_t n = strlen(url);
        snprintf(url + n, sizeof(url) - n, "%s127.0.0.1:%u", i > 0 ? "," : "",
                 nodes[first + i].port);
    }
    rig_open(&rig, &(bt_store_config_t){.url = url, .op_ms = 5000, .connect_ms = 5000});
    TURN_UNTIL(&rig.loop, rig.ups == 1);
}

/* Whichever node is named, and also a replica, the owner is found, and nothing is said of it. */
static void test_any_seed(void **state)
{
    bt_store_stats_t stats;

    for (unsigned i = 0; i <= MASTERS; i++) {
        open_at(i, 1);
        assert_int_equal(rig_do(&rig, KEY(COUNTER_ADD, "seen", .amount = 1)).number, i + 1);
        bt_store_stats(rig.store, &stats);
        assert_int_equal(stats.connects, i == owner_of(slot_of_space()) ? 1 : 2);
        rig_close(&rig);
    }
}

/* Whatever else lies in the slot, a probe's key that has not run out among it: a node that holds keys gives no slot away. */
static void move_rest(unsigned slot, redis_server_t *from, redis_server_t *to)
{
    size_t left;

    do {
        redisReply *keys = redis_ask(from, "CLUSTER GETKEYSINSLOT %u 100", slot);
        assert_int_equal(keys->type, REDIS_REPLY_ARRAY);
        left = keys->elements;
        for (size_t i = 0; i < left; i++)
            redis_send(from, "MIGRATE 127.0.0.1 %u %s 0 5000", to->port, keys->element[i]->str);
        freeReplyObject(keys);
    } while (left > 0);
}

/* Keys that have gone are asked for there, new ones are made there; the rest is served here. Then all of it has moved. */
static void test_slot_moves(void **state)
{
    const unsigned slot = slot_of_space(), from = owner_of(slot), to = (from + 1) % MASTERS;
    char from_id[41], to_id[41];

    id_of(&nodes[from], from_id);
    id_of(&nodes[to], to_id);
    redis_send(&nodes[to], "SCRIPT FLUSH");
    open_at(0, MASTERS);
    rig_do(&rig, KEY(CELL_SET, "stays", .value = BT_STR("s")));
    rig_do(&rig, KEY(CELL_SET, "goes", .value = BT_STR("g")));
    redis_send(&nodes[to], "CLUSTER SETSLOT %u IMPORTING %s", slot, from_id);
    redis_send(&nodes[from], "CLUSTER SETSLOT %u MIGRATING %s", slot, to_id);
    redis_send(&nodes[from], "MIGRATE 127.0.0.1 %u baton:{baton}:goes 0 5000", nodes[to].port);
    assert_string_equal(rig_do(&rig, KEY(CELL_GET, "goes")).text, "g");
    assert_string_equal(rig_do(&rig, KEY(CELL_GET, "stays")).text, "s");
    /* A script that node has never heard of, twice: with its text, then by its name. */
    for (int64_t i = 1; i <= 2; i++)
        assert_true(
            rig_do(&rig, KEY(LEASE_TAKE, "new", .value = BT_STR("me"), .ttl_ms = 60000)).number >
            0);
    assert_true(says(&nodes[from], "CLUSTER NODES", "->-"));
    assert_int_equal(rig_health(&rig), BT_STORE_UP);
    assert_int_equal(rig.ups, 1);
    move_rest(slot, &nodes[from], &nodes[to]);
    const uint64_t end_ms = bt_clock_ms() + 30000;
    while (rig.ups < 2) { /* an op, or a probe, is told MOVED */
        assert_true(bt_clock_ms() < end_ms);
        /* Said again: a node that hears the old owner between the two would give the slot back, and nobody had it. */
        redis_send(&nodes[to], "CLUSTER SETSLOT %u NODE %s", slot, to_id);
        redis_send(&nodes[from], "CLUSTER SETSLOT %u NODE %s", slot, to_id);
        rig_ask(&rig, KEY(CELL_GET, "stays"));
    }
    assert_string_equal(rig_do(&rig, KEY(CELL_GET, "stays")).text, "s");
    assert_string_equal(rig_do(&rig, KEY(CELL_GET, "goes")).text, "g");
    rig_close(&rig);
}

static unsigned owner_now(void)
{
    for (unsigned i = 0; i <= MASTERS; i++) {
        redisReply *reply = redis_ask(&nodes[i], "GET baton:{baton}:none");
        bool is_owner = reply->type != REDIS_REPLY_ERROR;
        freeReplyObject(reply);
        if (is_owner)
            return i;
    }
    return MASTERS + 1;
}

/* WAIT would not do: it waits for what was written on its own connection. */
static long long offset_of(const redis_server_t *node, const char *field)
{
    redisReply *reply = redis_ask(node, "INFO replication");
    const char *at = strstr(reply->str, field);
    assert_non_null(at);
    long long offset = strtoll(at + strlen(field), NULL, 10);

    freeReplyObject(reply);
    return offset;
}

static bool knows_replica(const redis_server_t *node, const char *id)
{
    redisReply *reply = redis_ask(node, "CLUSTER NODES");
    const char *line = strstr(reply->str, id);
    const char *role = line != NULL ? strstr(line, " slave ") : NULL;
    bool is = role != NULL && memchr(line, '\n', (size_t) (role - line)) == NULL;

    freeReplyObject(reply);
    return is;
}

/* The owner dies, its replica takes over: found by what the seeds say. */
static void test_failover(void **state)
{
    const unsigned owner = owner_now();
    char id[41];

    assert_in_range(owner, 0, MASTERS - 1);
    id_of(&nodes[owner], id);
    redis_send(&nodes[MASTERS], "CLUSTER REPLICATE %s", id);
    wait_says(&nodes[MASTERS], "INFO replication", "master_link_status:up");
    open_at(0, MASTERS);
    rig_do(&rig, KEY(CELL_SET, "c", .value = BT_STR("x")));
    const long long written = offset_of(&nodes[owner], "\nmaster_repl_offset:");
    while (offset_of(&nodes[MASTERS], "\nslave_repl_offset:") < written)
        usleep(10000);
    redis_stop(&nodes[owner]);
    while (rig_health(&rig) == BT_STORE_UP)
        assert_true(rig_ask(&rig, KEY(CELL_GET, "c")).rc != BT_E_INVAL);
    redis_send(&nodes[MASTERS], "CLUSTER FAILOVER TAKEOVER");
    TURN_UNTIL(&rig.loop, rig.ups >= 2 && rig_health(&rig) == BT_STORE_UP);
    assert_string_equal(rig_do(&rig, KEY(CELL_GET, "c")).text, "x");
    wait_says(&nodes[MASTERS], "INFO replication", "role:master");
    /* The old one comes back as its replica, and then takes over in good order: its master says MOVED from one command to the next. */
    redis_again(&nodes[owner]);
    wait_says(&nodes[owner], "INFO replication", "master_link_status:up");
    for (unsigned i = 0; i <= MASTERS; i++)
        while (i != owner && !knows_replica(&nodes[i], id)) /* or it gets no vote */
            usleep(10000);
    redis_send(&nodes[owner], "CLUSTER FAILOVER");
    const unsigned ups = rig.ups;
    while (rig.ups == ups)
        rig_ask(&rig, KEY(CELL_GET, "c"));
    assert_string_equal(rig_do(&rig, KEY(CELL_GET, "c")).text, "x");
    wait_says(&nodes[owner], "INFO replication", "role:master");
    rig_close(&rig);
}

/* A node of a cluster that is written as a server alone: what to write is said. */
static void test_not_as_cluster(void **state)
{
    const unsigned owner = owner_now();
    char url[64];

    for (unsigned i = 0; i <= MASTERS; i++) {
        if (i == owner || nodes[i].pid == 0)
            continue;
        snprintf(url, sizeof(url), "redis://127.0.0.1:%u", nodes[i].port);
        rig_open(&rig, &(bt_store_config_t){.url = url, .op_ms = 5000});
        rig_wait_health(&rig, BT_STORE_DEGRADED);
        assert_non_null(strstr(rig_why(&rig), "write redis-cluster://"));
        rig_close(&rig);
        return;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_seed),
        cmocka_unit_test(test_slot_moves),
        cmocka_unit_test(test_not_as_cluster),
        cmocka_unit_test(test_failover),
    };

    if (redis_program() == NULL)
        return 77;
    return cmocka_run_group_tests(tests, start_all, end_all);
}
