/* Whom a head comes from, and what of it is left for others. */
#include "http/edge.h"

#include "http/head.h"
#include "unit.h"

#include <stdio.h>

static bt_header_t headers[BT_HTTP_HEADERS_MAX];
static bt_head_t head;
static bt_edge_t edge;
static char peer[48];
static const char *reason;

static void believe(enum bt_edge_header header, const char *a, const char *b)
{
    edge = (bt_edge_t){.header = header, .proxy_count = b != NULL ? 2 : 1};
    assert_int_equal(bt_network_parse(&edge.proxies[0], a), 0);
    if (b != NULL)
        assert_int_equal(bt_network_parse(&edge.proxies[1], b), 0);
}

/* lines: of the head behind Host. proxy: NULL = a stranger's connection. Returns the status. */
static unsigned check(const char *proxy, const char *host, const char *lines)
{
    static char text[70000];
    size_t seen = 0;
    const int n = snprintf(text, sizeof(text), "GET / HTTP/1.1\r\nHost: %s\r\n%s\r\n", host, lines);
    const long len = bt_head_scan(text, (size_t) n, &seen);

    assert_true(len > 0);
    assert_int_equal(bt_head_parse_request(text, (size_t) len, headers, &head), 0);
    bt_str_copy(peer, sizeof(peer), proxy != NULL ? proxy : "192.0.2.9");
    reason = NULL;
    return bt_edge_check(&edge, proxy, &head, peer, sizeof(peer), &reason);
}

/* The rest of the head, in one line. */
static const char *left(void)
{
    static char out[4096];
    size_t n = 0;

    out[0] = '\0';
    for (unsigned i = 1; i < head.header_count; i++)
        n += (size_t) snprintf(out + n, sizeof(out) - n, "%.*s: %.*s;",
                               BT_STR_ARG(head.headers[i].name), BT_STR_ARG(head.headers[i].value));
    return out;
}

#define FOR "X-Forwarded-For: "
#define END "\r\n"

static void the_client_is_the_right_most_stranger(void **state)
{
    static const struct {
        const char *lines, *client;
    } cases[] = {
        {FOR "203.0.113.7" END, "203.0.113.7"},
        {"x-forwarded-FOR:203.0.113.7" END, "203.0.113.7"},
        {FOR "6.6.6.6, 203.0.113.7" END, "203.0.113.7"},
        {FOR "6.6.6.6, 203.0.113.7, 10.0.0.2" END, "203.0.113.7"},
        {FOR "6.6.6.6,203.0.113.7 ,\t10.0.0.2,10.0.0.3" END, "203.0.113.7"},
        {FOR "6.6.6.6" END "X-Other: y" END FOR "203.0.113.7, 10.0.0.2" END, "203.0.113.7"},
        {FOR "203.0.113.7" END FOR "10.0.0.2" END, "203.0.113.7"},
        {FOR "2001:db8::7" END, "2001:db8::7"},
        {FOR "2001:DB8:0::7" END, "2001:db8::7"},
        {FOR "[2001:db8::7]" END, "2001:db8::7"},
        {FOR "[2001:db8::7]:4711" END, "2001:db8::7"},
        {FOR "203.0.113.7:4711" END, "203.0.113.7"},
        {FOR "10.0.0.2, 10.0.0.3" END, "10.0.0.2"}, /* all are ours: the first of them */
        {FOR "::ffff:10.0.0.2" END, "::ffff:10.0.0.2"},
        {"", "10.0.0.1"}, /* the proxy speaks for itself */
        {FOR END, "10.0.0.1"},
        {FOR "unknown" END, "10.0.0.1"},
        {FOR "6.6.6.6, nonsense" END, "10.0.0.1"},
        {FOR "6.6.6.6, " END, "10.0.0.1"},
        {FOR "6.6.6.6, nonsense, 10.0.0.2" END, "10.0.0.2"}, /* who came before is not known */
        {FOR "6.6.6.6 10.0.0.2" END, "10.0.0.1"},
        {FOR "010.0.0.7" END, "10.0.0.1"},
        {FOR "203.0.113.7/8" END, "10.0.0.1"},
        {FOR "203.0.113.700" END, "10.0.0.1"},
        {FOR "[203.0.113.7" END, "10.0.0.1"},
        {FOR "[2001:db8::7]4711" END, "10.0.0.1"},
        {FOR "fe80::1%eth0" END, "10.0.0.1"},
        {FOR "\"203.0.113.7\"" END, "10.0.0.1"},
        {"X-Real-IP: 6.6.6.6" END "Forwarded: for=6.6.6.6" END, "10.0.0.1"},
        {"Forwarded: for=6.6.6.6" END FOR "203.0.113.7" END "X-Real-IP: 6.6.6.6" END,
         "203.0.113.7"},
    };

    believe(BT_EDGE_X_FORWARDED_FOR, "10.0.0.0/8", "fd00::/8");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(check("10.0.0.1", "h", cases[i].lines), 0);
        if (strcmp(peer, cases[i].client) != 0)
            fail_msg("%s: %s, not %s", cases[i].lines, peer, cases[i].client);
    }
}

