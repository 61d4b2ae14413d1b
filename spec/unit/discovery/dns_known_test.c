/* Who is kept, and who goes: every cell of the table in dns_known.c. */
#include "discovery/dns_known.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>

static bt_dns_known_t known;
static uint64_t now_ms;
static char down[64]; /* this host's checks fail */

static bool is_down(void *user, const bt_dns_place_t *place)
{
    (void) user;
    return strcmp(place->host, down) == 0;
}

static bt_dns_judge_t judge(void)
{
    return (bt_dns_judge_t){.hold_ms = 1000, .now_ms = now_ms, .is_down = is_down};
}

static int setup(void **state)
{
    bt_dns_known_init(&known, "p.test", 8000);
    now_ms = 50000;
    down[0] = '\0';
    return 0;
}

static int teardown(void **state)
{
    bt_dns_known_fini(&known);
    return 0;
}

static bool take(enum bt_dns_result result, const bt_dns_place_t *places, unsigned count)
{
    const bt_dns_answer_t answer = {.result = result, .places = places, .count = count};
    const bt_dns_judge_t j = judge();

    return bt_dns_known_take(&known, &answer, &j);
}

/* An answer of addresses, "a b c"; "" = none. */
static bool answers(const char *hosts)
{
    bt_dns_place_t places[8] = {0};
    unsigned count = 0;
    char copy[128];

    snprintf(copy, sizeof copy, "%s", hosts);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        strcpy(places[count++].host, word);
    return take(count > 0 ? BT_DNS_OK : BT_DNS_EMPTY, places, count);
}

static bool knows(const char *hosts)
{
    char text[256] = "";

    for (unsigned i = 0; i < known.count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i > 0 ? " " : "",
                 known.items[i].place.host);
    return strcmp(text, hosts) == 0;
}

static void takes_what_is_named(void **state)
{
    assert_true(answers("10.0.0.1 10.0.0.2"));
    assert_true(knows("10.0.0.1 10.0.0.2"));
    assert_int_equal(known.items[0].place.port, 8000);
    assert_false(answers("10.0.0.2 10.0.0.1")); /* another order is no other set */
    assert_false(answers("10.0.0.2 10.0.0.1 10.0.0.1"));
    assert_true(answers("10.0.0.3 10.0.0.2 10.0.0.1"));
    assert_true(knows("10.0.0.1 10.0.0.2 10.0.0.3"));
    assert_int_equal(bt_dns_known_missing(&known), 0);
}

static void one_that_answers_goes_after_the_hold_time(void **state)
{
    const bt_dns_judge_t j = judge();

    answers("a b");
    assert_int_equal(bt_dns_known_due_ms(&known, &j), UINT64_MAX);
    assert_false(answers("a"));
    assert_int_equal(bt_dns_known_missing(&known), 1);
    assert_int_equal(bt_dns_known_due_ms(&known, &j), 1000);
    now_ms += 999;
    assert_false(answers("a"));
    assert_true(knows("a b"));
    assert_false(answers("a b")); /* it is there again: the time begins anew */
    assert_int_equal(bt_dns_known_missing(&known), 0);
    now_ms += 999;
    assert_false(answers("a"));
    now_ms += 999;
    assert_false(answers("a"));
    now_ms += 1;
    assert_true(answers("a"));
    assert_true(knows("a"));
}

static void one_that_is_down_goes_at_once(void **state)
{
    answers("a b c");
    strcpy(down, "c");
    assert_false(answers("a b c"));
    assert_true(answers("a b"));
    assert_true(knows("a b"));
    assert_false(answers("a"));
    strcpy(down, "b"); /* it goes down while it is held */
    assert_true(answers("a"));
    assert_true(knows("a"));
}

static void nobody_named_takes_nobody_who_answers(void **state)
{
    answers("a b");
    strcpy(down, "b");
    assert_false(answers(""));
    assert_int_equal(bt_dns_known_missing(&known), 2);
    now_ms += 999;
    assert_false(take(BT_DNS_NXDOMAIN, NULL, 0));
    assert_true(knows("a b"));
    now_ms += 1;
    assert_true(take(BT_DNS_NXDOMAIN, NULL, 0));
    assert_true(knows("a"));
    now_ms += 1000000;
    assert_false(answers(""));
    assert_true(knows("a"));
    /* the time without any answer does not count as the time without this one */
    assert_true(answers("c"));
    assert_true(knows("a c"));
    now_ms += 999;
    assert_false(answers("c"));
    now_ms += 1;
    assert_true(answers("c"));
    assert_true(knows("c"));
}

