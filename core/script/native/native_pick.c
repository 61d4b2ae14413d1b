/* How it works: the least of a list by fields in order, or by one weighted sum. The values of all workers are gathered first, one
 * tight loop a field, then their least is found, then who has it; each further field does the same with those that are left, and
 * one draw decides among the last. So equals share the chance, and where other gateways' loads are part of it, so do
 * near-equals: they all see the same least loaded worker. A field that is not known (no fresh report of the
 * engine) counts as worst, for the most as well as for the least.
 *
 * What is in the ledger is read where it lies for all workers side by side (ledger_totals.h): a pass over ten thousand is a few
 * microseconds, which no tree that moves with each request would earn back. */
#include "script/native/native.h"

#include "base/rand.h"

#include <math.h>

#define DRAWS_MAX 16

void bt_term_check(lua_State *L, bt_policy_t *policy, int idx, bt_term_t *term)
{
    int field = bt_vm_fields_find(L, &policy->row_fields, idx);

    if (field < 0)
        bt_vm_unknown(L, "field of a worker", bt_row_names, idx);
    if (!bt_row_is_numeric((enum bt_row_field) field))
        luaL_error(L, "field '%s' is not a number", bt_row_names[field]);
    *term = (bt_term_t){(enum bt_row_field) field, 1};
}

static double term_value(bt_policy_t *policy, const bt_worker_t *w, const bt_term_t *term)
{
    double value;

    return bt_worker_number(policy, w, term->field, &value) ? value * term->weight : HUGE_VAL;
}

static int64_t load_of(const _Atomic int64_t *p)
{
    return atomic_load_explicit(p, memory_order_relaxed);
}

/* ---- values of a whole list ---- */

/* Members of a list: all of it, or those at these indexes. */
struct part {
    const bt_rows_t *rows;
    const uint32_t *at; /* NULL: all */
    unsigned count;
};

static inline double prefill_tokens_at(uint32_t place)
{
    return (double) bt_ledger_tokens(BT_PHASE_PREFILL, place);
}

static inline double decode_tokens_at(uint32_t place)
{
    return (double) bt_ledger_tokens(BT_PHASE_DECODE, place);
}

static inline double tokens_at(uint32_t place)
{
    return (double) (bt_ledger_tokens(BT_PHASE_PREFILL, place) +
                     bt_ledger_tokens(BT_PHASE_DECODE, place));
}

static inline double requests_at(uint32_t place)
{
    return (double) (bt_ledger_requests(BT_PHASE_PREFILL, place) +
                     bt_ledger_requests(BT_PHASE_DECODE, place));
}

/* Inlined with the function that reads, so that each field of the ledger has a loop of its own. */
static inline __attribute__((always_inline)) void fill_from_ledger(const struct part *part,
                                                                   double weight, double *values,
                                                                   double (*read)(uint32_t))
{
    const uint32_t *places = part->rows->places, *at = part->at;
    bt_worker_t *const *workers = part->rows->workers;
    const size_t n = part->count;

    if (places != NULL && at == NULL)
#pragma GCC unroll 4
        for (size_t i = 0; i < n; i++)
            values[i] = weight * read(places[i]);
    else if (places != NULL)
        for (size_t i = 0; i < n; i++)
            values[i] = weight * read(places[at[i]]);
    else
        for (size_t i = 0; i < n; i++)
            values[i] = weight * read(workers[at != NULL ? at[i] : i]->ledger_place);
}

static void fill_part(lua_State *L, const struct part *part, const bt_term_t *term, double *values)
{
    bt_policy_t *policy = bt_policy_of(L);

    switch (term->field) {
    case BT_ROW_PREFILL_TOKENS:
        fill_from_ledger(part, term->weight, values, prefill_tokens_at);
        break;
    case BT_ROW_DECODE_TOKENS:
        fill_from_ledger(part, term->weight, values, decode_tokens_at);
        break;
    case BT_ROW_TOKENS:
        fill_from_ledger(part, term->weight, values, tokens_at);
        break;
    case BT_ROW_REQUESTS:
        fill_from_ledger(part, term->weight, values, requests_at);
        break;
    default:
        for (unsigned i = 0; i < part->count; i++) {
            if (i % BT_CHECK_EVERY == 0)
                bt_vm_check_time(L);
            values[i] =
                term_value(policy, part->rows->workers[part->at != NULL ? part->at[i] : i], term);
        }
    }
    bt_vm_check_time(L);
}

void bt_term_fill(lua_State *L, const bt_rows_t *rows, const bt_term_t *term, double *values)
{
    if (term->field == BT_ROW_PREFIX_BLOCKS)
        bt_prefix_fill(L, rows, term->weight, values);
    else
        fill_part(L, &(struct part){rows, NULL, rows->count}, term, values);
}

