/* record.h - decision records: what a request was, who could have served it, who did, how long each phase took, who was blamed.
 *
 * Owner: what a line is made of is part of a request (dispatch/state/request_record.h). The ring of one loop's last records is its dispatcher's; the file is the process's
 *        and written by a thread of its own.
 * Life:  begin (is it sampled?) -> candidates, scores, shadow as they come up -> finish: one line of JSON into the ring, and
 *        into the file when it is sampled.
 * Flow:  every request leaves a line in the ring (the last BT_RECORD_RING of each loop: GET /admin/explain/<id>); sampled ones
 *        (--record-sample) carry their candidates and scores and go to --record-file, which is capped: at
 *        --record-max-bytes it becomes FILE.1 and a new one begins. `baton replay` reads these files.
 * Cost:  unsampled: a quarter of a microsecond at the end, no lock. Sampled: a copy of at most BT_RECORD_ROWS rows a role, one lock.
 *        A writer that is behind drops records and counts them; it never makes a request wait.
 *
 * One line (members that do not apply are left out; times in milliseconds):
 *   {"v":1,"id":"..","at":"2026-01-31T12:00:00.000Z","route":"completions","path":"/v1/completions","model":"m","stream":true,
 *    "n":1,"prompt_tokens":12,"prompt_bytes":48,"session":"s","tenant":"t","identity":"bk_a","class":"c","key":"k","trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","pool":"default",
 *    "rule":"canary/2","policy":"least_load","policy_version":"1","generation":3,
 *    "seed":"c3a1f0e2b4d59687","clock_us":812345678,"reads":[["window",12]],"decided_by":"policy","why":"..","rests":{"prefill":"p1","decode":"d1"},
 *    "candidates":{"prefill":{"total":2,"rows":[{"id":1,"name":"p1","url":"http://h:1","role":"prefill","zone":"a","labels":{"k":"v"},
 *      "engine":"vllm","connector":"NixlConnector","version":"0.32.0","dialect":"nixl","dp_size":2,"tp_size":4,"pp_size":2,"prefill_tokens":0,"decode_tokens":0,"requests":0,"transfer_bytes":0,"prefix_cached":40,"running":0,"waiting":0,"kv_free":0.5,
 *      "ttft_ema_ms":20,"tpot_ema_ms":5,"age_ms":300,"score":12.5}]},"decode":{..},"hybrid":{..},
 *      "single":{"total":1,"rows":[{"id":1}]}},
 *    "plan":{"kind":"handoff","prefill":"p1","decode":"d2","alternates":[{"prefill":"p1","decode":"d1"}],"hints":{"priority":10}},
 *    "queue":{"class":"normal","share":"t","weight":1,"cost":300,"ahead_requests":9,"ahead_tokens":2700,
 *      "behind":[{"share":"u","tokens":1500}],"predicted_ms":800,"passed":7,"end":"called"},
 *    "encode":{"parts":[{"n":0,"worker":"e1","end_ms":9.1,"replaced":[{"encode":"e0","failure":"reset"}]}],"start_ms":0.1,"end_ms":9.2},
 *    "attempts":[{"n":1,"kind":"handoff","prefill":"p1","decode":"d2","start_ms":0.2,"prefill_ms":31,"first_byte_ms":40,
 *      "end_ms":90,"failure":"reset","leg":"decode","status":0,"guilty":["d2"]}],
 *    "phases_ms":{"admit":0.1,"route":0.1,"plan":0.01,"prefill":31,"kv_wait":9,"first_byte":40,"last_byte":90},
 *    "status":200,"error":"reset","bytes_in":120,"bytes_out":900,"events":17,"headers":{"x-tier":"gold"},
 *    "shadow":{"rule":"try","policy":"candidate","version":"2","prefill":"p2","decode":"d1","same":false,"plan_ms":0.01}}
 *
 * member            what it is, and when it is left out
 * v, id, at         1; the request's id; when it came
 * route, path, n    always; path without its query, cut at 256 bytes
 * model, session, tenant, identity, class, key     as the client or route said it, cut at 128 bytes; left out when empty. What was cut ends
 *                   in "..."
 * token_source           who has counted them, where they are no estimate: client, engine
 * stream, prompt_tokens, prompt_bytes    always; tokens are what the policy was told, 0 when it was never asked
 * trace_id          where there are traces (--trace-endpoint); whether this one was kept is not known here
 * pool, rule, policy, policy_version, generation    who was asked; left out when nobody was
 * seed, clock_us    sampled requests: the first plan's chance (of all random choices and ties) and its clock, by which
 *                   `baton replay` makes the same decision again
 * reads, reads_cut  sampled: what its native functions answered from the process's memory (counters, windows, turns, the fleet's
 *                   state; of prompts a hash of their beginning, and who has how much of it), in order; reads_cut: there was more
 *                   than 4 KiB, or a table
 * decided_by        policy, default (why says what was wrong with the policy's answer) or nobody (no plan: 4xx or 503)
 * rests             a pair that the policy named, or the default choice passed over, because it rests: its transfers keep failing
 * candidates        sampled requests that got as far as a plan; rows: the first BT_RECORD_ROWS of each role (none when the
 *                   line would be above 64 KiB in the ring); what the policy saw as nil is left out of a row; score: the last
 *                   one that a native function or baton.note_score gave; a worker
 *                   of several lists has its row in the first, and its id (and score) in the others
 * plan, plan.alternates    the first plan; who serves alone is "worker":"w1" instead, there and in attempts
 * plan.hints        what the policy said of the prompt's KV: priority, kv_hints (its actions, at most 4 KiB); left out where it said nothing
 * over_budget       true: it would have been tried again (--retry-budget-percent); left out otherwise
 * queue             requests that came to wait (--queue-size). Of then: who waited in its class and above, the tokens that were to be served
 *                   before its own (cost), and in behind whose they were, three at most; predicted_ms: how long it would wait, left out when
 *                   that was not known. passed: how many were called while it waited. end: called, full, put_out (by others with less in
 *                   line), too_long (the prediction was above what it may wait), timeout, gone. How long it waited is phases_ms.queue
 * encode            of a chat with media, where the pool has encode workers: each part, who has encoded it, who has not ("replaced",
 *                   newest first); "failure" when the request ended there
 * attempts          of all tasks, at most 64 ("attempts_total" says how many there were, when more); "child":3 in a split
 *                   request; *_ms of an attempt count from the request's arrival: prefill_ms is when prefill was done,
 *                   callback_ms when decode called for it (a trigger)
 * attempts[].failure, leg, status, guilty    of failed ones; status 0: no answer; guilty: who is blamed, maybe nobody
 * attempts[].replay, replayed_tokens    it goes on where the one before ended, "recomputed" or "lost", after so many tokens of the
 *                   answer; left out otherwise
 * attempts[].prefill_rank, decode_rank    data-parallel ranks that the plan named, or that were chosen for a bootstrap
 * attempts[].prefill_hints, decode_hints    which of them the engines were given ("priority", "kv_hints", "priority,kv_hints"); who serves alone is
 *                   in the second. Left out: none, because nobody gave any or the engine takes none
 * attempts[].replaced   [{"decode":"d1","failure":"connect"}]: decode workers that a finished prefill could not be handed to;
 *                   [{"prefill":"p1","failure":"reset"}]: prefill workers that another one was taken for while decode waited
 * attempts[].kv     {"bytes":65536,"wait_ms":30,"transfer_ms":1.2}: of gateway-managed rooms that were over before the answer; wait: from
 *                   decode's announcement to the first byte, transfer: from there to the last, of the receiver that took longest
 * phases_ms         durations; callback (from asking decode to its call for prefill), prefill and kv_wait (from prefill's end to
 *                   decode's first byte) of the last attempt of a request that was not split; first_byte and last_byte from the arrival
 * status            0: the client left before it had one
 * error             a bt_err_name, "client_gone" or "no_worker"; left out when all went well
 * headers           those that --record-header names and the client sent, cut at 128 bytes; no other header is ever kept
 * shadow            who planned beside; error instead of the names when it failed
 * Prompts and answers are never in it.
 */
