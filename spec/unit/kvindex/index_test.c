/* What is stored is found, by whoever holds it and no further; what is not is not. */
#include "kvindex/index.h"

#include "base/err.h"
#include "kvindex/chain.h"
#include "kvindex/query.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK 4u
#define PROMPT_BLOCKS 12u

static bt_kv_index_t *index_;
static bt_kv_query_t *query;

static void open_with(uint64_t max_held)
{
    assert_int_equal(bt_kv_index_new(&index_, &(bt_kv_index_config_t){.max_held = max_held}), 0);
    assert_int_equal(bt_kv_query_new(&query, index_), 0);
}

static int setup(void **state)
{
    open_with(0);
    return 0;
}

static int teardown(void **state)
{
    bt_kv_query_free(query);
    bt_kv_index_free(index_);
    return 0;
}

/* Prompt `n`: as many blocks of its own as one likes, behind `shared` that all have. */
static void fill_prompt(uint32_t *tokens, unsigned blocks, unsigned shared, unsigned n)
{
    for (unsigned i = 0; i < blocks * BLOCK; i++)
        tokens[i] = i < shared * BLOCK ? i : 1000 * (n + 1) + i;
}

/* The engine's name for a block: anything that differs by content. */
static uint64_t engine_hash(const uint32_t *tokens, unsigned block)
{
    return bt_kv_hash((bt_str_t){(const char *) tokens, (size_t) (block + 1) * BLOCK * 4}) | 1;
}

static void store_tier(uint32_t part, const uint32_t *tokens, unsigned from, unsigned to,
                       enum bt_kv_tier tier, uint64_t root)
{
    uint64_t hashes[64];

    for (unsigned i = from; i < to; i++)
        hashes[i - from] = engine_hash(tokens, i) + root;
    bt_kv_part_apply(index_, part,
                     &(bt_kv_event_t){.kind = BT_KV_STORED,
                                      .tier = tier,
                                      .hashes = hashes,
                                      .hash_count = to - from,
                                      .has_parent = from > 0,
                                      .parent = from > 0 ? engine_hash(tokens, from - 1) + root : 0,
                                      .tokens = tokens + (size_t) from * BLOCK,
                                      .token_count = (to - from) * BLOCK,
                                      .block_tokens = BLOCK,
                                      .root = root});
}

static void store(uint32_t part, const uint32_t *tokens, unsigned from, unsigned to)
{
    store_tier(part, tokens, from, to, BT_KV_DEVICE, 0);
}

static void drop(uint32_t part, const uint32_t *tokens, unsigned from, unsigned to,
                 enum bt_kv_tier tier)
{
    uint64_t hashes[64];

    for (unsigned i = from; i < to; i++)
        hashes[i - from] = engine_hash(tokens, i);
    bt_kv_part_apply(
        index_, part,
        &(bt_kv_event_t){
            .kind = BT_KV_REMOVED, .tier = tier, .hashes = hashes, .hash_count = to - from});
}

struct text {
    const uint32_t *tokens;
    unsigned count, most_read;
};

static unsigned read_text(void *user, unsigned wanted, const uint32_t **tokens_p)
{
    struct text *t = user;

    *tokens_p = t->tokens;
    t->most_read = wanted < t->count ? wanted : t->count;
    return t->most_read;
}

static unsigned find_in(const uint32_t *tokens, unsigned count, uint64_t root)
{
    struct text t = {tokens, count, 0};

    return bt_kv_query_find(query, &(bt_kv_prompt_t){read_text, &t, root});
}

static unsigned find(const uint32_t *tokens, unsigned blocks)
{
    return find_in(tokens, blocks * BLOCK, 0);
}

static unsigned hit(uint32_t part)
{
    return bt_kv_query_hit(query, part).blocks;
}

static uint32_t open_part(void)
{
    uint32_t part;

    assert_int_equal(bt_kv_part_open(index_, 1, &part), 0);
    return part;
}

