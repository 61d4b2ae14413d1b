/* Names and places are looked up in sorted arrays: a draft is made at each change, also where thousands of workers come at once. */
#include "cluster/draft.h"

#include "base/clock.h"
#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- drafts ---- */

void bt_draft_fini(bt_draft_t *d)
{
    for (unsigned i = 0; i < d->pool_count; i++) {
        for (unsigned j = 0; d->workers != NULL && d->workers[i] != NULL && j < d->counts[i]; j++)
            bt_worker_unref(d->workers[i][j]);
        if (d->workers != NULL)
            free(d->workers[i]);
        if (d->sources != NULL)
            free(d->sources[i]);
        if (d->stats != NULL)
            bt_pool_stat_unref(d->stats[i]);
    }
    free(d->workers);
    free(d->sources);
    free(d->counts);
    free(d->stats);
    free(d->pools);
    free(d->is_taken);
    *d = (bt_draft_t){0};
}

int bt_draft_init(bt_draft_t *d, unsigned pool_count, unsigned slot_high)
{
    *d = (bt_draft_t){.pool_count = pool_count};
    d->pools = calloc(pool_count + 1, sizeof *d->pools);
    d->stats = calloc(pool_count + 1, sizeof(bt_pool_stat_t *));
    d->workers = calloc(pool_count + 1, sizeof(bt_worker_t **));
    d->sources = calloc(pool_count + 1, sizeof(unsigned *));
    d->counts = calloc(pool_count + 1, sizeof *d->counts);
    d->is_taken = calloc(slot_high + 1, sizeof *d->is_taken);
    if (d->pools != NULL && d->stats != NULL && d->workers != NULL && d->sources != NULL &&
        d->counts != NULL && d->is_taken != NULL)
        return 0;
    bt_draft_fini(d);
    return BT_E_NOMEM;
}

/* Room for count workers; the pool's running averages go on. */
int bt_draft_pool(bt_draft_t *d, unsigned i, const bt_pool_spec_t *spec,
                  const bt_worker_pool_t *old, unsigned count)
{
    d->pools[i] = *spec;
    d->workers[i] = calloc(count + 1, sizeof(bt_worker_t *));
    d->sources[i] = calloc(count + 1, sizeof *d->sources[i]);
    if (old != NULL) {
        d->stats[i] = old->stat;
        atomic_fetch_add(&old->stat->refs, 1);
    } else {
        d->stats[i] = bt_pool_stat_new();
    }
    return d->workers[i] != NULL && d->sources[i] != NULL && d->stats[i] != NULL ? 0 : BT_E_NOMEM;
}

void bt_draft_put(bt_draft_t *d, unsigned pool, bt_worker_t *w, unsigned sources)
{
    d->sources[pool][d->counts[pool]] = sources;
    d->workers[pool][d->counts[pool]++] = w;
}

/* An old worker as it is. */
void bt_draft_keep(bt_draft_t *d, unsigned pool, bt_worker_t *w, unsigned sources)
{
    d->is_taken[w->slot] = true;
    bt_draft_put(d, pool, bt_worker_ref(w), sources);
}

/* The same worker by another description: who names it, and since when. */
void bt_draft_inherit(bt_worker_t *fresh, const bt_worker_t *old)
{
    atomic_store(&fresh->sources, atomic_load(&old->sources));
    for (unsigned i = 0; i < BT_NAMED_COUNT; i++)
        atomic_store(&fresh->named_ms[i], atomic_load(&old->named_ms[i]));
    atomic_store(&fresh->draining, atomic_load(&old->draining));
}

/* An engine that is asked for another role may have taken it: no description says which it has. */
void bt_draft_carry_switch(bt_worker_t *fresh, const bt_worker_t *old)
{
    const int state = atomic_load(&old->switching);

    if (state == BT_SWITCH_ASKING || state == BT_SWITCH_UNKNOWN)
        atomic_store(&fresh->switching, BT_SWITCH_UNKNOWN);
}

/* A label, a weight or a zone is no reason to take an engine that serves out until it is checked again. */
void bt_draft_carry_health(bt_worker_t *fresh, bt_worker_t *old)
{
    struct sockaddr_storage addr;

    if (fresh->spec.role != old->spec.role || fresh->engine != old->engine ||
        atomic_load(&old->health) != BT_HEALTH_UP)
        return;
    if (!atomic_load(&fresh->has_addr) && bt_worker_get_addr(old, &addr))
        bt_worker_set_addr(fresh, &addr);
    atomic_store(&fresh->health, BT_HEALTH_UP);
}

static void set_sources(bt_worker_t *w, unsigned sources, uint64_t wall_ms)
{
    for (unsigned i = 0; i < BT_NAMED_COUNT; i++) {
        const bool is_named = (sources & BT_NAMED_BIT(i)) != 0;
        if (!is_named)
            atomic_store(&w->named_ms[i], 0);
        else if (atomic_load(&w->named_ms[i]) == 0)
            atomic_store(&w->named_ms[i], wall_ms);
    }
    atomic_store(&w->sources, sources);
}

void bt_draft_set_sources(const bt_draft_t *d)
{
    const uint64_t wall_ms = bt_clock_wall_ms();

    for (unsigned i = 0; i < d->pool_count; i++)
        for (unsigned j = 0; j < d->counts[i]; j++)
            set_sources(d->workers[i][j], d->sources[i][j], wall_ms);
}

/* Under the old name where the new description gives none. */
int bt_draft_take_over(bt_worker_t *fresh, const bt_worker_t *old)
{
    bt_draft_inherit(fresh, old);
    if (fresh->name == NULL)
        fresh->name = bt_str_dup(bt_str(old->name));
    return fresh->name != NULL ? 0 : BT_E_NOMEM;
}

