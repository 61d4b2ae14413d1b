/* Words for engines, roles and capabilities, there and back. */
#include "cluster/capability.h"

#include "base/err.h"

static const char *const engine_names[] = {"unknown",     "sglang", "vllm",
                                           "vllm_ascend", "mindie", "trtllm"};

const char *bt_capability_name(enum bt_capability cap)
{
    static const char *const names[] = {"none", "concurrent_engine_sync", "prefill_handoff_decode"};
    return names[cap];
}

const char *bt_engine_name(enum bt_engine engine)
{
    return engine_names[engine];
}

const char *bt_role_name(enum bt_role role)
{
    static const char *const names[BT_ROLE_COUNT] = {"prefill", "decode", "hybrid", "encode"};
    return names[role];
}

static bool same_word(bt_str_t s, const char *name)
{
    char text[32];
    if (s.n >= sizeof text)
        return false;
    for (size_t i = 0; i < s.n; i++)
        text[i] = s.p[i] == '-' ? '_' : s.p[i];
    return bt_str_ieq((bt_str_t){text, s.n}, bt_str(name));
}

int bt_engine_parse(bt_str_t s, enum bt_engine *engine_p)
{
    for (unsigned i = 0; i < sizeof engine_names / sizeof engine_names[0]; i++) {
        if (!same_word(s, engine_names[i]))
            continue;
        *engine_p = (enum bt_engine) i;
        return 0;
    }
    return BT_E_INVAL;
}

int bt_role_parse(bt_str_t s, enum bt_role *role_p)
{
    static const struct {
        const char *name;
        enum bt_role role;
    } words[] = {{"prefill", BT_ROLE_PREFILL},
                 {"decode", BT_ROLE_DECODE},
                 {"hybrid", BT_ROLE_HYBRID},
                 {"encode", BT_ROLE_ENCODE},
                 {"union", BT_ROLE_HYBRID}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (!same_word(s, words[i].name))
            continue;
        *role_p = words[i].role;
        return 0;
    }
    return BT_E_INVAL;
}
