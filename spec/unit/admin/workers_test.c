#include "admin/help.h"

#include <stdio.h>

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

static unsigned count_workers(void)
{
    const bt_workers_t *f = bt_registry_current(rig.registry);
    return f->pools[0].all.count + f->pools[1].all.count;
}

static void test_add_and_list(void **state)
{
    bt_json_item_t item;

    assert_int_equal(ask(&rig, "GET", "/workers", NULL), 200);
    assert_string_equal(said(&rig), "{\"workers\":[\n],\"total\":0}\n");
    assert_int_equal(ask(&rig, "POST", "/workers",
                         "{\"url\":\"http://127.0.0.1:8000\",\"role\":\"prefill\","
                         "\"connector\":\"NixlConnector\",\"api_key\":\"sesame\"}"),
                     201);
    assert_json(bt_text_str(&rig.reply.body));
    assert_said(&rig, "\"name\":\"p0\"");
    assert_said(&rig, "\"dialect\":\"nixl\"");
    assert_int_equal(ask(&rig, "POST", "/workers",
                         "{\"url\":\"http://127.0.0.1:8001\",\"role\":\"decode\","
                         "\"connector\":\"NixlConnector\",\"pool\":\"other\"}"),
                     201);
    assert_int_equal(ask(&rig, "GET", "/workers", NULL), 200);
    assert_json(bt_text_str(&rig.reply.body));
    assert_int_equal(bt_json_path(bt_text_str(&rig.reply.body), &item, "total", NULL), 0);
    assert_true(bt_str_eq(item.value, BT_STR("2")));
    assert_said(&rig, "\"pool\":\"other\"");
    assert_said(&rig, "\"has_api_key\":true");
    assert_null(strstr(said(&rig), "sesame"));
}

