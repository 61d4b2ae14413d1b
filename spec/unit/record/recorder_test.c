/* The file: whole lines, in order, capped; and what happens when it cannot be written. */

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "record/record.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define WAIT_MS 20000

static char folder[64], path[96], old_path[100];
static bt_record_config_t config;
static bt_recorder_t *rec;
static char err[256];
static _Atomic int broken;    /* errno of every write, 0 = none */
static _Atomic unsigned half; /* this many writes stop half-way first */

ssize_t __real_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n)
{
    if (fd > 2 && half > 0 && n > 1) {
        half--;
        return __real_write(fd, p, n / 2);
    }
    if (fd > 2 && broken != 0) {
        errno = broken;
        return -1;
    }
    return __real_write(fd, p, n);
}

static int open_folder(void **state)
{
    strcpy(folder, "/tmp/baton-records-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/r.jsonl", folder);
    snprintf(old_path, sizeof old_path, "%s.1", path);
    config = (bt_record_config_t){.file = path, .sample = 1, .max_bytes = 1 << 20};
    bt_log_set(BT_LOG_ERROR, false, open("/dev/null", O_WRONLY | O_CLOEXEC));
    rec = NULL;
    broken = 0;
    half = 0;
    return 0;
}

static int remove_folder(void **state)
{
    char command[128];

    bt_recorder_close(rec);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static void start(void)
{
    if (bt_recorder_open(&rec, &config, err, sizeof err) != 0)
        fail_msg("%s", err);
}

static void stop(void)
{
    bt_recorder_close(rec);
    rec = NULL;
}

static char *content(const char *name)
{
    static char text[4 << 20];
    FILE *in = fopen(name, "r");
    size_t n = in != NULL ? fread(text, 1, sizeof text - 1, in) : 0;

    if (in != NULL)
        fclose(in);
    text[n] = '\0';
    return text;
}

static bt_recorder_stats_t stats(void)
{
    bt_recorder_stats_t s;

    bt_recorder_stats(rec, &s);
    return s;
}

#define WAIT_UNTIL(cond)                                                                           \
    for (uint64_t deadline = bt_clock_ms() + WAIT_MS; !(cond); usleep(1000))                       \
    assert_true(bt_clock_ms() < deadline)

/* ---- good days ---- */

static void test_no_file_is_fine(void **state)
{
    config.file = NULL;
    assert_int_equal(bt_recorder_open(&rec, &config, err, sizeof err), 0);
    assert_null(rec);
    assert_int_equal(stats().written, 0);
}

static void test_close_writes_what_waits(void **state)
{
    char line[32];

    start();
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(line, sizeof line, "{\"i\":%u}", i);
        assert_true(bt_recorder_put(rec, bt_str(line)));
    }
    stop();
    char *at = content(path);
    for (unsigned i = 0; i < 1000; i++) {
        int n = snprintf(line, sizeof line, "{\"i\":%u}\n", i);
        assert_memory_equal(at, line, (size_t) n);
        at += n;
    }
    assert_int_equal(*at, '\0');
}

static void test_lines_come_without_closing(void **state)
{
    start();
    bt_recorder_put(rec, BT_STR("one"));
    WAIT_UNTIL(stats().written == 1);
    assert_string_equal(content(path), "one\n");
    bt_recorder_put(rec, BT_STR("two"));
    WAIT_UNTIL(stats().written == 2);
    assert_string_equal(content(path), "one\ntwo\n");
}

static void test_an_old_file_goes_on(void **state)
{
    FILE *out = fopen(path, "w");
    fputs("old\nhalf of a li", out);
    fclose(out);
    start();
    bt_recorder_put(rec, BT_STR("new"));
    stop();
    assert_string_equal(content(path), "old\nhalf of a li\nnew\n");
}

static void *put_many(void *arg)
{
    for (unsigned i = 0; i < 2000; i++) {
        char line[64];
        snprintf(line, sizeof line, "%s %u", (const char *) arg, i);
        while (!bt_recorder_put(rec, bt_str(line)))
            usleep(100);
    }
    return NULL;
}

