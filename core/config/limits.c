/* limits = { { name = "...", per = "tenant", requests = 100 }, ... } in the file: rows of core/limits. */
#include "config/config_impl.h"

#include "base/err.h"
#include "config/suggest.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define WINDOW_MAX_S (31 * 86400)

/* Where it is wrong, and why. */
struct reader {
    char *place, *why;
    size_t place_size, why_size;
};

static int refuse(const struct reader *r, const char *key, const char *why)
{
    const size_t n = strlen(r->place);

    snprintf(r->place + n, r->place_size - n, "%s%s", key[0] != '\0' ? "." : "", key);
    snprintf(r->why, r->why_size, "%s", why);
    return BT_E_CONFIG;
}

static int take_text(const struct reader *r, const char *key, const bt_value_t *v, char **to)
{
    if (v->type != BT_VALUE_STRING || v->string[0] == '\0')
        return refuse(r, key, "expected a text");
    free(*to);
    *to = bt_str_dup(bt_str(v->string));
    return *to != NULL ? 0 : BT_E_NOMEM;
}

static int take_name(const struct reader *r, bt_limit_t *limit, const bt_value_t *v)
{
    const int rc = take_text(r, "name", v, &limit->name);

    if (rc == 0 && !bt_tenant_is_name(bt_str(limit->name)))
        return refuse(r, "name", "expected 1 to 64 letters, digits, \"_\", \"-\" and \".\"");
    return rc;
}

static int find_part(const char *word)
{
    for (unsigned i = 0; word != NULL && i < BT_LIMIT_PARTS; i++)
        if (strcmp(word, bt_limit_part_name(i)) == 0)
            return (int) i;
    return -1;
}

static int take_part(const struct reader *r, bt_limit_t *limit, const bt_value_t *v)
{
    const int part = v->type == BT_VALUE_STRING ? find_part(v->string) : -1;

    if (part < 0)
        return refuse(r, "per",
                      "expected \"address\", \"key\", \"tenant\", \"model\", or a list "
                      "of these");
    limit->per |= 1U << part;
    return 0;
}

static int take_per(const struct reader *r, bt_limit_t *limit, const bt_value_t *v)
{
    int rc = 0;

    if (v->type != BT_VALUE_LIST)
        return take_part(r, limit, v);
    for (unsigned i = 0; i < v->count && rc == 0; i++)
        rc = take_part(r, limit, &v->items[i]);
    return rc;
}

static int take_match(const struct reader *r, bt_limit_t *limit, const bt_value_t *v)
{
    int rc = 0;

    if (v->type != BT_VALUE_TABLE)
        return refuse(r, "match", "expected a table like { tenant = \"acme\" }");
    for (unsigned i = 0; i < v->count && rc == 0; i++) {
        const int part = find_part(v->items[i].key);
        if (part < 0)
            return refuse(r, "match", "its keys are address, key, tenant and model");
        rc = take_text(r, "match", &v->items[i], &limit->match[part]);
    }
    return rc;
}

static int take_amount(const struct reader *r, const char *key, const bt_value_t *v, int64_t *to)
{
    if (v->type != BT_VALUE_NUMBER || v->number != floor(v->number) || v->number < 0 ||
        v->number > (double) BT_LIMIT_AMOUNT_MAX)
        return refuse(r, key, "expected a whole number from 0 to 2^50");
    *to = (int64_t) v->number;
    return 0;
}

static int take_window(const struct reader *r, bt_limit_t *limit, const bt_value_t *v)
{
    if (v->type != BT_VALUE_NUMBER || !(v->number >= 1 && v->number <= WINDOW_MAX_S))
        return refuse(r, "window_s", "expected seconds from 1 to 2678400 (31 days)");
    limit->window_ms = (uint64_t) (v->number * 1000);
    return 0;
}

static int unknown_key(const struct reader *r, const char *key)
{
    static const char *const others[] = {"name", "per", "match", "window_s", "answer_tokens"};
    char why[96] = "unknown key";
    bt_suggest_t s;

    bt_suggest_init(&s, bt_str(key));
    for (unsigned i = 0; i < sizeof others / sizeof others[0]; i++)
        bt_suggest_offer(&s, others[i]);
    for (unsigned i = 0; i < BT_LIMIT_WHATS; i++)
        bt_suggest_offer(&s, bt_limit_what_name(i));
    if (bt_suggest_best(&s) != NULL)
        snprintf(why, sizeof why, "unknown key, did you mean \"%s\"?", bt_suggest_best(&s));
    return refuse(r, key, why);
}

