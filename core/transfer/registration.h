/* registration.h - engines that register themselves by ZeroMQ: P2pNcclConnector's and MoRIIOConnector's.
 *
 * Owner: the control loop.
 * Life:  open (ports bound) -> start -> set_workers on every change -> close(done).
 * Flow:  message -> who sends it (registry_peers.h) -> registration_message.h -> the worker with that HTTP address -> its word in the
 *        registry, which lasts until it has been silent for some heartbeats. A worker whose legs need it is usable only as long.
 * Cost:  O(workers) a message, and four times a second.
 */
#ifndef BT_TRANSFER_REGISTRATION_H
#define BT_TRANSFER_REGISTRATION_H

#include "cluster/workers.h"
#include "loop/loop.h"
#include "transfer/registration_message.h"

typedef struct bt_registration bt_registration_t;

enum bt_registration_result {
    BT_REGISTRATION_TAKEN,
    BT_REGISTRATION_MALFORMED,
    BT_REGISTRATION_STRANGER, /* from a host that may not */
    BT_REGISTRATION_UNKNOWN,  /* of a worker that nobody has named */
    BT_REGISTRATION_CONFLICT, /* with what the configuration says */
    BT_REGISTRATION_RESULTS
};
const char *bt_registration_result_name(enum bt_registration_result result);

typedef struct bt_registration_config {
    const char *host;
    unsigned ports[BT_REGISTRATION_KINDS]; /* UINT_MAX = none; 0 = any */
    uint64_t expiry_ms
        [BT_REGISTRATION_KINDS]; /* 0 = 5000, 10000: what vLLM's proxies give, three heartbeats */
    uint64_t change_ms;          /* no worker's word changes more often; 0 = 1000 */
    const char *const *allowed;  /* hosts that may register, beside this one and the workers' */
    unsigned allowed_count;
    bool takes_new;   /* who is unknown becomes a worker of the first pool */
    bool new_has_tls; /* and speaks TLS: engines tell no scheme */
    /* What the pool says of a worker that says nothing; may be NULL. */
    int (*complete)(void *user, const char *pool, bt_worker_spec_t *spec, char *err,
                    size_t err_size);
    void *complete_user;
} bt_registration_config_t;

/* ports_p: as bound, 0 = none. err: one line. */
int bt_registration_open(bt_registration_t **registration_p, bt_loop_t *control,
                         const bt_registration_config_t *config,
                         unsigned ports_p[BT_REGISTRATION_KINDS], char *err, size_t err_size);
int bt_registration_start(bt_registration_t *registration, bt_registry_t *registry);
void bt_registration_set_workers(bt_registration_t *registration, bt_workers_t *workers);
/* Messages by result; what the sockets could not read is malformed. */
uint64_t bt_registration_count(const bt_registration_t *registration,
                               enum bt_registration_result result);
/* Frees itself; done (may be NULL) runs when its thread has ended. */
void bt_registration_close(bt_registration_t *registration, void (*done)(void *user), void *user);

#endif
