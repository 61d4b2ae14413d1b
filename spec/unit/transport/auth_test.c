/* The proof of a token: who is believed, what is not, and what it leaves behind. */
#include "transport/wire/auth.h"

#include "base/err.h"
#include "unit.h"

#include <string.h>

typedef struct end {
    bt_kv_auth_t auth;
    const char *secrets, *why;
} end_t;

typedef struct message {
    uint8_t p[BT_KV_AUTH_OUT];
    size_t n;
} message_t;

static end_t dialler, acceptor;
static message_t greet, challenge, proof, answer;

static bool take(end_t *end, const message_t *in, message_t *out)
{
    ptrdiff_t used =
        bt_kv_auth_take(&end->auth, end->secrets, in->p, in->n, out->p, &out->n, &end->why);

    if (used < 0)
        assert_int_equal(used, BT_E_INVAL);
    else
        assert_int_equal(used, in->n);
    return used > 0;
}

static void begin(const char *ours, const char *theirs)
{
    dialler.secrets = ours;
    acceptor.secrets = theirs;
    greet.n = bt_kv_auth_init(&dialler.auth, BT_KV_AUTH_PEERS, true, greet.p);
    assert_int_equal(bt_kv_auth_init(&acceptor.auth, BT_KV_AUTH_PEERS, false, NULL), 0);
}

/* Up to the proof. */
static void come_to_proof(const char *ours, const char *theirs)
{
    begin(ours, theirs);
    assert_true(take(&acceptor, &greet, &challenge));
    assert_true(take(&dialler, &challenge, &proof));
    assert_false(dialler.auth.is_done || acceptor.auth.is_done);
}

static void come_to_end(const char *ours, const char *theirs)
{
    come_to_proof(ours, theirs);
    assert_true(take(&acceptor, &proof, &answer));
    assert_true(take(&dialler, &answer, &challenge));
    assert_int_equal(challenge.n, 0);
    assert_true(dialler.auth.is_done && acceptor.auth.is_done);
    assert_false(bt_kv_auth_is_open(&dialler.auth) || bt_kv_auth_is_open(&acceptor.auth));
}

static void test_the_same_token(void **state)
{
    static const char *const pairs[][2] = {{"sesame", "sesame"},
                                           {"new", "old\nnew\n"},
                                           {"old\nnew", "new\nold"},
                                           {"\nold", "new\n\nold"}};

    for (unsigned i = 0; i < 4; i++) {
        come_to_end(pairs[i][0], pairs[i][1]);
        assert_memory_equal(dialler.auth.out.key, acceptor.auth.in.key, BT_HMAC_BYTES);
        assert_memory_equal(dialler.auth.in.key, acceptor.auth.out.key, BT_HMAC_BYTES);
        assert_memory_not_equal(dialler.auth.in.key, dialler.auth.out.key, BT_HMAC_BYTES);
        assert_memory_equal(dialler.auth.bind, acceptor.auth.bind, BT_HMAC_BYTES);
    }
}

static void test_another_token(void **state)
{
    static const char *const pairs[][2] = {
        {"sesame", "sesamE"}, {"sesame", "sesam"}, {"new\nold", "old"}, {"", ""},
        {"sesame", "\n"},     {"\n", "\n"},        {"sesame", NULL},    {"sesame", "sesame\r"}};

    for (unsigned i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        come_to_proof(pairs[i][0], pairs[i][1]);
        assert_false(take(&acceptor, &proof, &answer));
        assert_non_null(strstr(acceptor.why, "another token"));
        assert_int_equal(answer.n, 0);
        assert_false(acceptor.auth.is_done || acceptor.auth.out.is_on || acceptor.auth.in.is_on);
    }
}

/* Its own proof is no answer, and neither is what somebody without the token makes. */
static void test_reflected(void **state)
{
    come_to_proof("sesame", "sesame");
    answer = proof;
    answer.p[4] = BT_KV_AUTH_GREET + 3;
    assert_false(take(&dialler, &answer, &challenge));
    assert_false(dialler.auth.is_done);
    /* Nor is it, at a port of its own, a proof: its challenge is met by itself. */
    come_to_proof("sesame", "sesame");
    memcpy(acceptor.auth.dialler, acceptor.auth.acceptor, BT_HMAC_BYTES);
    assert_false(take(&acceptor, &proof, &answer));
}

