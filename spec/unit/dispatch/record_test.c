/* What a line says, and how long it is kept. Lines are read back with jansson, which shares no code with us. */

#include "base/rand.h"
#include "dispatch/record_fixture.h"
#include "unit.h"

#include <inttypes.h>
#include <jansson.h>

static record_rig_t rig;
static json_t *line;
static char raw[1 << 20];

static int open_rig(void **state)
{
    rig_open(&rig, 2);
    line = NULL;
    return 0;
}

static int close_rig(void **state)
{
    json_decref(line);
    rig_close(&rig);
    return 0;
}

static bool find(const char *id)
{
    json_error_t error;
    bt_text_t out;

    bt_text_init(&out);
    json_decref(line);
    line = NULL;
    if (!bt_record_ring_find(rig.d.records, bt_str(id), &out))
        return false;
    assert_true(out.len < sizeof raw);
    memcpy(raw, out.data, out.len + 1);
    line = json_loads(raw, JSON_REJECT_DUPLICATES, &error);
    if (line == NULL)
        fail_msg("%s at %d in %s", error.text, error.position, raw);
    bt_text_fini(&out);
    return true;
}

static void finish(void)
{
    bt_record_finish(&rig.r);
    assert_true(find(rig.r.id));
}

static void same(const json_t *value, const char *want)
{
    char *got = value != NULL
                    ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9))
                    : NULL;

    if (got == NULL || strcmp(got, want) != 0)
        fail_msg("%s is not %s in %s", got != NULL ? got : "nothing", want, raw);
    free(got);
}

static void has(const char *name, const char *want)
{
    same(json_object_get(line, name), want);
}

static void lacks(const char *name)
{
    if (json_object_get(line, name) != NULL)
        fail_msg("%s is in %s", name, raw);
}

/* ---- an ordinary request ---- */

static void test_what_little_there_is(void **state)
{
    static const char *const absent[] = {"session", "tenant",     "class",         "key",
                                         "rule",    "policy",     "why",           "candidates",
                                         "plan",    "shadow",     "headers",       "error",
                                         "pool",    "generation", "attempts_total"};

    bt_record_begin(&rig.r);
    rig.r.status = 404;
    finish();
    has("v", "1");
    has("id", "\"req-1\"");
    has("route", "\"completions\"");
    has("path", "\"/v1/completions\"");
    has("model", "\"m\"");
    has("stream", "false");
    has("n", "1");
    has("decided_by", "\"nobody\"");
    has("attempts", "[]");
    has("status", "404");
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        lacks(absent[i]);
}

static void test_refused_before_it_began(void **state)
{
    const uint64_t before_ms = bt_clock_wall_ms() - 5000;
    char earliest[32];

    rig.r.start_us = bt_clock_us() - 4000000;
    rig.r.status = 401;
    finish();
    bt_clock_iso8601(before_ms, earliest, sizeof earliest);
    assert_true(strcmp(json_string_value(json_object_get(line, "at")), earliest) > 0);
    bt_clock_iso8601(before_ms + 5000, earliest, sizeof earliest);
    assert_true(strcmp(json_string_value(json_object_get(line, "at")), earliest) < 0);
}

