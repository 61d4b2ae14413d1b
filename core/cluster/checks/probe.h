/* probe.h - one GET (or POST of a little JSON) with a deadline whose answer is collected, and the limit on how many run. Private to core/cluster.
 *
 * Owner: the monitor's watch of a worker embeds its probes; all on the control loop.
 * Life:  init -> (start -> callback)* -> fini; cancel at any time, after which no callback comes.
 * Flow:  start waits when enough are running; each end lets the next one through.
 * Cost:  one small allocation for the request text and one for the answer.
 */
#ifndef BT_CLUSTER_CHECKS_PROBE_H
#define BT_CLUSTER_CHECKS_PROBE_H

#include "base/list.h"
#include "base/text.h"
#include "http/client.h"

typedef struct bt_probe bt_probe_t;
/* rc 0: probe->status and probe->body (cut at the limit) are valid until the callback returns. */
typedef void (*bt_probe_cb)(bt_probe_t *probe, int rc);

typedef struct bt_probe_limit {
    unsigned running, max;
    bt_list_t waiting;
} bt_probe_limit_t;
void bt_probe_limit_init(bt_probe_limit_t *limit, unsigned max);

typedef struct bt_probe_target {
    bt_upstream_t *up;
    const char *authority, *base_path, *path;
    const char *api_key; /* or NULL */
    const char *body;    /* JSON of a POST; NULL = a GET */
} bt_probe_target_t;

struct bt_probe {
    bt_list_t link; /* in shared->waiting */
    bt_probe_limit_t *limit;
    bt_upstream_t *up;
    bt_probe_cb cb;
    bt_call_t call;
    struct bt_slice slice;
    bt_text_t request, body;
    size_t body_max;
    uint64_t timeout_ms, began_ms;
    unsigned status;
    enum { BT_PROBE_IDLE, BT_PROBE_WAITING, BT_PROBE_RUNNING } state;
};

void bt_probe_init(bt_probe_t *p, bt_probe_limit_t *limit);
void bt_probe_fini(bt_probe_t *p);
/* An idle probe only. 0, or < 0 and no callback. The target's upstream must live until the callback or cancel. */
int bt_probe_start(bt_probe_t *p, const bt_probe_target_t *target, uint64_t timeout_ms,
                   size_t body_max, bt_probe_cb cb);
void bt_probe_cancel(bt_probe_t *p);

#endif
