/* first_token.c - see first_token.h.
 *
 * Exact, because decode does not draw that token: it is given it, and its stream begins with the same text. That text is taken out
 * again, and all events get the first one's id, created and model, which are prefill's: decode's are not known yet. What decode says is
 * compared: an answer that does not begin with what the client has ends in an error, and that prefill's first tokens wait for decode
 * from then on. After a retry it proves nothing: another prefill may have drawn another token.
 */
#include "dispatch/attempt/first_token.h"

#include "api/completion.h"
#include "api/cuts.h"
#include "api/first_token.h"
#include "base/err.h"
#include "base/log.h"
#include "dispatch/answer/sink.h"
#include "dispatch/attempt/attempt.h"
#include "dispatch/attempt/leg.h"
#include "dispatch/plan/policy_call.h"

#define EVENT_MAX_BYTES ((size_t) 4 << 20)
#define EVENT_SURE_BYTES ((size_t) 64 << 10) /* a cut event may be so long whatever the memory */

/* ---- whether ---- */

void bt_first_token_open(bt_request_t *r, const bt_dialect_t *dialect)
{
    const enum bt_relay_first_token what = r->pool->spec.relay_first_token;

    if (what == BT_RELAY_FIRST_TOKEN_OFF || dialect == NULL || !dialect->has_first_token ||
        r->warmup != NULL || r->replay != NULL)
        return;
    if (r->route != BT_ROUTE_COMPLETIONS &&
        (r->route != BT_ROUTE_CHAT || what != BT_RELAY_FIRST_TOKEN_ALL))
        return;
    if (bt_first_token_refusal(&r->intent) != NULL)
        return;
    r->first_token = bt_arena_zalloc(&r->arena, sizeof(*r->first_token));
    bt_sse_init(&r->first_token->sse, EVENT_MAX_BYTES);
}

void bt_first_token_fini(bt_request_t *r)
{
    if (r->first_token == NULL)
        return;
    bt_sse_fini(&r->first_token->sse);
    bt_buf_unref(r->first_token->out);
}

static bool is_empty(bt_str_t value)
{
    return !bt_completion_has(value) || bt_str_eq(value, BT_STR("\"\""));
}

/* text: what prefill's reply says of its token; n 0: nothing that could go out alone. */
static bt_str_t read_reply(const bt_leg_t *p, bt_completion_t *c, char text[BT_FIRST_TOKEN_BYTES])
{
    const bool is_chat = p->attempt->task->request->route == BT_ROUTE_CHAT;
    bt_str_t said;
    long n;

    if ((p->reply_members != NULL ? bt_completion_take(c, p->reply_members)
                                  : bt_completion_read(c, p->reply.text)) < 0)
        return BT_STR("");
    n = bt_json_unescape(c->text, text, BT_FIRST_TOKEN_BYTES);
    said = (bt_str_t){text, n > 0 ? (size_t) n : 0};
    if (!bt_first_token_is_whole(said) || c->id.p == NULL || c->created.p == NULL ||
        c->model.p == NULL || !is_empty(c->reasoning) ||
        (is_chat && bt_json_type_of(c->role) != BT_JSON_STRING))
        return BT_STR("");
    return said;
}

/* ---- the first event ---- */

static void flush(bt_request_t *r)
{
    bt_buf_t *buf = r->first_token->out;

    r->first_token->out = NULL;
    if (buf != NULL && r->x != NULL)
        bt_sink_send(r, buf, buf->data, buf->len);
    bt_buf_unref(buf);
}

static bt_str_t print_event(bt_request_t *r, const char *object, bt_str_t choice)
{
    const struct bt_first_token *first = r->first_token;

    return bt_arena_printf(&r->arena,
                           "data: {\"id\":%.*s,\"object\":\"%s\",\"created\":%.*s,\"model\":%.*s,"
                           "\"choices\":[{\"index\":0,%.*s}],\"usage\":null}\n\n",
                           BT_STR_ARG(first->id), object, BT_STR_ARG(first->created),
                           BT_STR_ARG(first->model), BT_STR_ARG(choice));
}

static int put_chat(bt_request_t *r, const bt_completion_t *c)
{
    static const char end[] = ",\"logprobs\":null,\"finish_reason\":null";
    bt_arena_t *arena = &r->arena;
    const bt_str_t role = bt_arena_printf(arena, "\"delta\":{\"role\":%.*s,\"content\":\"\"}%s",
                                          BT_STR_ARG(c->role), end);
    const bt_str_t text =
        bt_arena_printf(arena, "\"delta\":{\"content\":%.*s}%s", BT_STR_ARG(c->text), end);
    int rc = bt_cuts_append(&r->first_token->out, print_event(r, "chat.completion.chunk", role));

    return rc < 0 ? rc
                  : bt_cuts_append(&r->first_token->out,
                                   print_event(r, "chat.completion.chunk", text));
}

static int put_completion(bt_request_t *r, const bt_completion_t *c)
{
    const bt_str_t choice = bt_arena_printf(&r->arena,
                                            "\"text\":%.*s,\"logprobs\":null,\"finish_reason\":"
                                            "null,\"stop_reason\":null",
                                            BT_STR_ARG(c->text));

    return bt_cuts_append(&r->first_token->out, print_event(r, "text_completion", choice));
}

static void send_first(bt_attempt_t *a, const bt_completion_t *c, bt_str_t text)
{
    bt_request_t *r = a->task->request;
    struct bt_first_token *first = r->first_token;

    first->id = bt_arena_str(&r->arena, c->id);
    first->created = bt_arena_str(&r->arena, c->created);
    first->model = bt_arena_str(&r->arena, c->model);
    first->text = bt_arena_str(&r->arena, text);
    if ((r->route == BT_ROUTE_CHAT ? put_chat(r, c) : put_completion(r, c)) < 0) {
        bt_buf_unref(first->out); /* memory is short: decode says it */
        first->out = NULL;
        return;
    }
    first->attempt = a;
    r->sink = &bt_sink_first_token;
    bt_sink_begin_stream(r);
    bt_stats_inc(&r->d->stats, first_tokens);
    flush(r);
}

