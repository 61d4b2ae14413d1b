#include "cluster/capability.h"

#include "base/err.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* One table answers everything. A row is a connector class name, or a name that users of other gateways carry in their
 * fingers. Rows with `why` are known and refused; names in no row are unknown and refused. A connector is never guessed
 * from a part of its name: "MooncakeConnector" and "MooncakeConnectorV1" speak different protocols. */

#define SYNC BT_CAP_CONCURRENT_ENGINE_SYNC
#define HANDOFF BT_CAP_PREFILL_HANDOFF_DECODE

static const char baton[] = "baton";
static const char mooncake[] = "mooncake";
static const char moriio[] = "moriio";
static const char moriio_read[] = "moriio_read";
static const char nixl[] = "nixl";
static const char nixl_push[] = "nixl_push";
static const char offloading_p2p[] = "offloading_p2p";
static const char p2p_nccl[] = "p2p_nccl";
static const char shared_cache[] = "shared_cache";
static const char sglang[] = "sglang";
static const char mooncake_layerwise[] = "mooncake_layerwise";
static const char mindie[] = "mindie";
static const char trtllm[] = "trtllm";

static const char why_trigger[] =
    "dispatch_profile trigger is for MooncakeLayerwiseConnector, whose decode calls for prefill";
static const char why_sglang_connector[] = "this connector is vLLM's, but the engine is SGLang";
static const char why_trtllm_connector[] =
    "TensorRT-LLM has one protocol, trtllm: leave connector out";
static const char why_profile_sglang[] = "SGLang knows only dispatch_profile bootstrap";
static const char why_profile_gateway_managed[] =
    "BatonConnector's rooms are opened by the gateway: its dispatch_profile is baton, or none";
static const char why_profile_baton[] = "dispatch_profile baton is for BatonConnector";
static const char why_profile_other[] =
    "this connector has a dialect of its own: leave dispatch_profile out";

static const char why_ec_mooncake[] =
    "not supported: its encoders push what they make to an engine whose ZeroMQ address the encode "
    "request must name before a pair is planned, and only to engines that prefill and decode "
    "themselves; use ECCPUConnector or ECExampleConnector, whose outputs prefill fetches";

struct row {
    const char *name;
    enum bt_capability cap;
    const char *dialect;
    enum bt_engine engine;
    bt_pair_rules_t rules;
    const char *why;
};

#define NIXL_RULES                                                                                 \
    {                                                                                              \
        "nixl", BT_TP_DIVIDES, true, false                                                         \
    }
#define ASCEND_RULES                                                                               \
    {                                                                                              \
        "mooncake_v1", BT_TP_PREFILL_MULTIPLE, false, false                                        \
    }
#define P2P_NCCL_RULES                                                                             \
    {                                                                                              \
        "p2p_nccl", BT_TP_EQUAL, false, false                                                      \
    }
#define MORIIO_RULES                                                                               \
    {                                                                                              \
        "moriio", BT_TP_ANY, false, true                                                           \
    }
#define LAYERWISE_RULES                                                                            \
    {                                                                                              \
        "mooncake_layerwise", BT_TP_PREFILL_MULTIPLE, false, false                                 \
    }
#define ANY_RULES(family)                                                                          \
    {                                                                                              \
        family, BT_TP_ANY, false, false                                                            \
    }

