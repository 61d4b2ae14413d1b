/* Which keys count, and whose they are. */
#include "identity/key_table.h"

#include "base/err.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* SHA-256 of 16 zero bytes and "secret", by another program: printf '\0%.0s'{1..16}; printf secret | sha256sum */
#define ZERO_SALT "00000000000000000000000000000000"
#define HASH "36fcbdc4799378811fe3603f327fe626b629fdc63c0958cc7ee6fce2183752cb"
#define HASHED "sha256:" ZERO_SALT ":" HASH
#define NOW UINT64_C(1800000000000) /* 2027-01-15T08:00:00Z */

static char path[] = "/tmp/key_table_test.XXXXXX";

static int setup(void **state)
{
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    return 0;
}

static int teardown(void **state)
{
    return unlink(path);
}

static void write_file(const char *text, size_t n)
{
    FILE *out = fopen(path, "w");

    assert_non_null(out);
    fwrite(text, 1, n, out);
    fclose(out);
}

static bt_key_table_t *read_ok(const char *text)
{
    bt_key_table_t *table = NULL;
    char err[512] = "";

    write_file(text, strlen(text));
    if (bt_key_table_read(path, &table, err, sizeof err) != 0)
        fail_msg("%s", err);
    return table;
}

static void expect(const char *text, const char *why)
{
    bt_key_table_t *table = NULL;
    char err[512] = "", want[512];

    write_file(text, strlen(text));
    assert_int_equal(bt_key_table_read(path, &table, err, sizeof err), BT_E_CONFIG);
    assert_null(table);
    snprintf(want, sizeof want, "%s%s", path, why);
    assert_string_equal(err, want);
}

static enum bt_auth_refusal find(const bt_key_table_t *table, const char *key, bt_identity_t *who)
{
    return bt_key_table_find(table, bt_str(key), NOW, who);
}

static void is_text(bt_str_t text, const char *want)
{
    char copy[512];

    snprintf(copy, sizeof copy, "%.*s", BT_STR_ARG(text));
    assert_string_equal(copy, want);
}

static void plain_keys_count(void **state)
{
    bt_key_table_t *t = read_ok("# c\none\r\n\n  two tenant=acme\nthree set-tenant tenant=p.x\n"
                                "four\ttenant=a set-tenant # whose\nfive#6 scopes=models\n");
    bt_identity_t who;

    assert_int_equal(bt_key_table_count(t), 5);
    assert_int_equal(find(t, "one", &who), BT_AUTH_OK);
    assert_int_equal(who.source, BT_IDENTITY_KEY);
    assert_int_equal(who.scopes, BT_MAY_AS_CLIENT);
    assert_false(who.sets_tenant);
    assert_memory_equal(who.tenant.p, "key-", 4);
    is_text(who.id, who.tenant.p);
    assert_int_equal(find(t, "two", &who), BT_AUTH_OK);
    is_text(who.tenant, "acme");
    assert_int_equal(find(t, "three", &who), BT_AUTH_OK);
    is_text(who.tenant, "p.x");
    assert_true(who.sets_tenant);
    assert_int_equal(find(t, "four", &who), BT_AUTH_OK);
    assert_true(who.sets_tenant);
    assert_int_equal(find(t, "five#6", &who), BT_AUTH_OK);
    assert_int_equal(who.scopes, BT_MAY_LIST_MODELS);
    assert_int_equal(find(t, "", &who), BT_AUTH_MISSING);
    assert_int_equal(find(t, "on", &who), BT_AUTH_KEY_WRONG);
    assert_int_equal(find(t, "onee", &who), BT_AUTH_KEY_WRONG);
    assert_int_equal(find(t, "One", &who), BT_AUTH_KEY_WRONG);
    bt_key_table_unref(t);
}

/* What replicas of earlier versions call it: requests of a rolling update stay its own. */
static void a_plain_keys_owner_is_known(void **state)
{
    bt_key_table_t *t = read_ok("one\n");
    bt_identity_t who;

    assert_int_equal(find(t, "one", &who), BT_AUTH_OK);
    assert_true(who.owner == UINT64_C(0x7e05bcdcdc492801)); /* of printf one | sha1sum */
    bt_key_table_unref(t);
}

