/* prom.h - writes the Prometheus text format, version 0.0.4, or OpenMetrics 1.0.0.
 *
 * Owner: the caller's stack; text and names are borrowed.
 * Life:  init -> (family -> its samples)*.
 * Flow:  HELP and TYPE once, before the family's samples; label values are escaped here and nowhere else.
 * Cost:  O(bytes).
 */
#ifndef BT_ADMIN_METRICS_PROM_H
#define BT_ADMIN_METRICS_PROM_H

#include "base/text.h"
#include "dispatch/state/stats.h"
#include "trace/queue.h"

typedef struct bt_label {
    const char *name;
    bt_str_t value;
} bt_label_t;

typedef struct bt_prom {
    bt_text_t *out;
    const char *family; /* full name, as in its samples */
    bool is_open; /* OpenMetrics: a counter's family has no _total, buckets may have exemplars */
} bt_prom_t;

#define BT_LABELS_MAX 12

/* type: "counter", "gauge" or "histogram". name is static or outlives the family. */
void bt_prom_family(bt_prom_t *p, const char *name, const char *type, const char *help);
void bt_prom_int(bt_prom_t *p, const bt_label_t *labels, unsigned label_count, int64_t value);
void bt_prom_count(bt_prom_t *p, const bt_label_t *labels, unsigned label_count, uint64_t value);
/* A number of millionths, printed exactly: microseconds as seconds, parts per million as a ratio. */
void bt_prom_micro(bt_prom_t *p, const bt_label_t *labels, unsigned label_count, uint64_t micro);
/* Families of one sample without labels. */
typedef struct bt_prom_row {
    const char *name, *type, *help;
    uint64_t value;
} bt_prom_row_t;
void bt_prom_rows(bt_prom_t *p, const bt_prom_row_t *rows, unsigned count);
void bt_prom_one(bt_prom_t *p, const char *name, const char *type, const char *help,
                 uint64_t value);
/* Of millionths. */
void bt_prom_one_micro(bt_prom_t *p, const char *name, const char *type, const char *help,
                       uint64_t micro);
/* The trace of the bucket's last observation that has one; false: none. */
typedef bool (*bt_prom_exemplar_cb)(void *user, unsigned bucket, bt_trace_exemplar_t *exemplar_p);
/* The sum of part_count histograms as one, in seconds. */
typedef struct bt_prom_histogram {
    const bt_label_t *labels;
    unsigned label_count, part_count;
    const bt_histogram_t *const *parts;
    unsigned unit;                /* of a microsecond that it counts in; 0 = 1 */
    bt_prom_exemplar_cb exemplar; /* asked where is_open; NULL = there are none */
    void *user;
} bt_prom_histogram_t;
void bt_prom_histogram(bt_prom_t *p, const bt_prom_histogram_t *h);
void bt_prom_end(bt_prom_t *p); /* of all families */

#endif
