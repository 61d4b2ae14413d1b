/* replay_round.c - see replay_round.h. */
#include "dispatch/attempt/replay_round.h"

#include "api/continuation.h"
#include "base/err.h"
#include "base/log.h"
#include "dispatch/answer/token_replay.h"
#include "dispatch/plan/policy_call.h"

#define ID_CHARS 11 /* ten digits and a comma */

static bool is_recomputed(const bt_failure_t *f)
{
    return f->rc == BT_E_RECOMPUTED;
}

/* It begins anew: nobody has seen anything of it. */
static bool has_nothing(const struct bt_token_replay *replay)
{
    const bool has_ids = replay->wants_ids && bt_token_replay_made(replay) != 0; /* and no text */

    return replay->shown == 0 && (!replay->is_sse || (replay->closed == NULL && !has_ids));
}

static const char *why_inexact(const struct bt_token_replay *replay)
{
    if (replay->closed != NULL)
        return replay->closed;
    if (replay->prompt_count == 0)
        return "the engine has not told the prompt's token ids";
    if (replay->wants_ids && replay->shown != bt_token_replay_made(replay))
        return "the client has token ids whose text has not come";
    return replay->limit <= replay->shown ? "max_tokens are made" : NULL;
}

static uint64_t left_of(const struct bt_token_replay *replay)
{
    return replay->limit == BT_CONTINUATION_UNLIMITED ? 0 : replay->limit - replay->shown;
}

const char *bt_replay_round_refusal(const bt_task_t *task, const bt_failure_t *f)
{
    const bt_request_t *r = task->request;
    const struct bt_token_replay *replay = r->replay;
    const char *why;

    if (is_recomputed(f) ? !replay->on_recomputed : !replay->on_lost || !f->retryable)
        return "it is not to be continued after that";
    if (replay->count >= r->pool->spec.max_replays)
        return "it was continued --max-replays times already";
    if (replay->is_sse && (replay->is_finished || replay->is_done))
        return "its end has come already";
    why = has_nothing(replay) ? NULL : why_inexact(replay);
    if (why == NULL && !bt_policy_call_recompute(
                           task->request, &(bt_policy_failure_t){.scope = bt_err_scope(f->rc),
                                                                 .name = bt_err_name(f->rc),
                                                                 .leg = bt_leg_role_name(f->leg),
                                                                 .status = f->status,
                                                                 .tried = task->tried,
                                                                 .tried_count = task->tried_count,
                                                                 .made = replay->shown,
                                                                 .left = left_of(replay),
                                                                 .replays = replay->count}))
        why = "the policy says no";
    return why;
}

/* "[1,2" of the client's own list, or of the ids that the engine has told; then those of the output. */
static int print_prompt(const bt_request_t *r, bt_buf_t **buf_p)
{
    const struct bt_token_replay *replay = r->replay;
    bt_str_t own = bt_str_trim(r->intent.prompt->value);
    int rc = 0;

    (*buf_p)->data[(*buf_p)->len++] = '[';
    if (r->intent.prompt_ids != 0) {
        memcpy((*buf_p)->data + (*buf_p)->len, own.p + 1, own.n - 2);
        (*buf_p)->len += own.n - 2;
        if (replay->id_count != 0)
            (*buf_p)->data[(*buf_p)->len++] = ',';
    }
    rc = bt_token_replay_print(buf_p, replay->ids, replay->id_count);
    if (rc == 0)
        (*buf_p)->data[(*buf_p)->len++] = ']';
    return rc;
}

static int make_prompt(bt_request_t *r)
{
    struct bt_token_replay *replay = r->replay;
    const size_t size = replay->id_count * ID_CHARS + 16 +
                        (r->intent.prompt_ids != 0 ? r->intent.prompt->value.n : 0);
    struct bt_replay_prompt *p = bt_arena_alloc(&r->arena, sizeof(*p));
    bt_buf_t *buf = bt_dispatch_shared_fits(r->d->shared, size) ? bt_buf_new(size) : NULL;

    if (buf == NULL || print_prompt(r, &buf) < 0) {
        bt_buf_unref(buf);
        return BT_E_NOMEM;
    }
    *p = (struct bt_replay_prompt){replay->prompt, buf};
    replay->prompt = p;
    return 0;
}

/* A recomputed answer may bring its last token once more; after a loss nothing is made again. */
static void set_budget(bt_request_t *r, const bt_failure_t *f)
{
    struct bt_token_replay *replay = r->replay;
    const uint64_t made = replay->shown, again = is_recomputed(f) ? replay->again : 0;
    const uint64_t least = bt_continuation_number(&r->intent, "min_tokens");

    replay->max_tokens = replay->limit == BT_CONTINUATION_UNLIMITED
                             ? 0
                             : bt_continuation_budget(replay->limit, made + again, again);
    replay->min_tokens = least > made ? least - made : 0;
}

int bt_replay_round_begin(bt_task_t *task, const bt_failure_t *f)
{
    bt_request_t *r = task->request;
    struct bt_token_replay *replay = r->replay;

    task->prompt_tokens += replay->shown - replay->before;
    replay->before = replay->shown;
    replay->id_count = replay->kept_prompt + replay->shown;
    if (replay->shown != 0 && make_prompt(r) < 0)
        return BT_E_NOMEM;
    set_budget(r, f);
    bt_sink_replay_next_round(r);
    replay->reason = is_recomputed(f) ? "recomputed" : "lost";
    replay->count++;
    r->prompt_tokens = task->prompt_tokens;
    return 0;
}

void bt_replay_round_count(bt_task_t *task, const bt_failure_t *f)
{
    bt_request_t *r = task->request;

    if (is_recomputed(f))
        bt_stats_inc(&r->d->stats, replays_recomputed);
    else
        bt_stats_inc(&r->d->stats, replays_lost);
    BT_REQUEST_LOG(debug, "dispatch", r, f->worker,
                   "the answer goes on by its token ids, %llu so far: worker %s, %s",
                   (unsigned long long) r->replay->before, f->worker, bt_err_name(f->rc));
}
