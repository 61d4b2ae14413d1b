/* Policies and rules of all replicas. A push is one bundle: all of its files are taken, or none. */
#include "tools/fleet.h"

#include "base/json.h"
#include "script/policy/policy_source.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#define ROLLOUT_MS 40000 /* votes, the decision, and until all serve it */
#define FILE_MAX ((size_t) 1 << 20)
#define BEHIND 3  /* exit status: committed, but a replica does not serve it yet */
#define UNKNOWN 4 /* likewise: whether it is committed will be seen */

/* ---- files ---- */

static int read_file(const char *path, bt_text_t *text)
{
    FILE *file = fopen(path, "rb");
    char piece[16384];
    size_t n;

    if (file == NULL)
        return fleet_refuse("%s: %s", path, strerror(errno));
    while ((n = fread(piece, 1, sizeof piece, file)) > 0 && text->len <= FILE_MAX)
        bt_text_put(text, (bt_str_t){piece, n});
    const bool is_bad = ferror(file) != 0;
    fclose(file);
    if (is_bad || text->failed)
        return fleet_refuse("%s: cannot be read", path);
    if (text->len == 0 || text->len > FILE_MAX)
        return fleet_refuse("%s: %s", path, text->len == 0 ? "is empty" : "is longer than 1 MiB");
    return 0;
}

static int put_file(bt_text_t *body, const char *key, size_t key_n, const char *path)
{
    bt_text_t text;
    int status;

    bt_text_init(&text);
    status = read_file(path, &text);
    if (status == 0) {
        bt_text_json_str(body, (bt_str_t){key, key_n});
        bt_text_puts(body, ":");
        bt_text_json_str(body, bt_text_str(&text));
    }
    bt_text_fini(&text);
    return status;
}

/* ---- what came of it ---- */

/* Is somebody behind who is not pinned? */
static bool is_behind(bt_str_t told)
{
    const uint64_t number = fleet_get_number(told, "number");
    bool is_one = false;
    bt_json_cursor_t c;
    bt_json_item_t item;

    if (bt_json_array(&c, fleet_get_raw(told, "replicas")) == 0)
        while (bt_json_next(&c, &item) > 0)
            is_one |= !fleet_get_bool(item.value, "pinned") &&
                      fleet_get_number(item.value, "number") < number;
    return is_one;
}

static void print_replicas(bt_str_t told)
{
    const uint64_t number = fleet_get_number(told, "number");
    char name[160], error[700];
    bt_json_cursor_t c;
    bt_json_item_t item;

    if (bt_json_array(&c, fleet_get_raw(told, "replicas")) < 0)
        return;
    while (bt_json_next(&c, &item) > 0) {
        const uint64_t at = fleet_get_number(item.value, "number");
        fleet_get(item.value, "replica", name, sizeof name);
        fleet_get(item.value, "error", error, sizeof error);
        if (fleet_get_bool(item.value, "pinned"))
            printf("  %s is pinned to set %" PRIu64 "\n", name, at);
        else if (at < number)
            printf("  %s still serves set %" PRIu64 "%s%s\n", name, at,
                   error[0] != '\0' ? ": " : "", error);
        else
            printf("  %s serves it%s%s\n", name, error[0] != '\0' ? ", but: " : "", error);
    }
}

/* What ended the wait was not the gateway's word: it went away, or its store did. */
static bool is_unknown(const fleet_reply_t *reply, int status)
{
    return status == BT_TOOL_FAILED && (reply->status == 502 || reply->is_cut);
}

static void print_names(bt_str_t told, const char *key, const char *after)
{
    char name[160];
    bt_json_cursor_t c;
    bt_json_item_t item;

    if (bt_json_array(&c, fleet_get_raw(told, key)) < 0)
        return;
    while (bt_json_next(&c, &item) > 0) {
        const long n = bt_json_unescape(item.value, name, sizeof name - 1);
        name[n > 0 ? n : 0] = '\0';
        printf("  %s %s\n", name, after);
    }
}

