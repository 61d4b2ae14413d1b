/* Every known way to hold an event thread with a policy: each is tried, must come back, and the next plan must work. */
#include "script/bounded.h"
#include "script/policy_run.h"
#include "script/vm.h"
#include "script_fixture.h"

#include <time.h>

#define STALL_MAX_MS 250.0 /* generous: sanitizers and busy machines; the figures are printed */

#define STEPS_MAX 2000

static double worst_ms;

static double cpu_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double) now.tv_sec * 1e3 + (double) now.tv_nsec / 1e6;
}

/* On a slow machine an escape can cost its VM, which is made anew on a thread: the built-in choice serves meanwhile. */
static int plan_again(bt_policy_t *policy, struct fleet *f, bt_choice_t *choice_p)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    int rc = BT_E_POLICY;

    for (unsigned i = 0; i < 30000; i++) {
        rc = bt_policy_plan(policy, BT_POLICY_BOTH, &f->req, &f->view, choice_p);
        if (rc == 0 || strstr(bt_policy_error(policy), "is being made anew") == NULL)
            break;
        nanosleep(&pause, NULL);
    }
    return rc;
}

/* First call: the escape. Second call: an ordinary plan by the same policy. word: part of the error ("" where it depends on the
 * machine's speed which limit is met first); NULL = it succeeds. */
static void try_escape(const char *name, const char *helper, const char *body, const char *word)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;
    char text[4096];
    double start_ms, took_ms;
    int rc;

    fleet_init(&f, 1, 1, 0);
    snprintf(text, sizeof(text),
             "%s\nlocal function escape(req, view, ctx)\n%s\nend\n"
             "return { api = 1, name = 'spec', version = '1', plan = function(req, view, ctx)\n"
             "if req.n == 2 then escape(req, view, ctx) end\n"
             "return { prefill = view.prefill[1], decode = view.decode[1] } end }",
             helper, body);
    policy = policy_of(text);
    f.req.n = 2;
    start_ms = cpu_ms();
    rc = bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice);
    took_ms = cpu_ms() - start_ms;
    worst_ms = took_ms > worst_ms ? took_ms : worst_ms;
    print_message("%-28s %7.2f ms  %.90s\n", name, took_ms,
                  rc == 0 ? "came back" : bt_policy_error(policy));
    if (took_ms > STALL_MAX_MS)
        fail_msg("%s held the thread for %.0f ms", name, took_ms);
    if (word == NULL ? rc != 0 : rc != BT_E_POLICY || strstr(bt_policy_error(policy), word) == NULL)
        fail_msg("%s: %d \"%s\", expected \"%s\"", name, rc, bt_policy_error(policy),
                 word != NULL ? word : "success");
    f.req.n = 1;
    if (plan_again(policy, &f, &choice) != 0)
        fail_msg("after %s: %s", name, bt_policy_error(policy));
    assert_ptr_equal(choice.first.decode, f.decode.items[0]);
    bt_policy_free(policy);
    fleet_fini(&f);
}

/* The same in a coroutine: admit waits first, then escapes. It is resumed as often as it likes to wait, up to a limit, then given
 * up; no step may hold the thread, and the next plan and the next admit must work. */
static void try_in_coroutine(const char *name, const char *helper, const char *body,
                             const char *word)
{
    const bt_want_answer_t done = {.rc = 0};
    struct fleet f;
    bt_policy_t *policy;
    bt_policy_vars_t vars = {0};
    bt_policy_run_t run;
    bt_choice_t choice;
    char text[4096];
    double start_ms, took_ms = 0, longest_ms = 0;
    unsigned steps = 0;
    int rc = 1;

    fleet_init(&f, 1, 1, 0);
    snprintf(text, sizeof(text),
             "%s\nlocal function escape(req, ctx)\n%s\nend\n"
             "return { api = 1, name = 'spec', version = '1', admit = function(req, ctx)\n"
             "if req.n == 2 then baton.sleep(1) escape(req, ctx) end end,\n"
             "plan = function(req, view, ctx)\n"
             "return { prefill = view.prefill[1], decode = view.decode[1] } end }",
             helper, body);
    policy = policy_of(text);
    f.req.n = 2;
    f.req.vars = &vars;
    for (; rc == 1 && steps < STEPS_MAX; steps++) {
        start_ms = cpu_ms();
        rc = steps == 0 ? bt_policy_admit(policy, &run, &f.req) : bt_policy_resume(&run, &done);
        took_ms = cpu_ms() - start_ms;
        longest_ms = took_ms > longest_ms ? took_ms : longest_ms;
    }
    worst_ms = longest_ms > worst_ms ? longest_ms : worst_ms;
    print_message("%-28s %7.2f ms  %4u steps  %.70s\n", name, longest_ms, steps,
                  rc >= 0 ? "came back" : bt_policy_error(policy));
    if (longest_ms > STALL_MAX_MS)
        fail_msg("%s held the thread for %.0f ms", name, longest_ms);
    if (word == NULL ? rc < 0 : rc != BT_E_POLICY || strstr(bt_policy_error(policy), word) == NULL)
        fail_msg("%s: %d \"%s\", expected \"%s\"", name, rc, bt_policy_error(policy),
                 word != NULL ? word : "success");
    bt_policy_run_drop(&run);
    f.req.n = 1;
    if (plan_again(policy, &f, &choice) != 0 || bt_policy_admit(policy, &run, &f.req) != 0)
        fail_msg("after %s: %s", name, bt_policy_error(policy));
    assert_ptr_equal(choice.first.decode, f.decode.items[0]);
    bt_policy_vars_drop(&vars);
    bt_policy_free(policy);
    fleet_fini(&f);
}

