/* A connection that is let in for another one is counted at once, the other one when its socket is closed: the counts are above
 * the limit for that moment, and never by more than what is being closed.
 *
 * A connection on another loop is closed by mail, and may have a request by the time the mail is read. The newcomer has been
 * let in by then, so one connection too many is owed, and paid by the next one that becomes idle or ends. To wait for the
 * other loop's word instead would keep an accepted socket between two loops.
 *
 * What has unread bytes is not idle, whatever its state says: the loop has not come to read them. Nor is what has just come: a
 * client whose first request finds a closed connection does not know that it may try again (server_conn.c).
 */
#include "http/budget.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "http/budget_impl.h"

#include <limits.h>
#include <stdlib.h>

#define LOOKED_AT 8 /* idle connections that may turn out to have bytes to read */
#define TELL_MS 10000

struct bt_budget {
    const char *name;
    bt_budget_limits_t limits;
    unsigned loop_count;
    bt_loop_t **loops; /* by slot; NULL = not joined */
    struct bt_group clients, refused, workers;
    bt_peers_t *peers; /* NULL = no limit */
    _Atomic uint64_t closed[BT_BUDGET_REASONS], told[BT_BUDGET_REASONS], shed[BT_BUDGET_REASONS];
    _Atomic uint64_t workers_closed, workers_refused;
    _Atomic uint64_t logged_ms;
};

/* To the loop that has the connection. */
struct mail {
    bt_mail_t msg;
    bt_budget_t *b;
    struct bt_group *group;
    int slot;
    bool is_owed; /* somebody was let in for it */
    enum bt_budget_reason reason;
};

const char *bt_budget_reason_name(enum bt_budget_reason reason)
{
    static const char *const names[] = {"max_connections", "max_connections_per_peer",
                                        "descriptors"};
    return names[reason];
}

static void count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

static unsigned add(_Atomic unsigned *p)
{
    return atomic_fetch_add_explicit(p, 1, memory_order_relaxed);
}

static void sub(_Atomic unsigned *p)
{
    atomic_fetch_sub_explicit(p, 1, memory_order_relaxed);
}

static int slot_of(const bt_budget_t *b, const bt_loop_t *loop)
{
    const unsigned slot = loop->index < b->loop_count ? loop->index : 0;

    return b->loops[slot] == loop ? (int) slot : -1;
}

/* ---- closing an idle one ---- */

static void count_closed(bt_budget_t *b, const struct bt_group *g, enum bt_budget_reason reason)
{
    if (g->kind == BT_GROUP_WORKERS)
        count(&b->workers_closed);
    else
        count(g->kind == BT_GROUP_REFUSED ? &b->shed[reason] : &b->closed[reason]);
}

/* On the loop of the slot. */
static bool close_oldest(bt_budget_t *b, struct bt_group *g, int slot, enum bt_budget_reason reason)
{
    bt_list_t *head = &g->sets[slot].idle, *it, *tmp;
    unsigned looked_at = 0;

    bt_list_each (head, it, tmp) {
        bt_idle_t *idle = bt_container_of(it, bt_idle_t, link);
        if (idle->close(idle, false)) {
            count_closed(b, g, reason);
            return true;
        }
        if (++looked_at == LOOKED_AT)
            break;
    }
    return false;
}

static struct bt_peer *peer_of(struct bt_group *g)
{
    return g->kind == BT_GROUP_PEER ? bt_container_of(g, struct bt_peer, group) : NULL;
}

static void on_mail(bt_loop_t *loop, bt_mail_t *msg)
{
    struct mail mail = *bt_container_of(msg, struct mail, msg);
    struct bt_peer *peer = peer_of(mail.group);

    (void) loop;
    free(bt_container_of(msg, struct mail, msg));
    bt_group_unclaim(mail.group, mail.slot);
    if (!close_oldest(mail.b, mail.group, mail.slot, mail.reason) && mail.is_owed)
        bt_group_owe(mail.group);
    if (peer != NULL)
        bt_peers_unref(mail.b->peers, peer);
}

/* One is claimed there. */
static int ask(bt_budget_t *b, struct bt_group *g, int slot, bool is_owed,
               enum bt_budget_reason reason)
{
    struct mail *mail = malloc(sizeof(*mail));

    if (mail == NULL) {
        bt_group_unclaim(g, slot);
        return BT_E_DESCRIPTORS;
    }
    *mail = (struct mail){.b = b, .group = g, .slot = slot, .is_owed = is_owed, .reason = reason};
    if (peer_of(g) != NULL)
        bt_peers_ref(b->peers, peer_of(g));
    bt_loop_post(b->loops[slot], &mail->msg, on_mail);
    return BT_E_AGAIN;
}

/* 0: closed here; BT_E_AGAIN: another loop was asked to; BT_E_DESCRIPTORS: none is idle. */
static int evict(bt_budget_t *b, struct bt_group *g, int own, bool is_owed,
                 enum bt_budget_reason reason)
{
    int slot, but = -1;

