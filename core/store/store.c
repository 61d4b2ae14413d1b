/* store.c - what both stores do alike: the checks, the turn's bookkeeping, health, counts.
 *
 *      do -> refused ------------------------------> settled ->(next turn) telling -> cb
 *         -> kind->submit -> answered at once -----> settled
 *                         -> under_way -> answer, deadline, loss -> cb (from the event), or settled (from inside a teardown)
 *
 * A settled op carries its answer in op->inner, so its own struct is all that the next turn needs; cancel takes it from whichever list it is in. The next turn
 * is mail of the loop to itself: a call put off to this turn's end would spin for ever with a caller that asks again from its callback.
 */
#include "store/store_impl.h"

#include "base/err.h"
#include "base/flight.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

#define SPARE_MAX 256
#define SPARE_BYTES ((size_t) 16 * 1024) /* a spare answer keeps at most this much text */

/* ---- a store ---- */
static int copy_z(char **to, const char *given, const char *of_url)
{
    const char *from = given != NULL ? given : of_url;

    if (from == NULL || *from == '\0')
        return 0;
    *to = bt_str_dup(bt_str(from));
    return *to != NULL ? 0 : BT_E_NOMEM;
}

static int fill(bt_store_t *store, const bt_store_config_t *config)
{
    int rc = copy_z(&store->username, config->username, store->where.username);

    if (rc == 0)
        rc = copy_z(&store->password, config->password, store->where.password);
    if (rc == 0)
        rc = copy_z(&store->sentinel_password, config->sentinel_password, NULL);
    if (rc == 0)
        rc = copy_z(&store->space, config->space, "baton");
    store->connect_ms = config->connect_ms > 0 ? config->connect_ms : 2000;
    store->op_ms = config->op_ms > 0 ? config->op_ms : 250;
    store->max_pending = config->max_pending > 0 ? config->max_pending : 65536;
    store->told = BT_STORE_STARTING;
    bt_list_init(&store->clients);
    return rc;
}

static void free_store(bt_store_t *store)
{
    pthread_mutex_destroy(&store->lock);
    bt_store_url_fini(&store->where);
    free(store->username);
    free(store->password);
    free(store->sentinel_password);
    free(store->space);
    free(store);
}

static int no_memory(char *err, size_t err_size)
{
    snprintf(err, err_size, "store: out of memory");
    return BT_E_NOMEM;
}

static int open_kind(bt_store_t *store, const bt_store_config_t *config, char *err, size_t err_size)
{
    if (store->username != NULL && store->password == NULL) {
        snprintf(err, err_size, "store: a user without a password; give both");
        return BT_E_CONFIG;
    }
    if (store->where.scheme == BT_STORE_URL_LOCAL)
        return bt_store_local_open(store);
    return bt_store_redis_open(store, config, err, err_size);
}

int bt_store_open(bt_store_t **store_p, const bt_store_config_t *config, char *err, size_t err_size)
{
    bt_store_t *store = calloc(1, sizeof(*store));

    if (store == NULL)
        return no_memory(err, err_size);
    if (pthread_mutex_init(&store->lock, NULL) != 0) {
        free(store);
        return no_memory(err, err_size);
    }
    if (err_size > 0)
        err[0] = '\0';
    int rc = bt_store_url_parse(&store->where, config->url, err, err_size);
    if (rc == 0)
        rc = fill(store, config);
    if (rc == 0)
        rc = open_kind(store, config, err, err_size);
    if (rc == 0) {
        *store_p = store;
        return 0;
    }
    free_store(store);
    return rc == BT_E_NOMEM ? no_memory(err, err_size) : rc;
}

void bt_store_close(bt_store_t *store)
{
    (void) BT_SOFT(!bt_list_empty(&store->clients));
    store->kind->close(store);
    free_store(store);
}

bool bt_store_is_shared(const bt_store_t *store)
{
    return store->where.scheme != BT_STORE_URL_LOCAL;
}

void bt_store_stats(const bt_store_t *store, bt_store_stats_t *stats_p)
{
#define READ(name) atomic_load_explicit(&store->name, memory_order_relaxed)
    *stats_p = (bt_store_stats_t){.ops = READ(ops),
                                  .errors = READ(errors),
                                  .timeouts = READ(timeouts),
                                  .round_trips = READ(round_trips),
                                  .connects = READ(connects),
                                  .connect_failures = READ(connect_failures),
                                  .rtt_us_ema = READ(rtt_us_ema)};
#undef READ
}

