/* usage.c - what a worker says of tokens: how many of the prompt its cache had, how many it has made. The latter from the end of an answer that is not streamed, as are a single worker's hits, streamed or not: usage stands last in all engines' JSON, so the last
 * bytes are kept as they pass and looked at once; where long members stand behind it (prompt_logprobs), so is usage when it leaves them. Text inside strings has its quotes escaped, so it cannot be taken for a member. */
#include "dispatch/answer/usage.h"

#include "dispatch/answer/token_replay.h"

#include <stdlib.h>

#define TAIL_BYTES 512
#define USAGE_BYTES 256

enum said { PROMPT, INPUT, COMPLETION, OUTPUT, CACHED, SAID_COUNT };

struct bt_tail {
    size_t n, usage_n;
    char *usage;  /* what follows the last "usage" that has left the tail; NULL: none has */
    bool is_read; /* the numbers are those of the bytes below */
    bool is_there[SAID_COUNT];
    uint64_t numbers[SAID_COUNT];
    char bytes[TAIL_BYTES];
};

static void keep(struct bt_tail *tail, const char *p, size_t n)
{
    if (tail->usage == NULL)
        return;
    n = n < USAGE_BYTES - tail->usage_n ? n : USAGE_BYTES - tail->usage_n;
    memcpy(tail->usage + tail->usage_n, p, n);
    tail->usage_n += n;
}

static const bt_str_t usage_name = BT_STR("\"usage\"");
#define NAME_CUT (sizeof("\"usage\"") - 2) /* of a name that is cut, at most, on one side */

static void keep_anew(struct bt_tail *tail, bt_arena_t *arena, bt_str_t usage)
{
    if (tail->usage == NULL)
        tail->usage = bt_arena_alloc(arena, USAGE_BYTES);
    tail->usage_n = 0;
    keep(tail, usage.p, usage.n);
}

/* The first of these bytes, as many as `leaving`, will not be in the tail any more. */
static void look_at_leaving(struct bt_tail *tail, bt_arena_t *arena, bt_str_t text, size_t leaving)
{
    bt_str_t rest = {text.p, text.n - leaving > usage_name.n ? leaving + usage_name.n : text.n};
    const char *last = NULL;

    for (ptrdiff_t at; (at = bt_str_find(rest, usage_name)) >= 0;) {
        last = rest.p + at + usage_name.n;
        rest = (bt_str_t){last, rest.n - (size_t) at - usage_name.n};
    }
    if (last != NULL)
        keep_anew(tail, arena, (bt_str_t){last, text.n - (size_t) (last - text.p)});
}

/* A name that the tail begins and the piece ends. */
static void look_across(struct bt_tail *tail, bt_arena_t *arena, bt_str_t piece)
{
    const size_t before = tail->n < NAME_CUT ? tail->n : NAME_CUT;
    const size_t after = piece.n < NAME_CUT ? piece.n : NAME_CUT;
    char both[2 * NAME_CUT];

    memcpy(both, tail->bytes + tail->n - before, before);
    memcpy(both + before, piece.p, after);
    const ptrdiff_t at = bt_str_find((bt_str_t){both, before + after}, usage_name);
    if (at < 0)
        return;
    const size_t skip = (size_t) at + usage_name.n - before;
    keep_anew(tail, arena, (bt_str_t){piece.p + skip, piece.n - skip});
}

static void look_before_it_leaves(struct bt_tail *tail, bt_arena_t *arena, bt_str_t piece)
{
    const size_t leaving = tail->n + piece.n > TAIL_BYTES ? tail->n + piece.n - TAIL_BYTES : 0;

    if (leaving == 0)
        return;
    look_at_leaving(tail, arena, (bt_str_t){tail->bytes, tail->n},
                    leaving < tail->n ? leaving : tail->n);
    keep(tail, piece.p, piece.n);
    if (leaving + NAME_CUT > tail->n)
        look_across(tail, arena, piece);
    if (leaving > tail->n)
        look_at_leaving(tail, arena, piece, leaving - tail->n);
}

