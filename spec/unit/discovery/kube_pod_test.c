/* Values of a worker's keys are core/config's to judge; a stand-in takes a few. gateway/workers_kubernetes has the whole. */
#include "discovery/kube_pod.h"

#include "base/err.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

static int set_key(bt_worker_spec_t *spec, bt_str_t key, bt_str_t text, bool *is_role_p, char *err,
                   size_t err_size)
{
    if (bt_str_eq(key, BT_STR("role"))) {
        if (!bt_str_eq(text, BT_STR("prefill")) && !bt_str_eq(text, BT_STR("hybrid")))
            return bt_err_refuse(err, err_size, "bad role");
        spec->role = bt_str_eq(text, BT_STR("prefill")) ? BT_ROLE_PREFILL : BT_ROLE_HYBRID;
        *is_role_p = true;
        return 0;
    }
    if (!bt_str_eq(key, BT_STR("zone")))
        return BT_E_INVAL;
    free(spec->zone);
    spec->zone = bt_str_dup(text);
    return 0;
}

static bt_kube_options_t options;
static bt_kube_pod_t pod;

#define LABELED(labels)                                                                            \
    "{\"metadata\":{\"name\":\"p\",\"namespace\":\"n\",\"labels\":{" labels "}},\"spec\":{"        \
    "\"nodeName\":\"k\",\"containers\":[{\"ports\":[{\"containerPort\":8000}]}]},\"status\":{"     \
    "\"podIP\":\"10.0.0.1\",\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}"
#define STATUS(more) "{\"metadata\":{\"name\":\"p\",\"namespace\":\"n\"" more "}"

static enum bt_kube_state state_of(const char *text)
{
    bt_kube_pod_fini(&pod);
    assert_int_equal(bt_kube_pod_read(&pod, &options, bt_str(text)), 0);
    assert_true(pod.state == BT_KUBE_READY || pod.worker_count == 0);
    return pod.state;
}

static int setup(void **state)
{
    options = (bt_kube_options_t){.set_key = set_key};
    bt_worker_spec_init(&options.worker);
    return 0;
}

static int teardown(void **state)
{
    bt_kube_pod_fini(&pod);
    bt_worker_spec_fini(&options.worker);
    return 0;
}

static void a_ready_pod(void **state)
{
    assert_int_equal(state_of(LABELED("\"llm-d.ai/role\":\"prefill\"")), BT_KUBE_READY);
    assert_int_equal(pod.worker_count, 1);
    assert_string_equal(pod.workers[0].url, "http://10.0.0.1:8000");
    assert_string_equal(pod.workers[0].labels, "pod=p,node=k");
    assert_int_equal(pod.workers[0].role, BT_ROLE_PREFILL);
    /* our own word goes before others' */
    assert_int_equal(
        state_of(LABELED("\"llm-d.ai/role\":\"prefill\",\"baton/role\":\"both\",\"baton/port\":"
                         "\"81,82\",\"topology.kubernetes.io/zone\":\"a\",\"baton/zone\":\"b\"")),
        BT_KUBE_READY);
    assert_int_equal(pod.worker_count, 2);
    assert_string_equal(pod.workers[1].url, "http://10.0.0.1:82");
    assert_int_equal(pod.workers[1].role, BT_ROLE_HYBRID);
    assert_string_equal(pod.workers[0].zone, "b");
    assert_int_equal(state_of(LABELED("\"llm-d.ai/role\":\"prefill\",\"baton/scheme\":\"https\"")),
                     BT_KUBE_READY);
    assert_string_equal(pod.workers[0].url, "https://10.0.0.1:8000");
    char https[] = "https";
    options.scheme = https; /* a pod's own word goes before it */
    assert_int_equal(state_of(LABELED("\"llm-d.ai/role\":\"prefill\",\"baton/scheme\":\"http\"")),
                     BT_KUBE_READY);
    assert_string_equal(pod.workers[0].url, "http://10.0.0.1:8000");
    assert_int_equal(state_of(LABELED("\"llm-d.ai/role\":\"prefill\"")), BT_KUBE_READY);
    assert_string_equal(pod.workers[0].url, "https://10.0.0.1:8000");
}

