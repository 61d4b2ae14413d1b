/* Streams: coalescing, back-pressure, reading, nothing held when idle. Ends are in stream_close_test.c. */
#include "base/mem.h"
#include "base/sanitize.h"
#include "stream_end.h"

static char pattern_at(size_t i)
{
    return (char) ((i * 131 + (i >> 8) * 17 + (i >> 16)) & 0xff);
}

/* ---- writing ---- */

/* A record socket keeps the borders of each writev, which TCP would hide. */
static void open_records(struct end *e, int *peer_p)
{
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    open_end(e, fds[0]);
    *peer_p = fds[1];
}

static void test_one_turn_is_one_write(void **state)
{
    struct end e;
    char got[100];
    int peer;

    open_records(&e, &peer);
    bt_buf_t *body = bt_buf_copy("body", 4);
    bt_stream_write(&e.s, NULL, "head ", 5);
    bt_stream_write_copy(&e.s, "[4]", 3);
    bt_stream_write(&e.s, body, body->data, 4);
    bt_buf_unref(body);
    assert_int_equal(bt_stream_pending(&e.s), 12);
    assert_int_equal(bt_stream_written(&e.s), 0);
    assert_int_equal(recv(peer, got, sizeof(got), MSG_DONTWAIT),
                     -1); /* not before the turn's end */
    turn(&loop, 1);
    assert_int_equal(recv(peer, got, sizeof(got), MSG_DONTWAIT), 12);
    assert_memory_equal(got, "head [4]body", 12);
    assert_int_equal(bt_stream_written(&e.s), 12);
    assert_int_equal(bt_stream_pending(&e.s), 0);
    close_end(&e);
    close(peer);
}

static void test_flush_sends_now(void **state)
{
    struct end e;
    char got[100];
    int peer;

    open_records(&e, &peer);
    bt_stream_write(&e.s, NULL, "token", 5);
    bt_stream_flush(&e.s);
    assert_int_equal(recv(peer, got, sizeof(got), MSG_DONTWAIT), 5);
    bt_stream_write(&e.s, NULL, "", 0);
    turn(&loop, 1);
    assert_int_equal(recv(peer, got, sizeof(got), MSG_DONTWAIT), -1);
    close_end(&e);
    close(peer);
}

static bool is_out_of_buffers;

ssize_t __real_send(int fd, const void *bytes, size_t n, int flags);
ssize_t __wrap_send(int fd, const void *bytes, size_t n, int flags);
ssize_t __wrap_send(int fd, const void *bytes, size_t n, int flags)
{
    if (!is_out_of_buffers)
        return __real_send(fd, bytes, n, flags);
    is_out_of_buffers = false;
    errno = ENOBUFS;
    return -1;
}

/* The kernel has no memory for it just now: it is sent later, as if the socket were full. */
static void test_no_buffers_are_no_end(void **state)
{
    struct end e;
    char got[100];
    int peer;

    open_records(&e, &peer);
    is_out_of_buffers = true;
    bt_stream_write(&e.s, NULL, "token", 5);
    bt_stream_flush(&e.s);
    assert_false(is_out_of_buffers);
    STEP_UNTIL(recv(peer, got, sizeof(got), MSG_DONTWAIT) == 5, turn_once(&loop));
    assert_memory_equal(got, "token", 5);
    TURN_UNTIL(&loop, bt_stream_pending(&e.s) == 0);
    close_end(&e);
    close(peer);
}

static void test_many_slices(void **state)
{
    struct end e;
    char got[100], expected[10];
    unsigned at = 0;
    int peer;

    open_records(&e, &peer);
    for (unsigned i = 0; i < 200; i++) {
        bt_buf_t *buf = bt_buf_copy("?", 1);
        buf->data[0] = (char) ('0' + i % 10);
        bt_stream_write(&e.s, buf, buf->data, 1);
        bt_buf_unref(buf);
    }
    turn(&loop, 1);
    for (unsigned record = 0; record < 4; record++) { /* 64 + 64 + 64 + 8 */
        ssize_t n = recv(peer, got, sizeof(got), MSG_DONTWAIT);
        assert_int_equal(n, record < 3 ? 64 : 8);
        for (ssize_t i = 0; i < n; i++, at++) {
            expected[0] = (char) ('0' + at % 10);
            assert_memory_equal(got + i, expected, 1);
        }
    }
    close_end(&e);
    close(peer);
}

