/* How it works: the tree of the file stays as long as the rules, so patterns and names point into it and describing is printing
 * it. Matching walks the rules in order; what costs most (headers) is looked at last.
 *
 * A sticky split hashes the key with the rule's name: the same key always falls on the same side of one rule, and on
 * independent sides of two. Weights that change move only the keys at the border, as long as their sum stays. */
#include "generation/rules_impl.h"

#include "base/err.h"
#include "base/rand.h"
#include "script/vm/vm.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- life ---- */

static void free_patterns(struct bt_patterns *p)
{
    free(p->items);
    free(p->is_prefix);
}

static void free_rule(struct bt_rule *rule)
{
    free_patterns(&rule->cond.path);
    free_patterns(&rule->cond.model);
    free_patterns(&rule->cond.tenant);
    for (unsigned i = 0; i < rule->cond.header_count; i++)
        free_patterns(&rule->cond.headers[i].patterns);
    free(rule->cond.headers);
    free(rule->targets);
}

static void free_rules(bt_rules_t *r)
{
    for (unsigned i = 0; i < r->count; i++)
        free_rule(&r->items[i]);
    for (unsigned i = 0; i < r->variant_count; i++)
        free(r->variants[i].name);
    for (unsigned i = 0; i < r->path_count; i++)
        free(r->paths[i]);
    free(r->items);
    free(r->variants);
    free(r->paths);
    free(r->hits);
    bt_value_free(r->root);
    free(r->path);
    free(r);
}

/* text NULL: what lies at path. */
static int make(bt_rules_t **rules_p, const char *path, const bt_str_t *text, char *err,
                size_t err_size)
{
    bt_rules_t *r = calloc(1, sizeof *r);
    int rc = BT_E_NOMEM;

    snprintf(err, err_size, "%s: out of memory", path);
    if (r == NULL)
        return rc;
    atomic_init(&r->refs, 1);
    r->path = bt_str_dup(bt_str(path));
    r->is_pushed = text != NULL;
    if (r->path != NULL)
        rc = text != NULL ? bt_lua_table_read(path, *text, &r->root, err, err_size)
                          : bt_lua_table_load(path, &r->root, err, err_size);
    if (rc == 0)
        rc = bt_rules_read(r, err, err_size);
    if (rc < 0) {
        free_rules(r);
        return rc;
    }
    *rules_p = r;
    return 0;
}

int bt_rules_load(bt_rules_t **rules_p, const char *path, char *err, size_t err_size)
{
    return make(rules_p, path, NULL, err, err_size);
}

int bt_rules_parse(bt_rules_t **rules_p, const char *name, bt_str_t text, char *err,
                   size_t err_size)
{
    return make(rules_p, name, &text, err, err_size);
}

bt_rules_t *bt_rules_ref(bt_rules_t *rules)
{
    if (rules != NULL)
        atomic_fetch_add_explicit(&rules->refs, 1, memory_order_relaxed);
    return rules;
}

void bt_rules_unref(bt_rules_t *rules)
{
    if (rules != NULL && atomic_fetch_sub_explicit(&rules->refs, 1, memory_order_acq_rel) == 1)
        free_rules(rules);
}

unsigned bt_rules_count(const bt_rules_t *rules)
{
    return rules != NULL ? rules->count : 0;
}

const bt_rule_target_t *bt_rules_variant(const bt_rules_t *rules, unsigned i, const char **name_p,
                                         bool *is_shadow_p)
{
    if (rules == NULL || i >= rules->variant_count)
        return NULL;
    if (name_p != NULL)
        *name_p = rules->variants[i].name;
    if (is_shadow_p != NULL)
        *is_shadow_p = rules->variants[i].is_shadow;
    return rules->variants[i].target;
}

bool bt_rules_same(const bt_rules_t *a, const bt_rules_t *b)
{
    if (a == NULL || b == NULL || a == b)
        return a == b;
    return strcmp(a->path, b->path) == 0 && bt_value_equal(a->root, b->root);
}

/* ---- pools ---- */

/* "rules[2]", "rules[2].split[1]" or "rules[2].shadow". */
static void place_of(const bt_rules_t *r, const bt_rule_target_t *target, char *out, size_t size)
{
    for (unsigned i = 0; i < r->count; i++) {
        const struct bt_rule *rule = &r->items[i];
        const bool is_split = bt_value_get(rule->tree, "split") != NULL;
        if (target == &rule->shadow)
            snprintf(out, size, "rules[%u].shadow", i + 1);
        for (unsigned k = 0; k < rule->target_count; k++)
            if (target == &rule->targets[k] && is_split)
                snprintf(out, size, "rules[%u].split[%u]", i + 1, k + 1);
            else if (target == &rule->targets[k])
                snprintf(out, size, "rules[%u]", i + 1);
    }
}

