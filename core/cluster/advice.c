/* How much of each role a load needs, by the utilisation law: a role's demand is the number of its workers that are in use on
 * average (seconds of use a second). It is proportional to the load, and equally for both roles while requests pass through
 * both, so its ratio holds for the offered load too, where one role is at its limit and holds up the other.
 *
 *   demand      p = prefill's used_s / seen_s, d = decode's likewise
 *   capacity    of a split (m, n), in multiples of the present load: min(m / p, n / d)
 *   advice      the split of the m + n workers that has most capacity: m : n as near p : d as whole numbers allow
 *
 * That is the placement of DistServe (OSDI'24) with measured shares in place of simulated ones: it gives a load of R requests a second as many
 * instances of each role as R / goodput of one, rounded up, and a role's demand is R / goodput. Splitwise (ISCA'24) provisions its prompt and token
 * machines by a search for the same balance.
 *
 * TTFT in the long run is that of an M/D/1 queue, by which DistServe describes prefill: with R requests a second to one prefill worker that needs D
 * seconds for each, D + R D^2 / (2 (1 - R D)). What a request meets that comes now is what waits before it (Mooncake's estimate on arrival:
 * queue and prefill). Decode's first token comes one TPOT later.
 *
 * A prefill worker is in use when a request is on it: it computes one batch of prompts after the other. A decode worker with one
 * request is far from its limit, so there the share of its limit counts: KV cache, legs, TPOT; only where nothing of that is known
 * it is judged by time, and the advice is worth less. */
#include "cluster/advice.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BUSY 0.5    /* a role used less than this is no bottleneck */
#define UNLIKE 1.25 /* so much more is one role used than the other, to be the one */
#define MANY_REQUESTS 100
#define TRACE 1e-3 /* of the time: what is used less was used long ago, and is fading */

const char *bt_advice_by_name(enum bt_advice_by by)
{
    static const char *const names[] = {"time", "kv_usage", "waiting", "request_limit", "tpot"};
    return names[by];
}

const char *bt_bottleneck_name(enum bt_bottleneck b)
{
    static const char *const names[] = {"unknown", "none", "prefill", "decode", "both"};
    return names[b];
}

const char *bt_confidence_name(enum bt_confidence c)
{
    static const char *const names[] = {"none", "low", "medium", "high"};
    return names[c];
}

