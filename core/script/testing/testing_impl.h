/* testing_impl.h - what the files behind testing.h share. Private to core/script.
 *
 * Owner: a spec's Lua state.
 * Life:  fleets and policies are its userdata.
 * Flow:  testing.c makes policies, testing_workers.c fleets, testing_value.c what goes to and fro, testing_hooks.c calls the
 *        hooks, testing_serve.c answers what they wait for; testing_api.c tells what a policy can reach.
 * Cost:  see testing.h.
 */
#ifndef BT_SCRIPT_TESTING_IMPL_H
#define BT_SCRIPT_TESTING_IMPL_H

#include "http/message.h"
#include "script/policy/policy_run.h"

#include <lauxlib.h>
#include <lua.h>

#define BT_TESTING_HEADERS_MAX 64
#define BT_TESTING_SCORES_MAX 1024

struct bt_testing_workers {
    bt_worker_set_t sets[BT_LIST_COUNT]; /* the lists of the view; SINGLE borrows from the others */
    uint64_t key;
    char pool[64]; /* view.pool */
    bt_pool_advice_t advice;
};

struct bt_testing_head {
    bt_head_t head;
    bt_header_t headers[BT_TESTING_HEADERS_MAX];
};

/* A request made from a spec's table, which must stay on the stack as long as it is used. */
struct bt_testing_request {
    bt_policy_request_t req;
    bt_identity_t identity;
    struct bt_testing_head head;
    bt_policy_trace_t trace;
    struct bt_policy_score scores[BT_TESTING_SCORES_MAX];
};

/* ---- testing_value.c ---- */
bt_str_t bt_testing_member(lua_State *L, int idx, const char *key); /* BT_STR_NULL = nil; raises */
lua_Number bt_testing_number(lua_State *L, int idx, const char *key, lua_Number otherwise);
bool bt_testing_flag(lua_State *L, int idx, const char *key);
/* Plain data at idx as a tree for bt_value_free; NULL of nil. Raises. */
bt_value_t *bt_testing_value(lua_State *L, int idx);
/* Its member `headers`; raises. */
void bt_testing_read_head(lua_State *L, int idx, struct bt_testing_head *out);
/* The request described by the table at idx; raises. */
void bt_testing_request(lua_State *L, int idx, struct bt_testing_request *out);

/* ---- testing_workers.c ---- */
struct bt_testing_workers *bt_testing_workers_check(lua_State *L, int idx);
bt_policy_view_t bt_testing_view(const struct bt_testing_workers *f);
bt_worker_t *bt_testing_worker(lua_State *L, const struct bt_testing_workers *f,
                               int idx); /* raises */
/* The worker with this id, or NULL. */
const bt_worker_t *bt_testing_by_id(const struct bt_testing_workers *f, uint64_t id);
int bt_testing_workers_new(lua_State *L); /* fleet() */
void bt_testing_workers_open(lua_State *L);

/* ---- testing.c ---- */
bt_policy_t *bt_testing_policy_check(lua_State *L);
void bt_testing_class(lua_State *L, const char *name, lua_CFunction gc, const luaL_Reg *methods);
#define BT_TESTING_POLICY "baton_testing.policy"

/* ---- testing_hooks.c ---- */
extern const luaL_Reg bt_testing_policy_methods[];

/* ---- testing_serve.c ---- */
/* serve(function): answers what hooks wait for. */
int bt_testing_serve(lua_State *L);
/* For bt_policy_spec_t.serve; user is the Lua state. What it leaves on that stack must stay there until start is over. */
int bt_testing_serve_start(void *user, const bt_hook_op_t *hook_op, bt_hook_answer_t *answer_p);
/* For bt_policy_set_sender; user is the Lua state. */
void bt_testing_send(void *user, const bt_hook_op_t *hook_op);
void bt_testing_raise_mistake(
    lua_State *L); /* that serving a start, or what is sent, has met, if any */
/* Serves until the hook is over, and answers as it ended; rc is how it began. Raises what the spec's function raises. */
int bt_testing_drive(lua_State *L, bt_policy_run_t *run, int rc);

/* ---- testing_api.c ---- */
int bt_testing_api_names(lua_State *L);

#endif
