/* Rows of workers to which an operator has given another role: "role":"decode" until somebody takes it back; null for a day.
 *
 *      another role by any replica's API            -> that role: each replica switches its worker of that address by itself, now and whenever it appears
 *      the role that those say who name the worker  -> null: who has switched because of the row switches back
 *      added or removed by the API                  -> null: the add says the role; a replica that keeps a removed one keeps it as it is
 *      a replica cannot: its requests do not end, or the engine refuses -> null, so that all have one role again
 *
 * An order is what shall be, not a step: no replica leads. Each drains its own requests and asks the engine, which refuses while others' run and says success
 * to whoever asks for the role that it has. So a replica that begins later, or was cut off, catches up by the same way, and so does an engine that was
 * started anew in its old role, once that is seen. Nobody asks before all who are there may have heard (BT_FLEET_SETTLE_MS).
 */
#include "fleet/rows.h"

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>

#define AGAIN_MS 5000
#define TIMEOUT_MAX_MS 86400000

static bool read_role(const bt_json_item_t *item, enum bt_role *role_p)
{
    char word[16];
    const long n = bt_json_unescape(item->value, word, sizeof(word));

    return n > 0 && bt_role_parse((bt_str_t){word, (size_t) n}, role_p) == 0;
}

static bool read_members(bt_fleet_row_t *row, bt_str_t value)
{
    bt_json_item_t role, timeout;
    enum bt_role given = BT_ROLE_HYBRID;
    int64_t ms = BT_ROLE_SWITCH_TIMEOUT_MS;

    if (bt_json_get(value, BT_STR("role"), &role) < 0 ||
        bt_json_get(value, BT_STR("timeout_ms"), &timeout) < 0)
        return false;
    if (role.type == BT_JSON_STRING ? !read_role(&role, &given) : role.type != BT_JSON_NULL)
        return false;
    if (timeout.type == BT_JSON_NUMBER &&
        (bt_json_i64(timeout.value, &ms) < 0 || ms < 1 || ms > TIMEOUT_MAX_MS))
        return false;
    row->role = role.type == BT_JSON_NULL ? BT_FLEET_ROLE_AS_SAID : (int) given;
    row->timeout_ms = (uint64_t) ms;
    row->is_refused = false;
    row->again_ms = 0;
    return true;
}

static void write_members(bt_text_t *out, const bt_fleet_row_t *row)
{
    if (row->role == BT_FLEET_ROLE_AS_SAID)
        bt_text_puts(out, ",\"role\":null");
    else
        bt_text_printf(out, ",\"role\":\"%s\",\"timeout_ms\":%" PRIu64,
                       bt_role_name((enum bt_role) row->role), row->timeout_ms);
}

static bool is_lasting(const bt_fleet_row_t *row)
{
    return row->role != BT_FLEET_ROLE_AS_SAID;
}

static bool undo(bt_fleet_row_t *row)
{
    const bool is_news = row->role != BT_FLEET_ROLE_AS_SAID;

    row->role = BT_FLEET_ROLE_AS_SAID;
    row->is_refused = false;
    row->again_ms = 0;
    return is_news;
}

/* ---- applied ---- */

static enum bt_role said_role(const bt_worker_t *w)
{
    return w->said != NULL ? w->said->role : w->spec.role;
}

/* As in drains.c: every replica ends it by itself, and all write the same. */
static void end_outdated(bt_fleet_t *fleet, bt_fleet_row_t *row)
{
    const bt_fleet_row_t *w;

    if (row->role == BT_FLEET_ROLE_AS_SAID || !bt_fleet_row_is_outdated(fleet, row, &w))
        return;
    row->role = BT_FLEET_ROLE_AS_SAID;
    row->is_ours = row->is_refused = false;
    row->again_ms = 0;
    row->stamp = w->stamp + 1;
    bt_fleet_row_put(fleet, row);
}

/* The others switch its engine all the same. */
static void take_out(bt_worker_t *w, const char *why)
{
    if (w->engine != BT_ENGINE_SGLANG)
        return;
    snprintf(w->switch_why, sizeof(w->switch_why), "%s", why);
    atomic_store(&w->switching, BT_SWITCH_UNKNOWN);
    bt_worker_note_service(w);
    bt_workers_changed();
}

static uint64_t settle_ms(const bt_fleet_t *fleet, const bt_fleet_row_t *row)
{
    const uint64_t now_ms = bt_clock_wall_ms();
    const uint64_t age_ms = now_ms > row->stamp ? now_ms - row->stamp : 0;

    return age_ms < BT_FLEET_SETTLE_MS && bt_fleet_replicas(fleet) > 1 ? BT_FLEET_SETTLE_MS - age_ms
                                                                       : 0;
}

