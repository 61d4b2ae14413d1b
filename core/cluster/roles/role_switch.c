/* A tick every 50 ms drives a switch until the engine is asked; its answer drives the rest:
 *
 *   no legs, twice in a row --(SGLang)--> POST /pd_role_switch -> 200 -> registry
 *          |                                 | busy: again       400, 404: serves on in its old role
 *          +--(others)--> registry           | no answer, 5xx: again, then out with its role unknown
 *
 * Twice, because a loop may hold a choice that it made before it heard of the switch. SGLang refuses while anything runs, other
 * gateways' requests and transfers included, so "not idle" is asked again; asked for the role that it has it says success, so a lost
 * answer is asked again too, and all gateways of a fleet may ask. */
#include "cluster/roles/role_switch.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/flight.h"
#include "base/json.h"
#include "base/log.h"
#include "cluster/checks/probe.h"

#include <stdio.h>
#include <stdlib.h>

#define TICK_MS 50
#define ASK_AGAIN_MS 200
#define ANSWER_MAX ((size_t) 4096)

struct bt_role_switches {
    bt_loop_t *loop;
    bt_registry_t *registry;
    const char *api_key;
    bt_role_complete_cb complete;
    void *user;
    bt_role_note_cb note;
    void *note_user;
    bt_role_failed_cb on_failed;
    void *failed_user;
    bt_list_t running;
    bt_probe_limit_t limit;
};

typedef struct role_switch {
    bt_list_t link;
    bt_role_switches_t *all;
    bt_worker_t *worker;
    bt_worker_spec_t spec; /* of the worker that takes its place */
    uint64_t timeout_ms, deadline_ms, settled_ms;
    bool was_idle;   /* at the last tick */
    bool is_unclear; /* the engine may have changed: its last answer is missing */
    bool is_reported;
    bt_timer_t timer;
    bt_upstream_t *up;
    bt_probe_t call;
    char body[64];
} role_switch_t;

static void tell(const role_switch_t *sw, bool is_end, const char *why)
{
    if (sw->all->note != NULL)
        sw->all->note(sw->all->note_user, sw->worker, sw->spec.role, is_end, why);
}

static void end_switch(role_switch_t *sw)
{
    bt_list_remove(&sw->link);
    bt_timer_stop(&sw->timer);
    bt_probe_fini(&sw->call);
    if (sw->up != NULL)
        bt_upstream_free(sw->up);
    bt_worker_unref(sw->worker);
    bt_worker_spec_fini(&sw->spec);
    free(sw);
}

static void give_up(role_switch_t *sw, const char *why)
{
    bt_worker_t *w = sw->worker;

    tell(sw, false, NULL);
    snprintf(w->switch_why, sizeof w->switch_why, "%s", why);
    atomic_store(&w->switching, sw->is_unclear ? BT_SWITCH_UNKNOWN : BT_SWITCH_NONE);
    bt_worker_note_service(w);
    bt_workers_changed();
    bt_log_error("cluster", "worker %s does not become %s: %s; %s", w->name,
                 bt_role_name(sw->spec.role), why,
                 sw->is_unclear ? "it gets no requests until its role is set again"
                                : "it serves on in its old role");
    tell(sw, true, why);
    if (sw->all->on_failed != NULL)
        sw->all->on_failed(sw->all->failed_user, w, sw->spec.role, sw->is_unclear);
    end_switch(sw);
}

static bool is_current(const role_switch_t *sw)
{
    return bt_workers_find(bt_registry_current(sw->all->registry), bt_str(sw->worker->name)) ==
           sw->worker;
}

static void take_role(role_switch_t *sw)
{
    char err[256] = "it was removed or replaced meanwhile";

    tell(sw, false, NULL);
    if (bt_registry_replace(sw->all->registry, sw->worker, &sw->spec, err, sizeof err) < 0) {
        sw->is_unclear = sw->worker->engine == BT_ENGINE_SGLANG; /* it has changed already */
        give_up(sw, err);
        return;
    }
    bt_log_info("cluster", "worker %s is %s now", sw->worker->name, bt_role_name(sw->spec.role));
    bt_flight_note(BT_FLIGHT_WORKER, 0, "%s is %s now", sw->worker->name,
                   bt_role_name(sw->spec.role));
    tell(sw, true, NULL);
    end_switch(sw);
}

