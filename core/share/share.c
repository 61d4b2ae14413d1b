/* share.c - the beat, and a share's life.
 *
 *      timer -> beat: every part asks (one pipelined write) -> answers, applied as they come -> the last one: the beat is counted
 *
 * A part whose answer has not come is passed over, so a slow store has one question of each part at most. The timer goes on
 * whatever the store does; nothing is queued for a store that is away, because every beat tells all anew.
 */
#include "share/share_impl.h"

#include "base/err.h"
#include "base/log.h"
#include "base/rand.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define INTERVAL_MS 100
#define EXPIRY_MS 2000

bool bt_share_is_own(const bt_share_t *share, bt_str_t field)
{
    return bt_str_eq(field, bt_str(share->field));
}

/* ---- asking ---- */

static void note_answer(bt_share_t *share, const bt_store_reply_t *reply)
{
    share->is_up = reply->rc == 0;
    share->has_failed |= reply->rc != 0;
    if (--share->waiting > 0)
        return;
    atomic_fetch_add_explicit(share->has_failed ? &share->beats_failed : &share->beats, 1,
                              memory_order_relaxed);
    atomic_store_explicit(&share->lag_us, bt_clock_us() - share->beat_us, memory_order_relaxed);
}

/* Of all parts, one after the other; NULL behind the last. */
static bt_share_ask_t *ask_at(bt_share_t *share, unsigned i)
{
    bt_share_ask_t *const asks[] = {&share->replicas_ask, &share->load_ask,  &share->health_ask,
                                    &share->workers_ask,  &share->calls_ask, &share->prefix_ask};

    return i < sizeof(asks) / sizeof(asks[0]) ? asks[i] : NULL;
}

static bt_share_ask_t *first_unfit(bt_share_t *share)
{
    bt_share_ask_t *ask;

    for (unsigned i = 0; (ask = ask_at(share, i)) != NULL && !ask->is_unfit; i++) {}
    return ask;
}

/* The store is well, but somebody else has written where this part's key is: nobody but people can put that right. The first of several is named; each is heard of
 * again with its next beat, so the line follows what is put right. */
static void note_fit(bt_share_t *share, bt_share_ask_t *ask, const bt_store_reply_t *reply)
{
    char line[200], more[32] = "";

    if (reply->rc == BT_E_INVAL) {
        share->unfit += !ask->is_unfit;
        ask->is_unfit = true;
        if (ask != first_unfit(share))
            return;
        if (share->unfit > 1)
            snprintf(more, sizeof(more), " (and %u more)", share->unfit - 1);
        snprintf(line, sizeof(line), "baton:{%s}:%.*s%s is of no use: %s", share->space,
                 BT_STR_ARG(ask->op.key), more, reply->error);
        bt_store_client_complain(share->client, line);
    } else if (reply->rc == 0 && ask->is_unfit) {
        ask->is_unfit = false;
        if (--share->unfit == 0)
            bt_store_client_complain(share->client, NULL);
    }
}

static void on_answer(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    bt_share_ask_t *ask = bt_container_of(op, bt_share_ask_t, op);
    bt_share_t *share = ask->share;

    ask->is_out = false;
    note_fit(share, ask, reply);
    ask->done(share, reply);
    note_answer(share, reply);
}

void bt_share_ask(bt_share_t *share, bt_share_ask_t *ask, bt_store_op_t op,
                  void (*done)(bt_share_t *share, const bt_store_reply_t *reply))
{
    op.space = bt_str(share->space);
    op.cb = on_answer;
    ask->op = op; /* its key is a literal: it is named when it is of no use */
    ask->share = share;
    ask->done = done;
    ask->is_out = true;
    share->waiting++;
    bt_store_do(share->client, &ask->op);
}

bool bt_share_put(bt_share_t *share, bt_store_op_t op)
{
    op.space = bt_str(share->space);
    return bt_store_send(share->client, &op) == 0;
}

/* ---- the beat ---- */

/* Somewhat less than the interval, so that replicas that were started together drift apart. */
static uint64_t next_ms(const bt_share_t *share)
{
    return share->interval_ms - bt_rand_below(share->interval_ms / 8 + 1);
}

static void on_beat(bt_timer_t *timer)
{
    bt_share_t *share = bt_container_of(timer, bt_share_t, beat);

    bt_timer_start(timer, next_ms(share));
    if (share->waiting == 0) {
        share->beat_us = bt_clock_us();
        share->has_failed = false;
    }
    if (bt_clock_ms() - share->answered_ms > share->expiry_ms)
        bt_share_load_forget(share);
    bt_share_replicas_beat(share);
    bt_share_load_beat(share);
    bt_share_health_beat(share);
    bt_share_rows_beat(share);
    bt_share_calls_beat(share);
    bt_share_prefix_beat(share);
}