/* ---- the trace ---- */

/* Does somebody keep a record of this call? */
static bt_policy_trace_t *trace_of(const bt_policy_t *policy)
{
    return policy->call.running && policy->call.req != NULL ? policy->call.req->trace : NULL;
}

/* Rankings of one list come in the same order each time: hint is where the worker before was found. */
static void note_score(bt_policy_trace_t *trace, uint64_t worker, double score, unsigned *hint_p)
{
    unsigned at = trace->count;

    for (unsigned i = 0; i < trace->count; i++) {
        at = (*hint_p + i) % trace->count;
        if (trace->scores[at].worker == worker)
            break;
        at = trace->count;
    }
    if (at == trace->cap)
        return;
    trace->count += at == trace->count;
    trace->scores[at] = (struct bt_policy_score){worker, score};
    *hint_p = at + 1;
}

/* A list in another order than the one before is looked for from end to end. */
void bt_native_trace(lua_State *L, const bt_rows_t *rows, const double *values, double unit)
{
    bt_policy_trace_t *trace = trace_of(bt_policy_of(L));
    unsigned hint = 0;

    if (trace == NULL)
        return;
    for (unsigned i = 0; i < rows->count && i < trace->cap; i++) {
        bt_vm_check_time(L);
        if (isfinite(values[i]))
            note_score(trace, rows->workers[i]->id, values[i] * unit + 0.0, &hint);
    }
}

bool bt_native_is_traced(const bt_policy_t *policy)
{
    return trace_of(policy) != NULL;
}

/* baton.note_score(worker, number): for policies that rank by hand; does nothing when nobody keeps a record */
static int native_note_score(lua_State *L)
{
    const bt_row_t *row = bt_row_check(L, 1);
    const double score = luaL_checknumber(L, 2);
    bt_policy_trace_t *trace = trace_of(bt_policy_of(L));
    unsigned hint = 0;

    if (trace != NULL && isfinite(score))
        note_score(trace, row->worker->id, score, &hint);
    return 0;
}

/* ---- rankings ---- */

struct ranking {
    lua_State *L;
    bt_policy_t *policy;
    const bt_term_t *terms;
    unsigned count;
    bool is_sum; /* one weighted sum, instead of fields in order */
    double sign; /* -1: the most is the best; weights carry it already */
};

/* Adds the other terms of a sum; `more` is scratch. What weighs nothing need not be known. */
static void add_terms(const struct ranking *r, const bt_rows_t *rows, double *values, double *more)
{
    for (unsigned t = 1; r->is_sum && t < r->count; t++) {
        if (r->terms[t].weight == 0)
            continue;
        bt_term_fill(r->L, rows, &r->terms[t], more);
        for (unsigned i = 0; i < rows->count; i++)
            values[i] += more[i];
    }
}

/* Of a ledger's field, what others have put on the worker; of the index, what they may have put in since. 0 of any other field. */
static int64_t others_part(const bt_worker_t *w, enum bt_row_field field)
{
    switch (field) {
    case BT_ROW_PREFILL_TOKENS:
        return load_of(&w->others_tokens[BT_PHASE_PREFILL]);
    case BT_ROW_DECODE_TOKENS:
        return load_of(&w->others_tokens[BT_PHASE_DECODE]);
    case BT_ROW_TOKENS:
        return load_of(&w->others_tokens[BT_PHASE_PREFILL]) +
               load_of(&w->others_tokens[BT_PHASE_DECODE]);
    case BT_ROW_REQUESTS:
        return load_of(&w->others_requests[BT_PHASE_PREFILL]) +
               load_of(&w->others_requests[BT_PHASE_DECODE]);
    case BT_ROW_PREFIX_CACHED:
        return (int64_t) bt_prefix_inflow() * BT_WORKER_NEAR;
    default:
        return 0;
    }
}

/* So much may lie between near-equals; 0 where no other gateway's load is part of it. */
static double slack_of(const struct ranking *r, const bt_rows_t *rows)
{
    double sum = 0;

    for (unsigned t = 0; t < (r->is_sum ? r->count : 1); t++) {
        bt_vm_check_time(r->L);
        for (unsigned i = 0; i < rows->count; i++)
            sum += fabs(r->terms[t].weight) *
                   (double) others_part(rows->workers[i], r->terms[t].field);
    }
    return rows->count > 0 ? sum / rows->count / BT_WORKER_NEAR : 0;
}

#define AT_ONCE 16

static inline double lesser(double a, double b)
{
    return a < b ? a : b;
}

/* Of AT_ONCE values, four side by side: one after the other, each would wait for the one before. */
static inline double least_of_few(const double *values)
{
    double least[4] = {values[0], values[1], values[2], values[3]};

    for (unsigned i = 4; i < AT_ONCE; i += 4)
        for (unsigned k = 0; k < 4; k++)
            least[k] = lesser(values[i + k], least[k]);
    return lesser(lesser(least[0], least[1]), lesser(least[2], least[3]));
}

