/* Chunk framing: every cut, and everything that is not framing. */
#include "http/chunk.h"

#include "base/err.h"
#include "unit.h"

/* Decodes `wire` cut at a and b; the result of the last call, data in out, *used_p bytes taken. */
static int decode(bt_str_t wire, size_t a, size_t b, char *out, size_t *len_p, size_t *used_p)
{
    size_t cuts[4] = {0, a, b, wire.n};
    bt_chunk_t chunk;
    bt_str_t data;
    int rc = BT_CHUNK_MORE;

    bt_chunk_init(&chunk);
    *len_p = *used_p = 0;
    for (int i = 0; i < 3; i++) {
        bt_str_t piece = {wire.p + cuts[i], cuts[i + 1] - cuts[i]};
        size_t at = 0;
        while ((rc = bt_chunk_next(&chunk, piece, &at, &data)) == BT_CHUNK_DATA) {
            memcpy(out + *len_p, data.p, data.n);
            *len_p += data.n;
        }
        *used_p += at;
        if (rc != BT_CHUNK_MORE)
            break;
    }
    return rc;
}

static void test_good_body_at_every_pair_of_cuts(void **state)
{
    bt_str_t wire = BT_STR("4\r\nWiki\r\n0C\r\nplain chunks\r\n00a;x=\"y "
                           "z\"\r\nabc\r\nefghi\r\n0\r\nX-Sum: 1\r\nY:\r\n\r\nEXTRA");
    char out[64];
    size_t len, used;

    for (size_t a = 0; a <= wire.n; a++) {
        for (size_t b = a; b <= wire.n; b++) {
            assert_int_equal(decode(wire, a, b, out, &len, &used), BT_CHUNK_END);
            assert_int_equal(len, 26);
            assert_memory_equal(out, "Wikiplain chunksabc\r\nefghi", 26);
            assert_true(used == wire.n - 5);
        }
    }
}

static void test_malformed(void **state)
{
    static const char *const wires[] = {
        "\r\n",
        "g\r\n",
        " 4\r\nWiki\r\n",
        "4 \r\nWiki\r\n",
        "+4\r\nWiki\r\n",
        "0x4\r\nWiki\r\n",
        "4\nWiki\r\n",
        "4\rXWiki\r\n",
        "4\r\nWikiX\r\n",
        "4\r\nWiki\n",
        "4\r\nWiki\rX",
        "-1\r\n",
        ";x\r\n",
        "4;x\nWiki\r\n",
        "4;\x01\r\nWiki\r\n",
        "0\r\nA: b\n\r\n",
        "0\r\n: b\r\n\r\n",
        "0\r\n a\r\n\r\n",
        "0\r\nA: \x7f\r\n",
        "0\r\n\rX",
        "1000000000000000\r\n",
    };
    char out[64];
    size_t len, used;

    for (size_t i = 0; i < sizeof(wires) / sizeof(*wires); i++) {
        bt_str_t wire = bt_str(wires[i]);
        for (size_t cut = 0; cut <= wire.n; cut++) {
            if (decode(wire, cut, cut, out, &len, &used) != BT_E_HTTP)
                fail_msg("accepted: %s", wires[i]);
        }
    }
}

static void test_overhead_is_bounded(void **state)
{
    static char wire[3 * BT_CHUNK_OVERHEAD_MAX];
    char out[8];
    size_t len, used;

    memset(wire, 'x', sizeof(wire));
    memcpy(wire, "1;", 2);
    assert_int_equal(decode((bt_str_t){wire, sizeof(wire)}, 0, 0, out, &len, &used), BT_E_HTTP);
    assert_int_equal(used, BT_CHUNK_OVERHEAD_MAX + 1);
    memcpy(wire, "0\r\n", 3);
    for (size_t at = 3; at + 8 <= sizeof(wire); at += 8)
        memcpy(wire + at, "a: bcd\r\n", 8);
    assert_int_equal(decode((bt_str_t){wire, sizeof(wire)}, 0, 0, out, &len, &used), BT_E_HTTP);
    /* but the data's many framings are not added up */
    bt_chunk_t chunk;
    bt_str_t data;
    bt_chunk_init(&chunk);
    for (int i = 0; i < BT_CHUNK_OVERHEAD_MAX; i++) {
        size_t at = 0;
        assert_int_equal(bt_chunk_next(&chunk, BT_STR("1\r\nx\r\n"), &at, &data), BT_CHUNK_DATA);
        assert_int_equal(bt_chunk_next(&chunk, BT_STR("1\r\nx\r\n"), &at, &data), BT_CHUNK_MORE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_body_at_every_pair_of_cuts),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_overhead_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
