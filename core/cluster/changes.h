/* changes.h - a count that grows whenever the usability of any worker may have changed: health, breaker, agents.
 *
 * Owner: the process; any thread.
 * Life:  static.
 * Flow:  whoever changes a worker counts; views of the workers are cached by the count.
 * Cost:  one atomic.
 */
#ifndef BT_CLUSTER_CHANGES_H
#define BT_CLUSTER_CHANGES_H

#include <stdint.h>

uint64_t bt_workers_changes(void);
void bt_workers_changed(void);

#endif
