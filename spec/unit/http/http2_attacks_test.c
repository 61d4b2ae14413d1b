/* What a hostile HTTP/2 client may say, a row each: it is refused as RFC 9113 says, no handler sees it, and the next connection is served. */
#include "http/http2_rig.h"

enum how {
    STATUS, /* stream 1 is answered with it */
    RESET, /* stream 1 is reset with that code, or answered 400: whose rule sees it first depends on nghttp2's release */
    CLOSED,  /* the connection ends with that code */
    IGNORED, /* as if nothing had been said */
};

typedef struct step {
    int type, flags;
    uint32_t id;
    const char *bytes; /* of HEADERS without n: "name=value;..." */
    size_t n;
} step_t;

typedef struct row {
    const char *what;
    enum how how;
    unsigned code;
    step_t steps[5];
} row_t;

#define HEAD(flags, id, text)                                                                      \
    {                                                                                              \
        HEADERS, flags, id, text, 0                                                                \
    }
#define RAW(type, flags, id, bytes)                                                                \
    {                                                                                              \
        type, flags, id, bytes, sizeof(bytes) - 1                                                  \
    }
#define PSEUDO ":method=GET;:scheme=http;:path=/a"
#define BIG_FRAME 16385

static const char zeros[BIG_FRAME];

static const row_t rows[] = {
    /* ---- heads that HTTP/1.1 could read otherwise ---- */
    {"transfer-encoding", RESET, 1, {HEAD(WHOLE, 1, GET ";transfer-encoding=chunked")}},
    {"connection", RESET, 1, {HEAD(WHOLE, 1, GET ";connection=close")}},
    {"keep-alive", RESET, 1, {HEAD(WHOLE, 1, GET ";keep-alive=5")}},
    {"proxy-connection", RESET, 1, {HEAD(WHOLE, 1, GET ";proxy-connection=close")}},
    {"upgrade", RESET, 1, {HEAD(WHOLE, 1, GET ";upgrade=h2c")}},
    {"te other than trailers", RESET, 1, {HEAD(WHOLE, 1, GET ";te=gzip")}},
    {"two lengths", RESET, 1, {HEAD(END_HEADERS, 1, POST ";content-length=1;content-length=1")}},
    {"a length that is none", RESET, 1, {HEAD(END_HEADERS, 1, POST ";content-length=1x")}},
    {"a negative length", RESET, 1, {HEAD(END_HEADERS, 1, POST ";content-length=-1")}},
    {"a length beyond 64 bits",
     RESET,
     1,
     {HEAD(END_HEADERS, 1, POST ";content-length=18446744073709551616")}},
    {"a length and no body", RESET, 1, {HEAD(WHOLE, 1, POST ";content-length=3")}},
    {"a body shorter than its length",
     RESET,
     1,
     {HEAD(END_HEADERS, 1, POST ";content-length=3"), RAW(DATA, END_STREAM, 1, "ab")}},
    {"a body longer than its length",
     RESET,
     1,
     {HEAD(END_HEADERS, 1, POST ";content-length=1"), RAW(DATA, END_STREAM, 1, "ab")}},
    {"CRLF in a value", RESET, 1, {HEAD(WHOLE, 1, GET ";x=a\r\nhost: evil")}},
    {"LF in a value", RESET, 1, {HEAD(WHOLE, 1, GET ";x=a\nb")}},
    {"CR in a value", RESET, 1, {HEAD(WHOLE, 1, GET ";x=a\rb")}},
    {"NUL in a value",
     RESET,
     1,
     {RAW(HEADERS, WHOLE, 1,
          "\0\7:method\3GET\0\7:scheme\4http\0\5:path\2/a\0\12:authority\1h\0\1x\3a\0b")}},
    {"CRLF in a name", RESET, 1, {HEAD(WHOLE, 1, GET ";x\r\ny=a")}},
    {"a colon in a name", RESET, 1, {HEAD(WHOLE, 1, GET ";x:y=a")}},
    {"a blank in a name", RESET, 1, {HEAD(WHOLE, 1, GET ";x y=a")}},
    {"an upper-case name", RESET, 1, {HEAD(WHOLE, 1, GET ";X=a")}},
    {"an empty name", RESET, 1, {HEAD(WHOLE, 1, GET ";=a")}},
    {"a name of eight bits", RESET, 1, {HEAD(WHOLE, 1, GET ";x\xff=a")}},

    /* ---- pseudo-headers ---- */
    {"no method", RESET, 1, {HEAD(WHOLE, 1, ":scheme=http;:path=/a;:authority=h")}},
    {"no scheme", RESET, 1, {HEAD(WHOLE, 1, ":method=GET;:path=/a;:authority=h")}},
    {"no path", RESET, 1, {HEAD(WHOLE, 1, ":method=GET;:scheme=http;:authority=h")}},
    {"an empty path", RESET, 1, {HEAD(WHOLE, 1, ":method=GET;:scheme=http;:path=;:authority=h")}},
    {"no authority, no host", RESET, 1, {HEAD(WHOLE, 1, PSEUDO)}},
    {"two methods", RESET, 1, {HEAD(WHOLE, 1, GET ";:method=GET")}},
    {"two paths", RESET, 1, {HEAD(WHOLE, 1, ":path=/b;" GET)}},
    {"one after a header", RESET, 1, {HEAD(WHOLE, 1, PSEUDO ";x=y;:authority=h")}},
    {"one of answers", RESET, 1, {HEAD(WHOLE, 1, GET ";:status=200")}},
    {"one that is unknown", RESET, 1, {HEAD(WHOLE, 1, GET ";:other=1")}},
    {"one in trailers", RESET, 1, {HEAD(END_HEADERS, 1, POST), HEAD(WHOLE, 1, ":path=/b")}},
    {"a path with a blank",
     RESET,
     1,
     {HEAD(WHOLE, 1, ":method=GET;:scheme=http;:path=/a HTTP/1.1;:authority=h")}},
    {"a path without a slash",
     RESET,
     1,
     {HEAD(WHOLE, 1, ":method=GET;:scheme=http;:path=a;:authority=h")}},
    {"a path that is a URL",
     RESET,
     1,
     {HEAD(WHOLE, 1, ":method=GET;:scheme=http;:path=http://evil/;:authority=h")}},
    {"a path with a fragment",
     RESET,
     1,
     {HEAD(WHOLE, 1, ":method=GET;:scheme=http;:path=/a#b;:authority=h")}},
    {"a star for GET", RESET, 1, {HEAD(WHOLE, 1, ":method=GET;:scheme=http;:path=*;:authority=h")}},
    {"a method with a blank",
     RESET,
     1,
     {HEAD(WHOLE, 1, ":method=GET /b;:scheme=http;:path=/a;:authority=h")}},
    {"an authority with a slash", RESET, 1, {HEAD(WHOLE, 1, PSEUDO ";:authority=h/b")}},
    {"an authority with a user", RESET, 1, {HEAD(WHOLE, 1, PSEUDO ";:authority=me@h")}},
    {"a host that says otherwise", RESET, 1, {HEAD(WHOLE, 1, GET ";host=evil")}},
    {"two hosts", RESET, 1, {HEAD(WHOLE, 1, PSEUDO ";host=h;host=g")}},
    {"CONNECT", STATUS, 501, {HEAD(END_HEADERS, 1, ":method=CONNECT;:authority=h")}},
    {"extended CONNECT",
     RESET,
     1,
     {HEAD(END_HEADERS, 1,
           ":method=CONNECT;:protocol=websocket;:scheme=http;:path=/a;:authority=h")}},
    {"an unknown expectation", STATUS, 417, {HEAD(END_HEADERS, 1, POST ";expect=coffee")}},
    {"gRPC", STATUS, 415, {HEAD(END_HEADERS, 1, POST ";content-type=application/grpc+proto")}},

    /* ---- streams ---- */
    {"an even stream", CLOSED, 1, {HEAD(WHOLE, 2, GET)}},
    {"a head on stream 0", CLOSED, 1, {HEAD(WHOLE, 0, GET)}},
    {"data on stream 0", CLOSED, 1, {RAW(DATA, 0, 0, "a")}},
    {"data on a stream that is not there", CLOSED, 1, {RAW(DATA, 0, 1, "a")}},
    {"a reset of a stream that is not there", CLOSED, 1, {RAW(RST_STREAM, 0, 1, "\0\0\0\10")}},
    {"a window of a stream that is not there", CLOSED, 1, {RAW(WINDOW_UPDATE, 0, 1, "\0\0\0\1")}},
    {"a stream that depends on itself",
     CLOSED,
     1,
     {RAW(HEADERS, WHOLE | 0x20, 1, "\0\0\0\1\0\0\7:method\3GET")}},
    {"trailers that do not end",
     RESET,
     1,
     {HEAD(END_HEADERS, 1, POST), HEAD(END_HEADERS, 1, "x=y")}},
    {"a push", CLOSED, 1, {RAW(PUSH_PROMISE, END_HEADERS, 1, "\0\0\0\2")}},

    /* ---- frames ---- */
    {"a frame over 16 KB", CLOSED, 6, {HEAD(END_HEADERS, 1, POST), {DATA, 0, 1, zeros, BIG_FRAME}}},
    {"padding longer than the frame",
     CLOSED,
     1,
     {HEAD(END_HEADERS, 1, POST), RAW(DATA, PADDED, 1, "\5ab")}},
    {"a head padded beyond itself", CLOSED, 1, {RAW(HEADERS, WHOLE | PADDED, 1, "\377a")}},
    {"a frame amid a head",
     CLOSED,
     1,
     {RAW(HEADERS, END_STREAM, 1, "\0"), RAW(PING, 0, 0, "12345678")}},
    {"another stream amid a head",
     CLOSED,
     1,
     {RAW(HEADERS, END_STREAM, 1, "\0"), HEAD(WHOLE, 3, GET)}},
    {"a continuation of nothing", CLOSED, 1, {RAW(CONTINUATION, END_HEADERS, 1, "\0")}},
    {"a continuation of another stream",
     CLOSED,
     1,
     {RAW(HEADERS, END_STREAM, 1, "\0"), RAW(CONTINUATION, END_HEADERS, 3, "\0")}},
    {"a ping of seven bytes", CLOSED, 6, {RAW(PING, 0, 0, "1234567")}},
    {"a ping of a stream", CLOSED, 1, {RAW(PING, 0, 1, "12345678")}},
    {"settings of five bytes", CLOSED, 6, {RAW(SETTINGS, 0, 0, "\0\4\0\0\0")}},
    {"settings of a stream", CLOSED, 1, {RAW(SETTINGS, 0, 1, "")}},
    {"an acknowledgement with settings", CLOSED, 6, {RAW(SETTINGS, ACK, 0, "\0\4\0\0\0\0")}},
    {"a window over 2^31", CLOSED, 3, {RAW(SETTINGS, 0, 0, "\0\4\200\0\0\0")}},
    {"frames shorter than 16 KB", CLOSED, 1, {RAW(SETTINGS, 0, 0, "\0\5\0\0\0\1")}},
    {"push that is neither on nor off", CLOSED, 1, {RAW(SETTINGS, 0, 0, "\0\2\0\0\0\2")}},
    {"a connection's window that overflows",
     CLOSED,
     3,
     {RAW(WINDOW_UPDATE, 0, 0, "\177\377\377\377")}},
    {"a stream's window that overflows",
     RESET,
     3,
     {HEAD(END_HEADERS, 1, POST), RAW(WINDOW_UPDATE, 0, 1, "\177\377\377\377")}},
    {"a connection's window by nothing", CLOSED, 1, {RAW(WINDOW_UPDATE, 0, 0, "\0\0\0\0")}},
    {"a stream's window by nothing",
     CLOSED,
     1,
     {HEAD(END_HEADERS, 1, POST), RAW(WINDOW_UPDATE, 0, 1, "\0\0\0\0")}},
    {"a window of three bytes", CLOSED, 6, {RAW(WINDOW_UPDATE, 0, 0, "\0\0\1")}},
    {"a reset of three bytes",
     CLOSED,
     6,
     {HEAD(END_HEADERS, 1, POST), RAW(RST_STREAM, 0, 1, "\0\0\1")}},
    {"a priority of four bytes", CLOSED, 6, {RAW(PRIORITY, 0, 1, "\0\0\0\0")}},
    {"a goodbye of a stream", CLOSED, 1, {RAW(GOAWAY, 0, 1, "\0\0\0\0\0\0\0\0")}},
    {"a frame that nobody knows", IGNORED, 0, {RAW(0x77, 0xff, 1, "abc")}},
    {"settings that nobody knows", IGNORED, 0, {RAW(SETTINGS, 0, 0, "\77\77\0\0\0\1")}},

    /* ---- HPACK ---- */
    {"an index of nothing", CLOSED, 9, {RAW(HEADERS, WHOLE, 1, "\200")}},
    {"an index beyond the table", CLOSED, 9, {RAW(HEADERS, WHOLE, 1, "\377\200\1")}},
    {"an index that never ends",
     CLOSED,
     9,
     {RAW(HEADERS, WHOLE, 1, "\377\377\377\377\377\377\377\377\377\377\377\377\177")}},
    {"a table over what was granted", CLOSED, 9, {RAW(HEADERS, WHOLE, 1, "\77\377\377\377\7")}},
    {"a table's size after a header", CLOSED, 9, {RAW(HEADERS, WHOLE, 1, "\202\40")}},
    {"Huffman's end of string", CLOSED, 9, {RAW(HEADERS, WHOLE, 1, "\0\1x\204\377\377\377\377")}},
    {"Huffman padded with zeros", CLOSED, 9, {RAW(HEADERS, WHOLE, 1, "\0\1x\202\60\0")}},
    {"a string longer than its block", CLOSED, 9, {RAW(HEADERS, WHOLE, 1, "\0\5ab")}},
};

