/* registration_message.h - what vLLM's P2pNcclConnector and MoRIIOConnector say of themselves, every 3 s.
 *
 * Owner: the caller; what is read borrows from the payload.
 * Life:  of a call.
 * Flow:  msgpack map -> checked -> a worker's role, where it serves HTTP, and its word for the registry.
 * Cost:  one unpacked map.
 */
#ifndef BT_TRANSFER_REGISTRATION_MESSAGE_H
#define BT_TRANSFER_REGISTRATION_MESSAGE_H

#include "cluster/worker.h"

enum bt_registration_kind { BT_REGISTRATION_P2P_NCCL, BT_REGISTRATION_MORIIO };
#define BT_REGISTRATION_KINDS 2

/* The dialect of those that register so. */
const char *bt_registration_dialect(enum bt_registration_kind kind);

typedef struct bt_registration_message {
    enum bt_role role;
    char http_address[128]; /* "ip:port" */
    bt_registered_t word;
} bt_registration_message_t;

/* 0; BT_E_AGAIN: a greeting that says nothing; BT_E_INVAL and a static sentence; BT_E_NOMEM. */
int bt_registration_read(enum bt_registration_kind kind, bt_str_t payload,
                         bt_registration_message_t *m_p, const char **why_p);

#endif
