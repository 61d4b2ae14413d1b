/* check.h - the start-up check: everything that can be known to be wrong before the first request.
 *
 * Owner: the caller.
 * Life:  after bt_config_load, before the gateway starts or takes a new configuration.
 * Flow:  dialects load, policies load, workers are distinct and can form pairs, ports are free.
 * Cost:  loads every script once.
 */
#ifndef BT_CONFIG_CHECK_H
#define BT_CONFIG_CHECK_H

#include "config/config.h"

#include "base/text.h"

/* Scripts, rules and pairs. err: one line. Policies' start may wait, and so does this. warnings: a line
 * each of what may be well elsewhere, or NULL. */
int bt_config_check(const bt_config_t *c, bt_text_t *warnings, char *err, size_t err_size);
/* The same without policies and rules: what SIGHUP checks at once, the others it tries aside. */
int bt_config_check_workers(const bt_config_t *c, char *err, size_t err_size);
/* Gives the fleet of this configuration to a registry. */
int bt_config_apply_workers(const bt_config_t *c, bt_registry_t *registry, char *err,
                            size_t err_size);
/* What the workers file names; NULL: there is none. Errors begin with its path. */
int bt_config_apply_found(const bt_config_t *c, const char *file, const bt_config_found_t *found,
                          bt_registry_t *registry, char *err, size_t err_size);
/* The ports can be bound now (and are let go again). One that is taken is a warning: by the gateway
 * that serves this configuration, maybe. */
int bt_config_check_ports(const bt_config_t *c, bt_text_t *warnings, char *err, size_t err_size);
/* What `baton check` prints: pools, workers, what they can take part in.
 * Call after bt_config_check. */
void bt_config_describe(const bt_config_t *c, bt_text_t *out);
/* A listening socket, or < 0: "--port: cannot listen on 127.0.0.1:30000: ...". */
int bt_config_bind(const char *flag, const char *host, unsigned port, bool reuse_port,
                   unsigned *port_p, char *err, size_t err_size);

#endif
