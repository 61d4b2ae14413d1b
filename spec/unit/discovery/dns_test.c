/* What answers come to in a real registry: the set of all names, names of workers, labels. Lookups are played by hand. */
#include "discovery/dns.h"

#include "../loop/util.h"

#include <stdio.h>

static bt_loop_t loop;
static bt_registry_t *registry;
static bt_dns_t *dns;
static bt_pool_spec_t pools[2];
static bt_worker_spec_t prefill, decode;
static bt_dns_name_t names[3];
static bt_dns_config_t config;

/* ---- the fake ---- */

struct bt_dns_lookup {
    char name[64];
    bt_dns_lookup_cb cb;
    void *user;
};
static bt_dns_lookup_t *running[8];
static unsigned started, cancelled;

const char *bt_dns_result_text(enum bt_dns_result result)
{
    return result == BT_DNS_OK ? "ok" : "not";
}

int bt_dns_lookup_start(bt_dns_lookup_t **lookup_p, bt_loop_t *on, const bt_dns_query_t *query,
                        bt_dns_lookup_cb cb, void *user)
{
    bt_dns_lookup_t *l = calloc(1, sizeof *l);

    (void) on;
    snprintf(l->name, sizeof l->name, "%s", query->name);
    l->cb = cb;
    l->user = user;
    for (unsigned i = 0; i < 8; i++)
        if (running[i] == NULL) {
            running[i] = l;
            break;
        }
    started++;
    *lookup_p = l;
    return 0;
}

static void end(bt_dns_lookup_t *l)
{
    for (unsigned i = 0; i < 8; i++)
        if (running[i] == l)
            running[i] = NULL;
    free(l);
}

void bt_dns_lookup_cancel(bt_dns_lookup_t *l)
{
    cancelled++;
    end(l);
}

static bt_dns_lookup_t *find_lookup(const char *name)
{
    for (unsigned i = 0; i < 8; i++)
        if (running[i] != NULL && strcmp(running[i]->name, name) == 0)
            return running[i];
    return NULL;
}

/* The next lookup of a name ends so. */
static void answer_as(const char *name, const bt_dns_answer_t *a)
{
    bt_dns_lookup_t *l;

    STEP_UNTIL((l = find_lookup(name)) != NULL, turn_once(&loop));
    l->cb(l->user, a);
    end(l);
}

static void answer(const char *name, const bt_dns_place_t *places, unsigned count)
{
    answer_as(name, &(bt_dns_answer_t){.result = count > 0 ? BT_DNS_OK : BT_DNS_FAILED,
                                       .places = places,
                                       .count = count,
                                       .ttl_ms = 5000});
}

/* ---- the stage ---- */

static void name_it(unsigned i, const char *name, unsigned port, const char *pool,
                    const bt_worker_spec_t *worker)
{
    names[i] = (bt_dns_name_t){.name = (char *) (uintptr_t) name,
                               .pool = (char *) (uintptr_t) pool,
                               .port = port,
                               .worker = worker};
}

static int setup(void **state)
{
    const bt_worker_spec_t *none[2] = {NULL, NULL};
    const unsigned counts[2] = {0, 0};
    char err[256];

    started = cancelled = 0;
    memset(names, 0, sizeof names);
    config = (bt_dns_config_t){.names = names, .hold_ms = 10000, .min_ms = 8, .max_ms = 16};
    for (int i = 0; i < 2; i++) {
        bt_pool_spec_init(&pools[i]);
        pools[i].name = bt_str_dup(bt_str(i == 0 ? "first" : "second"));
    }
    bt_worker_spec_init(&prefill);
    bt_worker_spec_init(&decode);
    prefill.role = BT_ROLE_PREFILL;
    decode.role = BT_ROLE_DECODE;
    prefill.connector = bt_str_dup(BT_STR("nixl"));
    decode.connector = bt_str_dup(BT_STR("nixl"));
    assert_int_equal(bt_loop_init(&loop, 0), 0);
    assert_int_equal(bt_registry_new(&registry, NULL, NULL, NULL), 0);
    assert_int_equal(bt_registry_apply(registry, pools, 2, none, counts, err, sizeof err), 0);
    assert_int_equal(bt_dns_new(&dns, &loop, registry), 0);
    return 0;
}

