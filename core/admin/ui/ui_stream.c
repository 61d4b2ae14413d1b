/* The timer runs while somebody listens and no loop is being asked; so a loop that is late makes a slow page, and never two questions. */
#include "admin/ui/ui_stream.h"

#include "admin/call/call.h"
#include "admin/ui/session.h"
#include "admin/ui/ui_state.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

#define PERIOD_MS 1000

typedef struct listener {
    struct bt_admin_wait base;
    bt_list_t link;
    bt_ui_stream_t *stream;
    bt_exchange_t *x;
    char session[BT_SESSION_ID_CHARS + 1]; /* "" = none */
    bt_str_t shown;                        /* in the exchange's arena; empty = none */
    bool has_all; /* sections; what is other than before is enough for it */
} listener_t;

struct bt_ui_stream {
    bt_loop_t *loop;
    const bt_admin_config_t *config;
    bt_checker_t *checker; /* NULL = nothing is ever shown */
    bt_list_t listeners;
    unsigned count;
    bt_timer_t timer;
    bt_gather_t *gather; /* NULL = nobody is being asked */
    bt_text_t last[BT_UI_SECTIONS];
};

/* ---- a second ---- */

static void on_timer(bt_timer_t *timer);

static bt_buf_t *frame(enum bt_ui_section section, bt_str_t data)
{
    bt_buf_t *buf = NULL;
    bt_text_t text;

    bt_text_init(&text);
    bt_text_printf(&text, "event: %s\ndata: ", bt_ui_section_name(section));
    bt_text_put(&text, data);
    bt_text_puts(&text, "\n\n");
    if (!text.failed)
        buf = bt_buf_copy(text.data, text.len);
    bt_text_fini(&text);
    return buf;
}

static void send_section(bt_ui_stream_t *s, enum bt_ui_section section, bool has_changed)
{
    bt_buf_t *buf = frame(section, bt_text_str(&s->last[section]));
    bt_list_t *it, *tmp;

    bt_list_each (&s->listeners, it, tmp) {
        listener_t *l = bt_container_of(it, listener_t, link);
        if (buf != NULL && (has_changed || !l->has_all) && !bt_exchange_blocked(l->x))
            bt_exchange_write(l->x, buf, buf->data, buf->len);
    }
    bt_buf_unref(buf);
}

/* Is it another text than before? */
static bool keep(bt_text_t *last, bt_text_t *text)
{
    const bool is_same =
        last->len == text->len && text->len > 0 && memcmp(last->data, text->data, text->len) == 0;

    if (text->failed || is_same) {
        bt_text_fini(text);
        return false;
    }
    bt_text_fini(last);
    *last = *text;
    return true;
}

static void end(listener_t *l)
{
    bt_list_remove(&l->link);
    l->stream->count--;
    l->x->user = NULL;
    bt_exchange_end(l->x);
}

static bool may_read(bt_checker_t *checker, bt_str_t shown)
{
    bt_identity_t who;

    return bt_checker_check(checker, shown, bt_clock_wall_ms(), &who) == BT_AUTH_OK &&
           (who.scopes & BT_MAY_READ_ADMIN) != 0;
}

/* Whose page is logged in no more, or whose key or token counts no more. */
static void end_closed(bt_ui_stream_t *s)
{
    bt_list_t *it, *tmp;

    bt_list_each (&s->listeners, it, tmp) {
        listener_t *l = bt_container_of(it, listener_t, link);
        if ((l->session[0] != '\0' &&
             !bt_sessions_is_open(s->config->sessions, bt_str(l->session))) ||
            (l->shown.n > 0 && !may_read(s->checker, l->shown)))
            end(l);
    }
}

