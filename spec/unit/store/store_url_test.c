/* What a store's url may be, and what is said of one that is none. */
#include "../loop/util.h"

#include "base/err.h"
#include "store/store.h"
#include "store/store_url.h"

#include <stdio.h>

typedef struct good {
    const char *text;
    enum bt_store_scheme scheme;
    const char *host;
    unsigned port, hosts, db;
    const char *user, *password, *path, *master, *shown;
} good_t;

static const good_t goods[] = {
    {NULL, BT_STORE_URL_LOCAL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, "local"},
    {"local", BT_STORE_URL_LOCAL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, "local"},
    {"redis://h", BT_STORE_URL_TCP, "h", 6379, 1, 0, NULL, NULL, NULL, NULL, "redis://h:6379"},
    {"redis://h:1/", BT_STORE_URL_TCP, "h", 1, 1, 0, NULL, NULL, NULL, NULL, "redis://h:1"},
    {"redis://h:1/15", BT_STORE_URL_TCP, "h", 1, 1, 15, NULL, NULL, NULL, NULL, "redis://h:1"},
    {"redis://:p%40%2f%25@[::1]:7", BT_STORE_URL_TCP, "::1", 7, 1, 0, NULL, "p@/%", NULL, NULL,
     "redis://[::1]:7"},
    {"redis://u:p:q@r@h", BT_STORE_URL_TCP, "h", 6379, 1, 0, "u", "p:q@r", NULL, NULL,
     "redis://h:6379"},
    {"rediss://10.0.0.1", BT_STORE_URL_TLS, "10.0.0.1", 6379, 1, 0, NULL, NULL, NULL, NULL,
     "rediss://10.0.0.1:6379"},
    {"unix:///run/r.sock", BT_STORE_URL_UNIX, NULL, 0, 0, 0, NULL, NULL, "/run/r.sock", NULL,
     "unix:///run/r.sock"},
    {"unix:///r?db=7", BT_STORE_URL_UNIX, NULL, 0, 0, 7, NULL, NULL, "/r", NULL, "unix:///r"},
    {"sentinel://a,b:2,[::1]:3/m", BT_STORE_URL_SENTINEL, "a", 26379, 3, 0, NULL, NULL, NULL, "m",
     "sentinel://a:26379,b:2,[::1]:3/m"},
    {"sentinel://u:p@a/m/4", BT_STORE_URL_SENTINEL, "a", 26379, 1, 4, "u", "p", NULL, "m",
     "sentinel://a:26379/m"},
    {"redis-cluster://a,b:2,[::1]:3", BT_STORE_URL_CLUSTER, "a", 6379, 3, 0, NULL, NULL, NULL, NULL,
     "redis-cluster://a:6379,b:2,[::1]:3"},
    {"rediss-cluster://u:p@a:1/0", BT_STORE_URL_CLUSTER_TLS, "a", 1, 1, 0, "u", "p", NULL, NULL,
     "rediss-cluster://a:1"},
};

static void same(const char *is, const char *should)
{
    assert_true((is == NULL) == (should == NULL));
    if (is != NULL)
        assert_string_equal(is, should);
}

static void test_good(void **state)
{
    for (unsigned i = 0; i < sizeof(goods) / sizeof(goods[0]); i++) {
        const good_t *good = &goods[i];
        bt_store_url_t url;
        char err[256] = "";
        if (bt_store_url_parse(&url, good->text, err, sizeof(err)) != 0)
            fail_msg("%s: %s", good->text, err);
        assert_int_equal(url.scheme, good->scheme);
        assert_int_equal(url.host_count, good->hosts);
        same(url.hosts[0].host, good->host);
        assert_int_equal(url.hosts[0].port, good->port);
        assert_int_equal(url.db, good->db);
        same(url.username, good->user);
        same(url.password, good->password);
        same(url.path, good->path);
        same(url.master, good->master);
        same(url.shown, good->shown);
        bt_store_url_fini(&url);
    }
}

static const struct {
    const char *text, *says;
} bads[] = {
    {"", "unknown beginning"},
    {"http://h", "unknown beginning; write redis://"},
    {"h:6379", "unknown beginning"},
    {"redis://", "no host"},
    {"redis://:1", "no host"},
    {"redis://h:", "the port \"\""},
    {"redis://h:0", "the port \"0\""},
    {"redis://h:65536", "the port \"65536\" is not a number from 1 to 65535"},
    {"redis://h:x/1", "the port \"x\""},
    {"redis://::1:6379", "in brackets"},
    {"redis://[::1", "has no ]"},
    {"redis://[::1]x", "something else than :port"},
    {"redis://h/x", "the database \"x\""},
    {"redis://h/1/2", "the database \"1/2\""},
    {"redis://h/0?db=1", "\"?db=1\" is unknown"},
    {"redis://secret@h", "user:password@"},
    {"redis://secret:@h", "a user without a password"},
    {"redis://u:secret%4@h", "the password has a %"},
    {"redis://u:secret%zz@h", "write %25"},
    {"redis://u:secret%00@h", "the password has a %"},
    {"redis://h,i", "several hosts are for sentinel:// and redis-cluster:// only"},
    {"unix://run/r", "begins with /"},
    {"unix:///", "begins with /"},
    {"unix:///r?db=x", "the database \"x\""},
    {"unix:///r?x=1", "only ?db=n"},
    {"sentinel://h", "the name of the master is missing"},
    {"sentinel://h/", "the name of the master is missing"},
    {"sentinel://h,/m", "no host"},
    {"sentinel://h/m/x", "the database \"x\""},
    {"sentinel://a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a/m", "more than 16 sentinels"},
    {"redis-cluster://", "no host"},
    {"redis-cluster://a,,b", "no host"},
    {"redis-cluster://a:x,b", "the port \"x\""},
    {"redis-cluster://a,b/1", "a cluster has one database; leave /1 out"},
    {"redis-cluster://a/mymaster", "the database \"mymaster\""},
    {"redis-cluster://a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a", "more than 16 nodes of the cluster"},
};

static void test_bad(void **state)
{
    for (unsigned i = 0; i < sizeof(bads) / sizeof(bads[0]); i++) {
        bt_store_config_t config = {.url = bads[i].text};
        bt_store_t *store;
        char err[400] = "";
        assert_int_equal(bt_store_open(&store, &config, err, sizeof(err)), BT_E_CONFIG);
        if (strstr(err, bads[i].says) == NULL || strncmp(err, "store url: ", 11) != 0)
            fail_msg("%s: %s", bads[i].text, err);
        if (strstr(err, "secret") != NULL)
            fail_msg("a password is shown: %s", err);
        assert_null(strchr(err, '\n'));
        assert_int_equal(bt_store_open(&store, &config, err, 20), BT_E_CONFIG); /* cut to fit */
    }
}

static void test_user_without_password(void **state)
{
    bt_store_config_t config = {.url = "redis://h", .username = "u"};
    bt_store_t *store;
    char err[256];

    assert_int_equal(bt_store_open(&store, &config, err, sizeof(err)), BT_E_CONFIG);
    assert_non_null(strstr(err, "a user without a password"));
}

/* It says at once which file is no good. */
static void test_tls(void **state)
{
    bt_store_config_t config = {.url = "rediss://h", .tls_ca_file = "/nonexistent/ca.pem"};
    bt_store_t *store;
    char err[256];

    assert_int_equal(bt_store_open(&store, &config, err, sizeof(err)), BT_E_CONFIG);
    assert_non_null(strstr(err, "/nonexistent/ca.pem"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_user_without_password),
        cmocka_unit_test(test_tls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
