/* dialect.h - dialects: Lua files that know the exact fields each connector needs on each leg.
 *
 * Owner: one VM per loop holds all dialects; trusted and compiled (users' own from --dialect-dir run with the JIT off).
 * Life:  loaded at loop start; the struct bt_dialect is constant after that.
 * Flow:  dispatch fills a bt_leg_view, calls bt_dialect_edit once a leg, gets edits (or a refusal with a reason).
 * Cost:  one lua_pcall a leg, none for a template; strings that Lua makes are copied into the leg's arena.
 *
 * A dialect file returns:
 *   { name = "nixl", kind = "handoff" | "bootstrap" | "sequence" | "trigger", rid = bool, room = bool, batch = bool,
 *     release = bool, abort_route = bool, learns = bool, gateway_managed = bool, decode_first = bool,
 *     same_rank = bool, templates = bool, first_token = bool, prompt_logprobs = "sglang" | "vllm" or nil,
 *     routes = { "/v1/completions", ... } or nil for all, prefill = function(leg, edit), decode = function(leg, edit) }
 *     A user's file also: connectors = { "MyConnector", ... }, engine = "vllm" or another, single = function(leg, edit).
 *   kind sequence: P with one token, then D, nothing of P's reply is needed (shared_cache).
 *   kind trigger: D first, with leg.metaserver; its engine calls that URL, and P's leg function finds what it said as edit.reply.
 *   batch = true: a list of prompts goes in one leg, with a room per prompt; else every list is fanned out.
 *   single: its presence says that a worker of a pair computes a whole request without a partner, and the policy may ask for that. It takes
 *   out of the client's body what such a worker would read as the connector's own; leg.decode is the worker; leg.prefill raises.
 *   rank = true: decode's function looks at leg.prefill.dp_rank; a worker with several has one then.
 *   check: a function(leg, edit) of kind "bootstrap" that looks at prefill's reply (edit.reply) when it has come before decode's first
 *   token; nil, reason: its KV will not come, decode is stopped and the attempt fails. It edits nothing.
 *   decode_first = true: prefill's function looks at leg.decode, so a plan may not leave decode open.
 *   templates = true: prefill and decode do nothing with leg.request_id, rid and room but put them into text, and depend on nothing but
 *   leg. They then run once for each kind of leg, and what they said serves the next (not one of a list). Of a reply they may say what is
 *   wanted by edit.forward; one that looks into it runs for each leg that has one.
 *   prompt_logprobs = "sglang" | "vllm": prefill computes the whole prompt and says what is asked of its tokens, in that engine's form; it is
 *   put into decode's answer. Without it such requests are not split.
 *   same_rank = true: where there are several data-parallel ranks, prefill's is chosen first and decode gets the same.
 *   first_token = true: decode's stream begins with the token whose text prefill's reply has, so that it may go out before.
 *   gateway_managed = true: the workers' transfer agents are connected to the gateway, which opens each room at both sides and may give a
 *   waiting decode another prefill, with a room of its own: then leg.room is not the same on both legs.
 *   edit.set(key, raw_json) edit.set_in(object, key, raw_json) edit.remove(key) edit.remove_in(object, key)
 *   edit.header(name, value|nil) edit.str(s) -> JSON string text
 *   edit.reply(path...) -> type, value | count   looks into the hand-off reply (strings, numbers, booleans; count for
 *                          arrays and objects)
 *   edit.scalars(name | {path} | nil, member...) -> the values of these members of that object of the reply (nil: of all of
 *                          it); nil for what is no string, number or boolean
 *   edit.raw(path...) -> the JSON text there
 *   edit.copy(key, name | {path})  sets key to that value of the reply, byte for byte; nil when it is absent or null
 *   edit.splice(key, name | {path} | nil, {member = raw_json, ...})  sets key to that object of the reply (nil: to all of it),
 *                          byte for byte, with the given members replaced; nil when it is none
 *   edit.forward(key, name | nil, {rule, ...})  sets key to that object of the reply (nil: to all of it) once the function has returned and
 *                          each rule holds; else the leg is refused by the rule's reason. A rule is {member, test[, text]}: "true", "text",
 *                          "number", "array", "blocks" (a list with a number, or a list that is not empty), "request_id" (text, and then this
 *                          leg's id; without text anywhere), "prompt_tokens" (if both are known). instead = {text = raw_json} in a rule: what
 *                          stands for such a text. Beside the rules: set = {member = raw_json}, missing = "recompute" (decode of a hand-off,
 *                          else refused), what = the reason's first words (name)
 *   A leg function returns nothing, or nil, reason -> the attempt fails with BT_E_HANDOFF/BT_E_DIALECT and that reason;
 *   decode of a hand-off may return "recompute" (decode computes the prompt itself; counted), or "ends_early": the same, but
 *   prefill has done right: its token has ended the text, so that there is nothing to hand on.
 */
