/* Lists and n > 1: a child for every prompt and sample, and one answer of all of theirs. */
#include "dispatch/attempt_rig.h"

#define CHILD(text, more)                                                                          \
    "{\"id\":\"cmpl-1\",\"created\":5,\"choices\":[{\"index\":0,\"text\":\"" text "\"}]" more "}"
#define USAGE(p, c)                                                                                \
    ",\"usage\":{\"prompt_tokens\":" p ",\"completion_tokens\":" c ",\"total_tokens\":9}"

static void start(const char *body)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector", .max_fanout = 4});
    ask_body(body);
}

/* Which child the last request was. */
static unsigned child(int which)
{
    const char *at = strstr(engines[which].got, "X-Request-Id: req-1-");

    assert_non_null(at);
    return (unsigned) (at[strlen("X-Request-Id: req-1-")] - '0');
}

struct heard {
    char prefill[2][1024], decode[2][1024];
    int conn[2]; /* of decode */
};

static void prefilled(struct heard *h)
{
    for (int i = 0; i < 2; i++) {
        take(P0);
        snprintf(h->prefill[child(P0)], 1024, "%s", body_of(P0));
        answer(P0, 200, child(P0) == 0 ? HANDOFF("req-1-0") : HANDOFF("req-1-1"));
    }
    for (int i = 0; i < 2; i++) {
        take(D0);
        snprintf(h->decode[child(D0)], 1024, "%s", body_of(D0));
        h->conn[child(D0)] = engines[D0].conn;
    }
}

static void to_child(const struct heard *h, int i)
{
    engines[D0].conn = h->conn[i];
}

static unsigned count_of(const char *what)
{
    unsigned n = 0;

    for (const char *at = rig.answer; (at = strstr(at, what)) != NULL; at++)
        n++;
    return n;
}

static void two_samples(void **state)
{
    struct heard h;

    start("{\"model\":\"m\",\"prompt\":\"x\",\"n\":2,\"seed\":41}");
    prefilled(&h);
    for (int i = 0; i < 2; i++)
        assert_null(strstr(h.decode[i], "\"n\":2"));
    assert_non_null(strstr(h.decode[0], "\"seed\":41"));
    assert_non_null(strstr(h.decode[1], "\"seed\":42"));
    to_child(&h, 1);
    answer(D0, 200, CHILD("second", USAGE("3", "2")));
    turn(&rig.loop, 5);
    assert_false(client_got("HTTP")); /* one answer of all */
    to_child(&h, 0);
    answer(D0, 200, CHILD("first", USAGE("3", "4")));
    answered("first");
    assert_non_null(strstr(rig.answer, "{\"index\":0,\"text\":\"first\"}"));
    assert_non_null(strstr(rig.answer, "{\"index\":1,\"text\":\"second\"}"));
    assert_non_null(strstr(rig.answer, "\"prompt_tokens\":3")); /* once */
    assert_non_null(strstr(rig.answer, "\"completion_tokens\":6"));
    assert_int_equal(count_of("\"id\":\"cmpl-1\""), 1);
    assert_int_equal(atomic_load(&rig.d->stats.fanouts), 1);
    assert_int_equal(atomic_load(&rig.d->stats.attempts), 2);
}

static void two_prompts(void **state)
{
    struct heard h;

    start("{\"model\":\"m\",\"prompt\":[\"one\",\"two\"]}");
    prefilled(&h);
    assert_non_null(strstr(h.prefill[0], "\"prompt\":\"one\""));
    assert_non_null(strstr(h.prefill[1], "\"prompt\":\"two\""));
    for (int i = 0; i < 2; i++) {
        to_child(&h, i);
        answer(D0, 200,
               i == 0 ? CHILD("first", USAGE("3", "1")) : CHILD("second", USAGE("5", "1")));
    }
    answered("\"prompt_tokens\":8");
    assert_non_null(strstr(rig.answer, "{\"index\":1,\"text\":\"second\"}"));
}