/* What a search writes on: values of those that are left, the least of each few of them, and their indexes. */
struct scratch {
    double *values, *leasts;
    uint32_t *at;
};

static double find_least(const struct scratch *s, size_t count)
{
    double least = HUGE_VAL;
    size_t i = 0;

    for (; i + AT_ONCE <= count; i += AT_ONCE) {
        s->leasts[i / AT_ONCE] = least_of_few(s->values + i);
        least = lesser(s->leasts[i / AT_ONCE], least);
    }
    for (; i < count; i++)
        least = lesser(s->values[i], least);
    return least;
}

/* Keeps the members whose value is `most` at most; how many. Where there is one, no branch: half of a fleet may be idle at
 * random. */
static unsigned keep(const struct part *part, const struct scratch *s, double most)
{
    const double *values = s->values;
    uint32_t *out = s->at;
    const uint32_t *at = part->at;
    size_t kept = 0;

    for (size_t i = 0, end; i < part->count; i = end) {
        end = i + AT_ONCE <= part->count ? i + AT_ONCE : part->count;
        if (end == i + AT_ONCE && s->leasts[i / AT_ONCE] > most)
            continue;
        for (size_t k = i; k < end; k++) {
            out[kept] = at != NULL ? at[k] : (uint32_t) k;
            kept += values[k] <= most;
        }
    }
    return (unsigned) kept;
}

/* The best of rows by r: an index. In the scratch are the values of the first field, or the sums. */
static unsigned best_of(const struct ranking *r, const bt_rows_t *rows, const struct scratch *s)
{
    const double slack = bt_worker_is_shared() ? slack_of(r, rows) : 0;
    struct part left = {rows, NULL, rows->count};

    for (unsigned t = 1;; t++) {
        left.count = keep(&left, s, find_least(s, left.count) + slack);
        left.at = s->at;
        bt_vm_check_time(r->L);
        if (left.count <= 1 || slack > 0 || r->is_sum || t == r->count)
            break;
        fill_part(r->L, &left, &r->terms[t], s->values);
    }
    if (left.count == 0) /* a weight that is no number has made all values none */
        return (unsigned) bt_rand_below(rows->count);
    return s->at[left.count > 1 ? bt_rand_below(left.count) : 0];
}

/* Pushes the best row of the list at index 1, or nothing. */
static int push_best(lua_State *L, const struct ranking *r)
{
    bt_rows_t rows;
    struct scratch s;

    bt_rows_get(L, r->policy, 1, &rows);
    if (rows.count == 0)
        return 0;
    s.values = bt_native_values(L, r->policy, 2 * rows.count);
    s.at = (uint32_t *) (void *) (s.values + rows.count); /* half of the room, and a few */
    s.leasts = s.values + rows.count + (rows.count + 1) / 2;
    bt_term_fill(L, &rows, &r->terms[0], s.values);
    add_terms(r, &rows, s.values, s.values + rows.count);
    bt_native_trace(L, &rows, s.values, r->sign);
    bt_rows_push(L, &rows, best_of(r, &rows, &s));
    return 1;
}

/* Fields from index `first` on, with this weight each. */
static unsigned check_fields(lua_State *L, int first, double weight, bt_term_t *terms)
{
    bt_policy_t *policy = bt_policy_of(L);
    int count = lua_gettop(L) - first + 1;

    luaL_argcheck(L, count >= 1 && count <= BT_TERMS_MAX, first, "one to eight fields");
    for (int i = 0; i < count; i++) {
        bt_term_check(L, policy, first + i, &terms[i]);
        terms[i].weight = weight;
    }
    return (unsigned) count;
}

static int rank_fields(lua_State *L, double sign)
{
    bt_term_t terms[BT_TERMS_MAX];
    unsigned count = check_fields(L, 2, sign, terms);

    return push_best(L, &(struct ranking){L, bt_policy_of(L), terms, count, false, sign});
}

static int rank_sum(lua_State *L, double sign)
{
    bt_policy_t *policy = bt_policy_of(L);
    bt_term_t terms[BT_TERMS_MAX];
    int count = (lua_gettop(L) - 1) / 2;

    luaL_argcheck(L, lua_gettop(L) % 2 == 1 && count >= 1 && count <= BT_TERMS_MAX, 2,
                  "one to eight pairs of field and weight");
    for (int i = 0; i < count; i++) {
        bt_term_check(L, policy, 2 * i + 2, &terms[i]);
        terms[i].weight = sign * luaL_checknumber(L, 2 * i + 3);
    }
    return push_best(L, &(struct ranking){L, policy, terms, (unsigned) count, true, sign});
}

