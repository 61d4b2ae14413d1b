/* Servers that are none: what they send ends a connection, never the process. */
#include "rig.h"

#include "base/clock.h"

#include <stdio.h>

static int listener = -1, peer = -1;
static rig_t rig;
static char url[160];
static uint32_t op_ms;

static void listen_here(void)
{
    struct sockaddr_storage addr;

    listener = raw_listen(AF_INET, &addr);
    assert_true(listener >= 0);
    fcntl(listener, F_SETFL, O_NONBLOCK);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u",
             ntohs(((struct sockaddr_in *) &addr)->sin_port));
}

static bool take_peer(void)
{
    if (peer >= 0)
        close(peer);
    peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    return peer >= 0;
}

static void say(const char *bytes, size_t n)
{
    assert_int_equal(send(peer, bytes, n, MSG_NOSIGNAL), (ssize_t) n);
}

#define SAY(lit) say(lit, sizeof(lit) - 1)

/* Takes what it asks until `until` is in it. Probes are answered, in order: one that comes after `until` when that has been (pay). */
static unsigned owed;

static void pay(void)
{
    for (; owed > 0; owed--)
        SAY("+OK\r\n");
}

static void hear(const char *until)
{
    static const char probe[] = "baton:{baton}:probe\r\n";
    static char heard[65536];
    size_t n = 0;

    for (;;) {
        turn_once(&rig.loop);
        ssize_t got = recv(peer, heard + n, sizeof(heard) - n - 1, MSG_DONTWAIT);
        if (got > 0)
            n += (size_t) got;
        heard[n] = '\0';
        const char *found = strstr(heard, until);
        if (found == NULL)
            continue;
        for (const char *p = heard; (p = strstr(p, probe)) != NULL && p != found; p++) {
            owed++;
            if (p < found)
                pay();
        }
        return;
    }
}

static void begin(const char *user_info, uint32_t connect_ms)
{
    char whole[200];

    if (op_ms == 0)
        op_ms = 300;
    listen_here();
    snprintf(whole, sizeof(whole), "redis://%s%s", user_info, url + 8);
    rig_open(&rig, &(bt_store_config_t){.url = whole, .op_ms = op_ms, .connect_ms = connect_ms});
    TURN_UNTIL(&rig.loop, take_peer());
}

/* Connected, its probe answered. */
static void begin_up(void)
{
    begin("", 20000);
    hear("baton:{baton}:probe");
    SAY("+OK\r\n");
    TURN_UNTIL(&rig.loop, rig.ups == 1);
}

static void end(void)
{
    rig_close(&rig);
    close(listener);
    if (peer >= 0)
        close(peer);
    listener = peer = -1;
    op_ms = 0;
}

static void expect_gone(const char *why)
{
    /* Before it is given up for being silent it is UNAVAILABLE for being late. */
    TURN_UNTIL(&rig.loop, rig_health(&rig) > BT_STORE_STARTING &&
                              strstr(rig_why(&rig), "no answer in 300 ms") == NULL);
    if (strstr(rig_why(&rig), why) == NULL)
        fail_msg("%s", rig_why(&rig));
    TURN_UNTIL(&rig.loop, take_peer()); /* it dials again */
}

static void test_garbage(void **state)
{
    static const struct {
        const char *text, *why;
    } texts[] = {
        {"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks no Redis"},
        {"hello\r\n", "speaks no Redis"},
        {"\r\n\r\n", "speaks no Redis"},
        {"*-7\r\n", "speaks no Redis"},
        {"*2000000000\r\n", "speaks no Redis"}, /* no memory is asked for */
        {"$99999999\r\n", "no answer in 1200 ms"},
    };

    for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        begin("", 20000);
        hear("baton:{baton}:probe");
        say(texts[i].text, strlen(texts[i].text));
        expect_gone(texts[i].why);
        end();
    }
}

