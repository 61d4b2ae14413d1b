#include "discovery/kube_table.h"

#include "base/err.h"
#include "base/log.h"
#include "unit.h"

#include <stdio.h>

static bt_loop_t loop;
static bt_kube_table_t *t;
static char told[512]; /* "+port" and "-port"; "~": who was there has ended */
static unsigned calls, no_memory;
static const char *refused; /* a port */
static unsigned waits;

static int sink(void *user, bt_found_change_t *changes, unsigned count)
{
    (void) user;
    calls++;
    assert_true(count <= BT_KUBE_BATCH);
    if (no_memory > 0 && no_memory-- > 0)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < count; i++) {
        bt_found_change_t *c = &changes[i];
        const char *port = strrchr(c->found.spec.url, ':') + 1;
        c->rc = !c->is_gone && refused != NULL && strcmp(port, refused) == 0 ? BT_E_CONFIG : 0;
        snprintf(c->why, sizeof c->why, "not this one");
        snprintf(told + strlen(told), sizeof told - strlen(told), "%s%s%s%s ",
                 c->is_gone ? "-" : "+", port, c->has_ended ? "~" : "", c->rc < 0 ? "!" : "");
    }
    return 0;
}

static uint64_t life; /* of the pods that come */

static void pod(const char *name, enum bt_kube_state state, unsigned first, unsigned count)
{
    bt_kube_pod_t p = {.state = state, .namespace = "n", .life = life};
    char url[64];
    snprintf(p.name, sizeof p.name, "%s", name);
    for (; p.worker_count < count; p.worker_count++) {
        bt_worker_spec_init(&p.workers[p.worker_count]);
        snprintf(url, sizeof url, "http://10.0.0.1:%u", first + p.worker_count);
        p.workers[p.worker_count].url = bt_str_dup(bt_str(url));
        p.workers[p.worker_count].zone = bt_str_dup(bt_str(name));
    }
    assert_int_equal(bt_kube_table_take(t, &p), 0);
    bt_kube_pod_fini(&p);
}

static void drop(const char *name)
{
    bt_kube_pod_t p = {.namespace = "n"};
    snprintf(p.name, sizeof p.name, "%s", name);
    bt_kube_table_drop(t, &p);
}

static void stop(bt_timer_t *timer)
{
    bt_loop_stop(timer->loop);
}

static void turn(uint64_t ms)
{
    bt_timer_t timer;
    bt_timer_init(&loop, &timer, stop);
    bt_timer_start(&timer, ms);
    bt_loop_run(&loop);
}

/* What is told from now on; a slow machine has its time. Nothing: a moment without. */
static void expect(const char *wanted)
{
    told[0] = '\0';
    do
        turn(150);
    while (strlen(told) < strlen(wanted) && ++waits < 100);
    assert_string_equal(told, wanted);
}

static unsigned count(enum bt_kube_state state)
{
    bt_kube_counts_t c;
    bt_kube_table_count(t, &c);
    return c.by_state[state];
}

static int setup(void **state)
{
    bt_log_set(BT_LOG_ERROR, false, 2);
    refused = NULL;
    calls = no_memory = waits = 0;
    told[0] = '\0';
    assert_int_equal(bt_loop_init(&loop, BT_LOOP_CONTROL), 0);
    return bt_kube_table_new(&t, &loop, "label", NULL, sink, NULL);
}

static int teardown(void **state)
{
    bt_kube_table_free(t);
    bt_loop_fini(&loop);
    return 0;
}

static void many_changes_of_a_moment_are_one(void **state)
{
    pod("a", BT_KUBE_READY, 1, 2);
    pod("a", BT_KUBE_NOT_READY, 0, 0);
    pod("a", BT_KUBE_READY, 2, 1);
    expect("+2 ");
    pod("a", BT_KUBE_READY, 2, 1);
    expect(""); /* no news */
    pod("a", BT_KUBE_TERMINATING, 0, 0);
    expect("-2 ");
    assert_int_equal(count(BT_KUBE_TERMINATING), 1);
    drop("a");
    drop("nobody");
    expect("-2~ ");
    for (unsigned i = 0; i < 3 * BT_KUBE_BATCH; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%u", i);
        pod(name, BT_KUBE_READY, 1000 + i, 1);
    }
    calls = 0;
    while (calls < 3 && ++waits < 100)
        turn(150);
    assert_int_equal(calls, 3);
}

static void an_address_is_who_has_it_last(void **state)
{
    pod("a", BT_KUBE_READY, 1, 1);
    expect("+1 ");
    pod("b", BT_KUBE_READY, 1, 1); /* told before a's end */
    expect("+1~ ");
    pod("a", BT_KUBE_ENDED, 0, 0);
    drop("a");
    expect("");
    drop("b");
    pod("c", BT_KUBE_READY, 1, 1);
    expect("+1~ ");
}

