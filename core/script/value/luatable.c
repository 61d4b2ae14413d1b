/* How it works: the code runs in a state of its own without the JIT, so that the count hook sees every instruction; then
 * plain.c reads the table that it returned.
 *
 * Three limits end code that runs too long. Steps are counted, instructions by the hook and those of patterns by pattern.c: the same
 * code ends at the same place on every machine. Library functions in C check the watchdog, which measures CPU time. For pushed code,
 * which others wait for, the hook checks the clock as well. */
#include "script/value/luatable.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/sanitize.h"
#include "script/value/plain.h"
#include "script/vm/vm.h"

#include <stdio.h>
#include <stdlib.h>

/* Steps. ThreadSanitizer holds the watchdog's signal back, so that this hook alone ends long calls in a row. */
#define HOOK_EVERY (BT_TSAN ? 50u : 1000u)

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

struct run {
    bt_vm_t vm;
    const struct limits *limits;
    uint64_t until_ms;
    bt_value_t *root;
    const char *file;
};

/* ---- what the code may do ---- */

static int env(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1), *value = getenv(name);

    if (value != NULL)
        lua_pushstring(L, value);
    else if (lua_gettop(L) == 1)
        return luaL_error(
            L, "the environment has no %s; where it may be missing: env(\"%s\", default)", name,
            name);
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

static void open_names(lua_State *L, const struct run *w)
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
    struct run *w = bt_vm_of(L)->owner;

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

/* run(chunk): everything that may raise, in one protected call */
static int run(lua_State *L)
{
    struct run *w = bt_vm_of(L)->owner;
    const bt_plain_rules_t rules = {.what = "",
                                    .file = w->file,
                                    .depth = BT_PLAIN_DEPTH_MAX,
                                    .values = w->limits->values,
                                    .bytes = w->limits->text_bytes,
                                    .is_finite = true,
                                    .is_watched = true};

    open_names(L, w);
    lua_sethook(L, count_steps, LUA_MASKCOUNT, (int) HOOK_EVERY);
    lua_call(L, 0, 1);
    lua_sethook(L, NULL, 0, 0);
    if (!lua_istable(L, -1))
        return luaL_error(L, "%s: the file must return one table, not a %s value", w->file,
                          luaL_typename(L, -1));
    bt_plain_read_by(L, -1, &rules, &w->root);
    return 0;
}

/* Errors of the code itself begin with the name (or "..." and the end of a long one); those of the VM do not. */
static void name_text(const struct run *w, enum bt_vm_end end, const char *why, char *err,
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

static int load(struct run *w, bt_str_t text, char *err, size_t err_size)
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

static int open_and_load(struct run *w, bt_str_t text, char *err, size_t err_size)
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
    struct run *w = calloc(1, sizeof(*w));
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
