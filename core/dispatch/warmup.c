/* warmup.c - which pairs are cold, and one request for each.
 *
 * A warm-up is an ordinary request: it comes over a socket pair to a server of its own, and goes
 * through plan, dialect, rooms, ledger and breakers as a client's does, but that its plan is given,
 * it is tried once, and no worker is blamed for it. So it works for every dialect, and what ends a
 * client's request frees its KV as well.
 *
 * Its prompt begins with its id, or decode would find it in its own prefix cache and move nothing,
 * and has more tokens than a KV block, or engines that move whole blocks would move none. (SGLang's
 * fake bootstrap host 2.2.2.2 would not do: the engine then talks to nobody.)
 *
 * No client waits for it: it is in no figure of clients' requests, and takes no place of
 * --engine-request-limit, which one that hangs would keep.
 *
 * Of a data-parallel engine one rank is warmed, the next in turn. A decode is warmed with at most
 * BT_WARM_PARTNERS prefills: those that follow its own place.
 */
#include "dispatch/warmup.h"

#include "base/err.h"
#include "base/log.h"
#include "base/rand.h"
#include "cluster/pair_breaker.h"
#include "cluster/warm.h"
#include "dispatch/backoff.h"
#include "dispatch/request.h"
#include "dispatch/state/attempt_state.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define LOOK_MS 100
#define LOOK_PAIRS 4096
#define RUNNING_MAX 2 /* of one worker */
#define DEADLINE_MS 180000
#define WORDS 256 /* of a prompt: more tokens than any engine's KV block has */
#define FAILURES_WARN 3

/* Pairs of one round over a pool, or over all. */
struct round {
    unsigned pairs, warm;
};

struct warmup {
    bt_warmup_t base;
    bt_list_t link;
    struct bt_warmups *all;
    bt_request_t *request; /* NULL = its bytes have not been read yet */
    uint64_t word, start_ms;
    char id[BT_UUID_CHARS + 8];
    int fd; /* our end; -1 = closed: it is to end */
};

struct bt_warmups {
    bt_dispatcher_t *d;
    bt_server_t *server;
    bt_timer_t look;
    bt_list_t running;
    unsigned pool, place; /* where the next look goes on */
    struct round of_pool, of_all;
    uint64_t epoch, changes; /* when the last round over all began */
    bool is_settled;         /* it found every pair warm */
    bt_backoff_t backoff;
};

/* ---- failures ---- */

static void note_failure(struct warmup *w, const bt_request_t *r)
{
    uint64_t wait_ms;
    const unsigned count =
        bt_backoff_failed(&w->all->backoff, w->word, w->base.decode->id, bt_clock_ms(), &wait_ms);

    bt_stats_inc(&w->all->d->stats, warmups_failed);
    if (count >= FAILURES_WARN)
        bt_log_warn("dispatch",
                    "pair %s, %s cannot be warmed: %s, status %u (%u times); requests rather go to "
                    "others, and it is tried again in %" PRIu64 " ms",
                    w->base.prefill->name, w->base.decode->name,
                    r != NULL && r->fail_name != NULL ? r->fail_name : "no answer",
                    r != NULL ? r->status : 0, count, wait_ms);
}

/* ---- one warm-up ---- */

static void close_end(struct warmup *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
}

static void end(struct warmup *w)
{
    close_end(w);
    w->base.prefill->warm.running--;
    w->base.decode->warm.running--;
    bt_list_remove(&w->link);
    bt_worker_unref(w->base.prefill);
    bt_worker_unref(w->base.decode);
    free(w);
}

/* Where decode has computed the prompt itself, nothing has moved. */
static bool has_warmed(const bt_request_t *r)
{
    return r->status == 200 && r->fail_name == NULL && r->last != NULL && !r->last->recompute;
}

static void on_end(bt_warmup_t *base, const bt_request_t *r)
{
    struct warmup *w = bt_container_of(base, struct warmup, base);

    if (has_warmed(r)) {
        bt_warm_note(base->prefill, base->decode, w->word);
        bt_stats_inc(&w->all->d->stats, warmups);
        bt_log_info("dispatch", "pair %s, %s is warm after %" PRIu64 " ms", base->prefill->name,
                    base->decode->name, bt_clock_ms() - w->start_ms);
    } else {
        note_failure(w, r);
    }
    w->all->is_settled = false; /* what counts pairs looks again */
    end(w);
}

