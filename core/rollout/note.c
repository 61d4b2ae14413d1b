/* A note in the store names each set that this replica is trying. A process that a set has killed can no longer vote, but the next
 * process of the same name finds the note and does not try that number again.
 *
 *   add --> stored --> the trial runs --> it ends, with any result: removed
 *              +-----> the process is killed --> found by the next one: `is_old`, until a later number is committed
 *
 * All notes of a replica are one row, which is always written as a whole. */
#include "rollout/rollout_impl.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>

#define NOTE_TTL_MS                                                                                \
    UINT64_C(2592000000) /* 30 days: replicas whose names never come back leave nothing for good */

static bt_rollout_note_t *find(bt_rollout_t *r, uint64_t number)
{
    for (unsigned i = 0; i < r->notes.count; i++)
        if (r->notes.items[i].number == number)
            return &r->notes.items[i];
    return NULL;
}

/* When all slots are taken, the lowest number is dropped. */
static void add_note(bt_rollout_t *r, uint64_t number, bool is_old)
{
    bt_rollout_notes_t *n = &r->notes;
    bt_rollout_note_t *at = &n->items[0];

    if (n->count < BT_ROLLOUT_NOTES_MAX)
        at = &n->items[n->count++];
    else
        for (unsigned i = 1; i < n->count; i++)
            if (n->items[i].number < at->number)
                at = &n->items[i];
    *at = (bt_rollout_note_t){.number = number, .since = ++n->version, .is_old = is_old};
}

static void remove_note(bt_rollout_t *r, bt_rollout_note_t *note)
{
    bt_rollout_notes_t *n = &r->notes;

    *note = n->items[--n->count];
    n->version++;
}

/* ---- the row ---- */

/* Value: "7 9"; no numbers: the row is dropped. */
static bt_store_op_t row_op(const bt_rollout_t *r, char *value, size_t size)
{
    size_t used = 0;

    value[0] = '\0';
    for (unsigned i = 0; i < r->notes.count; i++)
        used += (size_t) snprintf(value + used, size - used, "%s%" PRIu64, used > 0 ? " " : "",
                                  r->notes.items[i].number);
    return (bt_store_op_t){.what = used > 0 ? BT_STORE_TABLE_PUT : BT_STORE_TABLE_DROP,
                           .key = BT_STR("policy_trying"),
                           .field = bt_str(r->replica),
                           .value = bt_str(value),
                           .ttl_ms = NOTE_TTL_MS};
}

static void read_row(bt_rollout_t *r, bt_str_t value)
{
    uint64_t number;

    while (value.n > 0) {
        const char *space = memchr(value.p, ' ', value.n);
        const size_t n = space != NULL ? (size_t) (space - value.p) : value.n;
        if (bt_str_u64((bt_str_t){value.p, n}, &number) == 0 && find(r, number) == NULL)
            add_note(r, number, true);
        value.p += space != NULL ? n + 1 : n;
        value.n -= space != NULL ? n + 1 : n;
    }
}

static void on_loaded(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    if (reply->rc < 0)
        return;
    r->notes.is_known = true;
    for (unsigned i = 0; i < reply->row_count; i++)
        if (bt_str_eq(reply->rows[i].name, bt_str(r->replica)))
            read_row(r, reply->rows[i].value);
    r->notes.stored = r->notes.version; /* that is what the store holds */
    for (unsigned i = 0; i < r->notes.count; i++)
        bt_log_warn("fleet", "set %" PRIu64 " was being tried when this replica ended last",
                    r->notes.items[i].number);
    bt_rollout_note_sync(r);
    bt_rollout_tell_joined(r);
}

static void on_stored(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    if (reply->rc < 0)
        return; /* sent again with the next heartbeat */
    r->notes.stored = r->notes.sending;
    bt_rollout_tell_joined(r);
    if (r->is_running)
        bt_timer_start(&r->beat, 0); /* what waits for it continues now */
}

void bt_rollout_note_sync(bt_rollout_t *r)
{
    bt_rollout_notes_t *n = &r->notes;
    char value[BT_ROLLOUT_NOTES_MAX * 24];

    if (n->ask.is_out)
        return;
    if (!n->is_known) {
        bt_rollout_ask(r, &n->ask,
                       (bt_store_op_t){.what = BT_STORE_TABLE_ALL, .key = BT_STR("policy_trying")},
                       on_loaded);
    } else if (n->stored != n->version) {
        n->sending = n->version;
        bt_rollout_ask(r, &n->ask, row_op(r, value, sizeof value), on_stored);
    }
}

/* ---- for the others ---- */

bool bt_rollout_note_add(bt_rollout_t *r, uint64_t number)
{
    if (r->notes.is_known && find(r, number) == NULL)
        add_note(r, number, false);
    bt_rollout_note_sync(r);
    return r->notes.is_known && r->notes.stored >= find(r, number)->since;
}

void bt_rollout_note_remove(bt_rollout_t *r, uint64_t number)
{
    bt_rollout_note_t *note = find(r, number);

    if (note == NULL || note->is_old)
        return;
    remove_note(r, note);
    bt_rollout_note_sync(r);
}

void bt_rollout_note_prune(bt_rollout_t *r)
{
    for (unsigned i = r->notes.count; i-- > 0;) {
        bt_rollout_note_t *note = &r->notes.items[i];
        const bool is_pin = r->is_pinned && note->number == r->pin_number;
        if (note->is_old && note->number < r->held->number && !is_pin)
            remove_note(r, note);
    }
    bt_rollout_note_sync(r);
}

bool bt_rollout_is_blocked(const bt_rollout_t *r, uint64_t number)
{
    for (unsigned i = 0; i < r->notes.count; i++)
        if (r->notes.items[i].number == number)
            return r->notes.items[i].is_old;
    return false;
}

/* Nobody waits for the answer: operations of one client are executed in order. */
void bt_rollout_leave(bt_rollout_t *r)
{
    char value[BT_ROLLOUT_NOTES_MAX * 24];

    if (r == NULL)
        return;
    for (unsigned i = r->notes.count; i-- > 0;)
        if (!r->notes.items[i].is_old)
            remove_note(r, &r->notes.items[i]);
    if (r->notes.is_known && r->notes.stored != r->notes.version)
        bt_rollout_send(r, row_op(r, value, sizeof value));
}
