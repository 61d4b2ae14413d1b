/* The protocol is sd_listen_fds(3)'s: descriptors from 3 on, their names parted by colons. It is read here because that is
 * less than another library. */
#include "config/passed.h"

#include "base/err.h"
#include "loop/network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FIRST_FD 3
#define FDS_MAX 4096U

static bt_passed_t sides[BT_PASSED_SIDES];
static int upgrade_fd = -1;
static bool is_held;
static const char *const side_names[BT_PASSED_SIDES] = {"client", "admin"};

const bt_passed_t *bt_passed(enum bt_passed_side side)
{
    return &sides[side];
}

/* What is not a whole number is 0. */
static unsigned long number_of(const char *name)
{
    const char *text = getenv(name);
    char *end;
    unsigned long n;

    if (text == NULL || text[0] < '0' || text[0] > '9')
        return 0;
    errno = 0;
    n = strtoul(text, &end, 10);
    return *end == '\0' && errno == 0 ? n : 0;
}

static int option_of(int fd, int option)
{
    int value = -1;
    socklen_t size = sizeof value;

    return getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

static bool is_tcp_listener(int fd)
{
    const int domain = option_of(fd, SO_DOMAIN);

    return (domain == AF_INET || domain == AF_INET6) && option_of(fd, SO_TYPE) == SOCK_STREAM &&
           option_of(fd, SO_ACCEPTCONN) == 1;
}

/* The address that is judged is the one that lets in most. */
static void take_address(bt_passed_t *side, int fd)
{
    struct sockaddr_storage addr;
    socklen_t size = sizeof addr;

    if (getsockname(fd, (struct sockaddr *) &addr, &size) != 0 ||
        (side->count > 0 && bt_network_is_loopback(&addr)))
        return;
    if (addr.ss_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *) &addr;
        inet_ntop(AF_INET6, &a->sin6_addr, side->host, sizeof side->host);
        side->port = ntohs(a->sin6_port);
    } else {
        const struct sockaddr_in *a = (const struct sockaddr_in *) &addr;
        inet_ntop(AF_INET, &a->sin_addr, side->host, sizeof side->host);
        side->port = ntohs(a->sin_port);
    }
}

static int add_socket(bt_passed_t *side, int fd)
{
    int *fds = realloc(side->fds, (side->count + 1) * sizeof *fds);
    const int flags = fcntl(fd, F_GETFL);

    if (fds == NULL)
        return BT_E_NOMEM;
    side->fds = fds;
    take_address(side, fd);
    fds[side->count++] = fd;
    return fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno
                                                                                            : 0;
}

static int take_one(int fd, const char *name, size_t n, char *err, size_t err_size)
{
    for (unsigned s = 0; s < BT_PASSED_SIDES; s++) {
        if (strlen(side_names[s]) != n || memcmp(side_names[s], name, n) != 0)
            continue;
        if (!is_tcp_listener(fd))
            return bt_err_refuse(err, err_size,
                                 "LISTEN_FDS: socket \"%s\" does not listen on TCP; in its unit "
                                 "write ListenStream=ADDRESS:PORT",
                                 side_names[s]);
        if (s == BT_PASSED_ADMIN && sides[s].count > 0)
            return bt_err_refuse(err, err_size,
                                 "LISTEN_FDS: two sockets are named admin, one is served: give its "
                                 "unit one ListenStream=");
        return add_socket(&sides[s], fd);
    }
    return bt_err_refuse(err, err_size,
                         "LISTEN_FDS: a socket is named \"%.*s\"; in its unit write "
                         "FileDescriptorName=client or FileDescriptorName=admin",
                         (int) (n < 80 ? n : 80), name);
}

static int take_all(unsigned long count, const char *names, char *err, size_t err_size)
{
    int rc = 0;

    if (count > FDS_MAX)
        return bt_err_refuse(err, err_size, "LISTEN_FDS: %lu sockets, at most %u are taken", count,
                             FDS_MAX);
    for (unsigned i = 0; i < count && rc == 0; i++) {
        const size_t n = strcspn(names, ":");
        rc = take_one(FIRST_FD + (int) i, names, n, err, err_size);
        names += n + (names[n] == ':');
    }
    if (rc < 0 && rc != BT_E_CONFIG)
        rc = bt_err_refuse(err, err_size, "LISTEN_FDS: %s",
                           rc == BT_E_NOMEM ? bt_err_text(rc) : strerror(-rc));
    return rc;
}

int bt_passed_upgrade_fd(void)
{
    return upgrade_fd;
}

bool bt_passed_is_held(void)
{
    return is_held;
}

/* Only from the process that has started us: the variable may have come further than it was meant to. */
static bool take_upgrade(void)
{
    const char *text = getenv(BT_PASSED_UPGRADE);
    long pid;
    int fd, end = 0;

    if (text == NULL || sscanf(text, "%ld:%d%n", &pid, &fd, &end) != 2 || pid != (long) getppid() ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return false;
    upgrade_fd = fd;
    is_held = strcmp(text + end, BT_PASSED_HELD) == 0;
    return true;
}

int bt_passed_take(char *err, size_t err_size)
{
    const char *names = getenv("LISTEN_FDNAMES");
    const bool is_upgrade = take_upgrade();
    int rc = 0;

    if (is_upgrade || number_of("LISTEN_PID") == (unsigned long) getpid())
        rc = take_all(number_of("LISTEN_FDS"), names != NULL ? names : "", err, err_size);
    if (!is_upgrade)
        is_held = sides[BT_PASSED_CLIENT].count > 0;
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    unsetenv(BT_PASSED_UPGRADE);
    return rc;
}
