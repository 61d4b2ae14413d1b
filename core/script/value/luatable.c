/* How it works: the code runs in a state of its own without the JIT, so that the count hook sees every instruction; then
 * the table is walked with the path of keys at hand, so that what is wrong can be named the way its author wrote it.
 *
 * Three limits end code that runs too long. Steps are counted, instructions by the hook and those of patterns by pattern.c: the same
 * code ends at the same place on every machine. Library functions in C check the watchdog, which measures CPU time. For pushed code,
 * which others wait for, the hook checks the clock as well. */
#include "script/value/luatable.h"

#include "base/clock.h"
#include "base/err.h"
#include "script/vm/vm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define HOOK_EVERY 1000u
#define DEPTH_MAX 32

static const struct limits {
    unsigned vm_flags;
    uint64_t steps;
    unsigned cpu_us, wall_ms;
    size_t memory_bytes; /* while it runs */
    unsigned values;     /* of what it returns */
    size_t text_bytes;   /* likewise */
} file_limits = {BT_VM_CONFIG,       50000000, 3000000,          UINT32_MAX,
                 (size_t) 256 << 20, 1000000,  (size_t) 64 << 20},
  pushed_limits = {BT_VM_GUARDED,     10000000, 250000,          5000,
                   (size_t) 32 << 20, 65536,    (size_t) 4 << 20};

struct walk {
    bt_vm_t vm;
    const struct limits *limits;
    uint64_t until_ms;
    char path[512];                 /* where the walk stands: "pools[1].workers" */
    const void *parents[DEPTH_MAX]; /* tables above: a cycle is one of them again */
    unsigned depth, values;
    size_t text_bytes;
    bt_value_t *root;
    const char *file;
};

/* ---- what the code may do ---- */

static int env(lua_State *L)
{
    const char *value = getenv(luaL_checkstring(L, 1));

    if (value != NULL)
        lua_pushstring(L, value);
    else
        lua_settop(L, 2); /* env(name, default) */
    return 1;
}

/* Upvalue 1: its name. */
static int not_when_pushed(lua_State *L)
{
    return luaL_error(L,
                      "%s is not available to pushed code, only to files on the gateway's machine",
                      lua_tostring(L, lua_upvalueindex(1)));
}

/* Into the table at the top, raw: the globals of a guarded VM are locked. */
static void set_refusal(lua_State *L, const char *key, const char *name)
{
    lua_pushstring(L, key);
    lua_pushstring(L, name);
    lua_pushcclosure(L, not_when_pushed, 1);
    lua_rawset(L, -3);
}

static void open_names(lua_State *L, const struct walk *w)
{
    if (w->limits == &file_limits) {
        lua_pushcfunction(L, env);
        lua_setglobal(L, "env");
        return;
    }
    lua_pushvalue(L, LUA_GLOBALSINDEX);
    set_refusal(L, "env", "env");
    lua_pop(L, 1);
    lua_getglobal(L, "string");
    set_refusal(L, "match", "string.match");
    set_refusal(L, "gmatch", "string.gmatch");
    set_refusal(L, "gsub", "string.gsub");
    lua_pop(L, 1);
}

static void count_steps(lua_State *L, lua_Debug *unused)
{
    struct walk *w = bt_vm_of(L)->owner;

    (void) unused;
    if (w->vm.steps_left > HOOK_EVERY && bt_clock_ms() < w->until_ms) {
        w->vm.steps_left -= HOOK_EVERY;
        return;
    }
    w->vm.steps_left = 0;
    lua_sethook(L, count_steps, LUA_MASKCOUNT,
                1); /* from now on at every instruction, or a pcall would swallow it */
    luaL_where(L, 0);
    lua_pushliteral(L, "the code ran too long");
    lua_concat(L, 2);
    lua_error(L);
}

/* ---- walking ---- */

static void refuse(lua_State *L, struct walk *w, const char *why)
{
    lua_pushfstring(L, "%s: %s: %s", w->file, w->path[0] != '\0' ? w->path : "the returned table",
                    why);
    lua_error(L);
}

static void read_value(lua_State *L, struct walk *w, bt_value_t *out);

static char *copy_string(lua_State *L, struct walk *w, int idx)
{
    bt_str_t s = bt_vm_str(L, idx);
    char *copy;

    w->text_bytes += s.n;
    if (w->text_bytes > w->limits->text_bytes)
        refuse(L, w, "too many bytes of strings in all");
    if (memchr(s.p, '\0', s.n) != NULL)
        refuse(L, w, "a string holds a NUL byte");
    copy = bt_str_dup(s);
    if (copy == NULL)
        refuse(L, w, "out of memory");
    return copy;
}

