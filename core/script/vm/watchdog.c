/* How it works: code that the interpreter runs stops only where a hook is called, and a hook may be set from a signal
 * handler. So one thread looks at all watches once a millisecond; a call that is over its time gets a signal on its own
 * thread, and the handler sets a hook that counts one instruction. Setting it from here would do on x86-64, where other
 * threads see plain stores in order, but not on arm64.
 *
 *           begin              thread: CAS            handler
 *     IDLE ------> RUN ---> SLOW -----------> FIRING --------> FIRED
 *      ^            |        |                   (thread, every REFIRE_US)
 *      |  end: CAS  |        |                FIRING <--------- |
 *      +------------+--------+<-- end: CAS, clears the hook ----+
 *
 * SLOW costs a quick call nothing: only a call that two looks in a row have seen fails the first CAS of end(), and reads the clock.
 *
 * end() never returns while FIRING, so the signal always finds its thread inside the call: no system call of the event loop
 * is ever interrupted by it, and the thread cannot be gone. The hook stays until end(), or `while true do pcall(f) end` would
 * swallow it.
 *
 * Time is wall time first, because the thread can read it for nothing, then CPU time of the caller's thread from the
 * moment the call was first seen: a call whose thread waits for a busy core is not a runaway. (A hypervisor that takes the
 * core away is not seen by that clock; so the hook lets another GRACE_US pass, in which an honest call ends.)
 *
 * Sleep: the thread says so in `asleep`, makes every core see it (membarrier), and looks once more; begin() stores RUN and
 * then reads `asleep`. Without the barrier on this side each call would need one. */
#include "script/vm/watchdog.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/sanitize.h"

#include <errno.h>
#include <lauxlib.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WATCH_SIGNAL (SIGRTMIN + 1)
#define POLL_US 1000
#define LINGER_POLLS                                                                               \
    20 /* looks without any call before the thread sleeps: a steady trickle costs no wake-ups */
#define GRACE_US 300   /* from the signal on, on the thread itself */
#define REFIRE_US 5000 /* the hook was lost (a racing write of LuaJIT's own flags): once more */

/* TSan holds signals back until the thread enters its runtime, which a spinning interpreter never does. */
#define SIGNALS_COME_LATE BT_TSAN
/* Budgets are written for production code; a sanitized program gets the same work done in this many times the time. */
#define SLOWNESS (BT_TSAN ? 8 : BT_ASAN ? 4 : 1)

static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER;    /* start and stop */
static pthread_mutex_t watches = PTHREAD_MUTEX_INITIALIZER; /* the list */
static bt_list_t list = {&list, &list};
static pthread_t thread;
static unsigned users;
static atomic_bool quitting;
static _Atomic int asleep;
static _Atomic unsigned long polls;
static sem_t wake;
static bool has_barrier;

static uint64_t allowed_us(const bt_watch_t *w)
{
    return (uint64_t) w->budget_us * SLOWNESS;
}

/* In a call, or at its end. */
static uint64_t begun_us(const bt_watch_t *w)
{
    return atomic_load_explicit(&w->deadline_us, memory_order_relaxed) - allowed_us(w);
}

/* ---- the caller's side ---- */

int bt_watch_raise(lua_State *L, const bt_watch_t *w, int level)
{
    luaL_where(L, level);
    lua_pushfstring(L, "%s ran over its budget of %d ms", w->what, (int) (w->budget_us / 1000));
    lua_concat(L, 2);
    return lua_error(L);
}

void bt_watch_look(lua_State *L, const bt_watch_t *w)
{
    if (bt_clock_us() >= atomic_load_explicit(&w->grace_us, memory_order_relaxed))
        (void) bt_watch_raise(L, w, 0);
}

static void set_hook(bt_watch_t *w)
{
    if (atomic_load_explicit(&w->grace_us, memory_order_relaxed) == 0)
        atomic_store_explicit(&w->grace_us, bt_clock_us() + GRACE_US, memory_order_relaxed);
    lua_sethook(w->L, w->hook, LUA_MASKCOUNT, 1);
    atomic_store_explicit(&w->state, BT_WATCH_FIRED, memory_order_release);
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void) number;
    (void) context;
    if (info->si_code == SI_QUEUE && info->si_pid == getpid() && info->si_value.sival_ptr != NULL)
        set_hook(info->si_value.sival_ptr);
}

static void wake_thread(void)
{
    if (atomic_exchange(&asleep, 0) != 0)
        sem_post(&wake);
}

