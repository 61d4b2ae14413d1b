/* The story is told from the line: what is not in the record is not in the story, and files written by --record-file can be told
 * the same way.
 *
 * Text of clients (model, tenant, identity, key) goes to a terminal here: control characters are taken out.
 */
#include "record/record.h"

#include "base/json.h"

#include <stdio.h>

#define VALUE_MAX 700 /* more than a policy's error has */

/* ---- reading the line ---- */

typedef struct value {
    char z[VALUE_MAX];
} value_t;

/* path: a member, or "a.b", which is b of the object a. */
static bt_str_t member_at(bt_str_t object, bt_str_t path)
{
    const char *dot = memchr(path.p, '.', path.n);
    const size_t n = dot != NULL ? (size_t) (dot - path.p) : path.n;
    bt_json_item_t item;

    if (object.n == 0 || bt_json_get(object, (bt_str_t){path.p, n}, &item) < 0 ||
        item.type == BT_JSON_NONE)
        return BT_STR_NULL;
    return dot == NULL ? item.value : member_at(item.value, (bt_str_t){dot + 1, path.n - n - 1});
}

static bt_str_t member(bt_str_t object, const char *path)
{
    return member_at(object, bt_str(path));
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

static bool is(bt_str_t object, const char *path, const char *raw)
{
    return bt_str_eq(member(object, path), bt_str(raw));
}

static bt_str_t named(bt_str_t object, const char *brace)
{
    return member_at(object, (bt_str_t){brace + 1, strcspn(brace + 1, "}")});
}

/* {path} becomes the member's value. What stands in brackets is left out where the first member
 * that it names is not there. */
static void tell(bt_text_t *out, bt_str_t object, const char *format)
{
    while (*format != '\0') {
        const size_t plain = strcspn(format, "[{]");

        bt_text_put(out, (bt_str_t){format, plain});
        format += plain;
        if (*format == '{') {
            bt_text_puts(out, text_of(named(object, format)).z);
            format = strchr(format, '}') + 1;
        } else if (*format == '[' && named(object, strchr(format, '{')).n == 0) {
            format = strchr(format, ']') + 1;
        } else if (*format != '\0') {
            format++;
        }
    }
}

/* "p1 > d2", "p1, decode open", "d2, prefill open", "w1" or "nobody". */
static void tell_pair(bt_text_t *out, bt_str_t object)
{
    if (has(object, "worker") || has(object, "decode"))
        tell(out, object,
             has(object, "worker") || has(object, "prefill") ? "[{worker}][{prefill} > ][{decode}]"
                                                             : "{decode}, prefill open");
    else
        tell(out, object, has(object, "prefill") ? "{prefill}, decode open" : "nobody");
}

/* ---- who asked what ---- */

static void tell_request(bt_text_t *out, bt_str_t r)
{
    tell(out, r, "[request {id}\n][  {at}][  {path}][, model {model}]");
    bt_text_puts(out, is(r, "stream", "true") ? ", streamed" : ", not streamed");
    tell(out, r,
         "[, {prompt_tokens} prompt tokens][ ({prompt_bytes} bytes)][, tenant {tenant}]"
         "[, identity {identity}][, session {session}][, class {class}][, key {key}]\n");
}

static void tell_outcome(bt_text_t *out, bt_str_t r)
{
    tell(out, r,
         is(r, "status", "0") ? "  the client left before it had an answer"
                              : "[  answered {status}]");
    tell(
        out, r,
        "[ ({error})][ after {phases_ms.last_byte} ms]"
        "[, first byte after {phases_ms.first_byte} ms][; {bytes_out} bytes][, {events} events]\n");
}

static void tell_decision(bt_text_t *out, bt_str_t r)
{
    const bool is_default = is(r, "decided_by", "\"default\"");

    if (is(r, "decided_by", "\"policy\""))
        tell(out, r, "\ndecided by policy {policy}[ {policy_version}][, generation {generation}]");
    else
        tell(out, r, is_default ? "\ndecided by the default choice" : "\ndecided by {decided_by}");
    tell(out, r, "[, pool {pool}][, rule {rule}]");
    tell(out, r, is_default ? "[; policy {policy}][: {why}]\n" : "[: {why}]\n");
    tell(out, member(r, "rests"),
         "[not the pair {prefill}, {decode}, which rests: transfers between the two keep "
         "failing\n]");
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

static void tell_row(bt_text_t *out, bt_str_t row, const char *chosen)
{
    const value_t name = get(row, "name");

    bt_text_printf(out, "  %c %-20s", strcmp(name.z, chosen) == 0 ? '*' : ' ', name.z);
    for (size_t i = 0; i < COLUMN_COUNT; i++)
        bt_text_printf(out, " %*s", columns[i].width,
                       has(row, columns[i].name) ? get(row, columns[i].name).z : "-");
    bt_text_puts(out, "\n");
}

static void tell_role(bt_text_t *out, bt_str_t r, const char *role)
{
    const bt_str_t set = member(member(r, "candidates"), role), rows = member(set, "rows");
    const bt_str_t plan = member(r, "plan");
    const value_t chosen = get(plan, has(plan, role) ? role : "worker");
    bt_json_cursor_t cursor;
    bt_json_item_t row;

    if (is(set, "total", "0"))
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
        tell_row(out, row.value, chosen.z);
}

static void tell_candidates(bt_text_t *out, bt_str_t r)
{
    if (!has(r, "candidates")) {
        bt_text_puts(out, has(r, "plan")
                              ? "\ncandidates were not kept: this request was not sampled "
                                "(--record-sample)\n"
                              : "");
        return;
    }
    tell_role(out, r, "prefill");
    tell_role(out, r, "decode");
    tell_role(out, r, "hybrid"); /* who serves alone beside them stands above */
}

/* ---- plan, attempts ---- */

static void tell_plan(bt_text_t *out, bt_str_t r)
{
    const bt_str_t plan = member(r, "plan");
    bt_json_cursor_t cursor;
    bt_json_item_t pair;

    if (plan.n == 0)
        return;
    tell(out, plan, "\nchosen: {kind} ");
    tell_pair(out, plan);
    if (has(plan, "alternates") && bt_json_array(&cursor, member(plan, "alternates")) == 0)
        while (bt_json_next(&cursor, &pair) > 0) {
            bt_text_puts(out, pair.ordinal == 0 ? "; if it fails: " : ", ");
            tell_pair(out, pair.value);
        }
    bt_text_puts(out, "\n");
}

static void tell_guilty(bt_text_t *out, bt_str_t guilty)
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

static void tell_replaced(bt_text_t *out, bt_str_t replaced)
{
    bt_json_cursor_t cursor;
    bt_json_item_t s;

    if (bt_json_array(&cursor, replaced) < 0)
        return;
    while (bt_json_next(&cursor, &s) > 0)
        tell(out, s.value,
             "[\n  decode waited, and another prefill took over from {prefill}: {failure}]"
             "[\n  could not be handed to {decode}: {failure}]"
             "[\n  not encoded by {encode}: {failure}]");
}

static void tell_encode(bt_text_t *out, bt_str_t r)
{
    const bt_str_t encode = member(r, "encode");
    bt_json_cursor_t cursor;
    bt_json_item_t part;

    if (encode.n == 0 || bt_json_array(&cursor, member(encode, "parts")) < 0)
        return;
    while (bt_json_next(&cursor, &part) > 0) {
        tell(out, part.value, "part {n}:[ encoded by {worker}][ at {end_ms} ms]");
        tell_replaced(out, member(part.value, "replaced"));
        bt_text_puts(out, "\n");
    }
}

static void tell_attempts(bt_text_t *out, bt_str_t r)
{
    bt_json_cursor_t cursor;
    bt_json_item_t a;

    if (bt_json_array(&cursor, member(r, "attempts")) < 0)
        return;
    while (bt_json_next(&cursor, &a) > 0) {
        tell(out, a.value, "attempt {n}[ of child {child}]: {kind} ");
        tell_pair(out, a.value);
        tell(out, a.value,
             "[; goes on after {replayed_tokens} tokens, {replay}][; started at {start_ms} ms]"
             "[, decode called at {callback_ms} ms][, prefill done at {prefill_ms} ms]"
             "[, first byte at {first_byte_ms} ms][, ended at {end_ms} ms]"
             "[\n  prefill was told: {prefill_hints}][\n  decode was told: {decode_hints}]"
             "[\n  failed at {leg}: {failure}]");
        if (has(a.value, "failure")) {
            tell(out, a.value, is(a.value, "status", "0") ? "" : "[, status {status}]");
            tell_guilty(out, member(a.value, "guilty"));
        }
        tell_replaced(out, member(a.value, "replaced"));
        tell(out, a.value,
             "[\n  KV: {kv.bytes} bytes][, waited {kv.wait_ms} ms]"
             "[, moved in {kv.transfer_ms} ms]\n");
    }
    tell(out, r, "[({attempts_total} attempts in all)\n]");
    if (is(r, "over_budget", "true"))
        bt_text_puts(out, "not tried again: the pool's retry budget is spent\n");
}

static void tell_queue(bt_text_t *out, bt_str_t r)
{
    const bt_str_t queue = member(r, "queue");
    bt_json_cursor_t cursor;
    bt_json_item_t b;

    if (queue.n == 0)
        return;
    tell(out, queue,
         "\nin line: class {class}, share {share} (weight {weight}), cost {cost} tokens, behind "
         "{ahead_tokens} tokens[; predicted {predicted_ms} ms]; {passed} passed; {end}\n");
    if (bt_json_array(&cursor, member(queue, "behind")) == 0)
        while (bt_json_next(&cursor, &b) > 0)
            tell(out, b.value, "  behind {share}: {tokens} tokens\n");
}

static void tell_phases(bt_text_t *out, bt_str_t r)
{
    tell(out, member(r, "phases_ms"),
         "\ntimes in ms:[ admit {admit}][ route {route}][ queue {queue}][ encode {encode}][ plan "
         "{plan}]"
         "[ callback {callback}][ prefill {prefill}]"
         "[ waiting for KV {kv_wait}][ first byte {first_byte}][ last byte {last_byte}]\n");
}

static void tell_shadow(bt_text_t *out, bt_str_t r)
{
    const bt_str_t s = member(r, "shadow");

    if (s.n == 0)
        return;
    tell(out, s, "shadow (rule {rule}, policy {policy}[ {version}][): failed: {error}]");
    if (!has(s, "error")) {
        bt_text_puts(out, "): would choose ");
        tell_pair(out, s);
        bt_text_puts(out, is(s, "same", "true") ? ", the same" : ", not the same");
    }
    tell(out, s, "[, in {plan_ms} ms]\n");
}

void bt_record_headline(bt_str_t line, bt_text_t *out)
{
    const bt_str_t plan = member(line, "plan");

    tell(out, line, "{at}  {id}[  {path}][, model {model}]");
    tell(out, line, is(line, "status", "0") ? "  client gone" : "  {status}[ ({error})]");
    tell(out, line, "[ after {phases_ms.last_byte} ms][  decided by {decided_by}]");
    tell(out, line, is(line, "decided_by", "\"policy\"") ? "[ {policy}]" : "");
    if (plan.n > 0) {
        tell(out, plan, ": {kind} ");
        tell_pair(out, plan);
    }
    bt_text_puts(out, "\n");
}

void bt_record_story(bt_str_t line, bt_text_t *out)
{
    tell_request(out, line);
    tell_outcome(out, line);
    tell_decision(out, line);
    tell_candidates(out, line);
    tell_plan(out, line);
    tell_queue(out, line);
    tell_encode(out, line);
    tell_attempts(out, line);
    tell_phases(out, line);
    tell_shadow(out, line);
}
