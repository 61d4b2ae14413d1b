/* failure.c - engines whose process ends and comes back, or whose host falls silent, and how the gateway hears of it.
 *
 * A process ends: its connections are reset at once: every leg on them fails then. Nothing says that the worker is down until a connection to it is refused,
 * or the next health check is; whoever is sent to it before loses an attempt. From then on it is checked every second, and is up again with
 * the second good answer. Its KV is gone, and what its engine told of it no longer holds once it tells that it has begun anew.
 *
 * A host falls silent: connections stay, new ones are taken, and nothing comes. Requests are sent there and wait until three checks in a row had
 * no answer within 2 s; then what waits there ends, as cluster/checks/loss.c has it (without its exception for most of a large role), and it is
 * as one whose process has ended.
 *
 * A decode that waits for KV of a prefill that is gone fails too. What a prefill keeps for a decode that is gone stays until its lease ends. */
#include "simulator/sim_impl.h"

#include "base/err.h"
#include "script/shared/prefix_index.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define HEALTH_S 5.0  /* between two checks of a worker that is up, as the gateway's */
#define STARTUP_S 1.0 /* of one that is down */
#define SUCCESSES 2
#define CHECK_S 2.0 /* that a check may take */
#define FAILURES 3
#define SILENT "silent:"

/* ---- which ---- */

static int bad(char *err, size_t err_size, const char *text, const char *why)
{
    snprintf(err, err_size,
             "--fail: %.60s: %s; p0@60-120 is the first prefill engine, from 60 s to 120 s, d1@60 "
             "the second decode engine for good, decode@60-120 all of them, silent:p0@60 a host "
             "that does not answer any more",
             text, why);
    return BT_E_INVAL;
}

/* "p0" or "prefill": of `count` engines of this role, which begin at `first`. */
static bool read_who(const char *text, size_t n, const char *role, unsigned first, unsigned count,
                     unsigned *from_p, unsigned *count_p)
{
    char *end;

    if (n == strlen(role) && strncmp(text, role, n) == 0) {
        *from_p = first;
        *count_p = count;
        return count > 0;
    }
    const char initial = strcmp(role, "hybrid") == 0 ? 'w' : role[0];
    if (n < 2 || text[0] != initial || text[1] < '0' || text[1] > '9')
        return false;
    const unsigned long number = strtoul(text + 1, &end, 10);
    *from_p = first + (unsigned) number;
    *count_p = 1;
    return end == text + n && number < count;
}

static bool read_span(const char *text, double *from_p, double *until_p, const char **end_p)
{
    char *end;

    *from_p = strtod(text, &end);
    *until_p = INFINITY;
    if (end == text || !(*from_p >= 0 && *from_p <= BT_SIM_SECONDS_MAX))
        return false;
    if (*end == '-') {
        const char *until = end + 1;
        *until_p = strtod(until, &end);
        if (end == until || !(*until_p > *from_p && *until_p <= BT_SIM_SECONDS_MAX))
            return false;
    }
    *end_p = end;
    return *end == '\0' || *end == ',';
}

static int by_time(const void *a, const void *b)
{
    const bt_sim_failure_t *x = a, *y = b;

    if (x->from_s != y->from_s)
        return x->from_s < y->from_s ? -1 : 1;
    return x->engine < y->engine ? -1 : x->engine > y->engine;
}

static int check_order(const bt_sim_failure_t *list, unsigned count, char *err, size_t err_size)
{
    for (unsigned i = 0; i < count; i++)
        for (unsigned k = 0; k < i; k++)
            if (list[k].engine == list[i].engine && !(list[k].until_s < list[i].from_s)) {
                snprintf(err, err_size, "--fail: an engine fails at %g s that is down already",
                         list[i].from_s);
                return BT_E_INVAL;
            }
    return 0;
}

int bt_sim_failures_read(const char *text, unsigned prefills, unsigned decodes, unsigned hybrids,
                         bt_sim_failure_t *list, unsigned *count_p, char *err, size_t err_size)
{
    unsigned n = 0;

    for (const char *at = text; *at != '\0'; at += *at == ',') {
        unsigned first, count;
        bt_sim_failure_t f = {.is_silent = strncmp(at, SILENT, strlen(SILENT)) == 0};
        const char *who = f.is_silent ? at + strlen(SILENT) : at, *to = strchr(who, '@');
        if (to == NULL)
            return bad(err, err_size, at, "when?");
        const size_t len = (size_t) (to - who);
        if (!read_who(who, len, "prefill", 0, prefills, &first, &count) &&
            !read_who(who, len, "decode", prefills, decodes, &first, &count) &&
            !read_who(who, len, "hybrid", prefills + decodes, hybrids, &first, &count))
            return bad(err, err_size, at, "there is no such engine");
        if (!read_span(to + 1, &f.from_s, &f.until_s, &to))
            return bad(err, err_size, at, "expected seconds up to 1e7, or from-until");
        if (count > BT_SIM_FAILURES_MAX - n)
            return bad(err, err_size, at, "more than 64 failures");
        for (f.engine = first; f.engine < first + count; f.engine++)
            list[n++] = f;
        at = to;
    }
    qsort(list, n, sizeof *list, by_time);
    *count_p = n;
    return check_order(list, n, err, err_size);
}

