/* How it works: the least of a list by fields in order, or by one weighted sum. The values of all workers are gathered first, one
 * tight loop a field, then looked through once; equals share the chance, and where other gateways' loads are part of it, so do
 * near-equals: they all see the same least loaded worker. A field that is not known (no fresh report of the
 * engine) counts as worst, for the most as well as for the least. */
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

/* The fields of the ledger, which nearly all rankings use, get loops of their own. */
void bt_term_fill(lua_State *L, const bt_rows_t *rows, const bt_term_t *term, double *values)
{
    bt_policy_t *policy = bt_policy_of(L);
    const unsigned n = rows->count;
    bt_worker_t *const *w = rows->workers;

    switch (term->field) {
    case BT_ROW_PREFILL_TOKENS:
        for (unsigned i = 0; i < n; i++)
            values[i] = term->weight * (double) bt_worker_tokens(w[i], BT_PHASE_PREFILL);
        break;
    case BT_ROW_DECODE_TOKENS:
        for (unsigned i = 0; i < n; i++)
            values[i] = term->weight * (double) bt_worker_tokens(w[i], BT_PHASE_DECODE);
        break;
    case BT_ROW_TOKENS:
        for (unsigned i = 0; i < n; i++)
            values[i] = term->weight * (double) (bt_worker_tokens(w[i], BT_PHASE_PREFILL) +
                                                 bt_worker_tokens(w[i], BT_PHASE_DECODE));
        break;
    case BT_ROW_REQUESTS:
        for (unsigned i = 0; i < n; i++)
            values[i] = term->weight * (double) (bt_worker_requests(w[i], BT_PHASE_PREFILL) +
                                                 bt_worker_requests(w[i], BT_PHASE_DECODE));
        break;
    case BT_ROW_PREFIX_BLOCKS:
        bt_prefix_fill(L, rows, term->weight, values);
        break;
    default:
        for (unsigned i = 0; i < n; i++) {
            if (i % BT_CHECK_EVERY == 0)
                bt_vm_check_time(L);
            values[i] = term_value(policy, w[i], term);
        }
    }
    bt_vm_check_time(L);
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

/* Between equals in the first field: < 0 when a is better. */
static int compare_rest(const struct ranking *r, const bt_worker_t *a, const bt_worker_t *b)
{
    for (unsigned i = 1; !r->is_sum && i < r->count; i++) {
        double x = term_value(r->policy, a, &r->terms[i]),
               y = term_value(r->policy, b, &r->terms[i]);

        if (x != y)
            return x < y ? -1 : 1;
    }
    return 0;
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

static int any_near(const bt_rows_t *rows, const double *values, double slack)
{
    double least = HUGE_VAL;
    unsigned near = 0;
    int best = -1;

    for (unsigned i = 0; i < rows->count; i++)
        least = values[i] < least ? values[i] : least;
    for (unsigned i = 0; i < rows->count; i++)
        if (values[i] <= least + slack && bt_rand_below(++near) == 0)
            best = (int) i;
    return best;
}

struct best {
    unsigned at, ties;
};

static void search_range(const struct ranking *r, const bt_rows_t *rows, const double *values,
                         unsigned from, unsigned to, struct best *best_p)
{
    struct best best = *best_p;

    for (unsigned i = from; i < to; i++) {
        int order;

        if (values[i] > values[best.at])
            continue;
        order = values[i] < values[best.at]
                    ? -1
                    : compare_rest(r, rows->workers[i], rows->workers[best.at]);
        if (order > 0)
            continue;
        best.ties = order < 0 ? 1 : best.ties + 1;
        if (order < 0 || bt_rand_below(best.ties) == 0)
            best.at = i;
    }
    *best_p = best;
}

static int best_of(const struct ranking *r, const bt_rows_t *rows, const double *values)
{
    const double slack = bt_worker_is_shared() ? slack_of(r, rows) : 0;
    struct best best = {.ties = 1};

    if (slack > 0)
        return any_near(rows, values, slack);
    for (unsigned from = 1; from < rows->count; from += BT_CHECK_EVERY) {
        const unsigned left = rows->count - from;
        search_range(r, rows, values, from, from + (left < BT_CHECK_EVERY ? left : BT_CHECK_EVERY),
                     &best);
        bt_vm_check_time(r->L);
    }
    return rows->count != 0 ? (int) best.at : -1;
}

/* Pushes the best row of the list at index 1, or nothing. */
static int push_best(lua_State *L, const struct ranking *r)
{
    bt_rows_t rows;
    double *values;
    int best;

    bt_rows_get(L, r->policy, 1, &rows);
    if (rows.count == 0)
        return 0;
    values = bt_native_values(L, r->policy, 2 * rows.count);
    bt_term_fill(L, &rows, &r->terms[0], values);
    add_terms(r, &rows, values, values + rows.count);
    best = best_of(r, &rows, values);
    bt_native_trace(L, &rows, values, r->sign);
    if (best < 0)
        return 0;
    bt_rows_push(L, &rows, (unsigned) best);
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
    double values[DRAWS_MAX];
    unsigned at[DRAWS_MAX], fields;
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
                 at[best_of(&(struct ranking){L, policy, terms, fields, false, 1}, &few, values)]);
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
