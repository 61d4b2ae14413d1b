/* sink_merge.c - the answers of a split request, put together into the one answer the client asked for.
 *
 * Only what must agree is patched, by span: `index` of each choice, `id`, `created` and `system_fingerprint` (the first
 * child's), `usage` (prompts counted once, completions summed, their details too). Streams: events pass as they come, one usage event and one
 * [DONE] at the end. Not streamed: the first child's body with everybody's choices. SGLang's /generate answers with a list.
 * One child's failure is the request's failure; so is want of memory: what is kept here counts against --max-buffered-bytes.
 */
#include "dispatch/answer/headers.h"
#include "dispatch/answer/sink.h"
#include "dispatch/answer/usage.h"

#define EVENT_MAX_BYTES ((size_t) 4 << 20)
#define EVENT_SURE_BYTES ((size_t) 64 << 10) /* a cut event may be so long whatever the memory */
#define WHOLE_MAX_BYTES ((size_t) 64 << 20)  /* of all children's answers that are not streamed */
#define AGREED_MAX_BYTES ((size_t) 4 << 10)  /* of an id */
#define TOKENS_MAX (INT64_C(1) << 40)        /* of one answer: thousands of them can be added */
#define USAGE_MAX_BYTES ((size_t) 64 << 10)  /* of an event that has nothing but usage */

struct child {
    bt_sse_t sse;
    bt_kept_t body; /* not streamed */
    int64_t prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens;
    bool has_usage, has_details; /* of its prompt's tokens */
};

struct merge {
    struct child *children; /* by task index */
    bt_str_t id, created,
        fingerprint;      /* raw JSON of the first event that had them; request's arena */
    bt_str_t usage_event; /* some child's usage event, the frame of ours */
    bool is_sse, any_head;
    size_t whole_bytes; /* kept for the end */
    bt_header_t headers[BT_HTTP_HEADERS_MAX + 28];
    unsigned header_count;
};

void bt_sink_merge_init(bt_request_t *r)
{
    struct merge *m = bt_arena_zalloc(&r->arena, sizeof(*m));

    m->children = bt_arena_zalloc(&r->arena, r->task_count * sizeof(*m->children));
    for (unsigned i = 0; i < r->task_count; i++)
        bt_sse_init(&m->children[i].sse, EVENT_MAX_BYTES);
    r->merge = m;
}

void bt_sink_merge_fini(bt_request_t *r)
{
    struct merge *m = r->merge;

    for (unsigned i = 0; i < r->task_count; i++) {
        bt_sse_fini(&m->children[i].sse);
        bt_kept_drop(&m->children[i].body);
    }
}

static void head(bt_task_t *task, const bt_head_t *from, bool is_sse)
{
    bt_request_t *r = task->request;
    struct merge *m = r->merge;

    if (m->any_head) {
        if (is_sse != m->is_sse)
            bt_sink_break_off(
                task, BT_E_UPSTREAM_BODY,
                "some of the answers to be merged are event streams and some are not");
        return;
    }
    m->any_head = true;
    m->is_sse = is_sse;
    m->header_count = bt_headers_answer(r, from, m->headers, BT_HTTP_HEADERS_MAX + 28);
    if (!is_sse) { /* the whole answer goes out at the end: keep the headers */
        bt_headers_keep(&r->arena, m->headers, m->headers, m->header_count);
        return;
    }
    r->head_sent = r->stream_started = r->at_boundary = true;
    r->status = from->status;
    bt_exchange_start(r->x, from->status, m->headers, m->header_count, BT_LENGTH_CHUNKED);
}

static const char *copy_into(bt_buf_t *buf, const struct bt_slice *slice)
{
    char *at = buf->data + buf->len;

    memcpy(at, slice->p, slice->n);
    buf->len += slice->n;
    return at;
}

static int send_event(bt_request_t *r, const bt_slices_t *s)
{
    bt_buf_t *buf = bt_buf_new(s->bytes);

    if (buf == NULL)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < s->count; i++)
        (void) copy_into(buf, &s->items[i]);
    bt_sink_send(r, buf, buf->data, buf->len);
    bt_buf_unref(buf);
    return 0;
}

static int set(bt_edits_t *edits, const char *name, bt_str_t value)
{
    return bt_edits_set(edits, BT_STR(""), bt_str(name), value, true);
}

static int set_number(bt_edits_t *edits, const char *name, int64_t value)
{
    return set(edits, name, bt_arena_printf(edits->arena, "%lld", (long long) value));
}

