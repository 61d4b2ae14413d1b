/* prompt_merge.c - see prompt_merge.h.
 *
 * Nothing has gone to the client while the answer is held, so a prefill that fails, or does not tell what was asked, is an attempt
 * that fails: another may serve. What cannot be put together is an error, never an answer that lacks what was asked for.
 */
#include "dispatch/attempt/prompt_merge.h"

#include "dispatch/answer/usage.h"
#include "dispatch/attempt/leg.h"

#define EVENT_SURE_BYTES ((size_t) 64 << 10) /* a cut event may be so long whatever the memory */

struct bt_prompt_stream {
    bt_kept_t
        reply; /* prefill's, which part has spans of: taken from its leg, which gives it up once decode has begun */
    bt_prompt_logprobs_part_t part;
    bt_sse_t sse;
};

static bt_request_t *request_of(const bt_leg_t *leg)
{
    return leg->attempt->task->request;
}

static const bt_leg_t *prefill_of(const bt_leg_t *leg)
{
    return &leg->attempt->legs[0];
}

bool bt_prompt_merge_wanted(const bt_leg_t *leg)
{
    return request_of(leg)->intent.prompt_logprobs != BT_PROMPT_LOGPROBS_NONE &&
           leg->attempt->kind != BT_PLAN_SINGLE;
}

bool bt_prompt_merge_waits(const bt_leg_t *leg)
{
    return prefill_of(leg)->state == BT_LEG_RUNNING;
}

static int read_part(bt_leg_t *leg, bt_prompt_logprobs_part_t *part, const char **why_p)
{
    const bt_leg_t *p = prefill_of(leg);
    bt_request_t *r = request_of(leg);

    if (p->state == BT_LEG_DONE && bt_prompt_logprobs_read(part, r->intent.prompt_logprobs,
                                                           r->route, p->reply.text, &r->arena) == 0)
        return 0;
    *why_p = "prefill's answer does not tell the logprobs of the prompt that were asked for";
    return BT_E_UPSTREAM_BODY;
}

static int explain(int rc, const char **why_p)
{
    if (rc == BT_E_NOMEM) {
        *why_p = "memory is short, try again";
        return rc;
    }
    *why_p = "decode's answer has no place for the logprobs of the prompt that were asked for";
    return BT_E_UPSTREAM_BODY;
}

static bool fits(const bt_leg_t *leg, size_t bytes)
{
    return bt_dispatch_shared_fits(request_of(leg)->d->shared, bytes);
}

/* The answer is read anyway: its usage tells prefill's hits, where decode's engine does not know them. */
static int correct_cached(const bt_leg_t *leg, bt_buf_t **buf_p)
{
    const bt_str_t text = {(*buf_p)->data, (*buf_p)->len};
    bt_cuts_t cuts = {.count = 0};
    bt_buf_t *out = NULL;
    bt_json_item_t item;
    uint64_t cached;
    int rc;

    if (!bt_usage_prefill_cached(leg->attempt, &cached) ||
        bt_json_path(text, &item, "usage", "prompt_tokens_details", "cached_tokens", NULL) < 0 ||
        item.type != BT_JSON_NUMBER)
        return 0;
    if (!fits(leg, text.n))
        return BT_E_NOMEM;
    bt_cuts_number(&cuts, item.value, cached);
    rc = bt_cuts_write(&cuts, text, &out);
    if (rc < 0) {
        bt_buf_unref(out);
        return rc;
    }
    bt_buf_unref(*buf_p);
    *buf_p = out;
    return 0;
}

int bt_prompt_merge_whole(bt_leg_t *leg, const char **why_p)
{
    const size_t bytes = leg->reply.text.n + prefill_of(leg)->reply.text.n;
    bt_prompt_logprobs_part_t part;
    bt_buf_t *merged;
    bt_head_t *head;
    int rc;

    if (leg->reply_overflow) {
        *why_p = "the answer is larger than 64 MiB";
        return BT_E_UPSTREAM_BODY;
    }
    rc = read_part(leg, &part, why_p);
    if (rc < 0)
        return rc;
    merged = fits(leg, bytes) ? bt_buf_new(bytes) : NULL;
    rc = merged != NULL ? bt_prompt_logprobs_put(&part, leg->reply.text, &merged) : BT_E_NOMEM;
    if (rc == 0)
        rc = correct_cached(leg, &merged);
    if (rc < 0) {
        bt_buf_unref(merged);
        return explain(rc, why_p);
    }
    bt_kept_drop(&leg->reply);
    leg->reply = (bt_kept_t){{merged->data, merged->len}, merged, true};
    head = bt_leg_own_head(leg);
    head->has_length = true;
    head->chunked = false;
    head->length = merged->len;
    return 0;
}

int bt_prompt_merge_begin(bt_leg_t *leg, const char **why_p)
{
    bt_leg_t *p = &leg->attempt->legs[0];
    int rc;

    leg->prompt = bt_arena_zalloc(&request_of(leg)->arena, sizeof(*leg->prompt));
    bt_sse_init(&leg->prompt->sse, BT_PROMPT_REPLY_MAX_BYTES);
    rc = read_part(leg, &leg->prompt->part, why_p);
    if (rc < 0)
        return rc;
    leg->prompt->reply = p->reply;
    p->reply = (bt_kept_t){.text = BT_STR("")};
    return 0;
}

static int put_event(struct bt_prompt_stream *s, bt_str_t event, bt_buf_t **out_p)
{
    char joined[2];
    bt_str_t payload = bt_str_trim(bt_sse_data(event, joined, sizeof(joined)));

    if (payload.p >= joined &&
        payload.p <= joined + sizeof(joined)) /* several data lines: no engine's */
        payload = BT_STR("");
    return bt_prompt_logprobs_put_event(&s->part, event, payload, out_p);
}

/* An event may get all of prefill's lists, and a piece has many events. */
static bool has_room(const bt_leg_t *leg, bt_str_t event, const bt_buf_t *out)
{
    const size_t bytes = (out != NULL ? out->len : 0) + event.n + leg->prompt->reply.text.n;

    return bytes <= EVENT_SURE_BYTES || fits(leg, bytes);
}

int bt_prompt_merge_feed(bt_leg_t *leg, bt_str_t piece, bt_buf_t **out_p, const char **why_p)
{
    struct bt_prompt_stream *s = leg->prompt;
    bt_str_t event;
    size_t at = 0;
    int rc = BT_E_NOMEM;

    if (s->sse.carry_len <= EVENT_SURE_BYTES || fits(leg, piece.n))
        while ((rc = bt_sse_next(&s->sse, piece, &at, &event)) == 1 &&
               (rc = has_room(leg, event, *out_p) ? put_event(s, event, out_p) : BT_E_NOMEM) == 0)
            ;
    return rc < 0 ? explain(rc, why_p) : 0;
}

bt_str_t bt_prompt_merge_rest(const bt_leg_t *leg)
{
    const bt_sse_t *sse = &leg->prompt->sse;

    return (bt_str_t){sse->carry, sse->carry_len};
}

void bt_prompt_merge_drop(bt_leg_t *leg)
{
    if (leg->prompt == NULL)
        return;
    bt_sse_fini(&leg->prompt->sse);
    bt_kept_drop(&leg->prompt->reply);
    leg->prompt = NULL;
}
