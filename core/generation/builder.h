/* builder.h - policies are made, and freed, on threads of their own: a loop never stands still for it.
 *
 * Owner: a builder belongs to one loop; what it makes belongs to the caller once it is taken.
 * Life:  zeroed builder -> build -> (thread) -> ended -> take. A build may be dropped at any time: nobody waits for its thread,
 *        what it makes is freed by it. fini waits for all threads.
 * Flow:  start may wait for calls and time (script/policy/policy_run.h), BT_START_WAIT_MS in all; that blocks the thread only.
 * Cost:  a thread for every policy that is made; one for what is freed together.
 */
#ifndef BT_GENERATION_BUILDER_H
#define BT_GENERATION_BUILDER_H

#include "loop/loop.h"
#include "script/policy/policy.h"
#include "script/policy/policy_run.h"
#include "script/policy/policy_source.h"

#define BT_START_WAIT_MS 5000 /* what start may wait in all */

/* A policy and what its start is served by, whenever its VM is made anew. */
typedef struct bt_built bt_built_t;

/* What a policy is made of; all is borrowed for the call. */
typedef struct bt_build_spec {
    const bt_policy_source_t *source;
    const bt_value_t *params, *old; /* NULL = defaults; nothing */
    bool is_shadow, is_dry_run;     /* script/policy/policy.h */
    const _Atomic bool *cancelled;  /* nobody wants it any more; NULL = never */
} bt_build_spec_t;
/* On this thread, which may block. err: one line. */
int bt_built_new(bt_built_t **built_p, const bt_build_spec_t *spec, char *err, size_t err_size);
/* The same, and the questions of the self-test: what start, `check`, `policy check` and reload go by.
 * 0 with text in err is a warning. *is_test_only_p (or NULL): it loads, but fails them. */
int bt_built_tried(bt_built_t **built_p, const bt_build_spec_t *spec,
                   const bt_policy_trial_t *trial, bool *is_test_only_p, char *err,
                   size_t err_size);
bt_policy_t *bt_built_policy(const bt_built_t *built);
void bt_built_free(bt_built_t *built); /* NULL is fine; as slow as closing a Lua state is */

/* What a loop's requests choose from now: the thread makes the new VM's lists of it, so that no first plan has to. */
#define BT_WARM_VIEWS 4
typedef struct bt_warm {
    bt_workers_t *workers; /* reference; owns the workers */
    unsigned count;
    struct bt_warm_view {
        bt_worker_set_t sets[BT_LIST_COUNT]; /* malloc'ed arrays */
        bt_policy_view_t view;               /* of these sets */
    } views[BT_WARM_VIEWS];
} bt_warm_t;
void bt_warm_free(bt_warm_t *warm); /* NULL is fine; on any thread */

typedef struct bt_build bt_build_t;

/* Zeroed is ready for use. */
typedef struct bt_builder {
    bt_loop_t *loop; /* hears of threads that have ended; NULL = nobody does, see bt_builder_wait */
    void (*on_ended)(void *user); /* on the loop: some order may have ended; NULL = nobody cares */
    void *user;
    bt_build_t *
        builds; /* whose threads have not been joined; such as have ended are with the next order */
    bool is_closed; /* nothing is put off any more */
} bt_builder_t;

/* Refs source, copies params, takes old and warm (both may be NULL). */
int bt_builder_build(bt_builder_t *builder, bt_build_t **build_p, bt_policy_source_t *source,
                     const bt_value_t *params, bt_value_t *old, bt_warm_t *warm, bool is_shadow);
bool bt_build_has_ended(const bt_build_t *build);
/* Of one that has ended: 0 and what was made, or why not. Frees the order, sets NULL. */
int bt_build_take(bt_build_t **build_p, bt_built_t **built_p, char *err, size_t err_size);
void bt_build_drop(bt_build_t **build_p); /* sets NULL; NULL already: nothing */
/* Blocks until that one has ended. */
void bt_build_wait(bt_build_t *build);
/* Takes them; the array stays the caller's. */
void bt_builder_free_built(bt_builder_t *builder, bt_built_t **built, unsigned count);
void bt_builder_fini(
    bt_builder_t *builder); /* joins all threads; orders that were not dropped are ended */

#endif
