/* Engine ids as a bootstrap server tells them: read, changed, refused, forgotten. */
#include "cluster/engine_ids.h"

#include "cluster/changes.h"
#include "help.h"

static bt_worker_t *prefill(void)
{
    bt_worker_spec_t spec = {.url = (char *) "http://127.0.0.1:1",
                             .role = BT_ROLE_PREFILL,
                             .connector = (char *) "MooncakeConnector",
                             .bootstrap_port = 8998,
                             .dp_rank = -1};
    bt_breaker_config_t breaker;
    bt_worker_t *w;
    char err[200];

    bt_breaker_config_defaults(&breaker);
    assert_int_equal(bt_worker_new(&w, &spec, 1, 0, &breaker, err, sizeof err), 0);
    bt_worker_set_health(w, BT_HEALTH_UP, "test");
    return w;
}

static void are_read_by_rank(void **state)
{
    bt_worker_t *w = prefill();
    char id[BT_ENGINE_ID_MAX];

    assert_true(w->asks_bootstrap);
    assert_string_equal(bt_worker_why_not(w, 1), "no_engine_id");
    assert_false(bt_engine_ids_get(w, 0, id, sizeof id));
    assert_int_equal(
        bt_engine_ids_read(w, BT_STR("{\"1\":{\"engine_id\":\"b\\u0021\"},\"0\":{\"worker_"
                                     "addr\":{},\"engine_id\":\"a\"}}")),
        0);
    assert_null(bt_worker_why_not(w, 1));
    assert_true(bt_engine_ids_get(w, 0, id, sizeof id));
    assert_string_equal(id, "a");
    assert_true(bt_engine_ids_get(w, 1, id, sizeof id));
    assert_string_equal(id, "b!");
    assert_false(bt_engine_ids_get(w, 2, id, sizeof id));
    bt_worker_unref(w);
}

static void keep_their_version_until_they_change(void **state)
{
    bt_worker_t *w = prefill();
    char id[BT_ENGINE_ID_MAX];
    unsigned first;

    assert_int_equal(bt_engine_ids_read(w, BT_STR("{\"0\":{\"engine_id\":\"a\"}}")), 0);
    first = w->engine_ids_version;
    assert_int_equal(bt_engine_ids_read(w, BT_STR("{\"0\":{\"engine_id\":\"a\"}}")), 0);
    assert_int_equal(w->engine_ids_version, first);
    assert_int_equal(
        bt_engine_ids_read(w, BT_STR("{\"0\":{\"engine_id\":\"a\"},\"1\":{\"engine_id\":\"b\"}}")),
        0);
    assert_int_equal(w->engine_ids_version, first); /* one more rank is up: nobody was told of it */
    assert_int_equal(bt_engine_ids_read(w, BT_STR("{\"0\":{\"engine_id\":\"a\"}}")), 0);
    assert_int_equal(w->engine_ids_version, first + 1); /* it is gone */
    assert_int_equal(bt_engine_ids_read(w, BT_STR("{\"0\":{\"engine_id\":\"c\"}}")), 0);
    assert_int_equal(w->engine_ids_version, first + 2);
    assert_int_equal(w->warm.life, 2); /* what it had set up with partners is gone, too */
    assert_true(bt_engine_ids_get(w, 0, id, sizeof id));
    assert_string_equal(id, "c");
    bt_worker_unref(w);
}

static void what_names_no_id_changes_nothing(void **state)
{
    static const char *const bad[] = {"",
                                      "[]",
                                      "{}",
                                      "{\"0\":{}}",
                                      "{\"0\":\"a\"}",
                                      "{\"x\":{\"engine_id\":\"a\"}}",
                                      "{\"1024\":{\"engine_id\":\"a\"}}",
                                      "{\"0\":{\"engine_id\":\"\"}}",
                                      "{\"0\":{\"engine_id\":7}}",
                                      "{\"0\":{\"engine_id\":\"a\"},",
                                      "{\"detail\":\"Not Found\"}"};
    bt_worker_t *w = prefill();
    char id[BT_ENGINE_ID_MAX];

    assert_int_equal(bt_engine_ids_read(w, BT_STR("{\"0\":{\"engine_id\":\"kept\"}}")), 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (bt_engine_ids_read(w, bt_str(bad[i])) >= 0)
            fail_msg("%s was taken", bad[i]);
    assert_true(bt_engine_ids_get(w, 0, id, sizeof id));
    assert_string_equal(id, "kept");
    bt_worker_unref(w);
}

static void doubted_ones_are_asked_for_and_serve_till_then(void **state)
{
    bt_breaker_group_t *group = bt_breaker_group_new();
    bt_worker_t *w = prefill();
    char id[BT_ENGINE_ID_MAX];
    uint64_t changes = bt_workers_changes();

    bt_breaker_join(&w->breaker, group);
    bt_worker_note_service(w);
    assert_int_equal(atomic_load(&group->usable), 0);
    assert_int_equal(bt_engine_ids_read(w, BT_STR("{\"0\":{\"engine_id\":\"a\"}}")), 0);
    assert_true(bt_workers_changes() > changes); /* it is usable now */
    assert_int_equal(atomic_load(&group->usable), 1);
    assert_false(w->query_soon);
    bt_engine_ids_doubt(w);
    assert_true(w->query_soon);
    assert_true(bt_engine_ids_get(w, 0, id, sizeof id));
    assert_true(bt_worker_usable(w, 1));
    bt_worker_unref(w);
    bt_breaker_group_unref(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(are_read_by_rank),
        cmocka_unit_test(keep_their_version_until_they_change),
        cmocka_unit_test(what_names_no_id_changes_nothing),
        cmocka_unit_test(doubted_ones_are_asked_for_and_serve_till_then),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