static int teardown(void **state)
{
    bt_dns_free(dns);
    bt_registry_free(registry);
    bt_loop_fini(&loop);
    for (int i = 0; i < 2; i++)
        bt_pool_spec_fini(&pools[i]);
    bt_worker_spec_fini(&prefill);
    bt_worker_spec_fini(&decode);
    for (unsigned i = 0; i < 8; i++)
        assert_null(running[i]);
    return 0;
}

static const bt_worker_t *worker(unsigned pool, unsigned i)
{
    const bt_worker_set_t *all = &bt_registry_current(registry)->pools[pool].all;

    assert_true(i < all->count);
    return all->items[i];
}

static unsigned count(unsigned pool)
{
    return bt_registry_current(registry)->pools[pool].all.count;
}

/* ---- what they come to ---- */

static void all_names_are_one_set(void **state)
{
    const bt_dns_place_t a[] = {{.host = "10.0.0.1"}, {.host = "10.0.0.2"}},
                         b[] = {{.host = "fd00::1"}};

    name_it(0, "p.test", 8000, "first", &prefill);
    name_it(1, "d.test", 9000, "first", &decode);
    config.count = 2;
    assert_int_equal(bt_dns_configure(dns, &config), 0);
    answer("p.test", a, 2);
    assert_int_equal(count(0), 2);
    answer("d.test", b, 1);
    assert_int_equal(count(0), 3);
    assert_string_equal(worker(0, 0)->spec.url, "http://10.0.0.1:8000");
    assert_string_equal(worker(0, 2)->spec.url, "http://[fd00::1]:9000");
    assert_int_equal(worker(0, 2)->spec.role, BT_ROLE_DECODE);
    assert_int_equal(atomic_load(&worker(0, 2)->sources), BT_NAMED_BIT(BT_NAMED_DNS));
    assert_memory_equal(worker(0, 0)->name, "prefill-", 8);
    assert_memory_equal(worker(0, 2)->name, "decode-", 7);
    assert_null(worker(0, 0)->spec.labels);
    /* an error of one takes nobody of the other's */
    answer("p.test", NULL, 0);
    answer("d.test", NULL, 0);
    assert_int_equal(count(0), 3);
    bt_dns_stats_t stats;
    bt_dns_stats(dns, 0, &stats);
    assert_string_equal(stats.name, "p.test");
    assert_int_equal(stats.lookups[BT_DNS_OK], 1);
    assert_int_equal(stats.lookups[BT_DNS_FAILED], 1);
    assert_int_equal(stats.known, 2);
}

static void a_place_of_two_names_is_the_first_ones(void **state)
{
    const bt_dns_place_t a[] = {{.host = "10.0.0.1"}};

    name_it(0, "p.test", 8000, "first", &prefill);
    name_it(1, "d.test", 8000, "first", &decode);
    name_it(2, "other.test", 8000, "second", &decode);
    config.count = 3;
    assert_int_equal(bt_dns_configure(dns, &config), 0);
    answer("d.test", a, 1);
    assert_int_equal(worker(0, 0)->spec.role, BT_ROLE_DECODE);
    answer("p.test", a, 1);
    assert_int_equal(count(0), 1);
    assert_int_equal(worker(0, 0)->spec.role, BT_ROLE_PREFILL);
    answer("other.test", a, 1); /* in another pool it is another worker, under another name */
    assert_int_equal(count(0), 1);
    assert_int_equal(count(1), 1);
    assert_string_not_equal(worker(0, 0)->name, worker(1, 0)->name);
}

