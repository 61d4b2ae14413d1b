/* Batches as engines write them, in both shapes, and what no engine writes. */
#include "kvindex/event.h"

#include "base/err.h"
#include "kvindex/chain.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES(text) ((bt_str_t){text, sizeof(text) - 1})
#define MAX 8

/* Copies: an event is borrowed. */
static struct {
    bt_kv_event_t event;
    uint64_t hashes[MAX], extras[MAX];
    uint32_t tokens[64];
    char lora[16];
} got[MAX];
static unsigned count;
static bt_kv_decoder_t decoder;

static void on_event(void *user, const bt_kv_event_t *e)
{
    (void) user;
    assert_true(count < MAX && e->hash_count <= MAX && e->token_count <= 64);
    got[count].event = *e;
    for (unsigned i = 0; i < e->hash_count; i++) {
        got[count].hashes[i] = e->hashes[i];
        got[count].extras[i] = e->extras != NULL ? e->extras[i] : 0;
    }
    for (unsigned i = 0; i < e->token_count; i++)
        got[count].tokens[i] = e->tokens[i];
    snprintf(got[count].lora, sizeof(got[count].lora), "%.*s", BT_STR_ARG(e->lora));
    count++;
}

static int setup(void **state)
{
    bt_kv_decoder_init(&decoder);
    memset(got, 0, sizeof(got));
    count = 0;
    return 0;
}

static int teardown(void **state)
{
    bt_kv_decoder_fini(&decoder);
    return 0;
}

/* A copy of just that size, so that a sanitizer sees a byte read behind it. */
static int decode(bt_str_t payload)
{
    char *copy = malloc(payload.n > 0 ? payload.n : 1);

    assert_non_null(copy);
    memcpy(copy, payload.p, payload.n);
    count = 0;
    const int rc = bt_kv_decode(&decoder, (bt_str_t){copy, payload.n}, on_event, NULL);
    free(copy);
    return rc;
}

static bt_str_t unhex(const char *hex, char *out)
{
    size_t n = 0;

    for (; hex[0] != '\0'; hex += 2, n++)
        out[n] = (char) (bt_str_hex(hex[0]) << 4 | bt_str_hex(hex[1]));
    return (bt_str_t){out, n};
}

static void expect_four_tokens(void)
{
    static const uint32_t tokens[] = {1, 2, 3, 4};

    assert_int_equal(count, 1);
    assert_int_equal(got[0].event.kind, BT_KV_STORED);
    assert_int_equal(got[0].event.tier, BT_KV_DEVICE);
    assert_int_equal(got[0].event.hash_count, 1);
    assert_true(got[0].hashes[0] == UINT64_C(8263819412558533880));
    assert_false(got[0].event.has_parent);
    assert_int_equal(got[0].event.block_tokens, 4);
    assert_int_equal(got[0].event.token_count, 4);
    assert_memory_equal(got[0].tokens, tokens, sizeof(tokens));
    assert_true(got[0].event.root == bt_kv_root(BT_STR(""), BT_STR("")));
    assert_null(got[0].event.extras);
}

/* vLLM since June 2026: maps. */
static void test_maps(void **state)
{
    char bytes[256];

    assert_int_equal(
        decode(unhex(
            "93cb3ff00000000000009188a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391"
            "cf72aefbf8dd8754f8b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647394010203"
            "04aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d"
            "65c000",
            bytes)),
        0);
    expect_four_tokens();
}

/* Before, and SGLang: arrays. */
static void test_arrays(void **state)
{
    char bytes[256];

    assert_int_equal(decode(unhex("93cb3ff00000000000009198ab426c6f636b53746f72656491cf72aefbf8dd87"
                                  "54f8c0940102030404c0a3475055c000",
                                  bytes)),
                     0);
    expect_four_tokens();
}

static void test_removed_and_cleared(void **state)
{
    char bytes[256];

    assert_int_equal(decode(unhex("93cb3ff00000000000009283a474797065ac426c6f636b52656d6f766564ac62"
                                  "6c6f636b5f6861736865739107a66d656469756da347505581a474797065b041"
                                  "6c6c426c6f636b73436c656172656400",
                                  bytes)),
                     0);
    assert_int_equal(count, 2);
    assert_int_equal(got[0].event.kind, BT_KV_REMOVED);
    assert_int_equal(got[0].hashes[0], 7);
    assert_int_equal(got[1].event.kind, BT_KV_CLEARED);
}

