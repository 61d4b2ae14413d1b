/* The sockets are handed over as systemd does (config/passed.c): both processes accept from the same queues for a moment, and none that waits in
 * one is lost when the old process closes its end. A new socket beside the old (SO_REUSEPORT) would lose those.
 *
 *   none --SIGUSR2--> starting --"ready"--> replaced: drain, end
 *     ^                   |
 *     +--- it ends, is silent for too long, or we end
 *
 * What lives in this process alone cannot be handed on: engines that are registered here, transfer agents, rooms of triggers. With
 * their ports an upgrade is refused. */
#include "gateway/upgrade.h"

#include "base/err.h"
#include "base/log.h"
#include "config/passed.h"
#include "gateway/kv_events.h"
#include "gateway/notify.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READY 'R'
#define SUCCESSOR_MS 60000U /* from its start to its word */
#define KNOWN_MS 5000U      /* after which a worker that says nothing is not waited for */
#define STDIO 3             /* descriptors of every process */

extern char **environ;

struct bt_successor {
    bt_gateway_t *gateway;
    uv_process_t process;
    uv_pipe_t pipe;
    bt_timer_t deadline;
    unsigned handles; /* that are not closed yet */
    char word[8];
    bool has_process, is_late;
};

/* ---- what it is started with ---- */

typedef struct start {
    char **argv, **env;
    uv_stdio_container_t *stdio;
    unsigned sockets; /* handed on */
    char count[32], names_head[16], *names, upgrade[64];
} start_t;

static bool is_dropped(const bt_gateway_t *g, const char *variable)
{
    static const char *const of_start[] = {
        "LISTEN_PID=", "LISTEN_FDS=", "LISTEN_FDNAMES=", BT_PASSED_UPGRADE "="};

    for (size_t i = 0; i < sizeof of_start / sizeof of_start[0]; i++)
        if (strncmp(variable, of_start[i], strlen(of_start[i])) == 0)
            return true;
    /* The watchdog that asks us will ask it. */
    return g->notify.watchdog_ms > 0 && strncmp(variable, "WATCHDOG_PID=", 13) == 0;
}

static int make_env(const bt_gateway_t *g, start_t *s)
{
    size_t count = 0, used = 0;

    while (environ[count] != NULL)
        count++;
    s->env = calloc(count + 4, sizeof *s->env);
    if (s->env == NULL)
        return BT_E_NOMEM;
    for (size_t i = 0; i < count; i++)
        if (!is_dropped(g, environ[i]))
            s->env[used++] = environ[i];
    s->env[used++] = s->count;
    s->env[used++] = s->names;
    s->env[used] = s->upgrade;
    return 0;
}

static int make_argv(const bt_gateway_t *g, start_t *s)
{
    s->argv = calloc((size_t) g->argc + 3, sizeof *s->argv);
    if (s->argv == NULL)
        return BT_E_NOMEM;
    s->argv[0] = g->program;
    s->argv[1] = (char *) (uintptr_t) "run";
    for (int i = 0; i < g->argc; i++)
        s->argv[i + 2] = (char *) (uintptr_t) g->argv[i];
    return 0;
}

static void pass(start_t *s, int fd, const char *name)
{
    s->stdio[STDIO + s->sockets++] =
        (uv_stdio_container_t){.flags = UV_INHERIT_FD, .data = {.fd = fd}};
    if (s->sockets > 1)
        strcat(s->names, ":");
    strcat(s->names, name);
}

static int make_stdio(const bt_gateway_t *g, start_t *s, uv_stream_t *pipe)
{
    unsigned count = 1;

    for (unsigned i = 0; i < g->loop_count; i++)
        count += g->loops[i].socket_count;
    s->stdio = calloc(STDIO + count + 1, sizeof *s->stdio);
    s->names = calloc(1, sizeof "LISTEN_FDNAMES=" + count * sizeof "client:");
    if (s->stdio == NULL || s->names == NULL)
        return BT_E_NOMEM;
    strcpy(s->names, "LISTEN_FDNAMES=");
    for (int i = 0; i < STDIO; i++)
        s->stdio[i] = (uv_stdio_container_t){.flags = UV_INHERIT_FD, .data = {.fd = i}};
    pass(s, g->admin_listen_fd, "admin");
    for (unsigned i = 0; i < g->loop_count; i++)
        for (unsigned k = 0; k < g->loops[i].socket_count; k++)
            pass(s, g->loops[i].sockets[k].fd, "client");
    s->stdio[STDIO + s->sockets] = (uv_stdio_container_t){
        .flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data = {.stream = pipe}};
    snprintf(s->count, sizeof s->count, "LISTEN_FDS=%u", s->sockets);
    snprintf(s->upgrade, sizeof s->upgrade, BT_PASSED_UPGRADE "=%ld:%u%s", (long) getpid(),
             STDIO + s->sockets, bt_passed_is_held() ? BT_PASSED_HELD : "");
    return 0;
}

