/* Which workers: what a policy proposes, and what is chosen where it proposes nothing that can
 * serve. */
#include "dispatch/attempt_rig.h"

/* By name, in plan and fallback. */
#define POLICY(hooks)                                                                              \
    "local function by(view, name) for _, set in ipairs({ view.prefill, view.decode, view.hybrid " \
    "}) do for i = 1, #set do if set[i].name == name then return set[i] end end end end "          \
    "return { api = 2, name = 'mine', version = '1', " hooks " }"
#define PAIR(p, d) "{ prefill = by(view, '" p "'), decode = by(view, '" d "') }"

static void start(const char *policy)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector", .policy = policy});
}

static uint64_t count_of(const _Atomic uint64_t *counter)
{
    return atomic_load(counter);
}

static void served_by(int prefill, const char *id, int decode)
{
    char reply[1024];

    take(prefill);
    snprintf(reply, sizeof(reply),
             strcmp(id, "req-1") == 0 ? HANDOFF("req-1") : HANDOFF("req-1-a2"));
    answer(prefill, 200, reply);
    take(decode);
    answer(decode, 200, REPLY);
    answered("hello");
}

static void the_policy_decides(void **state)
{
    start(POLICY("plan = function(req, view) return " PAIR("p2", "d1") " end"));
    ask();
    served_by(P2, "req-1", D1);
    assert_true(client_got("x-baton-policy: mine@1\r\n"));
    recorded("\"decided_by\":\"policy\"");
}

static void nobody_has_been_asked(void **state)
{
    start(NULL);
    ask();
    served_by(P0, "req-1", D0);
    recorded("\"decided_by\":\"default\"");
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 0);
    assert_int_equal(count_of(&rig.d->stats.policy_invalid), 0);
}

static void a_policy_that_fails(void **state)
{
    start(POLICY("plan = function() error('no idea') end"));
    ask();
    served_by(P0, "req-1", D0);
    recorded("\"decided_by\":\"default\"");
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 1);
    assert_int_equal(count_of(&rig.d->stats.policy_invalid), 0);
}

/* A prefill worker that decodes: the mistake is counted, and the request served. */
static void roles_must_be_right(void **state)
{
    start(POLICY("plan = function(req, view) return { prefill = view.prefill[1], decode = "
                 "view.prefill[2] } end"));
    ask();
    served_by(P0, "req-1", D0);
    recorded("\"decided_by\":\"default\"");
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 1);
}

/* p0 has failed: its alternate is passed over, whichever decode it names, and the next one
 * taken. */
static void what_was_tried_is_no_alternate(void **state)
{
    start(POLICY("plan = function(req, view) return { prefill = by(view, 'p0'), decode = by(view, "
                 "'d0'), alternates = { " PAIR("p0", "d1") ", " PAIR("p2", "d1") " } } end"));
    ask();
    take(P0);
    answer(P0, 500, "{\"error\":{\"message\":\"no\"}}");
    served_by(P2, "req-1-a2", D1);
    assert_true(client_got("x-baton-attempts: 2\r\n"));
}

/* d1 is the least loaded one of the two that are left, but the policy has said p2 and d0. */
static void alternates_come_before_the_least_loaded(void **state)
{
    start(POLICY("plan = function(req, view) return { prefill = by(view, 'p0'), decode = by(view, "
                 "'d0'), alternates = { " PAIR("p2", "d0") " } } end"));
    ask();
    take(P0);
    reset(P0);
    served_by(P2, "req-1-a2", D0);
}

static void fallback_decides_next(void **state)
{
    start(POLICY("plan = function(req, view) return " PAIR(
        "p0",
        "d0") " end, "
              "fallback = function(req, view, failure) if failure.name == 'reset' and failure.leg "
              "== 'prefill' and #failure.tried == 1 then return " PAIR("p2", "d1") " end end"));
    ask();
    take(P0);
    reset(P0);
    served_by(P2, "req-1-a2", D1);
}

static void fallback_gives_up(void **state)
{
    start(
        POLICY("plan = function(req, view) return " PAIR("p0", "d0") " end, "
                                                                     "fallback = function() end"));
    ask();
    take(P0);
    reset(P0);
    answered("HTTP/1.1 502");
    assert_false(has_caller(&engines[P1]));
}

