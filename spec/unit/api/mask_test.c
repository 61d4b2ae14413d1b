/* KV addresses of a request id: same length, only these, at every split of the body. */
#include "api/mask.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/arena.h"

#define ID(p, d) "{\"id\":\"cmpl-___prefill_addr_" p "___decode_addr_" d "_0123-0\",\"a\":1}"

static void expect(const char *in, const char *wanted)
{
    const size_t n = strlen(in);
    bt_arena_t arena;

    assert_int_equal(n, strlen(wanted));
    bt_arena_init(&arena);
    for (size_t cut = 0; cut <= n; cut++) {
        char text[512];
        bt_mask_t m;
        memcpy(text, in, n + 1);
        bt_mask_init(&m, &arena, BT_STR("10.0.0.1:5"), BT_STR("host:[::1],notify:7"));
        bt_mask_feed(&m, text, cut);
        bt_mask_feed(&m, text + cut, n - cut);
        assert_string_equal(text, wanted);
    }
    bt_arena_fini(&arena);
}

static void test_masks_both_addresses(void **state)
{
    (void) state;
    expect(ID("10.0.0.1:5", "host:[::1],notify:7"), ID("xxxxxxxxxx", "xxxxxxxxxxxxxxxxxxx"));
}

static void test_masks_each_time(void **state)
{
    (void) state;
    expect(ID("10.0.0.1:5", "host:[::1],notify:7") "\n" ID("10.0.0.1:5", "host:[::1],notify:7"),
           ID("xxxxxxxxxx", "xxxxxxxxxxxxxxxxxxx") "\n" ID("xxxxxxxxxx", "xxxxxxxxxxxxxxxxxxx"));
}

static void test_leaves_everything_else(void **state)
{
    (void) state;
    expect(ID("20.0.0.1:5", "host:[::1],notify:7"), ID("20.0.0.1:5", "host:[::1],notify:7"));
    expect("prefill 10.0.0.1:5 prefill_addr_ is pprefill_addr_, 10.0.0.1:5 host:[::1],notify:7",
           "prefill 10.0.0.1:5 prefill_addr_ is pprefill_addr_, 10.0.0.1:5 host:[::1],notify:7");
}

static void test_begins_anew_where_a_match_breaks(void **state)
{
    (void) state;
    expect("preprefill_addr_10.0.0.1:5", "preprefill_addr_xxxxxxxxxx");
    expect("prefill_addr_prefill_addr_10.0.0.1:5", "prefill_addr_prefill_addr_xxxxxxxxxx");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_both_addresses),
        cmocka_unit_test(test_masks_each_time),
        cmocka_unit_test(test_leaves_everything_else),
        cmocka_unit_test(test_begins_anew_where_a_match_breaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
