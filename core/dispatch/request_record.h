/* request_record.h - what a request keeps on its way for the decision record at its end (record/record.h). Private to dispatch.
 *
 * Owner: part of the request; rows are in its arena.
 * Life:  begin -> candidates, scores, shadow as they come up -> finish.
 * Flow:  record.c keeps what passes by -> record_json.c makes the line -> the loop's ring, and the file where it is sampled.
 * Cost:  the line is made in a buffer of the ring's that is used again: no allocation once it has its size.
 */
#ifndef BT_DISPATCH_REQUEST_RECORD_H
#define BT_DISPATCH_REQUEST_RECORD_H

#include "record/record.h"
#include "script/policy/policy.h"

struct bt_request;

/* One candidate as the policy saw it. NAN = not known then. */
struct bt_record_row {
    uint64_t id;
    enum bt_role role;
    const char *name, *url, *zone, *labels,
        *dialect; /* copies in the request's arena; NULL = none */
    int64_t prefill_tokens, decode_tokens, requests;
    double running, waiting, kv_free, ttft_ema_ms, tpot_ema_ms, age_ms;
    double score;
};

struct bt_record_rows {
    unsigned total; /* candidates there were */
    unsigned count; /* of which these many are here */
    struct bt_record_row rows[];
};

/* Strings are static or in the request's arena: what a generation owns goes with the first byte. */
typedef struct bt_record {
    bool sampled;
    uint64_t wall_ms;
    uint64_t admit_us, route_us, plan_us; /* durations; waiting included */
    const char *rule;                     /* that decided; NULL = none */
    const char *klass, *key;              /* what route said, or NULL; in the request's arena */
    const char *decided_by, *why;         /* NULL = nobody yet */
    bt_workers_t *workers;          /* keeps the choice's workers; reference, NULL = no choice */
    struct bt_record_rows *rows[3]; /* sampled: by role of the view; in the request's arena */
    bt_policy_trace_t trace;        /* sampled: scores */
    const bt_str_t *headers;        /* values of config->headers; in the request's arena */
    struct {
        const char *rule, *policy, *version; /* rule NULL = no shadow decided */
        const char *error;                   /* it failed, or answered nothing that can be */
        char prefill[64], decode[64];        /* names */
        bool same;
        uint64_t plan_us;
    } shadow;
} bt_record_t;

/* All on its loop. */
/* While it has its exchange. Requests that are refused before are never sampled, and have no tenant and no headers. */
void bt_record_begin(struct bt_request *r);
/* Before the policy is asked for a plan. Not sampled: nothing. Prepares the trace for it; rows and scores stay those of the
 * first plan, when a split request asks for more. */
void bt_record_candidates(struct bt_request *r, const bt_policy_view_t *view);
void bt_record_finish(struct bt_request *r); /* while its attempts are still there */
/* The line without its newline. is_brief: totals instead of candidates' rows. */
void bt_record_write(const struct bt_request *r, uint64_t now_us, bool is_brief, bt_text_t *out);

#endif
