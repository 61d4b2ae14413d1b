/* The order of opening is the order in which things need each other: shared, loops with their sockets and dispatchers (every
 * port that is taken and every script that is broken is found here, before a thread runs), registry, monitor, admin. Closing
 * goes backwards. Nothing accepts before all of it stands. */
#include "gateway/gateway.h"

#include "admin/admin.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pages.h"
#include "config/check.h"
#include "config/passed.h"
#include "gateway/crash.h"
#include "gateway/descriptors.h"
#include "gateway/fleet.h"
#include "gateway/identity.h"
#include "gateway/kubernetes.h"
#include "gateway/kv_events.h"
#include "gateway/memory.h"
#include "gateway/notify.h"
#include "gateway/rollout.h"
#include "gateway/sandbox.h"
#include "gateway/startup.h"
#include "gateway/tls.h"
#include "gateway/traces.h"
#include "gateway/transfer.h"
#include "gateway/upgrade.h"
#include "gateway/workers_file.h"
#include "reload/reload.h"
#include "script/native/hook_op_api.h"
#include "script/shared/prefix_index.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define LAST_LINES_MS 1000 /* at the end, for log lines that wait */

/* ---- the admin side ---- */

/* A worker that comes by the admin API says as little as one of the command line. */
static int complete_worker(void *user, const char *pool, bt_worker_spec_t *spec, char *err,
                           size_t err_size)
{
    const bt_gateway_t *g = user;
    return bt_config_complete_worker(g->fleet_config, pool, spec, err, err_size);
}

/* Hands admin_fd to the admin listener and opens the peers' worker paths. Before the loops run: they read shared. */
static int attach_admin(bt_gateway_t *g)
{
    const bt_admin_config_t config = {
        .registry = g->registry,
        .role_switches = g->role_switches,
        .advisor = g->advisor,
        .shared = &g->shared,
        .api_key = g->config->admin_api_key,
        .certificate_scopes = (unsigned) g->config->admin_tls_client_scope,
        .metrics_only = g->config->admin_metrics_only,
        .gen_ai = g->config->metrics_gen_ai,
        .listener = g->config->admin_host,
        .sandbox = bt_gateway_sandbox_mode(g->config),
        .allowed_hosts = (const char *const *) g->config->admin_allowed_hosts,
        .complete = complete_worker,
        .complete_user = g,
        .audit = bt_gateway_audit_start(g),
        .reload = g->reload,
        .rollout = g->rollouts != NULL ? g->rollouts->rollout : NULL,
        .transfer = g->transfer,
        .registration = g->registration,
        .store = g->store,
        .fleet = g->fleet,
        .budget = g->admin_budget,
        .dns = g->dns,
        .kv = &g->kv_subscriber,
        .kubes = g->kubes,
        .kube_count = g->kube_count,
        .client_tls = g->client_tls,
        .admin_tls = g->admin_tls,
    };
    int rc = bt_admin_new(&g->admin, &g->control, &config);
    if (rc < 0)
        return rc;
    g->shared.worker_paths = bt_admin_worker_paths;
    g->shared.worker_paths_user = g->admin;
    return g->is_listening ? bt_gateway_listen_admin(g) : 0;
}

/* After a run the admin side is closed already (bt_gateway_on_quiet). */
static void detach_admin(bt_gateway_t *g)
{
    if (g->admin_fd >= 0)
        close(g->admin_fd);
    g->admin_fd = -1;
    if (g->admin != NULL)
        bt_admin_close(g->admin, NULL, NULL);
    g->admin = NULL;
}

void bt_gateway_set_fleet_config(bt_gateway_t *g, bt_config_t *config)
{
    if (g->fleet_config != g->config) {
        bt_config_fini(g->fleet_config);
        free(g->fleet_config);
    }
    g->fleet_config = config;
}

/* ---- fleet ---- */

/* On the control loop. Before the threads run there is nobody to write mail to: open gives them the
 * first workers itself, and start_serving those after the fleet's first read. */
static void on_publish(void *user, bt_workers_t *workers)
{
    bt_gateway_t *g = user;
    if (g->state != BT_GATEWAY_STARTING) {
        bt_gateway_kv_publish(g, workers);
        bt_gateway_transfer_publish(g, workers); /* first: a changed worker keeps its agents */
        for (unsigned i = 0; i < g->loop_count; i++)
            bt_gateway_loop_publish(&g->loops[i], workers);
    }
    bt_gateway_fleet_publish(g, workers);
    if (g->monitor != NULL)
        bt_monitor_set_workers(g->monitor, workers);
}

