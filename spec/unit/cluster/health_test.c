#include <uv.h>

#include "cluster/checks/health.h"

#include "help.h"

static bt_worker_t *w;
static bt_health_track_t track;
static const bt_health_rules_t rules = {.interval_ms = 5000, .failures = 3, .successes = 2};

static int setup(void **state)
{
    w = quick_worker(BT_ROLE_DECODE, "http://127.0.0.1:1", "nixl");
    track = (bt_health_track_t){0};
    return 0;
}

static int teardown(void **state)
{
    bt_worker_unref(w);
    return 0;
}

static enum bt_health count(enum bt_verdict verdict)
{
    bt_health_count(&track, w, verdict, "test", 100000, 100010, &rules);
    return (enum bt_health) atomic_load(&w->health);
}

static void what_an_answer_means(void **state)
{
    static const struct {
        enum bt_engine engine;
        int rc;
        unsigned status;
        const char *body;
        enum bt_verdict verdict;
    } rows[] = {
        {BT_ENGINE_VLLM, 0, 200, "", BT_VERDICT_OK},
        {BT_ENGINE_VLLM, 0, 204, "", BT_VERDICT_OK},
        {BT_ENGINE_VLLM, 0, 503, "", BT_VERDICT_DEAD},
        {BT_ENGINE_VLLM, 0, 503, "{\"error\":\"The model is currently scaling.\"}",
         BT_VERDICT_SCALING},
        {BT_ENGINE_VLLM, 0, 500, "EngineCore encountered an issue. See stack trace",
         BT_VERDICT_DEAD},
        {BT_ENGINE_VLLM, 0, 500, "Internal Server Error", BT_VERDICT_FAIL},
        {BT_ENGINE_VLLM, 0, 404, "", BT_VERDICT_FAIL},
        {BT_ENGINE_VLLM, 0, 401, "engine dead", BT_VERDICT_FAIL},
        {BT_ENGINE_SGLANG, 0, 503, "", BT_VERDICT_FAIL},
        {BT_ENGINE_UNKNOWN, 0, 503, "Service Unavailable", BT_VERDICT_FAIL},
        {BT_ENGINE_UNKNOWN, 0, 503, "vllm EngineDeadError: gone", BT_VERDICT_DEAD},
        {BT_ENGINE_SGLANG, 0, 503, "Engine Dead", BT_VERDICT_DEAD},
        {BT_ENGINE_VLLM, BT_E_CONNECT, 0, "", BT_VERDICT_REFUSED},
        {BT_ENGINE_VLLM, BT_E_CONNECT_TIMEOUT, 0, "", BT_VERDICT_FAIL},
        {BT_ENGINE_VLLM, BT_E_TOTAL_TIMEOUT, 0, "", BT_VERDICT_FAIL},
        {BT_ENGINE_VLLM, BT_E_RESET, 0, "", BT_VERDICT_FAIL},
        {BT_ENGINE_VLLM, UV_EMFILE, 0, "", BT_VERDICT_OURS},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        w->engine = rows[i].engine;
        if (bt_health_judge(w, rows[i].rc, rows[i].status, bt_str(rows[i].body)) != rows[i].verdict)
            fail_msg("row %zu", i);
    }
}

static void first_answer_counts_at_once(void **state)
{
    assert_int_equal(count(BT_VERDICT_OK), BT_HEALTH_UP);
    atomic_store(&w->health, BT_HEALTH_UNKNOWN);
    track = (bt_health_track_t){0};
    assert_int_equal(count(BT_VERDICT_FAIL), BT_HEALTH_DOWN);
}

