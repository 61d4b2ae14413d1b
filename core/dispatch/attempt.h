/* attempt.h - one execution of one plan: two legs joined; blame, rooms at the hub, exchanging one worker of a pair, learning. Private to dispatch.
 *
 * Owner: a task, on its request's loop.
 * Life:  start -> ended, by answer, failure or cancel; a prefill leg may drain behind it.
 * Flow:  attempt.c joins two legs and calls the others; they come back by bt_attempt_fail and bt_attempt_start_decode.
 * Cost:  a gateway-managed attempt writes the hub two mails, three when its prefill is exchanged.
 */
#ifndef BT_DISPATCH_ATTEMPT_H
#define BT_DISPATCH_ATTEMPT_H

#include "dispatch/task.h"

/* A worker that was exchanged for another one within an attempt: a decode that got no byte of a finished hand-off, or a prefill
 * whose decode waited for the first byte. */
struct bt_replaced {
    struct bt_replaced *before;
    enum bt_leg_role role;
    const char *worker; /* name */
    int rc;
};

/* A gateway-managed attempt's room at the hub (attempt_kv.c). */
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

/* ---- attempt.c ---- */
int bt_attempt_start(bt_task_t *task, const bt_pair_t *pair);
void bt_attempt_cancel(bt_attempt_t *a);   /* client gone or sibling failed */
void bt_attempt_cut(bt_attempt_t *a);      /* ended: its prefill has drained long enough */
void bt_attempt_leg_commit(bt_leg_t *leg); /* leg -> attempt events */
void bt_attempt_leg_done(bt_leg_t *leg);
void bt_attempt_leg_failed(bt_leg_t *leg, const bt_failure_t *f);
void bt_attempt_resume(bt_attempt_t *a);
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

/* The one way to fail; nothing when it has ended. */
void bt_attempt_fail(bt_attempt_t *a, const bt_failure_t *f, bt_worker_t *const *guilty,
                     unsigned guilty_count);
/* The same, blaming whom the failure is to be blamed on. */
void bt_attempt_fail_leg(bt_leg_t *leg, const bt_failure_t *f);
/* The hand-off's second half. */
void bt_attempt_start_decode(bt_attempt_t *a);
/* The pair is another one: so do headers and the access log say. */
void bt_attempt_note_pair(bt_attempt_t *a);
/* Mints one more room, as the pair's prefill wants it; closed with the others. */
int bt_attempt_mint_room(bt_attempt_t *a, uint64_t *room_p);

/* ---- blame.c ---- */
/* Does this failure prove something about the worker of its leg? */
bool bt_blame_is_guilty(const bt_failure_t *f);
/* Could it be either's? */
bool bt_blame_is_ambiguous(const bt_leg_t *leg, const bt_failure_t *f);
/* Decode's failure, of which the hub may know more. */
bool bt_blame_is_for_hub(const bt_attempt_t *a, const bt_failure_t *f);
/* It could be either's: fills guilty (2) with those that failed so with another partner before, and returns how many. */
unsigned bt_blame_either(const bt_attempt_t *a, bt_worker_t **guilty);
/* Fills guilty (2) and returns how many. */
unsigned bt_blame_find(const bt_leg_t *leg, const bt_failure_t *f, bt_worker_t **guilty);

/* ---- learn.c: what replies teach ---- */
void bt_learn_agent(bt_leg_t *leg);      /* nixl_push: where prefill's KV agent lives */
void bt_learn_token_size(bt_leg_t *leg); /* bytes of a prompt per token */

/* ---- replacement.c: false = it may not be, or there is nobody else: nothing has changed ---- */
/* Another decode for a finished prefill. */
bool bt_replacement_decode(bt_attempt_t *a, const bt_failure_t *f);
/* Another prefill for a decode that waits (gateway-managed dialects). True: the attempt goes on, or has failed with the new one. */
bool bt_replacement_prefill(bt_attempt_t *a, const bt_failure_t *f, bool is_guilty);

/* ---- attempt_kv.c: its room at the hub; nothing where the dialect is not gateway-managed ---- */
int bt_attempt_kv_open(bt_attempt_t *a);
void bt_attempt_kv_close(bt_attempt_t *a, bool is_abort, const char *reason);
/* The pair's prefill is another one, and calls the room another name. */
int bt_attempt_kv_repair(bt_attempt_t *a, uint64_t source_room);

/* ---- background_call.c: calls nobody waits for ---- */
size_t bt_background_call_bytes(void); /* for the pool */
void bt_background_call_abort(bt_leg_t *leg);
void bt_background_call_release(bt_attempt_t *a);

#endif