/* Before the loops run. */
static int give_workers(bt_gateway_t *g, char *err, size_t err_size)
{
    int rc = 0;
    for (unsigned i = 0; i < g->loop_count && rc == 0; i++)
        rc = bt_dispatcher_set_workers(g->loops[i].dispatcher, bt_registry_current(g->registry),
                                       err, err_size);
    return rc;
}

static int open_workers(bt_gateway_t *g, char *err, size_t err_size)
{
    int rc = bt_registry_new(&g->registry, &g->config->breaker, on_publish, g);
    if (rc < 0) {
        snprintf(err, err_size, "%s", bt_err_text(rc));
        return rc;
    }
    rc = bt_config_apply_workers(g->config, g->registry, err, err_size);
    if (rc == 0)
        rc = bt_config_apply_found(g->config, g->config->workers_file, &g->config->found,
                                   g->registry, err, err_size);
    return rc == 0 ? give_workers(g, err, err_size) : rc;
}

/* ---- opening ---- */

static int bind_admin(bt_gateway_t *g, char *err, size_t err_size)
{
    const bt_config_t *c = g->config;
    const bt_passed_t *passed = bt_passed(BT_PASSED_ADMIN);
    if (passed->count > 0) {
        g->admin_fd = passed->fds[0];
        g->admin_port = passed->port;
    } else {
        g->admin_fd = bt_config_bind("admin-port", c->admin_host, c->admin_port, false,
                                     &g->admin_port, err, err_size);
    }
    g->admin_listen_fd = g->admin_fd;
    return g->admin_fd < 0 ? g->admin_fd : 0;
}

static int open_loops(bt_gateway_t *g, char *err, size_t err_size)
{
    for (unsigned i = 0; i < g->config->loops; i++) {
        bt_gateway_loop_t *el = &g->loops[i];
        g->loop_count = i + 1; /* closed even when it is only half open */
        int rc = bt_gateway_loop_open(el, g, i, err, err_size);
        if (rc < 0)
            return rc;
        g->group.loops[i] = &el->loop;
    }
    g->group.count = g->loop_count;
    g->shared.dispatchers = g->dispatchers;
    g->shared.dispatcher_count = g->loop_count;
    return 0;
}

/* Before shared and the loops, which are made with them. */
static int open_budgets(bt_gateway_t *g)
{
    int rc = bt_budget_new(&g->budget, g->config->loops, "client");
    if (rc == 0)
        rc = bt_budget_new(&g->admin_budget, 1, "admin");
    g->config->server.budget = g->config->dispatch.upstream.budget = g->budget;
    return rc;
}

/* Before the loops: they read where records go. */
static int open_recorder(bt_gateway_t *g, char *err, size_t err_size)
{
    g->shared.record = g->config->record;
    return bt_recorder_open(&g->shared.recorder, &g->config->record, err, err_size);
}

static int open_control(bt_gateway_t *g)
{
    int rc = bt_loop_init(&g->control, BT_LOOP_CONTROL);
    if (rc < 0)
        return rc;
    g->has_control = true;
    bt_gateway_notify_open(g);
    bt_gateway_upgrade_init(g);
    rc = bt_unfinished_new(&g->unfinished, g->config->server.max_buffered_bytes, bt_exchange_evict);
    if (rc < 0)
        return rc;
    bt_timer_init(&g->control, &g->grace, bt_gateway_grace_over);
    bt_timer_init(&g->control, &g->startup, bt_gateway_on_startup);
    if ((rc = bt_gateway_signals_start(g)) < 0)
        return rc;
    rc = bt_dispatch_shared_init(&g->shared, &g->config->dispatch);
    g->has_shared = rc == 0;
    g->shared.unfinished = g->unfinished;
    return rc;
}

