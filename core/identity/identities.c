#include "identity/identities.h"

#include "base/err.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct bt_identities {
    const bt_jwt_rules_t *rules;
    pthread_mutex_t lock; /* of the next two */
    bt_key_table_t *keys;
    bt_jwks_t *jwks;
    _Atomic uint64_t version; /* moves while the lock is held; 0 = nothing was ever set */
    _Atomic bool kid_missed;
    _Atomic uint64_t store_heard_ms;
    _Atomic unsigned left_out;
};

int bt_identities_new(bt_identities_t **all_p, const bt_jwt_rules_t *rules)
{
    bt_identities_t *all = calloc(1, sizeof *all);

    if (all == NULL)
        return BT_E_NOMEM;
    all->rules = rules;
    atomic_init(&all->version, 0);
    atomic_init(&all->kid_missed, false);
    pthread_mutex_init(&all->lock, NULL);
    *all_p = all;
    return 0;
}

void bt_identities_free(bt_identities_t *all)
{
    if (all == NULL)
        return;
    bt_key_table_unref(all->keys);
    bt_jwks_unref(all->jwks);
    pthread_mutex_destroy(&all->lock);
    free(all);
}

static void move_on(bt_identities_t *all)
{
    atomic_fetch_add_explicit(&all->version, 1, memory_order_release);
}

void bt_identities_set_keys(bt_identities_t *all, bt_key_table_t *keys)
{
    pthread_mutex_lock(&all->lock);
    bt_key_table_t *before = all->keys;
    all->keys = keys;
    move_on(all);
    pthread_mutex_unlock(&all->lock);
    bt_key_table_unref(before);
}

bool bt_identities_set_jwks(bt_identities_t *all, bt_jwks_t *jwks)
{
    pthread_mutex_lock(&all->lock);
    bt_jwks_t *before = all->jwks;
    const bool is_other = before == NULL || before->fingerprint != jwks->fingerprint;
    if (is_other) {
        all->jwks = jwks;
        move_on(all);
    }
    pthread_mutex_unlock(&all->lock);
    bt_jwks_unref(is_other ? before : jwks);
    return is_other;
}

void bt_identities_describe(bt_identities_t *all, bt_text_t *out)
{
    pthread_mutex_lock(&all->lock);
    if (all->keys != NULL)
        bt_key_table_describe(all->keys, out);
    for (unsigned i = 0; all->jwks != NULL && i < all->jwks->count; i++)
        bt_text_printf(out, "%s %s\n", bt_jwt_algorithm_name(all->jwks->keys[i].algorithm),
                       all->jwks->keys[i].kid);
    pthread_mutex_unlock(&all->lock);
}

void bt_identities_confirm_store(bt_identities_t *all, uint64_t now_ms)
{
    atomic_store_explicit(&all->store_heard_ms, now_ms, memory_order_relaxed);
}

void bt_identities_note_store(bt_identities_t *all, uint64_t now_ms, unsigned left_out)
{
    atomic_store_explicit(&all->left_out, left_out, memory_order_relaxed);
    bt_identities_confirm_store(all, now_ms);
}

void bt_identities_look(bt_identities_t *all, bt_identities_facts_t *facts_p)
{
    pthread_mutex_lock(&all->lock);
    const unsigned keys = all->keys != NULL ? bt_key_table_count(all->keys) : 0;
    pthread_mutex_unlock(&all->lock);
    *facts_p = (bt_identities_facts_t){
        .keys = keys,
        .left_out = atomic_load_explicit(&all->left_out, memory_order_relaxed),
        .store_heard_ms = atomic_load_explicit(&all->store_heard_ms, memory_order_relaxed)};
}

bool bt_identities_was_kid_missed(bt_identities_t *all)
{
    return atomic_exchange_explicit(&all->kid_missed, false, memory_order_relaxed);
}

void bt_identities_miss_kid(bt_identities_t *all)
{
    atomic_store_explicit(&all->kid_missed, true, memory_order_relaxed);
}

const bt_jwt_rules_t *bt_identities_rules(const bt_identities_t *all)
{
    return all->rules;
}

void bt_identities_drop(bt_identities_view_t *view)
{
    bt_key_table_unref(view->keys);
    bt_jwks_unref(view->jwks);
    *view = (bt_identities_view_t){0, NULL, NULL};
}

bool bt_identities_renew(bt_identities_t *all, bt_identities_view_t *view)
{
    if (atomic_load_explicit(&all->version, memory_order_acquire) == view->version)
        return false;
    bt_identities_drop(view);
    pthread_mutex_lock(&all->lock);
    view->version = atomic_load_explicit(&all->version, memory_order_relaxed);
    view->keys = all->keys != NULL ? bt_key_table_ref(all->keys) : NULL;
    view->jwks = all->jwks != NULL ? bt_jwks_ref(all->jwks) : NULL;
    pthread_mutex_unlock(&all->lock);
    return true;
}
