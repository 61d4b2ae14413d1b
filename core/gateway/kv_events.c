#include "gateway/kv_events.h"

#include "base/err.h"
#include "base/log.h"
#include "cluster/kv_trust.h"
#include "kvindex/subscriber.h"
#include "script/shared/kv_hits.h"
#include "zmq/sockets.h"

#include <stdlib.h>

#define CLOSE_MS 2000
#define SAVE_MS 10000U /* the last snapshot gets, of signal.c's LAST_MS */

struct bt_gateway_kv {
    bt_kv_index_t *index;
    bt_kv_subscriber_t *subscriber;
    bt_worker_t **followed; /* the source holds a reference */
    unsigned count, cap;
    uint64_t epoch;  /* of the last publication */
    bool is_refused; /* it was told why */
};

/* ---- on the subscriber's thread ---- */

static void on_parts(void *user, uint32_t first, unsigned count)
{
    bt_worker_t *w = user;

    atomic_store(&w->kv_parts, count > 0 ? bt_kv_parts(first, count) : 0);
}

static void on_anew(void *user)
{
    bt_kv_trust_renew(user);
}

static void on_gone(void *user)
{
    bt_worker_unref(user);
}

/* ---- on the control loop ---- */

static int open_kv(struct bt_gateway_kv *kv, const bt_config_t *c)
{
    const bt_kv_index_config_t sizes = {.max_held = c->kv_index_blocks};

    if (!bt_zmq_is_built())
        return BT_E_CONFIG;
    int rc = kv->index == NULL ? bt_kv_index_new(&kv->index, &sizes) : 0;
    if (rc < 0)
        return rc;
    const bt_kv_subscriber_config_t config = {.index = kv->index,
                                              .snapshot = c->kv_snapshot,
                                              .snapshot_ms = (unsigned) c->kv_snapshot_ms,
                                              .on_parts = on_parts,
                                              .on_anew = on_anew,
                                              .on_gone = on_gone};
    rc = bt_kv_subscriber_new(&kv->subscriber, &config);
    if (rc == 0)
        bt_kv_hits_set_index(kv->index);
    return rc;
}

/* With the first worker that says where. */
static bool is_open(bt_gateway_t *g)
{
    if (g->kv == NULL && (g->kv = calloc(1, sizeof(*g->kv))) == NULL)
        return false;
    if (g->kv->subscriber != NULL)
        return true;
    const int rc = open_kv(g->kv, g->config);
    if (rc < 0 && !g->kv->is_refused)
        bt_log_error("gateway", "KV events are not followed: %s",
                     rc == BT_E_CONFIG ? bt_zmq_not_built : bt_err_text(rc));
    g->kv->is_refused = rc < 0;
    g->kv_subscriber = g->kv->subscriber;
    return rc == 0;
}

static bool make_room(struct bt_gateway_kv *kv)
{
    if (kv->count < kv->cap)
        return true;
    const unsigned cap = kv->cap > 0 ? 2 * kv->cap : 16;
    bt_worker_t **followed = realloc(kv->followed, cap * sizeof(bt_worker_t *));
    if (followed == NULL)
        return false;
    kv->followed = followed;
    kv->cap = cap;
    return true;
}

static void follow(bt_gateway_t *g, bt_worker_t *w)
{
    const bt_kv_source_t source = {.user = w,
                                   .name = w->name,
                                   .events = w->spec.kv_events,
                                   .replay = w->spec.kv_events_replay,
                                   .first_rank =
                                       w->spec.dp_rank >= 0 ? (unsigned) w->spec.dp_rank : 0,
                                   .ranks = w->spec.dp_rank >= 0 ? 1 : w->dp_size};

    if (!is_open(g) || !make_room(g->kv))
        return;
    bt_worker_ref(w);
    const int rc = bt_kv_subscriber_add(g->kv->subscriber, &source);
    if (rc < 0) {
        bt_log_error("gateway", "%s: its KV events are not followed: %s", w->name, bt_err_text(rc));
        bt_worker_unref(w);
        return;
    }
    w->is_kv_followed = true;
    g->kv->followed[g->kv->count++] = w;
}

static void follow_set(bt_gateway_t *g, const bt_worker_set_t *set, uint64_t epoch)
{
    for (unsigned i = 0; i < set->count; i++) {
        bt_worker_t *w = set->items[i];
        w->kv_epoch = epoch;
        if (w->spec.kv_events != NULL && !w->is_kv_followed)
            follow(g, w);
    }
}

/* Those that are in no pool any more. */
static void leave_gone(struct bt_gateway_kv *kv, uint64_t epoch)
{
    for (unsigned i = 0; i < kv->count;) {
        bt_worker_t *w = kv->followed[i];
        if (w->kv_epoch == epoch || bt_kv_subscriber_remove(kv->subscriber, w) < 0) {
            i++;
            continue;
        }
        kv->followed[i] = kv->followed[--kv->count];
    }
}

void bt_gateway_kv_publish(bt_gateway_t *g, bt_workers_t *workers)
{
    for (unsigned i = 0; i < workers->pool_count; i++) {
        follow_set(g, &workers->pools[i].all, workers->epoch);
    }
    if (g->kv != NULL)
        leave_gone(g->kv, workers->epoch);
}

void bt_gateway_kv_save(bt_gateway_t *g)
{
    if (g->kv_subscriber != NULL)
        bt_kv_subscriber_save(g->kv_subscriber);
}

void bt_gateway_kv_close(bt_gateway_t *g)
{
    struct bt_gateway_kv *kv = g->kv;
    const bool saves = g->config->kv_snapshot != NULL;
    bool has_ended = true;

    g->kv = NULL;
    g->kv_subscriber = NULL;
    if (kv == NULL)
        return;
    bt_kv_hits_set_index(NULL);
    if (kv->subscriber != NULL)
        has_ended = bt_kv_subscriber_close(kv->subscriber, saves ? SAVE_MS : CLOSE_MS);
    if (!has_ended && saves)
        bt_log_error("gateway",
                     "--kv-snapshot %s was not written in %u ms: is its disk there? What it had "
                     "before stays",
                     g->config->kv_snapshot, SAVE_MS);
    if (has_ended)
        bt_kv_index_free(kv->index); /* else it is the thread's, and the process ends */
    free(kv->followed);
    free(kv);
}
