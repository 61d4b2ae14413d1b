/* What a peer says, after the hello, and the peer's memory. Everything is checked against what this
 * link is for: on a link that this agent dialled it is the receiver, on one that it accepted it is
 * the sender. A frame of the wrong direction, of an unknown room or layout, or with pages outside
 * the layout breaks the link. Frames about rooms go to data/link_rooms.c.
 */
#include "transport/control/link.h"

#include <stdio.h>
#include <stdlib.h>

#define PEER_REGIONS_MAX 65536u
#define PEER_LAYOUTS_MAX 4096u

/* ---- the peer's memory ---- */
static bt_kv_peer_region_t *find_region(const bt_kv_link_t *link, bt_kv_region_t id)
{
    for (bt_list_t *it = link->peer_regions.next; it != &link->peer_regions; it = it->next)
        if (bt_container_of(it, bt_kv_peer_region_t, link)->id == id)
            return bt_container_of(it, bt_kv_peer_region_t, link);
    return NULL;
}

uint64_t bt_kv_link_region_size(void *user, bt_kv_region_t id)
{
    bt_kv_peer_region_t *region = find_region(user, id);
    return region != NULL ? region->size : 0;
}

static void free_region(bt_kv_link_t *link, bt_kv_peer_region_t *region)
{
    for (unsigned i = 0; i < BT_KV_BACKENDS; i++)
        free(region->keys[i]);
    bt_list_remove(&region->link);
    link->peer_region_count--;
    free(region);
}

int bt_kv_link_region(bt_kv_link_t *link, const bt_kv_peer_region_t *region, bool is_there)
{
    unsigned i = link->path_index;

    if (link->path == NULL || link->path->backend->ops->peer_region == NULL)
        return 0;
    return link->path->backend->ops->peer_region(link->path, region->id, region->size,
                                                 is_there ? region->keys[i] : NULL,
                                                 is_there ? region->key_bytes[i] : 0);
}

static const char *got_region(bt_kv_link_t *link, const bt_kv_region_frame_t *frame)
{
    if (find_region(link, frame->id) != NULL)
        return "a region twice";
    if (link->peer_region_count >= PEER_REGIONS_MAX)
        return "too many regions";
    bt_kv_peer_region_t *region = calloc(1, sizeof(*region));
    if (region == NULL)
        return "more than memory holds";
    region->id = frame->id;
    region->size = frame->size;
    bt_list_push(&link->peer_regions, &region->link);
    link->peer_region_count++;
    for (uint32_t i = 0; i < frame->key_count; i++) {
        const bt_kv_blob_t *key = &frame->keys[i];
        unsigned index = key->kind != 0 ? bt_kv_backend_index(key->kind) : BT_KV_BACKENDS;
        if (index >= BT_KV_BACKENDS || region->keys[index] != NULL)
            continue;
        region->keys[index] = malloc(key->bytes.n + 1);
        if (region->keys[index] == NULL)
            return "more than memory holds";
        memcpy(region->keys[index], key->bytes.p, key->bytes.n);
        region->key_bytes[index] = key->bytes.n;
    }
    if (bt_kv_link_region(link, region, true) < 0)
        return "a region that its back end does not take";
    return NULL;
}

static const char *got_region_gone(bt_kv_link_t *link, bt_kv_region_t id)
{
    bt_kv_peer_region_t *region = find_region(link, id);

    if (region == NULL)
        return "an unknown region";
    (void) bt_kv_link_region(link, region, false);
    free_region(link, region);
    return NULL;
}

struct bt_kv_layout *bt_kv_link_layout(const bt_kv_link_t *link, bt_kv_layout_t id)
{
    for (bt_list_t *it = link->peer_layouts.next; it != &link->peer_layouts; it = it->next)
        if (bt_container_of(it, struct bt_kv_layout, link)->id == id)
            return bt_container_of(it, struct bt_kv_layout, link);
    return NULL;
}

static const char *got_layout(bt_kv_link_t *link, const bt_kv_layout_frame_t *frame)
{
    struct bt_kv_layout *layout;
    const char *why = NULL;

    if (bt_kv_link_layout(link, frame->id) != NULL)
        return "a layout twice";
    if (link->peer_layout_count >= PEER_LAYOUTS_MAX)
        return "too many layouts";
    bt_kv_buffer_t *buffers = calloc(frame->buffer_count, sizeof(*buffers));
    if (buffers == NULL)
        return "more than memory holds";
    for (uint32_t i = 0; i < frame->buffer_count; i++)
        buffers[i] = bt_kv_get_buffer(frame, i);
    int rc = bt_kv_layout_make(&layout, buffers, frame->buffer_count, frame->pages,
                               bt_kv_link_region_size, link, &why);
    free(buffers);
    if (rc != 0)
        return why;
    layout->id = frame->id;
    layout->refs = 1;
    bt_list_push(&link->peer_layouts, &layout->link);
    link->peer_layout_count++;
    return NULL;
}

