/* Redirections that no good cluster sends: each ends in an error and a back-off, none in a loop, a crash or a wait. */
#include "../loop/names.h"
#include "rig.h"

#include "store/redis_client.h"

#include <stdio.h>

#define PROBE "{baton}:probe\r\n"
#define GREETING "READWRITE\r\n"

typedef struct node {
    int listener, peer;
    unsigned port, accepted;
    const char *greeted; /* the answer to what is asked first */
    char heard[65536];
    size_t n;
} node_t;

static node_t a, b;
static rig_t rig;

static void node_start(node_t *node)
{
    struct sockaddr_storage addr;

    memset(node, 0, sizeof(*node));
    node->peer = -1;
    node->greeted = "+OK\r\n";
    node->listener = raw_listen(AF_INET, &addr);
    assert_true(node->listener >= 0);
    fcntl(node->listener, F_SETFL, O_NONBLOCK);
    node->port = ntohs(((struct sockaddr_in *) &addr)->sin_port);
}

static void node_end(node_t *node)
{
    close(node->listener);
    if (node->peer >= 0)
        close(node->peer);
}

static void say(node_t *node, const char *fmt, unsigned port)
{
    char text[400];
    int n = snprintf(text, sizeof(text), fmt, port);

    assert_int_equal(send(node->peer, text, (size_t) n, MSG_NOSIGNAL), n);
}

/* Takes who dials, instead of who is there, and what it asks. */
static bool node_turn(node_t *node)
{
    int fd = accept4(node->listener, NULL, NULL, SOCK_CLOEXEC);

    turn_once(&rig.loop);
    if (fd >= 0) {
        if (node->peer >= 0)
            close(node->peer);
        node->peer = fd;
        node->accepted++;
        node->n = 0;
    }
    if (node->peer >= 0) {
        ssize_t got = recv(node->peer, node->heard + node->n, sizeof(node->heard) - node->n - 1,
                           MSG_DONTWAIT);
        if (got > 0)
            node->n += (size_t) got;
    }
    node->heard[node->n] = '\0';
    if (strstr(node->heard, GREETING) != NULL) {
        node->n = 0;
        node->heard[0] = '\0';
        say(node, node->greeted, 0);
    }
    return fd >= 0;
}

/* The next command that holds `text`; what was heard up to here is forgotten. */
static void hear(node_t *node, const char *text)
{
    while (strstr(node->heard, text) == NULL)
        node_turn(node);
    node->n = 0;
    node->heard[0] = '\0';
}

static void begin_as(const char *host)
{
    char url[80];

    node_start(&a);
    node_start(&b);
    snprintf(url, sizeof(url), "redis-cluster://%s:%u", host, a.port);
    rig_open(&rig, &(bt_store_config_t){.url = url, .op_ms = 5000, .connect_ms = 20000});
}

static void begin(void)
{
    begin_as("127.0.0.1");
}

static void begin_up(void)
{
    begin();
    hear(&a, PROBE);
    say(&a, "+OK\r\n", 0);
    TURN_UNTIL(&rig.loop, rig.ups == 1);
}

static void end(void)
{
    rig_close(&rig);
    node_end(&a);
    node_end(&b);
}

