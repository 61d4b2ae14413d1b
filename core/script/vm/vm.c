/* How it works: libraries are opened one by one, never as a set; then every table is walked and whatever the list below
 * does not name is dropped. The real tables are cut, not copies, because ("x"):rep(n) goes through the string metatable
 * and would walk around a separate environment.
 *
 * Left out on purpose: io, os, package, debug, ffi, jit, coroutine, load*, dofile; xpcall and newproxy (their handlers
 * and finalizers run where no hook can stop them); string.dump and the pattern functions (time that no hook can stop
 * either; configuration files have those of pattern.c); collectgarbage, getfenv, setfenv. math.random is ours, because
 * LuaJIT's starts with the same seed in each VM. What remains and could still run long in C is replaced by bounded.c. */
#include "script/vm/vm.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/rand.h"
#include "script/vm/bounded.h"
#include "script/vm/embedded.h"
#include "script/vm/pattern.h"

#include <errno.h>
#include <luajit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COLLECT_SLACK ((size_t) 1 << 20)
#define STACK_MAX_BYTES 65536
#define COMPILE_US 1000000 /* a MiB of tables takes some 50 ms */
#define PIECE_BYTES ((size_t) 256)

static const char *const base_names[] = {
    "assert",   "error",  "getmetatable", "ipairs", "next",         "pairs",    "pcall",
    "rawequal", "rawget", "rawset",       "select", "setmetatable", "tonumber", "tostring",
    "type",     "unpack", "bit",          "math",   "string",       "table",    NULL};
static const char *const math_names[] = {
    "abs",   "acos", "asin",  "atan",   "atan2", "ceil", "cos",   "cosh", "deg",  "exp",
    "floor", "fmod", "frexp", "huge",   "ldexp", "log",  "log10", "max",  "min",  "modf",
    "pi",    "pow",  "rad",   "random", "sin",   "sinh", "sqrt",  "tan",  "tanh", NULL};
static const char *const string_names[] = {"byte",  "char",    "find", "format", "len",
                                           "lower", "reverse", "sub",  "upper",  NULL};
static const char *const guarded_string_names[] = {
    "byte", "char", "find", "format", "len", "lower", "rep", "reverse", "sub", "upper", NULL};
static const char *const config_string_names[] = {"byte",    "char", "find",  "format", "gmatch",
                                                  "gsub",    "len",  "lower", "match",  "rep",
                                                  "reverse", "sub",  "upper", NULL};
static const char *const table_names[] = {"concat", "insert", "remove", "sort", NULL};
static const char *const bit_names[] = {"arshift", "band",   "bnot", "bor", "bswap",
                                        "bxor",    "lshift", "rol",  "ror", "rshift",
                                        "tobit",   "tohex",  NULL};

bt_vm_t *bt_vm_of(lua_State *L)
{
    void *heap = NULL;

    lua_getallocf(L, &heap);
    return bt_container_of(heap, bt_vm_t, heap);
}

/* ---- what replaces a library function ---- */

/* Plain search only; glibc's memmem is linear, a pattern is not. */
static int plain_find(lua_State *L)
{
    size_t n = 0, needle_n = 0;
    const char *s = luaL_checklstring(L, 1, &n), *needle = luaL_checklstring(L, 2, &needle_n), *hit;
    lua_Integer init = luaL_optinteger(L, 3, 1);

    if (init < 0)
        init = (lua_Integer) n + init + 1;
    if (init < 1)
        init = 1;
    if ((size_t) init > n + 1)
        return 0;
    hit = memmem(s + init - 1, n - (size_t) init + 1, needle, needle_n);
    if (hit == NULL)
        return 0;
    lua_pushinteger(L, hit - s + 1);
    lua_pushinteger(L, hit - s + (lua_Integer) needle_n);
    return 2;
}

static int random_number(lua_State *L)
{
    lua_Integer low = 1, high;

    if (lua_gettop(L) == 0) {
        lua_pushnumber(L, bt_rand_unit());
        return 1;
    }
    high = luaL_checkinteger(L, 1);
    if (lua_gettop(L) > 1) {
        low = high;
        high = luaL_checkinteger(L, 2);
    }
    luaL_argcheck(L, low <= high, lua_gettop(L) > 1 ? 2 : 1, "interval is empty");
    lua_pushinteger(L, low + (lua_Integer) bt_rand_below((uint64_t) (high - low) + 1));
    return 1;
}

