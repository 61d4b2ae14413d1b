/* Hooks that may wait: what they want, what they get, and that nobody sees another request's. */
#include "run_rig.h"
#include "script/shared/shared_local.h"

/* ---- waiting ---- */

static void admit_waits_and_rejects(void **state)
{
    struct rig r;

    rig_init(&r, FILE_WITH("admit = function(req, ctx)\n"
                           "  assert(baton.sleep(25) == true)\n"
                           "  assert(req.model == 'm' and ctx.params and ctx.state)\n"
                           "  return { status = 503, retry_after = 1.2, reason = 'full' } end"));
    expect(&r, bt_policy_admit(r.policy, &r.run, &r.f.req), 1);
    assert_int_equal(r.run.hook_op.kind, BT_HOOK_OP_SLEEP);
    assert_int_equal(r.run.hook_op.ms, 25);
    expect(&r, bt_policy_resume(&r.run, &done), 0);
    assert_int_equal(r.run.admission.status, 503);
    assert_int_equal(r.run.admission.retry_after_s, 2);
    assert_string_equal(r.run.admission.reason, "full");
    assert_null(r.run.policy);
    assert_int_equal(bt_policy_resume(&r.run, &done), BT_E_INVAL); /* it is over */
    assert_int_equal(bt_policy_route(r.policy, &r.run, &r.f.req), BT_E_AGAIN);
    assert_int_equal(bt_policy_tick(r.policy, &r.run, 1, &r.f.view), BT_E_AGAIN);
    rig_fini(&r);
}

static void without_waiting(void **state)
{
    struct rig r;

    rig_init(&r, FILE_WITH("admit = function() end, route = function(req) return { pool = 'big', "
                           "class = 'batch', key = 'k' } end"));
    expect(&r, bt_policy_admit(r.policy, &r.run, &r.f.req), 0);
    assert_int_equal(r.run.admission.status, 0);
    expect(&r, bt_policy_route(r.policy, &r.run, &r.f.req), 0);
    assert_string_equal(r.run.direction.pool, "big");
    assert_string_equal(r.run.direction.klass, "batch");
    assert_string_equal(r.run.direction.key, "k");
    rig_fini(&r);
    rig_init(&r, FILE_WITH("admit = function() return {} end, route = function() end"));
    expect(&r, bt_policy_admit(r.policy, &r.run, &r.f.req), 0);
    assert_int_equal(r.run.admission.status, 429); /* a table is a rejection */
    expect(&r, bt_policy_route(r.policy, &r.run, &r.f.req), 0);
    assert_string_equal(r.run.direction.pool, "");
    rig_fini(&r);
}

static void expect_str(bt_str_t got, const char *expected)
{
    if (!bt_str_eq(got, bt_str(expected)))
        fail_msg("\"%.*s\" instead of \"%s\"", BT_STR_ARG(got), expected);
}

static void route_asks_a_host(void **state)
{
    bt_header_t headers[] = {{BT_STR("X-Tier"), BT_STR("gold")},
                             {BT_STR("Via"), BT_STR("a")},
                             {BT_STR("via"), BT_STR("b")}};
    const bt_head_t head = {.headers = headers, .header_count = 3};
    const bt_hook_answer_t answer = {
        .status = 200, .head = &head, .body = BT_STR("{\"pool\":\"big\"}")};
    struct rig r;

    rig_init(
        &r,
        FILE_WITH("route = function(req, ctx)\n"
                  "  local a = assert(baton.http{ url = 'http://tiers.internal:8080/t?x=1', method "
                  "= 'PUT', body = 'b', headers = { ['x-a'] = ' v ' }, timeout_ms = 50 })\n"
                  "  assert(a.status == 200 and a.headers['x-tier'] == 'gold' and a.headers.via == "
                  "'a, b')\n"
                  "  local nothing, why = baton.http{ url = 'http://[::1]' }\n"
                  "  assert(nothing == nil and why == 'connect failed', why)\n"
                  "  return { pool = baton.json_decode(a.body).pool } end"));
    expect(&r, bt_policy_route(r.policy, &r.run, &r.f.req), 1);
    assert_int_equal(r.run.hook_op.kind, BT_HOOK_OP_HTTP);
    assert_int_equal(r.run.hook_op.ms, 50);
    assert_int_equal(r.run.hook_op.port, 8080);
    expect_str(r.run.hook_op.host, "tiers.internal");
    expect_str(r.run.hook_op.target, "/t?x=1");
    expect_str(r.run.hook_op.method, "PUT");
    expect_str(r.run.hook_op.body, "b");
    assert_int_equal(r.run.hook_op.header_count, 1);
    expect_str(r.run.hook_op.headers[0].name, "x-a");
    expect_str(r.run.hook_op.headers[0].value, "v");
    expect(&r, bt_policy_resume(&r.run, &answer), 1);
    expect_str(r.run.hook_op.method, "GET");
    expect_str(r.run.hook_op.target, "/");
    expect_str(r.run.hook_op.host, "[::1]");
    assert_int_equal(r.run.hook_op.port, 80);
    assert_int_equal(r.run.hook_op.header_count, 0);
    assert_int_equal(r.run.hook_op.ms, 1000);
    expect(&r, bt_policy_resume(&r.run, &(bt_hook_answer_t){.rc = BT_E_CONNECT}), 0);
    assert_string_equal(r.run.direction.pool, "big");
    rig_fini(&r);
}

