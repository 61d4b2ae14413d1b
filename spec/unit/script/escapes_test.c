/* Every known way to hold an event thread with a policy: each is tried, must come back, and the next plan must work. */
#include "script/policy/policy_run.h"
#include "script/vm/vm.h"
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

/* On a slow machine an escape can cost its VM, which is made anew on a thread: the default choice serves meanwhile. */
static int plan_again_of(bt_policy_t *policy, const bt_policy_request_t *req,
                         const bt_policy_view_t *view, bt_choice_t *choice_p)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    int rc = BT_E_POLICY;

    for (unsigned i = 0; i < 30000; i++) {
        rc = bt_policy_plan(policy, BT_POLICY_BOTH, req, view, choice_p);
        if (rc == 0 || strstr(bt_policy_error(policy), "is being made anew") == NULL)
            break;
        nanosleep(&pause, NULL);
    }
    return rc;
}

static int plan_again(bt_policy_t *policy, struct fleet *f, bt_choice_t *choice_p)
{
    return plan_again_of(policy, &f->req, &f->view, choice_p);
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
             "return { api = 2, name = 'spec', version = '1', plan = function(req, view, ctx)\n"
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
    const bt_hook_answer_t done = {.rc = 0};
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
             "return { api = 2, name = 'spec', version = '1', admit = function(req, ctx)\n"
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
               "string.match: there are no patterns here");
    try_escape("gsub", "", "('a'):gsub('a', 'b')", "string.gsub: there are no patterns");
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
        "baton.json_encode(t)", "");
    try_escape("JSON in plan", "local s = '[' .. ('1,'):rep(30000) .. '1]'",
               "while true do baton.json_decode(s) end", "");
}

/* ---- the largest inputs of functions in C ---- */

/* Workers of a hundred versions: more kinds than are remembered (BT_POLICY_CLASSES). */
#define KINDS 100

static bt_worker_t *worker_of_kind(uint64_t id, enum bt_role role, unsigned kind, bool is_alone)
{
    bt_breaker_config_t breaker;
    bt_worker_spec_t spec;
    bt_worker_t *w = NULL;
    char url[64], name[16], labels[512] = "gpu=h100", version[16], err[256] = "";

    for (unsigned i = 0; i < 40; i++)
        snprintf(labels + strlen(labels), sizeof(labels) - strlen(labels), ",k%u=v%u", i, i);
    snprintf(url, sizeof(url), "http://10.1.0.%u:8000", (unsigned) id % 250 + 1);
    snprintf(name, sizeof(name), "%c%u", "pdh"[role], (unsigned) id);
    snprintf(version, sizeof(version), "0.%u", kind);
    bt_worker_spec_init(&spec);
    spec.url = strdup(url);
    spec.name = strdup(name);
    spec.role = role;
    spec.connector = strdup("NixlConnector");
    spec.zone = strdup("east");
    spec.labels = strdup(labels);
    spec.version = strdup(version);
    spec.transfer_group = strdup(is_alone ? name : "one"); /* alone: fits nobody */
    bt_breaker_config_defaults(&breaker);
    assert_int_equal(bt_worker_new(&w, &spec, id, (unsigned) id, &breaker, err, sizeof(err)), 0);
    bt_worker_spec_fini(&spec);
    return w;
}

struct kinds {
    bt_worker_t *prefill[2 * KINDS], *decode[2 * KINDS];
    bt_worker_set_t p, d;
    bt_policy_view_t view;
    bt_policy_request_t req;
    bt_policy_t *policy;
};

/* A prompt of eight million bytes of ids. */
static bt_str_t long_prompt(void)
{
    static char prompt[8 << 20];

    for (size_t i = 0; i + 6 < sizeof(prompt); i += 6)
        memcpy(prompt + i, i == 0 ? "[12345" : ",12345", 6);
    return (bt_str_t){prompt, sizeof(prompt) - 8};
}

