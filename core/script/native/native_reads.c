/* How it works: what a function answers from the process's memory (counters, windows, turns, the prefix index, the fleet's state) is in
 * no record of candidates. Such functions stand behind answer(): while a decision is recorded it notes what they answered, in their
 * order; when the decision is taken again, the same calls get the same answers, and the process is not asked.
 *
 * Notes are JSON: ["window",12],["prefix_match",{"worker":"d1"},5,12,{"d1":5,"d2":2}]: the name, the results, and of prefix_match the blocks
 * of each worker, which are a field of the rows from then on. A policy that calls something else than was noted gets real answers. */
#include "script/native/native.h"

#include "base/rand.h"

#include <math.h>

/* ---- noting ---- */

static bool put_value(lua_State *L, int idx, bt_text_t *out)
{
    const bt_row_t *row;

    switch (lua_type(L, idx)) {
    case LUA_TNIL:
        bt_text_puts(out, "null");
        return true;
    case LUA_TBOOLEAN:
        bt_text_puts(out, lua_toboolean(L, idx) ? "true" : "false");
        return true;
    case LUA_TNUMBER:
        bt_text_printf(out, "%.17g", lua_tonumber(L, idx));
        return isfinite(lua_tonumber(L, idx));
    case LUA_TSTRING:
        bt_text_json_str(out, bt_vm_str(L, idx));
        return true;
    default:
        row = bt_row_at(L, idx);
        if (row == NULL)
            return false;
        bt_text_puts(out, "{\"worker\":");
        bt_text_json_str(out, bt_str(row->worker->name));
        bt_text_puts(out, "}");
        return true;
    }
}

/* Candidates of the call, by list: whoever looks for one by name or for all. NULL after the last. */
static bt_worker_t *candidate(const bt_policy_view_t *view, unsigned *list_p, unsigned *at_p)
{
    for (; *list_p < BT_LIST_SINGLE; (*list_p)++, *at_p = 0)
        if (view->sets[*list_p] != NULL && *at_p < view->sets[*list_p]->count)
            return view->sets[*list_p]->items[(*at_p)++];
    return NULL;
}

static void put_matches(const bt_policy_t *policy, bt_text_t *out)
{
    unsigned list = 0, at = 0, blocks;
    const char *before = "";

    bt_text_puts(out, ",{");
    for (bt_worker_t *w; (w = candidate(policy->call.view, &list, &at)) != NULL;) {
        blocks = bt_prefix_blocks_of(policy, w);
        if (blocks == 0)
            continue;
        bt_text_puts(out, before);
        bt_text_json_str(out, bt_str(w->name));
        bt_text_printf(out, ":%u", blocks);
        before = ",";
    }
    bt_text_puts(out, "}");
}

static bool is_match(const char *name)
{
    return strcmp(name, "prefix_match") == 0;
}

/* What cannot be noted, or finds no room, ends the notes: the decision cannot be taken again exactly. Raises nothing. */
static void note(lua_State *L, bt_policy_trace_t *trace, const char *name, int results)
{
    bool is_whole = true;
    bt_text_t text;

    if (trace->reads_cut)
        return;
    bt_text_init(&text);
    bt_text_printf(&text, "%s[\"%s\"", trace->reads_len > 0 ? "," : "", name);
    for (int i = lua_gettop(L) - results + 1; i <= lua_gettop(L); i++) {
        bt_text_puts(&text, ",");
        is_whole = put_value(L, i, &text) && is_whole;
    }
    if (is_match(name))
        put_matches(bt_policy_of(L), &text);
    bt_text_puts(&text, "]");
    trace->reads_cut = !is_whole || text.failed || text.len > trace->reads_cap - trace->reads_len;
    if (!trace->reads_cut) {
        memcpy(trace->reads + trace->reads_len, text.data, text.len);
        trace->reads_len += (unsigned) text.len;
    }
    bt_text_fini(&text);
}

/* ---- taking again ---- */

/* text: of BT_POLICY_READS_BYTES; notes are no longer. */
static bt_str_t unescaped(bt_str_t value, char *text)
{
    const long n = bt_json_unescape(value, text, BT_POLICY_READS_BYTES);

    return (bt_str_t){text, n > 0 ? (size_t) n : 0};
}

/* NULL: the record lists only a part of its candidates. */
static bt_worker_t *named(const bt_policy_view_t *view, bt_str_t name)
{
    unsigned list = 0, at = 0;
    bt_worker_t *w;

    while ((w = candidate(view, &list, &at)) != NULL && !bt_str_eq(bt_str(w->name), name))
        ;
    return w;
}

