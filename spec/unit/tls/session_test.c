/* Bytes through a session: whole, in pieces, held up, cut. Who is trusted is in verify_test.c. */
#include "pair.h"

#include "tls/session.h"

#include <openssl/err.h>

static struct cert cert;
static const char *certs[2], *keys[2];

static bt_tls_server_config_t serving(void)
{
    return (bt_tls_server_config_t){.certs = certs, .keys = keys};
}

static int make_all(void **state)
{
    open_cert_dir();
    make_cert(&cert, "server", (struct wish){0});
    certs[0] = cert.cert_file;
    keys[0] = cert.key_file;
    return 0;
}

static int drop_all(void **state)
{
    free_cert(&cert);
    close_cert_dir();
    return 0;
}

static void open_default(bt_tls_server_t **s_p, bt_tls_client_t **c_p)
{
    *s_p = new_server(serving());
    *c_p = new_client((bt_tls_client_config_t){.ca = cert.cert_file});
    open_pair(*s_p, *c_p, "localhost", NULL);
}

static void close_all(bt_tls_server_t *s, bt_tls_client_t *c)
{
    close_pair();
    bt_tls_server_free(s);
    bt_tls_client_unref(c);
}

static void test_echo(void **state)
{
    bt_tls_server_t *s;
    bt_tls_client_t *c;
    bt_tls_info_t info;

    open_default(&s, &c);
    server.echo = true;
    shake();
    bt_stream_write(&client.s, NULL, "hello", 5);
    assert_int_equal(bt_stream_pending(&client.s), 5);
    STEP_UNTIL(client.got_n == 5, step());
    assert_memory_equal(client.got, "hello", 5);
    assert_int_equal(bt_stream_pending(&client.s), 0);
    assert_int_equal(bt_stream_written(&client.s), 5);
    assert_int_equal(client.sents, 1);
    assert_true(bt_tls_info(&server.s, &info));
    assert_string_equal(info.version, "TLSv1.3");
    assert_string_equal(info.server_name, "localhost");
    assert_null(info.peer);
    assert_false(info.is_resumed);
    assert_int_equal(bt_tls_server_counts(s)->done_13, 1);
    close_all(s, c);
}

/* Every border that there can be between two reads. */
static void test_a_byte_at_a_time(void **state)
{
    bt_tls_server_t *s;
    bt_tls_client_t *c;
    char text[3000];

    memset(text, 'x', sizeof(text));
    chunk = 1;
    open_default(&s, &c);
    server.echo = true;
    shake();
    bt_stream_write(&client.s, NULL, text, sizeof(text));
    STEP_UNTIL(client.got_n == sizeof(text), step());
    assert_memory_equal(client.got, text, sizeof(text));
    close_all(s, c);
}

/* Others use OpenSSL on the same thread, and may leave an error in its queue. */
static void test_errors_of_others(void **state)
{
    bt_tls_server_t *s;
    bt_tls_client_t *c;

    (void) state;
    open_default(&s, &c);
    server.echo = true;
    shake();
    chunk = 1; /* most reads find half a record */
    bt_stream_write(&client.s, NULL, "hello", 5);
    STEP_UNTIL(client.got_n == 5, {
        ERR_raise(ERR_LIB_USER, ERR_R_PASSED_INVALID_ARGUMENT);
        step();
    });
    assert_memory_equal(client.got, "hello", 5);
    bt_stream_close_after_flush(&server.s, 5000);
    STEP_UNTIL(client.eofs == 1, {
        ERR_raise(ERR_LIB_USER, ERR_R_PASSED_INVALID_ARGUMENT);
        step();
    });
    assert_int_equal(client.eof_rc, 0); /* it has said goodbye: that is no cut */
    ERR_clear_error();
    close_all(s, c);
}

/* What was written before the handshake was done leaves after it, in order. */
static void test_writes_wait_for_the_handshake(void **state)
{
    bt_tls_server_t *s;
    bt_tls_client_t *c;

    open_default(&s, &c);
    bt_stream_write(&server.s, NULL, "early", 5);
    turn(&loop, 2);
    assert_int_equal(bt_stream_pending(&server.s), 5);
    shake();
    STEP_UNTIL(client.got_n == 5, step());
    close_all(s, c);
}

/* The flight that answers the client's hello, and both tickets. */
static void test_a_step_of_the_handshake_is_sent_at_once(void **state)
{
    bt_tls_server_t *s;
    bt_tls_client_t *c;

    server_sends = 0;
    open_default(&s, &c);
    shake();
    assert_int_equal(server_sends, 2);
    close_all(s, c);
}

