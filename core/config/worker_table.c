/* What a worker's table in the file may hold. The same names are members of the admin API's JSON. */
#include "config/flag.h"

#define AT(member) offsetof(bt_worker_spec_t, member)
#define PATH(member)                                                                               \
    {                                                                                              \
        .kind = BT_OPTION_PATH, .offset = AT(member)                                               \
    }
#define TEXT(member)                                                                               \
    {                                                                                              \
        .kind = BT_OPTION_TEXT, .offset = AT(member)                                               \
    }
#define SIZE(member, low)                                                                          \
    {                                                                                              \
        .kind = BT_OPTION_INT, .offset = AT(member), .min = (low), .max = 65535                    \
    }

static const bt_word_t roles[] = {
    {"prefill", BT_ROLE_PREFILL, false}, {"decode", BT_ROLE_DECODE, false},
    {"hybrid", BT_ROLE_HYBRID, false},   {"union", BT_ROLE_HYBRID, true},
    {"encode", BT_ROLE_ENCODE, false},   {NULL, 0, false},
};

const bt_worker_key_t bt_worker_keys[] = {
    {"url", TEXT(url), "http://host:port[/prefix][@rank]"},
    {"name", TEXT(name), "shown in headers, logs and metrics (p0, d0, w0, ...)"},
    {"role",
     {.kind = BT_OPTION_WORD, .offset = AT(role), .words = roles},
     "prefill, decode, hybrid (default) or encode"},
    {"models",
     {.kind = BT_OPTION_TEXTS,
      .offset = AT(models),
      .count_offset = AT(model_count),
      .list_max = BT_WORKER_MODELS_MAX},
     "what it serves; none = what the pool serves"},
    {"engine",
     {.kind = BT_OPTION_WORD, .offset = AT(engine), .words = bt_engine_words},
     "sglang, vllm, ..."},
    {"connector", TEXT(connector), "the engine's KV connector"},
    {"connectors",
     {.kind = BT_OPTION_TEXTS,
      .offset = AT(children),
      .count_offset = AT(child_count),
      .list_max = BT_WORKER_CHILDREN_MAX},
     "of MultiConnector, in order (one inside it stands before its own)"},
    {"dispatch_profile", TEXT(dispatch_profile),
     "handoff, bootstrap or a dialect (nixl, ...), where the connector is not known"},
    {"kv_transfer_config",
     {.kind = BT_OPTION_NONE}, /* file.c hands it on */
     "the engine's --kv-transfer-config: connector, role, engine_id, P2P tier"},
    {"bootstrap_port",
     {.kind = BT_OPTION_PORT, .offset = AT(bootstrap_port)},
     "SGLang's or Mooncake's bootstrap, NIXL's side channel, the P2P tier's port"},
    {"dp_size", SIZE(dp_size, 1), "data-parallel ranks behind this url"},
    {"tp_size", SIZE(tp_size, 1), "tensor parallel size"},
    {"pp_size", SIZE(pp_size, 1), "pipeline parallel size"},
    {"dp_rank", SIZE(dp_rank, 0), "this url is one rank"},
    {"engine_id", TEXT(engine_id), "nixl_push: engine_id of --kv-transfer-config"},
    {"kv_host", TEXT(kv_host),
     "host of the side channel, bootstrap server or P2P tier, where it is not the url's"},
    {"kv_address", TEXT(kv_address),
     "p2p_nccl, moriio: what the engine calls its zmq_address, where it does not register"},
    {"kv_events", TEXT(kv_events),
     "tcp://host:port where its engine publishes KV events (rank r: port + r)"},
    {"kv_events_replay", TEXT(kv_events_replay), "likewise, where it says them again"},
    {"version", TEXT(version), "of the engine; NIXL pairs only equal ones"},
    {"transfer_group", TEXT(transfer_group), "only workers of one group are paired"},
    {"lease_ms",
     {.kind = BT_OPTION_U64, .offset = AT(lease_ms), .min = 1000, .max = 86400000},
     "how long prefill keeps KV"},
    {"zone", TEXT(zone), "for policies"},
    {"labels", {.kind = BT_OPTION_LABELS, .offset = AT(labels)}, "for policies"},
    {"api_key", TEXT(api_key), "sent to this worker"},
    {"tls_ca", PATH(tls_ca), "of an https:// url: whom its certificate must come from"},
    {"tls_cert", PATH(tls_cert), "our certificate, where this worker asks for one"},
    {"tls_key", PATH(tls_key), "and its key"},
    {"tls_name", TEXT(tls_name), "whom its certificate must be for, and SNI (the url's host)"},
};
const unsigned bt_worker_key_count = sizeof bt_worker_keys / sizeof bt_worker_keys[0];
