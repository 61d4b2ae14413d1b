#include "base/clock.h"
#include "base/log.h"
#include "base/rand.h"
#include "script/shared/shared_local.h"
#include "script_fixture.h"

#include <unistd.h>

#define DONE " return { prefill = 1, decode = view.decode[1] }"

static void argmin(void **state)
{
    static const int64_t tokens[] = {30, 10, 10, 20}, requests[] = {0, 2, 1, 0};
    struct fleet f;

    fleet_init(&f, 4, 1, 0);
    for (int i = 0; i < 4; i++) {
        bt_worker_total(f.prefill.items[i], BT_PHASE_PREFILL)->tokens = tokens[i];
        bt_worker_total(f.prefill.items[i], BT_PHASE_PREFILL)->requests = requests[i];
    }
    plan_once(
        &f,
        POLICY("local p = view.prefill\n"
               "assert(baton.argmin(p, 'prefill_tokens', 'requests').name == 'p3')\n"
               "assert(baton.argmin(p, 'requests', 'prefill_tokens').name == 'p4')\n"
               "assert(baton.argmin({}, 'requests') == nil and baton.argmin(view.hybrid, 'id') == "
               "nil)\n"
               "assert(baton.argmin({ p[1], p[4] }, 'prefill_tokens').name == 'p4')\n"
               "assert(baton.argmin_sum(p, 'prefill_tokens', 1, 'requests', 100).name == 'p4')\n"
               "assert(baton.argmin_sum(p, 'prefill_tokens', 1, 'requests', 5).name == 'p3')\n"
               "assert(baton.argmin_sum(p, 'prefill_tokens', -1).name == 'p1')" DONE));
    fleet_fini(&f);
}

static void equals_share(void **state)
{
    struct fleet f;

    bt_rand_seed(7);
    fleet_init(&f, 4, 1, 0);
    plan_times(
        &f, 80,
        POLICY(
            "local s = ctx.state s.n = (s.n or 0) + 1 s.seen = s.seen or {} local seen = s.seen\n"
            "for _ = 1, 50 do local w = baton.argmin(view.prefill, 'prefill_tokens', 'requests')\n"
            "  seen[w.id] = (seen[w.id] or 0) + 1 end\n"
            "for id = 1, s.n < 80 and 0 or 4 do assert(seen[id] > 850 and seen[id] < 1150, "
            "seen[id]) end" DONE));
    fleet_fini(&f);
}

static void unknown_counts_as_worst(void **state)
{
    struct fleet f;

    fleet_init(&f, 2, 1, 0);
    f.prefill.items[1]->load.at_ms = bt_clock_ms();
    f.prefill.items[1]->load.waiting = 1000;
    plan_once(&f, POLICY("assert(baton.argmin(view.prefill, 'waiting').name == 'p2')\n"
                         "assert(baton.argmin_sum(view.prefill, 'prefill_tokens', 1, 'waiting', "
                         "1).name == 'p2')" DONE));
    fleet_fini(&f);
}

static void random_choices(void **state)
{
    struct fleet f;

    bt_rand_seed(7);
    fleet_init(&f, 3, 1, 0);
    plan_once(
        &f, POLICY("local seen = {}\n"
                   "for _ = 1, 300 do seen[baton.random(3)] = true local x = baton.random() "
                   "assert(x >= 0 and x < 1)\n"
                   "  local a, b = baton.pick2(view.prefill) assert(a ~= b) seen[a] = true end\n"
                   "assert(seen[1] and seen[2] and seen[3] and not seen[0] and not seen[4])\n"
                   "for _, w in ipairs(view.prefill) do assert(seen[w]) end\n"
                   "local a, b = baton.pick2(view.decode) assert(a == b and a == view.decode[1])\n"
                   "assert(baton.pick2({}) == nil)" DONE));
    fleet_fini(&f);
}

/* p1, p2 nixl; p3 example; d4 nixl; d5 example; p6 has nobody. */
static void compatible_and_pairable(void **state)
{
    struct fleet f;

    fleet_init(&f, 2, 0, 0);
    fleet_add(&f, BT_ROLE_PREFILL, "ExampleConnector");
    fleet_add(&f, BT_ROLE_DECODE, "NixlConnector");
    fleet_add(&f, BT_ROLE_DECODE, "ExampleConnector");
    fleet_add(&f, BT_ROLE_PREFILL, "NoSuchConnector");
    plan_once(&f, POLICY("local p, d = view.prefill, view.decode\n"
                         "local function names(list) local t = {} for i, w in ipairs(list) do t[i] "
                         "= w.name end\n"
                         "  return table.concat(t, ' ') end\n"
                         "for _ = 1, 2 do\n" /* the second time from memory */
                         "  assert(names(baton.compatible(d, p[1])) == 'd4' and "
                         "names(baton.compatible(d, p[3])) == 'd5')\n"
                         "  assert(names(baton.compatible(d, p[4])) == '')\n"
                         "  assert(names(baton.compatible(p, d[1])) == 'p1 p2')\n"
                         "  assert(baton.compatible(d, p[1]) == baton.compatible(d, p[2]))\n"
                         "  local few = baton.compatible(p, d[1])\n"
                         "  assert(baton.compatible(few, d[1]) == few)\n"
                         "  assert(names(baton.pairable(p, d)) == 'p1 p2 p3')\n"
                         "  assert(baton.pairable(p, d) == baton.pairable(p, d))\n"
                         "  assert(names(baton.pairable(p, view.hybrid)) == '')\n"
                         "  assert(baton.pairable(few, d) == few)\n"
                         "  local own = { d[2] }\n"
                         "  assert(names(baton.compatible(own, p[1])) == '' and "
                         "baton.compatible(own, p[3]) == own)\n"
                         "  own[1] = d[1]\n" /* a list of the policy's own is looked at anew */
                         "  assert(baton.compatible(own, p[1]) == own)\n"
                         "  assert(names(baton.pairable(p, own)) == 'p1 p2') own[1] = d[2]\n"
                         "  assert(names(baton.pairable(p, own)) == 'p3')\n"
                         "end\n"
                         "return { prefill = 1, decode = 4 }"));
    fleet_fini(&f);
}