#ifndef BT_RECORD_RECORD_H
#define BT_RECORD_RECORD_H

#include "record/draft.h"

#define BT_RECORD_RING 1024
#define BT_RECORD_ROWS 64
#define BT_RECORD_LINE_MAX ((size_t) 64 << 10) /* longer ones are kept without their candidates */
#define BT_RECORD_RING_BYTES                                                                       \
    ((size_t) 8                                                                                    \
     << 20) /* of lines in one ring; the oldest go before there are BT_RECORD_RING then */

typedef struct bt_recorder bt_recorder_t; /* the file and its thread */
typedef struct bt_record_ring bt_record_ring_t;

typedef struct bt_record_config {
    const char *file; /* NULL = no file */
    const char *what; /* component of its log lines; NULL = "records" */
    const char *flag; /* that named the file; NULL = "--record-file" */
    double sample;    /* 0 .. 1 of the requests */
    uint64_t max_bytes;
    const char *const *headers; /* NULL-terminated, lower case; NULL = none */
} bt_record_config_t;

typedef struct bt_recorder_stats {
    uint64_t written, dropped, errors;
} bt_recorder_stats_t;

/* Opens the file for appending and starts the thread. err: one line. No file: *recorder_p is NULL and all is well. */
int bt_recorder_open(bt_recorder_t **recorder_p, const bt_record_config_t *config, char *err,
                     size_t err_size);
/* Opens the file by its name again: it may have another one now. No record is lost. NULL: nothing.
 * Any thread. */
void bt_recorder_reopen(bt_recorder_t *recorder);
void bt_recorder_close(bt_recorder_t *recorder); /* writes what waits; NULL: nothing */
void bt_recorder_stats(bt_recorder_t *recorder,
                       bt_recorder_stats_t *stats_p); /* any thread; NULL: zeros */

/* Copies the line and adds its newline. False: dropped, and counted. Any thread. */
bool bt_recorder_put(bt_recorder_t *recorder, bt_str_t line);

/* A ring belongs to one loop. */
bt_record_ring_t *bt_record_ring_new(void);
void bt_record_ring_free(bt_record_ring_t *ring); /* NULL is fine */
/* The newest record of this id, as its line, appended; false: not in the ring. On the ring's loop. ring may be NULL. */
bool bt_record_ring_find(const bt_record_ring_t *ring, bt_str_t id, bt_text_t *out);
/* The last `max` lines, the newest first, each with a newline. As bt_record_ring_find. */
void bt_record_ring_recent(const bt_record_ring_t *ring, unsigned max, bt_text_t *out);

/* Keeps copies. False: it is too long, or memory is short. */
bool bt_record_ring_put(bt_record_ring_t *ring, bt_str_t id, bt_str_t line);
/* The same of a line that is text when it is asked for. */
bool bt_record_ring_put_draft(bt_record_ring_t *ring, bt_str_t id, const bt_record_draft_t *draft);
/* An empty text, an empty draft, to make a line in; the same each time. */
bt_text_t *bt_record_ring_scratch(bt_record_ring_t *ring);
bt_record_draft_t *bt_record_ring_draft(bt_record_ring_t *ring);

/* A line in words, for people: GET /explain/<id>?format=text. */
void bt_record_story(bt_str_t line, bt_text_t *out);
/* The same in one line of text. */
void bt_record_headline(bt_str_t line, bt_text_t *out);

#endif
