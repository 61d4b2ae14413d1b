/* params.c - see params.h.
 *
 * Python reads these dicts: "true" and 1 are true, a port may be a string, null is as good as absent only where the engine
 * asks for truth and not for the key.
 */
#include "params.h"

#include <stdio.h>

static bool is_truthy(const bt_json_item_t *item)
{
    switch (item->type) {
    case BT_JSON_TRUE:
        return true;
    case BT_JSON_NUMBER:
        return !bt_str_eq(item->value, BT_STR("0"));
    case BT_JSON_STRING:
        return item->value.n > 2;
    case BT_JSON_ARRAY:
    case BT_JSON_OBJECT:
        return bt_json_count(item->value) > 0;
    default:
        return false;
    }
}

static bool take_text(const bt_json_item_t *item, bt_arena_t *arena, bt_str_t *out_p)
{
    if (item->type == BT_JSON_NULL)
        return false;
    *out_p = sim_raw_text((sim_raw_t){item->value, item->type}, arena);
    return true;
}

/* One list per KV-cache group; the simulated model has one group. A flat list (older engines) is not understood. */
static void take_blocks(const bt_json_item_t *item, bt_arena_t *arena, sim_params_t *p)
{
    sim_raw_t group = {0}, outer = {item->value, item->type};
    bt_json_cursor_t c;
    bt_json_item_t id;
    int64_t number;

    if (sim_raw_count(outer) > 0)
        group = sim_raw_at(outer, 0);
    p->ids = bt_arena_alloc(arena, (sim_raw_count(group) + 1) * sizeof(*p->ids));
    if (group.type != BT_JSON_ARRAY)
        return;
    bt_json_array(&c, group.value);
    while (bt_json_next(&c, &id) == 1)
        p->ids[p->id_count++] =
            bt_json_i64(id.value, &number) == 0 && number > 0 ? (uint32_t) number : 0;
}

static void take_room(const bt_json_item_t *item, sim_params_t *p)
{
    int64_t room = 0;

    p->has_room = true;
    p->is_room_wrong =
        item->type != BT_JSON_NUMBER || bt_json_i64(item->value, &room) != 0 || room <= 0;
    p->room = p->is_room_wrong ? 0 : (uint64_t) room;
}

static void take(const bt_json_item_t *item, bt_arena_t *arena, sim_params_t *p)
{
    if (bt_json_key_eq(item, BT_STR("do_remote_decode")))
        p->do_remote_decode = is_truthy(item);
    else if (bt_json_key_eq(item, BT_STR("do_remote_prefill")))
        p->do_remote_prefill = is_truthy(item);
    else if (bt_json_key_eq(item, BT_STR("remote_block_ids")))
        take_blocks(item, arena, p);
    else if (bt_json_key_eq(item, BT_STR("remote_engine_id")))
        p->has_engine_id = take_text(item, arena, &p->engine_id);
    else if (bt_json_key_eq(item, BT_STR("remote_host")))
        p->has_host = take_text(item, arena, &p->host);
    else if (bt_json_key_eq(item, BT_STR("remote_port")))
        p->has_port = take_text(item, arena, &p->port);
    else if (bt_json_key_eq(item, BT_STR("remote_request_id")))
        p->has_request_id = take_text(item, arena, &p->request_id);
    else if (bt_json_key_eq(item, BT_STR("transfer_id")))
        take_text(item, arena, &p->transfer_id);
    else if (bt_json_key_eq(item, BT_STR("remote_bootstrap_addr")))
        take_text(item, arena, &p->bootstrap);
    else if (bt_json_key_eq(item, BT_STR("baton_room")))
        take_room(item, p);
    else if (bt_json_key_eq(item, BT_STR("sim_source")))
        take_text(item, arena, &p->source);
    else if (bt_json_key_eq(item, BT_STR("remote_prefill_cached_tokens")))
        p->has_prefill_cached = bt_json_i64(item->value, &p->prefill_cached) == 0;
    else if (bt_json_key_eq(item, BT_STR("tp_size")))
        p->has_tp = bt_json_i64(item->value, &p->tp) == 0;
}

void sim_params_read(sim_raw_t raw, bt_arena_t *arena, sim_params_t *params_p)
{
    bt_json_cursor_t c;
    bt_json_item_t item;

    *params_p = (sim_params_t){.is_there = raw.type == BT_JSON_OBJECT};
    if (!params_p->is_there)
        return;
    bt_json_object(&c, raw.value);
    while (bt_json_next(&c, &item) == 1)
        take(&item, arena, params_p);
}

bool sim_params_complete(const sim_params_t *p)
{
    return p->has_engine_id && p->has_host && p->has_port && p->has_request_id && p->id_count > 0;
}

static void put_blocks(bt_text_t *t, const sim_held_t *held)
{
    bt_text_puts(t, "[[");
    for (unsigned i = 0; i < held->blocks; i++)
        bt_text_printf(t, "%s%u", i > 0 ? "," : "", held->ids[i]);
    bt_text_puts(t, "]]");
}

static void put_ascend(bt_text_t *t, const sim_held_t *held, const sim_worker_options_t *o)
{
    bt_text_printf(
        t,
        ",\"remote_pcp_size\":1,\"remote_dcp_size\":1,\"remote_ptp_size\":%u,\"last_token_id\":1,"
        "\"remote_multi_nodes_meta_mapping\":{},\"num_prompt_blocks\":%u,\"remote_block_size\":%u}",
        o->tp, held->blocks, o->block_size);
}

/* Which does not tell decode what prefill's own cache had. */
static bool is_before_0_32(const char *version)
{
    unsigned minor;

    return sscanf(version, "0.%u", &minor) == 1 && minor < 32;
}

static void put_nixl(bt_text_t *t, const sim_held_t *held, const sim_worker_options_t *o,
                     unsigned cached_tokens)
{
    bool push = o->connector == SIM_NIXL_PUSH;

    bt_text_printf(t,
                   ",\"tp_size\":%u,\"dcp_size\":1,\"pp_size\":1,\"remote_num_tokens\":%u%s,"
                   "\"transfer_mode\":\"%s\"",
                   o->tp, held->prompt_tokens, push ? "" : ",\"remote_blocks_expiry_time\":null",
                   push ? "push" : "pull");
    if (!is_before_0_32(o->version))
        bt_text_printf(t, ",\"remote_prefill_cached_tokens\":%u", cached_tokens);
    bt_text_puts(t, "}");
}

bt_str_t sim_params_print(const sim_held_t *held, unsigned cached_tokens, bt_arena_t *arena)
{
    const sim_worker_options_t *o = &held->worker->options;
    bt_str_t out;
    bt_text_t t;

    bt_text_init(&t);
    bt_text_puts(&t,
                 "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_block_ids\":");
    put_blocks(&t, held);
    bt_text_puts(&t, ",\"remote_engine_id\":");
    bt_text_json_str(&t, bt_str(o->engine_id));
    bt_text_puts(&t, ",\"remote_request_id\":");
    bt_text_json_str(&t, bt_str(held->id));
    bt_text_printf(&t, ",\"remote_host\":\"127.0.0.1\",\"remote_port\":%u",
                   held->worker->side_port);
    if (o->connector == SIM_ASCEND)
        put_ascend(&t, held, o);
    else
        put_nixl(&t, held, o, cached_tokens);
    out = bt_arena_str(arena, bt_text_str(&t));
    bt_text_fini(&t);
    return out;
}