/* What is not asked for has no receiver: hiredis' asynchronous layer would end the process here. */
static void test_unasked(void **state)
{
    begin_up();
    SAY("+OK\r\n+OK\r\n$3\r\nabc\r\n");
    expect_gone("speaks unasked");
    end();
    begin("", 20000);
    SAY("-ERR max number of clients reached\r\n");
    close(peer);
    peer = -1;
    TURN_UNTIL(&rig.loop, rig_health(&rig) > BT_STORE_STARTING);
    end();
}

/* More answers than questions, in one packet with the right ones. */
static void test_one_too_many(void **state)
{
    told_t told = {0};

    begin_up();
    bt_store_op_t op = OP(CELL_GET, "c", .cb = rig_note, .user = &told);
    bt_store_do(rig.client, &op);
    hear("baton:{");
    SAY("$1\r\nx\r\n$1\r\ny\r\n");
    TURN_UNTIL(&rig.loop, told.times == 1);
    assert_int_equal(told.rc, 0);
    assert_string_equal(told.text, "x");
    expect_gone("speaks unasked");
    end();
}

/* Well-formed replies of the wrong shape, for every op. */
static void test_wrong_shapes(void **state)
{
    static const char *const shapes[] = {
        "+OK\r\n",
        ":1\r\n",
        "$1\r\nx\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*1\r\n*0\r\n",
        "*1\r\n$-1\r\n",
        "*2\r\n:0\r\n:0\r\n",
        "*3\r\n:1\r\n:-1\r\n:1\r\n",
        "*3\r\n$1\r\na\r\n:1\r\n:1\r\n",
        "*3\r\n$3\r\n1-1\r\n:0\r\n$1\r\nx\r\n",
        "-\r\n",
        "-ERR \x1b[31mred\r\n",
        "-NOSCRIPT again\r\n",
        "*2\r\n$1\r\nf\r\n*1\r\n+x\r\n",
    };

    op_ms = 5000; /* every one of these is an answer */
    begin_up();
    for (int what = 0; what <= BT_STORE_LOG_READ; what++)
        for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            told_t told = {0};
            bt_store_op_t op = {.what = (enum bt_store_what) what,
                                .space = BT_STR("s"),
                                .key = BT_STR("k"),
                                .field = BT_STR("1-1"),
                                .value = BT_STR("v"),
                                .limit = 5,
                                .amount = 1,
                                .window_ms = 1000,
                                .ttl_ms = 1000,
                                .cb = rig_note,
                                .user = &told};
            bt_store_do(rig.client, &op);
            hear("baton:{s}:k");
            say(shapes[i], strlen(shapes[i]));
            if (strncmp(shapes[i], "-NOSCRIPT", 9) == 0) {
                turn(&rig.loop, 20);
                if (told.times == 0) { /* sent once more, and not a third time */
                    hear("baton:{s}:k");
                    say(shapes[i], strlen(shapes[i]));
                }
            }
            pay();
            TURN_UNTIL(&rig.loop, told.times == 1);
            if (told.rc != 0 && told.rc != BT_E_STORE)
                fail_msg("op %d, shape %u: %s", what, i, told.error);
            assert_null(strchr(told.error, '\x1b'));
        }
    end();
}

/* What a server says that cannot serve now: degraded with its words, and up again when it can. */
static void test_states(void **state)
{
    static const char *const errors[] = {
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-MOVED 3999 127.0.0.1:6381\r\n",
        "-MISCONF Errors writing to the AOF file\r\n",
        "-ERR Error running script (call to f_1): @user_script: 5: -OOM command not allowed\r\n",
    };

    begin("", 20000);
    for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        char words[64];
        hear("baton:{baton}:probe");
        say(errors[i], strlen(errors[i]));
        snprintf(words, sizeof(words), "%.*s", (int) strcspn(errors[i] + 1, "\r"), errors[i] + 1);
        TURN_UNTIL(&rig.loop, strstr(rig_why(&rig), words) != NULL);
        assert_int_equal(rig_health(&rig), BT_STORE_DEGRADED);
        assert_int_equal(rig.ups, 0);
    }
    hear("baton:{baton}:probe");
    SAY("+OK\r\n");
    TURN_UNTIL(&rig.loop, rig.ups == 1);
    end();
}

