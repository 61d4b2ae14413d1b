/* PROXY protocol v2: what is one, byte by byte, what is none, and what is left in the socket. */
#include "http/proxy.h"

#include "base/err.h"
#include "base/log.h"
#include "loop/util.h"
#include "unit.h"

#include <stdlib.h>

#define SIGNATURE "\r\n\r\n\0\r\nQUIT\n"
#define V4                                                                                         \
    "\xcb\x00\x71\x07\x7f\x00\x00\x01\x10\x92\x75\x30" /* 203.0.113.7:4242 to 127.0.0.1:30000 */
#define CRC                                                                                        \
    "\x2b\x19\x47\x63" /* of IPv4's header with nothing but this TLV; check value of CRC-32C: 0xe3069283 */
#define V6                                                                                         \
    "\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x07"                             \
    "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x10\x92\x75\x30"

struct bytes {
    const char *name;
    const char *p;
    size_t n;
};
#define BYTES(name, text)                                                                          \
    {                                                                                              \
        name, text, sizeof(text) - 1                                                               \
    }

/* The bytes lie alone, so that reading past them is found. */
static int parse(const char *p, size_t n, char client[64], const char **why_p)
{
    unsigned char *alone = malloc(n > 0 ? n : 1);
    struct sockaddr_storage addr;

    memcpy(alone, p, n);
    const int rc = bt_proxy_parse(alone, n, &addr, why_p);
    free(alone);
    client[0] = '\0';
    if (rc > 0 && addr.ss_family != AF_UNSPEC)
        uv_ip_name((struct sockaddr *) &addr, client, 64);
    return rc;
}

static void headers_are_read(void **state)
{
    static const struct {
        struct bytes bytes;
        const char *client;
    } cases[] = {
        {BYTES("IPv4", SIGNATURE "\x21\x11\x00\x0c" V4), "203.0.113.7"},
        {BYTES("IPv6", SIGNATURE "\x21\x21\x00\x24" V6), "2001:db8::7"},
        {BYTES("LOCAL", SIGNATURE "\x20\x00\x00\x00"), ""},
        {BYTES("LOCAL with a family and what follows", SIGNATURE "\x20\x11\x00\x0d" V4 "x"), ""},
        {BYTES("LOCAL of an unknown family", SIGNATURE "\x20\xff\x00\x01x"), ""},
        {BYTES("of no family", SIGNATURE "\x21\x00\x00\x00"), ""},
        {BYTES("of no family, with a TLV", SIGNATURE "\x21\x00\x00\x04\x04\x00\x01z"), ""},
        {BYTES("one TLV", SIGNATURE "\x21\x11\x00\x13" V4 "\x02\x00\x04host"), "203.0.113.7"},
        {BYTES("two TLVs, one of them empty",
               SIGNATURE "\x21\x11\x00\x13" V4 "\x04\x00\x00\x01\x00\x01h"),
         "203.0.113.7"},
        {BYTES("an unknown TLV", SIGNATURE "\x21\x11\x00\x10" V4 "\xee\x00\x01x"), "203.0.113.7"},
        {BYTES("a right checksum", SIGNATURE "\x21\x11\x00\x13" V4 "\x03\x00\x04" CRC),
         "203.0.113.7"},
    };
    char client[64];
    const char *why;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct bytes *b = &cases[i].bytes;
        for (size_t n = 0; n < b->n; n++)
            if (parse(b->p, n, client, &why) != BT_E_AGAIN)
                fail_msg("%s: of %zu bytes", b->name, n);
        if (parse(b->p, b->n, client, &why) != (int) b->n || strcmp(client, cases[i].client) != 0)
            fail_msg("%s: %s, %s", b->name, client, why != NULL ? why : "");
    }
}

static void an_address_on_a_unix_socket_is_the_proxys(void **state)
{
    char text[BT_PROXY_FIXED + 216] = SIGNATURE "\x21\x31\x00\xd8", client[64];
    const char *why;

    assert_int_equal(parse(text, sizeof(text), client, &why), sizeof(text));
    assert_string_equal(client, "");
}