static void test_addresses(void **state)
{
    static const bt_redis_place_t from = {"10.0.0.9", 7};
    static const struct {
        const char *text, *host;
        unsigned port;
    } rows[] = {
        {"MOVED 3999 10.0.0.1:6381", "10.0.0.1", 6381},
        {"ASK 0 10.0.0.1:1", "10.0.0.1", 1},
        {"MOVED 16383 node-3.cache.example.com:6379", "node-3.cache.example.com", 6379},
        {"MOVED 1 :6380", "10.0.0.9", 6380}, /* Redis 7: the same host */
        {"MOVED 1 ::1:6380", "::1", 6380},
        {"MOVED 1 fd00::2:6380", "fd00::2", 6380},
        {"MOVED 1 [fd00::2]:6380", "fd00::2", 6380},
        {"MOVED", NULL, 0},
        {"MOVED ", NULL, 0},
        {"MOVED 1", NULL, 0},
        {"MOVED 1 ", NULL, 0},
        {"MOVED 1 h", NULL, 0},
        {"MOVED 1 h:", NULL, 0},
        {"MOVED 1 h:0", NULL, 0},
        {"MOVED 1 h:65536", NULL, 0},
        {"MOVED 1 h:-1", NULL, 0},
        {"MOVED 1 h:63 79", NULL, 0},
        {"MOVED 16384 h:1", NULL, 0},
        {"MOVED x h:1", NULL, 0},
        {"MOVED 1 ?:6379", NULL, 0}, /* a node without a name */
        {"MOVED 1 a b:6379", NULL, 0},
        {"MOVED 1 a\x1b[31m:6379", NULL, 0},
    };
    bt_redis_place_t to;
    char text[400];

    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool is = bt_redis_redirection(bt_str(rows[i].text), &from, &to);
        if (is != (rows[i].host != NULL))
            fail_msg("%s", rows[i].text);
        if (!is)
            continue;
        assert_string_equal(to.host, rows[i].host);
        assert_int_equal(to.port, rows[i].port);
    }
    for (int n = 254; n <= 257; n++) { /* a name of 255 bytes, and no longer one */
        snprintf(text, sizeof(text), "MOVED 1 %0*d:1", n, 0);
        assert_int_equal(bt_redis_redirection(bt_str(text), &from, &to), n <= 255);
    }
}

/* Each says that the other one has it. */
static void test_loop(void **state)
{
    begin();
    for (unsigned i = 0; i < 3; i++) {
        hear(&a, PROBE);
        say(&a, "-MOVED 1 127.0.0.1:%u\r\n", b.port);
        hear(&b, PROBE);
        say(&b, "-MOVED 1 127.0.0.1:%u\r\n", a.port);
    }
    rig_wait_health(&rig, BT_STORE_DEGRADED);
    assert_non_null(strstr(rig_why(&rig), "redirected 5 times in a row, the last: MOVED 1 "));
    assert_int_equal(a.accepted + b.accepted, 6);
    /* It begins again with the seed, and all may be well by then. */
    hear(&a, PROBE);
    say(&a, "+OK\r\n", 0);
    TURN_UNTIL(&rig.loop, rig.ups == 1);
    end();
}

/* It takes probes, and sends every other command away: that is a loop as well. */
static void test_loop_of_ops(void **state)
{
    begin();
    for (unsigned i = 0; i <= 5; i++) {
        told_t told = {0};
        bt_store_op_t op = OP(CELL_GET, "c", .cb = rig_note, .user = &told);
        hear(&a, PROBE);
        say(&a, "+OK\r\n", 0);
        TURN_UNTIL(&rig.loop, rig.ups == i + 1);
        bt_store_do(rig.client, &op);
        hear(&a, "GET");
        say(&a, "-MOVED 1 :%u\r\n", a.port);
        TURN_UNTIL(&rig.loop, told.times == 1);
        assert_int_equal(told.rc, BT_E_STORE);
    }
    assert_non_null(strstr(rig_why(&rig), "redirected 5 times in a row"));
    end();
}

static void test_no_address(void **state)
{
    begin_up();
    told_t told = {0};
    bt_store_op_t op = OP(CELL_GET, "c", .cb = rig_note, .user = &told);
    bt_store_do(rig.client, &op);
    hear(&a, "GET");
    say(&a, "-MOVED 1 ?:%u\r\n", b.port);
    TURN_UNTIL(&rig.loop, told.times == 1);
    assert_int_equal(told.rc, BT_E_STORE);
    assert_non_null(strstr(rig_why(&rig), "it names no address: MOVED 1 ?"));
    hear(&a, PROBE); /* dialled again */
    assert_int_equal(b.accepted, 0);
    end();
}

