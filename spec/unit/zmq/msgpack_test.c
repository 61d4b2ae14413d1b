/* Payloads as engines' msgpack writes them, and what no engine writes. */
#include "zmq/msgpack.h"

#include "base/err.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

#define BYTES(text) ((bt_str_t){text, sizeof(text) - 1})

/* A copy of just that size, so that a sanitizer sees a byte read behind it. */
static int open_copy(bt_msgpack_t *m, bt_str_t bytes, char **copy_p)
{
    *copy_p = malloc(bytes.n > 0 ? bytes.n : 1);
    assert_non_null(*copy_p);
    memcpy(*copy_p, bytes.p, bytes.n);
    return bt_msgpack_open(m, (bt_str_t){*copy_p, bytes.n});
}

static int try_bytes(bt_str_t bytes)
{
    bt_msgpack_t m;
    char *copy;
    int rc = open_copy(&m, bytes, &copy);

    if (rc == 0)
        bt_msgpack_close(&m);
    free(copy);
    return rc;
}

static void test_members(void **state)
{
    /* {"type": "P", "dp_size": 2, "tp_size": 300, "neg": -1, "twice": 1, "twice": 2, 7: "no text"} */
    const bt_str_t bytes = BYTES("\x87\xa4type\xa1P\xa7"
                                 "dp_size\x02\xa7tp_size\xcd\x01\x2c\xa3neg\xff\xa5twice\x01\xa5"
                                 "twice\x02\x07\xa7no text");
    bt_msgpack_t m;
    uint64_t n;
    char *copy;

    assert_int_equal(open_copy(&m, bytes, &copy), 0);
    assert_true(bt_msgpack_is_map(&m));
    assert_true(bt_str_eq(bt_msgpack_text(&m, "type"), BT_STR("P")));
    assert_null(bt_msgpack_text(&m, "dp_size").p);
    assert_null(bt_msgpack_text(&m, "absent").p);
    assert_int_equal(bt_msgpack_uint(&m, "dp_size", &n), 0);
    assert_int_equal(n, 2);
    assert_int_equal(bt_msgpack_uint(&m, "tp_size", &n), 0);
    assert_int_equal(n, 300);
    assert_int_equal(bt_msgpack_uint(&m, "twice", &n), 0);
    assert_int_equal(n, 2);
    assert_int_equal(bt_msgpack_uint(&m, "neg", &n), BT_E_INVAL);
    assert_int_equal(bt_msgpack_uint(&m, "type", &n), BT_E_INVAL);
    assert_int_equal(bt_msgpack_uint(&m, "absent", &n), BT_E_AGAIN);
    bt_msgpack_close(&m);
    free(copy);
}

static void test_every_type(void **state)
{
    static const bt_str_t all[] = {
        BYTES("\x00"),
        BYTES("\x7f"),
        BYTES("\x80"),
        BYTES("\x90"),
        BYTES("\xa0"),
        BYTES("\xc0"),
        BYTES("\xc2"),
        BYTES("\xc3"),
        BYTES("\xc4\x01x"),
        BYTES("\xc5\x00\x01x"),
        BYTES("\xc6\x00\x00\x00\x01x"),
        BYTES("\xc7\x01\x05x"),
        BYTES("\xc8\x00\x01\x05x"),
        BYTES("\xc9\x00\x00\x00\x01\x05x"),
        BYTES("\xca\x00\x00\x00\x00"),
        BYTES("\xcb\x00\x00\x00\x00\x00\x00\x00\x00"),
        BYTES("\xcc\x01"),
        BYTES("\xcd\x00\x01"),
        BYTES("\xce\x00\x00\x00\x01"),
        BYTES("\xcf\x00\x00\x00\x00\x00\x00\x00\x01"),
        BYTES("\xd0\x01"),
        BYTES("\xd1\x00\x01"),
        BYTES("\xd2\x00\x00\x00\x01"),
        BYTES("\xd3\x00\x00\x00\x00\x00\x00\x00\x01"),
        BYTES("\xd4\x05x"),
        BYTES("\xd5\x05xx"),
        BYTES("\xd6\x05xxxx"),
        BYTES("\xd7\x05xxxxxxxx"),
        BYTES("\xd8\x05xxxxxxxxxxxxxxxx"),
        BYTES("\xd9\x01x"),
        BYTES("\xda\x00\x01x"),
        BYTES("\xdb\x00\x00\x00\x01x"),
        BYTES("\xdc\x00\x01\x01"),
        BYTES("\xdd\x00\x00\x00\x01\x01"),
        BYTES("\xde\x00\x01\x01\x01"),
        BYTES("\xdf\x00\x00\x00\x01\x01\x01"),
        BYTES("\xe0"),
        BYTES("\xff"),
        BYTES("\x91\x01"),
        BYTES("\x81\xa1k\x91\x81\xa1k\x01"),
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        assert_int_equal(try_bytes(all[i]), 0);
        for (size_t n = 0; n < all[i].n; n++) /* each is whole only at its end */
            assert_int_equal(try_bytes((bt_str_t){all[i].p, n}), BT_E_INVAL);
        char more[64];
        memcpy(more, all[i].p, all[i].n);
        more[all[i].n] = '\0';
        assert_int_equal(try_bytes((bt_str_t){more, all[i].n + 1}), BT_E_INVAL);
    }
    assert_int_equal(try_bytes(BYTES("\xc1")), BT_E_INVAL);
}

/* Headers that promise gigabytes: refused for what they are, not for what malloc says of them. */
static void test_promises(void **state)
{
    static const bt_str_t all[] = {BYTES("\xdd\xff\xff\xff\xff\x01"),
                                   BYTES("\xdf\xff\xff\xff\xff\x01"),
                                   BYTES("\xdd\x10\x00\x00\x00"),
                                   BYTES("\xdb\xff\xff\xff\xff"),
                                   BYTES("\xc6\xff\xff\xff\xff"),
                                   BYTES("\xc9\xff\xff\xff\xff\x01"),
                                   BYTES("\x92\x01\xdd\x00\x00\x00\x02\x01")};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        assert_int_equal(try_bytes(all[i]), BT_E_INVAL);
}

static void test_depth(void **state)
{
    char deep[64];

    memset(deep, '\x91', sizeof(deep));
    deep[15] = '\x01';
    assert_int_equal(try_bytes((bt_str_t){deep, 16}), 0);
    deep[15] = '\x91';
    deep[16] = '\x01';
    assert_int_equal(try_bytes((bt_str_t){deep, 17}), BT_E_LIMIT);
}

/* Noise: each is taken or refused, and nothing else happens. */
static void test_noise(void **state)
{
    char noise[64];
    unsigned taken = 0;

    srand(7);
    for (unsigned round = 0; round < 20000; round++) {
        const size_t n = (size_t) rand() % sizeof(noise);
        for (size_t i = 0; i < n; i++)
            noise[i] = (char) rand();
        taken += try_bytes((bt_str_t){noise, n}) == 0;
    }
    assert_true(taken > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members),  cmocka_unit_test(test_every_type),
        cmocka_unit_test(test_promises), cmocka_unit_test(test_depth),
        cmocka_unit_test(test_noise),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