static const struct {
    struct bytes bytes;
    const char *why;
} bad[] = {
    {BYTES("HTTP", "GET / HTTP/1.1\r\n"), "there is none"},
    {BYTES("one wrong byte", "\r\n\r\n\0\r\nQUIT\r"), "there is none"},
    {BYTES("a first wrong byte", "\n"), "there is none"},
    {BYTES("TLS", "\x16\x03\x01\x02\x00\x01"), "there is none"},
    {BYTES("version 1", "PROXY TCP4 203.0.113.7 127.0.0.1 4242 30000\r\n"), "version 1"},
    {BYTES("version 1, unknown", "PROXY UNKNOWN\r\n"), "version 1"},
    {BYTES("almost version 1", "PROXX "), "there is none"},
    {BYTES("version 0", SIGNATURE "\x01"), "version"},
    {BYTES("version 1 in binary", SIGNATURE "\x11"), "version"},
    {BYTES("version 3", SIGNATURE "\x31"), "version"},
    {BYTES("command 2", SIGNATURE "\x22"), "command"},
    {BYTES("command 15", SIGNATURE "\x2f"), "command"},
    {BYTES("family 4", SIGNATURE "\x21\x41\x00\x0c" V4), "family"},
    {BYTES("family 15", SIGNATURE "\x21\xf1\x00\x0c" V4), "family"},
    {BYTES("transport 3", SIGNATURE "\x21\x13\x00\x0c" V4), "transport"},
    {BYTES("a datagram", SIGNATURE "\x21\x12\x00\x0c" V4), "datagram"},
    {BYTES("a datagram of IPv6", SIGNATURE "\x21\x22\x00\x24" V6), "datagram"},
    {BYTES("IPv4 without a transport", SIGNATURE "\x21\x10\x00\x0c" V4), "go together"},
    {BYTES("a stream without a family", SIGNATURE "\x21\x01\x00\x00"), "go together"},
    {BYTES("IPv4 without addresses", SIGNATURE "\x21\x11\x00\x00"), "too short"},
    {BYTES("IPv4 with half of them",
           SIGNATURE "\x21\x11\x00\x0b\xcb\x00\x71\x07\x7f\x00\x00\x01\x10\x92\x75"),
     "too short"},
    {BYTES("IPv6 with IPv4's", SIGNATURE "\x21\x21\x00\x0c" V4), "too short"},
    {BYTES("Unix with IPv4's", SIGNATURE "\x21\x31\x00\x0c" V4), "too short"},
    {BYTES("longer than any", SIGNATURE "\x21\x11\xff\xff"), "too long"},
    {BYTES("longer by one", SIGNATURE "\x21\x11\x07\xf1"), "too long"},
    {BYTES("LOCAL that is too long", SIGNATURE "\x20\x00\x07\xf1"), "too long"},
    {BYTES("a byte behind the addresses", SIGNATURE "\x21\x11\x00\x0d" V4 "x"), "cut off"},
    {BYTES("two bytes behind them", SIGNATURE "\x21\x11\x00\x0e" V4 "\x02\x00"), "cut off"},
    {BYTES("a TLV beyond the end", SIGNATURE "\x21\x11\x00\x10" V4 "\x02\x00\x02x"), "longer"},
    {BYTES("a TLV of 64 KiB", SIGNATURE "\x21\x11\x00\x0f" V4 "\x02\xff\xff"), "longer"},
    {BYTES("a second TLV that is cut", SIGNATURE "\x21\x11\x00\x11" V4 "\x04\x00\x00\x01\x00"),
     "cut off"},
    {BYTES("a wrong checksum", SIGNATURE "\x21\x11\x00\x13" V4 "\x03\x00\x04\x00\x00\x00\x00"),
     "checksum is wrong"},
    {BYTES("a checksum of another address", SIGNATURE
           "\x21\x11\x00\x13\x06\x06\x06\x06\x7f\x00\x00\x01\x10\x92\x75\x30\x03\x00\x04" CRC),
     "checksum is wrong"},
    {BYTES("a checksum of two bytes", SIGNATURE "\x21\x11\x00\x11" V4 "\x03\x00\x02\x00\x00"),
     "four bytes"},
    {BYTES("an empty checksum", SIGNATURE "\x21\x11\x00\x0f" V4 "\x03\x00\x00"), "four bytes"},
};

static void what_is_malformed_is_refused(void **state)
{
    char client[64];
    const char *why;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const int rc = parse(bad[i].bytes.p, bad[i].bytes.n, client, &why);
        if (rc != BT_E_HTTP || strstr(why, bad[i].why) == NULL)
            fail_msg("%s: %d, %s", bad[i].bytes.name, rc, why != NULL ? why : "");
    }
}

/* ---- on a loop ---- */

static struct {
    bt_loop_t loop;
    bt_proxy_t *proxy;
    int fd; /* the proxy's end */
    int given;
    unsigned ready;
    char client[64];
} w;

static void on_ready(void *user, int fd, const struct sockaddr_storage *client)
{
    (void) user;
    w.ready++;
    w.given = fd;
    w.client[0] = '\0';
    if (client != NULL)
        uv_ip_name((const struct sockaddr *) client, w.client, sizeof(w.client));
}

static void dial(void)
{
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    w.fd = pair[0];
    atomic_fetch_add(&w.loop.connections, 1); /* as a listener does */
    bt_proxy_take(w.proxy, pair[1]);
}

