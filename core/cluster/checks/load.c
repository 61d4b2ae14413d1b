#include "cluster/checks/load.h"

#include "base/err.h"
#include "base/json.h"

#include <math.h>
#include <stdlib.h>

/* A sample is written only after the whole text has been read and something known was in it: half a report must not look
 * like an idle worker. Series are summed over engines (DP ranks), because the ledger too counts per worker; usage is
 * averaged for vLLM, whose ranks share nothing, and the highest one for SGLang, which reports a maximum itself. */

struct totals {
    double running, waiting, blocked, total_tokens;
    double usage_sum, usage_max, old_usage_sum;
    unsigned usage_count, old_usage_count;
    bool has_running, has_waiting, has_blocked, has_total;
};

static uint32_t to_ppm(double share)
{
    if (!(share > 0)) /* NaN too */
        return 0;
    return share >= 1 ? 1000000 : (uint32_t) (share * 1e6 + 0.5);
}

static int64_t to_count(double value)
{
    if (!(value > 0))
        return 0;
    return value < 1e15 ? (int64_t) (value + 0.5) : (int64_t) 1e15;
}

static int write_sample(const struct totals *t, double usage, bt_load_sample_t *sample)
{
    if (!t->has_running && !t->has_waiting)
        return BT_E_INVAL;
    atomic_store_explicit(&sample->running, to_count(t->running), memory_order_relaxed);
    atomic_store_explicit(&sample->waiting, to_count(t->waiting), memory_order_relaxed);
    atomic_store_explicit(&sample->blocked, t->has_blocked ? to_count(t->blocked) : -1,
                          memory_order_relaxed);
    atomic_store_explicit(&sample->kv_used_ppm, to_ppm(usage), memory_order_relaxed);
    atomic_store_explicit(&sample->total_tokens, t->has_total ? to_count(t->total_tokens) : -1,
                          memory_order_relaxed);
    return 0;
}

/* ---- Prometheus text ---- */

struct series {
    bt_str_t name, labels; /* labels without braces */
    double value;
};

static bool take_line(bt_str_t *text, bt_str_t *line)
{
    if (text->n == 0)
        return false;
    const char *end = memchr(text->p, '\n', text->n);
    line->p = text->p;
    line->n = end != NULL ? (size_t) (end - text->p) : text->n;
    size_t used = line->n + (end != NULL ? 1 : 0);
    text->p += used;
    text->n -= used;
    return true;
}

/* Offset of the brace that closes the label set; braces inside quoted label values do not. */
static size_t find_close(bt_str_t s, size_t at)
{
    bool is_quoted = false;
    for (; at < s.n; at++) {
        char c = s.p[at];
        if (is_quoted && c == '\\')
            at++;
        else if (c == '"')
            is_quoted = !is_quoted;
        else if (c == '}' && !is_quoted)
            return at;
    }
    return s.n;
}

static bool read_number(bt_str_t s, double *value_p)
{
    char text[48], *end;
    s = bt_str_trim(s);
    size_t n = 0;
    while (n < s.n && n + 1 < sizeof text && s.p[n] != ' ' && s.p[n] != '\t') {
        text[n] = s.p[n];
        n++;
    }
    text[n] = '\0';
    *value_p = strtod(text, &end);
    return n > 0 && *end == '\0' && isfinite(*value_p);
}

static bool parse_series(bt_str_t line, struct series *out)
{
    size_t at = 0;
    while (at < line.n && line.p[at] != '{' && line.p[at] != ' ' && line.p[at] != '\t')
        at++;
    out->name = (bt_str_t){line.p, at};
    out->labels = BT_STR("");
    if (at < line.n && line.p[at] == '{') {
        size_t close = find_close(line, at + 1);
        if (close == line.n)
            return false;
        out->labels = (bt_str_t){line.p + at + 1, close - at - 1};
        at = close + 1;
    }
    return at <= line.n && read_number((bt_str_t){line.p + at, line.n - at}, &out->value);
}

/* engine="3" among the labels; a text without that label is of one engine and counts. */
static bool is_of_rank(bt_str_t labels, int rank)
{
    ptrdiff_t at = rank < 0 ? -1 : bt_str_find(labels, BT_STR("engine=\""));
    if (at < 0)
        return true;
    if (at > 0 && labels.p[at - 1] != ',' && labels.p[at - 1] != ' ')
        return true; /* some other label that ends in "engine" */
    const char *p = labels.p + at + 8, *end = labels.p + labels.n;
    int value = 0;
    for (; p < end && *p >= '0' && *p <= '9' && value < 100000; p++)
        value = value * 10 + (*p - '0');
    return value == rank;
}