static void test_many_loops_write_whole_lines(void **state)
{
    static char names[4][2] = {"a", "b", "c", "d"};
    unsigned next[4] = {0, 0, 0, 0};
    pthread_t threads[4];

    start();
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, put_many, names[i]), 0);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    stop();
    for (char *save = NULL, *line = strtok_r(content(path), "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        unsigned who = (unsigned) (line[0] - 'a');
        assert_true(who < 4);
        assert_int_equal(atoi(line + 2), next[who]++);
    }
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(next[i], 2000);
}

/* ---- the cap ---- */

static void test_rotates_between_lines(void **state)
{
    char line[120];
    struct stat st;

    config.max_bytes = 4096;
    start();
    for (unsigned i = 0; i < 200; i++) {
        memset(line, 'x', 100);
        snprintf(line, sizeof line, "%03u%.*s", i, 96,
                 "................................................"
                 "................................................");
        bt_recorder_put(rec, bt_str(line));
        WAIT_UNTIL(stats().written == i + 1);
        assert_int_equal(stat(path, &st), 0);
        assert_true(st.st_size <= 4096);
    }
    stop();
    assert_int_equal(stat(old_path, &st), 0);
    assert_int_equal(st.st_size, 4000); /* 40 lines of 100 bytes */
    assert_int_equal(atoi(content(old_path)), 120);
    assert_int_equal(atoi(content(path)), 160);
    assert_int_equal(strlen(content(path)), 4000);
}

static void test_a_batch_is_cut_between_lines(void **state)
{
    char *text;

    config.max_bytes = 4096;
    start();
    broken = ENOSPC; /* so that the rest is one batch */
    for (unsigned i = 0; i < 60; i++)
        bt_recorder_put(rec,
                        BT_STR("0123456789012345678901234567890123456789012345678901234567890123"
                               "456789012345678901234567890123456789"));
    WAIT_UNTIL(stats().errors > 0);
    broken = 0;
    stop();
    text = content(old_path);
    assert_int_equal(strlen(text) % 101, 0);
    assert_true(strlen(text) > 0 && strlen(text) <= 4096);
    assert_int_equal(strlen(content(path)) % 101, 0);
    assert_int_equal(strlen(content(path)) + strlen(content(old_path)), 60 * 101);
}

static void test_a_line_above_the_cap(void **state)
{
    static char line[10000];

    config.max_bytes = 4096;
    memset(line, 'y', sizeof line - 1);
    start();
    bt_recorder_put(rec, BT_STR("short"));
    bt_recorder_put(rec, bt_str(line));
    bt_recorder_put(rec, BT_STR("short again"));
    stop();
    assert_int_equal(strlen(content(old_path)), sizeof line);
    assert_string_equal(content(path), "short again\n");
}

/* ---- bad days ---- */

static void test_a_full_disk_loses_no_line(void **state)
{
    start();
    broken = ENOSPC;
    half = 1;
    bt_recorder_put(rec, BT_STR("one"));
    WAIT_UNTIL(stats().errors >= 2);
    assert_string_equal(content(path), ""); /* the half line was cut off */
    bt_recorder_put(rec, BT_STR("two"));
    broken = 0;
    WAIT_UNTIL(stats().written == 2);
    assert_string_equal(content(path), "one\ntwo\n");
    assert_int_equal(stats().dropped, 0);
}

static void test_what_does_not_fit_is_dropped(void **state)
{
    static char line[1 << 20];
    unsigned taken = 0;

    memset(line, 'z', sizeof line - 1);
    start();
    broken = EIO;
    for (unsigned i = 0; i < 20; i++)
        taken += bt_recorder_put(rec, bt_str(line));
    assert_true(taken >= 3 && taken <= 8); /* 4 MiB wait, and what the thread has in its hands */
    assert_int_equal(stats().dropped, 20 - taken);
    stop(); /* one last try */
    assert_string_equal(content(path), "");
}

static void test_close_does_not_wait_for_a_broken_disk(void **state)
{
    start();
    broken = EIO;
    bt_recorder_put(rec, BT_STR("one"));
    WAIT_UNTIL(stats().errors > 0);
    stop(); /* the spec's own deadline is the check */
}

