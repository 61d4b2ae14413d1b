#include "cluster/worker.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/flight.h"
#include "base/log.h"
#include "cluster/url.h"
#include "loop/network.h"
#include "loop/resolve.h"
#include "tls/client.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

/* A worker is made once from its spec; whatever is derived (engine, capability, lease, address parts) is derived here and
 * never again, so readers on other threads need no lock for it. The live part is single atomics that nobody reads as a
 * group. Only the address and what was learned are groups: they sit under the lock. */

#define LEASE_MS 30000
#define LEASE_LONG_MS 480000

_Atomic bool bt_worker_has_others, bt_worker_has_metaserver;

const char *bt_health_name(enum bt_health h)
{
    static const char *const names[] = {"unknown", "up", "down", "drain"};
    return names[h];
}

/* ---- making one ---- */

/* "v0.21.3rc1" is before 0.22; what cannot be read is taken for new. */
static bool is_version_before_0_22(const char *version)
{
    unsigned major, minor;
    if (version == NULL)
        return false;
    if (*version == 'v' || *version == 'V')
        version++;
    if (!isdigit((unsigned char) *version) || sscanf(version, "%u.%u", &major, &minor) != 2)
        return false;
    return major == 0 && minor < 22;
}

static uint64_t derive_lease(const bt_worker_t *w)
{
    if (w->spec.lease_ms > 0)
        return w->spec.lease_ms;
    if (w->engine == BT_ENGINE_VLLM_ASCEND)
        return LEASE_LONG_MS;
    if (w->engine == BT_ENGINE_VLLM && is_version_before_0_22(w->spec.version))
        return LEASE_LONG_MS;
    return LEASE_MS;
}

/* A refusal that says "unknown connector" is only helpful with the name. */
static int name_unknown_connector(bt_worker_t *w, bt_str_t name)
{
    const char *meant;
    if (w->capability != BT_CAP_NONE || strcmp(w->refusal, BT_UNKNOWN_CONNECTOR) != 0)
        return 0;
    meant = bt_capability_nearest(name);
    if (asprintf(&w->refusal_text,
                 meant != NULL ? BT_UNKNOWN_CONNECTOR " %.*s (did you mean %s?)"
                               : BT_UNKNOWN_CONNECTOR " %.*s",
                 BT_STR_ARG(name), meant) < 0) {
        w->refusal_text = NULL;
        return BT_E_NOMEM;
    }
    w->refusal = w->refusal_text;
    return 0;
}

bool bt_registered_same(const bt_registered_t *a, const bt_registered_t *b)
{
    return strcmp(a->kv_address, b->kv_address) == 0 && a->dp_size == b->dp_size &&
           a->tp_size == b->tp_size && a->mode == b->mode;
}

static int derive_capability(bt_worker_t *w)
{
    const bt_worker_spec_t *spec = &w->spec;
    bt_str_t connector = bt_str(spec->connector), profile = bt_str(spec->dispatch_profile);
    bt_str_t children[BT_WORKER_CHILDREN_MAX];
    for (unsigned i = 0; i < spec->child_count; i++)
        children[i] = bt_str(spec->children[i]);
    w->engine = spec->engine;
    if (w->engine == BT_ENGINE_UNKNOWN)
        w->engine = bt_capability_engine(connector, children, spec->child_count, profile);
    bt_capability_derive(spec->engine, connector, children, spec->child_count, profile,
                         &w->capability, &w->dialect, &w->refusal);
    bt_capability_take_mode(spec->registered.mode, &w->capability, &w->dialect);
    bt_capability_pair_rules(w->engine, connector, children, spec->child_count, w->dialect,
                             &w->pair_rules);
    w->is_gateway_managed =
        bt_role_is_of_pair(spec->role) && bt_capability_is_gateway_managed(w->dialect);
    w->is_trigger = bt_role_is_of_pair(spec->role) && bt_capability_is_trigger(w->dialect);
    w->asks_bootstrap = spec->role == BT_ROLE_PREFILL && bt_capability_asks_bootstrap(w->dialect);
    w->must_register = bt_role_is_of_pair(spec->role) && spec->kv_address == NULL &&
                       bt_capability_needs_kv_address(w->dialect);
    w->kv_address = spec->kv_address != NULL                 ? spec->kv_address
                    : spec->registered.kv_address[0] != '\0' ? spec->registered.kv_address
                                                             : NULL;
    w->serves_alone =
        spec->role == BT_ROLE_HYBRID || bt_capability_serves_alone(w->engine, w->dialect);
    if (bt_role_is_of_pair(spec->role))
        return w->refusal == NULL
                   ? 0
                   : name_unknown_connector(
                         w, bt_capability_leaf(connector, children, spec->child_count));
    w->refusal = NULL;
    return 0;
}

