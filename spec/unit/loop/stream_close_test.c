/* Streams: lost peers, closing from everywhere, lingering, connecting. */
#include "stream_end.h"

/* ---- write errors ---- */

static void lose_peer(struct end *e, int peer)
{
    close_with_reset(peer);
    while (!bt_stream_peer_gone(&e->s))
        sched_yield();
}

static void test_write_error_is_told_once(void **state)
{
    struct end e;
    int peer;

    open_pair(&e, &peer);
    lose_peer(&e, peer);
    bt_stream_write_copy(&e.s, "lost", 4);
    bt_stream_flush(&e.s);
    assert_int_equal(e.write_errors, 0); /* not from inside */
    TURN_UNTIL(&loop, e.write_errors == 1);
    assert_true(e.write_rc == UV_ECONNRESET || e.write_rc == UV_EPIPE);
    assert_int_equal(bt_stream_pending(&e.s), 0);
    assert_int_equal(bt_stream_written(&e.s), 0);
    assert_int_equal(bt_stream_write(&e.s, NULL, "more", 4), 0);
    turn(&loop, 3);
    assert_int_equal(e.write_errors, 1);
    assert_int_equal(bt_stream_pending(&e.s), 0);
    close_end(&e);
}

static void test_write_error_while_waiting_for_room(void **state)
{
    struct end e;
    int peer;

    open_pair(&e, &peer);
    congest(&e);
    assert_true(e.s.in_write_bytes > 0);
    close_with_reset(peer);
    TURN_UNTIL(&loop, e.write_errors == 1);
    assert_int_equal(bt_stream_pending(&e.s), 0);
    close_end(&e);
}

/* ---- closing ---- */

static void test_close_while_dirty(void **state)
{
    struct end e;
    char byte;
    int peer;

    open_pair(&e, &peer);
    bt_buf_t *buf = bt_buf_copy("never", 5);
    bt_stream_write(&e.s, buf, buf->data, 5);
    bt_stream_write_copy(&e.s, "sent", 4);
    assert_int_equal(buf->refs, 2);
    bt_stream_close(&e.s);
    bt_stream_close(&e.s);
    assert_int_equal(buf->refs, 1);
    assert_true(bt_list_empty(&loop.dirty));
    bt_buf_unref(buf);
    assert_int_equal(bt_stream_write(&e.s, NULL, "x", 1), 0);
    bt_stream_flush(&e.s);
    assert_true(bt_stream_peer_gone(&e.s));
    TURN_UNTIL(&loop, e.closes == 1);
    assert_int_equal(recv(peer, &byte, 1, 0), 0);
    close(peer);
}

static void test_close_while_waiting_for_room(void **state)
{
    struct end e;
    int peer;

    open_pair(&e, &peer);
    congest(&e);
    bt_buf_t *buf = bt_buf_new(60000);
    memset(buf->data, 'x', 60000);
    bt_stream_write(&e.s, buf, buf->data, 60000);
    bt_stream_close(&e.s);
    assert_int_equal(buf->refs, 1);
    bt_buf_unref(buf);
    TURN_UNTIL(&loop, e.closes == 1);
    assert_int_equal(e.write_errors, 0);
    close(peer);
}

static void test_close_inside_on_read(void **state)
{
    struct end e;
    char *bytes = calloc(1, 200000);
    int peer;

    for (enum act how = ACT_CLOSE; how <= ACT_RESET; how++) {
        open_pair(&e, &peer);
        fcntl(peer, F_SETFL, O_NONBLOCK);
        assert_true(send(peer, bytes, 200000, 0) > 20000); /* more than one buffer waits */
        e.on_read = how;
        bt_stream_write_copy(&e.s, "queued", 6);
        bt_stream_read_start(&e.s);
        TURN_UNTIL(&loop, e.closes == 1);
        assert_int_equal(e.reads, 1);
        close(peer);
    }
    free(bytes);
}

static void test_close_inside_on_eof(void **state)
{
    struct end e;
    int peer;

    for (enum act how = ACT_CLOSE; how <= ACT_RESET; how++) {
        open_pair(&e, &peer);
        e.on_eof = how;
        bt_stream_read_start(&e.s);
        close(peer);
        TURN_UNTIL(&loop, e.closes == 1);
        assert_int_equal(e.eofs, 1);
    }
}

static void test_close_inside_on_drain(void **state)
{
    struct end e;
    int peer;

    for (enum act how = ACT_CLOSE; how <= ACT_RESET; how++) {
        open_pair(&e, &peer);
        e.on_drain = how;
        e.to_fill = 100000;
        fill(&e);
        SPIN_UNTIL(&loop, (drain_peer(peer), e.closes == 1));
        assert_int_equal(e.drains, 1);
        close(peer);
    }
}

