/* Both forms come down to text for one row of a table, so that they know the same names and the same limits. JSON adds only
 * that the type fits. Our names are those of the configuration file; behind them stand what other routers call the same.
 *
 * Text goes into headers, logs and metric labels later: control characters end here.
 */
#include "admin/workers/worker_spec.h"

#include "admin/call/query.h"
#include "base/err.h"
#include "base/json.h"
#include "cluster/kv_transfer_config.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define N(array) (sizeof(array) / sizeof((array)[0]))
#define NAME_MAX_CHARS 63

enum kind { TEXT, NAME, TEXTS, SIZE, PORT, LEASE, ROLE, ENGINE, LABELS, JSON };

#define AT(member) offsetof(bt_spec_request_t, spec.member)

static const struct member {
    const char *name;
    enum kind kind;
    size_t offset;
    size_t count_offset; /* TEXTS */
    unsigned max;        /* TEXTS: how many; SIZE: largest value */
    unsigned min;        /* SIZE */
} members[] = {
    {"url", TEXT, AT(url), 0, 0, 0},
    {"name", NAME, AT(name), 0, 0, 0},
    {"pool", TEXT, offsetof(bt_spec_request_t, pool), 0, 0, 0},
    {"role", ROLE, AT(role), 0, 0, 0},
    {"models", TEXTS, AT(models), AT(model_count), BT_WORKER_MODELS_MAX, 0},
    {"engine", ENGINE, AT(engine), 0, 0, 0},
    {"connector", TEXT, AT(connector), 0, 0, 0},
    {"connectors", TEXTS, AT(children), AT(child_count), BT_WORKER_CHILDREN_MAX, 0},
    {"dispatch_profile", TEXT, AT(dispatch_profile), 0, 0, 0},
    {"bootstrap_port", PORT, AT(bootstrap_port), 0, 0, 0},
    {"dp_size", SIZE, AT(dp_size), 0, 65535, 1},
    {"tp_size", SIZE, AT(tp_size), 0, 65535, 1},
    {"pp_size", SIZE, AT(pp_size), 0, 65535, 1},
    {"dp_rank", SIZE, AT(dp_rank), 0, 65535, 0},
    {"engine_id", TEXT, AT(engine_id), 0, 0, 0},
    {"kv_host", TEXT, AT(kv_host), 0, 0, 0},
    {"kv_address", TEXT, AT(kv_address), 0, 0, 0},
    {"kv_events", TEXT, AT(kv_events), 0, 0, 0},
    {"kv_events_replay", TEXT, AT(kv_events_replay), 0, 0, 0},
    {"version", TEXT, AT(version), 0, 0, 0},
    {"transfer_group", TEXT, AT(transfer_group), 0, 0, 0},
    {"lease_ms", LEASE, AT(lease_ms), 0, 0, 0},
    {"zone", TEXT, AT(zone), 0, 0, 0},
    {"labels", LABELS, AT(labels), 0, 0, 0},
    {"api_key", TEXT, AT(api_key), 0, 0, 0},
    {"tls_name", TEXT, AT(tls_name), 0, 0, 0},
    {"kv_transfer_config", JSON, offsetof(bt_spec_request_t, kv_transfer_config), 0, 0, 0},
    /* other routers' names */
    {"worker_type", ROLE, AT(role), 0, 0, 0},
    {"model_id", TEXTS, AT(models), AT(model_count), 1, 0},
    {"runtime", ENGINE, AT(engine), 0, 0, 0},
    {"runtime_type", ENGINE, AT(engine), 0, 0, 0},
    {"kv_connector", TEXT, AT(connector), 0, 0, 0},
    {"kv_engine_id", TEXT, AT(engine_id), 0, 0, 0},
};

typedef struct reader {
    bt_spec_request_t *r;
    bool seen[N(members)];
    char *err;
    size_t err_size;
} reader_t;

__attribute__((format(printf, 2, 3))) static int refuse(const reader_t *rd, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(rd->err, rd->err_size, fmt, args);
    va_end(args);
    return BT_E_INVAL;
}

static void *at(bt_spec_request_t *r, size_t offset)
{
    return (char *) r + offset;
}

/* ---- names of members ---- */