/* Whatever a fallback names, nobody is asked again who was to blame: the request ends. */
static void fallback_names_the_one_that_failed(void **state)
{
    start(POLICY("plan = function(req, view) return " PAIR(
        "p0", "d0") " end, "
                    "fallback = function(req, view) return " PAIR("p0", "d1") " end"));
    ask();
    take(P0);
    reset(P0);
    answered("HTTP/1.1 502");
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 1);
    assert_false(has_caller(&engines[P1]));
}

/* ---- plan is asked again ---- */

static void a_retry_asks_the_plan(void **state)
{
    start(
        POLICY("plan = function(req, view, ctx) local f = ctx.failure "
               "assert(baton.window('r', 1, 60) == 1) "
               "if ctx.attempt == 1 then assert(f == nil and #view.prefill == 3) return " PAIR(
                   "p0", "d0") " end assert(ctx.attempt == 2 and f.name == 'reset' and f.leg == "
                               "'prefill' and #f.tried == 1 and not f.keep and #view.prefill == 2 "
                               "and not by(view, 'p0')) return " PAIR("p2", "d1") " end"));
    ask();
    take(P0);
    reset(P0);
    served_by(P2, "req-1-a2", D1);
    assert_true(client_got("x-baton-policy: mine@1\r\n"));
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 0);
}

#define FIRST_THEN(then)                                                                           \
    POLICY("plan = function(req, view, ctx) if not ctx.failure then return " PAIR(                 \
        "p0", "d0") " end " then " end")

static void nil_ends_a_retry(void **state)
{
    start(FIRST_THEN("return nil"));
    ask();
    take(P0);
    answer(P0, 500, "{\"error\":{\"message\":\"its own words\"}}");
    answered("its own words");
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 0);
    assert_false(has_caller(&engines[P1]) || has_caller(&engines[P2]));
}

static void nil_of_the_first_plan(void **state)
{
    start(POLICY("plan = function() return nil end"));
    ask();
    answered("HTTP/1.1 503");
    assert_true(client_got("the policy chose nobody"));
    recorded("\"why\":\"the policy chose nobody\"");
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 0);
}

/* What the default choice would have had to serve is not the policy's. */
static void an_error_ends_a_retry(void **state)
{
    start(FIRST_THEN("error('no idea')"));
    ask();
    take(P0);
    reset(P0);
    answered("HTTP/1.1 502");
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 1);
    assert_false(has_caller(&engines[P1]) || has_caller(&engines[P2]));
}

static void start_with(enum bt_policy_on_error on_error, const char *policy)
{
    rig_start(&(struct rig_options){
        .connector = "NixlConnector", .policy = policy, .config.policy_on_error = on_error});
}

static void errors_may_be_the_defaults_to_serve(void **state)
{
    start_with(BT_ON_ERROR_DEFAULT, POLICY("plan = function() error('never') end"));
    ask();
    take(P0);
    reset(P0);
    served_by(P1, "req-1-a2", D0);
    assert_true(client_got("x-baton-policy: default\r\n"));
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 1); /* of one request */
}

static void errors_may_end_a_request(void **state)
{
    start_with(BT_ON_ERROR_END, POLICY("plan = function() error('never') end"));
    ask();
    answered("HTTP/1.1 503");
    assert_true(client_got("the policy failed"));
    assert_false(has_caller(&engines[P0]));
}

/* ---- one of a pair ---- */

/* d0 is gone when p0 has finished: who gets the hand-off is the policy's to say. */
static void hand_off_to_a_decode_that_is_gone(const char *policy)
{
    start(policy);
    ask();
    take(P0);
    refuse(D0);
    answer(P0, 200, HANDOFF("req-1"));
}

static void the_policy_names_another_decode(void **state)
{
    hand_off_to_a_decode_that_is_gone(FIRST_THEN(
        "local k = ctx.failure.keep assert(k.prefill == view.prefill[1].id and #view.prefill == 1 "
        "and #view.decode == 1 and #view.single == 0) return { prefill = k.prefill, decode = "
        "by(view, 'd1') }"));
    take(D1);
    answer(D1, 200, REPLY);
    answered("hello");
    assert_int_equal(count_of(&rig.d->stats.decode_replacements), 1);
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 0);
}

