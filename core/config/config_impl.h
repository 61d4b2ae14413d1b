/* config_impl.h - the steps of bt_config_load, a file each. Private to core/config.
 *
 * Owner: the config that is being loaded.
 * Life:  init -> scan -> read_file -> apply -> finish.
 * Flow:  err gets one line that names file and key path, or the flag; nothing for BT_E_NOMEM.
 * Cost:  start-up and SIGHUP only.
 */
#ifndef BT_CONFIG_CONFIG_IMPL_H
#define BT_CONFIG_CONFIG_IMPL_H

#include "base/text.h"
#include "config/config.h"

/* ---- load.c ---- */

/* Appends a pool that starts from the defaults. */
int bt_config_add_pool(bt_config_t *c, bt_config_pool_t **pool_p);
/* Appends an empty worker; origin is copied. */
int bt_config_add_worker(bt_config_pool_t *pool, const char *origin, bt_worker_spec_t **spec_p);
/* Copies both; NULL: none. */
int bt_config_set_params(bt_config_pool_t *pool, enum bt_policy_slot slot, const bt_value_t *params,
                         const char *place);

/* One parameter more, or another value; param is copied. */
int bt_config_add_param(bt_config_pool_t *pool, enum bt_policy_slot slot, bt_value_t param,
                        const char *place);
/* A line for people, once. */
void bt_config_warn(bt_config_t *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- file.c: baton.lua, a table with a closed schema ---- */

/* An unknown key is refused with its path and the nearest known key. */
int bt_config_read_file(bt_config_t *c, const char *path, char *err, size_t err_size);

/* ---- flags.c: --flag value, --flag=value, --no-switch ---- */

/* An unknown flag is refused with the nearest known one; each mistake is a line of err. *file_p gets
 * the positional argument, or NULL; *is_dev_p whether --dev is among the flags: after a refusal
 * too. */
int bt_flags_scan(int argc, const char *const *argv, const char **file_p, bool *is_dev_p, char *err,
                  size_t err_size);
int bt_flags_apply(bt_config_t *c, int argc, const char *const *argv, char *err, size_t err_size);

/* ---- peers.c: what other routers' flags come to ---- */

int bt_config_keep_peer_param(bt_config_t *c, const struct bt_peer_flag *flag, double number);
/* Their policies' names and parameters become ours. */
int bt_config_finish_peers(bt_config_t *c);

/* ---- file.c: the list of a workers file ---- */

int bt_config_read_worker_list(const bt_config_t *c, const char *path, const bt_value_t *root,
                               bt_config_pool_t *pools, char *err, size_t err_size);
void bt_config_workers_fini(bt_config_pool_t *pool);

/* ---- dns.c: names of --workers-dns ---- */

/* Appends a name that says nothing yet, and what its workers are. */
int bt_config_add_dns(bt_config_t *c, const char *origin, bt_dns_name_t **name_p,
                      bt_worker_spec_t **worker_p);
/* "name=prefill.svc,port=8000,role=prefill" */
int bt_config_take_dns(bt_config_t *c, const char *text, char *err, size_t err_size);
/* Of a key; what it is set in. NULL: no such key. */
const struct bt_option *bt_config_dns_option(bt_str_t key, const bt_dns_name_t *name,
                                             const bt_worker_spec_t *worker, void **base_p);
const char *bt_config_dns_nearest(bt_str_t key); /* NULL: none is near */
int bt_config_finish_dns(bt_config_t *c, char *err, size_t err_size);
void bt_config_describe_dns(const bt_config_t *c, bt_text_t *out);
void bt_config_dns_fini(bt_config_t *c);

/* ---- limits.c ---- */

/* The file's limits. BT_E_CONFIG: place gets the path to what is wrong ("limits[2].per"), why the sentence. */
int bt_config_take_limits(bt_config_t *c, const bt_value_t *list, char *place, size_t place_size,
                          char *why, size_t why_size);
void bt_config_describe_limits(const bt_config_t *c, bt_text_t *out);

/* ---- kubernetes.c ---- */

int bt_config_check_kubernetes(const bt_config_t *c, char *err, size_t err_size);
void bt_config_describe_kubernetes(const bt_config_t *c, bt_text_t *out);

/* ---- pools.c ---- */

/* Names them; completes and checks their workers, and those of --workers-file. */
int bt_config_finish_pools(bt_config_t *c, char *err, size_t err_size);
/* Worker i of the list is completed by what the pool says, and checked. */
int bt_config_finish_worker(const bt_config_t *c, const bt_config_pool_t *pool,
                            bt_config_pool_t *list, unsigned i, char *err, size_t err_size);

/* ---- finish.c ---- */

/* What --dev says where the file or the defaults say otherwise; flags come later. */
int bt_config_imply_dev(bt_config_t *c);
/* Derives what is derived and checks what needs no script and no socket. */
int bt_config_finish(bt_config_t *c, char *err, size_t err_size);

/* Each is an address or a network, else the flag is refused. */
int bt_config_check_networks(const char *flag, char *const *all, unsigned count, char *err,
                             size_t err_size);

/* ---- metaserver.c: where decodes call for prefill ---- */

int bt_config_check_metaserver(const bt_config_t *c, char *err, size_t err_size);

/* ---- fleet.c: the shared store ---- */

int bt_config_finish_shared(bt_config_t *c, char *err, size_t err_size);
void bt_config_describe_shared(const bt_config_t *c, bt_text_t *out); /* nothing without a URL */

/* ---- tls.c ---- */

int bt_config_check_tls(const bt_config_t *c, char *err, size_t err_size);
/* Reads the files. */
int bt_config_check_tls_files(const bt_config_t *c, char *err, size_t err_size);
void bt_config_describe_tls(const bt_config_t *c, bt_text_t *out);

/* ---- transfer.c ---- */

/* Reads the file of tokens. */
int bt_config_finish_transfer(bt_config_t *c, char *err, size_t err_size);
int bt_config_check_transfer(const bt_config_t *c, char *err, size_t err_size);

/* ---- identity.c ---- */

/* Reads the file of keys and the file of an issuer's keys. */
int bt_config_finish_identity(bt_config_t *c, char *err, size_t err_size);

/* ---- traces.c ---- */

int bt_config_check_traces(const bt_config_t *c, char *err, size_t err_size);

/* ---- cpus.c: how many CPUs this process may really use ---- */

/* The affinity mask, cut down by the CPU quota of the control groups above us (cgroup v2). */
unsigned bt_cpus_available(void);
/* Smallest quota from root/path up to root, rounded up; 0 = none. For tests, too. */
unsigned bt_cpus_quota(const char *root, const char *path);

#endif
