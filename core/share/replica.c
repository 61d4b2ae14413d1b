/* Table `replicas`: a row a process, "<name>#<incarnation>" -> JSON. A row of our name and another incarnation is what we were before a
 * restart, and runs out; one that stays is a mistake of the configuration, and is told once.
 *
 * A replica that the store does not list stays known for a few answers: a store that was flushed has it again at its next beat,
 * and whoever divides a limit by the number of replicas must not take the moment between for a fleet of one. While the store
 * does not answer nobody comes and nobody goes.
 *
 * A row carries what tells whose a room may be (cluster/room.h): so the directory of all live rooms costs the store nothing. A version that does not tell
 * has no rooms that could be found from elsewhere.
 */
#include "share/share_impl.h"

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "cluster/room.h"
#include "share/quota.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define MISSED_MAX 3
#define ROOMS_MAX 1024 /* words and loops, by a room's 10 bits */

static void put_member(bt_text_t *out, const char *name, const char *value)
{
    if (value != NULL)
        bt_text_json_member(out, name, value);
}

static void put_info(bt_share_t *share)
{
    bt_text_t *out = &share->out;

    out->len = 0;
    bt_text_puts(out, "{\"name\":");
    bt_text_json_str(out, bt_str(share->replica));
    bt_text_printf(out, ",\"incarnation\":\"%016" PRIx64 "\"", share->incarnation);
    put_member(out, "admin", share->admin_url);
    put_member(out, "version", share->version);
    put_member(out, "policies", share->policies);
    if (share->loops > 0)
        bt_text_printf(out, ",\"rooms\":{\"word\":%u,\"loops\":%u}", bt_rooms_word(), share->loops);
    bt_text_printf(out, ",\"started_ms\":%" PRIu64 "}", share->started_wall_ms);
}

static bt_share_peer_t *find(const bt_share_t *share, bt_str_t field)
{
    const bt_list_t *it;

    for (it = share->peers.next; it != &share->peers; it = it->next) {
        bt_share_peer_t *peer = bt_container_of(it, bt_share_peer_t, link);
        if (bt_str_eq(bt_str(peer->field), field))
            return peer;
    }
    return NULL;
}

/* "<name>" of a field. */
static bt_str_t name_of(const char *field)
{
    return (bt_str_t){field, strcspn(field, "#")};
}

static bt_share_peer_t *add(bt_share_t *share, bt_str_t field)
{
    bt_share_peer_t *peer;

    if (field.n >= sizeof(peer->field) || (peer = calloc(1, sizeof(*peer))) == NULL)
        return NULL;
    memcpy(peer->field, field.p, field.n);
    bt_list_push(&share->peers, &peer->link);
    if (!bt_share_is_own(share, field))
        bt_log_info("share", "replica %.*s is there", BT_STR_ARG(name_of(peer->field)));
    return peer;
}

static void drop(bt_share_peer_t *peer)
{
    bt_list_remove(&peer->link);
    free(peer->info);
    free(peer);
}

/* 0 = it does not tell. */
static unsigned rooms_number(bt_str_t info, const char *name)
{
    bt_json_item_t item;
    int64_t number;

    if (bt_json_path(info, &item, "rooms", name, NULL) < 0 ||
        bt_json_i64(item.value, &number) < 0 || number < 0 || number > ROOMS_MAX)
        return 0;
    return (unsigned) number;
}

static void keep_info(bt_share_peer_t *peer, bt_str_t info)
{
    if (peer->info != NULL && bt_str_eq(bt_str(peer->info), info))
        return;
    free(peer->info);
    peer->info = bt_json_validate(info, &(size_t){0}) == 0 ? bt_str_dup(info) : NULL;
    peer->room_word = peer->info != NULL ? rooms_number(info, "word") : 0;
    peer->room_loops = peer->info != NULL ? rooms_number(info, "loops") : 0;
}

/* Another that lives with our name: loads add up all the same, but people cannot tell the two apart. */
static void watch_twin(bt_share_t *share)
{
    uint64_t now_ms = bt_clock_ms();
    const bt_list_t *it;
    bool is_there = false;

    for (it = share->peers.next; it != &share->peers && !is_there; it = it->next) {
        const bt_share_peer_t *peer = bt_container_of(it, bt_share_peer_t, link);
        is_there = bt_str_eq(name_of(peer->field), bt_str(share->replica)) &&
                   !bt_share_is_own(share, bt_str(peer->field));
    }
    if (!is_there || share->twin_since_ms == 0)
        share->twin_since_ms = is_there ? now_ms : 0;
    if (!is_there || share->has_twin || now_ms - share->twin_since_ms < 2 * share->expiry_ms)
        return;
    share->has_twin = true;
    bt_log_warn("share", "another replica is named %s too: give each a --replica-name of its own",
                share->replica);
}

