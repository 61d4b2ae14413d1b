/* kv_events_fuzz.c - payloads that an engine, or anybody in its place, could have sent.
 *
 * An input is a payload, then, behind each 0xc1 (a byte that msgpack never uses), another one: they go to two parts in turn, so that events
 * meet what others left. Whatever comes, counts stay true, the bound holds, and nobody is said to hold more than there is.
 */
#include "kvindex/index.h"
#include "kvindex/query.h"

#include <stdlib.h>

#define CHECK(cond) ((cond) ? (void) 0 : abort())
#define MAX_HELD 64u
#define PROMPT 256u

static uint32_t tokens[PROMPT];

struct target {
    bt_kv_index_t *index;
    uint32_t part;
};

static void on_event(void *user, const bt_kv_event_t *event)
{
    const struct target *to = user;

    CHECK(event->hash_count <= BT_KV_EVENT_HASHES_MAX);
    CHECK(event->token_count == 0 || event->token_count == event->hash_count * event->block_tokens);
    for (unsigned i = 0; i < event->token_count && i < PROMPT; i++)
        tokens[i] = event->tokens[i];
    bt_kv_part_apply(to->index, to->part, event);
}

static unsigned read_tokens(void *user, unsigned wanted, const uint32_t **tokens_p)
{
    (void) user;
    *tokens_p = tokens;
    return wanted < PROMPT ? wanted : PROMPT;
}

static void check(bt_kv_index_t *index, bt_kv_query_t *query)
{
    const unsigned longest = bt_kv_query_find(query, &(bt_kv_prompt_t){read_tokens, NULL, 0});
    bt_kv_index_stats_t s;

    bt_kv_index_stats(index, &s);
    CHECK(s.held <= MAX_HELD && s.blocks <= s.held && longest <= s.blocks);
    for (uint32_t part = 1; part <= 2; part++) {
        const bt_kv_hit_t hit = bt_kv_query_hit(query, part);
        CHECK(hit.tokens <= PROMPT && hit.host + hit.disk <= hit.blocks);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct target to = {.part = 1};
    bt_kv_decoder_t decoder;
    bt_kv_query_t *query;
    uint32_t first;

    CHECK(bt_kv_index_new(&to.index,
                          &(bt_kv_index_config_t){.max_held = MAX_HELD, .max_parts = 2}) == 0);
    CHECK(bt_kv_part_open(to.index, 2, &first) == 0 && bt_kv_query_new(&query, to.index) == 0);
    bt_kv_decoder_init(&decoder);
    for (size_t from = 0, to_end; from <= size; from = to_end + 1) {
        for (to_end = from; to_end < size && data[to_end] != 0xc1; to_end++)
            ;
        (void) bt_kv_decode(&decoder, (bt_str_t){(const char *) data + from, to_end - from},
                            on_event, &to);
        to.part = 3 - to.part;
        check(to.index, query);
    }
    bt_kv_part_close(to.index, 1, 2);
    bt_kv_index_stats_t s;
    bt_kv_index_stats(to.index, &s);
    CHECK(s.held == 0 && s.blocks == 0 && s.names == 0);
    bt_kv_decoder_fini(&decoder);
    bt_kv_query_free(query);
    bt_kv_index_free(to.index);
    return 0;
}
