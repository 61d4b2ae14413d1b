/* kv.c - agents, memory and gateways of a worker; rooms are kv_room.c.
 *
 * Agents run threads of their own; the loop is woken by their event descriptors and never waits for them. Closing an agent takes up to a second (its
 * peers are told), so it happens on libuv's pool, and the struct goes when that and the poll handles are over.
 */
#include "kv.h"

#include "base/err.h"
#include "words.h"
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- closing ---- */

static void let_go(sim_kv_t *kv)
{
    sim_world_t *world = kv->worker->world;

    if (--kv->refs > 0)
        return;
    free(kv);
    sim_world_let_go(world);
}

static void close_agents(uv_work_t *work)
{
    sim_kv_t *kv = bt_container_of(work, sim_kv_t, closing);

    for (unsigned i = 0; i < kv->rank_count; i++) {
        sim_kv_rank_t *rank = &kv->ranks[i];
        bt_kv_agent_close(rank->agent);
        if (rank->private_bytes > 0)
            munmap(rank->pages.base, rank->private_bytes);
    }
}

static void on_agents_closed(uv_work_t *work, int status)
{
    (void) status;
    let_go(bt_container_of(work, sim_kv_t, closing));
}

static void on_poll_closed(uv_handle_t *handle)
{
    let_go(((sim_kv_rank_t *) handle->data)->kv);
}

void sim_kv_close(sim_kv_t *kv)
{
    if (kv == NULL)
        return;
    kv->is_closed = true;
    sim_kv_rooms_close(kv);
    bt_timer_stop(&kv->release);
    kv->refs = 1;
    sim_world_hold(kv->worker->world);
    for (unsigned i = 0; i < kv->rank_count; i++)
        if (kv->ranks[i].poll.data != NULL) {
            kv->refs++;
            uv_close((uv_handle_t *) &kv->ranks[i].poll, on_poll_closed);
        }
    if (uv_queue_work(&kv->worker->world->loop->uv, &kv->closing, close_agents, on_agents_closed) !=
        0) {
        close_agents(&kv->closing);
        let_go(kv);
    }
}

/* ---- opening ---- */

static void on_event(uv_poll_t *poll, int status, int events)
{
    sim_kv_rank_t *rank = poll->data;
    uint64_t count;

    (void) status;
    (void) events;
    if (read(bt_kv_agent_fd(rank->agent), &count, sizeof(count)) < 0)
        return; /* somebody else's wake-up of the same kind has been read with the last one */
    sim_kv_rooms_look(rank->kv);
}

static int start_poll(sim_kv_rank_t *rank)
{
    bt_loop_t *loop = rank->kv->worker->world->loop;
    int rc = uv_poll_init(&loop->uv, &rank->poll, bt_kv_agent_fd(rank->agent));

    if (rc != 0)
        return rc;
    rank->poll.data = rank;
    return uv_poll_start(&rank->poll, UV_READABLE, on_event);
}

static int get_memory(sim_kv_rank_t *rank, bool is_private)
{
    size_t size = sim_pages_size(&rank->pages);
    void *p = NULL;
    int rc;

    if (!is_private) {
        rc = bt_kv_pool_alloc(rank->agent, size, &p, &rank->region);
        rank->pages.base = p;
        return rc;
    }
    p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
             0);
    if (p == MAP_FAILED)
        return BT_E_NOMEM;
    rank->pages.base = p;
    rank->private_bytes = size;
    return bt_kv_region_add(rank->agent, p, size, &rank->region);
}

static int add_layout(sim_kv_rank_t *rank)
{
    const sim_pages_t *p = &rank->pages;
    bt_kv_buffer_t *buffers = calloc(p->buffers, sizeof(*buffers));

    if (buffers == NULL)
        return BT_E_NOMEM;
    for (unsigned b = 0; b < p->buffers; b++)
        buffers[b] = (bt_kv_buffer_t){.region = rank->region,
                                      .offset = sim_pages_offset(p, b, 0),
                                      .stride = p->page_bytes,
                                      .bytes = p->page_bytes};
    int rc = bt_kv_layout_add(rank->agent, buffers, p->buffers, p->count, &rank->layout);
    free(buffers);
    return rc;
}

static uint32_t scaled(const sim_worker_t *worker, double ms)
{
    return (uint32_t) sim_scaled_ms(worker->world, ms);
}

static int open_agent(sim_kv_rank_t *rank, unsigned number, char *error, size_t error_size)
{
    const sim_worker_t *worker = rank->kv->worker;
    const sim_worker_options_t *o = &worker->options;
    char name[64];
    bt_kv_config_t config = {.name = name,
                             .backends = o->kv_backends,
                             .bootstrap_ms = scaled(worker, o->kv_bootstrap_ms),
                             .stall_ms = scaled(worker, o->kv_stall_ms),
                             .release_ms = scaled(worker, o->kv_release_ms),
                             .heartbeat_ms = o->kv_dead_ms / 5 > 0 ? o->kv_dead_ms / 5 : 1,
                             .dead_ms = o->kv_dead_ms,
                             .crc = o->kv_crc,
                             .token = o->kv_token};

    snprintf(name, sizeof(name), "%s/%u", o->name, number);
    return bt_kv_agent_open(&rank->agent, &config, error, error_size);
}

