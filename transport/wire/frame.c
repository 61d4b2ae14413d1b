/* A reader is a cursor that goes bad once and stays bad: a decoder takes what it needs and looks at the cursor at the end. Every count is bounded
 * before it is used, and every array's bytes are compared with what is left before it is pointed to; nothing is ever allocated for a peer here.
 */
#include "transport/wire/frame.h"

#include "base/err.h"

#include <stdlib.h>

#define BUFFER_BYTES 28
#define PIECE_BYTES 20

/* ---- reading ---- */
static uint32_t take_blobs(bt_kv_cursor_t *c, bt_kv_blob_t *blobs)
{
    uint32_t count = bt_kv_take_count(c, BT_KV_OFFERS_MAX);

    for (uint32_t i = 0; i < count && !c->is_bad; i++) {
        blobs[i].kind = bt_kv_take_u8(c);
        blobs[i].bytes = bt_kv_take_bytes(c, 1024);
    }
    return count;
}

ptrdiff_t bt_kv_frame_next(const uint8_t *p, size_t n, uint32_t max, bt_kv_frame_t *frame_p)
{
    if (n < BT_KV_FRAME_HEAD)
        return 0;
    uint32_t size = bt_kv_get_u32(p);
    if (size > max || p[6] != 0 || p[7] != 0)
        return BT_E_INVAL;
    if (n - BT_KV_FRAME_HEAD < size)
        return 0;
    *frame_p =
        (bt_kv_frame_t){.type = p[4], .flags = p[5], .payload = p + BT_KV_FRAME_HEAD, .size = size};
    return (ptrdiff_t) (BT_KV_FRAME_HEAD + size);
}

static void read_hello(bt_kv_cursor_t *c, bt_kv_hello_t *hello)
{
    if (bt_kv_take_u32(c) != BT_KV_MAGIC)
        c->is_bad = true;
    hello->version = bt_kv_take_u32(c);
    hello->incarnation = bt_kv_take_u64(c);
    hello->pid = bt_kv_take_u32(c);
    hello->crc = bt_kv_take_u8(c) != 0;
    hello->name = bt_kv_take_bytes(c, 256);
    (void) bt_kv_take_bytes(c, 1024); /* see put_hello */
    hello->host_id = bt_kv_take_bytes(c, 64);
    hello->offer_count = take_blobs(c, hello->offers);
    if (c->n > 0) /* agents of before say nothing of it */
        hello->kv_format = bt_kv_take_bytes(c, BT_KV_FORMAT_MAX);
}

static void read_region(bt_kv_cursor_t *c, bt_kv_region_frame_t *region)
{
    region->id = bt_kv_take_u32(c);
    region->size = bt_kv_take_u64(c);
    region->key_count = take_blobs(c, region->keys);
    c->is_bad |= region->id == 0 || region->size == 0;
}

static void read_layout(bt_kv_cursor_t *c, bt_kv_layout_frame_t *layout)
{
    layout->id = bt_kv_take_u32(c);
    layout->pages = bt_kv_take_u32(c);
    layout->buffer_count = bt_kv_take_count(c, BT_KV_BUFFERS_MAX);
    layout->buffers = bt_kv_take(c, (size_t) layout->buffer_count * BUFFER_BYTES);
    c->is_bad |= layout->id == 0 || layout->pages == 0 || layout->buffer_count == 0;
}

static void read_announce(bt_kv_cursor_t *c, bt_kv_announce_t *a)
{
    a->tag = bt_kv_take_u64(c);
    a->room = bt_kv_take_u64(c);
    a->layout = bt_kv_take_u32(c);
    a->prefix_pages = bt_kv_take_u32(c);
    uint32_t *slice[] = {&a->slice.rows,       &a->slice.src_row,    &a->slice.dst_row,
                         &a->slice.src_offset, &a->slice.dst_offset, &a->slice.bytes};
    for (unsigned i = 0; i < 6; i++)
        *slice[i] = bt_kv_take_u32(c);
    a->piece_count = bt_kv_take_count(c, BT_KV_PIECES_MAX);
    for (uint32_t i = 0; i < a->piece_count; i++) {
        a->pieces[i].region = bt_kv_take_u32(c);
        a->pieces[i].offset = bt_kv_take_u64(c);
        a->pieces[i].bytes = bt_kv_take_u64(c);
    }
    a->page_count = bt_kv_take_count(c, BT_KV_PAGES_MAX);
    a->pages = bt_kv_take(c, (size_t) a->page_count * 4);
    c->is_bad |= a->room == 0 || a->tag == 0 || a->prefix_pages > a->page_count;
}

