/* flag_values.c - the words that a setting may be, and what a flag does that is no setting. */
#include "config/flag_values.h"

#include "base/err.h"
#include "config/config_impl.h"

#include <stdio.h>
#include <stdlib.h>

const bt_word_t bt_on_error_words[] = {
    {"first", BT_ON_ERROR_FIRST, false},
    {"default", BT_ON_ERROR_DEFAULT, false},
    {"end", BT_ON_ERROR_END, false},
    {NULL, 0, false},
};
const bt_word_t bt_relay_words[] = {
    {"off", BT_RELAY_FIRST_TOKEN_OFF, false},
    {"completions", BT_RELAY_FIRST_TOKEN_COMPLETIONS, false},
    {"all", BT_RELAY_FIRST_TOKEN_ALL, false},
    {NULL, 0, false},
};
const bt_word_t bt_log_levels[] = {
    {"error", BT_LOG_ERROR, false},
    {"warn", BT_LOG_WARN, false},
    {"warning", BT_LOG_WARN, true},
    {"info", BT_LOG_INFO, false},
    {"debug", BT_LOG_DEBUG, false},
    {"critical", BT_LOG_ERROR, true},
    {NULL, 0, false},
};
const bt_word_t bt_log_formats[] = {
    {"text", BT_LOG_FORMAT_TEXT, false},
    {"json", BT_LOG_FORMAT_JSON, false},
    {NULL, 0, false},
};
const bt_word_t bt_sandbox_modes[] = {
    {"off", BT_SANDBOX_OFF, false},
    {"auto", BT_SANDBOX_AUTO, false},
    {"strict", BT_SANDBOX_STRICT, false},
    {NULL, 0, false},
};
const bt_word_t bt_edge_headers[] = {
    {"x-forwarded-for", BT_EDGE_X_FORWARDED_FOR, false},
    {"forwarded", BT_EDGE_FORWARDED, false},
    {"x-real-ip", BT_EDGE_X_REAL_IP, false},
    {NULL, 0, false},
};
const bt_word_t bt_tls_versions[] = {
    {"1.2", 0, false},
    {"1.3", 1, false},
    {NULL, 0, false},
};
const bt_word_t bt_tls_client_auth[] = {
    {"required", 0, false},
    {"optional", 1, false},
    {NULL, 0, false},
};
const bt_word_t bt_tls_client_tenants[] = {
    {"name", BT_TENANT_BY_NAME, false},
    {"organization", BT_TENANT_BY_ORGANIZATION, false},
    {"none", BT_TENANT_BY_NO_CERT, false},
    {NULL, 0, false},
};
const bt_word_t bt_url_schemes[] = {
    {"http", 0, false},
    {"https", 1, false},
    {NULL, 0, false},
};
const bt_word_t bt_tls_admin_scopes[] = {
    {"none", 0, false},
    {"admin-read", BT_MAY_READ_ADMIN, false},
    {"admin-write", BT_MAY_READ_ADMIN | BT_MAY_CHANGE_ADMIN, false},
    {NULL, 0, false},
};
const bt_word_t bt_engine_words[] = {
    {"sglang", BT_ENGINE_SGLANG, false},
    {"vllm", BT_ENGINE_VLLM, false},
    {"vllm_ascend", BT_ENGINE_VLLM_ASCEND, false},
    {"vllm-ascend", BT_ENGINE_VLLM_ASCEND, true},
    {"mindie", BT_ENGINE_MINDIE, false},
    {"trtllm", BT_ENGINE_TRTLLM, false},
    {NULL, 0, false},
};

/* ---- actions ---- */

/* Workers of the command line go into the only pool there is. */
static int flag_pool(bt_config_t *c, bt_config_pool_t **pool_p, char *err, size_t err_size)
{
    if (c->pool_count > 1)
        return bt_err_refuse(err, err_size, "%s has %u pools: list this worker in one of them",
                             c->file, c->pool_count);
    if (c->pool_count == 0)
        return bt_config_add_pool(c, pool_p);
    *pool_p = c->pools;
    return 0;
}

static int add_worker(bt_config_t *c, enum bt_role role, const char *flag, const char *url,
                      bt_worker_spec_t **spec_p, char *err, size_t err_size)
{
    bt_config_pool_t *pool;
    int rc = flag_pool(c, &pool, err, err_size);
    if (rc == 0)
        rc = bt_config_add_worker(pool, flag, spec_p);
    if (rc < 0)
        return rc;
    (*spec_p)->role = role;
    (*spec_p)->url = bt_str_dup(bt_str(url));
    return (*spec_p)->url != NULL ? 0 : BT_E_NOMEM;
}

int bt_flag_apply_prefill(bt_config_t *c, const char *const *values, unsigned count, char *err,
                          size_t err_size)
{
    static const bt_option_t port = {.kind = BT_OPTION_PORT,
                                     .offset = offsetof(bt_worker_spec_t, bootstrap_port)};
    bt_worker_spec_t *spec;
    int rc = add_worker(c, BT_ROLE_PREFILL, "--prefill", values[0], &spec, err, err_size);
    if (rc < 0 || count < 2)
        return rc;
    return bt_option_set_text(&port, spec, bt_str(values[1]), err, err_size);
}

