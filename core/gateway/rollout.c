/* Between the rollout, which knows the store but no policies, and the policies' jobs, which know no store. */
#include "gateway/rollout.h"

#include "base/err.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct background_call {
    bt_list_t link;
    struct bt_gateway_rollout *f;
    bt_rollout_set_t *set; /* reference */
} background_call_t;

static const char *space_of(const bt_gateway_t *g)
{
    return g->config->fleet_name != NULL ? g->config->fleet_name : "fleet";
}

/* ---- sets as policies ---- */

static int to_policies(const bt_rollout_set_t *set, bt_policy_set_t **policies_p)
{
    bt_policy_set_t *policies;
    int rc = bt_policy_set_new(&policies, set->info.number);

    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < set->count && rc == 0; i++) {
        const bt_rollout_file_t *file = &set->files[i];
        const bt_str_t text = {file->text, file->size};
        if (strcmp(file->name, BT_ROLLOUT_RULES) != 0) {
            rc = bt_policy_set_add(policies, file->name, text);
            continue;
        }
        policies->rules = bt_str_dup(text);
        policies->rules_size = text.n;
        rc = policies->rules != NULL ? 0 : BT_E_NOMEM;
    }
    if (rc < 0) {
        bt_policy_set_unref(policies);
        return rc;
    }
    *policies_p = policies;
    return 0;
}

static void free_background_call(background_call_t *e)
{
    bt_list_remove(&e->link);
    bt_rollout_set_unref(e->set);
    free(e);
}

static void on_over(void *user, bt_policy_set_t *policies, bool is_try, int rc, const char *err)
{
    background_call_t *e = user;
    bt_rollout_t *r = e->f->rollout;
    bt_rollout_set_t *set = bt_rollout_set_ref(e->set);

    (void) policies;
    free_background_call(e);
    if (is_try)
        bt_rollout_tried(r, set, rc, err);
    else
        bt_rollout_taken(r, set, rc, err);
    bt_rollout_set_unref(set);
}

static int hand_over(struct bt_gateway_rollout *f, bt_rollout_set_t *set, bool is_try)
{
    background_call_t *e = calloc(1, sizeof *e);
    bt_policy_set_t *policies;
    int rc;

    if (e == NULL)
        return BT_E_NOMEM;
    e->f = f;
    e->set = bt_rollout_set_ref(set);
    bt_list_push(&f->background, &e->link);
    rc = to_policies(set, &policies);
    if (rc < 0) {
        free_background_call(e);
        return rc;
    }
    rc = bt_reload_set(f->g->reload, policies, is_try, on_over, e);
    bt_policy_set_unref(policies);
    if (rc < 0)
        free_background_call(e);
    return rc;
}

static void try_set(void *user, bt_rollout_set_t *set)
{
    struct bt_gateway_rollout *f = user;
    int rc = hand_over(f, set, true);

    if (rc < 0)
        bt_rollout_tried(f->rollout, set, rc, bt_err_text(rc));
}

static void take_set(void *user, bt_rollout_set_t *set)
{
    struct bt_gateway_rollout *f = user;
    int rc = hand_over(f, set, false);

    if (rc < 0)
        bt_rollout_taken(f->rollout, set, rc, bt_err_text(rc));
}

static void set_pinned(void *user, bool is_pinned)
{
    const struct bt_gateway_rollout *f = user;

    if (f->g->reload != NULL)
        bt_reload_set_pinned(f->g->reload, is_pinned);
}

static void trouble(void *user, char *out, size_t size)
{
    const struct bt_gateway_rollout *f = user;

    bt_reload_trouble(f->g->reload, out, size);
}

static const bt_rollout_ops_t ops = {try_set, take_set, set_pinned, trouble};

/* ---- life ---- */

static void on_joined(void *user)
{
    struct bt_gateway_rollout *f = user;

    bt_loop_stop(&f->g->control);
}

static void on_join_over(bt_timer_t *timer)
{
    on_joined(bt_container_of(timer, struct bt_gateway_rollout, join));
}

