/* Every number is read with memcpy-free shifts, bounded before use; a head tells its frame's length up to the payload, so that a reader can fetch exactly
 * that and put the payload where it belongs. */
#include "transport/backends/tcp/tcp_wire.h"

#include "base/err.h"
#include "transport/wire/cursor.h"

#include <string.h>

static void put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t) v;
    p[1] = (uint8_t) (v >> 8);
}

static uint16_t get_u16(const uint8_t *p)
{
    return (uint16_t) (p[0] | p[1] << 8);
}

size_t bt_tcp_offer_put(const bt_tcp_offer_t *offer, uint8_t *to)
{
    bt_kv_store_u32(to, BT_TCP_MAGIC);
    to[4] = BT_TCP_VERSION;
    to[5] = (uint8_t) offer->address_count;
    put_u16(to + 6, offer->port);
    for (uint32_t i = 0; i < offer->address_count; i++)
        bt_kv_store_u32(to + 8 + (size_t) 4 * i, offer->addresses[i]);
    return 8 + (size_t) 4 * offer->address_count;
}

int bt_tcp_offer_get(const uint8_t *p, size_t n, bt_tcp_offer_t *offer_p)
{
    if (n < 8 || bt_kv_get_u32(p) != BT_TCP_MAGIC || p[4] != BT_TCP_VERSION || p[5] == 0 ||
        p[5] > BT_TCP_ADDRESSES || n < 8 + (size_t) 4 * p[5] || get_u16(p + 6) == 0)
        return BT_E_INVAL;
    *offer_p = (bt_tcp_offer_t){.port = get_u16(p + 6), .address_count = p[5]};
    for (uint32_t i = 0; i < offer_p->address_count; i++)
        offer_p->addresses[i] = bt_kv_get_u32(p + 8 + (size_t) 4 * i);
    return 0;
}

void bt_tcp_greeting_put(const bt_tcp_greeting_t *greeting, uint8_t to[BT_TCP_GREETING_BYTES])
{
    bt_kv_store_u32(to, BT_TCP_MAGIC);
    bt_kv_store_u32(to + 4, BT_TCP_VERSION);
    put_u16(to + 8, greeting->stream);
    put_u16(to + 10, greeting->streams);
    memcpy(to + 12, greeting->token, BT_TCP_TOKEN_BYTES);
}

int bt_tcp_greeting_get(const uint8_t p[BT_TCP_GREETING_BYTES], bt_tcp_greeting_t *greeting_p)
{
    if (bt_kv_get_u32(p) != BT_TCP_MAGIC || bt_kv_get_u32(p + 4) != BT_TCP_VERSION)
        return BT_E_INVAL;
    greeting_p->stream = get_u16(p + 8);
    greeting_p->streams = get_u16(p + 10);
    memcpy(greeting_p->token, p + 12, BT_TCP_TOKEN_BYTES);
    return 0;
}

size_t bt_tcp_head_put(const bt_tcp_head_t *head, uint8_t *to)
{
    to[0] = head->type;
    to[1] = head->flags;
    put_u16(to + 2, head->run_count);
    bt_kv_store_u32(to + 4, head->note_bytes);
    bt_kv_store_u64(to + 8, head->number);
    if (head->type != BT_TCP_BLOCK)
        return BT_TCP_SHORT_BYTES;
    bt_kv_store_u64(to + 16, head->tag);
    bt_kv_store_u64(to + 24, head->bytes);
    bt_kv_store_u32(to + 32, head->blocks);
    bt_kv_store_u32(to + 36, 0);
    return BT_TCP_BLOCK_HEAD_BYTES;
}

static const char *block_fault(const bt_tcp_head_t *head)
{
    bool is_last = (head->flags & BT_TCP_LAST) != 0;

    if (head->run_count > BT_TCP_RUNS_MAX)
        return "a block of too many runs";
    if (head->note_bytes > BT_KV_NOTE_BYTES || (!is_last && head->note_bytes > 0))
        return "a block with a wrong note";
    if (head->bytes > BT_TCP_BLOCK_MAX || (head->run_count == 0) != (head->bytes == 0))
        return "a block of a wrong size";
    if (is_last != (head->blocks > 0) || (head->run_count == 0 && !is_last))
        return "a block out of order";
    return NULL;
}

ptrdiff_t bt_tcp_head_get(const uint8_t *p, size_t n, bt_tcp_head_t *head_p, const char **why_p)
{
    if (n < BT_TCP_SHORT_BYTES)
        return 0;
    *head_p = (bt_tcp_head_t){.type = p[0],
                              .flags = p[1],
                              .run_count = get_u16(p + 2),
                              .note_bytes = bt_kv_get_u32(p + 4),
                              .number = bt_kv_get_u64(p + 8)};
    if (head_p->type == BT_TCP_ACK || head_p->type == BT_TCP_WELCOME)
        return BT_TCP_SHORT_BYTES;
    *why_p = "a frame of an unknown type";
    if (head_p->type != BT_TCP_BLOCK)
        return BT_E_INVAL;
    if (n < BT_TCP_BLOCK_HEAD_BYTES)
        return 0;
    head_p->tag = bt_kv_get_u64(p + 16);
    head_p->bytes = bt_kv_get_u64(p + 24);
    head_p->blocks = bt_kv_get_u32(p + 32);
    *why_p = block_fault(head_p);
    if (*why_p != NULL)
        return BT_E_INVAL;
    return (ptrdiff_t) (BT_TCP_BLOCK_HEAD_BYTES + (size_t) BT_TCP_RUN_BYTES * head_p->run_count +
                        head_p->note_bytes);
}

void bt_tcp_run_put(const bt_tcp_run_t *run, uint8_t to[BT_TCP_RUN_BYTES])
{
    bt_kv_store_u32(to, run->region);
    bt_kv_store_u32(to + 4, run->bytes);
    bt_kv_store_u64(to + 8, run->offset);
    bt_kv_store_u32(to + 16, run->rows);
    bt_kv_store_u32(to + 20, run->stride);
}

int bt_tcp_runs_get(const uint8_t *p, const bt_tcp_head_t *head, bt_tcp_run_t *runs_p,
                    const char **why_p)
{
    uint64_t sum = 0;

    *why_p = "a malformed run";
    for (uint32_t i = 0; i < head->run_count; i++, p += BT_TCP_RUN_BYTES) {
        bt_tcp_run_t *run = &runs_p[i];
        *run = (bt_tcp_run_t){.region = bt_kv_get_u32(p),
                              .bytes = bt_kv_get_u32(p + 4),
                              .offset = bt_kv_get_u64(p + 8),
                              .rows = bt_kv_get_u32(p + 16),
                              .stride = bt_kv_get_u32(p + 20)};
        if (run->bytes == 0 || run->rows == 0 || (run->rows > 1 && run->stride < run->bytes))
            return BT_E_INVAL;
        sum += (uint64_t) run->bytes * run->rows; /* each < 2^64, and stopped before it can wrap */
        if (sum > head->bytes)
            return BT_E_INVAL;
    }
    return sum == head->bytes ? 0 : BT_E_INVAL;
}
