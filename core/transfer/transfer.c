/* The hub: its life, its mail, its listener. What arrives by mail is handled in the order in which a loop sent it, so that open, repair and close of one
 * room cannot overtake each other. Mail holds a reference on the hub: one that comes after bt_transfer_free finds is_closing and goes.
 */
#include "base/rand.h"
#include "transfer_impl.h"

#include <stdlib.h>
#include <unistd.h>

#define STRANGERS_MAX 1024 /* connections without a good hello */
#define NAMES_MIN 64U

/* ---- mail ---- */

static bt_transfer_mail_t *new_mail(bt_transfer_t *t, uint64_t room, bt_worker_t *prefill,
                                    bt_worker_t *decode)
{
    bt_transfer_mail_t *mail = calloc(1, sizeof(*mail));

    if (mail == NULL)
        return NULL;
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    mail->t = t;
    mail->room = room;
    mail->prefill = prefill != NULL ? bt_worker_ref(prefill) : NULL;
    mail->decode = decode != NULL ? bt_worker_ref(decode) : NULL;
    return mail;
}

/* What it brought is no longer needed; the memory stays for an event. */
static void empty_mail(bt_transfer_mail_t *mail)
{
    bt_worker_unref(mail->prefill);
    bt_worker_unref(mail->decode);
    mail->prefill = mail->decode = NULL;
}

static void on_open(bt_loop_t *loop, bt_mail_t *envelope)
{
    bt_transfer_mail_t *mail = bt_container_of(envelope, bt_transfer_mail_t, envelope);
    bt_transfer_t *t = mail->t;
    bt_worker_t *prefill = mail->prefill, *decode = mail->decode;

    (void) loop;
    mail->prefill = mail->decode = NULL;
    if (t->is_closing) {
        free(mail);
    } else {
        mail->spec.prefill = prefill;
        mail->spec.decode = decode;
        bt_transfer_on_room_open(t, mail);
    }
    bt_worker_unref(prefill);
    bt_worker_unref(decode);
    bt_transfer_unref(t);
}

static void read_mail(bt_mail_t *envelope,
                      void (*handle)(bt_transfer_t *t, bt_transfer_mail_t *mail))
{
    bt_transfer_mail_t *mail = bt_container_of(envelope, bt_transfer_mail_t, envelope);
    bt_transfer_t *t = mail->t;

    if (!t->is_closing)
        handle(t, mail);
    empty_mail(mail);
    free(mail);
    bt_transfer_unref(t);
}

static void on_repair(bt_loop_t *loop, bt_mail_t *envelope)
{
    (void) loop;
    read_mail(envelope, bt_transfer_room_repair);
}

static void on_close(bt_loop_t *loop, bt_mail_t *envelope)
{
    (void) loop;
    read_mail(envelope, bt_transfer_on_room_close);
}

static void on_return(bt_loop_t *loop, bt_mail_t *envelope)
{
    bt_transfer_mail_t *mail = bt_container_of(
        bt_container_of(envelope, bt_transfer_event_t, envelope), bt_transfer_mail_t, event);

    (void) loop;
    mail->on_event(mail->user, &mail->event);
    free(mail);
}

void bt_transfer_mail_return(bt_transfer_mail_t *mail, bt_loop_t *loop,
                             bt_transfer_event_cb on_event, void *user)
{
    mail->on_event = on_event;
    mail->user = user;
    bt_loop_post(loop, &mail->event.envelope, on_return);
}

int bt_transfer_room_open(bt_transfer_t *t, const bt_transfer_room_spec_t *spec)
{
    bt_transfer_mail_t *mail = new_mail(t, spec->room, spec->prefill, spec->decode);

    if (mail == NULL)
        return BT_E_NOMEM;
    mail->spec = *spec;
    mail->spec.request_id[sizeof(mail->spec.request_id) - 1] = '\0';
    bt_loop_post(t->loop, &mail->envelope, on_open);
    return 0;
}

int bt_transfer_repair(bt_transfer_t *t, uint64_t room, uint64_t source_room, bt_worker_t *prefill)
{
    bt_transfer_mail_t *mail = new_mail(t, room, prefill, NULL);

    if (mail == NULL)
        return BT_E_NOMEM;
    mail->source_room = source_room;
    bt_loop_post(t->loop, &mail->envelope, on_repair);
    return 0;
}

