/* A request's way in: rules, admit, route, plan, in this order; and what each of them can
 * change. */
#include "dispatch/attempt_rig.h"

#define POLICY(hooks)                                                                              \
    "local function by(view, name) for _, set in ipairs({ view.prefill, view.decode }) do for i "  \
    "= "                                                                                           \
    "1, #set do if set[i].name == name then return set[i] end end end end "                        \
    "return { api = 2, name = 'mine', version = '1', " hooks " }"
#define PLAN                                                                                       \
    "plan = function(req, view) return { prefill = by(view, 'p2'), decode = by(view, 'd1') } end"
#define TO_OTHER "return { api = 1, rules = { { name = 'moved', pool = 'other' } } }"

static void start(const char *policy, const char *rules)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector",
                                    .has_other_pool = true,
                                    .policy = policy,
                                    .rules = rules,
                                    .config = {.policy_wait_ms = 50}});
    ask();
}

static void served_by(int prefill, int decode)
{
    take(prefill);
    answer(prefill, 200, HANDOFF("req-1"));
    take(decode);
    answer(decode, 200, REPLY);
    answered("hello");
}

static void served_by_the_other_pool(void)
{
    take(S1);
    answer(S1, 200, REPLY);
    answered("x-baton-worker: s1\r\n");
}

static unsigned errors(void)
{
    return (unsigned) atomic_load(&rig.d->stats.policy_errors);
}

static void the_order_of_stations(void **state)
{
    start(POLICY("admit = function(req, ctx) ctx.vars.way = (ctx.vars.way or '') .. 'a' end, "
                 "route = function(req, ctx) ctx.vars.way = ctx.vars.way .. 'r' "
                 "return { class = 'gold', key = 'k' } end, "
                 "plan = function(req, view, ctx) if ctx.vars.way == 'ar' and req.class == 'gold' "
                 "and req.session == 'k' then return { prefill = by(view, 'p2'), decode = by(view, "
                 "'d1') } end error(ctx.vars.way) end"),
          "return { api = 1, rules = { { name = 'named', pool = 'default' } } }");
    served_by(P2, D1);
    assert_int_equal(errors(), 0);
    recorded("\"rule\":\"named\"");
}

static void refused(void **state)
{
    start(POLICY("admit = function() return { status = 418, retry_after = 7, reason = 'not now' } "
                 "end, " PLAN),
          NULL);
    answered("HTTP/1.1 418");
    assert_true(client_got("Retry-After: 7\r\n"));
    assert_true(client_got("not now"));
    assert_int_equal(atomic_load(&rig.d->stats.policy_rejected), 1);
    assert_int_equal(atomic_load(&rig.d->stats.attempts), 0);
}

static void refused_without_a_word(void **state)
{
    start(POLICY("admit = function() return {} end, route = function() error('asked') end, " PLAN),
          NULL);
    answered("HTTP/1.1 429");
    assert_false(client_got("Retry-After"));
    assert_int_equal(errors(), 0); /* route was not asked any more */
}

static void admit_fails(void **state)
{
    start(POLICY("admit = function() error('no idea') end, " PLAN), NULL);
    served_by(P2, D1);
    assert_int_equal(errors(), 1);
}

/* It is told once that its time is over, and ended when it waits again. */
static void admit_waits_too_long(void **state)
{
    start(POLICY("admit = function() while true do baton.sleep(60000) end end, " PLAN), NULL);
    served_by(P2, D1);
    assert_int_equal(errors(), 1);
}

static void admit_waits(void **state)
{
    start(
        POLICY("admit = function(req, ctx) baton.sleep(5) ctx.vars.woken = true end, "
               "plan = function(req, view, ctx) if ctx.vars.woken then return { prefill = by(view, "
               "'p2'), decode = by(view, 'd1') } end end"),
        NULL);
    served_by(P2, D1);
    assert_int_equal(errors(), 0);
}

static void a_client_that_leaves_while_admit_waits(void **state)
{
    rig_start(
        &(struct rig_options){.connector = "NixlConnector",
                              .policy = POLICY("admit = function() baton.sleep(60000) end, " PLAN),
                              .config = {.policy_wait_ms = 60000}});
    ask();
    TURN_UNTIL(&rig.loop, !bt_list_empty(&rig.d->live));
    client_leaves();
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    assert_int_equal(atomic_load(&rig.d->stats.attempts), 0);
}

static void route_names_a_pool(void **state)
{
    start(POLICY("route = function() return { pool = 'other' } end, " PLAN), NULL);
    served_by_the_other_pool();
    assert_int_equal(errors(), 0);
}