/* grow: Lua that sets t[i], until t has `size` elements, a few hundred a plan; e is a table beside it, and both stay in ctx.state.
 * prepare and body run in a plan of their own each. */
static void kinds_init(struct kinds *k, const char *grow, unsigned size, const char *prepare,
                       const char *body)
{
    char text[4096];
    bt_choice_t choice = {0};

    *k = (struct kinds){.p = {k->prefill, 2 * KINDS}, .d = {k->decode, 2 * KINDS}};
    k->view = (bt_policy_view_t){.sets = {&k->p, &k->d}, .key = 1, .pool = BT_STR("default")};
    for (unsigned i = 0; i < 2 * KINDS; i++) {
        k->prefill[i] = worker_of_kind(i + 1, BT_ROLE_PREFILL, i % KINDS, i >= KINDS);
        k->decode[i] = worker_of_kind(i + 1001, BT_ROLE_DECODE, i % KINDS, i >= KINDS);
    }
    k->req = (bt_policy_request_t){
        .path = BT_STR("/v1/completions"), .model = BT_STR("m"), .prompt = long_prompt()};
    snprintf(text, sizeof(text),
             "local state return { api = 2, name = 'spec', version = '1', plan = function(req, "
             "view, ctx)\n"
             "local s, P, D = ctx.state, view.prefill, view.decode state = s\n"
             "s.t, s.e = s.t or {}, s.e or {} local t, e = s.t, s.e\n"
             "if req.n == 3 then for i = #t + 1, math.min(#t + 500, %u) do %s end end\n"
             "if req.n == 4 then %s end\n"
             "if req.n == 2 then %s end\n"
             "local at = #t >= %u and 2 or 1 return { prefill = P[at], decode = D[at] } end,\n"
             "handover = function() return state.e end }",
             size, grow, prepare, body, size);
    k->policy = policy_of(text);
    k->req.n = 3;
    for (unsigned tries = 0; choice.first.prefill != k->prefill[1]; tries++) {
        if (tries > size) /* a plan may fail on a busy machine */
            fail_msg("%s: %s", grow, bt_policy_error(k->policy));
        (void) plan_again_of(k->policy, &k->req, &k->view, &choice);
    }
    k->req.n = 4;
    (void) plan_again_of(k->policy, &k->req, &k->view,
                         &choice); /* a slow machine may not get that far */
}

static void kinds_fini(struct kinds *k)
{
    bt_policy_free(k->policy);
    for (unsigned i = 0; i < 2 * KINDS; i++) {
        bt_worker_unref(k->prefill[i]);
        bt_worker_unref(k->decode[i]);
    }
}

/* It may end as it likes, but soon. */
static void note_end(const char *name, double start_ms, const bt_policy_t *policy, int rc)
{
    const double took_ms = cpu_ms() - start_ms;

    worst_ms = took_ms > worst_ms ? took_ms : worst_ms;
    print_message("%-28s %7.2f ms  %.90s\n", name, took_ms,
                  rc == 0 ? "came back" : bt_policy_error(policy));
    if (took_ms > STALL_MAX_MS)
        fail_msg("%s held the thread for %.0f ms", name, took_ms);
}

static void try_builtin(const char *name, const char *grow, unsigned size, const char *prepare,
                        const char *body)
{
    bt_choice_t choice;
    struct kinds k;
    double start_ms;
    int rc;

    kinds_init(&k, grow, size, prepare, body);
    k.req.n = 2;
    start_ms = cpu_ms();
    rc = bt_policy_plan(k.policy, BT_POLICY_BOTH, &k.req, &k.view, &choice);
    note_end(name, start_ms, k.policy, rc);
    k.req.n = 1;
    if (plan_again_of(k.policy, &k.req, &k.view, &choice) != 0)
        fail_msg("after %s: %s", name, bt_policy_error(k.policy));
    kinds_fini(&k);
}

