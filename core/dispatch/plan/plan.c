/* plan.c - which workers: the policy's answer, its validation, and what the default choice (default_choice.c) is asked for.
 *
 * A policy proposes. What it names must be usable, have the right role, and work as a pair on this
 * route; otherwise the mistake is counted, and --policy-on-error says what serves. Whether to try
 * again is task.c's to say, who is the policy's: its nil ends the request. Where nobody is asked,
 * the least load decides. No pair and no single worker at all is a 503 with the reason.
 */
#include "dispatch/plan/plan.h"
#include "cluster/pair_breaker.h"
#include "dispatch/plan/candidates.h"
#include "dispatch/plan/default_choice.h"
#include "dispatch/plan/policy_call.h"

#include <stdio.h>

enum bt_plan_kind bt_plan_kind_of(bt_dispatcher_t *d, const bt_pair_t *pair,
                                  const bt_dialect_t **dialect_p)
{
    const bt_worker_t *w = pair->prefill != NULL ? pair->prefill : pair->decode;

    *dialect_p = NULL;
    if (bt_pair_is_single(pair))
        return BT_PLAN_SINGLE;
    if (w->dialect != NULL)
        *dialect_p = bt_dialects_find(d->dialects, w->dialect);
    if (pair->kind != BT_PLAN_NONE)
        return pair->kind;
    return *dialect_p != NULL ? (*dialect_p)->kind : BT_PLAN_NONE;
}

/* ---- who was tried ---- */

void bt_plan_mark_tried(bt_task_t *task, bt_worker_t *w)
{
    if (w == NULL || task->tried_count == BT_TRIED_MAX || bt_task_was_tried(task, w))
        return;
    if (task->tried == NULL)
        task->tried = bt_arena_alloc(&task->request->arena, BT_TRIED_MAX * sizeof(task->tried[0]));
    task->tried[task->tried_count++] = bt_worker_ref(w);
}

void bt_plan_forget_tried(bt_task_t *task, const bt_worker_t *w)
{
    for (unsigned i = 0; i < task->tried_count; i++) {
        if (task->tried[i] != w)
            continue;
        bt_worker_unref(task->tried[i]);
        task->tried[i] = task->tried[--task->tried_count];
        return;
    }
}

/* ---- the policy's word ---- */

/* One of the two can begin without the other, by their connector. */
static bool may_begin_alone(bt_request_t *r, const bt_pair_t *pair)
{
    const bt_dialect_t *dialect;
    const enum bt_plan_kind kind = bt_plan_kind_of(r->d, pair, &dialect);

    if (dialect == NULL)
        return false;
    if (bt_pair_lacks_decode(pair))
        return kind == BT_PLAN_HANDOFF && !dialect->needs_decode_first;
    return !dialect->needs_rank && !dialect->needs_same_rank &&
           !dialect->learns; /* these name prefill to decode */
}

/* So it can, and there is one to follow. */
static bool can_be_late(bt_request_t *r, const bt_task_t *task, const bt_choice_view_t *v,
                        const bt_pair_t *pair)
{
    const bool lacks_prefill = bt_pair_lacks_prefill(pair);
    const bt_worker_set_t *set = &v->sets[lacks_prefill ? BT_LIST_PREFILL : BT_LIST_DECODE];
    bt_pair_t whole = *pair;

    whole.kind = lacks_prefill ? BT_PLAN_TRIGGER : BT_PLAN_HANDOFF;
    for (unsigned i = 0; may_begin_alone(r, pair) && i < set->count; i++) {
        *(lacks_prefill ? &whole.prefill : &whole.decode) = set->items[i];
        if (!bt_task_was_tried(task, set->items[i]) &&
            bt_pair_refusal(r, whole.prefill, whole.decode) == NULL && bt_pair_has_kind(&whole))
            return true;
    }
    return false;
}

/* Of workers that the view has: policy_choice.c sees to that where the policy has just answered. */
static bool is_valid(bt_request_t *r, const bt_task_t *task, const bt_choice_view_t *v,
                     const bt_pair_t *pair)
{
    if (bt_task_was_tried(task, pair->decode) || bt_task_was_tried(task, pair->prefill))
        return false;
    if (bt_pair_lacks_decode(pair) || bt_pair_lacks_prefill(pair))
        return can_be_late(r, task, v, pair);
    return pair->prefill == NULL ||
           (bt_pair_refusal(r, pair->prefill, pair->decode) == NULL && bt_pair_has_kind(pair));
}

