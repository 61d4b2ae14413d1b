/* The choice of a way to copy, with trials and a clock played by hand; a process makes it once. */
#include "transport/backends/copy.h"

#include "transport/baton_kv.h"
#include "unit.h"

#include <pthread.h>
#include <string.h>

#define WAYS 6u
#define TRIAL_BYTES 1000000u

static const bt_kv_copy_way_t ways[WAYS] = {{0, 1, 0},     {0, 4, 0},  {16, 1, 0},
                                            {16, 1, 4096}, {16, 4, 0}, {32, 1, 8192}};

typedef struct machine {
    uint64_t now_ns, beside_ns;       /* beside_ns: what a trial takes beyond the copy */
    uint64_t ns[WAYS], runs_ns[WAYS]; /* runs_ns: 0 = as ns */
    uint32_t trials[WAYS], slow;      /* bit i: a way's trial i is ten times as slow */
} machine_t;

static uint64_t now_ns(void *user)
{
    return ((machine_t *) user)->now_ns;
}

static uint64_t run_ns(void *user, bt_kv_copy_way_t way, uint32_t piece_bytes)
{
    machine_t *m = user;
    uint32_t i = 0;

    while (memcmp(&ways[i], &way, sizeof(way)) != 0)
        i++;
    bool is_run = piece_bytes == BT_KV_COPY_RUN && m->runs_ns[i] != 0;
    uint64_t ns =
        (is_run ? m->runs_ns[i] : m->ns[i]) * ((m->slow >> m->trials[i] & 1) != 0 ? 10 : 1);
    m->trials[i]++;
    m->now_ns += ns + m->beside_ns;
    return ns;
}

static bt_kv_copy_choice_t choose(machine_t *m, uint32_t count)
{
    bt_kv_copy_bench_t bench = {now_ns, run_ns, m, TRIAL_BYTES};
    return bt_kv_copy_choose(&bench, ways, count);
}

static void assert_ways(const bt_kv_copy_choice_t *choice, uint32_t small, uint32_t pages,
                        uint32_t runs)
{
    assert_memory_equal(&choice->small, &ways[small], sizeof(bt_kv_copy_way_t));
    assert_memory_equal(&choice->pages, &ways[pages], sizeof(bt_kv_copy_way_t));
    assert_memory_equal(&choice->runs, &ways[runs], sizeof(bt_kv_copy_way_t));
}

static void test_the_fastest_of_each_use_wins(void **state)
{
    machine_t m = {.now_ns = 5000, .ns = {1000, 900, 800, 700, 500, 600}, .runs_ns[5] = 400};
    bt_kv_copy_choice_t choice = choose(&m, WAYS);

    assert_ways(&choice, 1, 4, 5); /* cached; any of pages; any of runs */
    assert_int_equal(choice.bytes_per_s, UINT64_C(2000000000000));
    assert_int_equal(choice.memcpy_bytes_per_s, UINT64_C(1000000000000));
    assert_int_equal(choice.took_us, (m.now_ns - 5000) / 1000);
}

static void test_memcpy_wins_where_it_is_the_fastest(void **state)
{
    machine_t m = {.ns = {500, 520, 800, 700, 600, 540}};
    bt_kv_copy_choice_t choice = choose(&m, WAYS);

    assert_ways(&choice, 0, 0, 0);
    assert_int_equal(choice.bytes_per_s, choice.memcpy_bytes_per_s);
}

static void test_of_equals_the_one_that_looks_farthest_ahead(void **state)
{
    machine_t m = {.ns = {1000, 900, 600, 610, 900, 615}};
    bt_kv_copy_choice_t choice = choose(&m, WAYS);

    assert_ways(&choice, 1, 5, 5);
    m.ns[5] = 640; /* more than a tie */
    choice = choose(&m, WAYS);
    assert_ways(&choice, 1, 3, 3);
}

static void test_a_disturbed_trial_does_not_count(void **state)
{
    machine_t m = {.ns = {1000, 900, 800, 700, 500, 600}, .slow = 0x13};
    bt_kv_copy_choice_t choice = choose(&m, WAYS);

    assert_ways(&choice, 1, 4, 4);
    assert_int_equal(choice.bytes_per_s, UINT64_C(2000000000000));
}

