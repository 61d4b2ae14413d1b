/* redis_client.c - the life of a loop's client: dial, be up, be refused, lose, dial again.
 *
 *      dial -> up -> probe answered OK ------> UP
 *                 -> an op is late ---------> suspect: a probe at once. Answered in time: as before. Late, too:
 *                 -> a probe is late -------> UNAVAILABLE: probes, 100 ms to 1 s apart, until one is answered in time
 *                 -> probe or an op refused -> DEGRADED: a probe a second until one is answered OK and no op was refused since the one before
 *           -> no connection ---------------> UNAVAILABLE (or DEGRADED, when it did answer: a wrong password), back-off, dial
 *
 * The probe is a script that writes: it sees a replica, a full server, missing rights and a loading server by what they answer, at once and also when nobody
 * asks anything. Until a new connection's first probe is answered, and from the first op on whose answer is late, all ops fail at once: a server that is stopped still
 * takes connections, and one that is slow would keep every caller waiting for its whole deadline. Only probes go on then, and one that is answered in time ends it.
 * To be suspect is no matter of health: a server that stands still now and then for little more than a deadline costs the ops of that moment, and no line.
 * Late is what has been with the server for the whole deadline. An op whose time passed while its command still lay here fails all the same, but says nothing of
 * the server: if it is not answered op_ms after it was sent, that is found out then (op_late).
 * A server that says READONLY has been demoted: with Sentinel or a cluster the master is asked for anew at once, without them the name is after five probes. In a
 * cluster the next seed is asked after any five that were refused.
 * The back-offs begin again only after a connection, or a server in time, that has held for a while: one that accepts and drops is not dialled ten times a second,
 * and one whose answers come about as late as the deadline is not up and away ten times a second.
 */
#include "store/redis_client.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/rand.h"

#include <stdio.h>
#include <stdlib.h>

#define BACKOFF_FIRST_MS UINT64_C(100)
#define BACKOFF_MAX_MS UINT64_C(5000)
#define BACKOFF_FAILOVER_MAX_MS UINT64_C(1000) /* a failover ends in seconds */
#define PROBE_AGAIN_MS UINT64_C(1000)
#define REFUSALS_MAX 5

static bt_redis_client_t *client_of(bt_store_client_t *base)
{
    return bt_container_of(base, bt_redis_client_t, base);
}

static bool is_sentinel(const bt_redis_client_t *client)
{
    return client->base.store->where.scheme == BT_STORE_URL_SENTINEL;
}

/* Another server may be the master by now, and somebody can be asked who. */
static bool has_failover(const bt_redis_client_t *client)
{
    return is_sentinel(client) || bt_redis_is_cluster(client);
}

/* ---- dialling ---- */
static uint64_t spread_ms(unsigned times, uint64_t most)
{
    uint64_t ms = BACKOFF_FIRST_MS << (times < 6 ? times : 6);

    if (ms > most)
        ms = most;
    return ms / 2 + bt_rand_below(ms + 1); /* half to one and a half: loops and gateways spread */
}

static uint64_t backoff_ms(const bt_redis_client_t *client)
{
    return spread_ms(client->failures,
                     has_failover(client) ? BACKOFF_FAILOVER_MAX_MS : BACKOFF_MAX_MS);
}

static void stop_probing(bt_redis_client_t *client)
{
    bt_timer_stop(&client->probe_again);
    bt_timer_stop(&client->probe_late);
    bt_timer_stop(&client->op_late);
    client->is_heard = client->is_probing = client->has_erred = false;
    client->base.is_suspect = false;
    client->refusals = client->lates = 0;
}

static void drop_conn(bt_redis_client_t *client, bool is_answer)
{
    if (client->conn != NULL && bt_redis_conn_up_ms(client->conn) >= BT_REDIS_STEADY_MS)
        client->failures = 0;
    client->conn = NULL;
    client->is_up = false;
    client->is_answering = is_answer;
    stop_probing(client);
    bt_redis_cluster_leave_aside(client);
}

/* Not from the first one on: that a seed is not the owner is no news. */
void bt_redis_client_leave(bt_redis_client_t *client, const char *why)
{
    const bool was_well = client->is_heard || client->base.is_suspect;

    drop_conn(client, true);
    if (was_well)
        bt_store_client_health(&client->base, BT_STORE_DEGRADED, why);
}

void bt_redis_client_lost(bt_redis_client_t *client, bool is_answer, const char *why)
{
    char line[BT_STORE_WHY_MAX];

    snprintf(line, sizeof(line), "%s", why);
    drop_conn(client, is_answer);
    client->redirects = 0;
    bt_store_client_health(&client->base, is_answer ? BT_STORE_DEGRADED : BT_STORE_UNAVAILABLE,
                           line);
    bt_timer_start(&client->again, backoff_ms(client));
    client->failures++;
}