static void tick_waits_with_its_view(void **state)
{
    struct rig r;

    rig_init(&r, FILE_WITH("tick = function(now, view, ctx)\n"
                           "  assert(now == 12345 and #view.decode == 1 and ctx.vars == nil)\n"
                           "  baton.sleep(5)\n"
                           "  assert(#view.decode == 2 and baton.argmin(view.decode, "
                           "'decode_tokens'))\n"
                           "  ctx.state.ticks = (ctx.state.ticks or 0) + 1 end,\n"
                           "handover = function(ctx) return ctx.state end"));
    expect(&r, bt_policy_tick(r.policy, &r.run, 12345, &r.f.view), 1);
    plan_ok(&r); /* the loop goes on meanwhile */
    fleet_add(&r.f, BT_ROLE_DECODE, "NixlConnector");
    r.f.view.key++;
    expect(&r, bt_policy_resume(&r.run, &done), 0);
    bt_value_t *data = NULL;
    assert_int_equal(bt_policy_handover(r.policy, &data), 0);
    assert_true(bt_value_get(data, "ticks")->number == 1);
    bt_value_free(data);
    rig_fini(&r);
}

/* ---- start ---- */

static void start_waits(void **state)
{
    static const char text[] =
        FILE_WITH("start = function(params, old) assert(old == nil) assert(baton.sleep(10))\n"
                  "  local a = assert(baton.http{ url = 'http://tiers.internal:8080/' })\n"
                  "  return { n = #baton.json_decode(a.body) } end,\n"
                  "handover = function(ctx) return ctx.state end");
    struct server s = {.until = 9};
    bt_policy_t *policy = NULL;
    bt_value_t *data = NULL;
    char err[512] = "";

    if (make(text, &s, &policy, err, sizeof(err)) != 0)
        fail_msg("%s", err);
    assert_int_equal(s.waits, 2);
    assert_int_equal(bt_policy_handover(policy, &data), 0);
    assert_true(bt_value_get(data, "n")->number == 2);
    bt_value_free(data);
    bt_policy_free(policy);
}

static void start_cannot_wait_for_ever(void **state)
{
    static const char patient[] =
        FILE_WITH("start = function() while true do baton.sleep(1) end end"),
                      sound[] = FILE_WITH(
                          "start = function() local ok, why repeat ok, why = baton.sleep(1) "
                          "until not ok assert(why == \"the hook's time is over\") end"),
                      alone[] =
                          FILE_WITH("start = function() local ok, why = baton.sleep(1) assert(not "
                                    "ok and why == 'cannot wait here') end"),
                      stubborn[] = FILE_WITH("start = function() repeat until baton.sleep(1) end");
    struct server s = {.until = 20};
    bt_policy_t *policy = NULL;
    char err[512] = "";

    assert_int_equal(make(patient, &s, &policy, err, sizeof(err)), BT_E_POLICY);
    assert_string_equal(err, "spec.lua: start wanted to wait again when its time was over");
    s.waits = 0;
    if (make(sound, &s, &policy, err, sizeof(err)) != 0)
        fail_msg("%s", err);
    bt_policy_free(policy);
    if (make(alone, NULL, &policy, err, sizeof(err)) != 0)
        fail_msg("%s", err);
    bt_policy_free(policy);
    assert_int_equal(make(stubborn, NULL, &policy, err, sizeof(err)), BT_E_POLICY);
    assert_non_null(strstr(err, "start ran over its budget of 200 ms"));
}