/* require("baton.legs") -> embedded lua/baton/legs.lua, run once per VM. Upvalue 1: what is loaded. */
static int require_module(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    char path[128] = "lua/", err[512];
    const struct bt_embedded *file;
    size_t at = strlen(path);

    lua_pushvalue(L, 1);
    lua_rawget(L, lua_upvalueindex(1));
    if (!lua_isnil(L, -1))
        return 1;
    for (const char *p = name; *p != '\0' && at < sizeof(path) - 8; p++)
        path[at++] = *p == '.' ? '/' : *p;
    memcpy(path + at, ".lua", 5);
    file = bt_vm_embedded(path);
    if (file == NULL)
        return luaL_error(L, "module '%s' does not exist", name);
    if (bt_vm_load(bt_vm_of(L), (bt_str_t){file->data, file->size}, lua_pushfstring(L, "@%s", path),
                   true, err, sizeof(err)) != 0)
        return luaL_error(L, "%s", err);
    lua_call(L, 0, 1);
    if (lua_isnil(L, -1))
        return luaL_error(L, "module '%s' returned nothing", name);
    lua_pushvalue(L, 1);
    lua_pushvalue(L, -2);
    lua_rawset(L, lua_upvalueindex(1));
    return 1;
}

static int unknown_global(lua_State *L)
{
    const char *name = lua_tostring(L, 2);

    return luaL_error(L, "unknown name '%s' (a typing mistake, or not available here)",
                      name != NULL ? name : "?");
}

static int no_new_global(lua_State *L)
{
    const char *name = lua_tostring(L, 2);

    return luaL_error(L, "'%s' would be a global: write local", name != NULL ? name : "?");
}

/* ---- opening ---- */