static void on_gone(void *user, bool is_answer, const char *why)
{
    bt_redis_client_t *client = user;

    if (bt_redis_conn_up_ms(client->conn) == 0)
        bt_store_count(&client->base.store->connect_failures);
    bt_redis_client_lost(client, is_answer, why);
}

void bt_redis_client_freed(void *user)
{
    bt_redis_client_t *client = user;

    client->conns--;
    if (client->conns > 0 || !client->base.is_stopped)
        return;
    bt_redis_calls_fini(client);
    bt_store_client_gone(&client->base);
}

static void probe(bt_redis_client_t *client);

static void on_up(void *user)
{
    bt_redis_client_t *client = user;

    client->is_up = client->is_answering = true;
    bt_store_count(&client->base.store->connects);
    probe(client);
}

int bt_redis_client_open(bt_redis_client_t *client, bt_redis_conn_t **conn_p, const char *host,
                         unsigned port, const bt_redis_conn_ops_t *ops)
{
    bt_store_t *store = client->base.store;
    bt_redis_store_t *shared = store->inner;
    bt_redis_target_t target = {.host = host,
                                .path = store->where.path,
                                .port = port,
                                .db = store->where.db,
                                .username = store->username,
                                .password = store->password,
                                .tls = shared->tls,
                                .tls_name = shared->tls_name,
                                .turn = client->turn,
                                .must_be_master = is_sentinel(client),
                                .must_be_cluster = bt_redis_is_cluster(client),
                                .connect_ms = store->connect_ms,
                                .silent_ms = 4 * store->op_ms,
                                .round_trips = &store->round_trips};

    int rc = bt_redis_conn_open(conn_p, client->base.loop, &target, ops, client);

    if (rc == 0)
        client->conns++;
    return rc;
}

void bt_redis_client_dial(bt_redis_client_t *client, const char *host, unsigned port)
{
    static const bt_redis_conn_ops_t ops = {on_up, on_gone, bt_redis_client_freed};

    if (bt_redis_client_open(client, &client->conn, host, port, &ops) != 0)
        bt_redis_client_lost(client, false, "out of memory");
}

static void begin(bt_redis_client_t *client)
{
    const bt_store_url_t *where = &client->base.store->where;

    if (bt_redis_is_cluster(client)) {
        bt_redis_cluster_begin(client);
        return;
    }
    if (is_sentinel(client))
        bt_redis_sentinel_query(client);
    else
        bt_redis_client_dial(client, where->hosts[0].host, where->hosts[0].port);
    client->turn++;
}

static void on_again(bt_timer_t *timer)
{
    begin(bt_container_of(timer, bt_redis_client_t, again));
}

/* ---- probing ---- */
void bt_redis_client_redial(bt_redis_client_t *client, const char *why)
{
    bt_redis_conn_t *conn = client->conn;

    bt_redis_client_lost(client, true, why);
    bt_redis_conn_close(conn);
}

void bt_redis_client_refused(bt_redis_client_t *client, bool is_readonly, const char *why)
{
    char line[BT_STORE_WHY_MAX];

    if (!client->is_up)
        return;
    const bool is_strange = !bt_redis_is_cluster(client) && strncmp(why, "MOVED ", 6) == 0;
    snprintf(line, sizeof(line), "%s%s", why,
             is_strange ? ": it is a node of a cluster; write redis-cluster://" : "");
    client->has_erred = true;
    if (is_readonly && has_failover(client)) {
        bt_redis_client_redial(client, line);
        return;
    }
    if (!client->is_heard) /* to an op that was late */
        return;
    bt_store_client_health(&client->base, BT_STORE_DEGRADED, line);
    if (!client->is_probing && !bt_timer_active(&client->probe_again))
        bt_timer_start(&client->probe_again, PROBE_AGAIN_MS);
}

static void set_late(bt_redis_client_t *client)
{
    char line[64];
    bool was_well = client->is_heard || client->base.is_suspect;

    if (was_well && bt_clock_ms() - client->heard_ms >= BT_REDIS_STEADY_MS)
        client->lates = 0;
    client->is_heard = client->base.is_suspect = false;
    snprintf(line, sizeof(line), "no answer in %u ms", client->base.store->op_ms);
    bt_store_client_health(&client->base, BT_STORE_UNAVAILABLE, line);
}

/* Behind one that was late the others would only be late in their turn. */
static void settle_all(bt_store_client_t *base)
{
    bt_list_t *it, *tmp;

    bt_list_each (&base->under_way, it, tmp) {
        bt_store_op_t *op = bt_container_of(it, bt_store_op_t, link);
        bt_redis_forget(base, op);
        bt_store_settle_error(op, BT_E_STORE_UNAVAILABLE, BT_REDIS_LATE);
    }
}