/* What Redis 7 adds to an error from inside a script is not shown. */
static void test_error_of_a_script(void **state)
{
    static const struct {
        const char *said, *shown;
    } errors[] = {
        {"WRONGTYPE Operation against a key script: 0123456789012345678901234567890123456789, on "
         "@user_script:8.",
         "WRONGTYPE Operation against a key"},
        {"WRONGTYPE x, on @user_script:8.", "WRONGTYPE x, on @user_script:8."},
        {"WRONGTYPE 01234567890123456789012345678901234567890123456789, on @user_script",
         "WRONGTYPE 01234567890123456789012345678901234567890123456789, on @user_script"},
    };
    char line[256];

    begin_up();
    for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        told_t told = {0};
        bt_store_op_t op = OP(TABLE_ALL, "t", .cb = rig_note, .user = &told);
        bt_store_do(rig.client, &op);
        hear("baton:{");
        snprintf(line, sizeof(line), "-%s\r\n", errors[i].said);
        say(line, strlen(line));
        TURN_UNTIL(&rig.loop, told.times == 1);
        assert_int_equal(told.rc, BT_E_INVAL);
        assert_string_equal(told.error, errors[i].shown);
    }
    end();
}

/* One that stands still for little more than a deadline, again and again: the ops of that moment fail, and that is all. */
static void test_short_stalls(void **state)
{
    op_ms = 1000;
    begin_up();
    for (unsigned round = 0; round < 3; round++) {
        told_t late[2] = {0}, next = {0};
        bt_store_op_t ops[2], op = OP(CELL_GET, "next", .cb = rig_note, .user = &next);
        for (unsigned i = 0; i < 2; i++) {
            ops[i] = OP(CELL_GET, "late", .cb = rig_note, .user = &late[i]);
            bt_store_do(rig.client, &ops[i]);
        }
        hear(":late");
        TURN_UNTIL(&rig.loop, !bt_store_client_is_up(rig.client));
        assert_int_equal(late[0].rc, BT_E_TOTAL_TIMEOUT);
        assert_int_equal(rig_ask(&rig, OP(CELL_GET, "c")).rc, BT_E_STORE_UNAVAILABLE);
        assert_int_equal(late[1].times, 1);
        hear("baton:{baton}:probe"); /* at once */
        assert_int_equal(rig_health(&rig), BT_STORE_UP);
        SAY("$-1\r\n$-1\r\n+OK\r\n");
        TURN_UNTIL(&rig.loop, bt_store_client_is_up(rig.client));
        bt_store_do(rig.client, &op);
        hear(":next");
        SAY("$1\r\nx\r\n");
        TURN_UNTIL(&rig.loop, next.times == 1);
        assert_string_equal(next.text, "x");
        assert_int_equal(rig_health(&rig), BT_STORE_UP);
        assert_int_equal(rig.ups, 1);
    }
    end();
}

/* Runs before the loop's own flush: the first time that the store is suspect its probe has not left. */
static void stand_still(uv_prepare_t *prepare)
{
    if (bt_store_client_is_up(rig.client))
        return;
    uv_prepare_stop(prepare);
    SAY("$-1\r\n");
    uint64_t until = bt_clock_ms() + op_ms + op_ms / 2;
    while (bt_clock_ms() < until)
        continue;
}

static void test_our_own_delay_of_a_probe(void **state)
{
    told_t told = {0};
    uv_prepare_t prepare;

    op_ms = 1000;
    begin_up();
    uv_prepare_init(&rig.loop.uv, &prepare);
    uv_prepare_start(&prepare, stand_still);
    bt_store_op_t op = OP(CELL_GET, "c", .cb = rig_note, .user = &told);
    bt_store_do(rig.client, &op);
    hear("baton:{");
    TURN_UNTIL(&rig.loop, !bt_store_client_is_up(rig.client));
    turn(&rig.loop, 10);
    assert_int_equal(rig_health(&rig), BT_STORE_UP);
    hear("baton:{baton}:probe");
    SAY("+OK\r\n");
    TURN_UNTIL(&rig.loop, bt_store_client_is_up(rig.client));
    assert_int_equal(rig.ups, 1);
    uv_close((uv_handle_t *) &prepare, NULL);
    turn(&rig.loop, 2);
    end();
}