static bool read_small(bt_kv_cursor_t *c, bt_kv_frame_t *f)
{
    switch (f->type) {
    case BT_KV_CLOSE:
        f->close.drained = bt_kv_take_u8(c) != 0;
        f->close.reason = bt_kv_take_bytes(c, BT_KV_REASON_MAX);
        return true;
    case BT_KV_PING:
        f->ping.bytes = bt_kv_take_u64(c);
        f->ping.notes = bt_kv_take_u64(c);
        return true;
    case BT_KV_REGION_GONE:
    case BT_KV_LAYOUT_GONE:
        f->id = bt_kv_take_u32(c);
        return true;
    case BT_KV_PATH:
    case BT_KV_PATH_READY:
    case BT_KV_PATH_FAILED:
        f->path.kind = bt_kv_take_u8(c);
        f->path.bytes = bt_kv_take_bytes(c, BT_KV_FRAME_MAX);
        return true;
    case BT_KV_DONE:
    case BT_KV_ABORT:
    case BT_KV_ABORT_ACK:
    case BT_KV_LEFT:
        f->room.tag = bt_kv_take_u64(c);
        f->room.rc = (int) bt_kv_take_u32(c);
        f->room.reason = bt_kv_take_bytes(c, BT_KV_REASON_MAX);
        return true;
    default:
        return false;
    }
}

int bt_kv_frame_decode(bt_kv_frame_t *f, const char **why_p)
{
    bt_kv_cursor_t c = {f->payload, f->size, false};

    if (f->type == BT_KV_HELLO)
        read_hello(&c, &f->hello);
    else if (f->type == BT_KV_REGION)
        read_region(&c, &f->region);
    else if (f->type == BT_KV_LAYOUT)
        read_layout(&c, &f->layout);
    else if (f->type == BT_KV_ANNOUNCE)
        read_announce(&c, &f->announce);
    else if (!read_small(&c, f)) {
        if ((f->flags & BT_KV_FRAME_SKIP) != 0)
            return 1;
        *why_p = "a frame of an unknown type";
        return BT_E_INVAL;
    }
    if (!c.is_bad)
        return 0;
    *why_p = f->type == BT_KV_HELLO ? "no hello of this protocol" : "a malformed frame";
    return BT_E_INVAL;
}

bt_kv_buffer_t bt_kv_get_buffer(const bt_kv_layout_frame_t *frame, uint32_t i)
{
    const uint8_t *p = frame->buffers + (size_t) i * BUFFER_BYTES;

    return (bt_kv_buffer_t){bt_kv_get_u32(p), bt_kv_get_u64(p + 4), bt_kv_get_u64(p + 12),
                            bt_kv_get_u64(p + 20)};
}

/* ---- writing ---- */
void bt_kv_put(bt_kv_bytes_t *out, const void *p, size_t n)
{
    if (out->room - out->n < n && !out->is_broken) {
        size_t room = out->room < 512 ? 512 : out->room;
        while (room - out->n < n)
            room *= 2;
        uint8_t *bytes = realloc(out->p, room);
        out->is_broken = bytes == NULL;
        if (bytes != NULL) {
            out->p = bytes;
            out->room = room;
        }
    }
    if (out->is_broken || n == 0)
        return;
    memcpy(out->p + out->n, p, n);
    out->n += n;
}

static void put_u8(bt_kv_bytes_t *out, unsigned value)
{
    bt_kv_put(out, &(uint8_t){(uint8_t) value}, 1);
}

static void put_u32(bt_kv_bytes_t *out, uint32_t value)
{
    uint8_t p[4];
    bt_kv_store_u32(p, value);
    bt_kv_put(out, p, 4);
}

