/* Whatever an engine may not be told of another is refused here: it would stand in the id of a request. */
#include "transfer/registration_message.h"

#include "base/err.h"
#include "cluster/kv_address.h"
#include "zmq/msgpack.h"

#define SIZE_MAX_SAID 65535

const char *bt_registration_dialect(enum bt_registration_kind kind)
{
    return kind == BT_REGISTRATION_P2P_NCCL ? "p2p_nccl" : "moriio";
}

static int refuse(const char **why_p, const char *why)
{
    *why_p = why;
    return BT_E_INVAL;
}

static int take_text(bt_str_t text, char *out, size_t size)
{
    if (text.p == NULL || text.n == 0 || text.n >= size || memchr(text.p, '\0', text.n) != NULL)
        return BT_E_INVAL;
    memcpy(out, text.p, text.n);
    out[text.n] = '\0';
    return 0;
}

static int read_role(const bt_msgpack_t *m, enum bt_role *role_p, const char **why_p)
{
    const bt_str_t type = bt_msgpack_text(m, "type");

    if (bt_str_eq(type, BT_STR("HELLO")))
        return BT_E_AGAIN;
    if (!bt_str_eq(type, BT_STR("P")) && !bt_str_eq(type, BT_STR("D")))
        return refuse(why_p, "type is neither P nor D");
    *role_p = bt_str_eq(type, BT_STR("P")) ? BT_ROLE_PREFILL : BT_ROLE_DECODE;
    return 0;
}

static int read_addresses(const bt_msgpack_t *m, enum bt_registration_kind kind,
                          bt_registration_message_t *out, const char **why_p)
{
    const bt_str_t kv = bt_msgpack_text(m, "zmq_address");

    if (take_text(bt_msgpack_text(m, "http_address"), out->http_address,
                  sizeof(out->http_address)) < 0)
        return refuse(why_p, "http_address is no text of ip:port");
    if (take_text(kv, out->word.kv_address, sizeof(out->word.kv_address)) < 0)
        return refuse(why_p, "zmq_address is missing or no text");
    if (bt_kv_address_refusal(bt_registration_dialect(kind), kv) != NULL)
        return refuse(why_p, kind == BT_REGISTRATION_P2P_NCCL
                                 ? "zmq_address is not ip:port"
                                 : "zmq_address is not host:IP,handshake:PORT,notify:PORT");
    return 0;
}

static int read_size(const bt_msgpack_t *m, const char *key, int *size_p)
{
    uint64_t n;

    if (bt_msgpack_uint(m, key, &n) < 0 || n == 0 || n > SIZE_MAX_SAID)
        return BT_E_INVAL;
    *size_p = (int) n;
    return 0;
}

static int read_sizes(const bt_msgpack_t *m, bt_registered_t *word, const char **why_p)
{
    const bt_str_t mode = bt_msgpack_text(m, "transfer_mode");

    if (read_size(m, "dp_size", &word->dp_size) < 0 || read_size(m, "tp_size", &word->tp_size) < 0)
        return refuse(why_p, "dp_size and tp_size must be numbers from 1 on");
    if (bt_str_eq(mode, BT_STR("READ")))
        word->mode = BT_TRANSFER_READ;
    else if (bt_str_eq(mode, BT_STR("WRITE")))
        word->mode = BT_TRANSFER_WRITE;
    else
        return refuse(why_p, "transfer_mode is neither READ nor WRITE");
    return 0;
}

static int read_map(const bt_msgpack_t *m, enum bt_registration_kind kind,
                    bt_registration_message_t *out, const char **why_p)
{
    int rc = bt_msgpack_is_map(m) ? read_role(m, &out->role, why_p)
                                  : refuse(why_p, "the payload is no map");
    if (rc == 0)
        rc = read_addresses(m, kind, out, why_p);
    return rc == 0 && kind == BT_REGISTRATION_MORIIO ? read_sizes(m, &out->word, why_p) : rc;
}

int bt_registration_read(enum bt_registration_kind kind, bt_str_t payload,
                         bt_registration_message_t *m_p, const char **why_p)
{
    bt_msgpack_t m;
    int rc = bt_msgpack_open(&m, payload);

    *m_p = (bt_registration_message_t){.role = BT_ROLE_HYBRID};
    if (rc == BT_E_NOMEM)
        return rc;
    if (rc < 0)
        return refuse(why_p, "the payload is not msgpack");
    rc = read_map(&m, kind, m_p, why_p);
    bt_msgpack_close(&m);
    return rc;
}
