/* policy_bench.c - what one plan costs, by number of workers, and what one leg's edits cost.
 *
 * Usage: policy_bench                     prints ns per call: the median of nine runs; "-": it fails
 *        policy_bench POLICY WORKERS N    makes N plans, for a profiler
 *
 * Every request has a session, a tenant and a prompt of 4 KiB. Half of the workers are prefill, half decode, all with some
 * load, as in a busy fleet; whoever is chosen holds the request for the next HELD plans. "plain lua" is a policy that looks at
 * every worker in Lua itself instead of calling a native function; "idle" is least_load where nobody has any load.
 */
#include "base/rand.h"
#include "cluster/ledger.h"
#include "script/policy/policy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define RUNS 9
#define SIZES 6
#define HELD 64

static const unsigned sizes[SIZES] = {2, 16, 64, 256, 1000, 10000};

static const char plain[] =
    "local function least(list, field)\n"
    "  local best, score\n"
    "  for i = 1, #list do\n"
    "    local value = list[i][field]\n"
    "    if not score or value < score then best, score = list[i], value end\n"
    "  end\n"
    "  return best\n"
    "end\n"
    "return { api = 2, name = 'plain', version = '1', plan = function(_, view)\n"
    "  local p = least(view.prefill, 'prefill_tokens')\n"
    "  return { prefill = p, decode = least(baton.compatible(view.decode, p), 'decode_tokens') }\n"
    "end }";

static void die(const char *what)
{
    fprintf(stderr, "policy_bench: %s\n", what);
    exit(1);
}

/* CPU time of this thread: other load on the machine disturbs it least. */
static double cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double) now.tv_sec * 1e9 + (double) now.tv_nsec;
}

static bt_worker_t *make_worker(unsigned i, enum bt_role role)
{
    bt_worker_spec_t spec;
    bt_breaker_config_t breaker;
    bt_worker_t *w;
    char url[64], name[16], err[256];

    snprintf(url, sizeof(url), "http://10.%u.%u.1:8000", i / 250, i % 250);
    snprintf(name, sizeof(name), "w%u", i);
    bt_worker_spec_init(&spec);
    spec.url = strdup(url);
    spec.name = strdup(name);
    spec.connector = strdup("NixlConnector");
    spec.role = role;
    bt_breaker_config_defaults(&breaker);
    if (bt_worker_new(&w, &spec, i + 1, i, &breaker, err, sizeof(err)) != 0)
        die(err);
    bt_worker_spec_fini(&spec);
    return w;
}

static void give_load(bt_worker_t *w, enum bt_phase phase)
{
    bt_ledger_entry_t never_released = {.worker = NULL};

    bt_ledger_hold(&never_released, w, phase, (int64_t) bt_rand_below(100000));
}

static void make_set(bt_worker_set_t *set, unsigned first, unsigned count, enum bt_role role,
                     bool is_idle)
{
    set->count = count;
    set->items = calloc(count, sizeof(*set->items));
    if (set->items == NULL)
        die("out of memory");
    for (unsigned i = 0; i < count; i++) {
        set->items[i] = make_worker(first + i, role);
        for (int phase = 0; phase < BT_PHASE_COUNT && !is_idle; phase++)
            give_load(set->items[i], (enum bt_phase) phase);
    }
}

