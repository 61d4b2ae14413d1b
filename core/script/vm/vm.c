/* vm.c - the life of a state: calls, garbage, files, names of fields. What scripts find in it: sandbox.c. */
#include "script/vm/vm.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/flight.h"
#include "script/vm/embedded.h"

#include <errno.h>
#include <luajit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLLECT_SLACK ((size_t) 1 << 20)
#define STACK_MAX_BYTES 65536
#define COMPILE_US 300000 /* a MiB of tables takes some 50 ms */
#define PIECE_BYTES ((size_t) 256)
#define PAUSE_US 1000 /* of collecting garbage: one for the flight recorder */

bt_vm_t *bt_vm_of(lua_State *L)
{
    void *heap = NULL;

    lua_getallocf(L, &heap);
    return bt_container_of(heap, bt_vm_t, heap);
}

/* The hook that the watchdog sets: L may be a coroutine. */
static void on_instruction(lua_State *L, lua_Debug *unused)
{
    (void) unused;
    bt_watch_look(L, &bt_vm_of(L)->watch);
}

void bt_vm_watch(bt_vm_t *vm)
{
    bt_watch_init(&vm->watch, vm->L, on_instruction);
}

static void settle_after_swap(bt_vm_t *vm)
{
    lua_setallocf(vm->L, bt_heap_alloc, &vm->heap);
    memset(&vm->watch, 0, sizeof(vm->watch));
    bt_vm_watch(vm);
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

/* The compiler takes the square of the time for some texts ("a and a and a ..."), and calls no hook; so it gets the text in pieces,
 * and between them we look. */
static const char *next_piece(lua_State *L, void *user, size_t *size_p)
{
    struct pieces *pieces = user;
    const char *piece = pieces->left.p;

    if (bt_clock_cpu_us() > pieces->until_us)
        luaL_error(L, "%s: it takes too long to compile; make it shorter", pieces->chunk + 1);
    *size_p = pieces->left.n < PIECE_BYTES ? pieces->left.n : PIECE_BYTES;
    pieces->left.p += *size_p;
    pieces->left.n -= *size_p;
    return piece;
}

int bt_vm_load(bt_vm_t *vm, bt_str_t text, const char *chunk, bool compiled, char *err,
               size_t err_size)
{
    struct pieces pieces = {text, chunk, bt_clock_cpu_us() + COMPILE_US};

    if (lua_loadx(vm->L, next_piece, &pieces, chunk, "t") != 0) {
        take_error(vm, err, err_size);
        return BT_E_POLICY;
    }
    if (!compiled) /* all functions inside it too: hooks are not seen by compiled code */
        luaJIT_setmode(vm->L, -1, LUAJIT_MODE_ALLFUNC | LUAJIT_MODE_OFF);
    return 0;
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

/* Protected, because the collector itself allocates when it makes tables smaller; it may go over the cap for that. */
bool bt_vm_collect(bt_vm_t *vm, uint64_t max_us)
{
    const uint64_t start_us = bt_clock_us();
    int rc;

    vm->collect_until_us = max_us < UINT64_MAX ? start_us + max_us : UINT64_MAX;
    vm->heap.cap_bytes += COLLECT_SLACK;
    rc = lua_cpcall(vm->L, collect, NULL);
    vm->heap.cap_bytes -= COLLECT_SLACK;
    if (rc != 0)
        lua_pop(vm->L, 1);
    const uint64_t took_us = bt_clock_us() - start_us;
    if (took_us >= PAUSE_US)
        bt_flight_note(BT_FLIGHT_GC, took_us, "a whole collection, after a call that failed");
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

static unsigned key_slot(const void *key)
{
    return (unsigned) (((uintptr_t) key >> 4) * 0x9e3779b1u >> 8) % BT_VM_FIELDS_CAP;
}

void bt_vm_fields_init(lua_State *L, bt_vm_fields_t *f, const char *const *names)
{
    f->names = names;
    for (unsigned i = 0; names[i] != NULL; i++) {
        unsigned slot;
        const void *key;

        BT_BUG_ON(i >= BT_VM_FIELDS_CAP - 16);
        lua_pushstring(L, names[i]);
        key = lua_topointer(L, -1);
        luaL_ref(L, LUA_REGISTRYINDEX); /* keeps the interned string where it is */
        for (slot = key_slot(key); f->keys[slot] != NULL; slot = (slot + 1) % BT_VM_FIELDS_CAP)
            ;
        f->keys[slot] = key;
        f->ids[slot] = (unsigned char) i;
    }
}

int bt_vm_fields_find(lua_State *L, const bt_vm_fields_t *f, int idx)
{
    const void *key = lua_topointer(L, idx); /* of what is no string: another object's */

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

bool bt_vm_is_named(lua_State *L, const char *const *names, int idx)
{
    for (; lua_type(L, idx) == LUA_TSTRING && *names != NULL; names++)
        if (bt_str_eq(bt_vm_str(L, idx), bt_str(*names)))
            return true;
    return false;
}

void bt_vm_check_keys(lua_State *L, const char *what, const char *const *names, int idx)
{
    for (lua_pushnil(L); lua_next(L, idx) != 0; lua_pop(L, 1))
        if (!bt_vm_is_named(L, names, lua_gettop(L) - 1))
            bt_vm_unknown(L, what, names, lua_gettop(L) - 1);
}
