/* What lies in the store about sets and replicas, and what people are told about it. Members that are not known are passed over:
 * a newer version wrote them. */
#include "rollout/rollout_impl.h"

#include "base/err.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const state_names[] = {"proposed", "committed", "aborted"};
static const char *const vote_names[] = {"none", "ok", "no"};

bt_str_t bt_rollout_key(bt_rollout_ask_t *ask, const char *what, uint64_t number)
{
    snprintf(ask->key, sizeof ask->key, "%s:%" PRIu64, what, number);
    return bt_str(ask->key);
}

/* ---- JSON ---- */

/* Cut to fit. */
static void get_text(bt_str_t json, const char *key, char *out, size_t size)
{
    bt_json_item_t item;
    char *all;
    long n = -1;

    out[0] = '\0';
    if (bt_json_get(json, bt_str(key), &item) < 0 || item.type != BT_JSON_STRING)
        return;
    all = malloc(item.value.n + 1);
    if (all != NULL)
        n = bt_json_unescape(item.value, all, item.value.n);
    if (n >= 0) {
        all[n] = '\0';
        bt_str_copy(out, size, all);
    }
    free(all);
}

static unsigned get_name(bt_str_t json, const char *key, const char *const *names, unsigned count)
{
    char value[16];

    get_text(json, key, value, sizeof value);
    for (unsigned i = 0; i < count; i++)
        if (strcmp(names[i], value) == 0)
            return i;
    return 0;
}

/* ---- table `policy` ---- */

void bt_rollout_write_row(const bt_rollout_set_t *set, enum bt_rollout_state state, const char *why,
                          bt_text_t *out)
{
    bt_text_printf(out,
                   "{\"previous\":%" PRIu64 ",\"copy_of\":%" PRIu64 ",\"at_ms\":%" PRIu64
                   ",\"state\":\"%s\",\"hash\":\"%s\"",
                   set->previous, set->copy_of, set->at_ms, state_names[state], set->hash);
    bt_text_json_member(out, "by", set->by);
    bt_text_json_member(out, "replica", set->replica);
    bt_text_json_member(out, "why", why);
    bt_text_puts(out, "}");
}

static bool read_row(const bt_store_row_t *from, bt_rollout_row_t *row)
{
    const bt_str_t json = from->value;

    *row = (bt_rollout_row_t){.previous = bt_rollout_get_number(json, "previous"),
                              .copy_of = bt_rollout_get_number(json, "copy_of"),
                              .at_ms = bt_rollout_get_number(json, "at_ms")};
    if (bt_str_u64(from->name, &row->number) < 0 || row->number == 0)
        return false;
    row->state = (enum bt_rollout_state) get_name(json, "state", state_names, 3);
    get_text(json, "hash", row->hash, sizeof row->hash);
    get_text(json, "by", row->by, sizeof row->by);
    get_text(json, "replica", row->replica, sizeof row->replica);
    get_text(json, "why", row->why, sizeof row->why);
    return row->hash[0] != '\0';
}

static int newest_first(const void *a, const void *b)
{
    const bt_rollout_row_t *x = a, *y = b;

    return x->number < y->number ? 1 : x->number > y->number ? -1 : 0;
}

/* The highest numbers are what counts, should there be more rows than anybody wrote. */
void bt_rollout_read_rows(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    bt_rollout_row_t *rows = NULL;
    unsigned count = 0;

    if (reply->row_count > 0 && (rows = calloc(reply->row_count, sizeof *rows)) == NULL)
        return;
    for (unsigned i = 0; i < reply->row_count; i++)
        if (read_row(&reply->rows[i], &rows[count]))
            count++;
    if (count > 1)
        qsort(rows, count, sizeof *rows, newest_first);
    free(r->rows);
    r->rows = rows;
    r->row_count = count < BT_ROLLOUT_ROWS_MAX ? count : BT_ROLLOUT_ROWS_MAX;
}

/* ---- table `policy_votes` ---- */

void bt_rollout_write_report(const bt_rollout_t *r, bt_text_t *out)
{
    char trouble[BT_ROLLOUT_WHY_MAX] = "";

    if (r->trouble[0] != '\0')
        bt_str_copy(trouble, sizeof trouble, r->trouble);
    else if (r->missing > 0)
        snprintf(trouble, sizeof trouble, "the store does not have the texts of set %" PRIu64,
                 r->missing);
    else
        r->ops->trouble(r->user, trouble, sizeof trouble);
    bt_text_printf(out,
                   "{\"number\":%" PRIu64 ",\"pinned\":%s,\"missing\":%" PRIu64
                   ",\"voted_on\":%" PRIu64 ",\"vote\":\"%s\"",
                   r->serving->number, r->is_pinned ? "true" : "false", r->missing,
                   r->look.vote != BT_ROLLOUT_NO_VOTE ? r->look.number : 0,
                   vote_names[r->look.vote]);
    bt_text_json_member(out, "why", r->look.why);
    bt_text_json_member(out, "trouble", trouble);
    bt_text_puts(out, "}");
}