void bt_rules_variant_place(const bt_rules_t *rules, unsigned i, char *out, size_t size)
{
    place_of(rules, rules->variants[i].target, out, size);
}

static int check_pool(const bt_rules_t *r, const bt_rule_target_t *target, const char *const *names,
                      char *err, size_t err_size)
{
    const char *nearest;
    char place[64] = "";

    for (unsigned i = 0; target->pool != NULL && names[i] != NULL; i++)
        if (strcmp(names[i], target->pool) == 0)
            return 0;
    if (target->pool == NULL)
        return 0;
    place_of(r, target, place, sizeof place);
    nearest = bt_vm_nearest(names, bt_str(target->pool));
    snprintf(err, err_size, "%s: %s.pool: there is no pool \"%.100s\"%s%s%s", r->path, place,
             target->pool, nearest != NULL ? " (did you mean \"" : "",
             nearest != NULL ? nearest : "", nearest != NULL ? "\"?)" : "");
    return BT_E_CONFIG;
}

int bt_rules_check_pools(const bt_rules_t *rules, const char *const *names, char *err,
                         size_t err_size)
{
    int rc = 0;

    for (unsigned i = 0; i < bt_rules_count(rules) && rc == 0; i++) {
        const struct bt_rule *rule = &rules->items[i];
        for (unsigned k = 0; k < rule->target_count && rc == 0; k++)
            rc = check_pool(rules, &rule->targets[k], names, err, err_size);
        if (rc == 0 && rule->has_shadow)
            rc = check_pool(rules, &rule->shadow, names, err, err_size);
    }
    return rc;
}

/* ---- does a rule fit? ---- */

static bool fits_text(const struct bt_patterns *p, bt_str_t text)
{
    for (unsigned i = 0; i < p->count; i++)
        if (p->is_prefix[i] ? bt_str_starts(text, p->items[i]) : bt_str_eq(text, p->items[i]))
            return true;
    return p->count == 0;
}

static bool fits_flag(enum bt_tristate wanted, bool is)
{
    return wanted == BT_EITHER || (wanted == BT_YES) == is;
}

static bool fits_range(const struct bt_range *range, uint64_t value)
{
    return (double) value >= range->min && (double) value <= range->max;
}

static bool fits_header(const struct bt_header_match *m, const bt_head_t *head)
{
    const bt_header_t *h = head != NULL ? bt_head_find(head, m->name) : NULL;

    if (m->there != BT_EITHER)
        return fits_flag(m->there, h != NULL);
    return h != NULL && fits_text(&m->patterns, h->value);
}

static bool fits(const struct bt_rule_cond *c, const bt_policy_request_t *req)
{
    if (c->is_empty)
        return true;
    if (!fits_flag(c->stream, req->stream) || !fits_flag(c->session, req->session.n > 0) ||
        !fits_range(&c->prompt_tokens, req->prompt_tokens) || !fits_range(&c->n, req->n) ||
        !fits_text(&c->model, req->model) || !fits_text(&c->path, req->path) ||
        !fits_text(&c->tenant, req->tenant))
        return false;
    for (unsigned i = 0; i < c->header_count; i++)
        if (!fits_header(&c->headers[i], req->head))
            return false;
    return true;
}

/* ---- which part of a split ---- */

static bt_str_t sticky_key(const struct bt_rule *rule, const bt_policy_request_t *req)
{
    switch (rule->sticky) {
    case BT_STICKY_SESSION:
        return req->session;
    case BT_STICKY_TENANT:
        return req->tenant;
    case BT_STICKY_HEADER:
        return req->head != NULL ? bt_head_get(req->head, rule->sticky_header) : BT_STR_NULL;
    default:
        return BT_STR_NULL;
    }
}

/* The finisher of MurmurHash3: FNV alone leaves keys that differ in their last byte close together. */
static uint64_t mix(uint64_t h)
{
    h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdULL;
    h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ULL;
    return h ^ (h >> 33);
}

static unsigned choose(const struct bt_rule *rule, const bt_policy_request_t *req)
{
    bt_str_t key;
    uint64_t at;

    if (rule->target_count == 1)
        return 0;
    key = sticky_key(rule, req);
    at = key.n > 0 ? mix(bt_str_hash(key) ^ rule->salt) % rule->total_weight
                   : bt_rand_below(rule->total_weight);
    for (unsigned i = 0; i < rule->target_count; i++) {
        if (at < rule->targets[i].weight)
            return i;
        at -= rule->targets[i].weight;
    }
    return 0; /* not reached: the weights add up to the total */
}