/* What a full socket has not taken of it follows by itself, and what is said next behind that. */
static void test_a_step_of_the_handshake_waits_for_the_socket(void **state)
{
    static const size_t rooms[] = {0, 1, 100};
    bt_tls_server_t *s;
    bt_tls_client_t *c;

    for (unsigned i = 0; i < sizeof(rooms) / sizeof(*rooms); i++) {
        server_room = rooms[i];
        open_default(&s, &c);
        server.echo = true;
        shake();
        bt_stream_write(&client.s, NULL, "hello", 5);
        STEP_UNTIL(client.got_n == 5, step());
        server_room = SIZE_MAX;
        assert_memory_equal(client.got, "hello", 5);
        assert_null(server.s.cipher->out);
        assert_null(server.s.cipher->writing);
        close_all(s, c);
    }
}

/* Application records on the wire, by their outer type. */
static unsigned count_records(void)
{
    unsigned count = 0;

    for (size_t at = 0; at + 5 <= tapped_n; at += 5 +
                                                  ((size_t) (unsigned char) tapped[at + 3] << 8) +
                                                  (size_t) (unsigned char) tapped[at + 4])
        count += tapped[at] == 23;
    return count;
}

static void test_slices_of_a_turn_are_one_record(void **state)
{
    bt_tls_server_t *s;
    bt_tls_client_t *c;
    static char tap[1 << 16];

    open_default(&s, &c);
    shake();
    for (int i = 0; i < 50; i++)
        step(); /* tickets go */
    tapped = tap;
    tapped_n = 0;
    bt_buf_t *buf = bt_buf_copy("data: x\n\n", 9);
    for (int i = 0; i < 100; i++)
        bt_stream_write(&server.s, buf, buf->data, 9);
    bt_buf_unref(buf);
    STEP_UNTIL(client.got_n == 900, step());
    assert_int_equal(count_records(), 1);
    tapped_n = 0;
    static char large[40000];
    bt_stream_write(&server.s, NULL, large, sizeof(large));
    bt_stream_write(&server.s, NULL, "end", 3);
    STEP_UNTIL(client.got_n == 900 + 40003, step());
    assert_int_equal(count_records(), 3); /* 16384, 16384, the rest with what stood behind it */
    tapped = NULL;
    close_all(s, c);
}

/* A reader that stops gets nothing more, not even what was read from the socket with it; a writer is held up. */
static void test_back_pressure(void **state)
{
    enum { TOTAL = 32 << 20 }; /* more than the sockets hold */
    bt_tls_server_t *s;
    bt_tls_client_t *c;
    char *bytes = malloc(TOTAL);

    for (size_t i = 0; i < TOTAL; i++)
        bytes[i] = (char) (i * 131 + (i >> 8) * 17 + (i >> 16));
    open_default(&s, &c);
    client.stop_after = 1000;
    shake();
    bt_stream_write(&server.s, NULL, bytes, TOTAL);
    STEP_UNTIL(client.got_n >= 1000, step());
    const size_t stopped_at = client.got_n;
    assert_true(stopped_at <= BT_BUF_STD_BYTES);
    uint64_t written = 0;
    do { /* until the wire and both sockets are full */
        written = bt_stream_written(&server.s);
        for (int i = 0; i < 200; i++)
            step();
    } while (bt_stream_written(&server.s) != written);
    assert_int_equal(client.got_n, stopped_at);
    assert_true(bt_stream_pending(&server.s) > 0);
    client.stop_after = 0;
    bt_stream_read_start(&client.s);
    assert_int_equal(client.got_n, stopped_at); /* never from inside a call */
    STEP_UNTIL(client.got_n == TOTAL, step());
    assert_memory_equal(client.got, bytes, TOTAL);
    STEP_UNTIL(bt_stream_pending(&server.s) == 0, step());
    free(bytes);
    close_all(s, c);
}

/* Stops in each callback, and goes on. */
static void test_stop_and_go(void **state)
{
    bt_tls_server_t *s;
    bt_tls_client_t *c;
    static char bytes[200000];

    open_default(&s, &c);
    client.stop_after = 1;
    shake();
    bt_stream_write(&server.s, NULL, bytes, sizeof(bytes));
    STEP_UNTIL(client.got_n == sizeof(bytes), {
        step();
        bt_stream_read_start(&client.s);
    });
    close_all(s, c);
}

