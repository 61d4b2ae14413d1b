/* Agents and rooms as JSON, for /admin/rooms; one room, for /admin/rooms/<room>. Room ids are strings: 63 bits do not survive a reader that takes numbers for doubles. */
#include "transfer_impl.h"

#include <inttypes.h>

const char *bt_transfer_phase_name(enum bt_transfer_phase phase)
{
    static const char *const names[BT_TRANSFER_PHASES] = {"opening",  "waiting", "moving",
                                                          "orphaned", "done",    "failed"};
    return names[phase];
}

static const struct {
    uint32_t bit;
    const char *name;
} kinds[] = {{BT_KV_FAKE, "fake"},
             {BT_KV_MEM, "mem"},
             {BT_KV_SHM, "shm"},
             {BT_KV_TCP, "tcp"},
             {BT_KV_VERBS, "verbs"}};
#define KIND_COUNT (sizeof(kinds) / sizeof(kinds[0]))

static void put_text(bt_text_t *out, const char *name, const char *value)
{
    bt_text_printf(out, "\"%s\":", name);
    bt_text_json_str(out, bt_str(value));
}

/* ---- agents ---- */

static void put_kinds(bt_text_t *out, uint32_t bits)
{
    const char *comma = "";

    bt_text_puts(out, ",\"backends\":[");
    for (size_t i = 0; i < KIND_COUNT; i++) {
        if ((bits & kinds[i].bit) == 0)
            continue;
        bt_text_printf(out, "%s\"%s\"", comma, kinds[i].name);
        comma = ",";
    }
    bt_text_puts(out, "]");
}

static void put_agent(bt_text_t *out, const bt_transfer_agent_t *agent, uint64_t now_ms)
{
    const char *open = strchr(agent->host, ':') != NULL ? "[" : "";
    const char *close = open[0] != '\0' ? "]" : "";

    bt_text_puts(out, "{");
    put_text(out, "worker", agent->group != NULL ? agent->group->worker->name : agent->worker);
    bt_text_printf(out, ",\"is_waiting\":%s,", agent->group != NULL ? "false" : "true");
    put_text(out, "name", agent->name);
    bt_text_printf(out, ",\"rank\":%u,\"ranks\":%u,\"address\":\"%s%s%s:%u\",\"pid\":%u",
                   agent->rank, agent->ranks, open, agent->host, close, agent->port, agent->pid);
    put_kinds(out, agent->kinds);
    bt_text_printf(out,
                   ",\"since_ms\":%" PRIu64 ",\"last_heard_ms\":%" PRIu64 ",\"rooms_open\":%u"
                   ",\"bytes_sent\":%" PRIu64 ",\"bytes_received\":%" PRIu64 "}",
                   now_ms - agent->since_ms, now_ms - agent->heard_ms, agent->participant_count,
                   agent->bytes_sent, agent->bytes_received);
}

static void put_agents(bt_text_t *out, const bt_transfer_t *t)
{
    uint64_t now_ms = bt_clock_ms();
    const char *comma = "";

    for (const bt_list_t *it = t->agents.next; it != &t->agents; it = it->next) {
        const bt_transfer_agent_t *agent = bt_container_of(it, bt_transfer_agent_t, link);
        if (!agent->is_registered)
            continue;
        bt_text_puts(out, comma);
        put_agent(out, agent, now_ms);
        comma = ",";
    }
}

/* ---- rooms ---- */

/* By rank; null = its engine has not opened the room (or it has not said so yet). */
static void put_side(bt_text_t *out, const char *name, const bt_transfer_side_t *side)
{
    static const char *const states[] = {"Failed", "Bootstrapping", "WaitingForInput",
                                         "Transferring", "Success"};

    bt_text_printf(out, ",\"%s\":[", name);
    for (unsigned i = 0; i < side->count; i++) {
        const bt_transfer_participant_t *participant = &side->participants[i];
        bt_text_puts(out, i > 0 ? "," : "");
        if (participant->has_told)
            bt_text_printf(out, "\"%s\"", states[participant->told.state]);
        else
            bt_text_puts(out, "null");
    }
    bt_text_puts(out, "]");
}

static uint64_t longest_us(const bt_transfer_side_t *side)
{
    uint64_t us = 0;

    for (unsigned i = 0; i < side->count; i++)
        if (side->participants[i].told.transfer_us > us)
            us = side->participants[i].told.transfer_us;
    return us;
}

