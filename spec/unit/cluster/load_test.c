#include "cluster/checks/load.h"

#include "help.h"

static bt_load_sample_t s;

static int clear(void **state)
{
    memset(&s, 0, sizeof s);
    s.total_tokens = -1;
    s.running = 99; /* seen again when a text is refused */
    return 0;
}

static void assert_sample(int64_t running, int64_t waiting, uint32_t kv_ppm, int64_t total)
{
    assert_int_equal(atomic_load(&s.running), running);
    assert_int_equal(atomic_load(&s.waiting), waiting);
    assert_int_equal(atomic_load(&s.kv_used_ppm), kv_ppm);
    assert_int_equal(atomic_load(&s.total_tokens), total);
}

static const char vllm_text[] =
    "# HELP python_gc_objects_collected_total Objects collected during gc\n"
    "# TYPE python_gc_objects_collected_total counter\n"
    "python_gc_objects_collected_total{generation=\"0\"} 12345.0\n"
    "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
    "# TYPE vllm:num_requests_running gauge\n"
    "vllm:num_requests_running{engine=\"0\",model_name=\"tiny} 7\"} 3.0\n"
    "vllm:num_requests_running{engine=\"1\",model_name=\"tiny\"} 4.0\n"
    "# TYPE vllm:num_requests_waiting gauge\n"
    "vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 2.0\n"
    "vllm:num_requests_waiting{engine=\"1\",model_name=\"tiny\"} 0.0\n"
    "vllm:num_requests_waiting_by_reason{engine=\"0\",model_name=\"tiny\",reason=\"deferred\"} "
    "55.0\n"
    "vllm:num_requests_waiting_by_reason{engine=\"0\",model_name=\"tiny\",reason=\"capacity\"} "
    "2.0\n"
    "# TYPE vllm:kv_cache_usage_perc gauge\n"
    "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.25\n"
    "vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"tiny\"} 9.2e-05\n"
    "vllm:num_preemptions_total{engine=\"0\",model_name=\"tiny\"} 0.0\n"
    "vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"0.001\",model_name=\"tiny\"} 0.0";

static void vllm_sums_over_engines(void **state)
{
    assert_int_equal(bt_load_read_metrics(bt_str(vllm_text), -1, &s), 0);
    assert_sample(7, 2, 125046, -1);
    assert_int_equal(atomic_load(&s.blocked), 2); /* for room, not for KV */
}

static void vllm_of_one_rank(void **state)
{
    assert_int_equal(bt_load_read_metrics(bt_str(vllm_text), 1, &s), 0);
    assert_sample(4, 0, 92, -1);
}

static void vllm_old_name_and_crlf(void **state)
{
    assert_int_equal(
        bt_load_read_metrics(BT_STR("vllm:num_requests_running{model_name=\"m\"} 1.0\r\n"
                                    "vllm:num_requests_waiting{model_name=\"m\"} 1.0\r\n"
                                    "vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.5\r\n"),
                             -1, &s),
        0);
    assert_sample(1, 1, 500000, -1);
}

static void vllm_odd_values(void **state)
{
    assert_int_equal(
        bt_load_read_metrics(BT_STR("vllm:num_requests_running NaN\n"
                                    "vllm:num_requests_running{x=\"\\\"}\"} 2 1700000000000\n"
                                    "vllm:num_requests_waiting{broken 4\n"
                                    "vllm:num_requests_waiting -3\n"
                                    "vllm:kv_cache_usage_perc 17\n"),
                             -1, &s),
        0);
    assert_sample(2, 0, 1000000, -1);
}

static void texts_without_a_known_series(void **state)
{
    static const char *const texts[] = {"",
                                        "\n\n",
                                        "# only a comment\n",
                                        "process_cpu_seconds_total 1\n",
                                        "vllm:kv_cache_usage_perc 0.5\n",
                                        "<html>not found</html>",
                                        "vllm:num_requests_running{",
                                        "vllm:num_requests_running"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_int_equal(bt_load_read_metrics(bt_str(texts[i]), -1, &s), BT_E_INVAL);
    assert_int_equal(atomic_load(&s.running), 99);
}

static void whose_metrics(void **state)
{
    assert_int_equal(bt_load_detect(bt_str(vllm_text)), BT_LOAD_VLLM_METRICS);
    assert_int_equal(
        bt_load_detect(
            BT_STR("# HELP vllm: no\nsglang:num_running_reqs{engine_type=\"prefill\"} 0.0\n")),
        BT_LOAD_SGLANG_LOADS);
    assert_int_equal(bt_load_detect(BT_STR("go_goroutines 7\n")), BT_LOAD_UNKNOWN);
    assert_int_equal(bt_load_source_of(BT_ENGINE_VLLM_ASCEND), BT_LOAD_VLLM_METRICS);
    assert_int_equal(bt_load_source_of(BT_ENGINE_SGLANG), BT_LOAD_SGLANG_LOADS);
    assert_int_equal(bt_load_source_of(BT_ENGINE_UNKNOWN), BT_LOAD_UNKNOWN);
}

static const char sglang_text[] = "{\"timestamp\":\"2026-01-31T12:00:00+00:00\",\"version\":\"0.5."
                                  "23\",\"accelerator\":null,\"num_accelerators\":2,"
                                  "\"loads\":[{\"dp_rank\":0,\"timestamp\":1769860800.5,\"num_"
                                  "running_reqs\":2,\"num_waiting_reqs\":1,"
                                  "\"num_waiting_uncached_tokens\":10,\"num_used_tokens\":300,"
                                  "\"num_total_tokens\":410,\"max_total_num_tokens\":1000,"
                                  "\"token_usage\":0.3,\"gen_throughput\":12.5,\"cache_hit_rate\":"
                                  "0.0,\"utilization\":0.4,\"max_running_requests\":8},"
                                  "{\"dp_rank\":1,\"num_running_reqs\":5,\"num_waiting_reqs\":0,"
                                  "\"num_total_tokens\":90,\"token_usage\":0.75}]}";

static void sglang_sums_and_highest_usage(void **state)
{
    assert_int_equal(bt_load_read_loads(bt_str(sglang_text), -1, &s), 0);
    assert_sample(7, 1, 750000, 500);
}

static void sglang_of_one_rank(void **state)
{
    assert_int_equal(bt_load_read_loads(bt_str(sglang_text), 0, &s), 0);
    assert_sample(2, 1, 300000, 410);
}

static void sglang_texts_that_say_nothing(void **state)
{
    static const char *const texts[] = {"",
                                        "[]",
                                        "{}",
                                        "{\"loads\":[]}",
                                        "{\"loads\":{}}",
                                        "{\"loads\":[1]}",
                                        "{\"loads\":[{\"token_usage\":1}]}",
                                        "{\"loads\":[{\"num_running_reqs\":\"3\"}]}",
                                        "{\"loads\":[{\"num_running_reqs\":3}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_int_equal(bt_load_read_loads(bt_str(texts[i]), -1, &s), BT_E_INVAL);
    assert_int_equal(atomic_load(&s.running), 99);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup(f, clear)
    const struct CMUnitTest tests[] = {
        CASE(vllm_sums_over_engines),        CASE(vllm_of_one_rank),
        CASE(vllm_old_name_and_crlf),        CASE(vllm_odd_values),
        CASE(texts_without_a_known_series),  CASE(whose_metrics),
        CASE(sglang_sums_and_highest_usage), CASE(sglang_of_one_rank),
        CASE(sglang_texts_that_say_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
