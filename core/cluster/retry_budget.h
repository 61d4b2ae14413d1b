/* retry_budget.h - how many retries a pool may still have: so many per hundred requests of the last ten seconds.
 *
 * Owner: the pool; used from every loop.
 * Life:  as the pool, over snapshots; zeroed is empty.
 * Flow:  each request is counted -> before a retry, take. What is not taken is not kept for later.
 * Cost:  a request: two relaxed atomics on a line that the loops share. A retry adds up ten seconds.
 */
#ifndef BT_CLUSTER_RETRY_BUDGET_H
#define BT_CLUSTER_RETRY_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define BT_RETRY_BUDGET_SECONDS 10
#define BT_RETRY_BUDGET_FLOOR 10 /* a pool with little traffic may retry too */

typedef struct bt_retry_budget {
    struct bt_retry_second {
        _Atomic uint64_t second; /* which one is counted here */
        _Atomic unsigned requests, retries;
    } seconds[BT_RETRY_BUDGET_SECONDS];
} bt_retry_budget_t;

void bt_retry_budget_count(bt_retry_budget_t *b, uint64_t now_ms);
/* percent: of the requests. False: there is none left. */
bool bt_retry_budget_take(bt_retry_budget_t *b, unsigned percent, uint64_t now_ms);

#endif