/* The same pod, or one of its name, with other processes: at once, at the next look, or as it goes. */
static void processes_that_have_ended_are_told(void **state)
{
    pod("a", BT_KUBE_READY, 1, 2);
    expect("+1 +2 ");
    life = 2;
    pod("a", BT_KUBE_READY, 1, 2);
    expect("+1~ +2~ ");
    pod("a", BT_KUBE_READY, 1, 2);
    expect("");
    drop("a");
    pod("a", BT_KUBE_READY, 1, 1);
    expect("+1~ -2~ ");
    pod("a", BT_KUBE_NOT_READY, 0, 0); /* it lives */
    expect("-1 ");
    pod("a", BT_KUBE_READY, 1, 1);
    expect("+1 ");
    life = 3;
    pod("a", BT_KUBE_NOT_READY, 0, 0);
    expect("-1~ ");
    pod("a", BT_KUBE_READY, 1, 1);
    expect("+1 ");
    no_memory = 1; /* told again as it was */
    life = 4;
    pod("a", BT_KUBE_READY, 1, 1);
    calls = 0;
    while (calls < 1 && ++waits < 100)
        turn(150);
    expect("+1~ ");
    life = 0;
}

/* Kubernetes deletes a pod in two steps: what runs goes on in between, and ends with the second. */
static void the_end_of_one_that_serves_no_more_is_told(void **state)
{
    static const enum bt_kube_state rests[] = {BT_KUBE_TERMINATING, BT_KUBE_NOT_READY,
                                               BT_KUBE_REFUSED};
    for (unsigned i = 0; i < 3; i++) {
        pod("a", BT_KUBE_READY, 1, 2);
        expect("+1 +2 ");
        pod("a", rests[i], 0, 0);
        expect("-1 -2 ");
        pod("a", rests[i], 0, 0);
        expect("");
        drop("a");
        expect("-1~ -2~ ");
    }
    pod("a", BT_KUBE_READY, 1, 1);
    expect("+1 ");
    pod("a", BT_KUBE_TERMINATING, 0, 0);
    expect("-1 ");
    pod("b", BT_KUBE_READY, 1, 1); /* has its address, so it is no more */
    expect("+1~ ");
    drop("a");
    expect("");
    pod("b", BT_KUBE_TERMINATING, 0, 0);
    expect("-1 ");
    pod("b", BT_KUBE_ENDED, 0, 0);
    expect("-1~ ");
    drop("b");
    expect("");
    pod("c", BT_KUBE_TERMINATING, 0, 0); /* never served */
    drop("c");
    expect("");
    pod("d", BT_KUBE_READY, 1, 1); /* for a moment */
    pod("d", BT_KUBE_TERMINATING, 0, 0);
    drop("d");
    expect("");
    bt_kube_table_begin_list(t);
    pod("e", BT_KUBE_READY, 1, 1);
    pod("f", BT_KUBE_READY, 2, 1);
    bt_kube_table_end_list(t);
    expect("+1 +2 ");
    pod("e", BT_KUBE_TERMINATING, 0, 0);
    expect("-1 ");
    bt_kube_table_begin_list(t); /* its end was missed */
    pod("f", BT_KUBE_READY, 2, 1);
    bt_kube_table_end_list(t);
    expect("-1~ ");
}

static void who_is_not_listed_is_gone(void **state)
{
    bt_kube_table_begin_list(t);
    pod("a", BT_KUBE_READY, 1, 1);
    pod("b", BT_KUBE_READY, 2, 1);
    bt_kube_table_end_list(t);
    expect("+1 +2 ");
    bt_kube_table_begin_list(t); /* begun, and begun again */
    pod("a", BT_KUBE_READY, 1, 1);
    bt_kube_table_begin_list(t);
    pod("b", BT_KUBE_READY, 2, 1);
    bt_kube_table_end_list(t);
    expect("-1~ ");
    assert_int_equal(count(BT_KUBE_READY), 1);
}

static void what_is_refused_is_told_and_taken_back(void **state)
{
    bt_text_t out;
    pod("a", BT_KUBE_READY, 1, 1);
    expect("+1 ");
    refused = "1";
    bt_kube_table_again(t);
    expect("+1! -1 "); /* what was true before is not any more */
    assert_int_equal(count(BT_KUBE_REFUSED), 1);
    bt_text_init(&out);
    bt_kube_table_describe(t, &out);
    assert_non_null(strstr(out.data, "{\"pod\":\"n/a\",\"why\":\"not this one\"}"));
    bt_text_fini(&out);
    pod("a", BT_KUBE_READY, 1, 1);
    expect(""); /* as it was */
    assert_int_equal(count(BT_KUBE_REFUSED), 1);
    refused = NULL;
    bt_kube_table_again(t);
    expect("+1 ");
    assert_int_equal(count(BT_KUBE_READY), 1);
}

static void without_memory_it_comes_again(void **state)
{
    no_memory = 1;
    pod("a", BT_KUBE_READY, 1, 1);
    pod("b", BT_KUBE_READY, 2, 1);
    while (calls < 1 && ++waits < 100)
        turn(150);
    assert_string_equal(told, "");
    drop("a"); /* it may have been taken */
    expect("-1~ +2 ");
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(many_changes_of_a_moment_are_one),
        CASE(an_address_is_who_has_it_last),
        CASE(who_is_not_listed_is_gone),
        CASE(what_is_refused_is_told_and_taken_back),
        CASE(without_memory_it_comes_again),
        CASE(processes_that_have_ended_are_told),
        CASE(the_end_of_one_that_serves_no_more_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
