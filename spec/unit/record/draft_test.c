#include "record/draft.h"
#include "unit.h"

static void becomes(const bt_record_draft_t *d, const char *line)
{
    bt_text_t out;

    bt_text_init(&out);
    bt_text_puts(&out, "> ");
    bt_record_draft_render(bt_record_draft_str(d), &out);
    assert_false(out.failed);
    assert_string_equal(out.data + 2, line);
    bt_text_fini(&out);
}

static void members(void **state)
{
    bt_record_draft_t d = {.data = NULL};

    becomes(&d, "");
    bt_record_draft_put(&d, BT_STR("{\"n\":"), BT_DRAFT_U64, UINT64_MAX);
    bt_record_draft_put(&d, BT_STR("\"ms\":"), BT_DRAFT_COMMA | BT_DRAFT_MS, 1001);
    bt_record_draft_put(&d, BT_STR(",\"whole\":"), BT_DRAFT_MS, 31000);
    bt_record_draft_put(&d, BT_STR(",\"short\":"), BT_DRAFT_MS, 250);
    bt_record_draft_put(&d, BT_STR(",\"list\":["), BT_DRAFT_NOTHING, 0);
    for (int i = 0; i < 2; i++)
        bt_record_draft_put(&d, BT_STR(""), BT_DRAFT_COMMA | BT_DRAFT_U64, (uint64_t) i);
    bt_record_draft_put_bytes(&d, BT_STR("],\"raw\":"), BT_DRAFT_RAW, BT_STR("{}"), 0);
    bt_record_draft_put_bytes(&d, BT_STR("}"), BT_DRAFT_RAW, BT_STR_NULL, 0);
    for (int i = 0; i < 2; i++) /* it is there for the next one, too */
        becomes(&d, "{\"n\":18446744073709551615,\"ms\":1.001,\"whole\":31,\"short\":0.25,"
                    "\"list\":[0,1],\"raw\":{}}");
    bt_record_draft_fini(&d);
}

static void text_is_quoted_and_cut(void **state)
{
    bt_record_draft_t d = {.data = NULL};

    bt_record_draft_put_text(&d, BT_STR(""), BT_DRAFT_TEXT, BT_STR("a\"b\xff"), UINT32_MAX);
    bt_record_draft_put_text(&d, BT_STR(""), BT_DRAFT_COMMA | BT_DRAFT_TEXT, BT_STR("abcd"), 4);
    bt_record_draft_put_text(&d, BT_STR(","), BT_DRAFT_TEXT, BT_STR("abcdef"), 4);
    bt_record_draft_put_text(&d, BT_STR(","), BT_DRAFT_TEXT,
                             BT_STR("abc\xc3\xa4"
                                    "f"),
                             4);
    becomes(&d, "\"a\\\"b\xef\xbf\xbd\",\"abcd\",\"abcd...\",\"abc...\"");
    bt_record_draft_fini(&d);
}

/* A hundred thousand pieces, but no more than any text may have. */
static void it_grows_and_fails(void **state)
{
    bt_record_draft_t d = {.data = NULL};
    bt_text_t out;

    bt_text_init(&out);
    for (int i = 0; i < 100000; i++)
        bt_record_draft_put(&d, BT_STR("x"), BT_DRAFT_NOTHING, 0);
    bt_record_draft_render(bt_record_draft_str(&d), &out);
    assert_int_equal(out.len, 100000);
    assert_false(bt_record_draft_reserve(&d, BT_TEXT_MAX_BYTES));
    assert_true(d.failed);
    bt_text_fini(&out);
    bt_record_draft_fini(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members),
        cmocka_unit_test(text_is_quoted_and_cut),
        cmocka_unit_test(it_grows_and_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