/* It has said d0 and nobody else: another tenant's worker is no replacement. */
static void the_policy_names_no_other_decode(void **state)
{
    hand_off_to_a_decode_that_is_gone(FIRST_THEN("return nil"));
    answered("HTTP/1.1 502");
    assert_false(has_caller(&engines[D1]));
    assert_int_equal(count_of(&rig.d->stats.decode_replacements), 0);
}

/* After its nil beside p0 it sees all, and begins anew. */
static void the_policy_lets_prefills_work_go(void **state)
{
    hand_off_to_a_decode_that_is_gone(
        FIRST_THEN("if ctx.failure.keep then return nil end return " PAIR("p2", "d1")));
    take(P2);
    answer(P2, 200, HANDOFF("req-1-a2"));
    take(D1);
    answer(D1, 200, REPLY);
    answered("hello");
    assert_int_equal(count_of(&rig.d->stats.decode_replacements), 0);
}

/* ---- decode is left open ---- */

#define LATE(plan_decode)                                                                          \
    POLICY("plan = function(req, view) return { prefill = by(view, 'p1') } end, plan_decode = "    \
           "function(req, view, prefill, ctx) assert(prefill.name == 'p1' and ctx.attempt == "     \
           "1) " plan_decode " end")

static void decode_is_chosen_after_prefill(void **state)
{
    start(LATE("return { decode = by(view, 'd1') }"));
    ask();
    take(P1);
    assert_false(has_caller(&engines[D0]) || has_caller(&engines[D1]));
    answer(P1, 200, HANDOFF("req-1"));
    take(D1);
    answer(D1, 200, REPLY);
    answered("hello");
    assert_true(client_got("x-baton-policy: mine@1\r\n"));
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 0);
}

static void nobody_decodes_what_prefill_has_made(void **state)
{
    start(LATE("return nil"));
    ask();
    take(P1);
    answer(P1, 200, HANDOFF("req-1"));
    take(D0);
    assert_true(heard(D0, "\"model\":\"baton-release-no-such-model\""));
    answer(D0, 404, "{}");
    answered("HTTP/1.1 503");
    assert_true(client_got("the policy chose no decode worker"));
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 0);
}

/* p1 has no decode worker to begin with: its failure is its own. */
static void a_late_plan_fails_at_its_prefill(void **state)
{
    start(LATE("return { decode = by(view, 'd1') }"));
    ask();
    take(P1);
    answer(P1, 503, "{\"error\":{\"message\":\"no room\"}}");
    answered("no room");
    assert_false(has_caller(&engines[D0]) || has_caller(&engines[D1]));
}

/* Both legs of a bootstrap begin at once. */
static void no_late_plan_where_decode_comes_first(void **state)
{
    rig_start(&(struct rig_options){.connector = "sglang",
                                    .policy = LATE("return { decode = by(view, 'd1') }")});
    ask();
    take(P0);
    take(D0);
    assert_int_equal(count_of(&rig.d->stats.policy_invalid), 1);
    answer(P0, 200, REPLY);
    answer(D0, 200, REPLY);
    answered("hello");
    assert_true(client_got("x-baton-policy: default\r\n"));
}

/* Prefill's policy is not asked for decode's half. */
static void the_half_that_failed_is_planned_anew(void **state)
{
    rig_start(&(struct rig_options){
        .connector = "NixlConnector",
        .policy = POLICY("plan = function() error('both halves have their own') end"),
        .prefill_policy = POLICY("plan = function(req, view, ctx) assert(not ctx.failure) return { "
                                 "prefill = by(view, 'p0') } end"),
        .decode_policy = POLICY("plan = function(req, view, ctx) return { decode = by(view, "
                                "ctx.failure and 'd1' or 'd0') } end")});
    ask();
    take(P0);
    refuse(D0);
    answer(P0, 200, HANDOFF("req-1"));
    take(D1);
    answer(D1, 200, REPLY);
    answered("hello");
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 0);
}

