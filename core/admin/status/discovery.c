/* Sources that find workers by themselves: what each knows and, of what it cannot use, why. */
#include "admin/status/discovery.h"

void bt_admin_discovery(const bt_admin_call_t *c)
{
    bt_text_puts(&c->reply->body, "{\"sources\":[");
    for (unsigned i = 0; i < c->config->kube_count; i++) {
        bt_text_puts(&c->reply->body, i > 0 ? "," : "");
        bt_kube_describe(c->config->kubes[i], &c->reply->body);
    }
    bt_text_puts(&c->reply->body, "]}\n");
}

static void write_pods(bt_prom_t *p, const bt_kube_stats_t *s)
{
    for (unsigned i = 0; i < BT_KUBE_STATES; i++) {
        const bt_label_t labels[] = {{"source", bt_str(s->label)},
                                     {"state", bt_str(bt_kube_state_name((enum bt_kube_state) i))}};
        bt_prom_count(p, labels, 2, s->counts.by_state[i]);
    }
}

enum { WATCHING, EVENTS, LISTS, FAILURES, ROWS };

void bt_metrics_kubernetes(bt_prom_t *p, bt_kube_t *const *kubes, unsigned count)
{
    static const char *const rows[ROWS][3] = {
        {"baton_kubernetes_watching", "gauge",
         "1 while changes of pods are heard of; 0: what was known stays"},
        {"baton_kubernetes_events_total", "counter", "Changes of pods that came by a watch"},
        {"baton_kubernetes_lists_total", "counter", "Times that all pods were listed"},
        {"baton_kubernetes_failures_total", "counter", "Calls of the API server that ended badly"}};
    bt_kube_stats_t s;

    if (count == 0)
        return;
    bt_prom_family(p, "baton_kubernetes_pods", "gauge",
                   "Pods that the selector chooses, by state; GET /discovery says why some are "
                   "refused");
    for (unsigned i = 0; i < count; i++) {
        bt_kube_stats(kubes[i], &s);
        write_pods(p, &s);
    }
    for (unsigned row = 0; row < ROWS; row++) {
        bt_prom_family(p, rows[row][0], rows[row][1], rows[row][2]);
        for (unsigned i = 0; i < count; i++) {
            bt_kube_stats(kubes[i], &s);
            const bt_label_t label = {"source", bt_str(s.label)};
            const uint64_t values[ROWS] = {s.is_watching, s.events, s.lists, s.failures};
            bt_prom_count(p, &label, 1, values[row]);
        }
    }
}
