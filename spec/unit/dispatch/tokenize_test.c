/* Token ids of a prompt that is text: which engine is asked for them and with what, and that the request goes on whatever becomes of it. */
#include "dispatch/attempt_rig.h"

#define TOKENS "{\"count\":3,\"max_model_len\":4096,\"tokens\":[11,12,13]}"
/* Its plan is the default one where the policy is told something else. */
#define POLICY                                                                                     \
    "return { api = 2, name = 'mine', version = '1', plan = function(req, view)\n"                 \
    "  assert(req.token_source == 'engine' and req.prompt_tokens == 3, req.token_source)\n"        \
    "  return { kind = 'single', worker = view.hybrid[1] }\n"                                      \
    "end }\n"

static void follow(int which)
{
    atomic_store(&engines[which].worker->kv_parts, UINT64_C(1) << 32 | 1);
}

static void start(uint64_t tokenize_ms)
{
    rig_start(&(struct rig_options){.is_single_only = true,
                                    .policy = POLICY,
                                    .keeps_idle = true,
                                    .deadlines = {.tokenize_ms = tokenize_ms}});
    follow(S0);
}

/* The request that the client has sent, not one of the gateway's own. */
static void is_served(const char *policy)
{
    assert_true(strncmp(engines[S0].got, "POST /v1/", 9) == 0);
    answer(S0, 200, REPLY);
    answered(policy);
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
}

#define BY_IDS "x-baton-policy: mine@1"
#define WITHOUT "x-baton-policy: default"

static void is_served_without(void)
{
    take(S0);
    is_served(WITHOUT);
}

static void the_engine_is_asked_first(void **state)
{
    start(60000);
    ask_body("{\"prompt\":\"a b \\\"c\\\"\",\"model\":\"m\",\"max_tokens\":5,"
             "\"add_special_tokens\":false,\"kv_transfer_params\":{\"a\":1}}");
    take(S0);
    assert_true(strncmp(engines[S0].got, "POST /tokenize HTTP/1.1\r\n", 25) == 0);
    assert_string_equal(
        body_of(S0), "{\"model\":\"m\",\"prompt\":\"a b \\\"c\\\"\",\"add_special_tokens\":false}");
    answer(S0, 200, TOKENS);
    take(S0);
    is_served(BY_IDS);
    recorded("\"prompt_tokens\":3,");
    recorded("\"token_source\":\"engine\"");
    assert_int_equal(atomic_load(&rig.d->stats.tokenized), 1);
    assert_int_equal(atomic_load(&rig.d->stats.tokenize_failed), 0);
}

static void a_prompt_of_before_is_known(void **state)
{
    start(60000);
    ask();
    take(S0);
    answer(S0, 200, TOKENS);
    take(S0);
    is_served(BY_IDS);
    ask_body("{\"model\":\"m\",\"prompt\":\"x\",\"temperature\":0.5}");
    take(S0);
    is_served(BY_IDS);
    assert_int_equal(atomic_load(&rig.d->stats.tokenized_cached), 1);
    ask_body("{\"model\":\"m2\",\"prompt\":\"x\"}"); /* another tokenizer, for all we know */
    take(S0);
    assert_true(heard(S0, "POST /tokenize "));
    answer(S0, 200, TOKENS);
    take(S0);
    is_served(BY_IDS);
    assert_int_equal(atomic_load(&rig.d->stats.tokenized), 2);
}

static void a_chat_goes_with_what_its_template_gets(void **state)
{
    start(60000);
    ask_with("/v1/chat/completions", "",
             "{\"model\":\"m\",\"tools\":[{\"type\":\"function\"}],\"temperature\":0,"
             "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
             "\"chat_template_kwargs\":{\"thinking\":true},\"add_generation_prompt\":null}");
    take(S0);
    assert_string_equal(body_of(S0),
                        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                        "\"tools\":[{\"type\":\"function\"}],"
                        "\"chat_template_kwargs\":{\"thinking\":true}}");
    answer(S0, 200, TOKENS);
    take(S0);
    is_served(BY_IDS);
}

static void some_prompts_are_not_asked_for(void **state)
{
    static const char *const bodies[][2] = {
        {"/v1/completions", "{\"model\":\"m\",\"prompt\":[1,2,3,4]}"},
        {"/v1/completions", "{\"model\":\"m\",\"prompt\":\"x\",\"truncate_prompt_tokens\":8}"},
        {"/v1/embeddings", "{\"model\":\"m\",\"input\":\"x\"}"},
        {"/v1/responses", "{\"model\":\"m\",\"input\":\"x\"}"},
        {"/v1/chat/completions",
         "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\","
         "\"image_url\":{\"url\":\"http://h/a.png\"}}]}]}"}};

    start(60000);
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        ask_with(bodies[i][0], "", bodies[i][1]);
        is_served_without();
    }
    ask_body("{\"model\":\"m\",\"prompt\":[1,2,3,4]}");
    is_served_without();
    recorded("\"token_source\":\"client\"");
}

/* Where its ids would be of no use, or nobody can tell them. */
static void some_workers_are_not_asked(void **state)
{
    start(60000);
    atomic_store(&engines[S0].worker->kv_parts, 0);
    ask();
    is_served_without();
    follow(S0);
    engines[S0].worker->engine = BT_ENGINE_TRTLLM;
    ask();
    is_served_without();
}

static void it_is_off(void **state)
{
    start(0);
    ask();
    is_served_without();
}

