#include "registrant.h"

#include "base/err.h"
#include "zmq/sender.h"

#include <stdio.h>
#include <stdlib.h>

#define HEARTBEAT_MS 3000
#define NOTIFY_PORT                                                                                \
    61005 /* the engine's default; nobody listens: what would go there is done in this process */

struct sim_registrant {
    sim_worker_t *worker;
    bt_zmq_sender_t *sender;
    bt_timer_t heartbeat;
};

void sim_kv_address(const sim_worker_t *worker, char out[SIM_KV_ADDRESS_MAX])
{
    if (worker->options.connector == SIM_P2P_NCCL)
        snprintf(out, SIM_KV_ADDRESS_MAX, "127.0.0.1:%u", worker->side_port);
    else
        snprintf(out, SIM_KV_ADDRESS_MAX, "host:127.0.0.1,handshake:%u,notify:%d",
                 worker->side_port, NOTIFY_PORT);
}

/* ---- the message ---- */

static char *put_text(char *at, const char *word)
{
    const bt_str_t text = bt_str(word);

    if (text.n < 32) {
        *at++ = (char) (0xa0 | text.n);
    } else {
        *at++ = '\xd9';
        *at++ = (char) text.n;
    }
    memcpy(at, text.p, text.n);
    return at + text.n;
}

static char *put_number(char *at, unsigned n)
{
    *at++ = '\xcd';
    *at++ = (char) (n >> 8);
    *at++ = (char) n;
    return at;
}

static bt_str_t write_message(const sim_worker_t *worker, const char *kv_address, char *out)
{
    const sim_worker_options_t *o = &worker->options;
    const bool is_moriio = o->connector == SIM_MORIIO;
    char http[32], *at = out;

    snprintf(http, sizeof(http), "127.0.0.1:%u", worker->port);
    *at++ = (char) (0x80 | (is_moriio ? 6 : 3));
    at = put_text(put_text(at, "type"), o->role == SIM_PREFILL ? "P" : "D");
    at = put_text(put_text(at, "http_address"), http);
    at = put_text(put_text(at, "zmq_address"), kv_address);
    if (is_moriio) {
        at = put_number(put_text(at, "dp_size"), o->dp);
        at = put_number(put_text(at, "tp_size"), o->tp);
        at = put_text(put_text(at, "transfer_mode"), o->read_mode ? "READ" : "WRITE");
    }
    return (bt_str_t){out, (size_t) (at - out)};
}

static void on_heartbeat(bt_timer_t *timer)
{
    struct sim_registrant *r = bt_container_of(timer, struct sim_registrant, heartbeat);
    char kv_address[SIM_KV_ADDRESS_MAX], message[400];

    sim_kv_address(r->worker, kv_address);
    const bt_str_t frame = write_message(r->worker, kv_address, message);
    (void) bt_zmq_sender_send(r->sender, &frame, 1);
    bt_timer_start(timer, sim_scaled_ms(r->worker->world, HEARTBEAT_MS));
}

/* ---- life ---- */

int sim_registrant_open(sim_worker_t *worker)
{
    const bool is_p2p = worker->options.connector == SIM_P2P_NCCL;
    char endpoint[80], kv_address[SIM_KV_ADDRESS_MAX];
    struct sim_registrant *r;

    if (worker->options.registers_at[0] == '\0')
        return 0;
    if ((r = calloc(1, sizeof(*r))) == NULL)
        return BT_E_NOMEM;
    sim_kv_address(worker, kv_address);
    snprintf(endpoint, sizeof(endpoint), "tcp://%s", worker->options.registers_at);
    int rc = bt_zmq_sender_new(&r->sender, BT_ZMQ_DEALER, endpoint,
                               is_p2p ? bt_str(kv_address) : BT_STR(""));
    if (rc < 0) {
        free(r);
        return rc;
    }
    r->worker = worker;
    worker->registrant = r;
    bt_timer_init(worker->world->loop, &r->heartbeat, on_heartbeat);
    on_heartbeat(&r->heartbeat);
    return 0;
}

void sim_registrant_close(sim_worker_t *worker)
{
    struct sim_registrant *r = worker->registrant;

    worker->registrant = NULL;
    if (r == NULL)
        return;
    bt_timer_stop(&r->heartbeat);
    bt_zmq_sender_free(r->sender);
    free(r);
}