/* A pthread_t is used again when its thread has ended; these are not. */
static uint64_t own_serial(void)
{
    static _Atomic uint64_t last;
    static _Thread_local uint64_t own;

    if (own == 0)
        own = atomic_fetch_add(&last, 1) + 1;
    return own;
}

static void bind_thread(bt_watch_t *w, pthread_t self)
{
    clockid_t clock = CLOCK_MONOTONIC;
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, WATCH_SIGNAL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    w->thread = self;
    w->thread_serial = pthread_getcpuclockid(self, &clock) == 0 ? own_serial() : 0;
    atomic_store_explicit(&w->cpu_clock, clock, memory_order_relaxed);
}

void bt_watch_begin(bt_watch_t *w, const char *what, unsigned budget_us, uint64_t now_us)
{
    if (w->thread_serial == 0 || w->thread_serial != own_serial())
        bind_thread(w, pthread_self());
    atomic_store_explicit(&w->grace_us, 0, memory_order_relaxed);
    w->what = what;
    w->budget_us = budget_us;
    atomic_store_explicit(&w->deadline_us, now_us + allowed_us(w), memory_order_relaxed);
    atomic_store_explicit(&w->state, BT_WATCH_RUN, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst); /* the thread's membarrier does the rest */
    if (atomic_load_explicit(&asleep, memory_order_relaxed) != 0)
        wake_thread();
}

bool bt_watch_end(bt_watch_t *w)
{
    int state = BT_WATCH_RUN;

    if (atomic_compare_exchange_strong(&w->state, &state, BT_WATCH_IDLE))
        return false;
    while (state == BT_WATCH_FIRING ||
           !atomic_compare_exchange_weak(&w->state, &state, BT_WATCH_IDLE)) {
        sched_yield(); /* the signal is on its way to this very thread */
        state = atomic_load(&w->state);
    }
    const uint64_t took_us = bt_clock_us() - begun_us(w);
    w->slow_us =
        took_us >= POLL_US ? took_us : 0; /* one that was marked for the call before it is not */
    if (state != BT_WATCH_FIRED)
        return false;
    lua_sethook(w->L, NULL, 0, 0);
    return true;
}

void bt_watch_init(bt_watch_t *w, lua_State *L, lua_Hook hook)
{
    *w = (bt_watch_t){.L = L, .hook = hook};
    pthread_mutex_lock(&watches);
    bt_list_push(&list, &w->link);
    pthread_mutex_unlock(&watches);
}

void bt_watch_fini(bt_watch_t *w)
{
    if (w->L == NULL)
        return;
    pthread_mutex_lock(&watches);
    bt_list_remove(&w->link);
    pthread_mutex_unlock(&watches);
    w->L = NULL;
}

/* ---- the thread's side ---- */

static uint64_t cpu_us_of(const bt_watch_t *w)
{
    struct timespec ts;

    if (clock_gettime(atomic_load_explicit(&w->cpu_clock, memory_order_relaxed), &ts) != 0)
        return 0;
    return (uint64_t) ts.tv_sec * 1000000 + (uint64_t) ts.tv_nsec / 1000;
}

/* In state FIRING: the caller stays inside its call. */
static void send_signal(bt_watch_t *w, uint64_t now_us)
{
    const union sigval value = {.sival_ptr = w};

    w->fired_us = now_us;
    if (SIGNALS_COME_LATE)
        set_hook(w);
    else if (pthread_sigqueue(w->thread, WATCH_SIGNAL, value) != 0)
        atomic_store(&w->state, BT_WATCH_RUN); /* the queue is full: next time */
}

static bool is_overdue(const bt_watch_t *w, uint64_t now_us)
{
    uint64_t used_us;

    if (now_us < atomic_load_explicit(&w->deadline_us, memory_order_relaxed))
        return false;
    used_us = cpu_us_of(w) - w->cpu_us;
    return used_us + POLL_US >= allowed_us(w); /* it may have run for one poll before it was seen */
}

static void fire(bt_watch_t *w, uint64_t now_us)
{
    int state = atomic_load_explicit(&w->state, memory_order_relaxed);

    if ((state != BT_WATCH_RUN && state != BT_WATCH_SLOW) ||
        !atomic_compare_exchange_strong(&w->state, &state, BT_WATCH_FIRING))
        return;
    /* Another call may have begun since: now that its caller must stay, look again. */
    if (atomic_load(&w->deadline_us) != w->call_us || !is_overdue(w, now_us))
        atomic_store(&w->state, BT_WATCH_RUN);
    else
        send_signal(w, now_us);
}