/* It would have to be asked on a connection that nobody answers. */
static void a_worker_that_is_down_is_not_asked(void **state)
{
    rig_start(
        &(struct rig_options){.connector = "NixlConnector", .deadlines = {.tokenize_ms = 60000}});
    follow(P2);
    bt_worker_set_health(engines[P2].worker, BT_HEALTH_DOWN, "spec");
    ask();
    take(P0);
    assert_false(has_caller(&engines[P2]));
}

static void an_engine_that_refuses(void **state)
{
    rig_start(
        &(struct rig_options){.connector = "NixlConnector", .deadlines = {.tokenize_ms = 60000}});
    follow(P2);
    refuse(P2);
    ask();
    take(P0);
    assert_int_equal(atomic_load(&rig.d->stats.tokenize_failed), 1);
    assert_int_equal(blamed(P2), 0);
}

static void an_engine_that_is_late(void **state)
{
    start(50);
    ask();
    take(S0);
    if (heard(S0, "POST /tokenize ")) /* it may be too late even for being asked */
        take(S0);
    is_served(WITHOUT);
    assert_int_equal(atomic_load(&rig.d->stats.tokenize_failed), 1);
    assert_int_equal(blamed(S0), 0);
}

/* An engine is asked and says this, which gives no ids: so many have by now. */
static void is_answered_without(unsigned status, const char *body, uint64_t failed)
{
    ask();
    take(S0);
    assert_true(heard(S0, "POST /tokenize "));
    answer(S0, status, body);
    is_served_without();
    assert_int_equal(atomic_load(&rig.d->stats.tokenize_failed), failed);
}

static void answers_that_are_none(void **state)
{
    static const struct {
        unsigned status;
        const char *body;
    } answers[] = {{404, "{\"detail\":\"Not Found\"}"}, {200, "{\"tokens\":\"x\"}"}, {200, "no"}};

    start(60000);
    for (unsigned i = 0; i < 3; i++)
        is_answered_without(answers[i].status, answers[i].body, i + 1);
}

/* Three in a row: then engines have a rest, until the clock has gone on for a second, which it may do here at any time. */
static void failures_give_engines_a_rest(void **state)
{
    unsigned failed = 0;

    start(60000);
    for (bool is_asked = true; is_asked && failed < 50;) {
        ask();
        take(S0);
        is_asked = heard(S0, "POST /tokenize ");
        if (is_asked) {
            answer(S0, 500, "{}");
            take(S0);
            failed++;
        }
        is_served(WITHOUT);
    }
    assert_in_range(failed, 3, 49);
    assert_int_equal(atomic_load(&rig.d->stats.tokenize_failed), failed);
}

/* As many as would give engines a rest: a prompt that none takes, such as a chat without a user, is not their failure. */
static void prompts_that_are_refused_give_engines_none(void **state)
{
    static const unsigned statuses[] = {400, 422, 413, 400};

    start(60000);
    for (unsigned i = 0; i < 4; i++)
        is_answered_without(statuses[i], "{\"error\":{\"message\":\"no\"}}", i + 1);
}

/* As long as a prompt may make it. */
static void answer_too_long(void)
{
    static const char head[] = "HTTP/1.1 200 X\r\nContent-Length: 99999999\r\n\r\n";
    static char piece[32768];

    memset(piece, ' ', sizeof(piece));
    assert_int_equal(send(engines[S0].conn, head, sizeof(head) - 1, MSG_NOSIGNAL),
                     sizeof(head) - 1);
    while (!has_hung_up(&engines[S0])) {
        (void) send(engines[S0].conn, piece, sizeof(piece), MSG_NOSIGNAL | MSG_DONTWAIT);
        turn(&rig.loop, 1);
    }
}

static void ids_that_are_too_many_give_engines_none(void **state)
{
    start(60000);
    for (unsigned i = 0; i < 4; i++) {
        ask();
        take(S0);
        assert_true(heard(S0, "POST /tokenize "));
        answer_too_long();
        is_served_without();
        assert_int_equal(atomic_load(&rig.d->stats.tokenize_failed), i + 1);
    }
}

static void a_client_that_leaves_meanwhile(void **state)
{
    start(60000);
    ask();
    take(S0);
    client_leaves();
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[S0]));
    recorded("client_gone");
    assert_int_equal(engines[S0].requests, 1);
}

static void a_request_that_is_cancelled_meanwhile(void **state)
{
    start(60000);
    ask();
    take(S0);
    bt_dispatch_shared_cancel_here(&rig.shared, BT_STR("req-1"), 0);
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[S0]));
    assert_int_equal(atomic_load(&rig.d->stats.tokenize_failed), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {CASE_OF(the_engine_is_asked_first),
                                       CASE_OF(a_prompt_of_before_is_known),
                                       CASE_OF(a_chat_goes_with_what_its_template_gets),
                                       CASE_OF(some_prompts_are_not_asked_for),
                                       CASE_OF(some_workers_are_not_asked),
                                       CASE_OF(it_is_off),
                                       CASE_OF(a_worker_that_is_down_is_not_asked),
                                       CASE_OF(an_engine_that_refuses),
                                       CASE_OF(an_engine_that_is_late),
                                       CASE_OF(answers_that_are_none),
                                       CASE_OF(failures_give_engines_a_rest),
                                       CASE_OF(prompts_that_are_refused_give_engines_none),
                                       CASE_OF(ids_that_are_too_many_give_engines_none),
                                       CASE_OF(a_client_that_leaves_meanwhile),
                                       CASE_OF(a_request_that_is_cancelled_meanwhile)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
