/* A heartbeat says everything anew, so nothing is kept but the word that the registry has and when it came last. What is wrong is told
 * once for each sentence: an engine repeats itself every 3 s. */
#include "transfer/registration.h"

#include "base/err.h"
#include "base/log.h"
#include "cluster/url.h"
#include "loop/network.h"
#include "loop/resolve.h"
#include "transfer/registry_peers.h"
#include "zmq/sockets.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define SWEEP_MS 250
#define LATE_MS                                                                                    \
    2000 /* the process was away: what the engines have said meanwhile waits to be read */
#define CHANGE_MS 1000
#define FORGET_MS 60000 /* a worker that only its registration has named */
#define NEW_MAX 256     /* such workers */
#define TOLD_MAX 256
#define CLOSE_MS 2000
#define FRAME_BYTES 2048

struct bt_registration {
    bt_registration_config_t config;
    bt_registry_t *registry;
    bt_registry_peers_t peers;
    bt_zmq_t *zmq;
    struct socket_of {
        struct bt_registration *r;
        enum bt_registration_kind kind;
    } sockets[BT_REGISTRATION_KINDS];
    bt_timer_t sweep;
    uint64_t swept_ms;
    uint64_t allowed_hash; /* of the list that the sockets have */
    uint64_t counts[BT_REGISTRATION_RESULTS];
    uint64_t told[TOLD_MAX]; /* hashes of sentences; when it is full the oldest goes */
    unsigned told_next;
    void (*done)(void *user);
    void *done_user;
};

const char *bt_registration_result_name(enum bt_registration_result result)
{
    static const char *const names[] = {"taken", "malformed", "stranger", "unknown", "conflict"};

    return names[result];
}

/* ---- telling ---- */

static bool was_told(bt_registration_t *r, const char *sentence)
{
    const uint64_t hash = bt_str_hash(bt_str(sentence));

    for (unsigned i = 0; i < TOLD_MAX; i++)
        if (r->told[i] == hash)
            return true;
    r->told[r->told_next++ % TOLD_MAX] = hash;
    return false;
}

__attribute__((format(printf, 3, 4))) static void refuse(bt_registration_t *r,
                                                         enum bt_registration_result result,
                                                         const char *fmt, ...)
{
    char sentence[600];
    va_list args;

    va_start(args, fmt);
    vsnprintf(sentence, sizeof(sentence), fmt, args);
    va_end(args);
    r->counts[result]++;
    if (!was_told(r, sentence))
        bt_log_warn("transfer", "registration: %s", sentence);
}

/* ---- which worker ---- */

typedef struct place {
    bt_url_t url;
    struct sockaddr_storage addr;
    bool has_addr;
} place_t;

static int place_parse(place_t *p, const char *http_address)
{
    char url[160], why[160];

    snprintf(url, sizeof(url), "http://%s", http_address);
    if (bt_url_parse(&p->url, bt_str(url), why, sizeof(why)) < 0)
        return BT_E_INVAL;
    p->has_addr = bt_resolve_numeric(p->url.host, p->url.port, &p->addr) == 0;
    return 0;
}

/* By the name that the configuration has, or by what it resolves to. */
static bool is_there(bt_worker_t *w, const place_t *p)
{
    struct sockaddr_storage addr;

    if (w->port != p->url.port)
        return false;
    return strcasecmp(w->host, p->url.host) == 0 ||
           (p->has_addr && bt_worker_get_addr(w, &addr) && bt_network_same(&addr, &p->addr));
}

/* ---- taking a word ---- */

static bool is_of_kind(const bt_worker_t *w, enum bt_registration_kind kind)
{
    return w->pair_rules.family != NULL &&
           strcmp(w->pair_rules.family, bt_registration_dialect(kind)) == 0;
}

static bool says_read(const bt_worker_spec_t *s)
{
    return bt_str_ieq(bt_str(s->connector), BT_STR("moriio_read")) ||
           bt_str_ieq(bt_str(s->dispatch_profile), BT_STR("moriio_read"));
}

/* What the configuration says holds. NULL: nothing is against it. */
static const char *conflict(const bt_worker_t *w, const bt_registration_message_t *m,
                            enum bt_registration_kind kind)
{
    const bt_worker_spec_t *s = &w->spec;

    if (!is_of_kind(w, kind))
        return "its connector is another one: correct connector";
    if (s->role != m->role)
        return "its role is the other one: correct role, or the engine's kv_role";
    if (s->dp_size > 0 && m->word.dp_size > 0 && s->dp_size != m->word.dp_size)
        return "dp_size differs: correct it, or leave it out";
    if (s->tp_size > 0 && m->word.tp_size > 0 && s->tp_size != m->word.tp_size)
        return "tp_size differs: correct it, or leave it out";
    if (s->kv_address != NULL && strcmp(s->kv_address, m->word.kv_address) != 0)
        return "kv_address differs: correct it, or leave it out";
    if (m->word.mode == BT_TRANSFER_WRITE && says_read(s))
        return "it writes, but the configuration says moriio_read: say moriio, or set read_mode";
    return NULL;
}

