/* A peer of bytes: this spec is the sender, by hand. What it says in pieces is understood, what no honest sender says ends the path, and nothing is written that
 * the receiver's agent has not granted. */
#include "tcp_pair.h"

#include "transport/wire/frame.h"

#include <arpa/inet.h>
#include <errno.h>

typedef struct hostile {
    rig_t rx;
    rig_link_t *in;
    bt_kv_mem_t *dst;
    int control, data; /* ours */
    bt_tcp_offer_t offer;
    uint8_t token[BT_TCP_TOKEN_BYTES];
} hostile_t;

static void step(hostile_t *h)
{
    for (int i = 0; i < 4; i++)
        rig_turn(&h->rx);
}

static void hostile_open(hostile_t *h)
{
    int fds[2];
    uint8_t text[1 + BT_KV_OFFER_BYTES];

    rig_open(&h->rx, &bt_kv_tcp_ops);
    h->dst = rig_private(&h->rx, 1u << 20);
    rig_sockets(fds);
    h->control = fds[0];
    h->in = rig_link(&h->rx, fds[1], true);
    ssize_t n = recv(h->control, text, sizeof(text), 0);
    assert_true(n > 1 && text[0] == 'O');
    assert_int_equal(bt_tcp_offer_get(text + 1, (size_t) n - 1, &h->offer), 0);
    assert_int_equal(send(h->control, text, (size_t) n, 0), n); /* ours: the same will do */
    step(h);
    while ((n = recv(h->control, text, sizeof(text), 0)) > 0 && text[0] != 'T')
        ;
    assert_int_equal(n, 1 + BT_TCP_TOKEN_BYTES);
    memcpy(h->token, text + 1, sizeof(h->token));
    h->data = -1;
}

static int dial(const hostile_t *h)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(h->offer.port),
                             .sin_addr.s_addr = htonl(h->offer.addresses[0])};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    assert_int_equal(connect(fd, (struct sockaddr *) &to, sizeof(to)), 0);
    setsockopt(fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, &on, sizeof(on));
    return fd;
}

static void greet(const hostile_t *h, int fd, uint16_t stream, uint16_t streams)
{
    bt_tcp_greeting_t greeting = {.stream = stream, .streams = streams};
    uint8_t bytes[BT_TCP_GREETING_BYTES];
    memcpy(greeting.token, h->token, sizeof(h->token));
    bt_tcp_greeting_put(&greeting, bytes);
    assert_int_equal(send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
}

static void hostile_join(hostile_t *h)
{
    uint8_t welcome[BT_TCP_SHORT_BYTES];
    hostile_open(h);
    h->data = dial(h);
    greet(h, h->data, 0, 1);
    RIG_UNTIL(&h->rx, NULL, h->in->is_ready);
    RIG_UNTIL(&h->rx, NULL,
              recv(h->data, welcome, sizeof(welcome), MSG_DONTWAIT) == sizeof(welcome));
    assert_int_equal(welcome[0], BT_TCP_WELCOME);
}

static void hostile_close(hostile_t *h)
{
    if (h->data >= 0)
        close(h->data);
    close(h->control);
    rig_close(&h->rx);
}

/* The other end has closed it. */
static bool is_closed(int fd)
{
    char byte;
    ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno == ECONNRESET);
}

/* A block of one run (or two), whatever the head says, and its note. Bytes. */
static size_t block(uint8_t *to, bt_tcp_head_t head, const bt_tcp_run_t *runs, uint64_t note)
{
    size_t n;
    head.type = BT_TCP_BLOCK;
    n = bt_tcp_head_put(&head, to);
    for (uint32_t i = 0; i < (head.run_count == 2 ? 2 : 1); i++, n += BT_TCP_RUN_BYTES)
        bt_tcp_run_put(&runs[i], to + n);
    if (head.note_bytes == sizeof(note)) {
        memcpy(to + n, &note, sizeof(note));
        n += sizeof(note);
    }
    return n;
}

