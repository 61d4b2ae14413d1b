/* Whom an agent talks to, and what it says before it knows that it may. With the argument "remote": between two hosts, as remote.sh makes them out of one.
 */
#include "raw_peer.h"

#include <stdio.h>

#define HOST_A "10.9.0.1" /* who dials this one comes from the other one */
#define HOST_B "10.9.0.2"

static const uint32_t to[4] = {9, 3, 4, 5};
static raw_t raw;

/* All that it says, up to its end: the reason, and nothing else. */
static void expect_no_table(const char *why)
{
    bt_kv_frame_t frame = raw_read(&raw);

    assert_int_equal(frame.type, BT_KV_CLOSE);
    raw_expect(frame.close.reason, why);
    assert_true(bt_str_find(frame.close.reason, BT_STR("sesame")) < 0);
    assert_int_equal(raw_read(&raw).type, 0);
    raw_close(&raw);
}

static void expect_tables(void)
{
    assert_int_equal(raw_read(&raw).type, BT_KV_REGION);
    assert_int_equal(raw_read(&raw).type, BT_KV_LAYOUT);
    raw_close(&raw);
}

static bt_kv_room_t recv_from(rig_side_t *side, uint64_t id, const char *host, uint16_t port)
{
    bt_kv_room_t room;
    bt_kv_source_t source = {.host = host, .port = port};
    bt_kv_recv_t spec = {.room = id,
                         .layout = side->layout,
                         .pages = to,
                         .page_count = 4,
                         .sources = &source,
                         .source_count = 1};

    assert_int_equal(bt_kv_recv_open(side->agent, &spec, &room), 0);
    return room;
}

static void expect_failure(rig_t *rig, bt_kv_room_t room, const char *why)
{
    rig_wait(&rig->to, &rig->from, room, BT_KV_FAILED);
    raw_expect(bt_str(rig_error(&rig->to, room)), why);
    rig_release(&rig->to, &rig->from, room);
}

static uint64_t rig_refused(const rig_t *rig)
{
    bt_kv_agent_stats_t stats;

    bt_kv_agent_stats(rig->from.agent, &stats);
    return stats.refused_frames;
}

