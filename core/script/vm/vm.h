/* vm.h - Lua states with only the harmless parts of the standard library. Private to core/script.
 *
 * Owner: a policy, a set of dialects or one configuration load; one thread at a time.
 * Life:  open -> load, call -> close.
 * Flow:  opened libraries are cut down to an allow-list, and checked against it once more (so a builtin that a newer LuaJIT
 *        adds cannot slip in); names that do not exist are errors, for reading and for writing; memory is capped by the
 *        allocator, and time by the watchdog.
 * Cost:  about 100 us and 40 KiB to open.
 */
#ifndef BT_SCRIPT_VM_H
#define BT_SCRIPT_VM_H

#include "base/str.h"
#include "script/vm/heap.h"
#include "script/vm/watchdog.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#define BT_VM_FILE_MAX ((size_t) 1 << 20)

enum bt_vm_flags {
    BT_VM_JIT = 1,     /* trusted code may be compiled; bt_vm_load decides per chunk */
    BT_VM_REQUIRE = 2, /* require("baton.x") finds the embedded lua/baton/x.lua */
    BT_VM_CONFIG =
        4, /* configuration files: pattern functions too, paid from steps_left; no bit, no strict names */
    BT_VM_GUARDED = 8 /* code that is not trusted: blocks of memory are bounded */
};

/* How a call under the watchdog ended. */
enum bt_vm_end { BT_VM_DONE, BT_VM_ERROR, BT_VM_NO_TIME, BT_VM_NO_MEMORY };

/* A table that grows and a string that doubles do so in one step that nothing can interrupt: no step of more than this.
 * 262,144 list elements, 65,536 named members. */
#define BT_VM_BLOCK_MAX (((size_t) 2 << 20) + 65536)

typedef struct bt_vm {
    lua_State *L;
    void *
        owner; /* whoever opened it; C functions find it by bt_vm_of(L)->owner (never by light userdata) */
    bt_heap_t heap;
    uint64_t collect_until_us; /* deadline of the collection that runs */
    const char *stack_base;    /* C stack at the beginning of the guarded call */
    bool is_full;              /* a coroutine of the guarded call ended for lack of memory */
    uint64_t steps_left;       /* that patterns may still take (script/vm/pattern.h) */
    bt_watch_t watch;          /* of VMs that are guarded, and of configuration files */
} bt_vm_t;

/* BT_E_NOMEM. The struct must not move while the state is open (but for bt_vm_swap). */
int bt_vm_open(bt_vm_t *vm, void *owner, size_t cap_bytes, unsigned flags);
/* Of sandbox.c: the watchdog may stop calls from now on. */
void bt_vm_watch(bt_vm_t *vm);
void bt_vm_close(bt_vm_t *vm); /* zeroed or closed: nothing */
bt_vm_t *bt_vm_of(lua_State *L);
/* Exchanges two open, idle states and leaves the owners in their places. */
void bt_vm_swap(bt_vm_t *a, bt_vm_t *b);

/* Leaves the chunk as a function on the stack; text only, never bytecode. chunk: "@path". What takes more than 0.3 s of CPU to
 * compile is refused. BT_E_POLICY with err filled. */
int bt_vm_load(bt_vm_t *vm, bt_str_t text, const char *chunk, bool compiled, char *err,
               size_t err_size);
/* Calls the function below its `args` arguments, without results. On failure err gets the error as one line of text, and
 * after a failed allocation all garbage is collected, or the next call would fail too. 0 or BT_E_POLICY. */
int bt_vm_call(bt_vm_t *vm, int args, char *err, size_t err_size);
/* The same under the watchdog, which runs (bt_watchdog_start): for guarded VMs and configuration files, whose long library
 * functions are bounded. `what` is the hook's name for the message; collecting garbage is left to the caller. */
enum bt_vm_end bt_vm_run(bt_vm_t *vm, int args, const char *what, unsigned budget_us,
                         uint64_t now_us, char *err, size_t err_size);
/* For C functions with long loops, every few thousand steps: raises when the call has run over its budget. What such a function
 * keeps for later calls must be complete before the check, or be stored after the last one. */
static inline void bt_vm_check_time(lua_State *L)
{
    const bt_vm_t *vm = bt_vm_of(L);

    if (bt_watch_is_over(&vm->watch))
        (void) bt_watch_raise(L, &vm->watch, 1);
}
/* For C functions that call back: raises when scripts have nested such calls too deep (an error that unwinds thousands of C
 * frames takes longer than a loop can wait). */
void bt_vm_check_depth(lua_State *L);
/* Collects garbage for at most about max_us; true when all of it is gone. */
bool bt_vm_collect(bt_vm_t *vm, uint64_t max_us);
/* Of a guarded VM, before anything is added to it: is there anything in reach of scripts that the allow-list does not name, or
 * the other way round? BT_E_POLICY names it. */
int bt_vm_check(bt_vm_t *vm, char *err, size_t err_size);
/* Whole file, malloc'ed and NUL-terminated. BT_E_CONFIG with "path: reason". */
int bt_vm_read_file(const char *path, char **text_p, size_t *size_p, char *err, size_t err_size);
const struct bt_embedded *bt_vm_embedded(const char *path); /* NULL when there is none */

/* Field names as a set of interned Lua strings: finding one is a pointer hash, no compare of bytes. */
#define BT_VM_FIELDS_CAP 64
typedef struct bt_vm_fields {
    const char *const *names; /* NULL-terminated; the result of a find is the index here */
    const void *keys[BT_VM_FIELDS_CAP]; /* the strings as objects */
    unsigned char ids[BT_VM_FIELDS_CAP];
} bt_vm_fields_t;
/* Anchors the names in the registry. In protected mode only. At most 48 names. */
void bt_vm_fields_init(lua_State *L, bt_vm_fields_t *f, const char *const *names);
/* The value at idx as a field; -1 when it is no known name. */
int bt_vm_fields_find(lua_State *L, const bt_vm_fields_t *f, int idx);
/* Raises "unknown <what> 'x' (did you mean 'y'?)". */
int bt_vm_unknown(lua_State *L, const char *what, const char *const *names, int idx);
/* Is the value at idx one of the names? */
bool bt_vm_is_named(lua_State *L, const char *const *names, int idx);
/* Raises the same of a key of the table at idx (no negative one) that is none of the names. */
void bt_vm_check_keys(lua_State *L, const char *what, const char *const *names, int idx);
/* Nearest name within a third of its length, or NULL. */
const char *bt_vm_nearest(const char *const *names, bt_str_t s);

/* Registry access: fields of this module's own by reference. */
static inline void bt_vm_push(lua_State *L, int ref)
{
    lua_rawgeti(L, LUA_REGISTRYINDEX, ref);
}
static inline bt_str_t bt_vm_str(lua_State *L, int idx)
{
    bt_str_t s = BT_STR_NULL;

    s.p = lua_tolstring(L, idx, &s.n);
    return s;
}
static inline void bt_vm_push_str(lua_State *L, bt_str_t s)
{
    lua_pushlstring(L, s.p != NULL ? s.p : "", s.n);
}

/* A metatable that no script can get at. */
void bt_vm_push_closed_meta(lua_State *L, lua_CFunction index, lua_CFunction newindex);

/* An empty slice is nil. */
static inline void bt_vm_push_opt(lua_State *L, bt_str_t s)
{
    if (s.n == 0)
        lua_pushnil(L);
    else
        lua_pushlstring(L, s.p, s.n);
}

#endif