/* The control loop has no other work yet but signals, and they end this too (gateway/signal.c). */
static void join(struct bt_gateway_rollout *f)
{
    bt_timer_init(&f->g->control, &f->join, on_join_over);
    bt_timer_start(&f->join, BT_FLEET_JOIN_MS);
    bt_rollout_join(f->rollout, on_joined, f);
    bt_loop_run(&f->g->control);
    bt_timer_stop(&f->join);
    if (!bt_rollout_has_joined(f->rollout) && !f->g->end_asked)
        bt_log_warn("fleet",
                    "the store has not said within %llu ms which policies the fleet is served by: "
                    "this replica begins with its own",
                    (unsigned long long) BT_FLEET_JOIN_MS);
}

int bt_gateway_rollout_open(bt_gateway_t *g)
{
    struct bt_gateway_rollout *f;
    int rc;

    if (!bt_store_is_shared(g->store))
        return 0;
    f = calloc(1, sizeof *f);
    if (f == NULL)
        return BT_E_NOMEM;
    f->g = g;
    g->rollouts = f;
    bt_list_init(&f->background);
    rc = bt_store_client_new(&f->client, g->store, &g->control, NULL, NULL);
    if (rc < 0)
        return rc;
    const bt_rollout_config_t config = {.client = f->client,
                                        .space = space_of(g),
                                        .replica = g->replica,
                                        .interval_ms = g->config->fleet_heartbeat_ms,
                                        .expiry_ms = g->config->fleet_expiry_ms,
                                        .ops = &ops,
                                        .user = f};
    rc = bt_rollout_new(&f->rollout, &g->control, &config);
    if (rc == 0)
        join(f);
    return rc;
}

bt_policy_set_t *bt_gateway_rollout_first(bt_gateway_t *g, bool *is_pinned_p)
{
    struct bt_gateway_rollout *f = g->rollouts;
    bt_policy_set_t *policies;

    *is_pinned_p = false;
    if (f == NULL)
        return NULL;
    *is_pinned_p = bt_rollout_is_pinned(f->rollout);
    f->first = bt_rollout_set_ref(bt_rollout_held(f->rollout));
    if (bt_rollout_is_blocked(f->rollout, f->first)) {
        bt_log_error("fleet",
                     "set %llu brought this replica down before: it starts without it until "
                     "another set is committed",
                     (unsigned long long) f->first->info.number);
        return NULL;
    }
    if (f->first->info.number == 0 || to_policies(f->first, &policies) < 0)
        return NULL;
    return policies;
}

void bt_gateway_rollout_start(bt_gateway_t *g)
{
    struct bt_gateway_rollout *f = g->rollouts;

    if (f == NULL)
        return;
    const bt_policy_set_t *serving = bt_reload_set_serving(g->reload);

    if (serving != NULL)
        bt_log_info("fleet", "set %llu of the fleet serves, from the start",
                    (unsigned long long) serving->number);
    bt_rollout_begin(f->rollout, serving != NULL ? f->first : NULL);
    bt_rollout_set_unref(f->first);
    f->first = NULL;
}

void bt_gateway_fleet_drain(bt_gateway_t *g)
{
    if (g->rollouts != NULL)
        bt_rollout_stop_changes(g->rollouts->rollout);
}

static void on_client_gone(void *user)
{
    struct bt_gateway_rollout *f = user;

    f->client = NULL;
    bt_loop_stop(&f->g->control);
}

static void on_left(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    struct bt_gateway_rollout *f = bt_container_of(op, struct bt_gateway_rollout, leave);

    (void) reply;
    bt_store_client_free(f->client, on_client_gone, f);
}

void bt_gateway_rollout_close(bt_gateway_t *g)
{
    struct bt_gateway_rollout *f = g->rollouts;

    if (f == NULL)
        return;
    g->rollouts = NULL;
    bt_rollout_leave(f->rollout);
    bt_rollout_free(f->rollout);
    f->leave = (bt_store_op_t){.what = BT_STORE_TABLE_DROP,
                               .space = bt_str(space_of(g)),
                               .key = BT_STR(BT_ROLLOUT_TABLE),
                               .field = bt_str(g->replica),
                               .cb = on_left};
    if (f->client != NULL)
        bt_store_do(f->client, &f->leave);
    while (f->client != NULL)
        bt_loop_run(&g->control);
    while (!bt_list_empty(&f->background))
        free_background_call(bt_container_of(f->background.next, background_call_t, link));
    bt_rollout_set_unref(f->first);
    free(f);
}
