/* How it works: one pass over the line's members; the cursor proves the whole line well-formed on the way. Nothing of it is copied
 * but texts with escapes. */
#include "tools/replay.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>

#define COUNT_MAX ((uint64_t) 1 << 53)

static const char *const fact_names[BT_REPLAY_FACT_COUNT] = {
    "name",      "url",     "role",    "zone",    "labels",  "engine",
    "connector", "version", "dialect", "dp_size", "tp_size", "pp_size"};
static const char *const number_names[BT_REPLAY_NUMBER_COUNT] = {
    "prefill_tokens", "decode_tokens", "requests",    "transfer_bytes", "running",       "waiting",
    "kv_free",        "ttft_ema_ms",   "tpot_ema_ms", "age_ms",         "prefix_cached", "score"};

/* ---- values ---- */

int bt_replay_bad(char *err, size_t err_size, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(err, err_size, fmt, args);
    va_end(args);
    return BT_E_INVAL;
}

static int bad_member(char *err, size_t err_size, bt_str_t key, const char *wanted)
{
    return bt_replay_bad(err, err_size, "\"%.*s\" must be %s", (int) (key.n < 40 ? key.n : 40),
                         key.p, wanted);
}

/* Most numbers are short whole ones. */
static double number_of(bt_str_t value)
{
    double number = 0;
    uint64_t whole;

    if (value.n < 16 && bt_str_u64(value, &whole) == 0)
        return (double) whole;
    return bt_json_double(value, &number) == 0 ? number : 0;
}

/* What a count can be: not negative, and exact as a number of Lua. */
static bool read_count(bt_str_t value, enum bt_json_type type, uint64_t *count_p)
{
    double number = type == BT_JSON_NUMBER ? number_of(value) : -1;

    if (!(number >= 0 && number <= (double) COUNT_MAX))
        return false;
    *count_p = (uint64_t) number;
    return true;
}

static int find_name(const char *const *names, int count, const bt_json_item_t *item)
{
    for (int i = 0; i < count; i++)
        if (item->key_escaped ? bt_json_key_eq(item, bt_str(names[i]))
                              : item->key.n == strlen(names[i]) &&
                                    memcmp(item->key.p, names[i], item->key.n) == 0)
            return i;
    return -1;
}

/* ---- rows ---- */

static int read_fact(const bt_json_item_t *item, enum bt_replay_fact fact, bt_replay_row_t *row,
                     char *err, size_t err_size)
{
    if (fact == BT_REPLAY_FACT_LABELS && item->type != BT_JSON_OBJECT)
        return bad_member(err, err_size, item->key, "an object");
    if (fact >= BT_REPLAY_FACT_DP_SIZE && item->type != BT_JSON_NUMBER)
        return bad_member(err, err_size, item->key, "a number");
    if (fact != BT_REPLAY_FACT_LABELS && fact < BT_REPLAY_FACT_DP_SIZE &&
        item->type != BT_JSON_STRING)
        return bad_member(err, err_size, item->key, "a string");
    row->facts[fact] = item->value;
    return 0;
}

static int read_row(bt_str_t text, bt_replay_row_t *row, char *err, size_t err_size)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    int at, rc = bt_json_object(&c, text);

    *row = (bt_replay_row_t){.id = 0};
    while (rc == 0 && bt_json_next(&c, &item) > 0) {
        if (item.type == BT_JSON_NULL)
            continue;
        if (item.type == BT_JSON_NUMBER &&
            (at = find_name(number_names, BT_REPLAY_NUMBER_COUNT, &item)) >= 0) {
            row->numbers[at] = number_of(item.value);
            row->has |= 1u << at;
        } else if (item.key.n == 2 && memcmp(item.key.p, "id", 2) == 0) {
            if (!read_count(item.value, item.type, &row->id))
                return bad_member(err, err_size, item.key, "a whole number");
        } else if ((at = find_name(fact_names, BT_REPLAY_FACT_COUNT, &item)) >= 0) {
            rc = read_fact(&item, (enum bt_replay_fact) at, row, err, err_size);
            if (rc < 0)
                return rc;
        }
    }
    return rc == 0 ? 0 : bt_replay_bad(err, err_size, "a candidate is no object");
}

static int read_rows(bt_replay_workers_t *f, int list, bt_str_t text, uint64_t now_ms, char *err,
                     size_t err_size)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    bt_replay_row_t row;
    int rc = bt_json_array(&c, text);

    if (rc < 0)
        return bt_replay_bad(err, err_size, "\"rows\" must be a list");
    while (rc == 0 && bt_json_next(&c, &item) > 0) {
        rc = read_row(item.value, &row, err, err_size);
        if (rc == 0)
            rc = bt_replay_workers_add(f, list, &row, now_ms, err, err_size);
    }
    return rc;
}

