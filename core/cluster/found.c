/* The source gives its whole list each time. A worker that it alone names is made anew where its description has changed; one that
 * others name too stays as they describe it. */
#include "cluster/draft.h"

#include "base/err.h"
#include "cluster/url.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct finding {
    bt_registry_t *r;
    enum bt_source source;
    bt_draft_t d;
    bt_worker_t ***places; /* by pool: the old workers, by place */
    bool has_changed;      /* the set; sources alone are no new snapshot */
    char *err;
    size_t err_size;
} finding_t;

static int finding_init(finding_t *f, unsigned count)
{
    const bt_workers_t *now = f->r->current;
    int rc = bt_draft_init(&f->d, now->pool_count, f->r->slot_high + count);
    if (rc < 0)
        return rc;
    f->places = calloc(now->pool_count + 1, sizeof(bt_worker_t **));
    rc = f->places != NULL ? 0 : BT_E_NOMEM;
    for (unsigned i = 0; i < now->pool_count && rc == 0; i++) {
        const bt_worker_pool_t *old = &now->pools[i];
        f->places[i] = bt_places_sort(old->all.items, old->all.count);
        rc = f->places[i] != NULL ? bt_draft_pool(&f->d, i, &old->spec, old, old->all.count + count)
                                  : BT_E_NOMEM;
    }
    return rc;
}

static void finding_fini(finding_t *f)
{
    for (unsigned i = 0; f->places != NULL && i < f->r->current->pool_count; i++)
        free(f->places[i]);
    free(f->places);
}

/* The old worker at the place of a description. */
static int find_old(finding_t *f, const bt_worker_pool_t *pool, const bt_worker_spec_t *spec,
                    bt_worker_t **old_p)
{
    char why[160];
    bt_url_t url;
    int rc = bt_url_parse(&url, bt_str(spec->url), why, sizeof why);
    if (rc < 0)
        return rc == BT_E_NOMEM
                   ? rc
                   : bt_err_refuse(f->err, f->err_size, "worker url \"%s\": %s", spec->url, why);
    const bt_worker_t place = {.host = url.host,
                               .port = url.port,
                               .base_path = url.base_path,
                               .spec.dp_rank = spec->dp_rank >= 0 ? spec->dp_rank : url.rank};
    *old_p = bt_places_find(f->places[pool->index], pool->all.count, &place);
    bt_url_fini(&url);
    return 0;
}

static bool is_as_said(const bt_worker_t *w, const bt_worker_spec_t *spec)
{
    return bt_worker_spec_same(&w->spec, spec) &&
           (spec->name == NULL || strcmp(spec->name, w->name) == 0);
}

static int put_found(finding_t *f, const bt_worker_pool_t *pool, const bt_worker_spec_t *spec)
{
    bt_worker_t *w, *old;
    int rc = find_old(f, pool, spec, &old);
    if (rc < 0)
        return rc;
    if (old != NULL && f->d.is_taken[old->slot])
        return bt_err_refuse(f->err, f->err_size, "two workers have the same url %s", spec->url);
    const unsigned others = old != NULL ? atomic_load(&old->sources) & ~BT_NAMED_BIT(f->source) : 0;
    if (old != NULL && (others != 0 || is_as_said(old, spec))) {
        bt_draft_keep(&f->d, pool->index, old, others | BT_NAMED_BIT(f->source));
        return 0;
    }
    f->has_changed = true;
    if ((rc = bt_registry_make_worker(f->r, spec, &w, f->err, f->err_size)) < 0)
        return rc;
    if (old != NULL) {
        f->d.is_taken[old->slot] = true;
        rc = bt_registry_keep_registration(f->r, spec, old, &w, f->err, f->err_size);
        bt_draft_carry_switch(w, old);
        bt_draft_carry_health(w, old);
        if (rc == 0)
            rc = bt_draft_take_over(w, old);
    }
    bt_draft_put(&f->d, pool->index, w, BT_NAMED_BIT(f->source));
    return rc;
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
    int rc = finding_init(f, count);
    for (unsigned i = 0; i < count && rc == 0; i++) {
        const bt_worker_pool_t *pool =
            found[i].pool != NULL ? bt_registry_find_pool(now, found[i].pool) : now->pools;
        if (pool == NULL)
            rc = bt_err_refuse(f->err, f->err_size, "worker %s: there is no pool %s",
                               found[i].spec.url, found[i].pool);
        else
            rc = put_found(f, pool, &found[i].spec);
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
