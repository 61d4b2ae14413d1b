/* The index beside the caches that feed it: what a policy would be told is what the engine would find, so late. */
#include "simulator/feed.h"

#include "base/rand.h"
#include "script/shared/kv_hits.h"
#include "unit.h"

#define ENGINES 3
#define CAPACITY 40
#define BLOCK 16
#define LENGTH 8
#define DELAY_S 0.01

static struct state {
    bt_sim_trace_t trace;
    bt_sim_request_t request;
    uint64_t ids[LENGTH];
    bt_sim_kv_cache_t caches[ENGINES];
    bt_sim_feed_t feed;
    double now_s;
} s;

static int begin(void **state)
{
    s = (struct state){.trace = {.block_tokens = BLOCK, .count = 1}};
    s.trace.requests = &s.request;
    s.trace.blocks = s.ids;
    bt_rand_seed(11);
    if (bt_sim_feed_init(&s.feed, &s.trace, ENGINES, CAPACITY, DELAY_S, &s.now_s) < 0)
        return -1;
    for (unsigned e = 0; e < ENGINES; e++) {
        if (bt_sim_kv_init(&s.caches[e], CAPACITY) < 0)
            return -1;
        (void) bt_sim_feed_listen(&s.feed, e, &s.caches[e]);
    }
    return 0;
}

static int end(void **state)
{
    bt_sim_feed_fini(&s.feed);
    for (unsigned e = 0; e < ENGINES; e++)
        bt_sim_kv_fini(&s.caches[e]);
    return 0;
}

/* A path in a tree of prompts: an id names all before it, 0 is one. */
static void make_prompt(unsigned length)
{
    uint64_t id = 0;

    for (unsigned b = 0; b < length; b++)
        s.ids[b] = id = b == 0 ? bt_rand_below(3) : 3 * id + 7 + bt_rand_below(3);
    /* one token more: the last one is in no hit */
    s.request = (bt_sim_request_t){.input = length * BLOCK + 1, .output = 1, .block_count = length};
}

static unsigned told(unsigned engine)
{
    char text[BT_SIM_PROMPT_BYTES(LENGTH * BLOCK + 1)];
    const bt_str_t prompt = bt_sim_prompt(&s.trace, &s.request, text);
    bt_prompt_ids_t *ids = bt_prompt_ids_of(prompt, (bt_prompt_key_t){1, bt_prompt_number()});
    bt_kv_hit_t hit;

    if (!bt_kv_hits_get(bt_kv_hits_find(ids, BT_STR("sim"), BT_STR("")),
                        bt_kv_parts(s.feed.first_part + engine, 1), &hit))
        return UINT32_MAX;
    assert_int_equal(hit.tokens, hit.blocks * BLOCK);
    return hit.blocks;
}

static unsigned found(unsigned engine)
{
    return bt_sim_kv_match(&s.caches[engine], s.ids, s.request.block_count);
}

static void test_says_what_engines_hold(void **state)
{
    uint64_t forgotten = 0;

    for (unsigned step = 0; step < 4000; step++) {
        const unsigned e = (unsigned) bt_rand_below(ENGINES);
        make_prompt(1 + (unsigned) bt_rand_below(LENGTH));
        assert_true(bt_sim_kv_hold(&s.caches[e], s.ids, s.request.block_count, 1));
        bt_sim_kv_let_go(&s.caches[e], s.ids, s.request.block_count, 1);
        s.now_s += DELAY_S;
        bt_sim_feed_apply(&s.feed);
        make_prompt(LENGTH);
        for (unsigned i = 0; i < ENGINES; i++)
            assert_int_equal(told(i), found(i));
    }
    for (unsigned i = 0; i < ENGINES; i++)
        forgotten += s.caches[i].forgotten;
    assert_true(forgotten > 1000);
}

static void test_says_it_late(void **state)
{
    make_prompt(4);
    assert_true(bt_sim_kv_hold(&s.caches[1], s.ids, 4, 0));
    s.now_s = DELAY_S / 2;
    bt_sim_feed_apply(&s.feed);
    assert_int_equal(told(1), 0);
    s.now_s = DELAY_S;
    bt_sim_feed_apply(&s.feed);
    assert_int_equal(told(1), 4);
    assert_int_equal(told(0), 0);
}

static void test_a_restart_ends_what_was_told(void **state)
{
    make_prompt(4);
    assert_true(bt_sim_kv_hold(&s.caches[1], s.ids, 4, 0));
    assert_true(bt_sim_kv_hold(&s.caches[0], s.ids, 2, 0));
    bt_sim_kv_reset(&s.caches[1]);
    bt_sim_feed_restart(&s.feed, 1);
    assert_true(bt_sim_kv_hold(&s.caches[1], s.ids, 1, 0));
    s.now_s = DELAY_S;
    bt_sim_feed_apply(&s.feed);
    assert_int_equal(told(1), 1);
    assert_int_equal(told(0), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_says_what_engines_hold, begin, end),
        cmocka_unit_test_setup_teardown(test_says_it_late, begin, end),
        cmocka_unit_test_setup_teardown(test_a_restart_ends_what_was_told, begin, end)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
