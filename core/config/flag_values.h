/* flag_values.h - what rows of flag_table.c name: lists of words, and actions. Private to core/config.
 *
 * Owner: nobody; constants and functions.
 */
#ifndef BT_CONFIG_FLAG_VALUES_H
#define BT_CONFIG_FLAG_VALUES_H

#include "config/flag.h"

extern const bt_word_t bt_on_error_words[], bt_relay_words[], bt_log_levels[], bt_log_formats[],
    bt_edge_headers[], bt_tls_versions[], bt_tls_client_auth[], bt_tls_client_tenants[],
    bt_tls_admin_scopes[], bt_url_schemes[], bt_sandbox_modes[];

int bt_flag_apply_prefill(bt_config_t *c, const char *const *values, unsigned count, char *err,
                          size_t err_size);
int bt_flag_apply_decode(bt_config_t *c, const char *const *values, unsigned count, char *err,
                         size_t err_size);
int bt_flag_apply_encode(bt_config_t *c, const char *const *values, unsigned count, char *err,
                         size_t err_size);
int bt_flag_apply_worker_urls(bt_config_t *c, const char *const *values, unsigned count, char *err,
                              size_t err_size);
int bt_flag_apply_workers_dns(bt_config_t *c, const char *const *values, unsigned count, char *err,
                              size_t err_size);
int bt_flag_apply_pd(bt_config_t *c, const char *const *values, unsigned count, char *err,
                     size_t err_size);
int bt_flag_apply_vllm_pd(bt_config_t *c, const char *const *values, unsigned count, char *err,
                          size_t err_size);
int bt_flag_apply_policy_param(bt_config_t *c, const char *const *values, unsigned count, char *err,
                               size_t err_size);
int bt_flag_apply_request_id_headers(bt_config_t *c, const char *const *values, unsigned count,
                                     char *err, size_t err_size);
int bt_flag_apply_dev(bt_config_t *c, const char *const *values, unsigned count, char *err,
                      size_t err_size);

#endif
