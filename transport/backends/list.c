/* Every back end, a line each, at the index of its kind's bit. */
#include "transport/backends/backend.h"

#ifdef BT_KV_HAS_SHM
#define SHM &bt_kv_shm_ops
#else
#define SHM NULL
#endif
#ifdef BT_KV_HAS_TCP
#define TCP &bt_kv_tcp_ops
#else
#define TCP NULL
#endif
#ifdef BT_KV_HAS_VERBS
#define VERBS bt_kv_verbs_ops()
#else
#define VERBS NULL
#endif

const bt_kv_backend_ops_t *bt_kv_backend_ops_at(unsigned index)
{
    switch (index) {
    case 0:
        return &bt_kv_fake_ops;
    case 1:
        return &bt_kv_mem_ops;
    case 2:
        return SHM;
    case 3:
        return TCP;
    default:
        return VERBS;
    }
}
