/* What is said of a pod, the weaker word first: the source (--workers-kubernetes), labels that other routers have taught people, then baton/KEY as
 * a label, then as an annotation. A key of ours that is wrong refuses the pod: a worker that is not what its owner wrote is worse than one
 * that is missing with a reason.
 */
#include "discovery/kube_pod.h"

#include "base/err.h"
#include "base/text.h"
#include "discovery/kube_json.h"

#include <stdio.h>
#include <stdlib.h>

#define OWN_PREFIX "baton/"
#define VALUE_MAX 4096

static const struct alias {
    const char *theirs, *ours;
    bool
        is_vague; /* a word that others may use otherwise: what we cannot read is not meant for us */
} aliases[] = {
    {"llm-d.ai/role", "role", false},
    {"role-name", "role", true}, /* AIBrix */
    {"model.aibrix.ai/engine", "engine", true},
    {"sglang.ai/bootstrap-port", "bootstrap_port", false},
    {"vllm.ai/bootstrap-port", "bootstrap_port", false},
    {"sglang.ai/transfer-group", "transfer_group", false},
    {"smg.ai/worker-ports", "port", false},
    {"topology.kubernetes.io/zone", "zone", false},
};

const char *bt_kube_state_name(enum bt_kube_state state)
{
    static const char *const names[BT_KUBE_STATES] = {"ready", "not_ready", "terminating", "ended",
                                                      "refused"};
    return names[state];
}

static bool is_text(bt_str_t value, const char *wanted)
{
    const size_t n = strlen(wanted);

    return value.n == n + 2 && value.p[0] == '"' && memcmp(value.p + 1, wanted, n) == 0;
}

/* ---- what is said of it ---- */

typedef struct reading {
    bt_kube_pod_t *pod;
    const bt_kube_options_t *source;
    bt_worker_spec_t spec;
    char port[128];     /* numbers or names, with commas; "" = not said */
    const char *scheme; /* NULL = not said: what the port's name says */
    bool has_role;
    char value[VALUE_MAX];
} reading_t;

static int refuse(bt_kube_pod_t *pod, const char *what, const char *why)
{
    pod->state = BT_KUBE_REFUSED;
    snprintf(pod->why, sizeof pod->why, "%s: %s", what, why);
    return 0;
}

static const char *role_word(const char *word)
{
    const bool is_both = strcmp(word, "both") == 0 || strcmp(word, "prefill-decode") == 0;

    return is_both ? "hybrid" : word;
}

/* theirs: as it stands at the pod, for the reason. */
static int set_key(reading_t *r, const char *theirs, bt_str_t key, const char *text, bool is_vague)
{
    char why[160] = "";

    if (bt_str_eq(key, BT_STR("port"))) {
        if (strlen(text) >= sizeof r->port)
            return refuse(r->pod, theirs, "more than 8 ports");
        bt_str_copy(r->port, sizeof r->port, text);
        return 0;
    }
    if (bt_str_eq(key, BT_STR("scheme"))) {
        r->scheme = strcmp(text, "https") == 0  ? "https"
                    : strcmp(text, "http") == 0 ? "http"
                                                : NULL;
        return r->scheme != NULL ? 0 : refuse(r->pod, theirs, "expected http or https");
    }
    if (bt_str_eq(key, BT_STR("role")))
        text = role_word(text);
    int rc = r->source->set_key(&r->spec, key, bt_str(text), &r->has_role, why, sizeof why);
    if (rc == BT_E_NOMEM || rc == 0 || is_vague)
        return rc == BT_E_NOMEM ? rc : 0;
    return refuse(r->pod, theirs, rc == BT_E_INVAL ? "there is no such key of a worker" : why);
}

static int take_value(reading_t *r, const char *theirs, bt_str_t key, bt_str_t value, bool is_vague)
{
    if (!bt_kube_text(value, r->value, sizeof r->value))
        return refuse(r->pod, theirs, "expected a text of at most 4095 bytes");
    return set_key(r, theirs, key, r->value, is_vague);
}

static int take_aliases(reading_t *r, bt_str_t all)
{
    int rc = 0;

    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0] && rc == 0; i++) {
        const bt_str_t value = bt_kube_member(all, aliases[i].theirs);
        if (value.n > 0)
            rc = take_value(r, aliases[i].theirs, bt_str(aliases[i].ours), value,
                            aliases[i].is_vague);
    }
    return rc;
}

