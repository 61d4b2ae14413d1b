/* dialect_impl.h - what dialect.c, leg_api.c and edit_api.c share. Private to core/script.
 *
 * Owner: one set of dialects; one loop.
 * Life:  as bt_dialects_t; the fields of the running call only during bt_dialect_edit.
 * Flow:  bt_dialect_edit fills `leg` and `edits`, Lua calls the C functions of leg_api.c and edit_api.c, which find them here.
 * Cost:  fields of `leg` are read when asked for; nothing is copied into tables beforehand.
 */
#ifndef BT_SCRIPT_DIALECT_IMPL_H
#define BT_SCRIPT_DIALECT_IMPL_H

#include "cluster/capability.h"
#include "script/dialect/dialect.h"
#include "script/dialect/forward.h"
#include "script/dialect/json_index.h"
#include "script/dialect/leg_template.h"
#include "script/vm/vm.h"

#define BT_DIALECTS_MAX 64
#define BT_DIALECT_ROUTES_MAX 32
#define BT_DIALECT_CONNECTORS_MAX 16

struct bt_dialect_file {
    bt_dialect_t pub; /* first: bt_dialect_t * and this are the same address */
    char *name;
    char *routes[BT_DIALECT_ROUTES_MAX];
    unsigned route_count; /* 0 = all paths */
    bool has_templates;
    bt_leg_templates_t templates[2]; /* of prefill and decode */
    /* Of a user's file only. */
    char *path; /* NULL = compiled in */
    char *connectors[BT_DIALECT_CONNECTORS_MAX];
    unsigned connector_count;
    enum bt_engine engine;
};

struct bt_dialects {
    bt_vm_t vm;
    struct bt_dialect_file *files[BT_DIALECTS_MAX];
    unsigned count;
    int enter_ref, leg_ref, edit_ref, has_ref, peer_refs[2];
    bt_vm_fields_t leg_fields, peer_fields;
    bt_stand_ins_t stand_ins;
    /* the running call */
    const bt_dialect_t *running;
    const bt_leg_view_t *leg; /* NULL = no call: the API refuses */
    bt_edits_t *edits;
    bt_json_index_t index;
    const bt_forward_t *forward; /* what it has said of the reply; NULL: nothing */
    bt_leg_templates_t *noting;  /* what it asks, where it runs for a template; else NULL */
    enum bt_dialect_verdict verdict;
    bt_str_t reason;
};

/* leg_api.c, edit_api.c: make the leg userdata and the edit table and keep them by reference. In protected mode. */
void bt_leg_api_open(lua_State *L, struct bt_dialects *d);
void bt_edit_api_open(lua_State *L, struct bt_dialects *d);
/* leg_api.c: whose leg function runs; raises where none does. */
struct bt_dialects *bt_dialect_running(lua_State *L);
const char *bt_dialect_type_name(enum bt_json_type type); /* as dialects see it; NULL: it is none */

#endif