    while ((slot = bt_group_oldest(g, but)) >= 0) {
        if (slot != own && bt_group_claim(g, slot))
            return ask(b, g, slot, is_owed, reason);
        if (slot == own && close_oldest(b, g, slot, reason))
            return 0;
        if (slot == own)
            but = own;
    }
    return BT_E_DESCRIPTORS;
}

/* Connections to workers go first: no client sees them. */
int bt_budget_free_one(bt_budget_t *b, bt_loop_t *loop)
{
    int own, rc;

    if (b == NULL)
        return BT_E_DESCRIPTORS;
    own = slot_of(b, loop);
    rc = evict(b, &b->workers, own, false, BT_BUDGET_DESCRIPTORS);
    return rc == BT_E_DESCRIPTORS ? evict(b, &b->clients, own, false, BT_BUDGET_DESCRIPTORS) : rc;
}

int bt_budget_on_full(bt_loop_t *loop, void *budget)
{
    bt_budget_t *b = budget;
    const int rc = bt_budget_free_one(b, loop);

    if (rc == BT_E_DESCRIPTORS)
        count(&b->shed[BT_BUDGET_DESCRIPTORS]);
    return rc;
}

/* ---- clients ---- */

static void tell(bt_budget_t *b, enum bt_budget_reason reason)
{
    uint64_t now_ms = bt_clock_event_ms(),
             last = atomic_load_explicit(&b->logged_ms, memory_order_relaxed);

    if ((last != 0 && now_ms < last + TELL_MS) || /* another loop's event may be a later one */
        !atomic_compare_exchange_strong(&b->logged_ms, &last, now_ms))
        return;
    bt_log_warn("http", "%s connections are answered with 503: %u are served and none is idle (%s)",
                b->name, atomic_load_explicit(&b->clients.open, memory_order_relaxed),
                bt_budget_reason_name(reason));
}

static void uncount(bt_budget_t *b, bt_budget_client_t *t)
{
    sub(&b->clients.open);
    if (t->peer != NULL)
        bt_peers_leave(b->peers, t->peer);
    t->peer = NULL;
}

/* False: *reason_p says why not, and it is not counted. */
static bool serve(bt_budget_t *b, bt_budget_client_t *t, int own,
                  const struct sockaddr_storage *from, enum bt_budget_reason *reason_p)
{
    const unsigned before = add(&b->clients.open);
    unsigned of_peer = 0;
    int rc = 0;

    t->peer = b->peers != NULL && from != NULL ? bt_peers_enter(b->peers, from, &of_peer) : NULL;
    if (t->peer != NULL && of_peer > b->limits.per_peer) {
        *reason_p = BT_BUDGET_PEER;
        rc = evict(b, &t->peer->group, own, true, BT_BUDGET_PEER);
    } else if (before >= b->limits.clients) {
        *reason_p = BT_BUDGET_CLIENTS;
        rc = evict(b, &b->clients, own, true, BT_BUDGET_CLIENTS);
    }
    if (rc != BT_E_DESCRIPTORS)
        return true;
    uncount(b, t);
    return false;
}

/* It is read, because a client that is answered before it has asked may not understand the answer. */
static bool refuse(bt_budget_t *b, bt_budget_client_t *t, int own, enum bt_budget_reason reason)
{
    tell(b, reason);
    if (add(&b->refused.open) >= b->limits.refusals &&
        evict(b, &b->refused, own, true, reason) == BT_E_DESCRIPTORS) {
        sub(&b->refused.open);
        count(&b->shed[reason]);
        return false;
    }
    t->is_refused = true;
    t->reason = reason;
    return true;
}

const char *bt_budget_refusal(bt_budget_t *b, const bt_budget_client_t *t)
{
    if (!t->is_refused)
        return NULL;
    count(&b->told[t->reason]);
    return t->reason == BT_BUDGET_PEER ? "too many connections from this address, try again"
                                       : "too many connections, try again";
}

bool bt_budget_enter(bt_budget_t *b, bt_budget_client_t *t, const struct sockaddr_storage *from)
{
    enum bt_budget_reason reason = BT_BUDGET_CLIENTS;

    bt_list_init(&t->idle.link);
    bt_list_init(&t->peer_idle.link);
    if (b == NULL)
        return true;
    const int own = slot_of(b, t->loop);
    t->is_in = serve(b, t, own, from, &reason) || refuse(b, t, own, reason);
    return t->is_in;
}

static struct bt_group *group_of(bt_budget_t *b, const bt_budget_client_t *t)
{
    return t->is_refused ? &b->refused : &b->clients;
}

/* True: one connection too many was let in, and this one's place is its. */
static bool pay(bt_budget_t *b, const bt_budget_client_t *t)
{
    return bt_group_pay(group_of(b, t)) || (t->peer != NULL && bt_group_pay(&t->peer->group));
}

void bt_budget_leave(bt_budget_t *b, bt_budget_client_t *t)
{
    if (b == NULL || !t->is_in)
        return;
    bt_budget_busy(b, t);
    t->is_in = false;
    if (!t->is_given)
        (void) pay(b, t);
    if (t->is_refused)
        sub(&b->refused.open);
    else
        uncount(b, t);
}

