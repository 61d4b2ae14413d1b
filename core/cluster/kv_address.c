#include "cluster/kv_address.h"

#include "cluster/capability.h"

#include <stdio.h>

static bool is_port(unsigned port)
{
    return port >= 1 && port <= 65535;
}

static bool is_host_port(const char *text)
{
    const char *colon = strrchr(text, ':');
    unsigned port;
    int n = 0;

    return colon != NULL && colon != text && colon[1] >= '0' && colon[1] <= '9' &&
           sscanf(colon + 1, "%5u%n", &port, &n) == 1 && colon[1 + n] == '\0' && is_port(port);
}

static bool is_moriio(const char *text)
{
    char host[64];
    unsigned handshake, notify;
    int n = 0;

    return sscanf(text, "host:%63[^,],handshake:%5u,notify:%5u%n", host, &handshake, &notify, &n) ==
               3 &&
           text[n] == '\0' && is_port(handshake) && is_port(notify);
}

/* It stands in a header, between words that begin with three underscores. */
static bool is_plain(bt_str_t address)
{
    for (size_t i = 0; i < address.n; i++)
        if ((unsigned char) address.p[i] <= ' ' || (unsigned char) address.p[i] >= 0x7f)
            return false;
    return address.n > 0 && address.n <= BT_KV_ADDRESS_MAX &&
           bt_str_find(address, BT_STR("__")) < 0;
}

const char *bt_kv_address_refusal(const char *dialect, bt_str_t address)
{
    char text[BT_KV_ADDRESS_MAX + 1];
    const bool is_p2p = dialect != NULL && strcmp(dialect, "p2p_nccl") == 0;

    if (!bt_capability_needs_kv_address(dialect))
        return NULL;
    if (is_plain(address)) {
        memcpy(text, address.p, address.n);
        text[address.n] = '\0';
        if (is_p2p ? is_host_port(text) : is_moriio(text))
            return NULL;
    }
    return is_p2p ? "kv_address must be host:port, the port being the engine's kv_port"
                  : "kv_address must be host:IP,handshake:PORT,notify:PORT";
}
