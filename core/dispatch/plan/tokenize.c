/* tokenize.c - a text prompt's token ids are asked for before the plan, because that is what engines' KV events are about.
 *
 *   prompt -> tokenized lately? -> POST /tokenize at a usable worker whose events are followed -> the plan, with ids
 *                                    `> an error, no answer in time: the plan, without
 *
 * Engines that fail are left alone for a while, all together: there is no telling one's overload from everybody's, and a plan without ids is
 * a good one. Nobody is blamed. A prompt that an engine refuses says nothing of it: else one client could have all plans made without.
 */
#include "dispatch/plan/tokenize.h"
#include "api/media.h"
#include "base/log.h"
#include "base/rand.h"
#include "dispatch/answer/headers.h"
#include "dispatch/plan/token_cache.h"
#include "dispatch/state/kept.h"
#include "script/shared/prefix_hash.h"
#include "script/shared/prompt_ids.h"

#include <stdlib.h>

#define FAILURES_MAX 3 /* in a row; then */
#define REST_MS 1000

struct bt_tokenizer {
    bt_token_cache_t *cache;
    uint64_t seed, rests_until_ms;
    unsigned failures; /* in a row */
};

struct bt_tokenize {
    bt_call_t call;
    bt_slices_t body, request;
    bt_kept_t reply;
    bt_buf_t *ids; /* NULL = there are none */
    uint64_t key, count, start_us;
    bool is_running;
    bool is_refused; /* the prompt or its ids: it may be well */
};

static struct bt_tokenizer *tokenizer_of(bt_dispatcher_t *d)
{
    struct bt_tokenizer *t = d->tokenizer;

    if (t != NULL || (t = calloc(1, sizeof(*t))) == NULL)
        return t;
    t->seed = bt_rand_u64();
    t->cache = bt_token_cache_new();
    if (t->cache == NULL) {
        free(t);
        return NULL;
    }
    return d->tokenizer = t;
}

void bt_tokenizer_free(struct bt_tokenizer *t)
{
    if (t != NULL)
        bt_token_cache_free(t->cache);
    free(t);
}

/* ---- what is asked ---- */

static void put(struct bt_tokenize *t, bt_arena_t *arena, bt_str_t key, bt_str_t value)
{
    bt_slices_put(&t->body, arena, t->body.count == 0 ? BT_STR("{\"") : BT_STR(",\""));
    bt_slices_put(&t->body, arena, key);
    bt_slices_put(&t->body, arena, BT_STR("\":"));
    bt_slices_put(&t->body, arena, value);
}

/* What a server's chat template is given, in the words of /tokenize; the same in the chat's own. */
static const bt_str_t of_chat[] = {BT_STR("tools"),
                                   BT_STR("add_generation_prompt"),
                                   BT_STR("continue_final_message"),
                                   BT_STR("chat_template"),
                                   BT_STR("chat_template_kwargs"),
                                   BT_STR("add_special_tokens"),
                                   BT_STR("reasoning_effort"),
                                   BT_STR("documents")};

/* The route's prompt by its name there, or "": ids of its own, several prompts, images among the text, or text that the engine makes
 * something else of first. */
static bt_str_t prompt_key(const bt_request_t *r)
{
    const bt_json_item_t *prompt = r->intent.prompt;
    bt_media_part_t part;
    const char *why;

    if (prompt == NULL || r->intent.prompt_ids != 0 || r->intent.prompt_count != 0 ||
        bt_body_find(&r->intent.body, BT_STR("truncate_prompt_tokens")) != NULL)
        return BT_STR("");
    if (r->route == BT_ROUTE_CHAT && prompt->type == BT_JSON_ARRAY &&
        bt_media_find(&r->intent, &part, 1, &why) == 0)
        return BT_STR("messages");
    if ((r->route == BT_ROUTE_COMPLETIONS || r->route == BT_ROUTE_GENERATE) &&
        prompt->type == BT_JSON_STRING)
        return BT_STR("prompt");
    return BT_STR("");
}

static void put_member(bt_request_t *r, bt_str_t key)
{
    const bt_json_item_t *item = bt_body_find(&r->intent.body, key);

    if (item != NULL && item->type != BT_JSON_NULL)
        put(r->tokenize, &r->send_arena, key, item->value);
}

