/* What the operator sees and may do: GET, PUT and DELETE of policies, and the figures for metrics. */
#include "reload/reload_impl.h"

#include "base/err.h"
#include "base/sha1.h"

#include <stdio.h>

/* ---- GET /policies ---- */

static void put_string(bt_text_t *out, const char *key, const char *value)
{
    bt_text_printf(out, ",\"%s\":", key);
    if (value == NULL || value[0] == '\0')
        bt_text_puts(out, "null");
    else
        bt_text_json_str(out, bt_str(value));
}

static const char *state_of(const bt_reload_part_t *part)
{
    if (part->selection == NULL)
        return "none";
    if (part->fallen_back)
        return "fallen_back";
    return part->selection == part->good ? "good" : "on_probation";
}

void bt_reload_describe_set(const bt_reload_t *reload, bt_text_t *out)
{
    const bt_policy_set_t *set = reload->set;

    if (set == NULL || set->number == 0) {
        bt_text_puts(out, "null");
        return;
    }
    bt_text_printf(out, "{\"set\":%llu,\"pinned\":%s,\"rules\":%s,\"policies\":[",
                   (unsigned long long) set->number, reload->is_pinned ? "true" : "false",
                   set->rules != NULL ? "true" : "false");
    for (unsigned i = 0; i < set->count; i++) {
        bt_text_puts(out, i > 0 ? "," : "");
        bt_text_json_str(out, bt_str(set->sources[i]->name));
    }
    bt_text_puts(out, "]}");
}

/* Why this text serves and not another of the same name. */
static void put_reason(const bt_reload_t *reload, const bt_reload_part_t *part, char *out,
                       size_t size)
{
    const enum bt_source_kind kind = part->selection->source->kind;
    const bool is_both = bt_policy_set_find(reload->set, part->asked) != NULL;

    if (part->fallen_back)
        snprintf(out, size, "what is asked for is gone; its last text serves on from memory");
    else if (kind == BT_SOURCE_FLEET)
        snprintf(out, size,
                 "of set %llu of the fleet; it goes before files and shipped policies of its name "
                 "until it is withdrawn (DELETE /admin/fleet/policies/%s)",
                 (unsigned long long) reload->set->number, part->selection->source->name);
    else if (kind == BT_SOURCE_ADMIN && is_both)
        snprintf(out, size, "put by this replica's admin, which goes first while it is pinned");
    else if (kind == BT_SOURCE_ADMIN)
        snprintf(out, size,
                 "put by this replica's admin; it goes before files until DELETE "
                 "/admin/policies/%s",
                 part->selection->source->name);
    else if (kind == BT_SOURCE_SHIPPED)
        snprintf(out, size, "shipped with baton; no file of this name in --policy-dir");
    else
        snprintf(out, size, "a file; the fleet's set does not name it");
}

static void describe_part(const bt_reload_t *reload, const bt_reload_pool_t *pool,
                          enum bt_policy_slot slot, bt_text_t *out)
{
    char why[256] = "";
    const bt_reload_part_t *part = &pool->parts[slot];
    const bt_reload_selection_t *selection = part->selection;

    bt_text_puts(out, "{\"pool\":");
    bt_text_json_str(out, bt_str(pool->name));
    put_string(out, "part", bt_policy_slot_name(slot));
    put_string(out, "asked", part->asked);
    put_string(out, "name", selection != NULL ? selection->name : NULL);
    put_string(out, "version", selection != NULL ? selection->version : NULL);
    put_string(out, "source",
               selection != NULL ? bt_source_kind_name(selection->source->kind) : NULL);
    put_string(out, "path", selection != NULL ? selection->source->path : NULL);
    bt_text_puts(out, ",\"params\":");
    if (selection != NULL && selection->params != NULL)
        bt_value_json(selection->params, out);
    else
        bt_text_puts(out, "null");
    bt_text_printf(out, ",\"shadow\":%s", pool->is_shadow ? "true" : "false");
    bt_text_printf(out, ",\"generation\":%llu", (unsigned long long) part->born);
    put_string(out, "state", state_of(part));
    if (selection != NULL)
        put_reason(reload, part, why, sizeof why);
    put_string(out, "why", why);
    put_string(out, "error", part->error);
    bt_text_puts(out, "}");
}

/* Names that a pool could ask for. */
static void list_dir(const char *path, bt_text_t *out)
{
    const char *comma = "";
    uv_dirent_t entry;
    uv_fs_t found;

    if (path == NULL)
        return;
    (void) uv_fs_scandir(NULL, &found, path, 0, NULL); /* sorted; an error lists nothing */
    while (uv_fs_scandir_next(&found, &entry) == 0) {
        bt_str_t name = bt_policy_base_name(entry.name);
        if (name.n == strlen(entry.name) || entry.name[0] == '.')
            continue;
        bt_text_puts(out, comma);
        bt_text_json_str(out, name);
        comma = ",";
    }
    uv_fs_req_cleanup(&found);
}