static void test_replayed(void **state)
{
    message_t old_greet, old_proof, old_answer;

    come_to_end("sesame", "sesame");
    old_greet = greet;
    old_proof = proof;
    old_answer = answer;
    begin("sesame", "sesame");
    assert_true(take(&acceptor, &old_greet, &challenge));
    assert_false(take(&acceptor, &old_proof, &answer));
    come_to_proof("sesame", "sesame");
    assert_false(take(&dialler, &old_answer, &challenge));
}

/* A proof for one kind of port is none for the other. */
static void test_another_purpose(void **state)
{
    begin("sesame", "sesame");
    acceptor.auth.purpose = BT_KV_AUTH_GATEWAY;
    assert_false(take(&acceptor, &greet, &challenge));
    assert_non_null(strstr(acceptor.why, "wrong port"));
    greet.p[13] = BT_KV_AUTH_GATEWAY; /* whoever relays it says so */
    assert_true(take(&acceptor, &greet, &challenge));
    assert_true(take(&dialler, &challenge, &proof));
    assert_false(take(&acceptor, &proof, &answer));
}

/* Each byte, each length, each order. */
static void test_malformed(void **state)
{
    message_t out;

    for (unsigned which = 0; which < 2; which++)
        for (size_t i = 0; i < 8; i++) {
            if (i == 5)
                continue; /* flags */
            come_to_proof("sesame", "sesame");
            message_t *m = which == 0 ? &greet : &proof;
            if (which == 0)
                begin("sesame", "sesame");
            m->p[i] ^= 1;
            assert_false(take(&acceptor, m, &out));
            assert_int_equal(out.n, 0);
        }
    begin("sesame", "sesame");
    for (size_t n = 0; n < greet.n; n++)
        assert_int_equal(
            bt_kv_auth_take(&acceptor.auth, "sesame", greet.p, n, out.p, &out.n, &acceptor.why), 0);
    assert_true(take(&acceptor, &greet, &challenge));
    assert_false(take(&acceptor, &greet, &out)); /* twice */
    begin("sesame", "sesame");
    assert_false(take(&dialler, &greet, &out)); /* two diallers */
    /* A length that nobody keeps is refused by its head. */
    const uint8_t huge[8] = {0, 0, 1, 0, BT_KV_AUTH_GREET};
    assert_int_equal(
        bt_kv_auth_take(&acceptor.auth, "sesame", huge, sizeof(huge), out.p, &out.n, &acceptor.why),
        BT_E_INVAL);
}

static void test_seals(void **state)
{
    uint8_t frame[64], again[64];

    come_to_end("sesame", "sesame");
    memset(frame, 'x', sizeof(frame));
    for (unsigned i = 0; i < 3; i++) {
        bt_kv_seal_put(&dialler.auth.out, frame, 48, frame + 48);
        assert_true(bt_kv_seal_is_good(&acceptor.auth.in, frame, 48));
    }
    assert_false(bt_kv_seal_is_good(&acceptor.auth.in, frame, 48)); /* again */
    come_to_end("sesame", "sesame");
    bt_kv_seal_put(&dialler.auth.out, frame, 48, frame + 48);
    for (unsigned i = 0; i < 64; i++) {
        bt_kv_seal_t seal = acceptor.auth.in;
        memcpy(again, frame, sizeof(frame));
        again[i] ^= 1;
        assert_false(bt_kv_seal_is_good(&seal, again, 48));
    }
    bt_kv_seal_t own = dialler.auth.in; /* said back to it */
    assert_false(bt_kv_seal_is_good(&own, frame, 48));
}

static void test_bound(void **state)
{
    uint8_t told[16], here[16], there[16];

    memset(told, 7, sizeof(told));
    memcpy(here, told, sizeof(told));
    memcpy(there, told, sizeof(told));
    begin("sesame", "sesame");
    bt_kv_auth_bind(&dialler.auth, here, sizeof(here));
    assert_memory_equal(here, told, sizeof(told)); /* without a token nothing changes */
    come_to_end("sesame", "sesame");
    bt_kv_auth_bind(&dialler.auth, here, sizeof(here));
    bt_kv_auth_bind(&acceptor.auth, there, sizeof(there));
    assert_memory_equal(here, there, sizeof(here));
    assert_memory_not_equal(here, told, sizeof(told));
    memcpy(there, told, sizeof(told));
    come_to_end("sesame", "sesame"); /* another session's is another one */
    bt_kv_auth_bind(&acceptor.auth, there, sizeof(there));
    assert_memory_not_equal(here, there, sizeof(here));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_token),  cmocka_unit_test(test_another_token),
        cmocka_unit_test(test_reflected),       cmocka_unit_test(test_replayed),
        cmocka_unit_test(test_another_purpose), cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_seals),           cmocka_unit_test(test_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