static bool is_listed(const char *const *names, const char *name)
{
    for (; *names != NULL; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

/* Drops every key of the table at the top that is not listed. */
static void keep_only(lua_State *L, const char *const *names)
{
    lua_pushnil(L);
    while (lua_next(L, -2) != 0) {
        lua_pop(L, 1);
        if (lua_type(L, -1) == LUA_TSTRING && is_listed(names, lua_tostring(L, -1)))
            continue;
        lua_pushvalue(L, -1);
        lua_pushnil(L);
        lua_rawset(L, -4); /* clearing a field during a traversal is allowed */
    }
}

static void open_lib(lua_State *L, lua_CFunction open, const char *name, const char *const *names)
{
    lua_pushcfunction(L, open);
    lua_pushstring(L, name);
    lua_call(L, 1, 0);
    if (names == NULL)
        return;
    lua_getglobal(L, name);
    keep_only(L, names);
    lua_pop(L, 1);
}

static void set_function(lua_State *L, const char *table, const char *name, lua_CFunction fn)
{
    lua_getglobal(L, table);
    lua_pushcfunction(L, fn);
    lua_setfield(L, -2, name);
    lua_pop(L, 1);
}

/* The string metatable must not be reachable, or one could give all strings new methods. */
static void lock_strings(lua_State *L)
{
    lua_pushliteral(L, "");
    lua_getmetatable(L, -1);
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
    lua_pop(L, 2);
}

static void lock_globals(lua_State *L)
{
    lua_newtable(L);
    lua_pushcfunction(L, unknown_global);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, no_new_global);
    lua_setfield(L, -2, "__newindex");
    lua_setmetatable(L, LUA_GLOBALSINDEX);
}

static int collect(lua_State *L)
{
    bt_vm_t *vm = bt_vm_of(L);

    /* Twice around: garbage that was made while a cycle ran may be left by it. */
    for (int cycles = 0; cycles < 2; cycles += lua_gc(L, LUA_GCSTEP, 0))
        if (bt_clock_us() >= vm->collect_until_us)
            return luaL_error(L, "not all garbage was collected");
    return 0;
}

static int open_all(lua_State *L)
{
    unsigned flags = (unsigned) lua_tointeger(L, 1);
    bool config = (flags & BT_VM_CONFIG) != 0, guarded = (flags & BT_VM_GUARDED) != 0;

    open_lib(L, luaopen_base, "", NULL);
    open_lib(L, luaopen_math, LUA_MATHLIBNAME, math_names);
    open_lib(L, luaopen_string, LUA_STRLIBNAME,
             config    ? config_string_names
             : guarded ? guarded_string_names
                       : string_names);
    open_lib(L, luaopen_table, LUA_TABLIBNAME, table_names);
    if (!config)
        open_lib(L, luaopen_bit, LUA_BITLIBNAME, bit_names);
    if (flags & BT_VM_JIT)
        open_lib(L, luaopen_jit, LUA_JITLIBNAME,
                 NULL); /* turns the compiler on; the table itself goes */
    lua_pushvalue(L, LUA_GLOBALSINDEX);
    keep_only(L, base_names);
    lua_pop(L, 1);
    set_function(L, "math", "random", random_number);
    if (!config)
        set_function(L, "string", "find", plain_find);
    if (guarded || config)
        bt_bounded_open(L);
    if (config)
        bt_pattern_open(L);
    if (flags & BT_VM_REQUIRE) {
        lua_newtable(L);
        lua_pushcclosure(L, require_module, 1);
        lua_setglobal(L, "require");
    }
    lock_strings(L);
    if (!config)
        lock_globals(L);
    lua_pushcfunction(L, collect);
    bt_vm_of(L)->collect_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    return 0;
}

int bt_vm_open(bt_vm_t *vm, void *owner, size_t cap_bytes, unsigned flags)
{
    *vm = (bt_vm_t){.owner = owner};
    vm->heap.cap_bytes = cap_bytes;
    vm->heap.block_max = (flags & BT_VM_GUARDED) != 0 ? BT_VM_BLOCK_MAX : SIZE_MAX;
    vm->L = lua_newstate(bt_heap_alloc, &vm->heap);
    if (vm->L == NULL)
        return BT_E_NOMEM;
    lua_pushcfunction(vm->L, open_all);
    lua_pushinteger(vm->L, (lua_Integer) flags);
    if (lua_pcall(vm->L, 1, 0, 0) != 0) {
        bt_vm_close(vm);
        return BT_E_NOMEM;
    }
    if ((flags & (BT_VM_GUARDED | BT_VM_CONFIG)) != 0)
        bt_watch_init(&vm->watch, vm->L);
    return 0;
}

static void settle_after_swap(bt_vm_t *vm)
{
    lua_setallocf(vm->L, bt_heap_alloc, &vm->heap);
    memset(&vm->watch, 0, sizeof(vm->watch));
    bt_watch_init(&vm->watch, vm->L);
}

void bt_vm_swap(bt_vm_t *a, bt_vm_t *b)
{
    void *owners[] = {a->owner, b->owner};
    bt_vm_t was_a;

    bt_watch_fini(&a->watch);
    bt_watch_fini(&b->watch);
    was_a = *a;
    *a = *b;
    *b = was_a;
    a->owner = owners[0];
    b->owner = owners[1];
    settle_after_swap(a);
    settle_after_swap(b);
}

void bt_vm_close(bt_vm_t *vm)
{
    bt_watch_fini(&vm->watch);
    if (vm->L != NULL)
        lua_close(vm->L);
    vm->L = NULL;
    bt_heap_fini(&vm->heap);
}

/* ---- loading ---- */

static void take_error(bt_vm_t *vm, char *err, size_t err_size)
{
    const char *text = lua_type(vm->L, -1) == LUA_TSTRING ? lua_tostring(vm->L, -1) : NULL;

    if (text != NULL)
        snprintf(err, err_size, "%s", text);
    else
        snprintf(err, err_size, "error object is a %s value", luaL_typename(vm->L, -1));
    for (char *p = err; *p != '\0'; p++)
        if (*p == '\n' || *p == '\r')
            *p = ' ';
    lua_pop(vm->L, 1);
}

struct pieces {
    bt_str_t left;
    const char *chunk;
    uint64_t until_us; /* of this thread's CPU time */
};

static uint64_t cpu_us(void)
{
    struct timespec now = {0};

    (void) clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t) now.tv_sec * 1000000 + (uint64_t) now.tv_nsec / 1000;
}

/* The compiler takes the square of the time for some texts ("a and a and a ..."), and calls no hook; so it gets the text in pieces,
 * and between them we look. */
static const char *next_piece(lua_State *L, void *user, size_t *size_p)
{
    struct pieces *pieces = user;
    const char *piece = pieces->left.p;

    if (cpu_us() > pieces->until_us)
        luaL_error(L, "%s: it takes too long to compile; make it shorter", pieces->chunk + 1);
    *size_p = pieces->left.n < PIECE_BYTES ? pieces->left.n : PIECE_BYTES;
    pieces->left.p += *size_p;
    pieces->left.n -= *size_p;
    return piece;
}

