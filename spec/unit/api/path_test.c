/* One form for every path, and a refusal for what two readers could read as two. */
#include "api/path.h"
#include "unit.h"

static bt_arena_t arena;

static int setup(void **state)
{
    bt_arena_init(&arena);
    return 0;
}

static int teardown(void **state)
{
    bt_arena_fini(&arena);
    return 0;
}

static void expect(const char *raw, const char *wanted)
{
    bt_str_t path = BT_STR_NULL;
    const char *why = bt_path_canonical(bt_str(raw), &arena, &path);

    if (why != NULL || !bt_str_eq(path, bt_str(wanted)))
        fail_msg("%s: %s, %.*s", raw, why != NULL ? why : "fine", BT_STR_ARG(path));
}

static void expect_refused(const char *raw, const char *word)
{
    bt_str_t path = BT_STR_NULL;
    const char *why = bt_path_canonical(bt_str(raw), &arena, &path);

    if (why == NULL || strstr(why, word) == NULL)
        fail_msg("%s: %s", raw, why != NULL ? why : "not refused");
    assert_null(path.p);
}

static void test_usual_paths_are_not_copied(void **state)
{
    const char *const raws[] = {"/", "/v1/completions", "/a-b_c~d/1.5/x:y@z!$&'()*+,=", "*",
                                "/v1/models/a/b.c"};

    for (size_t i = 0; i < sizeof(raws) / sizeof(raws[0]); i++) {
        bt_str_t raw = bt_str(raws[i]), path;
        assert_null(bt_path_canonical(raw, &arena, &path));
        assert_ptr_equal(path.p, raw.p);
        assert_int_equal(path.n, raw.n);
    }
}

static void test_is_decoded_once_and_printed_in_one_way(void **state)
{
    expect("/v1/completion%73", "/v1/completions");
    expect("/%76%31/%63ompletions", "/v1/completions");
    expect("/a%20b", "/a%20b");
    expect("/a%c3%A9", "/a%C3%A9");
    expect("/a\"b", "/a%22b");
    expect("/.well-known/x", "/.well-known/x");
    expect("/...", "/...");
    expect("/a%3Fb", "/a%3Fb");
    expect("/a%2eb", "/a.b");
}

static void test_names_of_models_hold_slashes(void **state)
{
    expect("/v1/models/org%2fname", "/v1/models/org%2Fname");
    expect("/v1/model%73/org%2Fname%2Fv1", "/v1/models/org%2Fname%2Fv1");
    expect_refused("/v1/models%2Forg", "%2F");
    expect_refused("/v1/models/a%2F..%2Fb", "dot segment");
    expect_refused("/v1/models/a%2F%2Fb", "empty segment");
    expect_refused("/v1/models/a%2F", "empty segment");
    expect_refused("/v1/models/%2E%2e", "dot segment");
}

static void test_refusals(void **state)
{
    expect_refused("/v1%2Fcompletions", "%2F");
    expect_refused("/v1/completion%2573", "%25");
    expect_refused("/a%5Cb", "backslash");
    expect_refused("/a\\b", "backslash");
    expect_refused("/a%00", "control");
    expect_refused("/a%0d%0aX: y", "control");
    expect_refused("/a%7F", "control");
    expect_refused("/a;b", "';'");
    expect_refused("/a%3bb", "';'");
    expect_refused("/a%", "'%'");
    expect_refused("/a%7", "'%'");
    expect_refused("/a%zz", "'%'");
    expect_refused("//a", "empty segment");
    expect_refused("/a//b", "empty segment");
    expect_refused("/a/", "empty segment");
    expect_refused("/a/.", "dot segment");
    expect_refused("/a/./b", "dot segment");
    expect_refused("/..", "dot segment");
    expect_refused("/a/%2e%2E/b", "dot segment");
    expect_refused("/a/.%2e", "dot segment");
}

static void test_the_target_follows(void **state)
{
    bt_head_t head = {
        .path = BT_STR("/%61"), .target = BT_STR("/%61?q=%61"), .query = BT_STR("q=%61")};

    assert_null(bt_path_settle(&head, &arena));
    assert_true(bt_str_eq(head.path, BT_STR("/a")));
    assert_true(bt_str_eq(head.target, BT_STR("/a?q=%61")));
    head = (bt_head_t){.path = BT_STR("/%61"), .target = BT_STR("/%61?"), .query = BT_STR("")};
    assert_null(bt_path_settle(&head, &arena));
    assert_true(bt_str_eq(head.target, BT_STR("/a?")));
    head = (bt_head_t){.path = BT_STR("/%61"), .target = BT_STR("/%61")};
    assert_null(bt_path_settle(&head, &arena));
    assert_true(bt_str_eq(head.target, BT_STR("/a")));
}

/* Whatever is accepted is the same when it is read again, decoded or not: nobody behind us sees another path. */
static void test_any_bytes_settle(void **state)
{
    static const char alphabet[] = "/.%2ef5Ccv1;\\ a\x01";
    uint32_t seed = 1;

    for (unsigned round = 0; round < 200000; round++) {
        char raw[12] = "/", decoded[64];
        bt_str_t path, again;
        size_t n = 1;
        while (n < sizeof(raw) && (seed = seed * 1664525 + 1013904223) >> 28 != 0)
            raw[n++] = alphabet[(seed >> 8) % (sizeof(alphabet) - 1)];
        if (bt_path_canonical((bt_str_t){raw, n}, &arena, &path) == NULL) {
            assert_null(bt_path_canonical(path, &arena, &again));
            assert_true(bt_str_eq(path, again));
            size_t size = bt_path_decode(path, decoded, sizeof(decoded));
            assert_null(memmem(decoded, size, "//", 2));
            assert_null(memmem(decoded, size, "/./", 3));
            assert_null(memmem(decoded, size, "/../", 4));
            assert_null(memchr(decoded, '%', size));
        }
        if (round % 1000 == 0) {
            bt_arena_fini(&arena);
            bt_arena_init(&arena);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_usual_paths_are_not_copied, setup, teardown),
        cmocka_unit_test_setup_teardown(test_is_decoded_once_and_printed_in_one_way, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_names_of_models_hold_slashes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_target_follows, setup, teardown),
        cmocka_unit_test_setup_teardown(test_any_bytes_settle, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
