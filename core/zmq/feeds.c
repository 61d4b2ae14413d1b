/* How it works: one thread polls all sockets, its wake-up and each SUB's monitor. A monitor is read before its SUB, so that a connection that was
 * lost is known before what comes by the next one. Each question has a DEALER of its own: no answer can be taken for another's.
 *
 * Feeds that were closed in a callback are freed at the end of the turn. */
#include "zmq/feeds.h"

#include "base/err.h"
#include "base/list.h"
#include "base/thread.h"
#include "zmq/libzmq.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <zmq.h>

#define TURN_MS 100
#define SHARE 64          /* messages of one socket before the next one has its turn */
#define HIGH_WATER 1000   /* messages that wait in libzmq, of each socket */
#define HEARTBEAT_MS 5000 /* a publisher that vanished is gone after two of them */
#define RECONNECT_MS 100
#define RECONNECT_MAX_MS 2000
#define SOCKETS_MAX 65535
#define EVENTS (ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED)

struct bt_zmq_feed {
    bt_list_t link;
    bt_zmq_feeds_t *feeds;
    void *user;
    void *sub, *monitor, *dealer;
    char answers_at[256];
    bool is_closed;
};

typedef struct command {
    struct command *next;
    void (*run)(void *arg);
    void *arg;
} command_t;

struct bt_zmq_feeds {
    bt_zmq_feeds_config_t config;
    void *context;
    bt_list_t open;
    unsigned count;
    uint64_t serial;
    zmq_pollitem_t *items;
    unsigned item_cap;
    int wake_fd;
    pthread_t thread;
    atomic_bool stop;
    pthread_mutex_t lock; /* guards the two */
    command_t *first, **last_p;
};

/* ---- sockets ---- */

static void set(void *handle, int option, int value)
{
    (void) zmq_setsockopt(handle, option, &value, sizeof(value));
}

static void *new_socket(bt_zmq_feeds_t *f, int type)
{
    void *handle = zmq_socket(f->context, type);

    if (handle == NULL)
        return NULL;
    const int64_t max_bytes = f->config.max_frame_bytes;
    (void) zmq_setsockopt(handle, ZMQ_MAXMSGSIZE, &max_bytes, sizeof(max_bytes));
    set(handle, ZMQ_LINGER, 0);
    set(handle, ZMQ_RCVHWM, HIGH_WATER);
    set(handle, ZMQ_HEARTBEAT_IVL, HEARTBEAT_MS);
    set(handle, ZMQ_RECONNECT_IVL, RECONNECT_MS);
    set(handle, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS);
    set(handle, ZMQ_IPV6, 1);
    return handle;
}

static void close_socket(void **handle_p)
{
    if (*handle_p != NULL)
        zmq_close(*handle_p);
    *handle_p = NULL;
}

static int watch(bt_zmq_feed_t *feed)
{
    char name[64];

    snprintf(name, sizeof(name), "inproc://feed-%llu", (unsigned long long) feed->feeds->serial++);
    if (zmq_socket_monitor(feed->sub, name, EVENTS) != 0)
        return BT_E_LIMIT;
    feed->monitor = zmq_socket(feed->feeds->context, ZMQ_PAIR);
    if (feed->monitor == NULL)
        return BT_E_LIMIT;
    set(feed->monitor, ZMQ_LINGER, 0);
    return zmq_connect(feed->monitor, name) == 0 ? 0 : BT_E_LIMIT;
}

static void free_feed(bt_zmq_feed_t *feed)
{
    if (feed->sub != NULL)
        (void) zmq_socket_monitor(feed->sub, NULL, 0);
    close_socket(&feed->monitor);
    close_socket(&feed->sub);
    close_socket(&feed->dealer);
    free(feed);
}

int bt_zmq_feed_open(bt_zmq_feeds_t *f, const char *endpoint, const char *answers_at, void *user,
                     bt_zmq_feed_t **feed_p)
{
    bt_zmq_feed_t *feed = calloc(1, sizeof(*feed));

    if (feed == NULL)
        return BT_E_NOMEM;
    feed->feeds = f;
    feed->user = user;
    snprintf(feed->answers_at, sizeof(feed->answers_at), "%s", answers_at);
    feed->sub = new_socket(f, ZMQ_SUB);
    int rc = feed->sub != NULL ? watch(feed) : BT_E_LIMIT;
    if (rc == 0 && (zmq_setsockopt(feed->sub, ZMQ_SUBSCRIBE, "", 0) != 0 ||
                    zmq_connect(feed->sub, endpoint) != 0))
        rc = BT_E_INVAL;
    if (rc < 0) {
        free_feed(feed);
        return rc;
    }
    bt_list_push(&f->open, &feed->link);
    f->count++;
    *feed_p = feed;
    return 0;
}