/* What a policy leaves undone and nobody else may do. */
static int no_worker(bt_request_t *r, const bt_choice_view_t *v, char *why, size_t why_size)
{
    const char *otherwise = v->why != NULL ? v->why : "no two usable workers can work as a pair";

    bt_workers_topology(r->pool, bt_clock_event_ms(), why, why_size);
    const bool may_be_cured = why[0] == '\0';
    if (may_be_cured)
        bt_str_copy(why, why_size, otherwise);
    if (may_be_cured && bt_choice_view_is_limited(v))
        return BT_E_AGAIN;
    return bt_choice_view_is_for_no_split(v) ? BT_E_INVAL : BT_E_NO_WORKER;
}

const char bt_plan_cannot_serve[] = "chose workers that cannot serve the request";

/* What comes of asking. NOT_ASKED: there is no policy, or no such hook. */
enum verdict { CHOSEN, NOBODY, FAILED, NOT_ASKED };

/* The next plan must not need another split than the task was made with. */
static bool same_split(const bt_task_t *task, const bt_pair_t *pair)
{
    const bt_request_t *r = task->request;
    const bt_dialect_t *dialect;

    if (bt_plan_kind_of(r->d, pair, &dialect) == BT_PLAN_SINGLE)
        return true; /* a child is an ordinary request too */
    return r->task_count > 1 || !bt_fanout_needed(r, dialect);
}

static bool can_serve(bt_request_t *r, const bt_task_t *task, const bt_choice_view_t *v,
                      const bt_pair_t *pair)
{
    return is_valid(r, task, v, pair) && (task == NULL || same_split(task, pair));
}

static bt_worker_t *partner_for(bt_request_t *r, const bt_task_t *task, const bt_choice_view_t *v,
                                const bt_pair_t *pair, bool keeps_prefill)
{
    return keeps_prefill ? bt_default_decode(r, task, &v->sets[BT_LIST_DECODE], pair->prefill)
                         : bt_default_prefill(r, task, &v->sets[BT_LIST_PREFILL], pair->decode);
}

static bool pair_rests(const bt_pair_t *pair)
{
    return pair->prefill != NULL && pair->decode != NULL &&
           bt_pair_breaker_rests(pair->prefill, pair->decode, bt_clock_event_ms());
}

/* Who chose did not see it: the same prefill takes another decode, else the decode another prefill. Where neither can, it serves. */
static void avoid_rest(bt_request_t *r, const bt_task_t *task, const bt_choice_view_t *v,
                       bt_pair_t *pair)
{
    if (!pair_rests(pair))
        return;
    if (task == NULL)
        bt_record_rests(r, pair->prefill, pair->decode);
    for (int keeps_prefill = 1; keeps_prefill >= 0; keeps_prefill--) {
        bt_worker_t *other = partner_for(r, task, v, pair, keeps_prefill);
        bt_pair_t awake = *pair;
        *(keeps_prefill ? &awake.decode : &awake.prefill) = other;
        *(keeps_prefill ? &awake.decode_rank : &awake.prefill_rank) = -1;
        if (other != NULL && !pair_rests(&awake) && can_serve(r, task, v, &awake)) {
            *pair = awake;
            return;
        }
    }
}

static enum verdict judge(bt_request_t *r, const bt_task_t *task, const bt_choice_view_t *v, int rc,
                          bt_choice_t *choice)
{
    if (rc < 0)
        return rc == BT_E_AGAIN ? NOT_ASKED : FAILED;
    if (bt_choice_is_nobody(choice))
        return NOBODY;
    if (can_serve(r, task, v, &choice->first)) {
        avoid_rest(r, task, v, &choice->first);
        return CHOSEN;
    }
    bt_policy_call_invalid(r, bt_pair_lacks_decode(&choice->first)
                                  ? "left decode open, but this connector's prefill cannot begin "
                                    "without one, or none is there"
                              : bt_pair_lacks_prefill(&choice->first)
                                  ? "left prefill open, but this connector's decode does not call "
                                    "for one, or none is there"
                                  : bt_plan_cannot_serve);
    return FAILED;
}

