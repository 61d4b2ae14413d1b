/* A record is a line of JSON already, so the plain answer is the line itself. */
#include "admin/status/explain.h"

#include "admin/call/query.h"
#include "base/json.h"
#include "record/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_DEFAULT 20
#define LIST_MAX 200

/* ?format=json|text; where limit_p is given, ?limit=N too. */
static bool read_query(bt_str_t query, bool *as_text_p, uint64_t *limit_p)
{
    bt_str_t name, value;

    *as_text_p = false;
    while (bt_query_next(&query, &name, &value)) {
        if (bt_str_eq(name, BT_STR("format"))) {
            *as_text_p = bt_str_eq(value, BT_STR("text"));
            if (!*as_text_p && !bt_str_eq(value, BT_STR("json")))
                return false;
        } else if (limit_p != NULL && bt_str_eq(name, BT_STR("limit"))) {
            if (bt_str_u64(value, limit_p) < 0 || *limit_p == 0 || *limit_p > LIST_MAX)
                return false;
        }
    }
    return true;
}

void bt_explain_check(const bt_admin_call_t *c)
{
    if (!read_query(c->request->query, &c->reply->as_text, NULL))
        bt_reply_error(c->reply, 400, "format is json or text");
    else if (c->key.n > BT_GATHER_ID_MAX)
        bt_reply_error(c->reply, 404, "no request has an id longer than %d bytes",
                       BT_GATHER_ID_MAX);
    else
        snprintf(c->reply->name, sizeof c->reply->name, "%.*s", BT_STR_ARG(c->key));
}

void bt_explain_check_list(const bt_admin_call_t *c)
{
    c->reply->number = LIST_DEFAULT;
    if (!read_query(c->request->query, &c->reply->as_text, &c->reply->number))
        bt_reply_error(c->reply, 400, "format is json or text, limit from 1 to %d", LIST_MAX);
}

/* In quotes, or BT_STR_NULL. */
static bt_str_t time_of(bt_str_t line)
{
    bt_json_item_t at;

    return line.n > 0 && bt_json_get(line, BT_STR("at"), &at) >= 0 && at.type == BT_JSON_STRING
               ? at.value
               : BT_STR("");
}

static bool is_before(bt_str_t a, bt_str_t b)
{
    const int order = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);

    return order < 0 || (order == 0 && a.n < b.n);
}

/* The line of the loop that wrote it last: times of this form sort as text. */
static bt_str_t newest(const bt_loop_facts_t *facts, unsigned count, unsigned *late_p)
{
    bt_str_t best = BT_STR_NULL, best_at = BT_STR_NULL;

    *late_p = 0;
    for (unsigned i = 0; i < count; i++) {
        if (!facts[i].answered) {
            (*late_p)++;
            continue;
        }
        if (facts[i].rows.len == 0)
            continue;
        const bt_str_t line = bt_text_str(&facts[i].rows), at = time_of(line);
        if (best.n != 0 && is_before(at, best_at))
            continue;
        best = line;
        best_at = at;
    }
    return best;
}

void bt_explain_answer(bt_admin_reply_t *reply, bt_str_t id, bool as_text,
                       const bt_loop_facts_t *facts, unsigned count)
{
    unsigned late;
    const bt_str_t line = newest(facts, count, &late);

    if (line.n == 0 && late > 0) {
        bt_reply_error(reply, 503,
                       "no record of request %.*s, but %u of %u loops did not answer in time; try "
                       "again",
                       BT_STR_ARG(id), late, count);
    } else if (line.n == 0) {
        bt_reply_error(reply, 404,
                       "no record of request %.*s: each of the %u loops keeps the last %u requests "
                       "that have ended; those that run are in GET /requests",
                       BT_STR_ARG(id), count, BT_RECORD_RING);
    } else if (as_text) {
        reply->type = "text/plain; charset=utf-8";
        bt_record_story(line, &reply->body);
    } else {
        bt_text_put(&reply->body, line);
        bt_text_puts(&reply->body, "\n");
    }
}

/* ---- the last ones ---- */

static int compare_newest_first(const void *a, const void *b)
{
    const bt_str_t left = time_of(*(const bt_str_t *) a), right = time_of(*(const bt_str_t *) b);

    return is_before(right, left) ? -1 : is_before(left, right);
}

/* All lines of all loops; free() the result. NULL: there is no memory, or no line. */
static bt_str_t *lines_of(const bt_loop_facts_t *facts, unsigned count, unsigned limit,
                          size_t *lines_p)
{
    bt_str_t *lines = malloc((size_t) count * limit * sizeof(*lines));

    *lines_p = 0;
    for (unsigned i = 0; lines != NULL && i < count; i++) {
        bt_str_t rest = facts[i].answered ? bt_text_str(&facts[i].rows) : BT_STR_NULL;
        while (rest.n > 0) {
            const char *end = memchr(rest.p, '\n', rest.n);
            const size_t n = (size_t) (end - rest.p);
            lines[(*lines_p)++] = (bt_str_t){rest.p, n};
            rest = (bt_str_t){end + 1, rest.n - n - 1};
        }
    }
    return lines;
}

/* What finds it, and how it went; everything else is in its own record. */
static void put_brief(bt_text_t *out, bt_str_t line)
{
    static const char *const names[] = {"id",    "at",   "path",       "model",  "tenant",
                                        "pool",  "rule", "decided_by", "policy", "status",
                                        "error", "plan", "phases_ms"};
    const char *comma = "{";
    bt_json_item_t item;

    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (bt_json_get(line, bt_str(names[i]), &item) < 0 || item.type == BT_JSON_NONE)
            continue;
        bt_text_printf(out, "%s\"%s\":", comma, names[i]);
        bt_text_put(out, item.value);
        comma = ",";
    }
    bt_text_puts(out, "}");
}

void bt_explain_list(bt_admin_reply_t *reply, unsigned limit, bool as_text,
                     const bt_loop_facts_t *facts, unsigned count)
{
    size_t n;
    unsigned late = 0;
    bt_str_t *lines = lines_of(facts, count, limit, &n);

    for (unsigned i = 0; i < count; i++)
        late += !facts[i].answered;
    if (lines != NULL)
        qsort(lines, n, sizeof(*lines), compare_newest_first);
    if (as_text)
        reply->type = "text/plain; charset=utf-8";
    else
        bt_text_puts(&reply->body, "{\"requests\":[");
    for (size_t i = 0; i < n && i < limit; i++) {
        if (as_text) {
            bt_record_headline(lines[i], &reply->body);
            continue;
        }
        bt_text_puts(&reply->body, i > 0 ? ",\n" : "\n");
        put_brief(&reply->body, lines[i]);
    }
    if (!as_text)
        bt_text_printf(&reply->body, "],\"late_loops\":%u}\n", late);
    else if (late > 0)
        bt_text_printf(&reply->body, "(%u of %u loops did not answer in time)\n", late, count);
    free(lines);
}