/* ---- the engine ---- */

static void ask_later(role_switch_t *sw, const char *why)
{
    if (bt_clock_ms() >= sw->deadline_ms)
        give_up(sw, why);
    else
        bt_timer_start(&sw->timer, ASK_AGAIN_MS);
}

/* SGLang's {"success":...,"message":...}. */
static bool has_switched(bt_str_t body, char *message, size_t size)
{
    bt_json_item_t item;

    if (bt_json_get(body, BT_STR("message"), &item) == 0)
        snprintf(message, size, "the engine says: %.*s", BT_STR_ARG(item.value));
    return bt_json_get(body, BT_STR("success"), &item) == 0 &&
           bt_str_eq(item.value, BT_STR("true"));
}

static void on_refused(role_switch_t *sw, unsigned status, const char *message)
{
    const bool is_switching = strstr(message, "switching") != NULL;

    if (status >= 500)
        sw->is_unclear = true; /* a rebuild that failed */
    else if (!is_switching)
        sw->is_unclear = false;
    if (status >= 500 || is_switching || strstr(message, "idle") != NULL)
        ask_later(sw, message);
    else
        give_up(sw, message);
}

static void on_answer(bt_probe_t *p, int rc)
{
    role_switch_t *sw = bt_container_of(p, role_switch_t, call);
    char message[160];

    if (rc < 0) {
        sw->is_unclear = true;
        ask_later(sw, bt_err_text(rc));
        return;
    }
    snprintf(message, sizeof message,
             p->status == 404 ? "HTTP %u: start the engine with --enable-pd-role-switch"
                              : "HTTP %u",
             p->status);
    if (has_switched(bt_text_str(&p->body), message, sizeof message) && p->status == 200)
        take_role(sw);
    else
        on_refused(sw, p->status, message);
}

static int connect_to(role_switch_t *sw)
{
    struct sockaddr_storage addr;

    if (!bt_worker_get_addr(sw->worker, &addr))
        return BT_E_RESOLVE;
    if (sw->up != NULL) {
        bt_upstream_set_addr(sw->up, (const struct sockaddr *) &addr);
        return 0;
    }
    const bt_upstream_config_t config = {
        .idle_max = 1, .tls = sw->worker->tls, .tls_name = bt_worker_tls_name(sw->worker)};
    return bt_upstream_new(&sw->up, sw->all->loop, (const struct sockaddr *) &addr, &config);
}

static void ask_engine(role_switch_t *sw)
{
    const bt_worker_t *w = sw->worker;
    const uint64_t now_ms = bt_clock_ms();
    int rc = connect_to(sw);

    if (rc == 0) {
        const bt_probe_target_t target = {.up = sw->up,
                                          .authority = w->authority,
                                          .base_path = w->base_path,
                                          .path = "/pd_role_switch",
                                          .api_key = w->spec.api_key != NULL ? w->spec.api_key
                                                                             : sw->all->api_key,
                                          .body = sw->body};
        rc = bt_probe_start(&sw->call, &target,
                            sw->deadline_ms > now_ms ? sw->deadline_ms - now_ms : 1, ANSWER_MAX,
                            on_answer);
    }
    if (rc < 0)
        ask_later(sw, bt_err_text(rc));
}

/* ---- the drain ---- */

static void on_drained(role_switch_t *sw)
{
    if (sw->worker->engine != BT_ENGINE_SGLANG || sw->is_reported) {
        take_role(sw); /* its role is ours to say, or its engine has said it */
        return;
    }
    atomic_store(&sw->worker->switching, BT_SWITCH_ASKING);
    sw->deadline_ms = bt_clock_ms() + sw->timeout_ms;
    ask_engine(sw);
}

