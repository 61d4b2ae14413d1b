#include "http/head.h"

#include "base/err.h"
#include "http/bad_heads.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

static bt_header_t headers[BT_HTTP_HEADERS_MAX];
static bt_head_t head;

/* Scan and parse; the bytes lie alone in an allocation, so that reading past them is found. 0 or the status. */
static unsigned request(const char *p, size_t n)
{
    static char *bytes;
    size_t seen = 0;

    free(bytes);
    bytes = malloc(n);
    memcpy(bytes, p, n);
    long len = bt_head_scan(bytes, n, &seen);
    if (len == BT_E_HTTP_HEAD_SIZE)
        return 431;
    if (len < 0)
        return 400;
    assert_true(len > 0);
    return bt_head_parse_request(bytes, (size_t) len, headers, &head) == 0 ? 0 : head.refuse;
}

static unsigned request_z(const char *text)
{
    return request(text, strlen(text));
}

static void refuses_what_is_malformed(void **state)
{
    for (size_t i = 0; i < BAD_HEADS; i++) {
        unsigned status = request(bad_heads[i].bytes, bad_heads[i].n);
        if (status != bad_heads[i].status)
            fail_msg("%s: %u, not %u", bad_heads[i].name, status, bad_heads[i].status);
    }
}

/* Scanning in pieces gives what scanning at once gives, at the same byte. */
static void scan_is_the_same_however_it_is_cut(void **state)
{
    for (size_t i = 0; i < BAD_HEADS; i++) {
        const char *p = bad_heads[i].bytes;
        size_t n = bad_heads[i].n, all = 0, bytewise = 0;
        long whole = bt_head_scan(p, n, &all), last = 0;
        for (size_t have = 1; have <= n && last == 0; have++)
            last = bt_head_scan(p, have, &bytewise);
        assert_int_equal(last, whole);
        for (size_t cut = 1; cut < n; cut++) {
            size_t seen = 0;
            long first = bt_head_scan(p, cut, &seen);
            assert_int_equal(first != 0 ? first : bt_head_scan(p, n, &seen), whole);
        }
    }
}

static void scan_stops_at_the_blank_line(void **state)
{
    static const char text[] = "GET / HTTP/1.1\r\nHost: h\r\n\r\nGET\n\n";
    size_t seen = 0;

    assert_int_equal(bt_head_scan(text, 20, &seen), 0);
    assert_int_equal(bt_head_scan(text, sizeof(text) - 1, &seen), 27);
}

static void size_limit_is_exact(void **state)
{
    char *p = malloc(BT_HTTP_HEAD_MAX + 1);
    int start = sprintf(p, "GET / HTTP/1.1\r\nHost: h\r\nX: ");
    memset(p + start, 'a', BT_HTTP_HEAD_MAX + 1 - (size_t) start);
    memcpy(p + BT_HTTP_HEAD_MAX - 4, "\r\n\r\n", 4);
    assert_int_equal(request(p, BT_HTTP_HEAD_MAX), 0);
    assert_int_equal(request(p, BT_HTTP_HEAD_MAX + 1), 0);
    memcpy(p + BT_HTTP_HEAD_MAX - 4, "a\r\n\r\n", 5);
    assert_int_equal(request(p, BT_HTTP_HEAD_MAX + 1), 431);
    free(p);
}

static void count_limit_is_exact(void **state)
{
    char text[4096] = "GET / HTTP/1.1\r\nHost: h\r\n";
    for (unsigned i = 1; i < BT_HTTP_HEADERS_MAX; i++)
        strcat(text, "X: y\r\n");
    char more[4200];
    snprintf(more, sizeof(more), "%sX: y\r\n\r\n", text);
    strcat(text, "\r\n");
    assert_int_equal(request_z(text), 0);
    assert_int_equal(head.header_count, BT_HTTP_HEADERS_MAX);
    assert_int_equal(request_z(more), 431);
}

#define IS(span, text) assert_true(bt_str_eq((span), BT_STR(text)))