/* Out of memory: the room ends by its deadlines, and the loop that opened it must expect events of a room it has forgotten anyway. */
void bt_transfer_room_close(bt_transfer_t *t, uint64_t room, bool is_abort, const char *reason)
{
    bt_transfer_mail_t *mail = new_mail(t, room, NULL, NULL);

    if (mail == NULL)
        return;
    mail->is_abort = is_abort;
    bt_str_copy(mail->reason, sizeof(mail->reason), reason != NULL ? reason : "");
    bt_loop_post(t->loop, &mail->envelope, on_close);
}

/* ---- life ---- */

static void set_defaults(bt_transfer_config_t *config)
{
    if (config->heartbeat_ms == 0)
        config->heartbeat_ms = 1000;
    if (config->dead_ms == 0)
        config->dead_ms = 5000;
    if (config->max_agents == 0)
        config->max_agents = 16384;
}

int bt_transfer_new(bt_transfer_t **transfer_p, bt_loop_t *control,
                    const bt_transfer_config_t *config)
{
    bt_transfer_t *t = calloc(1, sizeof(*t));

    if (t == NULL)
        return BT_E_NOMEM;
    t->loop = control;
    t->config = *config;
    set_defaults(&t->config);
    t->refs = 1;
    bt_list_init(&t->agents);
    bt_list_init(&t->rooms);
    bt_list_init(&t->ended);
    bt_rand_secure(&t->incarnation, sizeof(t->incarnation));
    t->incarnation |= 1;
    if (bt_map_init(&t->names, NAMES_MIN) < 0)
        goto err_hub;
    if (config->token != NULL && (t->token = bt_str_dup(bt_str(config->token))) == NULL)
        goto err_names;
    t->config.token = t->token;
    *transfer_p = t;
    return 0;

err_names:
    free(t->names.buckets);
err_hub:
    free(t);
    return BT_E_NOMEM;
}

/* Strangers that say nothing cannot take the places of agents, nor keep one out that is about to say who it is: the oldest of them makes way. */
static bool make_way(bt_transfer_t *t)
{
    if (t->connection_count - t->stats.agents < STRANGERS_MAX)
        return true;
    for (bt_list_t *it = t->agents.next; it != &t->agents; it = it->next) {
        bt_transfer_agent_t *agent = bt_container_of(it, bt_transfer_agent_t, link);
        if (agent->is_registered)
            continue;
        bt_transfer_agent_lose(agent, "too many connections that have not said hello");
        return true;
    }
    return false; /* all of them are being closed */
}

static void on_accept(bt_loop_t *loop, int fd, void *user)
{
    bt_transfer_t *t = user;

    if (!t->is_closing && make_way(t)) {
        bt_transfer_agent_accept(t, fd);
        return;
    }
    close(fd);
    atomic_fetch_sub_explicit(&loop->connections, 1, memory_order_relaxed);
}

int bt_transfer_listen(bt_transfer_t *t, int fd)
{
    return bt_listener_start(&t->listener, t->loop, fd, NULL, on_accept, t);
}

int bt_transfer_set_token(bt_transfer_t *t, const char *tokens)
{
    char *own = tokens != NULL ? bt_str_dup(bt_str(tokens)) : NULL;

    if (tokens != NULL && own == NULL)
        return BT_E_NOMEM;
    free(t->token);
    t->config.token = t->token = own;
    return 0;
}

void bt_transfer_set_workers(bt_transfer_t *t, bt_workers_t *workers)
{
    bt_workers_t *old = t->workers;

    if (t->is_closing)
        return;
    t->workers = workers != NULL ? bt_workers_ref(workers) : NULL;
    bt_transfer_rank_groups_remap(t);
    bt_workers_unref(old);
}

void bt_transfer_unref(bt_transfer_t *t)
{
    void (*done)(void *user) = t->done;
    void *user = t->done_user;

    if (atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) > 1)
        return;
    free(t->groups);
    free(t->tombs);
    free(t->names.buckets);
    free(t->token);
    free(t);
    if (done != NULL)
        done(user);
}

void bt_transfer_free(bt_transfer_t *t, void (*done)(void *user), void *user)
{
    t->is_closing = true;
    t->done = done;
    t->done_user = user;
    if (t->listener != NULL)
        bt_listener_close(t->listener);
    bt_transfer_rooms_free(t);
    while (!bt_list_empty(&t->agents))
        bt_transfer_agent_refuse(bt_container_of(t->agents.next, bt_transfer_agent_t, link), 500,
                                 "the gateway is closing");
    bt_workers_unref(t->workers);
    t->workers = NULL;
    bt_transfer_unref(t);
}

void bt_transfer_stats(const bt_transfer_t *t, bt_transfer_stats_t *stats_p)
{
    *stats_p = t->stats;
}