static void count_hit(const bt_rules_t *rules, unsigned i)
{
    atomic_fetch_add_explicit(&rules->hits[i], 1, memory_order_relaxed);
}

void bt_rules_match(const bt_rules_t *rules, const bt_policy_request_t *req,
                    bt_rule_match_t *match_p)
{
    *match_p = (bt_rule_match_t){0};
    for (unsigned i = 0; i < bt_rules_count(rules); i++) {
        const struct bt_rule *rule = &rules->items[i];
        if (!fits(&rule->cond, req))
            continue;
        if (rule->has_shadow && match_p->shadow_rule == NULL) {
            match_p->shadow_rule = rule->name;
            match_p->shadow_target = &rule->shadow;
            match_p->shadow_sample = rule->sample;
            count_hit(rules, rule->first_hit + rule->target_count);
        }
        if (rule->target_count == 0)
            continue;
        const unsigned k = choose(rule, req);
        match_p->rule = rule->name;
        match_p->target = &rule->targets[k];
        count_hit(rules, rule->first_hit + k);
        return;
    }
}

/* ---- for the admin listener ---- */

static uint64_t hits_of(const bt_rules_t *rules, unsigned i)
{
    return atomic_load_explicit(&rules->hits[i], memory_order_relaxed);
}

static void put_number(bt_text_t *out, const char *key, uint64_t value)
{
    bt_text_printf(out, ",\"%s\":%llu", key, (unsigned long long) value);
}

static void describe_target(const bt_rules_t *rules, const bt_rule_target_t *t, unsigned hit,
                            bt_text_t *out)
{
    const char *const keys[] = {"pool", "policy"}, *const values[] = {t->pool, t->policy};

    for (unsigned i = 0; i < 2; i++) {
        bt_text_printf(out, "%s\"%s\":", i > 0 ? "," : "", keys[i]);
        if (values[i] != NULL)
            bt_text_json_str(out, bt_str(values[i]));
        else
            bt_text_puts(out, "null");
    }
    bt_text_puts(out, ",\"params\":");
    if (t->params != NULL)
        bt_value_json(t->params, out);
    else
        bt_text_puts(out, "null");
    put_number(out, "hits", hits_of(rules, hit));
}

static void describe_rule(const bt_rules_t *rules, const struct bt_rule *rule, bt_text_t *out)
{
    const bt_value_t *match = bt_value_get(rule->tree, "match");
    const bt_value_t *sticky = bt_value_get(rule->tree, "sticky");
    uint64_t all = 0;

    for (unsigned k = 0; k < rule->target_count; k++)
        all += hits_of(rules, rule->first_hit + k);
    bt_text_puts(out, "{\"name\":");
    bt_text_json_str(out, bt_str(rule->name));
    bt_text_puts(out, ",\"match\":");
    if (match != NULL)
        bt_value_json(match, out);
    else
        bt_text_puts(out, "{}");
    put_number(out, "hits", all);
    if (sticky != NULL) {
        bt_text_puts(out, ",\"sticky\":");
        bt_text_json_str(out, bt_str(sticky->string));
    }
    bt_text_puts(out, ",\"targets\":[");
    for (unsigned k = 0; k < rule->target_count; k++) {
        bt_text_puts(out, k > 0 ? ",{" : "{");
        describe_target(rules, &rule->targets[k], rule->first_hit + k, out);
        put_number(out, "weight", rule->targets[k].weight);
        bt_text_puts(out, "}");
    }
    bt_text_puts(out, "]");
    if (rule->has_shadow) {
        bt_text_puts(out, ",\"shadow\":{");
        describe_target(rules, &rule->shadow, rule->first_hit + rule->target_count, out);
        bt_text_printf(out, ",\"sample\":%.9g}", rule->sample);
    }
    bt_text_puts(out, "}");
}

void bt_rules_describe(const bt_rules_t *rules, bt_text_t *out)
{
    bt_text_puts(out, "[");
    for (unsigned i = 0; i < bt_rules_count(rules); i++) {
        bt_text_puts(out, i > 0 ? "," : "");
        describe_rule(rules, &rules->items[i], out);
    }
    bt_text_puts(out, "]");
}

void bt_rules_fingerprint(const bt_rules_t *rules, bt_text_t *out)
{
    if (rules == NULL)
        return;
    bt_text_printf(out, "%s %d\n", rules->path, rules->is_pushed);
    bt_value_json(rules->root, out);
}
