/* Workers. What is added or removed at one gateway reaches the others by itself; draining is each gateway's own, so all are asked. */
#include "fleet_tool.h"

#include "base/err.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- list ---- */

static void print_workers(bt_str_t told)
{
    static const char *const members[] = {"name", "url", "pool", "role", "health"};
    char text[512];
    bt_json_cursor_t c;
    bt_json_item_t item;
    bt_text_t table;

    bt_text_init(&table);
    bt_text_puts(&table, "WORKER\tURL\tPOOL\tROLE\tHEALTH\tREQUESTS\tNOTE\n");
    if (bt_json_array(&c, fleet_get_raw(told, "workers")) == 0)
        while (bt_json_next(&c, &item) > 0) {
            for (unsigned i = 0; i < sizeof members / sizeof members[0]; i++) {
                fleet_get(item.value, members[i], text, sizeof text);
                fleet_cell(&table, text, false);
            }
            fleet_cell_number(&table, fleet_get_number(item.value, "requests"), false);
            if (fleet_get_bool(item.value, "draining"))
                snprintf(text, sizeof text, "draining");
            else
                fleet_get(item.value, "why_not", text, sizeof text);
            fleet_cell(&table, text, true);
        }
    fleet_print_table(&table);
    bt_text_fini(&table);
}

/* ---- add, remove ---- */

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
    char name[256];
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
        if (status == 0 && t->is_json) {
            fleet_print_json(&reply);
        } else if (status == 0) {
            fleet_get(bt_text_str(&reply.body), "name", name, sizeof name);
            printf("%s is added; the other replicas follow\n", name);
        }
        fleet_reply_fini(&reply);
    }
    bt_text_fini(&body);
    return status == 0 ? fleet_flushed() : status;
}

static void worker_path(const char *worker, const char *tail, bt_text_t *path)
{
    bt_text_init(path);
    bt_text_puts(path, "/admin/workers/");
    fleet_path_put(path, worker);
    bt_text_puts(path, tail);
}

static int remove_worker(const fleet_tool_t *t)
{
    fleet_reply_t reply;
    bt_text_t path;
    int status;

    if (t->count != 2)
        return fleet_refuse("workers remove: one name or url (baton fleet workers list)");
    worker_path(t->words[1], "", &path);
    status = fleet_ask(t, BT_DELETE, path.data, BT_STR(""), t->timeout_ms, &reply);
    if (status == 0 && t->is_json)
        fleet_print_json(&reply);
    else if (status == 0)
        printf("%s is removed; its running requests finish, the other replicas follow\n",
               t->words[1]);
    fleet_reply_fini(&reply);
    bt_text_fini(&path);
    return status == 0 ? fleet_flushed() : status;
}

/* ---- drain ---- */

struct drain {
    const fleet_tool_t *t;
    const char *path;
    unsigned asked, failed;
};

static void drain_at(void *user, const char *name, const char *url)
{
    struct drain *d = user;
    fleet_reply_t reply;
    char err[1024] = "";
    int rc = fleet_call(d->t, url, BT_POST, d->path, BT_STR(""), d->t->timeout_ms, &reply, err,
                        sizeof err);

    if (rc == 0 && reply.status != 200)
        fleet_why(&reply, err, sizeof err);
    if (d->t->is_json) {
        bt_text_t line;
        bt_text_init(&line);
        bt_text_puts(&line, d->asked > 0 ? ",{\"replica\":" : "{\"replica\":");
        bt_text_json_str(&line, bt_str(name));
        bt_text_puts(&line, ",\"error\":");
        if (err[0] != '\0')
            bt_text_json_str(&line, bt_str(err));
        else
            bt_text_puts(&line, "null");
        printf("%.*s}", BT_STR_ARG(bt_text_str(&line)));
        bt_text_fini(&line);
    } else if (err[0] == '\0') {
        printf("%s: done\n", name);
    }
    if (err[0] != '\0')
        (void) fleet_fail("%s: %s", name, err);
    d->asked++;
    d->failed += err[0] != '\0';
    fleet_reply_fini(&reply);
}

static int drain(const fleet_tool_t *t, const char *tail)
{
    struct drain d = {.t = t};
    bt_text_t path;
    int status;

    if (t->count != 2)
        return fleet_refuse("workers %s: one name or url (baton fleet workers list)", t->words[0]);
    worker_path(t->words[1], tail, &path);
    d.path = path.data;
    if (t->is_json)
        printf("{\"replicas\":[");
    status = fleet_each_replica(t, drain_at, &d);
    if (t->is_json)
        puts("]}");
    bt_text_fini(&path);
    if (status == 0 && (d.failed > 0 || d.asked == 0))
        status = 1;
    return status == 0 ? fleet_flushed() : status;
}

int fleet_workers(const fleet_tool_t *t)
{
    const char *word = t->count > 0 ? t->words[0] : "";

    if (strcmp(word, "list") == 0)
        return fleet_list(t, "workers list", "/admin/workers", print_workers);
    if (strcmp(word, "add") == 0)
        return add(t);
    if (strcmp(word, "remove") == 0)
        return remove_worker(t);
    if (strcmp(word, "drain") == 0)
        return drain(t, "/drain");
    if (strcmp(word, "undrain") == 0)
        return drain(t, "/undrain");
    return fleet_refuse("workers %.100s: list, add, remove, drain or undrain is needed", word);
}