static const struct row rows[] = {
    {"NixlConnector", HANDOFF, nixl, BT_ENGINE_VLLM, NIXL_RULES, NULL},
    {"nixl", HANDOFF, nixl, BT_ENGINE_VLLM, NIXL_RULES, NULL},
    {"MooncakeConnectorV1", HANDOFF, nixl, BT_ENGINE_VLLM_ASCEND, ASCEND_RULES, NULL},
    {"MooncakeHybridConnector", HANDOFF, nixl, BT_ENGINE_VLLM_ASCEND, ASCEND_RULES, NULL},
    {"NixlPushConnector", SYNC, nixl_push, BT_ENGINE_VLLM, NIXL_RULES, NULL},
    {"nixl_push", SYNC, nixl_push, BT_ENGINE_VLLM, NIXL_RULES, NULL},
    {"ExampleConnector", HANDOFF, shared_cache, BT_ENGINE_VLLM, ANY_RULES("example"), NULL},
    {"SharedStorageConnector", HANDOFF, shared_cache, BT_ENGINE_VLLM, ANY_RULES("example"), NULL},
    {"LMCacheConnectorV1", HANDOFF, shared_cache, BT_ENGINE_VLLM, ANY_RULES("lmcache"), NULL},
    {"LMCacheMPConnector", HANDOFF, shared_cache, BT_ENGINE_VLLM, ANY_RULES("lmcache"), NULL},
    {"MooncakeStoreConnector", HANDOFF, shared_cache, BT_ENGINE_VLLM, ANY_RULES("mooncake_store"),
     NULL},
    /* vLLM's oldest: one prefill, one decode, prefill first; what moves is found by content too. */
    {"PyNcclConnector", HANDOFF, shared_cache, BT_ENGINE_VLLM, ANY_RULES("pynccl"), NULL},
    {"shared_cache", HANDOFF, shared_cache, BT_ENGINE_VLLM, ANY_RULES(NULL), NULL},
    {"OffloadingConnector", HANDOFF, offloading_p2p, BT_ENGINE_VLLM, ANY_RULES("offloading"), NULL},
    {"offloading_p2p", HANDOFF, offloading_p2p, BT_ENGINE_VLLM, ANY_RULES("offloading"), NULL},
    {"sglang", SYNC, sglang, BT_ENGINE_SGLANG, ANY_RULES(NULL), NULL},
    {"trtllm", HANDOFF, trtllm, BT_ENGINE_TRTLLM, ANY_RULES("trtllm"), NULL},
    /* The library cuts slices for any two tp sizes; a connector that can't names a transfer_group. */
    {"BatonConnector", SYNC, baton, BT_ENGINE_VLLM, ANY_RULES("baton"), NULL},
    {"baton", SYNC, baton, BT_ENGINE_VLLM, ANY_RULES("baton"), NULL},
    {"MooncakeLayerwiseConnector", SYNC, mooncake_layerwise, BT_ENGINE_VLLM_ASCEND, LAYERWISE_RULES,
     NULL},
    {"mooncake_layerwise", SYNC, mooncake_layerwise, BT_ENGINE_VLLM_ASCEND, LAYERWISE_RULES, NULL},
    {"mindie", SYNC, mindie, BT_ENGINE_MINDIE, LAYERWISE_RULES, NULL},
    {"MooncakeConnector", SYNC, mooncake, BT_ENGINE_VLLM, ANY_RULES("mooncake"), NULL},
    {"mooncake", SYNC, mooncake, BT_ENGINE_VLLM, ANY_RULES("mooncake"), NULL},
    /* WRITE, the engine's default, until it registers READ (bt_capability_take_mode). */
    {"MoRIIOConnector", SYNC, moriio, BT_ENGINE_VLLM, MORIIO_RULES, NULL},
    {"moriio", SYNC, moriio, BT_ENGINE_VLLM, MORIIO_RULES, NULL},
    {"moriio_read", HANDOFF, moriio_read, BT_ENGINE_VLLM, MORIIO_RULES, NULL},
    {"P2pNcclConnector", HANDOFF, p2p_nccl, BT_ENGINE_VLLM, P2P_NCCL_RULES, NULL},
    {"p2p_nccl", HANDOFF, p2p_nccl, BT_ENGINE_VLLM, P2P_NCCL_RULES, NULL},
    {"nccl", HANDOFF, p2p_nccl, BT_ENGINE_VLLM, P2P_NCCL_RULES, NULL},
    {"lmcache_pd", BT_CAP_NONE, NULL, BT_ENGINE_VLLM, ANY_RULES(NULL),
     "lmcache_pd (LMCache's PDBackend, told by ZeroMQ) is not supported: its decode is given the "
     "prompt and prefill's first token as ids on /v1/completions, so chats would lose their tool "
     "and reasoning parsers, and a push that fails is told to nobody; use LMCacheConnectorV1 over "
     "a cache that both sides read, or NixlConnector"},
    {"ECMooncakeConnector", BT_CAP_NONE, NULL, BT_ENGINE_VLLM, ANY_RULES(NULL), why_ec_mooncake},
};

/* Rows of --dialect-dir: a row is whole before the count shows it, and stays. */
#define OWN_MAX 256
static struct row own_rows[OWN_MAX];
static bool own_serves_alone[OWN_MAX], own_is_trigger[OWN_MAX];
static _Atomic unsigned own_count;
static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER;

