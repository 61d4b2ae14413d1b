#include "cluster/ledger.h"
#include "help.h"

#include <pthread.h>
#include <stdio.h>

static bt_registry_t *r;
static unsigned published;
static char err[256];

/* What apply gets: one pool "default" unless said otherwise. */
static bt_pool_spec_t pools[2];
static bt_worker_spec_t specs[2][8];
static unsigned counts[2];
static unsigned pool_count;

static void on_publish(void *user, bt_workers_t *workers)
{
    (void) user;
    assert_non_null(workers);
    published++;
}

static int setup(void **state)
{
    published = 0;
    pool_count = 1;
    err[0] = '\0';
    for (int i = 0; i < 2; i++) {
        bt_pool_spec_init(&pools[i]);
        pools[i].name = text(i == 0 ? "default" : "other");
        counts[i] = 0;
    }
    return bt_registry_new(&r, NULL, on_publish, NULL);
}

static int teardown(void **state)
{
    bt_registry_free(r);
    for (unsigned i = 0; i < 2; i++) {
        bt_pool_spec_fini(&pools[i]);
        for (unsigned j = 0; j < counts[i]; j++)
            bt_worker_spec_fini(&specs[i][j]);
    }
    return 0;
}

static bt_worker_spec_t *put(unsigned pool, enum bt_role role, unsigned port)
{
    char url[64];
    bt_worker_spec_t *spec = &specs[pool][counts[pool]++];
    snprintf(url, sizeof url, "http://127.0.0.1:%u", port);
    make_spec(spec, role, url, "nixl");
    return spec;
}

static int apply(void)
{
    const bt_worker_spec_t *lists[2] = {specs[0], specs[1]};
    return bt_registry_apply(r, pools, pool_count, lists, counts, err, sizeof err);
}

static bt_worker_t *find(const char *name)
{
    return bt_workers_find(bt_registry_current(r), bt_str(name));
}

static void drop_last(unsigned pool)
{
    bt_worker_spec_fini(&specs[pool][--counts[pool]]);
}

static void names_by_role_and_order(void **state)
{
    put(0, BT_ROLE_PREFILL, 1);
    put(0, BT_ROLE_DECODE, 2);
    put(0, BT_ROLE_PREFILL, 3);
    put(0, BT_ROLE_HYBRID, 4);
    put(0, BT_ROLE_DECODE, 5)->name = text("slow");
    assert_int_equal(apply(), 0);
    assert_int_equal(find("p0")->port, 1);
    assert_int_equal(find("p1")->port, 3);
    assert_int_equal(find("d0")->port, 2);
    assert_int_equal(find("w0")->port, 4);
    assert_int_equal(find("slow")->port, 5);
    const bt_worker_pool_t *pool = &bt_registry_current(r)->pools[0];
    assert_int_equal(pool->prefill.count, 2);
    assert_int_equal(pool->decode.count, 2);
    assert_int_equal(pool->hybrid.count, 1);
    assert_int_equal(pool->all.count, 5);
    assert_ptr_equal(find("http://127.0.0.1:3/"), find("p1"));
    assert_null(find("127.0.0.1:9"));
    assert_int_equal(published, 1);
}

static void unchanged_workers_keep_everything(void **state)
{
    bt_ledger_entry_t e = {0};
    put(0, BT_ROLE_PREFILL, 1);
    put(0, BT_ROLE_PREFILL, 2);
    put(0, BT_ROLE_DECODE, 3);
    assert_int_equal(apply(), 0);
    bt_worker_t *p1 = find("p1"), *d0 = find("d0");
    set_up(p1);
    bt_ledger_hold(&e, p1, BT_PHASE_PREFILL, 77);
    uint64_t epoch = bt_registry_current(r)->epoch;
    atomic_store(&bt_registry_current(r)->pools[0].stat->estimate.milli, 3456);

    specs[0][0].tp_size = 8; /* p0 changes, the rest stays */
    assert_int_equal(apply(), 0);
    assert_true(bt_registry_current(r)->epoch > epoch);
    assert_ptr_equal(find("p1"), p1);
    assert_ptr_equal(find("d0"), d0);
    assert_int_equal(atomic_load(&p1->health), BT_HEALTH_UP);
    assert_int_equal(atomic_load(&bt_worker_total(p1, BT_PHASE_PREFILL)->tokens), 77);
    assert_int_equal(find("p0")->tp_size, 8);
    assert_int_equal(atomic_load(&find("p0")->health), BT_HEALTH_UNKNOWN);
    assert_int_equal(atomic_load(&bt_registry_current(r)->pools[0].stat->estimate.milli), 3456);
    bt_ledger_release(&e);
}

static void kept_names_do_not_shift(void **state)
{
    put(0, BT_ROLE_PREFILL, 1);
    put(0, BT_ROLE_PREFILL, 2);
    assert_int_equal(apply(), 0);
    bt_worker_t *p1 = find("p1");
    bt_worker_spec_fini(&specs[0][0]);
    make_spec(&specs[0][0], BT_ROLE_PREFILL, "http://127.0.0.1:9", "nixl");
    assert_int_equal(apply(), 0);
    assert_ptr_equal(find("p1"), p1);
    assert_int_equal(find("p0")->port, 9);
}