static int allocate(bt_gateway_t **g_p, bt_config_t *config, int argc, const char *const *argv)
{
    bt_gateway_t *g = aligned_alloc(_Alignof(bt_gateway_t), sizeof *g);
    if (g == NULL)
        return BT_E_NOMEM;
    memset(g, 0, sizeof *g);
    g->config = g->fleet_config = config;
    g->argc = argc;
    g->argv = argv;
    g->notify.fd = -1;
    g->admin_fd = g->admin_listen_fd = g->transfer_fd = g->registry_fd = g->metaserver_fd = -1;
    g->loops = calloc(config->loops, sizeof *g->loops);
    g->dispatchers = calloc(config->loops, sizeof(bt_dispatcher_t *));
    g->group.loops = calloc(config->loops, sizeof(bt_loop_t *));
    if (g->loops == NULL || g->dispatchers == NULL || g->group.loops == NULL) {
        bt_gateway_close(g);
        return BT_E_NOMEM;
    }
    *g_p = g;
    return 0;
}

static void apply_config(void *user, bt_config_t *wanted)
{
    bt_gateway_apply_config(user, wanted);
}

/* SIGHUP's configuration serves, or was refused. */
static void on_configured(void *user)
{
    bt_gateway_notify_ready(user);
}

static int open_reload(bt_gateway_t *g, char *err, size_t err_size)
{
    bt_reload_config_t config = {.control = &g->control,
                                 .loop_count = g->loop_count,
                                 .errors = &g->shared.policy_errors,
                                 .first = g->config,
                                 .current = &g->fleet_config,
                                 .apply = apply_config,
                                 .note = bt_gateway_audit_note,
                                 .configured = on_configured,
                                 .user = g};
    int rc;

    g->reload_loops = calloc(g->loop_count, sizeof(*g->reload_loops));
    if (g->reload_loops == NULL)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < g->loop_count; i++)
        g->reload_loops[i] =
            (bt_reload_loop_t){.loop = &g->loops[i].loop, .dispatcher = &g->loops[i].dispatcher};
    config.loops = g->reload_loops;
    config.set = bt_gateway_rollout_first(g, &config.is_pinned);
    rc = bt_reload_new(&g->reload, &config);
    if (rc < 0)
        bt_policy_set_unref(config.set);
    return rc == 0 ? bt_reload_open(g->reload, err, err_size) : rc;
}

static void log_warnings(const bt_config_t *config)
{
    size_t n;

    for (const char *p = config->warnings.data; p != NULL && *p != '\0'; p += n + 1) {
        n = strcspn(p, "\n"); /* each line ends */
        bt_log_warn("config", "%.*s", (int) n, p);
    }
}

/* One byte, not none: the kernel writes no file that small, and does not even start a program that takes dumps by a pipe, which
 * need not heed 0 (core(5)). PR_SET_DUMPABLE would hide our /proc from our own user and keep debuggers out. Where a gateway before
 * us (upgrade.h) has left one byte, --core-dumps has what the hard limit allows. */
static void limit_core(bool core_dumps)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_CORE, &limit) != 0 || limit.rlim_max == 0 ||
        (core_dumps && limit.rlim_cur != 1))
        return;
    limit.rlim_cur = core_dumps ? limit.rlim_max : 1;
    if (setrlimit(RLIMIT_CORE, &limit) != 0)
        bt_log_warn("gateway", "the limit of core files cannot be changed: %s", strerror(errno));
}

