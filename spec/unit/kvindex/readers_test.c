/* Readers beside a writer: for ThreadSanitizer, and for what must be true at any moment. */
#include "kvindex/index.h"
#include "kvindex/query.h"
#include "unit.h"

#include <pthread.h>

#define BLOCK 4u
#define BLOCKS 16u
#define FIXED 8u /* blocks of the prompt that are never removed */
#define PARTS 200u
#define READERS 3u
#define ROUNDS 4000u

static bt_kv_index_t *index_;
static uint32_t tokens[BLOCKS * BLOCK];
static atomic_bool is_over;
static _Atomic unsigned wrong, asked;

static unsigned read_tokens(void *user, unsigned wanted, const uint32_t **tokens_p)
{
    (void) user;
    *tokens_p = tokens;
    return wanted < BLOCKS * BLOCK ? wanted : BLOCKS * BLOCK;
}

/* Part 1 holds the first blocks all the time; nobody ever holds more than there are. */
static void *ask(void *arg)
{
    bt_kv_query_t *query;

    (void) arg;
    if (bt_kv_query_new(&query, index_) < 0)
        return NULL;
    while (!atomic_load(&is_over)) {
        const unsigned longest = bt_kv_query_find(query, &(bt_kv_prompt_t){read_tokens, NULL, 0});
        bool is_wrong =
            longest < FIXED || longest > BLOCKS || bt_kv_query_hit(query, 1).blocks < FIXED;
        for (uint32_t part = 2; part <= PARTS; part++)
            is_wrong |= bt_kv_query_hit(query, part).blocks > BLOCKS;
        atomic_fetch_add(&wrong, is_wrong);
        atomic_fetch_add(&asked, 1);
    }
    bt_kv_query_free(query);
    return NULL;
}

static void apply(enum bt_kv_event_kind kind, uint32_t part, unsigned from, unsigned to,
                  uint32_t *text, uint64_t base)
{
    uint64_t hashes[BLOCKS];

    for (unsigned i = from; i < to; i++)
        hashes[i - from] = base + i;
    bt_kv_part_apply(index_, part,
                     &(bt_kv_event_t){.kind = kind,
                                      .hashes = hashes,
                                      .hash_count = to - from,
                                      .has_parent = from > 0,
                                      .parent = base + from - 1,
                                      .tokens = text + (size_t) from * BLOCK,
                                      .token_count = (to - from) * BLOCK,
                                      .block_tokens = BLOCK});
}

/* Owners come and go through all forms; the table grows, is rebuilt and forgets. */
static void write_much(void)
{
    uint32_t noise[BLOCKS * BLOCK];

    for (unsigned round = 0; round < ROUNDS || atomic_load(&asked) < 100; round++) {
        const uint32_t part = 2 + round % (PARTS - 1);
        if (round % 64 == 0) /* however long the readers are kept waiting, this is not forgotten */
            apply(BT_KV_STORED, 1, 0, FIXED, tokens, 1);
        if (round / (PARTS - 1) % 2 == 0)
            apply(BT_KV_STORED, part, 0, BLOCKS, tokens, 1);
        else if (round % 3 == 0)
            bt_kv_part_clear(index_, part);
        else
            apply(BT_KV_REMOVED, part, 0, BLOCKS, tokens, 1);
        for (unsigned i = 0; i < BLOCKS * BLOCK; i++)
            noise[i] = round * 1000 + i + 5000;
        apply(BT_KV_STORED, 1 + round % PARTS, 0, BLOCKS, noise, 1000 + (uint64_t) round * BLOCKS);
    }
}

static void test_readers_never_see_anything_else(void **state)
{
    pthread_t threads[READERS];
    uint32_t first;

    assert_int_equal(bt_kv_index_new(&index_, &(bt_kv_index_config_t){.max_held = 20000}), 0);
    assert_int_equal(bt_kv_part_open(index_, PARTS, &first), 0);
    for (unsigned i = 0; i < BLOCKS * BLOCK; i++)
        tokens[i] = i;
    apply(BT_KV_STORED, 1, 0, FIXED, tokens, 1);
    for (unsigned i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask, NULL), 0);
    write_much();
    atomic_store(&is_over, true);
    for (unsigned i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&wrong), 0);
    bt_kv_index_free(index_);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_readers_never_see_anything_else)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
