#include "admin/help.h"

#include "admin/metrics/metrics.h"
#include "admin/prom_check.h"
#include "admin/scrape.h"
#include "api/route.h"

#include <stdio.h>

static rig_t rig;
static bt_text_t out;

static int open_rig(void **state)
{
    rig_open(&rig, 2);
    bt_text_init(&out);
    return 0;
}

static int close_rig(void **state)
{
    bt_text_fini(&out);
    rig_close(&rig);
    return 0;
}

static const bt_loop_facts_t facts[] = {
    {.answered = true,
     .loop = 0,
     .delay_us = 1500,
     .requests = 3,
     .rooms = 2,
     .background = 1,
     .upstream_idle = 4,
     .upstream_active = 5},
    {.loop = 1, .requests = 99},
};

static unsigned scrape(void)
{
    const bt_workers_t *workers = bt_registry_current(rig.registry);
    bt_metrics_place_t place = {0};
    bt_prom_t p = {.out = &out};

    bt_text_fini(&out);
    bt_metrics_write(&p, workers, &rig.shared, facts, 2, "1.2.3");
    while (!bt_metrics_workers(&p, workers, bt_clock_ms(), &place, SIZE_MAX))
        ;
    assert_false(out.failed);
    return prom_check(bt_text_str(&out));
}

static void has(const char *line)
{
    char whole[512];

    snprintf(whole, sizeof whole, "\n%s\n", line);
    if (strstr(out.data, whole) == NULL)
        fail_msg("no line %s in:\n%s", line, out.data);
}

static void has_not(const char *part)
{
    if (strstr(out.data, part) != NULL)
        fail_msg("%s is there", part);
}

static void test_an_idle_gateway(void **state)
{
    scrape();
    has("baton_build_info{version=\"1.2.3\"} 1");
    has("baton_sandbox{layer=\"landlock\"} 0");
    has("baton_sandbox{layer=\"seccomp\"} 0");
    has("baton_attempts_total 0");
    has("# TYPE baton_requests_total counter");
    has("baton_ttft_seconds_bucket{le=\"+Inf\"} 0");
    has("baton_pool_topology{pool=\"default\",topology=\"none\"} 1");
    has("baton_pool_bytes_per_token{pool=\"default\"} 4.000000");
}

static void test_loops_are_summed(void **state)
{
    bt_stats_t *a = &rig.dispatchers[0]->stats, *b = &rig.dispatchers[1]->stats;

    bt_stats_inc(a, retries);
    bt_stats_inc(b, retries);
    bt_stats_inc(b, requests[BT_ROUTE_CHAT][200]);
    bt_stats_inc(a, requests[BT_ROUTE_CHAT][200]);
    bt_stats_inc(a, requests[BT_ROUTE_GENERATE][0]);
    bt_histogram_note(&a->ttft, 2000, 1);
    bt_histogram_note(&b->ttft, 2000, 1);
    scrape();
    has("baton_retries_total 2");
    has("baton_requests_total{route=\"chat\",status=\"200\"} 2");
    has("baton_requests_total{route=\"generate\",status=\"gone\"} 1");
    has("baton_ttft_seconds_count 2");
    has("baton_ttft_seconds_sum 0.004000");
}

static void forget_rows(unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        atomic_store(&rig.dispatchers[i % 2]->model_stats.rows[i / 2], NULL);
}

static void test_rows_of_models_are_summed(void **state)
{
    static bt_model_row_t rows[3] = {{.pool = "default", .model = "m", .operation = "chat"},
                                     {.pool = "default", .model = "m", .operation = "embeddings"},
                                     {.pool = "default", .model = "a\"b"}};

    for (unsigned i = 0; i < 3; i++) {
        atomic_store(&rig.dispatchers[i % 2]->model_stats.rows[i / 2], &rows[i]);
        bt_stats_add_(&rows[i].requests[BT_MODEL_OK], i + 1);
        bt_stats_add_(&rows[i].input_tokens, 10);
        bt_histogram_note(&rows[i].tpot, 2000, 1);
    }
    bt_histogram_note(&rig.dispatchers[0]->stats.decision, 20 * BT_DECISION_UNIT, 1);
    scrape();
    has("baton_model_requests_total{pool=\"default\",model=\"m\",outcome=\"ok\"} 3");
    has("baton_model_requests_total{pool=\"default\",model=\"a\\\"b\",outcome=\"ok\"} 3");
    has("baton_input_tokens_total{pool=\"default\",model=\"m\"} 20");
    has("baton_model_tpot_seconds_sum{pool=\"default\",model=\"m\"} 0.004000");
    has("baton_model_tpot_seconds_bucket{pool=\"default\",model=\"m\",le=\"0.001\"} 0");
    has("baton_decision_seconds_bucket{le=\"0.00001\"} 0");
    has("baton_decision_seconds_bucket{le=\"0.00005\"} 1");
    has("baton_decision_seconds_sum 0.000020");
    has_not("gen_ai_");
    forget_rows(3);
}

