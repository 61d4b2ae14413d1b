/* The schema is the flag table (top level and pools) and the worker table; this file only walks. The path of what is being
 * read is kept as text in a cursor, so every refusal can name it: `baton.lua: pools[1].workers[2].role: expected ...`. */
#include "config/config_impl.h"

#include "base/err.h"
#include "cluster/kv_transfer_config.h"
#include "config/flag.h"
#include "config/suggest.h"
#include "script/value/luatable.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct cursor {
    const char *file;
    char dir[512];  /* where relative paths start */
    char path[256]; /* "pools[1].workers[2]", "" at the top */
    bool is_found;  /* workers say which pool is theirs */
    const bt_value_t *root;
    char *err;
    size_t err_size;
} cursor_t;

/* Where a key may stand. */
enum level { LEVEL_TOP, LEVEL_POOL, LEVEL_WORKER };

static const char *const pool_keys[] = {"name", "models", "workers"};
static const char *const params_keys[BT_SLOT_COUNT] = {"params", "prefill_params", "decode_params"};

static int refuse_at(const cursor_t *c, const char *key, const char *why)
{
    const char *dot = c->path[0] != '\0' && key[0] != '\0' && key[0] != '[' ? "." : "";
    return bt_err_refuse(c->err, c->err_size, "%s: %s%s%s: %s", c->file, c->path, dot, key, why);
}

/* Every name is kept in the flag's spelling; a key has '_' for '-'. A dash in a key is no name of ours. */
static bool key_to_name(const char *key, char *name, size_t size)
{
    size_t n = strlen(key);
    name[0] = '\0';
    if (n >= size || strchr(key, '-') != NULL)
        return false;
    for (size_t i = 0; i <= n; i++)
        name[i] = key[i] == '_' ? '-' : key[i];
    return true;
}

static void name_to_key(const char *name, char *key, size_t size)
{
    snprintf(key, size, "%s", name);
    for (char *p = key; *p != '\0'; p++)
        if (*p == '-')
            *p = '_';
}

static bool is_key_of(const bt_flag_t *flag, enum level level)
{
    return flag->kind == BT_FLAG_POOL || (flag->kind == BT_FLAG_SETTING && level == LEVEL_TOP);
}

static void offer_flags(bt_suggest_t *s, enum level level)
{
    for (unsigned i = 0; i < bt_flag_count; i++)
        if (is_key_of(&bt_flags[i], level))
            bt_suggest_offer(s, bt_flags[i].name);
}

static void offer_all(bt_suggest_t *s, enum level level)
{
    if (level == LEVEL_WORKER) {
        for (unsigned i = 0; i < bt_worker_key_count; i++)
            bt_suggest_offer(s, bt_worker_keys[i].name);
        return;
    }
    offer_flags(s, level);
    bt_suggest_offer(s, "params");
    bt_suggest_offer(s, "prefill-params");
    bt_suggest_offer(s, "decode-params");
    if (level == LEVEL_TOP) {
        bt_suggest_offer(s, "pools");
        bt_suggest_offer(s, "workers-dns");
        bt_suggest_offer(s, "tls");
        bt_suggest_offer(s, "identity");
        bt_suggest_offer(s, "limits");
    }
    for (size_t i = 0; level == LEVEL_POOL && i < sizeof pool_keys / sizeof pool_keys[0]; i++)
        bt_suggest_offer(s, pool_keys[i]);
}

/* A key that belongs to another level is the likeliest slip after a misspelling. */
static const char *elsewhere(const char *key, enum level level)
{
    char name[64];
    const bt_flag_t *flag = key_to_name(key, name, sizeof name) ? bt_flag_find(bt_str(name)) : NULL;
    if (level != LEVEL_TOP && flag != NULL && flag->kind != BT_FLAG_ACTION)
        return level == LEVEL_WORKER && flag->kind == BT_FLAG_POOL
                   ? "is a key of a pool, not of a worker"
                   : "is a key of the top level";
    if (level != LEVEL_POOL)
        for (size_t i = 0; i < sizeof pool_keys / sizeof pool_keys[0]; i++)
            if (strcmp(key, pool_keys[i]) == 0)
                return "is a key of a pool (pools = { { ... } })";
    return level != LEVEL_TOP && strcmp(key, "pools") == 0 ? "is a key of the top level" : NULL;
}

