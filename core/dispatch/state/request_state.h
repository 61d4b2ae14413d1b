/* request_state.h - one client's request while it lives: what its stations know of it. Private to
 * dispatch.
 *
 * Owner: its dispatcher's loop. The exchange is borrowed until it is answered or the client is gone
 *        (then x is NULL).
 * Life:  request.c makes it and frees it, when it is answered and no leg runs any more (a prefill
 *        leg may outlive its answer).
 * Flow:  request 1-n tasks (one per prompt and sample when it must be split, else one) 1-n attempts
 *        1-2 legs (attempt_state.h)
 * Cost:  everything lives in the request's arenas. A stream keeps what its end needs: usually that has room in the request itself.
 */
#ifndef BT_DISPATCH_STATE_REQUEST_STATE_H
#define BT_DISPATCH_STATE_REQUEST_STATE_H

#include "api/intent.h"
#include "base/arena.h"
#include "base/sanitize.h"
#include "dispatch/state/dispatch_state.h"
#include "dispatch/state/request_record.h"
#include "dispatch/state/request_trace.h"
#include "generation/rules.h"

typedef struct bt_request bt_request_t;
typedef struct bt_task bt_task_t;
typedef struct bt_attempt bt_attempt_t;
typedef struct bt_leg bt_leg_t;
typedef struct bt_failure bt_failure_t;   /* leg.h */
typedef struct bt_sink_ops bt_sink_ops_t; /* sink.h */

/* What a plan says of its KV. */
typedef struct bt_kept_hints {
    bt_hints_t said;
    bt_str_t json; /* the same for records: members of an object */
} bt_kept_hints_t;

/* A policy's answer, in the room that it takes. */
typedef struct bt_kept_choice {
    bt_pair_t first;
    const bt_kept_hints_t *hints; /* NULL = none */
    unsigned alternate_count;
    bt_pair_t alternates[];
} bt_kept_choice_t;

#define BT_REQUEST_ID_MAX 128
/* A task, an attempt, and 500 bytes of text: what a stream keeps. Under ASan arenas use no room. */
#define BT_REQUEST_ROOM (BT_ASAN ? 16 : 2032)

/* The stations of a request in their order; request.c walks through them. */
enum bt_request_step {
    BT_STEP_FOLLOW_UP, /* response_affinity.c: who made the response that it follows */
    BT_STEP_RULES,     /* intake.c: which rule, which pool */
    BT_STEP_ADMIT,     /* intake.c: the policy's hooks */
    BT_STEP_ROUTE,
    BT_STEP_LIMITS,   /* reservation.c: what it may take of the limits that fit it */
    BT_STEP_QUEUE,    /* queue.c: a place in its pool */
    BT_STEP_ENCODE,   /* encode.c: its media, where the pool has encoders */
    BT_STEP_TOKENIZE, /* tokenize.c: its token ids, where engines' KV events are followed */
    BT_STEP_PLAN,     /* plan.c, fanout.c */
    BT_STEP_RUN,      /* task.c */
    BT_STEP_END       /* the client has its answer, or is gone */
};
/* What a station came to. One that waits says so, and calls ops->go_on later. */
enum bt_progress { BT_PROGRESS_NEXT, BT_PROGRESS_WAITS, BT_PROGRESS_ENDED };

/* What stations tell the request that they work for; request.c gives them. */
struct bt_request_ops {
    /* What the station came to at which the request waited. */
    void (*go_on)(bt_request_t *r, enum bt_progress progress);
    /* The first byte of the answer goes out: nobody decides about it any more, but of one that may go on elsewhere. */
    void (*begin_answer)(bt_request_t *r);
    /* The answer is out or the client gone: cancels what still runs. */
    void (*finish)(bt_request_t *r);
};

/* A request of the gateway's own: this pair serves it, and nobody is blamed for what comes of it
 * (warmup.c). */
typedef struct bt_warmup {
    bt_worker_t *prefill, *decode; /* references */
    void (*on_end)(struct bt_warmup *w, const bt_request_t *r);
} bt_warmup_t;

/* What admit said of a limit: it is so many times as high for this request's subject. */
struct bt_limit_factor {
    struct bt_limit_factor *next;
    bt_str_t limit;
    double by;
};