/* Adjacent copies become one slice; larger than a standard buffer works too. */
static void test_write_copy(void **state)
{
    struct end e;
    size_t big_bytes = BT_BUF_STD_BYTES * 2 + 1;
    char *big = malloc(big_bytes), *got = malloc(big_bytes);
    int peer;

    open_pair(&e, &peer);
    for (size_t i = 0; i < big_bytes; i++)
        big[i] = pattern_at(i);
    for (unsigned i = 0; i < 100; i++)
        bt_stream_write_copy(&e.s, big + i * 10, 10);
    assert_ptr_equal(e.s.queue.first, e.s.queue.last); /* one slice */
    turn(&loop, 1);
    assert_int_equal(recv(peer, got, 1000, MSG_WAITALL), 1000);
    assert_memory_equal(got, big, 1000);
    bt_stream_write_copy(&e.s, big, big_bytes);
    TURN_UNTIL(&loop, bt_stream_pending(&e.s) == 0);
    assert_int_equal(recv(peer, got, big_bytes, MSG_WAITALL), big_bytes);
    assert_memory_equal(got, big, big_bytes);
    assert_null(e.s.copy_buf); /* held only while something is queued */
    free(big);
    free(got);
    close_end(&e);
    close(peer);
}

/* The slices of a short message leave as one, those of a long one as they are; some may be empty. */
static void test_write_slices(void **state)
{
    static char text[6000], got[sizeof(text)];
    const struct bt_slice brief[] = {{text, 10, NULL}, {text + 10, 0, NULL}, {text + 10, 30, NULL}};
    const struct bt_slice longer[] = {{text, 1000, NULL}, {text + 1000, 5000, NULL}};
    struct end e;
    int peer;

    open_pair(&e, &peer);
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = pattern_at(i);
    assert_int_equal(bt_stream_write_slices(&e.s, brief, 3), 0);
    assert_int_equal(bt_stream_pending(&e.s), 40);
    assert_ptr_equal(e.s.queue.first, e.s.queue.last);
    assert_true(e.s.queue.first->slice.p != text);
    turn(&loop, 1);
    assert_int_equal(recv(peer, got, 40, MSG_WAITALL), 40);
    assert_memory_equal(got, text, 40);
    assert_int_equal(bt_stream_write_slices(&e.s, longer, 2), 0);
    assert_ptr_equal(e.s.queue.first->slice.p, text);
    assert_ptr_equal(e.s.queue.last->slice.p, text + 1000);
    TURN_UNTIL(&loop, bt_stream_pending(&e.s) == 0);
    assert_int_equal(recv(peer, got, sizeof(got), MSG_WAITALL), sizeof(got));
    assert_memory_equal(got, text, sizeof(got));
    close_end(&e);
    close(peer);
}

/* on_flush adds what belongs in front of the bytes of this turn; on_sent tells that all is out. */
static unsigned flushes, sents;

static void on_flush(bt_stream_t *s)
{
    flushes++;
    bt_stream_write_copy(s, "+", 1);
}

static void on_sent(bt_stream_t *s)
{
    assert_int_equal(bt_stream_pending(s), 0);
    sents++;
}

static const bt_stream_ops_t flush_ops = {
    .on_flush = on_flush, .on_sent = on_sent, .on_closed = on_closed};

