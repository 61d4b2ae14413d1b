/* Tokens: what is believed, and every known attack (RFC 8725, and what has been found in other implementations). */
#include "identity/jwt.h"

#include "base/err.h"
#include "identity/base64url.h"
#include "unit.h"
#include <openssl/err.h>

#include "tokens.h"

#define NOW UINT64_C(1800000000000)
#define EXP "\"exp\":1800000300"
#define REST "\"iss\":\"https://issuer\",\"aud\":\"baton\",\"sub\":\"alice\""
#define GOOD "{" REST "," EXP "}"

static const char *const wanted_claims[] = {"plan", "groups", NULL};
static const bt_jwt_rules_t rules = {.issuer = "https://issuer",
                                     .audience = "baton",
                                     .tenant_claim = "tenant",
                                     .scope_claim = "scope",
                                     .claims = wanted_claims,
                                     .skew_ms = 60000};
static bt_jwks_t *jwks;

static bt_jwks_t *read_set(const char *text)
{
    bt_jwks_t *set = NULL;
    char err[256] = "";

    if (bt_jwks_read(bt_str(text), &set, err, sizeof err) != 0)
        fail_msg("%s: %s", err, text);
    return set;
}

static int setup(void **state)
{
    tokens_open();
    char *keys[] = {jwk_of(rsa, "r", ""),
                    jwk_of(ec, "e", ""),
                    jwk_of(ed, "d1", ""),
                    strdup("{\"kty\":\"oct\",\"kid\":\"o\",\"k\":\"c2VjcmV0\"}"),
                    jwk_of(rsa_short, "short", ""),
                    jwk_of(p384, "p384", ""),
                    jwk_of(ec_other, "enc", ",\"use\":\"enc\"")};
    char *text = set_of((const char *const *) keys, 7);
    jwks = read_set(text);
    assert_int_equal(jwks->count, 3);
    assert_int_equal(jwks->left_out, 4);
    free(text);
    for (unsigned i = 0; i < 7; i++)
        free(keys[i]);
    return 0;
}

static int teardown(void **state)
{
    bt_jwks_unref(jwks);
    tokens_close();
    return 0;
}

static enum bt_auth_refusal verify(const char *token, bt_jwt_t *jwt)
{
    return bt_jwt_verify(&rules, jwks, bt_str(token), NOW, jwt);
}

/* Takes the token. */
static void check(const char *what, char *token, enum bt_auth_refusal wanted)
{
    bt_jwt_t jwt;

    ERR_clear_error();
    const enum bt_auth_refusal got = verify(token, &jwt);

    assert_int_equal(ERR_peek_error(), 0); /* TLS sessions of this thread look at the same queue */
    if (got != wanted)
        fail_msg("%s: %s instead of %s", what, bt_auth_label(got), bt_auth_label(wanted));
    if (got != BT_AUTH_OK)
        assert_null(jwt.texts);
    bt_jwt_fini(&jwt);
    free(token);
}

static void the_three_algorithms_are_believed(void **state)
{
    check("RS256", token_of("{\"alg\":\"RS256\",\"kid\":\"r\"}", GOOD, rsa), BT_AUTH_OK);
    check("ES256", token_of("{\"alg\":\"ES256\",\"kid\":\"e\",\"typ\":\"JWT\"}", GOOD, ec),
          BT_AUTH_OK);
    check("EdDSA", token_of("{\"typ\":\"at+jwt\",\"alg\":\"EdDSA\",\"kid\":\"d1\"}", GOOD, ed),
          BT_AUTH_OK);
    for (unsigned i = 0; i < 300; i++) { /* r and s with leading zeros */
        bt_jwt_t jwt;
        char *token = token_of("{\"alg\":\"ES256\",\"kid\":\"e\"}", GOOD, ec);
        assert_int_equal(verify(token, &jwt), BT_AUTH_OK);
        bt_jwt_fini(&jwt);
        free(token);
    }
}

/* ---- attacks on header and signature ---- */

static const char *const RS = "{\"alg\":\"RS256\",\"kid\":\"r\"}";

/* The same with other last characters. */
static char *with_end(char *token, const char *end)
{
    char *text = malloc(strlen(token) + strlen(end) + 1);

    sprintf(text, "%.*s%s", (int) (strrchr(token, '.') - token), token, end);
    free(token);
    return text;
}

