/* zap.h - who may connect: libzmq asks during the handshake, before it takes a peer's name or messages (ZAP, ZeroMQ RFC 27).
 *
 * Owner: the sockets' thread, which answers; only bt_zap_set_allowed is the control loop's.
 * Life:  open, before a socket is bound: libzmq lets everybody in while nobody is there to ask -> close, after all sockets -> fini.
 * Flow:  handshake -> peer's address -> the newest list -> yes or no. Before the first list: nobody.
 * Cost:  O(list) a connection; a list is copied once, and handed over without a lock.
 */
#ifndef BT_ZMQ_ZAP_H
#define BT_ZMQ_ZAP_H

#include "loop/network.h"

#include <stdatomic.h>

typedef struct bt_zap_list bt_zap_list_t;

typedef struct bt_zap {
    void *handle;
    bt_zap_list_t *list;            /* the thread's */
    _Atomic(bt_zap_list_t *) fresh; /* on its way to the thread */
} bt_zap_t;

enum bt_zap_verdict { BT_ZAP_NOTHING, BT_ZAP_ALLOWED, BT_ZAP_REFUSED };

typedef struct bt_zap_question {
    unsigned socket; /* as bt_zap_guard was told */
    char peer[64];   /* numeric address */
} bt_zap_question_t;

int bt_zap_open(bt_zap_t *zap, void *context);
/* Peers of this socket are asked for, by this number. Before it is bound. */
int bt_zap_guard(void *socket_handle, unsigned number);
int bt_zap_set_allowed(bt_zap_t *zap, const bt_network_t *networks, unsigned count);
/* One question that waits, if there is one. */
enum bt_zap_verdict bt_zap_answer(bt_zap_t *zap, bt_zap_question_t *question_p);
/* By the thread; lists may come until fini. */
void bt_zap_close(bt_zap_t *zap);
void bt_zap_fini(bt_zap_t *zap);

#endif
