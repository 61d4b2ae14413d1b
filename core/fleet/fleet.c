/* fleet.c - the heartbeat, and the fleet's life.
 *
 *      timer -> heartbeat: every part asks (one pipelined write) -> answers, applied as they come -> the last one: the heartbeat is counted
 *
 * A part whose answer has not come is passed over, so a slow store has one question of each part at most. The timer goes on
 * whatever the store does; nothing is queued for a store that is unavailable, because every heartbeat tells all anew.
 */
#include "fleet/fleet_impl.h"

#include "base/err.h"
#include "base/log.h"
#include "base/rand.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define INTERVAL_MS 100
#define EXPIRY_MS 2000

bool bt_fleet_is_own(const bt_fleet_t *fleet, bt_str_t field)
{
    return bt_str_eq(field, bt_str(fleet->field));
}

/* ---- asking ---- */

static void note_answer(bt_fleet_t *fleet, const bt_store_reply_t *reply)
{
    fleet->is_up = reply->rc == 0;
    fleet->has_failed |= reply->rc != 0;
    if (--fleet->waiting > 0)
        return;
    atomic_fetch_add_explicit(fleet->has_failed ? &fleet->heartbeats_failed : &fleet->heartbeats, 1,
                              memory_order_relaxed);
    atomic_store_explicit(&fleet->lag_us, bt_clock_us() - fleet->heartbeat_us,
                          memory_order_relaxed);
}

/* Of all parts, one after the other; NULL behind the last. */
static bt_fleet_query_t *ask_at(bt_fleet_t *fleet, unsigned i)
{
    bt_fleet_query_t *const asks[] = {&fleet->replicas_query, &fleet->load_query,
                                      &fleet->health_query,   &fleet->workers_query,
                                      &fleet->calls_query,    &fleet->prefix_query};

    return i < sizeof(asks) / sizeof(asks[0]) ? asks[i] : NULL;
}

static bt_fleet_query_t *first_unfit(bt_fleet_t *fleet)
{
    bt_fleet_query_t *ask;

    for (unsigned i = 0; (ask = ask_at(fleet, i)) != NULL && !ask->is_unfit; i++) {}
    return ask;
}

/* The store is well, but somebody else has written where this part's key is: nobody but people can put that right. The first of several is named; each is heard of
 * again with its next heartbeat, so the line follows what is put right. */
static void note_fit(bt_fleet_t *fleet, bt_fleet_query_t *ask, const bt_store_reply_t *reply)
{
    char line[200], more[32] = "";

    if (reply->rc == BT_E_INVAL) {
        fleet->unfit += !ask->is_unfit;
        ask->is_unfit = true;
        if (ask != first_unfit(fleet))
            return;
        if (fleet->unfit > 1)
            snprintf(more, sizeof(more), " (and %u more)", fleet->unfit - 1);
        snprintf(line, sizeof(line), "baton:{%s}:%.*s%s is of no use: %s", fleet->space,
                 BT_STR_ARG(ask->op.key), more, reply->error);
        bt_store_client_complain(fleet->client, line);
    } else if (reply->rc == 0 && ask->is_unfit) {
        ask->is_unfit = false;
        if (--fleet->unfit == 0)
            bt_store_client_complain(fleet->client, NULL);
    }
}

static void on_answer(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    bt_fleet_query_t *ask = bt_container_of(op, bt_fleet_query_t, op);
    bt_fleet_t *fleet = ask->fleet;

    ask->is_out = false;
    note_fit(fleet, ask, reply);
    ask->done(fleet, reply);
    note_answer(fleet, reply);
}

void bt_fleet_query(bt_fleet_t *fleet, bt_fleet_query_t *ask, bt_store_op_t op,
                    void (*done)(bt_fleet_t *fleet, const bt_store_reply_t *reply))
{
    op.space = bt_str(fleet->space);
    op.cb = on_answer;
    ask->op = op; /* its key is a literal: it is named when it is of no use */
    ask->fleet = fleet;
    ask->done = done;
    ask->is_out = true;
    fleet->waiting++;
    bt_store_do(fleet->client, &ask->op);
}

bool bt_fleet_put(bt_fleet_t *fleet, bt_store_op_t op)
{
    op.space = bt_str(fleet->space);
    return bt_store_send(fleet->client, &op) == 0;
}

/* ---- the heartbeat ---- */

/* Somewhat less than the interval, so that replicas that were started together drift apart. */
static uint64_t next_ms(const bt_fleet_t *fleet)
{
    return fleet->interval_ms - bt_rand_below(fleet->interval_ms / 8 + 1);
}

static void on_heartbeat(bt_timer_t *timer)
{
    bt_fleet_t *fleet = bt_container_of(timer, bt_fleet_t, heartbeat);

    bt_timer_start(timer, next_ms(fleet));
    if (fleet->waiting == 0) {
        fleet->heartbeat_us = bt_clock_us();
        fleet->has_failed = false;
    }
    if (bt_clock_ms() - fleet->answered_ms > fleet->expiry_ms)
        bt_fleet_load_forget(fleet);
    bt_fleet_replicas_tick(fleet);
    bt_fleet_load_tick(fleet);
    bt_fleet_health_tick(fleet);
    bt_fleet_rows_tick(fleet);
    bt_fleet_calls_tick(fleet);
    bt_fleet_prefix_tick(fleet);
}

