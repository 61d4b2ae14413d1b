/* What a process with a limit can promise, and what is refused with which words. */
#include "base/err.h"
#include "gateway/memory.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

static char err[BT_CONFIG_ERR_BYTES];

static int fits(uint64_t limit, uint64_t held, uint64_t max_buffered)
{
    const bt_memory_need_t ask = {
        .name = "the limit", .limit = limit, .held = held, .max_buffered = max_buffered};

    err[0] = '\0';
    return bt_memory_fits(&ask, err, sizeof(err));
}

/* Who does as told starts. */
static void test_both_ways_out_are_right(void **state)
{
    unsigned refused = 0;

    for (uint64_t held = MIB; held < 500 * MIB; held += 7 * MIB + 1)
        for (uint64_t limit = MIB; limit < 3000 * MIB; limit += 1 + limit / 3) {
            unsigned long long flag, need;
            const char *lower;
            if (fits(limit, held, 512 * MIB) == 0) {
                assert_true(limit - held > 512 * MIB);
                continue;
            }
            refused++;
            lower = strstr(err, "lower the flag to ");
            if (lower != NULL) {
                assert_int_equal(sscanf(lower, "lower the flag to %llu", &flag), 1);
                assert_true(flag >= MIB && flag < 512 * MIB);
                assert_int_equal(fits(limit, held, flag), 0);
                assert_int_not_equal(fits(limit, held, flag + 2 * MIB), 0);
                assert_int_not_equal(fits(limit, held, 512 * MIB), 0);
            }
            assert_int_equal(
                sscanf(strstr(err, "raise the limit to "), "raise the limit to %llu MiB", &need),
                1);
            assert_int_equal(fits(need * MIB, held, 512 * MIB), 0);
            assert_int_not_equal(fits((need - 1) * MIB, held, 512 * MIB), 0);
        }
    assert_true(refused > 100);
}

static void test_words(void **state)
{
    assert_int_equal(fits(200 * MIB, 92 * MIB, 1024 * MIB), BT_E_CONFIG);
    assert_string_equal(err,
                        "--max-buffered-bytes 1073741824: the limit is 200 MiB, which holds 88 MiB "
                        "of requests: lower the flag to 92274688, or raise the limit to 1252 MiB");
    assert_int_equal(fits(90 * MIB, 92 * MIB, 1024 * MIB), BT_E_CONFIG);
    assert_string_equal(err, "--max-buffered-bytes 1073741824: the limit is 90 MiB, too little for "
                             "any request: raise the limit to 1252 MiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_ways_out_are_right),
        cmocka_unit_test(test_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