static int unknown_key(const cursor_t *c, const char *key, enum level level)
{
    char name[64], best_key[64], why[192];
    const bt_peer_flag_t *peer =
        key_to_name(key, name, sizeof name) ? bt_flag_find_peer(bt_str(name)) : NULL;
    bt_suggest_t s;
    if (elsewhere(key, level) != NULL) {
        snprintf(why, sizeof why, "unknown key here; it %s", elsewhere(key, level));
        return refuse_at(c, key, why);
    }
    const bool is_text =
        peer != NULL && (peer->kind == BT_PEER_UNUSED || peer->kind == BT_PEER_REFUSED);
    if (is_text && level != LEVEL_WORKER)
        return refuse_at(c, key, peer->text);
    if (peer != NULL && peer->kind == BT_PEER_PARAM && level != LEVEL_WORKER) {
        snprintf(why, sizeof why, "unknown key; of %.*s it is params = { %s = ... }",
                 (int) strcspn(peer->text, "."), peer->text, strchr(peer->text, '.') + 1);
        return refuse_at(c, key, why);
    }
    bt_suggest_init(&s, bt_str(level == LEVEL_WORKER || name[0] == '\0' ? key : name));
    offer_all(&s, level);
    const char *best = peer != NULL && !is_text ? peer->text : bt_suggest_best(&s);
    if (best == NULL)
        return refuse_at(c, key, "unknown key; baton help file lists all");
    name_to_key(best, best_key, sizeof best_key);
    snprintf(why, sizeof why, "unknown key, did you mean \"%s\"?", best_key);
    return refuse_at(c, key, why);
}

static int set_option(const cursor_t *c, const bt_option_t *option, void *base, const bt_value_t *v)
{
    char why[BT_CONFIG_ERR_BYTES];
    int rc = bt_option_set_value(option, base, v, c->dir, why, sizeof why);
    return rc == BT_E_CONFIG ? refuse_at(c, v->key, why) : rc;
}

static int set_params(const cursor_t *c, bt_config_pool_t *pool, enum bt_policy_slot slot,
                      const bt_value_t *v)
{
    char place[320];
    if (v->type != BT_VALUE_TABLE)
        return refuse_at(c, v->key, "expected a table of the policy's parameters");
    snprintf(place, sizeof place, "%s%s%s", c->path, c->path[0] != '\0' ? "." : "", v->key);
    return bt_config_set_params(pool, slot, v, place);
}

/* 1: it was a setting and is read; 0: no such setting. */
static int read_setting(const cursor_t *c, bt_config_t *config, bt_config_pool_t *pool,
                        const bt_value_t *v, enum level level)
{
    char name[64];
    /* A flag that is repeated is a list in the file, and a list has a plural. */
    const char *key = strcmp(v->key, "policy_http_hosts") == 0 ? "policy_http_host" : v->key;
    const bt_flag_t *flag = key_to_name(key, name, sizeof name) ? bt_flag_find(bt_str(name)) : NULL;
    for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
        if (strcmp(v->key, params_keys[s]) == 0) {
            int rc = set_params(c, pool, (enum bt_policy_slot) s, v);
            return rc < 0 ? rc : 1;
        }
    if (flag == NULL || !is_key_of(flag, level))
        return 0;
    int rc = set_option(c, &flag->option,
                        flag->kind == BT_FLAG_POOL ? (void *) pool : (void *) config, v);
    return rc < 0 ? rc : 1;
}

/* Appends "[i]" (and "name" before it) to the path; returns the length to cut back to. */
static size_t enter(cursor_t *c, const char *name, unsigned index)
{
    size_t n = strlen(c->path);
    snprintf(c->path + n, sizeof c->path - n, "%s%s[%u]", n > 0 ? "." : "", name, index + 1);
    return n;
}

static bool is_list(const bt_value_t *v)
{
    return v->type == BT_VALUE_LIST || (v->type == BT_VALUE_TABLE && v->count == 0);
}

typedef int (*read_fn)(cursor_t *c, void *to, const bt_value_t *v);

static int read_list(cursor_t *c, void *to, const bt_value_t *v, read_fn read_item)
{
    int rc = 0;
    if (!is_list(v))
        return refuse_at(c, v->key, "expected a list of tables, { { ... }, ... }");
    for (unsigned i = 0; i < v->count && rc == 0; i++) {
        size_t back = enter(c, v->key, i);
        rc = read_item(c, to, &v->items[i]);
        c->path[back] = '\0';
    }
    return rc;
}

