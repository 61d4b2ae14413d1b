/* load.h - reads the load reports of engines. Private to core/cluster; the monitor fetches, this reads.
 *
 * Owner: nobody; pure functions over a text.
 * Life:  static.
 * Flow:  text of /metrics or JSON of /v1/loads -> the worker's sample; at_ms is written by the caller, last.
 * Cost:  one pass over the text; no allocation.
 */
#ifndef BT_CLUSTER_CHECKS_LOAD_H
#define BT_CLUSTER_CHECKS_LOAD_H

#include "cluster/worker.h"

enum bt_load_source { BT_LOAD_UNKNOWN, BT_LOAD_VLLM_METRICS, BT_LOAD_SGLANG_LOADS };

/* Where a worker of this engine reports; UNKNOWN = ask /metrics and look whose names are in it. */
enum bt_load_source bt_load_source_of(enum bt_engine engine);
/* Whose series a /metrics text holds. */
enum bt_load_source bt_load_detect(bt_str_t metrics);
/* Fill the sample, of one DP rank only when rank >= 0. 0, or BT_E_INVAL when no known series is found. */
int bt_load_read_metrics(bt_str_t text, int rank, bt_load_sample_t *sample);
int bt_load_read_loads(bt_str_t json, int rank, bt_load_sample_t *sample);

#endif
