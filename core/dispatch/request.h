/* request.h - one client's request while it lives: intent, tasks, attempts, legs. Private to dispatch.
 *
 * Owner: its dispatcher's loop. The exchange is borrowed until it is answered or the client is gone (then x is NULL).
 * Life:  begin -> tasks run -> answered -> freed when no leg runs any more (a prefill leg may outlive its answer).
 * Flow:  request 1-n tasks (one per prompt and sample when it must be split, else one) 1-n attempts 1-2 legs.
 *        leg.c moves bytes, attempt.c joins two legs, task.c tries again, sink_*.c writes the client's answer.
 * Cost:  everything lives in the request's arena.
 */
#ifndef BT_DISPATCH_REQUEST_H
#define BT_DISPATCH_REQUEST_H

#include "api/intent.h"
#include "base/arena.h"
#include "cluster/ledger.h"
#include "dispatch/dispatcher.h"
#include "dispatch/kept.h"
#include "dispatch/request_record.h"
#include "generation/rules.h"
#include "generation/wait.h"
#include "http/sse.h"

typedef struct bt_request bt_request_t;
typedef struct bt_task bt_task_t;
typedef struct bt_attempt bt_attempt_t;
typedef struct bt_leg bt_leg_t;

#define BT_REQUEST_ID_MAX 128
#define BT_TRIED_MAX 16
#define BT_REPLY_MAX_BYTES                                                                         \
    ((size_t) 4 << 20) /* a prefill reply or an error body is read whole up to this */

enum bt_leg_role { BT_LEG_PREFILL, BT_LEG_DECODE, BT_LEG_SINGLE };
const char *bt_leg_role_name(enum bt_leg_role role);

/* Why an attempt ended without an answer. */
typedef struct bt_failure {
    int rc;
    enum bt_leg_role leg;
    const char *worker; /* name, or NULL */
    unsigned status;    /* upstream status, 0 = none */
    bt_head_t head;     /* upstream answer's end-to-end headers, copied; header_count 0 = none */
    bt_str_t body;      /* upstream body, copied or kept alive by the leg */
    const char *reason; /* sentence for the client when there is no upstream body */
    bool retryable;
    bool stale; /* a pooled connection died without a word: proves nothing about its worker */
} bt_failure_t;

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

/* A worker that was exchanged for another one within an attempt: a decode that got no byte of a finished hand-off, or a prefill
 * whose decode waited for the first byte. */
struct bt_replaced {
    struct bt_replaced *before;
    enum bt_leg_role role;
    const char *worker; /* name */
    int rc;
};

/* A steered attempt's room at the hub (attempt_kv.c). */
typedef struct bt_attempt_kv {
    uint64_t room;        /* the pair's name for it, which is decode's; 0 = not open */
    uint64_t source_room; /* prefill's: the same until another prefill takes over */
    bool is_moving;       /* bytes have come, or it is over: no other prefill can take over */
    bool is_done;
    uint64_t bytes, wait_us, transfer_us; /* when it is over */
} bt_attempt_kv_t;

struct bt_attempt {
    bt_task_t *task;
    bt_attempt_t *before; /* the one it follows */
    unsigned number;      /* 1, 2, ... */
    enum bt_plan_kind kind;
    const bt_dialect_t *dialect; /* NULL for single */
    bt_pair_t pair;              /* references held by the legs */
    bt_leg_t legs[2];            /* [0] prefill, [1] decode or single */
    uint64_t *rooms;             /* all that were minted for it */
    unsigned room_count;
    bt_attempt_kv_t kv;
    char id[BT_REQUEST_ID_MAX + 24]; /* X-Request-Id of both legs */
    char rid[36];
    uint64_t lease_until_ms; /* 0 = no clock */
    uint64_t prefill_done_us;
    bool ended, committed, recompute;
    uint64_t start_us, end_us; /* for records, with what it failed of and whose fault that was */
    int fail_rc;               /* 0 = it did not */
    enum bt_leg_role fail_leg;
    unsigned fail_status;
    bool guilty[2];
    struct bt_replaced *replaced; /* the last one */
    bt_timer_t blame_wait;        /* decode said "KV transfer failed": whose fault is it? */
    bt_timer_t drain;             /* ended: its prefill has that long to end by itself */
    bt_failure_t pending;         /* the failure that waits for it */
};