/* ---- health ---- */
/* Under the lock. */
static enum bt_store_health health_of(const bt_store_client_t *client, const char **why_p)
{
    const bool is_of_use = client->complaint[0] == '\0' || client->health >= BT_STORE_DEGRADED;

    *why_p = is_of_use ? client->why : client->complaint;
    return is_of_use ? client->health : BT_STORE_DEGRADED;
}

/* The enum is in order of badness. Under the lock. */
static enum bt_store_health worst_of(const bt_store_t *store, const char **why_p)
{
    enum bt_store_health worst = BT_STORE_UP;
    bt_list_t *it, *tmp;

    *why_p = "";
    if (bt_list_empty(&store->clients)) {
        worst = bt_store_is_shared(store) ? BT_STORE_STARTING : BT_STORE_UP;
        *why_p = worst == BT_STORE_UP ? "" : "has not been reached yet";
    }
    bt_list_each (&store->clients, it, tmp) {
        const char *why;
        enum bt_store_health health = health_of(bt_container_of(it, bt_store_client_t, link), &why);
        if (health <= worst)
            continue;
        worst = health;
        *why_p = why;
    }
    return worst;
}

enum bt_store_health bt_store_health(const bt_store_t *store, char *why, size_t why_size)
{
    bt_store_t *s = (bt_store_t *) store; /* for its lock */
    const char *reason;

    pthread_mutex_lock(&s->lock);
    enum bt_store_health health = worst_of(store, &reason);
    if (why_size > 0)
        bt_str_copy(why, why_size, reason);
    pthread_mutex_unlock(&s->lock);
    return health;
}

/* One line per change, however many clients see it. Under the lock. */
static void say_change(bt_store_t *store)
{
    const char *why;
    enum bt_store_health now = worst_of(store, &why);

    if (now == store->told || now == BT_STORE_STARTING || !bt_store_is_shared(store))
        return;
    store->told = now;
    if (now == BT_STORE_UP)
        bt_log_info("store", "%s is up", store->where.shown);
    else if (now == BT_STORE_UNAVAILABLE)
        bt_log_warn("store", "%s is unavailable, serving on local data: %s", store->where.shown,
                    why);
    else
        bt_log_warn("store", "%s is degraded: %s", store->where.shown, why);
    bt_flight_note(BT_FLIGHT_STORE, 0, "%s is %s", store->where.shown,
                   now == BT_STORE_UP            ? "up"
                   : now == BT_STORE_UNAVAILABLE ? "unavailable"
                                                 : "degraded");
}

static void next_turn(bt_store_client_t *client);

void bt_store_client_health(bt_store_client_t *client, enum bt_store_health health, const char *why)
{
    bt_store_t *store = client->store;

    pthread_mutex_lock(&store->lock);
    if (health == BT_STORE_UP && client->health != BT_STORE_UP)
        client->is_up_untold = true;
    client->health = health;
    bt_str_copy(client->why, sizeof(client->why), health == BT_STORE_UP ? "" : why);
    bt_str_tame(client->why, strlen(client->why));
    say_change(store);
    pthread_mutex_unlock(&store->lock);
    if (client->is_up_untold)
        next_turn(client);
}

/* No lock: only this loop writes it. */
bool bt_store_client_is_up(const bt_store_client_t *client)
{
    return client->health == BT_STORE_UP && !client->is_suspect;
}

void bt_store_client_complain(bt_store_client_t *client, const char *why)
{
    bt_store_t *store = client->store;

    pthread_mutex_lock(&store->lock);
    bt_str_copy(client->complaint, sizeof(client->complaint), why != NULL ? why : "");
    bt_str_tame(client->complaint, strlen(client->complaint));
    say_change(store);
    pthread_mutex_unlock(&store->lock);
}

/* ---- answers ---- */
bt_store_answer_t *bt_store_answer_get(bt_store_client_t *client)
{
    bt_store_answer_t *answer = client->spare;

    if (answer != NULL) {
        client->spare = answer->next;
        client->spare_count--;
    } else {
        answer = calloc(1, sizeof(*answer));
    }
    return answer;
}

