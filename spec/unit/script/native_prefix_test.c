#include "base/rand.h"
#include "script/shared/kv_hits.h"
#include "script/shared/prefix_hash.h"
#include "script/shared/prefix_index.h"
#include "script/shared/prefix_ring.h"
#include "script_fixture.h"

#include <sys/mman.h>

#define DONE " return { prefill = 1, decode = view.decode[1] }"

static int forget(void **state)
{
    bt_prefix_clear();
    return 0;
}

/* "aaa...": blocks of four tokens are sixteen bytes. */
static void set_prompt(struct fleet *f, char *text, size_t same, size_t other)
{
    text[0] = text[1 + same + other] = '"';
    memset(text + 1, 'a', same);
    memset(text + 1 + same, 'b', other);
    f->req.prompt = (bt_str_t){text, same + other + 2};
}

static void match_and_insert(void **state)
{
    struct fleet f;
    char text[512];

    fleet_init(&f, 3, 1, 0);
    set_prompt(&f, text, 160, 0);
    plan_once(
        &f,
        POLICY(
            "local best, n, all = baton.prefix_match(view.prefill, req, 4)\n"
            "assert(best == nil and n == 0 and all == 10 and baton.prefix_blocks(req, 4) == 10)\n"
            "assert(baton.prefix_blocks(req) == 0)\n" /* 160 bytes are no block of 64 tokens */
            "baton.prefix_insert(req, view.prefill[2], 4)" DONE));
    set_prompt(&f, text, 100, 100);
    plan_once(&f, POLICY("local p = view.prefill\n"
                         "assert(p[2].prefix_blocks == 0)\n" /* nobody asked yet */
                         "local best, n, all = baton.prefix_match(p, req, 4)\n"
                         "assert(best == p[2] and n == 6 and all == 12)\n"
                         "assert(p[2].prefix_blocks == 6 and p[1].prefix_blocks == 0 and "
                         "p[2].prefix_cached == 10)\n"
                         "assert(baton.argmax_sum(p, 'prefix_blocks', 1) == p[2])\n"
                         "assert(baton.prefix_match({ p[1], p[3] }, req, 4) == nil)\n"
                         "baton.prefix_insert(req, p[3], 4)" DONE));
    set_prompt(&f, text, 100, 50);
    bt_worker_total(f.prefill.items[1], BT_PHASE_PREFILL)->requests = 5;
    plan_once(&f, POLICY("local best, n = baton.prefix_match(view.prefill, req, 4) assert(best.id "
                         "== 3 and n == 9)\n"
                         "assert(view.prefill[2].prefix_blocks == 6)" DONE));
    f.req.model = BT_STR("another");
    plan_once(&f, POLICY("assert(baton.prefix_match(view.prefill, req, 4) == nil)" DONE));
    f.req.model = BT_STR("");
    f.req.prefix_space = 7; /* a salt, an adapter */
    plan_once(&f, POLICY("assert(baton.prefix_match(view.prefill, req, 4) == nil)\n"
                         "baton.prefix_insert(req, view.prefill[1], 4)" DONE));
    plan_once(&f, POLICY("assert(baton.prefix_match(view.prefill, req, 4).id == 1)" DONE));
    f.req.prefix_space = 8;
    plan_once(&f, POLICY("assert(baton.prefix_match(view.prefill, req, 4) == nil)" DONE));
    fleet_fini(&f);
}

/* The next request lies at the same address: nothing of the one before may be left. */
static void nothing_outlives_the_call(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;
    char text[512];

    fleet_init(&f, 4, 1, 0);
    policy = policy_of(
        POLICY("local p, best = view.prefill, baton.prefix_match(view.prefill, req, 4)\n"
               "if not best then best = p[#req.session] baton.prefix_insert(req, best, 4) end\n"
               "return { prefill = best, decode = view.decode[1] }"));
    for (int round = 0; round < 2; round++)
        for (size_t i = 1; i <= 4; i++) {
            set_prompt(&f, text, 64, 0);
            memset(text + 1, 'a' + (int) i, 64);
            f.req.session = round == 0 ? (bt_str_t){"ssss", i} : BT_STR("s");
            assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
            assert_int_equal(choice.first.prefill->id, i);
        }
    bt_policy_free(policy);
    fleet_fini(&f);
}

/* Ids are read when somebody first asks, and then stay for all who ask of the same request. */
static void ids_are_read_once(void **state)
{
    struct fleet f;
    char text[] = "[101,102,103,104,105,106,107,108]";
    void *nothing = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(nothing, MAP_FAILED);
    fleet_init(&f, 3, 1, 0);
    f.req.prompt = (bt_str_t){nothing, 4096};
    f.req.prompt_number = bt_prompt_number();
    plan_once(&f, POLICY("assert(baton.argmin(view.prefill, 'requests'))" DONE));

    f.req.prompt = bt_str(text);
    plan_once(&f, POLICY("assert(baton.prefix_blocks(req, 4) == 2)\n"
                         "baton.prefix_insert(req, view.prefill[2], 4)" DONE));
    text[1] = '9';
    plan_once(&f, POLICY("assert(baton.prefix_match(view.prefill, req, 4) == view.prefill[2])\n"
                         "assert(baton.prefix_blocks(req, 2) == 4)" DONE));
    f.req.prompt_number = bt_prompt_number();
    plan_once(&f, POLICY("assert(baton.prefix_match(view.prefill, req, 4) == nil)" DONE));
    text[1] = '1';
    f.req.prompt_number = 0;
    plan_once(&f, POLICY("assert(baton.prefix_match(view.prefill, req, 4).id == 2)" DONE));
    text[1] = '9';
    plan_once(&f, POLICY("assert(baton.prefix_match(view.prefill, req, 4) == nil)" DONE));
    fleet_fini(&f);
    munmap(nothing, 4096);
}