static void test_last_bytes_of_a_turn(void **state)
{
    struct end e;
    char got[10];
    int peer;

    flushes = sents = 0;
    open_records(&e, &peer);
    e.s.ops = &flush_ops;
    bt_stream_write(&e.s, NULL, "a", 1);
    bt_stream_write(&e.s, NULL, "b", 1);
    turn(&loop, 1);
    assert_int_equal(recv(peer, got, sizeof(got), MSG_DONTWAIT), 3);
    assert_memory_equal(got, "ab+", 3);
    bt_stream_want_flush(&e.s);
    turn(&loop, 1);
    assert_int_equal(recv(peer, got, sizeof(got), MSG_DONTWAIT), 1);
    bt_stream_write(&e.s, NULL, "c", 1);
    bt_stream_flush(&e.s);
    assert_int_equal(recv(peer, got, sizeof(got), MSG_DONTWAIT), 2);
    assert_int_equal(sents, 2); /* not from inside flush */
    turn(&loop, 1);
    assert_int_equal(sents, 3);
    close_end(&e);
    close(peer);
}

static void on_sent_write_on(bt_stream_t *s)
{
    sents++;
    bt_stream_write(s, NULL, ".", 1);
}

/* A stream that is written to in the flush point itself: the loop neither sleeps on the bytes nor stays with them. */
static void test_writing_without_end_in_the_flush_point(void **state)
{
    static const bt_stream_ops_t endless_ops = {.on_sent = on_sent_write_on,
                                                .on_closed = on_closed};
    struct end e;
    int peer;

    sents = 0;
    open_pair(&e, &peer);
    turn(&loop, 2);
    e.s.ops = &endless_ops;
    bt_stream_write(&e.s, NULL, ".", 1);
    for (int i = 0; i < 5; i++)
        uv_run(&loop.uv, UV_RUN_ONCE);
    assert_true(sents >= 5);
    close_end(&e);
    close(peer);
}

/* Also when the socket is full just then, and nobody may write later. */
static void test_last_bytes_before_a_close(void **state)
{
    struct end e;
    size_t all, n = 0;
    int peer;

    open_pair(&e, &peer);
    congest(&e);
    assert_true(e.s.in_write_bytes > 0);
    e.s.ops = &flush_ops;
    all = (size_t) bt_stream_written(&e.s) + bt_stream_pending(&e.s);
    bt_stream_close_after_flush(&e.s, 60000);
    shutdown(peer, SHUT_WR);
    SPIN_UNTIL(&loop, (n += drain_peer(peer), e.closes == 1));
    n += drain_peer(peer);
    assert_int_equal(n, all + 1);
    close(peer);
}

#define ECHO_BYTES ((size_t) 50 * 1024 * 1024)

/* One end echoes what the other sends; each pauses its reader while its writer is above the high mark. */
struct echo {
    bt_stream_t a, b; /* a produces and checks, b echoes */
    size_t sent, returned, max_pending_a, max_pending_b;
    unsigned drains_a, drains_b, closes, bad;
    bool eof_at_b;
};

static void echo_produce(struct echo *e)
{
    while (e->sent < ECHO_BYTES && bt_stream_pending(&e->a) <= BT_STREAM_HIGH_BYTES) {
        size_t n = ECHO_BYTES - e->sent < 16384 ? ECHO_BYTES - e->sent : 16384;
        bt_buf_t *buf = bt_buf_new(n);
        for (size_t i = 0; i < n; i++)
            buf->data[i] = pattern_at(e->sent + i);
        bt_stream_write(&e->a, buf, buf->data, n);
        bt_buf_unref(buf);
        e->sent += n;
        if (bt_stream_pending(&e->a) > e->max_pending_a)
            e->max_pending_a = bt_stream_pending(&e->a);
    }
}

static void echo_a_drain(bt_stream_t *s)
{
    struct echo *e = bt_container_of(s, struct echo, a);

    e->drains_a++;
    echo_produce(e);
}

