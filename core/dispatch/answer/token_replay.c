/* token_replay.c - see token_replay.h.
 *
 * Exact is what the ids say: the new prompt is the old one and all ids whose text the client has, and nothing is left out or said
 * twice. Ids whose text is not out yet (an engine holds back half a character) are made once more. Greedy answers then equal those
 * of an undisturbed run; sampled ones are one of those that could have come.
 * What is not seen: an event of several ids (speculative decoding) whose last one is half a character; that character is then lost.
 */
#include "dispatch/answer/token_replay.h"

#include "api/continuation.h"
#include "base/err.h"
#include "base/mem.h"
#include "dispatch/answer/sink.h"

#include <stdio.h>

#define ID_CHARS 11 /* ten digits and a comma */

/* ---- whether ---- */

/* vLLM tells token ids; its relatives' other engines do not. */
static bool tells_ids(const bt_worker_t *w)
{
    return w->engine == BT_ENGINE_VLLM || w->engine == BT_ENGINE_VLLM_ASCEND;
}

static void read_wishes(const bt_request_t *r, struct bt_token_replay *replay)
{
    const bt_json_item_t *options = bt_body_find(&r->intent.body, BT_STR("stream_options"));
    const bt_json_item_t *ids = bt_body_find(&r->intent.body, BT_STR("return_token_ids"));
    bt_json_item_t usage;

    replay->wants_ids = ids != NULL && ids->type == BT_JSON_TRUE;
    replay->wants_usage = options != NULL && options->type == BT_JSON_OBJECT &&
                          bt_json_get(options->value, BT_STR("include_usage"), &usage) == 0 &&
                          usage.type == BT_JSON_TRUE;
    replay->prompt_count = r->intent.prompt_ids;
    replay->limit = bt_continuation_limit(&r->intent);
}

void bt_token_replay_open(bt_request_t *r)
{
    const bt_pool_spec_t *spec = &r->pool->spec;
    const bt_pair_t *pair = &r->choice->first;
    const bt_worker_t *w = pair->decode != NULL ? pair->decode : pair->prefill;
    const bool on_recomputed =
        spec->replay_recomputed && !bt_pair_is_single(pair) && w->engine == BT_ENGINE_VLLM_ASCEND;
    const bool on_lost = spec->replay_lost_decode && tells_ids(w);

    if ((!on_recomputed && !on_lost) || r->d->shared->config.disable_retries ||
        !r->intent.has_body || bt_continuation_refusal(&r->intent) != NULL)
        return;
    r->replay = bt_arena_zalloc(&r->arena, sizeof(*r->replay));
    r->replay->on_recomputed = on_recomputed;
    r->replay->on_lost = on_lost;
    read_wishes(r, r->replay);
    r->sink = &bt_sink_replay;
    bt_sink_replay_next_round(r);
}

bool bt_token_replay_is_open(const bt_request_t *r)
{
    const struct bt_token_replay *replay = r->replay;

    /* one that is not streamed may begin anew without ids */
    return replay != NULL && !r->finished && (replay->closed == NULL || !replay->is_sse);
}

static void drop_ids(struct bt_token_replay *replay)
{
    if (replay->ids != NULL)
        bt_mem_resize(BT_MEM_TEXTS, replay->ids, replay->id_cap * sizeof(*replay->ids), 0);
    replay->ids = NULL;
    replay->id_cap = 0;
}

/* How many there were is still wanted: for usage. */
void bt_token_replay_close(bt_request_t *r, const char *why)
{
    if (r->replay->closed != NULL)
        return;
    r->replay->closed = why;
    drop_ids(r->replay);
}

void bt_token_replay_fini(bt_request_t *r)
{
    struct bt_token_replay *replay = r->replay;

    if (replay == NULL)
        return;
    drop_ids(replay);
    for (struct bt_replay_prompt *p = replay->prompt; p != NULL; p = p->before)
        bt_buf_unref(p->buf);
    bt_sse_fini(&replay->sse);
    bt_kept_drop(&replay->body);
    bt_buf_unref(replay->out);
    bt_buf_unref(replay->text);
}

