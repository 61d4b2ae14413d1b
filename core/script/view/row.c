/* How it works: a row is a userdata that points at its worker and holds a reference to it; reading a field reads the live
 * atomic. The table `rows` (weak values, by worker id) makes rows unique in a VM.
 *
 * Pairing depends on few facts of a worker. Workers that agree in all of them form a class, and the answer is kept per pair
 * of classes: a fleet of thousands usually has two. */
#include "script/view/row.h"

#include "base/text.h"
#include "cluster/kv_trust.h"
#include "script/shared/prefix_index.h"
#include "script/shared/prefix_sent.h"

#include <stdlib.h>

#define LOAD_FRESH_MS 5000 /* an engine's own report older than this says nothing */

const char *const bt_row_names[] = {"id",
                                    "name",
                                    "role",
                                    "labels",
                                    "zone",
                                    "engine",
                                    "connector",
                                    "version",
                                    "kinds",
                                    "dialects",
                                    "dp_size",
                                    "tp_size",
                                    "pp_size",
                                    "prefill_tokens",
                                    "decode_tokens",
                                    "tokens",
                                    "requests",
                                    "transfer_bytes",
                                    "running",
                                    "waiting",
                                    "kv_free",
                                    "ttft_ema_ms",
                                    "tpot_ema_ms",
                                    "age_ms",
                                    "prefix_blocks",
                                    "prefix_host_blocks",
                                    "prefix_disk_blocks",
                                    "kv_hit_tokens",
                                    "prefix_cached",
                                    "pairs_with",
                                    NULL};

/* ---- fields of a row ---- */

static int64_t load_i64(const _Atomic int64_t *p)
{
    return atomic_load_explicit(p, memory_order_relaxed);
}

static bool known_when(bool known, double value, double *value_p)
{
    if (known)
        *value_p = value;
    return known;
}

/* What the engine itself reported; requests we started since then count as waiting. */
static bool sample_number(const bt_load_sample_t *load, enum bt_row_field field, uint64_t now_ms,
                          double *value_p)
{
    uint64_t at_ms = atomic_load_explicit(&load->at_ms, memory_order_relaxed);
    uint64_t age_ms = now_ms > at_ms ? now_ms - at_ms : 0;
    bool fresh = at_ms != 0 && age_ms <= LOAD_FRESH_MS;

    switch (field) {
    case BT_ROW_RUNNING:
        return known_when(fresh, (double) load_i64(&load->running), value_p);
    case BT_ROW_WAITING:
        return known_when(
            fresh, (double) (load_i64(&load->waiting) + load_i64(&load->started_since)), value_p);
    case BT_ROW_KV_FREE:
        return known_when(
            fresh, 1.0 - atomic_load_explicit(&load->kv_used_ppm, memory_order_relaxed) / 1e6,
            value_p);
    default:
        return known_when(at_ms != 0, (double) age_ms, value_p);
    }
}

static bool ema_ms(const _Atomic int64_t *us, double *value_p)
{
    int64_t value = load_i64(us);

    return known_when(value > 0, (double) value / 1000, value_p);
}

bool bt_prefix_exact(const bt_policy_t *policy, const bt_worker_t *w, bt_kv_hit_t *hit_p)
{
    const struct bt_native *k = policy->native;

    return k->prefix.found != 0 && k->prefix.serial == policy->call.serial &&
           k->prefix.is_matched && bt_kv_trust_has(w) &&
           bt_kv_hits_get(k->prefix.found, atomic_load_explicit(&w->kv_parts, memory_order_relaxed),
                          hit_p);
}

/* The engine's blocks as blocks of the size that the policy asked for. */
static unsigned own_blocks(const struct bt_native *k, const bt_kv_hit_t *hit, unsigned blocks)
{
    const unsigned size = hit->blocks > 0 ? hit->tokens / hit->blocks : 0;

    return blocks * size / k->prefix.block_tokens;
}

unsigned bt_prefix_blocks_of(const bt_policy_t *policy, const bt_worker_t *w)
{
    const struct bt_native *k = policy->native;
    bt_kv_hit_t hit;

    if (k->prefix.serial != policy->call.serial || !k->prefix.is_matched)
        return 0;
    const unsigned sent = bt_prefix_matched(&k->prefix.matches, (uint32_t) w->id);
    if (!bt_prefix_exact(policy, w, &hit))
        return sent;
    const unsigned held = own_blocks(k, &hit, hit.blocks);
    return sent <= held ? held
                        : bt_prefix_sent_count(k->prefix.hashes, held, sent, (uint32_t) w->id,
                                               policy->call.now_ms);
}