static int read_list(bt_replay_workers_t *f, int list, bt_str_t text, uint64_t now_ms,
                     bool *is_cut_p, char *err, size_t err_size)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    uint64_t total = 0;
    int rc = bt_json_object(&c, text);

    if (rc < 0)
        return bt_replay_bad(err, err_size, "a list of candidates must be an object");
    while (rc == 0 && bt_json_next(&c, &item) > 0) {
        if (bt_str_eq(item.key, BT_STR("total")))
            (void) read_count(item.value, item.type, &total);
        else if (bt_str_eq(item.key, BT_STR("rows")))
            rc = read_rows(f, list, item.value, now_ms, err, err_size);
    }
    *is_cut_p |= total > bt_replay_workers_count(f, list);
    return rc;
}

/* In the order of the lists: a later one names workers of an earlier one by their ids. */
static int read_candidates(bt_replay_workers_t *f, bt_str_t text, bt_replay_record_t *r, char *err,
                           size_t err_size)
{
    const uint64_t now_ms = r->clock_us / 1000;
    bt_json_item_t item;
    int rc = 0;

    for (int list = 0; rc == 0 && list < BT_LIST_COUNT; list++) {
        const char *name = bt_policy_list_name((enum bt_policy_list) list);
        if (bt_json_get(text, bt_str(name), &item) < 0)
            return bt_replay_bad(err, err_size, "\"candidates\" must be an object");
        if (item.type != BT_JSON_NONE)
            rc = read_list(f, list, item.value, now_ms, &r->is_cut, err, err_size);
        r->has_candidates |= bt_replay_workers_count(f, list) > 0;
    }
    return rc;
}

/* ---- records ---- */

static int read_pair(bt_replay_workers_t *f, const bt_json_item_t *member, bt_replay_pair_t *pair,
                     char *err, size_t err_size)
{
    static const char *const places[] = {"prefill", "decode", "worker"};
    bt_json_cursor_t c;
    bt_json_item_t item;
    bool is_trigger = false;
    int at;

    if (bt_json_object(&c, member->value) < 0)
        return bad_member(err, err_size, member->key, "an object");
    while (bt_json_next(&c, &item) > 0)
        if (item.type == BT_JSON_STRING && (at = find_name(places, 3, &item)) >= 0)
            *(at == 0 ? &pair->prefill : &pair->decode) = bt_replay_text(f, item.value);
        else if (bt_json_key_eq(&item, BT_STR("kind")))
            is_trigger = bt_str_eq(item.value, BT_STR("\"trigger\""));
    pair->lacks_prefill = is_trigger && pair->prefill.n == 0;
    return 0;
}

static int read_headers(bt_replay_workers_t *f, bt_str_t text, bt_replay_record_t *r, char *err,
                        size_t err_size)
{
    bt_json_cursor_t c;
    bt_json_item_t item;

    if (bt_json_object(&c, text) < 0)
        return bt_replay_bad(err, err_size, "\"headers\" must be an object");
    r->head.headers = r->headers;
    while (bt_json_next(&c, &item) > 0)
        if (item.type == BT_JSON_STRING && r->head.header_count < BT_REPLAY_HEADERS_MAX)
            r->headers[r->head.header_count++] =
                (bt_header_t){item.key, bt_replay_text(f, item.value)};
    r->req.head = &r->head;
    return 0;
}

static void read_decider(bt_replay_record_t *r, bt_str_t word)
{
    r->decider = bt_str_eq(word, BT_STR("policy"))    ? BT_REPLAY_POLICY
                 : bt_str_eq(word, BT_STR("default")) ? BT_REPLAY_DEFAULT
                                                      : BT_REPLAY_NOBODY;
}

static void read_source(bt_replay_record_t *r, bt_str_t word)
{
    for (unsigned i = 0; i < BT_TOKEN_SOURCES; i++)
        if (bt_str_eq(word, bt_str(bt_token_source_name((enum bt_token_source) i))))
            r->req.token_source = (enum bt_token_source) i;
}

/* Members of a record that are texts, and where they go. */
static const struct {
    const char *name;
    size_t offset;
} texts[] = {{"id", offsetof(bt_replay_record_t, id)},
             {"path", offsetof(bt_replay_record_t, req.path)},
             {"model", offsetof(bt_replay_record_t, req.model)},
             {"session", offsetof(bt_replay_record_t, req.session)},
             {"tenant", offsetof(bt_replay_record_t, req.tenant)},
             {"class", offsetof(bt_replay_record_t, req.klass)},
             {"pool", offsetof(bt_replay_record_t, view.pool)}};

