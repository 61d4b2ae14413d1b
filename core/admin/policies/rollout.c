/* As policies.c: the exchange points to a `wait` until the rollout is over; both may end first. */
#include "admin/policies/rollout.h"

#include "admin/call/query.h"
#include "admin/policies/policies.h"
#include "admin/policies/rollout_json.h"
#include "base/err.h"

struct wait {
    struct bt_admin_wait base;
    bt_rollout_t *rollout;
    bt_exchange_t *x;
    bt_audit_change_t *change;
    enum bt_answer_state what;
    char name[BT_ROLLOUT_NAME_MAX + 1];
};

/* ---- what is wanted ---- */

static unsigned edit(void *arg, bt_rollout_set_t *set, char *err, size_t err_size)
{
    const struct wait *w = arg;

    switch (w->what) {
    case BT_WANTS_FLEET_PUT:
    case BT_WANTS_FLEET_PUT_RULES:
        return bt_rollout_put_text(set, w->name, w->x->body, err, err_size);
    case BT_WANTS_FLEET_BUNDLE:
        return bt_rollout_put_bundle(set, w->x->body, err, err_size);
    case BT_WANTS_FLEET_CLEAR:
        bt_rollout_set_clear(set);
        return 0;
    default:
        return bt_rollout_drop_text(set, w->name, err, err_size);
    }
}

static void on_done(void *arg, const bt_rollout_outcome_t *outcome)
{
    struct wait *w = arg;
    bt_text_t text;

    bt_text_init(&text);
    if (outcome->status == 200)
        bt_rollout_write_outcome(w->rollout, outcome, &text);
    else
        bt_text_puts(&text, outcome->why);
    bt_admin_notify(w->x, w->change, outcome->status, bt_text_str(&text));
    bt_text_fini(&text);
}

static void on_gone(struct bt_admin_wait *base)
{
    struct wait *w = bt_container_of(base, struct wait, base);

    bt_rollout_forget(w->rollout, w);
    bt_admin_abandon(w->change);
}

static void pin(bt_rollout_t *r, bt_exchange_t *x, bt_audit_change_t *change, bool is_pinned)
{
    bt_text_t text;

    bt_rollout_pin(r, is_pinned);
    bt_text_init(&text);
    bt_rollout_write_pin(r, &text);
    bt_admin_notify(x, change, 200, bt_text_str(&text));
    bt_text_fini(&text);
}

void bt_rollout_answer(bt_rollout_t *r, bt_exchange_t *x, const bt_rollout_request_t *ask)
{
    if (ask->what == BT_WANTS_FLEET_PIN || ask->what == BT_WANTS_FLEET_UNPIN) {
        pin(r, x, ask->change, ask->what == BT_WANTS_FLEET_PIN);
        return;
    }
    struct wait *w = bt_arena_zalloc(&x->arena, sizeof(*w));
    const bt_rollout_change_t change = {.edit = ask->what == BT_WANTS_FLEET_BACK ? NULL : edit,
                                        .back = ask->number,
                                        .is_dry_run = ask->is_dry_run,
                                        .by = ask->by,
                                        .done = on_done,
                                        .arg = w};
    *w = (struct wait){
        .base.gone = on_gone, .rollout = r, .x = x, .change = ask->change, .what = ask->what};
    bt_str_copy(w->name, sizeof w->name, ask->name);
    x->user = &w->base;
    int rc = bt_rollout_change(r, &change);
    if (rc == BT_E_AGAIN)
        bt_admin_notify(x, ask->change, 409,
                        BT_STR("this replica is rolling something out: try again when it is done"));
    else if (rc < 0)
        bt_admin_notify(x, ask->change, 503,
                        rc == BT_E_CANCELLED ? BT_STR("the gateway is ending")
                                             : bt_str(bt_err_text(rc)));
}

/* ---- the query ---- */

static int take_pair(bt_str_t name, bt_str_t value, char *by, size_t by_size, uint64_t *number_p,
                     bool *is_dry_run_p)
{
    bt_text_t text;
    int rc;

    bt_text_init(&text);
    rc = bt_query_decode(&text, value, true);
    if (rc == 0 && bt_str_eq(name, BT_STR("to"))) {
        rc = bt_str_u64(bt_text_str(&text), number_p);
    } else if (rc == 0 && bt_str_eq(name, BT_STR("dry_run"))) {
        *is_dry_run_p = bt_str_eq(bt_text_str(&text), BT_STR("true"));
        rc = *is_dry_run_p || bt_str_eq(bt_text_str(&text), BT_STR("false")) ? 0 : BT_E_INVAL;
    } else if (rc == 0 && bt_str_eq(name, BT_STR("by")) && text.len > 0) {
        bt_str_copy(by, by_size, text.data);
        bt_str_tame(by, strlen(by));
    }
    bt_text_fini(&text);
    return rc < 0 ? BT_E_INVAL : 0;
}

int bt_rollout_query(bt_str_t query, char *by, size_t by_size, uint64_t *number_p,
                     bool *is_dry_run_p)
{
    bt_str_t name, value;

    bt_str_copy(by, by_size, "admin");
    *number_p = 0;
    *is_dry_run_p = false;
    while (bt_query_next(&query, &name, &value))
        if (take_pair(name, value, by, by_size, number_p, is_dry_run_p) < 0)
            return BT_E_INVAL;
    return 0;
}

/* ---- handlers ---- */

static bool has_rollout(const bt_admin_call_t *c)
{
    if (c->config->rollout != NULL)
        return true;
    bt_reply_error(c->reply, 404,
                   "this gateway is alone: --redis-url makes it one of a fleet; PUT "
                   "/policies/<name> changes this one");
    return false;
}

void bt_rollouts_list(const bt_admin_call_t *c)
{
    if (has_rollout(c))
        bt_rollout_list(c->config->rollout, &c->reply->body);
}

void bt_rollouts_check(const bt_admin_call_t *c)
{
    static const char *const needed[] = {
        [BT_WANTS_FLEET_PUT] = "the policy's Lua text",
        [BT_WANTS_FLEET_BUNDLE] = "JSON: {\"policies\": {\"name\": \"text\"}, \"rules\": \"text\"}",
        [BT_WANTS_FLEET_PUT_RULES] = "the text of the rules file",
        [BT_WANTS_FLEET_UNPIN] = NULL};
    bt_admin_reply_t *reply = c->reply;

    if (!has_rollout(c))
        return;
    if (needed[c->state] != NULL && c->request->body.n == 0)
        bt_reply_error(reply, 400, "the body must be %s", needed[c->state]);
    else if (bt_rollout_query(c->request->query, reply->by, sizeof reply->by, &reply->number,
                              &reply->is_dry_run) < 0)
        bt_reply_error(reply, 400,
                       "to is the number of a set; by is who asks; dry_run is true or false: it "
                       "has not been done");
    else if (reply->is_dry_run && c->state >= BT_WANTS_FLEET_BACK)
        bt_reply_error(reply, 400, "this has no dry run: it has not been done");
    else if (c->state == BT_WANTS_FLEET_PUT || c->state == BT_WANTS_FLEET_DROP)
        bt_policies_take_name(c);
}