void bt_redis_client_late(bt_store_client_t *base)
{
    bt_redis_client_t *client = client_of(base);

    if (!client->is_up || !client->is_heard)
        return;
    uint64_t waited_ms = bt_redis_conn_waited_us(client->conn) / 1000;
    if (waited_ms < base->store->op_ms) { /* the rest was spent in this loop */
        if (!bt_timer_active(&client->op_late))
            bt_timer_start(&client->op_late, base->store->op_ms - waited_ms);
        return;
    }
    client->is_heard = false;
    base->is_suspect = true;
    settle_all(base);
    if (client->is_probing)
        return; /* that one decides */
    bt_timer_stop(&client->probe_again);
    probe(client);
}

static void on_op_late(bt_timer_t *timer)
{
    bt_redis_client_t *client = bt_container_of(timer, bt_redis_client_t, op_late);

    if (!client->is_up)
        return;
    bt_redis_conn_check(client->conn);
    if (client->is_up && bt_redis_conn_waited_us(client->conn) / 1000 >= client->base.store->op_ms)
        bt_redis_client_late(&client->base);
}

static void on_probe_late(bt_timer_t *timer)
{
    bt_redis_client_t *client = bt_container_of(timer, bt_redis_client_t, probe_late);
    const uint64_t op_ms = client->base.store->op_ms;

    bt_redis_conn_check(client->conn); /* this loop may be the late one */
    if (!client->is_up || !client->is_probing || bt_timer_active(timer))
        return;
    uint64_t waited_ms = bt_redis_conn_waited_us(client->conn) / 1000;
    if (waited_ms < op_ms) { /* it has left late */
        bt_timer_start(timer, op_ms - waited_ms);
        return;
    }
    client->is_probe_late = true;
    set_late(client);
}

/* The last was late: 100 ms to a second, somewhat more or less, so that a server whose stalls come regularly is not met in each. */
static void probe_late_again(bt_redis_client_t *client)
{
    bt_timer_start(&client->probe_again, spread_ms(client->lates, PROBE_AGAIN_MS));
    client->lates++;
}

static void note_heard(bt_redis_client_t *client)
{
    if (!client->is_heard && !client->base.is_suspect)
        client->heard_ms = bt_clock_ms();
    client->is_heard = true;
    client->base.is_suspect = false;
}

/* A node that is cut off from its cluster, or loads, may be the owner no more. One that is full, or lets us not write, is. */
static bool may_have_moved(bt_str_t why)
{
    return bt_str_starts(why, BT_STR("CLUSTERDOWN")) || bt_str_starts(why, BT_STR("LOADING")) ||
           bt_str_starts(why, BT_STR("MASTERDOWN"));
}

static void probe_refused(bt_redis_client_t *client, const redisReply *reply)
{
    const bt_str_t why = {reply->str, reply->len};
    const bool is_readonly = bt_redis_error_of(why) == BT_REDIS_E_READONLY;
    const bool is_elsewhere = is_readonly || (bt_redis_is_cluster(client) && may_have_moved(why));

    client->refusals = is_elsewhere ? client->refusals + 1 : 0;
    if (client->refusals >= REFUSALS_MAX)
        bt_redis_client_redial(client, reply->str); /* its name may lead to another server by now */
    else
        bt_redis_client_refused(client, is_readonly, reply->str);
}

enum verdict { PROBE_OK, PROBE_REFUSED, PROBE_MOVED };

/* In a cluster the probe is also what asks whether this is the slot's owner. One that says ASK is, until the slot has gone. */
static enum verdict judge_probe(const bt_redis_client_t *client, const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ERROR)
        return PROBE_OK;
    if (!bt_redis_is_cluster(client))
        return PROBE_REFUSED;
    switch (bt_redis_error_of((bt_str_t){reply->str, reply->len})) {
    case BT_REDIS_E_MOVED:
        return PROBE_MOVED;
    case BT_REDIS_E_ASK:
        return PROBE_OK;
    default:
        return PROBE_REFUSED;
    }
}

static void on_probed(bt_redis_call_t *call, const redisReply *reply)
{
    bt_redis_client_t *client = bt_container_of(call, bt_redis_client_t, probe);

    client->is_probing = false;
    bt_timer_stop(&client->probe_late);
    if (reply == NULL || !client->is_up)
        return;
    if (client->is_probe_late) {
        probe_late_again(client);
        return;
    }
    const enum verdict verdict = judge_probe(client, reply);
    if (verdict == PROBE_MOVED) {
        bt_redis_cluster_moved(client, reply->str);
        return;
    }
    note_heard(client);
    if (verdict == PROBE_REFUSED) {
        probe_refused(client, reply);
        return;
    }
    client->refusals = 0;
    client->owner = client->at;
    if (client->has_erred)
        bt_timer_start(&client->probe_again, PROBE_AGAIN_MS);
    else
        bt_store_client_health(&client->base, BT_STORE_UP, "");
}