static bool default_may_serve(const bt_request_t *r, enum verdict verdict, bool is_first)
{
    const enum bt_policy_on_error on_error = r->d->shared->config.policy_on_error;

    if (verdict != FAILED)
        return verdict == NOT_ASKED;
    return on_error == BT_ON_ERROR_DEFAULT || (on_error == BT_ON_ERROR_FIRST && is_first);
}

/* ---- the first plan ---- */

/* For records: a pair that load alone could have chosen. */
static void note_avoided(bt_request_t *r, const bt_choice_view_t *v, const bt_pair_t *pair)
{
    const bt_worker_set_t *decode = &v->sets[BT_LIST_DECODE];
    const uint64_t now_ms = bt_clock_event_ms();

    for (unsigned i = 0; pair->prefill != NULL && i < decode->count; i++)
        if (bt_pair_breaker_rests(pair->prefill, decode->items[i], now_ms))
            bt_record_rests(r, pair->prefill, decode->items[i]);
}

static int chosen(bt_request_t *r, const bt_policy_view_t *view, const char *by,
                  const bt_choice_t *choice)
{
    r->record.decided_by = by;
    bt_policy_call_shadow(r, view, choice);
    return 0;
}

/* Nobody but who serves alone where a policy says so: if it does not, who is down is why. */
static bool is_left_to_policy(const bt_choice_view_t *v)
{
    return v->sets[BT_LIST_HYBRID].count == 0 && v->sets[BT_LIST_PREFILL].count == 0;
}

int bt_plan_choose(bt_request_t *r, bt_choice_t *choice_p, char *why, size_t why_size)
{
    bt_choice_view_t v;
    enum bt_topology topology = bt_choice_view_make(r, &v);
    bt_policy_view_t view;
    enum verdict verdict;

    if (topology == BT_TOPOLOGY_NONE)
        return no_worker(r, &v, why, why_size);
    view = bt_candidates_view(v.sets, v.key, r->pool);
    r->degraded = topology == BT_TOPOLOGY_DEGRADED;
    bt_record_candidates(r, &view);
    verdict = judge(r, NULL, &v, bt_policy_call_plan(r, NULL, &view, choice_p), choice_p);
    if (verdict == CHOSEN)
        return chosen(r, &view, "policy", choice_p);
    if (verdict == NOBODY && (bt_choice_view_is_limited(&v) || is_left_to_policy(&v)))
        return no_worker(r, &v, why, why_size);
    if (!default_may_serve(r, verdict, true)) {
        bt_str_copy(why, why_size,
                    verdict == NOBODY ? "the policy chose nobody" : "the policy failed");
        return BT_E_NO_WORKER;
    }
    if (!bt_default_pair(r, NULL, &v, choice_p))
        return no_worker(r, &v, why, why_size);
    r->is_default = true;
    note_avoided(r, &v, &choice_p->first);
    return chosen(r, &view, "default", choice_p);
}

static const bt_kept_hints_t *keep_hints(bt_request_t *r, const bt_hints_t *hints)
{
    bt_kept_hints_t *kept;
    char priority[32] = "";

    if (bt_hints_are_empty(hints))
        return NULL;
    if (hints->has_priority)
        snprintf(priority, sizeof(priority), "\"priority\":%ld%s", (long) hints->priority,
                 hints->kv_actions.n != 0 ? "," : "");
    kept = bt_arena_alloc(&r->arena, sizeof(*kept));
    kept->said = *hints;
    kept->json = bt_arena_printf(&r->arena, "%s%s%.*s", priority,
                                 hints->kv_actions.n != 0 ? "\"kv_hints\":" : "",
                                 BT_STR_ARG(hints->kv_actions));
    return kept;
}

const bt_kept_choice_t *bt_plan_keep(bt_request_t *r, const bt_choice_t *choice)
{
    const size_t bytes = choice->alternate_count * sizeof(choice->alternates[0]);
    bt_kept_choice_t *kept = bt_arena_alloc(&r->arena, sizeof(*kept) + bytes);

    kept->first = choice->first;
    kept->hints = keep_hints(r, &choice->hints);
    kept->alternate_count = choice->alternate_count;
    memcpy(kept->alternates, choice->alternates, bytes);
    return kept;
}