static void labels_tell_targets_apart(void **state)
{
    bt_dns_place_t a[] = {
        {.host = "10.0.0.1", .target = "pod-0.p.test", .port = 80, .weight = 3, .priority = 1},
        {.host = "10.0.0.2", .target = "10-0-0-2.p.test", .port = 80, .weight = 3, .priority = 1}};

    names[0] = (bt_dns_name_t){.srv = (char *) (uintptr_t) "_http._tcp.p.test",
                               .pool = (char *) (uintptr_t) "first",
                               .worker = &prefill};
    prefill.labels = bt_str_dup(BT_STR("priority=9,rack=a"));
    config.count = 1;
    assert_int_equal(bt_dns_configure(dns, &config), 0);
    answer("_http._tcp.p.test", a, 2);
    assert_string_equal(worker(0, 0)->spec.labels, "priority=9,rack=a");
    assert_memory_equal(worker(0, 0)->name, "pod-0-", 6);
    assert_memory_equal(worker(0, 1)->name, "prefill-", 8); /* no address in a name */
    a[1].weight = 0;
    a[1].priority = 2; /* the configuration's own label counts */
    answer("_http._tcp.p.test", a, 2);
    assert_string_equal(worker(0, 0)->spec.labels, "priority=9,rack=a,weight=3");
    assert_string_equal(worker(0, 1)->spec.labels, "priority=9,rack=a,weight=1");
    free(prefill.labels);
    prefill.labels = NULL;
    answer("_http._tcp.p.test", (a[1].weight = 5, a), 2);
    assert_string_equal(worker(0, 0)->spec.labels, "weight=3,priority=1");
    assert_string_equal(worker(0, 1)->spec.labels, "weight=5,priority=2");
}

static void another_configuration_keeps_what_stays(void **state)
{
    const bt_dns_place_t a[] = {{.host = "10.0.0.1"}}, b[] = {{.host = "10.0.0.2"}};

    name_it(0, "p.test", 8000, "first", &prefill);
    name_it(1, "d.test", 8000, "first", &decode);
    config.count = 2;
    assert_int_equal(bt_dns_configure(dns, &config), 0);
    answer("p.test", a, 1);
    answer("d.test", b, 1);
    const bt_worker_t *d = worker(0, 1);
    STEP_UNTIL(find_lookup("p.test") != NULL && find_lookup("d.test") != NULL, turn_once(&loop));
    const bt_dns_name_t left = names[1];
    config.names = &left;
    config.count = 1;
    assert_int_equal(bt_dns_configure(dns, &config), 0);
    assert_int_equal(cancelled, 2); /* both are asked anew, if at all */
    assert_int_equal(count(0), 1);
    assert_ptr_equal(worker(0, 0), d);
    assert_int_equal(bt_dns_count(dns), 1);
    config.count = 0;
    assert_int_equal(bt_dns_configure(dns, &config), 0);
    assert_int_equal(count(0), 0);
}

static void a_set_that_is_refused_is_tried_again(void **state)
{
    const bt_dns_place_t a[] = {{.host = "10.0.0.1"}};
    bt_worker_spec_t other;
    char err[256], name[BT_WORKER_NAME_MAX + 1];

    name_it(0, "p.test", 8000, "first", &prefill);
    config.count = 1;
    assert_int_equal(bt_dns_configure(dns, &config), 0);
    answer("p.test", a, 1);
    snprintf(name, sizeof name, "%s", worker(0, 0)->name);
    config.count = 0;
    assert_int_equal(bt_dns_configure(dns, &config), 0);
    /* somebody else takes the name meanwhile */
    bt_worker_spec_init(&other);
    other.url = bt_str_dup(BT_STR("http://10.9.9.9:1"));
    other.name = bt_str_dup(bt_str(name));
    assert_int_equal(bt_registry_add(registry, NULL, &other, err, sizeof err), 0);
    bt_worker_spec_fini(&other);
    config.count = 1;
    assert_int_equal(bt_dns_configure(dns, &config), 0);
    answer("p.test", a, 1);
    assert_int_equal(count(0), 1);
    assert_int_equal(bt_registry_unname(registry, bt_str(name), BT_NAMED_API), 0);
    assert_int_equal(count(0), 0);
    answer("p.test", a, 1); /* the same answer */
    assert_int_equal(count(0), 1);
    assert_string_equal(worker(0, 0)->spec.url, "http://10.0.0.1:8000");
}

