/* How it works: a policy file runs once, at load, and returns a closed table; its hooks are kept by reference. What can be said
 * about the table without running more of it is said here; hooks.c and policy_run.c call, renew.c deals with failures.
 *
 * Policy code never runs compiled: a hook that stops a runaway is not seen by compiled code, and at this size the
 * interpreter costs little. What is hot is in native_*.c. */
#include "script/native/native.h"
#include "script/policy/policy_impl.h"
#include "script/view/request_view.h"

#include "base/err.h"
#include "script/policy/policy_source.h"
#include "script/shared/rate.h"
#include "script/shared/shared_local.h"
#include "script/value/plain.h"

#include <stdio.h>
#include <stdlib.h>

#define VM_CAP_BYTES ((size_t) 64 << 20) /* ten thousand workers need about three MiB */
#define API_VERSION 2

const char *const bt_policy_members[] = {
    "api",     "name",     "version",     "params",       "start",    "admit",     "route",
    "enqueue", "plan",     "plan_decode", "plan_prefill", "fallback", "recompute", "observe",
    "tick",    "handover", NULL};

/* ---- the policy's table (stack index 1) ---- */

static char *string_member(lua_State *L, const char *key)
{
    char *copy;

    lua_getfield(L, 1, key);
    if (lua_type(L, -1) != LUA_TSTRING || lua_objlen(L, -1) == 0)
        luaL_error(L, "%s must be a string", key);
    copy = bt_str_dup(bt_vm_str(L, -1));
    lua_pop(L, 1);
    if (copy == NULL)
        luaL_error(L, "out of memory");
    return copy;
}

static void check_api(lua_State *L)
{
    lua_getfield(L, 1, "api");
    if (lua_type(L, -1) == LUA_TNUMBER && lua_tonumber(L, -1) == 1)
        luaL_error(L,
                   "a policy for api 1, and this is api %d: its view.single is view.hybrid now, "
                   "and view.single holds all who can serve alone; then say api = %d",
                   API_VERSION, API_VERSION);
    if (lua_type(L, -1) != LUA_TNUMBER || lua_tonumber(L, -1) != API_VERSION)
        luaL_error(L, "api must be %d", API_VERSION);
    lua_pop(L, 1);
}

/* load_chunk(chunk) */
static int load_chunk(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);

    lua_call(L, 0, 1);
    if (!lua_istable(L, 1))
        return luaL_error(L, "a policy must return a table, not a %s value", luaL_typename(L, 1));
    bt_vm_check_keys(L, "member of a policy", bt_policy_members, 1);
    check_api(L);
    policy->name = string_member(L, "name");
    policy->version = string_member(L, "version");
    bt_hooks_read(L, policy);
    lua_getfield(L, 1, "params");
    if (!lua_isnil(L, -1))
        bt_plain_read(L, -1, "params", &policy->params.declared);
    return 0;
}

/* ---- life ---- */

static int open_api(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);

    bt_view_open(L, policy);
    bt_request_view_open(L, policy);
    bt_native_open(L, policy);
    bt_choice_open(L, policy);
    bt_hooks_open(L, policy);
    bt_runs_open(L, policy);
    return 0;
}

