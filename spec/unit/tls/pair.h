/* pair.h - a client's stream and a server's, with a wire between them that the spec carries bytes over: as many at a time as it
 * likes, counted, cut when it likes. Each spec ends with every buffer given back. */
#ifndef SPEC_UNIT_TLS_PAIR_H
#define SPEC_UNIT_TLS_PAIR_H

#include "../loop/util.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/pages.h"
#include "certs.h"
#include "loop/cipher.h"
#include "loop/stream.h"
#include "tls/client.h"
#include "tls/server.h"

struct side {
    bt_stream_t s;
    int handshake_rc, connect_rc, eof_rc;
    unsigned handshakes, connects, eofs, sents, write_errors, closes;
    char *got; /* what was read */
    size_t got_n, got_cap;
    bool echo;
    size_t stop_after; /* reading stops when so much has come */
};

static bt_loop_t loop;
static size_t buf_bytes_before;
static struct side client, server;
static int client_wire, server_wire;  /* the other ends */
static size_t chunk;                  /* bytes carried at a time */
static uint64_t to_server, to_client; /* carried so far */
static char *tapped;                  /* what went to the client */
static size_t tapped_n;

/* By the linker's --wrap: how often those who accept have given bytes to the kernel, and how many it takes at once at most. One for all
 * files of a program. */
ssize_t __real_bt_stream_send_now(const bt_stream_t *s, const uv_buf_t *bufs, unsigned count);
ssize_t __wrap_bt_stream_send_now(const bt_stream_t *s, const uv_buf_t *bufs, unsigned count);
__attribute__((weak)) unsigned server_sends;
__attribute__((weak)) size_t server_room = SIZE_MAX;
__attribute__((weak)) ssize_t __wrap_bt_stream_send_now(const bt_stream_t *s, const uv_buf_t *bufs,
                                                        unsigned count)
{
    if (s->cipher == NULL || s->cipher->connects)
        return __real_bt_stream_send_now(s, bufs, count);
    server_sends++;
    if (server_room >= bufs[0].len)
        return __real_bt_stream_send_now(s, bufs, count);
    if (server_room == 0)
        return UV_EAGAIN;
    const uv_buf_t some = uv_buf_init(bufs[0].base, (unsigned) server_room);
    return __real_bt_stream_send_now(s, &some, 1);
}

static inline struct side *side_of(bt_stream_t *s)
{
    return bt_container_of(s, struct side, s);
}

static inline void on_connect(bt_stream_t *s, int rc)
{
    side_of(s)->connects++;
    side_of(s)->connect_rc = rc;
    if (rc == 0)
        bt_stream_read_start(s);
}

static inline void on_handshake(bt_stream_t *s, int rc)
{
    if (rc == BT_E_AGAIN)
        return;
    side_of(s)->handshakes++;
    side_of(s)->handshake_rc = rc;
}

static inline void on_read(bt_stream_t *s, bt_buf_t *buf, char *p, size_t n)
{
    struct side *side = side_of(s);

    assert_non_null(buf);
    assert_true(p >= buf->data && p + n <= buf->data + buf->cap);
    if (side->got_n + n > side->got_cap) {
        side->got_cap = 2 * (side->got_n + n);
        side->got = realloc(side->got, side->got_cap);
    }
    memcpy(side->got + side->got_n, p, n);
    side->got_n += n;
    if (side->echo)
        bt_stream_write(s, buf, p, n);
    if (side->stop_after > 0 && side->got_n >= side->stop_after)
        bt_stream_read_stop(s);
}

static inline void on_eof(bt_stream_t *s, int rc)
{
    side_of(s)->eofs++;
    side_of(s)->eof_rc = rc;
}

static inline void on_drain(bt_stream_t *s)
{
    (void) s;
}

static inline void on_sent(bt_stream_t *s)
{
    side_of(s)->sents++;
}

static inline void on_write_error(bt_stream_t *s, int rc)
{
    (void) rc;
    side_of(s)->write_errors++;
}

static inline void on_closed(bt_stream_t *s)
{
    side_of(s)->closes++;
}

