/* policy_fuzz.c - any text as a policy: it loads or is refused, and a plan by it comes back, with two workers or with none.
 *
 * What must hold: no crash, no leak, an error text for every refusal, an answer that names workers of the view, and no worker
 * referenced once the policy is gone. A custom mutator puts pieces of real policies together, or almost no input would get
 * past the parser.
 */
#include "base/err.h"
#include "base/log.h"
#include "script/native/hook_op_api.h"
#include "script/policy/policy_run.h"
#include "script/vm/watchdog.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "policy_fuzz: %s (line %d)\n", #cond, __LINE__);                       \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- two workers ---- */

static bt_worker_t *workers[2];
static bt_worker_set_t prefill = {&workers[0], 1}, decode = {&workers[1], 1};

static bt_worker_t *make_worker(uint64_t id, enum bt_role role)
{
    char url[] = "http://10.0.0.1:8000", name[] = "w", connector[] = "NixlConnector",
         zone[] = "east", labels[] = "a=b";
    static bt_breaker_config_t breaker;
    bt_worker_t *w = NULL;
    bt_worker_spec_t spec;
    char err[256];

    bt_breaker_config_defaults(&breaker);
    bt_worker_spec_init(&spec);
    spec.url = url;
    spec.name = name;
    spec.connector = connector;
    spec.zone = zone;
    spec.labels = labels;
    spec.role = role;
    CHECK(bt_worker_new(&w, &spec, id, (unsigned) id, &breaker, err, sizeof(err)) == 0);
    return w;
}

static void open_world(void)
{
    static const char *const hosts[] = {"tiers:80", NULL};

    if (workers[0] != NULL)
        return;
    workers[0] = make_worker(1, BT_ROLE_PREFILL);
    workers[1] = make_worker(2, BT_ROLE_DECODE);
    bt_log_set(BT_LOG_ERROR, false, STDERR_FILENO);
    bt_policy_allow_hosts(hosts);
    CHECK(bt_watchdog_start() == 0); /* one thread for the whole run */
}

/* ---- one input ---- */

static void check_choice(const bt_choice_t *choice)
{
    CHECK(choice->first.prefill == NULL || choice->first.prefill == workers[0]);
    CHECK(choice->first.decode == NULL || choice->first.decode == workers[1]);
    CHECK(choice->alternate_count <= BT_CHOICE_ALTERNATES_MAX);
}

/* Answers its first waits with one thing and another, and drops it in the middle when it wants more. */
static void finish(bt_policy_run_t *run, int rc)
{
    bt_header_t headers[] = {{BT_STR("X-A"), BT_STR("1")}, {BT_STR("x-a"), BT_STR("2")}};
    const bt_head_t head = {.headers = headers, .header_count = 2};
    const bt_hook_answer_t answers[] = {
        {.status = 200, .head = &head, .body = BT_STR("{\"a\":[1,null]}")},
        {.rc = BT_E_CONNECT},
        {.status = 503},
        {.rc = BT_E_TOTAL_TIMEOUT}};

    for (unsigned i = 0; rc == 1 && i < 4; i++) {
        CHECK(run->hook_op.kind != BT_HOOK_OP_NONE);
        rc = bt_policy_resume(run, &answers[i]);
    }
    CHECK(rc == 0 || rc == 1 || rc == BT_E_AGAIN || rc == BT_E_POLICY);
    CHECK(run->admission.status == 0 ||
          (run->admission.status >= 400 && run->admission.status <= 599));
    bt_policy_run_drop(run);
}

static void call_waiting_hooks(bt_policy_t *policy, const bt_policy_request_t *req,
                               const bt_policy_view_t *view)
{
    bt_policy_run_t run;

    finish(&run, bt_policy_admit(policy, &run, req));
    finish(&run, bt_policy_route(policy, &run, req));
    finish(&run, bt_policy_tick(policy, &run, 1, view));
}

static void call_hooks(bt_policy_t *policy)
{
    bt_policy_vars_t vars = {0};
    const bt_policy_request_t req = {.path = BT_STR("/v1/completions"),
                                     .model = BT_STR("m"),
                                     .n = 1,
                                     .prompt_bytes = 100,
                                     .vars = &vars};
    const bt_policy_view_t full = {&prefill, &decode, NULL, 1, BT_STR("default")},
                           empty = {.key = 2, .pool = BT_STR("default")};
    const bt_policy_failure_t failure = {BT_SCOPE_WORKER, "connect", "decode", 502, &workers[1], 1};
    const bt_policy_event_t event = {.kind = "finished", .decode = 2, .status = 200};
    bt_policy_queueing_t queueing;
    bt_choice_t choice;
    bt_value_t *data = NULL;

    call_waiting_hooks(policy, &req, &full);
    (void) bt_policy_enqueue(policy, &req, &queueing);
    if (bt_policy_plan(policy, BT_POLICY_BOTH, &req, &full, &choice) == 0)
        check_choice(&choice);
    else
        CHECK(bt_policy_error(policy)[0] != '\0' && strchr(bt_policy_error(policy), '\n') == NULL);
    (void) bt_policy_plan(policy, BT_POLICY_BOTH, &req, &empty, &choice);
    if (bt_policy_fallback(policy, &req, &full, &failure, &choice) == 0)
        CHECK(choice.first.decode == NULL); /* the only one was tried */
    (void) bt_policy_observe(policy, &event, 1);
    bt_policy_vars_drop(&vars);
    if (bt_policy_handover(policy, &data) == 0)
        bt_value_free(data);
    free(bt_policy_params_schema(policy));
}

