#include "cluster/workers.h"

#include "base/err.h"
#include "base/log.h"
#include "cluster/slots.h"

#include <stdio.h>
#include <stdlib.h>

/* Every change goes the same way: a draft (pools and workers, old objects where nothing changed, new ones elsewhere) is
 * filled and checked aside; only a draft without a fault becomes a snapshot, and only then does the old one go. So a bad
 * configuration leaves no trace, and there is one place that publishes. */

struct bt_registry {
    bt_breaker_config_t breaker;
    bt_registry_publish_cb publish;
    void *user;
    bt_workers_t *current;
    bt_slots_t *slots;
    unsigned slot_high; /* highest slot ever given + 1 */
    uint64_t next_id;
};

typedef struct draft {
    bt_pool_spec_t *pools; /* shallow: strings are borrowed */
    bt_pool_stat_t **stats;
    bt_worker_t ***workers; /* references */
    unsigned *counts;
    unsigned pool_count;
    bool *is_taken; /* by slot: an old worker that the draft keeps */
} draft_t;

/* ---- drafts ---- */

static void draft_fini(draft_t *d)
{
    for (unsigned i = 0; i < d->pool_count; i++) {
        for (unsigned j = 0; d->workers != NULL && d->workers[i] != NULL && j < d->counts[i]; j++)
            bt_worker_unref(d->workers[i][j]);
        if (d->workers != NULL)
            free(d->workers[i]);
        if (d->stats != NULL)
            bt_pool_stat_unref(d->stats[i]);
    }
    free(d->workers);
    free(d->counts);
    free(d->stats);
    free(d->pools);
    free(d->is_taken);
}

static int draft_init(draft_t *d, unsigned pool_count, unsigned slot_high)
{
    *d = (draft_t){.pool_count = pool_count};
    d->pools = calloc(pool_count + 1, sizeof *d->pools);
    d->stats = calloc(pool_count + 1, sizeof(bt_pool_stat_t *));
    d->workers = calloc(pool_count + 1, sizeof(bt_worker_t **));
    d->counts = calloc(pool_count + 1, sizeof *d->counts);
    d->is_taken = calloc(slot_high + 1, sizeof *d->is_taken);
    if (d->pools != NULL && d->stats != NULL && d->workers != NULL && d->counts != NULL &&
        d->is_taken != NULL)
        return 0;
    draft_fini(d);
    return BT_E_NOMEM;
}

static const bt_worker_pool_t *find_pool(const bt_workers_t *f, const char *name)
{
    for (unsigned i = 0; i < f->pool_count; i++)
        if (strcmp(f->pools[i].spec.name, name) == 0)
            return &f->pools[i];
    return NULL;
}

/* Room for count workers; the pool's running averages go on. */
static int draft_pool(draft_t *d, unsigned i, const bt_pool_spec_t *spec,
                      const bt_worker_pool_t *old, unsigned count)
{
    d->pools[i] = *spec;
    d->workers[i] = calloc(count + 1, sizeof(bt_worker_t *));
    if (old != NULL) {
        d->stats[i] = old->stat;
        atomic_fetch_add(&old->stat->refs, 1);
    } else {
        d->stats[i] = bt_pool_stat_new();
    }
    return d->workers[i] != NULL && d->stats[i] != NULL ? 0 : BT_E_NOMEM;
}

static void draft_put(draft_t *d, unsigned pool, bt_worker_t *w)
{
    d->workers[pool][d->counts[pool]++] = w;
}

static bool is_same_worker(const bt_worker_t *w, const bt_worker_spec_t *spec)
{
    bool same_name = spec->name == NULL
                         ? w->spec.name == NULL
                         : w->spec.name != NULL && strcmp(spec->name, w->spec.name) == 0;
    return same_name && bt_worker_spec_same(&w->spec, spec);
}

/* The old pool's worker that this spec describes and that no earlier spec has claimed. One that only its registration has named
 * becomes another one: it is the configuration's from now on. */
static bt_worker_t *claim_old(draft_t *d, const bt_worker_pool_t *old, const bt_worker_spec_t *spec)
{
    for (unsigned i = 0; old != NULL && i < old->all.count; i++) {
        bt_worker_t *w = old->all.items[i];
        if (d->is_taken[w->slot] || w->spec.registered.is_new || !is_same_worker(w, spec))
            continue;
        d->is_taken[w->slot] = true;
        return bt_worker_ref(w);
    }
    return NULL;
}

