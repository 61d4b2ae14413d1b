/* Traces of three kinds, their mistakes, and prompts whose beginnings are equal where ids are. */
#include "simulator/ceiling.h"

#include "base/err.h"
#include "unit.h"

#include <stdlib.h>
#include <unistd.h>

static char err[512];

static uint64_t endless(const bt_sim_trace_t *trace)
{
    uint64_t tokens = 0;

    assert_int_equal(bt_sim_ceiling_best(trace, BT_SIM_ENDLESS, &tokens), 0);
    return tokens;
}

static int read_text(bt_sim_trace_t *trace, const char *text)
{
    char path[] = "/tmp/baton-trace-XXXXXX";
    const int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    err[0] = '\0';
    const int rc = bt_sim_trace_read(trace, path, err, sizeof err);
    unlink(path);
    return rc;
}

static void test_mooncake(void **state)
{
    bt_sim_trace_t t;

    assert_int_equal(read_text(&t,
                               "{\"timestamp\": 3000, \"input_length\": 600, \"output_length\": 5, "
                               "\"hash_ids\": [0, 7]}\n\n"
                               "{\"timestamp\": 0, \"input_length\": 1024, \"output_length\": 0, "
                               "\"hash_ids\": [0, 1]}\n"),
                     0);
    assert_int_equal(t.count, 2);
    assert_int_equal(t.block_tokens, 512);
    assert_true(t.has_prefixes);
    assert_true(t.requests[0].at_s == 0 && t.requests[1].at_s == 3); /* by time */
    assert_int_equal(t.requests[0].output, 1);
    assert_int_equal(bt_sim_blocks(&t, &t.requests[1])[1], 7);
    assert_int_equal(bt_sim_whole_blocks(&t, &t.requests[1]), 1);
    assert_int_equal(endless(&t), 512);
    bt_sim_trace_cut(&t, 1, 0, 2);
    assert_int_equal(t.count, 1);
    assert_true(t.requests[0].at_s == 0);
    bt_sim_trace_fini(&t);
}

static void test_records(void **state)
{
    bt_sim_trace_t t;

    assert_int_equal(
        read_text(&t,
                  "{\"v\":1,\"id\":\"b\",\"at\":\"2026-01-31T23:59:59.500Z\",\"stream\":true,"
                  "\"prompt_tokens\":40,\"session\":\"s\",\"decided_by\":\"policy\","
                  "\"status\":200,\"events\":7}\n"
                  "{\"v\":1,\"id\":\"a\",\"at\":\"2026-01-31T23:59:59.000Z\","
                  "\"prompt_tokens\":20,\"decided_by\":\"policy\",\"status\":200,\"events\":0}\n"
                  "{\"v\":1,\"id\":\"c\",\"at\":\"2026-02-01T00:00:01.000Z\",\"prompt_tokens\":64,"
                  "\"session\":\"s\",\"decided_by\":\"default\",\"status\":200,\"events\":9}\n"
                  "{\"v\":1,\"id\":\"d\",\"at\":\"2026-02-01T00:00:02.000Z\",\"prompt_tokens\":64,"
                  "\"decided_by\":\"nobody\",\"status\":503,\"events\":0}\n"),
        0);
    assert_int_equal(t.count, 3);
    assert_true(t.requests[1].at_s - t.requests[0].at_s == 0.5);
    assert_true(t.requests[2].at_s - t.requests[0].at_s ==
                2); /* over midnight, and a month's end */
    assert_int_equal(t.requests[0].session, 0);
    assert_int_equal(t.requests[0].output, 8); /* the mean of those that say it */
    assert_int_equal(t.requests[1].output, 7);
    assert_true(t.requests[1].session != 0 && t.requests[1].session == t.requests[2].session);
    const uint64_t *first = bt_sim_blocks(&t, &t.requests[1]),
                   *next = bt_sim_blocks(&t, &t.requests[2]);
    assert_int_equal(t.requests[1].block_count, 3);
    assert_int_equal(t.requests[2].block_count, 4);
    for (unsigned b = 0; b < 3; b++)
        assert_true(first[b] == next[b]);
    assert_non_null(strstr(t.note, "1 answers that were not streamed get 8 tokens; 1 records are"));
    bt_sim_trace_fini(&t);
    assert_int_equal(
        read_text(&t, "{\"v\":1,\"decided_by\":\"policy\",\"prompt_tokens\":4,\"status\":200}\n"),
        BT_E_INVAL);
    assert_non_null(strstr(err, ":1: at: expected a time"));
    bt_sim_trace_fini(&t);
    assert_int_equal(
        read_text(&t, "{\"v\":1,\"at\":\"2026-01-31T23:59:nanZ\",\"decided_by\":\"policy\","
                      "\"prompt_tokens\":4,\"status\":200}\n"),
        BT_E_INVAL);
    assert_non_null(strstr(err, ":1: when?"));
    bt_sim_trace_fini(&t);
}