/* A reload changes nothing for a request that has begun. */
static void the_generation_that_it_began_with(void **state)
{
    start(POLICY("plan = function(req, view) return " PAIR(
        "p0", "d0") " end, "
                    "fallback = function(req, view) return " PAIR("p2", "d1") " end"));
    ask();
    take(P0);
    rig_serve(POLICY("plan = function() error('new') end, fallback = function() end"), NULL);
    reset(P0);
    served_by(P2, "req-1-a2", D1);
    assert_true(client_got("x-baton-policy-generation: 1\r\n"));
    assert_int_equal(rig.d->generations.live, 1); /* the first byte has let go of the old one */
}

static void a_worker_that_is_down_is_not_chosen(void **state)
{
    start(NULL);
    bt_worker_set_health(engines[P0].worker, BT_HEALTH_DOWN, "spec");
    atomic_store(&engines[D0].worker->draining, true);
    bt_workers_changed();
    ask();
    served_by(P1, "req-1", D1);
}

static void nobody_is_left(void **state)
{
    start(NULL);
    for (int i = D0; i <= D1; i++)
        bt_worker_set_health(engines[i].worker, BT_HEALTH_DOWN, "spec");
    for (int i = P0; i <= P2; i++)
        bt_worker_set_health(engines[i].worker, BT_HEALTH_DOWN, "spec");
    bt_workers_changed();
    ask();
    answered("HTTP/1.1 503");
    assert_true(client_got("Retry-After: 1\r\n"));
    assert_int_equal(count_of(&rig.d->stats.unavailable), 1);
}

/* D0 serves somebody alone, and is at the prompt. */
static void the_prompts_of_a_lone_worker_are_load(void **state)
{
    start(NULL);
    atomic_fetch_add(&bt_worker_total(engines[D0].worker, BT_PHASE_PREFILL)->tokens, 1 << 30);
    ask();
    served_by(P0, "req-1", D1);
    atomic_fetch_sub(&bt_worker_total(engines[D0].worker, BT_PHASE_PREFILL)->tokens, 1 << 30);
}

static unsigned legs_at(int which)
{
    return atomic_load(&engines[which].worker->limited_legs);
}

/* From the plan on until a leg's end. */
static void a_leg_has_a_place(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector", .engine_request_limit = 1});
    ask();
    take(P0);
    assert_int_equal(legs_at(P0), 1);
    assert_int_equal(legs_at(D0), 1);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    TURN_UNTIL(&rig.loop, legs_at(P0) == 0);
    assert_int_equal(legs_at(D0), 1);
    answer(D0, 200, REPLY);
    answered("hello");
    TURN_UNTIL(&rig.loop, legs_at(D0) == 0);
}

static void who_is_full_is_no_candidate(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector", .engine_request_limit = 2});
    for (int i = 0; i < 2; i++)
        assert_true(bt_worker_take_place(engines[P0].worker, 2) &&
                    bt_worker_take_place(engines[D0].worker, 2));
    assert_false(bt_worker_take_place(engines[P0].worker, 2));
    ask();
    served_by(P1, "req-1", D1);
    for (int i = 0; i < 2; i++) {
        bt_worker_give_place_back(engines[P0].worker);
        bt_worker_give_place_back(engines[D0].worker);
    }
}

/* Nor does a prefill stand in for decodes that are only full. */
static void all_are_full(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector", .engine_request_limit = 1});
    for (int i = D0; i <= D1; i++)
        assert_true(bt_worker_take_place(engines[i].worker, 1));
    ask();
    answered("HTTP/1.1 503");
    assert_true(client_got("Retry-After: 1\r\n"));
    assert_true(client_got("each is at its limit (--engine-request-limit)"));
    assert_int_equal(count_of(&rig.d->stats.limited), 1);
    for (int i = D0; i <= D1; i++)
        bt_worker_give_place_back(engines[i].worker);
}

