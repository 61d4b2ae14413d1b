/* prom.h - writes the Prometheus text format, version 0.0.4.
 *
 * Owner: the caller's stack; text and names are borrowed.
 * Life:  init -> (family -> its samples)*.
 * Flow:  HELP and TYPE once, before the family's samples; label values are escaped here and nowhere else.
 * Cost:  O(bytes).
 */
#ifndef BT_ADMIN_PROM_H
#define BT_ADMIN_PROM_H

#include "base/text.h"
#include "dispatch/stats.h"

typedef struct bt_label {
    const char *name;
    bt_str_t value;
} bt_label_t;

typedef struct bt_prom {
    bt_text_t *out;
    const char *family; /* full name, as in HELP */
} bt_prom_t;

#define BT_LABELS_MAX 12

/* type: "counter", "gauge" or "histogram". name is static or outlives the family. */
void bt_prom_family(bt_prom_t *p, const char *name, const char *type, const char *help);
void bt_prom_int(bt_prom_t *p, const bt_label_t *labels, unsigned label_count, int64_t value);
void bt_prom_count(bt_prom_t *p, const bt_label_t *labels, unsigned label_count, uint64_t value);
/* A number of millionths, printed exactly: microseconds as seconds, parts per million as a ratio. */
void bt_prom_micro(bt_prom_t *p, const bt_label_t *labels, unsigned label_count, uint64_t micro);
/* The sum of n histograms as one, in seconds. */
void bt_prom_histogram(bt_prom_t *p, const bt_histogram_t *const *parts, unsigned part_count);

#endif
