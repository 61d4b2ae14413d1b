/* How it works: zmq_poll waits for all sockets and for a descriptor by which the control loop says stop. A socket that has spent its
 * share of the second, or meets a full mailbox, is left out of the poll for some milliseconds: libzmq's own queues fill up to their
 * limit for each peer, then TCP holds the peers. So memory is bounded by what is connected, never by what is sent.
 *
 * The end: the thread closes its sockets without lingering, ends the context and posts its last mail. Mail of one sender arrives in
 * order, so when that one comes every message has come. */
#include "zmq/sockets.h"

#include "base/err.h"
#include "base/log.h"
#include "base/thread.h"
#include "zmq/libzmq.h"
#include "zmq/zap.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <zmq.h>

#define SLICE_US UINT64_C(10000) /* shares of a second are counted in these */
#define SLICES_PER_SECOND 100U
#define QUEUE_MAX 1024U   /* messages that the control loop has not taken */
#define HIGH_WATER 256    /* messages that libzmq keeps of one peer */
#define HANDSHAKE_MS 1000 /* whoever is refused keeps its connection so long, and dials again */
#define HEARTBEAT_MS 5000 /* a peer that vanished is gone after two of them */
#define FRAME_BYTES 4096U
#define PER_SECOND 2000U
#define IO_THREADS 1
#define QUESTIONS_MAX 64 /* answered before messages are read again */
#define POLL_FIXED 2     /* wake_fd and who asks whether a peer may come */

const char bt_zmq_not_built[] = BT_LIBZMQ " cannot be loaded: install the Debian package libzmq5";

typedef struct bt_zmq_socket {
    void *handle;
    bt_zmq_socket_config_t config;
    uint64_t slice;  /* number of the running one */
    unsigned budget; /* messages that it may still bring */
} bt_zmq_socket_t;

struct bt_zmq {
    bt_loop_t *control;
    void *context;
    bt_zap_t zap;
    bt_zmq_socket_t sockets[BT_ZMQ_SOCKETS_MAX];
    unsigned count;
    int wake_fd;
    pthread_t thread;
    bool has_thread;
    atomic_bool stop;
    _Atomic unsigned queued;
    _Atomic uint64_t messages, malformed, held_back, refused;
    /* the end, on the control loop */
    bool is_closing;
    bt_timer_t deadline;
    void (*done)(void *user);
    void *done_user;
    bt_mail_t last;
    pthread_mutex_t lock; /* guards the two: who comes first says how it ends */
    bool has_ended, is_abandoned;
};

/* A message on its way to the control loop; its text lies behind it. */
typedef struct posted {
    bt_mail_t mail;
    bt_zmq_t *zmq;
    const bt_zmq_socket_t *socket;
    bt_zmq_message_t message;
    char text[];
} posted_t;

bool bt_zmq_is_built(void)
{
    return bt_libzmq_load() == NULL;
}

/* ---- a message ---- */

static void on_posted(bt_loop_t *loop, bt_mail_t *mail)
{
    posted_t *p = bt_container_of(mail, posted_t, mail);
    bt_zmq_t *z = p->zmq;

    (void) loop;
    atomic_fetch_sub(&z->queued, 1);
    const bt_zmq_socket_config_t *config = &p->socket->config;
    if (!z->is_closing && p->message.frame_count > 0)
        config->on_message(config->user, &p->message);
    else if (!z->is_closing && config->on_refused != NULL)
        config->on_refused(config->user, p->message.peer);
    free(p);
}

static const char *peer_of(zmq_msg_t *frame)
{
    const char *peer = zmq_msg_gets(frame, "Peer-Address");

    return peer != NULL ? peer : "";
}

static char *put_text(char *at, bt_str_t text, bt_str_t *copy_p)
{
    *copy_p = (bt_str_t){at, text.n};
    memcpy(at, text.p, text.n);
    return at + text.n;
}

