/* sglang_check.c - what an SGLang server refuses before its scheduler sees it.
 *
 * Short on purpose: most wrong bootstrap fields are not refused, and what follows is in sglang.c.
 */
#include "sglang.h"

#include <stdio.h>

int sim_sglang_read_room(sim_raw_t raw, uint64_t *room_p)
{
    bt_str_t text = raw.value;

    if (raw.type == BT_JSON_STRING)
        text = (bt_str_t){raw.value.p + 1, raw.value.n - 2};
    else if (raw.type != BT_JSON_NUMBER)
        return -1;
    for (size_t i = 0; i < text.n; i++)
        if (text.p[i] < '0' || text.p[i] > '9')
            return -1;
    return text.n == 0 ? -1 : bt_str_u64(text, room_p) == 0 ? 0 : -2;
}

static int check_one_room(sim_raw_t raw, sim_problem_t *problem_p)
{
    uint64_t room;
    int rc = sim_sglang_read_room(raw, &room);

    if (rc == -1)
        return sim_problem_set(
            problem_p, 400,
            "1 validation error: bootstrap_room: Input should be a valid integer, unable "
            "to parse string as an integer");
    if (rc == -2)
        return sim_problem_set(
            problem_p, 400,
            "1 validation error: bootstrap_room: Unable to parse input string as an integer, "
            "exceeded maximum size");
    return 0;
}

static int check_rooms(sim_job_t *job, sim_problem_t *problem_p)
{
    const sim_ask_t *ask = &job->ask;
    unsigned count = sim_raw_count(ask->room);

    if (sim_sglang_is_absent(ask->room))
        return sim_problem_set(
            problem_p, 400,
            "Invalid request: Disaggregated request received without bootstrap room id. "
            "req.rid='%s'",
            job->id);
    if (ask->room.type != BT_JSON_ARRAY)
        return check_one_room(ask->room, problem_p);
    if (count < ask->prompt_count)
        return sim_problem_set(problem_p, 500, "Internal server error: list index out of range");
    for (unsigned i = 0; i < count; i++)
        if (check_one_room(sim_raw_at(ask->room, i), problem_p) != 0)
            return -1;
    return 0;
}

static int check_rank(sim_job_t *job, sim_problem_t *problem_p)
{
    bt_str_t header = bt_head_get(&job->x->head, BT_STR("x-data-parallel-rank"));
    uint64_t rank = 0;

    if (header.n == 0 && job->ask.dp_rank.type == BT_JSON_NUMBER)
        header = job->ask.dp_rank.value;
    if (header.n == 0)
        return 0;
    if (bt_str_u64(header, &rank) != 0)
        return sim_problem_set(
            problem_p, 400, "Invalid X-Data-Parallel-Rank header: must be an integer, got '%.*s'",
            BT_STR_ARG(header));
    if (rank >= job->worker->options.dp)
        return sim_problem_set(problem_p, 400, "routed_dp_rank=%llu out of range [0, %u)",
                               (unsigned long long) rank, job->worker->options.dp);
    return 0;
}

bool sim_sglang_has_rid(const sim_job_t *job, bt_str_t rid, bool is_prefix)
{
    unsigned count = job->rids != NULL ? job->ask.prompt_count : 1;

    for (unsigned i = 0; i < count; i++) {
        bt_str_t own = job->rids != NULL ? job->rids[i] : bt_str(job->id);
        if (is_prefix ? bt_str_starts(own, rid) : bt_str_eq(own, rid))
            return true;
    }
    return false;
}

static int check_rid(sim_job_t *job, sim_problem_t *problem_p)
{
    bt_list_t *it, *tmp;

    if (sim_sglang_is_absent(job->ask.rid))
        return 0;
    bt_list_each (&job->worker->jobs, it, tmp) {
        const sim_job_t *other = bt_container_of(it, sim_job_t, link);
        for (unsigned i = 0; other != job && i < (job->rids != NULL ? job->ask.prompt_count : 1);
             i++) {
            bt_str_t own = job->rids != NULL ? job->rids[i] : bt_str(job->id);
            if (sim_sglang_has_rid(other, own, false))
                return sim_problem_set(problem_p, 400, "Duplicate request ID detected: %.*s",
                                       BT_STR_ARG(own));
        }
    }
    return 0;
}