#define BUDGET "plan ran over its budget of 2 ms"

static void loops(void **state)
{
    (void) state;
    try_escape("endless loop", "", "while true do end", BUDGET);
    try_escape("loop of pcall", "local function f() while true do end end",
               "while true do pcall(f) end", BUDGET);
    try_escape("pcall that doubles", "local function f() pcall(f) pcall(f) end",
               "while true do pcall(f) end", BUDGET);
    try_escape("empty loop with goto", "", "::top:: goto top", BUDGET);
    try_escape("iterator without end", "", "for _ in function() return 1 end do end", BUDGET);
    try_escape("loop in a metamethod",
               "local m = setmetatable({}, { __index = function() while true do end end })",
               "return m.x", BUDGET);
    try_escape("tail call for ever", "local function f() return f() end", "f()", BUDGET);
}

static void what_is_not_there(void **state)
{
    (void) state;
    try_escape("xpcall's handler", "", "xpcall(error, function() while true do end end)",
               "unknown name 'xpcall'");
    try_escape("newproxy's finaliser", "",
               "getmetatable(newproxy(true)).__gc = function() while true do end end",
               "unknown name 'newproxy'");
    try_escape("debug.sethook", "", "debug.sethook()", "unknown name 'debug'");
    try_escape("getfenv", "", "getfenv(1).x = 1", "unknown name 'getfenv'");
    try_escape("setfenv", "", "setfenv(1, {})", "unknown name 'setfenv'");
    try_escape("coroutine", "", "coroutine.wrap(function() while true do end end)()",
               "unknown name 'coroutine'");
    try_escape("load", "", "load('while true do end')()", "unknown name 'load'");
    try_escape("collectgarbage", "", "collectgarbage('stop')", "unknown name 'collectgarbage'");
    try_escape("jit.on", "", "jit.on()", "unknown name 'jit'");
    try_escape("pattern backtracking", "", "(('a'):rep(30)):match(('a?'):rep(30) .. ('a'):rep(30))",
               "'match'");
    try_escape("gsub", "", "('a'):gsub('a', 'b')", "'gsub'");
    try_escape("__gc of a table", "",
               "setmetatable({}, { __gc = function() while true do end end })", NULL);
    try_escape("metatable of strings", "", "getmetatable('').__index = nil", "attempt to index");
    try_escape("setmetatable of a string", "", "setmetatable('', {})", "bad argument");
    try_escape("rows' metatable", "", "getmetatable(view.prefill[1]).__gc = nil",
               "attempt to index");
    try_escape("the watchdog's own state", "", "view.prefill[1].x = 1", "cannot be written");
}

