/* choose.c - who serves, as dispatch/plan/plan.c has it: a policy proposes; after a failure its fallback, then the plan's alternates, then plan once
 * more, which sees only who was not tried. Where nobody is asked, or a first plan fails, the least load decides. A policy's nil ends a request. */
#include "simulator/sim_impl.h"

#include "base/err.h"
#include "base/rand.h"
#include "script/policy/policy_run.h"

#include <stdio.h>

/* CHOSEN and NOBODY as sim_impl.h has them; these two are plan.c's. */
enum answer { ANSWERED, NIL, FAILED, NOT_ASKED };

bool bt_sim_was_tried(const bt_sim_flight_t *f, const bt_worker_t *w)
{
    for (unsigned i = 0; i < f->tried_count; i++)
        if (f->tried[i] == w)
            return true;
    return false;
}

void bt_sim_mark_tried(bt_sim_flight_t *f, bt_worker_t *w)
{
    if (w != NULL && f->tried_count < BT_SIM_TRIED_MAX && !bt_sim_was_tried(f, w))
        f->tried[f->tried_count++] = bt_worker_ref(w);
}

void bt_sim_forget_tried(bt_sim_flight_t *f, unsigned keep)
{
    while (f->tried_count > keep)
        bt_worker_unref(f->tried[--f->tried_count]);
}

/* ---- what the gateway chooses by itself ---- */

static int64_t load_of(const bt_worker_t *w, enum bt_phase phase)
{
    const int64_t load = bt_worker_tokens(w, phase) + 64 * bt_worker_requests(w, phase);

    return phase == BT_PHASE_PREFILL ? load : load + load_of(w, BT_PHASE_PREFILL);
}

/* Ties fall evenly. NULL: nobody is left. */
static bt_worker_t *least_loaded(const bt_sim_flight_t *f, const bt_worker_set_t *set,
                                 enum bt_phase phase)
{
    const unsigned start = set->count > 0 ? (unsigned) bt_rand_below(set->count) : 0;
    bt_worker_t *best = NULL;

    for (unsigned k = 0; k < set->count; k++) {
        bt_worker_t *w = set->items[(start + k) % set->count];
        if (!bt_sim_was_tried(f, w) && (best == NULL || load_of(w, phase) < load_of(best, phase)))
            best = w;
    }
    return best;
}

static bool default_pair(const bt_sim_flight_t *f, const bt_policy_view_t *v, bt_pair_t *pair_p)
{
    bt_worker_t *prefill = least_loaded(f, v->sets[BT_LIST_PREFILL], BT_PHASE_PREFILL);
    bt_worker_t *decode = least_loaded(f, v->sets[BT_LIST_DECODE], BT_PHASE_DECODE);

    if (prefill == NULL || decode == NULL) {
        prefill = NULL;
        decode = least_loaded(f, v->sets[BT_LIST_HYBRID], BT_PHASE_DECODE);
    }
    *pair_p = (bt_pair_t){.prefill = prefill, .decode = decode};
    return decode != NULL;
}

/* ---- what a policy is told ---- */

bt_policy_request_t bt_sim_describe(bt_sim_run_t *r, const bt_sim_flight_t *f)
{
    const bt_sim_request_t *request = f->job.request;
    bt_policy_request_t req = {.path = BT_STR("/v1/completions"),
                               .model = BT_STR("sim"),
                               .stream = true,
                               .n = 1,
                               .prompt_bytes = 4 * (size_t) request->input,
                               .prompt_tokens = request->input,
                               .max_tokens = request->output,
                               .is_counted = f->attempts > 0,
                               .prompt = bt_sim_prompt(r->setup->trace, request, r->prompt)};

    if (request->session != 0)
        req.session = (bt_str_t){
            r->session, (size_t) snprintf(r->session, sizeof r->session, "s%u", request->session)};
    if (f->intake != NULL) {
        req.vars = &f->intake->vars;
        req.klass = bt_str(f->intake->klass);
        if (f->intake->key[0] != '\0')
            req.session = bt_str(f->intake->key);
    }
    if (r->setup->is_exact)
        bt_sim_feed_apply(&r->feed);
    return req;
}

static bt_policy_failure_t describe_failure(const bt_sim_flight_t *f, int rc, const char *leg)
{
    return (bt_policy_failure_t){.scope = bt_err_scope(rc),
                                 .name = bt_err_name(rc),
                                 .leg = leg,
                                 .tried = f->tried,
                                 .tried_count = f->tried_count,
                                 .attempt = f->attempts + 1};
}

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

