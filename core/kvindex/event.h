/* event.h - what an engine says of its KV cache, as bytes of msgpack: vLLM's, SGLang's and TensorRT-LLM's batches of events.
 *
 * Owner: one thread; the decoder's arrays are used again for each event.
 * Life:  init -> read, for each payload -> fini. An event is borrowed until the callback returns.
 * Flow:  payload -> libmsgpack-c's tree -> events in order, in either shape (arrays by place, maps by key) -> callback.
 * Cost:  two passes over the payload, one over its tokens. Memory is bounded by the limits below.
 *
 * Engines differ and change: fields that are not known are skipped, an event of an unknown type or of a wrong shape is counted and
 * left out, and only a payload that is no batch at all is refused.
 */
#ifndef BT_KVINDEX_EVENT_H
#define BT_KVINDEX_EVENT_H

#include "base/str.h"

#define BT_KV_PAYLOAD_MAX (4u << 20)
#define BT_KV_EVENT_HASHES_MAX 65536u
#define BT_KV_EVENT_TOKENS_MAX (1u << 20)
#define BT_KV_BLOCK_TOKENS_MAX 65536u

enum bt_kv_tier { BT_KV_DEVICE, BT_KV_HOST, BT_KV_DISK, BT_KV_TIERS };

enum bt_kv_event_kind { BT_KV_STORED, BT_KV_REMOVED, BT_KV_CLEARED };

typedef struct bt_kv_event {
    enum bt_kv_event_kind kind;
    enum bt_kv_tier tier;
    unsigned group; /* of a hybrid model's layers; 0 where the engine has one */
    bool
        is_partial; /* stored for layers that do not look at all tokens: says nothing of a prefix */
    const uint64_t *hashes; /* the engine's, taken as names */
    unsigned hash_count;
    bool has_parent;
    uint64_t parent;
    const uint32_t *
        tokens; /* block_tokens for each hash; none: blocks that were stored before, now in another tier */
    unsigned token_count, block_tokens;
    uint64_t root;          /* chain.h; of a block without parent */
    bt_str_t lora;          /* "" = none */
    const uint64_t *extras; /* for each hash; 0 = none. NULL: none at all */
} bt_kv_event_t;

typedef struct bt_kv_event_stats {
    uint64_t events, unknown, malformed;
} bt_kv_event_stats_t;

typedef struct bt_kv_decoder {
    uint64_t *hashes, *extras;
    uint32_t *tokens;
    unsigned hash_cap, extra_cap, token_cap;
    bt_kv_event_stats_t stats;
} bt_kv_decoder_t;

typedef void (*bt_kv_event_cb)(void *user, const bt_kv_event_t *event);

void bt_kv_decoder_init(bt_kv_decoder_t *d);
void bt_kv_decoder_fini(bt_kv_decoder_t *d);
/* BT_E_INVAL, BT_E_LIMIT: no batch; nothing was called. BT_E_NOMEM: events may be missing. */
int bt_kv_decode(bt_kv_decoder_t *d, bt_str_t payload, bt_kv_event_cb on_event, void *user);

#endif
