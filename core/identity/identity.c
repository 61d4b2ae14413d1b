#include "identity/identity.h"

#include "base/sha1.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define ADDRESSES (UINT64_C(1) << 63) /* owners that are addresses are above (api/client.h) */

const bt_identity_t bt_identity_anonymous = {
    .source = BT_IDENTITY_ANONYMOUS, .scopes = BT_MAY_AS_CLIENT, .sets_tenant = true};

const char *bt_identity_source_name(enum bt_identity_source source)
{
    static const char *const names[] = {"anonymous", "key", "jwt", "mtls"};

    return names[source];
}

/* ---- scopes ---- */

static const struct {
    const char *name;
    unsigned grants;
} scopes[] = {{"inference", BT_MAY_INFER},
              {"models", BT_MAY_LIST_MODELS},
              {"cancel", BT_MAY_CANCEL},
              {"admin-read", BT_MAY_READ_ADMIN},
              {"admin-write", BT_MAY_CHANGE_ADMIN | BT_MAY_READ_ADMIN},
              {"kv-hints", BT_MAY_GIVE_KV_HINTS}};
#define SCOPE_COUNT (sizeof scopes / sizeof scopes[0])

unsigned bt_scope_of(bt_str_t name)
{
    for (size_t i = 0; i < SCOPE_COUNT; i++)
        if (bt_str_eq(name, bt_str(scopes[i].name)))
            return scopes[i].grants;
    return 0;
}

static bool is_between(char c)
{
    return c == ',' || bt_str_is_blank(c);
}

bool bt_scopes_next(bt_str_t *names, bt_str_t *name_p)
{
    size_t from = 0, to;

    while (from < names->n && is_between(names->p[from]))
        from++;
    for (to = from; to < names->n && !is_between(names->p[to]);)
        to++;
    *name_p = (bt_str_t){names->p + from, to - from};
    *names = (bt_str_t){names->p + to, names->n - to};
    return name_p->n > 0;
}

unsigned bt_scopes_read(bt_str_t names, bt_str_t *unknown_p)
{
    unsigned all = 0;
    bt_str_t name, unknown = BT_STR_NULL;

    while (bt_scopes_next(&names, &name)) {
        const unsigned bits = bt_scope_of(name);
        if (bits == 0 && unknown.p == NULL)
            unknown = name;
        all |= bits;
    }
    if (unknown_p != NULL)
        *unknown_p = unknown;
    return all;
}

/* ---- tenants, owners ---- */

bool bt_tenant_is_name(bt_str_t name)
{
    static const char chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";

    for (size_t i = 0; i < name.n; i++)
        if (name.p[i] == '\0' || strchr(chars, name.p[i]) == NULL)
            return false;
    return name.n > 0 && name.n <= BT_TENANT_MAX;
}

/* No way leads back from it: replicas tell it to each other. */
uint64_t bt_identity_owner(bt_str_t kind, bt_str_t name)
{
    char digits[17], hex[BT_SHA1_HEX + 1], small[1024], *text = small;
    const size_t n = kind.n + name.n;

    if (n > sizeof small && (text = malloc(n)) == NULL)
        return 1;
    char *at = text;
    (void) bt_str_put(&at, kind);
    (void) bt_str_put(&at, name);
    bt_sha1_hex((bt_str_t){text, n}, hex);
    if (text != small)
        free(text);
    bt_str_copy(digits, sizeof(digits), hex);
    const uint64_t owner = strtoull(digits, NULL, 16) & ~ADDRESSES;
    return owner != 0 ? owner : 1;
}

bt_str_t bt_tenant_of(bt_str_t name, char *out)
{
    const size_t room = BT_TENANT_MAX - 17; /* "-" and 16 digits */
    size_t n = 0;

    if (bt_tenant_is_name(name) && !bt_str_eq(name, BT_STR(BT_TENANT_ANONYMOUS))) {
        memcpy(out, name.p, name.n);
        return (bt_str_t){out, name.n};
    }
    for (size_t i = 0; i < name.n && n < room; i++) {
        const bool is_fine = bt_tenant_is_name((bt_str_t){name.p + i, 1});
        if (is_fine || (n > 0 && out[n - 1] != '-'))
            out[n++] = is_fine ? name.p[i] : '-';
    }
    while (n > 0 && out[n - 1] == '-')
        n--;
    n += (size_t) snprintf(out + n, BT_TENANT_MAX + 1 - n, "%s%016" PRIx64, n > 0 ? "-" : "",
                           bt_identity_owner(BT_STR("tenant:"), name));
    return (bt_str_t){out, name.n > 0 ? n : 0};
}

/* Not through the middle of a character. */
static bt_str_t cut(bt_str_t text)
{
    if (text.n <= BT_IDENTITY_ID_MAX)
        return text;
    text.n = BT_IDENTITY_ID_MAX;
    while (text.n > 0 && ((unsigned char) text.p[text.n] & 0xc0) == 0x80)
        text.n--;
    return text;
}

bt_identity_t bt_identity_of_subject(bt_str_t subject, bt_str_t tenant)
{
    return (bt_identity_t){.source = BT_IDENTITY_MTLS,
                           .scopes = BT_MAY_AS_CLIENT,
                           .owner = bt_identity_owner(BT_STR("mtls:"), subject),
                           .id = cut(subject),
                           .tenant = tenant.n > 0 ? tenant : BT_STR("mtls"),
                           .scope_names = BT_STR(BT_SCOPES_CLIENT)};
}

/* ---- an identity ---- */

const bt_identity_t *bt_identity_copy(const bt_identity_t *from, bt_arena_t *arena)
{
    bt_identity_t *to;
    char *at;

    if (from->source == BT_IDENTITY_ANONYMOUS && from->tenant.n == 0)
        return &bt_identity_anonymous;
    to = bt_arena_alloc(arena, sizeof(*to) + from->id.n + from->tenant.n + from->scope_names.n +
                                   from->models.n + from->claims.n);
    at = (char *) (to + 1);
    *to = *from;
    to->id = bt_str_put(&at, from->id);
    to->tenant = bt_str_put(&at, from->tenant);
    to->scope_names = bt_str_put(&at, from->scope_names);
    to->models = bt_str_put(&at, from->models);
    to->claims = bt_str_put(&at, from->claims);
    return to;
}

bool bt_identity_may_use(const bt_identity_t *identity, bt_str_t model)
{
    bt_str_t rest = identity->models, pattern;

    if (rest.n == 0)
        return true;
    while (model.n > 0 && bt_scopes_next(&rest, &pattern)) {
        const bool is_prefix = pattern.p[pattern.n - 1] == '*';
        const bt_str_t head = {pattern.p, pattern.n - (is_prefix ? 1 : 0)};
        if (is_prefix ? bt_str_starts(model, head) : bt_str_eq(model, head))
            return true;
    }
    return false;
}
