#include "script/shared/prompt_ids.h"

#include "base/json.h"

#include <stdlib.h>

#define STEP 4096u

struct bt_prompt_ids {
    bt_prompt_key_t key;
    bt_str_t prompt; /* borrowed; only compared until somebody reads on */
    size_t at;
    unsigned count, cap;
    bool has_ended;
    uint32_t *items;
};

static _Thread_local bt_prompt_ids_t own;

bool bt_prompt_is_ids(bt_str_t prompt)
{
    size_t at = 1;
    uint32_t id;

    return prompt.n > 1 && prompt.p[0] == '[' && bt_json_read_u32(prompt, &at, &id, 1) == 1;
}

uint64_t bt_prompt_number(void)
{
    static _Thread_local uint64_t last;

    return ++last;
}

static bool is_same(bt_str_t prompt, bt_prompt_key_t key)
{
    return own.key.owner == key.owner && own.key.number == key.number && own.prompt.p == prompt.p &&
           own.prompt.n == prompt.n;
}

bt_prompt_ids_t *bt_prompt_ids_of(bt_str_t prompt, bt_prompt_key_t key)
{
    if (own.count > 0 && is_same(prompt, key))
        return &own;
    if (!bt_prompt_is_ids(prompt))
        return NULL;
    if (own.cap > BT_PROMPT_IDS_KEPT)
        bt_prompt_ids_thread_fini();
    own = (bt_prompt_ids_t){
        .key = key, .prompt = prompt, .at = 1, .cap = own.cap, .items = own.items};
    return &own;
}

static bool make_room(bt_prompt_ids_t *ids, unsigned wanted)
{
    unsigned cap = ids->cap > 0 ? ids->cap : STEP;

    while (cap < wanted)
        cap *= 2;
    if (cap == ids->cap)
        return true;
    uint32_t *items = realloc(ids->items, cap * sizeof(items[0]));
    if (items == NULL)
        return false;
    ids->items = items;
    ids->cap = cap;
    return true;
}

unsigned bt_prompt_ids_read(bt_prompt_ids_t *ids, unsigned wanted, const uint32_t **ids_p)
{
    if (ids->count < wanted && !ids->has_ended) {
        const unsigned steps =
            (wanted < BT_PROMPT_IDS_MAX ? wanted + STEP - 1 : BT_PROMPT_IDS_MAX) / STEP;
        const unsigned end = steps * STEP;
        const unsigned more = make_room(ids, end) ? end - ids->count : 0;
        const unsigned count =
            bt_json_read_u32(ids->prompt, &ids->at, ids->items + ids->count, more);
        ids->has_ended = count < more || more == 0;
        ids->count += count;
    }
    *ids_p = ids->items;
    return ids->count;
}

void bt_prompt_ids_thread_fini(void)
{
    free(own.items);
    own = (bt_prompt_ids_t){.cap = 0};
}