static void long_c_calls(void **state)
{
    (void) state;
    try_escape("plain find, worst case",
               "local s = ('a'):rep(1000000) local n = ('a'):rep(500000) .. 'b'",
               "while true do s:find(n) end", BUDGET);
    try_escape("find with a pattern", "",
               "assert(not (('a'):rep(40)):find(('a?'):rep(40) .. ('a'):rep(40)))", NULL);
    try_escape("sort without end", "local t = {} for i = 1, 1000 do t[i] = i % 7 end",
               "while true do table.sort(t, function() return true end) end", "");
    try_escape("sort of a long list",
               "local t = {} for i = 1, 200000 do t[i] = (i * 7919) % 200003 end", "table.sort(t)",
               BUDGET);
    try_escape("sort with a C comparison", "local t = {} for i = 1, 100000 do t[i] = i end",
               "pcall(table.sort, t, rawequal) table.sort(t, rawequal) while true do end", "");
    try_escape("sort inside sort",
               "local function f() local t = { 3, 2, 1 } table.sort(t, function() f() end) end",
               "f()", "");
    try_escape("string.rep", "", "return ('x'):rep(2 ^ 30)", "longer than 1 MiB");
    try_escape("string.rep of nothing", "", "return (''):rep(2 ^ 31 - 1)", NULL);
    try_escape("string.rep with separator", "", "return ('x'):rep(2 ^ 20, 'yyyy')",
               "longer than 1 MiB");
    try_escape("string that doubles", "", "local s = 'x' while true do s = s .. s end", "");
    try_escape("table.concat of much", "local s = ('x'):rep(100000)",
               "local t = {} for i = 1, 100 do t[i] = s end return table.concat(t)",
               "longer than 1 MiB");
    try_escape("table.concat of many", "local t = {} for i = 1, 100000 do t[i] = '' end",
               "return table.concat(t)", "more than 65536 elements");
    try_escape("table.concat, wild range", "", "return table.concat({}, '', -2 ^ 31, 2 ^ 31 - 1)",
               "more than 65536");
    try_escape("unpack of many", "local t = {} for i = 1, 200000 do t[i] = 1 end",
               "return unpack(t)", "too many results");
    try_escape("unpack, wild range", "", "return unpack({}, 1, 2 ^ 31 - 1)", "too many results");
    try_escape("insert at the front", "local t = {}", "while true do table.insert(t, 1, 1) end",
               BUDGET);
    try_escape("insert at a long front", "local t = {} for i = 1, 200000 do t[i] = 1 end",
               "table.insert(t, 1, 1)", "move more than 65536");
    try_escape("remove at a long front", "local t = {} for i = 1, 200000 do t[i] = 1 end",
               "table.remove(t, 1)", "move more than 65536");
    try_escape("string.format, wide", "", "return ('%1000d'):format(1)", "invalid");
    try_escape("string.format, long", "local s = ('%99d'):rep(2000)", "return s:format(1)",
               "at most 4096 bytes");
    try_escape("string.format, many",
               "local f = ('%.99f'):rep(500) local t = {} for i = 1, 500 do t[i] = 1e308 end",
               "return f:format(unpack(t))", "at most 100 values");
    try_escape("string.format, fat", "local s = ('x'):rep(1000000)", "return ('%s%s'):format(s, s)",
               "longer than 1 MiB");
    try_escape("string.format of objects",
               "local s = ('x'):rep(1000000) local o = setmetatable({}, { __tostring = function() "
               "return s end })",
               "return ('%s%s'):format(o, o)", "longer than 1 MiB");
    try_escape("string.byte of much", "local s = ('x'):rep(1000000)", "return s:byte(1, -1)",
               "too long");
    try_escape("upper, lower, reverse", "local s = ('x'):rep(1000000)",
               "while true do s:upper() s:lower() s:reverse() end", "");
}

static void memory(void **state)
{
    (void) state;
    try_escape("list that grows", "", "local t = {} while true do t[#t + 1] = true end", "");
    try_escape("list of tables", "", "local t = {} while true do t[#t + 1] = {} end", "");
    try_escape("table of keys", "", "local t = {} for i = 1, 1e9 do t[i + 0.5] = true end", "");
    try_escape("strings that stay", "local keep, n = {}, 0",
               "while true do n = n + 1 keep[n % 100] = ('x'):rep(1000000) .. n end", "");
    try_escape("closures", "",
               "local t = {} while true do local x = 1 t[#t + 1] = function() return x end end",
               "");
    try_escape("deep recursion", "local function f() return f() + 1 end", "f()", "");
    try_escape("deep recursion, caught", "local function f() local ok = pcall(f) return ok end",
               "while true do f() end", "");
    try_escape(
        "__index in a circle",
        "local a, b = {}, {} setmetatable(a, { __index = b }) setmetatable(b, { __index = a })",
        "return a.x", "loop");
    try_escape("__lt that recurses",
               "local m = {} m.__lt = function(a, b) return a < b end local a = setmetatable({}, "
               "m) local b = "
               "setmetatable({}, m)",
               "return a < b", "");
    try_escape("tostring that recurses",
               "local o = setmetatable({}, { __tostring = function(o) return tostring(o) end })",
               "return tostring(o)", "");
    try_escape(
        "format that recurses",
        "local o o = setmetatable({}, { __tostring = function() return ('%s'):format(o) end })",
        "return tostring(o)", "");
}