static void removed_ones_drain_and_free_their_slot(void **state)
{
    put(0, BT_ROLE_DECODE, 1);
    put(0, BT_ROLE_DECODE, 2);
    assert_int_equal(apply(), 0);
    bt_worker_t *d1 = bt_worker_ref(find("d1")); /* a running leg */
    unsigned slot = d1->slot;
    uint64_t id = d1->id;
    drop_last(0);
    assert_int_equal(apply(), 0);
    assert_null(find("d1"));
    assert_true(atomic_load(&d1->draining));
    put(0, BT_ROLE_DECODE, 3);
    assert_int_equal(apply(), 0);
    assert_int_not_equal(find("d1")->slot, slot); /* the leg may still use it */
    bt_worker_unref(d1);
    put(0, BT_ROLE_DECODE, 4);
    assert_int_equal(apply(), 0);
    assert_int_equal(find("d2")->slot, slot);
    assert_true(find("d2")->id > id); /* ids never come back */
    assert_true(bt_registry_current(r)->slot_count > slot);
}

/* A loop that has not heard of the new set yet may still choose it: each worker may have been described anew in the same change. */
static void a_process_that_goes_on_drains_under_no_object(void **state)
{
    put(0, BT_ROLE_DECODE, 1)->labels = text("weight=1");
    assert_int_equal(apply(), 0);
    bt_worker_t *before = bt_worker_ref(find("d0"));
    bt_worker_set_health(before, BT_HEALTH_UP, "test");
    assert_int_equal(atomic_load(&before->breaker.group->usable), 1);
    free(specs[0][0].labels);
    specs[0][0].labels = text("weight=2");
    assert_int_equal(apply(), 0);
    bt_worker_t *now = bt_worker_ref(find("d0"));
    assert_ptr_not_equal(now, before);
    assert_true(bt_worker_usable(before, 1) && bt_worker_usable(now, 1));
    assert_int_equal(atomic_load(&now->breaker.group->usable), 1); /* one process */
    bt_worker_note_service(before);
    assert_int_equal(atomic_load(&now->breaker.group->usable), 1);
    free(specs[0][0].connector); /* another engine */
    specs[0][0].connector = text("moriio");
    assert_int_equal(apply(), 0);
    assert_true(atomic_load(&now->draining));
    bt_worker_unref(before);
    bt_worker_unref(now);
}

static void a_new_name_is_a_new_worker(void **state)
{
    put(0, BT_ROLE_DECODE, 1)->name = text("a");
    assert_int_equal(apply(), 0);
    bt_worker_t *a = bt_worker_ref(find("a"));
    free(specs[0][0].name);
    specs[0][0].name = text("b");
    assert_int_equal(apply(), 0);
    assert_null(find("a"));
    assert_ptr_not_equal(find("b"), a);
    assert_true(atomic_load(&a->draining));
    assert_false(atomic_load(&find("b")->draining));
    bt_worker_unref(a);
}

static void assert_unchanged_after_error(const char *part1, const char *part2)
{
    bt_workers_t *before = bt_registry_current(r);
    unsigned was = published;
    assert_int_equal(apply(), BT_E_CONFIG);
    if (strstr(err, part1) == NULL || strstr(err, part2) == NULL)
        fail_msg("%s", err);
    assert_ptr_equal(bt_registry_current(r), before);
    assert_int_equal(published, was);
}

static void duplicate_names(void **state)
{
    put(0, BT_ROLE_DECODE, 1)->name = text("x");
    assert_int_equal(apply(), 0);
    put(0, BT_ROLE_PREFILL, 2)->name = text("x");
    assert_unchanged_after_error("http://127.0.0.1:1", "http://127.0.0.1:2");
    assert_non_null(find("x"));
    assert_false(atomic_load(&find("x")->draining));
}

static void duplicate_urls(void **state)
{
    put(0, BT_ROLE_DECODE, 1)->name = text("x");
    put(0, BT_ROLE_DECODE, 1)->name = text("y");
    assert_unchanged_after_error("x and y", "same url");
    specs[0][0].dp_rank = 0; /* two ranks of one server are two workers */
    specs[0][1].dp_rank = 1;
    assert_int_equal(apply(), 0);
}

static void bad_url_and_bad_pools(void **state)
{
    bt_worker_spec_t *spec = put(0, BT_ROLE_DECODE, 1);
    free(spec->url);
    spec->url = text("ftp://h:1");
    assert_unchanged_after_error("ftp://h:1", "are supported");
    drop_last(0);
    pool_count = 2;
    free(pools[1].name);
    pools[1].name = text("default");
    assert_unchanged_after_error("two pools are named default", "");
}

static void same_url_in_two_pools(void **state)
{
    pool_count = 2;
    put(0, BT_ROLE_HYBRID, 1);
    put(1, BT_ROLE_HYBRID, 1);
    assert_int_equal(apply(), 0);
    assert_int_equal(find("w1")->port, 1);
    assert_int_equal(bt_registry_remove(r, BT_STR("http://127.0.0.1:1")), 0);
    assert_null(find("w0"));
    assert_null(find("w1"));
}

