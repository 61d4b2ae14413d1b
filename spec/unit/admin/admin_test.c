#include "admin/client.h"

#include "admin/admin.h"
#include "admin/prom_check.h"
#include "base/mem.h"
#include "base/pages.h"

static rig_t rig;
static bt_loop_t loop; /* is control and request loop in one */
static bt_admin_t *admin;
static client_t client;
static unsigned port;
static bool closed;

static void on_closed(void *arg)
{
    *(bool *) arg = true;
}

static void start(const char *key, bool metrics_only)
{
    rig.config.api_key = key;
    rig.config.metrics_only = metrics_only;
    assert_int_equal(bt_admin_new(&admin, &loop, &rig.config), 0);
    int fd = bt_listener_bind("127.0.0.1", 0, false, &port);
    assert_true(fd >= 0);
    assert_int_equal(bt_admin_listen(admin, fd), 0);
    client_open(&client, port);
}

static int open_rig(void **state)
{
    rig_open(&rig, 1);
    assert_int_equal(bt_loop_init(&loop, BT_LOOP_CONTROL), 0);
    rig.dispatchers[0]->loop = &loop;
    client = (client_t){.fd = -1};
    closed = false;
    return 0;
}

static int close_rig(void **state)
{
    client_close(&client);
    if (!closed)
        bt_admin_close(admin, on_closed, &closed);
    TURN_UNTIL(&loop, closed);
    bt_loop_fini(&loop);
    bt_pages_thread_fini();
    rig_close(&rig);
    return 0;
}

static unsigned call(const char *method, const char *target, const char *headers, const char *body)
{
    client_close(&client);
    client_open(&client, port);
    client_send(&client, method, target, headers, body);
    TURN_UNTIL(&loop, client_has_answer(&client));
    return client_status(&client);
}

static void test_metrics_and_requests(void **state)
{
    start(NULL, false);
    set_up(rig_add(&rig, BT_ROLE_HYBRID, "w0", "http://127.0.0.1:1", NULL));
    assert_int_equal(call("GET", "/metrics", "", ""), 200);
    assert_non_null(strstr(client.got, "Content-Type: text/plain; version=0.0.4; charset=utf-8"));
    assert_true(prom_check(bt_str(client_body(&client))) > 100);
    assert_non_null(strstr(client.got, "baton_worker_usable{worker=\"w0\",role=\"hybrid\"} 1"));
    assert_int_equal(call("GET", "/admin/requests", "", ""), 200);
    assert_string_equal(client_body(&client), "{\"requests\":[],\"total\":0,\"late_loops\":[]}\n");
}

static void test_a_room(void **state)
{
    uint64_t room;
    char path[64];

    start(NULL, false);
    assert_int_equal(bt_rooms_init(&rig.dispatchers[0]->rooms, 0), 0);
    assert_int_equal(bt_rooms_open(&rig.dispatchers[0]->rooms, 1, 0, NULL, &room), 0);
    snprintf(path, sizeof path, "/rooms/%llu", (unsigned long long) room);
    assert_int_equal(call("GET", path, "", ""), 404); /* nobody's */
    assert_non_null(strstr(client_body(&client), "it has ended"));
    assert_int_equal(call("GET", "/admin/rooms/0", "", ""), 400);
    bt_rooms_fini(&rig.dispatchers[0]->rooms);
}

static void test_workers_over_the_wire(void **state)
{
    start(NULL, false);
    assert_int_equal(
        call("POST", "/workers", "", "{\"url\":\"http://127.0.0.1:1\",\"name\":\"x\"}"), 201);
    assert_int_equal(call("GET", "/workers/x", "", ""), 200);
    assert_int_equal(call("POST", "/add_worker?url=http://127.0.0.1:2", "", ""), 200);
    assert_string_equal(client_body(&client), "Successfully added worker: http://127.0.0.1:2\n");
    assert_int_equal(call("DELETE", "/workers/x", "", ""), 200);
    assert_int_equal(call("PUT", "/workers", "", ""), 405);
    assert_non_null(strstr(client.got, "Allow: GET, HEAD, POST\r\n"));
}

static void test_the_key(void **state)
{
    start("sesame", false);
    static const char *const wrong[] = {"",
                                        "Authorization: Bearer sesam\r\n",
                                        "Authorization: Bearer sesamee\r\n",
                                        "Authorization: Bearer \r\n",
                                        "Authorization: Basic sesame\r\n",
                                        "Authorization: sesame\r\n",
                                        "Authorization: Bearer sesamesesame\r\n"};
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(call("GET", "/workers", wrong[i], ""), 401);
    assert_non_null(strstr(client.got, "WWW-Authenticate: Bearer"));
    assert_int_equal(call("GET", "/workers", "Authorization: Bearer sesame\r\n", ""), 200);
    assert_int_equal(call("GET", "/workers", "Authorization: bearer  sesame\r\n", ""), 200);
    assert_int_equal(call("GET", "/metrics", "", ""), 200);
    assert_int_equal(call("GET", "/health", "", ""), 200);
}

static void test_beyond_loopback_without_a_key(void **state)
{
    start(NULL, true);
    assert_int_equal(call("GET", "/metrics", "", ""), 200);
    assert_int_equal(call("POST", "/add_worker?url=http://127.0.0.1:2", "", ""), 403);
    assert_non_null(strstr(client.got, "--admin-api-key"));
}

