/* Text by ids: a prompt that ends with some of an answer goes on with its rest. */
#include "chain.h"

#include "unit.h"
#include "words.h"

#define IDS 12

static sim_worker_t worker = {.options.by_ids = true};
static sim_prompt_t prompt;
static sim_job_t job;

static void start(sim_sample_t *s, const uint32_t *ids, unsigned count, uint64_t wrong)
{
    bt_arena_init(&job.arena);
    job.worker = &worker;
    job.ask.prompts = &prompt;
    job.ask.prompt_count = 1;
    job.max_tokens = 2 * IDS;
    prompt = (sim_prompt_t){.tokens = count,
                            .bytes = count * sizeof(*ids),
                            .text = {(const char *) ids, count * sizeof(*ids)}};
    prompt.kv = sim_kv(prompt.text);
    sim_chain_read(&job);
    *s = (sim_sample_t){.job = &job, .kv = prompt.kv ^ wrong};
}

static void test_goes_on(void **state)
{
    uint32_t ids[5 + IDS] = {11, 22, 33, 44, 55};
    unsigned whole[IDS];
    sim_sample_t s;

    start(&s, ids, 5, 0);
    for (unsigned i = 0; i < IDS; i++)
        whole[i] = ids[5 + i] = sim_chain_id(&s, i);
    bt_arena_fini(&job.arena);
    for (unsigned cut = 1; cut < IDS; cut++) {
        start(&s, ids, 5 + cut, 0);
        assert_int_equal(sim_chain_id(&s, IDS - 1 - cut), whole[IDS - 1]);
        assert_int_equal(sim_chain_id(&s, 0), whole[cut]);
        bt_arena_fini(&job.arena);
    }
}

static void test_wrong_kv_is_another_text(void **state)
{
    const uint32_t ids[] = {1, 2, 3};
    sim_sample_t s;
    unsigned right;

    start(&s, ids, 3, 0);
    right = sim_chain_id(&s, 3);
    bt_arena_fini(&job.arena);
    start(&s, ids, 3, 1);
    assert_int_not_equal(sim_chain_id(&s, 3), right);
    bt_arena_fini(&job.arena);
}

static void test_words_are_ids(void **state)
{
    const uint32_t ids[] = {1};
    char word[SIM_WORD_CHARS];
    sim_sample_t s;

    start(&s, ids, 1, 0);
    sim_word_of_id(sim_chain_id(&s, 0), word);
    assert_int_equal(sim_chain_word(&s, 0).p[0], ' ');
    assert_memory_equal(sim_chain_word(&s, 0).p + 1, word, sizeof(word));
    bt_arena_fini(&job.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goes_on),
        cmocka_unit_test(test_wrong_kv_is_another_text),
        cmocka_unit_test(test_words_are_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
