/* Senders fall into buckets by a hash; two that share one are taken for one, which is fair enough where there are BUCKETS of them. In
 * a bucket large entries come first, so that the largest is found among few.
 *
 * Only an entry's own loop closes it. Whoever runs out of memory on another loop moves the entry to the victims of its loop and posts
 * that loop's one message; what is on its way to be freed (leaving_bytes) counts as free from then on, or each loop would send another
 * one home for the same bytes.
 */
#include "http/unfinished.h"

#include "base/err.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdlib.h>

#define BUCKETS 1024U
#define LARGE_BYTES ((size_t) 128 << 10)

struct bucket {
    size_t bytes;    /* of unfinished requests */
    size_t complete; /* of others */
    bt_list_t large, small;
};

struct bt_unfinished_loop {
    bt_unfinished_t *table;
    bt_unfinished_loop_t *next;
    bt_loop_t *loop;
    bt_list_t victims;
    bt_mail_t mail;
    bool is_posted;
};

struct bt_unfinished {
    pthread_mutex_t lock;
    size_t limit_bytes;
    _Atomic size_t leaving_bytes;
    bt_unfinished_evict_cb evict;
    bt_unfinished_loop_t *loops;
    _Atomic uint64_t evicted;
    struct bucket buckets[BUCKETS];
};

int bt_unfinished_new(bt_unfinished_t **u_p, size_t limit_bytes, bt_unfinished_evict_cb evict)
{
    bt_unfinished_t *u = calloc(1, sizeof(*u));

    if (u == NULL)
        return BT_E_NOMEM;
    pthread_mutex_init(&u->lock, NULL);
    u->limit_bytes = limit_bytes;
    u->evict = evict;
    for (unsigned i = 0; i < BUCKETS; i++) {
        bt_list_init(&u->buckets[i].large);
        bt_list_init(&u->buckets[i].small);
    }
    *u_p = u;
    return 0;
}

void bt_unfinished_free(bt_unfinished_t *u)
{
    bt_unfinished_loop_t *next;

    if (u == NULL)
        return;
    for (bt_unfinished_loop_t *at = u->loops; at != NULL; at = next) {
        next = at->next;
        free(at);
    }
    pthread_mutex_destroy(&u->lock);
    free(u);
}

int bt_unfinished_join(bt_unfinished_t *u, bt_loop_t *loop, bt_unfinished_loop_t **at_p)
{
    bt_unfinished_loop_t *at = calloc(1, sizeof(*at));

    if (at == NULL)
        return BT_E_NOMEM;
    at->table = u;
    at->loop = loop;
    at->next = u->loops;
    u->loops = at;
    bt_list_init(&at->victims);
    *at_p = at;
    return 0;
}

bool bt_unfinished_fits(const bt_unfinished_t *u, size_t more)
{
    const size_t held = bt_mem_total_bytes();

    return held <= u->limit_bytes && more <= u->limit_bytes - held && !bt_mem_is_short();
}

uint64_t bt_unfinished_evicted(const bt_unfinished_t *u)
{
    return atomic_load_explicit(&u->evicted, memory_order_relaxed);
}

/* ---- entries; all under the lock ---- */

static struct bucket *bucket_of(bt_unfinished_t *u, uint64_t sender)
{
    return &u->buckets[(sender * 0x9e3779b97f4a7c15ULL) >> 54];
}

_Static_assert(BUCKETS == 1U << (64 - 54), "bucket_of takes the upper bits");

static void link_entry(bt_unfinished_t *u, bt_unfinished_entry_t *e)
{
    struct bucket *b = bucket_of(u, e->sender);

    bt_list_push(e->bytes >= LARGE_BYTES ? &b->large : &b->small, &e->link);
}

static void charge(bt_unfinished_t *u, bt_unfinished_entry_t *e, size_t more)
{
    const bool was_large = e->bytes >= LARGE_BYTES;

    e->bytes += more;
    bucket_of(u, e->sender)->bytes += more;
    if (was_large || e->bytes < LARGE_BYTES)
        return;
    bt_list_remove(&e->link);
    link_entry(u, e);
}

static void open_entry(bt_unfinished_t *u, bt_unfinished_entry_t *e, uint64_t sender,
                       bt_unfinished_loop_t *at)
{
    *e = (bt_unfinished_entry_t){.at = at, .sender = sender, .is_open = true};
    bt_list_init(&e->link);
    link_entry(u, e);
}

/* A request's head may be large before it is known whose key is in it. */
static void settle_sender(bt_unfinished_t *u, bt_unfinished_entry_t *e, uint64_t sender)
{
    if (e->sender == sender)
        return;
    bucket_of(u, e->sender)->bytes -= e->bytes;
    e->sender = sender;
    bucket_of(u, sender)->bytes += e->bytes;
    bt_list_remove(&e->link);
    link_entry(u, e);
}

/* ---- who goes ---- */

static void on_mail(bt_loop_t *loop, bt_mail_t *msg)
{
    bt_unfinished_loop_t *at = bt_container_of(msg, bt_unfinished_loop_t, mail);
    bt_unfinished_t *u = at->table;

    (void) loop;
    pthread_mutex_lock(&u->lock);
    at->is_posted = false;
    while (!bt_list_empty(&at->victims)) {
        bt_unfinished_entry_t *e = bt_container_of(at->victims.next, bt_unfinished_entry_t, link);
        pthread_mutex_unlock(&u->lock);
        u->evict(e); /* closes it */
        pthread_mutex_lock(&u->lock);
    }
    pthread_mutex_unlock(&u->lock);
}

