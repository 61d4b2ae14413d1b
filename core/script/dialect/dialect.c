/* How it works: one VM holds all dialects. Embedded files are trusted; users' files run with the JIT off like policies.
 * A file is read once into a bt_dialect_t; from then on a leg costs one lua_pcall of enter(), which calls the leg function
 * with the userdata of leg_api.c and edit_api.c and reads its answer inside the protection, so that no error can pass it. */
#include "script/dialect/dialect_impl.h"

#include "base/err.h"
#include "script/vm/embedded.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#define VM_CAP_BYTES ((size_t) 256 << 20) /* a reply of 4 MiB and its pieces fit many times */
#define EMBEDDED_PREFIX "lua/baton/dialects/"

static const char *const file_keys[] = {
    "name",       "kind",      "routes",          "prefill",     "decode", "rid",
    "room",       "batch",     "release",         "abort_route", "learns", "gateway_managed",
    "connectors", "engine",    "decode_first",    "single",      "check",  "rank",
    "same_rank",  "templates", "prompt_logprobs", "first_token", NULL};

const char *bt_plan_kind_name(enum bt_plan_kind kind)
{
    static const char *const names[] = {"none", "single", "handoff", "bootstrap", "trigger"};

    return (unsigned) kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "none";
}

/* ---- reading a dialect file's table (at stack index 1) ---- */

static bool flag(lua_State *L, const char *key)
{
    bool value;

    lua_getfield(L, 1, key);
    if (!lua_isnil(L, -1) && !lua_isboolean(L, -1))
        luaL_error(L, "%s must be true or false", key);
    value = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return value;
}

static void read_prompt_logprobs(lua_State *L, bt_dialect_t *pub)
{
    const char *form;

    lua_getfield(L, 1, "prompt_logprobs");
    form = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    if (strcmp(form, "sglang") == 0)
        pub->prompt_logprobs = BT_DIALECT_LOGPROBS_SGLANG;
    else if (strcmp(form, "vllm") == 0)
        pub->prompt_logprobs = BT_DIALECT_LOGPROBS_VLLM;
    else if (!lua_isnil(L, -1))
        luaL_error(L, "prompt_logprobs must be \"sglang\" or \"vllm\"");
    lua_pop(L, 1);
}

static int function_ref(lua_State *L, const char *key)
{
    lua_getfield(L, 1, key);
    if (!lua_isfunction(L, -1))
        luaL_error(L, "%s must be a function(leg, edit)", key);
    return luaL_ref(L, LUA_REGISTRYINDEX);
}

static void read_kind(lua_State *L, bt_dialect_t *pub)
{
    const char *kind;

    lua_getfield(L, 1, "kind");
    kind = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    if (strcmp(kind, "handoff") == 0 || strcmp(kind, "sequence") == 0)
        pub->kind = BT_PLAN_HANDOFF;
    else if (strcmp(kind, "bootstrap") == 0)
        pub->kind = BT_PLAN_BOOTSTRAP;
    else if (strcmp(kind, "trigger") == 0)
        pub->kind = BT_PLAN_TRIGGER;
    else
        luaL_error(L, "kind must be \"handoff\", \"bootstrap\", \"sequence\" or \"trigger\"");
    pub->needs_reply = strcmp(kind, "handoff") == 0;
    lua_pop(L, 1);
}

static void read_routes(lua_State *L, struct bt_dialect_file *file)
{
    size_t count;

    lua_getfield(L, 1, "routes");
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        return;
    }
    count = lua_istable(L, -1) ? lua_objlen(L, -1) : 0;
    if (count == 0 || count > BT_DIALECT_ROUTES_MAX)
        luaL_error(L, "routes must list 1 to %d paths", BT_DIALECT_ROUTES_MAX);
    for (size_t i = 1; i <= count; i++, lua_pop(L, 1)) {
        lua_rawgeti(L, -1, (int) i);
        if (lua_type(L, -1) != LUA_TSTRING || *lua_tostring(L, -1) != '/')
            luaL_error(L, "routes must list paths that begin with '/'");
        file->routes[file->route_count] = bt_str_dup(bt_vm_str(L, -1));
        if (file->routes[file->route_count] == NULL)
            luaL_error(L, "out of memory");
        file->route_count++;
    }
    lua_pop(L, 1);
}

