#include "admin/help.h"
#include "dispatch/attempt/attempt.h"
#include "dispatch/dispatcher.h"

#include "admin/call/live.h"
#include "loop/util.h"

#include <sys/mman.h>

#define SHOWN 100

static rig_t rig;
static bt_loop_t control;
static pthread_t threads[LOOPS_MAX];
static unsigned told, answered;
static bt_text_t json;

static void *run(void *arg)
{
    bt_loop_run(arg);
    return NULL;
}

static void start_loop(unsigned i)
{
    assert_int_equal(pthread_create(&threads[i], NULL, run, &rig.loops[i]), 0);
}

static int open_rig(void **state)
{
    rig_open(&rig, 2);
    assert_int_equal(bt_loop_init(&control, BT_LOOP_CONTROL), 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(bt_loop_init(&rig.loops[i], i), 0);
        threads[i] = 0;
    }
    told = answered = 0;
    bt_text_init(&json);
    return 0;
}

/* Ends loops first: mail that was late comes home to the control loop then, and everything is freed. */
static int close_rig(void **state)
{
    for (unsigned i = 0; i < 2; i++) {
        if (threads[i] != 0) {
            bt_loop_stop(&rig.loops[i]);
            pthread_join(threads[i], NULL);
        }
        bt_loop_fini(&rig.loops[i]);
    }
    bt_loop_fini(&control);
    bt_text_fini(&json);
    rig_close(&rig);
    return 0;
}

static void on_facts(void *user, const bt_loop_facts_t *facts, unsigned count)
{
    (void) user;
    told++;
    for (unsigned i = 0; i < count; i++)
        answered += facts[i].answered;
    bt_text_fini(&json);
    bt_live_requests(&json, facts, count);
    assert_json(bt_text_str(&json));
}

static bt_gather_t *gather(uint64_t deadline_ms)
{
    const bt_gather_ask_t ask = {.what = BT_GATHER_REQUESTS, .limit = SHOWN};
    bt_gather_t *g = NULL;

    assert_int_equal(bt_gather_start(&g, &control, &rig.shared, &ask, deadline_ms, on_facts, NULL),
                     0);
    return g;
}

static void test_all_loops_answer(void **state)
{
    bt_request_t *r = calloc(1, sizeof *r);

    r->id = "req-1";
    r->route = BT_ROUTE_CHAT;
    r->start_us = bt_clock_us();
    bt_list_push(&rig.dispatchers[1]->live, &r->link);
    rig.dispatchers[1]->live_count = 1;
    start_loop(0);
    start_loop(1);
    gather(60000);
    TURN_UNTIL(&control, told == 1);
    assert_int_equal(answered, 2);
    assert_non_null(strstr(json.data, "\"id\":\"req-1\""));
    assert_non_null(strstr(json.data, "\"total\":1,\"late_loops\":[]"));
    free(r);
}

