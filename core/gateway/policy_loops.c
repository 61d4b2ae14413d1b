/* A round is one generation's way through the loops; mail goes out to all and returns.
 *
 *   BEGIN ---all could---> PREPARE (on threads) ---all could---> COMMIT ---all have---> over
 *     |                       |
 *     |                       +--somebody could not: ABORT ---all have---> over, the old generation never stopped serving
 *     +--somebody has BT_GENERATIONS_MAX alive: ABORT, and again a little later, until the deadline
 *
 * A PREPARE mail stays with its loop while threads make VMs; the loop hears of each that ends, and returns the mail after
 * the last. Nothing is begun anywhere before all loops have room, so that no thread works for nothing.
 *
 * The commit mail is written in one go; a loop reads its own as soon as its turn ends. For that moment loops may serve two
 * generations, but no request sees a mixture: it pins one. */
#include "gateway/policy.h"

#include "base/err.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define RETRY_MS 20
#define PATIENCE_MS 10000 /* for requests that hold old generations */

typedef struct policy_mail {
    bt_mail_t envelope;
    bt_gateway_policy_t *gp; /* control loop only */
    bt_gateway_loop_t *el;
    bt_loop_t *control;
    bt_policy_bundle_t *bundle; /* reference */
    int rc;
    uint64_t stall_us; /* longest the loop stood still for this mail */
    uint64_t
        work_us; /* longest that it worked for it, in CPU time: the rest it waited for a core */
    char err[BT_POLICY_ERROR_BYTES];
} policy_mail_t;

static void post_all(bt_gateway_policy_t *gp, bt_mail_cb cb)
{
    bt_gateway_t *g = gp->g;

    gp->round.waiting = g->loop_count;
    for (unsigned i = 0; i < g->loop_count; i++) {
        policy_mail_t *mail = calloc(1, sizeof *mail);
        BT_BUG_ON(mail == NULL);
        mail->gp = gp;
        mail->el = &g->loops[i];
        mail->control = &g->control;
        mail->bundle = bt_bundle_ref(gp->round.bundle);
        bt_loop_post(&mail->el->loop, &mail->envelope, cb);
    }
}

/* True when it was the last one out. */
static bool returned(policy_mail_t *mail)
{
    bt_policy_round_t *round = &mail->gp->round;
    bool is_last = --round->waiting == 0;

    if (mail->stall_us > round->stall_us)
        round->stall_us = mail->stall_us;
    if (mail->work_us > round->work_us)
        round->work_us = mail->work_us;
    if (mail->rc < 0 && (round->rc == 0 || round->rc == BT_E_AGAIN)) {
        round->rc = mail->rc;
        snprintf(round->err, sizeof round->err, "%s", mail->err);
    }
    bt_bundle_unref(mail->bundle);
    free(mail);
    return is_last;
}

static void end_round(bt_gateway_policy_t *gp)
{
    bt_policy_round_t *round = &gp->round;
    int rc = round->rc;

    bt_bundle_unref(round->bundle);
    round->bundle = NULL;
    round->is_running = false;
    bt_policy_round_over(gp, rc, round->err);
}

/* ---- on the loops ---- */

static uint64_t cpu_us(void)
{
    struct timespec t = {0};

    (void) clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t) t.tv_sec * 1000000 + (uint64_t) t.tv_nsec / 1000;
}

static void note_stall(policy_mail_t *mail, uint64_t since_us, uint64_t since_cpu_us)
{
    const uint64_t us = bt_clock_us() - since_us, work_us = cpu_us() - since_cpu_us;

    if (us > mail->stall_us)
        mail->stall_us = us;
    if (work_us > mail->work_us)
        mail->work_us = work_us;
}

static void on_begun(bt_loop_t *control, bt_mail_t *envelope);
static void on_prepared(bt_loop_t *control, bt_mail_t *envelope);
static void on_committed(bt_loop_t *control, bt_mail_t *envelope);
static void on_aborted(bt_loop_t *control, bt_mail_t *envelope);

static void begin(bt_loop_t *loop, bt_mail_t *envelope)
{
    policy_mail_t *mail = bt_container_of(envelope, policy_mail_t, envelope);
    bt_dispatcher_t *d = mail->el->dispatcher;

    (void) loop;
    mail->rc = d != NULL ? bt_generations_begin(&d->generations, mail->bundle)
                         : BT_E_CANCELLED; /* the process ends */
    snprintf(mail->err, sizeof mail->err, "%s", bt_err_text(mail->rc));
    bt_loop_post(mail->control, envelope, on_begun);
}

/* Once as the mail comes, then whenever a thread has ended. */
static void build(void *user)
{
    policy_mail_t *mail = user;
    bt_generations_t *gs = &mail->el->dispatcher->generations;
    const uint64_t start_us = bt_clock_us(), start_cpu_us = cpu_us();

    snprintf(mail->err, sizeof mail->err, "%s", bt_err_text(BT_E_CANCELLED));
    mail->rc = bt_generations_build(gs, mail->err, sizeof mail->err);
    note_stall(mail, start_us, start_cpu_us);
    if (mail->rc > 0)
        return;
    bt_generations_listen(gs, &mail->el->loop, NULL, NULL);
    bt_loop_post(mail->control, &mail->envelope, on_prepared);
}

static void prepare(bt_loop_t *loop, bt_mail_t *envelope)
{
    policy_mail_t *mail = bt_container_of(envelope, policy_mail_t, envelope);
    bt_dispatcher_t *d = mail->el->dispatcher;

    if (d == NULL) {
        mail->rc = BT_E_CANCELLED;
        bt_loop_post(mail->control, envelope, on_prepared);
        return;
    }
    bt_generations_listen(&d->generations, loop, build, mail);
    build(mail);
}