static void read_connectors(lua_State *L, struct bt_dialect_file *file)
{
    size_t count;

    lua_getfield(L, 1, "connectors");
    count = lua_istable(L, -1) ? lua_objlen(L, -1) : 0;
    if (!lua_isnil(L, -1) && (count == 0 || count > BT_DIALECT_CONNECTORS_MAX))
        luaL_error(L, "connectors must list 1 to %d names", BT_DIALECT_CONNECTORS_MAX);
    for (size_t i = 1; i <= count; i++, lua_pop(L, 1)) {
        lua_rawgeti(L, -1, (int) i);
        if (lua_type(L, -1) != LUA_TSTRING || lua_objlen(L, -1) == 0)
            luaL_error(L, "connectors must list names of the engines' connectors");
        file->connectors[file->connector_count] = bt_str_dup(bt_vm_str(L, -1));
        if (file->connectors[file->connector_count] == NULL)
            luaL_error(L, "out of memory");
        file->connector_count++;
    }
    lua_pop(L, 1);
}

static void read_engine(lua_State *L, struct bt_dialect_file *file)
{
    lua_getfield(L, 1, "engine");
    if (!lua_isnil(L, -1) &&
        (lua_type(L, -1) != LUA_TSTRING || bt_engine_parse(bt_vm_str(L, -1), &file->engine) < 0))
        luaL_error(L, "engine must be sglang, vllm, vllm_ascend, mindie or trtllm");
    lua_pop(L, 1);
}

/* Without a path it is compiled in: cluster/capability.c knows which of those serve alone. */
static void read_legs(lua_State *L, struct bt_dialect_file *file)
{
    bt_dialect_t *pub = &file->pub;

    pub->leg_refs[BT_DIALECT_PREFILL] = function_ref(L, "prefill");
    pub->leg_refs[BT_DIALECT_DECODE] = function_ref(L, "decode");
    lua_getfield(L, 1, "single");
    pub->has_single = !lua_isnil(L, -1);
    lua_pop(L, 1);
    if (pub->has_single)
        pub->leg_refs[BT_DIALECT_SINGLE] = function_ref(L, "single");
    lua_getfield(L, 1, "check");
    pub->has_check = !lua_isnil(L, -1);
    lua_pop(L, 1);
    if (pub->has_check)
        pub->leg_refs[BT_DIALECT_CHECK] = function_ref(L, "check");
}

static void read_file_table(lua_State *L, struct bt_dialect_file *file)
{
    bt_dialect_t *pub = &file->pub;

    if (!lua_istable(L, 1))
        luaL_error(L, "a dialect must return a table, not a %s value", luaL_typename(L, 1));
    bt_vm_check_keys(L, "member of a dialect", file_keys, 1);
    lua_getfield(L, 1, "name");
    if (lua_type(L, -1) != LUA_TSTRING || lua_objlen(L, -1) == 0)
        luaL_error(L, "name must be a string");
    file->name = bt_str_dup(bt_vm_str(L, -1));
    if (file->name == NULL)
        luaL_error(L, "out of memory");
    pub->name = file->name;
    read_kind(L, pub);
    pub->needs_room = flag(L, "room");
    pub->needs_rid = flag(L, "rid");
    pub->has_release = flag(L, "release");
    pub->has_abort_route = flag(L, "abort_route");
    pub->batch = flag(L, "batch");
    pub->needs_rank = flag(L, "rank");
    pub->learns = flag(L, "learns");
    pub->is_gateway_managed = flag(L, "gateway_managed");
    pub->needs_decode_first = flag(L, "decode_first");
    pub->needs_same_rank = flag(L, "same_rank");
    pub->has_first_token = flag(L, "first_token");
    file->has_templates = flag(L, "templates");
    read_prompt_logprobs(L, pub);
    if (pub->is_gateway_managed && strcmp(pub->name, "baton") != 0)
        luaL_error(L,
                   "gateway_managed is for the dialect \"baton\" alone: BatonConnector's agents");
    if (pub->is_gateway_managed &&
        (pub->kind != BT_PLAN_BOOTSTRAP || !pub->needs_room || pub->batch))
        luaL_error(L, "gateway_managed is for kind \"bootstrap\" with room and without batch");
    if (pub->kind == BT_PLAN_TRIGGER && (!pub->needs_room || pub->batch))
        luaL_error(L, "kind \"trigger\" needs room, and cannot be batch: one call a prompt");
    if (pub->prompt_logprobs != BT_DIALECT_LOGPROBS_NONE &&
        (pub->kind == BT_PLAN_TRIGGER || pub->is_gateway_managed))
        luaL_error(L,
                   "prompt_logprobs is not for kind \"trigger\", nor with gateway_managed: another "
                   "prefill may take over while decode's answer waits for the first one's reply; "
                   "take it out");
    if (pub->has_release && !pub->needs_reply)
        luaL_error(L, "release is for kind \"handoff\" only");
    if (pub->has_first_token && !pub->needs_reply)
        luaL_error(L, "first_token is for kind \"handoff\" only");
    lua_getfield(L, 1, "check");
    if (!lua_isnil(L, -1) && pub->kind != BT_PLAN_BOOTSTRAP)
        luaL_error(L, "check is for kind \"bootstrap\" only: decode of the others has the reply");
    lua_pop(L, 1);
    if (pub->has_abort_route && !pub->needs_rid)
        luaL_error(L, "abort_route needs rid");
    read_routes(L, file);
    read_connectors(L, file);
    read_engine(L, file);
    read_legs(L, file);
}