/* Every change makes another worker, which all loops are told of. An engine says the same again every 3 s, so whoever is held
 * back is taken later, unless two say different things of one address. */
static bool is_too_soon(const bt_registration_t *r, const bt_worker_t *w,
                        const bt_registered_t *word)
{
    return w->word_at_ms != 0 && bt_clock_ms() - w->word_at_ms < r->config.change_ms &&
           !bt_registered_same(&w->spec.registered, word);
}

static void note_heartbeat(bt_worker_t *w)
{
    w->registered_at_ms = bt_clock_ms();
    if (atomic_exchange(&w->is_registered, true))
        return;
    bt_worker_note_service(w);
    bt_workers_changed();
    bt_log_info("transfer", "worker %s is registered: KV at %s", w->name, w->kv_address);
}

static void take_word(bt_registration_t *r, bt_worker_t *w, const bt_registration_message_t *m,
                      enum bt_registration_kind kind)
{
    const char *why = is_too_soon(r, w, &m->word)
                          ? "that has changed a moment ago: do two engines have this address?"
                          : conflict(w, m, kind);
    bt_registered_t word = m->word;
    bt_worker_t *now;
    char err[256];

    if (why != NULL) {
        refuse(r, BT_REGISTRATION_CONFLICT, "worker %s at %s registers as %s, but %s", w->name,
               m->http_address, m->word.kv_address, why);
        return;
    }
    word.is_new = w->spec.registered.is_new;
    if (bt_registry_take_word(r->registry, w, &word, &now, err, sizeof(err)) < 0) {
        bt_log_error("transfer", "registration of %s is lost: %s", m->http_address, err);
        return;
    }
    r->counts[BT_REGISTRATION_TAKEN]++;
    if (now != w)
        now->word_at_ms = bt_clock_ms();
    note_heartbeat(now);
}

/* Every worker at that address: each rank of a pinned one, one of each pool. Their places in the set stay when words change. */
static bool take_all(bt_registration_t *r, const bt_registration_message_t *m,
                     enum bt_registration_kind kind, const place_t *place)
{
    bool found = false;

    for (unsigned i = 0; i < bt_registry_current(r->registry)->pool_count; i++)
        for (unsigned k = 0; k < bt_registry_current(r->registry)->pools[i].all.count; k++) {
            bt_worker_t *w = bt_registry_current(r->registry)->pools[i].all.items[k];
            if (!is_there(w, place))
                continue;
            found = true;
            take_word(r, w, m, kind);
        }
    return found;
}

/* ---- workers that nobody has named ---- */

static unsigned count_new(const bt_workers_t *workers)
{
    unsigned n = 0;

    for (unsigned i = 0; i < workers->pool_count; i++)
        for (unsigned k = 0; k < workers->pools[i].all.count; k++)
            n += workers->pools[i].all.items[k]->spec.registered.is_new;
    return n;
}

static int fill_new(const bt_registration_t *r, bt_worker_spec_t *spec,
                    const bt_registration_message_t *m, enum bt_registration_kind kind, char *err,
                    size_t err_size)
{
    char url[160];

    bt_worker_spec_init(spec);
    snprintf(url, sizeof(url), "%s://%s", r->config.new_has_tls ? "https" : "http",
             m->http_address);
    spec->role = m->role;
    spec->engine = BT_ENGINE_VLLM;
    spec->registered = m->word;
    spec->registered.is_new = true;
    spec->url = bt_str_dup(bt_str(url));
    spec->connector = bt_str_dup(bt_str(bt_registration_dialect(kind)));
    if (spec->url == NULL || spec->connector == NULL)
        return BT_E_NOMEM;
    return r->config.complete != NULL
               ? r->config.complete(r->config.complete_user, NULL, spec, err, err_size)
               : 0;
}

static void add_new(bt_registration_t *r, const bt_registration_message_t *m,
                    enum bt_registration_kind kind, const place_t *place)
{
    bt_worker_spec_t spec;
    char err[256] = "out of memory";
    int rc = count_new(bt_registry_current(r->registry)) < NEW_MAX ? 0 : BT_E_LIMIT;

    if (rc < 0) {
        refuse(r, BT_REGISTRATION_UNKNOWN, "more than %d workers that nobody has named", NEW_MAX);
        return;
    }
    rc = fill_new(r, &spec, m, kind, err, sizeof(err));
    if (rc == 0)
        rc = bt_registry_add(r->registry, NULL, &spec, err, sizeof(err));
    bt_worker_spec_fini(&spec);
    if (rc < 0)
        refuse(r, BT_REGISTRATION_UNKNOWN, "%s cannot be added: %s", m->http_address, err);
    else
        (void) take_all(r, m, kind, place);
}