static void commit(bt_loop_t *loop, bt_mail_t *envelope)
{
    policy_mail_t *mail = bt_container_of(envelope, policy_mail_t, envelope);
    bt_dispatcher_t *d = mail->el->dispatcher;
    const uint64_t start_us = bt_clock_us(), start_cpu_us = cpu_us();

    (void) loop;
    if (d != NULL && d->generations.prepared != NULL)
        bt_dispatcher_commit(d);
    note_stall(mail, start_us, start_cpu_us);
    bt_loop_post(mail->control, envelope, on_committed);
}

static void abort_prepared(bt_loop_t *loop, bt_mail_t *envelope)
{
    policy_mail_t *mail = bt_container_of(envelope, policy_mail_t, envelope);
    bt_dispatcher_t *d = mail->el->dispatcher;

    (void) loop;
    if (d != NULL)
        bt_generations_abort(&d->generations);
    bt_loop_post(mail->control, envelope, on_aborted);
}

/* ---- on return ---- */

/* True when all have returned and the round may go on. */
static bool all_returned(policy_mail_t *mail)
{
    bt_gateway_policy_t *gp = mail->gp;

    if (!returned(mail))
        return false;
    if (!gp->is_closing)
        return true;
    gp->round.rc = BT_E_CANCELLED;
    end_round(gp);
    return false;
}

static void on_begun(bt_loop_t *control, bt_mail_t *envelope)
{
    policy_mail_t *mail = bt_container_of(envelope, policy_mail_t, envelope);
    bt_gateway_policy_t *gp = mail->gp;

    (void) control;
    if (!all_returned(mail))
        return;
    post_all(gp, gp->round.rc == 0 ? prepare : abort_prepared);
}

static void on_prepared(bt_loop_t *control, bt_mail_t *envelope)
{
    policy_mail_t *mail = bt_container_of(envelope, policy_mail_t, envelope);
    bt_gateway_policy_t *gp = mail->gp;

    (void) control;
    if (!all_returned(mail))
        return;
    gp->round.commit_us = bt_clock_us();
    post_all(gp, gp->round.rc == 0 ? commit : abort_prepared);
    if (gp->round.rc == 0)
        bt_policy_round_commits(gp);
}

static void on_committed(bt_loop_t *control, bt_mail_t *envelope)
{
    policy_mail_t *mail = bt_container_of(envelope, policy_mail_t, envelope);
    bt_gateway_policy_t *gp = mail->gp;

    (void) control;
    if (!returned(mail))
        return;
    gp->last_swap_us = bt_clock_us() - gp->round.commit_us;
    if (gp->round.stall_us > gp->max_stall_us)
        gp->max_stall_us = gp->round.stall_us;
    if (gp->round.work_us > gp->max_work_us)
        gp->max_work_us = gp->round.work_us;
    end_round(gp);
}

static void on_aborted(bt_loop_t *control, bt_mail_t *envelope)
{
    policy_mail_t *mail = bt_container_of(envelope, policy_mail_t, envelope);
    bt_gateway_policy_t *gp = mail->gp;
    bt_policy_round_t *round = &gp->round;

    (void) control;
    if (!returned(mail))
        return;
    if (round->rc == BT_E_AGAIN && !gp->is_closing && bt_clock_ms() < round->deadline_ms) {
        bt_timer_start(&round->retry, RETRY_MS);
        return;
    }
    if (round->rc == BT_E_AGAIN)
        snprintf(round->err, sizeof round->err,
                 "requests without a first byte still hold %d older generations; try again later",
                 BT_GENERATIONS_MAX - 1);
    end_round(gp);
}

static void on_retry(bt_timer_t *timer)
{
    bt_policy_round_t *round = bt_container_of(timer, bt_policy_round_t, retry);
    bt_gateway_policy_t *gp = bt_container_of(round, bt_gateway_policy_t, round);

    round->rc = 0;
    post_all(gp, begin);
}

/* ---- starting ---- */

void bt_policy_round_init(bt_gateway_policy_t *gp)
{
    bt_timer_init(&gp->g->control, &gp->round.retry, on_retry);
}

int bt_policy_round_start(bt_gateway_policy_t *gp, bt_policy_bundle_t *bundle)
{
    bt_policy_round_t *round = &gp->round;

    BT_ASSERT(!round->is_running);
    round->is_running = true;
    round->bundle = bundle;
    round->rc = 0;
    round->err[0] = '\0';
    round->stall_us = round->work_us = 0;
    round->start_us = bt_clock_us();
    round->deadline_ms = bt_clock_ms() + PATIENCE_MS;
    post_all(gp, begin);
    return 0;
}

/* All loops' threads work at the same time: start may wait. */
int bt_policy_round_first(bt_gateway_t *g, bt_policy_bundle_t *bundle, char *err, size_t err_size)
{
    int rc = 0;

    for (unsigned i = 0; i < g->loop_count && rc >= 0; i++) {
        rc = bt_generations_begin(&g->loops[i].dispatcher->generations, bundle);
        snprintf(err, err_size, "%s", bt_err_text(rc));
        if (rc == 0)
            rc = bt_generations_build(&g->loops[i].dispatcher->generations, err, err_size);
    }
    for (unsigned i = 0; i < g->loop_count && rc >= 0; i++) {
        bt_generations_t *gs = &g->loops[i].dispatcher->generations;
        while ((rc = bt_generations_build(gs, err, err_size)) > 0)
            bt_generations_wait(gs);
        if (rc == 0)
            bt_dispatcher_commit(g->loops[i].dispatcher);
        bt_generations_listen(gs, &g->loops[i].loop, NULL, NULL);
    }
    return rc < 0 ? rc : 0;
}
