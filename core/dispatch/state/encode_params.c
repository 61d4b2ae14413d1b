/* encode_params.c - ec_transfer_params: from the encoders' replies to the legs that compute the prompt.
 *
 * An encoder names what it has made by the part's hash: {"<hash>": {where it is}}, or in a list, ec_items. One that says nothing
 * has put it into a store that both sides read. Engines trust what they are told, and one that is told a number where it looks
 * for an object ends: such a reply is refused.
 */
#include "dispatch/state/encode_params.h"
#include "base/text.h"

#define MEMBERS_MAX 64 /* of one reply: it is about one part */
static const bt_str_t params_name = BT_STR("ec_transfer_params");
static const bt_str_t items_name = BT_STR("ec_items");

/* ---- is it one? ---- */

static bool is_object_by_part(const bt_json_item_t *item)
{
    bt_json_walk_t w;
    bt_str_t element;
    size_t inner;

    if (!bt_json_key_eq(item, items_name) || item->type == BT_JSON_NULL)
        return item->type == BT_JSON_OBJECT || item->type == BT_JSON_NULL;
    if (item->type != BT_JSON_ARRAY)
        return false;
    bt_json_walk(&w, item->value);
    while (bt_json_walk_next(&w, &element, &inner))
        if (bt_json_type_of(element) != BT_JSON_OBJECT)
            return false;
    return true;
}

const char *bt_encode_params_fault(bt_str_t reply)
{
    const bt_str_t params = bt_json_find(reply, params_name);
    const enum bt_json_type type = params.n != 0 ? bt_json_type_of(params) : BT_JSON_NULL;
    bt_json_walk_t w;
    bt_json_item_t item;

    if (type == BT_JSON_NULL)
        return NULL;
    if (type != BT_JSON_OBJECT)
        return "the encoder's ec_transfer_params are no object";
    if (bt_json_size(params) > MEMBERS_MAX)
        return "the encoder's ec_transfer_params have more members than one part can";
    bt_json_walk(&w, params);
    while (bt_json_walk_member(&w, &item))
        if (!is_object_by_part(&item))
            return "the encoder's ec_transfer_params hold something that is no object of a part";
    return NULL;
}

/* ---- all of them in one ---- */

static bool is_host(const bt_json_item_t *item)
{
    return bt_json_key_eq(item, BT_STR("peer_host")) || bt_json_key_eq(item, BT_STR("remote_host"));
}

static bool is_own_machine(bt_str_t value)
{
    static const bt_str_t local[] = {BT_STR("\"localhost\""), BT_STR("\"0.0.0.0\""),
                                     BT_STR("\"::\""), BT_STR("\"[::]\"")};

    for (unsigned i = 0; i < sizeof(local) / sizeof(local[0]); i++)
        if (bt_str_eq(value, local[i]))
            return true;
    return false;
}

/* Every address that means the encoder's own machine becomes the host that we have dialled. */
static void put_descriptor(bt_text_t *out, bt_str_t object, const bt_worker_t *encoder)
{
    const char *from = object.p;
    bt_json_walk_t w;
    bt_json_item_t item;

    bt_json_walk(&w, object);
    while (bt_json_walk_member(&w, &item))
        if (is_host(&item) && is_own_machine(item.value)) {
            bt_text_put(out, (bt_str_t){from, (size_t) (item.value.p - from)});
            bt_text_json_str(out, bt_str(encoder->host));
            from = item.value.p + item.value.n;
        }
    bt_text_put(out, (bt_str_t){from, (size_t) (object.p + object.n - from)});
}

struct merge {
    bt_text_t members, items;
    struct seen {
        bt_str_t key;
        struct seen *before;
    } * seen;
};

/* Of two encoders that have the same part, either will do. */
static bool is_new(bt_request_t *r, struct merge *m, bt_str_t key)
{
    struct seen *s;

    for (s = m->seen; s != NULL; s = s->before)
        if (bt_str_eq(s->key, key))
            return false;
    s = bt_arena_alloc(&r->arena, sizeof(*s));
    *s = (struct seen){key, m->seen};
    m->seen = s;
    return true;
}

