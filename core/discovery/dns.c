/* A source is one name with its own clock: the TTL of its answers within min and max, sooner where somebody may go, later and later
 * while it fails or has nobody. Who waits for a first worker does not wait long: an answer that there is nobody is the resolver's to keep for as long as the zone says
 * (the TTL of its SOA), and asking it every few seconds is cheap. The registry always gets what all sources know, so one that fails takes nobody away. A place
 * that two names lead to is the first one's. */
#include "discovery/dns.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/map.h"
#include "base/rand.h"
#include "base/text.h"
#include "cluster/url.h"
#include "cluster/worker_index.h"
#include "discovery/dns_known.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define URL_BYTES (BT_DNS_HOST_BYTES + 25)
#define LABEL_MAX 40 /* of an SRV target, in a worker's name */
#define BACKOFF_MAX 16

typedef struct source {
    bt_dns_t *dns;
    const bt_dns_name_t *said;
    bt_dns_known_t known;
    bt_timer_t timer;
    bt_dns_lookup_t *lookup; /* NULL = none runs */
    enum bt_dns_result told; /* the last that the log was told */
    unsigned failures;       /* in a row */
    uint64_t good_ms, lookups[BT_DNS_RESULTS];
} source_t;

struct bt_dns {
    bt_loop_t *loop;
    bt_registry_t *registry;
    bt_dns_config_t config;
    source_t **sources;
    unsigned count;
    bool is_stopped, is_refused; /* the registry has refused the set */
};

static const char *name_of(const bt_dns_name_t *said)
{
    return said->srv != NULL ? said->srv : said->name;
}

/* ---- what the registry hears ---- */

static void print_url(char out[URL_BYTES], const source_t *s, const bt_dns_place_t *p)
{
    const bool is_v6 = strchr(p->host, ':') != NULL;

    snprintf(out, URL_BYTES, "%s://%s%s%s:%u", s->said->has_tls ? "https" : "http",
             is_v6 ? "[" : "", p->host, is_v6 ? "]" : "", p->port);
}

/* Names go to clients, addresses do not: a hash stands for them. An SRV target's first label is told where it is a name: a pod of a
 * StatefulSet has one, others have their address there. */
static void print_name(char out[BT_WORKER_NAME_MAX + 1], const source_t *s, const bt_dns_place_t *p,
                       bool is_by_host)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    const size_t n = strspn(p->target, allowed);
    const bool is_name = n > 0 && n <= LABEL_MAX && (p->target[n] == '.' || p->target[n] == '\0') &&
                         strspn(p->target, "0123456789abcdef-") < n;
    char place[BT_DNS_NAME_MAX + 512];

    snprintf(place, sizeof place, "%s %s %u", s->said->pool,
             p->target[0] != '\0' && !is_by_host ? p->target : p->host, p->port);
    snprintf(out, BT_WORKER_NAME_MAX + 1, "%.*s-%010llx", is_name ? (int) n : LABEL_MAX,
             is_name ? p->target : bt_role_name(s->said->worker->role),
             (unsigned long long) bt_str_hash(bt_str(place)) & 0xffffffffffULL);
}

/* Somebody else keeps a worker of that name, elsewhere: where the target was before. */
static bool is_taken(const bt_worker_index_t *names, const char *name, const bt_dns_place_t *p)
{
    const bt_worker_t *w = bt_worker_index_find_name(names, name);

    return w != NULL && (w->port != p->port || strcasecmp(w->host, p->host) != 0) &&
           (atomic_load(&w->sources) & ~BT_NAMED_BIT(BT_NAMED_DNS)) != 0;
}

static void choose_name(char out[BT_WORKER_NAME_MAX + 1], const source_t *s,
                        bt_dns_known_place_t *k, const bt_worker_index_t *names)
{
    char before[BT_WORKER_NAME_MAX + 1];

    print_name(out, s, &k->place, false);
    const bool is_other = is_taken(names, out, &k->place);
    if (is_other) {
        memcpy(before, out, sizeof before);
        print_name(out, s, &k->place, true);
    }
    if (is_other && !k->has_other_name)
        bt_log_warn("discovery",
                    "%s: %s has another address now, and other sources keep its worker %s at the "
                    "old one: at the new one it is %s",
                    s->known.name, k->place.target, before, out);
    k->has_other_name = is_other;
}