/* The first child to say something decides what all say. */
static void agree(bt_request_t *r, const bt_body_t *body, const char *key, bt_str_t *ours,
                  bt_edits_t *edits)
{
    const bt_json_item_t *item = bt_body_find(body, bt_str(key));

    if (item == NULL || item->value.n > AGREED_MAX_BYTES)
        return;
    if (ours->p == NULL)
        *ours = bt_arena_str(&r->arena, item->value);
    (void) set(edits, key, *ours);
}

/* The choice with its index set to the child's; a child asks for one. */
static int patch_choices(bt_arena_t *arena, bt_str_t choices, unsigned index, bt_slices_t *out)
{
    bt_json_cursor_t c;
    bt_json_item_t choice;
    bt_edits_t edits;
    bt_body_t body;
    size_t err_off;
    int rc = bt_json_array(&c, choices);

    if (rc >= 0)
        rc = bt_json_next(&c, &choice);
    if (rc <= 0)
        return rc;
    bt_edits_init(&edits, arena);
    if (choice.type != BT_JSON_OBJECT || bt_body_index(&body, arena, choice.value, &err_off) < 0 ||
        set_number(&edits, "index", index) < 0)
        return BT_E_JSON;
    rc = bt_body_apply(&body, &edits, arena, out);
    if (rc == 0)
        rc = bt_json_next(&c, &choice);
    return rc == 1 ? BT_E_JSON : rc;
}

/* Known by its address: what stands in an edit for slices. */
static const char hole[] = "null";

/* body with edits applied, and `inner` where they say `hole`: choices may be megabytes, which are not copied for it. */
static int apply_around(const bt_body_t *body, const bt_edits_t *edits, const bt_slices_t *inner,
                        bt_arena_t *arena, bt_slices_t *out)
{
    bt_slices_t frame = {0};
    const int rc = bt_body_apply(body, edits, arena, &frame);

    for (unsigned i = 0; i < frame.count; i++) {
        if (frame.items[i].p != hole) {
            bt_slices_put(out, arena, (bt_str_t){frame.items[i].p, frame.items[i].n});
            continue;
        }
        for (unsigned k = 0; k < inner->count; k++)
            bt_slices_put(out, arena, (bt_str_t){inner->items[k].p, inner->items[k].n});
    }
    return rc;
}

static bt_str_t flat(bt_arena_t *arena, const bt_slices_t *s)
{
    char *all = bt_arena_alloc(arena, s->bytes + 1), *at = all;

    for (unsigned i = 0; i < s->count; i++) {
        memcpy(at, s->items[i].p, s->items[i].n);
        at += s->items[i].n;
    }
    return (bt_str_t){all, s->bytes};
}

static int64_t usage_member(bt_str_t usage, const char *name)
{
    bt_json_item_t item;
    int64_t value;

    if (bt_json_get(usage, bt_str(name), &item) < 0 || item.type != BT_JSON_NUMBER ||
        bt_json_i64(item.value, &value) < 0)
        return 0;
    return value >= 0 && value <= TOKENS_MAX ? value : 0;
}

static void note_usage(struct child *child, const bt_json_item_t *usage)
{
    bt_json_item_t details;

    if (usage == NULL || usage->type != BT_JSON_OBJECT)
        return;
    child->has_usage = true;
    child->prompt_tokens = usage_member(usage->value, "prompt_tokens");
    child->completion_tokens = usage_member(usage->value, "completion_tokens");
    child->has_details =
        bt_json_get(usage->value, BT_STR("prompt_tokens_details"), &details) == 0 &&
        details.type == BT_JSON_OBJECT;
    if (child->has_details)
        child->cached_tokens = usage_member(details.value, "cached_tokens");
    if (bt_json_get(usage->value, BT_STR("completion_tokens_details"), &details) == 0 &&
        details.type == BT_JSON_OBJECT)
        child->reasoning_tokens = usage_member(details.value, "reasoning_tokens");
}

static int64_t cached_of(const bt_request_t *r, unsigned i)
{
    const struct merge *m = r->merge;
    uint64_t cached;

    return r->tasks[i].attempt != NULL && bt_usage_prefill_cached(r->tasks[i].attempt, &cached)
               ? (int64_t) cached
               : m->children[i].cached_tokens;
}

