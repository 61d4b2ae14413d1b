/* Which workers: what a policy proposes, and what is chosen where it proposes nothing that can
 * serve. */
#include "dispatch/attempt_rig.h"

/* By name, in plan and fallback. */
#define POLICY(hooks)                                                                              \
    "local function by(view, name) for _, set in ipairs({ view.prefill, view.decode, view.single " \
    "}) do for i = 1, #set do if set[i].name == name then return set[i] end end end end "          \
    "return { api = 1, name = 'mine', version = '1', " hooks " }"
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
    (void) state;
    start(POLICY("plan = function(req, view) return " PAIR("p2", "d1") " end"));
    ask();
    served_by(P2, "req-1", D1);
    assert_true(client_got("x-baton-policy: mine@1\r\n"));
    recorded("\"decided_by\":\"policy\"");
}

static void nobody_has_been_asked(void **state)
{
    (void) state;
    start(NULL);
    ask();
    served_by(P0, "req-1", D0);
    recorded("\"decided_by\":\"default\"");
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 0);
    assert_int_equal(count_of(&rig.d->stats.policy_invalid), 0);
}

static void a_policy_that_fails(void **state)
{
    (void) state;
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
    (void) state;
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
    (void) state;
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
    (void) state;
    start(POLICY("plan = function(req, view) return { prefill = by(view, 'p0'), decode = by(view, "
                 "'d0'), alternates = { " PAIR("p2", "d0") " } } end"));
    ask();
    take(P0);
    reset(P0);
    served_by(P2, "req-1-a2", D0);
}

static void fallback_decides_next(void **state)
{
    (void) state;
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
    (void) state;
    start(
        POLICY("plan = function(req, view) return " PAIR("p0", "d0") " end, "
                                                                     "fallback = function() end"));
    ask();
    take(P0);
    reset(P0);
    answered("HTTP/1.1 502");
    assert_false(has_caller(&engines[P1]));
}

/* Whatever a fallback names, nobody is asked again who was to blame. */
static void fallback_names_the_one_that_failed(void **state)
{
    (void) state;
    start(POLICY("plan = function(req, view) return " PAIR(
        "p0", "d0") " end, "
                    "fallback = function(req, view) return " PAIR("p0", "d1") " end"));
    ask();
    take(P0);
    reset(P0);
    served_by(P1, "req-1-a2", D0);
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 1);
}

/* A reload changes nothing for a request that has begun. */
static void the_generation_that_it_began_with(void **state)
{
    (void) state;
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
    (void) state;
    start(NULL);
    bt_worker_set_health(engines[P0].worker, BT_HEALTH_DOWN, "spec");
    atomic_store(&engines[D0].worker->draining, true);
    bt_workers_changed();
    ask();
    served_by(P1, "req-1", D1);
}

static void nobody_is_left(void **state)
{
    (void) state;
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

/* vLLM's prefill workers can answer alone; the client is told. */
static void prefill_alone(void **state)
{
    (void) state;
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
    (void) state;
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
    (void) state;
    rig_start(&(struct rig_options){.connector = "sglang"});
    ask_with(
        "/v1/messages", "",
        "{\"model\":\"m\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
    answered("HTTP/1.1 400");
    assert_true(client_got("cannot be split"));
}

static void a_pair_comes_before_a_hybrid(void **state)
{
    (void) state;
    rig_start(&(struct rig_options){.connector = "NixlConnector", .has_single = true});
    ask();
    served_by(P0, "req-1", D0);
    assert_false(has_caller(&engines[S0]));
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
        CASE_OF(the_generation_that_it_began_with),
        CASE_OF(a_worker_that_is_down_is_not_chosen),
        CASE_OF(nobody_is_left),
        CASE_OF(prefill_alone),
        CASE_OF(prefill_alone_of_sglang),
        CASE_OF(a_route_that_cannot_be_split),
        CASE_OF(a_pair_comes_before_a_hybrid),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
