/* The hub as a whole: many rooms, mail from other threads, ends in any order. */
#include "transfer/rig.h"

#include "base/rand.h"

#include <pthread.h>

static pair_t *x;

static int open_pair(void **state)
{
    x = calloc(1, sizeof *x);
    return x == NULL;
}

static int close_pair(void **state)
{
    pair_close(x);
    free(x);
    return 0;
}

#define ROOMS 10000u

static unsigned done_count, failed_count;

static void count_event(void *user, const bt_transfer_event_t *event)
{
    (void) user;
    done_count += event->what == BT_TRANSFER_DONE;
    failed_count += event->what == BT_TRANSFER_FAILED;
}

static void open_many(unsigned first, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        bt_transfer_room_spec_t spec = spec_of(&x->rig, first + i);
        spec.on_event = count_event;
        assert_int_equal(bt_transfer_room_open(x->rig.t, &spec), 0);
    }
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(fake_hear(&x->p, BT_KV_CONTROL_OPEN).open.room, first + i);
        assert_int_equal(fake_hear(&x->d, BT_KV_CONTROL_OPEN).open.room, first + i);
    }
    assert_int_equal(rig_stats(&x->rig).rooms_open, count);
}

static void test_many_rooms(void **state)
{
    done_count = failed_count = 0;
    pair_open(x, NULL);
    open_many(1, ROOMS);
    for (unsigned i = 1; i <= ROOMS; i++)
        fake_tell(&x->p, i, BT_KV_SIDE_SENDER, BT_KV_SUCCESS, 7);
    for (unsigned i = ROOMS; i >= 1; i--)
        fake_tell(&x->d, i, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 7);
    TURN_UNTIL(&x->rig.loop, done_count == ROOMS);
    assert_int_equal(failed_count, 0);
    assert_int_equal(rig_stats(&x->rig).rooms_open, 0);
    assert_int_equal(rig_stats(&x->rig).bytes, 7 * ROOMS);
}

/* One agent's loss ends all of them, and the other side hears of each. */
static void test_many_rooms_lost_at_once(void **state)
{
    done_count = failed_count = 0;
    pair_open(x, NULL);
    open_many(1, ROOMS);
    fake_hang_up(&x->d);
    TURN_UNTIL(&x->rig.loop, failed_count == ROOMS);
    for (unsigned i = 1; i <= ROOMS; i++)
        (void) fake_hear(&x->p, BT_KV_CONTROL_ABORT);
    assert_int_equal(rig_stats(&x->rig).rooms_open, 0);
}

/* Agents are told, rooms end without a word, mail that are under way are dropped. */
static void test_closed_with_rooms_open(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 1);
    pair_room(x, 2);
    pair_room(x, 3);
    fake_hang_up(&x->p);
    for (int i = 0; i < 3; i++)
        (void) rig_event(&x->rig, BT_TRANSFER_ORPHANED);
    bt_transfer_room_spec_t spec = spec_of(&x->rig, 4);
    assert_int_equal(bt_transfer_room_open(x->rig.t, &spec), 0);
    assert_int_equal(bt_transfer_repair(x->rig.t, 1, 10, spec.prefill), 0);
    bt_transfer_room_close(x->rig.t, 2, true, "too late");
    bt_worker_t *decode = spec.decode;
    rig_close_hub(&x->rig);
    bt_kv_control_t m = fake_hear(&x->d, BT_KV_CONTROL_REFUSE);
    assert_true(bt_str_find(m.refuse.reason, BT_STR("closing")) >= 0);
    fake_hear_end(&x->d);
    assert_false(atomic_load(&decode->has_agents));
    assert_int_equal(atomic_load(&decode->refs), 1); /* the fleet's */
    no_event(&x->rig);
}

static void test_closed_before_anything(void **state)
{
    rig_open(&x->rig, &(bt_transfer_config_t){.token = "t"});
    x->p.fd = x->d.fd = -1;
    fake_dial(&x->p, &x->rig); /* not accepted yet */
}

/* ---- anything in any order ---- */
#define WILD_ROOMS 400
#define WILD_FAKES 4
#define WILD_STEPS 20000

static struct wild_room {
    bool is_open, is_closed;
    unsigned ends, orphaned;
    uint64_t source_room;
} wild[WILD_ROOMS + 1];
static fake_t wild_fakes[WILD_FAKES]; /* of p0, p1, d0, d1 */
static const char *const wild_names[WILD_FAKES] = {"p0", "p1", "d0", "d1"};

