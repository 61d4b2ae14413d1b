/* fanout.c - splitting lists and n > 1 into children: one room or one remote id per prompt and sample.
 *
 * Why: vLLM returns hand-off parameters for the first prompt only; SGLang's samples share a room, and its decode then never
 * answers. So each prompt and sample becomes a request of its own and sink_merge.c puts the choices together again.
 */
#include "dispatch/answer/sink.h"
#include "dispatch/plan/plan.h"

#include <stdio.h>

static bool is_splittable_route(enum bt_route route)
{
    return route == BT_ROUTE_CHAT || route == BT_ROUTE_COMPLETIONS || route == BT_ROUTE_GENERATE ||
           route == BT_ROUTE_TOKENS;
}

bool bt_fanout_needed(const bt_request_t *r, const bt_dialect_t *dialect)
{
    if (r->intent.n > 1)
        return true;
    return r->intent.prompt_count > 1 && !dialect->batch;
}

static int set_prompt(bt_request_t *r, bt_task_t *task, bt_str_t element)
{
    char key[32];
    long n;

    if (r->intent.prompt_count == 0)
        return 0;
    n = bt_json_unescape_raw(r->intent.prompt->key, key, sizeof(key));
    if (n < 0)
        return BT_E_INVAL;
    task->prompt_tokens = task->prompt_tokens / r->intent.prompt_count + 1;
    return bt_edits_set(&task->child, BT_STR(""), (bt_str_t){key, (size_t) n}, element, true);
}

static int set_seed(bt_request_t *r, bt_task_t *task, unsigned sample)
{
    const bool native = r->route == BT_ROUTE_GENERATE;
    const bool nested = native || r->route == BT_ROUTE_TOKENS;

    if (!r->intent.has_seed || sample == 0)
        return 0;
    return bt_edits_set(
        &task->child, nested ? BT_STR("sampling_params") : BT_STR(""),
        native ? BT_STR("sampling_seed") : BT_STR("seed"),
        bt_arena_printf(&r->send_arena, "%lld", (long long) ((uint64_t) r->intent.seed + sample)),
        true);
}

static int make_child(bt_request_t *r, bt_task_t *task, unsigned index, bt_str_t prompt)
{
    const unsigned sample = index % r->intent.n;
    const bool nested = r->route == BT_ROUTE_GENERATE || r->route == BT_ROUTE_TOKENS;
    const uint64_t tokens = r->tasks[0].prompt_tokens;
    int rc;

    *task = (bt_task_t){.request = r, .index = index, .prompt_tokens = tokens};
    task->suffix = bt_arena_printf(&r->arena, "-%u", index).p;
    bt_edits_init(&task->child, &r->send_arena);
    rc = set_prompt(r, task, prompt);
    if (rc == 0)
        rc = bt_edits_remove(&task->child, nested ? BT_STR("sampling_params") : BT_STR(""),
                             BT_STR("n"));
    if (rc == 0)
        rc = set_seed(r, task, sample);
    return rc;
}

static int make_children(bt_request_t *r, bt_task_t *tasks, unsigned count)
{
    int rc = 0;

    for (unsigned i = 0; i < count && rc >= 0; i++)
        rc = make_child(r, &tasks[i], i,
                        r->intent.prompt_count != 0 ? r->intent.prompts[i / r->intent.n]
                                                    : BT_STR_NULL);
    return rc;
}

int bt_fanout_make(bt_request_t *r, const char **why_p)
{
    const uint64_t prompts = r->intent.prompt_count != 0 ? r->intent.prompt_count : 1;
    const uint64_t count = prompts * r->intent.n;
    bt_task_t *tasks;

    if (!is_splittable_route(r->route)) {
        *why_p = "\"n\" above 1 is not possible on this route in a prefill/decode fleet";
        return BT_E_INVAL;
    }
    if (count > r->pool->spec.max_fanout || prompts > BT_PROMPTS_MAX) {
        *why_p = bt_arena_printf(&r->arena,
                                 "%llu prompts and samples in one request; a prefill/decode fleet "
                                 "takes %u (max_fanout)",
                                 (unsigned long long) count, r->pool->spec.max_fanout)
                     .p;
        return BT_E_LIMIT;
    }
    tasks = bt_arena_zalloc(&r->arena, count * sizeof(*tasks));
    if (make_children(r, tasks, (unsigned) count) < 0) {
        *why_p = "the prompt list could not be split";
        return BT_E_INVAL;
    }
    r->tasks = tasks;
    r->task_count = (unsigned) count;
    r->sink = &bt_sink_merge;
    bt_sink_merge_init(r);
    return 0;
}
