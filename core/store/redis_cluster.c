/* redis_cluster.c - a cluster's redirections.
 *
 * All keys of a fleet lie in one slot, so one master at a time has them all and no map of slots is kept: the probe, whose key lies in that slot too, is the
 * question. Whoever is dialled (a seed, or the last owner) either takes it or names who does:
 *      MOVED   that one is dialled in place of this, at once, so often and no more; then back-off and the next seed, as for a connection that is lost
 *      ASK     the slot is on its way to that one: this op alone goes there, after ASKING, by a connection aside. Ops wait for it to come up, within their deadline
 * Neither was executed, yet only ASK is sent again: the store keeps no queue for a connection that is to come.
 */
#include "store/redis_client.h"

#include <stdio.h>

#define REDIRECTS_MAX 5

bool bt_redis_is_cluster(const bt_redis_client_t *client)
{
    const enum bt_store_scheme scheme = client->base.store->where.scheme;

    return scheme == BT_STORE_URL_CLUSTER || scheme == BT_STORE_URL_CLUSTER_TLS;
}

/* ---- the address ---- */
static bool is_host(bt_str_t host)
{
    for (size_t i = 0; i < host.n; i++)
        if (host.p[i] <= ' ' || host.p[i] > '~')
            return false;
    return host.n < sizeof(((bt_redis_place_t *) NULL)->host) && !bt_str_eq(host, BT_STR("?"));
}

/* "MOVED 3999 10.0.0.1:6381": an IPv6 address stands there without brackets; without a host it is the one that says so (Redis 7); "?" is a node that knows no
 * name of its own. */
bool bt_redis_redirection(bt_str_t text, const bt_redis_place_t *from, bt_redis_place_t *to_p)
{
    bt_redis_place_t to = {{0}, 0};
    uint64_t slot, port;
    const char *end = text.p + text.n;
    const char *a = memchr(text.p, ' ', text.n);
    const char *b = a != NULL ? memchr(a + 1, ' ', (size_t) (end - a - 1)) : NULL;
    const char *colon = b != NULL ? memrchr(b + 1, ':', (size_t) (end - b - 1)) : NULL;

    if (colon == NULL || bt_str_u64((bt_str_t){a + 1, (size_t) (b - a - 1)}, &slot) != 0 ||
        slot > 16383)
        return false;
    bt_str_t host = {b + 1, (size_t) (colon - b - 1)};
    if (bt_str_u64((bt_str_t){colon + 1, (size_t) (end - colon - 1)}, &port) != 0 || port < 1 ||
        port > 65535)
        return false;
    if (host.n > 1 && host.p[0] == '[' && host.p[host.n - 1] == ']')
        host = (bt_str_t){host.p + 1, host.n - 2};
    if (!is_host(host))
        return false;
    if (host.n == 0)
        bt_str_copy(to.host, sizeof(to.host), from->host);
    else
        memcpy(to.host, host.p, host.n);
    to.port = (unsigned) port;
    *to_p = to;
    return true;
}

/* ---- who is dialled ---- */
/* The seeds in turn, and after them the last owner: it may be none of them, and they may all be gone. Then the seeds again, by another of each name's addresses:
 * often one name is all that is given, and leads to every node. */
void bt_redis_cluster_begin(bt_redis_client_t *client)
{
    const bt_store_url_t *where = &client->base.store->where;
    const unsigned count = where->host_count + (client->owner.port != 0 ? 1 : 0);
    const unsigned seed = client->seed < count ? client->seed : 0;

    client->seed = (seed + 1) % count;
    if (seed == where->host_count) {
        client->at = client->owner;
    } else {
        bt_str_copy(client->at.host, sizeof(client->at.host), where->hosts[seed].host);
        client->at.port = where->hosts[seed].port;
    }
    bt_redis_client_dial(client, client->at.host, client->at.port);
    if (client->seed == 0)
        client->turn++;
}

