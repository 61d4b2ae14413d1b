/* Every back end, a case each. */
#include "transport/backends/backend.h"

const bt_kv_backend_ops_t *bt_kv_backend_ops_at(unsigned index)
{
    switch (1u << index) {
    case BT_KV_MEM:
        return &bt_kv_mem_ops;
#ifdef BT_KV_HAS_SHM
    case BT_KV_SHM:
        return &bt_kv_shm_ops;
#endif
#ifdef BT_KV_HAS_TCP
    case BT_KV_TCP:
        return &bt_kv_tcp_ops;
#endif
#ifdef BT_KV_HAS_VERBS
    case BT_KV_VERBS:
        return bt_kv_verbs_ops();
#endif
    default:
        return NULL;
    }
}
