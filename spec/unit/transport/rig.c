/* Two agents in one process and what a spec does with them again and again. */
#include "suite.h"

#include "base/clock.h"
#include "base/rand.h"

#include <stdio.h>
#include <time.h>

#define DEADLINE_MS 9000u

static bt_kv_suite_t use;

void bt_kv_rig_use(const bt_kv_suite_t *how)
{
    use = *how;
}

uint64_t rig_now_ms(void)
{
    return bt_clock_ms();
}

static void lay_out(rig_side_t *side, uint32_t page_bytes, uint32_t stride)
{
    bt_kv_buffer_t buffers[RIG_BUFFERS];

    for (uint32_t i = 0; i < RIG_BUFFERS; i++)
        buffers[i] = (bt_kv_buffer_t){.region = side->region,
                                      .offset = (uint64_t) i * RIG_PAGES * stride,
                                      .stride = stride,
                                      .bytes = page_bytes};
    assert_int_equal(bt_kv_layout_add(side->agent, buffers, RIG_BUFFERS, RIG_PAGES, &side->layout),
                     0);
}

static void fill(rig_side_t *side, uint64_t seed)
{
    bt_rand_seed(seed);
    for (size_t i = 0; i + 8 <= side->size; i += 8) {
        uint64_t x = bt_rand_u64();
        memcpy(side->p + i, &x, 8);
    }
}

void rig_side_open(rig_side_t *side, const char *name, const bt_kv_config_t *config, uint64_t seed,
                   uint32_t page_bytes, uint32_t stride)
{
    char err[256];

    *side = (rig_side_t){.is_private = use.is_private};
    if (config != NULL)
        side->config = *config;
    side->config.name = name;
    if (side->config.backends == 0)
        side->config.backends = use.backends;
    if (use.tune != NULL)
        use.tune(&side->config);
    if (bt_kv_agent_open(&side->agent, &side->config, err, sizeof(err)) != 0)
        fail_msg("agent %s: %s", name, err);
    side->size = (size_t) RIG_BUFFERS * RIG_PAGES * stride + RIG_AUX_BYTES;
    if (side->is_private) {
        side->p = calloc(1, side->size);
        assert_int_equal(bt_kv_region_add(side->agent, side->p, side->size, &side->region), 0);
    } else {
        void *p;
        assert_int_equal(bt_kv_pool_alloc(side->agent, side->size, &p, &side->region), 0);
        side->p = p;
    }
    if (seed != 0)
        fill(side, seed);
    lay_out(side, page_bytes, stride);
}

void rig_side_close(rig_side_t *side)
{
    bt_kv_agent_close(side->agent);
    if (side->is_private)
        free(side->p);
    side->agent = NULL;
}

