/* What the operator sees and may do: GET, PUT and DELETE of policies, and their metrics. */
#include "gateway/policy.h"

#include "base/err.h"

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

static const char *state_of(const bt_pool_part_t *part)
{
    if (part->pick == NULL)
        return "none";
    if (part->fallen_back)
        return "fallen_back";
    return part->pick == part->good ? "good" : "on_probation";
}

static void describe_part(const bt_gateway_policy_t *gp, const bt_policy_pool_t *pool,
                          enum bt_policy_slot slot, bt_text_t *out)
{
    char why[256] = "";
    const bt_pool_part_t *part = &pool->parts[slot];
    const bt_policy_pick_t *pick = part->pick;

    bt_text_puts(out, "{\"pool\":");
    bt_text_json_str(out, bt_str(pool->name));
    put_string(out, "part", bt_policy_slot_name(slot));
    put_string(out, "asked", part->asked);
    put_string(out, "name", pick != NULL ? pick->name : NULL);
    put_string(out, "version", pick != NULL ? pick->version : NULL);
    put_string(out, "source", pick != NULL ? bt_source_kind_name(pick->source->kind) : NULL);
    put_string(out, "path", pick != NULL ? pick->source->path : NULL);
    bt_text_puts(out, ",\"params\":");
    if (pick != NULL && pick->params != NULL)
        bt_value_json(pick->params, out);
    else
        bt_text_puts(out, "null");
    bt_text_printf(out, ",\"shadow\":%s", pool->is_shadow ? "true" : "false");
    bt_text_printf(out, ",\"generation\":%llu", (unsigned long long) part->born);
    put_string(out, "state", state_of(part));
    if (pick != NULL)
        bt_policy_part_reason(gp, part, why, sizeof why);
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

static void list(void *user, bt_text_t *out)
{
    const bt_gateway_policy_t *gp = user;
    const char *comma = "";

    bt_text_printf(out, "{\"generation\":%llu,\"reloading\":%s,\"pools\":[",
                   (unsigned long long) gp->serving, gp->job != NULL ? "true" : "false");
    for (unsigned i = 0; i < gp->now.pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            if (gp->now.pools[i].parts[s].asked == NULL)
                continue;
            bt_text_puts(out, comma);
            describe_part(gp, &gp->now.pools[i], (enum bt_policy_slot) s, out);
            comma = ",";
        }
    bt_text_puts(out, "],\"fleet\":");
    bt_policy_set_describe(gp, out);
    bt_text_puts(out, ",\"put\":[");
    comma = "";
    for (const bt_list_t *it = gp->texts.next; it != &gp->texts; it = it->next) {
        bt_text_puts(out, comma);
        bt_text_json_str(out, bt_str(bt_container_of(it, bt_policy_text_t, link)->source->name));
        comma = ",";
    }
    bt_text_puts(out, "],\"dir\":[");
    list_dir(gp->g->config->policy_dir, out);
    bt_text_puts(out, "],\"shipped\":[");
    const char *const *names = bt_policy_embedded_names();
    for (unsigned i = 0; names[i] != NULL; i++) {
        bt_text_puts(out, i > 0 ? "," : "");
        bt_text_json_str(out, bt_str(names[i]));
    }
    bt_text_puts(out, "]}\n");
}

/* ---- GET /rules ---- */

static void list_rules(void *user, bt_text_t *out)
{
    const bt_gateway_policy_t *gp = user;
    const char *file = bt_policy_rules_place(gp, gp->g->fleet_config);

    bt_text_printf(out, "{\"generation\":%llu", (unsigned long long) gp->serving);
    put_string(out, "file", file);
    put_string(out, "error", gp->rules_error);
    bt_text_puts(out, ",\"rules\":");
    bt_rules_describe(gp->now.rules, out);
    bt_text_puts(out, "}\n");
}

/* ---- PUT, DELETE ---- */

static void change(bt_gateway_policy_t *gp, enum bt_policy_job_kind kind, bt_str_t name,
                   bt_str_t text, bt_policies_done_cb done, void *arg)
{
    bt_policy_job_t *job = NULL;
    char path[128], called[96];
    int rc = gp->g->state == BT_GATEWAY_SERVING && !gp->is_closing ? 0 : BT_E_AGAIN;

    snprintf(called, sizeof called, "%.*s", BT_STR_ARG(name));
    if (rc == 0 && kind == BT_JOB_PUT && !gp->is_pinned &&
        bt_policy_set_find(gp->set, called) != NULL) {
        bt_text_t why;
        bt_text_init(&why);
        bt_text_printf(
            &why,
            "set %llu of the fleet has a policy %s: put it for all (PUT "
            "/admin/fleet/policies/%s), or pin this replica first (POST /admin/fleet/pin)",
            (unsigned long long) gp->set->number, called, called);
        done(arg, 409, bt_text_str(&why));
        bt_text_fini(&why);
        return;
    }
    if (rc == 0)
        rc = bt_policy_job_add(gp, kind, "admin", &job);

    if (rc == 0) {
        snprintf(job->name, sizeof job->name, "%.*s", BT_STR_ARG(name));
        snprintf(path, sizeof path, "admin/%s.lua", job->name);
        if (kind == BT_JOB_PUT)
            rc = bt_policy_source_new(&job->text, BT_SOURCE_ADMIN, job->name, path, text);
        if (rc < 0) {
            bt_list_remove(&job->link);
            bt_policy_job_free(job);
        }
    }
    if (rc < 0) {
        done(arg, 503, bt_str(rc == BT_E_AGAIN ? "the gateway is ending" : bt_err_text(rc)));
        return;
    }
    job->done = done;
    job->arg = arg;
    bt_policy_jobs_run(gp);
}

static void put(void *user, bt_str_t name, bt_str_t text, bt_policies_done_cb done, void *arg)
{
    change(user, BT_JOB_PUT, name, text, done, arg);
}

static void remove_put(void *user, bt_str_t name, bt_policies_done_cb done, void *arg)
{
    change(user, BT_JOB_DELETE, name, BT_STR(""), done, arg);
}

/* The reload goes on: half of the loops may have it already. */
static void cancel(void *user, void *arg)
{
    bt_gateway_policy_t *gp = user;
    bt_list_t *it, *tmp;

    if (gp->job != NULL && gp->job->arg == arg)
        gp->job->done = NULL;
    bt_list_each (&gp->jobs, it, tmp) {
        bt_policy_job_t *job = bt_container_of(it, bt_policy_job_t, link);
        if (job->arg == arg)
            job->done = NULL;
    }
}

/* ---- metrics ---- */

static void write_pools(const bt_gateway_policy_t *gp, bt_prom_t *p, bool errors)
{
    for (unsigned i = 0; i < gp->now.pool_count; i++) {
        const bt_label_t label = {"pool", bt_str(gp->now.pools[i].name)};
        uint64_t newest = 0, wrong = 0;
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            const bt_pool_part_t *part = &gp->now.pools[i].parts[s];
            newest = part->born > newest ? part->born : newest;
            wrong += part->error[0] != '\0';
        }
        bt_prom_count(p, &label, 1, errors ? wrong : newest);
    }
}