static int refuse_unknown(const reader_t *rd, bt_str_t name)
{
    unsigned best = name.n < 3 ? 2 : name.n / 3 > 2 ? (unsigned) (name.n / 3) + 1 : 3;
    const char *nearest = NULL;

    for (size_t i = 0; i < N(members); i++) {
        unsigned distance = bt_str_distance(name, bt_str(members[i].name));
        if (distance >= best)
            continue;
        best = distance;
        nearest = members[i].name;
    }
    if (name.n > 64)
        name.n = 64;
    if (nearest != NULL)
        return refuse(rd, "unknown member \"%.*s\"; did you mean \"%s\"?", BT_STR_ARG(name),
                      nearest);
    return refuse(rd,
                  "unknown member \"%.*s\"; known are url, name, pool, role, models, engine, "
                  "connector, connectors, "
                  "dispatch_profile, bootstrap_port, dp_size, tp_size, pp_size, dp_rank, "
                  "engine_id, kv_host, kv_address, kv_events, kv_events_replay, version, "
                  "transfer_group, lease_ms, zone, labels, api_key, tls_name, kv_transfer_config",
                  BT_STR_ARG(name));
}

/* Also refuses what was said twice, under whatever name. */
static int find_member(reader_t *rd, bt_str_t name, const struct member **m_p)
{
    size_t found = 0;

    while (found < N(members) && !bt_str_eq(name, bt_str(members[found].name)))
        found++;
    if (found == N(members))
        return refuse_unknown(rd, name);
    for (size_t i = 0; i < N(members); i++)
        if (rd->seen[i] && members[i].offset == members[found].offset)
            return i == found ? refuse(rd, "\"%s\" is there twice", members[found].name)
                              : refuse(rd, "\"%s\" and \"%s\" are the same: give one",
                                       members[i].name, members[found].name);
    rd->seen[found] = true;
    *m_p = &members[found];
    return 0;
}

/* ---- values, as text ---- */

static int check_text(const reader_t *rd, const struct member *m, bt_str_t text)
{
    if (text.n == 0)
        return refuse(rd, "\"%s\" must not be empty", m->name);
    for (size_t i = 0; i < text.n; i++)
        if ((unsigned char) text.p[i] < 0x20 || text.p[i] == 0x7f)
            return refuse(rd, "\"%s\" must not hold control characters", m->name);
    return 0;
}

static int set_text(reader_t *rd, const struct member *m, bt_str_t text)
{
    char **to = at(rd->r, m->offset);
    int rc = check_text(rd, m, text);

    if (rc < 0)
        return rc;
    *to = bt_str_dup(text);
    return *to != NULL ? 0 : BT_E_NOMEM;
}

/* Looked into when all members are known; line breaks are JSON's. */
static int keep_json(reader_t *rd, const struct member *m, bt_str_t text)
{
    char **to = at(rd->r, m->offset);

    *to = bt_str_dup(text);
    return *to != NULL ? 0 : BT_E_NOMEM;
}

/* It is shown in answer headers and is part of admin paths. */
static int set_name(reader_t *rd, const struct member *m, bt_str_t text)
{
    bool fits = text.n <= NAME_MAX_CHARS;

    for (size_t i = 0; fits && i < text.n; i++)
        fits = isalnum((unsigned char) text.p[i]) ||
               (text.p[i] != '\0' && strchr("._-:", text.p[i]) != NULL);
    if (!fits)
        return refuse(rd, "\"%s\" must be at most %d letters, digits, '.', '_', '-' and ':'",
                      m->name, NAME_MAX_CHARS);
    return set_text(rd, m, text);
}

static int add_text(reader_t *rd, const struct member *m, bt_str_t text)
{
    char **list = at(rd->r, m->offset);
    unsigned *count = at(rd->r, m->count_offset);
    int rc = check_text(rd, m, text);

    if (rc < 0)
        return rc;
    if (*count == m->max)
        return refuse(rd, "\"%s\" may hold at most %u", m->name, m->max);
    list[*count] = bt_str_dup(text);
    if (list[*count] == NULL)
        return BT_E_NOMEM;
    (*count)++;
    return 0;
}

static int set_number(reader_t *rd, const struct member *m, bt_str_t text, uint64_t min,
                      uint64_t max, uint64_t *value_p)
{
    if (bt_str_u64(text, value_p) < 0 || *value_p < min || *value_p > max)
        return refuse(rd, "\"%s\" must be a whole number from %llu to %llu", m->name,
                      (unsigned long long) min, (unsigned long long) max);
    return 0;
}

static int set_int(reader_t *rd, const struct member *m, bt_str_t text, uint64_t min, uint64_t max)
{
    uint64_t value;
    int rc = set_number(rd, m, text, min, max, &value);

    if (rc == 0)
        *(int *) at(rd->r, m->offset) = (int) value;
    return rc;
}

