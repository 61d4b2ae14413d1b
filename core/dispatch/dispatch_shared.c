/* dispatch_shared.c - what all loops share: ids, owners, queues. */
#include "dispatch/attempt/attempt.h"
#include "dispatch/attempt/lost_legs.h"
#include "dispatch/dispatcher.h"
#include "dispatch/plan/response_owners.h"
#include "dispatch/queue/queue.h"
#include "transfer/metaserver.h"

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

uint64_t bt_dispatch_sum(const bt_dispatch_shared_t *shared, size_t offset)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < shared->dispatcher_count; i++)
        sum += atomic_load_explicit(
            (const _Atomic uint64_t
                 *) (const void *) ((const char *) &shared->dispatchers[i]->stats + offset),
            memory_order_relaxed);
    return sum;
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

void bt_dispatch_shared_worker_lost(bt_dispatch_shared_t *shared)
{
    for (unsigned i = 0; i < shared->dispatcher_count; i++)
        bt_lost_legs_post(shared->dispatchers[i]);
}

void bt_dispatch_shared_metaserver_call(void *user, bt_metaserver_call_t *call)
{
    const bt_dispatch_shared_t *shared = user;
    const unsigned word = bt_rooms_word();

    if (!bt_rooms_may_own(call->room, word, shared->dispatcher_count)) {
        bt_metaserver_answer(call, 404, "this gateway has no attempt of that number");
        return;
    }
    call->user = shared->dispatchers[bt_rooms_loop_of(call->room, word)];
    bt_loop_post(((bt_dispatcher_t *) call->user)->loop, &call->mail, bt_attempt_trigger_on_call);
}