static void errors(void **state)
{
    (void) state;
    try_escape("error with a metatable",
               "local e = setmetatable({}, { __tostring = function() while true do end end })",
               "error(e)", "error object is a table value");
    try_escape("error that is huge", "local s = ('x'):rep(1000000)", "error(s, 0)", "xxxx");
    try_escape("error that is nil", "", "error(nil)", "error object is a nil value");
    try_escape("error in __index of error",
               "local e = setmetatable({}, { __index = function() error('x') end })", "error(e)",
               "error object is a table value");
    try_escape("waiting", "", "baton.sleep(1)", "baton.sleep: plan is a pure hook and cannot wait");
    try_escape("asking", "", "baton.http('x')", "baton.http: plan is a pure hook and cannot wait");
}

#define ADMIT_BUDGET "admit ran over its budget of 2 ms"

static void coroutines(void **state)
{
    (void) state;
    try_in_coroutine("loop after a sleep", "", "while true do end", ADMIT_BUDGET);
    try_in_coroutine("loop of pcall", "local function f() while true do end end",
                     "while true do pcall(f) end", ADMIT_BUDGET);
    try_in_coroutine("pcall that doubles", "local function f() pcall(f) pcall(f) end",
                     "while true do pcall(f) end", ADMIT_BUDGET);
    try_in_coroutine("loop between sleeps", "",
                     "for i = 1, 10 do baton.sleep(0) end for i = 1, 1e12 do end", ADMIT_BUDGET);
    try_in_coroutine("a storm of sleeps", "", "while true do baton.sleep(0) end", NULL);
    try_in_coroutine("never done with waiting", "",
                     "local function again() baton.sleep(600000) return again() end again()", NULL);
    try_in_coroutine("sleeping deeper and deeper", "local function f() baton.sleep(0) f() f() end",
                     "f()", NULL);
    try_in_coroutine("deep recursion", "local function f() return f() + 1 end", "f()", "");
    try_in_coroutine("deep recursion, caught",
                     "local function f() local ok = pcall(f) return ok end",
                     "while true do f() end", "");
    /* (Few, and the full VM is tried before: TSan keeps the frames that errors jump over, and slows down.) */
    try_in_coroutine("sleep in a pcall", "", "for i = 1, 100 do pcall(baton.sleep, 1) end", NULL);
    try_in_coroutine("sleep in a comparison", "",
                     "table.sort({ 3, 2, 1 }, function() baton.sleep(1) end)",
                     "cannot wait inside pcall");
    try_in_coroutine(
        "sleep in tostring",
        "local o = setmetatable({}, { __tostring = function() baton.sleep(1) return 'x' "
        "end })",
        "return tostring(o) and nil", NULL); /* the interpreter's own: no boundary */
    try_in_coroutine("sleep in format",
                     "local o = setmetatable({}, { __tostring = function() baton.sleep(1) end })",
                     "return ('%s'):format(o)", "cannot wait inside pcall");
    try_in_coroutine("sleep in an iterator", "",
                     "for _ in function() return baton.sleep(0) end do end", NULL);
    try_in_coroutine(
        "sleep in a metamethod",
        "local o = setmetatable({}, { __index = function() return baton.sleep(0) end })",
        "while true do local x = o.x end", NULL);
    try_in_coroutine("list that grows", "", "local t = {} while true do t[#t + 1] = true end", "");
    try_in_coroutine("strings that stay", "local keep, n = {}, 0",
                     "while true do n = n + 1 keep[n % 100] = ('x'):rep(1000000) .. n end", "");
    try_in_coroutine("vars that grow", "", "while true do ctx.vars[#ctx.vars + 1] = {} end", "");
    try_in_coroutine(
        "error with a metatable",
        "local e = setmetatable({}, { __tostring = function() while true do end end })", "error(e)",
        "error object is a table value");
    try_in_coroutine("error that is nil", "", "error(nil)", "error object is a nil value");
    try_in_coroutine("a long list returned", "local t = {} for i = 1, 7000 do t[i] = 1 end",
                     "return unpack(t)", NULL);
    try_in_coroutine("coroutine", "", "coroutine.yield()", "unknown name 'coroutine'");
}

