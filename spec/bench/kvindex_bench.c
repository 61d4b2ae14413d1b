/* kvindex_bench.c - the index of KV blocks at the size of a large fleet: memory, what a writer takes in, what readers wait for.
 *
 * Usage: kvindex_bench [BLOCKS [WORKERS]]    default 10,000,000 and 1,000; a hundredth of that in the specs
 *
 * Prompts of 64 blocks of 16 tokens; the first 16 are a system prompt that 50 workers share, the rest is their worker's own. Then conversations
 * come and go: for each that is stored an old one is removed.
 */
#include "kvindex/index.h"
#include "kvindex/query.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 16u
#define PROMPT 64u
#define SHARED 16u
#define OWN (PROMPT - SHARED)
#define SHARERS 50u
#define BATCH 64u
#define ASKED (3125u * BATCH) /* 200,000 */

static bt_kv_index_t *index_;
static unsigned workers, conversations; /* of each worker */

static void die(const char *what)
{
    fprintf(stderr, "kvindex_bench: %s\n", what);
    exit(1);
}

static double seconds(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}

/* Conversation c of worker w: its system prompt, then tokens that nobody else has. */
static void fill(uint32_t *tokens, unsigned w, unsigned c)
{
    for (unsigned i = 0; i < SHARED * BLOCK; i++)
        tokens[i] = w / SHARERS * 100000 + i;
    for (unsigned i = SHARED * BLOCK; i < PROMPT * BLOCK; i++)
        tokens[i] = (w * 2654435761u ^ c * 40503u) + i * 97;
}

static uint64_t name_of(unsigned w, unsigned c, unsigned block)
{
    const uint64_t own = block < SHARED
                             ? w / SHARERS + 1
                             : (uint64_t) w << 32 | (uint64_t) c << 8 | UINT64_C(1) << 63;

    return (own * 131 + block) * UINT64_C(0x9e3779b97f4a7c15) | 1;
}

static void apply(enum bt_kv_event_kind kind, unsigned w, unsigned c, unsigned from,
                  const uint32_t *tokens)
{
    uint64_t hashes[PROMPT];

    for (unsigned i = from; i < PROMPT; i++)
        hashes[i - from] = name_of(w, c, i);
    bt_kv_part_apply(index_, 1 + w,
                     &(bt_kv_event_t){.kind = kind,
                                      .hashes = hashes,
                                      .hash_count = PROMPT - from,
                                      .has_parent = from > 0,
                                      .parent = from > 0 ? name_of(w, c, from - 1) : 0,
                                      .tokens = tokens + (size_t) from * BLOCK,
                                      .token_count = (PROMPT - from) * BLOCK,
                                      .block_tokens = BLOCK});
}

static unsigned read_tokens(void *user, unsigned wanted, const uint32_t **tokens_p)
{
    *tokens_p = user;
    return wanted < PROMPT * BLOCK ? wanted : PROMPT * BLOCK;
}

/* ---- readers ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

static _Atomic unsigned replaced; /* conversations, in the workers' order */
static unsigned *order;           /* prompts that are asked for, by number */
static bool is_churning;          /* a conversation that was removed meanwhile is no mistake */

/* Prompts are written BATCH at a time, so that neither that nor the clocks are counted as the index's time. */
static uint32_t prompts[BATCH][PROMPT * BLOCK];

static unsigned worker_of(unsigned i)
{
    return order[i] % workers;
}

/* One that its worker has: the oldest ones have been replaced. */
static unsigned conversation_of(unsigned i)
{
    return atomic_load(&replaced) / workers + 1 + order[i] / workers % (conversations - 1);
}

static void fill_batch(unsigned from)
{
    for (unsigned i = 0; i < BATCH; i++)
        fill(prompts[i], worker_of(from + i), conversation_of(from + i));
}

static unsigned find(bt_kv_query_t *query, unsigned i)
{
    const unsigned found =
        bt_kv_query_find(query, &(bt_kv_prompt_t){read_tokens, prompts[i % BATCH], 0});

    if (!is_churning && bt_kv_query_hit(query, 1 + worker_of(i)).blocks != PROMPT)
        die("a prompt was not found");
    return found;
}

static void ask(const char *what)
{
    static double took[ASKED];
    bt_kv_query_t *query;
    uint64_t found = 0;
    double cpu = 0;

    if (bt_kv_query_new(&query, index_) < 0)
        die("no query");
    for (unsigned from = 0; from < ASKED; from += BATCH) {
        fill_batch(from);
        const double before = seconds(CLOCK_THREAD_CPUTIME_ID);
        for (unsigned i = from; i < from + BATCH; i++)
            found += find(query, i);
        cpu += seconds(CLOCK_THREAD_CPUTIME_ID) - before;
    }
    for (unsigned from = 0; from < ASKED; from += BATCH) {
        fill_batch(from);
        for (unsigned i = from; i < from + BATCH; i++) {
            const double before = seconds(CLOCK_MONOTONIC);
            (void) find(query, i);
            took[i] = seconds(CLOCK_MONOTONIC) - before;
        }
    }
    qsort(took, ASKED, sizeof(took[0]), by_value);
    printf("queries, %-22s %9.0f/s of CPU   p50 %.2f us   p99 %.2f us   (%.1f blocks found)\n",
           what, ASKED / cpu, took[ASKED / 2] * 1e6, took[ASKED * 99 / 100] * 1e6,
           (double) found / ASKED);
    bt_kv_query_free(query);
}

