/* policy_call.c - asks the policies of a request: which ones they are, what they are told, what they answered.
 *
 * A request pins the generation that serves when it is first called, and keeps it until its first byte is out, or its last
 * one where the answer may be replayed. Whatever goes wrong with a policy is counted against the generation that brought it, and
 * never fails the request.
 */
#include "dispatch/plan/policy_call.h"
#include "base/log.h"
#include "base/rand.h"
#include "dispatch/plan/tokenize.h"
#include "script/shared/prompt_ids.h"

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

static void keep_vars(bt_request_t *r, const bt_policy_vars_t *vars)
{
    double values[BT_POLICY_KEPT_MAX], *kept;

    r->kept_count = bt_policy_vars_kept(vars, values);
    if (r->kept_count == 0)
        return;
    r->kept = kept = bt_arena_alloc(&r->arena, r->kept_count * sizeof(*kept));
    memcpy(kept, values, r->kept_count * sizeof(*kept));
}

void bt_policy_call_end_intake(bt_request_t *r)
{
    struct bt_intake *e = r->intake;

    if (e == NULL)
        return;
    bt_hook_run_end(&e->hook);
    for (unsigned i = 0; i < e->gate_count; i++) {
        if (r->kept_count == 0)
            keep_vars(r, &e->vars[i]);
        bt_policy_vars_drop(&e->vars[i]);
    }
    if (r->kept_count > 0 && r->policies == NULL) /* nobody has planned, but it wants to hear */
        r->policies = bt_arena_str(&r->arena, bt_str(e->policies->bundle->name)).p;
    r->intake = NULL;
}

void bt_policy_call_end(bt_request_t *r)
{
    bt_policy_call_end_intake(r);
    r->rule = (bt_rule_match_t){0};
    r->has_shadow = false;
    bt_generation_unpin(&r->generation);
}

/* ---- what they are told ---- */

/* The salt as engines' events tell it; whatever else keeps KV apart they do not. */
static void describe_space(const bt_intent_t *intent, bt_policy_request_t *q)
{
    const bt_json_item_t *salt = bt_intent_member(intent, BT_MEMBER_CACHE_SALT);
    const bt_json_item_t *key = bt_intent_member(intent, BT_MEMBER_EXTRA_KEY);
    const bt_json_item_t *lora = bt_intent_member(intent, BT_MEMBER_LORA_PATH);

    q->is_apart =
        (key != NULL && key->type != BT_JSON_NULL) || (lora != NULL && lora->type != BT_JSON_NULL);
    if (salt == NULL || salt->type == BT_JSON_NULL)
        return;
    if (salt->type == BT_JSON_STRING && salt->value.n >= 2 &&
        memchr(salt->value.p, '\\', salt->value.n) == NULL)
        q->cache_salt = (bt_str_t){salt->value.p + 1, salt->value.n - 2};
    else
        q->is_apart = true;
}

bt_policy_request_t bt_policy_call_describe(bt_request_t *r)
{
    if (r->prompt_number == 0)
        r->prompt_number = bt_prompt_number();
    bt_policy_request_t q = {
        .id = r->id,
        .path = r->path,
        .model = r->intent.model,
        .session = r->session,
        .tenant = r->tenant,
        .identity = r->identity,
        .head = r->x != NULL ? &r->x->head : NULL,
        .stream = r->intent.stream,
        .n = r->intent.n,
        .prompt_bytes = r->intent.prompt_bytes,
        .prompt_tokens = r->prompt_tokens,
        .max_tokens = r->intent.max_tokens,
        .prompt = r->intent.prompt != NULL ? r->intent.prompt->value : BT_STR_NULL,
        .prompt_number = r->prompt_number,
        .ids = bt_tokenize_ids(r),
        .token_source = bt_tokenize_source(r),
        .prefix_space = r->prefix_space,
        .klass = bt_str(r->record.klass != NULL ? r->record.klass : ""),
    };

    describe_space(&r->intent, &q);
    if (r->record.key != NULL)
        q.session = bt_str(r->record.key);
    return q;
}

/* ---- what went wrong ---- */

static enum bt_policy_slot slot_of(const struct bt_pool_policies *p, const bt_policy_t *policy)
{
    return policy == p->both      ? BT_SLOT_BOTH
           : policy == p->prefill ? BT_SLOT_PREFILL
                                  : BT_SLOT_DECODE;
}

/* A young generation that fails often is taken back: see bt_policy_errors_t. */
static void note_error(bt_request_t *r, const struct bt_pool_policies *p, const bt_policy_t *policy,
                       const char *text)
{
    const bt_bundle_part_t *part = &p->bundle->parts[slot_of(p, policy)];

    bt_policy_errors_note(&r->d->shared->policy_errors, part->born, text);
}

