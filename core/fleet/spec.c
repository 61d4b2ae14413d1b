/* A worker's spec as JSON, in the configuration file's words. What is not said is not written. */
#include "fleet/fleet_impl.h"

#include "base/err.h"
#include "base/json.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>

#define N(array) (sizeof(array) / sizeof((array)[0]))

#define TEXT(member)                                                                               \
    {                                                                                              \
#member, offsetof(bt_worker_spec_t, member)                                                \
    }
static const struct {
    const char *name;
    size_t offset;
} texts[] = {TEXT(url),       TEXT(name),      TEXT(connector),       TEXT(dispatch_profile),
             TEXT(engine_id), TEXT(kv_host),   TEXT(version),         TEXT(transfer_group),
             TEXT(zone),      TEXT(labels),    TEXT(api_key),         TEXT(kv_address),
             TEXT(tls_name),  TEXT(kv_events), TEXT(kv_events_replay)},
  numbers[] = {TEXT(bootstrap_port), TEXT(dp_size), TEXT(tp_size), TEXT(pp_size), TEXT(dp_rank)};
#undef TEXT

static char **text_at(bt_worker_spec_t *spec, size_t offset)
{
    return (char **) (void *) ((char *) spec + offset);
}

static int *number_at(bt_worker_spec_t *spec, size_t offset)
{
    return (int *) (void *) ((char *) spec + offset);
}

/* ---- out ---- */

static void put_list(bt_text_t *out, const char *name, char *const *items, unsigned count)
{
    if (count == 0)
        return;
    bt_text_printf(out, ",\"%s\":[", name);
    for (unsigned i = 0; i < count; i++) {
        bt_text_puts(out, i > 0 ? "," : "");
        bt_text_json_str(out, bt_str(items[i]));
    }
    bt_text_puts(out, "]");
}

void bt_fleet_spec_put(bt_text_t *out, const bt_worker_spec_t *given)
{
    bt_worker_spec_t *spec = (bt_worker_spec_t *) (uintptr_t) given; /* only read */

    bt_text_printf(out, "{\"role\":\"%s\"", bt_role_name(spec->role));
    if (spec->engine != BT_ENGINE_UNKNOWN)
        bt_text_printf(out, ",\"engine\":\"%s\"", bt_engine_name(spec->engine));
    for (size_t i = 0; i < N(texts); i++) {
        const char *text = *text_at(spec, texts[i].offset);
        if (text == NULL)
            continue;
        bt_text_printf(out, ",\"%s\":", texts[i].name);
        bt_text_json_str(out, bt_str(text));
    }
    for (size_t i = 0; i < N(numbers); i++)
        bt_text_printf(out, ",\"%s\":%d", numbers[i].name, *number_at(spec, numbers[i].offset));
    bt_text_printf(out, ",\"lease_ms\":%" PRIu64, spec->lease_ms);
    put_list(out, "models", spec->models, spec->model_count);
    put_list(out, "connectors", spec->children, spec->child_count);
    bt_text_puts(out, "}");
}

/* ---- in ---- */

static int read_text(bt_str_t value, char **text_p)
{
    char *text = malloc(value.n + 1);
    long n = text != NULL ? bt_json_unescape(value, text, value.n) : BT_E_NOMEM;

    if (n < 0 || memchr(text, '\0', (size_t) n) != NULL) {
        free(text);
        return n < 0 ? (int) n : BT_E_INVAL;
    }
    text[n] = '\0';
    free(*text_p);
    *text_p = text;
    return 0;
}

static int read_list(bt_str_t value, char **items, unsigned *count_p, unsigned max)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    int rc = bt_json_array(&c, value);

    while (rc >= 0 && (rc = bt_json_next(&c, &item)) == 1) {
        if (*count_p == max)
            return BT_E_INVAL;
        items[*count_p] = NULL;
        int read = read_text(item.value, &items[*count_p]);
        if (read < 0)
            return read;
        ++*count_p;
    }
    return rc;
}

static int read_number(bt_str_t value, int64_t most, int64_t *number_p)
{
    return bt_json_i64(value, number_p) < 0 || *number_p < -1 || *number_p > most ? BT_E_INVAL : 0;
}

static int read_word(bt_worker_spec_t *spec, const bt_json_item_t *item, bool is_role)
{
    char *word = NULL;
    int rc = read_text(item->value, &word);

    if (rc == 0)
        rc = is_role ? bt_role_parse(bt_str(word), &spec->role)
                     : bt_engine_parse(bt_str(word), &spec->engine);
    free(word);
    return rc;
}

static int read_member(bt_worker_spec_t *spec, const bt_json_item_t *item)
{
    int64_t number;

    for (size_t i = 0; i < N(texts); i++)
        if (bt_json_key_eq(item, bt_str(texts[i].name)))
            return read_text(item->value, text_at(spec, texts[i].offset));
    for (size_t i = 0; i < N(numbers); i++)
        if (bt_json_key_eq(item, bt_str(numbers[i].name))) {
            if (read_number(item->value, 65535, &number) < 0)
                return BT_E_INVAL;
            *number_at(spec, numbers[i].offset) = (int) number;
            return 0;
        }
    if (bt_json_key_eq(item, BT_STR("lease_ms"))) {
        if (read_number(item->value, 86400000, &number) < 0 || number < 0)
            return BT_E_INVAL;
        spec->lease_ms = (uint64_t) number;
        return 0;
    }
    if (bt_json_key_eq(item, BT_STR("models")))
        return read_list(item->value, spec->models, &spec->model_count, BT_WORKER_MODELS_MAX);
    if (bt_json_key_eq(item, BT_STR("connectors")))
        return read_list(item->value, spec->children, &spec->child_count, BT_WORKER_CHILDREN_MAX);
    if (bt_json_key_eq(item, BT_STR("role")) || bt_json_key_eq(item, BT_STR("engine")))
        return read_word(spec, item, item->key.n == 4);
    return 0;
}

int bt_fleet_spec_read(bt_worker_spec_t *spec, bt_str_t json)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    int rc = bt_json_object(&c, json);

    bt_worker_spec_init(spec);
    while (rc >= 0 && (rc = bt_json_next(&c, &item)) == 1) {
        int read = read_member(spec, &item);
        if (read < 0)
            return read;
    }
    if (rc == 0 && spec->url == NULL)
        return BT_E_INVAL;
    return rc;
}
