/* completion.c - two levels are looked into (of a chat three), by name; whatever else stands there is not touched. */
#include "api/completion.h"

struct member {
    bt_str_t name;
    size_t offset;
};

#define AT(name, field)                                                                            \
    {                                                                                              \
        BT_STR(name), offsetof(bt_completion_t, field)                                             \
    }
static const struct member of_root[] = {AT("id", id), AT("created", created), AT("model", model),
                                        AT("system_fingerprint", fingerprint)};
static const struct member of_choice[] = {AT("text", text), AT("token_ids", token_ids),
                                          AT("finish_reason", finish), AT("stop_reason", stop),
                                          AT("prompt_token_ids", prompt_ids)};
static const struct member of_message[] = {AT("role", role), AT("content", text),
                                           AT("reasoning_content", reasoning),
                                           AT("reasoning", reasoning)};
static const struct member of_usage[] = {AT("prompt_tokens", prompt_tokens),
                                         AT("completion_tokens", completion_tokens),
                                         AT("total_tokens", total_tokens)};
#undef AT
#define COUNT(members) (sizeof(members) / sizeof((members)[0]))

static void note(bt_completion_t *c, const struct member *members, size_t count,
                 const bt_json_item_t *item)
{
    for (size_t i = 0; i < count; i++)
        if (bt_json_key_eq(item, members[i].name)) {
            *(bt_str_t *) (void *) ((char *) c + members[i].offset) = item->value;
            return;
        }
}

static int read_message(bt_completion_t *c, bt_str_t message)
{
    bt_json_cursor_t members;
    bt_json_item_t item;
    int rc = bt_json_object(&members, message);

    while (rc >= 0 && (rc = bt_json_next(&members, &item)) == 1)
        note(c, of_message, COUNT(of_message), &item);
    return rc;
}

static int read_choices(bt_completion_t *c, bt_str_t choices)
{
    bt_json_cursor_t list, members;
    bt_json_item_t choice, item;
    int rc = bt_json_array(&list, choices);

    if (rc < 0 || (rc = bt_json_next(&list, &choice)) <= 0 || choice.type != BT_JSON_OBJECT)
        return rc;
    c->has_choice = true;
    rc = bt_json_object(&members, choice.value);
    while (rc >= 0 && (rc = bt_json_next(&members, &item)) == 1)
        if (item.type == BT_JSON_OBJECT &&
            (bt_json_key_eq(&item, BT_STR("delta")) || bt_json_key_eq(&item, BT_STR("message"))))
            rc = read_message(c, item.value);
        else
            note(c, of_choice, COUNT(of_choice), &item);
    return rc;
}

static int read_usage(bt_completion_t *c, bt_str_t usage)
{
    bt_json_cursor_t members;
    bt_json_item_t item, cached;
    int rc = bt_json_object(&members, usage);

    while (rc >= 0 && (rc = bt_json_next(&members, &item)) == 1) {
        note(c, of_usage, COUNT(of_usage), &item);
        if (bt_json_key_eq(&item, BT_STR("prompt_tokens_details")) && item.type == BT_JSON_OBJECT &&
            bt_json_get(item.value, BT_STR("cached_tokens"), &cached) == 0 &&
            cached.type == BT_JSON_NUMBER)
            c->cached_tokens = cached.value;
    }
    return rc;
}

static int take(bt_completion_t *c, const bt_json_item_t *item, bt_str_t *prompt_ids_p)
{
    note(c, of_root, COUNT(of_root), item);
    if (item->type == BT_JSON_ARRAY && bt_json_key_eq(item, BT_STR("choices")))
        return read_choices(c, item->value);
    if (item->type == BT_JSON_OBJECT && bt_json_key_eq(item, BT_STR("usage")))
        return read_usage(c, item->value);
    if (bt_json_key_eq(item, BT_STR("prompt_token_ids")))
        *prompt_ids_p = item->value;
    return 0;
}

int bt_completion_read(bt_completion_t *c, bt_str_t text)
{
    bt_str_t prompt_ids = BT_STR_NULL;
    bt_json_cursor_t members;
    bt_json_item_t item;
    int rc = bt_json_object(&members, text);

    *c = (bt_completion_t){.has_choice = false};
    while (rc >= 0 && (rc = bt_json_next(&members, &item)) == 1)
        rc = take(c, &item, &prompt_ids);
    if (c->prompt_ids.p == NULL)
        c->prompt_ids = prompt_ids;
    return rc < 0 ? rc : 0;
}

int bt_completion_take(bt_completion_t *c, const bt_json_members_t *members)
{
    bt_str_t prompt_ids = BT_STR_NULL;
    int rc = 0;

    *c = (bt_completion_t){.has_choice = false};
    for (unsigned i = 0; i < members->count && rc >= 0; i++)
        rc = take(c, &members->items[i], &prompt_ids);
    if (c->prompt_ids.p == NULL)
        c->prompt_ids = prompt_ids;
    return rc < 0 ? rc : 0;
}

bool bt_completion_is_recomputed(const bt_completion_t *c)
{
    return bt_str_eq(c->stop, BT_STR("\"recomputed\""));
}