/* ---- in a run ---- */

int bt_sim_failures_init(bt_sim_run_t *r)
{
    r->out->failure_count = r->setup->failure_count;
    for (unsigned i = 0; i < r->setup->failure_count; i++) {
        const bt_sim_failure_t *f = &r->setup->failures[i];
        bt_sim_failure_result_t *out = &r->out->failures[i];
        *out = (bt_sim_failure_result_t){
            .from_s = f->from_s, .until_s = f->until_s, .known_s = -1, .usable_s = -1};
        snprintf(out->name, sizeof out->name, "%s", r->workers[f->engine]->name);
        bt_sim_events_push(&r->events, f->from_s, BT_SIM_FAIL, f->engine, NULL);
    }
    return r->events.rc;
}

static bt_sim_failure_result_t *failure_of(bt_sim_run_t *r, unsigned engine)
{
    return &r->out->failures[r->watches[engine].failure - 1];
}

static void lose(bt_sim_run_t *r, unsigned engine, int rc);

static void check_in(bt_sim_run_t *r, unsigned engine, double at_s)
{
    bt_sim_events_forget(&r->events, BT_SIM_CHECK, engine, NULL);
    bt_sim_events_push(&r->events, at_s, BT_SIM_CHECK, engine, NULL);
}

static void note_down(bt_sim_run_t *r, unsigned engine)
{
    bt_worker_t *w = r->workers[engine];

    r->watches[engine].oks = 0;
    if (atomic_load(&w->health) != BT_HEALTH_DOWN) {
        failure_of(r, engine)->known_s = r->now_s;
        bt_worker_set_health(w, BT_HEALTH_DOWN, "it is dead");
    }
    if (isfinite(r->watches[engine].back_s))
        check_in(r, engine, r->now_s + STARTUP_S);
}

void bt_sim_refused(bt_sim_run_t *r, bt_sim_flight_t *f, unsigned engine)
{
    f->failure = r->watches[engine].failure;
    failure_of(r, engine)->refused++;
    note_down(r, engine);
}

void bt_sim_check(bt_sim_run_t *r, unsigned engine)
{
    bt_worker_t *w = r->workers[engine];
    bt_sim_watch_t *watch = &r->watches[engine];

    if (watch->is_silent && ++watch->unanswered < FAILURES) {
        check_in(r, engine, r->now_s + HEALTH_S); /* from check to check, however long one takes */
        return;
    }
    if (watch->is_silent) {
        note_down(r, engine);
        lose(r, engine, BT_E_LOST);
        return;
    }
    if (watch->is_dead) {
        note_down(r, engine);
        return;
    }
    if (atomic_load(&w->health) != BT_HEALTH_DOWN)
        return; /* it was back before anybody saw that it was gone */
    if (++watch->oks < SUCCESSES) {
        check_in(r, engine, r->now_s + STARTUP_S);
        return;
    }
    bt_prefix_forget((uint32_t) w->id);
    bt_worker_set_health(w, BT_HEALTH_UP, "it is back");
    failure_of(r, engine)->usable_s = r->now_s;
}

void bt_sim_revive(bt_sim_run_t *r, unsigned engine)
{
    if (r->watches[engine]
            .is_silent) /* nobody has seen it; what begins anew knows no connections */
        lose(r, engine, BT_E_RESET);
    r->watches[engine].is_dead = false;
    if (r->setup->is_exact)
        bt_sim_feed_restart(&r->feed, engine);
}

void bt_sim_lease_ended(bt_sim_run_t *r, unsigned engine, const bt_sim_request_t *request)
{
    const bt_sim_job_t job = {.request = request};

    bt_sim_engine_let_go(&r->engines[engine], &job, false);
    bt_sim_engine_go_on(r, engine);
}

/* ---- what was on it ---- */

/* What still moves over its link has its time already. */
static void free_link(bt_sim_run_t *r, unsigned engine)
{
    double until_s = r->now_s;

    for (unsigned i = 0; i < r->events.count; i++) {
        const bt_sim_event_t *e = &r->events.heap[i];
        if (e->kind == BT_SIM_MOVED &&
            (e->engine == engine || ((const bt_sim_job_t *) e->of)->prefill == engine))
            until_s = fmax(until_s, e->at_s);
    }
    r->engines[engine].link_free_s = until_s;
}

