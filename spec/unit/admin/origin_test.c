/* What a page in a browser could have sent is not served without a key. */
#include "admin/call/origin.h"
#include "unit.h"

static const char *const names[] = {"baton.example", NULL};

struct ask {
    const char *host, *origin, *type;
    bool is_change, has_key;
};

static unsigned status_of(struct ask ask)
{
    bt_header_t headers[3];
    bt_head_t head = {.headers = headers};
    const bt_origin_rules_t rules = {
        .has_key = ask.has_key, .listener = "admin.internal", .names = names};
    unsigned status = 0;

    if (ask.host != NULL)
        headers[head.header_count++] = (bt_header_t){BT_STR("Host"), bt_str(ask.host)};
    if (ask.origin != NULL)
        headers[head.header_count++] = (bt_header_t){BT_STR("Origin"), bt_str(ask.origin)};
    if (ask.type != NULL)
        headers[head.header_count++] = (bt_header_t){BT_STR("Content-Type"), bt_str(ask.type)};
    return bt_origin_refusal(&rules, &head, ask.is_change, &status) == NULL ? 200 : status;
}

static void test_a_name_that_anybody_can_take_is_refused(void **state)
{
    static const char *const fine[] = {"127.0.0.1",     "127.0.0.1:29000",     "[::1]:29000",
                                       "localhost",     "LocalHost:1",         "10.1.2.3:80",
                                       "baton.example", "Baton.Example:29000", "admin.internal:1"},
                             *const wrong[] = {"evil.example",
                                               "evil.example:29000",
                                               "localhost.evil",
                                               "127.0.0.1.evil.example",
                                               "baton.example.evil",
                                               "",
                                               "[::1",
                                               "1.2.3",
                                               "0x7f.1"};

    for (unsigned change = 0; change < 2; change++) {
        for (size_t i = 0; i < sizeof(fine) / sizeof(fine[0]); i++)
            assert_int_equal(status_of((struct ask){.host = fine[i], .is_change = change}), 200);
        for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
            assert_int_equal(status_of((struct ask){.host = wrong[i], .is_change = change}), 403);
        assert_int_equal(
            status_of((struct ask){.host = "evil.example", .is_change = change, .has_key = true}),
            200);
    }
    assert_int_equal(status_of((struct ask){.host = NULL}), 200); /* HTTP/1.0, no browser */
}

static void test_another_origin_is_refused(void **state)
{
    for (unsigned key = 0; key < 2; key++) {
        struct ask ask = {.host = "127.0.0.1:29000", .is_change = true, .has_key = key};
        ask.origin = "http://127.0.0.1:29000";
        assert_int_equal(status_of(ask), 200);
        ask.origin = "http://127.0.0.1:29001";
        assert_int_equal(status_of(ask), 403);
        ask.origin = "null";
        assert_int_equal(status_of(ask), 403);
        ask.origin = "http://evil.example";
        assert_int_equal(status_of(ask), 403);
        ask.is_change =
            false; /* a page can't read an answer that shows a key; without one it must not ask */
        assert_int_equal(status_of(ask), key ? 200 : 403);
    }
}

static void test_forms_change_nothing(void **state)
{
    static const char *const forms[] = {"application/x-www-form-urlencoded",
                                        "multipart/form-data; boundary=x", "text/plain",
                                        "Text/Plain;charset=utf-8"},
                             *const fine[] = {NULL, "application/json", "text/x-lua",
                                              "application/octet-stream"};
    struct ask ask = {.host = "localhost", .is_change = true};

    for (unsigned i = 0; i < 4; i++) {
        ask.type = forms[i];
        assert_int_equal(status_of(ask), 415);
        assert_int_equal(status_of((struct ask){.host = "localhost", .type = forms[i]}), 200);
        ask.has_key = true;
        assert_int_equal(status_of(ask), 200);
        ask.has_key = false;
        ask.type = fine[i];
        assert_int_equal(status_of(ask), 200);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_name_that_anybody_can_take_is_refused),
        cmocka_unit_test(test_another_origin_is_refused),
        cmocka_unit_test(test_forms_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
