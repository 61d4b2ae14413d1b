/* options_worker.c - what --worker and a line of --workers say: the keys, and what must hold among them. */
#include "options_impl.h"

#include "base/err.h"
#include "pages.h"
#include "transport/baton_kv.h"
#include "zmq/sockets.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#define FOR_EVER_MS 1e9 /* no kv_transfer_timeout_ms */

enum kind { TEXT, NUMBER, REAL, FLAG, ROLE, ENGINE, CONNECTOR, BACKENDS, LATENCY, EC };

/* What --worker knows. size: room of a text. */
static const struct key {
    const char *name;
    enum kind kind;
    size_t offset, size;
    const char *help;
} keys[] = {
#define AT(member) offsetof(sim_worker_options_t, member)
#define ROOM(member) sizeof(((sim_worker_options_t *) 0)->member)
    {"name", TEXT, AT(name), ROOM(name), "name in all output (p0, d0, h0 ... when absent)"},
    {"role", ROLE, AT(role), 0, "prefill | decode | hybrid (plain is the same) | encode (vllm)"},
    {"engine", ENGINE, AT(engine), 0, "vllm | sglang | trtllm"},
    {"connector", CONNECTOR, AT(connector), 0,
     "NixlConnector | NixlPushConnector | ExampleConnector | SharedStorageConnector | "
     "LMCacheConnectorV1 |\n"
     "                     MooncakeConnectorV1 | MooncakeHybridConnector | BatonConnector |\n"
     "                     MooncakeConnector | PyNcclConnector | OffloadingConnector |\n"
     "                     P2pNcclConnector | MoRIIOConnector | none\n"
     "                     (vllm pairs: NixlConnector)"},
    {"count", NUMBER, AT(count), 0, "that many workers alike (names get a number)"},
    {"host", TEXT, AT(host), ROOM(host), "address that it listens at (127.0.0.1)"},
    {"port", NUMBER, AT(port), 0, "HTTP port; 0 = any free one"},
    {"bootstrap_port", NUMBER, AT(bootstrap_port), 0,
     "sglang and MooncakeConnector, prefill: port of the bootstrap server; 0 = any"},
    {"side_port", NUMBER, AT(side_port), 0, "vllm: port of the NIXL side channel; 0 = any"},
    {"engine_id", TEXT, AT(engine_id), ROOM(engine_id), "vllm: engine id (the name when absent)"},
    {"model", TEXT, AT(model), ROOM(model), "model served (--model when absent)"},
    {"version", TEXT, AT(version), ROOM(version), "engine version to report"},
    {"tp", NUMBER, AT(tp), 0, "tensor-parallel size to report"},
    {"dp", NUMBER, AT(dp), 0,
     "sglang, MooncakeConnector, OffloadingConnector, MoRIIOConnector: data-parallel ranks"},
    {"block_size", NUMBER, AT(block_size), 0, "tokens a KV block (even)"},
    {"blocks", NUMBER, AT(blocks), 0, "KV blocks"},
    {"context", NUMBER, AT(context), 0, "longest prompt plus answer, in tokens"},
    {"answer_tokens", NUMBER, AT(answer_tokens), 0,
     "length of an answer without max_tokens (chat)"},
    {"by_ids", FLAG, AT(by_ids), 0,
     "1 = each token is a function of all ids before it, and told when asked (return_token_ids)"},
    {"kv_events", NUMBER, AT(kv_events), 0,
     "port at which KV events are published (with by_ids=1)"},
    {"kv_events_replay", NUMBER, AT(kv_events_replay), 0, "port at which they are said again"},
    {"kv_events_lose", NUMBER, AT(kv_events_lose), 0,
     "N = each N-th batch is lost on its way to the subscribers"},
    {"lease_ms", REAL, AT(lease_ms), 0, "vllm: how long prefill holds KV nobody reads (scaled)"},
    {"evicts_by_priority", FLAG, AT(evicts_by_priority), 0,
     "sglang: 1 = as with --radix-eviction-policy priority"},
    {"waiting_ms", REAL, AT(waiting_ms), 0, "sglang: both waiting timers (scaled)"},
    {"expired_keep", FLAG, AT(expired_keep), 0,
     "1 = expired KV stays readable until its blocks are used again"},
    {"ttft", REAL, AT(ttft), 0, "ms to the first token"},
    {"ttft_per_token", REAL, AT(ttft_per_token), 0,
     "  + ms per prompt token that must be computed"},
    {"ttft_per_token2", REAL, AT(ttft_per_token2), 0, "  + ms per such token squared"},
    {"itl", REAL, AT(itl), 0, "ms between tokens"},
    {"itl_per_request", REAL, AT(itl_per_request), 0, "  + ms per other request on the worker"},
    {"transfer_ms", REAL, AT(transfer_ms), 0, "ms that moving KV takes"},
    {"jitter", REAL, AT(jitter), 0, "0.1 = every time up to 10 % longer or shorter (--seed)"},
    {"role_switch", FLAG, AT(role_switch), 0,
     "sglang: 1 = POST /pd_role_switch changes its role, as with --enable-pd-role-switch"},
    {"scale_out", FLAG, AT(scale_out), 0,
     "vllm: 0 = without /inference/v1/generate and /render (no --enable-scale-out)"},
    {"queue", FLAG, AT(queue), 0, "1 = prefills of a worker run one after the other"},
    {"register", TEXT, AT(registers_at), ROOM(registers_at),
     "P2pNcclConnector, MoRIIOConnector: HOST:PORT of the gateway's --p2p-nccl-port, "
     "--moriio-port"},
    {"read_mode", FLAG, AT(read_mode), 0,
     "MoRIIOConnector: 1 = decode reads (else prefill writes)"},
    {"ec", EC, AT(ec), 0, "encode: cpu (says where it is) | store (both sides read it)"},
    {"gateway", TEXT, AT(gateway), ROOM(gateway),
     "BatonConnector: HOST:PORT of the gateway's --transfer-port"},
    {"gateway_token", TEXT, AT(gateway_token), ROOM(gateway_token), "  its --transfer-token"},
    {"gateway_worker", TEXT, AT(gateway_worker), ROOM(gateway_worker),
     "  this worker's name there (its URL when absent)"},
    {"ranks", NUMBER, AT(ranks), 0, "BatonConnector: agents, each with a part of the KV (1 to 8)"},
    {"kv_backend", BACKENDS, AT(kv_backends), 0,
     "  any, or those that may be used, joined by +: mem shm tcp verbs"},
    {"kv_layers", NUMBER, AT(kv_layers), 0, "  layers; each has a K and a V buffer"},
    {"kv_page_bytes", NUMBER, AT(kv_page_bytes), 0,
     "  bytes of a block in one buffer (a multiple of 8)"},
    {"kv_chunk_pages", NUMBER, AT(kv_chunk_pages), 0,
     "  pages that prefill computes between two sends"},
    {"kv_private", FLAG, AT(kv_private), 0,
     "  1 = memory of its own instead of the library's pool"},
    {"kv_crc", FLAG, AT(kv_crc), 0, "  1 = check sums over what moves"},
    {"kv_recompute", FLAG, AT(kv_recompute), 0,
     "  1 = decode computes the prompt when its KV does not come (else: 500)"},
    {"kv_bootstrap_ms", REAL, AT(kv_bootstrap_ms), 0, "  the agents' own deadlines (scaled)"},
    {"kv_stall_ms", REAL, AT(kv_stall_ms), 0, "  (scaled)"},
    {"kv_release_ms", REAL, AT(kv_release_ms), 0, "  (scaled)"},
    {"kv_token", TEXT, AT(kv_token), ROOM(kv_token), "  agents ask each other for it"},
    {"kv_dead_ms", NUMBER, AT(kv_dead_ms), 0, "  a silent agent is dead after it (not scaled)"},
    {"latency", LATENCY, 0, 0, "0 = every time above is 0: answers come at once"},
};
#define KEY_COUNT (sizeof(keys) / sizeof(keys[0]))

