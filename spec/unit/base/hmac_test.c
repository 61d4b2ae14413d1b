/* RFC 4231's cases, and lengths around the blocks of SHA-256: in one piece and in many the same. */
#include "base/hmac.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>

static void expect(const char *hex, bt_str_t key, const bt_str_t *pieces, unsigned count)
{
    uint8_t out[BT_HMAC_BYTES];
    char text[2 * BT_HMAC_BYTES + 1];

    bt_hmac_sha256(key, pieces, count, out);
    for (unsigned i = 0; i < sizeof(out); i++)
        snprintf(text + (size_t) 2 * i, 3, "%02x", out[i]);
    assert_string_equal(text, hex);
}

static void test_rfc_4231(void **state)
{
    char key[131], data[50];

    memset(key, 0x0b, 20);
    expect("b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7", (bt_str_t){key, 20},
           &BT_STR("Hi There"), 1);
    expect("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843", BT_STR("Jefe"),
           (bt_str_t[]){BT_STR("what do ya want "), BT_STR(""), BT_STR("for nothing?")}, 3);
    memset(key, 0xaa, sizeof(key));
    memset(data, 0xdd, sizeof(data));
    expect("773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe", (bt_str_t){key, 20},
           &(bt_str_t){data, sizeof(data)}, 1);
    expect("60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
           (bt_str_t){key, sizeof(key)},
           &BT_STR("Test Using Larger Than Block-Size Key - Hash Key First"), 1);
}

static void test_pieces(void **state)
{
    char data[200];

    for (unsigned i = 0; i < sizeof(data); i++)
        data[i] = (char) (i * 7);
    for (size_t n = 0; n <= sizeof(data); n++) {
        uint8_t whole[BT_HMAC_BYTES], parts[BT_HMAC_BYTES];
        bt_str_t pieces[sizeof(data)];
        for (size_t i = 0; i < n; i++)
            pieces[i] = (bt_str_t){data + i, 1};
        bt_hmac_sha256(BT_STR("k"), &(bt_str_t){data, n}, 1, whole);
        bt_hmac_sha256(BT_STR("k"), pieces, (unsigned) n, parts);
        assert_memory_equal(whole, parts, sizeof(whole));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rfc_4231),
        cmocka_unit_test(test_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
