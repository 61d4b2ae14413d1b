/* Whose a room is, is asked of the loops that run: their tables hold the live ones and nothing else. What has ended is known by number to the hub alone, if it
 * was gateway-managed, and only as one of the last; a decision record is found by the request's id.
 */
#include "admin/status/rooms.h"

#include "admin/call/query.h"

#include <inttypes.h>

/* The text is printed on the control loop, so there is an upper end. */
#define LIMIT_MAX 100000

static bool read_limit(bt_str_t text, unsigned *limit_p)
{
    uint64_t value;

    if (bt_str_u64(text, &value) < 0 || value > LIMIT_MAX)
        return false;
    *limit_p = (unsigned) value;
    return true;
}

void bt_admin_rooms_list(const bt_admin_call_t *c)
{
    unsigned limit = BT_ADMIN_ROOMS_LIMIT;
    bt_str_t query = c->request->query, name, value;

    if (c->config->transfer == NULL) {
        bt_reply_error(c->reply, 404,
                       "this gateway manages no KV transfer: give it --transfer-port, and the "
                       "engines' agents its address");
        return;
    }
    while (bt_query_next(&query, &name, &value))
        if (!bt_str_eq(name, BT_STR("limit")) || !read_limit(value, &limit)) {
            bt_reply_error(c->reply, 400, "?limit=N, with N from 0 to %d, is all that this takes",
                           LIMIT_MAX);
            return;
        }
    bt_transfer_describe(c->config->transfer, limit, &c->reply->body);
}

/* ---- one room ---- */

void bt_admin_room_check(const bt_admin_call_t *c)
{
    if (bt_str_u64(c->key, &c->reply->number) < 0 || c->reply->number == 0 ||
        c->reply->number > INT64_MAX)
        bt_reply_error(c->reply, 400, "a room is a number from 1 to %" PRIi64, INT64_MAX);
}

static const bt_loop_facts_t *owner_of(const bt_loop_facts_t *facts, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (facts[i].answered && facts[i].rows.len > 0)
            return &facts[i];
    return NULL;
}

/* Has the one loop that can have it not answered? */
static bool is_late(uint64_t room, const bt_loop_facts_t *facts, unsigned count)
{
    const unsigned loop = bt_rooms_loop_of(room, bt_rooms_word());

    for (unsigned i = 0; i < count; i++)
        if (facts[i].loop == loop)
            return !facts[i].answered;
    return false;
}

/* What is here of it: null, or an object. True: something is. */
static bool put_here(const bt_admin_config_t *config, uint64_t room, const bt_loop_facts_t *owner,
                     bt_text_t *out)
{
    const uint64_t at_hub = owner != NULL && owner->hub_room != 0 ? owner->hub_room : room;
    bt_text_t transfer;

    bt_text_init(&transfer);
    const bool has_transfer =
        config->transfer != NULL && bt_transfer_describe_room(config->transfer, at_hub, &transfer);
    if (owner == NULL && !has_transfer) {
        bt_text_puts(out, "null");
    } else {
        bt_text_puts(out, "{");
        bt_text_put(out, owner != NULL ? bt_text_str(&owner->rows)
                                       : BT_STR("\"request\":null,\"attempt\":null"));
        bt_text_puts(out, ",\"transfer\":");
        bt_text_put(out, has_transfer ? bt_text_str(&transfer) : BT_STR("null"));
        bt_text_puts(out, "}");
    }
    out->failed |= transfer.failed;
    bt_text_fini(&transfer);
    return owner != NULL || has_transfer;
}

static const char *why_not(const bt_admin_config_t *config, uint64_t room, unsigned loops)
{
    if (bt_rooms_may_own(room, bt_rooms_word(), loops))
        return "is of this gateway's numbers, but it is not open: it has ended. What became of a "
               "request is in GET /explain/<request id>; numbers of rooms are not kept";
    if (config->fleet == NULL)
        return "has not been minted by this gateway since it was started, and it is alone: "
               "--redis-url would let it know of others";
    return "can be of no replica that is known now: its gateway has ended or been started anew, "
           "is of another fleet, or tells nothing of its rooms (an older version)";
}

void bt_admin_room_answer(const bt_admin_config_t *config, uint64_t room,
                          const bt_loop_facts_t *facts, unsigned count, bt_admin_reply_t *reply)
{
    bt_text_t *out = &reply->body;
    unsigned others = 0;

    bt_text_printf(out, "{\"room\":\"%" PRIu64 "\",\"replica\":", room);
    if (config->fleet != NULL && config->shared->replica != NULL)
        bt_text_json_str(out, bt_str(config->shared->replica));
    else
        bt_text_puts(out, "null");
    bt_text_puts(out, ",\"here\":");
    const bool is_here = put_here(config, room, owner_of(facts, count), out);
    bt_text_puts(out, ",\"elsewhere\":");
    if (config->fleet != NULL)
        others = bt_fleet_room_owners(config->fleet, room, out);
    else
        bt_text_puts(out, "[]");
    bt_text_puts(out, "}\n");
    if (is_here)
        return;
    if (is_late(room, facts, count))
        bt_reply_error(reply, 503,
                       "room %" PRIu64 ": loop %u, which would have it, did not answer in time; "
                       "ask again",
                       room, bt_rooms_loop_of(room, bt_rooms_word()));
    else if (others == 0)
        bt_reply_error(reply, 404, "room %" PRIu64 " %s", room, why_not(config, room, count));
}
