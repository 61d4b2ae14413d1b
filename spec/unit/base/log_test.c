/* The log: both shapes, no forged lines, the rate limit, whole lines from many threads; the queue before a stderr that is
 * slow, stuck or gone. */
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG_MS 60000 /* for what must come, however slow the machine */

static int fds[2];
static char text[128 << 20]; /* untouched pages cost nothing */
static size_t text_n;

static int setup(void **state)
{
    bt_log_context(NULL, NULL, NULL);
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
    text_n = len;
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
    bt_log_set(BT_LOG_DEBUG, false, fds[1]);
    bt_log_context("w0", "req-1", NULL);
    bt_log_debug("a", "one");
    bt_log_context(NULL, NULL, NULL);
    bt_log_error("b", "two");
    collect();
    assert_non_null(strstr(text, " debug a: worker=w0 request=req-1 one\n"));
    assert_non_null(strstr(text, " error b: two\n"));
}

static void test_no_forged_line(void **state)
{
    bt_log_set(BT_LOG_INFO, false, fds[1]);
    bt_log_context("w\n0", NULL, NULL);
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
    bt_log_set(BT_LOG_INFO, true, fds[1]);
    bt_log_context("w\"0", "r\\1", NULL);
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
    static char message[10000];
    static const char fills[] = {'a', '\x01', '\xff', '"'};
    bt_log_set(BT_LOG_INFO, true, fds[1]);
    for (unsigned i = 0; i < sizeof(fills); i++) {
        memset(message, fills[i], sizeof(message) - 1);
        bt_log_context(message, message, NULL);
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
    bt_log_context(name, NULL, NULL);
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
    text_n = len;
    return arg;
}

static void test_threads_write_whole_lines(void **state)
{
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

/* ---- the queue ---- */

/* A pipe with room for one page. */
static int setup_queue(void **state)
{
    setup(state);
    assert_true(fcntl(fds[1], F_SETPIPE_SZ, 4096) >= 4096);
    bt_log_set(BT_LOG_INFO, false, fds[1]);
    return bt_log_start();
}

#define REST_OF_LINE " of the many that this spec writes"
#define LAST_OF_ALL "line 1000000" REST_OF_LINE

static void log_numbered(unsigned number)
{
    char line[64];
    const int n = snprintf(line, sizeof(line), "line %u" REST_OF_LINE, number);
    bt_log_line((bt_str_t){line, (size_t) n});
}

/* The line after p's, or the first one (p NULL); NULL: there is none. strstr would look at all of it each time. */
static const char *next_line(const char *p)
{
    const char *end = p != NULL ? memchr(p, '\n', (size_t) (text + text_n - p)) : NULL;

    p = p != NULL ? end + 1 : text;
    return p < text + text_n ? p : NULL;
}

/* Under the sanitizer's strict_string_checks, strtol measures all of the text each time. */
static long number_at(const char *p)
{
    long number = 0;

    for (; *p >= '0' && *p <= '9'; p++)
        number = 10 * number + (*p - '0');
    return number;
}

/* Numbers of the lines in text, which must rise; returns how many there are. */
static unsigned count_numbered(void)
{
    unsigned count = 0;
    long last = -1;

    for (const char *p = next_line(NULL); p != NULL; p = next_line(p)) {
        if (memcmp(p, "line ", 5) != 0)
            continue;
        const long number = number_at(p + 5);
        assert_true(number > last);
        last = number;
        count++;
    }
    return count;
}

/* What the lines about dropped ones say, added up. */
static uint64_t told_dropped(void)
{
    static const char words[] = "log lines dropped: stderr does not take them\n";
    unsigned long long sum = 0, told;

    for (const char *p = next_line(NULL); p != NULL; p = next_line(p)) {
        if (p[4] != '-')
            continue;
        assert_int_equal(sscanf(p, "%*s warn log: %llu ", &told), 1);
        assert_non_null(strstr(p, words));
        sum += told;
    }
    return sum;
}

/* Everything that was logged, when the thread that reads has seen the end. */
static void finish(pthread_t reader)
{
    bt_log_set(BT_LOG_INFO, false, STDERR_FILENO);
    close(fds[1]);
    pthread_join(reader, NULL);
    close(fds[0]);
}

static void test_queued_lines_keep_their_order(void **state)
{
    const uint64_t dropped = bt_log_dropped();
    pthread_t reader;

    assert_int_equal(pthread_create(&reader, NULL, drain, NULL), 0);
    for (unsigned i = 0; i < 10000; i++)
        log_numbered(i);
    bt_log_stop(LONG_MS);
    log_numbered(10000); /* directly */
    finish(reader);
    assert_int_equal(bt_log_dropped(), dropped);
    assert_int_equal(count_numbered(), 10001);
    assert_int_equal(told_dropped(), 0);
}

/* Nobody reads until all is said: without a queue this would never end. */
static void test_a_million_lines_into_a_stuck_pipe(void **state)
{
    const uint64_t before = bt_log_dropped();
    pthread_t reader;

    for (unsigned i = 0; i < 1000000; i++)
        log_numbered(i);
    const uint64_t dropped = bt_log_dropped() - before;
    assert_true(dropped > 800000); /* 4 MiB are about 100 000 lines */
    assert_true(dropped < 1000000);
    assert_int_equal(pthread_create(&reader, NULL, drain, NULL), 0);
    bt_log_stop(LONG_MS);
    log_numbered(1000000);
    finish(reader);
    assert_int_equal(count_numbered() + dropped, 1000001);
    assert_int_equal(told_dropped(), dropped);
    assert_int_equal(bt_log_dropped() - before, dropped);
    /* The count stands where the lines are missing. */
    assert_memory_equal(text + text_n - sizeof(LAST_OF_ALL), LAST_OF_ALL "\n", sizeof(LAST_OF_ALL));
}

static void test_the_end_has_a_deadline(void **state)
{
    pthread_t reader;

    for (unsigned i = 0; i < 1000; i++)
        log_numbered(i);
    bt_log_stop(20);
    log_numbered(1000); /* goes nowhere, and blocks nobody */
    assert_int_equal(pthread_create(&reader, NULL, drain, NULL), 0);
    assert_int_equal(bt_log_start(), 0); /* the thread that was stuck goes on */
    log_numbered(1001);
    bt_log_stop(LONG_MS);
    finish(reader);
    assert_int_equal(count_numbered(), 1001);
    assert_null(strstr(text, "line 1000 "));
    assert_non_null(strstr(text, "line 1001 "));
    assert_int_equal(told_dropped(), 1);
}

/* The reader is gone for good: lines are lost and counted, and the end comes at once. */
static void test_a_pipe_that_broke(void **state)
{
    const uint64_t before = bt_log_dropped();

    signal(SIGPIPE, SIG_IGN);
    close(fds[0]);
    for (unsigned i = 0; i < 10; i++)
        log_numbered(i);
    bt_log_stop(LONG_MS);
    bt_log_set(BT_LOG_INFO, false, STDERR_FILENO);
    close(fds[1]);
    assert_int_equal(bt_log_dropped() - before, 10);
}

static void wait_for_child(pid_t pid, int expected_signal)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (expected_signal == 0)
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    else
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == expected_signal);
}

