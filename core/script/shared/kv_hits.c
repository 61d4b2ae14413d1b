#include "script/shared/kv_hits.h"

#include "kvindex/chain.h"

#define IDS_MAX (1u << 17) /* of a prompt that are looked at */

static _Atomic(bt_kv_index_t *) the_index;
static _Thread_local struct {
    bt_kv_query_t *query;
    uint64_t serial;
} own;

void bt_kv_hits_set_index(bt_kv_index_t *index)
{
    atomic_store(&the_index, index);
}

/* One is read further than wanted, so that the prompt's last one is left out: every engine computes that, whatever its cache holds. */
static unsigned read_ids(void *user, unsigned wanted, const uint32_t **tokens_p)
{
    const unsigned most = wanted < IDS_MAX ? wanted + 1 : IDS_MAX;
    const unsigned have = bt_prompt_ids_read(user, most, tokens_p);

    return (have < IDS_MAX ? have : IDS_MAX) - (have > 0);
}

uint64_t bt_kv_hits_find(bt_prompt_ids_t *ids, bt_str_t model, bt_str_t salt)
{
    bt_kv_index_t *index = atomic_load(&the_index);

    if (index == NULL || ids == NULL ||
        (own.query == NULL && bt_kv_query_new(&own.query, index) < 0))
        return 0;
    /* vLLM's adapters are models; one that no engine has stored blocks of may as well be none. */
    const bt_str_t lora = bt_kv_index_knows_lora(index, model) ? model : BT_STR("");
    (void) bt_kv_query_find(own.query, &(bt_kv_prompt_t){read_ids, ids, bt_kv_root(lora, salt)});
    return ++own.serial;
}

bool bt_kv_hits_get(uint64_t found, uint64_t parts, bt_kv_hit_t *hit_p)
{
    const bt_kv_index_t *index = atomic_load_explicit(&the_index, memory_order_relaxed);
    const uint32_t first = (uint32_t) (parts >> 32), count = (uint32_t) parts;
    bool is_live = false;

    if (found == 0 || found != own.serial || index == NULL)
        return false;
    *hit_p = (bt_kv_hit_t){0};
    for (uint32_t part = first; part < first + count; part++) {
        const bt_kv_hit_t hit = bt_kv_query_hit(own.query, part);
        if (!bt_kv_part_is_live(index, part))
            continue;
        is_live = true;
        if (hit.tokens > hit_p->tokens)
            *hit_p = hit;
    }
    return is_live;
}

void bt_kv_hits_thread_fini(void)
{
    bt_kv_query_free(own.query);
    own.query = NULL;
    own.serial++;
}