static void put_u64(bt_kv_bytes_t *out, uint64_t value)
{
    uint8_t p[8];
    bt_kv_store_u64(p, value);
    bt_kv_put(out, p, 8);
}

static void put_bytes(bt_kv_bytes_t *out, bt_str_t s, size_t max)
{
    if (s.n > max)
        s.n = max;
    put_u32(out, (uint32_t) s.n);
    bt_kv_put(out, s.p, s.n);
}

/* The head goes first with no length; end_frame fills it in. */
static size_t begin_frame(bt_kv_bytes_t *out, enum bt_kv_frame_type type)
{
    uint8_t head[BT_KV_FRAME_HEAD] = {0};

    head[4] = (uint8_t) type;
    head[5] = type == BT_KV_PING || type == BT_KV_LEFT ? BT_KV_FRAME_SKIP : 0;
    bt_kv_put(out, head, sizeof(head));
    return out->n;
}

/* The frame is the last of the buffer. */
static void seal(bt_kv_bytes_t *out, size_t begin)
{
    uint8_t bytes[BT_KV_SEAL_BYTES];

    if (out->is_broken || out->seal == NULL || !out->seal->is_on)
        return;
    bt_kv_seal_put(out->seal, out->p + begin, out->n - begin, bytes);
    bt_kv_put(out, bytes, sizeof(bytes));
}

static void end_frame(bt_kv_bytes_t *out, size_t begin)
{
    if (out->is_broken)
        return;
    bt_kv_store_u32(out->p + begin - BT_KV_FRAME_HEAD, (uint32_t) (out->n - begin));
    seal(out, begin - BT_KV_FRAME_HEAD);
}

void bt_kv_put_frames(bt_kv_bytes_t *out, const bt_kv_bytes_t *frames)
{
    for (size_t at = 0, n; at < frames->n; at += n) {
        size_t begin = out->n;
        n = BT_KV_FRAME_HEAD + bt_kv_get_u32(frames->p + at);
        bt_kv_put(out, frames->p + at, n);
        seal(out, begin);
    }
}

static void put_blobs(bt_kv_bytes_t *out, const bt_kv_blob_t *blobs, uint32_t count)
{
    put_u32(out, count);
    for (uint32_t i = 0; i < count; i++) {
        put_u8(out, blobs[i].kind);
        put_bytes(out, blobs[i].bytes, 1024);
    }
}

void bt_kv_put_hello(bt_kv_bytes_t *out, const bt_kv_hello_t *hello)
{
    size_t begin = begin_frame(out, BT_KV_HELLO);

    put_u32(out, BT_KV_MAGIC);
    put_u32(out, hello->version);
    put_u64(out, hello->incarnation);
    put_u32(out, hello->pid);
    put_u8(out, hello->crc);
    put_bytes(out, hello->name, 256);
    put_bytes(out, BT_STR_NULL, 0); /* where releases before said a token in the clear */
    put_bytes(out, hello->host_id, 64);
    put_blobs(out, hello->offers, hello->offer_count);
    put_bytes(out, hello->kv_format, BT_KV_FORMAT_MAX);
    end_frame(out, begin);
}

void bt_kv_put_region(bt_kv_bytes_t *out, const bt_kv_region_frame_t *region)
{
    size_t begin = begin_frame(out, BT_KV_REGION);

    put_u32(out, region->id);
    put_u64(out, region->size);
    put_blobs(out, region->keys, region->key_count);
    end_frame(out, begin);
}

void bt_kv_put_layout(bt_kv_bytes_t *out, bt_kv_layout_t id, const bt_kv_buffer_t *buffers,
                      uint32_t count, uint32_t pages)
{
    size_t begin = begin_frame(out, BT_KV_LAYOUT);

    put_u32(out, id);
    put_u32(out, pages);
    put_u32(out, count);
    for (uint32_t i = 0; i < count; i++) {
        put_u32(out, buffers[i].region);
        put_u64(out, buffers[i].offset);
        put_u64(out, buffers[i].stride);
        put_u64(out, buffers[i].bytes);
    }
    end_frame(out, begin);
}

void bt_kv_put_id(bt_kv_bytes_t *out, enum bt_kv_frame_type type, uint32_t id)
{
    size_t begin = begin_frame(out, type);

    put_u32(out, id);
    end_frame(out, begin);
}

