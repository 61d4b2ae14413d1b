/* Short ways to make specs, workers and fleets; shared by the specs of core/cluster. */
#ifndef SPEC_CLUSTER_HELP_H
#define SPEC_CLUSTER_HELP_H

#include "base/err.h"
#include "base/log.h"
#include "cluster/workers.h"
#include "unit.h"

#include <stdlib.h>

static inline char *text(const char *s)
{
    return s != NULL ? bt_str_dup(bt_str(s)) : NULL;
}

static inline void make_spec(bt_worker_spec_t *spec, enum bt_role role, const char *url,
                             const char *connector)
{
    bt_worker_spec_init(spec);
    spec->role = role;
    spec->url = text(url);
    spec->connector = text(connector);
}

/* Takes the spec. */
static inline bt_worker_t *worker_of(bt_worker_spec_t *spec)
{
    static uint64_t next_id = 1;
    bt_worker_t *w = NULL;
    char err[256] = "";
    int rc = bt_worker_new(&w, spec, next_id, (unsigned) next_id, NULL, err, sizeof err);
    if (rc != 0)
        fail_msg("%s", err);
    next_id++;
    bt_worker_spec_fini(spec);
    return w;
}

static inline bt_worker_t *quick_worker(enum bt_role role, const char *url, const char *connector)
{
    bt_worker_spec_t spec;
    make_spec(&spec, role, url, connector);
    return worker_of(&spec);
}

static inline void set_up(bt_worker_t *w)
{
    atomic_store(&w->health, BT_HEALTH_UP);
}

#endif