/* A slow reader: one buffer, then it stops until the next turn of the spec. */
static void echo_a_read(bt_stream_t *s, bt_buf_t *buf, char *p, size_t n)
{
    struct echo *e = bt_container_of(s, struct echo, a);

    (void) buf;
    for (size_t i = 0; i < n; i++)
        e->bad += p[i] != pattern_at(e->returned + i);
    e->returned += n;
    bt_stream_read_stop(s);
}

static void echo_b_read(bt_stream_t *s, bt_buf_t *buf, char *p, size_t n)
{
    struct echo *e = bt_container_of(s, struct echo, b);

    bt_stream_write(s, buf, p, n);
    if (bt_stream_pending(s) > e->max_pending_b)
        e->max_pending_b = bt_stream_pending(s);
    if (bt_stream_pending(s) > BT_STREAM_HIGH_BYTES)
        bt_stream_read_stop(s);
}

static void echo_b_drain(bt_stream_t *s)
{
    bt_container_of(s, struct echo, b)->drains_b++;
    bt_stream_read_start(s);
}

static void echo_b_eof(bt_stream_t *s, int rc)
{
    (void) s;
    fail_msg("no end expected, rc %d", rc);
}

static void echo_a_closed(bt_stream_t *s)
{
    bt_container_of(s, struct echo, a)->closes++;
}

static void echo_b_closed(bt_stream_t *s)
{
    bt_container_of(s, struct echo, b)->closes++;
}

static const bt_stream_ops_t echo_a_ops = {.on_read = echo_a_read,
                                           .on_eof = echo_b_eof,
                                           .on_drain = echo_a_drain,
                                           .on_closed = echo_a_closed};
static const bt_stream_ops_t echo_b_ops = {.on_read = echo_b_read,
                                           .on_eof = echo_b_eof,
                                           .on_drain = echo_b_drain,
                                           .on_closed = echo_b_closed};

