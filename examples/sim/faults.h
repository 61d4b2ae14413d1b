/* faults.h - what a worker is told to do wrong.
 *
 * Owner: a worker's list; a job gets a copy.
 * Life:  set by POST /sim/fault or by one request's x-sim-fault header.
 * Flow:  pick at a request's arrival; the first fault that fits is used up once.
 * Cost:  nothing when the list is empty and the header absent.
 */
#ifndef SIM_FAULTS_H
#define SIM_FAULTS_H

#include "base/str.h"
#include "http/message.h"
#include "options.h"

enum sim_fault_kind {
    SIM_OK,
    SIM_REFUSE,          /* listener closed for ms */
    SIM_HANG,            /* the request is read, nothing is answered */
    SIM_HANG_HEADERS,    /* 200 and headers, then nothing */
    SIM_SLOW_FIRST_BYTE, /* ms longer */
    SIM_LATE_ANSWER,     /* KV in time; what is not streamed ms later */
    SIM_STALL,           /* silent after_chunks into the stream */
    SIM_RST,             /* connection reset there */
    SIM_FIN,             /* connection closed there, answer incomplete */
    SIM_CUT,             /* the same, in the middle of an event */
    SIM_LOSE_END,        /* the same, behind the last token */
    SIM_RECOMPUTE,       /* given up there: stop_reason recomputed */
    SIM_RECOMPUTE_AGAIN, /* the same, with the last token's id once more */
    SIM_STATUS,          /* error status */
    SIM_ERROR_BODY,      /* 200 with an error object */
    SIM_SSE_ERROR,       /* 200, SSE, error event first */
    SIM_NO_PARAMS,       /* prefill answers without kv_transfer_params */
    SIM_KV_LOST,         /* decode does not get the KV */
    SIM_EOS,             /* the first token is the last, unless ignore_eos */
    SIM_DIE,             /* the engine dies */
    SIM_NO_CALL,         /* decode never calls the metaserver */
    SIM_CALL_TWICE,      /* it calls twice, as MultiConnector does */
    SIM_BAD_CALL,        /* it says {} (0), no JSON (1), another request's id (2: after_chunks) */
    SIM_LATE_CALL,       /* it calls ms later, whatever has become of the request */
    SIM_KV_STALL,        /* prefill sends so many pages and no more */
    SIM_KV_CORRUPT       /* a byte of that page is another when it leaves */
};

typedef struct sim_fault {
    enum sim_fault_kind kind;
    unsigned times; /* uses left; 0 = gone; UINT32_MAX = for ever */
    unsigned after_chunks, status, ms;
    char path[64]; /* only requests whose path begins so; empty = inference routes */
    char with[64]; /* only requests whose body has this text; empty = all */
} sim_fault_t;

#define SIM_FAULTS_MAX 16

typedef struct sim_faults {
    sim_fault_t list[SIM_FAULTS_MAX];
    unsigned count;
} sim_faults_t;

/* Body of POST /sim/fault. 0, or -1 with a line in error. */
int sim_fault_read(bt_str_t body, sim_fault_t *fault_p, char *error, size_t error_size);
int sim_faults_add(sim_faults_t *faults, const sim_fault_t *fault);
/* The fault for this request, SIM_OK when there is none. */
sim_fault_t sim_faults_pick(sim_faults_t *faults, const bt_head_t *head, bt_str_t body,
                            enum sim_role role, bool is_inference);

#endif
