/* options.c - see options.h: the command line. What --worker says is read in options_worker.c. */
#include "options_impl.h"

#include <stdarg.h>
#include <stdlib.h>

static const char *const flags[] = {
    "--worker",     "--workers", "--ready-file",  "--seed",       "--model",       "--max-seconds",
    "--time-scale", "--record",  "--record-body", "--help",       "--expect",      "--prompt",
    "--system",     "--ids",     "--chat",        "--max-tokens", "--request-seed"};

int sim_parse_wrong(struct sim_parse *p, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(p->error, p->error_size, fmt, args);
    va_end(args);
    return 2;
}

const char *sim_role_name(enum sim_role role)
{
    static const char *const names[] = {"hybrid", "prefill", "decode", "encode"};

    return names[role];
}

const char *sim_engine_name(enum sim_engine engine)
{
    return engine == SIM_SGLANG ? "sglang" : engine == SIM_TRTLLM ? "trtllm" : "vllm";
}

/* One worker a line, written like --worker; # begins a comment. */
static int parse_file(struct sim_parse *p, const char *path)
{
    FILE *f = fopen(path, "r");
    char line[1024];
    int rc = 0;

    if (f == NULL)
        return sim_parse_wrong(p, "--workers %s: cannot be read", path);
    while (rc == 0 && fgets(line, sizeof(line), f) != NULL) {
        bt_str_t text = bt_str_trim(bt_str(line));
        if (text.n > 0 && text.p[0] != '#')
            rc = sim_parse_worker(p, text);
    }
    fclose(f);
    return rc;
}

static int parse_count(struct sim_parse *p, const char *flag, const char *value, uint64_t *out)
{
    if (bt_str_u64(bt_str(value), out) != 0)
        return sim_parse_wrong(p, "%s %s: must be a whole number", flag, value);
    return 0;
}

static int parse_flag(struct sim_parse *p, const char *flag, const char *value)
{
    sim_options_t *o = p->o;
    uint64_t number = 0;
    int rc = 0;

    if (strcmp(flag, "--worker") == 0)
        return sim_parse_worker(p, bt_str(value));
    if (strcmp(flag, "--workers") == 0)
        return parse_file(p, value);
    if (strcmp(flag, "--ready-file") == 0)
        o->ready_file = value;
    else if (strcmp(flag, "--model") == 0)
        o->model = value;
    else if (strcmp(flag, "--prompt") == 0)
        o->prompt = value;
    else if (strcmp(flag, "--system") == 0)
        o->system = value;
    else if (strcmp(flag, "--ids") == 0)
        o->ids = value;
    else if (strcmp(flag, "--time-scale") == 0)
        rc = sim_parse_real(bt_str(value), &o->time_scale);
    else if (strcmp(flag, "--max-seconds") == 0)
        rc = sim_parse_real(bt_str(value), &o->max_seconds);
    else if (parse_count(p, flag, value, &number) != 0)
        return 2;
    else if (strcmp(flag, "--seed") == 0)
        o->seed = number;
    else if (strcmp(flag, "--request-seed") == 0)
        o->request_seed = number;
    else if (strcmp(flag, "--record") == 0)
        o->record = (unsigned) number;
    else if (strcmp(flag, "--record-body") == 0)
        o->record_body = (unsigned) number;
    else
        o->max_tokens = (unsigned) number;
    return rc == 0 ? 0 : sim_parse_wrong(p, "%s %s: must be a number", flag, value);
}

