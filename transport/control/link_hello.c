/* The handshake: both say HELLO (the dialler first), then their regions and layouts, then open a path.
 *
 * Nobody is told of regions and layouts before he is known to be a peer: an agent with a token has had it proved before (link_auth.c). One without asks where the
 * other is, before it says its own HELLO.
 *
 * Both sides make the same list of common back ends from the two hellos and try the best one first. Who finds that a kind does not work says
 * PATH_FAILED, and both go on to the next; a message about a kind that is not the current one is late and means nothing. A kind is in use when both
 * sides have said PATH_READY. There is no way back to an earlier kind, and none left means that the link is refused with all the reasons.
 */
#include "transport/control/link.h"

#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LATER_MAX ((size_t) 64 << 10)

static void store_offers(bt_kv_link_t *link, const bt_kv_hello_t *hello)
{
    for (uint32_t i = 0; i < hello->offer_count; i++) {
        const bt_kv_blob_t *offer = &hello->offers[i];
        unsigned index = offer->kind != 0 ? bt_kv_backend_index(offer->kind) : BT_KV_BACKENDS;
        if (index >= BT_KV_BACKENDS || link->offers[index] != NULL || offer->bytes.n == 0)
            continue; /* a kind of a later version, or twice */
        link->offers[index] = malloc(offer->bytes.n);
        if (link->offers[index] == NULL)
            continue;
        memcpy(link->offers[index], offer->bytes.p, offer->bytes.n);
        link->offer_bytes[index] = offer->bytes.n;
    }
}

void bt_kv_link_refuse_peer(bt_kv_link_t *link, const char *fmt, ...)
{
    char why[BT_KV_REASON_MAX];
    va_list args;

    va_start(args, fmt);
    vsnprintf(why, sizeof(why), fmt, args);
    va_end(args);
    link->agent->stats.refused_frames++;
    bt_log_warn("kv", "%s: no link: %s", link->agent->config.name, why);
    bt_kv_link_break(link, BT_E_CONNECT, "%s", why);
}

bool bt_kv_link_may_talk(bt_kv_link_t *link)
{
    const bt_kv_config_t *config = &link->agent->config;

    if (config->token != NULL || config->allow_remote || bt_kv_link_is_local(link))
        return true;
    bt_kv_link_refuse_peer(
        link,
        "%.48s is on another host, and agent %.32s has no token: give both agents the same "
        "token, or open both to other hosts (allow_remote)",
        link->peer, config->name);
    return false;
}

void bt_kv_link_hello(bt_kv_link_t *link)
{
    bt_kv_agent_t *agent = link->agent;
    uint8_t offers[BT_KV_BACKENDS][BT_KV_OFFER_BYTES];
    bt_kv_hello_t hello = {
        .version = BT_KV_VERSION,
        .incarnation = agent->incarnation,
        .pid = (uint32_t) getpid(),
        .crc = agent->config.crc,
        .name = bt_str(agent->config.name),
        .host_id = bt_str(agent->host_id),
        .kv_format = bt_str(agent->config.kv_format),
    };

    for (unsigned i = 0; i < BT_KV_BACKENDS; i++) {
        bt_kv_backend_t *backend = agent->backends[i];
        size_t n = backend != NULL ? backend->ops->offer(backend, offers[i], sizeof(offers[i])) : 0;
        if (n == 0)
            continue;
        hello.offers[hello.offer_count++] =
            (bt_kv_blob_t){(uint8_t) (1u << i), {(const char *) offers[i], n}};
    }
    bt_kv_put_hello(&link->out, &hello);
    bt_kv_link_send(link);
}

void bt_kv_link_send_region(bt_kv_link_t *link, const bt_kv_mem_t *mem)
{
    bt_kv_agent_t *agent = link->agent;
    uint8_t keys[BT_KV_BACKENDS][256];
    bt_kv_region_frame_t region = {.id = mem->id, .size = mem->size};

    for (unsigned i = 0; i < BT_KV_BACKENDS; i++) {
        bt_kv_backend_t *backend = agent->backends[i];
        if (backend == NULL || backend->ops->region_key == NULL)
            continue;
        size_t n = backend->ops->region_key(backend, mem, keys[i], sizeof(keys[i]));
        region.keys[region.key_count++] =
            (bt_kv_blob_t){(uint8_t) (1u << i), {(const char *) keys[i], n}};
    }
    bt_kv_put_region(&link->out, &region);
    bt_kv_link_send(link);
}

