/* A child process that enters more sandboxes than the kernel puts over one another, as a line of upgrades does. */
#include "base/err.h"
#include "base/sandbox.h"
#include "config/passed.h"
#include "gateway/sandbox.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 16
#define HAS_NONE 77

#define WANT(what)                                                                                 \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "not so: %s (line %d): %s\n", #what, __LINE__, err);                   \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static bool is_inside(void)
{
    return prctl(PR_GET_SECCOMP) == 2 && open("/root", O_RDONLY | O_DIRECTORY) < 0 &&
           errno == EACCES;
}

static int many(bool is_successor)
{
    const bt_config_t config = {.sandbox = BT_SANDBOX_AUTO};
    char err[BT_CONFIG_ERR_BYTES] = "", upgrade[64];
    int ends[2] = {-1, -1}, rc = 0;

    snprintf(upgrade, sizeof upgrade, "%ld:%d", (long) getppid(), pipe(ends) == 0 ? ends[0] : -1);
    WANT(!is_successor || setenv(BT_PASSED_UPGRADE, upgrade, 1) == 0);
    WANT(bt_passed_take(err, sizeof err) == 0);
    WANT((bt_passed_upgrade_fd() >= 0) == is_successor);
    for (unsigned i = 0; i <= MOST && rc == 0; i++)
        rc = bt_gateway_sandbox(&config, err, sizeof err);
    if (prctl(PR_GET_SECCOMP) != 2)
        return HAS_NONE;
    WANT(is_inside());
    WANT(bt_sandbox_state().has_landlock && bt_sandbox_state().has_seccomp);
    WANT(rc == (is_successor ? 0 : BT_E_CONFIG));
    WANT(is_successor || strstr(err, "--sandbox: Argument list too long") != NULL);
    return 0;
}

static void in_a_child(bool is_successor)
{
    int status;
    const pid_t pid = fork();

    if (pid == 0)
        _exit(many(is_successor));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == HAS_NONE)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_successor_goes_on_in_what_it_inherits(void **state)
{
    in_a_child(true);
}

static void nobody_else_does(void **state)
{
    in_a_child(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_successor_goes_on_in_what_it_inherits),
        cmocka_unit_test(nobody_else_does),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
