/* Whose request it is: the key it shows, else the address it comes from. */
#include "api/client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static bt_client_key_t items[3];
static const bt_client_keys_t keys = {items, 3, NULL};

static int setup(void **state)
{
    (void) state;
    assert_int_equal(bt_client_key_init(&items[0], BT_STR("one"), BT_STR_NULL, false), 0);
    assert_int_equal(bt_client_key_init(&items[1], BT_STR("two"), BT_STR("acme"), false), 0);
    assert_int_equal(bt_client_key_init(&items[2], BT_STR("three"), BT_STR("proxy"), true), 0);
    return 0;
}

static int teardown(void **state)
{
    (void) state;
    for (unsigned i = 0; i < 3; i++)
        free(items[i].text);
    return 0;
}

static const bt_client_key_t *find(const char *name, const char *value)
{
    bt_header_t header = {bt_str(name), bt_str(value)};
    const bt_head_t head = {.headers = &header, .header_count = 1};

    return bt_client_key_find(&keys, &head);
}

static void test_the_key_is_found_in_either_header(void **state)
{
    (void) state;
    assert_ptr_equal(find("Authorization", "Bearer one"), &items[0]);
    assert_ptr_equal(find("authorization", "bearer  two "), &items[1]);
    assert_ptr_equal(find("X-Api-Key", "three"), &items[2]);
    assert_null(find("Authorization", "one"));
    assert_null(find("Authorization", "Bearer onee"));
    assert_null(find("Authorization", "Bearer "));
    assert_null(find("X-Other", "one"));
}

static const char *tenant(const bt_client_key_t *key, const char *said)
{
    static char out[80];
    bt_header_t header = {BT_STR("X-Tenant-Id"), bt_str(said)};
    const bt_head_t head = {.headers = &header, .header_count = said != NULL};
    const bt_str_t got = bt_client_tenant(key, &head);

    memcpy(out, got.p != NULL ? got.p : "", got.n);
    out[got.n] = '\0';
    return out;
}

static void test_the_tenant_is_the_keys(void **state)
{
    (void) state;
    assert_string_equal(tenant(NULL, "said"), "said");
    assert_string_equal(tenant(NULL, NULL), "");
    assert_string_equal(tenant(&items[1], "other"), "acme");
    assert_string_equal(tenant(&items[1], NULL), "acme");
    assert_string_equal(tenant(&items[2], "other"), "other");
    assert_string_equal(tenant(&items[2], NULL), "proxy");
    assert_memory_equal(tenant(&items[0], "other"), "key-", 4);
    assert_null(strstr(items[0].tenant, "one"));
}

static void test_owners(void **state)
{
    bt_exchange_t here = {.peer = "10.0.0.1"}, there = {.peer = "10.0.0.2"};
    bt_client_key_t same;

    (void) state;
    assert_true(bt_client_owner(&items[0], &here) == bt_client_owner(&items[0], &there));
    assert_true(bt_client_owner(&items[0], &here) != bt_client_owner(&items[1], &here));
    assert_true(bt_client_owner(NULL, &here) != bt_client_owner(NULL, &there));
    assert_true(bt_client_owner(NULL, &here) == bt_client_owner(NULL, &here));
    assert_int_equal(bt_client_key_init(&same, BT_STR("one"), BT_STR("x"), true), 0);
    assert_true(same.id == items[0].id); /* on another replica, too */
    free(same.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_key_is_found_in_either_header),
        cmocka_unit_test(test_the_tenant_is_the_keys),
        cmocka_unit_test(test_owners),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