/* ---- many at once ---- */

/* Two requests take turns in one VM; a third has no vars of its own. */
static void each_request_sees_its_own(void **state)
{
    struct rig r;
    bt_policy_vars_t vars[2] = {{0}};
    bt_policy_request_t req[2];
    bt_policy_run_t run[2];
    bt_choice_t choice;

    rig_init(&r, "return { api = 2, name = 'spec', version = '1',\n"
                 "admit = function(req, ctx) ctx.vars.name = req.model baton.sleep(1)\n"
                 "  assert(ctx.vars.name == req.model) end,\n"
                 "route = function(req, ctx) local vars = ctx.vars\n"
                 "  for i = 1, 3 do vars.steps = (vars.steps or 0) + 1 baton.sleep(i)\n"
                 "    assert(ctx.vars == vars and vars.name == req.model) end\n"
                 "  return { class = vars.name .. vars.steps } end,\n"
                 "plan = function(req, view, ctx)\n"
                 "  assert(req.model ~= 'nobody' or ctx.vars == nil)\n"
                 "  assert(req.model == 'nobody' or (ctx.vars.name == req.model and ctx.vars.steps "
                 "== 3 and req.class == 'gold'))\n"
                 "  return { prefill = 1, decode = 2 } end }");
    for (int i = 0; i < 2; i++) {
        req[i] = r.f.req;
        req[i].model = i == 0 ? BT_STR("one") : BT_STR("two");
        req[i].klass = BT_STR("gold");
        req[i].vars = &vars[i];
        expect(&r, bt_policy_admit(r.policy, &run[i], &req[i]), 1);
    }
    for (int i = 0; i < 2; i++)
        expect(&r, bt_policy_resume(&run[i], &done), 0);
    for (int i = 0; i < 2; i++)
        expect(&r, bt_policy_route(r.policy, &run[i], &req[i]), 1);
    for (int step = 1; step <= 3; step++)
        for (int i = 1; i >= 0; i--) {
            assert_int_equal(run[i].hook_op.ms, step);
            expect(&r, bt_policy_resume(&run[i], &done), step < 3);
        }
    assert_string_equal(run[0].direction.klass, "one3");
    assert_string_equal(run[1].direction.klass, "two3");
    for (int i = 0; i < 2; i++)
        expect(&r, bt_policy_plan(r.policy, BT_POLICY_BOTH, &req[i], &r.f.view, &choice), 0);
    r.f.req.model = BT_STR("nobody");
    r.f.req.vars = NULL;
    plan_ok(&r);
    for (int i = 0; i < 2; i++)
        bt_policy_vars_drop(&vars[i]);
    rig_fini(&r);
}

/* What one request was given is not to be read while another one's hook runs. */
static void a_kept_req_is_the_running_ones(void **state)
{
    struct rig r;
    bt_policy_request_t other;
    bt_policy_vars_t vars = {0};
    bt_policy_run_t run;

    rig_init(&r, FILE_WITH("admit = function(req, ctx)\n"
                           "  if seen.req then return { reason = seen.req.model } end\n"
                           "  seen.req = req baton.sleep(1) return { reason = req.model } end"));
    other = r.f.req;
    other.model = BT_STR("other");
    other.vars = &vars;
    expect(&r, bt_policy_admit(r.policy, &r.run, &r.f.req), 1);
    expect(&r, bt_policy_admit(r.policy, &run, &other), 0);
    assert_string_equal(run.admission.reason, "other");
    expect(&r, bt_policy_resume(&r.run, &done), 0);
    assert_string_equal(r.run.admission.reason, "m");
    bt_policy_vars_drop(&vars);
    rig_fini(&r);
}

/* What native functions remember of a prompt must not go from one request to the next that waits in the same VM. */
static void native_functions_look_at_the_right_prompt(void **state)
{
    char prompts[2][4098];
    struct rig r;
    bt_policy_vars_t vars[2] = {{0}};
    bt_policy_request_t req[2];
    bt_policy_run_t run[2];

    rig_init(&r,
             FILE_WITH("route = function(req) local key = baton.prefix_key(req) baton.sleep(1)\n"
                       "  assert(key == baton.prefix_key(req)) return { key = key } end"));
    for (int i = 0; i < 2; i++) {
        memset(prompts[i], 'a' + i, sizeof(prompts[i]));
        prompts[i][0] = prompts[i][sizeof(prompts[i]) - 1] = '"';
        req[i] = r.f.req;
        req[i].vars = &vars[i];
        req[i].prompt = (bt_str_t){prompts[i], sizeof(prompts[i])};
        expect(&r, bt_policy_route(r.policy, &run[i], &req[i]), 1);
    }
    for (int i = 0; i < 2; i++) {
        expect(&r, bt_policy_resume(&run[i], &done), 0);
        assert_int_equal(strlen(run[i].direction.key), 16);
        bt_policy_vars_drop(&vars[i]);
    }
    assert_string_not_equal(run[0].direction.key, run[1].direction.key);
    rig_fini(&r);
}

