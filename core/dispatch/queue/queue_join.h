/* queue_join.h - one more comes to a line: what its policy says, what it costs, whom it puts out, whether it would wait too long.
 *
 * Owner: one line, under its lock: queue.c's, or core/simulator's in virtual time. No lock, clock or request in here.
 * Life:  a join is its caller's, for the call.
 * Flow:  word, cost -> join -> in line, and its victims are out | FULL or TOO_LONG, and all is as before
 * Cost:  fair_queue.h's.
 */
#ifndef BT_DISPATCH_QUEUE_QUEUE_JOIN_H
#define BT_DISPATCH_QUEUE_QUEUE_JOIN_H

#include "dispatch/queue/fair_queue.h"
#include "dispatch/queue/queue_rate.h"
#include "script/view/facts.h"

/* What became of those that came to wait. */
enum bt_queue_end {
    BT_QUEUE_CALLED,
    BT_QUEUE_FULL,
    BT_QUEUE_PUT_OUT,
    BT_QUEUE_TOO_LONG,
    BT_QUEUE_TIMEOUT,
    BT_QUEUE_GONE,
    BT_QUEUE_ENDS
};
const char *bt_queue_end_name(enum bt_queue_end end);

#define BT_QUEUE_OUTPUT_START 256 /* tokens of an answer, until some have ended */

/* The answers are taken to be as long as they are lately, if they may: max_tokens (0 = none) is often far above what comes. */
uint64_t bt_queue_cost(uint64_t prompt_tokens, uint64_t answers, uint64_t max_tokens,
                       double output_tokens);
/* Of output_tokens: an answer of so many has ended. */
void bt_queue_learn_output(double *output_tokens, double made);

/* What a policy's enqueue has said of one; where it said nothing all stays. The key lies in word. */
void bt_queue_take_word(bt_fair_item_t *item, uint64_t *timeout_ms_p,
                        const bt_policy_queueing_t *word);

typedef struct bt_queue_join {
    bt_fair_ahead_t ahead; /* as it came */
    uint64_t
        predicted_ms;  /* of FULL: for one that comes after all of its class; 0 = not known yet */
    bt_list_t victims; /* items, by link; they are in the queue no longer */
} bt_queue_join_t;

/* CALLED: it waits. */
enum bt_queue_end bt_queue_join(bt_fair_queue_t *fair, const bt_queue_rate_t *rate,
                                bt_fair_item_t *item, uint64_t timeout_ms, uint64_t now_ms,
                                bt_queue_join_t *join);

#endif
