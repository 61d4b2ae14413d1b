#include "tools/sim.h"

#include "tools/flags.h"

#include <stdlib.h>

#define refuse(...) bt_tool_error(BT_TOOL_WRONG, "sim: ", __VA_ARGS__)

#define QUEUE_TIMEOUT_S 60.0 /* unless said, as the gateway */
#define QUEUE_AGING_S 30.0

void bt_sim_tool_help(bt_text_t *out)
{
    bt_text_puts(
        out,
        "usage: baton sim POLICY [K=V ...] [POLICY [K=V ...]] ... --trace TRACE [flags]\n"
        "       baton sim compare A B ... the same, to the reader\n"
        "       baton sim advise POLICY --engines N --trace TRACE [flags]\n\n"
        "Runs policies, as the gateway would, against a modelled fleet in virtual time: goodput, "
        "latencies, cache hits. A\n"
        "second policy and those behind it are compared with the first, request by request. advise "
        "tries every split of\n"
        "N engines into prefill and decode, and all of them alone. POLICY: a Lua file, or a "
        "shipped policy's name; K=V\n"
        "behind it are its parameters.\n\n"
        "Load\n"
        "  --trace FILE           Mooncake's or Qwen-Bailian's JSON lines, BurstGPT's CSV (no "
        "prefixes), a gateway's own\n"
        "                         --record-file (the answer says what records cannot tell); or\n"
        "                         " BT_SIM_GENERATORS "\n"
        "  --skip N, --requests N leave out the first N, take N of the rest (all)\n"
        "  --speed X              arrivals X times as fast (1)\n"
        "  --concurrency N        N requests at a time instead of the trace's arrivals\n"
        "Fleet\n"
        "  --prefill N, --decode N  pairs (2 and 2)\n"
        "  --engines N            N engines that do both; with advise, as many in all\n"
        "  --engine-model M       how fast an engine is: dynamo_mocker, llm_d_8b_h100, or a Lua "
        "file (dynamo_mocker)\n"
        "  --prefix-index I       exact: policies know what engines hold, by their events; "
        "approximate: what they were sent (exact)\n"
        "  --event-delay-ms T     events are known so late (10)\n"
        "  --preempt              answers are admitted without room for what they will add, as by "
        "vLLM's v1; where KV runs out the\n"
        "                         youngest is computed again (else who is admitted has room for "
        "all)\n"
        "  --fail WHO@FROM[-UNTIL],...\n"
        "                         engines whose process ends at FROM, in seconds, and is back at "
        "UNTIL "
        "(never), empty: p0, d1, w2,\n"
        "                         or all of a role: prefill, decode, hybrid; silent:WHO: their "
        "host takes connections and does not "
        "answer\n"
        "  --switch WHO@AT,...    engines that take the other role at AT, when they are idle: p1, "
        "d0\n"
        "  --switch-auto          roles by the gateway's own advice, as its --role-switch-auto\n"
        "Queue, as the gateway's: before the pool, by the policy's enqueue hook\n"
        "  --max-concurrent-requests N\n"
        "                         so many run at once (no limit)\n"
        "  --queue-size N         above them so many wait; others are refused (0)\n"
        "  --queue-timeout-secs S so long at most; refused at once where the predicted wait is "
        "longer (60)\n"
        "  --queue-aging-secs S   a class whose oldest has waited so long gets a token of five "
        "from those above (30; 0 = never)\n"
        "Answer\n"
        "  --ttft-slo-ms T, --tpot-slo-ms T\n"
        "                         what a good request keeps (2000, 100)\n"
        "  --plot FILE.svg        TTFT and TPOT by share of requests, a line a policy\n"
        "                         gpu-s: GPU-seconds of the whole fleet for each good request (an "
        "engine model's gpus and gpu_hour_cost)\n"
        "                         hit%: of prompt tokens; above the table, what one cache without "
        "end would hit, and one with the\n"
        "                         memory of those that prefill, or of all: forgetting as engines "
        "do, or knowing what comes\n"
        "  --json                 one object a run, then one a comparison\n"
        "  --seed N               of chance: policies' and the generator's (1)\n\n"
        "What is modelled: chunked prefill and continuous batching, a cache of blocks that forgets "
        "the least recently used,\n"
        "KV capacity, transfers one after the other on both links. After a failure: connections "
        "that are reset, KV that is lost\n"
        "or kept until its lease ends, the gateway's retries (3 attempts, none once a token is "
        "out), "
        "breakers and health checks. What\n"
        "is not: the gateway's own time. Of hooks, recompute and what waits for a host or "
        "the store are not served.\n\n"
        "Exit status: 0 done, 1 a run failed or nothing could be written, 2 a wrong command line, "
        "policy, trace or model.\n\n"
        "Examples\n"
        "  baton sim round_robin dynamo_kv --trace conversation_trace.jsonl --prefill 4 --decode "
        "4\n"
        "  baton sim mine.lua --trace conversations:rate=8,turns=6 --engines 8 --plot mine.svg\n"
        "  baton sim advise least_load --engines 8 --trace conversation_trace.jsonl\n");
}