static const struct {
    const char *name;
    enum sim_connector connector;
} connectors[] = {
    {"none", SIM_NONE},
    {"NixlConnector", SIM_NIXL},
    {"NixlPullConnector", SIM_NIXL},
    {"NixlPushConnector", SIM_NIXL_PUSH},
    {"ExampleConnector", SIM_SHARED},
    {"SharedStorageConnector", SIM_SHARED},
    {"LMCacheConnectorV1", SIM_SHARED},
    {"PyNcclConnector", SIM_SHARED},
    {"MooncakeConnectorV1", SIM_ASCEND},
    {"MooncakeHybridConnector", SIM_ASCEND},
    {"MooncakeLayerwiseConnector", SIM_LAYERWISE},
    {"BatonConnector", SIM_BATON},
    {"MooncakeConnector", SIM_MOONCAKE},
    {"OffloadingConnector", SIM_OFFLOADING},
    {"P2pNcclConnector", SIM_P2P_NCCL},
    {"MoRIIOConnector", SIM_MORIIO},
};

static const char *nearest_key(bt_str_t name)
{
    const char *best = keys[0].name;

    for (size_t i = 1; i < KEY_COUNT; i++)
        if (bt_str_distance(name, bt_str(keys[i].name)) < bt_str_distance(name, bt_str(best)))
            best = keys[i].name;
    return best;
}