struct bt_task {
    bt_request_t *request;
    unsigned index;
    bt_attempt_t *attempt; /* the running one */
    unsigned attempts;
    bt_edits_t child;   /* edits that make this child's body; empty for an unsplit request */
    const char *suffix; /* "-3" for child 3, "" otherwise */
    bt_choice_t choice; /* policy's last answer: alternates left to try */
    unsigned alternate_next;
    bt_worker_t *tried[BT_TRIED_MAX]; /* references */
    unsigned tried_count;
    uint64_t prompt_tokens;
    unsigned prompt_count; /* as the legs of this task see it */
    bool done, committed;
    bt_failure_t best; /* the most telling failure so far */
};

/* Where a task's answer goes. Calls come from one running attempt at a time. */
typedef struct bt_sink_ops {
    void (*head)(bt_task_t *task, const bt_head_t *head, bool is_sse);
    void (*data)(bt_task_t *task, bt_buf_t *buf, const char *p, size_t n);
    void (*end)(bt_task_t *task);
    /* before or after head; the task is over */
    void (*fail)(bt_task_t *task, const bt_failure_t *failure);
    bool (*blocked)(bt_task_t *task);
} bt_sink_ops_t;

/* The stations of a request in their order; request.c walks through them. */
enum bt_request_step {
    BT_STEP_FOLLOW_UP, /* response_affinity.c: who made the response that it follows */
    BT_STEP_RULES,     /* intake.c: which rule, which pool */
    BT_STEP_ADMIT,     /* intake.c: the policy's hooks */
    BT_STEP_ROUTE,
    BT_STEP_PLAN, /* plan.c, fanout.c */
    BT_STEP_RUN,  /* task.c */
    BT_STEP_END   /* the client has its answer, or is gone */
};
/* What a station came to. One that waits says so, and calls bt_request_go_on later. */
enum bt_progress { BT_PROGRESS_NEXT, BT_PROGRESS_WAITS, BT_PROGRESS_ENDED };

/* What x->user points to: whoever answers an exchange later hears of its client through this. */
struct bt_handler {
    void (*gone)(struct bt_handler *h);
    void (*drain)(struct bt_handler *h); /* may be NULL */
};

/* admit and route of one request, and ctx.vars, which plan and fallback see too. */
struct bt_intake {
    const struct bt_pool_policies *policies; /* of the pinned generation; `both` has the hooks */
    bt_policy_run_t run;
    bt_policy_vars_t vars;
    bt_policy_request_t req;
    bt_wait_t *wait; /* what the hook waits for now, or NULL */
    uint64_t since_us, until_ms;
    bool is_late; /* its deadline is over, and it has been told */
};

struct bt_request {
    struct bt_handler handler;
    bt_list_t link;
    bt_dispatcher_t *d;
    bt_exchange_t *x; /* NULL once answered or gone */
    bt_arena_t arena;
    bt_buf_t *body_buf;
    uint64_t body_bytes;   /* as it came; the bytes themselves may be gone (bt_request_drop_body) */
    bt_workers_t *workers; /* keeps pool alive */
    const bt_worker_pool_t *pool;
    enum bt_route route;
    enum bt_request_step step;
    bt_intent_t intent;
    bt_str_t path, target;
    const char *method;
    char id[BT_REQUEST_ID_MAX + 1];
    bool id_registered;         /* in the shared table */
    const bt_client_key_t *key; /* NULL = none is asked for */
    uint64_t owner;             /* who may cancel it: bt_client_owner */
    bt_str_t
        authorization; /* the client's, where it goes through to workers: background calls need it too */
    const bt_sink_ops_t *sink;
    void *merge; /* sink_merge's state */
    bt_task_t *tasks;
    unsigned task_count, tasks_done;
    unsigned holds;                   /* running legs, a body that is being read off the loop */
    bool finished;                    /* the client has its answer, or is gone */
    bool counted;                     /* in shared->concurrent */
    bool head_sent;                   /* status line is out */
    bool stream_started, at_boundary; /* an event stream; its last byte sent ended an event */
    bool degraded;
    bool expired;    /* total deadline hit */
    unsigned status; /* what the client got; 0 = gone before */
    uint64_t start_us, first_byte_us, sent_bytes, events;
    unsigned attempts;
    const char *policy_name, *policy_version;
    uint64_t policy_generation;
    bt_generation_t *generation; /* pinned from the beginning to the first byte */
    const char
        *policies; /* which of the generation's were asked to plan: a pool's or a rule's name */
    const char *shadow_policies;     /* likewise, who planned beside */
    double kept[BT_POLICY_KEPT_MAX]; /* ctx.vars.kept, for observe */
    unsigned kept_count;
    struct bt_intake *intake; /* NULL = its policy has neither admit nor route */
    const char *pool_name;    /* of the pool that a rule or route chose; NULL = by model */
    bt_rule_match_t rule;     /* as long as the generation is pinned */
    bool has_shadow;          /* one is to decide beside */
    uint64_t prompt_tokens;
    bt_str_t session, tenant; /* x-session-id, else the body's; bt_client_tenant */
    bt_record_t record;
    char worker_names[3][64];  /* names for headers and log, by leg role */
    const bt_choice_t *choice; /* the first plan; NULL = there is none yet */
    enum bt_plan_kind kind;
    const char *fail_leg, *fail_name;
    struct bt_response_query
        *response_query; /* the store is asked who made what this follows; NULL = it is not */
    bt_worker_t *pinned; /* /v1/responses follow-up: decode or single must be this one; reference */
    bt_timer_t total, keepalive;
    struct bt_scan *scan; /* scan.c read its body, or NULL */
    bt_later_t reap;      /* gives the memory back */
};