int bt_zmq_feed_ask(bt_zmq_feed_t *feed, bt_str_t question)
{
    close_socket(&feed->dealer);
    if (feed->answers_at[0] == '\0' || (feed->dealer = new_socket(feed->feeds, ZMQ_DEALER)) == NULL)
        return BT_E_LIMIT;
    if (zmq_connect(feed->dealer, feed->answers_at) == 0 &&
        zmq_send(feed->dealer, "", 0, ZMQ_DONTWAIT | ZMQ_SNDMORE) == 0 &&
        zmq_send(feed->dealer, question.p, question.n, ZMQ_DONTWAIT) >= 0)
        return 0;
    close_socket(&feed->dealer);
    return BT_E_INVAL;
}

void bt_zmq_feed_close(bt_zmq_feed_t *feed)
{
    feed->is_closed = true;
}

/* ---- messages ---- */

/* Reads one message to its end. False: there is none. */
static bool take(bt_zmq_feed_t *feed, void *handle, bool is_answer)
{
    zmq_msg_t parts[BT_ZMQ_FEED_FRAMES_MAX];
    bt_str_t frames[BT_ZMQ_FEED_FRAMES_MAX];
    unsigned count = 0;
    bool more = true, is_whole = true;

    while (more) {
        zmq_msg_t part;
        zmq_msg_init(&part);
        if (zmq_msg_recv(&part, handle, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&part);
            is_whole = false;
            break;
        }
        more = zmq_msg_more(&part) != 0;
        if (count == BT_ZMQ_FEED_FRAMES_MAX) {
            is_whole = false;
            zmq_msg_close(&part);
            continue;
        }
        parts[count] = part;
        frames[count] = (bt_str_t){zmq_msg_data(&parts[count]), zmq_msg_size(&parts[count])};
        count++;
    }
    if (is_whole && !feed->is_closed)
        feed->feeds->config.on_message(feed->user, frames, count, is_answer);
    for (unsigned i = 0; i < count; i++)
        zmq_msg_close(&parts[i]);
    return count > 0;
}

/* A monitor's message: two bytes of event, four of value; then the endpoint. */
static bool take_event(bt_zmq_feed_t *feed)
{
    unsigned char first[6], rest[256];
    uint16_t event;

    if (zmq_recv(feed->monitor, first, sizeof(first), ZMQ_DONTWAIT) < (int) sizeof(event))
        return false;
    (void) zmq_recv(feed->monitor, rest, sizeof(rest), ZMQ_DONTWAIT);
    memcpy(&event, first, sizeof(event));
    if (!feed->is_closed)
        (event == ZMQ_EVENT_DISCONNECTED ? feed->feeds->config.on_down
                                         : feed->feeds->config.on_up)(feed->user);
    return true;
}

static void serve_feed(bt_zmq_feed_t *feed)
{
    const bt_zmq_feeds_config_t *c = &feed->feeds->config;
    const void *dealer;

    while (!feed->is_closed && take_event(feed))
        ;
    for (unsigned i = 0; i < SHARE && !feed->is_closed && feed->dealer != NULL; i++) {
        dealer = feed->dealer;
        if (!take(feed, feed->dealer, true) || feed->dealer != dealer)
            break;
    }
    for (unsigned i = 0; i < SHARE && !feed->is_closed && c->wants_more(feed->user); i++)
        if (!take(feed, feed->sub, false))
            break;
    if (!feed->is_closed)
        c->on_turn(feed->user);
}

static void free_closed(bt_zmq_feeds_t *f)
{
    bt_list_t *next;

    for (bt_list_t *at = f->open.next; at != &f->open; at = next) {
        bt_zmq_feed_t *feed = bt_container_of(at, bt_zmq_feed_t, link);
        next = at->next;
        if (!feed->is_closed)
            continue;
        bt_list_remove(at);
        f->count--;
        free_feed(feed);
    }
}

/* ---- the thread ---- */

static void run_commands(bt_zmq_feeds_t *f)
{
    uint64_t count;

    (void) !read(f->wake_fd, &count, sizeof(count));
    pthread_mutex_lock(&f->lock);
    command_t *c = f->first, *next;
    f->first = NULL;
    f->last_p = &f->first;
    pthread_mutex_unlock(&f->lock);
    for (; c != NULL; c = next) {
        next = c->next;
        c->run(c->arg);
        free(c);
    }
}