static double tier_blocks(const bt_policy_t *policy, const bt_worker_t *w, bool is_disk)
{
    bt_kv_hit_t hit;

    return bt_prefix_exact(policy, w, &hit)
               ? own_blocks(policy->native, &hit, is_disk ? hit.disk : hit.host)
               : 0;
}

static bool hit_tokens(const bt_policy_t *policy, const bt_worker_t *w, double *value_p)
{
    bt_kv_hit_t hit;
    const bool is_known = bt_prefix_exact(policy, w, &hit);

    return known_when(is_known, is_known ? hit.tokens : 0, value_p);
}

bool bt_worker_number(bt_policy_t *policy, const bt_worker_t *w, enum bt_row_field field,
                      double *value_p)
{
    switch (field) {
    case BT_ROW_ID:
        *value_p = (double) w->id;
        return true;
    case BT_ROW_DP_SIZE:
        *value_p = w->dp_size;
        return true;
    case BT_ROW_TP_SIZE:
        *value_p = w->tp_size;
        return true;
    case BT_ROW_PP_SIZE:
        *value_p = w->pp_size;
        return true;
    case BT_ROW_PREFILL_TOKENS:
        *value_p = (double) bt_worker_tokens(w, BT_PHASE_PREFILL);
        return true;
    case BT_ROW_DECODE_TOKENS:
        *value_p = (double) bt_worker_tokens(w, BT_PHASE_DECODE);
        return true;
    case BT_ROW_TOKENS:
        *value_p =
            (double) (bt_worker_tokens(w, BT_PHASE_PREFILL) + bt_worker_tokens(w, BT_PHASE_DECODE));
        return true;
    case BT_ROW_REQUESTS:
        *value_p = (double) (bt_worker_requests(w, BT_PHASE_PREFILL) +
                             bt_worker_requests(w, BT_PHASE_DECODE));
        return true;
    case BT_ROW_TRANSFER_BYTES:
        return known_when(w->is_gateway_managed, (double) load_i64(&w->transfer_bytes), value_p);
    case BT_ROW_TTFT_EMA_MS:
        return ema_ms(&w->ttft_ema_us, value_p);
    case BT_ROW_TPOT_EMA_MS:
        return ema_ms(&w->tpot_ema_us, value_p);
    case BT_ROW_RUNNING:
    case BT_ROW_WAITING:
    case BT_ROW_KV_FREE:
    case BT_ROW_AGE_MS:
        return sample_number(&w->load, field, policy->call.now_ms, value_p);
    case BT_ROW_PREFIX_BLOCKS:
        *value_p = bt_prefix_blocks_of(policy, w);
        return true;
    case BT_ROW_PREFIX_HOST_BLOCKS:
    case BT_ROW_PREFIX_DISK_BLOCKS:
        *value_p = tier_blocks(policy, w, field == BT_ROW_PREFIX_DISK_BLOCKS);
        return true;
    case BT_ROW_KV_HIT_TOKENS:
        return hit_tokens(policy, w, value_p);
    case BT_ROW_PREFIX_CACHED:
        *value_p = bt_prefix_cached((uint32_t) w->id);
        return true;
    default:
        return false;
    }
}

bool bt_row_is_numeric(enum bt_row_field field)
{
    return field == BT_ROW_ID || (field >= BT_ROW_DP_SIZE && field <= BT_ROW_PREFIX_CACHED);
}

/* {"nixl", nixl = true}: for ipairs and for a look-up. Added to the table at the top. */
static void add_word(lua_State *L, const char *word)
{
    lua_pushstring(L, word);
    lua_rawseti(L, -2, (int) lua_objlen(L, -2) + 1);
    lua_pushboolean(L, 1);
    lua_setfield(L, -2, word);
}

static void push_kinds(lua_State *L, const bt_worker_t *w, unsigned kinds)
{
    lua_newtable(L);
    if (kinds & BT_KIND_BOOTSTRAP)
        add_word(L, "bootstrap");
    if (kinds & BT_KIND_HANDOFF)
        add_word(L, "handoff");
    if (kinds & BT_KIND_TRIGGER)
        add_word(L, "trigger");
    if (w->serves_alone)
        add_word(L, "single");
}

static void push_dialects(lua_State *L, const bt_worker_t *w)
{
    lua_newtable(L);
    if (w->dialect != NULL)
        add_word(L, w->dialect);
}

