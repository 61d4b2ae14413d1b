/* Control frames: what is put comes back, what is cut or stretched is refused, whatever the bytes. */
#include "transport/wire/frame.h"

#include "base/err.h"
#include "base/rand.h"
#include "unit.h"

#include <stdlib.h>

static bt_kv_frame_t only_frame(const bt_kv_bytes_t *out)
{
    bt_kv_frame_t frame = {0};
    const char *why = NULL;

    assert_int_equal(bt_kv_frame_next(out->p, out->n, BT_KV_FRAME_MAX, &frame), out->n);
    assert_int_equal(bt_kv_frame_decode(&frame, &why), 0);
    return frame;
}

static bool is_text(bt_str_t s, const char *text)
{
    return bt_str_eq(s, bt_str(text));
}

static void test_hello(void **state)
{
    bt_kv_bytes_t out = {0};
    bt_kv_hello_t hello = {.version = 3,
                           .name = BT_STR("decode-0"),
                           .host_id = BT_STR("host"),
                           .incarnation = UINT64_C(0x1122334455667788),
                           .pid = 4711,
                           .crc = true,
                           .offers = {{BT_KV_TCP, BT_STR("abc")}, {BT_KV_MEM, BT_STR("")}},
                           .offer_count = 2,
                           .kv_format = BT_STR("dtype=float16")};

    bt_kv_put_hello(&out, &hello);
    bt_kv_frame_t frame = only_frame(&out);
    assert_int_equal(frame.type, BT_KV_HELLO);
    assert_int_equal(frame.hello.version, 3);
    assert_int_equal(frame.hello.incarnation, UINT64_C(0x1122334455667788));
    assert_int_equal(frame.hello.pid, 4711);
    assert_true(frame.hello.crc);
    assert_true(is_text(frame.hello.name, "decode-0"));
    assert_true(is_text(frame.hello.host_id, "host"));
    assert_int_equal(frame.hello.offer_count, 2);
    assert_int_equal(frame.hello.offers[0].kind, BT_KV_TCP);
    assert_true(is_text(frame.hello.offers[0].bytes, "abc"));
    assert_true(is_text(frame.hello.kv_format, "dtype=float16"));
    /* One of before ends where the format begins. */
    out.n -= 4 + strlen("dtype=float16");
    out.p[0] = (uint8_t) (out.n - BT_KV_FRAME_HEAD);
    frame = only_frame(&out);
    assert_int_equal(frame.hello.offer_count, 2);
    assert_int_equal(frame.hello.kv_format.n, 0);
    free(out.p);
}

static void put_an_announce(bt_kv_bytes_t *out)
{
    bt_kv_announce_t a = {.tag = 77,
                          .room = UINT64_C(1) << 62,
                          .layout = 4,
                          .prefix_pages = 1,
                          .page_count = 3,
                          .slice = {1, 2, 3, 4, 5, 6},
                          .pieces = {{7, 8, 9}},
                          .piece_count = 1};
    const uint32_t pages[3] = {10, 0x01020304, 12};

    bt_kv_put_announce(out, &a, pages);
}

static void test_announce(void **state)
{
    bt_kv_bytes_t out = {0};

    put_an_announce(&out);
    bt_kv_frame_t frame = only_frame(&out);
    const bt_kv_announce_t *a = &frame.announce;
    assert_int_equal(a->tag, 77);
    assert_int_equal(a->room, UINT64_C(1) << 62);
    assert_int_equal(a->layout, 4);
    assert_int_equal(a->prefix_pages, 1);
    assert_int_equal(a->slice.rows, 1);
    assert_int_equal(a->slice.bytes, 6);
    assert_int_equal(a->pieces[0].region, 7);
    assert_int_equal(a->pieces[0].bytes, 9);
    assert_int_equal(a->page_count, 3);
    assert_int_equal(bt_kv_get_u32(a->pages + 4), 0x01020304);
    free(out.p);
}

static void test_memory_and_rooms(void **state)
{
    bt_kv_bytes_t out = {0};
    bt_kv_buffer_t buffers[2] = {{1, 2, 3, 3}, {4, UINT64_MAX, 6, 5}};

    bt_kv_put_layout(&out, 9, buffers, 2, 100);
    bt_kv_frame_t frame = only_frame(&out);
    assert_int_equal(frame.layout.id, 9);
    assert_int_equal(frame.layout.pages, 100);
    bt_kv_buffer_t back = bt_kv_get_buffer(&frame.layout, 1);
    assert_int_equal(back.region, 4);
    assert_int_equal(back.offset, UINT64_MAX);
    assert_int_equal(back.stride, 6);
    assert_int_equal(back.bytes, 5);
    out.n = 0;
    bt_kv_put_region(&out, &(bt_kv_region_frame_t){.id = 3, .size = 4096});
    frame = only_frame(&out);
    assert_int_equal(frame.region.size, 4096);
    out.n = 0;
    bt_kv_put_room(&out, BT_KV_ABORT, 5, BT_E_STALL, BT_STR("why"));
    frame = only_frame(&out);
    assert_int_equal(frame.room.tag, 5);
    assert_int_equal(frame.room.rc, BT_E_STALL);
    assert_true(is_text(frame.room.reason, "why"));
    out.n = 0;
    bt_kv_put_close(&out, true, BT_STR("bye"));
    frame = only_frame(&out);
    assert_true(frame.close.drained);
    free(out.p);
}