static void add_remove_drain(void **state)
{
    bt_worker_spec_t spec;
    make_spec(&spec, BT_ROLE_PREFILL, "http://127.0.0.1:7", "nixl");
    assert_int_equal(bt_registry_add(r, NULL, &spec, err, sizeof err),
                     BT_E_INVAL); /* no pool yet */
    assert_int_equal(apply(), 0);
    assert_int_equal(bt_registry_add(r, NULL, &spec, err, sizeof err), 0);
    assert_int_equal(bt_registry_add(r, "default", &spec, err, sizeof err), BT_E_CONFIG);
    assert_non_null(strstr(err, "same url"));
    assert_int_equal(bt_registry_add(r, "nope", &spec, err, sizeof err), BT_E_INVAL);
    bt_worker_spec_fini(&spec);
    bt_worker_t *p0 = find("p0");
    set_up(p0);
    uint64_t epoch = bt_workers_changes();
    assert_int_equal(bt_registry_drain(r, BT_STR("p0"), true), 0);
    assert_true(bt_workers_changes() > epoch);
    assert_string_equal(bt_worker_why_not(p0, 1), "draining");
    assert_int_equal(bt_registry_drain(r, BT_STR("p0"), false), 0);
    assert_true(bt_worker_usable(p0, 1));
    assert_int_equal(bt_registry_drain(r, BT_STR("p9"), true), BT_E_INVAL);
    assert_int_equal(bt_registry_remove(r, BT_STR("p0")), 0);
    assert_int_equal(bt_registry_remove(r, BT_STR("p0")), BT_E_INVAL);
    assert_int_equal(bt_registry_current(r)->pools[0].all.count, 0);
}

/* ---- loops read and count while the control loop changes the fleet ---- */

static pthread_mutex_t swap_lock = PTHREAD_MUTEX_INITIALIZER; /* stands for the mailbox */
static bt_workers_t *shared;
static _Atomic bool is_over;
static _Atomic unsigned turns;

/* In its old place and under its old name, whoever else is there; drained stays drained, and a reload keeps it. */
static void a_word_makes_another_worker_of_it(void **state)
{
    bt_registered_t word = {.kv_address = "10.0.0.1:14579", .dp_size = 2};
    bt_worker_t *now = NULL;

    put(0, BT_ROLE_PREFILL, 1);
    put(0, BT_ROLE_PREFILL, 2);
    put(0, BT_ROLE_DECODE, 3);
    assert_int_equal(apply(), 0);
    assert_int_equal(bt_registry_remove(r, BT_STR("p0")), 0); /* its name is free again */
    assert_int_equal(bt_registry_drain(r, BT_STR("p1"), true), 0);
    bt_worker_t *old = bt_worker_ref(bt_workers_find(bt_registry_current(r), BT_STR("p1")));
    const uint64_t epoch = bt_registry_current(r)->epoch;

    assert_int_equal(bt_registry_take_word(r, old, &word, &now, err, sizeof err), 0);
    assert_ptr_not_equal(now, old);
    assert_int_equal(bt_registry_current(r)->epoch, epoch + 1);
    assert_string_equal(now->name, "p1");
    assert_string_equal(now->kv_address, "10.0.0.1:14579");
    assert_int_equal(now->dp_size, 2);
    assert_true(atomic_load(&now->draining));
    assert_ptr_equal(bt_registry_current(r)->pools[0].prefill.items[0], now);
    assert_true(atomic_load(&old->draining)); /* its legs finish */

    bt_worker_t *again = NULL;
    assert_int_equal(bt_registry_take_word(r, now, &word, &again, err, sizeof err), 0);
    assert_ptr_equal(again, now);
    assert_int_equal(bt_registry_current(r)->epoch, epoch + 1);

    word.tp_size = 8;
    assert_int_equal(bt_registry_take_word(r, old, &word, &again, err, sizeof err), BT_E_INVAL);
    bt_worker_unref(old);
}

static void a_reload_keeps_what_was_registered(void **state)
{
    const bt_registered_t word = {.kv_address = "10.0.0.1:14579"};
    bt_worker_t *now = NULL;

    put(0, BT_ROLE_PREFILL, 1);
    assert_int_equal(apply(), 0);
    bt_worker_t *w = bt_registry_current(r)->pools[0].all.items[0];
    assert_int_equal(bt_registry_take_word(r, w, &word, &now, err, sizeof err), 0);
    assert_int_equal(apply(), 0);
    assert_ptr_equal(bt_registry_current(r)->pools[0].all.items[0], now);
}

static bt_worker_t *add_new(unsigned port)
{
    const bt_registered_t word = {.kv_address = "10.0.0.9:14579", .is_new = true};
    bt_worker_spec_t *spec = put(1, BT_ROLE_PREFILL, port);

    free(spec->connector);
    spec->connector = text("p2p_nccl");
    spec->registered = word;
    assert_int_equal(bt_registry_add(r, NULL, spec, err, sizeof err), 0);
    drop_last(1);
    bt_worker_t *w = find("p1");
    w->is_registered = true;
    w->registered_at_ms = 7;
    return w;
}