/* Who counts or describes more than were asked for reads what cannot be read. */
static void test_of_100000_only_the_oldest_are_looked_at(void **state)
{
    const long page = sysconf(_SC_PAGESIZE);
    bt_request_t *all = calloc(SHOWN + 1, sizeof *all);
    bt_list_t *wall = mmap(NULL, (size_t) page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bt_dispatcher_t *d = rig.dispatchers[0];

    assert_non_null(all);
    assert_true(wall != MAP_FAILED);
    for (unsigned i = 0; i <= SHOWN; i++) {
        all[i].id = "old";
        all[i].start_us = bt_clock_us();
        bt_list_push(&d->live, &all[i].link);
    }
    all[SHOWN].link.next = wall; /* the loop may step on the one behind the last, no further */
    d->live_count = 100000;
    start_loop(0);
    start_loop(1);
    gather(60000);
    TURN_UNTIL(&control, told == 1);
    assert_int_equal(answered, 2);
    assert_int_equal(count_of(&json, "\"id\":\"old\""), SHOWN);
    assert_non_null(strstr(json.data, "\"total\":100000,"));
    bt_list_init(&d->live);
    munmap(wall, (size_t) page);
    free(all);
}

/* ---- whose a room is ---- */

static char owner[512]; /* what the loop that has it writes */
static unsigned owner_loop;
static uint64_t hub_room;

static void on_room(void *user, const bt_loop_facts_t *facts, unsigned count)
{
    (void) user;
    told++;
    owner[0] = '\0';
    for (unsigned i = 0; i < count; i++) {
        assert_true(facts[i].answered);
        if (facts[i].rows.len == 0)
            continue;
        assert_string_equal(owner, ""); /* one at most */
        snprintf(owner, sizeof owner, "%s", facts[i].rows.data);
        owner_loop = facts[i].loop;
        hub_room = facts[i].hub_room;
    }
}

static void ask_room(uint64_t room)
{
    const bt_gather_ask_t ask = {.what = BT_GATHER_ROOM, .room = room};
    const unsigned before = told;
    bt_gather_t *g;

    assert_int_equal(bt_gather_start(&g, &control, &rig.shared, &ask, 60000, on_room, NULL), 0);
    TURN_UNTIL(&control, told > before);
}

static void test_whose_a_room_is(void **state)
{
    bt_request_t *r = calloc(1, sizeof *r);
    bt_task_t task = {.request = r, .index = 2};
    bt_worker_t *p = rig_add(&rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:1", NULL),
                *d = rig_add(&rig, BT_ROLE_DECODE, "d0", "http://127.0.0.1:2", NULL);
    bt_attempt_t a = {
        .task = &task, .id = "req-1-a2", .number = 2, .pair = {.prefill = p, .decode = d}};
    uint64_t room, other;

    r->id = "req-1";
    r->route = BT_ROUTE_CHAT;
    r->start_us = a.start_us = bt_clock_us();
    r->task_count = 3;
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(bt_rooms_init(&rig.dispatchers[i]->rooms, i), 0);
    assert_int_equal(bt_rooms_open(&rig.dispatchers[1]->rooms, 1, 0, &a, &room), 0);
    assert_int_equal(bt_rooms_open(&rig.dispatchers[1]->rooms, 1, 0, &a, &other), 0);
    bt_rooms_close(&rig.dispatchers[1]->rooms, other);
    start_loop(0);
    start_loop(1);
    ask_room(room);
    assert_non_null(strstr(owner, "\"request\":{\"id\":\"req-1\","));
    assert_non_null(strstr(owner, "\"attempt\":{\"id\":\"req-1-a2\",\"n\":2,\"child\":2,"
                                  "\"prefill\":\"p0\",\"decode\":\"d0\",\"age_ms\":"));
    assert_int_equal(owner_loop, 1);
    assert_int_equal(hub_room, 0);
    a.kv.room = 77; /* nobody else touches it while the loops have nothing to do */
    ask_room(room);
    assert_int_equal(hub_room, 77);
    ask_room(other);
    assert_string_equal(owner, "");
    ask_room(room ^ UINT64_C(1) << 62);
    assert_string_equal(owner, "");
    for (unsigned i = 0; i < 2; i++)
        bt_rooms_fini(&rig.dispatchers[i]->rooms);
    free(r);
}

static void test_a_late_loop_is_named(void **state)
{
    start_loop(0); /* the other one does not run */
    gather(200);
    TURN_UNTIL(&control, told == 1);
    assert_non_null(strstr(json.data, "\"total\":0,\"late_loops\":["));
    assert_non_null(strstr(json.data, "1]}"));
    turn(&control, 3);
    start_loop(1); /* its mail returns after all, and changes nothing */
    gather(60000);
    TURN_UNTIL(&control, told == 2);
}

static void test_cancel(void **state)
{
    bt_gather_cancel(gather(1));
    start_loop(0);
    start_loop(1);
    gather(60000);
    TURN_UNTIL(&control, told == 1); /* the second one only: mail returns in order */
    turn(&control, 20);
    assert_int_equal(told, 1);
}

static void test_no_loops(void **state)
{
    rig.shared.dispatcher_count = 0;
    gather(60000);
    assert_int_equal(told, 0); /* never from inside */
    TURN_UNTIL(&control, told == 1);
    assert_string_equal(json.data, "{\"requests\":[],\"total\":0,\"late_loops\":[]}\n");
    rig.shared.dispatcher_count = 2;
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, open_rig, close_rig)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_all_loops_answer), CASE(test_of_100000_only_the_oldest_are_looked_at),
        CASE(test_whose_a_room_is),  CASE(test_a_late_loop_is_named),
        CASE(test_cancel),           CASE(test_no_loops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
