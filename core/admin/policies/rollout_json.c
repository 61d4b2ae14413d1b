/* The rules are a text without a name (rollout/set.h). */
#include "admin/policies/rollout_json.h"

#include "admin/policies/policies.h"
#include "base/err.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* A bundle that is being read into a set. */
typedef struct bundle {
    bt_rollout_set_t *set;
    char *err;
    size_t err_size;
} bundle_t;

__attribute__((format(printf, 2, 3))) static unsigned refuse(const bundle_t *b, const char *fmt,
                                                             ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(b->err, b->err_size, fmt, args);
    va_end(args);
    return 400;
}

/* ---- one text ---- */

unsigned bt_rollout_put_text(bt_rollout_set_t *set, const char *name, bt_str_t text, char *err,
                             size_t err_size)
{
    const char *called = name[0] != '\0' ? name : "the rules";
    const int rc = bt_rollout_set_put(set, name, text);

    if (rc == BT_E_LIMIT)
        snprintf(err, err_size, "%s: a set holds at most %d texts, %zu bytes together", called,
                 BT_ROLLOUT_FILES_MAX, BT_ROLLOUT_TEXT_MAX);
    else if (rc < 0)
        snprintf(err, err_size, "%s: %s", called,
                 rc == BT_E_JSON_UTF8 ? "the text is not UTF-8" : bt_err_text(rc));
    return rc == 0 ? 0 : rc == BT_E_NOMEM ? 503 : 400;
}

unsigned bt_rollout_drop_text(bt_rollout_set_t *set, const char *name, char *err, size_t err_size)
{
    if (bt_rollout_set_drop(set, name))
        return 0;
    snprintf(err, err_size, "%s: not in the fleet's set", name[0] != '\0' ? name : "the rules");
    return 404;
}

/* ---- a bundle ---- */

static unsigned read_name(const bundle_t *b, bt_str_t raw, bool is_key, char *name, size_t size)
{
    long n =
        is_key ? bt_json_unescape_raw(raw, name, size - 1) : bt_json_unescape(raw, name, size - 1);

    if (n < 0 || !bt_policies_name_ok((bt_str_t){name, (size_t) n}))
        return refuse(b, "%.80s: a policy's name is at most 64 letters, digits, '_', '-', '.'",
                      n < 0 ? "policies" : name);
    name[n] = '\0';
    return 0;
}

static unsigned read_text(const bundle_t *b, const char *name, bt_str_t raw)
{
    char *text = malloc(raw.n + 1);
    long n = text != NULL ? bt_json_unescape(raw, text, raw.n) : -1;
    unsigned status;

    if (n <= 0)
        status = refuse(b, "%s: its text is needed, as a string", name[0] != '\0' ? name : "rules");
    else
        status =
            bt_rollout_put_text(b->set, name, (bt_str_t){text, (size_t) n}, b->err, b->err_size);
    free(text);
    return status;
}

/* An object of names and texts, or a list of the names that go. */
static unsigned read_policies(const bundle_t *b, bt_str_t json, bool is_drop)
{
    char name[BT_ROLLOUT_NAME_MAX + 2] = "";
    bt_json_cursor_t c;
    bt_json_item_t item;
    unsigned status = 0;

    if ((is_drop ? bt_json_array(&c, json) : bt_json_object(&c, json)) < 0)
        return refuse(b, is_drop ? "drop: a list of names is needed"
                                 : "policies: an object of names and texts is needed");
    while (status == 0 && bt_json_next(&c, &item) > 0) {
        status = read_name(b, is_drop ? item.value : item.key, !is_drop, name, sizeof name);
        if (status == 0)
            status = is_drop ? bt_rollout_drop_text(b->set, name, b->err, b->err_size)
                             : read_text(b, name, item.value);
    }
    return status;
}

