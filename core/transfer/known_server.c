#include "transfer/known_server.h"

#include <unistd.h>

static void on_accept(bt_loop_t *loop, int fd, void *user)
{
    bt_known_server_t *s = user;

    (void) loop;
    bt_server_accept(s->server, fd, NULL);
}

int bt_known_server_open(bt_known_server_t *s, bt_loop_t *control, int fd,
                         const bt_known_server_config_t *config)
{
    int rc = bt_registry_peers_init(&s->peers, config->allowed, config->allowed_count);

    if (rc < 0)
        goto err_fd;
    bt_server_config_defaults(&s->http);
    s->http.max_body_bytes = config->max_body_bytes;
    s->http.max_buffered_bytes = SIZE_MAX; /* what clients hold must not keep engines away */
    rc = bt_server_new(&s->server, control, config->ops, &s->http, config->user);
    if (rc < 0)
        goto err_peers;
    rc = bt_listener_start(&s->listener, control, fd, NULL, on_accept, s);
    if (rc == 0)
        return 0;
    bt_server_close(s->server, NULL, NULL); /* it has no connection: it is freed at once */
    bt_registry_peers_fini(&s->peers);
    return rc; /* the listener has closed the fd */
err_peers:
    bt_registry_peers_fini(&s->peers);
err_fd:
    close(fd);
    return rc;
}

void bt_known_server_set_workers(bt_known_server_t *s, bt_workers_t *workers)
{
    bt_registry_peers_set_workers(&s->peers, workers);
}

bool bt_known_server_has(const bt_known_server_t *s, const bt_exchange_t *x)
{
    return bt_registry_peers_has(&s->peers, x->peer);
}

static void on_server_closed(void *arg)
{
    bt_known_server_t *s = arg;

    bt_registry_peers_fini(&s->peers);
    s->done(s->done_user);
}

void bt_known_server_close(bt_known_server_t *s, void (*done)(void *user), void *user)
{
    s->done = done;
    s->done_user = user;
    bt_listener_close(s->listener);
    bt_server_close(s->server, on_server_closed, s);
}
