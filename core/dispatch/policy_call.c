/* policy_call.c - asks the policies of a request: which ones they are, what they are told, what they answered.
 *
 * A request pins the generation that serves when it is first called, and keeps it until its first byte is out. Whatever goes
 * wrong with a policy is counted against the generation that brought it, and never fails the request.
 */
#include "dispatch/policy_call.h"
#include "base/log.h"
#include "base/rand.h"
#include "dispatch/intake.h"

/* ---- which ---- */

static const bt_generation_t *generation_of(bt_request_t *r)
{
    if (r->generation == NULL && r->first_byte_us == 0 && !r->finished)
        r->generation = bt_generation_pin(&r->d->generations);
    return r->generation != NULL ? r->generation : r->d->generations.serving;
}

static const struct bt_pool_policies *variant_of(const bt_generation_t *g,
                                                 const bt_rule_target_t *target)
{
    unsigned at;

    if (g == NULL || target == NULL || target->variant < 0)
        return NULL;
    at = g->bundle->first_variant + (unsigned) target->variant;
    return at < g->bundle->pool_count && g->pools[at].both != NULL ? &g->pools[at] : NULL;
}

/* NULL: nobody is asked for its pool. A pool that came after the request is looked up in the generation that serves now. */
const struct bt_pool_policies *bt_policy_call_policies(bt_request_t *r)
{
    const bt_generation_t *g = generation_of(r), *serving = r->d->generations.serving;
    const bt_worker_pool_t *pool = r->pool;
    const struct bt_pool_policies *p = variant_of(r->generation, r->rule.target);

    if (p == NULL && g != NULL)
        p = bt_generation_pool(g, pool->spec.name, pool->index);
    if (p == NULL && serving != NULL && serving != g)
        p = bt_generation_pool(serving, pool->spec.name, pool->index);
    return p;
}

/* A rule's pool and policy hold for this request only, and no longer than its generation. */
void bt_policy_call_rules(bt_request_t *r)
{
    const bt_generation_t *g = generation_of(r);
    bt_policy_request_t q;

    if (g == NULL || g->bundle->rules == NULL)
        return;
    q = bt_policy_call_describe(r);
    bt_rules_match(g->bundle->rules, &q, &r->rule);
    if (r->rule.rule != NULL)
        r->record.rule = bt_arena_str(&r->arena, bt_str(r->rule.rule)).p;
    if (r->rule.target != NULL && r->rule.target->pool != NULL && r->pinned == NULL)
        r->pool_name = bt_arena_str(&r->arena, bt_str(r->rule.target->pool)).p;
    r->has_shadow = r->rule.shadow_target != NULL && bt_rand_unit() < r->rule.shadow_sample;
}

void bt_policy_call_end(bt_request_t *r)
{
    if (r->intake != NULL)
        bt_intake_end(r);
    r->rule = (bt_rule_match_t){0};
    r->has_shadow = false;
    bt_generation_unpin(&r->generation);
}

/* ---- what they are told ---- */

bt_policy_request_t bt_policy_call_describe(bt_request_t *r)
{
    bt_policy_request_t q = {
        .path = r->path,
        .model = r->intent.model,
        .session = r->session,
        .tenant = r->tenant,
        .head = r->x != NULL ? &r->x->head : NULL,
        .stream = r->intent.stream,
        .n = r->intent.n,
        .prompt_bytes = r->intent.prompt_bytes,
        .prompt_tokens = r->prompt_tokens,
        .max_tokens = r->intent.max_tokens,
        .prompt = r->intent.prompt != NULL ? r->intent.prompt->value : BT_STR_NULL,
        .klass = bt_str(r->record.klass != NULL ? r->record.klass : ""),
    };

    if (r->record.key != NULL)
        q.session = bt_str(r->record.key);
    return q;
}

/* ---- what went wrong ---- */

/* A young generation that fails often is taken back: see bt_policy_errors_t. */
static void note_error(bt_request_t *r, const struct bt_pool_policies *p, const bt_policy_t *policy,
                       const char *text)
{
    const enum bt_policy_slot slot = policy == p->both      ? BT_SLOT_BOTH
                                     : policy == p->prefill ? BT_SLOT_PREFILL
                                                            : BT_SLOT_DECODE;

    bt_policy_errors_note(&r->d->shared->policy_errors, p->bundle->parts[slot].born, text);
}

void bt_policy_call_error(bt_request_t *r, const struct bt_pool_policies *p,
                          const bt_policy_t *policy, const char *text)
{
    bt_stats_inc(&r->d->stats, policy_errors);
    note_error(r, p, policy, text);
    r->record.why = bt_arena_str(&r->arena, bt_str(text)).p;
    BT_REQUEST_LOG(warn, "policy", r, NULL, "%s: %s; the default choice serves",
                   bt_policy_name(policy), text);
}

void bt_policy_call_invalid(bt_request_t *r)
{
    static const char text[] = "chose workers that cannot serve the request";
    const struct bt_pool_policies *p = bt_policy_call_policies(r);

    bt_stats_inc(&r->d->stats, policy_invalid);
    r->record.why = text;
    if (p == NULL)
        return;
    note_error(r, p, p->prefill != NULL ? p->prefill : p->both, text);
    if (p->decode != NULL)
        note_error(r, p, p->decode, text);
}

/* ---- plan ---- */