/* The other way that leads to on_drain: uv's write callback. */
static void test_close_inside_on_drain_after_waiting(void **state)
{
    struct end e;
    int peer;

    open_pair(&e, &peer);
    congest(&e);
    e.on_drain = ACT_CLOSE;
    e.to_fill = 200000;
    fill(&e);
    unsigned before = e.drains;
    SPIN_UNTIL(&loop, (drain_peer(peer), e.closes == 1));
    assert_int_equal(e.drains, before + 1);
    close(peer);
}

static void test_close_inside_on_write_error(void **state)
{
    struct end e;
    int peer;

    for (enum act how = ACT_CLOSE; how <= ACT_RESET; how++) {
        open_pair(&e, &peer);
        e.on_write_error = how;
        lose_peer(&e, peer);
        bt_stream_write(&e.s, NULL, "x", 1);
        TURN_UNTIL(&loop, e.closes == 1);
        assert_int_equal(e.write_errors, 1);
    }
}

/* Streams of the same flush may close each other. */
static struct end *sibling;

static void on_sibling_drain(bt_stream_t *s)
{
    end_of(s)->drains++;
    if (sibling != NULL)
        bt_stream_close(&sibling->s);
    sibling = NULL;
}

static void test_close_a_sibling_of_the_same_flush(void **state)
{
    static const bt_stream_ops_t sibling_ops = {.on_drain = on_sibling_drain,
                                                .on_closed = on_closed};
    struct end a, b;
    int peer_a, peer_b;
    char byte;

    open_pair(&a, &peer_a);
    open_pair(&b, &peer_b);
    a.s.ops = &sibling_ops;
    sibling = &b;
    a.to_fill = 100000;
    fill(&a);
    bt_stream_write(&b.s, NULL, "x", 1);
    SPIN_UNTIL(&loop, (drain_peer(peer_a), b.closes == 1));
    assert_int_equal(a.drains, 1);
    assert_int_equal(recv(peer_b, &byte, 1, 0), 0); /* closed before its own flush */
    close_end(&a);
    close(peer_a);
    close(peer_b);
}

static void test_reset_is_seen_as_reset(void **state)
{
    struct end e;
    char byte;
    int peer;

    open_pair(&e, &peer);
    bt_stream_reset(&e.s);
    TURN_UNTIL(&loop, e.closes == 1);
    assert_int_equal(recv(peer, &byte, 1, 0), -1);
    assert_int_equal(errno, ECONNRESET);
    close(peer);
}

