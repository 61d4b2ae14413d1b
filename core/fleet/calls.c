/* Log `calls`: "<name> <argument>". Every replica reads every entry once, whoever wrote it, from the moment on in which it has begun to read.
 * A gap (a flushed store, a replica that was away for long) loses calls: what they order is worth doing now or never.
 */
#include "fleet/fleet_impl.h"

#include "base/err.h"

#include <stdio.h>

#define CALLS_KEPT 1000
#define CALLS_READ 500

int bt_fleet_call(bt_fleet_t *fleet, const char *name, bt_str_t argument)
{
    if (argument.n > BT_FLEET_CALL_MAX)
        return BT_E_LIMIT;
    if (fleet->is_closing || !bt_store_client_is_up(fleet->client))
        return BT_E_STORE_UNAVAILABLE;
    fleet->out.len = 0;
    bt_text_puts(&fleet->out, name);
    bt_text_puts(&fleet->out, " ");
    bt_text_put(&fleet->out, argument);
    if (fleet->out.failed || !bt_fleet_put(fleet, (bt_store_op_t){.what = BT_STORE_LOG_ADD,
                                                                  .key = BT_STR("calls"),
                                                                  .value = bt_text_str(&fleet->out),
                                                                  .limit = CALLS_KEPT}))
        return BT_E_NOMEM;
    atomic_fetch_add_explicit(&fleet->calls_sent, 1, memory_order_relaxed);
    return 0;
}

/* Ours first: the word that says that the table of workers has changed. */
static void receive(bt_fleet_t *fleet, bt_str_t text)
{
    bt_str_t name;

    if (!bt_fleet_next_word(&text, ' ', &name))
        return;
    atomic_fetch_add_explicit(&fleet->calls_received, 1, memory_order_relaxed);
    if (bt_str_eq(name, BT_STR("workers")))
        bt_fleet_rows_read(fleet);
    else if (fleet->on_call != NULL)
        fleet->on_call(fleet->user, name, text);
}

static void on_rows(bt_fleet_t *fleet, const bt_store_reply_t *reply)
{
    if (reply->rc != 0)
        return;
    for (unsigned i = 0; i < reply->row_count; i++)
        receive(fleet, reply->rows[i].value);
    if (reply->text.n < sizeof(fleet->calls_at))
        snprintf(fleet->calls_at, sizeof(fleet->calls_at), "%.*s", BT_STR_ARG(reply->text));
}

void bt_fleet_calls_tick(bt_fleet_t *fleet)
{
    if (fleet->calls_query.is_out)
        return;
    bt_fleet_query(fleet, &fleet->calls_query,
                   (bt_store_op_t){.what = BT_STORE_LOG_READ,
                                   .key = BT_STR("calls"),
                                   .field = bt_str(fleet->calls_at),
                                   .limit = CALLS_READ},
                   on_rows);
}
