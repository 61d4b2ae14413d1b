/* util.h - what the specs of this folder share: turning a loop until something is so, and raw sockets as peers. */
#ifndef SPEC_UNIT_LOOP_UTIL_H
#define SPEC_UNIT_LOOP_UTIL_H

#include "base/buf.h"
#include "loop/loop.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS                                                                                \
    25000 /* a spec fails when what it waits for takes longer: some 1000 times too long */

/* Specs may wrap bt_clock_ms. */
static inline uint64_t patience_clock_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000 + (uint64_t) now.tv_nsec / 1000000;
}

/* Waits for I/O and timers, but not for ever: what a turn's first flush point does wakes nobody. */
static inline void turn_once(bt_loop_t *loop)
{
    struct pollfd backend = {.fd = uv_backend_fd(&loop->uv), .events = POLLIN};
    int timeout_ms = uv_backend_timeout(&loop->uv);

    poll(&backend, 1, timeout_ms < 0 || timeout_ms > 5 ? 5 : timeout_ms);
    uv_run(&loop->uv, UV_RUN_NOWAIT);
}

/* When a wait was given up last; one for all files of a program. */
__attribute__((weak)) uint64_t in_vain_ms;

/* A test's clean-up need not wait so long again for what has just not come. Who knows that specs will
 * fail says how long they may take for it. */
static inline uint64_t patience_ends_ms(void)
{
    const uint64_t now_ms = patience_clock_ms();
    const char *said = getenv("BATON_PATIENCE_MS");
    const uint64_t patience_ms = said != NULL ? strtoull(said, NULL, 10) : PATIENCE_MS;

    return now_ms + (in_vain_ms != 0 && now_ms - in_vain_ms < 500 ? 500 : patience_ms);
}

/* Runs `step` until the condition holds. */
#define STEP_UNTIL(condition, step)                                                                \
    do {                                                                                           \
        const uint64_t until_ms_ = patience_ends_ms();                                             \
        while (!(condition)) {                                                                     \
            if (patience_clock_ms() > until_ms_) {                                                 \
                in_vain_ms = patience_clock_ms();                                                  \
                fail_msg("waited in vain for: %s", #condition);                                    \
            }                                                                                      \
            step;                                                                                  \
        }                                                                                          \
    } while (0)

#define TURN_UNTIL(loop, condition) STEP_UNTIL(condition, turn_once(loop))

/* For conditions of a peer outside the loop: never sleeps in the loop. */
#define SPIN_UNTIL(loop, condition) STEP_UNTIL(condition, uv_run(&(loop)->uv, UV_RUN_NOWAIT))

static inline void turn(bt_loop_t *loop, int times)
{
    for (int i = 0; i < times; i++)
        uv_run(&loop->uv, UV_RUN_NOWAIT);
}

/* A listening socket on a free port of 127.0.0.1 (or ::1); -1 when the family is not there. */
static inline int raw_listen(int family, struct sockaddr_storage *addr_p)
{
    socklen_t len = sizeof(*addr_p);
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memset(addr_p, 0, sizeof(*addr_p));
    addr_p->ss_family = (sa_family_t) family;
    if (family == AF_INET)
        ((struct sockaddr_in *) addr_p)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else
        ((struct sockaddr_in6 *) addr_p)->sin6_addr = in6addr_loopback;
    if (fd < 0 || bind(fd, (struct sockaddr *) addr_p, len) < 0 || listen(fd, 64) < 0 ||
        getsockname(fd, (struct sockaddr *) addr_p, &len) < 0) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    return fd;
}

/* Two ends of a TCP connection over loopback. ours is for a stream, theirs is a blocking raw socket. */
static inline void tcp_pair(int *ours_p, int *theirs_p)
{
    struct sockaddr_storage addr;
    int listener = raw_listen(AF_INET, &addr);

    assert_true(listener >= 0);
    *theirs_p = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(*theirs_p, (struct sockaddr *) &addr, sizeof(struct sockaddr_in)), 0);
    *ours_p = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(*ours_p >= 0);
    close(listener);
}

static inline void close_with_reset(int fd)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(fd);
}

static inline bool wait_readable(int fd, int timeout_ms)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};

    return poll(&one, 1, timeout_ms) == 1;
}

#endif
