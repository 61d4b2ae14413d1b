/* Answers in pieces: every framing at every cut gives the same head, body and end. */
#include "http/answer.h"

#include "base/err.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

struct seen {
    int rc; /* last result */
    unsigned heads, status, header_count;
    char body[256];
    size_t body_len;
    size_t extra; /* bytes behind the end */
    bool keeps_alive;
};

static void feed(bt_answer_t *a, bt_str_t piece, struct seen *seen)
{
    bt_str_t body;
    size_t at = 0;

    do {
        seen->rc = bt_answer_next(a, piece, &at, &body);
        if (seen->rc == BT_ANSWER_HEAD) {
            seen->heads++;
            seen->status = a->head->status;
            seen->header_count = a->head->header_count;
        } else if (seen->rc == BT_ANSWER_BODY) {
            assert_true(seen->body_len + body.n <= sizeof(seen->body));
            memcpy(seen->body + seen->body_len, body.p, body.n);
            seen->body_len += body.n;
        }
    } while (seen->rc == BT_ANSWER_HEAD || seen->rc == BT_ANSWER_BODY);
    seen->extra = piece.n - at;
}

static struct seen read_cut(bt_str_t wire, size_t cut, bool head_request, bool eof)
{
    struct seen seen = {0};
    bt_answer_t *a = calloc(1, sizeof(*a));

    bt_answer_start(a, head_request);
    feed(a, (bt_str_t){wire.p, cut}, &seen);
    if (seen.rc == BT_ANSWER_MORE)
        feed(a, (bt_str_t){wire.p + cut, wire.n - cut}, &seen);
    else
        seen.extra += wire.n - cut;
    if (seen.rc == BT_ANSWER_MORE && eof)
        seen.rc = bt_answer_eof(a);
    seen.keeps_alive = bt_answer_keeps_alive(a);
    bt_answer_fini(a);
    free(a);
    return seen;
}

static void test_framings_at_every_cut(void **state)
{
    static const struct {
        const char *wire, *body;
        unsigned status;
        bool head_request, eof, keeps_alive;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, false, false, true},
        {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "", 200, false, false, true},
        {"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
         "hello", 200, false, false, true},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n"
         "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
         "ok", 200, false, false, true},
        {"HTTP/1.1 204 No Content\r\n\r\n", "", 204, false, false, true},
        {"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", "", 304, false, false, true},
        {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "", 200, true, false, true},
        {"HTTP/1.1 500 Oh\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno", "no", 500, false,
         false, false},
        {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok", 200, false, false, false},
        {"HTTP/1.0 200 OK\r\n\r\nuntil the end", "until the end", 200, false, true, false},
        {"HTTP/1.1 200 OK\r\n\r\nuntil the end", "until the end", 200, false, true, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        bt_str_t wire = bt_str(cases[i].wire);
        for (size_t cut = 0; cut <= wire.n; cut++) {
            struct seen seen = read_cut(wire, cut, cases[i].head_request, cases[i].eof);
            assert_int_equal(seen.rc, BT_ANSWER_END);
            assert_int_equal(seen.heads, 1);
            assert_int_equal(seen.status, cases[i].status);
            assert_int_equal(seen.body_len, strlen(cases[i].body));
            assert_memory_equal(seen.body, cases[i].body, seen.body_len);
            assert_int_equal(seen.extra, 0);
            assert_int_equal(seen.keeps_alive, cases[i].keeps_alive);
        }
    }
}

static void test_malformed_at_every_cut(void **state)
{
    static const char *const wires[] = {
        "hello, who is there?\r\n\r\n",
        "HTTX", /* known without waiting for the end of a head that may never come */
        "HTTP/2",
        "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nBad Header: x\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
    };

    for (size_t i = 0; i < sizeof(wires) / sizeof(*wires); i++) {
        bt_str_t wire = bt_str(wires[i]);
        for (size_t cut = 0; cut <= wire.n; cut++) {
            if (read_cut(wire, cut, false, false).rc != BT_E_UPSTREAM_HTTP)
                fail_msg("accepted: %s", wires[i]);
        }
    }
}