static void test_notes(void **state)
{
    uint8_t bytes[64];
    bt_kv_note_t note = {.tag = 1,
                         .first = 2,
                         .page_count = 3,
                         .buffer_first = 4,
                         .buffer_count = 5,
                         .crc = 6,
                         .pieces = 7,
                         .is_last = true,
                         .has_crc = true,
                         .units = 8,
                         .bytes = UINT64_C(1) << 40},
                 back;

    size_t n = bt_kv_note_encode(&note, bytes);
    assert_in_range(n, 1, 64);
    assert_int_equal(bt_kv_note_decode(bytes, n, &back), 0);
    assert_int_equal(back.tag, 1);
    assert_int_equal(back.buffer_count, 5);
    assert_int_equal(back.pieces, 7);
    assert_true(back.is_last && back.has_crc);
    assert_int_equal(back.bytes, UINT64_C(1) << 40);
    assert_int_equal(bt_kv_note_decode(bytes, n - 1, &back), BT_E_INVAL);
}

/* Every shorter payload under a right length is refused; every shorter stream waits for more. */
static void test_cut_frames(void **state)
{
    bt_kv_bytes_t out = {0};
    bt_kv_frame_t frame;
    const char *why;

    put_an_announce(&out);
    for (size_t n = 0; n < out.n; n++)
        assert_int_equal(bt_kv_frame_next(out.p, n, BT_KV_FRAME_MAX, &frame), 0);
    for (uint32_t size = 0; size < out.n - BT_KV_FRAME_HEAD; size++) {
        memcpy(out.p, &size, 4);
        assert_int_equal(bt_kv_frame_next(out.p, out.n, BT_KV_FRAME_MAX, &frame),
                         size + BT_KV_FRAME_HEAD);
        why = NULL;
        assert_int_equal(bt_kv_frame_decode(&frame, &why), BT_E_INVAL);
        assert_non_null(why);
    }
    free(out.p);
}

/* What is there already is part of what is asked for. */
static void test_more_prefix_than_pages(void **state)
{
    bt_kv_bytes_t out = {0};
    bt_kv_frame_t frame;
    const char *why = NULL;
    const uint32_t pages[3] = {10, 11, 12};
    bt_kv_announce_t a = {.tag = 1, .room = 2, .layout = 3, .prefix_pages = 3, .page_count = 3};

    bt_kv_put_announce(&out, &a, pages);
    assert_int_equal(only_frame(&out).announce.prefix_pages, 3);
    out.n = 0;
    a.prefix_pages = 4;
    bt_kv_put_announce(&out, &a, pages);
    assert_int_equal(bt_kv_frame_next(out.p, out.n, BT_KV_FRAME_MAX, &frame), out.n);
    assert_int_equal(bt_kv_frame_decode(&frame, &why), BT_E_INVAL);
    assert_non_null(why);
    free(out.p);
}

static void test_bounds(void **state)
{
    bt_kv_frame_t frame;
    const char *why;
    uint8_t head[8] = {1, 0, 0x80, 0, BT_KV_PING}; /* 8 MiB + 1 */
    uint8_t unknown[8] = {0, 0, 0, 0, 200, 0};

    assert_int_equal(bt_kv_frame_next(head, 8, BT_KV_FRAME_MAX, &frame), BT_E_INVAL);
    assert_int_equal(bt_kv_frame_next(unknown, 8, BT_KV_FRAME_MAX, &frame), 8);
    assert_int_equal(bt_kv_frame_decode(&frame, &why), BT_E_INVAL);
    unknown[5] = BT_KV_FRAME_SKIP;
    assert_int_equal(bt_kv_frame_next(unknown, 8, BT_KV_FRAME_MAX, &frame), 8);
    assert_int_equal(bt_kv_frame_decode(&frame, &why), 1);
    unknown[6] = 1; /* must be zero */
    assert_int_equal(bt_kv_frame_next(unknown, 8, BT_KV_FRAME_MAX, &frame), BT_E_INVAL);
}

/* Random bytes under right heads: decoded or refused, and nothing read beyond (the sanitizer looks on; buffers are exact). */
static void test_noise(void **state)
{
    static const uint8_t types[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 17, 18, 19, 99};

    bt_rand_seed(3);
    for (int round = 0; round < 20000; round++) {
        size_t n = (size_t) bt_rand_below(120);
        uint8_t *bytes = malloc(n + 8);
        bt_kv_frame_t frame;
        const char *why = NULL;
        for (size_t i = 0; i < n; i++) /* small numbers reach deeper */
            bytes[8 + i] = (uint8_t) (bt_rand_below(3) != 0 ? 0 : bt_rand_below(9));
        memset(bytes, 0, 8);
        bytes[0] = (uint8_t) n;
        bytes[4] = types[bt_rand_below(sizeof(types))];
        assert_int_equal(bt_kv_frame_next(bytes, n + 8, BT_KV_FRAME_MAX, &frame), n + 8);
        int rc = bt_kv_frame_decode(&frame, &why);
        if (rc == 0 && frame.type == BT_KV_ANNOUNCE)
            for (uint32_t i = 0; i < frame.announce.page_count; i++)
                assert_true(bt_kv_get_u32(frame.announce.pages + 4 * i) <= UINT32_MAX);
        if (rc == 0 && frame.type == BT_KV_LAYOUT)
            assert_true(bt_kv_get_buffer(&frame.layout, frame.layout.buffer_count - 1).region <
                        UINT32_MAX);
        free(bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hello),
        cmocka_unit_test(test_announce),
        cmocka_unit_test(test_memory_and_rooms),
        cmocka_unit_test(test_notes),
        cmocka_unit_test(test_cut_frames),
        cmocka_unit_test(test_more_prefix_than_pages),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_noise),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
