/* One reader and one writer a message. What decodes is safe to act on: ids are not 0, sides and states are of their enums, ranks are below their count, peers have
 * an address. A HELLO of another version decodes all the same, so that the gateway can say which version it wants.
 */
#include "transport/wire/control.h"

#include "base/err.h"
#include "transport/wire/cursor.h"
#include "transport/wire/frame.h"

/* ---- reading ---- */
ptrdiff_t bt_kv_control_next(const uint8_t *p, size_t n, bt_kv_control_t *message_p)
{
    if (n < BT_KV_FRAME_HEAD)
        return 0;
    uint32_t size = bt_kv_get_u32(p);
    if (size > BT_KV_CONTROL_MAX || p[6] != 0 || p[7] != 0)
        return BT_E_INVAL;
    if (n - BT_KV_FRAME_HEAD < size)
        return 0;
    *message_p = (bt_kv_control_t){
        .type = p[4], .flags = p[5], .payload = p + BT_KV_FRAME_HEAD, .size = size};
    return (ptrdiff_t) (BT_KV_FRAME_HEAD + size);
}

static bt_str_t take_text(bt_kv_cursor_t *c)
{
    return bt_kv_take_bytes(c, BT_KV_CONTROL_TEXT_MAX);
}

static void read_hello(bt_kv_cursor_t *c, bt_kv_control_hello_t *hello)
{
    c->is_bad |= bt_kv_take_u32(c) != BT_KV_CONTROL_MAGIC;
    hello->version = bt_kv_take_u32(c);
    hello->rank = bt_kv_take_u32(c);
    hello->ranks = bt_kv_take_u32(c);
    hello->kinds = bt_kv_take_u32(c);
    hello->pid = bt_kv_take_u32(c);
    hello->incarnation = bt_kv_take_u64(c);
    hello->name = take_text(c);
    hello->worker = take_text(c);
    hello->host = bt_kv_take_bytes(c, BT_KV_CONTROL_HOST_MAX);
    hello->port = bt_kv_take_u16(c);
    (void) take_text(c); /* see write_hello */
    c->is_bad |= hello->rank >= hello->ranks || hello->worker.n == 0 || hello->host.n == 0 ||
                 hello->port == 0;
}

static bool is_side(uint8_t side)
{
    return side == BT_KV_SIDE_SENDER || side == BT_KV_SIDE_RECEIVER;
}

static void read_room(bt_kv_cursor_t *c, bt_kv_control_room_t *room)
{
    room->room = bt_kv_take_u64(c);
    room->side = bt_kv_take_u8(c);
    room->state = bt_kv_take_u8(c);
    room->is_orphan = bt_kv_take_u8(c) != 0;
    room->rc = (int) bt_kv_take_u32(c);
    room->kind = bt_kv_take_u32(c);
    uint64_t *figures[] = {&room->bytes,        &room->pages,   &room->pages_wanted,
                           &room->bootstrap_us, &room->wait_us, &room->transfer_us};
    for (unsigned i = 0; i < 6; i++)
        *figures[i] = bt_kv_take_u64(c);
    room->reason = take_text(c);
    c->is_bad |= room->room == 0 || !is_side(room->side) || room->state > BT_KV_SUCCESS;
}

static void read_open(bt_kv_cursor_t *c, bt_kv_control_open_t *open)
{
    open->room = bt_kv_take_u64(c);
    open->source_room = bt_kv_take_u64(c);
    open->side = bt_kv_take_u8(c);
    open->expire_ms = bt_kv_take_u32(c);
    open->repair_ms = bt_kv_take_u32(c);
    open->peer_count = bt_kv_take_count(c, BT_KV_CONTROL_PEERS_MAX);
    for (uint32_t i = 0; i < open->peer_count && !c->is_bad; i++) {
        bt_kv_control_peer_t *peer = &open->peers[i];
        peer->rank = bt_kv_take_u32(c);
        peer->port = bt_kv_take_u16(c);
        peer->host = bt_kv_take_bytes(c, BT_KV_CONTROL_HOST_MAX);
        c->is_bad |= peer->port == 0 || peer->host.n == 0;
    }
    c->is_bad |= open->room == 0 || open->source_room == 0 || !is_side(open->side);
}

