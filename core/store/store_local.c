/* store_local.c - the store of a gateway that is alone.
 *
 * An op is done under its shard's lock inside bt_store_do, and its answer, with copies of what it found, waits for the next turn. What the scripts of the Redis
 * store do is done here in the same words and the same order (redis_scripts.c): one suite of specs runs over both.
 *
 * Its clock is the monotonic one set to the wall's time when the store was opened: windows begin where the wall's minutes do, and never run backwards.
 */
#include "store/local_work.h"

#include "base/clock.h"
#include "base/err.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const wrong_type = "the key holds another type";

static int refuse(bt_local_work_t *w, int rc, const char *error)
{
    w->answer->reply.rc = rc;
    w->answer->reply.error = error;
    return rc;
}

int bt_local_full(bt_local_work_t *w, int rc)
{
    w->is_full = rc == BT_E_LIMIT;
    return refuse(w, rc, rc == BT_E_LIMIT ? "the local store is full" : NULL);
}

int bt_local_want(bt_local_work_t *w, enum bt_local_type type, bool make)
{
    int rc = 0;

    if (w->entry == NULL && make)
        rc = bt_local_make(w->map, w->shard, w->hash, w->name, w->now_ms, &w->entry);
    if (rc != 0)
        return bt_local_full(w, rc);
    if (w->entry == NULL)
        return 0;
    if (w->entry->type == BT_LOCAL_NEW)
        w->entry->type = type;
    return w->entry->type == type ? 0 : refuse(w, BT_E_INVAL, wrong_type);
}

/* ---- counters and cells: one type, as in Redis ---- */
/* A whole number as it would be printed, nothing else. */
static bool is_number(bt_str_t text, int64_t *number_p)
{
    char copy[24], again[24];

    if (text.n == 0 || text.n >= sizeof(copy))
        return false;
    memcpy(copy, text.p, text.n);
    copy[text.n] = '\0';
    *number_p = strtoll(copy, NULL, 10);
    snprintf(again, sizeof(again), "%" PRId64, *number_p);
    return strcmp(copy, again) == 0;
}

static void counter_add(bt_local_work_t *w)
{
    bool is_new = w->entry == NULL;
    int64_t now = 0;

    if (bt_local_want(w, BT_LOCAL_TEXT, true) != 0)
        return;
    bt_local_entry_t *entry = w->entry;
    if (entry->item == NULL)
        now = (int64_t) entry->number;
    else if (!is_number(bt_local_item_value(entry->item), &now)) {
        refuse(w, BT_E_INVAL, "the cell holds no whole number");
        return;
    }
    if (__builtin_add_overflow(now, w->op->amount, &now)) {
        refuse(w, BT_E_LIMIT, "the counter would overflow");
        return;
    }
    bt_local_item_free(w->map, entry->item);
    entry->item = NULL;
    entry->number = (uint64_t) now;
    if (is_new)
        entry->until_ms = bt_local_end_of(w, bt_store_ttl_ms(w->op));
    w->answer->reply.number = now;
}

static void cell_get(bt_local_work_t *w)
{
    if (bt_local_want(w, BT_LOCAL_TEXT, false) != 0)
        return;
    if (w->entry == NULL)
        w->answer->reply.is_none = true;
    else if (w->entry->item != NULL)
        bt_local_put_text(w, bt_local_item_value(w->entry->item));
    else
        bt_text_printf(&w->answer->bytes, "%" PRId64, (int64_t) w->entry->number);
}

/* Takes over a key of any type, as SET does. */
static void cell_set(bt_local_work_t *w)
{
    bt_local_item_t *item;

    if (w->op->if_absent && w->entry != NULL)
        return;
    int rc = bt_local_item_new(w->map, BT_STR_NULL, w->op->value, &item);
    if (rc != 0) {
        bt_local_full(w, rc);
        return;
    }
    if (w->entry != NULL)
        bt_local_clear(w->map, w->entry);
    if (bt_local_want(w, BT_LOCAL_TEXT, true) != 0) {
        bt_local_item_free(w->map, item);
        return;
    }
    w->entry->item = item;
    w->entry->until_ms = bt_local_end_of(w, bt_store_ttl_ms(w->op));
    w->answer->reply.number = 1;
}

static void cell_drop(bt_local_work_t *w)
{
    w->answer->reply.number = w->entry != NULL;
    if (w->entry != NULL)
        bt_local_drop(w->map, w->shard, w->entry);
    w->entry = NULL;
}