static void vars_of_another_policy_are_nil(void **state)
{
    struct rig r, other;
    bt_choice_t choice;

    rig_init(&r, FILE_WITH("route = function(req, ctx) ctx.vars.x = 1 end"));
    rig_init(&other, "return { api = 2, name = 'spec', version = '1', route = function() end,\n"
                     "plan = function(req, view, ctx) assert(ctx.vars == nil)\n"
                     "return { prefill = 1, decode = 2 } end }");
    expect(&r, bt_policy_route(r.policy, &r.run, &r.f.req), 0);
    expect(&other, bt_policy_plan(other.policy, BT_POLICY_BOTH, &r.f.req, &other.f.view, &choice),
           0);
    /* A route of the other one begins new vars. */
    expect(&other, bt_policy_route(other.policy, &other.run, &r.f.req), 0);
    assert_ptr_equal(r.vars.policy, other.policy);
    bt_policy_vars_drop(&r.vars);
    rig_fini(&r);
    rig_fini(&other);
}

/* ---- what goes wrong ---- */

static void a_runaway_costs_its_own_step(void **state)
{
    struct rig r;

    rig_init(
        &r, FILE_WITH("admit = function() baton.sleep(1) while true do end end,\n"
                      "route = function() local ok = pcall(function() while true do end end) end"));
    for (int i = 0; i < 3; i++) {
        expect(&r, bt_policy_admit(r.policy, &r.run, &r.f.req), 1);
        expect_error(&r, bt_policy_resume(&r.run, &done),
                     "spec.lua:2: admit ran over its budget of 2 ms");
        plan_ok(&r);
        expect_error(&r, bt_policy_route(r.policy, &r.run, &r.f.req),
                     "route ran over its budget of 2 ms");
        plan_ok(&r);
    }
    assert_int_equal(bt_policy_stats(r.policy)->runaways, 6);
    rig_fini(&r);
}

/* Each step has its own budget: many short ones may take longer than one. */
static void waiting_is_not_counted(void **state)
{
    struct rig r;
    int rc;

    rig_init(&r, FILE_WITH("admit = function() for i = 1, 20 do baton.sleep(i) end end"));
    rc = bt_policy_admit(r.policy, &r.run, &r.f.req);
    for (int i = 1; i <= 20; i++) {
        expect(&r, rc, 1);
        usleep(1000);
        rc = bt_policy_resume(&r.run, &done);
    }
    expect(&r, rc, 0);
    rig_fini(&r);
}

static void errors_and_memory(void **state)
{
    struct rig r;

    rig_init(&r, FILE_WITH("admit = function() baton.sleep(1) error('no tier') end,\n"
                           "route = function() baton.sleep(1) local t = {}\n"
                           "  for i = 1, 1e9 do t[i] = ('x'):rep(1e6) .. i end end"));
    expect(&r, bt_policy_admit(r.policy, &r.run, &r.f.req), 1);
    expect_error(&r, bt_policy_resume(&r.run, &done), "spec.lua:2: no tier");
    expect(&r, bt_policy_route(r.policy, &r.run, &r.f.req), 1);
    expect(&r, bt_policy_resume(&r.run, &done), BT_E_POLICY);
    assert_int_equal(bt_policy_stats(r.policy)->memory + bt_policy_stats(r.policy)->runaways, 1);
    assert_int_equal(bt_policy_stats(r.policy)->errors, 2);
    while (bt_policy_stats(r.policy)->renewals == 0 &&
           bt_policy_admit(r.policy, &r.run, &r.f.req) < 0)
        usleep(1000); /* a full VM is made anew */
    plan_ok(&r);
    rig_fini(&r);
}

