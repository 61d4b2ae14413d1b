/* Slots: the transition table, stale handles, the epoch's wrap, and polling while rooms come and go. */
#include "transport/agent/room.h"

#include "base/err.h"
#include "unit.h"

#include <pthread.h>

/* Typed from the public header's picture, not from the table. */
static bool may(int from, int to)
{
    if (to == BT_KV_FAILED)
        return from >= BT_KV_BOOTSTRAPPING && from <= BT_KV_TRANSFERRING;
    return from >= BT_KV_BOOTSTRAPPING && to == from + 1 && to <= BT_KV_SUCCESS;
}

static void test_the_table_is_the_picture(void **state)
{
    for (int from = 0; from < BT_KV_ROOM_STATES; from++)
        for (int to = 0; to < 8; to++)
            assert_int_equal(bt_kv_room_next[from] >> to & 1, may(from, to));
}

/* Every walk of the table, by the real moves. */
static void test_moves_obey_the_table(void **state)
{
    bt_kv_rooms_t rooms;
    enum bt_kv_state now;

    assert_int_equal(bt_kv_rooms_init(&rooms, 4), 0);
    for (int walk = 0; walk < 5 * 5 * 5 * 5; walk++) {
        bt_kv_room_t room;
        int at = BT_KV_BOOTSTRAPPING, rest = walk;
        assert_int_equal(bt_kv_rooms_take(&rooms, &room), 0);
        for (int step = 0; step < 4; step++, rest /= 5) {
            assert_int_equal(bt_kv_rooms_move(&rooms, room, (enum bt_kv_state)(rest % 5)),
                             may(at, rest % 5));
            at = may(at, rest % 5) ? rest % 5 : at;
            assert_true(bt_kv_rooms_state(&rooms, room, &now));
            assert_int_equal(now, at);
        }
        bt_kv_rooms_give(&rooms, room);
    }
    bt_kv_rooms_fini(&rooms);
}

static void test_stale_handles_are_refused(void **state)
{
    bt_kv_rooms_t rooms;
    bt_kv_room_t old, now, extra;
    enum bt_kv_state s;

    assert_int_equal(bt_kv_rooms_init(&rooms, 1), 0);
    assert_int_equal(bt_kv_rooms_take(&rooms, &old), 0);
    assert_int_equal(bt_kv_rooms_take(&rooms, &extra), BT_E_LIMIT);
    bt_kv_rooms_give(&rooms, old);
    assert_false(bt_kv_rooms_state(&rooms, old, &s));
    bt_kv_rooms_give(&rooms, old); /* twice: nothing */
    assert_int_equal(rooms.open, 0);
    assert_int_equal(bt_kv_rooms_take(&rooms, &now), 0);
    assert_int_not_equal(now, old);
    assert_false(bt_kv_rooms_state(&rooms, old, &s));
    assert_false(bt_kv_rooms_move(&rooms, old, BT_KV_FAILED));
    assert_true(bt_kv_rooms_state(&rooms, now, &s));
    assert_int_equal(s, BT_KV_BOOTSTRAPPING);
    assert_false(bt_kv_rooms_state(&rooms, 0, &s));
    assert_false(bt_kv_rooms_state(&rooms, 1, &s)); /* epoch 0 is nobody's */
    assert_false(bt_kv_rooms_state(&rooms, UINT64_MAX, &s));
    bt_kv_rooms_fini(&rooms);
}

static void test_the_epoch_wraps_past_zero(void **state)
{
    bt_kv_rooms_t rooms;
    bt_kv_room_t last, next;
    enum bt_kv_state s;

    assert_int_equal(bt_kv_rooms_init(&rooms, 1), 0);
    atomic_store(&rooms.words[0], ((uint64_t) (UINT32_MAX - 1) << 8) | 0xff);
    assert_int_equal(bt_kv_rooms_take(&rooms, &last), 0);
    assert_int_equal(last >> 32, UINT32_MAX);
    assert_true(bt_kv_rooms_move(&rooms, last, BT_KV_FAILED));
    bt_kv_rooms_give(&rooms, last);
    assert_int_equal(bt_kv_rooms_take(&rooms, &next), 0);
    assert_int_equal(next >> 32, 1);
    assert_true(bt_kv_rooms_state(&rooms, next, &s));
    assert_false(bt_kv_rooms_state(&rooms, last, &s));
    bt_kv_rooms_fini(&rooms);
}

/* A freed slot rests until 256 others have been used or none is fresh. */
static void test_slots_rest(void **state)
{
    bt_kv_rooms_t rooms;
    bt_kv_room_t room;

    assert_int_equal(bt_kv_rooms_init(&rooms, 1000), 0);
    for (uint32_t i = 0; i < 2000; i++) {
        assert_int_equal(bt_kv_rooms_take(&rooms, &room), 0);
        assert_int_equal(bt_kv_room_slot(room), i % 256);
        bt_kv_rooms_give(&rooms, room);
    }
    bt_kv_rooms_fini(&rooms);
}

typedef struct watch {
    bt_kv_rooms_t *rooms;
    _Atomic uint64_t room;
    _Atomic bool is_over;
    _Atomic uint64_t polls;
    _Atomic int backwards;
} watch_t;

static void *poll_it(void *user)
{
    watch_t *watch = user;
    bt_kv_room_t last = 0;
    int highest = 0;

    while (!atomic_load(&watch->is_over)) {
        bt_kv_room_t room = atomic_load(&watch->room);
        enum bt_kv_state s;
        if (room != last)
            highest = 0;
        last = room;
        if (bt_kv_rooms_state(watch->rooms, room, &s) && s != BT_KV_FAILED) {
            if ((int) s < highest)
                atomic_fetch_add(&watch->backwards, 1);
            highest = (int) s;
        }
        atomic_fetch_add(&watch->polls, 1);
    }
    return NULL;
}

static void test_polls_from_many_threads_see_only_forward(void **state)
{
    enum { THREADS = 4 };
    bt_kv_rooms_t rooms;
    pthread_t threads[THREADS];

    assert_int_equal(bt_kv_rooms_init(&rooms, 8), 0);
    watch_t watch = {.rooms = &rooms};
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, poll_it, &watch), 0);
    for (int i = 0; i < 20000 || atomic_load(&watch.polls) < 20000; i++) {
        bt_kv_room_t room;
        assert_int_equal(bt_kv_rooms_take(&rooms, &room), 0);
        atomic_store(&watch.room, room);
        for (int s = BT_KV_WAITING_FOR_INPUT; s <= BT_KV_SUCCESS; s++)
            bt_kv_rooms_move(&rooms, room, (enum bt_kv_state) s);
        bt_kv_rooms_give(&rooms, room);
    }
    atomic_store(&watch.is_over, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(watch.backwards, 0);
    bt_kv_rooms_fini(&rooms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_table_is_the_picture),
        cmocka_unit_test(test_moves_obey_the_table),
        cmocka_unit_test(test_stale_handles_are_refused),
        cmocka_unit_test(test_the_epoch_wraps_past_zero),
        cmocka_unit_test(test_slots_rest),
        cmocka_unit_test(test_polls_from_many_threads_see_only_forward),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