/* What waits is the parent's; what the child says leaves at once. */
static void test_a_child_writes_directly(void **state)
{
    pthread_t reader;
    int own[2];

    for (unsigned i = 0; i < 1000; i++)
        log_numbered(i);
    assert_int_equal(pipe(own), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        char said[64];
        bt_log_set(BT_LOG_INFO, false, own[1]);
        bt_log_line(BT_STR("of the child"));
        const ssize_t n = read(own[0], said, sizeof(said));
        bt_log_stop(0);
        _exit(n == 13 && memcmp(said, "of the child\n", 13) == 0 ? 0 : 1);
    }
    wait_for_child(pid, 0);
    close(own[0]);
    close(own[1]);
    assert_int_equal(pthread_create(&reader, NULL, drain, NULL), 0);
    bt_log_stop(LONG_MS);
    finish(reader);
    assert_int_equal(count_numbered(), 1000);
}

/* In a child: lines wait, then the process ends itself. */
static pid_t start_dying(void)
{
    const pid_t pid = fork();

    if (pid != 0)
        return pid;
    alarm(60);                                /* SIGALRM is not what is waited for */
    (void) freopen("/dev/null", "w", stderr); /* the backtrace */
    close(fds[0]);
    if (bt_log_start() == 0)
        for (unsigned i = 0; i < 1000; i++)
            log_numbered(i);
    bt_bug("a spec", "file.c", 1);
}

static void test_a_bug_is_told_after_what_waits(void **state)
{
    pthread_t reader;

    bt_log_stop(LONG_MS);
    const pid_t pid = start_dying();
    assert_int_equal(pthread_create(&reader, NULL, drain, NULL), 0);
    wait_for_child(pid, SIGABRT);
    finish(reader);
    assert_int_equal(count_numbered(), 1000);
    const char *bug = strstr(text, "a spec at file.c:1\n");
    assert_non_null(bug);
    assert_true(bug > strstr(text, "line 999 "));
}

static void test_a_bug_ends_a_process_whose_stderr_is_stuck(void **state)
{
    bt_log_stop(LONG_MS);
    wait_for_child(start_dying(), SIGABRT); /* nobody reads */
    bt_log_set(BT_LOG_INFO, false, STDERR_FILENO);
    close(fds[0]);
    close(fds[1]);
}