/* What every prompt begins with is known to all: it must not draw all prompts to one worker. */
static void equals_share(void **state)
{
    struct fleet f;
    char text[512];

    bt_rand_seed(1);
    fleet_init(&f, 4, 1, 0);
    set_prompt(&f, text, 160, 0);
    bt_worker_total(f.prefill.items[1], BT_PHASE_PREFILL)->requests = 1;
    plan_once(
        &f, POLICY("local p, seen = view.prefill, { 0, 0, 0, 0 }\n"
                   "for i = 1, 4 do baton.prefix_insert(req, p[i], 4) end\n"
                   "for _ = 1, 300 do\n"
                   "  local best = baton.prefix_match(p, req, 4)\n"
                   "  seen[best.id] = seen[best.id] + 1\n"
                   "end\n"
                   "assert(seen[1] > 60 and seen[2] == 0 and seen[3] > 60 and seen[4] > 60)" DONE));
    fleet_fini(&f);
}

static void keys(void **state)
{
    struct fleet f;
    char text[512];

    fleet_init(&f, 1, 1, 0);
    set_prompt(&f, text, 160, 0);
    plan_once(&f,
              POLICY("local k = baton.prefix_key(req, 2, 4)\n"
                     "assert(#k == 16 and k ~= baton.prefix_key(req, 3, 4) and "
                     "baton.prefix_key(req) == nil)\n"
                     "assert(baton.prefix_key(req, 10, 4) == baton.prefix_key(req, 99, 4))" DONE));
    f.req.prompt = BT_STR_NULL;
    plan_once(&f, POLICY("assert(baton.prefix_key(req, 2, 4) == nil and baton.prefix_blocks(req, "
                         "4) == 0)" DONE));
    fleet_fini(&f);
}

/* The second worker's engine publishes what it has, and every gateway of the fleet hears it: only the third's blocks are
 * told by this one. What was sent to either counts here at once. */
static void engines_that_tell_are_not_told_of(void **state)
{
    bt_prefix_ring_t *ring = bt_prefix_ring_new();
    uint64_t taken[BT_PREFIX_BLOCKS_MAX];
    bt_kv_index_t *index;
    uint32_t part, worker = 0;
    struct fleet f;

    assert_non_null(ring);
    assert_int_equal(bt_kv_index_new(&index, &(bt_kv_index_config_t){0}), 0);
    assert_int_equal(bt_kv_part_open(index, 1, &part), 0);
    bt_kv_part_set_live(index, part, true);
    bt_kv_hits_set_index(index);
    bt_prefix_ring_bind(ring);
    fleet_init(&f, 3, 1, 0);
    f.prefill.items[1]->kv_parts = bt_kv_parts(part, 1);
    f.req.prompt = BT_STR("[1,2,3,4,5,6,7,8,9]");
    plan_once(&f,
              POLICY("local p = view.prefill\n"
                     "baton.prefix_match(p, req, 4)\n"
                     "assert(p[2].kv_hit_tokens == 0 and p[3].kv_hit_tokens == nil)\n"
                     "baton.prefix_insert(req, p[2], 4) baton.prefix_insert(req, p[3], 4)" DONE));
    assert_int_equal(bt_prefix_ring_take(ring, &worker, taken), 2);
    assert_int_equal(worker, f.prefill.items[2]->id);
    assert_int_equal(bt_prefix_ring_take(ring, &worker, taken), 0);
    plan_once(&f, POLICY("local p = view.prefill\n"
                         "baton.prefix_match(p, req, 4)\n"
                         "assert(p[2].prefix_blocks == 2 and p[3].prefix_blocks == 2)" DONE));
    fleet_fini(&f);
    bt_prefix_ring_bind(NULL);
    bt_prefix_ring_free(ring);
    bt_kv_hits_thread_fini();
    bt_kv_hits_set_index(NULL);
    bt_kv_index_free(index);
}

static void mistakes_are_named(void **state)
{
    static const struct mistake cases[] = {
        {"baton.prefix_match(view.prefill)", "req expected"},
        {"baton.prefix_match(view.prefill, view.prefill[1])", "req expected"},
        {"baton.prefix_match(view.prefill, req, 0)", "1 to 1024 tokens"},
        {"baton.prefix_match(1, req)", "table expected"},
        {"baton.prefix_insert(req, 1)", "a worker is expected here"},
        {"baton.prefix_key(req, 0)", "1 to 1024 blocks"},
    };
    assert_mistakes(cases, sizeof(cases) / sizeof(cases[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(match_and_insert, forget),
        cmocka_unit_test_setup(nothing_outlives_the_call, forget),
        cmocka_unit_test_setup(ids_are_read_once, forget),
        cmocka_unit_test_setup(equals_share, forget),
        cmocka_unit_test_setup(keys, forget),
        cmocka_unit_test_setup(engines_that_tell_are_not_told_of, forget),
        cmocka_unit_test_setup(mistakes_are_named, forget),
    };
    return cmocka_run_group_tests(tests, set_wide_budgets, NULL);
}