static void test_truncation_is_reset_at_every_length(void **state)
{
    static const char *const wires[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    };

    for (size_t i = 0; i < 2; i++) {
        size_t whole = strlen(wires[i]);
        for (size_t n = 0; n < whole; n++) {
            struct seen seen = read_cut((bt_str_t){wires[i], n}, n / 2, false, true);
            assert_int_equal(seen.rc, BT_E_RESET);
            assert_false(seen.keeps_alive);
        }
    }
}

static void test_extra_bytes_are_left_alone(void **state)
{
    bt_str_t wire = BT_STR("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n");
    struct seen seen = read_cut(wire, wire.n, false, false);

    assert_int_equal(seen.rc, BT_ANSWER_END);
    assert_int_equal(seen.extra, 17);
}

/* A head of n headers of m bytes each. */
static bt_str_t make_head(char *out, size_t size, unsigned n, unsigned m)
{
    size_t len = (size_t) snprintf(out, size, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n");

    for (unsigned i = 0; i < n; i++)
        len += (size_t) snprintf(out + len, size - len, "x-%u: %0*u\r\n", i, (int) m, i);
    len += (size_t) snprintf(out + len, size - len, "\r\nok");
    return (bt_str_t){out, len};
}

static void test_big_heads(void **state)
{
    static char text[200000];
    struct seen seen;

    for (unsigned n = 20; n < 127;
         n += 3) { /* beyond the inline headers, then beyond the inline bytes too */
        bt_str_t wire = make_head(text, sizeof(text), n, 8);
        for (size_t cut = 0; cut <= wire.n; cut += 13) {
            seen = read_cut(wire, cut, false, false);
            assert_int_equal(seen.rc, BT_ANSWER_END);
            assert_int_equal(seen.header_count, n + 1);
            assert_memory_equal(seen.body, "ok", 2);
        }
    }
    bt_str_t wire = make_head(text, sizeof(text), 128, 8);
    assert_int_equal(read_cut(wire, 0, false, false).rc, BT_E_UPSTREAM_HTTP);
    wire = make_head(text, sizeof(text), 100, 600);
    assert_true(wire.n < BT_HTTP_HEAD_MAX);
    seen = read_cut(wire, 16384, false, false);
    assert_int_equal(seen.rc, BT_ANSWER_END);
    wire = make_head(text, sizeof(text), 100, 700);
    assert_int_equal(read_cut(wire, 16384, false, false).rc, BT_E_UPSTREAM_HTTP);
}

static void test_spans_live_in_the_answer(void **state)
{
    bt_str_t wire = BT_STR("HTTP/1.1 200 OK\r\nServer: sim\r\nContent-Length: 0\r\n\r\n"), body;
    bt_answer_t *a = calloc(1, sizeof(*a));
    char *copy = malloc(wire.n);
    size_t at = 0;

    memcpy(copy, wire.p, wire.n);
    bt_answer_start(a, false);
    assert_int_equal(bt_answer_next(a, (bt_str_t){copy, wire.n}, &at, &body), BT_ANSWER_HEAD);
    free(copy);
    assert_true(bt_str_eq(bt_head_get(a->head, BT_STR("server")), BT_STR("sim")));
    bt_answer_drop_head(a);
    assert_null(a->head);
    assert_int_equal(bt_answer_next(a, (bt_str_t){"", 0}, &(size_t){0}, &body), BT_ANSWER_END);
    assert_true(bt_answer_keeps_alive(a));
    bt_answer_fini(a);
    free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_framings_at_every_cut),
        cmocka_unit_test(test_malformed_at_every_cut),
        cmocka_unit_test(test_truncation_is_reset_at_every_length),
        cmocka_unit_test(test_extra_bytes_are_left_alone),
        cmocka_unit_test(test_big_heads),
        cmocka_unit_test(test_spans_live_in_the_answer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
