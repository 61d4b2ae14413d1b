/* Starting is racy by nature: a port that was free may be taken. A server that ends at once is started again on another one. */
#include "redis_server.h"

#include "../loop/util.h"

#include "base/rand.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#define PORT_LOW 10000U
#define PORT_HIGH 32767U

static bool is_in_path(const char *name)
{
    char path[4096], all[4096];
    char *rest = all, *dir;

    snprintf(all, sizeof(all), "%s", getenv("PATH") != NULL ? getenv("PATH") : "");
    while ((dir = strsep(&rest, ":")) != NULL) {
        snprintf(path, sizeof(path), "%.2000s/%s", dir, name);
        if (access(path, X_OK) == 0)
            return true;
    }
    return false;
}

const char *redis_program(void)
{
    const char *named = getenv("BATON_REDIS_SERVER");

    if (named != NULL && *named != '\0')
        return named;
    if (is_in_path("redis-server"))
        return "redis-server";
    if (is_in_path("valkey-server"))
        return "valkey-server";
    printf("skipped: no redis-server and no valkey-server here (Debian package redis-server)\n");
    return NULL;
}

/* Below those that the kernel hands out to everybody who connects: it must still be free when the server comes back. */
static unsigned highest_port(void)
{
    unsigned first = 0;
    FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");

    if (file == NULL)
        return PORT_HIGH;
    if (fscanf(file, "%u", &first) != 1)
        first = 0;
    fclose(file);
    return first > PORT_LOW ? first - 1 : PORT_HIGH;
}