/* It changed in the file: it is another worker, which need not say again where its KV is. */
static void a_worker_that_is_described_anew_is_registered_still(void **state)
{
    const bt_registered_t word = {.kv_address = "10.0.0.1:14579"};
    bt_worker_t *old = NULL;

    bt_worker_spec_t *spec = put(0, BT_ROLE_PREFILL, 1);
    free(spec->connector);
    spec->connector = text("p2p_nccl");
    assert_int_equal(apply(), 0);
    assert_int_equal(bt_registry_take_word(r, find("p0"), &word, &old, err, sizeof err), 0);
    old->is_registered = true;
    old->registered_at_ms = 7;
    old->word_at_ms = 5;
    spec->zone = text("z1");
    assert_int_equal(apply(), 0);
    bt_worker_t *now = find("p0");
    assert_string_equal(now->spec.zone, "z1");
    assert_string_equal(now->kv_address, "10.0.0.1:14579");
    assert_true(atomic_load(&now->is_registered));
    assert_int_equal(now->registered_at_ms, 7);
    assert_int_equal(now->word_at_ms, 5);
    free(spec->connector); /* another engine: it has said nothing */
    spec->connector = text("moriio");
    assert_int_equal(apply(), 0);
    assert_null(find("p0")->kv_address);
    assert_false(atomic_load(&find("p0")->is_registered));
}

static void a_reload_keeps_whom_only_registration_has_named(void **state)
{
    put(0, BT_ROLE_PREFILL, 1);
    assert_int_equal(apply(), 0);
    bt_worker_t *fresh = add_new(9);
    assert_int_equal(apply(), 0);
    assert_ptr_equal(find("p1"), fresh);
    assert_false(atomic_load(&fresh->draining));
    bt_worker_spec_t *spec = put(0, BT_ROLE_PREFILL, 9); /* now the configuration has it */
    free(spec->connector);
    spec->connector = text("p2p_nccl");
    assert_int_equal(apply(), 0);
    assert_int_equal(bt_registry_current(r)->pools[0].all.count, 2);
    bt_worker_t *now = bt_registry_current(r)->pools[0].all.items[1];
    assert_false(now->spec.registered.is_new); /* its silence does not remove it */
    assert_true(atomic_load(&now->is_registered));
    assert_string_equal(now->kv_address, "10.0.0.9:14579");
}

/* Its engine was asked for another role, and may have it: whoever describes it anew does not know. */
static void a_role_that_nobody_knows_outlives_a_description(void **state)
{
    const bt_registered_t word = {.kv_address = "10.0.0.1:14579"};
    bt_worker_t *now;

    bt_worker_spec_t *spec = put(0, BT_ROLE_PREFILL, 1);
    assert_int_equal(apply(), 0);
    atomic_store(&find("p0")->switching, BT_SWITCH_ASKING);
    spec->zone = text("z1");
    assert_int_equal(apply(), 0);
    set_up(find("p0"));
    assert_string_equal(bt_worker_why_not(find("p0"), 1), "role_unknown");
    assert_int_equal(bt_registry_take_word(r, find("p0"), &word, &now, err, sizeof err), 0);
    assert_int_equal(atomic_load(&now->switching), BT_SWITCH_UNKNOWN);
    now->registered_at_ms = 7;
    assert_int_equal(bt_registry_replace(r, now, spec, err, sizeof err),
                     0); /* it has been switched */
    assert_int_equal(atomic_load(&find("p0")->switching), BT_SWITCH_NONE);
    assert_int_equal(find("p0")->registered_at_ms, 7);
}

static void share(void *user, bt_workers_t *workers)
{
    (void) user;
    pthread_mutex_lock(&swap_lock);
    bt_workers_t *old = shared;
    shared = bt_workers_ref(workers);
    pthread_mutex_unlock(&swap_lock);
    bt_workers_unref(old);
}

static void one_leg(bt_worker_t *w, unsigned n)
{
    bt_ledger_entry_t e = {0};
    bool probe = false;
    if (!bt_breaker_enter(&w->breaker, n, &probe))
        return;
    bt_ledger_hold(&e, w, n % 2 ? BT_PHASE_DECODE : BT_PHASE_PREFILL, 10);
    bt_worker_note_bytes(w, n);
    bt_worker_note_ttft(w, n);
    bt_ledger_grow(&e, 1);
    bt_ledger_release(&e);
    bt_ledger_release(&e);
    if (n % 3 == 0)
        (void) bt_breaker_failure(&w->breaker, probe, n);
    else if (n % 3 == 1)
        bt_breaker_innocent(&w->breaker, probe);
    else
        bt_breaker_success(&w->breaker, probe);
}

static void *read_and_count(void *arg)
{
    char reasons[256];
    unsigned n = (unsigned) (uintptr_t) arg;
    while (!atomic_load(&is_over)) {
        pthread_mutex_lock(&swap_lock);
        bt_workers_t *f = bt_workers_ref(shared);
        pthread_mutex_unlock(&swap_lock);
        const bt_worker_set_t *all = &f->pools[0].all;
        for (unsigned i = 0; i < all->count; i++) {
            (void) bt_worker_usable(all->items[i], n);
            one_leg(all->items[i], n++);
        }
        (void) bt_workers_topology(&f->pools[0], n, reasons, sizeof reasons);
        (void) bt_workers_changes();
        bt_workers_unref(f); /* may be the last: frees workers on this thread */
        atomic_fetch_add(&turns, 1);
    }
    return NULL;
}

