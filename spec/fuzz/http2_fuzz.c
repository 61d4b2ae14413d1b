/* http2_fuzz.c - what a client says behind HTTP/2's preface: a real server on a socket pair, any frames, any cuts.
 *
 * The first byte chooses how the handler answers, and whether the rest is bytes as they are or frames whose heads are made right (type, flags, stream and
 * length of a byte each), so that what comes is understood more often. Whatever comes: the server says whole frames, of streams that were opened, whose heads
 * can be inflated and whose ends are ends; a handler sees no head that HTTP/1.1 would refuse and no body of another length than promised; each request ends
 * once; and when the client has left, nothing of it is kept.
 */
#include "base/log.h"
#include "base/mem.h"
#include "base/pages.h"
#include "http/server.h"

#include <fcntl.h>
#include <nghttp2/nghttp2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(cond) ((cond) ? (void) 0 : abort())
#define STREAM_IDS 512U /* of which the order of frames is watched */
#define FRAMES_MAX 300U
#define TURNS_MAX 2000U

enum { DATA, HEADERS, RST_STREAM = 3, PUSH_PROMISE = 5, CONTINUATION = 9 };
enum { END_STREAM = 1, END_HEADERS = 4 };
enum how { AT_ONCE, IN_PIECES, LATER, ABORTED, RESET, REFUSED, LONG, NEVER, HOWS };

static bt_loop_t loop;
static bt_server_t *server;
static bt_server_config_t config;
static enum how how;
static unsigned begun, over;
static bt_list_t held; /* of struct request */

struct request {
    bt_list_t link;
    bt_exchange_t *x;
};

/* ---- the handler ---- */

static unsigned on_head(bt_exchange_t *x, const char **reason_p)
{
    (void) x;
    (void) reason_p;
    return how == REFUSED ? 413 : 0;
}

static void check_request(const bt_exchange_t *x)
{
    unsigned hosts = 0;

    CHECK(x->head.header_count <= BT_HTTP_HEADERS_MAX && x->head.path.n > 0 &&
          x->head.method_text.n > 0);
    CHECK(!x->head.has_length || x->head.length == x->body.n);
    for (unsigned i = 0; i < x->head.header_count; i++) {
        const bt_header_t *h = &x->head.headers[i];
        CHECK(h->name.n > 0 && h->name.p[0] != ':');
        for (size_t at = 0; at < h->value.n; at++)
            CHECK(h->value.p[at] != '\r' && h->value.p[at] != '\n' && h->value.p[at] != '\0');
        CHECK(!bt_str_ieq(h->name, BT_STR("connection")) &&
              !bt_str_ieq(h->name, BT_STR("transfer-encoding")) &&
              !bt_str_ieq(h->name, BT_STR("upgrade")));
        hosts += bt_str_ieq(h->name, BT_STR("host"));
    }
    CHECK(hosts == 1);
}

static void answer(bt_exchange_t *x)
{
    static char body[200000];
    const size_t n = how == LONG ? sizeof(body) : 5;

    over++;
    if (how == AT_ONCE || how == LATER) {
        bt_exchange_respond(x, 200, "text/plain", BT_STR("hello"), NULL, 0);
        return;
    }
    bt_exchange_start(x, 200, NULL, 0, how == LONG ? n : BT_LENGTH_CHUNKED);
    bt_exchange_write(x, NULL, body, n);
    if (how == ABORTED)
        bt_exchange_abort(x);
    else if (how == RESET)
        bt_exchange_reset(x);
    else
        bt_exchange_end(x);
}

static void on_request(bt_exchange_t *x)
{
    begun++;
    check_request(x);
    if (how != LATER && how != NEVER) {
        answer(x);
        return;
    }
    struct request *r = calloc(1, sizeof(*r));
    r->x = x;
    x->user = r;
    bt_list_init(&r->link);
    bt_list_push(&held, &r->link);
}

static void forget(struct request *r)
{
    bt_list_remove(&r->link);
    free(r);
}

static void on_gone(bt_exchange_t *x)
{
    over++;
    forget(x->user);
}

static void answer_held(void)
{
    while (!bt_list_empty(&held)) {
        struct request *r = bt_container_of(held.next, struct request, link);
        bt_exchange_t *x = r->x;
        forget(r);
        answer(x);
    }
}

static const bt_server_ops_t handler = {
    .on_head = on_head, .on_request = on_request, .on_gone = on_gone};

/* ---- the client ---- */

static struct {
    int fd;
    bool is_cut; /* the server has closed it */
    nghttp2_hd_inflater *inflater;
    size_t got_n;
    unsigned char got[1 << 17];
    unsigned char ended[STREAM_IDS], has_head[STREAM_IDS];
} client;

static void check_head(const unsigned char *p, size_t n, uint32_t id)
{
    nghttp2_nv nv;
    int flags = 0;
    unsigned status = 0;

    while ((flags & NGHTTP2_HD_INFLATE_FINAL) == 0) {
        const ssize_t used = nghttp2_hd_inflate_hd2(client.inflater, &nv, &flags, p, n, 1);
        CHECK(used >= 0);
        p += used;
        n -= (size_t) used;
        if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0 && nv.namelen == 7 &&
            memcmp(nv.name, ":status", 7) == 0)
            status = (unsigned) atoi((const char *) nv.value);
    }
    nghttp2_hd_inflate_end_headers(client.inflater);
    if (id < STREAM_IDS) {
        CHECK(!client.has_head[id] && status >= 100 && status < 600);
        client.has_head[id] = status >= 200;
    }
}