/* What was told before may be lost. */
static void on_up(void *user)
{
    bt_share_t *share = user;

    if (share->is_closing)
        return;
    bt_share_rows_look(share);
    bt_timer_start(&share->beat, 0);
}

/* ---- life ---- */

static char *copy(const char *text)
{
    return text != NULL ? bt_str_dup(bt_str(text)) : NULL;
}

static void free_share(bt_share_t *share)
{
    bt_share_replicas_fini(share);
    bt_share_rows_fini(share);
    bt_fleet_unref(share->fleet);
    bt_text_fini(&share->out);
    free(share->places);
    free(share->by_id);
    free(share->space);
    free(share->replica);
    free(share->admin_url);
    free(share->version);
    free(share->policies);
    free(share->rings);
    free(share);
}

static int fill(bt_share_t *share, const bt_share_config_t *config)
{
    share->space = copy(config->space != NULL ? config->space : "fleet");
    share->replica = copy(config->replica);
    share->admin_url = copy(config->admin_url);
    share->version = copy(config->version);
    if (share->space == NULL || share->replica == NULL ||
        (config->admin_url != NULL && share->admin_url == NULL) ||
        (config->version != NULL && share->version == NULL))
        return BT_E_NOMEM;
    share->store = config->store;
    share->registry = config->registry;
    share->quotas = config->quotas;
    share->loops = config->loops;
    share->interval_ms = config->interval_ms > 0 ? config->interval_ms : INTERVAL_MS;
    share->expiry_ms = config->expiry_ms > 0 ? config->expiry_ms : EXPIRY_MS;
    share->on_hint = config->on_hint;
    share->on_call = config->on_call;
    share->user = config->user;
    bt_rand_secure(&share->incarnation, sizeof(share->incarnation));
    snprintf(share->field, sizeof(share->field), "%.*s#%016" PRIx64, BT_SHARE_NAME_MAX,
             share->replica, share->incarnation);
    share->started_wall_ms = bt_clock_wall_ms();
    return 0;
}

static int refuse(char *err, size_t err_size, const char *why)
{
    snprintf(err, err_size, "%s", why);
    return BT_E_CONFIG;
}

static int check(const bt_share_config_t *config, char *err, size_t err_size)
{
    size_t n = config->replica != NULL ? strlen(config->replica) : 0;
    size_t space_n = config->space != NULL ? strlen(config->space) : 1;

    if (n == 0 || n > BT_SHARE_NAME_MAX || strchr(config->replica, '#') != NULL ||
        !bt_share_is_name(bt_str(config->replica)))
        return refuse(err, err_size,
                      "a replica's name has 1 to 128 bytes, no '#' and no control character");
    if (space_n == 0 || space_n > 100 ||
        (config->space != NULL && strpbrk(config->space, "{}") != NULL))
        return refuse(err, err_size, "a fleet's name has 1 to 100 bytes and no brace");
    return 0;
}

int bt_share_new(bt_share_t **share_p, bt_loop_t *control, const bt_share_config_t *config,
                 char *err, size_t err_size)
{
    int rc = check(config, err, err_size);
    if (rc < 0)
        return rc;
    bt_share_t *share = calloc(1, sizeof(*share));
    if (share == NULL)
        goto err_memory;
    share->control = control;
    bt_list_init(&share->peers);
    bt_text_init(&share->out);
    bt_timer_init(control, &share->beat, on_beat);
    if (fill(share, config) < 0 || bt_share_replicas_init(share) < 0)
        goto err_share;
    atomic_init(&share->replica_count, 1);
    snprintf(share->prefix_at, sizeof(share->prefix_at),
             "0"); /* what is still there is worth reading */
    share->answered_ms = bt_clock_ms();
    if (bt_store_client_new(&share->client, share->store, control, on_up, share) < 0)
        goto err_share;
    bt_timer_start(&share->beat, next_ms(share));
    *share_p = share;
    return 0;
err_share:
    free_share(share);
err_memory:
    snprintf(err, err_size, "%s", bt_err_text(BT_E_NOMEM));
    return BT_E_NOMEM;
}

void bt_share_set_fleet(bt_share_t *share, bt_fleet_t *fleet)
{
    if (bt_share_places(share, fleet) < 0) {
        bt_log_error("share", "out of memory: others' loads of the new workers are not known");
        return;
    }
    bt_fleet_ref(fleet);
    bt_fleet_unref(share->fleet);
    share->fleet = fleet;
    bt_share_rows_on_fleet(share);
}