static void hashed_keys_count(void **state)
{
    bt_key_table_t *t = read_ok("bk_a " HASHED " tenant=acme scopes=inference,admin-read "
                                "models=llama-*,m2 expires=2027-01-16 created=2026-01-01 # x\n"
                                "bk_b " HASHED " expires=2027-01-15T07:59:59Z\n"
                                "bk_c " HASHED " revoked=2026-12-01\n"
                                "bk_d " HASHED " expires=2027-01-15T08:00:01Z\n");
    bt_identity_t who;

    assert_int_equal(bt_key_table_count(t), 3);
    assert_int_equal(find(t, "bk_a_secret", &who), BT_AUTH_OK);
    is_text(who.id, "bk_a");
    is_text(who.tenant, "acme");
    is_text(who.scope_names, "inference,admin-read");
    is_text(who.models, "llama-*,m2");
    assert_int_equal(who.scopes, BT_MAY_INFER | BT_MAY_READ_ADMIN);
    assert_int_equal(find(t, "bk_a_secrets", &who), BT_AUTH_KEY_WRONG);
    assert_int_equal(find(t, "bk_a_", &who), BT_AUTH_KEY_WRONG);
    assert_int_equal(find(t, "bk_a", &who), BT_AUTH_KEY_WRONG);
    assert_int_equal(find(t, "bk_x_secret", &who), BT_AUTH_KEY_WRONG);
    assert_int_equal(find(t, "bk_a " HASHED, &who), BT_AUTH_KEY_WRONG);
    assert_int_equal(find(t, HASH, &who), BT_AUTH_KEY_WRONG);
    assert_int_equal(find(t, "bk_b_secret", &who), BT_AUTH_KEY_EXPIRED);
    assert_int_equal(find(t, "bk_b_wrong", &who),
                     BT_AUTH_KEY_WRONG); /* nobody learns that it has expired */
    assert_int_equal(find(t, "bk_c_secret", &who), BT_AUTH_KEY_REVOKED);
    assert_int_equal(find(t, "bk_d_secret", &who), BT_AUTH_OK);
    is_text(who.tenant, "bk_d");
    bt_key_table_unref(t);
}

static void models_are_patterns(void **state)
{
    const bt_identity_t all = {0}, some = {.models = BT_STR("llama-*,m2")},
                        named = {.models = BT_STR("*")};

    assert_true(bt_identity_may_use(&all, BT_STR("")));
    assert_true(bt_identity_may_use(&some, BT_STR("llama-3")));
    assert_true(bt_identity_may_use(&some, BT_STR("m2")));
    assert_false(bt_identity_may_use(&some, BT_STR("m22")));
    assert_false(bt_identity_may_use(&some, BT_STR("llama")));
    assert_false(bt_identity_may_use(&some, BT_STR("")));
    assert_true(bt_identity_may_use(&named, BT_STR("any")));
    assert_false(bt_identity_may_use(&named, BT_STR("")));
}

static void refuses_what_would_lock_out_or_let_in(void **state)
{
    char text[1200];

    expect("# nothing\n\n", ": no key in it: every client would be refused");
    expect("fine\nnot fine\n",
           ":2: behind the key only tenant=, scopes=, models=, expires=, created=, revoked= and "
           "set-tenant may stand, then # and a comment");
    expect("fine tenant=a/b\n",
           ":1: tenant=: at most 64 letters, digits, '_', '-', '.' are needed");
    expect("fine tenant=\n", ":1: tenant=: at most 64 letters, digits, '_', '-', '.' are needed");
    expect("fine tenant=a\nfine tenant=b\n",
           ":2: this key stands in the file already: whose is it?");
    expect("bk_a " HASHED "\nbk_a " HASHED "\n", ":2: a key of this id stands in the file already");
    expect("a scopes=inference,root\n",
           ":1: scopes=: \"root\" is none; there are inference, models, cancel, "
           "admin-read, admin-write and kv-hints");
    expect("a scopes=\n", ":1: scopes=: \"\" is none; there are inference, models, cancel, "
                          "admin-read, admin-write and kv-hints");
    expect("a scopes=models scopes=inference\n", ":1: scopes= is said twice");
    expect("a models=\n", ":1: models=: no model is named");
    for (const char *const *at =
             (const char *const[]){"2027-02-30", "2027-1-1", "27-01-01", "2027-01-01T25:00:00Z",
                                   "2027-01-01T00:00:00", "never", "", NULL};
         *at != NULL; at++) {
        snprintf(text, sizeof text, "a expires=%s\n", *at);
        expect(text, ":1: expires=: a time as 2027-02-25 or 2027-02-25T08:00:00Z is needed");
    }
    expect("bk_a sha256:00:11\n", ":1: sha256: 32 hex digits of salt, ':' and 64 of the hash are "
                                  "needed, as baton key new writes them");
    expect("bk_a_secret " HASHED "\n", ":1: before sha256: stands bk_ID, without the secret");
    expect("key " HASHED "\n", ":1: before sha256: stands bk_ID, without the secret");
    memset(text, 'x', 1100);
    text[1100] = '\0';
    expect(text, ":1: a line has at most 1024 bytes");
    text[600] = '\0';
    expect(text, ":1: a key has at most 512 bytes");
    write_file("a\0b\n", 4); /* one word to us, however it is shown */
    bt_key_table_t *t = NULL;
    char err[512];
    if (bt_key_table_read(path, &t, err, sizeof err) == 0)
        bt_key_table_unref(t);
    assert_int_equal(bt_key_table_read("/nonexistent/keys", &t, err, sizeof err), BT_E_CONFIG);
    assert_string_equal(err, "/nonexistent/keys: No such file or directory");
}

