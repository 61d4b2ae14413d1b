/* The story is told from the line: what is not in the record is not in the story, and files written by --record-file can be told
 * the same way.
 *
 * Text of clients (model, tenant, key) goes to a terminal here: control characters are taken out.
 */
#include "record/record.h"

#include "base/json.h"

#include <stdio.h>

#define VALUE_MAX 700 /* more than a policy's error has */

/* ---- reading the line ---- */

typedef struct value {
    char z[VALUE_MAX];
} value_t;

static bt_str_t member(bt_str_t object, const char *name)
{
    bt_json_item_t item;

    if (object.n == 0 || bt_json_get(object, bt_str(name), &item) < 0 || item.type == BT_JSON_NONE)
        return BT_STR_NULL;
    return item.value;
}

/* A string without quotes, anything else as it is written; "" when it is not there. */
static value_t text_of(bt_str_t raw)
{
    value_t v = {""};
    long n;

    if (raw.n > 0 && raw.p[0] == '"') {
        n = bt_json_unescape(raw, v.z, sizeof(v.z) - 1);
        v.z[n > 0 ? n : 0] = '\0';
        if (n < 0)
            snprintf(v.z, sizeof(v.z), "(long)");
    } else {
        snprintf(v.z, sizeof(v.z), "%.*s", BT_STR_ARG(raw));
    }
    bt_str_tame(v.z, strlen(v.z));
    return v;
}

static value_t get(bt_str_t object, const char *name)
{
    return text_of(member(object, name));
}

static bool has(bt_str_t object, const char *name)
{
    return member(object, name).n > 0;
}

/* before + value + after, when it is there. */
static void put(bt_text_t *out, const char *before, bt_str_t object, const char *name,
                const char *after)
{
    if (has(object, name))
        bt_text_printf(out, "%s%s%s", before, get(object, name).z, after);
}

/* "p1 > d2", "w1" or "nobody". */
static void describe_pair(bt_text_t *out, bt_str_t object)
{
    if (has(object, "worker"))
        put(out, "", object, "worker", "");
    else if (has(object, "decode"))
        bt_text_printf(out, "%s > %s", get(object, "prefill").z, get(object, "decode").z);
    else
        bt_text_puts(out, "nobody");
}

/* ---- who asked what ---- */

static void describe_request(bt_text_t *out, bt_str_t r)
{
    const bool is_stream = bt_str_eq(member(r, "stream"), BT_STR("true"));

    put(out, "request ", r, "id", "\n");
    put(out, "  ", r, "at", "");
    put(out, "  ", r, "path", "");
    put(out, ", model ", r, "model", "");
    bt_text_puts(out, is_stream ? ", streamed" : ", not streamed");
    put(out, ", ", r, "prompt_tokens", " prompt tokens");
    put(out, " (", r, "prompt_bytes", " bytes)");
    put(out, ", tenant ", r, "tenant", "");
    put(out, ", session ", r, "session", "");
    put(out, ", class ", r, "class", "");
    put(out, ", key ", r, "key", "");
    bt_text_puts(out, "\n");
}

static void describe_outcome(bt_text_t *out, bt_str_t r)
{
    const bt_str_t phases = member(r, "phases_ms");
    const bool is_gone = bt_str_eq(member(r, "status"), BT_STR("0"));

    if (is_gone)
        bt_text_puts(out, "  the client left before it had an answer");
    else
        put(out, "  answered ", r, "status", "");
    put(out, " (", r, "error", ")");
    put(out, " after ", phases, "last_byte", " ms");
    put(out, ", first byte after ", phases, "first_byte", " ms");
    put(out, "; ", r, "bytes_out", " bytes");
    put(out, ", ", r, "events", " events");
    bt_text_puts(out, "\n");
}

static void describe_decision(bt_text_t *out, bt_str_t r)
{
    const value_t by = get(r, "decided_by");

    bt_text_puts(out, "\ndecided by ");
    if (strcmp(by.z, "policy") == 0)
        bt_text_printf(out, "policy %s", get(r, "policy").z);
    else
        bt_text_printf(out, "%s", strcmp(by.z, "default") == 0 ? "the default choice" : by.z);
    if (strcmp(by.z, "policy") == 0) {
        put(out, " ", r, "policy_version", "");
        put(out, ", generation ", r, "generation", "");
    }
    put(out, ", pool ", r, "pool", "");
    put(out, ", rule ", r, "rule", "");
    put(out, "; policy ", strcmp(by.z, "default") == 0 ? r : BT_STR_NULL, "policy", "");
    put(out, ": ", r, "why", "");
    bt_text_puts(out, "\n");
}

