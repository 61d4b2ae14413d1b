/* CRC32C: known answers, the instruction against the table, continuation. */
#include "transport/wire/crc32c.h"

#include "base/rand.h"
#include "unit.h"

#include <string.h>

/* RFC 3720, appendix B.4, and the customary check string. */
static void test_known_answers(void **state)
{
    uint8_t bytes[32];

    assert_int_equal(bt_kv_crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(bt_kv_crc32c_table(0, "123456789", 9), 0xe3069283u);
    memset(bytes, 0, 32);
    assert_int_equal(bt_kv_crc32c(0, bytes, 32), 0x8a9136aau);
    memset(bytes, 0xff, 32);
    assert_int_equal(bt_kv_crc32c_table(0, bytes, 32), 0x62a8ab43u);
    for (unsigned i = 0; i < 32; i++)
        bytes[i] = (uint8_t) i;
    assert_int_equal(bt_kv_crc32c(0, bytes, 32), 0x46dd794eu);
}

static void test_both_ways_agree_at_every_length_and_offset(void **state)
{
    uint8_t bytes[300];

    bt_rand_seed(1);
    for (unsigned i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t) bt_rand_u64();
    for (unsigned from = 0; from < 16; from++)
        for (unsigned n = 0; from + n <= sizeof(bytes); n++)
            assert_int_equal(bt_kv_crc32c(0, bytes + from, n),
                             bt_kv_crc32c_table(0, bytes + from, n));
}

static void test_it_continues(void **state)
{
    const char *text = "the quick brown fox jumps over the lazy dog";
    size_t n = strlen(text);

    for (size_t cut = 0; cut <= n; cut++)
        assert_int_equal(bt_kv_crc32c(bt_kv_crc32c(0, text, cut), text + cut, n - cut),
                         bt_kv_crc32c(0, text, n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_both_ways_agree_at_every_length_and_offset),
        cmocka_unit_test(test_it_continues),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
