/* How it works: the tree is walked with the path of keys at hand, as the configuration file is; nothing is looked up later. What
 * is read points into the tree, so only arrays are made. */
#include "generation/rules_impl.h"

#include "base/err.h"
#include "base/log.h"
#include "script/policy/policy_source.h"
#include "script/vm/vm.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define API_VERSION 1

typedef struct cursor {
    bt_rules_t *rules;
    char path[256]; /* "rules[2].match" */
    char *err;
    size_t err_size;
} cursor_t;

static const char *const type_names[] = {"a boolean", "a number", "a string", "a list", "a table"};

/* ---- saying what is wrong ---- */

__attribute__((format(printf, 3, 4))) static int refuse(const cursor_t *c, const char *key,
                                                        const char *fmt, ...)
{
    const char *dot = c->path[0] != '\0' && key[0] != '\0' && key[0] != '[' ? "." : "";
    va_list args;
    int n = snprintf(c->err, c->err_size, "%s: %s%s%.100s: ", c->rules->path, c->path, dot, key);

    va_start(args, fmt);
    if (n > 0 && (size_t) n < c->err_size)
        vsnprintf(c->err + n, c->err_size - (size_t) n, fmt, args);
    va_end(args);
    return BT_E_CONFIG;
}

static int no_memory(const cursor_t *c)
{
    snprintf(c->err, c->err_size, "%s: out of memory", c->rules->path);
    return BT_E_NOMEM;
}

static int check_type(const cursor_t *c, const bt_value_t *v, enum bt_value_type type)
{
    if (v->type == type)
        return 0;
    return refuse(c, v->key != NULL ? v->key : "", "%s is needed, not %s", type_names[type],
                  type_names[v->type]);
}

/* A list may be empty, and then it looks like a table. */
static bool is_list(const bt_value_t *v)
{
    return v->type == BT_VALUE_LIST || (v->type == BT_VALUE_TABLE && v->count == 0);
}

static int check_keys(const cursor_t *c, const bt_value_t *table, const char *const *names)
{
    for (unsigned i = 0; i < table->count; i++) {
        const char *key = table->items[i].key, *nearest;
        bool is_known = false;
        for (unsigned k = 0; names[k] != NULL; k++)
            is_known |= strcmp(names[k], key) == 0;
        if (is_known)
            continue;
        nearest = bt_vm_nearest(names, bt_str(key));
        return refuse(c, key, "unknown key%s%s%s", nearest != NULL ? ", did you mean \"" : "",
                      nearest != NULL ? nearest : "", nearest != NULL ? "\"?" : "");
    }
    return 0;
}

/* Appends ".key" or "[i]" to the path; returns the length to cut back to. */
static size_t enter(cursor_t *c, const char *key)
{
    const size_t at = strlen(c->path);

    snprintf(c->path + at, sizeof c->path - at, "%s%s", at > 0 && key[0] != '[' ? "." : "", key);
    return at;
}

static size_t enter_item(cursor_t *c, const char *key, unsigned i)
{
    char text[64];

    snprintf(text, sizeof text, "%s[%u]", key, i + 1);
    return enter(c, text);
}

/* ---- match ---- */

static int read_pattern(const cursor_t *c, const char *key, const bt_value_t *v, bool is_header,
                        struct bt_patterns *p)
{
    const bt_str_t text = bt_str(v->string);
    const char *star = strchr(v->string, '*');
    const bool is_prefix = text.n > 0 && text.p[text.n - 1] == '*';

    if (text.n == 0)
        return refuse(c, key, "an empty string fits nothing; leave it out, or write \"*\"");
    /* Headers have values like "text/plain;*": there only the last one is special. */
    if (!is_header && star != NULL && star != text.p + text.n - 1)
        return refuse(c, key, "\"%.100s\": a * may only stand at the end", v->string);
    p->items[p->count] = (bt_str_t){text.p, text.n - (is_prefix ? 1 : 0)};
    p->is_prefix[p->count++] = is_prefix;
    return 0;
}