/* ---- settings that belong together ---- */

/* tls = { client_ca = "ca.pem" } is tls_client_ca = "ca.pem": members of such a table are settings without the words before them. */
static const struct section {
    const char *path, *prefix;
} sections[] = {
    {"tls", "tls_"},
    {"tls.admin", "admin_tls_"},
    {"tls.workers", "worker_tls_"},
    {"tls.redis", "redis_tls_"},
    {"identity", "client_api_"},
    {"identity.jwt", "jwt_"},
    {"identity.anonymous", "anonymous_"},
};
#define SECTIONS (sizeof sections / sizeof sections[0])

/* within: "" at the top. */
static const struct section *find_section(const char *within, const char *key)
{
    char path[96];

    snprintf(path, sizeof path, "%s%s%s", within, within[0] != '\0' ? "." : "", key);
    for (size_t i = 0; i < SECTIONS; i++)
        if (strcmp(sections[i].path, path) == 0)
            return &sections[i];
    return NULL;
}

static bool has_certificates(const struct section *s)
{
    return strcmp(s->path, "tls") == 0 || strcmp(s->path, "tls.admin") == 0;
}

/* The setting that a member is, NULL = none; key: what it is called at the top. */
static const bt_flag_t *find_member(const struct section *s, const char *member, char *key,
                                    size_t size)
{
    char name[64];

    snprintf(key, size, "%s%s", s->prefix, member);
    const bt_flag_t *flag = key_to_name(key, name, sizeof name) ? bt_flag_find(bt_str(name)) : NULL;
    return flag != NULL && flag->kind == BT_FLAG_SETTING ? flag : NULL;
}

static int unknown_member(const cursor_t *c, const struct section *s, const char *member)
{
    char keys[64][64], why[192];
    const size_t n = strlen(s->prefix), path_n = strlen(s->path);
    unsigned count = 0;
    bt_suggest_t suggest;

    bt_suggest_init(&suggest, bt_str(member));
    if (has_certificates(s))
        bt_suggest_offer(&suggest, "certificates");
    for (size_t i = 0; i < SECTIONS; i++)
        if (strncmp(sections[i].path, s->path, path_n) == 0 && sections[i].path[path_n] == '.')
            bt_suggest_offer(&suggest, sections[i].path + path_n + 1);
    for (unsigned i = 0; i < bt_flag_count && count < 64; i++) {
        name_to_key(bt_flags[i].name, keys[count], sizeof keys[count]);
        if (bt_flags[i].kind == BT_FLAG_SETTING && strncmp(keys[count], s->prefix, n) == 0)
            bt_suggest_offer(&suggest, keys[count++] + n);
    }
    const char *best = bt_suggest_best(&suggest);
    snprintf(why, sizeof why, best != NULL ? "unknown key, did you mean \"%s\"?" : "unknown key",
             best);
    return refuse_at(c, member, why);
}

static int refuse_twice(const cursor_t *c, const char *member, const char *key)
{
    char why[160];

    snprintf(why, sizeof why, "is said twice: also as %s; leave out one", key);
    return refuse_at(c, member, why);
}

/* One certificate with its key, as places of two lists. */
static int read_pair(const cursor_t *c, const bt_value_t *v, bt_value_t *cert, bt_value_t *key)
{
    const bt_value_t *its_cert = v->type == BT_VALUE_TABLE ? bt_value_get(v, "cert") : NULL;
    const bt_value_t *its_key = v->type == BT_VALUE_TABLE ? bt_value_get(v, "key") : NULL;

    if (its_cert == NULL || its_key == NULL || v->count != 2)
        return refuse_at(c, "",
                         "expected a certificate and its key, { cert = \"FILE\", key = \"FILE\" }");
    *cert = *its_cert;
    *key = *its_key;
    return 0;
}

static int set_pairs(cursor_t *c, bt_config_t *config, const struct section *s, const bt_value_t *v,
                     bt_value_t lists[2])
{
    static const char *const members[2] = {"cert", "key"};
    char key[64];
    int rc = 0;

    for (unsigned i = 0; i < v->count && rc == 0; i++) {
        const size_t back = enter(c, v->key, i);
        rc = read_pair(c, &v->items[i], &lists[0].items[i], &lists[1].items[i]);
        c->path[back] = '\0';
    }
    for (unsigned i = 0; i < 2 && rc == 0; i++) {
        const bt_flag_t *flag = find_member(s, members[i], key, sizeof key);
        lists[i].type = BT_VALUE_LIST;
        lists[i].key = v->key;
        lists[i].count = v->count;
        rc = bt_value_get(c->root, key) != NULL ? refuse_twice(c, v->key, key)
                                                : set_option(c, &flag->option, config, &lists[i]);
    }
    return rc;
}

