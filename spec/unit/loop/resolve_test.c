/* Names and numbers to addresses; answers never come from inside start. */
#include "loop/resolve.h"

#include "base/err.h"
#include "names.h"
#include "util.h"

#include <arpa/inet.h>

static bt_loop_t loop;
static unsigned answers;
static int last_rc;
static struct sockaddr_storage last_addr;

static int setup(void **state)
{
    answers = 0;
    return bt_loop_init(&loop, 0);
}

static int teardown(void **state)
{
    bt_loop_fini(&loop);
    return 0;
}

static void on_answer(bt_resolve_t *r, int rc, const struct sockaddr_storage *addr)
{
    answers++;
    last_rc = rc;
    assert_true((rc == 0) == (addr != NULL));
    if (addr != NULL)
        last_addr = *addr;
    memset(r, 0xa5, sizeof(*r)); /* the caller's again */
}

static const char *text_of(const struct sockaddr_storage *addr)
{
    static char text[INET6_ADDRSTRLEN];
    const void *ip = addr->ss_family == AF_INET6
                         ? (const void *) &((const struct sockaddr_in6 *) addr)->sin6_addr
                         : (const void *) &((const struct sockaddr_in *) addr)->sin_addr;
    return inet_ntop(addr->ss_family, ip, text, sizeof(text));
}

static void test_numeric(void **state)
{
    struct sockaddr_storage addr;

    assert_int_equal(bt_resolve_numeric("10.1.2.3", 8000, &addr), 0);
    assert_int_equal(addr.ss_family, AF_INET);
    assert_int_equal(ntohs(((struct sockaddr_in *) &addr)->sin_port), 8000);
    assert_string_equal(text_of(&addr), "10.1.2.3");
    assert_int_equal(bt_resolve_numeric("fe80::1", 1, &addr), 0);
    assert_int_equal(addr.ss_family, AF_INET6);
    assert_int_equal(bt_resolve_numeric("[::1]", 65535, &addr), 0);
    assert_string_equal(text_of(&addr), "::1");
    assert_int_equal(ntohs(((struct sockaddr_in6 *) &addr)->sin6_port), 65535);
}

static void test_not_numeric(void **state)
{
    static const char *const bad[] = {"localhost",  "",      "[",         "[]", "[::1",
                                      "[10.0.0.1]", "1.2.3", "1.2.3.4.5", "::g"};
    struct sockaddr_storage addr = {.ss_family = 77};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(bt_resolve_numeric(bad[i], 1, &addr), BT_E_INVAL);
    assert_int_equal(bt_resolve_numeric("10.0.0.1", 65536, &addr), BT_E_INVAL);
    assert_int_equal(addr.ss_family, 77); /* written only on success */
}

static void test_number_comes_from_the_loop(void **state)
{
    bt_resolve_t r;

    assert_int_equal(bt_resolve_start(&r, &loop, "127.0.0.1", 80, on_answer), 0);
    assert_int_equal(answers, 0);
    TURN_UNTIL(&loop, answers == 1);
    assert_int_equal(last_rc, 0);
    assert_string_equal(text_of(&last_addr), "127.0.0.1");
}

static void test_name(void **state)
{
    bt_resolve_t r;

    assert_int_equal(bt_resolve_start(&r, &loop, "localhost", 4321, on_answer), 0);
    TURN_UNTIL(&loop, answers == 1);
    assert_int_equal(last_rc, 0);
    assert_int_equal(ntohs(((struct sockaddr_in *) &last_addr)->sin_port), 4321);
}

/* Whoever asks again gets another one. */
static void test_turn(void **state)
{
    static const char *const expected[] = {"10.0.0.1", "10.0.0.2", "fd00::3", "10.0.0.1"};
    bt_resolve_t r;

    names_host = "several.test";
    for (unsigned i = 0; i < 3; i++)
        names_addresses[i] = expected[i];
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(bt_resolve_turn(&r, &loop, "several.test", 7, i, on_answer), 0);
        TURN_UNTIL(&loop, answers == i + 1);
        assert_string_equal(text_of(&last_addr), expected[i]);
    }
    assert_int_equal(bt_resolve_turn(&r, &loop, "127.0.0.9", 7, 3, on_answer), 0);
    TURN_UNTIL(&loop, answers == 5);
    assert_string_equal(text_of(&last_addr), "127.0.0.9");
}

