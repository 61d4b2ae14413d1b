#include "config/option.h"

#include "base/err.h"
#include "unit.h"

#include <stdlib.h>

struct box {
    bool yes;
    unsigned u;
    uint64_t ms;
    int port;
    char *text;
    char *list[2];
    unsigned list_count;
};
#define AT(member) offsetof(struct box, member)

static const bt_option_t yes = {.kind = BT_OPTION_BOOL, .offset = AT(yes)};
static const bt_option_t number = {.kind = BT_OPTION_UINT, .offset = AT(u), .min = -1, .max = 10};
static const bt_option_t secs = {
    .kind = BT_OPTION_U64, .offset = AT(ms), .min = 0, .max = 100, .scale = 1000};
static const bt_option_t port = {.kind = BT_OPTION_PORT, .offset = AT(port)};
static const bt_option_t text = {.kind = BT_OPTION_PATH, .offset = AT(text)};
static const bt_option_t list = {
    .kind = BT_OPTION_TEXTS, .offset = AT(list), .count_offset = AT(list_count), .list_max = 2};

static int set(const bt_option_t *option, struct box *box, const char *value)
{
    char err[256] = "";
    int rc = bt_option_set_text(option, box, bt_str(value), err, sizeof err);
    assert_int_equal(rc < 0, err[0] != '\0');
    return rc;
}

static void numbers(void **state)
{
    struct box box = {0};
    assert_int_equal(set(&number, &box, "10"), 0);
    assert_int_equal(box.u, 10);
    assert_int_equal(set(&number, &box, "-1"), 0);
    assert_int_equal(box.u, 0); /* "no limit" */
    assert_int_equal(set(&secs, &box, "0.25"), 0);
    assert_int_equal(box.ms, 250);
    static const char *const bad[] = {"11",  "-2",  "1.5", "",   "0x5", "1e3",
                                      "nan", "inf", " 1",  "1 ", "--1", "1-"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(set(&number, &box, bad[i]), BT_E_CONFIG);
    assert_int_equal(box.u, 0); /* nothing was stored */
}

static void ports(void **state)
{
    struct box box = {0};
    assert_int_equal(set(&port, &box, "65535"), 0);
    assert_int_equal(box.port, 65535);
    assert_int_equal(set(&port, &box, "None"), 0);
    assert_int_equal(box.port, -1);
    assert_int_equal(set(&port, &box, "0"), BT_E_CONFIG);
    assert_int_equal(set(&port, &box, "65536"), BT_E_CONFIG);
    assert_int_equal(box.port, -1);
}

static void switches(void **state)
{
    struct box box = {0};
    assert_int_equal(set(&yes, &box, "TRUE"), 0);
    assert_true(box.yes);
    assert_int_equal(set(&yes, &box, "off"), 0);
    assert_false(box.yes);
    assert_int_equal(set(&yes, &box, "2"), BT_E_CONFIG);
}

static void strings_are_copied_compared_and_freed(void **state)
{
    struct box a = {0}, b = {0};
    char err[256];
    assert_int_equal(set(&text, &a, "x"), 0);
    assert_int_equal(set(&text, &a, "y"), 0);
    assert_false(bt_option_same(&text, &a, &b));
    assert_int_equal(set(&text, &b, "y"), 0);
    assert_true(bt_option_same(&text, &a, &b));
    assert_ptr_not_equal(a.text, b.text);
    bt_value_t value = {.type = BT_VALUE_STRING, .string = (char *) "sub/f"};
    assert_int_equal(bt_option_set_value(&text, &a, &value, "/etc/baton", err, sizeof err), 0);
    assert_string_equal(a.text, "/etc/baton/sub/f");
    value.string = (char *) "/abs";
    assert_int_equal(bt_option_set_value(&text, &a, &value, "/etc/baton", err, sizeof err), 0);
    assert_string_equal(a.text, "/abs");
    bt_option_clear(&text, &a);
    bt_option_clear(&text, &b);
    assert_null(a.text);
}

static void lists_have_an_end(void **state)
{
    struct box a = {0}, b = {0};
    assert_int_equal(set(&list, &a, "one"), 0);
    assert_int_equal(set(&list, &a, "two"), 0);
    assert_int_equal(set(&list, &a, "three"), BT_E_CONFIG);
    assert_int_equal(a.list_count, 2);
    assert_int_equal(set(&list, &b, "one"), 0);
    assert_int_equal(set(&list, &b, "two"), 0);
    assert_true(bt_option_same(&list, &a, &b));
    free(b.list[1]);
    b.list[1] = NULL;
    b.list_count = 1;
    assert_false(bt_option_same(&list, &a, &b));
    bt_option_clear(&list, &a);
    bt_option_clear(&list, &b);
    assert_int_equal(a.list_count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers),
        cmocka_unit_test(ports),
        cmocka_unit_test(switches),
        cmocka_unit_test(strings_are_copied_compared_and_freed),
        cmocka_unit_test(lists_have_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
