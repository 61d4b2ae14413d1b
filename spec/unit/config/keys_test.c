#include "config/config_impl.h"

#include "load.h"

static void expect(const char *path, const char *why)
{
    bt_client_keys_t *keys = NULL;
    char err[256] = "";
    assert_true(bt_keys_read(path, &keys, err, sizeof err) < 0);
    assert_null(keys);
    assert_string_equal(err, why);
}

static bt_client_keys_t *read_ok(const char *text)
{
    bt_client_keys_t *keys = NULL;
    char err[256] = "";
    if (bt_keys_read(load_write("k", text), &keys, err, sizeof err) != 0)
        fail_msg("%s", err);
    return keys;
}

static void reads_lines(void **state)
{
    bt_client_keys_t *keys =
        read_ok("# c\none\r\n\n  two tenant=acme\nthree set-tenant tenant=p.x\n"
                "four\ttenant=a set-tenant");
    (void) state;
    assert_int_equal(keys->count, 4);
    assert_string_equal(keys->items[0].text, "one");
    assert_false(keys->items[0].sets_tenant);
    assert_string_equal(keys->items[1].text, "two");
    assert_string_equal(keys->items[1].tenant, "acme");
    assert_string_equal(keys->items[2].tenant, "p.x");
    assert_true(keys->items[2].sets_tenant && keys->items[3].sets_tenant);
    assert_string_equal(keys->items[3].text, "four");
    bt_keys_free(keys);
}

static void tells_when_a_file_has_changed(void **state)
{
    bt_client_keys_t *a = read_ok("one tenant=a\ntwo\n"), *b = read_ok("one tenant=a\n# c\ntwo\n"),
                     *c = read_ok("one tenant=b\ntwo\n"), *d = read_ok("one tenant=a\n");
    (void) state;
    assert_true(bt_keys_same(a, b));
    assert_false(bt_keys_same(a, c));
    assert_false(bt_keys_same(a, d));
    assert_false(bt_keys_same(a, NULL));
    assert_true(bt_keys_same(NULL, NULL));
    bt_keys_free(a);
    bt_keys_free(b);
    bt_keys_free(c);
    bt_keys_free(d);
}

static void refuses_what_would_lock_out(void **state)
{
    char want[256], text[700];
    const char *path = load_write("empty", "# nothing\n\n");
    (void) state;
    snprintf(want, sizeof want, "%s: no key in it: every client would be refused", path);
    expect(path, want);
    path = load_write("space", "fine\nnot fine\n");
    snprintf(want, sizeof want, "%s:2: behind the key only tenant=NAME and set-tenant may stand",
             path);
    expect(path, want);
    path = load_write("tenant", "fine tenant=a/b\n");
    snprintf(want, sizeof want,
             "%s:1: tenant=: at most 64 letters, digits, '_', '-', '.' are needed", path);
    expect(path, want);
    path = load_write("twice", "fine tenant=a\nfine tenant=b\n");
    snprintf(want, sizeof want, "%s:2: this key stands in the file already: whose is it?", path);
    expect(path, want);
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    path = load_write("long", text);
    snprintf(want, sizeof want, "%s:1: a line has at most 640 bytes", path);
    expect(path, want);
    text[600] = '\0';
    path = load_write("long", text);
    snprintf(want, sizeof want, "%s:1: a key has at most 512 bytes", path);
    expect(path, want);
    expect("/nonexistent/keys", "/nonexistent/keys: No such file or directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_lines),
        cmocka_unit_test(tells_when_a_file_has_changed),
        cmocka_unit_test(refuses_what_would_lock_out),
    };
    return cmocka_run_group_tests(tests, NULL, load_cleanup);
}