#define PORTS(more, ports)                                                                         \
    "{\"metadata\":{\"name\":\"p\",\"namespace\":\"n\",\"labels\":{\"llm-d.ai/"                    \
    "role\":\"prefill\"" more "}},\"spec\":{\"containers\":[{\"ports\":[" ports                    \
    "]}]},\"status\":{\"podIP\":\"10.0.0.1\","                                                     \
    "\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}"
#define HTTPS "{\"name\":\"https\",\"containerPort\":8443}"
#define HTTP "{\"name\":\"http\",\"containerPort\":80}"
#define METRICS "{\"name\":\"metrics\",\"containerPort\":9090}"

/* A port's name is its word where nobody says more. */
static void a_port_named_https(void **state)
{
    static const struct {
        const char *pod, *url;
        const char *scheme; /* of the source */
    } rows[] = {
        {PORTS("", HTTPS), "https://10.0.0.1:8443", NULL},
        {PORTS("", HTTPS "," HTTP), "http://10.0.0.1:80", NULL},
        {PORTS("", METRICS), "http://10.0.0.1:9090", NULL},
        {PORTS(",\"baton/port\":\"https\"", HTTP "," HTTPS), "https://10.0.0.1:8443", NULL},
        {PORTS(",\"baton/port\":\"8443\"", HTTP "," HTTPS), "https://10.0.0.1:8443", NULL},
        {PORTS(",\"baton/port\":\"9090\"", METRICS "," HTTPS), "http://10.0.0.1:9090", NULL},
        {PORTS(",\"baton/scheme\":\"http\"", HTTPS), "http://10.0.0.1:8443", NULL},
        {PORTS("", HTTPS), "http://10.0.0.1:8443", "http"},
        {PORTS("", METRICS), "https://10.0.0.1:9090", "https"},
    };
    char scheme[8];

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        options.scheme = rows[i].scheme != NULL ? strcpy(scheme, rows[i].scheme) : NULL;
        assert_int_equal(state_of(rows[i].pod), BT_KUBE_READY);
        assert_int_equal(pod.worker_count, 1);
        assert_string_equal(pod.workers[0].url, rows[i].url);
    }
    options.scheme = NULL; /* which of them is the engine's? */
    assert_int_equal(state_of(PORTS("", METRICS "," HTTPS)), BT_KUBE_REFUSED);
}

static void one_that_says_nothing_is_as_the_source_says(void **state)
{
    assert_int_equal(state_of(LABELED("")), BT_KUBE_REFUSED);
    assert_non_null(strstr(pod.why, "no role"));
    options.has_role = true;
    options.worker.role = BT_ROLE_DECODE;
    options.port = "9";
    assert_int_equal(state_of(LABELED("\"role-name\":\"router\"")), BT_KUBE_READY);
    assert_int_equal(pod.workers[0].role, BT_ROLE_DECODE);
    assert_string_equal(pod.workers[0].url, "http://10.0.0.1:9");
    assert_int_equal(state_of(LABELED("\"role-name\":\"prefill\"")), BT_KUBE_READY);
    assert_int_equal(pod.workers[0].role, BT_ROLE_PREFILL);
}

static void one_that_is_wrong_says_why(void **state)
{
    assert_int_equal(state_of(LABELED("\"baton/role\":\"x\"")), BT_KUBE_REFUSED);
    assert_string_equal(pod.why, "baton/role: bad role");
    assert_int_equal(state_of(LABELED("\"llm-d.ai/role\":\"prefill\",\"baton/x\":\"y\"")),
                     BT_KUBE_REFUSED);
    assert_string_equal(pod.why, "baton/x: there is no such key of a worker");
    assert_int_equal(state_of(LABELED("\"llm-d.ai/role\":\"prefill\",\"baton/port\":\"http\"")),
                     BT_KUBE_REFUSED);
    assert_string_equal(pod.why, "port: \"http\" is no port, and no container port's name");
    assert_int_equal(
        state_of(LABELED("\"llm-d.ai/role\":\"prefill\",\"baton/port\":\"1,2,3,4,5,6,7,8,9\"")),
        BT_KUBE_REFUSED);
    assert_int_equal(state_of(LABELED("\"llm-d.ai/role\":\"prefill\",\"baton/port\":\"0\"")),
                     BT_KUBE_REFUSED);
}