void bt_budget_idle(bt_budget_t *b, bt_budget_client_t *t)
{
    if (b == NULL || !t->is_in)
        return;
    if (pay(b, t)) {
        count_closed(b, group_of(b, t), BT_BUDGET_CLIENTS);
        (void) t->idle.close(&t->idle, true);
        return;
    }
    const int slot = slot_of(b, t->loop);
    const uint64_t now_ms = uv_now(&t->loop->uv);
    bt_group_add_idle(group_of(b, t), slot, &t->idle, now_ms);
    if (t->peer != NULL)
        bt_group_add_idle(&t->peer->group, slot, &t->peer_idle, now_ms);
}

void bt_budget_busy(bt_budget_t *b, bt_budget_client_t *t)
{
    if (b == NULL || bt_list_empty(&t->idle.link))
        return;
    const int slot = slot_of(b, t->loop);
    bt_group_remove_idle(group_of(b, t), slot, &t->idle);
    if (t->peer != NULL)
        bt_group_remove_idle(&t->peer->group, slot, &t->peer_idle);
}

/* ---- connections to workers ---- */

int bt_budget_take(bt_budget_t *b, bt_loop_t *loop)
{
    int rc;

    if (b == NULL || add(&b->workers.open) < b->limits.workers)
        return 0;
    rc = evict(b, &b->workers, slot_of(b, loop), false, BT_BUDGET_DESCRIPTORS);
    if (rc < 0)
        sub(&b->workers.open); /* none is closed yet */
    return rc;
}

void bt_budget_give(bt_budget_t *b)
{
    if (b != NULL)
        sub(&b->workers.open);
}

void bt_budget_note_refused(bt_budget_t *b)
{
    if (b != NULL)
        count(&b->workers_refused);
}

void bt_budget_park(bt_budget_t *b, bt_loop_t *loop, bt_idle_t *spare)
{
    if (b != NULL)
        bt_group_add_idle(&b->workers, slot_of(b, loop), spare, uv_now(&loop->uv));
}

void bt_budget_unpark(bt_budget_t *b, bt_loop_t *loop, bt_idle_t *spare)
{
    if (b != NULL)
        bt_group_remove_idle(&b->workers, slot_of(b, loop), spare);
}

/* ---- life ---- */

static int open_groups(bt_budget_t *b)
{
    struct {
        struct bt_group *group;
        enum bt_group_kind kind;
    } all[] = {{&b->clients, BT_GROUP_CLIENTS},
               {&b->refused, BT_GROUP_REFUSED},
               {&b->workers, BT_GROUP_WORKERS}};

    for (unsigned i = 0; i < 3; i++) {
        struct bt_idle_set *sets = bt_idle_sets_new(b->loop_count);
        if (sets == NULL)
            return BT_E_NOMEM;
        bt_group_init(all[i].group, all[i].kind, sets, b->loop_count);
    }
    b->loops = calloc(b->loop_count, sizeof(bt_loop_t *));
    return b->loops != NULL ? 0 : BT_E_NOMEM;
}

int bt_budget_new(bt_budget_t **budget_p, unsigned loops, const char *name)
{
    bt_budget_t *b = calloc(1, sizeof(*b));

    if (b == NULL)
        return BT_E_NOMEM;
    b->name = name;
    b->loop_count = loops;
    b->limits =
        (bt_budget_limits_t){.clients = UINT_MAX, .refusals = UINT_MAX, .workers = UINT_MAX};
    if (open_groups(b) < 0) {
        bt_budget_free(b);
        return BT_E_NOMEM;
    }
    *budget_p = b;
    return 0;
}

void bt_budget_free(bt_budget_t *b)
{
    if (b == NULL)
        return;
    free(b->clients.sets);
    free(b->refused.sets);
    free(b->workers.sets);
    free(b->loops);
    bt_peers_free(b->peers);
    free(b);
}

int bt_budget_set(bt_budget_t *b, const bt_budget_limits_t *limits)
{
    b->limits = *limits;
    if (limits->per_peer > 0 && b->peers == NULL)
        b->peers = bt_peers_new(b->loop_count);
    return limits->per_peer == 0 || b->peers != NULL ? 0 : BT_E_NOMEM;
}

void bt_budget_join(bt_budget_t *b, bt_loop_t *loop)
{
    if (b != NULL)
        b->loops[loop->index < b->loop_count ? loop->index : 0] = loop;
}

const bt_budget_limits_t *bt_budget_limits(const bt_budget_t *b)
{
    return &b->limits;
}

const char *bt_budget_name(const bt_budget_t *b)
{
    return b->name;
}

static uint64_t load(const _Atomic uint64_t *p)
{
    return atomic_load_explicit(p, memory_order_relaxed);
}

void bt_budget_stats(const bt_budget_t *b, bt_budget_stats_t *stats_p)
{
    for (unsigned i = 0; i < BT_BUDGET_REASONS; i++) {
        stats_p->closed[i] = load(&b->closed[i]);
        stats_p->refused[i] = load(&b->told[i]);
        stats_p->shed[i] = load(&b->shed[i]);
    }
    stats_p->workers_closed = load(&b->workers_closed);
    stats_p->workers_refused = load(&b->workers_refused);
}