static int try_out(const fleet_tool_t *t, enum bt_method method, const char *path, bt_str_t body)
{
    const uint64_t ms = t->timeout_ms > ROLLOUT_MS ? t->timeout_ms : ROLLOUT_MS;
    fleet_reply_t reply;
    int status = fleet_ask(t, method, path, body, ms, &reply);
    const bt_str_t told = bt_text_str(&reply.body);

    if (status == 0 && !fleet_get_bool(told, "dry_run")) {
        fleet_reply_fini(&reply);
        return fleet_fail("this gateway knows no dry run, and has done it: baton fleet policy "
                          "rollback takes it back");
    }
    if (status == 0 && t->is_json) {
        fleet_print_json(&reply);
    } else if (status == 0) {
        printf("%s\n", fleet_get_bool(told, "changed")
                           ? "every replica would serve it; nothing has changed"
                           : "the set has it already: nothing would change");
        print_names(told, "agreed", "would serve it");
        print_names(told, "pinned", "is pinned: it would not follow");
    }
    fleet_reply_fini(&reply);
    return status == 0 ? bt_tool_flushed() : status;
}

static int roll_out(const fleet_tool_t *t, enum bt_method method, const char *path, bt_str_t body)
{
    const uint64_t ms = t->timeout_ms > ROLLOUT_MS ? t->timeout_ms : ROLLOUT_MS;
    fleet_reply_t reply;
    int status = fleet_ask(t, method, path, body, ms, &reply);
    const bt_str_t told = bt_text_str(&reply.body);

    if (status == 0 && t->is_json) {
        fleet_print_json(&reply);
    } else if (status == 0) {
        printf("set %" PRIu64 " %s\n", fleet_get_number(told, "number"),
               fleet_get_bool(told, "changed") ? "is committed"
                                               : "has it already: nothing changed");
        print_replicas(told);
    }
    if (status == 0)
        status = bt_tool_flushed() != 0 ? BT_TOOL_FAILED : is_behind(told) ? BEHIND : 0;
    else if (is_unknown(&reply, status))
        status = UNKNOWN;
    fleet_reply_fini(&reply);
    return status;
}

static int roll_out_path(const fleet_tool_t *t, enum bt_method method, bt_text_t *path,
                         bt_str_t body)
{
    int status;

    if (t->is_dry_run)
        bt_text_puts(path, "&dry_run=true");
    status = path->failed    ? fleet_fail("out of memory")
             : t->is_dry_run ? try_out(t, method, path->data, body)
                             : roll_out(t, method, path->data, body);

    bt_text_fini(path);
    return status;
}

static int send_bundle(const fleet_tool_t *t, const bt_text_t *body)
{
    bt_text_t path;

    if (body->failed)
        return fleet_fail("out of memory");
    bt_text_init(&path);
    bt_text_puts(&path, "/admin/fleet/policies?");
    fleet_put_by(&path);
    return roll_out_path(t, BT_PUT, &path, bt_text_str(body));
}

/* ---- push ---- */

static int push(const fleet_tool_t *t)
{
    bt_text_t body;
    int status = 0;

    if (t->count < 2 && t->rules == NULL)
        return fleet_refuse("policy push: which file? baton fleet policy push FILE...");
    bt_text_init(&body);
    bt_text_printf(&body, "{\"replace\":%s,\"policies\":{", t->is_replace ? "true" : "false");
    for (unsigned i = 1; i < t->count && status == 0; i++) {
        const bt_str_t name = bt_policy_base_name(t->words[i]);
        bt_text_puts(&body, i > 1 ? "," : "");
        status = put_file(&body, name.p, name.n, t->words[i]);
    }
    bt_text_puts(&body, "}");
    if (status == 0 && t->rules != NULL) {
        bt_text_puts(&body, ",");
        status = put_file(&body, "rules", 5, t->rules);
    }
    bt_text_puts(&body, "}");
    if (status == 0)
        status = send_bundle(t, &body);
    bt_text_fini(&body);
    return status;
}

static int push_rules(const fleet_tool_t *t)
{
    bt_text_t body;
    int status;

    if (t->count != 2)
        return fleet_refuse("rules push: one file: baton fleet rules push FILE");
    bt_text_init(&body);
    bt_text_puts(&body, "{");
    status = put_file(&body, "rules", 5, t->words[1]);
    bt_text_puts(&body, "}");
    if (status == 0)
        status = send_bundle(t, &body);
    bt_text_fini(&body);
    return status;
}