/* What vLLM 0.32.0 wrote on a CPU, whose medium it calls "GPU" too: a salted prompt of two blocks, then copies of one block that go. */
static void test_a_real_vllm(void **state)
{
    char bytes[512];

    assert_int_equal(
        decode(unhex(
            "93cb41dac2698386a88d918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392"
            "cf06ee1920d611ad7bcf5f4a8ad702e0fafab1706172656e745f626c6f636b5f68617368c0a9746f6b656e"
            "5f696473dc00400102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2021222324"
            "25262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f40aa626c6f636b5f73697a6520a76c6f"
            "72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b6579739291a361"
            "6263c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f61747465"
            "6e74696f6e00",
            bytes)),
        0);
    assert_int_equal(count, 1);
    assert_int_equal(got[0].event.tier, BT_KV_DEVICE);
    assert_int_equal(got[0].event.hash_count, 2);
    assert_true(got[0].hashes[1] == UINT64_C(6866453237950642938));
    assert_int_equal(got[0].event.block_tokens, 32);
    assert_int_equal(got[0].tokens[63], 64);
    assert_true(got[0].event.root == bt_kv_root(BT_STR(""), BT_STR("abc")));
    assert_null(got[0].event.extras);
    assert_false(got[0].event.is_partial);
    assert_int_equal(
        decode(unhex(
            "93cb41dac26983d73e089284a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173686573"
            "91cf40ec39fb3ab240c3a66d656469756da3475055a967726f75705f6964780084a474797065ac426c6f63"
            "6b52656d6f766564ac626c6f636b5f68617368657391cf40ec39fb3ab240c3a66d656469756da3475055a9"
            "67726f75705f6964780000",
            bytes)),
        0);
    assert_int_equal(count, 2);
    assert_int_equal(got[1].event.kind, BT_KV_REMOVED);
    assert_int_equal(got[1].event.group, 0);
    assert_true(got[0].hashes[0] == got[1].hashes[0]);
    assert_int_equal(decoder.stats.unknown + decoder.stats.malformed, 0);
}

/* SGLang 0.5.23 on a CPU: a salted prompt, again of two blocks. */
static void test_a_real_sglang(void **state)
{
    char bytes[512];

    assert_int_equal(
        decode(unhex(
            "93cb41dac26b829d7b469188a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392"
            "d38566e1456d1c8391d39e0ebded06a7c7b5b1706172656e745f626c6f636b5f68617368c0a9746f6b656e"
            "5f696473dc004001080f161d242b323940474e555c636a71787fcc86cc8dcc94cc9bcca2cca9ccb0ccb7cc"
            "beccc5ccccccd3ccdacce1cce8ccefccf6ccfdcd0104cd010bcd0112cd0119cd0120cd0127cd012ecd0135"
            "cd013ccd0143cd014acd0151cd0158cd015fcd0166cd016dcd0174cd017bcd0182cd0189cd0190cd0197cd"
            "019ecd01a5cd01accd01b3cd01baaa626c6f636b5f73697a6520a76c6f72615f6964c0a66d656469756da3"
            "475055aa63616368655f73616c74a361626300",
            bytes)),
        0);
    assert_int_equal(count, 1);
    assert_int_equal(got[0].event.tier, BT_KV_DEVICE);
    assert_true(got[0].hashes[0] == (uint64_t) INT64_C(-8834125930741070959));
    assert_int_equal(got[0].event.block_tokens, 32);
    assert_int_equal(got[0].tokens[63], 442);
    assert_true(got[0].event.root == bt_kv_root(BT_STR(""), BT_STR("abc")));
    assert_int_equal(decoder.stats.unknown + decoder.stats.malformed, 0);
}

