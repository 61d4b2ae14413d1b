#include "script/value/luatable.h"
#include "script_fixture.h"

#include <stdlib.h>

#define HEAD "return { api = 2, name = 'spec', version = '1', "
#define PLAN(body)                                                                                 \
    "plan = function(req, view, ctx) " body " return { prefill = 1, decode = 2 } end }"

static const char declared[] =
    HEAD "params = {\n"
         "  weight = { type = 'number', min = 0, max = 10, default = 1.5, doc = 'how much load "
         "counts' },\n"
         "  tries = { type = 'integer', min = 1, default = 3 },\n"
         "  mode = { type = 'string', enum = { 'fast', 'fair' }, default = 'fair' },\n"
         "  zones = { type = 'list', enum = { 'east', 'west' }, max = 2, default = {} },\n"
         "  strict = { type = 'boolean', default = false },\n"
         "  label = { type = 'string', max = 8 },\n"
         "},\n" PLAN("");

/* The tree of a configuration text. */
static bt_value_t *values_of(const char *text)
{
    struct temp_file file;
    bt_value_t *root = NULL;
    char err[512] = "";

    temp_write(&file, "values.lua", text);
    if (bt_lua_table_load(file.path, &root, err, sizeof(err)) != 0)
        fail_msg("%s", err);
    temp_remove(&file);
    return root;
}

static int load_with(const char *text, const char *values, bt_policy_t **policy_p, char *err,
                     size_t err_size)
{
    bt_value_t *root = values != NULL ? values_of(values) : NULL;
    const bt_policy_spec_t spec = {.path = "spec.lua", .code = bt_str(text), .params = root};
    int rc = bt_policy_make(policy_p, &spec, err, err_size);

    bt_value_free(root);
    return rc;
}

static void assert_load_refused(const char *text, const char *values, int expected,
                                const char *word)
{
    bt_policy_t *policy = NULL;
    char err[512] = "";
    int rc = load_with(text, values, &policy, err, sizeof(err));

    if (rc != expected || strstr(err, word) == NULL || strstr(err, "spec.lua") == NULL)
        fail_msg("%d \"%s\", expected %d \"%s\"", rc, err, expected, word);
    assert_null(policy);
}

static void values_that_do_not_fit(void **state)
{
    static const char *const cases[][2] = {
        {"return { weight = 12 }", "params.weight: 12 is above max 10"},
        {"return { weight = -0.5 }", "params.weight: -0.5 is below min 0"},
        {"return { weight = 'much' }", "params.weight: \"much\" is a string; it must be a number"},
        {"return { tries = 1.5 }", "params.tries: 1.5 is not an integer"},
        {"return { tries = true }", "params.tries: true is a boolean; it must be an integer"},
        {"return { mode = 'slow' }", "params.mode: \"slow\" is not one of \"fast\", \"fair\""},
        {"return { zones = { 'east', 'north' } }",
         "params.zones[2]: \"north\" is not one of \"east\", \"west\""},
        {"return { zones = { 'east', 'east', 'west' } }",
         "params.zones: 3 elements is above max 2"},
        {"return { zones = { { 1 } } }", "params.zones[1] is a list; elements are numbers"},
        {"return { zones = 'east' }", "params.zones: \"east\" is a string; it must be a list"},
        {"return { strict = 1 }", "params.strict: 1 is a number; it must be a boolean"},
        {"return { label = 'far too long' }", "params.label: 12 bytes is above max 8"},
        {"return { wieght = 1 }",
         "params.wieght: the policy has no such parameter (did you mean 'weight'?)"},
        {"return { 1, 2 }", "params: must be a table"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_load_refused(declared, cases[i][0], BT_E_CONFIG, cases[i][1]);
}

static void declarations_that_make_no_sense(void **state)
{
    static const char *const cases[][2] = {
        {"params = 1,", "params: must be a table of names"},
        {"params = { x = 1 },", "params.x: must be a table like"},
        {"params = { x = { type = 'float' } },", "params.x.type: must be \"number\", \"integer\""},
        {"params = { x = {} },", "params.x.type: must be"},
        {"params = { x = { type = 'number', minimum = 1 } },", "params.x.minimum: not known here"},
        {"params = { x = { type = 'number', maxx = 1 } },",
         "params.x.maxx: not known here (did you mean 'max'?)"},
        {"params = { x = { type = 'number', max = 'a' } },",
         "params.x.max: must be a finite number"},
        {"params = { x = { type = 'number', max = 1, default = 2 } },",
         "params.x.default: 2 is above max 1"},
        {"params = { x = { type = 'string', enum = 'a' } },", "params.x.enum: must be a list"},
        {"params = { x = { type = 'string', doc = 1 } },", "params.x.doc: must be a string"},
        {"params = { x = { type = 'string', default = function() end } },",
         "params.x.default: a function value"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text), HEAD "%s " PLAN(""), cases[i][0]);
        assert_load_refused(text, NULL, BT_E_POLICY, cases[i][1]);
    }
}

static void plan_with(const char *body, const char *values, const char *word)
{
    struct fleet f;
    bt_policy_t *policy = NULL;
    bt_choice_t choice;
    char err[512] = "", text[2048];
    int rc;

    fleet_init(&f, 1, 1, 0);
    snprintf(text, sizeof(text), "%.*s" PLAN("%s"), (int) (strstr(declared, "plan =") - declared),
             declared, body);
    if (load_with(text, values, &policy, err, sizeof(err)) != 0)
        fail_msg("%s", err);
    rc = bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice);
    if ((rc == 0) != (word == NULL) ||
        (word != NULL && strstr(bt_policy_error(policy), word) == NULL))
        fail_msg("%d \"%s\"", rc, bt_policy_error(policy));
    bt_policy_free(policy);
    fleet_fini(&f);
}

