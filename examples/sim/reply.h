/* reply.h - answers in the form of each route and engine.
 *
 * Owner: the job; its exchange is used here and nowhere else.
 * Life:  begin -> token* -> end, or one of the errors, after which the exchange is over.
 * Flow:  reply.c knows what is common, reply_openai.c, reply_other.c the single forms.
 * Cost:  a stream event is put together by copying into one buffer shared by all streams.
 */
#ifndef SIM_REPLY_H
#define SIM_REPLY_H

#include "world.h"

/* Fills job->id. */
void sim_reply_name(sim_job_t *job);
/* Sends the head of an event stream. */
void sim_reply_begin(sim_job_t *job);
void sim_reply_token(sim_job_t *job, sim_sample_t *sample, unsigned i);
void sim_reply_end(sim_job_t *job);
/* Head and half of the body of an unstreamed answer (faults). */
void sim_reply_part(sim_job_t *job);
void sim_reply_error(sim_job_t *job, const sim_problem_t *problem);
/* Embeddings, rerank, classify: the whole answer. */
void sim_reply_scores(sim_job_t *job);
void sim_reply_fault_status(sim_job_t *job);
void sim_reply_fault_body(sim_job_t *job);
void sim_reply_fault_event(sim_job_t *job);

/* Earlier turns that a /v1/responses body refers to. 0, or -1 with a problem (404). */
int sim_story_before(sim_worker_t *worker, bt_str_t body, bt_arena_t *arena, bt_str_t *before_p,
                     sim_problem_t *problem_p);
void sim_story_keep(sim_job_t *job, bt_str_t answer, bt_str_t text);
/* The kept answer, empty when unknown. */
bt_str_t sim_story_find(const sim_worker_t *worker, bt_str_t id);
void sim_stories_clear(sim_worker_t *worker);

/* One form; chosen by route and engine. */
typedef struct sim_form {
    void (*begin)(sim_job_t *job, bt_text_t *t); /* events in front of the first token */
    void (*token)(sim_job_t *job, sim_sample_t *s, unsigned i,
                  bool last);                    /* writes its events by sim_reply_put */
    void (*tail)(sim_job_t *job, bt_text_t *t);  /* events behind the last token */
    void (*whole)(sim_job_t *job, bt_text_t *t); /* the unstreamed answer */
} sim_form_t;
extern const sim_form_t sim_form_completions, sim_form_chat, sim_form_responses, sim_form_messages,
    sim_form_generate, sim_form_tokens;
void sim_reply_put(sim_job_t *job, bt_str_t event);
/* head, number, middle, word, end as one event; the fast way of a token. */
void sim_reply_put_token(sim_job_t *job, unsigned index, bt_str_t middle, bt_str_t word,
                         bt_str_t end);
/* The word of token i with its blank, in a static buffer. */
bt_str_t sim_reply_word(sim_sample_t *s, unsigned i);
void sim_reply_text(bt_text_t *t, const sim_job_t *job, sim_sample_t *s); /* no quotes */
unsigned sim_reply_prompt_tokens(const sim_job_t *job);
void sim_reply_usage(bt_text_t *t, const sim_job_t *job);

#endif