static void answers_are_checked(void **state)
{
    static const struct {
        const char *returned, *word;
    } bad_admissions[] = {{"false", "admit returned a boolean value"},
                          {"{ statu = 429 }", "unknown member of what admit returned 'statu' (did "
                                              "you mean 'status'?)"},
                          {"{ 429 }", "unknown member of what admit returned"},
                          {"{ status = 200 }", "status must be from 400 to 599"},
                          {"{ status = 0/0 }", "status must be from 400 to 599"},
                          {"{ status = 429.5 }", "whole number"},
                          {"{ status = '429' }", "status must be a number"},
                          {"{ retry_after = -1 }", "retry_after must be from 0 to 86400"},
                          {"{ reason = 5 }", "reason must be a string"},
                          {"{ reason = ('x'):rep(256) }", "reason must be at most 255 bytes"},
                          {"{ reason = 'a\\0b' }", "without a NUL"}},
      bad_directions[] = {{"'big'", "route returned a string value"},
                          {"{ klass = 'a' }", "(did you mean 'class'?)"},
                          {"{ pool = ('x'):rep(64) }", "pool must be at most 63 bytes"},
                          {"{ class = true }", "class must be a string"},
                          {"{ key = ('x'):rep(192) }", "key must be at most 191 bytes"}};
    char text[512];
    struct rig r;

    for (size_t i = 0; i < sizeof(bad_admissions) / sizeof(bad_admissions[0]); i++) {
        snprintf(text, sizeof(text), FILE_WITH("admit = function() return %s end"),
                 bad_admissions[i].returned);
        rig_init(&r, text);
        expect_error(&r, bt_policy_admit(r.policy, &r.run, &r.f.req), bad_admissions[i].word);
        assert_int_equal(r.run.admission.status, 0);
        rig_fini(&r);
    }
    for (size_t i = 0; i < sizeof(bad_directions) / sizeof(bad_directions[0]); i++) {
        snprintf(text, sizeof(text), FILE_WITH("route = function() return %s end"),
                 bad_directions[i].returned);
        rig_init(&r, text);
        expect_error(&r, bt_policy_route(r.policy, &r.run, &r.f.req), bad_directions[i].word);
        rig_fini(&r);
    }
}

/* ---- giving up, and new VMs ---- */

static void runs_are_dropped_in_the_middle(void **state)
{
    struct rig r;

    rig_init(&r, FILE_WITH("admit = function(req, ctx) ctx.vars.x = 1 baton.sleep(1) end"));
    expect(&r, bt_policy_admit(r.policy, &r.run, &r.f.req), 1);
    bt_policy_run_drop(&r.run);
    bt_policy_run_drop(&r.run);
    assert_int_equal(bt_policy_resume(&r.run, &done), BT_E_INVAL);
    plan_ok(&r);
    expect(&r, bt_policy_admit(r.policy, &r.run, &r.f.req), 1);
    rig_fini(&r); /* drops a run that waits, then its policy */
    r.run = (bt_policy_run_t){0};
    r.vars = (bt_policy_vars_t){0};
    bt_policy_run_drop(&r.run);
    bt_policy_vars_drop(&r.vars);
}

/* Coroutines and vars of 10,000 requests come and go: the registry and the heap stay as they were. */
static void nothing_is_left_behind(void **state)
{
    struct rig r;
    double first = 0, last = 0;

    rig_init(&r, FILE_WITH("admit = function(req, ctx)\n"
                           "  ctx.vars.text = ('x'):rep(1000) .. req.prompt_bytes\n"
                           "  baton.sleep(1) if req.n == 2 then error('x') end end"));
    for (unsigned i = 0; i < 10000; i++) {
        bt_policy_vars_t vars = {0};

        r.f.req.vars = &vars;
        r.f.req.prompt_bytes = i;
        r.f.req.n = 1 + i % 3 / 2;
        expect(&r, bt_policy_admit(r.policy, &r.run, &r.f.req), 1);
        if (i % 3 == 0)
            bt_policy_run_drop(&r.run);
        else
            expect(&r, bt_policy_resume(&r.run, &done), i % 3 == 2 ? BT_E_POLICY : 0);
        bt_policy_vars_drop(&vars);
        if (i == 2000)
            first = (double) r.policy->vm.heap.used_bytes;
        last = (double) r.policy->vm.heap.used_bytes;
    }
    print_message("%.0f KiB after 2,000 runs, %.0f KiB after 10,000\n", first / 1024, last / 1024);
    assert_true(last < first * 2 + 65536);
    rig_fini(&r);
}