static void hooks_read_them(void **state)
{
    plan_with("local p = ctx.params assert(p.weight == 1.5 and p.tries == 3 and p.mode == 'fair' "
              "and #p.zones == 0 and "
              "p.strict == false and p.label == nil)",
              NULL, NULL);
    plan_with(
        "local p = ctx.params assert(p.weight == 4 and p.tries == 3 and p.mode == 'fast' and "
        "p.zones[1] == 'west' and "
        "p.strict == true and p.label == 'x')",
        "return { weight = 4, mode = 'fast', zones = { 'west' }, strict = true, label = 'x' }",
        NULL);
    plan_with("local x = ctx.params.wieght", NULL,
              "unknown parameter 'wieght' (did you mean 'weight'?)");
    plan_with("ctx.params.weight = 2", NULL, "params cannot be written");
    plan_with("setmetatable(ctx.params, {})", NULL, "protected metatable");
}

static void they_are_described(void **state)
{
    bt_policy_t *policy = NULL;
    char err[512] = "", *text;

    assert_int_equal(load_with(declared, NULL, &policy, err, sizeof(err)), 0);
    text = bt_policy_params_schema(policy);
    assert_string_equal(
        text, "{\"$schema\":\"https://json-schema.org/draft/2020-12/"
              "schema\",\"title\":\"spec\",\"type\":\"object\","
              "\"additionalProperties\":false,\"properties\":{\"label\":{\"type\":\"string\","
              "\"maxLength\":8},"
              "\"mode\":{\"type\":\"string\",\"enum\":[\"fast\",\"fair\"],\"default\":\"fair\"},"
              "\"strict\":{\"type\":\"boolean\",\"default\":false},"
              "\"tries\":{\"type\":\"integer\",\"minimum\":1,\"default\":3},"
              "\"weight\":{\"type\":\"number\",\"minimum\":0,\"maximum\":10,\"default\":1.5,"
              "\"description\":\"how much load counts\"},"
              "\"zones\":{\"type\":\"array\",\"maxItems\":2,\"items\":{\"enum\":[\"east\",\"west\"]"
              "},\"default\":[]}}}");
    free(text);
    bt_policy_free(policy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_that_do_not_fit),
        cmocka_unit_test(declarations_that_make_no_sense),
        cmocka_unit_test(hooks_read_them),
        cmocka_unit_test(they_are_described),
    };
    return cmocka_run_group_tests(tests, set_wide_budgets, NULL);
}
