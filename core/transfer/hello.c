/* What an agent says of itself, checked before anything is done with it. Every refusal is one sentence with the remedy, because the operator reads it on the agent's
 * side. What has been said is kept in any case, for the log.
 */
#include "loop/resolve.h"
#include "transfer_impl.h"

#include <netinet/in.h>
#include <stdio.h>

static bool is_wildcard(const struct sockaddr_storage *addr)
{
    if (addr->ss_family == AF_INET)
        return ((const struct sockaddr_in *) (const void *) addr)->sin_addr.s_addr ==
               htonl(INADDR_ANY);
    return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *) (const void *) addr)->sin6_addr);
}

static bool is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

/* Where other agents dial. */
static const char *read_host(bt_transfer_agent_t *agent, bt_str_t host)
{
    struct sockaddr_storage addr;

    if (host.n >= sizeof(agent->host))
        return "its host is no numeric address";
    memcpy(agent->host, host.p, host.n);
    agent->host[host.n] = '\0';
    if (bt_resolve_numeric(agent->host, agent->port, &addr) < 0)
        return "its host is no numeric address";
    if (is_wildcard(&addr))
        bt_str_copy(agent->host, sizeof(agent->host), agent->peer);
    else if (is_loopback(agent->host) && !is_loopback(agent->peer))
        bt_log_warn("transfer",
                    "agent %s of worker %s connects from %s, but listens on %s, where agents of "
                    "other hosts cannot reach it: open it with its host's address",
                    agent->name, agent->worker, agent->peer, agent->host);
    return NULL;
}

static void read_text(char *out, size_t size, bt_str_t s)
{
    size_t n = s.n < size - 1 ? s.n : size - 1;

    if (n > 0)
        memcpy(out, s.p, n);
    out[n] = '\0';
    bt_str_tame(out, n);
}

const char *bt_transfer_hello_read(bt_transfer_agent_t *agent, const bt_kv_control_hello_t *hello)
{
    read_text(agent->name, sizeof(agent->name), hello->name);
    read_text(agent->worker, sizeof(agent->worker), hello->worker);
    agent->rank = hello->rank;
    agent->ranks = hello->ranks;
    agent->kinds = hello->kinds;
    agent->pid = hello->pid;
    agent->incarnation = hello->incarnation;
    agent->port = hello->port;
    if (hello->version != BT_KV_CONTROL_VERSION)
        return "it speaks another version of this protocol: give gateway and agents the same "
               "release";
    /* It came when none was asked for yet. */
    if (agent->t->config.token != NULL && !agent->auth.is_done)
        return "it has no proof of the token: give both sides the same one, the gateway's "
               "--transfer-token";
    if (agent->worker[0] == '\0')
        return "it names no worker: give it the worker's URL or name";
    if (hello->ranks == 0 || hello->ranks > BT_TRANSFER_RANKS || hello->rank >= hello->ranks)
        return "its rank must be below its worker's ranks, which are at most 64";
    if (hello->port == 0)
        return "it listens on no port";
    return read_host(agent, hello->host);
}