static bt_kv_index_stats_t stats(void)
{
    bt_kv_index_stats_t s;

    bt_kv_index_stats(index_, &s);
    return s;
}

/* ---- one worker, two ---- */

static void test_longest_prefix(void **state)
{
    uint32_t tokens[PROMPT_BLOCKS * BLOCK], other[PROMPT_BLOCKS * BLOCK];
    const uint32_t a = open_part(), b = open_part();

    fill_prompt(tokens, PROMPT_BLOCKS, 5, 0);
    fill_prompt(other, PROMPT_BLOCKS, 5, 1);
    store(a, tokens, 0, 8);
    store(b, other, 0, PROMPT_BLOCKS);
    assert_int_equal(find(tokens, PROMPT_BLOCKS), 8);
    assert_int_equal(hit(a), 8);
    assert_int_equal(hit(b), 5);
    assert_int_equal(bt_kv_query_hit(query, b).tokens, 5 * BLOCK);
    /* a block that is not full is no block */
    assert_int_equal(find_in(tokens, 3 * BLOCK - 1, 0), 2);
    /* what comes later goes on from what was there */
    store(a, tokens, 8, 11);
    find(tokens, PROMPT_BLOCKS);
    assert_int_equal(hit(a), 11);
    /* gone from the middle: what is behind it is of no use */
    drop(a, tokens, 3, 4, BT_KV_DEVICE);
    find(tokens, PROMPT_BLOCKS);
    assert_int_equal(hit(a), 3);
    assert_int_equal(hit(b), 5);
    bt_kv_part_clear(index_, b);
    find(tokens, PROMPT_BLOCKS);
    assert_int_equal(hit(b), 0);
    bt_kv_part_close(index_, a, 1);
    assert_int_equal(find(tokens, PROMPT_BLOCKS), 0);
    assert_int_equal(stats().blocks, 0);
    assert_int_equal(stats().names, 0);
}

static void test_tiers(void **state)
{
    uint32_t tokens[PROMPT_BLOCKS * BLOCK];
    const uint32_t a = open_part();
    uint64_t hashes[2];

    fill_prompt(tokens, PROMPT_BLOCKS, 0, 0);
    store(a, tokens, 0, 6);
    /* two of them are also in the host's memory, told by name; then they leave the device */
    hashes[0] = engine_hash(tokens, 2);
    hashes[1] = engine_hash(tokens, 3);
    bt_kv_part_apply(index_, a,
                     &(bt_kv_event_t){.tier = BT_KV_HOST, .hashes = hashes, .hash_count = 2});
    find(tokens, 6);
    assert_int_equal(bt_kv_query_hit(query, a).host, 0);
    drop(a, tokens, 2, 4, BT_KV_DEVICE);
    store_tier(a, tokens, 6, 7, BT_KV_DISK, 0);
    find(tokens, PROMPT_BLOCKS);
    assert_int_equal(hit(a), 7);
    assert_int_equal(bt_kv_query_hit(query, a).host, 2);
    assert_int_equal(bt_kv_query_hit(query, a).disk, 1);
    drop(a, tokens, 2, 3, BT_KV_HOST);
    find(tokens, PROMPT_BLOCKS);
    assert_int_equal(hit(a), 2);
}

/* Another adapter, another salt: other KV. */
static void test_spaces(void **state)
{
    uint32_t tokens[PROMPT_BLOCKS * BLOCK];
    const uint64_t root = bt_kv_root(BT_STR("sql"), BT_STR("salty"));
    const uint32_t a = open_part();

    fill_prompt(tokens, PROMPT_BLOCKS, 0, 0);
    store_tier(a, tokens, 0, 6, BT_KV_DEVICE, root);
    assert_int_equal(find(tokens, PROMPT_BLOCKS), 0);
    assert_int_equal(find_in(tokens, 6 * BLOCK, root), 6);
    assert_true(bt_kv_root(BT_STR("sql"), BT_STR("")) != bt_kv_root(BT_STR(""), BT_STR("sql")));
    assert_false(bt_kv_index_knows_lora(index_, BT_STR("sql")));
    bt_kv_part_apply(index_, a,
                     &(bt_kv_event_t){.hashes = &root,
                                      .hash_count = 1,
                                      .tokens = tokens,
                                      .token_count = BLOCK,
                                      .block_tokens = BLOCK,
                                      .lora = BT_STR("sql")});
    assert_true(bt_kv_index_knows_lora(index_, BT_STR("sql")));
}