static int take_member(const struct reader *r, bt_limit_t *limit, const bt_value_t *v)
{
    if (strcmp(v->key, "name") == 0)
        return take_name(r, limit, v);
    if (strcmp(v->key, "per") == 0)
        return take_per(r, limit, v);
    if (strcmp(v->key, "match") == 0)
        return take_match(r, limit, v);
    if (strcmp(v->key, "window_s") == 0)
        return take_window(r, limit, v);
    if (strcmp(v->key, "answer_tokens") == 0)
        return take_amount(r, v->key, v, &limit->answer_tokens);
    for (unsigned i = 0; i < BT_LIMIT_WHATS; i++)
        if (strcmp(v->key, bt_limit_what_name(i)) == 0)
            return take_amount(r, v->key, v, &limit->most[i]);
    return unknown_key(r, v->key);
}

static bool limits_nothing(const bt_limit_t *limit)
{
    for (unsigned i = 0; i < BT_LIMIT_WHATS; i++)
        if (limit->most[i] >= 0)
            return false;
    return true;
}

static int take_limit(const struct reader *r, bt_limit_table_t *table, const bt_value_t *v)
{
    bt_limit_t *limit;
    int rc = 0;

    if (v->type != BT_VALUE_TABLE)
        return refuse(r, "",
                      "expected a table like { name = \"tenants\", per = \"tenant\", "
                      "requests = 100 }");
    if ((limit = bt_limit_table_add(table)) == NULL)
        return refuse(r, "", "there can be 64 limits");
    for (unsigned i = 0; i < v->count && rc == 0; i++)
        rc = take_member(r, limit, &v->items[i]);
    if (rc == 0 && limit->name == NULL)
        return refuse(r, "name", "missing: what do clients and metrics call this limit?");
    if (rc == 0 && limits_nothing(limit))
        return refuse(r, "requests",
                      "missing: give at least one of concurrent, requests, tokens, "
                      "input_tokens and output_tokens");
    return rc;
}

int bt_config_take_limits(bt_config_t *c, const bt_value_t *list, char *place, size_t place_size,
                          char *why, size_t why_size)
{
    const struct reader r = {place, why, place_size, why_size};
    int rc = 0;

    snprintf(place, place_size, "%s", list->key);
    if (list->type != BT_VALUE_LIST && list->count != 0)
        return refuse(&r, "", "expected a list of tables");
    bt_limit_table_unref(c->limits);
    if ((c->limits = bt_limit_table_new()) == NULL)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < list->count && rc == 0; i++) {
        snprintf(place, place_size, "%s[%u]", list->key, i + 1);
        rc = take_limit(&r, c->limits, &list->items[i]);
    }
    if (rc == 0)
        bt_limit_table_finish(c->limits);
    return rc;
}

void bt_config_describe_limits(const bt_config_t *c, bt_text_t *out)
{
    for (unsigned i = 0; c->limits != NULL && i < c->limits->count; i++) {
        const bt_limit_t *limit = &c->limits->items[i];
        bt_text_printf(out, "limit %s:", limit->name);
        for (unsigned k = 0; k < BT_LIMIT_WHATS; k++)
            if (limit->most[k] >= 0)
                bt_text_printf(out, " %s %" PRId64, bt_limit_what_name(k), limit->most[k]);
        bt_text_printf(out, " in %g s", (double) limit->window_ms / 1000);
        for (unsigned k = 0; k < BT_LIMIT_PARTS; k++)
            if ((limit->per & 1U << k) != 0)
                bt_text_printf(out, " per %s", bt_limit_part_name(k));
        for (unsigned k = 0; k < BT_LIMIT_PARTS; k++)
            if (limit->match[k] != NULL)
                bt_text_printf(out, ", of %s %s", bt_limit_part_name(k), limit->match[k]);
        bt_text_puts(out, "\n");
    }
}