static void on_wild_event(void *user, const bt_transfer_event_t *event)
{
    struct wild_room *room = &wild[event->room];

    (void) user;
    assert_int_equal(room->ends, 0); /* nothing comes after the last one */
    assert_false(room->is_closed);
    room->ends += event->what == BT_TRANSFER_DONE || event->what == BT_TRANSFER_FAILED;
    room->orphaned += event->what == BT_TRANSFER_ORPHANED;
    assert_true(event->what != BT_TRANSFER_FAILED || event->reason[0] != '\0');
}

static void wild_open(uint64_t id)
{
    static const uint64_t start_ms[] = {30, 1000, 0};
    bt_transfer_room_spec_t spec = {.room = id,
                                    .prefill = rig_worker(&x->rig, wild_names[id % 2]),
                                    .decode = rig_worker(&x->rig, wild_names[2 + id / 2 % 2]),
                                    .start_ms = start_ms[id % 3],
                                    .stall_ms = 300,
                                    .repair_ms = 1 + id % 30,
                                    .loop = &x->rig.loop,
                                    .on_event = on_wild_event};

    wild[id] = (struct wild_room){.is_open = true, .source_room = id};
    assert_int_equal(bt_transfer_room_open(x->rig.t, &spec), 0);
}

/* A few rooms at a time, so that much happens to each. */
static void wild_step(unsigned step, uint64_t *next_source)
{
    uint64_t id = 1 + (uint64_t) step * (WILD_ROOMS - 8) / WILD_STEPS + bt_rand_below(8);
    struct wild_room *room = &wild[id];
    fake_t *f = &wild_fakes[bt_rand_below(WILD_FAKES)];
    static const uint8_t states[] = {0, 1, 1, 2, 2, 2, 3, 4, 4, 4};
    bt_kv_control_t m;

    switch (bt_rand_below(12)) {
    case 0:
        if (!room->is_open)
            wild_open(id);
        break;
    case 1:
        if (!room->is_open || room->is_closed)
            break;
        if (bt_rand_below(4) != 0)
            break;
        bt_transfer_room_close(x->rig.t, id, bt_rand_below(2) == 0, "wild");
        turn(&x->rig.loop, 2); /* what was on its way has come */
        room->is_closed = true;
        break;
    case 2:
        if (!room->is_open)
            break;
        room->source_room = ++*next_source;
        assert_int_equal(bt_transfer_repair(x->rig.t, id, room->source_room,
                                            rig_worker(&x->rig, wild_names[bt_rand_below(2)])),
                         0);
        break;
    case 3:
        if (bt_rand_below(8) == 0) {
            fake_hang_up(f);
            fake_join(f, &x->rig, wild_names[f - wild_fakes], 0, 1, 1 + bt_rand_below(3));
        }
        break;
    case 4:
        while (fake_next(f, &m))
            ;
        break;
    case 5:
        fake_tell_orphan(f, id);
        break;
    default:
        m = room_of(bt_rand_below(2) == 0 ? id : room->source_room,
                    f < &wild_fakes[2] ? BT_KV_SIDE_SENDER : BT_KV_SIDE_RECEIVER,
                    (enum bt_kv_state) states[bt_rand_below(sizeof states)],
                    bt_rand_below(6) == 0 ? 100 : 0);
        m.room.rc = m.room.state == BT_KV_FAILED ? BT_E_RESET : 0;
        m.room.is_orphan = bt_rand_below(8) == 0;
        if (m.room.room != 0)
            fake_say(f, &m);
    }
    if (bt_rand_below(100) == 0)
        turn_once(&x->rig.loop);
    else if (bt_rand_below(3) == 0)
        turn(&x->rig.loop, 1);
}

