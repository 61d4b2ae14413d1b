/* A commit is one generation's way through the loops; mail goes out to all and returns.
 *
 *   RESERVE ---all could---> PREPARE (on threads) ---all could---> COMMIT ---all have---> over
 *     |                         |
 *     |                         +--somebody could not: ABORT ---all have---> over, the old generation never stopped serving
 *     +--somebody has BT_GENERATIONS_MAX alive: ABORT, and again a little later, until the deadline
 *
 * A PREPARE mail stays with its loop while threads make VMs; the loop hears of each that ends, and returns the mail after
 * the last. Nothing is begun anywhere before all loops have room, so that no thread works for nothing.
 *
 * The commit mail is written in one go; a loop reads its own as soon as its turn ends. For that moment loops may serve two
 * generations, but no request sees a mixture: it pins one. */
#include "reload/reload_impl.h"

#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>

#define RETRY_MS 20
#define PATIENCE_MS 10000 /* for requests that hold old generations */

typedef struct commit_mail {
    bt_mail_t envelope;
    bt_reload_t *reload; /* control loop only */
    const bt_reload_loop_t *at;
    bt_loop_t *control;
    bt_policy_bundle_t *bundle; /* reference */
    int rc;
    uint64_t stall_us; /* longest the loop stood still for this mail */
    uint64_t
        work_us; /* longest that it worked for it, in CPU time: the rest it waited for a core */
    char err[BT_POLICY_ERROR_BYTES];
} commit_mail_t;

static void post_all(bt_reload_t *reload, enum bt_reload_step step, bt_mail_cb cb)
{
    const bt_reload_config_t *c = &reload->config;

    bt_reload_enter(reload, step);
    reload->commit.waiting = c->loop_count;
    for (unsigned i = 0; i < c->loop_count; i++) {
        commit_mail_t *mail = calloc(1, sizeof *mail);
        BT_BUG_ON(mail == NULL);
        mail->reload = reload;
        mail->at = &c->loops[i];
        mail->control = c->control;
        mail->bundle = bt_bundle_ref(reload->commit.bundle);
        bt_loop_post(mail->at->loop, &mail->envelope, cb);
    }
}

/* True when it was the last one out. */
static bool returned(commit_mail_t *mail)
{
    bt_reload_commit_t *commit = &mail->reload->commit;
    bool is_last = --commit->waiting == 0;

    if (mail->stall_us > commit->stall_us)
        commit->stall_us = mail->stall_us;
    if (mail->work_us > commit->work_us)
        commit->work_us = mail->work_us;
    if (mail->rc < 0 && (commit->rc == 0 || commit->rc == BT_E_AGAIN)) {
        commit->rc = mail->rc;
        snprintf(commit->err, sizeof commit->err, "%s", mail->err);
    }
    bt_bundle_unref(mail->bundle);
    free(mail);
    return is_last;
}

static void end_commit(bt_reload_t *reload)
{
    bt_reload_commit_t *commit = &reload->commit;
    int rc = commit->rc;

    bt_bundle_unref(commit->bundle);
    commit->bundle = NULL;
    commit->is_running = false;
    bt_reload_commit_over(reload, rc, commit->err);
}

/* ---- on the loops ---- */

static void note_stall(commit_mail_t *mail, uint64_t since_us, uint64_t since_cpu_us)
{
    const uint64_t us = bt_clock_us() - since_us, work_us = bt_clock_cpu_us() - since_cpu_us;

    if (us > mail->stall_us)
        mail->stall_us = us;
    if (work_us > mail->work_us)
        mail->work_us = work_us;
}

static void on_reserved(bt_loop_t *control, bt_mail_t *envelope);
static void on_prepared(bt_loop_t *control, bt_mail_t *envelope);
static void on_committed(bt_loop_t *control, bt_mail_t *envelope);
static void on_aborted(bt_loop_t *control, bt_mail_t *envelope);

static void reserve(bt_loop_t *loop, bt_mail_t *envelope)
{
    commit_mail_t *mail = bt_container_of(envelope, commit_mail_t, envelope);
    bt_dispatcher_t *d = *mail->at->dispatcher;

    (void) loop;
    mail->rc = d != NULL ? bt_generations_begin(&d->generations, mail->bundle)
                         : BT_E_CANCELLED; /* the process ends */
    snprintf(mail->err, sizeof mail->err, "%s", bt_err_text(mail->rc));
    bt_loop_post(mail->control, envelope, on_reserved);
}

/* Once as the mail comes, then whenever a thread has ended. */
static void build(void *user)
{
    commit_mail_t *mail = user;
    bt_generations_t *gs = &(*mail->at->dispatcher)->generations;
    const uint64_t start_us = bt_clock_us(), start_cpu_us = bt_clock_cpu_us();

    snprintf(mail->err, sizeof mail->err, "%s", bt_err_text(BT_E_CANCELLED));
    mail->rc = bt_generations_build(gs, mail->err, sizeof mail->err);
    note_stall(mail, start_us, start_cpu_us);
    if (mail->rc > 0)
        return;
    bt_generations_listen(gs, mail->at->loop, NULL, NULL);
    bt_loop_post(mail->control, &mail->envelope, on_prepared);
}

static void prepare(bt_loop_t *loop, bt_mail_t *envelope)
{
    commit_mail_t *mail = bt_container_of(envelope, commit_mail_t, envelope);
    bt_dispatcher_t *d = *mail->at->dispatcher;

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
    commit_mail_t *mail = bt_container_of(envelope, commit_mail_t, envelope);
    bt_dispatcher_t *d = *mail->at->dispatcher;
    const uint64_t start_us = bt_clock_us(), start_cpu_us = bt_clock_cpu_us();

    (void) loop;
    if (d != NULL && d->generations.prepared != NULL)
        bt_dispatcher_commit(d);
    note_stall(mail, start_us, start_cpu_us);
    bt_loop_post(mail->control, envelope, on_committed);
}

