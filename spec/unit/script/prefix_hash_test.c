#include "script/shared/prefix_hash.h"
#include "script_fixture.h"

static void xxh3_is_the_real_one(void **state)
{
    assert_int_equal(bt_hash64(BT_STR_NULL, 0),
                     0x2d06800538d394c2u); /* of the empty string, from its specification */
    assert_int_not_equal(bt_hash64(BT_STR("a"), 0), bt_hash64(BT_STR("a"), 1));
}

static uint64_t of_bytes(const void *p, size_t n)
{
    return bt_hash64((bt_str_t){p, n}, 1337);
}

static unsigned chain(bt_str_t prompt, unsigned block_tokens, uint64_t *hashes, unsigned max)
{
    bt_prompt_ids_t *ids = bt_prompt_ids_of(prompt, (bt_prompt_key_t){1, bt_prompt_number()});
    bt_prefix_chain_t c;

    bt_prefix_chain_begin(&c, prompt, ids, block_tokens);
    return bt_prefix_chain_more(&c, hashes, 0, max);
}

/* Two blocks of four ids, little-endian, the second over the first's hash: as Dynamo and Mooncake number them. */
static void ids_make_the_chain_of_the_engines(void **state)
{
    static const unsigned char first[16] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 1, 0, 0};
    static const unsigned char second[16] = {5, 0, 0, 0, 6,    0,    0,    0,
                                             7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff};
    uint64_t hashes[4] = {0}, pair[2] = {of_bytes(first, 16), of_bytes(second, 16)};

    assert_int_equal(chain(BT_STR("[1, 2,3 ,256,5,6,7,4294967295,9]"), 4, hashes, 4), 2);
    assert_int_equal(hashes[0], of_bytes(first, 16));
    assert_int_equal(hashes[1], of_bytes(pair, 16)); /* the machine is little-endian */
}

static void text_goes_by_four_bytes_a_token_without_quotes(void **state)
{
    uint64_t a[4], b[4];

    assert_int_equal(chain(BT_STR("\"0123456789abcdef0123456789abcde\""), 4, a, 4), 1);
    assert_int_equal(a[0], of_bytes("0123456789abcdef", 16));
    assert_int_equal(chain(BT_STR("\"0123456789abcdef0123456789abcdef\""), 4, b, 4), 2);
    assert_int_equal(a[0], b[0]);
    assert_int_equal(chain(BT_STR("\"0123456789abcdefX123456789abcdef\""), 4, a, 4), 2);
    assert_int_not_equal(a[1], b[1]);
    assert_int_equal(chain(BT_STR("\"X123456789abcdef0123456789abcdef\""), 4, a, 4), 2);
    assert_int_not_equal(a[1], b[1]); /* the same block after another one */
}

/* Megabytes of white space are no ids: nobody looks for the end of them on a loop. */
static void ids_far_apart(void **state)
{
    const size_t size = 8192;
    char *text = malloc(size);
    uint64_t a[1];

    for (unsigned far = 0; far < 2; far++) {
        memset(text, ' ', size);
        text[0] = '[';
        for (unsigned i = 0; i < 4; i++)
            memcpy(text + 1 + i * (far != 0 ? 300 : 250), i < 3 ? "1," : "1]", 2);
        assert_int_equal(chain((bt_str_t){text, size}, 4, a, 1), far != 0 ? 0 : 1);
    }
    free(text);
}

static void odd_prompts(void **state)
{
    static const char *const none[] = {"", "\"", "\"\"", "[]", "[", "null", "[1,2,3]", "\"short\""};
    uint64_t a[2], b[2];

    assert_int_equal(chain(BT_STR_NULL, 4, a, 2), 0);
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        assert_int_equal(chain(bt_str(none[i]), 4, a, 2), 0);
    assert_int_equal(chain(BT_STR("[1,2,3,4,5,6]"), 1, a, 2), 2); /* no more than asked */
    assert_int_equal(chain(BT_STR("[4294967296,4294967296,1]"), 1, a, 2), 2); /* no ids: bytes */
    assert_int_equal(chain(BT_STR("[[1,2,3,4],[5]]"), 2, a, 1), 1);
    assert_int_equal(chain(BT_STR("[{\"role\":\"user\"}]"), 2, b, 1), 1);
    assert_int_not_equal(a[0], b[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(xxh3_is_the_real_one),
        cmocka_unit_test(ids_make_the_chain_of_the_engines),
        cmocka_unit_test(text_goes_by_four_bytes_a_token_without_quotes),
        cmocka_unit_test(ids_far_apart),
        cmocka_unit_test(odd_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
