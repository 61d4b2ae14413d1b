/* Two questions, one after the other: what a plan costs on a fleet with some load on every worker, and who is chosen when each
 * chosen worker bears its request for a while. Time is the thread's CPU time, the median of nine runs: other programs disturb
 * it least. */
#include "tools/policy.h"

#include "base/clock.h"
#include "base/rand.h"
#include "script/policy/policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define RUNS 9
#define SIZES_MAX 16
#define WORKERS_MAX 20000u
#define CHOICES 2000u
#define SHOWN 5
#define PROMPT_BYTES 4098

struct fleet {
    bt_worker_set_t sets[3]; /* by role */
    bt_policy_view_t view;
};

struct tally {
    const char *name;
    unsigned count;
};

static double cpu_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double) now.tv_sec * 1e6 + (double) now.tv_nsec / 1e3;
}

/* ---- fleets ---- */

static bt_worker_t *make_worker(enum bt_role role, unsigned i)
{
    char url[64], name[16], connector[] = "NixlConnector", err[128];
    bt_worker_spec_t spec;
    bt_breaker_config_t breaker;
    bt_worker_t *w;

    snprintf(url, sizeof url, "http://bench-%u:8000", i);
    snprintf(name, sizeof name, "%c%u", "pdw"[role], i);
    bt_worker_spec_init(&spec);
    spec.url = url;
    spec.name = name;
    spec.role = role;
    spec.engine = BT_ENGINE_VLLM;
    spec.connector = role != BT_ROLE_HYBRID ? connector : NULL;
    bt_breaker_config_defaults(&breaker);
    if (bt_worker_new(&w, &spec, ((uint64_t) role + 1) * 100000 + i, i, &breaker, err, sizeof err) <
        0)
        return NULL;
    atomic_store_explicit(&w->health, BT_HEALTH_UP, memory_order_relaxed);
    bt_worker_total(w, BT_PHASE_PREFILL)->tokens = (int64_t) bt_rand_below(100000);
    bt_worker_total(w, BT_PHASE_DECODE)->tokens = (int64_t) bt_rand_below(100000);
    w->load.kv_used_ppm = (uint32_t) bt_rand_below(900000);
    w->load.running = (int64_t) bt_rand_below(64);
    w->load.at_ms = bt_clock_ms();
    return w;
}

static bool fill(bt_worker_set_t *set, enum bt_role role, unsigned count)
{
    set->items = calloc(count, sizeof set->items[0]);
    for (; set->items != NULL && set->count < count; set->count++) {
        set->items[set->count] = make_worker(role, set->count);
        if (set->items[set->count] == NULL)
            return false;
    }
    return set->items != NULL;
}

static void fini_fleet(struct fleet *f)
{
    for (int role = 0; role < 3; role++) {
        for (unsigned i = 0; i < f->sets[role].count; i++)
            bt_worker_unref(f->sets[role].items[i]);
        free(f->sets[role].items);
    }
}

/* Half prefill, half decode; or all alone. */
static bool init_fleet(struct fleet *f, unsigned count, bool single)
{
    static uint64_t key;
    bool ok;

    memset(f, 0, sizeof *f);
    if (single)
        ok = fill(&f->sets[BT_ROLE_HYBRID], BT_ROLE_HYBRID, count);
    else
        ok = fill(&f->sets[BT_ROLE_PREFILL], BT_ROLE_PREFILL, count / 2) &&
             fill(&f->sets[BT_ROLE_DECODE], BT_ROLE_DECODE, count - count / 2);
    f->view = (bt_policy_view_t){.sets = {&f->sets[BT_ROLE_PREFILL], &f->sets[BT_ROLE_DECODE],
                                          &f->sets[BT_ROLE_HYBRID], &f->sets[BT_ROLE_HYBRID]},
                                 .key = ++key,
                                 .pool = BT_STR("bench")};
    return ok;
}

/* ---- asking ---- */