static int read_certificates(cursor_t *c, bt_config_t *config, const struct section *s,
                             const bt_value_t *table, const bt_value_t *v)
{
    bt_value_t lists[2] = {{0}, {0}}; /* their items' texts are v's */
    int rc = BT_E_NOMEM;

    if (!is_list(v))
        return refuse_at(c, v->key,
                         "expected a list, { { cert = \"FILE\", key = \"FILE\" }, ... }: the first "
                         "is for names that no other has");
    if (bt_value_get(table, "cert") != NULL || bt_value_get(table, "key") != NULL)
        return refuse_twice(c, v->key, "cert and key");
    lists[0].items = calloc(v->count + 1, sizeof *lists[0].items);
    lists[1].items = calloc(v->count + 1, sizeof *lists[1].items);
    if (lists[0].items != NULL && lists[1].items != NULL)
        rc = set_pairs(c, config, s, v, lists);
    free(lists[0].items);
    free(lists[1].items);
    return rc;
}

static int read_section(cursor_t *c, bt_config_t *config, const struct section *s,
                        const bt_value_t *v)
{
    const size_t back = strlen(c->path);
    char key[64];
    int rc = 0;

    if (v->type != BT_VALUE_TABLE && !is_list(v))
        return refuse_at(c, v->key, "expected a table of settings");
    snprintf(c->path + back, sizeof c->path - back, "%s%s", back > 0 ? "." : "", v->key);
    if (v->type == BT_VALUE_LIST && v->count > 0)
        return refuse_at(c, "", "expected a table of settings, got a list");
    for (unsigned i = 0; i < v->count && rc == 0; i++) {
        const bt_value_t *member = &v->items[i];
        const struct section *inner = find_section(s->path, member->key);
        const bt_flag_t *flag = find_member(s, member->key, key, sizeof key);
        if (inner != NULL)
            rc = read_section(c, config, inner, member);
        else if (has_certificates(s) && strcmp(member->key, "certificates") == 0)
            rc = read_certificates(c, config, s, v, member);
        else if (flag == NULL)
            rc = unknown_member(c, s, member->key);
        else if (bt_value_get(c->root, key) != NULL)
            rc = refuse_twice(c, member->key, key);
        else
            rc = set_option(c, &flag->option, config, member);
    }
    c->path[back] = '\0';
    return rc;
}

/* ---- workers ---- */

static int take_kv_transfer(const cursor_t *c, bt_worker_spec_t *spec, const bt_value_t *worker)
{
    const bt_value_t *v = bt_value_get(worker, "kv_transfer_config");
    char why[BT_CONFIG_ERR_BYTES];
    bt_text_t json;
    if (v == NULL)
        return 0;
    bt_text_init(&json);
    if (v->type == BT_VALUE_STRING)
        bt_text_puts(&json, v->string);
    else
        bt_value_json(v, &json);
    const bool has_role = bt_value_get(worker, "role") != NULL;
    int rc = json.failed
                 ? BT_E_NOMEM
                 : bt_kv_transfer_config_take(spec, bt_text_str(&json), has_role, why, sizeof why);
    bt_text_fini(&json);
    return rc == BT_E_CONFIG ? refuse_at(c, v->key, why) : rc;
}

static int read_worker(cursor_t *c, void *to, const bt_value_t *v)
{
    bt_config_pool_t *pool = to;
    bt_worker_spec_t *spec;
    if (v->type != BT_VALUE_TABLE)
        return refuse_at(
            c, "", "expected a table like { url = \"http://127.0.0.1:8000\", role = \"decode\" }");
    int rc = bt_config_add_worker(pool, c->path, &spec);
    for (unsigned i = 0; i < v->count && rc == 0; i++) {
        const bt_value_t *member = &v->items[i];
        const bt_worker_key_t *key = NULL;
        for (unsigned k = 0; k < bt_worker_key_count && key == NULL; k++)
            if (strcmp(bt_worker_keys[k].name, member->key) == 0)
                key = &bt_worker_keys[k];
        if (key != NULL && key->option.kind == BT_OPTION_NONE)
            continue; /* after the others */
        if (c->is_found && strcmp(member->key, "pool") == 0)
            continue; /* before them */
        rc = key != NULL ? set_option(c, &key->option, spec, member)
                         : unknown_key(c, member->key, LEVEL_WORKER);
    }
    if (rc == 0)
        rc = take_kv_transfer(c, spec, v);
    if (rc == 0 && spec->url == NULL)
        return refuse_at(c, "url", "missing: where does this worker listen?");
    return rc;
}

