/* Only the members that tell how KV moves are read; the rest is between the engine and its
 * connector. Texts go into logs and metric labels later: control characters end here. */
#include "cluster/kv_transfer_config.h"

#include "base/err.h"
#include "base/json.h"

#include <stdlib.h>

typedef struct reader {
    bt_worker_spec_t *spec;
    char *err;
    size_t err_size;
} reader_t;

static bool is_plain(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char) text[i] < 0x20 || text[i] == 0x7f)
            return false;
    return n > 0;
}

/* *text_p stays NULL when the member is absent or null; else it is malloc'ed. */
static int read_text(const reader_t *r, bt_str_t object, const char *name, char **text_p)
{
    bt_json_item_t item;
    int rc = bt_json_get(object, bt_str(name), &item);

    if (rc < 0 || item.type == BT_JSON_NONE || item.type == BT_JSON_NULL)
        return rc;
    if (item.type != BT_JSON_STRING)
        return bt_err_refuse(r->err, r->err_size, "%s: expected a string", name);
    char *text = malloc(item.value.n + 1);
    if (text == NULL)
        return BT_E_NOMEM;
    long n = bt_json_unescape(item.value, text, item.value.n);
    if (n < 0 || !is_plain(text, (size_t) n)) {
        free(text);
        return bt_err_refuse(r->err, r->err_size,
                             "%s: expected a string that is not empty, without control characters",
                             name);
    }
    text[n] = '\0';
    *text_p = text;
    return 0;
}

static int read_connector(const reader_t *r, bt_str_t object, char **name_p)
{
    int rc = read_text(r, object, "kv_connector", name_p);

    if (rc == 0 && *name_p == NULL)
        return bt_err_refuse(r->err, r->err_size,
                             "kv_connector is missing: paste all of the engine's "
                             "--kv-transfer-config");
    return rc;
}

static int read_children(const reader_t *r, bt_str_t object);

/* One of a MultiConnector's connectors; it stands before its own. */
static int read_child(const reader_t *r, bt_str_t object)
{
    bt_worker_spec_t *spec = r->spec;
    char *name = NULL;
    int rc;

    if (spec->child_count == BT_WORKER_CHILDREN_MAX)
        return bt_err_refuse(r->err, r->err_size, "connectors: more than %d",
                             BT_WORKER_CHILDREN_MAX);
    if (bt_json_type_of(object) != BT_JSON_OBJECT)
        return bt_err_refuse(r->err, r->err_size,
                             "connectors: expected objects with a kv_connector");
    rc = read_connector(r, object, &name);
    if (rc < 0)
        return rc;
    spec->children[spec->child_count++] = name;
    return read_children(r, object);
}

static int read_children(const reader_t *r, bt_str_t object)
{
    bt_json_item_t list, item;
    bt_json_cursor_t c;
    int rc = bt_json_path(object, &list, "kv_connector_extra_config", "connectors", NULL);

    if (rc < 0 || list.type == BT_JSON_NONE || list.type == BT_JSON_NULL)
        return rc;
    if (list.type != BT_JSON_ARRAY)
        return bt_err_refuse(r->err, r->err_size,
                             "kv_connector_extra_config.connectors: expected a list");
    rc = bt_json_array(&c, list.value);
    while (rc >= 0 && (rc = bt_json_next(&c, &item)) == 1)
        rc = read_child(r, item.value);
    return rc;
}

/* What the engine can be against what the file says it is. */
static int take_role(const reader_t *r, const char *said, bool has_role)
{
    static const struct {
        const char *name;
        enum bt_role role;
    } roles[] = {{"kv_producer", BT_ROLE_PREFILL}, {"kv_consumer", BT_ROLE_DECODE}};
    bt_worker_spec_t *spec = r->spec;

    if (said == NULL || strcmp(said, "kv_both") == 0)
        return 0;
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (strcmp(said, roles[i].name) != 0)
            continue;
        if (has_role && spec->role != roles[i].role)
            return bt_err_refuse(r->err, r->err_size,
                                 "kv_role \"%s\" can only be %s, but role is %s; change one", said,
                                 bt_role_name(roles[i].role), bt_role_name(spec->role));
        spec->role = roles[i].role;
        return 0;
    }
    return bt_err_refuse(r->err, r->err_size,
                         "kv_role: expected kv_producer, kv_consumer or kv_both, got \"%.60s\"",
                         said);
}