/* ---- withdraw, roll back ---- */

static int withdraw(const fleet_tool_t *t)
{
    bt_text_t body, path;
    int status;

    if (t->is_all == (t->count > 1))
        return fleet_refuse("policy withdraw: names of policies, or --all");
    if (t->is_all) {
        bt_text_init(&path);
        bt_text_puts(&path, "/admin/fleet/policies?");
        fleet_put_by(&path);
        return roll_out_path(t, BT_DELETE, &path, BT_STR(""));
    }
    bt_text_init(&body);
    bt_text_puts(&body, "{\"drop\":[");
    for (unsigned i = 1; i < t->count; i++) {
        bt_text_puts(&body, i > 1 ? "," : "");
        bt_text_json_str(&body, bt_str(t->words[i]));
    }
    bt_text_puts(&body, "]}");
    status = send_bundle(t, &body);
    bt_text_fini(&body);
    return status;
}

static int withdraw_rules(const fleet_tool_t *t)
{
    bt_text_t path;

    if (t->count != 1)
        return fleet_refuse("rules withdraw: takes no arguments");
    bt_text_init(&path);
    bt_text_puts(&path, "/admin/fleet/rules?");
    fleet_put_by(&path);
    return roll_out_path(t, BT_DELETE, &path, BT_STR(""));
}

static int rollback(const fleet_tool_t *t)
{
    uint64_t to = 0;
    bt_text_t path;

    if (t->count > 2 || (t->count == 2 && (bt_str_u64(bt_str(t->words[1]), &to) < 0 || to == 0)))
        return fleet_refuse("policy rollback: the number of a set (baton fleet policy list), or "
                            "nothing for the one before");
    bt_text_init(&path);
    bt_text_puts(&path, "/admin/fleet/rollback?");
    fleet_put_by(&path);
    if (to > 0)
        bt_text_printf(&path, "&to=%" PRIu64, to);
    return roll_out_path(t, BT_POST, &path, BT_STR(""));
}

/* ---- pins ---- */

struct pin {
    const fleet_tool_t *t;
    char url[300];
};

/* Of two rows with this name, one of which is somebody's forgery, the one that the operator has named. */
static void find_replica(void *user, const char *name, const char *url)
{
    struct pin *p = user;

    if (strcmp(name, p->t->replica) != 0)
        return;
    if (p->url[0] == '\0' || !fleet_may_ask(p->t, p->url))
        bt_str_copy(p->url, sizeof p->url, url);
}

static int pin(const fleet_tool_t *t, bool is_pin)
{
    struct pin p = {.t = t};
    fleet_tool_t at = *t;
    fleet_reply_t reply;
    char name[160];
    int status;

    if (t->count > 1)
        return fleet_refuse("policy %s: takes no arguments but --replica NAME", t->words[0]);
    if (t->replica != NULL) {
        status = fleet_each_replica(t, find_replica, &p);
        if (status == 0 && p.url[0] == '\0')
            status =
                fleet_fail("there is no replica %s whose admin url is known; baton fleet status "
                           "lists them",
                           t->replica);
        if (status == 0 && !fleet_may_ask(t, p.url))
            status = fleet_fail("%s: the store names %s: " FLEET_UNTRUSTED, t->replica, p.url);
        if (status != 0)
            return status;
        at.admin = p.url;
    }
    status = fleet_ask(&at, is_pin ? BT_POST : BT_DELETE, "/admin/fleet/pin", BT_STR(""),
                       t->timeout_ms, &reply);
    const bt_str_t told = bt_text_str(&reply.body);
    if (status == 0 && t->is_json) {
        fleet_print_json(&reply);
    } else if (status == 0) {
        fleet_get(told, "replica", name, sizeof name);
        printf(is_pin ? "%s stays with set %" PRIu64 "\n"
                      : "%s follows the fleet again, from set %" PRIu64 "\n",
               name, fleet_get_number(told, "number"));
    }
    fleet_reply_fini(&reply);
    return status == 0 ? bt_tool_flushed() : status;
}

