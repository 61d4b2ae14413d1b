/* Rooms of the simulator's workers: two of them in this process, their agents' threads, one loop; the receiver is told who sends. */
#include "kv.h"

#include "ask.h"
#include "base/pages.h"
#include "routes.h"
#include "unit.h"
#include "words.h"
#include "worker.h"

#include <stdio.h>
#include <string.h>

#define PROMPT "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define BLOCKS 8
#define DEADLINE_MS 20000

static bt_loop_t loop;
static sim_options_t options;
static sim_world_t world;
static bt_arena_t arena;
static bt_timer_t look;
static bool (*until)(void);
static unsigned ended, looks;
static bool has_failed;
static char reason[256];

/* One side of a room. */
struct side {
    sim_worker_t *worker;
    sim_prompt_t prompt;
    uint32_t ids[BLOCKS];
    unsigned hits;
    sim_kv_room_t *room;
    uint64_t kv; /* as read when the room ended */
    bool is_told;
};
static struct side from, to;

static void on_look(bt_timer_t *timer)
{
    assert_true(++looks < DEADLINE_MS / 8);
    if (until())
        bt_loop_stop(&loop);
    else
        bt_timer_start(timer, 8);
}

static void run_until(bool (*is_so)(void))
{
    until = is_so;
    looks = 0;
    bt_timer_start(&look, 1);
    bt_loop_run(&loop);
}

static void open_world(const char *words)
{
    char p[200], d[200], error[256] = "";
    char *argv[] = {(char *) "baton-sim", (char *) "--worker", p, (char *) "--worker", d, NULL};

    snprintf(p, sizeof(p), "role=prefill,connector=BatonConnector,block_size=2,blocks=64%s", words);
    snprintf(d, sizeof(d), "role=decode,connector=BatonConnector,block_size=2,blocks=64%s", words);
    assert_int_equal(sim_options_parse(5, argv, &options, error, sizeof(error)), 0);
    assert_int_equal(bt_loop_init(&loop, 0), 0);
    bt_timer_init(&loop, &look, on_look);
    assert_int_equal(sim_world_open(&world, &loop, &options, &sim_servers, error, sizeof(error)),
                     0);
    bt_arena_init(&arena);
    from = (struct side){.worker = world.workers[0]};
    to = (struct side){.worker = world.workers[1]};
    ended = 0;
    has_failed = false;
}

static void on_closed(void *arg)
{
    (void) arg;
    bt_loop_stop(&loop);
}

static void close_world(void)
{
    sim_world_close(&world, on_closed, NULL);
    bt_loop_run(&loop);
    sim_world_fini(&world);
    bt_loop_fini(&loop);
    sim_options_fini(&options);
    bt_arena_fini(&arena);
    bt_pages_thread_fini();
}

static void take(struct side *side)
{
    sim_prompt_make(&side->prompt, BT_STR(PROMPT), side->worker->blocks.block_bytes, &arena);
    assert_int_equal(side->prompt.blocks, BLOCKS);
    assert_true(sim_blocks_take(&side->worker->blocks, &side->prompt, side->ids, &side->hits));
}

static void give(struct side *side)
{
    sim_blocks_release(&side->worker->blocks, side->ids, BLOCKS);
}

static void on_end(sim_kv_room_t *room, void *user)
{
    struct side *side = user;

    side->is_told = true;
    side->room = NULL;
    ended++;
    if (room->is_failed) {
        has_failed = true;
        snprintf(reason, sizeof(reason), "%s", room->reason);
    } else if (!room->is_sender) {
        side->kv = sim_kv_read(side->worker->kv, &side->prompt, side->ids);
        side->kv ^= sim_mix(sim_kv_aux(room, side->prompt.bytes, side->prompt.kv));
    }
}

static void open_sender(uint64_t number)
{
    take(&from);
    sim_blocks_compute(&from.worker->blocks, &from.prompt, from.ids, from.hits);
    sim_kv_write(from.worker->kv, from.ids, from.hits, BLOCKS);
    sim_kv_ask_t ask = {.number = number,
                        .ids = from.ids,
                        .blocks = BLOCKS,
                        .prefix = from.hits,
                        .bytes = from.prompt.bytes,
                        .kv = from.prompt.kv,
                        .on_end = on_end,
                        .user = &from};
    assert_int_equal(sim_kv_send_open(from.worker->kv, &ask, &from.room), 0);
    give(&from);
}

static void open_receiver(uint64_t number)
{
    char source[200] = "";

    take(&to);
    for (unsigned r = 0; r < from.worker->kv->rank_count; r++)
        snprintf(source + strlen(source), sizeof(source) - strlen(source), "%s127.0.0.1:%u",
                 r > 0 ? "," : "", bt_kv_agent_port(from.worker->kv->ranks[r].agent));
    sim_kv_ask_t ask = {.number = number,
                        .ids = to.ids,
                        .blocks = BLOCKS,
                        .prefix = to.hits,
                        .source = bt_str(source),
                        .on_end = on_end,
                        .user = &to};
    assert_int_equal(sim_kv_recv_open(to.worker->kv, &ask, &to.room), 0);
    give(&to);
}

static bool both_ended(void)
{
    return from.is_told && to.is_told;
}

static bool nothing_held(void)
{
    return from.worker->blocks.used == 0 && to.worker->blocks.used == 0;
}

/* ---- what arrives ---- */

static void move_one(const char *words)
{
    open_world(words);
    open_sender(7);
    open_receiver(7);
    sim_kv_send_rest(from.room);
    run_until(both_ended);
    assert_false(has_failed);
    assert_int_equal(to.kv, sim_kv(BT_STR(PROMPT)));
    run_until(nothing_held);
    close_world();
}

