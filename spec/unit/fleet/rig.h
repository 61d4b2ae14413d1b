/* rig.h - several shares in one process, each with a registry of its own, over one local store and one loop. */
#ifndef SPEC_UNIT_SHARE_RIG_H
#define SPEC_UNIT_SHARE_RIG_H

#include "../cluster/help.h"
#include "../loop/util.h"

#include "base/rand.h"
#include "fleet/fleet_impl.h"

#include <stdio.h>

#define RIG_CALLS 16
#define RIG_INTERVAL_MS 10
#define RIG_EXPIRY_MS 5000
#define RIG_LOOPS 2U

typedef struct replica {
    bt_registry_t *registry;
    bt_fleet_t *fleet;
    unsigned hints, calls;
    unsigned begun; /* role switches; rc: how the next ones begin */
    int begin_rc;
    bt_role_switch_ask_t asked;
    uint64_t hinted_id;
    char called[RIG_CALLS][64]; /* "<name> <argument>" */
    bool is_closed;
} replica_t;

static bt_loop_t rig_loop;
static bt_store_t *rig_store;
static bt_store_client_t *rig_client; /* the spec's own */
static char rig_space[32];

static void rig_on_publish(void *user, bt_workers_t *workers)
{
    replica_t *r = user;

    if (r->fleet != NULL)
        bt_fleet_set_workers(r->fleet, workers);
}

static void rig_on_hint(void *user, bt_worker_t *w)
{
    replica_t *r = user;

    r->hints++;
    r->hinted_id = w->id;
}

static void rig_on_call(void *user, bt_str_t name, bt_str_t argument)
{
    replica_t *r = user;

    if (r->calls < RIG_CALLS)
        snprintf(r->called[r->calls++], sizeof(r->called[0]), "%.*s %.*s", BT_STR_ARG(name),
                 BT_STR_ARG(argument));
}

static int rig_on_role(void *user, bt_worker_t *w, const bt_role_switch_ask_t *ask, char *err,
                       size_t err_size)
{
    replica_t *r = user;

    r->begun++;
    r->asked = *ask;
    snprintf(err, err_size, "it shall not");
    if (r->begin_rc == 0) {
        w->switch_to = ask->to;
        atomic_store(&w->switching, BT_SWITCH_DRAINING);
    }
    return r->begin_rc;
}

static inline int rig_setup(void **state)
{
    char err[256];

    assert_int_equal(bt_loop_init(&rig_loop, 0), 0);
    assert_int_equal(bt_store_open(&rig_store, &(bt_store_config_t){0}, err, sizeof(err)), 0);
    assert_int_equal(bt_store_client_new(&rig_client, rig_store, &rig_loop, NULL, NULL), 0);
    snprintf(rig_space, sizeof(rig_space), "s%llx", (unsigned long long) bt_rand_u64());
    return 0;
}

static void rig_on_gone(void *user)
{
    *(bool *) user = true;
}

static inline int rig_teardown(void **state)
{
    bool is_gone = false;

    bt_store_client_free(rig_client, rig_on_gone, &is_gone);
    TURN_UNTIL(&rig_loop, is_gone);
    bt_store_close(rig_store);
    bt_loop_fini(&rig_loop);
    return 0;
}

/* Its configuration: pools "default" and, where more is not NULL, "more", of hybrids at these ports of 127.0.0.1; 0 ends a list. */
static inline void rig_apply(replica_t *r, const unsigned *ports, const unsigned *more)
{
    const unsigned *const lists[] = {ports, more};
    bt_pool_spec_t pools[2];
    bt_worker_spec_t specs[2][8];
    const bt_worker_spec_t *workers[] = {specs[0], specs[1]};
    unsigned counts[2] = {0}, pool_count = more != NULL ? 2 : 1;
    char err[256] = "", url[64];

    for (unsigned i = 0; i < pool_count; i++) {
        bt_pool_spec_init(&pools[i]);
        pools[i].name = text(i == 0 ? "default" : "more");
        for (; lists[i][counts[i]] != 0; counts[i]++) {
            snprintf(url, sizeof(url), "http://127.0.0.1:%u", lists[i][counts[i]]);
            make_spec(&specs[i][counts[i]], BT_ROLE_HYBRID, url, NULL);
        }
    }
    int rc = bt_registry_apply(r->registry, pools, pool_count, workers, counts, err, sizeof(err));
    for (unsigned i = 0; i < pool_count; i++) {
        bt_pool_spec_fini(&pools[i]);
        for (unsigned j = 0; j < counts[i]; j++)
            bt_worker_spec_fini(&specs[i][j]);
    }
    if (rc != 0)
        fail_msg("%s", err);
}