static void loops_hammer_while_the_registry_applies(void **state)
{
    pthread_t threads[4];
    bt_registry_t *own = r;
    assert_int_equal(bt_registry_new(&r, NULL, share, NULL), 0);
    for (unsigned i = 0; i < 6; i++)
        put(0, i % 2 ? BT_ROLE_DECODE : BT_ROLE_PREFILL, 10 + i);
    assert_int_equal(apply(), 0);
    bt_worker_t *kept = bt_worker_ref(find("d0"));
    for (uintptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_and_count, (void *) (i * 1000 + 1)),
                         0);
    for (int i = 0; i < 300 || atomic_load(&turns) < 1000; i++) {
        specs[0][0].tp_size = i % 5 + 1;
        assert_int_equal(apply(), 0);
        bt_worker_set_health(find(i % 2 ? "p0" : "d0"), i % 3 ? BT_HEALTH_UP : BT_HEALTH_DOWN,
                             "test");
        (void) bt_registry_drain(r, BT_STR("p1"), i % 2);
    }
    atomic_store(&is_over, true);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_ptr_equal(find("d0"), kept);
    assert_int_equal(atomic_load(&bt_worker_total(kept, BT_PHASE_PREFILL)->tokens), 0);
    assert_int_equal(atomic_load(&bt_worker_total(kept, BT_PHASE_DECODE)->tokens), 0);
    assert_int_equal(atomic_load(&bt_worker_total(kept, BT_PHASE_DECODE)->requests), 0);
    assert_true(bt_registry_current(r)->slot_count <
                64); /* slots of freed workers were used again */
    bt_workers_unref(shared);
    shared = NULL;
    bt_registry_free(r);
    assert_int_equal(kept->port, 11); /* outlives the registry */
    bt_worker_unref(kept);
    r = own;
}

static unsigned sources(const char *name)
{
    return atomic_load(&find(name)->sources);
}

static int found(const char *url, enum bt_role role)
{
    bt_found_t one = {0};
    if (url != NULL)
        make_spec(&one.spec, role, url, "nixl");
    int rc = bt_registry_set_found(r, BT_NAMED_FILE, &one, url != NULL, err, sizeof err);
    if (url != NULL)
        bt_worker_spec_fini(&one.spec);
    return rc;
}

static int add(const char *url, const char *name)
{
    bt_worker_spec_t spec;
    make_spec(&spec, BT_ROLE_PREFILL, url, "nixl");
    spec.name = name != NULL ? text(name) : NULL;
    int rc = bt_registry_add(r, NULL, &spec, err, sizeof err);
    bt_worker_spec_fini(&spec);
    return rc;
}

static void one_worker_whoever_names_it(void **state)
{
    put(0, BT_ROLE_PREFILL, 1);
    assert_int_equal(apply(), 0);
    bt_worker_t *p0 = find("p0");
    unsigned before = published;

    /* the file describes it otherwise: the configuration's word counts */
    assert_int_equal(found("http://127.0.0.1:1/", BT_ROLE_DECODE), 0);
    assert_ptr_equal(find("p0"), p0);
    assert_int_equal(sources("p0"), BT_NAMED_BIT(BT_NAMED_CONFIG) | BT_NAMED_BIT(BT_NAMED_FILE));
    assert_int_equal(bt_registry_current(r)->pools[0].all.count, 1);
    assert_int_equal(published, before); /* the set is the same */

    /* the configuration takes its word back: the worker stays, and goes with the other word */
    uint64_t since = atomic_load(&p0->named_ms[BT_NAMED_FILE]);
    drop_last(0);
    assert_true(since > 0);
    assert_int_equal(apply(), 0);
    assert_ptr_equal(find("p0"), p0);
    assert_int_equal(sources("p0"), BT_NAMED_BIT(BT_NAMED_FILE));
    assert_int_equal(atomic_load(&p0->named_ms[BT_NAMED_CONFIG]), 0);
    assert_int_equal(atomic_load(&p0->named_ms[BT_NAMED_FILE]), since);
    /* told again, the source that is left is heard */
    assert_int_equal(found("http://127.0.0.1:1", BT_ROLE_DECODE), 0);
    assert_int_equal(find("http://127.0.0.1:1")->spec.role, BT_ROLE_DECODE);
    assert_int_equal(found(NULL, BT_ROLE_DECODE), 0);
    assert_int_equal(bt_registry_current(r)->pools[0].all.count, 0);
}

static int found_in_zone(enum bt_role role, const char *zone)
{
    bt_found_t one = {0};
    make_spec(&one.spec, role, "http://127.0.0.1:1", "nixl");
    one.spec.zone = text(zone);
    int rc = bt_registry_set_found(r, BT_NAMED_FILE, &one, 1, err, sizeof err);
    bt_worker_spec_fini(&one.spec);
    return rc;
}

static enum bt_health health_now(void)
{
    return (enum bt_health) atomic_load(&find("http://127.0.0.1:1")->health);
}

