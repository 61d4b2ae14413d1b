/* parts.c - see parts.h. A hash is of the part's URL (its value, where it has none; or its uuid) and of both kwargs: an image of
 * /v1/responses is the same one as that of a chat. */
#include "parts.h"

#include "words.h"

#include <stdio.h>

static bool is_media(sim_raw_t type)
{
    static const char *const types[] = {"\"image_url\"", "\"audio_url\"", "\"input_audio\"",
                                        "\"video_url\"", "\"input_image\""};

    for (unsigned i = 0; i < 5; i++)
        if (type.type == BT_JSON_STRING && bt_str_eq(type.value, bt_str(types[i])))
            return true;
    return false;
}

static uint64_t add(uint64_t state, sim_raw_t raw)
{
    return raw.type == BT_JSON_NONE || raw.type == BT_JSON_NULL
               ? state
               : sim_state_add(state, raw.value.p, raw.value.n);
}

/* {"image_url":{"url":...}} of a chat, {"type":"input_image","image_url":...} of /v1/responses. */
static sim_raw_t value_of(bt_str_t part, sim_raw_t type)
{
    const bool is_input = bt_str_eq(type.value, BT_STR("\"input_image\""));
    char name[16];
    sim_raw_t value, url = {0};

    snprintf(name, sizeof(name), "%.*s", (int) type.value.n - 2, type.value.p + 1);
    value = sim_raw_get(part, is_input ? "image_url" : name);
    if (value.type == BT_JSON_OBJECT)
        url = sim_raw_get(value.value, "url");
    return url.type == BT_JSON_STRING ? url : value;
}

static void read_part(bt_str_t part, uint64_t state, sim_parts_t *parts)
{
    const sim_raw_t type = sim_raw_get(part, "type"), uuid = sim_raw_get(part, "uuid");

    if (!is_media(type)) {
        parts->others++;
        return;
    }
    state = add(state, uuid.type == BT_JSON_STRING ? uuid : value_of(part, type));
    parts->hashes[parts->count++] = sim_mix(state);
}

static void read_message(bt_str_t message, uint64_t state, bt_arena_t *arena, sim_parts_t *parts)
{
    const sim_raw_t content = sim_raw_get(message, "content");
    uint64_t *more;
    bt_json_cursor_t c;
    bt_json_item_t part;

    if (content.type != BT_JSON_ARRAY) {
        parts->others++;
        return;
    }
    more = bt_arena_alloc(arena, (parts->count + sim_raw_count(content) + 1) * sizeof(*more));
    if (parts->count != 0)
        memcpy(more, parts->hashes, parts->count * sizeof(*more));
    parts->hashes = more;
    bt_json_array(&c, content.value);
    while (bt_json_next(&c, &part) == 1)
        if (part.type == BT_JSON_OBJECT)
            read_part(part.value, state, parts);
}

void sim_parts_read(sim_raw_t messages, sim_raw_t processor, sim_raw_t io, bt_arena_t *arena,
                    sim_parts_t *parts)
{
    const uint64_t state = add(add(SIM_STATE_FIRST, processor), io);
    bt_json_cursor_t c;
    bt_json_item_t message;

    if (messages.type != BT_JSON_ARRAY)
        return;
    bt_json_array(&c, messages.value);
    while (bt_json_next(&c, &message) == 1)
        if (message.type == BT_JSON_OBJECT)
            read_message(message.value, state, arena, parts);
}
