#include "tools/sim.h"

#include "config/suggest.h"

#include <stdlib.h>

#define refuse(...) bt_tool_error(BT_TOOL_WRONG, "sim: ", __VA_ARGS__)

enum kind { TEXT, NUMBER, SWITCH };
static const struct flag {
    const char *name;
    size_t offset;
    enum kind kind;
    double min, max;
} flags[] = {
    {"--trace", offsetof(bt_sim_options_t, trace), TEXT, 0, 0},
    {"--engine-model", offsetof(bt_sim_options_t, model), TEXT, 0, 0},
    {"--plot", offsetof(bt_sim_options_t, plot), TEXT, 0, 0},
    {"--prefill", offsetof(bt_sim_options_t, prefills), NUMBER, 1, BT_SIM_SIDE_MAX},
    {"--decode", offsetof(bt_sim_options_t, decodes), NUMBER, 1, BT_SIM_SIDE_MAX},
    {"--engines", offsetof(bt_sim_options_t, engines), NUMBER, 1, BT_SIM_ENGINES_MAX},
    {"--concurrency", offsetof(bt_sim_options_t, concurrency), NUMBER, 1, 1e6},
    {"--speed", offsetof(bt_sim_options_t, speed), NUMBER, 1e-6, 1e6},
    {"--skip", offsetof(bt_sim_options_t, skip), NUMBER, 0, BT_SIM_REQUESTS_MAX},
    {"--requests", offsetof(bt_sim_options_t, requests), NUMBER, 1, BT_SIM_REQUESTS_MAX},
    {"--ttft-slo-ms", offsetof(bt_sim_options_t, slo.ttft_ms), NUMBER, 0, 1e9},
    {"--tpot-slo-ms", offsetof(bt_sim_options_t, slo.tpot_ms), NUMBER, 0, 1e9},
    {"--seed", offsetof(bt_sim_options_t, seed), NUMBER, 0, 1e15},
    {"--prefix-index", offsetof(bt_sim_options_t, prefix_index), TEXT, 0, 0},
    {"--event-delay-ms", offsetof(bt_sim_options_t, event_delay_ms), NUMBER, 0, 1e6},
    {"--fail", offsetof(bt_sim_options_t, fail), TEXT, 0, 0},
    {"--switch", offsetof(bt_sim_options_t, switches), TEXT, 0, 0},
    {"--switch-auto", offsetof(bt_sim_options_t, follows_advice), SWITCH, 0, 0},
    {"--json", offsetof(bt_sim_options_t, is_json), SWITCH, 0, 0},
};
#define FLAG_COUNT (sizeof flags / sizeof flags[0])

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
        "  --fail WHO@FROM[-UNTIL],...\n"
        "                         engines whose process ends at FROM, in seconds, and is back at "
        "UNTIL "
        "(never), empty: p0, d1, w2,\n"
        "                         or all of a role: prefill, decode, hybrid\n"
        "  --switch WHO@AT,...    engines that take the other role at AT, when they are idle: p1, "
        "d0\n"
        "  --switch-auto          roles by the gateway's own advice, as its --role-switch-auto\n"
        "Answer\n"
        "  --ttft-slo-ms T, --tpot-slo-ms T\n"
        "                         what a good request keeps (2000, 100)\n"
        "  --plot FILE.svg        TTFT and TPOT by share of requests, a line a policy\n"
        "                         gpu-s: GPU-seconds of the whole fleet for each good request (an "
        "engine model's gpus and gpu_hour_cost)\n"
        "  --json                 one object a run, then one a comparison\n"
        "  --seed N               of chance: policies' and the generator's (1)\n\n"
        "What is modelled: chunked prefill and continuous batching, a cache of blocks that forgets "
        "the least recently used,\n"
        "KV capacity, transfers one after the other on both links. After a failure: connections "
        "that are reset, KV that is lost\n"
        "or kept until its lease ends, the gateway's retries (3 attempts, none once a token is "
        "out), "
        "breakers and health checks. What\n"
        "is not: preemption (answers are admitted whole), hosts that fall silent, the gateway's "
        "own "
        "time. Of hooks, enqueue, recompute and what waits for a host or "
        "the store are not served.\n\n"
        "Exit status: 0 done, 1 a run failed or nothing could be written, 2 a wrong command line, "
        "policy, trace or model.\n\n"
        "Examples\n"
        "  baton sim round_robin dynamo_kv --trace conversation_trace.jsonl --prefill 4 --decode "
        "4\n"
        "  baton sim mine.lua --trace conversations:rate=8,turns=6 --engines 8 --plot mine.svg\n"
        "  baton sim advise least_load --engines 8 --trace conversation_trace.jsonl\n");
}

