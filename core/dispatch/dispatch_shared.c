/* dispatch_shared.c - what all loops share: ids, owners, queues. */
#include "dispatch/dispatcher.h"
#include "dispatch/queue.h"

#include <limits.h>
#include <stdlib.h>

#define RESPONSES_REMEMBERED (1U << 14)

int bt_dispatch_shared_init(bt_dispatch_shared_t *shared, const bt_dispatch_config_t *config)
{
    memset(shared, 0, sizeof(*shared));
    shared->config = *config;
    bt_policy_errors_init(&shared->policy_errors);
    shared->ids = bt_ids_new();
    shared->responses = bt_response_owners_new(RESPONSES_REMEMBERED);
    const bool has_queue = config->queue_size != UINT_MAX;
    if (has_queue)
        shared->queues = bt_queues_new(config);
    if (shared->ids != NULL && shared->responses != NULL && (!has_queue || shared->queues != NULL))
        return 0;
    bt_dispatch_shared_fini(shared);
    return BT_E_NOMEM;
}

void bt_dispatch_shared_fini(bt_dispatch_shared_t *shared)
{
    bt_ids_free(shared->ids);
    bt_response_owners_free(shared->responses);
    bt_queues_free(shared->queues);
    shared->queues = NULL;
    shared->ids = NULL;
    shared->responses = NULL;
    bt_policy_errors_fini(&shared->policy_errors);
}