/* A command that left late, and is not answered then: that is found out without another op. */
static void test_silent_after_our_own_delay(void **state)
{
    told_t told = {0};

    begin_up();
    bt_store_op_t op = OP(CELL_GET, "c", .cb = rig_note, .user = &told);
    bt_store_do(rig.client, &op);
    uint64_t until = bt_clock_ms() + op_ms + op_ms / 2;
    while (bt_clock_ms() < until)
        continue;
    TURN_UNTIL(&rig.loop, told.times == 1);
    assert_int_equal(told.rc, BT_E_TOTAL_TIMEOUT);
    assert_true(bt_store_client_is_up(rig.client));
    TURN_UNTIL(&rig.loop, !bt_store_client_is_up(rig.client));
    assert_int_equal(rig_health(&rig),
                     BT_STORE_UP); /* and not because the connection is given up */
    end();
}

/* The second step, and the way back: each probe is answered too late until one is not. */
static void test_late_again_and_again(void **state)
{
    told_t told = {0};

    op_ms = 600;
    begin_up();
    bt_store_op_t op = OP(CELL_GET, "c", .cb = rig_note, .user = &told);
    bt_store_do(rig.client, &op);
    hear("baton:{");
    rig_wait_health(&rig, BT_STORE_UNAVAILABLE);
    assert_int_equal(told.rc, BT_E_TOTAL_TIMEOUT);
    hear("baton:{baton}:probe");
    SAY("$-1\r\n+OK\r\n");
    for (unsigned i = 0; i < 2; i++) {
        hear("baton:{baton}:probe");
        uint64_t until = bt_clock_ms() + op_ms + op_ms / 2;
        while (bt_clock_ms() < until)
            turn_once(&rig.loop);
        SAY("+OK\r\n");
        turn(&rig.loop, 10);
        assert_int_equal(rig_health(&rig), BT_STORE_UNAVAILABLE);
    }
    do { /* this machine may be the late one */
        hear("baton:{baton}:probe");
        SAY("+OK\r\n");
        turn(&rig.loop, 10);
    } while (rig.ups == 1);
    assert_int_equal(rig.ups, 2);
    assert_int_equal(rig_health(&rig), BT_STORE_UP);
    end();
}

static void test_byte_by_byte(void **state)
{
    static const char reply[] = "*4\r\n$1\r\na\r\n$5\r\n1\r\n:2\r\n$1\r\nb\r\n$0\r\n\r\n";
    told_t told = {0};

    begin_up();
    bt_store_op_t op = OP(TABLE_ALL, "t", .cb = rig_note, .user = &told);
    bt_store_do(rig.client, &op);
    hear("baton:{");
    for (size_t i = 0; i + 1 < sizeof(reply); i++) {
        assert_int_equal(told.times, 0);
        say(reply + i, 1);
        turn_once(&rig.loop);
    }
    TURN_UNTIL(&rig.loop, told.times == 1);
    assert_int_equal(told.row_count, 2);
    assert_string_equal(told.values[0], "1\r\n:2");
    end();
}

static void test_silent_while_connecting(void **state)
{
    begin(":p@", 100);
    TURN_UNTIL(&rig.loop, rig_health(&rig) == BT_STORE_UNAVAILABLE);
    assert_non_null(strstr(rig_why(&rig), "no answer in 100 ms while connecting"));
    end();
}

