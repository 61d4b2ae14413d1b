/* queue_rate.c - only time in which somebody waited counts: an idle hour says nothing of how fast places come free. */
#include "dispatch/queue/queue_rate.h"

#include <math.h>

#define WINDOW_S 30.0
#define KNOWN_CALLS 4
#define PREDICTION_MAX_MS 1e9

void bt_queue_rate_begin(bt_queue_rate_t *rate, uint64_t now_us)
{
    rate->last_us = now_us;
}

void bt_queue_rate_note(bt_queue_rate_t *rate, uint64_t cost, uint64_t now_us)
{
    const double seconds = now_us > rate->last_us ? (double) (now_us - rate->last_us) / 1e6 : 0;
    const double fade = exp(-seconds / WINDOW_S);

    rate->tokens = rate->tokens * fade + (double) cost;
    rate->seconds = rate->seconds * fade + seconds;
    rate->calls = rate->calls * fade + 1;
    rate->last_us = now_us;
    rate->called++;
}

double bt_queue_rate_tokens(const bt_queue_rate_t *rate)
{
    return rate->called >= KNOWN_CALLS && rate->seconds > 0 ? rate->tokens / rate->seconds : 0;
}

uint64_t bt_queue_rate_predict_ms(const bt_queue_rate_t *rate, uint64_t tokens_ahead)
{
    const double tokens = bt_queue_rate_tokens(rate);

    if (tokens <= 0)
        return 0;
    const double ms = ((double) tokens_ahead / tokens + rate->seconds / rate->calls) * 1000;
    return (uint64_t) fmin(fmax(ms, 1), PREDICTION_MAX_MS);
}