/* Counted once a request, however often it is asked. */
static bool is_first_failure(bt_request_t *r)
{
    const bool is_first = !r->policy_failed;

    r->policy_failed = true;
    return is_first;
}

void bt_policy_call_error(bt_request_t *r, const struct bt_pool_policies *p,
                          const bt_policy_t *policy, const char *text)
{
    r->record.why = bt_arena_str(&r->arena, bt_str(text)).p;
    if (!is_first_failure(r))
        return;
    bt_stats_inc(&r->d->stats, policy_errors);
    note_error(r, p, policy, text);
    BT_REQUEST_LOG(warn, "policy", r, NULL, "%s: %s", bt_policy_name(policy), text);
}

void bt_policy_call_invalid(bt_request_t *r, const char *text)
{
    const struct bt_pool_policies *p = bt_policy_call_policies(r);

    r->record.why = text;
    if (!is_first_failure(r))
        return;
    bt_stats_inc(&r->d->stats, policy_invalid);
    if (p == NULL)
        return;
    note_error(r, p, p->prefill != NULL ? p->prefill : p->both, text);
    if (p->decode != NULL)
        note_error(r, p, p->decode, text);
}

/* ---- plan ---- */

static bt_policy_vars_t *vars_of(const bt_request_t *r, const struct bt_pool_policies *p,
                                 const bt_policy_t *policy)
{
    for (unsigned i = 0; r->intake != NULL && r->intake->policies == p && i < r->intake->gate_count;
         i++)
        if (r->intake->gates[i] == policy)
            return &r->intake->vars[i];
    return NULL;
}

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

/* What the worker that is to compute the prompt has of it: its answer will say (learn.c). */
static void note_prediction(bt_request_t *r, const bt_policy_t *policy, const bt_pair_t *pair)
{
    const bt_worker_t *w = pair->prefill != NULL ? pair->prefill : pair->decode;

    r->predicted = 0;
    if (w != NULL && bt_policy_predicted(policy, w, &r->predicted))
        r->predicted_at = w->id;
}

/* Their text is the policy's until it is called again. */
static void keep_hints(bt_request_t *r, bt_choice_t *choice)
{
    if (choice->hints.kv_actions.n != 0)
        choice->hints.kv_actions = bt_arena_str(&r->arena, choice->hints.kv_actions);
}

static int plan_part(bt_request_t *r, const struct bt_pool_policies *p, bt_policy_t *policy,
                     enum bt_policy_part part, const bt_policy_failure_t *failure,
                     bt_policy_request_t *q, const bt_policy_view_t *view, bt_choice_t *choice_p)
{
    int rc;

    q->vars = vars_of(r, p, policy);
    rc = failure == NULL ? bt_policy_plan(policy, part, q, view, choice_p)
                         : bt_policy_plan_again(policy, part, q, view, failure, choice_p);
    if (rc < 0)
        bt_policy_call_error(r, p, policy, bt_policy_error(policy));
    else
        keep_hints(r, choice_p);
    if (rc == 0 && part != BT_POLICY_DECODE)
        note_prediction(r, policy, &choice_p->first);
    return rc;
}

/* Of the two halves, each from the policy that plans it: what is kept of a pair is not asked for.
 * Either's nil is nobody. */
static int plan_halves(bt_request_t *r, const struct bt_pool_policies *p,
                       const bt_policy_failure_t *failure, bt_policy_request_t *q,
                       const bt_policy_view_t *view, bt_choice_t *choice_p)
{
    const bool keeps_prefill = failure != NULL && failure->kept_prefill != NULL;
    const bool keeps_decode = failure != NULL && failure->kept_decode != NULL;
    bt_choice_t decode_side = {.alternate_count = 0};
    bt_pair_t *first = &choice_p->first;
    int rc = 0;

    *choice_p = (bt_choice_t){.first = {.prefill_rank = -1, .decode_rank = -1}};
    decode_side.first = choice_p->first;
    if (!keeps_prefill)
        rc = plan_part(r, p, p->prefill, BT_POLICY_PREFILL, failure, q, view, choice_p);
    if (rc == 0 && !keeps_decode)
        rc = plan_part(r, p, p->decode, BT_POLICY_DECODE, failure, q, view, &decode_side);
    if (rc < 0)
        return rc;
    if (keeps_prefill)
        first->prefill = view->sets[BT_LIST_PREFILL]->items[0];
    first->decode = keeps_decode ? view->sets[BT_LIST_DECODE]->items[0] : decode_side.first.decode;
    first->decode_rank = decode_side.first.decode_rank;
    if (first->kind == BT_PLAN_NONE)
        first->kind = decode_side.first.kind;
    if (bt_hints_are_empty(&choice_p->hints))
        choice_p->hints = decode_side.hints;
    choice_p->alternate_count = 0; /* halves of two answers make no ordered pairs */
    if (first->prefill == NULL || first->decode == NULL)
        first->prefill = first->decode = NULL;
    return 0;
}