static int read_patterns(const cursor_t *c, const bt_value_t *v, bool is_header,
                         struct bt_patterns *p)
{
    const unsigned count = v->type == BT_VALUE_LIST ? v->count : 1;
    int rc = 0;

    if (v->type != BT_VALUE_STRING && (v->type != BT_VALUE_LIST || v->count == 0))
        return refuse(c, v->key,
                      "a string is needed (a * at its end fits any rest), or a list of "
                      "strings, not %s",
                      type_names[v->type]);
    p->items = calloc(count, sizeof *p->items);
    p->is_prefix = calloc(count, sizeof *p->is_prefix);
    if (p->items == NULL || p->is_prefix == NULL)
        return no_memory(c);
    if (v->type == BT_VALUE_STRING)
        return read_pattern(c, v->key, v, is_header, p);
    for (unsigned i = 0; i < count && rc == 0; i++) {
        char key[128];
        snprintf(key, sizeof key, "%.100s[%u]", v->key, i + 1);
        if (v->items[i].type != BT_VALUE_STRING)
            return refuse(c, key, "a string is needed, not %s", type_names[v->items[i].type]);
        rc = read_pattern(c, key, &v->items[i], is_header, p);
    }
    return rc;
}

static int read_flag(const cursor_t *c, const bt_value_t *v, enum bt_tristate *flag_p)
{
    const int rc = check_type(c, v, BT_VALUE_BOOL);

    if (rc == 0)
        *flag_p = v->boolean ? BT_YES : BT_NO;
    return rc;
}

static int read_bound(const cursor_t *c, const bt_value_t *range, const char *key, double *bound_p)
{
    const bt_value_t *v = bt_value_get(range, key);
    int rc;

    if (v == NULL)
        return 0;
    if ((rc = check_type(c, v, BT_VALUE_NUMBER)) < 0)
        return rc;
    if (!(v->number >= 0))
        return refuse(c, key, "a number of 0 or more is needed");
    *bound_p = v->number;
    return 0;
}

static int read_range(cursor_t *c, const bt_value_t *v, struct bt_range *range)
{
    static const char *const names[] = {"min", "max", NULL};
    int rc;

    if (v->type != BT_VALUE_TABLE || v->count == 0)
        return refuse(c, v->key, "a table like { min = 1, max = 2 } is needed, not %s",
                      v->type == BT_VALUE_TABLE ? "an empty one" : type_names[v->type]);
    const size_t back = enter(c, v->key);
    rc = check_keys(c, v, names);
    if (rc == 0)
        rc = read_bound(c, v, "min", &range->min);
    if (rc == 0)
        rc = read_bound(c, v, "max", &range->max);
    if (rc == 0 && range->min > range->max)
        rc = refuse(c, "min", "%.15g is above max, %.15g: nothing can fit", range->min, range->max);
    c->path[back] = '\0';
    return rc;
}

static int read_header(const cursor_t *c, const bt_value_t *v, struct bt_header_match *m)
{
    m->name = bt_str(v->key);
    if (v->type != BT_VALUE_BOOL)
        return read_patterns(c, v, true, &m->patterns);
    m->there = v->boolean ? BT_YES : BT_NO;
    return 0;
}

static int read_headers(cursor_t *c, const bt_value_t *v, struct bt_rule_cond *cond)
{
    int rc = check_type(c, v, BT_VALUE_TABLE);

    if (rc < 0 || v->count == 0)
        return rc;
    cond->headers = calloc(v->count, sizeof *cond->headers);
    if (cond->headers == NULL)
        return no_memory(c);
    const size_t back = enter(c, v->key);
    for (unsigned i = 0; i < v->count && rc == 0; i++)
        rc = read_header(c, &v->items[i], &cond->headers[cond->header_count++]);
    c->path[back] = '\0';
    return rc;
}

