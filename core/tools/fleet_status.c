/* What one gateway knows of all, and whether each of them can be reached from here. */
#include "tools/fleet.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>

#define PROBE_MS 2000

typedef struct replica {
    char name[160], admin[300], version[32], ready[32];
    bool is_bad;
    bool is_untrusted; /* not asked, because only the store names its address */
} replica_t;

static void read_replica(bt_str_t json, replica_t *r)
{
    *r = (replica_t){0};
    fleet_get(json, "name", r->name, sizeof r->name);
    fleet_get(json, "admin", r->admin, sizeof r->admin);
    fleet_get(json, "version", r->version, sizeof r->version);
}

int fleet_each_replica(const fleet_tool_t *t,
                       void (*each)(void *user, const char *name, const char *url), void *user)
{
    fleet_reply_t reply;
    bt_json_cursor_t c;
    bt_json_item_t item;
    replica_t r;
    int status = fleet_ask(t, BT_GET, "/admin/fleet", BT_STR(""), t->timeout_ms, &reply);

    if (status == 0 && bt_json_array(&c, fleet_get_raw(bt_text_str(&reply.body), "replicas")) == 0)
        while (bt_json_next(&c, &item) > 0) {
            read_replica(item.value, &r);
            if (r.admin[0] != '\0')
                each(user, r.name, r.admin);
            else
                fprintf(stderr,
                        "baton: fleet: replica %s does not tell its admin url (it listens on all "
                        "addresses): ask it by --admin\n",
                        r.name);
        }
    fleet_reply_fini(&reply);
    return status;
}

/* ---- status ---- */

static void look_at(const fleet_tool_t *t, replica_t *r)
{
    fleet_reply_t reply;
    char err[512];

    r->is_untrusted = r->admin[0] != '\0' && !fleet_may_ask(t, r->admin);
    if (r->admin[0] == '\0' || r->is_untrusted) {
        snprintf(r->ready, sizeof r->ready, "not asked");
        return;
    }
    int rc = fleet_call(t, r->admin, BT_GET, "/admin/readiness", BT_STR(""), PROBE_MS, &reply, err,
                        sizeof err);
    r->is_bad = rc < 0 || reply.status != 200;
    snprintf(r->ready, sizeof r->ready, "%s",
             rc < 0                ? "unreachable"
             : reply.status == 200 ? "ready"
             : reply.status == 503 ? "not ready"
                                   : "refused");
    fleet_reply_fini(&reply);
}

/* Its row in GET /admin/fleet/policies, or "". */
static bt_str_t row_of(bt_str_t policies, const char *name)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    char called[160];

    if (bt_json_array(&c, fleet_get_raw(policies, "replicas")) < 0)
        return BT_STR("");
    while (bt_json_next(&c, &item) > 0) {
        fleet_get(item.value, "replica", called, sizeof called);
        if (strcmp(called, name) == 0)
            return item.value;
    }
    return BT_STR("");
}

static bool add_row(const replica_t *r, bt_str_t row, uint64_t committed, bt_text_t *table)
{
    const uint64_t number = fleet_get_number(row, "number");
    const bool is_pinned = fleet_get_bool(row, "pinned");
    char error[700], set[64];

    fleet_get(row, "error", error, sizeof error);
    snprintf(set, sizeof set, "%" PRIu64 "%s", number,
             is_pinned            ? " (pinned)"
             : number < committed ? " (behind)"
                                  : "");
    fleet_cell(table, r->name, false);
    fleet_cell(table, r->admin, false);
    fleet_cell(table, r->version, false);
    fleet_cell(table, r->ready, false);
    fleet_cell(table, row.n > 0 ? set : "", false);
    fleet_cell(table, error, true);
    return r->is_bad || error[0] != '\0' || (!is_pinned && number < committed);
}

/* They wait for a worker to come; a worker that is there has a note in `workers list`. */
static void print_drained(bt_str_t fleet)
{
    char worker[600], pool[160];
    bt_json_cursor_t c;
    bt_json_item_t item;

    if (bt_json_array(&c, fleet_get_raw(fleet, "drained")) < 0)
        return;
    while (bt_json_next(&c, &item) > 0) {
        fleet_get(item.value, "worker", worker, sizeof worker);
        fleet_get(item.value, "pool", pool, sizeof pool);
        if (!fleet_get_bool(item.value, "here"))
            printf(
                "\ndrained, and not a worker of this gateway: %s of pool %s (baton fleet workers "
                "undrain %s ends it)\n",
                worker, pool, worker);
    }
}

static void add_untrusted(const replica_t *r, bt_text_t *untrusted)
{
    if (r->is_untrusted)
        bt_text_printf(untrusted, "%s%s (%s)", untrusted->len > 0 ? ", " : "", r->name, r->admin);
}

static bool print_status(const fleet_tool_t *t, bt_str_t fleet, bt_str_t policies)
{
    const bt_str_t store = fleet_get_raw(fleet, "store");
    const uint64_t committed = fleet_get_number(policies, "committed");
    char name[128], state[32], why[300];
    bt_json_cursor_t c;
    bt_json_item_t item;
    bt_text_t table, untrusted;
    replica_t r;
    bool is_bad;

    fleet_get(fleet, "fleet", name, sizeof name);
    fleet_get(store, "state", state, sizeof state);
    fleet_get(store, "why", why, sizeof why);
    is_bad = strcmp(state, "up") != 0;
    printf("fleet %s, store %s%s%s, set %" PRIu64 " of policies and rules%s\n\n", name, state,
           why[0] != '\0' ? ": " : "", why, committed,
           committed == 0 ? " (none: every replica has its own)" : "");
    bt_text_init(&table);
    bt_text_init(&untrusted);
    bt_text_puts(&table, "REPLICA\tADMIN\tVERSION\tSTATE\tSET\tERROR\n");
    if (bt_json_array(&c, fleet_get_raw(fleet, "replicas")) == 0)
        while (bt_json_next(&c, &item) > 0) {
            read_replica(item.value, &r);
            look_at(t, &r);
            add_untrusted(&r, &untrusted);
            is_bad |= add_row(&r, row_of(policies, r.name), committed, &table);
        }
    fleet_print_table(&table);
    bt_text_fini(&table);
    print_drained(fleet);
    if (untrusted.len > 0) {
        (void) bt_tool_flushed(); /* the table comes first */
        (void) fleet_fail("not asked: %s: " FLEET_UNTRUSTED, untrusted.data);
    }
    bt_text_fini(&untrusted);
    return is_bad;
}

int fleet_status(const fleet_tool_t *t)
{
    fleet_reply_t fleet, policies = {0};
    int status;

    if (t->count > 0)
        return fleet_refuse("status takes no arguments");
    status = fleet_ask(t, BT_GET, "/admin/fleet", BT_STR(""), t->timeout_ms, &fleet);
    if (status == 0)
        status =
            fleet_ask(t, BT_GET, "/admin/fleet/policies", BT_STR(""), t->timeout_ms, &policies);
    if (status == 0 && t->is_json)
        printf("{\"fleet\":%.*s,\"policies\":%.*s}\n", BT_STR_ARG(bt_text_str(&fleet.body)),
               BT_STR_ARG(bt_text_str(&policies.body)));
    else if (status == 0 && print_status(t, bt_text_str(&fleet.body), bt_text_str(&policies.body)))
        status = 1;
    fleet_reply_fini(&fleet);
    fleet_reply_fini(&policies);
    return status == 0 ? bt_tool_flushed() : status;
}