static bool is_free(unsigned port)
{
    const struct sockaddr_in addr = {.sin_family = AF_INET,
                                     .sin_port = htons((uint16_t) port),
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is = fd >= 0 && bind(fd, (const struct sockaddr *) &addr, sizeof(addr)) == 0;

    if (fd >= 0)
        close(fd);
    return is;
}

unsigned redis_free_port(void)
{
    const unsigned count = highest_port() - PORT_LOW + 1;
    unsigned port;

    do
        port = PORT_LOW + (unsigned) (bt_rand_u64() % count);
    while (!is_free(port));
    return port;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static redisContext *connect_to(const redis_server_t *server)
{
    redisContext *c =
        redisConnectWithTimeout("127.0.0.1", (int) server->port, (struct timeval){.tv_sec = 5});

    if (c != NULL && c->err == 0) {
        redisSetTimeout(c, (struct timeval){.tv_sec = 20});
        if (server->password[0] != '\0')
            freeReplyObject(redisCommand(c, "AUTH %s", server->password));
        return c;
    }
    if (c != NULL)
        redisFree(c);
    return NULL;
}

static bool answers(const redis_server_t *server)
{
    redisContext *c = connect_to(server);
    redisReply *reply = c != NULL ? redisCommand(c, "PING") : NULL;
    bool ok = reply != NULL; /* NOAUTH is an answer too */

    if (reply != NULL)
        freeReplyObject(reply);
    if (c != NULL)
        redisFree(c);
    return ok;
}

/* In the child. */
static void become(redis_server_t *server)
{
    char port[16], log[96], config[96];
    const char *argv[REDIS_WORDS_MAX + 32] = {redis_program()};
    unsigned n = 1;

    snprintf(port, sizeof(port), "%u", server->port);
    snprintf(log, sizeof(log), "%s/log", server->dir);
    snprintf(config, sizeof(config), "%s/conf", server->dir);
    if (server->is_sentinel)
        argv[n++] = config;
    const char *const common[] = {"--port",    port, "--bind", "127.0.0.1",
                                  "--logfile", log,  "--dir",  server->dir};
    for (unsigned i = 0; i < sizeof(common) / sizeof(common[0]); i++)
        argv[n++] = common[i];
    const char *const data[] = {"--save",
                                "",
                                "--appendonly",
                                "no",
                                "--unixsocket",
                                server->socket,
                                "--databases",
                                "16",
                                "--repl-diskless-sync-delay",
                                "0",
                                "--hz",
                                "100"};
    for (unsigned i = 0; i < sizeof(data) / sizeof(data[0]) && !server->is_sentinel; i++)
        argv[n++] = data[i];
    for (unsigned i = 0; server->words[i] != NULL; i++)
        argv[n++] = server->words[i];
    if (server->is_sentinel)
        argv[n++] = "--sentinel";
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execvp(argv[0], (char *const *) (uintptr_t) argv);
    _exit(127);
}

static bool run(redis_server_t *server)
{
    server->pid = fork();
    assert_true(server->pid >= 0);
    if (server->pid == 0)
        become(server);
    while (!answers(server)) {
        if (waitpid(server->pid, NULL, WNOHANG) == server->pid) {
            server->pid = 0;
            return false;
        }
        nap();
    }
    return true;
}

static void start_anywhere(redis_server_t *server)
{
    for (int i = 0; i < 20; i++) {
        server->port = redis_free_port();
        if (run(server))
            return;
    }
    fail_msg("the server ends at once; see %s/log", server->dir);
}

static void make_dir(redis_server_t *server)
{
    memset(server, 0, sizeof(*server));
    snprintf(server->dir, sizeof(server->dir), "/tmp/baton-redis-XXXXXX");
    assert_non_null(mkdtemp(server->dir));
    snprintf(server->socket, sizeof(server->socket), "%s/sock", server->dir);
}

void redis_start(redis_server_t *server, const char *const *words)
{
    make_dir(server);
    for (unsigned i = 0; words != NULL && words[i] != NULL; i++) {
        assert_true(i + 1 < REDIS_WORDS_MAX);
        server->words[i] = words[i];
        if (i > 0 && strcmp(words[i - 1], "--requirepass") == 0)
            snprintf(server->password, sizeof(server->password), "%s", words[i]);
    }
    start_anywhere(server);
}

void redis_start_sentinel(redis_server_t *server, const char *config)
{
    char path[96];

    make_dir(server);
    server->is_sentinel = true;
    snprintf(path, sizeof(path), "%s/conf", server->dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(config, file);
    fclose(file);
    start_anywhere(server);
}

void redis_stop(redis_server_t *server)
{
    if (server->pid == 0)
        return;
    kill(server->pid, SIGKILL);
    waitpid(server->pid, NULL, 0);
    server->pid = 0;
}

void redis_again(redis_server_t *server)
{
    assert_int_equal(server->pid, 0);
    assert_true(run(server));
}

void redis_freeze(redis_server_t *server)
{
    int status;

    kill(server->pid, SIGSTOP);
    waitpid(server->pid, &status, WUNTRACED);
    assert_true(WIFSTOPPED(status));
}

void redis_thaw(redis_server_t *server)
{
    kill(server->pid, SIGCONT);
}

void redis_end(redis_server_t *server)
{
    static const char *const files[] = {"log", "conf", "sock", "dump.rdb"};
    char path[128];

    redis_stop(server);
    for (unsigned i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), "%s/%s", server->dir, files[i]);
        unlink(path);
    }
    rmdir(server->dir);
}

static redisReply *ask(const redis_server_t *server, const char *fmt, va_list args)
{
    redisContext *c = connect_to(server);

    assert_non_null(c);
    redisReply *reply = redisvCommand(c, fmt, args);
    if (reply == NULL)
        fail_msg("no answer to %s: %s", fmt, c->errstr);
    redisFree(c);
    return reply;
}

redisReply *redis_ask(const redis_server_t *server, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    redisReply *reply = ask(server, fmt, args);
    va_end(args);
    return reply;
}

void redis_send(const redis_server_t *server, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    redisReply *reply = ask(server, fmt, args);
    va_end(args);
    if (reply->type == REDIS_REPLY_ERROR)
        fail_msg("%s: %s", fmt, reply->str);
    freeReplyObject(reply);
}