static void test_bailian_and_burstgpt(void **state)
{
    bt_sim_trace_t t;

    assert_int_equal(read_text(&t,
                               "{\"chat_id\": 5, \"parent_chat_id\": -1, \"timestamp\": 2.5, "
                               "\"input_length\": 40, \"output_length\": 9, \"type\": \"text\", "
                               "\"turn\": 1, \"hash_ids\": [1, 2, 3]}\n"),
                     0);
    assert_int_equal(t.block_tokens, 16);
    assert_true(t.requests[0].at_s == 2.5);
    bt_sim_trace_fini(&t);
    assert_int_equal(read_text(&t, "Timestamp,Model,Request tokens,Response tokens,Total,Log\n"
                                   "5,ChatGPT,472,18,490,Conversation log\n"
                                   "45,ChatGPT,1087,0,1087,Conversation log\n"),
                     0);
    assert_int_equal(t.count, 1); /* an answer of nothing has failed */
    assert_int_equal(t.requests[0].input, 472);
    assert_false(t.has_prefixes);
    bt_sim_trace_fini(&t);
}

static void refuses(const char *text, const char *why)
{
    bt_sim_trace_t t;

    assert_int_equal(read_text(&t, text), BT_E_INVAL);
    if (strstr(err, why) == NULL)
        fail_msg("%s, expected %s", err, why);
    bt_sim_trace_fini(&t);
}

static void test_mistakes(void **state)
{
    bt_sim_trace_t t;

    refuses("", "no request in it");
    refuses("hello\n", ":1: expected a JSON object");
    refuses("{\"timestamp\":1,\"input_length\":5}\n", ":1: timestamp, input_length and");
    refuses("{\"timestamp\":1,\"input_length\":0,\"output_length\":1}\n", "1 to 4000000");
    refuses("{\"timestamp\":-1,\"input_length\":1,\"output_length\":1}\n", "from 0 on");
    refuses("{\"timestamp\":1,\"input_length\":9,\"output_length\":1,\"hash_ids\":[1,\"x\"]}\n",
            "hash_ids");
    refuses("Timestamp,Model\n5,x\n", ":2: expected Timestamp");
    assert_int_equal(bt_sim_trace_read(&t, "/nowhere/at/all", err, sizeof err), BT_E_INVAL);
    assert_non_null(strstr(err, "No such file"));
    bt_sim_trace_fini(&t);
}

static void test_prompts(void **state)
{
    bt_sim_trace_t t;
    char a[BT_SIM_PROMPT_BYTES(48)], b[BT_SIM_PROMPT_BYTES(48)];

    assert_int_equal(read_text(&t, "{\"chat_id\":1,\"timestamp\":0,\"input_length\":40,"
                                   "\"output_length\":1,\"hash_ids\":[1,2,3]}\n"
                                   "{\"chat_id\":2,\"timestamp\":0,\"input_length\":48,"
                                   "\"output_length\":1,\"hash_ids\":[1,2,4]}\n"),
                     0);
    const bt_str_t x = bt_sim_prompt(&t, &t.requests[0], a),
                   y = bt_sim_prompt(&t, &t.requests[1], b);
    uint32_t third[16];
    bt_sim_block_tokens(3, 16, third);
    assert_int_equal(x.n, 81);
    assert_int_equal(y.n, 97);
    assert_memory_equal(x.p, y.p, 1 + 64);
    assert_memory_not_equal(x.p + 65, y.p + 65, 16);
    assert_true(x.p[0] == '[' && x.p[80] == ']' && y.p[96] == ']');
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(x.p[65 + 2 * i], '0' + third[i]);
    bt_sim_trace_fini(&t);
}

static void test_conversations(void **state)
{
    bt_sim_trace_t t, again;

    assert_int_equal(bt_sim_trace_generate(&t, "conversations:requests=500,rate=10,systems=2", 3,
                                           err, sizeof err),
                     0);
    assert_int_equal(bt_sim_trace_generate(&again, "conversations:requests=500,rate=10,systems=2",
                                           3, err, sizeof err),
                     0);
    assert_int_equal(t.count, 500);
    assert_int_equal(t.block_count, again.block_count);
    assert_memory_equal(t.blocks, again.blocks, t.block_count * sizeof *t.blocks);
    assert_true(endless(&t) > 0);
    bt_sim_trace_fini(&t);
    bt_sim_trace_fini(&again);
    assert_int_equal(bt_sim_trace_generate(&t, "conversations:turn=2", 1, err, sizeof err),
                     BT_E_INVAL);
    assert_non_null(strstr(err, "no such parameter"));
    assert_int_equal(bt_sim_trace_generate(&t, "conversations:rate=0", 1, err, sizeof err),
                     BT_E_INVAL);
    assert_non_null(strstr(err, "rate: expected a number from 0.001"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mooncake),
                                       cmocka_unit_test(test_records),
                                       cmocka_unit_test(test_bailian_and_burstgpt),
                                       cmocka_unit_test(test_mistakes),
                                       cmocka_unit_test(test_prompts),
                                       cmocka_unit_test(test_conversations)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