/* ---- leases ---- */
static bool is_held(const bt_local_work_t *w)
{
    return w->entry != NULL && w->entry->item != NULL && w->now_ms < w->entry->used;
}

static bool is_mine(const bt_local_work_t *w)
{
    return bt_str_eq(bt_local_item_value(w->entry->item), w->op->value);
}

/* Later than any before it, and later than now: it grows over a lost store too. */
uint64_t bt_local_next_fence(bt_local_work_t *w)
{
    uint64_t last = atomic_load(&w->local->fence), next;

    do
        next = last + 1 > w->now_ms ? last + 1 : w->now_ms;
    while (!atomic_compare_exchange_weak(&w->local->fence, &last, next));
    return next;
}

static void lease_take(bt_local_work_t *w)
{
    bt_local_item_t *owner;

    if (bt_local_want(w, BT_LOCAL_LEASE, true) != 0)
        return;
    if (is_held(w) && !is_mine(w)) {
        bt_local_put_text(w, bt_local_item_value(w->entry->item));
        return;
    }
    if (!is_held(w)) {
        int rc = bt_local_item_new(w->map, BT_STR_NULL, w->op->value, &owner);
        if (rc != 0) {
            bt_local_full(w, rc);
            return;
        }
        bt_local_item_free(w->map, w->entry->item);
        w->entry->item = owner;
        w->entry->number = bt_local_next_fence(w);
    }
    w->entry->used = w->entry->until_ms = bt_local_end_of(w, bt_store_ttl_ms(w->op));
    w->answer->reply.number = (int64_t) w->entry->number;
}

static void lease_drop(bt_local_work_t *w)
{
    if (bt_local_want(w, BT_LOCAL_LEASE, false) != 0 || !is_held(w) || !is_mine(w))
        return;
    w->answer->reply.number = 1;
    bt_local_drop(w->map, w->shard, w->entry);
    w->entry = NULL;
}

/* ---- windows ---- */
static void window_take(bt_local_work_t *w)
{
    const bt_store_op_t *op = w->op;
    bt_store_reply_t *reply = &w->answer->reply;
    uint64_t window = w->now_ms / op->window_ms;

    if (bt_local_want(w, BT_LOCAL_WINDOW, true) != 0)
        return;
    if (w->entry->number != window)
        w->entry->used = 0;
    uint64_t limit = (uint64_t) op->limit, used = w->entry->used;
    uint64_t left = used < limit ? limit - used : 0;
    uint64_t granted = left < (uint64_t) op->amount ? left : (uint64_t) op->amount;
    w->entry->number = window;
    w->entry->used = used + granted;
    w->entry->until_ms = (window + 1) * op->window_ms;
    reply->number = (int64_t) granted;
    reply->rest = (int64_t) (left - granted);
    reply->window = window;
    reply->left_ms = w->entry->until_ms - w->now_ms;
}

static void window_give(bt_local_work_t *w)
{
    const bt_store_op_t *op = w->op;

    if (bt_local_want(w, BT_LOCAL_WINDOW, false) != 0 || w->entry == NULL ||
        w->entry->number != op->window || w->now_ms / op->window_ms != op->window)
        return;
    uint64_t back = (uint64_t) op->amount;
    if (back > w->entry->used)
        back = w->entry->used;
    w->entry->used -= back;
    w->answer->reply.number = (int64_t) back;
}

/* ---- the store ---- */
static void carry_out(bt_local_work_t *w)
{
    switch (w->op->what) {
    case BT_STORE_COUNTER_ADD:
        counter_add(w);
        break;
    case BT_STORE_CELL_GET:
        cell_get(w);
        break;
    case BT_STORE_CELL_SET:
        cell_set(w);
        break;
    case BT_STORE_CELL_DROP:
        cell_drop(w);
        break;
    case BT_STORE_LEASE_TAKE:
        lease_take(w);
        break;
    case BT_STORE_LEASE_DROP:
        lease_drop(w);
        break;
    case BT_STORE_WINDOW_TAKE:
        window_take(w);
        break;
    case BT_STORE_WINDOW_GIVE:
        window_give(w);
        break;
    case BT_STORE_TABLE_PUT:
        bt_local_do_table_put(w);
        break;
    case BT_STORE_TABLE_DROP:
        bt_local_do_table_drop(w);
        break;
    case BT_STORE_TABLE_ALL:
        bt_local_do_table_all(w);
        break;
    case BT_STORE_TABLE_SYNC:
        if (bt_local_do_table_put(w) == 0)
            bt_local_do_table_all(w);
        break;
    case BT_STORE_LOG_ADD:
        bt_local_do_log_add(w);
        break;
    case BT_STORE_LOG_READ:
        bt_local_do_log_read(w);
        break;
    }
}

