#include "cluster/capability.h"

#include "base/err.h"

/* One table answers everything. A row is a connector class name, or a name that users of other gateways carry in their
 * fingers. Rows with `why` are known and refused; names in no row are unknown and refused. A connector is never guessed
 * from a part of its name: "MooncakeConnector" and "MooncakeConnectorV1" speak different protocols. */

#define SYNC BT_CAP_CONCURRENT_ENGINE_SYNC
#define HANDOFF BT_CAP_PREFILL_HANDOFF_DECODE

static const char baton[] = "baton";
static const char nixl[] = "nixl";
static const char nixl_push[] = "nixl_push";
static const char shared_cache[] = "shared_cache";
static const char sglang[] = "sglang";
static const char trigger[] = "trigger";

static const char why_trigger[] = "trigger is not built yet";
static const char why_sglang_connector[] = "this connector is vLLM's, but the engine is SGLang";
static const char why_profile_sglang[] = "SGLang knows only dispatch_profile bootstrap";
static const char why_profile_gateway_managed[] =
    "BatonConnector's rooms are opened by the gateway: its dispatch_profile is baton, or none";
static const char why_profile_baton[] = "dispatch_profile baton is for BatonConnector";

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
        "nixl", BT_TP_DIVIDES, true                                                                \
    }
#define ASCEND_RULES                                                                               \
    {                                                                                              \
        "mooncake_v1", BT_TP_PREFILL_MULTIPLE, false                                               \
    }
#define ANY_RULES(family)                                                                          \
    {                                                                                              \
        family, BT_TP_ANY, false                                                                   \
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
    {"shared_cache", HANDOFF, shared_cache, BT_ENGINE_VLLM, ANY_RULES(NULL), NULL},
    {"sglang", SYNC, sglang, BT_ENGINE_SGLANG, ANY_RULES(NULL), NULL},
    /* The library cuts slices for any two tp sizes; a connector that can't names a transfer_group. */
    {"BatonConnector", SYNC, baton, BT_ENGINE_VLLM, ANY_RULES("baton"), NULL},
    {"baton", SYNC, baton, BT_ENGINE_VLLM, ANY_RULES("baton"), NULL},
    {"MooncakeLayerwiseConnector", SYNC, trigger, BT_ENGINE_VLLM_ASCEND, ANY_RULES(NULL),
     why_trigger},
    {"MooncakeConnector", BT_CAP_NONE, NULL, BT_ENGINE_VLLM, ANY_RULES(NULL),
     "MooncakeConnector (vLLM's own) is not supported; MooncakeConnectorV1 of vLLM-Ascend is"},
    {"mooncake", BT_CAP_NONE, NULL, BT_ENGINE_UNKNOWN, ANY_RULES(NULL),
     "mooncake (vLLM's MooncakeConnector) is not supported; for SGLang over Mooncake say sglang"},
    {"MoRIIOConnector", BT_CAP_NONE, NULL, BT_ENGINE_VLLM, ANY_RULES(NULL),
     "MoRIIOConnector is not supported"},
    {"moriio", BT_CAP_NONE, NULL, BT_ENGINE_VLLM, ANY_RULES(NULL),
     "moriio (MoRIIOConnector) is not supported"},
    {"P2pNcclConnector", BT_CAP_NONE, NULL, BT_ENGINE_VLLM, ANY_RULES(NULL),
     "P2pNcclConnector is not supported: newer vLLM has removed it"},
    {"nccl", BT_CAP_NONE, NULL, BT_ENGINE_VLLM, ANY_RULES(NULL),
     "nccl (P2pNcclConnector) is not supported: newer vLLM has removed it"},
};

/* SGLang's --disaggregation-transfer-backend: all of them look the same from outside. */
static const char *const sglang_backends[] = {"sglang", "mooncake", "nixl",
                                              "ascend", "mori",     "fake"};

enum profile {
    PROFILE_NONE,
    PROFILE_HANDOFF,
    PROFILE_TRIGGER,
    PROFILE_BOOTSTRAP,
    PROFILE_BATON,
    PROFILE_UNKNOWN
};

struct verdict {
    enum bt_capability cap;
    const char *dialect;
    const char *why;
};

static const struct row *find_row(bt_str_t connector)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (bt_str_ieq(connector, bt_str(rows[i].name)))
            return &rows[i];
    return NULL;
}

