/* A doubling buffer. Room for the NUL is always part of the capacity that is asked for. */
#include "base/text.h"

#include "base/json.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>

#define FIRST_BYTES ((size_t) 256)

void bt_text_init(bt_text_t *t)
{
    *t = (bt_text_t){NULL, 0, 0, false};
}

void bt_text_fini(bt_text_t *t)
{
    if (t->data != NULL)
        bt_mem_resize(BT_MEM_TEXTS, t->data, t->cap, 0);
    bt_text_init(t);
}

/* True when `more` bytes and a NUL fit. */
static bool reserve(bt_text_t *t, size_t more)
{
    if (t->failed || more > BT_TEXT_MAX_BYTES - t->len) {
        t->failed = true;
        return false;
    }
    if (t->cap - t->len > more)
        return true;
    size_t cap = t->cap > 0 ? t->cap : FIRST_BYTES;
    while (cap <= t->len + more)
        cap *= 2;
    char *data = bt_mem_resize(BT_MEM_TEXTS, t->data, t->cap, cap);
    if (data == NULL) {
        t->failed = true;
        return false;
    }
    t->data = data;
    t->cap = cap;
    return true;
}

void bt_text_put(bt_text_t *t, bt_str_t s)
{
    if (!reserve(t, s.n))
        return;
    if (s.n > 0)
        memcpy(t->data + t->len, s.p, s.n);
    t->len += s.n;
    t->data[t->len] = '\0';
}

void bt_text_puts(bt_text_t *t, const char *z)
{
    bt_text_put(t, bt_str(z));
}

void bt_text_printf(bt_text_t *t, const char *fmt, ...)
{
    va_list args;

    if (!reserve(t, 64))
        return;
    va_start(args, fmt);
    int n = vsnprintf(t->data + t->len, t->cap - t->len, fmt, args);
    va_end(args);
    if (n < 0 || !reserve(t, (size_t) n)) {
        t->failed = true;
        if (t->data != NULL)
            t->data[t->len] = '\0';
        return;
    }
    va_start(args, fmt);
    vsnprintf(t->data + t->len, t->cap - t->len, fmt, args);
    va_end(args);
    t->len += (size_t) n;
}

void bt_text_json_str(bt_text_t *t, bt_str_t s)
{
    if (!reserve(t, bt_json_quoted_size(s)))
        return;
    t->len += bt_json_quote(s, t->data + t->len);
    t->data[t->len] = '\0';
}

void bt_text_json_cut(bt_text_t *t, bt_str_t s, size_t max)
{
    bt_text_json_str(t, bt_str_cut(s, max));
    if (s.n <= max || t->failed)
        return;
    t->len--; /* its last quote */
    bt_text_puts(t, "...\"");
}

void bt_text_json_member(bt_text_t *t, const char *name, const char *value)
{
    bt_text_printf(t, ",\"%s\":", name);
    if (value != NULL)
        bt_text_json_str(t, bt_str(value));
    else
        bt_text_puts(t, "null");
}

bt_str_t bt_text_str(const bt_text_t *t)
{
    return (bt_str_t){t->data, t->len};
}

char *bt_text_take(bt_text_t *t)
{
    char *data = t->data;

    bt_mem_count(BT_MEM_TEXTS, -(int64_t) t->cap);
    bt_text_init(t);
    return data;
}
