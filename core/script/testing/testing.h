/* testing.h - policies, fleets and requests for specs written in Lua. Not for the gateway itself.
 *
 * Owner: an ordinary Lua state, with the whole library (a spec runner); each policy keeps its own closed VM.
 * Life:  objects go with the Lua state.
 * Flow:  fleet{worker...}, policy(name), policy:plan(fleet, req) -> names: the real loader, native functions and checks run. Loads
 *        are set by the spec. lua/baton/testing.lua makes it comfortable.
 * Cost:  not measured; each call with a changed fleet makes the lists anew.
 */
#ifndef BT_SCRIPT_TESTING_H
#define BT_SCRIPT_TESTING_H

struct lua_State;

/* A lua_CFunction that pushes the module table, for package.preload["baton_testing"]. */
int bt_testing_open(struct lua_State *L);
/* Runs a script in a whole interpreter that has it, and baton.testing; NULL = busted, as this machine has it. Exit status. */
int bt_testing_run(const char *script, int argc, const char *const *argv);

#endif