static void tells_when_a_file_has_changed(void **state)
{
    bt_key_table_t *a = read_ok("one tenant=a\ntwo\n"), *b = read_ok("one tenant=a\ntwo\n"),
                   *c = read_ok("one tenant=b\ntwo\n");

    assert_true(bt_key_table_same(a, b));
    assert_false(bt_key_table_same(a, c));
    bt_key_table_unref(a);
    bt_key_table_unref(b);
    bt_key_table_unref(c);
}

static void many_keys_are_one_look_each(void **state)
{
    enum { COUNT = 5000 };
    char *text = malloc(COUNT * 160), key[64];
    size_t n = 0;
    bt_identity_t who;

    for (unsigned i = 0; i < COUNT; i++)
        n += (size_t) sprintf(text + n, "bk_k%u " HASHED "\n", i);
    bt_key_table_t *t = read_ok(text);
    free(text);
    for (unsigned i = 0; i < COUNT; i += 617) {
        snprintf(key, sizeof key, "bk_k%u_secret", i);
        assert_int_equal(find(t, key, &who), BT_AUTH_OK);
        assert_int_equal(who.id.n, strlen(key) - strlen("_secret"));
    }
    bt_key_table_unref(t);
}

static void many_may_write_a_store(void **state)
{
    bt_key_table_t *t = NULL;
    bt_identity_t who;
    char why[256] = "";
    unsigned left_out = 9;

    assert_int_equal(bt_key_table_of(BT_STR("plain\nbk_a " HASHED "\nbk_b " HASHED " later=1\n"),
                                     &left_out, &t, why, sizeof why),
                     0);
    assert_int_equal(left_out, 2);
    assert_string_equal(why,
                        "row:1: no hashed key under its own id; baton key list --store names it");
    assert_int_equal(bt_key_table_count(t), 1);
    assert_int_equal(find(t, "bk_a_secret", &who), BT_AUTH_OK);
    assert_int_equal(find(t, "plain", &who), BT_AUTH_KEY_WRONG);
    bt_key_table_unref(t);
    assert_int_equal(bt_key_table_of(BT_STR("plain\n"), &left_out, &t, why, sizeof why),
                     BT_E_CONFIG);
    assert_int_equal(left_out, 1);
    assert_int_equal(bt_key_table_of(BT_STR(""), &left_out, &t, why, sizeof why), BT_E_CONFIG);
    assert_string_equal(why, "row: no key in it: every client would be refused");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_keys_count),
        cmocka_unit_test(a_plain_keys_owner_is_known),
        cmocka_unit_test(hashed_keys_count),
        cmocka_unit_test(models_are_patterns),
        cmocka_unit_test(refuses_what_would_lock_out_or_let_in),
        cmocka_unit_test(tells_when_a_file_has_changed),
        cmocka_unit_test(many_keys_are_one_look_each),
        cmocka_unit_test(many_may_write_a_store),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