static int take_own(reading_t *r, bt_str_t all)
{
    bt_json_walk_t walk;
    bt_json_item_t item;
    int rc = 0;

    if (all.n == 0 || all.p[0] != '{')
        return 0;
    bt_json_walk(&walk, all);
    while (rc == 0 && r->pod->state != BT_KUBE_REFUSED && bt_json_walk_member(&walk, &item)) {
        char theirs[80];
        const bt_str_t prefix = BT_STR(OWN_PREFIX);
        if (!bt_str_starts(item.key, prefix))
            continue;
        snprintf(theirs, sizeof theirs, "%.*s", (int) (item.key.n < 79 ? item.key.n : 79),
                 item.key.p);
        rc = take_value(r, theirs, (bt_str_t){item.key.p + prefix.n, item.key.n - prefix.n},
                        item.value, false);
    }
    return rc;
}

/* Where the pod is, before what its owner wrote. */
static int add_labels(reading_t *r, bt_str_t spec)
{
    char node[BT_KUBE_NAME_MAX + 1];
    bt_text_t t;

    bt_text_init(&t);
    bt_text_printf(&t, "pod=%s", r->pod->name);
    if (bt_kube_text(bt_kube_member(spec, "nodeName"), node, sizeof node) &&
        strpbrk(node, ",=") == NULL)
        bt_text_printf(&t, ",node=%s", node);
    if (r->spec.labels != NULL)
        bt_text_printf(&t, ",%s", r->spec.labels);
    if (t.failed) {
        bt_text_fini(&t);
        return BT_E_NOMEM;
    }
    free(r->spec.labels);
    r->spec.labels = bt_text_take(&t);
    return 0;
}

/* ---- ports ---- */

/* wanted: a container port's name, or NULL for any. How many there are; port_p: the first. */
static unsigned find_ports(bt_str_t spec, const char *wanted, unsigned *port_p)
{
    const bt_str_t containers = bt_kube_member(spec, "containers");
    bt_json_walk_t walk, inner;
    bt_str_t container, entry;
    unsigned count = 0;
    int64_t port;
    size_t n;

    if (!bt_kube_is_array(containers))
        return 0;
    bt_json_walk(&walk, containers);
    while (bt_json_walk_next(&walk, &container, &n)) {
        const bt_str_t ports = bt_kube_member(container, "ports");
        if (!bt_kube_is_array(ports))
            continue;
        bt_json_walk(&inner, ports);
        while (bt_json_walk_next(&inner, &entry, &n)) {
            const bt_str_t protocol = bt_kube_member(entry, "protocol");
            if ((protocol.n > 0 && !is_text(protocol, "TCP")) ||
                (wanted != NULL && !is_text(bt_kube_member(entry, "name"), wanted)) ||
                bt_json_i64(bt_kube_member(entry, "containerPort"), &port) < 0 || port < 1 ||
                port > 65535)
                continue;
            if (count++ == 0)
                *port_p = (unsigned) port;
        }
    }
    return count;
}

static bool read_port(bt_str_t spec, const char *word, unsigned *port_p)
{
    uint64_t number;

    if (bt_str_u64(bt_str(word), &number) < 0)
        return find_ports(spec, word, port_p) > 0;
    *port_p = (unsigned) number;
    return number >= 1 && number <= 65535;
}

/* Ports of containers have a name, and no appProtocol as those of services do. It says how to speak, not which port is the engine's: a proxy before
 * the metrics has one named https too. */
static const char *scheme_of(const reading_t *r, bt_str_t spec, unsigned port)
{
    unsigned https;

    if (r->scheme != NULL)
        return r->scheme;
    return find_ports(spec, "https", &https) > 0 && https == port ? "https" : "http";
}

