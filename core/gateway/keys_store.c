#include "gateway/keys_store.h"

#include "admin/call/audit.h"
#include "base/err.h"
#include "base/log.h"
#include "gateway/rollout.h"
#include "identity/key_line.h"

#include <stdlib.h>

#define LOOK_MS 500
#define ALL_MS 60000 /* whoever has changed a row by hand has not counted it */
#define NUMBER_BYTES 32

struct bt_keys_store {
    bt_gateway_t *gateway;
    bt_identities_t *all;
    bt_store_client_t *client;
    bt_store_op_t op; /* one at a time */
    bt_timer_t timer, deadline;
    bool is_asking, is_waited_for;
    char number[NUMBER_BYTES],
        number_now[NUMBER_BYTES]; /* of changes: at the keys that count; just read */
    uint64_t read_ms;             /* when all were read; 0 = never */
    bt_key_table_t *now;          /* a reference; NULL = none yet */
    char said[256];               /* what is wrong with the rows; once */
};

/* ---- the first answer ---- */

static void stop_waiting(bt_keys_store_t *k)
{
    if (k->is_waited_for)
        bt_loop_stop(&k->gateway->control);
    k->is_waited_for = false;
}

static void on_deadline(bt_timer_t *timer)
{
    stop_waiting(bt_container_of(timer, bt_keys_store_t, deadline));
}

/* ---- all keys ---- */

static void say(bt_keys_store_t *k, const char *why)
{
    if (strcmp(k->said, why) == 0)
        return;
    bt_str_copy(k->said, sizeof k->said, why);
    if (why[0] != '\0')
        bt_log_error("gateway", "client keys in the store: %s", why);
}

static int by_name(const void *a, const void *b)
{
    const bt_str_t x = ((const bt_store_row_t *) a)->name, y = ((const bt_store_row_t *) b)->name;
    const int order = memcmp(x.p, y.p, x.n < y.n ? x.n : y.n);

    return order != 0 ? order : (x.n > y.n) - (x.n < y.n);
}

static int put_rows(const bt_store_reply_t *reply, bt_text_t *out)
{
    bt_store_row_t *rows = malloc((reply->row_count + 1) * sizeof *rows);

    if (rows == NULL)
        return BT_E_NOMEM;
    memcpy(rows, reply->rows, reply->row_count * sizeof *rows);
    qsort(rows, reply->row_count, sizeof *rows, by_name); /* a table has no order of its own */
    for (unsigned i = 0; i < reply->row_count; i++) {
        const bt_str_t line = bt_key_line_of_row(rows[i].name, rows[i].value);
        bt_text_put(out, line.n > 0 ? line : BT_STR("?"));
        bt_text_puts(out, "\n");
    }
    free(rows);
    return out->failed ? BT_E_NOMEM : 0;
}

/* A store that is away says so itself. */
static void say_error(bt_keys_store_t *k, const bt_store_reply_t *reply)
{
    if ((reply->rc == BT_E_INVAL || reply->rc == BT_E_STORE) && reply->error != NULL)
        say(k, reply->error);
}

static void take(bt_keys_store_t *k, bt_key_table_t *table)
{
    bt_audit_change_t change;

    if (k->now != NULL && bt_key_table_same(table, k->now)) {
        bt_key_table_unref(table);
        return;
    }
    bt_key_table_unref(k->now);
    k->now = bt_key_table_ref(table);
    bt_gateway_audit_keys(k->gateway, "store", &change);
    bt_identities_set_keys(k->all, table);
    bt_audit_end(&change, 0, BT_STR(""));
    bt_log_info("gateway", "%u client keys of the store count from now on",
                bt_key_table_count(k->now));
}

static void end_look(bt_keys_store_t *k)
{
    k->is_asking = false;
    stop_waiting(k);
}