/* A label over 63 bytes cannot be asked for, so this fails without a packet. */
static void test_bad_name(void **state)
{
    bt_resolve_t r;
    char name[80];

    memset(name, 'a', sizeof(name));
    name[70] = '\0';
    assert_int_equal(bt_resolve_start(&r, &loop, name, 1, on_answer), 0);
    TURN_UNTIL(&loop, answers == 1);
    assert_int_equal(last_rc, BT_E_RESOLVE);
}

static void cancel_one(const char *host)
{
    bt_resolve_t r;

    answers = 0;
    assert_int_equal(bt_resolve_start(&r, &loop, host, 1, on_answer), 0);
    bt_resolve_cancel(&r);
    assert_int_equal(answers, 0);
    TURN_UNTIL(&loop, answers == 1);
    assert_int_equal(last_rc, UV_ECANCELED);
    turn(&loop, 3);
    assert_int_equal(answers, 1);
}

static void test_cancel(void **state)
{
    cancel_one("127.0.0.1");
    cancel_one("localhost");
}

/* A loop ends beside a name server that says nothing: look-ups that threads have begun, and ones that wait for a thread. */
static void test_cancel_where_dns_is_silent(void **state)
{
    bt_resolve_t r[6]; /* of which four have threads */

    names_host = "silent.test";
    names_addresses[0] = "10.0.0.1";
    names_addresses[1] = NULL;
    atomic_store(&names_are_silent, true);
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(bt_resolve_start(&r[i], &loop, "silent.test", 1, on_answer), 0);
    TURN_UNTIL(&loop, atomic_load(&names_waiting) == 4);
    assert_int_equal(answers, 0);
    for (unsigned i = 0; i < 6; i++)
        bt_resolve_cancel(&r[i]);
    assert_int_equal(answers, 0);
    TURN_UNTIL(&loop, answers == 6);
    assert_int_equal(last_rc, UV_ECANCELED);
    bt_loop_fini(&loop);
    assert_int_equal(atomic_load(&names_waiting), 4); /* still */
    atomic_store(&names_are_silent, false);
    STEP_UNTIL(atomic_load(&names_waiting) == 0, usleep(1000));
    assert_int_equal(answers, 6);
}

/* Its answers come when it speaks again; others meanwhile. */
static void test_silent_for_a_while(void **state)
{
    bt_resolve_t r[3], other;

    atomic_store(&names_are_silent, true);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(bt_resolve_start(&r[i], &loop, "silent.test", 1, on_answer), 0);
    assert_int_equal(bt_resolve_start(&other, &loop, "localhost", 1, on_answer), 0);
    TURN_UNTIL(&loop, answers == 1);
    bt_resolve_cancel(&r[1]);
    bt_resolve_cancel(&r[1]); /* again */
    TURN_UNTIL(&loop, answers == 2);
    assert_int_equal(last_rc, UV_ECANCELED);
    atomic_store(&names_are_silent, false);
    TURN_UNTIL(&loop, answers == 4);
    assert_int_equal(last_rc, 0);
    assert_string_equal(text_of(&last_addr), "10.0.0.1");
}

static void test_port_out_of_range(void **state)
{
    bt_resolve_t r;

    assert_int_equal(bt_resolve_start(&r, &loop, "127.0.0.1", 65536, on_answer), BT_E_INVAL);
}

#define WITH_LOOP(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numeric),
        cmocka_unit_test(test_not_numeric),
        WITH_LOOP(test_number_comes_from_the_loop),
        WITH_LOOP(test_name),
        WITH_LOOP(test_turn),
        WITH_LOOP(test_bad_name),
        cmocka_unit_test_setup(test_cancel_where_dns_is_silent, setup),
        WITH_LOOP(test_silent_for_a_while), /* the same name */
        WITH_LOOP(
            test_cancel), /* whose threads may still look at names: none is written from here on */
        WITH_LOOP(test_port_out_of_range),
    };
    alarm(55);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
