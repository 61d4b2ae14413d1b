/* reservation.h - what a request has taken of the limits that fit it (core/limits), and what it gives back.
 *
 * Owner: the request; in its arena, with a reference to the list of limits.
 * Life:  enter -> (waits for leases) -> the request runs, or has been answered 429 or 413 -> leave, once, wherever it ends.
 * Flow:  taken by estimate, in the order of enum bt_limit_what of each limit; all or nothing. At the end what it has really used stays:
 *        the rest goes back to the window that it was taken from, and what is more is taken from the window that runs then.
 * Cost:  an atomic read where nothing is limited.
 */
#ifndef BT_DISPATCH_INTAKE_RESERVATION_H
#define BT_DISPATCH_INTAKE_RESERVATION_H

#include "dispatch/state/request_state.h"

/* A station: the request's pool is known. */
enum bt_progress bt_reservation_enter(bt_request_t *r);
/* The request ends. Once; before its tasks go. */
void bt_reservation_leave(bt_request_t *r);

#endif