static void try_handover(const char *name, const char *grow, unsigned size)
{
    bt_value_t *data = NULL;
    struct kinds k;
    double start_ms;
    int rc;

    kinds_init(&k, grow, size, "", "");
    start_ms = cpu_ms();
    rc = bt_policy_handover(k.policy, &data);
    note_end(name, start_ms, k.policy, rc);
    bt_value_free(data);
    kinds_fini(&k);
}

/* Scores go to a record; the list is in another order than the one before. */
static void try_traced(const char *name, const char *grow, unsigned size, const char *body)
{
    static struct bt_policy_score scores[10000];
    bt_policy_trace_t trace = {.scores = scores, .cap = 10000};
    bt_choice_t choice;
    struct kinds k;
    double start_ms;
    int rc;

    kinds_init(&k, grow, size, "", body);
    for (trace.count = 0; trace.count < trace.cap; trace.count++)
        scores[trace.count].worker = 1000000 + trace.count;
    k.req.n = 2;
    k.req.trace = &trace;
    start_ms = cpu_ms();
    rc = bt_policy_plan(k.policy, BT_POLICY_BOTH, &k.req, &k.view, &choice);
    note_end(name, start_ms, k.policy, rc);
    kinds_fini(&k);
}

#define LONGEST 260000 /* elements of a list: BT_VM_BLOCK_MAX */
#define ONE "t[i] = P[1]"
#define MANY "t[i] = P[i % 100 + 1]"
#define ALONE "t[i] = i % 2 == 0 and P[i % 100 + 101] or D[i % 100 + 101]"
#define TWO "t[i] = i % 2 == 0 and P[101] or D[102]"
#define FIRST_IS_OTHER "t[i] = i == 1 and P[101] or P[1]"

static void pairs(void **state)
{
    try_builtin("pairable, 20,000", TWO, 20000, "", "baton.pairable(t, t)");
    try_builtin("pairable, longest", TWO, LONGEST, "", "baton.pairable(t, t)");
    try_builtin("pairable, many kinds", ALONE, 100000, "", "baton.pairable(t, t)");
    try_builtin("compatible", ONE, LONGEST, "", "baton.compatible(t, D[1])");
    try_builtin("compatible, many kinds", MANY, LONGEST, "", "baton.compatible(t, D[99])");
    try_builtin("where", MANY, LONGEST, "", "baton.where(t, 'k39', 'v39')");
    try_builtin("without", MANY, LONGEST, "", "baton.without(t, 'k40')");
}

static void picks(void **state)
{
    static const char *const eight = "'requests', 'running', 'waiting', 'kv_free', 'ttft_ema_ms', "
                                     "'tpot_ema_ms', 'age_ms', 'prefix_cached'";
    char body[512];

    snprintf(body, sizeof(body), "baton.argmin(t, %s)", eight);
    try_builtin("argmin of equals", ONE, 66000, "", body);
    try_builtin("argmin, longest", ONE, LONGEST, "", body);
    try_builtin("argmin_sum", MANY, 66000, "",
                "baton.argmin_sum(t, 'running', 1, 'waiting', 1, 'kv_free', 1, 'ttft_ema_ms', 1, "
                "'tpot_ema_ms', 1, 'age_ms', 1, 'prefix_cached', 1, 'prefix_blocks', 1)");
    try_builtin("range", MANY, 130000, "", "baton.range(t, 'waiting')");
    try_builtin("power_of_k", MANY, 130000, "", "baton.power_of_k(t, 16, 'requests', 'waiting')");
    try_builtin("rendezvous", MANY, 130000, "", "baton.rendezvous(t, 'key', 64)");
    try_builtin("bounded_hash", MANY, 130000, "", "baton.bounded_hash(t, 'key', 1, 'waiting')");
    try_builtin("ring", FIRST_IS_OTHER, 30000, "s.c = baton.compatible(t, D[1])",
                "baton.ring(s.c, 'key')");
    try_builtin("smooth", MANY, 80000, "", "baton.smooth(t, 'name', 'k39')");
    try_traced("argmin, recorded", MANY, 66000, "baton.argmin(t, 'requests')");
    try_builtin("smooth, another list", MANY, 10000, "baton.smooth(t, 'name', 'gpu') t[#t] = nil",
                "baton.smooth(t, 'name', 'k39')");
    try_builtin("hash", ONE, 0, "",
                "local s = ('x'):rep(1000000) s = s .. s while true do baton.hash(s) end");
}

