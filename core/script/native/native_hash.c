/* How it works: a worker's place in every hash is that of its URL, so it is the same in all replicas of the gateway and after
 * a restart. Places are computed once a list and kept with it.
 *
 * Rendezvous gives each key an order of all workers of its own: a worker that goes away moves only its own keys, evenly
 * over all others. The bounded form takes the first of that order whose load is below the bound (Mirrokni et al. walk a
 * ring instead, where one full worker overflows onto one neighbour). The ring needs O(log n) a key instead of O(n). */
#include "script/native/native.h"

#include <math.h>

#define VNODES 160 /* points a worker on the ring; the number that users of other routers know */
#define RING_POINTS_MAX                                                                            \
    32768 /* beyond, workers get half as many, a quarter, ... : making it stays under a millisecond or two */
#define NUMBER_BITS 53
#define TOP_MAX 64

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t place_of(const bt_worker_t *w)
{
    return bt_hash64(bt_str(w->spec.url != NULL ? w->spec.url : w->name), 0);
}

/* Strings and numbers. */
static uint64_t check_key(lua_State *L, int idx)
{
    bt_str_t s = BT_STR_NULL;

    s.p = luaL_checklstring(L, idx, &s.n);
    return bt_hash64(s, 0);
}

/* baton.hash(text[, seed]) -> XXH3-64's upper 53 bits: all that a Lua number holds */
static int native_hash(lua_State *L)
{
    bt_str_t s = BT_STR_NULL;
    lua_Number seed = luaL_optnumber(L, 2, 0);

    s.p = luaL_checklstring(L, 1, &s.n);
    luaL_argcheck(L, seed >= 0 && seed < 9007199254740992.0, 2, "a whole number below 2^53");
    lua_pushnumber(L, (lua_Number) (bt_hash64(s, (uint64_t) seed) >> (64 - NUMBER_BITS)));
    return 1;
}

