/* token_replay.h - an answer that one worker has begun and another one goes on with: what the client has becomes the prompt. Private
 * to dispatch.
 *
 * Owner: its request; decided once, at the plan. A request without one fails as it always did.
 * Life:  open -> the answer's ids are collected (sink_replay.c) -> replay_round.h, for each replay -> fini.
 * Flow:  decode is lost, or has given the request up -> task.c, replay_round.c -> leg.c takes the edits -> the sink goes on.
 * Cost:  the request's body is kept until its end, and 4 bytes an id.
 */
#ifndef BT_DISPATCH_ANSWER_TOKEN_REPLAY_H
#define BT_DISPATCH_ANSWER_TOKEN_REPLAY_H

#include "dispatch/state/attempt_state.h"

/* A replay's prompt, in a buffer of its own: legs that drain may still send it when the next one begins. */
struct bt_replay_prompt {
    struct bt_replay_prompt *before;
    bt_buf_t *buf;
};

struct bt_token_replay {
    bool on_recomputed, on_lost; /* what it is for */
    bool wants_ids, wants_usage; /* the client */
    bool is_sse, is_begun;       /* the answer's first head has come */
    const char *closed;          /* why it cannot be any more; NULL = it can */
    const char *reason; /* of the last one: "recomputed" or "lost"; NULL = there was none */
    unsigned count;     /* replays so far */

    /* What has been made: [the prompt's ids, where the engine tells them] the output's. */
    uint32_t *ids;
    size_t id_count, id_cap, kept_prompt;
    uint64_t prompt_count; /* ids of the client's prompt; 0 = not known yet */
    size_t shown;          /* of the output: the client has their text */
    uint64_t before;       /* of the output: made before this round */
    uint64_t limit;        /* the client's max_tokens */

    struct bt_replay_prompt *prompt; /* of this round; NULL = the client's */
    uint64_t max_tokens, min_tokens; /* of this round */

    /* the answer (sink_replay.c) */
    bt_sse_t sse;
    bt_buf_t *out;                            /* events of one read on their way */
    bt_str_t id, created, model, fingerprint; /* the first event's; request's arena */
    bt_kept_t body;                           /* not streamed: this round's */
    bt_buf_t *text;       /* not streamed: of the rounds before, between quotes */
    bt_header_t *headers; /* not streamed */
    unsigned header_count, status;
    uint64_t again;          /* ids of the event that says "recomputed" */
    bool is_recomputed;      /* this round's answer says so */
    bool is_finished;        /* it has its finish_reason */
    bool has_usage, is_done; /* its usage event, its [DONE] */
    bool is_prompt_told;     /* the client has the prompt's ids */
    unsigned error_status;   /* an event says that the engine has failed; 0 = none */
    bt_str_t error;
};

/* ---- token_replay.c ---- */
/* When its plan is made and it is not split: may it be replayed? */
void bt_token_replay_open(bt_request_t *r);
void bt_token_replay_fini(bt_request_t *r);
/* Its body will be read once more if decode is lost. */
bool bt_token_replay_is_open(const bt_request_t *r);
/* No replay will come. why: static. */
void bt_token_replay_close(bt_request_t *r, const char *why);
/* An array of ids of the output, or of the prompt. */
void bt_token_replay_add(bt_request_t *r, bt_str_t ids, bool is_prompt);
static inline size_t bt_token_replay_made(const struct bt_token_replay *replay)
{
    return replay->id_count - replay->kept_prompt;
}
/* Of the output: made before the round under way, whose prompt has them. */
static inline uint64_t bt_token_replay_before(const bt_request_t *r)
{
    return r->replay != NULL ? r->replay->before : 0;
}
/* What this leg's body needs for it. */
int bt_token_replay_edit(const bt_leg_t *leg, bt_edits_t *edits);
/* Any list of ids as JSON's elements, without brackets, at the end of *buf_p. */
int bt_token_replay_print(bt_buf_t **buf_p, const uint32_t *ids, size_t count);

/* ---- sink_replay.c ---- */
/* The round is over as its worker wanted: was it given up? */
bool bt_sink_replay_is_recomputed(bt_request_t *r);
/* What this round has sent last may be half an event: it is forgotten. */
void bt_sink_replay_next_round(bt_request_t *r);
/* The answer lacks nothing but its end, which is made here: true. */
bool bt_sink_replay_complete(bt_request_t *r);

#endif
