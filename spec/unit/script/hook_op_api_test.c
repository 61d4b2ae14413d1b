/* baton.sleep and baton.http: what they are given is checked, and where nothing can wait they say so. */
#include "run_rig.h"
#include "script/native/hook_op_api.h"

static void arguments_are_checked(void **state)
{
    static const struct {
        const char *call, *word;
    } bad[] = {
        {"baton.sleep(-1)", "0 to 600000 ms"},
        {"baton.sleep('x')", "number expected"},
        {"baton.http('http://tiers.internal:8080/')", "table expected"},
        {"baton.http{}", "url is missing"},
        {"baton.http{ ulr = 'http://a' }", "(did you mean 'url'?)"},
        {"baton.http{ 'http://a' }", "unknown member of baton.http's table"},
        {"baton.http{ url = 5 }", "url must be a string"},
        {"baton.http{ url = 'https://a' }", "https is not supported"},
        {"baton.http{ url = 'a:80' }", "url must begin with http://"},
        {"baton.http{ url = 'http://' }", "url must be http://host[:port][/path]"},
        {"baton.http{ url = 'http://u@tiers.internal:8080' }", "url must be http://host"},
        {"baton.http{ url = 'http://::1/' }", "url must be http://host"},
        {"baton.http{ url = 'http://a:0' }", "the port must be"},
        {"baton.http{ url = 'http://a:65536' }", "the port must be"},
        {"baton.http{ url = 'http://a?b' }", "must have a '/' before"},
        {"baton.http{ url = 'http://a/ b' }", "without spaces"},
        {"baton.http{ url = 'http://a/\\r\\nX: y' }", "without spaces"},
        {"baton.http{ url = 'http://a/#b' }", "without spaces, '#'"},
        {"baton.http{ url = 'http://a/' .. ('x'):rep(9000) }", "at most 8192 bytes"},
        {"baton.http{ url = 'http://evil:81/' }",
         "evil:81 is not an allowed host; start baton with --policy-http-host evil:81"},
        {"baton.http{ url = 'http://tiers.internal/' }",
         "tiers.internal:80 is not an allowed host"},
        {"baton.http{ url = 'http://127.0.0.1:9', method = 'GE T' }", "method must be a word"},
        {"baton.http{ url = 'http://127.0.0.1:9', method = 'CONNECT' }", "method must be a word"},
        {"baton.http{ url = 'http://127.0.0.1:9', method = '' }", "method must be a word"},
        {"baton.http{ url = 'http://127.0.0.1:9', timeout_ms = 0 }", "timeout_ms must be a number"},
        {"baton.http{ url = 'http://127.0.0.1:9', timeout_ms = '5' }",
         "timeout_ms must be a number"},
        {"baton.http{ url = 'http://127.0.0.1:9', body = 5 }", "body must be a string"},
        {"baton.http{ url = 'http://127.0.0.1:9', headers = 'a: b' }", "headers must be a table"},
        {"baton.http{ url = 'http://127.0.0.1:9', headers = { 'a' } }",
         "names and values must be strings"},
        {"baton.http{ url = 'http://127.0.0.1:9', headers = { a = 1 } }",
         "names and values must be strings"},
        {"baton.http{ url = 'http://127.0.0.1:9', headers = { ['a b'] = '1' } }",
         "a name must be 1 to 256"},
        {"baton.http{ url = 'http://127.0.0.1:9', headers = { ['a:'] = '1' } }",
         "a name must be 1 to 256"},
        {"baton.http{ url = 'http://127.0.0.1:9', headers = { a = '1\\r\\nb: 2' } }",
         "'a' holds a CR, LF or NUL"},
        {"baton.http{ url = 'http://127.0.0.1:9', headers = { a = '1\\0' } }",
         "'a' holds a CR, LF or NUL"},
        {"baton.http{ url = 'http://127.0.0.1:9', headers = { ['Content-LENGTH'] = '1' } }",
         "'Content-LENGTH' is set by baton.http itself"},
        {"local h = {} for i = 1, 17 do h['x' .. i] = 'y' end baton.http{ url = "
         "'http://127.0.0.1:9', headers = h }",
         "headers: at most 16"},
    };
    char text[768];
    struct rig r;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(text, sizeof(text), FILE_WITH("route = function(req) %s end"), bad[i].call);
        rig_init(&r, text);
        expect_error(&r, bt_policy_route(r.policy, &r.run, &r.f.req), bad[i].word);
        rig_fini(&r);
    }
    /* (Made at load, which has the time for it.) */
    rig_init(&r,
             "local much = ('x'):rep(2 ^ 20) .. 'x'\n" FILE_WITH(
                 "route = function() baton.http{ url = 'http://127.0.0.1:9', body = much } end"));
    expect_error(&r, bt_policy_route(r.policy, &r.run, &r.f.req), "body is longer than 1 MiB");
    rig_fini(&r);
}