static int read_condition(cursor_t *c, const bt_value_t *v, struct bt_rule_cond *cond)
{
    const struct {
        const char *key;
        struct bt_patterns *patterns;
    } texts[] = {{"path", &cond->path}, {"model", &cond->model}, {"tenant", &cond->tenant}};

    for (unsigned i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (strcmp(v->key, texts[i].key) == 0)
            return read_patterns(c, v, false, texts[i].patterns);
    if (strcmp(v->key, "stream") == 0)
        return read_flag(c, v, &cond->stream);
    if (strcmp(v->key, "session") == 0)
        return read_flag(c, v, &cond->session);
    if (strcmp(v->key, "prompt_tokens") == 0)
        return read_range(c, v, &cond->prompt_tokens);
    return strcmp(v->key, "n") == 0 ? read_range(c, v, &cond->n) : read_headers(c, v, cond);
}

static int read_match(cursor_t *c, const bt_value_t *v, struct bt_rule_cond *cond)
{
    static const char *const names[] = {"path",    "model",         "tenant", "stream", "session",
                                        "headers", "prompt_tokens", "n",      NULL};
    int rc = 0;

    cond->prompt_tokens = cond->n = (struct bt_range){0, INFINITY};
    cond->is_empty = v == NULL || v->count == 0;
    if (v == NULL || (rc = check_type(c, v, BT_VALUE_TABLE)) < 0)
        return rc;
    const size_t back = enter(c, v->key);
    rc = check_keys(c, v, names);
    for (unsigned i = 0; i < v->count && rc == 0; i++)
        rc = read_condition(c, &v->items[i], cond);
    c->path[back] = '\0';
    return rc;
}

/* ---- targets ---- */

static int read_text(const cursor_t *c, const bt_value_t *table, const char *key,
                     const char **text_p)
{
    const bt_value_t *v = bt_value_get(table, key);
    int rc;

    if (v == NULL)
        return 0;
    if ((rc = check_type(c, v, BT_VALUE_STRING)) < 0)
        return rc;
    if (v->string[0] == '\0')
        return refuse(c, key, "an empty string");
    *text_p = v->string;
    return 0;
}

static void *grow(void *items, unsigned count, unsigned *cap, size_t size)
{
    void *wider;

    if (count < *cap)
        return items;
    wider = realloc(items, (*cap == 0 ? 8 : *cap * 2) * size);
    if (wider != NULL)
        *cap = *cap == 0 ? 8 : *cap * 2;
    return wider;
}

/* A policy's file is looked for from where the rules lie, as in the configuration file. Pushed rules must not open files of this
 * machine: reading one may block, and a line of it would appear in the error. */
static int place_policy(const cursor_t *c, const char **policy)
{
    bt_rules_t *r = c->rules;
    const char *slash = strrchr(r->path, '/');
    bt_text_t text;
    char **paths;

    if (*policy == NULL || !bt_policy_is_path(*policy))
        return 0;
    if (r->is_pushed)
        return refuse(c, "policy",
                      "\"%.100s\" is a file, and pushed rules name policies: push it too "
                      "and write \"%.*s\"",
                      *policy, BT_STR_ARG(bt_policy_base_name(*policy)));
    if (slash == NULL || (*policy)[0] == '/')
        return 0;
    paths = grow(r->paths, r->path_count, &r->path_cap, sizeof *paths);
    if (paths == NULL)
        return no_memory(c);
    r->paths = paths;
    bt_text_init(&text);
    bt_text_printf(&text, "%.*s/%s", (int) (slash - r->path), r->path, *policy);
    if (text.failed) {
        bt_text_fini(&text);
        return no_memory(c);
    }
    *policy = r->paths[r->path_count++] = bt_text_take(&text);
    return 0;
}

/* target must stay where it is. */
static int add_variant(const cursor_t *c, bt_rule_target_t *target, const char *rule,
                       const char *part)
{
    bt_rules_t *r = c->rules;
    char name[BT_RULE_NAME_MAX + 32];
    struct bt_variant *items;

    target->variant = -1;
    if (target->policy == NULL && target->params == NULL)
        return 0;
    if (r->variant_count == BT_RULES_VARIANTS_MAX)
        return refuse(c, "", "more than %d targets with a policy or params in all",
                      BT_RULES_VARIANTS_MAX);
    items = grow(r->variants, r->variant_count, &r->variant_cap, sizeof *items);
    if (items == NULL)
        return no_memory(c);
    r->variants = items;
    snprintf(name, sizeof name, "rules:%s%s", rule, part);
    items = &r->variants[r->variant_count];
    *items = (struct bt_variant){bt_str_dup(bt_str(name)), target, strcmp(part, "/shadow") == 0};
    if (items->name == NULL)
        return no_memory(c);
    target->variant = (int) r->variant_count++;
    return 0;
}

/* pool, policy and params, wherever they stand. part: "", "/2", "/shadow". */
static int read_target(const cursor_t *c, const bt_value_t *v, const char *rule, const char *part,
                       bt_rule_target_t *t)
{
    const bt_value_t *params = bt_value_get(v, "params");
    int rc = read_text(c, v, "pool", &t->pool);

    if (rc == 0)
        rc = read_text(c, v, "policy", &t->policy);
    if (rc == 0 && params != NULL)
        rc = check_type(c, params, BT_VALUE_TABLE);
    if (rc < 0)
        return rc;
    t->params = params;
    if (params != NULL && t->policy == NULL && t->pool == NULL)
        return refuse(c, "params", "whose? name the policy, or the pool whose policy it is");
    rc = place_policy(c, &t->policy);
    return rc == 0 ? add_variant(c, t, rule, part) : rc;
}

static int read_weight(const cursor_t *c, const bt_value_t *v, unsigned *weight_p)
{
    const bt_value_t *weight = bt_value_get(v, "weight");
    int rc;

    if (weight == NULL)
        return refuse(c, "weight", "missing: this part's share, a whole number");
    if ((rc = check_type(c, weight, BT_VALUE_NUMBER)) < 0)
        return rc;
    if (!(weight->number >= 0 && weight->number <= BT_RULE_WEIGHT_MAX) ||
        weight->number != floor(weight->number))
        return refuse(c, "weight", "a whole number from 0 to %d is needed, not %.15g",
                      BT_RULE_WEIGHT_MAX, weight->number);
    *weight_p = (unsigned) weight->number;
    return 0;
}

static int read_part(cursor_t *c, const bt_value_t *v, struct bt_rule *rule, unsigned k)
{
    static const char *const names[] = {"weight", "pool", "policy", "params", NULL};
    bt_rule_target_t *t = &rule->targets[k];
    char part[16];
    int rc = check_type(c, v, BT_VALUE_TABLE);

    snprintf(part, sizeof part, "/%u", k + 1);
    if (rc == 0)
        rc = check_keys(c, v, names);
    if (rc == 0)
        rc = read_weight(c, v, &t->weight);
    if (rc == 0)
        rc = read_target(c, v, rule->name, part, t);
    rule->total_weight += t->weight;
    return rc;
}

static int read_split(cursor_t *c, const bt_value_t *v, struct bt_rule *rule)
{
    int rc = 0;

    if (v->type != BT_VALUE_LIST)
        return refuse(c, "split",
                      "a list like { { weight = 95, policy = \"a\" }, { weight = 5, "
                      "policy = \"b\" } } is needed");
    if (v->count > BT_RULE_TARGETS_MAX)
        return refuse(c, "split", "%u parts are more than %d", v->count, BT_RULE_TARGETS_MAX);
    rule->targets = calloc(v->count, sizeof *rule->targets);
    if (rule->targets == NULL)
        return no_memory(c);
    rule->target_count = v->count;
    for (unsigned k = 0; k < v->count && rc == 0; k++) {
        const size_t back = enter_item(c, "split", k);
        rc = read_part(c, &v->items[k], rule, k);
        c->path[back] = '\0';
    }
    if (rc == 0 && rule->total_weight == 0)
        return refuse(c, "split", "all weights are 0");
    return rc;
}

static int read_sticky(const cursor_t *c, const bt_value_t *v, struct bt_rule *rule)
{
    const bt_str_t prefix = BT_STR("header:");
    int rc;

    if (v == NULL)
        return 0;
    if ((rc = check_type(c, v, BT_VALUE_STRING)) < 0)
        return rc;
    if (rule->target_count == 0 || bt_value_get(rule->tree, "split") == NULL)
        return refuse(c, "sticky", "there is no split for it to hold on to");
    const bt_str_t text = bt_str(v->string);
    if (bt_str_eq(text, BT_STR("session")))
        rule->sticky = BT_STICKY_SESSION;
    else if (bt_str_eq(text, BT_STR("tenant")))
        rule->sticky = BT_STICKY_TENANT;
    else if (bt_str_starts(text, prefix) && text.n > prefix.n)
        rule->sticky = BT_STICKY_HEADER;
    else
        return refuse(c, "sticky",
                      "\"session\", \"tenant\" or \"header:<name>\" is needed, not "
                      "\"%.100s\"",
                      v->string);
    if (rule->sticky == BT_STICKY_HEADER)
        rule->sticky_header = (bt_str_t){text.p + prefix.n, text.n - prefix.n};
    return 0;
}

static int read_one_target(const cursor_t *c, const bt_value_t *v, struct bt_rule *rule)
{
    rule->targets = calloc(1, sizeof *rule->targets);
    if (rule->targets == NULL)
        return no_memory(c);
    rule->target_count = 1;
    rule->total_weight = rule->targets[0].weight = 1;
    return read_target(c, v, rule->name, "", &rule->targets[0]);
}

static int read_targets(cursor_t *c, const bt_value_t *v, struct bt_rule *rule)
{
    static const char *const keys[] = {"pool", "policy", "params"};
    const bt_value_t *split = bt_value_get(v, "split");
    const char *own = NULL;

    for (unsigned i = 0; i < 3 && own == NULL; i++)
        own = bt_value_get(v, keys[i]) != NULL ? keys[i] : NULL;
    if (split != NULL && own != NULL)
        return refuse(c, own, "belongs into the parts of the split");
    if (split != NULL)
        return read_split(c, split, rule);
    if (own != NULL)
        return read_one_target(c, v, rule);
    if (bt_value_get(v, "shadow") == NULL)
        return refuse(c, "", "this rule does nothing: it needs pool, policy, split or shadow");
    return 0;
}

static int read_shadow(cursor_t *c, const bt_value_t *v, struct bt_rule *rule)
{
    static const char *const names[] = {"policy", "params", "pool", "sample", NULL};
    const bt_value_t *sample;
    int rc;

    if (v == NULL)
        return 0;
    if ((rc = check_type(c, v, BT_VALUE_TABLE)) < 0)
        return rc;
    const size_t back = enter(c, "shadow");
    rc = check_keys(c, v, names);
    if (rc == 0 && bt_value_get(v, "policy") == NULL && bt_value_get(v, "params") == NULL)
        rc = refuse(c, "policy", "missing: who shall decide beside?");
    rule->sample = 1;
    sample = bt_value_get(v, "sample");
    if (rc == 0 && sample != NULL && (rc = check_type(c, sample, BT_VALUE_NUMBER)) == 0) {
        rule->sample = sample->number;
        if (!(sample->number >= 0 && sample->number <= 1))
            rc = refuse(c, "sample", "a number from 0 to 1 is needed, not %.15g", sample->number);
    }
    if (rc == 0)
        rc = read_target(c, v, rule->name, "/shadow", &rule->shadow);
    rule->has_shadow = rc == 0;
    c->path[back] = '\0';
    return rc;
}

/* ---- rules ---- */

static int read_name(const cursor_t *c, const bt_value_t *v, struct bt_rule *rule)
{
    const bt_value_t *name = bt_value_get(v, "name");
    int rc;

    if (name == NULL)
        return refuse(c, "name", "missing: every rule has one");
    if ((rc = check_type(c, name, BT_VALUE_STRING)) < 0)
        return rc;
    const size_t n = strlen(name->string);
    if (n == 0 || n > BT_RULE_NAME_MAX ||
        strspn(name->string, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") <
            n)
        return refuse(c, "name", "\"%.80s\": at most %d letters, digits, '_', '-', '.' are needed",
                      name->string, BT_RULE_NAME_MAX);
    for (const struct bt_rule *other = c->rules->items; other < rule; other++)
        if (strcmp(other->name, name->string) == 0)
            return refuse(c, "name", "\"%s\" is the name of rules[%u] already", name->string,
                          (unsigned) (other - c->rules->items) + 1);
    rule->name = name->string;
    rule->salt = bt_str_hash(bt_str(name->string)) * 0x9e3779b97f4a7c15ULL;
    return 0;
}

static int read_rule(cursor_t *c, const bt_value_t *v, struct bt_rule *rule)
{
    static const char *const names[] = {"name",  "match",  "pool",   "policy", "params",
                                        "split", "sticky", "shadow", NULL};
    int rc = check_type(c, v, BT_VALUE_TABLE);

    rule->tree = v;
    if (rc == 0)
        rc = check_keys(c, v, names);
    if (rc == 0)
        rc = read_name(c, v, rule);
    if (rc == 0)
        rc = read_match(c, bt_value_get(v, "match"), &rule->cond);
    if (rc == 0)
        rc = read_targets(c, v, rule);
    if (rc == 0)
        rc = read_sticky(c, bt_value_get(v, "sticky"), rule);
    if (rc == 0)
        rc = read_shadow(c, bt_value_get(v, "shadow"), rule);
    rule->first_hit = c->rules->hit_count;
    c->rules->hit_count += rule->target_count + 1;
    return rc;
}

/* A slip that is easy to make and hard to see: the catch-all stands too early. */
static void warn_of_dead_rules(const bt_rules_t *r)
{
    for (unsigned i = 0; i + 1 < r->count; i++)
        if (r->items[i].cond.is_empty && r->items[i].target_count > 0) {
            bt_log_warn("rules",
                        "%s: rules[%u] (%s) fits every request: nothing below it is ever "
                        "looked at",
                        r->path, i + 1, r->items[i].name);
            return;
        }
}

static int check_api(const cursor_t *c, const bt_value_t *root)
{
    static const char *const names[] = {"api", "rules", NULL};
    const bt_value_t *api = bt_value_get(root, "api");
    int rc = check_keys(c, root, names);

    if (rc == 0 && (api == NULL || api->type != BT_VALUE_NUMBER || api->number != API_VERSION))
        rc = refuse(c, "api", "must be %d", API_VERSION);
    return rc;
}

int bt_rules_read(bt_rules_t *r, char *err, size_t err_size)
{
    cursor_t c = {.rules = r, .err = err, .err_size = err_size};
    const bt_value_t *list;
    int rc;

    if (r->root->type != BT_VALUE_TABLE)
        return refuse(&c, "", "must return a table like { api = 1, rules = { ... } }");
    if ((rc = check_api(&c, r->root)) < 0)
        return rc;
    list = bt_value_get(r->root, "rules");
    if (list == NULL || !is_list(list))
        return refuse(&c, "rules", "a list of rules is needed");
    if (list->count > BT_RULES_MAX)
        return refuse(&c, "rules", "%u rules are more than %d", list->count, BT_RULES_MAX);
    r->items = calloc(list->count + 1, sizeof *r->items);
    if (r->items == NULL)
        return no_memory(&c);
    for (unsigned i = 0; i < list->count && rc == 0; i++) {
        const size_t back = enter_item(&c, "rules", i);
        rc = read_rule(&c, &list->items[i], &r->items[r->count++]);
        c.path[back] = '\0';
    }
    if (rc < 0)
        return rc;
    r->hits = calloc(r->hit_count + 1, sizeof *r->hits);
    if (r->hits == NULL)
        return no_memory(&c);
    warn_of_dead_rules(r);
    return 0;
}
