/* answer.c - head, then the body by the first rule of RFC 9112 6.3 that fits.
 *
 *   HEAD --1xx--> HEAD
 *     |--> NOTHING (HEAD, 204, 304, length 0)
 *     |--> LENGTH | CHUNKED --> DONE
 *     \--> UNTIL_EOF (neither; ends with the connection)
 */
#include "http/answer.h"

#include "base/err.h"
#include "http/head.h"

#include <string.h>

enum { READ_HEAD, READ_LENGTH, READ_CHUNKED, READ_UNTIL_EOF, DONE };

void bt_answer_drop_head(bt_answer_t *a)
{
    bt_arena_fini(&a->arena);
    a->head = NULL;
    a->bytes = NULL;
    a->len = a->cap = a->seen = 0;
}

void bt_answer_start(bt_answer_t *a, bool head_request)
{
    bt_answer_drop_head(a);
    a->state = READ_HEAD;
    a->head_request = head_request;
    a->until_eof = false;
}

void bt_answer_fini(bt_answer_t *a)
{
    bt_answer_drop_head(a);
}

static void gather(bt_answer_t *a, const char *p, size_t n)
{
    if (a->len + n > a->cap) {
        const size_t cap = a->len == 0 ? n : 2 * (a->len + n);
        char *grown = bt_arena_alloc(&a->arena, cap);
        if (a->len > 0)
            memcpy(grown, a->bytes, a->len);
        a->bytes = grown;
        a->cap = cap;
    }
    memcpy(a->bytes + a->len, p, n);
    a->len += n;
}

/* Gathers bytes of the head; 1 = complete, and a->len is its exact length. */
static int gather_head(bt_answer_t *a, bt_str_t piece, size_t *at_p)
{
    const char *p = piece.p + *at_p;
    size_t n = piece.n - *at_p, before = a->len;
    long end;

    if (before > 0) {
        gather(a, p, n);
        end = bt_head_scan(a->bytes, a->len, &a->seen);
    } else {
        end = bt_head_scan(p, n, &a->seen);
        if (end < 0)
            return BT_E_UPSTREAM_HTTP;
        gather(a, p, end > 0 ? (size_t) end : n);
    }
    if (end < 0)
        return BT_E_UPSTREAM_HTTP;
    *at_p += end > 0 ? (size_t) end - before : n;
    if (end > 0)
        a->len = (size_t) end;
    return end > 0;
}

/* Something that does not speak HTTP/1 may never send a blank line: not worth a deadline. */
static bool starts_right(const bt_answer_t *a)
{
    static const char start[] = "HTTP/1.";
    size_t n = a->len < sizeof(start) - 1 ? a->len : sizeof(start) - 1;

    return memcmp(a->bytes, start, n) == 0;
}

/* from: its headers are the parser's. */
static void keep_head(bt_answer_t *a, const bt_head_t *from)
{
    const size_t bytes = from->header_count * sizeof(*from->headers);
    bt_head_t *head = bt_arena_alloc(&a->arena, sizeof(*head) + bytes);

    *head = *from;
    head->headers = (bt_header_t *) (head + 1);
    if (bytes > 0)
        memcpy(head->headers, from->headers, bytes);
    a->head = head;
    a->keep_alive = head->keep_alive;
}

static void choose_body(bt_answer_t *a)
{
    const bt_head_t *head = a->head;

    a->left = head->has_length ? head->length : 0;
    if (a->head_request || head->status == 204 || head->status == 304) {
        a->state = DONE;
    } else if (head->chunked) {
        bt_chunk_init(&a->chunk);
        a->state = READ_CHUNKED;
    } else if (head->has_length) {
        a->state = a->left > 0 ? READ_LENGTH : DONE;
    } else {
        a->until_eof = true;
        a->state = READ_UNTIL_EOF;
    }
}

static int read_head(bt_answer_t *a, bt_str_t piece, size_t *at_p)
{
    bt_header_t scratch[BT_HTTP_HEADERS_MAX];
    bt_head_t head;

    while (*at_p < piece.n) {
        int rc = gather_head(a, piece, at_p);
        if (rc < 0)
            return rc;
        if (!starts_right(a))
            return BT_E_UPSTREAM_HTTP;
        if (rc == 0)
            return BT_ANSWER_MORE;
        if (bt_head_parse_response(a->bytes, a->len, scratch, &head) < 0)
            return BT_E_UPSTREAM_HTTP;
        /* 101 would end HTTP on this connection; nobody asked for it. */
        if (head.status < 100 || head.status == 101)
            return BT_E_UPSTREAM_HTTP;
        if (head.status < 200) {
            bt_answer_drop_head(a);
            continue;
        }
        keep_head(a, &head);
        choose_body(a);
        return BT_ANSWER_HEAD;
    }
    return BT_ANSWER_MORE;
}

static int take_rest(bt_str_t piece, size_t *at_p, uint64_t most, bt_str_t *body_p)
{
    size_t n = piece.n - *at_p;

    if (n == 0)
        return BT_ANSWER_MORE;
    if (n > most)
        n = (size_t) most;
    *body_p = (bt_str_t){piece.p + *at_p, n};
    *at_p += n;
    return BT_ANSWER_BODY;
}

static int read_chunked(bt_answer_t *a, bt_str_t piece, size_t *at_p, bt_str_t *body_p)
{
    int rc = bt_chunk_next(&a->chunk, piece, at_p, body_p);

    if (rc < 0)
        return BT_E_UPSTREAM_HTTP;
    if (rc == BT_CHUNK_DATA)
        return BT_ANSWER_BODY;
    if (rc == BT_CHUNK_MORE)
        return BT_ANSWER_MORE;
    a->state = DONE;
    return BT_ANSWER_END;
}

int bt_answer_next(bt_answer_t *a, bt_str_t piece, size_t *at_p, bt_str_t *body_p)
{
    int rc;

    switch (a->state) {
    case READ_HEAD:
        return read_head(a, piece, at_p);
    case READ_CHUNKED:
        return read_chunked(a, piece, at_p, body_p);
    case READ_LENGTH:
        rc = take_rest(piece, at_p, a->left, body_p);
        if (rc == BT_ANSWER_BODY && (a->left -= body_p->n) == 0)
            a->state = DONE;
        return rc;
    case READ_UNTIL_EOF:
        return take_rest(piece, at_p, UINT64_MAX, body_p);
    default:
        return BT_ANSWER_END;
    }
}

int bt_answer_eof(bt_answer_t *a)
{
    if (a->state != READ_UNTIL_EOF)
        return BT_E_RESET;
    a->state = DONE;
    return BT_ANSWER_END;
}

bool bt_answer_keeps_alive(const bt_answer_t *a)
{
    return a->state == DONE && !a->until_eof && a->keep_alive;
}