static void fill_handoff(void)
{
    bt_policy_view_t view;
    bt_attempt_t *a;

    rig.r.tenant = BT_STR("t");
    rig.r.session = BT_STR("s");
    rig_header(&rig, "X-Tier", "gold");
    rig_header(&rig, "Authorization", "Bearer secret");
    bt_record_begin(&rig.r);
    view = rig_view(&rig);
    bt_record_candidates(&rig.r, &view);
    rig_choose(&rig, rig.prefill[0], rig.decode[1]);
    rig.choice.alternates[0] = (bt_pair_t){rig.prefill[0], rig.decode[0], -1, -1, BT_PLAN_NONE};
    rig.choice.alternate_count = 1;
    rig.r.choice = bt_plan_keep(&rig.r, &rig.choice);
    a = rig_attempt(&rig, 0, rig.prefill[0], rig.decode[1], 200, 30000);
    a->fail_rc = BT_E_RESET;
    a->fail_leg = BT_LEG_DECODE;
    a->guilty[1] = true;
    a = rig_attempt(&rig, 1, rig.prefill[0], rig.decode[0], 30250, 90000);
    a->prefill_done_us = rig.r.start_us + 61250;
    a->legs[1].first_body_us = rig.r.start_us + 70000;
    rig.r.policy_name = "least_load";
    rig.r.policy_version = "1";
    rig.r.policy_generation = 3;
    rig.r.record.decided_by = "policy";
    rig.r.record.rule = "canary/2";
    rig.r.record.klass = "c";
    rig.r.record.key = "k";
    rig.r.record.admit_us = 100;
    rig.r.record.route_us = 1001;
    rig.r.record.plan_us = 7;
    rig.r.first_byte_us = rig.r.start_us + 70010;
    rig.r.status = 200;
    rig.r.sent_bytes = 900;
    rig.r.events = 17;
    rig.r.intent.stream = true;
}

static void test_a_handoff_that_was_tried_twice(void **state)
{
    fill_handoff();
    finish();
    has("tenant", "\"t\"");
    has("session", "\"s\"");
    has("class", "\"c\"");
    has("key", "\"k\"");
    has("pool", "\"default\"");
    has("rule", "\"canary/2\"");
    has("policy", "\"least_load\"");
    has("policy_version", "\"1\"");
    has("generation", "3");
    has("decided_by", "\"policy\"");
    has("prompt_tokens", "12");
    has("prompt_bytes", "48");
    has("stream", "true");
    has("plan",
        "{\"kind\":\"handoff\",\"prefill\":\"p1\",\"decode\":\"d2\",\"alternates\":[{\"prefill\":"
        "\"p1\",\"decode\":\"d1\"}]}");
    has("attempts", "[{\"n\":1,\"kind\":\"handoff\",\"prefill\":\"p1\",\"decode\":\"d2\",\"start_"
                    "ms\":0.2,\"end_ms\":30,"
                    "\"failure\":\"reset\",\"leg\":\"decode\",\"status\":0,\"guilty\":[\"d2\"]},"
                    "{\"n\":2,\"kind\":\"handoff\",\"prefill\":\"p1\",\"decode\":\"d1\",\"start_"
                    "ms\":30.25,\"prefill_ms\":"
                    "61.25,\"first_byte_ms\":70,\"end_ms\":90}]");
    const json_t *phases = json_object_get(line, "phases_ms");
    same(json_object_get(phases, "admit"), "0.1");
    same(json_object_get(phases, "route"), "1.001");
    same(json_object_get(phases, "plan"), "0.007");
    same(json_object_get(phases, "prefill"), "31");
    same(json_object_get(phases, "kv_wait"), "8.75");
    same(json_object_get(phases, "first_byte"), "70.01");
    assert_true(json_number_value(json_object_get(phases, "last_byte")) > 0);
    has("status", "200");
    has("bytes_out", "900");
    has("events", "17");
    lacks("candidates"); /* not sampled */
    lacks("headers");
    assert_null(strstr(raw, "secret"));
    assert_null(strstr(raw, "gold"));
}

static void test_only_named_headers(void **state)
{
    static const char *const names[] = {"x-tier", "x-none", NULL};

    rig.shared.record.headers = names;
    fill_handoff();
    finish();
    has("headers", "{\"x-tier\":\"gold\"}");
    assert_null(strstr(raw, "secret"));
}

static void test_a_single_worker(void **state)
{
    bt_record_begin(&rig.r);
    (void) rig_view(&rig);
    rig_choose(&rig, NULL, rig.single[0]);
    rig_attempt(&rig, 0, NULL, rig.single[0], 0, 500);
    finish();
    has("plan", "{\"kind\":\"single\",\"worker\":\"w1\"}");
    has("attempts",
        "[{\"n\":1,\"kind\":\"single\",\"worker\":\"w1\",\"start_ms\":0,\"end_ms\":0.5}]");
}

