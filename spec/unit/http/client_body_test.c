/* Bodies of answers: whatever chunks and reads cut them, what comes is what was sent. */
#include "http/client_rig.h"

/* What one read brings in short chunks is one piece of body; a long chunk is not moved. */
static void test_short_chunks_of_a_read_are_joined(void **state)
{
    char wire[4096], body[4096];
    rig_call_t c = {0};
    int n, len;

    int fd = start_and_read(&c);
    n = snprintf(wire, sizeof(wire), "%s",
                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                 "4\r\none \r\n4;x=y\r\ntwo \r\n6\r\nthree \r\n");
    n += snprintf(wire + n, sizeof(wire) - (size_t) n, "7d0\r\n%02000d\r\n3\r\nend\r\n2\r\nof", 7);
    len = snprintf(body, sizeof(body), "one two three %02000dendof it", 7);
    assert_int_equal(send(fd, wire, (size_t) n, MSG_NOSIGNAL), n);
    pump_until(c.body_len == (size_t) len - 3);
    assert_int_equal(c.bodies, 2); /* up to "three ", and from the long one on */
    assert_int_equal(c.call->body_bytes, len - 3);
    worker_write(fd, "\r\n3\r\n it\r\n0\r\n\r\n");
    pump_until(c.ends == 1);
    assert_int_equal(c.bodies, 3);
    assert_int_equal(c.body_len, len);
    assert_memory_equal(c.body, body, (size_t) len);
    close(fd);
    rig_drop(&c);
}

static unsigned draw(unsigned below)
{
    static uint64_t state = 1;

    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned) (state >> 33) % below;
}

/* An answer of so many bytes in chunks of all lengths, some with a leading zero or an extension. */
static size_t put_answer(char *wire, size_t size, const char *body, size_t bytes)
{
    size_t n =
        (size_t) snprintf(wire, size, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");

    for (size_t at = 0, chunk; at < bytes; at += chunk) {
        chunk = 1 + draw(draw(3) == 0 ? 1500 : 40);
        if (chunk > bytes - at)
            chunk = bytes - at;
        n += (size_t) snprintf(wire + n, size - n, draw(9) == 0 ? "0%zX%s\r\n" : "%zx%s\r\n", chunk,
                               draw(9) == 0 ? ";x" : "");
        memcpy(wire + n, body + at, chunk);
        memcpy(wire + n + chunk, "\r\n", 2);
        n += chunk + 2;
    }
    return n +
           (size_t) snprintf(wire + n, size - n, draw(2) == 0 ? "0\r\n\r\n" : "0\r\nT: 1\r\n\r\n");
}

static void pause_sometimes(rig_call_t *c, void *arg)
{
    (void) arg;
    if (draw(3) == 0)
        bt_call_pause(c->call);
}

/* However chunks and reads cut it, and whenever the call pauses, the body is what was sent. */
static void test_any_chunks_in_any_reads(void **state)
{
    rig_call_t c = {.at = RIG_ON_BODY, .act = pause_sometimes};
    char body[sizeof(c.body)], wire[65536];

    for (size_t i = 0; i < sizeof(body); i++)
        body[i] = "\r\n0a"[draw(4)];
    for (unsigned round = 0; round < 200; round++) {
        const size_t bytes = 1 + draw(sizeof(body)),
                     n = put_answer(wire, sizeof(wire), body, bytes);
        const int fd = start_and_read(&c);
        for (size_t at = 0, piece; at < n; at += piece) {
            piece = 1 + draw(draw(2) == 0 ? 30 : 4000);
            if (piece > n - at)
                piece = n - at;
            assert_int_equal(send(fd, wire + at, piece, MSG_NOSIGNAL), piece);
            pump();
            bt_call_resume(c.call);
        }
        pump_until((c.ends == 0 ? bt_call_resume(c.call) : (void) 0, c.ends == 1));
        assert_int_equal(c.body_len, bytes);
        assert_memory_equal(c.body, body, bytes);
        close(fd);
        pump_until(bt_upstream_idle_count(rig.up) == 0);
    }
    rig_drop(&c);
}

int main(void)
{
#define SPEC(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {SPEC(test_short_chunks_of_a_read_are_joined),
                                       SPEC(test_any_chunks_in_any_reads)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
