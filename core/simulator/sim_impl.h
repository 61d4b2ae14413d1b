/* sim_impl.h - one run while it goes on. Private to core/simulator.
 *
 * Owner: bt_sim_run.
 * Life:  a flight from its request's arrival to its end; its attempts are one after the other.
 * Flow:  sim.c goes from event to event. intake.c has admit and route, line.c who waits for a place, attempt.c a request's way through engines, choose.c the gateway's plans, fleet.c workers and views,
 *        failure.c what dies and how the gateway hears of it.
 * Cost:  an allocation a request.
 */
#ifndef BT_SIMULATOR_SIM_IMPL_H
#define BT_SIMULATOR_SIM_IMPL_H

#include "simulator/sim.h"

#include "base/list.h"
#include "cluster/ledger.h"
#include "script/policy/policy.h"
#include "script/policy/policy_run.h"
#include "simulator/engine.h"
#include "simulator/events.h"
#include "simulator/feed.h"

#define BT_SIM_OPEN UINT32_MAX /* a job's decode, until prefill has finished */
#define BT_SIM_ATTEMPTS 3      /* a gateway's --max-attempts */
#define BT_SIM_TRIED_MAX 8

/* Where a job is. */
enum bt_sim_stage {
    BT_SIM_INTAKE,  /* nobody has it yet */
    BT_SIM_PROMPT,  /* in prefill's queue, or computed there */
    BT_SIM_AWAITED, /* decode has no room for it yet */
    BT_SIM_MOVING,  /* its KV is on both links, and has its blocks on both sides */
    BT_SIM_ANSWER   /* decode makes it, or is about to */
};

/* A leg that has entered its worker's breaker. */
typedef struct bt_sim_leg {
    bt_worker_t *worker; /* owned; NULL = none, or settled */
    bool is_probe;
    bt_ledger_entry_t load;
} bt_sim_leg_t;

/* Of a policy that has admit or route. */
typedef struct bt_sim_intake {
    bt_policy_run_t run;
    bt_policy_request_t req;
    bt_policy_vars_t vars; /* ctx.vars, to the request's end */
    bool is_routing, is_late;
    unsigned errors;
    double until_s;
    char klass[64], key[192]; /* route's word; "" = none */
} bt_sim_intake_t;

/* Where it stands in the line, if there is one. */
typedef struct bt_sim_ticket {
    bt_fair_item_t item;
    bt_policy_queueing_t word;         /* of enqueue; the item's key may lie in it */
    uint64_t timeout_ms, predicted_ms; /* predicted: 0 = not known */
    bool has_place;
    double since_s, until_s;
} bt_sim_ticket_t;

typedef struct bt_sim_line {
    bt_fair_queue_t fair;
    bt_queue_rate_t rate;
    unsigned running;
    double output_tokens; /* of an answer, as they are lately */
} bt_sim_line_t;

typedef struct bt_sim_flight {
    bt_sim_job_t job;
    bt_list_t link; /* of all, as they came */
    enum bt_sim_stage stage;
    bt_sim_leg_t prefill,
        decode; /* who serves alone has its load in both, and its breaker in decode */
    unsigned attempts;
    bt_worker_t *tried[BT_SIM_TRIED_MAX];
    unsigned tried_count;
    bt_pair_t alternates[BT_CHOICE_ALTERNATES_MAX]; /* of the plan */
    unsigned alternate_count, alternate_next;
    unsigned failure; /* the last that hit it, and one; 0 = none */
    bt_sim_intake_t *intake;
    bt_sim_ticket_t ticket;
} bt_sim_flight_t;

/* What the gateway knows of a worker by its checks. */
typedef struct bt_sim_watch {
    bool is_dead;
    bool is_silent;      /* and nobody knows it yet */
    unsigned unanswered; /* checks in a row, since then */
    unsigned oks;        /* in a row, since it was down */
    unsigned failure;    /* its last, and one; 0 = none */
    double back_s;       /* when it will be back, of one that is dead */
    unsigned switching;  /* which of the outcome's switches, and one; 0 = none */
} bt_sim_watch_t;

typedef struct bt_sim_run {
    const bt_sim_setup_t *setup;
    bt_sim_outcome_t *out;
    bt_policy_t *policy;
    bt_sim_engine_t *engines;
    bt_worker_t **workers;
    bt_sim_watch_t *watches;
    unsigned count;
    unsigned *engine_at; /* by a worker's slot */
    unsigned slot_cap;
    bt_registry_t *registry;    /* of one pool */
    struct bt_advisor *advisor; /* NULL = nobody asks */
    unsigned advisor_looks, wish_looks;
    int wish;                            /* as bt_pool_stat_t's */
    bt_worker_set_t sets[BT_LIST_COUNT]; /* who is usable */
    bt_worker_set_t left[BT_LIST_COUNT]; /* of these, whom one request has not tried */
    bt_policy_view_t view;
    uint64_t changes; /* of workers, that the view knows */
    uint64_t keys;    /* of views */
    bt_sim_events_t events;
    bt_list_t flights;
    unsigned last_failure; /* of all, and one; 0 = none yet */
    unsigned next_request;
    unsigned in_flight;
    double now_s, end_s; /* end_s: of the last answer */
    uint64_t plan_ns, plans;
    bt_sim_feed_t feed;
    bt_sim_line_t line;
    char *prompt;
    char session[16];
    int rc;
} bt_sim_run_t;

static inline uint64_t bt_sim_now_ms(const bt_sim_run_t *r)
{
    return 1000000 + (uint64_t) (r->now_s * 1e3); /* 0 means "never" in places */
}

static inline bt_sim_result_t *bt_sim_result_of(bt_sim_run_t *r, const bt_sim_request_t *request)
{
    return &r->out->results[request - r->setup->trace->requests];
}