static void free_start(start_t *s)
{
    free(s->argv);
    free(s->env);
    free(s->names);
    free(s->stdio);
}

/* ---- its life ---- */

static void on_closed(uv_handle_t *handle)
{
    bt_successor_t *s = handle->data;

    if (--s->handles == 0)
        free(s);
}

/* Forgets it. One that still runs is reaped by whoever reaps ours. */
static void let_go(bt_successor_t *s)
{
    s->gateway->successor = NULL;
    bt_timer_stop(&s->deadline);
    s->handles = 1 + s->has_process;
    uv_close((uv_handle_t *) &s->pipe, on_closed);
    if (s->has_process)
        uv_close((uv_handle_t *) &s->process, on_closed);
}

static void give_up(bt_successor_t *s, const char *why)
{
    bt_log_error("gateway", "upgrade given up, this process serves on: the new one, %d, %s",
                 s->process.pid, why);
    bt_gateway_notify(s->gateway, "STATUS=an upgrade was given up: see the log");
    let_go(s);
}

static void on_exit_of(uv_process_t *process, int64_t status, int signal_number)
{
    bt_successor_t *s = process->data;
    char why[80];

    if (s->is_late)
        snprintf(why, sizeof why, "was not ready after %u ms", SUCCESSOR_MS);
    else if (signal_number != 0)
        snprintf(why, sizeof why, "was ended by signal %d", signal_number);
    else
        snprintf(why, sizeof why, "ended with status %d before it was ready", (int) status);
    give_up(s, why);
}

static void on_deadline(bt_timer_t *timer)
{
    bt_successor_t *s = bt_container_of(timer, bt_successor_t, deadline);

    s->is_late = true;
    (void) uv_process_kill(&s->process, SIGKILL);
}

static void on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    bt_successor_t *s = handle->data;

    (void) suggested;
    *buf = uv_buf_init(s->word, sizeof s->word);
}

static void on_word(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    bt_successor_t *s = stream->data;
    bt_gateway_t *g = s->gateway;

    if (n == 0)
        return;
    if (n < 0 || s->is_late || buf->base[0] != READY) { /* why it ended, on_exit_of says */
        (void) uv_read_stop(stream);
        return;
    }
    const int pid = s->process.pid;
    let_go(s);
    bt_gateway_notify(g, "MAINPID=%d\nREADY=1", pid);
    bt_gateway_replaced(g, pid);
}

static int start_process(bt_successor_t *s)
{
    bt_gateway_t *g = s->gateway;
    start_t start = {0};
    int rc = make_stdio(g, &start, (uv_stream_t *) &s->pipe);

    if (rc == 0)
        rc = make_env(g, &start);
    if (rc == 0)
        rc = make_argv(g, &start);
    if (rc == 0) {
        const uv_process_options_t options = {.exit_cb = on_exit_of,
                                              .file = g->program,
                                              .args = start.argv,
                                              .env = start.env,
                                              .stdio_count = (int) (STDIO + start.sockets + 1),
                                              .stdio = start.stdio};
        s->has_process = true; /* the handle is to be closed even if it could not be started */
        s->process.data = s;
        rc = uv_spawn(&g->control.uv, &s->process, &options);
    }
    free_start(&start);
    return rc == 0 ? uv_read_start((uv_stream_t *) &s->pipe, on_room, on_word) : rc;
}

