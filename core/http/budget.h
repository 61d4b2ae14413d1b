/* budget.h - how many connections the process holds, and which idle one is closed for another.
 *
 * Owner: the process. Servers and upstreams of all loops share one; a listener of the operator's has one of its own.
 * Life:  new -> servers are made with it (bt_server_config_t, bt_upstream_config_t) -> set, before the loops run -> free, after
 *        them.
 * Flow:  a client's connection above the limit is served, and the one that is idle for the longest (nothing of a request is
 *        there) is closed for it: of the same address where that address has too many, else of the process. When none is
 *        idle it is told 503 as soon as it asks. What is idle on another loop is closed by mail. Connections to workers have
 *        a limit of their own and make place for each other. Should the process have no descriptor all the same, because
 *        somebody who is not counted took them, an idle one to a worker is closed, else an idle client's.
 * Cost:  one atomic add each accept; O(1) a request, on memory of its loop; a lock each accept and close only where there is
 *        a limit for each address.
 */
#ifndef BT_HTTP_BUDGET_H
#define BT_HTTP_BUDGET_H

#include "loop/loop.h"

typedef struct bt_budget bt_budget_t;
struct bt_peer;

/* Why a connection was closed or refused. */
enum bt_budget_reason {
    BT_BUDGET_CLIENTS,
    BT_BUDGET_PEER,
    BT_BUDGET_DESCRIPTORS,
    BT_BUDGET_REASONS
};
const char *bt_budget_reason_name(enum bt_budget_reason reason);

typedef struct bt_budget_limits {
    unsigned clients;  /* connections that are served */
    unsigned per_peer; /* of one address (IPv6: of one /64); 0 = no limit */
    unsigned refusals; /* beside them: those that are being told 503 */
    unsigned workers;  /* connections to workers */
} bt_budget_limits_t;

typedef struct bt_budget_stats {
    uint64_t closed[BT_BUDGET_REASONS];  /* idle clients, for another connection */
    uint64_t refused[BT_BUDGET_REASONS]; /* clients told 503 */
    uint64_t shed[BT_BUDGET_REASONS]; /* clients closed without a word: too many are being told */
    uint64_t workers_closed;          /* idle connections to workers, for another connection */
    uint64_t workers_refused;         /* connections to workers that found no place */
} bt_budget_stats_t;

/* For loops with an index below `loops`; 1: for the control loop alone. name: of the listener, static. Nothing is limited before
 * bt_budget_set. */
int bt_budget_new(bt_budget_t **budget_p, unsigned loops, const char *name);
void bt_budget_free(bt_budget_t *b);                                 /* NULL is fine */
int bt_budget_set(bt_budget_t *b, const bt_budget_limits_t *limits); /* 0, BT_E_NOMEM */
const bt_budget_limits_t *bt_budget_limits(const bt_budget_t *b);
const char *bt_budget_name(const bt_budget_t *b);
void bt_budget_stats(const bt_budget_t *b, bt_budget_stats_t *stats_p); /* from any thread */
/* A descriptor was not to be had: closes an idle connection. 0: done; BT_E_AGAIN: another loop was asked to;
 * BT_E_DESCRIPTORS: none is idle. b may be NULL. */
int bt_budget_free_one(bt_budget_t *b, bt_loop_t *loop);
/* The same for the listener of these clients (a bt_full_cb): who finds no place is counted as shed. */
int bt_budget_on_full(bt_loop_t *loop, void *budget);

/* ---- for core/http ---- */

/* A connection that may be closed for another one. */
typedef struct bt_idle {
    bt_list_t link; /* alone: it is not idle */
    uint64_t since_ms;
    /* Closes it. False: it has unread bytes, and must not be closed for that reason (unless forced). */
    bool (*close)(struct bt_idle *idle, bool is_forced);
} bt_idle_t;

/* A client connection's part. */
typedef struct bt_budget_client {
    bt_loop_t *loop;
    bt_idle_t idle, peer_idle; /* their close sets is_given */
    struct bt_peer *peer;      /* reference; NULL = not counted */
    bool is_in;
    bool is_refused; /* it is told 503, for this reason: */
    enum bt_budget_reason reason;
    bool is_given; /* it goes, and its place is another one's already */
} bt_budget_client_t;

/* b may be NULL in all of these: nothing is limited. */
/* Before the loops run: connections of this one are counted. */
void bt_budget_join(bt_budget_t *b, bt_loop_t *loop);
/* False: shed, close it. t: loop and both close set, the rest zero. from: whose it is; NULL: nobody's, who has a limit. */
bool bt_budget_enter(bt_budget_t *b, bt_budget_client_t *t, const struct sockaddr_storage *from);
void bt_budget_leave(bt_budget_t *b, bt_budget_client_t *t);
/* Why it is not served (static), counted as told; NULL: it is. */
const char *bt_budget_refusal(bt_budget_t *b, const bt_budget_client_t *t);
/* From here on it may be closed for another one; it may be closed at once. */
void bt_budget_idle(bt_budget_t *b, bt_budget_client_t *t);
void bt_budget_busy(bt_budget_t *b, bt_budget_client_t *t);
/* Before the socket of a connection to a worker is made. 0; BT_E_AGAIN: another loop was asked to close one; BT_E_DESCRIPTORS. */
int bt_budget_take(bt_budget_t *b, bt_loop_t *loop);
void bt_budget_give(bt_budget_t *b);
void bt_budget_note_refused(bt_budget_t *b); /* a worker was not reached for want of a place */
/* spare: of a connection to a worker, with close set. */
void bt_budget_park(bt_budget_t *b, bt_loop_t *loop, bt_idle_t *spare);
void bt_budget_unpark(bt_budget_t *b, bt_loop_t *loop, bt_idle_t *spare);

#endif