static void test_echo_with_a_slow_reader(void **state)
{
    struct echo e = {.sent = 0};
    int fd_a, fd_b, small = 65536;

    tcp_pair(&fd_a, &fd_b);
    setsockopt(fd_a, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    setsockopt(fd_b, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    assert_int_equal(bt_stream_init(&e.a, &loop, &echo_a_ops), 0);
    assert_int_equal(bt_stream_init(&e.b, &loop, &echo_b_ops), 0);
    assert_int_equal(bt_stream_open(&e.a, fd_a), 0);
    assert_int_equal(bt_stream_open(&e.b, fd_b), 0);
    assert_int_equal(bt_stream_read_start(&e.b), 0);
    echo_produce(&e);
    while (e.returned < ECHO_BYTES) {
        bt_stream_read_start(&e.a);
        turn_once(&loop);
    }
    assert_int_equal(e.returned, ECHO_BYTES);
    assert_int_equal(e.bad, 0);
    assert_true(e.drains_a > 0);
    assert_true(e.drains_b > 0);
    assert_true(e.max_pending_a <= BT_STREAM_HIGH_BYTES + 16384);
    assert_true(e.max_pending_b <= BT_STREAM_HIGH_BYTES + 16384);
    assert_int_equal(bt_stream_written(&e.a), ECHO_BYTES);
    bt_stream_close(&e.a);
    bt_stream_close(&e.b);
    TURN_UNTIL(&loop, e.closes == 2);
}

static void test_drain_comes_once_per_filling(void **state)
{
    struct end e;
    int peer;

    open_pair(&e, &peer);
    congest(&e);
    unsigned before =
        e.drains; /* congest goes over the mark and below again as long as the kernel takes it */
    e.to_fill = 200000;
    fill(&e);
    turn(&loop, 3);
    assert_int_equal(e.drains, before);
    SPIN_UNTIL(&loop, (drain_peer(peer), e.drains > before));
    assert_int_equal(e.drains, before + 1);
    SPIN_UNTIL(&loop, (drain_peer(peer), bt_stream_pending(&e.s) == 0));
    turn(&loop, 3);
    assert_int_equal(e.drains, before + 1);
    close_end(&e);
    close(peer);
}

/* on_drain never comes from inside flush; filling it anew from on_drain goes on until all is sent. */
static void test_fill_from_on_drain(void **state)
{
    struct end e;
    size_t got = 0;
    int peer;

    open_pair(&e, &peer);
    e.fill = true;
    e.to_fill = 5000000;
    fill(&e);
    bt_stream_flush(&e.s);
    assert_int_equal(e.drains, 0);
    SPIN_UNTIL(&loop, (got += drain_peer(peer), got == 5000000));
    assert_true(e.drains > 0);
    assert_true(e.max_pending <= BT_STREAM_HIGH_BYTES + 16000);
    close_end(&e);
    close(peer);
}

/* Turns the loop until the peer can read something. */
static size_t read_some(int peer, char *p, size_t max)
{
    ssize_t n;

    while ((n = recv(peer, p, max, MSG_DONTWAIT)) < 0)
        turn(&loop, 1);
    return (size_t) n;
}

/* A slow reader of small events must not hold a whole read buffer for each of them, nor for some that came at once. */
static void check_pinned(size_t event_bytes)
{
    const unsigned count = (unsigned) (160000 / event_bytes);
    char event[4000], same[4000];
    struct end e;
    int peer;

    open_pair(&e, &peer);
    congest(&e);
    size_t sent = (size_t) bt_stream_written(&e.s) + bt_stream_pending(&e.s), got = 0;
    size_t before = bt_mem_bytes(BT_MEM_BUFFERS);
    for (unsigned i = 0; i < count; i++) {
        bt_buf_t *buf = bt_buf_new(BT_BUF_STD_BYTES);
        memset(buf->data, (int) (i & 0x7f), event_bytes);
        bt_stream_write(&e.s, buf, buf->data, event_bytes);
        bt_buf_unref(buf);
    }
    assert_true(bt_mem_bytes(BT_MEM_BUFFERS) - before <= 12 * BT_BUF_STD_BYTES);
    for (unsigned i = 0; i < count; i++) { /* and they arrive in order */
        while (got < sent)
            got += read_some(peer, event, sent - got < event_bytes ? sent - got : event_bytes);
        size_t n = 0;
        while (n < event_bytes)
            n += read_some(peer, event + n, event_bytes - n);
        memset(same, (int) (i & 0x7f), event_bytes);
        assert_memory_equal(event, same, event_bytes);
    }
    close_end(&e);
    close(peer);
}

static void test_small_slices_do_not_pin_buffers(void **state)
{
    check_pinned(160);
    check_pinned(1100);
    check_pinned(4000);
}

/* Copies of streams that nobody keeps waiting lie in one buffer; those for a slow reader do not. */
static void test_copies_share_a_buffer(void **state)
{
    struct end slow, ends[3];
    const char text[] = "abcd";
    char got[4];
    int slow_peer, peers[3];

    open_pair(&slow, &slow_peer);
    congest(&slow);
    bt_stream_write_copy(&slow.s, "slow", 4);
    assert_ptr_not_equal(slow.s.copy_buf, loop.copy_buf);
    for (int i = 0; i < 3; i++)
        open_pair(&ends[i], &peers[i]);
    for (int round = 0; round < 2; round++) {
        const size_t before = round == 0 ? 0 : bt_mem_bytes(BT_MEM_BUFFERS);
        for (int i = 0; i < 3; i++) {
            bt_stream_write_copy(&ends[i].s, text + i, 2);
            assert_ptr_equal(ends[i].s.copy_buf, loop.copy_buf);
        }
        if (round > 0)
            assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), before);
        turn(&loop, 1);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(recv(peers[i], got, 2, MSG_WAITALL), 2);
            assert_memory_equal(got, text + i, 2);
        }
    }
    bt_stream_write_copy(&slow.s, "slow", 4);
    assert_ptr_not_equal(slow.s.copy_buf, loop.copy_buf);
    for (int i = 0; i < 3; i++) {
        close_end(&ends[i]);
        close(peers[i]);
    }
    close_end(&slow);
    close(slow_peer);
}

