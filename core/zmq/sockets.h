/* sockets.h - ZeroMQ sockets that engines connect to, on a thread of their own.
 *
 * Owner: the control loop; the thread owns the sockets from start to its end.
 * Life:  new -> bind, for each socket -> start -> close(done), which has a deadline.
 * Flow:  peers -> may they connect (zap.h)? -> libzmq -> the thread copies a message -> mail -> on_message on the control loop. What the loop has not taken yet is
 *        bounded, and so is what a socket brings a second: above that the thread does not read, and peers wait (nothing is dropped).
 * Cost:  one allocation a message; nothing while nobody sends. libzmq itself keeps a message whose frames have not all come, of any
 *        number, of whoever may connect; of others it keeps a connection until the handshake's time is over (SECURITY.md).
 */
#ifndef BT_ZMQ_SOCKETS_H
#define BT_ZMQ_SOCKETS_H

#include "base/str.h"
#include "loop/loop.h"
#include "loop/network.h"

#define BT_ZMQ_SOCKETS_MAX 8
#define BT_ZMQ_FRAMES_MAX 4 /* a message of more is malformed */

typedef struct bt_zmq bt_zmq_t;

enum bt_zmq_kind { BT_ZMQ_ROUTER, BT_ZMQ_PULL };

/* Borrowed until the callback returns. A ROUTER's first frame is who sent it. */
typedef struct bt_zmq_message {
    const char *peer; /* numeric address; "" where libzmq does not know it */
    bt_str_t frames[BT_ZMQ_FRAMES_MAX];
    unsigned frame_count;
} bt_zmq_message_t;

typedef void (*bt_zmq_message_cb)(void *user, const bt_zmq_message_t *message);

typedef struct bt_zmq_socket_config {
    enum bt_zmq_kind kind;
    const char *host;         /* a name, or a numeric address with or without brackets */
    unsigned port;            /* 0 = any free one */
    unsigned max_frame_bytes; /* who sends a larger one loses its connection; 0 = 4096 */
    unsigned max_per_second;  /* messages; 0 = 2000 */
    bt_zmq_message_cb on_message;
    void (*on_refused)(void *user, const char *peer); /* it may not connect; NULL = nobody asks */
    void *user;
} bt_zmq_socket_config_t;

typedef struct bt_zmq_stats {
    uint64_t messages;  /* handed on */
    uint64_t malformed; /* more frames than a message may have */
    uint64_t held_back; /* times that a socket was not read because it brought too much */
    uint64_t refused;   /* connections of those who may not */
} bt_zmq_stats_t;

/* Is it part of this build? All else answers BT_E_CONFIG where it is not. */
bool bt_zmq_is_built(void);
/* For whoever asked for it: what is missing, and the remedy. */
extern const char bt_zmq_not_built[];

int bt_zmq_new(bt_zmq_t **zmq_p, bt_loop_t *control);
/* Before start. A port that is taken is UV_EADDRINUSE. */
int bt_zmq_bind(bt_zmq_t *zmq, const bt_zmq_socket_config_t *config, unsigned *port_p);
int bt_zmq_start(bt_zmq_t *zmq);
/* Who may connect from now on, at any time; nobody before the first call. Those who are connected stay. */
int bt_zmq_set_allowed(bt_zmq_t *zmq, const bt_network_t *networks, unsigned count);
bt_zmq_stats_t bt_zmq_stats(bt_zmq_t *zmq);
/* No message comes any more. Frees itself; done (may be NULL) runs when the thread has ended, or when it has not within
 * deadline_ms: then it is left to itself, and frees its memory when it does. Without a thread, at once. */
void bt_zmq_close(bt_zmq_t *zmq, uint64_t deadline_ms, void (*done)(void *user), void *user);

#endif
