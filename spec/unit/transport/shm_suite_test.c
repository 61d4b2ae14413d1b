/* The suite over shm, each way the bytes can go: pools mapped by both, private memory pulled, and private memory through the copy window. */
#include "suite.h"
#include "transport/backends/shm/shm.h"

int main(void)
{
    int failed = bt_kv_suite(&(bt_kv_suite_t){.name = "shm", .backends = BT_KV_SHM});
    failed += bt_kv_suite(
        &(bt_kv_suite_t){.name = "shm, private", .backends = BT_KV_SHM, .is_private = true});
    bt_shm_hooks.probe_failures = -1;
    failed += bt_kv_suite(
        &(bt_kv_suite_t){.name = "shm, window", .backends = BT_KV_SHM, .is_private = true});
    return failed;
}