static const char *const sglang_backends[] = {"sglang", "mooncake", "nixl",
                                              "ascend", "mori",     "fake"};

enum profile {
    PROFILE_NONE,
    PROFILE_HANDOFF,
    PROFILE_TRIGGER,
    PROFILE_BOOTSTRAP,
    PROFILE_BATON,
    PROFILE_DIALECT, /* a dialect's own name */
    PROFILE_UNKNOWN
};

struct profile_said {
    enum profile word;
    const struct row *row; /* of PROFILE_DIALECT */
};

struct verdict {
    enum bt_capability cap;
    const char *dialect;
    const char *why;
};

static const struct row *find_own(bt_str_t connector)
{
    const unsigned count = atomic_load_explicit(&own_count, memory_order_acquire);

    for (unsigned i = 0; i < count; i++)
        if (bt_str_ieq(connector, bt_str(own_rows[i].name)))
            return &own_rows[i];
    return NULL;
}

static bool is_own(const struct row *row)
{
    return row >= own_rows && row < own_rows + OWN_MAX;
}

static const struct row *find_shipped(bt_str_t connector)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (bt_str_ieq(connector, bt_str(rows[i].name)))
            return &rows[i];
    return NULL;
}

static const struct row *find_row(bt_str_t connector)
{
    const struct row *own = find_own(connector);

    return own != NULL ? own : find_shipped(connector);
}

static bool is_multi(bt_str_t connector)
{
    return bt_str_ieq(connector, BT_STR("MultiConnector"));
}

/* Depth first, a MultiConnector before those inside it: the first leaf serves. */
bt_str_t bt_capability_leaf(bt_str_t connector, const bt_str_t *children, unsigned child_count)
{
    for (unsigned i = 0; i < child_count && is_multi(connector); i++)
        connector = children[i];
    return connector;
}

static unsigned count_leaves(const bt_str_t *children, unsigned child_count)
{
    unsigned leaves = 0;

    for (unsigned i = 0; i < child_count; i++)
        leaves += !is_multi(children[i]);
    return leaves;
}

bool bt_capability_is_sglang_backend(bt_str_t connector)
{
    for (size_t i = 0; i < sizeof sglang_backends / sizeof sglang_backends[0]; i++)
        if (bt_str_ieq(connector, bt_str(sglang_backends[i])))
            return true;
    return false;
}

static enum profile parse_word(bt_str_t s)
{
    static const struct {
        const char *name;
        enum profile profile;
    } words[] = {{"handoff", PROFILE_HANDOFF},
                 {"trigger", PROFILE_TRIGGER},
                 {"bootstrap", PROFILE_BOOTSTRAP},
                 {"sglang", PROFILE_BOOTSTRAP},
                 {"baton", PROFILE_BATON}};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (bt_str_ieq(s, bt_str(words[i].name)))
            return words[i].profile;
    return s.n == 0 ? PROFILE_NONE : PROFILE_UNKNOWN;
}

static struct profile_said parse_profile(bt_str_t s)
{
    const enum profile word = parse_word(s);
    const struct row *row = word == PROFILE_UNKNOWN ? find_row(s) : NULL;

    if (row != NULL && row->why == NULL && strcmp(row->name, row->dialect) == 0)
        return (struct profile_said){PROFILE_DIALECT, row};
    return (struct profile_said){word, NULL};
}

static struct verdict refuse(const char *why)
{
    return (struct verdict){BT_CAP_NONE, NULL, why};
}

static struct verdict derive_sglang(bt_str_t connector, enum profile profile)
{
    if (profile != PROFILE_NONE && profile != PROFILE_BOOTSTRAP)
        return refuse(why_profile_sglang);
    const bool is_new = find_row(connector) == NULL && profile == PROFILE_BOOTSTRAP;
    if (connector.n > 0 && !bt_capability_is_sglang_backend(connector) && !is_new)
        return refuse(why_sglang_connector);
    return (struct verdict){SYNC, sglang, NULL};
}

static struct verdict derive_row(const struct row *row, struct profile_said said);

static struct verdict derive_trtllm(bt_str_t connector, struct profile_said said)
{
    const struct row *row = find_shipped(bt_str(trtllm));

    return connector.n > 0 && find_shipped(connector) != row ? refuse(why_trtllm_connector)
                                                             : derive_row(row, said);
}

