/* Names and places are looked up by hash: a draft is made at each change, also where there are thousands of workers. */
#include "cluster/draft.h"

#include "base/clock.h"
#include "base/err.h"
#include "cluster/worker_index.h"

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

/* Most are named as before, and a write to them is not free: every plan reads that line. */
static void set_sources(bt_worker_t *w, unsigned sources, uint64_t wall_ms)
{
    if (atomic_load_explicit(&w->sources, memory_order_relaxed) == sources)
        return;
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

/* ---- names and checks over the whole draft ---- */

static unsigned count_all(const bt_draft_t *d)
{
    unsigned total = 0;

    for (unsigned i = 0; i < d->pool_count; i++)
        total += d->counts[i];
    return total;
}

static const char initials[BT_ROLE_COUNT] = {'p', 'd', 'w', 'e'};

/* The numbers that are taken, by role; those from `total` on do not matter, because one below it is free. */
static void mark_name(const char *name, bool *taken, unsigned total)
{
    unsigned number = 0;
    size_t n = 1;

    for (; name[n] >= '0' && name[n] <= '9' && number < total; n++)
        number = number * 10 + (unsigned) (name[n] - '0');
    if (n == 1 || name[n] != '\0' || (name[1] == '0' && n > 2) || number >= total)
        return;
    for (unsigned role = 0; role < BT_ROLE_COUNT; role++)
        if (name[0] == initials[role])
            taken[role * total + number] = true;
}

/* p0, p1, d0, w0, e0, ...: the lowest number that is free; never an address, clients see it. next: where to go on, per role. */
static int choose_name(bt_worker_t *w, const bool *taken, unsigned total, unsigned *next)
{
    const unsigned role = w->spec.role;
    char name[16];

    while (next[role] < total && taken[role * total + next[role]])
        next[role]++;
    snprintf(name, sizeof name, "%c%u", initials[role], next[role]++);
    w->name = bt_str_dup(bt_str(name));
    return w->name != NULL ? 0 : BT_E_NOMEM;
}

static int choose_names(const bt_draft_t *d)
{
    const unsigned total = count_all(d);
    unsigned next[BT_ROLE_COUNT] = {0};
    bool *taken = calloc(BT_ROLE_COUNT * (size_t) total + 1, sizeof *taken);
    int rc = taken != NULL ? 0 : BT_E_NOMEM;

    for (unsigned i = 0; i < d->pool_count && rc == 0; i++)
        for (unsigned j = 0; j < d->counts[i]; j++)
            if (d->workers[i][j]->name != NULL && d->workers[i][j]->name[0] != '\0')
                mark_name(d->workers[i][j]->name, taken, total);
    for (unsigned i = 0; i < d->pool_count; i++)
        for (unsigned j = 0; j < d->counts[i] && rc == 0; j++)
            if (d->workers[i][j]->name == NULL)
                rc = choose_name(d->workers[i][j], taken, total, next);
    free(taken);
    return rc;
}

static int check_pool_urls(const bt_draft_t *d, unsigned pool, char *err, size_t err_size)
{
    bt_worker_index_t places = {0};
    int rc = bt_worker_index_init(&places, d->counts[pool]);
    for (unsigned i = 0; rc == 0 && i < d->counts[pool]; i++) {
        const bt_worker_t *b = d->workers[pool][i];
        const bt_worker_t *a = bt_worker_index_put_place(&places, d->workers[pool][i]);
        if (a == NULL)
            continue;
        snprintf(err, err_size, "workers %s and %s of pool %s have the same url %s", a->name,
                 b->name, d->pools[pool].name, b->spec.url);
        rc = BT_E_CONFIG;
    }
    bt_worker_index_fini(&places);
    return rc;
}

static int check_names(const bt_draft_t *d, char *err, size_t err_size)
{
    bt_worker_index_t names = {0};
    int rc = bt_worker_index_init(&names, count_all(d));
    for (unsigned i = 0; i < d->pool_count; i++)
        for (unsigned j = 0; rc == 0 && j < d->counts[i]; j++) {
            const bt_worker_t *b = d->workers[i][j];
            const bt_worker_t *a = bt_worker_index_put_name(&names, d->workers[i][j]);
            if (a == NULL)
                continue;
            snprintf(err, err_size, "two workers are named %s: %s and %s", a->name, a->spec.url,
                     b->spec.url);
            rc = BT_E_CONFIG;
        }
    bt_worker_index_fini(&names);
    return rc;
}

int bt_draft_check(const bt_draft_t *d, char *err, size_t err_size)
{
    int rc = choose_names(d);
    if (rc < 0 || d->is_sound)
        return rc;
    for (unsigned i = 0; i < d->pool_count; i++)
        if ((rc = check_pool_urls(d, i, err, err_size)) < 0)
            return rc;
    return check_names(d, err, err_size);
}
