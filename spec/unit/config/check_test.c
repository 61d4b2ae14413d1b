/* The start-up check: each thing that can be known to be wrong, one line each. */
#include "config/check.h"
#include "config/flag.h"

#include "load.h"
#include "loop/listener.h"

#define ANY_PORTS "--port 0 --admin-port 0 "

static char warned[1024]; /* by the last check */

static int check_line(const char *line, char *err, size_t err_size)
{
    bt_config_t c;
    load_ok(&c, line);
    bt_text_t warnings;
    bt_text_init(&warnings);
    int rc = bt_config_check(&c, &warnings, err, err_size);
    if (rc == 0)
        rc = bt_config_check_ports(&c, &warnings, err, err_size);
    snprintf(warned, sizeof warned, "%s", warnings.len > 0 ? warnings.data : "");
    bt_text_fini(&warnings);
    bt_config_fini(&c);
    return rc;
}

static void accepted(const char *line)
{
    char err[BT_CONFIG_ERR_BYTES] = "";
    if (check_line(line, err, sizeof err) < 0)
        fail_msg("%s: %s", line, err);
}

static void refused(const char *line, const char *why)
{
    char err[BT_CONFIG_ERR_BYTES] = "";
    if (check_line(line, err, sizeof err) == 0)
        fail_msg("%s: accepted", line);
    assert_string_equal(err, why);
}

static void policies(void **state)
{
    char line[256], want[400];
    const char *broken = load_write("broken.lua", "return {");
    accepted(ANY_PORTS "--policy power_of_two --prefill-policy random --decode-policy round_robin");
    refused("--policy passthrough", "--policy: passthrough is another router's name: use "
                                    "fallback_chain, or a Lua file of yours");
    refused("--decode-policy program", "--decode-policy: program is another router's name: use "
                                       "least_load, or a Lua file of yours");
    for (const bt_peer_policy_t *p = bt_peer_policies; p->theirs != NULL; p++) {
        snprintf(line, sizeof line, ANY_PORTS "--policy %s", p->but != NULL ? p->theirs : p->ours);
        accepted(line);
    }
    snprintf(line, sizeof line, ANY_PORTS "--policy %s", broken);
    char err[BT_CONFIG_ERR_BYTES] = "";
    assert_true(check_line(line, err, sizeof err) < 0);
    snprintf(want, sizeof want, "--policy: %s:1:", broken);
    assert_memory_equal(err, want, strlen(want));
    assert_true(check_line("--policy least_lod", err, sizeof err) < 0);
    assert_non_null(strstr(err, "least_load"));
}

#define WEIGHTED                                                                                   \
    "return { api = 2, name = 'w', version = '1', params = { weight = { type = 'number', max = "   \
    "10, default = 1 } }, plan = function(r, v) return v.hybrid[1] and { worker = v.hybrid[1] } "  \
    "end }"

static void refused_file(const char *text, const char *more, const char *why)
{
    char line[512], want[600];
    const char *path = load_write("baton.lua", text);
    snprintf(line, sizeof line, ANY_PORTS "%s --policy-dir %s %s", path, load_folder(), more);
    if (why[0] == '-')
        snprintf(want, sizeof want, "%s", why);
    else
        snprintf(want, sizeof want, "%s: %s", path, why);
    refused(line, want);
}

static void parameters(void **state)
{
    char line[256];
    (void) load_write("w.lua", WEIGHTED);
    refused_file("return { pools = { { policy = 'w', params = { weight = 12 } } } }", "",
                 "pools[1].params.weight: 12 is above max 10");
    refused_file("return { policy = 'w', params = { weigth = 1 } }", "",
                 "params.weigth: the policy has no such parameter (did you mean 'weight'?)");
    refused_file("return { pools = { { name = 'x' }, { name = 'y', decode_policy = 'w', "
                 "decode_params = { weight = 'a' } } } }",
                 "", "pools[2].decode_params.weight: \"a\" is a string; it must be a number");
    refused_file("return { policy = 'w' }", "--policy-param weight=12",
                 "--policy-param: params.weight: 12 is above max 10");
    snprintf(line, sizeof line, ANY_PORTS "--policy w --policy-dir %s --policy-param weight=10",
             load_folder());
    accepted(line);
}