/* vLLM's prefill workers can answer alone; the client is told. */
static void prefill_alone(void **state)
{
    start(NULL);
    for (int i = D0; i <= D1; i++)
        bt_worker_set_health(engines[i].worker, BT_HEALTH_DOWN, "spec");
    bt_workers_changed();
    ask();
    STEP_UNTIL(has_request(P0) || has_request(P1) || has_request(P2), turn_once(&rig.loop));
    for (int i = P0; i <= P2; i++)
        if (engines[i].requests == 1)
            answer(i, 200, REPLY);
    answered("x-baton-degraded: prefill-alone\r\n");
    assert_int_equal(count_of(&rig.d->stats.degraded), 1);
}

/* SGLang's cannot. */
static void prefill_alone_of_sglang(void **state)
{
    rig_start(&(struct rig_options){.connector = "sglang"});
    for (int i = D0; i <= D1; i++)
        bt_worker_set_health(engines[i].worker, BT_HEALTH_DOWN, "spec");
    bt_workers_changed();
    ask();
    answered("HTTP/1.1 503");
}

/* No waiting cures this one. */
static void a_route_that_cannot_be_split(void **state)
{
    rig_start(&(struct rig_options){.connector = "sglang"});
    ask_with(
        "/v1/messages", "",
        "{\"model\":\"m\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
    answered("HTTP/1.1 400");
    assert_true(client_got("cannot be split"));
}

static void a_pair_comes_before_a_hybrid(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector", .has_single = true});
    ask();
    served_by(P0, "req-1", D0);
    assert_false(has_caller(&engines[S0]));
}

/* The lists that a policy gets are the same tables as long as no worker's state changes, whatever else is asked between. */
static void the_view_lasts(void **state)
{
    start(POLICY("plan = function(req, view, ctx) "
                 "local list = #view.prefill > 0 and 'prefill' or 'single' "
                 "ctx.state[list] = ctx.state[list] or view[list] "
                 "assert(ctx.state[list] == view[list]) "
                 "if list == 'prefill' then return " PAIR(
                     "p0", "d0") " end "
                                 "return { worker = by(view, 'd0') } end"));
    for (int i = 0; i < 3; i++) {
        ask();
        served_by(P0, "req-1", D0);
        recorded("\"decided_by\":\"policy\"");
        ask_with("/v1/embeddings", "", "{\"model\":\"m\",\"input\":\"x\"}");
        take(D0);
        answer(D0, 200, REPLY);
        answered("hello");
        recorded("\"decided_by\":\"policy\"");
    }
}

/* Its load is prefill's until the first byte, and decode's from there. */
static void a_decode_worker_alone(void **state)
{
    start(POLICY("plan = function(req, view) assert(#view.single == 5 and #view.hybrid == 0) "
                 "return { worker = by(view, 'd1') } end"));
    ask_body(STREAM_BODY);
    take(D1);
    assert_string_equal(body_of(D1), STREAM_BODY);
    assert_true(held(D1, BT_PHASE_PREFILL) > 0);
    assert_int_equal(held(D1, BT_PHASE_DECODE), 0);
    stream_head(D1);
    event(D1, "{\"choices\":[{\"text\":\"hello\"}]}");
    STEP_UNTIL(held(D1, BT_PHASE_DECODE) > 0, turn_once(&rig.loop));
    assert_int_equal(held(D1, BT_PHASE_PREFILL), 0);
    stream_end(D1);
    answered("hello");
    assert_true(client_got("x-baton-plan: single\r\n"));
    recorded("\"decided_by\":\"policy\"");
    assert_int_equal(held(D1, BT_PHASE_DECODE), 0);
    assert_false(has_caller(&engines[P0]));
}

/* SGLang's waits for a bootstrap room that never comes. */
static void a_decode_worker_that_cannot(void **state)
{
    rig_start(&(struct rig_options){
        .connector = "sglang",
        .policy = POLICY("plan = function(req, view) assert(#view.single == 0) "
                         "return { worker = view.decode[1] } end")});
    ask();
    take(P0);
    take(D0);
    answer(P0, 200, REPLY);
    answer(D0, 200, REPLY);
    answered("hello");
    assert_true(client_got("x-baton-plan: bootstrap\r\n"));
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 1);
}

static void only_decode_workers_are_left(void)
{
    for (int p = P0; p <= P2; p++)
        bt_worker_set_health(engines[p].worker, BT_HEALTH_DOWN, "spec");
    bt_workers_changed();
}

