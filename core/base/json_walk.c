/* Brackets, commas and quotes are all that is looked at: what lies between them is known to be right. */
#include "base/json.h"
#include "base/json_scan.h"

void bt_json_walk(bt_json_walk_t *w, bt_str_t container)
{
    const bt_str_t bare = bt_str_trim(container);

    *w = (bt_json_walk_t){.begin = container.p, .at = bare.p + 1, .end = bare.p + bare.n - 1};
}

/* at: the opening quote; returns what follows the closing one. *escaped_p: is set where there is a backslash. */
static inline const char *string_end(const char *at, const char *end, bool *escaped_p)
{
    at = bt_json_plain_end(at + 1, end);
    while (at < end && *at != '"') {
        const bool is_escape = *at == '\\';
        *escaped_p |= is_escape;
        at += is_escape ? 2 : 1;
        if (at < end)
            at = bt_json_plain_end(at, end);
    }
    return at + 1;
}

/* Over most of a list's integers at once: block and token ids. *pays_p: there may be more such lists. */
static void skip_integers(const char **at_p, const char *end, size_t *commas_p, bool *pays_p)
{
    const char *at = *at_p;

    if (!*pays_p || at >= end || *at < '0' || *at > '9')
        return;
    *at_p = bt_json_integers_end(at, end, commas_p);
    *pays_p = *at_p != at;
}

/* Its elements are its commas and one, unless it holds nothing but white space. */
static const char *skip_bracket(const char *at, const char *end, size_t *inner_p)
{
    size_t depth = 0, commas = 0, inner = 0;
    bool is_empty = true, pays = true, is_escaped = false;

    while (at < end) {
        const char c = *at;
        if (c == '"') {
            at = string_end(at, end, &is_escaped);
            is_empty = false;
            continue;
        }
        at++;
        if (c == '[' || c == '{') {
            is_empty = is_empty && depth == 0;
            depth++;
            if (c == '[')
                skip_integers(&at, end, depth == 1 ? &commas : &inner, &pays);
        } else if (c == ']' || c == '}') {
            if (--depth == 0)
                break;
        } else if (c == ',') {
            commas += depth == 1;
            skip_integers(&at, end, depth == 1 ? &commas : &inner, &pays);
        } else if (is_empty && !bt_str_is_blank(c)) {
            is_empty = false;
        }
    }
    *inner_p = is_empty ? 0 : commas + 1;
    return at;
}

/* To the next byte that is neither blank nor between items. False: it is the closing bracket. */
static inline bool skip_to_item(bt_json_walk_t *w)
{
    while (w->at < w->end && (bt_str_is_blank(*w->at) || *w->at == ',' || *w->at == ':'))
        w->at++;
    return w->at < w->end;
}

static bt_str_t take_value(bt_json_walk_t *w, size_t *inner_p)
{
    const char *at = w->at;
    bool is_escaped = false;

    *inner_p = 0;
    if (*at == '"')
        w->at = string_end(at, w->end, &is_escaped);
    else if (*at == '[' || *at == '{')
        w->at = skip_bracket(at, w->end, inner_p);
    else
        while (w->at < w->end && *w->at != ',' && !bt_str_is_blank(*w->at))
            w->at++;
    return (bt_str_t){at, (size_t) (w->at - at)};
}

size_t bt_json_walk_integers(bt_json_walk_t *w)
{
    size_t count = 0;

    while (w->at < w->end && (bt_str_is_blank(*w->at) || *w->at == ','))
        w->at++;
    w->at = bt_json_integers_end(w->at, w->end, &count);
    return count;
}

bool bt_json_walk_next(bt_json_walk_t *w, bt_str_t *element_p, size_t *inner_p)
{
    if (!skip_to_item(w))
        return false;
    *element_p = take_value(w, inner_p);
    return true;
}

bool bt_json_walk_member(bt_json_walk_t *w, bt_json_item_t *item_p)
{
    size_t inner;

    if (!skip_to_item(w))
        return false;
    item_p->start = (size_t) (w->at - w->begin);
    item_p->key.p = w->at + 1;
    item_p->key_escaped = false;
    w->at = string_end(w->at, w->end, &item_p->key_escaped);
    item_p->key.n = (size_t) (w->at - item_p->key.p) - 1;
    (void) skip_to_item(w);
    item_p->value_off = (size_t) (w->at - w->begin);
    item_p->value = take_value(w, &inner);
    item_p->type = bt_json_type_of(item_p->value);
    return true;
}

bt_str_t bt_json_find(bt_str_t object, bt_str_t name)
{
    bt_json_walk_t w;
    bt_json_item_t item;

    bt_json_walk(&w, object);
    while (bt_json_walk_member(&w, &item))
        if (bt_json_key_eq(&item, name))
            return item.value;
    return BT_STR_NULL;
}

size_t bt_json_size(bt_str_t container)
{
    const bt_str_t bare = bt_str_trim(container);
    size_t size;

    (void) skip_bracket(bare.p, bare.p + bare.n, &size);
    return size;
}

/* ---- lists of ids ---- */

/* White space between two numbers: an indented line. What has more costs more than it is worth. */
#define GAP_MAX 256

static bool read_u32(bt_str_t list, size_t *at, uint32_t *number_p)
{
    uint64_t number = 0;
    size_t i = *at, start;
    const size_t gap_end = list.n - i < GAP_MAX ? list.n : i + GAP_MAX;

    while (i < gap_end && (bt_str_is_blank(list.p[i]) || list.p[i] == ','))
        i++;
    for (start = i; i < list.n && list.p[i] >= '0' && list.p[i] <= '9' && number <= UINT32_MAX; i++)
        number = number * 10 + (unsigned) (list.p[i] - '0');
    if (i == start || number > UINT32_MAX)
        return false;
    *number_p = (uint32_t) number;
    *at = i;
    return true;
}

unsigned bt_json_read_u32(bt_str_t list, size_t *at, uint32_t *numbers, unsigned cap)
{
    unsigned count = 0;
    bool pays = true; /* there may be more short ones */

    while (count < cap) {
        const unsigned before = count;
        if (pays)
            *at = (size_t) (bt_json_read_integers(list.p + *at, list.p + list.n, numbers, cap,
                                                  &count) -
                            list.p);
        pays = count > before;
        if (count == cap || !read_u32(list, at, &numbers[count]))
            break;
        count++;
    }
    return count;
}