static bool is_multi(bt_str_t connector)
{
    return bt_str_ieq(connector, BT_STR("MultiConnector"));
}

static bool is_sglang_backend(bt_str_t connector)
{
    for (size_t i = 0; i < sizeof sglang_backends / sizeof sglang_backends[0]; i++)
        if (bt_str_ieq(connector, bt_str(sglang_backends[i])))
            return true;
    return false;
}

static enum profile parse_profile(bt_str_t s)
{
    if (s.n == 0)
        return PROFILE_NONE;
    if (bt_str_ieq(s, BT_STR("handoff")))
        return PROFILE_HANDOFF;
    if (bt_str_ieq(s, BT_STR("trigger")))
        return PROFILE_TRIGGER;
    if (bt_str_ieq(s, BT_STR("baton")))
        return PROFILE_BATON;
    return bt_str_ieq(s, BT_STR("bootstrap")) ? PROFILE_BOOTSTRAP : PROFILE_UNKNOWN;
}

static struct verdict refuse(const char *why)
{
    return (struct verdict){BT_CAP_NONE, NULL, why};
}

static struct verdict derive_sglang(bt_str_t connector, enum profile profile)
{
    if (profile != PROFILE_NONE && profile != PROFILE_BOOTSTRAP)
        return refuse(why_profile_sglang);
    if (connector.n > 0 && !is_sglang_backend(connector))
        return refuse(why_sglang_connector);
    return (struct verdict){SYNC, sglang, NULL};
}

/* No row says anything: the profile is the only word left. */
static struct verdict derive_by_profile(bt_str_t connector, enum profile profile)
{
    if (profile == PROFILE_HANDOFF)
        return (struct verdict){HANDOFF, nixl, NULL};
    if (profile == PROFILE_BATON)
        return (struct verdict){SYNC, baton, NULL};
    if (profile == PROFILE_BOOTSTRAP)
        return connector.n == 0 ? (struct verdict){SYNC, sglang, NULL}
                                : refuse("dispatch_profile bootstrap is for SGLang");
    return refuse(connector.n == 0 ? "no connector named: give --kv-connector or connector="
                                   : "unknown connector");
}

static struct verdict derive_row(const struct row *row, enum profile profile)
{
    if (row->why != NULL)
        return (struct verdict){row->cap, row->dialect, row->why};
    if (row->dialect == baton && profile != PROFILE_NONE && profile != PROFILE_BATON)
        return refuse(why_profile_gateway_managed);
    if (profile == PROFILE_BATON && row->dialect != baton)
        return refuse(why_profile_baton);
    if (profile == PROFILE_BOOTSTRAP && row->dialect != sglang)
        return refuse("dispatch_profile bootstrap is for SGLang");
    /* A push producer's reply may also be carried to decode by hand, one leg after the other. */
    if (profile == PROFILE_HANDOFF && row->dialect == nixl_push)
        return (struct verdict){HANDOFF, nixl, NULL};
    if (profile == PROFILE_HANDOFF && row->cap != HANDOFF)
        return refuse(why_profile_sglang);
    return (struct verdict){row->cap, row->dialect, NULL};
}

static struct verdict derive(enum bt_engine engine, bt_str_t connector, const bt_str_t *children,
                             unsigned child_count, enum profile profile)
{
    if (profile == PROFILE_UNKNOWN)
        return refuse("unknown dispatch_profile: handoff, trigger, bootstrap or baton");
    if (is_multi(connector)) {
        if (child_count < 2)
            return refuse("MultiConnector needs at least two connectors");
        if (is_multi(children[0]))
            return refuse("MultiConnector inside MultiConnector is not supported");
        connector = children[0];
    }
    if (engine == BT_ENGINE_SGLANG)
        return derive_sglang(connector, profile);
    const struct row *row = find_row(connector);
    if (profile == PROFILE_TRIGGER && (row == NULL || row->why == NULL))
        return (struct verdict){SYNC, trigger, why_trigger};
    if (row == NULL)
        return derive_by_profile(connector, profile);
    if (row->dialect == sglang && engine != BT_ENGINE_UNKNOWN)
        return refuse("connector sglang needs engine SGLang");
    return derive_row(row, profile);
}

