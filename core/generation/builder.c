/* How it works: a build is held by its customer, by its thread, and, where there is a loop, by the mail that the thread
 * writes last. Whoever joins the thread (the mail, or fini) ends the thread's hold. All holds but the thread's work are
 * touched by the loop alone, so only `state` is atomic.
 *
 *   RUNNING --thread: made--> ENDED --take--> freed
 *      | drop                   | drop: what was made goes to a thread that frees it
 *      +------> DROPPED --thread: made, and frees it itself--> ENDED */
#include "generation/builder.h"

#include "base/err.h"
#include "base/thread.h"
#include "generation/wait.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* A step of start has far less CPU time than this: after a longer pause another start asks. */
#define START_PAUSE_MS 1000

struct bt_built {
    bt_policy_t *policy;
    const _Atomic bool *cancelled; /* while it is made */
    uint64_t until_ms, last_ms;
    char *body; /* of the last answer */
};

/* ---- making ---- */

static int serve(void *user, const bt_hook_op_t *hook_op, bt_hook_answer_t *answer_p)
{
    bt_built_t *built = user;
    const uint64_t now_ms = bt_clock_ms();
    int rc = BT_E_CANCELLED;

    if (now_ms - built->last_ms > START_PAUSE_MS)
        built->until_ms = now_ms + BT_START_WAIT_MS;
    free(built->body);
    built->body = NULL;
    *answer_p = (bt_hook_answer_t){.rc = rc};
    if (built->cancelled == NULL || !atomic_load(built->cancelled))
        rc = bt_wait_blocking(hook_op, built->until_ms, answer_p, &built->body);
    built->last_ms = bt_clock_ms();
    return rc;
}

int bt_built_new(bt_built_t **built_p, const bt_build_spec_t *spec, char *err, size_t err_size)
{
    bt_built_t *built = calloc(1, sizeof *built);
    const bt_policy_spec_t policy = {.path = spec->source->path,
                                     .code = {spec->source->code, spec->source->size},
                                     .params = spec->params,
                                     .old = spec->old,
                                     .is_shadow = spec->is_shadow,
                                     .is_dry_run = spec->is_dry_run,
                                     .serve = serve,
                                     .serve_user = built};
    int rc = BT_E_NOMEM;

    snprintf(err, err_size, "%s: out of memory", spec->source->path);
    if (built == NULL)
        return rc;
    built->cancelled = spec->cancelled;
    rc = bt_policy_make(&built->policy, &policy, err, err_size);
    built->cancelled = NULL;
    free(built->body);
    built->body = NULL;
    if (rc == 0)
        *built_p = built;
    else
        free(built);
    return rc;
}

int bt_built_tried(bt_built_t **built_p, const bt_build_spec_t *spec,
                   const bt_policy_trial_t *trial, bool *is_test_only_p, char *err, size_t err_size)
{
    bt_built_t *built;
    int rc = bt_built_new(&built, spec, err, err_size);

    if (is_test_only_p != NULL)
        *is_test_only_p = false;
    if (rc < 0)
        return rc;
    err[0] = '\0';
    rc = bt_policy_self_test(built->policy, trial, err, err_size);
    if (rc == 0)
        *built_p = built;
    else
        bt_built_free(built);
    if (is_test_only_p != NULL)
        *is_test_only_p = rc < 0;
    return rc;
}

bt_policy_t *bt_built_policy(const bt_built_t *built)
{
    return built->policy;
}

void bt_built_free(bt_built_t *built)
{
    if (built == NULL)
        return;
    bt_policy_free(built->policy);
    free(built->body);
    free(built);
}

/* ---- warming ---- */

void bt_warm_free(bt_warm_t *warm)
{
    if (warm == NULL)
        return;
    for (unsigned i = 0; i < warm->count; i++)
        for (int list = 0; list < BT_LIST_COUNT; list++)
            free(warm->views[i].sets[list].items);
    bt_workers_unref(warm->workers);
    free(warm);
}

static void prewarm(bt_policy_t *policy, const bt_warm_t *warm)
{
    for (unsigned i = 0; warm != NULL && i < warm->count; i++)
        (void) bt_policy_prewarm(policy, &warm->views[i].view);
}

/* ---- orders ---- */

enum state { RUNNING, ENDED, DROPPED };

struct bt_build {
    bt_mail_t envelope; /* to the loop, when the thread has nothing left to do but end */
    bt_build_t *next;
    bt_builder_t *builder; /* NULL once its thread is joined */
    bt_loop_t *loop;       /* NULL = no mail */
    pthread_t thread;
    unsigned holds;
    _Atomic int state;
    _Atomic bool is_cancelled;
    /* to make: */
    bt_policy_source_t *source; /* NULL: to free */
    bt_value_t *params, *old;
    bt_warm_t *warm;
    bool is_shadow;
    bt_built_t *built;
    int rc;
    char err[640];
    /* to free: */
    unsigned count;
    bt_built_t *dead[];
};

static void let_go(bt_build_t *o)
{
    if (--o->holds > 0)
        return;
    bt_policy_source_unref(o->source);
    bt_value_free(o->params);
    bt_value_free(o->old);
    bt_warm_free(o->warm);
    free(o);
}

static void make(bt_build_t *o)
{
    int running = RUNNING;

    const bt_build_spec_t spec = {.source = o->source,
                                  .params = o->params,
                                  .old = o->old,
                                  .is_shadow = o->is_shadow,
                                  .cancelled = &o->is_cancelled};

    o->rc = bt_built_new(&o->built, &spec, o->err, sizeof o->err);
    if (o->rc == 0 && !atomic_load(&o->is_cancelled))
        prewarm(bt_built_policy(o->built), o->warm);
    bt_warm_free(o->warm);
    o->warm = NULL;
    if (atomic_compare_exchange_strong(&o->state, &running, ENDED))
        return;
    bt_built_free(o->built); /* nobody is there to take it */
    o->built = NULL;
    atomic_store(&o->state, ENDED);
}

