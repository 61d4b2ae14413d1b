/* registry_body.h - the registry's request bodies, as values.
 *
 * Owner: nobody; pure functions.
 * Life:  of a call.
 * Flow:  body -> struct, or BT_E_INVAL and a sentence that names the member.
 * Cost:  one pass over the body; no allocation.
 */
#ifndef BT_TRANSPORT_REGISTRY_BODY_H
#define BT_TRANSPORT_REGISTRY_BODY_H

#include "base/str.h"

#define BT_KV_WORD_BYTES 65 /* a short text with its NUL */
#define BT_KV_SENTENCE_BYTES 200

typedef struct bt_kv_topology {
    uint32_t dp, cp, tp, pp; /* sizes */
    int64_t page_size;
    char kv_cache_dtype[BT_KV_WORD_BYTES]; /* "" = null */
    bool follow_bootstrap_room, enable_dsa_cache_layer_split;
} bt_kv_topology_t;

typedef struct bt_kv_rank_key {
    uint32_t dp, cp, tp, pp;
} bt_kv_rank_key_t;

typedef struct bt_kv_registration {
    bt_kv_topology_t topology;
    bt_kv_rank_key_t key;
    char ip[BT_KV_WORD_BYTES]; /* a wildcard as it came */
    uint16_t port;
    uint16_t prefill_http_port;         /* 0 = null */
    char incarnation[BT_KV_WORD_BYTES]; /* "" = none */
} bt_kv_registration_t;

/* The topology has at most max_ranks ranks, and the key is in it. */
int bt_kv_read_registration(bt_str_t body, uint32_t max_ranks, bt_kv_registration_t *r_p,
                            char *why);
int bt_kv_read_room_rank(bt_str_t body, uint32_t max_ranks, uint64_t *room_p, uint32_t *dp_rank_p,
                         char *why);
/* The array, checked: each element is a room. */
int bt_kv_read_rooms(bt_str_t body, bt_str_t *rooms_p, char *why);
bool bt_kv_topology_eq(const bt_kv_topology_t *a, const bt_kv_topology_t *b);
bool bt_kv_is_wildcard(const char *ip);

#endif