static void policies_of_a_file(void **state)
{
    char err[BT_CONFIG_ERR_BYTES] = "";
    const char *path =
        load_write("baton.lua", "return { pools = { { name = 'a', policy = 'least_lod' } } }");
    static const char want[] =
        "pool a: policy: no policy 'least_lod' (did you mean 'least_load'?); known policies: ";

    assert_true(check_line(path, err, sizeof err) < 0);
    assert_memory_equal(err, want, sizeof want - 1);
}

/* text: of the rules file; why follows its name. */
static void refused_rules(const char *text, const char *why)
{
    char line[512], want[600];
    const char *path = load_write("rules.lua", text);
    snprintf(line, sizeof line, ANY_PORTS "--rules-file %s --policy-dir %s", path, load_folder());
    snprintf(want, sizeof want, "%s: %s", path, why);
    refused(line, want);
}

static void rules(void **state)
{
    char line[256];
    const char *path;
    (void) load_write("w.lua", WEIGHTED);
    refused_rules("return { api = 1, rules = { { name = 'a', pool = 'defalt' } } }",
                  "rules[1].pool: there is no pool \"defalt\" (did you mean \"default\"?)");
    refused_rules("return { api = 1, rules = { { name = 'a', pool = 'default' }, { name = 'b', "
                  "split = { { weight = 1 }, { weight = 1, policy = 'w', params = { weight = 12 } "
                  "} } } } }",
                  "rules[2].split[2].params.weight: 12 is above max 10");
    refused_rules("return { api = 1, rules = { { name = 'a' } } }",
                  "rules[1]: this rule does nothing: it needs pool, policy, split or shadow");
    refused("--rules-file /nowhere/r.lua",
            "--rules-file: /nowhere/r.lua: No such file or directory");
    path = load_write("rules.lua",
                      "return { api = 1, rules = { { name = 'a', match = { model = 'm' }, policy = "
                      "'w', params = { weight = 3 } }, { name = 'b', shadow = { policy = "
                      "'nowhere' } } } }");
    snprintf(line, sizeof line, ANY_PORTS "--rules-file %s --policy-dir %s", path, load_folder());
    accepted(line); /* a shadow is no reason not to serve */
}

/* A user's file of that name is theirs, whatever other routers have. */
static void one_route_a_pool(void **state)
{
    static const char text[] = "return { api = 2, name = 'r', version = '1', plan = function(r, v) "
                               "return v.hybrid[1] and { worker = v.hybrid[1] } end, "
                               "route = function() end }";
    char line[1024], want[1024], one[256];
    const char *other;
    snprintf(one, sizeof one, "%s", load_write("one.lua", text));
    other = load_write("other.lua", text);
    snprintf(line, sizeof line, ANY_PORTS "--policy %s --decode-policy %s", one, one);
    accepted(line);
    snprintf(line, sizeof line, ANY_PORTS "--prefill-policy %s --decode-policy %s", one, other);
    snprintf(want, sizeof want,
             "pool default: policies %s and %s both have a route hook; only one of a pool's "
             "policies may",
             one, other);
    refused(line, want);
}

static void own_policy_of_a_peers_name(void **state)
{
    char line[256];
    (void) load_write(
        "cache_aware.lua",
        "return { api = 2, name = 'cache_aware', version = '1', plan = function(req, view)\n"
        "  local w = view.hybrid[1] if w then return { kind = 'single', worker = w.id } end end }");
    snprintf(line, sizeof line, ANY_PORTS "--policy cache_aware --policy-dir %s", load_folder());
    accepted(line);
}

static void dialects(void **state)
{
    char line[256];
    bt_config_t c;
    (void) load_write("zz.lua", "return 3");
    snprintf(line, sizeof line, ANY_PORTS "--dialect-dir %s", load_folder());
    assert_true(load_line(&c, line) < 0); /* it may name connectors of workers */
    assert_memory_equal(load_err, "--dialect-dir: ", 15);
    char path[128];
    snprintf(path, sizeof path, "%s/zz.lua", load_folder());
    assert_int_equal(unlink(path), 0);
}

