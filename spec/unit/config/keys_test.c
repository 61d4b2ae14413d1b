#include "config/config.h"

#include "load.h"

static void expect(const char *path, const char *why)
{
    char err[256] = "", **keys = NULL;
    assert_true(bt_keys_read(path, &keys, err, sizeof err) < 0);
    assert_null(keys);
    assert_string_equal(err, why);
}

static void reads_lines(void **state)
{
    char err[256] = "", **keys = NULL;
    (void) state;
    assert_int_equal(bt_keys_read(load_write("k", "# c\none\r\n\n  two"), &keys, err, sizeof err),
                     0);
    assert_string_equal(keys[0], "one");
    assert_string_equal(keys[1], "two");
    assert_null(keys[2]);
    bt_keys_free(keys);
}

static void refuses_what_would_lock_out(void **state)
{
    char want[256], text[700];
    const char *path = load_write("empty", "# nothing\n\n");
    (void) state;
    snprintf(want, sizeof want, "%s: no key in it: every client would be refused", path);
    expect(path, want);
    path = load_write("space", "fine\nnot fine\n");
    snprintf(want, sizeof want, "%s:2: a key holds no spaces", path);
    expect(path, want);
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    path = load_write("long", text);
    snprintf(want, sizeof want, "%s:1: a key has at most 512 bytes", path);
    expect(path, want);
    expect("/nonexistent/keys", "/nonexistent/keys: No such file or directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_lines),
        cmocka_unit_test(refuses_what_would_lock_out),
    };
    return cmocka_run_group_tests(tests, NULL, load_cleanup);
}