static const char labels_of_m[] = "gen_ai_provider_name=\"baton\",gen_ai_request_model=\"m\","
                                  "baton_pool=\"default\"";

static void has_of(const char *name, const char *operation, const char *suffix)
{
    char line[512];

    snprintf(line, sizeof line, "gen_ai_server_%s{gen_ai_operation_name=\"%s\",%s%s", name,
             operation, labels_of_m, suffix);
    has(line);
}

/* What the conventions have no name for is left out; all else is added up over the loops, an operation apart from the others. */
static void test_names_of_the_gen_ai_conventions(void **state)
{
    static bt_model_row_t rows[4] = {
        {.pool = "default", .model = "m", .operation = "chat"},
        {.pool = "default", .model = "m", .operation = "chat"},
        {.pool = "default", .model = "m", .operation = "embeddings"},
        {.pool = "default", .model = "reranker"},
    };

    for (unsigned i = 0; i < 4; i++) {
        atomic_store(&rig.dispatchers[i % 2]->model_stats.rows[i / 2], &rows[i]);
        bt_histogram_note(&rows[i].duration, 3000000, 1);
    }
    bt_histogram_note(&rows[0].ttft, 200000, 1);
    bt_histogram_note(&rows[1].tpot, 2000, 1);
    bt_metrics_gen_ai(&(bt_prom_t){.out = &out}, &rig.shared);
    assert_false(out.failed);
    prom_check(bt_text_str(&out));
    has("# TYPE gen_ai_server_request_duration_seconds histogram");
    has_of("request_duration_seconds_count", "chat", "} 2");
    has_of("request_duration_seconds_sum", "chat", "} 6.000000");
    has_of("request_duration_seconds_bucket", "chat", ",le=\"2.5\"} 0");
    has_of("request_duration_seconds_bucket", "chat", ",le=\"5\"} 2");
    has_of("request_duration_seconds_count", "embeddings", "} 1");
    has_of("time_to_first_token_seconds_sum", "chat", "} 0.200000");
    has_of("time_per_output_token_seconds_sum", "chat", "} 0.002000");
    has_not("reranker");
    forget_rows(4);
}

static void test_every_counter_and_histogram_is_there(void **state)
{
    scrape();
#define HAS_COUNTER(name, help) has("# TYPE baton_" #name "_total counter");
    BT_COUNTER_MAP(HAS_COUNTER)
#undef HAS_COUNTER
    static const char *const names[] = {
        "ttft", "tpot", "itl", "request_duration", "prefill", "handoff_wait", "callback_wait"};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        char line[128];
        snprintf(line, sizeof line, "# TYPE baton_%s_seconds histogram", names[i]);
        has(line);
    }
}

static void test_a_late_loop_is_left_out(void **state)
{
    atomic_store(&rig.loops[1].connections, 7);
    scrape();
    has("baton_live_requests{loop=\"0\"} 3");
    has("baton_live_rooms{loop=\"0\"} 2");
    has("baton_background_calls{loop=\"0\"} 1");
    has("baton_upstream_connections_idle{loop=\"0\"} 4");
    has("baton_upstream_connections_active{loop=\"0\"} 5");
    has("baton_loop_delay_seconds{loop=\"0\"} 0.001500");
    has("baton_loop_responsive{loop=\"0\"} 1");
    has("baton_loop_responsive{loop=\"1\"} 0");
    has("baton_client_connections{loop=\"1\"} 7");
    has_not("baton_live_requests{loop=\"1\"}");
}