static void read_peer(const bt_store_row_t *from, bt_rollout_peer_t *peer)
{
    const bt_str_t json = from->value;
    bt_json_item_t item;

    *peer = (bt_rollout_peer_t){.number = bt_rollout_get_number(json, "number"),
                                .voted_on = bt_rollout_get_number(json, "voted_on"),
                                .missing = bt_rollout_get_number(json, "missing")};
    snprintf(peer->name, sizeof peer->name, "%.*s", BT_STR_ARG(from->name));
    peer->is_pinned = bt_json_get(json, BT_STR("pinned"), &item) == 0 && item.type == BT_JSON_TRUE;
    peer->vote = (enum bt_rollout_vote) get_name(json, "vote", vote_names, 3);
    get_text(json, "why", peer->why, sizeof peer->why);
    get_text(json, "trouble", peer->trouble, sizeof peer->trouble);
}

static int by_name(const void *a, const void *b)
{
    const bt_rollout_peer_t *x = a, *y = b;

    return strcmp(x->name, y->name);
}

int bt_rollout_read_peers(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    if (reply->row_count > r->peer_cap) {
        bt_rollout_peer_t *peers = realloc(r->peers, reply->row_count * sizeof *peers);
        if (peers == NULL)
            return BT_E_NOMEM;
        r->peers = peers;
        r->peer_cap = reply->row_count;
    }
    r->peer_count = reply->row_count;
    for (unsigned i = 0; i < reply->row_count; i++)
        read_peer(&reply->rows[i], &r->peers[i]);
    if (r->peer_count > 1)
        qsort(r->peers, r->peer_count, sizeof *r->peers, by_name);
    return 0;
}

/* ---- for people ---- */

static void put_text_or_null(bt_text_t *out, const char *key, const char *value)
{
    bt_text_json_member(out, key, value[0] != '\0' ? value : NULL);
}

/* Members of an object that is open. */
void bt_rollout_describe_set(const bt_rollout_set_t *set, bt_text_t *out)
{
    const bt_rollout_file_t *rules = bt_rollout_set_find(set, BT_ROLLOUT_RULES);
    const char *comma = "";

    bt_text_printf(out,
                   "\"number\":%" PRIu64 ",\"previous\":%" PRIu64 ",\"copy_of\":%" PRIu64
                   ",\"at_ms\":%" PRIu64 ",\"hash\":\"%s\"",
                   set->number, set->previous, set->copy_of, set->at_ms, set->hash);
    put_text_or_null(out, "by", set->by);
    put_text_or_null(out, "replica", set->replica);
    bt_text_puts(out, ",\"policies\":[");
    for (unsigned i = 0; i < set->count; i++) {
        if (&set->files[i] == rules)
            continue;
        bt_text_printf(out, "%s{\"hash\":\"%s\",\"bytes\":%zu", comma, set->files[i].hash,
                       set->files[i].size);
        bt_text_json_member(out, "name", set->files[i].name);
        bt_text_puts(out, "}");
        comma = ",";
    }
    if (rules != NULL)
        bt_text_printf(out, "],\"rules\":{\"hash\":\"%s\",\"bytes\":%zu}", rules->hash,
                       rules->size);
    else
        bt_text_puts(out, "],\"rules\":null");
}

void bt_rollout_describe_peers(const bt_rollout_t *r, bt_text_t *out)
{
    bt_text_puts(out, "[");
    for (unsigned i = 0; i < r->peer_count; i++) {
        const bt_rollout_peer_t *peer = &r->peers[i];
        bt_text_printf(
            out, "%s{\"number\":%" PRIu64 ",\"pinned\":%s,\"voted_on\":%" PRIu64 ",\"vote\":\"%s\"",
            i > 0 ? "," : "", peer->number, peer->is_pinned ? "true" : "false", peer->voted_on,
            vote_names[peer->vote]);
        bt_text_json_member(out, "replica", peer->name);
        put_text_or_null(out, "why", peer->why);
        put_text_or_null(out, "error", peer->trouble);
        bt_text_puts(out, "}");
    }
    bt_text_puts(out, "]");
}

static void describe_rows(const bt_rollout_t *r, bt_text_t *out)
{
    for (unsigned i = 0; i < r->row_count; i++) {
        const bt_rollout_row_t *row = &r->rows[i];
        bt_text_printf(out,
                       "%s{\"number\":%" PRIu64 ",\"state\":\"%s\",\"previous\":%" PRIu64
                       ",\"copy_of\":%" PRIu64 ",\"at_ms\":%" PRIu64 ",\"hash\":\"%s\"",
                       i > 0 ? "," : "", row->number, state_names[row->state], row->previous,
                       row->copy_of, row->at_ms, row->hash);
        put_text_or_null(out, "by", row->by);
        put_text_or_null(out, "replica", row->replica);
        put_text_or_null(out, "why", row->why);
        bt_text_puts(out, "}");
    }
}

void bt_rollout_describe(const bt_rollout_t *r, bt_text_t *out)
{
    bt_text_puts(out, "{\"fleet\":");
    bt_text_json_str(out, bt_str(r->space));
    bt_text_json_member(out, "replica", r->replica);
    bt_text_puts(out, ",\"serving\":{");
    bt_rollout_describe_set(r->serving, out);
    bt_text_printf(out, "},\"committed\":%" PRIu64 ",\"pinned\":%s", bt_rollout_committed(r),
                   r->is_pinned ? "true" : "false");
    put_text_or_null(out, "error", r->trouble);
    put_text_or_null(out, "store_error", r->is_unavailable ? r->away : "");
    bt_text_puts(out, ",\"replicas\":");
    bt_rollout_describe_peers(r, out);
    bt_text_puts(out, ",\"sets\":[");
    describe_rows(r, out);
    bt_text_puts(out, "]}\n");
}