static int open_rank(sim_kv_t *kv, unsigned number, char *error, size_t error_size)
{
    const sim_worker_options_t *o = &kv->worker->options;
    sim_kv_rank_t *rank = &kv->ranks[number];

    *rank = (sim_kv_rank_t){.kv = kv,
                            .pages = {.rank = number,
                                      .buffers = o->kv_layers * 2,
                                      .count = o->blocks + 1,
                                      .page_bytes = o->kv_page_bytes}};
    kv->rank_count++;
    int rc = open_agent(rank, number, error, error_size);
    if (rc != 0)
        return rc;
    rc = get_memory(rank, o->kv_private);
    if (rc == 0)
        rc = add_layout(rank);
    if (rc == 0)
        rc = start_poll(rank);
    if (rc != 0)
        snprintf(error, error_size, "%zu bytes of KV memory: %s; take fewer blocks",
                 sim_pages_size(&rank->pages), bt_kv_error_text(rc));
    return rc;
}

int sim_kv_open(sim_kv_t **kv_p, sim_worker_t *worker, char *error, size_t error_size)
{
    const sim_worker_options_t *o = &worker->options;
    sim_kv_t *kv = calloc(1, sizeof(*kv));
    int rc = 0;

    if (kv == NULL)
        return BT_E_NOMEM;
    kv->worker = worker;
    bt_list_init(&kv->live);
    bt_list_init(&kv->ended);
    bt_list_init(&kv->leaving);
    bt_timer_init(worker->world->loop, &kv->release, sim_kv_rooms_release);
    for (unsigned i = 0; i < o->ranks && rc == 0; i++)
        rc = open_rank(kv, i, error, error_size);
    if (rc == 0 && o->gateway[0] != '\0')
        rc = sim_kv_gateway(kv, bt_str(o->gateway),
                            o->gateway_token[0] != '\0' ? o->gateway_token : NULL, error,
                            error_size);
    if (rc != 0) {
        sim_kv_close(kv);
        return rc;
    }
    *kv_p = kv;
    return 0;
}

/* ---- gateways ---- */

static int read_address(bt_str_t address, char *host, size_t host_size, uint16_t *port_p)
{
    const char *colon = memchr(address.p, ':', address.n);
    size_t n = colon != NULL ? (size_t) (colon - address.p) : 0;
    uint64_t port = 0;

    if (n == 0 || n >= host_size ||
        bt_str_u64((bt_str_t){colon + 1, address.n - n - 1}, &port) != 0 || port == 0 ||
        port > 65535)
        return BT_E_INVAL;
    memcpy(host, address.p, n);
    host[n] = '\0';
    *port_p = (uint16_t) port;
    return 0;
}

int sim_kv_gateway(sim_kv_t *kv, bt_str_t address, const char *token, char *error,
                   size_t error_size)
{
    const sim_worker_t *worker = kv->worker;
    unsigned at = kv->gateway_count;
    char host[48], url[64];
    bt_kv_gateway_t gateway = {
        .host = host, .worker = url, .ranks = kv->rank_count, .token = token};
    int rc = at < BT_KV_GATEWAYS_MAX ? read_address(address, host, sizeof(host), &gateway.port)
                                     : BT_E_LIMIT;

    snprintf(url, sizeof(url), "http://127.0.0.1:%u", worker->port);
    if (worker->options.gateway_worker[0] != '\0')
        gateway.worker = worker->options.gateway_worker;
    for (unsigned i = 0; i < kv->rank_count && rc == 0; i++) {
        gateway.rank = i;
        rc = bt_kv_gateway_add(kv->ranks[i].agent, &gateway, &kv->ranks[i].gateways[at]);
    }
    if (rc != 0) {
        snprintf(error, error_size,
                 "gateway %.*s: %s; write 127.0.0.1:PORT, the gateway's --transfer-port",
                 BT_STR_ARG(address), bt_kv_error_text(rc));
        return rc;
    }
    snprintf(kv->gateways[at], sizeof(kv->gateways[at]), "%.*s", BT_STR_ARG(address));
    kv->gateway_count++;
    return 0;
}

/* ---- pages ---- */

void sim_kv_write(sim_kv_t *kv, const uint32_t *ids, unsigned first, unsigned count)
{
    const sim_block_t *table = kv->worker->blocks.table;

    for (unsigned r = 0; r < kv->rank_count; r++)
        for (unsigned i = first; i < count; i++)
            sim_page_write(&kv->ranks[r].pages, ids[i], &table[ids[i]]);
}

