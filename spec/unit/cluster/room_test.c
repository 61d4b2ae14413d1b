#include "cluster/room.h"

#include "help.h"

#define MANY 100000U

static void rank_is_the_remainder(void **state)
{
    static const unsigned sizes[] = {2, 3, 7, 8, 16, 61, 1000, 65536};
    bt_rooms_t r;
    uint64_t room, prefix;
    assert_int_equal(bt_rooms_init(&r, 3), 0);
    assert_int_equal(bt_rooms_open(&r, 1, 0, NULL, &room), 0);
    prefix = room >> 53;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (unsigned k = 0; k < 200; k++) {
            unsigned rank = k * 7919U % sizes[i];
            assert_int_equal(bt_rooms_open(&r, sizes[i], rank, NULL, &room), 0);
            assert_int_equal(room % sizes[i], rank);
            assert_true(room >= 1 && room <= INT64_MAX);
            assert_int_equal(room >> 53, prefix); /* the move has not left the loop's range */
        }
    assert_int_equal(bt_rooms_open(&r, 4, 4, NULL, &room), BT_E_INVAL);
    assert_int_equal(bt_rooms_open(&r, 0, 0, NULL, &room), 0);
    assert_int_equal(bt_rooms_open(&r, 1, 0, NULL, &room), 0);
    bt_rooms_fini(&r);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;
    return x < y ? -1 : x > y;
}

static void two_loops_never_share_a_room(void **state)
{
    bt_rooms_t loops[2];
    uint64_t *rooms = calloc(MANY, sizeof *rooms);
    assert_non_null(rooms);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(bt_rooms_init(&loops[i], i), 0);
    for (unsigned i = 0; i < MANY; i++)
        assert_int_equal(bt_rooms_open(&loops[i % 2], 4, i % 4, NULL, &rooms[i]), 0);
    assert_int_equal(loops[0].live, MANY / 2);
    assert_true(bt_rooms_has(&loops[0], rooms[0]));
    assert_false(bt_rooms_has(&loops[1], rooms[0]));
    qsort(rooms, MANY, sizeof *rooms, by_value);
    for (unsigned i = 1; i < MANY; i++)
        assert_true(rooms[i] > rooms[i - 1]);
    for (unsigned i = 0; i < 2; i++)
        bt_rooms_fini(&loops[i]);
    free(rooms);
}

/* Against a plain array: what is open is found, what is closed is not, in every order of closing. */
static void open_and_close_in_any_order(void **state)
{
    static uint64_t model[4096]; /* a room's owner is its place here */
    bt_rooms_t r;
    unsigned seed = 5, live = 0;
    assert_int_equal(bt_rooms_init(&r, 0), 0);
    for (int step = 0; step < 200000; step++) {
        unsigned i = (unsigned) rand_r(&seed) % 4096U;
        if (model[i] != 0) {
            assert_ptr_equal(bt_rooms_owner(&r, model[i]), &model[i]);
            bt_rooms_close(&r, model[i]);
            assert_false(bt_rooms_has(&r, model[i]));
            assert_null(bt_rooms_owner(&r, model[i]));
            model[i] = 0;
            live--;
        } else {
            assert_int_equal(bt_rooms_open(&r, 2, i % 2, &model[i], &model[i]), 0);
            live++;
        }
        assert_int_equal(r.live, live);
    }
    for (unsigned i = 0; i < 4096; i++)
        assert_true(model[i] == 0 || bt_rooms_owner(&r, model[i]) == &model[i]);
    assert_null(bt_rooms_owner(&r, 0));
    assert_true(r.cap <= 16384); /* closed rooms leave nothing behind that would make it grow */
    bt_rooms_fini(&r);
}

static void closing_what_is_not_open(void **state)
{
    bt_rooms_t r;
    uint64_t room;
    assert_int_equal(bt_rooms_init(&r, 1), 0);
    assert_int_equal(bt_rooms_open(&r, 0, 0, NULL, &room), 0);
    bt_rooms_close(&r, 0);
    bt_rooms_close(&r, room ^ 1);
    assert_int_equal(r.live, 1);
    bt_rooms_close(&r, room);
    bt_rooms_close(&r, room);
    assert_int_equal(r.live, 0);
    assert_false(bt_rooms_has(&r, 0));
    bt_rooms_fini(&r);
}

/* The word and the number of loops tell whose a room may be. */
static void the_word_is_in_every_room(void **state)
{
    const unsigned word = bt_rooms_word();
    bt_rooms_t r;
    uint64_t room;
    assert_true(word < 1024);
    assert_int_equal(bt_rooms_word(), word);
    for (unsigned loop = 0; loop < 1024; loop += 341) {
        assert_int_equal(bt_rooms_init(&r, loop), 0);
        for (unsigned k = 0; k < 300; k++) {
            assert_int_equal(bt_rooms_open(&r, 61, k % 61, NULL, &room), 0);
            assert_int_equal(bt_rooms_loop_of(room, word), loop);
            assert_true(bt_rooms_may_own(room, word, loop + 1));
            assert_false(bt_rooms_may_own(room, word, loop));
        }
        bt_rooms_fini(&r);
    }
}

static void another_word_owns_its_part_only(void **state)
{
    const uint64_t room = (UINT64_C(5) << 53) + 7;
    unsigned owners = 0;
    assert_true(bt_rooms_may_own(room, 5, 1));
    assert_false(bt_rooms_may_own(room, 4, 1));
    assert_true(bt_rooms_may_own(room, 4, 2));
    assert_false(bt_rooms_may_own(room, 5, 0)); /* a replica that does not tell */
    for (unsigned word = 0; word < 1024; word++)
        owners += bt_rooms_may_own(room, word, 3);
    assert_int_equal(owners, 3);
    assert_false(bt_rooms_may_own(0, 0, 1024)); /* these are nobody's */
    assert_false(bt_rooms_may_own(UINT64_C(1) << 63, 0, 1024));
    assert_true(bt_rooms_may_own(INT64_MAX, 1023, 1));
    assert_true(bt_rooms_may_own(1, 0, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_is_the_remainder),
        cmocka_unit_test(two_loops_never_share_a_room),
        cmocka_unit_test(open_and_close_in_any_order),
        cmocka_unit_test(closing_what_is_not_open),
        cmocka_unit_test(the_word_is_in_every_room),
        cmocka_unit_test(another_word_owns_its_part_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
