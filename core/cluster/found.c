/* A source gives its whole list each time, or only what has changed of it. A worker that it alone names is made anew where its description
 * has changed; one that others name too stays as they describe it. */
#include "cluster/draft.h"

#include "base/err.h"
#include "cluster/successor.h"
#include "cluster/worker_index.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct finding {
    bt_registry_t *r;
    enum bt_source source;
    bt_draft_t d;
    bt_worker_index_t *places; /* by pool: the old workers */
    bool has_changed;          /* the set; sources alone are no new snapshot */
    char *err;
    size_t err_size;
} finding_t;

static int finding_init(finding_t *f, unsigned count)
{
    const bt_workers_t *now = f->r->current;
    int rc = bt_draft_init(&f->d, now->pool_count, f->r->slot_high + count);
    if (rc < 0)
        return rc;
    f->places = calloc(now->pool_count + 1, sizeof *f->places);
    rc = f->places != NULL ? 0 : BT_E_NOMEM;
    for (unsigned i = 0; i < now->pool_count && rc == 0; i++) {
        const bt_worker_pool_t *old = &now->pools[i];
        rc = bt_worker_index_places(&f->places[i], old->all.items, old->all.count, count);
        if (rc == 0)
            rc = bt_draft_pool(&f->d, i, &old->spec, old, old->all.count + count);
    }
    return rc;
}

static void finding_fini(finding_t *f)
{
    for (unsigned i = 0; f->places != NULL && i < f->r->current->pool_count; i++)
        bt_worker_index_fini(&f->places[i]);
    free(f->places);
}

/* The old worker at the place of a description. */
static int find_old(finding_t *f, const bt_worker_pool_t *pool, const bt_worker_spec_t *spec,
                    bt_worker_t **old_p)
{
    char why[160];
    int rc = bt_worker_index_find_spec(&f->places[pool->index], spec, old_p, why, sizeof why);

    return rc == 0 || rc == BT_E_NOMEM
               ? rc
               : bt_err_refuse(f->err, f->err_size, "worker url \"%s\": %s", spec->url, why);
}

static bool is_as_said(const bt_worker_t *w, const bt_worker_spec_t *spec)
{
    return !bt_successor_is_needed(w, spec) &&
           (spec->name == NULL || strcmp(spec->name, w->name) == 0);
}

/* old: who is at its place, or NULL; who else names it describes it. Refused: nothing is put. */
static int put_described(finding_t *f, const bt_worker_pool_t *pool, const bt_worker_spec_t *spec,
                         bt_worker_t *old, bool has_ended)
{
    bt_worker_t *w;
    const unsigned others = old != NULL ? atomic_load(&old->sources) & ~BT_NAMED_BIT(f->source) : 0;
    if (old != NULL && !has_ended && (others != 0 || is_as_said(old, spec))) {
        bt_draft_keep(&f->d, pool->index, old, others | BT_NAMED_BIT(f->source));
        return 0;
    }
    int rc = bt_successor_make(f->r, has_ended ? BT_SUCCESSOR_ENDED : BT_SUCCESSOR_DESCRIBED,
                               others != 0 ? bt_successor_said_of(old) : spec, old, &w, f->err,
                               f->err_size);
    if (rc < 0)
        return rc;
    f->has_changed = true;
    if (old != NULL) {
        f->d.is_taken[old->slot] = true;
        rc = bt_successor_keep_name(w, old);
    }
    if (old != NULL && has_ended)
        atomic_store(&old->has_ended, true);
    if (has_ended && others == 0) /* whoever drained it meant the one that has ended */
        atomic_store(&w->draining, false);
    bt_draft_put(&f->d, pool->index, w, others | BT_NAMED_BIT(f->source));
    return rc;
}

static int refuse_twice(const finding_t *f, const bt_worker_spec_t *spec)
{
    return bt_err_refuse(f->err, f->err_size, "two workers have the same url %s", spec->url);
}

