/* queue_rate.h - how fast a line moves, and how long somebody will stand in it.
 *
 * Owner: one line of queue.c, under its lock.
 * Life:  zeroed -> begin, when the first comes to an empty line -> note, as each is called.
 * Flow:  tokens and seconds of calls while others waited, fading (30 s weigh as all before) -> a rate -> a prediction: the tokens before one
 *        by that rate, and the time between two calls.
 * Cost:  an exponential a call. Costs are estimates and so is the rate of them, in one unit: it does not matter that they are. What comes
 *        later and goes first does; baton_queue_prediction_error_seconds says how much.
 */
#ifndef BT_DISPATCH_QUEUE_QUEUE_RATE_H
#define BT_DISPATCH_QUEUE_QUEUE_RATE_H

#include <stdint.h>

typedef struct bt_queue_rate {
    double tokens, seconds, calls; /* fading sums */
    uint64_t last_us;              /* of the last call, or since when somebody waits */
    uint64_t called;               /* so many, ever */
} bt_queue_rate_t;

void bt_queue_rate_begin(bt_queue_rate_t *rate, uint64_t now_us);
void bt_queue_rate_note(bt_queue_rate_t *rate, uint64_t cost, uint64_t now_us);
/* Tokens a second; 0 = not known yet. */
double bt_queue_rate_tokens(const bt_queue_rate_t *rate);
/* 0 = not known yet. */
uint64_t bt_queue_rate_predict_ms(const bt_queue_rate_t *rate, uint64_t tokens_ahead);

#endif