void bt_usage_feed(bt_leg_t *leg, bt_arena_t *arena, const char *p, size_t n)
{
    struct bt_tail *tail = leg->tail;
    size_t keep;

    if (tail == NULL) {
        leg->tail = tail = bt_arena_alloc(arena, sizeof(*tail));
        tail->n = tail->usage_n = 0;
        tail->usage = NULL;
    }
    tail->is_read = false;
    if (!leg->is_sse)
        look_before_it_leaves(tail, arena, (bt_str_t){p, n});
    if (n >= TAIL_BYTES) {
        memcpy(tail->bytes, p + n - TAIL_BYTES, TAIL_BYTES);
        tail->n = TAIL_BYTES;
        return;
    }
    keep = tail->n < TAIL_BYTES - n ? tail->n : TAIL_BYTES - n;
    memmove(tail->bytes, tail->bytes + tail->n - keep, keep);
    memcpy(tail->bytes + keep, p, n);
    tail->n = keep + n;
}

static size_t count_digits(bt_str_t text)
{
    size_t digits = 0;

    while (digits < text.n && digits < 12 && text.p[digits] >= '0' && text.p[digits] <= '9')
        digits++;
    return digits;
}

/* What follows a name and its colon; false: no number, or one that may be cut. */
static bool read_number(bt_str_t text, uint64_t *value_p)
{
    while (text.n > 0 && (text.p[0] == ' ' || text.p[0] == ':')) {
        text.p++;
        text.n--;
    }
    const size_t digits = count_digits(text);
    return digits > 0 && digits < text.n && bt_str_u64((bt_str_t){text.p, digits}, value_p) == 0;
}

static void take_number(struct bt_tail *tail, enum said name, bt_str_t rest)
{
    tail->is_there[name] |= read_number(rest, &tail->numbers[name]);
}

/* Of each name the last number. What they have in common is looked for, once. */
static void read_numbers(struct bt_tail *tail, bt_str_t text)
{
    static const bt_str_t names[] = {[PROMPT] = BT_STR("\"prompt"),
                                     [INPUT] = BT_STR("\"input"),
                                     [COMPLETION] = BT_STR("\"completion"),
                                     [OUTPUT] = BT_STR("\"output"),
                                     [CACHED] = BT_STR("cached")};
    const bt_str_t end = BT_STR("_tokens\"");
    bt_str_t rest = text;

    for (ptrdiff_t at; (at = bt_str_find(rest, end)) >= 0;) {
        const bt_str_t before = {text.p, (size_t) (rest.p + at - text.p)};
        rest = (bt_str_t){rest.p + at + end.n, rest.n - (size_t) at - end.n};
        for (unsigned i = 0; i < SAID_COUNT; i++)
            if (bt_str_ends(before, names[i]))
                take_number(tail, (enum said) i, rest);
    }
}

/* Of the last usage, which the tail has, or has had. Hits may stand behind it: vLLM's hand-off parameters have
 * remote_prefill_cached_tokens. */
static void read_tail(struct bt_tail *tail)
{
    memset(tail->is_there, 0, sizeof(tail->is_there));
    if (tail->usage != NULL)
        read_numbers(tail, (bt_str_t){tail->usage, tail->usage_n});
    read_numbers(tail, (bt_str_t){tail->bytes, tail->n});
    tail->is_read = true;
}

static bool is_said(const bt_leg_t *leg, enum said name, uint64_t *value_p)
{
    struct bt_tail *tail = leg->tail;

    if (tail == NULL)
        return false;
    if (!tail->is_read)
        read_tail(tail);
    if (tail->is_there[name])
        *value_p = tail->numbers[name];
    return tail->is_there[name];
}

uint64_t bt_usage_prompt(bt_str_t usage)
{
    bt_str_t value = BT_STR_NULL;
    int64_t tokens;

    if (bt_json_type_of(usage) == BT_JSON_OBJECT)
        value = bt_json_find(usage, BT_STR("prompt_tokens"));
    if (bt_json_type_of(value) != BT_JSON_NUMBER || bt_json_i64(value, &tokens) < 0 || tokens < 0)
        return 0;
    return (uint64_t) tokens;
}

/* Cuts reply behind the name. */
static bool skip_to(bt_str_t *reply, bt_str_t name)
{
    const ptrdiff_t at = bt_str_find(*reply, name);

    if (at < 0)
        return false;
    *reply = (bt_str_t){reply->p + at + name.n, reply->n - (size_t) at - name.n};
    return true;
}

