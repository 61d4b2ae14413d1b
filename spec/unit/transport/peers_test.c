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
    (void) state;
    static const char *const wrong[] = {NULL, "", "sesamE", "sesam", "sesamesesame"};
    rig_t rig;

    rig_open(&rig, &(bt_kv_config_t){.token = "sesame"});
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        raw_dial(&raw, NULL, bt_kv_agent_port(rig.from.agent));
        raw_hello(&raw, rig.from.agent, wrong[i]);
        expect_no_table("has another token");
    }
    raw_dial(&raw, NULL, bt_kv_agent_port(rig.from.agent));
    raw_hello(&raw, rig.from.agent, "sesame");
    assert_int_equal(raw_read(&raw).type, BT_KV_HELLO);
    expect_tables();
    rig_close(&rig);
}

/* Whom it dials hears its hello first, and has to show the token as well. */
static void test_tables_only_for_the_token_of_whom_it_dials(void **state)
{
    (void) state;
    uint16_t port;
    rig_t rig;

    rig_open(&rig, &(bt_kv_config_t){.token = "sesame"});
    int listener = raw_listen(NULL, &port);
    bt_kv_room_t room = recv_from(&rig.to, 5, "127.0.0.1", port);
    raw_accept(&raw, listener);
    raw_hello(&raw, rig.to.agent, "open sesame");
    expect_no_table("has another token");
    expect_failure(&rig, room, "has another token: give both agents the same one");
    room = recv_from(&rig.to, 6, "127.0.0.1", port);
    raw_accept(&raw, listener);
    raw_hello(&raw, rig.to.agent, "sesame");
    expect_tables();
    rig_wait(&rig.to, NULL, room, BT_KV_FAILED);
    rig_release(&rig.to, NULL, room);
    close(listener);
    rig_close(&rig);
}

static void test_the_token_must_be_the_same(void **state)
{
    (void) state;
    static const struct {
        const char *from, *to;
        bool is_good;
    } cases[] = {{"sesame", "sesame", true},
                 {"sesame", "sesam", false},
                 {"sesame", NULL, false},
                 {NULL, "sesame", false},
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
                           "has another token: give both agents the same one");
        rig_close(&rig);
    }
}

/* ---- what pages hold ---- */
static void test_pages_of_another_format(void **state)
{
    (void) state;
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
    (void) state;
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
    (void) state;
    rig_t rig;

    open_pair(&rig, &(bt_kv_config_t){.host = HOST_A}, &(bt_kv_config_t){.host = HOST_B});
    /* Whoever dials it from elsewhere hears why not, and not even its hello. */
    raw_dial(&raw, HOST_A, bt_kv_agent_port(rig.from.agent));
    raw_hello(&raw, rig.from.agent, NULL);
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
    (void) state;
    struct sockaddr_in here = raw_address("127.0.0.2", 0), there;
    rig_t rig;

    rig_open(&rig, &(bt_kv_config_t){.host = "10.9.0.3"}); /* dialled from itself */
    expect_service(&rig, 5);
    raw_dial(&raw, "10.9.0.3", bt_kv_agent_port(rig.from.agent));
    raw_hello(&raw, rig.from.agent, NULL);
    assert_int_equal(raw_read(&raw).type, BT_KV_HELLO);
    expect_tables();
    there = raw_address("10.9.0.3", bt_kv_agent_port(rig.from.agent));
    memset(&raw, 0, sizeof(raw));
    raw.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(raw.fd, (struct sockaddr *) &here, sizeof(here)), 0);
    assert_int_equal(connect(raw.fd, (struct sockaddr *) &there, sizeof(there)), 0);
    raw_hello(&raw, rig.from.agent, NULL);
    assert_int_equal(raw_read(&raw).type, BT_KV_HELLO);
    expect_tables();
    rig_close(&rig);
}

static void test_opened_to_other_hosts(void **state)
{
    (void) state;
    rig_t rig;

    open_pair(&rig, &(bt_kv_config_t){.host = HOST_A, .allow_remote = true},
              &(bt_kv_config_t){.host = HOST_B, .allow_remote = true});
    expect_service(&rig, 5);
    raw_dial(&raw, HOST_A, bt_kv_agent_port(rig.from.agent));
    raw_hello(&raw, rig.from.agent, NULL);
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
    (void) state;
    rig_t rig;

    open_pair(&rig, &(bt_kv_config_t){.host = HOST_A, .token = "sesame"},
              &(bt_kv_config_t){.host = HOST_B, .token = "sesame"});
    expect_service(&rig, 5);
    raw_dial(&raw, HOST_A, bt_kv_agent_port(rig.from.agent));
    raw_hello(&raw, rig.from.agent, NULL);
    expect_no_table("has another token");
    rig_close(&rig);
    /* allow_remote opens nothing that a token closes. */
    open_pair(&rig, &(bt_kv_config_t){.host = HOST_A, .token = "sesame", .allow_remote = true},
              &(bt_kv_config_t){.host = HOST_B, .allow_remote = true});
    expect_failure(&rig, recv_from(&rig.to, 6, HOST_A, bt_kv_agent_port(rig.from.agent)),
                   "has another token");
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest here[] = {
        cmocka_unit_test(test_tables_only_for_the_token),
        cmocka_unit_test(test_tables_only_for_the_token_of_whom_it_dials),
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