static bool has_label(const char *labels, const char *key)
{
    const size_t n = strlen(key);

    while (labels != NULL) {
        if (strncmp(labels, key, n) == 0 && labels[n] == '=')
            return true;
        labels = strchr(labels, ',');
        labels += labels != NULL;
    }
    return false;
}

typedef struct differs {
    bool weights, priorities;
} differs_t;

/* Do records tell one target from another? Those that are missing have records of before: where weights are shares of all, each
 * scaling would give every worker another description. */
static differs_t find_differences(const bt_dns_known_t *known)
{
    const bt_dns_place_t *first = NULL;
    differs_t differs = {false, false};

    for (unsigned i = 0; i < known->count; i++) {
        const bt_dns_place_t *p = &known->items[i].place;
        if (known->items[i].missing_ms != 0)
            continue;
        if (first == NULL)
            first = p;
        differs.weights |= p->weight != first->weight;
        differs.priorities |= p->priority != first->priority;
    }
    return differs;
}

/* RFC 2782: a weight of 0 still has a small chance. */
static char *make_labels(const source_t *s, const bt_dns_place_t *p, differs_t differs)
{
    const char *said = s->said->worker->labels;
    bt_text_t text;

    bt_text_init(&text);
    if (said != NULL)
        bt_text_puts(&text, said);
    if (differs.weights && !has_label(said, "weight"))
        bt_text_printf(&text, "%sweight=%u", text.len > 0 ? "," : "",
                       p->weight > 0 ? p->weight : 1);
    if (differs.priorities && !has_label(said, "priority"))
        bt_text_printf(&text, "%spriority=%u", text.len > 0 ? "," : "", p->priority);
    return bt_text_take(&text);
}

typedef struct texts {
    char url[URL_BYTES], name[BT_WORKER_NAME_MAX + 1];
    char *labels;
} texts_t;

typedef struct listed {
    bt_map_entry_t entry;
    const bt_found_t *found;
} listed_t;

/* The set as it is put together. */
typedef struct set {
    bt_found_t *all;
    texts_t *texts;
    listed_t *listed;
    bt_map_t map;            /* of those listed, by place and pool */
    bt_worker_index_t names; /* of the workers that are there */
    unsigned count;
} set_t;

static int set_init(set_t *set, const bt_workers_t *now, unsigned count)
{
    *set = (set_t){.all = calloc(count + 1, sizeof *set->all),
                   .texts = calloc(count + 1, sizeof *set->texts),
                   .listed = calloc(count + 1, sizeof *set->listed)};
    if (set->all == NULL || set->texts == NULL || set->listed == NULL ||
        bt_map_init(&set->map, 64) < 0)
        return BT_E_NOMEM;
    return bt_worker_index_names(&set->names, now);
}

static void set_fini(set_t *set)
{
    for (unsigned i = 0; i < set->count; i++)
        free(set->texts[i].labels);
    free(set->all);
    free(set->texts);
    free(set->listed);
    free(set->map.buckets);
    bt_worker_index_fini(&set->names);
}

/* False: it is listed already. */
static bool list(set_t *set, const bt_found_t *one)
{
    const char *place = bt_url_place(one->spec.url);
    const uint64_t key = bt_str_hash(bt_str(place)) ^ bt_str_hash(bt_str(one->pool));
    const bt_list_t *bucket = bt_map_bucket(&set->map, key);

    for (const bt_list_t *it = bucket->next; it != bucket; it = it->next) {
        const listed_t *l =
            bt_container_of(bt_container_of(it, bt_map_entry_t, link), listed_t, entry);
        if (strcmp(bt_url_place(l->found->spec.url), place) == 0 &&
            strcmp(l->found->pool, one->pool) == 0)
            return false;
    }
    set->listed[set->count].found = one;
    bt_map_put(&set->map, &set->listed[set->count].entry, key);
    return true;
}

