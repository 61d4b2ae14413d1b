#include "dispatch/state/attempt_state.h"

const char *bt_leg_role_name(enum bt_leg_role role)
{
    static const char *const names[] = {"prefill", "decode", "single", "encode"};
    return names[role];
}