/* The VM goes while a hook waits in it. */
static void a_new_vm_ends_what_waited(void **state)
{
    struct rig r;
    bt_choice_t choice;
    bt_policy_run_t waiting, dropped;
    bt_policy_vars_t vars = {0};
    bt_policy_request_t req;
    int rc;

    rig_init(&r, "return { api = 2, name = 'spec', version = '1',\n"
                 "admit = function(req, ctx) ctx.vars.x = 1 baton.sleep(1) end,\n"
                 "plan = function(req, view, ctx) if req.n == 2 then while true do end end\n"
                 "  return { prefill = 1, decode = 2 } end }");
    req = r.f.req;
    req.vars = &vars;
    expect(&r, bt_policy_admit(r.policy, &waiting, &req), 1);
    expect(&r, bt_policy_admit(r.policy, &dropped, &req), 1);
    r.f.req.n = 2;
    for (int i = 0; i < 8; i++)
        expect(&r, bt_policy_plan(r.policy, BT_POLICY_BOTH, &r.f.req, &r.f.view, &choice),
               BT_E_POLICY);
    r.f.req.n = 1;
    while (bt_policy_stats(r.policy)->renewals == 0) {
        usleep(1000);
        (void) bt_policy_plan(r.policy, BT_POLICY_BOTH, &r.f.req, &r.f.view, &choice);
    }
    expect_error(&r, bt_policy_resume(&waiting, &done), "the VM was made anew while admit waited");
    bt_policy_run_drop(&dropped);
    /* The vars are gone with it, and begin again. */
    expect(&r, bt_policy_plan(r.policy, BT_POLICY_BOTH, &req, &r.f.view, &choice), 0);
    rc = bt_policy_admit(r.policy, &r.run, &req);
    expect(&r, rc, 1);
    expect(&r, bt_policy_resume(&r.run, &done), 0);
    bt_policy_vars_drop(&vars);
    rig_fini(&r);
}

/* ---- shadows ---- */

static void shadows_have_their_own_names(void **state)
{
    static const char text[] =
        FILE_WITH("admit = function()\n"
                  "  baton.shared_local.add('shadow/n', 5)\n"
                  "  assert(baton.shared_local.get('shadow/n') % 5 == 0)\n"
                  "  local ok = baton.take('shadow/t', 0.001, 1)\n"
                  "  baton.ewma('shadow/e', 100)\n"
                  "  return { reason = ('%s %d'):format(tostring(ok), baton.window('shadow/w', 1, "
                  "100)) } end");
    const bt_policy_spec_t spec = {.path = "spec.lua", .code = bt_str(text), .is_shadow = true};
    bt_policy_t *shadows[2] = {NULL};
    char err[512] = "";
    struct rig r;

    rig_init(&r, text);
    for (int i = 0; i < 2; i++)
        assert_int_equal(bt_policy_make(&shadows[i], &spec, err, sizeof(err)), 0);
    atomic_store(bt_shared_local_cell(bt_shared_local_process(), BT_STR("shadow/n")), 1000);
    expect(&r, bt_policy_admit(shadows[0], &r.run, &r.f.req), 0);
    assert_string_equal(r.run.admission.reason, "true 1");
    assert_int_equal(
        atomic_load(bt_shared_local_cell(bt_shared_local_process(), BT_STR("shadow/n"))), 1000);
    bt_policy_vars_drop(&r.vars);
    /* Loops share a shadow's names as they share others. */
    expect(&r, bt_policy_admit(shadows[1], &r.run, &r.f.req), 0);
    assert_string_equal(r.run.admission.reason, "false 2");
    bt_policy_vars_drop(&r.vars);
    expect(&r, bt_policy_admit(r.policy, &r.run, &r.f.req), 0);
    assert_string_equal(r.run.admission.reason, "true 1");
    assert_int_equal(
        atomic_load(bt_shared_local_cell(bt_shared_local_process(), BT_STR("shadow/n"))), 1005);
    for (int i = 0; i < 2; i++)
        bt_policy_free(shadows[i]);
    rig_fini(&r);
}

static void count_tried(void *user, bt_str_t name, int64_t value)
{
    (void) value;
    *(unsigned *) user += bt_str_starts(name, BT_STR("tried/"));
}

