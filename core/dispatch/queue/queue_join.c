/* queue_join.c - a wrong prediction refuses at most while others stand before one: the first in line always waits, so that the rate is measured
 * again. */
#include "dispatch/queue/queue_join.h"

#include <math.h>

const char *bt_queue_end_name(enum bt_queue_end end)
{
    static const char *const names[] = {"called", "full", "put_out", "too_long", "timeout", "gone"};
    return names[end];
}

uint64_t bt_queue_cost(uint64_t prompt_tokens, uint64_t answers, uint64_t max_tokens,
                       double output_tokens)
{
    const double limit = max_tokens != 0 ? (double) max_tokens : output_tokens;
    const double cost = (double) prompt_tokens + (double) answers * fmin(limit, output_tokens);

    return (uint64_t) fmin(fmax(cost, 1), BT_FAIR_COST_MAX);
}

void bt_queue_learn_output(double *output_tokens, double made)
{
    *output_tokens += (made - *output_tokens) / 16;
}

void bt_queue_take_word(bt_fair_item_t *item, uint64_t *timeout_ms_p,
                        const bt_policy_queueing_t *word)
{
    if (word->klass[0] != '\0')
        (void) bt_fair_class_of(bt_str(word->klass), &item->klass);
    if (word->key[0] != '\0')
        item->key = bt_str(word->key);
    if (word->weight != 0)
        item->weight = word->weight;
    if (word->timeout_ms != 0)
        *timeout_ms_p = word->timeout_ms;
    if (word->cost != 0)
        item->cost = word->cost;
}

/* Room for it at the cost of who holds most: victims, the last first. */
static bool make_room(bt_fair_queue_t *fair, const bt_fair_item_t *item, bt_list_t *victims)
{
    while (!bt_fair_queue_fits(fair, item)) {
        bt_fair_item_t *victim = bt_fair_queue_victim(fair, item);
        if (victim == NULL)
            return false;
        bt_fair_queue_lift(fair, victim);
        bt_list_push_front(victims, &victim->link);
    }
    return true;
}

/* Put out for one that has got in; for one that has not, nobody is. */
static void settle_victims(bt_fair_queue_t *fair, bt_list_t *victims, bool is_in)
{
    bt_list_t *it, *tmp;

    bt_list_each (victims, it, tmp) {
        bt_fair_item_t *victim = bt_container_of(it, bt_fair_item_t, link);
        if (is_in) {
            bt_fair_queue_let_go(fair, victim);
            continue;
        }
        bt_list_remove(it);
        bt_fair_queue_put_back(fair, victim);
    }
}

static enum bt_queue_end stand(bt_fair_queue_t *fair, const bt_queue_rate_t *rate,
                               bt_fair_item_t *item, uint64_t timeout_ms, uint64_t now_ms,
                               bt_queue_join_t *join)
{
    if (!make_room(fair, item, &join->victims) || bt_fair_queue_push(fair, item, now_ms) < 0)
        return BT_QUEUE_FULL;
    bt_fair_queue_ahead(fair, item, &join->ahead);
    join->predicted_ms = bt_queue_rate_predict_ms(rate, join->ahead.cost);
    if (join->ahead.cost == 0 || join->predicted_ms <= timeout_ms)
        return BT_QUEUE_CALLED;
    bt_fair_queue_remove(fair, item);
    return BT_QUEUE_TOO_LONG;
}

enum bt_queue_end bt_queue_join(bt_fair_queue_t *fair, const bt_queue_rate_t *rate,
                                bt_fair_item_t *item, uint64_t timeout_ms, uint64_t now_ms,
                                bt_queue_join_t *join)
{
    *join = (bt_queue_join_t){.predicted_ms = 0};
    bt_list_init(&join->victims);
    const enum bt_queue_end end = stand(fair, rate, item, timeout_ms, now_ms, join);
    settle_victims(fair, &join->victims, end == BT_QUEUE_CALLED);
    if (end == BT_QUEUE_FULL)
        join->predicted_ms = bt_queue_rate_predict_ms(rate, fair->rows[item->klass].load.cost);
    return end;
}