/* Other gateways' requests keep SGLang busy as well as ours. What they tell of is a moment old, and ends with them. */
static bool is_idle_now(const bt_worker_t *w)
{
    return !bt_worker_has_legs(w) &&
           (w->engine != BT_ENGINE_SGLANG || (bt_worker_requests(w, BT_PHASE_PREFILL) <= 0 &&
                                              bt_worker_requests(w, BT_PHASE_DECODE) <= 0));
}

static void tick(bt_timer_t *timer)
{
    role_switch_t *sw = bt_container_of(timer, role_switch_t, timer);
    const bool is_idle = is_idle_now(sw->worker) && bt_clock_ms() >= sw->settled_ms;

    if (!is_current(sw)) {
        give_up(sw, "it was removed or replaced meanwhile");
    } else if (atomic_load(&sw->worker->switching) == BT_SWITCH_ASKING) {
        ask_engine(sw);
    } else if (is_idle && sw->was_idle) {
        on_drained(sw);
    } else if (!is_idle && bt_clock_ms() >= sw->deadline_ms) {
        give_up(sw, "requests still ran on it when its time to drain was over");
    } else {
        sw->was_idle = is_idle;
        bt_timer_start(timer, TICK_MS);
    }
}

/* ---- may it? ---- */

/* Another worker is the same process: another rank of it, or it stands in two pools. */
static bool shares_engine(const bt_workers_t *set, const bt_worker_t *w)
{
    for (unsigned i = 0; i < set->pool_count; i++)
        for (unsigned j = 0; j < set->pools[i].all.count; j++) {
            const bt_worker_t *o = set->pools[i].all.items[j];
            if (o != w && o->port == w->port && strcasecmp(o->host, w->host) == 0 &&
                strcmp(o->base_path, w->base_path) == 0)
                return true;
        }
    return false;
}

static bool is_last(const bt_worker_pool_t *pool, const bt_worker_t *w)
{
    const uint64_t now_ms = bt_clock_ms();

    for (unsigned i = 0; i < pool->all.count; i++) {
        const bt_worker_t *o = pool->all.items[i];
        if (o != w && o->spec.role == w->spec.role && bt_worker_usable(o, now_ms))
            return false;
    }
    return bt_worker_usable(w, now_ms);
}

static const char *why_not_now(const bt_registry_t *r, const bt_worker_t *w,
                               const bt_role_switch_ask_t *ask)
{
    const bt_workers_t *set = bt_registry_current((bt_registry_t *) r);
    const bt_worker_pool_t *pool = bt_workers_pool_of(set, w);
    const int state = atomic_load(&w->switching);

    if (pool == NULL)
        return "it is no worker any more";
    if (state == BT_SWITCH_DRAINING || state == BT_SWITCH_ASKING)
        return "its role is being switched already";
    if (w->spec.role == ask->to && state == BT_SWITCH_NONE)
        return "it has this role already";
    if (shares_engine(set, w))
        return "other workers are the same engine process (ranks, or pools): they cannot have two "
               "roles; remove them first";
    if (!ask->is_forced && is_last(pool, w))
        return "it is the last usable worker of its role in the pool; add another, or say "
               "force=true";
    return NULL;
}

/* The worker that it would become, tried aside: later is too late, its engine has changed then. */
static int try_spec(const bt_worker_t *w, const bt_worker_spec_t *spec, char *err, size_t err_size)
{
    bt_worker_t *fresh;
    int rc;

    if (w->engine == BT_ENGINE_SGLANG && !bt_role_is_of_pair(spec->role)) {
        snprintf(err, err_size, "SGLang switches between prefill and decode only");
        return BT_E_CONFIG;
    }
    if ((rc = bt_worker_new(&fresh, spec, 0, w->slot, NULL, err, err_size)) < 0)
        return rc;
    if (fresh->refusal != NULL)
        snprintf(err, err_size, "as %s it could not take part in a pair: %s",
                 bt_role_name(spec->role), fresh->refusal);
    rc = fresh->refusal != NULL ? BT_E_CONFIG : 0;
    bt_worker_unref(fresh);
    return rc;
}