int bt_gateway_open(bt_gateway_t **gateway_p, bt_config_t *config, int argc,
                    const char *const *argv, char *err, size_t err_size)
{
    bt_gateway_t *g = NULL;
    int rc;
    err[0] = '\0';
    bt_mem_open();
    bt_log_set(config->log_level, config->log_format == BT_LOG_FORMAT_JSON, STDERR_FILENO);
    if (config->log_file != NULL && (rc = bt_log_open(config->log_file)) < 0)
        return bt_err_refuse(err, err_size, "--log-file: cannot write %s: %s", config->log_file,
                             strerror(-rc));
    if ((rc = bt_gateway_sandbox(config, err, err_size)) <
        0) /* threads of before would be outside */
        return rc;
    if ((rc = bt_crash_open(config->crash_file, config->loops, err, err_size)) < 0)
        return rc;
    if ((rc = bt_log_start()) < 0)
        bt_log_warn("gateway", "log lines are written by whoever has some: no thread for them: %s",
                    rc == BT_E_NOMEM ? bt_err_text(rc) : strerror(-rc));
    signal(SIGPIPE, SIG_IGN);
    limit_core(config->core_dumps);
    log_warnings(config);
    bt_policy_allow_hosts(config->policy_http_host_count > 0
                              ? (const char *const *) config->policy_http_hosts
                              : NULL);
    if ((rc = bt_gateway_descriptors_begin(config, err, err_size)) < 0 ||
        (rc = allocate(&g, config, argc, argv)) < 0 || (rc = open_budgets(g)) < 0 ||
        (rc = open_control(g)) < 0 || (rc = bt_gateway_identity_open(g, err, err_size)) < 0 ||
        (rc = open_recorder(g, err, err_size)) < 0 ||
        (rc = bt_gateway_audit_open(g, err, err_size)) < 0 ||
        (rc = bt_gateway_tls_open(g, err, err_size)) < 0 ||
        (rc = bind_admin(g, err, err_size)) < 0 ||
        (rc = bt_gateway_transfer_open(g, err, err_size)) < 0 ||
        (rc = bt_gateway_fleet_open(g, err, err_size)) < 0 ||
        (rc = bt_gateway_traces_open(g, err, err_size)) < 0 ||
        (rc = open_loops(g, err, err_size)) < 0 || (rc = bt_gateway_rollout_open(g)) < 0 ||
        (rc = open_reload(g, err, err_size)) < 0 || (rc = open_workers(g, err, err_size)) < 0 ||
        (rc = bt_gateway_kubernetes_open(g, err, err_size)) < 0 ||
        (rc = bt_gateway_descriptors_divide(g, err, err_size)) < 0 ||
        (rc = bt_gateway_memory_check(g, err, err_size)) < 0) {
        if (err[0] == '\0')
            snprintf(err, err_size, "%s", bt_err_text(rc));
        bt_gateway_close(g);
        return rc;
    }
    bt_mem_settle(); /* policies have been tried with fleets of thousands */
    *gateway_p = g;
    return 0;
}

/* ---- running ---- */

/* On the control loop. */
static void on_lost(void *user)
{
    bt_gateway_t *g = user;
    bt_dispatch_shared_worker_lost(&g->shared);
}

/* Likewise. */
static void on_restarted(void *user, bt_worker_t *w)
{
    (void) user;
    bt_prefix_forget((uint32_t) w->id);
}

static int start_serving(bt_gateway_t *g)
{
    char err[BT_CONFIG_ERR_BYTES];
    g->is_listening = !bt_gateway_listens_late();
    int rc = bt_monitor_start(&g->monitor, &g->control, &g->config->monitor);
    if (rc < 0)
        return rc;
    rc = bt_role_switches_new(&g->role_switches, &g->control, g->registry,
                              g->config->monitor.api_key, complete_worker, g);
    if (rc < 0)
        return rc;
    rc = bt_advisor_new(&g->advisor, &g->control, g->registry, &g->config->advisor);
    if (rc == 0 && g->config->role_switch_auto)
        rc =
            bt_role_auto_new(&g->role_auto, &g->control, g->registry, g->advisor, g->role_switches);
    if (rc == 0 && g->config->role_check_ms > 0 && !g->config->monitor.disabled)
        rc = bt_role_reports_new(&g->role_reports, &g->control, g->registry, g->role_switches,
                                 g->config->monitor.api_key, g->config->role_check_ms);
    if (rc < 0)
        return rc;
    bt_monitor_on_lost(g->monitor, on_lost, g);
    bt_monitor_on_restarted(g->monitor, on_restarted, g);
    bt_monitor_set_workers(g->monitor, bt_registry_current(g->registry));
    if ((rc = bt_gateway_fleet_start(g)) < 0 || g->end_asked)
        return rc;
    if ((rc = bt_dns_new(&g->dns, &g->control, g->registry)) < 0 ||
        (rc = give_workers(g, err, sizeof err)) < 0 || (rc = attach_admin(g)) < 0 ||
        (rc = bt_gateway_transfer_start(g)) < 0 || (rc = bt_gateway_workers_file_start(g)) < 0 ||
        (rc = bt_gateway_identity_start(g)) < 0 || g->end_asked)
        return rc;
    bt_gateway_kv_publish(g, bt_registry_current(g->registry));
    g->state = BT_GATEWAY_SERVING;
    g->start_ms = bt_clock_ms();
    for (; g->running_loops < g->loop_count; g->running_loops++)
        if ((rc = bt_gateway_loop_start(&g->loops[g->running_loops], g->is_listening)) < 0)
            return rc;
    bt_gateway_log_start(g);
    bt_reload_start(g->reload);
    bt_gateway_rollout_start(g);
    bt_gateway_kubernetes_start(g);
    bt_gateway_tls_start(g);
    bt_gateway_traces_start(g);
    bt_timer_start(&g->startup, BT_GATEWAY_STARTUP_MS);
    if ((rc = bt_dns_configure(g->dns, &g->config->dns)) < 0)
        return rc;
    return g->is_listening ? bt_gateway_begin_to_serve(g) : 0;
}