/* ---- names and checks over the whole draft ---- */

static int by_name(const void *a, const void *b)
{
    const bt_worker_t *x = *(bt_worker_t *const *) a, *y = *(bt_worker_t *const *) b;
    const int order = strcmp(x->name, y->name);

    return order != 0 ? order : x->id < y->id ? -1 : x->id > y->id;
}

static int name_compare(const void *key, const void *at)
{
    return strcmp(key, (*(bt_worker_t *const *) at)->name);
}

/* Those that have a name, by name; the array is the caller's. NULL: no memory. */
static bt_worker_t **sort_names(const bt_draft_t *d, unsigned *count_p)
{
    unsigned total = 0, count = 0;
    for (unsigned i = 0; i < d->pool_count; i++)
        total += d->counts[i];
    bt_worker_t **all = calloc(total + 1, sizeof(bt_worker_t *));
    for (unsigned i = 0; all != NULL && i < d->pool_count; i++)
        for (unsigned j = 0; j < d->counts[i]; j++)
            if (d->workers[i][j]->name != NULL)
                all[count++] = d->workers[i][j];
    if (all != NULL)
        qsort(all, count, sizeof(bt_worker_t *), by_name);
    *count_p = count;
    return all;
}

/* p0, p1, d0, w0, e0, ...: the lowest number that is free; never an address, clients see it. next: where to go on, per role. */
static int choose_name(bt_worker_t *const *named, unsigned count, bt_worker_t *w, unsigned *next)
{
    static const char initials[BT_ROLE_COUNT] = {'p', 'd', 'w', 'e'};
    char name[16];
    do {
        snprintf(name, sizeof name, "%c%u", initials[w->spec.role], next[w->spec.role]++);
    } while (bsearch(name, named, count, sizeof(bt_worker_t *), name_compare) != NULL);
    w->name = bt_str_dup(bt_str(name));
    return w->name != NULL ? 0 : BT_E_NOMEM;
}

static int choose_names(const bt_draft_t *d)
{
    unsigned next[BT_ROLE_COUNT] = {0}, count;
    bt_worker_t **named = sort_names(d, &count);
    int rc = named != NULL ? 0 : BT_E_NOMEM;
    for (unsigned i = 0; i < d->pool_count; i++)
        for (unsigned j = 0; j < d->counts[i] && rc == 0; j++)
            if (d->workers[i][j]->name == NULL)
                rc = choose_name(named, count, d->workers[i][j], next);
    free(named);
    return rc;
}

int bt_places_order(const bt_worker_t *a, const bt_worker_t *b)
{
    int order = strcasecmp(a->host, b->host);

    if (order == 0)
        order = a->port < b->port ? -1 : a->port > b->port;
    if (order == 0)
        order = strcmp(a->base_path, b->base_path);
    return order != 0 ? order : a->spec.dp_rank - b->spec.dp_rank;
}

static int by_place(const void *a, const void *b)
{
    const bt_worker_t *x = *(bt_worker_t *const *) a, *y = *(bt_worker_t *const *) b;
    const int order = bt_places_order(x, y);

    return order != 0 ? order : x->id < y->id ? -1 : x->id > y->id;
}

static int place_compare(const void *key, const void *at)
{
    return bt_places_order(key, *(bt_worker_t *const *) at);
}

/* By place; the array is the caller's. NULL: no memory. */
bt_worker_t **bt_places_sort(bt_worker_t *const *items, unsigned count)
{
    bt_worker_t **sorted = calloc(count + 1, sizeof(bt_worker_t *));
    if (sorted == NULL)
        return NULL;
    if (count > 0)
        memcpy(sorted, items, count * sizeof(bt_worker_t *));
    qsort(sorted, count, sizeof(bt_worker_t *), by_place);
    return sorted;
}

bt_worker_t *bt_places_find(bt_worker_t *const *sorted, unsigned count, const bt_worker_t *w)
{
    bt_worker_t *const *at = bsearch(w, sorted, count, sizeof(bt_worker_t *), place_compare);
    return at != NULL ? *at : NULL;
}

static int check_pool_urls(const bt_draft_t *d, unsigned pool, char *err, size_t err_size)
{
    bt_worker_t **sorted = bt_places_sort(d->workers[pool], d->counts[pool]);
    int rc = sorted != NULL ? 0 : BT_E_NOMEM;
    for (unsigned i = 1; rc == 0 && i < d->counts[pool]; i++) {
        const bt_worker_t *a = sorted[i - 1], *b = sorted[i];
        if (bt_places_order(a, b) != 0)
            continue;
        snprintf(err, err_size, "workers %s and %s of pool %s have the same url %s", a->name,
                 b->name, d->pools[pool].name, b->spec.url);
        rc = BT_E_CONFIG;
    }
    free(sorted);
    return rc;
}

static int check_names(const bt_draft_t *d, char *err, size_t err_size)
{
    unsigned count;
    bt_worker_t **named = sort_names(d, &count);
    int rc = named != NULL ? 0 : BT_E_NOMEM;
    for (unsigned i = 1; rc == 0 && i < count; i++) {
        const bt_worker_t *a = named[i - 1], *b = named[i];
        if (strcmp(a->name, b->name) != 0)
            continue;
        snprintf(err, err_size, "two workers are named %s: %s and %s", a->name, a->spec.url,
                 b->spec.url);
        rc = BT_E_CONFIG;
    }
    free(named);
    return rc;
}

int bt_draft_check(const bt_draft_t *d, char *err, size_t err_size)
{
    int rc = choose_names(d);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < d->pool_count; i++)
        if ((rc = check_pool_urls(d, i, err, err_size)) < 0)
            return rc;
    return check_names(d, err, err_size);
}
