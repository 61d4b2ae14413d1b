/* kv_frames_fuzz.c - any bytes as control frames and notes, and as what a hostile peer does to an agent.
 *
 * The first byte chooses. Frames: what decodes is written again and decodes to the same. Notes likewise. Auth: nobody is believed without the token.
 * Peer: kv_peer_script.h.
 */
#include "base/err.h"
#include "base/log.h"
#include "kv_peer_script.h"
#include "transport/backends/backend.h"
#include "transport/wire/frame.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "kv_frames_fuzz: %s (line %d)\n", #cond, __LINE__);                    \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- frames ---- */
static void put_announce(bt_kv_bytes_t *out, const bt_kv_announce_t *a)
{
    uint32_t *pages = calloc((size_t) a->page_count + 1, sizeof(*pages));

    CHECK(pages != NULL);
    for (uint32_t i = 0; i < a->page_count; i++)
        pages[i] = bt_kv_get_u32(a->pages + (size_t) 4 * i);
    bt_kv_put_announce(out, a, pages);
    free(pages);
}

static void put_layout(bt_kv_bytes_t *out, const bt_kv_layout_frame_t *layout)
{
    bt_kv_buffer_t *buffers = calloc(layout->buffer_count, sizeof(*buffers));

    CHECK(buffers != NULL);
    for (uint32_t i = 0; i < layout->buffer_count; i++)
        buffers[i] = bt_kv_get_buffer(layout, i);
    bt_kv_put_layout(out, layout->id, buffers, layout->buffer_count, layout->pages);
    free(buffers);
}

static void put_again(bt_kv_bytes_t *out, const bt_kv_frame_t *f)
{
    enum bt_kv_frame_type type = (enum bt_kv_frame_type) f->type;

    switch (type) {
    case BT_KV_HELLO:
        bt_kv_put_hello(out, &f->hello);
        break;
    case BT_KV_REGION:
        bt_kv_put_region(out, &f->region);
        break;
    case BT_KV_LAYOUT:
        put_layout(out, &f->layout);
        break;
    case BT_KV_ANNOUNCE:
        put_announce(out, &f->announce);
        break;
    case BT_KV_CLOSE:
        bt_kv_put_close(out, f->close.drained, f->close.reason);
        break;
    case BT_KV_PING:
        bt_kv_put_ping(out, f->ping.bytes, f->ping.notes);
        break;
    case BT_KV_REGION_GONE:
    case BT_KV_LAYOUT_GONE:
        bt_kv_put_id(out, type, f->id);
        break;
    case BT_KV_PATH:
    case BT_KV_PATH_READY:
    case BT_KV_PATH_FAILED:
        bt_kv_put_blob(out, type, (enum bt_kv_kind) f->path.kind, f->path.bytes);
        break;
    default:
        bt_kv_put_room(out, type, f->room.tag, f->room.rc, f->room.reason);
    }
    CHECK(!out->is_broken);
}

/* Written, read and written again: the same bytes. */
static void round_trip(const bt_kv_frame_t *frame)
{
    bt_kv_bytes_t once = {0}, twice = {0};
    bt_kv_frame_t again;
    const char *why = NULL;

    put_again(&once, frame);
    CHECK(bt_kv_frame_next(once.p, once.n, BT_KV_FRAME_MAX, &again) == (ptrdiff_t) once.n);
    CHECK(again.type == frame->type && bt_kv_frame_decode(&again, &why) == 0);
    put_again(&twice, &again);
    CHECK(once.n == twice.n && memcmp(once.p, twice.p, once.n) == 0);
    free(once.p);
    free(twice.p);
}

static void frames(const uint8_t *p, size_t n)
{
    bt_kv_frame_t frame;
    ptrdiff_t used;

    while ((used = bt_kv_frame_next(p, n, BT_KV_FRAME_MAX, &frame)) > 0) {
        const char *why = NULL;
        CHECK((size_t) used <= n && frame.size == (size_t) used - BT_KV_FRAME_HEAD);
        int rc = bt_kv_frame_decode(&frame, &why);
        CHECK(rc == 0 || rc == 1 || (rc == BT_E_INVAL && why != NULL));
        if (rc == 0)
            round_trip(&frame);
        p += used;
        n -= (size_t) used;
    }
    CHECK(used == 0 || used == BT_E_INVAL);
}

static void notes(const uint8_t *p, size_t n)
{
    uint8_t once[BT_KV_NOTE_BYTES], twice[BT_KV_NOTE_BYTES];
    bt_kv_note_t note;

    if (bt_kv_note_decode(p, n, &note) < 0)
        return;
    size_t size = bt_kv_note_encode(&note, once);
    CHECK(size <= n && size <= sizeof(once));
    CHECK(bt_kv_note_decode(once, size, &note) == 0);
    CHECK(bt_kv_note_encode(&note, twice) == size && memcmp(once, twice, size) == 0);
}

static void auth(const uint8_t *p, size_t n, bool is_dialler)
{
    bt_kv_auth_t a;
    uint8_t out[BT_KV_AUTH_OUT];
    size_t out_n = bt_kv_auth_init(&a, BT_KV_AUTH_PEERS, is_dialler, out);
    const char *why = NULL;
    ptrdiff_t used = 1;

    CHECK((out_n > 0) == is_dialler);
    while (used > 0 && bt_kv_auth_is_open(&a)) {
        used = bt_kv_auth_take(&a, "sesame\nother", p, n, out, &out_n, &why);
        CHECK(used <= (ptrdiff_t) n && out_n <= sizeof(out) && (used >= 0 || why != NULL));
        p += used > 0 ? used : 0;
        n -= used > 0 ? (size_t) used : 0;
    }
    CHECK(!a.is_done && !a.in.is_on && !a.out.is_on);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bt_log_level_now = BT_LOG_ERROR;
    if (size == 0)
        return 0;
    switch (data[0] & 3) {
    case 0:
        frames(data + 1, size - 1);
        break;
    case 1:
        if ((data[0] & 4) == 0)
            notes(data + 1, size - 1);
        else
            auth(data + 1, size - 1, (data[0] & 8) != 0);
        break;
    default:
        kv_peer_script(data + 1, size - 1);
    }
    return 0;
}