static int add_worker(reading_t *r, bt_str_t spec, const char *ip, unsigned port)
{
    bt_kube_pod_t *pod = r->pod;
    const bool is_v6 = strchr(ip, ':') != NULL;
    bt_text_t url;

    if (pod->worker_count == BT_KUBE_PORTS_MAX)
        return refuse(pod, OWN_PREFIX "port", "more than 8 ports");
    int rc = bt_worker_spec_copy(&pod->workers[pod->worker_count], &r->spec);
    if (rc < 0)
        return rc;
    bt_text_init(&url);
    bt_text_printf(&url, is_v6 ? "%s://[%s]:%u" : "%s://%s:%u", scheme_of(r, spec, port), ip, port);
    pod->workers[pod->worker_count++].url = bt_text_take(&url);
    return pod->workers[pod->worker_count - 1].url != NULL ? 0 : BT_E_NOMEM;
}

static int add_named_ports(reading_t *r, bt_str_t spec, const char *ip)
{
    char *save = NULL, why[96];
    unsigned port;
    int rc = 0;

    for (char *word = strtok_r(r->port, ", ", &save);
         word != NULL && rc == 0 && r->pod->state != BT_KUBE_REFUSED;
         word = strtok_r(NULL, ", ", &save)) {
        if (read_port(spec, word, &port)) {
            rc = add_worker(r, spec, ip, port);
            continue;
        }
        snprintf(why, sizeof why, "\"%.40s\" is no port, and no container port's name", word);
        rc = refuse(r->pod, "port", why);
    }
    return rc;
}

static int add_ports(reading_t *r, bt_str_t spec, const char *ip)
{
    unsigned port;

    if (r->port[0] != '\0')
        return add_named_ports(r, spec, ip);
    if (find_ports(spec, "http", &port) > 0 || find_ports(spec, NULL, &port) == 1)
        return add_worker(r, spec, ip, port);
    return refuse(r->pod, "no port",
                  "annotate " OWN_PREFIX "port, name a container port http, or say port= in "
                  "--workers-kubernetes");
}

/* ---- state ---- */

static bool is_ready(bt_str_t status)
{
    const bt_str_t conditions = bt_kube_member(status, "conditions");
    bt_json_walk_t walk;
    bt_str_t one;
    size_t n;

    if (!bt_kube_is_array(conditions))
        return false;
    bt_json_walk(&walk, conditions);
    while (bt_json_walk_next(&walk, &one, &n))
        if (is_text(bt_kube_member(one, "type"), "Ready"))
            return is_text(bt_kube_member(one, "status"), "True");
    return false;
}

static enum bt_kube_state state_of(bt_str_t metadata, bt_str_t status, char *ip, size_t ip_size)
{
    const bt_str_t phase = bt_kube_member(status, "phase");
    const bt_str_t deleted = bt_kube_member(metadata, "deletionTimestamp");

    if (is_text(phase, "Succeeded") || is_text(phase, "Failed"))
        return BT_KUBE_ENDED;
    if (deleted.n > 0 && deleted.p[0] == '"')
        return BT_KUBE_TERMINATING;
    if (!bt_kube_text(bt_kube_member(status, "podIP"), ip, ip_size) || ip[0] == '\0' ||
        !is_ready(status))
        return BT_KUBE_NOT_READY;
    return BT_KUBE_READY;
}

/* ---- which process ---- */

static unsigned count_ports(bt_str_t container, const char *wanted)
{
    const bt_str_t ports = bt_kube_member(container, "ports");
    bt_json_walk_t walk;
    bt_str_t one;
    unsigned count = 0;
    size_t n;

    if (!bt_kube_is_array(ports))
        return 0;
    bt_json_walk(&walk, ports);
    while (bt_json_walk_next(&walk, &one, &n))
        count += wanted == NULL || is_text(bt_kube_member(one, "name"), wanted);
    return count;
}

/* The name of the engine's container: the one with the port named http, the only one with ports, the only one. Empty: not clear. */
static bt_str_t engine_of(bt_str_t spec)
{
    const bt_str_t containers = bt_kube_member(spec, "containers");
    bt_str_t one, names[3];
    unsigned counts[3] = {0};
    bt_json_walk_t walk;
    size_t n;

    if (!bt_kube_is_array(containers))
        return BT_STR_NULL;
    bt_json_walk(&walk, containers);
    while (bt_json_walk_next(&walk, &one, &n)) {
        const bool is[3] = {count_ports(one, "http") > 0, count_ports(one, NULL) > 0, true};
        for (unsigned i = 0; i < 3; i++)
            if (is[i] && counts[i]++ == 0)
                names[i] = bt_kube_member(one, "name");
    }
    for (unsigned i = 0; i < 3; i++)
        if (counts[i] > 0)
            return counts[i] == 1 ? names[i] : BT_STR_NULL;
    return BT_STR_NULL;
}

