/* exporter.h - sends what the queue has to a collector: OTLP as JSON over HTTP or HTTPS.
 *
 * Owner: the control loop.
 * Life:  new -> start -> close, which sends the rest and says when it is over.
 * Flow:  a batch is rendered and posted, one at a time. A collector that cannot be reached, or asks for time, gets the same batch
 *        again after growing pauses; meanwhile the queue fills, and drops. What it refuses is counted and not sent again.
 * Cost:  a look at the queue four times a second; a batch is a few hundred microseconds of the control loop.
 */
#ifndef BT_TRACE_EXPORTER_H
#define BT_TRACE_EXPORTER_H

#include "loop/loop.h"
#include "trace/queue.h"

typedef struct bt_trace_exporter bt_trace_exporter_t;

typedef struct bt_trace_exporter_config { /* borrowed */
    const char *endpoint; /* http[s]://HOST[:PORT][/PATH]; without a path: /v1/traces */
    const char *service_name, *instance, *version;
    const char *ca_file;      /* PEM; NULL = the system's */
    const char *headers_file; /* lines "name: value"; NULL = none */
} bt_trace_exporter_config_t;

int bt_trace_exporter_new(bt_trace_exporter_t **exporter_p, bt_loop_t *loop,
                          bt_trace_queue_t *queue, const bt_trace_exporter_config_t *config,
                          char *err, size_t err_size);
void bt_trace_exporter_start(bt_trace_exporter_t *exporter);
/* done: once, now or after 2 s at most; what has not been sent then is counted as dropped, and told. NULL is fine. */
void bt_trace_exporter_close(bt_trace_exporter_t *exporter, void (*done)(void *user), void *user);

#endif