static int make_items(bt_zmq_feeds_t *f)
{
    const unsigned wanted = 1 + 3 * f->count;

    if (wanted <= f->item_cap)
        return 0;
    zmq_pollitem_t *items = realloc(f->items, 2 * wanted * sizeof(items[0]));
    if (items == NULL)
        return BT_E_NOMEM;
    f->items = items;
    f->item_cap = 2 * wanted;
    return 0;
}

static int fill_items(bt_zmq_feeds_t *f)
{
    int n = 0;

    f->items[n++] = (zmq_pollitem_t){.fd = f->wake_fd, .events = ZMQ_POLLIN};
    for (bt_list_t *at = f->open.next; at != &f->open; at = at->next) {
        const bt_zmq_feed_t *feed = bt_container_of(at, bt_zmq_feed_t, link);
        f->items[n++] = (zmq_pollitem_t){.socket = feed->monitor, .events = ZMQ_POLLIN};
        if (feed->dealer != NULL)
            f->items[n++] = (zmq_pollitem_t){.socket = feed->dealer, .events = ZMQ_POLLIN};
        if (f->config.wants_more(feed->user))
            f->items[n++] = (zmq_pollitem_t){.socket = feed->sub, .events = ZMQ_POLLIN};
    }
    return n;
}

static void *run(void *arg)
{
    bt_zmq_feeds_t *f = arg;

    bt_thread_to_background();
    while (!atomic_load(&f->stop)) {
        const int n = make_items(f) == 0 ? fill_items(f) : 0;
        if (zmq_poll(f->items, n, TURN_MS) < 0 && errno != EINTR)
            break;
        run_commands(f);
        for (bt_list_t *at = f->open.next; at != &f->open && !atomic_load(&f->stop); at = at->next)
            serve_feed(bt_container_of(at, bt_zmq_feed_t, link));
        free_closed(f);
    }
    run_commands(f);
    for (bt_list_t *at = f->open.next; at != &f->open; at = at->next)
        bt_container_of(at, bt_zmq_feed_t, link)->is_closed = true;
    free_closed(f);
    while (zmq_ctx_term(f->context) < 0 && errno == EINTR)
        ;
    return NULL;
}

/* ---- the owner's side ---- */

static void wake(bt_zmq_feeds_t *f)
{
    const uint64_t one = 1;

    (void) !write(f->wake_fd, &one, sizeof(one));
}

static void free_feeds(bt_zmq_feeds_t *f)
{
    if (f->wake_fd >= 0)
        close(f->wake_fd);
    pthread_mutex_destroy(&f->lock);
    free(f->items);
    free(f);
}

int bt_zmq_feeds_new(bt_zmq_feeds_t **feeds_p, const bt_zmq_feeds_config_t *config)
{
    if (bt_libzmq_load() != NULL)
        return BT_E_CONFIG;
    bt_zmq_feeds_t *f = calloc(1, sizeof(*f));
    if (f == NULL)
        return BT_E_NOMEM;
    f->config = *config;
    f->last_p = &f->first;
    bt_list_init(&f->open);
    pthread_mutex_init(&f->lock, NULL);
    f->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    f->context = f->wake_fd >= 0 ? zmq_ctx_new() : NULL;
    if (f->context != NULL) {
        (void) zmq_ctx_set(f->context, ZMQ_MAX_SOCKETS, SOCKETS_MAX);
        if (bt_thread_start(&f->thread, run, f) == 0) {
            *feeds_p = f;
            return 0;
        }
        (void) zmq_ctx_term(f->context);
    }
    free_feeds(f);
    return BT_E_LIMIT;
}

int bt_zmq_feeds_post(bt_zmq_feeds_t *f, void (*run_it)(void *arg), void *arg)
{
    command_t *c = malloc(sizeof(*c));

    if (c == NULL)
        return BT_E_NOMEM;
    *c = (command_t){.run = run_it, .arg = arg};
    pthread_mutex_lock(&f->lock);
    *f->last_p = c;
    f->last_p = &c->next;
    pthread_mutex_unlock(&f->lock);
    wake(f);
    return 0;
}

bool bt_zmq_feeds_close(bt_zmq_feeds_t *f, unsigned deadline_ms)
{
    struct timespec until;

    atomic_store(&f->stop, true);
    wake(f);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += deadline_ms / 1000;
    until.tv_nsec += (long) (deadline_ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_timedjoin_np(f->thread, NULL, &until) != 0)
        return false; /* what it has is not ours to free */
    free_feeds(f);
    return true;
}