static void put_items(struct merge *m, bt_str_t list, const bt_worker_t *encoder)
{
    bt_json_walk_t w;
    bt_str_t item;
    size_t inner;

    bt_json_walk(&w, list);
    while (bt_json_walk_next(&w, &item, &inner)) {
        bt_text_puts(&m->items, m->items.len != 0 ? "," : "");
        put_descriptor(&m->items, item, encoder);
    }
}

static void put_reply(struct merge *m, const bt_encode_part_t *p)
{
    const bt_str_t params = bt_json_find(p->leg.reply.text, params_name);
    bt_json_walk_t w;
    bt_json_item_t item;

    if (params.n == 0 || bt_json_type_of(params) != BT_JSON_OBJECT)
        return;
    bt_json_walk(&w, params);
    while (bt_json_walk_member(&w, &item)) {
        if (item.type == BT_JSON_NULL)
            continue;
        if (bt_json_key_eq(&item, items_name)) {
            put_items(m, item.value, p->leg.worker);
        } else if (is_new(p->task.request, m, item.key)) {
            bt_text_puts(&m->members, m->members.len != 0 ? ",\"" : "\"");
            bt_text_put(&m->members, item.key);
            bt_text_puts(&m->members, "\":");
            put_descriptor(&m->members, item.value, p->leg.worker);
        }
    }
}

int bt_encode_merge(bt_request_t *r)
{
    struct merge m = {.seen = NULL};
    int rc = 0;

    bt_text_init(&m.members);
    bt_text_init(&m.items);
    for (unsigned i = 0; i < r->encode->count; i++)
        put_reply(&m, &r->encode->parts[i]);
    if (m.items.len != 0) {
        bt_text_puts(&m.members, m.members.len != 0 ? ",\"ec_items\":[" : "\"ec_items\":[");
        bt_text_put(&m.members, bt_text_str(&m.items));
        bt_text_puts(&m.members, "]");
    }
    if (m.members.failed || m.items.failed)
        rc = BT_E_NOMEM;
    else if (m.members.len != 0)
        r->encode->params =
            bt_arena_printf(&r->send_arena, "{%.*s}", BT_STR_ARG(bt_text_str(&m.members)));
    bt_text_fini(&m.members);
    bt_text_fini(&m.items);
    return rc;
}

/* Decode has its KV from prefill, unless it computes the prompt itself. */
int bt_encode_edit(const bt_leg_t *leg, bt_edits_t *edits)
{
    const bt_encode_t *e = leg->attempt->task->request->encode;
    const enum bt_engine engine = leg->worker->engine;

    if (e == NULL || e->params.n == 0 || (leg->role == BT_LEG_DECODE && !leg->attempt->recompute) ||
        (engine != BT_ENGINE_UNKNOWN && engine != BT_ENGINE_VLLM &&
         engine != BT_ENGINE_VLLM_ASCEND))
        return 0;
    return bt_edits_set(edits, BT_STR(""), params_name, e->params, true);
}

/* ---- who it was ---- */

static bool is_named_before(const bt_encode_t *e, unsigned i)
{
    for (unsigned k = 0; k < i; k++)
        if (e->parts[k].worker != NULL && strcmp(e->parts[k].worker, e->parts[i].worker) == 0)
            return true;
    return false;
}

bt_str_t bt_encode_names(bt_request_t *r)
{
    const bt_encode_t *e = r->encode;
    bt_str_t names;
    bt_text_t t;

    if (e == NULL)
        return BT_STR("");
    bt_text_init(&t);
    for (unsigned i = 0; i < e->count; i++)
        if (e->parts[i].worker != NULL && !is_named_before(e, i)) {
            bt_text_puts(&t, t.len != 0 ? "," : "");
            bt_text_puts(&t, e->parts[i].worker);
        }
    names = bt_arena_str(&r->arena, bt_text_str(&t));
    bt_text_fini(&t);
    return names;
}