static void headers_are_not_believed(void **state)
{
    static const struct {
        const char *what, *header;
        enum bt_auth_refusal refusal;
    } rows[] = {
        {"none", "{\"alg\":\"none\",\"kid\":\"r\"}", BT_AUTH_TOKEN_ALGORITHM},
        {"None", "{\"alg\":\"None\",\"kid\":\"r\"}", BT_AUTH_TOKEN_ALGORITHM},
        {"NONE", "{\"alg\":\"NONE\",\"kid\":\"r\"}", BT_AUTH_TOKEN_ALGORITHM},
        {"empty alg", "{\"alg\":\"\",\"kid\":\"r\"}", BT_AUTH_TOKEN_MALFORMED},
        {"no alg", "{\"kid\":\"r\"}", BT_AUTH_TOKEN_MALFORMED},
        {"alg is a list", "{\"alg\":[\"RS256\"],\"kid\":\"r\"}", BT_AUTH_TOKEN_MALFORMED},
        {"alg is null", "{\"alg\":null,\"kid\":\"r\"}", BT_AUTH_TOKEN_MALFORMED},
        {"rs256", "{\"alg\":\"rs256\",\"kid\":\"r\"}", BT_AUTH_TOKEN_ALGORITHM},
        {"RS512", "{\"alg\":\"RS512\",\"kid\":\"r\"}", BT_AUTH_TOKEN_ALGORITHM},
        {"PS256", "{\"alg\":\"PS256\",\"kid\":\"r\"}", BT_AUTH_TOKEN_ALGORITHM},
        {"a NUL behind it", "{\"alg\":\"RS256\\u0000\",\"kid\":\"r\"}", BT_AUTH_TOKEN_MALFORMED},
        {"another key's", "{\"alg\":\"ES256\",\"kid\":\"r\"}", BT_AUTH_TOKEN_ALGORITHM},
        {"another kid", "{\"alg\":\"RS256\",\"kid\":\"e\"}", BT_AUTH_TOKEN_ALGORITHM},
        {"unknown kid", "{\"alg\":\"RS256\",\"kid\":\"x\"}", BT_AUTH_TOKEN_KEY},
        {"no kid, many keys", "{\"alg\":\"RS256\"}", BT_AUTH_TOKEN_KEY},
        {"empty kid", "{\"alg\":\"RS256\",\"kid\":\"\"}", BT_AUTH_TOKEN_MALFORMED},
        {"kid is a number", "{\"alg\":\"RS256\",\"kid\":1}", BT_AUTH_TOKEN_MALFORMED},
        {"kid is a path", "{\"alg\":\"RS256\",\"kid\":\"../../dev/null\"}", BT_AUTH_TOKEN_KEY},
        {"kid is SQL", "{\"alg\":\"RS256\",\"kid\":\"x' OR '1'='1\"}", BT_AUTH_TOKEN_KEY},
        {"kid of a secret", "{\"alg\":\"HS256\",\"kid\":\"o\"}", BT_AUTH_TOKEN_KEY},
        {"kid of a short key", "{\"alg\":\"RS256\",\"kid\":\"short\"}", BT_AUTH_TOKEN_KEY},
        {"kid for encryption", "{\"alg\":\"ES256\",\"kid\":\"enc\"}", BT_AUTH_TOKEN_KEY},
        {"kid of P-384", "{\"alg\":\"ES384\",\"kid\":\"p384\"}", BT_AUTH_TOKEN_KEY},
        {"alg twice", "{\"alg\":\"none\",\"alg\":\"RS256\",\"kid\":\"r\"}",
         BT_AUTH_TOKEN_MALFORMED},
        {"alg twice, escaped", "{\"alg\":\"RS256\",\"\\u0061lg\":\"none\",\"kid\":\"r\"}",
         BT_AUTH_TOKEN_MALFORMED},
        {"kid twice", "{\"alg\":\"RS256\",\"kid\":\"r\",\"kid\":\"e\"}", BT_AUTH_TOKEN_MALFORMED},
        {"crit", "{\"alg\":\"RS256\",\"kid\":\"r\",\"crit\":[\"exp\"]}", BT_AUTH_TOKEN_MALFORMED},
        {"empty crit", "{\"alg\":\"RS256\",\"kid\":\"r\",\"crit\":[]}", BT_AUTH_TOKEN_MALFORMED},
        {"b64", "{\"alg\":\"RS256\",\"kid\":\"r\",\"b64\":false}", BT_AUTH_TOKEN_MALFORMED},
        {"typ of something else", "{\"alg\":\"RS256\",\"kid\":\"r\",\"typ\":\"secevent+jwt\"}",
         BT_AUTH_TOKEN_MALFORMED},
        {"no object", "[\"RS256\"]", BT_AUTH_TOKEN_MALFORMED},
        {"no JSON", "alg=RS256", BT_AUTH_TOKEN_MALFORMED},
        {"JSON and more", "{\"alg\":\"RS256\",\"kid\":\"r\"}{}", BT_AUTH_TOKEN_MALFORMED},
        {"no UTF-8", "{\"alg\":\"RS256\",\"kid\":\"r\",\"x\":\"\xff\"}", BT_AUTH_TOKEN_MALFORMED},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check(rows[i].what, token_of(rows[i].header, GOOD, rsa), rows[i].refusal);
}

/* A header that brings its own key, or says where one is: nobody looks. */
static void keys_in_headers_are_not_looked_at(void **state)
{
    char *own = jwk_of(rsa_other, "r", ""), header[4096];

    snprintf(header, sizeof header, "{\"alg\":\"RS256\",\"kid\":\"r\",\"x5u\":\"http://a/\"}");
    check("x5u", token_of(header, GOOD, rsa_other), BT_AUTH_TOKEN_SIGNATURE);
    snprintf(header, sizeof header, "{\"alg\":\"RS256\",\"kid\":\"r\",\"jku\":\"http://a/\"}");
    check("jku", token_of(header, GOOD, rsa_other), BT_AUTH_TOKEN_SIGNATURE);
    check("jku is no harm", token_of(header, GOOD, rsa), BT_AUTH_OK);
    snprintf(header, sizeof header, "{\"alg\":\"RS256\",\"kid\":\"r\",\"jwk\":%s}", own);
    if (strlen(header) < BT_JWT_HEADER_MAX)
        check("jwk", token_of(header, GOOD, rsa_other), BT_AUTH_TOKEN_SIGNATURE);
    else
        check("jwk", token_of(header, GOOD, rsa_other), BT_AUTH_TOKEN_MALFORMED);
    free(own);
}

static void signatures_are_looked_at(void **state)
{
    char *n = number_of(rsa, OSSL_PKEY_PARAM_RSA_N, 0), *text, *other;
    unsigned char *pem = NULL;
    size_t pem_size = 0;

    check("none, without one", with_end(token_of("{\"alg\":\"none\"}", GOOD, rsa), "."),
          BT_AUTH_TOKEN_MALFORMED);
    check("without one", with_end(token_of(RS, GOOD, rsa), "."), BT_AUTH_TOKEN_MALFORMED);
    check("another key", token_of(RS, GOOD, rsa_other), BT_AUTH_TOKEN_SIGNATURE);
    check("another key, EC", token_of("{\"alg\":\"ES256\",\"kid\":\"e\"}", GOOD, ec_other),
          BT_AUTH_TOKEN_SIGNATURE);
    check("another key, Ed25519", token_of("{\"alg\":\"EdDSA\",\"kid\":\"d1\"}", GOOD, ed_other),
          BT_AUTH_TOKEN_SIGNATURE);
    check("HS256 under a public key's numbers",
          hmac_token("{\"alg\":\"HS256\",\"kid\":\"r\"}", GOOD, n, strlen(n)),
          BT_AUTH_TOKEN_ALGORITHM);
    check("HMAC called RS256", hmac_token(RS, GOOD, n, strlen(n)), BT_AUTH_TOKEN_SIGNATURE);
    free(n);
    pem_size = (size_t) i2d_PUBKEY(rsa, &pem);
    check("HS256 under the public key's DER",
          hmac_token("{\"alg\":\"HS256\",\"kid\":\"r\"}", GOOD, pem, pem_size),
          BT_AUTH_TOKEN_ALGORITHM);
    OPENSSL_free(pem);
    /* CVE-2022-21449: zeros */
    check("r and s are 0",
          with_end(
              token_of("{\"alg\":\"ES256\",\"kid\":\"e\"}", GOOD, ec),
              ".AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
              "AAAAA"),
          BT_AUTH_TOKEN_SIGNATURE);
    text = unsigned_token("{\"alg\":\"ES256\",\"kid\":\"e\"}", GOOD);
    other = sign_as(text, ec, true);
    check("ECDSA in DER", joined(text, other), BT_AUTH_TOKEN_SIGNATURE);
    free(other);
    free(text);
    other = sign_as(text = unsigned_token("{\"alg\":\"ES256\",\"kid\":\"e\"}", GOOD), ec, false);
    unsigned char raw[65] = {0};
    assert_int_equal(bt_base64url_decode(bt_str(other), raw, sizeof raw), 64);
    free(other);
    other = b64(raw, 65);
    check("ECDSA with a byte behind it", joined(text, other), BT_AUTH_TOKEN_SIGNATURE);
    free(other);
    free(text);
    check("too short", with_end(token_of(RS, GOOD, rsa), ".AAAA"), BT_AUTH_TOKEN_SIGNATURE);
    check("Ed25519 of zeros",
          with_end(
              token_of("{\"alg\":\"EdDSA\",\"kid\":\"d1\"}", GOOD, ed),
              ".AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
              "AAAAA"),
          BT_AUTH_TOKEN_SIGNATURE);
}

/* Every bit of a token counts: no other text is the same token. */
static void other_spellings_are_refused(void **state)
{
    static const char *const more[] = {"=", "==", "A", " ", "\n", ".", ".e30", "%00"};
    char *good = token_of("{\"alg\":\"EdDSA\",\"kid\":\"d1\"}", GOOD, ed), *text;
    bt_jwt_t jwt;

    assert_int_equal(verify(good, &jwt), BT_AUTH_OK);
    bt_jwt_fini(&jwt);
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        text = malloc(strlen(good) + strlen(more[i]) + 1);
        sprintf(text, "%s%s", good, more[i]);
        if (verify(text, &jwt) == BT_AUTH_OK)
            fail_msg("believed with \"%s\" behind it", more[i]);
        free(text);
    }
    for (size_t i = 0; i < strlen(good);
         i++) { /* one other character: also the unused bits of the last */
        text = strdup(good);
        text[i] = text[i] == 'A' ? 'B' : text[i] == '.' ? 'A' : (char) (text[i] ^ 1);
        if (verify(text, &jwt) == BT_AUTH_OK)
            fail_msg("believed with another character at %zu", i);
        free(text);
    }
    for (size_t n = 0; n < strlen(good); n++) {
        text = strndup(good, n);
        if (verify(text, &jwt) == BT_AUTH_OK)
            fail_msg("believed when cut at %zu", n);
        free(text);
    }
    check("five parts", strdup("eyJhbGciOiJSUzI1NiJ9.e30.e30.e30.e30"), BT_AUTH_TOKEN_MALFORMED);
    check("empty parts", strdup(".."), BT_AUTH_TOKEN_MALFORMED);
    free(good);
}