int bt_flag_apply_decode(bt_config_t *c, const char *const *values, unsigned count, char *err,
                         size_t err_size)
{
    bt_worker_spec_t *spec;
    (void) count;
    return add_worker(c, BT_ROLE_DECODE, "--decode", values[0], &spec, err, err_size);
}

int bt_flag_apply_encode(bt_config_t *c, const char *const *values, unsigned count, char *err,
                         size_t err_size)
{
    bt_worker_spec_t *spec;
    (void) count;
    return add_worker(c, BT_ROLE_ENCODE, "--encode", values[0], &spec, err, err_size);
}

int bt_flag_apply_worker_urls(bt_config_t *c, const char *const *values, unsigned count, char *err,
                              size_t err_size)
{
    bt_worker_spec_t *spec;
    int rc = 0;
    for (unsigned i = 0; i < count && rc == 0; i++)
        rc = add_worker(c, BT_ROLE_HYBRID, "--worker-urls", values[i], &spec, err, err_size);
    return rc;
}

int bt_flag_apply_workers_dns(bt_config_t *c, const char *const *values, unsigned count, char *err,
                              size_t err_size)
{
    (void) count;
    return bt_config_take_dns(c, values[0], err, err_size);
}

static int set_pd_mode(bt_config_t *c, enum bt_pd_mode mode, char *err, size_t err_size)
{
    if (c->pd_mode != BT_PD_NONE && c->pd_mode != mode)
        return bt_err_refuse(
            err, err_size,
            "--pd-disaggregation (SGLang) and --vllm-pd-disaggregation exclude each other; "
            "for a mixed fleet "
            "name the engines in baton.lua");
    c->pd_mode = mode;
    return 0;
}

int bt_flag_apply_pd(bt_config_t *c, const char *const *values, unsigned count, char *err,
                     size_t err_size)
{
    (void) values;
    (void) count;
    return set_pd_mode(c, BT_PD_SGLANG, err, err_size);
}

int bt_flag_apply_vllm_pd(bt_config_t *c, const char *const *values, unsigned count, char *err,
                          size_t err_size)
{
    (void) values;
    (void) count;
    return set_pd_mode(c, BT_PD_VLLM, err, err_size);
}

/* 12, true, false; anything else is a string. */
static bt_value_t value_of(const char *text)
{
    char *end;
    bt_value_t v = {.type = BT_VALUE_STRING, .string = (char *) (uintptr_t) text};
    v.number = strtod(text, &end);
    if (text[0] != '\0' && *end == '\0' && strspn(text, "0123456789.eE+-") == strlen(text))
        v.type = BT_VALUE_NUMBER;
    v.boolean = strcmp(text, "true") == 0;
    if (v.boolean || strcmp(text, "false") == 0)
        v.type = BT_VALUE_BOOL;
    if (v.type != BT_VALUE_STRING)
        v.string = NULL;
    return v;
}

int bt_flag_apply_policy_param(bt_config_t *c, const char *const *values, unsigned count, char *err,
                               size_t err_size)
{
    const char *equals = strchr(values[0], '=');
    bt_config_pool_t *pool = c->pools;
    int rc = 0;
    (void) count;
    if (equals == NULL || equals == values[0])
        return bt_err_refuse(err, err_size, "expected NAME=VALUE, got \"%.120s\"", values[0]);
    if (c->pool_count > 1)
        return bt_err_refuse(err, err_size,
                             "%s has %u pools: write params = { ... } in one of them", c->file,
                             c->pool_count);
    bt_value_t param = value_of(equals + 1);
    if (c->pool_count == 0)
        rc = bt_config_add_pool(c, &pool);
    param.key = bt_str_dup((bt_str_t){values[0], (size_t) (equals - values[0])});
    if (rc == 0)
        rc = param.key != NULL ? bt_config_add_param(pool, BT_SLOT_BOTH, param, "--policy-param")
                               : BT_E_NOMEM;
    free(param.key);
    return rc;
}

/* One list is what peers have; X-Request-Id is what is read here. Else it would go unheard. */
int bt_flag_apply_request_id_headers(bt_config_t *c, const char *const *values, unsigned count,
                                     char *err, size_t err_size)
{
    (void) err;
    (void) err_size;
    for (unsigned i = 0; i < count; i++)
        if (!bt_str_ieq(bt_str(values[i]), BT_STR("x-request-id")))
            bt_config_warn(c, "--request-id-headers: %.120s is not read, x-request-id is",
                           values[i]);
    return 0;
}

/* What it implies was set before any flag was applied (bt_config_imply_dev), so that other flags win
 * wherever they stand. */
int bt_flag_apply_dev(bt_config_t *c, const char *const *values, unsigned count, char *err,
                      size_t err_size)
{
    (void) values;
    (void) count;
    (void) err;
    (void) err_size;
    c->dev = true;
    return 0;
}