/* Whatever happens: each room that is not closed ends exactly once, and nothing is left of it. */
static void test_anything_in_any_order(void **state)
{
    static const struct {
        enum bt_role role;
        const char *url;
    } workers[WILD_FAKES] = {{BT_ROLE_PREFILL, "http://127.0.0.1:8001"},
                             {BT_ROLE_PREFILL, "http://127.0.0.1:8002"},
                             {BT_ROLE_DECODE, "http://127.0.0.1:8003"},
                             {BT_ROLE_DECODE, "http://127.0.0.1:8004"}};
    uint64_t next_source = 1000000, seed = 20;

    rig_open(&x->rig, NULL);
    bt_log_set(BT_LOG_ERROR, false, 2);
    x->p.fd = x->d.fd = -1;
    bt_rand_seed(seed);
    for (unsigned i = 0; i < WILD_FAKES; i++) {
        (void) rig_add(&x->rig, workers[i].role, wild_names[i], workers[i].url);
        fake_join(&wild_fakes[i], &x->rig, wild_names[i], 0, 1, 1);
    }
    memset(wild, 0, sizeof wild);
    for (unsigned i = 0; i < WILD_STEPS; i++)
        wild_step(i, &next_source);
    for (unsigned i = 0; i < WILD_FAKES; i++)
        fake_hang_up(&wild_fakes[i]);
    TURN_UNTIL(&x->rig.loop, rig_stats(&x->rig).rooms_open == 0);
    turn(&x->rig.loop, 2);
    unsigned ended = 0, orphaned = 0;
    for (unsigned i = 1; i <= WILD_ROOMS; i++) {
        orphaned += wild[i].orphaned;
        ended += wild[i].ends;
        if (wild[i].is_open && !wild[i].is_closed)
            assert_int_equal(wild[i].ends, 1);
    }
    bt_transfer_stats_t stats = rig_stats(&x->rig);
    assert_true(ended > 10); /* it has been wild enough */
    assert_true(orphaned > 10);
    assert_true(stats.rooms_repaired > 10);
    assert_true(stats.rooms_done > 10);
    for (int i = 0; i < BT_TRANSFER_PHASES; i++)
        assert_int_equal(stats.rooms_by_phase[i], 0);
}

/* ---- mail from other threads ---- */
#define THREADS 4
#define EACH 500

typedef struct worker_loop {
    bt_loop_t loop;
    pthread_t thread;
    bt_transfer_t *t;
    bt_worker_t *prefill, *decode;
    unsigned index, ended;
    bt_mail_t start;
} worker_loop_t;

static void on_worker_event(void *user, const bt_transfer_event_t *event)
{
    worker_loop_t *w = user;

    if (event->what != BT_TRANSFER_DONE && event->what != BT_TRANSFER_FAILED)
        return;
    assert_int_equal(event->room / 100000, w->index + 1);
    bt_transfer_room_close(w->t, event->room, false, NULL);
    if (++w->ended == EACH)
        bt_loop_stop(&w->loop);
}

static void open_all(bt_loop_t *loop, bt_mail_t *envelope)
{
    worker_loop_t *w = bt_container_of(envelope, worker_loop_t, start);

    for (unsigned i = 0; i < EACH; i++) {
        bt_transfer_room_spec_t spec = {.room = (w->index + 1) * 100000 + i,
                                        .prefill = w->prefill,
                                        .decode = w->decode,
                                        .loop = loop,
                                        .on_event = on_worker_event,
                                        .user = w};
        assert_int_equal(bt_transfer_room_open(w->t, &spec), 0);
        if (i % 7 == 0)
            assert_int_equal(bt_transfer_repair(w->t, spec.room, 10000000 + spec.room, w->prefill),
                             0);
    }
}

static void *run_worker(void *arg)
{
    worker_loop_t *w = arg;

    bt_loop_run(&w->loop);
    return NULL;
}

/* Success for everything that is opened. */
static void answer_opens(fake_t *f)
{
    bt_kv_control_t m;

    while (fake_next(f, &m))
        if (m.type == BT_KV_CONTROL_OPEN)
            fake_tell(f, m.open.room, (enum bt_kv_side) m.open.side, BT_KV_SUCCESS, 1);
}

static void test_mail_from_other_threads(void **state)
{
    static worker_loop_t w[THREADS];
    unsigned ended = 0;

    pair_open(x, NULL);
    for (unsigned i = 0; i < THREADS; i++) {
        w[i] = (worker_loop_t){.t = x->rig.t,
                               .prefill = rig_worker(&x->rig, "p0"),
                               .decode = rig_worker(&x->rig, "d0"),
                               .index = i};
        assert_int_equal(bt_loop_init(&w[i].loop, i), 0);
        assert_int_equal(pthread_create(&w[i].thread, NULL, run_worker, &w[i]), 0);
        bt_loop_post(&w[i].loop, &w[i].start, open_all);
    }
    while (ended < THREADS * EACH) {
        bt_transfer_stats_t stats = rig_stats(&x->rig);
        ended = (unsigned) (stats.rooms_done + stats.rooms_failed);
        answer_opens(&x->p);
        answer_opens(&x->d);
        turn_once(&x->rig.loop);
    }
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(w[i].thread, NULL), 0);
    for (unsigned i = 0; i < THREADS; i++)
        bt_loop_fini(&w[i].loop);
    assert_int_equal(rig_stats(&x->rig).rooms_open, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_pair, close_pair)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_many_rooms),
        TEST(test_many_rooms_lost_at_once),
        TEST(test_closed_with_rooms_open),
        TEST(test_closed_before_anything),
        TEST(test_anything_in_any_order),
        TEST(test_mail_from_other_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
