/* Header and bytes are one allocation. Standard buffers are recycled per thread, last in first out,
 * because the buffer freed last is the one still in cache.
 */
#include "base/buf.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/sanitize.h"

#include <stdlib.h>
#include <string.h>

#define KEEP_MAX 256U

enum { KIND_STANDARD, KIND_SIZED };

static _Thread_local struct {
    bt_buf_t *head; /* linked through `data` of the free buffer */
    unsigned count;
} mine;

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
    bt_mem_count(BT_MEM_BUFFERS, (int64_t) cap);
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
    bt_mem_count(BT_MEM_BUFFERS, -(int64_t) buf->cap);
    if (buf->kind == KIND_STANDARD)
        give_free(buf);
    else
        free(buf);
}

int bt_buf_grow(bt_buf_t **buf_p, size_t cap)
{
    bt_buf_t *old = *buf_p, *buf;

    BT_ASSERT(old->refs == 1);
    if (cap <= old->cap)
        return 0;
    if (old->kind == KIND_SIZED && cap <= PTRDIFF_MAX - sizeof(*buf)) {
        const size_t before = old->cap;
        buf = realloc(old, sizeof(*buf) + cap); /* large blocks move by their page tables */
        if (buf == NULL)
            return BT_E_NOMEM;
        buf->cap = cap;
        buf->data = (char *) (buf + 1);
        bt_mem_count(BT_MEM_BUFFERS, (int64_t) cap - (int64_t) before);
        *buf_p = buf;
        return 0;
    }
    buf = bt_buf_new(cap);
    if (buf == NULL)
        return BT_E_NOMEM;
    memcpy(buf->data, old->data, old->len);
    buf->len = old->len;
    bt_buf_unref(old);
    *buf_p = buf;
    return 0;
}

void bt_buf_thread_fini(void)
{
    bt_buf_t *buf;
    while ((buf = take_free()) != NULL)
        free(buf);
    bt_mem_thread_fini();
}
