/* Names to rooms: growing, chains, removal. */
#include "transfer/transfer_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#define COUNT 20000u

static void test_put_find_remove(void **state)
{
    bt_transfer_table_t table;
    bt_transfer_node_t *nodes = calloc(COUNT + 1, sizeof *nodes);
    bt_transfer_room_t *rooms = (bt_transfer_room_t *) nodes; /* an address each, never read */

    (void) state;
    assert_non_null(nodes);
    assert_int_equal(bt_transfer_table_init(&table), 0);
    for (uint64_t i = 1; i <= COUNT; i++)
        bt_transfer_table_put(&table, &nodes[i], i << 40, rooms);
    assert_int_equal(table.count, COUNT);
    assert_true(table.bits >= 14);
    for (uint64_t i = 1; i <= COUNT; i++)
        assert_ptr_equal(bt_transfer_table_find(&table, i << 40), &nodes[i]);
    assert_null(bt_transfer_table_find(&table, 5));
    for (uint64_t i = 1; i <= COUNT; i += 2)
        bt_transfer_table_remove(&table, &nodes[i]);
    bt_transfer_table_remove(&table, &nodes[1]); /* again: nothing */
    for (uint64_t i = 1; i <= COUNT; i++)
        assert_int_equal(bt_transfer_table_find(&table, i << 40) != NULL, i % 2 == 0);
    assert_int_equal(table.count, COUNT / 2);
    free(table.buckets);
    free(nodes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_put_find_remove)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
