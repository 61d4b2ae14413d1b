/* Faults: bodies, headers, how often, for whom. */
#include "faults.h"
#include "unit.h"

static char error[160];

static bt_head_t head_of(const char *path, const char *fault, bt_header_t *header)
{
    *header = (bt_header_t){BT_STR("X-Sim-Fault"), bt_str(fault)};
    return (bt_head_t){.path = bt_str(path), .headers = header, .header_count = fault != NULL};
}

static void test_body(void **state)
{
    sim_fault_t f;

    assert_int_equal(sim_fault_read(BT_STR("{\"kind\":\"stall\",\"times\":2,\"after_chunks\":3}"),
                                    &f, error, sizeof(error)),
                     0);
    assert_int_equal(f.kind, SIM_STALL);
    assert_int_equal(f.times, 2);
    assert_int_equal(f.after_chunks, 3);
    assert_int_equal(sim_fault_read(BT_STR("{\"kind\":\"status\"}"), &f, error, sizeof(error)), 0);
    assert_int_equal(f.status, 500);
    assert_int_equal(sim_fault_read(BT_STR("{\"kind\":\"stal\"}"), &f, error, sizeof(error)), -1);
    assert_int_equal(
        sim_fault_read(BT_STR("{\"kind\":\"stall\",\"tims\":2}"), &f, error, sizeof(error)), -1);
    assert_int_equal(sim_fault_read(BT_STR("stall"), &f, error, sizeof(error)), -1);
}

static void test_times_and_order(void **state)
{
    sim_faults_t faults = {0};
    sim_fault_t twice = {.kind = SIM_HANG, .times = 2}, once = {.kind = SIM_DIE, .times = 1};
    bt_header_t h;
    bt_head_t head = head_of("/v1/completions", NULL, &h);

    sim_faults_add(&faults, &twice);
    sim_faults_add(&faults, &once);
    assert_int_equal(sim_faults_pick(&faults, &head, BT_STR(""), SIM_DECODE, true).kind, SIM_HANG);
    assert_int_equal(sim_faults_pick(&faults, &head, BT_STR(""), SIM_DECODE, true).kind, SIM_HANG);
    assert_int_equal(sim_faults_pick(&faults, &head, BT_STR(""), SIM_DECODE, true).kind, SIM_DIE);
    assert_int_equal(sim_faults_pick(&faults, &head, BT_STR(""), SIM_DECODE, true).kind, SIM_OK);
}

static void test_paths(void **state)
{
    sim_faults_t faults = {0};
    sim_fault_t health = {.kind = SIM_HANG, .times = 1, .path = "/health"},
                any = {.kind = SIM_DIE, .times = 1};
    bt_header_t h;
    bt_head_t probe = head_of("/health", NULL, &h), infer = head_of("/generate", NULL, &h);

    sim_faults_add(&faults, &any);
    sim_faults_add(&faults, &health);
    assert_int_equal(sim_faults_pick(&faults, &probe, BT_STR(""), SIM_DECODE, false).kind,
                     SIM_HANG);
    assert_int_equal(sim_faults_pick(&faults, &probe, BT_STR(""), SIM_DECODE, false).kind, SIM_OK);
    assert_int_equal(sim_faults_pick(&faults, &infer, BT_STR(""), SIM_DECODE, true).kind, SIM_DIE);
}

static void test_bodies(void **state)
{
    sim_faults_t faults = {0};
    sim_fault_t f;
    bt_header_t h;
    bt_head_t head = head_of("/v1/completions", NULL, &h);

    assert_int_equal(sim_fault_read(BT_STR("{\"kind\":\"status\",\"with\":\"\\\"p0\\\"\"}"), &f,
                                    error, sizeof(error)),
                     0);
    sim_faults_add(&faults, &f);
    assert_int_equal(
        sim_faults_pick(&faults, &head, BT_STR("{\"e\":\"p1\"}"), SIM_DECODE, true).kind, SIM_OK);
    assert_int_equal(
        sim_faults_pick(&faults, &head, BT_STR("{\"e\":\"p0\"}"), SIM_DECODE, true).kind,
        SIM_STATUS);
    assert_int_equal(
        sim_faults_pick(&faults, &head, BT_STR("{\"e\":\"p0\"}"), SIM_DECODE, true).kind, SIM_OK);
}

static void test_header(void **state)
{
    sim_faults_t faults = {0};
    bt_header_t h;
    bt_head_t head = head_of("/generate", "status:429@prefill", &h);
    sim_fault_t f = sim_faults_pick(&faults, &head, BT_STR(""), SIM_PREFILL, true);

    assert_int_equal(f.kind, SIM_STATUS);
    assert_int_equal(f.status, 429);
    assert_int_equal(sim_faults_pick(&faults, &head, BT_STR(""), SIM_DECODE, true).kind, SIM_OK);
    assert_int_equal(sim_faults_pick(&faults, &head, BT_STR(""), SIM_PREFILL, false).kind, SIM_OK);
    head = head_of("/generate", "rst:3", &h);
    f = sim_faults_pick(&faults, &head, BT_STR(""), SIM_DECODE, true);
    assert_int_equal(f.kind, SIM_RST);
    assert_int_equal(f.after_chunks, 3);
    head = head_of("/generate", "slow_first_byte", &h);
    assert_int_equal(sim_faults_pick(&faults, &head, BT_STR(""), SIM_DECODE, true).ms, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_body),   cmocka_unit_test(test_times_and_order),
        cmocka_unit_test(test_paths),  cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