static void on_facts(void *user, const bt_loop_facts_t *facts, unsigned count)
{
    bt_ui_stream_t *s = user;
    bt_list_t *it, *tmp;
    bt_text_t text;

    s->gather = NULL;
    end_closed(s);
    for (unsigned i = 0; i < BT_UI_SECTIONS; i++) {
        bt_text_init(&text);
        bt_ui_write((enum bt_ui_section) i, s->config, facts, count, &text);
        const bool has_changed = keep(&s->last[i], &text);
        send_section(s, (enum bt_ui_section) i, has_changed);
    }
    bt_list_each (&s->listeners, it, tmp) {
        listener_t *l = bt_container_of(it, listener_t, link);
        l->has_all = !bt_exchange_blocked(l->x);
    }
    if (s->count > 0)
        bt_timer_start(&s->timer, PERIOD_MS);
}

static void on_timer(bt_timer_t *timer)
{
    bt_ui_stream_t *s = bt_container_of(timer, bt_ui_stream_t, timer);
    const bt_gather_ask_t ask = bt_ui_ask(s->config->shared);

    if (bt_gather_start(&s->gather, s->loop, s->config->shared, &ask, BT_LIVE_DEADLINE_MS, on_facts,
                        s) < 0)
        bt_timer_start(timer, PERIOD_MS); /* no memory: perhaps in a second */
}

/* ---- who listens ---- */

static void stop_if_alone(bt_ui_stream_t *s)
{
    if (s->count > 0)
        return;
    bt_timer_stop(&s->timer);
    if (s->gather != NULL)
        bt_gather_cancel(s->gather);
    s->gather = NULL;
    for (unsigned i = 0; i < BT_UI_SECTIONS; i++)
        bt_text_fini(&s->last[i]);
}

static void on_gone(struct bt_admin_wait *base)
{
    listener_t *l = bt_container_of(base, listener_t, base);

    bt_list_remove(&l->link);
    l->stream->count--;
    stop_if_alone(l->stream);
}

void bt_ui_stream_add(bt_ui_stream_t *s, bt_exchange_t *x, bt_str_t session, bt_str_t shown)
{
    static const bt_header_t headers[] = {
        {BT_STR("Content-Type"), BT_STR("text/event-stream; charset=utf-8")},
        {BT_STR("Cache-Control"), BT_STR("no-store")}};
    listener_t *l;

    if (s == NULL || s->count >= BT_UI_LISTENERS) {
        bt_admin_notify(x, NULL, 503,
                        BT_STR("16 pages follow this gateway already; close one, or ask the routes "
                               "that GET / lists"));
        return;
    }
    l = bt_arena_zalloc(&x->arena, sizeof *l);
    l->base.gone = on_gone;
    l->stream = s;
    l->x = x;
    if (session.n == BT_SESSION_ID_CHARS)
        memcpy(l->session, session.p, session.n);
    l->shown = bt_arena_str(&x->arena, shown);
    x->user = &l->base;
    bt_list_push(&s->listeners, &l->link);
    bt_exchange_start(x, 200, headers, 2, BT_LENGTH_CHUNKED);
    bt_exchange_write(x, NULL, "retry: 2000\n\n", 13);
    if (s->count++ == 0)
        bt_timer_start(&s->timer, 0);
}

void bt_ui_stream_end_all(bt_ui_stream_t *s)
{
    while (s != NULL && !bt_list_empty(&s->listeners))
        end(bt_container_of(s->listeners.next, listener_t, link));
    if (s != NULL)
        stop_if_alone(s);
}

/* ---- life ---- */

bt_ui_stream_t *bt_ui_stream_new(bt_loop_t *control, const bt_admin_config_t *config,
                                 bt_checker_t *checker)
{
    bt_ui_stream_t *s = calloc(1, sizeof *s);

    if (s == NULL)
        return NULL;
    s->loop = control;
    s->config = config;
    s->checker = checker;
    bt_list_init(&s->listeners);
    bt_timer_init(control, &s->timer, on_timer);
    for (unsigned i = 0; i < BT_UI_SECTIONS; i++)
        bt_text_init(&s->last[i]);
    return s;
}

void bt_ui_stream_free(bt_ui_stream_t *s)
{
    if (s == NULL)
        return;
    for (unsigned i = 0; i < BT_UI_SECTIONS; i++)
        bt_text_fini(&s->last[i]);
    free(s);
}