/* ---- the writer ---- */

static atomic_bool is_over;

/* One conversation goes, another one comes: two events. Returns the CPU time that the index took for them. */
static double replace(unsigned n)
{
    static uint32_t tokens[PROMPT * BLOCK];
    const unsigned w = n % workers, c = n / workers;

    fill(tokens, w, c + conversations);
    const double before = seconds(CLOCK_THREAD_CPUTIME_ID);
    apply(BT_KV_REMOVED, w, c, SHARED, tokens);
    apply(BT_KV_STORED, w, c + conversations, SHARED, tokens);
    return seconds(CLOCK_THREAD_CPUTIME_ID) - before;
}

static void *churn(void *arg)
{
    double *rate_p = arg, cpu = 0;
    uint64_t blocks = 0;

    for (; !atomic_load(&is_over); replaced++) {
        cpu += replace(replaced);
        blocks += 2ull * OWN;
    }
    *rate_p = (double) blocks / cpu;
    return NULL;
}

/* A core that does all: for each request its query, an event that stores what the prompt added and one that removes what went for it. */
static void mix(void)
{
    bt_kv_query_t *query;
    double cpu = 0;

    if (bt_kv_query_new(&query, index_) < 0)
        die("no query");
    for (unsigned from = 0; from < ASKED; from += BATCH) {
        fill_batch(from);
        double before = seconds(CLOCK_THREAD_CPUTIME_ID);
        for (unsigned i = from; i < from + BATCH; i++)
            (void) find(query, i);
        cpu += seconds(CLOCK_THREAD_CPUTIME_ID) - before;
        for (unsigned i = 0; i < BATCH; i++)
            cpu += replace(replaced++);
    }
    printf("requests and events, mixed     %9.0f/s of CPU   (a query of %u blocks : an event of %u "
           "stored : one of %u removed)\n",
           3 * ASKED / cpu, PROMPT, OWN, OWN);
    bt_kv_query_free(query);
}

static void store_all(void)
{
    uint32_t tokens[PROMPT * BLOCK];
    const double before = seconds(CLOCK_THREAD_CPUTIME_ID);
    uint64_t blocks = 0;

    for (unsigned c = 0; c < conversations; c++)
        for (unsigned w = 0; w < workers; w++) {
            fill(tokens, w, c);
            apply(BT_KV_STORED, w, c, c == 0 ? 0 : SHARED, tokens);
            blocks += c == 0 ? PROMPT : OWN;
        }
    printf("stores, one event a prompt     %9.0f blocks/s of CPU\n",
           (double) blocks / (seconds(CLOCK_THREAD_CPUTIME_ID) - before));
}

static long resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long pages = 0;

    if (f == NULL || fscanf(f, "%*d %ld", &pages) != 1)
        pages = 0;
    if (f != NULL)
        fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv)
{
    const uint64_t wanted = argc > 1 ? strtoull(argv[1], NULL, 10) : 10000000;
    bt_kv_index_stats_t s;
    pthread_t thread;
    double rate;
    uint32_t first;

    workers = argc > 2 ? (unsigned) strtoul(argv[2], NULL, 10) : 1000;
    if (workers == 0)
        die("no workers");
    conversations = (unsigned) (wanted / workers / OWN) + 2;
    order = malloc(ASKED * sizeof(order[0]));
    const long before = resident_bytes();
    if (order == NULL ||
        bt_kv_index_new(&index_, &(bt_kv_index_config_t){.max_held = 2 * wanted + 100000}) < 0 ||
        bt_kv_part_open(index_, workers, &first) < 0)
        die("out of memory");
    srand(1);
    for (unsigned i = 0; i < ASKED; i++)
        order[i] = (unsigned) rand();
    store_all();
    bt_kv_index_stats(index_, &s);
    printf(
        "%llu blocks of %u workers, held %llu times: %.1f bytes a block of state, %.1f resident\n",
        (unsigned long long) s.blocks, workers, (unsigned long long) s.held,
        (double) s.bytes / (double) s.blocks,
        (double) (resident_bytes() - before) / (double) s.blocks);
    ask("nobody writes");
    is_churning = true;
    if (pthread_create(&thread, NULL, churn, &rate) != 0)
        die("no thread");
    ask("beside a writer");
    atomic_store(&is_over, true);
    pthread_join(thread, NULL);
    printf("stores and removals meanwhile  %9.0f blocks/s of CPU\n", rate);
    mix();
    bt_kv_index_stats(index_, &s);
    printf("after that                     %9.1f bytes a block of state\n",
           (double) s.bytes / (double) s.blocks);
    bt_kv_index_free(index_);
    free(order);
    return 0;
}
