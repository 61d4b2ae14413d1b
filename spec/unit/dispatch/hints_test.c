/* What a plan says of its KV: the bytes that both legs get, by what SGLang's server takes, and nothing for an engine that takes none. */
#include "dispatch/attempt_rig.h"

#define POLICY(hints)                                                                              \
    "return { api = 2, name = 'mine', version = '1', plan = function(req, view) return { prefill " \
    "= view.prefill[1], decode = view.decode[1], hints = " hints " } end }"
#define ACTION                                                                                     \
    "{ action_id = 'a', action_type = 'kv.fetch', action_version = '1.0', payload = { from = "     \
    "'p9', n = 2 } }"
#define GENERATE "{\"text\":\"x\",\"sampling_params\":{\"max_new_tokens\":2}}"
#define ENVELOPE                                                                                   \
    "\"kv_hints\":{\"protocol_version\":\"0.1\",\"message_id\":\"req-1\",\"actions\":["            \
    "{\"action_id\":\"a\",\"action_type\":\"kv.fetch\",\"action_version\":\"1.0\",\"payload\":{"   \
    "\"from\":\"p9\",\"n\":2}}]}"

static void start(const char *connector, const char *policy)
{
    rig_start(&(struct rig_options){.connector = connector, .policy = policy, .has_single = true});
}

static unsigned count_in(const char *text, const char *what)
{
    unsigned n = 0;

    for (const char *at = strstr(text, what); at != NULL; at = strstr(at + 1, what))
        n++;
    return n;
}

/* Once and no more in each leg. */
static void both_heard(const char *what)
{
    assert_int_equal(count_in(body_of(P0), what), 1);
    assert_int_equal(count_in(body_of(D0), what), 1);
}

static void serve_pair(void)
{
    take(P0);
    take(D0);
    answer(P0, 200, REPLY);
    answer(D0, 200, REPLY);
}

static void a_priority_for_both_legs(void **state)
{
    (void) state;
    start("sglang", POLICY("{ priority = -7 }"));
    ask();
    serve_pair();
    both_heard("\"priority\":-7");
    answered("hello");
    recorded("\"hints\":{\"priority\":-7}}");
    recorded("\"prefill_hints\":\"priority\",\"decode_hints\":\"priority\"");
}

static void in_the_place_of_the_clients(void **state)
{
    (void) state;
    start("sglang", POLICY("{ priority = 3 }"));
    ask_body("{\"model\":\"m\",\"prompt\":\"x\",\"priority\":99}");
    serve_pair();
    both_heard("\"priority\":");
    both_heard("\"priority\":3");
    answered("hello");
}

static void the_clients_where_the_plan_has_none(void **state)
{
    (void) state;
    start("sglang", POLICY("{ }"));
    ask_body("{\"model\":\"m\",\"prompt\":\"x\",\"priority\":99}");
    serve_pair();
    both_heard("\"priority\":99");
    answered("hello");
}

static void actions_on_generate(void **state)
{
    (void) state;
    start("sglang", POLICY("{ priority = 1, kv_hints = { " ACTION " } }"));
    ask_with("/generate", "", GENERATE);
    serve_pair();
    both_heard(ENVELOPE);
    both_heard("\"priority\":1");
    answered("hello");
    recorded("\"hints\":{\"priority\":1,\"kv_hints\":[{\"action_id\":\"a\",");
    recorded("\"decode_hints\":\"priority,kv_hints\"");
}

/* Elsewhere SGLang has no such member. */
static void actions_on_generate_alone(void **state)
{
    (void) state;
    start("sglang", POLICY("{ kv_hints = { " ACTION " } }"));
    ask();
    serve_pair();
    assert_null(strstr(body_of(P0), "kv_hints"));
    assert_null(strstr(body_of(D0), "kv_hints"));
    answered("hello");
    recorded("\"end_ms\"");
}

/* A client's is none, whatever it is. */
static void a_clients_actions(void **state)
{
    (void) state;
    start("sglang", POLICY("{ }"));
    ask_with("/generate", "", "{\"text\":\"x\",\"kv_hints\":{\"actions\":[]},\"a\":1}");
    serve_pair();
    assert_null(strstr(body_of(P0), "kv_hints"));
    assert_null(strstr(body_of(D0), "kv_hints"));
    answered("hello");
}

/* vLLM's priority is another thing, and its kv_hints have no member. */
static void none_for_vllm(void **state)
{
    (void) state;
    start("NixlConnector", POLICY("{ priority = 5, kv_hints = { " ACTION " } }"));
    ask();
    take(P0);
    assert_null(strstr(body_of(P0), "priority"));
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    assert_null(strstr(body_of(D0), "priority"));
    assert_null(strstr(body_of(D0), "kv_hints"));
    answer(D0, 200, REPLY);
    answered("hello");
    recorded("\"plan\":{\"kind\":\"handoff\",\"prefill\":\"p0\",\"decode\":\"d0\",\"hints\":{");
}

/* The first plan's hold for its alternate; what fallback says then is what holds. */
#define TWO(more)                                                                                  \
    "return { api = 2, name = 'mine', version = '1', plan = function(req, view) return { prefill " \
    "= view.prefill[1], decode = view.decode[1], hints = { priority = 4 }, alternates = { { "      \
    "prefill = view.prefill[2], decode = view.decode[2] } } } end" more " }"

static void second_try(const char *policy, const char *what)
{
    start("sglang", policy);
    ask();
    take(P0);
    take(D0);
    refuse(P0);
    reset(P0);
    TURN_UNTIL(&rig.loop, has_caller(&engines[P1]));
    take(P1);
    take(D1);
    assert_true(heard(P1, what));
    assert_true(heard(D1, what));
    answer(P1, 200, REPLY);
    answer(D1, 200, REPLY);
    answered("hello");
    take(D0); /* the first one is aborted */
    answer(D0, 200, "{}");
}

static void an_alternate_has_them_too(void **state)
{
    (void) state;
    second_try(TWO(""), "\"priority\":4");
}

static void a_later_answer_has_its_own(void **state)
{
    (void) state;
    second_try(TWO(", fallback = function(req, view) return { prefill = view.prefill[2], decode = "
                   "view.decode[2], hints = { priority = 6 } } end"),
               "\"priority\":6");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE_OF(a_priority_for_both_legs),
        CASE_OF(in_the_place_of_the_clients),
        CASE_OF(actions_on_generate),
        CASE_OF(the_clients_where_the_plan_has_none),
        CASE_OF(actions_on_generate_alone),
        CASE_OF(a_clients_actions),
        CASE_OF(none_for_vllm),
        CASE_OF(an_alternate_has_them_too),
        CASE_OF(a_later_answer_has_its_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
