#include "base/clock.h"
#include "script/vm/vm.h"
#include "script/vm/watchdog.h"
#include "script_fixture.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#define CAP ((size_t) 8 << 20)

static enum bt_vm_end run(bt_vm_t *vm, const char *text, unsigned budget_us, char *err,
                          size_t err_size)
{
    if (bt_vm_load(vm, bt_str(text), "@spec.lua", false, err, err_size) != 0)
        fail_msg("%s", err);
    return bt_vm_run(vm, 0, "plan", budget_us, bt_clock_us(), err, err_size);
}

static void nap_ms(unsigned ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long) (ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

static void a_runaway_is_stopped(void **state)
{
    bt_vm_t vm;
    char err[256];

    assert_int_equal(bt_watchdog_start(), 0);
    assert_int_equal(bt_vm_open(&vm, NULL, CAP, BT_VM_GUARDED), 0);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(run(&vm, "\nwhile true do end", 2000, err, sizeof(err)), BT_VM_NO_TIME);
        assert_string_equal(err, "spec.lua:2: plan ran over its budget of 2 ms");
        assert_int_equal(
            run(&vm, "local n = 0 for i = 1, 1000 do n = n + i end", 2000000, err, sizeof(err)),
            BT_VM_DONE);
    }
    bt_vm_close(&vm);
    bt_watchdog_stop();
}

/* Returns once two looks have seen it. */
static int stay(lua_State *L)
{
    const bt_watch_t *watch = &bt_vm_of(L)->watch;
    const uint64_t until_us = bt_clock_us() + 20000000;

    while (atomic_load(&watch->state) != BT_WATCH_SLOW && bt_clock_us() < until_us)
        nap_ms(1);
    return 0;
}

static void a_slow_call_says_how_long_it_took(void **state)
{
    bt_vm_t vm;
    char err[256];

    assert_int_equal(bt_watchdog_start(), 0);
    assert_int_equal(bt_vm_open(&vm, NULL, CAP, BT_VM_GUARDED), 0);
    for (int i = 0; i < 5; i++) {
        const uint64_t start_us = bt_clock_us();
        lua_pushcfunction(vm.L, stay);
        assert_int_equal(bt_vm_run(&vm, 0, "plan", 60000000, start_us, err, sizeof(err)),
                         BT_VM_DONE);
        assert_int_not_equal(vm.watch.slow_us, 0);
        assert_true(vm.watch.slow_us <= bt_clock_us() - start_us);
        vm.watch.slow_us = 0;
    }
    assert_int_equal(run(&vm, "\nwhile true do end", 2000, err, sizeof(err)), BT_VM_NO_TIME);
    assert_true(vm.watch.slow_us >= 2000);
    bt_vm_close(&vm);
    bt_watchdog_stop();
}

static void pcall_does_not_swallow_it(void **state)
{
    bt_vm_t vm;
    char err[256];

    assert_int_equal(bt_watchdog_start(), 0);
    assert_int_equal(bt_vm_open(&vm, NULL, CAP, BT_VM_GUARDED), 0);
    assert_int_equal(run(&vm, "local function f() while true do end end while true do pcall(f) end",
                         2000, err, sizeof(err)),
                     BT_VM_NO_TIME);
    assert_non_null(strstr(err, "over its budget"));
    bt_vm_close(&vm);
    bt_watchdog_stop();
}

/* What ends in time is left alone, however many calls there are and wherever their edges meet the watchdog's looks. */
static void good_calls_are_left_alone(void **state)
{
    bt_vm_t vm;
    char err[256];
    uint64_t end_us = bt_clock_us() + 300000;
    unsigned long calls = 0;

    assert_int_equal(bt_watchdog_start(), 0);
    assert_int_equal(bt_vm_open(&vm, NULL, CAP, BT_VM_GUARDED), 0);
    for (; bt_clock_us() < end_us; calls++)
        if (run(&vm, "local n = 0 for i = 1, 20000 do n = n + i end", 1000000, err, sizeof(err)) !=
            BT_VM_DONE)
            fail_msg("%s", err);
    assert_true(calls > 0);
    bt_vm_close(&vm);
    bt_watchdog_stop();
}

/* Calls that end just where the watchdog fires: either outcome is fine, a mixture is not. */
static void calls_at_the_edge(void **state)
{
    bt_vm_t vm;
    char err[256];
    unsigned done = 0, stopped = 0;

    assert_int_equal(bt_watchdog_start(), 0);
    assert_int_equal(bt_vm_open(&vm, NULL, CAP, BT_VM_GUARDED), 0);
    for (unsigned i = 0; i < 150; i++) {
        char text[128];
        enum bt_vm_end end;

        snprintf(text, sizeof(text), "local n = 0 for i = 1, %u do n = n + i end",
                 50000 + i * 4000);
        end = run(&vm, text, 1000, err, sizeof(err));
        assert_true(end == BT_VM_DONE || end == BT_VM_NO_TIME);
        *(end == BT_VM_DONE ? &done : &stopped) += 1;
        assert_int_equal(run(&vm, "return 1", 1000000, err, sizeof(err)), BT_VM_DONE);
    }
    print_message("%u ended, %u were stopped\n", done, stopped);
    bt_vm_close(&vm);
    bt_watchdog_stop();
}

