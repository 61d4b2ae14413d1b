/* How it works: the prompt of the running call is hashed once, when the first native function asks, and looked for in the index once;
 * both are kept until the call ends. Then `prefix_blocks` is a field of every worker, for argmin_sum and the like.
 *
 * A match names at most 64 workers, a list may have thousands: lists of the view keep an index from id to place, so that the
 * few are looked for among the many; a policy's own lists are gone through. */
#include "script/native/native.h"

#include "base/rand.h"
#include "script/shared/prefix_sent.h"

#define CHAIN_TOKENS 16384u

/* A call's own where the request has no number: then only this call asks. */
static bt_prompt_ids_t *ids_of(const bt_policy_t *policy, bt_str_t prompt)
{
    const uint64_t number = policy->call.req->prompt_number;

    return bt_prompt_ids_of(prompt, number != 0
                                        ? (bt_prompt_key_t){0, number}
                                        : (bt_prompt_key_t){policy->epoch, policy->call.serial});
}

/* Some ten thousand tokens at once. */
static unsigned chain_prompt(lua_State *L, bt_str_t prompt, unsigned tokens, uint64_t *hashes)
{
    const unsigned blocks = tokens < CHAIN_TOKENS ? CHAIN_TOKENS / tokens : 1;
    unsigned count = 0, wanted;
    bt_prefix_chain_t chain;

    bt_prefix_chain_begin(&chain, prompt, ids_of(bt_policy_of(L), prompt), tokens);
    do {
        bt_vm_check_time(L);
        wanted = count + blocks < BT_PREFIX_BLOCKS_MAX ? count + blocks : BT_PREFIX_BLOCKS_MAX;
        count = bt_prefix_chain_more(&chain, hashes, count, wanted);
    } while (count == wanted && count < BT_PREFIX_BLOCKS_MAX);
    return count;
}

static struct bt_native *chain_of(lua_State *L, int block_idx)
{
    bt_policy_t *policy = bt_policy_of(L);
    struct bt_native *k = policy->native;
    lua_Integer tokens = luaL_optinteger(L, block_idx, BT_PREFIX_BLOCK_TOKENS);
    const bt_policy_request_t *req = policy->call.req;
    uint64_t space;

    luaL_argcheck(L, tokens >= 1 && tokens <= BT_PREFIX_BLOCK_TOKENS_MAX, block_idx,
                  "1 to 1024 tokens a block");
    if (!policy->call.running || req == NULL)
        luaL_error(L, "there is no request here");
    if (k->prefix.serial == policy->call.serial && k->prefix.block_tokens == (unsigned) tokens)
        return k;
    k->prefix.serial = 0; /* what was there is being written over */
    k->prefix.count = chain_prompt(L, req->prompt, (unsigned) tokens, k->prefix.hashes);
    space = req->prefix_space; /* vLLM's LoRA adapters are models */
    if (req->model.n != 0)
        space = bt_hash64(req->model, space);
    for (unsigned i = 0; i < k->prefix.count; i++)
        k->prefix.hashes[i] ^= space;
    k->prefix.serial = policy->call.serial;
    k->prefix.block_tokens = (unsigned) tokens;
    k->prefix.is_matched = false;
    return k;
}

/* What engines say they hold goes before what they were sent; a worker whose engine says nothing has the latter. */
static const bt_prefix_matches_t *match(const bt_policy_t *policy)
{
    struct bt_native *k = policy->native;
    const bt_policy_request_t *req = policy->call.req;

    if (k->prefix.is_matched)
        return &k->prefix.matches;
    bt_prefix_find(k->prefix.hashes, k->prefix.count, &k->prefix.matches);
    k->prefix.found = !policy->is_dry_run && !req->is_apart
                          ? bt_kv_hits_find(ids_of(policy, req->ids.n > 0 ? req->ids : req->prompt),
                                            req->model, req->cache_salt)
                          : 0;
    k->prefix.is_matched = true;
    return &k->prefix.matches;
}

static void check_req(lua_State *L, int idx)
{
    luaL_argcheck(L, lua_isuserdata(L, idx) && bt_row_at(L, idx) == NULL, idx, "req expected");
}

/* ---- from id to place ---- */

struct place {
    uint32_t worker, at; /* worker 0 = free */
};