static void test_closed_under_way(void **state)
{
    told_t told = {0};

    begin_up();
    bt_store_op_t op = OP(CELL_GET, "c", .cb = rig_note, .user = &told);
    bt_store_do(rig.client, &op);
    hear("baton:{");
    SAY("$100\r\nhalf");
    shutdown(peer, SHUT_RDWR);
    TURN_UNTIL(&rig.loop, told.times == 1);
    assert_int_equal(told.rc, BT_E_STORE_UNAVAILABLE);
    expect_gone("closed the connection");
    end();
}

/* Nobody takes what we write: it waits, its deadline passes, the connection goes. */
static void test_peer_that_does_not_read(void **state)
{
    static char large[1 << 20];
    told_t told[16] = {0};
    bt_store_op_t ops[16];

    begin_up();
    for (unsigned i = 0; i < 16; i++) {
        ops[i] =
            OP(CELL_SET, "c", .value = {large, sizeof(large)}, .cb = rig_note, .user = &told[i]);
        bt_store_do(rig.client, &ops[i]);
    }
    TURN_UNTIL(&rig.loop, told[15].times == 1);
    assert_true(told[15].rc == BT_E_TOTAL_TIMEOUT || told[15].rc == BT_E_STORE_UNAVAILABLE);
    expect_gone("no answer in 1200 ms");
    end();
}

static void test_reset(void **state)
{
    begin_up();
    close_with_reset(peer);
    peer = -1;
    expect_gone("onnection reset");
    end();
}

/* A name that cannot be asked for, without a packet (resolve_test.c says why), and a socket that is not there. */
static void test_nowhere(void **state)
{
    static const struct {
        const char *url, *why;
    } places[] = {
        {"redis://aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         "is not resolved"},
        {"unix:///nonexistent/redis.sock", "No such file"},
        {"redis://127.0.0.1:1", "onnection refused"},
        {"redis://[::1]:1", "connecting: "},
        {"sentinel://127.0.0.1:1,localhost:1/m", "sentinel "},
    };

    for (unsigned i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        rig_open(&rig, &(bt_store_config_t){.url = places[i].url, .op_ms = 300});
        rig_wait_health(&rig, BT_STORE_UNAVAILABLE);
        if (strstr(rig_why(&rig), places[i].why) == NULL)
            fail_msg("%s: %s", places[i].url, rig_why(&rig));
        assert_int_equal(rig_ask(&rig, OP(CELL_GET, "c")).rc, BT_E_STORE_UNAVAILABLE);
        rig_close(&rig);
    }
}

/* A listener whose queue is full drops what comes: a black hole that needs no network. */
static void test_black_hole(void **state)
{
    struct sockaddr_storage addr;
    int fillers[8], hole = raw_listen(AF_INET, &addr);

    listen(hole, 0);
    for (unsigned i = 0; i < 8; i++) {
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void) connect(fillers[i], (struct sockaddr *) &addr, sizeof(struct sockaddr_in));
    }
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u",
             ntohs(((struct sockaddr_in *) &addr)->sin_port));
    rig_open(&rig, &(bt_store_config_t){.url = url, .connect_ms = 80});
    rig_wait_health(&rig, BT_STORE_UNAVAILABLE);
    assert_non_null(strstr(rig_why(&rig), "no answer in 80 ms while connecting"));
    rig_close(&rig);
    for (unsigned i = 0; i < 8; i++)
        close(fillers[i]);
    close(hole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_unasked),
        cmocka_unit_test(test_one_too_many),
        cmocka_unit_test(test_wrong_shapes),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_error_of_a_script),
        cmocka_unit_test(test_short_stalls),
        cmocka_unit_test(test_our_own_delay_of_a_probe),
        cmocka_unit_test(test_silent_after_our_own_delay),
        cmocka_unit_test(test_late_again_and_again),
        cmocka_unit_test(test_byte_by_byte),
        cmocka_unit_test(test_silent_while_connecting),
        cmocka_unit_test(test_closed_under_way),
        cmocka_unit_test(test_peer_that_does_not_read),
        cmocka_unit_test(test_reset),
        cmocka_unit_test(test_nowhere),
        cmocka_unit_test(test_black_hole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
