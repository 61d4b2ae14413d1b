/* An exchange and its call know each other until one of them ends: a caller that goes leaves the call without an exchange, an
 * answer finds whichever is left. Engines take any answer for delivered and repeat a call only when the connection breaks, so
 * what is said here is for their logs. */
#include "transfer/metaserver.h"

#include "base/err.h"
#include "base/log.h"
#include "base/text.h"
#include "transfer/known_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BODY_MAX ((size_t) 4 << 20) /* block ids of a million tokens, several times */

struct bt_metaserver {
    bt_metaserver_config_t config;
    bt_known_server_t known;
    void (*done)(void *user);
    void *done_user;
};

/* ---- answers ---- */

static void respond(bt_exchange_t *x, unsigned status, const char *words)
{
    static const bt_header_t allow = {BT_STR("Allow"), BT_STR("POST")};
    bt_text_t text;

    bt_text_init(&text);
    if (status == 200) {
        bt_text_puts(&text, "{\"status\":\"ok\"}");
    } else {
        bt_text_puts(&text, "{\"error\":{\"message\":");
        bt_text_json_str(&text, bt_str(words));
        bt_text_printf(&text, ",\"code\":%u}}", status);
    }
    bt_exchange_respond(x, status, "application/json", bt_text_str(&text), &allow, status == 405);
    bt_text_fini(&text);
}

/* On the control loop. */
static void on_answer(bt_loop_t *control, bt_mail_t *mail)
{
    bt_metaserver_call_t *call = bt_container_of(mail, bt_metaserver_call_t, mail);

    (void) control;
    if (call->x != NULL) {
        call->x->user = NULL; /* an answer for which there is no memory leaves the exchange open */
        respond(call->x, call->status, call->words);
    }
    free(call);
}

void bt_metaserver_answer(bt_metaserver_call_t *call, unsigned status, const char *words)
{
    call->status = status;
    bt_str_copy(call->words, sizeof(call->words), words != NULL ? words : "");
    bt_loop_post(call->control, &call->mail, on_answer);
}

/* ---- calls ---- */

static void refuse(bt_exchange_t *x, unsigned status, const char *words)
{
    bt_log_warn("transfer", "metaserver: a call from %s is refused: %s", x->peer, words);
    respond(x, status, words);
}

/* Before a byte of the body is taken: a stranger's would be held for minutes. */
static unsigned on_head(bt_exchange_t *x, const char **reason_p)
{
    const bt_metaserver_t *s = bt_server_user(x->server);

    if (bt_known_server_has(&s->known, x))
        return 0;
    bt_log_warn("transfer",
                "metaserver: a call from %s is refused: it is no worker's host; "
                "--metaserver-allow names others",
                x->peer);
    *reason_p = "only this host and the workers' hosts may call: add its worker, or start the "
                "gateway with --metaserver-allow ADDRESS";
    return 403;
}

/* The URL is ours: it comes back as decode was given it. */
static bool read_room(bt_str_t query, uint64_t *room_p)
{
    const bt_str_t name = BT_STR("attempt=");

    return bt_str_starts(query, name) &&
           bt_str_u64((bt_str_t){query.p + name.n, query.n - name.n}, room_p) == 0;
}

static void pass_on(bt_metaserver_t *s, bt_exchange_t *x, uint64_t room)
{
    bt_metaserver_call_t *call = malloc(sizeof(*call) + x->body.n);

    if (call == NULL) {
        respond(x, 503, bt_err_text(BT_E_NOMEM));
        return;
    }
    *call = (bt_metaserver_call_t){.room = room, .control = x->loop, .x = x};
    call->body = (bt_str_t){(char *) (call + 1), x->body.n};
    if (x->body.n > 0)
        memcpy(call + 1, x->body.p, x->body.n);
    x->user = call;
    bt_exchange_drop_request(x); /* prefill may take minutes */
    s->config.on_call(s->config.user, call);
}

static void on_request(bt_exchange_t *x)
{
    bt_metaserver_t *s = bt_server_user(x->server);
    uint64_t room;

    if (!bt_str_eq(x->head.path, BT_STR(BT_METASERVER_PATH)))
        respond(x, 404, "only " BT_METASERVER_PATH " is served here");
    else if (x->head.method != BT_POST)
        respond(x, 405, "only POST");
    else if (!read_room(x->head.query, &room))
        refuse(x, 404, "no ?attempt=NUMBER, as the gateway wrote it into decode's parameters");
    else
        pass_on(s, x, room);
}

static void on_gone(bt_exchange_t *x)
{
    bt_metaserver_call_t *call = x->user;

    if (call != NULL)
        call->x = NULL;
}

static const bt_server_ops_t server_ops = {
    .on_head = on_head, .on_request = on_request, .on_gone = on_gone};

/* ---- life ---- */

int bt_metaserver_new(bt_metaserver_t **server_p, bt_loop_t *control, int fd,
                      const bt_metaserver_config_t *config)
{
    bt_metaserver_t *s = calloc(1, sizeof(*s));
    const bt_known_server_config_t known = {.ops = &server_ops,
                                            .user = s,
                                            .max_body_bytes = BODY_MAX,
                                            .allowed = config->allowed,
                                            .allowed_count = config->allowed_count};
    int rc;

    if (s == NULL) {
        close(fd);
        return BT_E_NOMEM;
    }
    s->config = *config;
    rc = bt_known_server_open(&s->known, control, fd, &known);
    if (rc < 0)
        free(s);
    else
        *server_p = s;
    return rc;
}

void bt_metaserver_set_workers(bt_metaserver_t *server, bt_workers_t *workers)
{
    bt_known_server_set_workers(&server->known, workers);
}

static void on_closed(void *arg)
{
    bt_metaserver_t *s = arg;
    void (*done)(void *user) = s->done;
    void *user = s->done_user;

    free(s);
    if (done != NULL)
        done(user);
}

void bt_metaserver_close(bt_metaserver_t *server, void (*done)(void *user), void *user)
{
    server->done = done;
    server->done_user = user;
    bt_known_server_close(&server->known, on_closed, server);
}
