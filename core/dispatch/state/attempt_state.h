/* attempt_state.h - tasks, attempts and legs: what a request's tries are made of. Private to
 * dispatch.
 *
 * Owner: a request owns its tasks, a task its attempts, an attempt its two legs.
 * Life:  task: start -> attempts -> done. Attempt: start -> ended, by answer, failure or cancel; a
 *        prefill leg may drain behind it. Leg: idle -> running -> done, failed or cancelled; its
 *        load and its breaker are settled once.
 * Flow:  data only: leg.h, attempt.h and task.h say what is done with it, usage.h and headers.h what follows from it.
 * Cost:  everything lives in the request's arena.
 */
#ifndef BT_DISPATCH_STATE_ATTEMPT_STATE_H
#define BT_DISPATCH_STATE_ATTEMPT_STATE_H

#include "cluster/ledger.h"
#include "dispatch/state/kept.h"
#include "dispatch/state/request_state.h"
#include "http/sse.h"

/* ---- a leg: one exchange with a worker ---- */

#define BT_REPLY_MAX_BYTES                                                                         \
    ((size_t) 4 << 20) /* a prefill reply or an error body is read whole up to this */

enum bt_leg_role { BT_LEG_PREFILL, BT_LEG_DECODE, BT_LEG_SINGLE, BT_LEG_ENCODE };
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
    int rank;                     /* counted at its worker; -1 = not known to us */
    bool probe, entered, settled; /* breaker */
    bool has_place;               /* of those that --engine-request-limit leaves its worker */
    bool is_sse;
    bool is_reply_object;    /* prefill's, whole: one well-formed JSON object */
    bool reply_tokens_known; /* looked up already */
    bool reply_overflow;
    bool
        is_cached_news; /* cached_tokens are, and decode's engine is not told: bt_usage_prefill_cached */
    bool
        is_held; /* decode's answer is good so far, and waits for prefill's reply (prompt_merge.h) */
    bool is_over;        /* all of it has come meanwhile */
    bt_worker_t *worker; /* reference while the attempt lives */
    bt_ledger_entry_t prefill_load, decode_load;
    bt_timer_t first_event; /* headers may come long before the first event */
    bt_sse_t sse;
    bt_slices_t request; /* what was sent */
    bt_kept_t reply;     /* all that has come, until it is let through */
    const bt_json_members_t
        *reply_members;     /* its members, as long as bt_attempt_leg_done runs; else NULL */
    uint64_t reply_tokens;  /* bt_leg_reply_tokens */
    uint64_t cached_tokens; /* of them, in the worker's own prefix cache, as a prefill says */
    struct bt_prompt_stream *prompt; /* its events need something of that reply */
    struct bt_redact *redact;        /* decode of a hand-off, plain JSON */
    struct bt_mask *mask;            /* decode whose id has KV addresses in it */
    struct bt_tail *tail;   /* of an answer that is not streamed, where a policy observes */
    uint64_t last_bytes_ms; /* 0 = none has come */
    uint64_t first_body_us, last_body_us, events;
    const char *hinted; /* which hints its engine was given (hints.h); NULL = none */
    const char *rid;    /* its attempt's, where the engine was told it; NULL = it was not */
};

static inline bool bt_leg_running(const bt_leg_t *leg)
{
    return leg->state == BT_LEG_RUNNING;
}

/* ---- an attempt: one execution of one plan ---- */

/* A worker that was exchanged for another one within an attempt: a decode that got no byte of a
 * finished hand-off, or a prefill whose decode waited for the first byte. */
struct bt_replaced {
    struct bt_replaced *before;
    enum bt_leg_role role;
    const char *worker; /* name */
    int rc;
    uint64_t start_us, end_us; /* of its leg */
};

/* A gateway-managed attempt's room at the hub (attempt_kv.c). */
typedef struct bt_attempt_kv {
    uint64_t room;        /* the pair's name for it, which is decode's; 0 = not open */
    uint64_t source_room; /* prefill's: the same until another prefill takes over */
    bool is_moving;       /* bytes have come, or it is over: no other prefill can take over */
    bool is_done;
    uint64_t bytes, wait_us, transfer_us; /* when it is over */
} bt_attempt_kv_t;

/* A trigger's wait for decode's call (attempt_trigger.c). */
typedef struct bt_attempt_trigger {
    bt_attempt_t *attempt;
    bt_timer_t wait;
    bt_str_t said;                    /* what prefill is asked with */
    struct bt_metaserver_call *calls; /* that wait for prefill's end */
} bt_attempt_trigger_t;

