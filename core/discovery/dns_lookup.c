/* c-ares calls back from within itself, in ares_search too, and a channel may not be destroyed there. So answers are only noted, and
 * when none is missing the end is put off to the end of the turn:
 *
 *   start -> A --empty--> AAAA ----------------------------+-> (later) callback, channel destroyed
 *   start -> SRV -> for each target: A --empty--> AAAA ----+
 *
 * c-ares itself asks again, asks the next server after a refusal, drops packets that answer nothing, and goes to TCP. */
#define CARES_NO_DEPRECATED /* Debian 12 has only the old calls, newer c-ares still has them */
#include "discovery/dns_lookup.h"

#include "base/err.h"

#include <ares.h>
#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY_MS 2000 /* the first; c-ares doubles it */
#define TRIES 2
#define DEADLINE_MS 10000
#define RUNNING_MAX 32 /* targets looked up at once */
#define STATUS_TOO_MANY (-1)

typedef struct host { /* an A lookup and the AAAA that may follow; of the name, or of one target */
    bt_dns_lookup_t *lookup;
    bt_dns_place_t place; /* of a target */
    bool is_v6, is_dropped;
} host_t;

typedef struct watched { /* a socket of c-ares; outlives the lookup while its handle closes */
    bt_list_t link;
    uv_poll_t poll;
    bt_dns_lookup_t *lookup;
    ares_socket_t fd;
} watched_t;

struct bt_dns_lookup {
    bt_loop_t *loop;
    char name[BT_DNS_NAME_MAX + 1];
    bool is_srv, is_over, is_asking;
    enum bt_dns_family family;
    ares_channel channel;
    bt_list_t sockets;
    bt_timer_t clock, deadline;
    bt_later_t later;
    host_t *hosts; /* of SRV: by record; else one */
    unsigned host_count, next_host, running;
    bt_dns_place_t *places;
    bt_dns_answer_t answer;
    bt_dns_lookup_cb cb;
    void *user;
};

const char *bt_dns_result_name(enum bt_dns_result result)
{
    static const char *const names[BT_DNS_RESULTS] = {"ok",        "empty",  "nxdomain", "timeout",
                                                      "malformed", "failed", "too_many"};
    return names[result];
}

const char *bt_dns_result_text(enum bt_dns_result result)
{
    static const char *const texts[BT_DNS_RESULTS] = {
        "found",
        "the name has no addresses",
        "there is no such name",
        "no answer in time",
        "an answer that cannot be read",
        "no server answers it (SERVFAIL, refused, or not reached)",
        "it has more than 1,024 addresses: give each group of workers a name of its own"};
    return texts[result];
}

static enum bt_dns_result result_of(int status)
{
    switch (status) {
    case ARES_SUCCESS:
        return BT_DNS_OK;
    case ARES_ENODATA:
        return BT_DNS_EMPTY;
    case ARES_ENOTFOUND:
        return BT_DNS_NXDOMAIN;
    case ARES_ETIMEOUT:
    case ARES_ECANCELLED:
        return BT_DNS_TIMEOUT;
    case ARES_EBADRESP:
    case ARES_EBADNAME:
    case ARES_EBADSTR:
        return BT_DNS_MALFORMED;
    case STATUS_TOO_MANY:
        return BT_DNS_TOO_MANY;
    default:
        return BT_DNS_FAILED;
    }
}

/* ---- sockets and time ---- */

static void arm_clock(bt_dns_lookup_t *l)
{
    struct timeval left, *tv = l->is_over ? NULL : ares_timeout(l->channel, NULL, &left);

    if (tv == NULL)
        bt_timer_stop(&l->clock);
    else
        bt_timer_start(&l->clock,
                       (uint64_t) tv->tv_sec * 1000 + ((uint64_t) tv->tv_usec + 999) / 1000);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    const watched_t *s = bt_container_of(poll, watched_t, poll);
    bt_dns_lookup_t *l = s->lookup;
    const bool reads = status < 0 || (events & UV_READABLE) != 0;
    const bool writes = status < 0 || (events & UV_WRITABLE) != 0;

    ares_process_fd(l->channel, reads ? s->fd : ARES_SOCKET_BAD, writes ? s->fd : ARES_SOCKET_BAD);
    arm_clock(l);
}