static bool is_answered(const row_t *row)
{
    const bool is_closed = is_over() || seen.goaway != NEVER;

    if (row->how == IGNORED)
        return is_closed || seen.pongs > 0;
    return is_closed || seen.streams[1].ended || seen.streams[1].reset != NEVER;
}

static void say_row(const row_t *row)
{
    for (const step_t *step = row->steps; step->bytes != NULL; step++) {
        if (step->type == HEADERS && step->n == 0)
            say_head(step->flags, step->id, step->bytes);
        else
            say_frame(step->type, step->flags, step->id, step->bytes, step->n);
    }
    if (row->how == IGNORED)
        say_frame(PING, 0, 0, "12345678", 8);
}

static bool is_right(const row_t *row)
{
    switch (row->how) {
    case STATUS:
        return seen.streams[1].status == row->code && seen.goaway == NEVER;
    case RESET:
        return (seen.streams[1].reset == row->code || seen.streams[1].status == 400) &&
               seen.goaway == NEVER;
    case CLOSED:
        return seen.goaway == row->code;
    case IGNORED:
        return seen.goaway == NEVER;
    }
    return false;
}

static bool check_row(const row_t *row)
{
    if (is_right(row))
        return true;
    print_error("%s: status %u, reset %d, goaway %d\n", row->what, seen.streams[1].status,
                (int) seen.streams[1].reset, (int) seen.goaway);
    return false;
}

