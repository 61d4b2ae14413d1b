/* What signals do.
 *
 *   STARTING -> SERVING --SIGTERM, SIGINT, replaced--> DRAINING --all loops idle, or grace over--> STOPPING -> run returns, exit 0
 *                  |                            |
 *                SIGHUP: reload                 +--second SIGTERM, SIGINT--> STOPPING, exit 1
 *
 * A reload is all or nothing: the new configuration is read aside, checked by the same code as at start, its policies are tried,
 * and only then it is given to the registry, in the moment in which its policies begin to serve. What cannot change while running is compared row by row with what is running and named.
 */
#include "gateway/process.h"

#include "admin/admin.h"
#include "base/err.h"
#include "base/log.h"
#include "config/check.h"
#include "config/flag.h"
#include "gateway/crash.h"
#include "gateway/fleet.h"
#include "gateway/identity.h"
#include "gateway/kubernetes.h"
#include "gateway/notify.h"
#include "gateway/rollout.h"
#include "gateway/tls.h"
#include "gateway/transfer.h"
#include "gateway/upgrade.h"
#include "reload/reload.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define LAST_MS 20000U /* from the drain's end to the process's, at most */

/* ---- stopping ---- */

void bt_gateway_stop(bt_gateway_t *g)
{
    if (g->state == BT_GATEWAY_STOPPING)
        return;
    if (g->state != BT_GATEWAY_DRAINING)
        bt_gateway_notify(g, "STOPPING=1\nSTATUS=ending");
    bt_gateway_upgrade_stop(g);
    g->state = BT_GATEWAY_STOPPING;
    bt_timer_stop(&g->grace);
    bt_timer_stop(&g->startup);
    for (unsigned i = 0; i < g->running_loops; i++)
        bt_gateway_loop_stop(&g->loops[i]);
}

static void on_share_closed(void *arg)
{
    bt_gateway_t *g = arg;
    bt_loop_stop(&g->control);
}

static void on_transfer_closed(void *arg)
{
    bt_gateway_t *g = arg;
    bt_gateway_fleet_close(g, on_share_closed);
}

static void on_admin_closed(void *arg)
{
    bt_gateway_t *g = arg;
    bt_gateway_transfer_close(g, on_transfer_closed);
}

/* No loop has a client any more: nobody can ask the admin side for anything. Its own mail to the loops still finds them
 * turning. */
void bt_gateway_on_quiet(bt_gateway_t *g)
{
    if (++g->quiet_loops < g->running_loops)
        return;
    if (g->admin == NULL) {
        on_admin_closed(g);
        return;
    }
    bt_admin_close(g->admin, on_admin_closed, g);
    g->admin = NULL;
}

void bt_gateway_on_idle(bt_gateway_t *g)
{
    if (++g->idle_loops < g->loop_count || g->state != BT_GATEWAY_DRAINING)
        return;
    bt_log_info("gateway", "drained");
    bt_gateway_stop(g);
}

void bt_gateway_grace_over(bt_timer_t *timer)
{
    bt_gateway_t *g = bt_container_of(timer, bt_gateway_t, grace);
    bt_log_warn("gateway", "requests still run after %llu ms of draining, they are cut",
                (unsigned long long) g->config->drain_ms);
    bt_gateway_stop(g);
}

static void begin_drain(bt_gateway_t *g, const char *signal_name)
{
    bt_gateway_upgrade_stop(g);
    g->state = BT_GATEWAY_DRAINING;
    bt_reload_freeze(g->reload);
    bt_log_info("gateway", "%s: draining, at most %llu ms", signal_name,
                (unsigned long long) g->config->drain_ms);
    if (!g->is_replaced)
        bt_gateway_notify(g, "STOPPING=1\nEXTEND_TIMEOUT_USEC=%llu\nSTATUS=draining",
                          ((unsigned long long) g->config->drain_ms + LAST_MS) * 1000U);
    atomic_store(&g->shared.draining, true);
    bt_dns_stop(g->dns);
    bt_gateway_fleet_drain(g);
    for (unsigned i = 0; i < g->loop_count; i++)
        bt_gateway_loop_drain(&g->loops[i]);
    bt_timer_start(&g->grace, g->config->drain_ms);
}

void bt_gateway_replaced(bt_gateway_t *g, int pid)
{
    char what[48];

    if (g->state != BT_GATEWAY_SERVING)
        return;
    snprintf(what, sizeof what, "process %d serves in our place", pid);
    g->is_replaced = true;
    atomic_store(&g->shared.replaced, true);
    bt_admin_drain(g->admin);
    begin_drain(g, what);
}

static void on_end_signal(uv_signal_t *handle, int number)
{
    bt_gateway_t *g = handle->data;
    const char *name = number == SIGINT ? "SIGINT" : "SIGTERM";
    if (g->state == BT_GATEWAY_SERVING) {
        begin_drain(g, name);
    } else if (g->state == BT_GATEWAY_DRAINING) {
        bt_log_warn("gateway", "%s again: ending at once", name);
        g->exit_code = 1;
        bt_gateway_stop(g);
    } else if (g->state == BT_GATEWAY_STARTING) {
        g->end_asked = true;
        bt_loop_stop(&g->control); /* it waits for the store (gateway/fleet.c) */
    }
}

/* ---- reload ---- */

static void report_restart_settings(const bt_config_t *running, const bt_config_t *wanted)
{
    for (unsigned i = 0; i < bt_flag_count; i++) {
        const bt_flag_t *flag = &bt_flags[i];
        if (flag->kind == BT_FLAG_SETTING && !flag->live &&
            !bt_option_same(&flag->option, running, wanted))
            bt_log_warn("gateway", "%s has changed: it needs a restart", flag->name);
    }
}

