/* access_log.h - one line a request. Private to dispatch.
 *
 * Owner: nobody.
 * Life:  a call, at the request's end, while its attempts are there.
 * Flow:  request -> text or JSON -> base/log.
 * Cost:  nothing without --access-log.
 */
#ifndef BT_DISPATCH_TELEMETRY_ACCESS_LOG_H
#define BT_DISPATCH_TELEMETRY_ACCESS_LOG_H

#include "dispatch/state/request_state.h"

/* us: from its arrival. */
void bt_access_log(bt_request_t *r, uint64_t us);

#endif