/* of: NULL ends. */
static const struct choices {
    struct {
        const char *name;
        unsigned value;
    } of[6];
    const char *must;
} choices[] = {
    [ROLE] = {{{"prefill", SIM_PREFILL},
               {"decode", SIM_DECODE},
               {"hybrid", SIM_HYBRID},
               {"plain", SIM_HYBRID},
               {"encode", SIM_ENCODE}},
              "prefill, decode, hybrid or encode"},
    [ENGINE] = {{{"vllm", SIM_VLLM}, {"sglang", SIM_SGLANG}, {"trtllm", SIM_TRTLLM}},
                "vllm, sglang or trtllm"},
    [EC] = {{{"cpu", SIM_EC_CPU}, {"store", SIM_EC_STORE}}, "cpu or store"},
};

static int choose(struct sim_parse *p, const struct key *key, bt_str_t value, unsigned *out)
{
    const struct choices *c = &choices[key->kind];

    for (unsigned i = 0; c->of[i].name != NULL; i++)
        if (bt_str_ieq(value, bt_str(c->of[i].name))) {
            *out = c->of[i].value;
            return 0;
        }
    return sim_parse_wrong(p, "%s=%.*s: must be %s", key->name, BT_STR_ARG(value), c->must);
}

static int set_connector(struct sim_parse *p, sim_worker_options_t *w, bt_str_t value)
{
    for (size_t i = 0; i < sizeof(connectors) / sizeof(connectors[0]); i++) {
        if (!bt_str_ieq(value, bt_str(connectors[i].name)))
            continue;
        w->connector = connectors[i].connector;
        snprintf(w->connector_name, sizeof(w->connector_name), "%s", connectors[i].name);
        return 0;
    }
    return sim_parse_wrong(p, "connector=%.*s: not simulated; --help lists those that are",
                           BT_STR_ARG(value));
}

static uint32_t backend_of(bt_str_t name)
{
    static const struct {
        const char *name;
        uint32_t bits;
    } all[] = {{"any", BT_KV_MEM | BT_KV_SHM | BT_KV_TCP | BT_KV_VERBS},
               {"mem", BT_KV_MEM},
               {"shm", BT_KV_SHM},
               {"tcp", BT_KV_TCP},
               {"verbs", BT_KV_VERBS}};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (bt_str_eq(name, bt_str(all[i].name)))
            return all[i].bits;
    return 0;
}

static int set_backends(struct sim_parse *p, unsigned *out, bt_str_t value)
{
    unsigned bits = 0;

    for (bt_str_t rest = value; rest.n > 0;) {
        const char *plus = memchr(rest.p, '+', rest.n);
        bt_str_t name = {rest.p, plus != NULL ? (size_t) (plus - rest.p) : rest.n};
        size_t step = plus != NULL ? name.n + 1 : name.n;
        uint32_t one = backend_of(name);
        if (one == 0)
            return sim_parse_wrong(
                p, "kv_backend=%.*s: must be any, or mem, shm, tcp, verbs joined by +",
                BT_STR_ARG(value));
        bits |= one;
        rest.p += step;
        rest.n -= step;
    }
    *out = bits;
    return 0;
}

int sim_parse_real(bt_str_t value, double *value_p)
{
    char text[64], *end = NULL;

    if (value.n == 0 || value.n >= sizeof(text))
        return BT_E_INVAL;
    memcpy(text, value.p, value.n);
    text[value.n] = '\0';
    *value_p = strtod(text, &end);
    return *end == '\0' && isfinite(*value_p) && *value_p >= 0 ? 0 : BT_E_INVAL;
}

static void set_latency_zero(sim_worker_options_t *w)
{
    w->ttft = w->ttft_per_token = w->ttft_per_token2 = 0;
    w->itl = w->itl_per_request = w->transfer_ms = 0;
}