static void test_what_cannot_be_placed(void **state)
{
    uint32_t tokens[PROMPT_BLOCKS * BLOCK];
    const uint32_t a = open_part();

    fill_prompt(tokens, PROMPT_BLOCKS, 0, 0);
    store(a, tokens, 4, 6); /* what was before it was missed */
    assert_int_equal(stats().orphans, 2);
    assert_int_equal(stats().blocks, 0);
    store(a, tokens, 0, 2);
    bt_kv_part_apply(index_, a,
                     &(bt_kv_event_t){.hashes = &(uint64_t){5},
                                      .hash_count = 1,
                                      .tokens = tokens,
                                      .token_count = 8,
                                      .block_tokens = 8});
    assert_int_equal(stats().odd_sizes, 1);
    /* sliding windows and their kin say nothing of a prefix, and what they lose neither */
    bt_kv_part_apply(index_, a,
                     &(bt_kv_event_t){.hashes = &(uint64_t){6},
                                      .hash_count = 1,
                                      .group = 1,
                                      .is_partial = true,
                                      .tokens = tokens,
                                      .token_count = BLOCK,
                                      .block_tokens = BLOCK});
    bt_kv_part_apply(index_, a,
                     &(bt_kv_event_t){.kind = BT_KV_REMOVED,
                                      .hashes = &(uint64_t){engine_hash(tokens, 0)},
                                      .hash_count = 1,
                                      .group = 1});
    assert_int_equal(find(tokens, PROMPT_BLOCKS), 2);
}

/* A name that comes again for other tokens leaves nothing behind. */
static void test_name_for_another_block(void **state)
{
    uint32_t tokens[PROMPT_BLOCKS * BLOCK], other[PROMPT_BLOCKS * BLOCK];
    const uint32_t a = open_part();
    const uint64_t name = 7;

    fill_prompt(tokens, 1, 0, 0);
    fill_prompt(other, 1, 0, 1);
    for (unsigned i = 0; i < 2; i++)
        bt_kv_part_apply(index_, a,
                         &(bt_kv_event_t){.hashes = &name,
                                          .hash_count = 1,
                                          .tokens = i == 0 ? tokens : other,
                                          .token_count = BLOCK,
                                          .block_tokens = BLOCK});
    assert_int_equal(find(tokens, 1), 0);
    assert_int_equal(find(other, 1), 1);
    assert_int_equal(stats().held, 1);
}

/* As vLLM 0.32 does: a prompt that ends with a block which the engine has gets a copy of it. Each is told, each is removed. */
static void test_copies(void **state)
{
    uint32_t tokens[PROMPT_BLOCKS * BLOCK];
    const uint32_t a = open_part(), b = open_part();

    fill_prompt(tokens, 3, 0, 0);
    store(a, tokens, 0, 3);
    store(b, tokens, 0, 3);
    store(a, tokens, 2, 3);
    store(a, tokens, 2, 3);
    drop(b, tokens, 2, 3, BT_KV_DEVICE); /* another part's are none of them */
    drop(a, tokens, 2, 3, BT_KV_DEVICE);
    drop(a, tokens, 2, 3, BT_KV_DEVICE);
    find(tokens, 3);
    assert_int_equal(hit(a), 3);
    assert_int_equal(hit(b), 2);
    drop(a, tokens, 2, 3, BT_KV_DEVICE);
    find(tokens, 3);
    assert_int_equal(hit(a), 2);
    store(a, tokens, 2, 3); /* the last one, and a copy; then the part begins anew */
    store(a, tokens, 2, 3);
    bt_kv_part_clear(index_, a);
    store(a, tokens, 0, 3);
    drop(a, tokens, 2, 3, BT_KV_DEVICE);
    find(tokens, 3);
    assert_int_equal(hit(a), 2);
}