static void on_clock(bt_timer_t *timer)
{
    bt_dns_lookup_t *l = bt_container_of(timer, bt_dns_lookup_t, clock);

    ares_process_fd(l->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
    arm_clock(l);
}

static void on_deadline(bt_timer_t *timer)
{
    bt_dns_lookup_t *l = bt_container_of(timer, bt_dns_lookup_t, deadline);

    l->next_host = l->host_count; /* no more are begun */
    ares_cancel(l->channel);
    arm_clock(l);
}

static void on_socket_closed(uv_handle_t *handle)
{
    free(bt_container_of((uv_poll_t *) handle, watched_t, poll));
}

static watched_t *find_socket(bt_dns_lookup_t *l, ares_socket_t fd)
{
    bt_list_t *it, *tmp;

    bt_list_each (&l->sockets, it, tmp) {
        watched_t *s = bt_container_of(it, watched_t, link);
        if (s->fd == fd)
            return s;
    }
    return NULL;
}

static watched_t *add_socket(bt_dns_lookup_t *l, ares_socket_t fd)
{
    watched_t *s = calloc(1, sizeof *s);

    if (s == NULL || uv_poll_init_socket(&l->loop->uv, &s->poll, fd) < 0) {
        free(s);
        return NULL; /* its answer is not seen, and the time-out comes */
    }
    s->lookup = l;
    s->fd = fd;
    bt_list_push(&l->sockets, &s->link);
    return s;
}

/* Neither: c-ares closes the socket as soon as this returns. */
static void on_socket_state(void *user, ares_socket_t fd, int reads, int writes)
{
    bt_dns_lookup_t *l = user;
    watched_t *s = find_socket(l, fd);

    if (reads == 0 && writes == 0) {
        if (s == NULL)
            return;
        bt_list_remove(&s->link);
        uv_poll_stop(&s->poll);
        uv_close((uv_handle_t *) &s->poll, on_socket_closed);
        return;
    }
    if (s == NULL)
        s = add_socket(l, fd);
    if (s != NULL)
        (void) uv_poll_start(&s->poll, (reads ? UV_READABLE : 0) | (writes ? UV_WRITABLE : 0),
                             on_poll);
}

/* ---- answers ---- */

/* The shortest of all records: of CNAMEs on the way too. c-ares' own reader of SRV records leaves it out. */
static void note_ttl(bt_dns_lookup_t *l, const unsigned char *bytes, int size)
{
    const unsigned questions = size >= 12 ? (unsigned) (bytes[4] << 8 | bytes[5]) : 0;
    const unsigned records = size >= 12 ? (unsigned) (bytes[6] << 8 | bytes[7]) : 0;
    const unsigned char *at = bytes + 12, *end = bytes + size;
    char *name;
    long n;

    for (unsigned i = 0; i < questions + records; i++) {
        if (ares_expand_name(at, bytes, size, &name, &n) != ARES_SUCCESS)
            return;
        ares_free_string(name);
        at += n;
        const bool is_question = i < questions;
        if (end - at < (is_question ? 4 : 10))
            return;
        if (is_question) {
            at += 4;
            continue;
        }
        const uint64_t ttl =
            (uint64_t) at[4] << 24 | (uint64_t) at[5] << 16 | (uint64_t) at[6] << 8 | at[7];
        if (ttl * 1000 < l->answer.ttl_ms)
            l->answer.ttl_ms = ttl * 1000;
        const int data_size = at[8] << 8 | at[9];
        if (end - at < 10 + data_size)
            return;
        at += 10 + data_size;
    }
}

static void finish(bt_dns_lookup_t *l, enum bt_dns_result result)
{
    l->is_over = true;
    l->answer.result = result;
    bt_loop_later(l->loop, &l->later);
}

static int parse_addresses(bool is_v6, const unsigned char *bytes, int size, bt_dns_place_t *places,
                           unsigned max, unsigned *count_p)
{
    struct ares_addrttl v4[BT_DNS_PLACES_MAX + 1];
    struct ares_addr6ttl v6[BT_DNS_PLACES_MAX + 1];
    int n = BT_DNS_PLACES_MAX + 1;
    const int status = is_v6 ? ares_parse_aaaa_reply(bytes, size, NULL, v6, &n)
                             : ares_parse_a_reply(bytes, size, NULL, v4, &n);

    if (status != ARES_SUCCESS)
        return status;
    *count_p = 0;
    for (int i = 0; i < n && *count_p < max; i++)
        if (is_v6)
            inet_ntop(AF_INET6, &v6[i].ip6addr, places[(*count_p)++].host, BT_DNS_HOST_BYTES);
        else
            inet_ntop(AF_INET, &v4[i].ipaddr, places[(*count_p)++].host, BT_DNS_HOST_BYTES);
    return n == 0 ? ARES_ENODATA : n > (int) BT_DNS_PLACES_MAX ? STATUS_TOO_MANY : ARES_SUCCESS;
}

/* What the targets have come to. One whose lookup failed is named all the same. */
static void finish_targets(bt_dns_lookup_t *l)
{
    for (unsigned i = 0; i < l->host_count; i++)
        if (!l->hosts[i].is_dropped)
            l->places[l->answer.count++] = l->hosts[i].place;
    finish(l, l->answer.count > 0 ? BT_DNS_OK : BT_DNS_EMPTY);
}

static void ask_host(host_t *h);

/* A question that cannot be sent is answered before it returns. */
static void ask_targets(bt_dns_lookup_t *l)
{
    if (l->is_asking)
        return;
    l->is_asking = true;
    while (l->running < RUNNING_MAX && l->next_host < l->host_count) {
        l->running++;
        ask_host(&l->hosts[l->next_host++]);
    }
    l->is_asking = false;
    if (l->running == 0 && !l->is_over)
        finish_targets(l);
}

static int read_target(host_t *h, const unsigned char *bytes, int size)
{
    bt_dns_place_t first = {.host = ""};
    unsigned n;
    const int status = parse_addresses(h->is_v6, bytes, size, &first, 1, &n);

    if (status == ARES_SUCCESS)
        memcpy(h->place.host, first.host, sizeof first.host);
    return status;
}

static int read_addresses(host_t *h, const unsigned char *bytes, int size)
{
    bt_dns_lookup_t *l = h->lookup;

    note_ttl(l, bytes, size);
    if (l->is_srv)
        return read_target(h, bytes, size);
    if (l->places == NULL)
        l->places = calloc(BT_DNS_PLACES_MAX, sizeof *l->places);
    return l->places == NULL ? ARES_ENOMEM
                             : parse_addresses(h->is_v6, bytes, size, l->places, BT_DNS_PLACES_MAX,
                                               &l->answer.count);
}

static void end_host(host_t *h, int status)
{
    bt_dns_lookup_t *l = h->lookup;

    if (!l->is_srv) {
        finish(l, result_of(status));
        return;
    }
    h->is_dropped = status == ARES_ENODATA || status == ARES_ENOTFOUND;
    l->running--;
    ask_targets(l);
}

/* An alias (CNAME) of a host without an A record is an answer with records, and with no address. */
static void on_host(void *user, int status, int timeouts, unsigned char *bytes, int size)
{
    host_t *h = user;

    (void) timeouts;
    if (status == ARES_EDESTRUCTION)
        return;
    if (status == ARES_SUCCESS)
        status = read_addresses(h, bytes, size);
    if (status == ARES_ENODATA && !h->is_v6 && h->lookup->family == BT_DNS_AUTO) {
        h->is_v6 = true;
        ask_host(h);
        return;
    }
    end_host(h, status);
}

/* Targets are whole names; the name itself may be short, as in a pod. */
static void ask_host(host_t *h)
{
    bt_dns_lookup_t *l = h->lookup;
    const int type = h->is_v6 ? ns_t_aaaa : ns_t_a;

    if (l->is_srv)
        ares_query(l->channel, h->place.target, ns_c_in, type, on_host, h);
    else
        ares_search(l->channel, l->name, ns_c_in, type, on_host, h);
}

/* "." says that there is decidedly no such service (RFC 2782). */
static bool is_target(const struct ares_srv_reply *r)
{
    return r->host[0] != '\0' && strcmp(r->host, ".") != 0 && strlen(r->host) <= BT_DNS_NAME_MAX &&
           r->port > 0;
}

static int take_records(bt_dns_lookup_t *l, const struct ares_srv_reply *all)
{
    unsigned n = 0;

    for (const struct ares_srv_reply *r = all; r != NULL; r = r->next)
        n += is_target(r);
    if (n == 0 || n > BT_DNS_PLACES_MAX)
        return n == 0 ? ARES_ENODATA : STATUS_TOO_MANY;
    l->hosts = calloc(n, sizeof *l->hosts);
    l->places = calloc(n, sizeof *l->places);
    if (l->hosts == NULL || l->places == NULL)
        return ARES_ENOMEM;
    for (const struct ares_srv_reply *r = all; r != NULL; r = r->next) {
        if (!is_target(r))
            continue;
        host_t *h = &l->hosts[l->host_count++];
        *h = (host_t){.lookup = l,
                      .is_v6 = l->family == BT_DNS_IPV6,
                      .place = {.port = r->port, .priority = r->priority, .weight = r->weight}};
        for (size_t i = 0; r->host[i] != '\0'; i++)
            h->place.target[i] =
                (char) (r->host[i] >= 'A' && r->host[i] <= 'Z' ? r->host[i] + 32 : r->host[i]);
    }
    return ARES_SUCCESS;
}

static void on_srv(void *user, int status, int timeouts, unsigned char *bytes, int size)
{
    bt_dns_lookup_t *l = user;
    struct ares_srv_reply *all = NULL;

    (void) timeouts;
    if (status == ARES_EDESTRUCTION)
        return;
    if (status == ARES_SUCCESS)
        status = ares_parse_srv_reply(bytes, size, &all);
    if (status == ARES_SUCCESS) {
        note_ttl(l, bytes, size);
        status = take_records(l, all);
    }
    if (all != NULL)
        ares_free_data(all);
    if (status == ARES_SUCCESS)
        ask_targets(l);
    else
        finish(l, result_of(status));
}

/* ---- life ---- */

static void free_lookup(bt_dns_lookup_t *l)
{
    bt_timer_stop(&l->clock);
    bt_timer_stop(&l->deadline);
    if (bt_later_waits(&l->later))
        bt_list_remove(&l->later.link);
    if (l->channel != NULL)
        ares_destroy(l->channel);
    free(l->hosts);
    free(l->places);
    free(l);
}

static void on_over(bt_later_t *later)
{
    bt_dns_lookup_t *l = bt_container_of(later, bt_dns_lookup_t, later);

    l->answer.places = l->places;
    l->cb(l->user, &l->answer);
    free_lookup(l);
}

static int open_channel(bt_dns_lookup_t *l, const char *servers)
{
    struct ares_options options = {.timeout = TRY_MS,
                                   .tries = TRIES,
                                   .sock_state_cb = on_socket_state,
                                   .sock_state_cb_data = l};
    int status = ares_init_options(&l->channel, &options,
                                   ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_SOCK_STATE_CB);

    if (status != ARES_SUCCESS)
        l->channel = NULL;
    else if (servers != NULL)
        status = ares_set_servers_ports_csv(l->channel, servers);
    return status;
}

static void ask(bt_dns_lookup_t *l)
{
    if (l->is_srv) {
        ares_search(l->channel, l->name, ns_c_in, ns_t_srv, on_srv, l);
        return;
    }
    l->hosts = calloc(1, sizeof *l->hosts);
    if (l->hosts == NULL) {
        finish(l, BT_DNS_FAILED);
        return;
    }
    l->hosts[0] = (host_t){.lookup = l, .is_v6 = l->family == BT_DNS_IPV6};
    ask_host(&l->hosts[0]);
}

int bt_dns_lookup_start(bt_dns_lookup_t **lookup_p, bt_loop_t *loop, const bt_dns_query_t *query,
                        bt_dns_lookup_cb cb, void *user)
{
    bt_dns_lookup_t *l = calloc(1, sizeof *l);

    if (l == NULL)
        return BT_E_NOMEM;
    *l = (bt_dns_lookup_t){.loop = loop,
                           .is_srv = query->is_srv,
                           .family = query->family,
                           .answer = {.ttl_ms = UINT64_MAX},
                           .cb = cb,
                           .user = user};
    snprintf(l->name, sizeof l->name, "%s", query->name);
    bt_list_init(&l->sockets);
    bt_timer_init(loop, &l->clock, on_clock);
    bt_timer_init(loop, &l->deadline, on_deadline);
    bt_later_init(&l->later, on_over);
    if (open_channel(l, query->servers) == ARES_SUCCESS) {
        bt_timer_start(&l->deadline, DEADLINE_MS);
        ask(l);
        arm_clock(l);
    } else {
        finish(l, BT_DNS_FAILED);
    }
    *lookup_p = l;
    return 0;
}

void bt_dns_lookup_cancel(bt_dns_lookup_t *l)
{
    free_lookup(l);
}

bool bt_dns_servers_are_valid(const char *servers)
{
    ares_channel channel;

    if (servers[0] == '\0' || ares_init(&channel) != ARES_SUCCESS)
        return false;
    const int status = ares_set_servers_ports_csv(channel, servers);
    ares_destroy(channel);
    return status == ARES_SUCCESS;
}