static bool read_text(bt_replay_workers_t *f, const bt_json_item_t *item, bt_replay_record_t *r)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (bt_str_eq(item->key, bt_str(texts[i].name))) {
            *(bt_str_t *) (void *) ((char *) r + texts[i].offset) = bt_replay_text(f, item->value);
            return true;
        }
    return false;
}

/* 16 hex digits: more than a JSON number holds. */
static int read_seed(const bt_json_item_t *item, bt_replay_record_t *r, char *err, size_t err_size)
{
    bt_str_t digits = {item->value.p + 1, item->value.n - 2};

    return item->type == BT_JSON_STRING && digits.n == 16 && bt_str_take_hex64(&digits, &r->seed)
               ? 0
               : bad_member(err, err_size, item->key, "16 hex digits");
}

/* key: what route had said stands for the session, as the policy of then saw it. */
static int read_member(bt_replay_workers_t *f, const bt_json_item_t *item, bt_replay_record_t *r,
                       bt_str_t *key_p, char *err, size_t err_size)
{
    static const char *const others[] = {"candidates", "plan",          "headers",
                                         "n",          "prompt_tokens", "prompt_bytes",
                                         "stream",     "decided_by",    "key"};
    const int at = find_name(others, (int) (sizeof others / sizeof others[0]), item);
    uint64_t n = 0;

    if (bt_str_eq(item->key, BT_STR("token_source")))
        read_source(r, bt_replay_text(f, item->value));
    if (bt_str_eq(item->key, BT_STR("seed")))
        return read_seed(item, r, err, err_size);
    if (bt_str_eq(item->key, BT_STR("rests")))
        return read_pair(f, item, &r->rests, err, err_size);
    if (bt_str_eq(item->key, BT_STR("reads")))
        r->reads = item->value;
    r->reads_cut |= bt_str_eq(item->key, BT_STR("reads_cut"));
    if (bt_str_eq(item->key, BT_STR("clock_us")))
        return read_count(item->value, item->type, &r->clock_us)
                   ? 0
                   : bad_member(err, err_size, item->key, "a whole number");
    if (at < 0 || item->type == BT_JSON_NULL) {
        if (item->type == BT_JSON_STRING)
            (void) read_text(f, item, r);
        return 0;
    }
    if (at == 0) {
        r->candidates = item->value;
        return 0;
    }
    if (at == 1)
        return read_pair(f, item, &r->choice, err, err_size);
    if (at == 2)
        return read_headers(f, item->value, r, err, err_size);
    if (at >= 3 && at <= 5) {
        if (!read_count(item->value, item->type, &n))
            return bad_member(err, err_size, item->key, "a whole number");
        if (at == 3)
            r->req.n = n < 1000000 ? (unsigned) n : 1000000;
        else
            *(at == 4 ? &r->req.prompt_tokens : &r->req.prompt_bytes) = n;
        return 0;
    }
    if (at == 6) {
        r->req.stream = item->type == BT_JSON_TRUE;
        return 0;
    }
    if (item->type != BT_JSON_STRING)
        return bad_member(err, err_size, item->key, "a string");
    if (at == 7)
        read_decider(r, bt_replay_text(f, item->value));
    else
        *key_p = bt_replay_text(f, item->value);
    return 0;
}

static void begin(bt_replay_workers_t *f, bt_replay_record_t *r)
{
    *r = (bt_replay_record_t){
        .decider = BT_REPLAY_NOBODY, .req = {.n = 1}, .view = {.pool = BT_STR("default")}};
    bt_replay_workers_begin(f);
}

int bt_replay_read(bt_replay_workers_t *f, bt_str_t line, bt_replay_record_t *r, char *err,
                   size_t err_size)
{
    bt_str_t key = BT_STR_NULL;
    bt_json_cursor_t c;
    bt_json_item_t item;
    int rc;

    begin(f, r);
    if (bt_json_object(&c, line) < 0)
        return bt_replay_bad(err, err_size, "it is no JSON object");
    while ((rc = bt_json_next(&c, &item)) > 0) {
        rc = read_member(f, &item, r, &key, err, err_size);
        if (rc < 0)
            return rc;
    }
    if (rc < 0)
        return bt_replay_bad(err, err_size, "it is no JSON, from byte %zu on", c.err_off + 1);
    if (r->clock_us == 0)
        r->clock_us = bt_clock_us();
    if (r->candidates.n > 0 && (rc = read_candidates(f, r->candidates, r, err, err_size)) < 0)
        return rc;
    if (key.n > 0)
        r->req.session = key;
    if (r->decider == BT_REPLAY_POLICY && r->rests.prefill.n > 0)
        r->choice = r->rests; /* what the policy said, before it was exchanged */
    bt_replay_workers_view(f, &r->view);
    return 0;
}
