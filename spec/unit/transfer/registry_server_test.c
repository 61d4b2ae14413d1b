/* SGLang's registry over real HTTP: a prefill registers, a decode asks. What is answered to what is spec'd in transport/registry_test.c. */
#include "admin/client.h"
#include "transfer/registry_server.h"

#define ROUTE "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0"
#define INFO "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
#define PUT_BODY                                                                                   \
    "{\"attn_tp_size\":1,\"attn_tp_rank\":0,\"attn_cp_size\":1,\"attn_cp_rank\":0,"                \
    "\"attn_dp_size\":1,\"attn_dp_rank\":0,\"pp_size\":1,\"pp_rank\":0,\"system_dp_size\":1,"      \
    "\"system_dp_rank\":0,\"rank_ip\":\"0.0.0.0\",\"rank_port\":9001,\"page_size\":16,"            \
    "\"kv_cache_dtype\":\"auto\",\"load_balance_method\":\"round_robin\"}"

static bt_loop_t loop;
static bt_registry_server_t *server;
static unsigned port;
static bool is_closed;
static client_t client;

static void on_closed(void *user)
{
    (void) user;
    is_closed = true;
}

static void open_server(const bt_registry_server_config_t *config)
{
    alarm(50);
    bt_log_set(BT_LOG_ERROR, false, 2);
    assert_int_equal(bt_loop_init(&loop, BT_LOOP_CONTROL), 0);
    int fd = bt_listener_bind("127.0.0.1", 0, false, &port);
    assert_true(fd >= 0);
    assert_int_equal(bt_registry_server_new(&server, &loop, fd, config), 0);
    is_closed = false;
}

static void close_server(void)
{
    bt_registry_server_close(server, on_closed, NULL);
    TURN_UNTIL(&loop, is_closed);
    assert_int_equal(atomic_load(&loop.connections), 0);
    bt_loop_fini(&loop);
    client_close(&client);
}

static unsigned ask_http(const char *method, const char *target, const char *headers,
                         const char *body)
{
    client_close(&client);
    client_open(&client, port);
    client_send(&client, method, target, headers, body);
    TURN_UNTIL(&loop, client_has_answer(&client));
    return client_status(&client);
}

static void test_register_and_ask(void **state)
{
    open_server(NULL);
    assert_int_equal(ask_http("GET", "/health", "", ""), 200);
    assert_int_equal(ask_http("GET", INFO, "", ""), 503);
    assert_int_equal(ask_http("PUT", "/route", "Content-Type: application/json\r\n", PUT_BODY),
                     200);
    assert_int_equal(ask_http("GET", INFO, "", ""), 200);
    assert_int_equal(ask_http("GET", ROUTE, "", ""), 200);
    /* The wildcard it listens on has become the address it came from. */
    assert_string_equal(client_body(&client), "{\"rank_ip\": \"127.0.0.1\", \"rank_port\": 9001}");
    close_server();
}

static void test_refusals(void **state)
{
    static char big[3000];

    memset(big, ' ', sizeof big - 1);
    open_server(
        &(bt_registry_server_config_t){.registry = {.token = "secret", .max_body_bytes = 1024}});
    assert_int_equal(ask_http("GET", "/health", "", ""), 200);
    assert_int_equal(ask_http("GET", INFO, "", ""), 401);
    assert_non_null(strcasestr(client.got, "www-authenticate: "));
    assert_int_equal(ask_http("GET", INFO, "Authorization: Bearer secret\r\n", ""), 503);
    assert_int_equal(ask_http("PUT", "/route", "Authorization: Bearer secret\r\n", big), 413);
    assert_int_equal(ask_http("PUT", "/route", "Authorization: Bearer secret\r\n", "{"), 400);
    assert_int_equal(ask_http("DELETE", "/route", "Authorization: Bearer secret\r\n", ""), 405);
    assert_non_null(strcasestr(client.got, "allow: "));
    close_server();
}

/* The answer comes before a byte of the body has. */
static void test_a_body_of_a_stranger_is_not_read(void **state)
{
    static const char head[] = "PUT /route HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n";

    open_server(&(bt_registry_server_config_t){.registry = {.token = "secret"}});
    client_close(&client);
    client_open(&client, port);
    assert_true(send(client.fd, head, sizeof head - 1, MSG_NOSIGNAL) > 0);
    TURN_UNTIL(&loop, client_has_answer(&client));
    assert_int_equal(client_status(&client), 401);
    assert_non_null(strcasestr(client.got, "www-authenticate: bearer"));
    assert_int_equal(ask_http("PUT", "/route", "Authorization: Bearer wrong\r\n", "{}"), 401);
    assert_int_equal(ask_http("PUT", "/route", "Authorization: Bearer secret\r\n", "{}"), 400);
    close_server();
}

/* What it is given wrong is told at once, and the socket is not kept. */
static void test_bad_configurations(void **state)
{
    static const char *const bad[] = {"10.0.0.0/8", "node-1"};
    const bt_registry_server_config_t configs[] = {{.allowed = bad, .allowed_count = 2},
                                                   {.registry = {.token = ""}}};

    assert_int_equal(bt_loop_init(&loop, BT_LOOP_CONTROL), 0);
    for (unsigned i = 0; i < 2; i++) {
        int fd = bt_listener_bind("127.0.0.1", 0, false, &port);
        assert_int_equal(bt_registry_server_new(&server, &loop, fd, &configs[i]), BT_E_INVAL);
        assert_int_equal(close(fd), -1);
    }
    bt_loop_fini(&loop);
}

/* Closed while a client waits with half a request. */
static void test_closed_with_a_client(void **state)
{
    open_server(NULL);
    client_close(&client);
    client_open(&client, port);
    assert_true(send(client.fd, "PUT /route HTTP/1.1\r\nHost: x\r\n", 29, MSG_NOSIGNAL) > 0);
    turn(&loop, 5);
    close_server();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_register_and_ask),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_a_body_of_a_stranger_is_not_read),
        cmocka_unit_test(test_bad_configurations),
        cmocka_unit_test(test_closed_with_a_client),
    };

    client.fd = -1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
