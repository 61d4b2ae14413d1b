/* The cache beside a naive one: what is held stays, the rest goes by age, and nothing is counted twice. */
#include "simulator/kv_cache.h"

#include "base/rand.h"
#include "unit.h"

#define CAPACITY 40
#define IDS 90
#define REQUESTS 12
#define LENGTH 9

static void test_matches_the_beginning(void **state)
{
    bt_sim_kv_cache_t kv;
    const uint64_t a[] = {1, 2, 3}, b[] = {1, 2, 9, 3};

    assert_int_equal(bt_sim_kv_init(&kv, 8), 0);
    assert_true(bt_sim_kv_hold(&kv, a, 3, 0));
    assert_int_equal(bt_sim_kv_match(&kv, b, 4), 2);
    bt_sim_kv_let_go(&kv, a, 3, 0);
    assert_int_equal(kv.held, 0);
    assert_int_equal(bt_sim_kv_match(&kv, a, 3), 3);
    bt_sim_kv_fini(&kv);
}

static void test_forgets_the_oldest_and_a_prompts_end_first(void **state)
{
    bt_sim_kv_cache_t kv;
    const uint64_t a[] = {1, 2, 3}, b[] = {4, 5};

    assert_int_equal(bt_sim_kv_init(&kv, 5), 0);
    assert_true(bt_sim_kv_hold(&kv, a, 3, 0));
    bt_sim_kv_let_go(&kv, a, 3, 0);
    assert_true(bt_sim_kv_hold(&kv, b, 2, 0));
    assert_true(bt_sim_kv_hold(&kv, NULL, 0, 1)); /* room for one: the end of a goes */
    assert_int_equal(bt_sim_kv_match(&kv, a, 3), 2);
    assert_true(bt_sim_kv_hold(&kv, a, 2, 0)); /* held now */
    assert_false(bt_sim_kv_hold(&kv, NULL, 0, 1));
    bt_sim_kv_let_go(&kv, a, 2, 0);
    assert_true(bt_sim_kv_hold(&kv, NULL, 0, 2));
    assert_int_equal(bt_sim_kv_match(&kv, a, 3), 0);
    assert_int_equal(bt_sim_kv_match(&kv, b, 2), 2); /* held all the time */
    assert_int_equal(kv.forgotten, 3);
    bt_sim_kv_fini(&kv);
}

static void count_stored(void *user, uint64_t id, const uint64_t *before, bool is_stored)
{
    unsigned *stored = user;

    (void) id;
    (void) before;
    *stored += is_stored;
}

/* Two expect the same; what arrives for one is there for both, and what does not goes with the last of them. */
static void test_expected_blocks_are_none_until_they_arrive(void **state)
{
    bt_sim_kv_cache_t kv;
    const uint64_t a[] = {1, 2}, b[] = {3, 4};
    unsigned stored = 0;

    (void) state;
    assert_int_equal(bt_sim_kv_init(&kv, 8), 0);
    kv.on_change = count_stored;
    kv.user = &stored;
    for (unsigned i = 0; i < 2; i++) {
        assert_true(bt_sim_kv_expect(&kv, a, 2, 1));
        assert_true(bt_sim_kv_expect(&kv, b, 2, 1));
    }
    assert_int_equal(bt_sim_kv_match(&kv, a, 2), 0);
    assert_int_equal(stored, 0);
    bt_sim_kv_let_go(&kv, a, 2, 1);
    bt_sim_kv_arrived(&kv, a, 2);
    bt_sim_kv_let_go(&kv, a, 2, 1);
    assert_int_equal(bt_sim_kv_match(&kv, a, 2), 2);
    assert_int_equal(stored, 2);
    bt_sim_kv_let_go(&kv, b, 2, 1);
    assert_int_equal(kv.resident, 4);
    bt_sim_kv_let_go(&kv, b, 2, 1);
    assert_int_equal(bt_sim_kv_match(&kv, b, 2), 0);
    assert_int_equal(kv.resident, 2);
    assert_int_equal(kv.held + kv.rooms + kv.forgotten, 0);
    bt_sim_kv_fini(&kv);
}

static void test_known_blocks_are_not_forgotten_for_the_rest(void **state)
{
    bt_sim_kv_cache_t kv;
    const uint64_t old[] = {1, 2}, other[] = {3, 4}, whole[] = {1, 2, 5, 6};

    assert_int_equal(bt_sim_kv_init(&kv, 4), 0);
    assert_true(bt_sim_kv_hold(&kv, old, 2, 0));
    bt_sim_kv_let_go(&kv, old, 2, 0);
    assert_true(bt_sim_kv_hold(&kv, other, 2, 0));
    bt_sim_kv_let_go(&kv, other, 2, 0);
    assert_true(bt_sim_kv_hold(&kv, whole, 4, 0)); /* 3 and 4 go, though 1 and 2 are older */
    assert_int_equal(bt_sim_kv_match(&kv, whole, 4), 4);
    assert_int_equal(bt_sim_kv_match(&kv, other, 2), 0);
    bt_sim_kv_fini(&kv);
}

static void make(uint64_t *ids, unsigned n)
{
    uint64_t first = 1 + bt_rand_below(IDS - LENGTH);

    for (unsigned i = 0; i < n; i++)
        ids[i] = first + i;
}

/* Whatever happens, held blocks are there, and the counts are those of the requests that hold. */
static void test_random(void **state)
{
    bt_sim_kv_cache_t kv;
    uint64_t ids[REQUESTS][LENGTH];
    unsigned counts[REQUESTS] = {0}, rooms[REQUESTS] = {0}, refused = 0;

    bt_rand_seed(7);
    assert_int_equal(bt_sim_kv_init(&kv, CAPACITY), 0);
    for (unsigned step = 0; step < 20000; step++) {
        const unsigned i = (unsigned) bt_rand_below(REQUESTS);
        bool holders[IDS + 1] = {false};
        unsigned held = 0, all_rooms = 0;
        if (counts[i] > 0) {
            bt_sim_kv_let_go(&kv, ids[i], counts[i], rooms[i]);
            counts[i] = rooms[i] = 0;
        } else {
            const unsigned n = 1 + (unsigned) bt_rand_below(LENGTH),
                           room = (unsigned) bt_rand_below(4);
            make(ids[i], n);
            if (bt_sim_kv_hold(&kv, ids[i], n, room)) {
                counts[i] = n;
                rooms[i] = room;
            } else {
                refused++;
            }
        }
        for (unsigned k = 0; k < REQUESTS; k++) {
            assert_int_equal(bt_sim_kv_match(&kv, ids[k], counts[k]), counts[k]);
            for (unsigned b = 0; b < counts[k]; b++)
                holders[ids[k][b]] = true;
            all_rooms += rooms[k];
        }
        for (unsigned b = 0; b <= IDS; b++)
            held += holders[b];
        assert_int_equal(kv.held, held);
        assert_int_equal(kv.rooms, all_rooms);
        assert_true(kv.resident + kv.rooms <= CAPACITY);
    }
    assert_true(refused > 0 && kv.forgotten > 1000);
    for (unsigned k = 0; k < REQUESTS; k++)
        bt_sim_kv_let_go(&kv, ids[k], counts[k], rooms[k]);
    assert_int_equal(kv.held + kv.rooms, 0);
    bt_sim_kv_fini(&kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matches_the_beginning),
        cmocka_unit_test(test_forgets_the_oldest_and_a_prompts_end_first),
        cmocka_unit_test(test_expected_blocks_are_none_until_they_arrive),
        cmocka_unit_test(test_known_blocks_are_not_forgotten_for_the_rest),
        cmocka_unit_test(test_random)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
