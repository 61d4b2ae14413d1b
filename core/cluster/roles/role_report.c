/* An engine may have another role than its worker: somebody has switched it there, or it was switched, died, and began again as it was started. Requests
 * for the old role fail at it. So each engine is asked when its worker comes up, and again and again. /server_info may block for long while a
 * scheduler waits for others: then it says nothing. Its top level tells the role that the engine was started with, which is not asked for. */
#include "cluster/roles/role_report.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "cluster/checks/probe.h"

#include <stdlib.h>

#define TICK_MS 500
#define TIMEOUT_MS 5000
#define ANSWER_MAX ((size_t) 1 << 20)

struct bt_role_reports {
    bt_loop_t *loop;
    bt_registry_t *registry;
    bt_role_switches_t *switches;
    const char *api_key;
    uint64_t interval_ms;
    bt_timer_t timer;
    bt_list_t running;
    bt_probe_limit_t limit;
};

typedef struct question {
    bt_list_t link;
    bt_role_reports_t *all;
    bt_worker_t *worker;
    bt_upstream_t *up;
    bt_probe_t call;
} question_t;

static void end_question(question_t *q)
{
    bt_list_remove(&q->link);
    bt_probe_fini(&q->call);
    if (q->up != NULL)
        bt_upstream_free(q->up);
    q->worker->is_role_asked = false;
    bt_worker_unref(q->worker);
    free(q);
}

/* ---- what it says ---- */

int bt_role_report_read(bt_str_t json, enum bt_role *role_p)
{
    bt_json_item_t states, first, mode;
    bt_json_cursor_t c;
    char word[16];

    if (bt_json_get(json, BT_STR("internal_states"), &states) < 0 || states.type != BT_JSON_ARRAY ||
        bt_json_array(&c, states.value) < 0 || bt_json_next(&c, &first) != 1 ||
        first.type != BT_JSON_OBJECT ||
        bt_json_get(first.value, BT_STR("disaggregation_mode"), &mode) < 0 ||
        mode.type != BT_JSON_STRING)
        return BT_E_INVAL;
    const long n = bt_json_unescape(mode.value, word, sizeof word);
    const bt_str_t said = {word, n > 0 ? (size_t) n : 0};
    if (bt_str_eq(said, BT_STR("prefill")))
        *role_p = BT_ROLE_PREFILL;
    else if (bt_str_eq(said, BT_STR("decode")))
        *role_p = BT_ROLE_DECODE;
    else
        return BT_E_INVAL;
    return 0;
}

/* Whose role was in doubt, as a switch was lost or given up, is in service again by its engine's own word. */
static void settle(bt_worker_t *w)
{
    int unknown = BT_SWITCH_UNKNOWN;

    if (!atomic_compare_exchange_strong(&w->switching, &unknown, BT_SWITCH_NONE))
        return;
    bt_worker_note_service(w);
    bt_workers_changed();
    bt_log_info("cluster", "worker %s is %s: its engine says so", w->name,
                bt_role_name(w->spec.role));
}

static bool may_ask(const bt_worker_t *w)
{
    const int state = atomic_load(&w->switching);

    return state == BT_SWITCH_NONE || state == BT_SWITCH_UNKNOWN;
}

/* A switch of ours that runs will tell itself. */
static void follow(const bt_role_reports_t *r, bt_worker_t *w, enum bt_role role)
{
    const bt_role_switch_ask_t ask = {.to = role,
                                      .timeout_ms = BT_ROLE_SWITCH_TIMEOUT_MS,
                                      .is_forced = true,
                                      .is_reported = true};
    char err[256] = "out of memory";

    if (!may_ask(w) || bt_workers_pool_of(bt_registry_current(r->registry), w) == NULL)
        return;
    if (role == w->spec.role) {
        settle(w);
        return;
    }
    bt_log_warn("cluster", "worker %s is %s here, and its engine says that it is %s", w->name,
                bt_role_name(w->spec.role), bt_role_name(role));
    if (bt_role_switches_begin(r->switches, w, &ask, err, sizeof err) < 0)
        bt_log_error("cluster", "worker %s cannot be %s here: %s", w->name, bt_role_name(role),
                     err);
}

