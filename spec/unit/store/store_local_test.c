/* The suite over the local store, and what is its own: bounds. */
#include "suite.h"

#include "store/store_impl.h"

#include <stdio.h>

static const bt_store_config_t local = {.op_ms = 20000};

static void test_is_not_shared(void **state)
{
    rig_t rig;

    rig_open(&rig, &local);
    assert_false(bt_store_is_shared(rig.store));
    assert_int_equal(rig_health(&rig), BT_STORE_UP);
    rig_close(&rig);
}

static told_t set(rig_t *rig, unsigned i, uint64_t ttl_ms)
{
    char key[16];
    bt_store_op_t op = OP(CELL_SET, "", .value = BT_STR("0123456789"), .ttl_ms = ttl_ms);

    snprintf(key, sizeof(key), "k%u", i);
    op.key = bt_str(key);
    return rig_ask(rig, op);
}

static void test_bound_of_items(void **state)
{
    rig_t rig;
    unsigned i;

    rig_open(&rig, &local);
    bt_store_local_bound(rig.store, 200, 1 << 20);
    for (i = 0; i < 1000 && set(&rig, i, 0).rc == 0; i++)
        continue;
    assert_int_equal(i, 100); /* a key and its value are an item each */
    told_t full = set(&rig, i, 0);
    assert_int_equal(full.rc, BT_E_LIMIT);
    assert_string_equal(full.error, "the local store is full");
    assert_true(rig_do(&rig, OP(CELL_GET, "k100")).is_none); /* nothing half done is left */
    assert_int_equal(rig_ask(&rig, OP(TABLE_PUT, "t", .field = BT_STR("f"))).rc, BT_E_LIMIT);
    assert_int_equal(rig_ask(&rig, OP(LOG_ADD, "l", .limit = 5)).rc, BT_E_LIMIT);
    assert_int_equal(rig_ask(&rig, OP(LEASE_TAKE, "e", .value = BT_STR("a"), .ttl_ms = 9)).rc,
                     BT_E_LIMIT);
    rig_do(&rig, OP(CELL_DROP, "k0"));
    assert_int_equal(set(&rig, 100, 0).rc, 0);
    rig_close(&rig);
}

static void test_bound_of_bytes(void **state)
{
    static char large[100000];
    rig_t rig;

    rig_open(&rig, &local);
    bt_store_local_bound(rig.store, 200, 150000);
    assert_int_equal(rig_ask(&rig, OP(CELL_SET, "a", .value = {large, sizeof(large)})).rc, 0);
    assert_int_equal(rig_ask(&rig, OP(CELL_SET, "b", .value = {large, sizeof(large)})).rc,
                     BT_E_LIMIT);
    rig_do(&rig, OP(CELL_DROP, "a"));
    assert_int_equal(rig_ask(&rig, OP(CELL_SET, "b", .value = {large, sizeof(large)})).rc, 0);
    rig_close(&rig);
}

/* What has run out makes room, though nobody asks for its key any more. */
static void test_expired_keys_make_room(void **state)
{
    rig_t rig;
    unsigned given = 0;

    rig_open(&rig, &local);
    bt_store_local_bound(rig.store, 200, 1 << 20);
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(set(&rig, i, 20).rc, 0);
    for (unsigned i = 1000; given < 300; i++)
        given += set(&rig, i, 20).rc == 0;
    rig_close(&rig);
}

static void test_many_keys(void **state)
{
    rig_t rig;

    rig_open(&rig, &local);
    for (unsigned i = 0; i < 20000; i++)
        assert_int_equal(set(&rig, i, 0).rc, 0);
    char key[16];
    for (unsigned i = 0; i < 20000; i += 7) {
        bt_store_op_t op = OP(CELL_DROP, "");
        snprintf(key, sizeof(key), "k%u", i);
        op.key = bt_str(key);
        assert_int_equal(rig_do(&rig, op).number, 1);
    }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_not_shared),  cmocka_unit_test(test_bound_of_items),
        cmocka_unit_test(test_bound_of_bytes), cmocka_unit_test(test_expired_keys_make_room),
        cmocka_unit_test(test_many_keys),
    };

    return suite_run("local", &local) +
           cmocka_run_group_tests_name("local only", tests, NULL, NULL);
}
