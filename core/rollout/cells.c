/* What this replica keeps in cells of the store: the texts of the committed set, for whoever comes
 * after a flush or later; and the set that it is pinned to, texts and all, so that a pin needs
 * nobody else and nothing that is pruned. */
#include "rollout/rollout_impl.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>

#define KEEP_AGAIN_MS 500

bt_str_t bt_rollout_key(bt_rollout_call_t *call, const char *what, const char *whose)
{
    snprintf(call->key, sizeof call->key, "%s:%s", what, whose);
    return bt_str(call->key);
}

const char *bt_rollout_whose(const bt_rollout_call_t *call)
{
    return strchr(call->key, ':') + 1;
}

/* ---- texts ---- */

static void on_kept(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    if (reply->rc < 0)
        return;
    bt_str_copy(r->kept, sizeof r->kept, bt_rollout_whose(&r->keep_call));
    bt_rollout_send_due(r);
}

/* Its proposer wrote it for an hour; and a store that was flushed gets it back. */
void bt_rollout_keep(bt_rollout_t *r)
{
    const bt_rollout_info_t *info = &r->held->info;
    const uint64_t now_ms = bt_clock_ms();
    bt_text_t text;

    if (!r->is_running || r->keep_call.is_out || strcmp(r->kept, info->uuid) == 0 ||
        now_ms - r->kept_ms < KEEP_AGAIN_MS)
        return;
    r->kept_ms = now_ms;
    bt_text_init(&text);
    bt_rollout_set_write(r->held, &text);
    bt_rollout_call(r, &r->keep_call,
                    (bt_store_op_t){.what = BT_STORE_CELL_SET,
                                    .key = bt_rollout_key(&r->keep_call, "policy_set", info->uuid),
                                    .value = bt_text_str(&text)},
                    on_kept);
    bt_text_fini(&text);
}

/* ---- the pin ---- */

static void on_pin_read(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    if (reply->rc < 0)
        return;
    r->is_pin_known = true;
    if (!r->must_store_pin && !reply->is_none && bt_rollout_set_read(&r->pinned, reply->text) == 0)
        r->config.ops->set_pinned(r->config.user, true);
    bt_rollout_end_join(r);
}

static void on_pin_stored(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    r->is_pin_known = true;
    r->must_store_pin |= reply->rc < 0;
}

void bt_rollout_sync_pin(bt_rollout_t *r)
{
    bt_store_op_t op = {.key = bt_rollout_key(&r->pin_call, "policy_pin", r->replica)};
    bt_text_t text;

    if (r->pin_call.is_out || (r->is_pin_known && !r->must_store_pin))
        return;
    bt_text_init(&text);
    if (r->must_store_pin && r->pinned != NULL)
        bt_rollout_set_write(r->pinned, &text);
    op.value = bt_text_str(&text);
    op.what = !r->must_store_pin  ? BT_STORE_CELL_GET
              : r->pinned != NULL ? BT_STORE_CELL_SET
                                  : BT_STORE_CELL_DROP;
    bt_rollout_call(r, &r->pin_call, op, r->must_store_pin ? on_pin_stored : on_pin_read);
    r->must_store_pin = false;
    bt_text_fini(&text);
}

void bt_rollout_pin(bt_rollout_t *r, bool is_pinned)
{
    if (bt_rollout_is_pinned(r) == is_pinned)
        return;
    bt_rollout_set_to(&r->pinned, is_pinned ? r->serving : NULL);
    r->must_store_pin = r->must_report = true;
    r->take_again_ms = 0;
    r->config.ops->set_pinned(r->config.user, is_pinned);
    bt_log_info("fleet",
                is_pinned ? "pinned: this replica stays with set %" PRIu64
                          : "unpinned: this replica follows the fleet again, from set "
                            "%" PRIu64,
                r->serving->info.number);
    bt_rollout_sync_pin(r); /* now: it shall be known after a crash, too */
    bt_rollout_serve(r);
}