static int check_kv_address(const bt_worker_t *w, char *err, size_t err_size)
{
    const char *why = w->spec.kv_address != NULL
                          ? bt_kv_address_refusal(w->dialect, bt_str(w->spec.kv_address))
                          : NULL;

    if (why == NULL)
        return 0;
    snprintf(err, err_size, "worker url \"%s\": %s", w->spec.url, why);
    return BT_E_CONFIG;
}

const char *bt_source_name(enum bt_source source)
{
    static const char *const names[BT_NAMED_COUNT] = {"config", "api", "engine",
                                                      "file",   "dns", "kubernetes"};
    return names[source];
}

static unsigned size_or_1(int n)
{
    return n > 0 ? (unsigned) n : 1;
}

/* What may stand in a certificate: a host name or an address. */
static bool is_tls_name(const char *name)
{
    const size_t n = strlen(name);

    return n > 0 && n <= 253 && name[0] != '.' &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.:_-") == n;
}

static int derive_tls(bt_worker_t *w, bool has_tls, char *err, size_t err_size)
{
    const bt_worker_spec_t *s = &w->spec;
    const bt_tls_client_config_t own = {s->tls_ca, s->tls_cert, s->tls_key};
    char why[512] = "";
    int rc = 0;

    if (!has_tls &&
        (s->tls_ca != NULL || s->tls_cert != NULL || s->tls_key != NULL || s->tls_name != NULL))
        rc = bt_err_refuse(why, sizeof why,
                           "tls_ca, tls_cert, tls_key and tls_name are for https:// only");
    else if (s->tls_name != NULL && !is_tls_name(s->tls_name))
        rc = bt_err_refuse(why, sizeof why,
                           "tls_name: expected a host name or an address, got \"%.80s\"",
                           s->tls_name);
    else if (has_tls)
        rc = bt_tls_client_of_worker(&w->tls, &own, why, sizeof why);
    if (rc == BT_E_CONFIG)
        snprintf(err, err_size, "worker url \"%s\": %s", s->url, why);
    return rc;
}

const char *bt_worker_tls_name(const bt_worker_t *w)
{
    return w->spec.tls_name != NULL ? w->spec.tls_name : w->host;
}

/* A host's case says nothing. */
uint64_t bt_worker_place_hash(const char *host, unsigned port, const char *base_path, int dp_rank)
{
    uint64_t h = bt_str_hash(bt_str(base_path)) ^ port ^ ((uint64_t) dp_rank << 32);

    for (const char *p = host; *p != '\0'; p++) {
        const char lower = *p >= 'A' && *p <= 'Z' ? (char) (*p + 'a' - 'A') : *p;
        h = (h ^ (unsigned char) lower) * 1099511628211ULL;
    }
    return h ^ (h >> 32);
}