/* Names of what is only tried go with it, however many, and are those of nobody else meanwhile. */
static void trials_have_names_of_their_own(void **state)
{
    char text[1024], err[512] = "";
    bt_policy_t *policy = NULL;
    unsigned left = 0;

    atomic_store(bt_shared_local_cell(bt_shared_local_process(), BT_STR("kept")), 7);
    for (unsigned i = 0; i < 5; i++) {
        snprintf(
            text, sizeof(text),
            FILE_WITH(
                "start = function()\n"
                "  assert(baton.shared_local.get('kept') == 0 and baton.shared_local.add('kept', "
                "2) == 2)\n"
                "  assert(baton.ewma('tried/e') == nil and baton.ewma('tried/e', 5) == 5)\n"
                "  assert(baton.take('tried/t', 0.001, 1) and not baton.take('tried/t', 0.001, "
                "1))\n"
                "  assert(baton.window('tried/w', 1, 100) == 1)\n"
                "  for i = 1, 3000 do assert(baton.shared_local.add('tried/%u/' .. i) == 1) end\n"
                "end"),
            i);
        const bt_policy_spec_t spec = {
            .path = "spec.lua", .code = bt_str(text), .is_dry_run = true};
        if (bt_policy_make(&policy, &spec, err, sizeof(err)) != 0)
            fail_msg("trial %u: %s", i, err);
        bt_policy_free(policy);
    }
    bt_shared_local_each(count_tried, &left);
    assert_int_equal(left, 0);
    assert_int_equal(atomic_load(bt_shared_local_cell(bt_shared_local_process(), BT_STR("kept"))),
                     7);
}

static void shadows_do_not_fill_the_prefix_index(void **state)
{
    static const char text[] = "return { api = 2, name = 'spec', version = '1',\n"
                               "plan = function(req, view)\n"
                               "  local hit = baton.prefix_match(view.decode, req)\n"
                               "  baton.prefix_insert(req, view.decode[1])\n"
                               "  assert((req.n == 2) == (hit ~= nil))\n"
                               "  return { prefill = 1, decode = 2 } end }";
    const bt_policy_spec_t spec = {.path = "spec.lua", .code = bt_str(text), .is_shadow = true};
    char prompt[4098], err[512] = "";
    bt_policy_t *shadow = NULL;
    bt_choice_t choice;
    struct rig r;

    rig_init(&r, text);
    memset(prompt, 'q', sizeof(prompt));
    prompt[0] = prompt[sizeof(prompt) - 1] = '"';
    r.f.req.prompt = (bt_str_t){prompt, sizeof(prompt)};
    assert_int_equal(bt_policy_make(&shadow, &spec, err, sizeof(err)), 0);
    for (int i = 0; i < 2; i++)
        if (bt_policy_plan(shadow, BT_POLICY_BOTH, &r.f.req, &r.f.view, &choice) != 0)
            fail_msg("%s", bt_policy_error(shadow));
    plan_ok(&r); /* nothing was there */
    r.f.req.n = 2;
    plan_ok(&r);
    if (bt_policy_plan(shadow, BT_POLICY_BOTH, &r.f.req, &r.f.view, &choice) != 0)
        fail_msg("a shadow reads the index: %s", bt_policy_error(shadow));
    bt_policy_free(shadow);
    rig_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(admit_waits_and_rejects),
        cmocka_unit_test(without_waiting),
        cmocka_unit_test(route_asks_a_host),
        cmocka_unit_test(tick_waits_with_its_view),
        cmocka_unit_test(start_waits),
        cmocka_unit_test(start_cannot_wait_for_ever),
        cmocka_unit_test(each_request_sees_its_own),
        cmocka_unit_test(a_kept_req_is_the_running_ones),
        cmocka_unit_test(native_functions_look_at_the_right_prompt),
        cmocka_unit_test(vars_of_another_policy_are_nil),
        cmocka_unit_test(a_runaway_costs_its_own_step),
        cmocka_unit_test(waiting_is_not_counted),
        cmocka_unit_test(errors_and_memory),
        cmocka_unit_test(answers_are_checked),
        cmocka_unit_test(runs_are_dropped_in_the_middle),
        cmocka_unit_test(nothing_is_left_behind),
        cmocka_unit_test(a_new_vm_ends_what_waited),
        cmocka_unit_test(shadows_have_their_own_names),
        cmocka_unit_test(trials_have_names_of_their_own),
        cmocka_unit_test(shadows_do_not_fill_the_prefix_index),
    };
    return cmocka_run_group_tests(tests, set_hosts, NULL);
}