void bt_redis_cluster_moved(bt_redis_client_t *client, const char *text)
{
    bt_redis_conn_t *conn = client->conn;
    bt_redis_place_t to;
    char line[BT_STORE_WHY_MAX];

    if (!client->is_up) /* said before, in the same reading */
        return;
    if (!bt_redis_redirection(bt_str(text), &client->at, &to)) {
        snprintf(line, sizeof(line), "it names no address: %s", text);
        bt_redis_client_redial(client, line);
        return;
    }
    if (bt_redis_conn_up_ms(conn) >= BT_REDIS_STEADY_MS)
        client->redirects = 0;
    if (client->redirects == REDIRECTS_MAX) {
        snprintf(line, sizeof(line), "redirected %u times in a row, the last: %s", REDIRECTS_MAX,
                 text);
        bt_redis_client_redial(client, line);
        return;
    }
    client->redirects++;
    snprintf(line, sizeof(line), "%s", text);
    bt_redis_client_leave(client, line);
    client->at = to;
    bt_redis_client_dial(client, client->at.host, client->at.port);
    bt_redis_conn_close(conn);
}

/* ---- aside ---- */
static void on_asking(bt_redis_call_t *call, const redisReply *reply)
{
    (void) call;
    (void) reply; /* refused or lost: the command behind it says so */
}

/* false: out of memory; nothing was sent. */
static bool send_aside(bt_redis_op_t *call)
{
    bt_redis_client_t *client = call->client;

    client->out.len = 0;
    client->out.failed = false;
    bt_redis_command_put(&call->command, call->is_repeat, &client->out);
    if (client->out.failed)
        return false;
    call->asking.cb = on_asking;
    bt_redis_conn_send(client->aside, &call->asking, BT_STR("*1\r\n$6\r\nASKING\r\n"));
    bt_redis_conn_send(client->aside, &call->call, bt_text_str(&client->out));
    return true;
}

static bt_redis_op_t *take_waiting(bt_redis_client_t *client)
{
    bt_redis_op_t *call;

    if (bt_list_empty(&client->asked_ops))
        return NULL;
    call = bt_container_of(client->asked_ops.next, bt_redis_op_t, call.link);
    bt_list_remove(&call->call.link);
    return call;
}

static void drop_waiting(bt_redis_client_t *client)
{
    bt_redis_op_t *call;

    while ((call = take_waiting(client)) != NULL)
        call->call.cb(&call->call, NULL);
}

static void on_aside_up(void *user)
{
    bt_redis_client_t *client = user;
    bt_redis_op_t *call;

    client->is_aside_up = true;
    while ((call = take_waiting(client)) != NULL)
        if (call->op == NULL || !send_aside(call))
            call->call.cb(&call->call, NULL);
}

static void on_aside_gone(void *user, bool is_answer, const char *why)
{
    bt_redis_client_t *client = user;

    (void) is_answer;
    (void) why; /* the ops are told; whether the store is up is for the owner to say */
    client->aside = NULL;
    client->is_aside_up = false;
    drop_waiting(client);
}

void bt_redis_cluster_leave_aside(bt_redis_client_t *client)
{
    bt_redis_conn_t *aside = client->aside;

    client->aside = NULL;
    client->is_aside_up = false;
    if (aside != NULL)
        bt_redis_conn_close(aside);
    drop_waiting(client);
}

static bool open_aside(bt_redis_client_t *client, const bt_redis_place_t *to)
{
    static const bt_redis_conn_ops_t ops = {on_aside_up, on_aside_gone, bt_redis_client_freed};

    bt_redis_cluster_leave_aside(client);
    client->asked_at = *to;
    if (bt_redis_client_open(client, &client->aside, to->host, to->port, &ops) == 0)
        return true;
    client->aside = NULL;
    return false;
}

bool bt_redis_cluster_ask(bt_redis_op_t *call, const char *text)
{
    bt_redis_client_t *client = call->client;
    bt_redis_place_t to;

    if (!client->is_up || !bt_redis_redirection(bt_str(text), &client->at, &to))
        return false;
    call->is_aside = true;
    call->is_repeat = false;
    if (client->aside == NULL || client->asked_at.port != to.port ||
        strcmp(client->asked_at.host, to.host) != 0) {
        if (!open_aside(client, &to))
            return false;
    }
    if (client->is_aside_up)
        return send_aside(call);
    bt_list_init(&call->call.link);
    bt_list_push(&client->asked_ops, &call->call.link);
    return true;
}

bool bt_redis_cluster_again(bt_redis_op_t *call)
{
    return call->client->is_aside_up && send_aside(call);
}
