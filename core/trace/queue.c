/* A ring of bytes: each trace has a head of its length and its spans. Its memory is taken with the first trace, so that a gateway
 * whose requests all go well pays for no queue.
 */
#include "trace/queue.h"

#include "base/err.h"

#include <pthread.h>
#include <stdlib.h>

struct head {
    uint32_t bytes, spans;
};

struct bt_trace_queue {
    pthread_mutex_t lock;
    char *ring; /* BT_TRACE_QUEUE_BYTES; NULL = nothing has come yet */
    size_t at, used;
    bt_trace_stats_t stats;
    bt_trace_exemplar_t exemplars[BT_TRACE_METRICS][BT_TRACE_BUCKETS];
};

const char *bt_trace_why_name(enum bt_trace_why why)
{
    static const char *const names[] = {"sampled", "failed", "retried", "slow"};

    return names[why];
}

/* ---- the ring; all under lock ---- */

static void copy_in(bt_trace_queue_t *q, const void *from, size_t n)
{
    const size_t to = (q->at + q->used) % BT_TRACE_QUEUE_BYTES;
    const size_t first = n < BT_TRACE_QUEUE_BYTES - to ? n : BT_TRACE_QUEUE_BYTES - to;

    memcpy(q->ring + to, from, first);
    if (n > first)
        memcpy(q->ring, (const char *) from + first, n - first);
    q->used += n;
}

/* Of what is there; nothing is taken. */
static void read_head(const bt_trace_queue_t *q, struct head *head)
{
    char *to = (char *) head;

    for (size_t i = 0; i < sizeof(*head); i++)
        to[i] = q->ring[(q->at + i) % BT_TRACE_QUEUE_BYTES];
}

static void drop(bt_trace_queue_t *q, size_t n)
{
    q->at = (q->at + n) % BT_TRACE_QUEUE_BYTES;
    q->used -= n;
}

static void copy_out(bt_trace_queue_t *q, bt_text_t *out, size_t n)
{
    const size_t first = n < BT_TRACE_QUEUE_BYTES - q->at ? n : BT_TRACE_QUEUE_BYTES - q->at;

    bt_text_put(out, (bt_str_t){q->ring + q->at, first});
    if (n > first)
        bt_text_put(out, (bt_str_t){q->ring, n - first});
    drop(q, n);
}

/* ---- in ---- */

static void keep_exemplars(bt_trace_queue_t *q, const bt_trace_kept_t *kept)
{
    for (unsigned m = 0; m < BT_TRACE_METRICS; m++) {
        if (kept->values[m].bucket >= BT_TRACE_BUCKETS)
            continue;
        bt_trace_exemplar_t *e = &q->exemplars[m][kept->values[m].bucket];
        memcpy(e->trace, kept->trace, sizeof(e->trace));
        e->us = kept->values[m].us;
        e->wall_ms = kept->wall_ms;
    }
}

static bool has_room(bt_trace_queue_t *q, size_t n)
{
    if (q->ring == NULL)
        q->ring = malloc(BT_TRACE_QUEUE_BYTES);
    return q->ring != NULL && n <= BT_TRACE_QUEUE_BYTES - q->used;
}

bool bt_trace_queue_put(bt_trace_queue_t *q, const bt_trace_kept_t *kept)
{
    const struct head head = {(uint32_t) kept->draft.n, kept->spans};

    pthread_mutex_lock(&q->lock);
    const bool fits =
        kept->draft.n < BT_TRACE_QUEUE_BYTES && has_room(q, sizeof(head) + kept->draft.n);
    q->stats.kept[kept->why]++;
    if (fits) {
        copy_in(q, &head, sizeof(head));
        copy_in(q, kept->draft.p, kept->draft.n);
        q->stats.waiting += kept->spans;
        keep_exemplars(q, kept);
    } else {
        q->stats.dropped += kept->spans;
    }
    pthread_mutex_unlock(&q->lock);
    return fits;
}

/* ---- out ---- */

size_t bt_trace_queue_bytes(bt_trace_queue_t *q)
{
    pthread_mutex_lock(&q->lock);
    const size_t bytes = q->used;
    pthread_mutex_unlock(&q->lock);
    return bytes;
}

void bt_trace_queue_take(bt_trace_queue_t *q, size_t max_bytes, bt_trace_batch_t *batch)
{
    struct head head;
    size_t taken = 0;

    pthread_mutex_lock(&q->lock);
    while (q->used > 0 && !batch->drafts.failed) {
        read_head(q, &head);
        if (taken > 0 && taken + head.bytes > max_bytes)
            break;
        drop(q, sizeof(head));
        copy_out(q, &batch->drafts, head.bytes);
        batch->spans += head.spans;
        taken += head.bytes;
    }
    pthread_mutex_unlock(&q->lock);
}

void bt_trace_queue_note(bt_trace_queue_t *q, uint64_t exported, uint64_t rejected,
                         uint64_t dropped)
{
    pthread_mutex_lock(&q->lock);
    q->stats.exported += exported;
    q->stats.rejected += rejected;
    q->stats.dropped += dropped;
    q->stats.waiting -= exported + rejected + dropped;
    pthread_mutex_unlock(&q->lock);
}

void bt_trace_queue_note_error(bt_trace_queue_t *q)
{
    pthread_mutex_lock(&q->lock);
    q->stats.errors++;
    pthread_mutex_unlock(&q->lock);
}

void bt_trace_queue_stats(bt_trace_queue_t *q, bt_trace_stats_t *stats_p)
{
    pthread_mutex_lock(&q->lock);
    *stats_p = q->stats;
    pthread_mutex_unlock(&q->lock);
}

bool bt_trace_queue_exemplar(bt_trace_queue_t *q, enum bt_trace_metric metric, unsigned bucket,
                             bt_trace_exemplar_t *exemplar_p)
{
    pthread_mutex_lock(&q->lock);
    *exemplar_p = q->exemplars[metric][bucket];
    pthread_mutex_unlock(&q->lock);
    return exemplar_p->wall_ms != 0;
}

/* ---- life ---- */

int bt_trace_queue_new(bt_trace_queue_t **q_p)
{
    bt_trace_queue_t *q = calloc(1, sizeof(*q));

    if (q == NULL)
        return BT_E_NOMEM;
    pthread_mutex_init(&q->lock, NULL);
    *q_p = q;
    return 0;
}

void bt_trace_queue_free(bt_trace_queue_t *q)
{
    if (q == NULL)
        return;
    pthread_mutex_destroy(&q->lock);
    free(q->ring);
    free(q);
}