/* "k=v,k=v" -> {k = "v"}; a word without '=' is true. */
static void push_labels(lua_State *L, const char *text)
{
    lua_newtable(L);
    while (text != NULL && *text != '\0') {
        const char *end = strchrnul(text, ','), *eq = memchr(text, '=', (size_t) (end - text));
        bt_str_t key = bt_str_trim((bt_str_t){text, (size_t) ((eq != NULL ? eq : end) - text)});

        if (key.n > 0) {
            bt_vm_push_str(L, key);
            if (eq != NULL)
                bt_vm_push_str(L, bt_str_trim((bt_str_t){eq + 1, (size_t) (end - eq - 1)}));
            else
                lua_pushboolean(L, 1);
            lua_rawset(L, -3);
        }
        text = *end == ',' ? end + 1 : end;
    }
}

/* labels, kinds, dialects: made on first use, and again when its kinds are others; kept as the userdata's environment. */
static void push_table_field(lua_State *L, bt_row_t *row, int idx, enum bt_row_field field)
{
    const unsigned kinds = bt_worker_kinds(row->worker);

    if (!row->has_tables || kinds != row->kinds) {
        lua_createtable(L, 0, 3);
        push_labels(L, row->worker->spec.labels);
        lua_rawseti(L, -2, BT_ROW_LABELS);
        push_kinds(L, row->worker, kinds);
        lua_rawseti(L, -2, BT_ROW_KINDS);
        push_dialects(L, row->worker);
        lua_rawseti(L, -2, BT_ROW_DIALECTS);
        lua_setfenv(L, idx);
        row->has_tables = true;
        row->kinds = kinds;
    }
    lua_getfenv(L, idx);
    lua_rawgeti(L, -1, (int) field);
}

static void push_number_field(lua_State *L, const bt_row_t *row, int field)
{
    double value;

    if (bt_worker_number(bt_policy_of(L), row->worker, (enum bt_row_field) field, &value))
        lua_pushnumber(L, value);
    else
        lua_pushnil(L);
}

/* Reached only through a row's own metatable, which no script can get at: argument 1 is a row. */
static int row_index(lua_State *L)
{
    bt_row_t *row = lua_touserdata(L, 1);
    bt_policy_t *policy = bt_policy_of(L);
    int field = bt_vm_fields_find(L, &policy->row_fields, 2);

    switch (field) {
    case -1:
        return bt_vm_unknown(L, "field of a worker", bt_row_names, 2);
    case BT_ROW_NAME:
        lua_pushstring(L, row->worker->name);
        break;
    case BT_ROW_ROLE:
        lua_pushstring(L, bt_role_name(row->worker->spec.role));
        break;
    case BT_ROW_ZONE:
        policy->asked_labels = true;
        lua_pushstring(L, row->worker->spec.zone);
        break; /* NULL is nil */
    case BT_ROW_ENGINE:
        lua_pushstring(L, row->worker->engine != BT_ENGINE_UNKNOWN
                              ? bt_engine_name(row->worker->engine)
                              : NULL);
        break;
    case BT_ROW_CONNECTOR:
        lua_pushstring(L, row->worker->spec.connector);
        break;
    case BT_ROW_VERSION:
        lua_pushstring(L, row->worker->spec.version);
        break;
    case BT_ROW_LABELS:
        policy->asked_labels = true;
        push_table_field(L, row, 1, BT_ROW_LABELS);
        break;
    case BT_ROW_KINDS:
    case BT_ROW_DIALECTS:
        push_table_field(L, row, 1, (enum bt_row_field) field);
        break;
    case BT_ROW_PAIRS_WITH:
        bt_vm_push(L, policy->pairs_with_ref);
        break;
    default:
        push_number_field(L, row, field);
        break;
    }
    return 1;
}

static int row_tostring(lua_State *L)
{
    const bt_row_t *row = lua_touserdata(L, 1);

    lua_pushfstring(L, "worker %s", row->worker->name);
    return 1;
}

static int row_gc(lua_State *L)
{
    bt_row_t *row = lua_touserdata(L, 1);

    bt_worker_unref(row->worker);
    row->worker = NULL;
    return 0;
}

int bt_row_read_only(lua_State *L)
{
    return luaL_error(L, "views, workers and requests cannot be written");
}

bt_row_t *bt_row_at(lua_State *L, int idx)
{
    bt_row_t *row = lua_touserdata(L, idx);

    return row != NULL && row->magic == BT_MAGIC_ROW ? row : NULL;
}

bt_row_t *bt_row_check(lua_State *L, int idx)
{
    bt_row_t *row = bt_row_at(L, idx);

    if (row == NULL)
        luaL_error(L, "a worker is expected here, not a %s value", luaL_typename(L, idx));
    return row;
}

/* ---- classes and pairing ---- */

static void add_fact(bt_text_t *t, const char *fact)
{
    bt_text_printf(t, "%s\x1f", fact != NULL ? fact : "");
}