/* Takes name. */
static int take_connector(const reader_t *r, char *name)
{
    bt_worker_spec_t *spec = r->spec;
    int rc = 0;

    if (spec->connector != NULL && strcasecmp(spec->connector, name) != 0)
        rc = bt_err_refuse(r->err, r->err_size,
                           "kv_connector is \"%.80s\", but connector is \"%.80s\"; leave connector "
                           "out",
                           name, spec->connector);
    if (spec->connector == NULL)
        spec->connector = name;
    else
        free(name);
    return rc;
}

/* host and port of the tier; what is said beside the configuration stays. */
static int read_tier(const reader_t *r, bt_str_t tier)
{
    bt_worker_spec_t *spec = r->spec;
    bt_json_item_t port;
    int64_t number = 0;
    int rc = spec->kv_host == NULL ? read_text(r, tier, "host", &spec->kv_host) : 0;

    if (rc == 0)
        rc = bt_json_get(tier, BT_STR("port"), &port);
    if (rc < 0 || spec->bootstrap_port != 0 || port.type == BT_JSON_NONE)
        return rc;
    if (port.type != BT_JSON_NUMBER || bt_json_i64(port.value, &number) < 0 || number < 1 ||
        number > 65535)
        return bt_err_refuse(r->err, r->err_size, "secondary_tiers: port must be 1 to 65535");
    spec->bootstrap_port = (int) number;
    return 0;
}

static bool is_p2p(const bt_json_item_t *tier)
{
    bt_json_item_t type;

    return tier->type == BT_JSON_OBJECT && bt_json_get(tier->value, BT_STR("type"), &type) == 0 &&
           bt_str_eq(type.value, BT_STR("\"p2p\""));
}

/* Without that tier the connector moves nothing between workers, and decode would compute every prompt again. */
static int read_p2p_tier(const reader_t *r, bt_str_t object)
{
    bt_json_item_t list, item;
    bt_json_cursor_t c;
    int rc = bt_json_path(object, &list, "kv_connector_extra_config", "secondary_tiers", NULL);

    if (rc < 0)
        return rc;
    rc = list.type == BT_JSON_ARRAY ? bt_json_array(&c, list.value) : 0;
    while (list.type == BT_JSON_ARRAY && rc >= 0 && (rc = bt_json_next(&c, &item)) == 1)
        if (is_p2p(&item))
            return read_tier(r, item.value);
    return rc < 0 ? rc
                  : bt_err_refuse(
                        r->err, r->err_size,
                        "OffloadingConnector has no peer-to-peer tier: add "
                        "\"secondary_tiers\":[{\"type\":\"p2p\",\"host\":...,\"port\":...}] to "
                        "kv_connector_extra_config, or make the worker hybrid");
}

static int read_all(const reader_t *r, bt_str_t object, bool has_role)
{
    char *connector = NULL, *role = NULL;
    int rc = read_connector(r, object, &connector);

    if (rc == 0)
        rc = take_connector(r, connector);
    if (rc == 0)
        rc = read_text(r, object, "kv_role", &role);
    if (rc == 0)
        rc = take_role(r, role, has_role);
    if (rc == 0 && r->spec->engine_id == NULL)
        rc = read_text(r, object, "engine_id", &r->spec->engine_id);
    free(role);
    if (rc == 0 && bt_role_is_of_pair(r->spec->role) &&
        strcasecmp(r->spec->connector, "OffloadingConnector") == 0)
        rc = read_p2p_tier(r, object);
    return rc == 0 ? read_children(r, object) : rc;
}

int bt_kv_transfer_config_take(bt_worker_spec_t *spec, bt_str_t json, bool has_role, char *err,
                               size_t err_size)
{
    const reader_t r = {spec, err, err_size};
    size_t at = 0;

    if (spec->child_count > 0)
        return bt_err_refuse(err, err_size, "it names the connectors; leave connectors out");
    if (bt_json_validate(json, &at) < 0)
        return bt_err_refuse(err, err_size, "not JSON (byte %zu)", at + 1);
    if (bt_json_type_of(json) != BT_JSON_OBJECT)
        return bt_err_refuse(err, err_size,
                             "expected the engine's --kv-transfer-config: a table, or its JSON as "
                             "text");
    return read_all(&r, json, has_role);
}
