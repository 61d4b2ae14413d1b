/* A request's way in: rules, admit, route, plan, in this order; and what each of them can
 * change. */
#include "dispatch/attempt_rig.h"

#define POLICY(hooks)                                                                              \
    "local function by(view, name) for _, set in ipairs({ view.prefill, view.decode }) do for i "  \
    "= "                                                                                           \
    "1, #set do if set[i].name == name then return set[i] end end end end "                        \
    "return { api = 1, name = 'mine', version = '1', " hooks " }"
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
    (void) state;
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
    (void) state;
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
    (void) state;
    start(POLICY("admit = function() return {} end, route = function() error('asked') end, " PLAN),
          NULL);
    answered("HTTP/1.1 429");
    assert_false(client_got("Retry-After"));
    assert_int_equal(errors(), 0); /* route was not asked any more */
}

static void admit_fails(void **state)
{
    (void) state;
    start(POLICY("admit = function() error('no idea') end, " PLAN), NULL);
    served_by(P2, D1);
    assert_int_equal(errors(), 1);
}

/* It is told once that its time is over, and ended when it waits again. */
static void admit_waits_too_long(void **state)
{
    (void) state;
    start(POLICY("admit = function() while true do baton.sleep(60000) end end, " PLAN), NULL);
    served_by(P2, D1);
    assert_int_equal(errors(), 1);
}

static void admit_waits(void **state)
{
    (void) state;
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
    (void) state;
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
    (void) state;
    start(POLICY("route = function() return { pool = 'other' } end, " PLAN), NULL);
    served_by_the_other_pool();
    assert_int_equal(errors(), 0);
}

static void route_names_no_pool_that_is_there(void **state)
{
    (void) state;
    start(POLICY("route = function() return { pool = 'gone' } end, " PLAN), NULL);
    served_by(P2, D1);
    assert_int_equal(errors(), 1);
}

/* Its policy is the other pool's: this one is not asked whether the request may come in. */
static void a_rule_names_a_pool(void **state)
{
    (void) state;
    start(POLICY("admit = function() return {} end, " PLAN), TO_OTHER);
    served_by_the_other_pool();
    recorded("\"rule\":\"moved\"");
}

static void the_model_names_a_pool(void **state)
{
    (void) state;
    rig_start(&(struct rig_options){.connector = "NixlConnector", .has_other_pool = true});
    ask_body("{\"model\":\"other-model\",\"prompt\":\"x\"}");
    served_by_the_other_pool();
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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