static int make_worker(bt_registry_t *r, const bt_worker_spec_t *spec, bt_worker_t **worker_p,
                       char *err, size_t err_size)
{
    unsigned slot;
    if (bt_slots_take(r->slots, &slot) < 0) {
        snprintf(err, err_size, "more than %u workers", BT_SLOTS_MAX);
        return BT_E_CONFIG;
    }
    if (slot >= r->slot_high)
        r->slot_high = slot + 1;
    int rc = bt_worker_new(worker_p, spec, r->next_id, slot, &r->breaker, err, err_size);
    if (rc < 0) {
        bt_slots_give(r->slots, slot);
        return rc;
    }
    r->next_id++;
    (*worker_p)->on_free = bt_slots_give;
    (*worker_p)->on_free_user = r->slots;
    if (spec->name == NULL) {
        free((*worker_p)->name); /* a new one that nobody has seen; choose_name gives it one */
        (*worker_p)->name = NULL;
    }
    return 0;
}

/* ---- names and checks over the whole draft ---- */

static bt_worker_t *find_named(const draft_t *d, const char *name, const bt_worker_t *except)
{
    for (unsigned i = 0; i < d->pool_count; i++)
        for (unsigned j = 0; j < d->counts[i]; j++) {
            bt_worker_t *w = d->workers[i][j];
            if (w != except && w->name != NULL && strcmp(w->name, name) == 0)
                return w;
        }
    return NULL;
}

/* p0, p1, d0, w0, e0, ...: the lowest number that is free; never an address, clients see it. next: where to go on, per role. */
static int choose_name(const draft_t *d, bt_worker_t *w, unsigned *next)
{
    static const char letters[BT_ROLE_COUNT] = {'p', 'd', 'w', 'e'};
    char name[16];
    do {
        snprintf(name, sizeof name, "%c%u", letters[w->spec.role], next[w->spec.role]++);
    } while (find_named(d, name, w) != NULL);
    w->name = bt_str_dup(bt_str(name));
    return w->name != NULL ? 0 : BT_E_NOMEM;
}

static int choose_names(const draft_t *d)
{
    unsigned next[BT_ROLE_COUNT] = {0};
    for (unsigned i = 0; i < d->pool_count; i++)
        for (unsigned j = 0; j < d->counts[i]; j++)
            if (d->workers[i][j]->name == NULL && choose_name(d, d->workers[i][j], next) < 0)
                return BT_E_NOMEM;
    return 0;
}

static bool is_same_place(const bt_worker_t *a, const bt_worker_t *b)
{
    return a->port == b->port && a->spec.dp_rank == b->spec.dp_rank &&
           strcasecmp(a->host, b->host) == 0 && strcmp(a->base_path, b->base_path) == 0;
}

static bt_worker_t *find_place(bt_worker_t *const *items, unsigned count, const bt_worker_t *w)
{
    for (unsigned i = 0; i < count; i++)
        if (is_same_place(items[i], w))
            return items[i];
    return NULL;
}

static int check_pool_urls(const draft_t *d, unsigned pool, char *err, size_t err_size)
{
    bt_worker_t **items = d->workers[pool];
    for (unsigned i = 0; i < d->counts[pool]; i++)
        for (unsigned j = i + 1; j < d->counts[pool]; j++)
            if (is_same_place(items[i], items[j])) {
                snprintf(err, err_size, "workers %s and %s of pool %s have the same url %s",
                         items[i]->name, items[j]->name, d->pools[pool].name, items[j]->spec.url);
                return BT_E_CONFIG;
            }
    return 0;
}

static int check_names(const draft_t *d, char *err, size_t err_size)
{
    for (unsigned i = 0; i < d->pool_count; i++)
        for (unsigned j = 0; j < d->counts[i]; j++) {
            const bt_worker_t *w = d->workers[i][j], *other = find_named(d, w->name, w);
            if (other == NULL)
                continue;
            snprintf(err, err_size, "two workers are named %s: %s and %s", w->name, w->spec.url,
                     other->spec.url);
            return BT_E_CONFIG;
        }
    return 0;
}

static int check_draft(const draft_t *d, char *err, size_t err_size)
{
    int rc = choose_names(d);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < d->pool_count; i++)
        if ((rc = check_pool_urls(d, i, err, err_size)) < 0)
            return rc;
    return check_names(d, err, err_size);
}

