/* audit.c - changes that no request asks for: SIGHUP, files that are followed, keys, policies taken back, the fleet's set, switches of roles that
 * have ended. One job runs at a time, and a switch ends within a call: one change of each is enough. */
#include "admin/call/audit.h"

#include "base/err.h"
#include "gateway/process.h"

#include <stdio.h>
#include <stdlib.h>

struct bt_gateway_audit {
    bt_audit_t *log;
    bt_audit_change_t job, role;
};

static void on_role(void *user, const bt_worker_t *w, enum bt_role to, bool is_end, const char *why)
{
    const bt_gateway_t *g = user;
    bt_audit_change_t *change = &g->audit->role;

    if (is_end) {
        bt_audit_end(change, 0, bt_str(why));
        return;
    }
    *change = (bt_audit_change_t){.audit = g->audit->log, .what = "role", .via = "role_switch"};
    snprintf(change->object, sizeof change->object, "%s", w->name);
    snprintf(change->args, sizeof change->args, "to=%s", bt_role_name(to));
    bt_audit_begin(change);
}

static const char *via_of(const bt_reload_note_t *note)
{
    return strcmp(note->why, "SIGHUP") == 0 ? "signal" : note->why;
}

void bt_gateway_audit_note(void *gateway, const bt_reload_note_t *note)
{
    bt_gateway_t *g = gateway;
    const bool is_signal = strcmp(note->why, "SIGHUP") == 0;

    if (g->audit == NULL)
        return;
    bt_audit_change_t *change = &g->audit->job;
    if (!note->is_end) {
        *change =
            (bt_audit_change_t){.audit = g->audit->log, .what = "reload", .via = via_of(note)};
        bt_str_copy(change->object, sizeof change->object, note->name);
        bt_audit_begin(change);
        return;
    }
    if (note->is_told || (!is_signal && !note->is_changed && note->rc == 0))
        return; /* whoever asked for it has written it; or a file was looked at, and is the same */
    bt_audit_end(change, 0, bt_str(g->apply_error[0] != '\0' ? g->apply_error : note->err));
    g->apply_error[0] = '\0';
}

void bt_gateway_audit_refused(bt_gateway_t *g, const char *why)
{
    bt_audit_change_t change = {.what = "reload", .via = "signal"};

    if (g->audit == NULL)
        return;
    change.audit = g->audit->log;
    bt_audit_begin(&change);
    bt_audit_end(&change, 0, bt_str(why));
}

void bt_gateway_audit_keys(bt_gateway_t *g, const char *from, bt_audit_change_t *change)
{
    *change = (bt_audit_change_t){
        .audit = g->audit != NULL ? g->audit->log : NULL, .what = "keys", .via = "file"};
    bt_str_copy(change->object, sizeof change->object, from);
    bt_audit_begin(change);
}

int bt_gateway_audit_open(bt_gateway_t *g, char *err, size_t err_size)
{
    bt_audit_t *log;
    int rc = bt_audit_open(&log, g->config->audit_log, err, err_size);

    if (rc < 0 || log == NULL)
        return rc;
    if ((g->audit = calloc(1, sizeof *g->audit)) == NULL) {
        bt_audit_close(log);
        return BT_E_NOMEM;
    }
    g->audit->log = log;
    return 0;
}

bt_audit_t *bt_gateway_audit_start(bt_gateway_t *g)
{
    if (g->audit == NULL)
        return NULL;
    bt_audit_set_sources(
        g->audit->log,
        &(bt_audit_sources_t){.registry = g->registry, .reload = g->reload, .shared = &g->shared});
    bt_role_switches_on_note(g->role_switches, on_role, g);
    return g->audit->log;
}

void bt_gateway_audit_reopen(bt_gateway_t *g)
{
    if (g->audit != NULL)
        bt_audit_reopen(g->audit->log);
}

void bt_gateway_audit_close(bt_gateway_t *g)
{
    if (g->audit != NULL)
        bt_audit_close(g->audit->log);
    free(g->audit);
    g->audit = NULL;
}