static unsigned read_member(const bundle_t *b, const bt_json_item_t *item)
{
    if (bt_json_key_eq(item, BT_STR("policies")))
        return read_policies(b, item->value, false);
    if (bt_json_key_eq(item, BT_STR("drop")))
        return read_policies(b, item->value, true);
    if (bt_json_key_eq(item, BT_STR("replace")))
        return item->type == BT_JSON_TRUE || item->type == BT_JSON_FALSE
                   ? 0
                   : refuse(b, "replace: true or false is needed");
    if (!bt_json_key_eq(item, BT_STR("rules")))
        return refuse(b, "%.*s: unknown member; there are policies, rules, drop and replace",
                      (int) (item->key.n < 64 ? item->key.n : 64), item->key.p);
    if (item->type != BT_JSON_NULL)
        return read_text(b, BT_ROLLOUT_RULES, item->value);
    return bt_rollout_drop_text(b->set, BT_ROLLOUT_RULES, b->err, b->err_size);
}

unsigned bt_rollout_put_bundle(bt_rollout_set_t *set, bt_str_t json, char *err, size_t err_size)
{
    const bundle_t b = {set, err, err_size};
    bt_json_item_t item, replace;
    bt_json_cursor_t c;
    unsigned status = 0;

    if (bt_json_get(json, BT_STR("replace"), &replace) < 0 || bt_json_object(&c, json) < 0)
        return refuse(&b, "the body must be a JSON object: {\"policies\": {\"name\": \"text\"}}");
    if (bt_json_count(json) == 0)
        return refuse(&b, "the bundle is empty");
    if (replace.type == BT_JSON_TRUE)
        bt_rollout_set_clear(set);
    while (status == 0 && bt_json_next(&c, &item) > 0)
        status = read_member(&b, &item);
    return status;
}

/* ---- what people are told ---- */

static void put_or_null(bt_text_t *out, const char *key, const char *value)
{
    bt_text_json_member(out, key, value[0] != '\0' ? value : NULL);
}

/* Members of an object that is open. */
static void describe_set(const bt_rollout_set_t *set, bt_text_t *out)
{
    const bt_rollout_file_t *rules = bt_rollout_set_find(set, BT_ROLLOUT_RULES);
    const char *comma = "";

    bt_rollout_info_write(&set->info, out);
    bt_text_puts(out, ",\"policies\":[");
    for (unsigned i = 0; i < set->count; i++) {
        if (&set->files[i] == rules)
            continue;
        bt_text_printf(out, "%s{\"hash\":\"%s\",\"bytes\":%zu", comma, set->files[i].hash,
                       set->files[i].size);
        bt_text_json_member(out, "name", set->files[i].name);
        bt_text_puts(out, "}");
        comma = ",";
    }
    bt_text_puts(out, "],\"rules\":");
    if (rules != NULL)
        bt_text_printf(out, "{\"hash\":\"%s\",\"bytes\":%zu}", rules->hash, rules->size);
    else
        bt_text_puts(out, "null");
}

/* What it has said of the newest proposal. */
static void describe_vote(const bt_rollout_log_t *log, const char *name, bt_text_t *out)
{
    const bt_rollout_member_t *m = bt_rollout_member(log, name);
    const bt_rollout_row_t *row = bt_rollout_row(log, log->proposed);
    const bool is_yes = row != NULL && m != NULL && m->answer == BT_ROLLOUT_YES,
               is_no = row != NULL && m != NULL && m->answer == BT_ROLLOUT_NO;

    bt_text_printf(out, ",\"voted_on\":%" PRIu64 ",\"vote\":\"%s\"",
                   is_yes || is_no ? row->info.number : 0,
                   is_yes  ? "ok"
                   : is_no ? "no"
                           : "none");
    put_or_null(out, "why", is_no ? row->why : "");
}

static void describe_replicas(const bt_rollout_view_t *view, bt_text_t *out)
{
    bt_text_puts(out, ",\"replicas\":[");
    for (unsigned i = 0; i < view->peer_count; i++) {
        const bt_rollout_peer_t *peer = &view->peers[i];
        bt_text_printf(out, "%s{\"number\":%" PRIu64 ",\"pinned\":%s", i > 0 ? "," : "",
                       peer->number, peer->is_pinned ? "true" : "false");
        describe_vote(view->log, peer->name, out);
        bt_text_json_member(out, "replica", peer->name);
        put_or_null(out, "error", peer->trouble);
        bt_text_puts(out, "}");
    }
    bt_text_puts(out, "]");
}

