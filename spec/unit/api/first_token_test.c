/* Which first tokens may go out alone, and where they end in what is said again. */
#include "api/first_token.h"

#include "base/err.h"
#include "unit.h"

/* ---- requests ---- */

static const char *refusal(enum bt_route route, const char *text)
{
    bt_arena_t arena;
    bt_intent_t intent;
    const char *why, *refused;

    bt_arena_init(&arena);
    assert_int_equal(bt_intent_read(&intent, &arena, route, bt_str(text), &why), 0);
    refused = bt_first_token_refusal(&intent);
    bt_arena_fini(&arena);
    return refused;
}

static void test_requests(void **state)
{
    assert_null(refusal(BT_ROUTE_COMPLETIONS, "{\"prompt\":\"a\",\"stream\":true}"));
    assert_null(
        refusal(BT_ROUTE_COMPLETIONS, "{\"prompt\":[1,2],\"stream\":true,\"detokenize\":true}"));
    assert_null(refusal(BT_ROUTE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
                                       "\"stream\":true,\"stream_options\":{\"include_usage\":"
                                       "true}}"));
    assert_non_null(refusal(BT_ROUTE_COMPLETIONS, "{\"prompt\":\"a\"}"));
    assert_non_null(refusal(BT_ROUTE_COMPLETIONS, "{\"stream\":true}"));
    assert_non_null(refusal(BT_ROUTE_COMPLETIONS, "{\"prompt\":[\"a\",\"b\"],\"stream\":true}"));
    assert_non_null(
        refusal(BT_ROUTE_COMPLETIONS, "{\"prompt\":\"a\",\"stream\":true,\"logprobs\":1}"));
    assert_non_null(
        refusal(BT_ROUTE_COMPLETIONS, "{\"prompt\":\"a\",\"stream\":true,\"detokenize\":false}"));
    assert_non_null(refusal(BT_ROUTE_COMPLETIONS,
                            "{\"prompt\":\"a\",\"stream\":true,\"stream_options\":{\"include_"
                            "usage\":true,\"continuous_usage_stats\":true}}"));
}

/* ---- texts ---- */

static void test_whole(void **state)
{
    static const char *const whole[] = {"a", "Hello", " the", "\xe6\x97\xa5",
                                        "'", "'s",    " not", "n",
                                        ".", "  x",   " n.",  "\xf0\x9f\x98\x80"};
    static const char *const parts[] = {"",
                                        " ",
                                        "a ",
                                        "\n",
                                        "\t",
                                        " '",
                                        " 've",
                                        " n",
                                        "x n'",
                                        "a 's",
                                        "\xef\xbf\xbd",
                                        "a\xef\xbf\xbd"
                                        "b"};

    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++)
        assert_true(bt_first_token_is_whole(bt_str(whole[i])));
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        assert_false(bt_first_token_is_whole(bt_str(parts[i])));
}

/* ---- cutting ---- */

static long cut(const char *value, const char *left, const char *rest)
{
    bt_str_t over = bt_str(left);
    const long n = bt_first_token_cut(bt_str(value), &over);

    if (n >= 0) {
        assert_int_equal(over.n, strlen(rest));
        assert_memory_equal(over.p, rest, over.n);
    }
    return n;
}

static void test_cut(void **state)
{
    assert_int_equal(cut("\"Hello\"", "Hel", ""), 3);
    assert_int_equal(cut("\"Hel\"", "Hel", ""), 3);
    assert_int_equal(cut("\"He\"", "Hel", "l"), 2);
    assert_int_equal(cut("\"\"", "Hel", "Hel"), 0);
    assert_int_equal(cut("\"Hello\"", "", ""), 0);
    assert_int_equal(cut("\"\xe6\x97\xa5x\"", "\xe6\x97\xa5", ""), 3);
    assert_int_equal(cut("\"\\u65E5x\"", "\xe6\x97\xa5", ""), 6);
    assert_int_equal(cut("\"\\ud83d\\ude00\\ud83d\\ude00\"", "\xf0\x9f\x98\x80", ""), 12);
    assert_int_equal(cut("\"\\n\\\"\\\\\\/b\"", "\n\"\\/", ""), 8);
    assert_int_equal(cut("\"a\\u0000b\"", "a", ""), 1);
}

static void test_another_text(void **state)
{
    assert_int_equal(cut("\"Bon\"", "Hel", NULL), BT_E_INVAL);
    assert_int_equal(cut("\"Hex\"", "Hel", NULL), BT_E_INVAL);
    assert_int_equal(cut("\"\\u65e6\"", "\xe6\x97\xa5", NULL), BT_E_INVAL);
    assert_int_equal(cut("\"\\ud83d\"", "\xf0\x9f\x98\x80", NULL), BT_E_INVAL); /* half of a pair */
    assert_int_equal(cut("null", "Hel", NULL), BT_E_INVAL);
    assert_int_equal(cut("\"", "Hel", NULL), BT_E_INVAL);
    assert_int_equal(cut("\"\\u6\"", "Hel", NULL), BT_E_INVAL);
    assert_int_equal(cut("\"\\\"", "Hel", NULL), BT_E_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_another_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