static int derive_address(bt_worker_t *w, char *err, size_t err_size)
{
    struct sockaddr_storage addr;
    bt_url_t url;
    char why[160] = "out of memory";
    int rc = bt_url_parse(&url, bt_str(w->spec.url), why, sizeof why);
    if (rc < 0) {
        snprintf(err, err_size, "worker url \"%s\": %s", w->spec.url != NULL ? w->spec.url : "",
                 why);
        return rc;
    }
    w->host = url.host;
    w->base_path = url.base_path;
    w->port = url.port;
    if ((rc = derive_tls(w, url.has_tls, err, err_size)) < 0)
        return rc;
    if (w->spec.dp_rank < 0)
        w->spec.dp_rank = url.rank;
    w->place_hash = bt_worker_place_hash(w->host, w->port, w->base_path, w->spec.dp_rank);
    const char *format = strchr(w->host, ':') != NULL ? "[%s]:%u" : "%s:%u";
    char authority[300];
    snprintf(authority, sizeof authority, format, w->host, w->port);
    w->authority = bt_str_dup(bt_str(authority));
    if (w->authority == NULL)
        return BT_E_NOMEM;
    /* Engines listen on IPv4 unless told otherwise, while many resolvers put ::1 first for this one name. */
    const char *host = strcasecmp(w->host, "localhost") == 0 ? "127.0.0.1" : w->host;
    if (bt_resolve_numeric(host, w->port, &addr) == 0)
        bt_worker_set_addr(w, &addr);
    return 0;
}

/* NULL: it is somewhere to connect to. A wildcard is where an engine listens. */
static const char *endpoint_fault(const char *endpoint)
{
    const bt_str_t all = bt_str(endpoint);
    const char *colon = strrchr(endpoint, ':');
    uint64_t port;

    if (!bt_str_starts(all, BT_STR("tcp://")) || colon <= endpoint + 6 ||
        bt_str_u64(bt_str(colon + 1), &port) < 0 || port == 0 || port > 65535 ||
        all.n > BT_KV_ENDPOINT_MAX)
        return "\"tcp://host:port\" is expected";
    if (endpoint[6] == '*' || bt_str_starts(all, BT_STR("tcp://0.0.0.0:")) ||
        bt_str_starts(all, BT_STR("tcp://[::]:")))
        return "that is where the engine listens: name the host by which it is reached";
    return NULL;
}

static int check_kv_events(const bt_worker_t *w, char *err, size_t err_size)
{
    const bt_worker_spec_t *s = &w->spec;
    const bool is_replay = s->kv_events == NULL || endpoint_fault(s->kv_events) == NULL;
    const char *endpoint = is_replay ? s->kv_events_replay : s->kv_events;
    const char *why = endpoint != NULL ? endpoint_fault(endpoint) : NULL;

    if (s->kv_events == NULL && s->kv_events_replay != NULL)
        why = "kv_events is missing";
    if (why == NULL)
        return 0;
    snprintf(err, err_size, "worker url \"%s\": %s \"%s\": %s", s->url,
             is_replay ? "kv_events_replay" : "kv_events", endpoint, why);
    return BT_E_CONFIG;
}

static int check_sizes(const bt_worker_t *w, char *err, size_t err_size)
{
    const bt_worker_spec_t *s = &w->spec;
    if (s->dp_rank >= 0 && s->dp_size > 0 && s->dp_rank >= s->dp_size) {
        snprintf(err, err_size, "worker url \"%s\": rank %d is outside dp_size %d", s->url,
                 s->dp_rank, s->dp_size);
        return BT_E_CONFIG;
    }
    return 0;
}

/* Names go to clients in headers and to dashboards in labels. */
static int check_name(const char *name, char *err, size_t err_size)
{
    const size_t n = name != NULL ? strlen(name) : 1;
    size_t good =
        name != NULL
            ? strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-")
            : 1;

    if (n != 0 && good == n && n <= BT_WORKER_NAME_MAX)
        return 0;
    snprintf(err, err_size, "worker name \"%.*s\": 1 to %d of letters, digits, '.', '_', ':', '-'",
             (int) good, name, BT_WORKER_NAME_MAX);
    return BT_E_CONFIG;
}

