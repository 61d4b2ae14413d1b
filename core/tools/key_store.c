/* One command is one or two operations of the store, on a loop of its own. */
#include "tools/key.h"

#include "base/err.h"
#include "base/line.h"
#include "identity/key_line.h"
#include "store/store.h"

#include <stdlib.h>

#define DEADLINE_MS 5000
#define ROWS_MAX 10000 /* a reader of the store's is told no more */

typedef struct run {
    bt_loop_t loop;
    bt_store_t *store;
    bt_store_client_t *client;
    bt_store_op_t op;
    bt_timer_t deadline;
    bt_text_t *rows; /* NULL = it writes */
    unsigned count;
    bool is_begun, is_counted;
    int rc;
    char why[256];
} run_t;

static void end(run_t *r, int rc, const char *why)
{
    r->rc = rc;
    if (rc < 0)
        bt_str_copy(r->why, sizeof r->why, why != NULL ? why : bt_err_text(rc));
    bt_loop_stop(&r->loop);
}

static void put_row(const bt_store_row_t *row, bt_text_t *out)
{
    const bt_str_t line = bt_key_line_of_row(row->name, row->value);
    bt_str_t id = row->name, secret;
    char text[64];
    bt_line_t name;

    if (line.n > 0) {
        bt_text_put(out, line);
        bt_text_puts(out, "\n");
        return;
    }
    bt_line_init(&name, text, sizeof text);
    (void) bt_key_split(id, &id, &secret);
    bt_line_plain(&name, id, 16);
    (void) bt_tool_error(
        0, "key: ", "the store: the row %.*s is no line of a key of that id: left out",
        BT_STR_ARG(bt_line_str(&name)));
}

static void on_done(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    run_t *r = bt_container_of(op, run_t, op);

    for (unsigned i = 0; r->rows != NULL && i < reply->row_count; i++)
        put_row(&reply->rows[i], r->rows);
    r->count = reply->row_count;
    if (reply->rc < 0 || r->rows != NULL || r->is_counted) {
        end(r, reply->rc, reply->error);
        return;
    }
    /* Behind the row: whoever sees the number sees the row. */
    r->is_counted = true;
    r->op.what = BT_STORE_COUNTER_ADD;
    r->op.key = BT_STR(BT_KEY_STORE_CHANGES);
    r->op.amount = 1;
    bt_store_do(r->client, &r->op);
}

static void on_up(void *user)
{
    run_t *r = user;

    if (!r->is_begun)
        bt_store_do(r->client, &r->op);
    r->is_begun = true;
}

static void on_deadline(bt_timer_t *timer)
{
    run_t *r = bt_container_of(timer, run_t, deadline);
    char why[256] = "";

    (void) bt_store_health(r->store, why, sizeof why);
    end(r, BT_E_STORE_UNAVAILABLE, why[0] != '\0' ? why : "no answer in 5 s");
}

static void on_gone(void *user)
{
    run_t *r = user;

    r->client = NULL;
    bt_loop_stop(&r->loop);
}

static void run(run_t *r)
{
    int rc = bt_store_client_new(&r->client, r->store, &r->loop, on_up, r);

    if (rc < 0) {
        end(r, rc, NULL);
        return;
    }
    bt_timer_init(&r->loop, &r->deadline, on_deadline);
    bt_timer_start(&r->deadline, DEADLINE_MS);
    bt_loop_run(&r->loop);
    bt_timer_stop(&r->deadline);
    bt_store_cancel(&r->op);
    bt_store_client_free(r->client, on_gone, r);
    while (r->client != NULL)
        bt_loop_run(&r->loop);
}

static int do_op(const bt_key_place_t *place, run_t *r)
{
    const char *password = getenv("BATON_REDIS_PASSWORD");
    const bt_store_config_t config = {.url = place->url,
                                      .password =
                                          password != NULL && password[0] != '\0' ? password : NULL,
                                      .space = place->fleet,
                                      .tls_ca_file = place->ca_file,
                                      .op_ms = 2000};
    char err[256] = "";

    if (bt_store_open(&r->store, &config, err, sizeof err) < 0)
        return bt_tool_error(BT_TOOL_WRONG, "key: ", "--store: %s", err);
    if (bt_loop_init(&r->loop, BT_LOOP_CONTROL) < 0) {
        bt_store_close(r->store);
        return bt_tool_error(BT_TOOL_FAILED, "key: ", "memory or descriptors are short");
    }
    r->op.space = bt_str(place->fleet);
    r->op.cb = on_done;
    run(r);
    bt_loop_fini(&r->loop);
    bt_store_close(r->store);
    return r->rc < 0 ? bt_tool_error(BT_TOOL_FAILED, "key: ", "the store: %s", r->why) : 0;
}

int bt_key_store_open(bt_key_file_t *f, const bt_key_place_t *place)
{
    run_t r = {.op = {.what = BT_STORE_TABLE_ALL, .key = BT_STR(BT_KEY_STORE_TABLE)}};

    *f = (bt_key_file_t){.lock = -1, .path = "the store", .is_shared = true};
    bt_text_init(&f->text);
    r.rows = &f->text;
    const int status = do_op(place, &r);
    if (status != 0)
        bt_key_file_close(f);
    f->count = r.count;
    return status;
}

int bt_key_store_put(const bt_key_file_t *f, const bt_key_place_t *place, bool is_new)
{
    const bt_str_t text =
        bt_str_trim((bt_str_t){f->text.data + f->changed_at, f->text.len - f->changed_at});
    const char *newline = memchr(text.p, '\n', text.n);
    const bt_str_t row = {text.p, newline != NULL ? (size_t) (newline - text.p) : text.n};
    char why[256] = "it is too long";
    bt_key_line_t line;

    if (row.n > BT_KEY_LINE_MAX || bt_key_line_read(row, &line, why, sizeof why) < 0)
        return bt_tool_error(BT_TOOL_WRONG, "key: ", "its line: %s; nothing was written", why);
    if (is_new && f->count >= ROWS_MAX)
        return bt_tool_error(BT_TOOL_WRONG, "key: ", "the store has %u keys, the most there may be",
                             f->count);
    run_t r = {.op = {.what = BT_STORE_TABLE_PUT,
                      .key = BT_STR(BT_KEY_STORE_TABLE),
                      .field = line.name,
                      .value = row}};
    return do_op(place, &r);
}
