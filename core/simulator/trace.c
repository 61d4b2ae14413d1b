#include "simulator/trace.h"

#include "base/err.h"
#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define TIME_MAX_S 1e11 /* more than a clock says; NaN is none either */
#define LINE_BYTES (4u << 20)
#define MOONCAKE_TOKENS 512
#define BAILIAN_TOKENS 16

enum format { UNKNOWN, MOONCAKE, BAILIAN, BURSTGPT, RECORDS };

bt_sim_request_t *bt_sim_trace_add(bt_sim_trace_t *trace, uint32_t block_count, uint64_t **blocks_p)
{
    if (trace->count == trace->request_cap) {
        const unsigned cap = trace->request_cap > 0 ? 2 * trace->request_cap : 4096;
        bt_sim_request_t *requests = realloc(trace->requests, cap * sizeof *requests);
        if (requests == NULL)
            return NULL;
        trace->requests = requests;
        trace->request_cap = cap;
    }
    if (trace->block_count + block_count > trace->block_cap) {
        const size_t cap = 2 * (trace->block_count + block_count) + 4096;
        uint64_t *blocks = realloc(trace->blocks, cap * sizeof *blocks);
        if (blocks == NULL)
            return NULL;
        trace->blocks = blocks;
        trace->block_cap = cap;
    }
    bt_sim_request_t *r = &trace->requests[trace->count++];
    *r = (bt_sim_request_t){.block_count = block_count, .first_block = trace->block_count};
    *blocks_p = trace->blocks + trace->block_count;
    trace->block_count += block_count;
    return r;
}

/* ---- lines ---- */

static int bad(char *err, size_t err_size, const char *path, unsigned line, const char *what)
{
    snprintf(err, err_size, "%s:%u: %s", path, line, what);
    return BT_E_INVAL;
}

struct fields {
    double at;
    uint64_t input, output;
    bt_str_t hash_ids;
    unsigned found; /* a bit each of at, input, output */
    bool has_chat;
};

static void read_field(struct fields *f, const bt_json_item_t *item)
{
    if (bt_str_eq(item->key, BT_STR("timestamp")) && bt_json_double(item->value, &f->at) == 0)
        f->found |= 1;
    else if (bt_str_eq(item->key, BT_STR("input_length")) &&
             bt_str_u64(item->value, &f->input) == 0)
        f->found |= 2;
    else if (bt_str_eq(item->key, BT_STR("output_length")) &&
             bt_str_u64(item->value, &f->output) == 0)
        f->found |= 4;
    else if (bt_str_eq(item->key, BT_STR("hash_ids")))
        f->hash_ids = item->value;
    else if (bt_str_eq(item->key, BT_STR("chat_id")))
        f->has_chat = true; /* a turn's own number: it names no session */
}

static const char *why_not(const struct fields *f)
{
    if (f->found != 7)
        return "timestamp, input_length and output_length are numbers, and all are needed";
    if (!isfinite(f->at) || f->at < 0)
        return "timestamp: expected a number from 0 on";
    if (f->input == 0 || f->input > BT_SIM_TOKENS_MAX || f->output > BT_SIM_TOKENS_MAX)
        return "input_length and output_length: expected 1 to 4000000 tokens";
    return NULL;
}

static int add_blocks(bt_sim_trace_t *trace, const struct fields *f, bt_sim_request_t **r_p)
{
    const long count = f->hash_ids.n > 0 ? bt_json_count(f->hash_ids) : 0;
    uint64_t *blocks;
    bt_json_cursor_t c;
    bt_json_item_t item;
    long at = 0;

    if (count < 0)
        return BT_E_INVAL;
    *r_p = bt_sim_trace_add(trace, (uint32_t) count, &blocks);
    if (*r_p == NULL)
        return BT_E_NOMEM;
    if (count > 0 && bt_json_array(&c, f->hash_ids) < 0)
        return BT_E_INVAL;
    for (; at < count && bt_json_next(&c, &item) > 0; at++)
        if (bt_str_u64(item.value, &blocks[at]) < 0)
            return BT_E_INVAL;
    trace->has_prefixes |= count > 0;
    return at == count ? 0 : BT_E_INVAL;
}

