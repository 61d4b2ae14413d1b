/* Two buffers change places: threads append to one, the writer writes the other without the lock. Both begin at their first
 * byte each time, so a quiet process touches a few pages of them only.
 *
 * stderr may be a pipe that nobody reads, and write(2) blocks then; O_NONBLOCK is not ours to set, because whoever shares
 * the other end of our parent's terminal would get it too. So the writer is left behind at the end when it is stuck.
 *
 * A pipe gets PIPE_BUF bytes at most with one write, in whole lines: the kernel does not mix these with the lines of other
 * processes that write to it.
 */
#include "base/log_impl.h"

#include "base/err.h"
#include "base/log.h"
#include "base/thread.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>

#define HALF_BYTES (BT_LOG_QUEUE_BYTES / 2)
#define WRITE_BYTES ((size_t) 64 << 10)

/* Lines go to their writers themselves, to the queue, or to nobody: the end came while stderr took nothing. */
enum { DIRECT, QUEUED, SILENT };

static _Atomic int state;
static _Atomic uint64_t dropped;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake; /* the writer */
static pthread_cond_t done; /* who waits for it */
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* All under lock. */
static char *waiting, *taken;
static size_t waiting_n;
static uint64_t batches_begun, batches_done;
static uint64_t untold; /* dropped lines that no line has told of */
static bool has_writer, is_asleep, is_hurried, is_closing;

/* ---- writing ---- */

static size_t write_max(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode) ? PIPE_BUF : WRITE_BYTES;
}