static void prompts(void **state)
{
    try_builtin("prefix_blocks, long blocks", ONE, 0, "", "baton.prefix_blocks(req, 1024)");
    try_builtin("prefix_blocks, each size", ONE, 0, "",
                "for i = 1, 1024 do baton.prefix_blocks(req, i) end");
    try_builtin("prefix_match, own list", ONE, 130000, "",
                "for i = 1, 100 do baton.prefix_insert(req, P[i], 16) end "
                "baton.prefix_match(t, req, 16)");
    try_builtin("prefix_match of equals", FIRST_IS_OTHER, 30000, "s.c = baton.compatible(t, D[1])",
                "baton.prefix_insert(req, P[1], 16) baton.prefix_match(s.c, req, 16)");
    try_builtin("argmax by prefix_blocks", MANY, 66000, "",
                "baton.prefix_insert(req, P[1], 16) baton.prefix_match(P, req, 16) "
                "baton.argmax(t, 'prefix_blocks')");
}

static void data(void **state)
{
    /* A table with room for many members and none of them. */
    try_builtin("json_encode of empties",
                "t[i] = 1 if i <= 60000 then e[i + 0.5] = 1 else e[i - 60000 + 0.5] = nil end",
                120000, "s.o = {} for i = 1, 15000 do s.o[i] = e end", "baton.json_encode(s.o)");
    try_builtin("json_encode of much text", ONE, 0, "",
                "local s = ('\\1'):rep(1000000) baton.json_encode({ s })");
    try_builtin("json_encode of keys", "t[i] = 1 e[('k'):rep(50) .. i] = 1", 16000, "",
                "baton.json_encode(e)");
    try_in_coroutine("json_encode of quotes", "local s = ('\"'):rep(500000)",
                     "while true do baton.json_encode({ s }) end", ADMIT_BUDGET);
    try_builtin("table.concat of numbers", "t[i] = i / 7", 64000, "", "table.concat(t)");
    try_handover("handover of keys", "t[i] = 1 e['key' .. i] = 1", 60000);
    try_builtin("string.format, quoted", ONE, 0, "s.s = ('\\1'):rep(1000000)",
                "return ('%q'):format(s.s)");
    try_builtin("unknown field", ONE, 0, "", "local s = ('x'):rep(1000000) return P[1][s]");
    try_builtin("unknown member", ONE, 0, "", "local s = ('x'):rep(1000000) return baton[s]");
    try_builtin("names of rates", ONE, 0, "",
                "local s = ('x'):rep(1000000) while true do baton.take(s, 1, 1) end");
    try_builtin("names of counters", ONE, 0, "",
                "local s = ('x'):rep(1000000) while true do pcall(baton.shared_local.add, s) end");
    try_builtin("names of the fleet's state", ONE, 0, "",
                "local s = ('x'):rep(1000000) while true do pcall(baton.shared.cached, s) end");
}

/* Memory that stays: the state is full, and full again, until the VM is made anew. */
static void a_full_vm_is_made_anew(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;
    double longest_ms = 0;
    unsigned served = 0;

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
        cmocka_unit_test(pairs),
        cmocka_unit_test(picks),
        cmocka_unit_test(prompts),
        cmocka_unit_test(data),
        cmocka_unit_test(a_runaway_at_load),
        cmocka_unit_test(the_allow_list_is_checked),
        cmocka_unit_test(the_worst),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
