/* Building takes a Lua state, about 100 us, for every text that is new; the caller lets its loop turn between two of them.
 *
 *     begin          build ...            commit                     last unpin
 *   ---------> prepared ------> prepared ---------> serving --> old ------------> freed
 *                  |  abort, or an error
 *                  +------> freed
 *
 * Texts are compared by pointer: who makes bundles reuses the source object of a text that has not changed. */
#include "dispatch/generation.h"

#include "base/err.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

struct bt_shared_vm {
    unsigned refs; /* generations of this loop */
    bt_policy_t *policy;
};

const char *bt_policy_slot_name(enum bt_policy_slot slot)
{
    static const char *const names[] = {"policy", "prefill_policy", "decode_policy"};
    return names[slot];
}

/* ---- bundle ---- */

int bt_bundle_new(bt_policy_bundle_t **bundle_p, uint64_t number, unsigned pool_count)
{
    bt_policy_bundle_t *b = calloc(1, sizeof(*b) + pool_count * sizeof(b->pools[0]));

    if (b == NULL)
        return BT_E_NOMEM;
    atomic_init(&b->refs, 1);
    b->number = number;
    b->pool_count = pool_count;
    *bundle_p = b;
    return 0;
}

int bt_bundle_name(bt_policy_bundle_t *bundle, unsigned pool, const char *name)
{
    bundle->pools[pool].name = bt_str_dup(bt_str(name));
    return bundle->pools[pool].name != NULL ? 0 : BT_E_NOMEM;
}

void bt_bundle_put(bt_policy_bundle_t *bundle, unsigned pool, enum bt_policy_slot slot,
                   bt_policy_source_t *source, uint64_t born)
{
    bundle->pools[pool].parts[slot] = (bt_bundle_part_t){bt_policy_source_ref(source), born};
}

bt_policy_bundle_t *bt_bundle_ref(bt_policy_bundle_t *bundle)
{
    atomic_fetch_add_explicit(&bundle->refs, 1, memory_order_relaxed);
    return bundle;
}

void bt_bundle_unref(bt_policy_bundle_t *bundle)
{
    if (bundle == NULL || atomic_fetch_sub_explicit(&bundle->refs, 1, memory_order_acq_rel) > 1)
        return;
    for (unsigned i = 0; i < bundle->pool_count; i++) {
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            bt_policy_source_unref(bundle->pools[i].parts[s].source);
        free(bundle->pools[i].name);
    }
    free(bundle);
}

/* ---- one generation ---- */

static void drop_vm(struct bt_shared_vm *vm)
{
    if (vm == NULL || --vm->refs > 0)
        return;
    bt_policy_free(vm->policy);
    free(vm);
}