double bt_advice_md1_ms(double requests_per_s, double service_ms)
{
    const double used = requests_per_s * service_ms / 1000;

    return used < 1 ? service_ms + used * service_ms / (2 * (1 - used)) : -1;
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* ---- what was measured ---- */

static double ttft_now_ms(const bt_advice_input_t *in, const bt_advice_t *out)
{
    const bt_advice_role_t *p = &in->prefill;
    double wait_ms;

    if (out->service_ms <= 0 || p->workers == 0)
        return 0;
    if (out->prefill_rate > 0)
        wait_ms = p->inflight_tokens / p->workers / out->prefill_rate * 1000;
    else
        wait_ms = p->inflight / p->workers * out->service_ms;
    return wait_ms + out->service_ms + in->decode.latency_ms;
}

static double rate(const bt_advice_input_t *in, const bt_advice_role_t *r)
{
    return r->used_s > TRACE * in->seen_s ? r->tokens / r->used_s : 0;
}

static void derive(const bt_advice_input_t *in, bt_advice_t *out)
{
    const bt_advice_role_t *p = &in->prefill, *d = &in->decode;

    out->prefill_used = ratio(p->used_s, p->worker_s);
    out->decode_used = ratio(d->used_s, d->worker_s);
    out->prefill_rate = rate(in, p);
    out->decode_rate = rate(in, d);
    out->service_ms = p->used_s > TRACE * in->seen_s ? ratio(p->used_s * 1000, p->requests) : 0;
    out->ttft_ms = ttft_now_ms(in, out);
}

/* ---- is it enough? ---- */

static bool is_enough(const bt_advice_input_t *in, bt_advice_t *out)
{
    const bt_advice_role_t *p = &in->prefill, *d = &in->decode;
    const double fewest = p->requests < d->requests ? p->requests : d->requests;

    if (p->workers == 0 || d->workers == 0)
        snprintf(out->why, sizeof out->why,
                 "no pair: %u prefill and %u decode workers are usable now", p->workers,
                 d->workers);
    else if (in->seen_s < in->window_s / 2)
        snprintf(out->why, sizeof out->why, "watched for less than half of the window of %.0f s",
                 in->window_s);
    else if (fewest < BT_ADVICE_REQUESTS_MIN)
        snprintf(out->why, sizeof out->why,
                 "too little traffic: %.0f requests through both roles in the window of %.0f s, "
                 "%u say something",
                 fewest, in->window_s, BT_ADVICE_REQUESTS_MIN);
    else
        return true;
    return false;
}

static enum bt_confidence confidence_of(const bt_advice_input_t *in)
{
    if (in->decode.by == BT_ADVICE_BY_TIME)
        return BT_CONFIDENCE_LOW;
    return in->prefill.requests < MANY_REQUESTS || in->decode.requests < MANY_REQUESTS
               ? BT_CONFIDENCE_MEDIUM
               : BT_CONFIDENCE_HIGH;
}

/* ---- the advice ---- */

static enum bt_bottleneck bottleneck_of(double prefill_used, double decode_used)
{
    if (prefill_used < BUSY && decode_used < BUSY)
        return BT_BOTTLENECK_NONE;
    if (prefill_used >= UNLIKE * decode_used)
        return BT_BOTTLENECK_PREFILL;
    return decode_used >= UNLIKE * prefill_used ? BT_BOTTLENECK_DECODE : BT_BOTTLENECK_BOTH;
}

/* In multiples of the present load; a role without demand takes any. */
static double capacity(unsigned prefill, unsigned decode, double p, double d)
{
    const double of_prefill = p > 0 ? prefill / p : INFINITY;
    const double of_decode = d > 0 ? decode / d : INFINITY;

    return of_prefill < of_decode ? of_prefill : of_decode;
}

/* Capacity has one peak over m, beside p : d. */
static unsigned best_prefill(unsigned workers, double p, double d)
{
    const double at = workers * p / (p + d);
    unsigned low = (unsigned) at;

    if (low < 1)
        low = 1;
    if (low >= workers - 1)
        return workers - 1;
    return capacity(low + 1, workers - low - 1, p, d) > capacity(low, workers - low, p, d) ? low + 1
                                                                                           : low;
}

static void split(const bt_advice_input_t *in, double p, double d, bt_advice_t *out)
{
    const unsigned workers = in->prefill.workers + in->decode.workers;
    const double now = capacity(in->prefill.workers, in->decode.workers, p, d);
    const unsigned best = p + d > 0 ? best_prefill(workers, p, d) : in->prefill.workers;
    const double gain = p + d > 0 ? capacity(best, workers - best, p, d) / now : 1;

    if (gain < BT_ADVICE_GAIN_MIN)
        return;
    out->prefill = best;
    out->decode = workers - best;
    out->gain = gain;
}

static unsigned needed(double demand)
{
    const double n = ceil(demand / BT_ADVICE_HEADROOM);

    return n > 1 ? (unsigned) n : 1;
}

static double long_run_ttft_ms(const bt_advice_input_t *in, const bt_advice_t *out)
{
    const double each = in->prefill.requests / in->seen_s / out->prefill;
    const double ms = bt_advice_md1_ms(each, out->service_ms);

    return ms > 0 ? ms + in->decode.latency_ms : 0;
}

static void say(bt_advice_t *out)
{
    const int n =
        snprintf(out->why, sizeof out->why, "prefill is used to %.0f %%, decode to %.0f %%",
                 100 * out->prefill_used, 100 * out->decode_used);

    if (out->gain > 1)
        snprintf(out->why + n, sizeof out->why - (size_t) n,
                 ": %u prefill and %u decode would take %.1f times the load", out->prefill,
                 out->decode, out->gain);
    else
        snprintf(out->why + n, sizeof out->why - (size_t) n,
                 ": no other split of these workers would take a tenth more");
}

void bt_advice_make(const bt_advice_input_t *in, bt_advice_t *out)
{
    double p, d;

    memset(out, 0, sizeof *out);
    out->prefill = in->prefill.workers;
    out->decode = in->decode.workers;
    out->gain = 1;
    derive(in, out);
    if (!is_enough(in, out))
        return;
    p = in->prefill.used_s / in->seen_s;
    d = in->decode.used_s / in->seen_s;
    out->confidence = confidence_of(in);
    out->bottleneck = bottleneck_of(out->prefill_used, out->decode_used);
    split(in, p, d, out);
    out->model_ttft_ms = long_run_ttft_ms(in, out);
    out->prefill_needed = needed(p);
    out->decode_needed = needed(d);
    say(out);
}