static void on_rows(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    bt_keys_store_t *k = bt_container_of(op, bt_keys_store_t, op);
    bt_key_table_t *table = NULL;
    unsigned left_out = 0;
    char why[256] = "";
    bt_text_t text;
    int rc = reply->rc;

    say_error(k, reply);
    bt_text_init(&text);
    if (rc == 0)
        rc = put_rows(reply, &text);
    if (rc == 0)
        rc = bt_key_table_of(bt_text_str(&text), &left_out, &table, why, sizeof why);
    bt_text_fini(&text);
    if (rc == 0)
        take(k, table);
    if (rc == 0 || rc == BT_E_CONFIG) { /* of rows that are no keys, or of none at all */
        memcpy(k->number, k->number_now, sizeof k->number);
        k->read_ms = bt_clock_ms();
        bt_identities_note_store(k->all, k->read_ms, left_out);
        say(k, why);
    }
    end_look(k);
}

static void ask(bt_keys_store_t *k, enum bt_store_what what, bt_str_t key,
                void (*cb)(bt_store_op_t *, const bt_store_reply_t *))
{
    k->op.what = what;
    k->op.space = bt_str(k->gateway->shared.space);
    k->op.key = key;
    k->op.cb = cb;
    k->is_asking = true;
    bt_store_do(k->client, &k->op);
}

static void on_number(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    bt_keys_store_t *k = bt_container_of(op, bt_keys_store_t, op);
    const uint64_t now_ms = bt_clock_ms();

    if (reply->rc < 0) {
        say_error(k, reply);
        end_look(k);
        return;
    }
    memset(k->number_now, 0, sizeof k->number_now);
    if (!reply->is_none)
        memcpy(k->number_now, reply->text.p,
               reply->text.n < NUMBER_BYTES ? reply->text.n : NUMBER_BYTES);
    if (k->read_ms != 0 && now_ms - k->read_ms < ALL_MS &&
        memcmp(k->number, k->number_now, NUMBER_BYTES) == 0) {
        bt_identities_confirm_store(k->all, now_ms);
        end_look(k);
        return;
    }
    ask(k, BT_STORE_TABLE_ALL, BT_STR(BT_KEY_STORE_TABLE), on_rows);
}

static void look(void *user)
{
    bt_keys_store_t *k = user;

    if (!k->is_asking)
        ask(k, BT_STORE_CELL_GET, BT_STR(BT_KEY_STORE_CHANGES), on_number);
}

static void on_timer(bt_timer_t *timer)
{
    bt_timer_start(timer, LOOK_MS);
    look(bt_container_of(timer, bt_keys_store_t, timer));
}

/* ---- life ---- */

int bt_keys_store_open(bt_keys_store_t **keys_p, bt_gateway_t *g, bt_identities_t *all)
{
    bt_keys_store_t *k = calloc(1, sizeof *k);
    int rc;

    if (k == NULL)
        return BT_E_NOMEM;
    k->gateway = g;
    k->all = all;
    bt_timer_init(&g->control, &k->timer, on_timer);
    bt_timer_init(&g->control, &k->deadline, on_deadline);
    if ((rc = bt_store_client_new(&k->client, g->store, &g->control, look, k)) < 0) {
        free(k);
        return rc;
    }
    *keys_p = k;
    bt_timer_start(&k->timer, LOOK_MS);
    bt_timer_start(&k->deadline, BT_FLEET_JOIN_MS);
    k->is_waited_for = true;
    bt_loop_run(&g->control); /* or the first clients would be refused; signals end it, too */
    bt_timer_stop(&k->deadline);
    k->is_waited_for = false;
    if (k->now == NULL)
        bt_log_error("gateway", "the store has told no client key yet: until it does, keys are "
                                "refused (baton key new --store URL makes one)");
    return 0;
}

static void on_client_gone(void *user)
{
    bt_keys_store_t *k = user;

    k->client = NULL;
    bt_loop_stop(&k->gateway->control);
}

void bt_keys_store_close(bt_keys_store_t *k)
{
    if (k == NULL)
        return;
    bt_timer_stop(&k->timer);
    bt_store_cancel(&k->op);
    bt_store_client_free(k->client, on_client_gone, k);
    while (k->client != NULL)
        bt_loop_run(&k->gateway->control);
    bt_key_table_unref(k->now);
    free(k);
}
