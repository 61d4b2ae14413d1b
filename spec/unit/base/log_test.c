/* The log: both shapes, no forged lines, the rate limit, whole lines from many threads. */
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int fds[2];
static char text[1 << 20];

static int setup(void **state)
{
    (void) state;
    bt_log_context(NULL, NULL);
    return pipe(fds);
}

/* Closes the writing end and reads everything that was logged. */
static size_t collect(void)
{
    size_t len = 0;
    ssize_t n;
    bt_log_set(BT_LOG_INFO, false, STDERR_FILENO);
    close(fds[1]);
    while ((n = read(fds[0], text + len, sizeof(text) - 1 - len)) > 0)
        len += (size_t) n;
    close(fds[0]);
    text[len] = '\0';
    return len;
}

static unsigned count_lines(void)
{
    unsigned lines = 0;
    for (const char *p = text; (p = strchr(p, '\n')) != NULL; p++)
        lines++;
    return lines;
}

static void test_text_line(void **state)
{
    (void) state;
    bt_log_set(BT_LOG_INFO, false, fds[1]);
    bt_log_warn("http", "slow by %d ms", 12);
    bt_log_debug("http", "not shown");
    collect();
    assert_int_equal(count_lines(), 1);
    assert_int_equal(text[4], '-');
    assert_int_equal(text[23], 'Z');
    assert_string_equal(text + 24, " warn  http: slow by 12 ms\n");
}

static void test_context_and_levels(void **state)
{
    (void) state;
    bt_log_set(BT_LOG_DEBUG, false, fds[1]);
    bt_log_context("w0", "req-1");
    bt_log_debug("a", "one");
    bt_log_context(NULL, NULL);
    bt_log_error("b", "two");
    collect();
    assert_non_null(strstr(text, " debug a: worker=w0 request=req-1 one\n"));
    assert_non_null(strstr(text, " error b: two\n"));
}

static void test_level_parse(void **state)
{
    (void) state;
    enum bt_log_level level = BT_LOG_ERROR;
    assert_int_equal(bt_log_level_parse(BT_STR("debug"), &level), 0);
    assert_int_equal(level, BT_LOG_DEBUG);
    assert_int_equal(bt_log_level_parse(BT_STR("WARNING"), &level), 0);
    assert_int_equal(level, BT_LOG_WARN);
    assert_int_equal(bt_log_level_parse(BT_STR("loud"), &level), BT_E_INVAL);
    assert_int_equal(bt_log_level_parse(BT_STR_NULL, &level), BT_E_INVAL);
    assert_int_equal(level, BT_LOG_WARN);
}

static void test_no_forged_line(void **state)
{
    (void) state;
    bt_log_set(BT_LOG_INFO, false, fds[1]);
    bt_log_context("w\n0", NULL);
    bt_log_info("x", "%s", "a\n2026 error fake\r\x1b[0m\x7f");
    collect();
    assert_int_equal(count_lines(), 1);
    assert_non_null(strstr(text, "worker=w\\x0a0 a\\x0a2026 error fake\\x0d\\x1b[0m\\x7f\n"));
}

static void expect_member(const char *line, const char *name, const char *expected)
{
    bt_json_item_t item;
    char value[4096];
    bt_str_t object = {line, strcspn(line, "\n")};
    assert_int_equal(bt_json_get(object, bt_str(name), &item), 0);
    assert_int_equal(item.type, BT_JSON_STRING);
    long n = bt_json_unescape(item.value, value, sizeof(value) - 1);
    assert_true(n >= 0);
    value[n] = '\0';
    assert_string_equal(value, expected);
}

static void test_json_line(void **state)
{
    (void) state;
    bt_log_set(BT_LOG_INFO, true, fds[1]);
    bt_log_context("w\"0", "r\\1");
    bt_log_info("comp", "say \"%s\"\n\xff", "hi");
    collect();
    assert_int_equal(count_lines(), 1);
    expect_member(text, "level", "info");
    expect_member(text, "component", "comp");
    expect_member(text, "worker", "w\"0");
    expect_member(text, "request_id", "r\\1");
    expect_member(text, "message", "say \"hi\"\n\xef\xbf\xbd");
}