static void test_the_prompts_kv_arrives(void **state)
{
    move_one("");
}

static void test_over_tcp_from_private_memory(void **state)
{
    move_one(",kv_backend=tcp,kv_private=1,kv_crc=1");
}

static void test_two_ranks(void **state)
{
    move_one(",ranks=2,kv_layers=3,kv_page_bytes=40");
}

/* The chunks of the first pages are there long before the last one leaves; the pool's second prompt leaves its prefix out. */
static bool some_moved(void)
{
    bt_kv_agent_stats_t s;

    bt_kv_agent_stats(to.worker->kv->ranks[0].agent, &s);
    return s.bytes_received >= UINT64_C(4) * 4 * 1024;
}

static void test_chunks_leave_as_pages_are_computed(void **state)
{
    open_world(",kv_chunk_pages=1");
    open_sender(7);
    open_receiver(7);
    sim_kv_send_paced(from.room, 80);
    run_until(some_moved);
    assert_false(to.is_told);
    sim_kv_send_rest(from.room);
    run_until(both_ended);
    assert_int_equal(to.kv, sim_kv(BT_STR(PROMPT)));
    from.is_told = to.is_told = false;
    open_sender(8);
    open_receiver(8);
    assert_int_equal(to.hits, BLOCKS - 1);
    assert_int_equal(from.hits, BLOCKS - 1);
    sim_kv_send_rest(from.room);
    run_until(both_ended);
    assert_false(has_failed);
    assert_int_equal(to.kv, sim_kv(BT_STR(PROMPT)));
    assert_int_equal(to.worker->kv->counters.bytes, (BLOCKS + 1) * 4 * 1024 + 2 * SIM_AUX_BYTES);
    run_until(nothing_held);
    close_world();
}

static void test_a_flipped_byte_makes_other_kv(void **state)
{
    open_world("");
    for (unsigned page = 0; page < BLOCKS; page++) {
        from.is_told = to.is_told = false;
        open_sender(7 + page);
        sim_kv_corrupt(from.room, page);
        open_receiver(7 + page);
        unsigned hits = to.hits;
        sim_kv_send_rest(from.room);
        run_until(both_ended);
        assert_false(has_failed);
        assert_int_equal(hits, 0);
        assert_int_not_equal(to.kv, sim_kv(BT_STR(PROMPT)));
        run_until(nothing_held);
        sim_worker_reset(to.worker); /* its cache keeps what came */
    }
    from.is_told = to.is_told = false;
    open_sender(99); /* the byte was put right */
    open_receiver(99);
    sim_kv_send_rest(from.room);
    run_until(both_ended);
    assert_int_equal(to.kv, sim_kv(BT_STR(PROMPT)));
    close_world();
}

/* ---- what does not ---- */

static bool receiver_ended(void)
{
    return to.is_told;
}

static void test_an_aborted_sender_fails_the_receiver(void **state)
{
    open_world("");
    open_sender(7);
    open_receiver(7);
    sim_kv_stall(from.room, 3);
    sim_kv_send_rest(from.room);
    sim_kv_abort(from.room, "nobody wants it");
    run_until(receiver_ended);
    assert_true(has_failed);
    assert_non_null(strstr(reason, "nobody wants it"));
    assert_false(from.is_told); /* who aborts is not told */
    run_until(nothing_held);
    close_world();
}

static void test_blocks_are_held_until_somebody_has_them(void **state)
{
    unsigned rooms;

    open_world("");
    open_sender(7);
    sim_kv_send_rest(from.room);
    assert_int_equal(sim_kv_held(from.worker->kv, &rooms), 0); /* its request lives */
    sim_kv_leave(from.room);
    assert_int_equal(sim_kv_held(from.worker->kv, &rooms), BLOCKS);
    assert_int_equal(rooms, 1);
    assert_int_equal(from.worker->blocks.used, BLOCKS);
    open_receiver(7);
    run_until(receiver_ended);
    assert_int_equal(to.kv, sim_kv(BT_STR(PROMPT)));
    run_until(nothing_held);
    assert_int_equal(sim_kv_held(from.worker->kv, &rooms), 0);
    close_world();
}

static bool sender_ended(void)
{
    return from.is_told;
}

static void test_nobody_comes(void **state)
{
    open_world(",kv_bootstrap_ms=40");
    open_sender(7);
    sim_kv_send_rest(from.room);
    run_until(sender_ended);
    assert_true(has_failed);
    assert_non_null(strstr(reason, "Bootstrapping"));
    run_until(nothing_held);
    close_world();
}

static void test_a_dead_engine_fails_its_peers_rooms(void **state)
{
    open_world("");
    open_sender(7);
    open_receiver(7);
    sim_worker_die(from.worker);
    run_until(receiver_ended);
    assert_true(has_failed);
    run_until(nothing_held);
    assert_null(from.worker->kv);
    assert_false(from.is_told);
    close_world();
}

static void test_closing_with_rooms_under_way(void **state)
{
    open_world(",ranks=2");
    open_sender(7);
    open_receiver(7);
    close_world();
    assert_int_equal(ended, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_prompts_kv_arrives),
        cmocka_unit_test(test_over_tcp_from_private_memory),
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_chunks_leave_as_pages_are_computed),
        cmocka_unit_test(test_a_flipped_byte_makes_other_kv),
        cmocka_unit_test(test_an_aborted_sender_fails_the_receiver),
        cmocka_unit_test(test_blocks_are_held_until_somebody_has_them),
        cmocka_unit_test(test_nobody_comes),
        cmocka_unit_test(test_a_dead_engine_fails_its_peers_rooms),
        cmocka_unit_test(test_closing_with_rooms_under_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