static void metrics(void *user, bt_prom_t *p)
{
    static const char *const names[BT_RELOAD_RESULTS] = {"ok", "refused", "aborted"};
    const bt_gateway_policy_t *gp = user;

    bt_prom_family(p, "baton_policy_generation", "gauge",
                   "Generation that brought the pool's newest policy text");
    write_pools(gp, p, false);
    bt_prom_family(p, "baton_policy_not_as_asked", "gauge",
                   "Policies of the pool that are not what is asked for: see GET /policies");
    write_pools(gp, p, true);
    bt_prom_family(p, "baton_rules_not_as_in_file", "gauge",
                   "1: the rules file cannot be used as it is now: see GET /rules");
    bt_prom_count(p, NULL, 0, gp->rules_error[0] != '\0');
    bt_prom_family(p, "baton_policy_reloads_total", "counter",
                   "Reloads of policies, by how they ended");
    for (unsigned i = 0; i < BT_RELOAD_RESULTS; i++) {
        const bt_label_t label = {"result", bt_str(names[i])};
        bt_prom_count(p, &label, 1, gp->results[i]);
    }
    bt_prom_family(p, "baton_policy_rollbacks_total", "counter",
                   "Policies taken back because they failed soon after they came");
    bt_prom_count(p, NULL, 0, gp->rollbacks);
    bt_prom_family(p, "baton_policy_fallbacks_total", "counter",
                   "Policies that were gone, so that another text serves");
    bt_prom_count(p, NULL, 0, gp->fallbacks);
    bt_prom_family(p, "baton_policy_commit_seconds", "gauge",
                   "The last reload: from the first loop's commit letter to the last one's answer");
    bt_prom_micro(p, NULL, 0, gp->last_swap_us);
    bt_prom_family(p, "baton_policy_stall_seconds_max", "gauge",
                   "Longest that one loop stood still for a reload");
    bt_prom_micro(p, NULL, 0, gp->max_stall_us);
    bt_prom_family(p, "baton_policy_stall_cpu_seconds_max", "gauge",
                   "Longest that one loop worked for a reload; what is missing to the stall it "
                   "waited for a core");
    bt_prom_micro(p, NULL, 0, gp->max_work_us);
}

const bt_policies_ops_t bt_gateway_policy_admin = {.list = list,
                                                   .list_rules = list_rules,
                                                   .metrics = metrics,
                                                   .put = put,
                                                   .remove = remove_put,
                                                   .cancel = cancel};
