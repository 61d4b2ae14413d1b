/* media.c - what vLLM makes of them.
 *
 *   /v1/chat/completions  parts of these types, as they stand: both sides then make the same hash of the same bytes
 *   /v1/responses         the same, and input_image, whose URL is a text of its own; in tools' outputs, too
 *   /v1/messages          images are refused: its body has no ec_transfer_params, so nobody would find what was encoded
 */
#include "api/media.h"

#include "base/err.h"
#include "base/json.h"

#define TYPE_MAX 16 /* the longest type, and more */

typedef struct finder {
    bt_media_part_t *parts;
    unsigned count, max;
    const char *why; /* it cannot be encoded */
} finder_t;

typedef void (*see_cb)(finder_t *f, bt_str_t part);

static bool is_type(bt_str_t part, const bt_str_t *types, unsigned count)
{
    char type[TYPE_MAX];
    const long n = bt_json_unescape(bt_json_find(part, BT_STR("type")), type, sizeof(type));

    for (unsigned i = 0; n > 0 && i < count; i++)
        if (bt_str_eq((bt_str_t){type, (size_t) n}, types[i]))
            return true;
    return false;
}

static bool is_one(bt_str_t part, bt_str_t type)
{
    return is_type(part, &type, 1);
}

static bool is_same(const bt_media_part_t *a, const bt_media_part_t *b)
{
    return bt_str_eq(a->value, b->value) && bt_str_eq(a->before, b->before) &&
           bt_str_eq(a->after, b->after);
}

static void add(finder_t *f, bt_media_part_t part)
{
    for (unsigned i = 0; i < f->count; i++)
        if (is_same(&f->parts[i], &part))
            return;
    f->parts[f->count++] = part;
}

/* ---- by API ---- */

static void see_chat(finder_t *f, bt_str_t part)
{
    static const bt_str_t types[] = {BT_STR("image_url"), BT_STR("audio_url"),
                                     BT_STR("input_audio"), BT_STR("video_url")};

    if (is_type(part, types, sizeof(types) / sizeof(types[0])))
        add(f, (bt_media_part_t){.before = BT_STR(""), .value = part, .after = BT_STR("")});
}

static void see_response(finder_t *f, bt_str_t part)
{
    const bt_media_part_t image = {BT_STR("{\"type\":\"image_url\",\"image_url\":{\"url\":"),
                                   bt_json_find(part, BT_STR("image_url")), BT_STR("}}")};

    see_chat(f, part);
    if (!is_one(part, BT_STR("input_image")))
        return;
    if (image.value.n != 0 && bt_json_type_of(image.value) == BT_JSON_STRING)
        add(f, image);
    else
        f->why =
            "an input_image without a text as its image_url (a file_id) cannot be encoded, and "
            "this pool has encode workers: send the image's URL or data";
}

static void see_image(finder_t *f, bt_str_t block)
{
    if (is_one(block, BT_STR("image")))
        f->why = "this pool's images go to encode workers, and /v1/messages has no "
                 "ec_transfer_params to say where they are then: send them to "
                 "/v1/chat/completions or /v1/responses";
}

/* ---- the way there ---- */

static void find_in(finder_t *f, bt_str_t content, see_cb see)
{
    bt_json_walk_t w;
    bt_str_t part;
    size_t inner;

    if (content.n == 0 || bt_json_type_of(content) != BT_JSON_ARRAY)
        return;
    bt_json_walk(&w, content);
    while (f->why == NULL && f->count < f->max && bt_json_walk_next(&w, &part, &inner))
        if (bt_json_type_of(part) == BT_JSON_OBJECT)
            see(f, part);
}

static void see_block(finder_t *f, bt_str_t block)
{
    see_image(f, block);
    if (is_one(block, BT_STR("tool_result")))
        find_in(f, bt_json_find(block, BT_STR("content")), see_image);
}

static void see_message(finder_t *f, bt_str_t message)
{
    find_in(f, bt_json_find(message, BT_STR("content")), see_chat);
}

static void see_input(finder_t *f, bt_str_t item)
{
    find_in(f, bt_json_find(item, BT_STR("content")), see_response);
    find_in(f, bt_json_find(item, BT_STR("output")), see_response);
}

static void see_turn(finder_t *f, bt_str_t message)
{
    find_in(f, bt_json_find(message, BT_STR("content")), see_block);
}

int bt_media_find(const bt_intent_t *intent, bt_media_part_t *parts, unsigned max,
                  const char **why_p)
{
    finder_t f = {.parts = parts, .max = max};
    const see_cb see = intent->route == BT_ROUTE_CHAT        ? see_message
                       : intent->route == BT_ROUTE_RESPONSES ? see_input
                       : intent->route == BT_ROUTE_MESSAGES  ? see_turn
                                                             : NULL;
    const bt_json_item_t *list = bt_intent_member(
        intent, intent->route == BT_ROUTE_RESPONSES ? BT_MEMBER_INPUT : BT_MEMBER_MESSAGES);

    if (see == NULL || list == NULL)
        return 0;
    find_in(&f, list->value, see);
    *why_p = f.why;
    return f.why != NULL ? BT_E_INVAL : (int) f.count;
}

size_t bt_media_size(const bt_media_part_t *part)
{
    return part->before.n + part->value.n + part->after.n;
}