static int unknown_flag(struct sim_parse *p, const char *flag)
{
    const char *best = flags[0];

    for (size_t i = 1; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (bt_str_distance(bt_str(flag), bt_str(flags[i])) <
            bt_str_distance(bt_str(flag), bt_str(best)))
            best = flags[i];
    return sim_parse_wrong(p, "unknown option %s; did you mean %s?", flag, best);
}

static bool is_flag(const char *flag)
{
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (strcmp(flag, flags[i]) == 0)
            return true;
    return false;
}

static int parse_all(struct sim_parse *p, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        int rc;
        if (!is_flag(argv[i]))
            return unknown_flag(p, argv[i]);
        if (strcmp(argv[i], "--help") == 0)
            return 1;
        if (strcmp(argv[i], "--expect") == 0 || strcmp(argv[i], "--chat") == 0) {
            *(argv[i][2] == 'e' ? &p->o->expect : &p->o->expect_chat) = true;
            continue;
        }
        if (i + 1 == argc)
            return sim_parse_wrong(p, "%s needs a value", argv[i]);
        rc = parse_flag(p, argv[i], argv[i + 1]);
        if (rc != 0)
            return rc;
        i++;
    }
    if (p->o->expect && p->o->prompt == NULL && p->o->ids == NULL)
        return sim_parse_wrong(p, "--expect needs --prompt TEXT or --ids 1,2,3");
    if (!p->o->expect && p->o->worker_count == 0)
        return sim_parse_wrong(p, "no worker: give --worker role=...,... (--help has examples)");
    return 0;
}

int sim_options_parse(int argc, char **argv, sim_options_t *options_p, char *error,
                      size_t error_size)
{
    struct sim_parse p = {options_p, error, error_size};
    int rc;

    *options_p = (sim_options_t){.model = "sim",
                                 .seed = 1,
                                 .time_scale = 1,
                                 .record = 1000,
                                 .record_body = 65536,
                                 .max_tokens = 16};
    rc = parse_all(&p, argc, argv);
    for (unsigned i = 0; i < options_p->worker_count; i++) {
        sim_worker_options_t *w = &options_p->workers[i];
        if (w->model[0] == '\0')
            snprintf(w->model, sizeof(w->model), "%s", options_p->model);
        if (w->version[0] == '\0')
            snprintf(w->version, sizeof(w->version), "%s",
                     w->engine == SIM_SGLANG ? "0.5.23" : "0.32.0");
    }
    return rc;
}

void sim_options_fini(sim_options_t *o)
{
    free(o->workers);
    *o = (sim_options_t){0};
}

void sim_options_help(FILE *out)
{
    fputs("baton-sim: simulated prefill, decode and hybrid workers, many in one process\n\n"
          "  baton-sim --worker role=prefill,connector=NixlConnector --worker "
          "role=decode,connector=NixlConnector\n"
          "  baton-sim --worker role=prefill,engine=sglang,count=2 --worker "
          "role=decode,engine=sglang,count=2\n"
          "  baton-sim --expect --prompt TEXT --max-tokens 8      the text that a right answer "
          "has\n\n"
          "Prints a line \"worker NAME ROLE URL bootstrap=PORT\" for each worker, then \"ready\". "
          "Ends on SIGTERM.\n\n"
          "  --worker KEY=VALUE,...  a worker (keys below); may be repeated\n"
          "  --workers FILE          one worker a line, written the same way; # begins a comment\n"
          "  --model NAME            model of all workers that name none (sim)\n"
          "  --ready-file FILE       the same lines, written to FILE when all listen\n"
          "  --seed N                seed of the jitter (1)\n"
          "  --time-scale F          engine timers (leases, time-outs, polls) times F; latencies "
          "stay (1)\n"
          "  --max-seconds S         end after S seconds (0 = never)\n"
          "  --record N              requests kept for GET /sim/requests (1000; 0 = none)\n"
          "  --record-body N         body bytes kept of each (65536)\n"
          "  --expect                print the expected text and end; with --prompt TEXT or --ids "
          "1,2,3,\n"
          "                          --max-tokens N (16), --chat (one user message), --system "
          "TEXT, --request-seed N\n\n"
          "Keys of --worker:\n",
          out);
    sim_parse_worker_help(out);
    fputs("\nFaults, /sim/state and the formula of the text: examples/sim/README.md\n", out);
}
