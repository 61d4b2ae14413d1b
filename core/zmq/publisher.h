/* publisher.h - a PUB and the ROUTER beside it that says again what was published, as engines do: for simulated ones, and for specs.
 *
 * Owner: the caller, one thread.
 * Life:  new -> publish, serve now and then -> free. A new one begins with number 0.
 * Flow:  payload -> kept, up to a number of them -> topic, number, payload. A question is 8 bytes: the number to begin with.
 * Cost:  never waits.
 */
#ifndef BT_ZMQ_PUBLISHER_H
#define BT_ZMQ_PUBLISHER_H

#include "base/str.h"

#include <stdbool.h>

typedef struct bt_zmq_publisher bt_zmq_publisher_t;

typedef struct bt_zmq_publisher_config {
    unsigned port, replay_port; /* of 127.0.0.1; replay_port 0 = it does not say again */
    unsigned kept;              /* payloads */
    bool is_old;                /* says again without the topic, as engines before July 2026 */
} bt_zmq_publisher_config_t;

int bt_zmq_publisher_new(bt_zmq_publisher_t **publisher_p, const bt_zmq_publisher_config_t *config);
/* is_lost: it is kept, but not sent. */
int bt_zmq_publish(bt_zmq_publisher_t *publisher, bt_str_t payload, bool is_lost);
/* Answers the questions that have come; returns how many. */
unsigned bt_zmq_publisher_serve(bt_zmq_publisher_t *publisher);
void bt_zmq_publisher_free(bt_zmq_publisher_t *publisher); /* NULL is fine */

#endif
