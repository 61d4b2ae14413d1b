/* What engines say of themselves, as their msgpack writes it; every member left out, of another type, or beyond its range. */
#include "cluster/help.h"
#include "transfer/registration_message.h"

#include <stdio.h>

static char bytes[600];
static size_t n;

static void put(const char *text)
{
    const size_t len = strlen(text);

    bytes[n++] = '\xd9';
    bytes[n++] = (char) len;
    memcpy(bytes + n, text, len);
    n += len;
}

struct member {
    const char *key, *text; /* text NULL: the number */
    unsigned number;
};

static const struct member p2p[] = {
    {"type", "P", 0}, {"http_address", "10.0.0.1:8000", 0}, {"zmq_address", "10.0.0.1:14579", 0}};
static const struct member moriio[] = {
    {"type", "D", 0},
    {"http_address", "10.0.0.2:8000", 0},
    {"zmq_address", "host:10.0.0.2,handshake:6301,notify:61005", 0},
    {"dp_size", NULL, 2},
    {"tp_size", NULL, 4},
    {"transfer_mode", "READ", 0}};
#define P2P_COUNT 3U
#define MORIIO_COUNT 6U

/* All members; the one at `at` is replaced, or left out when instead is NULL. */
static bt_str_t write_map(const struct member *all, unsigned count, unsigned at,
                          const struct member *instead)
{
    n = 0;
    bytes[n++] = (char) (0x80 | (count - (at < count && instead == NULL)));
    for (unsigned i = 0; i < count; i++) {
        const struct member *m = i == at ? instead : &all[i];
        if (m == NULL)
            continue;
        put(all[i].key);
        if (m->text != NULL) {
            put(m->text);
            continue;
        }
        bytes[n++] = '\xce';
        for (int shift = 24; shift >= 0; shift -= 8)
            bytes[n++] = (char) (m->number >> shift);
    }
    return (bt_str_t){bytes, n};
}

static void both_kinds(void **state)
{
    bt_registration_message_t m;
    const char *why;

    assert_int_equal(bt_registration_read(BT_REGISTRATION_P2P_NCCL,
                                          write_map(p2p, P2P_COUNT, 99, NULL), &m, &why),
                     0);
    assert_int_equal(m.role, BT_ROLE_PREFILL);
    assert_string_equal(m.http_address, "10.0.0.1:8000");
    assert_string_equal(m.word.kv_address, "10.0.0.1:14579");
    assert_int_equal(m.word.dp_size, 0);
    assert_int_equal(m.word.mode, BT_TRANSFER_UNKNOWN);
    assert_int_equal(bt_registration_read(BT_REGISTRATION_MORIIO,
                                          write_map(moriio, MORIIO_COUNT, 99, NULL), &m, &why),
                     0);
    assert_int_equal(m.role, BT_ROLE_DECODE);
    assert_int_equal(m.word.dp_size, 2);
    assert_int_equal(m.word.tp_size, 4);
    assert_int_equal(m.word.mode, BT_TRANSFER_READ);
}

static void greetings_say_nothing(void **state)
{
    const struct member hello = {"type", "HELLO", 0};
    bt_registration_message_t m;
    const char *why;

    assert_int_equal(bt_registration_read(BT_REGISTRATION_MORIIO,
                                          write_map(moriio, MORIIO_COUNT, 0, &hello), &m, &why),
                     BT_E_AGAIN);
}

static void check_refused(enum bt_registration_kind kind, bt_str_t payload, const char *part)
{
    bt_registration_message_t m;
    const char *why = "";

    if (bt_registration_read(kind, payload, &m, &why) != BT_E_INVAL || strstr(why, part) == NULL)
        fail_msg("%s: \"%s\"", part, why);
}

static void every_member_is_needed(void **state)
{
    static const char *const words[] = {"type",    "http_address", "zmq_address",
                                        "dp_size", "tp_size",      "transfer_mode"};
    const struct member number = {"", NULL, 7}, text = {"", "x", 0};

    for (unsigned i = 0; i < MORIIO_COUNT; i++) {
        check_refused(BT_REGISTRATION_MORIIO, write_map(moriio, MORIIO_COUNT, i, NULL), words[i]);
        check_refused(BT_REGISTRATION_MORIIO,
                      write_map(moriio, MORIIO_COUNT, i, moriio[i].text != NULL ? &number : &text),
                      words[i]);
    }
    for (unsigned i = 0; i < P2P_COUNT; i++)
        check_refused(BT_REGISTRATION_P2P_NCCL, write_map(p2p, P2P_COUNT, i, NULL), words[i]);
}

static void what_does_not_fit(void **state)
{
    char longer[300];
    const struct member zero = {"", NULL, 0}, many = {"", NULL, 65536}, both = {"", "PD", 0},
                        half = {"", "read", 0}, in_id = {"", "a___decode_addr_b:1", 0},
                        other = {"", "10.0.0.1:1", 0}, too_long = {"", longer, 0};

    memset(longer, 'x', 250);
    longer[250] = '\0';
    check_refused(BT_REGISTRATION_MORIIO, write_map(moriio, MORIIO_COUNT, 3, &zero), "dp_size");
    check_refused(BT_REGISTRATION_MORIIO, write_map(moriio, MORIIO_COUNT, 4, &many), "tp_size");
    check_refused(BT_REGISTRATION_MORIIO, write_map(moriio, MORIIO_COUNT, 0, &both), "type");
    check_refused(BT_REGISTRATION_MORIIO, write_map(moriio, MORIIO_COUNT, 5, &half),
                  "transfer_mode");
    check_refused(BT_REGISTRATION_MORIIO, write_map(moriio, MORIIO_COUNT, 2, &other),
                  "zmq_address");
    check_refused(BT_REGISTRATION_P2P_NCCL, write_map(p2p, P2P_COUNT, 2, &in_id), "zmq_address");
    check_refused(BT_REGISTRATION_P2P_NCCL, write_map(p2p, P2P_COUNT, 1, &too_long),
                  "http_address");
    check_refused(BT_REGISTRATION_P2P_NCCL, write_map(p2p, P2P_COUNT, 2, &too_long), "zmq_address");
    check_refused(BT_REGISTRATION_P2P_NCCL, BT_STR("\x91\x01"), "no map");
    check_refused(BT_REGISTRATION_P2P_NCCL, BT_STR("{\"type\":\"P\"}"), "not msgpack");
    check_refused(BT_REGISTRATION_P2P_NCCL, BT_STR(""), "not msgpack");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_kinds),
        cmocka_unit_test(greetings_say_nothing),
        cmocka_unit_test(every_member_is_needed),
        cmocka_unit_test(what_does_not_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