static void list_source(source_t *s, set_t *set)
{
    const differs_t differs = find_differences(&s->known);

    for (unsigned i = 0; i < s->known.count; i++) {
        bt_dns_known_place_t *k = &s->known.items[i];
        bt_found_t *one = &set->all[set->count];
        texts_t *t = &set->texts[set->count];
        print_url(t->url, s, &k->place);
        *one = (bt_found_t){.pool = s->said->pool, .spec = *s->said->worker};
        one->spec.url = t->url;
        if (!list(set, one))
            continue;
        choose_name(t->name, s, k, &set->names);
        one->spec.name = t->name;
        one->spec.labels = t->labels = make_labels(s, &k->place, differs);
        set->count++;
    }
}

/* Refused is what an operator must mend: two workers of one name, too many. Told once, tried again with each answer. */
static void give(bt_dns_t *dns, const bt_found_t *all, unsigned count)
{
    const uint64_t epoch = bt_registry_current(dns->registry)->epoch;
    char err[512];
    const int rc = bt_registry_set_found(dns->registry, BT_NAMED_DNS, all, count, err, sizeof err);

    if (rc < 0 && !dns->is_refused)
        bt_log_error("discovery", "workers by DNS refused, they stay as they were: %s", err);
    else if (rc == 0 && bt_registry_current(dns->registry)->epoch != epoch)
        bt_log_info("discovery", "%u workers by DNS: epoch %llu of the workers", count,
                    (unsigned long long) bt_registry_current(dns->registry)->epoch);
    dns->is_refused = rc < 0;
}

static void publish(bt_dns_t *dns)
{
    unsigned count = 0;
    set_t set;

    for (unsigned i = 0; i < dns->count; i++)
        count += dns->sources[i]->known.count;
    if (set_init(&set, bt_registry_current(dns->registry), count) == 0) {
        for (unsigned i = 0; i < dns->count; i++)
            list_source(dns->sources[i], &set);
        give(dns, set.all, set.count);
    } else {
        dns->is_refused = true; /* the next answer tries again */
    }
    set_fini(&set);
}

/* ---- one name ---- */

/* The workers of a source's pool by place, made when the first is looked for. */
typedef struct lookout {
    const source_t *source;
    bt_worker_index_t places;
} lookout_t;

static int look_out(lookout_t *l)
{
    const bt_workers_t *now = bt_registry_current(l->source->dns->registry);

    for (unsigned i = 0; i < now->pool_count; i++)
        if (strcmp(now->pools[i].spec.name, l->source->said->pool) == 0)
            return bt_worker_index_places(&l->places, now->pools[i].all.items,
                                          now->pools[i].all.count, 0);
    return bt_worker_index_init(&l->places, 0);
}

/* One that nobody has checked yet is not down. */
static bool is_down(void *user, const bt_dns_place_t *place)
{
    lookout_t *l = user;
    char url[URL_BYTES], ignored[160];
    bt_worker_t *w = NULL;

    print_url(url, l->source, place);
    const bt_worker_spec_t spec = {.url = url, .dp_rank = l->source->said->worker->dp_rank};
    if (l->places.cells != NULL || look_out(l) == 0)
        (void) bt_worker_index_find_spec(&l->places, &spec, &w, ignored, sizeof ignored);
    return w != NULL && atomic_load_explicit(&w->health, memory_order_relaxed) == BT_HEALTH_DOWN;
}

static void tell(source_t *s, enum bt_dns_result result)
{
    if (result == s->told)
        return;
    if (result == BT_DNS_OK)
        bt_log_info("discovery", "%s: %u addresses", s->known.name, s->known.count);
    else
        bt_log_warn("discovery", "%s: %s; what is known of it stays (%u)", s->known.name,
                    bt_dns_result_text(result), s->known.count);
    s->told = result;
}