/* A batch that is a map, too, and no rank. */
static void test_batch_as_a_map(void **state)
{
    assert_int_equal(decode(BYTES("\x82\xa2ts\x01\xa6"
                                  "events\x91\x91\xb0"
                                  "AllBlocksCleared")),
                     0);
    assert_int_equal(count, 1);
    assert_int_equal(decode(BYTES("\x92\x01\x90")), 0);
    assert_int_equal(count, 0);
}

/* Digests are what the engine would send as numbers; SGLang's numbers have a sign. */
static void test_hashes(void **state)
{
    /* ["BlockRemoved", [bin 16, -2360060374177730597]] */
    assert_int_equal(
        decode(BYTES("\x92\x01\x91\x92\xac"
                     "BlockRemoved\x92\xc4\x10\xff\xff\xff\xff\xff\xff\xff\xff"
                     "\x00\x00\x00\x00\x00\x00\x01\x02\xd3\xdf\x3f\x61\x98\x04\xa9\x2f\xdb")),
        0);
    assert_int_equal(got[0].event.hash_count, 2);
    assert_int_equal(got[0].hashes[0], 0x102);
    assert_true(got[0].hashes[1] == (uint64_t) INT64_C(-2360060374177730597));
}

/* vLLM's tail: lora_name, extra_keys, group, kind, window. SGLang's: a map with the salt. Pairs of tokens are keyed for drafts. */
static void test_tails(void **state)
{
    /* ["BlockStored", [1], nil, [5, 6], 2, 3, "CPU", "sql", [["sql", "salty"]], 1, "sliding_window", 64] */
    assert_int_equal(decode(BYTES("\x92\x01\x91\x9c\xab"
                                  "BlockStored\x91\x01\xc0\x92\x05\x06\x02\x03\xa3"
                                  "CPU\xa3sql\x91\x92\xa3sql\xa5salty\x01\xaesliding_window\x40")),
                     0);
    assert_string_equal(got[0].lora, "sql");
    assert_int_equal(got[0].event.tier, BT_KV_HOST);
    assert_true(got[0].event.root == bt_kv_root(BT_STR("sql"), BT_STR("salty")));
    assert_null(got[0].event.extras);
    assert_int_equal(got[0].event.group, 1);
    assert_true(got[0].event.is_partial);
    /* ["BlockStored", [1], nil, [[5, 9], [6, 9]], 2, nil, "DISK", {"cache_salt": "salty"}] */
    assert_int_equal(decode(BYTES("\x92\x01\x91\x98\xab"
                                  "BlockStored\x91\x01\xc0\x92\x92\x05\x09\x92\x06\x09\x02\xc0\xa4"
                                  "DISK\x81\xaa"
                                  "cache_salt\xa5salty")),
                     0);
    assert_int_equal(got[0].event.tier, BT_KV_DISK);
    assert_int_equal(got[0].tokens[0], 5);
    assert_int_equal(got[0].tokens[1], 6);
    assert_true(got[0].event.root == bt_kv_root(BT_STR(""), BT_STR("salty")));
}

/* An image in the second block: whoever knows its tokens alone must not find it. */
static void test_extra_keys(void **state)
{
    /* ["BlockStored", [1, 2], nil, [5, 6], 1, nil, "GPU", nil, [nil, [["img", 3]]]] */
    assert_int_equal(decode(BYTES("\x92\x01\x91\x99\xab"
                                  "BlockStored\x92\x01\x02\xc0\x92\x05\x06\x01\xc0\xa3"
                                  "GPU\xc0\x92\xc0\x91\x92\xa3img\x03")),
                     0);
    assert_non_null(got[0].event.extras);
    assert_int_equal(got[0].extras[0], 0);
    assert_int_not_equal(got[0].extras[1], 0);
    assert_true(got[0].event.root == 0);
}

/* Engines change: what is not known is no reason to lose the rest. */
static void test_unknown_is_skipped(void **state)
{
    /* [1, [["BlockInactive", 1], {"type": "BlockRemoved", "block_hashes": [9], "new": {"a": [1]}}, ["BlockRemoved", [1], "TAPE"]], 0, "more"] */
    assert_int_equal(decode(BYTES("\x94\x01\x93\x92\xad"
                                  "BlockInactive\x01\x83\xa4type\xac"
                                  "BlockRemoved\xac"
                                  "block_hashes\x91\x09\xa3new\x81\xa1"
                                  "a\x91\x01\x93\xac"
                                  "BlockRemoved\x91\x01\xa4TAPE\x00\xa4more")),
                     0);
    assert_int_equal(count, 1);
    assert_int_equal(got[0].hashes[0], 9);
    assert_int_equal(decoder.stats.unknown, 2);
    assert_int_equal(decoder.stats.malformed, 0);
}