static void end_control(bt_loop_t *control, bt_mail_t *envelope)
{
    (void) envelope;
    bt_loop_stop(control);
}

static void end_share(void *gateway)
{
    bt_gateway_t *g = gateway;
    bt_loop_stop(&g->control);
}

static void close_traces(void *gateway)
{
    bt_gateway_traces_close(gateway, end_share);
}

static void close_share(void *gateway)
{
    bt_gateway_fleet_close(gateway, close_traces);
}

/* What lives on the control loop closes here, so that its handles get the turns they need, and its threads find it when they
 * end. */
static void close_control_parts(bt_gateway_t *g)
{
    bt_mail_t last;
    detach_admin(g);
    bt_gateway_workers_file_stop(g);
    bt_gateway_identity_stop(g);
    bt_gateway_tls_stop(g);
    bt_dns_free(g->dns);
    g->dns = NULL;
    bt_gateway_kubernetes_stop(g);
    bt_timer_stop(&g->grace);
    bt_timer_stop(&g->startup);
    bt_gateway_watchdog_stop(g);
    bt_gateway_signals_stop(g);
    bt_reload_stop(g->reload);
    bt_gateway_rollout_close(g);
    bt_role_auto_free(g->role_auto);
    g->role_auto = NULL;
    bt_role_reports_free(g->role_reports);
    g->role_reports = NULL;
    bt_advisor_free(g->advisor);
    g->advisor = NULL;
    bt_role_switches_free(g->role_switches);
    g->role_switches = NULL;
    if (g->monitor != NULL)
        bt_monitor_stop(g->monitor);
    g->monitor = NULL;
    bt_gateway_transfer_close(g, close_share);
    bt_loop_run(&g->control);
    bt_loop_post(&g->control, &last, end_control);
    bt_loop_run(&g->control);
}

int bt_gateway_run(bt_gateway_t *g)
{
    if (g->end_asked)
        return 0;
    int rc = start_serving(g);
    if (rc < 0) {
        bt_log_error("gateway", "cannot start: %s", bt_err_text(rc));
        g->exit_code = 1;
        bt_gateway_stop(g);
    }
    if (g->quiet_loops < g->running_loops)
        bt_loop_run(&g->control);
    if (g->config->ready_file != NULL && rc == 0 && g->is_listening && !g->is_replaced)
        (void) unlink(g->config->ready_file);
    bt_log_info("gateway", "ended");
    return g->exit_code;
}

static void free_gateway(bt_gateway_t *g)
{
    for (unsigned i = 0; i < g->loop_count; i++)
        bt_gateway_loop_close(&g->loops[i]);
    if (g->has_control) {
        close_control_parts(g);
        bt_gateway_notify_close(g);
        bt_loop_fini(&g->control);
    }
    bt_gateway_kv_close(g);
    bt_reload_free(g->reload);
    if (g->has_shared)
        bt_recorder_close(g->shared.recorder);
    bt_gateway_traces_free(g);
    bt_gateway_audit_close(g);
    bt_registry_free(g->registry);
    bt_gateway_fleet_free(g);
    bt_gateway_set_fleet_config(g, g->config);
    bt_gateway_identity_free(g);
    if (g->has_shared)
        bt_dispatch_shared_fini(&g->shared);
    bt_unfinished_free(g->unfinished);
    bt_gateway_tls_free(g);
    bt_budget_free(g->budget);
    bt_budget_free(g->admin_budget);
    free(g->program);
    free(g->group.loops);
    free(g->dispatchers);
    free(g->reload_loops);
    free(g->loops);
    free(g);
    bt_pages_thread_fini();
}

void bt_gateway_close(bt_gateway_t *g)
{
    if (g != NULL)
        free_gateway(g);
    bt_log_stop(LAST_LINES_MS);
    bt_crash_close();
}