/* Another file is followed from the next start on; until then this one says who its workers are. */
static bool is_followed(const char *now, const char *wanted)
{
    return now != NULL && wanted != NULL && strcmp(now, wanted) == 0;
}

void bt_gateway_apply_config(bt_gateway_t *g, bt_config_t *wanted)
{
    char err[BT_CONFIG_ERR_BYTES] = "";
    int rc = bt_config_apply_workers(wanted, g->registry, err, sizeof err);

    if (rc < 0) {
        bt_log_error("gateway", "reload refused, the workers stay as they were: %s", err);
        bt_str_copy(g->apply_error, sizeof g->apply_error, err);
        bt_config_fini(wanted);
        free(wanted);
        return;
    }
    if (is_followed(g->config->workers_file, wanted->workers_file) &&
        bt_config_apply_found(wanted, wanted->workers_file, &wanted->found, g->registry, err,
                              sizeof err) < 0)
        bt_log_error("gateway", "the workers file's workers stay as they were: %s", err);
    __atomic_store_n(&bt_log_level_now, (int) wanted->log_level, __ATOMIC_RELAXED);
    if ((rc = bt_dns_configure(g->dns, &wanted->dns)) < 0)
        bt_log_error("gateway", "workers by DNS stay as they were, and are not followed: %s",
                     bt_err_text(rc));
    report_restart_settings(g->config, wanted);
    bt_gateway_identity_again(g);
    bt_gateway_transfer_set_token(g, wanted->transfer_tokens);
    bt_gateway_limits_set(g, wanted);
    bt_gateway_set_fleet_config(g, wanted);
    bt_gateway_kubernetes_again(g);
    bt_log_info("gateway", "reloaded: epoch %llu of the workers",
                (unsigned long long) bt_registry_current(g->registry)->epoch);
}

/* Policies are tried elsewhere, where they may take their time (reload/reload.h). */
void bt_gateway_reload(bt_gateway_t *g)
{
    char err[BT_CONFIG_ERR_BYTES] = "";
    bt_config_t *wanted = calloc(1, sizeof *wanted);
    bt_gateway_notify_reloading(g);
    int rc =
        wanted != NULL ? bt_config_load(wanted, g->argc, g->argv, err, sizeof err) : BT_E_NOMEM;
    if (rc == 0 && (rc = bt_config_check_workers(wanted, err, sizeof err)) < 0)
        bt_config_fini(wanted);
    if (rc < 0) {
        free(wanted);
        bt_log_error("gateway", "reload refused, everything stays as it was: %s",
                     rc == BT_E_NOMEM ? bt_err_text(rc) : err);
        bt_gateway_audit_refused(g, rc == BT_E_NOMEM ? bt_err_text(rc) : err);
        bt_gateway_notify(g, "READY=1\nSTATUS=a reload was refused: see the log");
        return;
    }
    bt_reload_configure(g->reload, wanted);
}

static void on_hup(uv_signal_t *handle, int number)
{
    bt_gateway_t *g = handle->data;
    (void) number;
    bt_gateway_audit_reopen(g);
    if (g->state != BT_GATEWAY_SERVING)
        return;
    bt_gateway_tls_again(g);
    bt_gateway_reload(g);
}

/* ---- files that were renamed ---- */

static void on_usr1(uv_signal_t *handle, int number)
{
    bt_gateway_t *g = handle->data;
    const int rc = bt_log_reopen();
    (void) number;
    bt_recorder_reopen(g->shared.recorder);
    bt_gateway_audit_reopen(g);
    const int crash_rc = bt_crash_reopen();
    if (crash_rc < 0)
        bt_log_error("gateway", "SIGUSR1: cannot open %s, a crash is told where it was: %s",
                     g->config->crash_file, strerror(-crash_rc));
    if (rc < 0)
        bt_log_error("gateway", "SIGUSR1: cannot open %s, its lines go where they went: %s",
                     g->config->log_file, strerror(-rc));
    else
        bt_log_info("gateway", "SIGUSR1: log, audit, record and crash files are opened again");
}

/* ---- another process ---- */

static void on_usr2(uv_signal_t *handle, int number)
{
    bt_gateway_t *g = handle->data;
    (void) number;
    if (g->state == BT_GATEWAY_SERVING && g->is_listening)
        bt_gateway_upgrade(g);
}

/* ---- life ---- */

int bt_gateway_signals_start(bt_gateway_t *g)
{
    static const struct {
        int number;
        uv_signal_cb act;
    } all[BT_GATEWAY_SIGNALS] = {{SIGTERM, on_end_signal},
                                 {SIGINT, on_end_signal},
                                 {SIGHUP, on_hup},
                                 {SIGUSR1, on_usr1},
                                 {SIGUSR2, on_usr2}};
    for (unsigned i = 0; i < BT_GATEWAY_SIGNALS; i++) {
        int rc = uv_signal_init(&g->control.uv, &g->signals[i]);
        if (rc < 0)
            return rc;
        g->signals[i].data = g;
        rc = uv_signal_start(&g->signals[i], all[i].act, all[i].number);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void bt_gateway_signals_stop(bt_gateway_t *g)
{
    for (unsigned i = 0; i < BT_GATEWAY_SIGNALS; i++)
        if (g->signals[i].data != NULL && !uv_is_closing((uv_handle_t *) &g->signals[i]))
            uv_close((uv_handle_t *) &g->signals[i], NULL);
}