static void another_description_keeps_it_up(void **state)
{
    assert_int_equal(apply(), 0);
    assert_int_equal(found_in_zone(BT_ROLE_PREFILL, "a"), 0);
    assert_int_equal(health_now(), BT_HEALTH_UNKNOWN);
    atomic_store(&find("http://127.0.0.1:1")->health, BT_HEALTH_UP);
    const bt_worker_t *before = find("http://127.0.0.1:1");
    assert_int_equal(found_in_zone(BT_ROLE_PREFILL, "b"), 0);
    assert_ptr_not_equal(find("http://127.0.0.1:1"), before);
    assert_int_equal(health_now(), BT_HEALTH_UP);
    assert_int_equal(found_in_zone(BT_ROLE_DECODE, "b"), 0); /* is it that? its check tells */
    assert_int_equal(health_now(), BT_HEALTH_UNKNOWN);
    atomic_store(&find("http://127.0.0.1:1")->health, BT_HEALTH_DOWN);
    assert_int_equal(found_in_zone(BT_ROLE_DECODE, "c"), 0);
    assert_int_equal(health_now(), BT_HEALTH_UNKNOWN);
}

static void what_is_added_outlives_a_reload(void **state)
{
    put(0, BT_ROLE_PREFILL, 1);
    assert_int_equal(apply(), 0);
    assert_int_equal(add("http://127.0.0.1:2", "extra"), 0);
    bt_worker_t *extra = find("extra");
    assert_int_equal(apply(), 0);
    assert_ptr_equal(find("extra"), extra);

    /* the configuration names it, too, and says more of it */
    put(0, BT_ROLE_PREFILL, 2)->tp_size = 4;
    assert_int_equal(apply(), 0);
    const bt_worker_t *now = find("http://127.0.0.1:2");
    assert_int_equal(now->tp_size, 4);
    assert_int_equal(atomic_load(&now->sources),
                     BT_NAMED_BIT(BT_NAMED_CONFIG) | BT_NAMED_BIT(BT_NAMED_API));

    /* the API's word is taken back first */
    assert_int_equal(bt_registry_remove(r, BT_STR("http://127.0.0.1:2")), 0);
    assert_int_equal(atomic_load(&find("http://127.0.0.1:2")->sources),
                     BT_NAMED_BIT(BT_NAMED_CONFIG));
    assert_int_equal(bt_registry_remove(r, BT_STR("http://127.0.0.1:2")), 0);
    assert_null(find("http://127.0.0.1:2"));
    assert_int_equal(apply(), 0); /* the configuration says it again */
    assert_non_null(find("http://127.0.0.1:2"));
}

static void what_is_added_takes_over_what_was_found(void **state)
{
    assert_int_equal(apply(), 0);
    assert_int_equal(found("http://127.0.0.1:7", BT_ROLE_DECODE), 0);
    assert_int_equal(bt_registry_drain(r, BT_STR("d0"), true), 0);
    assert_int_equal(add("http://127.0.0.1:7", NULL), 0);
    assert_int_equal(find("d0")->spec.role, BT_ROLE_PREFILL);
    assert_true(atomic_load(&find("d0")->draining));
    assert_int_equal(sources("d0"), BT_NAMED_BIT(BT_NAMED_API) | BT_NAMED_BIT(BT_NAMED_FILE));
    assert_int_equal(add("http://127.0.0.1:7", NULL), BT_E_CONFIG);
    assert_int_equal(bt_registry_unname(r, BT_STR("d0"), BT_NAMED_API), 0);
    assert_int_equal(sources("d0"), BT_NAMED_BIT(BT_NAMED_FILE));
    assert_int_equal(bt_registry_remove(r, BT_STR("d0")), 0); /* nobody gave it by hand */
    assert_int_equal(sources("d0"), BT_NAMED_BIT(BT_NAMED_FILE));
}

static void describe_registered(bt_worker_spec_t *spec, const char *zone)
{
    make_spec(spec, BT_ROLE_PREFILL, "http://127.0.0.1:7", "p2p_nccl");
    spec->zone = zone != NULL ? text(zone) : NULL;
}

static void find_registered(const char *zone)
{
    bt_found_t one = {0};
    describe_registered(&one.spec, zone);
    assert_int_equal(bt_registry_set_found(r, BT_NAMED_FILE, &one, 1, err, sizeof err), 0);
    bt_worker_spec_fini(&one.spec);
}

static void assert_registered(const char *zone)
{
    const bt_worker_t *w = find("p0");
    assert_string_equal(w->spec.zone, zone);
    assert_string_equal(w->kv_address, "10.0.0.1:14579");
    assert_true(atomic_load(&w->is_registered));
    assert_int_equal(w->registered_at_ms, 7);
}

static void what_is_found_anew_is_registered_still(void **state)
{
    const bt_registered_t word = {.kv_address = "10.0.0.1:14579"};
    bt_worker_spec_t spec;
    bt_worker_t *w;

    assert_int_equal(apply(), 0);
    find_registered(NULL);
    assert_int_equal(bt_registry_take_word(r, find("p0"), &word, &w, err, sizeof err), 0);
    w->is_registered = true;
    w->registered_at_ms = 7;
    find_registered("z1");
    assert_registered("z1");
    describe_registered(&spec, "z2"); /* and the API names it, too */
    assert_int_equal(bt_registry_add(r, NULL, &spec, err, sizeof err), 0);
    bt_worker_spec_fini(&spec);
    assert_registered("z2");
}