void bt_kv_peer_layout_unref(struct bt_kv_layout *layout)
{
    if (--layout->refs > 0)
        return;
    bt_list_remove(&layout->link);
    bt_kv_layout_free(layout);
}

static void drop_layout(bt_kv_link_t *link, struct bt_kv_layout *layout)
{
    bt_list_remove(&layout->link);
    link->peer_layout_count--;
    bt_kv_peer_layout_unref(layout);
}

void bt_kv_link_forget(bt_kv_link_t *link)
{
    while (!bt_list_empty(&link->peer_regions))
        free_region(link, bt_container_of(link->peer_regions.next, bt_kv_peer_region_t, link));
    while (!bt_list_empty(&link->peer_layouts))
        drop_layout(link, bt_container_of(link->peer_layouts.next, struct bt_kv_layout, link));
    for (unsigned i = 0; i < BT_KV_BACKENDS; i++)
        free(link->offers[i]);
}

/* ---- paths ---- */
static const char *got_path(bt_kv_link_t *link, uint8_t type, const bt_kv_blob_t *path)
{
    if (path->kind != 1u << link->path_index || link->kinds_left >> link->path_index & 1)
        return NULL; /* about a kind that one of us has given up */
    if (type == BT_KV_PATH_READY) {
        link->is_peer_path_ready = true;
        bt_kv_link_want(link);
    } else if (type == BT_KV_PATH_FAILED) {
        snprintf(link->path_why, sizeof(link->path_why), "%.*s (said the peer)",
                 (int) (path->bytes.n < 120 ? path->bytes.n : 120),
                 path->bytes.p != NULL ? path->bytes.p : "");
        bt_kv_link_next_path(link, false, link->path_why);
    } else if (link->path != NULL && !link->is_path_failed) {
        const bt_kv_backend_ops_t *ops = link->path->backend->ops;
        if (ops->received(link->path, (const uint8_t *) path->bytes.p, path->bytes.n) < 0 &&
            link->path != NULL)
            bt_kv_path_failed(link->path, BT_E_KV_TRANSFER, "a message it does not understand");
    }
    return NULL;
}

/* ---- the link ---- */
static const char *got_close(bt_kv_link_t *link, const bt_kv_frame_t *frame)
{
    link->is_peer_drained = frame->close.drained;
    bt_kv_link_break(link, BT_E_RESET, "%s closed the link%s: %.*s", link->peer,
                     bt_kv_auth_is_open(&link->auth) ? " before it proved the token" : "",
                     BT_STR_ARG(frame->close.reason));
    return NULL;
}

static const char *dispatch(bt_kv_link_t *link, bt_kv_frame_t *frame)
{
    struct bt_kv_layout *layout;

    switch (frame->type) {
    case BT_KV_REGION:
        return got_region(link, &frame->region);
    case BT_KV_REGION_GONE:
        return got_region_gone(link, frame->id);
    case BT_KV_LAYOUT:
        return got_layout(link, &frame->layout);
    case BT_KV_LAYOUT_GONE:
        layout = bt_kv_link_layout(link, frame->id);
        if (layout == NULL)
            return "an unknown layout";
        drop_layout(link, layout);
        return NULL;
    case BT_KV_PATH:
    case BT_KV_PATH_READY:
    case BT_KV_PATH_FAILED:
        return got_path(link, frame->type, &frame->path);
    case BT_KV_ANNOUNCE:
    case BT_KV_DONE:
    case BT_KV_ABORT:
    case BT_KV_ABORT_ACK:
    case BT_KV_LEFT:
        return bt_kv_rooms_got(link, frame);
    case BT_KV_PING:
        return NULL;
    default:
        return "a second hello";
    }
}

bool bt_kv_link_got(bt_kv_link_t *link, bt_kv_frame_t *frame)
{
    const char *why = NULL;

    if (frame->type == BT_KV_AUTH_GREET && link->state == BT_KV_LINK_HELLO) {
        bt_kv_link_refuse_peer(link,
                               "%.48s has a token, and agent %.32s has none: give both sides the "
                               "same one",
                               link->peer, link->agent->config.name);
        return false;
    }
    int rc = bt_kv_frame_decode(frame, &why);
    if (rc == 0 && frame->type == BT_KV_CLOSE)
        why = got_close(link, frame);
    else if (rc == 0 && link->state == BT_KV_LINK_HELLO) {
        if (frame->type == BT_KV_HELLO)
            bt_kv_link_got_hello(link, &frame->hello);
        else
            why = "something before its hello";
    } else if (rc == 0)
        why = dispatch(link, frame);
    if (why != NULL)
        bt_kv_link_refuse(link, why);
    return link->broken_rc == 0;
}
