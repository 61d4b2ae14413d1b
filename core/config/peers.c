/* Who comes from another router keeps its command line: policies by the names that they have there,
 * and flags that tune them. Both need to know which policy a pool has in the end. */
#include "config/config_impl.h"
#include "config/flag.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int bt_config_keep_peer_param(bt_config_t *c, const bt_peer_flag_t *flag, double number)
{
    unsigned i = 0;

    while (i < c->peer_param_count && strcmp(c->peer_params[i].flag->text, flag->text) != 0)
        i++;
    BT_BUG_ON(i == BT_CONFIG_PEER_PARAMS_MAX);
    c->peer_params[i].flag = flag;
    c->peer_params[i].number = number;
    if (i == c->peer_param_count)
        c->peer_param_count++;
    return 0;
}

/* A file of this name in --policy-dir is meant then. */
static bool is_own(const bt_config_t *c, const char *name)
{
    char path[1024];

    snprintf(path, sizeof path, "%s/%s.lua", c->policy_dir != NULL ? c->policy_dir : ".", name);
    return c->policy_dir != NULL && access(path, F_OK) == 0;
}

static int rename_policy(bt_config_t *c, const char *flag, char **name)
{
    const bt_peer_policy_t *p = bt_peer_policies;

    while (*name != NULL && p->theirs != NULL && strcmp(p->theirs, *name) != 0)
        p++;
    if (*name == NULL || p->theirs == NULL || p->but == NULL || is_own(c, *name))
        return 0;
    char *ours = bt_str_dup(bt_str(p->ours));
    if (ours == NULL)
        return BT_E_NOMEM;
    bt_config_warn(c, "--%s %s: %s serves it: %s", flag, p->theirs, p->ours, p->but);
    free(*name);
    *name = ours;
    return 0;
}

static bool has_param(const bt_value_t *params, const char *key)
{
    for (unsigned i = 0; params != NULL && i < params->count; i++)
        if (strcmp(params->items[i].key, key) == 0)
            return true;
    return false;
}

/* What --policy-param or the file say of it counts more. */
static int fill_param(bt_config_pool_t *pool, enum bt_policy_slot slot, const char *policy,
                      const bt_peer_flag_t *flag, double number, bool *is_used)
{
    const size_t n = policy != NULL ? strlen(policy) : 0;
    char place[80];

    if (n == 0 || strncmp(flag->text, policy, n) != 0 || flag->text[n] != '.')
        return 0;
    *is_used = true;
    bt_value_t param = {.type = BT_VALUE_NUMBER, .number = number};
    param.key = (char *) (uintptr_t) (flag->text + n + 1);
    if (flag->divisor > 1)
        param.number = number >= 0 && number < flag->divisor ? 1 : floor(number / flag->divisor);
    snprintf(place, sizeof place, "--%s", flag->name);
    return has_param(pool->params[slot], param.key) ? 0
                                                    : bt_config_add_param(pool, slot, param, place);
}

static int fill_params(bt_config_t *c, const bt_peer_flag_t *flag, double number)
{
    bool is_used = false;
    int rc = 0;

    for (unsigned i = 0; i < c->pool_count && rc == 0; i++) {
        bt_config_pool_t *pool = &c->pools[i];
        const char *const names[BT_SLOT_COUNT] = {pool->spec.policy, pool->spec.prefill_policy,
                                                  pool->spec.decode_policy};
        for (unsigned s = 0; s < BT_SLOT_COUNT && rc == 0; s++)
            rc = fill_param(pool, (enum bt_policy_slot) s, names[s], flag, number, &is_used);
    }
    if (rc == 0 && !is_used)
        bt_config_warn(c, "--%s: not used: it is %s, and no pool has this policy", flag->name,
                       flag->text);
    return rc;
}

int bt_config_finish_peers(bt_config_t *c)
{
    int rc = 0;

    for (unsigned i = 0; i < c->pool_count && rc == 0; i++) {
        bt_pool_spec_t *spec = &c->pools[i].spec;
        rc = rename_policy(c, "policy", &spec->policy);
        if (rc == 0)
            rc = rename_policy(c, "prefill-policy", &spec->prefill_policy);
        if (rc == 0)
            rc = rename_policy(c, "decode-policy", &spec->decode_policy);
    }
    for (unsigned i = 0; i < c->peer_param_count && rc == 0; i++)
        rc = fill_params(c, c->peer_params[i].flag, c->peer_params[i].number);
    return rc;
}