/* Out of the engine that lives, of a pair. */
static void detach(bt_sim_run_t *r, bt_sim_flight_t *f, unsigned dead)
{
    bt_sim_job_t *job = &f->job;
    bt_sim_engine_t *decode = &r->engines[job->decode == BT_SIM_OPEN ? dead : job->decode];

    if (f->stage == BT_SIM_ANSWER)
        f->decode.load.tokens += (int64_t) bt_sim_engine_made(decode, job);
    if (f->stage != BT_SIM_AWAITED && f->stage != BT_SIM_MOVING)
        return;
    if (f->stage == BT_SIM_MOVING) {
        bt_sim_events_forget(&r->events, BT_SIM_MOVED, job->decode, job);
        free_link(r, job->decode == dead ? job->prefill : job->decode);
    }
    if (job->decode == dead)
        bt_sim_events_push(&r->events, r->now_s + r->setup->lease_s, BT_SIM_LEASE, job->prefill,
                           (void *) (uintptr_t) job->request);
    else if (f->stage == BT_SIM_AWAITED)
        bt_sim_queue_remove(&decode->awaited, job);
    else
        bt_sim_engine_let_go(decode, job, true);
}

static void fail_leg(bt_sim_run_t *r, bt_sim_flight_t *f, unsigned dead, int rc)
{
    const bool is_alone = f->job.prefill == f->job.decode;
    const bool waits = f->stage == BT_SIM_AWAITED || f->stage == BT_SIM_MOVING;
    const unsigned decode = f->job.decode;

    f->failure = r->watches[dead].failure;
    failure_of(r, dead)->lost++;
    if (waits && decode != dead) {
        bt_sim_attempt_failed(r, f, BT_E_KV_TRANSFER, "decode", NULL);
        bt_sim_engine_go_on(r, decode);
        return;
    }
    bt_sim_attempt_failed(r, f, rc,
                          is_alone                    ? "single"
                          : f->stage == BT_SIM_PROMPT ? "prefill"
                                                      : "decode",
                          r->workers[dead]);
}

/* It has nothing any more, and what was on it ends so. */
static void lose(bt_sim_run_t *r, unsigned engine, int rc)
{
    bt_list_t hit, *it, *tmp;

    bt_list_init(&hit);
    r->watches[engine].is_silent = false;
    r->watches[engine].is_dead = true;
    bt_sim_events_forget(&r->events, BT_SIM_LEASE, engine, NULL);
    bt_list_each (&r->flights, it, tmp) {
        bt_sim_flight_t *f = bt_container_of(it, bt_sim_flight_t, link);
        if (!bt_sim_is_on(f, engine))
            continue;
        detach(r, f, engine);
        bt_list_remove(it);
        bt_list_push(&hit, it);
    }
    bt_sim_engine_reset(&r->engines[engine]);
    while (!bt_list_empty(&hit)) {
        bt_sim_flight_t *f = bt_container_of(hit.next, bt_sim_flight_t, link);
        bt_list_remove(&f->link);
        bt_list_push(&r->flights, &f->link);
        fail_leg(r, f, engine, rc);
    }
}

/* What moves to it or from it stands still. */
static void stop_moving(bt_sim_run_t *r, unsigned engine)
{
    bt_list_t *it, *tmp;

    bt_list_each (&r->flights, it, tmp) {
        bt_sim_flight_t *f = bt_container_of(it, bt_sim_flight_t, link);
        if (f->stage == BT_SIM_MOVING && bt_sim_is_on(f, engine))
            bt_sim_events_forget(&r->events, BT_SIM_MOVED, f->job.decode, &f->job);
    }
}

void bt_sim_fail(bt_sim_run_t *r, unsigned engine)
{
    bt_sim_watch_t *watch = &r->watches[engine];
    const bool is_down = atomic_load(&r->workers[engine]->health) == BT_HEALTH_DOWN;

    while (r->setup->failures[watch->failure].engine != engine ||
           r->setup->failures[watch->failure].from_s < r->now_s)
        watch->failure++;
    r->last_failure = ++watch->failure;
    watch->back_s = r->setup->failures[watch->failure - 1].until_s;
    watch->is_silent = r->setup->failures[watch->failure - 1].is_silent && !is_down;
    watch->unanswered = 0;
    if (is_down) /* since the last time */
        failure_of(r, engine)->known_s = r->now_s;
    bt_sim_events_forget(&r->events, BT_SIM_STEP, engine, NULL);
    check_in(r, engine,
             (floor(r->now_s / HEALTH_S) + 1) * HEALTH_S + (watch->is_silent ? CHECK_S : 0));
    if (isfinite(watch->back_s))
        bt_sim_events_push(&r->events, watch->back_s, BT_SIM_REVIVE, engine, NULL);
    if (watch->is_silent)
        stop_moving(r, engine);
    else
        lose(r, engine, BT_E_RESET);
}
