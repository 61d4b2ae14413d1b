/* stream_end.h - a stream that counts its callbacks, for the specs of stream.c. The other end is a plain socket that the
 * spec reads and writes itself. Each spec ends with every buffer given back (teardown). */
#ifndef SPEC_UNIT_LOOP_STREAM_END_H
#define SPEC_UNIT_LOOP_STREAM_END_H

#include "base/err.h"
#include "base/mem.h"
#include "base/pages.h"
#include "loop/stream.h"
#include "util.h"

enum act { ACT_NONE, ACT_CLOSE, ACT_RESET, ACT_KEEP, ACT_ECHO };

/* A stream that counts its callbacks and does one thing in one of them. */
struct end {
    bt_stream_t s;
    unsigned connects, reads, eofs, drains, write_errors, closes;
    int connect_rc, eof_rc, write_rc;
    size_t read_total;
    enum act on_connect, on_read, on_eof, on_drain, on_write_error;
    bt_buf_t *kept;
    char *room; /* direct reads land here while it is set */
    size_t room_bytes;
    bool fill; /* on_drain writes on */
    size_t to_fill, max_pending;
    bool found_unsent; /* on_read has seen that something of this turn waits to be sent */
};

static bt_loop_t loop;
static size_t buf_bytes_before, buf_bytes_most; /* the latter as seen while echoing */

static inline void act(struct end *e, enum act what)
{
    assert_int_equal(e->closes, 0);
    if (what == ACT_CLOSE)
        bt_stream_close(&e->s);
    else if (what == ACT_RESET)
        bt_stream_reset(&e->s);
}

static inline struct end *end_of(bt_stream_t *s)
{
    return bt_container_of(s, struct end, s);
}

static inline void on_connect(bt_stream_t *s, int rc)
{
    end_of(s)->connects++;
    end_of(s)->connect_rc = rc;
    act(end_of(s), end_of(s)->on_connect);
}

static inline void on_read(bt_stream_t *s, bt_buf_t *buf, char *p, size_t n)
{
    struct end *e = end_of(s);

    assert_true((buf == NULL) == (p == e->room));
    e->reads++;
    e->read_total += n;
    e->found_unsent |= !bt_list_empty(&loop.dirty);
    if (e->on_read == ACT_KEEP && e->kept == NULL)
        e->kept = bt_buf_ref(buf);
    if (e->on_read == ACT_ECHO) {
        bt_stream_write(s, buf, p, n);
        if (bt_mem_bytes(BT_MEM_BUFFERS) > buf_bytes_most)
            buf_bytes_most = bt_mem_bytes(BT_MEM_BUFFERS);
    }
    act(e, e->on_read);
}

static inline void on_eof(bt_stream_t *s, int rc)
{
    end_of(s)->eofs++;
    end_of(s)->eof_rc = rc;
    act(end_of(s), end_of(s)->on_eof);
}

static inline void fill(struct end *e);

static inline void on_drain(bt_stream_t *s)
{
    struct end *e = end_of(s);

    e->drains++;
    assert_true(bt_stream_pending(s) < BT_STREAM_LOW_BYTES);
    if (e->fill)
        fill(e);
    act(e, e->on_drain);
}

static inline void on_write_error(bt_stream_t *s, int rc)
{
    end_of(s)->write_errors++;
    end_of(s)->write_rc = rc;
    act(end_of(s), end_of(s)->on_write_error);
}

static inline void on_closed(bt_stream_t *s)
{
    end_of(s)->closes++;
    memset(&s->tcp, 0xa5, sizeof(s->tcp)); /* the memory is the owner's again */
}

static inline bool on_alloc(bt_stream_t *s, char **p_p, size_t *n_p)
{
    struct end *e = end_of(s);

    if (e->room == NULL)
        return false;
    *p_p = e->room;
    *n_p = e->room_bytes;
    return true;
}

static const bt_stream_ops_t ops = {.on_connect = on_connect,
                                    .on_read = on_read,
                                    .on_eof = on_eof,
                                    .on_drain = on_drain,
                                    .on_write_error = on_write_error,
                                    .on_closed = on_closed,
                                    .on_alloc = on_alloc};

static inline int setup(void **state)
{
    buf_bytes_before = bt_mem_bytes(BT_MEM_BUFFERS);
    return bt_loop_init(&loop, 0);
}

/* Each spec ends with every buffer given back. */
static inline int teardown(void **state)
{
    bt_loop_fini(&loop);
    bt_pages_thread_fini();
    return bt_mem_bytes(BT_MEM_BUFFERS) == buf_bytes_before ? 0 : -1;
}

static inline void open_end(struct end *e, int fd)
{
    memset(e, 0, sizeof(*e));
    assert_int_equal(bt_stream_init(&e->s, &loop, &ops), 0);
    assert_int_equal(bt_stream_open(&e->s, fd), 0);
}

/* A stream and its peer. */
static inline void open_pair(struct end *e, int *peer_p)
{
    int fd;

    tcp_pair(&fd, peer_p);
    open_end(e, fd);
}

static inline void close_end(struct end *e)
{
    bt_stream_close(&e->s);
    TURN_UNTIL(&loop, e->closes == 1);
}

/* Writes until the stream is above its high mark or to_fill is used up. */
static inline void fill(struct end *e)
{
    while (e->to_fill > 0 && bt_stream_pending(&e->s) <= BT_STREAM_HIGH_BYTES) {
        size_t n = e->to_fill < 16000 ? e->to_fill : 16000;
        bt_buf_t *buf = bt_buf_new(n);
        assert_non_null(buf);
        memset(buf->data, 'f', n);
        assert_int_equal(bt_stream_write(&e->s, buf, buf->data, n), 0);
        bt_buf_unref(buf);
        e->to_fill -= n;
        if (bt_stream_pending(&e->s) > e->max_pending)
            e->max_pending = bt_stream_pending(&e->s);
    }
}

/* Writes until the kernel takes no more: something is pending after a turn. */
static inline void congest(struct end *e)
{
    static char block[65536];

    while (bt_stream_pending(&e->s) == 0) {
        bt_stream_write(&e->s, NULL, block, sizeof(block));
        turn(&loop, 2);
    }
}

static inline size_t drain_peer(int peer)
{
    static char sink[65536];
    size_t total = 0;
    ssize_t n;

    while ((n = recv(peer, sink, sizeof(sink), MSG_DONTWAIT)) > 0)
        total += (size_t) n;
    return total;
}

#define WITH_LOOP(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

#endif
