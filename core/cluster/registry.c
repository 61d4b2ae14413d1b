#include "cluster/draft.h"

#include "base/err.h"
#include "base/flight.h"
#include "base/log.h"
#include "cluster/slots.h"
#include "cluster/successor.h"
#include "cluster/worker_index.h"

#include <stdio.h>
#include <stdlib.h>

/* Every change goes the same way: a draft (pools and workers, old objects where nothing changed, new ones elsewhere) is
 * filled and checked aside; only a draft without a fault becomes a snapshot, and only then does the old one go. So a bad
 * configuration leaves no trace, and there is one place that publishes. */

/* ---- workers of a draft ---- */

/* The names that their descriptions give. */
static bool is_same_worker(const bt_worker_t *w, const bt_worker_spec_t *spec)
{
    bool same_name = spec->name == NULL
                         ? w->spec.name == NULL
                         : w->spec.name != NULL && strcmp(spec->name, w->spec.name) == 0;
    return same_name && !bt_successor_is_needed(w, spec);
}

int bt_registry_make_worker(bt_registry_t *r, const bt_worker_spec_t *spec, bt_worker_t **worker_p,
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

/* Marks who is in the set, by slot. */
static bool *mark_set(const bt_workers_t *f)
{
    bool *marks = calloc(f->slot_count + 1, sizeof *marks);

    for (unsigned i = 0; marks != NULL && i < f->pool_count; i++)
        for (unsigned j = 0; j < f->pools[i].all.count; j++)
            marks[f->pools[i].all.items[j]->slot] = true;
    return marks;
}

/* Slots of old and new workers differ: an old one keeps its until it is freed. */
static bool is_removed(const bt_worker_t *w, const bool *marks, unsigned slot_count)
{
    return w->slot >= slot_count || !marks[w->slot];
}

/* names: of the set, once somebody has gone. Loops that still hold the old snapshot must not choose who is gone; but where the same
 * process goes on as another object they may, or a new description of every worker would leave them nobody for a moment. */
static void remove_worker(bt_worker_t *w, const bt_workers_t *now, bt_worker_index_t *names)
{
    const bool has_names = names->cells != NULL || bt_worker_index_names(names, now) == 0;
    const bt_worker_t *next = has_names ? bt_worker_index_find_name(names, w->name) : NULL;
    const bool goes_on = next != NULL && next->succeeds == w->id;

    atomic_store(goes_on ? &w->is_succeeded : &w->draining, true);
    bt_worker_note_service(w);
    bt_log_info("cluster", "worker %s %s, its legs finish", w->name,
                next != NULL ? "is replaced" : "removed");
    bt_flight_note(BT_FLIGHT_WORKER, 0, "%s is %s", w->name, next != NULL ? "replaced" : "removed");
}

static void remove_rest(const bt_workers_t *old, const bt_workers_t *now, const bool *marks)
{
    bt_worker_index_t names = {0};

    for (unsigned i = 0; i < old->pool_count; i++)
        for (unsigned j = 0; j < old->pools[i].all.count; j++)
            if (is_removed(old->pools[i].all.items[j], marks, now->slot_count))
                remove_worker(old->pools[i].all.items[j], now, &names);
    bt_worker_index_fini(&names);
}

static void log_refusals(const bt_draft_t *d)
{
    for (unsigned i = 0; i < d->pool_count; i++)
        for (unsigned j = 0; j < d->counts[i]; j++) {
            const bt_worker_t *w = d->workers[i][j];
            if (w->refusal != NULL && !d->is_taken[w->slot])
                bt_log_error("cluster", "worker %s cannot take part in a pair: %s", w->name,
                             w->refusal);
        }
}

/* New ones, which no other thread knows yet; a worker stays in its pool for life. */
static void join_pools(const bt_draft_t *d)
{
    for (unsigned i = 0; i < d->pool_count; i++)
        for (unsigned j = 0; j < d->counts[i]; j++) {
            bt_worker_t *w = d->workers[i][j];
            if (w->breaker.group != NULL)
                continue;
            bt_breaker_join(&w->breaker, d->stats[i]->breakers[w->spec.role]);
            bt_worker_note_service(w);
        }
}

/* Ends the draft in both cases. */
int bt_registry_publish(bt_registry_t *r, bt_draft_t *d, char *err, size_t err_size)
{
    bt_workers_t *workers = NULL;
    bool *marks = NULL;
    int rc = bt_draft_check(d, err, err_size);
    if (rc == 0)
        rc = bt_workers_new(&workers, d->pools, d->stats, d->pool_count,
                            (bt_worker_t *const *const *) d->workers, d->counts);
    if (rc == 0) {
        workers->slot_count = r->slot_high;
        marks = mark_set(workers);
        rc = marks != NULL ? 0 : BT_E_NOMEM;
    }
    if (rc < 0) {
        bt_workers_unref(workers);
        free(marks);
        if (rc == BT_E_NOMEM)
            snprintf(err, err_size, "%s", bt_err_text(rc));
        bt_draft_fini(d);
        return rc;
    }
    log_refusals(d);
    bt_draft_set_sources(d);
    bt_workers_t *old = r->current;
    workers->epoch = old->epoch + 1;
    r->current = workers;
    remove_rest(old, workers, marks);
    join_pools(d); /* now: a breaker that is open takes its predecessor's place in the group */
    bt_draft_fini(d);
    free(marks);
    bt_workers_changed();
    if (r->publish != NULL)
        r->publish(r->user, workers);
    bt_workers_unref(old);
    return 0;
}

const bt_worker_pool_t *bt_registry_find_pool(const bt_workers_t *f, const char *name)
{
    for (unsigned i = 0; i < f->pool_count; i++)
        if (strcmp(f->pools[i].spec.name, name) == 0)
            return &f->pools[i];
    return NULL;
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

/* Who stands there and was not claimed by an earlier description; NULL: nobody. A url that cannot be read is refused later. */
static bt_worker_t *find_before(const bt_draft_t *d, const bt_worker_index_t *places,
                                const bt_worker_spec_t *spec)
{
    char ignored[160];
    bt_worker_t *w;

    if (bt_worker_index_find_spec(places, spec, &w, ignored, sizeof ignored) < 0 || w == NULL)
        return NULL;
    return d->is_taken[w->slot] ? NULL : w;
}

/* A worker of the configuration: the one that is there already, as it is or by another description, or a new one. One that only its
 * registration has named becomes another one: it is the configuration's from now on. */
static int apply_worker(bt_registry_t *r, bt_draft_t *d, unsigned pool,
                        const bt_worker_index_t *places, const bt_worker_spec_t *spec, char *err,
                        size_t err_size)
{
    bt_worker_t *before = find_before(d, places, spec), *w;
    int rc;

    if (before != NULL && !before->spec.registered.is_new && is_same_worker(before, spec)) {
        bt_draft_keep(d, pool, before,
                      atomic_load(&before->sources) | BT_NAMED_BIT(BT_NAMED_CONFIG));
        return 0;
    }
    rc = bt_successor_make(r, BT_SUCCESSOR_DESCRIBED, spec, before, &w, err, err_size);
    if (rc < 0)
        return rc;
    if (before != NULL)
        d->is_taken[before->slot] = true;
    if (w->said != NULL) /* a name tells of the role that it had at first */
        rc = bt_successor_keep_name(w, before);
    bt_draft_put(d, pool, w, atomic_load(&w->sources) | BT_NAMED_BIT(BT_NAMED_CONFIG));
    return rc;
}

static bool is_name_taken(const bt_draft_t *d, const char *name)
{
    for (unsigned i = 0; i < d->pool_count; i++)
        for (unsigned j = 0; j < d->counts[i]; j++)
            if (d->workers[i][j]->name != NULL && strcmp(d->workers[i][j]->name, name) == 0)
                return true;
    return false;
}

/* What others name in a pool that stays. One that only its registration has named, and whose name the configuration gives to
 * another, goes, and comes again with its next heartbeat. */
static void keep_others(bt_draft_t *d, unsigned pool, const bt_worker_pool_t *old)
{
    for (unsigned i = 0; old != NULL && i < old->all.count; i++) {
        bt_worker_t *w = old->all.items[i];
        const unsigned others = atomic_load(&w->sources) & ~BT_NAMED_BIT(BT_NAMED_CONFIG);
        const bool goes = w->spec.registered.is_new && is_name_taken(d, w->name);
        if (!d->is_taken[w->slot] && others != 0 && !goes)
            bt_draft_keep(d, pool, w, others);
    }
}

static int draft_apply(bt_registry_t *r, bt_draft_t *d, const bt_worker_spec_t *const *workers,
                       const unsigned *counts, const bt_pool_spec_t *pools, char *err,
                       size_t err_size)
{
    for (unsigned i = 0; i < d->pool_count; i++) {
        const bt_worker_pool_t *old = bt_registry_find_pool(r->current, pools[i].name);
        const unsigned others = old != NULL ? old->all.count : 0;
        bt_worker_index_t places = {0};
        int rc = bt_worker_index_places(&places, old != NULL ? old->all.items : NULL, others, 0);
        if (rc == 0)
            rc = bt_draft_pool(d, i, &pools[i], old, counts[i] + others);
        for (unsigned j = 0; rc == 0 && j < counts[i]; j++)
            rc = apply_worker(r, d, i, &places, &workers[i][j], err, err_size);
        bt_worker_index_fini(&places);
        if (rc < 0)
            return rc;
    }
    for (unsigned i = 0; i < d->pool_count; i++)
        keep_others(d, i, bt_registry_find_pool(r->current, pools[i].name));
    return 0;
}

int bt_registry_apply(bt_registry_t *r, const bt_pool_spec_t *pools, unsigned pool_count,
                      const bt_worker_spec_t *const *workers, const unsigned *worker_counts,
                      char *err, size_t err_size)
{
    bt_draft_t d;
    int rc = check_pools(pools, pool_count, err, err_size);
    if (rc < 0)
        return rc;
    /* New workers take slots above slot_high; only old ones are looked up in is_taken while filling, but log_refusals
     * asks for all: size it for both. */
    unsigned room = r->slot_high;
    for (unsigned i = 0; i < pool_count; i++)
        room += worker_counts[i];
    if ((rc = bt_draft_init(&d, pool_count, room)) < 0)
        return rc;
    rc = draft_apply(r, &d, workers, worker_counts, pools, err, err_size);
    if (rc < 0) {
        bt_draft_fini(&d);
        return rc;
    }
    return bt_registry_publish(r, &d, err, err_size);
}

/* The current state as a draft, without one worker (NULL = all), with room for one more in each pool. */
static int draft_current(bt_registry_t *r, bt_draft_t *d, const bt_worker_t *except)
{
    const bt_workers_t *f = r->current;
    int rc = bt_draft_init(d, f->pool_count, r->slot_high + 1);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < f->pool_count; i++) {
        const bt_worker_pool_t *old = &f->pools[i];
        if ((rc = bt_draft_pool(d, i, &old->spec, old, old->all.count + 1)) < 0) {
            bt_draft_fini(d);
            return rc;
        }
        for (unsigned j = 0; j < old->all.count; j++) {
            bt_worker_t *w = old->all.items[j];
            if (w != except)
                bt_draft_keep(d, i, w, atomic_load(&w->sources));
        }
    }
    return 0;
}

/* Who is there, where nobody gave their word for it by hand. A url that cannot be read is refused later. */
static int find_found(const bt_worker_pool_t *pool, const bt_worker_spec_t *spec,
                      bt_worker_t **found_p)
{
    bt_worker_index_t places = {0};
    char ignored[160];
    bt_worker_t *w = NULL;
    int rc = bt_worker_index_places(&places, pool->all.items, pool->all.count, 0);

    if (rc == 0)
        (void) bt_worker_index_find_spec(&places, spec, &w, ignored, sizeof ignored);
    bt_worker_index_fini(&places);
    *found_p = w != NULL && (atomic_load(&w->sources) & ~BT_NAMED_FOUND) == 0 ? w : NULL;
    return rc;
}

int bt_registry_add(bt_registry_t *r, const char *pool, const bt_worker_spec_t *spec, char *err,
                    size_t err_size)
{
    const bt_worker_pool_t *target =
        pool != NULL ? bt_registry_find_pool(r->current, pool) : r->current->pools;
    bt_worker_t *before, *w;
    bt_draft_t d;
    if (target == NULL || r->current->pool_count == 0) {
        snprintf(err, err_size, "there is no pool %s", pool != NULL ? pool : "yet");
        return BT_E_INVAL;
    }
    const enum bt_source source = spec->registered.is_new ? BT_NAMED_ENGINE : BT_NAMED_API;
    const enum bt_successor_by by =
        source == BT_NAMED_API ? BT_SUCCESSOR_ADDED : BT_SUCCESSOR_DESCRIBED;
    int rc = find_found(target, spec, &before);
    if (rc == 0)
        rc = bt_successor_make(r, by, spec, before, &w, err, err_size);
    if (rc < 0)
        return rc;
    rc = before != NULL ? bt_successor_keep_name(w, before) : 0;
    if (rc < 0 || (rc = draft_current(r, &d, before)) < 0) {
        bt_worker_unref(w);
        return rc;
    }
    bt_draft_put(&d, target->index, w, atomic_load(&w->sources) | BT_NAMED_BIT(source));
    return bt_registry_publish(r, &d, err, err_size);
}

static bt_worker_t **draft_find(bt_draft_t *d, const bt_worker_t *w)
{
    for (unsigned i = 0; i < d->pool_count; i++)
        for (unsigned j = 0; j < d->counts[i]; j++)
            if (d->workers[i][j] == w)
                return &d->workers[i][j];
    return NULL;
}

/* now_p is set before the publication: who is told of the new set may ask for it. */
static int put_in_place(bt_registry_t *r, enum bt_successor_by by, const bt_worker_t *w,
                        const bt_worker_spec_t *spec, bt_worker_t **now_p, char *err,
                        size_t err_size)
{
    bt_worker_t *fresh = NULL, **at;
    bt_draft_t d;
    int rc = draft_current(r, &d, NULL);

    if (rc < 0)
        return rc;
    at = draft_find(&d, w);
    rc = at != NULL ? bt_successor_make(r, by, spec, w, &fresh, err, err_size) : BT_E_INVAL;
    if (rc == 0)
        rc = bt_successor_keep_name(fresh, w);
    if (rc < 0) {
        bt_worker_unref(fresh);
        bt_draft_fini(&d);
        return rc;
    }
    bt_worker_unref(*at);
    *at = *now_p = fresh;
    return bt_registry_publish(r, &d, err, err_size);
}

/* ---- what is taken back ---- */

/* The word that an operator can take back. */
static unsigned removable(const bt_worker_t *w)
{
    static const enum bt_source order[] = {BT_NAMED_API, BT_NAMED_CONFIG, BT_NAMED_ENGINE};
    const unsigned sources = atomic_load(&w->sources);

    for (unsigned i = 0; i < sizeof order / sizeof order[0]; i++)
        if ((sources & BT_NAMED_BIT(order[i])) != 0)
            return BT_NAMED_BIT(order[i]);
    return 0;
}

/* words: those that are taken back of all that the key names, 0 = the removable one. A url may stand in several pools, a name is one. */
static int unname(bt_registry_t *r, bt_str_t key, unsigned words)
{
    char err[160];
    const bt_worker_t *first = bt_workers_find(r->current, key);
    bt_draft_t d;
    int rc = first != NULL ? draft_current(r, &d, NULL) : BT_E_INVAL;
    if (rc < 0)
        return rc;
    const bool is_name = bt_str_eq(key, bt_str(first->name));
    for (unsigned i = 0; i < d.pool_count; i++) {
        unsigned left = 0;
        for (unsigned j = 0; j < d.counts[i]; j++) {
            bt_worker_t *w = d.workers[i][j];
            unsigned sources = d.sources[i][j];
            if (w == first || (!is_name && bt_worker_same_place(w, first)))
                sources &= ~(words != 0 ? words : removable(w));
            d.workers[i][left] = w;
            d.sources[i][left] = sources;
            if (sources != 0)
                left++;
            else
                bt_worker_unref(w);
        }
        d.counts[i] = left;
    }
    return bt_registry_publish(r, &d, err, sizeof err);
}

int bt_registry_unname(bt_registry_t *r, bt_str_t name_or_url, enum bt_source source)
{
    return unname(r, name_or_url, BT_NAMED_BIT(source));
}

int bt_registry_replace(bt_registry_t *r, const bt_worker_t *w, const bt_worker_spec_t *spec,
                        char *err, size_t err_size)
{
    bt_worker_t *now;

    return put_in_place(r, BT_SUCCESSOR_SWITCHED, w, spec, &now, err, err_size);
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
    rc = put_in_place(r, BT_SUCCESSOR_REGISTERED, w, &spec, now_p, err, err_size);
    bt_worker_spec_fini(&spec);
    return rc;
}

int bt_registry_remove(bt_registry_t *r, bt_str_t name_or_url)
{
    return unname(r, name_or_url, 0);
}

int bt_registry_drain(bt_registry_t *r, bt_str_t name_or_url, bool draining)
{
    bt_worker_t *w = bt_workers_find(r->current, name_or_url);
    if (w == NULL)
        return BT_E_INVAL;
    if (atomic_exchange(&w->draining, draining) == draining)
        return 0;
    bt_worker_note_service(w);
    bt_workers_changed();
    bt_log_info("cluster", "worker %s %s", w->name,
                draining ? "drains: no new requests" : "takes requests again");
    bt_flight_note(BT_FLIGHT_WORKER, 0, "%s %s", w->name,
                   draining ? "drains" : "takes requests again");
    return 0;
}

bt_workers_t *bt_registry_current(bt_registry_t *r)
{
    return r->current;
}
