/* How it works: an order is held by its customer, by its thread, and, where there is a loop, by the letter that the thread
 * writes last. Whoever joins the thread (the letter, or fini) ends the thread's hold. All holds but the thread's work are
 * touched by the loop alone, so only `state` is atomic.
 *
 *   RUNNING --thread: made--> ENDED --take--> freed
 *      | drop                   | drop: what was made goes to a thread that frees it
 *      +------> DROPPED --thread: made, and frees it itself--> ENDED */
#include "dispatch/policy_build.h"

#include "base/err.h"
#include "base/thread.h"
#include "dispatch/wait.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* A step of start has far less CPU time than this: after a longer pause another start asks. */
#define START_PAUSE_MS 1000

struct bt_made {
    bt_policy_t *policy;
    const _Atomic bool *cancelled; /* while it is made */
    uint64_t until_ms, last_ms;
    char *body; /* of the last answer */
};

/* ---- making ---- */

static int serve(void *user, const bt_want_t *want, bt_want_answer_t *answer_p)
{
    bt_made_t *made = user;
    const uint64_t now_ms = bt_clock_ms();
    int rc = BT_E_CANCELLED;

    if (now_ms - made->last_ms > START_PAUSE_MS)
        made->until_ms = now_ms + BT_START_WAIT_MS;
    free(made->body);
    made->body = NULL;
    *answer_p = (bt_want_answer_t){.rc = rc};
    if (made->cancelled == NULL || !atomic_load(made->cancelled))
        rc = bt_wait_blocking(want, made->until_ms, answer_p, &made->body);
    made->last_ms = bt_clock_ms();
    return rc;
}

int bt_made_new(bt_made_t **made_p, const bt_made_spec_t *spec, char *err, size_t err_size)
{
    bt_made_t *made = calloc(1, sizeof *made);
    const bt_policy_spec_t policy = {.path = spec->source->path,
                                     .text = {spec->source->text, spec->source->size},
                                     .params = spec->params,
                                     .old = spec->old,
                                     .is_shadow = spec->is_shadow,
                                     .is_dry_run = spec->is_dry_run,
                                     .serve = serve,
                                     .serve_user = made};
    int rc = BT_E_NOMEM;

    snprintf(err, err_size, "%s: out of memory", spec->source->path);
    if (made == NULL)
        return rc;
    made->cancelled = spec->cancelled;
    rc = bt_policy_make(&made->policy, &policy, err, err_size);
    made->cancelled = NULL;
    free(made->body);
    made->body = NULL;
    if (rc == 0)
        *made_p = made;
    else
        free(made);
    return rc;
}

bt_policy_t *bt_made_policy(const bt_made_t *made)
{
    return made->policy;
}

void bt_made_free(bt_made_t *made)
{
    if (made == NULL)
        return;
    bt_policy_free(made->policy);
    free(made->body);
    free(made);
}

/* ---- warming ---- */

void bt_warm_free(bt_warm_t *warm)
{
    if (warm == NULL)
        return;
    for (unsigned i = 0; i < warm->count; i++) {
        free(warm->views[i].prefill.items);
        free(warm->views[i].decode.items);
        free(warm->views[i].single.items);
    }
    bt_fleet_unref(warm->fleet);
    free(warm);
}

static void prewarm(bt_policy_t *policy, const bt_warm_t *warm)
{
    for (unsigned i = 0; warm != NULL && i < warm->count; i++)
        (void) bt_policy_prewarm(policy, &warm->views[i].view);
}

/* ---- orders ---- */

enum state { RUNNING, ENDED, DROPPED };

struct bt_order {
    bt_msg_t msg; /* to the loop, when the thread has nothing left to do but end */
    bt_order_t *next;
    bt_shop_t *shop; /* NULL once its thread is joined */
    bt_loop_t *loop; /* NULL = no letter */
    pthread_t thread;
    unsigned holds;
    _Atomic int state;
    _Atomic bool is_cancelled;
    /* to make: */
    bt_policy_source_t *source; /* NULL: to free */
    bt_value_t *params, *old;
    bt_warm_t *warm;
    bool is_shadow;
    bt_made_t *made;
    int rc;
    char err[640];
    /* to free: */
    unsigned count;
    bt_made_t *dead[];
};

static void let_go(bt_order_t *o)
{
    if (--o->holds > 0)
        return;
    bt_policy_source_unref(o->source);
    bt_value_free(o->params);
    bt_value_free(o->old);
    bt_warm_free(o->warm);
    free(o);
}

static void make(bt_order_t *o)
{
    int running = RUNNING;

    const bt_made_spec_t spec = {.source = o->source,
                                 .params = o->params,
                                 .old = o->old,
                                 .is_shadow = o->is_shadow,
                                 .cancelled = &o->is_cancelled};

    o->rc = bt_made_new(&o->made, &spec, o->err, sizeof o->err);
    if (o->rc == 0 && !atomic_load(&o->is_cancelled))
        prewarm(bt_made_policy(o->made), o->warm);
    bt_warm_free(o->warm);
    o->warm = NULL;
    if (atomic_compare_exchange_strong(&o->state, &running, ENDED))
        return;
    bt_made_free(o->made); /* nobody is there to take it */
    o->made = NULL;
    atomic_store(&o->state, ENDED);
}