/* format_p is UNKNOWN before the first line. */
static int read_json(bt_sim_trace_t *trace, enum format *format_p, bt_str_t text, const char **why)
{
    struct fields f = {0};
    bt_json_cursor_t c;
    bt_json_item_t item;
    bt_sim_request_t *r;

    *why = "expected a JSON object";
    if (bt_json_validate(text, NULL) < 0 || bt_json_object(&c, text) < 0)
        return BT_E_INVAL;
    while (bt_json_next(&c, &item) > 0)
        read_field(&f, &item);
    *why = why_not(&f);
    if (*why != NULL)
        return BT_E_INVAL;
    if (*format_p == UNKNOWN)
        *format_p = f.has_chat ? BAILIAN : MOONCAKE;
    trace->block_tokens = *format_p == BAILIAN ? BAILIAN_TOKENS : MOONCAKE_TOKENS;
    *why = "hash_ids: expected a list of whole numbers";
    const int rc = add_blocks(trace, &f, &r);
    if (rc < 0)
        return rc;
    r->at_s = *format_p == BAILIAN ? f.at : f.at / 1000;
    r->input = (uint32_t) f.input;
    r->output = f.output > 0 ? (uint32_t) f.output : 1;
    return 0;
}

/* Timestamp,Model,Request tokens,Response tokens,... in seconds; an answer of no tokens is one that failed. */
static int read_csv(bt_sim_trace_t *trace, const char *text, const char **why)
{
    struct fields f = {.found = 7};
    uint64_t *none;
    char *end;
    const char *at;

    f.at = strtod(text, &end);
    *why = "expected Timestamp,Model,Request tokens,Response tokens,...";
    at = end != text && *end == ',' ? strchr(end + 1, ',') : NULL;
    if (at == NULL)
        return BT_E_INVAL;
    f.input = strtoull(at + 1, &end, 10);
    if (end == at + 1 || *end != ',')
        return BT_E_INVAL;
    f.output = strtoull(end + 1, NULL, 10);
    if (f.input == 0 || f.output == 0)
        return 0;
    *why = why_not(&f);
    if (*why != NULL)
        return BT_E_INVAL;
    bt_sim_request_t *r = bt_sim_trace_add(trace, 0, &none);
    if (r == NULL)
        return BT_E_NOMEM;
    r->at_s = f.at;
    r->input = (uint32_t) f.input;
    r->output = (uint32_t) f.output;
    return 0;
}

static int read_line(bt_sim_trace_t *trace, enum format *format_p, const char *line, bt_str_t text,
                     const char **why)
{
    if (*format_p == UNKNOWN && strncmp(line, "Timestamp,", 10) == 0) {
        *format_p = BURSTGPT;
        trace->block_tokens = BAILIAN_TOKENS;
        return 0;
    }
    if (*format_p == UNKNOWN && bt_json_validate(text, NULL) == 0 && bt_sim_is_record(text))
        *format_p = RECORDS;
    *why = "expected a JSON object";
    if (*format_p == RECORDS)
        return bt_json_validate(text, NULL) == 0 ? bt_sim_record_read(trace, text, why)
                                                 : BT_E_INVAL;
    return *format_p == BURSTGPT ? read_csv(trace, line, why)
                                 : read_json(trace, format_p, text, why);
}

static int read_lines(bt_sim_trace_t *trace, FILE *in, char *line, const char *path, char *err,
                      size_t err_size)
{
    enum format format = UNKNOWN;
    const char *why = NULL;

    for (unsigned n = 1; fgets(line, LINE_BYTES, in) != NULL; n++) {
        const bt_str_t text = bt_str_trim(bt_str(line));
        if (strlen(line) == LINE_BYTES - 1)
            return bad(err, err_size, path, n, "a line of more than 4 MiB");
        if (text.n == 0)
            continue;
        if (trace->count == BT_SIM_REQUESTS_MAX)
            return bad(err, err_size, path, n, "more than 20000000 requests");
        const int rc = read_line(trace, &format, line, text, &why);
        if (rc < 0)
            return rc == BT_E_INVAL ? bad(err, err_size, path, n, why) : rc;
        if (trace->count > 0 && !(fabs(trace->requests[trace->count - 1].at_s) <= TIME_MAX_S))
            return bad(err, err_size, path, n, "when? its time is not one");
    }
    if (ferror(in) != 0 || trace->count == 0) {
        snprintf(err, err_size, "%s: %s", path, ferror(in) ? strerror(errno) : "no request in it");
        return BT_E_INVAL;
    }
    if (format == RECORDS)
        bt_sim_records_end(trace);
    return 0;
}

