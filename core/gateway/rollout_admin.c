/* What the operator asks of the fleet: which set serves where, another set, the one before, and that this replica stays with its own. */
#include "gateway/rollout.h"
#include "rollout/rollout.h"

#include "base/err.h"
#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* A change while it is put together. Texts of items are own. */
typedef struct draft {
    bt_rollout_item_t *items;
    unsigned count;
    char err[256];
} draft_t;

__attribute__((format(printf, 2, 3))) static int refuse(draft_t *d, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(d->err, sizeof d->err, fmt, args);
    va_end(args);
    return BT_E_INVAL;
}

static void fini_draft(draft_t *d)
{
    for (unsigned i = 0; i < d->count; i++)
        free((char *) d->items[i].text.p);
    free(d->items);
}

/* text: own; taken. */
static int add(draft_t *d, enum bt_rollout_edit edit, const char *name, char *text, size_t size)
{
    bt_rollout_item_t *items = realloc(d->items, (d->count + 1) * sizeof *items);

    if (items == NULL) {
        free(text);
        (void) refuse(d, "out of memory");
        return BT_E_NOMEM;
    }
    d->items = items;
    items[d->count] = (bt_rollout_item_t){.edit = edit, .text = {text, size}};
    bt_str_copy(items[d->count].name, sizeof items[d->count].name, name);
    d->count++;
    return 0;
}

static int add_text(draft_t *d, const char *name, bt_str_t text)
{
    char *copy = bt_str_dup(text);

    if (copy == NULL)
        return refuse(d, "out of memory");
    return add(d, BT_ROLLOUT_PUT, name, copy, text.n);
}

/* ---- a bundle: {"policies": {"<name>": "<text>"}, "rules": "<text>" or null, "drop": ["<name>"], "replace": true} ---- */

static int read_name(draft_t *d, bt_str_t raw, bool is_key, char *name, size_t size)
{
    long n =
        is_key ? bt_json_unescape_raw(raw, name, size - 1) : bt_json_unescape(raw, name, size - 1);

    if (n < 0 || !bt_policies_name_ok((bt_str_t){name, (size_t) n}))
        return refuse(d, "%.80s: a policy's name is at most 64 letters, digits, '_', '-', '.'",
                      n < 0 ? "policies" : name);
    name[n] = '\0';
    return 0;
}

static int read_text(draft_t *d, const char *name, bt_str_t raw)
{
    char *text = malloc(raw.n + 1);
    long n = text != NULL ? bt_json_unescape(raw, text, raw.n) : -1;

    if (n <= 0) {
        free(text);
        return refuse(d, "%s: its text is needed, as a string", name[0] != '\0' ? name : "rules");
    }
    return add(d, BT_ROLLOUT_PUT, name, text, (size_t) n);
}

static int read_policies(draft_t *d, bt_str_t json)
{
    char name[BT_ROLLOUT_NAME_MAX + 2];
    bt_json_cursor_t c;
    bt_json_item_t item;
    int rc = bt_json_object(&c, json);

    if (rc < 0)
        return refuse(d, "policies: an object of names and texts is needed");
    while ((rc = bt_json_next(&c, &item)) > 0)
        if (read_name(d, item.key, true, name, sizeof name) < 0 ||
            read_text(d, name, item.value) < 0)
            return BT_E_INVAL;
    return rc;
}

static int read_drops(draft_t *d, bt_str_t json)
{
    char name[BT_ROLLOUT_NAME_MAX + 2];
    bt_json_cursor_t c;
    bt_json_item_t item;
    int rc = bt_json_array(&c, json);

    if (rc < 0)
        return refuse(d, "drop: a list of names is needed");
    while ((rc = bt_json_next(&c, &item)) > 0)
        if (read_name(d, item.value, false, name, sizeof name) < 0 ||
            add(d, BT_ROLLOUT_DROP, name, NULL, 0) < 0)
            return BT_E_INVAL;
    return rc;
}

static int read_member(draft_t *d, const bt_json_item_t *item)
{
    if (bt_json_key_eq(item, BT_STR("policies")))
        return read_policies(d, item->value);
    if (bt_json_key_eq(item, BT_STR("drop")))
        return read_drops(d, item->value);
    if (bt_json_key_eq(item, BT_STR("replace")))
        return item->type == BT_JSON_TRUE || item->type == BT_JSON_FALSE
                   ? 0
                   : refuse(d, "replace: true or false is needed");
    if (!bt_json_key_eq(item, BT_STR("rules")))
        return refuse(d, "%.*s: unknown member; there are policies, rules, drop and replace",
                      (int) (item->key.n < 64 ? item->key.n : 64), item->key.p);
    return item->type == BT_JSON_NULL ? add(d, BT_ROLLOUT_DROP, BT_ROLLOUT_RULES, NULL, 0)
                                      : read_text(d, BT_ROLLOUT_RULES, item->value);
}