static void forwarded_and_real_ip_are_read_where_they_are_the_one(void **state)
{
    static const struct {
        const char *lines, *client;
    } cases[] = {
        {"Forwarded: for=203.0.113.7" END, "203.0.113.7"},
        {"Forwarded: For=\"[2001:db8::7]:4711\"" END, "2001:db8::7"},
        {"Forwarded: proto=http;for=203.0.113.7;by=10.0.0.1" END, "203.0.113.7"},
        {"Forwarded: for=6.6.6.6, proto=https; FOR=\"203.0.113.7:1\", for=10.0.0.2" END,
         "203.0.113.7"},
        {"Forwarded: for=6.6.6.6" END "Forwarded: for=203.0.113.7" END, "203.0.113.7"},
        {"Forwarded: for=unknown" END, "10.0.0.1"},
        {"Forwarded: for=_hidden, for=10.0.0.2" END, "10.0.0.2"},
        {"Forwarded: by=6.6.6.6" END, "10.0.0.1"},
        {"Forwarded: for=6.6.6.6, proto=http" END, "10.0.0.1"},
        {"Forwarded: for=\"6.6.6.6" END, "10.0.0.1"},
        {FOR "6.6.6.6" END, "10.0.0.1"},
    };

    believe(BT_EDGE_FORWARDED, "10.0.0.0/8", NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(check("10.0.0.1", "h", cases[i].lines), 0);
        if (strcmp(peer, cases[i].client) != 0)
            fail_msg("%s: %s, not %s", cases[i].lines, peer, cases[i].client);
    }
    believe(BT_EDGE_X_REAL_IP, "10.0.0.0/8", NULL);
    assert_int_equal(check("10.0.0.1", "h", FOR "6.6.6.6" END "X-Real-IP: 203.0.113.7" END), 0);
    assert_string_equal(peer, "203.0.113.7");
}

/* A chain that is longer than any: the walk ends, at one of ours. */
static void a_long_chain_ends(void **state)
{
    static char lines[60000] = FOR "6.6.6.6";

    believe(BT_EDGE_X_FORWARDED_FOR, "10.0.0.0/8", NULL);
    for (unsigned i = 0; i < BT_EDGE_HOPS_MAX - 1; i++)
        strcat(lines, ", 10.0.0.2");
    strcat(lines, END);
    assert_int_equal(check("10.0.0.1", "h", lines), 0);
    assert_string_equal(peer, "6.6.6.6");
    lines[strlen(lines) - 2] = '\0';
    strcat(lines, ", 10.0.0.3" END);
    assert_int_equal(check("10.0.0.1", "h", lines), 0);
    assert_string_equal(peer, "10.0.0.2");
}

static void what_strangers_say_is_taken_out(void **state)
{
    believe(BT_EDGE_X_FORWARDED_FOR, "10.0.0.0/8", NULL);
    assert_int_equal(check(NULL, "h",
                           "A: 1" END FOR "127.0.0.1" END "x-forwarded-proto: https" END
                           "X-Forwarded-Host: evil" END "Forwarded: for=127.0.0.1" END
                           "X-REAL-IP: 127.0.0.1" END "X-Client-IP: 127.0.0.1" END
                           "X-Forwarded-Whatever: x" END "X-Forwarder: kept" END
                           "Forwarde: kept" END "Z: 2" END),
                     0);
    assert_string_equal(peer, "192.0.2.9");
    assert_string_equal(left(), "A: 1;X-Forwarder: kept;Forwarde: kept;Z: 2;");
}

static void workers_get_one_address_from_a_proxy(void **state)
{
    believe(BT_EDGE_X_FORWARDED_FOR, "10.0.0.0/8", NULL);
    assert_int_equal(check("10.0.0.1", "h",
                           "A: 1" END "X-Real-IP: 6.6.6.6" END FOR "6.6.6.6" END
                           "X-Forwarded-Proto: https" END FOR "203.0.113.7, 10.0.0.2" END
                           "X-Forwarded-Host: api.example" END "X-Forwarded-Port: 1" END
                           "Z: 2" END),
                     0);
    assert_string_equal(left(), "A: 1;X-Forwarded-For: 203.0.113.7;X-Forwarded-Proto: https;"
                                "X-Forwarded-Host: api.example;Z: 2;");
}

static void without_a_list_any_host_is_served(void **state)
{
    edge = (bt_edge_t){0};
    assert_int_equal(check(NULL, "evil.example", ""), 0);
    assert_int_equal(check(NULL, "", ""), 0);
    assert_int_equal(bt_edge_check(NULL, NULL, &head, peer, sizeof(peer), &reason), 0);
}

static void with_a_list_others_are_misdirected(void **state)
{
    static const char *const names[] = {"api.example", "b.example", NULL};
    static const char *const served[] = {"api.example",   "API.example:443", "b.example",
                                         "10.0.0.1",      "10.0.0.1:80",     "[::1]:80",
                                         "[2001:db8::7]", "localhost:1",     "gw.internal"};
    static const char *const refused[] = {
        "",     "evil.example", "api.example.evil", "xapi.example", "[api.example]",
        "[::1", "10.0.0",       "localhost.evil",   "api.example.", "1.2.3.4.evil"};

    edge = (bt_edge_t){.hosts = names, .listener = "gw.internal"};
    for (size_t i = 0; i < sizeof(served) / sizeof(served[0]); i++)
        if (check(NULL, served[i], "") != 0)
            fail_msg("refused: %s", served[i]);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        if (check(NULL, refused[i], "") != 421)
            fail_msg("served: %s", refused[i]);
        assert_non_null(strstr(reason, "--client-allowed-host"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_client_is_the_right_most_stranger),
        cmocka_unit_test(forwarded_and_real_ip_are_read_where_they_are_the_one),
        cmocka_unit_test(a_long_chain_ends),
        cmocka_unit_test(what_strangers_say_is_taken_out),
        cmocka_unit_test(workers_get_one_address_from_a_proxy),
        cmocka_unit_test(without_a_list_any_host_is_served),
        cmocka_unit_test(with_a_list_others_are_misdirected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
