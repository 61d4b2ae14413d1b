/* recorder.c - the file of decision records and the thread that writes it.
 *
 * Loops append lines to `waiting` under a lock; the thread takes the whole text, gives an empty one back, and writes without the
 * lock. Two texts go round, so nothing is allocated after warm-up. A loop never waits: a line that finds QUEUE_BYTES or
 * QUEUE_LINES there is dropped and counted.
 *
 * A pipe or a device gets what fits and the rest later; nothing of that can be cut off again.
 *
 * The file holds whole lines only. A write that stops half-way (a full disk) is cut off again, and tried anew with growing
 * pauses; what was taken stays in memory meanwhile, and the queue fills. Nothing but close ends that: then there is one
 * last try, and what it cannot write counts as dropped.
 */
#include "base/err.h"
#include "base/log.h"
#include "base/thread.h"
#include "record/record.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define QUEUE_BYTES ((size_t) 4 << 20)
#define QUEUE_LINES 8192
#define RETRY_MIN_MS 100
#define RETRY_MAX_MS 5000

typedef struct batch {
    bt_text_t text; /* whole lines */
    unsigned lines;
} batch_t;

struct bt_recorder {
    char *path, *old_path;
    const char *what; /* component of its log lines; static */
    uint64_t max_bytes;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    batch_t waiting;       /* under lock */
    bool closing;          /* under lock */
    _Atomic bool is_moved; /* the file has another name; set under lock */
    _Atomic uint64_t written, dropped, errors;
    /* the thread's */
    int fd; /* -1 = to be opened */
    bool is_regular;
    bool is_torn; /* half a line could not be cut off */
    bool is_failing;
    uint64_t size; /* of the file: whole lines */
    batch_t taken;
    size_t done; /* bytes of taken that are in the file */
};

static void count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* ---- the file ---- */

/* A process that was killed may have left half a line. */
static bool ends_in_newline(int fd, uint64_t size)
{
    char last = '\n';

    return size == 0 || pread(fd, &last, 1, (off_t) size - 1) != 1 || last == '\n';
}

static int open_file(bt_recorder_t *rec)
{
    struct stat st;
    int fd = open(rec->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640);

    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) != 0) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    if (S_ISDIR(st.st_mode)) {
        close(fd);
        return -EISDIR;
    }
    rec->fd = fd;
    rec->is_regular = S_ISREG(st.st_mode);
    rec->size = rec->is_regular ? (uint64_t) st.st_size : 0;
    rec->is_torn = rec->is_regular && !ends_in_newline(fd, rec->size);
    return 0;
}

static void close_file(bt_recorder_t *rec)
{
    if (rec->fd >= 0)
        close(rec->fd);
    rec->fd = -1;
}

static int rotate(bt_recorder_t *rec)
{
    if (rename(rec->path, rec->old_path) != 0 && errno != ENOENT) /* taken away: a new one begins */
        return -errno;
    close_file(rec);
    return open_file(rec);
}

/* 0: all of it is in the file; else a negative errno, and none of it is; or, in a pipe, whose reader may have had it, *kept_p
 * bytes. */
static int append(bt_recorder_t *rec, const char *p, size_t n, size_t *kept_p)
{
    size_t at = 0;
    int rc = 0;

    while (at < n && rc == 0) {
        ssize_t k = write(rec->fd, p + at, n - at);
        if (k >= 0)
            at += (size_t) k;
        else if (errno != EINTR)
            rc = -errno;
    }
    *kept_p = rc == 0 || !rec->is_regular ? at : 0;
    rec->size += *kept_p;
    if (rc == 0 || !rec->is_regular)
        return rc;
    if (at > 0 && ftruncate(rec->fd, (off_t) rec->size) == 0)
        return rc;
    if (at > 0) {
        rec->size += at;
        rec->is_torn = true;
    }
    return rc;
}

/* Bytes of the whole lines at p that fit below the limit; at least one line. */
static size_t fitting(const bt_recorder_t *rec, const char *p, size_t n)
{
    const uint64_t room = rec->max_bytes > rec->size ? rec->max_bytes - rec->size : 0;

    return rec->is_regular ? bt_str_cut_lines((bt_str_t){p, n}, (size_t) room).n : n;
}