static void test_end_and_cut(void **state)
{
    bt_tls_server_t *s;
    bt_tls_client_t *c;

    open_default(&s, &c);
    shake();
    bt_stream_write(&server.s, NULL, "all", 3);
    bt_stream_close_after_flush(&server.s, 5000);
    STEP_UNTIL(client.eofs == 1, step());
    assert_int_equal(client.eof_rc, 0);
    assert_int_equal(client.got_n, 3);
    close_all(s, c);

    open_default(&s, &c);
    shake();
    bt_stream_write(&server.s, NULL, "half", 4);
    STEP_UNTIL(client.got_n == 4, step());
    shutdown(client_wire, SHUT_WR); /* FIN without close_notify */
    STEP_UNTIL(client.eofs == 1, step());
    assert_true(client.eof_rc < 0);
    close_all(s, c);
}

static void test_cut_in_the_handshake(void **state)
{
    bt_tls_server_t *s;
    bt_tls_client_t *c;

    open_default(&s, &c);
    STEP_UNTIL(to_server > 0, step());
    shutdown(client_wire, SHUT_WR);
    STEP_UNTIL(client.connects == 1, turn(&loop, 1));
    assert_int_equal(client.connect_rc, BT_E_TLS);
    assert_non_null(strstr(bt_tls_why(&client.s), "closed"));
    shutdown(server_wire, SHUT_WR);
    STEP_UNTIL(server.handshakes == 1, turn(&loop, 1));
    assert_true(server.handshake_rc < 0);
    close_pair();
    assert_int_equal(bt_tls_server_counts(s)->failed[BT_TLS_FAILED_CLOSED], 1);
    bt_tls_server_free(s);
    bt_tls_client_unref(c);
}

static void test_plain_http_is_answered_in_plain(void **state)
{
    bt_tls_server_t *s = new_server(serving());

    open_pair(s, NULL, NULL, NULL);
    STEP_UNTIL(client.connects == 1, step());
    bt_stream_write(&client.s, NULL, "GET / HTTP/1.1\r\n", 16);
    STEP_UNTIL(server.handshakes == 1, step());
    assert_int_equal(server.handshake_rc, BT_E_PLAIN);
    bt_stream_write(&server.s, NULL, "HTTP/1.1 400 Bad Request\r\n", 26);
    bt_stream_close_after_flush(&server.s, 5000);
    STEP_UNTIL(client.eofs == 1, step());
    assert_int_equal(client.got_n, 26);
    assert_int_equal(bt_tls_server_counts(s)->failed[BT_TLS_FAILED_PLAIN], 1);
    close_all(s, NULL);
}

static void test_nonsense_fails(void **state)
{
    bt_tls_server_t *s = new_server(serving());

    open_pair(s, NULL, NULL, NULL);
    STEP_UNTIL(client.connects == 1, step());
    bt_stream_write(&client.s, NULL, "\x16\x03\x01\x00\x05hello", 10);
    STEP_UNTIL(server.handshakes == 1, step());
    assert_int_equal(server.handshake_rc, BT_E_TLS);
    assert_non_null(bt_tls_why(&server.s));
    bt_stream_close_after_flush(&server.s, 5000);
    STEP_UNTIL(client.eofs == 1, step()); /* behind an alert */
    assert_int_equal(client.got[0], 21);
    close_all(s, NULL);
}

