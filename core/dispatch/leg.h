/* leg.h - one exchange with a worker, and why one failed. Private to dispatch.
 *
 * Owner: an attempt (attempt.h).
 * Life:  idle -> running -> done, failed or cancelled; its load and its breaker are settled once.
 * Flow:  leg.c starts the call, headers.c writes its head, relay.c takes what comes back, usage.c counts its tokens.
 * Cost:  per chunk no allocation, no lock, no Lua.
 */
#ifndef BT_DISPATCH_LEG_H
#define BT_DISPATCH_LEG_H

#include "cluster/ledger.h"
#include "dispatch/kept.h"
#include "dispatch/request.h"
#include "http/sse.h"

#define BT_REPLY_MAX_BYTES                                                                         \
    ((size_t) 4 << 20) /* a prefill reply or an error body is read whole up to this */

enum bt_leg_role { BT_LEG_PREFILL, BT_LEG_DECODE, BT_LEG_SINGLE };
const char *bt_leg_role_name(enum bt_leg_role role);

/* Why an attempt ended without an answer. */
struct bt_failure {
    int rc;
    enum bt_leg_role leg;
    const char *worker; /* name, or NULL */
    unsigned status;    /* upstream status, 0 = none */
    bt_head_t head;     /* upstream answer's end-to-end headers, copied; header_count 0 = none */
    bt_str_t body;      /* upstream body, copied or kept alive by the leg */
    const char *reason; /* sentence for the client when there is no upstream body */
    bool retryable;
    bool stale; /* a pooled connection died without a word: proves nothing about its worker */
};

enum bt_leg_state { BT_LEG_IDLE, BT_LEG_RUNNING, BT_LEG_DONE, BT_LEG_FAILED, BT_LEG_CANCELLED };
enum bt_leg_mode {
    BT_MODE_NONE,
    BT_MODE_COLLECT,
    BT_MODE_INSPECT_SSE,
    BT_MODE_INSPECT_JSON,
    BT_MODE_RELAY
};
/* What a leg's end says about its worker. */
enum bt_blame { BT_BLAME_OK, BT_BLAME_GUILTY, BT_BLAME_INNOCENT, BT_BLAME_CANCELLED };

struct bt_leg {
    bt_call_t call;
    bt_attempt_t *attempt;
    enum bt_leg_role role;
    enum bt_leg_state state;
    enum bt_leg_mode mode;
    bt_worker_t *worker; /* reference while the attempt lives */
    bt_ledger_entry_t prefill_load, decode_load;
    bool probe, entered, settled; /* breaker */
    bool is_sse;
    bt_timer_t first_event; /* headers may come long before the first event */
    bt_sse_t sse;
    bt_slices_t request;     /* what was sent */
    bt_kept_t reply;         /* all that has come, until it is let through */
    bool reply_tokens_known; /* looked up already */
    uint64_t reply_tokens;   /* bt_leg_reply_tokens */
    bool reply_overflow;
    struct bt_redact *redact; /* decode of a hand-off, plain JSON */
    struct bt_tail *tail;     /* of an answer that is not streamed, where a policy observes */
    uint64_t first_body_us, last_body_us, events;
    char rid[36]; /* SGLang rid, "" = none */
};

/* leg.c */
void bt_leg_init(bt_leg_t *leg, bt_attempt_t *a, enum bt_leg_role role, bt_worker_t *worker);
int bt_leg_start(bt_leg_t *leg, bt_str_t handoff_reply, bt_failure_t *f); /* < 0: f filled */
void bt_leg_settle(bt_leg_t *leg, enum bt_blame blame); /* ledger and breaker, once */
void bt_leg_cancel(bt_leg_t *leg);
void bt_leg_drop(bt_leg_t *leg); /* gives up references */
bool bt_leg_running(const bt_leg_t *leg);
uint64_t bt_leg_reply_tokens(bt_leg_t *leg); /* usage.prompt_tokens of its whole reply; 0 = none */
/* relay.c */
extern const bt_call_ops_t bt_relay_call_ops;
/* headers.c */
bt_str_t bt_headers_request(bt_leg_t *leg, const bt_edits_t *edits, size_t body_bytes,
                            bool has_body);
/* usage.c: tokens that decode has made */
void bt_usage_feed(bt_leg_t *leg, bt_arena_t *arena, const char *p, size_t n);
uint64_t bt_usage_tokens(const bt_leg_t *leg);

#endif
