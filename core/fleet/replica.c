/* Table `replicas`: a row a process, "<name>#<incarnation>" -> JSON. A row of our name and another incarnation is what we were before a
 * restart, and runs out; one that stays is a mistake of the configuration, and is told once.
 *
 * A replica that the store does not list stays known for a few answers: a store that was flushed has it again at its next heartbeat,
 * and whoever divides a limit by the number of replicas must not take the moment between for a fleet of one. While the store
 * does not answer nobody comes and nobody goes.
 *
 * A row carries what tells whose a room may be (cluster/room.h): so the directory of all live rooms costs the store nothing. A version that does not tell
 * has no rooms that could be found from elsewhere.
 */
#include "fleet/fleet_impl.h"

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "cluster/room.h"
#include "fleet/quota.h"

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

static void put_info(bt_fleet_t *fleet)
{
    bt_text_t *out = &fleet->out;

    out->len = 0;
    bt_text_puts(out, "{\"name\":");
    bt_text_json_str(out, bt_str(fleet->replica));
    bt_text_printf(out, ",\"incarnation\":\"%016" PRIx64 "\"", fleet->incarnation);
    put_member(out, "admin", fleet->admin_url);
    put_member(out, "version", fleet->version);
    if (fleet->loops > 0)
        bt_text_printf(out, ",\"rooms\":{\"word\":%u,\"loops\":%u}", bt_rooms_word(), fleet->loops);
    bt_text_printf(out, ",\"started_ms\":%" PRIu64 "}", fleet->started_wall_ms);
}

