/* queue.h - traces between the loops where their requests end and the exporter.
 *
 * Owner: the process; put on any loop, take on the control loop.
 * Life:  new before the loops run -> put* / take* -> free when they have ended.
 * Flow:  a trace is the draft of its spans. What finds no room is dropped and counted; nobody waits. The last trace of each bucket of
 *        some histograms is kept as its exemplar.
 * Cost:  of a trace that is kept: a lock and a copy. Of all others nothing.
 */
#ifndef BT_TRACE_QUEUE_H
#define BT_TRACE_QUEUE_H

#include "base/text.h"
#include "trace/context.h"

#define BT_TRACE_QUEUE_BYTES ((size_t) 4 << 20)
#define BT_TRACE_BUCKETS 21

/* Why a trace is kept. */
enum bt_trace_why {
    BT_TRACE_SAMPLED,
    BT_TRACE_FAILED,
    BT_TRACE_RETRIED,
    BT_TRACE_SLOW,
    BT_TRACE_WHYS,
    BT_TRACE_NOT_KEPT = BT_TRACE_WHYS
};
const char *bt_trace_why_name(enum bt_trace_why why);

/* Histograms whose buckets have exemplars. */
enum bt_trace_metric {
    BT_TRACE_TTFT,
    BT_TRACE_TPOT,
    BT_TRACE_DURATION,
    BT_TRACE_ADMISSION,
    BT_TRACE_ROUTE,
    BT_TRACE_QUEUE_WAIT,
    BT_TRACE_QUEUE_ERROR,
    BT_TRACE_ENCODE,
    BT_TRACE_DECISION,
    BT_TRACE_PREFILL,
    BT_TRACE_CALLBACK_WAIT,
    BT_TRACE_HANDOFF_WAIT,
    BT_TRACE_DECODE,
    BT_TRACE_METRICS
};

typedef struct bt_trace_exemplar {
    char trace[BT_TRACE_ID_CHARS];
    uint64_t us, wall_ms; /* wall_ms 0 = there is none */
} bt_trace_exemplar_t;

typedef struct bt_trace_kept {
    bt_str_t draft; /* of its spans */
    unsigned spans;
    enum bt_trace_why why;
    const char *trace; /* BT_TRACE_ID_CHARS */
    uint64_t wall_ms;
    struct {
        unsigned bucket; /* BT_TRACE_BUCKETS = it has no value */
        uint64_t us;
    } values[BT_TRACE_METRICS];
} bt_trace_kept_t;

typedef struct bt_trace_stats {
    uint64_t kept[BT_TRACE_WHYS];                  /* traces */
    uint64_t exported, dropped, rejected, waiting; /* spans */
    uint64_t errors;                               /* calls of the collector that failed */
} bt_trace_stats_t;

typedef struct bt_trace_queue bt_trace_queue_t;

/* Drafts, one behind the other. */
typedef struct bt_trace_batch {
    bt_text_t drafts;
    unsigned spans;
} bt_trace_batch_t;

int bt_trace_queue_new(bt_trace_queue_t **queue_p);
void bt_trace_queue_free(bt_trace_queue_t *queue); /* NULL is fine */
bool bt_trace_queue_put(bt_trace_queue_t *queue, const bt_trace_kept_t *kept);
size_t bt_trace_queue_bytes(bt_trace_queue_t *queue); /* that wait */
/* Whole traces of max_bytes, but at least one, go behind what batch has. */
void bt_trace_queue_take(bt_trace_queue_t *queue, size_t max_bytes, bt_trace_batch_t *batch);
/* What became of spans that were taken. */
void bt_trace_queue_note(bt_trace_queue_t *queue, uint64_t exported, uint64_t rejected,
                         uint64_t dropped);
void bt_trace_queue_note_error(bt_trace_queue_t *queue);
void bt_trace_queue_stats(bt_trace_queue_t *queue, bt_trace_stats_t *stats_p);
/* False: this bucket has none. */
bool bt_trace_queue_exemplar(bt_trace_queue_t *queue, enum bt_trace_metric metric, unsigned bucket,
                             bt_trace_exemplar_t *exemplar_p);

#endif
