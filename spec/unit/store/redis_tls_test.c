/* TLS: the suite through it, and whom it does not trust. */
#include "redis_server.h"
#include "suite.h"

#include "tls/client.h"

#include <stdio.h>

static redis_server_t server;
static char dir[64], url[64];
static unsigned port;

static char *file(const char *name)
{
    static char paths[8][128];
    static unsigned next;
    char *path = paths[next++ % 8];

    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

/* A CA, a certificate of it for "localhost", and another CA that has nothing to do with them. */
static bool make_certificates(void)
{
    char command[1024];

    snprintf(dir, sizeof(dir), "/tmp/baton-tls-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return false;
    snprintf(command, sizeof(command),
             "cd %s && { for ca in ca other; do openssl req -x509 -newkey rsa:2048 -nodes -days 2 "
             "-subj /CN=$ca -keyout $ca.key -out "
             "$ca.pem || exit 1; done; openssl req -newkey rsa:2048 -nodes -subj /CN=x -keyout "
             "key.pem -out csr.pem && printf "
             "'subjectAltName=DNS:localhost' >ext && openssl x509 -req -in csr.pem -CA ca.pem "
             "-CAkey ca.key -CAcreateserial -days 2 "
             "-extfile ext -out cert.pem; } >log 2>&1",
             dir);
    return system(command) == 0;
}

/* more: of its command line, NULL at the end. */
static unsigned start_with(redis_server_t *one, char tls_port[16], const char *const *more)
{
    const unsigned at = redis_free_port();
    const char *words[REDIS_WORDS_MAX] = {"--tls-port",
                                          tls_port,
                                          "--tls-cert-file",
                                          file("cert.pem"),
                                          "--tls-key-file",
                                          file("key.pem"),
                                          "--tls-ca-cert-file",
                                          file("ca.pem"),
                                          "--tls-auth-clients",
                                          "optional",
                                          NULL};
    unsigned n = 10;

    snprintf(tls_port, 16, "%u", at);
    while (*more != NULL)
        words[n++] = *more++;
    redis_start(one, words);
    return at;
}

static void start(void)
{
    static char tls_port[16];

    port = start_with(&server, tls_port, (const char *const[]){NULL});
    snprintf(url, sizeof(url), "rediss://localhost:%u", port);
}

static void expect_no(const bt_store_config_t *config, const char *why)
{
    rig_t rig;

    rig_open(&rig, config);
    rig_wait_health(&rig, BT_STORE_UNAVAILABLE);
    if (strstr(rig_why(&rig), why) == NULL)
        fail_msg("%s", rig_why(&rig));
    assert_int_equal(rig.ups, 0);
    rig_close(&rig);
}

static void test_distrust(void **state)
{
    expect_no(&(bt_store_config_t){.url = url, .tls_ca_file = file("other.pem")}, "certificate");
    expect_no(&(bt_store_config_t){.url = url}, "certificate"); /* no CA of this system's */
    expect_no(&(bt_store_config_t){.url = url,
                                   .tls_ca_file = file("ca.pem"),
                                   .tls_server_name = "elsewhere"},
              "ostname mismatch");
    char by_address[64];
    snprintf(by_address, sizeof(by_address), "rediss://127.0.0.1:%u", port);
    expect_no(&(bt_store_config_t){.url = by_address, .tls_ca_file = file("ca.pem")},
              "IP address mismatch");
    char plain[64];
    snprintf(plain, sizeof(plain), "rediss://localhost:%u", server.port);
    expect_no(&(bt_store_config_t){.url = plain, .tls_ca_file = file("ca.pem"), .connect_ms = 1000},
              "is it a port with TLS?");
}

static void test_name_given(void **state)
{
    char by_address[64];
    rig_t rig;

    snprintf(by_address, sizeof(by_address), "rediss://127.0.0.1:%u", port);
    rig_open(&rig, &(bt_store_config_t){.url = by_address,
                                        .tls_ca_file = file("ca.pem"),
                                        .tls_server_name = "localhost"});
    TURN_UNTIL(&rig.loop, rig.ups == 1);
    rig_close(&rig);
}

static void note_look(void *user, int rc, const char *err)
{
    (void) err;
    *(int *) user += rc == 0;
}

/* A CA's file that is renewed is the next connection's, without a restart. */
static void test_renewed(void **state)
{
    char command[256];
    rig_t rig;
    int n = 0;

    snprintf(command, sizeof(command), "cd %s && cp other.pem moving.pem", dir);
    assert_int_equal(system(command), 0);
    rig_open(&rig, &(bt_store_config_t){.url = url, .tls_ca_file = file("moving.pem")});
    rig_wait_health(&rig, BT_STORE_UNAVAILABLE);
    snprintf(command, sizeof(command), "cd %s && cp ca.pem moving.pem", dir);
    assert_int_equal(system(command), 0);
    bt_tls_clients_look(true, note_look, &n);
    assert_int_equal(n, 1);
    TURN_UNTIL(&rig.loop, rig.ups == 1);
    rig_close(&rig);
}

/* The handshakes are counted, apart from those with workers. */
static void test_counts(void **state)
{
    const uint64_t before = bt_store_tls_counts()->done_13,
                   failed = bt_store_tls_counts()->failed[BT_TLS_FAILED_CERTIFICATE];
    rig_t rig;

    rig_open(&rig, &(bt_store_config_t){.url = url, .tls_ca_file = file("ca.pem")});
    TURN_UNTIL(&rig.loop, rig.ups == 1);
    rig_close(&rig);
    expect_no(&(bt_store_config_t){.url = url, .tls_ca_file = file("other.pem")}, "certificate");
    assert_true(bt_store_tls_counts()->done_13 == before + 1);
    assert_true(bt_store_tls_counts()->failed[BT_TLS_FAILED_CERTIFICATE] > failed);
    assert_int_equal(bt_tls_client_counts()->done_13, 0);
}

/* More than a socket takes at once, both ways. */
static void test_large(void **state)
{
    enum { N = 4 };
    static char large[1 << 20];
    static told_t tolds[2 * N];
    static bt_store_op_t ops[2 * N];
    rig_t rig;

    rig_open(&rig, &(bt_store_config_t){.url = url, .tls_ca_file = file("ca.pem"), .op_ms = 50000});
    TURN_UNTIL(&rig.loop, rig.ups == 1);
    for (unsigned i = 0; i < N; i++) {
        memset(large, 'a' + (int) i, sizeof(large));
        ops[2 * i] = OP(CELL_SET, "c", .value = {large, sizeof(large)}, .cb = rig_note,
                        .user = &tolds[2 * i]);
        bt_store_do(rig.client, &ops[2 * i]);
        ops[2 * i + 1] = OP(CELL_GET, "c", .cb = rig_note, .user = &tolds[2 * i + 1]);
        bt_store_do(rig.client, &ops[2 * i + 1]);
    }
    TURN_UNTIL(&rig.loop, tolds[2 * N - 1].times == 1);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(tolds[2 * i].rc, 0);
        assert_int_equal(tolds[2 * i + 1].text_n, sizeof(large));
        assert_int_equal(tolds[2 * i + 1].text[0], 'a' + (int) i);
    }
    rig_close(&rig);
}

static void test_client_certificate(void **state)
{
    bt_store_config_t config = {.url = url, .tls_ca_file = file("ca.pem")};
    rig_t rig;

    redis_send(&server, "CONFIG SET tls-auth-clients yes");
    expect_no(&config, "alert certificate required");
    config.tls_cert_file = file("cert.pem");
    config.tls_key_file = file("key.pem");
    rig_open(&rig, &config);
    TURN_UNTIL(&rig.loop, rig.ups == 1);
    rig_close(&rig);
    redis_send(&server, "CONFIG SET tls-auth-clients optional");
    char err[256];
    config.tls_key_file = NULL;
    assert_int_equal(bt_store_open(&rig.store, &config, err, sizeof(err)), BT_E_CONFIG);
    assert_non_null(strstr(err, "needs a key"));
}

static void expect_says(const redis_server_t *one, const char *command, const char *text)
{
    bool is = false;

    while (!is) {
        redisReply *reply = redis_ask(one, command);
        is = reply->str != NULL && strstr(reply->str, text) != NULL;
        freeReplyObject(reply);
        usleep(10000);
    }
}

/* The seed has no slot, and names the owner as its certificate does. */
static void test_cluster(void **state)
{
    char bus[16]; /* else the TLS port + 10000, which an outgoing connection may have */
    const char *const words[] = {"--cluster-enabled",
                                 "yes",
                                 "--cluster-port",
                                 bus,
                                 "--tls-cluster",
                                 "yes",
                                 "--cluster-require-full-coverage",
                                 "no",
                                 "--cluster-config-file",
                                 "conf",
                                 "--cluster-announce-hostname",
                                 "localhost",
                                 "--cluster-preferred-endpoint-type",
                                 "hostname",
                                 NULL};
    redis_server_t nodes[2];
    char ports[2][16], text[64];
    rig_t rig;

    for (unsigned i = 0; i < 2; i++) {
        snprintf(bus, sizeof(bus), "%u", redis_free_port());
        start_with(&nodes[i], ports[i], words);
    }
    redis_send(&nodes[1], "CLUSTER ADDSLOTSRANGE 0 16383");
    redis_send(&nodes[0], "CLUSTER MEET 127.0.0.1 %s %s", ports[1], bus);
    expect_says(&nodes[0], "CLUSTER INFO", "cluster_slots_ok:16384");
    expect_says(&nodes[0], "CLUSTER NODES", ",localhost master");
    snprintf(text, sizeof(text), "rediss-cluster://localhost:%s", ports[0]);
    rig_open(&rig,
             &(bt_store_config_t){
                 .url = text, .tls_ca_file = file("ca.pem"), .op_ms = 20000, .connect_ms = 20000});
    TURN_UNTIL(&rig.loop, rig.ups == 1);
    assert_int_equal(rig_do(&rig, OP(COUNTER_ADD, "n", .amount = 3)).number, 3);
    rig_close(&rig);
    redisReply *reply = redis_ask(&nodes[1], "DBSIZE");
    assert_true(reply->integer > 0);
    freeReplyObject(reply);
    for (unsigned i = 0; i < 2; i++)
        redis_end(&nodes[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distrust), cmocka_unit_test(test_name_given),
        cmocka_unit_test(test_renewed),  cmocka_unit_test(test_counts),
        cmocka_unit_test(test_large),    cmocka_unit_test(test_client_certificate),
        cmocka_unit_test(test_cluster),
    };
    char command[128];

    if (redis_program() == NULL)
        return 77;
    if (!make_certificates()) {
        printf("skipped: no certificates for it; see %s/log (needs the command openssl)\n", dir);
        return 77;
    }
    start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bt_store_config_t config = {
        .url = url, .tls_ca_file = file("ca.pem"), .op_ms = 20000, .connect_ms = 20000};
    failed += suite_run("redis by tls", &config);
    redis_end(&server);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command) != 0 ? 1 : failed;
}