/* For start; may be called by the thread that makes a VM anew. */
static _Atomic unsigned waits_left;

static int serve(void *user, const bt_hook_op_t *hook_op, bt_hook_answer_t *answer_p)
{
    (void) user;
    if (atomic_load(&waits_left) == 0)
        return BT_E_TOTAL_TIMEOUT;
    atomic_fetch_sub(&waits_left, 1);
    *answer_p = (bt_hook_answer_t){.status = hook_op->kind == BT_HOOK_OP_HTTP ? 200 : 0};
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bt_policy_t *policy = NULL;
    bt_policy_spec_t spec = {.path = "fuzz.lua", .serve = serve};
    char err[512] = "";
    char *text;

    open_world();
    text = malloc(size + 1);
    CHECK(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    spec.code = (bt_str_t){text, size};
    spec.is_shadow = size % 2 == 1;
    waits_left = 8;
    if (bt_policy_make(&policy, &spec, err, sizeof(err)) == 0)
        call_hooks(policy);
    else
        CHECK(policy == NULL && err[0] != '\0');
    free(text);
    bt_policy_free(policy);
    CHECK(atomic_load(&workers[0]->refs) == 1 && atomic_load(&workers[1]->refs) == 1);
    return 0;
}

/* ---- inputs that are nearly policies ---- */

static const char head[] = "return { api = 2, name = 'f', version = '1', ";
static const char *const pieces[] = {
    "plan = function(req, view, ctx) ",
    "fallback = function(req, view, failure, ctx) ",
    "start = function(params, old) ",
    "observe = function(events, ctx) ",
    "tick = function(now, view, ctx) ",
    "admit = function(req, ctx) ",
    "route = function(req, ctx) ",
    "baton.sleep(",
    "baton.http{url='http://tiers/a', headers={a='b'}} ",
    "baton.json_decode(",
    "baton.json_encode(",
    "ctx.vars.a = ",
    "return { status = 503, retry_after = 2, reason = 'r' } ",
    "return { pool = 'a', class = 'b', key = 'c' } ",
    "handover = function(ctx) ",
    " end, ",
    " end }",
    " end ",
    "return { prefill = view.prefill[1], decode = view.decode[1] }",
    "return { prefill = 1, decode = 2, alternates = { { prefill = 1, "
    "decode = 2 } } }",
    "return { kind = 'single', worker = 2 }",
    "return ctx.state ",
    "local x = ",
    "ctx.state.n = (ctx.state.n or 0) + 1 ",
    "while true do ",
    "for i = 1, 1e9 do ",
    "repeat ",
    " until false ",
    "pcall(",
    "(function() ",
    ")",
    "error(",
    "setmetatable({}, { ",
    "__index = ",
    "__newindex = ",
    "__tostring = ",
    "__lt = ",
    "__eq = ",
    "__call = ",
    "__len = ",
    "__concat = ",
    "function(...) ",
    "} ",
    "}) ",
    "baton.argmin(view.decode, 'decode_tokens') ",
    "baton.pairable(view.prefill, view.decode) ",
    "baton.compatible(view.decode, ",
    "baton.pick2(",
    "baton.random(",
    "baton.shared_local.add('a', 1) ",
    "table.sort(",
    "table.concat(",
    "table.insert(",
    "table.remove(",
    "string.rep(",
    "string.format('%s %d %q', ",
    "('x'):rep(1e6) ",
    "('%99.99f'):format(1e308) ",
    "s:find('a') ",
    "unpack(",
    "select('#', ",
    "tostring(",
    "tonumber(",
    "rawset(",
    "next(",
    "pairs(",
    "getmetatable(",
    "params = { a = { type = 'number', min = 0, max = 1, default = 1 "
    "} }, ",
    "params = { b = { type = 'list', enum = { 'x' }, default = {} } }, ",
    "req.headers['x'] ",
    "req.path ",
    "view.pool ",
    "#view.decode ",
    "view.prefill[1].labels.a ",
    "goto top ",
    "::top:: ",
    "nil",
    "1e308",
    "-1",
    "2^53",
    "'\\255\\0'",
    "[[",
    "]]",
    "--[[",
    "0x1p4",
    "\n"};

static size_t append(uint8_t *data, size_t size, size_t max_size, const char *piece)
{
    size_t n = strlen(piece);

    if (size + n > max_size)
        return size;
    memcpy(data + size, piece, n);
    return size + n;
}

static size_t insert(uint8_t *data, size_t size, size_t max_size, size_t at, const char *piece)
{
    size_t n = strlen(piece);

    if (size + n > max_size)
        return size;
    memmove(data + at + n, data + at, size - at);
    memcpy(data + at, piece, n);
    return size + n;
}

/* A third: libFuzzer's own. A third: a piece somewhere. The rest: a policy from scratch. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    const size_t count = sizeof(pieces) / sizeof(pieces[0]);
    unsigned state = seed | 1;

    if (seed % 3 == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    state = state * 1664525u + 1013904223u;
    if (seed % 3 == 1 && size > 0)
        return insert(data, size, max_size, (state >> 8) % (size + 1),
                      pieces[(state >> 16) % count]);
    size = append(data, 0, max_size, head);
    size = append(data, size, max_size, pieces[0]);
    for (unsigned i = 0; i < seed / 3 % 12; i++) {
        state = state * 1664525u + 1013904223u;
        size = append(data, size, max_size, pieces[(state >> 16) % count]);
    }
    return append(data, size, max_size, " end }");
}