static void read_welcome(bt_kv_cursor_t *c, bt_kv_control_t *m)
{
    m->welcome.version = bt_kv_take_u32(c);
    m->welcome.heartbeat_ms = bt_kv_take_u32(c);
    m->welcome.dead_ms = bt_kv_take_u32(c);
    m->welcome.incarnation = bt_kv_take_u64(c);
}

static bool read_message(bt_kv_cursor_t *c, bt_kv_control_t *m)
{
    switch (m->type) {
    case BT_KV_CONTROL_HELLO:
        read_hello(c, &m->hello);
        return true;
    case BT_KV_CONTROL_ROOM:
        read_room(c, &m->room);
        return true;
    case BT_KV_CONTROL_PING:
        m->ping.rooms_open = bt_kv_take_u64(c);
        m->ping.bytes_sent = bt_kv_take_u64(c);
        m->ping.bytes_received = bt_kv_take_u64(c);
        return true;
    case BT_KV_CONTROL_WELCOME:
        read_welcome(c, m);
        return true;
    case BT_KV_CONTROL_REFUSE:
        m->refuse.retry_ms = bt_kv_take_u32(c);
        m->refuse.reason = take_text(c);
        return true;
    case BT_KV_CONTROL_OPEN:
    case BT_KV_CONTROL_SOURCE:
        read_open(c, &m->open);
        return true;
    case BT_KV_CONTROL_ABORT:
        m->abort.room = bt_kv_take_u64(c);
        m->abort.reason = take_text(c);
        c->is_bad |= m->abort.room == 0;
        return true;
    default:
        return false;
    }
}

int bt_kv_control_decode(bt_kv_control_t *m, const char **why_p)
{
    bt_kv_cursor_t c = {m->payload, m->size, false};

    if (!read_message(&c, m)) {
        if ((m->flags & BT_KV_CONTROL_SKIP) != 0)
            return 1;
        *why_p = "a message of an unknown type";
        return BT_E_INVAL;
    }
    if (!c.is_bad)
        return 0;
    *why_p = m->type == BT_KV_CONTROL_HELLO ? "no hello of this protocol" : "a malformed message";
    return BT_E_INVAL;
}

/* ---- writing ---- */
typedef struct writer {
    uint8_t *p;
    size_t n, room;
    bool is_full;
} writer_t;

static void put(writer_t *w, const void *p, size_t n)
{
    w->is_full |= w->room - w->n < n;
    if (w->is_full || n == 0)
        return;
    memcpy(w->p + w->n, p, n);
    w->n += n;
}

static void put_u8(writer_t *w, unsigned value)
{
    put(w, &(uint8_t){(uint8_t) value}, 1);
}

static void put_u16(writer_t *w, uint16_t value)
{
    put(w, (uint8_t[]){(uint8_t) value, (uint8_t) (value >> 8)}, 2);
}

static void put_u32(writer_t *w, uint32_t value)
{
    uint8_t p[4];

    bt_kv_store_u32(p, value);
    put(w, p, 4);
}

static void put_u64(writer_t *w, uint64_t value)
{
    uint8_t p[8];

    bt_kv_store_u64(p, value);
    put(w, p, 8);
}

static void put_text(writer_t *w, bt_str_t s, size_t max)
{
    if (s.n > max)
        s.n = max;
    put_u32(w, (uint32_t) s.n);
    put(w, s.p, s.n);
}