static void add_item(lua_State *L, struct walk *w, bt_value_t *out, unsigned *cap)
{
    if (bt_watch_is_over(&w->vm.watch))
        refuse(L, w, "it takes too long to read");
    if (++w->values > w->limits->values)
        refuse(L, w, "too many values in all");
    if (out->count == *cap) {
        unsigned wider = *cap == 0 ? 8 : *cap * 2;
        bt_value_t *items = realloc(out->items, wider * sizeof(*items));
        if (items == NULL)
            refuse(L, w, "out of memory");
        out->items = items;
        *cap = wider;
    }
    /* Counted before it is filled, so that bt_value_free of the root finds it whatever happens. */
    out->items[out->count++] = (bt_value_t){.type = BT_VALUE_BOOL};
}

/* Array part: 1..n without holes; any other key besides them is refused. */
static void read_list(lua_State *L, struct walk *w, bt_value_t *out, int table, size_t n)
{
    size_t at = strlen(w->path), keys = 0;
    unsigned cap = 0;

    out->type = BT_VALUE_LIST;
    for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1), keys++)
        if (lua_type(L, -2) != LUA_TNUMBER)
            refuse(L, w, "has both list elements and named members");
    if (keys != n)
        refuse(L, w, "keys must be strings, or 1, 2, 3, ... without a gap");
    for (size_t i = 1; i <= n; i++) {
        snprintf(w->path + at, sizeof(w->path) - at, "[%zu]", i);
        lua_rawgeti(L, table, (int) i);
        add_item(L, w, out, &cap);
        read_value(L, w, &out->items[out->count - 1]);
        lua_pop(L, 1);
        w->path[at] = '\0';
    }
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const bt_value_t *) a)->key, ((const bt_value_t *) b)->key);
}

static void read_members(lua_State *L, struct walk *w, bt_value_t *out, int table)
{
    size_t at = strlen(w->path);
    unsigned cap = 0;

    out->type = BT_VALUE_TABLE;
    for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1)) {
        bt_value_t *item;

        if (lua_type(L, -2) != LUA_TSTRING)
            refuse(L, w, "keys must be strings, or 1, 2, 3, ... without a gap");
        snprintf(w->path + at, sizeof(w->path) - at, "%s%s", at > 0 ? "." : "",
                 lua_tostring(L, -2));
        add_item(L, w, out, &cap);
        item = &out->items[out->count - 1];
        item->key = copy_string(L, w, -2);
        read_value(L, w, item);
        w->path[at] = '\0';
    }
    if (out->count > 1)
        qsort(out->items, out->count, sizeof(*out->items), compare_keys);
}

static void read_table(lua_State *L, struct walk *w, bt_value_t *out)
{
    int table = lua_gettop(L);
    const void *self = lua_topointer(L, table);
    size_t n = lua_objlen(L, table);

    for (unsigned i = 0; i < w->depth; i++)
        if (w->parents[i] == self)
            refuse(L, w, "a table holds itself");
    if (w->depth == DEPTH_MAX || !lua_checkstack(L, 8))
        refuse(L, w, "nested too deep");
    w->parents[w->depth++] = self;
    if (n > 0)
        read_list(L, w, out, table, n);
    else
        read_members(L, w, out, table);
    w->depth--;
}

static void read_value(lua_State *L, struct walk *w, bt_value_t *out)
{
    switch (lua_type(L, -1)) {
    case LUA_TBOOLEAN:
        out->boolean = lua_toboolean(L, -1);
        return;
    case LUA_TNUMBER:
        out->type = BT_VALUE_NUMBER;
        out->number = lua_tonumber(L, -1);
        if (!isfinite(out->number))
            refuse(L, w, "is not a finite number");
        return;
    case LUA_TSTRING:
        out->type = BT_VALUE_STRING;
        out->string = copy_string(L, w, -1);
        return;
    case LUA_TTABLE:
        read_table(L, w, out);
        return;
    case LUA_TNIL:
        refuse(L, w, "keys must be strings, or 1, 2, 3, ... without a gap");
        return;
    default:
        refuse(L, w, "functions and other code values are not allowed here");
        return;
    }
}

