/* kv_address.h - where an engine's KV connector listens, in the words of its request ids.
 *
 * Owner: nobody; pure functions.
 * Life:  of a call.
 * Flow:  text of the configuration or of a registration -> fit for an id, or why not. Engines cut ids apart by regular expressions
 *        and trust what they find: what does not fit ends them, or makes them wait for ever.
 * Cost:  one pass.
 */
#ifndef BT_CLUSTER_KV_ADDRESS_H
#define BT_CLUSTER_KV_ADDRESS_H

#include "base/str.h"

#define BT_KV_ADDRESS_MAX 191

/* dialect: p2p_nccl wants "host:port", moriio and moriio_read "host:IP,handshake:PORT,notify:PORT"; others want nothing. NULL = it fits, else
 * a static sentence. */
const char *bt_kv_address_refusal(const char *dialect, bt_str_t address);

#endif
