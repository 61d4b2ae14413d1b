/* Ids that are read many at a time are what one after the other gives: next_id is how the grammar was read before. */
#include "script/shared/prompt_ids.h"

#include "base/rand.h"
#include "script_fixture.h"

#define TEXT_MAX (1u << 20)
#define IDS_MAX (TEXT_MAX / 2)

static struct {
    char text[TEXT_MAX];
    size_t n;
    uint32_t expected[IDS_MAX];
    unsigned count;
} s;

static bool next_id(bt_str_t list, size_t *at, uint32_t *id_p)
{
    const size_t gap_end = *at + 256 < list.n ? *at + 256 : list.n;
    uint64_t id = 0;
    size_t i = *at, start;

    while (i < gap_end && (bt_str_is_blank(list.p[i]) || list.p[i] == ','))
        i++;
    for (start = i; i < list.n && list.p[i] >= '0' && list.p[i] <= '9' && id <= UINT32_MAX; i++)
        id = id * 10 + (unsigned) (list.p[i] - '0');
    if (i == start || id > UINT32_MAX)
        return false;
    *id_p = (uint32_t) id;
    *at = i;
    return true;
}

static bt_str_t text(void)
{
    return (bt_str_t){s.text, s.n};
}

static void put(const char *piece)
{
    const size_t n = strlen(piece);

    memcpy(s.text + s.n, piece, n);
    s.n += n;
}

static void expect_ids(void)
{
    size_t at = 1;

    for (s.count = 0; next_id(text(), &at, &s.expected[s.count]);)
        s.count++;
}

static bt_prompt_ids_t *open_new(void)
{
    return bt_prompt_ids_of(text(), (bt_prompt_key_t){1, bt_prompt_number()});
}

/* In pieces of any size. The text stands at the very end of its memory: nobody may read behind it. */
static void check(void)
{
    char *exact = malloc(s.n);
    const bt_str_t list = {exact, s.n};
    const uint32_t *ids = NULL;
    unsigned wanted = 0, count = 0;

    assert_non_null(exact);
    memcpy(exact, s.text, s.n);
    expect_ids();
    assert_int_equal(bt_prompt_is_ids(list), s.count > 0);
    bt_prompt_ids_t *own = bt_prompt_ids_of(list, (bt_prompt_key_t){1, bt_prompt_number()});
    assert_true((own != NULL) == (s.count > 0));
    while (own != NULL && wanted < s.count + 2) {
        wanted += 1 + (unsigned) bt_rand_below(s.count + 1);
        count = bt_prompt_ids_read(own, wanted, &ids);
        assert_true(count >= wanted || count == s.count);
        assert_true(count <= s.count);
        assert_memory_equal(ids, s.expected, count * sizeof(ids[0]));
    }
    assert_int_equal(count, s.count);
    free(exact);
}

static void put_id(unsigned digits)
{
    char piece[24];
    uint64_t number = 0;

    for (unsigned i = 0; i < digits; i++)
        number = number * 10 + (i == 0) + bt_rand_below(i == 0 ? 9 : 10);
    snprintf(piece, sizeof(piece), "%llu",
             (unsigned long long) (digits == 1 ? number % 10 : number));
    put(piece);
}

/* Spaced as people and programs do, and what is no id among them, seldom or often. */
static void any_list(void **state)
{
    static const char *const odd[] = {
        "1.5",        "-3",        "1e5",   "4294967296", "18446744073709551616",
        "4294967295", "\"7\"",     "[1,2]", "null",       "\"\\u0031\"",
        "00012",      "3E1",       "1 2",   "{\"a\":1}",  "99999999",
        "100000000",  "123456789", "0",     "\xc3\xa9",   "7/",
        "8:"};
    static const char *const gaps[] = {",", ", ", " ,", ",\n        ", "\r\n,\t", " , "};

    bt_rand_seed(3);
    for (unsigned round = 0; round < 3000; round++) {
        const uint64_t ids = 1 + bt_rand_below(round % 100 == 0 ? 20000 : 150);
        const uint64_t rare = 1 + bt_rand_below(ids);
        const unsigned digits = 1 + (unsigned) bt_rand_below(9);
        const char *gap = gaps[bt_rand_below(6)];
        s.n = 0;
        put("[");
        for (uint64_t i = 0; i < ids; i++) {
            if (i > 0)
                put(bt_rand_below(50) == 0 ? gaps[bt_rand_below(6)] : gap);
            if (bt_rand_below(4 * rare) == 0)
                put(odd[bt_rand_below(sizeof(odd) / sizeof(odd[0]))]);
            else
                put_id(round % 2 == 0 ? digits : 1 + (unsigned) bt_rand_below(digits));
        }
        put(round % 3 == 0 ? " ]" : round % 3 == 1 ? "]" : "");
        check();
    }
}