static void add_series(struct totals *t, const struct series *s)
{
    if (bt_str_eq(s->name, BT_STR("vllm:num_requests_running"))) {
        t->running += s->value;
        t->has_running = true;
    } else if (bt_str_eq(s->name, BT_STR("vllm:num_requests_waiting"))) {
        t->waiting += s->value;
        t->has_waiting = true;
    } else if (bt_str_eq(s->name, BT_STR("vllm:num_requests_waiting_by_reason"))) {
        t->has_blocked = true; /* the other reason is KV that is on its way */
        if (bt_str_find(s->labels, BT_STR("reason=\"capacity\"")) >= 0)
            t->blocked += s->value;
    } else if (bt_str_eq(s->name, BT_STR("vllm:kv_cache_usage_perc"))) {
        t->usage_sum += s->value;
        t->usage_count++;
    } else if (bt_str_eq(s->name,
                         BT_STR("vllm:gpu_cache_usage_perc"))) { /* its name in old releases */
        t->old_usage_sum += s->value;
        t->old_usage_count++;
    }
}

int bt_load_read_metrics(bt_str_t text, int rank, bt_load_sample_t *sample)
{
    struct totals t = {0};
    struct series s = {0};
    bt_str_t line;
    while (take_line(&text, &line))
        if (bt_str_starts(line, BT_STR("vllm:")) && parse_series(line, &s) &&
            is_of_rank(s.labels, rank))
            add_series(&t, &s);
    double usage = 0;
    if (t.usage_count > 0)
        usage = t.usage_sum / t.usage_count;
    else if (t.old_usage_count > 0)
        usage = t.old_usage_sum / t.old_usage_count;
    return write_sample(&t, usage, sample);
}

enum bt_load_source bt_load_detect(bt_str_t metrics)
{
    bt_str_t line;
    while (take_line(&metrics, &line)) {
        if (bt_str_starts(line, BT_STR("vllm:")))
            return BT_LOAD_VLLM_METRICS;
        if (bt_str_starts(line, BT_STR("sglang:")))
            return BT_LOAD_SGLANG_LOADS;
    }
    return BT_LOAD_UNKNOWN;
}

enum bt_load_source bt_load_source_of(enum bt_engine engine)
{
    switch (engine) {
    case BT_ENGINE_VLLM:
    case BT_ENGINE_VLLM_ASCEND:
        return BT_LOAD_VLLM_METRICS;
    case BT_ENGINE_SGLANG:
        return BT_LOAD_SGLANG_LOADS;
    case BT_ENGINE_MINDIE:
    case BT_ENGINE_TRTLLM:
    case BT_ENGINE_UNKNOWN:
        break;
    }
    return BT_LOAD_UNKNOWN;
}

/* ---- SGLang's /v1/loads ---- */

struct rank_load {
    double rank, running, waiting, usage, total_tokens;
    bool has_running, has_waiting, has_total;
};

static bool take_number(const bt_json_item_t *item, const char *name, double *value_p)
{
    return bt_json_key_eq(item, bt_str(name)) && bt_json_double(item->value, value_p) == 0;
}

static int read_rank(bt_str_t object, struct rank_load *load)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    int rc = bt_json_object(&c, object);
    *load = (struct rank_load){.rank = -1};
    while (rc == 0 && (rc = bt_json_next(&c, &item)) == 1) {
        rc = 0;
        load->has_running |= take_number(&item, "num_running_reqs", &load->running);
        load->has_waiting |= take_number(&item, "num_waiting_reqs", &load->waiting);
        load->has_total |= take_number(&item, "num_total_tokens", &load->total_tokens);
        (void) take_number(&item, "token_usage", &load->usage);
        (void) take_number(&item, "dp_rank", &load->rank);
    }
    return rc;
}

static void add_rank(struct totals *t, const struct rank_load *load)
{
    t->running += load->running;
    t->waiting += load->waiting;
    t->total_tokens += load->total_tokens;
    t->has_running |= load->has_running;
    t->has_waiting |= load->has_waiting;
    t->has_total |= load->has_total;
    if (load->usage > t->usage_max)
        t->usage_max = load->usage;
}

int bt_load_read_loads(bt_str_t json, int rank, bt_load_sample_t *sample)
{
    struct totals t = {0};
    bt_json_item_t loads, item;
    bt_json_cursor_t c;
    if (bt_json_get(json, BT_STR("loads"), &loads) < 0 || loads.type != BT_JSON_ARRAY)
        return BT_E_INVAL;
    int rc = bt_json_array(&c, loads.value);
    while (rc == 0 && (rc = bt_json_next(&c, &item)) == 1) {
        struct rank_load load;
        rc = item.type == BT_JSON_OBJECT ? read_rank(item.value, &load) : BT_E_INVAL;
        if (rc == 0 && (rank < 0 || load.rank < 0 || (int) load.rank == rank))
            add_rank(&t, &load);
    }
    return rc < 0 ? BT_E_INVAL : write_sample(&t, t.usage_max, sample);
}