static void refire(bt_watch_t *w, uint64_t now_us)
{
    int state = BT_WATCH_FIRED;

    if (now_us - w->fired_us >= REFIRE_US &&
        atomic_compare_exchange_strong(&w->state, &state, BT_WATCH_FIRING))
        send_signal(w, now_us);
}

/* Another call may have begun since the look: then that one reads the clock for nothing. */
static void mark_slow(bt_watch_t *w)
{
    int state = BT_WATCH_RUN;

    (void) atomic_compare_exchange_strong(&w->state, &state, BT_WATCH_SLOW);
}

/* True when there was a call since the last look, or one runs. */
static bool poll_one(bt_watch_t *w, uint64_t now_us)
{
    int state = atomic_load_explicit(&w->state, memory_order_acquire);
    uint64_t deadline_us = atomic_load_explicit(&w->deadline_us, memory_order_relaxed);
    bool is_new = deadline_us != w->seen_us;
    bool is_running = state == BT_WATCH_RUN || state == BT_WATCH_SLOW;

    w->seen_us = deadline_us;
    if (is_running && deadline_us != w->call_us) {
        w->call_us = deadline_us;
        w->cpu_us = cpu_us_of(w);
    } else if (is_running && now_us >= deadline_us) {
        fire(w, now_us);
    } else if (state == BT_WATCH_RUN) {
        mark_slow(w);
    } else if (state == BT_WATCH_FIRED) {
        refire(w, now_us);
    }
    return is_new || state != BT_WATCH_IDLE;
}

static bool poll_all(void)
{
    uint64_t now_us = bt_clock_us();
    bool active = false;
    bt_list_t *it, *next;

    atomic_fetch_add_explicit(&polls, 1, memory_order_relaxed);
    pthread_mutex_lock(&watches);
    bt_list_each (&list, it, next)
        active |= poll_one(bt_container_of(it, bt_watch_t, link), now_us);
    pthread_mutex_unlock(&watches);
    return active;
}

static void nap(void)
{
    const struct timespec poll = {.tv_nsec = POLL_US * 1000};

    nanosleep(&poll, NULL);
}

/* Every thread that runs now has read or will read asleep == 1, or its RUN is seen by the look after this. */
static void make_visible(void)
{
    if (!has_barrier || syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0)
        nap(); /* no store waits that long in a core's buffer */
}

static void sleep_until_called(void)
{
    atomic_store(&asleep, 1);
    make_visible();
    if ((poll_all() || atomic_load(&quitting)) && atomic_exchange(&asleep, 0) != 0)
        return;
    while (sem_wait(&wake) != 0 && errno == EINTR)
        ;
}

static void *run_thread(void *unused)
{
    const struct sched_param first = {.sched_priority = 1};
    unsigned quiet = 0;

    (void) unused;
    /* Where that is allowed, a busy machine must not keep it waiting: it needs microseconds, a runaway takes all it gets. */
    (void) pthread_setschedparam(pthread_self(), SCHED_RR, &first);
    while (!atomic_load(&quitting)) {
        quiet = poll_all() ? 0 : quiet + 1;
        if (quiet < LINGER_POLLS) {
            nap();
            continue;
        }
        sleep_until_called();
        quiet = 0;
    }
    return NULL;
}

/* ---- life ---- */

static int start_thread(void)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigset_t all, before;
    int rc;

    sigemptyset(&action.sa_mask);
    if (sigaction(WATCH_SIGNAL, &action, NULL) != 0 || sem_init(&wake, 0, 0) != 0)
        return -errno;
    has_barrier = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
    atomic_store(&quitting, false);
    atomic_store(&asleep, 0);
    sigfillset(&all); /* signals of the process are for others */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&thread, NULL, run_thread, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        return 0;
    sem_destroy(&wake);
    return -rc;
}

static void stop_thread(void)
{
    atomic_store(&quitting, true);
    wake_thread();
    pthread_join(thread, NULL);
    sem_destroy(&wake);
}

int bt_watchdog_start(void)
{
    int rc = 0;

    pthread_mutex_lock(&life);
    if (users == 0)
        rc = start_thread();
    if (rc == 0)
        users++;
    pthread_mutex_unlock(&life);
    return rc;
}

void bt_watchdog_stop(void)
{
    pthread_mutex_lock(&life);
    BT_BUG_ON(users == 0);
    if (--users == 0)
        stop_thread();
    pthread_mutex_unlock(&life);
}

unsigned long bt_watchdog_polls(void)
{
    return atomic_load_explicit(&polls, memory_order_relaxed);
}