static void send_memory(bt_kv_link_t *link)
{
    bt_kv_agent_t *agent = link->agent;

    for (uint32_t i = 0; i < agent->mem_room; i++)
        if (agent->mems[i] != NULL)
            bt_kv_link_send_region(link, agent->mems[i]);
    for (uint32_t i = 0; i < agent->layout_room; i++) {
        const struct bt_kv_layout *layout = agent->layouts[i];
        if (layout != NULL)
            bt_kv_put_layout(&link->out, layout->id, layout->buffers, layout->count, layout->pages);
    }
    bt_kv_link_send(link);
}

void bt_kv_link_send_left(bt_kv_link_t *link, uint64_t room, int rc, const char *reason)
{
    bool is_up = link != NULL && link->state == BT_KV_LINK_UP;

    if (!bt_kv_link_is_live(link) || (!is_up && link->later.n > LATER_MAX))
        return;
    bt_kv_put_room(is_up ? &link->out : &link->later, BT_KV_LEFT, room, rc, bt_str(reason));
    if (is_up)
        bt_kv_link_send(link);
}

/* The first word of *text_p that is left, which goes beyond it. */
static bt_str_t next_word(bt_str_t *text_p)
{
    size_t begin = 0, end;

    while (begin < text_p->n && text_p->p[begin] == ' ')
        begin++;
    for (end = begin; end < text_p->n && text_p->p[end] != ' ';)
        end++;
    bt_str_t word = {text_p->p + begin, end - begin};
    *text_p = (bt_str_t){text_p->p + end, text_p->n - end};
    return word;
}

#define WORD_ARG(w) (w).n == 0 ? 7 : (w).n < 48 ? (int) (w).n : 48, (w).n == 0 ? "nothing" : (w).p

/* Bytes that fit are not yet bytes that mean the same: float16 read as bfloat16 would be an answer of noise. */
static bool has_our_format(bt_kv_link_t *link, bt_str_t theirs)
{
    bt_str_t ours = bt_str(link->agent->config.kv_format), our_word, their_word;

    if (ours.n == 0 || theirs.n == 0)
        return true;
    do {
        our_word = next_word(&ours);
        their_word = next_word(&theirs);
        if (bt_str_eq(our_word, their_word))
            continue;
        bt_kv_link_refuse_peer(
            link, "%.48s has KV pages of %.*s, agent %.32s of %.*s: set the same on both",
            link->peer, WORD_ARG(their_word), link->agent->config.name, WORD_ARG(our_word));
        return false;
    } while (our_word.n > 0);
    return true;
}

void bt_kv_link_got_hello(bt_kv_link_t *link, const bt_kv_hello_t *hello)
{
    bt_kv_agent_t *agent = link->agent;

    snprintf(link->peer, sizeof(link->peer), "%.*s (%s:%u)",
             (int) (hello->name.n < 64 ? hello->name.n : 64), hello->name.p, link->host,
             link->port);
    if (hello->version != BT_KV_VERSION) {
        bt_kv_link_break(link, BT_E_CONNECT,
                         "%s speaks version %u of the interface, this agent %u: use one build",
                         link->peer, hello->version, BT_KV_VERSION);
        return;
    }
    if (!bt_kv_link_may_talk(link))
        return;
    if (!has_our_format(link, hello->kv_format))
        return;
    link->incarnation = hello->incarnation;
    link->pid = hello->pid;
    link->has_crc = hello->crc || agent->config.crc;
    link->is_same_host = bt_str_eq(hello->host_id, bt_str(agent->host_id));
    store_offers(link, hello);
    if (!link->is_initiator)
        bt_kv_link_hello(link);
    bt_kv_put_frames(&link->out, &link->later);
    send_memory(link);
    bt_kv_link_set_state(link, BT_KV_LINK_UP);
    agent->stats.links++;
    for (unsigned i = 0; i < BT_KV_BACKENDS; i++)
        if (agent->backends[i] != NULL && link->offers[i] != NULL)
            link->kinds_left |= 1u << i;
    bt_kv_link_next_path(link, false, NULL);
}

