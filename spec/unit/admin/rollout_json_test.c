/* Bundles that operators send, and what they are told of sets. */

#include "admin/policies/rollout_json.h"
#include "unit.h"

static bt_rollout_set_t *set;

static int open_set(void **state)
{
    assert_int_equal(bt_rollout_set_new(&set), 0);
    assert_int_equal(bt_rollout_set_put(set, "old", BT_STR("text")), 0);
    assert_int_equal(bt_rollout_set_put(set, BT_ROLLOUT_RULES, BT_STR("rules")), 0);
    return 0;
}

static int close_set(void **state)
{
    bt_rollout_set_unref(set);
    return 0;
}

static unsigned put(const char *json)
{
    char err[256];

    return bt_rollout_put_bundle(set, bt_str(json), err, sizeof err);
}

static const char *text_of(const char *name)
{
    const bt_rollout_file_t *file = bt_rollout_set_find(set, name);

    return file != NULL ? file->text : NULL;
}

static void test_a_bundle_is_put_into_a_set(void **state)
{
    assert_int_equal(put("{\"policies\":{\"n\\u0065w\":\"a\\n\"},\"rules\":\"r\"}"), 0);
    assert_string_equal(text_of("new"), "a\n");
    assert_string_equal(text_of("old"), "text");
    assert_string_equal(text_of(BT_ROLLOUT_RULES), "r");
    assert_int_equal(put("{\"drop\":[\"old\"],\"rules\":null,\"replace\":false}"), 0);
    assert_null(text_of("old"));
    assert_null(text_of(BT_ROLLOUT_RULES));
    assert_int_equal(set->count, 1);
    /* Wherever it stands, it is done first. */
    assert_int_equal(put("{\"policies\":{\"x\":\"1\"},\"replace\":true}"), 0);
    assert_int_equal(set->count, 1);
    assert_string_equal(text_of("x"), "1");
}

static void test_what_is_no_bundle_is_refused(void **state)
{
    static const struct {
        const char *json, *err;
        unsigned status;
    } wrong[] = {
        {"", "must be a JSON object", 400},
        {"[]", "must be a JSON object", 400},
        {"{", "must be a JSON object", 400},
        {"{}", "the bundle is empty", 400},
        {"{\"x\":1}", "x: unknown member", 400},
        {"{\"policies\":[]}", "an object of names and texts", 400},
        {"{\"policies\":{\"a/b\":\"x\"}}", "a policy's name", 400},
        {"{\"policies\":{\"a\":\"\"}}", "a: its text is needed", 400},
        {"{\"policies\":{\"a\":7}}", "a: its text is needed", 400},
        {"{\"rules\":7}", "rules: its text is needed", 400},
        {"{\"drop\":{}}", "a list of names", 400},
        {"{\"drop\":[\"none\"]}", "none: not in the fleet's set", 404},
        {"{\"replace\":1}", "true or false", 400},
    };
    char err[256];

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(bt_rollout_put_bundle(set, bt_str(wrong[i].json), err, sizeof err),
                         wrong[i].status);
        if (strstr(err, wrong[i].err) == NULL)
            fail_msg("%s: %s", wrong[i].json, err);
    }
    assert_int_equal(bt_rollout_put_text(set, "a", BT_STR("\xff"), err, sizeof err), 400);
    assert_string_equal(err, "a: the text is not UTF-8");
    assert_int_equal(bt_rollout_drop_text(set, "b", err, sizeof err), 404);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_set, close_set)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_bundle_is_put_into_a_set),
        TEST(test_what_is_no_bundle_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