/* What was told before may be lost. */
static void on_up(void *user)
{
    bt_fleet_t *fleet = user;

    if (fleet->is_closing)
        return;
    bt_fleet_rows_read(fleet);
    bt_timer_start(&fleet->heartbeat, 0);
}

/* ---- life ---- */

static char *copy(const char *text)
{
    return text != NULL ? bt_str_dup(bt_str(text)) : NULL;
}

static void free_share(bt_fleet_t *fleet)
{
    bt_fleet_replicas_fini(fleet);
    bt_fleet_rows_fini(fleet);
    bt_workers_unref(fleet->workers);
    bt_text_fini(&fleet->out);
    free(fleet->worker_keys);
    free(fleet->by_id);
    free(fleet->space);
    free(fleet->replica);
    free(fleet->admin_url);
    free(fleet->version);
    free(fleet->rings);
    free(fleet);
}

static int fill(bt_fleet_t *fleet, const bt_fleet_config_t *config)
{
    fleet->space = copy(config->space != NULL ? config->space : "fleet");
    fleet->replica = copy(config->replica);
    fleet->admin_url = copy(config->admin_url);
    fleet->version = copy(config->version);
    if (fleet->space == NULL || fleet->replica == NULL ||
        (config->admin_url != NULL && fleet->admin_url == NULL) ||
        (config->version != NULL && fleet->version == NULL))
        return BT_E_NOMEM;
    fleet->store = config->store;
    fleet->registry = config->registry;
    fleet->quotas = config->quotas;
    fleet->loops = config->loops;
    fleet->interval_ms = config->interval_ms > 0 ? config->interval_ms : INTERVAL_MS;
    fleet->expiry_ms = config->expiry_ms > 0 ? config->expiry_ms : EXPIRY_MS;
    fleet->on_hint = config->on_hint;
    fleet->on_call = config->on_call;
    fleet->on_first_read = config->on_first_read;
    fleet->begin_role = config->begin_role;
    fleet->user = config->user;
    bt_rand_secure(&fleet->incarnation, sizeof(fleet->incarnation));
    snprintf(fleet->field, sizeof(fleet->field), "%.*s#%016" PRIx64, BT_FLEET_NAME_MAX,
             fleet->replica, fleet->incarnation);
    fleet->started_wall_ms = bt_clock_wall_ms();
    return 0;
}

static int refuse(char *err, size_t err_size, const char *why)
{
    snprintf(err, err_size, "%s", why);
    return BT_E_CONFIG;
}

static int check(const bt_fleet_config_t *config, char *err, size_t err_size)
{
    size_t n = config->replica != NULL ? strlen(config->replica) : 0;
    size_t space_n = config->space != NULL ? strlen(config->space) : 1;

    if (n == 0 || n > BT_FLEET_NAME_MAX || strchr(config->replica, '#') != NULL ||
        !bt_fleet_is_name(bt_str(config->replica)))
        return refuse(err, err_size,
                      "a replica's name has 1 to 128 bytes, no '#' and no control character");
    if (space_n == 0 || space_n > 100 ||
        (config->space != NULL && strpbrk(config->space, "{}") != NULL))
        return refuse(err, err_size, "a fleet's name has 1 to 100 bytes and no brace");
    return 0;
}

int bt_fleet_new(bt_fleet_t **fleet_p, bt_loop_t *control, const bt_fleet_config_t *config,
                 char *err, size_t err_size)
{
    int rc = check(config, err, err_size);
    if (rc < 0)
        return rc;
    bt_fleet_t *fleet = calloc(1, sizeof(*fleet));
    if (fleet == NULL)
        goto err_memory;
    fleet->control = control;
    bt_list_init(&fleet->peers);
    bt_text_init(&fleet->out);
    bt_timer_init(control, &fleet->heartbeat, on_heartbeat);
    if (fill(fleet, config) < 0 || bt_fleet_replicas_init(fleet) < 0)
        goto err_share;
    atomic_init(&fleet->replica_count, 1);
    snprintf(fleet->prefix_at, sizeof(fleet->prefix_at),
             "0"); /* what is still there is worth reading */
    fleet->answered_ms = bt_clock_ms();
    if (bt_store_client_new(&fleet->client, fleet->store, control, on_up, fleet) < 0)
        goto err_share;
    bt_timer_start(&fleet->heartbeat, next_ms(fleet));
    *fleet_p = fleet;
    return 0;
err_share:
    free_share(fleet);
err_memory:
    snprintf(err, err_size, "%s", bt_err_text(BT_E_NOMEM));
    return BT_E_NOMEM;
}