static void free_generation(bt_generation_t *g)
{
    for (unsigned i = 0; i < g->bundle->pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            drop_vm(g->pools[i].vms[s]);
    g->owner->live--;
    bt_bundle_unref(g->bundle);
    free(g);
}

static void keep(struct bt_pool_policies *pool, enum bt_policy_slot slot, struct bt_shared_vm *vm)
{
    bt_policy_t **const members[] = {&pool->both, &pool->prefill, &pool->decode};

    pool->vms[slot] = vm;
    *members[slot] = vm->policy;
}

const struct bt_pool_policies *bt_generation_pool(const bt_generation_t *g, const char *name,
                                                  unsigned index)
{
    const unsigned count = g->bundle->pool_count;

    if (index < count && strcmp(g->bundle->pools[index].name, name) == 0)
        return &g->pools[index];
    for (unsigned i = 0; i < count; i++)
        if (strcmp(g->bundle->pools[i].name, name) == 0)
            return &g->pools[i];
    return NULL;
}

bt_generation_t *bt_generation_pin(bt_generations_t *gs)
{
    if (gs->serving != NULL)
        gs->serving->pins++;
    return gs->serving;
}

void bt_generation_unpin(bt_generation_t **g_p)
{
    bt_generation_t *g = *g_p;

    *g_p = NULL;
    if (g == NULL)
        return;
    BT_ASSERT(g->pins > 0);
    if (--g->pins == 0 && g != g->owner->serving)
        free_generation(g);
}

/* ---- building ---- */

int bt_generations_begin(bt_generations_t *gs, bt_policy_bundle_t *bundle)
{
    bt_generation_t *g;

    if (gs->prepared != NULL)
        return BT_E_INVAL;
    if (gs->live >= BT_GENERATIONS_MAX)
        return BT_E_AGAIN;
    g = calloc(1, sizeof(*g) + bundle->pool_count * sizeof(g->pools[0]));
    if (g == NULL)
        return BT_E_NOMEM;
    g->owner = gs;
    g->bundle = bt_bundle_ref(bundle);
    for (unsigned i = 0; i < bundle->pool_count; i++)
        g->pools[i].bundle = &bundle->pools[i];
    gs->prepared = g;
    gs->live++;
    return 0;
}

/* The VM that serves this very text now, or NULL. */
static struct bt_shared_vm *serving_vm(const bt_generations_t *gs, const bt_bundle_pool_t *pool,
                                       unsigned index, enum bt_policy_slot slot)
{
    const struct bt_pool_policies *now =
        gs->serving != NULL ? bt_generation_pool(gs->serving, pool->name, index) : NULL;

    if (now == NULL || now->bundle->parts[slot].source != pool->parts[slot].source)
        return NULL;
    return now->vms[slot];
}

/* What serves in this place now may leave something to the next; a handover that fails leaves nothing. */
static bt_value_t *heirloom(const bt_generations_t *gs, const bt_bundle_pool_t *pool,
                            unsigned index, enum bt_policy_slot slot)
{
    const struct bt_pool_policies *now =
        gs->serving != NULL ? bt_generation_pool(gs->serving, pool->name, index) : NULL;
    bt_value_t *data = NULL;

    if (now == NULL || now->vms[slot] == NULL ||
        bt_policy_handover(now->vms[slot]->policy, &data) < 0)
        return NULL;
    return data;
}

static int make_vm(struct bt_shared_vm **vm_p, const bt_policy_source_t *source, bt_value_t *old,
                   char *err, size_t err_size)
{
    struct bt_shared_vm *vm = calloc(1, sizeof(*vm));
    int rc = BT_E_NOMEM;

    snprintf(err, err_size, "%s: out of memory", source->path);
    if (vm != NULL)
        rc = bt_policy_make(&vm->policy, source->path, (bt_str_t){source->text, source->size}, NULL,
                            old, err, err_size);
    bt_value_free(old);
    if (rc != 0) {
        free(vm);
        return rc;
    }
    *vm_p = vm;
    return 0;
}

int bt_generations_build(bt_generations_t *gs, char *err, size_t err_size)
{
    bt_generation_t *g = gs->prepared;

    if (g == NULL)
        return BT_E_INVAL;
    for (; g->next < g->bundle->pool_count * BT_SLOT_COUNT; g->next++) {
        const unsigned i = g->next / BT_SLOT_COUNT;
        const enum bt_policy_slot slot = (enum bt_policy_slot)(g->next % BT_SLOT_COUNT);
        struct bt_shared_vm *vm = serving_vm(gs, &g->bundle->pools[i], i, slot);
        const bool is_new = vm == NULL;
        int rc;
        if (g->bundle->pools[i].parts[slot].source == NULL)
            continue;
        if (is_new &&
            (rc = make_vm(&vm, g->bundle->pools[i].parts[slot].source,
                          heirloom(gs, &g->bundle->pools[i], i, slot), err, err_size)) < 0) {
            bt_generations_abort(gs);
            return rc;
        }
        vm->refs++;
        keep(&g->pools[i], slot, vm);
        if (is_new) {
            g->next++;
            return 1;
        }
    }
    return 0;
}

void bt_generations_abort(bt_generations_t *gs)
{
    if (gs->prepared != NULL)
        free_generation(gs->prepared);
    gs->prepared = NULL;
}

void bt_generations_commit(bt_generations_t *gs)
{
    bt_generation_t *old = gs->serving;

    BT_ASSERT(gs->prepared != NULL);
    gs->serving = gs->prepared;
    gs->prepared = NULL;
    if (old != NULL && old->pins == 0)
        free_generation(old);
}

void bt_generations_fini(bt_generations_t *gs)
{
    bt_generation_t *old = gs->serving;

    bt_generations_abort(gs);
    gs->serving = NULL;
    if (old != NULL && !BT_SOFT(old->pins != 0))
        free_generation(old);
}

/* ---- errors ---- */

void bt_policy_errors_init(bt_policy_errors_t *e)
{
    memset(e, 0, sizeof(*e));
    pthread_mutex_init(&e->lock, NULL);
}

void bt_policy_errors_fini(bt_policy_errors_t *e)
{
    pthread_mutex_destroy(&e->lock);
}

void bt_policy_errors_note(bt_policy_errors_t *e, uint64_t born, const char *text)
{
    const unsigned i = (unsigned) (born % BT_POLICY_ERROR_SLOTS);

    pthread_mutex_lock(&e->lock);
    if (e->slots[i].born < born) {
        e->slots[i].born = born;
        e->slots[i].count = 0;
    }
    if (e->slots[i].born == born) { /* else: an old one, nobody asks about it any more */
        e->slots[i].count++;
        snprintf(e->slots[i].last, sizeof(e->slots[i].last), "%s", text);
    }
    pthread_mutex_unlock(&e->lock);
}

unsigned bt_policy_errors_count(bt_policy_errors_t *e, uint64_t born, char *last, size_t last_size)
{
    const unsigned i = (unsigned) (born % BT_POLICY_ERROR_SLOTS);
    unsigned count = 0;

    pthread_mutex_lock(&e->lock);
    if (e->slots[i].born == born) {
        count = e->slots[i].count;
        snprintf(last, last_size, "%s", e->slots[i].last);
    }
    pthread_mutex_unlock(&e->lock);
    return count;
}
