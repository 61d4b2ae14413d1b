/* redact.c - a tiny scanner: strings, depth, and the name of the current top-level member. */
#include "api/redact.h"

#include <string.h>

static const char name[] = "kv_transfer_params";
#define NAME_LEN (sizeof(name) - 1)

void bt_redact_init(bt_redact_t *r)
{
    memset(r, 0, sizeof(*r));
}

static void string_ends(bt_redact_t *r)
{
    r->in_string = 0;
    if (r->is_key)
        r->hit = r->key_len == NAME_LEN && memcmp(r->key, name, NAME_LEN) == 0;
    r->is_key = 0;
}

static void in_string(bt_redact_t *r, char c)
{
    if (r->escaped)
        r->escaped = 0;
    else if (c == '\\')
        r->escaped = 1;
    else if (c == '"') {
        string_ends(r);
        return;
    }
    if (r->is_key) {
        if (r->key_len < sizeof(r->key))
            r->key[r->key_len] = c;
        r->key_len++;
    }
}

static void outside(bt_redact_t *r, char c)
{
    switch (c) {
    case '"':
        r->in_string = 1;
        r->is_key = r->depth == 1 && r->expect_key;
        r->key_len = 0;
        break;
    case '{':
    case '[':
        if (r->depth == 0)
            r->expect_key = 1;
        if (r->depth == 1 && r->hit && c == '{') {
            r->blanking = 1;
            r->done = 1;
        }
        r->depth++;
        break;
    case '}':
    case ']':
        if (r->depth != 0)
            r->depth--;
        break;
    case ':':
        if (r->depth == 1)
            r->expect_key = 0;
        break;
    case ',':
        if (r->depth == 1) {
            r->expect_key = 1;
            r->hit = 0;
        }
        break;
    default:
        break;
    }
}

/* Inside a string that is no key only a quote or a backslash matters. Returns bytes to skip. */
static size_t skip_text(const bt_redact_t *r, const char *p, size_t n)
{
    size_t i = 0;

    if (r->is_key || r->escaped)
        return 0;
    while (i < n && p[i] != '"' && p[i] != '\\')
        i++;
    return i;
}

bool bt_redact_feed(bt_redact_t *r, char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const bool was_blanking = r->blanking;

        if (r->in_string) {
            size_t skip = skip_text(r, p + i, n - i);
            if (r->blanking)
                memset(p + i, ' ', skip);
            i += skip;
            if (i == n)
                break;
            in_string(r, p[i]);
        } else {
            outside(r, p[i]);
        }
        if (!was_blanking)
            continue; /* the opening brace stays */
        if (r->depth == 1 && !r->in_string) {
            r->blanking = 0; /* and so does the closing one */
            r->hit = 0;
        } else {
            p[i] = ' ';
        }
    }
    return r->done;
}
