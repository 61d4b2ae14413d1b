/* The handshake before the handshake (wire/auth.h). The secret is the agent's token, or tokens. A peer that gives up says CLOSE, as ever; before the proof is done it
 * is believed unsealed, since all it can do is end the connection.
 */
#include "transport/control/link.h"

static void send_auth(bt_kv_link_t *link, const uint8_t *bytes, size_t n)
{
    if (n == 0)
        return;
    bt_kv_put(&link->out, bytes, n);
    bt_kv_link_send(link);
}

void bt_kv_link_begin_auth(bt_kv_link_t *link)
{
    uint8_t out[BT_KV_AUTH_OUT];

    if (link->agent->config.token != NULL)
        send_auth(link, out,
                  bt_kv_auth_init(&link->auth, BT_KV_AUTH_PEERS, link->is_initiator, out));
}

ptrdiff_t bt_kv_link_take_auth(bt_kv_link_t *link, const uint8_t *p, size_t n)
{
    uint8_t out[BT_KV_AUTH_OUT];
    size_t out_n;
    const char *why = NULL;
    bt_kv_frame_t frame;

    if (n >= BT_KV_FRAME_HEAD && p[4] == BT_KV_CLOSE) {
        ptrdiff_t size = bt_kv_frame_next(p, n, 2 * BT_KV_REASON_MAX, &frame);
        if (size > 0)
            (void) bt_kv_link_got(link, &frame);
        if (size != 0 && link->broken_rc == 0)
            bt_kv_link_refuse(link, "no frame at all");
        return size;
    }
    ptrdiff_t used =
        bt_kv_auth_take(&link->auth, link->agent->config.token, p, n, out, &out_n, &why);
    if (used < 0) {
        bt_kv_link_refuse_peer(link, "%s has %s", link->peer, why);
        return used;
    }
    send_auth(link, out, out_n);
    if (link->auth.is_done && link->is_initiator)
        bt_kv_link_hello(link);
    return used;
}

void bt_kv_path_bind(bt_kv_path_t *path, uint8_t *bytes, size_t n)
{
    bt_kv_auth_bind(&path->link->auth, bytes, n);
}