void bt_kv_put_blob(bt_kv_bytes_t *out, enum bt_kv_frame_type type, enum bt_kv_kind kind,
                    bt_str_t bytes)
{
    size_t begin = begin_frame(out, type);

    put_u8(out, kind);
    put_bytes(out, bytes, BT_KV_FRAME_MAX / 2);
    end_frame(out, begin);
}

void bt_kv_put_announce(bt_kv_bytes_t *out, const bt_kv_announce_t *a, const uint32_t *pages)
{
    size_t begin = begin_frame(out, BT_KV_ANNOUNCE);
    const uint32_t slice[] = {a->slice.rows,       a->slice.src_row,    a->slice.dst_row,
                              a->slice.src_offset, a->slice.dst_offset, a->slice.bytes};

    put_u64(out, a->tag);
    put_u64(out, a->room);
    put_u32(out, a->layout);
    put_u32(out, a->prefix_pages);
    for (unsigned i = 0; i < 6; i++)
        put_u32(out, slice[i]);
    put_u32(out, a->piece_count);
    for (uint32_t i = 0; i < a->piece_count; i++) {
        put_u32(out, a->pieces[i].region);
        put_u64(out, a->pieces[i].offset);
        put_u64(out, a->pieces[i].bytes);
    }
    put_u32(out, a->page_count);
    for (uint32_t i = 0; i < a->page_count; i++)
        put_u32(out, pages[i]);
    end_frame(out, begin);
}

void bt_kv_put_room(bt_kv_bytes_t *out, enum bt_kv_frame_type type, uint64_t tag, int rc,
                    bt_str_t reason)
{
    size_t begin = begin_frame(out, type);

    put_u64(out, tag);
    put_u32(out, (uint32_t) rc);
    put_bytes(out, reason, BT_KV_REASON_MAX);
    end_frame(out, begin);
}

void bt_kv_put_close(bt_kv_bytes_t *out, bool is_drained, bt_str_t reason)
{
    size_t begin = begin_frame(out, BT_KV_CLOSE);

    put_u8(out, is_drained);
    put_bytes(out, reason, BT_KV_REASON_MAX);
    end_frame(out, begin);
}

void bt_kv_put_ping(bt_kv_bytes_t *out, uint64_t bytes, uint64_t notes)
{
    size_t begin = begin_frame(out, BT_KV_PING);

    put_u64(out, bytes);
    put_u64(out, notes);
    end_frame(out, begin);
}

/* ---- notes ---- */
#define NOTE_BYTES 48

size_t bt_kv_note_encode(const bt_kv_note_t *note, uint8_t *to)
{
    bt_kv_store_u64(to, note->tag);
    bt_kv_store_u32(to + 8, note->first);
    bt_kv_store_u32(to + 12, note->page_count);
    bt_kv_store_u32(to + 16, note->buffer_first);
    bt_kv_store_u32(to + 20, note->buffer_count);
    bt_kv_store_u32(to + 24, note->crc);
    to[28] = note->pieces;
    to[29] = (uint8_t) ((note->is_last ? 1 : 0) | (note->has_crc ? 2 : 0));
    to[30] = to[31] = 0;
    bt_kv_store_u64(to + 32, note->units);
    bt_kv_store_u64(to + 40, note->bytes);
    return NOTE_BYTES;
}

int bt_kv_note_decode(const uint8_t *p, size_t n, bt_kv_note_t *note_p)
{
    if (n < NOTE_BYTES)
        return BT_E_INVAL;
    *note_p = (bt_kv_note_t){
        .tag = bt_kv_get_u64(p),
        .first = bt_kv_get_u32(p + 8),
        .page_count = bt_kv_get_u32(p + 12),
        .buffer_first = bt_kv_get_u32(p + 16),
        .buffer_count = bt_kv_get_u32(p + 20),
        .crc = bt_kv_get_u32(p + 24),
        .pieces = p[28],
        .is_last = (p[29] & 1) != 0,
        .has_crc = (p[29] & 2) != 0,
        .units = bt_kv_get_u64(p + 32),
        .bytes = bt_kv_get_u64(p + 40),
    };
    return 0;
}
