#include "tools/flags.h"
#include "unit.h"

#include <string.h>

#define COUNT(...) (int) (sizeof(const char *[]){__VA_ARGS__} / sizeof(const char *))
#define READ(...) read_line(COUNT(__VA_ARGS__), (const char *const[]){__VA_ARGS__})

typedef struct options {
    const char *name, *urls[2], *words[4];
    unsigned url_count, word_count, number;
    uint64_t timeout_ms;
    bool is_json;
    unsigned read; /* values that read_all has taken */
} options_t;

static options_t o;

static int take_word(void *options, bt_tool_line_t *line)
{
    options_t *to = options;

    to->words[to->word_count++] = line->argv[line->at];
    return 0;
}

/* Takes what has a '=' in it. */
static int read_all(void *options, bt_tool_line_t *line)
{
    options_t *to = options;

    if (strcmp(line->value, "none") == 0)
        return bt_tool_refuse_value(line);
    for (to->read = 1; line->at + 1 < line->argc && strchr(line->argv[line->at + 1], '=') != NULL;
         line->at++)
        to->read++;
    return 0;
}

static const bt_tool_flag_t flags[] = {
    BT_TOOL_TEXT("--name", options_t, name),
    BT_TOOL_SWITCH("--json", options_t, is_json),
    BT_TOOL_OPTION("--number", options_t, number, .kind = BT_OPTION_UINT, .min = 1, .max = 20),
    BT_TOOL_OPTION("--timeout", options_t, timeout_ms, .kind = BT_OPTION_U64, .min = 0.1, .max = 60,
                   .scale = 1000),
    BT_TOOL_OPTION("--url", options_t, urls, .kind = BT_OPTION_TEXTS,
                   .count_offset = offsetof(options_t, url_count), .list_max = 2),
    BT_TOOL_READ("--all", read_all)};

static int read_line(int argc, const char *const *argv)
{
    static const bt_tool_syntax_t syntax = {"spec", flags, sizeof flags / sizeof flags[0],
                                            take_word};

    o = (options_t){.name = "as before"};
    return bt_tool_flags_read(&syntax, &o, argc, argv);
}

static void values_stand_behind_their_flag_or_a_sign(void **state)
{
    assert_int_equal(READ("--name", "a", "--number=7", "--timeout", "1.5", "--json"), 0);
    assert_string_equal(o.name, "a");
    assert_int_equal(o.number, 7);
    assert_int_equal(o.timeout_ms, 1500);
    assert_true(o.is_json);
    assert_int_equal(READ("--name=--json", "--name=b=c"), 0);
    assert_string_equal(o.name, "b=c");
    assert_false(o.is_json);
}

static void lists_grow_to_their_end(void **state)
{
    assert_int_equal(READ("--url", "a", "--url=b"), 0);
    assert_int_equal(o.url_count, 2);
    assert_string_equal(o.urls[1], "b");
    assert_int_equal(READ("--url", "a", "--url=b", "--url=c"), BT_TOOL_WRONG);
}

static void words_and_readers_have_the_line(void **state)
{
    assert_int_equal(READ("one", "--all", "a=1", "b=2", "two", "-", "--json"), 0);
    assert_int_equal(o.read, 2);
    assert_int_equal(o.word_count, 3);
    assert_string_equal(o.words[1], "two");
    assert_string_equal(o.words[2], "-"); /* stdin */
    assert_true(o.is_json);
}

static void nothing_wrong_is_taken(void **state)
{
    assert_int_equal(READ("--nam", "a"), BT_TOOL_WRONG);
    assert_int_equal(READ("--names=a"), BT_TOOL_WRONG);
    assert_int_equal(READ("--name"), BT_TOOL_WRONG);
    assert_string_equal(o.name, "as before");
    assert_int_equal(READ("--json=1"), BT_TOOL_WRONG);
    assert_int_equal(READ("--number", "21"), BT_TOOL_WRONG);
    assert_int_equal(READ("--number=x"), BT_TOOL_WRONG);
    assert_int_equal(READ("--number="), BT_TOOL_WRONG);
    assert_int_equal(o.number, 0);
    assert_int_equal(READ("--timeout", "nan"), BT_TOOL_WRONG);
    assert_int_equal(READ("--all", "none"), BT_TOOL_WRONG);
    assert_int_equal(READ("--number", "21", "--json"), BT_TOOL_WRONG);
    assert_false(o.is_json); /* the first mistake ends it */
}

static void without_words_there_are_only_flags(void **state)
{
    static const bt_tool_syntax_t syntax = {"spec", flags, sizeof flags / sizeof flags[0], NULL};
    const char *const words[] = {"--json", "word"};

    o = (options_t){.is_json = false};
    assert_int_equal(bt_tool_flags_read(&syntax, &o, 2, words), BT_TOOL_WRONG);
    assert_true(o.is_json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_stand_behind_their_flag_or_a_sign),
        cmocka_unit_test(lists_grow_to_their_end),
        cmocka_unit_test(words_and_readers_have_the_line),
        cmocka_unit_test(nothing_wrong_is_taken),
        cmocka_unit_test(without_words_there_are_only_flags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