/* ---- ids ---- */

static int make_room(bt_request_t *r)
{
    struct bt_token_replay *replay = r->replay;
    const size_t cap = replay->id_cap != 0 ? 2 * replay->id_cap : 64;
    const size_t size = sizeof(*replay->ids);
    uint32_t *wider;

    if (replay->id_count < replay->id_cap)
        return 0;
    if (cap > BT_CONTINUATION_IDS_MAX || !bt_dispatch_shared_fits(r->d->shared, cap * size))
        return BT_E_LIMIT;
    wider = bt_mem_resize(BT_MEM_TEXTS, replay->ids, replay->id_cap * size, cap * size);
    if (wider == NULL)
        return BT_E_NOMEM;
    replay->ids = wider;
    replay->id_cap = cap;
    return 0;
}

static int add_id(bt_request_t *r, bt_str_t text)
{
    int64_t id;
    int rc;

    if (bt_json_i64(text, &id) < 0 || id < 0 || id > UINT32_MAX)
        return BT_E_INVAL;
    rc = make_room(r);
    if (rc == 0)
        r->replay->ids[r->replay->id_count++] = (uint32_t) id;
    return rc;
}

void bt_token_replay_add(bt_request_t *r, bt_str_t ids, bool is_prompt)
{
    struct bt_token_replay *replay = r->replay;
    bt_json_walk_t walk;
    bt_str_t element;
    size_t inner;
    int rc = 0;

    if (replay->closed != NULL || bt_json_type_of(ids) != BT_JSON_ARRAY)
        return;
    bt_json_walk(&walk, ids);
    while (rc == 0 && bt_json_walk_next(&walk, &element, &inner))
        rc = add_id(r, element);
    if (rc < 0)
        bt_token_replay_close(r, rc == BT_E_INVAL ? "the engine's token ids are no numbers"
                                                  : "it has too many token ids to be kept");
    else if (is_prompt)
        replay->prompt_count = replay->kept_prompt = replay->id_count;
}

int bt_token_replay_print(bt_buf_t **buf_p, const uint32_t *ids, size_t count)
{
    bt_buf_t *buf;
    int rc = 0;

    if ((*buf_p)->cap - (*buf_p)->len < count * ID_CHARS + 2)
        rc = bt_buf_grow(buf_p, (*buf_p)->len + count * ID_CHARS + 2);
    buf = *buf_p;
    for (size_t i = 0; i < count && rc == 0; i++)
        buf->len +=
            (size_t) snprintf(buf->data + buf->len, ID_CHARS + 1, i > 0 ? ",%u" : "%u", ids[i]);
    return rc;
}

/* ---- its legs ---- */

static int set_number(bt_edits_t *edits, const char *name, uint64_t value)
{
    char text[24];
    const int n = snprintf(text, sizeof(text), "%llu", (unsigned long long) value);

    return bt_edits_set(edits, BT_STR(""), bt_str(name), (bt_str_t){text, (size_t) n}, false);
}

int bt_token_replay_edit(const bt_leg_t *leg, bt_edits_t *edits)
{
    const bt_request_t *r = leg->attempt->task->request;
    const struct bt_token_replay *replay = r->replay;
    int rc = 0;

    if (replay == NULL)
        return 0;
    if (leg->role != BT_LEG_PREFILL) /* prefill's would only make its reply longer */
        rc = bt_edits_set(edits, BT_STR(""), BT_STR("return_token_ids"), BT_STR("true"), true);
    if (rc < 0 || replay->prompt == NULL)
        return rc;
    rc = bt_edits_set(edits, BT_STR(""), BT_STR("prompt"),
                      (bt_str_t){replay->prompt->buf->data, replay->prompt->buf->len}, true);
    if (rc == 0 && replay->max_tokens != 0)
        rc = set_number(edits, "max_tokens", replay->max_tokens);
    if (rc == 0 && bt_body_find(&r->intent.body, BT_STR("min_tokens")) != NULL)
        rc = set_number(edits, "min_tokens", replay->min_tokens);
    return rc;
}
