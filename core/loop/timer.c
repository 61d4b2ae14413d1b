/* timer.c - the hashed timer wheel.
 *
 * A timer lies in slot (due tick mod 1024), however far away it is; running a slot fires those whose tick has come and
 * leaves the rest for the next rotation (8.2 s). A bitmap of used slots finds the next one to wake for, so the one uv
 * timer below (the alarm) is armed exactly while a timer is active, and an idle loop sleeps without end.
 *
 *      start: clock, list push, bit set, alarm moved only if this one is earlier
 *      stop:  list remove, bit cleared; the alarm may then fire once for nothing, which is cheaper than moving it
 *
 * Due timers are first moved to a list of their own and then fired one at a time from its front. A callback may
 * therefore start or stop any timer, those about to fire included: they are all in some list, and leaving a list is
 * what stopping means.
 *
 * A loop that stood still (its machine was stopped, or starved) finds deadlines that are over and, unread, the bytes that
 * came in time for them. It reads before it judges: an alarm that is late goes round the loop once more.
 *
 * Not uv's own timers, because a request starts and stops several deadlines and hardly one of them ever fires: a heap
 * pays O(log n) for each, this pays O(1).
 */
#include "loop/loop_impl.h"

#include "base/err.h"

#include <stdlib.h>

#define TICK_MS ((uint64_t) 8)
#define SLOT_COUNT 1024U
#define SLOT_MASK (SLOT_COUNT - 1)
#define WORD_COUNT (SLOT_COUNT / 64)
#define LATE_MS 100                 /* so late is no turn of a loop that runs */
#define MAX_MS ((uint64_t) 1 << 40) /* about 35 years: "never" without overflow */
#define ALARM_OFF UINT64_MAX
#define ALARM_BUSY ((uint64_t) 0) /* the wheel fires, or will at once; it arms itself afterwards */

struct bt_wheel {
    uv_timer_t alarm;
    uint64_t tick;       /* first tick that has not been run; no active timer is due before it */
    uint64_t armed_tick; /* what the alarm waits for, or ALARM_* */
    unsigned active;     /* timers in a slot or about to fire */
    uint64_t used[WORD_COUNT];
    bt_list_t slots[SLOT_COUNT];
};

static unsigned slot_of(uint64_t tick)
{
    return (unsigned) (tick & SLOT_MASK);
}

static void note_slot(struct bt_wheel *wheel, unsigned slot)
{
    uint64_t bit = UINT64_C(1) << (slot % 64);

    if (bt_list_empty(&wheel->slots[slot]))
        wheel->used[slot / 64] &= ~bit;
    else
        wheel->used[slot / 64] |= bit;
}

/* Ticks from `from` to the first used slot, itself included; SLOT_COUNT when there is none. */
static unsigned next_used(const struct bt_wheel *wheel, uint64_t from)
{
    unsigned start = slot_of(from);
    uint64_t word = wheel->used[start / 64] & (UINT64_MAX << (start % 64));

    for (unsigned i = 0; i <= WORD_COUNT; i++) {
        unsigned at = (start / 64 + i) % WORD_COUNT;
        if (i > 0)
            word = wheel->used[at];
        if (word != 0) {
            unsigned slot = at * 64 + (unsigned) __builtin_ctzll(word);
            return (slot - start) & SLOT_MASK;
        }
    }
    return SLOT_COUNT;
}

static void on_alarm(uv_timer_t *alarm);

/* uv's clock is ours in milliseconds (CLOCK_MONOTONIC), cached since the turn began: never ahead of ours. */
static void arm(struct bt_wheel *wheel, uint64_t tick)
{
    uint64_t at_ms = tick * TICK_MS;
    uint64_t now_ms = uv_now(wheel->alarm.loop);

    wheel->armed_tick = tick;
    uv_timer_start(&wheel->alarm, on_alarm, at_ms > now_ms ? at_ms - now_ms : 0, 0);
}

static void disarm(struct bt_wheel *wheel)
{
    wheel->armed_tick = ALARM_OFF;
    uv_timer_stop(&wheel->alarm);
}

static void unlink_timer(struct bt_wheel *wheel, bt_timer_t *timer)
{
    bt_list_remove(&timer->link);
    note_slot(wheel, slot_of(timer->due_ms / TICK_MS));
    wheel->active--;
}

static void collect_slot(struct bt_wheel *wheel, unsigned slot, uint64_t now_tick, bt_list_t *due)
{
    bt_list_t *it, *tmp;

    bt_list_each (&wheel->slots[slot], it, tmp) {
        bt_timer_t *timer = bt_container_of(it, bt_timer_t, link);
        if (timer->due_ms / TICK_MS > now_tick)
            continue; /* of a later rotation */
        bt_list_remove(it);
        bt_list_push(due, it);
    }
    note_slot(wheel, slot);
}

