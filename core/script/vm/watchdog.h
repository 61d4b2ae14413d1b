/* watchdog.h - stops policy code that runs over its time. Private to core/script, but for start and stop.
 *
 * Owner: one thread for the process; a bt_watch_t belongs to its VM.
 * Life:  the thread lives while somebody has called start more often than stop (every policy VM does); a watch from
 *        bt_watch_init to bt_watch_fini.
 * Flow:  IDLE -> begin: RUN -> end: IDLE. A watch that stays RUN too long: SLOW (its end says how long it took) -> FIRING (the
 *        thread signals) -> FIRED (the handler has set the hook, which raises at every instruction from then on) -> end: IDLE, hook gone.
 * Cost:  a call costs three plain stores and one compare-and-swap; the clock is read by the caller anyway. The thread polls
 *        each millisecond while calls come, and sleeps without a timer when none came for a while.
 */
#ifndef BT_SCRIPT_WATCHDOG_H
#define BT_SCRIPT_WATCHDOG_H

#include "base/list.h"

#include <lua.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

enum bt_watch_state { BT_WATCH_IDLE, BT_WATCH_RUN, BT_WATCH_SLOW, BT_WATCH_FIRING, BT_WATCH_FIRED };

typedef struct bt_watch {
    _Atomic int state;            /* enum bt_watch_state */
    _Atomic uint64_t deadline_us; /* of the running call; any change of it is a sign of life */
    _Atomic uint64_t grace_us;    /* fired: the hook raises from then on; 0 = not fired */
    /* written by the caller before RUN; constant until it is IDLE again */
    lua_State *L;
    lua_Hook hook;
    const char *what; /* "plan" */
    unsigned budget_us;
    pthread_t thread;
    _Atomic clockid_t cpu_clock; /* of `thread` */
    uint64_t thread_serial;      /* names `thread`, for good; 0 = none yet */
    uint64_t
        slow_us; /* of a call that was SLOW or more, at its end; whoever tells it sets it to 0 */
    /* the watchdog's own */
    bt_list_t link;
    uint64_t seen_us; /* deadline at its last look */
    uint64_t call_us,
        cpu_us; /* deadline of the call that was last seen running, CPU time of `thread` then */
    uint64_t fired_us;
} bt_watch_t;

/* One for each stop. uv error when the thread cannot be made. */
int bt_watchdog_start(void);
void bt_watchdog_stop(void);

/* hook: calls bt_watch_look with the watch of its state. */
void bt_watch_init(bt_watch_t *w, lua_State *L, lua_Hook hook);
void bt_watch_fini(bt_watch_t *w);
/* what: static text for the message. The call must end with bt_watch_end on the same thread. */
void bt_watch_begin(bt_watch_t *w, const char *what, unsigned budget_us, uint64_t now_us);
/* True when the call was fired at. */
bool bt_watch_end(bt_watch_t *w);
/* For C functions that may run long. */
static inline bool bt_watch_is_over(const bt_watch_t *w)
{
    return atomic_load_explicit(&w->state, memory_order_relaxed) >= BT_WATCH_FIRING;
}
/* From the hook: raises when the grace is over. */
void bt_watch_look(lua_State *L, const bt_watch_t *w);
/* Raises "file:line: plan ran over its budget of 2 ms". level: as of luaL_where. */
int bt_watch_raise(lua_State *L, const bt_watch_t *w, int level);
/* Times that the thread woke up, to show that it sleeps. */
unsigned long bt_watchdog_polls(void);

#endif