static bt_unfinished_entry_t *largest_in(const struct bucket *b)
{
    bt_unfinished_entry_t *largest = NULL;

    for (bt_list_t *it = b->large.next; it != &b->large; it = it->next) {
        bt_unfinished_entry_t *e = bt_container_of(it, bt_unfinished_entry_t, link);
        if (largest == NULL || e->bytes > largest->bytes)
            largest = e;
    }
    if (largest == NULL && !bt_list_empty(&b->small)) /* the oldest of them */
        largest = bt_container_of(b->small.next, bt_unfinished_entry_t, link);
    return largest;
}

static struct bucket *heaviest(bt_unfinished_t *u)
{
    struct bucket *most = &u->buckets[0];

    for (unsigned i = 1; i < BUCKETS; i++)
        if (u->buckets[i].bytes > most->bytes)
            most = &u->buckets[i];
    return most;
}

static void send_return(bt_unfinished_t *u, bt_unfinished_entry_t *e)
{
    bt_unfinished_loop_t *at = e->at;

    bucket_of(u, e->sender)->bytes -= e->bytes;
    bt_list_remove(&e->link);
    e->is_victim = true;
    atomic_fetch_add(&u->leaving_bytes, e->bytes);
    bt_list_push(&at->victims, &e->link);
    atomic_fetch_add_explicit(&u->evicted, 1, memory_order_relaxed);
    if (at->is_posted)
        return;
    at->is_posted = true;
    bt_loop_post(at->loop, &at->mail, on_mail);
}

static bool is_over(const bt_unfinished_t *u, size_t more)
{
    const size_t total = bt_mem_total_bytes(), leaving = atomic_load(&u->leaving_bytes);
    const size_t staying = total > leaving ? total - leaving : 0;

    return more > u->limit_bytes || staying > u->limit_bytes - more;
}

/* e: who asks, or NULL. The asker's own wish counts as if it were granted, so that a sender can't grow beyond all others. */
static int make_room(bt_unfinished_t *u, const bt_unfinished_entry_t *e, uint64_t sender,
                     size_t more)
{
    while (is_over(u, more)) {
        const struct bucket *most = heaviest(u), *own = bucket_of(u, sender);
        bt_unfinished_entry_t *victim;
        if (own->bytes + more >= most->bytes)
            most = own;
        victim = largest_in(most);
        if (victim == NULL || victim == e ||
            (most == own && victim->bytes < (e != NULL ? e->bytes : 0) + more))
            return BT_E_LIMIT;
        send_return(u, victim);
    }
    return 0;
}

/* ---- for connections ---- */

int bt_unfinished_reserve(bt_unfinished_loop_t *at, bt_unfinished_entry_t *e, uint64_t sender,
                          size_t more)
{
    bt_unfinished_t *u = at->table;
    int rc;

    if (e == NULL && !is_over(u, more)) /* a look without the lock: usual requests stop here */
        return 0;
    pthread_mutex_lock(&u->lock);
    if (e != NULL && e->is_open && !e->is_victim)
        settle_sender(u, e, sender);
    rc = e != NULL && e->is_victim ? BT_E_LIMIT : make_room(u, e, sender, more);
    if (rc == 0 && e != NULL) {
        if (!e->is_open)
            open_entry(u, e, sender, at);
        charge(u, e, more);
    }
    pthread_mutex_unlock(&u->lock);
    return rc;
}

void bt_unfinished_note(bt_unfinished_loop_t *at, bt_unfinished_entry_t *e, uint64_t sender,
                        size_t bytes)
{
    bt_unfinished_t *u = at->table;

    if (e->is_open || bt_mem_total_bytes() <= u->limit_bytes / 2)
        return;
    pthread_mutex_lock(&u->lock);
    open_entry(u, e, sender, at);
    charge(u, e, bytes);
    pthread_mutex_unlock(&u->lock);
}

int bt_unfinished_complete(bt_unfinished_entry_t *e)
{
    if (!e->is_open)
        return 0;
    bt_unfinished_t *u = e->at->table;
    int rc = BT_E_LIMIT;

    pthread_mutex_lock(&u->lock);
    struct bucket *b = bucket_of(u, e->sender);
    if (!e->is_victim && (b->complete == 0 || b->complete + e->bytes <= u->limit_bytes / 2)) {
        b->bytes -= e->bytes;
        b->complete += e->bytes;
        bt_list_remove(&e->link);
        e->is_complete = true;
        rc = 0;
    }
    pthread_mutex_unlock(&u->lock);
    return rc;
}

void bt_unfinished_close(bt_unfinished_entry_t *e)
{
    if (!e->is_open)
        return;
    bt_unfinished_t *u = e->at->table;
    pthread_mutex_lock(&u->lock);
    bt_list_remove(&e->link);
    if (e->is_victim)
        atomic_fetch_sub(&u->leaving_bytes, e->bytes);
    else if (e->is_complete)
        bucket_of(u, e->sender)->complete -= e->bytes;
    else
        bucket_of(u, e->sender)->bytes -= e->bytes;
    e->is_open = e->is_victim = e->is_complete = false;
    pthread_mutex_unlock(&u->lock);
}
