/* As policies.c: the exchange points to a `wait` until the rollout is over; both may end first. */
#include "admin/rollout.h"

#include "admin/admin.h"
#include "admin/paths.h"
#include "admin/query.h"
#include "admin/routes.h"
#include "base/err.h"

struct wait {
    struct bt_admin_wait base;
    const bt_rollout_admin_ops_t *ops;
    void *user;
    bt_exchange_t *x;
};

static void on_done(void *arg, unsigned status, bt_str_t text)
{
    struct wait *w = arg;

    bt_admin_notify(w->x, status, text);
}

static void on_gone(struct bt_admin_wait *base)
{
    struct wait *w = bt_container_of(base, struct wait, base);

    w->ops->cancel(w->user, w);
}

void bt_rollout_ask_change(const bt_rollout_admin_ops_t *ops, void *user, bt_exchange_t *x,
                           const bt_rollout_request_t *ask)
{
    struct wait *w = bt_arena_zalloc(&x->arena, sizeof(*w));

    *w = (struct wait){.base.gone = on_gone, .ops = ops, .user = user, .x = x};
    x->user = &w->base;
    ops->change(user, ask, on_done, w);
}

static int take_pair(bt_str_t name, bt_str_t value, char *by, size_t by_size, uint64_t *number_p)
{
    bt_text_t text;
    int rc;

    bt_text_init(&text);
    rc = bt_query_decode(&text, value, true);
    if (rc == 0 && bt_str_eq(name, BT_STR("to"))) {
        rc = bt_str_u64(bt_text_str(&text), number_p);
    } else if (rc == 0 && bt_str_eq(name, BT_STR("by")) && text.len > 0) {
        bt_str_copy(by, by_size, text.data);
        bt_str_tame(by, strlen(by));
    }
    bt_text_fini(&text);
    return rc < 0 ? BT_E_INVAL : 0;
}

int bt_rollout_ask_query(bt_str_t query, char *by, size_t by_size, uint64_t *number_p)
{
    bt_str_t name, value;

    bt_str_copy(by, by_size, "admin");
    *number_p = 0;
    while (bt_query_next(&query, &name, &value))
        if (take_pair(name, value, by, by_size, number_p) < 0)
            return BT_E_INVAL;
    return 0;
}
