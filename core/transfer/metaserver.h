/* metaserver.h - where engines of decode call for prefill (plan kind trigger): POST /v1/metaserver?attempt=ROOM.
 *
 * Owner: the control loop has the listener; a call belongs to whoever it was given to, until it is answered.
 * Life:  new -> set_workers on every change -> close(done). A call: on_call -> bt_metaserver_answer, once, from any loop.
 * Flow:  HTTP exchange -> who asks (registry_peers.h) -> the attempt's room, and the body's bytes -> on_call.
 * Cost:  a copy of the body, and a mail back; O(workers) for a peer that is on another host.
 */
#ifndef BT_TRANSFER_METASERVER_H
#define BT_TRANSFER_METASERVER_H

#include "cluster/workers.h"
#include "http/server.h"
#include "loop/loop.h"

#define BT_METASERVER_PATH "/v1/metaserver"

typedef struct bt_metaserver bt_metaserver_t;

typedef struct bt_metaserver_call {
    bt_mail_t mail; /* free for whoever has the call */
    void *user;     /* likewise */
    struct bt_metaserver_call *next;
    uint64_t room;
    bt_str_t body;
    /* metaserver.c's */
    bt_loop_t *control;
    bt_exchange_t *x; /* NULL: the caller has gone */
    unsigned status;
    char words[256];
} bt_metaserver_call_t;

typedef struct bt_metaserver_config {
    const char *const *
        allowed; /* addresses and networks that may call, beside this host and the workers' (bt_network_parse) */
    unsigned allowed_count;
    void (*on_call)(void *user, bt_metaserver_call_t *call); /* on the control loop */
    void *user;
} bt_metaserver_config_t;

/* Takes a listening socket (closed on failure too). */
int bt_metaserver_new(bt_metaserver_t **server_p, bt_loop_t *control, int fd,
                      const bt_metaserver_config_t *config);
void bt_metaserver_set_workers(bt_metaserver_t *server, bt_workers_t *workers);
/* Frees itself; done (may be NULL) runs when every connection is closed. Calls that are not answered yet still have to be. */
void bt_metaserver_close(bt_metaserver_t *server, void (*done)(void *user), void *user);

/* Takes the call. words: why it is refused; of 200 nothing. */
void bt_metaserver_answer(bt_metaserver_call_t *call, unsigned status, const char *words);

#endif