static void say(const hostile_t *h, const uint8_t *p, size_t n)
{
    assert_int_equal(send(h->data, p, n, MSG_NOSIGNAL), n);
}

/* ---- who may come in ---- */
static void test_wrong_greetings(void **state)
{
    hostile_t h;
    int fd;

    hostile_open(&h);
    h.token[3] ^= 1; /* not the token */
    fd = dial(&h);
    greet(&h, fd, 0, 1);
    RIG_UNTIL(&h.rx, NULL, is_closed(fd));
    close(fd);
    h.token[3] ^= 1;
    fd = dial(&h); /* stream 1 of 1; then 1 of none; then of too many */
    greet(&h, fd, 1, 1);
    RIG_UNTIL(&h.rx, NULL, is_closed(fd));
    close(fd);
    fd = dial(&h);
    greet(&h, fd, 0, 0);
    RIG_UNTIL(&h.rx, NULL, is_closed(fd));
    close(fd);
    fd = dial(&h);
    greet(&h, fd, 0, BT_TCP_STREAMS_MAX + 1);
    RIG_UNTIL(&h.rx, NULL, is_closed(fd));
    close(fd);
    fd = dial(&h);
    assert_int_equal(send(fd, "GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n", 36, 0), 36);
    RIG_UNTIL(&h.rx, NULL, is_closed(fd));
    close(fd);
    assert_false(h.in->is_ready || h.in->has_failed);
    h.data = dial(&h); /* and the right one is welcome after all of them */
    greet(&h, h.data, 0, 1);
    RIG_UNTIL(&h.rx, NULL, h.in->is_ready);
    fd = dial(&h); /* a second one is not */
    greet(&h, fd, 0, 1);
    RIG_UNTIL(&h.rx, NULL, is_closed(fd));
    close(fd);
    assert_false(h.in->has_failed);
    hostile_close(&h);
}

/* More silent guests than there are seats: no seat is taken for ever. */
/* Agents with a token: whoever has read on the control connection what one has told the other is not let in by it. */
static void test_what_was_told_is_bound(void **state)
{
    hostile_t h;

    rig_hooks.bind = 0x55;
    hostile_open(&h);
    int fd = dial(&h);
    greet(&h, fd, 0, 1);
    RIG_UNTIL(&h.rx, NULL, is_closed(fd));
    close(fd);
    assert_false(h.in->is_ready);
    for (unsigned i = 0; i < sizeof(h.token); i++)
        h.token[i] ^= 0x55;
    h.data = dial(&h);
    greet(&h, h.data, 0, 1);
    RIG_UNTIL(&h.rx, NULL, h.in->is_ready);
    hostile_close(&h);
    rig_hooks.bind = 0;
}

static void test_silent_guests(void **state)
{
    int fds[BT_TCP_GUESTS_MAX + 8];
    hostile_t h;

    hostile_open(&h);
    for (uint32_t i = 0; i < BT_TCP_GUESTS_MAX + 8; i++) {
        fds[i] = dial(&h);
        step(&h);
    }
    assert_int_equal(((bt_tcp_t *) (void *) h.rx.backend)->guest_count, BT_TCP_GUESTS_MAX);
    RIG_UNTIL(&h.rx, NULL, is_closed(fds[BT_TCP_GUESTS_MAX + 7]));
    bt_tcp_guests_expire((bt_tcp_t *) (void *) h.rx.backend,
                         bt_clock_ms() + BT_TCP_HANDSHAKE_MS + 1);
    for (uint32_t i = 0; i < BT_TCP_GUESTS_MAX + 8; i++) {
        RIG_UNTIL(&h.rx, NULL, is_closed(fds[i]));
        close(fds[i]);
    }
    h.data = dial(&h);
    greet(&h, h.data, 0, 1);
    RIG_UNTIL(&h.rx, NULL, h.in->is_ready);
    hostile_close(&h);
}