/* The answer arrives whole although the peer still sends, which a plain close would answer with RST. */
static void test_close_after_flush(void **state)
{
    struct end e;
    size_t all, n = 0;
    char byte;
    int peer;

    open_pair(&e, &peer);
    assert_int_equal(send(peer, "unread request bytes", 20, 0), 20);
    congest(&e);
    all = (size_t) bt_stream_written(&e.s) + bt_stream_pending(&e.s);
    bt_stream_close_after_flush(&e.s, 60000);
    bt_stream_close_after_flush(&e.s, 60000);
    bt_stream_write(&e.s, NULL, "too late", 8);
    unsigned before = e.drains;
    while (n < all) {
        n += drain_peer(peer);
        turn(&loop, 1);
        (void) send(peer, "more", 4, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    assert_int_equal(n, all);
    SPIN_UNTIL(&loop, wait_readable(peer, 0));
    assert_int_equal(recv(peer, &byte, 1, 0), 0); /* FIN */
    assert_int_equal(e.closes, 0);
    close(peer);
    TURN_UNTIL(&loop, e.closes == 1);
    assert_int_equal(e.reads + e.eofs + e.write_errors, 0);
    assert_int_equal(e.drains, before);
}

/* The peer's FIN, seen while our bytes still wait, is no reason to drop them. */
static void test_close_after_flush_half_closed_peer(void **state)
{
    struct end e;
    size_t all, n = 0;
    int peer;

    open_pair(&e, &peer);
    bt_stream_read_start(&e.s);
    congest(&e);
    all = (size_t) bt_stream_written(&e.s) + bt_stream_pending(&e.s);
    bt_stream_close_after_flush(&e.s, 60000);
    shutdown(peer, SHUT_WR);
    while (e.s.reading)
        turn(&loop, 1); /* until it has seen the FIN */
    assert_int_equal(e.closes, 0);
    SPIN_UNTIL(&loop, (n += drain_peer(peer), e.closes == 1));
    n += drain_peer(peer);
    assert_int_equal(n, all);
    assert_int_equal(e.eofs, 0);
    close(peer);
}

static void test_close_after_flush_times_out(void **state)
{
    struct end e;
    int peer;

    open_pair(&e, &peer);
    congest(&e);
    bt_stream_close_after_flush(&e.s, 20); /* the peer reads nothing */
    assert_int_equal(e.closes, 0);
    TURN_UNTIL(&loop, e.closes == 1);
    close(peer);

    open_pair(&e, &peer);
    bt_stream_close_after_flush(&e.s, 20); /* the peer does not close */
    TURN_UNTIL(&loop, e.closes == 1);
    close(peer);
}

static void test_close_after_flush_lost_peer(void **state)
{
    struct end e;
    int peer;

    open_pair(&e, &peer);
    lose_peer(&e, peer);
    bt_stream_write_copy(&e.s, "x", 1);
    bt_stream_close_after_flush(&e.s, 60000);
    TURN_UNTIL(&loop, e.closes == 1);
    assert_int_equal(e.write_errors, 0);
}

/* ---- connecting ---- */

static void dial(struct end *e, const struct sockaddr_storage *addr)
{
    memset(e, 0, sizeof(*e));
    assert_int_equal(bt_stream_init(&e->s, &loop, &ops), 0);
    assert_int_equal(bt_stream_connect(&e->s, (const struct sockaddr *) addr), 0);
    assert_int_equal(e->connects, 0);
}

static void connect_and_talk(int family)
{
    struct sockaddr_storage addr;
    struct end e;
    char got[5];
    int listener = raw_listen(family, &addr);

    if (listener < 0 && family == AF_INET6)
        return; /* no IPv6 on this host */
    dial(&e, &addr);
    bt_stream_write(&e.s, NULL, "early", 5); /* leaves as soon as it is connected */
    assert_false(bt_stream_peer_gone(&e.s));
    TURN_UNTIL(&loop, e.connects == 1);
    assert_int_equal(e.connect_rc, 0);
    int peer = accept(listener, NULL, NULL);
    TURN_UNTIL(&loop, bt_stream_pending(&e.s) == 0);
    assert_int_equal(recv(peer, got, 5, MSG_WAITALL), 5);
    assert_memory_equal(got, "early", 5);
    close_end(&e);
    close(peer);
    close(listener);
}

static void test_connect(void **state)
{
    connect_and_talk(AF_INET);
    connect_and_talk(AF_INET6);
}

static void test_connect_refused(void **state)
{
    struct sockaddr_storage addr;
    struct end e;
    int listener = raw_listen(AF_INET, &addr);

    close(listener);
    for (enum act how = ACT_CLOSE; how <= ACT_RESET; how++) {
        dial(&e, &addr);
        e.on_connect = how;
        bt_stream_write_copy(&e.s, "x", 1);
        TURN_UNTIL(&loop, e.closes == 1);
        assert_int_equal(e.connects, 1);
        assert_int_equal(e.connect_rc, UV_ECONNREFUSED);
        assert_int_equal(bt_stream_written(&e.s), 0);
    }
}

static void test_close_while_connecting(void **state)
{
    struct sockaddr_storage addr;
    struct end e;
    int listener = raw_listen(AF_INET, &addr);

    dial(&e, &addr);
    bt_stream_write_copy(&e.s, "x", 1);
    bt_stream_close_after_flush(&e.s, 1000);
    TURN_UNTIL(&loop, e.closes == 1);
    assert_int_equal(e.connects, 0);
    dial(&e, &addr);
    e.on_connect = ACT_CLOSE;
    TURN_UNTIL(&loop, e.closes == 1);
    assert_int_equal(e.connect_rc, 0);
    close(listener);
}

static void test_open_takes_a_bad_fd(void **state)
{
    struct end e;

    memset(&e, 0, sizeof(e));
    assert_int_equal(bt_stream_init(&e.s, &loop, &ops), 0);
    assert_true(bt_stream_open(&e.s, -1) < 0);
    assert_true(bt_stream_read_start(&e.s) < 0);
    close_end(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_LOOP(test_write_error_is_told_once),
        WITH_LOOP(test_write_error_while_waiting_for_room),
        WITH_LOOP(test_close_while_dirty),
        WITH_LOOP(test_close_while_waiting_for_room),
        WITH_LOOP(test_close_inside_on_read),
        WITH_LOOP(test_close_inside_on_eof),
        WITH_LOOP(test_close_inside_on_drain),
        WITH_LOOP(test_close_inside_on_drain_after_waiting),
        WITH_LOOP(test_close_inside_on_write_error),
        WITH_LOOP(test_close_a_sibling_of_the_same_flush),
        WITH_LOOP(test_reset_is_seen_as_reset),
        WITH_LOOP(test_close_after_flush),
        WITH_LOOP(test_close_after_flush_half_closed_peer),
        WITH_LOOP(test_close_after_flush_times_out),
        WITH_LOOP(test_close_after_flush_lost_peer),
        WITH_LOOP(test_connect),
        WITH_LOOP(test_connect_refused),
        WITH_LOOP(test_close_while_connecting),
        WITH_LOOP(test_open_takes_a_bad_fd),
    };
    alarm(55);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
