#include "admin/help.h"

static rig_t rig;

static int open_rig(void **state)
{
    rig_open(&rig, 1);
    return 0;
}

static int close_rig(void **state)
{
    rig_close(&rig);
    return 0;
}

static void test_plain_routes(void **state)
{
    assert_int_equal(ask(&rig, "GET", "/health", NULL), 200);
    assert_int_equal(ask(&rig, "HEAD", "/health", NULL), 200);
    assert_int_equal(ask(&rig, "GET", "/version", NULL), 200);
    assert_string_equal(said(&rig),
                        "{\"version\":\"1.2.3\",\"sandbox\":{\"mode\":\"off\",\"landlock\":\"off\","
                        "\"seccomp\":\"off\"}}\n");
    rig.config.sandbox = "auto"; /* in a kernel that has none: nothing was entered here */
    assert_int_equal(ask(&rig, "GET", "/version", NULL), 200);
    assert_said(&rig, "{\"mode\":\"auto\",\"landlock\":\"unavailable\",\"seccomp\":\"off\"}");
    assert_int_equal(ask(&rig, "GET", "/", NULL), 200);
    assert_said(&rig, "/workers/*/drain");
    assert_int_equal(ask(&rig, "GET", "/metrics", NULL), 200);
    assert_int_equal(rig.state, BT_WANTS_METRICS);
    assert_int_equal(ask(&rig, "GET", "/requests", NULL), 200);
    assert_int_equal(rig.state, BT_WANTS_REQUESTS);
}

static void test_admin_prefix(void **state)
{
    assert_int_equal(ask(&rig, "GET", "/admin/health", NULL), 200);
    assert_int_equal(ask(&rig, "GET", "/admin", NULL), 200);
    assert_int_equal(ask(&rig, "GET", "/admin/", NULL), 200);
    assert_int_equal(ask(&rig, "GET", "/admin/metrics", NULL), 200);
    assert_int_equal(rig.state, BT_WANTS_METRICS);
    assert_int_equal(ask(&rig, "GET", "/administer", NULL), 404);
    assert_int_equal(ask(&rig, "GET", "/admin/admin/health", NULL), 404);
}

static void test_unknown_and_wrong_method(void **state)
{
    assert_int_equal(ask(&rig, "GET", "/flush_cache", NULL), 404);
    assert_json(bt_text_str(&rig.reply.body));
    assert_int_equal(ask(&rig, "DELETE", "/workers", NULL), 405);
    assert_string_equal(rig.reply.allow, "GET, HEAD, POST");
    assert_int_equal(ask(&rig, "PUT", "/workers/p0", NULL), 405);
    assert_string_equal(rig.reply.allow, "GET, HEAD, DELETE");
    assert_int_equal(ask(&rig, "GET", "/add_worker?url=http://h:1", NULL), 405);
    assert_string_equal(rig.reply.allow, "POST");
    assert_int_equal(ask(&rig, "POST", "/metrics", NULL), 405);
    assert_int_equal(ask(&rig, "GET", "/workers/", NULL), 404);
    assert_int_equal(ask(&rig, "POST", "/workers//drain", NULL), 405); /* nobody is named "" */
    assert_int_equal(ask(&rig, "GET", "/workers/%zz", NULL), 400);
}

static void test_without_the_key(void **state)
{
    const bt_admin_request_t stranger = {.authorized = false};

    assert_int_equal(ask_as(&rig, stranger, "GET", "/metrics", NULL), 200);
    assert_int_equal(ask_as(&rig, stranger, "GET", "/admin/health", NULL), 200);
    static const char *const closed[] = {"/",         "/workers",   "/workers/p0",   "/requests",
                                         "/version",  "/readiness", "/list_workers", "/nonsense",
                                         "/metrics/x"};
    for (unsigned i = 0; i < sizeof closed / sizeof closed[0]; i++)
        assert_int_equal(ask_as(&rig, stranger, "GET", closed[i], NULL), 401);
    assert_int_equal(ask_as(&rig, stranger, "POST", "/add_worker?url=http://h:1", NULL), 401);
    assert_int_equal(bt_registry_current(rig.registry)->pools[0].all.count, 0);
}

static void test_metrics_only(void **state)
{
    rig.config.metrics_only = true;
    assert_int_equal(ask(&rig, "GET", "/metrics", NULL), 200);
    assert_int_equal(ask(&rig, "GET", "/health", NULL), 200);
    assert_int_equal(ask(&rig, "GET", "/workers", NULL), 403);
    assert_said(&rig, "--admin-api-key");
    assert_int_equal(ask(&rig, "POST", "/add_worker?url=http://h:1", NULL), 403);
}

static void test_what_a_page_may_have_sent(void **state)
{
    const bt_admin_request_t page = {
        .authorized = true, .refusal = "a page", .refusal_status = 415};

    assert_int_equal(ask_as(&rig, page, "POST", "/add_worker?url=http://h:1", NULL), 415);
    assert_said(&rig, "a page");
    assert_int_equal(ask_as(&rig, page, "GET", "/workers", NULL), 415);
    assert_int_equal(ask_as(&rig, page, "GET", "/metrics", NULL), 200);
}

static void test_the_client_port_has_worker_routes_only(void **state)
{
    const bt_admin_request_t client = {.authorized = true, .workers_only = true};

    rig.config.metrics_only = true; /* says something about the other listener */
    assert_int_equal(ask_as(&rig, client, "GET", "/workers", NULL), 200);
    assert_int_equal(ask_as(&rig, client, "GET", "/list_workers", NULL), 200);
    assert_int_equal(ask_as(&rig, client, "GET", "/requests", NULL), 404);
    assert_int_equal(ask_as(&rig, client, "GET", "/version", NULL), 404);
    assert_int_equal(ask_as(&rig, client, "GET", "/", NULL), 404);
    assert_int_equal(ask_as(&rig, client, "GET", "/admin/workers", NULL), 404);
}

static void test_readiness(void **state)
{
    assert_int_equal(ask(&rig, "GET", "/readiness", NULL), 503);
    assert_said(&rig, "has no worker");
    set_up(rig_add(&rig, BT_ROLE_HYBRID, "w0", "http://127.0.0.1:1", NULL));
    assert_int_equal(ask(&rig, "GET", "/readiness", NULL), 200);
    assert_json(bt_text_str(&rig.reply.body));
    atomic_store(&rig.shared.draining, true);
    assert_int_equal(ask(&rig, "GET", "/readiness", NULL), 503);
}

static void test_cancel(void **state)
{
    rig.shared.dispatcher_count = 0; /* no loop runs here */
    assert_int_equal(ask(&rig, "DELETE", "/requests/ab%22c", NULL), 202);
    assert_string_equal(said(&rig), "{\"status\":\"cancelling\",\"request\":\"ab\\\"c\"}\n");
    assert_int_equal(ask(&rig, "POST", "/requests/x/cancel", NULL), 202);
    assert_int_equal(ask(&rig, "GET", "/requests/x", NULL), 405);
    rig.shared.dispatcher_count = 1;
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, open_rig, close_rig)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_plain_routes),
        CASE(test_admin_prefix),
        CASE(test_unknown_and_wrong_method),
        CASE(test_without_the_key),
        CASE(test_metrics_only),
        CASE(test_what_a_page_may_have_sent),
        CASE(test_the_client_port_has_worker_routes_only),
        CASE(test_readiness),
        CASE(test_cancel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