/* run(chunk): everything that may raise, in one protected call */
static int run(lua_State *L)
{
    struct walk *w = bt_vm_of(L)->owner;

    open_names(L, w);
    lua_sethook(L, count_steps, LUA_MASKCOUNT, (int) HOOK_EVERY);
    lua_call(L, 0, 1);
    lua_sethook(L, NULL, 0, 0);
    if (!lua_istable(L, -1))
        return luaL_error(L, "%s: the file must return one table, not a %s value", w->file,
                          luaL_typename(L, -1));
    w->root = calloc(1, sizeof(*w->root));
    if (w->root == NULL)
        return luaL_error(L, "%s: out of memory", w->file);
    read_value(L, w, w->root);
    return 0;
}

/* Errors of the code itself begin with the name (or "..." and the end of a long one); those of the VM do not. */
static void name_text(const struct walk *w, enum bt_vm_end end, const char *why, char *err,
                      size_t err_size)
{
    if (end == BT_VM_NO_MEMORY)
        snprintf(err, err_size, "%s: it needs more than %zu MiB of memory", w->file,
                 w->limits->memory_bytes >> 20);
    else if (strncmp(why, w->file, strlen(w->file)) == 0 || strncmp(why, "...", 3) == 0)
        snprintf(err, err_size, "%s", why);
    else
        snprintf(err, err_size, "%s: %s", w->file, why);
}

static int load(struct walk *w, bt_str_t text, char *err, size_t err_size)
{
    char chunk[512], why[400] = "";
    enum bt_vm_end end = BT_VM_ERROR;

    snprintf(chunk, sizeof(chunk), "@%s", w->file);
    w->vm.steps_left = w->limits->steps;
    w->until_ms = bt_clock_ms() + w->limits->wall_ms;
    lua_pushcfunction(w->vm.L, run);
    if (bt_vm_load(&w->vm, text, chunk, false, why, sizeof(why)) == 0)
        end = bt_vm_run(&w->vm, 1, "the code", w->limits->cpu_us, bt_clock_us(), why, sizeof(why));
    if (end == BT_VM_DONE)
        return 0;
    name_text(w, end, why, err, err_size);
    return BT_E_CONFIG;
}

static int open_and_load(struct walk *w, bt_str_t text, char *err, size_t err_size)
{
    int rc = bt_watchdog_start() == 0 ? 0 : BT_E_NOMEM;

    if (rc == 0 && (rc = bt_vm_open(&w->vm, w, w->limits->memory_bytes, w->limits->vm_flags)) != 0)
        bt_watchdog_stop();
    if (rc != 0) {
        snprintf(err, err_size, "%s: out of memory", w->file);
        return rc;
    }
    rc = load(w, text, err, err_size);
    bt_vm_close(&w->vm);
    bt_watchdog_stop();
    return rc;
}

static int read_text(const char *name, bt_str_t text, const struct limits *limits,
                     bt_value_t **root_p, char *err, size_t err_size)
{
    struct walk *w = calloc(1, sizeof(*w));
    int rc;

    if (w == NULL) {
        snprintf(err, err_size, "%s: out of memory", name);
        return BT_E_NOMEM;
    }
    w->file = name;
    w->limits = limits;
    rc = open_and_load(w, text, err, err_size);
    if (rc == 0)
        *root_p = w->root;
    else
        bt_value_free(w->root);
    free(w);
    return rc;
}

int bt_lua_table_load(const char *path, bt_value_t **root_p, char *err, size_t err_size)
{
    char *text;
    size_t size;
    int rc = bt_vm_read_file(path, &text, &size, err, err_size);

    if (rc < 0)
        return rc;
    rc = read_text(path, (bt_str_t){text, size}, &file_limits, root_p, err, err_size);
    free(text);
    return rc;
}

int bt_lua_table_read(const char *name, bt_str_t text, bt_value_t **root_p, char *err,
                      size_t err_size)
{
    return read_text(name, text, &pushed_limits, root_p, err, err_size);
}

static void free_items(bt_value_t *value)
{
    for (unsigned i = 0; i < value->count; i++) {
        free_items(&value->items[i]);
        free(value->items[i].key);
    }
    free(value->items);
    free(value->string);
}

void bt_value_free(bt_value_t *root)
{
    if (root == NULL)
        return;
    free_items(root);
    free(root->key);
    free(root);
}

const bt_value_t *bt_value_get(const bt_value_t *table, const char *key)
{
    if (table == NULL || table->type != BT_VALUE_TABLE)
        return NULL;
    for (unsigned i = 0; i < table->count; i++)
        if (strcmp(table->items[i].key, key) == 0)
            return &table->items[i];
    return NULL;
}