static void free_set(bt_worker_set_t *set)
{
    for (unsigned i = 0; i < set->count; i++)
        bt_worker_unref(set->items[i]);
    free(set->items);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

/* A core that was taken away for a moment looks like a runaway policy: that plan is made again. */
static bool plan_once(bt_policy_t *policy, const bt_policy_request_t *req,
                      const bt_policy_view_t *view, bt_choice_t *choice_p)
{
    for (int tries = 0; bt_policy_plan(policy, BT_POLICY_BOTH, req, view, choice_p) != 0; tries++)
        if (tries == 3)
            return false;
    return true;
}

static bool plan_times(bt_policy_t *policy, const bt_policy_view_t *view, unsigned rounds,
                       bool is_idle)
{
    static char prompt[4098]; /* about a thousand tokens, the same each time */
    bt_policy_request_t req = {.path = BT_STR("/v1/completions"),
                               .n = 1,
                               .session = BT_STR("session-1"),
                               .tenant = BT_STR("tenant-1"),
                               .prompt_tokens = 1024,
                               .prompt = {prompt, sizeof(prompt)}};
    bt_ledger_entry_t held[HELD][2] = {{{.worker = NULL}}};
    bt_choice_t choice;
    bool is_good = true;

    memset(prompt, 'x', sizeof(prompt));
    for (unsigned i = 0; i < rounds; i++) {
        is_good = is_good && plan_once(policy, &req, view, &choice);
        if (is_idle || !is_good)
            continue;
        if (choice.first.prefill != NULL)
            bt_ledger_hold(&held[i % HELD][0], choice.first.prefill, BT_PHASE_PREFILL, 1024);
        bt_ledger_hold(&held[i % HELD][1], choice.first.decode, BT_PHASE_DECODE, 1024);
    }
    for (unsigned i = 0; i < HELD; i++) {
        bt_ledger_release(&held[i][0]);
        bt_ledger_release(&held[i][1]);
    }
    return is_good;
}

static double plan_ns(bt_policy_t *policy, const bt_policy_view_t *view, unsigned rounds,
                      bool is_idle)
{
    double ns[RUNS];

    if (!plan_times(policy, view, 1, is_idle)) /* makes the lists */
        return NAN;
    for (int run = 0; run < RUNS; run++) {
        const double start_ns = cpu_ns();

        if (!plan_times(policy, view, rounds, is_idle))
            return NAN;
        ns[run] = (cpu_ns() - start_ns) / rounds;
    }
    qsort(ns, RUNS, sizeof(*ns), compare);
    return ns[RUNS / 2];
}

static double once_us(bt_policy_t *policy, const bt_policy_view_t *view)
{
    const bt_policy_request_t req = {.path = BT_STR("/v1/completions"), .n = 1};
    const double start_ns = cpu_ns();
    bt_choice_t choice;

    if (!plan_once(policy, &req, view, &choice))
        die(bt_policy_error(policy));
    return (cpu_ns() - start_ns) / 1000;
}

/* ---- fleets of all sizes ---- */

struct fleets {
    bt_worker_set_t prefill[SIZES], decode[SIZES];
    bt_policy_view_t views[SIZES];
};

static void make_fleets(struct fleets *f, bool is_idle)
{
    unsigned first = 0;

    for (int i = 0; i < SIZES; first += sizes[i], i++) {
        const unsigned half = sizes[i] / 2;

        make_set(&f->prefill[i], first, half, BT_ROLE_PREFILL, is_idle);
        make_set(&f->decode[i], first + half, half, BT_ROLE_DECODE, is_idle);
        f->views[i] = (bt_policy_view_t){.sets = {&f->prefill[i], &f->decode[i]},
                                         .key = (uint64_t) i + 1,
                                         .pool = BT_STR("default")};
    }
}

static void free_fleets(struct fleets *f)
{
    for (int i = 0; i < SIZES; i++) {
        free_set(&f->prefill[i]);
        free_set(&f->decode[i]);
    }
}

static bt_policy_t *load_policy(const char *name)
{
    bt_policy_t *policy;
    char err[512];

    if (bt_policy_load(&policy, name, NULL, err, sizeof(err)) != 0)
        die(err);
    return policy;
}

static void bench_policy(const char *label, const char *name, const struct fleets *f, bool is_idle)
{
    printf("%-18s", label);
    for (int i = 0; i < SIZES; i++) {
        bt_policy_t *policy = load_policy(name);
        const double ns = plan_ns(policy, &f->views[i], 400000 / (sizes[i] + 50), is_idle);

        if (isnan(ns))
            printf(" %8s", "-");
        else
            printf(" %8.0f", ns);
        bt_policy_free(policy);
    }
    printf("\n");
    fflush(stdout);
}

static void bench_plain(const struct fleets *f)
{
    char path[] = "/tmp/policy_bench_XXXXXX.lua";
    int fd = mkstemps(path, 4);

    if (fd < 0 || write(fd, plain, sizeof(plain) - 1) != (ssize_t) sizeof(plain) - 1)
        die("cannot write a file in /tmp");
    close(fd);
    bench_policy("plain lua", path, f, false);
    unlink(path);
}

static void bench_policies(void)
{
    const char *const *names = bt_policy_embedded_names();
    struct fleets busy, idle;

    make_fleets(&busy, false);
    make_fleets(&idle, true);
    printf("%-18s", "ns per plan");
    for (int i = 0; i < SIZES; i++)
        printf(" %8u", sizes[i]);
    printf("\n");
    for (int i = 0; names[i] != NULL; i++)
        bench_policy(names[i], names[i], &busy, false);
    bench_policy("idle", "least_load", &idle, true);
    bench_plain(&busy);
    free_fleets(&busy);
    free_fleets(&idle);
}

/* One size, for a profiler: valgrind --tool=callgrind --toggle-collect=bt_policy_plan ... */
static void repeat(const char *name, unsigned workers, unsigned rounds)
{
    bt_policy_t *policy = load_policy(name);
    bt_worker_set_t prefill, decode;
    const bt_policy_view_t view = {
        .sets = {&prefill, &decode}, .key = 1, .pool = BT_STR("default")};

    make_set(&prefill, 0, workers / 2, BT_ROLE_PREFILL, false);
    make_set(&decode, workers / 2, workers / 2, BT_ROLE_DECODE, false);
    plan_times(policy, &view, rounds, false);
    bt_policy_free(policy);
    free_set(&prefill);
    free_set(&decode);
}

/* What a new VM's first plan costs the loop: without lists, with lists made ahead, and when only the lists are old. */
static void bench_first(void)
{
    enum { FLEETS = 3 };
    static const unsigned counts[FLEETS] = {64, 1000, 10000};
    double us[3][RUNS];

    printf("%-18s %10s %10s %10s %10s\n", "us, first plan", "workers", "cold", "warm", "new key");
    for (int i = 0; i < FLEETS; i++) {
        bt_worker_set_t single;
        bt_policy_view_t view = {
            .sets = {NULL, NULL, &single, &single}, .key = 1, .pool = BT_STR("default")};

        make_set(&single, 0, counts[i], BT_ROLE_HYBRID, false);
        for (int run = 0; run < RUNS; run++) {
            for (int is_warm = 0; is_warm < 2; is_warm++) {
                bt_policy_t *policy = load_policy("round_robin");

                if (is_warm && bt_policy_prewarm(policy, &view) != 0)
                    die(bt_policy_error(policy));
                us[is_warm][run] = once_us(policy, &view);
                view.key++;
                us[2][run] = once_us(policy, &view);
                bt_policy_free(policy);
            }
        }
        for (int kind = 0; kind < 3; kind++)
            qsort(us[kind], RUNS, sizeof(double), compare);
        printf("%-18s %10u %10.1f %10.1f %10.1f\n", "round_robin", counts[i], us[0][RUNS / 2],
               us[1][RUNS / 2], us[2][RUNS / 2]);
        free_set(&single);
    }
}

static double edit_ns(const bt_dialect_t *dialect, bt_leg_view_t *leg, bool decode)
{
    enum { ROUNDS = 20000 };
    double ns[RUNS];

    leg->which = decode ? BT_DIALECT_DECODE : BT_DIALECT_PREFILL;
    for (int run = 0; run < RUNS; run++) {
        double start_ns = cpu_ns();
        for (int i = 0; i < ROUNDS; i++) {
            bt_arena_t arena;
            bt_edits_t edits;
            bt_str_t reason;

            bt_arena_init(&arena);
            bt_edits_init(&edits, &arena);
            if (bt_dialect_edit(dialect, leg, &edits, &reason) != BT_DIALECT_OK)
                die(reason.p);
            bt_arena_fini(&arena);
        }
        ns[run] = (cpu_ns() - start_ns) / ROUNDS;
    }
    qsort(ns, RUNS, sizeof(*ns), compare);
    return ns[RUNS / 2];
}

static void bench_dialects(void)
{
    static const char *const names[] = {"sglang", "nixl", "nixl_push", "shared_cache"};
    static const uint64_t room = 5975098084415727586u;
    bt_leg_view_t leg = {
        .path = BT_STR("/v1/completions"),
        .request_id = BT_STR("req-1"),
        .rid = BT_STR("bt0001"),
        .rooms = &room,
        .room_count = 1,
        .body = BT_STR(
            "{\"model\":\"m\",\"prompt\":\"The gateway takes one request.\",\"max_tokens\":64}"),
        .prefill = {.name = BT_STR("p0"),
                    .host = BT_STR("10.0.0.1"),
                    .engine_id = BT_STR("p0"),
                    .bootstrap_port = 8998,
                    .dp_size = 1,
                    .tp_size = 1,
                    .pp_size = 1,
                    .dp_rank = -1},
        .decode_peer = {.name = BT_STR("d0"),
                        .host = BT_STR("10.0.0.2"),
                        .dp_size = 1,
                        .tp_size = 1,
                        .pp_size = 1,
                        .dp_rank = -1}};
    bt_dialects_t *dialects;
    char err[512];

    if (bt_dialects_new(&dialects, NULL, err, sizeof(err)) != 0)
        die(err);
    printf("%-14s %10s %10s\n", "ns per leg", "prefill", "decode");
    for (int i = 0; i < 4; i++) {
        const bt_dialect_t *dialect = bt_dialects_find(dialects, names[i]);

        leg.reply =
            dialect->needs_reply
                ? BT_STR("{\"kv_transfer_params\":{\"do_remote_prefill\":true,\"remote_block_ids\":"
                         "[[1,2,3]],\"remote_engine_id\":\"p0\",\"remote_request_id\":\"cmpl-req-1-"
                         "0-bd83aa8a\",\"remote_host\":"
                         "\"127.0.0.1\",\"remote_port\":40061,\"tp_size\":1,\"remote_num_tokens\":"
                         "72}}")
                : BT_STR("");
        printf("%-14s %10.0f", names[i], edit_ns(dialect, &leg, false));
        printf(" %10.0f\n", edit_ns(dialect, &leg, true));
    }
    bt_dialects_free(dialects);
}

int main(int argc, char **argv)
{
    bt_rand_seed(1);
    if (argc == 4) {
        repeat(argv[1], (unsigned) atoi(argv[2]), (unsigned) atoi(argv[3]));
        return 0;
    }
    bench_policies();
    bench_first();
    bench_dialects();
    return 0;
}