static bt_fleet_peer_t *find(const bt_fleet_t *fleet, bt_str_t field)
{
    const bt_list_t *it;

    for (it = fleet->peers.next; it != &fleet->peers; it = it->next) {
        bt_fleet_peer_t *peer = bt_container_of(it, bt_fleet_peer_t, link);
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

static bt_fleet_peer_t *add(bt_fleet_t *fleet, bt_str_t field)
{
    bt_fleet_peer_t *peer;

    if (field.n >= sizeof(peer->field) || (peer = calloc(1, sizeof(*peer))) == NULL)
        return NULL;
    memcpy(peer->field, field.p, field.n);
    bt_list_push(&fleet->peers, &peer->link);
    if (!bt_fleet_is_own(fleet, field))
        bt_log_info("fleet", "replica %.*s is there", BT_STR_ARG(name_of(peer->field)));
    return peer;
}

static void drop(bt_fleet_peer_t *peer)
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

static void keep_info(bt_fleet_peer_t *peer, bt_str_t info)
{
    if (peer->info != NULL && bt_str_eq(bt_str(peer->info), info))
        return;
    free(peer->info);
    peer->info = bt_json_validate(info, &(size_t){0}) == 0 ? bt_str_dup(info) : NULL;
    peer->room_word = peer->info != NULL ? rooms_number(info, "word") : 0;
    peer->room_loops = peer->info != NULL ? rooms_number(info, "loops") : 0;
}

/* Another that lives with our name: loads add up all the same, but people cannot tell the two apart. */
static void watch_twin(bt_fleet_t *fleet)
{
    uint64_t now_ms = bt_clock_ms();
    const bt_list_t *it;
    bool is_there = false;

    for (it = fleet->peers.next; it != &fleet->peers && !is_there; it = it->next) {
        const bt_fleet_peer_t *peer = bt_container_of(it, bt_fleet_peer_t, link);
        is_there = bt_str_eq(name_of(peer->field), bt_str(fleet->replica)) &&
                   !bt_fleet_is_own(fleet, bt_str(peer->field));
    }
    if (!is_there || fleet->twin_since_ms == 0)
        fleet->twin_since_ms = is_there ? now_ms : 0;
    if (!is_there || fleet->has_twin || now_ms - fleet->twin_since_ms < 2 * fleet->expiry_ms)
        return;
    fleet->has_twin = true;
    bt_log_warn("fleet", "another replica is named %s too: give each a --replica-name of its own",
                fleet->replica);
}

/* Whatever the store says, we are there. */
static bool is_here(const bt_fleet_t *fleet, const bt_fleet_peer_t *peer)
{
    return peer->is_seen || bt_fleet_is_own(fleet, bt_str(peer->field));
}

static void sweep(bt_fleet_t *fleet)
{
    unsigned count = 0;
    bt_list_t *it, *tmp;

    bt_list_each (&fleet->peers, it, tmp) {
        bt_fleet_peer_t *peer = bt_container_of(it, bt_fleet_peer_t, link);
        peer->missed = is_here(fleet, peer) ? 0 : peer->missed + 1;
        peer->is_seen = false;
        if (peer->missed <= MISSED_MAX) {
            count++;
            continue;
        }
        bt_log_info("fleet", "replica %.*s is gone", BT_STR_ARG(name_of(peer->field)));
        drop(peer);
    }
    atomic_store_explicit(&fleet->replica_count, count, memory_order_relaxed);
    atomic_store_explicit(&bt_worker_has_others, count > 1, memory_order_relaxed);
    if (fleet->quotas != NULL)
        bt_quota_set_replicas(fleet->quotas, count);
}

static void on_rows(bt_fleet_t *fleet, const bt_store_reply_t *reply)
{
    if (reply->rc != 0)
        return;
    for (unsigned i = 0; i < reply->row_count; i++) {
        bt_fleet_peer_t *peer = find(fleet, reply->rows[i].name);
        if (peer == NULL && bt_fleet_is_name(reply->rows[i].name))
            peer = add(fleet, reply->rows[i].name);
        if (peer == NULL)
            continue;
        peer->is_seen = true;
        keep_info(peer, reply->rows[i].value);
    }
    sweep(fleet);
    watch_twin(fleet);
}

int bt_fleet_replicas_init(bt_fleet_t *fleet)
{
    bt_list_init(&fleet->peers);
    return add(fleet, bt_str(fleet->field)) != NULL ? 0 : BT_E_NOMEM;
}

void bt_fleet_replicas_tick(bt_fleet_t *fleet)
{
    if (fleet->replicas_query.is_out)
        return;
    put_info(fleet);
    keep_info(find(fleet, bt_str(fleet->field)), bt_text_str(&fleet->out));
    bt_fleet_query(fleet, &fleet->replicas_query,
                   (bt_store_op_t){.what = BT_STORE_TABLE_SYNC,
                                   .key = BT_STR("replicas"),
                                   .field = bt_str(fleet->field),
                                   .value = bt_text_str(&fleet->out),
                                   .ttl_ms = fleet->expiry_ms},
                   on_rows);
}

void bt_fleet_replicas_fini(bt_fleet_t *fleet)
{
    bt_list_t *it, *tmp;

    bt_list_each (&fleet->peers, it, tmp)
        drop(bt_container_of(it, bt_fleet_peer_t, link));
    atomic_store_explicit(&bt_worker_has_others, false, memory_order_relaxed);
}

void bt_fleet_replicas_describe(const bt_fleet_t *fleet, bt_text_t *out)
{
    const bt_list_t *it;
    const char *comma = "";

    for (it = fleet->peers.next; it != &fleet->peers; it = it->next) {
        const bt_fleet_peer_t *peer = bt_container_of(it, bt_fleet_peer_t, link);
        if (peer->info == NULL)
            continue;
        bt_text_puts(out, comma);
        bt_text_puts(out, peer->info);
        comma = ",";
    }
}

/* ---- rooms ---- */

static bool may_own(const bt_fleet_t *fleet, const bt_fleet_peer_t *peer, uint64_t room)
{
    return peer->info != NULL && !bt_fleet_is_own(fleet, bt_str(peer->field)) &&
           bt_rooms_may_own(room, peer->room_word, peer->room_loops);
}

static void put_owner(bt_text_t *out, const bt_fleet_peer_t *peer)
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

unsigned bt_fleet_room_owners(const bt_fleet_t *fleet, uint64_t room, bt_text_t *out)
{
    const bt_list_t *it;
    unsigned count = 0;

    bt_text_puts(out, "[");
    for (it = fleet->peers.next; it != &fleet->peers; it = it->next) {
        const bt_fleet_peer_t *peer = bt_container_of(it, bt_fleet_peer_t, link);
        if (!may_own(fleet, peer, room))
            continue;
        bt_text_puts(out, count++ > 0 ? "," : "");
        put_owner(out, peer);
    }
    bt_text_puts(out, "]");
    return count;
}