/* The API keeps the worker at the old address, under the target's name; the target is elsewhere now. */
static void a_target_that_moved_is_another_worker(void **state)
{
    bt_dns_place_t a[] = {{.host = "10.0.0.1", .target = "pod-0.p.test", .port = 80},
                          {.host = "10.0.0.2", .target = "pod-1.p.test", .port = 80}};
    char err[256], name[BT_WORKER_NAME_MAX + 1], other[BT_WORKER_NAME_MAX + 1];
    bt_worker_spec_t mine;

    names[0] = (bt_dns_name_t){.srv = (char *) (uintptr_t) "_http._tcp.p.test",
                               .pool = (char *) (uintptr_t) "first",
                               .worker = &prefill};
    config.count = 1;
    assert_int_equal(bt_dns_configure(dns, &config), 0);
    answer("_http._tcp.p.test", a, 2);
    snprintf(name, sizeof name, "%s", worker(0, 0)->name);
    assert_int_equal(bt_worker_spec_copy(&mine, &prefill), 0);
    mine.url = bt_str_dup(BT_STR("http://10.0.0.1:80"));
    assert_int_equal(bt_registry_add(registry, NULL, &mine, err, sizeof err), 0);
    bt_worker_spec_fini(&mine);

    strcpy(a[0].host, "10.0.0.7");
    strcpy(a[1].host, "10.0.0.8"); /* another one that moved: nothing keeps its place */
    answer("_http._tcp.p.test", a, 2);
    assert_int_equal(count(0), 3);
    const bt_workers_t *now = bt_registry_current(registry);
    assert_string_equal(bt_workers_find(now, bt_str(name))->spec.url, "http://10.0.0.1:80");
    assert_non_null(bt_workers_find(now, BT_STR("http://10.0.0.8:80")));
    const bt_worker_t *moved = bt_workers_find(now, BT_STR("http://10.0.0.7:80"));
    assert_non_null(moved);
    assert_memory_equal(moved->name, "pod-0-", 6);
    snprintf(other, sizeof other, "%s", moved->name);
    assert_string_not_equal(other, name);
    answer("_http._tcp.p.test", a, 2);
    assert_string_equal(
        bt_workers_find(bt_registry_current(registry), BT_STR("http://10.0.0.7:80"))->name, other);

    assert_int_equal(bt_registry_unname(registry, bt_str(name), BT_NAMED_API), 0);
    a[1].weight = 3;
    answer("_http._tcp.p.test", a, 2);
    assert_int_equal(count(0), 2);
    assert_string_equal(
        bt_workers_find(bt_registry_current(registry), BT_STR("http://10.0.0.7:80"))->name, name);
}

/* Doubling up to max_ms would take minutes for these. */
static void who_has_nobody_is_asked_again_soon(void **state)
{
    const bt_dns_place_t a[] = {{.host = "10.0.0.1"}};
    const enum bt_dns_result said[] = {BT_DNS_EMPTY, BT_DNS_NXDOMAIN, BT_DNS_FAILED};

    name_it(0, "p.test", 8000, "first", &prefill);
    config.count = 1;
    config.min_ms = 1;
    config.max_ms = 600000;
    config.absent_max_ms = 4;
    assert_int_equal(bt_dns_configure(dns, &config), 0);
    for (unsigned i = 0; i < 30; i++)
        answer_as("p.test", &(bt_dns_answer_t){.result = said[i % 3]});
    answer_as("p.test", &(bt_dns_answer_t){.result = BT_DNS_OK, .places = a, .count = 1});
    assert_int_equal(count(0), 1);
    for (unsigned i = 0; i < 30; i++) /* it had one, and says that it has nobody */
        answer_as("p.test", &(bt_dns_answer_t){.result = said[i % 2]});
    assert_int_equal(count(0), 1);
}

static void nothing_is_asked_once_it_is_stopped(void **state)
{
    name_it(0, "p.test", 8000, "first", &prefill);
    config.count = 1;
    assert_int_equal(bt_dns_configure(dns, &config), 0);
    STEP_UNTIL(started == 1, turn_once(&loop));
    bt_dns_stop(dns);
    assert_int_equal(cancelled, 1);
    bt_dns_stats_t stats;
    bt_dns_stats(dns, 0, &stats);
    assert_string_equal(stats.name, "p.test");
    assert_int_equal(bt_dns_configure(dns, &config), 0);
    assert_int_equal(bt_dns_count(dns), 0); /* it borrowed from a configuration that may go */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_names_are_one_set, setup, teardown),
        cmocka_unit_test_setup_teardown(a_place_of_two_names_is_the_first_ones, setup, teardown),
        cmocka_unit_test_setup_teardown(labels_tell_targets_apart, setup, teardown),
        cmocka_unit_test_setup_teardown(another_configuration_keeps_what_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(a_set_that_is_refused_is_tried_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_target_that_moved_is_another_worker, setup, teardown),
        cmocka_unit_test_setup_teardown(who_has_nobody_is_asked_again_soon, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_is_asked_once_it_is_stopped, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