static void build(bt_request_t *r, bt_str_t prompt)
{
    struct bt_tokenize *t = r->tokenize;

    put_member(r, BT_STR("model"));
    put(t, &r->send_arena, prompt, r->intent.prompt->value);
    if (r->route == BT_ROUTE_CHAT)
        for (unsigned i = 0; i < sizeof(of_chat) / sizeof(of_chat[0]); i++)
            put_member(r, of_chat[i]);
    else
        put_member(r, BT_STR("add_special_tokens"));
    bt_slices_put(&t->body, &r->send_arena, BT_STR("}"));
    t->key = bt_hash64(bt_str(r->pool->spec.name), r->d->tokenizer->seed);
    for (unsigned i = 0; i < t->body.count; i++)
        t->key = bt_hash64((bt_str_t){t->body.items[i].p, t->body.items[i].n}, t->key);
}

/* ---- the end ---- */

static void take(struct bt_tokenize *t, bt_buf_t *ids)
{
    t->ids = bt_buf_ref(ids);
    t->count = bt_json_size((bt_str_t){ids->data, ids->len});
}

static void rest(struct bt_tokenizer *tokenizer)
{
    if (++tokenizer->failures < FAILURES_MAX)
        return;
    tokenizer->failures = 0;
    tokenizer->rests_until_ms = bt_clock_ms() + REST_MS;
}

static void note_failure(bt_request_t *r, const char *why)
{
    bt_stats_inc(&r->d->stats, tokenize_failed);
    if (!r->tokenize->is_refused)
        rest(r->d->tokenizer);
    BT_REQUEST_LOG(debug, "dispatch", r, NULL, "planned without token ids: %s", why);
}

static void end(bt_request_t *r, const char *failure)
{
    struct bt_tokenize *t = r->tokenize;

    t->is_running = false;
    bt_kept_drop(&t->reply);
    bt_histogram_note(&r->d->stats.tokenize, bt_clock_us() - t->start_us, 1);
    if (failure != NULL)
        note_failure(r, failure);
    else
        r->d->tokenizer->failures = 0;
    r->ops->go_on(r, BT_PROGRESS_NEXT);
}

void bt_tokenize_cancel(bt_request_t *r)
{
    struct bt_tokenize *t = r->tokenize;

    if (t == NULL || !t->is_running)
        return;
    t->is_running = false;
    bt_call_cancel(&t->call);
    bt_kept_drop(&t->reply);
}

void bt_tokenize_drop(bt_request_t *r)
{
    if (r->tokenize == NULL)
        return;
    bt_buf_unref(r->tokenize->ids);
    r->tokenize->ids = NULL;
}

bt_str_t bt_tokenize_ids(const bt_request_t *r)
{
    const struct bt_tokenize *t = r->tokenize;

    return t != NULL && t->ids != NULL ? (bt_str_t){t->ids->data, t->ids->len} : BT_STR("");
}

uint64_t bt_tokenize_count(const bt_request_t *r)
{
    return r->tokenize != NULL ? r->tokenize->count : 0;
}

enum bt_token_source bt_tokenize_source(const bt_request_t *r)
{
    return r->intent.prompt_ids != 0   ? BT_TOKENS_CLIENT
           : bt_tokenize_count(r) != 0 ? BT_TOKENS_ENGINE
                                       : BT_TOKENS_ESTIMATE;
}

/* ---- the call ---- */

static void on_head(bt_call_t *call)
{
    (void) call;
}

static void on_body(bt_call_t *call, bt_buf_t *buf, const char *bytes, size_t n)
{
    bt_request_t *r = call->user;
    struct bt_tokenize *t = r->tokenize;

    if (t->reply.text.n + n <= BT_REPLY_MAX_BYTES &&
        bt_kept_add(&t->reply, r->d->shared, buf, (bt_str_t){bytes, n}) == 0)
        return;
    bt_call_cancel(call);
    t->is_refused = true; /* by us */
    end(r, "the answer is too large");
}

