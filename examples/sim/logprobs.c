/* logprobs.c - see logprobs.h. SGLang's decode knows nothing of the prompt, and says [] (but still repeats its text with echo). */
#include "logprobs.h"

#include "words.h"

struct token {
    unsigned id, lp; /* lp: thousandths below 0 */
};

static struct token prompt_token(const sim_prompt_t *prompt, unsigned i)
{
    const uint64_t x = sim_mix(prompt->kv ^ sim_mix(i + 1));

    return (struct token){(unsigned) (x & 0x3ffff), (unsigned) (x >> 20) % 8000};
}

static struct token answer_token(const sim_sample_t *s, unsigned i)
{
    return (struct token){sim_word_id(s->kv, s->seed, i),
                          (unsigned) (sim_mix(s->kv ^ sim_mix(s->seed + 1) ^ ~(uint64_t) i) >> 20) %
                              8000};
}

static const sim_prompt_t *prompt_of(const sim_job_t *job, const sim_sample_t *s)
{
    return &job->ask.prompts[s->prompt];
}

static bool knows_prompt(const sim_job_t *job)
{
    return job->worker->options.role != SIM_DECODE;
}

static void put_number(bt_text_t *t, unsigned lp)
{
    bt_text_printf(t, "-%u.%03u", lp / 1000, lp % 1000);
}

static void put_word(bt_text_t *t, unsigned id)
{
    char word[SIM_WORD_CHARS];

    sim_word_of_id(id, word);
    bt_text_printf(t, "\"%.*s\"", SIM_WORD_CHARS, word);
}

/* ---- vLLM ---- */

bool sim_logprobs_wants_prompt(const sim_ask_t *ask)
{
    return ask->prompt_logprobs >= -1 || (ask->echo && ask->logprobs >= 0);
}

int sim_logprobs_check(const sim_ask_t *ask, sim_problem_t *problem_p)
{
    if (!ask->stream || (ask->prompt_logprobs <= 0 && ask->prompt_logprobs != -1))
        return 0;
    return sim_problem_set(problem_p, 400,
                           "`prompt_logprobs` are not available when `stream=True`.");
}

void sim_logprobs_prompt(bt_text_t *t, const sim_job_t *job, unsigned prompt)
{
    const sim_prompt_t *p = &job->ask.prompts[prompt];

    if (job->ask.prompt_logprobs < -1) {
        bt_text_puts(t, "null");
        return;
    }
    bt_text_puts(t, "[null");
    for (unsigned i = 1; i < p->tokens; i++) {
        const struct token token = prompt_token(p, i);
        bt_text_printf(t, ",{\"%u\":{\"logprob\":", token.id);
        put_number(t, token.lp);
        bt_text_puts(t, ",\"rank\":1,\"decoded_token\":");
        put_word(t, token.id);
        bt_text_puts(t, "}}");
    }
    bt_text_puts(t, "]");
}

/* ---- SGLang's /generate ---- */

/* The first one has no number: nothing stands before it. top 0: [number, id, text]; else a list of so many. */
static void put_entry(bt_text_t *t, struct token token, bool is_first, unsigned top)
{
    if (is_first && top > 0) {
        bt_text_puts(t, "null");
        return;
    }
    bt_text_puts(t, top > 0 ? "[" : "");
    for (unsigned k = 0; k < (top > 0 ? top : 1); k++) {
        bt_text_puts(t, k > 0 ? ",[" : "[");
        if (is_first)
            bt_text_puts(t, "null");
        else
            put_number(t, token.lp + k);
        bt_text_printf(t, ",%u,null]", token.id + k);
    }
    bt_text_puts(t, top > 0 ? "]" : "");
}

static void put_inputs(bt_text_t *t, const sim_job_t *job, const sim_sample_t *s, int64_t start,
                       unsigned top)
{
    const sim_prompt_t *p = prompt_of(job, s);
    const unsigned from = start >= 0 ? (unsigned) start : p->tokens;

    bt_text_printf(t, ",\"input_%s_logprobs\":[", top > 0 ? "top" : "token");
    for (unsigned i = from; knows_prompt(job) && i < p->tokens; i++) {
        bt_text_puts(t, i > from ? "," : "");
        put_entry(t, prompt_token(p, i), i == from, top);
    }
    bt_text_puts(t, "]");
}