static void push_worker(lua_State *L, bt_policy_t *policy, bt_str_t object)
{
    char text[BT_POLICY_READS_BYTES];
    bt_worker_t *w = NULL;
    bt_json_item_t name;

    if (bt_json_get(object, BT_STR("worker"), &name) == 0)
        w = named(policy->call.view, unescaped(name.value, text));
    if (w == NULL) {
        lua_pushnil(L);
        return;
    }
    bt_vm_push(L, policy->rows_ref);
    bt_row_push(L, policy, lua_gettop(L), w);
    lua_remove(L, -2);
}

static void push_value(lua_State *L, bt_policy_t *policy, const bt_json_item_t *item)
{
    char text[BT_POLICY_READS_BYTES];
    double number = 0;

    switch (item->type) {
    case BT_JSON_TRUE:
    case BT_JSON_FALSE:
        lua_pushboolean(L, item->type == BT_JSON_TRUE);
        break;
    case BT_JSON_NUMBER:
        (void) bt_json_double(item->value, &number);
        lua_pushnumber(L, number);
        break;
    case BT_JSON_STRING:
        bt_vm_push_str(L, unescaped(item->value, text));
        break;
    case BT_JSON_OBJECT:
        push_worker(L, policy, item->value);
        break;
    default:
        lua_pushnil(L);
    }
}

/* The rows' prefix_blocks are those of then. */
static void take_matches(const bt_policy_t *policy, unsigned block_tokens, bt_str_t object)
{
    struct bt_native *k = policy->native;
    bt_prefix_matches_t *m = &k->prefix.matches;
    bt_json_cursor_t c;
    bt_json_item_t item;
    const bt_worker_t *w;
    uint64_t blocks;

    bt_prefix_matches_clear(m);
    if (bt_json_object(&c, object) == 0)
        while (bt_json_next(&c, &item) > 0)
            if ((w = named(policy->call.view, item.key)) != NULL &&
                bt_str_u64(item.value, &blocks) == 0)
                bt_prefix_matches_add(m, (uint32_t) w->id, (unsigned) blocks);
    k->prefix.block_tokens = block_tokens;
    k->prefix.serial = policy->call.serial;
    k->prefix.found = 0; /* what is noted is all */
    k->prefix.is_matched = true;
}

static bool is_name(bt_str_t value, const char *name)
{
    const size_t n = strlen(name);

    return value.n == n + 2 && value.p[0] == '"' && memcmp(value.p + 1, name, n) == 0;
}

/* How many results of then were pushed; < 0: this call was not noted, nor are those after it. */
static int answer_again(lua_State *L, bt_policy_t *policy, const char *name)
{
    const unsigned block_tokens =
        is_match(name) ? (unsigned) luaL_optinteger(L, 3, BT_PREFIX_BLOCK_TOKENS) : 0;
    bt_json_cursor_t *notes = policy->call.req->trace->notes, c;
    bt_json_item_t item;
    int count = 0;

    if (bt_json_next(notes, &item) <= 0 || bt_json_array(&c, item.value) < 0 ||
        bt_json_next(&c, &item) <= 0 || !is_name(item.value, name)) {
        policy->call.req->trace->notes = NULL;
        return -1;
    }
    for (; bt_json_next(&c, &item) > 0; count++) {
        if (count == 3 && is_match(name)) {
            take_matches(policy, block_tokens, item.value);
            break;
        }
        push_value(L, policy, &item);
    }
    return count;
}

/* A function that draws lots itself does not when its answer is one of then: what is drawn after it hangs on its number alone. */
static void draw_anew(const bt_policy_t *policy, bt_policy_trace_t *trace)
{
    trace->read_count++;
    if (trace->seed != 0)
        bt_rand_seed(trace->seed + policy->call.part +
                     trace->read_count * UINT64_C(0x9e3779b97f4a7c15));
}

/* Upvalues: the function, its name. */
static int answer(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);
    const bt_policy_request_t *req = policy->call.running ? policy->call.req : NULL;
    bt_policy_trace_t *trace = req != NULL ? req->trace : NULL;
    int results = -1;

    if (trace != NULL && trace->notes != NULL)
        results = answer_again(L, policy, lua_tostring(L, lua_upvalueindex(2)));
    if (results < 0) {
        results = lua_tocfunction(L, lua_upvalueindex(1))(L);
        if (trace != NULL && trace->reads != NULL)
            note(L, trace, lua_tostring(L, lua_upvalueindex(2)), results);
    }
    if (trace != NULL)
        draw_anew(policy, trace);
    return results;
}

void bt_native_set_reads(lua_State *L, const char *table, const luaL_Reg *f)
{
    for (; f->name != NULL; f++) {
        lua_pushcfunction(L, f->func);
        lua_pushfstring(L, "%s%s", table, f->name);
        lua_pushcclosure(L, answer, 2);
        lua_setfield(L, -2, f->name);
    }
}