/* ---- candidates ---- */

static const struct column {
    const char *name, *title;
    int width;
} columns[] = {
    {"score", "score", 12},           {"requests", "requests", 8},
    {"prefill_tokens", "prefill", 9}, {"decode_tokens", "decode", 9},
    {"running", "running", 7},        {"waiting", "waiting", 7},
    {"kv_free", "kv_free", 9},        {"ttft_ema_ms", "ttft_ms", 9},
    {"tpot_ema_ms", "tpot_ms", 9},    {"zone", "zone", 8},
};
#define COLUMN_COUNT (sizeof(columns) / sizeof(columns[0]))

static void describe_row(bt_text_t *out, bt_str_t row, const char *chosen)
{
    const value_t name = get(row, "name");

    bt_text_printf(out, "  %c %-20s", strcmp(name.z, chosen) == 0 ? '*' : ' ', name.z);
    for (size_t i = 0; i < COLUMN_COUNT; i++)
        bt_text_printf(out, " %*s", columns[i].width,
                       has(row, columns[i].name) ? get(row, columns[i].name).z : "-");
    bt_text_puts(out, "\n");
}

static void describe_role(bt_text_t *out, bt_str_t r, const char *role)
{
    const bt_str_t set = member(member(r, "candidates"), role), rows = member(set, "rows");
    const value_t chosen = get(member(r, "plan"), strcmp(role, "single") == 0 ? "worker" : role);
    bt_json_cursor_t cursor;
    bt_json_item_t row;

    if (bt_str_eq(member(set, "total"), BT_STR("0")))
        return;
    bt_text_printf(out, "\n%s candidates: %s usable, %ld kept\n", role, get(set, "total").z,
                   bt_json_count(rows));
    bt_text_printf(out, "    %-20s", "name");
    for (size_t i = 0; i < COLUMN_COUNT; i++)
        bt_text_printf(out, " %*s", columns[i].width, columns[i].title);
    bt_text_puts(out, "\n");
    if (bt_json_array(&cursor, rows) < 0)
        return;
    while (bt_json_next(&cursor, &row) > 0)
        describe_row(out, row.value, chosen.z);
}

static void describe_candidates(bt_text_t *out, bt_str_t r)
{
    if (!has(r, "candidates")) {
        bt_text_puts(out, has(r, "plan")
                              ? "\ncandidates were not kept: this request was not sampled "
                                "(--record-sample)\n"
                              : "");
        return;
    }
    describe_role(out, r, "prefill");
    describe_role(out, r, "decode");
    describe_role(out, r, "single");
}

/* ---- plan, attempts ---- */

static void describe_plan(bt_text_t *out, bt_str_t r)
{
    const bt_str_t plan = member(r, "plan");
    bt_json_cursor_t cursor;
    bt_json_item_t pair;

    if (plan.n == 0)
        return;
    bt_text_printf(out, "\nchosen: %s ", get(plan, "kind").z);
    describe_pair(out, plan);
    if (has(plan, "alternates") && bt_json_array(&cursor, member(plan, "alternates")) == 0)
        while (bt_json_next(&cursor, &pair) > 0) {
            bt_text_puts(out, pair.ordinal == 0 ? "; if it fails: " : ", ");
            describe_pair(out, pair.value);
        }
    bt_text_puts(out, "\n");
}

static void describe_guilty(bt_text_t *out, bt_str_t guilty)
{
    bt_json_cursor_t cursor;
    bt_json_item_t name;
    bool is_any = false;

    if (bt_json_array(&cursor, guilty) < 0)
        return;
    for (; bt_json_next(&cursor, &name) > 0; is_any = true)
        bt_text_printf(out, "%s %s", is_any ? "," : "; blamed:", text_of(name.value).z);
    bt_text_puts(out, is_any ? "" : "; nobody is blamed");
}