/* Its old spec, the role, and what its pool says of workers in it: SGLang's bootstrap port of a prefill. */
static int make_spec(const bt_role_switches_t *s, const bt_worker_t *w, enum bt_role to,
                     bt_worker_spec_t *spec, char *err, size_t err_size)
{
    const bt_worker_pool_t *pool = bt_workers_pool_of(bt_registry_current(s->registry), w);
    int rc = bt_worker_spec_copy(spec, &w->spec);

    if (rc < 0)
        return rc;
    spec->role = to;
    if (s->complete != NULL && pool != NULL)
        rc = s->complete(s->user, pool->spec.name, spec, err, err_size);
    return rc == 0 ? try_spec(w, spec, err, err_size) : rc;
}

/* ---- the public verbs ---- */

int bt_role_switches_new(bt_role_switches_t **switches_p, bt_loop_t *loop, bt_registry_t *registry,
                         const char *api_key, bt_role_complete_cb complete, void *user)
{
    bt_role_switches_t *s = calloc(1, sizeof *s);

    if (s == NULL)
        return BT_E_NOMEM;
    *s = (bt_role_switches_t){
        .loop = loop, .registry = registry, .api_key = api_key, .complete = complete, .user = user};
    bt_list_init(&s->running);
    bt_probe_limit_init(&s->limit, 64);
    *switches_p = s;
    return 0;
}

void bt_role_switches_on_note(bt_role_switches_t *s, bt_role_note_cb note, void *user)
{
    s->note = note;
    s->note_user = user;
}

void bt_role_switches_on_failed(bt_role_switches_t *s, bt_role_failed_cb on_failed, void *user)
{
    s->on_failed = on_failed;
    s->failed_user = user;
}

void bt_role_switches_free(bt_role_switches_t *s)
{
    bt_list_t *it, *tmp;

    if (s == NULL)
        return;
    s->limit.max = 0; /* nothing more goes through while they end */
    bt_list_each (&s->running, it, tmp)
        end_switch(bt_container_of(it, role_switch_t, link));
    free(s);
}

static void start_drain(role_switch_t *sw)
{
    bt_worker_t *w = sw->worker;

    w->switch_to = sw->spec.role;
    w->switch_why[0] = '\0';
    sw->deadline_ms = bt_clock_ms() + sw->timeout_ms;
    if (sw->deadline_ms < sw->settled_ms)
        sw->deadline_ms = sw->settled_ms + 2 * TICK_MS;
    snprintf(sw->body, sizeof sw->body, "{\"new_role\":\"%s\"}", bt_role_name(sw->spec.role));
    sw->is_unclear =
        atomic_exchange(&w->switching, BT_SWITCH_DRAINING) == BT_SWITCH_UNKNOWN || sw->is_reported;
    bt_worker_note_service(w);
    bt_workers_changed();
    bt_log_info("cluster", "worker %s drains to become %s", w->name, bt_role_name(sw->spec.role));
    bt_timer_start(&sw->timer, TICK_MS);
}

int bt_role_switches_begin(bt_role_switches_t *s, bt_worker_t *w, const bt_role_switch_ask_t *ask,
                           char *err, size_t err_size)
{
    const char *why = why_not_now(s->registry, w, ask);
    role_switch_t *sw;
    int rc;

    if (why != NULL) {
        snprintf(err, err_size, "%s", why);
        return BT_E_AGAIN;
    }
    if ((sw = calloc(1, sizeof *sw)) == NULL)
        return BT_E_NOMEM;
    bt_worker_spec_init(&sw->spec);
    if ((rc = make_spec(s, w, ask->to, &sw->spec, err, err_size)) < 0) {
        bt_worker_spec_fini(&sw->spec);
        free(sw);
        return rc;
    }
    sw->all = s;
    sw->worker = bt_worker_ref(w);
    sw->timeout_ms = ask->timeout_ms;
    sw->is_reported = ask->is_reported;
    sw->settled_ms = bt_clock_ms() + ask->settle_ms;
    bt_timer_init(s->loop, &sw->timer, tick);
    bt_probe_init(&sw->call, &s->limit);
    bt_list_push(&s->running, &sw->link);
    start_drain(sw);
    return 0;
}
