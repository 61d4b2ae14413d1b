/* How it works: what rules are about is picked up in one walk, and where a member stands twice the last one counts, as engines' parsers have
 * it. Then the rules are held to it in their order, so the first that does not hold is the reason. */
#include "script/dialect/forward.h"

#include "base/err.h"

#include <stdlib.h>
#include <string.h>

const char *const bt_forward_tests[] = {[BT_FORWARD_TRUE] = "true",
                                        [BT_FORWARD_TEXT] = "text",
                                        [BT_FORWARD_NUMBER] = "number",
                                        [BT_FORWARD_ARRAY] = "array",
                                        [BT_FORWARD_BLOCKS] = "blocks",
                                        [BT_FORWARD_REQUEST_ID] = "request_id",
                                        [BT_FORWARD_PROMPT_TOKENS] = "prompt_tokens",
                                        [BT_FORWARD_TESTS] = NULL};

static const char *const faults[BT_FORWARD_TESTS] = {
    [BT_FORWARD_TRUE] = "is not true",
    [BT_FORWARD_TEXT] = "is missing",
    [BT_FORWARD_NUMBER] = "is missing",
    [BT_FORWARD_ARRAY] = "is missing",
    [BT_FORWARD_BLOCKS] = "is missing or empty",
    [BT_FORWARD_REQUEST_ID] = "belongs to another request",
    [BT_FORWARD_PROMPT_TOKENS] = "is not the length of this prompt"};

/* ---- splice ---- */

static const bt_member_t *find(const bt_member_t *members, unsigned count,
                               const bt_json_item_t *item)
{
    for (unsigned i = 0; i < count; i++)
        if (bt_json_key_eq(item, members[i].key))
            return &members[i];
    return NULL;
}

static bool has_key(const bt_json_object_index_t *object, bt_str_t key)
{
    for (unsigned i = 0; i < object->count; i++)
        if (bt_json_key_eq(&object->items[i], key))
            return true;
    return false;
}

bt_str_t bt_forward_splice(bt_arena_t *arena, const bt_json_object_index_t *object,
                           const bt_member_t *members, unsigned count)
{
    const bt_str_t text = object->text;
    size_t from = 0, end = text.n - 1; /* spans of values end at their closing bracket */
    size_t most = text.n;
    char *out, *at;

    for (unsigned i = 0; i < count; i++)
        most += bt_json_quoted_max(members[i].key) + 2 + members[i].value.n * (object->count + 1);
    out = at = bt_arena_alloc(arena, most);
    for (unsigned i = 0; i < object->count; i++) {
        const bt_member_t *fresh = find(members, count, &object->items[i]);
        if (fresh == NULL)
            continue;
        bt_str_put(&at, (bt_str_t){text.p + from, object->items[i].value_off - from});
        bt_str_put(&at, fresh->value);
        from = object->items[i].value_off + object->items[i].value.n;
    }
    bt_str_put(&at, (bt_str_t){text.p + from, end - from});
    for (unsigned i = 0, all = object->count; i < count; i++) {
        if (has_key(object, members[i].key))
            continue;
        if (all++ > 0)
            *at++ = ',';
        at += bt_json_quote(members[i].key, at);
        *at++ = ':';
        bt_str_put(&at, members[i].value);
    }
    *at++ = '}';
    return (bt_str_t){out, (size_t) (at - out)};
}

/* ---- what is kept of a function's words ---- */

#define TEXTS_MAX (3 + BT_FORWARD_MEMBERS_MAX + 2 * BT_FORWARD_RULES_MAX)

static unsigned texts_of(bt_forward_t *f, bt_str_t *texts[TEXTS_MAX])
{
    unsigned n = 0;

    texts[n++] = &f->key;
    texts[n++] = &f->from;
    texts[n++] = &f->what;
    for (unsigned i = 0; i < f->member_count; i++)
        texts[n++] = &f->members[i];
    for (unsigned i = 0; i < f->count; i++) {
        texts[n++] = &f->rules[i].text;
        texts[n++] = &f->rules[i].value;
    }
    return n;
}