/* The owner that was found dies with all seeds' word gone: it is itself asked again. */
static void test_owner_is_remembered(void **state)
{
    begin();
    hear(&a, PROBE);
    say(&a, "-MOVED 1 127.0.0.1:%u\r\n", b.port);
    hear(&b, PROBE);
    say(&b, "+OK\r\n", 0);
    TURN_UNTIL(&rig.loop, rig.ups == 1);
    node_end(&a);
    close(b.peer);
    b.peer = -1;
    while (!node_turn(&b))
        ;
    hear(&b, PROBE);
    say(&b, "+OK\r\n", 0);
    TURN_UNTIL(&rig.loop, rig.ups == 2);
    rig_close(&rig);
    node_end(&b);
}

static told_t ask_and_be_sent(const char *answer, unsigned port)
{
    static told_t told;
    bt_store_op_t op = OP(COUNTER_ADD, "n", .amount = 1, .cb = rig_note, .user = &told);

    memset(&told, 0, sizeof(told));
    bt_store_do(rig.client, &op);
    hear(&a, "INCRBY");
    say(&a, answer, port);
    TURN_UNTIL(&rig.loop, told.times == 1);
    return told;
}

/* An ASK that leads nowhere is the op's misfortune, and no matter of the store's health. */
static void test_ask_nowhere(void **state)
{
    begin_up();
    unsigned port = b.port;
    node_end(&b);
    assert_int_equal(ask_and_be_sent("-ASK 1 127.0.0.1:%u\r\n", port).rc, BT_E_STORE_UNAVAILABLE);
    assert_int_equal(ask_and_be_sent("-ASK 1 ?:%u\r\n", port).rc, BT_E_STORE);
    assert_int_equal(ask_and_be_sent(":7\r\n", 0).number, 7);
    assert_int_equal(rig_health(&rig), BT_STORE_UP);
    assert_int_equal(a.accepted, 1);
    rig_close(&rig);
    node_end(&a);
}

/* Who was asked and sends on is not followed; the store is where it was. */
static void test_ask_is_sent_on(void **state)
{
    static const char *const answers[] = {"-ASK 1 127.0.0.1:%u\r\n", "-MOVED 1 127.0.0.1:%u\r\n"};

    begin_up();
    for (unsigned i = 0; i < 2; i++) {
        told_t told = {0};
        bt_store_op_t op = OP(COUNTER_ADD, "n", .amount = 1, .cb = rig_note, .user = &told);
        bt_store_do(rig.client, &op);
        hear(&a, "INCRBY");
        say(&a, "-ASK 1 127.0.0.1:%u\r\n", b.port);
        while (strstr(b.heard, "INCRBY") == NULL)
            node_turn(&b);
        assert_non_null(strstr(b.heard, "*1\r\n$6\r\nASKING\r\n*3\r\n$6\r\nINCRBY"));
        b.n = 0;
        b.heard[0] = '\0';
        say(&b, "+OK\r\n", 0);
        say(&b, answers[i], a.port);
        TURN_UNTIL(&rig.loop, told.times == 1);
        assert_int_equal(told.rc, BT_E_STORE);
    }
    assert_int_equal(b.accepted, 1); /* one connection for all that are asked there */
    assert_int_equal(a.accepted, 1);
    assert_int_equal(rig_health(&rig), BT_STORE_UP);
    end();
}

/* The client goes while an op waits for a connection that does not come up, and while one is out on it. */
static void test_end_while_asking(void **state)
{
    for (unsigned is_out = 0; is_out < 2; is_out++) {
        told_t told = {0};
        begin_up();
        bt_store_op_t op = OP(COUNTER_ADD, "n", .amount = 1, .cb = rig_note, .user = &told);
        bt_store_do(rig.client, &op);
        hear(&a, "INCRBY");
        say(&a, "-ASK 1 127.0.0.1:%u\r\n", b.port);
        if (is_out)
            hear(&b, "INCRBY");
        else
            turn_once(&rig.loop);
        end();
        assert_int_equal(told.times, 1);
        assert_int_equal(told.rc, BT_E_CANCELLED);
    }
}