static int read_dns(cursor_t *c, void *to, const bt_value_t *v)
{
    bt_worker_spec_t *worker;
    bt_dns_name_t *name;
    char why[128];
    if (v->type != BT_VALUE_TABLE)
        return refuse_at(c, "",
                         "expected a table like { name = \"prefill.llm.svc\", port = 8000 }");
    int rc = bt_config_add_dns(to, c->path, &name, &worker);
    for (unsigned i = 0; i < v->count && rc == 0; i++) {
        const bt_value_t *member = &v->items[i];
        void *base;
        const bt_option_t *option = bt_config_dns_option(bt_str(member->key), name, worker, &base);
        const char *nearest = option == NULL ? bt_config_dns_nearest(bt_str(member->key)) : NULL;
        if (nearest != NULL)
            snprintf(why, sizeof why, "unknown key, did you mean \"%s\"?", nearest);
        if (option == NULL)
            rc = refuse_at(c, member->key, nearest != NULL ? why : "unknown key");
        else if (option->kind != BT_OPTION_NONE) /* or after the others */
            rc = set_option(c, option, base, member);
    }
    return rc == 0 ? take_kv_transfer(c, worker, v) : rc;
}

static int read_pool_member(cursor_t *c, bt_config_t *config, bt_config_pool_t *pool,
                            const bt_value_t *v)
{
    static const bt_option_t name = {.kind = BT_OPTION_TEXT,
                                     .offset = offsetof(bt_config_pool_t, spec.name)};
    static const bt_option_t models = {.kind = BT_OPTION_TEXTS,
                                       .offset = offsetof(bt_config_pool_t, spec.models),
                                       .count_offset = offsetof(bt_config_pool_t, spec.model_count),
                                       .list_max = BT_WORKER_MODELS_MAX};
    if (strcmp(v->key, "name") == 0)
        return set_option(c, &name, pool, v);
    if (strcmp(v->key, "models") == 0)
        return set_option(c, &models, pool, v);
    if (strcmp(v->key, "workers") == 0)
        return read_list(c, pool, v, read_worker);
    int rc = read_setting(c, config, pool, v, LEVEL_POOL);
    return rc == 0 ? unknown_key(c, v->key, LEVEL_POOL) : rc < 0 ? rc : 0;
}

/* Parameters of the top level are for the policy of the top level: a pool that names another one starts without. */
static void forget_params(bt_config_pool_t *pool, const bt_value_t *v)
{
    static const char *const policies[BT_SLOT_COUNT] = {"policy", "prefill_policy",
                                                        "decode_policy"};
    for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
        if (bt_value_get(v, policies[s]) != NULL)
            (void) bt_config_set_params(pool, (enum bt_policy_slot) s, NULL, NULL);
}

static int read_pool(cursor_t *c, void *to, const bt_value_t *v)
{
    bt_config_t *config = to;
    bt_config_pool_t *pool;
    if (v->type != BT_VALUE_TABLE)
        return refuse_at(c, "", "expected a table like { name = \"llama\", workers = { ... } }");
    int rc = bt_config_add_pool(config, &pool);
    if (rc == 0)
        forget_params(pool, v);
    for (unsigned i = 0; i < v->count && rc == 0; i++)
        rc = read_pool_member(c, config, pool, &v->items[i]);
    return rc;
}

static int read_limits(const cursor_t *c, bt_config_t *config, const bt_value_t *v)
{
    char place[128], why[192];
    int rc = bt_config_take_limits(config, v, place, sizeof place, why, sizeof why);
    return rc == BT_E_CONFIG ? refuse_at(c, place, why) : rc;
}

