#include "cluster/checks/loss.h"

#include "base/flight.h"
#include "base/log.h"

#include <inttypes.h>

/* Health asks whether new legs may go to a worker, and may be wrong for a while. A loss ends legs,
 * so it asks for more: an engine's own word that it is dead, or silence on every leg while check
 * after check fails. And it asks whose silence it is: when most of a role goes quiet in the same
 * moment, or this loop has not run, the fault is more likely the network's or ours. */

#define ROLE_MIN 4

static _Atomic uint64_t withheld[BT_LOSS_WITHHELD_COUNT];

uint64_t bt_loss_withheld(enum bt_loss_withheld why)
{
    return atomic_load_explicit(&withheld[why], memory_order_relaxed);
}

void bt_loss_init(bt_loss_book_t *book, const bt_health_rules_t *rules)
{
    *book = (bt_loss_book_t){.rules = rules};
    bt_list_init(&book->tracks);
}

void bt_loss_watch(bt_loss_book_t *book, bt_loss_track_t *track, bt_worker_t *worker)
{
    *track = (bt_loss_track_t){.worker = worker};
    bt_list_push(&book->tracks, &track->link);
}

void bt_loss_unwatch(bt_loss_track_t *track)
{
    bt_list_remove(&track->link);
}

static uint64_t last_bytes_ms(const bt_worker_t *w)
{
    return atomic_load_explicit(&w->last_bytes_ms, memory_order_relaxed);
}

/* ---- our own loop ---- */

static void forget_silence(bt_loss_book_t *book)
{
    bt_list_t *it, *tmp;

    bt_list_each (&book->tracks, it, tmp)
        bt_container_of(it, bt_loss_track_t, link)->silent = 0;
}

/* Checks that ran out while we stood still prove nothing. */
static void check_stall(bt_loss_book_t *book, uint64_t now_ms)
{
    uint64_t late_ms = now_ms - book->heartbeat_ms;

    if (book->heartbeat_ms == 0 || now_ms <= book->heartbeat_ms ||
        late_ms <= BT_LOSS_HEARTBEAT_MS + BT_LOSS_STALL_MS)
        return;
    book->heartbeat_ms = now_ms;
    forget_silence(book);
    atomic_fetch_add_explicit(&withheld[BT_LOSS_WITHHELD_STALL], 1, memory_order_relaxed);
    bt_log_warn("cluster",
                "the control loop stood still for %" PRIu64
                " ms: failed checks count from here anew, no worker is given up for them",
                late_ms);
}

void bt_loss_heartbeat(bt_loss_book_t *book, uint64_t now_ms)
{
    check_stall(book, now_ms);
    book->heartbeat_ms = now_ms;
}

/* ---- losing one ---- */

/* Has most of its role fallen silent with it? */
static bool is_of_many(const bt_loss_book_t *book, const bt_loss_track_t *track)
{
    const uint64_t near_ms = book->rules->interval_ms;
    unsigned all = 0, silent = 0;
    bt_list_t *it, *tmp;

    bt_list_each (&book->tracks, it, tmp) {
        const bt_loss_track_t *t = bt_container_of(it, bt_loss_track_t, link);
        if (!t->has_answered || t->worker->spec.role != track->worker->spec.role)
            continue;
        uint64_t apart_ms = t->since_ms > track->since_ms ? t->since_ms - track->since_ms
                                                          : track->since_ms - t->since_ms;
        all++;
        silent += t->silent > 0 && apart_ms <= near_ms;
    }
    return all >= ROLE_MIN && silent * 2 > all;
}

static void withhold(bt_loss_track_t *track)
{
    if (track->is_withheld)
        return;
    track->is_withheld = true;
    atomic_fetch_add_explicit(&withheld[BT_LOSS_WITHHELD_ROLE], 1, memory_order_relaxed);
    bt_log_warn("cluster",
                "worker %s is silent, and so is most of its role (%s): its requests are not cut",
                track->worker->name, bt_role_name(track->worker->spec.role));
}

/* One guilty event, however many legs it ends. */
static void lose(bt_loss_book_t *book, bt_worker_t *w, uint64_t since_ms, uint64_t now_ms,
                 const char *why)
{
    bt_worker_set_health(w, BT_HEALTH_DOWN, why);
    bt_worker_set_lost(w, since_ms, now_ms);
    if (bt_breaker_failure(&w->breaker, false, now_ms) == BT_BREAKER_OPENED) {
        bt_log_warn("cluster", "breaker of worker %s opened: too many guilty failures", w->name);
        bt_flight_note(BT_FLIGHT_BREAKER, 0, "%s opened", w->name);
    }
    bt_log_warn("cluster", "worker %s is lost (%s): requests that wait on it are ended", w->name,
                why);
    bt_flight_note(BT_FLIGHT_WORKER, 0, "%s is lost", w->name);
    if (book->on_lost != NULL)
        book->on_lost(book->user);
}

static bool is_news(const bt_worker_t *w)
{
    return !bt_worker_is_lost(w) || last_bytes_ms(w) >= bt_worker_lost_since(w);
}

void bt_loss_gone(bt_loss_book_t *book, bt_worker_t *w, const char *why, uint64_t now_ms)
{
    if (bt_worker_has_legs(w) && is_news(w))
        lose(book, w, now_ms, now_ms, why);
}

void bt_loss_ended(bt_loss_book_t *book, bt_worker_t *w, uint64_t now_ms)
{
    if (bt_worker_is_lost(w))
        return;
    bt_worker_set_lost(w, now_ms, now_ms);
    if (book->on_lost != NULL)
        book->on_lost(book->user);
}

static void note_silence(bt_loss_book_t *book, bt_loss_track_t *track, uint64_t began_ms,
                         uint64_t now_ms)
{
    bt_worker_t *w = track->worker;
    const uint64_t bytes_ms = last_bytes_ms(w);

    if (track->silent == 0 || bytes_ms >= track->since_ms) {
        track->silent = 0;
        track->since_ms = bytes_ms >= began_ms ? now_ms : began_ms;
        track->is_withheld = false;
    }
    track->silent++;
    if (track->silent < book->rules->failures || now_ms - bytes_ms < book->rules->interval_ms ||
        !is_news(w))
        return;
    if (is_of_many(book, track))
        withhold(track);
    else
        lose(book, w, track->since_ms, now_ms, "its checks fail and nothing comes from it");
}

void bt_loss_note(bt_loss_book_t *book, bt_loss_track_t *track, enum bt_verdict verdict,
                  uint64_t began_ms, uint64_t now_ms)
{
    check_stall(book, now_ms);
    track->has_answered |= verdict == BT_VERDICT_OK;
    if (verdict == BT_VERDICT_OURS || !track->has_answered)
        return;
    /* Bytes that came after the question: that engine lives. */
    if (verdict == BT_VERDICT_DEAD && last_bytes_ms(track->worker) <= began_ms) {
        track->silent = 0;
        if (is_news(track->worker))
            lose(book, track->worker, now_ms, now_ms, "its engine is dead");
    } else if (verdict == BT_VERDICT_DEAD || verdict == BT_VERDICT_FAIL) {
        note_silence(book, track, began_ms, now_ms);
    } else {
        track->silent = 0;
    }
}