/* ---- after a failure ---- */

static bool in_set(const bt_worker_set_t *set, const bt_worker_t *w)
{
    for (unsigned i = 0; i < set->count; i++)
        if (set->items[i] == w)
            return true;
    return false;
}

/* Are its workers still candidates? */
static bool has_pair(const bt_choice_view_t *v, const bt_pair_t *pair)
{
    if (bt_pair_is_single(pair))
        return in_set(&v->sets[BT_LIST_SINGLE], pair->decode);
    return (bt_pair_lacks_prefill(pair) || in_set(&v->sets[BT_LIST_PREFILL], pair->prefill)) &&
           (bt_pair_lacks_decode(pair) || in_set(&v->sets[BT_LIST_DECODE], pair->decode));
}

static bool next_alternate(bt_task_t *task, const bt_choice_view_t *v, bt_choice_t *choice_p)
{
    while (task->alternate_next < task->choice->alternate_count) {
        const bt_pair_t *alternate = &task->choice->alternates[task->alternate_next++];
        if (!has_pair(v, alternate) || !can_serve(task->request, task, v, alternate))
            continue;
        *choice_p = (bt_choice_t){.first = *alternate};
        avoid_rest(task->request, task, v, &choice_p->first);
        return true;
    }
    return false;
}

static bool is_tried(const void *task, const bt_worker_t *w)
{
    return bt_task_was_tried(task, w);
}

static void leave_out_tried(bt_task_t *task, bt_choice_view_t *v)
{
    bt_choice_view_leave_out(&task->request->arena, v, is_tried, task);
}

bool bt_plan_has_pair(bt_task_t *task)
{
    bt_choice_view_t v;

    if (bt_choice_view_make(task->request, &v) != BT_TOPOLOGY_PAIR)
        return false;
    leave_out_tried(task, &v);
    return bt_choice_view_any_pair(task->request, &v);
}

static bt_policy_failure_t describe(const bt_task_t *task, const bt_failure_t *f)
{
    return (bt_policy_failure_t){
        .scope = bt_err_scope(f->rc),
        .name = bt_err_name(f->rc),
        .leg = bt_leg_role_name(f->leg),
        .status = f->status,
        .tried = task->tried,
        .tried_count = task->tried_count,
        .attempt = task->attempts + 1,
    };
}

/* Of a later answer too: what it says of hints holds from here on. */
static enum verdict judge_next(bt_task_t *task, const bt_choice_view_t *v, int rc,
                               bt_choice_t *choice)
{
    const enum verdict verdict = judge(task->request, task, v, rc, choice);

    if (verdict == CHOSEN && !bt_hints_are_empty(&choice->hints))
        task->hints = keep_hints(task->request, &choice->hints);
    return verdict;
}

/* fallback, else the plan's next alternate, else plan once more, which sees only who was not tried
 * and is not asked where nobody is left. */
static enum verdict ask_again(bt_task_t *task, const bt_policy_failure_t *failure,
                              bt_choice_view_t *v, bt_choice_t *choice_p)
{
    bt_request_t *r = task->request;
    bt_policy_view_t view = bt_candidates_view(v->sets, v->key, r->pool);
    enum verdict verdict =
        judge_next(task, v, bt_policy_call_fallback(r, failure, &view, choice_p), choice_p);

    if (verdict != NOT_ASKED)
        return verdict;
    if (next_alternate(task, v, choice_p))
        return CHOSEN;
    leave_out_tried(task, v);
    if (!bt_choice_view_any_pair(r, v)) {
        if (v->sets[BT_LIST_SINGLE].count == 0)
            return NOT_ASKED;
        bt_choice_view_drop_pairs(v);
    }
    view = bt_candidates_view(v->sets, v->key, r->pool);
    return judge_next(task, v, bt_policy_call_plan(r, failure, &view, choice_p), choice_p);
}

int bt_plan_next(bt_task_t *task, const bt_failure_t *f, bt_choice_t *choice_p)
{
    const bt_policy_failure_t failure = describe(task, f);
    bt_request_t *r = task->request;
    bt_choice_view_t v;
    enum verdict verdict;

    if (bt_choice_view_make(r, &v) == BT_TOPOLOGY_NONE)
        return BT_E_NO_WORKER;
    r->is_default = false;
    verdict = ask_again(task, &failure, &v, choice_p);
    if (verdict == CHOSEN)
        return 0;
    if (!default_may_serve(r, verdict, false))
        return BT_E_POLICY;
    if (!bt_default_pair(r, task, &v, choice_p) || !same_split(task, &choice_p->first))
        return BT_E_NO_WORKER;
    r->is_default = true;
    return 0;
}

