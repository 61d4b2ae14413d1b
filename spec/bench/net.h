/* net.h - sockets on the loopback and clocks, for the measuring programs.
 *
 * Owner: each program of spec/bench; none of Baton's own code is in here, so that a fault of it cannot hide itself.
 * Life:  plain calls; every failure to set up ends the program with a line on stderr.
 * Flow:  all sockets are non-blocking, TCP_NODELAY.
 * Cost:  one system call each.
 */
#ifndef BENCH_NET_H
#define BENCH_NET_H

#include <stdint.h>

void bench_die(const char *what);
/* Raises the soft limit of descriptors to the hard one; the limit. */
unsigned long bench_raise_files(void);
/* port 0 = any free one; *port_p is the one. */
int bench_listen(unsigned port, unsigned *port_p);
int bench_connect(unsigned port);
int bench_accept(int listener); /* -1 = nobody there */
void bench_watch(int epoll, int fd, uint32_t events, void *who);
uint64_t bench_now_us(void);
/* User and system time of all threads of a process, by /proc/<pid>/stat. 0 = no such process. */
uint64_t bench_cpu_us(int pid);
/* Resident memory. */
uint64_t bench_rss_kib(int pid);

#endif