static int open_loop(void **state)
{
    memset(&w, 0, sizeof(w));
    w.given = -1;
    bt_log_set(BT_LOG_ERROR, false, 2);
    assert_int_equal(bt_loop_init(&w.loop, 0), 0);
    assert_int_equal(bt_proxy_new(&w.proxy, &w.loop, 5000, on_ready, NULL), 0);
    return 0;
}

static int close_loop(void **state)
{
    bt_proxy_close(w.proxy);
    turn(&w.loop, 3);
    bt_loop_fini(&w.loop);
    return 0;
}

static void say(const char *p, size_t n)
{
    assert_int_equal(send(w.fd, p, n, MSG_NOSIGNAL), n);
}

static void hang_up(void)
{
    close(w.fd);
    if (w.given >= 0)
        close(w.given);
    w.given = -1;
}

static bool is_closed(void)
{
    char byte;

    return recv(w.fd, &byte, 1, MSG_DONTWAIT) == 0;
}

/* Whatever comes with the header stays for whoever reads next. */
static void no_byte_behind_it_is_taken(void **state)
{
    static const char all[] = SIGNATURE "\x21\x11\x00\x13" V4 "\x02\x00\x04hostGET / HTTP/1.1\r\n";
    const size_t header = 16 + 0x13, n = sizeof(all) - 1;
    char rest[64];

    for (size_t cut = 0; cut <= n; cut++) {
        dial();
        w.ready = 0;
        if (cut > 0)
            say(all, cut);
        turn(&w.loop, 2);
        assert_int_equal(w.ready, cut >= header);
        if (cut < n)
            say(all + cut, n - cut);
        TURN_UNTIL(&w.loop, w.ready == 1);
        assert_string_equal(w.client, "203.0.113.7");
        assert_int_equal(recv(w.given, rest, sizeof(rest), 0), n - header);
        assert_memory_equal(rest, "GET / HTTP/1.1\r\n", n - header);
        assert_int_equal(bt_proxy_waiting(w.proxy), 0);
        hang_up();
    }
    assert_int_equal(w.loop.connections, n + 1); /* whoever has the socket counts it out */
}

static void who_sends_none_is_closed(void **state)
{
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        dial();
        say(bad[i].bytes.p, bad[i].bytes.n);
        TURN_UNTIL(&w.loop, bt_proxy_waiting(w.proxy) == 0);
        hang_up();
    }
    dial(); /* leaves before it, and in its middle */
    shutdown(w.fd, SHUT_WR);
    TURN_UNTIL(&w.loop, bt_proxy_waiting(w.proxy) == 0);
    assert_true(is_closed());
    hang_up();
    dial();
    say(SIGNATURE, 12);
    shutdown(w.fd, SHUT_WR);
    TURN_UNTIL(&w.loop, bt_proxy_waiting(w.proxy) == 0);
    hang_up();
    assert_int_equal(w.ready, 0);
    assert_int_equal(w.loop.connections, 0);
}

static void who_says_nothing_is_closed_in_time(void **state)
{
    bt_proxy_t *quick;

    assert_int_equal(bt_proxy_new(&quick, &w.loop, 30, on_ready, NULL), 0);
    bt_proxy_close(w.proxy);
    w.proxy = quick;
    dial();
    say(SIGNATURE, 12);
    TURN_UNTIL(&w.loop, bt_proxy_waiting(w.proxy) == 0);
    assert_true(is_closed());
    hang_up();
}

static void so_many_wait_and_the_oldest_goes_for_one_more(void **state)
{
    static int fds[BT_PROXY_WAITING_MAX + 1];

    for (unsigned i = 0; i <= BT_PROXY_WAITING_MAX; i++) {
        dial();
        fds[i] = w.fd;
    }
    assert_int_equal(bt_proxy_waiting(w.proxy), BT_PROXY_WAITING_MAX);
    w.fd = fds[0];
    assert_true(is_closed());
    w.fd = fds[1];
    assert_false(is_closed());
    bt_proxy_close(w.proxy);
    w.proxy = NULL;
    assert_true(is_closed());
    for (unsigned i = 0; i <= BT_PROXY_WAITING_MAX; i++)
        close(fds[i]);
    assert_int_equal(w.loop.connections, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_loop, close_loop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_are_read),
        cmocka_unit_test(an_address_on_a_unix_socket_is_the_proxys),
        cmocka_unit_test(what_is_malformed_is_refused),
        TEST(no_byte_behind_it_is_taken),
        TEST(who_sends_none_is_closed),
        TEST(who_says_nothing_is_closed_in_time),
        TEST(so_many_wait_and_the_oldest_goes_for_one_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