/* Writes on where it was left off. 0 or a negative errno. */
static int write_taken(bt_recorder_t *rec)
{
    int rc = 0;
    size_t kept;

    if (atomic_exchange(&rec->is_moved, false))
        close_file(rec);
    if (rec->fd < 0)
        rc = open_file(rec);
    if (rc == 0 && rec->is_torn && (rc = append(rec, "\n", 1, &kept)) == 0)
        rec->is_torn = false;
    while (rc == 0 && rec->done < rec->taken.text.len) {
        const char *p = rec->taken.text.data + rec->done;
        const size_t left = rec->taken.text.len - rec->done;
        size_t n = fitting(rec, p, left);

        if (rec->is_regular && rec->size > 0 && rec->size + n > rec->max_bytes) {
            if ((rc = rotate(rec)) < 0)
                break;
            n = fitting(rec, p, left);
        }
        rc = append(rec, p, n, &kept);
        rec->done += kept;
        count(&rec->written, bt_str_lines((bt_str_t){p, kept}));
    }
    return rc;
}

/* ---- the thread ---- */

static void note_failure(bt_recorder_t *rec, int rc)
{
    count(&rec->errors, 1);
    if (!rec->is_failing)
        bt_log_error(rec->what,
                     "cannot write %s: %s; lines wait in memory, and are dropped when more than "
                     "%u MiB of them do",
                     rec->path, strerror(-rc), (unsigned) (QUEUE_BYTES >> 20));
    rec->is_failing = true;
}

static void note_success(bt_recorder_t *rec)
{
    if (rec->is_failing)
        bt_log_info(rec->what, "%s can be written again, %llu lines were dropped since the start",
                    rec->path,
                    (unsigned long long) atomic_load_explicit(&rec->dropped, memory_order_relaxed));
    rec->is_failing = false;
}

/* Under lock. */
static bool is_idle(const bt_recorder_t *rec)
{
    return rec->waiting.lines == 0 && !rec->is_moved;
}

/* Until there is something to do, or the end. False: the end, and nothing is left. */
static bool take(bt_recorder_t *rec)
{
    batch_t empty;
    bool has_some;

    rec->taken.text.len = 0;
    rec->taken.lines = 0;
    rec->done = 0;
    empty = rec->taken;
    pthread_mutex_lock(&rec->lock);
    while (is_idle(rec) && !rec->closing)
        pthread_cond_wait(&rec->wake, &rec->lock);
    has_some = !is_idle(rec);
    rec->taken = rec->waiting;
    rec->waiting = empty;
    pthread_mutex_unlock(&rec->lock);
    return has_some;
}

/* False: closing, there is no more time. */
static bool pause_for(bt_recorder_t *rec, unsigned ms)
{
    const uint64_t until_us = bt_clock_us() + (uint64_t) ms * 1000;
    bool closing;

    pthread_mutex_lock(&rec->lock);
    while (!rec->closing && !rec->is_moved && bt_thread_wait(&rec->wake, &rec->lock, until_us))
        continue;
    closing = rec->closing;
    pthread_mutex_unlock(&rec->lock);
    return !closing;
}

/* False: it cannot be written, and the recorder is closing. */
static bool write_all(bt_recorder_t *rec)
{
    unsigned pause_ms = RETRY_MIN_MS;
    bool is_last = false;
    size_t done = 0;
    int rc;

    while ((rc = write_taken(rec)) < 0) {
        note_failure(rec, rc);
        if (rec->done != done) /* a pipe's reader is slow, not away */
            pause_ms = RETRY_MIN_MS;
        done = rec->done;
        if (is_last)
            return false;
        is_last = !pause_for(rec, pause_ms);
        pause_ms = 2 * pause_ms < RETRY_MAX_MS ? 2 * pause_ms : RETRY_MAX_MS;
    }
    note_success(rec);
    return true;
}

static void *run(void *arg)
{
    bt_recorder_t *rec = arg;

    while (take(rec))
        if (!write_all(rec)) {
            const bt_text_t *text = &rec->taken.text;
            count(&rec->dropped,
                  bt_str_lines((bt_str_t){text->data + rec->done, text->len - rec->done}));
        }
    return NULL;
}

