/* raw.c - see raw.h. */
#include "raw.h"

#include <stdarg.h>
#include <stdio.h>

int sim_problem_set(sim_problem_t *problem_p, unsigned status, const char *fmt, ...)
{
    va_list args;

    problem_p->status = status;
    problem_p->type = status == 404   ? "NotFoundError"
                      : status >= 500 ? "InternalServerError"
                                      : "BadRequestError";
    problem_p->param = NULL;
    va_start(args, fmt);
    vsnprintf(problem_p->message, sizeof(problem_p->message), fmt, args);
    va_end(args);
    return -1;
}

unsigned sim_raw_count(sim_raw_t raw)
{
    long n = raw.type == BT_JSON_ARRAY ? bt_json_count(raw.value) : 0;

    return n > 0 ? (unsigned) n : 0;
}

sim_raw_t sim_raw_at(sim_raw_t raw, unsigned i)
{
    bt_json_cursor_t c;
    bt_json_item_t item;

    if (raw.type != BT_JSON_ARRAY)
        return raw;
    bt_json_array(&c, raw.value);
    while (bt_json_next(&c, &item) == 1)
        if (item.ordinal == i)
            return (sim_raw_t){item.value, item.type};
    return (sim_raw_t){0};
}

sim_raw_t sim_raw_get(bt_str_t object, const char *name)
{
    bt_json_item_t item;

    if (bt_json_get(object, bt_str(name), &item) < 0)
        return (sim_raw_t){0};
    return (sim_raw_t){item.value, item.type};
}

bt_str_t sim_raw_text(sim_raw_t raw, bt_arena_t *arena)
{
    char *out;
    long n;

    if (raw.type != BT_JSON_STRING)
        return raw.value;
    if (memchr(raw.value.p, '\\', raw.value.n) == NULL)
        return (bt_str_t){raw.value.p + 1, raw.value.n - 2};
    out = bt_arena_alloc(arena, raw.value.n);
    n = bt_json_unescape(raw.value, out, raw.value.n);
    return (bt_str_t){out, n > 0 ? (size_t) n : 0};
}