/* A request with a session, a tenant and a prompt of 4 KiB; which of a thousand sessions is i's matter. */
static int ask(bt_policy_t *policy, const struct fleet *f, unsigned i, bt_choice_t *choice_p)
{
    static char prompt[PROMPT_BYTES], session[32], tenant[32];
    bt_policy_request_t req = {.path = BT_STR("/v1/completions"),
                               .model = BT_STR("bench"),
                               .n = 1,
                               .prompt_bytes = PROMPT_BYTES,
                               .prompt_tokens = 1024,
                               .prompt = {prompt, PROMPT_BYTES}};

    memset(prompt, 'x', sizeof prompt);
    snprintf(session, sizeof session, "session-%u", i % 1000);
    snprintf(tenant, sizeof tenant, "tenant-%u", i % 10);
    req.session = bt_str(session);
    memcpy(prompt + 1, req.session.p, req.session.n);
    prompt[0] = prompt[PROMPT_BYTES - 1] = '"';
    req.tenant = bt_str(tenant);
    return bt_policy_plan(policy, BT_POLICY_BOTH, &req, &f->view, choice_p);
}

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

static int measure(bt_policy_t *policy, const struct fleet *f, unsigned workers, double *us_p)
{
    unsigned rounds = 40000 / (workers + 50) + 1;
    double us[RUNS];
    bt_choice_t choice;

    for (int run = 0; run < RUNS; run++) {
        double start_us = cpu_us();
        for (unsigned i = 0; i < rounds; i++)
            if (ask(policy, f, i, &choice) < 0)
                return BT_E_POLICY;
        us[run] = (cpu_us() - start_us) / rounds;
    }
    qsort(us, RUNS, sizeof us[0], compare_numbers);
    *us_p = us[RUNS / 2];
    return 0;
}

/* ---- who is chosen ---- */

static void bear(bt_worker_t *w, enum bt_phase phase, int sign)
{
    if (w == NULL)
        return;
    bt_worker_total(w, phase)->tokens += sign * 1024;
    bt_worker_total(w, phase)->requests += sign;
}

/* Else the loads of the beginning would decide. */
static void idle(const struct fleet *f)
{
    for (int role = 0; role < 3; role++)
        for (unsigned i = 0; i < f->sets[role].count; i++)
            bt_worker_total(f->sets[role].items[i], BT_PHASE_PREFILL)->tokens =
                bt_worker_total(f->sets[role].items[i], BT_PHASE_DECODE)->tokens = 0;
}

static int compare_tallies(const void *a, const void *b)
{
    const struct tally *x = a, *y = b;
    return (x->count < y->count) - (x->count > y->count);
}

static void print_tally(const char *side, struct tally *tallies, unsigned count)
{
    unsigned used = 0, total = 0;

    if (count == 0)
        return;
    qsort(tallies, count, sizeof tallies[0], compare_tallies);
    for (unsigned i = 0; i < count; i++) {
        total += tallies[i].count;
        used += tallies[i].count > 0;
    }
    printf("  %-8s %u of %u chosen:", side, used, count);
    for (unsigned i = 0; i < count && i < SHOWN && tallies[i].count > 0; i++)
        printf(" %s %.1f%%", tallies[i].name, 100.0 * tallies[i].count / total);
    printf("%s\n", used > SHOWN ? " ..." : "");
}

/* Worker names are a letter and their place in the set. */
static void count_one(struct tally *tallies, const bt_worker_t *w)
{
    if (w != NULL)
        tallies[w->slot].count++;
}