static void test_nobody_connects(void **state)
{
    hostile_t h;

    hostile_open(&h);
    tcp_path(h.in)->deadline_ms = bt_clock_ms(); /* five seconds later */
    RIG_UNTIL(&h.rx, NULL, h.in->has_failed);
    assert_int_equal(h.in->rc, BT_E_CONNECT_TIMEOUT);
    hostile_close(&h);
}

/* ---- what may be said ---- */
static void test_every_split(void **state)
{
    enum { BYTES = 200 };
    bt_tcp_run_t runs[2] = {{.region = 1, .bytes = 150, .offset = 1000, .rows = 1},
                            {.region = 1, .bytes = 10, .offset = 5000, .rows = 5, .stride = 64}};
    uint8_t bytes[1024], payload[BYTES], ack[2 * BT_TCP_SHORT_BYTES];
    hostile_t h;

    hostile_join(&h);
    runs[0].region = runs[1].region = h.dst->id;
    for (uint32_t i = 0; i < BYTES; i++)
        payload[i] = (uint8_t) (i + 1);
    bt_tcp_head_t head = {.flags = BT_TCP_LAST,
                          .run_count = 2,
                          .note_bytes = 8,
                          .tag = 3,
                          .bytes = BYTES,
                          .blocks = 1};
    for (size_t cut = 1; cut < BT_TCP_BLOCK_HEAD_BYTES + 2 * BT_TCP_RUN_BYTES + 8 + BYTES; cut++) {
        memset(h.dst->p, 0, h.dst->size);
        head.number = cut * 3;
        size_t n = block(bytes, head, runs, cut);
        memcpy(bytes + n, payload, BYTES);
        n += BYTES;
        say(&h, bytes, cut);
        step(&h);
        assert_int_equal(h.in->note_count, cut - 1);
        say(&h, bytes + cut, n - cut);
        RIG_UNTIL(&h.rx, NULL, h.in->note_count == cut);
        assert_int_equal(h.in->notes[cut - 1], cut);
        assert_memory_equal(h.dst->p + 1000, payload, 150);
        for (uint32_t row = 0; row < 5; row++)
            assert_memory_equal(h.dst->p + 5000 + row * 64, payload + 150 + row * 10, 10);
        assert_true(is_all_zero(h.dst->p, 1000) && is_all_zero(h.dst->p + 1150, 3850) &&
                    is_all_zero(h.dst->p + 5010, 54));
        RIG_UNTIL(&h.rx, NULL, recv(h.data, ack, sizeof(ack), MSG_DONTWAIT) == BT_TCP_SHORT_BYTES);
        assert_true(ack[0] == BT_TCP_ACK && ack[1] == 0);
    }
    hostile_close(&h);
}

