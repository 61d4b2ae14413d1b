/* upstream.c - a pool of keep-alive connections to one worker.
 *
 * Newest first: the connection used last is the least likely to have been closed by the worker meanwhile, and the
 * others grow old enough to be closed by us, before the worker does it under a request.
 */
#include "http/client_impl.h"

#include "base/err.h"
#include "loop/network.h"

#include <stdlib.h>

#define IDLE_TIMEOUT_MS 4000
#define IDLE_MAX 256

int bt_upstream_new(bt_upstream_t **up_p, bt_loop_t *loop, const struct sockaddr *addr,
                    const bt_upstream_config_t *config)
{
    if (bt_network_length(addr) == 0)
        return BT_E_INVAL;
    bt_upstream_t *up = calloc(1, sizeof(*up));
    if (up == NULL)
        return BT_E_NOMEM;
    up->loop = loop;
    up->config = config != NULL ? *config : (bt_upstream_config_t){.idle_max = IDLE_MAX};
    if (up->config.idle_timeout_ms == 0)
        up->config.idle_timeout_ms = IDLE_TIMEOUT_MS;
    if (up->config.tls != NULL) {
        up->tls_name = bt_str_dup(bt_str(up->config.tls_name));
        if (up->tls_name == NULL) {
            free(up);
            return BT_E_NOMEM;
        }
        bt_tls_client_ref(up->config.tls);
    }
    memcpy(&up->addr, addr, bt_network_length(addr));
    bt_list_init(&up->idle);
    bt_slab_init(&up->conns, sizeof(bt_conn_t), up->config.idle_max);
    *up_p = up;
    return 0;
}

static bt_conn_t *conn_of_idle(bt_list_t *link)
{
    return bt_container_of(link, bt_conn_t, idle_link);
}

void bt_upstream_close_idle(bt_upstream_t *up)
{
    while (!bt_list_empty(&up->idle))
        bt_upstream_close_conn(conn_of_idle(up->idle.next));
}

void bt_upstream_set_addr(bt_upstream_t *up, const struct sockaddr *addr)
{
    const struct sockaddr *old = (const void *) &up->addr;

    if (BT_SOFT(bt_network_length(addr) == 0) || bt_network_is_endpoint(addr, old))
        return;
    memset(&up->addr, 0, sizeof(up->addr));
    memcpy(&up->addr, addr, bt_network_length(addr));
    up->addr_epoch++;
    bt_upstream_close_idle(up);
}

static void free_if_done(bt_upstream_t *up)
{
    if (!up->freed || up->open_count > 0)
        return;
    bt_slab_fini(&up->conns);
    bt_tls_slot_fini(&up->tls_slot);
    bt_tls_client_unref(up->config.tls);
    free(up->tls_name);
    free(up);
}

void bt_upstream_free(bt_upstream_t *up)
{
    bt_upstream_close_idle(up);
    up->freed = true;
    free_if_done(up);
}

unsigned bt_upstream_idle_count(const bt_upstream_t *up)
{
    return up->idle_count;
}

unsigned bt_upstream_active_count(const bt_upstream_t *up)
{
    return up->active_count;
}

static bool close_spare(bt_idle_t *idle, bool is_forced)
{
    (void) is_forced; /* nothing that comes now is anybody's */
    bt_upstream_close_conn(bt_container_of(idle, bt_conn_t, spare));
    return true;
}

int bt_upstream_new_conn(bt_conn_t **conn_p, bt_upstream_t *up)
{
    bt_conn_t *conn = bt_slab_get(&up->conns);
    if (conn == NULL)
        return BT_E_NOMEM;
    int rc = bt_stream_init(&conn->stream, up->loop, &bt_call_stream_ops);
    if (rc < 0) {
        bt_slab_put(&up->conns, conn);
        return rc;
    }
    conn->up = up;
    conn->addr_epoch = up->addr_epoch;
    bt_list_init(&conn->idle_link);
    bt_list_init(&conn->spare.link);
    conn->spare.close = close_spare;
    bt_timer_init(up->loop, &conn->timer, bt_call_on_deadline);
    up->open_count++;
    if (up->config.tls != NULL && (rc = bt_tls_client_attach(up->config.tls, &conn->stream,
                                                             up->tls_name, &up->tls_slot)) < 0) {
        bt_upstream_close_conn(conn);
        return rc;
    }
    *conn_p = conn;
    return 0;
}

static void leave_idle(bt_conn_t *conn)
{
    bt_list_remove(&conn->idle_link);
    bt_budget_unpark(conn->up->config.budget, conn->up->loop, &conn->spare);
    bt_timer_stop(&conn->timer);
    conn->up->idle_count--;
}

bt_conn_t *bt_upstream_take_idle(bt_upstream_t *up)
{
    if (bt_list_empty(&up->idle))
        return NULL;
    bt_conn_t *conn = conn_of_idle(up->idle.next);
    leave_idle(conn);
    return conn;
}

void bt_upstream_park(bt_conn_t *conn)
{
    bt_upstream_t *up = conn->up;

    if (up->freed || conn->addr_epoch != up->addr_epoch || up->config.idle_max == 0 ||
        bt_stream_read_start(&conn->stream) < 0) {
        bt_upstream_close_conn(conn);
        return;
    }
    bt_list_push_front(&up->idle, &conn->idle_link);
    bt_budget_park(up->config.budget, up->loop, &conn->spare);
    conn->deadline = BT_DEADLINE_IDLE;
    bt_timer_start(&conn->timer, up->config.idle_timeout_ms);
    if (++up->idle_count > up->config.idle_max)
        bt_upstream_close_conn(conn_of_idle(up->idle.prev));
}

void bt_upstream_close_conn(bt_conn_t *conn)
{
    BT_ASSERT(conn->call == NULL);
    if (!bt_list_empty(&conn->idle_link)) {
        leave_idle(conn);
        bt_stream_say_end(&conn->stream);
    }
    bt_timer_stop(&conn->timer);
    bt_stream_close(&conn->stream);
}

void bt_upstream_forget(bt_conn_t *conn)
{
    bt_upstream_t *up = conn->up;

    bt_answer_fini(&conn->answer);
    if (conn->is_counted)
        bt_budget_give(up->config.budget);
    up->open_count--;
    bt_slab_put(&up->conns, conn);
    free_if_done(up);
}