/* At most. */
static uint64_t max_ms(const source_t *s, enum bt_dns_result result)
{
    const bt_dns_config_t *c = &s->dns->config;
    const bool is_absent =
        result == BT_DNS_EMPTY || result == BT_DNS_NXDOMAIN || s->known.count == 0;

    return result != BT_DNS_OK && is_absent && c->absent_max_ms < c->max_ms ? c->absent_max_ms
                                                                            : c->max_ms;
}

static uint64_t next_ms(const source_t *s, const bt_dns_answer_t *answer,
                        const bt_dns_judge_t *judge)
{
    const uint64_t most_ms = max_ms(s, answer->result), min_ms = s->dns->config.min_ms;
    const unsigned doublings = s->failures > BACKOFF_MAX ? BACKOFF_MAX : s->failures;
    uint64_t ms = s->failures > 0 ? min_ms << (doublings - 1) : answer->ttl_ms;

    ms = ms > most_ms ? most_ms : ms;
    ms = ms < min_ms ? min_ms : ms;
    ms -= bt_rand_below(ms / 16 + 1); /* names drift apart */
    const uint64_t due_ms = bt_dns_known_due_ms(&s->known, judge);
    return due_ms >= ms ? ms : due_ms < min_ms ? min_ms : due_ms;
}

static void take(source_t *s, const bt_dns_answer_t *answer)
{
    bt_dns_t *dns = s->dns;
    lookout_t lookout = {.source = s};
    const bt_dns_judge_t judge = {.hold_ms = dns->config.hold_ms,
                                  .now_ms = bt_clock_ms(),
                                  .is_down = is_down,
                                  .user = &lookout};

    s->lookups[answer->result]++;
    s->failures = answer->result == BT_DNS_OK ? 0 : s->failures + 1;
    if (answer->result == BT_DNS_OK)
        s->good_ms = judge.now_ms;
    const bool is_other = bt_dns_known_take(&s->known, answer, &judge);
    bt_worker_index_fini(&lookout.places);
    tell(s, answer->result);
    if (is_other || dns->is_refused)
        publish(dns);
    bt_timer_start(&s->timer, next_ms(s, answer, &judge));
}

static void on_answer(void *user, const bt_dns_answer_t *answer)
{
    source_t *s = user;

    s->lookup = NULL;
    take(s, answer);
}

static bool knows_v4(const source_t *s)
{
    for (unsigned i = 0; i < s->known.count; i++)
        if (strchr(s->known.items[i].place.host, ':') == NULL)
            return true;
    return false;
}

/* Where it is known by IPv4, an A answer without addresses is no reason to know its hosts twice. */
static enum bt_dns_family family_of(const source_t *s)
{
    const bool is_v4 = s->said->family == BT_DNS_AUTO && s->said->srv == NULL && knows_v4(s);

    return is_v4 ? BT_DNS_IPV4 : (enum bt_dns_family) s->said->family;
}

static void on_timer(bt_timer_t *timer)
{
    source_t *s = bt_container_of(timer, source_t, timer);
    const bt_dns_query_t query = {.name = name_of(s->said),
                                  .is_srv = s->said->srv != NULL,
                                  .family = family_of(s),
                                  .servers = s->dns->config.servers};

    if (bt_dns_lookup_start(&s->lookup, s->dns->loop, &query, on_answer, s) < 0)
        take(s, &(bt_dns_answer_t){.result = BT_DNS_FAILED});
}

/* ---- life ---- */

static void stop_source(source_t *s)
{
    bt_timer_stop(&s->timer);
    if (s->lookup != NULL)
        bt_dns_lookup_cancel(s->lookup);
    s->lookup = NULL;
}

static void free_sources(source_t **sources, unsigned count)
{
    for (unsigned i = 0; sources != NULL && i < count; i++) {
        if (sources[i] == NULL)
            continue;
        stop_source(sources[i]);
        bt_dns_known_fini(&sources[i]->known);
        free(sources[i]);
    }
    free(sources);
}

