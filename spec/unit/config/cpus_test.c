#include "config/config_impl.h"

#include "load.h"

#include <sched.h>
#include <sys/stat.h>

static void write_quota(const char *root, const char *dir, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s%s", root, dir);
    (void) mkdir(path, 0755);
    snprintf(path, sizeof path, "%s%s/cpu.max", root, dir);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
}

static void smallest_quota_on_the_way_up(void **state)
{
    const char *root = load_folder();
    assert_int_equal(bt_cpus_quota(root, ""), 0);
    write_quota(root, "/a", "400000 100000\n");
    write_quota(root, "/a/b", "max 100000\n");
    write_quota(root, "/a/b/c", "150000 100000\n");
    assert_int_equal(bt_cpus_quota(root, "/a"), 4);
    assert_int_equal(bt_cpus_quota(root, "/a/b"), 4);   /* max is no limit, the parent's is */
    assert_int_equal(bt_cpus_quota(root, "/a/b/c"), 2); /* 1.5 rounded up */
    write_quota(root, "", "10000 100000\n");
    assert_int_equal(bt_cpus_quota(root, "/a/b/c"), 1); /* a tenth of a CPU is still one loop */
    assert_int_equal(bt_cpus_quota(root, "/not/there"), 1);
}

static void affinity_counts(void **state)
{
    cpu_set_t old, one;
    assert_int_equal(sched_getaffinity(0, sizeof old, &old), 0);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &old))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(bt_cpus_available(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof old, &old), 0);
    assert_true(bt_cpus_available() >= 1 && bt_cpus_available() <= (unsigned) CPU_COUNT(&old));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smallest_quota_on_the_way_up),
        cmocka_unit_test(affinity_counts),
    };
    return cmocka_run_group_tests(tests, NULL, load_cleanup);
}
