/* Brackets, commas and quotes are all that is looked at: what lies between them is known to be right. */
#include "base/json.h"
#include "base/json_scan.h"

void bt_json_walk(bt_json_walk_t *w, bt_str_t array)
{
    const bt_str_t bare = bt_str_trim(array);

    *w = (bt_json_walk_t){.at = bare.p + 1, .end = bare.p + bare.n - 1};
}

/* at: the opening quote; returns what follows the closing one. */
static const char *string_end(const char *at, const char *end)
{
    at++;
    while (at < end && *at != '"') {
        const char *plain = bt_json_plain_end(at, end);
        if (plain > at)
            at = plain;
        else
            at += *at == '\\' ? 2 : 1;
    }
    return at + 1;
}

/* Its elements are its commas and one, unless it holds nothing but white space. */
static const char *skip_bracket(const char *at, const char *end, size_t *inner_p)
{
    size_t depth = 0, commas = 0;
    bool is_empty = true;

    while (at < end) {
        const char c = *at;
        if (c == '"') {
            at = string_end(at, end);
            is_empty = false;
            continue;
        }
        at++;
        if (c == '[' || c == '{') {
            is_empty = is_empty && depth == 0;
            depth++;
        } else if (c == ']' || c == '}') {
            if (--depth == 0)
                break;
        } else if (c == ',') {
            commas += depth == 1;
        } else if (is_empty && !bt_str_is_blank(c)) {
            is_empty = false;
        }
    }
    *inner_p = is_empty ? 0 : commas + 1;
    return at;
}

bool bt_json_walk_next(bt_json_walk_t *w, bt_str_t *element_p, size_t *inner_p)
{
    const char *at = w->at;

    while (at < w->end && (bt_str_is_blank(*at) || *at == ','))
        at++;
    *inner_p = 0;
    w->at = at;
    if (at >= w->end)
        return false;
    if (*at == '"')
        w->at = string_end(at, w->end);
    else if (*at == '[' || *at == '{')
        w->at = skip_bracket(at, w->end, inner_p);
    else
        while (w->at < w->end && *w->at != ',' && !bt_str_is_blank(*w->at))
            w->at++;
    *element_p = (bt_str_t){at, (size_t) (w->at - at)};
    return true;
}
