/* A loop's answer: what is remembered of tokens, and for how long; what another file changes. */
#include "identity/checker.h"
#include "unit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tokens.h"

#define NOW UINT64_C(1800000000000)
#define PAYLOAD                                                                                    \
    "{\"iss\":\"i\",\"aud\":\"baton\",\"sub\":\"s%u\",\"exp\":1800000300,\"tenant\":\"t%u\"}"

static const bt_jwt_rules_t rules = {.issuer = "i",
                                     .audience = "baton",
                                     .tenant_claim = "tenant",
                                     .scope_claim = "scope",
                                     .skew_ms = 0};
static char path[] = "/tmp/checker_test.XXXXXX";
static bt_identities_t *all;
static bt_checker_t *checker;

static void set_keys(const char *text)
{
    bt_key_table_t *table = NULL;
    char err[256];
    FILE *out = fopen(path, "w");

    fputs(text, out);
    fclose(out);
    assert_int_equal(bt_key_table_read(path, &table, err, sizeof err), 0);
    bt_identities_set_keys(all, table);
}

static void set_jwks(EVP_PKEY *key, const char *kid)
{
    char *one = jwk_of(key, kid, ""), *text = set_of((const char *const[]){one}, 1), err[256];
    bt_jwks_t *jwks = NULL;

    assert_int_equal(bt_jwks_read(bt_str(text), &jwks, err, sizeof err), 0);
    (void) bt_identities_set_jwks(all, jwks);
    free(one);
    free(text);
}

static int group_setup(void **state)
{
    tokens_open();
    const int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int group_teardown(void **state)
{
    tokens_close();
    return unlink(path);
}

static int setup(void **state)
{
    assert_int_equal(bt_identities_new(&all, &rules), 0);
    return bt_checker_new(&checker, all);
}

static int teardown(void **state)
{
    bt_checker_free(checker);
    bt_identities_free(all);
    return 0;
}

static char *token(unsigned i)
{
    char payload[256];

    snprintf(payload, sizeof payload, PAYLOAD, i, i);
    return token_of("{\"alg\":\"EdDSA\",\"kid\":\"k\"}", payload, ed);
}

static enum bt_auth_refusal check(const char *given, uint64_t now)
{
    bt_identity_t who;

    return bt_checker_check(checker, bt_str(given), now, &who);
}

static void a_token_is_verified_once(void **state)
{
    char *t = token(1);
    bt_identity_t who;

    assert_int_equal(check(t, NOW), BT_AUTH_KEYS_UNKNOWN);
    set_jwks(ed, "k");
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(bt_checker_check(checker, bt_str(t), NOW, &who), BT_AUTH_OK);
        assert_true(bt_str_eq(who.tenant, BT_STR("t1")));
    }
    assert_int_equal(bt_checker_verified(checker), 1);
    assert_int_equal(check(t, UINT64_C(1800000299999)), BT_AUTH_OK);
    assert_int_equal(check(t, UINT64_C(1800000300000)), BT_AUTH_TOKEN_EXPIRED);
    assert_int_equal(bt_checker_verified(checker), 1);
    assert_int_equal(check(t, UINT64_C(1800000300001)), BT_AUTH_TOKEN_EXPIRED);
    free(t);
}

/* What is refused is not remembered: or whoever sends rubbish would push others' tokens out. */
static void what_is_wrong_is_not_remembered(void **state)
{
    char *t = token(1);

    set_jwks(ed, "k");
    t[strlen(t) - 5] ^= 1;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(check(t, NOW), BT_AUTH_TOKEN_SIGNATURE);
    assert_int_equal(bt_checker_verified(checker), 3);
    free(t);
}

