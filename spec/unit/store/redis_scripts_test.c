/* The names of scripts, against RFC 3174's examples and against a server. */
#include "redis_server.h"

#include "../loop/util.h"

#include "base/sha1.h"
#include "store/redis_scripts.h"

static void test_sha1(void **state)
{
    static const struct {
        const char *text, *hex;
    } known[] = {
        {"", "da39a3ee5e6b4b0d3255bfef95601890afd80709"},
        {"abc", "a9993e364706816aba3e25717850c26c9cd0d89d"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "84983e441c3bd26ebaae4aa1f95129e5e54670f1"},
        {"0123456701234567012345670123456701234567012345670123456701234567",
         "e0c094e867ef46c350ef54a7f59dd60bed92ae83"},
    };
    char hex[BT_SHA1_HEX + 1];

    for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        bt_sha1_hex(bt_str(known[i].text), hex);
        assert_string_equal(hex, known[i].hex);
    }
}

/* The server compiles each text, and calls it as we do. */
static void test_scripts_load(void **state)
{
    redis_server_t *server = *state;

    for (unsigned i = 0; i < BT_REDIS_SCRIPT_COUNT; i++) {
        bt_str_t text = bt_redis_script_text((enum bt_redis_script) i);
        redisReply *reply = redis_ask(server, "SCRIPT LOAD %b", text.p, text.n);
        assert_int_equal(reply->type, REDIS_REPLY_STRING);
        assert_string_equal(reply->str, bt_redis_script_sha((enum bt_redis_script) i).p);
        freeReplyObject(reply);
    }
}

int main(void)
{
    static redis_server_t server;
    const struct CMUnitTest alone[] = {cmocka_unit_test(test_sha1)};
    const struct CMUnitTest served[] = {cmocka_unit_test_prestate(test_scripts_load, &server)};
    int failed = cmocka_run_group_tests(alone, NULL, NULL);

    if (redis_program() == NULL)
        return failed != 0 ? failed : 77;
    redis_start(&server, NULL);
    failed += cmocka_run_group_tests(served, NULL, NULL);
    redis_end(&server);
    return failed;
}