void bt_rollout_list(const bt_rollout_t *r, bt_text_t *out)
{
    static const char *const states[] = {"proposed", "committed", "aborted"};
    bt_rollout_view_t view;

    bt_rollout_view(r, &view);
    bt_text_puts(out, "{\"fleet\":");
    bt_text_json_str(out, bt_str(view.space));
    bt_text_json_member(out, "replica", view.replica);
    bt_text_puts(out, ",\"serving\":{");
    describe_set(view.serving, out);
    bt_text_printf(out, "},\"committed\":%" PRIu64 ",\"pinned\":%s", bt_rollout_committed(r),
                   bt_rollout_is_pinned(r) ? "true" : "false");
    put_or_null(out, "error", view.trouble);
    put_or_null(out, "store_error", view.unavailable);
    describe_replicas(&view, out);
    bt_text_puts(out, ",\"sets\":[");
    for (unsigned i = 0; i < view.log->row_count; i++) {
        const bt_rollout_row_t *row = &view.log->rows[i];
        bt_text_puts(out, i > 0 ? ",{" : "{");
        bt_rollout_info_write(&row->info, out);
        bt_text_json_member(out, "state", states[row->state]);
        put_or_null(out, "why", row->why);
        bt_text_puts(out, "}");
    }
    bt_text_puts(out, "]}\n");
}

/* Of a dry run: who would serve it, and who follows nobody. */
static void describe_agreed(const bt_rollout_view_t *view, bt_text_t *out)
{
    const char *comma = "";

    bt_text_puts(out, ",\"agreed\":[");
    for (unsigned i = 0; i < view->log->member_count; i++) {
        if (view->log->members[i].answer != BT_ROLLOUT_YES)
            continue;
        bt_text_puts(out, comma);
        bt_text_json_str(out, bt_str(view->log->members[i].name));
        comma = ",";
    }
    bt_text_puts(out, "],\"pinned\":[");
    comma = "";
    for (unsigned i = 0; i < view->peer_count; i++) {
        if (!view->peers[i].is_pinned)
            continue;
        bt_text_puts(out, comma);
        bt_text_json_str(out, bt_str(view->peers[i].name));
        comma = ",";
    }
    bt_text_puts(out, "]");
}

static void write_dry_run(const bt_rollout_view_t *view, const bt_rollout_outcome_t *outcome,
                          bt_text_t *out)
{
    bt_text_printf(out, "{\"dry_run\":true,\"changed\":%s,",
                   outcome->is_changed ? "true" : "false");
    describe_set(outcome->set, out);
    if (outcome->is_changed)
        describe_agreed(view, out);
    bt_text_puts(out, "}\n");
}

void bt_rollout_write_outcome(const bt_rollout_t *r, const bt_rollout_outcome_t *outcome,
                              bt_text_t *out)
{
    bt_rollout_view_t view;

    bt_rollout_view(r, &view);
    if (outcome->is_dry_run) {
        write_dry_run(&view, outcome, out);
        return;
    }
    bt_text_printf(out, "{\"changed\":%s,", outcome->is_changed ? "true" : "false");
    describe_set(outcome->set, out);
    describe_replicas(&view, out);
    bt_text_puts(out, "}\n");
}

void bt_rollout_write_pin(const bt_rollout_t *r, bt_text_t *out)
{
    bt_rollout_view_t view;

    bt_rollout_view(r, &view);
    bt_text_puts(out, "{\"replica\":");
    bt_text_json_str(out, bt_str(view.replica));
    bt_text_printf(out, ",\"pinned\":%s,\"number\":%" PRIu64 ",\"committed\":%" PRIu64 "}\n",
                   bt_rollout_is_pinned(r) ? "true" : "false", bt_rollout_number(r),
                   bt_rollout_committed(r));
}

void bt_rollout_metrics(const bt_rollout_t *r, bt_prom_t *p)
{
    bt_prom_one(p, "baton_fleet_set", "gauge",
                "Set of the fleet's policies and rules that serves here; 0 = none",
                bt_rollout_number(r));
    bt_prom_one(p, "baton_fleet_set_committed", "gauge",
                "Set that should serve on every replica, as far as this one knows",
                bt_rollout_committed(r));
    bt_prom_one(p, "baton_fleet_pinned", "gauge", "1: this replica stays with its set",
                bt_rollout_is_pinned(r));
}
