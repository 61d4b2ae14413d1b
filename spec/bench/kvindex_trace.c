/* kvindex_trace.c - the index of KV blocks under the load of Dynamo's own benchmark of its index (INDEXER_BENCH.md), on one core.
 *
 * Usage: kvindex_trace TRACE [WORKERS [COPIES]]    Mooncake's conversation trace, 1,000 and 7
 *
 * As there: requests are dealt out to the workers by chance, each worker stands there COPIES times, blocks have 512 tokens. A request is a query;
 * what its worker does not hold yet is stored, in events of EVENT blocks, as many as their engines' events have. An op is a query or an event.
 * Theirs is the rate of a whole machine, with eight threads for events and others for queries; and hashes of tokens are ready there, here they are made.
 */
#include "kvindex/index.h"
#include "kvindex/query.h"
#include "simulator/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BLOCK 512u
#define BLOCKS_MAX 512u
#define EVENT 8u

struct prompt {
    uint32_t tokens[BLOCKS_MAX * BLOCK];
    uint64_t names[BLOCKS_MAX];
    unsigned blocks;
};

static struct prompt prompt;
static uint64_t queries, events, blocks_asked, blocks_stored;

static void die(const char *what)
{
    fprintf(stderr, "kvindex_trace: %s\n", what);
    exit(1);
}

static double cpu_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}

static unsigned read_tokens(void *user, unsigned wanted, const uint32_t **tokens_p)
{
    const struct prompt *p = user;

    *tokens_p = p->tokens;
    return wanted < p->blocks * BLOCK ? wanted : p->blocks * BLOCK;
}

static void fill(const bt_sim_trace_t *trace, const bt_sim_request_t *r)
{
    const uint64_t *ids = bt_sim_blocks(trace, r);

    prompt.blocks = r->block_count < BLOCKS_MAX ? r->block_count : BLOCKS_MAX;
    for (unsigned i = 0; i < prompt.blocks; i++) {
        prompt.names[i] = ids[i] + 1;
        for (unsigned t = 0; t < BLOCK; t++)
            prompt.tokens[i * BLOCK + t] = (uint32_t) ids[i];
    }
}

static void store(bt_kv_index_t *index, uint32_t part, unsigned from)
{
    for (unsigned count; from < prompt.blocks; from += count, events++) {
        count = prompt.blocks - from < EVENT ? prompt.blocks - from : EVENT;
        bt_kv_part_apply(index, part,
                         &(bt_kv_event_t){.kind = BT_KV_STORED,
                                          .hashes = prompt.names + from,
                                          .hash_count = count,
                                          .has_parent = from > 0,
                                          .parent = from > 0 ? prompt.names[from - 1] : 0,
                                          .tokens = prompt.tokens + (size_t) from * BLOCK,
                                          .token_count = count * BLOCK,
                                          .block_tokens = BLOCK});
        blocks_stored += count;
    }
}

static void replay(bt_kv_index_t *index, bt_kv_query_t *query, uint32_t part)
{
    (void) bt_kv_query_find(query, &(bt_kv_prompt_t){read_tokens, &prompt, 0});
    queries++;
    blocks_asked += prompt.blocks;
    store(index, part, bt_kv_query_hit(query, part).blocks);
}

int main(int argc, char **argv)
{
    const unsigned workers = argc > 2 ? (unsigned) strtoul(argv[2], NULL, 10) : 1000;
    const unsigned copies = argc > 3 ? (unsigned) strtoul(argv[3], NULL, 10) : 7;
    bt_kv_index_t *index;
    bt_kv_query_t *query;
    bt_sim_trace_t trace;
    char err[256] = "no TRACE";
    uint32_t first;
    double cpu = 0;

    if (argc < 2 || workers == 0 || bt_sim_trace_read(&trace, argv[1], err, sizeof(err)) < 0)
        die(err);
    if (bt_kv_index_new(&index, &(bt_kv_index_config_t){0}) < 0 ||
        bt_kv_part_open(index, workers * copies, &first) < 0 || bt_kv_query_new(&query, index) < 0)
        die("out of memory");
    srand(42);
    for (unsigned i = 0; i < trace.count; i++) {
        const uint32_t worker = (uint32_t) rand() % workers;
        fill(&trace, &trace.requests[i]);
        const double before = cpu_now();
        for (unsigned c = 0; c < copies; c++)
            replay(index, query, first + c * workers + worker);
        cpu += cpu_now() - before;
    }
    const double ops = (double) (queries + events);
    printf("%u workers: %llu queries of %.1f blocks, %llu events of %.1f blocks: %.0f requests and "
           "events/s of CPU\n",
           workers * copies, (unsigned long long) queries, (double) blocks_asked / (double) queries,
           (unsigned long long) events, (double) blocks_stored / (double) events, ops / cpu);
    bt_kv_query_free(query);
    bt_kv_index_free(index);
    bt_sim_trace_fini(&trace);
    return 0;
}