static void print_choices(bt_policy_t *policy, const struct fleet *f, unsigned workers)
{
    static const char *const sides[] = {"prefill", "decode", "single"};
    bt_pair_t *held = calloc(CHOICES, sizeof *held);
    struct tally *tallies[3];
    bt_choice_t choice;

    idle(f);
    for (int role = 0; role < 3; role++) {
        tallies[role] = calloc(f->sets[role].count + 1, sizeof **tallies);
        for (unsigned i = 0; tallies[role] != NULL && i < f->sets[role].count; i++)
            tallies[role][i].name = f->sets[role].items[i]->name;
    }
    for (unsigned i = 0; held != NULL && tallies[0] != NULL && tallies[1] != NULL &&
                         tallies[2] != NULL && i < CHOICES;
         i++) {
        if (ask(policy, f, i, &choice) < 0)
            break;
        held[i] = choice.first;
        bear(held[i].prefill, BT_PHASE_PREFILL, 1);
        bear(held[i].decode, BT_PHASE_DECODE, 1);
        count_one(tallies[BT_ROLE_PREFILL], held[i].prefill);
        if (held[i].decode != NULL)
            count_one(tallies[held[i].decode->spec.role], held[i].decode);
        if (i >= 2 * workers) {
            bear(held[i - 2 * workers].prefill, BT_PHASE_PREFILL, -1);
            bear(held[i - 2 * workers].decode, BT_PHASE_DECODE, -1);
        }
    }
    for (int role = 0; role < 3; role++) {
        if (tallies[role] != NULL)
            print_tally(sides[role], tallies[role], f->sets[role].count);
        free(tallies[role]);
    }
    free(held);
}

/* ---- the command ---- */

/* A policy of its own for every size: what one size left behind is not the next one's. BT_E_AGAIN: it wants single workers. */
static int bench_size(const char *name, unsigned workers, bool single)
{
    char err[1024];
    bt_policy_t *policy;
    struct fleet f;
    double us = 0;
    int rc = bt_policy_load(&policy, name, NULL, err, sizeof err);

    if (rc < 0) {
        fprintf(stderr, "%s\n", err);
        return rc;
    }
    if (!init_fleet(&f, workers, single)) {
        snprintf(err, sizeof err, "out of memory");
        rc = BT_E_NOMEM;
    } else {
        rc = measure(policy, &f, workers, &us);
        snprintf(err, sizeof err, "%s", bt_policy_error(policy));
    }
    if (rc == 0) {
        printf("%u workers: %.2f us per plan\n", workers, us);
        print_choices(policy, &f, workers);
    } else if (!single && bt_policy_is_absence(err)) {
        rc = BT_E_AGAIN;
    } else {
        fprintf(stderr, "%u workers: %s\n", workers, err);
    }
    fini_fleet(&f);
    bt_policy_free(policy);
    return rc;
}

static bool read_sizes(const char *text, unsigned *sizes, unsigned *count_p)
{
    for (*count_p = 0; *count_p < SIZES_MAX; text++) {
        char *end;
        unsigned long n = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;

        if (n < 2 || n > WORKERS_MAX)
            return false;
        sizes[(*count_p)++] = (unsigned) n;
        if (*end == '\0')
            return true;
        if (*end != ',')
            return false;
        text = end;
    }
    return false;
}

int bt_policy_tool_bench(int argc, const char *const *argv)
{
    const char *name = NULL, *list = "2,64,1000,10000";
    unsigned sizes[SIZES_MAX], count;
    int status = 0;

    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--workers") == 0 && i + 1 < argc)
            list = argv[++i];
        else if (strncmp(argv[i], "--workers=", 10) == 0)
            list = argv[i] + 10;
        else if (argv[i][0] == '-' || name != NULL)
            return bt_policy_tool_refuse(
                "policy bench: what is %.100s? one file, and maybe --workers 2,64,1000", argv[i]);
        else
            name = argv[i];
    }
    if (name == NULL)
        return bt_policy_tool_refuse("policy bench: which file?");
    if (!read_sizes(list, sizes, &count))
        return bt_policy_tool_refuse(
            "--workers: %.100s: expected up to %d numbers from 2 to %u, as 2,64,1000", list,
            SIZES_MAX, WORKERS_MAX);
    bt_rand_seed(1);
    for (unsigned i = 0; i < count; i++) {
        int rc = bench_size(name, sizes[i], false);

        if (rc == BT_E_AGAIN)
            rc = bench_size(name, sizes[i], true);
        if (rc < 0)
            status = 2;
    }
    return status != 0 ? status : bt_tool_flushed();
}
