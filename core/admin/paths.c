/* The registry is the control loop's, the exchange is the request loop's; neither crosses. While the mail is away the
 * dispatcher counts it as a background call, so that its loop does not end before the mail is back.
 */
#include "admin/admin_impl.h"
#include "admin/routes.h"
#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct background_call {
    struct bt_handler handler;
    bt_mail_t envelope;
    bt_admin_t *admin;
    bt_dispatcher_t *d;
    bt_exchange_t *x; /* the request loop's; NULL: the client has gone */
    bt_admin_request_t request;
    bt_admin_reply_t reply;
    char by[8 + BT_IDENTITY_ID_MAX]; /* request.by, where a key or token has shown who it is */
    char text[];
} background_call_t;

/* On the request loop again. */
static void come_back(bt_loop_t *loop, bt_mail_t *envelope)
{
    background_call_t *e = bt_container_of(envelope, background_call_t, envelope);

    (void) loop;
    if (e->x != NULL)
        bt_admin_send(e->x, &e->reply);
    e->d->background_count--;
    bt_reply_fini(&e->reply);
    free(e);
}

static void answer(background_call_t *e)
{
    const bt_admin_config_t *config = bt_admin_config_of(e->admin);

    if (config == NULL)
        bt_reply_error(&e->reply, 503, "shutting down");
    else if (bt_routes_answer(config, &e->request, &e->reply) != BT_ANSWERED)
        bt_reply_error(&e->reply, 404, "not on this port");
}

/* A piece of rows a turn: the mail comes here again for the next one. */
static void go_on(bt_loop_t *control, bt_mail_t *envelope)
{
    background_call_t *e = bt_container_of(envelope, background_call_t, envelope);
    bt_admin_t *admin = e->admin;

    if (!bt_reply_go_on(&e->reply)) {
        bt_loop_post(control, envelope, go_on);
        return;
    }
    bt_loop_post(e->d->loop, &e->envelope, come_back);
    bt_admin_unref(admin);
}

/* On the control loop. */
static void arrive(bt_loop_t *control, bt_mail_t *envelope)
{
    answer(bt_container_of(envelope, background_call_t, envelope));
    go_on(control, envelope);
}

static void on_gone(struct bt_handler *h)
{
    bt_container_of(h, background_call_t, handler)->x = NULL;
}

static background_call_t *new_background_call(const bt_admin_t *admin, const bt_exchange_t *x,
                                              const bt_identity_t *who)
{
    background_call_t *e =
        calloc(1, sizeof(*e) + x->head.path.n + x->head.query.n + x->body.n + sizeof x->peer);

    if (e == NULL)
        return NULL;
    char *at = e->text;
    e->request =
        (bt_admin_request_t){.method = x->head.method, .workers_only = true, .authorized = true};
    bt_admin_check_origin(admin, &x->head, &e->request);
    e->request.path = bt_str_put(&at, x->head.path);
    e->request.query = bt_str_put(&at, x->head.query);
    e->request.body = bt_str_put(&at, x->body);
    e->request.address = bt_str_put(&at, bt_str(x->peer));
    if (who != NULL) {
        snprintf(e->by, sizeof e->by, "%s:%.*s", bt_identity_source_name(who->source),
                 BT_STR_ARG(who->id));
        e->request.by = e->by;
    }
    bt_reply_init(&e->reply);
    return e;
}

static void refuse(bt_exchange_t *x, unsigned status, const char *why)
{
    bt_admin_reply_t reply;

    bt_reply_init(&reply);
    bt_reply_error(&reply, status, "%s", why);
    bt_admin_send(x, &reply);
    bt_reply_fini(&reply);
}

void bt_admin_worker_paths(void *user, bt_exchange_t *x, const bt_identity_t *who)
{
    bt_admin_t *admin = user;

    if (x->body.n > BT_ADMIN_BODY_MAX) {
        refuse(x, 413, "the body is too large for a worker");
        return;
    }
    background_call_t *e = new_background_call(admin, x, who);
    if (e == NULL) {
        refuse(x, 503, bt_err_text(BT_E_NOMEM));
        return;
    }
    e->handler.gone = on_gone;
    e->admin = admin;
    e->d = bt_server_user(x->server);
    e->x = x;
    x->user = &e->handler;
    e->d->background_count++;
    bt_admin_ref(admin);
    bt_loop_post(bt_admin_loop_of(admin), &e->envelope, arrive);
}
