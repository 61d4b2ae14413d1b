/* http2_rig.h - an HTTP/2 client that says what it is told to, right or wrong, and notes what it is answered. */
#ifndef SPEC_UNIT_HTTP_HTTP2_RIG_H
#define SPEC_UNIT_HTTP_HTTP2_RIG_H

#include "http/http2_counts.h"
#include "http/server_util.h"

#include <nghttp2/nghttp2.h>

#define STREAMS 600 /* of which something is noted */
#define NEVER UINT32_MAX

enum { DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE };
enum { CONTINUATION = 9, END_STREAM = 1, ACK = 1, END_HEADERS = 4, PADDED = 8, WHOLE = 5 };

#define ASK(method, path) ":method=" method ";:scheme=http;:path=" path ";:authority=h"
#define GET ASK("GET", "/a")
#define POST ASK("POST", "/a")
#define NO_SETTINGS ""

static struct {
    nghttp2_hd_inflater *inflater;
    size_t at;             /* of w.got, read */
    uint32_t goaway, last; /* its code and last stream; NEVER */
    unsigned settings, acks, pongs;
    int64_t conn_window; /* what may still be said */
    struct {
        unsigned status, data_bytes, data_frames;
        uint32_t reset; /* code; NEVER */
        int64_t window;
        bool ended;
        char body[256];
    } streams[STREAMS];
} seen;

static void see_nothing(void)
{
    if (seen.inflater != NULL)
        nghttp2_hd_inflate_del(seen.inflater);
    memset(&seen, 0, sizeof(seen));
    assert_int_equal(nghttp2_hd_inflate_new(&seen.inflater), 0);
    seen.goaway = seen.last = NEVER;
    seen.conn_window = 65535;
    for (unsigned i = 0; i < STREAMS; i++) {
        seen.streams[i].reset = NEVER;
        seen.streams[i].window = 65535;
    }
}

static uint32_t u32(const char *p)
{
    const unsigned char *u = (const unsigned char *) p;

    return (uint32_t) u[0] << 24 | (uint32_t) u[1] << 16 | (uint32_t) u[2] << 8 | u[3];
}

static void see_head(uint32_t id, const char *p, size_t n)
{
    nghttp2_nv nv;
    int flags;

    do {
        const ssize_t rc =
            nghttp2_hd_inflate_hd2(seen.inflater, &nv, &flags, (const uint8_t *) p, n, 1);
        assert_true(rc >= 0);
        p += rc;
        n -= (size_t) rc;
        if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0 && nv.namelen == 7 &&
            memcmp(nv.name, ":status", 7) == 0)
            seen.streams[id].status = (unsigned) atoi((const char *) nv.value);
    } while ((flags & NGHTTP2_HD_INFLATE_FINAL) == 0);
    nghttp2_hd_inflate_end_headers(seen.inflater);
}

static void see_data(uint32_t id, const char *p, size_t n)
{
    char *body = seen.streams[id].body;
    const size_t have = strlen(body), room = sizeof(seen.streams[id].body) - 1 - have;

    memcpy(body + have, p, n < room ? n : room);
    seen.streams[id].data_bytes += (unsigned) n;
    seen.streams[id].data_frames++;
}

static void see_settings(const char *p, size_t n)
{
    for (size_t at = 0; at + 6 <= n; at += 6)
        for (unsigned i = 0; p[at + 1] == NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE && i < STREAMS; i++)
            seen.streams[i].window = u32(p + at + 2);
}

static void see_frame(int type, int flags, uint32_t id, const char *p, size_t n)
{
    assert_true(id < STREAMS);
    switch (type) {
    case DATA:
        see_data(id, p, n);
        break;
    case HEADERS: /* never padded, never with a priority, always whole */
        assert_int_equal(flags & ~END_STREAM, END_HEADERS);
        see_head(id, p, n);
        break;
    case RST_STREAM:
        seen.streams[id].reset = u32(p);
        return;
    case SETTINGS:
        *((flags & ACK) != 0 ? &seen.acks : &seen.settings) += 1;
        see_settings(p, n);
        return;
    case WINDOW_UPDATE:
        *(id == 0 ? &seen.conn_window : &seen.streams[id].window) += u32(p);
        return;
    case PING:
        seen.pongs += (flags & ACK) != 0;
        return;
    case GOAWAY:
        seen.last = u32(p);
        seen.goaway = u32(p + 4);
        return;
    default:
        return;
    }
    if ((flags & END_STREAM) != 0)
        seen.streams[id].ended = true;
}

