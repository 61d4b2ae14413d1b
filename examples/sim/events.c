/* How it works: a block's name is its key. vLLM (since June 2026) writes maps and numbers without a sign, SGLang arrays and numbers with one. */
#include "events.h"

#include "base/err.h"
#include "zmq/publisher.h"

#include <stdlib.h>

#define SERVE_MS 10
#define KEPT 10000 /* the engines' buffer_steps */

struct sim_events {
    sim_worker_t *worker;
    bt_zmq_publisher_t *publisher;
    bt_timer_t timer;
    uint64_t count;
};

/* ---- msgpack ---- */

typedef struct writer {
    char *at;
    bool is_map;
} writer_t;

static void put_byte(writer_t *w, unsigned byte)
{
    *w->at++ = (char) byte;
}

static void put_big(writer_t *w, uint64_t n, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        put_byte(w, (unsigned) (n >> 8 * (bytes - 1 - i)) & 0xff);
}

static void put_text(writer_t *w, const char *word)
{
    const size_t n = strlen(word);

    put_byte(w, 0xa0 | (unsigned) n);
    memcpy(w->at, word, n);
    w->at += n;
}

static void put_key(writer_t *w, const char *key)
{
    if (w->is_map)
        put_text(w, key);
}

static void put_hash(writer_t *w, uint64_t hash)
{
    put_byte(w, w->is_map ? 0xcf : 0xd3);
    put_big(w, hash, 8);
}

/* [time, [event, rank 0: members of the event follow. */
static void begin(writer_t *w, const char *type, unsigned members)
{
    put_byte(w, 0x93);
    put_byte(w, 0xcb);
    put_big(w, UINT64_C(0x3ff0000000000000), 8);
    put_byte(w, 0x91);
    put_byte(w, (w->is_map ? 0x80 : 0x90) | members);
    put_key(w, "type");
    put_text(w, type);
}

static void publish(struct sim_events *e, const writer_t *w, const char *from)
{
    const unsigned lose = e->worker->options.kv_events_lose;

    e->count++;
    (void) bt_zmq_publish(e->publisher, (bt_str_t){from, (size_t) (w->at - from)},
                          lose > 0 && e->count % lose == 0);
}

/* ---- blocks ---- */

static void on_stored(void *user, const sim_prompt_t *prompt, unsigned block)
{
    struct sim_events *e = user;
    const unsigned size = e->worker->options.block_size;
    char *bytes = malloc(256 + (size_t) size * 5);
    writer_t w = {bytes, e->worker->options.engine == SIM_VLLM};

    if (bytes == NULL || prompt->ids == NULL) {
        free(bytes);
        return;
    }
    begin(&w, "BlockStored", w.is_map ? 6 : 7);
    put_key(&w, "block_hashes");
    put_byte(&w, 0x91);
    put_hash(&w, prompt->states[block]);
    put_key(&w, "parent_block_hash");
    if (block > 0)
        put_hash(&w, prompt->states[block - 1]);
    else
        put_byte(&w, 0xc0);
    put_key(&w, "token_ids");
    put_byte(&w, 0xdc);
    put_big(&w, size, 2);
    for (unsigned i = 0; i < size; i++) {
        put_byte(&w, 0xce);
        put_big(&w, prompt->ids[block * size + i], 4);
    }
    put_key(&w, "block_size");
    put_byte(&w, 0xcd);
    put_big(&w, size, 2);
    if (!w.is_map)
        put_byte(&w, 0xc0); /* lora_id */
    put_key(&w, "medium");
    put_text(&w, "GPU");
    put_byte(&w, 0);
    publish(e, &w, bytes);
    free(bytes);
}

static void on_removed(void *user, uint64_t key)
{
    struct sim_events *e = user;
    char bytes[128];
    writer_t w = {bytes, e->worker->options.engine == SIM_VLLM};

    begin(&w, "BlockRemoved", w.is_map ? 3 : 2);
    put_key(&w, "block_hashes");
    put_byte(&w, 0x91);
    put_hash(&w, key);
    if (w.is_map) {
        put_text(&w, "medium");
        put_text(&w, "GPU");
    }
    put_byte(&w, 0);
    publish(e, &w, bytes);
}

/* ---- life ---- */

static void on_timer(bt_timer_t *timer)
{
    struct sim_events *e = bt_container_of(timer, struct sim_events, timer);

    (void) bt_zmq_publisher_serve(e->publisher);
    bt_timer_start(timer, SERVE_MS);
}

int sim_events_open(sim_worker_t *worker)
{
    const sim_worker_options_t *o = &worker->options;
    const bt_zmq_publisher_config_t config = {.port = o->kv_events,
                                              .replay_port = o->kv_events_replay,
                                              .kept = KEPT,
                                              .is_old = o->engine != SIM_VLLM};
    struct sim_events *e;

    if (o->kv_events == 0)
        return 0;
    if ((e = calloc(1, sizeof(*e))) == NULL)
        return BT_E_NOMEM;
    const int rc = bt_zmq_publisher_new(&e->publisher, &config);
    if (rc < 0) {
        free(e);
        return rc;
    }
    e->worker = worker;
    worker->events = e;
    worker->blocks.on_stored = on_stored;
    worker->blocks.on_removed = on_removed;
    worker->blocks.user = e;
    bt_timer_init(worker->world->loop, &e->timer, on_timer);
    on_timer(&e->timer);
    return 0;
}

void sim_events_close(sim_worker_t *worker)
{
    struct sim_events *e = worker->events;

    worker->events = NULL;
    worker->blocks.on_stored = NULL;
    worker->blocks.on_removed = NULL;
    if (e == NULL)
        return;
    bt_timer_stop(&e->timer);
    bt_zmq_publisher_free(e->publisher);
    free(e);
}
