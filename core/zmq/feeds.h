/* feeds.h - streams that others publish by ZeroMQ, and what of them was missed: SUB and, beside it, questions to a ROUTER.
 *
 * Owner: whoever made it; callbacks and feeds belong to a thread of its own.
 * Life:  new -> post: a function runs on the thread, where feeds are opened and closed -> close, which has a deadline.
 * Flow:  connects, again and again -> on_up -> messages -> on_down. An answer to a question comes as messages, too. Who does not want to be
 *        given messages for a while says so: they wait in libzmq, up to a limit, then the publisher drops them.
 * Cost:  two or three sockets a feed; nothing while nobody publishes but a turn every 100 ms.
 */
#ifndef BT_ZMQ_FEEDS_H
#define BT_ZMQ_FEEDS_H

#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

#define BT_ZMQ_FEED_FRAMES_MAX 6

typedef struct bt_zmq_feeds bt_zmq_feeds_t;
typedef struct bt_zmq_feed bt_zmq_feed_t;

/* All on the thread; user is the feed's. */
typedef struct bt_zmq_feeds_config {
    void (*on_message)(void *user, const bt_str_t *frames, unsigned count, bool is_answer);
    void (*on_up)(void *user);
    void (*on_down)(void *user);
    void (*on_turn)(void *user);    /* every 100 ms, or sooner */
    bool (*wants_more)(void *user); /* of the stream; answers come anyway */
    unsigned max_frame_bytes;       /* who sends a larger one loses its connection */
} bt_zmq_feeds_config_t;

int bt_zmq_feeds_new(bt_zmq_feeds_t **feeds_p, const bt_zmq_feeds_config_t *config);
/* From any thread, in order; the last ones run before the thread ends. BT_E_NOMEM. */
int bt_zmq_feeds_post(bt_zmq_feeds_t *feeds, void (*run)(void *arg), void *arg);
/* Ends the thread, and frees everything with what is open. After deadline_ms it is left to itself: false. */
bool bt_zmq_feeds_close(bt_zmq_feeds_t *feeds, unsigned deadline_ms);

/* ---- on the thread ---- */
/* endpoint, answers_at ("" = nobody answers): "tcp://host:port". BT_E_INVAL: not such. */
int bt_zmq_feed_open(bt_zmq_feeds_t *feeds, const char *endpoint, const char *answers_at,
                     void *user, bt_zmq_feed_t **feed_p);
/* As a REQ would: behind an empty frame. What is left of an earlier answer does not come any more. */
int bt_zmq_feed_ask(bt_zmq_feed_t *feed, bt_str_t question);
void bt_zmq_feed_close(bt_zmq_feed_t *feed);

#endif