int bt_sim_trace_read(bt_sim_trace_t *trace, const char *path, char *err, size_t err_size)
{
    char *line = malloc(LINE_BYTES);
    FILE *in = fopen(path, "re");
    int rc = BT_E_INVAL;

    *trace = (bt_sim_trace_t){0};
    if (in == NULL)
        snprintf(err, err_size, "%s: %s", path, strerror(errno));
    else
        rc = line != NULL ? read_lines(trace, in, line, path, err, err_size) : BT_E_NOMEM;
    if (rc == 0)
        rc = bt_sim_trace_sort(trace);
    if (rc == BT_E_NOMEM)
        snprintf(err, err_size, "%s: out of memory", path);
    if (in != NULL)
        fclose(in);
    free(line);
    return rc;
}

/* ---- in order ---- */

struct place {
    double at_s;
    unsigned i;
};

static int by_time(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    if (x->at_s != y->at_s)
        return x->at_s < y->at_s ? -1 : 1;
    return x->i < y->i ? -1 : x->i > y->i;
}

int bt_sim_trace_sort(bt_sim_trace_t *trace)
{
    struct place *places = calloc(trace->count, sizeof *places);
    bt_sim_request_t *sorted = calloc(trace->count, sizeof *sorted);

    if (places == NULL || sorted == NULL) {
        free(places);
        free(sorted);
        return BT_E_NOMEM;
    }
    for (unsigned i = 0; i < trace->count; i++)
        places[i] = (struct place){trace->requests[i].at_s, i};
    qsort(places, trace->count, sizeof *places, by_time);
    for (unsigned i = 0; i < trace->count; i++)
        sorted[i] = trace->requests[places[i].i];
    free(places);
    free(trace->requests);
    trace->requests = sorted;
    trace->request_cap = trace->count;
    return 0;
}

void bt_sim_trace_cut(bt_sim_trace_t *trace, unsigned skip, unsigned most, double speed)
{
    if (skip > trace->count)
        skip = trace->count;
    trace->count -= skip;
    memmove(trace->requests, trace->requests + skip, trace->count * sizeof *trace->requests);
    if (most > 0 && most < trace->count)
        trace->count = most;
    const double start_s = trace->count > 0 ? trace->requests[0].at_s : 0;
    for (unsigned i = 0; i < trace->count; i++)
        trace->requests[i].at_s = (trace->requests[i].at_s - start_s) / speed;
}

void bt_sim_trace_fini(bt_sim_trace_t *trace)
{
    free(trace->requests);
    free(trace->blocks);
    *trace = (bt_sim_trace_t){0};
}

/* ---- what is alike ---- */

static uint64_t mix(uint64_t id)
{
    id = (id ^ id >> 32) * UINT64_C(0xd6e8feb86659fd93);
    id = (id ^ id >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return id ^ id >> 32;
}

#define DIGITS 16

/* Sixteen digits of a block's id are its first tokens. */
static void make_digits(uint64_t id, uint8_t digits[DIGITS])
{
    uint64_t left = mix(id + 1);

    for (int i = 0; i < DIGITS; i++, left /= 10)
        digits[i] = (uint8_t) (left % 10);
}

void bt_sim_block_tokens(uint64_t id, unsigned count, uint32_t *out)
{
    uint8_t digits[DIGITS];

    make_digits(id, digits);
    for (unsigned i = 0; i < count; i++)
        out[i] = digits[i % DIGITS];
}

/* Those, again and again. */
static void fill(char *out, size_t tokens, uint64_t id)
{
    const size_t size = 2 * tokens;
    size_t done = 0;
    uint8_t digits[DIGITS];

    make_digits(id, digits);
    for (; done < size && done < 2 * DIGITS; done += 2) {
        out[done] = (char) ('0' + digits[done / 2]);
        out[done + 1] = ',';
    }
    for (size_t more; done < size; done += more) {
        more = done < size - done ? done : size - done;
        memcpy(out + done, out, more);
    }
}

/* What has no id is like no other request's. */
bt_str_t bt_sim_prompt(const bt_sim_trace_t *trace, const bt_sim_request_t *r, char *out)
{
    const size_t block = trace->block_tokens;
    size_t at = 0;

    out[0] = '[';
    for (uint32_t b = 0; b < r->block_count && at < r->input; b++, at += block)
        fill(out + 1 + 2 * at, r->input - at < block ? r->input - at : block,
             bt_sim_blocks(trace, r)[b]);
    if (at < r->input)
        fill(out + 1 + 2 * at, r->input - at, ~(uint64_t) (r - trace->requests));
    out[2 * (size_t) r->input] = ']'; /* for the last comma */
    return (bt_str_t){out, BT_SIM_PROMPT_BYTES(r->input)};
}