static void abort_prepared(bt_loop_t *loop, bt_mail_t *envelope)
{
    commit_mail_t *mail = bt_container_of(envelope, commit_mail_t, envelope);
    bt_dispatcher_t *d = *mail->at->dispatcher;

    (void) loop;
    if (d != NULL)
        bt_generations_abort(&d->generations);
    bt_loop_post(mail->control, envelope, on_aborted);
}

/* ---- on return ---- */

/* True when all have returned and the commit may go on. */
static bool all_returned(commit_mail_t *mail)
{
    bt_reload_t *reload = mail->reload;

    if (!returned(mail))
        return false;
    if (!reload->is_closing)
        return true;
    reload->commit.rc = BT_E_CANCELLED;
    end_commit(reload);
    return false;
}

static void on_reserved(bt_loop_t *control, bt_mail_t *envelope)
{
    commit_mail_t *mail = bt_container_of(envelope, commit_mail_t, envelope);
    bt_reload_t *reload = mail->reload;

    (void) control;
    if (!all_returned(mail))
        return;
    if (reload->commit.rc == 0)
        post_all(reload, BT_RELOAD_PREPARE, prepare);
    else
        post_all(reload, BT_RELOAD_ABORT, abort_prepared);
}

static void on_prepared(bt_loop_t *control, bt_mail_t *envelope)
{
    commit_mail_t *mail = bt_container_of(envelope, commit_mail_t, envelope);
    bt_reload_t *reload = mail->reload;

    (void) control;
    if (!all_returned(mail))
        return;
    reload->commit.commit_us = bt_clock_us();
    if (reload->commit.rc < 0) {
        post_all(reload, BT_RELOAD_ABORT, abort_prepared);
        return;
    }
    post_all(reload, BT_RELOAD_COMMIT, commit);
    bt_reload_commit_sent(reload);
}

static void on_committed(bt_loop_t *control, bt_mail_t *envelope)
{
    commit_mail_t *mail = bt_container_of(envelope, commit_mail_t, envelope);
    bt_reload_t *reload = mail->reload;

    (void) control;
    if (!returned(mail))
        return;
    reload->stats.last_commit_us = bt_clock_us() - reload->commit.commit_us;
    if (reload->commit.stall_us > reload->stats.max_stall_us)
        reload->stats.max_stall_us = reload->commit.stall_us;
    if (reload->commit.work_us > reload->stats.max_work_us)
        reload->stats.max_work_us = reload->commit.work_us;
    end_commit(reload);
}

static void on_aborted(bt_loop_t *control, bt_mail_t *envelope)
{
    commit_mail_t *mail = bt_container_of(envelope, commit_mail_t, envelope);
    bt_reload_t *reload = mail->reload;
    bt_reload_commit_t *commit = &reload->commit;

    (void) control;
    if (!returned(mail))
        return;
    if (commit->rc == BT_E_AGAIN && !reload->is_closing && bt_clock_ms() < commit->deadline_ms) {
        bt_timer_start(&commit->retry, RETRY_MS);
        return;
    }
    if (commit->rc == BT_E_AGAIN)
        snprintf(commit->err, sizeof commit->err,
                 "requests without a first byte still hold %d older generations; try again later",
                 BT_GENERATIONS_MAX - 1);
    end_commit(reload);
}

static void on_retry(bt_timer_t *timer)
{
    bt_reload_commit_t *commit = bt_container_of(timer, bt_reload_commit_t, retry);
    bt_reload_t *reload = bt_container_of(commit, bt_reload_t, commit);

    commit->rc = 0;
    post_all(reload, BT_RELOAD_RESERVE, reserve);
}

/* ---- starting ---- */

void bt_reload_commit_init(bt_reload_t *reload)
{
    bt_timer_init(reload->config.control, &reload->commit.retry, on_retry);
}

int bt_reload_commit_start(bt_reload_t *reload, bt_policy_bundle_t *bundle)
{
    bt_reload_commit_t *commit = &reload->commit;

    BT_ASSERT(!commit->is_running);
    commit->is_running = true;
    commit->bundle = bundle;
    commit->rc = 0;
    commit->err[0] = '\0';
    commit->stall_us = commit->work_us = 0;
    commit->start_us = bt_clock_us();
    commit->deadline_ms = bt_clock_ms() + PATIENCE_MS;
    post_all(reload, BT_RELOAD_RESERVE, reserve);
    return 0;
}

/* All loops' threads work at the same time: start may wait. */
int bt_reload_commit_first(const bt_reload_t *reload, bt_policy_bundle_t *bundle, char *err,
                           size_t err_size)
{
    const bt_reload_config_t *c = &reload->config;
    int rc = 0;

    for (unsigned i = 0; i < c->loop_count && rc >= 0; i++) {
        rc = bt_generations_begin(&(*c->loops[i].dispatcher)->generations, bundle);
        snprintf(err, err_size, "%s", bt_err_text(rc));
        if (rc == 0)
            rc = bt_generations_build(&(*c->loops[i].dispatcher)->generations, err, err_size);
    }
    for (unsigned i = 0; i < c->loop_count && rc >= 0; i++) {
        bt_generations_t *gs = &(*c->loops[i].dispatcher)->generations;
        while ((rc = bt_generations_build(gs, err, err_size)) > 0)
            bt_generations_wait(gs);
        if (rc == 0)
            bt_dispatcher_commit(*c->loops[i].dispatcher);
        bt_generations_listen(gs, c->loops[i].loop, NULL, NULL);
    }
    return rc < 0 ? rc : 0;
}