static void test_add_conflicts_and_refusals(void **state)
{
    rig_add(&rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:8000", "NixlConnector");
    assert_int_equal(ask(&rig, "POST", "/workers", "{\"url\":\"127.0.0.1:8000/\"}"), 409);
    assert_int_equal(
        ask(&rig, "POST", "/workers", "{\"url\":\"http://127.0.0.1:9\",\"name\":\"p0\"}"), 409);
    assert_int_equal(ask(&rig, "POST", "/workers", "{\"url\":\"ftp://h:1\"}"), 400);
    assert_int_equal(ask(&rig, "POST", "/workers", "{\"url\":\"http://h:1\",\"pool\":\"nowhere\"}"),
                     400);
    assert_said(&rig, "nowhere");
    assert_int_equal(ask(&rig, "POST", "/workers", "{\"url\":\"http://h:1\",\"conector\":\"x\"}"),
                     400);
    assert_said(&rig, "did you mean \\\"connector\\\"?");
    assert_json(bt_text_str(&rig.reply.body));
    assert_int_equal(count_workers(), 1);
    /* the same url in another pool is another worker */
    assert_int_equal(
        ask(&rig, "POST", "/workers", "{\"url\":\"http://127.0.0.1:8000\",\"pool\":\"other\"}"),
        201);
}

static int complete(void *user, const char *pool, bt_worker_spec_t *spec, char *err,
                    size_t err_size)
{
    (void) pool;
    if (strcmp(spec->url, "http://no:1") == 0) {
        snprintf(err, err_size, "%s", (const char *) user);
        return BT_E_CONFIG;
    }
    if (spec->connector == NULL)
        spec->connector = text("sglang");
    return 0;
}

static void test_add_takes_the_pools_defaults(void **state)
{
    rig.config.complete = complete;
    rig.config.complete_user = (void *) (uintptr_t) "not this one";
    assert_int_equal(
        ask(&rig, "POST", "/workers", "{\"url\":\"http://127.0.0.1:1\",\"role\":\"prefill\"}"),
        201);
    assert_said(&rig, "\"dialect\":\"sglang\"");
    assert_int_equal(ask(&rig, "POST", "/workers", "{\"url\":\"http://no:1\"}"), 400);
    assert_said(&rig, "not this one");
}

static void test_show_by_name_and_url(void **state)
{
    bt_worker_t *p, *d;

    p = rig_add(&rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:8000", "NixlConnector");
    d = rig_add(&rig, BT_ROLE_DECODE, "d0", "http://127.0.0.1:8001", "NixlConnector");
    rig_add(&rig, BT_ROLE_DECODE, "d1", "http://127.0.0.1:8002", "sglang");
    set_up(p);
    atomic_store(&bt_worker_total(d, BT_PHASE_DECODE)->tokens, 77);
    atomic_store(&d->load.kv_used_ppm, 250000);
    atomic_store(&d->load.running, 3);
    atomic_store(&d->load.at_ms, bt_clock_ms());
    atomic_store(&d->legs_total[1][1], 5);
    assert_int_equal(ask(&rig, "GET", "/workers/p0", NULL), 200);
    assert_json(bt_text_str(&rig.reply.body));
    assert_said(&rig, "\"health\":\"up\"");
    assert_said(&rig, "\"why_not\":null");
    assert_said(&rig, "\"load\":null");
    assert_said(&rig, "\"address\":\"127.0.0.1:8000\"");
    assert_said(&rig, "{\"with\":\"d0\",\"refusal\":null,\"rests_ms\":0}");
    assert_said(&rig, "{\"with\":\"d1\",\"refusal\":\"no common dialect\",\"rests_ms\":0}");
    assert_int_equal(ask(&rig, "GET", "/workers/http%3A%2F%2F127.0.0.1%3A8001", NULL), 200);
    assert_json(bt_text_str(&rig.reply.body));
    assert_said(&rig, "\"name\":\"d0\"");
    assert_said(&rig, "\"why_not\":\"starting\"");
    assert_said(&rig, "\"decode\":{\"tokens\":77,\"requests\":0}");
    assert_said(&rig, "\"kv_usage\":0.250000");
    assert_said(&rig, "\"running\":3");
    assert_said(&rig, "\"decode\":{\"ok\":0,\"guilty\":5,\"innocent\":0,\"cancelled\":0}");
    assert_int_equal(ask(&rig, "GET", "/workers/http://127.0.0.1:8002", NULL), 200);
    assert_said(&rig, "\"name\":\"d1\"");
    assert_int_equal(ask(&rig, "GET", "/workers/nobody", NULL), 404);
}

/* Connector names come from configuration files as they are; worker names are checked where a worker is made. */
static void test_hostile_texts_stay_json(void **state)
{
    rig_add(&rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:8000", "a\"b\\c\n\xff");
    assert_int_equal(ask(&rig, "GET", "/workers", NULL), 200);
    assert_json(bt_text_str(&rig.reply.body));
    assert_int_equal(ask(&rig, "GET", "/workers/p0", NULL), 200);
    assert_json(bt_text_str(&rig.reply.body));
    assert_int_equal(ask(&rig, "GET", "/workers/%22%0a%ff", NULL), 404);
    assert_json(bt_text_str(&rig.reply.body));
}

static void test_drain_and_remove(void **state)
{
    bt_worker_t *w;

    w = rig_add(&rig, BT_ROLE_HYBRID, "w0", "http://127.0.0.1:8000", NULL);
    assert_int_equal(ask(&rig, "POST", "/workers/w0/drain", NULL), 200);
    assert_string_equal(said(&rig), "{\"status\":\"draining\",\"worker\":\"w0\"}\n");
    assert_true(atomic_load(&w->draining));
    assert_int_equal(ask(&rig, "POST", "/workers/http%3a%2f%2f127.0.0.1%3a8000/undrain", NULL),
                     200);
    assert_false(atomic_load(&w->draining));
    assert_int_equal(ask(&rig, "POST", "/workers/nobody/drain", NULL), 404);
    assert_int_equal(ask(&rig, "DELETE", "/workers/nobody", NULL), 404);
    assert_int_equal(ask(&rig, "DELETE", "/workers/w0", NULL), 200);
    assert_string_equal(said(&rig), "{\"status\":\"removed\",\"worker\":\"w0\"}\n");
    assert_int_equal(count_workers(), 0);
}

/* A url may stand in several pools; DELETE takes all of them too. */
static void test_drains_all_that_the_key_names(void **state)
{
    const bt_workers_t *workers;

    assert_int_equal(
        ask(&rig, "POST", "/workers", "{\"url\":\"http://127.0.0.1:8000\",\"name\":\"w0\"}"), 201);
    assert_int_equal(
        ask(&rig, "POST", "/workers", "{\"url\":\"http://127.0.0.1:8000\",\"pool\":\"other\"}"),
        201);
    assert_int_equal(ask(&rig, "POST", "/workers", "{\"url\":\"http://127.0.0.1:8001\"}"), 201);
    workers = bt_registry_current(rig.registry);
    const bt_worker_t *w0 = workers->pools[0].all.items[0], *w1 = workers->pools[0].all.items[1];
    const bt_worker_t *twin = workers->pools[1].all.items[0];
    assert_int_equal(ask(&rig, "POST", "/workers/w0/drain", NULL), 200);
    assert_true(atomic_load(&w0->draining) && !atomic_load(&twin->draining));
    assert_int_equal(ask(&rig, "POST", "/workers/w0/undrain", NULL), 200);
    assert_int_equal(ask(&rig, "POST", "/workers/http%3a%2f%2f127.0.0.1%3a8000/drain", NULL), 200);
    assert_true(atomic_load(&w0->draining) && atomic_load(&twin->draining));
    assert_false(atomic_load(&w1->draining));
}

static void test_routes_of_other_routers(void **state)
{
    const bt_worker_t *w;

    assert_int_equal(
        ask(&rig, "POST",
            "/add_worker?url=http://127.0.0.1:8000&worker_type=prefill&bootstrap_port=8998"
            "&connector=sglang",
            NULL),
        200);
    assert_string_equal(said(&rig), "Successfully added worker: http://127.0.0.1:8000\n");
    w = bt_workers_find(bt_registry_current(rig.registry), BT_STR("http://127.0.0.1:8000"));
    assert_non_null(w);
    assert_int_equal(w->spec.bootstrap_port, 8998);
    assert_int_equal(w->spec.role, BT_ROLE_PREFILL);
    assert_int_equal(ask(&rig, "POST", "/add_worker?url=http%3A%2F%2F127.0.0.1%3A8000", NULL), 409);
    assert_int_equal(ask(&rig, "POST", "/add_worker", NULL), 400);
    assert_int_equal(ask(&rig, "POST", "/add_worker?url=http%3A%2F%2F127.0.0.1%3A8001", NULL), 200);
    assert_int_equal(ask(&rig, "GET", "/list_workers", NULL), 200);
    assert_string_equal(said(&rig),
                        "{\"urls\":[\"http://127.0.0.1:8000\",\"http://127.0.0.1:8001\"]}\n");
    assert_int_equal(ask(&rig, "POST", "/remove_worker?url=http://127.0.0.1:8000", NULL), 200);
    assert_string_equal(said(&rig), "Successfully removed worker: http://127.0.0.1:8000\n");
    assert_int_equal(ask(&rig, "POST", "/remove_worker?url=http://127.0.0.1:8000", NULL), 404);
    assert_int_equal(ask(&rig, "POST", "/remove_worker?nothing", NULL), 400);
    assert_int_equal(ask(&rig, "POST", "/remove_worker?url=%zz", NULL), 400);
    assert_int_equal(ask(&rig, "GET", "/list_workers", NULL), 200);
    assert_string_equal(said(&rig), "{\"urls\":[\"http://127.0.0.1:8001\"]}\n");
}

#define MANY 10000

/* Nor does the control loop stand still for a list of them. */
static void list_many(const char *path, const char *part)
{
    const bt_admin_request_t request = {.method = BT_GET, .authorized = true, .path = bt_str(path)};
    bt_text_t *body = &rig.reply.body;
    size_t before = 0;

    bt_reply_fini(&rig.reply);
    bt_reply_init(&rig.reply);
    assert_int_equal(bt_routes_answer(&rig.config, &request, &rig.reply), BT_ANSWERED);
    for (bool is_whole = false; !is_whole; before = body->len) {
        is_whole = bt_reply_go_on(&rig.reply);
        assert_true(body->len - before < BT_PIECE_BYTES + 8192);
    }
    assert_json(bt_text_str(body));
    assert_int_equal(count_of(body, part), MANY);
}

static void test_lists_of_many(void **state)
{
    rig_set_many(&rig, MANY);
    list_many("/workers", "{\"id\":");
    assert_said(&rig, "\n],\"total\":10000}\n");
    list_many("/list_workers", "\"http://");
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, open_rig, close_rig)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_add_and_list),
        CASE(test_add_conflicts_and_refusals),
        CASE(test_add_takes_the_pools_defaults),
        CASE(test_show_by_name_and_url),
        CASE(test_hostile_texts_stay_json),
        CASE(test_drain_and_remove),
        CASE(test_drains_all_that_the_key_names),
        CASE(test_routes_of_other_routers),
        CASE(test_lists_of_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
