#include "admin/ui/session.h"
#include "unit.h"

#include <stdio.h>

static bt_sessions_t *s;

static int open_table(void **state)
{
    s = bt_sessions_new();
    return s == NULL;
}

static int close_table(void **state)
{
    bt_sessions_free(s);
    return 0;
}

/* "name=id" of a Set-Cookie. */
static bt_str_t log_in(char *cookie, size_t size)
{
    bt_sessions_open(s, false, BT_STR(""), cookie, size);
    return (bt_str_t){cookie, (size_t) (strchr(cookie, ';') - cookie)};
}

static void test_cookie(void **state)
{
    char cookie[160];

    bt_sessions_open(s, true, BT_STR(""), cookie, sizeof cookie);
    assert_non_null(strstr(cookie, "; HttpOnly; SameSite=Strict; Secure"));
    bt_sessions_open(s, false, BT_STR(""), cookie, sizeof cookie);
    assert_null(strstr(cookie, "Secure"));
}

static void test_found_among_others(void **state)
{
    char cookie[160], header[512];
    const bt_str_t mine = log_in(cookie, sizeof cookie);

    snprintf(header, sizeof header, "a=1;  %.*s;b=2", BT_STR_ARG(mine));
    const bt_str_t id = bt_sessions_find(s, bt_str(header));
    assert_int_equal(id.n, BT_SESSION_ID_CHARS);
    assert_true(bt_sessions_is_open(s, id));
    assert_int_equal(bt_sessions_find(s, BT_STR("")).n, 0);
    assert_int_equal(bt_sessions_find(s, BT_STR(";;; ;=")).n, 0);
    snprintf(header, sizeof header, "x%.*s", BT_STR_ARG(mine)); /* another name */
    assert_int_equal(bt_sessions_find(s, bt_str(header)).n, 0);
    snprintf(header, sizeof header, "%.*s0", BT_STR_ARG(mine)); /* longer */
    assert_int_equal(bt_sessions_find(s, bt_str(header)).n, 0);
    header[mine.n - 1] = header[mine.n - 1] == '0' ? '1' : '0';
    header[mine.n] = '\0';
    assert_int_equal(bt_sessions_find(s, bt_str(header)).n, 0);
}

static void test_of_another_process(void **state)
{
    bt_sessions_t *other = bt_sessions_new();
    char cookie[160];
    const bt_str_t mine = log_in(cookie, sizeof cookie);

    assert_int_equal(bt_sessions_find(other, mine).n, 0);
    bt_sessions_free(other);
}

static void test_close(void **state)
{
    char cookie[160], out[160];
    const bt_str_t id = bt_sessions_find(s, log_in(cookie, sizeof cookie));

    bt_sessions_close(s, id, out, sizeof out);
    assert_non_null(strstr(out, "Max-Age=0"));
    assert_false(bt_sessions_is_open(s, id));
    assert_false(bt_sessions_is_open(s, BT_STR("")));
    bt_sessions_close(s, BT_STR("nobody"), out, sizeof out);
}

static void test_the_oldest_makes_room(void **state)
{
    char first[160], last[160];
    const bt_str_t one = log_in(first, sizeof first);

    for (unsigned i = 0; i < BT_SESSIONS_MAX - 1; i++)
        log_in(last, sizeof last);
    assert_true(bt_sessions_find(s, one).n > 0);
    log_in(last, sizeof last);
    assert_true(bt_sessions_find(s, (bt_str_t){last, (size_t) (strchr(last, ';') - last)}).n > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cookie, open_table, close_table),
        cmocka_unit_test_setup_teardown(test_found_among_others, open_table, close_table),
        cmocka_unit_test_setup_teardown(test_of_another_process, open_table, close_table),
        cmocka_unit_test_setup_teardown(test_close, open_table, close_table),
        cmocka_unit_test_setup_teardown(test_the_oldest_makes_room, open_table, close_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