static void shared_local(void **state)
{
    struct fleet f;

    fleet_init(&f, 1, 1, 0);
    plan_once(&f,
              POLICY("local s = baton.shared_local\n"
                     "assert(s.add('spec') == 1 and s.add('spec', 5) == 6 and s.get('spec') == 6)\n"
                     "s.set('spec', -1) assert(s.get('spec') == -1 and s.get('never') == 0)" DONE));
    assert_int_equal(atomic_load(bt_shared_local_cell(bt_shared_local_process(), BT_STR("spec"))),
                     -1);
    assert_plan_fails(&f, POLICY("baton.shared_local.add('')"), "1 to 127 bytes");
    fleet_fini(&f);
}

static void mistakes_are_named(void **state)
{
    static const struct mistake cases[] = {
        {"baton.argmn(view.prefill, 'id')",
         "unknown member of baton 'argmn' (did you mean 'argmin'?)"},
        {"baton.argmin(view.prefill)", "one to eight fields"},
        {"baton.argmin(view.prefill, 'request')", "did you mean 'requests'?"},
        {"baton.argmin(view.prefill, 'name')", "field 'name' is not a number"},
        {"baton.argmin(view.prefill, 7)", "unknown field of a worker (a number)"},
        {"baton.argmin(7, 'id')", "table expected"},
        {"baton.argmin({ 7 }, 'id')", "a worker is expected here, not a number value"},
        {"baton.argmin({ req }, 'id')", "a worker is expected here, not a userdata value"},
        {"baton.argmin_sum(view.prefill, 'id')", "pairs of field and weight"},
        {"baton.argmin_sum(view.prefill, 'id', 'x')", "number expected"},
        {"baton.random(0)", "at least 1"},
        {"baton.compatible(view.prefill, 1)", "a worker is expected here"},
        {"baton.pairable(view.prefill)", "table expected"},
        {"print(1)", "unknown name 'print': write to the log with baton.log(level, text)"},
        {"local x = ('/v1/a'):match('^/v1')", "string.match: there are no patterns here"},
        {"local x = string.gsub('a', 'a', 'b')", "string.find looks for plain text"},
        {"local x = ('a'):starts('a')", "unknown function 'string.starts'"},
        {"baton.log('note', 'x')", "invalid option 'note'"},
        {"baton.log('info', {})", "string expected"},
    };
    assert_mistakes(cases, sizeof(cases) / sizeof(cases[0]));
}

/* Lines have the policy's name and the request's id; what a client sent makes no second line. */
static void log_lines(void **state)
{
    static const char body[] = "baton.log('warn', 'tenant ' .. (req.tenant or '?') .. '\\nforged') "
                               "baton.log('debug', 'unheard') "
                               "return { prefill = 1, decode = view.decode[1] }";
    char text[512], said[4096] = "";
    struct fleet f;
    int pipe_fds[2];

    assert_int_equal(pipe(pipe_fds), 0);
    bt_log_set(BT_LOG_INFO, false, pipe_fds[1]);
    fleet_init(&f, 1, 1, 0);
    f.req.id = "req-7";
    snprintf(text, sizeof(text), POLICY("%s"), body);
    plan_once(&f, text);
    bt_log_set(BT_LOG_ERROR, false, 2);
    assert_true(read(pipe_fds[0], said, sizeof(said) - 1) > 0);
    assert_non_null(strstr(said, " warn  policy: request=req-7 spec: tenant ?\\x0aforged\n"));
    assert_null(strstr(said, "unheard"));
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    fleet_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(argmin),
        cmocka_unit_test(equals_share),
        cmocka_unit_test(unknown_counts_as_worst),
        cmocka_unit_test(random_choices),
        cmocka_unit_test(compatible_and_pairable),
        cmocka_unit_test(shared_local),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(log_lines),
    };
    return cmocka_run_group_tests(tests, set_wide_budgets, NULL);
}
