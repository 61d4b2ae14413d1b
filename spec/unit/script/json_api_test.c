/* baton.json_decode and baton.json_encode: there and back, and what is neither. */
#include "run_rig.h"

static void json_there_and_back(void **state)
{
    static const char *const bodies[] = {
        "local v = baton.json_decode('{\"b\":[1,2.5,-3e2,\"x\"],\"a\":{\"t\":true,\"f\":false}}')\n"
        "assert(v.b[1] == 1 and v.b[2] == 2.5 and v.b[3] == -300 and v.b[4] == 'x')\n"
        "assert(v.a.t == true and v.a.f == false)\n"
        "assert(baton.json_encode(v) == "
        "'{\"a\":{\"f\":false,\"t\":true},\"b\":[1,2.5,-300,\"x\"]}')",
        "local v = "
        "baton.json_decode([[{\"a\\u0062\":\"\\u00e9\\n\\\"\\ud83d\\ude00\"}]])\n"
        "assert(v.ab == '\\195\\169\\n\\\"\\240\\159\\152\\128')\n"
        "assert(baton.json_decode(baton.json_encode(v)).ab == v.ab)",
        "local long = ('\\\\n'):rep(5000) assert(baton.json_decode('\"' .. long .. '\"') == "
        "('\\n'):rep(5000))",
        /* Long texts are quoted in parts: no character is cut, whatever stands at the seam. */
        "for pad = 0, 4 do\n"
        "  local s = ('x'):rep(16384 - 3 + pad) .. ('\\240\\159\\152\\128\"\\n'):rep(5000)\n"
        "  local text = baton.json_encode({ [s] = s })\n"
        "  assert(#text == 2 * (2 + 16381 + pad + 5000 * 8) + 3)\n"
        "  local v = baton.json_decode(text) assert(v[s] == s)\n"
        "end",
        "local v = baton.json_decode('{\"a\":null,\"b\":[1,null,3]}')\n"
        "assert(v.a == nil and v.b[1] == 1 and v.b[2] == nil and v.b[3] == 3)",
        "assert(baton.json_decode(' 5 ') == 5 and baton.json_decode('\"s\"') == 's')\n"
        "local v, why = baton.json_decode('null') assert(v == nil and why == nil)",
        "assert(baton.json_encode({}) == '{}' and baton.json_encode('a\"b') == '\"a\\\\\"b\"')\n"
        "assert(baton.json_encode(0.1) == '0.1' or tonumber(baton.json_encode(0.1)) == 0.1)\n"
        "assert(baton.json_encode(2 ^ 40) == '1099511627776' and baton.json_encode(nil) == 'null')",
        "for _, bad in ipairs { '', '{', '[1,]', '{\"a\":}', '01', 'nul', '\"', '[1] 2', "
        "'\"\\255\"', "
        "'{\"a\" 1}', '{a:1}' } do\n"
        "  local v, why = baton.json_decode(bad) assert(v == nil and why and why:find('at byte'), "
        "bad) "
        "end",
        "local v, why = baton.json_decode(('['):rep(40) .. (']'):rep(40))\n"
        "assert(v == nil and why == 'nested more than 32 deep', why)",
        "assert(baton.json_decode(('['):rep(32) .. (']'):rep(32)))",
        "local v, why = baton.json_decode('1e999') assert(v == nil and why == 'a number is out of "
        "range')",
        "local v, why = baton.json_decode(('['):rep(1000) .. (']'):rep(1000)) assert(v == nil and "
        "why)",
        "local v, why = baton.json_decode('\"' .. ('x'):rep(2 ^ 20 - 100) .. ('x'):rep(200) .. "
        "'\"') "
        "assert(v == nil and why == 'longer than 1 MiB')",
        "assert(#baton.json_decode('\"' .. ('x'):rep(2 ^ 20 - 2) .. '\"') == 2 ^ 20 - 2)",
        "local ok, why = pcall(baton.json_encode, { f = pcall }) assert(not ok and "
        "why:find('json_encode.f: a function value'))",
        "local ok, why = pcall(baton.json_encode, 1 / 0) assert(not ok and why:find('not finite'))",
        "local t = {} t.t = t local ok, why = pcall(baton.json_encode, t) assert(not ok and "
        "why:find('a table holds itself'))",
        "local t = {} for i = 1, 8 do t = { t } end local ok, why = pcall(baton.json_encode, t) "
        "assert(not ok and why:find('nested more than 8 deep'))",
        "local t = {} for i = 1, 20000 do t[i] = 1 end\n"
        "local ok, why = pcall(baton.json_encode, t) assert(not ok and why:find('more than "
        "16384'))",
        "local ok, why = pcall(baton.json_encode) assert(not ok and why:find('value expected'))",
        "local ok, why = pcall(baton.json_decode, 5) assert(not ok and why:find('string "
        "expected'))",
    };
    char text[1024];

    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        bt_policy_t *policy = NULL;
        char err[512] = "";

        /* start has time enough for a MiB under any sanitizer */
        snprintf(text, sizeof(text), FILE_WITH("start = function()\n%s\nend"), bodies[i]);
        if (make(text, NULL, &policy, err, sizeof(err)) != 0)
            fail_msg("%s: %s", bodies[i], err);
        bt_policy_free(policy);
    }
}

static void json_in_pure_hooks_is_small(void **state)
{
    struct rig r;

    rig_init(&r, POLICY("assert(baton.json_decode('[1]')[1] == 1)\n"
                        "local v, why = baton.json_decode('\"' .. ('x'):rep(65536) .. '\"')\n"
                        "assert(v == nil and why == 'longer than 64 KiB (1 MiB in admit and "
                        "route)')\n"
                        "local ok, raised = pcall(baton.json_encode, ('x'):rep(65536))\n"
                        "assert(not ok and raised:find('64 KiB'))\n"
                        "return { prefill = 1, decode = 2 }"));
    r.f.req.vars = NULL;
    plan_ok(&r);
    rig_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_there_and_back),
        cmocka_unit_test(json_in_pure_hooks_is_small),
    };
    return cmocka_run_group_tests(tests, set_hosts, NULL);
}
