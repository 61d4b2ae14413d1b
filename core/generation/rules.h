/* rules.h - which pool and which policy a request is for, by a table of rules that is looked at before any Lua runs.
 *
 * Owner: shared by reference count (any thread); immutable once loaded.
 * Life:  load, on any thread -> part of a policy bundle -> every loop that serves its generation matches with it.
 * Flow:  rules in file order; the first whose match fits decides pool, policy and params. A rule that only has a shadow applies
 *        and lets the next ones go on. No rule fits: the pool by model, with its own policies.
 * Cost:  linear in the rules, no allocation, a few compares a rule; headers are looked up only by rules that name them.
 *
 * The file is Lua data, read like baton.lua; pushed rules run in the policies' sandbox (script/value/luatable.h):
 *   return { api = 1, rules = {
 *     { name = "long", match = { path = "/v1/chat*", model = "llama-*", tenant = { "acme", "globex" }, stream = true,
 *                                headers = { ["x-tier"] = "gold" }, prompt_tokens = { min = 8000, max = 100000 } },
 *       pool = "long", policy = "length_buckets", params = { short = 512 } },
 *     { name = "canary", match = { model = "llama-*" }, sticky = "session",      -- or "tenant", "header:x-user"; else chance
 *       split = { { weight = 95, policy = "least_load" }, { weight = 5, policy = "candidate", pool = "next" } } },
 *     { name = "try", shadow = { policy = "candidate", params = {}, sample = 0.1 } },
 *   } }
 * Text patterns are exact, or end in "*"; a list means any of them; an empty or missing match fits all.
 */
#ifndef BT_GENERATION_RULES_H
#define BT_GENERATION_RULES_H

#include "base/text.h"
#include "script/policy/policy.h"
#include "script/value/luatable.h"

#define BT_RULES_MAX 1024
#define BT_RULE_TARGETS_MAX 32

typedef struct bt_rules bt_rules_t;

/* Where one rule, or one part of its split, sends a request. */
typedef struct bt_rule_target {
    const char *pool;         /* NULL = by model */
    const char *policy;       /* as asked for; NULL = the pool's own */
    const bt_value_t *params; /* NULL = none given */
    int variant; /* index of policy + params among the rules' variants; -1 = the pool's own policies */
    unsigned weight;
} bt_rule_target_t;

typedef struct bt_rule_match {
    const char *rule; /* name of the rule that decided; NULL = none did */
    const bt_rule_target_t *target;
    const char *shadow_rule;               /* NULL = nobody decides beside */
    const bt_rule_target_t *shadow_target; /* its variant is never -1 */
    double shadow_sample;                  /* 0 .. 1 of the requests that it fits */
} bt_rule_match_t;

/* err: "rules.lua: rules[2].match.prompt_tokens.min: a number is needed, not a string". BT_E_CONFIG. */
int bt_rules_load(bt_rules_t **rules_p, const char *path, char *err, size_t err_size);
/* Pushed rules: no access to the environment or to files of this machine. Messages begin with `name`. */
int bt_rules_parse(bt_rules_t **rules_p, const char *name, bt_str_t text, char *err,
                   size_t err_size);
bt_rules_t *bt_rules_ref(bt_rules_t *rules); /* NULL is fine */
void bt_rules_unref(bt_rules_t *rules);      /* likewise */
unsigned bt_rules_count(const bt_rules_t *rules);
/* Every policy + params that some rule asks for: what a bundle has a VM for beside the pools' own. NULL after the last.
 * name_p: "rules:canary/2", the bundle's name for it. Both may be NULL. */
const bt_rule_target_t *bt_rules_variant(const bt_rules_t *rules, unsigned i, const char **name_p,
                                         bool *is_shadow_p);
/* Same file content: then nothing has to be rolled out. */
bool bt_rules_same(const bt_rules_t *a, const bt_rules_t *b);
/* Does every pool that a rule names exist? names: NULL-terminated. err as above, with the nearest name. BT_E_CONFIG. */
int bt_rules_check_pools(const bt_rules_t *rules, const char *const *names, char *err,
                         size_t err_size);
/* Where in the file variant i is asked for: "rules[2].split[1]". */
void bt_rules_variant_place(const bt_rules_t *rules, unsigned i, char *out, size_t size);
/* A JSON list: every rule as the file says it, and how often each of its targets was taken since the file was read. */
void bt_rules_describe(const bt_rules_t *rules, bt_text_t *out);
/* What the file says, without counters. rules NULL: nothing. */
void bt_rules_fingerprint(const bt_rules_t *rules, bt_text_t *out);
/* req->prompt_tokens must be set. Everything in *match_p lives as long as the rules. rules NULL: nothing fits. */
void bt_rules_match(const bt_rules_t *rules, const bt_policy_request_t *req,
                    bt_rule_match_t *match_p);

#endif