/* A thread that does not get its core is no runaway: here it sleeps inside the call. */
static int doze(lua_State *L)
{
    nap_ms(60);
    lua_pushboolean(L, bt_watch_is_over(&bt_vm_of(L)->watch));
    return 1;
}

static void waiting_for_a_core_is_no_runaway(void **state)
{
    bt_vm_t vm;
    char err[256];

    assert_int_equal(bt_watchdog_start(), 0);
    assert_int_equal(bt_vm_open(&vm, NULL, CAP, BT_VM_GUARDED), 0);
    lua_pushcfunction(vm.L, doze);
    lua_pushliteral(vm.L, "doze");
    lua_insert(vm.L, -2);
    lua_rawset(vm.L, LUA_GLOBALSINDEX);
    if (run(&vm, "assert(not doze())", 5000, err, sizeof(err)) != BT_VM_DONE)
        fail_msg("%s", err);
    bt_vm_close(&vm);
    bt_watchdog_stop();
}

static void sleeps_when_nobody_calls(void **state)
{
    unsigned long before, after;
    bt_vm_t vm;
    char err[256];

    assert_int_equal(bt_watchdog_start(), 0);
    assert_int_equal(bt_vm_open(&vm, NULL, CAP, BT_VM_GUARDED), 0);
    assert_int_equal(run(&vm, "return 1", 2000000, err, sizeof(err)), BT_VM_DONE);
    do { /* until two looks at the count, a tenth of a second apart, see the same */
        before = bt_watchdog_polls();
        nap_ms(100);
        after = bt_watchdog_polls();
    } while (after != before);
    assert_int_equal(run(&vm, "while true do end", 2000, err, sizeof(err)),
                     BT_VM_NO_TIME); /* and wakes up */
    assert_true(bt_watchdog_polls() > after);
    bt_vm_close(&vm);
    bt_watchdog_stop();
}

static void *many_calls(void *arg)
{
    bt_vm_t vm;
    char err[256];
    (void) arg;

    assert_int_equal(bt_vm_open(&vm, NULL, CAP, BT_VM_GUARDED), 0);
    for (int i = 0; i < 40; i++) {
        enum bt_vm_end end = run(&vm, i % 2 == 0 ? "while true do end" : "return 1",
                                 i % 2 == 0 ? 1000 : 1000000, err, sizeof(err));
        assert_int_equal(end, i % 2 == 0 ? BT_VM_NO_TIME : BT_VM_DONE);
    }
    bt_vm_close(&vm);
    return NULL;
}

static void several_threads(void **state)
{
    pthread_t threads[3];

    assert_int_equal(bt_watchdog_start(), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, many_calls, NULL), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    bt_watchdog_stop();
}

/* A VM is made on one thread and used on another, and back. */
static void a_vm_may_change_threads(void **state)
{
    bt_policy_t *policy = policy_of(
        "return { api = 2, name = 'x', version = '1', plan = function() while true do end end }");
    struct fleet f;
    bt_choice_t choice;

    fleet_init(&f, 1, 1, 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice),
                         BT_E_POLICY);
    assert_non_null(
        strstr(bt_policy_error(policy), "spec.lua:1: plan ran over its budget of 2 ms"));
    assert_int_equal(bt_policy_stats(policy)->runaways, 3);
    bt_policy_free(policy);
    fleet_fini(&f);
}

static void *run_once(void *arg)
{
    char err[256];

    assert_int_equal(run(arg, "return 1", 2000, err, sizeof(err)), BT_VM_DONE);
    return NULL;
}

static void *run_away(void *arg)
{
    char err[256];

    assert_int_equal(run(arg, "while true do end", 2000, err, sizeof(err)), BT_VM_NO_TIME);
    return NULL;
}

/* A thread that has ended leaves its pthread_t to the next one, which is another thread all the same: with a CPU clock, and
 * here with signals held back, of its own. */
static void a_thread_may_look_like_one_that_has_ended(void **state)
{
    bt_vm_t vm;
    pthread_t first, second;
    sigset_t all, before;

    assert_int_equal(bt_watchdog_start(), 0);
    assert_int_equal(bt_vm_open(&vm, NULL, CAP, BT_VM_GUARDED), 0);
    assert_int_equal(pthread_create(&first, NULL, run_once, &vm), 0);
    pthread_join(first, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    assert_int_equal(pthread_create(&second, NULL, run_away, &vm), 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_join(second, NULL);
    bt_vm_close(&vm);
    bt_watchdog_stop();
}

static void starts_and_stops_often(void **state)
{
    for (int i = 0; i < 50; i++) {
        assert_int_equal(bt_watchdog_start(), 0);
        assert_int_equal(bt_watchdog_start(), 0);
        bt_watchdog_stop();
        if (i % 10 == 0)
            nap_ms(30); /* long enough to fall asleep */
        bt_watchdog_stop();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_runaway_is_stopped),
        cmocka_unit_test(a_slow_call_says_how_long_it_took),
        cmocka_unit_test(pcall_does_not_swallow_it),
        cmocka_unit_test(good_calls_are_left_alone),
        cmocka_unit_test(calls_at_the_edge),
        cmocka_unit_test(waiting_for_a_core_is_no_runaway),
        cmocka_unit_test(sleeps_when_nobody_calls),
        cmocka_unit_test(several_threads),
        cmocka_unit_test(a_vm_may_change_threads),
        cmocka_unit_test(a_thread_may_look_like_one_that_has_ended),
        cmocka_unit_test(starts_and_stops_often),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
