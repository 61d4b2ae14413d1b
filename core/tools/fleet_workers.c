/* Workers. What one gateway is told, the others follow by themselves; whether they can is in its answer. */
#include "tools/fleet.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>

/* What the gateway has done, as people read it, and whether the other replicas are told: nothing of them where there are none. Exit status. */
static int report(const fleet_tool_t *t, const fleet_reply_t *reply, const char *done)
{
    char fleet[300];

    fleet_get(bt_text_str(&reply->body), "fleet", fleet, sizeof fleet);
    const bool is_told = strcmp(fleet, "told") == 0;
    if (t->is_json)
        fleet_print_json(reply);
    else
        printf("%s%s\n", done, is_told ? "; the other replicas follow" : "");
    if (is_told || fleet[0] == '\0')
        return bt_tool_flushed();
    (void) bt_tool_flushed();
    return fleet_fail("done here, not told to the other replicas: %s", fleet);
}

/* ---- list ---- */

/* "config,file", and since when the first of them does. */
static void put_sources(bt_text_t *table, bt_str_t worker)
{
    char names[64] = "", since[32] = "", text[32];
    bt_json_cursor_t c;
    bt_json_item_t item;
    size_t used = 0;

    if (bt_json_array(&c, fleet_get_raw(worker, "sources")) == 0)
        while (bt_json_next(&c, &item) > 0 && used < sizeof names) {
            fleet_get(item.value, "source", text, sizeof text);
            used += (size_t) snprintf(names + used, sizeof names - used, "%s%s",
                                      used > 0 ? "," : "", text);
            fleet_get(item.value, "since", text, sizeof text);
            if (since[0] == '\0' || strcmp(text, since) < 0)
                memcpy(since, text, sizeof since);
        }
    fleet_cell(table, names, false);
    fleet_cell(table, since, false);
}

/* Why it gets no requests; else what its sources do not say. */
static void get_note(bt_str_t worker, char *text, size_t size)
{
    char from[32];

    if (fleet_get_bool(worker, "draining")) {
        snprintf(text, size, "draining");
        return;
    }
    fleet_get(worker, "why_not", text, size);
    fleet_get(worker, "role_switched_from", from, sizeof from);
    if (text[0] == '\0' && from[0] != '\0')
        snprintf(text, size, "switched from %s", from);
}

static void print_workers(bt_str_t told)
{
    static const char *const members[] = {"name", "url", "pool", "role", "health"};
    char text[512];
    bt_json_cursor_t c;
    bt_json_item_t item;
    bt_text_t table;

    bt_text_init(&table);
    bt_text_puts(&table, "WORKER\tURL\tPOOL\tROLE\tHEALTH\tREQUESTS\tNAMED BY\tSINCE\tNOTE\n");
    if (bt_json_array(&c, fleet_get_raw(told, "workers")) == 0)
        while (bt_json_next(&c, &item) > 0) {
            for (unsigned i = 0; i < sizeof members / sizeof members[0]; i++) {
                fleet_get(item.value, members[i], text, sizeof text);
                fleet_cell(&table, text, false);
            }
            fleet_cell_number(&table, fleet_get_number(item.value, "requests"), false);
            put_sources(&table, item.value);
            get_note(item.value, text, sizeof text);
            fleet_cell(&table, text, true);
        }
    fleet_print_table(&table);
    bt_text_fini(&table);
}

/* ---- add ---- */

static bool is_literal(const char *value)
{
    int64_t number;

    return bt_json_i64(bt_str(value), &number) == 0 || strcmp(value, "true") == 0 ||
           strcmp(value, "false") == 0;
}

/* key=value; a whole number, true and false as they are, all else as text. */
static int put_member(bt_text_t *body, const char *word)
{
    const char *is = strchr(word, '=');

    if (is == NULL || is == word)
        return fleet_refuse("workers add: %.100s: key=value is needed, for example role=decode",
                            word);
    bt_text_puts(body, ",");
    bt_text_json_str(body, (bt_str_t){word, (size_t) (is - word)});
    bt_text_puts(body, ":");
    if (is_literal(is + 1))
        bt_text_puts(body, is + 1);
    else
        bt_text_json_str(body, bt_str(is + 1));
    return 0;
}

static int add(const fleet_tool_t *t)
{
    fleet_reply_t reply;
    char name[256], done[300];
    bt_text_t body;
    int status = 0;

    if (t->count < 2)
        return fleet_refuse("workers add: which url? baton fleet workers add URL [key=value...]");
    bt_text_init(&body);
    bt_text_puts(&body, "{\"url\":");
    bt_text_json_str(&body, bt_str(t->words[1]));
    for (unsigned i = 2; i < t->count && status == 0; i++)
        status = put_member(&body, t->words[i]);
    bt_text_puts(&body, "}");
    if (status == 0) {
        status = fleet_ask(t, BT_POST, "/admin/workers", bt_text_str(&body), t->timeout_ms, &reply);
        if (status == 0) {
            fleet_get(bt_text_str(&reply.body), "name", name, sizeof name);
            snprintf(done, sizeof done, "%s is added", name);
            status = report(t, &reply, done);
        }
        fleet_reply_fini(&reply);
    }
    bt_text_fini(&body);
    return status;
}

/* ---- remove, drain, undrain ---- */

/* Of one worker; said: what it does then. */
static int order(const fleet_tool_t *t, enum bt_method method, const char *tail, const char *said)
{
    fleet_reply_t reply;
    char done[600], kept[64];
    bt_text_t path;
    int status;

    if (t->count != 2)
        return fleet_refuse("workers %s: one name or url (baton fleet workers list)", t->words[0]);
    bt_text_init(&path);
    bt_text_puts(&path, "/admin/workers/");
    fleet_path_put(&path, t->words[1]);
    bt_text_puts(&path, tail);
    status = fleet_ask(t, method, path.data, BT_STR(""), t->timeout_ms, &reply);
    if (status == 0) {
        fleet_get(bt_text_str(&reply.body), "named_by", kept, sizeof kept);
        if (kept[0] != '\0')
            snprintf(done, sizeof done, "%.400s stays: it is still named by %s", t->words[1], kept);
        else
            snprintf(done, sizeof done, "%.500s %s", t->words[1], said);
        status = report(t, &reply, done);
    }
    fleet_reply_fini(&reply);
    bt_text_fini(&path);
    return status;
}

int fleet_workers(const fleet_tool_t *t)
{
    const char *word = t->count > 0 ? t->words[0] : "";

    if (strcmp(word, "list") == 0)
        return fleet_list(t, "workers list", "/admin/workers", print_workers);
    if (strcmp(word, "add") == 0)
        return add(t);
    if (strcmp(word, "remove") == 0)
        return order(t, BT_DELETE, "", "is removed, its running requests finish");
    if (strcmp(word, "drain") == 0)
        return order(t, BT_POST, "/drain", "gets no new requests");
    if (strcmp(word, "undrain") == 0)
        return order(t, BT_POST, "/undrain", "takes requests again");
    return fleet_refuse("workers %.100s: list, add, remove, drain or undrain is needed", word);
}
