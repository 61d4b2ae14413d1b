/* One limit: whom it fits, by what it counts, and what of an address is one client. */
#include "limits/limit.h"
#include "unit.h"

static bt_limit_subject_t subject(const char *address, const char *key, const char *tenant,
                                  const char *model)
{
    return (bt_limit_subject_t){{bt_str(address), bt_str(key), bt_str(tenant), bt_str(model)}};
}

static void key_is(const bt_limit_t *limit, const bt_limit_subject_t *who, const char *expected)
{
    char key[BT_LIMIT_KEY_MAX];
    const size_t n = bt_limit_key(limit, BT_LIMIT_REQUESTS, who, key);

    assert_string_equal(key, expected);
    assert_int_equal(n, strlen(expected));
}

static void test_keys(void **state)
{
    char name[] = "rpm", one[BT_LIMIT_KEY_MAX], two[BT_LIMIT_KEY_MAX], text[400];
    bt_limit_t limit = {.name = name, .window_ms = 60000};
    bt_limit_subject_t who = subject("127.0.0.1", "bk_a", "acme", "m:1");

    key_is(&limit, &who, "l:rpm:requests:60000");
    limit.per = 1U << BT_LIMIT_TENANT | 1U << BT_LIMIT_MODEL;
    key_is(&limit, &who, "l:rpm:requests:t4=acme:m3=m:1:60000");
    key_is(&limit, NULL, "l:rpm:requests::others:60000");
    limit.per = 1U << BT_LIMIT_ADDRESS | 1U << BT_LIMIT_KEY;
    key_is(&limit, &who, "l:rpm:requests:a9=127.0.0.1:k4=bk_a:60000");
    who = subject("", "", "a:m1=b", "c");
    limit.per = 1U << BT_LIMIT_TENANT | 1U << BT_LIMIT_MODEL;
    (void) bt_limit_key(&limit, BT_LIMIT_REQUESTS, &who, one);
    who = subject("", "", "a", "b:m1=c");
    (void) bt_limit_key(&limit, BT_LIMIT_REQUESTS, &who, two);
    assert_string_not_equal(one, two);
    /* So are those with a NUL, however much of them is alike. */
    who.parts[BT_LIMIT_TENANT] = (bt_str_t){"a\0b", 3};
    (void) bt_limit_key(&limit, BT_LIMIT_REQUESTS, &who, one);
    who.parts[BT_LIMIT_TENANT] = (bt_str_t){"a\0c", 3};
    (void) bt_limit_key(&limit, BT_LIMIT_REQUESTS, &who, two);
    assert_string_not_equal(one, two);
    /* Long ones are told apart, too, and the key has a longest. */
    memset(text, 'x', sizeof text);
    limit.per = 15;
    for (unsigned i = 0; i < BT_LIMIT_PARTS; i++)
        who.parts[i] = (bt_str_t){text, sizeof text};
    assert_true(bt_limit_key(&limit, BT_LIMIT_OUTPUT_TOKENS, &who, one) < BT_LIMIT_KEY_MAX);
    who.parts[BT_LIMIT_MODEL].n--;
    (void) bt_limit_key(&limit, BT_LIMIT_OUTPUT_TOKENS, &who, two);
    assert_string_not_equal(one, two);
    /* The longest that there can be. */
    char longest[BT_LIMIT_NAME_MAX + 1];
    memset(longest, 'n', BT_LIMIT_NAME_MAX);
    longest[BT_LIMIT_NAME_MAX] = '\0';
    limit.name = longest;
    limit.window_ms = UINT64_C(2678400000);
    for (unsigned i = 0; i < BT_LIMIT_PARTS; i++)
        who.parts[i].n = 72;
    const size_t n = bt_limit_key(&limit, BT_LIMIT_OUTPUT_TOKENS, &who, one);
    assert_int_equal(n, strlen(one));
    assert_in_range(n, 390, BT_LIMIT_KEY_MAX - 1);
}

static void test_fits(void **state)
{
    const bt_limit_subject_t who = subject("127.0.0.1", "", "acme", "m");
    char acme[] = "acme", other[] = "other";
    bt_limit_t limit = {.per = 0};

    assert_true(bt_limit_fits(&limit, &who));
    limit.match[BT_LIMIT_TENANT] = acme;
    assert_true(bt_limit_fits(&limit, &who));
    limit.match[BT_LIMIT_KEY] = other;
    assert_false(bt_limit_fits(&limit, &who));
}

static void address_is(const char *peer, const char *expected)
{
    char out[BT_LIMIT_ADDRESS_MAX];
    const bt_str_t address = bt_limit_address(bt_str(peer), out);

    assert_int_equal(address.n, strlen(expected));
    assert_memory_equal(address.p, expected, address.n);
}

static void test_addresses(void **state)
{
    address_is("192.0.2.7", "192.0.2.7");
    address_is("::ffff:192.0.2.7", "192.0.2.7");
    address_is("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64");
    address_is("2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64");
    address_is("2001:db8:1:3::1", "2001:db8:1:3::/64");
    address_is("::1", "::/64");
    address_is("", "");
    address_is("unix", "unix");
    address_is("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
               "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
}

static void test_list(void **state)
{
    bt_limit_table_t *table = bt_limit_table_new();

    for (unsigned i = 0; i < BT_LIMITS_MAX; i++) {
        bt_limit_t *limit = bt_limit_table_add(table);
        assert_non_null(limit);
        assert_int_equal(limit->most[BT_LIMIT_TOKENS], -1);
        limit->name = strdup(i % 2 == 0 ? "even" : "odd");
    }
    assert_null(bt_limit_table_add(table));
    bt_limit_table_finish(table);
    assert_int_equal(table->items[0].first, 0);
    assert_int_equal(table->items[63].first, 1);
    bt_limit_table_unref(bt_limit_table_ref(table));
    bt_limit_table_unref(table);
    bt_limit_table_unref(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_fits),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