/* No row says anything: the profile is the only word left. */
static struct verdict derive_by_profile(enum bt_engine engine, bt_str_t connector,
                                        struct profile_said profile)
{
    if (profile.word == PROFILE_DIALECT)
        return (struct verdict){profile.row->cap, profile.row->dialect, NULL};
    if (profile.word == PROFILE_HANDOFF)
        return (struct verdict){HANDOFF, nixl, NULL};
    if (profile.word == PROFILE_BATON)
        return (struct verdict){SYNC, baton, NULL};
    if (profile.word == PROFILE_TRIGGER)
        return (struct verdict){SYNC, mooncake_layerwise, NULL};
    if (profile.word == PROFILE_BOOTSTRAP)
        return connector.n == 0 || engine == BT_ENGINE_UNKNOWN
                   ? (struct verdict){SYNC, sglang, NULL}
                   : refuse("dispatch_profile bootstrap is for SGLang");
    return refuse(connector.n == 0 ? "no connector named: give --kv-connector or connector="
                                   : BT_UNKNOWN_CONNECTOR);
}

static struct verdict derive_row(const struct row *row, struct profile_said said)
{
    enum profile profile = said.word;

    if (row->why != NULL)
        return (struct verdict){row->cap, row->dialect, row->why};
    if (row->dialect == baton && profile != PROFILE_NONE && profile != PROFILE_BATON)
        return refuse(why_profile_gateway_managed);
    if (profile == PROFILE_BATON && row->dialect != baton)
        return refuse(why_profile_baton);
    if (profile == PROFILE_BOOTSTRAP && row->dialect != sglang)
        return refuse("dispatch_profile bootstrap is for SGLang");
    if (profile == PROFILE_TRIGGER && !bt_capability_is_trigger(row->dialect))
        return refuse(why_trigger);
    if (profile == PROFILE_DIALECT && said.row->dialect == nixl && row->dialect == nixl_push)
        profile = PROFILE_HANDOFF;
    if (profile == PROFILE_DIALECT && said.row->dialect != row->dialect)
        return refuse(why_profile_other);
    /* A push producer's reply may also be carried to decode by hand, one leg after the other. */
    if (profile == PROFILE_HANDOFF && row->dialect == nixl_push)
        return (struct verdict){HANDOFF, nixl, NULL};
    if (profile == PROFILE_HANDOFF && bt_capability_is_trigger(row->dialect))
        return refuse(why_profile_other);
    if (profile == PROFILE_HANDOFF && row->cap != HANDOFF)
        return refuse(why_profile_sglang);
    return (struct verdict){row->cap, row->dialect, NULL};
}

/* A user's file says that it serves this connector, or the worker names the user's dialect: that
 * holds whatever the table says. */
static bool derive_own(const struct row *row, struct profile_said profile, struct verdict *v_p)
{
    const struct row *own = is_own(profile.row) ? profile.row : row;

    if (!is_own(own))
        return false;
    *v_p = (struct verdict){own->cap, own->dialect, NULL};
    if (profile.word != PROFILE_NONE &&
        (profile.row == NULL || strcmp(profile.row->dialect, own->dialect) != 0))
        *v_p = refuse(why_profile_other);
    return true;
}

static struct verdict derive(enum bt_engine engine, bt_str_t connector, const bt_str_t *children,
                             unsigned child_count, struct profile_said profile)
{
    if (profile.word == PROFILE_UNKNOWN)
        return refuse(
            BT_UNKNOWN_PROFILE
            ": say handoff, bootstrap, trigger, or a dialect (nixl, nixl_push, shared_cache, "
            "sglang, trtllm, mooncake, mooncake_layerwise, mindie, offloading_p2p, baton, "
            "p2p_nccl, moriio, or one of --dialect-dir)");
    if (is_multi(connector) && count_leaves(children, child_count) < 2)
        return refuse("MultiConnector needs at least two connectors");
    connector = bt_capability_leaf(connector, children, child_count);
    const struct row *row = find_row(connector);
    struct verdict own;
    if (derive_own(row, profile, &own))
        return own;
    if (engine == BT_ENGINE_SGLANG)
        return derive_sglang(connector, profile.word);
    if (engine == BT_ENGINE_TRTLLM)
        return derive_trtllm(connector, profile);
    if (row == NULL)
        return derive_by_profile(engine, connector, profile);
    if (row->dialect == sglang && engine != BT_ENGINE_UNKNOWN)
        return refuse("connector sglang needs engine SGLang");
    if (row->dialect == trtllm && engine != BT_ENGINE_UNKNOWN)
        return refuse("connector trtllm needs engine trtllm (TensorRT-LLM)");
    return derive_row(row, profile);
}

