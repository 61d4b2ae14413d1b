/* Sources whose selectors choose the same pod: whose word the registry hears. */
#include "discovery/kube_words.h"

#include "base/err.h"
#include "base/log.h"
#include "unit.h"

#include <stdio.h>

static bt_kube_words_t *w;
static char told[512];      /* "+url zone" and "-url"; "~": who was there has ended */
static const char *refused; /* a zone */
static unsigned no_memory;
static bt_found_change_t change;

static int sink(void *user, bt_found_change_t *changes, unsigned count)
{
    (void) user;
    if (no_memory > 0 && no_memory-- > 0)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < count; i++) {
        bt_found_change_t *c = &changes[i];
        const char *zone = c->found.spec.zone;
        c->rc = !c->is_gone && refused != NULL && strcmp(zone, refused) == 0 ? BT_E_CONFIG : 0;
        snprintf(c->why, sizeof c->why, "not in %s", zone);
        snprintf(told + strlen(told), sizeof told - strlen(told), "%s%s%s%s%s ",
                 c->is_gone ? "-" : "+", c->found.spec.url, c->is_gone ? "" : zone,
                 c->has_ended ? "~" : "", c->rc < 0 ? "!" : "");
    }
    return 0;
}

static int say_in(unsigned source, const char *pool, const char *url, const char *zone)
{
    change = (bt_found_change_t){.found.pool = pool, .is_gone = zone == NULL};
    bt_worker_spec_init(&change.found.spec);
    change.found.spec.url = (char *) (uintptr_t) url;
    change.found.spec.zone = (char *) (uintptr_t) zone;
    told[0] = '\0';
    return bt_kube_words_change(w, source, "default", &change, 1);
}

/* As its pod goes; has it served, that was told before. */
static const char *end(unsigned source, const char *url)
{
    change = (bt_found_change_t){.is_gone = true, .has_ended = true};
    bt_worker_spec_init(&change.found.spec);
    change.found.spec.url = (char *) (uintptr_t) url;
    told[0] = '\0';
    assert_int_equal(bt_kube_words_change(w, source, "default", &change, 1), 0);
    return told;
}

/* zone NULL: it is gone there. */
static const char *say(unsigned source, const char *url, const char *zone)
{
    assert_int_equal(say_in(source, NULL, url, zone), 0);
    return told;
}

static int setup(void **state)
{
    bt_log_set(BT_LOG_ERROR, false, 2);
    refused = NULL;
    no_memory = 0;
    return bt_kube_words_new(&w, 3, sink, NULL);
}

static int teardown(void **state)
{
    bt_kube_words_free(w);
    return 0;
}

static void the_first_listed_is_heard_while_it_lasts(void **state)
{
    assert_string_equal(say(1, "x", "b"), "+xb ");
    assert_string_equal(say(2, "x", "c"), "");
    assert_string_equal(say(0, "x", "a"), "+xa ");
    assert_string_equal(say(1, "x", "b2"), "");
    assert_string_equal(say(2, "x", NULL), "");
    assert_string_equal(say(0, "x", "a2"), "+xa2 "); /* described anew */
    assert_string_equal(say(0, "x", NULL), "+xb2 "); /* the next one's, as it is by now */
    assert_string_equal(say(1, "x", NULL), "-x ");
    assert_string_equal(say(1, "x", NULL), "");
}

static void places_are_by_url_and_pool(void **state)
{
    assert_string_equal(say(0, "x", "a"), "+xa ");
    assert_string_equal(say(1, "y", "b"), "+yb ");
    assert_int_equal(say_in(1, "other", "x", "b"), 0);
    assert_string_equal(told, "+xb ");
    assert_int_equal(say_in(1, "default", "x", "b"), 0); /* what no pool means */
    assert_string_equal(told, "");
}

static void a_refused_word_does_not_keep_another(void **state)
{
    refused = "a";
    assert_string_equal(say(1, "x", "b"), "+xb ");
    assert_string_equal(say(0, "x", "a"), "+xa! "); /* b's stays as it was */
    assert_int_equal(change.rc, BT_E_CONFIG);
    assert_string_equal(change.why, "not in a");
    assert_string_equal(say(1, "x", NULL), "-x ");

    assert_string_equal(say(0, "y", "good"), "+ygood ");
    assert_string_equal(say(1, "y", "a"), ""); /* not judged yet */
    assert_string_equal(say(2, "y", "c"), "");
    assert_string_equal(say(0, "y", NULL), "+ya! +yc "); /* the one after it */
    assert_int_equal(change.rc, 0);
    assert_string_equal(say(2, "y", "a"),
                        "+ya! -y "); /* what was told of it is not true any more */
    assert_int_equal(change.rc, BT_E_CONFIG);
}

static void the_end_of_one_that_nobody_names_is_told(void **state)
{
    assert_string_equal(say(0, "x", "a"), "+xa ");
    assert_string_equal(say(1, "x", "b"), "");
    assert_string_equal(say(0, "x", NULL), "+xb ");
    assert_string_equal(say(1, "x", NULL), "-x ");
    assert_string_equal(end(0, "x"), "-x~ ");
    assert_string_equal(end(1, "x"), "-x~ "); /* the same news once more */
    assert_string_equal(say(0, "x", "new"), "+xnew ");
    assert_string_equal(end(1, "x"), ""); /* late, and of another one */
}

static void without_memory_it_comes_again(void **state)
{
    no_memory = 1;
    assert_int_equal(say_in(0, NULL, "x", "a"), BT_E_NOMEM);
    assert_string_equal(say(0, "x", "a"), "+xa ");
    no_memory = 1;
    assert_int_equal(say_in(0, NULL, "x", NULL), BT_E_NOMEM);
    assert_string_equal(say(0, "x", NULL), "-x ");
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(the_first_listed_is_heard_while_it_lasts),
        CASE(places_are_by_url_and_pool),
        CASE(a_refused_word_does_not_keep_another),
        CASE(the_end_of_one_that_nobody_names_is_told),
        CASE(without_memory_it_comes_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