/* baton.argmin(list, field, tie_field...) */
static int native_argmin(lua_State *L)
{
    return rank_fields(L, 1);
}

/* baton.argmax(list, field, tie_field...) */
static int native_argmax(lua_State *L)
{
    return rank_fields(L, -1);
}

/* baton.argmin_sum(list, field, weight, ...) */
static int native_argmin_sum(lua_State *L)
{
    return rank_sum(L, 1);
}

/* baton.argmax_sum(list, field, weight, ...) */
static int native_argmax_sum(lua_State *L)
{
    return rank_sum(L, -1);
}

/* baton.range(list, field) -> least, most, mean of those that are known; nil when none is */
static int native_range(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);
    double *values, low = HUGE_VAL, high = -HUGE_VAL, sum = 0;
    unsigned known = 0;
    bt_rows_t rows;
    bt_term_t term;

    bt_term_check(L, policy, 2, &term);
    bt_rows_get(L, policy, 1, &rows);
    values = bt_native_values(L, policy, rows.count);
    bt_term_fill(L, &rows, &term, values);
    for (unsigned i = 0; i < rows.count; i++) {
        if (values[i] == HUGE_VAL)
            continue;
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
        sum += values[i];
        known++;
    }
    if (known == 0)
        return 0;
    lua_pushnumber(L, low);
    lua_pushnumber(L, high);
    lua_pushnumber(L, sum / known);
    return 3;
}

/* baton.random() in [0, 1), baton.random(n) in 1..n */
static int native_random(lua_State *L)
{
    lua_Integer n;

    if (lua_isnoneornil(L, 1)) {
        lua_pushnumber(L, bt_rand_unit());
        return 1;
    }
    n = luaL_checkinteger(L, 1);
    luaL_argcheck(L, n >= 1, 1, "at least 1");
    lua_pushinteger(L, 1 + (lua_Integer) bt_rand_below((uint64_t) n));
    return 1;
}

/* baton.pick2(list) -> two different members; the same one twice when there is but one */
static int native_pick2(lua_State *L)
{
    size_t n;
    uint64_t first, second;

    luaL_checktype(L, 1, LUA_TTABLE);
    n = lua_objlen(L, 1);
    if (n == 0)
        return 0;
    first = bt_rand_below(n);
    second = n == 1 ? 0 : (first + 1 + bt_rand_below(n - 1)) % n;
    lua_rawgeti(L, 1, (int) first + 1);
    lua_rawgeti(L, 1, (int) second + 1);
    return 2;
}

/* k different numbers below n (Floyd); k <= n. */
static void draw(unsigned n, unsigned k, unsigned *out)
{
    for (unsigned i = 0; i < k; i++) {
        unsigned most = n - k + i, pick = (unsigned) bt_rand_below(most + 1);

        for (unsigned j = 0; j < i; j++)
            if (out[j] == pick) {
                pick = most;
                break;
            }
        out[i] = pick;
    }
}

/* baton.power_of_k(list, k, field, tie_field...) -> the least of k drawn members */
static int native_power_of_k(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);
    lua_Integer k = luaL_checkinteger(L, 2);
    bt_term_t terms[BT_TERMS_MAX];
    bt_worker_t *drawn[DRAWS_MAX];
    double values[DRAWS_MAX], leasts[DRAWS_MAX / AT_ONCE];
    unsigned at[DRAWS_MAX], fields;
    uint32_t left[DRAWS_MAX];
    const struct scratch s = {values, leasts, left};
    bt_rows_t rows, few = {.workers = drawn};

    luaL_argcheck(L, k >= 1 && k <= DRAWS_MAX, 2, "1 to 16");
    fields = check_fields(L, 3, 1, terms);
    bt_rows_get(L, policy, 1, &rows);
    if (rows.count == 0)
        return 0;
    few.count = rows.count < (unsigned) k ? rows.count : (unsigned) k;
    draw(rows.count, few.count, at);
    for (unsigned i = 0; i < few.count; i++)
        drawn[i] = rows.workers[at[i]];
    bt_term_fill(L, &few, &terms[0], values);
    bt_native_trace(L, &few, values, 1);
    bt_rows_push(L, &rows,
                 at[best_of(&(struct ranking){L, policy, terms, fields, false, 1}, &few, &s)]);
    return 1;
}

void bt_native_add_pick(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"argmin", native_argmin},         {"argmax", native_argmax},
        {"argmin_sum", native_argmin_sum}, {"argmax_sum", native_argmax_sum},
        {"range", native_range},           {"random", native_random},
        {"pick2", native_pick2},           {"note_score", native_note_score},
        {"power_of_k", native_power_of_k}, {NULL, NULL}};

    bt_native_set(L, functions);
}