/* A record that somebody has changed ends the session; nothing of it is passed on. */
static void test_changed_bytes_are_not_passed_on(void **state)
{
    bt_tls_server_t *s;
    bt_tls_client_t *c;
    char bytes[4096];
    ssize_t n = 0;

    open_default(&s, &c);
    shake();
    for (int i = 0; i < 50; i++)
        step();
    bt_stream_write(&server.s, NULL, "secret", 6);
    STEP_UNTIL((n = recv(server_wire, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0, turn(&loop, 1));
    bytes[n - 1] ^= 1;
    assert_int_equal(send(client_wire, bytes, (size_t) n, MSG_NOSIGNAL), n);
    STEP_UNTIL(client.eofs == 1, turn(&loop, 1));
    assert_true(client.eof_rc < 0);
    assert_int_equal(client.got_n, 0);
    close_all(s, c);
}

static SSL *ssl_of(struct side *side)
{
    return ((bt_tls_session_t *) side->s.cipher)->ssl;
}

static void test_no_renegotiation(void **state)
{
    bt_tls_server_t *s = new_server(serving());
    bt_tls_client_t *c = new_client((bt_tls_client_config_t){.ca = cert.cert_file});

    open_pair(s, c, "localhost", NULL);
    SSL_set_max_proto_version(ssl_of(&client), TLS1_2_VERSION);
    SSL_clear_options(ssl_of(&client), SSL_OP_NO_RENEGOTIATION);
    server.echo = true;
    shake();
    assert_string_equal(SSL_get_version(ssl_of(&client)), "TLSv1.2");
    assert_int_equal(SSL_renegotiate(ssl_of(&client)), 1);
    (void) SSL_do_handshake(ssl_of(&client));
    for (int i = 0; i < 50; i++)
        step();
    assert_int_equal(SSL_num_renegotiations(ssl_of(&server)), 0);
    assert_int_equal(bt_tls_server_counts(s)->done_12, 1);
    close_all(s, c);
}

/* Whoever asks for new keys again and again, and does not read the answers: they are not many, and nothing is lost. */
static void test_key_updates_do_not_pile_up(void **state)
{
    bt_tls_server_t *s;
    bt_tls_client_t *c;
    char bytes[4096];

    open_default(&s, &c);
    server.echo = true;
    shake();
    chunk = sizeof(bytes);
    const size_t before = bt_mem_bytes(BT_MEM_BUFFERS);
    for (int i = 0; i < 2000; i++) {
        assert_int_equal(SSL_key_update(ssl_of(&client), SSL_KEY_UPDATE_REQUESTED), 1);
        assert_int_equal(SSL_do_handshake(ssl_of(&client)), 1);
        turn(&loop, 1);
        carry(client_wire, server_wire, bytes); /* nothing back */
    }
    assert_true(bt_mem_bytes(BT_MEM_BUFFERS) < before + 4 * BT_BUF_STD_BYTES);
    bt_stream_write(&client.s, NULL, "alive", 5);
    STEP_UNTIL(client.got_n == 5, step());
    close_all(s, c);
}

static bool resumes(bt_tls_server_t *s, bt_tls_client_t *c, bt_tls_slot_t *slot)
{
    bt_tls_info_t info;

    open_pair(s, c, "localhost", slot);
    server.echo = true;
    shake();
    bt_stream_write(&client.s, NULL, "x", 1);
    STEP_UNTIL(client.got_n == 1, step()); /* with it the tickets have come */
    assert_true(bt_tls_info(&client.s, &info));
    close_pair();
    return info.is_resumed;
}

static void note_read(void *user, int rc, const char *err)
{
    (void) user;
    (void) err;
    assert_int_equal(rc, 0);
}

static void test_resumption(void **state)
{
    bt_tls_server_t *s = new_server(serving());
    bt_tls_client_t *c = new_client((bt_tls_client_config_t){.ca = cert.cert_file});
    bt_tls_slot_t slot = {0};
    char err[256];

    assert_false(resumes(s, c, &slot));
    assert_true(resumes(s, c, &slot));
    assert_int_equal(bt_tls_server_counts(s)->resumed, 1);
    assert_int_equal(bt_tls_server_reload(s, err, sizeof(err)), 0);
    assert_true(resumes(s, c, &slot)); /* the keys of tickets outlive a reload */
    bt_tls_server_age(s, 3700 * 1000);
    assert_true(resumes(s, c, &slot)); /* sealed by the key before, and renewed */
    bt_tls_server_age(s, 3 * 7200 * 1000);
    assert_false(resumes(s, c, &slot)); /* that key is gone */
    assert_true(resumes(s, c, &slot));
    slot.verified_ms -= 11 * 60 * 1000; /* no certificate was seen for so long */
    assert_false(resumes(s, c, &slot));
    assert_true(resumes(s, c, &slot));
    bt_tls_clients_look(true, note_read, NULL); /* other files, maybe */
    assert_false(resumes(s, c, &slot));
    bt_tls_slot_fini(&slot);
    bt_tls_server_free(s);
    bt_tls_client_unref(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_LOOP(test_echo),
        WITH_LOOP(test_a_byte_at_a_time),
        WITH_LOOP(test_errors_of_others),
        WITH_LOOP(test_writes_wait_for_the_handshake),
        WITH_LOOP(test_a_step_of_the_handshake_is_sent_at_once),
        WITH_LOOP(test_a_step_of_the_handshake_waits_for_the_socket),
        WITH_LOOP(test_slices_of_a_turn_are_one_record),
        WITH_LOOP(test_back_pressure),
        WITH_LOOP(test_stop_and_go),
        WITH_LOOP(test_end_and_cut),
        WITH_LOOP(test_cut_in_the_handshake),
        WITH_LOOP(test_plain_http_is_answered_in_plain),
        WITH_LOOP(test_nonsense_fails),
        WITH_LOOP(test_changed_bytes_are_not_passed_on),
        WITH_LOOP(test_no_renegotiation),
        WITH_LOOP(test_key_updates_do_not_pile_up),
        WITH_LOOP(test_resumption),
    };
    return cmocka_run_group_tests(tests, make_all, drop_all);
}