static int set_port(reader_t *rd, const struct member *m, bt_str_t text)
{
    if (!bt_str_ieq(text, BT_STR("none")))
        return set_int(rd, m, text, 1, 65535);
    *(int *) at(rd->r, m->offset) = -1;
    return 0;
}

static int set_role(reader_t *rd, const struct member *m, bt_str_t text)
{
    enum bt_role *role = at(rd->r, m->offset);

    if (bt_str_ieq(text, BT_STR("regular")) ||
        bt_str_ieq(text, BT_STR("plain"))) /* as other routers say it */
        *role = BT_ROLE_HYBRID;
    else if (bt_role_parse(text, role) < 0)
        return refuse(rd, "\"%s\" must be prefill, decode, hybrid or encode", m->name);
    return 0;
}

static int set_engine(reader_t *rd, const struct member *m, bt_str_t text)
{
    if (bt_engine_parse(text, at(rd->r, m->offset)) < 0)
        return refuse(rd, "\"%s\" must be sglang, vllm, vllm_ascend, mindie or trtllm", m->name);
    return 0;
}

static int set_value(reader_t *rd, const struct member *m, bt_str_t text)
{
    switch (m->kind) {
    case TEXT:
    case LABELS:
        return set_text(rd, m, text);
    case NAME:
        return set_name(rd, m, text);
    case TEXTS:
        return add_text(rd, m, text);
    case SIZE:
        return set_int(rd, m, text, m->min, m->max);
    case PORT:
        return set_port(rd, m, text);
    case LEASE:
        return set_number(rd, m, text, 1000, 86400000, at(rd->r, m->offset));
    case ROLE:
        return set_role(rd, m, text);
    case ENGINE:
        return set_engine(rd, m, text);
    case JSON:
        return keep_json(rd, m, text);
    }
    return BT_E_INVAL;
}

/* ---- JSON ---- */

/* Hands the unescaped text on. */
static int with_string(reader_t *rd, const struct member *m, bt_str_t raw,
                       int (*set)(reader_t *, const struct member *, bt_str_t))
{
    char *text = malloc(raw.n + 1);
    int rc = BT_E_NOMEM;

    if (text == NULL)
        return rc;
    long n = bt_json_unescape(raw, text, raw.n + 1);
    rc = n < 0 ? refuse(rd, "\"%s\" holds something that is no text", m->name)
               : set(rd, m, (bt_str_t){text, (size_t) n});
    free(text);
    return rc;
}

static int read_list(reader_t *rd, const struct member *m, bt_str_t value)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    int rc = bt_json_array(&c, value);

    while (rc >= 0 && (rc = bt_json_next(&c, &item)) == 1)
        if ((rc = with_string(rd, m, item.value, add_text)) < 0)
            return rc;
    return rc;
}

static int put_label(reader_t *rd, const struct member *m, bt_text_t *out,
                     const bt_json_item_t *item)
{
    size_t size = item->key.n + item->value.n + 2;
    char *pair = malloc(size);
    int rc = 0;

    if (pair == NULL)
        return BT_E_NOMEM;
    long key = bt_json_unescape_raw(item->key, pair, size - 1);
    long value =
        key > 0 ? bt_json_unescape(item->value, pair + key + 1, size - (size_t) key - 1) : -1;
    if (value < 0 || memchr(pair, '=', (size_t) key) != NULL ||
        memchr(pair, ',', (size_t) key) != NULL ||
        memchr(pair + key + 1, ',', (size_t) value) != NULL) {
        rc = refuse(rd, "\"%s\" must be texts by name, without ',' (and without '=' in names)",
                    m->name);
    } else {
        pair[key] = '=';
        bt_text_puts(out, out->len > 0 ? "," : "");
        bt_text_put(out, (bt_str_t){pair, (size_t) (key + 1 + value)});
    }
    free(pair);
    return rc;
}

/* {"k":"v"} becomes the spec's "k=v". */
static int read_labels(reader_t *rd, const struct member *m, bt_str_t value)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    bt_text_t text;
    int rc = bt_json_object(&c, value);

    bt_text_init(&text);
    while (rc >= 0 && (rc = bt_json_next(&c, &item)) == 1)
        if ((rc = put_label(rd, m, &text, &item)) < 0)
            break;
    if (rc == 0 && text.len > 0)
        rc = set_text(rd, m, bt_text_str(&text));
    bt_text_fini(&text);
    return rc;
}