static bool is_word_byte(char c)
{
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* What a message is about: the 'word' it quotes, or the last one of "params.weight.maxx: ...". */
static bt_str_t subject_of(const char *why)
{
    const char *quote = strchr(why, '\''), *end = quote != NULL ? strchr(quote + 1, '\'') : NULL,
               *from;

    if (strncmp(why, "params.", 7) == 0) {
        end = why + strcspn(why, ": ");
        for (from = end; from > why && is_word_byte(from[-1]);)
            from--;
        return (bt_str_t){from, (size_t) (end - from)};
    }
    return end != NULL ? (bt_str_t){quote + 1, (size_t) (end - quote - 1)} : BT_STR_NULL;
}

/* The first line that has the word; 0 = none. Our checks look at tables, which know no lines. */
static unsigned line_of(const bt_policy_t *policy, bt_str_t word)
{
    const char *end = policy->code + policy->code_n;
    unsigned line = 1;

    for (const char *p = policy->code; word.n > 0 && p + word.n <= end; p++) {
        if (*p == '\n')
            line++;
        if (memcmp(p, word.p, word.n) == 0 && (p == policy->code || !is_word_byte(p[-1])) &&
            (p + word.n == end || !is_word_byte(p[word.n])))
            return line;
    }
    return 0;
}

/* Errors of the file's own code carry file:line; those of our checks get the file, and the line where they can. */
static void name_file(const bt_policy_t *policy, const char *why, char *err, size_t err_size)
{
    unsigned line = line_of(policy, subject_of(why));

    if (strstr(why, ".lua:") != NULL)
        snprintf(err, err_size, "%s", why);
    else if (line > 0)
        snprintf(err, err_size, "%s:%u: %s", policy->path, line, why);
    else
        snprintf(err, err_size, "%s: %s", policy->path, why);
}

static int run_file(bt_policy_t *policy, char *err, size_t err_size)
{
    char chunk[520], why[400];
    int rc;

    snprintf(chunk, sizeof(chunk), "@%s", policy->path);
    lua_pushcfunction(policy->vm.L, load_chunk);
    rc = bt_vm_load(&policy->vm, (bt_str_t){policy->code, policy->code_n}, chunk, false, err,
                    err_size);
    if (rc != 0)
        return rc;
    if (bt_hook_run(policy, BT_HOOK_LOAD, 1, why, sizeof(why)) == BT_VM_DONE)
        return 0;
    name_file(policy, why, err, err_size);
    return BT_E_POLICY;
}

static int take_params(bt_policy_t *policy, const bt_value_t *values, char *err, size_t err_size)
{
    bt_value_t *declared = policy->params.declared;
    char why[400];
    int rc = bt_params_declare(&policy->params, declared, why, sizeof(why));

    if (rc == 0)
        rc = bt_params_set(&policy->params, values, why, sizeof(why));
    if (rc != 0)
        name_file(policy, why, err, err_size);
    return rc;
}

static int open_vm(bt_policy_t *policy, char *err, size_t err_size)
{
    int rc = bt_vm_open(&policy->vm, policy, VM_CAP_BYTES, BT_VM_GUARDED);

    if (rc != 0)
        return rc;
    rc = bt_vm_check(&policy->vm, err, err_size);
    if (rc != 0)
        return rc;
    lua_pushcfunction(policy->vm.L, open_api);
    return bt_vm_call(&policy->vm, 0, err, err_size) == 0 ? 0 : BT_E_NOMEM;
}

/* A shadow's names are those of its file: the same on every loop, and after a reload. */
static void name_shadow(bt_policy_t *policy, bool is_shadow)
{
    if (is_shadow)
        snprintf(policy->shadow, sizeof(policy->shadow),
                 "~%08x:", (unsigned) bt_str_hash(bt_str(policy->path)));
}

static int open_names(bt_policy_t *policy, bool is_dry_run)
{
    policy->is_dry_run = is_dry_run;
    policy->counters = is_dry_run ? bt_shared_local_new() : bt_shared_local_process();
    policy->rates = is_dry_run ? NULL : bt_rates_process();
    return policy->counters != NULL ? 0 : BT_E_NOMEM;
}

static void close_names(bt_policy_t *policy)
{
    if (!policy->is_dry_run)
        return;
    bt_shared_local_free(policy->counters);
    bt_rates_free(policy->rates);
}

static int fill(bt_policy_t *policy, const bt_policy_spec_t *spec, char *err, size_t err_size)
{
    int rc = 0;

    policy->path = strdup(spec->path);
    policy->code = bt_str_dup(spec->code);
    policy->code_n = spec->code.n;
    policy->serve = spec->serve;
    policy->serve_user = spec->serve_user;
    policy->epoch = bt_policy_next_epoch();
    if (policy->path == NULL || policy->code == NULL || open_names(policy, spec->is_dry_run) != 0)
        return BT_E_NOMEM;
    name_shadow(policy, spec->is_shadow);
    rc = open_vm(policy, err, err_size);
    if (rc == 0)
        rc = run_file(policy, err, err_size);
    if (rc == 0)
        rc = take_params(policy, spec->params, err, err_size);
    return rc == 0 ? bt_hooks_start(policy, spec->old, err, err_size) : rc;
}

int bt_policy_make(bt_policy_t **policy_p, const bt_policy_spec_t *spec, char *err, size_t err_size)
{
    bt_policy_t *policy = calloc(1, sizeof(*policy));
    int rc = BT_E_NOMEM;

    snprintf(err, err_size, "%s: out of memory", spec->path);
    if (policy == NULL)
        return rc;
    if (bt_watchdog_start() != 0) {
        free(policy);
        return rc;
    }
    rc = fill(policy, spec, err, err_size);
    if (rc == 0)
        *policy_p = policy;
    else
        bt_policy_free(policy);
    return rc;
}

void bt_policy_free(bt_policy_t *policy)
{
    if (policy == NULL)
        return;
    bt_renewal_end(policy);
    bt_vm_close(&policy->vm);
    for (unsigned i = 0; i < policy->class_count; i++)
        free(policy->classes[i]);
    free(policy->name);
    free(policy->version);
    free(policy->path);
    free(policy->code);
    bt_params_fini(&policy->params);
    bt_value_free(policy->call.data);
    bt_value_free(policy->json.tree);
    bt_text_fini(&policy->json.text);
    bt_text_fini(&policy->cached);
    close_names(policy);
    free(policy);
    bt_watchdog_stop();
}

const char *bt_policy_name(const bt_policy_t *policy)
{
    return policy->name;
}

const char *bt_policy_version(const bt_policy_t *policy)
{
    return policy->version;
}

bool bt_policy_has_entry(const bt_policy_t *policy)
{
    return policy->hook_refs[BT_HOOK_ADMIT] != LUA_NOREF ||
           policy->hook_refs[BT_HOOK_ROUTE] != LUA_NOREF;
}

bool bt_policy_has_enqueue(const bt_policy_t *policy)
{
    return policy->hook_refs[BT_HOOK_ENQUEUE] != LUA_NOREF;
}

bool bt_policy_has_hook(const bt_policy_t *policy, const char *name)
{
    for (int hook = BT_HOOK_START; hook < BT_HOOK_COUNT; hook++)
        if (strcmp(bt_hook_name((enum bt_policy_hook) hook), name) == 0)
            return policy->hook_refs[hook] != LUA_NOREF;
    return false;
}

const char *bt_policy_hook_at(const bt_policy_t *policy, unsigned i)
{
    for (int hook = BT_HOOK_START; hook < BT_HOOK_COUNT; hook++)
        if (policy->hook_refs[hook] != LUA_NOREF && i-- == 0)
            return bt_hook_name((enum bt_policy_hook) hook);
    return NULL;
}

const char *bt_policy_param_at(const bt_policy_t *policy, unsigned i)
{
    return i < policy->params.count ? policy->params.items[i].name : NULL;
}

const char *bt_policy_error(const bt_policy_t *policy)
{
    return policy->error;
}

bool bt_policy_predicted(const bt_policy_t *policy, const bt_worker_t *w, uint64_t *tokens_p)
{
    bt_kv_hit_t hit;

    if (policy->native == NULL || !bt_prefix_exact(policy, w, &hit))
        return false;
    *tokens_p = hit.tokens;
    return true;
}

const bt_policy_stats_t *bt_policy_stats(const bt_policy_t *policy)
{
    return &policy->stats;
}

char *bt_policy_params_schema(const bt_policy_t *policy)
{
    bt_text_t out;

    bt_text_init(&out);
    bt_params_schema(&policy->params, policy->name, &out);
    if (!out.failed)
        return out.data;
    bt_text_fini(&out);
    return NULL;
}

/* ---- by name, and from a source ---- */

int bt_policy_load_source(bt_policy_t **policy_p, const bt_policy_source_t *source, char *err,
                          size_t err_size)
{
    const bt_policy_spec_t spec = {.path = source->path, .code = {source->code, source->size}};

    return bt_policy_make(policy_p, &spec, err, err_size);
}

int bt_policy_load(bt_policy_t **policy_p, const char *name, const char *policy_dir, char *err,
                   size_t err_size)
{
    bt_policy_source_t *source;
    int rc = bt_policy_source_open(&source, name, policy_dir, err, err_size);

    if (rc != 0)
        return rc;
    rc = bt_policy_load_source(policy_p, source, err, err_size);
    bt_policy_source_unref(source);
    return rc;
}