static void work(bt_order_t *o)
{
    if (o->source != NULL) {
        make(o);
        return;
    }
    for (unsigned i = 0; i < o->count; i++)
        bt_made_free(o->dead[i]);
    atomic_store(&o->state, ENDED);
}

/* The thread is no more. */
static void forget(bt_order_t *o)
{
    bt_order_t **at;

    for (at = &o->shop->orders; *at != o; at = &(*at)->next) {}
    *at = o->next;
    o->shop = NULL;
    let_go(o);
}

/* Blocks while the thread runs. */
static void join(bt_order_t *o)
{
    if (o->shop == NULL)
        return;
    pthread_join(o->thread, NULL);
    forget(o);
}

/* The thread has said its last word, but on a busy machine it may be long until it runs again to end: no loop waits for that. */
static void join_ended(bt_order_t *o)
{
    if (o->shop != NULL && pthread_tryjoin_np(o->thread, NULL) == 0)
        forget(o);
}

static void on_letter(bt_loop_t *loop, bt_msg_t *msg)
{
    bt_order_t *o = bt_container_of(msg, bt_order_t, msg);
    bt_shop_t *shop = o->shop;

    (void) loop;
    o->loop = NULL; /* from here on sweep may join it */
    join_ended(o);
    let_go(o); /* shop is NULL when it was joined before: then the shop may be gone */
    if (shop != NULL && shop->on_ended != NULL)
        shop->on_ended(shop->user);
}

static void *run(void *arg)
{
    bt_order_t *o = arg;
    bt_loop_t *loop = o->loop;

    bt_thread_to_background();
    work(o);
    if (loop != NULL)
        bt_loop_post(loop, &o->msg, on_letter);
    return NULL;
}

/* Threads that have ended meanwhile: those that nobody told of, and those that were not quite gone when they told. */
static void sweep(bt_shop_t *shop)
{
    bt_order_t *next;

    for (bt_order_t *o = shop->orders; o != NULL; o = next) {
        next = o->next;
        if (o->loop == NULL && atomic_load(&o->state) == ENDED)
            join_ended(o);
    }
}

/* Where no thread can be had the work is done at once: a stall is better than no policy. */
static void start(bt_shop_t *shop, bt_order_t *o)
{
    sweep(shop);
    o->loop = shop->loop;
    o->shop = shop;
    o->holds += o->loop != NULL ? 2 : 1;
    o->next = shop->orders;
    shop->orders = o;
    if (!shop->is_closed && pthread_create(&o->thread, NULL, run, o) == 0)
        return;
    shop->orders = o->next;
    o->holds -= o->loop != NULL ? 2 : 1;
    o->shop = NULL;
    o->loop = NULL;
    work(o);
}

int bt_shop_order(bt_shop_t *shop, bt_order_t **order_p, bt_policy_source_t *source,
                  const bt_value_t *params, bt_value_t *old, bt_warm_t *warm, bool is_shadow)
{
    bt_order_t *o = calloc(1, sizeof *o);

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
    start(shop, o);
    *order_p = o;
    return 0;
}

bool bt_order_has_ended(const bt_order_t *order)
{
    return atomic_load(&((bt_order_t *) (uintptr_t) order)->state) == ENDED;
}

int bt_order_take(bt_order_t **order_p, bt_made_t **made_p, char *err, size_t err_size)
{
    bt_order_t *o = *order_p;
    const int rc = o->rc;

    *order_p = NULL;
    if (rc == 0)
        *made_p = o->made;
    else
        snprintf(err, err_size, "%s", o->err);
    o->made = NULL;
    let_go(o);
    return rc;
}

void bt_order_drop(bt_order_t **order_p)
{
    bt_order_t *o = *order_p;
    int running = RUNNING;

    *order_p = NULL;
    if (o == NULL)
        return;
    atomic_store(&o->is_cancelled, true);
    if (!atomic_compare_exchange_strong(&o->state, &running, DROPPED) && o->made != NULL) {
        if (o->shop != NULL)
            bt_shop_free_made(o->shop, &o->made, 1);
        else
            bt_made_free(o->made);
        o->made = NULL;
    }
    let_go(o);
}

void bt_order_wait(bt_order_t *order)
{
    join(order);
}

void bt_shop_free_made(bt_shop_t *shop, bt_made_t **made, unsigned count)
{
    bt_order_t *o = count > 0 ? calloc(1, sizeof *o + count * sizeof(bt_made_t *)) : NULL;

    if (o == NULL) {
        for (unsigned i = 0; i < count; i++)
            bt_made_free(made[i]);
        return;
    }
    atomic_init(&o->state, RUNNING);
    o->count = count;
    memcpy(o->dead, made, count * sizeof(bt_made_t *));
    o->holds = 1;
    start(shop, o);
    let_go(o);
}

void bt_shop_fini(bt_shop_t *shop)
{
    while (shop->orders != NULL)
        join(shop->orders);
    shop->is_closed = true;
}