static void free_answer(bt_store_answer_t *answer)
{
    bt_text_fini(&answer->bytes);
    free(answer->rows);
    free(answer);
}

static void put_answer(bt_store_client_t *client, bt_store_answer_t *answer)
{
    if (answer == NULL)
        return;
    if (client->spare_count >= SPARE_MAX || answer->bytes.cap > SPARE_BYTES ||
        answer->row_cap > SPARE_BYTES / sizeof(bt_store_row_t)) {
        free_answer(answer);
        return;
    }
    memset(&answer->reply, 0, sizeof(answer->reply));
    answer->bytes.len = 0;
    answer->bytes.failed = false;
    answer->next = client->spare;
    client->spare = answer;
    client->spare_count++;
}

/* ---- how an op ends ---- */
static void count_end(bt_store_t *store, int rc)
{
    if (rc == BT_E_TOTAL_TIMEOUT)
        bt_store_count(&store->timeouts);
    else if (rc != 0 && rc != BT_E_CANCELLED)
        bt_store_count(&store->errors);
}

/* Out of every list; op may be used again. */
static void release(bt_store_op_t *op)
{
    bt_store_client_t *client = op->client;

    bt_list_remove(&op->link);
    bt_timer_stop(&op->deadline);
    client->pending--;
    if (client->asking == op)
        client->asking = NULL;
    op->client = NULL;
    op->inner = NULL;
}

void bt_store_notify(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    bt_store_reply_t told = *reply;

    count_end(op->client->store, reply->rc);
    if (told.rc != 0 && told.error == NULL)
        told.error = bt_err_text(told.rc);
    release(op);
    op->cb(op, &told);
}

/* A deadline without a callback is the mark of a settled op. */
static bool is_settled(const bt_store_op_t *op)
{
    return op->deadline.cb == NULL;
}

void bt_store_settle(bt_store_op_t *op, bt_store_answer_t *answer)
{
    bt_store_client_t *client = op->client;

    bt_timer_stop(&op->deadline);
    op->deadline.cb = NULL;
    if (client->asking == op)
        client->asking = NULL;
    bt_list_remove(&op->link);
    bt_list_push(&client->settled, &op->link);
    op->inner = answer;
    next_turn(client);
}

void bt_store_settle_error(bt_store_op_t *op, int rc, const char *error)
{
    bt_store_answer_t *answer = bt_store_answer_get(op->client);

    if (answer != NULL) {
        answer->reply.rc = rc;
        answer->reply.error = error;
    }
    bt_store_settle(op, answer);
}

static void tell_settled(bt_store_client_t *client)
{
    static const bt_store_reply_t no_memory_reply = {.rc = BT_E_NOMEM};
    bt_list_t *it, *tmp;

    bt_list_each (&client->settled, it, tmp) {
        bt_list_remove(it);
        bt_list_push(&client->telling, it);
    }
    while (!bt_list_empty(&client->telling)) {
        bt_store_op_t *op = bt_container_of(client->telling.next, bt_store_op_t, link);
        bt_store_answer_t *answer = op->inner;
        bt_store_notify(op, answer != NULL ? &answer->reply : &no_memory_reply);
        put_answer(client, answer);
    }
}

static void tell_up(bt_store_client_t *client)
{
    if (!client->is_up_untold || client->is_freeing)
        return;
    client->is_up_untold = false;
    if (client->on_up != NULL)
        client->on_up(client->user);
}

static void on_next_turn(bt_loop_t *loop, bt_mail_t *mail)
{
    bt_store_client_t *client = bt_container_of(mail, bt_store_client_t, mail);

    (void) loop;
    client->mail_is_out = false;
    tell_up(client);
    tell_settled(client);
    if (client->mail_is_out)
        return; /* there is more to tell first */
    if (client->is_gone) {
        bt_store_client_gone(client);
    } else if (client->is_freeing && !client->is_stopped) {
        client->is_stopped = true;
        client->store->kind->client_stop(client);
    }
}

static void next_turn(bt_store_client_t *client)
{
    if (client->mail_is_out)
        return;
    client->mail_is_out = true;
    bt_loop_post(client->loop, &client->mail, on_next_turn);
}

