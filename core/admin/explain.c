/* A record is a line of JSON already, so the plain answer is the line itself. */
#include "admin/explain.h"

#include "admin/query.h"
#include "base/json.h"
#include "record/record.h"

bool bt_explain_format(bt_str_t query, bool *as_text_p)
{
    bt_str_t name, value;

    *as_text_p = false;
    while (bt_query_next(&query, &name, &value)) {
        if (!bt_str_eq(name, BT_STR("format")))
            continue;
        *as_text_p = bt_str_eq(value, BT_STR("text"));
        if (!*as_text_p && !bt_str_eq(value, BT_STR("json")))
            return false;
    }
    return true;
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