static void on_answer(bt_probe_t *p, int rc)
{
    question_t *q = bt_container_of(p, question_t, call);
    enum bt_role role;

    if (rc == 0 && p->status == 200 && bt_role_report_read(bt_text_str(&p->body), &role) == 0)
        follow(q->all, q->worker, role);
    end_question(q);
}

/* ---- asking ---- */

static int start(question_t *q)
{
    const bt_worker_t *w = q->worker;
    const bt_upstream_config_t config = {
        .idle_max = 1, .tls = w->tls, .tls_name = bt_worker_tls_name(w)};
    struct sockaddr_storage addr;
    int rc = bt_worker_get_addr(q->worker, &addr) ? 0 : BT_E_RESOLVE;

    if (rc == 0)
        rc = bt_upstream_new(&q->up, q->all->loop, (const struct sockaddr *) &addr, &config);
    if (rc < 0)
        return rc;
    const bt_probe_target_t target = {.up = q->up,
                                      .authority = w->authority,
                                      .base_path = w->base_path,
                                      .path = "/server_info",
                                      .api_key = w->spec.api_key != NULL ? w->spec.api_key
                                                                         : q->all->api_key};
    return bt_probe_start(&q->call, &target, TIMEOUT_MS, ANSWER_MAX, on_answer);
}

static void ask(bt_role_reports_t *r, bt_worker_t *w)
{
    question_t *q = calloc(1, sizeof *q);

    if (q == NULL)
        return;
    q->all = r;
    q->worker = bt_worker_ref(w);
    w->is_role_asked = true;
    bt_probe_init(&q->call, &r->limit);
    bt_list_push(&r->running, &q->link);
    if (start(q) < 0)
        end_question(q);
}

/* Control loop only: role_asked_ms 0 = not since it came up. */
static void look_at(bt_role_reports_t *r, bt_worker_t *w, uint64_t now_ms)
{
    if (w->engine != BT_ENGINE_SGLANG || !bt_role_is_of_pair(w->spec.role))
        return;
    if (atomic_load(&w->health) != BT_HEALTH_UP) {
        w->role_asked_ms = 0;
        return;
    }
    if (w->is_role_asked || !may_ask(w) ||
        (w->role_asked_ms != 0 && now_ms - w->role_asked_ms < r->interval_ms))
        return;
    w->role_asked_ms = now_ms;
    ask(r, w);
}

static void tick(bt_timer_t *timer)
{
    bt_role_reports_t *r = bt_container_of(timer, bt_role_reports_t, timer);
    const bt_workers_t *now = bt_registry_current(r->registry);
    const uint64_t now_ms = bt_clock_ms();

    for (unsigned i = 0; i < now->pool_count; i++)
        for (unsigned j = 0; j < now->pools[i].all.count; j++)
            look_at(r, now->pools[i].all.items[j], now_ms);
    bt_timer_start(timer, TICK_MS);
}

/* ---- life ---- */

int bt_role_reports_new(bt_role_reports_t **reports_p, bt_loop_t *loop, bt_registry_t *registry,
                        bt_role_switches_t *switches, const char *api_key, uint64_t interval_ms)
{
    bt_role_reports_t *r = calloc(1, sizeof *r);

    if (r == NULL)
        return BT_E_NOMEM;
    *r = (bt_role_reports_t){.loop = loop,
                             .registry = registry,
                             .switches = switches,
                             .api_key = api_key,
                             .interval_ms = interval_ms};
    bt_list_init(&r->running);
    bt_probe_limit_init(&r->limit, BT_ROLE_REPORTS_MAX);
    bt_timer_init(loop, &r->timer, tick);
    bt_timer_start(&r->timer, TICK_MS);
    *reports_p = r;
    return 0;
}

void bt_role_reports_free(bt_role_reports_t *r)
{
    bt_list_t *it, *tmp;

    if (r == NULL)
        return;
    bt_timer_stop(&r->timer);
    r->limit.max = 0; /* nothing more goes through while they end */
    bt_list_each (&r->running, it, tmp)
        end_question(bt_container_of(it, question_t, link));
    free(r);
}