static void open_pair(rig_t *rig, const bt_kv_config_t *from, const bt_kv_config_t *to_config)
{
    rig_side_open(&rig->from, "prefill", from, 7, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
    rig_side_open(&rig->to, "decode", to_config, 0, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
}

/* One room: its pages move. */
static void expect_service(rig_t *rig, uint64_t id)
{
    const char *host = rig->from.config.host;
    bt_kv_room_t send = rig_send_open(rig, id, 1);
    bt_kv_room_t recv = recv_from(&rig->to, id, host != NULL ? host : "127.0.0.1",
                                  bt_kv_agent_port(rig->from.agent));

    assert_int_equal(rig_send(rig, send, 0, to, 4, true, false), 0);
    rig_wait(&rig->to, &rig->from, recv, BT_KV_SUCCESS);
    rig_wait(&rig->from, &rig->to, send, BT_KV_SUCCESS);
    rig_release(&rig->to, &rig->from, recv);
    rig_release(&rig->from, &rig->to, send);
}

/* ---- with a token ---- */
static void test_tables_only_for_the_token(void **state)
{
    static const char *const wrong[] = {"sesamE", "sesam", "sesamesesame", "open\nsesame"};
    rig_t rig;

    rig_open(&rig, &(bt_kv_config_t){.token = "sesame"});
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        raw_dial(&raw, NULL, bt_kv_agent_port(rig.from.agent));
        assert_false(raw_prove(&raw, wrong[i], true));
        expect_no_table("has another token: give both sides the same one");
    }
    /* One that has none says hello at once. */
    raw_dial(&raw, NULL, bt_kv_agent_port(rig.from.agent));
    raw_hello(&raw, rig.from.agent);
    expect_no_table("has no proof of the token: give both sides the same one");
    raw_dial(&raw, NULL, bt_kv_agent_port(rig.from.agent));
    assert_true(raw_prove(&raw, "sesame", true));
    raw_hello(&raw, rig.from.agent);
    assert_int_equal(raw_read(&raw).type, BT_KV_HELLO);
    expect_tables();
    rig_close(&rig);
}

/* What it is sent in the handshake, and what it says to it, up to its proof. */
static void hear_proof(int listener, uint8_t proof[40])
{
    bt_kv_auth_t auth;
    uint8_t out[BT_KV_AUTH_OUT];
    const char *why;
    size_t n;

    raw_accept_only(&raw, listener);
    (void) bt_kv_auth_init(&auth, BT_KV_AUTH_PEERS, false, out);
    while (raw.n < 46)
        assert_true(raw_recv(&raw));
    assert_int_equal(bt_kv_auth_take(&auth, "any", raw.in, raw.n, out, &n, &why), 46);
    assert_int_equal(send(raw.fd, out, n, MSG_NOSIGNAL), n);
    while (raw.n < 46 + 40)
        assert_true(raw_recv(&raw));
    memcpy(proof, raw.in + 46, 40);
    raw.at = raw.n;
}

/* Whom it dials has to prove the token as well, before it hears a hello. */
static void test_tables_only_for_the_token_of_whom_it_dials(void **state)
{
    uint8_t proof[40];
    uint16_t port;
    rig_t rig;

    rig_open(&rig, &(bt_kv_config_t){.token = "sesame"});
    int listener = raw_listen(NULL, &port);
    bt_kv_room_t room = recv_from(&rig.to, 5, "127.0.0.1", port);
    hear_proof(listener, proof);
    proof[4] = BT_KV_AUTH_GREET + 3; /* its own proof as the answer: reflected */
    assert_int_equal(send(raw.fd, proof, sizeof(proof), MSG_NOSIGNAL), sizeof(proof));
    expect_no_table("has another token");
    expect_failure(&rig, room, "has another token: give both sides the same one");
    room = recv_from(&rig.to, 6, "127.0.0.1", port);
    raw_accept_only(&raw, listener);
    while (raw.n < 46)
        assert_true(raw_recv(&raw));
    raw.at = 46;
    raw_hello(&raw, rig.to.agent); /* no handshake at all, as a release before */
    expect_no_table("has no handshake of this protocol");
    expect_failure(&rig, room, "has no handshake of this protocol");
    room = recv_from(&rig.to, 7, "127.0.0.1", port);
    raw_accept_only(&raw, listener);
    assert_true(raw_prove(&raw, "sesame", false));
    assert_int_equal(raw_read(&raw).type, BT_KV_HELLO);
    raw_hello(&raw, rig.to.agent);
    expect_tables();
    rig_wait(&rig.to, NULL, room, BT_KV_FAILED);
    rig_release(&rig.to, NULL, room);
    close(listener);
    rig_close(&rig);
}

/* All that an honest dialler has said, said again; and what is said in between by somebody who has let the proof through. */
static void test_nothing_is_said_twice_or_changed(void **state)
{
    uint8_t said[256], out[BT_KV_AUTH_OUT];
    const char *why;
    bt_kv_auth_t auth;
    size_t n, said_n;
    rig_t rig;

    rig_open(&rig, &(bt_kv_config_t){.token = "sesame"});
    raw_dial(&raw, NULL, bt_kv_agent_port(rig.from.agent));
    said_n = bt_kv_auth_init(&auth, BT_KV_AUTH_PEERS, true, said);
    assert_int_equal(send(raw.fd, said, said_n, MSG_NOSIGNAL), said_n);
    while (raw.n < 40)
        assert_true(raw_recv(&raw));
    assert_int_equal(bt_kv_auth_take(&auth, "sesame", raw.in, raw.n, out, &n, &why), 40);
    memcpy(said + said_n, out, n);
    assert_int_equal(send(raw.fd, out, n, MSG_NOSIGNAL), n);
    while (raw.n < 80)
        assert_true(raw_recv(&raw));
    raw_close(&raw);
    raw_dial(&raw, NULL, bt_kv_agent_port(rig.from.agent));
    assert_int_equal(send(raw.fd, said, said_n + n, MSG_NOSIGNAL), said_n + n);
    while (raw.n < 40)
        assert_true(raw_recv(&raw));
    raw.at = 40; /* another challenge */
    expect_no_table("has another token");

    for (unsigned i = 0; i < 3; i++) {
        uint64_t before = rig_refused(&rig);
        raw_dial(&raw, NULL, bt_kv_agent_port(rig.from.agent));
        assert_true(raw_prove(&raw, "sesame", true));
        raw.out.seal = i == 0 ? NULL : raw.out.seal; /* no seal at all: another's */
        raw.auth.out.frames += i == 1;               /* one has been left out */
        raw_hello_bytes(&raw, rig.from.agent);
        if (i == 0)
            bt_kv_put_ping(&raw.out, 1, 1);
        raw.out.p[20] ^= i == 2; /* a bit of another */
        raw_flush(&raw);
        raw_expect(raw_read_type(&raw, BT_KV_CLOSE).close.reason, "somebody else has made");
        raw_close(&raw);
        assert_int_equal(rig_refused(&rig), before + 1);
    }
    rig_close(&rig);
}

/* A byte now and then is a sign of life, and nobody's. */
static void test_a_slow_stranger_goes(void **state)
{
    rig_t rig;

    for (unsigned i = 0; i < 2; i++) {
        rig_open(&rig, &(bt_kv_config_t){.token = i == 0 ? "sesame" : NULL, .dead_ms = 300});
        raw_dial(&raw, NULL, bt_kv_agent_port(rig.from.agent));
        struct pollfd fd = {.fd = raw.fd, .events = POLLIN};
        static const uint8_t slow[8] = {38, 0, 0, 0, BT_KV_AUTH_GREET};
        for (unsigned at = 0; poll(&fd, 1, 50) == 0; at++) {
            assert_true(at < 400);
            (void) !send(raw.fd, at < sizeof(slow) ? slow + at : slow + 7, 1, MSG_NOSIGNAL);
        }
        raw_expect(raw_read_type(&raw, BT_KV_CLOSE).close.reason, "no hello of");
        raw_close(&raw);
        rig_close(&rig);
    }
}

static void test_the_token_must_be_the_same(void **state)
{
    static const struct {
        const char *from, *to;
        bool is_good;
    } cases[] = {{"sesame", "sesame", true},
                 {"sesame", "sesam", false},
                 {"sesame", NULL, false},
                 {NULL, "sesame", false},
                 {"new\nold", "old\nnew", true}, /* while it is changed */
                 {"new\nold", "old", true},
                 {"new", "new\nold", true},
                 {"new", "old", false},
                 {"", "\n", false},
                 {NULL, NULL, true}};
    rig_t rig;

    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        open_pair(&rig, &(bt_kv_config_t){.token = cases[i].from},
                  &(bt_kv_config_t){.token = cases[i].to});
        if (cases[i].is_good)
            expect_service(&rig, 5);
        else
            expect_failure(&rig,
                           recv_from(&rig.to, 5, "127.0.0.1", bt_kv_agent_port(rig.from.agent)),
                           "give both sides the same one");
        rig_close(&rig);
    }
}