static void base64url_has_one_spelling(void **state)
{
    static const struct {
        const char *text;
        long n;
    } rows[] = {{"", 0},      {"QQ", 1},    {"QR", -1},    {"QQ==", -1},  {"QUI", 2},
                {"QUJ", -1},  {"QUJD", 3},  {"Q", -1},     {"QUJDR", -1}, {"-_-_", 3},
                {"+/+/", -1}, {"QU I", -1}, {"QUI\n", -1}, {"A", -1},     {"QUJDA", -1}};
    unsigned char out[3];

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (bt_base64url_decode(bt_str(rows[i].text), out, sizeof out) != rows[i].n)
            fail_msg("\"%s\"", rows[i].text);
    assert_int_equal(bt_base64url_decode(BT_STR("QUJDRA"), out, sizeof out), -1); /* no room */
}

/* ---- claims ---- */

static void claims_are_looked_at(void **state)
{
    static const struct {
        const char *what, *payload;
        enum bt_auth_refusal refusal;
    } rows[] = {
        {"no exp", "{" REST "}", BT_AUTH_TOKEN_CLAIMS},
        {"exp is text", "{" REST ",\"exp\":\"1800000300\"}", BT_AUTH_TOKEN_CLAIMS},
        {"exp is null", "{" REST ",\"exp\":null}", BT_AUTH_TOKEN_CLAIMS},
        {"exp is endless", "{" REST ",\"exp\":1e400}", BT_AUTH_TOKEN_CLAIMS},
        {"exp is negative", "{" REST ",\"exp\":-1}", BT_AUTH_TOKEN_CLAIMS},
        {"exp in ms", "{" REST ",\"exp\":1800000300000000}", BT_AUTH_TOKEN_CLAIMS},
        {"exp twice", "{" REST ",\"exp\":1," EXP "}", BT_AUTH_TOKEN_MALFORMED},
        {"exp twice, escaped", "{" REST ",\"\\u0065xp\":1," EXP "}", BT_AUTH_TOKEN_MALFORMED},
        {"expired", "{" REST ",\"exp\":1799999940}", BT_AUTH_TOKEN_EXPIRED},
        {"expired within the skew", "{" REST ",\"exp\":1799999941}", BT_AUTH_OK},
        {"exp with a fraction", "{" REST ",\"exp\":1800000300.5}", BT_AUTH_OK},
        {"exp is 0", "{" REST ",\"exp\":0}", BT_AUTH_TOKEN_EXPIRED},
        {"early", "{" REST "," EXP ",\"nbf\":1800000061}", BT_AUTH_TOKEN_EARLY},
        {"early within the skew", "{" REST "," EXP ",\"nbf\":1800000060}", BT_AUTH_OK},
        {"nbf is text", "{" REST "," EXP ",\"nbf\":\"0\"}", BT_AUTH_TOKEN_CLAIMS},
        {"no iss", "{\"aud\":\"baton\",\"sub\":\"a\"," EXP "}", BT_AUTH_TOKEN_ISSUER},
        {"another iss", "{\"iss\":\"https://issuer/\",\"aud\":\"baton\",\"sub\":\"a\"," EXP "}",
         BT_AUTH_TOKEN_ISSUER},
        {"iss in a list", "{\"iss\":[\"https://issuer\"],\"aud\":\"baton\",\"sub\":\"a\"," EXP "}",
         BT_AUTH_TOKEN_ISSUER},
        {"iss escaped", "{\"iss\":\"https:\\/\\/issuer\",\"aud\":\"baton\",\"sub\":\"a\"," EXP "}",
         BT_AUTH_OK},
        {"no aud", "{\"iss\":\"https://issuer\",\"sub\":\"a\"," EXP "}", BT_AUTH_TOKEN_AUDIENCE},
        {"another aud", "{\"iss\":\"https://issuer\",\"aud\":\"batons\",\"sub\":\"a\"," EXP "}",
         BT_AUTH_TOKEN_AUDIENCE},
        {"aud in a list",
         "{\"iss\":\"https://issuer\",\"aud\":[\"x\",\"baton\"],\"sub\":\"a\"," EXP "}",
         BT_AUTH_OK},
        {"not in the list",
         "{\"iss\":\"https://issuer\",\"aud\":[\"x\",[\"baton\"]],\"sub\":\"a\"," EXP "}",
         BT_AUTH_TOKEN_AUDIENCE},
        {"empty list", "{\"iss\":\"https://issuer\",\"aud\":[],\"sub\":\"a\"," EXP "}",
         BT_AUTH_TOKEN_AUDIENCE},
        {"no sub", "{\"iss\":\"https://issuer\",\"aud\":\"baton\"," EXP "}", BT_AUTH_TOKEN_CLAIMS},
        {"empty sub", "{\"iss\":\"https://issuer\",\"aud\":\"baton\",\"sub\":\"\"," EXP "}",
         BT_AUTH_TOKEN_CLAIMS},
        {"sub with a new line",
         "{\"iss\":\"https://issuer\",\"aud\":\"baton\",\"sub\":\"a\\nb\"," EXP "}",
         BT_AUTH_TOKEN_CLAIMS},
        {"tenant is a number", "{" REST "," EXP ",\"tenant\":1}", BT_AUTH_TOKEN_CLAIMS},
        {"tenant is no name", "{" REST "," EXP ",\"tenant\":\"a/b\"}", BT_AUTH_TOKEN_CLAIMS},
        {"scope is a number", "{" REST "," EXP ",\"scope\":1}", BT_AUTH_TOKEN_CLAIMS},
        {"no object", "[1]", BT_AUTH_TOKEN_MALFORMED},
        {"no JSON", "alice", BT_AUTH_TOKEN_MALFORMED},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check(rows[i].what, token_of("{\"alg\":\"EdDSA\",\"kid\":\"d1\"}", rows[i].payload, ed),
              rows[i].refusal);
}

static void sizes_are_bounded(void **state)
{
    char *payload = malloc(16384), *many = malloc(16384);
    size_t n;

    n = (size_t) sprintf(payload, "{" REST "," EXP ",\"x\":\"");
    memset(payload + n, 'x', 8000);
    sprintf(payload + n + 8000, "\"}");
    check("large", token_of("{\"alg\":\"EdDSA\",\"kid\":\"d1\"}", payload, ed),
          BT_AUTH_TOKEN_MALFORMED);
    n = (size_t) sprintf(many, "{" REST "," EXP);
    for (unsigned i = 0; i < 70; i++)
        n += (size_t) sprintf(many + n, ",\"m%u\":1", i);
    sprintf(many + n, "}");
    check("many members", token_of("{\"alg\":\"EdDSA\",\"kid\":\"d1\"}", many, ed),
          BT_AUTH_TOKEN_MALFORMED);
    n = (size_t) sprintf(payload, "{" REST "," EXP ",\"groups\":\"");
    memset(payload + n, 'x', 2500);
    sprintf(payload + n + 2500, "\"}");
    check("large claims", token_of("{\"alg\":\"EdDSA\",\"kid\":\"d1\"}", payload, ed),
          BT_AUTH_TOKEN_CLAIMS);
    n = (size_t) sprintf(payload, "{" REST "," EXP ",\"x\":");
    memset(payload + n, '[', 2000);
    memset(payload + n + 2000, ']', 2000);
    sprintf(payload + n + 4000, "}");
    check("deep", token_of("{\"alg\":\"EdDSA\",\"kid\":\"d1\"}", payload, ed),
          BT_AUTH_TOKEN_MALFORMED);
    free(payload);
    free(many);
}

static void is_text(bt_str_t text, const char *want)
{
    char copy[512];

    snprintf(copy, sizeof copy, "%.*s", BT_STR_ARG(text));
    assert_string_equal(copy, want);
}

static void says_who_it_is(void **state)
{
    char *token = token_of("{\"alg\":\"EdDSA\",\"kid\":\"d1\"}",
                           "{" REST "," EXP ",\"tenant\":\"acme\",\"scope\":\"models gold\","
                           "\"plan\":\"pro\",\"groups\":[\"a\"],\"email\":\"a@b\"}",
                           ed);
    bt_jwt_t jwt, other;

    assert_int_equal(verify(token, &jwt), BT_AUTH_OK);
    assert_int_equal(jwt.identity.source, BT_IDENTITY_JWT);
    is_text(jwt.identity.id, "alice");
    is_text(jwt.identity.tenant, "acme");
    is_text(jwt.identity.scope_names, "models gold");
    is_text(jwt.identity.claims, "{\"plan\":\"pro\",\"groups\":[\"a\"]}");
    assert_int_equal(jwt.identity.scopes, BT_MAY_LIST_MODELS);
    assert_true(jwt.expires_ms == UINT64_C(1800000360000));
    free(token);
    token = token_of("{\"alg\":\"EdDSA\",\"kid\":\"d1\"}",
                     "{" REST "," EXP ",\"scope\":[\"inference\",\"cancel\"]}", ed);
    assert_int_equal(verify(token, &other), BT_AUTH_OK);
    assert_int_equal(other.identity.scopes, BT_MAY_INFER | BT_MAY_CANCEL);
    assert_memory_equal(other.identity.tenant.p, "jwt-", 4);
    is_text(other.identity.claims, "{}");
    assert_true(jwt.identity.owner == other.identity.owner);
    bt_jwt_fini(&other);
    free(token);
    token = token_of("{\"alg\":\"EdDSA\",\"kid\":\"d1\"}", GOOD, ed);
    assert_int_equal(verify(token, &other), BT_AUTH_OK);
    assert_int_equal(other.identity.scopes, BT_MAY_AS_CLIENT);
    bt_jwt_fini(&other);
    free(token);
    token = token_of("{\"alg\":\"EdDSA\",\"kid\":\"d1\"}", "{" REST "," EXP ",\"scope\":\"\"}", ed);
    assert_int_equal(verify(token, &other), BT_AUTH_OK);
    assert_int_equal(other.identity.scopes, 0);
    bt_jwt_fini(&other);
    free(token);
    bt_jwt_fini(&jwt);
}

/* ---- key sets ---- */

static void expect_set(const char *text, const char *why)
{
    bt_jwks_t *set = NULL;
    char err[256] = "";

    assert_int_equal(bt_jwks_read(bt_str(text), &set, err, sizeof err), BT_E_CONFIG);
    assert_null(set);
    assert_string_equal(err, why);
}

static void sets_are_looked_at(void **state)
{
    char *one = jwk_of(ed, "k", ""), *text;
    static const char *const none =
        "no key for RS256 (of 2048 bits or more), ES256 or EdDSA is in it";

    expect_set("", "no key set in JSON: malformed JSON");
    expect_set("{}", "no key set: a list \"keys\" is needed");
    expect_set("{\"keys\":{}}", "no key set: a list \"keys\" is needed");
    expect_set("{\"keys\":[]}", none);
    expect_set("{\"keys\":[1,{}]}", none);
    expect_set("{\"keys\":[],\"keys\":[]}", "no key set in JSON: duplicate JSON key");
    text = set_of((const char *const[]){one, one}, 2);
    expect_set(text, "two keys have the kid \"k\"");
    free(text);
    /* a point that is not on the curve: an invalid-curve attack's */
    expect_set(
        "{\"keys\":[{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
        "AAAAAAAAE\",\"y\":\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE\"}]}",
        none);
    /* e = 1: everybody's signature is right */
    free(one);
    one = number_of(rsa, OSSL_PKEY_PARAM_RSA_N, 0);
    text = malloc(2048);
    sprintf(text, "{\"keys\":[{\"kty\":\"RSA\",\"n\":\"%s\",\"e\":\"AQ\"}]}", one);
    expect_set(text, none);
    sprintf(text, "{\"keys\":[{\"kty\":\"RSA\",\"n\":\"%s=\",\"e\":\"AQAB\"}]}", one);
    expect_set(text, none);
    sprintf(text, "{\"keys\":[{\"kty\":\"RSA\",\"n\":\"%s\",\"e\":\"AQAB\",\"alg\":\"HS256\"}]}",
            one);
    expect_set(text, none);
    sprintf(text, "{\"keys\":[{\"kty\":\"RSA\",\"n\":\"%s\",\"e\":\"AQAB\",\"d\":\"AQAB\"}]}", one);
    expect_set(text, none);
    free(text);
    free(one);
}

static void a_set_of_one_needs_no_kid(void **state)
{
    char *one = strdup("{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"\"}"), *text;
    unsigned char raw[32];
    size_t n = sizeof raw;
    bt_jwt_t jwt;

    free(one);
    EVP_PKEY_get_raw_public_key(ed, raw, &n);
    one = b64(raw, n);
    text = malloc(256);
    sprintf(text, "{\"keys\":[{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"%s\"}]}", one);
    bt_jwks_t *set = read_set(text);
    free(text);
    free(one);
    text = token_of("{\"alg\":\"EdDSA\"}", GOOD, ed);
    assert_int_equal(bt_jwt_verify(&rules, set, bt_str(text), NOW, &jwt), BT_AUTH_OK);
    bt_jwt_fini(&jwt);
    free(text);
    text = token_of("{\"alg\":\"EdDSA\",\"kid\":\"d1\"}", GOOD, ed);
    assert_int_equal(bt_jwt_verify(&rules, set, bt_str(text), NOW, &jwt), BT_AUTH_TOKEN_KEY);
    free(text);
    bt_jwks_unref(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_three_algorithms_are_believed),
        cmocka_unit_test(headers_are_not_believed),
        cmocka_unit_test(keys_in_headers_are_not_looked_at),
        cmocka_unit_test(signatures_are_looked_at),
        cmocka_unit_test(other_spellings_are_refused),
        cmocka_unit_test(base64url_has_one_spelling),
        cmocka_unit_test(claims_are_looked_at),
        cmocka_unit_test(sizes_are_bounded),
        cmocka_unit_test(says_who_it_is),
        cmocka_unit_test(sets_are_looked_at),
        cmocka_unit_test(a_set_of_one_needs_no_kid),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