static int check_pools(const bt_pool_spec_t *pools, unsigned count, char *err, size_t err_size)
{
    for (unsigned i = 0; i < count; i++) {
        if (pools[i].name == NULL || pools[i].name[0] == '\0') {
            snprintf(err, err_size, "pool %u has no name", i + 1);
            return BT_E_CONFIG;
        }
        for (unsigned j = 0; j < i; j++)
            if (strcmp(pools[i].name, pools[j].name) == 0) {
                snprintf(err, err_size, "two pools are named %s", pools[i].name);
                return BT_E_CONFIG;
            }
    }
    return 0;
}

/* ---- publishing ---- */

static bool is_in_set(const bt_workers_t *f, const bt_worker_t *w)
{
    for (unsigned i = 0; i < f->pool_count; i++)
        for (unsigned j = 0; j < f->pools[i].all.count; j++)
            if (f->pools[i].all.items[j] == w)
                return true;
    return false;
}

static bool has_name(const bt_workers_t *f, const char *name)
{
    return bt_workers_find(f, bt_str(name)) != NULL;
}

/* Loops that still hold the old snapshot must not choose what is gone. */
static void drain_removed(const bt_workers_t *old, const bt_workers_t *now)
{
    for (unsigned i = 0; i < old->pool_count; i++)
        for (unsigned j = 0; j < old->pools[i].all.count; j++) {
            bt_worker_t *w = old->pools[i].all.items[j];
            if (is_in_set(now, w))
                continue;
            atomic_store(&w->draining, true);
            bt_log_info("cluster", "worker %s %s, its legs finish", w->name,
                        has_name(now, w->name) ? "is replaced" : "removed");
        }
}

static void log_refusals(const draft_t *d)
{
    for (unsigned i = 0; i < d->pool_count; i++)
        for (unsigned j = 0; j < d->counts[i]; j++) {
            const bt_worker_t *w = d->workers[i][j];
            if (w->refusal != NULL && !d->is_taken[w->slot])
                bt_log_error("cluster", "worker %s cannot take part in a pair: %s", w->name,
                             w->refusal);
        }
}

/* Ends the draft in both cases. */
static int publish_draft(bt_registry_t *r, draft_t *d, char *err, size_t err_size)
{
    bt_workers_t *workers;
    int rc = check_draft(d, err, err_size);
    if (rc == 0)
        rc = bt_workers_new(&workers, d->pools, d->stats, d->pool_count,
                            (bt_worker_t *const *const *) d->workers, d->counts);
    if (rc < 0) {
        if (rc == BT_E_NOMEM)
            snprintf(err, err_size, "%s", bt_err_text(rc));
        draft_fini(d);
        return rc;
    }
    log_refusals(d);
    draft_fini(d);
    bt_workers_t *old = r->current;
    workers->epoch = old->epoch + 1;
    workers->slot_count = r->slot_high;
    r->current = workers;
    drain_removed(old, workers);
    bt_workers_changed();
    if (r->publish != NULL)
        r->publish(r->user, workers);
    bt_workers_unref(old);
    return 0;
}

/* ---- the public verbs ---- */

int bt_registry_new(bt_registry_t **registry_p, const bt_breaker_config_t *breaker,
                    bt_registry_publish_cb publish, void *user)
{
    bt_registry_t *r = calloc(1, sizeof *r);
    if (r == NULL)
        return BT_E_NOMEM;
    if (bt_slots_new(&r->slots) < 0 || bt_workers_new(&r->current, NULL, NULL, 0, NULL, NULL) < 0) {
        bt_slots_unref(r->slots);
        free(r);
        return BT_E_NOMEM;
    }
    r->publish = publish;
    r->user = user;
    r->next_id = 1;
    if (breaker != NULL)
        r->breaker = *breaker;
    else
        bt_breaker_config_defaults(&r->breaker);
    *registry_p = r;
    return 0;
}

void bt_registry_free(bt_registry_t *r)
{
    if (r == NULL)
        return;
    bt_workers_unref(r->current);
    bt_slots_unref(r->slots);
    free(r);
}

/* The same engine under another description: what it has registered holds, and until when. */
static void carry_registration(bt_worker_t *fresh, const bt_worker_t *old)
{
    fresh->registered_at_ms = old->registered_at_ms;
    fresh->word_at_ms = old->word_at_ms;
    fresh->is_registered = atomic_load(&old->is_registered);
}

/* Not one of another connector, or of the other role. */
static bool has_word_for(const bt_worker_t *before, const bt_worker_t *now)
{
    return before->registered_at_ms != 0 && before->spec.role == now->spec.role &&
           before->pair_rules.family != NULL && now->pair_rules.family != NULL &&
           strcmp(before->pair_rules.family, now->pair_rules.family) == 0;
}