/* memcpy is the slowest here, but the core is away between trials. */
static void test_a_starved_core_ends_in_time_with_memcpy(void **state)
{
    machine_t m = {.ns = {1000, 400, 800, 500, 600, 100}};
    m.beside_ns = BT_KV_COPY_BUDGET_NS / WAYS;
    bt_kv_copy_choice_t choice = choose(&m, WAYS);

    assert_ways(&choice, 0, 0, 0);
    assert_int_equal(choice.bytes_per_s, 0);
    assert_int_equal(choice.memcpy_bytes_per_s, 0);
    assert_true(m.now_ns <= BT_KV_COPY_BUDGET_NS + m.beside_ns + 1000);
}

/* None are left for runs then, which go as pages do. */
static void test_two_rounds_are_enough_to_say(void **state)
{
    machine_t m = {.ns = {1000, 900, 800, 700, 500, 600}, .runs_ns[5] = 400};
    m.beside_ns = BT_KV_COPY_BUDGET_NS / (2 * WAYS) - 1000;
    bt_kv_copy_choice_t choice = choose(&m, WAYS);

    assert_ways(&choice, 1, 4, 4);
    assert_in_range(m.trials[0], 2, 3);
}

static void test_a_quiet_core_needs_no_whole_budget(void **state)
{
    machine_t m = {.ns = {30000, 30000, 30000, 30000, 30000, 30000}};
    choose(&m, WAYS);
    assert_true(m.now_ns < BT_KV_COPY_BUDGET_NS / 4);
}

static void test_one_way_only_is_not_measured(void **state)
{
    machine_t m = {.ns = {1000}};
    bt_kv_copy_choice_t choice = choose(&m, 1);

    assert_ways(&choice, 0, 0, 0);
    assert_int_equal(m.trials[0], 0);
}

/* ---- the process's own ---- */
static void *init(void *user)
{
    const bt_kv_copy_choice_t **choice_p = user;
    *choice_p = bt_kv_copy_init();
    return NULL;
}

static void open_and_read(bt_kv_agent_stats_t *stats_p, uint32_t backends)
{
    bt_kv_config_t config = {
        .name = "copies", .backends = backends, .progress = BT_KV_PROGRESS_CALLER};
    bt_kv_agent_t *agent;

    assert_int_equal(bt_kv_agent_open(&agent, &config, NULL, 0), 0);
    bt_kv_agent_stats(agent, stats_p);
    bt_kv_agent_close(agent);
}

static bool is_one_of(const bt_kv_copy_way_t *all, uint32_t count, bt_kv_copy_way_t way)
{
    while (count > 0 && memcmp(&all[count - 1], &way, sizeof(way)) != 0)
        count--;
    return count > 0;
}

static void test_agents_tell_what_the_process_has_measured_once(void **state)
{
    bt_kv_copy_way_t all[BT_KV_COPY_WAYS];
    bt_kv_agent_stats_t first, second;
    uint32_t count = bt_kv_copy_ways(all);
    const bt_kv_copy_choice_t *choices[4];
    pthread_t threads[4];

    open_and_read(&first, BT_KV_FAKE); /* copies nothing */
    assert_null(bt_kv_copy_chosen());
    assert_int_equal(first.copy_small.lanes, 0);
    open_and_read(&first, BT_KV_MEM);
    open_and_read(&second, BT_KV_MEM);
    assert_memory_equal(&first, &second, sizeof(first));
    assert_true(is_one_of(all, count, first.copy_small));
    assert_true(is_one_of(all, count, first.copy_pages));
    assert_true(is_one_of(all, count, first.copy_runs));
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, init, &choices[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_ptr_equal(choices[i], bt_kv_copy_chosen());
        assert_int_equal(choices[i]->took_us, first.copy_measured_us);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_fastest_of_each_use_wins),
        cmocka_unit_test(test_memcpy_wins_where_it_is_the_fastest),
        cmocka_unit_test(test_of_equals_the_one_that_looks_farthest_ahead),
        cmocka_unit_test(test_a_disturbed_trial_does_not_count),
        cmocka_unit_test(test_a_starved_core_ends_in_time_with_memcpy),
        cmocka_unit_test(test_two_rounds_are_enough_to_say),
        cmocka_unit_test(test_a_quiet_core_needs_no_whole_budget),
        cmocka_unit_test(test_one_way_only_is_not_measured),
        cmocka_unit_test(test_agents_tell_what_the_process_has_measured_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