/* ---- for the loops ---- */

bool bt_recorder_put(bt_recorder_t *rec, bt_str_t line)
{
    batch_t *w = &rec->waiting;
    bool fits;

    pthread_mutex_lock(&rec->lock);
    const size_t before = w->text.len;
    fits = w->lines < QUEUE_LINES && line.n < QUEUE_BYTES && before < QUEUE_BYTES - line.n;
    if (fits) {
        bt_text_put(&w->text, line);
        bt_text_put(&w->text, BT_STR("\n"));
        fits = !w->text.failed;
        if (!fits) {
            w->text.len = before;
            w->text.failed = false;
        }
    }
    if (fits && w->lines++ == 0)
        pthread_cond_signal(&rec->wake);
    pthread_mutex_unlock(&rec->lock);
    if (!fits)
        count(&rec->dropped, 1);
    return fits;
}

void bt_recorder_reopen(bt_recorder_t *rec)
{
    if (rec == NULL)
        return;
    pthread_mutex_lock(&rec->lock);
    rec->is_moved = true;
    pthread_cond_signal(&rec->wake);
    pthread_mutex_unlock(&rec->lock);
}

void bt_recorder_stats(bt_recorder_t *rec, bt_recorder_stats_t *stats_p)
{
    *stats_p = (bt_recorder_stats_t){0, 0, 0};
    if (rec == NULL)
        return;
    stats_p->written = atomic_load_explicit(&rec->written, memory_order_relaxed);
    stats_p->dropped = atomic_load_explicit(&rec->dropped, memory_order_relaxed);
    stats_p->errors = atomic_load_explicit(&rec->errors, memory_order_relaxed);
}

/* ---- life ---- */

static void free_recorder(bt_recorder_t *rec)
{
    close_file(rec);
    bt_text_fini(&rec->waiting.text);
    bt_text_fini(&rec->taken.text);
    pthread_cond_destroy(&rec->wake);
    pthread_mutex_destroy(&rec->lock);
    free(rec->path);
    free(rec->old_path);
    free(rec);
}

static int new_recorder(bt_recorder_t **rec_p, const bt_record_config_t *config)
{
    bt_recorder_t *rec = calloc(1, sizeof(*rec));

    if (rec == NULL)
        return BT_E_NOMEM;
    rec->fd = -1;
    rec->max_bytes = config->max_bytes;
    rec->what = config->what != NULL ? config->what : "records";
    pthread_mutex_init(&rec->lock, NULL);
    uv_cond_init(&rec->wake);
    rec->path = bt_str_dup(bt_str(config->file));
    if (rec->path == NULL || asprintf(&rec->old_path, "%s.1", config->file) < 0) {
        rec->old_path = NULL;
        free_recorder(rec);
        return BT_E_NOMEM;
    }
    *rec_p = rec;
    return 0;
}

int bt_recorder_open(bt_recorder_t **recorder_p, const bt_record_config_t *config, char *err,
                     size_t err_size)
{
    bt_recorder_t *rec = NULL;
    int rc;

    *recorder_p = NULL;
    if (config->file == NULL)
        return 0;
    if (new_recorder(&rec, config) < 0) {
        snprintf(err, err_size, "%s", bt_err_text(BT_E_NOMEM));
        return BT_E_NOMEM;
    }
    if ((rc = open_file(rec)) < 0 || (rc = bt_thread_start(&rec->thread, run, rec)) < 0) {
        snprintf(err, err_size, "%s: cannot write %s: %s",
                 config->flag != NULL ? config->flag : "--record-file", config->file,
                 strerror(-rc));
        free_recorder(rec);
        return BT_E_CONFIG;
    }
    *recorder_p = rec;
    return 0;
}

void bt_recorder_close(bt_recorder_t *rec)
{
    if (rec == NULL)
        return;
    pthread_mutex_lock(&rec->lock);
    rec->closing = true;
    pthread_cond_signal(&rec->wake);
    pthread_mutex_unlock(&rec->lock);
    pthread_join(rec->thread, NULL);
    free_recorder(rec);
}
