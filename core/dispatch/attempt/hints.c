/* hints.c - see hints.h. Engines by what their HTTP servers take (SGLang 0.5.23, vLLM 0.32):
 *
 *   SGLang  priority  on every route: nodes of a higher one are evicted later (--radix-eviction-policy priority)
 *           kv_hints  on /generate alone: an envelope, carried to the scheduler; an ill-formed one is a 400
 *   vLLM    neither: its priority is the order of its queue alone, a lower one first, and kv_hints is an argument of
 *           its Python interface
 */
#include "dispatch/attempt/hints.h"
#include "base/log.h"

#include <stdio.h>

#define PROTOCOL_VERSION "0.1"

/* In a list there would be one a prompt, which would not fit the children of a request that is split. */
static const bt_json_item_t *of_client(const bt_request_t *r)
{
    const bt_json_item_t *item = bt_intent_member(&r->intent, BT_MEMBER_KV_HINTS);

    return item != NULL && item->type == BT_JSON_OBJECT &&
                   (r->identity->scopes & BT_MAY_GIVE_KV_HINTS) != 0
               ? item
               : NULL;
}

static void tell_once(const bt_leg_t *leg)
{
    static _Atomic bool is_told;

    if (!atomic_exchange_explicit(&is_told, true, memory_order_relaxed))
        bt_log_warn("dispatch",
                    "worker %s (%s) takes no hints: those of plans go to SGLang's engines alone "
                    "(said once)",
                    leg->worker->name, bt_engine_name(leg->worker->engine));
}

/* All the envelope but its actions is the gateway's: whose request this is engines shall not mistake. */
static bt_str_t envelope(const bt_leg_t *leg, bt_str_t actions)
{
    bt_arena_t *arena = &leg->attempt->task->request->send_arena;
    const bt_str_t id = bt_str(leg->attempt->id);
    char *quoted = bt_arena_alloc(arena, bt_json_quoted_size(id) + 1);

    quoted[bt_json_quote(id, quoted)] = '\0';
    return bt_arena_printf(
        arena, "{\"protocol_version\":\"" PROTOCOL_VERSION "\",\"message_id\":%s,\"actions\":%.*s}",
        quoted, BT_STR_ARG(actions));
}

static int set_priority(bt_leg_t *leg, const bt_hints_t *hints, bt_edits_t *edits)
{
    char text[16];

    if (hints == NULL || !hints->has_priority)
        return 0;
    snprintf(text, sizeof(text), "%ld", (long) hints->priority);
    leg->hinted = "priority";
    return bt_edits_set(edits, BT_STR(""), BT_STR("priority"), bt_str(text), false);
}

static int set_kv_hints(bt_leg_t *leg, const bt_hints_t *hints, const bt_json_item_t *client,
                        bt_edits_t *edits)
{
    const bool is_policys = hints != NULL && hints->kv_actions.n != 0;

    if (leg->attempt->task->request->route != BT_ROUTE_GENERATE || (!is_policys && client == NULL))
        return 0;
    leg->hinted = leg->hinted != NULL ? "priority,kv_hints" : "kv_hints";
    return bt_edits_set(edits, BT_STR(""), BT_STR("kv_hints"),
                        is_policys ? envelope(leg, hints->kv_actions) : client->value, true);
}

int bt_hints_edit(bt_leg_t *leg, bt_edits_t *edits)
{
    const bt_request_t *r = leg->attempt->task->request;
    const bt_kept_hints_t *kept = leg->attempt->task->hints;
    const bt_hints_t *hints = kept != NULL ? &kept->said : NULL;
    const bt_json_item_t *client = of_client(r);
    int rc;

    if (hints == NULL && client == NULL)
        return 0;
    if (!r->intent.has_body || !bt_route_info(r->route)->generates)
        return 0;
    if (leg->worker->engine != BT_ENGINE_SGLANG) {
        if (hints != NULL)
            tell_once(leg);
        return 0;
    }
    rc = set_priority(leg, hints, edits);
    return rc == 0 ? set_kv_hints(leg, hints, client, edits) : rc;
}
