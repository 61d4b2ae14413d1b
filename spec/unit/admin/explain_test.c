/* The answer of /explain from what loops said, and a record told as a story. */
#include "admin/help.h"

#include "admin/status/explain.h"
#include "loop/util.h"
#include "record/record.h"

#include <pthread.h>

static rig_t rig;
static bt_loop_facts_t facts[3];
static bt_admin_reply_t reply;

static int open_rig(void **state)
{
    rig_open(&rig, 2);
    memset(facts, 0, sizeof facts);
    for (unsigned i = 0; i < 3; i++)
        facts[i].answered = true;
    bt_reply_init(&reply);
    return 0;
}

static int close_rig(void **state)
{
    for (unsigned i = 0; i < 3; i++)
        bt_text_fini(&facts[i].rows);
    bt_reply_fini(&reply);
    rig_close(&rig);
    return 0;
}

static void say(unsigned loop, const char *line)
{
    bt_text_puts(&facts[loop].rows, line);
}

static void answer(bool as_text)
{
    bt_explain_answer(&reply, BT_STR("req-1"), as_text, facts, 3);
}

static void said_part(const char *part)
{
    if (reply.body.data == NULL || strstr(reply.body.data, part) == NULL)
        fail_msg("\"%s\" is not in: %s", part,
                 reply.body.data != NULL ? reply.body.data : "nothing");
}

/* ---- routes ---- */

static void test_the_route(void **state)
{
    char long_id[200] = "/explain/";

    assert_int_equal(ask(&rig, "GET", "/admin/explain/req-1", NULL), 200);
    assert_int_equal(rig.state, BT_WANTS_RECORD);
    assert_string_equal(rig.reply.name, "req-1");
    assert_false(rig.reply.as_text);
    assert_int_equal(ask(&rig, "GET", "/explain/a%3Ab?format=text", NULL), 200);
    assert_int_equal(rig.state, BT_WANTS_RECORD);
    assert_string_equal(rig.reply.name, "a:b");
    assert_true(rig.reply.as_text);
    assert_int_equal(ask(&rig, "GET", "/explain/x?format=json&other=1", NULL), 200);
    assert_false(rig.reply.as_text);
    assert_int_equal(ask(&rig, "GET", "/explain/x?format=xml", NULL), 400);
    assert_int_equal(rig.state, BT_ANSWERED);
    memset(long_id + 9, 'x', 129);
    assert_int_equal(ask(&rig, "GET", long_id, NULL), 404);
    assert_int_equal(ask(&rig, "POST", "/explain/x", NULL), 405);
    assert_int_equal(ask(&rig, "GET", "/explain/", NULL), 404);
    assert_int_equal(
        ask_as(&rig, (bt_admin_request_t){.authorized = false}, "GET", "/explain/x", NULL), 401);
    assert_int_equal(ask_as(&rig, (bt_admin_request_t){.authorized = true, .workers_only = true},
                            "GET", "/explain/x", NULL),
                     404);
}

/* ---- the line ---- */

static void test_the_newest_line(void **state)
{
    say(0, "{\"v\":1,\"at\":\"2026-01-31T12:00:00.100Z\",\"n\":1}");
    say(2, "{\"v\":1,\"at\":\"2026-01-31T12:00:00.099Z\",\"n\":2}");
    answer(false);
    assert_int_equal(reply.status, 200);
    assert_string_equal(reply.type, "application/json");
    assert_string_equal(reply.body.data, "{\"v\":1,\"at\":\"2026-01-31T12:00:00.100Z\",\"n\":1}\n");
}

static void test_no_record(void **state)
{
    answer(false);
    assert_int_equal(reply.status, 404);
    said_part("each of the 3 loops keeps the last 1024 requests");
    said_part("GET /requests");
    assert_json(bt_text_str(&reply.body));
}

static void test_a_late_loop(void **state)
{
    facts[1].answered = false;
    say(1, "{\"being\":\"writt"); /* not to be looked at */
    answer(false);
    assert_int_equal(reply.status, 503);
    said_part("1 of 3 loops");
    say(0, "{\"at\":\"2026-01-31T12:00:00.100Z\"}");
    bt_reply_fini(&reply);
    bt_reply_init(&reply);
    answer(false);
    assert_int_equal(reply.status, 200);
}