static int unknown_flag(const char *word)
{
    const char *near = bt_suggest_row(word, flags, FLAG_COUNT, sizeof flags[0]);

    if (near != NULL)
        return refuse("%.100s: unknown flag, did you mean %s?", word, near);
    return refuse("%.100s: unknown flag; baton sim --help lists them", word);
}

static int read_number(const struct flag *flag, const char *text, double *out)
{
    char *end;

    *out = strtod(text, &end);
    if (end == text || *end != '\0' || !(*out >= flag->min) || *out > flag->max)
        return refuse("%s: expected a number from %g to %g, got \"%.40s\"", flag->name, flag->min,
                      flag->max, text);
    return 0;
}

/* --name VALUE or --name=VALUE. */
static int read_flag(bt_sim_options_t *o, int argc, const char *const *argv, int *at)
{
    const char *word = argv[*at], *equals = strchr(word, '=');
    const size_t n = equals != NULL ? (size_t) (equals - word) : strlen(word);
    unsigned i = 0;

    while (i < FLAG_COUNT && (strlen(flags[i].name) != n || strncmp(flags[i].name, word, n) != 0))
        i++;
    if (i == FLAG_COUNT)
        return unknown_flag(word);
    void *place = (char *) o + flags[i].offset;
    if (flags[i].kind == SWITCH) {
        *(bool *) place = true;
        return equals == NULL ? 0 : refuse("%s has no value", flags[i].name);
    }
    if (equals == NULL && *at + 1 == argc)
        return refuse("%s needs a value", flags[i].name);
    const char *value = equals != NULL ? equals + 1 : argv[++*at];
    if (flags[i].kind == NUMBER)
        return read_number(&flags[i], value, place);
    *(const char **) place = value;
    return 0;
}

/* A policy, or a parameter of the last one. */
static int read_word(bt_sim_options_t *o, const char *const *argv, int at)
{
    const bool is_param = strchr(argv[at], '=') != NULL;

    if (is_param && o->policy_count == 0)
        return refuse("%.100s: of which policy? its parameters stand behind it", argv[at]);
    if (is_param) {
        bt_replay_policy_t *last = &o->policies[o->policy_count - 1];
        if (last->params == NULL)
            last->params = argv + at;
        if (last->params + last->param_count != argv + at)
            return refuse("%.100s: a policy's parameters stand together, behind it", argv[at]);
        last->param_count++;
        return 0;
    }
    if (o->policy_count == BT_SIM_POLICIES_MAX)
        return refuse("at most %d policies", BT_SIM_POLICIES_MAX);
    o->policies[o->policy_count++] = (bt_replay_policy_t){.name = argv[at]};
    return 0;
}

bool bt_sim_is_exact(const bt_sim_options_t *o)
{
    return strcmp(o->prefix_index, "exact") == 0;
}

static int check_changes(bt_sim_options_t *o)
{
    const unsigned prefills = (unsigned) o->prefills, decodes = (unsigned) o->decodes;
    char err[256] = "";
    int rc = 0;

    if (o->fail != NULL)
        rc = bt_sim_failures_read(o->fail, prefills, decodes, (unsigned) o->engines, o->failures,
                                  &o->failure_count, err, sizeof err);
    if (rc == 0 && o->switches != NULL)
        rc = bt_sim_switches_read(o->switches, prefills, decodes, o->switch_list, &o->switch_count,
                                  err, sizeof err);
    return rc < 0 ? refuse("%s", err) : 0;
}

static int check(bt_sim_options_t *o)
{
    const bool has_pairs = o->prefills > 0 || o->decodes > 0;

    if (o->policy_count == 0)
        return refuse("which policy? baton sim --help shows examples");
    if (o->trace == NULL)
        return refuse("which load? --trace FILE, or --trace conversations");
    if (!bt_sim_is_exact(o) && strcmp(o->prefix_index, "approximate") != 0)
        return refuse("--prefix-index %.40s: exact or approximate", o->prefix_index);
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
    return check_changes(o);
}

int bt_sim_options(bt_sim_options_t *o, int argc, const char *const *argv)
{
    int status = 0, at = 0;

    *o = (bt_sim_options_t){.model = "dynamo_mocker",
                            .prefix_index = "exact",
                            .event_delay_ms = 10,
                            .speed = 1,
                            .seed = 1,
                            .slo = {.ttft_ms = 2000, .tpot_ms = 100}};
    o->advises = argc > 0 && strcmp(argv[0], "advise") == 0;
    if (o->advises || (argc > 0 && strcmp(argv[0], "compare") == 0))
        at = 1;
    for (; at < argc && status == 0; at++)
        status = argv[at][0] == '-' ? read_flag(o, argc, argv, &at) : read_word(o, argv, at);
    return status != 0 ? status : check(o);
}
