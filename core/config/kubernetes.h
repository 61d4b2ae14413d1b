/* kubernetes.h - the text of --workers-kubernetes, read.
 *
 * Owner: the caller's storage; strings are its own.
 * Life:  read -> fini.
 * Flow:  "namespace=llm,selector=app=vllm,role=decode": keys of its own, and those of a worker in the file.
 * Cost:  start-up only.
 */
#ifndef BT_CONFIG_KUBERNETES_H
#define BT_CONFIG_KUBERNETES_H

#include "discovery/kube_options.h"

/* Errors: one line without the flag's name; nothing is left to free then. */
int bt_config_kubernetes_read(bt_kube_options_t *k, bt_str_t text, char *err, size_t err_size);
void bt_config_kubernetes_fini(bt_kube_options_t *k);

#endif