static int read_bundle(draft_t *d, bt_str_t json)
{
    bt_json_item_t item, replace;
    bt_json_cursor_t c;
    int rc;

    if (bt_json_get(json, BT_STR("replace"), &replace) < 0 || bt_json_object(&c, json) < 0)
        return refuse(d, "the body must be a JSON object: {\"policies\": {\"name\": \"text\"}}");
    if (replace.type == BT_JSON_TRUE && add(d, BT_ROLLOUT_CLEAR, "", NULL, 0) < 0)
        return BT_E_NOMEM;
    while ((rc = bt_json_next(&c, &item)) > 0)
        if ((rc = read_member(d, &item)) < 0)
            return rc;
    if (rc == 0 && d->count == 0)
        return refuse(d, "the bundle is empty");
    return rc;
}

/* ---- changing ---- */

static int draw_up(draft_t *d, const bt_rollout_request_t *ask)
{
    int rc;

    switch (ask->what) {
    case BT_ROLLOUT_ASK_PUT:
        return add_text(d, ask->name, ask->body);
    case BT_ROLLOUT_ASK_DROP:
        return add(d, BT_ROLLOUT_DROP, ask->name, NULL, 0);
    case BT_ROLLOUT_ASK_BUNDLE:
        return read_bundle(d, ask->body);
    case BT_ROLLOUT_ASK_CLEAR:
        return add(d, BT_ROLLOUT_CLEAR, "", NULL, 0);
    case BT_ROLLOUT_ASK_PUT_RULES:
        return add_text(d, BT_ROLLOUT_RULES, ask->body);
    case BT_ROLLOUT_ASK_DROP_RULES:
        return add(d, BT_ROLLOUT_DROP, BT_ROLLOUT_RULES, NULL, 0);
    default:
        rc = add(d, BT_ROLLOUT_BACK, "", NULL, 0);
        if (rc == 0)
            d->items[0].number = ask->number;
        return rc;
    }
}

static void pin(struct bt_gateway_rollout *f, bool is_pinned, bt_reload_done_cb done, void *arg)
{
    bt_text_t text;

    bt_rollout_pin(f->rollout, is_pinned);
    bt_text_init(&text);
    bt_text_puts(&text, "{\"replica\":");
    bt_text_json_str(&text, bt_str(f->g->replica));
    bt_text_printf(&text, ",\"pinned\":%s,\"number\":%llu,\"committed\":%llu}\n",
                   is_pinned ? "true" : "false", (unsigned long long) bt_rollout_number(f->rollout),
                   (unsigned long long) bt_rollout_committed(f->rollout));
    done(arg, 200, bt_text_str(&text));
    bt_text_fini(&text);
}

static void change(void *user, const bt_rollout_request_t *ask, bt_reload_done_cb done, void *arg)
{
    struct bt_gateway_rollout *f = user;
    draft_t d = {0};
    int rc;

    if (f->g->state != BT_GATEWAY_SERVING) {
        done(arg, 503, BT_STR("the gateway is ending"));
        return;
    }
    if (ask->what == BT_ROLLOUT_ASK_PIN || ask->what == BT_ROLLOUT_ASK_UNPIN) {
        pin(f, ask->what == BT_ROLLOUT_ASK_PIN, done, arg);
        return;
    }
    rc = draw_up(&d, ask);
    if (rc < 0) {
        done(arg, rc == BT_E_NOMEM ? 503 : 400, bt_str(d.err[0] != '\0' ? d.err : bt_err_text(rc)));
    } else {
        const bt_rollout_change_t wanted = {.items = d.items, .count = d.count, .by = ask->by};
        rc = bt_rollout_change(f->rollout, &wanted, done, arg, d.err, sizeof d.err);
        if (rc < 0)
            done(arg, rc == BT_E_AGAIN ? 409 : 503, bt_str(d.err));
    }
    fini_draft(&d);
}

static void cancel(void *user, void *arg)
{
    bt_rollout_forget(((struct bt_gateway_rollout *) user)->rollout, arg);
}

/* ---- seeing ---- */

static void list(void *user, bt_text_t *out)
{
    bt_rollout_describe(((struct bt_gateway_rollout *) user)->rollout, out);
}

static void metrics(void *user, bt_prom_t *p)
{
    const bt_rollout_t *r = ((struct bt_gateway_rollout *) user)->rollout;

    bt_prom_family(p, "baton_fleet_set", "gauge",
                   "Set of the fleet's policies and rules that serves here; 0 = none");
    bt_prom_count(p, NULL, 0, bt_rollout_number(r));
    bt_prom_family(p, "baton_fleet_set_committed", "gauge",
                   "Set that should serve on every replica, as far as this one knows");
    bt_prom_count(p, NULL, 0, bt_rollout_committed(r));
    bt_prom_family(p, "baton_fleet_pinned", "gauge", "1: this replica stays with its set");
    bt_prom_count(p, NULL, 0, bt_rollout_is_pinned(r));
}

const bt_rollout_admin_ops_t bt_gateway_rollout_admin = {
    .list = list, .metrics = metrics, .change = change, .cancel = cancel};