/* 1: it was a list and is read; 0: no such list. */
static int read_top_list(cursor_t *c, bt_config_t *config, const bt_value_t *v)
{
    int rc;
    if (strcmp(v->key, "workers_dns") == 0)
        rc = read_list(c, config, v, read_dns);
    else if (strcmp(v->key, "limits") == 0)
        rc = read_limits(c, config, v);
    else
        return 0;
    return rc < 0 ? rc : 1;
}

/* Everything but the pools first: pools start from what the top level says. */
static int read_top(cursor_t *c, bt_config_t *config, const bt_value_t *root)
{
    const bt_value_t *pools = NULL;
    if (root->type != BT_VALUE_TABLE)
        return bt_err_refuse(c->err, c->err_size, "%s: expected a table of settings, got a list",
                             c->file);
    for (unsigned i = 0; i < root->count; i++) {
        const bt_value_t *v = &root->items[i];
        if (strcmp(v->key, "pools") == 0) {
            pools = v;
            continue;
        }
        const struct section *section = find_section("", v->key);
        int rc =
            section != NULL ? read_section(c, config, section, v) : read_top_list(c, config, v);
        if (rc == 0 && section == NULL)
            rc = read_setting(c, config, &config->defaults, v, LEVEL_TOP);
        if (rc < 0 || (rc == 0 && section == NULL))
            return rc < 0 ? rc : unknown_key(c, v->key, LEVEL_TOP);
    }
    return pools != NULL ? read_list(c, config, pools, read_pool) : 0;
}

static int read_tree(bt_config_t *c, const char *path, const bt_value_t *root, char *err,
                     size_t err_size)
{
    cursor_t cursor = {.file = path, .root = root, .err = err, .err_size = err_size};
    const char *slash = strrchr(path, '/');
    if (slash != NULL)
        snprintf(cursor.dir, sizeof cursor.dir, "%.*s", slash == path ? 1 : (int) (slash - path),
                 path);
    int rc = read_top(&cursor, c, root);
    if (rc == BT_E_NOMEM)
        snprintf(err, err_size, "%s: %s", path, bt_err_text(rc));
    return rc;
}

/* ---- a workers file ---- */

typedef struct found {
    const bt_config_t *config;
    bt_config_pool_t *pools;
} found_t;

static int find_pool(const cursor_t *c, const bt_config_t *config, const bt_value_t *name,
                     unsigned *index_p)
{
    char why[160];
    if (name->type != BT_VALUE_STRING)
        return refuse_at(c, name->key, "expected the name of a pool");
    for (unsigned i = 0; i < config->pool_count; i++)
        if (strcmp(config->pools[i].spec.name, name->string) == 0) {
            *index_p = i;
            return 0;
        }
    snprintf(why, sizeof why, "there is no pool \"%.80s\" in the configuration", name->string);
    return refuse_at(c, name->key, why);
}

static int read_found(cursor_t *c, void *to, const bt_value_t *v)
{
    const found_t *f = to;
    const bt_value_t *name = v->type == BT_VALUE_TABLE ? bt_value_get(v, "pool") : NULL;
    unsigned index = 0;
    int rc = name != NULL ? find_pool(c, f->config, name, &index) : 0;
    return rc == 0 ? read_worker(c, &f->pools[index], v) : rc;
}

int bt_config_read_worker_list(const bt_config_t *c, const char *path, const bt_value_t *root,
                               bt_config_pool_t *pools, char *err, size_t err_size)
{
    cursor_t cursor = {.file = path, .err = err, .err_size = err_size, .is_found = true};
    found_t f = {.config = c, .pools = pools};
    int rc = 0;
    if (!is_list(root))
        return bt_err_refuse(err, err_size,
                             "%s: expected a list of workers: return { { url = \"...\" }, ... }",
                             path);
    for (unsigned i = 0; i < root->count && rc == 0; i++) {
        (void) enter(&cursor, "", i);
        rc = read_found(&cursor, &f, &root->items[i]);
        cursor.path[0] = '\0';
    }
    return rc;
}

int bt_config_read_file(bt_config_t *c, const char *path, char *err, size_t err_size)
{
    bt_value_t *root;
    int rc = bt_lua_table_load(path, &root, err, err_size);
    if (rc < 0)
        return rc;
    c->file = bt_str_dup(bt_str(path));
    rc = c->file != NULL ? read_tree(c, path, root, err, err_size) : BT_E_NOMEM;
    bt_value_free(root);
    return rc;
}