static void collect_due(struct bt_wheel *wheel, bt_list_t *due, uint64_t now_ms)
{
    uint64_t now_tick = now_ms / TICK_MS;
    uint64_t first = wheel->tick;

    if (now_tick < first)
        return;
    uint64_t span = now_tick - first + 1;
    if (span > SLOT_COUNT)
        span = SLOT_COUNT;
    for (uint64_t at = next_used(wheel, first); at < span;
         at += 1 + next_used(wheel, first + at + 1))
        collect_slot(wheel, slot_of(first + at), now_tick, due);
    wheel->tick = now_tick + 1;
}

/* 1 ms, because libuv 1.44 runs a timer of 0 before it polls. */
static bool read_first(struct bt_wheel *wheel, uint64_t now_ms)
{
    if (wheel->armed_tick == ALARM_BUSY || now_ms < wheel->armed_tick * TICK_MS + LATE_MS)
        return false;
    wheel->armed_tick = ALARM_BUSY;
    uv_timer_start(&wheel->alarm, on_alarm, 1, 0);
    return true;
}

static void on_alarm(uv_timer_t *alarm)
{
    struct bt_wheel *wheel = alarm->data;
    const uint64_t start_ms = bt_clock_ms();
    bt_list_t due;

    if (read_first(wheel, start_ms))
        return;
    wheel->armed_tick = ALARM_BUSY;
    bt_list_init(&due);
    collect_due(wheel, &due, start_ms);
    while (!bt_list_empty(&due)) {
        bt_timer_t *timer = bt_container_of(due.next, bt_timer_t, link);
        unlink_timer(wheel, timer);
        timer->cb(timer);
    }
    const uint64_t took_ms = bt_clock_ms() - start_ms;
    if (took_ms >= BT_LOOP_STALL_MS)
        bt_loop_note_stall(alarm->loop->data, took_ms, "timers and what they led to");
    if (wheel->active == 0)
        disarm(wheel);
    else
        arm(wheel, wheel->tick + next_used(wheel, wheel->tick));
}

int bt_wheel_new(bt_loop_t *loop)
{
    struct bt_wheel *wheel = calloc(1, sizeof(*wheel));

    if (wheel == NULL)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < SLOT_COUNT; i++)
        bt_list_init(&wheel->slots[i]);
    wheel->armed_tick = ALARM_OFF;
    int rc = uv_timer_init(&loop->uv, &wheel->alarm);
    if (rc < 0) {
        free(wheel);
        return rc;
    }
    wheel->alarm.data = wheel;
    loop->wheel = wheel;
    return 0;
}

static void on_alarm_closed(uv_handle_t *alarm)
{
    free(alarm->data);
}

void bt_wheel_free(bt_loop_t *loop)
{
    struct bt_wheel *wheel = loop->wheel;

    for (unsigned i = 0; i < SLOT_COUNT; i++)
        while (!bt_list_empty(&wheel->slots[i]))
            bt_list_remove(wheel->slots[i].next);
    loop->wheel = NULL;
    uv_close((uv_handle_t *) &wheel->alarm, on_alarm_closed);
}

void bt_timer_init(bt_loop_t *loop, bt_timer_t *timer, bt_timer_cb cb)
{
    bt_list_init(&timer->link);
    timer->due_ms = 0;
    timer->cb = cb;
    timer->loop = loop;
}

void bt_timer_start(bt_timer_t *timer, uint64_t ms)
{
    struct bt_wheel *wheel = timer->loop->wheel;

    BT_BUG_ON(wheel == NULL); /* the loop is gone */
    if (bt_timer_active(timer))
        unlink_timer(wheel, timer);
    /* Both roundings go up, so that it is never early. */
    uint64_t now_ms = (bt_clock_us() + 999) / 1000;
    uint64_t tick = (now_ms + (ms < MAX_MS ? ms : MAX_MS) + TICK_MS - 1) / TICK_MS;
    if (wheel->active == 0 && now_ms / TICK_MS > wheel->tick)
        wheel->tick = now_ms / TICK_MS; /* nobody waits for the ticks slept through */
    if (tick < wheel->tick)
        tick = wheel->tick; /* this tick has run already: the next one */
    timer->due_ms = tick * TICK_MS;
    bt_list_push(&wheel->slots[slot_of(tick)], &timer->link);
    note_slot(wheel, slot_of(tick));
    wheel->active++;
    if (tick < wheel->armed_tick)
        arm(wheel, tick);
}

void bt_timer_stop(bt_timer_t *timer)
{
    struct bt_wheel *wheel = timer->loop->wheel;

    if (!bt_timer_active(timer))
        return;
    unlink_timer(wheel, timer);
    if (wheel->active == 0 && wheel->armed_tick != ALARM_BUSY)
        disarm(wheel);
}

bool bt_timer_active(const bt_timer_t *timer)
{
    return !bt_list_empty(&timer->link);
}
