/* Figures, copied out under the lock. The describe text is one line a link: who, by what, why not better, how much. */
#include "transport/agent/agent.h"
#include "transport/control/link.h"
#include "transport/gateway/gateway_conn.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

const char *bt_kv_error_text(int rc)
{
    return rc == 0 ? "no error" : bt_err_text(rc);
}

static uint64_t span_us(uint64_t from_us, uint64_t to_us)
{
    return from_us != 0 && to_us > from_us ? to_us - from_us : 0;
}

void bt_kv_room_figures(const bt_kv_agent_t *agent, const struct bt_kv_room *room,
                        bt_kv_room_stats_t *stats_p)
{
    uint64_t end_us = room->ended_us != 0 ? room->ended_us : agent->now_us;
    uint64_t ready_us = room->ready_us != 0 ? room->ready_us : end_us;
    uint64_t first_us = room->first_us != 0 ? room->first_us : end_us;

    *stats_p = room->stats;
    stats_p->bootstrap_us = span_us(room->opened_us, ready_us);
    stats_p->wait_us = span_us(room->ready_us, first_us);
    stats_p->transfer_us = span_us(room->first_us, end_us);
}

int bt_kv_room_stats(bt_kv_agent_t *agent, bt_kv_room_t handle, bt_kv_room_stats_t *stats_p)
{
    if (agent == NULL || stats_p == NULL)
        return BT_E_INVAL;
    bt_kv_enter(agent);
    const struct bt_kv_room *room = bt_kv_room_find(agent, handle);
    if (room != NULL)
        bt_kv_room_figures(agent, room, stats_p);
    bt_kv_leave(agent);
    return room != NULL ? 0 : BT_E_INVAL;
}

static void add_copy(bt_kv_agent_stats_t *stats, const bt_kv_copy_choice_t *choice)
{
    stats->copy_small = choice->small;
    stats->copy_pages = choice->pages;
    stats->copy_runs = choice->runs;
    stats->copy_bytes_per_s = choice->bytes_per_s;
    stats->memcpy_bytes_per_s = choice->memcpy_bytes_per_s;
    stats->copy_measured_us = choice->took_us;
}

void bt_kv_agent_stats(bt_kv_agent_t *agent, bt_kv_agent_stats_t *stats_p)
{
    bt_kv_enter(agent);
    *stats_p = agent->stats;
    bt_kv_leave(agent);
    if (bt_kv_copy_chosen() != NULL)
        add_copy(stats_p, bt_kv_copy_chosen());
}

/* ---- describe ---- */
typedef struct out {
    char *text;
    size_t size, n;
} out_t;

__attribute__((format(printf, 2, 3))) static void add(out_t *out, const char *fmt, ...)
{
    va_list args;
    size_t at = out->n < out->size ? out->n : out->size;

    va_start(args, fmt);
    int n = vsnprintf(out->size > at ? out->text + at : NULL, out->size - at, fmt, args);
    va_end(args);
    out->n += n > 0 ? (size_t) n : 0;
}

static void describe_link(out_t *out, bt_kv_agent_t *agent, bt_kv_link_t *link)
{
    static const char *const states[] = {"connecting", "greeting", "up", "lost"};
    char text[256] = "";
    uint64_t age_us = span_us(link->opened_us, bt_clock_us());
    uint64_t bytes = link->bytes_sent + link->bytes_received;

    add(out, "%s %s: %s", link->is_initiator ? "to" : "from", link->peer, states[link->state]);
    if (link->path != NULL) {
        const bt_kv_backend_ops_t *ops = link->path->backend->ops;
        if (ops->describe != NULL)
            ops->describe(link->path, text, sizeof(text));
        add(out, ", by %s%s%s%s", ops->name, text[0] != '\0' ? " (" : "", text,
            text[0] != '\0' ? ")" : "");
        for (unsigned i = 0; i < BT_KV_BACKENDS; i++)
            if (agent->backends[i] == NULL && i > 1)
                add(out, "; no %s: %s",
                    i == 2   ? "shm"
                    : i == 3 ? "tcp"
                             : "verbs",
                    agent->why_not[i]);
        if (link->path_why[0] != '\0')
            add(out, "; %s", link->path_why);
    }
    add(out, "; %" PRIu64 " bytes, %" PRIu64 " bytes/s\n", bytes,
        age_us > 0 ? (uint64_t) ((double) bytes * 1e6 / (double) age_us) : 0);
}

static void describe_gateways(out_t *out, const struct bt_kv_gateways *gateways)
{
    for (uint32_t i = 0; gateways != NULL && i < gateways->conn_count; i++) {
        const bt_kv_gateway_conn_t *conn = &gateways->conns[i];
        add(out, "gateway %s:%u: %s, for %s\n", conn->host, conn->port,
            conn->state == BT_KV_GATEWAY_CONN_UP ? "registered" : conn->why, conn->worker);
    }
}

int bt_kv_agent_describe(bt_kv_agent_t *agent, char *text, size_t size)
{
    out_t out = {text, size, 0};

    if (agent == NULL)
        return BT_E_INVAL;
    if (size > 0)
        text[0] = '\0';
    bt_kv_enter(agent);
    for (bt_list_t *it = agent->links.next; it != &agent->links; it = it->next)
        describe_link(&out, agent, bt_container_of(it, bt_kv_link_t, link));
    describe_gateways(&out, agent->gateways);
    bt_kv_leave(agent);
    return (int) out.n;
}
