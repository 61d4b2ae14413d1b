#include "reload/policy_set.h"

#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>

int bt_policy_set_new(bt_policy_set_t **set_p, uint64_t number)
{
    bt_policy_set_t *set = calloc(1, sizeof *set);

    if (set == NULL)
        return BT_E_NOMEM;
    set->refs = 1;
    set->number = number;
    *set_p = set;
    return 0;
}

bt_policy_set_t *bt_policy_set_ref(bt_policy_set_t *set)
{
    if (set != NULL)
        set->refs++;
    return set;
}

void bt_policy_set_unref(bt_policy_set_t *set)
{
    if (set == NULL || --set->refs > 0)
        return;
    for (unsigned i = 0; i < set->count; i++)
        bt_policy_source_unref(set->sources[i]);
    free(set->sources);
    bt_rules_unref(set->parsed);
    free(set->rules);
    free(set);
}

int bt_policy_set_add(bt_policy_set_t *set, const char *name, bt_str_t text)
{
    bt_policy_source_t **sources, *source;
    char path[128];
    int rc;

    sources = realloc(set->sources, (set->count + 1) * sizeof(bt_policy_source_t *));
    if (sources == NULL)
        return BT_E_NOMEM;
    set->sources = sources;
    snprintf(path, sizeof path, "fleet/%s.lua", name);
    rc = bt_policy_source_new(&source, BT_SOURCE_FLEET, name, path, text);
    if (rc == 0)
        sources[set->count++] = source;
    return rc;
}

bool bt_policy_is_named(const char *asked, const char *name)
{
    return strcmp(asked, name) == 0 || bt_str_eq(bt_policy_base_name(asked), bt_str(name));
}

bt_policy_source_t *bt_policy_set_find(const bt_policy_set_t *set, const char *asked)
{
    for (unsigned i = 0; set != NULL && i < set->count; i++)
        if (bt_policy_is_named(asked, set->sources[i]->name))
            return set->sources[i];
    return NULL;
}

bool bt_policy_set_has(const bt_policy_set_t *set, const bt_policy_source_t *source)
{
    for (unsigned i = 0; set != NULL && i < set->count; i++)
        if (set->sources[i] == source)
            return true;
    return false;
}

bool bt_policy_set_same(const bt_policy_set_t *set, const bt_policy_source_t *source)
{
    for (unsigned i = 0; set != NULL && i < set->count; i++)
        if (bt_policy_source_same(set->sources[i], source))
            return true;
    return false;
}