static void test_pages_of_other_origins(void **state)
{
    start(NULL, false);
    assert_int_equal(
        call("POST", "/add_worker?url=http://127.0.0.1:2", "Origin: http://evil.example\r\n", ""),
        403);
    assert_int_equal(call("POST", "/add_worker?url=http://127.0.0.1:2", "Origin: null\r\n", ""),
                     403);
    assert_int_equal(
        call("POST", "/add_worker?url=http://127.0.0.1:2", "Origin: http://127.0.0.1\r\n", ""),
        200);
    assert_int_equal(call("POST", "/workers", "Content-Type: text/plain\r\n",
                          "{\"url\":\"http://127.0.0.1:3\"}"),
                     415);
    assert_non_null(strstr(client.got, "application/json"));
}

static void test_a_large_body_is_refused(void **state)
{
    char *body = malloc(BT_ADMIN_BODY_MAX + 2);

    start(NULL, false);
    memset(body, ' ', BT_ADMIN_BODY_MAX + 1);
    body[BT_ADMIN_BODY_MAX + 1] = '\0';
    client_close(&client);
    client_open(&client, port);
    /* Only as much as fits into the socket: the refusal comes from the head alone. */
    client_send(&client, "POST", "/workers", "", body);
    TURN_UNTIL(&loop, client_has_answer(&client));
    assert_int_equal(client_status(&client), 413);
    free(body);
}

/* The client leaves while the loops are asked: the gather is cancelled, and nothing is sent to nobody. */
static void test_a_client_that_leaves(void **state)
{
    bt_loop_t still; /* never turned, so it never answers */

    assert_int_equal(bt_loop_init(&still, 0), 0);
    rig.dispatchers[0]->loop = &still;
    start(NULL, false);
    client_send(&client, "GET", "/metrics", "", "");
    TURN_UNTIL(&loop, atomic_load(&still.mailbox) != NULL);
    client_close(&client);
    TURN_UNTIL(&loop, atomic_load(&loop.connections) == 0);
    bt_loop_fini(&still); /* the mail returns */
    turn(&loop, 5);
}

/* The same, but the admin itself closes. */
static void test_close_while_asking(void **state)
{
    bt_loop_t still;

    assert_int_equal(bt_loop_init(&still, 0), 0);
    rig.dispatchers[0]->loop = &still;
    start(NULL, false);
    client_send(&client, "GET", "/requests", "", "");
    TURN_UNTIL(&loop, atomic_load(&still.mailbox) != NULL);
    bt_admin_close(admin, on_closed, &closed);
    TURN_UNTIL(&loop, closed);
    bt_loop_fini(&still);
}

/* ---- rows that take many turns ---- */

static bool has_last_chunk(client_t *c)
{
    client_read(c);
    return c->len > 5 && memcmp(c->got + c->len - 5, "0\r\n\r\n", 5) == 0;
}

/* The body without its chunks' heads; the spec's to free. */
static char *unchunked(const client_t *c)
{
    const char *at = client_body(c);
    char *body = malloc(c->len), *to = body;

    assert_non_null(body);
    for (size_t n; (n = strtoul(at, NULL, 16)) != 0; at += n + 2, to += n) {
        at = strstr(at, "\r\n") + 2;
        memcpy(to, at, n);
    }
    *to = '\0';
    return body;
}

static void test_rows_of_many_turns(void **state)
{
    char *body;

    start(NULL, false);
    rig_set_many(&rig, 100);
    client_send(&client, "GET", "/metrics", "", "");
    TURN_UNTIL(&loop, has_last_chunk(&client));
    body = unchunked(&client);
    assert_true(prom_check(bt_str(body)) > 4000);
    free(body);
    free(client.got);
    client.got = NULL;
    client.len = 0;
    client_send(&client, "GET", "/workers", "", ""); /* the connection goes on */
    TURN_UNTIL(&loop, has_last_chunk(&client));
    body = unchunked(&client);
    assert_json(bt_str(body));
    assert_non_null(strstr(body, "\"total\":100}"));
    free(body);
}

/* 40 MB wait in no buffer: who does not read gets no more rows, and who leaves, none. */
static void test_rows_wait_for_their_reader(void **state)
{
    uint64_t before;

    start(NULL, false);
    rig_set_many(&rig, 10000);
    before = bt_mem_total_bytes();
    client_send(&client, "GET", "/metrics", "", "");
    TURN_UNTIL(&loop, bt_mem_total_bytes() > before + BT_PIECE_BYTES);
    for (unsigned i = 0; i < 2000; i++)
        uv_run(&loop.uv, UV_RUN_NOWAIT);
    assert_true(bt_mem_total_bytes() < before + ((size_t) 1 << 20));
    TURN_UNTIL(&loop, has_last_chunk(&client));
    assert_true(client.len > 20000000);
    client_close(&client);
    client_open(&client, port);
    client_send(&client, "GET", "/workers", "", "");
    TURN_UNTIL(&loop, (client_read(&client), client.len > 0));
    client_close(&client);
    TURN_UNTIL(&loop, atomic_load(&loop.connections) == 0);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, open_rig, close_rig)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_metrics_and_requests),
        CASE(test_a_room),
        CASE(test_workers_over_the_wire),
        CASE(test_the_key),
        CASE(test_beyond_loopback_without_a_key),
        CASE(test_pages_of_other_origins),
        CASE(test_a_large_body_is_refused),
        CASE(test_a_client_that_leaves),
        CASE(test_close_while_asking),
        CASE(test_rows_of_many_turns),
        CASE(test_rows_wait_for_their_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