/* Cuts reply behind the token, which must be the next thing in it. */
static bool skip(bt_str_t *reply, bt_str_t token)
{
    const bt_str_t rest = bt_str_trim(*reply);

    if (!bt_str_starts(rest, token))
        return false;
    *reply = (bt_str_t){rest.p + token.n, rest.n - token.n};
    return true;
}

/* Only where it begins its object and is a whole number, as engines write it: all else is left to who reads JSON, so that both ways count
 * the same. */
bool bt_usage_tells_prompt(bt_str_t reply, uint64_t *prompt_p)
{
    if (!skip_to(&reply, usage_name) || !skip(&reply, BT_STR(":")) || !skip(&reply, BT_STR("{")) ||
        !skip(&reply, BT_STR("\"prompt_tokens\"")) || !skip(&reply, BT_STR(":")))
        return false;
    reply = bt_str_trim(reply);
    const bt_str_t number = {reply.p, count_digits(reply)};
    reply = (bt_str_t){reply.p + number.n, reply.n - number.n};
    return (skip(&reply, BT_STR(",")) || skip(&reply, BT_STR("}"))) && number.n > 0 &&
           bt_str_u64(number, prompt_p) == 0;
}

bool bt_usage_tells_cached(bt_str_t reply, uint64_t *cached_p)
{
    const bt_str_t name = BT_STR("cached_tokens\"");
    bool is_there = false;

    while (skip_to(&reply, name))
        is_there |= read_number(reply, cached_p);
    return is_there;
}

uint64_t bt_usage_cached(bt_str_t reply)
{
    uint64_t value = 0;

    (void) bt_usage_tells_cached(reply, &value);
    return value;
}

uint64_t bt_usage_answer_cached(const bt_leg_t *leg)
{
    uint64_t value = 0;

    (void) is_said(leg, CACHED, &value);
    return value;
}

bool bt_usage_prefill_cached(const bt_attempt_t *a, uint64_t *cached_p)
{
    const bt_leg_t *p = &a->legs[0];

    if (a->kind != BT_PLAN_HANDOFF || a->recompute || p->state != BT_LEG_DONE || !p->is_cached_news)
        return false;
    *cached_p = p->cached_tokens;
    return true;
}

static bool is_output_said(const bt_leg_t *leg, uint64_t *value_p)
{
    const bool is_openais = is_said(leg, COMPLETION, value_p);

    return (*value_p == 0 && is_said(leg, OUTPUT, value_p)) || is_openais;
}

uint64_t bt_usage_tokens(const bt_leg_t *leg)
{
    uint64_t tokens = 0;

    if (leg->events == 0)
        (void) is_output_said(leg, &tokens);
    return leg->events != 0 ? leg->events : tokens;
}

bool bt_usage_is_kept(const bt_leg_t *leg)
{
    return leg->tail != NULL && leg->tail->usage == NULL;
}

bool bt_usage_answer_tells_cached(const bt_leg_t *leg, uint64_t *cached_p)
{
    return is_said(leg, CACHED, cached_p);
}

bt_leg_usage_t bt_usage_of_leg(const bt_leg_t *leg)
{
    bt_leg_usage_t said = {.prompt = 0};

    (void) is_said(leg, PROMPT, &said.prompt);
    if (said.prompt == 0)
        (void) is_said(leg, INPUT, &said.prompt);
    said.is_output_known = is_output_said(leg, &said.output) || leg->is_sse || leg->events != 0;
    if (said.output == 0)
        said.output = leg->events;
    return said;
}

bt_usage_t bt_usage_of(const bt_request_t *r)
{
    const uint64_t before = bt_token_replay_before(r); /* one task, where there is a replay */
    bt_usage_t usage = {.output = before};

    for (unsigned i = 0; i < r->task_count; i++) {
        const bt_attempt_t *a = r->tasks[i].attempt;
        usage.input += r->tasks[i].prompt_tokens - before;
        if (a == NULL)
            continue;
        usage.output += bt_usage_tokens(&a->legs[1]);
        usage.cached += a->kind != BT_PLAN_SINGLE ? a->legs[0].cached_tokens
                                                  : bt_usage_answer_cached(&a->legs[1]);
    }
    return usage;
}
