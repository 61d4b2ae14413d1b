/* redis_sentinel.c - who is the master? The Sentinels are asked in turn, one short connection each; the first that knows decides. Whether the server that it
 * names really is a master is for the dial to find out (ROLE): during a failover a Sentinel may be behind.
 */
#include "store/redis_client.h"

#include <stdio.h>

static void ask_next(bt_redis_client_t *client, bool is_answer, const char *why)
{
    const bt_store_url_t *where = &client->base.store->where;
    const bt_store_host_t *host = &where->hosts[client->seed];
    char line[BT_STORE_WHY_MAX];

    snprintf(line, sizeof(line), "sentinel %.100s:%u: %s", host->host, host->port, why);
    client->conn = NULL;
    client->seed = (client->seed + 1) % where->host_count;
    client->asked++;
    if (client->asked < where->host_count) {
        bt_redis_sentinel_query(client);
        return;
    }
    client->asked = 0;
    bt_redis_client_lost(client, is_answer, line);
}

static void on_gone(void *user, bool is_answer, const char *why)
{
    bt_redis_client_t *client = user;

    bt_store_count(&client->base.store->connect_failures);
    ask_next(client, is_answer, why);
}

static bool take_master(bt_redis_client_t *client, const redisReply *reply)
{
    uint64_t port;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[0]->type != REDIS_REPLY_STRING ||
        reply->element[1]->type != REDIS_REPLY_STRING || reply->element[0]->len == 0 ||
        reply->element[0]->len >= sizeof(client->at.host))
        return false;
    if (bt_str_u64((bt_str_t){reply->element[1]->str, reply->element[1]->len}, &port) != 0 ||
        port == 0 || port > 65535)
        return false;
    bt_str_copy(client->at.host, sizeof(client->at.host), reply->element[0]->str);
    client->at.port = (unsigned) port;
    return true;
}

static void on_master(bt_redis_call_t *call, const redisReply *reply)
{
    bt_redis_client_t *client = bt_container_of(call, bt_redis_client_t, question);
    bt_redis_conn_t *conn = client->conn;
    char why[BT_STORE_WHY_MAX] = "it knows no such master";

    if (reply == NULL)
        return; /* on_gone goes on, or it was closed below */
    if (take_master(client, reply)) {
        client->asked = 0;
        bt_redis_client_dial(client, client->at.host, client->at.port);
    } else {
        if (reply->type == REDIS_REPLY_ERROR)
            snprintf(why, sizeof(why), "%s", reply->str);
        ask_next(client, true, why);
    }
    bt_redis_conn_close(conn);
}

static void on_up(void *user)
{
    bt_redis_client_t *client = user;

    client->out.len = 0;
    client->out.failed = false;
    bt_redis_put_head(&client->out, 3);
    bt_redis_put_arg(&client->out, BT_STR("SENTINEL"));
    bt_redis_put_arg(&client->out, BT_STR("get-master-addr-by-name"));
    bt_redis_put_arg(&client->out, bt_str(client->base.store->where.master));
    client->question.cb = on_master;
    bt_redis_conn_send(client->conn, &client->question, bt_text_str(&client->out));
}

void bt_redis_sentinel_query(bt_redis_client_t *client)
{
    static const bt_redis_conn_ops_t ops = {on_up, on_gone, bt_redis_client_freed};
    bt_store_t *store = client->base.store;
    const bt_store_host_t *host = &store->where.hosts[client->seed];
    bt_redis_target_t target = {.host = host->host,
                                .port = host->port,
                                .turn = client->turn,
                                .password = store->sentinel_password,
                                .connect_ms = store->connect_ms,
                                .silent_ms = 4 * store->op_ms};

    if (bt_redis_conn_open(&client->conn, client->base.loop, &target, &ops, client) != 0)
        bt_redis_client_lost(client, false, "out of memory");
    else
        client->conns++;
}
