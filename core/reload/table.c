/* A stage is what a generation is made of, before and while it serves. Each job makes one of its own from the configuration and
 * the rules, so that a job that is refused leaves nothing behind. Parts take along what serves them now, by name: a pool or a
 * rule that stays where it is keeps its policy, its window and its last good text. */
#include "reload/reload_impl.h"

#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- selections ---- */

int bt_reload_selection_new(bt_reload_selection_t **selection_p, bt_policy_source_t *source,
                            const bt_value_t *params)
{
    bt_reload_selection_t *selection = calloc(1, sizeof *selection);

    if (selection == NULL)
        return BT_E_NOMEM;
    selection->params = bt_value_copy(params);
    if (params != NULL && selection->params == NULL) {
        free(selection);
        return BT_E_NOMEM;
    }
    selection->refs = 1;
    selection->source = bt_policy_source_ref(source);
    *selection_p = selection;
    return 0;
}

bt_reload_selection_t *bt_reload_selection_ref(bt_reload_selection_t *selection)
{
    if (selection != NULL)
        selection->refs++;
    return selection;
}

void bt_reload_selection_set(bt_reload_selection_t **at, bt_reload_selection_t *selection)
{
    bt_reload_selection_t *old = *at;

    *at = selection;
    if (old == NULL || --old->refs > 0)
        return;
    bt_policy_source_unref(old->source);
    bt_value_free(old->params);
    free(old);
}

bool bt_reload_selection_same(const bt_reload_selection_t *a, const bt_reload_selection_t *b)
{
    if (a == NULL || b == NULL || a == b)
        return a == b;
    return bt_policy_source_same(a->source, b->source) && bt_value_equal(a->params, b->params);
}

/* ---- freeing ---- */

static void fini_part(bt_reload_part_t *part)
{
    bt_reload_selection_t **const all[] = {&part->selection, &part->good, &part->rejected,
                                           &part->before, &part->next};

    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++)
        bt_reload_selection_set(all[i], NULL);
    free(part->asked);
    free(part->place);
    bt_value_free(part->asked_params);
}

void bt_reload_table_fini(bt_reload_table_t *table)
{
    for (unsigned i = 0; table->pools != NULL && i < table->pool_count; i++) {
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            fini_part(&table->pools[i].parts[s]);
        free(table->pools[i].name);
    }
    free(table->pools);
    bt_rules_unref(table->rules);
    *table = (bt_reload_table_t){0};
}

bool bt_reload_table_differs(const bt_reload_table_t *a, const bt_reload_table_t *b)
{
    bool is_same = a->pool_count == b->pool_count && a->rules == b->rules;

    for (unsigned i = 0; is_same && i < a->pool_count; i++)
        is_same = strcmp(a->pools[i].name, b->pools[i].name) == 0;
    return !is_same;
}

/* ---- making ---- */

static const char *asked_of(const bt_pool_spec_t *spec, enum bt_policy_slot slot)
{
    const char *both = spec->policy != NULL ? spec->policy : "least_load";

    if (slot == BT_SLOT_BOTH)
        return both;
    if (spec->prefill_policy == NULL && spec->decode_policy == NULL)
        return NULL;
    if (slot == BT_SLOT_PREFILL)
        return spec->prefill_policy != NULL ? spec->prefill_policy : both;
    return spec->decode_policy != NULL ? spec->decode_policy : both;
}

/* Half of a pair that is served by the pool's one policy has that one's parameters, unless it has its own. */
static enum bt_policy_slot params_slot(const bt_config_pool_t *pool, enum bt_policy_slot slot)
{
    const char *own =
        slot == BT_SLOT_PREFILL ? pool->spec.prefill_policy : pool->spec.decode_policy;

    return slot != BT_SLOT_BOTH && own == NULL && pool->params[slot] == NULL ? BT_SLOT_BOTH : slot;
}

static const bt_reload_part_t *serving_part(const bt_reload_t *reload, const char *name,
                                            unsigned slot)
{
    for (unsigned i = 0; i < reload->now.pool_count; i++)
        if (strcmp(reload->now.pools[i].name, name) == 0)
            return &reload->now.pools[i].parts[slot];
    return NULL;
}

