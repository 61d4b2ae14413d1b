/* What an engine calls about gateways: they are checked and noted here, and dialled by the next turn (gateway_conn.c). */
#include "transport/gateway/gateway_conn.h"
#include "transport/gateway/heads.h"

#include "base/rand.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

#define IN_BYTES ((size_t) 128 << 10) /* the longest message, and then some */

static int new_gateways(bt_kv_agent_t *agent)
{
    agent->gateways = calloc(1, sizeof(*agent->gateways));
    if (agent->gateways == NULL)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < BT_KV_GATEWAYS_MAX; i++)
        agent->gateways->conns[i].fd = -1;
    int rc = bt_kv_room_commands_init(agent);
    if (rc == 0)
        return 0;
    free(agent->gateways);
    agent->gateways = NULL;
    return rc;
}

static bool is_text(const char *text, size_t max)
{
    return text != NULL && text[0] != '\0' && strlen(text) <= max;
}

static int add_conn(bt_kv_agent_t *agent, const bt_kv_gateway_t *gateway, uint32_t *gateway_p)
{
    int rc = agent->gateways == NULL ? new_gateways(agent) : 0;
    struct bt_kv_gateways *s = agent->gateways;

    if (rc == 0 && s->conn_count == BT_KV_GATEWAYS_MAX)
        rc = BT_E_LIMIT;
    uint8_t *in = rc == 0 ? malloc(IN_BYTES) : NULL;
    if (in == NULL)
        return rc != 0 ? rc : BT_E_NOMEM;
    bool has_token = gateway->token != NULL && gateway->token[0] != '\0';
    char *token = has_token ? strdup(gateway->token) : NULL;
    if (has_token && token == NULL) {
        free(in);
        return BT_E_NOMEM;
    }
    bt_kv_gateway_conn_t *conn = &s->conns[s->conn_count++];
    *conn = (bt_kv_gateway_conn_t){.agent = agent,
                                   .port = gateway->port,
                                   .token = token,
                                   .rank = gateway->rank,
                                   .ranks = gateway->ranks != 0 ? gateway->ranks : 1,
                                   .heads = gateway->heads,
                                   .fd = -1,
                                   .in = {.p = in, .room = IN_BYTES}};
    if (conn->heads.rows == 0)
        conn->heads.rows = 1;
    bt_str_copy(conn->host, sizeof(conn->host), gateway->host);
    bt_str_copy(conn->worker, sizeof(conn->worker), gateway->worker);
    bt_rand_secure(&conn->own_incarnation, sizeof(conn->own_incarnation));
    snprintf(conn->why, sizeof(conn->why), "not connected yet");
    bt_list_init(&conn->known);
    bt_list_init(&conn->retell);
    bt_kv_gateways_want_turn(agent);
    *gateway_p = s->conn_count;
    return 0;
}

int bt_kv_gateway_add(bt_kv_agent_t *agent, const bt_kv_gateway_t *gateway, uint32_t *gateway_p)
{
    struct in_addr address;
    uint32_t number = 0, ranks = gateway != NULL && gateway->ranks != 0 ? gateway->ranks : 1;

    if (agent == NULL || gateway == NULL || agent->is_fake || !is_text(gateway->host, 63) ||
        inet_pton(AF_INET, gateway->host, &address) != 1 || gateway->port == 0 ||
        !is_text(gateway->worker, BT_KV_CONTROL_TEXT_MAX) ||
        (gateway->token != NULL && strlen(gateway->token) > BT_KV_SECRET_MAX) ||
        ranks > BT_KV_CONTROL_PEERS_MAX || gateway->rank >= ranks ||
        (gateway->heads.total != 0 && !bt_kv_heads_fit(gateway->heads.total, ranks)))
        return BT_E_INVAL;
    bt_kv_enter(agent);
    int rc = agent->is_closing ? BT_E_CANCELLED : add_conn(agent, gateway, &number);
    bt_kv_leave(agent);
    if (rc == 0 && gateway_p != NULL)
        *gateway_p = number;
    return rc;
}

int bt_kv_gateway_state(bt_kv_agent_t *agent, uint32_t gateway, char *err, size_t err_size)
{
    int rc = BT_E_INVAL;

    if (err != NULL && err_size > 0)
        err[0] = '\0';
    if (agent == NULL)
        return BT_E_INVAL;
    bt_kv_enter(agent);
    struct bt_kv_gateways *s = agent->gateways;
    if (s != NULL && gateway >= 1 && gateway <= s->conn_count) {
        const bt_kv_gateway_conn_t *conn = &s->conns[gateway - 1];
        rc = conn->state == BT_KV_GATEWAY_CONN_UP;
        if (rc == 0 && err != NULL && err_size > 0)
            bt_str_copy(err, err_size, conn->why);
    }
    bt_kv_leave(agent);
    return rc;
}