static void a_bad_finding_changes_nothing(void **state)
{
    bt_found_t two[2] = {0};
    assert_int_equal(apply(), 0);
    assert_int_equal(found("http://127.0.0.1:7", BT_ROLE_DECODE), 0);
    bt_worker_t *d0 = find("d0");
    assert_int_equal(found("nonsense://x", BT_ROLE_DECODE), BT_E_CONFIG);
    assert_non_null(strstr(err, "nonsense://x"));
    make_spec(&two[0].spec, BT_ROLE_DECODE, "http://127.0.0.1:7", "nixl");
    make_spec(&two[1].spec, BT_ROLE_DECODE, "http://127.0.0.1:7/", "nixl");
    assert_int_equal(bt_registry_set_found(r, BT_NAMED_FILE, two, 2, err, sizeof err), BT_E_CONFIG);
    assert_non_null(strstr(err, "the same url"));
    two[1].pool = "nope";
    assert_int_equal(bt_registry_set_found(r, BT_NAMED_FILE, two, 2, err, sizeof err), BT_E_CONFIG);
    assert_non_null(strstr(err, "there is no pool nope"));
    assert_ptr_equal(find("d0"), d0);
    bt_worker_spec_fini(&two[0].spec);
    bt_worker_spec_fini(&two[1].spec);
}

/* ---- what has changed ---- */

static bt_found_change_t changes[8];
static unsigned change_count;

static bt_found_change_t *change(const char *url, bool is_gone)
{
    bt_found_change_t *c = &changes[change_count++];
    *c = (bt_found_change_t){.is_gone = is_gone, .rc = -1};
    make_spec(&c->found.spec, BT_ROLE_PREFILL, url, "nixl");
    return c;
}

static int take_changes(void)
{
    int rc = bt_registry_change_found(r, BT_NAMED_KUBERNETES, changes, change_count);
    while (change_count > 0)
        bt_worker_spec_fini(&changes[--change_count].found.spec);
    return rc;
}

static void changes_come_alone(void **state)
{
    put(0, BT_ROLE_PREFILL, 1);
    assert_int_equal(apply(), 0);
    bt_worker_t *p0 = find("p0");
    unsigned before = published;

    /* one that the configuration names too, two new ones: one publication, and the first stays first */
    (void) change("http://127.0.0.1:1", false);
    (void) change("http://127.0.0.1:2", false);
    (void) change("http://127.0.0.1:3", false);
    assert_int_equal(take_changes(), 0);
    assert_int_equal(published, before + 1);
    assert_ptr_equal(bt_registry_current(r)->pools[0].all.items[0], p0);
    assert_int_equal(sources("p0"),
                     BT_NAMED_BIT(BT_NAMED_CONFIG) | BT_NAMED_BIT(BT_NAMED_KUBERNETES));
    assert_int_equal(sources("p2"), BT_NAMED_BIT(BT_NAMED_KUBERNETES));

    /* the same again is no news */
    bt_worker_t *p1 = find("p1"), *p2 = find("p2");
    (void) change("http://127.0.0.1:2", false);
    assert_int_equal(take_changes(), 0);
    assert_int_equal(published, before + 1);

    /* another description at the same place: another worker of the same name; the rest is not touched */
    bt_worker_ref(p1);
    change("http://127.0.0.1:2", false)->found.spec.tp_size = 4;
    (void) change("http://127.0.0.1:9", true); /* nobody knows it */
    assert_int_equal(take_changes(), 0);
    assert_int_equal(published, before + 2);
    assert_true(find("p1") != p1 && atomic_load(&p1->is_succeeded));
    assert_int_equal(find("p1")->tp_size, 4);
    assert_ptr_equal(find("p2"), p2);
    bt_worker_unref(p1);

    /* gone: what others name stays, and its number is the next one's */
    (void) change("http://127.0.0.1:1", true);
    (void) change("http://127.0.0.1:2", true);
    assert_int_equal(take_changes(), 0);
    assert_ptr_equal(find("p0"), p0);
    assert_int_equal(sources("p0"), BT_NAMED_BIT(BT_NAMED_CONFIG));
    assert_null(find("p1"));
    (void) change("http://127.0.0.1:4", false);
    assert_int_equal(take_changes(), 0);
    assert_string_equal(find("p1")->spec.url, "http://127.0.0.1:4");
}