static void free_file(struct bt_dialect_file *file)
{
    if (file == NULL)
        return;
    for (unsigned i = 0; i < file->route_count; i++)
        free(file->routes[i]);
    for (unsigned i = 0; i < file->connector_count; i++)
        free(file->connectors[i]);
    for (unsigned i = 0; i < 2; i++)
        bt_leg_templates_fini(&file->templates[i]);
    free(file->path);
    free(file->name);
    free(file);
}

/* load_chunk(chunk): runs it and takes its table. Upvalue-free: the file under construction is the last slot. */
static int load_chunk(lua_State *L)
{
    struct bt_dialects *d = bt_vm_of(L)->owner;

    lua_call(L, 0, 1);
    read_file_table(L, d->files[d->count]);
    return 0;
}

/* ---- adding files ---- */

/* The file in slot `count` is whole: it takes the place of one with the same name, or stays. */
static void settle(struct bt_dialects *d)
{
    struct bt_dialect_file *fresh = d->files[d->count];

    for (unsigned i = 0; i < d->count; i++) {
        if (strcmp(d->files[i]->name, fresh->name) != 0)
            continue;
        free_file(d->files[i]);
        d->files[i] = fresh;
        d->files[d->count] = NULL;
        return;
    }
    d->count++;
}

static int add_text(struct bt_dialects *d, bt_str_t text, const char *path, bool trusted, char *err,
                    size_t err_size)
{
    char chunk[512], why[400];
    int rc;

    if (d->count == BT_DIALECTS_MAX) {
        snprintf(err, err_size, "%s: more than %d dialects", path, BT_DIALECTS_MAX - 1);
        return BT_E_LIMIT;
    }
    d->files[d->count] = calloc(1, sizeof(*d->files[0]));
    if (d->files[d->count] == NULL)
        return BT_E_NOMEM;
    d->files[d->count]->pub.home = d;
    d->files[d->count]->path = trusted ? NULL : bt_str_dup(bt_str(path));
    snprintf(chunk, sizeof(chunk), "@%s", path);
    lua_pushcfunction(d->vm.L, load_chunk);
    rc = bt_vm_load(&d->vm, text, chunk, trusted, err, err_size);
    if (rc != 0) {
        lua_pop(d->vm.L, 1);
    } else if (bt_vm_call(&d->vm, 1, why, sizeof(why)) != 0) {
        /* Errors of the file's own code carry path:line; those of the checks above get the path. */
        snprintf(err, err_size, "%s%s%s", strstr(why, path) != NULL ? "" : path,
                 strstr(why, path) != NULL ? "" : ": ", why);
        rc = BT_E_DIALECT;
    }
    if (rc == 0) {
        settle(d);
        return 0;
    }
    free_file(d->files[d->count]);
    d->files[d->count] = NULL;
    return rc;
}

