/* A server is a list of connections and their settings. Connections come from a pool and return to it when uv has let
 * go of the handle, so a handler that is being told on_gone still looks at live memory.
 */
#include "http/server.h"

#include "base/err.h"
#include "http/server_impl.h"
#include "tls/server.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define KEEP_CONNS 1024U

void bt_server_config_defaults(bt_server_config_t *config)
{
    *config = (bt_server_config_t){
        .max_body_bytes = (size_t) 64 << 20,
        .max_buffered_bytes = (size_t) 1 << 30,
        .head_timeout_ms = 10000,
        .body_stall_ms = 30000,
        .body_timeout_ms = 600000,
        .body_min_rate = 1024,
        .body_grace_ms = 10000,
        .idle_timeout_ms = 75000,
        .write_stall_ms = 60000,
        .tls_handshake_ms = 10000,
        .refused_body_ms = 1000,
    };
}

int bt_server_new(bt_server_t **server_p, bt_loop_t *loop, const bt_server_ops_t *ops,
                  const bt_server_config_t *config, void *user)
{
    bt_server_t *server = calloc(1, sizeof(*server));
    if (server == NULL)
        return BT_E_NOMEM;
    server->loop = loop;
    server->ops = ops;
    server->user = user;
    if (config != NULL)
        server->config = *config;
    else
        bt_server_config_defaults(&server->config);
    bt_list_init(&server->conns);
    bt_slab_init(&server->pool, sizeof(bt_server_conn_t), KEEP_CONNS);
    bt_slab_init(&server->open_pool, BT_OPEN_MAX * sizeof(struct bt_slice), KEEP_CONNS);
    if (server->config.has_http2 && bt_http2_share(server) < 0) {
        free(server);
        return BT_E_NOMEM;
    }
    bt_budget_join(server->config.budget, loop);
    *server_p = server;
    return 0;
}

void bt_server_share_memory(bt_server_t *server, bt_unfinished_loop_t *unfinished)
{
    server->unfinished = unfinished;
}

const bt_edge_t *bt_server_edge(const bt_server_t *server)
{
    return server->config.edge;
}

void *bt_server_user(const bt_server_t *server)
{
    return server->user;
}

unsigned bt_server_connection_count(const bt_server_t *server)
{
    return server->conn_count;
}

unsigned bt_server_active_count(const bt_server_t *server)
{
    return server->active_count;
}

static void free_server(bt_server_t *server)
{
    void (*done)(void *arg) = server->done;
    void *arg = server->done_arg;

    bt_slab_fini(&server->pool);
    bt_slab_fini(&server->open_pool);
    bt_http2_unshare(server);
    free(server);
    if (done != NULL)
        done(arg);
}

static void uncount(bt_server_t *server)
{
    server->conn_count--;
    atomic_fetch_sub_explicit(&server->loop->connections, 1, memory_order_relaxed);
}

/* What has unread bytes is not idle, whatever its state says. */
static bool close_for_another(bt_server_conn_t *c, bool is_forced)
{
    if (!is_forced && bt_stream_has_input(&c->stream))
        return false;
    c->ticket.is_given = true;
    bt_conn_close(c);
    return true;
}

static bool close_idle(bt_idle_t *idle, bool is_forced)
{
    return close_for_another(bt_container_of(idle, bt_server_conn_t, ticket.idle), is_forced);
}

static bool close_peer_idle(bt_idle_t *idle, bool is_forced)
{
    return close_for_another(bt_container_of(idle, bt_server_conn_t, ticket.peer_idle), is_forced);
}

/* Whose connection it is: client, or the other end of fd. Connections of a listed proxy are many clients': no limit for each address. Returns the
 * address that has one. */
static const struct sockaddr_storage *name_peer(bt_server_conn_t *c, int fd,
                                                const struct sockaddr_storage *client,
                                                struct sockaddr_storage *own)
{
    socklen_t len = sizeof(*own);

    const bool is_nameless = client != NULL && client->ss_family == AF_UNIX; /* proxy.h */

    if (client != NULL && !is_nameless)
        *own = *client;
    else if (getpeername(fd, (struct sockaddr *) own, &len) != 0)
        return NULL;
    if (uv_ip_name((const struct sockaddr *) own, c->x.peer, sizeof(c->x.peer)) != 0)
        c->x.peer[0] = '\0';
    if (is_nameless)
        return NULL;
    if (!bt_edge_is_proxy(c->x.server->config.edge, own))
        return own;
    memcpy(c->own_peer, c->x.peer, sizeof(c->own_peer));
    c->x.proxy = c->own_peer;
    return NULL;
}

