/* Numbers to entries: growing, chains, order, removal. */
#include "base/map.h"
#include "unit.h"

#include <stdlib.h>

#define COUNT 20000u

static void test_put_get_remove(void **state)
{
    bt_map_t map;
    bt_map_entry_t *entries = calloc(COUNT + 1, sizeof *entries);

    assert_non_null(entries);
    assert_int_equal(bt_map_init(&map, 64), 0);
    bt_map_remove(&map, &entries[1]); /* never put: nothing */
    for (uint64_t i = 1; i <= COUNT; i++)
        bt_map_put(&map, &entries[i], i << 40);
    assert_int_equal(map.count, COUNT);
    assert_true(map.mask + 1 >= COUNT / 2);
    for (uint64_t i = 1; i <= COUNT; i++)
        assert_ptr_equal(bt_map_get(&map, i << 40), &entries[i]);
    assert_null(bt_map_get(&map, 5));
    for (uint64_t i = 1; i <= COUNT; i += 2)
        bt_map_remove(&map, &entries[i]);
    bt_map_remove(&map, &entries[1]); /* again: nothing */
    for (uint64_t i = 1; i <= COUNT; i++)
        assert_int_equal(bt_map_get(&map, i << 40) != NULL, i % 2 == 0);
    assert_int_equal(map.count, COUNT / 2);
    free(map.buckets);
    free(entries);
}

static void test_one_key(void **state)
{
    bt_map_t map;
    bt_map_entry_t entries[300] = {{.key = 0}};

    assert_int_equal(bt_map_init(&map, 1), 0);
    for (unsigned i = 0; i < 300; i++)
        bt_map_put(&map, &entries[i], 7);
    for (unsigned i = 0; i < 300; i++) { /* the oldest first, also after it has grown */
        assert_ptr_equal(bt_map_get(&map, 7), &entries[i]);
        bt_map_remove(&map, &entries[i]);
    }
    assert_null(bt_map_get(&map, 7));
    free(map.buckets);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_put_get_remove),
                                       cmocka_unit_test(test_one_key)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