/* ---- the story ---- */

static const char handoff[] =
    "{\"v\":1,\"id\":\"req-1\",\"at\":\"2026-01-31T12:00:00.000Z\",\"route\":\"completions\","
    "\"path\":\"/v1/"
    "completions\",\"model\":\"m\\u001b[2J\\u009b2J\",\"stream\":true,\"n\":1,\"prompt_tokens\":12,"
    "\"prompt_bytes\":48,\"tenant\":\"t\",\"pool\":\"default\",\"rule\":\"canary/"
    "2\",\"policy\":\"least_load\","
    "\"policy_version\":\"1\",\"generation\":3,\"decided_by\":\"policy\","
    "\"candidates\":{\"prefill\":{\"total\":70,\"rows\":[{\"id\":1,\"name\":\"p1\",\"requests\":4,"
    "\"prefill_tokens\":99,\"decode_tokens\":0,\"kv_free\":0.5,\"score\":12.5}]},"
    "\"decode\":{\"total\":1,\"rows\":[{\"id\":2,\"name\":\"d2\"}]},\"single\":{\"total\":0,"
    "\"rows\":[]}},"
    "\"plan\":{\"kind\":\"handoff\",\"prefill\":\"p1\",\"decode\":\"d2\",\"alternates\":[{"
    "\"prefill\":\"p1\","
    "\"decode\":\"d1\"}]},"
    "\"attempts\":[{\"n\":1,\"kind\":\"handoff\",\"prefill\":\"p1\",\"decode\":\"d2\",\"start_ms\":"
    "0.2,"
    "\"end_ms\":30,\"failure\":\"reset\",\"leg\":\"decode\",\"status\":0,\"guilty\":[\"d2\"]},"
    "{\"n\":2,\"kind\":\"handoff\",\"prefill\":\"p1\",\"decode\":\"d1\",\"start_ms\":30.2,"
    "\"prefill_ms\":60,"
    "\"first_byte_ms\":70,\"end_ms\":90}],"
    "\"phases_ms\":{\"plan\":0.01,\"prefill\":31,\"kv_wait\":9,\"first_byte\":70,\"last_byte\":90},"
    "\"status\":200,\"bytes_in\":120,\"bytes_out\":900,\"events\":17,"
    "\"shadow\":{\"rule\":\"try\",\"policy\":\"candidate\",\"version\":\"2\",\"prefill\":\"p2\","
    "\"decode\":\"d1\","
    "\"same\":false,\"plan_ms\":0.02}}";

static void test_a_story(void **state)
{
    say(0, handoff);
    answer(true);
    assert_int_equal(reply.status, 200);
    assert_string_equal(reply.type, "text/plain; charset=utf-8");
    said_part("request req-1\n");
    said_part("model m?[2J?\?2J, streamed, 12 prompt tokens (48 bytes), tenant t\n");
    said_part("answered 200 after 90 ms, first byte after 70 ms; 900 bytes, 17 events");
    said_part("decided by policy least_load 1, generation 3, pool default, rule canary/2\n");
    said_part("prefill candidates: 70 usable, 1 kept");
    said_part("  * p1                           12.5        4        99");
    said_part("decode candidates: 1 usable");
    assert_null(strstr(reply.body.data, "single candidates"));
    said_part("chosen: handoff p1 > d2; if it fails: p1 > d1\n");
    said_part("attempt 1: handoff p1 > d2; started at 0.2 ms, ended at 30 ms\n"
              "  failed at decode: reset; blamed: d2\n");
    said_part(
        "attempt 2: handoff p1 > d1; started at 30.2 ms, prefill done at 60 ms, first byte at 70 "
        "ms, ended at 90 ms\n");
    said_part("times in ms: plan 0.01 prefill 31 waiting for KV 9 first byte 70 last byte 90\n");
    said_part(
        "shadow (rule try, policy candidate 2): would choose p2 > d1, not the same, in 0.02 ms\n");
}