bt_forward_t *bt_forward_copy(const bt_forward_t *f)
{
    bt_str_t *texts[TEXTS_MAX];
    bt_forward_t found = *f, *copy;
    size_t bytes = sizeof(*copy);
    unsigned count = texts_of(&found, texts);
    char *at;

    for (unsigned i = 0; i < count; i++)
        bytes += texts[i]->n;
    copy = malloc(bytes);
    if (copy == NULL)
        return NULL;
    *copy = *f;
    at = (char *) &copy[1];
    count = texts_of(copy, texts);
    for (unsigned i = 0; i < count; i++)
        *texts[i] = bt_str_put(&at, *texts[i]);
    return copy;
}

bool bt_forward_mentions(const bt_forward_t *f, bt_str_t text)
{
    bt_str_t *texts[TEXTS_MAX];
    bt_forward_t found = *f;
    const unsigned count = texts_of(&found, texts);
    unsigned i = 0;

    while (i < count && bt_str_find(*texts[i], text) < 0)
        i++;
    return i < count;
}

/* ---- rules ---- */

static bool has_blocks(bt_str_t array)
{
    bt_json_walk_t walk;
    bt_str_t element;
    size_t inner;

    bt_json_walk(&walk, array);
    while (bt_json_walk_next(&walk, &element, &inner)) {
        const enum bt_json_type type = bt_json_type_of(element);
        if (type == BT_JSON_NUMBER || (type == BT_JSON_ARRAY && inner > 0))
            return true;
    }
    return false;
}

typedef struct found {
    bt_str_t value;
    enum bt_json_type type;
} found_t;

/* object: well-formed. */
static void find_members(const bt_forward_t *f, bt_str_t object, found_t *found)
{
    bt_json_walk_t walk;
    bt_json_item_t item;

    bt_json_walk(&walk, object);
    while (bt_json_walk_member(&walk, &item))
        for (unsigned i = 0; i < f->member_count; i++)
            if (bt_json_key_eq(&item, f->members[i])) {
                found[i] = (found_t){item.value, item.type};
                break;
            }
}

/* Empty: it is no string, or an empty one. */
static bt_str_t text_of(const found_t *found, bt_arena_t *arena)
{
    const bt_str_t value = found->value;
    char *out;
    long n;

    if (found->type != BT_JSON_STRING)
        return BT_STR_NULL;
    if (memchr(value.p, '\\', value.n) == NULL)
        return (bt_str_t){value.p + 1, value.n - 2};
    out = bt_arena_alloc(arena, value.n);
    n = bt_json_unescape(value, out, value.n);
    return n > 0 ? (bt_str_t){out, (size_t) n} : BT_STR_NULL;
}

/* Engines put something behind the X-Request-Id; another id that begins as ours does is not ours. */
static bool is_our_id(bt_str_t id, bt_str_t prefix, bt_str_t ours)
{
    ptrdiff_t at = (ptrdiff_t) prefix.n;
    bt_str_t rest;

    if (prefix.n == 0)
        at = bt_str_find(id, ours);
    else if (!bt_str_starts(id, prefix))
        return false;
    if (at < 0)
        return false;
    rest = (bt_str_t){id.p + at, id.n - (size_t) at};
    if (!bt_str_starts(rest, ours))
        return false;
    return rest.n == ours.n || rest.p[ours.n] == '-' || rest.p[ours.n] == '_';
}

static bool is_of_prompt(const found_t *found, uint64_t prompt_tokens)
{
    double tokens = 0;

    if (found->type != BT_JSON_NUMBER || prompt_tokens == 0)
        return true;
    bt_json_double(found->value, &tokens);
    return tokens == (double) prompt_tokens;
}

static bool holds(const bt_forward_rule_t *rule, const found_t *found, const bt_leg_view_t *leg,
                  bt_arena_t *arena)
{
    switch (rule->test) {
    case BT_FORWARD_TRUE:
        return found->type == BT_JSON_TRUE;
    case BT_FORWARD_TEXT:
        return text_of(found, arena).n > 0;
    case BT_FORWARD_NUMBER:
        return found->type == BT_JSON_NUMBER;
    case BT_FORWARD_ARRAY:
        return found->type == BT_JSON_ARRAY;
    case BT_FORWARD_BLOCKS:
        return found->type == BT_JSON_ARRAY && has_blocks(found->value);
    case BT_FORWARD_REQUEST_ID:
        return is_our_id(text_of(found, arena), rule->text, leg->request_id);
    case BT_FORWARD_PROMPT_TOKENS:
        return is_of_prompt(found, leg->reply_prompt_tokens);
    case BT_FORWARD_INSTEAD:
    case BT_FORWARD_SET:
        break;
    }
    return true;
}

