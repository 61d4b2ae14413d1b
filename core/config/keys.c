/* Client keys: a file, one key a line, and behind it what the key's owner is and may: "KEY [tenant=NAME] [set-tenant]". An empty file
 * is refused: it would lock everybody out. */
#include "config/config_impl.h"

#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define KEYS_MAX 4096U
#define KEY_BYTES_MAX 512U
#define LINE_BYTES_MAX (KEY_BYTES_MAX + 128U)
#define TENANT_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"

struct reader {
    const char *path;
    unsigned line;
    bt_client_keys_t *keys;
    char *err;
    size_t err_size;
};

/* The key itself is never part of it. */
__attribute__((format(printf, 2, 3))) static int refuse(const struct reader *r, const char *fmt,
                                                        ...)
{
    va_list args;
    int n = r->line != 0 ? snprintf(r->err, r->err_size, "%s:%u: ", r->path, r->line)
                         : snprintf(r->err, r->err_size, "%s: ", r->path);

    va_start(args, fmt);
    if (n > 0 && (size_t) n < r->err_size)
        vsnprintf(r->err + n, r->err_size - (size_t) n, fmt, args);
    va_end(args);
    return BT_E_CONFIG;
}

/* Up to the next blank; false at the end. */
static bool next_word(bt_str_t *rest, bt_str_t *word_p)
{
    *rest = bt_str_trim(*rest);
    size_t n = 0;
    while (n < rest->n && (unsigned char) rest->p[n] > ' ')
        n++;
    *word_p = (bt_str_t){rest->p, n};
    *rest = (bt_str_t){rest->p + n, rest->n - n};
    return n > 0;
}

static int read_tenant(const struct reader *r, bt_str_t name, bt_str_t *tenant_p)
{
    size_t n = 0;
    while (n < name.n && strchr(TENANT_CHARS, name.p[n]) != NULL && name.p[n] != '\0')
        n++;
    if (name.n == 0 || name.n > BT_CLIENT_TENANT_MAX || n < name.n)
        return refuse(r, "tenant=: at most %d letters, digits, '_', '-', '.' are needed",
                      BT_CLIENT_TENANT_MAX);
    *tenant_p = name;
    return 0;
}

static int check_key(const struct reader *r, bt_str_t text)
{
    if (text.n > KEY_BYTES_MAX)
        return refuse(r, "a key has at most %u bytes", KEY_BYTES_MAX);
    if (memchr(text.p, 0x7f, text.n) != NULL)
        return refuse(r, "a key holds no control characters");
    for (unsigned i = 0; i < r->keys->count; i++)
        if (bt_str_eq(bt_str(r->keys->items[i].text), text))
            return refuse(r, "this key stands in the file already: whose is it?");
    return r->keys->count < KEYS_MAX ? 0 : refuse(r, "more than %u keys", KEYS_MAX);
}

static int read_key(const struct reader *r, bt_str_t line)
{
    const bt_str_t prefix = BT_STR("tenant=");
    bt_str_t text, word, tenant = BT_STR_NULL;
    bool sets_tenant = false;
    int rc;

    (void) next_word(&line, &text);
    rc = check_key(r, text);
    while (rc == 0 && next_word(&line, &word))
        if (bt_str_eq(word, BT_STR("set-tenant")))
            sets_tenant = true;
        else if (bt_str_starts(word, prefix))
            rc = read_tenant(r, (bt_str_t){word.p + prefix.n, word.n - prefix.n}, &tenant);
        else
            rc = refuse(r, "behind the key only tenant=NAME and set-tenant may stand");
    if (rc < 0)
        return rc;
    rc = bt_client_key_init(&r->keys->items[r->keys->count], text, tenant, sets_tenant);
    r->keys->count += rc == 0;
    return rc;
}

static int read_lines(struct reader *r, FILE *in)
{
    char line[LINE_BYTES_MAX + 2];
    while (fgets(line, sizeof line, in) != NULL) {
        bt_str_t s = bt_str_trim(bt_str(line));
        r->line++;
        if (strchr(line, '\n') == NULL && !feof(in))
            return refuse(r, "a line has at most %u bytes", LINE_BYTES_MAX);
        if (s.n == 0 || s.p[0] == '#')
            continue;
        int rc = read_key(r, s);
        if (rc < 0)
            return rc;
    }
    r->line = 0;
    return r->keys->count > 0 ? 0 : refuse(r, "no key in it: every client would be refused");
}

int bt_keys_read(const char *path, bt_client_keys_t **keys_p, char *err, size_t err_size)
{
    struct reader r = {.path = path, .err = err, .err_size = err_size};
    FILE *in = fopen(path, "re");
    if (in == NULL)
        return refuse(&r, "%s", strerror(errno));
    r.keys = calloc(1, sizeof *r.keys);
    if (r.keys != NULL)
        r.keys->items = calloc(KEYS_MAX, sizeof *r.keys->items);
    int rc = r.keys != NULL && r.keys->items != NULL ? read_lines(&r, in) : BT_E_NOMEM;
    fclose(in);
    if (rc < 0)
        bt_keys_free(r.keys);
    else
        *keys_p = r.keys;
    return rc;
}

bool bt_keys_same(const bt_client_keys_t *a, const bt_client_keys_t *b)
{
    if (a == NULL || b == NULL || a->count != b->count)
        return a == b;
    for (unsigned i = 0; i < a->count; i++)
        if (strcmp(a->items[i].text, b->items[i].text) != 0 ||
            strcmp(a->items[i].tenant, b->items[i].tenant) != 0 ||
            a->items[i].sets_tenant != b->items[i].sets_tenant)
            return false;
    return true;
}

void bt_keys_free(bt_client_keys_t *keys)
{
    for (unsigned i = 0; keys != NULL && keys->items != NULL && i < keys->count; i++)
        free(keys->items[i].text);
    if (keys != NULL)
        free(keys->items);
    free(keys);
}
