/* Names whose addresses are workers. Not there at all without --workers-dns. */
#include "admin/metrics/metrics.h"

#include <stdio.h>

typedef struct subject {
    bt_dns_stats_t stats;
    char name[BT_DNS_NAME_MAX + 8];
    bt_label_t labels[3]; /* the first two are filled: name, pool */
} subject_t;

static void write_lookups(bt_prom_t *p, subject_t *s)
{
    for (unsigned i = 0; i < BT_DNS_RESULTS; i++) {
        s->labels[2] = (bt_label_t){"result", bt_str(bt_dns_result_name((enum bt_dns_result) i))};
        bt_prom_count(p, s->labels, 3, s->stats.lookups[i]);
    }
}

static void write_addresses(bt_prom_t *p, subject_t *s)
{
    s->labels[2] = (bt_label_t){"state", BT_STR("named")};
    bt_prom_count(p, s->labels, 3, s->stats.known - s->stats.missing);
    s->labels[2] = (bt_label_t){"state", BT_STR("missing")};
    bt_prom_count(p, s->labels, 3, s->stats.missing);
}

static void write_age(bt_prom_t *p, subject_t *s)
{
    bt_prom_micro(p, s->labels, 2, s->stats.age_ms * 1000);
}

static const struct {
    const char *name, *type, *help;
    void (*write)(bt_prom_t *p, subject_t *s);
} families[] = {
    {"baton_dns_lookups_total", "counter",
     "Lookups of a name of --workers-dns, by what came of them; all but ok change nothing at once",
     write_lookups},
    {"baton_dns_addresses", "gauge",
     "Workers known by the name; missing: kept although the last answer did not name them",
     write_addresses},
    {"baton_dns_answer_age_seconds", "gauge",
     "Age of the last answer with addresses; where there was none, since the name is followed",
     write_age},
};

void bt_metrics_dns(bt_prom_t *p, const bt_dns_t *dns)
{
    for (unsigned f = 0; bt_dns_count(dns) > 0 && f < sizeof families / sizeof families[0]; f++) {
        bt_prom_family(p, families[f].name, families[f].type, families[f].help);
        for (unsigned i = 0; i < bt_dns_count(dns); i++) {
            subject_t s;
            bt_dns_stats(dns, i, &s.stats);
            snprintf(s.name, sizeof s.name, s.stats.port > 0 ? "%s:%u" : "%s", s.stats.name,
                     s.stats.port);
            s.labels[0] = (bt_label_t){"name", bt_str(s.name)};
            s.labels[1] = (bt_label_t){"pool", bt_str(s.stats.pool)};
            families[f].write(p, &s);
        }
    }
}