int bt_capability_derive(enum bt_engine engine, bt_str_t connector, const bt_str_t *children,
                         unsigned child_count, bt_str_t profile, enum bt_capability *cap_p,
                         const char **dialect_p, const char **why_p)
{
    struct verdict v = derive(engine, connector, children, child_count, parse_profile(profile));
    *cap_p = v.cap;
    *dialect_p = v.dialect;
    *why_p = v.why;
    return 0;
}

enum bt_engine bt_capability_engine(bt_str_t connector, const bt_str_t *children,
                                    unsigned child_count, bt_str_t profile)
{
    if (is_multi(connector) && child_count > 0)
        connector = children[0];
    const struct row *row = find_row(connector);
    if (row != NULL)
        return row->engine;
    const enum profile said = connector.n == 0 ? parse_profile(profile) : PROFILE_NONE;
    return said == PROFILE_BOOTSTRAP ? BT_ENGINE_SGLANG
           : said == PROFILE_BATON   ? BT_ENGINE_VLLM
                                     : BT_ENGINE_UNKNOWN;
}

void bt_capability_pair_rules(enum bt_engine engine, bt_str_t connector, const bt_str_t *children,
                              unsigned child_count, const char *dialect, bt_pair_rules_t *rules_p)
{
    *rules_p = (bt_pair_rules_t){NULL, BT_TP_ANY, false};
    if (dialect == NULL || strcmp(dialect, sglang) == 0)
        return;
    if (is_multi(connector) && child_count > 0)
        connector = children[0];
    const struct row *row = find_row(connector);
    if (row != NULL)
        *rules_p = row->rules;
    /* Ascend engines check the ratio whatever name the user gave their connector ("nixl", profile handoff); and then it
     * is not vLLM's NIXL, so NIXL's version check does not hold either. */
    bool ascend = engine == BT_ENGINE_VLLM_ASCEND || engine == BT_ENGINE_MINDIE;
    bool by_dialect_name = row == NULL || strcmp(row->name, dialect) == 0;
    if (ascend && by_dialect_name && strcmp(dialect, nixl) == 0)
        *rules_p = (bt_pair_rules_t){NULL, BT_TP_PREFILL_MULTIPLE, false};
}

bool bt_capability_is_gateway_managed(const char *dialect)
{
    return dialect != NULL && strcmp(dialect, baton) == 0;
}

bool bt_capability_prefill_serves_alone(enum bt_engine engine)
{
    return engine == BT_ENGINE_VLLM || engine == BT_ENGINE_VLLM_ASCEND ||
           engine == BT_ENGINE_MINDIE;
}

/* ---- names ---- */

static const char *const engine_names[] = {"unknown", "sglang", "vllm", "vllm_ascend", "mindie"};

const char *bt_capability_name(enum bt_capability cap)
{
    static const char *const names[] = {"none", "concurrent_engine_sync", "prefill_handoff_decode"};
    return names[cap];
}

const char *bt_engine_name(enum bt_engine engine)
{
    return engine_names[engine];
}

const char *bt_role_name(enum bt_role role)
{
    static const char *const names[] = {"prefill", "decode", "hybrid"};
    return names[role];
}

static bool same_word(bt_str_t s, const char *name)
{
    char text[32];
    if (s.n >= sizeof text)
        return false;
    for (size_t i = 0; i < s.n; i++)
        text[i] = s.p[i] == '-' ? '_' : s.p[i];
    return bt_str_ieq((bt_str_t){text, s.n}, bt_str(name));
}

int bt_engine_parse(bt_str_t s, enum bt_engine *engine_p)
{
    for (unsigned i = 0; i < sizeof engine_names / sizeof engine_names[0]; i++) {
        if (!same_word(s, engine_names[i]))
            continue;
        *engine_p = (enum bt_engine) i;
        return 0;
    }
    return BT_E_INVAL;
}

int bt_role_parse(bt_str_t s, enum bt_role *role_p)
{
    static const struct {
        const char *name;
        enum bt_role role;
    } words[] = {{"prefill", BT_ROLE_PREFILL},
                 {"decode", BT_ROLE_DECODE},
                 {"hybrid", BT_ROLE_HYBRID},
                 {"union", BT_ROLE_HYBRID}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (!same_word(s, words[i].name))
            continue;
        *role_p = words[i].role;
        return 0;
    }
    return BT_E_INVAL;
}