struct bt_request {
    struct bt_handler handler;
    const struct bt_request_ops *ops;
    bt_list_t link;
    bt_dispatcher_t *d;
    bt_exchange_t *x; /* NULL once answered or gone */
    bt_arena_t arena;
    bt_arena_t
        send_arena; /* what only making its legs' requests needs: until bt_request_drop_input */
    bt_buf_t *body_buf;
    uint64_t body_bytes; /* as it came; the bytes themselves may be gone (bt_request_drop_input) */
    bt_workers_t *workers; /* keeps pool alive */
    const bt_worker_pool_t *pool;
    enum bt_route route;
    enum bt_request_step step;
    bt_intent_t intent;
    bt_str_t path, target;
    const char *method;
    const char *id; /* the client's or ours */
    const bt_identity_t
        *identity;  /* never NULL; anonymous where nobody is asked, or until it is known */
    uint64_t owner; /* who may cancel it: bt_client_owner */
    /* The client's, where it goes through to workers: background calls need it too. */
    bt_str_t authorization;
    const bt_sink_ops_t *sink;
    void *merge;                        /* sink_merge's state */
    struct bt_token_replay *replay;     /* token_replay.h; NULL = it fails with its decode */
    struct bt_first_token *first_token; /* first_token.h; NULL = it waits for decode */
    bt_task_t *tasks;
    unsigned task_count, tasks_done;
    unsigned holds;                   /* running legs, a body that is being read off the loop */
    bool finished;                    /* the client has its answer, or is gone */
    bool counted;                     /* in shared->concurrent */
    bool head_sent;                   /* status line is out */
    bool stream_started, at_boundary; /* an event stream; its last byte sent ended an event */
    bool degraded;
    bool is_over_budget; /* it would have been tried again: --retry-budget-percent */
    bool id_registered;  /* in the shared table */
    bool has_planned;    /* a policy has been asked for it */
    bool policy_failed;  /* counted */
    bool is_default;     /* the last choice was the default one: nobody was asked, or it failed */
    bool has_shadow;     /* one is to decide beside */
    unsigned status;     /* what the client got; 0 = gone before */
    uint64_t start_us, first_byte_us, sent_bytes, events;
    unsigned attempts, kept_count;
    const char *policy_name, *policy_version; /* who was asked */
    uint64_t policy_generation;
    bt_generation_t
        *generation;      /* pinned from the beginning to the first byte; replay: to the end */
    const char *policies; /* which were asked to plan: a pool's or a rule's name */
    const char *shadow_policies;  /* likewise, who planned beside */
    const double *kept;           /* ctx.vars.kept, for observe: kept_count */
    struct bt_tokenize *tokenize; /* its token ids; NULL = no engine was asked for them */
    struct bt_encode *encode;     /* its media; NULL = it has none, or nobody to encode them */
    struct bt_limit_factor *limit_factors;
    struct bt_reservation *reservation; /* what it has of limits; NULL = none fits it */
    struct bt_queue_ticket *ticket;     /* its place in its pool, or in line; NULL = none */
    struct bt_intake *intake;           /* NULL = its policy has neither admit nor route */
    const char *pool_name; /* of the pool that a rule or route chose; NULL = by model */
    bt_rule_match_t rule;  /* as long as the generation is pinned */
    uint64_t prompt_tokens;
    uint64_t predicted,
        predicted_at; /* tokens that this worker (its id) has of it, by KV events; 0 = none */
    uint64_t prefix_space, prompt_number; /* bt_policy_request_t */
    bt_str_t session, tenant;             /* x-session-id, else the body's; bt_client_tenant */
    const char *tls_version;              /* of the client's connection; NULL = plain */
    bt_str_t peer;                        /* the client's address, where the access log names it */
    bt_record_t record;
    bt_request_trace_t *trace;      /* NULL = there are no traces */
    const bt_attempt_t *last;       /* the one that was begun last; NULL = none yet */
    const bt_kept_choice_t *choice; /* the first plan; NULL = there is none yet */
    const char *fail_leg, *fail_name;
    struct bt_response_query *response_query; /* asks who made what this follows, or NULL */
    bt_worker_t *pinned; /* /v1/responses follow-up: decode or single must be this one; reference */
    bt_warmup_t *warmup; /* NULL = a client's */
    bt_timer_t total, keepalive;
    struct bt_scan *scan;                    /* scan.c read its body, or NULL */
    bt_later_t reap;                         /* gives the memory back */
    _Alignas(16) char room[BT_REQUEST_ROOM]; /* the arena's first bytes */
};

static inline const char *bt_request_trace_id(const bt_request_t *r)
{
    return r->trace != NULL ? r->trace->id : NULL;
}

/* It will be kept, whatever becomes of it. */
static inline bool bt_request_is_traced(const bt_request_t *r)
{
    return r->trace != NULL && r->trace->is_sampled;
}

static inline void bt_request_trace_mark(const bt_request_t *r, enum bt_trace_mark what,
                                         uint64_t start_us, uint64_t us)
{
    if (r->trace != NULL)
        bt_request_trace_add(r->trace, what, start_us, us);
}

/* A log line about a request carries its id, and the worker that it is about (NULL: none). */
#define BT_REQUEST_LOG(level, component, r, worker, ...)                                           \
    do {                                                                                           \
        bt_log_context((worker), (r)->id, bt_request_trace_id(r));                                 \
        bt_log_##level((component), __VA_ARGS__);                                                  \
        bt_log_context(NULL, NULL, NULL);                                                          \
    } while (0)

/* ---- request_hold.c: who holds a request, and lets go of it ---- */
void bt_request_release(bt_request_t *r); /* one hold less: the last of a finished one frees it */
void bt_request_drop_input(bt_request_t *r); /* head, body, replies: where nobody will read them */

/* The access log's line has members: address and tokens are kept for it. */
static inline bool bt_access_log_is_json(const bt_dispatcher_t *d)
{
    return d->shared->config.access_log && d->shared->config.access_log_json;
}

#endif