static const bt_stream_ops_t pair_ops = {.on_connect = on_connect,
                                         .on_handshake = on_handshake,
                                         .on_read = on_read,
                                         .on_eof = on_eof,
                                         .on_drain = on_drain,
                                         .on_sent = on_sent,
                                         .on_write_error = on_write_error,
                                         .on_closed = on_closed};

static inline int setup(void **state)
{
    buf_bytes_before = bt_mem_bytes(BT_MEM_BUFFERS);
    chunk = 1 << 20;
    return bt_loop_init(&loop, 0);
}

static inline int teardown(void **state)
{
    bt_loop_fini(&loop);
    bt_pages_thread_fini();
    return bt_mem_bytes(BT_MEM_BUFFERS) == buf_bytes_before ? 0 : -1;
}

static inline bt_tls_server_t *new_server(bt_tls_server_config_t config)
{
    bt_tls_server_t *tls = NULL;
    char err[512] = "";

    if (bt_tls_server_new(&tls, &config, err, sizeof(err)) < 0)
        fail_msg("%s", err);
    return tls;
}

static inline bt_tls_client_t *new_client(bt_tls_client_config_t config)
{
    bt_tls_client_t *tls = NULL;
    char err[512] = "";

    if (bt_tls_client_get(&tls, &config, err, sizeof(err)) < 0)
        fail_msg("%s", err);
    return tls;
}

/* tls NULL: that side is plain. */
static inline void open_pair(bt_tls_server_t *server_tls, bt_tls_client_t *client_tls,
                             const char *name, bt_tls_slot_t *slot)
{
    struct sockaddr_storage addr;
    int fd, listener = raw_listen(AF_INET, &addr);

    memset(&client, 0, sizeof(client));
    memset(&server, 0, sizeof(server));
    to_server = to_client = 0;
    tcp_pair(&fd, &server_wire);
    assert_int_equal(bt_stream_init(&server.s, &loop, &pair_ops), 0);
    if (server_tls != NULL)
        assert_int_equal(bt_tls_server_attach(server_tls, &server.s), 0);
    assert_int_equal(bt_stream_open(&server.s, fd), 0);
    assert_int_equal(bt_stream_read_start(&server.s), 0);
    assert_int_equal(bt_stream_init(&client.s, &loop, &pair_ops), 0);
    if (client_tls != NULL)
        assert_int_equal(bt_tls_client_attach(client_tls, &client.s, name, slot), 0);
    assert_int_equal(bt_stream_connect(&client.s, (struct sockaddr *) &addr), 0);
    client_wire = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(client_wire >= 0);
    close(listener);
}

static inline size_t carry(int from, int to, char *p)
{
    ssize_t n = recv(from, p, chunk, MSG_DONTWAIT | MSG_PEEK);

    if (n == 0)
        shutdown(to, SHUT_WR);
    if (n > 0)
        n = send(to, p, (size_t) n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0)
        n = recv(from, p, (size_t) n, MSG_DONTWAIT);
    return n > 0 ? (size_t) n : 0;
}

/* One turn of the loop, and of the wire. */
static inline void step(void)
{
    static char bytes[1 << 20];
    size_t n;

    turn(&loop, 1);
    to_server += carry(client_wire, server_wire, bytes);
    to_client += n = carry(server_wire, client_wire, bytes);
    if (tapped != NULL) {
        memcpy(tapped + tapped_n, bytes, n);
        tapped_n += n;
    }
}

static inline void shake(void)
{
    STEP_UNTIL(client.connects == 1 && server.handshakes == 1, step());
    if (client.connect_rc != 0)
        fail_msg("client: %s", bt_tls_why(&client.s));
    assert_int_equal(server.handshake_rc, 0);
}

static inline void close_pair(void)
{
    bt_stream_close(&client.s);
    bt_stream_close(&server.s);
    STEP_UNTIL(client.closes == 1 && server.closes == 1, step());
    close(client_wire);
    close(server_wire);
    free(client.got);
    free(server.got);
}

#define WITH_LOOP(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

#endif