static bool is_same_name(const bt_dns_name_t *a, const bt_dns_name_t *b)
{
    return (a->srv == NULL) == (b->srv == NULL) && strcmp(name_of(a), name_of(b)) == 0 &&
           a->port == b->port && a->family == b->family && strcmp(a->pool, b->pool) == 0;
}

static source_t *new_source(bt_dns_t *dns, const bt_dns_name_t *said)
{
    source_t *s = calloc(1, sizeof *s);

    if (s == NULL)
        return NULL;
    *s = (source_t){.dns = dns, .told = BT_DNS_RESULTS, .good_ms = bt_clock_ms()};
    bt_dns_known_init(&s->known, name_of(said), said->port);
    bt_timer_init(dns->loop, &s->timer, on_timer);
    return s;
}

static source_t *find_source(const bt_dns_t *dns, const bt_dns_name_t *said, unsigned *at_p)
{
    for (*at_p = 0; *at_p < dns->count; ++*at_p)
        if (dns->sources[*at_p] != NULL && is_same_name(dns->sources[*at_p]->said, said))
            return dns->sources[*at_p];
    return NULL;
}

/* All new ones are there before an old one is touched. */
static int make_sources(bt_dns_t *dns, const bt_dns_config_t *config, source_t **sources)
{
    unsigned at;

    for (unsigned i = 0; i < config->count; i++)
        if (find_source(dns, &config->names[i], &at) == NULL &&
            (sources[i] = new_source(dns, &config->names[i])) == NULL)
            return BT_E_NOMEM;
    return 0;
}

static void begin(source_t *s, const bt_dns_name_t *said)
{
    s->said = said;
    s->known.name = name_of(said);
    stop_source(s);
    bt_timer_start(&s->timer, 0);
}

int bt_dns_configure(bt_dns_t *dns, const bt_dns_config_t *config)
{
    source_t **sources = calloc(config->count + 1, sizeof(source_t *));
    unsigned at;

    if (dns->is_stopped || sources == NULL || make_sources(dns, config, sources) < 0) {
        free_sources(sources, config->count);
        free_sources(dns->sources, dns->count); /* they borrow from a configuration that goes */
        dns->sources = NULL;
        dns->count = 0;
        return dns->is_stopped ? 0 : BT_E_NOMEM;
    }
    dns->config = *config;
    for (unsigned i = 0; i < config->count; i++) {
        if (sources[i] == NULL) {
            sources[i] = find_source(dns, &config->names[i], &at);
            dns->sources[at] = NULL;
        }
        begin(sources[i], &config->names[i]);
    }
    free_sources(dns->sources, dns->count);
    dns->sources = sources;
    dns->count = config->count;
    publish(dns);
    return 0;
}

int bt_dns_new(bt_dns_t **dns_p, bt_loop_t *loop, bt_registry_t *registry)
{
    bt_dns_t *dns = calloc(1, sizeof *dns);

    if (dns == NULL)
        return BT_E_NOMEM;
    dns->loop = loop;
    dns->registry = registry;
    *dns_p = dns;
    return 0;
}

void bt_dns_stop(bt_dns_t *dns)
{
    if (dns == NULL)
        return;
    dns->is_stopped = true;
    for (unsigned i = 0; i < dns->count; i++)
        stop_source(dns->sources[i]);
}

void bt_dns_free(bt_dns_t *dns)
{
    if (dns == NULL)
        return;
    free_sources(dns->sources, dns->count);
    free(dns);
}

unsigned bt_dns_count(const bt_dns_t *dns)
{
    return dns != NULL ? dns->count : 0;
}

void bt_dns_stats(const bt_dns_t *dns, unsigned i, bt_dns_stats_t *stats_p)
{
    const source_t *s = dns->sources[i];

    *stats_p = (bt_dns_stats_t){.name = name_of(s->said),
                                .pool = s->said->pool,
                                .port = s->said->port,
                                .known = s->known.count,
                                .missing = bt_dns_known_missing(&s->known),
                                .age_ms = bt_clock_ms() - s->good_ms};
    memcpy(stats_p->lookups, s->lookups, sizeof s->lookups);
}