static void test_sizes_side_by_side(void **state)
{
    uint32_t tokens[PROMPT_BLOCKS * BLOCK];
    const uint32_t a = open_part(), b = open_part();

    fill_prompt(tokens, PROMPT_BLOCKS, 0, 0);
    store(a, tokens, 0, 3);
    bt_kv_part_apply(index_, b,
                     &(bt_kv_event_t){.hashes = (uint64_t[]){1, 2},
                                      .hash_count = 2,
                                      .tokens = tokens,
                                      .token_count = 32,
                                      .block_tokens = 16});
    assert_int_equal(find(tokens, PROMPT_BLOCKS), 2); /* of 16 tokens: more than three of four */
    assert_int_equal(bt_kv_query_hit(query, a).tokens, 12);
    assert_int_equal(bt_kv_query_hit(query, b).tokens, 32);
}

static void store_sized(uint32_t part, const uint32_t *tokens, unsigned size)
{
    bt_kv_part_apply(index_, part,
                     &(bt_kv_event_t){.hashes = &(uint64_t){7},
                                      .hash_count = 1,
                                      .tokens = tokens,
                                      .token_count = size,
                                      .block_tokens = size});
}

/* As many sizes as there is room for, any number of them one after another. */
static void test_sizes_are_given_back(void **state)
{
    uint32_t tokens[PROMPT_BLOCKS * BLOCK], parts[BT_KV_SIZES_MAX + 1];

    fill_prompt(tokens, PROMPT_BLOCKS, 0, 0);
    for (unsigned i = 0; i <= BT_KV_SIZES_MAX; i++) {
        parts[i] = open_part();
        store_sized(parts[i], tokens, 8 + i);
    }
    assert_int_equal(stats().odd_sizes, 1);
    const uint32_t second = open_part(); /* of a size that another part has, too */
    store_sized(second, tokens, 9);
    bt_kv_part_clear(index_, parts[1]);
    store_sized(parts[BT_KV_SIZES_MAX], tokens, 8 + BT_KV_SIZES_MAX);
    assert_int_equal(stats().odd_sizes, 2);
    bt_kv_part_close(index_, second, 1);
    store_sized(parts[BT_KV_SIZES_MAX], tokens, 8 + BT_KV_SIZES_MAX);
    assert_int_equal(stats().odd_sizes, 2);
    find(tokens, PROMPT_BLOCKS);
    for (unsigned i = 0; i <= BT_KV_SIZES_MAX; i++)
        assert_int_equal(bt_kv_query_hit(query, parts[i]).tokens, i == 1 ? 0 : 8 + i);
}

/* Nobody reads a prompt further than somebody holds it. */
static void test_reads_no_further(void **state)
{
    uint32_t tokens[8000 * BLOCK];
    struct text t = {tokens, sizeof(tokens) / sizeof(tokens[0]), 0};

    fill_prompt(tokens, 8000, 0, 0);
    store(open_part(), tokens, 0, 3);
    assert_int_equal(bt_kv_query_find(query, &(bt_kv_prompt_t){read_text, &t, 0}), 3);
    assert_true(t.most_read <= 64 * BLOCK);
}

/* ---- bounds ---- */

