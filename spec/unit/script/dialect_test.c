#include "script_fixture.h"

#define HEAD "return { name = 'own', kind = 'handoff', "
#define NOOP "prefill = function() end, decode = function() end "

static void assert_load_fails(const char *text, const char *word)
{
    struct temp_file file;
    bt_dialects_t *d = NULL;
    char err[512] = "";

    temp_write(&file, "own.lua", text);
    assert_int_not_equal(bt_dialects_new(&d, file.folder, err, sizeof(err)), 0);
    temp_remove(&file);
    assert_null(d);
    if (strstr(err, word) == NULL || strstr(err, "own.lua") == NULL)
        fail_msg("\"%s\" does not hold \"%s\" and the file", err, word);
}

static void all_shipped_ones_are_there(void **state)
{
    static const char *const names[] = {
        "sglang", "nixl", "nixl_push", "shared_cache", "baton", "mooncake_layerwise", "mindie"};
    bt_dialects_t *d = NULL;
    char err[512] = "";

    if (bt_dialects_new(&d, NULL, err, sizeof(err)) != 0)
        fail_msg("%s", err);
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_string_equal(bt_dialects_find(d, names[i])->name, names[i]);
    assert_null(bt_dialects_find(d, "trigger"));
    bt_dialects_free(d);
    bt_dialects_free(NULL);
}

static void plan_kind_names(void **state)
{
    assert_string_equal(bt_plan_kind_name(BT_PLAN_SINGLE), "single");
    assert_string_equal(bt_plan_kind_name(BT_PLAN_HANDOFF), "handoff");
    assert_string_equal(bt_plan_kind_name(BT_PLAN_BOOTSTRAP), "bootstrap");
    assert_string_equal(bt_plan_kind_name(BT_PLAN_TRIGGER), "trigger");
}

static void mistakes_name_the_file(void **state)
{
    assert_load_fails("local x = ", "own.lua:1:");
    assert_load_fails("\nerror('no')", "own.lua:2: no");
    assert_load_fails("return 1", "must return a table, not a number");
    assert_load_fails("return { kind = 'handoff' }", "name must be a string");
    assert_load_fails("return { name = 'own', kind = 'hand' }", "kind must be");
    assert_load_fails(HEAD "decode = function() end }", "prefill must be a function");
    assert_load_fails(HEAD NOOP ", preefill = 1 }",
                      "unknown member of a dialect 'preefill' (did you mean 'prefill'?)");
    assert_load_fails("return { name = 'own', kind = 'trigger', " NOOP " }", "needs room");
    assert_load_fails("return { name = 'own', kind = 'trigger', room = true, batch = true, " NOOP
                      " }",
                      "cannot be batch");
    assert_load_fails(HEAD NOOP ", batch = 1 }", "batch must be true or false");
    assert_load_fails(HEAD NOOP ", prompt_logprobs = true }",
                      "prompt_logprobs must be \"sglang\" or \"vllm\"");
    assert_load_fails(HEAD NOOP ", routes = {} }", "routes must list");
    assert_load_fails(HEAD NOOP ", routes = { 'v1' } }", "begin with '/'");
    assert_load_fails(HEAD NOOP ", abort_route = true }", "abort_route needs rid");
    assert_load_fails(HEAD NOOP ", connectors = 'X' }", "connectors must list 1 to 16 names");
    assert_load_fails(HEAD NOOP ", connectors = { 7 } }", "connectors must list names");
    assert_load_fails(HEAD NOOP ", engine = 'tgi' }", "engine must be sglang, vllm,");
    assert_load_fails("return { name = 'baton', kind = 'bootstrap', gateway_managed = true, " NOOP
                      "}",
                      "gateway_managed is for kind \"bootstrap\" with room and without batch");
    assert_load_fails("return { name = 'baton', kind = 'bootstrap', room = true, batch = true, "
                      "gateway_managed = true, " NOOP "}",
                      "without batch");
    assert_load_fails("return { name = 'own', kind = 'bootstrap', room = true, gateway_managed = "
                      "true, " NOOP "}",
                      "gateway_managed is for the dialect \"baton\" alone");
    assert_load_fails("return { name = 'own', kind = 'trigger', room = true, prompt_logprobs = "
                      "'vllm', " NOOP "}",
                      "prompt_logprobs is not for kind \"trigger\"");
    assert_load_fails("return { name = 'baton', kind = 'bootstrap', room = true, gateway_managed = "
                      "true, prompt_logprobs = 'sglang', " NOOP "}",
                      "nor with gateway_managed");
    assert_load_fails("return { name = 'own', kind = 'sequence', release = true, " NOOP "}",
                      "release is for kind");
    assert_load_fails("return { name = 'own', kind = 'sequence', first_token = true, " NOOP "}",
                      "first_token is for kind");
    assert_load_fails("local f = io.open('/etc/passwd')", "unknown name 'io'");
}