/* What the engines tell beside the sums: of each prompt once, of each answer. */
static void sum_details(const bt_request_t *r, const bt_body_t *frame, bt_edits_t *edits)
{
    const bt_json_item_t *prompt = bt_body_find(frame, BT_STR("prompt_tokens_details")),
                         *made = bt_body_find(frame, BT_STR("completion_tokens_details"));
    const struct merge *m = r->merge;
    int64_t cached = 0, reasoning = 0;
    bool is_told = false;
    bt_str_t number;

    for (unsigned i = 0; i < r->task_count; i++) {
        reasoning += m->children[i].reasoning_tokens;
        if (i % r->intent.n != 0)
            continue;
        cached += cached_of(r, i);
        is_told |= m->children[i].has_details;
    }
    number = bt_arena_printf(edits->arena, "%lld", (long long) cached);
    if (is_told && prompt != NULL && prompt->type == BT_JSON_OBJECT)
        (void) bt_edits_set(edits, prompt->key, BT_STR("cached_tokens"), number, true);
    else if (is_told)
        (void) set(edits, "prompt_tokens_details",
                   bt_arena_printf(edits->arena, "{\"cached_tokens\":%.*s}", BT_STR_ARG(number)));
    if (reasoning != 0 && made != NULL && made->type == BT_JSON_OBJECT)
        (void) bt_edits_set(edits, made->key, BT_STR("reasoning_tokens"),
                            bt_arena_printf(edits->arena, "%lld", (long long) reasoning), true);
}

static bt_str_t summed_usage(bt_request_t *r, bt_arena_t *arena, bt_str_t frame)
{
    struct merge *m = r->merge;
    int64_t prompt = 0, completion = 0;
    bt_slices_t out = {0};
    bt_edits_t edits;
    bt_body_t body;
    size_t err_off;

    for (unsigned i = 0; i < r->task_count; i++) {
        completion += m->children[i].completion_tokens;
        if (i % r->intent.n == 0) /* samples share their prompt */
            prompt += m->children[i].prompt_tokens;
    }
    bt_edits_init(&edits, arena);
    (void) set_number(&edits, "prompt_tokens", prompt);
    (void) set_number(&edits, "completion_tokens", completion);
    (void) set_number(&edits, "total_tokens", prompt + completion);
    if (bt_body_index(&body, arena, frame, &err_off) < 0)
        return frame;
    sum_details(r, &body, &edits);
    if (bt_body_apply(&body, &edits, arena, &out) < 0)
        return frame;
    return flat(arena, &out);
}

/* ---- streams ---- */

static bool is_usage_event(const bt_body_t *body)
{
    const bt_json_item_t *choices = bt_body_find(body, BT_STR("choices"));
    const bt_json_item_t *usage = bt_body_find(body, BT_STR("usage"));

    return usage != NULL && usage->type == BT_JSON_OBJECT && choices != NULL &&
           bt_json_count(choices->value) == 0;
}

static int patch_event(bt_task_t *task, bt_arena_t *arena, const bt_body_t *body, bt_slices_t *out)
{
    bt_request_t *r = task->request;
    struct merge *m = r->merge;
    const bt_json_item_t *choices = bt_body_find(body, BT_STR("choices"));
    bt_slices_t patched = {0};
    bt_edits_t edits;
    int rc = 0;

    bt_edits_init(&edits, arena);
    agree(r, body, r->route == BT_ROUTE_TOKENS ? "request_id" : "id", &m->id, &edits);
    agree(r, body, "created", &m->created, &edits);
    agree(r, body, "system_fingerprint", &m->fingerprint, &edits);
    if (choices != NULL && choices->type == BT_JSON_ARRAY) {
        bt_slices_put(&patched, arena, BT_STR("["));
        rc = patch_choices(arena, choices->value, task->index, &patched);
        bt_slices_put(&patched, arena, BT_STR("]"));
        if (rc == 0)
            rc = set(&edits, "choices", bt_str(hole));
    } else if (r->route == BT_ROUTE_GENERATE) {
        rc = set_number(&edits, "index", task->index);
    }
    if (rc < 0)
        return rc;
    bt_slices_put(out, arena, BT_STR("data: "));
    rc = apply_around(body, &edits, &patched, arena, out);
    bt_slices_put(out, arena, BT_STR("\n\n"));
    return rc;
}

static int keep_usage(bt_request_t *r, bt_str_t payload)
{
    struct merge *m = r->merge;

    if (payload.n > USAGE_MAX_BYTES)
        return BT_E_LIMIT;
    if (m->usage_event.n == 0)
        m->usage_event = bt_arena_str(&r->arena, payload);
    return 0;
}