int bt_policy_call_plan(bt_request_t *r, const bt_policy_failure_t *failure,
                        const bt_policy_view_t *view, bt_choice_t *choice_p)
{
    const struct bt_pool_policies *p = bt_policy_call_policies(r);
    bt_policy_request_t q;
    uint64_t start_us;
    int rc;

    if (p == NULL || p->both == NULL)
        return BT_E_AGAIN;
    note_policy(r, p);
    q = bt_policy_call_describe(r);
    q.trace = r->record.sample != NULL ? &r->record.sample->trace : NULL;
    q.is_counted = r->has_planned;
    r->has_planned = true;
    start_us = bt_clock_us();
    if (p->prefill == NULL || p->decode == NULL || view->sets[BT_LIST_PREFILL]->count == 0)
        rc = plan_part(r, p, p->both, BT_POLICY_BOTH, failure, &q, view, choice_p);
    else
        rc = plan_halves(r, p, failure, &q, view, choice_p);
    const uint64_t us = bt_clock_us() - start_us;
    r->record.plan_us += us;
    bt_histogram_note(&r->d->stats.decision, us * BT_DECISION_UNIT, 1);
    bt_request_trace_mark(r, BT_MARK_POLICY, start_us, us);
    return rc;
}

/* What one policy plans as a whole: two that plan a half each have no late choice. */
int bt_policy_call_plan_late(bt_request_t *r, enum bt_policy_part part,
                             const bt_policy_view_t *view, bt_worker_t *partner, unsigned attempt,
                             bt_choice_t *choice_p)
{
    const struct bt_pool_policies *p = bt_policy_call_policies(r);
    bt_policy_request_t q;
    int rc;

    if (p == NULL || p->both == NULL)
        return BT_E_AGAIN;
    q = bt_policy_call_describe(r);
    q.is_counted = true;
    q.vars = vars_of(r, p, p->both);
    rc = bt_policy_plan_late(p->both, part, &q, view, partner, attempt, choice_p);
    if (rc < 0 && rc != BT_E_AGAIN)
        bt_policy_call_error(r, p, p->both, bt_policy_error(p->both));
    return rc;
}

int bt_policy_call_plan_encoder(bt_request_t *r, const bt_policy_failure_t *failure,
                                const bt_policy_view_t *view, bt_choice_t *choice_p)
{
    const struct bt_pool_policies *p = bt_policy_call_policies(r);
    bt_policy_request_t q;

    if (p == NULL || p->both == NULL)
        return BT_E_AGAIN;
    q = bt_policy_call_describe(r);
    q.is_counted = true;
    return plan_part(r, p, p->both, BT_POLICY_BOTH, failure, &q, view, choice_p);
}

int bt_policy_call_enqueue(bt_request_t *r, bt_policy_queueing_t *word_p)
{
    const struct bt_pool_policies *p = bt_policy_call_policies(r);
    bt_policy_t *all[BT_SLOT_COUNT];
    const unsigned count = p != NULL ? bt_pool_policies_all(p, all) : 0;
    bt_policy_request_t q;
    int rc = BT_E_AGAIN;

    for (unsigned i = 0; i < count && rc == BT_E_AGAIN; i++) {
        if (!bt_policy_has_enqueue(all[i]))
            continue;
        q = bt_policy_call_describe(r);
        q.vars = vars_of(r, p, all[i]);
        rc = bt_policy_enqueue(all[i], &q, word_p);
        if (rc < 0)
            bt_policy_call_error(r, p, all[i], bt_policy_error(all[i]));
    }
    return rc;
}

int bt_policy_call_fallback(bt_request_t *r, const bt_policy_failure_t *failure,
                            const bt_policy_view_t *view, bt_choice_t *choice_p)
{
    const struct bt_pool_policies *p = bt_policy_call_policies(r);
    bt_policy_request_t q;
    int rc;

    if (p == NULL || p->both == NULL)
        return BT_E_AGAIN;
    q = bt_policy_call_describe(r);
    q.is_counted = true;
    q.vars = vars_of(r, p, p->both);
    rc = bt_policy_fallback(p->both, &q, view, failure, choice_p);
    if (rc < 0 && rc != BT_E_AGAIN)
        bt_policy_call_error(r, p, p->both, bt_policy_error(p->both));
    if (rc == 0)
        keep_hints(r, choice_p);
    return rc;
}