/* Each is left out, and the one behind it comes. */
static void test_malformed_events(void **state)
{
    static const bt_str_t all[] = {
        BYTES("\x01"),     /* no event */
        BYTES("\x91\x01"), /* no tag */
        BYTES("\x92\xac"
              "BlockRemoved\x01"), /* no list */
        BYTES("\x92\xac"
              "BlockRemoved\x91\xa1x"), /* a text */
        BYTES("\x92\xac"
              "BlockRemoved\x91\xc4\x02xx"), /* a short digest */
        BYTES("\x95\xab"
              "BlockStored\x91\x01\xc0\x91\x05\x02"), /* a token of two */
        BYTES("\x95\xab"
              "BlockStored\x91\x01\xc0\x91\x05\x00"), /* blocks of none */
        BYTES("\x95\xab"
              "BlockStored\x91\x01\xc0\x91\xff\x01"), /* a negative token */
        BYTES("\x95\xab"
              "BlockStored\x91\x01\xc0\x91\xa1y\x01"), /* no number */
        BYTES("\x95\xab"
              "BlockStored\x91\x01\xa1z\x91\x05\x01"), /* a parent that is a text */
        BYTES("\x99\xab"
              "BlockStored\x91\x01\xc0\x91\x05\x01\xc0\xc0\xc0\x92\xc0\xc0"), /* keys of two */
        BYTES("\x95\xab"
              "BlockStored\x91\x01\xc0\x91\x05\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        char payload[128] = "\x92\x01\x92";
        const bt_str_t next = BYTES("\x91\xb0"
                                    "AllBlocksCleared");
        memcpy(payload + 3, all[i].p, all[i].n);
        memcpy(payload + 3 + all[i].n, next.p, next.n);
        decoder.stats.malformed = 0;
        assert_int_equal(decode((bt_str_t){payload, 3 + all[i].n + next.n}), 0);
        assert_int_equal(decoder.stats.malformed, 1);
        assert_int_equal(count, 1);
    }
}

static void test_no_batches(void **state)
{
    static const bt_str_t all[] = {BYTES(""),
                                   BYTES("\xc0"),
                                   BYTES("\x90"),
                                   BYTES("\x91\x01"),
                                   BYTES("\x92\x01\x02"),
                                   BYTES("\x80"),
                                   BYTES("\x92\x01\xdd\xff\xff\xff\xff")};
    char *large = calloc(1, BT_KV_PAYLOAD_MAX + 1);

    assert_non_null(large);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        assert_int_equal(decode(all[i]), BT_E_INVAL);
    assert_int_equal(
        bt_kv_decode(&decoder, (bt_str_t){large, BT_KV_PAYLOAD_MAX + 1}, on_event, NULL),
        BT_E_LIMIT);
    free(large);
}

/* Blocks that go into another tier are named, not told again. */
static void test_without_tokens(void **state)
{
    /* ["BlockStored", [1, 2], nil, [], 0, nil, "CPU"] */
    assert_int_equal(decode(BYTES("\x92\x01\x91\x97\xab"
                                  "BlockStored\x92\x01\x02\xc0\x90\x00\xc0\xa3"
                                  "CPU")),
                     0);
    assert_int_equal(count, 1);
    assert_int_equal(got[0].event.token_count, 0);
    assert_int_equal(got[0].event.hash_count, 2);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)
    const struct CMUnitTest tests[] = {T(maps),
                                       T(arrays),
                                       T(removed_and_cleared),
                                       T(batch_as_a_map),
                                       T(a_real_vllm),
                                       T(a_real_sglang),
                                       T(hashes),
                                       T(tails),
                                       T(extra_keys),
                                       T(unknown_is_skipped),
                                       T(no_batches),
                                       T(without_tokens),
                                       T(malformed_events)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