/* Not a whole one, as options' are. */
static int read_number(void *options, bt_tool_line_t *line)
{
    const bt_option_t *o = &line->flag->option;
    char *end;
    const double number = strtod(line->value, &end);

    if (end == line->value || *end != '\0' || !(number >= o->min && number <= o->max))
        return refuse("%s: expected a number from %g to %g, got \"%.40s\"", line->flag->name,
                      o->min, o->max, line->value);
    *(double *) (void *) ((char *) options + o->offset) = number;
    return 0;
}

/* A policy, or a parameter of the last one. */
static int read_word(void *options, bt_tool_line_t *line)
{
    bt_sim_options_t *o = options;
    const char *const *word = line->argv + line->at;
    const bool is_param = strchr(*word, '=') != NULL;

    if (is_param && o->policy_count == 0)
        return refuse("%.100s: of which policy? its parameters stand behind it", *word);
    if (is_param) {
        bt_replay_policy_t *last = &o->policies[o->policy_count - 1];
        if (last->params == NULL)
            last->params = word;
        if (last->params + last->param_count != word)
            return refuse("%.100s: a policy's parameters stand together, behind it", *word);
        last->param_count++;
        return 0;
    }
    if (o->policy_count == BT_SIM_POLICIES_MAX)
        return refuse("at most %d policies", BT_SIM_POLICIES_MAX);
    o->policies[o->policy_count++] = (bt_replay_policy_t){.name = *word};
    return 0;
}

static const bt_word_t indexes[] = {
    {"exact", BT_SIM_INDEX_EXACT, false}, {"approximate", BT_SIM_INDEX_APPROXIMATE, false}, {0}};

#define TEXT(flag, member) BT_TOOL_TEXT(flag, bt_sim_options_t, member)
#define SWITCH(flag, member) BT_TOOL_SWITCH(flag, bt_sim_options_t, member)
#define COUNT(flag, member, least, most)                                                           \
    BT_TOOL_OPTION(flag, bt_sim_options_t, member, .kind = BT_OPTION_UINT, .min = (least),         \
                   .max = (most))
#define NUMBER(flag, member, least, most)                                                          \
    {                                                                                              \
        .name = (flag), .read = read_number, .option = {                                           \
            .offset = offsetof(bt_sim_options_t, member),                                          \
            .min = (least),                                                                        \
            .max = (most)                                                                          \
        }                                                                                          \
    }
static const bt_tool_flag_t flags[] = {
    TEXT("--trace", trace),
    TEXT("--engine-model", model),
    TEXT("--plot", plot),
    COUNT("--prefill", prefills, 1, BT_SIM_SIDE_MAX),
    COUNT("--decode", decodes, 1, BT_SIM_SIDE_MAX),
    COUNT("--engines", engines, 1, BT_SIM_ENGINES_MAX),
    COUNT("--concurrency", concurrency, 1, 1000000),
    NUMBER("--speed", speed, 1e-6, 1e6),
    COUNT("--skip", skip, 0, BT_SIM_REQUESTS_MAX),
    COUNT("--requests", requests, 1, BT_SIM_REQUESTS_MAX),
    NUMBER("--ttft-slo-ms", slo.ttft_ms, 0, 1e9),
    NUMBER("--tpot-slo-ms", slo.tpot_ms, 0, 1e9),
    BT_TOOL_OPTION("--seed", bt_sim_options_t, seed, .kind = BT_OPTION_U64, .max = 1e15),
    BT_TOOL_OPTION("--prefix-index", bt_sim_options_t, prefix_index, .kind = BT_OPTION_WORD,
                   .words = indexes),
    NUMBER("--event-delay-ms", event_delay_ms, 0, 1e6),
    SWITCH("--preempt", preempts),
    TEXT("--fail", fail),
    TEXT("--switch", switches),
    SWITCH("--switch-auto", follows_advice),
    COUNT("--max-concurrent-requests", queue.places, 1, 1000000),
    COUNT("--queue-size", queue.size, 0, 1000000),
    NUMBER("--queue-timeout-secs", queue_timeout_s, 0.001, 1e6),
    NUMBER("--queue-aging-secs", queue_aging_s, 0, 1e6),
    SWITCH("--json", is_json)};