static int find_place(finding_t *f, const bt_found_t *found, const bt_worker_pool_t **pool_p,
                      bt_worker_t **old_p)
{
    const bt_workers_t *now = f->r->current;

    *pool_p = found->pool != NULL   ? bt_registry_find_pool(now, found->pool)
              : now->pool_count > 0 ? now->pools
                                    : NULL;
    if (*pool_p == NULL)
        return bt_err_refuse(f->err, f->err_size, "worker %s: there is no pool %s", found->spec.url,
                             found->pool != NULL ? found->pool : "yet");
    return find_old(f, *pool_p, &found->spec, old_p);
}

/* Those that it does not name, or no longer. */
static void keep_rest(finding_t *f, const bt_worker_pool_t *pool)
{
    for (unsigned i = 0; i < pool->all.count; i++) {
        bt_worker_t *w = pool->all.items[i];
        const unsigned others = atomic_load(&w->sources) & ~BT_NAMED_BIT(f->source);
        if (f->d.is_taken[w->slot])
            continue;
        if (others != 0)
            bt_draft_keep(&f->d, pool->index, w, others);
        else
            f->has_changed = true;
    }
}

static int draft_found(finding_t *f, const bt_found_t *found, unsigned count)
{
    const bt_workers_t *now = f->r->current;
    const bt_worker_pool_t *pool;
    bt_worker_t *old;
    int rc = finding_init(f, count);
    for (unsigned i = 0; i < count && rc == 0; i++) {
        if ((rc = find_place(f, &found[i], &pool, &old)) < 0)
            break;
        rc = old != NULL && f->d.is_taken[old->slot]
                 ? refuse_twice(f, &found[i].spec)
                 : put_described(f, pool, &found[i].spec, old, false);
    }
    for (unsigned i = 0; i < now->pool_count && rc == 0; i++)
        keep_rest(f, &now->pools[i]);
    finding_fini(f);
    return rc;
}

int bt_registry_set_found(bt_registry_t *r, enum bt_source source, const bt_found_t *found,
                          unsigned count, char *err, size_t err_size)
{
    finding_t f = {.r = r, .source = source, .err = err, .err_size = err_size};
    int rc;

    err[0] = '\0';
    rc = draft_found(&f, found, count);
    if (rc == 0 && f.has_changed)
        return bt_registry_publish(r, &f.d, err, err_size);
    if (rc == 0)
        bt_draft_set_sources(&f.d);
    else if (rc == BT_E_NOMEM)
        snprintf(err, err_size, "%s", bt_err_text(rc));
    bt_draft_fini(&f.d);
    return rc;
}

/* ---- what has changed ---- */

/* Nobody else knows why it was refused, so it is said at the change; no memory ends it all. */
static int refuse_change(finding_t *f, bt_found_change_t *c, int rc)
{
    if (rc == BT_E_NOMEM)
        return rc;
    c->rc = rc;
    snprintf(c->why, sizeof c->why, "%s", f->err);
    return 0;
}

typedef struct change_place {
    const bt_worker_pool_t *pool; /* NULL: the change was refused */
    bt_worker_t *old;
} change_place_t;

/* Marks those whom a change is about. */
static int find_places(finding_t *f, bt_found_change_t *changes, unsigned count,
                       change_place_t *places)
{
    int rc = 0;

    for (unsigned i = 0; i < count && rc == 0; i++) {
        change_place_t *p = &places[i];
        changes[i].rc = 0;
        rc = find_place(f, &changes[i].found, &p->pool, &p->old);
        if (rc == 0 && p->old != NULL && f->d.is_taken[p->old->slot])
            rc = refuse_twice(f, &changes[i].found.spec);
        if (rc < 0) {
            p->pool = NULL;
            rc = refuse_change(f, &changes[i], rc);
        } else if (p->old != NULL) {
            f->d.is_taken[p->old->slot] = true;
        }
    }
    return rc;
}

