/* http_fuzz.c - heads and chunked bodies under any bytes and any cuts.
 *
 * The first byte chooses: a request head, an answer head, a chunked body. For each: the result does not depend on where
 * the bytes are cut, spans lie inside the input, and what was accepted keeps the rules that guard against smuggling. A
 * chunked body that we accept must be the same body to llhttp.
 */
#include "base/err.h"
#include "http/chunk.h"
#include "http/head.h"

#include <llhttp.h>
#include <stdlib.h>

#define CHECK(cond) ((cond) ? (void) 0 : abort())

static uint32_t seed;

static size_t next_cut(size_t left)
{
    seed = seed * 1664525 + 1013904223;
    size_t n = 1 + (seed >> 16) % 9;
    return n < left ? n : left;
}

static long scan(const char *p, size_t n)
{
    size_t seen = 0, pieces = 0, bytes = 0, have = 0;
    long whole = bt_head_scan(p, n, &seen), cut = 0, single = 0;

    while (have < n && cut == 0) {
        have += next_cut(n - have);
        cut = bt_head_scan(p, have, &pieces);
    }
    for (have = 1; have <= n && single == 0; have++)
        single = bt_head_scan(p, have, &bytes);
    CHECK(cut == whole && single == whole);
    return whole;
}

static void check_span(bt_str_t s, const char *p, size_t n)
{
    CHECK(s.n == 0 || (s.p >= p && s.p + s.n <= p + n));
    for (size_t i = 0; i < s.n; i++)
        CHECK(s.p[i] != '\r' && s.p[i] != '\n' && s.p[i] != '\0');
}

static unsigned count_of(const bt_head_t *head, bt_str_t name)
{
    unsigned count = 0;
    for (unsigned i = 0; i < head->header_count; i++)
        count += bt_str_ieq(head->headers[i].name, name);
    return count;
}

static void check_head(const bt_head_t *head, const char *p, size_t n)
{
    CHECK(head->header_count <= BT_HTTP_HEADERS_MAX && !head->truncated_headers &&
          head->minor <= 1);
    for (unsigned i = 0; i < head->header_count; i++) {
        bt_str_t name = head->headers[i].name, value = head->headers[i].value;
        CHECK(name.n > 0);
        check_span(name, p, n);
        check_span(value, p, n);
        CHECK(memchr(name.p, ' ', name.n) == NULL && memchr(name.p, ':', name.n) == NULL);
        CHECK(value.n == 0 || (value.p[0] > ' ' || (signed char) value.p[0] < 0));
        (void) bt_head_is_hop(head, name);
    }
    CHECK(count_of(head, BT_STR("content-length")) == head->has_length);
    CHECK(count_of(head, BT_STR("transfer-encoding")) == head->chunked);
    CHECK(!(head->has_length && head->chunked));
}

static void fuzz_head(const char *p, size_t n, bool request)
{
    static bt_header_t headers[BT_HTTP_HEADERS_MAX];
    bt_head_t head;
    long len = scan(p, n);

    if (len <= 0)
        return;
    int rc = request ? bt_head_parse_request(p, (size_t) len, headers, &head)
                     : bt_head_parse_response(p, (size_t) len, headers, &head);
    if (rc != 0) {
        CHECK(head.refuse >= 400);
        return;
    }
    check_head(&head, p, (size_t) len);
    if (!request)
        return;
    check_span(head.method_text, p, (size_t) len);
    CHECK(head.path.n > 0 && head.path.n <= head.target.n);
    CHECK(count_of(&head, BT_STR("host")) == 1 ||
          (head.minor == 0 && count_of(&head, BT_STR("host")) == 0));
}

struct body {
    char *data;
    size_t n, end; /* end: where the framing ended in the input; 0 = it did not */
    int rc;
};

static struct body decode(const char *p, size_t n, bool cut)
{
    struct body body = {.data = malloc(n + 1)};
    bt_chunk_t chunk;
    bt_str_t data;
    size_t at = 0;

    bt_chunk_init(&chunk);
    while (at < n && body.rc == 0 && body.end == 0) {
        size_t piece_at = 0;
        bt_str_t piece = {p + at, cut ? next_cut(n - at) : n - at};
        while ((body.rc = bt_chunk_next(&chunk, piece, &piece_at, &data)) == BT_CHUNK_DATA) {
            CHECK(data.n > 0 && data.p >= piece.p && data.p + data.n <= piece.p + piece.n);
            memcpy(body.data + body.n, data.p, data.n);
            body.n += data.n;
        }
        at += piece_at;
        if (body.rc == BT_CHUNK_END) {
            body.rc = 0;
            body.end = at;
        }
        CHECK(body.rc != 0 || body.end != 0 || piece_at == piece.n);
    }
    return body;
}

static int on_body(llhttp_t *llhttp, const char *p, size_t n)
{
    struct body *body = llhttp->data;
    memcpy(body->data + body->n, p, n);
    body->n += n;
    return 0;
}

static int on_complete(llhttp_t *llhttp)
{
    ((struct body *) llhttp->data)->end = 1;
    return HPE_PAUSED;
}

/* llhttp has its own opinions on extensions and trailers, so bodies with them are not compared. A line of nothing but
 * zeros right before the end is the last chunk's: a trailer has a colon.
 */
static bool is_plain(const char *p, size_t n)
{
    size_t at = n - 4;

    if (memchr(p, ';', n) != NULL || memcmp(p + n - 4, "\r\n\r\n", 4) != 0)
        return false;
    while (at > 0 && p[at - 1] == '0')
        at--;
    return at < n - 4 && (at == 0 || p[at - 1] == '\n');
}

static void compare_with_llhttp(const char *p, const struct body *ours)
{
    static const char head[] = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    static const llhttp_settings_t settings = {.on_body = on_body,
                                               .on_message_complete = on_complete};
    struct body theirs = {.data = malloc(ours->end + 1)};
    llhttp_t llhttp;

    llhttp_init(&llhttp, HTTP_REQUEST, &settings);
    llhttp.data = &theirs;
    CHECK(llhttp_execute(&llhttp, head, sizeof(head) - 1) == HPE_OK);
    (void) llhttp_execute(&llhttp, p, ours->end);
    CHECK(theirs.end == 1 && theirs.n == ours->n && memcmp(theirs.data, ours->data, ours->n) == 0);
    free(theirs.data);
}

static void fuzz_chunks(const char *p, size_t n)
{
    struct body whole = decode(p, n, false), cut = decode(p, n, true);

    CHECK(whole.rc == cut.rc && whole.end == cut.end && whole.n == cut.n);
    CHECK(memcmp(whole.data, cut.data, whole.n) == 0);
    if (whole.end > 0 && is_plain(p, whole.end))
        compare_with_llhttp(p, &whole);
    free(whole.data);
    free(cut.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    seed = data[0];
    char *p = malloc(size - 1); /* of exactly that size, so that reading past it is found */
    memcpy(p, data + 1, size - 1);
    if (data[0] % 3 == 2)
        fuzz_chunks(p, size - 1);
    else
        fuzz_head(p, size - 1, data[0] % 3 == 0);
    free(p);
    return 0;
}
