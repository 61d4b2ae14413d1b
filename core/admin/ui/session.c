/* A cookie is a host's, not a port's: two gateways of one host must not log each other out, so its name has a number that each
 * process draws. SameSite=Strict keeps it from other sites' pages, and what changes something must say its origin as well
 * (admin.c), for another port of this host is the same site.
 */
#include "admin/ui/session.h"

#include "base/clock.h"
#include "base/rand.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bt_sessions {
    char name[24]; /* "baton_ui_", which dispatch/answer/headers.c knows, and its number */
    struct session {
        char id[BT_SESSION_ID_CHARS + 1];
        uint64_t until_ms; /* 0 = nobody's */
        char *shown;       /* own; NULL = the admin key */
    } all[BT_SESSIONS_MAX];
};

static void draw_hex(char *out, unsigned chars)
{
    unsigned char bytes[BT_SESSION_ID_CHARS / 2];

    bt_rand_secure(bytes, sizeof bytes);
    for (unsigned i = 0; i < chars / 2; i++)
        snprintf(out + 2 * (size_t) i, 3, "%02x", bytes[i]);
}

bt_sessions_t *bt_sessions_new(void)
{
    bt_sessions_t *s = calloc(1, sizeof *s);
    char number[9];

    if (s == NULL)
        return NULL;
    draw_hex(number, 8);
    snprintf(s->name, sizeof s->name, "baton_ui_%s", number);
    return s;
}

static void forget(struct session *one)
{
    if (one->shown != NULL)
        explicit_bzero(one->shown, strlen(one->shown));
    free(one->shown);
    *one = (struct session){.until_ms = 0};
}

void bt_sessions_free(bt_sessions_t *s)
{
    for (unsigned i = 0; s != NULL && i < BT_SESSIONS_MAX; i++)
        forget(&s->all[i]);
    free(s);
}

static void write_cookie(const bt_sessions_t *s, const char *id, unsigned secs, bool is_tls,
                         char *out, size_t size)
{
    snprintf(out, size, "%s=%s; Path=/; Max-Age=%u; HttpOnly; SameSite=Strict%s", s->name, id, secs,
             is_tls ? "; Secure" : "");
}

bool bt_sessions_open(bt_sessions_t *s, bool is_tls, bt_str_t shown, char *out, size_t size)
{
    struct session *oldest = &s->all[0];
    char *copy = shown.n > 0 ? strndup(shown.p, shown.n) : NULL;

    if (shown.n > 0 && copy == NULL)
        return false;

    for (unsigned i = 1; i < BT_SESSIONS_MAX; i++)
        if (s->all[i].until_ms < oldest->until_ms)
            oldest = &s->all[i];
    forget(oldest);
    oldest->shown = copy;
    draw_hex(oldest->id, BT_SESSION_ID_CHARS);
    oldest->until_ms = bt_clock_ms() + BT_SESSION_SECS * 1000ULL;
    write_cookie(s, oldest->id, BT_SESSION_SECS, is_tls, out, size);
    return true;
}

static struct session *find(bt_sessions_t *s, bt_str_t id)
{
    const uint64_t now_ms = bt_clock_ms();
    struct session *found = NULL;

    if (id.n != BT_SESSION_ID_CHARS)
        return NULL;
    for (unsigned i = 0; i < BT_SESSIONS_MAX; i++)
        if (s->all[i].until_ms > now_ms && bt_str_is_secret(bt_str(s->all[i].id), id))
            found = &s->all[i];
    return found;
}

bool bt_sessions_is_open(bt_sessions_t *s, bt_str_t id)
{
    return find(s, id) != NULL;
}

bt_str_t bt_sessions_shown(bt_sessions_t *s, bt_str_t id)
{
    const struct session *one = find(s, id);

    return one != NULL && one->shown != NULL ? bt_str(one->shown) : BT_STR("");
}

void bt_sessions_close(bt_sessions_t *s, bt_str_t id, char *out, size_t size)
{
    struct session *one = find(s, id);

    if (one != NULL)
        forget(one);
    write_cookie(s, "", 0, false, out, size);
}

bt_str_t bt_sessions_find(bt_sessions_t *s, bt_str_t cookies)
{
    const bt_str_t name = bt_str(s->name);

    while (cookies.n > 0) {
        const char *end = memchr(cookies.p, ';', cookies.n);
        const size_t n = end != NULL ? (size_t) (end - cookies.p) : cookies.n;
        const bt_str_t one = bt_str_trim((bt_str_t){cookies.p, n});
        if (one.n > name.n && bt_str_starts(one, name) && one.p[name.n] == '=') {
            const bt_str_t id = {one.p + name.n + 1, one.n - name.n - 1};
            if (find(s, id) != NULL)
                return id;
        }
        cookies = end != NULL ? (bt_str_t){end + 1, cookies.n - n - 1} : BT_STR("");
    }
    return BT_STR("");
}