/* Reads the frames that have come whole. */
static void see(void)
{
    take();
    while (w.len - seen.at >= 9) {
        const char *p = w.got + seen.at;
        const size_t n = u32(p) >> 8;
        if (w.len - seen.at < 9 + n)
            return;
        seen.at += 9 + n;
        see_frame(p[3], p[4], u32(p + 5) & INT32_MAX, p + 9, n);
    }
}

static void see_more(void)
{
    pump();
    see();
}

#define SEEN(condition)                                                                            \
    do {                                                                                           \
        see();                                                                                     \
        STEP_UNTIL(condition, see_more());                                                         \
    } while (0)

/* ---- saying ---- */

static size_t put_head(char *at, int type, int flags, uint32_t id, size_t n)
{
    const unsigned char head[9] = {
        (unsigned char) (n >> 16),  (unsigned char) (n >> 8),  (unsigned char) n,
        (unsigned char) type,       (unsigned char) flags,     (unsigned char) (id >> 24),
        (unsigned char) (id >> 16), (unsigned char) (id >> 8), (unsigned char) id};

    memcpy(at, head, 9);
    return 9;
}

static void say_frame(int type, int flags, uint32_t id, const char *p, size_t n)
{
    char *frame = malloc(9 + n);

    put_head(frame, type, flags, id, n);
    memcpy(frame + 9, p, n);
    say_n(frame, 9 + n);
    free(frame);
}

/* RFC 7541 5.1 and 5.2: a string without Huffman. */
static size_t put_string(char *at, const char *p, size_t n)
{
    size_t rest = n - 127, len = 1;

    at[0] = (char) (n < 127 ? n : 127);
    if (n >= 127) {
        for (; rest >= 128; rest >>= 7)
            at[len++] = (char) (rest | 128);
        at[len++] = (char) rest;
    }
    memcpy(at + len, p, n);
    return len + n;
}

/* "name=value;name=value" as literals that are not indexed. Returns its length. */
static size_t put_block(char *at, const char *text)
{
    size_t len = 0;

    while (*text != '\0') {
        const char *eq = strchr(text, '='), *end = strchrnul(text, ';');
        at[len++] = 0;
        len += put_string(at + len, text, (size_t) (eq - text));
        len += put_string(at + len, eq + 1, (size_t) (end - eq - 1));
        text = *end == ';' ? end + 1 : end;
    }
    return len;
}

static void say_head(int flags, uint32_t id, const char *headers)
{
    char block[8192];

    say_frame(HEADERS, flags, id, block, put_block(block, headers));
}

static void say_preface(void)
{
    see_nothing();
    say_n(NGHTTP2_CLIENT_MAGIC, NGHTTP2_CLIENT_MAGIC_LEN);
}

/* A new connection, up to the settings of both. */
static void greet_with(const char *settings, size_t n)
{
    dial();
    say_preface();
    say_frame(SETTINGS, 0, 0, settings, n);
    SEEN(seen.settings == 1 && seen.acks == 1);
}

static void greet(void)
{
    greet_with("", 0);
}

static bool is_over(void)
{
    return w.eof || w.error != 0;
}

static int start_http2(void **state)
{
    bt_server_config_t config;

    bt_log_set(BT_LOG_ERROR, false, 2);
    bt_server_config_defaults(&config);
    config.has_http2 = true;
    w.config = config;
    world_start();
    greet();
    return 0;
}

static int stop_http2(void **state)
{
    nghttp2_hd_inflate_del(seen.inflater);
    seen.inflater = NULL;
    return teardown(state);
}

static inline void restart_http2(bt_server_config_t config)
{
    config.has_http2 = true;
    restart_with(config);
    greet();
}

#endif
