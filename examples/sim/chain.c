/* chain.c - see chain.h. What arrived instead of the right KV shifts every id. */
#include "chain.h"

#include "words.h"

static uint64_t step(uint64_t state, uint32_t id)
{
    return sim_state_add(state, (const char *) &id, sizeof(id));
}

void sim_chain_read(sim_job_t *job)
{
    for (unsigned i = 0; i < job->ask.prompt_count; i++) {
        sim_prompt_t *prompt = &job->ask.prompts[i];
        prompt->ids = bt_arena_zalloc(&job->arena, (prompt->tokens + 1) * sizeof(*prompt->ids));
        memcpy(prompt->ids, prompt->text.p, prompt->text.n);
    }
}

static void start(sim_sample_t *s)
{
    const sim_prompt_t *prompt = &s->job->ask.prompts[s->prompt];

    s->chain = SIM_STATE_FIRST;
    for (unsigned i = 0; i < prompt->tokens; i++)
        s->chain = step(s->chain, prompt->ids[i]);
    s->chain ^= s->kv ^ prompt->kv;
    s->chain_ids = bt_arena_alloc(&s->job->arena, (s->job->max_tokens + 1) * sizeof(*s->chain_ids));
}

unsigned sim_chain_id(sim_sample_t *s, unsigned i)
{
    if (s->chain_ids == NULL)
        start(s);
    for (; s->chain_count <= i; s->chain_count++) {
        s->chain_ids[s->chain_count] = sim_word_id(s->chain, s->seed, 0);
        s->chain = step(s->chain, s->chain_ids[s->chain_count]);
    }
    return s->chain_ids[i];
}

bt_str_t sim_chain_word(sim_sample_t *s, unsigned i)
{
    static char word[SIM_WORD_CHARS + 1] = " ";

    sim_word_of_id(sim_chain_id(s, i), word + 1);
    return (bt_str_t){word, sizeof(word)};
}

static void put_list(bt_text_t *t, const uint32_t *ids, unsigned count)
{
    bt_text_puts(t, "[");
    for (unsigned i = 0; i < count; i++)
        bt_text_printf(t, "%s%u", i > 0 ? "," : "", ids[i]);
    bt_text_puts(t, "]");
}

void sim_chain_put_ids(bt_text_t *t, const sim_job_t *job, sim_sample_t *s, unsigned from,
                       unsigned to, bool has_prompt)
{
    const sim_prompt_t *prompt = &job->ask.prompts[s->prompt];

    if (!job->worker->options.by_ids)
        return;
    if (to > from)
        (void) sim_chain_id(s, to - 1);
    bt_text_puts(t, ",\"prompt_token_ids\":");
    if (job->ask.return_token_ids && has_prompt)
        put_list(t, prompt->ids, prompt->tokens);
    else
        bt_text_puts(t, "null");
    bt_text_puts(t, ",\"token_ids\":");
    if (job->ask.return_token_ids)
        put_list(t, s->chain_ids + from, to - from);
    else
        bt_text_puts(t, "null");
}