/* The schema wants strings and whole numbers; a list's elements are looked at one by one. */
static int check_peer(const sim_ask_t *ask, sim_problem_t *problem_p)
{
    for (unsigned i = 0; i < (ask->prompt_count > 0 ? ask->prompt_count : 1); i++) {
        sim_raw_t host = sim_raw_at(ask->host, i), port = sim_raw_at(ask->port, i);
        uint64_t number;
        if (!sim_sglang_is_absent(host) && host.type != BT_JSON_STRING)
            return sim_problem_set(
                problem_p, 400,
                "1 validation error: bootstrap_host: Input should be a valid string");
        if (!sim_sglang_is_absent(port) && sim_sglang_read_room(port, &number) != 0)
            return sim_problem_set(
                problem_p, 400,
                "1 validation error: bootstrap_port: Input should be a valid integer");
    }
    return 0;
}

static int check_priority(sim_ask_t *ask, sim_problem_t *problem_p)
{
    int64_t priority = 0;

    if (sim_sglang_is_absent(ask->priority))
        return 0;
    if (ask->priority.type != BT_JSON_NUMBER || bt_json_i64(ask->priority.value, &priority) != 0)
        return sim_problem_set(problem_p, 400,
                               "1 validation error: priority: Input should be a valid integer");
    for (unsigned i = 0; i < ask->prompt_count; i++)
        ask->prompts[i].priority = priority;
    return 0;
}

static bool has_text(bt_str_t object, const char *name)
{
    bt_json_item_t item;

    return bt_json_get(object, bt_str(name), &item) == 0 && item.type == BT_JSON_STRING;
}

static bool is_action(const bt_json_item_t *action)
{
    bt_json_item_t payload;

    return action->type == BT_JSON_OBJECT && has_text(action->value, "action_id") &&
           has_text(action->value, "action_type") && has_text(action->value, "action_version") &&
           bt_json_get(action->value, BT_STR("payload"), &payload) == 0 &&
           (payload.type == BT_JSON_OBJECT || payload.type == BT_JSON_NONE);
}

static bool is_envelope(sim_raw_t raw)
{
    bt_json_cursor_t c;
    bt_json_item_t actions, action;
    int rc;

    if (raw.type != BT_JSON_OBJECT || !has_text(raw.value, "protocol_version") ||
        !has_text(raw.value, "message_id") ||
        bt_json_get(raw.value, BT_STR("actions"), &actions) != 0 || actions.type != BT_JSON_ARRAY)
        return false;
    rc = bt_json_array(&c, actions.value);
    while (rc >= 0 && (rc = bt_json_next(&c, &action)) == 1)
        if (!is_action(&action))
            return false;
    return rc == 0;
}

/* Only /generate reads it; a list has one a prompt. */
static int check_kv_hints(const sim_ask_t *ask, sim_problem_t *problem_p)
{
    if (ask->route != SIM_GENERATE || sim_sglang_is_absent(ask->kv_hints))
        return 0;
    if (ask->kv_hints.type == BT_JSON_ARRAY && !ask->is_list)
        return sim_problem_set(problem_p, 400,
                               "kv_hints should be a single envelope for one request.");
    for (unsigned i = 0; i < ask->prompt_count; i++)
        if (!is_envelope(sim_raw_at(ask->kv_hints, i)))
            return sim_problem_set(problem_p, 400, "Malformed kv_hints envelope");
    return 0;
}

int sim_sglang_check(sim_job_t *job, sim_problem_t *problem_p)
{
    sim_ask_t *ask = &job->ask;
    unsigned context = job->worker->options.context;

    for (unsigned i = 0; i < ask->prompt_count; i++)
        if (ask->prompts[i].tokens >= context)
            return sim_problem_set(
                problem_p, 400,
                "The input (%u tokens) is longer than the model's context length (%u tokens).",
                ask->prompts[i].tokens, context);
    if (ask->max_tokens == 0 && ask->route != SIM_GENERATE)
        return sim_problem_set(problem_p, 400, "max_new_tokens must be at least 1, got 0.");
    if (job->max_tokens == 0)
        job->max_tokens = 1;
    if (check_rank(job, problem_p) != 0 || check_rid(job, problem_p) != 0 ||
        check_priority(ask, problem_p) != 0 || check_kv_hints(ask, problem_p) != 0)
        return -1;
    if (!sim_sglang_is_split(job))
        return 0;
    if (sim_sglang_role(job) == SIM_PREFILL) {
        job->max_tokens = 1; /* whatever was asked for */
        job->finish = "length";
    }
    return check_peer(ask, problem_p) != 0 ? -1 : check_rooms(job, problem_p);
}