static int fill(bt_worker_t *w, const bt_worker_spec_t *spec, char *err, size_t err_size)
{
    int rc = bt_worker_spec_copy(&w->spec, spec);
    if (rc < 0)
        return rc;
    if ((rc = check_name(spec->name, err, err_size)) < 0 ||
        (rc = derive_address(w, err, err_size)) < 0 || (rc = check_sizes(w, err, err_size)) < 0 ||
        (rc = check_kv_events(w, err, err_size)) < 0 || (rc = derive_capability(w)) < 0 ||
        (rc = check_kv_address(w, err, err_size)) < 0)
        return rc;
    w->name = bt_str_dup(bt_str(spec->name != NULL ? spec->name : w->authority));
    w->dp_size = size_or_1(spec->dp_size > 0 ? spec->dp_size : spec->registered.dp_size);
    w->tp_size = size_or_1(spec->tp_size > 0 ? spec->tp_size : spec->registered.tp_size);
    w->pp_size = size_or_1(spec->pp_size);
    w->lease_ms = derive_lease(w);
    if (w->dp_size > 1 && (w->rank_legs = calloc(w->dp_size, sizeof *w->rank_legs)) == NULL)
        return BT_E_NOMEM;
    return w->name != NULL ? 0 : BT_E_NOMEM;
}

static void free_worker(bt_worker_t *w)
{
    bt_worker_spec_fini(&w->spec);
    if (w->said != NULL)
        bt_worker_spec_fini(w->said);
    free(w->said);
    free(w->name);
    free(w->host);
    free(w->base_path);
    free(w->authority);
    bt_tls_client_unref(w->tls);
    free(w->refusal_text);
    free(w->rank_legs);
    bt_ledger_place_give_back(w->ledger_place);
    free(w->engine_ids);
    bt_breaker_fini(&w->breaker);
    pthread_mutex_destroy(&w->lock);
    if (w->on_free != NULL)
        w->on_free(w->on_free_user, w->slot);
    free(w);
}

int bt_worker_new(bt_worker_t **worker_p, const bt_worker_spec_t *spec, uint64_t id, unsigned slot,
                  const bt_breaker_config_t *breaker, char *err, size_t err_size)
{
    uint32_t place;
    int rc = bt_ledger_place_take(&place);
    if (rc < 0) {
        snprintf(err, err_size, "more than %d workers", BT_LEDGER_PLACES);
        return rc;
    }
    bt_worker_t *w = aligned_alloc(_Alignof(bt_worker_t), sizeof *w);
    if (w == NULL) {
        bt_ledger_place_give_back(place);
        return BT_E_NOMEM;
    }
    memset(w, 0, sizeof *w);
    w->ledger_place = place;
    bt_worker_spec_init(&w->spec);
    w->refs = 1;
    w->since_ms = bt_clock_ms();
    w->id = id;
    w->slot = slot;
    w->load.total_tokens = w->load.blocked = -1;
    bt_breaker_init(&w->breaker, breaker);
    pthread_mutex_init(&w->lock, NULL);
    rc = fill(w, spec, err, err_size);
    if (rc < 0) {
        if (rc == BT_E_NOMEM)
            snprintf(err, err_size, "%s", bt_err_text(rc));
        free_worker(w);
        return rc;
    }
    *worker_p = w;
    return 0;
}

bt_worker_t *bt_worker_ref(bt_worker_t *w)
{
    atomic_fetch_add_explicit(&w->refs, 1, memory_order_relaxed);
    return w;
}

void bt_worker_unref(bt_worker_t *w)
{
    if (w != NULL && atomic_fetch_sub_explicit(&w->refs, 1, memory_order_acq_rel) == 1)
        free_worker(w);
}

/* ---- how it is doing ---- */

static void tell(_Atomic int64_t *others, _Atomic int64_t *total, int64_t now)
{
    const int64_t before = atomic_exchange_explicit(others, now, memory_order_relaxed);

    atomic_fetch_add_explicit(total, now - before, memory_order_relaxed);
}

void bt_worker_set_others(bt_worker_t *w, enum bt_phase phase, int64_t tokens, int64_t requests)
{
    tell(&w->others_tokens[phase], &bt_worker_total(w, phase)->tokens, tokens);
    tell(&w->others_requests[phase], &bt_worker_total(w, phase)->requests, requests);
}

/* Its breaker aside. */
static const char *why_out(const bt_worker_t *w)
{
    static const char *const words[] = {"starting", NULL, "down",
                                        "scaling"}; /* by enum bt_health */
    if (atomic_load_explicit(&w->draining, memory_order_relaxed))
        return "draining";
    const int switching = atomic_load_explicit(&w->switching, memory_order_relaxed);
    if (switching != BT_SWITCH_NONE)
        return switching == BT_SWITCH_UNKNOWN ? "role_unknown" : "switching_role";
    return words[atomic_load_explicit(&w->health, memory_order_relaxed)];
}