static void a_users_file_replaces_one_of_the_same_name(void **state)
{
    struct temp_file file;
    struct leg_run r;

    temp_write(&file, "mine.lua",
               "return { name = 'nixl', kind = 'sequence', prefill = function(_, edit) "
               "edit.set('mine', 1) end,"
               " decode = function() end }");
    leg_init(&r, "nixl", file.folder);
    temp_remove(&file);
    assert_false(r.dialect->needs_reply);
    assert_true(bt_dialect_serves(r.dialect, BT_STR("/anything"))); /* no routes: all */
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(&r, "mine=1", NULL);
    assert_non_null(bt_dialects_find(r.dialects, "sglang"));
    leg_fini(&r);
}

static void missing_folder(void **state)
{
    bt_dialects_t *d = NULL;
    char err[256] = "";

    assert_int_equal(bt_dialects_new(&d, "/nonexistent", err, sizeof(err)), BT_E_CONFIG);
    assert_string_equal(err, "/nonexistent: cannot read the dialect folder");
}

static void leg_answers(void **state)
{
    struct temp_file file;
    struct leg_run r;

    temp_write(&file, "own.lua",
               HEAD "prefill = function(leg)\n"
                    "  if leg.path == '/a' then return nil, 'because' end\n"
                    "  if leg.path == '/b' then return 'recompute' end\n"
                    "  if leg.path == '/c' then return 1 end\n"
                    "  if leg.path == '/d' then local x = leg.nope end\n"
                    "  if leg.path == '/e' then return nil end\n"
                    "  if leg.path == '/f' then error({}) end\n"
                    "end, decode = function() return 'recompute' end }");
    leg_init(&r, "own", file.folder);
    temp_remove(&file);
    r.leg.path = BT_STR("/a");
    assert_refused(&r, false, "because");
    assert_true(bt_str_eq(r.reason, BT_STR("because")));
    r.leg.path = BT_STR("/b");
    assert_refused(&r, false, "a leg function returns"); /* recompute is for decode */
    r.leg.path = BT_STR("/c");
    assert_refused(&r, false, "a leg function returns");
    r.leg.path = BT_STR("/d");
    assert_refused(&r, false, "own.lua:5: unknown field of leg 'nope'");
    r.leg.path = BT_STR("/e");
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_int_equal(r.reason.n, 0);
    r.leg.path = BT_STR("/f");
    assert_refused(&r, false, "dialect own: error object is a table value");
    r.leg.reply = BT_STR("{}");
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_RECOMPUTE);
    r.leg.reply = BT_STR(""); /* nothing was handed on that could be missing */
    assert_refused(&r, true, "a leg function returns");
    leg_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_shipped_ones_are_there),
        cmocka_unit_test(plan_kind_names),
        cmocka_unit_test(mistakes_name_the_file),
        cmocka_unit_test(a_users_file_replaces_one_of_the_same_name),
        cmocka_unit_test(missing_folder),
        cmocka_unit_test(leg_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