static int set_key(struct sim_parse *p, sim_worker_options_t *w, const struct key *key,
                   bt_str_t value)
{
    char *at = (char *) w + key->offset;
    uint64_t number = 0;
    double real = 0;

    switch (key->kind) {
    case ROLE:
    case ENGINE:
    case EC:
        return choose(p, key, value, (unsigned *) (void *) at);
    case CONNECTOR:
        return set_connector(p, w, value);
    case TEXT:
        if (value.n == 0 || value.n >= key->size)
            return sim_parse_wrong(p, "%s: 1 to %zu characters", key->name, key->size - 1);
        memcpy(at, value.p, value.n);
        at[value.n] = '\0';
        return 0;
    case NUMBER:
        if (bt_str_u64(value, &number) != 0 || number > 100000000)
            return sim_parse_wrong(p, "%s=%.*s: must be a whole number", key->name,
                                   BT_STR_ARG(value));
        *(unsigned *) (void *) at = (unsigned) number;
        return 0;
    case FLAG:
        if (!bt_str_eq(value, BT_STR("0")) && !bt_str_eq(value, BT_STR("1")))
            return sim_parse_wrong(p, "%s=%.*s: must be 0 or 1", key->name, BT_STR_ARG(value));
        *(bool *) (void *) at = value.p[0] == '1';
        return 0;
    case BACKENDS:
        return set_backends(p, (unsigned *) (void *) at, value);
    case LATENCY:
        if (!bt_str_eq(value, BT_STR("0")))
            return sim_parse_wrong(p, "latency=%.*s: only 0 has a meaning; see ttft and itl",
                                   BT_STR_ARG(value));
        set_latency_zero(w);
        return 0;
    case REAL:
        break;
    }
    if (sim_parse_real(value, &real) != 0)
        return sim_parse_wrong(p, "%s=%.*s: must be a number", key->name, BT_STR_ARG(value));
    *(double *) (void *) at = real;
    return 0;
}

static int set_pair(struct sim_parse *p, sim_worker_options_t *w, bt_str_t pair)
{
    const char *equals = memchr(pair.p, '=', pair.n);
    bt_str_t name = pair, value = BT_STR_NULL;

    if (equals != NULL) {
        name.n = (size_t) (equals - pair.p);
        value = (bt_str_t){equals + 1, pair.n - name.n - 1};
    }
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (!bt_str_eq(name, bt_str(keys[i].name)))
            continue;
        if (equals == NULL)
            return sim_parse_wrong(p, "%s needs a value: %s=...", keys[i].name, keys[i].name);
        return set_key(p, w, &keys[i], value);
    }
    return sim_parse_wrong(p, "unknown key \"%.*s\" of --worker; did you mean \"%s\"?",
                           BT_STR_ARG(name), nearest_key(name));
}

static int check_worker(struct sim_parse *p, const sim_worker_options_t *w)
{
    if (w->count == 0)
        return sim_parse_wrong(p, "count=0: must be at least 1");
    if (w->count > 1 && (w->port != 0 || w->bootstrap_port != 0 || w->side_port != 0))
        return sim_parse_wrong(p, "count=%u with a fixed port: only port=0 can be shared",
                               w->count);
    if (w->block_size == 0 || w->block_size % 2 != 0 || w->blocks == 0)
        return sim_parse_wrong(p, "block_size must be even and above 0, blocks above 0");
    if (w->port > 65535 || w->bootstrap_port > 65535 || w->side_port > 65535 || w->dp == 0 ||
        w->tp == 0)
        return sim_parse_wrong(p, "ports end at 65535, tp and dp begin at 1");
    return 0;
}

static int check_kv(struct sim_parse *p, const sim_worker_options_t *w)
{
    if (w->connector != SIM_BATON)
        return w->gateway[0] == '\0'
                   ? 0
                   : sim_parse_wrong(p, "gateway=%s is for connector=BatonConnector", w->gateway);
    if (w->engine != SIM_VLLM)
        return sim_parse_wrong(p, "connector=BatonConnector is for engine=vllm");
    if (w->ranks == 0 || w->ranks > SIM_KV_RANKS_MAX)
        return sim_parse_wrong(p, "ranks=%u: must be 1 to %u", w->ranks, SIM_KV_RANKS_MAX);
    if (w->kv_layers == 0 || w->kv_layers > 256 || w->kv_chunk_pages == 0)
        return sim_parse_wrong(p, "kv_layers must be 1 to 256, kv_chunk_pages above 0");
    if (w->kv_page_bytes < SIM_PAGE_BYTES_MIN || w->kv_page_bytes % 8 != 0)
        return sim_parse_wrong(p, "kv_page_bytes=%u: must be a multiple of 8, at least %u",
                               w->kv_page_bytes, SIM_PAGE_BYTES_MIN);
    return 0;
}

