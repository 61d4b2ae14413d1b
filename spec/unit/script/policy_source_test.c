#include "script_fixture.h"

#include "script/policy/policy_source.h"

static char err[512];

static void test_names_and_paths(void **state)
{
    assert_true(bt_str_eq(bt_policy_base_name("a/b/mine.lua"), BT_STR("mine")));
    assert_true(bt_str_eq(bt_policy_base_name("mine"), BT_STR("mine")));
    assert_true(bt_str_eq(bt_policy_base_name(".lua"), BT_STR(".lua")));
    assert_true(bt_policy_is_path("./mine"));
    assert_true(bt_policy_is_path("mine.lua"));
    assert_false(bt_policy_is_path("mine"));
}

static void test_a_file_goes_before_a_shipped_policy(void **state)
{
    bt_policy_source_t *shipped, *file, *path;
    struct temp_file t;

    temp_write(&t, "random.lua", "return 1");
    assert_int_equal(bt_policy_source_open(&shipped, "random", NULL, err, sizeof err), 0);
    assert_int_equal(shipped->kind, BT_SOURCE_SHIPPED);
    assert_string_equal(shipped->path, "policies/random.lua");
    assert_int_equal(bt_policy_source_open(&file, "random", t.folder, err, sizeof err), 0);
    assert_int_equal(file->kind, BT_SOURCE_DIR);
    assert_string_equal(file->code, "return 1");
    assert_int_equal(bt_policy_source_open(&path, t.path, NULL, err, sizeof err), 0);
    assert_int_equal(path->kind, BT_SOURCE_FILE);
    assert_false(bt_policy_source_same(shipped, file));
    assert_false(bt_policy_source_same(file, path)); /* the same bytes, asked for in another way */
    bt_policy_source_unref(shipped);
    bt_policy_source_unref(file);
    bt_policy_source_unref(path);
    temp_remove(&t);
    assert_int_equal(bt_policy_source_open(&file, "rundom", NULL, err, sizeof err), BT_E_CONFIG);
    assert_non_null(strstr(err, "did you mean 'random'?"));
}

static void test_a_text_is_kept_as_it_was_read(void **state)
{
    bt_policy_source_t *a, *b, *c;
    struct temp_file t;
    FILE *out;

    temp_write(&t, "mine.lua", "one");
    assert_int_equal(bt_policy_source_open(&a, "mine", t.folder, err, sizeof err), 0);
    assert_int_equal(bt_policy_source_open(&b, "mine", t.folder, err, sizeof err), 0);
    out = fopen(t.path, "w");
    assert_non_null(out);
    fputs("two", out);
    fclose(out);
    assert_int_equal(bt_policy_source_open(&c, "mine", t.folder, err, sizeof err), 0);
    assert_string_equal(a->code, "one");
    assert_true(bt_policy_source_same(a, b));
    assert_false(bt_policy_source_same(a, c));
    assert_true(bt_policy_source_same(NULL, NULL));
    assert_false(bt_policy_source_same(a, NULL));
    bt_policy_source_unref(a);
    bt_policy_source_unref(b);
    bt_policy_source_unref(c);
    temp_remove(&t);
}

static void test_messages_name_the_path(void **state)
{
    bt_policy_source_t *s;
    bt_policy_t *policy;

    assert_int_equal(bt_policy_source_new(&s, BT_SOURCE_ADMIN, "mine", "admin/mine.lua",
                                          BT_STR("return {\n x = = 1 }")),
                     0);
    assert_int_equal(bt_policy_load_source(&policy, s, err, sizeof err), BT_E_POLICY);
    assert_non_null(strstr(err, "admin/mine.lua:2:"));
    bt_policy_source_unref(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_and_paths),
        cmocka_unit_test(test_a_file_goes_before_a_shipped_policy),
        cmocka_unit_test(test_a_text_is_kept_as_it_was_read),
        cmocka_unit_test(test_messages_name_the_path),
    };

    return cmocka_run_group_tests(tests, set_wide_budgets, NULL);
}