/* Each length of an id and of a gap, at each place of a block. */
static void every_place(void **state)
{
    for (unsigned before = 0; before < 70; before++)
        for (unsigned digits = 1; digits < 13; digits++)
            for (unsigned gap = 0; gap < 300; gap += gap < 140 ? 23 : 29) {
                s.n = 0;
                put("[");
                memset(s.text + s.n, ' ', before);
                s.n += before;
                for (unsigned i = 0; i < 40; i++) {
                    put_id(i == 20 ? digits : 1 + i % 6);
                    put(",");
                    memset(s.text + s.n, '\n', i == 21 ? gap : 0);
                    s.n += i == 21 ? gap : 0;
                }
                put("1]");
                check();
            }
}

/* Prompts in one request are no list of ids, nor is anything else. */
static void no_ids(void **state)
{
    static const char *const none[] = {"",
                                       "[",
                                       "[]",
                                       "[ ]",
                                       "\"[1,2]\"",
                                       "1",
                                       "[[1,2],3]",
                                       "[\"a\",\"b\"]",
                                       "[-1,2]",
                                       "[.5]",
                                       "{\"a\":1}",
                                       "[null]",
                                       "[4294967296,1]",
                                       "null"};

    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        assert_false(bt_prompt_is_ids(bt_str(none[i])));
        assert_null(bt_prompt_ids_of(bt_str(none[i]), (bt_prompt_key_t){1, bt_prompt_number()}));
    }
    assert_false(bt_prompt_is_ids(BT_STR_NULL));
}

static void many(unsigned count, unsigned first)
{
    char piece[16];

    s.n = 0;
    put("[");
    for (unsigned i = 0; i < count; i++) {
        snprintf(piece, sizeof(piece), i == 0 ? "%u" : ",%u", first + i % 10);
        put(piece);
    }
    put("]");
}

/* What has been read is not read again for the same key: the bytes are others by now, and nobody sees it. */
static void read_once(void **state)
{
    const bt_prompt_key_t key = {1, bt_prompt_number()};
    const uint32_t *ids;

    many(20000, 10);
    bt_prompt_ids_t *own = bt_prompt_ids_of(text(), key);
    const unsigned count = bt_prompt_ids_read(own, 100, &ids);
    assert_in_range(count, 100, 8192); /* nor is all that nobody asked for */
    s.text[1] = s.text[2] = '9';
    assert_ptr_equal(bt_prompt_ids_of(text(), key), own);
    assert_int_equal(bt_prompt_ids_read(own, 100, &ids), count);
    assert_int_equal(ids[0], 10);
    assert_int_equal(bt_prompt_ids_read(own, 30000, &ids), 20000);
    assert_int_equal(ids[0], 10);
    assert_int_equal(ids[19999], 19);
    /* Another request's at the same place is another prompt. */
    assert_ptr_equal(open_new(), own);
    assert_int_equal(bt_prompt_ids_read(own, 1, &ids) >= 1, 1);
    assert_int_equal(ids[0], 99);
    /* So is a part of it. */
    assert_non_null(bt_prompt_ids_of((bt_str_t){s.text, 7}, key));
    assert_int_equal(bt_prompt_ids_read(own, 100, &ids), 2);
}

static void no_more_than_all(void **state)
{
    const size_t n = 2 * ((size_t) BT_PROMPT_IDS_MAX + 10000) + 1;
    char *list = malloc(n);
    const uint32_t *ids;

    assert_non_null(list);
    list[0] = '[';
    for (size_t i = 1; i < n; i++)
        list[i] = i % 2 == 1 ? '1' : ',';
    list[n - 1] = ']';
    bt_prompt_ids_t *own =
        bt_prompt_ids_of((bt_str_t){list, n}, (bt_prompt_key_t){1, bt_prompt_number()});
    assert_int_equal(bt_prompt_ids_read(own, UINT32_MAX, &ids), BT_PROMPT_IDS_MAX);
    assert_int_equal(bt_prompt_ids_read(own, UINT32_MAX, &ids), BT_PROMPT_IDS_MAX);
    assert_int_equal(ids[BT_PROMPT_IDS_MAX - 1], 1);
    free(list);
    bt_prompt_ids_thread_fini();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_list),  cmocka_unit_test(every_place),      cmocka_unit_test(no_ids),
        cmocka_unit_test(read_once), cmocka_unit_test(no_more_than_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
