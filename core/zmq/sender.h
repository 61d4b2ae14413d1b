/* sender.h - a ZeroMQ socket that connects and sends, as engines do: for simulated ones, and for specs.
 *
 * Owner: the caller; all senders of a process on one thread.
 * Life:  new -> send -> free. It connects, and connects again, by itself; what was sent meanwhile waits, up to a limit.
 * Flow:  frames -> libzmq's thread. Nothing is read.
 * Cost:  never waits; one thread of libzmq's for all senders.
 */
#ifndef BT_ZMQ_SENDER_H
#define BT_ZMQ_SENDER_H

#include "base/str.h"

typedef struct bt_zmq_sender bt_zmq_sender_t;

enum bt_zmq_sender_kind { BT_ZMQ_DEALER, BT_ZMQ_PUSH };

/* endpoint: "tcp://127.0.0.1:30001". identity: what a ROUTER calls it; "" = libzmq's choice. */
int bt_zmq_sender_new(bt_zmq_sender_t **sender_p, enum bt_zmq_sender_kind kind,
                      const char *endpoint, bt_str_t identity);
/* One message. BT_E_AGAIN: the other side does not take so much. */
int bt_zmq_sender_send(bt_zmq_sender_t *sender, const bt_str_t *frames, unsigned count);
void bt_zmq_sender_free(bt_zmq_sender_t *sender); /* what waits is dropped; NULL is fine */

#endif
