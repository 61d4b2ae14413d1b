/* Header and bytes are one allocation. Standard buffers are recycled per thread, last in first out,
 * because the buffer freed last is the one still in cache. The live total is kept in padded slots
 * that threads share out among themselves: loops would otherwise fight over one cache line for each
 * chunk they read.
 */
#include "base/buf.h"

#include "base/err.h"
#include "base/sanitize.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define KEEP_MAX 256U
#define SLOTS 16U

enum { KIND_STANDARD, KIND_SIZED };

static struct {
    _Alignas(64) _Atomic int64_t bytes;
} live[SLOTS];
static atomic_uint next_slot;

static _Thread_local struct {
    bt_buf_t *head; /* linked through `data` of the free buffer */
    unsigned count;
    unsigned slot; /* 1 + index into live[]; 0 = none yet */
} mine;

static void count_live(int64_t bytes)
{
    if (mine.slot == 0)
        mine.slot = 1 + atomic_fetch_add_explicit(&next_slot, 1, memory_order_relaxed) % SLOTS;
    atomic_fetch_add_explicit(&live[mine.slot - 1].bytes, bytes, memory_order_relaxed);
}

static bt_buf_t *take_free(void)
{
    bt_buf_t *buf = mine.head;
    if (buf != NULL) {
        mine.head = (bt_buf_t *) (void *) buf->data;
        mine.count--;
    }
    return buf;
}

static void give_free(bt_buf_t *buf)
{
    if (BT_ASAN || mine.count >= KEEP_MAX) {
        free(buf);
        return;
    }
    buf->data = (char *) mine.head;
    mine.head = buf;
    mine.count++;
}

static bt_buf_t *new_of(size_t cap, uint32_t kind)
{
    bt_buf_t *buf = kind == KIND_STANDARD ? take_free() : NULL;
    if (buf == NULL) {
        if (cap > PTRDIFF_MAX - sizeof(*buf))
            return NULL;
        buf = malloc(sizeof(*buf) + cap);
    }
    if (buf == NULL)
        return NULL;
    *buf = (bt_buf_t){.refs = 1, .kind = kind, .cap = cap, .data = (char *) (buf + 1)};
    count_live((int64_t) cap);
    return buf;
}

bt_buf_t *bt_buf_new(size_t cap)
{
    if (cap <= BT_BUF_STD_BYTES)
        return new_of(BT_BUF_STD_BYTES, KIND_STANDARD);
    return new_of(cap, KIND_SIZED);
}

bt_buf_t *bt_buf_copy(const void *data, size_t len)
{
    bt_buf_t *buf = new_of(len, KIND_SIZED);
    if (buf == NULL)
        return NULL;
    if (len > 0)
        memcpy(buf->data, data, len);
    buf->len = len;
    return buf;
}

bt_buf_t *bt_buf_ref(bt_buf_t *buf)
{
    BT_ASSERT(buf->refs > 0);
    buf->refs++;
    return buf;
}

void bt_buf_unref(bt_buf_t *buf)
{
    if (buf == NULL)
        return;
    BT_BUG_ON(buf->refs == 0);
    if (--buf->refs > 0)
        return;
    count_live(-(int64_t) buf->cap);
    if (buf->kind == KIND_STANDARD)
        give_free(buf);
    else
        free(buf);
}

/* A sum over slots that move meanwhile is a snapshot of no single instant; it may even dip below
 * zero when a buffer is counted in one slot and released in another.
 */
size_t bt_buf_total_bytes(void)
{
    int64_t sum = 0;
    for (unsigned i = 0; i < SLOTS; i++)
        sum += atomic_load_explicit(&live[i].bytes, memory_order_relaxed);
    return sum > 0 ? (size_t) sum : 0;
}

void bt_buf_thread_fini(void)
{
    bt_buf_t *buf;
    while ((buf = take_free()) != NULL)
        free(buf);
}