#ifndef BT_SCRIPT_DIALECT_H
#define BT_SCRIPT_DIALECT_H

#include "script/dialect/edits.h"
#include "script/dialect/leg_view.h"

enum bt_plan_kind {
    BT_PLAN_NONE,
    BT_PLAN_SINGLE,
    BT_PLAN_HANDOFF,
    BT_PLAN_BOOTSTRAP,
    BT_PLAN_TRIGGER
};
const char *bt_plan_kind_name(enum bt_plan_kind kind); /* "single", "handoff", ... */

/* In whose form prefill's answer tells log probabilities of the prompt, which decode then need not know. */
enum bt_dialect_logprobs {
    BT_DIALECT_LOGPROBS_NONE,
    BT_DIALECT_LOGPROBS_SGLANG,
    BT_DIALECT_LOGPROBS_VLLM
};

typedef struct bt_dialects bt_dialects_t;

typedef struct bt_dialect {
    const char *name;
    enum bt_plan_kind kind; /* HANDOFF (also for sequence), BOOTSTRAP or TRIGGER */
    bool needs_reply;       /* hand-off whose decode leg is built from prefill's reply */
    bool needs_room;        /* mint rooms */
    bool needs_rid;         /* own rid in the body, so that abort works */
    bool has_release;       /* hand-off that is given up is told to decode (release leg) */
    bool has_abort_route;   /* POST /abort_request {"rid": ...} */
    bool batch;
    bool needs_decode_first; /* hand-off whose prefill leg tells of decode: no late choice */
    bool needs_same_rank;    /* decode goes to the data-parallel rank that prefill has */
    bool learns;             /* nixl_push: needs parameters that the first hand-off reply teaches */
    bool needs_rank;         /* prefill's data-parallel rank is chosen before */
    bool has_check;          /* looks at prefill's reply while decode waits for the KV */
    enum bt_dialect_logprobs prompt_logprobs;
    bool has_single;         /* a worker of its pairs serves alone, too */
    bool has_first_token;    /* decode's stream begins with the text of prefill's reply */
    bool is_gateway_managed; /* baton: rooms are opened at the workers' agents (core/transfer) */
    bt_dialects_t *home;
    int leg_refs[BT_DIALECT_LEGS]; /* Lua registry */
} bt_dialect_t;

/* Loads the embedded dialects, then *.lua of user_dir (NULL = none; same name replaces). err: one line with file:line. */
int bt_dialects_new(bt_dialects_t **dialects_p, const char *user_dir, char *err, size_t err_size);
/* The connectors that user_dir's files serve become known to cluster/capability.h; before workers
 * are made of names. err: one line with the file. */
int bt_dialects_register(const char *user_dir, char *err, size_t err_size);
void bt_dialects_free(bt_dialects_t *d);
const bt_dialect_t *bt_dialects_find(const bt_dialects_t *d, const char *name);
/* True when the dialect can carry this path in PD mode. */
bool bt_dialect_serves(const bt_dialect_t *dialect, bt_str_t path);
/* edits_p: initialised with the leg's arena. REFUSED, BROKEN: reason (arena string) says why. */
enum bt_dialect_verdict bt_dialect_edit(const bt_dialect_t *dialect, const bt_leg_view_t *leg,
                                        bt_edits_t *edits_p, bt_str_t *reason_p);

#endif