static void check_frame(unsigned type, unsigned flags, uint32_t id, const unsigned char *p,
                        size_t n)
{
    CHECK(type < CONTINUATION && type != PUSH_PROMISE); /* our heads are short */
    CHECK(type > HEADERS || id % 2 == 1);
    if (type == HEADERS) {
        CHECK((flags & ~(unsigned) END_STREAM) == END_HEADERS);
        check_head(p, n, id);
    }
    if (id == 0 || id >= STREAM_IDS)
        return;
    CHECK(!client.ended[id] || (type != DATA && type != HEADERS));
    CHECK(type != DATA || client.has_head[id]);
    if (type == RST_STREAM || (type <= HEADERS && (flags & END_STREAM) != 0))
        client.ended[id] = 1;
}

static uint32_t u32(const unsigned char *p)
{
    return (uint32_t) p[0] << 24 | (uint32_t) p[1] << 16 | (uint32_t) p[2] << 8 | p[3];
}

static void listen_to_it(void)
{
    ssize_t n;

    while ((n = recv(client.fd, client.got + client.got_n, sizeof(client.got) - client.got_n,
                     MSG_DONTWAIT)) > 0) {
        size_t at = 0;
        client.got_n += (size_t) n;
        while (client.got_n - at >= 9) {
            const unsigned char *p = client.got + at;
            const size_t length = u32(p) >> 8;
            CHECK(length <= 16384);
            if (client.got_n - at < 9 + length)
                break;
            check_frame(p[3], p[4], u32(p + 5) & INT32_MAX, p + 9, length);
            at += 9 + length;
        }
        memmove(client.got, client.got + at, client.got_n -= at);
    }
    client.is_cut = client.is_cut || n == 0;
}

static void turn(void)
{
    uv_run(&loop.uv, UV_RUN_NOWAIT);
    listen_to_it();
}

static void say(const void *bytes, size_t n)
{
    const char *p = bytes;

    for (unsigned turns = 0; n > 0 && !client.is_cut && turns < TURNS_MAX; turns++) {
        const ssize_t sent = send(client.fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) {
            p += sent;
            n -= (size_t) sent;
        }
        turn();
    }
}

static void say_raw(const uint8_t *p, size_t n)
{
    const size_t cut = n > 0 ? 1U + p[0] % 64U * 16U : 1;

    for (size_t at = 0; at < n && !client.is_cut; at += cut)
        say(p + at, n - at < cut ? n - at : cut);
}

/* Type, flags, stream, length, then so many bytes; a few frames go out together. */
static void say_frames(const uint8_t *p, size_t n)
{
    static unsigned char out[8192];
    size_t out_n = 0;

    for (unsigned i = 0; n >= 4 && i < FRAMES_MAX; i++) {
        const size_t length = p[3] < n - 4 ? p[3] : n - 4;
        const unsigned char head[9] = {0, 0,   (unsigned char) length, p[0] % 11, p[1], 0, 0,
                                       0, p[2]};
        memcpy(out + out_n, head, 9);
        memcpy(out + out_n + 9, p + 4, length);
        out_n += 9 + length;
        n -= 4 + length;
        p += 4 + length;
        if (n < 4 || p[-1] % 4 == 0 || sizeof(out) - out_n < 9 + 255) {
            say(out, out_n);
            out_n = 0;
        }
    }
    if (out_n > 0)
        say(out, out_n);
}

static void begin(void)
{
    int pair[2];

    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    memset(&client, 0, sizeof(client));
    client.fd = pair[1];
    CHECK(nghttp2_hd_inflate_new(&client.inflater) == 0);
    begun = over = 0;
    atomic_fetch_add(&loop.connections, 1);
    bt_server_accept(server, pair[0], NULL);
    say(NGHTTP2_CLIENT_MAGIC, NGHTTP2_CLIENT_MAGIC_LEN);
}

static void leave(void)
{
    close(client.fd);
    nghttp2_hd_inflate_del(client.inflater);
    for (unsigned i = 0; bt_server_connection_count(server) > 0; i++) {
        CHECK(i < TURNS_MAX);
        uv_run(&loop.uv, UV_RUN_NOWAIT);
    }
    uv_run(&loop.uv, UV_RUN_NOWAIT);
    CHECK(begun == over && bt_list_empty(&held));
    CHECK(bt_server_active_count(server) == 0);
    CHECK(bt_mem_bytes(BT_MEM_BUFFERS) == 0);
}

static void open_server(void)
{
    bt_log_set(BT_LOG_ERROR, false, 2);
    bt_list_init(&held);
    bt_server_config_defaults(&config);
    config.has_http2 = true;
    config.max_body_bytes = 4096;
    CHECK(bt_loop_init(&loop, 0) == 0);
    CHECK(bt_server_new(&server, &loop, &handler, &config, NULL) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (server == NULL)
        open_server();
    how = data[0] % HOWS;
    begin();
    if (data[0] < 64)
        say_raw(data + 1, size - 1);
    else
        say_frames(data + 1, size - 1);
    turn();
    if (how == LATER)
        answer_held();
    for (unsigned i = 0; i < 4; i++)
        turn();
    leave();
    return 0;
}