/* Lists of the view keep their members' places; for others they are computed one by one. */
static const uint64_t *places(lua_State *L, const bt_rows_t *rows)
{
    uint64_t *p = bt_worker_list_memo(L, rows, BT_MEMO_HASHES);

    if (p != NULL || rows->list == NULL)
        return p;
    p = bt_native_chunk(L, rows->count * sizeof(*p));
    for (unsigned i = 0; i < rows->count; i++) {
        if (i % BT_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        p[i] = place_of(rows->workers[i]);
    }
    bt_worker_list_keep(L, rows, BT_MEMO_HASHES);
    return p;
}

static uint64_t score(const bt_rows_t *rows, const uint64_t *place, unsigned i, uint64_t key)
{
    return mix((place != NULL ? place[i] : place_of(rows->workers[i])) ^ key);
}

/* A worker's place in the key's order, as a number below 1: the largest comes first. */
static double rank_of(uint64_t value)
{
    return (double) (value >> (64 - NUMBER_BITS)) / (double) (UINT64_C(1) << NUMBER_BITS);
}

static void trace_order(lua_State *L, const bt_rows_t *rows, const uint64_t *place, uint64_t key)
{
    bt_policy_t *policy = bt_policy_of(L);
    double *ranks;

    if (!bt_native_is_traced(policy))
        return;
    ranks = bt_native_values(L, policy, rows->count);
    for (unsigned i = 0; i < rows->count; i++) {
        if (i % BT_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        ranks[i] = rank_of(score(rows, place, i, key));
    }
    bt_native_trace(L, rows, ranks, 1);
}

struct top {
    unsigned at[TOP_MAX];
    uint64_t scores[TOP_MAX];
    unsigned count, max;
};

static void top_add(struct top *top, unsigned at, uint64_t value)
{
    unsigned i = top->count < top->max ? top->count++ : top->max;

    if (i == top->max && value <= top->scores[i - 1])
        return;
    for (i = i == top->max ? i - 1 : i; i > 0 && top->scores[i - 1] < value; i--) {
        top->at[i] = top->at[i - 1];
        top->scores[i] = top->scores[i - 1];
    }
    top->at[i] = at;
    top->scores[i] = value;
}

/* baton.rendezvous(list, key) -> worker; baton.rendezvous(list, key, count) -> a list of the first so many, in order */
static int native_rendezvous(lua_State *L)
{
    const bool is_list = !lua_isnoneornil(L, 3);
    lua_Integer max = is_list ? luaL_checkinteger(L, 3) : 1;
    uint64_t key = check_key(L, 2);
    const uint64_t *place;
    bt_rows_t rows;
    struct top top;

    luaL_argcheck(L, max >= 1 && max <= TOP_MAX, 3, "1 to 64");
    top.count = 0;
    top.max = (unsigned) max;
    bt_rows_get(L, bt_policy_of(L), 1, &rows);
    place = places(L, &rows);
    for (unsigned i = 0; i < rows.count; i++) {
        if (i % BT_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        top_add(&top, i, score(&rows, place, i, key));
    }
    trace_order(L, &rows, place, key);
    if (!is_list) {
        if (top.count != 0)
            bt_rows_push(L, &rows, top.at[0]);
        return top.count != 0;
    }
    lua_createtable(L, (int) top.count, 0);
    for (unsigned i = 0; i < top.count; i++) {
        bt_rows_push(L, &rows, top.at[i]);
        lua_rawseti(L, -2, (int) i + 1);
    }
    return 1;
}

/* ---- bounded loads ---- */

/* ceil(factor * (all + 1) / n): with this one on board nobody is above factor times the mean. */
static double bound(const double *loads, unsigned count, double factor)
{
    double sum = 1;
    unsigned known = 0;

    for (unsigned i = 0; i < count; i++)
        if (loads[i] != HUGE_VAL) {
            sum += loads[i];
            known++;
        }
    return known != 0 ? ceil(factor * sum / known) : HUGE_VAL;
}

/* baton.bounded_hash(list, key, factor[, field]) -> the first in the key's order that is below factor times the mean of
 * the field ("requests"). Whose load is not known comes last. */
static int native_bounded_hash(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);
    bt_term_t term = {BT_ROW_REQUESTS, 1};
    uint64_t key = check_key(L, 2), best_score = 0;
    double factor = luaL_checknumber(L, 3), most, *loads;
    const uint64_t *place;
    bool best_below = false;
    int best = -1;
    bt_rows_t rows;

    luaL_argcheck(L, factor >= 1, 3, "at least 1");
    if (!lua_isnoneornil(L, 4))
        bt_term_check(L, policy, 4, &term);
    bt_rows_get(L, policy, 1, &rows);
    loads = bt_native_values(L, policy, rows.count);
    bt_term_fill(L, &rows, &term, loads);
    most = bound(loads, rows.count, factor);
    place = places(L, &rows);
    for (unsigned i = 0; i < rows.count; i++) {
        uint64_t value = score(&rows, place, i, key);
        bool below = loads[i] < most;

        if (i % BT_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        if (best >= 0 && (below < best_below || (below == best_below && value <= best_score)))
            continue;
        best = (int) i;
        best_below = below;
        best_score = value;
    }
    trace_order(L, &rows, place, key); /* takes the loads' scratch */
    if (best < 0)
        return 0;
    bt_rows_push(L, &rows, (unsigned) best);
    return 1;
}

/* ---- ring ---- */

struct ring {
    unsigned count;
    uint64_t points[]; /* upper half: where; lower half: whose; and as many again, to sort */
};

/* By their upper halves, a byte at a time: 32,768 points well under a millisecond, where qsort takes several. */
static void sort_points(lua_State *L, uint64_t *points, uint64_t *other, unsigned count)
{
    for (unsigned shift = 32; shift < 64; shift += 8) {
        unsigned starts[257] = {0};
        uint64_t *swap = points;

        bt_vm_check_time(L);
        for (unsigned i = 0; i < count; i++)
            starts[(points[i] >> shift & 255) + 1]++;
        for (unsigned i = 1; i < 256; i++)
            starts[i] += starts[i - 1];
        for (unsigned i = 0; i < count; i++)
            other[starts[points[i] >> shift & 255]++] = points[i];
        points = other;
        other = swap;
    }
}

static unsigned ring_vnodes(unsigned workers, unsigned vnodes)
{
    while (vnodes > 1 && (uint64_t) workers * vnodes > RING_POINTS_MAX)
        vnodes /= 2;
    return vnodes;
}

static void ring_fill(lua_State *L, struct ring *ring, const bt_rows_t *rows, unsigned vnodes)
{
    ring->count = rows->count * vnodes;
    for (unsigned i = 0; i < rows->count; i++) {
        uint64_t place = place_of(rows->workers[i]);

        if (i % 16 == 0) /* as many points as there are vnodes */
            bt_vm_check_time(L);
        for (unsigned v = 0; v < vnodes; v++)
            ring->points[i * vnodes + v] = (mix(place + v) & ~(uint64_t) UINT32_MAX) | i;
    }
    sort_points(L, ring->points, ring->points + ring->count, ring->count);
}

static const struct ring *ring_of(lua_State *L, const bt_rows_t *rows, unsigned asked)
{
    struct ring *ring = bt_worker_list_memo(L, rows, BT_MEMO_RING);
    const unsigned vnodes = ring_vnodes(rows->count, asked);

    if (ring != NULL)
        return ring;
    ring = bt_native_chunk(L, sizeof(*ring) + 2 * rows->count * vnodes * sizeof(ring->points[0]));
    ring_fill(L, ring, rows, vnodes);
    bt_worker_list_keep(L, rows, BT_MEMO_RING);
    return ring;
}

/* Whose point comes first at or after the key's, going round. */
static unsigned ring_find(const struct ring *ring, uint64_t key)
{
    unsigned low = 0, high = ring->count;

    while (low < high) {
        unsigned middle = low + (high - low) / 2;

        if (ring->points[middle] >> 32 < key >> 32)
            low = middle + 1;
        else
            high = middle;
    }
    return (unsigned) (uint32_t) ring->points[low < ring->count ? low : 0];
}

/* baton.ring(list, key[, vnodes]) -> worker. The ring is made once a list, with the first call's vnodes. */
static int native_ring(lua_State *L)
{
    lua_Integer asked = luaL_optinteger(L, 3, VNODES);
    uint64_t key = check_key(L, 2);
    bt_rows_t rows;

    luaL_argcheck(L, asked >= 1 && asked <= 1024, 3, "1 to 1024");
    bt_rows_get(L, bt_policy_of(L), 1, &rows);
    luaL_argcheck(L, rows.list != NULL, 1, "a list of the view (rendezvous takes any list)");
    if (rows.count == 0)
        return 0;
    bt_rows_push(L, &rows, ring_find(ring_of(L, &rows, (unsigned) asked), key));
    return 1;
}

void bt_native_add_hash(lua_State *L)
{
    static const luaL_Reg functions[] = {{"hash", native_hash},
                                         {"rendezvous", native_rendezvous},
                                         {"bounded_hash", native_bounded_hash},
                                         {"ring", native_ring},
                                         {NULL, NULL}};

    bt_native_set(L, functions);
}
