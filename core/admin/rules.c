/* The rules as the file says them, and how often each was taken. Who has them stands above this folder (policies.h). */
#include "admin/policies.h"

bool bt_rules_list(const bt_policies_ops_t *ops, void *user, bt_text_t *out)
{
    if (ops == NULL || ops->list_rules == NULL)
        return false;
    ops->list_rules(user, out);
    return true;
}
