/* records.c - a gateway's own decision records (core/record/record.h) as a trace.
 *
 * A record tells when a request came, how long its prompt was, its session and how many events its answer had. It does not tell the prompt, nor the
 * tokens of an answer. So prompts of one session are taken to begin alike, as far as both go, and no others; an event is taken for a token; what was
 * not streamed gets the mean of what was. Requests without a prompt, and those that nobody answered, are left out. The trace's note says how many. */
#include "simulator/trace.h"

#include "base/err.h"
#include "base/json.h"

#include <stdio.h>
#include <time.h>

#define BLOCK_TOKENS 16
#define OUTPUT_TOKENS 256 /* of an answer, where no record says any */

static bool has(bt_str_t line, bt_str_t name, bt_json_item_t *item_p)
{
    return bt_json_get(line, name, item_p) == 0 && item_p->type != BT_JSON_NONE;
}

bool bt_sim_is_record(bt_str_t line)
{
    bt_json_item_t item;

    return has(line, BT_STR("v"), &item) && has(line, BT_STR("decided_by"), &item);
}

static uint64_t number_of(bt_str_t line, bt_str_t name)
{
    bt_json_item_t item;
    uint64_t n = 0;

    if (has(line, name, &item))
        (void) bt_str_u64(item.value, &n);
    return n;
}

/* "2026-01-31T12:00:00.000Z", quotes and all. */
static bool read_time(bt_str_t line, double *at_s_p)
{
    bt_json_item_t item;
    struct tm tm = {0};
    double s;
    char text[40];

    if (!has(line, BT_STR("at"), &item) || item.value.n >= sizeof text)
        return false;
    memcpy(text, item.value.p, item.value.n);
    text[item.value.n] = '\0';
    if (sscanf(text, "\"%4d-%2d-%2dT%2d:%2d:%lfZ\"", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
               &tm.tm_hour, &tm.tm_min, &s) != 6)
        return false;
    tm.tm_year -= 1900;
    tm.tm_mon--;
    *at_s_p = (double) timegm(&tm) + s;
    return true;
}

static uint64_t session_of(bt_str_t line)
{
    bt_json_item_t item;

    if (!has(line, BT_STR("session"), &item))
        return 0;
    return bt_str_hash(item.value) | 1;
}

static bool was_answered(bt_str_t line)
{
    const uint64_t status = number_of(line, BT_STR("status"));

    return status >= 200 && status < 300;
}

int bt_sim_record_read(bt_sim_trace_t *trace, bt_str_t line, const char **why)
{
    const uint64_t input = number_of(line, BT_STR("prompt_tokens")), session = session_of(line);
    const uint64_t output = number_of(line, BT_STR("events"));
    double at_s;
    uint64_t *blocks, id = session;

    trace->block_tokens = BLOCK_TOKENS;
    *why = "at: expected a time, as 2026-01-31T12:00:00.000Z";
    if (!read_time(line, &at_s))
        return BT_E_INVAL;
    *why = "prompt_tokens, events: expected at most 4000000 tokens";
    if (input > BT_SIM_TOKENS_MAX || output > BT_SIM_TOKENS_MAX)
        return BT_E_INVAL;
    if (input == 0 || !was_answered(line)) {
        trace->left_out++;
        return 0;
    }
    const uint32_t count =
        session != 0 ? (uint32_t) ((input + BLOCK_TOKENS - 1) / BLOCK_TOKENS) : 0;
    bt_sim_request_t *r = bt_sim_trace_add(trace, count, &blocks);
    if (r == NULL)
        return BT_E_NOMEM;
    for (uint32_t b = 0; b < count; b++)
        blocks[b] = id = bt_sim_chain(id, b);
    r->at_s = at_s;
    r->input = (uint32_t) input;
    r->output = (uint32_t) output; /* 0: records_end says */
    r->session = (uint32_t) (session >> 32) | (session != 0);
    trace->has_prefixes |= session != 0;
    return 0;
}

void bt_sim_records_end(bt_sim_trace_t *trace)
{
    uint64_t sum = 0;
    unsigned streamed = 0;

    for (unsigned i = 0; i < trace->count; i++) {
        sum += trace->requests[i].output;
        streamed += trace->requests[i].output > 0;
    }
    const uint32_t mean = streamed > 0 ? (uint32_t) (sum / streamed) : OUTPUT_TOKENS;
    for (unsigned i = 0; i < trace->count; i++)
        if (trace->requests[i].output == 0)
            trace->requests[i].output = mean;
    snprintf(trace->note, sizeof trace->note,
             "records have no prompts: those of one session are taken to begin alike, and no "
             "others; an event of an answer counts as a token, and %u answers that were not "
             "streamed get %u tokens; %u records are left out, of requests without a prompt or an "
             "answer",
             trace->count - streamed, mean, trace->left_out);
}
