/* sink_replay.c - an answer that may come from several workers, one after the other, and reads as one.
 *
 *   streamed:      whole events only are passed on, so a worker that dies in the middle of one leaves no half. Each is looked into:
 *                  ids are collected, and taken out where the client has not asked for them (their value becomes null, as engines
 *                  write it then). Events of later rounds get the first one's id, created and fingerprint, and usage of them all.
 *   not streamed:  each round's body is kept; the last one goes out with the texts of all.
 *
 * The event that says "recomputed", and what follows it in that round, is not for the client.
 */
#include "api/completion.h"
#include "api/cuts.h"
#include "api/inspect.h"
#include "base/err.h"
#include "dispatch/answer/headers.h"
#include "dispatch/answer/sink.h"
#include "dispatch/answer/token_replay.h"
#include "dispatch/answer/usage.h"

#include <inttypes.h>

#define EVENT_MAX_BYTES ((size_t) 16 << 20) /* the first one may bring all ids of the prompt */
#define EVENT_SURE_BYTES ((size_t) 64 << 10)
#define WHOLE_MAX_BYTES ((size_t) 64 << 20)

/* ---- bytes on their way ---- */

static void flush(bt_request_t *r)
{
    bt_buf_t *buf = r->replay->out;

    r->replay->out = NULL;
    if (buf != NULL && r->x != NULL)
        bt_sink_send(r, buf, buf->data, buf->len);
    bt_buf_unref(buf);
}

/* ---- changing values ---- */

static void hide_ids(struct bt_token_replay *replay, const bt_completion_t *c, bt_cuts_t *cuts)
{
    const bt_str_t null = BT_STR("null");

    if (!replay->wants_ids && bt_completion_has(c->token_ids))
        bt_cuts_replace(cuts, c->token_ids, null);
    if (!bt_completion_has(c->prompt_ids))
        return;
    if (!replay->wants_ids || replay->is_prompt_told)
        bt_cuts_replace(cuts, c->prompt_ids, null);
    replay->is_prompt_told = true;
}

static uint64_t number_of(bt_str_t text)
{
    int64_t value = 0;

    return bt_json_i64(text, &value) == 0 && value > 0 ? (uint64_t) value : 0;
}

/* The prompt of later rounds has what the client calls the completion. */
static void correct_usage(struct bt_token_replay *replay, const bt_completion_t *c, bt_cuts_t *cuts)
{
    const uint64_t made = replay->before + number_of(c->completion_tokens);

    if (c->prompt_tokens.p == NULL || replay->prompt_count == 0) /* it began anew: usage is right */
        return;
    bt_cuts_number(cuts, c->prompt_tokens, replay->prompt_count);
    bt_cuts_number(cuts, c->completion_tokens, made);
    bt_cuts_number(cuts, c->total_tokens, replay->prompt_count + made);
}

static void correct_cached(const bt_request_t *r, const bt_completion_t *c, bt_cuts_t *cuts)
{
    const uint64_t told = number_of(c->cached_tokens), most = r->replay->prompt_count;
    uint64_t cached = told;

    if (c->cached_tokens.p == NULL)
        return;
    if (r->tasks[0].attempt != NULL)
        (void) bt_usage_prefill_cached(r->tasks[0].attempt, &cached);
    if (r->replay->count > 0 && most != 0 && cached > most)
        cached = most;
    if (cached != told)
        bt_cuts_number(cuts, c->cached_tokens, cached);
}

static void agree(const struct bt_token_replay *replay, const bt_completion_t *c, bt_cuts_t *cuts)
{
    bt_cuts_replace(cuts, c->id, replay->id);
    bt_cuts_replace(cuts, c->created, replay->created);
    bt_cuts_replace(cuts, c->model, replay->model);
    bt_cuts_replace(cuts, c->fingerprint, replay->fingerprint);
}

/* ---- what an answer says ---- */

static bt_str_t keep_value(bt_request_t *r, bt_str_t value)
{
    return value.p != NULL ? bt_arena_str(&r->arena, value) : BT_STR_NULL;
}

static void note_first(bt_request_t *r, const bt_completion_t *c)
{
    struct bt_token_replay *replay = r->replay;

    if (replay->id.p != NULL || c->id.p == NULL)
        return;
    replay->id = keep_value(r, c->id);
    replay->created = keep_value(r, c->created);
    replay->model = keep_value(r, c->model);
    replay->fingerprint = keep_value(r, c->fingerprint);
}

static bool has_text(const bt_completion_t *c)
{
    return c->text.n > 2;
}

