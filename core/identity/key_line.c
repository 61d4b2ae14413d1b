#include "identity/key_line.h"

#include "base/err.h"
#include "identity/identity.h"

#include <stdio.h>
#include <time.h>

#define DIGITS_PREFIX BT_STR("sha256:")

bool bt_key_split(bt_str_t key, bt_str_t *name_p, bt_str_t *secret_p)
{
    const bt_str_t prefix = BT_STR(BT_KEY_PREFIX);
    const char *mark =
        bt_str_starts(key, prefix) ? memchr(key.p + prefix.n, '_', key.n - prefix.n) : NULL;

    if (mark == NULL)
        return false;
    *name_p = (bt_str_t){key.p, (size_t) (mark - key.p)};
    *secret_p = (bt_str_t){mark + 1, key.n - name_p->n - 1};
    return true;
}

bt_str_t bt_key_line_of_row(bt_str_t name, bt_str_t value)
{
    const bool is_its = name.n > 0 && value.n > name.n && value.n <= BT_KEY_LINE_MAX &&
                        bt_str_starts(value, name) && value.p[name.n] == ' ';

    return is_its && memchr(value.p, '\n', value.n) == NULL ? value : BT_STR_NULL;
}

/* ---- time ---- */

/* Two digits, or -1. */
static int two(const char *p)
{
    return p[0] >= '0' && p[0] <= '9' && p[1] >= '0' && p[1] <= '9' ? (p[0] - '0') * 10 + p[1] - '0'
                                                                    : -1;
}

int bt_key_time_read(bt_str_t text, uint64_t *wall_ms_p)
{
    static const char form[] = "....-..-..T..:..:..Z";
    int parts[7] = {0};
    unsigned count = 0;
    struct tm tm = {0}, back;

    if (text.n != 10 && text.n != sizeof form - 1)
        return BT_E_INVAL;
    for (size_t i = 0; i < text.n;)
        if (form[i] != '.') {
            if (text.p[i] != form[i])
                return BT_E_INVAL;
            i++;
        } else if ((parts[count++] = two(text.p + i)) < 0) {
            return BT_E_INVAL;
        } else {
            i += 2;
        }
    tm.tm_year = parts[0] * 100 + parts[1] - 1900;
    tm.tm_mon = parts[2] - 1;
    tm.tm_mday = parts[3];
    tm.tm_hour = parts[4];
    tm.tm_min = parts[5];
    tm.tm_sec = parts[6];
    back = tm;
    const time_t at = timegm(&tm); /* which makes the 1st of March of the 30th of February */
    if (at < 0 || tm.tm_mday != back.tm_mday || tm.tm_mon != back.tm_mon ||
        tm.tm_hour != back.tm_hour || tm.tm_min != back.tm_min || tm.tm_sec != back.tm_sec)
        return BT_E_INVAL;
    *wall_ms_p = (uint64_t) at * 1000;
    return 0;
}

/* ---- words ---- */

static bool next_word(bt_str_t *rest, bt_str_t *word_p)
{
    size_t n = 0;

    *rest = bt_str_trim(*rest);
    while (n < rest->n && (unsigned char) rest->p[n] > ' ')
        n++;
    *word_p = (bt_str_t){rest->p, n};
    *rest = (bt_str_t){rest->p + n, rest->n - n};
    return n > 0;
}