static void test_room_is_bounded(void **state)
{
    uint32_t hot[8 * BLOCK], tokens[8 * BLOCK];
    uint32_t a;

    teardown(state);
    open_with(512);
    a = open_part();
    fill_prompt(hot, 8, 0, 0);
    store(a, hot, 0, 8);
    for (unsigned n = 1; n < 4000; n++) {
        fill_prompt(tokens, 8, 0, n);
        store(a, tokens, 0, 8);
        assert_int_equal(find(hot, 8), 8); /* what is asked for stays */
        assert_true(stats().held <= 512);
        assert_true(stats().names <= 512 + 512 / 4 + 8 + 512);
    }
    assert_true(stats().forgotten > 4000 * 8 - 1024);
    assert_true(stats().bytes < 400000);
    /* what was forgotten may be removed, and stored again */
    drop(a, tokens, 0, 8, BT_KV_DEVICE);
    assert_int_equal(find(tokens, 8), 0);
    store(a, tokens, 0, 8);
    assert_int_equal(find(tokens, 8), 8);
}

/* Blocks come and go, and are as many all the time: so is the memory. 600 of them in a table of 1,024 cells. */
static void test_churn_takes_no_more_room(void **state)
{
    uint32_t tokens[PROMPT_BLOCKS * BLOCK];
    const uint32_t a = open_part();
    const unsigned prompts = 600 / PROMPT_BLOCKS;
    uint64_t bytes = 0;

    for (unsigned n = 0; n < 100 * prompts; n++) {
        if (n >= prompts) {
            fill_prompt(tokens, PROMPT_BLOCKS, 0, n - prompts);
            drop(a, tokens, 0, PROMPT_BLOCKS, BT_KV_DEVICE);
        }
        fill_prompt(tokens, PROMPT_BLOCKS, 0, n);
        store(a, tokens, 0, PROMPT_BLOCKS);
        if (n == prompts)
            bytes = stats().bytes;
    }
    assert_int_equal(stats().blocks, 600);
    assert_int_equal(stats().bytes, bytes);
    for (unsigned n = 99 * prompts; n < 100 * prompts; n++) {
        fill_prompt(tokens, PROMPT_BLOCKS, 0, n);
        assert_int_equal(find(tokens, PROMPT_BLOCKS), PROMPT_BLOCKS);
    }
}

static void test_parts_are_bounded(void **state)
{
    uint32_t part, first;

    teardown(state);
    assert_int_equal(bt_kv_index_new(&index_, &(bt_kv_index_config_t){.max_parts = 4}), 0);
    assert_int_equal(bt_kv_query_new(&query, index_), 0);
    assert_int_equal(bt_kv_part_open(index_, 3, &first), 0);
    assert_int_equal(bt_kv_part_open(index_, 2, &part), BT_E_LIMIT);
    assert_int_equal(bt_kv_part_open(index_, 1, &part), 0);
    assert_int_equal(bt_kv_part_open(index_, 1, &part), BT_E_LIMIT);
    bt_kv_part_set_live(index_, first, true);
    assert_true(bt_kv_part_is_live(index_, first));
    bt_kv_part_close(index_, first, 3);
    assert_false(bt_kv_part_is_live(index_, first));
    assert_int_equal(bt_kv_part_open(index_, 2, &part), 0);
    assert_int_equal(part, first);
    assert_false(bt_kv_part_is_live(index_, 5));
}

/* ---- many workers, against a model that cannot be wrong ---- */

#define PARTS 300u
#define PROMPTS 12u

static unsigned char model[PARTS + 1][PROMPTS][PROMPT_BLOCKS]; /* tiers, as bits */
static unsigned copies[PARTS + 1][PROMPTS][PROMPT_BLOCKS];     /* more of it, on the device */

/* Blocks of the shared beginning are the same of all prompts. */
static void model_put(uint32_t part, unsigned prompt, unsigned block, unsigned shared,
                      unsigned tier, bool there)
{
    const bool is_copied = tier == 0 && (there ? (model[part][prompt][block] & 1) != 0
                                               : copies[part][prompt][block] > 0);

    for (unsigned p = 0; p < PROMPTS; p++)
        if (p != prompt && block >= shared)
            continue;
        else if (is_copied)
            copies[part][p][block] += there ? 1 : -1U;
        else
            model[part][p][block] = (unsigned char) (there ? model[part][p][block] | 1u << tier
                                                           : model[part][p][block] & ~(1u << tier));
}

