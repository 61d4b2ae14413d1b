/* redis_calls.c - ops under way on the connection.
 *
 * What a reply means for the op is redis_ops.c's; what it means for the client's health is decided here. NOSCRIPT and a cluster's ASK are the answers after which
 * a command is sent again, because it was not executed: with the script's text, which also makes it known; to the node that ASK names. It then comes after what
 * was sent in between.
 */
#include "store/redis_client.h"

#include "base/clock.h"
#include "base/err.h"

#include <stdlib.h>

#define SPARE_MAX 1024
#define SPARE_BYTES ((size_t) 16 * 1024)

static bt_redis_op_t *get_call(bt_redis_client_t *client)
{
    bt_redis_op_t *call = client->spare;

    if (call != NULL) {
        client->spare = call->next;
        client->spare_count--;
    } else {
        call = calloc(1, sizeof(*call));
        if (call == NULL)
            return NULL;
        call->client = client;
        bt_text_init(&call->args);
    }
    call->command.args = &call->args;
    call->is_repeat = call->is_aside = false;
    return call;
}

static void free_call(bt_redis_op_t *call)
{
    bt_text_fini(&call->args);
    free(call);
}

static void put_call(bt_redis_op_t *call)
{
    bt_redis_client_t *client = call->client;

    if (client->spare_count >= SPARE_MAX || call->args.cap > SPARE_BYTES) {
        free_call(call);
        return;
    }
    call->op = NULL;
    call->next = client->spare;
    client->spare = call;
    client->spare_count++;
}

void bt_redis_calls_fini(bt_redis_client_t *client)
{
    while (client->spare != NULL) {
        bt_redis_op_t *call = client->spare;
        client->spare = call->next;
        free_call(call);
    }
    bt_text_fini(&client->out);
    free(client->rows.rows);
}

/* A mean over about the last sixteen; loops may overwrite each other's step. */
static void note_rtt(bt_store_t *store, uint64_t rtt_us)
{
    uint64_t ema = atomic_load_explicit(&store->rtt_us_ema, memory_order_relaxed);

    ema = ema == 0 ? rtt_us : ema + rtt_us / 16 - ema / 16;
    atomic_store_explicit(&store->rtt_us_ema, ema, memory_order_relaxed);
}

static bool send_command(bt_redis_op_t *call, bool with_text)
{
    bt_redis_client_t *client = call->client;

    client->out.len = 0;
    client->out.failed = false;
    bt_redis_command_put(&call->command, with_text, &client->out);
    if (client->out.failed)
        return false;
    bt_redis_conn_send(client->conn, &call->call, bt_text_str(&client->out));
    return true;
}

static bool send_again(bt_redis_op_t *call)
{
    return call->is_aside ? bt_redis_cluster_again(call) : send_command(call, true);
}

/* Once: who was asked and sends on is no owner to be. */
static bool may_ask(const bt_redis_op_t *call)
{
    return call->op != NULL && !call->is_aside && bt_redis_is_cluster(call->client);
}

/* An error changes how the store looks, unless it is the op's own, or says that the slot has gone on while the op was under way. */
static void judge(bt_redis_op_t *call, const redisReply *reply, enum bt_redis_error error)
{
    bt_redis_client_t *client = call->client;
    const bool is_redirection = error == BT_REDIS_E_MOVED || error == BT_REDIS_E_ASK;

    if (error == BT_REDIS_E_TYPE || error == BT_REDIS_E_OVERFLOW)
        return;
    if (!is_redirection || !bt_redis_is_cluster(client)) {
        const bool is_demoted = error == BT_REDIS_E_READONLY && !call->is_aside;
        bt_redis_client_refused(client, is_demoted, reply->str);
    } else if (error == BT_REDIS_E_MOVED && !call->is_aside) {
        bt_redis_cluster_moved(client, reply->str);
    }
}

static void answer(bt_redis_op_t *call, const redisReply *reply)
{
    bt_redis_client_t *client = call->client;
    bt_store_op_t *op = call->op;
    bt_store_reply_t told;

    if (op != NULL)
        bt_redis_op_decode(op, reply, &client->rows, &told);
    put_call(call);
    if (op != NULL)
        bt_store_notify(op, &told);
}

static void on_reply(bt_redis_call_t *base, const redisReply *reply)
{
    bt_redis_op_t *call = bt_container_of(base, bt_redis_op_t, call);
    bt_redis_client_t *client = call->client;

    if (reply == NULL) { /* inside a teardown: nobody is called back from here */
        if (call->op != NULL)
            bt_store_settle_error(call->op, BT_E_STORE_UNAVAILABLE,
                                  "the connection to the shared store was lost");
        put_call(call);
        return;
    }
    note_rtt(client->base.store, bt_clock_us() - base->sent_us);
    if (reply->type == REDIS_REPLY_ERROR) {
        enum bt_redis_error error = bt_redis_error_of((bt_str_t){reply->str, reply->len});
        bool may_repeat = !call->is_repeat && call->command.script != BT_REDIS_NO_SCRIPT;
        if (error == BT_REDIS_E_NOSCRIPT && may_repeat) {
            call->is_repeat = true;
            if (call->op != NULL && send_again(call))
                return;
        } else if (error == BT_REDIS_E_ASK && may_ask(call)) {
            if (bt_redis_cluster_ask(call, reply->str))
                return;
        } else {
            judge(call, reply, error);
        }
    }
    answer(call, reply);
}

static const char *reason_of(const bt_redis_client_t *client)
{
    if (client->base.is_suspect)
        return BT_REDIS_LATE;
    return client->base.why[0] != '\0' ? client->base.why : NULL;
}

void bt_redis_submit(bt_store_client_t *base, bt_store_op_t *op)
{
    bt_redis_client_t *client = bt_container_of(base, bt_redis_client_t, base);
    bt_redis_op_t *call;

    if (!client->is_up || !client->is_heard) {
        const bool is_answer = !client->is_up && client->is_answering;
        bt_store_settle_error(op, is_answer ? BT_E_STORE : BT_E_STORE_UNAVAILABLE,
                              reason_of(client));
        return;
    }
    call = get_call(client);
    if (call == NULL) {
        bt_store_settle(op, NULL);
        return;
    }
    bt_redis_op_encode(op, &call->command);
    call->call.cb = on_reply;
    if (!send_command(call, false)) {
        put_call(call);
        bt_store_settle(op, NULL);
        return;
    }
    call->op = op;
    op->inner = call;
    bt_timer_start(&op->deadline, base->store->op_ms);
}

void bt_redis_forget(bt_store_client_t *base, bt_store_op_t *op)
{
    bt_redis_op_t *call = op->inner;

    (void) base;
    if (call != NULL)
        call->op = NULL;
    op->inner = NULL;
}