void bt_reload_describe(const bt_reload_t *reload, bt_text_t *out)
{
    const char *comma = "";

    bt_text_printf(out, "{\"generation\":%llu,\"reloading\":%s,\"step\":\"%s\",\"pools\":[",
                   (unsigned long long) reload->serving, reload->job != NULL ? "true" : "false",
                   bt_reload_step_name(reload->step));
    for (unsigned i = 0; i < reload->now.pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            if (reload->now.pools[i].parts[s].asked == NULL)
                continue;
            bt_text_puts(out, comma);
            describe_part(reload, &reload->now.pools[i], (enum bt_policy_slot) s, out);
            comma = ",";
        }
    bt_text_puts(out, "],\"fleet\":");
    bt_reload_describe_set(reload, out);
    bt_text_puts(out, ",\"put\":[");
    comma = "";
    for (const bt_list_t *it = reload->texts.next; it != &reload->texts; it = it->next) {
        bt_text_puts(out, comma);
        bt_text_json_str(out, bt_str(bt_container_of(it, bt_reload_put_t, link)->source->name));
        comma = ",";
    }
    bt_text_puts(out, "],\"dir\":[");
    list_dir(reload->config.first->policy_dir, out);
    bt_text_puts(out, "],\"shipped\":[");
    const char *const *names = bt_policy_embedded_names();
    for (unsigned i = 0; names[i] != NULL; i++) {
        bt_text_puts(out, i > 0 ? "," : "");
        bt_text_json_str(out, bt_str(names[i]));
    }
    bt_text_puts(out, "]}\n");
}

/* ---- GET /policies/<name> ---- */

static const bt_policy_source_t *find_serving(const bt_reload_t *reload, const char *name)
{
    for (unsigned i = 0; i < reload->now.pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            const bt_reload_part_t *part = &reload->now.pools[i].parts[s];
            if (part->selection != NULL && (strcmp(part->selection->source->name, name) == 0 ||
                                            strcmp(part->asked, name) == 0))
                return part->selection->source;
        }
    return NULL;
}

static const bt_policy_source_t *find_put(const bt_reload_t *reload, const char *name)
{
    for (const bt_list_t *it = reload->texts.next; it != &reload->texts; it = it->next) {
        const bt_policy_source_t *source = bt_container_of(it, bt_reload_put_t, link)->source;
        if (strcmp(source->name, name) == 0)
            return source;
    }
    return NULL;
}

bool bt_reload_put_code(const bt_reload_t *reload, bt_str_t name, bt_text_t *out)
{
    const bt_policy_source_t *source;
    bt_policy_source_t *opened = NULL;
    char z[256], err[BT_POLICY_ERROR_BYTES];

    if (name.n >= sizeof z)
        return false;
    snprintf(z, sizeof z, "%.*s", BT_STR_ARG(name));
    source = find_serving(reload, z);
    if (source == NULL)
        source = find_put(reload, z);
    if (source == NULL && !bt_policy_is_path(z) && /* a path could be any file's */
        bt_policy_source_open(&opened, z, reload->config.first->policy_dir, err, sizeof err) == 0)
        source = opened;
    if (source != NULL)
        bt_text_put(out, (bt_str_t){source->code, source->size});
    bt_policy_source_unref(opened);
    return source != NULL;
}

/* ---- GET /rules ---- */

void bt_reload_describe_rules(const bt_reload_t *reload, bt_text_t *out)
{
    const char *file = bt_reload_rules_path(reload, *reload->config.current);

    bt_text_printf(out, "{\"generation\":%llu", (unsigned long long) reload->serving);
    put_string(out, "file", file);
    put_string(out, "error", reload->rules_error);
    bt_text_puts(out, ",\"rules\":");
    bt_rules_describe(reload->now.rules, out);
    bt_text_puts(out, "}\n");
}

/* ---- for the audit log ---- */

static void put_source(bt_text_t *out, const bt_policy_source_t *source)
{
    char hash[BT_SHA1_HEX + 1];

    bt_sha1_hex((bt_str_t){source->code, source->size}, hash);
    bt_text_printf(out, "%s %s %s\n", source->name, bt_source_kind_name(source->kind), hash);
}

static void put_params(bt_text_t *out, const bt_value_t *params)
{
    if (params != NULL)
        bt_value_json(params, out);
    bt_text_puts(out, "\n");
}