/* A spec that no old worker has. What stood at its place before has perhaps registered. */
static int make_described(bt_registry_t *r, const bt_worker_spec_t *spec,
                          const bt_worker_pool_t *old, bt_worker_t **worker_p, char *err,
                          size_t err_size)
{
    bt_worker_spec_t said;
    int rc = make_worker(r, spec, worker_p, err, err_size);
    const bt_worker_t *before =
        rc == 0 && old != NULL ? find_place(old->all.items, old->all.count, *worker_p) : NULL;

    if (before == NULL || !has_word_for(before, *worker_p))
        return rc;
    bt_worker_unref(*worker_p);
    if ((rc = bt_worker_spec_copy(&said, spec)) < 0)
        return rc;
    said.registered = before->spec.registered;
    said.registered.is_new = false;
    rc = make_worker(r, &said, worker_p, err, err_size);
    bt_worker_spec_fini(&said);
    if (rc == 0)
        carry_registration(*worker_p, before);
    return rc;
}

/* Those that only their registration has named: no configuration takes them away, only their silence. One whose name the
 * configuration gives to another goes, and comes again with its next heartbeat. */
static void keep_registered(draft_t *d, unsigned pool, const bt_worker_pool_t *old)
{
    for (unsigned i = 0; old != NULL && i < old->all.count; i++) {
        bt_worker_t *w = old->all.items[i];
        if (!w->spec.registered.is_new || find_named(d, w->name, w) != NULL ||
            find_place(d->workers[pool], d->counts[pool], w) != NULL)
            continue;
        d->is_taken[w->slot] = true;
        draft_put(d, pool, bt_worker_ref(w));
    }
}

static int draft_apply(bt_registry_t *r, draft_t *d, const bt_worker_spec_t *const *workers,
                       const unsigned *counts, const bt_pool_spec_t *pools, char *err,
                       size_t err_size)
{
    for (unsigned i = 0; i < d->pool_count; i++) {
        const bt_worker_pool_t *old = find_pool(r->current, pools[i].name);
        int rc = draft_pool(d, i, &pools[i], old, counts[i] + (old != NULL ? old->all.count : 0));
        for (unsigned j = 0; rc == 0 && j < counts[i]; j++) {
            bt_worker_t *w = claim_old(d, old, &workers[i][j]);
            if (w == NULL)
                rc = make_described(r, &workers[i][j], old, &w, err, err_size);
            if (rc == 0)
                draft_put(d, i, w);
        }
        if (rc < 0)
            return rc;
    }
    for (unsigned i = 0; i < d->pool_count; i++)
        keep_registered(d, i, find_pool(r->current, pools[i].name));
    return 0;
}

int bt_registry_apply(bt_registry_t *r, const bt_pool_spec_t *pools, unsigned pool_count,
                      const bt_worker_spec_t *const *workers, const unsigned *worker_counts,
                      char *err, size_t err_size)
{
    draft_t d;
    int rc = check_pools(pools, pool_count, err, err_size);
    if (rc < 0)
        return rc;
    /* New workers take slots above slot_high; only old ones are looked up in is_taken while filling, but log_refusals
     * asks for all: size it for both. */
    unsigned room = r->slot_high;
    for (unsigned i = 0; i < pool_count; i++)
        room += worker_counts[i];
    if ((rc = draft_init(&d, pool_count, room)) < 0)
        return rc;
    rc = draft_apply(r, &d, workers, worker_counts, pools, err, err_size);
    if (rc < 0) {
        draft_fini(&d);
        return rc;
    }
    return publish_draft(r, &d, err, err_size);
}

/* The current state as a draft, without one worker (NULL = all), with room for one more in each pool. */
static int draft_current(bt_registry_t *r, draft_t *d, const bt_worker_t *except)
{
    const bt_workers_t *f = r->current;
    int rc = draft_init(d, f->pool_count, r->slot_high + 1);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < f->pool_count; i++) {
        const bt_worker_pool_t *old = &f->pools[i];
        if ((rc = draft_pool(d, i, &old->spec, old, old->all.count + 1)) < 0) {
            draft_fini(d);
            return rc;
        }
        for (unsigned j = 0; j < old->all.count; j++) {
            bt_worker_t *w = old->all.items[j];
            if (w == except)
                continue;
            d->is_taken[w->slot] = true;
            draft_put(d, i, bt_worker_ref(w));
        }
    }
    return 0;
}