/* Whatever the store says, we are there. */
static bool is_here(const bt_share_t *share, const bt_share_peer_t *peer)
{
    return peer->is_seen || bt_share_is_own(share, bt_str(peer->field));
}

static void sweep(bt_share_t *share)
{
    unsigned count = 0;
    bt_list_t *it, *tmp;

    bt_list_each (&share->peers, it, tmp) {
        bt_share_peer_t *peer = bt_container_of(it, bt_share_peer_t, link);
        peer->missed = is_here(share, peer) ? 0 : peer->missed + 1;
        peer->is_seen = false;
        if (peer->missed <= MISSED_MAX) {
            count++;
            continue;
        }
        bt_log_info("share", "replica %.*s is gone", BT_STR_ARG(name_of(peer->field)));
        drop(peer);
    }
    atomic_store_explicit(&share->replica_count, count, memory_order_relaxed);
    atomic_store_explicit(&bt_worker_has_others, count > 1, memory_order_relaxed);
    if (share->quotas != NULL)
        bt_quota_set_replicas(share->quotas, count);
}

static void on_rows(bt_share_t *share, const bt_store_reply_t *reply)
{
    if (reply->rc != 0)
        return;
    for (unsigned i = 0; i < reply->row_count; i++) {
        bt_share_peer_t *peer = find(share, reply->rows[i].name);
        if (peer == NULL && bt_share_is_name(reply->rows[i].name))
            peer = add(share, reply->rows[i].name);
        if (peer == NULL)
            continue;
        peer->is_seen = true;
        keep_info(peer, reply->rows[i].value);
    }
    sweep(share);
    watch_twin(share);
}

int bt_share_replicas_init(bt_share_t *share)
{
    bt_list_init(&share->peers);
    return add(share, bt_str(share->field)) != NULL ? 0 : BT_E_NOMEM;
}

void bt_share_replicas_beat(bt_share_t *share)
{
    if (share->replicas_ask.is_out)
        return;
    put_info(share);
    keep_info(find(share, bt_str(share->field)), bt_text_str(&share->out));
    bt_share_ask(share, &share->replicas_ask,
                 (bt_store_op_t){.what = BT_STORE_TABLE_SYNC,
                                 .key = BT_STR("replicas"),
                                 .field = bt_str(share->field),
                                 .value = bt_text_str(&share->out),
                                 .ttl_ms = share->expiry_ms},
                 on_rows);
}

void bt_share_replicas_fini(bt_share_t *share)
{
    bt_list_t *it, *tmp;

    bt_list_each (&share->peers, it, tmp)
        drop(bt_container_of(it, bt_share_peer_t, link));
    atomic_store_explicit(&bt_worker_has_others, false, memory_order_relaxed);
}

void bt_share_replicas_describe(const bt_share_t *share, bt_text_t *out)
{
    const bt_list_t *it;
    const char *comma = "";

    for (it = share->peers.next; it != &share->peers; it = it->next) {
        const bt_share_peer_t *peer = bt_container_of(it, bt_share_peer_t, link);
        if (peer->info == NULL)
            continue;
        bt_text_puts(out, comma);
        bt_text_puts(out, peer->info);
        comma = ",";
    }
}

/* ---- rooms ---- */

static bool may_own(const bt_share_t *share, const bt_share_peer_t *peer, uint64_t room)
{
    return peer->info != NULL && !bt_share_is_own(share, bt_str(peer->field)) &&
           bt_rooms_may_own(room, peer->room_word, peer->room_loops);
}

static void put_owner(bt_text_t *out, const bt_share_peer_t *peer)
{
    bt_json_item_t admin;

    bt_text_puts(out, "{\"name\":");
    bt_text_json_str(out, name_of(peer->field));
    bt_text_puts(out, ",\"admin\":");
    if (bt_json_get(bt_str(peer->info), BT_STR("admin"), &admin) == 0 &&
        admin.type == BT_JSON_STRING)
        bt_text_put(out, admin.value);
    else
        bt_text_puts(out, "null");
    bt_text_puts(out, "}");
}

unsigned bt_share_room_owners(const bt_share_t *share, uint64_t room, bt_text_t *out)
{
    const bt_list_t *it;
    unsigned count = 0;

    bt_text_puts(out, "[");
    for (it = share->peers.next; it != &share->peers; it = it->next) {
        const bt_share_peer_t *peer = bt_container_of(it, bt_share_peer_t, link);
        if (!may_own(share, peer, room))
            continue;
        bt_text_puts(out, count++ > 0 ? "," : "");
        put_owner(out, peer);
    }
    bt_text_puts(out, "]");
    return count;
}