/* Worst cases for the line limit: every byte grows sixfold, or threefold, or not at all. */
static void test_long_messages_stay_one_whole_line(void **state)
{
    (void) state;
    static char message[10000];
    static const char fills[] = {'a', '\x01', '\xff', '"'};
    bt_log_set(BT_LOG_INFO, true, fds[1]);
    for (unsigned i = 0; i < sizeof(fills); i++) {
        memset(message, fills[i], sizeof(message) - 1);
        bt_log_context(message, message);
        bt_log_write(NULL, BT_LOG_INFO, "x", "%s", message);
    }
    bt_log_set(BT_LOG_INFO, false, fds[1]);
    bt_log_write(NULL, BT_LOG_INFO, "x", "%s", message);
    memset(message, '\x02', sizeof(message) - 1);
    bt_log_write(NULL, BT_LOG_INFO, "x", "%s", message);
    collect();
    assert_int_equal(count_lines(), 6);
    const char *line = text;
    for (unsigned i = 0; i < 6; i++) {
        size_t n = strcspn(line, "\n");
        assert_true(n < 4096 && n > 2500);
        if (i < 4)
            assert_int_equal(bt_json_validate((bt_str_t){line, n}, NULL), 0);
        line += n + 1;
    }
    assert_non_null(strstr(text, "aaa...\"}\n"));
}

/* The window is put into the future first, so that no slow machine sees a second go by. */
static void test_rate_limit_and_summary(void **state)
{
    (void) state;
    struct bt_log_site site = {.window_ms = UINT64_MAX / 2};
    bt_log_set(BT_LOG_INFO, false, fds[1]);
    for (int i = 0; i < 100; i++)
        bt_log_write(&site, BT_LOG_INFO, "x", "line %d", i);
    assert_int_equal(site.suppressed, 90);
    site.window_ms = 0;
    bt_log_write(&site, BT_LOG_INFO, "x", "after");
    bt_log_write(NULL, BT_LOG_INFO, "x", "unlimited");
    collect();
    assert_int_equal(site.suppressed, 0);
    assert_int_equal(count_lines(), 12);
    assert_non_null(strstr(text, "line 9\n"));
    assert_null(strstr(text, "line 10\n"));
    assert_non_null(strstr(text, "(90 like this not shown) after\n"));
}

static void test_finished_line(void **state)
{
    (void) state;
    bt_log_set(BT_LOG_INFO, false, fds[1]);
    bt_log_line(BT_STR("GET / 200"));
    bt_log_line(BT_STR_NULL);
    collect();
    assert_string_equal(text, "GET / 200\n\n");
}

static struct bt_log_site shared_site = {.window_ms = UINT64_MAX / 2};

static void *shout(void *arg)
{
    char name[2] = {(char) ('a' + (intptr_t) arg), '\0'};
    bt_log_context(name, NULL);
    for (int i = 0; i < 300; i++) {
        bt_log_write(NULL, BT_LOG_INFO, "t", "%s%s%s%s.", name, name, name, name);
        bt_log_write(&shared_site, BT_LOG_INFO, "limited", "x");
        bt_log_info("macro", "y");
        if (i % 50 == 0)
            bt_log_set(BT_LOG_INFO, false, fds[1]);
    }
    return NULL;
}

static void *drain(void *arg)
{
    size_t len = 0;
    ssize_t n;
    while ((n = read(fds[0], text + len, sizeof(text) - 1 - len)) > 0)
        len += (size_t) n;
    text[len] = '\0';
    return arg;
}

static void test_threads_write_whole_lines(void **state)
{
    (void) state;
    pthread_t threads[4], reader;
    unsigned whole[4] = {0}, limited = 0;

    bt_log_set(BT_LOG_INFO, false, fds[1]);
    assert_int_equal(pthread_create(&reader, NULL, drain, NULL), 0);
    for (intptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, shout, (void *) i), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    bt_log_set(BT_LOG_INFO, false, STDERR_FILENO);
    close(fds[1]);
    pthread_join(reader, NULL);
    close(fds[0]);
    char *save, *line = strtok_r(text, "\n", &save);
    for (; line != NULL; line = strtok_r(NULL, "\n", &save)) {
        assert_int_equal(line[23], 'Z');
        char c = line[strlen(line) - 2], expected[64];
        limited += strstr(line, " limited: ") != NULL;
        if (strstr(line, " t: ") == NULL)
            continue;
        snprintf(expected, sizeof(expected), " info  t: worker=%c %c%c%c%c.", c, c, c, c, c);
        assert_string_equal(line + 24, expected);
        assert_in_range(c, 'a', 'd');
        whole[c - 'a']++;
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(whole[i], 300);
    assert_int_equal(limited, 10);
    assert_int_equal(shared_site.suppressed, 1190);
}

#define LOG_TEST(f) cmocka_unit_test_setup(f, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LOG_TEST(test_text_line),
        LOG_TEST(test_context_and_levels),
        LOG_TEST(test_level_parse),
        LOG_TEST(test_no_forged_line),
        LOG_TEST(test_json_line),
        LOG_TEST(test_long_messages_stay_one_whole_line),
        LOG_TEST(test_rate_limit_and_summary),
        LOG_TEST(test_finished_line),
        LOG_TEST(test_threads_write_whole_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