static void check_prompt(const uint32_t *tokens, unsigned prompt)
{
    unsigned longest = 0;

    const unsigned found = find(tokens, PROMPT_BLOCKS);
    for (uint32_t part = 1; part <= PARTS; part++) {
        const bt_kv_hit_t h = bt_kv_query_hit(query, part);
        unsigned blocks = 0, host = 0, disk = 0;
        for (; blocks < PROMPT_BLOCKS && model[part][prompt][blocks] != 0; blocks++) {
            host += (model[part][prompt][blocks] & 3) == 2;
            disk += model[part][prompt][blocks] == 4;
        }
        assert_int_equal(h.blocks, blocks);
        assert_int_equal(h.host, host);
        assert_int_equal(h.disk, disk);
        longest = blocks > longest ? blocks : longest;
    }
    assert_int_equal(found, longest);
}

/* Sets of owners go through all their forms, up and down; a store reaches as far as the part's own chain does. */
static void test_against_a_model(void **state)
{
    static const unsigned shared = 4;
    uint32_t tokens[PROMPTS][PROMPT_BLOCKS * BLOCK];

    memset(model, 0, sizeof(model));
    memset(copies, 0, sizeof(copies));
    srand(11);
    for (unsigned p = 0; p < PROMPTS; p++)
        fill_prompt(tokens[p], PROMPT_BLOCKS, shared, p);
    for (unsigned i = 0; i < PARTS; i++)
        open_part();
    for (unsigned round = 0; round < 60000; round++) {
        /* waves: mostly stores, then mostly removals; some rounds among few parts */
        const bool is_store = rand() % 100 < (round / 6000 % 2 == 0 ? 75 : 25);
        const uint32_t part = 1 + (unsigned) rand() % (round % 5 == 0 ? 5 : PARTS);
        const unsigned p = (unsigned) rand() % (round % 3 == 0 ? 2 : PROMPTS);
        const unsigned tier = rand() % 4 == 0 ? 1 + (unsigned) rand() % 2 : 0;
        unsigned from = (unsigned) rand() % PROMPT_BLOCKS;
        const unsigned to = from + 1 + (unsigned) rand() % (PROMPT_BLOCKS - from);
        if (rand() % 2000 == 0) {
            bt_kv_part_clear(index_, part);
            memset(model[part], 0, sizeof(model[part]));
            memset(copies[part], 0, sizeof(copies[part]));
        } else if (is_store) {
            while (from > 0 && model[part][p][from - 1] == 0)
                from--;
            store_tier(part, tokens[p], from, to, (enum bt_kv_tier) tier, 0);
            for (unsigned b = from; b < to; b++)
                model_put(part, p, b, shared, tier, true);
        } else {
            drop(part, tokens[p], from, to, (enum bt_kv_tier) tier);
            for (unsigned b = from; b < to; b++)
                model_put(part, p, b, shared, tier, false);
        }
        if (round % 100 == 0)
            check_prompt(tokens[p], p);
    }
    for (unsigned p = 0; p < PROMPTS; p++)
        check_prompt(tokens[p], p);
    bt_kv_part_close(index_, 1, PARTS);
    assert_int_equal(stats().blocks, 0);
    assert_int_equal(stats().held, 0);
    assert_int_equal(stats().names, 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)
    const struct CMUnitTest tests[] = {T(longest_prefix),
                                       T(tiers),
                                       T(spaces),
                                       T(what_cannot_be_placed),
                                       T(name_for_another_block),
                                       T(copies),
                                       T(sizes_side_by_side),
                                       T(sizes_are_given_back),
                                       T(reads_no_further),
                                       T(room_is_bounded),
                                       T(churn_takes_no_more_room),
                                       T(parts_are_bounded),
                                       T(against_a_model)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
