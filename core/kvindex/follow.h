/* follow.h - one engine's numbered batches, followed so that what the index says of its part is whole.
 *
 * Owner: the index's writer.
 * Life:  init, resume -> up (connected) -> stream, answers -> down -> up ...
 * Flow:  up: what was published before us is asked for, from 0 on. A number that is too high: what is between is asked for, and
 *        the stream waits. A stream that goes quiet is asked once whether that was all; it does not wait. What nobody can tell any
 *        more, or an engine that begins anew: the part is emptied, and told. A part out of a snapshot counts once the engine has said the last
 *        batch in it again, byte for byte, and all that came after it.
 * Cost:  a batch is decoded once. While an answer is under way at most one batch is kept.
 */
#ifndef BT_KVINDEX_FOLLOW_H
#define BT_KVINDEX_FOLLOW_H

#include "kvindex/snapshot.h"

#define BT_KV_REPLAY_DEADLINE_MS 5000 /* without a batch of the answer */
#define BT_KV_QUIET_MS 1000           /* without a batch of the stream */

enum bt_kv_loss {
    BT_KV_LOSS_NONE,
    BT_KV_LOSS_GAP,      /* batches were missed, and nobody can say them again */
    BT_KV_LOSS_RESTART,  /* the engine is another process */
    BT_KV_LOSS_DOWN,     /* the connection ended */
    BT_KV_LOSS_UNKNOWN,  /* a payload that is no batch of events */
    BT_KV_LOSS_SNAPSHOT, /* the engine does not say again what the snapshot's last batch was */
    BT_KV_LOSSES
};
const char *bt_kv_loss_name(enum bt_kv_loss loss);

typedef struct bt_kv_follow_stats {
    uint64_t batches, replayed, gaps; /* gaps: that a replay was asked for, or could not be */
    uint64_t losses[BT_KV_LOSSES];
} bt_kv_follow_stats_t;

typedef struct bt_kv_follow {
    bt_kv_index_t *index;
    bt_kv_decoder_t *decoder;
    uint32_t part;
    bool has_replay;
    /* Asks the engine for all from a number on. < 0: it cannot be asked. */
    int (*ask)(void *user, uint64_t from);
    void (*on_loss)(void *user, enum bt_kv_loss loss);
    void *user;
    bt_kv_follow_stats_t stats;
    bool is_up, is_asking, has_next, has_seen;
    bool is_joining;   /* the answer is what was before us: that it is not all is no loss */
    bool has_progress; /* the answer has brought something */
    bool is_checking;  /* it was asked for no known gap: the stream goes on */
    bool
        is_resuming; /* the part is a snapshot's; whether the engine goes on from there is not known yet */
    uint64_t next; /* number of the batch that is to come; while is_resuming: of the last one */
    uint64_t last_hash; /* of the payload of the last batch that was taken */
    uint64_t last_seen; /* of the stream; it only rises within a process */
    uint64_t deadline_ms;
    unsigned due;         /* answers whose end has not come */
    uint64_t quiet_at_ms; /* then its last batches may be lost; 0 = that was asked */
    struct {
        char *p;
        size_t n;
        uint64_t number;
        bool is_there;
    } held; /* the batch that showed the gap */
} bt_kv_follow_t;

/* index, decoder, part, has_replay, ask, on_loss and user are the caller's to set. */
void bt_kv_follow_fini(bt_kv_follow_t *f);
/* The part has come out of a snapshot. */
void bt_kv_follow_resume(bt_kv_follow_t *f, bt_kv_place_t place);
/* The last batch in the part's content, for a snapshot. False: there is none, or the content is not whole. */
bool bt_kv_follow_place(const bt_kv_follow_t *f, bt_kv_place_t *place_p);
void bt_kv_follow_up(bt_kv_follow_t *f, uint64_t now_ms);
void bt_kv_follow_down(bt_kv_follow_t *f);
/* Frames of the stream: topic, number, payload; of an answer: the empty one, with or without the topic, number, payload. */
void bt_kv_follow_message(bt_kv_follow_t *f, const bt_str_t *frames, unsigned count, bool is_answer,
                          uint64_t now_ms);
void bt_kv_follow_turn(bt_kv_follow_t *f, uint64_t now_ms);
/* False: the stream is to wait. */
bool bt_kv_follow_wants_more(const bt_kv_follow_t *f);

#endif
