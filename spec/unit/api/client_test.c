/* Whose request it is: the key it shows, else the address it comes from. */
#include "api/client.h"
#include "unit.h"

#include <stdio.h>

static const bt_identity_t acme = {.source = BT_IDENTITY_KEY, .tenant = BT_STR("acme"), .owner = 7},
                           proxy = {.source = BT_IDENTITY_KEY,
                                    .tenant = BT_STR("proxy"),
                                    .owner = 8,
                                    .sets_tenant = true};

static void given(const char *name, const char *value, const char *want)
{
    bt_header_t header = {bt_str(name), bt_str(value)};
    const bt_head_t head = {.headers = &header, .header_count = 1};
    const bt_str_t got = bt_client_key_given(&head);

    assert_true(bt_str_eq(got, bt_str(want)));
}

static void test_the_key_is_found_in_either_header(void **state)
{
    given("Authorization", "Bearer one", "one");
    given("authorization", "bearer  two ", "two");
    given("X-Api-Key", "three", "three");
    given("Authorization", "one", "");
    given("Authorization", "Bearer ", "");
    given("X-Other", "one", "");
}

static const char *tenant(const bt_identity_t *identity, const char *said)
{
    static char out[80];
    bt_header_t header = {BT_STR("X-Tenant-Id"), bt_str(said)};
    const bt_head_t head = {.headers = &header, .header_count = said != NULL};
    const bt_str_t got = bt_client_tenant(identity, &head);

    snprintf(out, sizeof out, "%.*s", BT_STR_ARG(got));
    return out;
}

static void test_the_tenant_is_the_identitys(void **state)
{
    assert_string_equal(tenant(&bt_identity_anonymous, "said"), "said");
    assert_string_equal(tenant(&bt_identity_anonymous, NULL), "");
    assert_string_equal(tenant(&acme, "other"), "acme");
    assert_string_equal(tenant(&acme, NULL), "acme");
    assert_string_equal(tenant(&proxy, "other"), "other");
    assert_string_equal(tenant(&proxy, NULL), "proxy");
}

static void test_owners(void **state)
{
    bt_exchange_t here = {.peer = "10.0.0.1"}, there = {.peer = "10.0.0.2"};
    const bt_identity_t *nobody = &bt_identity_anonymous;

    assert_true(bt_client_owner(&acme, &here) == bt_client_owner(&acme, &there));
    assert_true(bt_client_owner(&acme, &here) != bt_client_owner(&proxy, &here));
    assert_true(bt_client_owner(nobody, &here) != bt_client_owner(nobody, &there));
    assert_true(bt_client_owner(nobody, &here) == bt_client_owner(nobody, &here));
    assert_true(bt_client_owner(nobody, &here) >> 63 == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_key_is_found_in_either_header),
        cmocka_unit_test(test_the_tenant_is_the_identitys),
        cmocka_unit_test(test_owners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
