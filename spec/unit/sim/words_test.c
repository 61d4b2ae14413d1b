/* The formula of the answer text, written out a second time from examples/sim/README.md. */
#include "expect.h"
#include "unit.h"
#include "words.h"

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* Byte by byte, so that neither alignment nor the padding can hide. */
static uint64_t kv_of(const char *p, size_t n)
{
    uint64_t s = UINT64_C(0x9E3779B97F4A7C15), word = 0;

    for (size_t i = 0; i < n; i++) {
        word |= (uint64_t) (unsigned char) p[i] << (8 * (i % 8));
        if (i % 8 == 7 || i + 1 == n) {
            s = (s ^ word) * UINT64_C(0xFF51AFD7ED558CCD);
            s ^= s >> 32;
            word = 0;
        }
    }
    return mix(s ^ (n * UINT64_C(0x9E3779B97F4A7C15)));
}

static void test_kv_is_the_documented_one(void **state)
{
    char text[40];

    for (size_t n = 0; n < sizeof(text); n++) {
        text[n] = (char) (n * 37 + 200);
        assert_int_equal(sim_kv((bt_str_t){text, n}), kv_of(text, n));
    }
}

static void test_words_are_the_documented_ones(void **state)
{
    static const char c[] = "bcdfghjklmnprstz", v[] = "aeiouaei";
    uint64_t kv = kv_of("hello", 5);
    char word[SIM_WORD_CHARS];

    for (unsigned i = 0; i < 20; i++) {
        uint64_t x = mix(kv ^ mix(7 + 1) ^ ((i + 1) * UINT64_C(0xD6E8FEB86659FD93)));
        char right[SIM_WORD_CHARS] = {c[x % 16], v[x / 16 % 8], c[x / 128 % 16], v[x / 2048 % 8],
                                      c[x / 16384 % 16]};
        sim_word(kv, 7, i, word);
        assert_memory_equal(word, right, SIM_WORD_CHARS);
    }
}

static void test_text_is_words_and_blanks(void **state)
{
    bt_text_t t;

    bt_text_init(&t);
    sim_words(&t, 1, 0, 3);
    assert_int_equal(t.len, 3 * SIM_WORD_CHARS + 2);
    assert_int_equal(t.data[5], ' ');
    assert_int_equal(t.data[11], ' ');
    bt_text_fini(&t);
}

static void test_a_longer_prompt_is_another_prompt(void **state)
{
    assert_true(sim_kv(BT_STR("ab")) != sim_kv((bt_str_t){"ab\0", 3}));
    assert_true(sim_kv(BT_STR("")) != sim_kv((bt_str_t){"\0", 1}));
    assert_int_equal(sim_tokens_of_bytes(0), 0);
    assert_int_equal(sim_tokens_of_bytes(1), 1);
    assert_int_equal(sim_tokens_of_bytes(8), 2);
}

static void test_expect_knows_chat_and_ids(void **state)
{
    sim_options_t o = {.prompt = "hi", .system = "be kind", .expect_chat = true, .max_tokens = 4};
    bt_text_t got, want;

    bt_text_init(&got);
    bt_text_init(&want);
    sim_expect(&o, &got);
    sim_words(&want, kv_of("system\nbe kind\nuser\nhi\n", 23), 0, 4);
    assert_true(bt_str_eq(bt_text_str(&got), bt_text_str(&want)));
    got.len = want.len = 0;
    o = (sim_options_t){.ids = "1,258", .max_tokens = 2};
    sim_expect(&o, &got);
    sim_words(&want, kv_of("\1\0\0\0\2\1\0\0", 8), 0, 2);
    assert_true(bt_str_eq(bt_text_str(&got), bt_text_str(&want)));
    bt_text_fini(&got);
    bt_text_fini(&want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_is_the_documented_one),
        cmocka_unit_test(test_words_are_the_documented_ones),
        cmocka_unit_test(test_text_is_words_and_blanks),
        cmocka_unit_test(test_a_longer_prompt_is_another_prompt),
        cmocka_unit_test(test_expect_knows_chat_and_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