static void nobody_is_allowed_by_default(void **state)
{
    struct rig r;

    bt_policy_allow_hosts(NULL);
    rig_init(&r, FILE_WITH("route = function() baton.http{ url = 'http://127.0.0.1:9' } end"));
    expect_error(&r, bt_policy_route(r.policy, &r.run, &r.f.req),
                 "127.0.0.1:9 is not an allowed host");
    rig_fini(&r);
    bt_policy_allow_hosts(hosts);
}

static void expect_refusal(const char *text, const char *hook)
{
    static const bt_policy_event_t event = {.kind = "finished"};
    char word[160];
    struct rig r;
    bt_choice_t choice;
    bt_value_t *data = NULL;
    int rc;
    const bt_policy_failure_t failure = {
        .scope = BT_SCOPE_WORKER, .name = "connect", .leg = "decode", .status = 502, .attempt = 2};

    rig_init(&r, text);
    rc = strcmp(hook, "plan") == 0
             ? bt_policy_plan(r.policy, BT_POLICY_BOTH, &r.f.req, &r.f.view, &choice)
         : strcmp(hook, "fallback") == 0
             ? bt_policy_fallback(r.policy, &r.f.req, &r.f.view, &failure, &choice)
         : strcmp(hook, "observe") == 0 ? bt_policy_observe(r.policy, &event, 1)
                                        : bt_policy_handover(r.policy, &data);
    snprintf(word, sizeof(word),
             "baton.sleep: %s is a pure hook and cannot wait; decide in route and leave it in "
             "ctx.vars",
             hook);
    expect_error(&r, rc, word);
    rig_fini(&r);
}

static void pure_hooks_cannot_wait(void **state)
{
    bt_policy_t *policy = NULL;
    char err[512] = "";

    expect_refusal(POLICY("baton.sleep(1)"), "plan");
    expect_refusal(FILE_WITH("fallback = function() baton.sleep(1) end"), "fallback");
    expect_refusal(FILE_WITH("observe = function() baton.sleep(1) end"), "observe");
    expect_refusal(FILE_WITH("handover = function() baton.sleep(1) end"), "handover");
    assert_int_equal(
        make("baton.http{ url = 'http://127.0.0.1:9' }", NULL, &policy, err, sizeof(err)),
        BT_E_POLICY);
    assert_non_null(strstr(err, "baton.http: load is a pure hook and cannot wait"));
}

static void nothing_waits_inside_c(void **state)
{
    static const char *const bodies[] = {
        "local ok, why = pcall(baton.sleep, 1) error(why, 0)",
        "local ok, why = pcall(function() baton.http{ url = 'http://127.0.0.1:9' } end) error(why, "
        "0)",
        "table.sort({ 3, 2, 1 }, function(a, b) baton.sleep(1) return a < b end)",
        "return ('%s'):format(setmetatable({}, { __tostring = function() baton.sleep(1) return 'x' "
        "end }))"};
    char text[512];
    struct rig r;

    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        snprintf(text, sizeof(text), FILE_WITH("admit = function() %s end"), bodies[i]);
        rig_init(&r, text);
        expect_error(&r, bt_policy_admit(r.policy, &r.run, &r.f.req), "cannot wait inside pcall");
        assert_int_equal(r.run.hook_op.kind, BT_HOOK_OP_NONE);
        plan_ok(&r);
        rig_fini(&r);
    }
    /* What the interpreter itself calls is no boundary. */
    rig_init(&r, FILE_WITH("admit = function()\n"
                           "  local t = setmetatable({}, { __index = function() baton.sleep(7) "
                           "return 'x' end })\n"
                           "  return { reason = t.a } end"));
    expect(&r, bt_policy_admit(r.policy, &r.run, &r.f.req), 1);
    assert_int_equal(r.run.hook_op.ms, 7);
    expect(&r, bt_policy_resume(&r.run, &done), 0);
    assert_string_equal(r.run.admission.reason, "x");
    rig_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(nobody_is_allowed_by_default),
        cmocka_unit_test(pure_hooks_cannot_wait),
        cmocka_unit_test(nothing_waits_inside_c),
    };
    return cmocka_run_group_tests(tests, set_hosts, NULL);
}
