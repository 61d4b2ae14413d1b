/* attempt_kv.c - a gateway-managed attempt and its room at the hub (core/transfer, on the control loop).
 *
 *   open:   before the legs go out, so that the agents hear of the room about when their engines do
 *   events: return mail; they find the attempt by the room's number, which is closed with it, so a late one finds nobody
 *   close:  once, however the attempt ends. What still moves is aborted, unless decode has answered.
 *
 * An event that crosses our repair on its way is known by its source_room: what the old sender did is of no interest any more,
 * but a room that has failed has failed.
 */
#include "base/log.h"
#include "dispatch/attempt/attempt.h"

#include "transfer/transfer.h"

#include <stdio.h>

/* ---- events ---- */

static void note_figures(bt_attempt_t *a, const bt_transfer_event_t *e)
{
    a->kv.bytes = e->bytes;
    a->kv.wait_us = e->wait_us;
    a->kv.transfer_us = e->transfer_us;
}

static bt_failure_t failure_of(const bt_attempt_t *a, const bt_transfer_event_t *e)
{
    bt_request_t *r = a->task->request;
    const bt_leg_t *leg = &a->legs[e->is_prefill_fault ? 0 : 1];
    const char *colon = e->reason[0] != '\0' ? ": " : "";

    return (bt_failure_t){
        .rc = BT_E_KV_TRANSFER,
        .leg = leg->role,
        .worker = e->is_prefill_fault || e->is_decode_fault ? leg->worker->name : NULL,
        .reason =
            bt_arena_printf(&r->arena, "%s%s%s", bt_err_text(BT_E_KV_TRANSFER), colon, e->reason).p,
        .retryable = true,
    };
}

/* Decode may have failed first and waits to hear whose fault it was: then its words are told. */
static void fail_by(bt_attempt_t *a, const bt_transfer_event_t *e)
{
    const bool is_old = e->source_room != a->kv.source_room; /* that sender has been replaced */
    bt_failure_t f = bt_timer_active(&a->blame_wait) ? *a->pending : failure_of(a, e);
    bt_worker_t *guilty[2];
    unsigned n = 0;

    if (e->is_prefill_fault && !is_old)
        guilty[n++] = a->pair.prefill;
    if (e->is_decode_fault)
        guilty[n++] = a->pair.decode;
    /* Bytes had moved when another prefill was to take over: that says nothing about it, nor about decode. */
    f.stale = n == 0 && a->kv.source_room != a->kv.room;
    if (n == 0 && !f.stale)
        n = bt_blame_either(a, guilty);
    bt_attempt_fail(a, &f, guilty, n);
}

static void on_orphaned(bt_attempt_t *a, const bt_transfer_event_t *e)
{
    const bt_failure_t f = failure_of(a, e);

    if (a->committed || e->source_room != a->kv.source_room)
        return;
    if (!bt_replacement_prefill(a, &f, e->is_prefill_fault))
        fail_by(a, e);
}

static void on_failed(bt_attempt_t *a, const bt_transfer_event_t *e)
{
    if (a->kv.is_done) /* our repair met a room that was complete */
        return;
    note_figures(a, e);
    a->kv.is_moving = true; /* in any case there is nothing left to repair */
    if (!a->committed)
        fail_by(a, e);
}

static void on_event(void *user, const bt_transfer_event_t *e)
{
    bt_dispatcher_t *d = user;
    bt_attempt_t *a = bt_rooms_owner(&d->rooms, e->room);

    if (a == NULL || a->kv.room != e->room)
        return;
    switch (e->what) {
    case BT_TRANSFER_MOVING:
        a->kv.is_moving = true;
        break;
    case BT_TRANSFER_ORPHANED:
        on_orphaned(a, e);
        break;
    case BT_TRANSFER_DONE:
        note_figures(a, e);
        a->kv.is_moving = a->kv.is_done = true;
        break;
    case BT_TRANSFER_FAILED:
        on_failed(a, e);
        break;
    }
}

/* ---- life ---- */

int bt_attempt_kv_open(bt_attempt_t *a)
{
    bt_request_t *r = a->task->request;
    const bt_pool_deadlines_t *dl = &r->pool->spec.deadlines;
    bt_transfer_room_spec_t spec = {
        .prefill = a->pair.prefill,
        .decode = a->pair.decode,
        .start_ms = dl->room_start_ms,
        .stall_ms = dl->room_stall_ms,
        .repair_ms = dl->room_repair_ms,
        .loop = r->d->loop,
        .on_event = on_event,
        .user = r->d,
    };
    int rc;

    if (a->dialect == NULL || !a->dialect->is_gateway_managed)
        return 0;
    if (r->d->shared->transfer ==
        NULL) /* no worker of it was usable: a dialect of the user's own */
        return BT_E_INVAL;
    spec.room = a->rooms[0];
    snprintf(spec.request_id, sizeof(spec.request_id), "%s", a->id);
    rc = bt_transfer_room_open(r->d->shared->transfer, &spec);
    if (rc == 0)
        a->kv.room = a->kv.source_room = spec.room;
    return rc;
}

int bt_attempt_kv_repair(bt_attempt_t *a, uint64_t source_room)
{
    int rc = bt_transfer_repair(a->task->request->d->shared->transfer, a->kv.room, source_room,
                                a->pair.prefill);

    if (rc == 0)
        a->kv.source_room = source_room;
    return rc;
}

void bt_attempt_kv_close(bt_attempt_t *a, bool is_abort, const char *reason)
{
    if (a->kv.room == 0)
        return;
    bt_transfer_room_close(a->task->request->d->shared->transfer, a->kv.room, is_abort, reason);
    a->kv.room = 0;
}