struct index {
    unsigned mask;
    struct place places[];
};

/* One that stands there twice has its first place. */
static void index_fill(lua_State *L, struct index *index, const bt_rows_t *rows, unsigned slots)
{
    index->mask = slots - 1;
    memset(index->places, 0, slots * sizeof(index->places[0]));
    for (unsigned i = 0; i < rows->count; i++) {
        uint32_t worker = (uint32_t) rows->workers[i]->id;
        unsigned slot = worker & index->mask;

        if (i % BT_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        while (index->places[slot].worker != 0 && index->places[slot].worker != worker)
            slot = (slot + 1) & index->mask;
        if (index->places[slot].worker == 0)
            index->places[slot] = (struct place){worker, i};
    }
}

/* The list is one of the view. */
static const struct index *index_of(lua_State *L, const bt_rows_t *rows)
{
    struct index *index = bt_worker_list_memo(L, rows, BT_MEMO_IDS);
    unsigned slots = 4;

    if (index != NULL)
        return index;
    while (slots < 2 * rows->count)
        slots *= 2;
    index = bt_native_chunk(L, sizeof(*index) + slots * sizeof(index->places[0]));
    index_fill(L, index, rows, slots);
    bt_worker_list_keep(L, rows, BT_MEMO_IDS);
    return index;
}

static int place_of(const struct index *index, uint32_t worker)
{
    for (unsigned slot = worker; index->places[slot & index->mask].worker != 0; slot++)
        if (index->places[slot & index->mask].worker == worker)
            return (int) index->places[slot & index->mask].at;
    return -1;
}

/* A list of the policy's own, or exact hits: the many are looked for among the few. */
static void fill_own(lua_State *L, const bt_rows_t *rows, double weight, double *values)
{
    const bt_policy_t *policy = bt_policy_of(L);

    for (unsigned i = 0; i < rows->count; i++) {
        if (i % BT_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        values[i] = weight * bt_prefix_blocks_of(policy, rows->workers[i]);
    }
}

void bt_prefix_fill(lua_State *L, const bt_rows_t *rows, double weight, double *values)
{
    const bt_policy_t *policy = bt_policy_of(L);
    const struct bt_native *k = policy->native;
    const struct index *index;

    for (unsigned i = 0; i < rows->count; i++)
        values[i] = 0;
    if (k->prefix.serial != policy->call.serial || !k->prefix.is_matched)
        return;
    if (rows->list == NULL || k->prefix.found != 0) {
        fill_own(L, rows, weight, values);
        return;
    }
    index = index_of(L, rows);
    for (unsigned m = 0; m < k->prefix.matches.count; m++) {
        int at = place_of(index, k->prefix.matches.items[m].worker);

        if (at >= 0)
            values[at] = weight * k->prefix.matches.items[m].blocks;
    }
}

/* Longest match, then fewest requests, then chance: what all begin with must not draw all to one. */
struct best {
    int at; /* -1: nobody has anything */
    unsigned blocks, equals;
    int64_t requests;
};

static void consider(struct best *best, const bt_rows_t *rows, int at, unsigned blocks)
{
    const bt_worker_t *w = rows->workers[at];
    const int64_t requests =
        bt_worker_requests(w, BT_PHASE_PREFILL) + bt_worker_requests(w, BT_PHASE_DECODE);

    if (blocks < best->blocks || (blocks == best->blocks && requests > best->requests))
        return;
    best->equals = blocks > best->blocks || requests < best->requests ? 1 : best->equals + 1;
    best->blocks = blocks;
    best->requests = requests;
    if (bt_rand_below(best->equals) == 0)
        best->at = at;
}

static int best_match(lua_State *L, const bt_rows_t *rows, const bt_prefix_matches_t *m)
{
    struct best best = {.at = -1, .blocks = 1, .requests = INT64_MAX};
    const bt_policy_t *policy = bt_policy_of(L);
    const bool has_exact = policy->native->prefix.found != 0;
    const struct index *index =
        m->count != 0 && rows->list != NULL && !has_exact ? index_of(L, rows) : NULL;

    for (unsigned i = 0; index == NULL && (m->count != 0 || has_exact) && i < rows->count; i++) {
        if (i % BT_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        consider(&best, rows, (int) i, bt_prefix_blocks_of(policy, rows->workers[i]));
    }
    /* The longest come first. */
    for (unsigned i = 0; index != NULL && i < m->count && m->items[i].blocks >= best.blocks; i++) {
        int at = place_of(index, m->items[i].worker);

        if (at >= 0)
            consider(&best, rows, at, m->items[i].blocks);
    }
    return best.at;
}

/* baton.prefix_match(list, req[, block_tokens]) -> worker with the longest match or nil, its blocks, the prompt's blocks */
static int native_prefix_match(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);
    const bt_prefix_matches_t *m;
    struct bt_native *k;
    bt_rows_t rows;
    int best;

    check_req(L, 2);
    k = chain_of(L, 3);
    bt_rows_get(L, policy, 1, &rows);
    m = match(policy);
    best = best_match(L, &rows, m);
    if (best >= 0)
        bt_rows_push(L, &rows, (unsigned) best);
    else
        lua_pushnil(L);
    lua_pushinteger(L,
                    best >= 0 ? (lua_Integer) bt_prefix_blocks_of(policy, rows.workers[best]) : 0);
    lua_pushinteger(L, (lua_Integer) k->prefix.count);
    return 3;
}

/* An engine whose events are followed tells every gateway of the fleet what it has: nobody hears it from here. But it tells
 * only once it has begun, so what was just sent counts here at once. */
static void insert(bt_policy_t *policy, const bt_worker_t *worker)
{
    const struct bt_native *k = policy->native;
    const uint32_t id = (uint32_t) worker->id;
    bt_kv_hit_t hit;

    if (!bt_prefix_exact(policy, worker, &hit)) {
        bt_prefix_insert(k->prefix.hashes, k->prefix.count, id, policy->call.now_ms);
        return;
    }
    bt_prefix_insert_untold(k->prefix.hashes, k->prefix.count, id, policy->call.now_ms);
    bt_prefix_sent_note(k->prefix.hashes, k->prefix.count, id, policy->call.now_ms);
}

/* baton.prefix_insert(req, worker[, block_tokens]): the worker is about to have this prompt */
static int native_prefix_insert(lua_State *L)
{
    const bt_row_t *row = bt_row_check(L, 2);

    check_req(L, 1);
    (void) chain_of(L, 3);
    if (bt_policy_of(L)->shadow[0] != '\0' || bt_policy_of(L)->is_dry_run)
        return 0; /* its choices do not happen: no worker will have the prompt */
    if (bt_policy_of(L)->call.req->is_counted)
        return 0;
    insert(bt_policy_of(L), row->worker);
    return 0;
}

/* baton.prefix_blocks(req[, block_tokens]) -> how many full blocks the prompt has */
static int native_prefix_blocks(lua_State *L)
{
    check_req(L, 1);
    lua_pushinteger(L, (lua_Integer) chain_of(L, 2)->prefix.count);
    return 1;
}

/* baton.prefix_key(req[, blocks[, block_tokens]]) -> 16 hex digits that name the first so many blocks (default 4, or all that
 * there are); nil when the prompt is shorter than one */
static int native_prefix_key(lua_State *L)
{
    lua_Integer blocks = luaL_optinteger(L, 2, 4);
    const struct bt_native *k;
    char text[17];

    check_req(L, 1);
    luaL_argcheck(L, blocks >= 1 && blocks <= BT_PREFIX_BLOCKS_MAX, 2, "1 to 1024 blocks");
    k = chain_of(L, 3);
    if (k->prefix.count == 0)
        return 0;
    if ((unsigned) blocks > k->prefix.count)
        blocks = (lua_Integer) k->prefix.count;
    for (int i = 0; i < 16; i++)
        text[i] = "0123456789abcdef"[k->prefix.hashes[blocks - 1] >> (60 - 4 * i) & 15];
    lua_pushlstring(L, text, 16);
    return 1;
}

void bt_native_add_prefix(lua_State *L)
{
    static const luaL_Reg functions[] = {{"prefix_insert", native_prefix_insert}, {NULL, NULL}};
    static const luaL_Reg reads[] = {{"prefix_match", native_prefix_match},
                                     {"prefix_blocks", native_prefix_blocks},
                                     {"prefix_key", native_prefix_key},
                                     {NULL, NULL}};

    bt_native_set(L, functions);
    bt_native_set_reads(L, "", reads);
}