/* Of {"count": N, "max_model_len": M, "tokens": [ids]}. */
static const char *read_ids(bt_request_t *r)
{
    struct bt_tokenize *t = r->tokenize;
    bt_json_item_t tokens;
    bt_buf_t *ids;

    if (bt_json_get(t->reply.text, BT_STR("tokens"), &tokens) < 0 || tokens.type != BT_JSON_ARRAY ||
        !bt_prompt_is_ids(tokens.value))
        return "the answer has no list of tokens";
    ids = bt_buf_copy(tokens.value.p, tokens.value.n);
    if (ids == NULL)
        return bt_err_text(BT_E_NOMEM);
    take(t, ids);
    bt_token_cache_put(r->d->tokenizer->cache, t->key, ids);
    bt_buf_unref(ids);
    bt_stats_inc(&r->d->stats, tokenized);
    return NULL;
}

static void on_end(bt_call_t *call)
{
    bt_request_t *r = call->user;

    r->tokenize->is_refused = call->status == 400 || call->status == 413 || call->status == 422;
    end(r, call->status == 200 ? read_ids(r) : "the answer is an error");
}

static void on_fail(bt_call_t *call, int rc)
{
    end(call->user, bt_err_text(rc));
}

static const bt_call_ops_t call_ops = {
    .on_head = on_head, .on_body = on_body, .on_end = on_end, .on_fail = on_fail};

static bool has_tokenize(const bt_worker_t *w)
{
    return w->engine != BT_ENGINE_TRTLLM && w->engine != BT_ENGINE_MINDIE;
}

/* Any of them, not the same one each time; NULL: ids would be of no use, or nobody makes them. */
static bt_worker_t *choose(const bt_request_t *r)
{
    const bt_worker_set_t *all = &r->pool->all;
    const uint64_t now_ms = bt_clock_ms();
    const unsigned first = all->count > 0 ? (unsigned) bt_rand_below(all->count) : 0;

    for (unsigned i = 0; i < all->count; i++) {
        bt_worker_t *w = all->items[(first + i) % all->count];
        if (atomic_load_explicit(&w->kv_parts, memory_order_relaxed) != 0 && has_tokenize(w) &&
            bt_worker_usable(w, now_ms) && bt_worker_serves_model(w, r->intent.model))
            return w;
    }
    return NULL;
}

static int call(bt_request_t *r, bt_worker_t *w)
{
    struct bt_tokenize *t = r->tokenize;
    const uint64_t ms = r->pool->spec.deadlines.tokenize_ms;
    const bt_call_timeouts_t timeouts = {.connect_ms = ms, .total_ms = ms};
    bt_upstream_t *up = bt_dispatcher_upstream(r->d, w);

    if (up == NULL)
        return BT_E_RESOLVE;
    bt_slices_put(&t->request, &r->send_arena,
                  bt_headers_own(r, w, BT_STR("/tokenize"), r->id, t->body.bytes));
    for (unsigned i = 0; i < t->body.count; i++)
        bt_slices_put(&t->request, &r->send_arena,
                      (bt_str_t){t->body.items[i].p, t->body.items[i].n});
    return bt_call_start(&t->call, up, &call_ops, r, t->request.items, t->request.count, &timeouts);
}

enum bt_progress bt_tokenize_enter(bt_request_t *r)
{
    bt_worker_t *w;
    bt_str_t prompt;
    bt_buf_t *known;

    if (r->pool->spec.deadlines.tokenize_ms == 0)
        return BT_PROGRESS_NEXT;
    prompt = prompt_key(r);
    if (prompt.n == 0 || (w = choose(r)) == NULL || tokenizer_of(r->d) == NULL)
        return BT_PROGRESS_NEXT;
    r->tokenize = bt_arena_zalloc(&r->arena, sizeof(*r->tokenize));
    r->tokenize->start_us = bt_clock_us();
    build(r, prompt);
    known = bt_token_cache_get(r->d->tokenizer->cache, r->tokenize->key);
    if (known != NULL) {
        take(r->tokenize, known);
        bt_stats_inc(&r->d->stats, tokenized_cached);
        return BT_PROGRESS_NEXT;
    }
    if (bt_clock_ms() < r->d->tokenizer->rests_until_ms)
        return BT_PROGRESS_NEXT;
    const int rc = call(r, w);
    if (rc < 0) {
        note_failure(r, bt_err_text(rc));
        return BT_PROGRESS_NEXT;
    }
    r->tokenize->is_running = true;
    return BT_PROGRESS_WAITS;
}