static void reads_a_request(void **state)
{
    assert_int_equal(
        request_z("POST /v1/chat?a=b?c HTTP/1.1\r\nHost: h:80\r\nContent-Length: 12\r\n"
                  "X-A: \t a b \t\r\nX-Empty:\r\nX-Obs: \xff\r\n\r\n"),
        0);
    assert_int_equal(head.method, BT_POST);
    IS(head.method_text, "POST");
    IS(head.target, "/v1/chat?a=b?c");
    IS(head.path, "/v1/chat");
    IS(head.query, "a=b?c");
    assert_int_equal(head.minor, 1);
    assert_true(head.keep_alive && head.has_length && !head.chunked);
    assert_int_equal(head.length, 12);
    assert_int_equal(head.header_count, 5);
    IS(head.headers[2].name, "X-A");
    IS(head.headers[2].value, "a b");
    IS(head.headers[3].value, "");
    IS(head.headers[4].value, "\xff");
}

static void reads_targets(void **state)
{
    assert_int_equal(request_z("GET http://other:1/p?q HTTP/1.1\r\nHost: OTHER:1\r\n\r\n"), 0);
    IS(head.path, "/p");
    IS(head.query, "q");
    assert_int_equal(request_z("GET HTTP://other HTTP/1.1\r\nHost: other\r\n\r\n"), 0);
    assert_true(bt_str_eq(head.authority, BT_STR("other")));
    IS(head.target, "/");
    assert_int_equal(request_z("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n"), 0);
    IS(head.path, "*");
    assert_int_equal(request_z("GET /? HTTP/1.1\r\nHost:\r\n\r\n"), 0);
    IS(head.path, "/");
    assert_int_equal(head.query.n, 0);
}

static void reads_methods(void **state)
{
    static const char *const names[] = {"GET",    "HEAD",  "POST",    "PUT",
                                        "DELETE", "PATCH", "OPTIONS", "TRACE"};
    for (unsigned i = 0; i <= BT_METHOD_OTHER; i++) {
        char text[64];
        snprintf(text, sizeof(text), "%s / HTTP/1.1\r\nHost: h\r\n\r\n", names[i]);
        assert_int_equal(request_z(text), 0);
        assert_int_equal(head.method, i);
    }
}

static void keep_alive_follows_version_and_connection(void **state)
{
    static const struct {
        const char *text;
        bool keep;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nHost: h\r\nConnection: x, Close\r\n\r\n", false},
        {"GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", true},
        {"GET / HTTP/1.0\r\n\r\n", false},
        {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(request_z(cases[i].text), 0);
        assert_int_equal(head.keep_alive, cases[i].keep);
    }
}

static int response(const char *text)
{
    size_t seen = 0;
    long n = bt_head_scan(text, strlen(text), &seen);
    return n <= 0 ? (int) n : bt_head_parse_response(text, (size_t) n, headers, &head);
}

static void reads_responses(void **state)
{
    assert_int_equal(response("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nServer: \r\n\r\n"), 0);
    assert_int_equal(head.status, 200);
    assert_int_equal(head.length, 3);
    assert_true(head.keep_alive);
    assert_int_equal(
        response("HTTP/1.1 503 \r\nTransfer-Encoding: Chunked\r\nConnection: close\r\n\r\n"), 0);
    assert_int_equal(head.status, 503);
    assert_true(head.chunked && !head.keep_alive);
    assert_int_equal(response("HTTP/1.0 404 Not Found\r\n\r\n"), 0);
    assert_false(head.keep_alive);
}

static void refuses_malformed_responses(void **state)
{
    static const char *const cases[] = {
        "HTTP/2.0 200 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 2x0 OK\r\n\r\n",
        "HTTP/1.1  200 OK\r\n\r\n",
        "HTTP/1.1\r\n\r\n",
        "ICY 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        "HTTP/1.1 200 OK\nX: a\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (response(cases[i]) >= 0)
            fail_msg("accepted: %s", cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_what_is_malformed),
        cmocka_unit_test(scan_is_the_same_however_it_is_cut),
        cmocka_unit_test(scan_stops_at_the_blank_line),
        cmocka_unit_test(size_limit_is_exact),
        cmocka_unit_test(count_limit_is_exact),
        cmocka_unit_test(reads_a_request),
        cmocka_unit_test(reads_targets),
        cmocka_unit_test(reads_methods),
        cmocka_unit_test(keep_alive_follows_version_and_connection),
        cmocka_unit_test(reads_responses),
        cmocka_unit_test(refuses_malformed_responses),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    request_z("GET / HTTP/1.1\r\n\r\n");
    return failed;
}