static void work(bt_build_t *o)
{
    if (o->source != NULL) {
        make(o);
        return;
    }
    for (unsigned i = 0; i < o->count; i++)
        bt_built_free(o->dead[i]);
    atomic_store(&o->state, ENDED);
}

/* The thread is no more. */
static void forget(bt_build_t *o)
{
    bt_build_t **at;

    for (at = &o->builder->builds; *at != o; at = &(*at)->next) {}
    *at = o->next;
    o->builder = NULL;
    let_go(o);
}

/* Blocks while the thread runs. */
static void join(bt_build_t *o)
{
    if (o->builder == NULL)
        return;
    pthread_join(o->thread, NULL);
    forget(o);
}

/* The thread has said its last word, but on a busy machine it may be long until it runs again to end: no loop waits for that. */
static void join_ended(bt_build_t *o)
{
    if (o->builder != NULL && pthread_tryjoin_np(o->thread, NULL) == 0)
        forget(o);
}

static void on_mail(bt_loop_t *loop, bt_mail_t *envelope)
{
    bt_build_t *o = bt_container_of(envelope, bt_build_t, envelope);
    bt_builder_t *builder = o->builder;

    (void) loop;
    o->loop = NULL; /* from here on sweep may join it */
    join_ended(o);
    let_go(o); /* builder is NULL when it was joined before: then the builder may be gone */
    if (builder != NULL && builder->on_ended != NULL)
        builder->on_ended(builder->user);
}

static void *run(void *arg)
{
    bt_build_t *o = arg;
    bt_loop_t *loop = o->loop;

    bt_thread_to_background();
    work(o);
    if (loop != NULL)
        bt_loop_post(loop, &o->envelope, on_mail);
    return NULL;
}

/* Threads that have ended meanwhile: those that nobody told of, and those that were not quite gone when they told. */
static void sweep(bt_builder_t *builder)
{
    bt_build_t *next;

    for (bt_build_t *o = builder->builds; o != NULL; o = next) {
        next = o->next;
        if (o->loop == NULL && atomic_load(&o->state) == ENDED)
            join_ended(o);
    }
}

/* Where no thread can be had the work is done at once: a stall is better than no policy. */
static void start(bt_builder_t *builder, bt_build_t *o)
{
    sweep(builder);
    o->loop = builder->loop;
    o->builder = builder;
    o->holds += o->loop != NULL ? 2 : 1;
    o->next = builder->builds;
    builder->builds = o;
    if (!builder->is_closed && pthread_create(&o->thread, NULL, run, o) == 0)
        return;
    builder->builds = o->next;
    o->holds -= o->loop != NULL ? 2 : 1;
    o->builder = NULL;
    o->loop = NULL;
    work(o);
}

int bt_builder_build(bt_builder_t *builder, bt_build_t **build_p, bt_policy_source_t *source,
                     const bt_value_t *params, bt_value_t *old, bt_warm_t *warm, bool is_shadow)
{
    bt_build_t *o = calloc(1, sizeof *o);

    if (o != NULL)
        o->params = bt_value_copy(params);
    if (o == NULL || (params != NULL && o->params == NULL)) {
        free(o);
        bt_value_free(old);
        bt_warm_free(warm);
        return BT_E_NOMEM;
    }
    atomic_init(&o->state, RUNNING);
    o->source = bt_policy_source_ref(source);
    o->old = old;
    o->warm = warm;
    o->is_shadow = is_shadow;
    o->holds = 1;
    start(builder, o);
    *build_p = o;
    return 0;
}

bool bt_build_has_ended(const bt_build_t *build)
{
    return atomic_load(&((bt_build_t *) (uintptr_t) build)->state) == ENDED;
}

int bt_build_take(bt_build_t **build_p, bt_built_t **built_p, char *err, size_t err_size)
{
    bt_build_t *o = *build_p;
    const int rc = o->rc;

    *build_p = NULL;
    if (rc == 0)
        *built_p = o->built;
    else
        snprintf(err, err_size, "%s", o->err);
    o->built = NULL;
    let_go(o);
    return rc;
}

void bt_build_drop(bt_build_t **build_p)
{
    bt_build_t *o = *build_p;
    int running = RUNNING;

    *build_p = NULL;
    if (o == NULL)
        return;
    atomic_store(&o->is_cancelled, true);
    if (!atomic_compare_exchange_strong(&o->state, &running, DROPPED) && o->built != NULL) {
        if (o->builder != NULL)
            bt_builder_free_built(o->builder, &o->built, 1);
        else
            bt_built_free(o->built);
        o->built = NULL;
    }
    let_go(o);
}

void bt_build_wait(bt_build_t *build)
{
    join(build);
}

void bt_builder_free_built(bt_builder_t *builder, bt_built_t **built, unsigned count)
{
    bt_build_t *o = count > 0 ? calloc(1, sizeof *o + count * sizeof(bt_built_t *)) : NULL;

    if (o == NULL) {
        for (unsigned i = 0; i < count; i++)
            bt_built_free(built[i]);
        return;
    }
    atomic_init(&o->state, RUNNING);
    o->count = count;
    memcpy(o->dead, built, count * sizeof(bt_built_t *));
    o->holds = 1;
    start(builder, o);
    let_go(o);
}

void bt_builder_fini(bt_builder_t *builder)
{
    while (builder->builds != NULL)
        join(builder->builds);
    builder->is_closed = true;
}