bool bt_policy_call_recompute(bt_request_t *r, const bt_policy_failure_t *failure)
{
    const struct bt_pool_policies *p = bt_policy_call_policies(r);
    bt_policy_request_t q;
    bool may = true;
    int rc;

    if (p == NULL || p->both == NULL)
        return true;
    q = bt_policy_call_describe(r);
    q.is_counted = true;
    q.vars = vars_of(r, p, p->both);
    rc = bt_policy_recompute(p->both, &q, failure, &may);
    if (rc < 0 && rc != BT_E_AGAIN)
        bt_policy_call_error(r, p, p->both, bt_policy_error(p->both));
    return may;
}

/* ---- the shadow ---- */

/* Decides beside the choice that is taken, and is only compared with it. */
void bt_policy_call_shadow(bt_request_t *r, const bt_policy_view_t *view, const bt_choice_t *taken)
{
    const struct bt_pool_policies *p =
        r->has_shadow ? variant_of(r->generation, r->rule.shadow_target) : NULL;
    struct bt_record_shadow *shadow;
    bt_policy_request_t q;
    bt_choice_t choice;
    uint64_t start_us;

    if (p == NULL)
        return;
    r->has_shadow = false; /* once a request, whatever it is split into */
    r->record.shadow = shadow = bt_arena_zalloc(&r->arena, sizeof(*shadow));
    q = bt_policy_call_describe(r);
    r->shadow_policies = bt_arena_str(&r->arena, bt_str(p->bundle->name)).p;
    shadow->rule = bt_arena_str(&r->arena, bt_str(r->rule.shadow_rule)).p;
    shadow->policy = bt_arena_str(&r->arena, bt_str(bt_policy_name(p->both))).p;
    shadow->version = bt_arena_str(&r->arena, bt_str(bt_policy_version(p->both))).p;
    start_us = bt_clock_us();
    if (bt_policy_plan(p->both, BT_POLICY_BOTH, &q, view, &choice) < 0) {
        shadow->error = bt_arena_str(&r->arena, bt_str(bt_policy_error(p->both))).p;
        bt_stats_inc(&r->d->stats, shadow_errors);
        return;
    }
    shadow->plan_us = bt_clock_us() - start_us;
    shadow->prefill = choice.first.prefill != NULL ? choice.first.prefill->name : NULL;
    shadow->decode = choice.first.decode != NULL ? choice.first.decode->name : NULL;
    shadow->is_single = bt_pair_is_single(&choice.first);
    shadow->same =
        choice.first.prefill == taken->first.prefill && choice.first.decode == taken->first.decode;
    if (shadow->same)
        bt_stats_inc(&r->d->stats, shadow_same);
    else
        bt_stats_inc(&r->d->stats, shadow_different);
}

/* ---- hooks that may wait ---- */

static void on_wait(bt_wait_t *wait, const bt_hook_answer_t *answer)
{
    bt_hook_run_t *hook = bt_wait_user(wait);
    int rc = BT_E_CANCELLED;

    hook->is_late = bt_clock_ms() >= hook->until_ms;
    if (hook->on_resume == NULL || hook->on_resume(hook))
        rc = bt_policy_resume(&hook->run, answer);
    bt_wait_free(&hook->wait);
    rc = bt_hook_run_settle(hook, rc);
    if (rc != 1)
        hook->on_end(hook, rc);
}

void bt_hook_run_begin(bt_hook_run_t *hook)
{
    hook->until_ms = bt_clock_ms() + hook->d->shared->config.policy_wait_ms;
    hook->is_late = false;
}

int bt_hook_run_settle(bt_hook_run_t *hook, int rc)
{
    const bt_wait_ctx_t ctx = bt_dispatcher_wait_ctx(hook->d);
    const bt_hook_op_t *op = &hook->run.hook_op;
    bt_hook_answer_t answer;
    bt_store_reply_t reply;

    while (rc == 1 && !hook->is_late) {
        if (!bt_wait_store_now(&ctx, op, &answer, &reply)) {
            answer = (bt_hook_answer_t){0};
            answer.rc = bt_wait_start(&hook->wait, &ctx, op, hook->until_ms, on_wait, hook);
            if (answer.rc == 0)
                return 1;
            hook->is_late = true; /* one that asks for what cannot be had must not spin */
        }
        rc = bt_policy_resume(&hook->run, &answer);
    }
    return rc == 1 ? BT_E_TOTAL_TIMEOUT : rc;
}

void bt_hook_run_end(bt_hook_run_t *hook)
{
    bt_wait_free(&hook->wait);
    bt_policy_run_drop(&hook->run);
}