static void three_failures_two_successes(void **state)
{
    count(BT_VERDICT_OK);
    assert_int_equal(count(BT_VERDICT_FAIL), BT_HEALTH_UP);
    assert_int_equal(count(BT_VERDICT_FAIL), BT_HEALTH_UP);
    assert_int_equal(count(BT_VERDICT_OK), BT_HEALTH_UP); /* the row is broken */
    assert_int_equal(count(BT_VERDICT_FAIL), BT_HEALTH_UP);
    assert_int_equal(count(BT_VERDICT_FAIL), BT_HEALTH_UP);
    assert_int_equal(count(BT_VERDICT_FAIL), BT_HEALTH_DOWN);
    assert_int_equal(count(BT_VERDICT_OK), BT_HEALTH_DOWN);
    assert_int_equal(count(BT_VERDICT_FAIL), BT_HEALTH_DOWN);
    assert_int_equal(count(BT_VERDICT_OK), BT_HEALTH_DOWN);
    assert_int_equal(count(BT_VERDICT_OK), BT_HEALTH_UP);
}

static void dead_is_down_at_once_and_ours_is_nothing(void **state)
{
    count(BT_VERDICT_OK);
    assert_int_equal(count(BT_VERDICT_OURS), BT_HEALTH_UP);
    assert_int_equal(count(BT_VERDICT_DEAD), BT_HEALTH_DOWN);
}

static void scaling_drains_and_comes_back(void **state)
{
    count(BT_VERDICT_OK);
    assert_int_equal(count(BT_VERDICT_SCALING), BT_HEALTH_DRAIN);
    assert_int_equal(count(BT_VERDICT_SCALING), BT_HEALTH_DRAIN);
    assert_int_equal(count(BT_VERDICT_OK), BT_HEALTH_UP);
}

static void bytes_in_the_last_interval_mean_alive(void **state)
{
    count(BT_VERDICT_OK);
    bt_worker_note_bytes(w, 100010 - 4999);
    for (int i = 0; i < 10; i++)
        assert_int_equal(count(BT_VERDICT_FAIL), BT_HEALTH_UP);
    bt_worker_note_bytes(w, 100010 - 5000); /* too long ago */
    count(BT_VERDICT_FAIL);
    count(BT_VERDICT_FAIL);
    assert_int_equal(count(BT_VERDICT_FAIL), BT_HEALTH_DOWN);
}

static void death_is_believed_unless_bytes_came_since(void **state)
{
    count(BT_VERDICT_OK);
    bt_worker_note_bytes(w, 100005); /* after the probe was sent */
    assert_int_equal(count(BT_VERDICT_DEAD), BT_HEALTH_UP);
    bt_worker_note_bytes(w, 99999);
    assert_int_equal(count(BT_VERDICT_DEAD), BT_HEALTH_DOWN);
}

static void passive_signals(void **state)
{
    count(BT_VERDICT_OK);
    count(BT_VERDICT_OK);
    bt_health_note_connect_failure(w, false);
    assert_int_equal(atomic_load(&w->health), BT_HEALTH_UP);
    assert_true(atomic_load(&w->resolve_soon));
    bt_health_note_connect_failure(w, true);
    assert_int_equal(atomic_load(&w->health), BT_HEALTH_DOWN);
    assert_int_equal(count(BT_VERDICT_OK),
                     BT_HEALTH_DOWN); /* the successes before it do not count */
    assert_int_equal(count(BT_VERDICT_OK), BT_HEALTH_UP);
    bt_health_note_scaling(w);
    assert_int_equal(atomic_load(&w->health), BT_HEALTH_DRAIN);
    bt_health_note_engine_dead(w);
    bt_health_note_scaling(w);
    assert_int_equal(atomic_load(&w->health), BT_HEALTH_DOWN);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(what_an_answer_means),
        CASE(first_answer_counts_at_once),
        CASE(three_failures_two_successes),
        CASE(dead_is_down_at_once_and_ours_is_nothing),
        CASE(scaling_drains_and_comes_back),
        CASE(bytes_in_the_last_interval_mean_alive),
        CASE(death_is_believed_unless_bytes_came_since),
        CASE(passive_signals),
    };
    bt_log_set(BT_LOG_ERROR, false, 2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
