/* redact.c - a tiny scanner: strings, depth, and the name of the current member where one is looked for. */
#include "api/redact.h"

/* By depth: vLLM's stand at the top, TensorRT-LLM's in each choice. */
static const char *const names[] = {NULL, "kv_transfer_params", NULL, "disaggregated_params"};
#define DEPTHS (sizeof(names) / sizeof(names[0]))

static bool is_looked_at(const bt_redact_t *r)
{
    return r->depth < DEPTHS && names[r->depth] != NULL;
}

/* What all names end with. */
bool bt_redact_may_have(bt_str_t answer)
{
    return bt_str_find(answer, BT_STR("_params\"")) >= 0;
}

void bt_redact_init(bt_redact_t *r)
{
    memset(r, 0, sizeof(*r));
}

static void string_ends(bt_redact_t *r)
{
    r->in_string = 0;
    if (r->is_key)
        r->hit = r->key_len == strlen(names[r->depth]) &&
                         memcmp(r->key, names[r->depth], r->key_len) == 0
                     ? r->depth
                     : 0;
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
        r->is_key = is_looked_at(r) && r->expect_key[r->depth] && !r->blanking;
        r->key_len = 0;
        break;
    case '{':
    case '[':
        if (r->depth == r->hit && r->hit != 0 && c == '{') {
            r->blanking = 1;
            r->done = 1;
        }
        r->depth++;
        if (is_looked_at(r))
            r->expect_key[r->depth] = c == '{';
        break;
    case '}':
    case ']':
        if (r->depth != 0)
            r->depth--;
        if (r->depth < r->hit && !r->blanking)
            r->hit = 0;
        break;
    case ':':
        if (is_looked_at(r))
            r->expect_key[r->depth] = 0;
        break;
    case ',':
        if (is_looked_at(r) && !r->blanking) {
            r->expect_key[r->depth] = 1;
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
        if (r->depth == r->hit && !r->in_string) {
            r->blanking = 0; /* and so does the closing one */
            r->hit = 0;
        } else {
            p[i] = ' ';
        }
    }
    return r->done;
}
