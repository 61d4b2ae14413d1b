/* ITEMS counts brackets outside of strings. What opens at depth 1 right behind "items" and a colon is the array; an element begins with a
 * brace at depth 2 and ends where the depth is 2 again. An element that is too large is passed over to its end: nothing else is lost by it.
 */
#include "discovery/json_stream.h"

#include "base/err.h"

#include <stdlib.h>

#define REST_MAX ((size_t) 64 << 10)
#define KEEP_BYTES ((size_t) 64 << 10) /* of the buffer, between values */

void bt_json_stream_init(bt_json_stream_t *s, enum bt_json_stream_kind kind, size_t value_max)
{
    *s = (bt_json_stream_t){.kind = kind, .value_max = value_max, .rest_max = REST_MAX};
}

void bt_json_stream_fini(bt_json_stream_t *s)
{
    free(s->value.data);
    free(s->rest.data);
    s->value = s->rest = (bt_json_bytes_t){0};
}

void bt_json_stream_reset(bt_json_stream_t *s, enum bt_json_stream_kind kind)
{
    const size_t value_max = s->value_max;

    bt_json_stream_fini(s);
    bt_json_stream_init(s, kind, value_max);
}

static int append(bt_json_bytes_t *b, const char *p, size_t n, size_t max)
{
    if (n > max - b->len)
        return BT_E_LIMIT;
    if (b->cap - b->len < n) {
        size_t cap = b->cap != 0 ? b->cap : 4096;
        while (cap - b->len < n)
            cap *= 2;
        char *data = realloc(b->data, cap);
        if (data == NULL)
            return BT_E_NOMEM;
        b->data = data;
        b->cap = cap;
    }
    memcpy(b->data + b->len, p, n);
    b->len += n;
    return 0;
}

static int hand_over(bt_json_stream_t *s, bt_json_stream_cb cb, void *user)
{
    const bool goes_on = cb(user, (bt_str_t){s->value.data, s->value.len});

    s->value.len = 0;
    if (s->value.cap > KEEP_BYTES) {
        free(s->value.data);
        s->value = (bt_json_bytes_t){0};
    }
    return goes_on ? 0 : BT_E_CANCELLED;
}

/* ---- lines ---- */

static int feed_lines(bt_json_stream_t *s, bt_str_t bytes, bt_json_stream_cb cb, void *user)
{
    int rc = 0;

    while (bytes.n > 0 && rc == 0) {
        const char *end = memchr(bytes.p, '\n', bytes.n);
        const size_t n = end != NULL ? (size_t) (end - bytes.p) : bytes.n;
        const size_t used = end != NULL ? n + 1 : n;
        if (end != NULL && s->value.len == 0 && n <= s->value_max) {
            rc = n == 0 || cb(user, (bt_str_t){bytes.p, n}) ? 0 : BT_E_CANCELLED;
        } else {
            rc = append(&s->value, bytes.p, n, s->value_max);
            if (rc == 0 && end != NULL)
                rc = hand_over(s, cb, user);
        }
        bytes.p += used;
        bytes.n -= used;
    }
    return rc;
}

/* ---- items ---- */

/* Does what was read of the object end in "items", a colon and nothing else? */
static bool is_items_key(const bt_json_bytes_t *rest)
{
    static const char key[] = "\"items\"";
    size_t n = rest->len;

    while (n > 0 && bt_str_is_blank(rest->data[n - 1]))
        n--;
    if (n == 0 || rest->data[--n] != ':')
        return false;
    while (n > 0 && bt_str_is_blank(rest->data[n - 1]))
        n--;
    return n >= sizeof key - 1 &&
           memcmp(rest->data + n - (sizeof key - 1), key, sizeof key - 1) == 0;
}

/* Of an element; one that is too large is counted once and dropped. */
static int append_value(bt_json_stream_t *s, const char *p, size_t n)
{
    if (s->value.len > s->value_max) /* dropped already */
        return 0;
    int rc = append(&s->value, p, n, s->value_max);
    if (rc != BT_E_LIMIT)
        return rc;
    s->too_large++;
    free(s->value.data);
    s->value = (bt_json_bytes_t){.len = s->value_max + 1};
    return 0;
}

/* What a run of bytes belongs to. */
static int flush(bt_json_stream_t *s, const char *from, const char *to)
{
    const size_t n = (size_t) (to - from);

    if (n == 0 || (s->in_items && s->depth == 2 && !s->in_string))
        return 0; /* between elements */
    return s->in_items ? append_value(s, from, n) : append(&s->rest, from, n, s->rest_max);
}

static const char *skip_string(bt_json_stream_t *s, const char *p, const char *end)
{
    for (; p < end; p++) {
        if (s->is_escaped)
            s->is_escaped = false;
        else if (*p == '\\')
            s->is_escaped = true;
        else if (*p == '"') {
            s->in_string = false;
            return p + 1;
        }
    }
    return end;
}

static int end_value(bt_json_stream_t *s, bt_json_stream_cb cb, void *user)
{
    if (s->value.len <= s->value_max)
        return hand_over(s, cb, user);
    s->value = (bt_json_bytes_t){0};
    return 0;
}

/* A bracket at p. from_p: where the run that is not flushed yet begins. */
static int open_bracket(bt_json_stream_t *s, const char *p, const char **from_p)
{
    const bool begins_value = s->in_items && s->depth == 2;
    int rc = 0;

    if (begins_value && *p != '{')
        return BT_E_JSON;
    if (begins_value) {
        *from_p = p;
    } else if (!s->in_items && s->depth == 1 && *p == '[') {
        rc = flush(s, *from_p, p + 1);
        *from_p = p + 1;
        s->rest.len -= rc == 0; /* the bracket itself, for the look back */
        s->in_items = rc == 0 && is_items_key(&s->rest);
        s->rest.len += rc == 0;
    }
    s->depth++;
    return rc;
}

static int close_bracket(bt_json_stream_t *s, const char *p, const char **from_p,
                         bt_json_stream_cb cb, void *user)
{
    int rc = 0;

    if (s->depth == 0)
        return BT_E_JSON;
    if (s->in_items && s->depth == 2) { /* of the array */
        s->in_items = false;
        *from_p = p;
    } else if (s->in_items && s->depth == 3) {
        rc = flush(s, *from_p, p + 1);
        *from_p = p + 1;
        if (rc == 0)
            rc = end_value(s, cb, user);
    }
    s->depth--;
    return rc;
}

static int feed_items(bt_json_stream_t *s, bt_str_t bytes, bt_json_stream_cb cb, void *user)
{
    const char *p = bytes.p, *const end = bytes.p + bytes.n, *from = p;
    int rc = 0;

    while (p < end && rc == 0) {
        if (s->in_string) {
            p = skip_string(s, p, end);
            continue;
        }
        const char c = *p;
        if (c == '"') {
            if (s->in_items && s->depth == 2)
                return BT_E_JSON; /* elements are objects */
            s->in_string = true;
        } else if (c == '{' || c == '[') {
            rc = open_bracket(s, p, &from);
        } else if (c == '}' || c == ']') {
            rc = close_bracket(s, p, &from, cb, user);
        }
        p++;
    }
    return rc == 0 ? flush(s, from, end) : rc;
}

int bt_json_stream_feed(bt_json_stream_t *s, bt_str_t bytes, bt_json_stream_cb cb, void *user)
{
    return s->kind == BT_JSON_STREAM_LINES ? feed_lines(s, bytes, cb, user)
                                           : feed_items(s, bytes, cb, user);
}