static void write_hello(writer_t *w, const bt_kv_control_hello_t *hello)
{
    put_u32(w, BT_KV_CONTROL_MAGIC);
    put_u32(w, hello->version);
    put_u32(w, hello->rank);
    put_u32(w, hello->ranks);
    put_u32(w, hello->kinds);
    put_u32(w, hello->pid);
    put_u64(w, hello->incarnation);
    put_text(w, hello->name, BT_KV_CONTROL_TEXT_MAX);
    put_text(w, hello->worker, BT_KV_CONTROL_TEXT_MAX);
    put_text(w, hello->host, BT_KV_CONTROL_HOST_MAX);
    put_u16(w, hello->port);
    put_text(w, BT_STR_NULL, 0); /* where releases before said a token in the clear */
}

static void write_room(writer_t *w, const bt_kv_control_room_t *room)
{
    put_u64(w, room->room);
    put_u8(w, room->side);
    put_u8(w, room->state);
    put_u8(w, room->is_orphan);
    put_u32(w, (uint32_t) room->rc);
    put_u32(w, room->kind);
    const uint64_t figures[] = {room->bytes,        room->pages,   room->pages_wanted,
                                room->bootstrap_us, room->wait_us, room->transfer_us};
    for (unsigned i = 0; i < 6; i++)
        put_u64(w, figures[i]);
    put_text(w, room->reason, BT_KV_CONTROL_TEXT_MAX);
}

static void write_open(writer_t *w, const bt_kv_control_open_t *open)
{
    put_u64(w, open->room);
    put_u64(w, open->source_room);
    put_u8(w, open->side);
    put_u32(w, open->expire_ms);
    put_u32(w, open->repair_ms);
    put_u32(w, open->peer_count);
    for (uint32_t i = 0; i < open->peer_count; i++) {
        put_u32(w, open->peers[i].rank);
        put_u16(w, open->peers[i].port);
        put_text(w, open->peers[i].host, BT_KV_CONTROL_HOST_MAX);
    }
}

static void write_ping(writer_t *w, const bt_kv_control_t *m)
{
    put_u64(w, m->ping.rooms_open);
    put_u64(w, m->ping.bytes_sent);
    put_u64(w, m->ping.bytes_received);
}

static bool write_message(writer_t *w, const bt_kv_control_t *m)
{
    switch (m->type) {
    case BT_KV_CONTROL_HELLO:
        write_hello(w, &m->hello);
        return true;
    case BT_KV_CONTROL_ROOM:
        write_room(w, &m->room);
        return true;
    case BT_KV_CONTROL_PING:
        write_ping(w, m);
        return true;
    case BT_KV_CONTROL_WELCOME:
        put_u32(w, m->welcome.version);
        put_u32(w, m->welcome.heartbeat_ms);
        put_u32(w, m->welcome.dead_ms);
        put_u64(w, m->welcome.incarnation);
        return true;
    case BT_KV_CONTROL_REFUSE:
        put_u32(w, m->refuse.retry_ms);
        put_text(w, m->refuse.reason, BT_KV_CONTROL_TEXT_MAX);
        return true;
    case BT_KV_CONTROL_OPEN:
    case BT_KV_CONTROL_SOURCE:
        if (m->open.peer_count <= BT_KV_CONTROL_PEERS_MAX)
            write_open(w, &m->open);
        return m->open.peer_count <= BT_KV_CONTROL_PEERS_MAX;
    case BT_KV_CONTROL_ABORT:
        put_u64(w, m->abort.room);
        put_text(w, m->abort.reason, BT_KV_CONTROL_TEXT_MAX);
        return true;
    default:
        return false;
    }
}

/* The head goes first with no length, which is filled in at the end. */
ptrdiff_t bt_kv_control_encode(const bt_kv_control_t *m, uint8_t *out, size_t room)
{
    writer_t w = {out, 0, room, false};
    const uint8_t head[BT_KV_FRAME_HEAD] = {[4] = m->type, [5] = m->flags};

    put(&w, head, sizeof(head));
    if (!write_message(&w, m))
        return BT_E_INVAL;
    if (w.is_full)
        return BT_E_LIMIT;
    bt_kv_store_u32(out, (uint32_t) (w.n - BT_KV_FRAME_HEAD));
    return (ptrdiff_t) w.n;
}