/* One that fails is the request's failure: the others are stopped. */
static void a_child_that_fails(void **state)
{
    struct heard h;

    start("{\"model\":\"m\",\"prompt\":\"x\",\"n\":2}");
    prefilled(&h);
    to_child(&h, 1);
    answer(D0, 400, "{\"error\":{\"message\":\"too long\"}}");
    answered("HTTP/1.1 400");
    assert_true(client_got("too long"));
    to_child(&h, 0);
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[D0]));
    assert_int_equal(legs_of(D0, BT_BLAME_CANCELLED), 1);
}

/* Each has tries of its own before the first byte is out. */
static void a_child_that_is_tried_again(void **state)
{
    struct heard h;

    start("{\"model\":\"m\",\"prompt\":\"x\",\"n\":2}");
    prefilled(&h);
    to_child(&h, 0);
    answer(D0, 200, CHILD("first", ""));
    to_child(&h, 1);
    reset(D0);
    take(P0);
    assert_true(heard(P0, "X-Request-Id: req-1-1-a2\r\n"));
    answer(P0, 200, HANDOFF("req-1-1-a2"));
    take(D1);
    answer(D1, 200, CHILD("second", ""));
    answered("{\"index\":1,\"text\":\"second\"}");
    assert_non_null(strstr(rig.answer, "{\"index\":0,\"text\":\"first\"}"));
}

static void streams(void **state)
{
    struct heard h;

    start("{\"model\":\"m\",\"prompt\":\"x\",\"n\":2,\"stream\":true}");
    prefilled(&h);
    for (int i = 1; i >= 0; i--) {
        to_child(&h, i);
        stream_head(D0);
        event(D0, i == 0 ? CHILD("first", "") : CHILD("second", ""));
    }
    TURN_UNTIL(&rig.loop, client_got("first") && client_got("second"));
    to_child(&h, 0);
    stream_end(D0);
    turn(&rig.loop, 5);
    assert_false(client_got("[DONE]"));
    to_child(&h, 1);
    stream_end(D0);
    answered("data: [DONE]\n\n");
    assert_int_equal(count_of("[DONE]"), 1);
    assert_non_null(strstr(rig.answer, "{\"index\":0,\"text\":\"first\"}"));
    assert_non_null(strstr(rig.answer, "{\"index\":1,\"text\":\"second\"}"));
}

static void as_many_as_are_allowed(void **state)
{
    start("{\"model\":\"m\",\"prompt\":\"x\",\"n\":4}");
    take(P0);
    client_leaves();
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    assert_int_equal(atomic_load(&rig.d->stats.attempts), 4);
}

static void too_many(void **state)
{
    start("{\"model\":\"m\",\"prompt\":\"x\",\"n\":5}");
    answered("HTTP/1.1 400");
    assert_true(client_got("max_fanout"));
    assert_int_equal(atomic_load(&rig.d->stats.attempts), 0);
}

/* SGLang takes a list whole, with a room for each. */
static void a_list_that_goes_whole(void **state)
{
    rig_start(&(struct rig_options){.connector = "sglang"});
    ask_body("{\"model\":\"m\",\"prompt\":[\"one\",\"two\"]}");
    take(P0);
    take(D0);
    assert_true(heard(D0, "\"prompt\":[\"one\",\"two\"]"));
    assert_true(heard(D0, "\"bootstrap_room\":["));
    assert_int_equal(rig.d->rooms.live, 2);
    answer(P0, 200, REPLY);
    answer(D0, 200, REPLY);
    answered("hello");
    assert_int_equal(atomic_load(&rig.d->stats.fanouts), 0);
}

static void a_single_worker_does_it_alone(void **state)
{
    rig_start(&(struct rig_options){.is_single_only = true});
    ask_body("{\"model\":\"m\",\"prompt\":\"x\",\"n\":2}");
    take(S0);
    assert_true(heard(S0, "\"n\":2"));
    answer(S0, 200, REPLY);
    answered("hello");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE_OF(two_samples),
        CASE_OF(two_prompts),
        CASE_OF(a_child_that_fails),
        CASE_OF(a_child_that_is_tried_again),
        CASE_OF(streams),
        CASE_OF(as_many_as_are_allowed),
        CASE_OF(too_many),
        CASE_OF(a_list_that_goes_whole),
        CASE_OF(a_single_worker_does_it_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