static void collect(bt_request_t *r, const bt_completion_t *c)
{
    struct bt_token_replay *replay = r->replay;

    if (replay->prompt_count == 0 && replay->kept_prompt == 0)
        bt_token_replay_add(r, c->prompt_ids, true);
    if (!c->has_choice)
        return;
    if (bt_json_type_of(c->token_ids) == BT_JSON_ARRAY)
        bt_token_replay_add(r, c->token_ids, false);
    else if (has_text(c))
        bt_token_replay_close(r, "the engine tells no token ids");
    replay->is_finished |= bt_completion_has(c->finish);
    if (has_text(c) || replay->is_finished)
        replay->shown = bt_token_replay_made(replay);
}

static uint64_t count_ids(bt_str_t ids)
{
    const long n = bt_json_type_of(ids) == BT_JSON_ARRAY ? bt_json_count(ids) : 0;

    return n > 0 ? (uint64_t) n : 0;
}

/* ---- streamed ---- */

/* An engine that dies in the middle says so, and then ends its stream properly. */
static int note_error(bt_request_t *r, bt_str_t payload)
{
    struct bt_token_replay *replay = r->replay;
    const unsigned status = bt_inspect_event(payload);

    if (status < 500 || !replay->on_lost || replay->closed != NULL)
        return 0;
    replay->error_status = status;
    replay->error = bt_arena_str(&r->arena, payload);
    return 1;
}

static bool is_suspect(const bt_completion_t *c)
{
    return (!c->has_choice && c->prompt_tokens.p == NULL) ||
           bt_str_eq(c->finish, BT_STR("\"abort\"")) || bt_str_eq(c->finish, BT_STR("\"error\""));
}

static int pass_object(bt_request_t *r, bt_str_t event, bt_str_t payload)
{
    struct bt_token_replay *replay = r->replay;
    bt_cuts_t cuts = {.count = 0};
    bt_completion_t c;

    if (bt_completion_read(&c, payload) < 0)
        return bt_cuts_append(&replay->out, event);
    if (bt_completion_is_recomputed(&c) && replay->on_recomputed) {
        replay->is_recomputed = true;
        replay->again = count_ids(c.token_ids);
        return 0;
    }
    if (is_suspect(&c) && note_error(r, payload))
        return 0;
    note_first(r, &c);
    collect(r, &c);
    replay->has_usage |= !c.has_choice && c.prompt_tokens.p != NULL;
    hide_ids(replay, &c, &cuts);
    if (replay->count > 0) {
        agree(replay, &c, &cuts);
        correct_usage(replay, &c, &cuts);
    }
    correct_cached(r, &c, &cuts);
    return bt_cuts_write(&cuts, event, &replay->out);
}

static int pass_event(bt_request_t *r, bt_str_t event)
{
    struct bt_token_replay *replay = r->replay;
    char joined[2];
    const bt_str_t payload = bt_str_trim(bt_sse_data(event, joined, sizeof(joined)));

    if (replay->is_recomputed || replay->error_status != 0)
        return 0;
    replay->is_done |= bt_str_eq(payload, BT_STR("[DONE]"));
    /* Several data lines are no engine's: their ids could not be taken out either. */
    if (payload.n == 0 || payload.p == joined || payload.p[0] != '{')
        return bt_cuts_append(&replay->out, event);
    return pass_object(r, event, payload);
}

static void pass_events(bt_task_t *task, bt_str_t piece)
{
    bt_request_t *r = task->request;
    struct bt_token_replay *replay = r->replay;
    bt_str_t event;
    size_t at = 0;
    int rc = BT_E_NOMEM;

    if (replay->sse.carry_len <= EVENT_SURE_BYTES || bt_dispatch_shared_fits(r->d->shared, piece.n))
        while ((rc = bt_sse_next(&replay->sse, piece, &at, &event)) == 1 &&
               (rc = pass_event(r, event)) == 0)
            ;
    flush(r);
    if (rc < 0)
        bt_sink_break_off(task, rc, "an event of the answer is larger than 16 MiB");
}

/* ---- not streamed ---- */

static void keep_head(bt_request_t *r, const bt_head_t *from)
{
    struct bt_token_replay *replay = r->replay;
    const unsigned max = BT_HTTP_HEADERS_MAX + 28;

    bt_timer_stop(&r->keepalive); /* a body, though a stream was asked for: no comments before it */
    replay->status = from->status;
    replay->headers = bt_arena_alloc(&r->arena, max * sizeof(*replay->headers));
    replay->header_count = bt_headers_answer(r, from, replay->headers, max);
    bt_headers_keep(&r->arena, replay->headers, replay->headers, replay->header_count);
}