/* ---- what pages hold ---- */
static void test_pages_of_another_format(void **state)
{
    static const struct {
        const char *from, *to, *why;
    } cases[] = {
        {"dtype=float16 block_size=32", "dtype=float16 block_size=32", NULL},
        {"dtype=float16", "  dtype=float16 ", NULL},
        {"dtype=float16", NULL, NULL},
        {NULL, "dtype=float16", NULL},
        {"", "dtype=float16", NULL},
        {"dtype=bfloat16 block_size=32", "dtype=float16 block_size=16",
         "KV pages of dtype=bfloat16, agent decode of dtype=float16: set the same on both"},
        {"dtype=float16 block_size=32", "dtype=float16 block_size=16",
         "of block_size=32, agent decode of block_size=16"},
        {"dtype=float16", "dtype=float16 isa=amx", "of nothing, agent decode of isa=amx"},
        {"dtype=float16 isa=amx", "dtype=float16", "of isa=amx, agent decode of nothing"},
    };
    rig_t rig;

    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        open_pair(&rig, &(bt_kv_config_t){.kv_format = cases[i].from},
                  &(bt_kv_config_t){.kv_format = cases[i].to});
        if (cases[i].why == NULL) {
            expect_service(&rig, 5);
        } else {
            /* Whoever answers the dial finds it, and its reason goes to the other. */
            bt_kv_room_t room =
                recv_from(&rig.to, 5, "127.0.0.1", bt_kv_agent_port(rig.from.agent));
            rig_wait(&rig.to, &rig.from, room, BT_KV_FAILED);
            const char *why = rig_error(&rig.to, room);
            if (strstr(why, "decode") == NULL || strstr(why, "prefill") == NULL ||
                strstr(why, "set the same on both") == NULL)
                fail_msg("%s", why);
            rig_release(&rig.to, &rig.from, room);
        }
        rig_close(&rig);
    }
}

static void test_a_format_that_is_too_long(void **state)
{
    char text[BT_KV_FORMAT_MAX + 2], err[200];
    bt_kv_agent_t *agent = NULL;
    bt_kv_config_t config = {.name = "long", .kv_format = text};

    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(bt_kv_agent_open(&agent, &config, err, sizeof(err)), BT_E_INVAL);
    assert_non_null(strstr(err, "kv_format has 241 bytes, at most 240"));
    assert_null(agent);
}

/* ---- two hosts ---- */
static void test_without_a_token_no_other_host(void **state)
{
    rig_t rig;

    open_pair(&rig, &(bt_kv_config_t){.host = HOST_A}, &(bt_kv_config_t){.host = HOST_B});
    /* Whoever dials it from elsewhere hears why not, and not even its hello. */
    raw_dial(&raw, HOST_A, bt_kv_agent_port(rig.from.agent));
    raw_hello(&raw, rig.from.agent);
    expect_no_table("give both agents the same token, or open both to other hosts "
                    "(allow_remote)");
    /* Nor does it say anything else to an agent elsewhere that it was to dial. */
    bt_kv_room_t room = recv_from(&rig.to, 5, HOST_A, bt_kv_agent_port(rig.from.agent));
    expect_failure(&rig, room, "(allow_remote)");
    uint16_t port;
    int listener = raw_listen(HOST_A, &port);
    room = recv_from(&rig.to, 6, HOST_A, port);
    expect_failure(&rig, room, "(allow_remote)");
    memset(&raw, 0, sizeof(raw));
    raw.fd = accept(listener, NULL, NULL);
    expect_no_table("(allow_remote)");
    close(listener);
    rig_close(&rig);
}

