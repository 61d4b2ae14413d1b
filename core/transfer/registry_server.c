/* Each exchange is answered before its callback returns, so no exchange can go away meanwhile, and one text is enough for all answers. */
#include "transfer/registry_server.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "transfer/known_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BODY_MAX ((size_t) 1 << 20) /* what the registry takes by default */

struct bt_registry_server {
    bt_kv_registry_t *registry;
    bt_kv_registry_answer_t answer;
    bt_known_server_t known;
    char reason[256]; /* of the refusal that is being said */
    void (*done)(void *user);
    void *done_user;
};

static bt_kv_registry_request_t request_of(const bt_registry_server_t *s, const bt_exchange_t *x)
{
    return (bt_kv_registry_request_t){.method = x->head.method_text,
                                      .target = x->head.target,
                                      .body = x->body,
                                      .authorization =
                                          bt_head_get(&x->head, BT_STR("authorization")),
                                      .peer = bt_str(x->peer),
                                      .is_stranger = !bt_known_server_has(&s->known, x),
                                      .now_ms = bt_clock_ms()};
}

/* A body of who may not use it is not read. Without a body the registry says so itself, in more words. */
static unsigned on_head(bt_exchange_t *x, const char **reason_p)
{
    bt_registry_server_t *s = bt_server_user(x->server);
    const bt_kv_registry_request_t request = request_of(s, x);
    const int refusal =
        x->head.length > 0 || x->head.chunked ? bt_kv_registry_refusal(s->registry, &request) : 0;

    if (refusal == 0)
        return 0;
    snprintf(s->reason, sizeof(s->reason),
             "%s is no host of a worker: add its worker first, or start the gateway with "
             "--registry-allow %s",
             x->peer, x->peer);
    *reason_p =
        refusal == 401 ? "this registry needs \"Authorization: Bearer <token>\"" : s->reason;
    bt_log_warn("transfer", "registry: %s is refused: %s", x->peer, *reason_p);
    return (unsigned) refusal;
}

static void on_request(bt_exchange_t *x)
{
    bt_registry_server_t *s = bt_server_user(x->server);
    const bt_kv_registry_request_t request = request_of(s, x);
    bt_header_t headers[2];
    unsigned count = 0;

    bt_kv_registry_answer(s->registry, &request, &s->answer);
    if (s->answer.status == 401 || s->answer.status == 403)
        bt_log_warn("transfer", "registry: %s is refused: %s", x->peer, s->answer.body.data);
    if (s->answer.allow != NULL)
        headers[count++] = (bt_header_t){BT_STR("Allow"), bt_str(s->answer.allow)};
    if (s->answer.authenticate != NULL)
        headers[count++] =
            (bt_header_t){BT_STR("WWW-Authenticate"), bt_str(s->answer.authenticate)};
    bt_exchange_respond(x, (unsigned) s->answer.status, s->answer.content_type,
                        bt_text_str(&s->answer.body), headers, count);
}

static void on_gone(bt_exchange_t *x)
{
    (void) x; /* no exchange is open between turns */
}

static const bt_server_ops_t server_ops = {
    .on_head = on_head, .on_request = on_request, .on_gone = on_gone};

int bt_registry_server_new(bt_registry_server_t **server_p, bt_loop_t *control, int fd,
                           const bt_registry_server_config_t *config)
{
    static const bt_registry_server_config_t defaults;
    const bt_registry_server_config_t *c = config != NULL ? config : &defaults;
    const size_t max = c->registry.max_body_bytes;
    bt_registry_server_t *s = calloc(1, sizeof(*s));
    const bt_known_server_config_t known = {.ops = &server_ops,
                                            .user = s,
                                            .max_body_bytes = max != 0 ? max : BODY_MAX,
                                            .allowed = c->allowed,
                                            .allowed_count = c->allowed_count};
    int rc = s != NULL ? bt_kv_registry_new(&s->registry, &c->registry) : BT_E_NOMEM;

    if (rc < 0) {
        free(s);
        close(fd);
        return rc;
    }
    bt_text_init(&s->answer.body);
    rc = bt_known_server_open(&s->known, control, fd, &known);
    if (rc == 0) {
        *server_p = s;
        return 0;
    }
    bt_kv_registry_free(s->registry);
    free(s);
    return rc;
}

void bt_registry_server_set_workers(bt_registry_server_t *server, bt_workers_t *workers)
{
    bt_known_server_set_workers(&server->known, workers);
}

static void on_closed(void *arg)
{
    bt_registry_server_t *s = arg;
    void (*done)(void *user) = s->done;
    void *user = s->done_user;

    bt_kv_registry_free(s->registry);
    bt_text_fini(&s->answer.body);
    free(s);
    if (done != NULL)
        done(user);
}

void bt_registry_server_close(bt_registry_server_t *server, void (*done)(void *user), void *user)
{
    server->done = done;
    server->done_user = user;
    bt_known_server_close(&server->known, on_closed, server);
}
