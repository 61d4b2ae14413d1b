/* The best choice beside all choices there are, of few blocks; the least recently used beside a list; prompts that end with a block. */
#include "simulator/ceiling.h"

#include "base/rand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK 16u
#define IDS 6
#define USES 24
#define SETS (1u << IDS)

static bt_sim_request_t requests[USES];
static uint64_t blocks[8 * USES];
static bt_sim_trace_t trace;

static int begin(void **state)
{
    trace = (bt_sim_trace_t){
        .requests = requests, .blocks = blocks, .block_tokens = BLOCK, .has_prefixes = true};
    return 0;
}

/* Blocks first, first + 1 ... */
static void ask(uint32_t input, uint64_t first)
{
    bt_sim_request_t *r = &requests[trace.count++];

    *r = (bt_sim_request_t){.input = input,
                            .output = 1,
                            .block_count = (input + BLOCK - 1) / BLOCK,
                            .first_block = trace.block_count};
    for (uint32_t b = 0; b < r->block_count; b++)
        blocks[trace.block_count++] = first + b;
}

static uint64_t best(uint32_t memory)
{
    uint64_t tokens = 0;

    assert_int_equal(bt_sim_ceiling_best(&trace, memory, &tokens), 0);
    return tokens;
}

static uint64_t lru(uint32_t memory)
{
    uint64_t tokens = 0;

    assert_int_equal(bt_sim_ceiling_lru(&trace, memory, &tokens), 0);
    return tokens;
}

/* ---- all choices ---- */

static uint64_t used(unsigned use)
{
    return blocks[requests[use].first_block];
}

/* Hits from this use on, by what is kept. */
static int all_choices[USES + 1][SETS];

static void try_all(int memory)
{
    memset(all_choices[trace.count], 0, sizeof all_choices[0]);
    for (unsigned use = trace.count; use > 0; use--)
        for (unsigned kept = 0; kept < SETS; kept++) {
            const unsigned bit = 1u << used(use - 1), can = kept | bit;
            int most = 0;
            for (unsigned next = 0; next < SETS; next++)
                if ((next & ~can) == 0 && __builtin_popcount(next) <= memory &&
                    all_choices[use][next] > most)
                    most = all_choices[use][next];
            all_choices[use - 1][kept] = most + ((kept & bit) != 0);
        }
}

static int count_lru(int memory)
{
    uint64_t list[IDS + 1]; /* the latest first */
    int count = 0, hits = 0;

    for (unsigned use = 0; use < trace.count; use++) {
        int at = 0;
        while (at < count && list[at] != used(use))
            at++;
        hits += at < count;
        if (at == count && count < memory)
            count++;
        memmove(list + 1, list, (size_t) (at < memory ? at : memory - 1) * sizeof *list);
        list[0] = used(use);
    }
    return hits;
}

static void test_no_choice_is_better(void **state)
{
    bt_rand_state_t before;

    bt_rand_begin(&before, 7);
    for (int round = 0; round < 40; round++) {
        (void) begin(state);
        for (int use = 0; use < USES; use++)
            ask(BLOCK + 1, bt_rand_below(IDS));
        for (int memory = 1; memory <= 4; memory++) {
            try_all(memory);
            assert_int_equal(best((uint32_t) memory), BLOCK * (unsigned) all_choices[0][0]);
            assert_int_equal(lru((uint32_t) memory), BLOCK * (unsigned) count_lru(memory));
        }
        assert_int_equal(best(BT_SIM_ENDLESS), best(IDS));
    }
    bt_rand_end(&before);
}

/* ---- prompts ---- */

static void test_prompts_share_their_beginning(void **state)
{
    ask(4 * BLOCK + 1, 10);
    ask(3 * BLOCK + 1, 20);
    ask(2 * BLOCK + 1, 10);
    ask(4 * BLOCK + 1, 10);
    assert_int_equal(best(BT_SIM_ENDLESS), 6 * BLOCK);
    assert_int_equal(best(4), 6 * BLOCK); /* the second prompt comes once, and is not kept */
    assert_int_equal(best(3), 5 * BLOCK);
    assert_int_equal(lru(7), 6 * BLOCK);
    assert_int_equal(lru(4),
                     3 * BLOCK); /* of the first, its beginning; all but that is made again */
    assert_int_equal(lru(3), 0); /* the long ones do not fit */
    assert_int_equal(lru(0), 0);
    assert_int_equal(best(0), 0);
}

/* A prompt's last token is computed, and its block with it; who comes later may find that block. */
static void test_the_last_block_is_no_hit(void **state)
{
    ask(2 * BLOCK, 10);
    ask(2 * BLOCK, 10);
    ask(2 * BLOCK + 1, 10);
    assert_int_equal(best(BT_SIM_ENDLESS), 3 * BLOCK);
    assert_int_equal(best(1), 2 * BLOCK);
    assert_int_equal(lru(2), 3 * BLOCK);
}

static void test_a_fleets_memories(void **state)
{
    bt_sim_ceilings_t c;

    ask(4 * BLOCK + 1, 10);
    ask(4 * BLOCK + 1, 10);
    assert_int_equal(bt_sim_ceilings(&trace, 2, 1, 3, &c), 0);
    assert_int_equal(c.memory_count, 2);
    assert_int_equal(c.memories[0].blocks, 2);
    assert_int_equal(c.memories[0].lru, 0);
    assert_int_equal(c.memories[0].best, 2 * BLOCK);
    assert_int_equal(c.memories[1].blocks, 6);
    assert_int_equal(c.memories[1].lru, 4 * BLOCK);
    assert_int_equal(c.endless, 4 * BLOCK);
    assert_int_equal(bt_sim_ceilings(&trace, UINT32_MAX, 3, 3, &c), 0);
    assert_int_equal(c.memory_count, 1);
    assert_int_equal(c.memories[0].blocks, UINT32_MAX);
    trace.has_prefixes = false;
    assert_int_equal(bt_sim_ceilings(&trace, 2, 1, 3, &c), 0);
    assert_int_equal(c.memory_count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_no_choice_is_better, begin),
        cmocka_unit_test_setup(test_prompts_share_their_beginning, begin),
        cmocka_unit_test_setup(test_the_last_block_is_no_hit, begin),
        cmocka_unit_test_setup(test_a_fleets_memories, begin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
