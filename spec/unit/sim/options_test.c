/* The command line: keys, defaults, counts, and what a typo is answered with. */
#include "options.h"
#include "unit.h"

#include <string.h>

static sim_options_t o;
static char error[256];

static int parse(const char *a, const char *b)
{
    char *argv[] = {(char *) "baton-sim", (char *) (uintptr_t) a, (char *) (uintptr_t) b, NULL};

    sim_options_fini(&o);
    error[0] = '\0';
    return sim_options_parse(b != NULL ? 3 : a != NULL ? 2 : 1, argv, &o, error, sizeof(error));
}

static int teardown(void **state)
{
    sim_options_fini(&o);
    return 0;
}

static void test_a_worker(void **state)
{
    assert_int_equal(parse("--worker", "role=prefill,engine=vllm,connector=nixlpushconnector,port="
                                       "81,itl=2.5,latency=0,ttft=7"),
                     0);
    assert_int_equal(o.worker_count, 1);
    assert_int_equal(o.workers[0].role, SIM_PREFILL);
    assert_int_equal(o.workers[0].connector, SIM_NIXL_PUSH);
    assert_string_equal(o.workers[0].connector_name, "NixlPushConnector");
    assert_string_equal(o.workers[0].name, "p0");
    assert_string_equal(o.workers[0].engine_id, "p0");
    assert_string_equal(o.workers[0].model, "sim");
    assert_true(o.workers[0].itl == 0 && o.workers[0].ttft == 7); /* later keys win */
}

static void test_count_gives_names(void **state)
{
    assert_int_equal(parse("--worker", "role=decode,count=3"), 0);
    assert_int_equal(o.worker_count, 3);
    assert_string_equal(o.workers[2].name, "d2");
    assert_int_equal(o.workers[2].connector, SIM_NIXL);
    assert_int_equal(parse("--worker", "role=decode,count=2,port=80"), 2);
}

static void test_typos_are_answered(void **state)
{
    assert_int_equal(parse("--worker", "rol=prefill"), 2);
    assert_non_null(strstr(error, "\"role\""));
    assert_int_equal(parse("--wrker", "role=prefill"), 2);
    assert_non_null(strstr(error, "--worker"));
    assert_int_equal(parse("--worker", "itl=fast"), 2);
    assert_non_null(strstr(error, "itl"));
    assert_int_equal(parse("--worker", "connector=NixlConnecter"), 2);
    assert_int_equal(parse("--worker", "role=prefill,register=127.0.0.1:30001"), 2);
    assert_non_null(strstr(error, "is for P2pNcclConnector and MoRIIOConnector"));
    assert_int_equal(parse("--worker", "engine=sglang,connector=MoRIIOConnector"), 2);
    assert_int_equal(parse("--worker", "block_size=3"), 2);
    assert_int_equal(parse("--worker", NULL), 2);
    assert_int_equal(parse(NULL, NULL), 2);
}

static void test_leases(void **state)
{
    assert_int_equal(parse("--worker", "role=prefill"), 0);
    assert_true(o.workers[0].lease_ms == 30000);
    sim_options_fini(&o);
    assert_int_equal(parse("--worker", "role=prefill,connector=MooncakeConnectorV1"), 0);
    assert_true(o.workers[0].lease_ms == 480000);
}

static void test_baton_connector(void **state)
{
    assert_int_equal(parse("--worker", "role=prefill,connector=BatonConnector,gateway=127.0.0.1:9,"
                                       "kv_backend=shm+tcp,ranks=2,kv_private=1"),
                     0);
    assert_int_equal(o.workers[0].connector, SIM_BATON);
    assert_string_equal(o.workers[0].gateway, "127.0.0.1:9");
    assert_int_equal(o.workers[0].kv_backends, 4 + 8);
    assert_int_equal(parse("--worker", "role=prefill,gateway=127.0.0.1:9"), 2);
    assert_non_null(strstr(error, "BatonConnector"));
    assert_int_equal(parse("--worker", "role=prefill,connector=BatonConnector,ranks=9"), 2);
    assert_int_equal(parse("--worker", "role=prefill,connector=BatonConnector,kv_backend=shm+"), 0);
    assert_int_equal(parse("--worker", "role=prefill,connector=BatonConnector,kv_backend=ib"), 2);
    assert_int_equal(parse("--worker", "role=prefill,connector=BatonConnector,kv_page_bytes=60"),
                     2);
    assert_int_equal(parse("--worker", "role=prefill,connector=BatonConnector,engine=sglang"), 2);
}

#define TEST(name) cmocka_unit_test_teardown(name, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_worker), TEST(test_count_gives_names), TEST(test_typos_are_answered),
        TEST(test_leases),   TEST(test_baton_connector),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