/* ---- sim.c ---- */
void bt_sim_next_arrival(bt_sim_run_t *r);

/* ---- fleet.c ---- */
int bt_sim_fleet_init(bt_sim_run_t *r);
void bt_sim_fleet_fini(bt_sim_run_t *r);
const bt_worker_pool_t *bt_sim_pool(const bt_sim_run_t *r);
int bt_sim_fleet_switch(bt_sim_run_t *r,
                        unsigned engine); /* a worker by the other role stands for it */
static inline bool bt_sim_works(const bt_sim_run_t *r, unsigned engine)
{
    return !r->watches[engine].is_dead && !r->watches[engine].is_silent;
}
/* Candidates as they are now. */
const bt_policy_view_t *bt_sim_view(bt_sim_run_t *r);
void bt_sim_sample(bt_sim_run_t *r);

/* ---- intake.c ---- */
enum bt_sim_intake_end { BT_SIM_INTAKE_DONE, BT_SIM_INTAKE_WAITS, BT_SIM_INTAKE_REJECTED };
enum bt_sim_intake_end bt_sim_intake_begin(bt_sim_run_t *r, bt_sim_flight_t *f);
enum bt_sim_intake_end bt_sim_intake_wake(bt_sim_run_t *r, bt_sim_flight_t *f);
void bt_sim_intake_free(bt_sim_flight_t *f); /* before the policy */

/* ---- line.c ---- */
enum bt_sim_line_answer { BT_SIM_LINE_PASSES, BT_SIM_LINE_WAITS, BT_SIM_LINE_REFUSES };
void bt_sim_line_init(bt_sim_run_t *r);
void bt_sim_line_fini(bt_sim_run_t *r); /* nobody waits */
enum bt_sim_line_answer bt_sim_line_enter(bt_sim_run_t *r, bt_sim_flight_t *f);
void bt_sim_line_leave(bt_sim_run_t *r, const bt_sim_flight_t *f, bool is_served);
void bt_sim_line_tick(bt_sim_run_t *r); /* some may have waited too long */

/* ---- choose.c ---- */
/* What a hook is told; the prompt is good until the next is described. */
bt_policy_request_t bt_sim_describe(bt_sim_run_t *r, const bt_sim_flight_t *f);
void bt_sim_policy_error(bt_sim_run_t *r, const char *text);
enum bt_sim_verdict { BT_SIM_CHOSEN, BT_SIM_NOBODY, BT_SIM_NO_WORKER };
enum bt_sim_verdict bt_sim_choose(bt_sim_run_t *r, bt_sim_flight_t *f);
/* After an attempt that has failed so. */
bool bt_sim_choose_again(bt_sim_run_t *r, bt_sim_flight_t *f, int rc, const char *leg);
/* Another decode beside a prefill whose work stays good. */
bool bt_sim_choose_beside(bt_sim_run_t *r, bt_sim_flight_t *f, int rc);
/* The decode that the plan left open. */
bool bt_sim_choose_late(bt_sim_run_t *r, bt_sim_flight_t *f);
bool bt_sim_was_tried(const bt_sim_flight_t *f, const bt_worker_t *w);
void bt_sim_mark_tried(bt_sim_flight_t *f, bt_worker_t *w);
void bt_sim_forget_tried(bt_sim_flight_t *f, unsigned keep); /* but the first so many */
/* Nobody is to blame: of a pair another decode comes first, where there is one. */
void bt_sim_exclude_one(bt_sim_run_t *r, bt_sim_flight_t *f);

/* ---- attempt.c ---- */
/* Has this engine something of it? A decode that is only planned has nothing. */
bool bt_sim_is_on(const bt_sim_flight_t *f, unsigned engine);
void bt_sim_request_begin(bt_sim_run_t *r, const bt_sim_request_t *request);
void bt_sim_request_wake(bt_sim_run_t *r, bt_sim_flight_t *f);
void bt_sim_request_called(bt_sim_run_t *r, bt_sim_flight_t *f);  /* it has a place */
void bt_sim_request_refused(bt_sim_run_t *r, bt_sim_flight_t *f); /* it waits no more */
void bt_sim_step_ended(bt_sim_run_t *r, unsigned engine);
void bt_sim_job_moved(bt_sim_run_t *r, unsigned engine, bt_sim_job_t *job);
void bt_sim_engine_go_on(bt_sim_run_t *r, unsigned engine); /* it may have room, or work, again */
/* The attempt has ended so: guilty is to blame; NULL = nobody. The job is in no engine any more. */
void bt_sim_attempt_failed(bt_sim_run_t *r, bt_sim_flight_t *f, int rc, const char *leg,
                           bt_worker_t *guilty);

/* ---- failure.c ---- */
int bt_sim_failures_init(bt_sim_run_t *r);
void bt_sim_fail(bt_sim_run_t *r, unsigned engine);
void bt_sim_revive(bt_sim_run_t *r, unsigned engine);
void bt_sim_check(bt_sim_run_t *r, unsigned engine);
void bt_sim_lease_ended(bt_sim_run_t *r, unsigned engine, const bt_sim_request_t *request);
/* A connection to it was refused: the gateway takes it for down. */
void bt_sim_refused(bt_sim_run_t *r, bt_sim_flight_t *f, unsigned engine);

/* ---- switch.c ---- */
int bt_sim_switches_init(bt_sim_run_t *r);
void bt_sim_switch(bt_sim_run_t *r, unsigned engine);
void bt_sim_switch_drain(bt_sim_run_t *r, unsigned engine);
void bt_sim_switched(bt_sim_run_t *r, unsigned engine);
void bt_sim_advise(bt_sim_run_t *r);

#endif