/* One that listens on an address of the network serves its own host all the same. */
static void test_without_a_token_its_own_host(void **state)
{
    struct sockaddr_in here = raw_address("127.0.0.2", 0), there;
    rig_t rig;

    rig_open(&rig, &(bt_kv_config_t){.host = "10.9.0.3"}); /* dialled from itself */
    expect_service(&rig, 5);
    raw_dial(&raw, "10.9.0.3", bt_kv_agent_port(rig.from.agent));
    raw_hello(&raw, rig.from.agent);
    assert_int_equal(raw_read(&raw).type, BT_KV_HELLO);
    expect_tables();
    there = raw_address("10.9.0.3", bt_kv_agent_port(rig.from.agent));
    memset(&raw, 0, sizeof(raw));
    raw.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(raw.fd, (struct sockaddr *) &here, sizeof(here)), 0);
    assert_int_equal(connect(raw.fd, (struct sockaddr *) &there, sizeof(there)), 0);
    raw_hello(&raw, rig.from.agent);
    assert_int_equal(raw_read(&raw).type, BT_KV_HELLO);
    expect_tables();
    rig_close(&rig);
}

static void test_opened_to_other_hosts(void **state)
{
    rig_t rig;

    open_pair(&rig, &(bt_kv_config_t){.host = HOST_A, .allow_remote = true},
              &(bt_kv_config_t){.host = HOST_B, .allow_remote = true});
    expect_service(&rig, 5);
    raw_dial(&raw, HOST_A, bt_kv_agent_port(rig.from.agent));
    raw_hello(&raw, rig.from.agent);
    assert_int_equal(raw_read(&raw).type, BT_KV_HELLO);
    expect_tables();
    rig_close(&rig);
    /* One side alone does not do. */
    open_pair(&rig, &(bt_kv_config_t){.host = HOST_A},
              &(bt_kv_config_t){.host = HOST_B, .allow_remote = true});
    expect_failure(&rig, recv_from(&rig.to, 6, HOST_A, bt_kv_agent_port(rig.from.agent)),
                   "closed the link");
    expect_failure(&rig, recv_from(&rig.to, 7, HOST_A, bt_kv_agent_port(rig.from.agent)),
                   "(allow_remote)");
    rig_close(&rig);
}

static void test_with_a_token_from_anywhere(void **state)
{
    rig_t rig;

    open_pair(&rig, &(bt_kv_config_t){.host = HOST_A, .token = "sesame"},
              &(bt_kv_config_t){.host = HOST_B, .token = "sesame"});
    expect_service(&rig, 5);
    raw_dial(&raw, HOST_A, bt_kv_agent_port(rig.from.agent));
    raw_hello(&raw, rig.from.agent);
    expect_no_table("has no proof of the token");
    rig_close(&rig);
    /* allow_remote opens nothing that a token closes. */
    open_pair(&rig, &(bt_kv_config_t){.host = HOST_A, .token = "sesame", .allow_remote = true},
              &(bt_kv_config_t){.host = HOST_B, .allow_remote = true});
    expect_failure(&rig, recv_from(&rig.to, 6, HOST_A, bt_kv_agent_port(rig.from.agent)),
                   "has no proof of the token");
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest here[] = {
        cmocka_unit_test(test_tables_only_for_the_token),
        cmocka_unit_test(test_tables_only_for_the_token_of_whom_it_dials),
        cmocka_unit_test(test_nothing_is_said_twice_or_changed),
        cmocka_unit_test(test_a_slow_stranger_goes),
        cmocka_unit_test(test_the_token_must_be_the_same),
        cmocka_unit_test(test_pages_of_another_format),
        cmocka_unit_test(test_a_format_that_is_too_long),
    };
    const struct CMUnitTest remote[] = {
        cmocka_unit_test(test_without_a_token_no_other_host),
        cmocka_unit_test(test_without_a_token_its_own_host),
        cmocka_unit_test(test_opened_to_other_hosts),
        cmocka_unit_test(test_with_a_token_from_anywhere),
    };

    bt_kv_rig_use(&(bt_kv_suite_t){.backends = BT_KV_MEM | BT_KV_TCP});
    if (getenv("BATON_TWO_HOSTS") != NULL) /* remote.sh */
        return cmocka_run_group_tests(remote, NULL, NULL);
    return cmocka_run_group_tests(here, NULL, NULL);
}
