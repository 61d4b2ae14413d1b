/* What is new in a generation is made by threads (builder.c); the loop only reads what the old policy hands over before, and
 * takes the VM in after.
 *
 *     begin          build ...            commit                     last unpin
 *   ---------> prepared ------> prepared ---------> serving --> old ------------> freed
 *                  |  abort, or an error
 *                  +------> freed; threads that still run find nobody and free what they have made
 *
 * Texts are compared by pointer: who makes bundles reuses the source object of a text that has not changed. */
#include "generation/generation.h"

#include "base/err.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

struct bt_shared_vm {
    unsigned refs; /* generations of this loop */
    bt_built_t *built;
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

int bt_bundle_put(bt_policy_bundle_t *bundle, unsigned pool, enum bt_policy_slot slot,
                  bt_policy_source_t *source, const bt_value_t *params, uint64_t born)
{
    bt_bundle_part_t *part = &bundle->pools[pool].parts[slot];

    part->source = bt_policy_source_ref(source);
    part->params = bt_value_copy(params);
    part->born = born;
    return params == NULL || part->params != NULL ? 0 : BT_E_NOMEM;
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
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            bt_policy_source_unref(bundle->pools[i].parts[s].source);
            bt_value_free(bundle->pools[i].parts[s].params);
        }
        free(bundle->pools[i].name);
    }
    bt_rules_unref(bundle->rules);
    free(bundle);
}

/* ---- one generation ---- */

/* What was made, if this was its last generation. */
static bt_built_t *drop_vm(struct bt_shared_vm *vm)
{
    bt_built_t *built = NULL;

    if (vm == NULL || --vm->refs > 0)
        return NULL;
    built = vm->built;
    free(vm);
    return built;
}

/* VMs go to a thread, some at a time. */
static void free_generation(bt_generation_t *g)
{
    bt_builder_t *builder = &g->owner->builder;
    bt_built_t *dead[64];
    unsigned count = 0;

    for (unsigned i = 0; i < BT_BUILDS_MAX; i++)
        bt_build_drop(&g->builds[i].build);
    for (unsigned i = 0; i < g->bundle->pool_count * BT_SLOT_COUNT; i++) {
        dead[count] = drop_vm(g->pools[i / BT_SLOT_COUNT].vms[i % BT_SLOT_COUNT]);
        count += dead[count] != NULL;
        if (count < sizeof dead / sizeof dead[0])
            continue;
        bt_builder_free_built(builder, dead, count);
        count = 0;
    }
    bt_builder_free_built(builder, dead, count);
    g->owner->live--;
    bt_bundle_unref(g->bundle);
    free(g);
}

/* The first slot that names this very policy with the same parameters: the slot itself, or an earlier one whose VM it shares. */
static enum bt_policy_slot home_of(const bt_bundle_pool_t *pool, enum bt_policy_slot slot)
{
    const bt_bundle_part_t *parts = pool->parts;

    for (unsigned i = 0; i < (unsigned) slot; i++)
        if (parts[i].source != NULL && parts[i].is_shadow == parts[slot].is_shadow &&
            bt_policy_source_same(parts[i].source, parts[slot].source) &&
            bt_value_equal(parts[i].params, parts[slot].params))
            return (enum bt_policy_slot) i;
    return slot;
}

static void keep(struct bt_pool_policies *pool, enum bt_policy_slot slot, struct bt_shared_vm *vm)
{
    bt_policy_t **const members[] = {&pool->both, &pool->prefill, &pool->decode};

    pool->vms[slot] = vm;
    *members[slot] = bt_built_policy(vm->built);
    vm->refs++;
}

