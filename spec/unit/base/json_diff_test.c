/* JSON against jansson: the corpus, and the corpus damaged in a repeatable way. The fuzz target
 * does the same without end; this keeps a piece of it in every test run.
 */
#include "base/rand.h"
#include "fuzz/json_oracle.h"
#include "unit.h"

#include "base/json_corpus.h"

static void test_corpus(void **state)
{
    for (size_t i = 0; i < JSON_GOOD_COUNT; i++)
        assert_int_not_equal(json_oracle_check(json_good[i]), JSON_BOTH_REFUSE);
    for (size_t i = 0; i < JSON_BAD_COUNT; i++)
        assert_int_equal(json_oracle_check(json_bad[i].text), JSON_BOTH_REFUSE);
}

static size_t splice_in(char *text, size_t n, size_t max, bt_str_t piece, size_t at)
{
    if (n + piece.n > max)
        return n;
    memmove(text + at + piece.n, text + at, n - at);
    memcpy(text + at, piece.p, piece.n);
    return n + piece.n;
}

static size_t damage(char *text, size_t n, size_t max)
{
    static const char alphabet[] = "{}[],:\"\\ntfu0123456789eE+-. \n\x01\xc3\xa9\xe4\xff\xed\xa0";
    size_t at = bt_rand_below(n + 1);

    switch (bt_rand_below(4)) {
    case 0: /* a byte more */
        return splice_in(text, n, max,
                         (bt_str_t){&alphabet[bt_rand_below(sizeof(alphabet) - 1)], 1}, at);
    case 1: /* a whole text in the middle of another: often well-formed */
        return splice_in(text, n, max, json_good[bt_rand_below(JSON_GOOD_COUNT)], at);
    case 2: /* a byte less */
        if (at == n)
            return n;
        memmove(text + at, text + at + 1, n - at - 1);
        return n - 1;
    default: /* another byte */
        if (at < n)
            text[at] = alphabet[bt_rand_below(sizeof(alphabet) - 1)];
        return n;
    }
}

static void test_damaged_corpus(void **state)
{
    char text[1024];
    unsigned verdicts[3] = {0};
    bt_rand_seed(2024);
    for (unsigned i = 0; i < 40000; i++) {
        bt_str_t base = json_good[bt_rand_below(JSON_GOOD_COUNT)];
        size_t n = base.n;
        memcpy(text, base.p, n);
        for (uint64_t edits = 1 + bt_rand_below(4); edits > 0; edits--)
            n = damage(text, n, sizeof(text));
        verdicts[json_oracle_check((bt_str_t){text, n})]++;
    }
    assert_true(verdicts[JSON_BOTH_ACCEPT] > 2000);
    assert_true(verdicts[JSON_BOTH_REFUSE] > 10000);
    assert_true(verdicts[JSON_NOT_COMPARED] < 4000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corpus),
        cmocka_unit_test(test_damaged_corpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
