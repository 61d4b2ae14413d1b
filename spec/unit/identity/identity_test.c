/* Tenants of those whom others have named, and what a certificate may. */
#include "identity/identity.h"
#include "unit.h"

#include <string.h>

static void tenant_is(const char *name, const char *expected)
{
    char out[BT_TENANT_MAX + 1];
    const bt_str_t tenant = bt_tenant_of(bt_str(name), out);

    assert_int_equal(tenant.n, strlen(expected));
    assert_memory_equal(tenant.p, expected, tenant.n);
}

/* With digits behind it in place of what a tenant cannot have. */
static void tenant_begins(const char *name, const char *expected)
{
    char out[BT_TENANT_MAX + 1];
    const bt_str_t tenant = bt_tenant_of(bt_str(name), out);
    const size_t n = strlen(expected);

    assert_true(bt_tenant_is_name(tenant));
    assert_int_equal(tenant.n, n + 16);
    assert_memory_equal(tenant.p, expected, n);
    for (size_t i = n; i < tenant.n; i++)
        assert_non_null(strchr("0123456789abcdef", tenant.p[i]));
}

static void test_tenants(void **state)
{
    static const char all[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    tenant_is("acme", "acme");
    tenant_is("web-1.example", "web-1.example");
    tenant_is(all, all);
    tenant_is("", "");
    tenant_begins("anonymous", "anonymous-"); /* is nobody's */
    tenant_begins("spiffe://td/ns/a", "spiffe-td-ns-a-");
    tenant_begins("/a/", "a-");
    tenant_begins("\xc3\xa9", "");
    tenant_begins("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdefg",
                  "0123456789abcdef0123456789abcdef0123456789abcde-");
}

static void test_two_names_are_two_tenants(void **state)
{
    static const char *const pairs[][2] = {{"a b", "a-b"},
                                           {"a b", "a/b"},
                                           {"a", "a "},
                                           {"\xc3\xa9", "\xc3\xa8"},
                                           {"spiffe://td/a", "spiffe-td-a"}};

    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        char one[BT_TENANT_MAX + 1], two[BT_TENANT_MAX + 1];
        assert_false(bt_str_eq(bt_tenant_of(bt_str(pairs[i][0]), one),
                               bt_tenant_of(bt_str(pairs[i][1]), two)));
    }
}

static void test_a_certificate(void **state)
{
    char long_name[BT_IDENTITY_ID_MAX + 8];
    const bt_identity_t who = bt_identity_of_subject(BT_STR("subject:CN=a"), BT_STR("a"));

    assert_int_equal(who.source, BT_IDENTITY_MTLS);
    assert_string_equal(bt_identity_source_name(who.source), "mtls");
    assert_int_equal(who.scopes, BT_MAY_AS_CLIENT); /* and nothing of an operator's */
    assert_false(who.sets_tenant);
    assert_int_not_equal(who.owner,
                         bt_identity_of_subject(BT_STR("subject:CN=b"), BT_STR("a")).owner);
    assert_int_equal(who.owner,
                     bt_identity_of_subject(BT_STR("subject:CN=a"), BT_STR("other")).owner);
    /* cut before a character, not in it; still two owners */
    memset(long_name, 'x', sizeof long_name);
    memcpy(long_name + BT_IDENTITY_ID_MAX - 1, "\xc3\xa9", 2);
    const bt_identity_t one = bt_identity_of_subject((bt_str_t){long_name, 515}, BT_STR_NULL),
                        two = bt_identity_of_subject((bt_str_t){long_name, 516}, BT_STR_NULL);
    assert_int_equal(one.id.n, BT_IDENTITY_ID_MAX - 1);
    assert_int_not_equal(one.owner, two.owner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tenants),
                                       cmocka_unit_test(test_two_names_are_two_tenants),
                                       cmocka_unit_test(test_a_certificate)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