static const char *port_in_the_way(const bt_gateway_t *g)
{
    const bt_config_t *c = g->config;

    return bt_config_has_transfer(c)       ? "--transfer-port"
           : bt_config_has_registry(c)     ? "--registry-port"
           : bt_config_has_metaserver(c)   ? "--metaserver-port"
           : bt_config_has_registration(c) ? "--p2p-nccl-port and --moriio-port"
                                           : NULL;
}

void bt_gateway_upgrade(bt_gateway_t *g)
{
    const char *flag = port_in_the_way(g);
    bt_successor_t *s;
    int rc;

    if (g->successor != NULL) {
        bt_log_warn("gateway", "SIGUSR2: process %d is starting already, to take this one's place",
                    g->successor->process.pid);
        return;
    }
    if (flag != NULL || g->program == NULL) {
        bt_log_error("gateway", "SIGUSR2: no upgrade, this process serves on: %s%s",
                     flag != NULL ? flag : "it is not known which file it was started from",
                     flag != NULL ? ": engines are connected to this very process; restart it"
                                  : "");
        return;
    }
    s = calloc(1, sizeof *s);
    if (s == NULL) {
        bt_log_error("gateway", "SIGUSR2: no upgrade: %s", bt_err_text(BT_E_NOMEM));
        return;
    }
    s->gateway = g;
    bt_gateway_kv_save(g);
    bt_timer_init(&g->control, &s->deadline, on_deadline);
    (void) uv_pipe_init(&g->control.uv, &s->pipe, 0);
    s->pipe.data = s;
    rc = start_process(s);
    if (rc < 0) {
        bt_log_error("gateway", "SIGUSR2: no upgrade, this process serves on: cannot start %s: %s",
                     g->program, bt_err_text(rc));
        let_go(s);
        return;
    }
    g->successor = s;
    bt_timer_start(&s->deadline, SUCCESSOR_MS);
    bt_log_info("gateway", "SIGUSR2: %s starts as process %d, to take this one's place", g->program,
                s->process.pid);
}

void bt_gateway_upgrade_stop(bt_gateway_t *g)
{
    bt_successor_t *s = g->successor;

    if (s == NULL)
        return;
    bt_log_warn("gateway", "this process ends, and so does %d, which was to take its place",
                s->process.pid);
    (void) uv_process_kill(&s->process, SIGKILL);
    let_go(s);
}

void bt_gateway_upgrade_init(bt_gateway_t *g)
{
    char path[4096];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

    if (n <= 0)
        return;
    path[n] = '\0';
    g->program = strdup(path);
}

/* ---- the new process ---- */

bool bt_gateway_is_successor(void)
{
    return bt_passed_upgrade_fd() >= 0;
}

bool bt_gateway_listens_late(void)
{
    return bt_gateway_is_successor() || bt_passed_is_held();
}

static bool is_known(const bt_worker_pool_t *pool)
{
    for (unsigned i = 0; i < pool->all.count; i++)
        if (atomic_load_explicit(&pool->all.items[i]->health, memory_order_relaxed) ==
            BT_HEALTH_UNKNOWN)
            return false;
    return true;
}

bool bt_gateway_may_listen(const bt_gateway_t *g)
{
    const bt_workers_t *workers = bt_registry_current(g->registry);
    const bool is_late = bt_clock_ms() - g->start_ms >= KNOWN_MS;
    bool is_usable = false, all_known = true;
    char why[512];

    for (unsigned i = 0; i < workers->pool_count; i++) {
        const bt_worker_pool_t *pool = &workers->pools[i];
        is_usable = is_usable ||
                    bt_workers_topology(pool, bt_clock_ms(), why, sizeof why) != BT_TOPOLOGY_NONE;
        all_known = all_known && is_known(pool);
    }
    /* Nobody else serves systemd's socket: who cannot says so, after a while. */
    return (is_usable || !bt_gateway_is_successor()) && (all_known || is_late);
}

void bt_gateway_tell_predecessor(bt_gateway_t *g)
{
    const char word = READY;
    const int fd = bt_passed_upgrade_fd();

    (void) g;
    if (write(fd, &word, 1) != 1) /* it has ended: its clients are ours all the same */
        bt_log_warn("gateway", "the process before does not hear that this one serves: %s",
                    strerror(errno));
    close(fd);
}
