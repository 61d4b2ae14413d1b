#include "admin/status/limits.h"

#include <inttypes.h>

/* ---- JSON ---- */

static void put_parts(const bt_limit_t *limit, bt_text_t *out)
{
    const char *between = "";

    bt_text_puts(out, ",\"per\":[");
    for (unsigned i = 0; i < BT_LIMIT_PARTS; i++) {
        if ((limit->per & 1U << i) == 0)
            continue;
        bt_text_printf(out, "%s\"%s\"", between, bt_limit_part_name(i));
        between = ",";
    }
    between = "";
    bt_text_puts(out, "],\"match\":{");
    for (unsigned i = 0; i < BT_LIMIT_PARTS; i++) {
        if (limit->match[i] == NULL)
            continue;
        bt_text_printf(out, "%s\"%s\":", between, bt_limit_part_name(i));
        bt_text_json_str(out, bt_str(limit->match[i]));
        between = ",";
    }
    bt_text_puts(out, "}");
}

static void put_limit(const bt_limit_t *limit, bt_text_t *out)
{
    const bt_limit_count_t *c = limit->counts;

    bt_text_printf(out, "{\"name\":\"%s\"", limit->name);
    put_parts(limit, out);
    for (unsigned i = 0; i < BT_LIMIT_WHATS; i++)
        if (limit->most[i] >= 0)
            bt_text_printf(out, ",\"%s\":%" PRId64, bt_limit_what_name(i), limit->most[i]);
    bt_text_printf(out, ",\"window_s\":%g,\"answer_tokens\":%" PRId64,
                   (double) limit->window_ms / 1000, limit->answer_tokens);
    if (c != NULL) { /* of all rows of this name */
        bt_text_printf(out, ",\"running\":%" PRId64 ",\"admitted\":%" PRIu64 ",\"refused\":{",
                       atomic_load(&c->running), atomic_load(&c->admitted));
        for (unsigned i = 0; i < BT_LIMIT_WHATS; i++)
            bt_text_printf(out, "%s\"%s\":%" PRIu64, i == 0 ? "" : ",", bt_limit_what_name(i),
                           atomic_load(&c->refused[i]));
        bt_text_printf(out, "},\"too_large\":%" PRIu64 ",\"crowded\":%" PRIu64,
                       atomic_load(&c->too_large), atomic_load(&c->crowded));
    }
    bt_text_puts(out, "}");
}

void bt_admin_limits(const bt_admin_call_t *c)
{
    bt_limits_view_t view = {0, NULL};
    bt_text_t *out = &c->reply->body;

    if (c->config->shared->limits != NULL)
        bt_limits_renew(c->config->shared->limits, &view);
    bt_text_puts(out, "{\"limits\":[");
    for (unsigned i = 0; view.table != NULL && i < view.table->count; i++) {
        bt_text_puts(out, i == 0 ? "\n" : ",\n");
        put_limit(&view.table->items[i], out);
    }
    bt_text_puts(out, "]}\n");
    bt_limits_drop(&view);
}

/* ---- metrics ---- */

typedef struct counts {
    const bt_limit_count_t *items[BT_LIMITS_MAX];
    unsigned n;
} counts_t;

static void keep(void *user, const bt_limit_count_t *count)
{
    counts_t *all = user;

    all->items[all->n++] = count;
}

static uint64_t value_of(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void write_one(bt_prom_t *p, const counts_t *all, const char *name, const char *help,
                      size_t at)
{
    bt_prom_family(p, name, "counter", help);
    for (unsigned i = 0; i < all->n; i++) {
        const bt_label_t label = {"limit", bt_str(all->items[i]->name)};
        bt_prom_count(p, &label, 1, value_of((const void *) ((const char *) all->items[i] + at)));
    }
}

static void write_running(bt_prom_t *p, const counts_t *all)
{
    bt_prom_family(p, "baton_limit_running", "gauge",
                   "Requests that count under a limit of requests at a time");
    for (unsigned i = 0; i < all->n; i++) {
        const bt_label_t label = {"limit", bt_str(all->items[i]->name)};
        bt_prom_int(p, &label, 1,
                    atomic_load_explicit(&all->items[i]->running, memory_order_relaxed));
    }
}

static void write_refused(bt_prom_t *p, const counts_t *all)
{
    bt_prom_family(p, "baton_limit_refused_total", "counter",
                   "Requests refused by a limit (429), by what was used up");
    for (unsigned i = 0; i < all->n; i++)
        for (unsigned k = 0; k < BT_LIMIT_WHATS; k++) {
            const bt_label_t labels[] = {{"limit", bt_str(all->items[i]->name)},
                                         {"by", bt_str(bt_limit_what_name(k))}};
            bt_prom_count(p, labels, 2, value_of(&all->items[i]->refused[k]));
        }
}

static void write_tokens(bt_prom_t *p, const counts_t *all, bool is_used)
{
    static const char *const kinds[] = {"input", "output"};

    bt_prom_family(p,
                   is_used ? "baton_limit_tokens_used_total" : "baton_limit_tokens_reserved_total",
                   "counter",
                   is_used ? "Tokens of requests under a limit, as known when they ended"
                           : "Tokens of requests under a limit, as estimated when they came in");
    for (unsigned i = 0; i < all->n; i++)
        for (unsigned k = 0; k < 2; k++) {
            const bt_limit_count_t *c = all->items[i];
            const bt_label_t labels[] = {{"limit", bt_str(c->name)}, {"kind", bt_str(kinds[k])}};
            bt_prom_count(p, labels, 2, value_of(is_used ? &c->used[k] : &c->reserved[k]));
        }
}

void bt_metrics_limits(bt_prom_t *p, bt_limits_t *limits)
{
    counts_t all = {.n = 0};

    if (limits != NULL)
        bt_limits_each(limits, keep, &all);
    if (all.n == 0)
        return;
    write_one(p, &all, "baton_limit_admitted_total", "Requests that a limit has let in",
              offsetof(bt_limit_count_t, admitted));
    write_refused(p, &all);
    write_one(p, &all, "baton_limit_too_large_total",
              "Requests refused because no whole window holds their prompt (413)",
              offsetof(bt_limit_count_t, too_large));
    write_one(p, &all, "baton_limit_crowded_total",
              "Times that a request was counted with others, because there were too many subjects",
              offsetof(bt_limit_count_t, crowded));
    write_running(p, &all);
    write_tokens(p, &all, false);
    write_tokens(p, &all, true);
}
