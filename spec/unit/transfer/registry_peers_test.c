/* Who may use the registry without a token, as workers come, go and change their addresses. */
#include "cluster/help.h"
#include "loop/resolve.h"
#include "transfer/registry_peers.h"

static bt_registry_t *registry;
static bt_registry_peers_t peers;

static void on_publish(void *user, bt_workers_t *workers)
{
    (void) user;
    bt_registry_peers_set_workers(&peers, workers);
}

static void add(const char *name, const char *url)
{
    bt_worker_spec_t spec;
    char err[256] = "";

    make_spec(&spec, BT_ROLE_PREFILL, url, "sglang");
    spec.name = text(name);
    if (bt_registry_add(registry, NULL, &spec, err, sizeof err) != 0)
        fail_msg("%s", err);
    bt_worker_spec_fini(&spec);
}

static void move(const char *name, const char *address)
{
    struct sockaddr_storage addr;

    assert_int_equal(bt_resolve_numeric(address, 8000, &addr), 0);
    bt_worker_set_addr(bt_workers_find(bt_registry_current(registry), bt_str(name)), &addr);
}

static void open_peers(const char *const *allowed, unsigned count)
{
    const bt_worker_spec_t *none[1] = {NULL};
    unsigned zero = 0;
    bt_pool_spec_t pool;
    char err[256] = "";

    assert_int_equal(bt_registry_peers_init(&peers, allowed, count), 0);
    assert_int_equal(bt_registry_new(&registry, NULL, on_publish, NULL), 0);
    bt_pool_spec_init(&pool);
    pool.name = text("default");
    assert_int_equal(bt_registry_apply(registry, &pool, 1, none, &zero, err, sizeof err), 0);
    bt_pool_spec_fini(&pool);
}

static void close_peers(void)
{
    bt_registry_peers_fini(&peers);
    bt_registry_free(registry);
}

/* Asked one by one, or by the whole list: the same. */
static bool has(const char *peer)
{
    const bool yes = bt_registry_peers_has(&peers, peer);
    struct sockaddr_storage addr;
    bool is_listed = false;
    bt_network_t *list;
    unsigned count;

    assert_int_equal(bt_registry_peers_list(&peers, &list, &count), 0);
    if (bt_resolve_numeric(peer, 0, &addr) == 0)
        for (unsigned i = 0; i < count; i++)
            is_listed = is_listed || bt_network_has(&list[i], &addr);
    free(list);
    assert_true(is_listed == yes);
    return yes;
}

static void test_its_own_host(void **state)
{
    assert_int_equal(bt_registry_peers_init(&peers, NULL, 0), 0); /* before the first fleet */
    assert_true(has("127.0.0.1"));
    assert_true(has("127.9.9.9"));
    assert_true(has("::1"));
    assert_true(has("::ffff:127.0.0.1"));
    assert_false(has("10.0.0.1"));
    assert_false(has(""));
    assert_false(has("node-1"));
    bt_registry_peers_fini(&peers);
}

static void test_workers_as_they_are_now(void **state)
{
    open_peers(NULL, 0);
    assert_false(has("10.0.0.1"));
    add("p0", "http://10.0.0.1:8000");
    add("p1", "http://[2001:db8::1]:8000");
    assert_true(has("10.0.0.1"));
    assert_true(has("::ffff:10.0.0.1"));
    assert_true(has("2001:db8::1"));
    assert_false(has("10.0.0.2"));
    assert_int_equal(bt_registry_remove(registry, BT_STR("p0")), 0);
    assert_false(has("10.0.0.1"));
    close_peers();
}

/* By its address of this moment, not by its name. */
static void test_a_worker_with_a_name(void **state)
{
    open_peers(NULL, 0);
    add("p0", "http://node-1.example:8000");
    assert_false(has("10.0.0.1"));
    move("p0", "10.0.0.1");
    assert_true(has("10.0.0.1"));
    move("p0", "10.0.0.2");
    assert_true(has("10.0.0.2"));
    assert_false(has("10.0.0.1"));
    close_peers();
}

static void test_who_is_allowed(void **state)
{
    static const char *const allowed[] = {"192.0.2.7", "10.1.0.0/16"}, *const bad[] = {"10.0.0.1",
                                                                                       "node-1"};

    open_peers(allowed, 2);
    assert_true(has("192.0.2.7"));
    assert_false(has("192.0.2.8"));
    assert_true(has("10.1.255.1"));
    assert_false(has("10.2.0.1"));
    close_peers();
    assert_int_equal(bt_registry_peers_init(&peers, bad, 2), BT_E_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_its_own_host),
        cmocka_unit_test(test_workers_as_they_are_now),
        cmocka_unit_test(test_a_worker_with_a_name),
        cmocka_unit_test(test_who_is_allowed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