static void put_request(bt_text_t *t, const struct warmup *w, const char *model)
{
    bt_text_t body;

    bt_text_init(&body);
    bt_text_puts(&body, "{");
    if (model != NULL) {
        bt_text_puts(&body, "\"model\":");
        bt_text_json_str(&body, bt_str(model));
        bt_text_puts(&body, ",");
    }
    bt_text_printf(&body, "\"prompt\":\"%s", w->id);
    for (unsigned i = 0; i < WORDS; i++)
        bt_text_puts(&body, " warm");
    bt_text_puts(&body, "\",\"max_tokens\":1,\"temperature\":0}");
    bt_text_printf(t,
                   "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: %s\r\n"
                   "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                   w->id, body.len);
    bt_text_put(t, bt_text_str(&body));
    bt_text_fini(&body);
}

static const char *model_of(const bt_worker_pool_t *pool, const bt_worker_t *p)
{
    if (p->spec.model_count != 0)
        return p->spec.models[0];
    return pool->spec.model_count != 0 ? pool->spec.models[0] : NULL;
}

/* spec/tools/tsan.supp knows it by this name. */
static int open_client_pair(int fds[2])
{
    int flags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

    return socketpair(AF_UNIX, flags, 0, fds) < 0 ? -errno : 0;
}

/* All of it fits into the socket's buffer. */
static int send_request(struct warmup *w, const char *model)
{
    int fds[2], rc;
    bt_text_t t;
    bool is_sent;

    if ((rc = open_client_pair(fds)) < 0)
        return rc;
    w->fd = fds[0];
    bt_text_init(&t);
    put_request(&t, w, model);
    is_sent = !t.failed && write(w->fd, t.data, t.len) == (ssize_t) t.len;
    bt_text_fini(&t);
    if (!is_sent) {
        close(fds[1]);
        return BT_E_NOMEM;
    }
    atomic_fetch_add_explicit(&w->all->d->loop->connections, 1, memory_order_relaxed);
    bt_server_accept(w->all->server, fds[1], NULL);
    return 0;
}

static void start(struct bt_warmups *all, const bt_worker_pool_t *pool, bt_worker_t *p,
                  bt_worker_t *d, uint64_t now_ms)
{
    struct warmup *w = calloc(1, sizeof(*w));
    char uuid[BT_UUID_CHARS + 1];

    if (w == NULL)
        return;
    *w = (struct warmup){.base = {bt_worker_ref(p), bt_worker_ref(d), on_end},
                         .all = all,
                         .word = bt_warm_word(p, d),
                         .start_ms = now_ms,
                         .fd = -1};
    p->warm.running++;
    d->warm.running++;
    bt_list_push(&all->running, &w->link);
    bt_rand_uuid(uuid);
    snprintf(w->id, sizeof(w->id), "warmup-%s", uuid);
    if (send_request(w, model_of(pool, p)) == 0)
        return;
    note_failure(w, NULL);
    end(w);
}

/* ---- looking ---- */

static bool is_able(const bt_worker_t *w, uint64_t now_ms)
{
    return w->warm.running < RUNNING_MAX && bt_worker_usable(w, now_ms);
}

static void visit(struct bt_warmups *all, const bt_worker_pool_t *pool, bt_worker_t *p,
                  bt_worker_t *d, uint64_t now_ms)
{
    if (bt_workers_pair_refusal(p, d) != NULL)
        return;
    all->of_pool.pairs++;
    if (bt_warm_has(p, d))
        all->of_pool.warm++;
    else if (is_able(p, now_ms) && is_able(d, now_ms) && !bt_pair_breaker_rests(p, d, now_ms) &&
             !bt_backoff_must_wait(&all->backoff, bt_warm_word(p, d), d->id, now_ms))
        start(all, pool, p, d, now_ms);
}

static void begin_round(struct bt_warmups *all)
{
    all->pool = all->place = 0;
    all->of_pool = all->of_all = (struct round){0};
    all->changes = bt_workers_changes();
    all->epoch = all->d->workers->epoch;
    all->is_settled = true;
}

static void end_pool(struct bt_warmups *all, const bt_worker_pool_t *pool)
{
    atomic_store_explicit(&pool->stat->pairs, all->of_pool.pairs, memory_order_relaxed);
    atomic_store_explicit(&pool->stat->warm_pairs, all->of_pool.warm, memory_order_relaxed);
    all->is_settled = all->is_settled && all->of_pool.pairs == all->of_pool.warm;
    all->of_pool = (struct round){0};
    all->pool++;
    all->place = 0;
}

/* The pairs of a pool in a row: each decode with those that follow its place. */
static void visit_next(struct bt_warmups *all, uint64_t now_ms)
{
    const bt_worker_pool_t *pool = &all->d->workers->pools[all->pool];
    const unsigned count = pool->prefill.count,
                   each = count < BT_WARM_PARTNERS ? count : BT_WARM_PARTNERS;
    const unsigned k = each != 0 ? all->place / each : 0;

    if (each == 0 || k >= pool->decode.count) {
        end_pool(all, pool);
        return;
    }
    visit(all, pool, pool->prefill.items[(k + all->place % each) % count], pool->decode.items[k],
          now_ms);
    all->place++;
}

static bool has_moved(const struct bt_warmups *all)
{
    return all->changes != bt_workers_changes() || all->epoch != all->d->workers->epoch;
}

static void look(struct bt_warmups *all, uint64_t now_ms)
{
    const bt_workers_t *workers = all->d->workers;

    if (workers == NULL)
        return;
    if (all->pool >= workers->pool_count) {
        if (all->is_settled && !has_moved(all))
            return;
        begin_round(all);
    }
    for (unsigned n = 0; n < LOOK_PAIRS && all->pool < workers->pool_count; n++)
        visit_next(all, now_ms);
}

/* The server then hears that its client has left, and that ends the request. */
static void stop_late(struct bt_warmups *all, uint64_t now_ms, bool is_draining)
{
    bt_list_t *it, *tmp;

    bt_list_each (&all->running, it, tmp) {
        struct warmup *w = bt_container_of(it, struct warmup, link);
        if (!is_draining && now_ms < w->start_ms + DEADLINE_MS)
            continue;
        close_end(w);
        if (w->request == NULL)
            end(w);
    }
}

static void on_look(bt_timer_t *timer)
{
    struct bt_warmups *all = bt_container_of(timer, struct bt_warmups, look);
    const uint64_t now_ms = bt_clock_ms();
    const bool is_draining = atomic_load_explicit(&all->d->shared->draining, memory_order_relaxed);

    stop_late(all, now_ms, is_draining);
    if (!is_draining)
        look(all, now_ms);
    bt_timer_start(timer, LOOK_MS);
}

/* ---- the server ---- */

static struct warmup *find(struct bt_warmups *all, bt_str_t id)
{
    bt_list_t *it, *tmp;

    bt_list_each (&all->running, it, tmp) {
        struct warmup *w = bt_container_of(it, struct warmup, link);
        if (bt_str_eq(bt_str(w->id), id))
            return w;
    }
    return NULL;
}

static void on_request(bt_exchange_t *x)
{
    struct bt_warmups *all = bt_server_user(x->server);
    struct warmup *w = find(all, bt_head_get(&x->head, BT_STR("x-request-id")));
    bt_request_t *r = w != NULL ? bt_request_new(all->d, x, BT_ROUTE_COMPLETIONS) : NULL;

    if (r == NULL) {
        bt_exchange_abort(x);
        return; /* its deadline ends it */
    }
    w->request = r;
    r->warmup = &w->base;
    r->trace = NULL;
    bt_request_read_body(r);
}

static void on_gone(bt_exchange_t *x)
{
    struct bt_handler *h = x->user;

    if (h != NULL)
        h->gone(h);
}

static const bt_server_ops_t server_ops = {.on_request = on_request, .on_gone = on_gone};

/* ---- life ---- */

int bt_warmups_new(bt_dispatcher_t *d)
{
    struct bt_warmups *all = calloc(1, sizeof(*all));
    int rc;

    if (all == NULL)
        return BT_E_NOMEM;
    all->d = d;
    all->pool = UINT_MAX;
    bt_list_init(&all->running);
    rc = bt_server_new(&all->server, d->loop, &server_ops, NULL, all);
    if (rc < 0) {
        free(all);
        return rc;
    }
    bt_timer_init(d->loop, &all->look, on_look);
    bt_timer_start(&all->look, LOOK_MS);
    atomic_store(&bt_warm_is_on, true);
    d->warmups = all;
    return 0;
}

void bt_warmups_stop(struct bt_warmups *all)
{
    bt_list_t *it, *tmp;

    if (all == NULL || all->server == NULL)
        return;
    bt_timer_stop(&all->look);
    bt_server_close(all->server, NULL, NULL);
    all->server = NULL;
    bt_list_each (&all->running, it, tmp)
        end(bt_container_of(it, struct warmup, link));
}

void bt_warmups_free(struct bt_warmups *all)
{
    bt_warmups_stop(all);
    free(all);
}
