/* Names, texts and scopes of error codes; soft assertions count each time and speak once. */
#include "base/err.h"
#include "base/log.h"
#include "unit.h"

#include <ctype.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

static void test_names(void **state)
{
    assert_string_equal(bt_err_name(0), "ok");
    assert_string_equal(bt_err_name(BT_E_STALL), "stall");
    assert_string_equal(bt_err_name(BT_E_FIRST_BYTE_TIMEOUT), "first_byte_timeout");
    assert_string_equal(bt_err_name(UV_ECONNREFUSED), "econnrefused");
    assert_string_equal(bt_err_name(UV_EOF), "eof");
    assert_string_equal(bt_err_name(-12345), "unknown");
    assert_string_equal(bt_err_name(7), "unknown");
}

static void test_every_name_is_lower_case_and_whole(void **state)
{
#define CHECK(name, code, scope, text)                                                             \
    assert_int_equal(strlen(bt_err_name(name)), strlen(#name) - 5);                                \
    for (const char *c = bt_err_name(name); *c != '\0'; c++)                                       \
        assert_false(isupper((unsigned char) *c));                                                 \
    assert_string_equal(bt_err_text(name), text);                                                  \
    assert_int_equal(name, code);                                                                  \
    assert_int_equal(bt_err_scope(name), BT_SCOPE_##scope);
    BT_ERR_MAP(CHECK)
#undef CHECK
}

static void test_scopes(void **state)
{
    assert_int_equal(bt_err_scope(BT_E_CONNECT), BT_SCOPE_WORKER);
    assert_int_equal(bt_err_scope(UV_ECONNRESET), BT_SCOPE_CONNECTION);
    assert_int_equal(bt_err_scope(UV_ENOMEM), BT_SCOPE_PROCESS);
    assert_int_equal(bt_err_scope(BT_E_NOMEM), BT_SCOPE_PROCESS);
    assert_string_equal(bt_scope_name(BT_SCOPE_REQUEST), "request");
    assert_string_equal(bt_scope_name(BT_SCOPE_ATTEMPT), "attempt");
    assert_string_equal(bt_scope_name(BT_SCOPE_CONNECTION), "connection");
    assert_string_equal(bt_scope_name(BT_SCOPE_WORKER), "worker");
    assert_string_equal(bt_scope_name(BT_SCOPE_DEVICE), "device");
    assert_string_equal(bt_scope_name(BT_SCOPE_PROCESS), "process");
}

static int hit_soft(int bad)
{
    return BT_SOFT(bad != 0);
}

static void *hit_often(void *arg)
{
    for (int i = 0; i < 500; i++)
        hit_soft(1);
    return arg;
}

static void test_soft_counts_always_and_logs_once(void **state)
{
    int fds[2];
    char text[4096];
    pthread_t threads[3];

    assert_int_equal(pipe(fds), 0);
    bt_log_set(BT_LOG_INFO, false, fds[1]);
    unsigned long before = bt_soft_count();
    assert_int_equal(hit_soft(0), 0);
    assert_int_equal(bt_soft_count(), before);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hit_often, NULL), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(hit_soft(1), 1);
    assert_int_equal(bt_soft_count(), before + 1501);
    bt_log_set(BT_LOG_INFO, false, STDERR_FILENO);
    close(fds[1]);
    ssize_t n = read(fds[0], text, sizeof(text) - 1);
    assert_true(n > 0);
    text[n] = '\0';
    assert_non_null(strstr(text, "bad != 0"));
    assert_ptr_equal(strchr(text, '\n'), text + n - 1);
    close(fds[0]);
}

static void test_bug_aborts_and_says_where(void **state)
{
    int fds[2], status;
    char text[4096];

    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(fds[1], STDERR_FILENO);
        BT_BUG_ON(1 + 1 == 2);
        _exit(0);
    }
    close(fds[1]);
    ssize_t n = read(fds[0], text, sizeof(text) - 1);
    assert_true(n > 0);
    text[n] = '\0';
    assert_non_null(strstr(text, "1 + 1 == 2"));
    assert_non_null(strstr(text, "err_test.c"));
    while (read(fds[0], text, sizeof(text)) > 0)
        ;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    close(fds[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_every_name_is_lower_case_and_whole),
        cmocka_unit_test(test_scopes),
        cmocka_unit_test(test_soft_counts_always_and_logs_once),
        cmocka_unit_test(test_bug_aborts_and_says_where),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