/* ---- relaying ---- */

static bool may_relay(bt_attempt_t *a)
{
    const bt_request_t *r = a->task->request;

    return r->first_token != NULL && !r->finished && !a->ended && !a->recompute &&
           a->dialect->has_first_token && bt_leg_running(bt_attempt_answer(a));
}

/* A prefill that has drawn another token spoils the answer; decode need not make it. */
static void compare(bt_attempt_t *a, bt_str_t text)
{
    bt_failure_t f = bt_leg_failure(bt_attempt_prefill(a), BT_E_UPSTREAM_BODY, false);

    if (bt_str_eq(text, a->task->request->first_token->text))
        return;
    f.reason = "the answer was begun with another first token than that of the next attempt";
    bt_attempt_fail(a, &f, NULL, 0);
}

void bt_first_token_relay(bt_attempt_t *a)
{
    bt_leg_t *p = bt_attempt_prefill(a);
    char said[BT_FIRST_TOKEN_BYTES];
    bt_completion_t c;
    bt_str_t text;

    if (!may_relay(a))
        return;
    text = read_reply(p, &c, said);
    if (a->task->request->first_token->attempt != NULL)
        compare(a, text);
    else if (text.n != 0 &&
             !atomic_load_explicit(&p->worker->first_token_differs, memory_order_relaxed))
        send_first(a, &c, text);
}

/* ---- decode's answer ---- */

static bt_str_t inner(bt_str_t string)
{
    return bt_json_type_of(string) == BT_JSON_STRING ? (bt_str_t){string.p + 1, string.n - 2}
                                                     : BT_STR("");
}

static int pass_object(bt_request_t *r, bt_str_t event, bt_str_t payload)
{
    struct bt_first_token *first = r->first_token;
    bt_cuts_t cuts = {.count = 0};
    bt_completion_t c;
    long again = 0;

    if (bt_completion_read(&c, payload) < 0)
        return bt_cuts_append(&first->out, event);
    if (first->left.n != 0 && inner(c.text).n != 0)
        again = bt_first_token_cut(c.text, &first->left);
    if (again < 0 || (first->left.n != 0 && bt_completion_has(c.finish)))
        return BT_E_UPSTREAM_BODY;
    /* The client has had it: the role, or all of its text. */
    if (!bt_completion_has(c.finish) && (size_t) again == inner(c.text).n &&
        (again != 0 || bt_completion_has(c.role)))
        return 0;
    bt_cuts_replace(&cuts, c.id, first->id);
    bt_cuts_replace(&cuts, c.created, first->created);
    bt_cuts_replace(&cuts, c.model, first->model);
    if (again != 0)
        bt_cuts_replace(&cuts, (bt_str_t){c.text.p + 1, (size_t) again}, BT_STR(""));
    return bt_cuts_write(&cuts, event, &first->out);
}

static int pass_event(bt_request_t *r, bt_str_t event)
{
    char joined[2];
    const bt_str_t payload = bt_str_trim(bt_sse_data(event, joined, sizeof(joined)));

    if (payload.n == 0 || payload.p == joined || payload.p[0] != '{')
        return bt_cuts_append(&r->first_token->out, event);
    return pass_object(r, event, payload);
}

/* Its tokenizer, or a parser of the server's, makes of a token something else than its text. */
static void note_difference(bt_task_t *task)
{
    bt_request_t *r = task->request;
    bt_worker_t *w = task->attempt->legs[0].worker;

    bt_stats_inc(&r->d->stats, first_tokens_differ);
    if (r->first_token->attempt != task->attempt ||
        atomic_exchange_explicit(&w->first_token_differs, true, memory_order_relaxed))
        return;
    BT_REQUEST_LOG(
        error, "dispatch", r, w->name,
        "decode's answer does not begin with the first token of prefill's reply: worker %s "
        "gets its first tokens relayed no more. Set relay_first_token to completions, or "
        "to off",
        w->name);
}

static void head(bt_task_t *task, const bt_head_t *from, bool is_sse)
{
    bt_request_t *r = task->request;

    r->first_token->left = r->first_token->text;
    bt_policy_call_end(r);
    bt_sink_direct.head(task, from, is_sse);
}

static void data(bt_task_t *task, bt_buf_t *buf, const char *p, size_t n)
{
    bt_request_t *r = task->request;
    struct bt_first_token *first = r->first_token;
    bt_str_t event;
    size_t at = 0;
    int rc = BT_E_NOMEM;

    (void) buf;
    if (first->sse.carry_len <= EVENT_SURE_BYTES || bt_dispatch_shared_fits(r->d->shared, n))
        while ((rc = bt_sse_next(&first->sse, (bt_str_t){p, n}, &at, &event)) == 1 &&
               (rc = pass_event(r, event)) == 0)
            ;
    flush(r);
    if (rc == BT_E_UPSTREAM_BODY)
        note_difference(task);
    if (rc < 0)
        bt_sink_break_off(task, rc,
                          rc == BT_E_UPSTREAM_BODY
                              ? "the answer does not begin with the first token that was sent"
                              : "an event of the answer is larger than 4 MiB");
}

static void end(bt_task_t *task)
{
    bt_sink_end(task->request);
}

const bt_sink_ops_t bt_sink_first_token = {
    .head = head, .data = data, .end = end, .fail = bt_sink_fail, .blocked = bt_sink_blocked};
