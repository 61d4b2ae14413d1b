/* request_hold.c - how long a request's memory stays, and what its client has sent. */
#include "dispatch/answer/token_replay.h"
#include "dispatch/plan/tokenize.h"

static bool is_input_needed(const bt_request_t *r)
{
    for (unsigned i = 0; i < r->task_count; i++) {
        const bt_task_t *task = &r->tasks[i];
        if (!r->finished && !task->done && !task->committed)
            return true;
        for (const bt_attempt_t *a = task->attempt; a != NULL; a = a->before)
            for (unsigned k = 0; k < 2; k++)
                if (bt_leg_running(&a->legs[k]) && bt_call_needs_request(&a->legs[k].call))
                    return true;
    }
    return r->task_count == 0;
}

/* Each holds a whole read buffer. The last attempt's may be wanted until its answer has begun: to free what prefill holds
 * (bt_background_call_release). */
static void drop_replies(bt_request_t *r)
{
    for (unsigned i = 0; i < r->task_count; i++)
        for (bt_attempt_t *a = r->tasks[i].attempt; a != NULL; a = a->before)
            for (unsigned k = 0; k < 2 && (a->committed || a != r->tasks[i].attempt); k++)
                if (!bt_leg_running(&a->legs[k]))
                    bt_kept_drop(&a->legs[k].reply);
}

void bt_request_drop_input(bt_request_t *r)
{
    if (is_input_needed(r))
        return;
    drop_replies(r);
    if (bt_token_replay_is_open(r))
        return;
    bt_tokenize_drop(r);
    r->intent.body = (bt_body_t){.text = BT_STR("")};
    r->intent.members = NULL;
    r->intent.prompt = NULL;
    r->intent.prompts = NULL;
    bt_edits_init(&r->intent.strip, &r->send_arena);
    bt_arena_fini(&r->send_arena);
    if (r->x != NULL)
        bt_exchange_drop_request(r->x);
    bt_buf_unref(r->body_buf);
    r->body_buf = NULL;
}

void bt_request_release(bt_request_t *r)
{
    BT_ASSERT(r->holds > 0);
    if (--r->holds > 0)
        bt_request_drop_input(r);
    else if (r->finished)
        /* Twice, when the last leg is one that its end cancels: once is enough. */
        bt_loop_later(r->d->loop, &r->reap);
}