/* Some streams write copies and slices of all lengths, their peers read now and then, and some are closed with bytes under way: each peer gets
 * what its stream has written, and nothing of another's. */
static void test_copies_of_many_streams_do_not_mix(void **state)
{
    enum { STREAMS = 6 };
    static const int small = 8192;
    size_t written[STREAMS] = {0}, got[STREAMS] = {0};
    struct end ends[STREAMS];
    int peers[STREAMS];
    char text[6000];
    uint64_t seed = 1;

    for (int i = 0; i < STREAMS; i++)
        open_pair(&ends[i], &peers[i]);
    for (int i = 0; i < STREAMS; i++)
        setsockopt(peers[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    for (unsigned step = 0; step < 30000; step++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const unsigned what = (unsigned) (seed >> 33) % 16, i = (unsigned) (seed >> 40) % STREAMS;
        const size_t n = 1 + (size_t) (seed >> 45) % (what < 6 ? 200 : sizeof(text));
        bt_stream_t *s = &ends[i].s;
        if (what < 10 && bt_stream_pending(s) < 200000) {
            bt_buf_t *buf = what < 8 ? NULL : bt_buf_new(BT_BUF_STD_BYTES);
            char *p = buf != NULL ? buf->data : text;
            for (size_t k = 0; k < n; k++)
                p[k] = pattern_at(1000 * i + written[i] + k);
            assert_int_equal(
                buf != NULL ? bt_stream_write(s, buf, p, n) : bt_stream_write_copy(s, p, n), 0);
            bt_buf_unref(buf);
            written[i] += n;
        } else if (what < 12) {
            turn(&loop, 1);
        } else if (what < 15 && i != 0) { /* the first one's peer is slow */
            const ssize_t rc = recv(peers[i], text, n, MSG_DONTWAIT);
            for (ssize_t k = 0; k < rc; k++)
                assert_int_equal(text[k], pattern_at(1000 * i + got[i] + (size_t) k));
            got[i] += rc > 0 ? (size_t) rc : 0;
        } else if (seed >> 60 == 0) {
            close_end(&ends[i]);
            close(peers[i]);
            open_pair(&ends[i], &peers[i]);
            setsockopt(peers[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
            written[i] = got[i] = 0;
        }
    }
    for (int i = 0; i < STREAMS; i++) {
        close_end(&ends[i]);
        close(peers[i]);
    }
}

/* ---- reading ---- */

/* What one stream has sent leaves room for what another one sends. */
static void test_queue_entries_are_the_loops(void **state)
{
    struct end one, two;
    int peers[2];
    char got[8];

    open_pair(&one, &peers[0]);
    open_pair(&two, &peers[1]);
    const unsigned before = loop.spare_slice_count;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(bt_stream_write(&one.s, NULL, "a", 1), 0);
    turn(&loop, 1);
    assert_int_equal(recv(peers[0], got, 3, MSG_WAITALL), 3);
    assert_null(one.s.queue.first);
    if (!BT_ASAN)
        assert_int_equal(loop.spare_slice_count, before < 3 ? 3 : before);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(bt_stream_write(&two.s, NULL, "b", 1), 0);
    if (!BT_ASAN)
        assert_int_equal(loop.spare_slice_count, before < 3 ? 0 : before - 3);
    turn(&loop, 1);
    assert_int_equal(recv(peers[1], got, 3, MSG_WAITALL), 3);
    close_end(&one);
    close_end(&two);
    close(peers[0]);
    close(peers[1]);
}

static void test_idle_stream_holds_no_buffer(void **state)
{
    struct end e;
    size_t before;
    int peer;

    open_pair(&e, &peer);
    before = bt_mem_bytes(BT_MEM_BUFFERS) - (loop.read_buf != NULL ? BT_BUF_STD_BYTES : 0);
    assert_int_equal(bt_stream_read_start(&e.s), 0);
    assert_int_equal(bt_stream_read_start(&e.s), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(send(peer, "hello", 5, 0), 5);
        TURN_UNTIL(&loop, e.read_total == (size_t) (i + 1) * 5);
        turn(&loop, 1);
        assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), before + BT_BUF_STD_BYTES); /* the loop's */
    }
    close_end(&e);
    close(peer);
}

/* So many bytes from each of 100 peers, in one turn, come back to each; returns how many buffers were held at most. */
static size_t echo_in_a_turn(size_t bytes)
{
    static struct end ends[100];
    static char sent[8192], got[8192];
    int peers[100];

    buf_bytes_most = buf_bytes_before;
    for (unsigned i = 0; i < 100; i++) {
        open_pair(&ends[i], &peers[i]);
        ends[i].on_read = ACT_ECHO;
        bt_stream_read_start(&ends[i].s);
        memset(sent, 'a' + (int) i % 26, bytes);
        assert_int_equal(send(peers[i], sent, bytes, 0), bytes);
    }
    for (unsigned i = 0; i < 100; i++) {
        TURN_UNTIL(&loop, ends[i].s.written_bytes == bytes); /* the first turn reads them all */
        memset(sent, 'a' + (int) i % 26, bytes);
        assert_int_equal(recv(peers[i], got, sizeof(got), MSG_WAITALL | MSG_DONTWAIT), bytes);
        assert_memory_equal(got, sent, bytes);
        close_end(&ends[i]);
        close(peers[i]);
    }
    return (buf_bytes_most - buf_bytes_before) / BT_BUF_STD_BYTES;
}

static void test_small_reads_of_a_turn_share_buffers(void **state)
{
    assert_int_equal(echo_in_a_turn(5), 1);
    assert_in_range(echo_in_a_turn(100), 2, 4); /* 10,000 bytes, 4 KiB in each */
}

static void test_many_reads_of_a_turn_hold_few_buffers(void **state)
{
    assert_in_range(echo_in_a_turn(5000), 2, 32);
}

static void test_a_long_read_is_sent_on_at_once(void **state)
{
    static struct end ends[2];
    static char rooms[2][65536], sent[40000];
    int peers[2];

    for (unsigned i = 0; i < 2; i++) {
        open_pair(&ends[i], &peers[i]);
        ends[i].on_read = ACT_ECHO;
        ends[i].room = rooms[i];
        ends[i].room_bytes = sizeof(rooms[i]);
        bt_stream_read_start(&ends[i].s);
        assert_int_equal(send(peers[i], sent, sizeof(sent), 0), sizeof(sent));
    }
    for (unsigned i = 0; i < 2; i++) {
        TURN_UNTIL(&loop, ends[i].s.written_bytes == sizeof(sent)); /* the first turn reads both */
        assert_false(ends[i].found_unsent);
        close_end(&ends[i]);
        close(peers[i]);
    }
}

static void test_kept_buffer_keeps_its_bytes(void **state)
{
    struct end e;
    int peer;

    open_pair(&e, &peer);
    e.on_read = ACT_KEEP;
    bt_stream_read_start(&e.s);
    assert_int_equal(send(peer, "first", 5, 0), 5);
    TURN_UNTIL(&loop, e.reads == 1);
    assert_int_equal(send(peer, "other", 5, 0), 5);
    TURN_UNTIL(&loop, e.reads == 2);
    assert_int_equal(e.kept->len, 5);
    assert_memory_equal(e.kept->data, "first", 5);
    bt_buf_unref(e.kept);
    close_end(&e);
    close(peer);
}

static void test_direct_read(void **state)
{
    struct end e;
    char room[8];
    int peer;

    open_pair(&e, &peer);
    e.room = room;
    e.room_bytes = sizeof(room);
    bt_stream_read_start(&e.s);
    assert_int_equal(send(peer, "abcdef", 6, 0), 6);
    TURN_UNTIL(&loop, e.read_total == 6);
    assert_memory_equal(room, "abcdef", 6);
    e.room = NULL;
    assert_int_equal(send(peer, "gh", 2, 0), 2);
    TURN_UNTIL(&loop, e.read_total == 8);
    assert_memory_equal(room, "abcdef", 6);
    close_end(&e);
    close(peer);
}

static void test_read_stop_holds_bytes_back(void **state)
{
    struct end e;
    int peer;

    open_pair(&e, &peer);
    bt_stream_read_start(&e.s);
    bt_stream_read_stop(&e.s);
    bt_stream_read_stop(&e.s);
    assert_int_equal(send(peer, "x", 1, 0), 1);
    turn(&loop, 3);
    assert_int_equal(e.reads, 0);
    bt_stream_read_start(&e.s);
    TURN_UNTIL(&loop, e.reads == 1);
    close_end(&e);
    close(peer);
}

static void test_fin_and_reset(void **state)
{
    struct end e;
    int peer;

    open_pair(&e, &peer);
    bt_stream_read_start(&e.s);
    close(peer);
    TURN_UNTIL(&loop, e.eofs == 1);
    assert_int_equal(e.eof_rc, 0);
    turn(&loop, 3);
    assert_int_equal(e.eofs, 1);
    close_end(&e);

    open_pair(&e, &peer);
    bt_stream_read_start(&e.s);
    close_with_reset(peer);
    TURN_UNTIL(&loop, e.eofs == 1);
    assert_int_equal(e.eof_rc, UV_ECONNRESET);
    close_end(&e);
}

static void test_peer_gone(void **state)
{
    struct end e;
    int peer;

    for (int how = 0; how < 3; how++) {
        open_pair(&e, &peer);
        assert_false(bt_stream_peer_gone(&e.s));
        assert_int_equal(send(peer, "unread", 6, 0), 6);
        assert_false(bt_stream_peer_gone(&e.s));
        if (how == 0)
            shutdown(peer, SHUT_WR);
        else if (how == 1)
            close(peer);
        else
            close_with_reset(peer);
        while (!bt_stream_peer_gone(&e.s))
            sched_yield();
        assert_int_equal(e.reads + e.eofs, 0);
        close_end(&e);
        if (how == 0)
            close(peer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_LOOP(test_one_turn_is_one_write),
        WITH_LOOP(test_flush_sends_now),
        WITH_LOOP(test_no_buffers_are_no_end),
        WITH_LOOP(test_many_slices),
        WITH_LOOP(test_write_copy),
        WITH_LOOP(test_write_slices),
        WITH_LOOP(test_last_bytes_of_a_turn),
        WITH_LOOP(test_writing_without_end_in_the_flush_point),
        WITH_LOOP(test_last_bytes_before_a_close),
        WITH_LOOP(test_echo_with_a_slow_reader),
        WITH_LOOP(test_drain_comes_once_per_filling),
        WITH_LOOP(test_fill_from_on_drain),
        WITH_LOOP(test_small_slices_do_not_pin_buffers),
        WITH_LOOP(test_copies_share_a_buffer),
        WITH_LOOP(test_copies_of_many_streams_do_not_mix),
        WITH_LOOP(test_queue_entries_are_the_loops),
        WITH_LOOP(test_idle_stream_holds_no_buffer),
        WITH_LOOP(test_small_reads_of_a_turn_share_buffers),
        WITH_LOOP(test_many_reads_of_a_turn_hold_few_buffers),
        WITH_LOOP(test_a_long_read_is_sent_on_at_once),
        WITH_LOOP(test_kept_buffer_keeps_its_bytes),
        WITH_LOOP(test_direct_read),
        WITH_LOOP(test_read_stop_holds_bytes_back),
        WITH_LOOP(test_fin_and_reset),
        WITH_LOOP(test_peer_gone),
    };
    alarm(55);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