/* Without frames: a peer that was refused. Out of memory it is lost, as on a wire. */
static void post(bt_zmq_t *z, const bt_zmq_socket_t *socket, bt_str_t peer, zmq_msg_t *frames,
                 unsigned count)
{
    size_t bytes = peer.n + 1;
    bt_str_t copy;

    for (unsigned i = 0; i < count; i++)
        bytes += zmq_msg_size(&frames[i]);
    posted_t *p = calloc(1, sizeof(*p) + bytes);
    if (p == NULL)
        return;
    p->zmq = z;
    p->socket = socket;
    p->message.frame_count = count;
    p->message.peer = p->text;
    char *at = put_text(p->text, peer, &copy) + 1;
    for (unsigned i = 0; i < count; i++)
        at = put_text(at, (bt_str_t){zmq_msg_data(&frames[i]), zmq_msg_size(&frames[i])},
                      &p->message.frames[i]);
    atomic_fetch_add(&z->queued, 1);
    if (count > 0)
        atomic_fetch_add_explicit(&z->messages, 1, memory_order_relaxed);
    bt_loop_post(z->control, &p->mail, on_posted);
}

/* Reads one message to its end. False: there is none. */
static bool take_message(bt_zmq_t *z, bt_zmq_socket_t *socket)
{
    zmq_msg_t frames[BT_ZMQ_FRAMES_MAX], extra;
    unsigned count = 0, more_frames = 0;
    bool more = true;

    while (more) {
        zmq_msg_t *frame = count < BT_ZMQ_FRAMES_MAX ? &frames[count] : &extra;
        zmq_msg_init(frame);
        if (zmq_msg_recv(frame, socket->handle, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(frame);
            break; /* parts of one message come together: this is its beginning */
        }
        more = zmq_msg_more(frame) != 0;
        if (frame == &extra) {
            more_frames++;
            zmq_msg_close(frame);
        } else {
            count++;
        }
    }
    if (more_frames > 0)
        atomic_fetch_add_explicit(&z->malformed, 1, memory_order_relaxed);
    else if (count > 0)
        post(z, socket, bt_str(peer_of(&frames[count - 1])), frames, count);
    for (unsigned i = 0; i < count; i++)
        zmq_msg_close(&frames[i]);
    return count > 0;
}

/* ---- the thread ---- */

static void renew_budget(bt_zmq_socket_t *socket)
{
    const uint64_t slice = bt_clock_us() / SLICE_US;
    const unsigned share = socket->config.max_per_second / SLICES_PER_SECOND;

    if (slice == socket->slice)
        return;
    socket->slice = slice;
    socket->budget = share > 0 ? share : 1;
}

static bool may_read(bt_zmq_t *z, const bt_zmq_socket_t *socket)
{
    return socket->budget > 0 && atomic_load(&z->queued) < QUEUE_MAX;
}

static void read_socket(bt_zmq_t *z, bt_zmq_socket_t *socket)
{
    while (may_read(z, socket) && take_message(z, socket))
        socket->budget--;
    if (!may_read(z, socket))
        atomic_fetch_add_explicit(&z->held_back, 1, memory_order_relaxed);
}

/* Those who are refused are told of within the socket's share; the others are only kept out. */
static void answer_questions(bt_zmq_t *z)
{
    bt_zap_question_t question;
    enum bt_zap_verdict verdict = BT_ZAP_ALLOWED;

    for (unsigned n = 0; n < QUESTIONS_MAX && verdict != BT_ZAP_NOTHING; n++) {
        verdict = bt_zap_answer(&z->zap, &question);
        if (verdict != BT_ZAP_REFUSED || question.socket >= z->count)
            continue;
        atomic_fetch_add_explicit(&z->refused, 1, memory_order_relaxed);
        bt_zmq_socket_t *socket = &z->sockets[question.socket];
        if (!may_read(z, socket))
            continue;
        socket->budget--;
        post(z, socket, bt_str(question.peer), NULL, 0);
    }
}

/* Those that may be read now, the wake-up and the questions. Returns how long to wait: the others are looked at again soon. */
static long fill_poll(bt_zmq_t *z, zmq_pollitem_t *items)
{
    long timeout_ms = -1;

    items[0] = (zmq_pollitem_t){.fd = z->wake_fd, .events = ZMQ_POLLIN};
    items[1] = (zmq_pollitem_t){.socket = z->zap.handle, .events = ZMQ_POLLIN};
    for (unsigned i = 0; i < z->count; i++) {
        renew_budget(&z->sockets[i]);
        const bool may = may_read(z, &z->sockets[i]);
        items[i + POLL_FIXED] = (zmq_pollitem_t){.socket = z->sockets[i].handle,
                                                 .events = (short) (may ? ZMQ_POLLIN : 0)};
        if (!may)
            timeout_ms = (long) (SLICE_US / 1000);
    }
    return timeout_ms;
}

static void serve(bt_zmq_t *z)
{
    zmq_pollitem_t items[BT_ZMQ_SOCKETS_MAX + POLL_FIXED];

    while (!atomic_load(&z->stop)) {
        if (zmq_poll(items, (int) z->count + POLL_FIXED, fill_poll(z, items)) < 0 && errno != EINTR)
            return;
        answer_questions(z);
        for (unsigned i = 0; i < z->count && !atomic_load(&z->stop); i++)
            if ((items[i + POLL_FIXED].revents & ZMQ_POLLIN) != 0)
                read_socket(z, &z->sockets[i]);
    }
}

static void close_sockets(bt_zmq_t *z)
{
    for (unsigned i = 0; i < z->count; i++)
        zmq_close(z->sockets[i].handle);
    z->count = 0;
    bt_zap_close(&z->zap);
    while (z->context != NULL && zmq_ctx_term(z->context) < 0 && errno == EINTR)
        ;
    z->context = NULL;
}

static void free_zmq(bt_zmq_t *z)
{
    if (z->wake_fd >= 0)
        close(z->wake_fd);
    bt_zap_fini(&z->zap);
    pthread_mutex_destroy(&z->lock);
    free(z);
}

/* The thread's last mail: nothing of it is left but itself. */
static void on_ended(bt_loop_t *loop, bt_mail_t *mail)
{
    bt_zmq_t *z = bt_container_of(mail, bt_zmq_t, last);
    void (*done)(void *user) = z->done;
    void *user = z->done_user;

    (void) loop;
    pthread_join(z->thread, NULL);
    z->has_thread = false;
    if (!z->is_closing) {
        bt_log_error("zmq", "no ZeroMQ socket is served any more: libzmq has failed");
        return;
    }
    bt_timer_stop(&z->deadline);
    free_zmq(z);
    if (done != NULL)
        done(user);
}

static void *run(void *arg)
{
    bt_zmq_t *z = arg;

    serve(z);
    close_sockets(z);
    pthread_mutex_lock(&z->lock);
    const bool is_abandoned = z->is_abandoned;
    z->has_ended = true;
    if (!is_abandoned)
        bt_loop_post(z->control, &z->last, on_ended);
    pthread_mutex_unlock(&z->lock);
    if (is_abandoned)
        free_zmq(z);
    return NULL;
}

/* ---- the control loop's side ---- */

int bt_zmq_new(bt_zmq_t **zmq_p, bt_loop_t *control)
{
    if (!bt_zmq_is_built())
        return BT_E_CONFIG;
    bt_zmq_t *z = calloc(1, sizeof(*z));
    if (z == NULL)
        return BT_E_NOMEM;
    z->control = control;
    pthread_mutex_init(&z->lock, NULL);
    z->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    z->context = z->wake_fd >= 0 ? zmq_ctx_new() : NULL;
    if (z->context != NULL) {
        zmq_ctx_set(z->context, ZMQ_IO_THREADS, IO_THREADS);
        zmq_ctx_set(z->context, ZMQ_MAX_SOCKETS, BT_ZMQ_SOCKETS_MAX + 1);
    }
    if (z->context == NULL || bt_zap_open(&z->zap, z->context) < 0) {
        close_sockets(z);
        free_zmq(z);
        return BT_E_LIMIT;
    }
    *zmq_p = z;
    return 0;
}

static void set(void *handle, int option, int value)
{
    (void) BT_SOFT(zmq_setsockopt(handle, option, &value, sizeof(value)) != 0);
}

static void set_options(const bt_zmq_socket_t *socket)
{
    int64_t max = socket->config.max_frame_bytes;

    (void) BT_SOFT(zmq_setsockopt(socket->handle, ZMQ_MAXMSGSIZE, &max, sizeof(max)) != 0);
    set(socket->handle, ZMQ_LINGER, 0);
    set(socket->handle, ZMQ_IPV6, 1);
    set(socket->handle, ZMQ_RCVHWM, HIGH_WATER);
    set(socket->handle, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS);
    set(socket->handle, ZMQ_HEARTBEAT_IVL, HEARTBEAT_MS);
    if (socket->config.kind == BT_ZMQ_ROUTER) /* an engine that was restarted comes as who it was */
        set(socket->handle, ZMQ_ROUTER_HANDOVER, 1);
}

/* libzmq writes addresses of IPv6 in brackets, and any free port as a star. */
static int bind_handle(void *handle, const bt_zmq_socket_config_t *c, unsigned *port_p)
{
    const bool is_bare_v6 = strchr(c->host, ':') != NULL && c->host[0] != '[';
    char endpoint[300], port[16] = "*";
    size_t size = sizeof(endpoint);

    if (c->port != 0)
        snprintf(port, sizeof(port), "%u", c->port);
    snprintf(endpoint, sizeof(endpoint), is_bare_v6 ? "tcp://[%s]:%s" : "tcp://%s:%s", c->host,
             port);
    if (zmq_bind(handle, endpoint) != 0)
        return errno == EADDRINUSE ? UV_EADDRINUSE : UV_EADDRNOTAVAIL;
    if (zmq_getsockopt(handle, ZMQ_LAST_ENDPOINT, endpoint, &size) != 0 ||
        sscanf(strrchr(endpoint, ':'), ":%u", port_p) != 1)
        return BT_E_INVAL;
    return 0;
}

int bt_zmq_bind(bt_zmq_t *z, const bt_zmq_socket_config_t *config, unsigned *port_p)
{
    static const int types[] = {[BT_ZMQ_ROUTER] = ZMQ_ROUTER, [BT_ZMQ_PULL] = ZMQ_PULL};
    bt_zmq_socket_t *socket = &z->sockets[z->count];

    if (z->count == BT_ZMQ_SOCKETS_MAX || z->has_thread)
        return BT_E_LIMIT;
    *socket =
        (bt_zmq_socket_t){.handle = zmq_socket(z->context, types[config->kind]), .config = *config};
    if (socket->handle == NULL)
        return BT_E_LIMIT;
    if (config->max_frame_bytes == 0)
        socket->config.max_frame_bytes = FRAME_BYTES;
    if (config->max_per_second == 0)
        socket->config.max_per_second = PER_SECOND;
    set_options(socket);
    int rc = bt_zap_guard(socket->handle, z->count);
    if (rc == 0)
        rc = bind_handle(socket->handle, config, port_p);
    if (rc < 0)
        zmq_close(socket->handle);
    z->count += rc == 0;
    return rc;
}

int bt_zmq_start(bt_zmq_t *z)
{
    int rc = bt_thread_start(&z->thread, run, z);

    z->has_thread = rc == 0;
    return rc;
}

int bt_zmq_set_allowed(bt_zmq_t *z, const bt_network_t *networks, unsigned count)
{
    return bt_zap_set_allowed(&z->zap, networks, count);
}

bt_zmq_stats_t bt_zmq_stats(bt_zmq_t *z)
{
    return (bt_zmq_stats_t){atomic_load_explicit(&z->messages, memory_order_relaxed),
                            atomic_load_explicit(&z->malformed, memory_order_relaxed),
                            atomic_load_explicit(&z->held_back, memory_order_relaxed),
                            atomic_load_explicit(&z->refused, memory_order_relaxed)};
}

/* libzmq has not come back: the process goes on without it. */
static void on_deadline(bt_timer_t *timer)
{
    bt_zmq_t *z = bt_container_of(timer, bt_zmq_t, deadline);
    void (*done)(void *user) = z->done;
    void *user = z->done_user;

    pthread_mutex_lock(&z->lock);
    const bool is_late = !z->has_ended;
    z->is_abandoned = is_late;
    if (is_late)
        pthread_detach(z->thread);
    pthread_mutex_unlock(&z->lock); /* from here on it is the thread's */
    if (!is_late)
        return; /* its mail is on the way */
    bt_log_error("zmq", "the thread of the ZeroMQ sockets does not end: it is left behind");
    if (done != NULL)
        done(user);
}

void bt_zmq_close(bt_zmq_t *z, uint64_t deadline_ms, void (*done)(void *user), void *user)
{
    const uint64_t one = 1;

    z->is_closing = true;
    z->done = done;
    z->done_user = user;
    if (!z->has_thread) {
        close_sockets(z);
        free_zmq(z);
        if (done != NULL)
            done(user);
        return;
    }
    bt_timer_init(z->control, &z->deadline, on_deadline);
    bt_timer_start(&z->deadline, deadline_ms);
    atomic_store(&z->stop, true);
    (void) BT_SOFT(write(z->wake_fd, &one, sizeof(one)) != sizeof(one));
}