/* ---- asking ---- */
static void on_deadline(bt_timer_t *timer)
{
    static const bt_store_reply_t late = {.rc = BT_E_TOTAL_TIMEOUT,
                                          .error = "the shared store did not answer in time"};
    bt_store_op_t *op = bt_container_of(timer, bt_store_op_t, deadline);
    bt_store_client_t *client = op->client;

    /* This loop may be the late one: an answer that lies in the socket counts. */
    client->asking = op;
    client->store->kind->look(client);
    if (client->asking != op)
        return;
    client->asking = NULL;
    client->store->kind->forget(client, op);
    bt_store_notify(op, &late);
    client->store->kind->late(client); /* freed by the callback: on another turn */
}

void bt_store_do(bt_store_client_t *client, bt_store_op_t *op)
{
    bt_store_t *store = client->store;
    const char *wrong = bt_store_wrong_with(op);

    op->client = client;
    op->inner = NULL;
    bt_timer_init(client->loop, &op->deadline, on_deadline);
    bt_list_init(&op->link);
    bt_list_push(&client->under_way, &op->link);
    bt_store_count(&store->ops);
    client->pending++;
    if (client->is_freeing)
        bt_store_settle_error(op, BT_E_CANCELLED, NULL);
    else if (wrong != NULL)
        bt_store_settle_error(op, BT_E_INVAL, wrong);
    else if (client->pending > store->max_pending)
        bt_store_settle_error(op, BT_E_LIMIT, "too many operations under way");
    else
        store->kind->submit(client, op);
}

static void on_sent(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    (void) reply;
    free(op);
}

int bt_store_send(bt_store_client_t *client, const bt_store_op_t *op)
{
    bt_store_op_t *copy = malloc(sizeof(*copy));

    if (copy == NULL)
        return BT_E_NOMEM;
    *copy = *op;
    copy->cb = on_sent;
    bt_store_do(client, copy);
    return 0;
}

void bt_store_cancel(bt_store_op_t *op)
{
    bt_store_client_t *client = op->client;

    if (client == NULL)
        return;
    if (is_settled(op))
        put_answer(client, op->inner);
    else
        client->store->kind->forget(client, op);
    release(op);
}

/* ---- a client ---- */
int bt_store_client_new(bt_store_client_t **client_p, bt_store_t *store, bt_loop_t *loop,
                        void (*on_up)(void *user), void *user)
{
    bt_store_client_t *client;
    int rc = store->kind->client_make(&client, store);

    if (rc != 0)
        return rc;
    client->store = store;
    client->loop = loop;
    client->on_up = on_up;
    client->user = user;
    client->health = BT_STORE_STARTING;
    snprintf(client->why, sizeof(client->why), "has not been reached yet");
    bt_list_init(&client->under_way);
    bt_list_init(&client->settled);
    bt_list_init(&client->telling);
    pthread_mutex_lock(&store->lock);
    bt_list_push(&store->clients, &client->link);
    pthread_mutex_unlock(&store->lock);
    store->kind->client_start(client);
    *client_p = client;
    return 0;
}

void bt_store_client_free(bt_store_client_t *client, void (*done)(void *user), void *user)
{
    bt_store_t *store = client->store;
    bt_list_t *it, *tmp;

    client->is_freeing = true;
    client->done = done;
    client->done_user = user;
    pthread_mutex_lock(&store->lock);
    bt_list_remove(&client->link);
    pthread_mutex_unlock(&store->lock);
    bt_list_each (&client->under_way, it, tmp) {
        bt_store_op_t *op = bt_container_of(it, bt_store_op_t, link);
        store->kind->forget(client, op);
        bt_store_settle_error(op, BT_E_CANCELLED, NULL);
    }
    next_turn(client);
}

void bt_store_client_gone(bt_store_client_t *client)
{
    void (*done)(void *) = client->done;
    void *user = client->done_user;

    client->is_gone = true;
    if (client->mail_is_out)
        return; /* that mail comes back here */
    while (client->spare != NULL) {
        bt_store_answer_t *answer = client->spare;
        client->spare = answer->next;
        free_answer(answer);
    }
    free(client);
    if (done != NULL)
        done(user);
}