static void an_error_says_nothing(void **state)
{
    static const enum bt_dns_result errors[] = {BT_DNS_TIMEOUT, BT_DNS_MALFORMED, BT_DNS_FAILED};

    answers("a b");
    strcpy(down, "b");
    for (unsigned i = 0; i < 3; i++) {
        now_ms += 100000;
        assert_false(take(errors[i], NULL, 0));
        assert_true(knows("a b"));
        assert_int_equal(bt_dns_known_missing(&known), 0);
    }
    assert_true(answers("a"));
}

static bt_dns_place_t target(const char *name, const char *host, unsigned port)
{
    bt_dns_place_t p = {.port = port};

    snprintf(p.target, sizeof p.target, "%s", name);
    snprintf(p.host, sizeof p.host, "%s", host);
    return p;
}

static void a_target_is_itself_wherever_it_is(void **state)
{
    bt_dns_place_t p[] = {target("x.test", "10.0.0.1", 80), target("y.test", "10.0.0.2", 80)};

    assert_true(take(BT_DNS_OK, p, 2));
    p[0] = target("x.test", "", 80); /* its own lookup has failed */
    assert_false(take(BT_DNS_OK, p, 2));
    assert_true(knows("10.0.0.1 10.0.0.2"));
    p[0] = target("x.test", "10.0.0.9", 80);
    assert_true(take(BT_DNS_OK, p, 2));
    assert_true(knows("10.0.0.9 10.0.0.2"));
    p[0].weight = 7;
    assert_true(take(BT_DNS_OK, p, 2));
    assert_int_equal(known.items[0].place.weight, 7);
    p[0] = target("x.test", "10.0.0.9", 81); /* another port is another worker */
    assert_true(take(BT_DNS_OK, p, 2));
    assert_int_equal(known.count, 3);
    p[0] = target("z.test", "", 80); /* nobody knows yet where it is */
    assert_false(take(BT_DNS_OK, p, 2));
    assert_int_equal(known.count, 3);
}

static void a_target_of_both_families_stays_where_it_is(void **state)
{
    bt_dns_place_t p = target("x.test", "10.0.0.1", 80);

    take(BT_DNS_OK, &p, 1);
    p = target("x.test", "fd00::1", 80);
    assert_false(take(BT_DNS_OK, &p, 1));
    assert_true(knows("10.0.0.1"));
    strcpy(down, "10.0.0.1");
    assert_true(take(BT_DNS_OK, &p, 1));
    assert_true(knows("fd00::1"));
}

/* As a name that gives others with every answer: all of the last answer are known, and as many as there is room for of those before. */
static void fresh_addresses_have_a_bound(void **state)
{
    static bt_dns_place_t places[BT_DNS_PLACES_MAX];

    for (unsigned answer = 0; answer < 4; answer++) {
        for (unsigned i = 0; i < BT_DNS_PLACES_MAX; i++)
            snprintf(places[i].host, sizeof places[i].host, "10.%u.%u.%u", answer, i / 256,
                     i % 256);
        now_ms += 10;
        assert_true(take(BT_DNS_OK, places, BT_DNS_PLACES_MAX));
        assert_int_equal(known.count, answer == 0 ? BT_DNS_PLACES_MAX : BT_DNS_KNOWN_MAX);
        assert_int_equal(known.is_full, answer >= 2);
    }
    for (unsigned i = 0; i < known.count; i++) /* those that are missing longest have gone */
        assert_true(strncmp(known.items[i].place.host, "10.2.", 5) == 0 ||
                    strncmp(known.items[i].place.host, "10.3.", 5) == 0);
    now_ms += 1000;
    assert_true(take(BT_DNS_OK, places, BT_DNS_PLACES_MAX));
    assert_int_equal(known.count, BT_DNS_PLACES_MAX);
    assert_false(take(BT_DNS_OK, places, BT_DNS_PLACES_MAX));
}

static void an_answer_may_name_one_twice(void **state)
{
    assert_true(answers("a b a"));
    assert_int_equal(known.count, 2);
    assert_true(answers("a c c b"));
    assert_int_equal(known.count, 3);
    assert_false(answers("c c b a a"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(takes_what_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(one_that_answers_goes_after_the_hold_time, setup, teardown),
        cmocka_unit_test_setup_teardown(one_that_is_down_goes_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(nobody_named_takes_nobody_who_answers, setup, teardown),
        cmocka_unit_test_setup_teardown(an_error_says_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_target_is_itself_wherever_it_is, setup, teardown),
        cmocka_unit_test_setup_teardown(a_target_of_both_families_stays_where_it_is, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(fresh_addresses_have_a_bound, setup, teardown),
        cmocka_unit_test_setup_teardown(an_answer_may_name_one_twice, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