/* Nothing is computed on a decode worker unless a policy says so. */
static void decode_workers_and_nobody_says_so(void **state)
{
    start(NULL);
    only_decode_workers_are_left();
    ask();
    answered("HTTP/1.1 503");
    assert_false(has_caller(&engines[D0]));
}

/* A policy that looks for nobody else has made no mistake: it is not blamed, and the client hears who is down. */
static void decode_workers_and_the_policy_looks_for_others(void **state)
{
    start_with(BT_ON_ERROR_END,
               POLICY("plan = function(req, view) return { kind = 'single', worker = "
                      "baton.argmin(view.hybrid, 'tokens') } end"));
    only_decode_workers_are_left();
    ask();
    answered("HTTP/1.1 503");
    assert_true(client_got("p0"));
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 0);
    assert_false(has_caller(&engines[D0]));
}

/* Nor in a retry: p1 and p2 are left, and no decode for them. */
static void prefill_workers_and_the_policy_looks_for_others(void **state)
{
    start_with(BT_ON_ERROR_END,
               POLICY("plan = function(req, view) local p = baton.pairable(view.prefill, "
                      "view.decode)[1] if not p then return { kind = 'single', worker = "
                      "baton.argmin(view.hybrid, 'tokens') } end return { prefill = p, decode = "
                      "view.decode[1] } end"));
    bt_worker_set_health(engines[D1].worker, BT_HEALTH_DOWN, "spec");
    bt_workers_changed();
    ask();
    take(P0);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    reset(D0);
    answered("HTTP/1.1 502");
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 0);
}

static void decode_workers_and_the_policy_says_so(void **state)
{
    start(POLICY("plan = function(req, view) return { worker = view.single[2] } end"));
    only_decode_workers_are_left();
    ask();
    take(D1);
    answer(D1, 200, REPLY);
    answered("hello");
    recorded("\"decided_by\":\"policy\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE_OF(the_policy_decides),
        CASE_OF(nobody_has_been_asked),
        CASE_OF(a_policy_that_fails),
        CASE_OF(roles_must_be_right),
        CASE_OF(what_was_tried_is_no_alternate),
        CASE_OF(alternates_come_before_the_least_loaded),
        CASE_OF(fallback_decides_next),
        CASE_OF(fallback_gives_up),
        CASE_OF(fallback_names_the_one_that_failed),
        CASE_OF(a_retry_asks_the_plan),
        CASE_OF(nil_ends_a_retry),
        CASE_OF(nil_of_the_first_plan),
        CASE_OF(an_error_ends_a_retry),
        CASE_OF(errors_may_be_the_defaults_to_serve),
        CASE_OF(errors_may_end_a_request),
        CASE_OF(the_policy_names_another_decode),
        CASE_OF(the_policy_names_no_other_decode),
        CASE_OF(the_policy_lets_prefills_work_go),
        CASE_OF(decode_is_chosen_after_prefill),
        CASE_OF(nobody_decodes_what_prefill_has_made),
        CASE_OF(a_late_plan_fails_at_its_prefill),
        CASE_OF(no_late_plan_where_decode_comes_first),
        CASE_OF(the_half_that_failed_is_planned_anew),
        CASE_OF(the_generation_that_it_began_with),
        CASE_OF(a_worker_that_is_down_is_not_chosen),
        CASE_OF(nobody_is_left),
        CASE_OF(the_prompts_of_a_lone_worker_are_load),
        CASE_OF(a_leg_has_a_place),
        CASE_OF(who_is_full_is_no_candidate),
        CASE_OF(all_are_full),
        CASE_OF(prefill_alone),
        CASE_OF(prefill_alone_of_sglang),
        CASE_OF(a_route_that_cannot_be_split),
        CASE_OF(a_pair_comes_before_a_hybrid),
        CASE_OF(the_view_lasts),
        CASE_OF(a_decode_worker_alone),
        CASE_OF(a_decode_worker_that_cannot),
        CASE_OF(decode_workers_and_nobody_says_so),
        CASE_OF(decode_workers_and_the_policy_looks_for_others),
        CASE_OF(prefill_workers_and_the_policy_looks_for_others),
        CASE_OF(decode_workers_and_the_policy_says_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
