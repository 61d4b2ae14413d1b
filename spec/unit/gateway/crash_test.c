/* What a crash leaves that the unwinder does not survive. */
#include "base/flight.h"
#include "gateway/crash.h"
#include "unit.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/baton-crash-XXXXXX", file[64], errors[64];

static void call_nowhere(void)
{
    char err[256];

    if (freopen(errors, "w", stderr) == NULL || bt_crash_open(file, 1, err, sizeof err) < 0)
        _exit(1);
    bt_flight_note(BT_FLIGHT_WORKER, 0, "w0 is down");
    void (*volatile nowhere)(void) = (void (*)(void))(uintptr_t) 0x10;
    nowhere();
    _exit(2);
}

static void expect_events(const char *path)
{
    char text[4096];
    FILE *in = fopen(path, "re");

    assert_non_null(in);
    const size_t n = fread(text, 1, sizeof text - 1, in);
    fclose(in);
    text[n] = '\0';
    assert_non_null(strstr(text, "crash: SIGSEGV at 0x10, in thread"));
    assert_non_null(strstr(text, " control worker w0 is down\n"));
}

static void test_call_to_nowhere(void **state)
{
    int status;

    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/file", folder);
    snprintf(errors, sizeof errors, "%s/errors", folder);
    const pid_t child = fork();
    if (child == 0)
        call_nowhere();
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSEGV);
    expect_events(file);
    expect_events(errors);
    unlink(file);
    unlink(errors);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_call_to_nowhere)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
