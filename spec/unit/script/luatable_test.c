#include "script/luatable.h"
#include "script_fixture.h"

static int load(const char *text, bt_value_t **root_p, char *err, size_t err_size)
{
    struct temp_file file;
    int rc;

    temp_write(&file, "baton.lua", text);
    rc = bt_lua_table_load(file.path, root_p, err, err_size);
    temp_remove(&file);
    return rc;
}

static void assert_refused_with(const char *text, const char *word)
{
    char err[512] = "";
    bt_value_t *root = NULL;

    assert_int_equal(load(text, &root, err, sizeof(err)), BT_E_CONFIG);
    assert_null(root);
    if (strstr(err, word) == NULL)
        fail_msg("\"%s\" does not hold \"%s\"", err, word);
}

static void reads_a_tree(void **state)
{
    char err[512] = "";
    bt_value_t *root = NULL;
    const bt_value_t *pool;
    (void) state;

    setenv("BT_SPEC_PORT", "8998", 1);
    if (load("local shared = { 'a', 'b' }\n"
             "return { port = tonumber(env('BT_SPEC_PORT')), host = env('BT_SPEC_NONE', 'none'), "
             "on = true, off = false,\n"
             "  empty = {}, pools = { { name = ('x'):rep(3), tags = shared }, { name = 'y', tags = "
             "shared } } }",
             &root, err, sizeof(err)) != 0)
        fail_msg("%s", err);
    assert_int_equal(root->type, BT_VALUE_TABLE);
    assert_int_equal(root->count, 6);
    for (unsigned i = 1; i < root->count; i++)
        assert_true(strcmp(root->items[i - 1].key, root->items[i].key) < 0);
    assert_true(bt_value_get(root, "port")->number == 8998);
    assert_string_equal(bt_value_get(root, "host")->string, "none");
    assert_int_equal(bt_value_get(root, "on")->type, BT_VALUE_BOOL);
    assert_true(bt_value_get(root, "on")->boolean);
    assert_false(bt_value_get(root, "off")->boolean);
    assert_int_equal(bt_value_get(root, "empty")->type, BT_VALUE_TABLE);
    assert_int_equal(bt_value_get(root, "empty")->count, 0);
    assert_int_equal(bt_value_get(root, "pools")->type, BT_VALUE_LIST);
    pool = &bt_value_get(root, "pools")->items[0];
    assert_string_equal(bt_value_get(pool, "name")->string, "xxx");
    assert_string_equal(bt_value_get(pool, "tags")->items[1].string, "b");
    assert_null(bt_value_get(root, "nope"));
    bt_value_free(root);
}

static void names_the_place_of_what_is_wrong(void **state)
{
    (void) state;
    assert_refused_with("return { pools = { { workers = { f = print or function() end } } } }",
                        "baton.lua: pools[1].workers.f: functions");
    assert_refused_with("local t = {} t.a = { t } return t", "a[1]: a table holds itself");
    assert_refused_with("return { [1] = 1, [3] = 3 }", "the returned table: keys must be");
    assert_refused_with("return { a = { 1, 2, x = 3 } }", "a: has both");
    assert_refused_with("return { [true] = 1 }", "keys must be");
    assert_refused_with("return { [2.5] = 1 }", "keys must be");
    assert_refused_with("return { x = 0/0 }", "x: is not a finite number");
    assert_refused_with("return { x = 1/0 }", "x: is not a finite number");
    assert_refused_with("return { x = 'a\\0b' }", "x: a string holds a NUL byte");
}

static void names_the_line_of_an_error(void **state)
{
    (void) state;
    assert_refused_with("\nlocal x = nil + 1", "baton.lua:2:");
    assert_refused_with("return {\n a = \n}", "baton.lua:3:");
    assert_refused_with("local x = 1", "must return one table, not a nil value");
    assert_refused_with("return 'text'", "not a string value");
}

static void is_a_sandbox(void **state)
{
    (void) state;
    assert_refused_with("return { x = os.getenv('HOME') }", "baton.lua:1:");
    assert_refused_with("return { x = io.open('/etc/passwd') }", "baton.lua:1:");
    assert_refused_with("return require('x')", "baton.lua:1:");
    assert_refused_with("return load('return {}')()", "baton.lua:1:");
}

static void cannot_run_for_ever(void **state)
{
    (void) state;
    assert_refused_with("while true do end", "ran too long");
    assert_refused_with("while true do pcall(function() while true do end end) end",
                        "ran too long");
    assert_refused_with("local t = {} for i = 1, 32 do t = { t } end return t", "nested too deep");
}

static void cannot_grow_without_end(void **state)
{
    (void) state;
    assert_refused_with("local t = { 1 } for i = 1, 24 do t = { t, t } end return t",
                        "too many values");
}

static void missing_file(void **state)
{
    char err[256] = "";
    bt_value_t *root = NULL;
    (void) state;

    assert_int_equal(bt_lua_table_load("/nonexistent/b.lua", &root, err, sizeof(err)), BT_E_CONFIG);
    assert_string_equal(err, "/nonexistent/b.lua: cannot read: No such file or directory");
    bt_value_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_tree),
        cmocka_unit_test(names_the_place_of_what_is_wrong),
        cmocka_unit_test(names_the_line_of_an_error),
        cmocka_unit_test(is_a_sandbox),
        cmocka_unit_test(cannot_run_for_ever),
        cmocka_unit_test(cannot_grow_without_end),
        cmocka_unit_test(missing_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
