#include "simulator/model.h"

#include "base/err.h"
#include "config/suggest.h"
#include "script/value/luatable.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const bt_sim_model_t models[] = {
    {.name = "dynamo_mocker",
     .source = "ai-dynamo/dynamo lib/mocker perf_model.rs: polynomials, 16,384 blocks of 64 tokens",
     .prefill_ms = {16.50142, 1.518344e-2, 4.209989e-7},
     .decode_ms = {5.74, 0, 0, 54.01, -25.74},
     .min_step_ms = 1,
     .max_batched_tokens = 8192,
     .max_seqs = 256,
     .kv_tokens = 16384 * 64,
     .kv_bytes_per_token = 131072,
     .link_gb_s = 64,
     .gpus = 1},
    {.name = "llm_d_8b_h100",
     .source = "llm-d-inference-sim's suggestions for 8B on H100: 0.2 ms a prompt token, 10 to 15 "
               "ms a token, 128 KB",
     .prefill_ms = {10, 0.2, 0},
     .decode_ms = {10, 0.02, 0, 0, 0},
     .min_step_ms = 1,
     .max_batched_tokens = 8192,
     .max_seqs = 256,
     .kv_tokens = 400000,
     .kv_bytes_per_token = 131072,
     .link_gb_s = 25,
     .gpus = 1},
};
#define MODEL_COUNT (sizeof models / sizeof models[0])

/* ---- a file ---- */

static const struct member {
    const char *name;
    size_t offset;
    unsigned count; /* of numbers: one, or a list */
    double min, max;
} members[] = {
    {"prefill_ms", offsetof(bt_sim_model_t, prefill_ms), 3, -1e6, 1e6},
    {"decode_ms", offsetof(bt_sim_model_t, decode_ms), 5, -1e6, 1e6},
    {"min_step_ms", offsetof(bt_sim_model_t, min_step_ms), 1, 1e-3, 1e6},
    {"max_batched_tokens", offsetof(bt_sim_model_t, max_batched_tokens), 1, 1, 1e8},
    {"max_seqs", offsetof(bt_sim_model_t, max_seqs), 1, 1, 1e5},
    {"kv_tokens", offsetof(bt_sim_model_t, kv_tokens), 1, 1, 1e9},
    {"kv_bytes_per_token", offsetof(bt_sim_model_t, kv_bytes_per_token), 1, 0, 1e9},
    {"link_gb_s", offsetof(bt_sim_model_t, link_gb_s), 1, 1e-6, 1e6},
    {"gpus", offsetof(bt_sim_model_t, gpus), 1, 1, 1024},
    {"gpu_hour_cost", offsetof(bt_sim_model_t, gpu_hour_cost), 1, 0, 1e9},
};
#define MEMBER_COUNT (sizeof members / sizeof members[0])

static bool read_numbers(const bt_value_t *value, const struct member *m, double *out)
{
    if (m->count == 1 && value->type == BT_VALUE_NUMBER) {
        *out = value->number;
        return *out >= m->min && *out <= m->max;
    }
    if (m->count == 1 || value->type != BT_VALUE_LIST || value->count != m->count)
        return false;
    for (unsigned i = 0; i < m->count; i++) {
        if (value->items[i].type != BT_VALUE_NUMBER || !(value->items[i].number >= m->min) ||
            value->items[i].number > m->max)
            return false;
        out[i] = value->items[i].number;
    }
    return true;
}

static int read_member(bt_sim_model_t *model, const bt_value_t *value, const char *path, char *err,
                       size_t err_size)
{
    char *text = strcmp(value->key, "name") == 0     ? model->name
                 : strcmp(value->key, "source") == 0 ? model->source
                                                     : NULL;
    const size_t size = text == model->name ? sizeof model->name : sizeof model->source;

    if (text != NULL && value->type == BT_VALUE_STRING) {
        snprintf(text, size, "%s", value->string);
        return 0;
    }
    for (size_t i = 0; i < MEMBER_COUNT; i++) {
        if (strcmp(members[i].name, value->key) != 0)
            continue;
        if (read_numbers(value, &members[i], (double *) ((char *) model + members[i].offset)))
            return 0;
        snprintf(err, err_size, "%s: %s: expected %u number%s from %g to %g", path, value->key,
                 members[i].count, members[i].count == 1 ? "" : "s", members[i].min,
                 members[i].max);
        return BT_E_INVAL;
    }
    const char *near =
        bt_suggest_row(value->key, &members[0].name, MEMBER_COUNT, sizeof members[0]);
    snprintf(err, err_size, "%s: %s: no such member%s%s", path, value->key,
             near != NULL ? ", did you mean " : "", near != NULL ? near : "");
    return BT_E_INVAL;
}

static int load_file(bt_sim_model_t *model, const char *path, char *err, size_t err_size)
{
    bt_value_t *root = NULL;
    int rc = bt_lua_table_load(path, &root, err, err_size);

    *model = models[0];
    snprintf(model->name, sizeof model->name, "%s", path);
    snprintf(model->source, sizeof model->source, "a file");
    for (unsigned i = 0; rc == 0 && i < root->count; i++)
        rc = read_member(model, &root->items[i], path, err, err_size);
    bt_value_free(root);
    return rc;
}

int bt_sim_model_load(bt_sim_model_t *model, const char *name, char *err, size_t err_size)
{
    const size_t n = strlen(name);

    if (strchr(name, '/') != NULL || (n > 4 && strcmp(name + n - 4, ".lua") == 0))
        return load_file(model, name, err, err_size);
    for (size_t i = 0; i < MODEL_COUNT; i++)
        if (strcmp(models[i].name, name) == 0) {
            *model = models[i];
            return 0;
        }
    const char *near = bt_suggest_row(name, models[0].name, MODEL_COUNT, sizeof models[0]);
    snprintf(err, err_size,
             "--engine-model: %.60s: there is none; a Lua file, or one of %s, %s%s%s", name,
             models[0].name, models[1].name, near != NULL ? ": did you mean " : "",
             near != NULL ? near : "");
    return BT_E_INVAL;
}

double bt_sim_step_ms(const bt_sim_model_t *m, double prefill_tokens, double running,
                      double kv_tokens)
{
    const double u = fmin(1, kv_tokens / m->kv_tokens);
    double ms = 0;

    if (prefill_tokens > 0)
        ms += m->prefill_ms[0] + m->prefill_ms[1] * prefill_tokens +
              m->prefill_ms[2] * prefill_tokens * prefill_tokens;
    if (running > 0)
        ms += m->decode_ms[0] + m->decode_ms[1] * running + m->decode_ms[2] * kv_tokens +
              m->decode_ms[3] * u + m->decode_ms[4] * u * u;
    return fmax(ms, m->min_step_ms);
}
