/* Whose a room is, by what the rows of replicas tell (the table itself: share_test.c). */
#include "rig.h"

#include "base/json.h"
#include "cluster/room.h"

static const unsigned none[] = {0};
static char owners[1024];

/* As a[sked] names them; how many. */
static unsigned ask(const replica_t *a, uint64_t room)
{
    bt_text_t out;

    bt_text_init(&out);
    const unsigned count = bt_fleet_room_owners(a->fleet, room, &out);
    assert_int_equal(bt_json_validate(bt_text_str(&out), &(size_t){0}), 0);
    assert_int_equal(bt_json_count(bt_text_str(&out)), count);
    snprintf(owners, sizeof(owners), "%.*s", BT_STR_ARG(bt_text_str(&out)));
    bt_text_fini(&out);
    return count;
}

/* A room whose upper bits are these. */
static uint64_t room_of(unsigned bits)
{
    return ((uint64_t) bits << 53) + 4711;
}

static void put_row(const char *name, const char *rooms)
{
    char field[32], value[160];

    snprintf(field, sizeof(field), "%s#0", name);
    snprintf(value, sizeof(value), "{\"name\":\"%s\",\"admin\":\"http://%s:1\"%s%s}", name, name,
             rooms[0] != '\0' ? ",\"rooms\":" : "", rooms);
    rig_put("replicas", field, value, 60000);
}

static void test_a_row_tells_word_and_loops(void **state)
{
    char wanted[64];
    replica_t a;

    rig_start(&a, "a", none, NULL);
    rig_heartbeat(&a, 2);
    const rig_answer_t all = rig_all("replicas");
    assert_int_equal(all.row_count, 1);
    snprintf(wanted, sizeof(wanted), "\"rooms\":{\"word\":%u,\"loops\":%u}", bt_rooms_word(),
             RIG_LOOPS);
    assert_non_null(strstr(all.values[0], wanted));
    assert_int_equal(ask(&a, room_of(bt_rooms_word())), 0); /* itself is not another one */
    rig_stop(&a);
}

static void test_who_may_have_minted_a_room(void **state)
{
    replica_t a;

    rig_start(&a, "a", none, NULL);
    put_row("g", "{\"word\":8,\"loops\":2}");
    put_row("h", "{\"word\":9,\"loops\":1,\"more\":true}");
    rig_put("replicas", "shy#0", "{\"name\":\"shy\",\"rooms\":{\"word\":40,\"loops\":1}}", 60000);
    TURN_UNTIL(&rig_loop, bt_fleet_replicas(a.fleet) == 4);
    assert_int_equal(ask(&a, room_of(8)), 1);
    assert_string_equal(owners, "[{\"name\":\"g\",\"admin\":\"http://g:1\"}]");
    assert_int_equal(ask(&a, room_of(9)), 2); /* their numbers overlap */
    assert_non_null(strstr(owners, "{\"name\":\"g\",\"admin\":\"http://g:1\"}"));
    assert_non_null(strstr(owners, "{\"name\":\"h\",\"admin\":\"http://h:1\"}"));
    assert_int_equal(ask(&a, room_of(40)), 1);
    assert_string_equal(owners, "[{\"name\":\"shy\",\"admin\":null}]");
    assert_int_equal(ask(&a, room_of(11)), 0);
    assert_string_equal(owners, "[]");
    rig_stop(&a);
}

/* An older version's row, and rows that nobody should have written: in the fleet as ever, and nobody's owner. */
static void test_rows_that_tell_nothing_of_rooms(void **state)
{
    static const char *const rows[] = {
        "",
        "7",
        "{}",
        "{\"word\":8}",
        "{\"word\":8,\"loops\":0}",
        "{\"word\":8,\"loops\":-1}",
        "{\"word\":8,\"loops\":1025}",
        "{\"word\":8,\"loops\":\"2\"}",
        "{\"word\":8,\"loops\":99999999999999999999}",
    };
    const unsigned count = sizeof(rows) / sizeof(rows[0]);
    char name[8];
    replica_t a;

    rig_start(&a, "a", none, NULL);
    for (unsigned i = 0; i < count; i++) {
        snprintf(name, sizeof(name), "r%u", i);
        put_row(name, rows[i]);
    }
    rig_put("replicas", "list#0", "[1]", 60000);
    rig_put("replicas", "broken#0", "{\"rooms\":{\"word\":8,\"loops\":2}", 60000);
    TURN_UNTIL(&rig_loop, bt_fleet_replicas(a.fleet) == count + 3);
    for (unsigned bits = 0; bits < 1024; bits++)
        assert_int_equal(ask(&a, room_of(bits)), 0);
    /* It was started anew, as a version that tells. */
    put_row("r0", "{\"word\":0,\"loops\":2}");
    TURN_UNTIL(&rig_loop, ask(&a, room_of(0)) == 1);
    put_row("r0", "");
    TURN_UNTIL(&rig_loop, ask(&a, room_of(0)) == 0);
    rig_stop(&a);
}

static void test_who_is_gone_is_asked_no_more(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", none, NULL);
    rig_start(&b, "b", none, NULL); /* of one process, hence of one word */
    TURN_UNTIL(&rig_loop, ask(&a, room_of(bt_rooms_word())) == 1);
    assert_string_equal(owners, "[{\"name\":\"b\",\"admin\":\"http://127.0.0.1:1\"}]");
    rig_stop(&b);
    TURN_UNTIL(&rig_loop, ask(&a, room_of(bt_rooms_word())) == 0);
    rig_stop(&a);
}

int main(void)
{
#define SPEC(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        SPEC(test_a_row_tells_word_and_loops),
        SPEC(test_who_may_have_minted_a_room),
        SPEC(test_rows_that_tell_nothing_of_rooms),
        SPEC(test_who_is_gone_is_asked_no_more),
    };
    bt_log_set(BT_LOG_ERROR, false, 2);
    alarm(50);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