static void keep_as_it_is(finding_t *f, const change_place_t *p)
{
    if (p->old != NULL)
        bt_draft_keep(&f->d, p->pool->index, p->old, atomic_load(&p->old->sources));
}

static void forget(finding_t *f, const change_place_t *p, bool has_ended)
{
    const unsigned sources = p->old != NULL ? atomic_load(&p->old->sources) : 0;
    const unsigned others = sources & ~BT_NAMED_BIT(f->source);

    if (others != 0)
        bt_draft_keep(&f->d, p->pool->index, p->old, others);
    else if (sources != 0)
        f->has_changed = true;
    if (others == 0 && sources != 0 && has_ended)
        atomic_store(&p->old->has_ended, true);
}

/* All others are as they were, so only one with a name of its own can have another's, and only a place that is new in the set can be
 * said twice. */
static int put_changed(finding_t *f, const change_place_t *p, const bt_found_change_t *c)
{
    const bt_worker_spec_t *spec = &c->found.spec;
    bt_draft_t *d = &f->d;
    const unsigned i = p->pool->index, before = d->counts[i];
    int rc = put_described(f, p->pool, spec, p->old, c->has_ended);

    d->is_sound &= spec->name == NULL;
    if (rc < 0 || p->old != NULL || d->counts[i] == before ||
        bt_worker_index_put_place(&f->places[i], d->workers[i][before]) == NULL)
        return rc;
    bt_worker_unref(d->workers[i][--d->counts[i]]);
    return refuse_twice(f, spec);
}

static int draft_changes(finding_t *f, bt_found_change_t *changes, unsigned count,
                         change_place_t *places)
{
    const bt_workers_t *now = f->r->current;
    int rc = finding_init(f, count);

    f->d.is_sound = true;
    if (rc == 0)
        rc = find_places(f, changes, count, places);
    for (unsigned i = 0; i < now->pool_count && rc == 0; i++)
        for (unsigned j = 0; j < now->pools[i].all.count; j++) {
            bt_worker_t *w = now->pools[i].all.items[j];
            if (!f->d.is_taken[w->slot])
                bt_draft_keep(&f->d, i, w, atomic_load(&w->sources));
        }
    for (unsigned i = 0; i < count && rc == 0; i++) {
        if (places[i].pool == NULL)
            continue;
        if (changes[i].is_gone) {
            forget(f, &places[i], changes[i].has_ended);
            continue;
        }
        rc = put_changed(f, &places[i], &changes[i]);
        if (rc < 0 && (rc = refuse_change(f, &changes[i], rc)) == 0)
            keep_as_it_is(f, &places[i]);
    }
    finding_fini(f);
    return rc;
}

static int change_together(bt_registry_t *r, enum bt_source source, bt_found_change_t *changes,
                           unsigned count)
{
    char err[BT_FOUND_WHY_BYTES] = "";
    finding_t f = {.r = r, .source = source, .err = err, .err_size = sizeof err};
    change_place_t *places = calloc(count + 1, sizeof *places);
    int rc = places != NULL ? draft_changes(&f, changes, count, places) : BT_E_NOMEM;

    free(places);
    if (rc == 0 && f.has_changed) {
        rc = bt_registry_publish(r, &f.d, err, sizeof err);
        if (rc < 0 && count == 1)
            rc = refuse_change(&f, changes, rc);
        return rc;
    }
    if (rc == 0)
        bt_draft_set_sources(&f.d);
    bt_draft_fini(&f.d);
    return rc;
}

int bt_registry_change_found(bt_registry_t *r, enum bt_source source, bt_found_change_t *changes,
                             unsigned count)
{
    int rc = change_together(r, source, changes, count);

    if (rc != BT_E_CONFIG)
        return rc;
    /* Two of one name, say. One by one, so that it is known which. */
    rc = 0;
    for (unsigned i = 0; i < count && rc == 0; i++)
        rc = change_together(r, source, &changes[i], 1);
    return rc;
}