static uint64_t mix(uint64_t life, bt_str_t word)
{
    return (life ^ bt_str_hash(word)) * UINT64_C(0x9E3779B97F4A7C15);
}

/* Which pod it is (one of the same name may follow), and how often its engine has begun and ended. A sidecar's life is its own. */
static uint64_t life_of(bt_str_t metadata, bt_str_t spec, bt_str_t status)
{
    const bt_str_t all = bt_kube_member(status, "containerStatuses"), engine = engine_of(spec);
    uint64_t life = mix(0, bt_kube_member(metadata, "uid"));
    bt_json_walk_t walk;
    bt_str_t one;
    size_t n;

    if (!bt_kube_is_array(all) || engine.n == 0)
        return life;
    bt_json_walk(&walk, all);
    while (bt_json_walk_next(&walk, &one, &n)) {
        if (!bt_str_eq(bt_kube_member(one, "name"), engine))
            continue;
        life = mix(life, bt_kube_member(one, "restartCount"));
        life += bt_kube_member(bt_kube_member(one, "state"), "terminated").n > 0;
    }
    return life;
}

static int describe(reading_t *r, bt_str_t metadata, bt_str_t spec, const char *ip)
{
    const bt_str_t labels = bt_kube_member(metadata, "labels"),
                   annotations = bt_kube_member(metadata, "annotations");
    static int (*const takes[])(reading_t *, bt_str_t) = {take_aliases, take_own};
    int rc = 0;

    for (unsigned i = 0; i < 4 && rc == 0 && r->pod->state == BT_KUBE_READY; i++)
        rc = takes[i / 2](r, i % 2 == 0 ? labels : annotations);
    if (rc < 0 || r->pod->state != BT_KUBE_READY)
        return rc;
    if (!r->has_role)
        return refuse(r->pod, "no role",
                      "label it " OWN_PREFIX
                      "role or llm-d.ai/role (prefill, decode, both, encode), "
                      "or say role= in --workers-kubernetes");
    rc = add_labels(r, spec);
    return rc == 0 ? add_ports(r, spec, ip) : rc;
}

int bt_kube_pod_read(bt_kube_pod_t *pod, const bt_kube_options_t *source, bt_str_t object)
{
    char ip[64] = "";
    size_t err_off;
    reading_t r = {
        .pod = pod, .source = source, .scheme = source->scheme, .has_role = source->has_role};

    *pod = (bt_kube_pod_t){0};
    if (bt_json_validate(object, &err_off) < 0)
        return BT_E_JSON;
    const bt_str_t metadata = bt_kube_member(object, "metadata"),
                   spec = bt_kube_member(object, "spec"), status = bt_kube_member(object, "status");
    if (!bt_kube_text(bt_kube_member(metadata, "name"), pod->name, sizeof pod->name) ||
        pod->name[0] == '\0' ||
        !bt_kube_text(bt_kube_member(metadata, "namespace"), pod->namespace, sizeof pod->namespace))
        return BT_E_JSON;
    pod->state = state_of(metadata, status, ip, sizeof ip);
    pod->life = life_of(metadata, spec, status);
    if (pod->state != BT_KUBE_READY)
        return 0;
    if (source->port != NULL)
        bt_str_copy(r.port, sizeof r.port, source->port);
    int rc = bt_worker_spec_copy(&r.spec, &source->worker);
    if (rc < 0)
        return rc;
    rc = describe(&r, metadata, spec, ip);
    bt_worker_spec_fini(&r.spec);
    if (rc < 0 || pod->state != BT_KUBE_READY) {
        while (pod->worker_count > 0)
            bt_worker_spec_fini(&pod->workers[--pod->worker_count]);
    }
    return rc;
}

void bt_kube_pod_fini(bt_kube_pod_t *pod)
{
    while (pod->worker_count > 0)
        bt_worker_spec_fini(&pod->workers[--pod->worker_count]);
}