int bt_capability_derive(enum bt_engine engine, bt_str_t connector, const bt_str_t *children,
                         unsigned child_count, bt_str_t profile, enum bt_capability *cap_p,
                         const char **dialect_p, const char **why_p)
{
    struct verdict v = derive(engine, connector, children, child_count, parse_profile(profile));
    if (v.dialect == mooncake_layerwise && engine == BT_ENGINE_MINDIE)
        v.dialect = mindie; /* the same callback, other legs */
    *cap_p = v.cap;
    *dialect_p = v.dialect;
    *why_p = v.why;
    return 0;
}

/* The row of a shipped dialect's own name, or NULL: it is a user's. */
static const struct row *find_replaced(const char *dialect)
{
    const struct row *row = find_shipped(bt_str(dialect));

    return row != NULL && row->dialect != NULL && strcmp(row->dialect, dialect) == 0 ? row : NULL;
}

/* A shipped dialect that a user's file replaces keeps its name's address and its pairs' rules. */
static int fill_own(struct row *row, const bt_own_connector_t *own)
{
    const struct row *shipped = find_replaced(own->dialect);
    const bool replaces = shipped != NULL;
    char *name = bt_str_dup(bt_str(own->connector));
    char *dialect = replaces ? NULL : bt_str_dup(bt_str(own->dialect));

    if (name == NULL || (!replaces && dialect == NULL)) {
        free(name);
        free(dialect);
        return BT_E_NOMEM;
    }
    *row = (struct row){.name = name,
                        .cap = own->cap,
                        .dialect = replaces ? shipped->dialect : dialect,
                        .engine = own->engine,
                        .rules = {.family = replaces ? shipped->rules.family : dialect}};
    if (replaces)
        row->rules = shipped->rules;
    return 0;
}

static int add_own(const bt_own_connector_t *own)
{
    const unsigned count = atomic_load_explicit(&own_count, memory_order_relaxed);
    const struct row *there = find_own(bt_str(own->connector));
    int rc;

    if (strcmp(own->connector, own->dialect) == 0 && find_replaced(own->dialect) != NULL)
        return 0; /* the table has it */
    if (there != NULL)
        return strcmp(there->dialect, own->dialect) == 0 && there->cap == own->cap &&
                       there->engine == own->engine &&
                       own_serves_alone[there - own_rows] == own->serves_alone &&
                       own_is_trigger[there - own_rows] == own->is_trigger
                   ? 0
                   : BT_E_INVAL;
    if (count == OWN_MAX)
        return BT_E_LIMIT;
    rc = fill_own(&own_rows[count], own);
    own_serves_alone[count] = own->serves_alone;
    own_is_trigger[count] = own->is_trigger;
    if (rc == 0)
        atomic_store_explicit(&own_count, count + 1, memory_order_release);
    return rc;
}

int bt_capability_add(const bt_own_connector_t *own)
{
    pthread_mutex_lock(&own_lock);
    int rc = add_own(own);
    pthread_mutex_unlock(&own_lock);
    return rc;
}

static void nearer(bt_str_t name, const struct row *row, unsigned *least, const char **best)
{
    const unsigned distance = bt_str_distance(name, bt_str(row->name));

    if (row->why != NULL || distance >= *least)
        return;
    *least = distance;
    *best = row->name;
}

const char *bt_capability_nearest(bt_str_t connector)
{
    const unsigned own = atomic_load_explicit(&own_count, memory_order_acquire);
    const char *best = NULL;
    unsigned least = (unsigned) connector.n / 4 + 1; /* more letters than that are no slip */

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        nearer(connector, &rows[i], &least, &best);
    for (unsigned i = 0; i < own; i++)
        nearer(connector, &own_rows[i], &least, &best);
    return best;
}