void bt_reload_fingerprint(const bt_reload_t *reload, bt_text_t *out)
{
    for (unsigned i = 0; i < reload->now.pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            const bt_reload_part_t *part = &reload->now.pools[i].parts[s];
            bt_text_printf(out, "%s %u %s\n", reload->now.pools[i].name, s,
                           part->asked != NULL ? part->asked : "-");
            if (part->selection == NULL)
                continue;
            put_source(out, part->selection->source);
            put_params(out, part->selection->params);
        }
    bt_rules_fingerprint(reload->now.rules, out);
    for (const bt_list_t *it = reload->texts.next; it != &reload->texts; it = it->next)
        put_source(out, bt_container_of(it, bt_reload_put_t, link)->source);
    bt_reload_describe_set(reload, out);
    for (unsigned i = 0; reload->set != NULL && i < reload->set->count; i++)
        put_source(out, reload->set->sources[i]);
}

void bt_reload_note(bt_reload_t *reload, const bt_reload_note_t *end)
{
    const bt_reload_job_t *job = reload->job;
    bt_reload_note_t note = end != NULL ? *end : (bt_reload_note_t){0};

    if (reload->config.note == NULL || bt_reload_job_is_try(job) || reload->is_closing)
        return;
    note.is_end = end != NULL;
    note.why = job->why;
    note.name = job->name;
    note.is_told = job->done != NULL;
    reload->config.note(reload->config.user, &note);
}

/* ---- PUT, DELETE ---- */

static void change(bt_reload_t *reload, enum bt_reload_job_kind kind, bt_str_t name, bt_str_t text,
                   bool is_dry_run, bt_reload_done_cb done, void *arg)
{
    bt_reload_job_t *job = NULL;
    char path[128], called[96];
    int rc = reload->is_serving && !reload->is_closing ? 0 : BT_E_AGAIN;

    snprintf(called, sizeof called, "%.*s", BT_STR_ARG(name));
    if (rc == 0 && kind == BT_JOB_PUT && !reload->is_pinned &&
        bt_policy_set_find(reload->set, called) != NULL) {
        bt_text_t why;
        bt_text_init(&why);
        bt_text_printf(
            &why,
            "set %llu of the fleet has a policy %s: put it for all (PUT "
            "/admin/fleet/policies/%s), or pin this replica first (POST /admin/fleet/pin)",
            (unsigned long long) reload->set->number, called, called);
        done(arg, 409, bt_text_str(&why));
        bt_text_fini(&why);
        return;
    }
    if (rc == 0)
        rc = bt_reload_job_add(reload, kind, "admin", &job);

    if (rc == 0) {
        snprintf(job->name, sizeof job->name, "%.*s", BT_STR_ARG(name));
        snprintf(path, sizeof path, "admin/%s.lua", job->name);
        if (kind == BT_JOB_PUT)
            rc = bt_policy_source_new(&job->text, BT_SOURCE_ADMIN, job->name, path, text);
        if (rc < 0) {
            bt_list_remove(&job->link);
            bt_reload_job_free(job);
        }
    }
    if (rc < 0) {
        done(arg, 503, bt_str(rc == BT_E_AGAIN ? "the gateway is ending" : bt_err_text(rc)));
        return;
    }
    job->is_dry_run = is_dry_run;
    job->done = done;
    job->arg = arg;
    bt_reload_jobs_run(reload);
}

void bt_reload_put(bt_reload_t *reload, bt_str_t name, bt_str_t code, bool is_dry_run,
                   bt_reload_done_cb done, void *arg)
{
    change(reload, BT_JOB_PUT, name, code, is_dry_run, done, arg);
}

void bt_reload_remove(bt_reload_t *reload, bt_str_t name, bt_reload_done_cb done, void *arg)
{
    change(reload, BT_JOB_DELETE, name, BT_STR(""), false, done, arg);
}

/* The reload goes on: half of the loops may have it already. */
void bt_reload_cancel(bt_reload_t *reload, void *arg)
{
    bt_list_t *it, *tmp;

    if (reload->job != NULL && reload->job->arg == arg)
        reload->job->done = NULL;
    bt_list_each (&reload->jobs, it, tmp) {
        bt_reload_job_t *job = bt_container_of(it, bt_reload_job_t, link);
        if (job->arg == arg)
            job->done = NULL;
    }
}

/* ---- figures ---- */

void bt_reload_stats(const bt_reload_t *reload, bt_reload_stats_t *stats_p)
{
    *stats_p = reload->stats;
    stats_p->has_rules_error = reload->rules_error[0] != '\0';
}

bool bt_reload_pool_stats(const bt_reload_t *reload, unsigned index,
                          bt_reload_pool_stats_t *stats_p)
{
    const bt_reload_pool_t *pool = &reload->now.pools[index];

    if (index >= reload->now.pool_count)
        return false;
    *stats_p = (bt_reload_pool_stats_t){.name = pool->name};
    for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
        const bt_reload_part_t *part = &pool->parts[s];
        if (part->born > stats_p->generation)
            stats_p->generation = part->born;
        stats_p->errors += part->error[0] != '\0';
    }
    return true;
}
