#include "script/shared/prefix_hash.h"
#include "script/shared/prefix_index.h"
#include "script_fixture.h"

#include <pthread.h>
#include <sys/resource.h>

#define ENTRIES 262144u

static int forget(void **state)
{
    bt_prefix_clear();
    return 0;
}

/* A chain that nobody else has, from its `from`th block on; the blocks before it are those of chain 0. */
static void chain(uint64_t *hashes, unsigned count, uint64_t salt, unsigned from)
{
    for (unsigned i = 0; i < count; i++) {
        uint64_t words[2] = {i < from ? 0 : salt, i};
        hashes[i] = bt_hash64((bt_str_t){(const char *) words, sizeof(words)}, 9);
    }
}

static long page_faults(void)
{
    struct rusage usage;

    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_minflt;
}

/* First of all tests: nobody has touched the index yet. */
static void warm_memory_costs_no_page_faults(void **state)
{
    uint64_t a[1024];
    long before;

#ifdef __SANITIZE_THREAD__
    skip(); /* its own memory for each word has faults of its own */
#endif
    chain(a, 1024, 1, 0);
    bt_prefix_warm();
    before = page_faults();
    bt_prefix_insert(a, 1024, 7, 1);
    assert_in_range(page_faults() - before, 0, 64);
    bt_prefix_clear();
}

static void the_longest_match_comes_first(void **state)
{
    bt_prefix_matches_t m;
    uint64_t a[10], b[10], c[10];

    chain(a, 10, 0, 0);
    chain(b, 10, 1, 6);
    chain(c, 10, 2, 0);
    bt_prefix_insert(a, 10, 7, 1000);
    bt_prefix_insert(b, 10, 8, 1000);
    bt_prefix_find(a, 10, &m);
    assert_int_equal(m.longest, 10);
    assert_int_equal(m.count, 2);
    assert_int_equal(m.items[0].worker, 7);
    assert_int_equal(bt_prefix_matched(&m, 7), 10);
    assert_int_equal(bt_prefix_matched(&m, 8), 6);
    assert_int_equal(bt_prefix_matched(&m, 9), 0);
    bt_prefix_find(c, 10, &m);
    assert_int_equal(m.longest, 0);
    assert_int_equal(bt_prefix_matched(&m, 7), 0);
    bt_prefix_find(a, 0, &m);
    assert_int_equal(m.count, 0);
}

static void blocks_are_counted_by_worker(void **state)
{
    uint64_t a[10];

    chain(a, 10, 3, 0);
    bt_prefix_insert(a, 10, 5, 1000);
    bt_prefix_insert(a, 10, 5, 1001);
    assert_int_equal(bt_prefix_cached(5), 10);
    assert_int_equal(bt_prefix_cached(6), 0);
}

static void an_engine_that_is_gone_is_forgotten(void **state)
{
    bt_prefix_matches_t m;
    uint64_t a[10];

    chain(a, 10, 3, 0);
    bt_prefix_insert(a, 10, 5, 1000);
    bt_prefix_insert(a, 4, 6, 1000);
    bt_prefix_forget(5);
    assert_int_equal(bt_prefix_cached(5), 0);
    assert_int_equal(bt_prefix_cached(6), 4);
    bt_prefix_find(a, 10, &m);
    assert_int_equal(bt_prefix_matched(&m, 5), 0);
    assert_int_equal(bt_prefix_matched(&m, 6), 4);
}

/* A block that everybody has remembers fifteen; each of the last ones is among them. */
static void many_workers_share_a_block(void **state)
{
    bt_prefix_matches_t m;
    uint64_t a[1];
    unsigned known = 0;

    chain(a, 1, 4, 0);
    for (uint32_t w = 1; w <= 40; w++)
        bt_prefix_insert(a, 1, w, 1000);
    bt_prefix_find(a, 1, &m);
    assert_int_equal(m.count, 15);
    assert_int_equal(bt_prefix_matched(&m, 40), 1);
    for (uint32_t w = 1; w <= 40; w++)
        known += bt_prefix_cached(w);
    assert_int_equal(known, 15);
}

/* Twice as many blocks as there is room for: the count stays bounded, the newest stay, what is used again stays. */
static void the_least_recent_go_first(void **state)
{
    bt_prefix_matches_t m;
    uint64_t old[8], often[8], fresh[8];

    chain(old, 8, 1000001, 0);
    chain(often, 8, 1000002, 0);
    bt_prefix_insert(old, 8, 1, 0);
    for (unsigned i = 0; i < 2 * ENTRIES / 8; i++) {
        chain(fresh, 8, 2000000 + i, 0);
        bt_prefix_insert(fresh, 8, 2, i);
        if (i % 64 == 0)
            bt_prefix_insert(often, 8, 3, i);
    }
    assert_in_range(bt_prefix_cached(2), ENTRIES * 9 / 10, ENTRIES);
    bt_prefix_find(old, 8, &m);
    assert_int_equal(m.longest, 0);
    bt_prefix_find(often, 8, &m);
    assert_int_equal(bt_prefix_matched(&m, 3), 8);
    bt_prefix_find(fresh, 8, &m);
    assert_int_equal(bt_prefix_matched(&m, 2), 8);
    assert_int_equal(bt_prefix_cached(1), 0);
}

/* All threads run over the same few sets; what one inserts last, it finds. */
static void *hammer(void *arg)
{
    const uint32_t worker = *(uint32_t *) arg;
    bt_prefix_matches_t m;
    uint64_t hashes[16];

    for (unsigned i = 0; i < 20000; i++) {
        chain(hashes, 16, i % 50 + (i % 7 == 0 ? 5000u + worker : 0), 4);
        bt_prefix_insert(hashes, 16, worker, i);
        bt_prefix_find(hashes, 16, &m);
        if (m.longest > 16 || m.count > BT_PREFIX_MATCHES_MAX)
            return arg;
    }
    chain(hashes, 16, 90000 + worker, 0);
    bt_prefix_insert(hashes, 16, worker, 30000);
    bt_prefix_find(hashes, 16, &m);
    return bt_prefix_matched(&m, worker) == 16 && m.count == 1 ? NULL : arg;
}

static void threads_share_it(void **state)
{
    uint32_t workers[4] = {11, 12, 13, 14};
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, &workers[i]), 0);
    for (int i = 0; i < 4; i++) {
        void *failed = NULL;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warm_memory_costs_no_page_faults),
        cmocka_unit_test_setup(the_longest_match_comes_first, forget),
        cmocka_unit_test_setup(an_engine_that_is_gone_is_forgotten, forget),
        cmocka_unit_test_setup(blocks_are_counted_by_worker, forget),
        cmocka_unit_test_setup(many_workers_share_a_block, forget),
        cmocka_unit_test_setup(the_least_recent_go_first, forget),
        cmocka_unit_test_setup(threads_share_it, forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