/* ---- the one of a pair that the plan left open ---- */

static bool view_beside(bt_request_t *r, bt_choice_view_t *v, bt_worker_t **stays,
                        bool keeps_prefill, bt_choice_view_t *all_p)
{
    return bt_choice_view_beside(r, v, stays, keeps_prefill ? BT_LIST_PREFILL : BT_LIST_DECODE,
                                 false, all_p);
}

/* all: what the policy sees; v: what its answer is held against. */
static enum verdict ask_late(bt_task_t *task, unsigned attempt, enum bt_leg_role role,
                             const bt_choice_view_t *all, const bt_choice_view_t *v,
                             bt_pair_t *pair)
{
    const bool is_prefill = role == BT_LEG_PREFILL;
    bt_request_t *r = task->request;
    const bt_policy_view_t view = bt_candidates_view(all->sets, all->key, r->pool);
    bt_worker_t *partner = is_prefill ? pair->decode : pair->prefill;
    bt_choice_t choice = {.alternate_count = 0};
    const int rc = bt_policy_call_plan_late(r, is_prefill ? BT_POLICY_PREFILL : BT_POLICY_DECODE,
                                            &view, partner, attempt, &choice);
    enum verdict verdict;

    choice.first.kind = is_prefill ? BT_PLAN_TRIGGER : BT_PLAN_HANDOFF;
    verdict = judge(r, task, v, rc, &choice);
    if (verdict != CHOSEN)
        return verdict;
    if (is_prefill) {
        pair->prefill = choice.first.prefill;
        pair->prefill_rank = choice.first.prefill_rank;
    } else {
        pair->decode = choice.first.decode;
        pair->decode_rank = choice.first.decode_rank;
    }
    return CHOSEN;
}

int bt_plan_late(bt_task_t *task, unsigned attempt, enum bt_leg_role role, bt_pair_t *pair,
                 const char **why_p)
{
    const bool is_prefill = role == BT_LEG_PREFILL;
    bt_worker_t **open_p = is_prefill ? &pair->prefill : &pair->decode;
    bt_worker_t *stays[] = {is_prefill ? pair->decode : pair->prefill};
    bt_request_t *r = task->request;
    bt_choice_view_t all, v;
    enum verdict verdict;

    *why_p = is_prefill ? "no prefill worker is left for the decode that calls for it"
                        : "no decode worker is left for the prefill that has the prompt";
    if (!view_beside(r, &v, stays, !is_prefill, &all))
        return BT_E_NO_WORKER;
    leave_out_tried(task, &all);
    verdict = ask_late(task, attempt, role, &all, &v, pair);
    if (verdict == CHOSEN)
        return 0;
    if (!default_may_serve(r, verdict, attempt == 1)) {
        *why_p = verdict != NOBODY ? "the policy failed"
                 : is_prefill      ? "the policy chose no prefill worker"
                                   : "the policy chose no decode worker";
        return BT_E_NO_WORKER;
    }
    *open_p = partner_for(r, task, &v, pair, !is_prefill);
    r->is_default |= *open_p != NULL;
    return *open_p != NULL ? 0 : BT_E_NO_WORKER;
}

/* ---- one of a pair, where the other's work stays good ---- */

static bool default_beside(const bt_task_t *task, const bt_choice_view_t *v, const bt_pair_t *pair,
                           bool keeps_prefill, bt_pair_t *pair_p)
{
    bt_worker_t *other = partner_for(task->request, task, v, pair, keeps_prefill);

    *pair_p = (bt_pair_t){keeps_prefill ? pair->prefill : other,
                          keeps_prefill ? other : pair->decode, -1, -1, BT_PLAN_NONE};
    task->request->is_default = other != NULL;
    return other != NULL;
}

/* Who is asked sees the one that stays, and those that may stand beside it. A plan that needs the
 * other one gone is no plan of these: the attempt fails, and all are asked. */