/* An entry that holds nothing is none: what a refused op made, or an empty table. */
static void tidy(bt_local_work_t *w)
{
    bt_local_entry_t *e = w->entry;
    bool is_empty =
        e != NULL && (((e->type == BT_LOCAL_TABLE || e->type == BT_LOCAL_LOG) && e->count == 0) ||
                      (e->type == BT_LOCAL_LEASE && e->item == NULL) || e->type == BT_LOCAL_NEW);

    if (is_empty)
        bt_local_drop(w->map, w->shard, e);
}

static void finish(bt_local_work_t *w)
{
    bt_store_reply_t *reply = &w->answer->reply;
    size_t n = reply->row_count > 0 ? reply->text.n : w->answer->bytes.len;

    reply->text = (bt_str_t){w->answer->bytes.data, n};
    if (w->answer->bytes.failed)
        *reply = (bt_store_reply_t){.rc = BT_E_NOMEM};
}

static void work(bt_local_work_t *w)
{
    w->is_full = false;
    w->shard = bt_local_lock(w->map, w->name, &w->hash);
    w->entry = bt_local_find(w->map, w->shard, w->hash, w->name, w->now_ms);
    carry_out(w);
    tidy(w);
    pthread_mutex_unlock(&w->shard->lock);
}

static void submit(bt_store_client_t *client, bt_store_op_t *op)
{
    char name[BT_STORE_SPACE_MAX + 1 + BT_STORE_KEY_MAX];
    bt_local_work_t w = {.op = op, .local = client->store->inner};

    w.answer = bt_store_answer_get(client);
    if (w.answer == NULL) {
        bt_store_settle(op, NULL);
        return;
    }
    memcpy(name, op->space.p, op->space.n);
    name[op->space.n] = '}'; /* no space holds it */
    memcpy(name + op->space.n + 1, op->key.p, op->key.n);
    w.name = (bt_str_t){name, op->space.n + 1 + op->key.n};
    w.map = &w.local->map;
    w.now_ms = bt_clock_ms() + w.local->clock_ahead_ms;
    work(&w);
    if (w.is_full && bt_local_map_sweep(w.map, w.now_ms)) {
        memset(&w.answer->reply, 0, sizeof(w.answer->reply));
        w.answer->bytes.len = 0;
        work(&w);
    }
    finish(&w);
    bt_store_settle(op, w.answer);
}

static int client_make(bt_store_client_t **client_p, bt_store_t *store)
{
    (void) store;
    *client_p = calloc(1, sizeof(**client_p));
    return *client_p != NULL ? 0 : BT_E_NOMEM;
}

static void client_start(bt_store_client_t *client)
{
    bt_store_client_health(client, BT_STORE_UP, "");
}

/* Nothing is ever under way here. */
static void forget(bt_store_client_t *client, bt_store_op_t *op)
{
    (void) client;
    (void) op;
}

static void look(bt_store_client_t *client)
{
    (void) client;
}

static void close_local(bt_store_t *store)
{
    bt_local_t *local = store->inner;

    bt_local_map_fini(&local->map);
    free(local);
}

const bt_store_kind_t bt_store_local_kind = {.client_make = client_make,
                                             .client_start = client_start,
                                             .submit = submit,
                                             .forget = forget,
                                             .look = look,
                                             .client_stop = bt_store_client_gone,
                                             .close = close_local};

int bt_store_local_open(bt_store_t *store)
{
    bt_local_t *local = calloc(1, sizeof(*local));
    int rc = local != NULL ? bt_local_map_init(&local->map) : BT_E_NOMEM;

    if (rc != 0) {
        free(local);
        return rc;
    }
    local->clock_ahead_ms = bt_clock_wall_ms() - bt_clock_ms();
    store->inner = local;
    store->kind = &bt_store_local_kind;
    return 0;
}

void bt_store_local_bound(bt_store_t *store, size_t items, size_t bytes)
{
    bt_local_t *local = store->inner;

    local->map.items_max = items;
    local->map.bytes_max = bytes;
}