void bt_fleet_set_workers(bt_fleet_t *fleet, bt_workers_t *workers)
{
    if (bt_worker_keys_build(fleet, workers) < 0) {
        bt_log_error("fleet", "out of memory: others' loads of the new workers are not known");
        return;
    }
    bt_workers_ref(workers);
    bt_workers_unref(fleet->workers);
    fleet->workers = workers;
    bt_fleet_rows_on_fleet(fleet);
}

int bt_fleet_add_ring(bt_fleet_t *fleet, bt_prefix_ring_t *ring)
{
    bt_prefix_ring_t **rings =
        realloc(fleet->rings, (fleet->ring_count + 1) * sizeof(bt_prefix_ring_t *));

    if (rings == NULL)
        return BT_E_NOMEM;
    fleet->rings = rings;
    rings[fleet->ring_count++] = ring;
    return 0;
}

/* ---- closing ---- */

static void on_client_gone(void *user)
{
    bt_fleet_t *fleet = user;
    void (*done)(void *) = fleet->done;
    void *done_user = fleet->done_user;

    free_share(fleet);
    if (done != NULL)
        done(done_user);
}

static void on_dropped(bt_fleet_t *fleet, const bt_store_reply_t *reply)
{
    (void) reply;
    if (--fleet->drops == 0)
        bt_store_client_free(fleet->client, on_client_gone, fleet);
}

static void cancel(bt_fleet_query_t *ask)
{
    if (ask->is_out)
        bt_store_cancel(&ask->op);
    ask->is_out = false;
}

static void cancel_all(bt_fleet_t *fleet)
{
    bt_fleet_query_t *ask;

    for (unsigned i = 0; (ask = ask_at(fleet, i)) != NULL; i++)
        cancel(ask);
}

void bt_fleet_close(bt_fleet_t *fleet, void (*done)(void *user), void *user)
{
    static const char *const tables[] = {"replicas", "load", "health"};
    bt_fleet_query_t *const asks[] = {&fleet->replicas_query, &fleet->load_query,
                                      &fleet->health_query};

    fleet->is_closing = true;
    fleet->done = done;
    fleet->done_user = user;
    bt_timer_stop(&fleet->heartbeat);
    cancel_all(fleet);
    bt_fleet_load_forget(fleet);
    fleet->drops = 3;
    fleet->waiting = 0;
    for (unsigned i = 0; i < 3; i++)
        bt_fleet_query(fleet, asks[i],
                       (bt_store_op_t){.what = BT_STORE_TABLE_DROP,
                                       .key = bt_str(tables[i]),
                                       .field = bt_str(fleet->field)},
                       on_dropped);
}

/* ---- looking ---- */

unsigned bt_fleet_replicas(const bt_fleet_t *fleet)
{
    return atomic_load_explicit(&fleet->replica_count, memory_order_relaxed);
}

void bt_fleet_stats(const bt_fleet_t *fleet, bt_fleet_stats_t *stats_p)
{
#define READ(name) atomic_load_explicit(&fleet->name, memory_order_relaxed)
    uint64_t dropped = READ(prefix_dropped);

    for (unsigned i = 0; i < fleet->ring_count; i++)
        dropped += bt_prefix_ring_dropped(fleet->rings[i]);
    *stats_p = (bt_fleet_stats_t){.heartbeats = READ(heartbeats),
                                  .heartbeats_failed = READ(heartbeats_failed),
                                  .replicas = READ(replica_count),
                                  .prefix_sent = READ(prefix_sent),
                                  .prefix_received = READ(prefix_received),
                                  .prefix_dropped = dropped,
                                  .calls_sent = READ(calls_sent),
                                  .calls_received = READ(calls_received),
                                  .lag_us = READ(lag_us)};
#undef READ
}

void bt_fleet_describe(const bt_fleet_t *fleet, bt_text_t *out)
{
    static const char *const words[] = {"up", "starting", "degraded", "unavailable"};
    char why[256];
    enum bt_store_health health = bt_store_health(fleet->store, why, sizeof(why));
    bt_fleet_stats_t stats;

    bt_fleet_stats(fleet, &stats);
    bt_text_puts(out, "{\"replica\":");
    bt_text_json_str(out, bt_str(fleet->replica));
    bt_text_printf(out, ",\"incarnation\":\"%016" PRIx64 "\"", fleet->incarnation);
    bt_text_json_member(out, "fleet", fleet->space);
    bt_text_printf(out, ",\"store\":{\"state\":\"%s\"", words[health]);
    bt_text_json_member(out, "why", why[0] != '\0' ? why : NULL);
    bt_text_printf(out,
                   "},\"interval_ms\":%" PRIu64 ",\"expiry_ms\":%" PRIu64 ",\"lag_us\":%" PRIu64
                   ",\"shared_workers\":%u,\"replicas\":[",
                   fleet->interval_ms, fleet->expiry_ms, stats.lag_us,
                   bt_fleet_workers_count(fleet));
    bt_fleet_replicas_describe(fleet, out);
    bt_text_puts(out, "],\"roles\":[");
    bt_fleet_roles_describe(fleet, out);
    bt_text_puts(out, "],\"drained\":[");
    bt_fleet_drains_describe(fleet, out);
    bt_text_puts(out, "]}\n");
}