static int check_register(struct sim_parse *p, const sim_worker_options_t *w)
{
    const bool is_one = w->connector == SIM_P2P_NCCL || w->connector == SIM_MORIIO;

    if (w->role == SIM_ENCODE && w->engine != SIM_VLLM)
        return sim_parse_wrong(p, "role=encode is for engine=vllm");
    if (is_one && w->engine != SIM_VLLM)
        return sim_parse_wrong(p, "connector=%s is for engine=vllm", w->connector_name);
    if (!is_one && w->registers_at[0] != '\0')
        return sim_parse_wrong(p, "register=%s is for P2pNcclConnector and MoRIIOConnector",
                               w->registers_at);
    if (w->kv_events != 0 && !w->by_ids)
        return sim_parse_wrong(p, "kv_events=%s needs by_ids=1", "PORT");
    if (w->kv_events != 0 && !bt_zmq_is_built())
        return sim_parse_wrong(p, "kv_events=PORT: %s", bt_zmq_not_built);
    if (w->registers_at[0] != '\0' && !bt_zmq_is_built())
        return sim_parse_wrong(p, "register=%s: %s", w->registers_at, bt_zmq_not_built);
    return 0;
}

static int push_workers(struct sim_parse *p, const sim_worker_options_t *w)
{
    sim_options_t *o = p->o;
    sim_worker_options_t *all = realloc(o->workers, (o->worker_count + w->count) * sizeof(*all));

    if (all == NULL)
        return sim_parse_wrong(p, "out of memory");
    o->workers = all;
    for (unsigned i = 0; i < w->count; i++) {
        sim_worker_options_t *one = &all[o->worker_count];
        unsigned same = 0;
        *one = *w;
        for (unsigned k = 0; k < o->worker_count; k++)
            same += all[k].role == w->role;
        if (w->name[0] == '\0')
            snprintf(one->name, sizeof(one->name), "%c%u", sim_role_name(w->role)[0], same);
        else if (w->count > 1)
            snprintf(one->name, sizeof(one->name), "%.20s%u", w->name, i);
        if (w->engine_id[0] == '\0')
            snprintf(one->engine_id, sizeof(one->engine_id), "%s", one->name);
        o->worker_count++;
    }
    return 0;
}

int sim_parse_worker(struct sim_parse *p, bt_str_t text)
{
    sim_worker_options_t w = {
        .count = 1,
        .tp = 1,
        .host = "127.0.0.1",
        .dp = 1,
        .block_size = 32,
        .blocks = 32768,
        .context = 131072,
        .answer_tokens = 32,
        .lease_ms = -1,
        .waiting_ms = 300000,
        .ttft = 3,
        .itl = 5,
        .scale_out = true,
        .transfer_ms = 1,
        .ranks = 1,
        .kv_layers = 2,
        .kv_page_bytes = 1024,
        .kv_chunk_pages = 4,
        .kv_bootstrap_ms = 300000,
        .kv_stall_ms = 60000,
        .kv_release_ms = 30000,
        .kv_dead_ms = 5000,
    };
    int rc = 0;

    while (rc == 0 && text.n > 0) {
        const char *comma = memchr(text.p, ',', text.n);
        bt_str_t pair = {text.p, comma != NULL ? (size_t) (comma - text.p) : text.n};
        size_t step = comma != NULL ? pair.n + 1 : pair.n;
        rc = set_pair(p, &w, bt_str_trim(pair));
        text.p += step;
        text.n -= step;
    }
    if (w.connector_name[0] == '\0' && w.engine == SIM_VLLM &&
        (w.role == SIM_PREFILL || w.role == SIM_DECODE))
        set_connector(p, &w, BT_STR("NixlConnector"));
    if (w.lease_ms < 0)
        w.lease_ms = w.engine == SIM_TRTLLM                                     ? FOR_EVER_MS
                     : w.connector == SIM_OFFLOADING                            ? 60000
                     : w.connector == SIM_ASCEND || w.connector == SIM_MOONCAKE ? 480000
                                                                                : 30000;
    if (rc == 0)
        rc = check_worker(p, &w);
    if (rc == 0)
        rc = check_kv(p, &w);
    if (rc == 0)
        rc = check_register(p, &w);
    return rc != 0 ? rc : push_workers(p, &w);
}

void sim_parse_worker_help(FILE *out)
{
    for (size_t i = 0; i < KEY_COUNT; i++)
        fprintf(out, "  %-18s %s\n", keys[i].name, keys[i].help);
}
