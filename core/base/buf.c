/* Header and bytes are one allocation; a standard buffer's is a piece of base/pages. */
#include "base/buf.h"

#include "base/blocks.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/pages.h"

#include <stdlib.h>
#include <string.h>

enum { KIND_STANDARD, KIND_SIZED };

_Static_assert(BT_BUF_STD_BYTES + sizeof(bt_buf_t) == BT_PAGES_LARGE,
               "a standard buffer is one piece");

static bt_buf_t *new_of(size_t cap, uint32_t kind)
{
    bt_buf_t *buf;

    if (cap > PTRDIFF_MAX - sizeof(*buf))
        return NULL;
    buf =
        kind == KIND_STANDARD ? bt_pages_take(BT_PAGES_LARGE) : bt_blocks_take(sizeof(*buf) + cap);
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

bool bt_buf_is_there(size_t cap)
{
    return cap <= BT_BUF_STD_BYTES || bt_blocks_has(sizeof(bt_buf_t) + cap);
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
        bt_pages_give(buf, BT_PAGES_LARGE);
    else
        bt_blocks_give(buf);
}

int bt_buf_grow(bt_buf_t **buf_p, size_t cap)
{
    bt_buf_t *old = *buf_p, *buf;

    BT_ASSERT(old->refs == 1);
    if (cap <= old->cap)
        return 0;
    if (old->kind == KIND_SIZED && cap <= PTRDIFF_MAX - sizeof(*buf) && !bt_buf_is_there(cap)) {
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
