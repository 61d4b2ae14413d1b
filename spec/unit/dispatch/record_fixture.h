/* record_fixture.h - one request made by hand, with its loop's ring and a small fleet; for the specs and the bench of records. */
#ifndef SPEC_DISPATCH_RECORD_FIXTURE_H
#define SPEC_DISPATCH_RECORD_FIXTURE_H

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/pages.h"
#include "dispatch/attempt/attempt.h"
#include "dispatch/dispatcher.h"
#include "dispatch/plan/plan.h"
#include "record/record.h"

#include <stdio.h>
#include <stdlib.h>

#define RIG_WORKERS_MAX 200

typedef struct record_rig {
    bt_dispatch_shared_t shared;
    bt_dispatcher_t d;
    bt_registry_t *registry;
    bt_request_t r;
    bt_exchange_t x;
    bt_header_t headers[8];
    bt_worker_t *prefill[RIG_WORKERS_MAX], *decode[RIG_WORKERS_MAX], *single[RIG_WORKERS_MAX];
    bt_worker_set_t sets[3];
    bt_task_t tasks[2];
    bt_attempt_t attempts[200];
    bt_choice_t choice;
} record_rig_t;

static inline void rig_worker(record_rig_t *rig, enum bt_role role, const char *name)
{
    bt_worker_t **items[] = {rig->prefill, rig->decode, rig->single};
    bt_worker_spec_t spec;
    char err[256] = "", url[64];
    bt_worker_set_t *set = &rig->sets[role];

    snprintf(url, sizeof url, "http://10.0.%d.%u:8000", (int) role, set->count + 1);
    bt_worker_spec_init(&spec);
    spec.role = role;
    spec.url = bt_str_dup(bt_str(url));
    spec.name = bt_str_dup(bt_str(name));
    spec.connector = role != BT_ROLE_HYBRID ? bt_str_dup(BT_STR("NixlConnector")) : NULL;
    spec.zone = bt_str_dup(BT_STR("a"));
    spec.version = bt_str_dup(BT_STR("0.32.0"));
    spec.tp_size = 4;
    spec.labels = bt_str_dup(BT_STR("k=v\"q, fast"));
    BT_BUG_ON(bt_registry_add(rig->registry, NULL, &spec, err, sizeof err) != 0);
    bt_worker_spec_fini(&spec);
    set->items = items[role];
    set->items[set->count++] = bt_workers_find(bt_registry_current(rig->registry), bt_str(name));
}

static inline void rig_request(record_rig_t *rig, const char *id)
{
    bt_request_t *r = &rig->r;

    memset(r, 0, sizeof(*r));
    bt_arena_init(&r->arena);
    r->d = &rig->d;
    r->x = &rig->x;
    r->route = BT_ROUTE_COMPLETIONS;
    r->path = BT_STR("/v1/completions");
    r->intent.model = BT_STR("m");
    r->intent.n = 1;
    r->intent.prompt_bytes = 48;
    r->prompt_tokens = 12;
    r->start_us = 1000000;
    r->identity = &bt_identity_anonymous;
    r->id = bt_arena_str(&r->arena, bt_str(id)).p;
}

static inline void rig_open(record_rig_t *rig, unsigned pairs)
{
    static const bt_dispatch_config_t none;
    const bt_worker_spec_t *workers[1] = {NULL};
    unsigned counts[1] = {0};
    bt_pool_spec_t pool;
    char err[256] = "", name[16];

    memset(rig, 0, sizeof *rig);
    bt_log_set(BT_LOG_ERROR, false, 2);
    bt_pool_spec_init(&pool);
    pool.name = bt_str_dup(BT_STR("default"));
    BT_BUG_ON(bt_registry_new(&rig->registry, NULL, NULL, NULL) != 0);
    BT_BUG_ON(bt_registry_apply(rig->registry, &pool, 1, workers, counts, err, sizeof err) != 0);
    bt_pool_spec_fini(&pool);
    BT_BUG_ON(bt_dispatch_shared_init(&rig->shared, &none) != 0);
    BT_BUG_ON(bt_dialects_new(&rig->d.dialects, NULL, err, sizeof err) != 0);
    rig->d.shared = &rig->shared;
    rig->d.records = bt_record_ring_new();
    for (unsigned i = 1; i <= pairs; i++) {
        snprintf(name, sizeof name, "p%u", i);
        rig_worker(rig, BT_ROLE_PREFILL, name);
        snprintf(name, sizeof name, "d%u", i);
        rig_worker(rig, BT_ROLE_DECODE, name);
    }
    rig_worker(rig, BT_ROLE_HYBRID, "w1");
    rig->x.head.headers = rig->headers;
    rig_request(rig, "req-1");
}

static inline void rig_end_request(record_rig_t *rig)
{
    bt_workers_unref(rig->r.record.workers);
    bt_workers_unref(rig->r.workers);
    bt_arena_fini(&rig->r.arena);
}

static inline void rig_close(record_rig_t *rig)
{
    rig_end_request(rig);
    bt_record_ring_free(rig->d.records);
    bt_dialects_free(rig->d.dialects);
    bt_dispatch_shared_fini(&rig->shared);
    bt_registry_free(rig->registry);
    bt_pages_thread_fini();
}

static inline void rig_header(record_rig_t *rig, const char *name, const char *value)
{
    rig->headers[rig->x.head.header_count++] = (bt_header_t){bt_str(name), bt_str(value)};
}

static inline bt_policy_view_t rig_view(record_rig_t *rig)
{
    rig->r.workers = bt_workers_ref(bt_registry_current(rig->registry));
    rig->r.pool = &rig->r.workers->pools[0];
    return (bt_policy_view_t){.sets = {&rig->sets[0], &rig->sets[1], &rig->sets[2], &rig->sets[2]},
                              .key = 1,
                              .pool = BT_STR("default")};
}

/* A plan of these workers. */
static inline void rig_choose(record_rig_t *rig, bt_worker_t *prefill, bt_worker_t *decode)
{
    rig->choice = (bt_choice_t){.first = {prefill, decode, -1, -1}};
    rig->r.choice = bt_plan_keep(&rig->r, &rig->choice);
    rig->r.record.workers = bt_workers_ref(rig->r.workers);
}

/* Attempt i of task 0, the next one after i - 1. Times are us after the request's arrival. */
static inline bt_attempt_t *rig_attempt(record_rig_t *rig, unsigned i, bt_worker_t *prefill,
                                        bt_worker_t *decode, uint64_t start_us, uint64_t end_us)
{
    bt_attempt_t *a = &rig->attempts[i];
    const uint64_t from = rig->r.start_us;

    memset(a, 0, sizeof *a);
    a->task = &rig->tasks[0];
    a->number = i + 1;
    a->before = i > 0 ? &rig->attempts[i - 1] : NULL;
    a->kind = prefill != NULL ? BT_PLAN_HANDOFF : BT_PLAN_SINGLE;
    a->legs[0].worker = prefill;
    a->legs[0].call.start_us = from + start_us;
    a->legs[1].worker = decode;
    a->start_us = from + start_us;
    a->end_us = from + end_us;
    rig->tasks[0] = (bt_task_t){.request = &rig->r, .attempt = a};
    rig->r.tasks = rig->tasks;
    rig->r.task_count = 1;
    return a;
}

#endif
