/* The command line of `baton kv-bench`. */
#include "tools/kv_bench.h"

#include "config/suggest.h"
#include "tools/print.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#define refuse(...) bt_tool_error(BT_TOOL_WRONG, "kv-bench: ", __VA_ARGS__)

void bt_kv_bench_help(bt_text_t *out)
{
    bt_text_puts(
        out,
        "usage: baton kv-bench --backend shm|tcp|verbs|mem [flags]\n\n"
        "Measures the KV transfer library between two processes of this host, beside what the "
        "machine can do without it.\n"
        "  --shapes a,b,c,d,e1,e8,e32  a: one write of 64 MiB; b: 2,000 scattered pages of 16 KiB; "
        "c: the same in runs of 16;\n"
        "                        d: one page at a time; e: rooms of 256 scattered pages, 1, 8 or "
        "32 "
        "in flight [all]\n"
        "  --reps N              repetitions; ratios are of medians [3]\n"
        "  --secs S              of each cell [1]\n"
        "  --memory pool|private the library's pools, or memory of the engine's own [pool]\n"
        "  --progress caller|thread|caller,thread   who moves the data [caller]\n"
        "  --receiver poll|sleep|poll,sleep         how it waits [poll,sleep]\n"
        "  --streams N           data connections of tcp [1]\n"
        "  --plot FILE.svg       medians beside their floors: rates by shape, how long one page "
        "takes\n"
        "  --label L             goes into each JSON line\n"
        "  --json                a JSON object a line\n\n"
        "Columns: GB/s (10^9 bytes); p50, p99: from bt_kv_send to the receiver's code holding the "
        "completion; local: to the\n"
        "sender's own; prep: bt_kv_send_open, post: bt_kv_send; CPU seconds a GB of both "
        "processes, tx and rx of each;\n"
        "merge: pages moved by one descriptor; bad: blocks that were wrong in the pass that ends "
        "each cell;\n"
        "copy: how the receiver copies: bytes a store around the cache/lanes+bytes asked for ahead "
        "(0/: stores stay in the\n"
        "cache). The floor named stream is the best of all such ways, and rates are held against "
        "the better of it and memcpy.\n"
        "Exit status: 0, 1 a cell failed or a block was wrong, 2 wrong command line.\n");
}

/* Each word of a list; false: *word_p is not in `names`. */
static bool read_words(const char *text, const char *const *names, size_t count, unsigned *found,
                       uint32_t *found_count, uint32_t max)
{
    *found_count = 0;
    while (*text != '\0') {
        size_t n = strcspn(text, ","), i = 0;
        while (i < count && (strlen(names[i]) != n || strncmp(names[i], text, n) != 0))
            i++;
        if (i == count || *found_count == max)
            return false;
        found[(*found_count)++] = (unsigned) i;
        text += n + (text[n] == ',');
    }
    return *found_count > 0;
}

static bool read_modes(const char *text, const char *const names[2], bool *is_second,
                       uint32_t *count)
{
    unsigned found[2];

    if (!read_words(text, names, 2, found, count, 2))
        return false;
    for (uint32_t i = 0; i < *count; i++)
        is_second[i] = found[i] == 1;
    return true;
}

static bool read_number(const char *text, double least, double most, double *number_p)
{
    char *end;
    double number = strtod(text, &end);

    if (end == text || *end != '\0' || !(number >= least && number <= most))
        return false;
    *number_p = number;
    return true;
}

static bool read_shapes(bench_options_t *o, const char *text)
{
    const char *names[BENCH_SHAPES];
    unsigned found[BENCH_SHAPES];
    uint32_t count;

    for (uint32_t i = 0; i < BENCH_SHAPES; i++)
        names[i] = bench_shapes[i].name;
    if (!read_words(text, names, BENCH_SHAPES, found, &count, BENCH_SHAPES))
        return false;
    memset(o->shapes, 0, sizeof o->shapes);
    for (uint32_t i = 0; i < count; i++)
        o->shapes[found[i]] = true;
    return true;
}

