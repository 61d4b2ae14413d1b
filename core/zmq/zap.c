/* No is "300", for now: libzmq then closes the connection when its handshake's time is over, and the peer dials again. "400" would
 * make an engine's libzmq give up for good, though its worker may be added, or its name be resolved, a second later. */
#include "zmq/zap.h"

#include "base/err.h"
#include "loop/resolve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define ENDPOINT "inproc://zeromq.zap.01"

enum { VERSION, REQUEST_ID, DOMAIN, ADDRESS, FRAMES };

struct bt_zap_list {
    unsigned count;
    bt_network_t networks[];
};

int bt_zap_open(bt_zap_t *zap, void *context)
{
    const int zero = 0;

    *zap = (bt_zap_t){.handle = zmq_socket(context, ZMQ_REP)};
    if (zap->handle == NULL)
        return BT_E_LIMIT;
    zmq_setsockopt(zap->handle, ZMQ_LINGER, &zero, sizeof(zero));
    if (zmq_bind(zap->handle, ENDPOINT) == 0)
        return 0;
    bt_zap_close(zap);
    return BT_E_LIMIT;
}

int bt_zap_guard(void *socket_handle, unsigned number)
{
    char domain[12];
    const int n = snprintf(domain, sizeof(domain), "%u", number);

    return zmq_setsockopt(socket_handle, ZMQ_ZAP_DOMAIN, domain, (size_t) n) == 0 ? 0 : BT_E_INVAL;
}

int bt_zap_set_allowed(bt_zap_t *zap, const bt_network_t *networks, unsigned count)
{
    bt_zap_list_t *list = malloc(sizeof(*list) + count * sizeof(*networks));

    if (list == NULL)
        return BT_E_NOMEM;
    list->count = count;
    if (count > 0)
        memcpy(list->networks, networks, count * sizeof(*networks));
    free(atomic_exchange(&zap->fresh, list)); /* one that the thread has not taken */
    return 0;
}

static bool is_allowed(bt_zap_t *zap, const char *peer)
{
    bt_zap_list_t *fresh = atomic_exchange(&zap->fresh, NULL);
    struct sockaddr_storage addr;

    if (fresh != NULL) {
        free(zap->list);
        zap->list = fresh;
    }
    if (zap->list == NULL || bt_resolve_numeric(peer, 0, &addr) < 0)
        return false;
    for (unsigned i = 0; i < zap->list->count; i++)
        if (bt_network_has(&zap->list->networks[i], &addr))
            return true;
    return false;
}

/* Texts are cut at their room; libzmq's are short. False: there is no question. */
static bool read_question(void *handle, char texts[FRAMES][64])
{
    unsigned at = 0;
    int more = 1;
    size_t size = sizeof(more);
    char rest[64];

    while (more != 0) {
        char *text = at < FRAMES ? texts[at] : rest;
        const int n = zmq_recv(handle, text, 63, ZMQ_DONTWAIT);
        if (n < 0)
            return false;
        text[n < 63 ? n : 63] = '\0';
        at++;
        zmq_getsockopt(handle, ZMQ_RCVMORE, &more, &size);
    }
    return at > ADDRESS;
}

static void send_answer(void *handle, const char *request_id, const char *status)
{
    const char *const frames[] = {"1.0", request_id, status, "", "", ""};

    for (unsigned i = 0; i < 6; i++)
        (void) zmq_send(handle, frames[i], strlen(frames[i]),
                        ZMQ_DONTWAIT | (i < 5 ? ZMQ_SNDMORE : 0));
}

enum bt_zap_verdict bt_zap_answer(bt_zap_t *zap, bt_zap_question_t *question_p)
{
    char texts[FRAMES][64];

    if (!read_question(zap->handle, texts))
        return BT_ZAP_NOTHING;
    const bool yes = is_allowed(zap, texts[ADDRESS]);
    send_answer(zap->handle, texts[REQUEST_ID], yes ? "200" : "300");
    question_p->socket = (unsigned) strtoul(texts[DOMAIN], NULL, 10);
    memcpy(question_p->peer, texts[ADDRESS], sizeof(question_p->peer));
    return yes ? BT_ZAP_ALLOWED : BT_ZAP_REFUSED;
}

void bt_zap_close(bt_zap_t *zap)
{
    if (zap->handle != NULL)
        zmq_close(zap->handle);
    zap->handle = NULL;
    free(zap->list);
    zap->list = NULL;
}

void bt_zap_fini(bt_zap_t *zap)
{
    free(atomic_exchange(&zap->fresh, NULL));
}
