/* The command line of `baton kv-bench`. */
#include "tools/kv_bench.h"

#include "tools/flags.h"

#include <ctype.h>

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

static int read_modes(const bt_tool_line_t *line, const char *const names[2], bool *is_second,
                      uint32_t *count)
{
    unsigned found[2];

    if (!read_words(line->value, names, 2, found, count, 2))
        return bt_tool_refuse_value(line);
    for (uint32_t i = 0; i < *count; i++)
        is_second[i] = found[i] == 1;
    return 0;
}

static int read_progress(void *options, bt_tool_line_t *line)
{
    static const char *const names[] = {"caller", "thread"};
    bench_options_t *o = options;

    return read_modes(line, names, o->is_thread, &o->progress_count);
}

static int read_receiver(void *options, bt_tool_line_t *line)
{
    static const char *const names[] = {"poll", "sleep"};
    bench_options_t *o = options;

    return read_modes(line, names, o->is_sleep, &o->receiver_count);
}

static int read_shapes(void *options, bt_tool_line_t *line)
{
    bench_options_t *o = options;
    const char *names[BENCH_SHAPES];
    unsigned found[BENCH_SHAPES];
    uint32_t count;

    for (uint32_t i = 0; i < BENCH_SHAPES; i++)
        names[i] = bench_shapes[i].name;
    if (!read_words(line->value, names, BENCH_SHAPES, found, &count, BENCH_SHAPES))
        return bt_tool_refuse_value(line);
    memset(o->shapes, 0, sizeof o->shapes);
    for (uint32_t i = 0; i < count; i++)
        o->shapes[found[i]] = true;
    return 0;
}

/* It stands in JSON and in titles as it is. */
static int read_label(void *options, bt_tool_line_t *line)
{
    bench_options_t *o = options;

    for (const char *p = line->value; *p != '\0'; p++)
        if (!isalnum((unsigned char) *p) && strchr("-_.:+ ", *p) == NULL)
            return bt_tool_refuse_value(line);
    o->label = line->value;
    return strlen(line->value) <= 80 ? 0 : bt_tool_refuse_value(line);
}

static int read_memory(void *options, bt_tool_line_t *line)
{
    static const char *const names[] = {"pool", "private"};
    bench_options_t *o = options;
    unsigned found;
    uint32_t count;

    if (!read_words(line->value, names, 2, &found, &count, 1))
        return bt_tool_refuse_value(line);
    o->is_private = found == 1;
    o->memory = names[found];
    return 0;
}

static int read_backend(void *options, bt_tool_line_t *line)
{
    static const char *const names[] = {"shm", "tcp", "verbs", "mem"};
    static const enum bt_kv_kind kinds[] = {BT_KV_SHM, BT_KV_TCP, BT_KV_VERBS, BT_KV_MEM};
    bench_options_t *o = options;
    unsigned found;
    uint32_t count;

    if (!read_words(line->value, names, 4, &found, &count, 1))
        return bt_tool_refuse_value(line);
    o->backend = kinds[found];
    o->backend_name = names[found];
    return 0;
}

#define COUNT(flag, member, most)                                                                  \
    BT_TOOL_OPTION(flag, bench_options_t, member, .kind = BT_OPTION_UINT, .min = 1, .max = (most))
static const bt_tool_flag_t flags[] = {BT_TOOL_READ("--backend", read_backend),
                                       BT_TOOL_READ("--shapes", read_shapes),
                                       COUNT("--reps", reps, 20),
                                       BT_TOOL_OPTION("--secs", bench_options_t, cell_ns,
                                                      .kind = BT_OPTION_U64, .min = 0.001,
                                                      .max = 3600, .scale = 1e9),
                                       BT_TOOL_READ("--memory", read_memory),
                                       BT_TOOL_READ("--progress", read_progress),
                                       BT_TOOL_READ("--receiver", read_receiver),
                                       COUNT("--streams", streams, 16),
                                       BT_TOOL_TEXT("--plot", bench_options_t, plot),
                                       BT_TOOL_READ("--label", read_label),
                                       BT_TOOL_SWITCH("--json", bench_options_t, is_json)};
static const bt_tool_syntax_t syntax = {"kv-bench", flags, sizeof flags / sizeof flags[0], NULL};

int bench_options_read(bench_options_t *o, int argc, const char *const *argv)
{
    *o = (bench_options_t){.memory = "pool",
                           .reps = 3,
                           .cell_ns = UINT64_C(1000000000),
                           .progress_count = 1,
                           .receiver_count = 2,
                           .is_sleep = {false, true},
                           .streams = 1};
    memset(o->shapes, true, sizeof o->shapes);
    const int status = bt_tool_flags_read(&syntax, o, argc, argv);
    if (status == 0 && o->backend == 0)
        return bt_tool_error(BT_TOOL_WRONG,
                             "kv-bench: ", "which one? --backend shm, tcp, verbs or mem");
    return status;
}