/* Another process at the same place: what was known of the first one is not carried over, and it is told from one that only left. */
static void an_ended_one_has_a_successor(void **state)
{
    put(0, BT_ROLE_PREFILL, 1);
    assert_int_equal(apply(), 0);
    (void) change("http://127.0.0.1:1", false);
    (void) change("http://127.0.0.1:2", false);
    assert_int_equal(take_changes(), 0);
    bt_worker_t *p0 = bt_worker_ref(find("p0")), *p1 = bt_worker_ref(find("p1"));
    bt_worker_set_health(p0, BT_HEALTH_UP, "");
    bt_worker_set_health(p1, BT_HEALTH_UP, "");
    p0->has_learned = true;
    p1->draining = true;
    p0->draining = true;
    change("http://127.0.0.1:1", false)->has_ended = true;
    change("http://127.0.0.1:2", false)->has_ended = true;
    assert_int_equal(take_changes(), 0);
    assert_true(find("p0") != p0 && find("p1") != p1);
    assert_true(p0->has_ended && p1->has_ended);
    assert_false(find("p0")->has_learned);
    assert_int_equal(find("p0")->health, BT_HEALTH_UNKNOWN);
    assert_int_equal(find("p1")->health, BT_HEALTH_UNKNOWN);
    /* who else names it describes it, and has drained it */
    assert_int_equal(sources("p0"),
                     BT_NAMED_BIT(BT_NAMED_CONFIG) | BT_NAMED_BIT(BT_NAMED_KUBERNETES));
    assert_true(find("p0")->draining);
    assert_false(find("p1")->draining);
    bt_worker_unref(p0);
    bt_worker_unref(p1);

    p1 = bt_worker_ref(find("p1"));
    (void) change("http://127.0.0.1:2", true);
    assert_int_equal(take_changes(), 0);
    assert_false(p1->has_ended);
    bt_worker_unref(p1);
    p0 = find("p0");
    change("http://127.0.0.1:1", true)->has_ended = true; /* the configuration names it still */
    assert_int_equal(take_changes(), 0);
    assert_ptr_equal(find("p0"), p0);
}

static void a_bad_change_keeps_no_other(void **state)
{
    put(0, BT_ROLE_DECODE, 1);
    assert_int_equal(apply(), 0);
    (void) change("http://127.0.0.1:2", false);
    (void) change("nonsense://x", false);
    change("http://127.0.0.1:3", false)->found.pool = "nope";
    (void) change("http://127.0.0.1:2/", false); /* the same place twice */
    change("http://127.0.0.1:5", false)->found.spec.name = text("same");
    change("http://127.0.0.1:6", false)->found.spec.name = text("same");
    assert_int_equal(take_changes(), 0);
    assert_non_null(find("p0"));
    assert_string_equal(find("same")->spec.url, "http://127.0.0.1:5");
    assert_int_equal(bt_registry_current(r)->pools[0].all.count, 3);
    assert_int_equal(changes[0].rc, 0);
    assert_non_null(strstr(changes[1].why, "nonsense://x"));
    assert_non_null(strstr(changes[2].why, "there is no pool nope"));
    assert_int_equal(changes[4].rc, 0);
    assert_non_null(strstr(changes[5].why, "two workers are named same"));

    /* a place that is new, twice */
    (void) change("http://127.0.0.1:7", false);
    (void) change("http://127.0.0.1:7/", false);
    assert_int_equal(take_changes(), 0);
    assert_int_equal(changes[0].rc, 0);
    assert_non_null(strstr(changes[1].why, "the same url"));
    assert_int_equal(bt_registry_current(r)->pools[0].all.count, 4);
}

static void names_that_look_like_numbers(void **state)
{
    put(0, BT_ROLE_PREFILL, 1);
    put(0, BT_ROLE_PREFILL, 2);
    put(0, BT_ROLE_PREFILL, 3)->name = text("p1");
    put(0, BT_ROLE_PREFILL, 4)->name = text("p00");
    put(0, BT_ROLE_PREFILL, 5)->name = text("p4294967297");
    put(0, BT_ROLE_PREFILL, 6)->name = text("p");
    assert_int_equal(apply(), 0);
    assert_string_equal(find("p0")->spec.url, "http://127.0.0.1:1");
    assert_string_equal(find("p2")->spec.url, "http://127.0.0.1:2");
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(names_by_role_and_order),
        CASE(unchanged_workers_keep_everything),
        CASE(kept_names_do_not_shift),
        CASE(removed_ones_drain_and_free_their_slot),
        CASE(a_process_that_goes_on_drains_under_no_object),
        CASE(a_new_name_is_a_new_worker),
        CASE(duplicate_names),
        CASE(duplicate_urls),
        CASE(bad_url_and_bad_pools),
        CASE(same_url_in_two_pools),
        CASE(add_remove_drain),
        CASE(a_word_makes_another_worker_of_it),
        CASE(a_reload_keeps_what_was_registered),
        CASE(a_worker_that_is_described_anew_is_registered_still),
        CASE(a_reload_keeps_whom_only_registration_has_named),
        CASE(a_role_that_nobody_knows_outlives_a_description),
        CASE(one_worker_whoever_names_it),
        CASE(another_description_keeps_it_up),
        CASE(what_is_added_outlives_a_reload),
        CASE(what_is_added_takes_over_what_was_found),
        CASE(what_is_found_anew_is_registered_still),
        CASE(a_bad_finding_changes_nothing),
        CASE(changes_come_alone),
        CASE(an_ended_one_has_a_successor),
        CASE(a_bad_change_keeps_no_other),
        CASE(names_that_look_like_numbers),
        CASE(loops_hammer_while_the_registry_applies),
    };
    bt_log_set(BT_LOG_ERROR, false, 2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