enum bt_engine bt_capability_engine(bt_str_t connector, const bt_str_t *children,
                                    unsigned child_count, bt_str_t profile)
{
    const struct row *row = find_row(bt_capability_leaf(connector, children, child_count));
    const struct profile_said said = parse_profile(profile);

    if (row != NULL)
        return row->engine;
    if (said.row != NULL)
        return said.row->engine;
    return said.word == PROFILE_BOOTSTRAP ? BT_ENGINE_SGLANG
           : said.word == PROFILE_BATON   ? BT_ENGINE_VLLM
                                          : BT_ENGINE_UNKNOWN;
}

void bt_capability_pair_rules(enum bt_engine engine, bt_str_t connector, const bt_str_t *children,
                              unsigned child_count, const char *dialect, bt_pair_rules_t *rules_p)
{
    *rules_p = (bt_pair_rules_t){NULL, BT_TP_ANY, false, false};
    if (dialect == NULL || strcmp(dialect, sglang) == 0)
        return;
    const struct row *row = find_row(bt_capability_leaf(connector, children, child_count));
    if (row != NULL)
        *rules_p = row->rules;
    /* Ascend engines check the ratio whatever name the user gave their connector ("nixl", profile handoff); and then it
     * is not vLLM's NIXL, so NIXL's version check does not hold either. */
    bool ascend = engine == BT_ENGINE_VLLM_ASCEND || engine == BT_ENGINE_MINDIE;
    bool by_dialect_name = row == NULL || strcmp(row->name, dialect) == 0;
    if (ascend && by_dialect_name && strcmp(dialect, nixl) == 0)
        *rules_p = (bt_pair_rules_t){NULL, BT_TP_PREFILL_MULTIPLE, false, false};
}

unsigned bt_capability_kinds(enum bt_capability cap, const char *dialect)
{
    /* A push producer's reply may also be carried to decode by hand. */
    const unsigned other = dialect == nixl_push ? BT_KIND_HANDOFF : 0;

    if (bt_capability_is_trigger(dialect))
        return BT_KIND_TRIGGER;
    return cap == HANDOFF ? BT_KIND_HANDOFF : cap == SYNC ? BT_KIND_BOOTSTRAP | other : 0;
}

const char *bt_capability_encoder_refusal(bt_str_t connector)
{
    const struct row *row = find_row(connector);

    return row != NULL && row->why == why_ec_mooncake ? row->why : NULL;
}

bool bt_capability_is_trigger(const char *dialect)
{
    const unsigned own = atomic_load_explicit(&own_count, memory_order_acquire);

    for (unsigned i = 0; i < own; i++) /* of the same name as a shipped one, it has replaced that */
        if (own_rows[i].dialect == dialect)
            return own_is_trigger[i];
    return dialect != NULL && (dialect == mooncake_layerwise || dialect == mindie);
}

bool bt_capability_is_gateway_managed(const char *dialect)
{
    return dialect != NULL && strcmp(dialect, baton) == 0;
}

bool bt_capability_asks_bootstrap(const char *dialect)
{
    return dialect != NULL && strcmp(dialect, mooncake) == 0;
}

bool bt_capability_needs_kv_address(const char *dialect)
{
    static const char *const all[] = {p2p_nccl, moriio, moriio_read};

    for (size_t i = 0; i < sizeof all / sizeof all[0] && dialect != NULL; i++)
        if (strcmp(dialect, all[i]) == 0)
            return true;
    return false;
}

void bt_capability_take_mode(enum bt_transfer_mode mode, enum bt_capability *cap,
                             const char **dialect)
{
    if (*dialect != moriio || mode != BT_TRANSFER_READ)
        return;
    *cap = HANDOFF;
    *dialect = moriio_read;
}

bool bt_capability_prefill_serves_alone(enum bt_engine engine, const char *dialect)
{
    return (engine == BT_ENGINE_VLLM || engine == BT_ENGINE_VLLM_ASCEND ||
            engine == BT_ENGINE_MINDIE || engine == BT_ENGINE_TRTLLM) &&
           !bt_capability_needs_kv_address(dialect);
}

bool bt_capability_serves_alone(enum bt_engine engine, const char *dialect)
{
    const unsigned own = atomic_load_explicit(&own_count, memory_order_acquire);

    for (unsigned i = 0; i < own; i++)
        if (own_rows[i].dialect == dialect && own_serves_alone[i])
            return true;
    return bt_capability_prefill_serves_alone(engine, dialect) &&
           (dialect == nixl || dialect == nixl_push || dialect == shared_cache ||
            dialect == offloading_p2p || dialect == mooncake || dialect == trtllm);
}
