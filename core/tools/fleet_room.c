/* Whose a room is. The gateway that is asked tells what it has of it, or who may have it by its number; those are asked one after the other, with the same key, where it
 * may go there. */
#include "tools/fleet.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- for people ---- */

static void cell_of(bt_text_t *table, bt_str_t json, const char *member, bool is_last)
{
    char text[512];

    fleet_get(json, member, text, sizeof text);
    fleet_cell(table, text, is_last);
}

static void print_request(bt_str_t request, bt_str_t attempt)
{
    static const char *const of_request[] = {"id", "route", "model", "plan"},
                             *const of_attempt[] = {"id", "prefill", "decode", "age_ms"};
    bt_text_t table;

    bt_text_init(&table);
    bt_text_puts(&table, "REQUEST\tROUTE\tMODEL\tPLAN\tATTEMPT\tPREFILL\tDECODE\tAGE_MS\tEVENTS\t"
                         "BYTES\n");
    for (unsigned i = 0; i < sizeof of_request / sizeof of_request[0]; i++)
        cell_of(&table, request, of_request[i], false);
    for (unsigned i = 0; i < sizeof of_attempt / sizeof of_attempt[0]; i++)
        cell_of(&table, attempt, of_attempt[i], false);
    cell_of(&table, request, "events", false);
    cell_of(&table, request, "bytes", true);
    fleet_print_table(&table);
    bt_text_fini(&table);
}

static void print_transfer(bt_str_t transfer)
{
    static const char *const members[] = {"phase", "prefill", "decode", "backend", "bytes"};
    char pages[64];
    bt_text_t table;

    bt_text_init(&table);
    bt_text_puts(&table, "TRANSFER\tPREFILL\tDECODE\tBACKEND\tBYTES\tPAGES\tAGE_MS\tREASON\n");
    for (unsigned i = 0; i < sizeof members / sizeof members[0]; i++)
        cell_of(&table, transfer, members[i], false);
    snprintf(pages, sizeof pages, "%" PRIu64 "/%" PRIu64, fleet_get_number(transfer, "pages"),
             fleet_get_number(transfer, "pages_wanted"));
    fleet_cell(&table, pages, false);
    cell_of(&table, transfer, "age_ms", false);
    cell_of(&table, transfer, "reason", true);
    fleet_print_table(&table);
    bt_text_fini(&table);
}

static void print_room(bt_str_t told, const char *url)
{
    const bt_str_t here = fleet_get_raw(told, "here"), request = fleet_get_raw(here, "request"),
                   transfer = fleet_get_raw(here, "transfer");
    char room[32], replica[160], id[200];

    fleet_get(told, "room", room, sizeof room);
    fleet_get(told, "replica", replica, sizeof replica);
    fleet_get(transfer, "request_id", id, sizeof id);
    if (replica[0] != '\0')
        printf("room %s is at replica %s, %s\n\n", room, replica, url);
    else
        printf("room %s is at %s\n\n", room, url);
    if (request.n > 0)
        print_request(request, fleet_get_raw(here, "attempt"));
    else
        printf("its request, %s, has ended\n", id);
    if (transfer.n == 0)
        return;
    puts("");
    print_transfer(transfer);
}

/* ---- asking ---- */

static bool has_it(const fleet_reply_t *reply)
{
    return reply->status == 200 && fleet_get_raw(bt_text_str(&reply->body), "here").n > 0;
}

static void show(const fleet_tool_t *t, const fleet_reply_t *reply, const char *url)
{
    if (t->is_json)
        fleet_print_json(reply);
    else
        print_room(bt_text_str(&reply->body), url);
}

/* True: it has it, and that is shown. Whoever could not be asked is named, and counted. */
static bool try_replica(const fleet_tool_t *t, const char *path, bt_str_t row, unsigned *unasked)
{
    char name[160], url[300], err[1024] = "";
    fleet_reply_t reply;

    fleet_get(row, "name", name, sizeof name);
    fleet_get(row, "admin", url, sizeof url);
    if (url[0] == '\0') {
        (void) fleet_fail("%s: does not tell its admin url (it listens on all addresses): ask it "
                          "by --admin",
                          name);
        ++*unasked;
        return false;
    }
    if (!fleet_may_ask(t, url)) {
        (void) fleet_fail("%s: the store names %s: " FLEET_UNTRUSTED, name, url);
        ++*unasked;
        return false;
    }
    const int rc =
        fleet_call(t, url, BT_GET, path, BT_STR(""), t->timeout_ms, &reply, err, sizeof err);
    const bool is_found = rc == 0 && has_it(&reply);
    if (rc == 0 && reply.status != 200 && reply.status != 404)
        fleet_why(&reply, err, sizeof err);
    if (err[0] != '\0') {
        (void) fleet_fail("%s: %s", name, err);
        ++*unasked;
    }
    if (is_found)
        show(t, &reply, url);
    fleet_reply_fini(&reply);
    return is_found;
}

static int try_others(const fleet_tool_t *t, const char *path, bt_str_t told)
{
    unsigned unasked = 0;
    bt_json_cursor_t c;
    bt_json_item_t item;

    if (bt_json_array(&c, fleet_get_raw(told, "elsewhere")) == 0)
        while (bt_json_next(&c, &item) > 0)
            if (try_replica(t, path, item.value, &unasked))
                return 0;
    if (unasked > 0)
        return fleet_fail("room %s is at no replica that could be asked", t->words[0]);
    return fleet_fail("room %s is open at no replica: it has ended. What became of a request is in "
                      "GET /admin/explain/<request id> of its gateway",
                      t->words[0]);
}

int fleet_room(const fleet_tool_t *t)
{
    fleet_reply_t reply;
    bt_text_t path;
    uint64_t room;
    int status;

    if (t->count != 1 || bt_str_u64(bt_str(t->words[0]), &room) < 0 || room == 0 ||
        room > INT64_MAX)
        return fleet_refuse("room: one number from 1 to %" PRIi64
                            " is needed, as engines log it (bootstrap_room)",
                            INT64_MAX);
    bt_text_init(&path);
    bt_text_printf(&path, "/admin/rooms/%" PRIu64, room);
    status = fleet_ask(t, BT_GET, path.data, BT_STR(""), t->timeout_ms, &reply);
    if (status == 0 && has_it(&reply))
        show(t, &reply, t->admin);
    else if (status == 0)
        status = try_others(t, path.data, bt_text_str(&reply.body));
    fleet_reply_fini(&reply);
    bt_text_fini(&path);
    return status == 0 ? bt_tool_flushed() : status;
}