/* 1, or why it cannot be passed. */
static int pass_event(bt_task_t *task, bt_str_t event)
{
    bt_request_t *r = task->request;
    struct merge *m = r->merge;
    char joined[8192];
    bt_str_t payload = bt_str_trim(bt_sse_data(event, joined, sizeof(joined)));
    bt_slices_t out = {0};
    bt_arena_t scratch;
    bt_body_t body;
    size_t err_off;
    int rc;

    if (payload.n == 0 || payload.p[0] != '{')
        return 1; /* comments, and [DONE], which comes once at the end */
    bt_arena_init(&scratch);
    if (payload.p == joined && event.n > sizeof(joined)) /* it may be cut */
        payload = bt_str_trim(bt_sse_data(event, bt_arena_alloc(&scratch, event.n), event.n));
    rc = bt_body_index(&body, &scratch, payload, &err_off);
    if (rc == 0) {
        note_usage(&m->children[task->index], bt_body_find(&body, BT_STR("usage")));
        if (is_usage_event(&body))
            rc = keep_usage(r, payload);
        else if ((rc = patch_event(task, &scratch, &body, &out)) == 0)
            rc = send_event(r, &out);
    }
    bt_arena_fini(&scratch);
    return rc < 0 ? rc : 1;
}

static void keep(bt_task_t *task, bt_buf_t *buf, bt_str_t piece)
{
    bt_request_t *r = task->request;
    struct merge *m = r->merge;
    int rc;

    m->whole_bytes += piece.n;
    rc = m->whole_bytes > WHOLE_MAX_BYTES
             ? BT_E_LIMIT
             : bt_kept_add(&m->children[task->index].body, r->d->shared, buf, piece);
    if (rc < 0)
        bt_sink_break_off(task, rc, "the answers to be merged are larger than 64 MiB");
}

static void data(bt_task_t *task, bt_buf_t *buf, const char *p, size_t n)
{
    bt_request_t *r = task->request;
    struct merge *m = r->merge;
    struct child *child = &m->children[task->index];
    bt_str_t event;
    size_t at = 0;
    int rc;

    if (!m->is_sse) {
        keep(task, buf, (bt_str_t){p, n});
        return;
    }
    if (child->sse.carry_len > EVENT_SURE_BYTES && !bt_dispatch_shared_fits(r->d->shared, n)) {
        bt_sink_break_off(task, BT_E_NOMEM, NULL);
        return;
    }
    do
        rc = bt_sse_next(&child->sse, (bt_str_t){p, n}, &at, &event);
    while (rc == 1 && (rc = pass_event(task, event)) > 0);
    if (rc < 0)
        bt_sink_break_off(task, rc, "an event to be merged is too large or no JSON");
}

static int end_stream(bt_request_t *r)
{
    struct merge *m = r->merge;
    bt_slices_t out = {0};
    bt_arena_t scratch;
    int rc;

    bt_arena_init(&scratch);
    if (m->usage_event.n != 0) {
        bt_edits_t edits;
        bt_body_t body;
        size_t err_off;
        bt_edits_init(&edits, &scratch);
        if (bt_body_index(&body, &scratch, m->usage_event, &err_off) == 0) {
            const bt_json_item_t *usage = bt_body_find(&body, BT_STR("usage"));
            agree(r, &body, "id", &m->id, &edits);
            agree(r, &body, "created", &m->created, &edits);
            (void) set(&edits, "usage", summed_usage(r, &scratch, usage->value));
            bt_slices_put(&out, &scratch, BT_STR("data: "));
            (void) bt_body_apply(&body, &edits, &scratch, &out);
            bt_slices_put(&out, &scratch, BT_STR("\n\n"));
        }
    }
    bt_slices_put(&out, &scratch, BT_STR("data: [DONE]\n\n"));
    rc = send_event(r, &out);
    bt_arena_fini(&scratch);
    return rc;
}

/* ---- whole answers ---- */

/* Looks through a child's answer, all of it. */
static int find_choices(struct child *child, bt_str_t *choices_p)
{
    bt_json_cursor_t c;
    bt_json_item_t member;
    int rc = bt_json_object(&c, child->body.text);

    *choices_p = BT_STR_NULL;
    while (rc >= 0 && (rc = bt_json_next(&c, &member)) == 1) {
        if (bt_json_key_eq(&member, BT_STR("usage")))
            note_usage(child, &member);
        else if (member.type == BT_JSON_ARRAY && bt_json_key_eq(&member, BT_STR("choices")))
            *choices_p = member.value;
    }
    return rc == 0 && choices_p->n == 0 ? BT_E_JSON : rc;
}

static int all_choices(bt_request_t *r, bt_arena_t *arena, bt_slices_t *out)
{
    struct merge *m = r->merge;
    bt_str_t choices;
    int rc = 0;

    bt_slices_put(out, arena, BT_STR("["));
    for (unsigned i = 0; i < r->task_count && rc >= 0; i++) {
        rc = find_choices(&m->children[i], &choices);
        if (i != 0)
            bt_slices_put(out, arena, BT_STR(","));
        if (rc >= 0)
            rc = patch_choices(arena, choices, i, out);
    }
    bt_slices_put(out, arena, BT_STR("]"));
    return rc;
}

