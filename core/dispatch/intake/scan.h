/* scan.h - reading a large body off the loop: to find what it asks for, each of its bytes is looked at.
 *
 * Owner: the request; it holds the request (as a running leg does) until the thread is done with it.
 * Life:  start -> done, on the loop, unless the request has ended meanwhile -> drop, with the request.
 * Flow:  a pool thread fills an intent and an arena of its own; the request takes the intent over.
 * Cost:  up to 3 ms a MiB (a list of numbers; text takes a tenth of a ms): the loop serves others meanwhile.
 */
#ifndef BT_DISPATCH_INTAKE_SCAN_H
#define BT_DISPATCH_INTAKE_SCAN_H

#include "dispatch/state/request_state.h"

/* Smaller ones are read at once, in less than a ms: a prompt of 60,000 tokens is not sent to another thread and back. */
#define BT_SCAN_MIN_BYTES ((size_t) 256 << 10)

typedef void (*bt_scan_cb)(bt_request_t *r, int rc, const char *why);

/* Reads r's body into r->intent; then done, with bt_intent_read's result. */
void bt_scan_start(bt_request_t *r, bt_scan_cb done);
void bt_scan_cancel(bt_request_t *r); /* the request has ended: nobody waits for it */
void bt_scan_drop(bt_request_t *r);   /* what its intent was made of */

#endif
