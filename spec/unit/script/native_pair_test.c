#include "cluster/warm.h"
#include "script_fixture.h"

#define DONE " return { prefill = 1, decode = view.decode[1] }"
#define NAMES                                                                                      \
    "local function names(list) local t = {} for i, w in ipairs(list) do t[i] = w.name end "       \
    "return table.concat(t, ' ') end\n"

/* Every worker of the fixture has gpu=h100 and the word fast; odd ids are west, even ones east. */
static void where_and_without(void **state)
{
    struct fleet f;

    fleet_init(&f, 4, 1, 0);
    plan_once(
        &f,
        POLICY(
            NAMES
            "local p = view.prefill\n"
            "for _ = 1, 2 do\n" /* the second time from memory */
            "  assert(names(baton.where(p, 'zone', 'east')) == 'p2 p4')\n"
            "  assert(baton.where(p, 'zone', 'east') == baton.where(p, 'zone', 'east'))\n"
            "  assert(names(baton.without(p, 'zone', 'east')) == 'p1 p3')\n"
            "  assert(baton.where(p, 'gpu', 'h100') == p and baton.where(p, 'gpu') == p)\n"
            "  assert(baton.where(p, 'fast', 'true') == p and #baton.without(p, 'fast') == 0)\n"
            "  assert(#baton.where(p, 'gp') == 0 and #baton.where(p, 'gpu', 'h1') == 0)\n"
            "  assert(names(baton.where(p, 'name', 'p3')) == 'p3')\n"
            "  assert(names(baton.where({ p[4], p[1] }, 'zone', 'east')) == 'p4')\n"
            "  assert(names(baton.where(baton.where(p, 'zone', 'west'), 'name', 'p3')) == 'p3')\n"
            "  assert(baton.argmin(baton.where(p, 'zone', 'east'), 'id').name == 'p2')\n"
            "end" DONE));
    fleet_fini(&f);
}

/* Values that come from requests do not fill the memory. */
static void cuts_are_forgotten(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;

    fleet_init(&f, 4, 1, 0);
    policy =
        policy_of(POLICY("ctx.state.n = (ctx.state.n or 0) + 1\n"
                         "assert(#baton.where(view.prefill, 'zone', 'no' .. ctx.state.n) == 0)\n"
                         "assert(#baton.where(view.prefill, 'zone', 'west') == 2)" DONE));
    for (int i = 0; i < 20000; i++)
        assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
    bt_policy_free(policy);
    fleet_fini(&f);
}

/* A hundred versions are more kinds of workers than are remembered; each fits its own version only. */
static void pairs_of_many_kinds(void **state)
{
    enum { KINDS = 100 };
    bt_worker_t *items[2][KINDS];
    const bt_worker_set_t p = {items[0], KINDS}, d = {items[1], KINDS};
    const bt_policy_view_t view = {.sets = {&p, &d}, .key = 1, .pool = BT_STR("default")};
    const bt_policy_request_t req = {.path = BT_STR("/v1/completions"), .n = 1};
    bt_policy_t *policy;
    bt_choice_t choice;

    for (unsigned i = 0; i < 2 * KINDS; i++) {
        bt_worker_t *w =
            make_worker(i + 1, i < KINDS ? BT_ROLE_PREFILL : BT_ROLE_DECODE, "NixlConnector");
        char version[16];
        snprintf(version, sizeof(version), "0.%u", i % KINDS);
        free(w->spec.version);
        w->spec.version = strdup(version);
        items[i / KINDS][i % KINDS] = w;
    }
    policy = policy_of(
        POLICY(NAMES "local P, D = view.prefill, view.decode\n"
                     "for _ = 1, 2 do\n" /* the second time from memory */
                     "  assert(baton.pairable(P, D) == P and baton.pairable(D, P) == D)\n"
                     "  assert(names(baton.compatible(P, D[7])) == 'p7' and "
                     "names(baton.compatible(D, P[93])) == 'd193')\n"
                     "end\n"
                     "assert(names(baton.pairable(P, { D[3], D[90], D[3] })) == 'p3 p90')\n"
                     "assert(names(baton.pairable({ P[99], P[1], P[99], D[1] }, { D[99], P[2], "
                     "D[98] })) == 'p99 p99')\n"
                     "assert(#baton.pairable(P, {}) == 0 and #baton.pairable({}, D) == 0)\n"
                     "assert(not pcall(baton.pairable, P, { 1 }))\n" DONE));
    if (bt_policy_plan(policy, BT_POLICY_BOTH, &req, &view, &choice) != 0)
        fail_msg("%s", bt_policy_error(policy));
    bt_policy_free(policy);
    for (unsigned i = 0; i < 2 * KINDS; i++)
        bt_worker_unref(items[i / KINDS][i % KINDS]);
}

/* Prefills 1 to 3, decodes 4 and 5; warm are 2, 4 and 3, 5. */
static void warm_ones(void **state)
{
    struct fleet f;
    bt_worker_t **p, **d;

    fleet_init(&f, 3, 2, 0);
    p = f.view.sets[BT_LIST_PREFILL]->items;
    d = f.view.sets[BT_LIST_DECODE]->items;
    bt_warm_note(p[1], d[0], bt_warm_word(p[1], d[0]));
    bt_warm_note(p[2], d[1], bt_warm_word(p[2], d[1]));
    plan_once(&f, POLICY("assert(baton.warm(view.prefill) == view.prefill)" DONE)); /* it is off */
    atomic_store(&bt_warm_is_on, true);
    plan_once(&f, POLICY(NAMES "local P, D = view.prefill, view.decode\n"
                               "assert(names(baton.warm(P)) == 'p2 p3' and baton.warm(D) == D)\n"
                               "assert(names(baton.warm(D, P[2])) == 'd4')\n"
                               "assert(names(baton.warm(P, D[2])) == 'p3')\n"
                               "assert(baton.warm(D, P[1]) == D)\n" /* with none */
                               "assert(#baton.warm({}, P[2]) == 0)" DONE));
    bt_worker_restarted(d[0]);
    plan_once(&f, POLICY(NAMES "assert(baton.warm(view.decode, view.prefill[2]) == view.decode)\n"
                               "assert(names(baton.warm(view.decode)) == 'd5')" DONE));
    assert_plan_fails(&f, POLICY("baton.warm(1)"), "table expected");
    assert_plan_fails(&f, POLICY("baton.warm(view.decode, 1)"), "a worker is expected here");
    atomic_store(&bt_warm_is_on, false);
    fleet_fini(&f);
}

static void mistakes_are_named(void **state)
{
    struct fleet f;

    fleet_init(&f, 1, 1, 0);
    assert_plan_fails(&f, POLICY("baton.where(1, 'zone')"), "table expected");
    assert_plan_fails(&f, POLICY("baton.where(view.prefill)"), "string expected");
    assert_plan_fails(&f, POLICY("baton.where(view.prefill, 'zone', {})"), "string expected");
    assert_plan_fails(&f, POLICY("baton.where({ 1 }, 'zone')"), "a worker is expected here");
    fleet_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_and_without),   cmocka_unit_test(cuts_are_forgotten),
        cmocka_unit_test(pairs_of_many_kinds), cmocka_unit_test(warm_ones),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, set_wide_budgets, NULL);
}