static void keep_body(bt_task_t *task, bt_buf_t *buf, bt_str_t piece)
{
    bt_request_t *r = task->request;
    struct bt_token_replay *replay = r->replay;
    const int rc = replay->body.text.n + piece.n > WHOLE_MAX_BYTES
                       ? BT_E_LIMIT
                       : bt_kept_add(&replay->body, r->d->shared, buf, piece);

    if (rc < 0)
        bt_sink_break_off(task, rc, "the answer is larger than 64 MiB");
}

static bt_str_t inner(bt_str_t string)
{
    return string.n >= 2 ? (bt_str_t){string.p + 1, string.n - 2} : BT_STR("");
}

/* "[1,2]" of what all rounds have made. */
static int print_ids(bt_request_t *r, bt_buf_t **buf_p)
{
    const struct bt_token_replay *replay = r->replay;
    int rc = bt_cuts_append(buf_p, BT_STR("["));

    if (rc == 0)
        rc = bt_token_replay_print(buf_p, replay->ids + replay->kept_prompt,
                                   bt_token_replay_made(replay));
    return rc == 0 ? bt_cuts_append(buf_p, BT_STR("]")) : rc;
}

static int print_prompt_ids(bt_request_t *r, bt_buf_t **buf_p)
{
    const struct bt_token_replay *replay = r->replay;
    int rc;

    if (r->intent.prompt_ids != 0)
        return bt_cuts_append(buf_p, r->intent.prompt->value);
    rc = bt_cuts_append(buf_p, BT_STR("["));
    if (rc == 0)
        rc = bt_token_replay_print(buf_p, replay->ids, replay->kept_prompt);
    return rc == 0 ? bt_cuts_append(buf_p, BT_STR("]")) : rc;
}

/* What only an answer of several rounds needs: in `ours`, which the cuts borrow from. */
static int join_rounds(bt_request_t *r, const bt_completion_t *c, bt_buf_t **ours, bt_cuts_t *cuts)
{
    struct bt_token_replay *replay = r->replay;
    size_t text_end, ids_end;
    int rc = bt_cuts_append(ours, BT_STR("\""));

    if (rc == 0 && replay->text != NULL)
        rc = bt_cuts_append(ours, (bt_str_t){replay->text->data, replay->text->len});
    if (rc == 0)
        rc = bt_cuts_append(ours, inner(c->text));
    if (rc == 0)
        rc = bt_cuts_append(ours, BT_STR("\""));
    text_end = ids_end = rc == 0 ? (*ours)->len : 0;
    if (rc == 0 && replay->wants_ids && replay->closed == NULL) {
        rc = print_ids(r, ours);
        ids_end = (*ours)->len;
        if (rc == 0)
            rc = print_prompt_ids(r, ours);
    }
    if (rc < 0)
        return rc;
    agree(replay, c, cuts);
    correct_usage(replay, c, cuts);
    bt_cuts_replace(cuts, c->text, (bt_str_t){(*ours)->data, text_end});
    if (ids_end == text_end)
        return 0;
    bt_cuts_replace(cuts, c->token_ids, (bt_str_t){(*ours)->data + text_end, ids_end - text_end});
    bt_cuts_replace(cuts, c->prompt_ids,
                    (bt_str_t){(*ours)->data + ids_end, (*ours)->len - ids_end});
    return 0;
}

static int end_whole(bt_request_t *r)
{
    struct bt_token_replay *replay = r->replay;
    bt_cuts_t cuts = {.count = 0};
    bt_buf_t *ours = NULL;
    bt_completion_t c;
    int rc = bt_completion_read(&c, replay->body.text);

    if (rc == 0 && !(replay->wants_ids && replay->count > 0))
        hide_ids(replay, &c, &cuts);
    if (rc == 0 && replay->count > 0)
        rc = join_rounds(r, &c, &ours, &cuts);
    if (rc == 0)
        correct_cached(r, &c, &cuts);
    if (rc == 0 || replay->count == 0) /* what is no JSON goes on as it came */
        rc = bt_cuts_write(&cuts, replay->body.text, &replay->out);
    bt_buf_unref(ours);
    if (rc < 0)
        return rc;
    r->head_sent = true;
    r->status = replay->status;
    bt_exchange_start(r->x, r->status, replay->headers, replay->header_count,
                      replay->out != NULL ? replay->out->len : 0);
    flush(r);
    return 0;
}

