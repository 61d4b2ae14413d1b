/* How it works: libraries are opened one by one, never as a set; then every table is walked and whatever the list below
 * does not name is dropped. The real tables are cut, not copies, because ("x"):rep(n) goes through the string metatable
 * and would walk around a separate environment.
 *
 * Left out on purpose: io, os, package, debug, ffi, jit, coroutine, load*, dofile; xpcall and newproxy (their handlers
 * and finalizers run where no hook can stop them); string.dump and the pattern functions (time that no hook can stop
 * either; configuration files have those of pattern.c); collectgarbage, getfenv, setfenv. math.random is ours, because
 * LuaJIT's starts with the same seed in each VM. What remains and could still run long in C is replaced by bounded.c. */
#include "base/err.h"
#include "base/rand.h"
#include "script/vm/bounded.h"
#include "script/vm/embedded.h"
#include "script/vm/pattern.h"
#include "script/vm/vm.h"

#include <luajit.h>
#include <string.h>

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

    lua_pushliteral(L, "baton");
    lua_rawget(L, LUA_GLOBALSINDEX);
    if (name != NULL && strcmp(name, "print") == 0 && lua_istable(L, -1))
        return luaL_error(L, "unknown name 'print': write to the log with baton.log(level, text)");
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

/* ("x"):match too comes here. */
static int unknown_string_function(lua_State *L)
{
    static const char *const with_patterns[] = {"match", "gmatch", "gsub", NULL};
    const char *name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "?";

    if (is_listed(with_patterns, name))
        return luaL_error(L,
                          "string.%s: there are no patterns here, their time has no bound; "
                          "string.find looks for plain text, string.sub cuts",
                          name);
    return luaL_error(L, "unknown function 'string.%s'", name);
}

static void explain_strings(lua_State *L)
{
    lua_getglobal(L, LUA_STRLIBNAME);
    lua_createtable(L, 0, 2);
    lua_pushcfunction(L, unknown_string_function);
    lua_setfield(L, -2, "__index");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
    lua_setmetatable(L, -2);
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
    if (guarded)
        explain_strings(L);
    if (!config)
        lock_globals(L);
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
        bt_vm_watch(vm);
    return 0;
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
        lua_pushstring(L, *names);
        lua_rawget(L, table);
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
