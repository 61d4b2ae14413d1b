/* How it works: an ordinary LuaJIT with its whole library and compiler. Only what baton_testing loads is closed in; a spec may do
 * what its author may. Memory comes from malloc, so that the sanitizers see it. */
#include "script/testing/testing.h"

#include "script/vm/embedded.h"
#include "script/vm/vm.h"

#include <stdio.h>
#include <stdlib.h>

static void *alloc(void *user, void *ptr, size_t old_size, size_t new_size)
{
    (void) user;
    (void) old_size;
    if (new_size != 0)
        return realloc(ptr, new_size);
    free(ptr);
    return NULL;
}

static void set_args(lua_State *L, const char *script, int argc, const char *const *argv)
{
    lua_createtable(L, argc, 1);
    lua_pushstring(L, script);
    lua_rawseti(L, -2, 0);
    for (int i = 0; i < argc; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setglobal(L, "arg");
}

static int preload(lua_State *L)
{
    const struct bt_embedded *file = bt_vm_embedded("lua/baton/testing.lua");

    lua_getglobal(L, "package");
    lua_getfield(L, -1, "preload");
    lua_pushcfunction(L, bt_testing_open);
    lua_setfield(L, -2, "baton_testing");
    if (file == NULL || luaL_loadbuffer(L, file->data, file->size, "@lua/baton/testing.lua") != 0)
        return -1;
    lua_setfield(L, -2, "baton.testing");
    lua_pop(L, 2);
    return 0;
}

static int load_script(lua_State *L, const char *script)
{
    static const char busted[] =
        "local ok, run = pcall(require, 'busted.runner')\n"
        "if not ok then error('busted is not here: install the Debian package lua-busted', 0) end\n"
        "run { standalone = false }";

    return script != NULL ? luaL_loadfile(L, script)
                          : luaL_loadbuffer(L, busted, sizeof busted - 1, "=busted");
}

int bt_testing_run(const char *script, int argc, const char *const *argv)
{
    lua_State *L = lua_newstate(alloc, NULL);
    int rc;

    if (L == NULL) {
        fprintf(stderr, "baton: no memory for an interpreter\n");
        return 1;
    }
    luaL_openlibs(L);
    set_args(L, script != NULL ? script : "baton", argc, argv);
    rc = preload(L);
    if (rc == 0)
        rc = load_script(L, script);
    for (int i = 0; rc == 0 && i < argc; i++)
        lua_pushstring(L, argv[i]);
    if (rc == 0)
        rc = lua_pcall(L, argc, 0, 0);
    if (rc != 0 && lua_isstring(L, -1))
        fprintf(stderr, "baton: %s\n", lua_tostring(L, -1));
    lua_close(L);
    return rc != 0;
}