static void test_a_room_that_changed_hands(void **state)
{
    say(0, "{\"v\":1,\"id\":\"req-1\",\"at\":\"2026-01-31T12:00:00.000Z\",\"path\":\"/v1/"
           "completions\",\"stream\":false,\"decided_by\":\"policy\",\"policy\":\"least_load\","
           "\"attempts\":[{\"n\":1,\"kind\":\"bootstrap\",\"prefill\":\"p2\",\"decode\":\"d1\","
           "\"replaced\":[{\"prefill\":\"p1\",\"failure\":\"reset\"}],"
           "\"kv\":{\"bytes\":65536,\"wait_ms\":30.5,\"transfer_ms\":1.2}}],"
           "\"phases_ms\":{},\"status\":200}");
    answer(true);
    said_part("attempt 1: bootstrap p2 > d1\n"
              "  decode waited, and another prefill took over from p1: reset\n"
              "  KV: 65536 bytes, waited 30.5 ms, moved in 1.2 ms\n");
}

static void test_short_stories(void **state)
{
    say(0, "{\"v\":1,\"id\":\"req-1\",\"at\":\"2026-01-31T12:00:00.000Z\",\"path\":\"/v1/"
           "completions\",\"stream\":"
           "false,\"decided_by\":\"nobody\",\"why\":\"no usable "
           "worker\",\"attempts\":[],\"phases_ms\":{"
           "\"last_byte\":0.4},\"status\":503,\"error\":\"no_worker\"}");
    answer(true);
    said_part("decided by nobody: no usable worker\n");
    said_part("answered 503 (no_worker) after 0.4 ms");
    assert_null(strstr(reply.body.data, "chosen"));
    assert_null(strstr(reply.body.data, "not sampled"));
    bt_reply_fini(&reply);
    bt_reply_init(&reply);
    bt_text_fini(&facts[0].rows);
    say(0, "{\"v\":1,\"id\":\"req-1\",\"at\":\"2026-01-31T12:00:00.000Z\",\"path\":\"/v1/"
           "completions\",\"stream\":"
           "false,\"policy\":\"mine\",\"decided_by\":\"default\",\"why\":\"mine.lua:3: "
           "no\",\"plan\":{\"kind\":"
           "\"single\",\"worker\":\"w1\"},\"attempts\":[{\"n\":1,\"kind\":\"single\",\"worker\":"
           "\"w1\",\"failure\":"
           "\"stall\",\"leg\":\"single\",\"status\":500,\"guilty\":[]}],\"phases_ms\":{},"
           "\"status\":0}");
    answer(true);
    said_part("the client left before it had an answer");
    said_part("decided by the default choice; policy mine: mine.lua:3: no\n");
    said_part("candidates were not kept: this request was not sampled (--record-sample)");
    said_part("chosen: single w1\n");
    said_part("failed at single: stall, status 500; nobody is blamed");
}

/* ---- from the loops ---- */

static unsigned told;
static char found[256];

static void on_facts(void *user, const bt_loop_facts_t *from, unsigned count)
{
    (void) user;
    told++;
    bt_reply_fini(&reply);
    bt_reply_init(&reply);
    bt_explain_answer(&reply, BT_STR("req-1"), false, from, count);
    snprintf(found, sizeof found, "%u %s", reply.status, reply.body.data);
}

static void *run(void *arg)
{
    bt_loop_run(arg);
    return NULL;
}

static int start(bt_gather_t **g_p, bt_loop_t *control, bt_str_t id)
{
    const bt_gather_ask_t ask = {.what = BT_GATHER_RECORD, .id = id};

    return bt_gather_start(g_p, control, &rig.shared, &ask, 60000, on_facts, NULL);
}