/* ---- a message ---- */

/* An engine speaks for its own host; for others, this host and who the operator names. */
static bool may_speak_for(const bt_registration_t *r, const char *peer, const place_t *place)
{
    struct sockaddr_storage addr;

    if (bt_registry_peers_is_named(&r->peers, peer))
        return true;
    return bt_resolve_numeric(peer, 0, &addr) == 0 &&
           (bt_network_is_loopback(&addr) ||
            (place->has_addr && bt_network_same(&addr, &place->addr)));
}

static void refuse_stranger(bt_registration_t *r, const char *peer)
{
    refuse(r, BT_REGISTRATION_STRANGER,
           "%s may not register: it is no worker's host; --registration-allow names others", peer);
}

/* It has not been let in. */
static void on_refused(void *user, const char *peer)
{
    const struct socket_of *socket = user;

    refuse_stranger(socket->r, peer);
}

static void on_message(void *user, const bt_zmq_message_t *message)
{
    const struct socket_of *socket = user;
    bt_registration_t *r = socket->r;
    bt_registration_message_t m;
    const char *why = "it has not two frames";
    place_t place;
    int rc = message->frame_count == 2 ? 0 : BT_E_INVAL;

    if (!bt_registry_peers_has(&r->peers, message->peer)) { /* its worker has gone meanwhile */
        refuse_stranger(r, message->peer);
        return;
    }
    if (rc == 0)
        rc = bt_registration_read(socket->kind, message->frames[1], &m, &why);
    if (rc == BT_E_AGAIN || rc == BT_E_NOMEM)
        return;
    if (rc == 0 && (rc = place_parse(&place, m.http_address)) < 0)
        why = "http_address is not ip:port";
    if (rc < 0) {
        refuse(r, BT_REGISTRATION_MALFORMED, "a message of %s is malformed: %s", message->peer,
               why);
        return;
    }
    if (!may_speak_for(r, message->peer, &place)) {
        refuse(r, BT_REGISTRATION_STRANGER,
               "%s may not register %s, which is another host: --registration-allow names who may",
               message->peer, m.http_address);
    } else if (!take_all(r, &m, socket->kind, &place)) {
        if (r->config.takes_new)
            add_new(r, &m, socket->kind, &place);
        else
            refuse(r, BT_REGISTRATION_UNKNOWN,
                   "%s is no worker's: add it as one, or set --registration-new-workers",
                   m.http_address);
    }
    bt_url_fini(&place.url);
}

/* ---- silence ---- */

static uint64_t expiry_of(const bt_registration_t *r, const bt_worker_t *w)
{
    return r->config.expiry_ms[is_of_kind(w, BT_REGISTRATION_MORIIO) ? BT_REGISTRATION_MORIIO
                                                                     : BT_REGISTRATION_P2P_NCCL];
}

static void expire(const bt_registration_t *r, bt_worker_t *w, uint64_t silent_ms)
{
    if (silent_ms < expiry_of(r, w) || !atomic_exchange(&w->is_registered, false))
        return;
    bt_worker_note_service(w);
    bt_workers_changed();
    bt_log_warn("transfer", "worker %s has not registered for %llu ms%s", w->name,
                (unsigned long long) silent_ms,
                w->must_register ? ": it is not used until it does" : "");
}

/* One a sweep: the set is another one after it. */
static void forget_one(bt_registration_t *r, uint64_t now_ms)
{
    const bt_workers_t *workers = bt_registry_current(r->registry);

    for (unsigned i = 0; i < workers->pool_count; i++)
        for (unsigned k = 0; k < workers->pools[i].all.count; k++) {
            const bt_worker_t *w = workers->pools[i].all.items[k];
            if ((atomic_load(&w->sources) & BT_NAMED_BIT(BT_NAMED_ENGINE)) == 0 ||
                now_ms - w->registered_at_ms < FORGET_MS)
                continue;
            (void) bt_registry_unname(r->registry, bt_str(w->name), BT_NAMED_ENGINE);
            return;
        }
}

/* Names of workers are resolved again and again, so the list is made anew; the sockets get it when it has changed. */
static void set_allowed(bt_registration_t *r)
{
    bt_network_t *list;
    unsigned count;

    if (bt_registry_peers_list(&r->peers, &list, &count) < 0)
        return; /* the next sweep */
    const uint64_t hash = bt_str_hash((bt_str_t){(const char *) list, count * sizeof(*list)});
    if (hash != r->allowed_hash && bt_zmq_set_allowed(r->zmq, list, count) == 0)
        r->allowed_hash = hash;
    free(list);
}

