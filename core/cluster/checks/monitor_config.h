/* monitor_config.h - how workers are checked. */
#ifndef BT_CLUSTER_CHECKS_MONITOR_CONFIG_H
#define BT_CLUSTER_CHECKS_MONITOR_CONFIG_H

#include "cluster/checks/health.h"

typedef struct bt_monitor_config {
    bt_health_rules_t health;     /* 5 000, 3, 2 */
    uint64_t startup_interval_ms; /* 1 000: instead, while a worker is UNKNOWN or DOWN */
    uint64_t timeout_ms;          /* 2 000 */
    const char *path;             /* NULL = "/health"; copied */
    bool disabled;                /* every worker counts as up; passive signals only */
    uint64_t load_interval_ms;    /* 1 000; 0 = off */
    uint64_t load_timeout_ms;     /* 1 000 */
    uint64_t resolve_interval_ms; /* 30 000 */
    const char *api_key;          /* sent to workers that have none of their own, or NULL; copied */
} bt_monitor_config_t;

#endif