static const bt_tool_syntax_t syntax = {"sim", flags, sizeof flags / sizeof flags[0], read_word};

static int check_changes(bt_sim_options_t *o)
{
    char err[256] = "";
    int rc = 0;

    if (o->fail != NULL)
        rc = bt_sim_failures_read(o->fail, o->prefills, o->decodes, o->engines, o->failures,
                                  &o->failure_count, err, sizeof err);
    if (rc == 0 && o->switches != NULL)
        rc = bt_sim_switches_read(o->switches, o->prefills, o->decodes, o->switch_list,
                                  &o->switch_count, err, sizeof err);
    return rc < 0 ? refuse("%s", err) : 0;
}

static int check_queue(bt_sim_options_t *o)
{
    const char *flag = o->queue.size > 0                       ? "--queue-size"
                       : o->queue_timeout_s != QUEUE_TIMEOUT_S ? "--queue-timeout-secs"
                       : o->queue_aging_s != QUEUE_AGING_S     ? "--queue-aging-secs"
                                                               : NULL;

    if (o->queue.places == 0 && flag != NULL)
        return refuse("%s: for how many places do they wait? --max-concurrent-requests N", flag);
    o->queue.timeout_ms = (uint64_t) (o->queue_timeout_s * 1000);
    o->queue.aging_ms = (uint64_t) (o->queue_aging_s * 1000);
    return 0;
}

static int check(bt_sim_options_t *o)
{
    const bool has_pairs = o->prefills > 0 || o->decodes > 0;

    if (o->policy_count == 0)
        return refuse("which policy? baton sim --help shows examples");
    if (o->trace == NULL)
        return refuse("which load? --trace FILE, or --trace conversations");
    if (has_pairs && o->engines > 0)
        return refuse("--engines do both, and --prefill and --decode a half each: either");
    if (o->advises && (o->engines < 2 || o->engines >= BT_SIM_RUNS_MAX))
        return refuse("advise: how many engines are there? --engines 2 to %d", BT_SIM_RUNS_MAX - 1);
    if (o->advises && o->policy_count > 1)
        return refuse("advise: one policy at a time");
    if (o->advises && (o->fail != NULL || o->switches != NULL))
        return refuse("advise: %s names engines of one fleet, and here each run has its own",
                      o->fail != NULL ? "--fail" : "--switch");
    if (o->advises && o->follows_advice)
        return refuse("advise: --switch-auto has a run of its own there");
    if (o->follows_advice && o->engines > 0)
        return refuse("--switch-auto: --engines do both roles");
    if (!o->advises && o->engines == 0) {
        o->prefills = o->prefills > 0 ? o->prefills : 2;
        o->decodes = o->decodes > 0 ? o->decodes : 2;
    }
    const int status = check_queue(o);
    return status != 0 ? status : check_changes(o);
}

int bt_sim_options(bt_sim_options_t *o, int argc, const char *const *argv)
{
    *o = (bt_sim_options_t){.model = "dynamo_mocker",
                            .prefix_index = BT_SIM_INDEX_EXACT,
                            .event_delay_ms = 10,
                            .speed = 1,
                            .seed = 1,
                            .queue_timeout_s = QUEUE_TIMEOUT_S,
                            .queue_aging_s = QUEUE_AGING_S,
                            .slo = {.ttft_ms = 2000, .tpot_ms = 100}};
    o->advises = argc > 0 && strcmp(argv[0], "advise") == 0;
    const int first = o->advises || (argc > 0 && strcmp(argv[0], "compare") == 0);
    const int status = bt_tool_flags_read(&syntax, o, argc - first, argv + first);
    return status != 0 ? status : check(o);
}