static int add_embedded(struct bt_dialects *d, char *err, size_t err_size)
{
    for (const struct bt_embedded *file = bt_embedded_files; file->path != NULL; file++) {
        if (!bt_str_starts(bt_str(file->path), BT_STR(EMBEDDED_PREFIX)))
            continue;
        int rc = add_text(d, (bt_str_t){file->data, file->size}, file->path, true, err, err_size);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int is_lua_file(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name);

    return n > 4 && entry->d_name[0] != '.' && strcmp(entry->d_name + n - 4, ".lua") == 0;
}

static int add_user_file(struct bt_dialects *d, const char *dir, const char *name, char *err,
                         size_t err_size)
{
    char path[480], *text;
    size_t size;
    int rc;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    rc = bt_vm_read_file(path, &text, &size, err, err_size);
    if (rc != 0)
        return rc;
    rc = add_text(d, (bt_str_t){text, size}, path, false, err, err_size);
    free(text);
    return rc;
}

static int add_user_dir(struct bt_dialects *d, const char *dir, char *err, size_t err_size)
{
    struct dirent **entries = NULL;
    int count = scandir(dir, &entries, is_lua_file, alphasort), rc = 0;

    if (count < 0) {
        snprintf(err, err_size, "%s: cannot read the dialect folder", dir);
        return BT_E_CONFIG;
    }
    for (int i = 0; i < count; i++) {
        if (rc == 0)
            rc = add_user_file(d, dir, entries[i]->d_name, err, err_size);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

/* ---- one leg ---- */

/* What a leg function answered, at the top `count` of the stack. */
static void read_verdict(lua_State *L, struct bt_dialects *d)
{
    const bool has_reply = d->leg->which == BT_DIALECT_DECODE && d->leg->reply.n != 0;
    const bt_str_t word = lua_type(L, 1) == LUA_TSTRING ? bt_vm_str(L, 1) : BT_STR_NULL;

    if (!lua_toboolean(L, 1) && lua_type(L, 2) == LUA_TSTRING) {
        d->verdict = BT_DIALECT_REFUSED;
        d->reason = bt_arena_str(d->edits->arena, bt_vm_str(L, 2));
    } else if (has_reply && bt_str_eq(word, BT_STR("recompute"))) {
        d->verdict = BT_DIALECT_RECOMPUTE;
    } else if (has_reply && bt_str_eq(word, BT_STR("ends_early"))) {
        d->verdict = BT_DIALECT_ENDS_EARLY;
    } else if (!lua_isnoneornil(L, 1)) {
        luaL_error(L, "a leg function returns nothing, or nil and a reason, or (decode with "
                      "prefill's reply) \"recompute\" or \"ends_early\"");
    }
}

static int enter(lua_State *L)
{
    struct bt_dialects *d = bt_vm_of(L)->owner;

    bt_vm_push(L, d->running->leg_refs[d->leg->which]);
    bt_vm_push(L, d->leg_ref);
    bt_vm_push(L, d->edit_ref);
    lua_call(L, 2, 2);
    read_verdict(L, d);
    return 0;
}

/* Before anything looks into the leg's reply. */
static void open_reply(struct bt_dialects *d, const bt_leg_view_t *leg, bt_arena_t *arena)
{
    bt_json_index_reset(&d->index, arena, leg->is_reply_object ? leg->reply : BT_STR_NULL);
    if (leg->reply_members != NULL)
        bt_json_index_add(&d->index, leg->reply_members);
}

static enum bt_dialect_verdict run(const bt_dialect_t *dialect, const bt_leg_view_t *leg,
                                   bt_edits_t *edits_p, bt_str_t *reason_p)
{
    struct bt_dialects *d = dialect->home;
    char err[512];

    d->running = dialect;
    d->leg = leg;
    d->edits = edits_p;
    d->verdict = BT_DIALECT_OK;
    d->reason = BT_STR("");
    d->forward = NULL;
    open_reply(d, leg, edits_p->arena);
    bt_vm_push(d->vm.L, d->enter_ref);
    if (bt_vm_call(&d->vm, 0, err, sizeof(err)) != 0) {
        d->verdict = BT_DIALECT_BROKEN;
        d->reason = bt_arena_printf(edits_p->arena, "dialect %s: %s", dialect->name, err);
    }
    d->leg = NULL;
    d->edits = NULL;
    *reason_p = d->reason;
    return d->verdict;
}

/* NULL: it is none, or the leg is refused. */
static const struct bt_leg_template *make_template(const bt_dialect_t *dialect,
                                                   const bt_leg_view_t *leg, bt_leg_templates_t *t)
{
    struct bt_dialects *d = dialect->home;
    const bt_leg_view_t view = bt_stand_ins_view(&d->stand_ins, leg);
    const struct bt_leg_template *template = NULL;
    bt_arena_t arena;
    bt_edits_t edits;
    bt_leg_key_t key;
    bt_str_t reason;

    bt_arena_init(&arena);
    bt_edits_init(&edits, &arena);
    d->noting = t;
    if (run(dialect, &view, &edits, &reason) == BT_DIALECT_OK && bt_leg_key(t, leg, &key))
        template = bt_leg_templates_put(t, &key, &d->stand_ins, &edits, d->forward);
    d->noting = NULL;
    bt_arena_fini(&arena);
    return template;
}

/* NULL: there is none for this leg. */
static const struct bt_leg_template *template_of(const bt_dialect_t *dialect,
                                                 const bt_leg_view_t *leg)
{
    struct bt_dialect_file *file = (struct bt_dialect_file *) (uintptr_t) dialect;
    const struct bt_leg_template *template;
    bt_leg_templates_t *t;
    bt_leg_key_t key;

    if (!file->has_templates || leg->which > BT_DIALECT_DECODE)
        return NULL;
    t = &file->templates[leg->which];
    if (!bt_leg_key(t, leg, &key))
        return NULL;
    template = bt_leg_templates_find(t, &key);
    return template == NULL && bt_leg_templates_have_room(t) ? make_template(dialect, leg, t)
                                                             : template;
}

static enum bt_dialect_verdict forward(const bt_dialect_t *dialect, const bt_forward_t *f,
                                       const bt_leg_view_t *leg, bt_edits_t *edits_p,
                                       bt_str_t *reason_p)
{
    struct bt_dialects *d = dialect->home;
    enum bt_dialect_verdict verdict;

    open_reply(d, leg, edits_p->arena);
    verdict = bt_forward_apply(f, leg, &d->index, edits_p, reason_p);
    if (verdict == BT_DIALECT_BROKEN)
        *reason_p = bt_arena_printf(edits_p->arena, "dialect %s: %.*s", dialect->name,
                                    BT_STR_ARG(*reason_p));
    return verdict;
}

enum bt_dialect_verdict bt_dialect_edit(const bt_dialect_t *dialect, const bt_leg_view_t *leg,
                                        bt_edits_t *edits_p, bt_str_t *reason_p)
{
    const struct bt_leg_template *template = template_of(dialect, leg);
    enum bt_dialect_verdict verdict = BT_DIALECT_OK;
    const bt_forward_t *f;

    *reason_p = BT_STR("");
    if (template != NULL && bt_leg_template_fill(template, leg, edits_p) == 0) {
        f = bt_leg_template_forward(template);
    } else {
        verdict = run(dialect, leg, edits_p, reason_p);
        f = dialect->home->forward;
    }
    return verdict == BT_DIALECT_OK && f != NULL ? forward(dialect, f, leg, edits_p, reason_p)
                                                 : verdict;
}

bool bt_dialect_serves(const bt_dialect_t *dialect, bt_str_t path)
{
    const struct bt_dialect_file *file = (const struct bt_dialect_file *) dialect;

    for (unsigned i = 0; i < file->route_count; i++)
        if (bt_str_eq(path, bt_str(file->routes[i])))
            return true;
    return file->route_count == 0;
}

/* Asked several times a request: most names differ in their first byte. */
const bt_dialect_t *bt_dialects_find(const bt_dialects_t *d, const char *name)
{
    for (unsigned i = 0; i < d->count; i++)
        if (*d->files[i]->name == *name && strcmp(d->files[i]->name, name) == 0)
            return &d->files[i]->pub;
    return NULL;
}

/* ---- opening ---- */

static int open_api(lua_State *L)
{
    struct bt_dialects *d = bt_vm_of(L)->owner;

    lua_pushcfunction(L, enter);
    d->enter_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    bt_leg_api_open(L, d);
    bt_edit_api_open(L, d);
    return 0;
}

int bt_dialects_new(bt_dialects_t **dialects_p, const char *user_dir, char *err, size_t err_size)
{
    struct bt_dialects *d = calloc(1, sizeof(*d));
    int rc = BT_E_NOMEM;

    snprintf(err, err_size, "out of memory");
    if (d == NULL)
        return rc;
    bt_stand_ins_init(&d->stand_ins);
    rc = bt_vm_open(&d->vm, d, VM_CAP_BYTES, BT_VM_JIT | BT_VM_REQUIRE);
    if (rc != 0)
        goto err_free;
    lua_pushcfunction(d->vm.L, open_api);
    rc = bt_vm_call(&d->vm, 0, err, err_size);
    if (rc != 0)
        goto err_free;
    rc = add_embedded(d, err, err_size);
    if (rc == 0 && user_dir != NULL)
        rc = add_user_dir(d, user_dir, err, err_size);
    if (rc != 0)
        goto err_free;
    *dialects_p = d;
    return 0;

err_free:
    bt_dialects_free(d);
    return rc;
}

void bt_dialects_free(bt_dialects_t *d)
{
    if (d == NULL)
        return;
    bt_vm_close(&d->vm);
    for (unsigned i = 0; i < d->count; i++)
        free_file(d->files[i]);
    free(d);
}