/* request.c */
bt_request_t *bt_request_new(bt_dispatcher_t *d, bt_exchange_t *x,
                             enum bt_route route); /* or NULL */
void bt_request_finish(
    bt_request_t *r); /* the answer is out or the client gone: cancel what still runs */
void bt_request_cut(bt_request_t *r);       /* finished: stop what still drains */
void bt_request_drop_body(bt_request_t *r); /* where nobody will read it again */
void bt_request_release(bt_request_t *r);   /* one hold less; may free r */
void bt_request_note_first_byte(
    bt_request_t *r); /* the client has some of its answer: no other attempt can come */
/* Its body has been read: from its first station on. */
void bt_request_start(bt_request_t *r);
/* What the station came to at which it waited. */
void bt_request_go_on(bt_request_t *r, enum bt_progress progress);
/* request_pool.c */
const bt_worker_pool_t *bt_request_pool(const bt_request_t *r);
bool bt_request_find_pool(bt_request_t *r);
/* To the worker of this id, or at this URL where that is known, and its pool. False: it is not there. */
bool bt_request_pin(bt_request_t *r, uint64_t worker_id, bt_str_t url);
bool bt_request_refresh_pool(bt_request_t *r); /* false: no pool of today serves it */
bool bt_request_set_pool(bt_request_t *r, const char *name);
/* dispatcher.c */
bt_wait_ctx_t bt_dispatcher_wait_ctx(const bt_dispatcher_t *d);
/* response_affinity.c */
enum bt_progress bt_response_affinity_find(bt_request_t *r);
void bt_response_affinity_end(bt_request_t *r); /* gives up asking */
void bt_response_affinity_note(bt_request_t *r, bt_str_t id, const bt_worker_t *worker);
/* usage.c: tokens that decode has made */
void bt_usage_feed(bt_leg_t *leg, bt_arena_t *arena, const char *p, size_t n);
uint64_t bt_usage_tokens(const bt_leg_t *leg);
/* intake.c */
enum bt_progress bt_intake_rules(bt_request_t *r);
enum bt_progress bt_intake_admit(bt_request_t *r);
enum bt_progress bt_intake_route(bt_request_t *r);
void bt_intake_end(bt_request_t *r); /* gives up what waits, and ctx.vars */
/* policy_call.c */
const struct bt_pool_policies *bt_policy_call_policies(
    bt_request_t *r); /* NULL = none for its pool */
void bt_policy_call_rules(bt_request_t *r);
bt_policy_request_t bt_policy_call_describe(bt_request_t *r); /* borrows from r */
int bt_policy_call_plan(bt_request_t *r, const bt_policy_view_t *view, bt_choice_t *choice_p);
int bt_policy_call_fallback(bt_task_t *task, const bt_failure_t *f, const bt_policy_view_t *view,
                            bt_choice_t *choice_p);
void bt_policy_call_shadow(bt_request_t *r, const bt_policy_view_t *view, const bt_choice_t *taken);
void bt_policy_call_error(bt_request_t *r, const struct bt_pool_policies *p,
                          const bt_policy_t *policy, const char *text);
void bt_policy_call_invalid(bt_request_t *r); /* it named workers that cannot serve */
void bt_policy_call_end(bt_request_t *r);     /* lets go of the generation */
/* candidates.c */
/* The pool that part `pool` of the bundle plans for; NULL: there is none. A variant that names no pool serves any: the first. */
const bt_worker_pool_t *bt_candidates_pool(const bt_dispatcher_t *d,
                                           const bt_policy_bundle_t *bundle, unsigned pool);
const struct bt_candidates *bt_candidates_get(bt_dispatcher_t *d, const bt_worker_pool_t *pool,
                                              bt_str_t model);