int bt_registry_add(bt_registry_t *r, const char *pool, const bt_worker_spec_t *spec, char *err,
                    size_t err_size)
{
    const bt_worker_pool_t *target = pool != NULL ? find_pool(r->current, pool) : r->current->pools;
    draft_t d;
    bt_worker_t *w;
    if (target == NULL || r->current->pool_count == 0) {
        snprintf(err, err_size, "there is no pool %s", pool != NULL ? pool : "yet");
        return BT_E_INVAL;
    }
    int rc = draft_current(r, &d, NULL);
    if (rc < 0)
        return rc;
    rc = make_worker(r, spec, &w, err, err_size);
    if (rc < 0) {
        draft_fini(&d);
        return rc;
    }
    draft_put(&d, target->index, w);
    return publish_draft(r, &d, err, err_size);
}

static bt_worker_t **draft_find(draft_t *d, const bt_worker_t *w)
{
    for (unsigned i = 0; i < d->pool_count; i++)
        for (unsigned j = 0; j < d->counts[i]; j++)
            if (d->workers[i][j] == w)
                return &d->workers[i][j];
    return NULL;
}

/* Another worker under the old name, as drained as it was. */
static int remake_worker(bt_registry_t *r, const bt_worker_t *w, const bt_worker_spec_t *spec,
                         bt_worker_t **fresh_p, char *err, size_t err_size)
{
    int rc = make_worker(r, spec, fresh_p, err, err_size);

    if (rc < 0)
        return rc;
    if ((*fresh_p)->name == NULL)
        (*fresh_p)->name = bt_str_dup(bt_str(w->name));
    if ((*fresh_p)->name == NULL) {
        bt_worker_unref(*fresh_p);
        return BT_E_NOMEM;
    }
    (*fresh_p)->draining = atomic_load(&w->draining);
    return 0;
}

/* now_p is set before the publication: who is told of the new set may ask for it. */
static int put_in_place(bt_registry_t *r, const bt_worker_t *w, const bt_worker_spec_t *spec,
                        bt_worker_t **now_p, char *err, size_t err_size)
{
    bt_worker_t *fresh, **at;
    draft_t d;
    int rc = draft_current(r, &d, NULL);

    if (rc < 0)
        return rc;
    at = draft_find(&d, w);
    rc = at != NULL ? remake_worker(r, w, spec, &fresh, err, err_size) : BT_E_INVAL;
    if (rc < 0) {
        draft_fini(&d);
        return rc;
    }
    bt_worker_unref(*at);
    *at = *now_p = fresh;
    return publish_draft(r, &d, err, err_size);
}

int bt_registry_replace(bt_registry_t *r, const bt_worker_t *w, const bt_worker_spec_t *spec,
                        char *err, size_t err_size)
{
    bt_worker_t *now;

    return put_in_place(r, w, spec, &now, err, err_size);
}

int bt_registry_take_word(bt_registry_t *r, bt_worker_t *w, const bt_registered_t *said,
                          bt_worker_t **now_p, char *err, size_t err_size)
{
    bt_worker_spec_t spec;
    int rc;

    *now_p = w;
    if (bt_registered_same(said, &w->spec.registered))
        return 0;
    if ((rc = bt_worker_spec_copy(&spec, &w->spec)) < 0)
        return rc;
    spec.registered = *said;
    rc = put_in_place(r, w, &spec, now_p, err, err_size);
    bt_worker_spec_fini(&spec);
    return rc;
}

int bt_registry_remove(bt_registry_t *r, bt_str_t name_or_url)
{
    char err[160];
    const bt_worker_t *w = bt_workers_find(r->current, name_or_url);
    if (w == NULL)
        return BT_E_INVAL;
    while (w != NULL) { /* a url may stand in several pools */
        draft_t d;
        int rc = draft_current(r, &d, w);
        if (rc == 0)
            rc = publish_draft(r, &d, err, sizeof err);
        if (rc < 0)
            return rc;
        w = bt_workers_find(r->current, name_or_url);
    }
    return 0;
}

int bt_registry_drain(bt_registry_t *r, bt_str_t name_or_url, bool draining)
{
    bt_worker_t *w = bt_workers_find(r->current, name_or_url);
    if (w == NULL)
        return BT_E_INVAL;
    if (atomic_exchange(&w->draining, draining) == draining)
        return 0;
    bt_workers_changed();
    bt_log_info("cluster", "worker %s %s", w->name,
                draining ? "drains: no new requests" : "takes requests again");
    return 0;
}

bt_workers_t *bt_registry_current(bt_registry_t *r)
{
    return r->current;
}