static void *shout_long(void *arg)
{
    static const size_t sizes[] = {100, 5000, 70000};
    char line[70000];

    memset(line, 'a' + (int) (intptr_t) arg, sizeof(line));
    for (unsigned i = 0; i < 15; i++)
        bt_log_line((bt_str_t){line, sizes[i % 3]});
    return NULL;
}

static void test_long_lines_are_not_torn(void **state)
{
    pthread_t threads[4], reader;
    size_t bytes = 0;

    assert_int_equal(pthread_create(&reader, NULL, drain, NULL), 0);
    for (intptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, shout_long, (void *) i), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    bt_log_stop(LONG_MS);
    finish(reader);
    for (const char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        const size_t n = (size_t) (end - line);
        assert_true(n == 100 || n == 5000 || n == 70000);
        for (size_t i = 1; i < n; i++)
            assert_true(line[i] == line[0]);
        bytes += n;
    }
    assert_int_equal(bytes, 4 * 5 * (100 + 5000 + 70000));
}

/* Whoever shares the terminal may have made it non-blocking: lines wait, none is lost. */
static void test_a_pipe_that_does_not_block(void **state)
{
    pthread_t reader;

    assert_int_equal(fcntl(fds[1], F_SETFL, O_NONBLOCK), 0);
    for (unsigned i = 0; i < 5000; i++)
        log_numbered(i);
    assert_int_equal(pthread_create(&reader, NULL, drain, NULL), 0);
    bt_log_stop(LONG_MS);
    finish(reader);
    assert_int_equal(count_numbered(), 5000);
}

/* ---- a file ---- */

static char folder[] = "/tmp/baton-log-XXXXXX";
static char path[64], old_path[64];

static void read_file(const char *name)
{
    FILE *in = fopen(name, "r");

    assert_non_null(in);
    text_n = fread(text, 1, sizeof(text) - 1, in);
    text[text_n] = '\0';
    fclose(in);
}

static void test_a_file_that_is_renamed(void **state)
{
    unsigned lines;

    for (unsigned i = 0; i < 5000; i++) {
        log_numbered(i);
        if (i == 2500) {
            assert_int_equal(rename(path, old_path), 0);
            assert_int_equal(bt_log_reopen(), 0);
        }
    }
    bt_log_stop(LONG_MS);
    read_file(old_path);
    lines = count_numbered();
    assert_true(lines < 5000);
    read_file(path);
    assert_int_equal(lines + count_numbered(), 5000);
    assert_non_null(strstr(text, "line 4999 "));
}

static void test_a_file_that_cannot_be_opened_again(void **state)
{
    log_numbered(0);
    assert_true(bt_log_last_words());
    assert_int_equal(rename(path, old_path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(bt_log_reopen(), -EISDIR);
    log_numbered(1);
    read_file(old_path);
    assert_int_equal(count_lines(), 2);
    assert_int_equal(rmdir(path), 0);
}

static int setup_file(void **state)
{
    strcpy(folder + sizeof(folder) - 7, "XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof(path), "%s/a.log", folder);
    snprintf(old_path, sizeof(old_path), "%s/a.log.1", folder);
    bt_log_set(BT_LOG_INFO, false, STDERR_FILENO);
    return bt_log_open(path) < 0 ? -1 : bt_log_start();
}

static int remove_file(void **state)
{
    char command[128];

    bt_log_stop(LONG_MS);
    bt_log_set(BT_LOG_INFO, false, STDERR_FILENO);
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

#define FILE_TEST(f) cmocka_unit_test_setup_teardown(f, setup_file, remove_file)
#define QUEUE_TEST(f) cmocka_unit_test_setup(f, setup_queue)
#define LOG_TEST(f) cmocka_unit_test_setup(f, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LOG_TEST(test_text_line),
        LOG_TEST(test_context_and_levels),
        LOG_TEST(test_no_forged_line),
        LOG_TEST(test_json_line),
        LOG_TEST(test_long_messages_stay_one_whole_line),
        LOG_TEST(test_rate_limit_and_summary),
        LOG_TEST(test_finished_line),
        LOG_TEST(test_threads_write_whole_lines),
        QUEUE_TEST(test_queued_lines_keep_their_order),
        QUEUE_TEST(test_a_million_lines_into_a_stuck_pipe),
        QUEUE_TEST(test_the_end_has_a_deadline),
        QUEUE_TEST(test_a_pipe_that_broke),
        QUEUE_TEST(test_a_child_writes_directly),
        QUEUE_TEST(test_a_bug_is_told_after_what_waits),
        QUEUE_TEST(test_a_bug_ends_a_process_whose_stderr_is_stuck),
        QUEUE_TEST(test_long_lines_are_not_torn),
        QUEUE_TEST(test_a_pipe_that_does_not_block),
        FILE_TEST(test_a_file_that_is_renamed),
        FILE_TEST(test_a_file_that_cannot_be_opened_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