static void begin(bt_fleet_t *fleet, bt_fleet_row_t *row, bt_worker_t *w, enum bt_role to)
{
    const bt_role_switch_ask_t ask = {.to = to,
                                      .timeout_ms = row->timeout_ms > 0 ? row->timeout_ms
                                                                        : BT_ROLE_SWITCH_TIMEOUT_MS,
                                      .settle_ms = settle_ms(fleet, row),
                                      .is_forced = true}; /* who gave the order has asked */
    char err[256] = "out of memory";
    const int rc = fleet->begin_role(fleet->user, w, &ask, err, sizeof(err));

    if (rc == 0) {
        row->is_ours = true;
        row->again_ms = 0;
        bt_log_info("fleet", "worker %s of pool %s: to be %s by an order to the fleet", w->name,
                    row->pool, bt_role_name(to));
        return;
    }
    if (row->again_ms == 0)
        bt_log_warn("fleet", "worker %s, which is to be %s in this fleet, %s: %s", w->name,
                    bt_role_name(to),
                    rc == BT_E_CONFIG ? "cannot be that here" : "is not switched yet", err);
    row->again_ms = bt_clock_ms() + AGAIN_MS;
    row->is_refused = rc == BT_E_CONFIG;
    fleet->has_waiting |= !row->is_refused;
    if (row->is_refused)
        take_out(w, err);
}

static bool apply(bt_fleet_t *fleet, bt_fleet_row_t *row)
{
    bt_worker_t *w = bt_fleet_row_worker(fleet, row);
    const bool is_ordered = (end_outdated(fleet, row), row->role != BT_FLEET_ROLE_AS_SAID);

    if (w == NULL || fleet->begin_role == NULL)
        return false;
    const enum bt_role to = is_ordered ? (enum bt_role) row->role : said_role(w);
    const int state = atomic_load(&w->switching);
    if (w->spec.role == to && state == BT_SWITCH_NONE)
        row->is_ours = is_ordered;
    else if (state == BT_SWITCH_DRAINING || state == BT_SWITCH_ASKING)
        fleet->has_waiting |= w->switch_to != to;
    else if (row->is_refused || (!is_ordered && !row->is_ours && state != BT_SWITCH_UNKNOWN))
        return false;
    else if (bt_clock_ms() < row->again_ms)
        fleet->has_waiting = true;
    else
        begin(fleet, row, w, to);
    return false; /* the same fleet, for now */
}

const bt_fleet_kind_t bt_fleet_kind_role = {.suffix = " role",
                                            .read = read_members,
                                            .write = write_members,
                                            .is_lasting = is_lasting,
                                            .undo = undo,
                                            .apply = apply};

/* ---- told ---- */

const char *bt_fleet_worker_role(bt_fleet_t *fleet, const char *pool, const bt_worker_t *w,
                                 const bt_role_switch_ask_t *ask)
{
    bt_fleet_row_t *row = bt_fleet_row_or_add(fleet, &bt_fleet_kind_role, pool, w);

    if (row == NULL)
        return BT_FLEET_TOO_LONG;
    row->role = ask->to == said_role(w) ? BT_FLEET_ROLE_AS_SAID : (int) ask->to;
    row->timeout_ms = ask->timeout_ms;
    row->is_ours = true;
    row->is_refused = false;
    row->again_ms = 0;
    return bt_fleet_row_send(fleet, row);
}

static bt_fleet_row_t *row_of(const bt_fleet_t *fleet, const bt_worker_t *w)
{
    for (unsigned i = 0; i < fleet->row_count; i++)
        if (fleet->rows[i]->kind == &bt_fleet_kind_role &&
            bt_fleet_row_worker(fleet, fleet->rows[i]) == w)
            return fleet->rows[i];
    return NULL;
}

void bt_fleet_role_failed(bt_fleet_t *fleet, const bt_worker_t *w, enum bt_role to, bool is_unclear)
{
    bt_fleet_row_t *row = row_of(fleet, w);

    fleet->has_waiting = true;
    if (row == NULL)
        return; /* it was replaced meanwhile: who stands there now is switched */
    row->again_ms = bt_clock_ms() + AGAIN_MS;
    if (is_unclear)
        return;
    if (row->role == (int) to) {
        bt_log_warn("fleet", "worker %s does not become %s in this fleet: this replica could not",
                    w->name, bt_role_name(to));
        row->role = BT_FLEET_ROLE_AS_SAID;
        (void) bt_fleet_row_send(fleet, row);
    } else {
        row->is_ours = false; /* it stays as it is */
    }
}

void bt_fleet_role_outdate(bt_fleet_t *fleet, const bt_fleet_row_t *worker_row)
{
    bt_fleet_row_t *row = bt_fleet_row_beside(fleet, worker_row, &bt_fleet_kind_role);

    if (row != NULL)
        (void) apply(fleet, row);
}

void bt_fleet_roles_describe(const bt_fleet_t *fleet, bt_text_t *out)
{
    const char *comma = "";

    for (unsigned i = 0; i < fleet->row_count; i++) {
        const bt_fleet_row_t *row = fleet->rows[i];
        if (row->kind != &bt_fleet_kind_role || row->role == BT_FLEET_ROLE_AS_SAID)
            continue;
        bt_text_puts(out, comma);
        bt_fleet_row_describe(fleet, row, out);
        bt_text_printf(out, ",\"role\":\"%s\"}", bt_role_name((enum bt_role) row->role));
        comma = ",";
    }
}
