#include "cluster/url.h"

#include "help.h"

struct good {
    const char *text, *host, *base_path;
    unsigned port;
    int rank;
};

static const struct good goods[] = {
    {"http://10.0.0.1:8000", "10.0.0.1", "", 8000, -1},
    {"HTTP://Node-3.example:8000/", "Node-3.example", "", 8000, -1},
    {"10.0.0.1:8000", "10.0.0.1", "", 8000, -1},
    {"http://host", "host", "", 80, -1},
    {"http://[::1]:30000", "::1", "", 30000, -1},
    {"http://[fe80::1]", "fe80::1", "", 80, -1},
    {"http://h:8000@3", "h", "", 8000, 3},
    {"http://[::1]:8000/a@0", "::1", "/a", 8000, 0},
    {"https://h", "h", "", 443, -1},
    {"HTTPS://h:8000/a@2", "h", "/a", 8000, 2},
    {"  http://h:1/v/x//  ", "h", "/v/x", 1, -1},
};

static const struct {
    const char *text, *why;
} bads[] = {
    {"ftp://h", "only http://"},      {"", "empty"},
    {"http://", "host is missing"},   {"http://:8000", "host is missing"},
    {"http://h:0", "port"},           {"http://h:70000", "port"},
    {"http://h:80a", "port"},         {"http://h:", "port"},
    {"http://::1:8000", "brackets"},  {"http://[::1:8000", "closing bracket"},
    {"http://[::1]x", "bracket"},     {"http://user@h:8000", "DP rank"},
    {"http://h:8000@-1", "DP rank"},  {"http://h:8000@", "DP rank"},
    {"http://h:8000/a?b=c", "query"}, {"http://h:8000#x", "fragment"},
    {"http://h h:8000", "space"},     {"http://h\r\nX:8000", "space"},
};

static void good_ones(void **state)
{
    for (size_t i = 0; i < sizeof goods / sizeof goods[0]; i++) {
        bt_url_t url;
        char err[160] = "";
        if (bt_url_parse(&url, bt_str(goods[i].text), err, sizeof err) < 0)
            fail_msg("%s: %s", goods[i].text, err);
        assert_string_equal(url.host, goods[i].host);
        assert_string_equal(url.base_path, goods[i].base_path);
        assert_int_equal(url.port, goods[i].port);
        assert_int_equal(url.rank, goods[i].rank);
        assert_int_equal(url.has_tls, strncasecmp(goods[i].text, "https", 5) == 0);
        bt_url_fini(&url);
    }
}

static void bad_ones(void **state)
{
    for (size_t i = 0; i < sizeof bads / sizeof bads[0]; i++) {
        bt_url_t url;
        char err[160] = "";
        assert_int_equal(bt_url_parse(&url, bt_str(bads[i].text), err, sizeof err), BT_E_CONFIG);
        if (strstr(err, bads[i].why) == NULL)
            fail_msg("\"%s\": %s", bads[i].text, err);
    }
}

static void equal_however_spelled(void **state)
{
    bt_url_t a, b;
    char err[160];
    assert_int_equal(bt_url_parse(&a, BT_STR("http://Host:8000/"), err, sizeof err), 0);
    assert_int_equal(bt_url_parse(&b, BT_STR("host:8000"), err, sizeof err), 0);
    assert_true(bt_url_eq(&a, &b));
    b.rank = 1;
    assert_false(bt_url_eq(&a, &b));
    bt_url_fini(&a);
    bt_url_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_ones),
        cmocka_unit_test(bad_ones),
        cmocka_unit_test(equal_however_spelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
