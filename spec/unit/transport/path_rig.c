/* The callbacks of backend.h, as a rig answers them. They stand here because the specs of one
 * program share them. */
#include "path_rig.h"

rig_hooks_t rig_hooks;

void bt_kv_path_ready(bt_kv_path_t *path)
{
    path->link->is_ready = true;
}

void bt_kv_path_failed(bt_kv_path_t *path, int rc, const char *why)
{
    path->link->has_failed = true;
    path->link->rc = rc;
    snprintf(path->link->why, sizeof(path->link->why), "%s", why);
}

int bt_kv_path_send(bt_kv_path_t *path, const uint8_t *message, size_t size)
{
    if (path->link->is_cut)
        return BT_E_CANCELLED;
    rig_send(path->link, 'T', message, size);
    return 0;
}

void bt_kv_path_bind(bt_kv_path_t *path, uint8_t *bytes, size_t n)
{
    (void) path;
    for (size_t i = 0; i < n; i++)
        bytes[i] ^= rig_hooks.bind;
}

void bt_kv_batch_over(bt_kv_batch_t *batch, int rc)
{
    rig_batch_t *b = (rig_batch_t *) (void *) batch;
    b->over++;
    b->rc = rc;
}

void bt_kv_got_note(bt_kv_path_t *path, const uint8_t *note, size_t size)
{
    uint64_t value = 0;
    memcpy(&value, note, size < sizeof(value) ? size : sizeof(value));
    path->link->notes[path->link->note_count++ % RIG_NOTES] = value;
}

char *bt_kv_destination(bt_kv_path_t *path, uint64_t tag, bt_kv_region_t region, uint64_t offset,
                        uint64_t bytes)
{
    rig_link_t *link = path->link;
    if (link->refused_tag == UINT64_MAX || tag == link->refused_tag || region == 0 ||
        region == link->refused_region || region > RIG_MEMS)
        return NULL;
    const bt_kv_mem_t *mem = &link->rig->mems[region - 1];
    if (mem->p == NULL || offset > mem->size || bytes > mem->size - offset)
        return NULL;
    return mem->p + offset;
}

int bt_kv_watch(bt_kv_agent_t *agent, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data = {.fd = fd}};
    return epoll_ctl(agent->epoll, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : BT_E_LIMIT;
}

void bt_kv_unwatch(bt_kv_agent_t *agent, int fd)
{
    (void) epoll_ctl(agent->epoll, EPOLL_CTL_DEL, fd, NULL);
}

void bt_kv_unlock(bt_kv_agent_t *agent)
{
    pthread_mutex_unlock(&agent->lock);
    if (rig_hooks.in_copy != NULL)
        rig_hooks.in_copy();
}

void bt_kv_relock(bt_kv_agent_t *agent)
{
    if (rig_hooks.after_copy != NULL)
        rig_hooks.after_copy();
    pthread_mutex_lock(&agent->lock);
}