/* A node whose slot is on its way has it until it is gone: the probe's own key lives for a second, and is missing there. */
static void test_probe_is_asked_elsewhere(void **state)
{
    begin();
    hear(&a, PROBE);
    say(&a, "-ASK 1 127.0.0.1:%u\r\n", b.port);
    TURN_UNTIL(&rig.loop, rig.ups == 1);
    assert_int_equal(rig_health(&rig), BT_STORE_UP);
    assert_int_equal(b.accepted, 0);
    end();
}

/* What a node says while its cluster has no owner for the slot is no redirection: the same one is probed, and after a while the next seed. */
static void test_cluster_down(void **state)
{
    begin();
    hear(&a, PROBE);
    say(&a, "-CLUSTERDOWN The cluster is down\r\n", 0);
    rig_wait_health(&rig, BT_STORE_DEGRADED);
    assert_non_null(strstr(rig_why(&rig), "CLUSTERDOWN"));
    for (unsigned i = 1; i < 5; i++) {
        hear(&a, PROBE);
        say(&a, "-CLUSTERDOWN The cluster is down\r\n", 0);
    }
    while (!node_turn(&a)) /* dialled anew */
        ;
    hear(&a, PROBE);
    say(&a, "+OK\r\n", 0);
    TURN_UNTIL(&rig.loop, rig.ups == 1);
    end();
}

/* A server that is full, or does not let us write, is the owner all the same: no other one would do more. */
static void test_refusing_owner_is_kept(void **state)
{
    begin();
    for (unsigned i = 0; i < 5; i++) {
        hear(&a, PROBE);
        say(&a, "-OOM command not allowed when used memory > 'maxmemory'\r\n", 0);
    }
    hear(&a, PROBE);
    assert_int_equal(rig_health(&rig), BT_STORE_DEGRADED);
    assert_int_equal(a.accepted, 1);
    end();
}

/* The address that was the owner's is another server's by now, which would take every key. */
static void test_stranger(void **state)
{
    begin();
    a.greeted = "-ERR This instance has cluster support disabled\r\n";
    while (rig_health(&rig) != BT_STORE_DEGRADED)
        node_turn(&a);
    assert_non_null(strstr(rig_why(&rig), "it is no node of a cluster; write redis://"));
    assert_null(strstr(a.heard, PROBE));
    assert_int_equal(rig.ups, 0);
    end();
}

/* One name for all nodes, and the first of its addresses is nobody's. */
static void test_name_of_several(void **state)
{
    names_host = "cache.test";
    names_addresses[0] = "127.0.0.2";
    names_addresses[1] = "127.0.0.1";
    begin_as("cache.test");
    for (unsigned i = 1; i <= 2; i++) { /* also when it has been well before */
        hear(&a, PROBE);
        say(&a, "+OK\r\n", 0);
        TURN_UNTIL(&rig.loop, rig.ups == i);
        close(a.peer);
        a.peer = -1;
    }
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_loop),
        cmocka_unit_test(test_loop_of_ops),
        cmocka_unit_test(test_no_address),
        cmocka_unit_test(test_owner_is_remembered),
        cmocka_unit_test(test_ask_nowhere),
        cmocka_unit_test(test_ask_is_sent_on),
        cmocka_unit_test(test_end_while_asking),
        cmocka_unit_test(test_probe_is_asked_elsewhere),
        cmocka_unit_test(test_cluster_down),
        cmocka_unit_test(test_refusing_owner_is_kept),
        cmocka_unit_test(test_stranger),
        cmocka_unit_test(test_name_of_several),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