static bool is_plain(const char *text)
{
    for (const char *p = text; *p != '\0'; p++)
        if (!isalnum((unsigned char) *p) && strchr("-_.:+ ", *p) == NULL)
            return false;
    return strlen(text) <= 80;
}

static bool read_backend(bench_options_t *o, const char *text)
{
    static const char *const names[] = {"shm", "tcp", "verbs", "mem"};
    static const enum bt_kv_kind kinds[] = {BT_KV_SHM, BT_KV_TCP, BT_KV_VERBS, BT_KV_MEM};
    unsigned found;
    uint32_t count;

    if (!read_words(text, names, 4, &found, &count, 1))
        return false;
    o->backend = kinds[found];
    o->backend_name = names[found];
    return true;
}

static bool read_flag(bench_options_t *o, const char *name, const char *value)
{
    static const char *const progress[] = {"caller", "thread"}, *const receiver[] = {"poll",
                                                                                     "sleep"};
    double number = 0;
    bool is_ok = false;

    if (strcmp(name, "--backend") == 0)
        return read_backend(o, value);
    if (strcmp(name, "--shapes") == 0)
        return read_shapes(o, value);
    if (strcmp(name, "--progress") == 0)
        return read_modes(value, progress, o->is_thread, &o->progress_count);
    if (strcmp(name, "--receiver") == 0)
        return read_modes(value, receiver, o->is_sleep, &o->receiver_count);
    if (strcmp(name, "--memory") == 0) {
        o->is_private = strcmp(value, "private") == 0;
        o->memory = o->is_private ? "private" : "pool";
        return o->is_private || strcmp(value, "pool") == 0;
    }
    if (strcmp(name, "--label") == 0) {
        o->label = value;
        return is_plain(value);
    }
    if (strcmp(name, "--plot") == 0) {
        o->plot = value;
        return true;
    }
    if (strcmp(name, "--secs") == 0)
        return read_number(value, 0.001, 3600, &o->secs);
    is_ok = read_number(value, 1, strcmp(name, "--reps") == 0 ? 20 : 16, &number);
    *(strcmp(name, "--reps") == 0 ? &o->reps : &o->streams) = (uint32_t) number;
    return is_ok;
}

int bench_options_read(bench_options_t *o, int argc, const char *const *argv)
{
    static const char *const flags[] = {"--backend", "--shapes",   "--reps",  "--secs",
                                        "--memory",  "--progress", "--label", "--receiver",
                                        "--streams", "--plot"};
    bt_suggest_t s;

    *o = (bench_options_t){.memory = "pool",
                           .reps = 3,
                           .secs = 1,
                           .progress_count = 1,
                           .receiver_count = 2,
                           .is_sleep = {false, true},
                           .streams = 1};
    memset(o->shapes, true, sizeof o->shapes);
    for (int i = 0; i < argc; i++) {
        size_t f = 0;
        if (strcmp(argv[i], "--json") == 0) {
            o->is_json = true;
            continue;
        }
        bt_suggest_init(&s, bt_str(argv[i]));
        for (; f < sizeof flags / sizeof *flags && strcmp(argv[i], flags[f]) != 0; f++)
            bt_suggest_offer(&s, flags[f]);
        if (f == sizeof flags / sizeof *flags)
            return bt_suggest_best(&s) != NULL
                       ? refuse("%.60s: unknown flag, did you mean %s?", argv[i],
                                bt_suggest_best(&s))
                       : refuse("%.60s: unknown flag; baton help kv-bench lists them", argv[i]);
        if (++i == argc)
            return refuse("%s needs a value", flags[f]);
        if (!read_flag(o, flags[f], argv[i]))
            return refuse("%s %.60s: not a value of it; baton help kv-bench tells them", flags[f],
                          argv[i]);
    }
    if (o->backend == 0)
        return refuse("which one? --backend shm, tcp, verbs or mem");
    return 0;
}
