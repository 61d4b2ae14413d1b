/* --workers-dns and workers_dns: what is taken, and how what is wrong is told. */
#include "load.h"

#define IS(a, b) ((a) != NULL && strcmp((a), (b)) == 0)

static void flags(void **state)
{
    bt_config_t c;

    load_ok(&c, "--vllm-pd-disaggregation "
                "--workers-dns name=p.llm.svc,port=8000,role=prefill,zone=a,tp_size=2 "
                "--workers-dns srv=_http._tcp.d.llm.svc,role=decode,family=ipv6 "
                "--dns-servers 127.0.0.1:5353,[::1]:53");
    assert_int_equal(c.dns.count, 2);
    const bt_dns_name_t *p = &c.dns.names[0], *d = &c.dns.names[1];
    assert_true(IS(p->name, "p.llm.svc") && p->srv == NULL && p->port == 8000);
    assert_true(IS(p->pool, "default") && p->family == BT_DNS_AUTO);
    assert_int_equal(p->worker->role, BT_ROLE_PREFILL);
    assert_int_equal(p->worker->tp_size, 2);
    assert_string_equal(p->worker->zone, "a");
    assert_string_equal(p->worker->connector, "nixl"); /* as the pool says of its own */
    assert_int_equal(p->worker->engine, BT_ENGINE_VLLM);
    assert_true(IS(d->srv, "_http._tcp.d.llm.svc") && d->name == NULL && d->port == 0);
    assert_int_equal(d->family, BT_DNS_IPV6);
    assert_string_equal(c.dns.servers, "127.0.0.1:5353,[::1]:53");
    assert_int_equal(c.pools[0].worker_count, 0);
    bt_config_fini(&c);
}

static void file(void **state)
{
    bt_config_t c;

    load_ok(&c, load_write("dns.lua",
                           "return { dns_hold_secs = 2.5, pools = { { name = 'a' }, { name = 'b',\n"
                           "connector = 'NixlConnector' } }, workers_dns = {\n"
                           "{ name = 'p.svc', port = 8000, role = 'prefill', pool = 'b',\n"
                           "  labels = { rack = 'x' }, models = { 'm', 'n' } },\n"
                           "{ name = 'q.svc', port = 9000, role = 'decode', pool = 'b',\n"
                           "  kv_transfer_config = { kv_connector = 'NixlConnector',\n"
                           "  kv_role = 'kv_both' } } } }"));
    assert_int_equal(c.dns.hold_ms, 2500);
    assert_int_equal(c.dns.count, 2);
    assert_string_equal(c.dns.names[0].pool, "b");
    assert_string_equal(c.dns.names[0].worker->labels, "rack=x");
    assert_int_equal(c.dns.names[0].worker->model_count, 2);
    assert_string_equal(c.dns.names[0].worker->connector, "NixlConnector");
    assert_string_equal(c.dns.names[1].worker->connector, "NixlConnector");
    bt_config_fini(&c);
}

static void wrong_flags(void **state)
{
    load_refused("--workers-dns p.svc", "--workers-dns: expected KEY=VALUE, got \"p.svc\"");
    load_refused("--workers-dns nam=p.svc",
                 "--workers-dns: unknown key \"nam\", did you mean \"name\"?");
    load_refused("--workers-dns url=http://a:1",
                 "--workers-dns: unknown key \"url\", did you mean \"name\"?");
    load_refused("--workers-dns port=80",
                 "--workers-dns: name: missing: which name is looked up? give name and port, or "
                 "srv");
    load_refused("--workers-dns name=p.svc,srv=_a._b.c,port=1",
                 "--workers-dns: srv: give either name and port, or srv");
    load_refused("--workers-dns name=p.svc",
                 "--workers-dns: port: missing: where do the workers listen?");
    load_refused("--workers-dns srv=_a._tcp.p.svc,port=80",
                 "--workers-dns: port: SRV records say it themselves; leave it out");
    load_refused("--workers-dns name=p.svc,port=80000",
                 "--workers-dns: port: expected a whole number from 1 to 65535, got \"80000\"");
    load_refused("--workers-dns name=http://p,port=80",
                 "--workers-dns: name: expected a DNS name, as prefill.llm.svc.cluster.local");
    load_refused("--workers-dns name=p.svc,port=80,pool=x",
                 "--workers-dns: pool: there is no pool \"x\" in the configuration");
    load_refused("--workers-dns name=p.svc,port=80,family=both",
                 "--workers-dns: family: expected one of auto, ipv4, ipv6, got \"both\"");
    load_refused("--workers-dns name=p.svc,port=80 --workers-dns name=P.svc,port=80,role=hybrid",
                 "--workers-dns: name: is given twice for one pool; leave out one");
    load_refused("--workers-dns name=p.svc,port=80,role=prefill",
                 "--workers-dns http://p.svc:80: how do the engines move KV? add "
                 "--pd-disaggregation (SGLang), --vllm-pd-disaggregation (vLLM) or "
                 "--kv-connector NAME");
    load_refused("--workers-dns name=p.svc,port=80,kv_transfer_config={}",
                 "--workers-dns: kv_transfer_config: has commas of its own; write it in the file, "
                 "workers_dns = { { ... } }");
    load_refused("--dns-servers dns.google",
                 "--dns-servers: expected addresses, as 10.0.0.10 or 127.0.0.1:5353,[::1]:5353, "
                 "got \"dns.google\"");
    load_refused("--dns-min-secs 5 --dns-max-secs 2",
                 "--dns-min-secs: is above --dns-max-secs (2)");
}

static void wrong_file(void **state)
{
    static const struct {
        const char *text, *why;
    } all[] = {
        {"return { workers_dns = { 'p' } }",
         "workers_dns[1]: expected a table like { name = \"prefill.llm.svc\", port = 8000 }"},
        {"return { workers_dns = { { name = 'p', port = 'x' } } }",
         "workers_dns[1].port: expected a whole number from 1 to 65535, got \"x\""},
        {"return { workers_dns = { { name = 'p', prot = 80 } } }",
         "workers_dns[1].prot: unknown key, did you mean \"port\"?"},
        {"return { workers_dns = { { name = 'p', port = 80 }, { name = 'q' } } }",
         "workers_dns[2].port: missing: where do the workers listen?"},
        {"return { workers_dns = { { name = 'p', port = 80, role = 'decode' } } }",
         "workers_dns[1].connector: missing: how does the engine move KV? \"sglang\" (SGLang), "
         "\"nixl\" (vLLM's "
         "NixlConnector), ...: baton help run, --connector"},
        {"return { worker_dns = {} }", "worker_dns: unknown key, did you mean \"workers_dns\"?"},
    };

    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++) {
        const char *path = load_write("bad.lua", all[i].text);
        char wanted[512];
        snprintf(wanted, sizeof wanted, "%s: %s", path, all[i].why);
        load_refused(path, wanted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags),
        cmocka_unit_test(file),
        cmocka_unit_test(wrong_flags),
        cmocka_unit_test(wrong_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