/* Every rank has the same content in other bytes; where they differ, or a byte is not as it was written, the state after the block is another. */
static void read_block(const sim_kv_t *kv, uint32_t id, sim_block_t *block_p)
{
    uint64_t wrong = sim_page_read(&kv->ranks[0].pages, id, block_p);

    for (unsigned r = 1; r < kv->rank_count; r++) {
        sim_block_t other;
        wrong |= sim_page_read(&kv->ranks[r].pages, id, &other);
        wrong |= (other.from ^ block_p->from) | (other.to ^ block_p->to) |
                 (other.bytes ^ block_p->bytes);
    }
    block_p->to ^= sim_mix(wrong); /* sim_mix(0) is 0 */
}

uint64_t sim_kv_read(sim_kv_t *kv, const sim_prompt_t *prompt, const uint32_t *ids)
{
    sim_blocks_t *blocks = &kv->worker->blocks;
    sim_block_t content;

    for (unsigned i = 0; i < prompt->blocks; i++) {
        read_block(kv, ids[i], &content);
        sim_blocks_fill(blocks, prompt, ids, i, &content);
    }
    return sim_blocks_kv(blocks, ids, prompt->blocks);
}

/* ---- what /sim/state says ---- */

unsigned sim_kv_port(const sim_kv_t *kv)
{
    return kv != NULL ? bt_kv_agent_port(kv->ranks[0].agent) : 0;
}

static void put_gateways(const sim_kv_rank_t *rank, bt_text_t *out)
{
    char why[256];

    bt_text_puts(out, ",\"gateways\":[");
    for (unsigned i = 0; i < rank->kv->gateway_count; i++) {
        bool is_in = bt_kv_gateway_state(rank->agent, rank->gateways[i], why, sizeof(why)) == 1;
        bt_text_puts(out, i > 0 ? ",{\"address\":" : "{\"address\":");
        bt_text_json_str(out, bt_str(rank->kv->gateways[i]));
        bt_text_printf(out, ",\"registered\":%s,\"why\":", is_in ? "true" : "false");
        bt_text_json_str(out, bt_str(why));
        bt_text_puts(out, "}");
    }
    bt_text_puts(out, "]");
}

static void put_agent(const sim_kv_rank_t *rank, bt_text_t *out)
{
    bt_kv_agent_stats_t s;

    bt_kv_agent_stats(rank->agent, &s);
    bt_text_printf(
        out,
        "{\"rank\":%u,\"port\":%u,\"rooms_open\":%llu,\"bytes_sent\":%llu,"
        "\"bytes_received\":%llu,\"crc_errors\":%llu,"
        "\"links\":{\"mem\":%llu,\"shm\":%llu,\"tcp\":%llu}",
        rank->pages.rank, bt_kv_agent_port(rank->agent), (unsigned long long) s.rooms_open,
        (unsigned long long) s.bytes_sent, (unsigned long long) s.bytes_received,
        (unsigned long long) s.crc_errors, (unsigned long long) s.links_by_backend[1],
        (unsigned long long) s.links_by_backend[2], (unsigned long long) s.links_by_backend[3]);
    put_gateways(rank, out);
    bt_text_puts(out, "}");
}

static void put_rooms(const sim_kv_t *kv, bt_text_t *out)
{
    unsigned by_state[5] = {0}, leaving = 0;
    bt_list_t *it, *tmp;

    bt_list_each ((bt_list_t *) (uintptr_t) &kv->live, it, tmp) {
        const sim_kv_room_t *room = bt_container_of(it, sim_kv_room_t, link);
        by_state[bt_kv_poll(kv->ranks[0].agent, room->handles[0])]++;
    }
    bt_list_each ((bt_list_t *) (uintptr_t) &kv->leaving, it, tmp)
        leaving++;
    bt_text_printf(out,
                   ",\"rooms\":{\"bootstrapping\":%u,\"waiting_for_input\":%u,\"transferring\":%u,"
                   "\"ending\":%u,\"releasing\":%u}",
                   by_state[BT_KV_BOOTSTRAPPING], by_state[BT_KV_WAITING_FOR_INPUT],
                   by_state[BT_KV_TRANSFERRING], by_state[BT_KV_SUCCESS] + by_state[BT_KV_FAILED],
                   leaving);
}

void sim_kv_print(sim_kv_t *kv, bt_text_t *out)
{
    const sim_kv_counters_t *c = &kv->counters;

    bt_text_puts(out, ",\"kv\":{\"agents\":[");
    for (unsigned i = 0; i < kv->rank_count; i++) {
        bt_text_puts(out, i > 0 ? "," : "");
        put_agent(&kv->ranks[i], out);
    }
    bt_text_puts(out, "]");
    put_rooms(kv, out);
    bt_text_printf(
        out,
        ",\"rooms_opened\":%llu,\"rooms_succeeded\":%llu,\"rooms_failed\":%llu,\"bytes\":%llu,"
        "\"last_failure\":",
        (unsigned long long) c->rooms, (unsigned long long) c->succeeded,
        (unsigned long long) c->failed, (unsigned long long) c->bytes);
    bt_text_json_str(out, bt_str(kv->last_failure));
    bt_text_puts(out, "}");
}