void rig_open(rig_t *rig, const bt_kv_config_t *config)
{
    rig_side_open(&rig->from, "prefill", config, 7, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
    rig_side_open(&rig->to, "decode", config, 0, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
}

/* Whoever closes second finds the other gone; both orders happen in the specs. */
void rig_close(rig_t *rig)
{
    if (rig->from.agent != NULL)
        rig_side_close(&rig->from);
    if (rig->to.agent != NULL)
        rig_side_close(&rig->to);
}

char *rig_page(const rig_side_t *side, uint32_t buffer, uint32_t page)
{
    size_t stride = (side->size - RIG_AUX_BYTES) / RIG_BUFFERS / RIG_PAGES;
    return side->p + ((size_t) buffer * RIG_PAGES + page) * stride;
}

char *rig_aux(const rig_side_t *side)
{
    return side->p + side->size - RIG_AUX_BYTES;
}

bt_kv_piece_t rig_aux_piece(const rig_side_t *side)
{
    return (bt_kv_piece_t){side->region, side->size - RIG_AUX_BYTES, RIG_AUX_BYTES};
}

bt_kv_room_t rig_recv(rig_t *rig, uint64_t id, const uint32_t *pages, uint32_t count,
                      uint32_t prefix, bool has_aux)
{
    bt_kv_room_t room = 0;
    bt_kv_source_t source = {.host = "127.0.0.1", .port = bt_kv_agent_port(rig->from.agent)};
    bt_kv_recv_t recv = {.room = id,
                         .layout = rig->to.layout,
                         .pages = pages,
                         .page_count = count,
                         .prefix_pages = prefix,
                         .sources = &source,
                         .source_count = 1};

    if (has_aux) {
        recv.pieces[0] = rig_aux_piece(&rig->to);
        recv.piece_count = 1;
    }
    assert_int_equal(bt_kv_recv_open(rig->to.agent, &recv, &room), 0);
    return room;
}

bt_kv_room_t rig_send_open(rig_t *rig, uint64_t id, uint32_t receivers)
{
    bt_kv_room_t room = 0;
    bt_kv_send_spec_t spec = {.room = id, .layout = rig->from.layout, .receivers = receivers};

    assert_int_equal(bt_kv_send_open(rig->from.agent, &spec, &room), 0);
    return room;
}

int rig_send(rig_t *rig, bt_kv_room_t room, uint32_t first, const uint32_t *pages, uint32_t count,
             bool is_last, bool has_aux)
{
    bt_kv_chunk_t chunk = {.first = first, .pages = pages, .page_count = count, .last = is_last};

    if (has_aux) {
        chunk.pieces[0] = rig_aux_piece(&rig->from);
        chunk.piece_count = 1;
    }
    return bt_kv_send(rig->from.agent, room, &chunk);
}

void rig_turn(rig_side_t *side, rig_side_t *other)
{
    static const struct timespec moment = {.tv_nsec = 100000};
    bool is_called = false;
    rig_side_t *sides[] = {side, other};

    for (unsigned i = 0; i < 2; i++)
        if (sides[i] != NULL && sides[i]->agent != NULL &&
            sides[i]->config.progress == BT_KV_PROGRESS_CALLER) {
            bt_kv_progress(sides[i]->agent, 0);
            is_called = true;
        }
    if (!is_called)
        nanosleep(&moment, NULL);
}

void rig_wait(rig_side_t *side, rig_side_t *other, bt_kv_room_t room, enum bt_kv_state state)
{
    uint64_t end_ms = bt_clock_ms() + DEADLINE_MS;
    enum bt_kv_state now;

    while ((now = bt_kv_poll(side->agent, room)) != state) {
        bool is_over = now == BT_KV_FAILED || now == BT_KV_SUCCESS;
        if (is_over || bt_clock_ms() > end_ms)
            fail_msg("%s: state %d, waited for %d: %s", side->config.name, (int) now, (int) state,
                     rig_error(side, room));
        rig_turn(side, other);
    }
}

void rig_release(rig_side_t *side, rig_side_t *other, bt_kv_room_t room)
{
    uint64_t end_ms = bt_clock_ms() + DEADLINE_MS;

    while (bt_kv_room_release(side->agent, room) != 1) {
        if (bt_clock_ms() > end_ms)
            fail_msg("%s: never released: %s", side->config.name, rig_error(side, room));
        rig_turn(side, other);
    }
}

const char *rig_error(rig_side_t *side, bt_kv_room_t room)
{
    static char text[256];

    bt_kv_room_error(side->agent, room, text, sizeof(text));
    return text;
}

void rig_check_pages(const rig_t *rig, const uint32_t *to, const uint32_t *from, uint32_t count,
                     uint32_t prefix)
{
    bool is_wanted[RIG_PAGES] = {false};
    static const char zeros[8192];
    size_t bytes = RIG_PAGE_BYTES;

    for (uint32_t b = 0; b < RIG_BUFFERS; b++)
        for (uint32_t i = prefix; i < count; i++) {
            is_wanted[to[i]] = true;
            assert_memory_equal(rig_page(&rig->to, b, to[i]), rig_page(&rig->from, b, from[i]),
                                bytes);
        }
    for (uint32_t b = 0; b < RIG_BUFFERS; b++)
        for (uint32_t page = 0; page < RIG_PAGES; page++)
            if (!is_wanted[page])
                assert_memory_equal(rig_page(&rig->to, b, page), zeros, bytes);
}
