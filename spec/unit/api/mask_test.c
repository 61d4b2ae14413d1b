/* KV addresses of a request id: same length, only these, at every split of the body. */
#include "api/mask.h"
#include "unit.h"

#define ID(p, d) "{\"id\":\"cmpl-___prefill_addr_" p "___decode_addr_" d "_0123-0\",\"a\":1}"

static void expect(const char *in, const char *wanted)
{
    const size_t n = strlen(in);

    assert_int_equal(n, strlen(wanted));
    for (size_t cut = 0; cut <= n; cut++) {
        char text[512];
        bt_mask_t m = {.count = 0};
        memcpy(text, in, n + 1);
        bt_mask_feed(&m, text, cut);
        bt_mask_feed(&m, text + cut, n - cut);
        assert_string_equal(text, wanted);
    }
}

static void test_masks_both_addresses(void **state)
{
    expect(ID("10.0.0.1:5", "host:[::1],notify:7"), ID("xxxxxxxxxx", "xxxxxxxxxxxxxxxxxxx"));
}

static void test_masks_each_time(void **state)
{
    expect(ID("10.0.0.1:5", "host:[::1],notify:7") "\n" ID("10.0.0.1:5", "host:[::1],notify:7"),
           ID("xxxxxxxxxx", "xxxxxxxxxxxxxxxxxxx") "\n" ID("xxxxxxxxxx", "xxxxxxxxxxxxxxxxxxx"));
}

/* Or it would be an oracle: an engine made to repeat guesses told by the x's which of them is right. */
static void test_masks_what_only_looks_like_it(void **state)
{
    expect(ID("20.0.0.1:5", "host:[::1],notify:7"), ID("xxxxxxxxxx", "xxxxxxxxxxxxxxxxxxx"));
    expect("prefill_addr_1", "prefill_addr_x");
    expect("a decode_addr_10.0.0.1, or 10.0.0.1", "a decode_addr_xxxxxxxxx or 10.0.0.1");
    expect("preprefill_addr_10.0.0.1:5", "preprefill_addr_xxxxxxxxxx");
    expect("prefill_addr_prefill_addr_10.0.0.1:5", "prefill_addr_xxxxxxx_xxxx_xxxxxxxxxx");
    expect("decodecode_addr_[fe80::1%eth0]:80_1", "decodecode_addr_xxxxxxxxxxxxxxxxx_1");
}

static void test_masks_names_with_underscores(void **state)
{
    expect(ID("a_host:5", "host:an_other,notify:7"), ID("x_xxxxxx", "xxxxxxx_xxxxxxxxxxxxxx"));
    expect(ID("a:5", "b:6_:7"), ID("xxx", "xxx_:7")); /* what stands after the port is not its */
}

static void test_leaves_everything_else(void **state)
{
    const char *const texts[] = {
        "prefill 10.0.0.1:5 prefill_addr_ is pprefill_addr_; 10.0.0.1:5 host:[::1],notify:7",
        "prefill_addr 10.0.0.1 refill_addr_10.0.0.1 decode__addr_10.0.0.1 __10.0.0.1",
        "\"decode_addr_\",\"10.0.0.1\"",
    };
    for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        expect(texts[i], texts[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_both_addresses),
        cmocka_unit_test(test_masks_each_time),
        cmocka_unit_test(test_masks_what_only_looks_like_it),
        cmocka_unit_test(test_masks_names_with_underscores),
        cmocka_unit_test(test_leaves_everything_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
