#include "admin/rooms.h"

#include "admin/query.h"
#include "base/err.h"

/* The text is printed on the control loop, so there is an upper end. */
#define LIMIT_MAX 100000

static bool read_limit(bt_str_t text, unsigned *limit_p)
{
    uint64_t value;

    if (bt_str_u64(text, &value) < 0 || value > LIMIT_MAX)
        return false;
    *limit_p = (unsigned) value;
    return true;
}

void bt_admin_rooms_list(const bt_transfer_t *transfer, bt_str_t query, bt_admin_reply_t *reply)
{
    unsigned limit = BT_ADMIN_ROOMS_LIMIT;
    bt_str_t name, value;

    if (transfer == NULL) {
        bt_reply_error(reply, 404,
                       "this gateway steers no KV transfer: give it --transfer-port, and the "
                       "engines' agents its address");
        return;
    }
    while (bt_query_next(&query, &name, &value))
        if (!bt_str_eq(name, BT_STR("limit")) || !read_limit(value, &limit)) {
            bt_reply_error(reply, 400, "?limit=N, with N from 0 to %d, is all that this takes",
                           LIMIT_MAX);
            return;
        }
    bt_transfer_describe(transfer, limit, &reply->body);
}
