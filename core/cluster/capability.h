/* capability.h - from connector names to what a worker can take part in. Fail-closed.
 *
 * Owner: nobody; a constant table, the rows that --dialect-dir adds, and pure functions.
 * Life:  static; added rows stay for the process and are never changed, so any thread may read.
 * Flow:  engine + connector (or dispatch_profile) -> capability + dialect name. Anything unknown -> NONE, with the reason.
 * Cost:  start-up only.
 */
#ifndef BT_CLUSTER_CAPABILITY_H
#define BT_CLUSTER_CAPABILITY_H

#include "base/str.h"

#include <stdbool.h>

enum bt_capability { BT_CAP_NONE, BT_CAP_CONCURRENT_ENGINE_SYNC, BT_CAP_PREFILL_HANDOFF_DECODE };
enum bt_engine {
    BT_ENGINE_UNKNOWN,
    BT_ENGINE_SGLANG,
    BT_ENGINE_VLLM,
    BT_ENGINE_VLLM_ASCEND,
    BT_ENGINE_MINDIE,
    BT_ENGINE_TRTLLM
};
/* MoRIIOConnector's: decode reads from prefill, or prefill writes to decode. */
enum bt_transfer_mode { BT_TRANSFER_UNKNOWN, BT_TRANSFER_READ, BT_TRANSFER_WRITE };
enum bt_role { BT_ROLE_PREFILL, BT_ROLE_DECODE, BT_ROLE_HYBRID, BT_ROLE_ENCODE };
#define BT_ROLE_COUNT 4
/* Of a pair: its connector counts. */
static inline bool bt_role_is_of_pair(enum bt_role role)
{
    return role == BT_ROLE_PREFILL || role == BT_ROLE_DECODE;
}

const char *bt_capability_name(enum bt_capability cap); /* "concurrent_engine_sync", ... "none" */
const char *bt_engine_name(
    enum bt_engine engine); /* "sglang", "vllm", "vllm_ascend", "mindie", "trtllm", "unknown" */
const char *bt_role_name(enum bt_role role);
int bt_engine_parse(bt_str_t s,
                    enum bt_engine *engine_p);       /* any case; '-' and '_' alike; BT_E_INVAL */
int bt_role_parse(bt_str_t s, enum bt_role *role_p); /* "union" is hybrid */

/* children: of a MultiConnector, in order; one inside it stands before its own children. Its first
 * leaf serves. connector may also be a dialect's own name ("nixl", "nixl_push", "shared_cache",
 * "sglang", "trtllm", "mooncake", "offloading_p2p",
 * "baton", "p2p_nccl", "moriio") or a peer's spelling ("lmcache_pd" is refused with a reason).
 * profile: dispatch_profile or empty ("handoff", "trigger", "bootstrap", or a dialect's name). It
 * says what a connector without a row is; it never turns a refused connector into an accepted one.
 * dialect_p gets a static name or NULL; why_p a static sentence when the worker may not take part
 * in a pair: the capability is NONE. 0 always. */
int bt_capability_derive(enum bt_engine engine, bt_str_t connector, const bt_str_t *children,
                         unsigned child_count, bt_str_t profile, enum bt_capability *cap_p,
                         const char **dialect_p, const char **why_p);
#define BT_UNKNOWN_CONNECTOR "unknown connector" /* what why says of a name in no row */
#define BT_UNKNOWN_PROFILE "unknown dispatch_profile"
/* The connector itself, or the first inside a MultiConnector, however deep. */
bt_str_t bt_capability_leaf(bt_str_t connector, const bt_str_t *children, unsigned child_count);
/* A connector, or a dialect's own name, that a file of --dialect-dir serves. */
typedef struct bt_own_connector {
    const char *connector, *dialect;
    enum bt_capability cap;
    enum bt_engine engine; /* UNKNOWN = the worker says */
    bool serves_alone;     /* one of a pair also computes a whole request */
    bool is_trigger;       /* of SYNC: decode first */
} bt_own_connector_t;
/* Copies it; it goes before the table's own rows. The same again is nothing new; BT_E_INVAL: it is
 * another dialect's or capability's already; BT_E_LIMIT. */
int bt_capability_add(const bt_own_connector_t *own);
/* The accepted connector that one may have meant by this unknown name, or NULL: none is near. */
const char *bt_capability_nearest(bt_str_t connector);
/* Engine that this connector or profile belongs to; UNKNOWN when it says nothing. */
enum bt_engine bt_capability_engine(bt_str_t connector, const bt_str_t *children,
                                    unsigned child_count, bt_str_t profile);

/* What a connector demands of a pair beyond a common dialect. Ordered by strictness. */
enum bt_tp_rule {
    BT_TP_ANY,
    BT_TP_DIVIDES, /* one of P_tp, D_tp divides the other (vLLM's NIXL) */
    BT_TP_EQUAL,   /* P2pNcclConnector: rank r sends to rank r */
    BT_TP_PREFILL_MULTIPLE /* P_tp >= D_tp and P_tp % D_tp == 0 (vLLM-Ascend's Mooncake connectors, MindIE) */
};
typedef struct bt_pair_rules {
    const char *
        family; /* connectors of different families cannot read each other's KV; NULL = not known, fits all */
    enum bt_tp_rule tp;
    bool equal_version;
    bool equal_dp; /* both legs go to the same data-parallel rank */
} bt_pair_rules_t;
void bt_capability_pair_rules(enum bt_engine engine, bt_str_t connector, const bt_str_t *children,
                              unsigned child_count, const char *dialect, bt_pair_rules_t *rules_p);
/* Ways in which a pair may serve a request: bits. */
enum {
    BT_KIND_HANDOFF = 1,   /* prefill first, then decode with its reply */
    BT_KIND_BOOTSTRAP = 2, /* both at once */
    BT_KIND_TRIGGER = 4    /* decode first, prefill when decode's engine calls for it */
};
/* Of a worker with this capability and dialect, one of a pair. */
unsigned bt_capability_kinds(enum bt_capability cap, const char *dialect);
/* Why an encode worker of this connector cannot be used; NULL: it can, as far as is known. */
const char *bt_capability_encoder_refusal(bt_str_t connector);
/* Is decode sent first, and calls the gateway's metaserver for prefill? */
bool bt_capability_is_trigger(const char *dialect);
/* Are its rooms opened by this gateway, at agents of the workers that are connected to it (core/transfer)? */
bool bt_capability_is_gateway_managed(const char *dialect);
/* Are its prefills' engine ids told by a bootstrap server of theirs (vLLM's Mooncake)? */
bool bt_capability_asks_bootstrap(const char *dialect);
/* Do its legs name the KV addresses of both workers, which these register by ZeroMQ (core/transfer)? */
bool bt_capability_needs_kv_address(const char *dialect);
/* What a connector of two modes can take part in, once its mode is known; others stay what they are. */
void bt_capability_take_mode(enum bt_transfer_mode mode, enum bt_capability *cap,
                             const char **dialect);
/* A value of SGLang's --disaggregation-transfer-backend: all of them look the same from outside. */
bool bt_capability_is_sglang_backend(bt_str_t connector);
/* A lone prefill worker of this engine can serve alone (all but SGLang, and one whose connector reads its partner's address out of
 * every id). */
bool bt_capability_prefill_serves_alone(enum bt_engine engine, const char *dialect);
/* A worker of a pair computes a prompt that comes without parameters of a transfer: vLLM's family
 * over nixl, nixl_push, mooncake, offloading_p2p or shared_cache, TensorRT-LLM, and a user's dialect that says so. */
bool bt_capability_serves_alone(enum bt_engine engine, const char *dialect);

#endif
