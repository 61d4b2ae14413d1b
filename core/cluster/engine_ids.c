#include "cluster/engine_ids.h"

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "cluster/changes.h"

#include <stdlib.h>

#define RANKS_MAX 1024

static int read_rank(const bt_json_item_t *item, bt_engine_id_t *ids)
{
    bt_json_item_t id;
    uint64_t rank;
    long n;

    if (bt_str_u64(item->key, &rank) < 0 || rank >= RANKS_MAX || item->type != BT_JSON_OBJECT ||
        bt_json_get(item->value, BT_STR("engine_id"), &id) < 0 || id.type != BT_JSON_STRING)
        return BT_E_INVAL;
    n = bt_json_unescape(id.value, ids[rank].text, sizeof ids[rank].text - 1);
    return n > 0 ? (int) rank + 1 : BT_E_INVAL;
}

/* How many ranks there are, or BT_E_INVAL. */
static int read_all(bt_str_t json, bt_engine_id_t *ids)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    int count = 0, rc = bt_json_object(&c, json);

    while (rc >= 0 && (rc = bt_json_next(&c, &item)) == 1) {
        rc = read_rank(&item, ids);
        count = rc > count ? rc : count;
    }
    return rc < 0 || count == 0 ? BT_E_INVAL : count;
}

static void note_ranks(const bt_worker_t *w, unsigned count)
{
    if (count > w->dp_size)
        bt_log_warn("cluster",
                    "worker %s has %u data-parallel ranks, but only %u are used: set dp_size = %u",
                    w->name, count, w->dp_size, count);
}

/* A rank that was known is gone, or has another id; ranks that come later end nobody's attempt. */
static bool has_restarted(const bt_worker_t *w, const bt_engine_id_t *ids)
{
    for (unsigned i = 0; i < w->engine_id_count; i++)
        if (w->engine_ids[i].text[0] != '\0' && strcmp(w->engine_ids[i].text, ids[i].text) != 0)
            return true;
    return false;
}

int bt_engine_ids_read(bt_worker_t *w, bt_str_t json)
{
    bt_engine_id_t *ids = calloc(RANKS_MAX, sizeof *ids), *old;
    int count = ids != NULL ? read_all(json, ids) : BT_E_NOMEM;
    bool is_new;

    if (count < 0) {
        free(ids);
        return count;
    }
    pthread_mutex_lock(&w->lock);
    is_new = w->engine_id_count != (unsigned) count ||
             memcmp(w->engine_ids, ids, (size_t) count * sizeof *ids) != 0;
    old = is_new ? w->engine_ids : ids;
    if (is_new) {
        if (has_restarted(w, ids)) {
            atomic_fetch_add(&w->engine_ids_version, 1);
            bt_worker_restarted(w);
        }
        w->engine_ids = ids;
        w->engine_id_count = (unsigned) count;
    }
    pthread_mutex_unlock(&w->lock);
    free(old);
    if (is_new)
        note_ranks(w, (unsigned) count);
    if (!atomic_exchange(&w->has_engine_ids, true)) {
        bt_worker_note_service(w);
        bt_workers_changed();
    }
    return 0;
}

bool bt_engine_ids_get(bt_worker_t *w, unsigned rank, char *out, size_t size)
{
    bool is_known;

    pthread_mutex_lock(&w->lock);
    is_known = rank < w->engine_id_count && w->engine_ids[rank].text[0] != '\0';
    if (is_known)
        bt_str_copy(out, size, w->engine_ids[rank].text);
    pthread_mutex_unlock(&w->lock);
    return is_known;
}