static int read_member(reader_t *rd, const struct member *m, const bt_json_item_t *item)
{
    const bool takes_number = m->kind == SIZE || m->kind == PORT || m->kind == LEASE;
    const bool takes_text = !takes_number || m->kind == PORT;

    switch (item->type) {
    case BT_JSON_NULL:
        return 0;
    case BT_JSON_STRING:
        if (takes_text)
            return with_string(rd, m, item->value, set_value);
        break;
    case BT_JSON_NUMBER:
        if (takes_number)
            return set_value(rd, m, item->value);
        break;
    case BT_JSON_ARRAY:
        if (m->kind == TEXTS)
            return read_list(rd, m, item->value);
        break;
    case BT_JSON_OBJECT:
        if (m->kind == LABELS)
            return read_labels(rd, m, item->value);
        if (m->kind == JSON)
            return set_value(rd, m, item->value);
        break;
    default:
        break;
    }
    return refuse(rd, "\"%s\" must be %s", m->name,
                  takes_number       ? "a number"
                  : m->kind == TEXTS ? "a list of texts"
                                     : "text");
}

static void start(reader_t *rd, bt_spec_request_t *r, char *err, size_t err_size)
{
    *rd = (reader_t){.r = r, .err = err, .err_size = err_size};
    r->pool = r->kv_transfer_config = NULL;
    bt_worker_spec_init(&r->spec);
    snprintf(err, err_size, "%s", bt_err_text(BT_E_NOMEM));
}

static bool is_seen(const reader_t *rd, size_t offset)
{
    for (size_t i = 0; i < N(members); i++)
        if (rd->seen[i] && members[i].offset == offset)
            return true;
    return false;
}

static int take_kv_transfer_config(const reader_t *rd)
{
    bt_spec_request_t *r = rd->r;
    char why[256];

    if (r->kv_transfer_config == NULL)
        return 0;
    int rc = bt_kv_transfer_config_take(&r->spec, bt_str(r->kv_transfer_config),
                                        is_seen(rd, AT(role)), why, sizeof why);
    return rc == BT_E_CONFIG ? refuse(rd, "\"kv_transfer_config\": %s", why) : rc;
}

static int finish(const reader_t *rd, int rc)
{
    if (rc == 0 && rd->r->spec.url == NULL)
        return refuse(rd, "\"url\" is missing: http://host:port of the engine");
    return rc == 0 ? take_kv_transfer_config(rd) : rc;
}

int bt_spec_from_json(bt_spec_request_t *r, bt_str_t body, char *err, size_t err_size)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    const struct member *m = NULL;
    reader_t rd;
    char name[72];

    start(&rd, r, err, err_size);
    int rc = bt_json_object(&c, body);
    if (rc < 0)
        return refuse(&rd, "the body must be a JSON object with at least \"url\"");
    while ((rc = bt_json_next(&c, &item)) == 1) {
        long n = bt_json_unescape_raw(item.key, name, sizeof name);
        bt_str_t key = n >= 0 ? (bt_str_t){name, (size_t) n} : item.key;
        if ((rc = find_member(&rd, key, &m)) < 0 || (rc = read_member(&rd, m, &item)) < 0)
            return rc;
    }
    if (rc < 0)
        return refuse(&rd, "%s at byte %zu of the body", bt_err_text(rc), c.err_off);
    return finish(&rd, rc);
}

/* ---- query strings ---- */

int bt_spec_from_query(bt_spec_request_t *r, bt_str_t query, char *err, size_t err_size)
{
    const struct member *m = NULL;
    bt_str_t name, value;
    reader_t rd;
    int rc = 0;

    start(&rd, r, err, err_size);
    while (rc == 0 && bt_query_next(&query, &name, &value)) {
        bt_text_t text;
        bt_text_init(&text);
        rc = find_member(&rd, name, &m);
        if (rc == 0 && (rc = bt_query_decode(&text, value, true)) == BT_E_INVAL)
            rc = refuse(&rd, "\"%s\": a broken %%-escape", m->name);
        if (rc == 0)
            rc = set_value(&rd, m, bt_text_str(&text));
        bt_text_fini(&text);
    }
    return finish(&rd, rc);
}

void bt_spec_request_fini(bt_spec_request_t *r)
{
    bt_worker_spec_fini(&r->spec);
    free(r->pool);
    free(r->kv_transfer_config);
    r->pool = r->kv_transfer_config = NULL;
}
