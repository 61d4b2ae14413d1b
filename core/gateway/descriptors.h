/* descriptors.h - how the limit of open files is divided between clients, workers, the operator and the rest.
 *
 * Owner: the gateway; pure arithmetic but for the two calls that look at the process.
 * Life:  once, when everything that listens is open.
 * Flow:  limit of the process - what is open - what has a reserve = clients and connections to workers (http/budget.h). What was
 *        asked for and does not fit is refused with what to do.
 * Cost:  start-up only.
 */
#ifndef BT_GATEWAY_DESCRIPTORS_H
#define BT_GATEWAY_DESCRIPTORS_H

#include "gateway/process.h"

typedef struct bt_descriptors_need {
    uint64_t limit;           /* of open files */
    uint64_t open;            /* in use already, and soon */
    unsigned workers;         /* health checks and load polls are the control loop's */
    uint64_t others;          /* the store, transfer agents */
    unsigned max_connections; /* 0: as many as fit */
} bt_descriptors_need_t;

typedef struct bt_descriptors {
    unsigned admin;    /* connections of the operator */
    unsigned refusals; /* of clients that are told 503; of the operator's as many */
    unsigned clients;
    unsigned workers; /* connections to workers */
} bt_descriptors_t;

/* 0 or BT_E_CONFIG: err is one line. */
int bt_descriptors_divide(const bt_descriptors_need_t *ask, bt_descriptors_t *d_p, char *err,
                          size_t err_size);

/* Raises the soft limit to the hard one; refuses one that not even the start would fit in. */
int bt_gateway_descriptors_begin(const bt_config_t *config, char *err, size_t err_size);
/* Gives g's budgets their limits. */
int bt_gateway_descriptors_divide(bt_gateway_t *g, char *err, size_t err_size);

#endif
