/* request_record.h - what a request keeps on its way for the decision record at its end. Private to
 * dispatch.
 *
 * Owner: part of the request; samples and shadows are in its arena.
 * Life:  begin -> candidates, scores, shadow as they come up -> finish.
 * Flow:  record.c keeps what passes by -> record_json.c makes the line -> the loop's ring, and the
 *        file where it is sampled.
 * Cost:  the line is made in the ring's text, which is used again.
 */
#ifndef BT_DISPATCH_STATE_REQUEST_RECORD_H
#define BT_DISPATCH_STATE_REQUEST_RECORD_H

#include "record/record.h"
#include "script/policy/policy.h"

struct bt_request;

/* One candidate as the policy saw it. */
struct bt_record_row {
    uint64_t id;
    bt_str_t json; /* all but the score and what closes it; in the request's arena */
    double score;  /* NAN = none */
};

struct bt_record_rows {
    unsigned total; /* candidates there were */
    unsigned count; /* of which these many are here */
    struct bt_record_row rows[];
};

/* Who planned beside. */
struct bt_record_shadow {
    const char *rule, *policy, *version;
    const char *error;            /* it failed, or answered nothing that can be */
    const char *prefill, *decode; /* names, of workers of the record's; NULL = none */
    bool same, is_single;         /* whom it chose: as the taken ones, one worker alone */
    uint64_t plan_us;
};

/* What only sampled ones keep: how it looked to the policy. Rows are by list of the view. */
struct bt_record_sample {
    struct bt_record_rows *rows[BT_LIST_COUNT];
    bt_policy_trace_t trace; /* scores */
    uint64_t seed, clock_us; /* what the first plan's chance and time were; 0 = none */
    bt_str_t reads;          /* what it read of the process's memory (JSON, members of a list) */
    bool reads_cut;          /* and there was more */
};

/* Strings are static or in the request's arena: what a generation owns goes with the first byte. */
typedef struct bt_record {
    struct bt_record_sample *sample; /* NULL = it is not sampled */
    uint64_t wall_ms;
    uint64_t admit_us, route_us, plan_us; /* durations; waiting included */
    uint64_t queue_us;                    /* in line for a place in the pool */
    struct bt_record_queue *queue;        /* NULL = it did not come to wait */
    const char *rule;                     /* that decided; NULL = none */
    const char *klass, *key;              /* what route said, or NULL; in the request's arena */
    const char *decided_by, *why;         /* NULL = nobody yet */
    const char *rests[2];    /* a pair that would have been chosen, but rests: prefill, decode */
    bt_workers_t *workers;   /* keeps the choice's workers; reference, NULL = no choice */
    const bt_str_t *headers; /* values of config->headers; in the request's arena */
    struct bt_record_shadow *shadow; /* NULL = nobody */
} bt_record_t;

/* All on its loop. */
/* While it has its exchange. Requests that are refused before are never sampled. */
void bt_record_begin(struct bt_request *r);
/* Before the policy is asked for a plan: prepares its trace. Not sampled: nothing. Rows and scores
 * stay those of the first plan, when a split request asks for more. */
void bt_record_candidates(struct bt_request *r, const bt_policy_view_t *view);
/* This pair rests (cluster/pair_breaker.h); the last one said is told. */
void bt_record_rests(struct bt_request *r, const bt_worker_t *p, const bt_worker_t *d);
void bt_record_finish(struct bt_request *r); /* while its attempts are still there */
/* What is known of a candidate now: an object that is not closed. */
void bt_record_put_worker(const bt_worker_t *w, uint64_t now_ms, bt_record_draft_t *out);
/* The line without its newline. is_brief: totals instead of candidates' rows. */
void bt_record_write(const struct bt_request *r, uint64_t now_us, bool is_brief,
                     bt_record_draft_t *out);

#endif
