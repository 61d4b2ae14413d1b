#include "gateway/kubernetes.h"

#include "base/err.h"
#include "cluster/url.h"
#include "config/kubernetes.h"

#include <stdio.h>
#include <stdlib.h>

/* What the pool says of workers that say nothing is added to a copy, because another configuration may say something else. */
static int complete(const bt_gateway_t *g, bt_found_change_t *all, bt_found_change_t *taken)
{
    int rc = bt_worker_spec_copy(&taken->found.spec, &all->found.spec);

    taken->found.pool = all->found.pool;
    taken->is_gone = all->is_gone;
    taken->has_ended = all->has_ended;
    if (rc < 0 || all->is_gone)
        return rc;
    return bt_config_check_found(g->fleet_config, all->found.pool, "--workers-kubernetes",
                                 &taken->found.spec, all->why, sizeof all->why);
}

/* Of this place and before: the registry knows no more of those that have left it. */
static void end_left(const bt_gateway_t *g, const bt_found_change_t *change)
{
    bt_url_t url;
    char ignored[160];

    if (!change->has_ended || change->rc < 0 || g->monitor == NULL ||
        bt_url_parse(&url, bt_str(change->found.spec.url), ignored, sizeof ignored) < 0)
        return;
    bt_monitor_place_ended(g->monitor, url.host, url.port);
    bt_url_fini(&url);
}

/* What all sources come to. Those that the configuration refuses are not for the registry. */
static int on_change(void *user, bt_found_change_t *changes, unsigned count)
{
    bt_gateway_t *g = user;
    bt_found_change_t *taken = calloc(count, sizeof *taken);
    unsigned *places = calloc(count, sizeof *places), n = 0;
    int rc = taken != NULL && places != NULL ? 0 : BT_E_NOMEM;

    for (unsigned i = 0; i < count && rc == 0; i++) {
        changes[i].rc = complete(g, &changes[i], &taken[n]);
        rc = changes[i].rc == BT_E_NOMEM ? BT_E_NOMEM : 0;
        if (changes[i].rc == 0)
            places[n++] = i;
        else
            bt_worker_spec_fini(&taken[n].found.spec);
    }
    if (rc == 0 && n > 0)
        rc = bt_registry_change_found(g->registry, BT_NAMED_KUBERNETES, taken, n);
    for (unsigned i = 0; i < n; i++) {
        changes[places[i]].rc = taken[i].rc;
        memcpy(changes[places[i]].why, taken[i].why, sizeof taken[i].why);
        if (rc == 0)
            end_left(g, &taken[i]);
        bt_worker_spec_fini(&taken[i].found.spec);
    }
    free(taken);
    free(places);
    return rc;
}

/* What one source says. */
static int on_word(void *user, bt_found_change_t *changes, unsigned count)
{
    const bt_gateway_kube_t *from = user;
    bt_gateway_t *g = from->gateway;
    const bt_workers_t *now = bt_registry_current(g->registry);
    const char *first_pool = now->pool_count > 0 ? now->pools[0].spec.name : "";

    return g->kube_words == NULL
               ? on_change(g, changes, count)
               : bt_kube_words_change(g->kube_words, from->source, first_pool, changes, count);
}

/* Metrics tell them apart by their labels. */
static int refuse_twice(const bt_gateway_t *g, unsigned i, char *err, size_t err_size)
{
    bt_kube_stats_t a, b;

    bt_kube_stats(g->kubes[i], &a);
    for (unsigned k = 0; k < i; k++) {
        bt_kube_stats(g->kubes[k], &b);
        if (strcmp(a.label, b.label) == 0)
            return bt_err_refuse(err, err_size,
                                 "--workers-kubernetes: \"%.200s\" is said twice: the same "
                                 "namespace and selector",
                                 a.label);
    }
    return 0;
}

int bt_gateway_kubernetes_open(bt_gateway_t *g, char *err, size_t err_size)
{
    const unsigned count = g->config->workers_kubernetes_count;
    char why[BT_CONFIG_ERR_BYTES] = "";

    if (count > 1 && bt_kube_words_new(&g->kube_words, count, on_change, g) < 0)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < count; i++) {
        bt_kube_options_t *options = &g->kube_options[i];
        const char *text = g->config->workers_kubernetes[i];
        g->kube_users[i] = (bt_gateway_kube_t){.gateway = g, .source = i};
        int rc = bt_config_kubernetes_read(options, bt_str(text), why, sizeof why);
        if (rc == 0)
            rc = bt_kube_open(&g->kubes[i], &g->control, options, on_word, &g->kube_users[i], why,
                              sizeof why);
        if (rc < 0) {
            bt_config_kubernetes_fini(options);
            return rc == BT_E_CONFIG ? bt_err_refuse(err, err_size, "--workers-kubernetes: %s", why)
                                     : rc;
        }
        g->kube_count = i + 1;
        if ((rc = refuse_twice(g, i, err, err_size)) < 0)
            return rc;
    }
    return 0;
}

void bt_gateway_kubernetes_start(bt_gateway_t *g)
{
    for (unsigned i = 0; i < g->kube_count; i++)
        bt_kube_start(g->kubes[i]);
}

void bt_gateway_kubernetes_again(bt_gateway_t *g)
{
    for (unsigned i = 0; i < g->kube_count; i++)
        bt_kube_again(g->kubes[i]);
}

void bt_gateway_kubernetes_stop(bt_gateway_t *g)
{
    for (; g->kube_count > 0; g->kube_count--) {
        bt_kube_close(g->kubes[g->kube_count - 1]);
        bt_config_kubernetes_fini(&g->kube_options[g->kube_count - 1]);
    }
    bt_kube_words_free(g->kube_words);
    g->kube_words = NULL;
}