static void test_the_shadow(void **state)
{
    struct bt_record_shadow shadow = {.rule = "try",
                                      .policy = "candidate",
                                      .version = "2",
                                      .plan_us = 10,
                                      .prefill = "p2",
                                      .decode = "d1"};

    rig.r.record.shadow = &shadow;
    finish();
    has("shadow", "{\"rule\":\"try\",\"policy\":\"candidate\",\"version\":\"2\",\"prefill\":\"p2\","
                  "\"decode\":"
                  "\"d1\",\"same\":false,\"plan_ms\":0.01}");
    shadow.error = "spec.lua:1: no";
    finish();
    has("shadow",
        "{\"rule\":\"try\",\"policy\":\"candidate\",\"version\":\"2\",\"error\":\"spec.lua:1: no\","
        "\"plan_ms\":0.01}");
}

/* ---- what clients write ---- */

static void test_text_of_clients_is_cut_and_escaped(void **state)
{
    char long_text[600];

    memset(long_text, 'a', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    memcpy(long_text + 126, "\xe4\xbd\xa0", 3); /* the cut at 128 falls into it */
    rig.r.tenant = bt_str(long_text);
    rig.r.session = BT_STR("a\"b\\c\xff");
    rig.r.intent.model = BT_STR("line\nbreak\x01");
    rig.r.path = bt_str(long_text);
    bt_record_begin(&rig.r);
    finish();
    const char *tenant = json_string_value(json_object_get(line, "tenant"));
    assert_int_equal(strspn(tenant, "a"), 126);
    assert_string_equal(tenant + 126, "...");
    has("session", "\"a\\\"b\\\\c\xef\xbf\xbd\"");
    has("model", "\"line\\nbreak\\u0001\"");
    assert_int_equal(strlen(json_string_value(json_object_get(line, "path"))), 256 + 3);
    assert_null(memchr(raw, '\n', strlen(raw)));
}

/* ---- sampling ---- */

static void test_samples_by_chance(void **state)
{
    unsigned sampled = 0;

    bt_rand_seed(11);
    for (unsigned i = 0; i < 4000; i++) {
        rig.shared.record.sample = 0.25;
        bt_record_begin(&rig.r);
        sampled += rig.r.record.sample != NULL;
        rig.r.record.sample = NULL;
        rig.shared.record.sample = 0;
        bt_record_begin(&rig.r);
        assert_null(rig.r.record.sample);
        rig.shared.record.sample = 1;
        bt_record_begin(&rig.r);
        assert_non_null(rig.r.record.sample);
        rig.r.record.sample = NULL;
    }
    assert_true(sampled > 880 && sampled < 1120);
}

static void test_candidates_as_the_policy_saw_them(void **state)
{
    bt_worker_t *p1 = rig.prefill[0], *p2 = rig.prefill[1];
    bt_policy_view_t view;
    bt_policy_trace_t *trace;

    rig.shared.record.sample = 1;
    bt_record_begin(&rig.r);
    bt_worker_total(p1, BT_PHASE_PREFILL)->tokens = 70;
    bt_worker_total(p1, BT_PHASE_DECODE)->tokens = 5;
    bt_worker_total(p1, BT_PHASE_PREFILL)->requests = 2;
    bt_worker_total(p1, BT_PHASE_DECODE)->requests = 1;
    p1->ttft_ema_us = 20500;
    p1->load.running = 3;
    p1->load.waiting = 4;
    p1->load.started_since = 1;
    p1->load.kv_used_ppm = 250000;
    p1->load.at_ms = bt_clock_ms();
    p2->load.at_ms = bt_clock_ms() - 60000; /* too old to be believed */
    p2->load.running = 9;
    view = rig_view(&rig);
    bt_record_candidates(&rig.r, &view);
    trace = &rig.r.record.sample->trace;
    bt_worker_total(p1, BT_PHASE_PREFILL)->tokens = 0; /* moves on */
    assert_true(trace->cap >= 5);
    trace->scores[trace->count++] = (struct bt_policy_score){p1->id, 12.5};
    trace->scores[trace->count++] = (struct bt_policy_score){rig.decode[1]->id, -1};
    finish();
    const json_t *all = json_object_get(line, "candidates");
    const json_t *rows = json_object_get(json_object_get(all, "prefill"), "rows");
    const json_t *first = json_array_get(rows, 0);
    same(json_object_get(json_object_get(all, "prefill"), "total"), "2");
    same(json_object_get(first, "name"), "\"p1\"");
    same(json_object_get(first, "role"), "\"prefill\"");
    same(json_object_get(first, "url"), "\"http://10.0.0.1:8000\"");
    same(json_object_get(first, "zone"), "\"a\"");
    same(json_object_get(first, "labels"), "{\"k\":\"v\\\"q\",\"fast\":true}");
    same(json_object_get(first, "dialect"), "\"nixl\"");
    same(json_object_get(first, "engine"), "\"vllm\"");
    same(json_object_get(first, "connector"), "\"NixlConnector\"");
    same(json_object_get(first, "version"), "\"0.32.0\"");
    same(json_object_get(first, "tp_size"), "4");
    assert_null(json_object_get(first, "dp_size")); /* 1 */
    same(json_object_get(first, "prefill_tokens"), "70");
    same(json_object_get(first, "decode_tokens"), "5");
    same(json_object_get(first, "requests"), "3");
    same(json_object_get(first, "running"), "3");
    same(json_object_get(first, "waiting"), "5");
    same(json_object_get(first, "kv_free"), "0.75");
    same(json_object_get(first, "ttft_ema_ms"), "20.5");
    assert_null(json_object_get(first, "tpot_ema_ms"));
    same(json_object_get(first, "score"), "12.5");
    assert_true(json_is_integer(json_object_get(first, "id")));
    const json_t *second = json_array_get(rows, 1);
    assert_null(json_object_get(second, "running"));
    assert_null(json_object_get(second, "score"));
    assert_true(json_number_value(json_object_get(second, "age_ms")) >= 60000);
    const json_t *decode = json_object_get(json_object_get(all, "decode"), "rows");
    assert_null(json_object_get(json_array_get(decode, 0), "score"));
    same(json_object_get(json_array_get(decode, 1), "score"), "-1");
    const json_t *hybrid = json_object_get(json_object_get(all, "hybrid"), "rows");
    same(json_object_get(json_array_get(hybrid, 0), "role"), "\"hybrid\"");
    /* It serves alone as well, and its row is there once. */
    char id[64];
    snprintf(id, sizeof(id), "[{\"id\":%" PRIu64 "}]", rig.single[0]->id);
    same(json_object_get(json_object_get(all, "single"), "rows"), id);
}

static void test_scores_are_those_of_the_first_plan(void **state)
{
    bt_policy_trace_t *trace;
    bt_policy_view_t view;

    rig.shared.record.sample = 1;
    bt_record_begin(&rig.r);
    view = rig_view(&rig);
    bt_record_candidates(&rig.r, &view);
    trace = &rig.r.record.sample->trace;
    trace->scores[trace->count++] = (struct bt_policy_score){rig.prefill[0]->id, 1};
    bt_record_candidates(&rig.r, &view); /* of a child */
    assert_int_equal(trace->count, 0);
    assert_int_equal(trace->cap, 0);
    finish();
    const json_t *rows =
        json_object_get(json_object_get(json_object_get(line, "candidates"), "prefill"), "rows");
    same(json_object_get(json_array_get(rows, 0), "score"), "1");
}

static void test_a_large_fleet_is_cut(void **state)
{
    bt_policy_view_t view;
    char name[16];

    for (unsigned i = 3; i <= 150; i++) {
        snprintf(name, sizeof name, "p%u", i);
        rig_worker(&rig, BT_ROLE_PREFILL, name);
    }
    rig.shared.record.sample = 1;
    bt_record_begin(&rig.r);
    view = rig_view(&rig);
    bt_record_candidates(&rig.r, &view);
    finish();
    const json_t *prefill = json_object_get(json_object_get(line, "candidates"), "prefill");
    same(json_object_get(prefill, "total"), "150");
    assert_int_equal(json_array_size(json_object_get(prefill, "rows")), BT_RECORD_ROWS);
}

static void test_many_attempts_are_cut(void **state)
{
    bt_record_begin(&rig.r);
    for (unsigned i = 0; i < 200; i++)
        rig_attempt(&rig, i, NULL, rig.single[0], i, i + 1);
    rig.r.task_count = 2;
    rig.tasks[1] = (bt_task_t){.request = &rig.r, .index = 1};
    finish();
    assert_int_equal(json_array_size(json_object_get(line, "attempts")), 64);
    same(json_object_get(json_array_get(json_object_get(line, "attempts"), 0), "child"), "0");
    has("attempts_total", "200");
}

/* ---- the ring ---- */

static void put(const char *id, const char *text)
{
    assert_true(bt_record_ring_put(rig.d.records, bt_str(id), bt_str(text)));
}

static void found(const char *id, const char *want)
{
    bt_text_t out;

    bt_text_init(&out);
    if (bt_record_ring_find(rig.d.records, bt_str(id), &out) != (want != NULL))
        fail_msg("%s is %s", id, want != NULL ? "gone" : "there");
    if (want != NULL)
        assert_string_equal(out.data, want);
    bt_text_fini(&out);
}

static void test_the_newest_of_an_id(void **state)
{
    put("a", "1");
    put("b", "2");
    put("a", "3");
    found("a", "3");
    found("b", "2");
    found("c", NULL);
    found("", NULL);
    assert_false(bt_record_ring_find(NULL, BT_STR("a"), NULL));
}

static void test_the_newest_first(void **state)
{
    bt_text_t out;

    bt_text_init(&out);
    bt_record_ring_recent(NULL, 2, &out);
    bt_record_ring_recent(rig.d.records, 2, &out);
    assert_int_equal(out.len, 0);
    put("a", "1");
    put("b", "2");
    put("a", "3");
    bt_record_ring_recent(rig.d.records, 2, &out);
    bt_record_ring_recent(rig.d.records, 9, &out);
    assert_string_equal(out.data, "3\n2\n3\n2\n1\n");
    bt_text_fini(&out);
}

static void test_the_last_lines_are_kept(void **state)
{
    char id[32], text[32];

    for (unsigned i = 0; i < 3 * BT_RECORD_RING + 7; i++) {
        snprintf(id, sizeof id, "id-%u", i);
        snprintf(text, sizeof text, "line %u", i);
        put(id, text);
    }
    for (unsigned i = 0; i < 3 * BT_RECORD_RING + 7; i++) {
        snprintf(id, sizeof id, "id-%u", i);
        snprintf(text, sizeof text, "line %u", i);
        found(id, i >= 2 * BT_RECORD_RING + 7 ? text : NULL);
    }
}

/* Random lengths, against a plain list: whatever is found is right, and the newest is always found. */
static void test_lines_of_all_lengths(void **state)
{
    static struct {
        unsigned n;
        char fill;
    } model[5000];
    static char text[BT_RECORD_LINE_MAX];
    unsigned kept = 0;
    bt_text_t out;

    bt_rand_seed(5);
    bt_text_init(&out);
    for (unsigned i = 0; i < 5000; i++) {
        char id[32];
        int id_n = snprintf(id, sizeof id, "id-%u", i);
        /* small ones go round before the block has to grow */
        unsigned most = i < 1500 ? 200 : i % 3 == 0 ? BT_RECORD_LINE_MAX - 32 : 2000;
        model[i].n = 1 + (unsigned) bt_rand_below(most);
        model[i].fill = (char) ('a' + i % 26);
        memset(text, model[i].fill, model[i].n);
        assert_true(bt_record_ring_put(rig.d.records, (bt_str_t){id, (size_t) id_n},
                                       (bt_str_t){text, model[i].n}));
        for (unsigned k = i > 100 ? i - 100 : 0; k <= i; k += 20) {
            id_n = snprintf(id, sizeof id, "id-%u", k);
            out.len = 0;
            assert_true(bt_record_ring_find(rig.d.records, (bt_str_t){id, (size_t) id_n}, &out));
            assert_int_equal(out.len, model[k].n);
            assert_int_equal(out.data[0], model[k].fill);
            assert_memory_equal(out.data, out.data + 1, out.len - 1); /* all alike */
        }
    }
    for (unsigned i = 0; i < 5000; i++) {
        char id[32];
        snprintf(id, sizeof id, "id-%u", i);
        out.len = 0;
        if (bt_record_ring_find(rig.d.records, bt_str(id), &out)) {
            assert_int_equal(out.len, model[i].n);
            assert_int_equal(out.data[0], model[i].fill);
            assert_memory_equal(out.data, out.data + 1, out.len - 1);
            kept++;
        }
    }
    assert_true(kept > 200 &&
                kept < BT_RECORD_RING); /* bytes were the limit: 8 MiB of 11 KiB each */
    bt_text_fini(&out);
}

static void test_a_line_that_is_too_long(void **state)
{
    static char text[BT_RECORD_LINE_MAX + 1];

    put("a", "1");
    memset(text, 'x', sizeof text);
    assert_false(bt_record_ring_put(rig.d.records, BT_STR("a"), (bt_str_t){text, sizeof text}));
    found("a", "1");
}

/* Too long with its candidates: kept without them. */
static void test_a_long_record_loses_its_rows(void **state)
{
    char labels[2000], name[16];
    bt_policy_view_t view;

    memset(labels, 'l', sizeof labels - 1);
    labels[sizeof labels - 1] = '\0';
    for (unsigned i = 3; i <= 64; i++) {
        snprintf(name, sizeof name, "p%u", i);
        rig_worker(&rig, BT_ROLE_PREFILL, name);
    }
    for (unsigned i = 0; i < rig.sets[0].count; i++) {
        free(rig.prefill[i]->spec.labels);
        rig.prefill[i]->spec.labels = bt_str_dup(bt_str(labels));
    }
    rig.shared.record.sample = 1;
    bt_record_begin(&rig.r);
    view = rig_view(&rig);
    bt_record_candidates(&rig.r, &view);
    finish();
    const json_t *prefill = json_object_get(json_object_get(line, "candidates"), "prefill");
    same(json_object_get(prefill, "total"), "64");
    same(json_object_get(prefill, "rows"), "[]");
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, open_rig, close_rig)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_what_little_there_is),
        CASE(test_refused_before_it_began),
        CASE(test_a_handoff_that_was_tried_twice),
        CASE(test_only_named_headers),
        CASE(test_a_single_worker),
        CASE(test_the_shadow),
        CASE(test_text_of_clients_is_cut_and_escaped),
        CASE(test_samples_by_chance),
        CASE(test_candidates_as_the_policy_saw_them),
        CASE(test_scores_are_those_of_the_first_plan),
        CASE(test_a_large_fleet_is_cut),
        CASE(test_many_attempts_are_cut),
        CASE(test_the_newest_of_an_id),
        CASE(test_the_newest_first),
        CASE(test_the_last_lines_are_kept),
        CASE(test_lines_of_all_lengths),
        CASE(test_a_line_that_is_too_long),
        CASE(test_a_long_record_loses_its_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