static void put_outputs(bt_text_t *t, const sim_sample_t *s, unsigned count, unsigned top)
{
    bt_text_printf(t, ",\"output_%s_logprobs\":[", top > 0 ? "top" : "token");
    for (unsigned i = 0; i < count; i++) {
        bt_text_puts(t, i > 0 ? "," : "");
        put_entry(t, answer_token(s, i), false, top);
    }
    bt_text_puts(t, "]");
}

static int64_t number_at(sim_raw_t raw, unsigned i, int64_t otherwise)
{
    const sim_raw_t one = sim_raw_at(raw, i);
    int64_t value;

    return one.type == BT_JSON_NUMBER && bt_json_i64(one.value, &value) == 0 ? value : otherwise;
}

void sim_logprobs_meta(bt_text_t *t, const sim_job_t *job, const sim_sample_t *s, unsigned count)
{
    const sim_ask_t *ask = &job->ask;
    const int64_t start = number_at(ask->logprob_start, s->prompt, -1),
                  top = number_at(ask->top_logprobs, s->prompt, 0);

    if (sim_raw_at(ask->return_logprob, s->prompt).type != BT_JSON_TRUE)
        return;
    put_inputs(t, job, s, start, 0);
    put_outputs(t, s, count, 0);
    if (top <= 0)
        return;
    put_inputs(t, job, s, start, (unsigned) top);
    put_outputs(t, s, count, (unsigned) top);
}

/* ---- SGLang's /v1/completions ---- */

enum what { WORDS, NUMBERS, OFFSETS, TOPS };

static void put_one(bt_text_t *t, enum what what, struct token token, bool is_first)
{
    switch (what) {
    case WORDS:
        put_word(t, token.id);
        return;
    case OFFSETS:
        bt_text_puts(t, "-1"); /* it does not tell them */
        return;
    case NUMBERS:
    case TOPS:
        break;
    }
    if (is_first) {
        bt_text_puts(t, "null");
        return;
    }
    if (what == TOPS) {
        bt_text_puts(t, "{");
        put_word(t, token.id);
        bt_text_puts(t, ":");
    }
    put_number(t, token.lp);
    bt_text_puts(t, what == TOPS ? "}" : "");
}

static void put_list(bt_text_t *t, const sim_job_t *job, const sim_sample_t *s, unsigned from,
                     unsigned to, enum what what)
{
    const sim_prompt_t *p = prompt_of(job, s);
    bool any = false;

    for (unsigned i = 0; job->ask.echo && from == 0 && knows_prompt(job) && i < p->tokens; i++) {
        bt_text_puts(t, any ? "," : "");
        put_one(t, what, prompt_token(p, i), i == 0);
        any = true;
    }
    for (unsigned i = from; i < to; i++) {
        bt_text_puts(t, any ? "," : "");
        put_one(t, what, answer_token(s, i), false);
        any = true;
    }
}

void sim_logprobs_choice(bt_text_t *t, const sim_job_t *job, const sim_sample_t *s, unsigned from,
                         unsigned to)
{
    static const struct {
        const char *name;
        enum what what;
    } lists[] = {{"{\"text_offset\":[", OFFSETS},
                 {"],\"token_logprobs\":[", NUMBERS},
                 {"],\"tokens\":[", WORDS},
                 {"],\"top_logprobs\":[", TOPS}};

    if (job->ask.logprobs < 0) {
        bt_text_puts(t, "null");
        return;
    }
    for (unsigned i = 0; i < 4; i++) {
        bt_text_puts(t, lists[i].name);
        if (lists[i].what != TOPS || job->ask.logprobs > 0)
            put_list(t, job, s, from, to, lists[i].what);
    }
    bt_text_puts(t, "]}");
}