static bool replaces(const bt_forward_rule_t *rule, const found_t *found, bt_arena_t *arena)
{
    return rule->test == BT_FORWARD_SET ||
           (rule->test == BT_FORWARD_INSTEAD && bt_str_eq(text_of(found, arena), rule->text));
}

/* ---- one leg ---- */

static enum bt_dialect_verdict refuse(const bt_forward_t *f, bt_arena_t *arena, bt_str_t who,
                                      const char *fault, bt_str_t *reason_p)
{
    *reason_p = who.n == 0 ? bt_arena_printf(arena, "%.*s %s", BT_STR_ARG(f->what), fault)
                           : bt_arena_printf(arena, "%.*s: %.*s %s", BT_STR_ARG(f->what),
                                             BT_STR_ARG(who), fault);
    return BT_DIALECT_REFUSED;
}

/* OK: *object_p is one, well-formed, or empty where all of the reply is asked for and it is none. */
static enum bt_dialect_verdict find_object(const bt_forward_t *f, const bt_leg_view_t *leg,
                                           bt_json_index_t *index, bt_str_t *object_p,
                                           bt_str_t *reason_p)
{
    const bt_str_t reply = bt_str_trim(leg->reply);
    const bt_json_item_t *item;

    if (f->from.n == 0) {
        *object_p = bt_json_index_object(index, reply)->is_right ? reply : BT_STR_NULL;
        return BT_DIALECT_OK;
    }
    item = bt_json_index_member(index, reply, f->from);
    if (item == NULL || item->type == BT_JSON_NULL)
        return f->recomputes && leg->which == BT_DIALECT_DECODE && leg->reply.n > 0
                   ? BT_DIALECT_RECOMPUTE
                   : refuse(f, index->arena, BT_STR_NULL, "is missing", reason_p);
    if (item->type != BT_JSON_OBJECT)
        return refuse(f, index->arena, BT_STR_NULL, "is no object", reason_p);
    *object_p = item->value;
    return BT_DIALECT_OK;
}

enum bt_dialect_verdict bt_forward_apply(const bt_forward_t *f, const bt_leg_view_t *leg,
                                         bt_json_index_t *index, bt_edits_t *edits,
                                         bt_str_t *reason_p)
{
    bt_arena_t *arena = edits->arena;
    found_t found[BT_FORWARD_MEMBERS_MAX] = {{BT_STR_NULL, BT_JSON_NONE}};
    bt_member_t fresh[BT_FORWARD_RULES_MAX];
    unsigned count = 0;
    bt_str_t object;
    enum bt_dialect_verdict verdict = find_object(f, leg, index, &object, reason_p);

    if (verdict != BT_DIALECT_OK)
        return verdict;
    if (object.n > 0)
        find_members(f, object, found);
    for (unsigned i = 0; i < f->count; i++) {
        const bt_forward_rule_t *rule = &f->rules[i];
        const bt_str_t member = f->members[rule->member];
        if (!holds(rule, &found[rule->member], leg, arena))
            return refuse(f, arena, member, faults[rule->test], reason_p);
        if (replaces(rule, &found[rule->member], arena))
            fresh[count++] = (bt_member_t){member, rule->value};
    }
    if (object.n == 0)
        return refuse(f, arena, BT_STR_NULL, "is no object", reason_p);
    if (count > 0)
        object = bt_forward_splice(arena, bt_json_index_object(index, object), fresh, count);
    /* Unchanged bytes are borrowed: block ids of a long prompt are tens of kilobytes. */
    if (bt_edits_set(edits, BT_STR(""), f->key, object, true) == 0)
        return BT_DIALECT_OK;
    *reason_p = BT_STR("too many edits in one leg");
    return BT_DIALECT_BROKEN;
}
