/* fake: nothing moves, every room succeeds. It works only alone (config.backends == BT_KV_FAKE): such an agent has no listener and dials nobody; its
 * receivers succeed as soon as they are opened, its senders with their last chunk (sender.c, receiver.c ask agent->is_fake). So this is a back end that is
 * never offered to a peer; it is there for the table to be whole.
 */
#include "transport/backends/backend.h"

#include <stdio.h>

static bt_kv_backend_t the_one = {.ops = &bt_kv_fake_ops};

static int open_fake(bt_kv_backend_t **backend_p, bt_kv_agent_t *agent,
                     const bt_kv_config_t *config, char *err, size_t err_size)
{
    (void) agent;
    if (config->backends != BT_KV_FAKE) {
        snprintf(err, err_size, "fake works only alone");
        return BT_E_INVAL;
    }
    *backend_p = &the_one;
    return 0;
}

static void close_fake(bt_kv_backend_t *backend)
{
    (void) backend;
}

static int add_region(bt_kv_backend_t *backend, bt_kv_mem_t *mem)
{
    (void) backend;
    (void) mem;
    return 0;
}

static void remove_region(bt_kv_backend_t *backend, bt_kv_mem_t *mem)
{
    (void) backend;
    (void) mem;
}

static size_t offer(bt_kv_backend_t *backend, uint8_t *to, size_t size)
{
    (void) backend;
    (void) to;
    (void) size;
    return 0;
}

static int progress(bt_kv_backend_t *backend)
{
    (void) backend;
    return 0;
}

static bool arm(bt_kv_backend_t *backend)
{
    (void) backend;
    return false;
}

const bt_kv_backend_ops_t bt_kv_fake_ops = {
    .kind = BT_KV_FAKE,
    .name = "fake",
    .open = open_fake,
    .close = close_fake,
    .region_add = add_region,
    .region_remove = remove_region,
    .offer = offer,
    .progress = progress,
    .arm = arm,
};
