#include "admin/help.h"

#include "admin/ui/ui_state.h"

#include <stdio.h>

#define MANY 1000

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

static void write_section(enum bt_ui_section section, bt_text_t *out)
{
    const bt_loop_facts_t facts[2] = {{.answered = true}, {.answered = false}};

    bt_text_init(out);
    bt_ui_write(section, &rig.config, facts, 2, out);
    assert_json(bt_text_str(out));
    assert_null(memchr(out->data, '\n', out->len)); /* it is one line of an event */
}

static void test_nobody(void **state)
{
    bt_text_t text;

    write_section(BT_UI_NOW, &text);
    assert_non_null(strstr(text.data, "\"late_loops\":1"));
    assert_non_null(strstr(text.data, "\"has\":{\"fleet\":false,\"rooms\":false}"));
    bt_text_fini(&text);
    write_section(BT_UI_WORKER_ROWS, &text);
    assert_string_equal(text.data, "{\"total\":0,\"troubled\":0,\"rows\":[]}");
    bt_text_fini(&text);
    write_section(BT_UI_REQUEST_ROWS, &text);
    assert_string_equal(text.data, "{\"total\":0,\"rows\":[]}");
    bt_text_fini(&text);
}

static void test_a_worker(void **state)
{
    bt_worker_t *w = rig_add(&rig, BT_ROLE_PREFILL, "p0", "http://h:1", "NixlConnector");
    bt_text_t text;

    bt_worker_set_health(w, BT_HEALTH_UP, "spec");
    write_section(BT_UI_WORKER_ROWS, &text);
    assert_non_null(strstr(text.data, "\"name\":\"p0\",\"pool\":\"default\",\"role\":\"prefill\""));
    assert_non_null(strstr(text.data, "\"troubled\":0"));
    bt_text_fini(&text);
    atomic_store(&w->draining, true);
    write_section(BT_UI_WORKER_ROWS, &text);
    assert_non_null(strstr(text.data, "\"why_not\":\"draining\""));
    assert_non_null(strstr(text.data, "\"troubled\":1"));
    bt_text_fini(&text);
}

/* However many there are, those in trouble are there, and some of each of the others. */
static void test_too_many(void **state)
{
    char name[32], url[48];
    bt_text_t text;

    for (unsigned i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "%c%u", i < MANY / 2 ? 'p' : 'd', i);
        snprintf(url, sizeof url, "http://h:%u", i + 1);
        bt_worker_t *w = rig_add(&rig, i < MANY / 2 ? BT_ROLE_PREFILL : BT_ROLE_DECODE, name, url,
                                 "NixlConnector");
        bt_worker_set_health(w, i % 100 == 7 ? BT_HEALTH_DOWN : BT_HEALTH_UP, "spec");
    }
    write_section(BT_UI_WORKER_ROWS, &text);
    assert_non_null(strstr(text.data, "{\"total\":1000,\"troubled\":10,"));
    const unsigned rows = count_of(&text, "{\"id\":");
    assert_true(rows <= BT_UI_WORKERS && rows > BT_UI_WORKERS / 2);
    assert_int_equal(count_of(&text, "\"health\":\"down\""), 10);
    assert_true(count_of(&text, "\"role\":\"prefill\"") > BT_UI_WORKERS / 4);
    assert_true(count_of(&text, "\"role\":\"decode\"") > BT_UI_WORKERS / 4);
    bt_text_fini(&text);
    for (unsigned i = 0; i < MANY; i++) { /* now all are */
        snprintf(name, sizeof name, "%c%u", i < MANY / 2 ? 'p' : 'd', i);
        bt_worker_set_health(bt_workers_find(bt_registry_current(rig.registry), bt_str(name)),
                             BT_HEALTH_DOWN, "spec");
    }
    write_section(BT_UI_WORKER_ROWS, &text);
    assert_int_equal(count_of(&text, "{\"id\":"), BT_UI_WORKERS / 2);
    bt_text_fini(&text);
    write_section(BT_UI_NOW, &text);
    assert_non_null(strstr(text.data, "\"prefill\":{\"total\":500,\"usable\":0,"));
    bt_text_fini(&text);
}

/* A turn of the page's stream: bounded rows and bytes, and it says how many there are. */
static void test_10000_workers_and_100000_requests(void **state)
{
    bt_text_t text;

    rig_set_many(&rig, 10000);
    atomic_store(&rig.shared.concurrent, 100000);
    write_section(BT_UI_NOW, &text);
    assert_non_null(strstr(text.data, "\"live\":100000,"));
    assert_non_null(strstr(text.data, "\"decode\":{\"total\":5000,"));
    assert_true(text.len < 8192);
    bt_text_fini(&text);
    write_section(BT_UI_WORKER_ROWS, &text);
    assert_non_null(strstr(text.data, "{\"total\":10000,"));
    assert_true(count_of(&text, "{\"id\":") <= BT_UI_WORKERS);
    assert_true(text.len < BT_UI_WORKERS * 512);
    bt_text_fini(&text);
    write_section(BT_UI_REQUEST_ROWS, &text);
    assert_string_equal(text.data, "{\"total\":100000,\"rows\":[]}");
    bt_text_fini(&text);
    assert_int_equal(bt_ui_ask(&rig.shared).limit, BT_UI_REQUESTS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nobody, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(test_a_worker, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(test_too_many, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(test_10000_workers_and_100000_requests, open_rig,
                                        close_rig),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
