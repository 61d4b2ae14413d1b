/* flatten.c - see flatten.h.
 *
 * Messages need at most as many bytes as their JSON text, since unescaping only shrinks; so one block of that size is
 * taken from the arena and filled from the front.
 */
#include "flatten.h"

struct sink {
    char *at, *end;
};

static void put(struct sink *s, bt_str_t text)
{
    size_t n = text.n < (size_t) (s->end - s->at) ? text.n : (size_t) (s->end - s->at);

    if (n > 0)
        memcpy(s->at, text.p, n);
    s->at += n;
}

static void put_string(struct sink *s, bt_str_t value)
{
    long n = bt_json_unescape(value, s->at, (size_t) (s->end - s->at));

    if (n > 0)
        s->at += n;
}

int sim_flatten_string(sim_raw_t raw, bt_arena_t *arena, bt_str_t *out_p, sim_problem_t *problem_p)
{
    if (raw.type != BT_JSON_STRING)
        return sim_problem_set(problem_p, 400, "Input should be a valid string");
    *out_p = sim_raw_text(raw, arena);
    return 0;
}

int sim_flatten_ids(sim_raw_t raw, bt_arena_t *arena, bt_str_t *out_p, sim_problem_t *problem_p)
{
    unsigned count = sim_raw_count(raw), at = 0;
    char *bytes = bt_arena_alloc(arena, (size_t) count * 4 + 1);
    bt_json_cursor_t c;
    bt_json_item_t item;
    int64_t id;

    bt_json_array(&c, raw.value);
    while (bt_json_next(&c, &item) == 1) {
        uint32_t word;
        if (bt_json_i64(item.value, &id) != 0 || id < 0)
            return sim_problem_set(problem_p, 400, "token ids must be whole numbers, none below 0");
        word = (uint32_t) id;
        memcpy(bytes + (size_t) at++ * 4, &word, 4);
    }
    *out_p = (bt_str_t){bytes, (size_t) at * 4};
    return 0;
}

/* Text parts give their text; every other part stands for itself. */
static void put_parts(struct sink *s, bt_str_t parts)
{
    bt_json_cursor_t c;
    bt_json_item_t item;

    bt_json_array(&c, parts);
    while (bt_json_next(&c, &item) == 1) {
        sim_raw_t text =
            item.type == BT_JSON_OBJECT ? sim_raw_get(item.value, "text") : (sim_raw_t){0};
        if (text.type == BT_JSON_STRING)
            put_string(s, text.value);
        else
            put(s, item.value);
    }
}

static void put_content(struct sink *s, sim_raw_t content)
{
    if (content.type == BT_JSON_STRING)
        put_string(s, content.value);
    else if (content.type == BT_JSON_ARRAY)
        put_parts(s, content.value);
    put(s, BT_STR("\n"));
}

static int put_messages(struct sink *s, bt_str_t messages, sim_problem_t *problem_p)
{
    bt_json_cursor_t c;
    bt_json_item_t item;

    bt_json_array(&c, messages);
    while (bt_json_next(&c, &item) == 1) {
        sim_raw_t role;
        if (item.type != BT_JSON_OBJECT)
            return sim_problem_set(problem_p, 400, "each message must be an object");
        role = sim_raw_get(item.value, "role");
        if (role.type == BT_JSON_STRING)
            put_string(s, role.value);
        put(s, BT_STR("\n"));
        put_content(s, sim_raw_get(item.value, "content"));
    }
    return 0;
}

int sim_flatten_messages(sim_raw_t system, sim_raw_t messages, bt_str_t before, bt_arena_t *arena,
                         bt_str_t *out_p, sim_problem_t *problem_p)
{
    size_t room = before.n + system.value.n + messages.value.n + 64;
    char *bytes = bt_arena_alloc(arena, room);
    struct sink s = {bytes, bytes + room};

    put(&s, before);
    if (system.type == BT_JSON_STRING || system.type == BT_JSON_ARRAY) {
        put(&s, BT_STR("system\n"));
        put_content(&s, system);
    }
    if (messages.type == BT_JSON_STRING) {
        put(&s, BT_STR("user\n"));
        put_content(&s, messages);
    } else if (messages.type != BT_JSON_ARRAY) {
        return sim_problem_set(problem_p, 400, "messages must be a list");
    } else if (put_messages(&s, messages.value, problem_p) != 0) {
        return -1;
    }
    *out_p = (bt_str_t){bytes, (size_t) (s.at - bytes)};
    return 0;
}