int bt_vm_load(bt_vm_t *vm, bt_str_t text, const char *chunk, bool compiled, char *err,
               size_t err_size)
{
    struct pieces pieces = {text, chunk, cpu_us() + COMPILE_US};

    if (lua_loadx(vm->L, next_piece, &pieces, chunk, "t") != 0) {
        take_error(vm, err, err_size);
        return BT_E_POLICY;
    }
    if (!compiled) /* all functions inside it too: hooks are not seen by compiled code */
        luaJIT_setmode(vm->L, -1, LUAJIT_MODE_ALLFUNC | LUAJIT_MODE_OFF);
    return 0;
}

/* Protected, because the collector itself allocates when it makes tables smaller; it may go over the cap for that. */
bool bt_vm_collect(bt_vm_t *vm, uint64_t max_us)
{
    int rc;

    vm->collect_until_us = max_us < UINT64_MAX ? bt_clock_us() + max_us : UINT64_MAX;
    vm->heap.cap_bytes += COLLECT_SLACK;
    bt_vm_push(vm->L, vm->collect_ref);
    rc = lua_pcall(vm->L, 0, 0, 0);
    vm->heap.cap_bytes -= COLLECT_SLACK;
    if (rc != 0)
        lua_pop(vm->L, 1);
    return rc == 0;
}

int bt_vm_call(bt_vm_t *vm, int args, char *err, size_t err_size)
{
    int rc = lua_pcall(vm->L, args, 0, 0);

    if (rc == 0)
        return 0;
    take_error(vm, err, err_size);
    if (rc == LUA_ERRMEM)
        (void) bt_vm_collect(vm, UINT64_MAX);
    return BT_E_POLICY;
}

void bt_vm_check_depth(lua_State *L)
{
    const char *here = __builtin_frame_address(0);
    const bt_vm_t *vm = bt_vm_of(L);

    if (vm->stack_base != NULL && vm->stack_base - here > STACK_MAX_BYTES)
        luaL_error(L, "calls are nested too deep");
}

enum bt_vm_end bt_vm_run(bt_vm_t *vm, int args, const char *what, unsigned budget_us,
                         uint64_t now_us, char *err, size_t err_size)
{
    bool fired;
    int rc;

    vm->stack_base = __builtin_frame_address(0);
    vm->is_full = false;
    bt_watch_begin(&vm->watch, what, budget_us, now_us);
    rc = lua_pcall(vm->L, args, 0, 0);
    fired = bt_watch_end(&vm->watch);
    if (rc == 0)
        return BT_VM_DONE;
    take_error(vm, err, err_size);
    return fired ? BT_VM_NO_TIME : rc == LUA_ERRMEM || vm->is_full ? BT_VM_NO_MEMORY : BT_VM_ERROR;
}

void bt_vm_push_closed_meta(lua_State *L, lua_CFunction index, lua_CFunction newindex)
{
    lua_createtable(L, 0, 3);
    lua_pushcfunction(L, index);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, newindex);
    lua_setfield(L, -2, "__newindex");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
}

/* ---- the check of what scripts can reach ---- */

static void check_table(lua_State *L, const char *prefix, const char *const *names)
{
    int table = lua_gettop(L);

    for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1))
        if (lua_type(L, -2) != LUA_TSTRING || !is_listed(names, lua_tostring(L, -2)))
            luaL_error(L, "sandbox: %s%s is not in the allow-list", prefix,
                       lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "(a key)");
    for (; *names != NULL; names++) {
        lua_getfield(L, table, *names);
        if (lua_isnil(L, -1))
            luaL_error(L, "sandbox: %s%s is missing", prefix, *names);
        lua_pop(L, 1);
    }
}

static int check_all(lua_State *L)
{
    static const char *const tables[] = {"math", "string", "table", "bit"};
    static const char *const *const names[] = {math_names, guarded_string_names, table_names,
                                               bit_names};
    static const char *const string_meta[] = {"__index", "__metatable", NULL};

    lua_pushvalue(L, LUA_GLOBALSINDEX);
    check_table(L, "", base_names);
    for (int i = 0; i < 4; i++) {
        lua_getfield(L, 1, tables[i]);
        lua_pushfstring(L, "%s.", tables[i]);
        lua_insert(L, -2);
        check_table(L, lua_tostring(L, -2), names[i]);
        lua_settop(L, 1);
    }
    lua_pushliteral(L, "");
    lua_getmetatable(L, -1);
    check_table(L, "the metatable of strings: ", string_meta);
    lua_getfield(L, -1, "__index");
    lua_getfield(L, 1, "string");
    if (!lua_rawequal(L, -1, -2))
        return luaL_error(L, "sandbox: the methods of strings are not the table string");
    return 0;
}

