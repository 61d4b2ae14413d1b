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
#include <string.h>
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

/* ---- a core that does all ---- */

/* An event with what it points to. */
struct change {
    bt_kv_event_t event;
    uint64_t hashes[OWN];
    uint32_t tokens[PROMPT * BLOCK];
    uint32_t part;
    uint8_t bytes[8192]; /* as vLLM sends it */
    size_t size;
};

static void put_byte(struct change *e, unsigned byte)
{
    e->bytes[e->size++] = (uint8_t) byte;
}

static void put_number(struct change *e, unsigned tag, uint64_t n, unsigned bytes)
{
    put_byte(e, tag);
    while (bytes-- > 0)
        put_byte(e, (unsigned) (n >> 8 * bytes) & 255);
}

static void put_text(struct change *e, const char *text)
{
    put_byte(e, 0xa0 + (unsigned) strlen(text));
    for (; *text != '\0'; text++)
        put_byte(e, (unsigned char) *text);
}

static void put_member(struct change *e, const char *key, const char *text)
{
    put_text(e, key);
    put_text(e, text);
}

/* [time, [{type, block_hashes, ...}], rank] */
static void encode(struct change *e)
{
    const bool is_stored = e->event.kind == BT_KV_STORED;

    e->size = 0;
    put_byte(e, 0x93);
    put_number(e, 0xcb, 0, 8);
    put_byte(e, 0x91);
    put_byte(e, is_stored ? 0x86 : 0x83);
    put_member(e, "type", is_stored ? "BlockStored" : "BlockRemoved");
    put_text(e, "block_hashes");
    put_number(e, 0xdc, OWN, 2);
    for (unsigned i = 0; i < OWN; i++)
        put_number(e, 0xcf, e->hashes[i], 8);
    if (is_stored) {
        put_text(e, "parent_block_hash");
        put_number(e, 0xcf, e->event.parent, 8);
        put_text(e, "token_ids");
        put_number(e, 0xdc, OWN * BLOCK, 2);
        for (unsigned i = 0; i < OWN * BLOCK; i++)
            put_number(e, 0xce, e->event.tokens[i], 4);
        put_text(e, "block_size");
        put_byte(e, BLOCK);
    }
    put_member(e, "medium", "GPU");
    put_byte(e, 0);
}

static void set_change(struct change *e, enum bt_kv_event_kind kind, unsigned w, unsigned c)
{
    fill(e->tokens, w, c);
    for (unsigned i = 0; i < OWN; i++)
        e->hashes[i] = name_of(w, c, SHARED + i);
    e->part = 1 + w;
    e->event = (bt_kv_event_t){.kind = kind,
                               .hashes = e->hashes,
                               .hash_count = OWN,
                               .has_parent = true,
                               .parent = name_of(w, c, SHARED - 1),
                               .tokens = e->tokens + (size_t) SHARED * BLOCK,
                               .token_count = OWN * BLOCK,
                               .block_tokens = BLOCK};
    encode(e);
}

/* Written BATCH at a time, as the prompts are. */
static struct change gone[BATCH], come[BATCH];

static void next_changes(void)
{
    for (unsigned i = 0; i < BATCH; i++, replaced++) {
        set_change(&gone[i], BT_KV_REMOVED, replaced % workers, replaced / workers);
        set_change(&come[i], BT_KV_STORED, replaced % workers, replaced / workers + conversations);
    }
}

static void apply_change(struct change *e)
{
    bt_kv_part_apply(index_, e->part, &e->event);
}

static bt_kv_decoder_t decoder;

static void on_event(void *user, const bt_kv_event_t *event)
{
    const struct change *e = user;

    if (event->hash_count != OWN)
        die("an event was not understood");
    bt_kv_part_apply(index_, e->part, event);
}

static void decode_change(struct change *e)
{
    if (bt_kv_decode(&decoder, (bt_str_t){(const char *) e->bytes, e->size}, on_event, e) < 0)
        die("a payload was not understood");
}

/* For each request its query, an event that removes what goes for it and one that stores what the prompt adds. */
static void mix(bt_kv_query_t *query, void (*change)(struct change *), const char *what)
{
    double cpu = 0;

    for (unsigned from = 0; from < ASKED; from += BATCH) {
        fill_batch(from);
        next_changes();
        const double before = seconds(CLOCK_THREAD_CPUTIME_ID);
        for (unsigned i = 0; i < BATCH; i++) {
            (void) find(query, from + i);
            change(&gone[i]);
            change(&come[i]);
        }
        cpu += seconds(CLOCK_THREAD_CPUTIME_ID) - before;
    }
    printf("requests and events%-11s %9.0f/s of CPU   (a query of %u blocks : an event of %u "
           "stored : one of %u removed)\n",
           what, 3 * ASKED / cpu, PROMPT, OWN, OWN);
}

static void change_alone(void)
{
    double removed = 0, stored = 0;

    for (unsigned from = 0; from < ASKED; from += BATCH) {
        next_changes();
        const double before = seconds(CLOCK_THREAD_CPUTIME_ID);
        for (unsigned i = 0; i < BATCH; i++)
            apply_change(&gone[i]);
        const double between = seconds(CLOCK_THREAD_CPUTIME_ID);
        for (unsigned i = 0; i < BATCH; i++)
            apply_change(&come[i]);
        removed += between - before;
        stored += seconds(CLOCK_THREAD_CPUTIME_ID) - between;
    }
    printf("events of one kind             %9.0f/s of CPU stored, %.0f/s removed\n", ASKED / stored,
           ASKED / removed);
}

static void do_all(void)
{
    bt_kv_query_t *query;

    if (bt_kv_query_new(&query, index_) < 0)
        die("no query");
    mix(query, apply_change, ", mixed");
    change_alone();
    bt_kv_decoder_init(&decoder);
    mix(query, decode_change, ", decoded");
    bt_kv_decoder_fini(&decoder);
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
    do_all();
    bt_kv_index_stats(index_, &s);
    printf("after that                     %9.1f bytes a block of state\n",
           (double) s.bytes / (double) s.blocks);
    bt_kv_index_free(index_);
    free(order);
    return 0;
}