/* ---- paths ---- */
void bt_kv_link_close_path(bt_kv_link_t *link)
{
    if (link->path == NULL)
        return;
    bt_kv_path_t *path = link->path;
    link->is_usable = false;
    path->backend->ops->path_close(path);
    link->path = NULL;
}

static void replay_regions(bt_kv_link_t *link)
{
    for (bt_list_t *it = link->peer_regions.next; it != &link->peer_regions; it = it->next)
        (void) bt_kv_link_region(link, bt_container_of(it, bt_kv_peer_region_t, link), true);
}

static bool open_best(bt_kv_link_t *link)
{
    bt_kv_agent_t *agent = link->agent;
    int best = -1;

    for (unsigned i = 0; i < BT_KV_BACKENDS; i++)
        if ((link->kinds_left >> i & 1) != 0 &&
            (best < 0 || agent->backends[i]->ops->rank > agent->backends[best]->ops->rank))
            best = (int) i;
    if (best < 0)
        return false;
    link->path_index = (unsigned) best;
    link->kinds_left &= ~(1u << best);
    link->is_path_ready = link->is_peer_path_ready = link->is_path_failed = false;
    bt_kv_backend_t *backend = agent->backends[best];
    int rc = backend->ops->path_open(&link->path, backend, link, link->offers[best],
                                     link->offer_bytes[best], link->is_initiator);
    if (rc == 0) {
        replay_regions(link);
        return true;
    }
    link->path = NULL;
    link->is_path_failed = true;
    if (link->path_why[0] == '\0')
        snprintf(link->path_why, sizeof(link->path_why), "%s: %s", backend->ops->name,
                 bt_err_text(rc));
    return true;
}

void bt_kv_link_next_path(bt_kv_link_t *link, bool is_told, const char *why)
{
    if (link->is_usable) {
        bt_kv_link_break(link, BT_E_KV_TRANSFER, "%s: the data path failed: %s", link->peer, why);
        return;
    }
    if (is_told) {
        enum bt_kv_kind kind = (enum bt_kv_kind)(1u << link->path_index);
        bt_kv_put_blob(&link->out, BT_KV_PATH_FAILED, kind, bt_str(why));
        bt_kv_link_send(link);
    }
    bt_kv_link_close_path(link);
    link->is_path_failed = false;
    if (!open_best(link))
        bt_kv_link_break(link, BT_E_CONNECT, "no way to move data between this agent and %s: %s",
                         link->peer,
                         link->path_why[0] != '\0' ? link->path_why : "no back end in common");
    else if (link->is_path_failed)
        bt_kv_link_want(link);
}

void bt_kv_link_check_usable(bt_kv_link_t *link)
{
    if (!link->is_path_ready || !link->is_peer_path_ready || link->is_usable ||
        !bt_kv_link_is_live(link))
        return;
    link->is_usable = true;
    link->agent->stats.links_by_backend[link->path_index]++;
    if (link->is_initiator)
        bt_kv_rooms_announce(link);
}

/* ---- what back ends say ---- */
void bt_kv_path_ready(bt_kv_path_t *path)
{
    bt_kv_link_t *link = path->link;

    if (link->path != path || link->is_path_ready)
        return;
    link->is_path_ready = true;
    bt_kv_put_blob(&link->out, BT_KV_PATH_READY, path->backend->ops->kind, BT_STR_NULL);
    bt_kv_link_send(link);
    bt_kv_link_want(link);
}

void bt_kv_path_failed(bt_kv_path_t *path, int rc, const char *why)
{
    bt_kv_link_t *link = path->link;

    if (link->path != path || link->is_path_failed)
        return;
    snprintf(link->path_why, sizeof(link->path_why), "%s: %s", path->backend->ops->name,
             why != NULL ? why : bt_err_text(rc));
    link->is_path_failed = true;
    bt_kv_link_want(link);
}

int bt_kv_path_send(bt_kv_path_t *path, const uint8_t *message, size_t size)
{
    bt_kv_link_t *link = path->link;

    if (link->state == BT_KV_LINK_LOST)
        return BT_E_CANCELLED;
    bt_kv_put_blob(&link->out, BT_KV_PATH, path->backend->ops->kind,
                   (bt_str_t){(const char *) message, size});
    bt_kv_link_send(link);
    return 0;
}
