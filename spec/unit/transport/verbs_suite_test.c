/* The suite over verbs, in the emulated machine. Both agents use every device there, or those that BATON_RDMA_A (senders) and BATON_RDMA_B (receivers) name. */
#include "suite.h"

#include "transport/backends/backend.h"

#include <stdio.h>

static void tune(bt_kv_config_t *config)
{
    bool is_receiver = strncmp(config->name, "decode", 6) == 0;

    config->rdma_devices = getenv(is_receiver ? "BATON_RDMA_B" : "BATON_RDMA_A");
}

int main(void)
{
    if (bt_kv_verbs_ops() == NULL) {
        puts("skipped: no RDMA device here");
        return 77;
    }
    /* Its deadlines are shorter than the time to send a lost packet again. */
    if (getenv("BATON_RDMA_LOSSY") != NULL)
        cmocka_set_skip_filter("test_timeouts_of_each_phase");
    return bt_kv_suite(&(bt_kv_suite_t){.name = "verbs", .backends = BT_KV_VERBS, .tune = tune});
}