/* For generations (user: the dispatcher): copies of the sets that the pool's requests choose from now. */
bt_warm_t *bt_candidates_warm(void *user, const bt_policy_bundle_t *bundle, unsigned pool);
/* access_log.c */
void bt_access_log(bt_request_t *r, uint64_t us);
/* observe.c */
void bt_observe_request(bt_request_t *r, uint64_t us);
/* task.c */
void bt_task_start(bt_task_t *task, const bt_choice_t *choice);
void bt_task_attempt_failed(bt_task_t *task, bt_attempt_t *a, const bt_failure_t *f,
                            bt_worker_t *const *guilty, unsigned guilty_count);
void bt_task_attempt_done(bt_task_t *task);
void bt_task_mark_tried(bt_task_t *task, bt_worker_t *w); /* NULL is fine */
void bt_task_cancel(bt_task_t *task);
/* plan.c */
int bt_plan_choose(bt_request_t *r, bt_choice_t *choice_p, char *why, size_t why_size);
int bt_plan_next(bt_task_t *task, const bt_failure_t *f, bt_choice_t *choice_p);
/* Another decode, not tried yet, for a finished prefill, or NULL. */
bt_worker_t *bt_plan_other_decode(bt_task_t *task, bt_worker_t *prefill);
/* Another prefill, not tried yet, for the decode of this pair. */
bool bt_plan_other_prefill(bt_task_t *task, const bt_pair_t *pair, bt_pair_t *pair_p);
enum bt_plan_kind bt_plan_kind_of(bt_dispatcher_t *d, const bt_pair_t *pair,
                                  const bt_dialect_t **dialect_p);
/* attempt.c */
int bt_attempt_start(bt_task_t *task, const bt_pair_t *pair);
void bt_attempt_cancel(bt_attempt_t *a);   /* client gone or sibling failed */
void bt_attempt_cut(bt_attempt_t *a);      /* ended: its prefill has drained long enough */
void bt_attempt_leg_commit(bt_leg_t *leg); /* leg -> attempt events */
void bt_attempt_leg_done(bt_leg_t *leg);
void bt_attempt_leg_failed(bt_leg_t *leg, const bt_failure_t *f);
void bt_attempt_resume(bt_attempt_t *a);
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
unsigned bt_headers_answer(bt_request_t *r, const bt_head_t *from, bt_header_t *out, unsigned max);
bool bt_headers_id_ok(bt_str_t id);
/* background_call.c: calls nobody waits for */
size_t bt_background_call_bytes(void); /* for the pool */
void bt_background_call_abort(bt_leg_t *leg);
void bt_background_call_release(bt_attempt_t *a);
/* answer.c: errors in the client's own form */
void bt_answer_error(bt_request_t *r, unsigned status, const char *type, const char *message,
                     unsigned retry_after_s);
void bt_answer_failure(bt_request_t *r, const bt_failure_t *f);
bt_str_t bt_answer_event(bt_request_t *r, const bt_failure_t *f);
unsigned bt_answer_status(int rc);
/* sink_direct.c / sink_merge.c */
extern const bt_sink_ops_t bt_sink_direct, bt_sink_merge;
int bt_sink_merge_init(bt_request_t *r);
void bt_sink_merge_fini(bt_request_t *r);
/* fanout.c */
bool bt_fanout_needed(const bt_request_t *r, const bt_dialect_t *dialect);
int bt_fanout_make(bt_request_t *r, const bt_dialect_t *dialect, const char **why_p);
/* own_routes.c: routes that are not a task. True = handled. */
bool bt_own_routes_handle(bt_dispatcher_t *d, bt_exchange_t *x, enum bt_route route);
/* ids.c / response_owners.c */
bool bt_ids_add(struct bt_id_table *t, bt_str_t id);
void bt_ids_remove(struct bt_id_table *t, bt_str_t id);
bool bt_ids_has(struct bt_id_table *t, bt_str_t id);
/* Could the live request of another client send this id on a retry (-a2) or for a child (-1)? */
bool bt_ids_derives(struct bt_id_table *t, bt_str_t id);
struct bt_id_table *bt_ids_new(void);
void bt_ids_free(struct bt_id_table *t);
struct bt_response_owners *bt_response_owners_new(unsigned max);
void bt_response_owners_free(struct bt_response_owners *a);
void bt_response_owners_put(struct bt_response_owners *a, bt_str_t key, uint64_t worker_id);
uint64_t bt_response_owners_get(struct bt_response_owners *a, bt_str_t key); /* 0 = unknown */

#endif