static void on_sweep(bt_timer_t *timer)
{
    bt_registration_t *r = bt_container_of(timer, bt_registration_t, sweep);
    const bt_workers_t *workers = bt_registry_current(r->registry);
    const uint64_t now_ms = bt_clock_ms(), away_ms = now_ms - r->swept_ms;

    r->swept_ms = now_ms;
    for (unsigned i = 0; i < workers->pool_count; i++)
        for (unsigned k = 0; k < workers->pools[i].all.count; k++) {
            bt_worker_t *w = workers->pools[i].all.items[k];
            if (w->registered_at_ms == 0)
                continue;
            if (away_ms >= LATE_MS)
                w->registered_at_ms += away_ms;
            else
                expire(r, w, now_ms - w->registered_at_ms);
        }
    forget_one(r, now_ms);
    set_allowed(r);
    bt_timer_start(&r->sweep, SWEEP_MS);
}

/* ---- life ---- */

static int bind_one(bt_registration_t *r, enum bt_registration_kind kind, unsigned *port_p,
                    char *err, size_t err_size)
{
    static const char *const flags[] = {"p2p-nccl-port", "moriio-port"};
    const bt_zmq_socket_config_t config = {.kind = BT_ZMQ_ROUTER,
                                           .host = r->config.host,
                                           .port = r->config.ports[kind],
                                           .max_frame_bytes = FRAME_BYTES,
                                           .on_message = on_message,
                                           .on_refused = on_refused,
                                           .user = &r->sockets[kind]};
    int rc;

    *port_p = 0;
    r->sockets[kind] = (struct socket_of){r, kind};
    if (config.port == UINT_MAX)
        return 0;
    rc = bt_zmq_bind(r->zmq, &config, port_p);
    if (rc < 0)
        return bt_err_refuse(err, err_size, "--%s: cannot listen on %s:%u: %s", flags[kind],
                             config.host, config.port, bt_err_text(rc));
    return 0;
}

static void free_registration(bt_registration_t *r)
{
    bt_registry_peers_fini(&r->peers);
    free(r);
}

int bt_registration_open(bt_registration_t **registration_p, bt_loop_t *control,
                         const bt_registration_config_t *config,
                         unsigned ports_p[BT_REGISTRATION_KINDS], char *err, size_t err_size)
{
    static const uint64_t expiry_ms[] = {5000, 10000};
    bt_registration_t *r = calloc(1, sizeof(*r));
    int rc = r != NULL ? bt_registry_peers_init(&r->peers, config->allowed, config->allowed_count)
                       : BT_E_NOMEM;

    if (rc == 0)
        rc = bt_zmq_new(&r->zmq, control);
    if (rc < 0) {
        bt_err_refuse(err, err_size, "%s", bt_zmq_is_built() ? bt_err_text(rc) : bt_zmq_not_built);
        goto err_free;
    }
    r->config = *config;
    bt_timer_init(control, &r->sweep, on_sweep);
    if (r->config.change_ms == 0)
        r->config.change_ms = CHANGE_MS;
    for (unsigned i = 0; i < BT_REGISTRATION_KINDS && rc == 0; i++) {
        if (r->config.expiry_ms[i] == 0)
            r->config.expiry_ms[i] = expiry_ms[i];
        rc = bind_one(r, (enum bt_registration_kind) i, &ports_p[i], err, err_size);
    }
    if (rc < 0)
        goto err_zmq;
    *registration_p = r;
    return 0;

err_zmq:
    bt_zmq_close(r->zmq, 0, NULL, NULL);
err_free:
    if (r != NULL)
        free_registration(r);
    return rc;
}

int bt_registration_start(bt_registration_t *r, bt_registry_t *registry)
{
    r->registry = registry;
    r->swept_ms = bt_clock_ms();
    bt_registration_set_workers(r, bt_registry_current(registry));
    bt_timer_start(&r->sweep, SWEEP_MS);
    return bt_zmq_start(r->zmq);
}

void bt_registration_set_workers(bt_registration_t *r, bt_workers_t *workers)
{
    bt_registry_peers_set_workers(&r->peers, workers);
    set_allowed(r);
}

uint64_t bt_registration_count(const bt_registration_t *r, enum bt_registration_result result)
{
    return r->counts[result] +
           (result == BT_REGISTRATION_MALFORMED ? bt_zmq_stats(r->zmq).malformed : 0);
}

static void on_closed(void *user)
{
    bt_registration_t *r = user;
    void (*done)(void *arg) = r->done;
    void *arg = r->done_user;

    free_registration(r);
    if (done != NULL)
        done(arg);
}

void bt_registration_close(bt_registration_t *r, void (*done)(void *user), void *user)
{
    r->done = done;
    r->done_user = user;
    bt_timer_stop(&r->sweep);
    bt_zmq_close(r->zmq, CLOSE_MS, on_closed, r);
}