static const char *why_unhealthy(const bt_worker_t *w, uint64_t now_ms)
{
    const char *word = why_out(w);
    if (word != NULL)
        return word;
    return bt_breaker_allows(&w->breaker, now_ms) ? NULL : "breaker_open";
}

/* What the other end of a KV transfer must have said, or heard, first. */
static const char *why_unready(const bt_worker_t *w)
{
    if (w->is_gateway_managed && !atomic_load_explicit(&w->has_agents, memory_order_relaxed))
        return "no_agent";
    if (w->is_trigger && !atomic_load_explicit(&bt_worker_has_metaserver, memory_order_relaxed))
        return "no_metaserver"; /* added while the gateway runs: the start refuses it */
    if (w->asks_bootstrap && !atomic_load_explicit(&w->has_engine_ids, memory_order_relaxed))
        return "no_engine_id";
    if (w->must_register && !atomic_load_explicit(&w->is_registered, memory_order_relaxed))
        return "not_registered";
    return NULL;
}

const char *bt_worker_why_not(const bt_worker_t *w, uint64_t now_ms)
{
    const char *why = w->refusal != NULL ? "unknown_connector" : why_unhealthy(w, now_ms);

    return why != NULL ? why : why_unready(w);
}

bool bt_worker_is_healthy(const bt_worker_t *w, uint64_t now_ms)
{
    return why_unhealthy(w, now_ms) == NULL;
}

bool bt_worker_usable(const bt_worker_t *w, uint64_t now_ms)
{
    return bt_worker_why_not(w, now_ms) == NULL;
}

bool bt_worker_is_probed(const bt_worker_t *w)
{
    return bt_breaker_is_probing(&w->breaker) && w->refusal == NULL && why_out(w) == NULL &&
           why_unready(w) == NULL;
}

bool bt_worker_serves_model(const bt_worker_t *w, bt_str_t model)
{
    for (unsigned i = 0; i < w->spec.model_count; i++)
        if (bt_str_eq(model, bt_str(w->spec.models[i])))
            return true;
    return w->spec.model_count == 0;
}

void bt_worker_set_addr(bt_worker_t *w, const struct sockaddr_storage *addr)
{
    pthread_mutex_lock(&w->lock);
    bool had = atomic_load(&w->has_addr);
    bool changes = !had || !bt_network_is_endpoint((struct sockaddr *) &w->addr,
                                                   (const struct sockaddr *) addr);
    if (changes) {
        w->addr = *addr;
        atomic_store(&w->has_addr, true);
        atomic_fetch_add(&w->addr_version, 1);
    }
    pthread_mutex_unlock(&w->lock);
    if (changes && had)
        bt_log_info("cluster", "worker %s: its host name has a new address", w->name);
}

bool bt_worker_get_addr(bt_worker_t *w, struct sockaddr_storage *addr_p)
{
    pthread_mutex_lock(&w->lock);
    bool has = atomic_load(&w->has_addr);
    if (has)
        *addr_p = w->addr;
    pthread_mutex_unlock(&w->lock);
    return has;
}

static void note_ema(_Atomic int64_t *ema, uint64_t us)
{
    int64_t sample = us < INT64_MAX / 8 ? (int64_t) us : INT64_MAX / 8;
    int64_t old = atomic_load_explicit(ema, memory_order_relaxed), next;
    do {
        next = old == 0 ? sample : old + (sample - old) / 8;
        if (next == 0)
            next = 1; /* 0 means "none yet" */
    } while (!atomic_compare_exchange_weak_explicit(ema, &old, next, memory_order_relaxed,
                                                    memory_order_relaxed));
}

static bool knows_agent(bt_worker_t *w)
{
    return (w->spec.engine_id != NULL && w->spec.bootstrap_port != 0) ||
           atomic_load_explicit(&w->has_learned, memory_order_acquire);
}