static void test_every_loop_is_asked(void **state)
{
    static const char line[] = "{\"at\":\"2026-01-31T12:00:00.000Z\",\"id\":\"req-1\"}";
    pthread_t threads[2];
    bt_loop_t control;
    bt_gather_t *g;
    char long_id[BT_GATHER_ID_MAX + 1];

    told = 0;
    assert_int_equal(bt_loop_init(&control, BT_LOOP_CONTROL), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(bt_loop_init(&rig.loops[i], i), 0);
    rig.dispatchers[1]->records = bt_record_ring_new(); /* the other one has none */
    bt_record_ring_put(rig.dispatchers[1]->records, BT_STR("req-1"), bt_str(line));
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run, &rig.loops[i]), 0);
    assert_int_equal(start(&g, &control, BT_STR("req-1")), 0);
    TURN_UNTIL(&control, told == 1);
    assert_string_equal(found, "200 {\"at\":\"2026-01-31T12:00:00.000Z\",\"id\":\"req-1\"}\n");
    assert_int_equal(start(&g, &control, BT_STR("req-2")), 0);
    TURN_UNTIL(&control, told == 2);
    assert_int_equal(strncmp(found, "404 ", 4), 0);
    memset(long_id, 'x', sizeof long_id);
    assert_int_equal(start(&g, &control, (bt_str_t){long_id, sizeof long_id}), BT_E_LIMIT);
    for (unsigned i = 0; i < 2; i++) {
        bt_loop_stop(&rig.loops[i]);
        pthread_join(threads[i], NULL);
        bt_loop_fini(&rig.loops[i]);
    }
    bt_loop_fini(&control);
    bt_record_ring_free(rig.dispatchers[1]->records);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, open_rig, close_rig)

/* ---- the last ones ---- */

static void test_the_route_of_the_list(void **state)
{
    assert_int_equal(ask(&rig, "GET", "/admin/explain", NULL), 200);
    assert_int_equal(rig.state, BT_WANTS_RECORD);
    assert_string_equal(rig.reply.name, "");
    assert_int_equal(rig.reply.number, 20);
    assert_int_equal(ask(&rig, "GET", "/explain?limit=200&format=text", NULL), 200);
    assert_int_equal(rig.reply.number, 200);
    assert_true(rig.reply.as_text);
    assert_int_equal(ask(&rig, "GET", "/explain?limit=201", NULL), 400);
    assert_int_equal(ask(&rig, "GET", "/explain?limit=0", NULL), 400);
    assert_int_equal(ask(&rig, "GET", "/explain?limit=x", NULL), 400);
    assert_int_equal(ask(&rig, "GET", "/explain?format=xml", NULL), 400);
    assert_int_equal(
        ask_as(&rig, (bt_admin_request_t){.authorized = false}, "GET", "/explain", NULL), 401);
}

/* Two loops, one of them late: the newest of those that answered, by arrival. */
static void test_the_list(void **state)
{
    facts[1].answered = false;
    say(0, "{\"id\":\"c\",\"at\":\"2026-01-31T12:00:00.300Z\",\"status\":200,\"n\":1}\n"
           "{\"id\":\"a\",\"at\":\"2026-01-31T12:00:00.100Z\",\"status\":0}\n");
    say(2, "{\"id\":\"b\",\"at\":\"2026-01-31T12:00:00.200Z\",\"status\":503,\"error\":\"no_"
           "worker\"}\n");
    bt_explain_list(&reply, 2, false, facts, 3);
    assert_string_equal(reply.body.data,
                        "{\"requests\":[\n"
                        "{\"id\":\"c\",\"at\":\"2026-01-31T12:00:00.300Z\",\"status\":200},\n"
                        "{\"id\":\"b\",\"at\":\"2026-01-31T12:00:00.200Z\",\"status\":503,"
                        "\"error\":\"no_worker\"}],"
                        "\"late_loops\":1}\n");
}

static void test_the_list_in_words(void **state)
{
    facts[2].answered = false;
    say(0, handoff);
    say(0, "\n{\"id\":\"a\",\"at\":\"2026-01-31T11:00:00.000Z\",\"status\":0}\n");
    bt_explain_list(&reply, 9, true, facts, 3);
    assert_string_equal(
        reply.body.data,
        "2026-01-31T12:00:00.000Z  req-1  /v1/completions, model m?[2J?\?2J  200 after 90 ms  "
        "decided by policy least_load: handoff p1 > d2\n"
        "2026-01-31T11:00:00.000Z  a  client gone\n"
        "(1 of 3 loops did not answer in time)\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_the_route),
        CASE(test_the_newest_line),
        CASE(test_no_record),
        CASE(test_a_late_loop),
        CASE(test_a_story),
        CASE(test_a_room_that_changed_hands),
        CASE(test_short_stories),
        CASE(test_every_loop_is_asked),
        CASE(test_the_route_of_the_list),
        CASE(test_the_list),
        CASE(test_the_list_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