static void probe(bt_redis_client_t *client)
{
    bt_text_t args;
    bt_redis_command_t command = {BT_REDIS_PROBE, 2, &args};
    char key[192];
    size_t n;

    bt_text_init(&args);
    bt_redis_key(bt_str(client->base.store->space), BT_STR("probe"), key, sizeof(key), &n);
    bt_redis_put_arg(&args, BT_STR("1"));
    bt_redis_put_arg(&args, (bt_str_t){key, n});
    client->out.len = 0;
    client->out.failed = false;
    bt_redis_command_put(&command, true, &client->out);
    client->has_erred = false;
    if (client->out.failed) {
        bt_timer_start(&client->probe_again, PROBE_AGAIN_MS);
    } else {
        client->is_probing = true;
        client->is_probe_late = false;
        bt_timer_start(&client->probe_late, client->base.store->op_ms);
        client->probe.cb = on_probed;
        bt_redis_conn_send(client->conn, &client->probe, bt_text_str(&client->out));
    }
    bt_text_fini(&args);
}

static void on_probe_again(bt_timer_t *timer)
{
    bt_redis_client_t *client = bt_container_of(timer, bt_redis_client_t, probe_again);

    if (client->is_up)
        probe(client);
}

/* ---- the kind ---- */
static int client_make(bt_store_client_t **client_p, bt_store_t *store)
{
    bt_redis_client_t *client = calloc(1, sizeof(*client));

    (void) store;
    if (client == NULL)
        return BT_E_NOMEM;
    bt_text_init(&client->out);
    bt_list_init(&client->asked_ops);
    *client_p = &client->base;
    return 0;
}

static void client_start(bt_store_client_t *base)
{
    bt_redis_client_t *client = client_of(base);

    bt_timer_init(base->loop, &client->again, on_again);
    bt_timer_init(base->loop, &client->probe_again, on_probe_again);
    bt_timer_init(base->loop, &client->probe_late, on_probe_late);
    bt_timer_init(base->loop, &client->op_late, on_op_late);
    /* Loops do not all begin with the same one. */
    if (has_failover(client))
        client->seed = (unsigned) bt_rand_below(base->store->where.host_count);
    begin(client);
}

static void look(bt_store_client_t *base)
{
    bt_redis_client_t *client = client_of(base);

    if (client->is_up)
        bt_redis_conn_check(client->conn);
}

static void client_stop(bt_store_client_t *base)
{
    bt_redis_client_t *client = client_of(base);

    bt_timer_stop(&client->again);
    stop_probing(client);
    client->is_up = false;
    if (client->conn != NULL)
        bt_redis_conn_close(client->conn);
    client->conn = NULL;
    bt_redis_cluster_leave_aside(client);
    if (client->conns > 0)
        return;
    bt_redis_calls_fini(client);
    bt_store_client_gone(base);
}

static void close_redis(bt_store_t *store)
{
    bt_redis_store_t *shared = store->inner;

    bt_tls_client_unref(shared->tls);
    free(shared->tls_name);
    free(shared);
}

const bt_store_kind_t bt_store_redis_kind = {.client_make = client_make,
                                             .client_start = client_start,
                                             .submit = bt_redis_submit,
                                             .forget = bt_redis_forget,
                                             .look = look,
                                             .late = bt_redis_client_late,
                                             .client_stop = client_stop,
                                             .close = close_redis};

static int use_tls(bt_redis_store_t *shared, const bt_store_config_t *config, char *err,
                   size_t err_size)
{
    const bt_tls_client_config_t files = {
        .ca = config->tls_ca_file, .cert = config->tls_cert_file, .key = config->tls_key_file};

    if (config->tls_server_name != NULL &&
        (shared->tls_name = bt_str_dup(bt_str(config->tls_server_name))) == NULL)
        return BT_E_NOMEM;
    return bt_tls_client_get(&shared->tls, &files, err, err_size);
}

int bt_store_redis_open(bt_store_t *store, const bt_store_config_t *config, char *err,
                        size_t err_size)
{
    bt_redis_store_t *shared = calloc(1, sizeof(*shared));

    if (shared == NULL)
        return BT_E_NOMEM;
    if (store->where.scheme == BT_STORE_URL_TLS ||
        store->where.scheme == BT_STORE_URL_CLUSTER_TLS) {
        int rc = use_tls(shared, config, err, err_size);
        if (rc != 0) {
            free(shared->tls_name);
            free(shared);
            return rc;
        }
    }
    store->inner = shared;
    store->kind = &bt_store_redis_kind;
    return 0;
}