static void take_along(bt_reload_part_t *part, const bt_reload_part_t *old)
{
    part->is_new_ask = old == NULL || old->asked == NULL || strcmp(old->asked, part->asked) != 0 ||
                       !bt_value_equal(old->asked_params, part->asked_params);
    if (old == NULL)
        return;
    part->selection = bt_reload_selection_ref(old->selection);
    part->good = bt_reload_selection_ref(old->good);
    part->rejected = bt_reload_selection_ref(old->rejected);
    part->before = bt_reload_selection_ref(old->before);
    part->roll_back = old->roll_back;
    part->fallen_back = old->fallen_back;
    part->born = old->born;
    part->committed_ms = old->committed_ms;
    memcpy(part->error, old->error, sizeof part->error);
}

static int set_part(bt_reload_t *reload, bt_reload_pool_t *pool, enum bt_policy_slot slot,
                    const char *asked, const bt_value_t *params, const char *place)
{
    bt_reload_part_t *part = &pool->parts[slot];

    part->asked = bt_str_dup(bt_str(asked));
    part->asked_params = bt_value_copy(params);
    part->place = bt_str_dup(bt_str(place));
    if (part->asked == NULL || part->place == NULL ||
        (params != NULL && part->asked_params == NULL))
        return BT_E_NOMEM;
    take_along(part, serving_part(reload, pool->name, slot));
    return 0;
}

static int set_pool(bt_reload_t *reload, const bt_config_t *c, const bt_config_pool_t *from,
                    bt_reload_pool_t *pool)
{
    int rc = 0;

    pool->name = bt_str_dup(bt_str(from->spec.name));
    if (pool->name == NULL)
        return BT_E_NOMEM;
    for (unsigned s = 0; s < BT_SLOT_COUNT && rc == 0; s++) {
        const char *asked = asked_of(&from->spec, (enum bt_policy_slot) s);
        const enum bt_policy_slot at = params_slot(from, (enum bt_policy_slot) s);
        const char *where = from->params_places[at];
        char place[512] = "";
        if (where != NULL)
            snprintf(place, sizeof place, "%s%s%s",
                     c->file != NULL && where[0] != '-' ? c->file : "",
                     c->file != NULL && where[0] != '-' ? ": " : "", where);
        if (asked != NULL)
            rc = set_part(reload, pool, (enum bt_policy_slot) s, asked, from->params[at], place);
    }
    return rc;
}

static const char *policy_of_pool(const bt_reload_table_t *table, const char *name)
{
    for (unsigned i = 0; i < table->first_variant; i++)
        if (strcmp(table->pools[i].name, name) == 0)
            return table->pools[i].parts[BT_SLOT_BOTH].asked;
    return NULL;
}

static int set_variant(bt_reload_t *reload, const char *file, bt_reload_table_t *table, unsigned i)
{
    bt_reload_pool_t *pool = &table->pools[table->first_variant + i];
    char where[64] = "", place[512];
    const char *name, *asked;
    const bt_rule_target_t *t = bt_rules_variant(table->rules, i, &name, &pool->is_shadow);

    asked = t->policy != NULL ? t->policy : policy_of_pool(table, t->pool);
    pool->name = bt_str_dup(bt_str(name));
    if (pool->name == NULL)
        return BT_E_NOMEM;
    bt_rules_variant_place(table->rules, i, where, sizeof where);
    snprintf(place, sizeof place, "%s: %s", file, where);
    return set_part(reload, pool, BT_SLOT_BOTH, asked, t->params, place);
}

int bt_reload_table_make(bt_reload_t *reload, const bt_config_t *c, bt_rules_t *rules,
                         bt_reload_table_t *table)
{
    const char *file = bt_reload_rules_path(reload, c);
    const char *name;
    unsigned variants = 0;
    bool is_shadow;
    int rc = 0;

    while (bt_rules_variant(rules, variants, &name, &is_shadow) != NULL)
        variants++;
    *table = (bt_reload_table_t){.rules = bt_rules_ref(rules), .first_variant = c->pool_count};
    table->pools = calloc(c->pool_count + variants, sizeof *table->pools);
    if (table->pools == NULL) {
        bt_reload_table_fini(table);
        return BT_E_NOMEM;
    }
    table->pool_count = c->pool_count + variants;
    for (unsigned i = 0; i < c->pool_count && rc == 0; i++)
        rc = set_pool(reload, c, &c->pools[i], &table->pools[i]);
    for (unsigned i = 0; i < variants && rc == 0; i++)
        rc = set_variant(reload, file, table, i);
    if (rc < 0)
        bt_reload_table_fini(table);
    return rc;
}
