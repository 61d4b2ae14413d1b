/* generate.c - conversations and agents. */
#include "simulator/trace.h"

#include "base/err.h"
#include "base/rand.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define BLOCK_TOKENS 16

enum { REQUESTS, RATE, TURNS, THINK, SYSTEMS, SYSTEM, QUESTION, ANSWER, BURST, PARAM_COUNT };
static const struct param {
    const char *name;
    double min, max;
} params[PARAM_COUNT] = {
    {"requests", 1, 10e6}, {"rate", 1e-3, 1e6}, {"turns", 1, 1000},
    {"think_s", 0, 1e5},   {"systems", 1, 1e6}, {"system", 0, 1e5},
    {"question", 1, 1e5},  {"answer", 1, 1e5},  {"burst", 1, 1000},
};

/* An agent is a conversation with its tools: a long beginning that many share (what it is and what it may call), many short answers that are
 * calls, and what the tools say, soon after. */
static const struct generator {
    const char *name;
    double usual[PARAM_COUNT];
} generators[] = {
    {"conversations", {10000, 4, 5, 20, 8, 1024, 400, 250, 1}},
    {"agents", {10000, 4, 20, 2, 4, 6000, 800, 80, 1}},
};
#define GENERATOR_COUNT (sizeof generators / sizeof generators[0])

static const struct generator *find_generator(const char *text)
{
    const size_t n = strcspn(text, ":");

    for (size_t i = 0; i < GENERATOR_COUNT; i++)
        if (strlen(generators[i].name) == n && strncmp(generators[i].name, text, n) == 0)
            return &generators[i];
    return NULL;
}

bool bt_sim_is_generator(const char *text)
{
    return find_generator(text) != NULL;
}

static int find_param(const char *name, size_t n)
{
    int i = 0;

    while (i < PARAM_COUNT &&
           (strlen(params[i].name) != n || strncmp(params[i].name, name, n) != 0))
        i++;
    return i;
}

static int read_params(const char *text, double *values, char *err, size_t err_size)
{
    memcpy(values, find_generator(text)->usual, sizeof params[0].min * PARAM_COUNT);
    text = strchr(text, ':');
    while (text != NULL) {
        const char *name = text + 1, *equals = strchr(name, '=');
        const int i = equals != NULL ? find_param(name, (size_t) (equals - name)) : PARAM_COUNT;
        char *end;
        if (i == PARAM_COUNT) {
            snprintf(err, err_size, "--trace: %.40s: no such parameter; " BT_SIM_GENERATORS, name);
            return BT_E_INVAL;
        }
        values[i] = strtod(equals + 1, &end);
        if (end == equals + 1 || (*end != ',' && *end != '\0') || !(values[i] >= params[i].min) ||
            values[i] > params[i].max) {
            snprintf(err, err_size, "--trace: %s: expected a number from %g to %g", params[i].name,
                     params[i].min, params[i].max);
            return BT_E_INVAL;
        }
        text = *end == ',' ? end : NULL;
    }
    return 0;
}

static double exponential(double mean)
{
    return -mean * log(1 - bt_rand_unit());
}

/* Geometric tails as real lengths have, never 0. */
static uint32_t length(double mean)
{
    return 1 + (uint32_t) fmin(exponential(mean - 1 > 0 ? mean - 1 : 0), 20 * mean);
}

uint64_t bt_sim_chain(uint64_t before, uint64_t piece)
{
    uint64_t id = (before ^ piece * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xbf58476d1ce4e5b9);

    return (id ^ id >> 31) >> 1;
}

struct turn {
    double at_s;
    unsigned session, number, system;
    uint32_t context; /* tokens before its question, without the system prompt */
};

static int add_turn(bt_sim_trace_t *trace, const struct turn *t, const double *v, uint32_t output,
                    uint32_t question)
{
    const uint32_t input = (uint32_t) v[SYSTEM] + t->context + question;
    const uint32_t count = (input + BLOCK_TOKENS - 1) / BLOCK_TOKENS,
                   shared = (uint32_t) v[SYSTEM] / BLOCK_TOKENS;
    uint64_t *blocks, id = 0;
    bt_sim_request_t *r = bt_sim_trace_add(trace, count, &blocks);

    if (r == NULL)
        return BT_E_NOMEM;
    for (uint32_t b = 0; b < count; b++)
        blocks[b] = id = bt_sim_chain(
            id, b < shared ? t->system : ((uint64_t) t->session << 32) + b + UINT32_MAX);
    r->at_s = t->at_s;
    r->input = input;
    r->output = output;
    r->session = t->session + 1;
    return 0;
}

static int add_session(bt_sim_trace_t *trace, struct turn t, const double *v)
{
    const uint32_t turns = length(v[TURNS]);
    int rc = 0;

    for (t.number = 0;
         rc == 0 && t.number < turns && trace->count < (unsigned) v[REQUESTS] && t.context < 100000;
         t.number++) {
        const uint32_t question = length(v[QUESTION]), answer = length(v[ANSWER]);
        rc = add_turn(trace, &t, v, answer, question);
        t.context += question + answer;
        t.at_s += exponential(v[THINK]);
    }
    return rc;
}

int bt_sim_trace_generate(bt_sim_trace_t *trace, const char *text, uint64_t seed, char *err,
                          size_t err_size)
{
    double v[PARAM_COUNT], now_s = 0;
    bt_rand_state_t before;
    int rc = read_params(text, v, err, err_size);

    *trace = (bt_sim_trace_t){.block_tokens = BLOCK_TOKENS, .has_prefixes = true};
    if (rc < 0)
        return rc;
    bt_rand_begin(&before, seed);
    for (unsigned s = 0; rc == 0 && trace->count < (unsigned) v[REQUESTS]; s++) {
        /* The rate is that of requests; a burst's sessions come at once. */
        if (s % (unsigned) v[BURST] == 0)
            now_s += exponential(v[TURNS] * floor(v[BURST]) / v[RATE]);
        rc = add_session(trace,
                         (struct turn){.at_s = now_s,
                                       .session = s,
                                       .system = (unsigned) bt_rand_below((uint64_t) v[SYSTEMS])},
                         v);
    }
    bt_rand_end(&before);
    if (rc == 0)
        rc = bt_sim_trace_sort(trace);
    if (rc < 0)
        snprintf(err, err_size, "--trace: out of memory");
    return rc;
}