/* What its ids and its text are, where it was given up. */
static bool take_body(bt_request_t *r)
{
    struct bt_token_replay *replay = r->replay;
    bt_completion_t c;

    if (bt_completion_read(&c, replay->body.text) < 0)
        return false;
    note_first(r, &c);
    collect(r, &c);
    if (!bt_completion_is_recomputed(&c) || !replay->on_recomputed)
        return false;
    if (replay->closed != NULL) /* without ids it begins anew, or not at all */
        return true;
    replay->shown = bt_token_replay_made(replay);
    if (bt_cuts_append(&replay->text, inner(c.text)) < 0)
        bt_token_replay_close(r, "memory is short");
    return true;
}

/* ---- the sink ---- */

static void head(bt_task_t *task, const bt_head_t *from, bool is_sse)
{
    bt_request_t *r = task->request;
    struct bt_token_replay *replay = r->replay;

    if (replay->is_begun && is_sse != replay->is_sse) {
        bt_sink_break_off(task, BT_E_UPSTREAM_BODY, "the answer's rest comes in another form");
        return;
    }
    if (is_sse && !replay->is_begun) {
        bt_head_t changed = *from;
        changed.has_length = false; /* what is sent is not as long */
        bt_sink_direct.head(task, &changed, true);
    } else if (!is_sse && r->head_sent) {
        bt_sink_direct.head(task, from, false); /* fails: a keep-alive has promised a stream */
    } else if (!is_sse) {
        keep_head(r, from);
    }
    replay->is_begun = true;
    replay->is_sse = is_sse;
    r->at_boundary = true; /* whole events only */
}

static void data(bt_task_t *task, bt_buf_t *buf, const char *p, size_t n)
{
    if (task->request->replay->is_sse)
        pass_events(task, (bt_str_t){p, n});
    else
        keep_body(task, buf, (bt_str_t){p, n});
}

static void end(bt_task_t *task)
{
    bt_request_t *r = task->request;
    const int rc = r->replay->is_sse ? 0 : end_whole(r);

    if (rc < 0)
        bt_sink_break_off(task, rc, "the answers of several workers make no whole");
    else
        bt_sink_end(r);
}

const bt_sink_ops_t bt_sink_replay = {
    .head = head, .data = data, .end = end, .fail = bt_sink_fail, .blocked = bt_sink_blocked};

/* ---- rounds ---- */

bool bt_sink_replay_is_recomputed(bt_request_t *r)
{
    struct bt_token_replay *replay = r->replay;

    if (replay == NULL)
        return false;
    if (!replay->is_sse && !replay->is_recomputed)
        replay->is_recomputed = take_body(r);
    return replay->is_recomputed;
}

void bt_sink_replay_next_round(bt_request_t *r)
{
    struct bt_token_replay *replay = r->replay;

    bt_sse_fini(&replay->sse);
    bt_sse_init(&replay->sse, EVENT_MAX_BYTES);
    bt_kept_drop(&replay->body);
    replay->is_recomputed = replay->is_finished = false;
    replay->error_status = 0;
    replay->again = 0;
}

static bool has_stem(const struct bt_token_replay *replay)
{
    return replay->id.p != NULL && replay->created.p != NULL && replay->model.p != NULL;
}

static int put_usage(bt_request_t *r)
{
    struct bt_token_replay *replay = r->replay;
    const uint64_t made = bt_token_replay_made(replay);
    const bt_str_t event = bt_arena_printf(
        &r->arena,
        "data: {\"id\":%.*s,\"object\":\"text_completion\",\"created\":%.*s,\"model\":%.*s,"
        "\"choices\":[],\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"total_tokens\":%" PRIu64
        ",\"completion_tokens\":%" PRIu64 "}}\n\n",
        BT_STR_ARG(replay->id), BT_STR_ARG(replay->created), BT_STR_ARG(replay->model),
        replay->prompt_count, replay->prompt_count + made, made);

    return bt_cuts_append(&replay->out, event);
}

bool bt_sink_replay_complete(bt_request_t *r)
{
    struct bt_token_replay *replay = r->replay;
    int rc = 0;

    if (replay == NULL || !replay->is_sse || !replay->is_finished || !replay->on_lost ||
        replay->closed != NULL || replay->prompt_count == 0)
        return false;
    if (replay->wants_usage && !replay->has_usage)
        rc = has_stem(replay) ? put_usage(r) : BT_E_UPSTREAM_BODY;
    if (rc == 0 && !replay->is_done)
        rc = bt_cuts_append(&replay->out, BT_STR("data: [DONE]\n\n"));
    flush(r);
    return rc == 0;
}
