#include "config/suggest.h"
#include "unit.h"

static const char *nearest(const char *word)
{
    static const char *const names[] = {"port",      "host",   "bootstrap_port",
                                        "connector", "labels", NULL};
    bt_suggest_t s;
    bt_suggest_init(&s, bt_str(word));
    for (const char *const *n = names; *n != NULL; n++)
        bt_suggest_offer(&s, *n);
    return bt_suggest_best(&s);
}

static void slips_find_their_name(void **state)
{
    assert_string_equal(nearest("prot"), "port");
    assert_string_equal(nearest("bootstrap_prt"), "bootstrap_port");
    assert_string_equal(nearest("conector"), "connector");
    assert_string_equal(nearest("Label"), "labels");
}

static void strangers_find_none(void **state)
{
    assert_null(nearest("kubernetes"));
    assert_null(nearest("x"));
    assert_null(nearest(""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slips_find_their_name),
        cmocka_unit_test(strangers_find_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