/* f: NULL = it has answered. guilty: who is blamed, maybe nobody. */
typedef void (*bt_attempt_end_cb)(bt_attempt_t *a, const bt_failure_t *f,
                                  bt_worker_t *const *guilty, unsigned guilty_count);

struct bt_attempt {
    bt_task_t *task;
    bt_attempt_end_cb on_end; /* once, unless it is cancelled */
    bt_attempt_t *before;     /* the one it follows */
    unsigned number;          /* 1, 2, ... */
    enum bt_plan_kind kind;
    const bt_dialect_t *dialect; /* NULL for single */
    bt_pair_t pair;              /* references held by the legs */
    bt_leg_t legs[2];            /* [0] prefill, [1] decode or single */
    uint64_t *rooms;             /* all that were minted for it: room_count */
    bt_attempt_kv_t kv;
    bt_attempt_trigger_t *trigger; /* NULL = it is none, or has not begun */
    uint64_t called_us;            /* when decode's call came; 0 = not yet */
    const char *id;                /* X-Request-Id of both legs */
    char rid[36];
    unsigned room_count;
    uint64_t lease_until_ms; /* 0 = no clock */
    uint64_t prefill_done_us;
    unsigned engine_ids_version; /* of those that decode was told; its worker asks_bootstrap */
    bool ended, committed, recompute;
    bool pair_probe; /* it tries a pair whose rest is over */
    bool
        is_late; /* the plan left decode open: legs[1] has no worker until prefill has finished. (A trigger's legs[0]: until decode calls.) */
    uint64_t start_us, end_us; /* for records, with what it failed of and whose fault that was */
    int fail_rc;               /* 0 = it did not */
    enum bt_leg_role fail_leg;
    unsigned fail_status;
    bool guilty[2];
    const char *replay;           /* why it goes on where another ended; NULL = it does not */
    uint64_t replayed;            /* tokens of the answer that it was given */
    struct bt_replaced *replaced; /* the last one */
    bt_timer_t blame_wait;        /* decode said "KV transfer failed": whose fault is it? */
    bt_timer_t
        engine_check; /* prefill has answered and decode is silent: was it told of an engine that is no more? */
    bt_timer_t drain;      /* ended: its prefill has that long to end by itself */
    bt_failure_t *pending; /* the failure that waits for it */
};

static inline bt_leg_t *bt_attempt_prefill(bt_attempt_t *a)
{
    return &a->legs[0];
}

/* Decode or single. */
static inline bt_leg_t *bt_attempt_answer(bt_attempt_t *a)
{
    return &a->legs[1];
}

/* Does decode get what prefill has answered? */
static inline bool bt_attempt_uses_reply(const bt_attempt_t *a)
{
    return a->dialect->needs_reply || a->dialect->learns;
}

/* What headers and the access log tell: the plan and the workers of the last try. "": none. */
static inline enum bt_plan_kind bt_request_kind(const bt_request_t *r)
{
    return r->last != NULL ? r->last->kind : BT_PLAN_NONE;
}

static inline const char *bt_request_worker(const bt_request_t *r, enum bt_leg_role role)
{
    const bt_leg_t *leg = r->last != NULL ? &r->last->legs[role != BT_LEG_PREFILL] : NULL;

    return leg != NULL && leg->worker != NULL && leg->role == role ? leg->worker->name : "";
}

/* ---- a task: one unit of generation ---- */

#define BT_TRIED_MAX 16

struct bt_task {
    bt_request_t *request;
    unsigned index;
    bt_attempt_t *attempt; /* the running one */
    unsigned attempts;
    unsigned before_replay; /* of them: before the last token replay, which has tries of its own */
    bt_edits_t child;       /* edits that make this child's body; empty for an unsplit request */
    const char *suffix;     /* "-3" for child 3, "" otherwise */
    const bt_kept_choice_t *choice; /* its first plan: alternates left to try */
    const bt_kept_hints_t *hints;   /* for the legs to come; NULL = none */
    unsigned alternate_next;
    bt_worker_t **tried; /* references; room for BT_TRIED_MAX, NULL = nobody yet */
    unsigned tried_count;
    uint64_t prompt_tokens;
    unsigned prompt_count; /* as the legs of this task see it */
    bool done, committed;
    bt_failure_t *best; /* the most telling failure so far; NULL = none */
};

/* NULL: nobody was. */
static inline bool bt_task_was_tried(const bt_task_t *task, const bt_worker_t *w)
{
    for (unsigned i = 0; task != NULL && i < task->tried_count; i++)
        if (task->tried[i] == w)
            return true;
    return false;
}

#endif