/* Says one frame, and maybe bytes behind it; the path must end, with these words in the reason. */
static void ends(const uint8_t *p, size_t n, const char *words)
{
    hostile_t h;
    hostile_join(&h);
    say(&h, p, n);
    RIG_UNTIL(&h.rx, NULL, h.in->has_failed);
    if (strstr(h.in->why, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", h.in->why, words);
    assert_int_equal(h.in->note_count, 0);
    assert_true(is_all_zero(h.dst->p, h.dst->size));
    hostile_close(&h);
}

static void ends_head(bt_tcp_head_t head, const bt_tcp_run_t *runs, const char *words)
{
    uint8_t bytes[1024] = {0};
    (void) block(bytes, head, runs, 1);
    ends(bytes, sizeof(bytes), words);
}

static void test_malformed_frames(void **state)
{
    bt_tcp_run_t run = {.region = 1, .bytes = 100, .rows = 1};
    bt_tcp_head_t good = {.flags = BT_TCP_LAST, .run_count = 1, .bytes = 100, .blocks = 1}, head;
    uint8_t bytes[64] = {0x7f};

    ends(bytes, sizeof(bytes), "unknown type");
    bytes[0] = BT_TCP_WELCOME;
    ends(bytes, sizeof(bytes), "out of order");
    bytes[0] = BT_TCP_ACK;
    ends(bytes, sizeof(bytes), "has not got");
    head = good, head.run_count = BT_TCP_RUNS_MAX + 1;
    ends_head(head, &run, "too many runs");
    head = good, head.run_count = UINT16_MAX;
    ends_head(head, &run, "too many runs");
    head = good, head.note_bytes = BT_KV_NOTE_BYTES + 1;
    ends_head(head, &run, "wrong note");
    head = good, head.note_bytes = UINT32_MAX;
    ends_head(head, &run, "wrong note");
    head = good, head.flags = 0, head.blocks = 0, head.note_bytes = 8;
    ends_head(head, &run, "wrong note");
    head = good, head.bytes = UINT64_MAX;
    ends_head(head, &run, "wrong size");
    head = good, head.run_count = 0;
    ends_head(head, &run, "wrong size");
    head = good, head.blocks = 0;
    ends_head(head, &run, "out of order");
    head = good, head.flags = 0;
    ends_head(head, &run, "out of order");
    head = good, head.bytes = 101; /* not what the runs sum up to */
    ends_head(head, &run, "malformed run");
    head.bytes = 99;
    ends_head(head, &run, "malformed run");
    run.rows = 0;
    ends_head(good, &run, "malformed run");
    run = (bt_tcp_run_t){.region = 1, .bytes = 0, .rows = 100};
    ends_head(good, &run, "malformed run");
    run =
        (bt_tcp_run_t){.region = 1, .bytes = UINT32_MAX, .rows = UINT32_MAX, .stride = UINT32_MAX};
    ends_head(good, &run, "malformed run");
    run = (bt_tcp_run_t){.region = 1, .bytes = 50, .rows = 2, .stride = 49}; /* rows that overlap */
    ends_head(good, &run, "malformed run");
}

static void test_batches_out_of_order(void **state)
{
    bt_tcp_run_t run = {.region = 1, .bytes = 1, .rows = 1};
    bt_tcp_head_t head = {.run_count = 1, .bytes = 1, .tag = 4, .number = 9};
    uint8_t bytes[300] = {0};
    size_t n;

    n = block(bytes, head, &run, 0) + 1;
    head.number += BT_TCP_SLOTS; /* its slot is taken */
    n += block(bytes + n, head, &run, 0) + 1;
    hostile_t h;
    hostile_join(&h);
    say(&h, bytes, n);
    RIG_UNTIL(&h.rx, NULL, h.in->has_failed);
    assert_non_null(strstr(h.in->why, "number"));
    hostile_close(&h);

    head.number = 9; /* one block has come, now the last says that there is one */
    n = block(bytes, head, &run, 0) + 1;
    head.flags = BT_TCP_LAST;
    head.blocks = 1;
    n += block(bytes + n, head, &run, 0) + 1;
    hostile_join(&h);
    say(&h, bytes, n);
    RIG_UNTIL(&h.rx, NULL, h.in->has_failed);
    assert_non_null(strstr(h.in->why, "more blocks"));
    hostile_close(&h);
}

/* Nothing outside of what is granted, whatever offsets are said; the stream goes on. */
static void test_wild_destinations(void **state)
{
    const uint64_t size = 1u << 20;
    const bt_tcp_run_t wild[] = {
        {.region = 0, .bytes = 100, .rows = 1},
        {.region = 2, .bytes = 100, .rows = 1},
        {.region = UINT32_MAX, .bytes = 100, .rows = 1},
        {.region = 1, .bytes = 100, .offset = size - 99, .rows = 1},
        {.region = 1, .bytes = 100, .offset = UINT64_MAX, .rows = 1},
        {.region = 1, .bytes = 100, .offset = UINT64_MAX - 99, .rows = 1},
        {.region = 1, .bytes = 10, .offset = size - 99, .rows = 10, .stride = 10},
        {.region = 1, .bytes = 10, .offset = 0, .rows = 10, .stride = UINT32_MAX},
        {.region = 1, .bytes = 10, .offset = UINT64_MAX - 40, .rows = 10, .stride = 50},
    };
    uint8_t bytes[300], ack[BT_TCP_SHORT_BYTES];
    hostile_t h;

    hostile_join(&h);
    for (uint32_t i = 0; i < sizeof(wild) / sizeof(wild[0]); i++) {
        bt_tcp_head_t head = {.flags = BT_TCP_LAST,
                              .run_count = 1,
                              .note_bytes = 8,
                              .bytes = 100,
                              .blocks = 1,
                              .tag = 1,
                              .number = i};
        memset(bytes, 0xee, sizeof(bytes));
        size_t n = block(bytes, head, &wild[i], 1);
        say(&h, bytes, n + 100);
        RIG_UNTIL(&h.rx, NULL, recv(h.data, ack, sizeof(ack), MSG_DONTWAIT) == sizeof(ack));
        assert_true(ack[0] == BT_TCP_ACK && ack[1] == BT_TCP_REFUSED && ack[8] == i);
    }
    assert_int_equal(h.in->note_count, 0);
    assert_false(h.in->has_failed);
    assert_true(is_all_zero(h.dst->p, h.dst->size));
    hostile_close(&h);
}

/* Bytes that fill both kernels' buffers on the way from fd. */
static size_t fill_up(int fd)
{
    static const char zeros[65536];
    size_t all = 0;

    for (uint32_t quiet = 0; quiet < 1000; quiet++) {
        ssize_t n = send(fd, zeros, sizeof(zeros), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            all += (size_t) n;
            quiet = 0;
        }
    }
    return all;
}

/* It sends batches and does not read: acknowledgements pile up to a bound, then nothing more is read from it, until they can be written. */
static void test_a_peer_that_does_not_read(void **state)
{
    enum { COUNT = BT_TCP_ACKS * 2 + 50 }; /* a plan of them, a store of them, and more */
    bt_tcp_run_t run = {.region = 1, .bytes = 1, .rows = 1};
    bt_tcp_head_t head = {.flags = BT_TCP_LAST, .run_count = 1, .bytes = 1, .blocks = 1, .tag = 1};
    uint8_t bytes[100] = {0}, ack[BT_TCP_SHORT_BYTES];
    hostile_t h;

    hostile_join(&h);
    bt_tcp_conn_t *conn = tcp_path(h.in)->conns[0];
    int small = 4096;
    setsockopt(conn->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    setsockopt(h.data, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    size_t junk = fill_up(conn->fd);
    for (head.number = 0; head.number < COUNT; head.number++)
        say(&h, bytes, block(bytes, head, &run, 0) + 1);
    RIG_UNTIL(&h.rx, NULL, conn->ack_count == BT_TCP_ACKS && !conn->may_write);
    step(&h);
    assert_int_equal(conn->ack_count, BT_TCP_ACKS);
    assert_false(h.rx.ops->arm(h.rx.backend)); /* it may sleep */
    while (junk > 0) {
        ssize_t n = recv(h.data, bytes, junk < sizeof(bytes) ? junk : sizeof(bytes), 0);
        assert_true(n > 0);
        junk -= (size_t) n;
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        RIG_UNTIL(&h.rx, NULL,
                  recv(h.data, ack, sizeof(ack), MSG_DONTWAIT | MSG_PEEK) == sizeof(ack));
        assert_int_equal(recv(h.data, ack, sizeof(ack), 0), sizeof(ack));
        assert_int_equal(bt_kv_get_u64(ack + 8), i);
    }
    hostile_close(&h);
}

/* ---- the side that dials ---- */
static void test_nobody_listens(void **state)
{
    rig_t tx;
    int fds[2];
    uint8_t text[200] = {'O'};
    bt_tcp_offer_t offer = {
        .port = 1, .addresses = {INADDR_LOOPBACK, 0x7f000002}, .address_count = 2};

    rig_open(&tx, &bt_kv_tcp_ops);
    rig_sockets(fds);
    rig_link_t *out = rig_link(&tx, fds[0], false);
    size_t n = bt_tcp_offer_put(&offer, text + 1);
    assert_true(send(fds[1], text, 1 + n, 0) > 0);
    text[0] = 'T';
    assert_true(send(fds[1], text, 1 + BT_TCP_TOKEN_BYTES, 0) > 0);
    RIG_UNTIL(&tx, NULL, out->has_failed); /* both addresses refuse */
    assert_int_equal(out->rc, BT_E_CONNECT);
    assert_non_null(strstr(out->why, "refused"));
    close(fds[1]);
    rig_close(&tx);
}

static void test_the_second_address_serves(void **state)
{
    tcp_pair_t pair;
    rig_batch_t b;

    rig_open(&pair.tx, &bt_kv_tcp_ops);
    rig_open(&pair.rx, &bt_kv_tcp_ops);
    bt_tcp_offer_t *offer = &((bt_tcp_t *) (void *) pair.rx.backend)->offer;
    offer->addresses[1] = offer->addresses[0];
    offer->addresses[0] = 0x7f000009; /* nobody listens there */
    offer->address_count = 2;
    ((bt_tcp_t *) (void *) pair.tx.backend)->streams = 3;
    pair.src = rig_private(&pair.tx, PAGE);
    pair.dst = rig_private(&pair.rx, PAGE);
    fill_random(pair.src, 3);
    pair_link(&pair);
    RIG_UNTIL(&pair.tx, &pair.rx, pair.out->is_ready && pair.in->is_ready);
    bt_kv_run_t run = plain_run(&pair, 0, 0, PAGE);
    assert_int_equal(rig_post(pair.out, &b, 1, &run, 1, 1), 0);
    RIG_UNTIL(&pair.tx, &pair.rx, b.over == 1);
    assert_true(are_there(&pair, &run, 1));
    pair_close(&pair);
}

static void test_messages_that_make_no_sense(void **state)
{
    rig_t tx;
    bt_kv_path_t *path;
    int fds[2];
    uint8_t text[BT_KV_OFFER_BYTES] = {0};

    rig_open(&tx, &bt_kv_tcp_ops);
    rig_sockets(fds);
    rig_link_t *out = rig_link(&tx, fds[0], false);
    for (size_t n = 0; n < 64; n++)
        assert_int_equal(tx.ops->path_open(&path, tx.backend, out, text, n, false), BT_E_INVAL);
    bt_tcp_offer_t offer = {.port = 1, .addresses = {INADDR_LOOPBACK}, .address_count = 1};
    size_t size = bt_tcp_offer_put(&offer, text);
    for (size_t n = 0; n < size; n++)
        assert_int_equal(tx.ops->path_open(&path, tx.backend, out, text, n, false), BT_E_INVAL);
    assert_int_equal(tx.ops->path_open(&out->path, tx.backend, out, text, size, false), 0);
    assert_true(tx.ops->received(out->path, text, BT_TCP_TOKEN_BYTES - 1) < 0);
    assert_true(tx.ops->received(out->path, text, BT_TCP_TOKEN_BYTES + 1) < 0);
    assert_int_equal(tx.ops->received(out->path, text, BT_TCP_TOKEN_BYTES), 0);
    assert_true(tx.ops->received(out->path, text, BT_TCP_TOKEN_BYTES) < 0); /* once is enough */
    close(fds[1]);
    rig_close(&tx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_greetings),
        cmocka_unit_test(test_what_was_told_is_bound),
        cmocka_unit_test(test_silent_guests),
        cmocka_unit_test(test_nobody_connects),
        cmocka_unit_test(test_every_split),
        cmocka_unit_test(test_malformed_frames),
        cmocka_unit_test(test_batches_out_of_order),
        cmocka_unit_test(test_wild_destinations),
        cmocka_unit_test(test_a_peer_that_does_not_read),
        cmocka_unit_test(test_nobody_listens),
        cmocka_unit_test(test_the_second_address_serves),
        cmocka_unit_test(test_messages_that_make_no_sense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