static void each_is_refused(void **state)
{
    unsigned wrong = 0, requests;
    uint64_t ended = 0;
    bt_http2_counts_t now;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        requests = w.requests;
        greet();
        say_row(&rows[i]);
        SEEN(is_answered(&rows[i]));
        wrong += !check_row(&rows[i]);
        assert_int_equal(w.requests, requests);
        if (rows[i].how == CLOSED)
            SEEN(is_over());
        bt_http2_counts_sum(&now);
        if (rows[i].how == CLOSED)
            assert_int_equal(now.ends[BT_HTTP2_END_MALFORMED], ended + 1);
        assert_int_equal(now.ends[BT_HTTP2_END_FLOOD], 0);
        ended = now.ends[BT_HTTP2_END_MALFORMED];
        greet();
        say_head(WHOLE, 1, GET);
        SEEN(seen.streams[1].status == 200);
    }
    assert_int_equal(wrong, 0);
}

/* Prefaces that are wrong at some byte are HTTP/1.1, and malformed there. */
static void a_wrong_preface_is_refused(void **state)
{
    static const char magic[] = NGHTTP2_CLIENT_MAGIC;

    for (size_t at = 1; at < sizeof(magic) - 1; at++) {
        char wrong[sizeof(magic)];
        memcpy(wrong, magic, sizeof(magic));
        wrong[at] = (char) (wrong[at] ^ 1);
        dial();
        say_n(wrong, sizeof(wrong) - 1);
        say_n("\r\n\r\n", 4);
        UNTIL_CLOSED();
        assert_true(status_at(0) == 400 || status_at(0) == 505 || status_at(0) == 501);
    }
    assert_int_equal(w.heads, 0);
}

/* After the preface SETTINGS must come (RFC 9113 3.4). */
static void a_preface_without_settings_is_refused(void **state)
{
    dial();
    say_preface();
    say_head(WHOLE, 1, GET);
    SEEN(is_over());
    assert_int_equal(seen.goaway, NGHTTP2_PROTOCOL_ERROR);
    assert_int_equal(w.heads, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start_http2, stop_http2)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_is_refused),
        TEST(a_wrong_preface_is_refused),
        TEST(a_preface_without_settings_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