static int ask_plan(bt_sim_run_t *r, bt_sim_flight_t *f, const bt_policy_failure_t *failure,
                    const bt_policy_view_t *v, bt_choice_t *choice_p)
{
    const bt_policy_request_t req = bt_sim_describe(r, f);
    const uint64_t begin_ns = clock_ns();
    const int rc = failure == NULL ? bt_policy_plan(r->policy, BT_POLICY_BOTH, &req, v, choice_p)
                                   : bt_policy_plan_again(r->policy, BT_POLICY_BOTH, &req, v,
                                                          failure, choice_p);
    r->plan_ns += clock_ns() - begin_ns;
    r->plans++;
    return rc;
}

/* ---- what comes of asking ---- */

static bool any_left(const bt_sim_flight_t *f, const bt_worker_set_t *set)
{
    for (unsigned i = 0; i < set->count; i++)
        if (!bt_sim_was_tried(f, set->items[i]))
            return true;
    return false;
}

void bt_sim_exclude_one(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    const unsigned count = f->tried_count;

    if (f->job.decode == BT_SIM_OPEN)
        return;
    bt_sim_mark_tried(f, r->workers[f->job.decode]);
    if (any_left(f, bt_sim_view(r)->sets[BT_LIST_DECODE]))
        return;
    bt_sim_forget_tried(f, count);
    bt_sim_mark_tried(f, r->workers[f->job.prefill]);
}

static bool can_serve(const bt_sim_flight_t *f, const bt_policy_view_t *v, const bt_pair_t *pair)
{
    if (bt_sim_was_tried(f, pair->prefill) || bt_sim_was_tried(f, pair->decode))
        return false;
    return pair->decode != NULL || any_left(f, v->sets[BT_LIST_DECODE]);
}

void bt_sim_policy_error(bt_sim_run_t *r, const char *text)
{
    if (r->out->policy_errors++ == 0)
        snprintf(r->out->err, sizeof r->out->err, "%.767s", text);
}

static enum answer judge(bt_sim_run_t *r, const bt_sim_flight_t *f, const bt_policy_view_t *v,
                         int rc, const bt_choice_t *choice)
{
    if (rc == BT_E_AGAIN)
        return NOT_ASKED;
    if (rc < 0) {
        bt_sim_policy_error(r, bt_policy_error(r->policy));
        return FAILED;
    }
    if (bt_choice_is_nobody(choice))
        return NIL;
    if (can_serve(f, v, &choice->first))
        return ANSWERED;
    bt_sim_policy_error(r, "chose workers that cannot serve the request");
    return FAILED;
}

static void take(const bt_sim_run_t *r, bt_sim_flight_t *f, const bt_pair_t *pair)
{
    f->job.decode = pair->decode != NULL ? r->engine_at[pair->decode->slot] : BT_SIM_OPEN;
    f->job.prefill = pair->prefill != NULL ? r->engine_at[pair->prefill->slot] : f->job.decode;
}

/* ---- the first plan ---- */

enum bt_sim_verdict bt_sim_choose(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    const bt_policy_view_t *v = bt_sim_view(r);
    bt_choice_t choice = {0};

    if (v->sets[BT_LIST_SINGLE]->count == 0 && v->sets[BT_LIST_PREFILL]->count == 0)
        return BT_SIM_NO_WORKER;
    const enum answer answer = judge(r, f, v, ask_plan(r, f, NULL, v, &choice), &choice);
    if (answer == NIL)
        return BT_SIM_NOBODY;
    if (answer != ANSWERED && !default_pair(f, v, &choice.first))
        return BT_SIM_NO_WORKER;
    take(r, f, &choice.first);
    f->alternate_count = answer == ANSWERED ? choice.alternate_count : 0;
    for (unsigned i = 0; i < f->alternate_count; i++)
        f->alternates[i] = choice.alternates[i];
    return BT_SIM_CHOSEN;
}

/* ---- after a failure ---- */

static bool in_set(const bt_worker_set_t *set, const bt_worker_t *w)
{
    for (unsigned i = 0; i < set->count; i++)
        if (set->items[i] == w)
            return true;
    return false;
}

static bool has_pair(const bt_policy_view_t *v, const bt_pair_t *pair)
{
    if (pair->prefill == NULL)
        return in_set(v->sets[BT_LIST_SINGLE], pair->decode);
    return in_set(v->sets[BT_LIST_PREFILL], pair->prefill) &&
           (pair->decode == NULL || in_set(v->sets[BT_LIST_DECODE], pair->decode));
}

static bool next_alternate(bt_sim_flight_t *f, const bt_policy_view_t *v, bt_pair_t *pair_p)
{
    while (f->alternate_next < f->alternate_count) {
        *pair_p = f->alternates[f->alternate_next++];
        if (has_pair(v, pair_p) && can_serve(f, v, pair_p))
            return true;
    }
    return false;
}