unsigned bt_worker_kinds(bt_worker_t *w)
{
    const unsigned kinds = bt_capability_kinds(w->capability, w->dialect);

    if (!bt_role_is_of_pair(w->spec.role))
        return 0;
    if (kinds == (BT_KIND_HANDOFF | BT_KIND_BOOTSTRAP) && w->spec.role == BT_ROLE_PREFILL &&
        !knows_agent(w))
        return BT_KIND_HANDOFF;
    return kinds;
}

unsigned bt_worker_next_rank(bt_worker_t *w)
{
    return atomic_fetch_add_explicit(&w->rank_turn, 1, memory_order_relaxed) % w->dp_size;
}

int bt_worker_take_rank(bt_worker_t *w, int wanted)
{
    const unsigned first = wanted < 0 ? bt_worker_next_rank(w) : (unsigned) wanted;
    unsigned best = first, fewest = UINT_MAX;

    for (unsigned i = 0; wanted < 0 && i < w->dp_size; i++) {
        const unsigned rank = (first + i) % w->dp_size;
        const unsigned legs = atomic_load_explicit(&w->rank_legs[rank], memory_order_relaxed);
        if (legs < fewest) {
            best = rank;
            fewest = legs;
        }
    }
    atomic_fetch_add_explicit(&w->rank_legs[best], 1, memory_order_relaxed);
    return (int) best;
}

void bt_worker_give_rank_back(bt_worker_t *w, int rank)
{
    atomic_fetch_sub_explicit(&w->rank_legs[rank], 1, memory_order_relaxed);
}

bool bt_worker_take_place(bt_worker_t *w, unsigned limit)
{
    unsigned now = atomic_load_explicit(&w->limited_legs, memory_order_relaxed);

    while (now < limit)
        if (atomic_compare_exchange_weak_explicit(&w->limited_legs, &now, now + 1,
                                                  memory_order_relaxed, memory_order_relaxed))
            return true;
    return false;
}

void bt_worker_give_place_back(bt_worker_t *w)
{
    atomic_fetch_sub_explicit(&w->limited_legs, 1, memory_order_relaxed);
}

void bt_worker_note_ttft(bt_worker_t *w, uint64_t us)
{
    note_ema(&w->ttft_ema_us, us);
}

void bt_worker_note_tpot(bt_worker_t *w, uint64_t us)
{
    note_ema(&w->tpot_ema_us, us);
}

void bt_worker_set_lost(bt_worker_t *w, uint64_t since_ms, uint64_t now_ms)
{
    atomic_store_explicit(&w->lost_since_ms, since_ms, memory_order_relaxed);
    atomic_store_explicit(&w->lost_at_ms, now_ms, memory_order_release);
    atomic_fetch_add_explicit(&w->losses_total, 1, memory_order_relaxed);
}

void bt_worker_note_service(bt_worker_t *w)
{
    pthread_mutex_lock(&w->lock); /* the last to come sees the last state */
    bt_breaker_set_usable(&w->breaker, w->refusal == NULL && !atomic_load(&w->is_succeeded) &&
                                           why_out(w) == NULL && why_unready(w) == NULL);
    pthread_mutex_unlock(&w->lock);
}

void bt_worker_set_health(bt_worker_t *w, enum bt_health h, const char *why)
{
    if (h != BT_HEALTH_DOWN)
        atomic_store_explicit(&w->lost_at_ms, 0, memory_order_relaxed);
    enum bt_health old = (enum bt_health) atomic_exchange(&w->health, (int) h);
    if (old == h)
        return;
    if (old == BT_HEALTH_DOWN && h == BT_HEALTH_UP)
        bt_breaker_recovered(&w->breaker);
    bt_worker_note_service(w);
    if (h == BT_HEALTH_DOWN)
        bt_worker_restarted(w);
    bt_workers_changed();
    if (h == BT_HEALTH_UP)
        bt_log_info("cluster", "worker %s at %s:%u is up: %s", w->name, w->host, w->port, why);
    else
        bt_log_warn("cluster", "worker %s at %s:%u is %s: %s", w->name, w->host, w->port,
                    bt_health_name(h), why);
    bt_flight_note(BT_FLIGHT_WORKER, 0, "%s is %s", w->name, bt_health_name(h));
}