void bt_server_accept(bt_server_t *server, int fd, const struct sockaddr_storage *client)
{
    bt_server_conn_t *c = server->closing ? NULL : bt_slab_get(&server->pool);
    struct sockaddr_storage own;

    server->conn_count++;
    if (c == NULL)
        goto err_count;
    c->x.loop = server->loop;
    c->x.server = server;
    c->x.wire = &bt_http1_wire;
    c->x.stream = &c->stream;
    bt_arena_init(&c->x.arena);
    bt_conn_init_timers(c);
    c->ticket.loop = server->loop;
    c->ticket.idle.close = close_idle;
    c->ticket.peer_idle.close = close_peer_idle;
    if (!bt_budget_enter(server->config.budget, &c->ticket, name_peer(c, fd, client, &own)))
        goto err_conn;
    c->is_new = server->config.budget != NULL && !c->ticket.is_refused;
    if (bt_stream_init(&c->stream, server->loop, &bt_server_stream_ops) < 0)
        goto err_budget;
    bt_list_init(&c->link);
    bt_list_push(&server->conns, &c->link);
    c->is_shaking = server->config.tls != NULL;
    if (c->is_shaking && bt_tls_server_attach(server->config.tls, &c->stream) < 0) {
        close(fd);
        bt_conn_close(c);
    } else if (bt_stream_open(&c->stream, fd) < 0 || bt_stream_read_start(&c->stream) < 0) {
        bt_conn_close(c);
    } else {
        bt_conn_wait_idle(c);
    }
    return;

err_budget:
    bt_budget_leave(server->config.budget, &c->ticket);
err_conn:
    bt_slab_put(&server->pool, c);
err_count:
    close(fd);
    uncount(server);
}

/* From on_closed: the last one to leave turns off the light. */
void bt_conn_closed(bt_stream_t *stream)
{
    bt_server_conn_t *c = bt_container_of(stream, bt_server_conn_t, stream);
    bt_server_t *server = c->x.server;

    if (c->http2 != NULL)
        bt_http2_free(c);
    bt_conn_drop_exchange(c);
    bt_buf_unref(c->in);
    bt_timer_stop(&c->deadline);
    bt_timer_stop(&c->watch);
    bt_list_remove(&c->link);
    bt_budget_leave(bt_conn_budget(c), &c->ticket);
    bt_slab_put(&server->pool, c);
    uncount(server);
    if (server->closing && server->conn_count == 0)
        free_server(server);
}

void bt_conn_close(bt_server_conn_t *c)
{
    if (c->state == BT_CONN_IDLE && !c->is_shaking)
        bt_stream_say_end(&c->stream);
    c->state = BT_CONN_CLOSED;
    bt_budget_busy(bt_conn_budget(c), &c->ticket);
    bt_timer_stop(&c->deadline);
    bt_timer_stop(&c->watch);
    bt_unfinished_close(&c->x.unfinished);
    bt_conn_drop_open(c);
    if (c->http2 != NULL)
        bt_http2_leave(c);
    bt_stream_close(&c->stream);
}

void bt_conn_gone(bt_server_conn_t *c)
{
    bool told = c->handling;

    c->handling = false;
    bt_conn_close(c);
    if (c->http2 != NULL)
        bt_http2_gone(c);
    if (!told)
        return;
    c->x.server->active_count--;
    if (c->x.server->ops->on_gone != NULL)
        c->x.server->ops->on_gone(&c->x);
}

/* FIN, not RST: a request that crosses our FIN on the wire is then cleanly unanswered, and clients retry it. */
void bt_conn_retire(bt_server_conn_t *c)
{
    c->state = BT_CONN_CLOSED;
    bt_budget_busy(bt_conn_budget(c), &c->ticket);
    bt_timer_stop(&c->deadline);
    bt_timer_stop(&c->watch);
    bt_stream_close_after_flush(
        &c->stream, c->ticket.is_refused || c->is_shaking ? BT_LINGER_REFUSED_MS : BT_LINGER_MS);
}

bool bt_exchange_tls(const bt_exchange_t *x, bt_tls_info_t *info_p)
{
    return bt_tls_info(x->stream, info_p);
}

void bt_server_drain(bt_server_t *server, bool lets_idle_ask)
{
    bt_list_t *it, *tmp;

    server->draining = true;
    server->lets_idle_ask = lets_idle_ask;
    bt_list_each (&server->conns, it, tmp) {
        bt_server_conn_t *c = bt_container_of(it, bt_server_conn_t, link);
        if (c->state == BT_CONN_HTTP2)
            bt_http2_drain(c);
        else if (c->state == BT_CONN_IDLE && bt_conn_unread(c) == 0 && !c->is_shaking &&
                 !lets_idle_ask)
            bt_conn_retire(c);
    }
}

void bt_server_close(bt_server_t *server, void (*done)(void *arg), void *arg)
{
    server->draining = server->closing = true;
    server->done = done;
    server->done_arg = arg;
    if (server->conn_count == 0) {
        free_server(server);
        return;
    }
    /* Closing is finished in a later turn, so the list does not change below; but on_gone may end other exchanges. */
    bt_list_t *it, *tmp;
    bt_list_each (&server->conns, it, tmp)
        bt_conn_gone(bt_container_of(it, bt_server_conn_t, link));
}