static bool read_hex(bt_str_t digits, unsigned char *out, size_t bytes)
{
    if (digits.n != 2 * bytes)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        const int high = bt_str_hex(digits.p[2 * i]), low = bt_str_hex(digits.p[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        out[i] = (unsigned char) (high * 16 + low);
    }
    return true;
}

static int read_digest(bt_str_t word, bt_key_line_t *line, char *why, size_t why_size)
{
    const size_t salt = (size_t) 2 * BT_KEY_SALT_BYTES, from = DIGITS_PREFIX.n + salt + 1;
    bt_str_t name, secret;

    line->is_hashed = true;
    if (bt_key_split(line->name, &name, &secret) ||
        !bt_str_starts(line->name, BT_STR(BT_KEY_PREFIX)))
        return bt_err_refuse(why, why_size, "before sha256: stands bk_ID, without the secret");
    if (word.n > from && word.p[from - 1] == ':' &&
        read_hex((bt_str_t){word.p + DIGITS_PREFIX.n, salt}, line->salt, sizeof line->salt) &&
        read_hex((bt_str_t){word.p + from, word.n - from}, line->digest, sizeof line->digest))
        return 0;
    return bt_err_refuse(why, why_size,
                         "sha256: %d hex digits of salt, ':' and %d of the hash are needed, as "
                         "baton key new writes them",
                         2 * BT_KEY_SALT_BYTES, 2 * BT_SHA256_BYTES);
}

static int check_tenant(bt_str_t value, char *why, size_t why_size)
{
    return bt_tenant_is_name(value)
               ? 0
               : bt_err_refuse(why, why_size,
                               "tenant=: at most %d letters, digits, '_', '-', '.' are needed",
                               BT_TENANT_MAX);
}

static int check_scopes(bt_str_t value, char *why, size_t why_size)
{
    bt_str_t unknown;

    if (bt_scopes_read(value, &unknown) != 0 && unknown.p == NULL)
        return 0;
    return bt_err_refuse(why, why_size,
                         "scopes=: \"%.*s\" is none; there are inference, models, cancel, "
                         "admin-read, admin-write and kv-hints",
                         BT_STR_ARG(bt_str_cut(unknown, 40)));
}

static int check_time(const char *what, bt_str_t value, uint64_t *wall_ms_p, char *why,
                      size_t why_size)
{
    return bt_key_time_read(value, wall_ms_p) == 0
               ? 0
               : bt_err_refuse(why, why_size,
                               "%s: a time as 2027-02-25 or 2027-02-25T08:00:00Z is needed", what);
}

static int read_word(bt_str_t word, bt_key_line_t *line, char *why, size_t why_size)
{
    const struct {
        bt_str_t key;
        bt_str_t *value;
    } rows[] = {{BT_STR("tenant="), &line->tenant},   {BT_STR("scopes="), &line->scopes},
                {BT_STR("models="), &line->models},   {BT_STR("expires="), &line->expires},
                {BT_STR("created="), &line->created}, {BT_STR("revoked="), &line->revoked}};
    uint64_t ignored;

    if (bt_str_eq(word, BT_STR("set-tenant"))) {
        line->sets_tenant = true;
        return 0;
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!bt_str_starts(word, rows[i].key))
            continue;
        const bt_str_t value = {word.p + rows[i].key.n, word.n - rows[i].key.n};
        if (rows[i].value->p != NULL)
            return bt_err_refuse(why, why_size, "%.*s is said twice", BT_STR_ARG(rows[i].key));
        *rows[i].value = value;
        if (i == 0)
            return check_tenant(value, why, why_size);
        if (i == 1)
            return check_scopes(value, why, why_size);
        if (i == 2)
            return value.n > 0 ? 0 : bt_err_refuse(why, why_size, "models=: no model is named");
        return check_time(i == 3   ? "expires="
                          : i == 4 ? "created="
                                   : "revoked=",
                          value, i == 3 ? &line->expires_ms : &ignored, why, why_size);
    }
    return bt_err_refuse(why, why_size,
                         "behind the key only tenant=, scopes=, models=, expires=, created=, "
                         "revoked= and set-tenant may stand, then # and a comment");
}

int bt_key_line_read(bt_str_t text, bt_key_line_t *line, char *why, size_t why_size)
{
    bt_str_t rest = bt_str_trim(text), word;
    int rc = 0;

    *line = (bt_key_line_t){.expires_ms = UINT64_MAX};
    if (rest.n == 0 || rest.p[0] == '#') {
        line->comment = rest;
        return 0;
    }
    (void) next_word(&rest, &line->name);
    if (line->name.n > BT_KEY_TEXT_MAX)
        return bt_err_refuse(why, why_size, "a key has at most %u bytes", BT_KEY_TEXT_MAX);
    if (memchr(line->name.p, 0x7f, line->name.n) != NULL)
        return bt_err_refuse(why, why_size, "a key holds no control characters");
    for (bool is_first = true; rc == 0 && next_word(&rest, &word); is_first = false) {
        if (word.p[0] == '#') {
            line->comment = bt_str_trim((bt_str_t){word.p + 1, word.n - 1 + rest.n});
            break;
        }
        rc = is_first && bt_str_starts(word, DIGITS_PREFIX) ? read_digest(word, line, why, why_size)
                                                            : read_word(word, line, why, why_size);
    }
    return rc;
}