int bt_share_add_ring(bt_share_t *share, bt_prefix_ring_t *ring)
{
    bt_prefix_ring_t **rings =
        realloc(share->rings, (share->ring_count + 1) * sizeof(bt_prefix_ring_t *));

    if (rings == NULL)
        return BT_E_NOMEM;
    share->rings = rings;
    rings[share->ring_count++] = ring;
    return 0;
}

void bt_share_set_policies(bt_share_t *share, const char *hash)
{
    free(share->policies);
    share->policies = copy(hash);
}

/* ---- closing ---- */

static void on_client_gone(void *user)
{
    bt_share_t *share = user;
    void (*done)(void *) = share->done;
    void *done_user = share->done_user;

    free_share(share);
    if (done != NULL)
        done(done_user);
}

static void on_dropped(bt_share_t *share, const bt_store_reply_t *reply)
{
    (void) reply;
    if (--share->drops == 0)
        bt_store_client_free(share->client, on_client_gone, share);
}

static void cancel(bt_share_ask_t *ask)
{
    if (ask->is_out)
        bt_store_cancel(&ask->op);
    ask->is_out = false;
}

static void cancel_all(bt_share_t *share)
{
    bt_share_ask_t *ask;

    for (unsigned i = 0; (ask = ask_at(share, i)) != NULL; i++)
        cancel(ask);
}

void bt_share_close(bt_share_t *share, void (*done)(void *user), void *user)
{
    static const char *const tables[] = {"replicas", "load", "health"};
    bt_share_ask_t *const asks[] = {&share->replicas_ask, &share->load_ask, &share->health_ask};

    share->is_closing = true;
    share->done = done;
    share->done_user = user;
    bt_timer_stop(&share->beat);
    cancel_all(share);
    bt_share_load_forget(share);
    share->drops = 3;
    share->waiting = 0;
    for (unsigned i = 0; i < 3; i++)
        bt_share_ask(share, asks[i],
                     (bt_store_op_t){.what = BT_STORE_TABLE_DROP,
                                     .key = bt_str(tables[i]),
                                     .field = bt_str(share->field)},
                     on_dropped);
}

/* ---- looking ---- */

unsigned bt_share_replicas(const bt_share_t *share)
{
    return atomic_load_explicit(&share->replica_count, memory_order_relaxed);
}

void bt_share_stats(const bt_share_t *share, bt_share_stats_t *stats_p)
{
#define READ(name) atomic_load_explicit(&share->name, memory_order_relaxed)
    uint64_t dropped = READ(prefix_dropped);

    for (unsigned i = 0; i < share->ring_count; i++)
        dropped += bt_prefix_ring_dropped(share->rings[i]);
    *stats_p = (bt_share_stats_t){.beats = READ(beats),
                                  .beats_failed = READ(beats_failed),
                                  .replicas = READ(replica_count),
                                  .prefix_sent = READ(prefix_sent),
                                  .prefix_received = READ(prefix_received),
                                  .prefix_dropped = dropped,
                                  .calls_sent = READ(calls_sent),
                                  .calls_received = READ(calls_received),
                                  .lag_us = READ(lag_us)};
#undef READ
}

void bt_share_describe(const bt_share_t *share, bt_text_t *out)
{
    static const char *const words[] = {"up", "starting", "degraded", "away"};
    char why[256];
    enum bt_store_health health = bt_store_health(share->store, why, sizeof(why));
    bt_share_stats_t stats;

    bt_share_stats(share, &stats);
    bt_text_puts(out, "{\"replica\":");
    bt_text_json_str(out, bt_str(share->replica));
    bt_text_printf(out, ",\"incarnation\":\"%016" PRIx64 "\"", share->incarnation);
    bt_text_json_member(out, "fleet", share->space);
    bt_text_printf(out, ",\"store\":{\"state\":\"%s\"", words[health]);
    bt_text_json_member(out, "why", why[0] != '\0' ? why : NULL);
    bt_text_printf(out,
                   "},\"interval_ms\":%" PRIu64 ",\"expiry_ms\":%" PRIu64 ",\"lag_us\":%" PRIu64
                   ",\"shared_workers\":%u,\"replicas\":[",
                   share->interval_ms, share->expiry_ms, stats.lag_us,
                   bt_share_workers_count(share));
    bt_share_replicas_describe(share, out);
    bt_text_puts(out, "],\"drained\":[");
    bt_share_drains_describe(share, out);
    bt_text_puts(out, "]}\n");
}