static bt_policy_view_t without_tried(bt_sim_run_t *r, const bt_sim_flight_t *f,
                                      const bt_policy_view_t *v)
{
    bt_policy_view_t left = {.pool = v->pool}; /* key 0: nobody else has these lists */

    for (int list = 0; list < BT_LIST_COUNT; list++) {
        r->left[list].count = 0;
        for (unsigned i = 0; i < v->sets[list]->count; i++)
            if (!bt_sim_was_tried(f, v->sets[list]->items[i]))
                r->left[list].items[r->left[list].count++] = v->sets[list]->items[i];
        left.sets[list] = &r->left[list];
    }
    if (r->left[BT_LIST_PREFILL].count == 0 || r->left[BT_LIST_DECODE].count == 0)
        r->left[BT_LIST_PREFILL].count = r->left[BT_LIST_DECODE].count = 0;
    return left;
}

static enum answer ask_fallback(bt_sim_run_t *r, bt_sim_flight_t *f,
                                const bt_policy_failure_t *failure, const bt_policy_view_t *v,
                                bt_choice_t *choice_p)
{
    if (!bt_policy_has_hook(r->policy, "fallback"))
        return NOT_ASKED;
    const bt_policy_request_t req = bt_sim_describe(r, f);
    return judge(r, f, v, bt_policy_fallback(r->policy, &req, v, failure, choice_p), choice_p);
}

static enum answer ask_again(bt_sim_run_t *r, bt_sim_flight_t *f,
                             const bt_policy_failure_t *failure, const bt_policy_view_t *v,
                             bt_choice_t *choice_p)
{
    const enum answer answer = ask_fallback(r, f, failure, v, choice_p);

    if (answer != NOT_ASKED)
        return answer;
    if (next_alternate(f, v, &choice_p->first))
        return ANSWERED;
    const bt_policy_view_t left = without_tried(r, f, v);
    if (left.sets[BT_LIST_SINGLE]->count == 0 && left.sets[BT_LIST_PREFILL]->count == 0)
        return NOT_ASKED;
    return judge(r, f, &left, ask_plan(r, f, failure, &left, choice_p), choice_p);
}

bool bt_sim_choose_again(bt_sim_run_t *r, bt_sim_flight_t *f, int rc, const char *leg)
{
    const bt_policy_failure_t failure = describe_failure(f, rc, leg);
    const bt_policy_view_t *v = bt_sim_view(r);
    bt_choice_t choice = {0};
    const enum answer answer = ask_again(r, f, &failure, v, &choice);

    if (answer == NIL || answer == FAILED ||
        (answer == NOT_ASKED && !default_pair(f, v, &choice.first)))
        return false;
    take(r, f, &choice.first);
    return true;
}

/* ---- decode alone ---- */

bool bt_sim_choose_beside(bt_sim_run_t *r, bt_sim_flight_t *f, int rc)
{
    bt_policy_failure_t failure = describe_failure(f, rc, "decode");
    bt_worker_t *kept[] = {r->workers[f->job.prefill]};
    const bt_worker_set_t stays = {kept, 1}, none = {kept, 0};
    bt_policy_view_t v = *bt_sim_view(r);
    const unsigned alternate = f->alternate_next;
    bt_choice_t choice = {0};

    v.key = 0;
    v.sets[BT_LIST_PREFILL] = &stays;
    v.sets[BT_LIST_HYBRID] = v.sets[BT_LIST_SINGLE] = &none;
    failure.kept_prefill = kept[0];
    if (!any_left(f, v.sets[BT_LIST_DECODE]))
        return false;
    const enum answer answer = ask_again(r, f, &failure, &v, &choice);
    bt_worker_t *decode = choice.first.decode;
    if (answer != ANSWERED || choice.first.prefill == NULL) {
        f->alternate_next = alternate;
        if (answer == FAILED || answer == NIL)
            return false;
        decode = NULL;
    }
    if (decode == NULL)
        decode = least_loaded(f, v.sets[BT_LIST_DECODE], BT_PHASE_DECODE);
    if (decode == NULL)
        return false;
    f->job.decode = r->engine_at[decode->slot];
    return true;
}

/* As plan_decode says, of those that were not tried. */
bool bt_sim_choose_late(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    const bt_policy_view_t *v = bt_sim_view(r);
    bt_choice_t choice = {0};

    if (!any_left(f, v->sets[BT_LIST_DECODE]))
        return false;
    const bt_policy_view_t left = without_tried(r, f, v);
    const bt_policy_request_t req = bt_sim_describe(r, f);
    const int rc = bt_policy_plan_late(r->policy, BT_POLICY_DECODE, &req, &left,
                                       r->workers[f->job.prefill], f->attempts, &choice);
    const enum answer answer = judge(r, f, &left, rc, &choice);
    bt_worker_t *decode = answer == ANSWERED ? choice.first.decode : NULL;
    if (answer == NIL || (answer == FAILED && f->attempts > 1))
        return false;
    if (decode == NULL)
        decode = least_loaded(f, left.sets[BT_LIST_DECODE], BT_PHASE_DECODE);
    f->job.decode = r->engine_at[decode->slot];
    return true;
}
