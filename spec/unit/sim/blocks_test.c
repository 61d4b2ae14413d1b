/* KV blocks: contents decide the text, the cache finds prefixes, the oldest go first. */
#include "ask.h"
#include "base/pages.h"
#include "blocks.h"
#include "unit.h"
#include "words.h"

static bt_arena_t arena;
static sim_blocks_t b, other;

static int setup(void **state)
{
    bt_arena_init(&arena);
    return sim_blocks_init(&b, 8, 2) + sim_blocks_init(&other, 8, 2); /* 8 bytes a block */
}

static int teardown(void **state)
{
    sim_blocks_fini(&b);
    sim_blocks_fini(&other);
    bt_arena_fini(&arena);
    bt_pages_thread_fini();
    return 0;
}

static sim_prompt_t prompt_of(const char *text)
{
    sim_prompt_t p;

    sim_prompt_make(&p, bt_str(text), b.block_bytes, &arena);
    return p;
}

static unsigned fill(sim_blocks_t *blocks, const sim_prompt_t *p, uint32_t *ids)
{
    unsigned hits = 99;

    assert_true(sim_blocks_take(blocks, p, ids, &hits));
    sim_blocks_compute(blocks, p, ids, hits);
    return hits;
}

static void test_computed_blocks_hold_the_prompts_kv(void **state)
{
    sim_prompt_t p = prompt_of("0123456789abcdefXY");
    uint32_t ids[3];

    assert_int_equal(p.blocks, 3);
    assert_int_equal(p.kv, sim_kv(BT_STR("0123456789abcdefXY")));
    assert_int_equal(fill(&b, &p, ids), 0);
    assert_int_equal(ids[0], 1); /* block 0 is never handed out */
    assert_int_equal(sim_blocks_kv(&b, ids, 3), p.kv);
    assert_int_equal(b.used, 3);
    sim_blocks_release(&b, ids, 3);
    assert_int_equal(b.used, 0);
}

static void test_wrong_order_or_number_is_other_kv(void **state)
{
    sim_prompt_t p = prompt_of("0123456789abcdefXY");
    uint32_t ids[3];

    fill(&b, &p, ids);
    uint32_t swapped[3] = {ids[1], ids[0], ids[2]};
    assert_true(sim_blocks_kv(&b, swapped, 3) != p.kv);
    assert_true(sim_blocks_kv(&b, ids + 1, 2) != p.kv);
    assert_true(sim_blocks_kv(&b, ids, 2) != p.kv);
}

static void test_prefix_is_found_but_never_the_last_block(void **state)
{
    sim_prompt_t p = prompt_of("0123456789abcdef"), longer = prompt_of("0123456789abcdefZZ");
    uint32_t ids[3], again[3];

    assert_int_equal(fill(&b, &p, ids), 0);
    assert_int_equal(fill(&b, &longer, again), 2);
    assert_int_equal(again[1], ids[1]);
    assert_int_equal(sim_blocks_kv(&b, again, 3), longer.kv);
    sim_blocks_release(&b, ids, 2);
    sim_blocks_release(&b, again, 3);
    assert_int_equal(fill(&b, &p, ids), 1); /* released blocks are still found */
}

static void test_full_and_evicted(void **state)
{
    sim_prompt_t p = prompt_of("0123456789abcdef"),
                 big = prompt_of("AAAAAAAABBBBBBBBCCCCCCCCDDDDDDDDEEEEEEEEFFFFFFFFGGGGGGGG");
    uint32_t ids[2], many[7];
    unsigned hits;

    fill(&b, &p, ids);
    assert_false(sim_blocks_take(&b, &big, many, &hits));
    assert_int_equal(b.used, 2);
    sim_blocks_release(&b, ids, 2);
    fill(&b, &big, many);
    assert_int_equal(sim_blocks_kv(&b, many, 7), big.kv);
    sim_blocks_release(&b, many, 7);
    assert_int_equal(fill(&b, &p, ids), 1); /* its first block was the last one to be taken away */
}

static void test_received_kv_is_what_was_sent(void **state)
{
    sim_prompt_t p = prompt_of("0123456789abcdefXY"), q = prompt_of("another prompt 18b");
    uint32_t theirs[3], mine[3], ids[3];
    unsigned hits;

    fill(&other, &p, theirs);
    assert_true(sim_blocks_take(&b, &p, mine, &hits));
    sim_blocks_copy(&b, &p, mine, 0, &other, theirs);
    assert_int_equal(sim_blocks_kv(&b, mine, 3), p.kv);
    /* The KV of p under the key of q: wrong now, and wrong from the cache later. */
    assert_true(sim_blocks_take(&b, &q, ids, &hits));
    sim_blocks_copy(&b, &q, ids, 0, &other, theirs);
    assert_true(sim_blocks_kv(&b, ids, 3) != q.kv);
    sim_blocks_release(&b, ids, 3);
    assert_int_equal(fill(&b, &q, ids), 2);
    assert_true(sim_blocks_kv(&b, ids, 3) != q.kv);
}

static void test_scramble_spares_what_is_in_use(void **state)
{
    sim_prompt_t p = prompt_of("0123456789abcdefXY");
    uint32_t ids[3];

    fill(&b, &p, ids);
    sim_blocks_scramble(&b, ids, 3);
    assert_int_equal(sim_blocks_kv(&b, ids, 3), p.kv);
    sim_blocks_release(&b, ids, 3);
    sim_blocks_scramble(&b, ids, 3);
    assert_true(sim_blocks_kv(&b, ids, 3) != p.kv);
    assert_int_equal(fill(&b, &p, ids), 0);
}

static void test_held_blocks_need_as_many_releases(void **state)
{
    sim_prompt_t p = prompt_of("0123456789abcdef");
    uint32_t ids[2];

    fill(&b, &p, ids);
    sim_blocks_hold(&b, ids, 2);
    sim_blocks_release(&b, ids, 2);
    assert_int_equal(b.used, 2);
    sim_blocks_release(&b, ids, 2);
    assert_int_equal(b.used, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_computed_blocks_hold_the_prompts_kv),
        TEST(test_wrong_order_or_number_is_other_kv),
        TEST(test_prefix_is_found_but_never_the_last_block),
        TEST(test_full_and_evicted),
        TEST(test_received_kv_is_what_was_sent),
        TEST(test_scramble_spares_what_is_in_use),
        TEST(test_held_blocks_need_as_many_releases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