unsigned bt_pool_policies_all(const struct bt_pool_policies *p, bt_policy_t **all)
{
    bt_policy_t *const named[] = {p->both, p->prefill, p->decode};
    unsigned count = 0;

    for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
        if (named[s] != NULL && home_of(p->bundle, (enum bt_policy_slot) s) == s)
            all[count++] = named[s];
    return count;
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

/* What stands in this place now, or NULL. */
static const struct bt_pool_policies *serving_pool(const bt_generations_t *gs,
                                                   const bt_bundle_pool_t *pool, unsigned index)
{
    return gs->serving != NULL ? bt_generation_pool(gs->serving, pool->name, index) : NULL;
}

/* The VM that serves this very text with these parameters now, or NULL. */
static struct bt_shared_vm *serving_vm(const bt_generations_t *gs, const bt_bundle_pool_t *pool,
                                       unsigned index, enum bt_policy_slot slot)
{
    const struct bt_pool_policies *now = serving_pool(gs, pool, index);
    const bt_bundle_part_t *part = &pool->parts[slot],
                           *old = now != NULL ? &now->bundle->parts[slot] : NULL;

    if (old == NULL || old->source != part->source || old->is_shadow != part->is_shadow ||
        !bt_value_equal(old->params, part->params))
        return NULL;
    return now->vms[slot];
}

/* What serves in this place now may leave something to the next; a handover that fails leaves nothing. */
static bt_value_t *heirloom(const bt_generations_t *gs, const bt_bundle_pool_t *pool,
                            unsigned index, enum bt_policy_slot slot)
{
    const struct bt_pool_policies *now = serving_pool(gs, pool, index);
    bt_value_t *data = NULL;

    if (now == NULL || now->vms[slot] == NULL ||
        bt_policy_handover(bt_built_policy(now->vms[slot]->built), &data) < 0)
        return NULL;
    return data;
}

/* Takes over what one thread has made. */
static int take_in(bt_generation_t *g, struct bt_draft *draft, char *err, size_t err_size)
{
    const unsigned i = draft->part / BT_SLOT_COUNT;
    const enum bt_policy_slot slot = (enum bt_policy_slot)(draft->part % BT_SLOT_COUNT);
    const bt_bundle_pool_t *pool = &g->bundle->pools[i];
    struct bt_shared_vm *vm;
    bt_built_t *built = NULL;
    int rc = bt_build_take(&draft->build, &built, err, err_size);

    if (rc < 0 && pool->parts[slot].is_shadow) {
        bt_log_error("policy", "%s is left out: %s", pool->name, err);
        return 0;
    }
    if (rc < 0)
        return rc;
    vm = calloc(1, sizeof *vm);
    if (vm == NULL) {
        bt_builder_free_built(&g->owner->builder, &built, 1);
        snprintf(err, err_size, "%s", bt_err_text(BT_E_NOMEM));
        return BT_E_NOMEM;
    }
    vm->built = built;
    keep(&g->pools[i], slot, vm);
    return 0;
}

/* Begins the next part. */
static int begin_part(bt_generations_t *gs, struct bt_draft *draft)
{
    bt_generation_t *g = gs->prepared;
    const unsigned i = g->next / BT_SLOT_COUNT;
    const enum bt_policy_slot slot = (enum bt_policy_slot)(g->next % BT_SLOT_COUNT);
    const bt_bundle_pool_t *pool = &g->bundle->pools[i];
    const bt_bundle_part_t *part = &pool->parts[slot];
    struct bt_shared_vm *vm;

    draft->part = g->next++;
    if (part->source == NULL || home_of(pool, slot) != slot)
        return 0;
    vm = serving_vm(gs, pool, i, slot);
    if (vm != NULL) {
        keep(&g->pools[i], slot, vm);
        return 0;
    }
    return bt_builder_build(
        &gs->builder, &draft->build, part->source, part->params, heirloom(gs, pool, i, slot),
        gs->warm != NULL ? gs->warm(gs->warm_user, g->bundle, i) : NULL, part->is_shadow);
}

/* 1: its thread is at work. 0: it is free, and no part is left. */
static int step(bt_generations_t *gs, struct bt_draft *draft, char *err, size_t err_size)
{
    bt_generation_t *g = gs->prepared;
    int rc = 0;

    for (;;) {
        if (draft->build != NULL && !bt_build_has_ended(draft->build))
            return 1;
        if (draft->build != NULL && (rc = take_in(g, draft, err, err_size)) < 0)
            return rc;
        if (g->next == g->bundle->pool_count * BT_SLOT_COUNT)
            return 0;
        if ((rc = begin_part(gs, draft)) < 0) {
            snprintf(err, err_size, "%s", bt_err_text(rc));
            return rc;
        }
    }
}

/* A pool goes one way: of the policies that it names, one may say which. */
static int check_routes(const struct bt_pool_policies *p, char *err, size_t err_size)
{
    bt_policy_t *all[BT_SLOT_COUNT], *first = NULL;
    const unsigned count = bt_pool_policies_all(p, all);

    for (unsigned i = 0; i < count; i++) {
        if (!bt_policy_has_hook(all[i], "route"))
            continue;
        if (first != NULL) {
            snprintf(err, err_size, BT_TWO_ROUTES, p->bundle->name, bt_policy_name(first),
                     bt_policy_name(all[i]));
            return BT_E_CONFIG;
        }
        first = all[i];
    }
    return 0;
}

/* All its VMs are there. */
static int complete(bt_generation_t *g, char *err, size_t err_size)
{
    int rc = 0;

    for (unsigned i = 0; i < g->bundle->pool_count && rc == 0; i++) {
        struct bt_pool_policies *p = &g->pools[i];
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            struct bt_shared_vm *vm = p->vms[home_of(p->bundle, (enum bt_policy_slot) s)];
            if (p->bundle->parts[s].source != NULL && p->vms[s] == NULL && vm != NULL)
                keep(p, (enum bt_policy_slot) s, vm);
        }
        rc = check_routes(p, err, err_size);
    }
    return rc;
}

int bt_generations_build(bt_generations_t *gs, char *err, size_t err_size)
{
    bool is_busy = false;

    if (gs->prepared == NULL)
        return BT_E_INVAL;
    for (unsigned i = 0; i < BT_BUILDS_MAX; i++) {
        int rc = step(gs, &gs->prepared->builds[i], err, err_size);
        if (rc < 0) {
            bt_generations_abort(gs);
            return rc;
        }
        is_busy |= rc > 0;
    }
    if (!is_busy && complete(gs->prepared, err, err_size) < 0) {
        bt_generations_abort(gs);
        return BT_E_CONFIG;
    }
    return is_busy;
}

void bt_generations_wait(bt_generations_t *gs)
{
    for (unsigned i = 0; gs->prepared != NULL && i < BT_BUILDS_MAX; i++)
        if (gs->prepared->builds[i].build != NULL) {
            bt_build_wait(gs->prepared->builds[i].build);
            return;
        }
}

void bt_generations_listen(bt_generations_t *gs, bt_loop_t *loop, void (*cb)(void *user),
                           void *user)
{
    gs->builder.loop = loop;
    gs->builder.on_ended = cb;
    gs->builder.user = user;
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
    void (*cb)(void *) = gs->builder.on_ended;

    bt_generations_abort(gs);
    gs->serving = NULL;
    gs->builder.on_ended = NULL;
    bt_builder_fini(&gs->builder);
    if (cb != NULL)
        cb(gs->builder.user);
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