static void fleets(void **state)
{
    char line[256];
    accepted(ANY_PORTS "--pd-disaggregation --prefill http://a:1 --decode http://b:1");
    refused(ANY_PORTS "--worker-urls http://a:1 http://A:1/",
            "workers w0 and w1 of pool default have the same url http://A:1/");
    snprintf(line, sizeof line, ANY_PORTS "%s",
             load_write("tp.lua",
                        "return { connector = 'MooncakeConnectorV1', pools = { { workers = {\n"
                        "  { url = 'http://a:1', role = 'prefill', tp_size = 2 },\n"
                        "  { url = 'http://b:1', role = 'decode', tp_size = 4 } } } } }"));
    char err[BT_CONFIG_ERR_BYTES] = "";
    assert_true(check_line(line, err, sizeof err) < 0);
    assert_memory_equal(err,
                        "pool default: no prefill and decode worker fit together: p0 (http://a:1) "
                        "and d0 (http://b:1): ",
                        91);
    snprintf(line, sizeof line, ANY_PORTS "%s",
             load_write(
                 "mix.lua",
                 "return { pools = { { workers = {\n"
                 "  { url = 'http://a:1', role = 'prefill', connector = 'sglang' },\n"
                 "  { url = 'http://b:1', role = 'decode', connector = 'NixlConnector' } } } } }"));
    assert_true(check_line(line, err, sizeof err) < 0);
    /* One decode that fits is enough: the others may be on their way to the new version. */
    snprintf(line, sizeof line, ANY_PORTS "%s",
             load_write("roll.lua",
                        "return { connector = 'NixlConnector', pools = { { workers = {\n"
                        "  { url = 'http://a:1', role = 'prefill', version = '0.31.0' },\n"
                        "  { url = 'http://b:1', role = 'decode', version = '0.32.0' },\n"
                        "  { url = 'http://c:1', role = 'decode', version = '0.31.0' } } } } }"));
    accepted(line);
}

static void ports(void **state)
{
    unsigned port;
    char line[128], want[256];
    int fd = bt_listener_bind("127.0.0.1", 0, false, &port);
    assert_true(fd >= 0);
    snprintf(line, sizeof line, "--admin-port 0 --port %u", port);
    snprintf(want, sizeof want,
             "warning: --port: cannot listen on 127.0.0.1:%u: address already in use (by the "
             "gateway that serves this, maybe)\n",
             port);
    accepted(line);
    assert_string_equal(warned, want);
    snprintf(line, sizeof line, "--port 0 --prometheus-port %u", port);
    accepted(line);
    assert_memory_equal(warned, "warning: --admin-port: ", 23);
    close(fd);
    accepted(line);
    assert_string_equal(warned, "");
    refused("--admin-port 0 --host 203.0.113.7",
            "--port: cannot listen on 203.0.113.7:30000: address not available");
}

static void describes(void **state)
{
    bt_config_t c;
    bt_text_t t;
    load_ok(&c, "--loops 2 --host 0.0.0.0 --admin-host 0.0.0.0 --vllm-pd-disaggregation --prefill "
                "http://a:1 --decode "
                "http://b:1 --worker-urls http://c:1 --prefill-policy random");
    bt_text_init(&t);
    bt_config_describe(&c, &t);
    assert_string_equal(
        t.data,
        "ok\n"
        "clients 0.0.0.0:30000, admin 0.0.0.0:29000 (only /metrics: no --admin-api-key), 2 loops\n"
        "pool default: models any; policy least_load (prefill random, decode least_load); serves "
        "by pairs and single "
        "workers\n"
        "  p0       prefill  http://a:1  engine vllm, connector nixl, prefill_handoff_decode, "
        "dialect nixl\n"
        "  d0       decode   http://b:1  engine vllm, connector nixl, prefill_handoff_decode, "
        "dialect nixl\n"
        "  w0       hybrid   http://c:1  engine vllm\n");
    bt_text_fini(&t);
    bt_config_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters),
        cmocka_unit_test(rules),
        cmocka_unit_test(policies),
        cmocka_unit_test(policies_of_a_file),
        cmocka_unit_test(one_route_a_pool),
        cmocka_unit_test(policies),
        cmocka_unit_test(own_policy_of_a_peers_name),
        cmocka_unit_test(dialects),
        cmocka_unit_test(fleets),
        cmocka_unit_test(ports),
        cmocka_unit_test(describes),
    };
    return cmocka_run_group_tests(tests, NULL, load_cleanup);
}
