#include "zmq/sender.h"

#include "base/err.h"
#include "zmq/libzmq.h"

#include <errno.h>
#include <stdlib.h>
#include <zmq.h>

struct bt_zmq_sender {
    void *handle;
};

static void *context; /* of all senders */
static unsigned context_users;

static void drop_context(void)
{
    if (--context_users > 0)
        return;
    while (zmq_ctx_term(context) < 0 && errno == EINTR)
        ;
    context = NULL;
}

static int connect_handle(void *handle, const char *endpoint, bt_str_t identity)
{
    const int zero = 0;

    zmq_setsockopt(handle, ZMQ_LINGER, &zero, sizeof(zero));
    if (identity.n > 0 && zmq_setsockopt(handle, ZMQ_ROUTING_ID, identity.p, identity.n) != 0)
        return BT_E_INVAL;
    return zmq_connect(handle, endpoint) == 0 ? 0 : BT_E_INVAL;
}

int bt_zmq_sender_new(bt_zmq_sender_t **sender_p, enum bt_zmq_sender_kind kind,
                      const char *endpoint, bt_str_t identity)
{
    int rc = BT_E_LIMIT;

    if (bt_libzmq_load() != NULL)
        return BT_E_CONFIG;
    bt_zmq_sender_t *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return BT_E_NOMEM;
    if (context_users++ == 0)
        context = zmq_ctx_new();
    if (context != NULL)
        s->handle = zmq_socket(context, kind == BT_ZMQ_PUSH ? ZMQ_PUSH : ZMQ_DEALER);
    if (s->handle != NULL && (rc = connect_handle(s->handle, endpoint, identity)) == 0) {
        *sender_p = s;
        return 0;
    }
    bt_zmq_sender_free(s);
    return rc;
}

int bt_zmq_sender_send(bt_zmq_sender_t *s, const bt_str_t *frames, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (zmq_send(s->handle, frames[i].p, frames[i].n,
                     ZMQ_DONTWAIT | (i + 1 < count ? ZMQ_SNDMORE : 0)) < 0)
            return BT_E_AGAIN;
    return 0;
}

void bt_zmq_sender_free(bt_zmq_sender_t *s)
{
    if (s == NULL)
        return;
    if (s->handle != NULL)
        zmq_close(s->handle);
    free(s);
    if (context != NULL)
        drop_context();
    else
        context_users--;
}