static void json(void **state)
{
    (void) state;
    try_in_coroutine(
        "JSON, nested and long",
        "local s = ('['):rep(31) .. '\"' .. ('x'):rep(1000000) .. '\"' .. (']'):rep(31)",
        "while true do baton.json_decode(s) end", ADMIT_BUDGET);
    try_in_coroutine("JSON of many values", "local s = '[' .. ('1,'):rep(60000) .. '1]'",
                     "while true do baton.json_decode(s) end", "");
    try_in_coroutine("JSON of escapes", "local s = '\"' .. ('\\\\n'):rep(300000) .. '\"'",
                     "while true do baton.json_decode(s) end", "");
    try_in_coroutine("JSON of one table", "local t = {} for i = 1, 16000 do t['k' .. i] = i end",
                     "while true do baton.json_encode(t) end", "");
    try_in_coroutine(
        "JSON of tables of tables",
        "local t = {} for i = 1, 7 do local u = {} for j = 1, 8 do u[j] = t end t = u end",
        "baton.json_encode(t)", "more than 16384 values");
    try_escape("JSON in plan", "local s = '[' .. ('1,'):rep(30000) .. '1]'",
               "while true do baton.json_decode(s) end", "");
}

/* Memory that stays: the state is full, and full again, until the VM is made anew. */
static void a_full_vm_is_made_anew(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;
    double longest_ms = 0;
    unsigned served = 0;
    (void) state;

    fleet_init(&f, 1, 1, 0);
    policy = policy_of(POLICY("local s = ctx.state\n"
                              "for i = 1, 200 do s[#s + 1] = { {}, {}, i } end\n"
                              "return { prefill = 1, decode = 2 }"));
    for (unsigned i = 0; i < 1000000 && bt_policy_stats(policy)->renewals < 2; i++) {
        double start_ms = cpu_ms(), took_ms;
        served += bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice) == 0;
        took_ms = cpu_ms() - start_ms;
        longest_ms = took_ms > longest_ms ? took_ms : longest_ms;
    }
    print_message("%u plans, %lu over memory, longest call %.2f ms\n", served,
                  (unsigned long) bt_policy_stats(policy)->memory, longest_ms);
    assert_int_equal(bt_policy_stats(policy)->renewals, 2);
    assert_true(served > 0);
    assert_true(bt_policy_stats(policy)->memory >= 2 ||
                bt_policy_stats(policy)->runaways >= 8); /* a slow machine */
    assert_true(longest_ms < STALL_MAX_MS);
    bt_policy_free(policy);
    fleet_fini(&f);
}

static void a_runaway_at_load(void **state)
{
    struct temp_file file;
    bt_policy_t *policy = NULL;
    char err[512] = "";
    (void) state;

    temp_write(&file, "spec.lua", "while true do end");
    assert_int_equal(bt_policy_load(&policy, file.path, NULL, err, sizeof(err)), BT_E_POLICY);
    assert_non_null(strstr(err, "spec.lua:1: load ran over its budget of 200 ms"));
    temp_remove(&file);
}

static int stray(lua_State *L)
{
    return lua_gettop(L);
}

static void the_allow_list_is_checked(void **state)
{
    char err[256] = "";
    bt_vm_t vm;
    (void) state;

    assert_int_equal(bt_vm_open(&vm, NULL, 8 << 20, BT_VM_GUARDED), 0);
    assert_int_equal(bt_vm_check(&vm, err, sizeof(err)), 0);
    lua_getglobal(vm.L, "string");
    lua_pushcfunction(vm.L, stray);
    lua_setfield(vm.L, -2, "gsub");
    lua_pop(vm.L, 1);
    assert_int_equal(bt_vm_check(&vm, err, sizeof(err)), BT_E_POLICY);
    assert_string_equal(err, "sandbox: string.gsub is not in the allow-list");
    bt_vm_close(&vm);
    assert_int_equal(bt_vm_open(&vm, NULL, 8 << 20, BT_VM_GUARDED), 0);
    lua_getglobal(vm.L, "math");
    lua_pushnil(vm.L);
    lua_setfield(vm.L, -2, "floor");
    lua_pop(vm.L, 1);
    assert_int_equal(bt_vm_check(&vm, err, sizeof(err)), BT_E_POLICY);
    assert_string_equal(err, "sandbox: math.floor is missing");
    bt_vm_close(&vm);
}

static void the_worst(void **state)
{
    (void) state;
    print_message("the longest of all: %.2f ms\n", worst_ms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loops),
        cmocka_unit_test(what_is_not_there),
        cmocka_unit_test(long_c_calls),
        cmocka_unit_test(memory),
        cmocka_unit_test(errors),
        cmocka_unit_test(a_full_vm_is_made_anew),
        cmocka_unit_test(coroutines),
        cmocka_unit_test(json),
        cmocka_unit_test(a_runaway_at_load),
        cmocka_unit_test(the_allow_list_is_checked),
        cmocka_unit_test(the_worst),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