/* While it moves: over the last interval; when it is over: over all of it. */
static uint64_t rate_of(const bt_transfer_room_t *room, uint64_t bytes)
{
    uint64_t us = longest_us(&room->receiver);

    if (room->ended_us == 0)
        return room->rate;
    return us > 0 ? (uint64_t) ((double) bytes * 1e6 / (double) us) : 0;
}

static void put_figures(bt_text_t *out, const bt_transfer_room_t *room, uint64_t now_us)
{
    uint64_t bytes = bt_transfer_side_bytes(&room->receiver), pages = 0, wanted = 0;
    const char *backend = NULL;

    for (unsigned i = 0; i < room->receiver.count; i++) {
        const bt_kv_control_room_t *told = &room->receiver.participants[i].told;
        pages += told->pages;
        wanted += told->pages_wanted;
        for (size_t k = 0; k < KIND_COUNT; k++)
            if (told->kind == kinds[k].bit)
                backend = kinds[k].name;
    }
    bt_text_printf(out,
                   ",\"bytes\":%" PRIu64 ",\"pages\":%" PRIu64 ",\"pages_wanted\":%" PRIu64
                   ",\"rate_bytes_per_s\":%" PRIu64,
                   bytes, pages, wanted, rate_of(room, bytes));
    bt_text_puts(out, ",\"backend\":");
    if (backend != NULL)
        bt_text_json_str(out, bt_str(backend));
    else
        bt_text_puts(out, "null");
    bt_text_printf(out, ",\"age_ms\":%" PRIu64 ",\"phase_ms\":%" PRIu64 ",\"repairs\":%u",
                   (now_us - room->opened_us) / 1000, (now_us - room->phase_us) / 1000,
                   room->repairs);
}

static void put_room(bt_text_t *out, const bt_transfer_room_t *room, uint64_t now_us)
{
    bt_text_printf(out, "{\"room\":\"%" PRIu64 "\",\"source_room\":\"%" PRIu64 "\",", room->id,
                   room->source_room);
    put_text(out, "request_id", room->request_id);
    bt_text_puts(out, ",");
    put_text(out, "prefill", room->prefill_name);
    bt_text_puts(out, ",");
    put_text(out, "decode", room->decode_name);
    bt_text_puts(out, ",");
    put_text(out, "phase", bt_transfer_phase_name(room->phase));
    put_side(out, "prefill_states", &room->sender);
    put_side(out, "decode_states", &room->receiver);
    put_figures(out, room, now_us);
    bt_text_puts(out, ",");
    put_text(out, "reason", room->reason);
    bt_text_puts(out, "}");
}

static unsigned put_rooms(bt_text_t *out, const bt_list_t *list, unsigned limit, const char *comma)
{
    uint64_t now_us = bt_clock_us();
    unsigned count = 0;

    for (const bt_list_t *it = list->next; it != list && count < limit; it = it->next, count++) {
        bt_text_puts(out, count > 0 ? "," : comma);
        put_room(out, bt_container_of(it, bt_transfer_room_t, order), now_us);
    }
    return count;
}

void bt_transfer_describe(const bt_transfer_t *t, unsigned limit, bt_text_t *out)
{
    bt_text_puts(out, "{\"agents\":[");
    put_agents(out, t);
    bt_text_puts(out, "],\"rooms\":[");
    unsigned count = put_rooms(out, &t->rooms, limit, "");
    (void) put_rooms(out, &t->ended, limit - count, count > 0 ? "," : "");
    bt_text_printf(out, "],\"rooms_total\":%" PRIu64 "}\n", t->stats.rooms_open + t->ended_count);
}

/* ---- one room ---- */

/* Of those that have ended; the last one first. */
static const bt_transfer_room_t *find_ended(const bt_transfer_t *t, uint64_t name)
{
    for (const bt_list_t *it = t->ended.prev; it != &t->ended; it = it->prev) {
        const bt_transfer_room_t *room = bt_container_of(it, bt_transfer_room_t, order);
        if (room->id == name || room->source_room == name)
            return room;
    }
    return NULL;
}

bool bt_transfer_describe_room(const bt_transfer_t *t, uint64_t room, bt_text_t *out)
{
    const bt_transfer_room_t *found = bt_transfer_room_find(t, room);

    if (found == NULL)
        found = find_ended(t, room);
    if (found == NULL)
        return false;
    put_room(out, found, bt_clock_us());
    return true;
}