static void describe_replaced(bt_text_t *out, bt_str_t replaced)
{
    bt_json_cursor_t cursor;
    bt_json_item_t s;

    if (bt_json_array(&cursor, replaced) < 0)
        return;
    while (bt_json_next(&cursor, &s) > 0) {
        if (has(s.value, "prefill"))
            bt_text_printf(out, "\n  decode waited, and another prefill took over from %s: %s",
                           get(s.value, "prefill").z, get(s.value, "failure").z);
        else
            bt_text_printf(out, "\n  could not be handed to %s: %s", get(s.value, "decode").z,
                           get(s.value, "failure").z);
    }
}

static void describe_kv(bt_text_t *out, bt_str_t kv)
{
    if (kv.n == 0)
        return;
    put(out, "\n  KV: ", kv, "bytes", " bytes");
    put(out, ", waited ", kv, "wait_ms", " ms");
    put(out, ", moved in ", kv, "transfer_ms", " ms");
}

static void describe_attempt(bt_text_t *out, bt_str_t a)
{
    const bool no_answer = bt_str_eq(member(a, "status"), BT_STR("0"));

    bt_text_printf(out, "attempt %s", get(a, "n").z);
    put(out, " of child ", a, "child", "");
    bt_text_printf(out, ": %s ", get(a, "kind").z);
    describe_pair(out, a);
    put(out, "; started at ", a, "start_ms", " ms");
    put(out, ", prefill done at ", a, "prefill_ms", " ms");
    put(out, ", first byte at ", a, "first_byte_ms", " ms");
    put(out, ", ended at ", a, "end_ms", " ms");
    if (has(a, "failure")) {
        bt_text_printf(out, "\n  failed at %s: %s", get(a, "leg").z, get(a, "failure").z);
        put(out, ", status ", no_answer ? BT_STR_NULL : a, "status", "");
        describe_guilty(out, member(a, "guilty"));
    }
    describe_replaced(out, member(a, "replaced"));
    describe_kv(out, member(a, "kv"));
    bt_text_puts(out, "\n");
}

static void describe_attempts(bt_text_t *out, bt_str_t r)
{
    bt_json_cursor_t cursor;
    bt_json_item_t a;

    if (bt_json_array(&cursor, member(r, "attempts")) < 0)
        return;
    while (bt_json_next(&cursor, &a) > 0)
        describe_attempt(out, a.value);
    put(out, "(", r, "attempts_total", " attempts in all)\n");
}

static void describe_phases(bt_text_t *out, bt_str_t r)
{
    const bt_str_t p = member(r, "phases_ms");

    bt_text_puts(out, "\ntimes in ms:");
    put(out, " admit ", p, "admit", "");
    put(out, " route ", p, "route", "");
    put(out, " plan ", p, "plan", "");
    put(out, " prefill ", p, "prefill", "");
    put(out, " waiting for KV ", p, "kv_wait", "");
    put(out, " first byte ", p, "first_byte", "");
    put(out, " last byte ", p, "last_byte", "");
    bt_text_puts(out, "\n");
}

static void describe_shadow(bt_text_t *out, bt_str_t r)
{
    const bt_str_t s = member(r, "shadow");

    if (s.n == 0)
        return;
    bt_text_printf(out, "shadow (rule %s, policy %s", get(s, "rule").z, get(s, "policy").z);
    put(out, " ", s, "version", "");
    if (has(s, "error")) {
        put(out, "): failed: ", s, "error", "");
    } else {
        bt_text_puts(out, "): would choose ");
        describe_pair(out, s);
        bt_text_puts(out, bt_str_eq(member(s, "same"), BT_STR("true")) ? ", the same"
                                                                       : ", not the same");
    }
    put(out, ", in ", s, "plan_ms", " ms");
    bt_text_puts(out, "\n");
}

void bt_record_story(bt_str_t line, bt_text_t *out)
{
    describe_request(out, line);
    describe_outcome(out, line);
    describe_decision(out, line);
    describe_candidates(out, line);
    describe_plan(out, line);
    describe_attempts(out, line);
    describe_phases(out, line);
    describe_shadow(out, line);
}