static void test_a_slow_pipe_gets_every_line_once(void **state)
{
    static char text[1 << 20];
    char line[128];
    size_t n = 0;
    int fd;

    assert_int_equal(mkfifo(path, 0600), 0);
    start();
    for (unsigned i = 0; i < 3000; i++) {
        snprintf(line, sizeof line, "%04u%090u", i, i);
        assert_true(bt_recorder_put(rec, bt_str(line)));
    }
    WAIT_UNTIL(stats().errors > 0); /* the pipe is full */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    assert_true(fd >= 0);
    for (uint64_t deadline = bt_clock_ms() + WAIT_MS; n < 3000 * 95; usleep(1000)) {
        ssize_t k = read(fd, text + n, sizeof text - n - 1);
        assert_true(bt_clock_ms() < deadline);
        n += k > 0 ? (size_t) k : 0;
    }
    assert_int_equal(n, 3000 * 95);
    for (unsigned i = 0; i < 3000; i++) {
        int k = snprintf(line, sizeof line, "%04u%090u\n", i, i);
        assert_memory_equal(text + i * 95, line, (size_t) k);
    }
    WAIT_UNTIL(stats().written == 3000);
    close(fd);
}

static void test_a_file_that_is_taken_away(void **state)
{
    char line[101];

    config.max_bytes = 4096;
    memset(line, 'x', sizeof line);
    line[100] = '\0';
    start();
    for (unsigned i = 0; i < 100; i++) {
        bt_recorder_put(rec, bt_str(line));
        WAIT_UNTIL(stats().written == i + 1 || stats().errors > 0);
        assert_int_equal(stats().errors, 0);
        if (i == 10)
            assert_int_equal(unlink(path), 0);
    }
    stop();
    assert_true(strlen(content(path)) > 0);
}

/* Renamed while records come: each is in the one file or in the other. */
static void test_a_file_that_is_renamed(void **state)
{
    char line[32], *at;
    unsigned lines = 0;
    struct stat st;

    start();
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(line, sizeof line, "%03u", i);
        bt_recorder_put(rec, bt_str(line));
        if (i == 500) {
            assert_int_equal(rename(path, old_path), 0);
            bt_recorder_reopen(rec);
        }
    }
    stop();
    for (const char *name = old_path; name != NULL; name = name == old_path ? path : NULL)
        for (at = content(name); *at != '\0'; at += 4)
            assert_int_equal(atoi(at), lines++);
    assert_int_equal(lines, 1000);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > 0);
}

static void test_a_renamed_file_is_replaced_at_once(void **state)
{
    struct stat st;

    start();
    assert_int_equal(rename(path, old_path), 0);
    bt_recorder_reopen(rec);
    WAIT_UNTIL(stat(path, &st) == 0);
    bt_recorder_reopen(NULL);
}

/* The disk of the old one is full: the new one gets what waits. */
static void test_a_new_file_ends_the_wait(void **state)
{
    start();
    broken = ENOSPC;
    bt_recorder_put(rec, BT_STR("waits"));
    WAIT_UNTIL(stats().errors >= 4); /* the next pause is long */
    assert_int_equal(rename(path, old_path), 0);
    broken = 0;
    bt_recorder_reopen(rec);
    WAIT_UNTIL(stats().written == 1);
    assert_string_equal(content(path), "waits\n");
}

static void test_where_no_file_can_be(void **state)
{
    static const char *const bad[] = {"/nonexistent/r.jsonl", "/tmp"};

    for (unsigned i = 0; i < 2; i++) {
        config.file = bad[i];
        assert_int_equal(bt_recorder_open(&rec, &config, err, sizeof err), BT_E_CONFIG);
        assert_null(rec);
        assert_non_null(strstr(err, bad[i]));
        assert_non_null(strstr(err, "--record-file"));
        assert_null(strchr(err, '\n'));
    }
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, open_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_no_file_is_fine),
        CASE(test_close_writes_what_waits),
        CASE(test_lines_come_without_closing),
        CASE(test_an_old_file_goes_on),
        CASE(test_many_loops_write_whole_lines),
        CASE(test_rotates_between_lines),
        CASE(test_a_batch_is_cut_between_lines),
        CASE(test_a_line_above_the_cap),
        CASE(test_a_full_disk_loses_no_line),
        CASE(test_what_does_not_fit_is_dropped),
        CASE(test_close_does_not_wait_for_a_broken_disk),
        CASE(test_a_slow_pipe_gets_every_line_once),
        CASE(test_a_file_that_is_taken_away),
        CASE(test_a_file_that_is_renamed),
        CASE(test_a_renamed_file_is_replaced_at_once),
        CASE(test_a_new_file_ends_the_wait),
        CASE(test_where_no_file_can_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