static inline void rig_start(replica_t *r, const char *name, const unsigned *ports,
                             const unsigned *more)
{
    const bt_fleet_config_t config = {.store = rig_store,
                                      .space = rig_space,
                                      .replica = name,
                                      .admin_url = "http://127.0.0.1:1",
                                      .loops = RIG_LOOPS,
                                      .interval_ms = RIG_INTERVAL_MS,
                                      .expiry_ms = RIG_EXPIRY_MS,
                                      .on_hint = rig_on_hint,
                                      .on_call = rig_on_call,
                                      .begin_role = rig_on_role,
                                      .user = r};
    bt_fleet_config_t full = config;
    char err[256] = "";

    memset(r, 0, sizeof(*r));
    assert_int_equal(bt_registry_new(&r->registry, NULL, rig_on_publish, r), 0);
    rig_apply(r, ports, more);
    full.registry = r->registry;
    if (bt_fleet_new(&r->fleet, &rig_loop, &full, err, sizeof(err)) != 0)
        fail_msg("%s", err);
    bt_fleet_set_workers(r->fleet, bt_registry_current(r->registry));
}

static void rig_on_closed(void *user)
{
    ((replica_t *) user)->is_closed = true;
}

static inline void rig_stop(replica_t *r)
{
    bt_fleet_close(r->fleet, rig_on_closed, r);
    TURN_UNTIL(&rig_loop, r->is_closed);
    bt_registry_free(r->registry);
}

static inline bt_worker_t *rig_worker(const replica_t *r, unsigned port)
{
    char url[64];

    snprintf(url, sizeof(url), "http://127.0.0.1:%u", port);
    return bt_workers_find(bt_registry_current(r->registry), bt_str(url));
}

static inline uint64_t rig_heartbeats(const replica_t *r)
{
    bt_fleet_stats_t stats;

    bt_fleet_stats(r->fleet, &stats);
    return stats.heartbeats;
}

/* So many whole heartbeats of it more. */
static inline void rig_heartbeat(const replica_t *r, unsigned heartbeats)
{
    uint64_t until = rig_heartbeats(r) + heartbeats;

    TURN_UNTIL(&rig_loop, rig_heartbeats(r) >= until);
}

/* ---- the store, as a stranger sees it ---- */

typedef struct rig_answer {
    bool is_there;
    int rc;
    unsigned row_count;
    char names[8][256], values[8][512];
} rig_answer_t;

static void rig_on_answer(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    rig_answer_t *a = op->user;

    a->is_there = true;
    a->rc = reply->rc;
    for (; a->row_count < reply->row_count && a->row_count < 8; a->row_count++) {
        const bt_store_row_t *row = &reply->rows[a->row_count];
        snprintf(a->names[a->row_count], sizeof(a->names[0]), "%.*s", BT_STR_ARG(row->name));
        snprintf(a->values[a->row_count], sizeof(a->values[0]), "%.*s", BT_STR_ARG(row->value));
    }
}

static inline rig_answer_t rig_ask(bt_store_op_t op)
{
    rig_answer_t a = {0};

    op.space = bt_str(rig_space);
    op.cb = rig_on_answer;
    op.user = &a;
    bt_store_do(rig_client, &op);
    TURN_UNTIL(&rig_loop, a.is_there);
    assert_int_equal(a.rc, 0);
    return a;
}

static inline void rig_put(const char *table, const char *field, const char *value, uint64_t ttl_ms)
{
    (void) rig_ask((bt_store_op_t){.what = BT_STORE_TABLE_PUT,
                                   .key = bt_str(table),
                                   .field = bt_str(field),
                                   .value = bt_str(value),
                                   .ttl_ms = ttl_ms});
}

static inline rig_answer_t rig_all(const char *table)
{
    return rig_ask((bt_store_op_t){.what = BT_STORE_TABLE_ALL, .key = bt_str(table)});
}

/* What FLUSHALL does to one table. */
static inline void rig_flush(const char *table)
{
    rig_answer_t all = rig_all(table);

    for (unsigned i = 0; i < all.row_count; i++)
        (void) rig_ask((bt_store_op_t){
            .what = BT_STORE_TABLE_DROP, .key = bt_str(table), .field = bt_str(all.names[i])});
}

#endif
