/* Addresses and what begins like them. */
#include "loop/network.h"

#include "base/err.h"
#include "loop/resolve.h"
#include "unit.h"

#include <string.h>

static struct sockaddr_storage addr_of(const char *text)
{
    struct sockaddr_storage addr;

    if (bt_resolve_numeric(text, 4711, &addr) != 0)
        fail_msg("%s is no address", text);
    return addr;
}

static bool has(const char *network_text, const char *text)
{
    struct sockaddr_storage addr = addr_of(text);
    bt_network_t network;

    if (bt_network_parse(&network, network_text) != 0)
        fail_msg("%s is no network", network_text);
    return bt_network_has(&network, &addr);
}

static void test_has(void **state)
{
    assert_true(has("10.0.0.7", "10.0.0.7"));
    assert_false(has("10.0.0.7", "10.0.0.6"));
    assert_true(has("10.0.0.0/8", "10.255.1.2"));
    assert_true(has("10.0.0.7/8", "10.255.1.2")); /* what is behind the bits does not count */
    assert_false(has("10.0.0.0/8", "11.0.0.0"));
    assert_true(has("192.0.2.128/25", "192.0.2.255"));
    assert_false(has("192.0.2.128/25", "192.0.2.127"));
    assert_true(has("192.0.2.4/30", "192.0.2.7"));
    assert_false(has("192.0.2.4/30", "192.0.2.8"));
    assert_true(has("0.0.0.0/0", "203.0.113.1"));
    assert_false(has("0.0.0.0/0", "2001:db8::1")); /* all of IPv4, no more */
    assert_true(has("::/0", "203.0.113.1"));
    assert_true(has("fd00::/8", "fd12::1"));
    assert_true(has("[fd00::]/8", "fd12::1"));
    assert_false(has("fd00::/8", "fe80::1"));
    assert_true(has("2001:db8::1", "2001:db8::1"));
    assert_true(has("2001:db8::1/127", "2001:db8::"));
    /* By a socket that takes both. */
    assert_true(has("10.0.0.0/8", "::ffff:10.1.2.3"));
    assert_true(has("::ffff:10.0.0.0/104", "10.1.2.3"));
}

static void test_bad_texts(void **state)
{
    static const char *const bad[] = {
        "",           "/8",     "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/8/8",
        "10.0.0.0/x", "10.0.0", "node-1",    "fd00::/129",  "10.0.0.1:80", "localhost"};
    char big[200];
    bt_network_t network = {.bits = 77};

    memset(big, '1', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        if (bt_network_parse(&network, bad[i]) != BT_E_INVAL)
            fail_msg("%s is taken", bad[i]);
    assert_int_equal(bt_network_parse(&network, big), BT_E_INVAL);
    assert_int_equal(network.bits, 77);
}

static void test_same(void **state)
{
    struct sockaddr_storage a = addr_of("10.0.0.7"), b = addr_of("::ffff:10.0.0.7"),
                            c = addr_of("10.0.0.8"), unix_one = {.ss_family = AF_UNIX};

    assert_true(bt_network_same(&a, &b));
    assert_true(bt_network_same(&b, &a));
    assert_false(bt_network_same(&a, &c));
    assert_false(bt_network_same(&unix_one, &unix_one));
}

static void test_loopback(void **state)
{
    static const char *const loopback[] = {"127.0.0.1", "127.255.0.2", "::1", "::ffff:127.0.0.1"},
                             *const others[] = {"10.0.0.1", "126.255.255.255", "128.0.0.1",
                                                "::",       "0.0.0.0",         "::2"};

    for (unsigned i = 0; i < 4; i++)
        assert_true(bt_network_is_loopback(&(struct sockaddr_storage[]){addr_of(loopback[i])}[0]));
    for (unsigned i = 0; i < 6; i++)
        assert_false(bt_network_is_loopback(&(struct sockaddr_storage[]){addr_of(others[i])}[0]));
}

static void test_endpoint(void **state)
{
    struct sockaddr_storage all[] = {addr_of("10.0.0.7"), addr_of("10.0.0.8"), addr_of("::7"),
                                     addr_of("::8")};
    struct sockaddr_storage unix_one = {.ss_family = AF_UNIX};

    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 4; k++)
            assert_int_equal(
                bt_network_is_endpoint((struct sockaddr *) &all[i], (struct sockaddr *) &all[k]),
                i == k);
    for (unsigned i = 0; i < 4; i++) {
        struct sockaddr_storage other = all[i];
        bt_network_set_port(&other, 80);
        assert_false(
            bt_network_is_endpoint((struct sockaddr *) &all[i], (struct sockaddr *) &other));
        assert_int_equal(bt_network_length((struct sockaddr *) &other),
                         i < 2 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    }
    assert_int_equal(bt_network_length((struct sockaddr *) &unix_one), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_has),      cmocka_unit_test(test_bad_texts),
        cmocka_unit_test(test_same),     cmocka_unit_test(test_loopback),
        cmocka_unit_test(test_endpoint),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