static void another_set_forgets_all(void **state)
{
    char *t = token(1);

    set_jwks(ed, "k");
    assert_int_equal(check(t, NOW), BT_AUTH_OK);
    set_jwks(ed, "k"); /* fetched again, and the same: nothing is forgotten */
    assert_int_equal(check(t, NOW), BT_AUTH_OK);
    assert_int_equal(bt_checker_verified(checker), 1);
    assert_false(bt_identities_was_kid_missed(all));
    set_jwks(ed_other, "k2");
    assert_int_equal(check(t, NOW), BT_AUTH_TOKEN_KEY);
    assert_true(bt_identities_was_kid_missed(all));
    assert_false(bt_identities_was_kid_missed(all));
    set_jwks(ed_other, "k");
    assert_int_equal(check(t, NOW), BT_AUTH_TOKEN_SIGNATURE);
    set_jwks(ed, "k");
    assert_int_equal(check(t, NOW), BT_AUTH_OK);
    free(t);
}

static void the_oldest_goes(void **state)
{
    enum { COUNT = BT_CHECKER_TOKENS_MAX };
    char *first = token(0), *second = token(1), *t;

    set_jwks(ed, "k");
    assert_int_equal(check(first, NOW), BT_AUTH_OK);
    assert_int_equal(check(second, NOW), BT_AUTH_OK);
    for (unsigned i = 2; i < COUNT; i++) {
        t = token(i);
        assert_int_equal(check(t, NOW), BT_AUTH_OK);
        free(t);
    }
    assert_int_equal(check(first, NOW), BT_AUTH_OK);
    assert_int_equal(bt_checker_verified(checker), COUNT);
    t = token(COUNT);
    assert_int_equal(check(t, NOW), BT_AUTH_OK);
    free(t);
    assert_int_equal(check(first, NOW), BT_AUTH_OK); /* it was seen since */
    assert_int_equal(bt_checker_verified(checker), COUNT + 1);
    assert_int_equal(check(second, NOW), BT_AUTH_OK);
    assert_int_equal(bt_checker_verified(checker), COUNT + 2);
    free(first);
    free(second);
}

static void keys_and_tokens_stand_beside_each_other(void **state)
{
    char *t = token(1);

    assert_int_equal(check("", NOW), BT_AUTH_MISSING);
    assert_int_equal(check("one", NOW), BT_AUTH_KEY_WRONG);
    set_keys("one\ntwo.with.dots\n");
    set_jwks(ed, "k");
    assert_int_equal(check("one", NOW), BT_AUTH_OK);
    assert_int_equal(check("two.with.dots", NOW), BT_AUTH_OK);
    assert_int_equal(check(t, NOW), BT_AUTH_OK);
    set_keys("two.with.dots\n");
    assert_int_equal(check("one", NOW), BT_AUTH_KEY_WRONG);
    assert_int_equal(check(t, NOW), BT_AUTH_OK);
    free(t);
}

static void *change_keys(void *arg)
{
    _Atomic bool *done = arg;

    for (unsigned i = 0; i < 300; i++) {
        set_keys(i % 2 == 0 ? "other\none\n" : "one\n");
        set_jwks(i % 2 == 0 ? ed_other : ed, "k");
    }
    atomic_store(done, true);
    return NULL;
}

/* One thread changes what counts, as the gateway's control loop does; a loop's answers are of one table or the other. */
static void tables_change_while_a_loop_answers(void **state)
{
    _Atomic bool done = false;
    char *t = token(1);
    pthread_t thread;

    set_keys("one\n");
    set_jwks(ed, "k");
    assert_int_equal(pthread_create(&thread, NULL, change_keys, &done), 0);
    while (!atomic_load(&done)) {
        const enum bt_auth_refusal other = check("other", NOW), by_token = check(t, NOW);
        assert_int_equal(check("one", NOW), BT_AUTH_OK);
        assert_true(other == BT_AUTH_OK || other == BT_AUTH_KEY_WRONG);
        assert_true(by_token == BT_AUTH_OK || by_token == BT_AUTH_TOKEN_SIGNATURE);
    }
    pthread_join(thread, NULL);
    assert_int_equal(check("other", NOW), BT_AUTH_KEY_WRONG);
    assert_int_equal(check(t, NOW), BT_AUTH_OK);
    free(t);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_token_is_verified_once),
        TEST(what_is_wrong_is_not_remembered),
        TEST(another_set_forgets_all),
        TEST(the_oldest_goes),
        TEST(keys_and_tokens_stand_beside_each_other),
        TEST(tables_change_while_a_loop_answers),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
