/* A line is made when a change is over, with the state before and after it as digests: a reader sees that two changes follow on each other
 * when the one's `after` is the other's `before`, and that something else (discovery, engines that register) came between where it is
 * not. Digests hold no keys of workers, and of clients' keys only their ids, which do not lead back to them.
 *
 *   {"time":"...","audit":"POST /fleet/rollback","object":null,"args":"to=7","by":"admin_key","address":"10.0.0.7","via":"admin_port",
 *    "status":200,"error":null,"changed":["policies"],"before":{"workers":"...","policies":"...","keys":"..."},"after":{...}}
 */
#include "admin/call/audit.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/text.h"

#include <stdlib.h>

struct bt_audit {
    bt_recorder_t *file; /* NULL = stderr */
    bt_audit_sources_t sources;
};

/* ---- digests ---- */

static void put_worker(bt_text_t *t, const bt_worker_pool_t *pool, const bt_worker_t *w)
{
    bt_text_printf(t, "%s\n%s\n%s\n%d %s %s %d %d\n", pool->spec.name, w->name, w->spec.url,
                   w->spec.dp_rank, bt_role_name(w->spec.role),
                   w->spec.connector != NULL ? w->spec.connector : "-",
                   atomic_load_explicit(&w->draining, memory_order_relaxed),
                   atomic_load_explicit(&w->switching, memory_order_relaxed));
}

static void put_workers(bt_text_t *t, const bt_workers_t *workers)
{
    for (unsigned i = 0; i < workers->pool_count; i++)
        for (unsigned j = 0; j < workers->pools[i].all.count; j++)
            put_worker(t, &workers->pools[i], workers->pools[i].all.items[j]);
}

static void put_keys(bt_text_t *t, const bt_dispatch_shared_t *shared)
{
    if (shared->identities != NULL)
        bt_identities_describe(shared->identities, t);
}

/* The text's, which is freed; "" where memory is short. */
static void digest(bt_text_t *t, char out[BT_SHA1_HEX + 1])
{
    out[0] = '\0';
    if (!t->failed)
        bt_sha1_hex(bt_text_str(t), out);
    bt_text_fini(t);
}

static void look(const bt_audit_t *audit, bt_audit_state_t *state_p)
{
    const bt_audit_sources_t *from = &audit->sources;
    bt_text_t t;

    bt_text_init(&t);
    if (from->registry != NULL)
        put_workers(&t, bt_registry_current(from->registry));
    digest(&t, state_p->workers);
    bt_text_init(&t);
    if (from->reload != NULL)
        bt_reload_fingerprint(from->reload, &t);
    digest(&t, state_p->policies);
    bt_text_init(&t);
    if (from->shared != NULL)
        put_keys(&t, from->shared);
    digest(&t, state_p->keys);
}

/* ---- the line ---- */

static void put_state(bt_text_t *t, const char *name, const bt_audit_state_t *state)
{
    bt_text_printf(t, ",\"%s\":{\"workers\":\"%s\",\"policies\":\"%s\",\"keys\":\"%s\"}", name,
                   state->workers, state->policies, state->keys);
}

static void put_changed(bt_text_t *t, const bt_audit_state_t *a, const bt_audit_state_t *b)
{
    const struct {
        const char *name;
        bool differs;
    } parts[] = {{"workers", strcmp(a->workers, b->workers) != 0},
                 {"policies", strcmp(a->policies, b->policies) != 0},
                 {"keys", strcmp(a->keys, b->keys) != 0}};
    const char *comma = "";

    bt_text_puts(t, ",\"changed\":[");
    for (unsigned i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].differs) {
            bt_text_printf(t, "%s\"%s\"", comma, parts[i].name);
            comma = ",";
        }
    bt_text_puts(t, "]");
}

static void put_cut(bt_text_t *t, const char *name, bt_str_t value)
{
    bt_text_printf(t, ",\"%s\":", name);
    if (value.n == 0)
        bt_text_puts(t, "null");
    else
        bt_text_json_cut(t, value, 512);
}

static void write_line(const bt_audit_t *audit, bt_str_t line)
{
    if (audit->file == NULL)
        bt_log_line(line);
    else if (!bt_recorder_put(audit->file, line))
        bt_log_error("audit", "a line is lost, too many wait for the file: %.*s", BT_STR_ARG(line));
}

/* ---- the public verbs ---- */

void bt_audit_begin(bt_audit_change_t *change)
{
    if (change->audit != NULL)
        look(change->audit, &change->before);
}

void bt_audit_end(bt_audit_change_t *change, unsigned status, bt_str_t error)
{
    bt_audit_state_t after;
    char when[32];
    bt_text_t t;

    if (change->audit == NULL)
        return;
    look(change->audit, &after);
    bt_clock_iso8601(bt_clock_wall_ms(), when, sizeof when);
    bt_text_init(&t);
    bt_text_printf(&t, "{\"time\":\"%s\",\"audit\":\"%s%s%s\"", when,
                   change->method != NULL ? change->method : "", change->method != NULL ? " " : "",
                   change->what);
    put_cut(&t, "object", bt_str(change->object));
    put_cut(&t, "args", bt_str(change->args));
    bt_text_json_member(&t, "by", change->by);
    put_cut(&t, "address", change->address);
    bt_text_json_member(&t, "via", change->via);
    bt_text_printf(&t, ",\"status\":%u", status);
    put_cut(&t, "error", error);
    put_changed(&t, &change->before, &after);
    put_state(&t, "before", &change->before);
    put_state(&t, "after", &after);
    bt_text_puts(&t, "}");
    if (t.failed)
        bt_log_error("audit", "a line is lost, memory is short: %s of %.*s", change->what,
                     BT_STR_ARG(change->address));
    else
        write_line(change->audit, bt_text_str(&t));
    bt_text_fini(&t);
    change->audit = NULL;
}

void bt_audit_set_sources(bt_audit_t *audit, const bt_audit_sources_t *sources)
{
    bt_audit_change_t start = {.audit = audit, .what = "start"};

    if (audit == NULL)
        return;
    audit->sources = *sources;
    bt_audit_begin(&start);
    bt_audit_end(&start, 0, BT_STR(""));
}

void bt_audit_reopen(bt_audit_t *audit)
{
    if (audit != NULL)
        bt_recorder_reopen(audit->file);
}

void bt_audit_stats(const bt_audit_t *audit, bt_recorder_stats_t *stats_p)
{
    bt_recorder_stats(audit != NULL ? audit->file : NULL, stats_p);
}

int bt_audit_open(bt_audit_t **audit_p, const char *where, char *err, size_t err_size)
{
    const bool is_file = where != NULL && strcmp(where, "stderr") != 0;
    const bt_record_config_t config = {.file = is_file ? where : NULL,
                                       .what = "audit",
                                       .flag = "--audit-log",
                                       .max_bytes = UINT64_MAX};
    bt_audit_t *audit;
    int rc;

    *audit_p = NULL;
    if (where == NULL)
        return 0;
    if ((audit = calloc(1, sizeof *audit)) == NULL)
        return BT_E_NOMEM;
    if ((rc = bt_recorder_open(&audit->file, &config, err, err_size)) < 0) {
        free(audit);
        return rc;
    }
    *audit_p = audit;
    return 0;
}

void bt_audit_close(bt_audit_t *audit)
{
    if (audit == NULL)
        return;
    bt_recorder_close(audit->file);
    free(audit);
}