static void states(void **state)
{
    assert_int_equal(state_of(STATUS("}")), BT_KUBE_NOT_READY);
    assert_int_equal(state_of(STATUS("},\"status\":{\"podIP\":\"10.0.0.1\"}")), BT_KUBE_NOT_READY);
    assert_int_equal(
        state_of(
            STATUS("},\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}")),
        BT_KUBE_NOT_READY);
    assert_int_equal(state_of(STATUS(",\"deletionTimestamp\":\"x\"}")), BT_KUBE_TERMINATING);
    assert_int_equal(state_of(STATUS(",\"deletionTimestamp\":null}")), BT_KUBE_NOT_READY);
    assert_int_equal(state_of(STATUS("},\"status\":{\"phase\":\"Succeeded\"}")), BT_KUBE_ENDED);
    assert_int_equal(state_of(STATUS("},\"status\":[],\"spec\":7")), BT_KUBE_NOT_READY);
}

static uint64_t life_of(const char *uid, const char *containers, const char *statuses)
{
    char text[1024];

    snprintf(text, sizeof text,
             "{\"metadata\":{\"name\":\"p\",\"namespace\":\"n\",\"uid\":\"%s\"},"
             "\"spec\":{\"containers\":%s},\"status\":{\"containerStatuses\":%s}}",
             uid, containers, statuses);
    (void) state_of(text);
    return pod.life;
}

/* Another pod, or an engine that has ended or begun again; not what comes and goes while it runs, nor a sidecar. */
static void lives(void **state)
{
#define ENDED(count, state)                                                                        \
    "[{\"name\":\"c\",\"restartCount\":" count ",\"ready\":false,\"state\":{\"" state "\":{}}}]"
#define RUNS "[{\"name\":\"c\",\"restartCount\":0,\"ready\":true,\"state\":{\"running\":{}}}]"
#define PORT(name) ",\"ports\":[{\"name\":\"" name "\",\"containerPort\":1}]"
    static const char *const specs[] = {
        "[{\"name\":\"c\"}]", "[{\"name\":\"x\"},{\"name\":\"c\"" PORT("api") "}]",
        "[{\"name\":\"x\"" PORT("metrics") "},{\"name\":\"c\"" PORT("http") "}]"};
    static const char *const others[] = {
        "[{\"name\":\"c\"},{\"name\":\"x\"}]", "[{\"name\":\"c\"},{\"name\":\"x\"" PORT("api") "}]",
        "[{\"name\":\"c\"" PORT("metrics") "},{\"name\":\"x\"" PORT("http") "}]", "7", "[7]"};
    for (unsigned i = 0; i < 3; i++) {
        const uint64_t first = life_of("u", specs[i], RUNS);
        assert_int_equal(life_of("u", specs[i], ENDED("0", "running")), first);
        assert_int_not_equal(life_of("v", specs[i], RUNS), first);
        assert_int_not_equal(life_of("u", specs[i], ENDED("0", "terminated")), first);
        assert_int_not_equal(life_of("u", specs[i], ENDED("1", "running")), first);
        assert_int_equal(life_of("u", specs[i], "7"), life_of("u", specs[i], "{}"));
    }
    for (unsigned i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_int_equal(life_of("u", others[i], RUNS),
                         life_of("u", others[i], ENDED("1", "terminated")));
}

static void what_is_no_pod(void **state)
{
    static const char *const bad[] = {"",
                                      "{}",
                                      "[]",
                                      "{\"metadata\":{}}",
                                      "{\"metadata\":7}",
                                      "{\"metadata\":{\"name\":\"\",\"namespace\":\"n\"}}",
                                      "{\"metadata\":{\"name\":\"p\",\"namespace\":\"n\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(bt_kube_pod_read(&pod, &options, bt_str(bad[i])), BT_E_JSON);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_ready_pod),
        CASE(a_port_named_https),
        CASE(one_that_says_nothing_is_as_the_source_says),
        CASE(one_that_is_wrong_says_why),
        CASE(states),
        CASE(lives),
        CASE(what_is_no_pod),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