int bt_vm_check(bt_vm_t *vm, char *err, size_t err_size)
{
    lua_pushcfunction(vm->L, check_all);
    return bt_vm_call(vm, 0, err, err_size);
}

static int read_all(FILE *in, char **text_p, size_t *size_p)
{
    char *text = malloc(BT_VM_FILE_MAX + 1);
    size_t size;

    if (text == NULL)
        return ENOMEM;
    size = fread(text, 1, BT_VM_FILE_MAX + 1, in);
    if (ferror(in) || size > BT_VM_FILE_MAX) {
        int rc = ferror(in) ? errno : EFBIG;
        free(text);
        return rc;
    }
    text[size] = '\0';
    *text_p = text;
    *size_p = size;
    return 0;
}

int bt_vm_read_file(const char *path, char **text_p, size_t *size_p, char *err, size_t err_size)
{
    FILE *in = fopen(path, "rbe");
    int rc = in == NULL ? errno : read_all(in, text_p, size_p);

    if (in != NULL)
        fclose(in);
    if (rc == 0)
        return 0;
    snprintf(err, err_size, "%s: cannot read: %s", path, strerror(rc));
    return BT_E_CONFIG;
}

const struct bt_embedded *bt_vm_embedded(const char *path)
{
    for (const struct bt_embedded *file = bt_embedded_files; file->path != NULL; file++)
        if (strcmp(file->path, path) == 0)
            return file;
    return NULL;
}

/* ---- field names ---- */

static unsigned key_slot(const char *key)
{
    return (unsigned) (((uintptr_t) key >> 4) * 0x9e3779b1u >> 8) % BT_VM_FIELDS_CAP;
}

void bt_vm_fields_init(lua_State *L, bt_vm_fields_t *f, const char *const *names)
{
    f->names = names;
    for (unsigned i = 0; names[i] != NULL; i++) {
        unsigned slot;
        const char *key;

        BT_BUG_ON(i >= BT_VM_FIELDS_CAP - 16);
        lua_pushstring(L, names[i]);
        key = lua_tostring(L, -1);
        luaL_ref(L, LUA_REGISTRYINDEX); /* keeps the interned string where it is */
        for (slot = key_slot(key); f->keys[slot] != NULL; slot = (slot + 1) % BT_VM_FIELDS_CAP)
            ;
        f->keys[slot] = key;
        f->ids[slot] = (unsigned char) i;
    }
}

int bt_vm_fields_find(lua_State *L, const bt_vm_fields_t *f, int idx)
{
    const char *key = lua_type(L, idx) == LUA_TSTRING ? lua_tostring(L, idx) : NULL;

    if (key == NULL)
        return -1;
    for (unsigned slot = key_slot(key); f->keys[slot] != NULL; slot = (slot + 1) % BT_VM_FIELDS_CAP)
        if (f->keys[slot] == key)
            return f->ids[slot];
    return -1;
}

const char *bt_vm_nearest(const char *const *names, bt_str_t s)
{
    const char *best = NULL;
    unsigned best_distance = 2 + (unsigned) (s.n < 64 ? s.n : 64) / 3;

    for (; *names != NULL; names++) {
        unsigned distance = bt_str_distance(bt_str(*names), s);
        if (distance < best_distance) {
            best_distance = distance;
            best = *names;
        }
    }
    return best;
}

int bt_vm_unknown(lua_State *L, const char *what, const char *const *names, int idx)
{
    const char *nearest;

    if (lua_type(L, idx) != LUA_TSTRING)
        return luaL_error(L, "unknown %s (a %s)", what, luaL_typename(L, idx));
    nearest = bt_vm_nearest(names, bt_vm_str(L, idx));
    if (nearest != NULL)
        return luaL_error(L, "unknown %s '%s' (did you mean '%s'?)", what, lua_tostring(L, idx),
                          nearest);
    return luaL_error(L, "unknown %s '%s'", what, lua_tostring(L, idx));
}
