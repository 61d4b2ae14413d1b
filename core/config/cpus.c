/* A quota of 1.5 CPUs gives two loops: one loop would leave half a CPU unused, two are throttled only when both are busy. */
#include "config/config_impl.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#define CGROUP_ROOT "/sys/fs/cgroup"
#define CPUS_MAX 4096 /* more than CPU_SETSIZE: machines with many CPUs need a larger mask */

static unsigned count_affinity(void)
{
    cpu_set_t *set = CPU_ALLOC(CPUS_MAX);
    unsigned count = 1;
    if (set == NULL)
        return count;
    if (sched_getaffinity(0, CPU_ALLOC_SIZE(CPUS_MAX), set) == 0)
        count = (unsigned) CPU_COUNT_S(CPU_ALLOC_SIZE(CPUS_MAX), set);
    CPU_FREE(set);
    return count > 0 ? count : 1;
}

/* "max 100000" or "150000 100000". */
static unsigned read_quota(const char *file)
{
    unsigned long long quota, period;
    FILE *in = fopen(file, "re");
    if (in == NULL)
        return 0;
    int fields = fscanf(in, "%llu %llu", &quota, &period);
    fclose(in);
    if (fields != 2 || period == 0)
        return 0;
    unsigned long long cpus = (quota + period - 1) / period;
    return cpus > 0 ? (unsigned) cpus : 1;
}

unsigned bt_cpus_quota(const char *root, const char *path)
{
    char dir[1200], file[1300];
    size_t root_len = strlen(root);
    unsigned lowest = 0;
    snprintf(dir, sizeof dir, "%s%s", root, path);
    for (;;) {
        snprintf(file, sizeof file, "%s/cpu.max", dir);
        unsigned quota = read_quota(file);
        if (quota > 0 && (lowest == 0 || quota < lowest))
            lowest = quota;
        char *slash = strrchr(dir, '/');
        if (slash == NULL || (size_t) (slash - dir) < root_len)
            return lowest;
        *slash = '\0';
    }
}

/* The v2 line of /proc/self/cgroup is "0::/path". */
static void read_own_path(char *path, size_t size)
{
    char line[1024];
    FILE *in = fopen("/proc/self/cgroup", "re");
    path[0] = '\0';
    while (in != NULL && fgets(line, sizeof line, in) != NULL)
        if (strncmp(line, "0::", 3) == 0) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(path, size, "%s", line + 3);
        }
    if (in != NULL)
        fclose(in);
    if (strcmp(path, "/") == 0)
        path[0] = '\0';
}

unsigned bt_cpus_available(void)
{
    char path[1024];
    unsigned cpus = count_affinity();
    read_own_path(path, sizeof path);
    unsigned quota = bt_cpus_quota(CGROUP_ROOT, path);
    return quota > 0 && quota < cpus ? quota : cpus;
}