/* Everything that bt_workers_pair_refusal looks at, and a little more. Constants may be compared by address. */
static void print_facts(bt_text_t *t, const bt_worker_t *w)
{
    bt_text_printf(t, "%d %d %d %p %p %d %d %d ", (int) w->spec.role, (int) w->engine,
                   (int) w->capability, (const void *) w->refusal,
                   (const void *) w->pair_rules.family, (int) w->pair_rules.tp,
                   w->pair_rules.equal_version, w->spec.tp_size);
    add_fact(t, w->dialect);
    add_fact(t, w->spec.connector);
    add_fact(t, w->spec.version);
    add_fact(t, w->spec.transfer_group);
    for (unsigned i = 0; i < w->spec.model_count; i++)
        add_fact(t, w->spec.models[i]);
}

static unsigned class_of(bt_policy_t *policy, const bt_worker_t *w)
{
    unsigned klass = BT_POLICY_CLASSES;
    bt_text_t facts;

    bt_text_init(&facts);
    print_facts(&facts, w);
    for (unsigned i = 0; !facts.failed && i < policy->class_count; i++)
        if (strcmp(policy->classes[i], facts.data) == 0)
            klass = i;
    if (klass == BT_POLICY_CLASSES && !facts.failed && policy->class_count < BT_POLICY_CLASSES) {
        policy->classes[policy->class_count] = strdup(facts.data);
        if (policy->classes[policy->class_count] != NULL)
            klass = policy->class_count++;
    }
    bt_text_fini(&facts);
    return klass;
}

bool bt_rows_fit(bt_policy_t *policy, const bt_row_t *a, const bt_row_t *b)
{
    const bt_row_t *p = a->worker->spec.role == BT_ROLE_PREFILL ? a : b, *d = p == a ? b : a;
    signed char answer, *known;

    if (p->worker->spec.role != BT_ROLE_PREFILL || d->worker->spec.role != BT_ROLE_DECODE)
        return false;
    known = p->klass < BT_POLICY_CLASSES && d->klass < BT_POLICY_CLASSES
                ? &policy->fits[p->klass][d->klass]
                : NULL;
    if (known != NULL && *known != 0)
        return *known > 0;
    answer = bt_workers_pair_refusal(p->worker, d->worker) == NULL ? 1 : -1;
    if (known != NULL)
        *known = answer;
    return answer > 0;
}

static int row_pairs_with(lua_State *L)
{
    lua_pushboolean(L, bt_rows_fit(bt_policy_of(L), bt_row_check(L, 1), bt_row_check(L, 2)));
    return 1;
}

/* ---- rows ---- */

bt_row_t *bt_row_push(lua_State *L, bt_policy_t *policy, int rows, bt_worker_t *w)
{
    bt_row_t *row;

    lua_pushnumber(L, (lua_Number) w->id);
    lua_rawget(L, rows);
    row = lua_touserdata(L, -1);
    if (row != NULL)
        return row;
    lua_pop(L, 1);
    row = lua_newuserdata(L, sizeof(*row));
    *row =
        (bt_row_t){.magic = BT_MAGIC_ROW, .worker = bt_worker_ref(w), .klass = class_of(policy, w)};
    bt_vm_push(L, policy->row_meta_ref);
    lua_setmetatable(L, -2);
    lua_pushnumber(L, (lua_Number) w->id);
    lua_pushvalue(L, -2);
    lua_rawset(L, rows);
    return row;
}

bt_row_t *bt_row_by_id(lua_State *L, bt_policy_t *policy, lua_Number id)
{
    bt_row_t *row;

    bt_vm_push(L, policy->rows_ref);
    lua_pushnumber(L, id);
    lua_rawget(L, -2);
    row = lua_touserdata(L, -1);
    lua_pop(L, 2);
    return row;
}

void bt_rows_open(lua_State *L, bt_policy_t *policy)
{
    bt_vm_fields_init(L, &policy->row_fields, bt_row_names);
    bt_vm_push_closed_meta(L, row_index, bt_row_read_only);
    lua_pushcfunction(L, row_gc);
    lua_setfield(L, -2, "__gc");
    lua_pushcfunction(L, row_tostring);
    lua_setfield(L, -2, "__tostring");
    policy->row_meta_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    lua_newtable(L);
    lua_newtable(L);
    lua_pushliteral(L, "v");
    lua_setfield(L, -2, "__mode");
    lua_setmetatable(L, -2);
    policy->rows_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    lua_pushcfunction(L, row_pairs_with);
    policy->pairs_with_ref = luaL_ref(L, LUA_REGISTRYINDEX);
}
