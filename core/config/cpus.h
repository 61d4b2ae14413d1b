/* cpus.h - how many CPUs this process may really use.
 *
 * Owner: nobody.
 * Life:  static.
 * Flow:  affinity mask, cut down by the CPU quota of the control groups above us (cgroup v2).
 * Cost:  a few small files, once.
 */
#ifndef BT_CONFIG_CPUS_H
#define BT_CONFIG_CPUS_H

unsigned bt_cpus_available(void);
/* Smallest quota from root/path up to root, rounded up; 0 = none. For tests, too. */
unsigned bt_cpus_quota(const char *root, const char *path);

#endif