static void test_workers(void **state)
{
    bt_worker_t *p = rig_add(&rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:8000", "NixlConnector");
    bt_worker_t *d = rig_add(&rig, BT_ROLE_DECODE, "d0", "http://127.0.0.1:8001", "NixlConnector");

    set_up(p);
    set_up(d);
    atomic_store(&bt_worker_total(p, BT_PHASE_PREFILL)->tokens, 123);
    atomic_store(&bt_worker_total(p, BT_PHASE_PREFILL)->requests, 2);
    atomic_store(&p->legs_total[0][3], 9);
    atomic_store(&d->draining, true);
    bt_worker_note_service(d);
    for (int i = 0; i < 5; i++)
        bt_breaker_failure(&d->breaker, false, bt_clock_ms());
    atomic_store(&d->load.running, 3);
    atomic_store(&d->load.waiting, 4);
    atomic_store(&d->load.kv_used_ppm, 125000);
    atomic_store(&d->load.at_ms, 1);
    atomic_store(&d->ttft_ema_us, 2500);
    scrape();
    has("baton_worker_info{worker=\"p0\",role=\"prefill\",pool=\"default\",engine=\"vllm\","
        "connector=\"NixlConnector\","
        "capability=\"prefill_handoff_decode\",dialect=\"nixl\",version=\"\",zone=\"\"} 1");
    has("baton_worker_usable{worker=\"p0\",role=\"prefill\"} 1");
    has("baton_worker_usable{worker=\"d0\",role=\"decode\"} 0");
    has("baton_worker_health{worker=\"p0\",role=\"prefill\",state=\"up\"} 1");
    has("baton_worker_health{worker=\"p0\",role=\"prefill\",state=\"down\"} 0");
    has("baton_worker_draining{worker=\"d0\",role=\"decode\"} 1");
    has("baton_worker_breaker_state{worker=\"d0\",role=\"decode\"} 1");
    has("baton_worker_breaker_opened_total{worker=\"d0\",role=\"decode\"} 1");
    has("baton_worker_breaker_spared_total{worker=\"d0\",role=\"decode\"} 0");
    has("baton_worker_legs_total{worker=\"p0\",role=\"prefill\",leg=\"prefill\",outcome="
        "\"cancelled\"} 9");
    has("baton_worker_ledger_tokens{worker=\"p0\",role=\"prefill\",phase=\"prefill\"} 123");
    has("baton_worker_ledger_requests{worker=\"p0\",role=\"prefill\",phase=\"prefill\"} 2");
    has("baton_worker_engine_running{worker=\"d0\",role=\"decode\"} 3");
    has("baton_worker_engine_waiting{worker=\"d0\",role=\"decode\"} 4");
    has("baton_worker_engine_kv_usage{worker=\"d0\",role=\"decode\"} 0.125000");
    has("baton_worker_ttft_ema_seconds{worker=\"d0\",role=\"decode\"} 0.002500");
    has_not("baton_worker_engine_running{worker=\"p0\"");
    has_not("baton_worker_ttft_ema_seconds{worker=\"p0\"");
}

static void test_hostile_connectors(void **state)
{
    set_up(
        rig_add(&rig, BT_ROLE_HYBRID, "w0", "http://127.0.0.1:8000", "x\"} 1\nbaton_fake 1\\\xff"));
    rig_add(&rig, BT_ROLE_HYBRID, "w1", "http://127.0.0.1:8001", "\xe2\x82");
    scrape();
    has_not("\nbaton_fake");
}

#define MANY 10000

/* Pieces of a bounded length, that together are what one would be. */
static void test_many_workers_take_many_turns(void **state)
{
    bt_metrics_place_t place = {0};
    bt_prom_t p = {.out = &out};
    bt_text_t first, piece, all;
    unsigned turns = 0;
    bool is_last = false;

    rig_set_many(&rig, MANY);
    while (!bt_metrics_workers(&p, bt_registry_current(rig.registry), 1, &place, SIZE_MAX))
        ;
    bt_text_init(&first);
    bt_text_init(&all);
    bt_rows_t *rows = bt_scrape_new(&rig.config, facts, 2, false, &first);
    assert_true(first.len < 2 * BT_PIECE_BYTES);
    for (; !is_last; turns++) {
        bt_text_init(&piece);
        is_last = rows->write(rows, &piece);
        assert_true(piece.len < BT_PIECE_BYTES + 8192);
        bt_text_put(&all, bt_text_str(&piece));
        bt_text_fini(&piece);
    }
    rows->free(rows);
    assert_true(turns > out.len / (BT_PIECE_BYTES + 8192));
    assert_memory_equal(all.data, out.data, out.len);
    assert_non_null(strstr(all.data + out.len, "# TYPE "));
    bt_text_fini(&first);
    bt_text_fini(&all);
}

/* Wherever one piece ends: a family is declared once, or a scraper refuses all of it. */
static void test_a_family_is_declared_once(void **state)
{
    bt_metrics_place_t place = {0};
    bt_text_t piece, all;
    bt_prom_t p = {.out = &piece};
    bool is_last = false;

    rig_set_many(&rig, 3);
    scrape();
    bt_text_init(&all);
    for (unsigned turns = 0; !is_last; turns++) {
        assert_true(turns < 1000);
        bt_text_init(&piece);
        is_last = bt_metrics_workers(&p, bt_registry_current(rig.registry), 1, &place, 1);
        bt_text_put(&all, bt_text_str(&piece));
        bt_text_fini(&piece);
    }
    assert_non_null(strstr(out.data, all.data));
    bt_text_fini(&all);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, open_rig, close_rig)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_an_idle_gateway),
        CASE(test_loops_are_summed),
        CASE(test_rows_of_models_are_summed),
        CASE(test_every_counter_and_histogram_is_there),
        CASE(test_names_of_the_gen_ai_conventions),
        CASE(test_a_late_loop_is_left_out),
        CASE(test_workers),
        CASE(test_many_workers_take_many_turns),
        CASE(test_a_family_is_declared_once),
        CASE(test_hostile_connectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