static int merge_object(bt_request_t *r, bt_arena_t *arena, bt_slices_t *out)
{
    struct merge *m = r->merge;
    bt_slices_t choices = {0};
    const bt_json_item_t *usage, *params;
    bt_edits_t edits;
    bt_body_t body;
    size_t err_off;
    int rc = all_choices(r, arena, &choices);

    if (rc < 0)
        return rc;
    rc = bt_body_index(&body, arena, m->children[0].body.text, &err_off);
    if (rc < 0)
        return rc;
    bt_edits_init(&edits, arena);
    (void) set(&edits, "choices", bt_str(hole));
    usage = bt_body_find(&body, BT_STR("usage"));
    if (usage != NULL && usage->type == BT_JSON_OBJECT)
        (void) set(&edits, "usage", summed_usage(r, arena, usage->value));
    params = bt_body_find(&body, BT_STR("kv_transfer_params"));
    if (params != NULL && params->type == BT_JSON_OBJECT)
        (void) set(&edits, "kv_transfer_params", BT_STR("null"));
    return apply_around(&body, &edits, &choices, arena, out);
}

static void merge_list(bt_request_t *r, bt_arena_t *arena, bt_slices_t *out)
{
    struct merge *m = r->merge;

    bt_slices_put(out, arena, BT_STR("["));
    for (unsigned i = 0; i < r->task_count; i++) {
        if (i != 0)
            bt_slices_put(out, arena, BT_STR(","));
        bt_slices_put(out, arena, bt_str_trim(m->children[i].body.text));
    }
    bt_slices_put(out, arena, BT_STR("]"));
}

static bool is_within(bt_str_t text, const struct bt_slice *slice)
{
    return slice->p >= text.p && slice->p + slice->n <= text.p + text.n;
}

/* The buffer that a slice lies in: slices come in the children's order, within a frame of the first one's. NULL: it is ours. */
static bt_buf_t *owner_of(bt_request_t *r, const struct bt_slice *slice, unsigned *child_p)
{
    struct merge *m = r->merge;

    for (unsigned i = *child_p; i < r->task_count && i <= *child_p + 1; i++)
        if (is_within(m->children[i].body.text, slice)) {
            *child_p = i;
            return m->children[i].body.buf;
        }
    return is_within(m->children[0].body.text, slice) ? m->children[0].body.buf : NULL;
}

/* The children's bytes leave from where they are, ours from a buffer that lives as long as they. */
static int send_whole(bt_request_t *r, const bt_slices_t *s)
{
    struct merge *m = r->merge;
    unsigned child = 0;
    size_t ours = 0;
    bt_buf_t *buf, *owner;

    for (unsigned i = 0; i < s->count; i++)
        ours += owner_of(r, &s->items[i], &child) == NULL ? s->items[i].n : 0;
    buf = bt_buf_new(ours);
    if (buf == NULL)
        return BT_E_NOMEM;
    r->head_sent = true;
    r->status = 200;
    bt_exchange_start(r->x, 200, m->headers, m->header_count, s->bytes);
    child = 0;
    for (unsigned i = 0; i < s->count; i++) {
        const struct bt_slice *slice = &s->items[i];
        owner = owner_of(r, slice, &child);
        if (owner != NULL)
            bt_sink_send(r, owner, slice->p, slice->n);
        else
            bt_sink_send(r, buf, copy_into(buf, slice), slice->n);
    }
    bt_buf_unref(buf);
    return 0;
}

static int end_whole(bt_request_t *r)
{
    bt_slices_t out = {0};
    bt_arena_t scratch;
    int rc = 0;

    bt_arena_init(&scratch);
    if (r->route == BT_ROUTE_GENERATE)
        merge_list(r, &scratch, &out);
    else
        rc = merge_object(r, &scratch, &out);
    if (rc == 0)
        rc = send_whole(r, &out);
    bt_arena_fini(&scratch);
    return rc;
}

static void end(bt_task_t *task)
{
    bt_request_t *r = task->request;
    struct merge *m = r->merge;

    if (r->tasks_done < r->task_count)
        return;
    const int rc = m->is_sse ? end_stream(r) : end_whole(r);
    if (rc < 0) {
        bt_sink_break_off(task, rc, "the children's answers could not be merged");
        return;
    }
    bt_sink_end(r);
}

const bt_sink_ops_t bt_sink_merge = {
    .head = head, .data = data, .end = end, .fail = bt_sink_fail, .blocked = bt_sink_blocked};