static void route_names_no_pool_that_is_there(void **state)
{
    start(POLICY("route = function() return { pool = 'gone' } end, " PLAN), NULL);
    served_by(P2, D1);
    assert_int_equal(errors(), 1);
}

/* Its policy is the other pool's: this one is not asked whether the request may come in. */
static void a_rule_names_a_pool(void **state)
{
    start(POLICY("admit = function() return {} end, " PLAN), TO_OTHER);
    served_by_the_other_pool();
    recorded("\"rule\":\"moved\"");
}

static void the_model_names_a_pool(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector", .has_other_pool = true});
    ask_body("{\"model\":\"other-model\",\"prompt\":\"x\"}");
    served_by_the_other_pool();
}

/* ---- several policies of one pool ---- */

#define HALVES                                                                                     \
    "plan = function(req, view, ctx) return { prefill = by(view, 'p2'), decode = by(view, 'd1') "  \
    "} "                                                                                           \
    "end"
#define DENY(why)                                                                                  \
    POLICY("admit = function() return { status = 403, reason = '" why "' } end, " HALVES)

static void start_split(const char *both, const char *prefill, const char *decode)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector",
                                    .policy = both,
                                    .prefill_policy = prefill,
                                    .decode_policy = decode,
                                    .config = {.policy_wait_ms = 50}});
    ask();
}

/* Wherever it is named; the first that refuses ends it. */
static void every_admit_is_asked(void **state)
{
    static const char *const texts[][3] = {
        {POLICY(HALVES), DENY("prefill says no"), POLICY("version_ = nil, " HALVES)},
        {POLICY(HALVES), POLICY(" " HALVES), DENY("decode says no")},
        {DENY("both says no"), DENY("prefill says no"), DENY("decode says no")},
    };
    static const char *const words[] = {"prefill says no", "decode says no", "both says no"};

    for (unsigned i = 0; i < 3; i++) {
        start_split(texts[i][0], texts[i][1], i == 0 ? POLICY("  " HALVES) : texts[i][2]);
        answered("HTTP/1.1 403");
        assert_true(client_got(words[i]));
        assert_int_equal(atomic_load(&rig.d->stats.policy_rejected), 1);
        if (i < 2)
            assert_int_equal(teardown(state), 0);
    }
}

/* Each has its own ctx.vars; one that is named twice is asked once. */
static void vars_are_each_policys_own(void **state)
{
    static const char half[] =
        POLICY("admit = function(req, ctx) baton.sleep(1) ctx.vars.n = (ctx.vars.n or 0) + 1 "
               "if baton.shared_local.incr('admitted') > 1 then return { status = 500 } end end, "
               "plan = function(req, view, ctx) if ctx.vars.n ~= 1 then error('vars') end "
               "return { prefill = by(view, 'p2') } end");
    static const char other[] =
        POLICY("admit = function(req, ctx) ctx.vars.n = 10 end, "
               "plan = function(req, view, ctx) if ctx.vars.n ~= 10 then error('vars') end "
               "return { decode = by(view, 'd1') } end");

    start_split(half, half, other);
    served_by(P2, D1);
    assert_int_equal(errors(),
                     1); /* half's vars are those of its first VM, which has not planned */
}

/* No request comes into a pool past its gate. */
static void the_other_pools_admit_is_asked_too(void **state)
{
    rig_start(&(struct rig_options){
        .connector = "NixlConnector",
        .has_other_pool = true,
        .policy = POLICY(
            "admit = function() end, route = function() return { pool = 'other' } end, " PLAN),
        .other_policy = POLICY("admit = function() return { status = 402 } end, "
                               "route = function() error('asked') end, " PLAN),
        .config = {.policy_wait_ms = 50}});
    ask();
    answered("HTTP/1.1 402");
    assert_int_equal(errors(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE_OF(the_order_of_stations),
        CASE_OF(refused),
        CASE_OF(refused_without_a_word),
        CASE_OF(admit_fails),
        CASE_OF(admit_waits_too_long),
        CASE_OF(admit_waits),
        CASE_OF(a_client_that_leaves_while_admit_waits),
        CASE_OF(route_names_a_pool),
        CASE_OF(route_names_no_pool_that_is_there),
        CASE_OF(a_rule_names_a_pool),
        CASE_OF(the_model_names_a_pool),
        CASE_OF(every_admit_is_asked),
        CASE_OF(vars_are_each_policys_own),
        CASE_OF(the_other_pools_admit_is_asked_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
