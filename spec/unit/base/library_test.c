/* A library of whose functions some are used: all of them, or none and the reason. */
#include "base/library.h"
#include "unit.h"

#include <string.h>

#define FUNCTIONS(X)                                                                               \
    X(double, floor, (double x), (x))                                                              \
    X(double, pow, (double x, double y), (x, y))

FUNCTIONS(BT_LIBRARY_POINTER)
static const bt_library_function_t functions[] = {FUNCTIONS(BT_LIBRARY_ENTRY)};

static void test_all_functions(void **state)
{
    char why[256] = "";

    for (int i = 0; i < 2; i++) {
        assert_true(bt_library_load("libm.so.6", functions, 2, why, sizeof(why)));
        assert_string_equal(why, "");
        assert_true(real_floor(2.5) == 2.0);
        assert_true(real_pow(2.0, 10.0) == 1024.0);
    }
}

static void test_why_not(void **state)
{
    static void *one, *other;
    static const bt_library_function_t unknown[] = {{"floor", &one}, {"no_such_function", &other}};
    char why[256] = "";

    assert_false(bt_library_load("libnobody.so.1", unknown, 2, why, sizeof(why)));
    assert_non_null(strstr(why, "libnobody.so.1"));
    assert_false(bt_library_load("libm.so.6", unknown, 2, why, sizeof(why)));
    assert_string_equal(why, "libm.so.6 has no no_such_function");
    assert_null(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_functions),
        cmocka_unit_test(test_why_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
