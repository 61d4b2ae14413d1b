/* Hits that were predicted by KV events are held against what answers say. */
#include "cluster/kv_trust.h"
#include "dispatch/attempt_rig.h"
#include "script/shared/kv_hits.h"

#define POLICY                                                                                     \
    "return { api = 2, name = 'mine', version = '1', plan = function(req, view)\n"                 \
    "  baton.prefix_match(view.hybrid, req, 4)\n"                                                  \
    "  return { kind = 'single', worker = view.hybrid[1] }\n"                                      \
    "end }\n"

static bt_kv_index_t *index_;

/* By its events s0 holds eight tokens. */
static int open_rig(void **state)
{
    static const uint32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint32_t part;

    rig_start(&(struct rig_options){.is_single_only = true, .policy = POLICY, .keeps_idle = true});
    assert_int_equal(bt_kv_index_new(&index_, &(bt_kv_index_config_t){0}), 0);
    bt_kv_hits_set_index(index_);
    assert_int_equal(bt_kv_part_open(index_, 1, &part), 0);
    bt_kv_part_apply(index_, part,
                     &(bt_kv_event_t){.hashes = (uint64_t[]){1, 2},
                                      .hash_count = 2,
                                      .tokens = ids,
                                      .token_count = 8,
                                      .block_tokens = 4});
    bt_kv_part_set_live(index_, part, true);
    atomic_store(&engines[S0].worker->kv_parts, bt_kv_parts(part, 1));
    return 0;
}

static int close_rig(void **state)
{
    const int rc = teardown(state);

    bt_kv_hits_thread_fini();
    bt_kv_hits_set_index(NULL);
    bt_kv_index_free(index_);
    return rc;
}

#define USAGE(prompt, details)                                                                     \
    "{\"id\":\"cmpl-1\",\"choices\":[{\"text\":\"hello\"}],\"usage\":{\"prompt_tokens\":" prompt   \
    ",\"completion_tokens\":1,\"total_tokens\":10,\"prompt_tokens_details\":" details "}}"

/* more: members of the body, or "". */
static void serve_with(const char *more, const char *prompt, const char *reply)
{
    char body[128];

    snprintf(body, sizeof(body), "{\"model\":\"m\",%s\"prompt\":%s}", more, prompt);
    ask_body(body);
    take(S0);
    answer(S0, 200, reply);
    answered("hello");
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
}

static void serve(const char *prompt, const char *reply)
{
    serve_with("", prompt, reply);
}

static bool is_trusted(void)
{
    return bt_kv_trust_has(engines[S0].worker);
}

#define HIT "[1,2,3,4,5,6,7,8,9]"
#define TOLD "{\"cached_tokens\":8}"

static void hits_that_never_come(void **state)
{
    serve(HIT, USAGE("9", TOLD));
    for (unsigned i = 1; i < BT_KV_MISSES_MAX; i++) {
        serve(HIT, USAGE("9", "null")); /* so vLLM says that there were none */
        serve("[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", USAGE("16", "null")); /* half of it */
        serve("[9,9,9,9,9]", USAGE("5", "null"));
    }
    assert_true(is_trusted());
    serve(HIT, USAGE("9", "{\"cached_tokens\":0}"));
    assert_false(is_trusted());
    bt_kv_trust_renew(engines[S0].worker);
    assert_true(is_trusted());
}

static void hits_that_come(void **state)
{
    for (unsigned i = 0; i < 2 * BT_KV_MISSES_MAX; i++)
        serve(HIT, i % BT_KV_MISSES_MAX == 0 ? USAGE("9", TOLD) : USAGE("9", "null"));
    assert_true(is_trusted());
}

static void an_engine_that_tells_nothing(void **state)
{
    for (unsigned i = 0; i < 2 * BT_KV_MISSES_MAX; i++)
        serve(HIT, i % 2 == 0 ? REPLY : USAGE("9", "null"));
    assert_true(is_trusted());
}

/* Engines compute those anew, whatever their cache holds: one evaluation run would end the trust in all of them. */
static void prompts_whose_logprobs_are_asked_for(void **state)
{
    serve(HIT, USAGE("9", TOLD));
    for (unsigned i = 0; i < BT_KV_MISSES_MAX; i++)
        serve_with(i % 2 == 0 ? "\"prompt_logprobs\":1," : "\"echo\":true,\"logprobs\":1,", HIT,
                   USAGE("9", "null"));
    assert_true(is_trusted());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(hits_that_never_come, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(hits_that_come, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(an_engine_that_tells_nothing, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(prompts_whose_logprobs_are_asked_for, open_rig, close_rig)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
