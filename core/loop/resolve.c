/* resolve.c - names to addresses.
 *
 * getaddrinfo blocks, and nothing stops it: a name server that is silent holds it for half a minute. uv's thread pool is no place for that: a loop does not
 * end before its look-ups have, nor a process before uv's threads. So look-ups have threads of their own, detached, which the end of the process does not
 * wait for. What such a thread writes to is its own until it has an answer, and is given away under the lock, if anybody still waits:
 *
 *   start -> queue -> thread: getaddrinfo -> answer as mail to the loop -> callback
 *              |         |
 *              +---------+-- cancel: UV_ECANCELED as mail; the thread's answer is for nobody
 *
 * A numeric address waits for no thread; it too comes as mail, so that the callback never runs inside start.
 */
#include "loop/resolve.h"

#include "base/err.h"

#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 4 /* a name server that is slow for one name is asked for others beside it */

typedef struct bt_lookup {
    bt_list_t link;  /* in the queue, until a thread takes it */
    bt_resolve_t *r; /* who waits; NULL = nobody */
    bt_loop_t *loop;
    unsigned turn;
    char service[16];
    char host[];
} lookup_t;

/* Held for a few instructions, but where a thread is made. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bt_list_t queue = {&queue, &queue};
static unsigned threads;

/* ---- the answer ---- */

static void on_answer(bt_loop_t *loop, bt_mail_t *envelope)
{
    bt_resolve_t *r = bt_container_of(envelope, bt_resolve_t, envelope);

    (void) loop;
    /* Whoever has posted it may be about to wake this loop, which the callback may end. */
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    const int rc = r->is_cancelled ? UV_ECANCELED : r->rc;
    r->cb(r, rc, rc == 0 ? &r->addr : NULL);
}

/* getaddrinfo has sorted them by what this host can reach (RFC 6724). */
static const struct addrinfo *nth_of(const struct addrinfo *list, unsigned turn)
{
    const struct addrinfo *at;
    unsigned count = 0;

    for (at = list; at != NULL; at = at->ai_next)
        count++;
    at = list;
    for (unsigned i = count > 0 ? turn % count : 0; i > 0; i--)
        at = at->ai_next;
    return at;
}

/* ---- threads ---- */

static void give_answer(lookup_t *l, const struct addrinfo *found)
{
    pthread_mutex_lock(&lock);
    bt_resolve_t *r = l->r;
    if (r != NULL) {
        r->lookup = NULL;
        r->rc = found != NULL && found->ai_addrlen <= sizeof(r->addr) ? 0 : BT_E_RESOLVE;
        if (r->rc == 0)
            memcpy(&r->addr, found->ai_addr, found->ai_addrlen);
        bt_loop_post(l->loop, &r->envelope, on_answer);
    }
    pthread_mutex_unlock(&lock);
}

static void look_up(lookup_t *l)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;

    if (getaddrinfo(l->host, l->service, &hints, &list) != 0)
        list = NULL;
    give_answer(l, nth_of(list, l->turn));
    if (list != NULL)
        freeaddrinfo(list);
    free(l);
}

/* NULL: there is nothing to do, and this thread counts no more. */
static lookup_t *take_lookup(void)
{
    lookup_t *l = NULL;

    pthread_mutex_lock(&lock);
    if (bt_list_empty(&queue)) {
        threads--;
    } else {
        l = bt_container_of(queue.next, lookup_t, link);
        bt_list_remove(&l->link);
    }
    pthread_mutex_unlock(&lock);
    return l;
}

static void *run_lookups(void *nothing)
{
    lookup_t *l;

    while ((l = take_lookup()) != NULL)
        look_up(l);
    return nothing;
}

static int start_thread(void)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;
    int rc = pthread_attr_init(&attr);

    if (rc != 0)
        return -rc;
    (void) pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all); /* signals of the process are for others */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&thread, &attr, run_lookups, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return -rc;
}

/* Under the lock. Where no thread can be made, one that runs takes it. */
static int queue_up(lookup_t *l)
{
    bt_list_push(&queue, &l->link);
    if (threads == THREADS_MAX)
        return 0;
    const int rc = start_thread();
    if (rc == 0)
        threads++;
    else if (threads == 0)
        bt_list_remove(&l->link);
    return threads > 0 ? 0 : rc;
}

/* ---- life ---- */

int bt_resolve_start(bt_resolve_t *r, bt_loop_t *loop, const char *host, unsigned port,
                     bt_resolve_cb cb)
{
    return bt_resolve_turn(r, loop, host, port, 0, cb);
}

int bt_resolve_turn(bt_resolve_t *r, bt_loop_t *loop, const char *host, unsigned port,
                    unsigned turn, bt_resolve_cb cb)
{
    const size_t size = strlen(host) + 1;

    if (port > 65535)
        return BT_E_INVAL;
    r->cb = cb;
    r->rc = 0;
    r->is_cancelled = false;
    r->lookup = NULL;
    if (bt_resolve_numeric(host, port, &r->addr) == 0) {
        bt_loop_post(loop, &r->envelope, on_answer);
        return 0;
    }
    lookup_t *l = malloc(sizeof(*l) + size);
    if (l == NULL)
        return BT_E_NOMEM;
    *l = (lookup_t){.r = r, .loop = loop, .turn = turn};
    snprintf(l->service, sizeof(l->service), "%u", port);
    memcpy(l->host, host, size);
    pthread_mutex_lock(&lock);
    r->lookup = l;
    const int rc = queue_up(l);
    pthread_mutex_unlock(&lock);
    if (rc < 0)
        free(l);
    return rc;
}

/* The end of one that nobody waits for any more: freed here where no thread has begun it. */
static void abandon(lookup_t *l)
{
    bt_resolve_t *r = l->r;

    r->lookup = NULL;
    l->r = NULL;
    bt_loop_post(l->loop, &r->envelope, on_answer);
    if (bt_list_empty(&l->link))
        return;
    bt_list_remove(&l->link);
    free(l);
}

void bt_resolve_cancel(bt_resolve_t *r)
{
    r->is_cancelled = true;
    pthread_mutex_lock(&lock);
    if (r->lookup != NULL)
        abandon(r->lookup);
    pthread_mutex_unlock(&lock);
}

/* "[::1]" -> "::1". */
static bool strip_brackets(const char *host, char *out, size_t size)
{
    size_t n = strlen(host);

    if (n < 2 || n - 2 >= size || host[0] != '[' || host[n - 1] != ']')
        return false;
    memcpy(out, host + 1, n - 2);
    out[n - 2] = '\0';
    return true;
}

int bt_resolve_numeric(const char *host, unsigned port, struct sockaddr_storage *addr_p)
{
    struct sockaddr_storage addr;
    char inner[64];

    if (port > 65535)
        return BT_E_INVAL;
    memset(&addr, 0, sizeof(addr));
    bool bracketed = strip_brackets(host, inner, sizeof(inner));
    if (uv_ip6_addr(bracketed ? inner : host, (int) port, (struct sockaddr_in6 *) &addr) != 0 &&
        (bracketed || uv_ip4_addr(host, (int) port, (struct sockaddr_in *) &addr) != 0))
        return BT_E_INVAL;
    *addr_p = addr;
    return 0;
}
