/* candidates.h - who may be chosen: of a pool, and of it for one request. Private to dispatch.
 *
 * Owner: candidates are the dispatcher's; a choice view is its caller's, with lists of its own in
 *        the request's arena.
 * Life:  candidates are kept until the fleet's epoch moves; a view is made for one decision.
 * Flow:  workers -> candidates.c -> choice_view.c -> plan.c
 * Cost:  O(1) where nothing moved, nothing is left out and the first two workers are a pair.
 */
#ifndef BT_DISPATCH_PLAN_CANDIDATES_H
#define BT_DISPATCH_PLAN_CANDIDATES_H

#include "dispatch/state/request_state.h"

#define BT_MODEL_SETS 8 /* pools whose workers list models: sets kept by model */

/* What choice_view.c makes of one pool's candidates. Each has a key of its own, after the
 * candidates': requests of two kinds that alternate must not have the policy's lists made anew. */
enum bt_view_shape {
    BT_VIEW_ALL,
    BT_VIEW_UNSPLIT,
    BT_VIEW_DEGRADED,
    BT_VIEW_WITHOUT_PAIRS,
    BT_VIEW_SHAPES
};

/* Usable workers of one pool, rebuilt when the epoch moved. */
struct bt_candidates {
    uint64_t epoch, changes, recheck_at_ms, key, model_hash;
    unsigned pool;
    bt_worker_set_t sets[BT_LIST_COUNT]; /* malloc'ed arrays */
    unsigned caps[BT_LIST_COUNT];
    bool has_probe;                      /* a half-open breaker has let one request through */
    unsigned after_probe[BT_LIST_COUNT]; /* how many there are, should all probes go well */
};

/* candidates.c */
struct bt_candidates *bt_candidates_new(unsigned pool_count); /* of a dispatcher, or NULL */
void bt_candidates_free(struct bt_candidates *c, unsigned pool_count); /* NULL is fine */
/* The pool that part `pool` of the bundle plans for; NULL: there is none. A variant that names no
 * pool serves any: the first. */
const bt_worker_pool_t *bt_candidates_pool(const bt_dispatcher_t *d,
                                           const bt_policy_bundle_t *bundle, unsigned pool);
/* The view of these sets, which are the caller's. */
bt_policy_view_t bt_candidates_view(const bt_worker_set_t *sets, uint64_t key,
                                    const bt_worker_pool_t *pool);
const struct bt_candidates *bt_candidates_get(bt_dispatcher_t *d, const bt_worker_pool_t *pool,
                                              bt_str_t model);
/* For generations (user: the dispatcher): copies of the sets that the pool's requests choose from
 * now. */
bt_warm_t *bt_candidates_warm(void *user, const bt_policy_bundle_t *bundle, unsigned pool);

/* choice_view.c */
typedef struct bt_choice_view {
    bt_worker_set_t sets[BT_LIST_COUNT]; /* what is not allowed for this request is empty */
    bt_worker_t *pinned[1];
    uint64_t key;    /* of the lists, for policies' cached views; 0: of this call alone */
    const char *why; /* the last refusal seen, for the 503 */
} bt_choice_view_t;

/* Which roles the request may use. */
enum bt_topology bt_choice_view_make(bt_request_t *r, bt_choice_view_t *v);
/* The place beside one of a pair that has begun. `stays` (one, the caller's for as long as the view) is all of its list,
 * whatever has become of it: full by this very request, drained, half open by this probe. with_full: those at their limit too.
 * all_p, where not NULL: the candidates without it, borrowing from v. False: none fits it. */
bool bt_choice_view_beside(bt_request_t *r, bt_choice_view_t *v, bt_worker_t **stays,
                           enum bt_policy_list its_list, bool with_full, bt_choice_view_t *all_p);
/* Usable encode workers, as those who serve alone; why: there is none. */
void bt_choice_view_encoders(bt_request_t *r, bt_choice_view_t *v);
/* False: there was none of them. */
bool bt_choice_view_leave_out(bt_arena_t *arena, bt_choice_view_t *v,
                              bool (*is_out)(const void *ctx, const bt_worker_t *w),
                              const void *ctx);
bool bt_choice_view_any_pair(bt_request_t *r, bt_choice_view_t *v);
/* Of a view that has none any more, for some were left out: as a first plan sees it. */
void bt_choice_view_drop_pairs(bt_choice_view_t *v);
/* Why these two cannot serve it as a pair; NULL: they can. */
const char *bt_pair_refusal(bt_request_t *r, const bt_worker_t *p, const bt_worker_t *d);

/* Of `why`: no worker has a place left, which passes; the route cannot be split, which waiting does not cure. */
bool bt_choice_view_is_limited(const bt_choice_view_t *v);
bool bt_choice_view_is_for_no_split(const bt_choice_view_t *v);

#endif
