#include "net.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void bench_die(const char *what)
{
    perror(what);
    exit(1);
}

unsigned long bench_raise_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        bench_die("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    (void) setrlimit(RLIMIT_NOFILE, &limit);
    return (unsigned long) limit.rlim_cur;
}

static struct sockaddr_in loopback(unsigned port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t) port),
                                .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

static void set_nodelay(int fd)
{
    int on = 1;

    (void) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

int bench_listen(unsigned port, unsigned *port_p)
{
    struct sockaddr_in addr = loopback(port);
    socklen_t size = sizeof(addr);
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        bench_die("socket");
    (void) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, (struct sockaddr *) &addr, size) < 0 || listen(fd, 4096) < 0 ||
        getsockname(fd, (struct sockaddr *) &addr, &size) < 0)
        bench_die("listen");
    *port_p = ntohs(addr.sin_port);
    return fd;
}

int bench_connect(unsigned port)
{
    struct sockaddr_in addr = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        bench_die("socket");
    set_nodelay(fd);
    (void) connect(fd, (struct sockaddr *) &addr, sizeof(addr)); /* the first write tells */
    return fd;
}

int bench_accept(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd >= 0)
        set_nodelay(fd);
    return fd;
}

void bench_watch(int epoll, int fd, uint32_t events, void *who)
{
    struct epoll_event event = {.events = events, .data.ptr = who};

    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0)
        bench_die("epoll_ctl");
}

uint64_t bench_now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000U + (uint64_t) t.tv_nsec / 1000U;
}

uint64_t bench_cpu_us(int pid)
{
    char path[64], line[1024];
    unsigned long user = 0, system = 0;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    f = fopen(path, "r");
    if (f == NULL)
        return 0;
    char *read = fgets(line, sizeof(line), f);
    fclose(f);
    const char *rest = read != NULL ? strrchr(line, ')') : NULL; /* the name may hold anything */
    if (rest == NULL || sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                               &user, &system) != 2)
        return 0;
    return (uint64_t) (user + system) * 1000000U / (uint64_t) sysconf(_SC_CLK_TCK);
}

uint64_t bench_rss_kib(int pid)
{
    char path[64], line[256];
    unsigned long kib = 0;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/status", pid);
    f = fopen(path, "r");
    if (f == NULL)
        return 0;
    while (fgets(line, sizeof(line), f) != NULL)
        if (sscanf(line, "VmRSS: %lu kB", &kib) == 1)
            break;
    fclose(f);
    return kib;
}