/* ---- list ---- */

static void put_names(bt_str_t serving, bt_text_t *table)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    char name[80], hash[40];

    bt_text_puts(table, "POLICY\tBYTES\tHASH\n");
    if (bt_json_array(&c, fleet_get_raw(serving, "policies")) == 0)
        while (bt_json_next(&c, &item) > 0) {
            fleet_get(item.value, "name", name, sizeof name);
            fleet_get(item.value, "hash", hash, sizeof hash);
            fleet_cell(table, name, false);
            fleet_cell_number(table, fleet_get_number(item.value, "bytes"), false);
            fleet_cell(table, hash, true);
        }
    const bt_str_t rules = fleet_get_raw(serving, "rules");
    if (rules.n > 0) {
        fleet_get(rules, "hash", hash, sizeof hash);
        fleet_cell(table, "(rules)", false);
        fleet_cell_number(table, fleet_get_number(rules, "bytes"), false);
        fleet_cell(table, hash, true);
    }
}

static void put_sets(bt_str_t told, bt_text_t *table)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    char state[32], by[128], when[40], why[700], note[760];

    bt_text_puts(table, "SET\tSTATE\tWHEN\tBY\tNOTE\n");
    if (bt_json_array(&c, fleet_get_raw(told, "sets")) < 0)
        return;
    while (bt_json_next(&c, &item) > 0) {
        const uint64_t copy_of = fleet_get_number(item.value, "copy_of");
        fleet_get(item.value, "state", state, sizeof state);
        fleet_get(item.value, "by", by, sizeof by);
        fleet_get(item.value, "why", why, sizeof why);
        fleet_print_time(fleet_get_number(item.value, "at_ms"), when, sizeof when);
        if (copy_of > 0)
            snprintf(note, sizeof note, "back to %" PRIu64 "%s%s", copy_of,
                     why[0] != '\0' ? "; " : "", why);
        else
            snprintf(note, sizeof note, "%s", why);
        fleet_cell_number(table, fleet_get_number(item.value, "number"), false);
        fleet_cell(table, state, false);
        fleet_cell(table, when, false);
        fleet_cell(table, by, false);
        fleet_cell(table, note, true);
    }
}

static void print_list(bt_str_t told)
{
    const bt_str_t serving = fleet_get_raw(told, "serving");
    char replica[160];
    bt_text_t table;

    fleet_get(told, "replica", replica, sizeof replica);
    printf("%s serves set %" PRIu64 "%s; the fleet's is set %" PRIu64 "\n\n", replica,
           fleet_get_number(serving, "number"), fleet_get_bool(told, "pinned") ? " (pinned)" : "",
           fleet_get_number(told, "committed"));
    bt_text_init(&table);
    put_names(serving, &table);
    fleet_print_table(&table);
    table.len = 0;
    putchar('\n');
    put_sets(told, &table);
    fleet_print_table(&table);
    bt_text_fini(&table);
}

/* ---- the words ---- */

int fleet_policy(const fleet_tool_t *t)
{
    const char *word = t->count > 0 ? t->words[0] : "";

    if (strcmp(word, "list") == 0)
        return fleet_list(t, "policy list", "/admin/fleet/policies", print_list);
    if (strcmp(word, "push") == 0)
        return push(t);
    if (strcmp(word, "withdraw") == 0)
        return withdraw(t);
    if (strcmp(word, "rollback") == 0)
        return rollback(t);
    if (strcmp(word, "pin") == 0 || strcmp(word, "unpin") == 0)
        return pin(t, word[0] == 'p');
    return fleet_refuse("policy %.100s: list, push, withdraw, rollback, pin or unpin is needed",
                        word);
}

int fleet_rules(const fleet_tool_t *t)
{
    const char *word = t->count > 0 ? t->words[0] : "";

    if (strcmp(word, "push") == 0)
        return push_rules(t);
    if (strcmp(word, "withdraw") == 0)
        return withdraw_rules(t);
    return fleet_refuse("rules %.100s: push or withdraw is needed", word);
}