int bt_plan_beside(bt_task_t *task, const bt_failure_t *f, const bt_pair_t *pair,
                   enum bt_leg_role kept, bt_pair_t *pair_p)
{
    const bool keeps_prefill = kept == BT_LEG_PREFILL;
    const unsigned alternate = task->alternate_next;
    bt_policy_failure_t failure = describe(task, f);
    bt_worker_t *stays[] = {keeps_prefill ? pair->prefill : pair->decode};
    bt_request_t *r = task->request;
    bt_choice_view_t v;
    bt_choice_t choice;
    enum verdict verdict;
    enum bt_leg_role open;
    const char *why;

    if (!view_beside(r, &v, stays, keeps_prefill, NULL))
        return BT_E_NO_WORKER;
    *(keeps_prefill ? &failure.kept_prefill : &failure.kept_decode) = stays[0];
    v.sets[BT_LIST_HYBRID].count = v.sets[BT_LIST_SINGLE].count = 0;
    r->is_default = false;
    verdict = ask_again(task, &failure, &v, &choice);
    if (verdict == CHOSEN && !bt_pair_is_single(&choice.first) &&
        (choice.first.kind == BT_PLAN_NONE || choice.first.kind == task->attempt->kind)) {
        *pair_p = choice.first;
        if (pair_p->prefill == NULL || pair_p->decode == NULL) {
            open = pair_p->prefill == NULL ? BT_LEG_PREFILL : BT_LEG_DECODE;
            if (bt_plan_late(task, failure.attempt, open, pair_p, &why) < 0)
                return BT_E_NO_WORKER;
        }
    } else {
        task->alternate_next = alternate;
        if (!default_may_serve(r, verdict, false) ||
            !default_beside(task, &v, pair, keeps_prefill, pair_p))
            return BT_E_NO_WORKER;
    }
    if (keeps_prefill)
        pair_p->prefill_rank = pair->prefill_rank;
    else
        pair_p->decode_rank = pair->decode_rank;
    pair_p->kind = pair->kind;
    return 0;
}

bt_worker_t *bt_plan_other_decode(bt_task_t *task, bt_worker_t *prefill)
{
    bt_request_t *r = task->request;
    const uint64_t now_ms = bt_clock_event_ms();
    bt_choice_view_t v;

    if (r->is_default || task->attempt->is_late)
        return bt_choice_view_beside(r, &v, &prefill, BT_LIST_PREFILL, true, NULL)
                   ? bt_default_decode(r, task, &v.sets[BT_LIST_DECODE], prefill)
                   : NULL; /* one that is full can be told too: nothing waits in its engine */
    for (unsigned i = 0; i < task->choice->alternate_count; i++) {
        const bt_pair_t *pair = &task->choice->alternates[i];
        if (pair->prefill != NULL && bt_worker_usable(pair->decode, now_ms) &&
            bt_pair_refusal(r, prefill, pair->decode) == NULL)
            return pair->decode;
    }
    return NULL;
}

/* ---- who encodes: encoders are all that the policy sees, as those who serve alone ---- */

bt_worker_t *bt_plan_encoder(bt_task_t *task, const bt_failure_t *f, const char **why_p)
{
    bt_request_t *r = task->request;
    const bt_policy_failure_t failure = f != NULL ? describe(task, f) : (bt_policy_failure_t){0};
    bt_choice_t choice = {.alternate_count = 0};
    bt_choice_view_t v;
    bt_policy_view_t view;
    enum verdict verdict;
    int rc;

    bt_choice_view_encoders(r, &v);
    leave_out_tried(task, &v);
    *why_p = v.why != NULL ? v.why : "no encode worker is left for a part of the request";
    if (v.sets[BT_LIST_SINGLE].count == 0)
        return NULL;
    view = bt_candidates_view(v.sets, 0, r->pool);
    rc = bt_policy_call_plan_encoder(r, f != NULL ? &failure : NULL, &view, &choice);
    verdict = judge(r, task, &v, rc, &choice);
    if (verdict == CHOSEN)
        return choice.first.decode;
    *why_p = "the policy failed";
    return verdict == NOBODY || default_may_serve(r, verdict, f == NULL)
               ? bt_default_prefill(r, task, &v.sets[BT_LIST_SINGLE], NULL)
               : NULL;
}