/* False: it cannot be written. Waits for as long as the other end reads nothing. */
static bool write_piece(int fd, const char *p, size_t n)
{
    while (n > 0) {
        const ssize_t wrote = write(fd, p, n);
        if (wrote >= 0) {
            p += wrote;
            n -= (size_t) wrote;
        } else if (errno == EAGAIN) { /* somebody else has made it non-blocking */
            struct pollfd room = {.fd = fd, .events = POLLOUT};
            (void) poll(&room, 1, -1);
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

/* Returns the number of lines that are lost. */
static size_t write_batch(bt_str_t lines)
{
    const int fd = bt_log_fd();
    const size_t max = write_max(fd);

    while (lines.n > 0) {
        const size_t n = bt_str_cut_lines(lines, max).n;
        if (!write_piece(fd, lines.p, n))
            return bt_str_lines(lines);
        lines = (bt_str_t){lines.p + n, lines.n - n};
    }
    return 0;
}

static bool write_dropped(uint64_t n)
{
    char line[256];

    return n == 0 || write_piece(bt_log_fd(), line, bt_log_dropped_line(line, sizeof(line), n));
}

/* ---- the writer ---- */

/* Under lock: what gathers meanwhile is written at once then. */
static void rest(void)
{
    const uint64_t until_us = bt_clock_us() + BT_LOG_REST_MS * 1000;

    while (!is_hurried && !is_closing && bt_thread_wait(&wake, &lock, until_us))
        continue;
}

/* Under lock. Until there is something to write; false: the end, and nothing is left. */
static bool wait_for_lines(void)
{
    while (waiting_n == 0 && !is_closing) {
        is_asleep = true;
        pthread_cond_wait(&wake, &lock);
    }
    is_asleep = is_hurried = false;
    return waiting_n > 0;
}

/* Under lock, which is given back while it writes. Lines are dropped while those that wait fill their buffer, so the count
 * comes after these. */
static void write_waiting(void)
{
    char *batch = waiting;
    const size_t n = waiting_n;
    const uint64_t lost_before = untold;
    size_t lost;
    bool is_told;

    waiting = taken;
    taken = batch;
    waiting_n = 0;
    untold = 0;
    batches_begun++;
    pthread_mutex_unlock(&lock);
    lost = write_batch((bt_str_t){batch, n});
    is_told = lost == 0 && write_dropped(lost_before);
    atomic_fetch_add_explicit(&dropped, lost, memory_order_relaxed);
    pthread_mutex_lock(&lock);
    untold += lost + (is_told ? 0 : lost_before);
    batches_done++;
    pthread_cond_broadcast(&done);
}

static void *run(void *arg)
{
    (void) arg;
    pthread_mutex_lock(&lock);
    while (wait_for_lines()) {
        write_waiting();
        rest();
    }
    has_writer = false;
    pthread_cond_broadcast(&done);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* ---- for everybody ---- */

bool bt_log_queue_put(bt_str_t line)
{
    bool wakes = false;

    if (atomic_load_explicit(&state, memory_order_acquire) == DIRECT)
        return false;
    pthread_mutex_lock(&lock);
    const int now = atomic_load_explicit(&state, memory_order_relaxed);
    if (now == QUEUED && line.n < HALF_BYTES - waiting_n) {
        if (line.n > 0)
            memcpy(waiting + waiting_n, line.p, line.n);
        waiting_n += line.n;
        waiting[waiting_n++] = '\n';
        wakes = is_asleep;
        is_asleep = false;
    } else if (now != DIRECT) {
        untold++;
        atomic_fetch_add_explicit(&dropped, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&lock);
    if (wakes)
        pthread_cond_signal(&wake);
    return now != DIRECT;
}

bool bt_log_queue_flush(unsigned timeout_ms)
{
    const uint64_t until_us = bt_clock_us() + (uint64_t) timeout_ms * 1000;
    uint64_t last;

    const int now = atomic_load_explicit(&state, memory_order_acquire);
    if (now != QUEUED)
        return now == DIRECT;
    pthread_mutex_lock(&lock);
    last = batches_begun + (waiting_n > 0);
    is_hurried = true;
    pthread_cond_signal(&wake);
    while (batches_done < last && has_writer && bt_thread_wait(&done, &lock, until_us))
        continue;
    const bool is_done = batches_done >= last;
    pthread_mutex_unlock(&lock);
    return is_done;
}

void bt_log_queue_leave(bool is_silent)
{
    atomic_store_explicit(&state, is_silent ? SILENT : DIRECT, memory_order_release);
}

uint64_t bt_log_dropped(void)
{
    return atomic_load_explicit(&dropped, memory_order_relaxed);
}

/* ---- life ---- */

/* The child has no writer; whoever held the lock was another thread, which it has not either. What waits is the parent's. */
static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    uv_cond_init(&wake);
    uv_cond_init(&done);
    atomic_store(&state, DIRECT);
    has_writer = false;
    waiting_n = 0;
}

static void prepare(void)
{
    uv_cond_init(&wake);
    uv_cond_init(&done);
    (void) pthread_atfork(NULL, NULL, in_child);
}

/* Under lock. A writer that is stuck since the last stop goes on. */
static int start_writer(void)
{
    pthread_t thread;
    int rc;

    is_closing = false;
    if (has_writer)
        return 0;
    if (waiting == NULL)
        waiting = malloc(HALF_BYTES);
    if (taken == NULL)
        taken = malloc(HALF_BYTES);
    if (waiting == NULL || taken == NULL)
        return BT_E_NOMEM;
    is_asleep = false;
    rc = bt_thread_start(&thread, run, NULL);
    if (rc < 0)
        return rc;
    pthread_detach(thread);
    has_writer = true;
    return 0;
}

int bt_log_start(void)
{
    int rc;

    pthread_once(&once, prepare);
    pthread_mutex_lock(&lock);
    rc = start_writer();
    if (rc == 0)
        atomic_store_explicit(&state, QUEUED, memory_order_release);
    pthread_mutex_unlock(&lock);
    return rc;
}

void bt_log_stop(unsigned timeout_ms)
{
    const uint64_t until_us = bt_clock_us() + (uint64_t) timeout_ms * 1000;

    if (atomic_load_explicit(&state, memory_order_acquire) != QUEUED)
        return;
    pthread_mutex_lock(&lock);
    is_closing = true;
    pthread_cond_signal(&wake);
    while (has_writer && bt_thread_wait(&done, &lock, until_us))
        continue;
    atomic_store_explicit(&state, has_writer ? SILENT : DIRECT, memory_order_release);
    if (!has_writer) {
        free(waiting);
        free(taken);
        waiting = taken = NULL;
    }
    pthread_mutex_unlock(&lock);
}
