/* Log `calls`: "<name> <argument>". Every replica reads every entry once, whoever wrote it, from the moment on in which it has begun to read.
 * A gap (a flushed store, a replica that was away for long) loses calls: what they order is worth doing now or never.
 */
#include "share/share_impl.h"

#include "base/err.h"

#include <stdio.h>

#define CALLS_KEPT 1000
#define CALLS_READ 500

int bt_share_call(bt_share_t *share, const char *name, bt_str_t argument)
{
    if (argument.n > BT_SHARE_CALL_MAX)
        return BT_E_LIMIT;
    if (share->is_closing || !bt_store_client_is_up(share->client))
        return BT_E_STORE_AWAY;
    share->out.len = 0;
    bt_text_puts(&share->out, name);
    bt_text_puts(&share->out, " ");
    bt_text_put(&share->out, argument);
    if (share->out.failed || !bt_share_put(share, (bt_store_op_t){.what = BT_STORE_LOG_ADD,
                                                                  .key = BT_STR("calls"),
                                                                  .value = bt_text_str(&share->out),
                                                                  .limit = CALLS_KEPT}))
        return BT_E_NOMEM;
    atomic_fetch_add_explicit(&share->calls_sent, 1, memory_order_relaxed);
    return 0;
}

/* Ours first: the word that says that the table of workers has changed. */
static void receive(bt_share_t *share, bt_str_t text)
{
    bt_str_t name;

    if (!bt_share_next_word(&text, ' ', &name))
        return;
    atomic_fetch_add_explicit(&share->calls_received, 1, memory_order_relaxed);
    if (bt_str_eq(name, BT_STR("workers")))
        bt_share_rows_look(share);
    else if (share->on_call != NULL)
        share->on_call(share->user, name, text);
}

static void on_rows(bt_share_t *share, const bt_store_reply_t *reply)
{
    if (reply->rc != 0)
        return;
    for (unsigned i = 0; i < reply->row_count; i++)
        receive(share, reply->rows[i].value);
    if (reply->text.n < sizeof(share->calls_at))
        snprintf(share->calls_at, sizeof(share->calls_at), "%.*s", BT_STR_ARG(reply->text));
}

void bt_share_calls_beat(bt_share_t *share)
{
    if (share->calls_ask.is_out)
        return;
    bt_share_ask(share, &share->calls_ask,
                 (bt_store_op_t){.what = BT_STORE_LOG_READ,
                                 .key = BT_STR("calls"),
                                 .field = bt_str(share->calls_at),
                                 .limit = CALLS_READ},
                 on_rows);
}
