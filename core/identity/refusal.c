#include "identity/refusal.h"

static const struct {
    unsigned status;
    const char *label, *text;
} rows[BT_AUTH_COUNT] = {{200, "", ""},
#define BT_AUTH_ROW(name, label, status, text) {status, #label, text},
                         BT_AUTH_MAP(BT_AUTH_ROW)
#undef BT_AUTH_ROW
};

unsigned bt_auth_status(enum bt_auth_refusal refusal)
{
    return rows[refusal].status;
}

const char *bt_auth_text(enum bt_auth_refusal refusal)
{
    return rows[refusal].text;
}

const char *bt_auth_label(enum bt_auth_refusal refusal)
{
    return rows[refusal].label;
}