/* Copies: a reload frees the policy while the answer is on its way. */
static void note_policy(bt_request_t *r, const struct bt_pool_policies *p)
{
    const bt_generation_t *g = r->generation != NULL ? r->generation : r->d->generations.serving;

    r->policy_generation = g->bundle->number;
    r->policy_name = bt_arena_str(&r->arena, bt_str(bt_policy_name(p->both))).p;
    r->policy_version = bt_policy_version(p->both) != NULL
                            ? bt_arena_str(&r->arena, bt_str(bt_policy_version(p->both))).p
                            : NULL;
    r->policies = bt_arena_str(&r->arena, bt_str(p->bundle->name)).p;
}

static int plan_part(bt_request_t *r, const struct bt_pool_policies *p, bt_policy_t *policy,
                     enum bt_policy_part part, const bt_policy_request_t *q,
                     const bt_policy_view_t *view, bt_choice_t *choice_p)
{
    int rc = bt_policy_plan(policy, part, q, view, choice_p);

    if (rc < 0)
        bt_policy_call_error(r, p, policy, bt_policy_error(policy));
    return rc;
}

static int plan_both(bt_request_t *r, const struct bt_pool_policies *p,
                     const bt_policy_request_t *q, const bt_policy_view_t *view,
                     bt_choice_t *choice_p)
{
    bt_choice_t decode_side;
    int rc;

    if (p->prefill == NULL || p->decode == NULL || view->prefill->count == 0)
        return plan_part(r, p, p->both, BT_POLICY_BOTH, q, view, choice_p);
    rc = plan_part(r, p, p->prefill, BT_POLICY_PREFILL, q, view, choice_p);
    if (rc == 0)
        rc = plan_part(r, p, p->decode, BT_POLICY_DECODE, q, view, &decode_side);
    if (rc < 0)
        return rc;
    choice_p->first.decode = decode_side.first.decode;
    choice_p->first.decode_rank = decode_side.first.decode_rank;
    choice_p->alternate_count = 0; /* halves of two answers make no ordered pairs */
    return 0;
}

int bt_policy_call_plan(bt_request_t *r, const bt_policy_view_t *view, bt_choice_t *choice_p)
{
    const struct bt_pool_policies *p = bt_policy_call_policies(r);
    bt_policy_request_t q;
    uint64_t start_us;
    int rc;

    if (p == NULL || p->both == NULL)
        return BT_E_AGAIN;
    note_policy(r, p);
    q = bt_policy_call_describe(r);
    q.vars = r->intake != NULL ? &r->intake->vars : NULL;
    q.trace = r->record.sampled ? &r->record.trace : NULL;
    start_us = bt_clock_us();
    rc = plan_both(r, p, &q, view, choice_p);
    r->record.plan_us += bt_clock_us() - start_us;
    return rc;
}

int bt_policy_call_fallback(bt_task_t *task, const bt_failure_t *f, const bt_policy_view_t *view,
                            bt_choice_t *choice_p)
{
    bt_request_t *r = task->request;
    const struct bt_pool_policies *p = bt_policy_call_policies(r);
    bt_policy_request_t q = bt_policy_call_describe(r);
    const bt_policy_failure_t failure = {
        .scope = bt_err_scope(f->rc),
        .name = bt_err_name(f->rc),
        .leg = bt_leg_role_name(f->leg),
        .status = f->status,
        .tried = task->tried,
        .tried_count = task->tried_count,
    };
    int rc;

    if (p == NULL || p->both == NULL)
        return BT_E_AGAIN;
    q.vars = r->intake != NULL ? &r->intake->vars : NULL;
    rc = bt_policy_fallback(p->both, &q, view, &failure, choice_p);
    if (rc < 0 && rc != BT_E_AGAIN)
        bt_policy_call_error(r, p, p->both, bt_policy_error(p->both));
    return rc;
}

/* ---- the shadow ---- */

static void copy_name(char *to, size_t size, const bt_worker_t *w)
{
    bt_str_copy(to, size, w != NULL ? w->name : "");
}

/* Decides beside the choice that is taken, and is only compared with it. */
void bt_policy_call_shadow(bt_request_t *r, const bt_policy_view_t *view, const bt_choice_t *taken)
{
    const struct bt_pool_policies *p =
        r->has_shadow ? variant_of(r->generation, r->rule.shadow_target) : NULL;
    bt_policy_request_t q;
    bt_choice_t choice;
    uint64_t start_us;

    if (p == NULL)
        return;
    r->has_shadow = false; /* once a request, whatever it is split into */
    q = bt_policy_call_describe(r);
    r->record.shadow.rule = bt_arena_str(&r->arena, bt_str(r->rule.shadow_rule)).p;
    r->shadow_policies = bt_arena_str(&r->arena, bt_str(p->bundle->name)).p;
    r->record.shadow.policy = bt_arena_str(&r->arena, bt_str(bt_policy_name(p->both))).p;
    r->record.shadow.version = bt_arena_str(&r->arena, bt_str(bt_policy_version(p->both))).p;
    start_us = bt_clock_us();
    if (bt_policy_plan(p->both, BT_POLICY_BOTH, &q, view, &choice) < 0) {
        r->record.shadow.error = bt_arena_str(&r->arena, bt_str(bt_policy_error(p->both))).p;
        bt_stats_inc(&r->d->stats, shadow_errors);
        return;
    }
    r->record.shadow.plan_us = bt_clock_us() - start_us;
    copy_name(r->record.shadow.prefill, sizeof(r->record.shadow.prefill), choice.first.prefill);
    copy_name(r->record.shadow.decode, sizeof(r->record.shadow.decode), choice.first.decode);
    r->record.shadow.same =
        choice.first.prefill == taken->first.prefill && choice.first.decode == taken->first.decode;
    if (r->record.shadow.same)
        bt_stats_inc(&r->d->stats, shadow_same);
    else
        bt_stats_inc(&r->d->stats, shadow_different);
}
