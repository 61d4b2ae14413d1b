/* The request loop runs on a thread of its own; the control loop is turned by the spec, so the spec decides when mail is
 * opened. */
#include "admin/client.h"

#include "admin/admin.h"
#include "base/pages.h"

static rig_t rig;
static bt_loop_t control;
static bt_admin_t *admin;
static bt_server_t *server;
static pthread_t thread;
static client_t client;
static unsigned port;
static bool admin_closed;
static _Atomic unsigned requests, gones, servers_closed;

static void on_request(bt_exchange_t *x)
{
    x->user = NULL;
    bt_admin_worker_paths(admin, x, NULL);
    atomic_fetch_add(&requests, 1);
}

static void on_gone(bt_exchange_t *x)
{
    struct bt_handler *h = x->user;

    h->gone(h);
    atomic_fetch_add(&gones, 1);
}

static const bt_server_ops_t ops = {.on_request = on_request, .on_gone = on_gone};

static void on_accept(bt_loop_t *loop, int fd, void *user)
{
    (void) loop;
    (void) user;
    bt_server_accept(server, fd, NULL);
}

static bt_listener_t *listener;

static void *run(void *arg)
{
    bt_loop_run(arg);
    bt_pages_thread_fini();
    return NULL;
}

static void on_server_closed(void *arg)
{
    atomic_fetch_add(&servers_closed, 1);
    bt_loop_stop(arg);
}

static void end_server(bt_loop_t *loop, bt_mail_t *envelope)
{
    (void) envelope;
    bt_listener_close(listener);
    bt_server_close(server, on_server_closed, loop);
}

static void on_admin_closed(void *arg)
{
    *(bool *) arg = true;
}

static int open_rig(void **state)
{
    rig_open(&rig, 1);
    assert_int_equal(bt_loop_init(&control, BT_LOOP_CONTROL), 0);
    assert_int_equal(bt_loop_init(&rig.loops[0], 0), 0);
    assert_int_equal(bt_admin_new(&admin, &control, &rig.config), 0);
    assert_int_equal(bt_server_new(&server, &rig.loops[0], &ops, NULL, rig.dispatchers[0]), 0);
    int fd = bt_listener_bind("127.0.0.1", 0, false, &port);
    assert_true(fd >= 0);
    assert_int_equal(bt_listener_start(&listener, &rig.loops[0], fd, NULL, on_accept, NULL), 0);
    requests = gones = servers_closed = 0;
    admin_closed = false;
    assert_int_equal(pthread_create(&thread, NULL, run, &rig.loops[0]), 0);
    client_open(&client, port);
    return 0;
}

static int close_rig(void **state)
{
    static bt_mail_t end;

    client_close(&client);
    bt_loop_post(&rig.loops[0], &end, end_server);
    pthread_join(thread, NULL);
    assert_int_equal(servers_closed, 1);
    bt_loop_fini(&rig.loops[0]);
    assert_int_equal(rig.dispatchers[0]->background_count, 0);
    if (!admin_closed)
        bt_admin_close(admin, on_admin_closed, &admin_closed);
    TURN_UNTIL(&control, admin_closed);
    bt_loop_fini(&control);
    rig_close(&rig);
    return 0;
}

static unsigned call(const char *method, const char *target, const char *headers, const char *body)
{
    client_close(&client);
    client_open(&client, port);
    client_send(&client, method, target, headers, body);
    TURN_UNTIL(&control, client_has_answer(&client));
    return client_status(&client);
}

static void test_answers_come_back(void **state)
{
    assert_int_equal(
        call("POST", "/add_worker?url=http%3A%2F%2F127.0.0.1%3A9&worker_type=decode", "", ""), 200);
    assert_string_equal(client_body(&client), "Successfully added worker: http://127.0.0.1:9\n");
    assert_int_equal(call("GET", "/list_workers", "", ""), 200);
    assert_string_equal(client_body(&client), "{\"urls\":[\"http://127.0.0.1:9\"]}\n");
    assert_int_equal(call("POST", "/workers", "", "{\"url\":\"http://127.0.0.1:10\"}"), 201);
    assert_int_equal(call("GET", "/workers/w0", "", ""), 200);
    assert_int_equal(call("GET", "/metrics", "", ""), 404);
    assert_int_equal(
        call("POST", "/add_worker?url=http://127.0.0.1:2", "Origin: http://evil.example\r\n", ""),
        403);
}

static void test_a_client_that_leaves(void **state)
{
    client_send(&client, "POST", "/add_worker?url=http://127.0.0.1:9", "", "");
    while (atomic_load(&requests) == 0)
        usleep(100);
    client_close(&client);
    while (atomic_load(&gones) == 0)
        usleep(100);
    assert_int_equal(bt_registry_current(rig.registry)->pools[0].all.count,
                     0); /* the mail lies unopened */
    TURN_UNTIL(&control, bt_registry_current(rig.registry)->pools[0].all.count == 1);
    assert_int_equal(call("GET", "/list_workers", "", ""), 200);
}

static void test_a_closing_admin(void **state)
{
    client_send(&client, "POST", "/add_worker?url=http://127.0.0.1:9", "", "");
    while (atomic_load(&requests) == 0)
        usleep(100);
    bt_admin_close(admin, on_admin_closed, &admin_closed);
    assert_false(admin_closed); /* mail still names it */
    TURN_UNTIL(&control, client_has_answer(&client));
    assert_int_equal(client_status(&client), 503);
    assert_true(admin_closed);
    assert_int_equal(bt_registry_current(rig.registry)->pools[0].all.count, 0);
}

static void test_a_large_body_is_refused(void **state)
{
    char *body = malloc(BT_ADMIN_BODY_MAX + 2);

    memset(body, ' ', BT_ADMIN_BODY_MAX + 1);
    body[BT_ADMIN_BODY_MAX + 1] = '\0';
    client_close(&client);
    client_open(&client, port);
    assert_int_equal(fcntl(client.fd, F_SETFL, 0), 0); /* the server reads on another thread */
    client_send(&client, "POST", "/workers", "", body);
    TURN_UNTIL(&control, client_has_answer(&client));
    assert_int_equal(client_status(&client), 413);
    free(body);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, open_rig, close_rig)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_answers_come_back),
        CASE(test_a_client_that_leaves),
        CASE(test_a_closing_admin),
        CASE(test_a_large_body_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
