/* What the shared store costs: the same commands to the same real redis-server by hiredis alone (blocking, pipelined) and by a client of core/store on a loop,
 * in one run. Prints one line per case; ratios travel, absolute figures belong to the machine. Not a test. Build it as users do (release).
 *
 *   bench_store [THOUSANDS]      of commands a round (100)
 */
#include "redis_server.h"
#include "store/redis_scripts.h"
#include "store/store.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#define DEPTH_MAX 256
#define ROUNDS 3

typedef struct figures {
    uint64_t wall_us, cpu_us, ops;
    uint32_t *latency_us;
} figures_t;

static uint64_t cpu_us(void)
{
    struct rusage use;

    getrusage(RUSAGE_SELF, &use);
    return (uint64_t) (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000000 +
           (uint64_t) (use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *) a, y = *(const uint32_t *) b;

    return (x > y) - (x < y);
}

static void print(const char *what, unsigned depth, const char *who, figures_t *f, double base)
{
    qsort(f->latency_us, f->ops, sizeof(uint32_t), by_size);
    double rate = (double) f->ops * 1e6 / (double) f->wall_us;

    printf("%-12s %5u %-8s %10.0f %9.2f %9u %9u", what, depth, who, rate,
           (double) f->cpu_us / (double) f->ops, f->latency_us[f->ops / 2],
           f->latency_us[f->ops * 99 / 100]);
    if (base > 0)
        printf(" %7.2f", rate / base);
    printf("\n");
}

/* ---- hiredis alone: a window of `depth` commands ---- */
static void run_raw(const redis_server_t *server, int argc, const char **argv, const size_t *n,
                    unsigned depth, figures_t *f)
{
    static uint64_t sent_us[DEPTH_MAX];
    redisContext *c = redisConnect("127.0.0.1", (int) server->port);
    uint64_t asked = 0, begun = bt_clock_us(), cpu = cpu_us();

    for (uint64_t told = 0; told < f->ops; told++) {
        void *reply;
        for (; asked < f->ops && asked < told + depth; asked++) {
            sent_us[asked % depth] = bt_clock_us();
            redisAppendCommandArgv(c, argc, argv, n);
        }
        if (redisGetReply(c, &reply) != REDIS_OK ||
            ((redisReply *) reply)->type == REDIS_REPLY_ERROR) {
            fprintf(stderr, "bench_store: %s\n", c->err ? c->errstr : ((redisReply *) reply)->str);
            exit(1);
        }
        freeReplyObject(reply);
        f->latency_us[told] = (uint32_t) (bt_clock_us() - sent_us[told % depth]);
    }
    f->wall_us = bt_clock_us() - begun;
    f->cpu_us = cpu_us() - cpu;
    redisFree(c);
}

/* ---- the store ---- */
typedef struct lane {
    bt_store_op_t op;
    uint64_t sent_us;
} lane_t;

static bt_loop_t loop;
static bt_store_client_t *client;
static figures_t *into;
static uint64_t asked, told;
static bool is_up;

static void ask(lane_t *lane)
{
    lane->sent_us = bt_clock_us();
    asked++;
    bt_store_do(client, &lane->op);
}

static void on_told(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    lane_t *lane = op->user;

    if (reply->rc != 0) {
        fprintf(stderr, "bench_store: %s\n", reply->error);
        exit(1);
    }
    into->latency_us[told++] = (uint32_t) (bt_clock_us() - lane->sent_us);
    if (asked < into->ops)
        ask(lane);
    if (told == into->ops)
        bt_loop_stop(&loop);
}

static void run_store(const bt_store_op_t *op, unsigned depth, figures_t *f)
{
    static lane_t lanes[DEPTH_MAX];
    uint64_t begun = bt_clock_us(), cpu = cpu_us();

    into = f;
    asked = told = 0;
    for (unsigned i = 0; i < depth; i++) {
        lanes[i].op = *op;
        lanes[i].op.cb = on_told;
        lanes[i].op.user = &lanes[i];
        ask(&lanes[i]);
    }
    bt_loop_run(&loop);
    f->wall_us = bt_clock_us() - begun;
    f->cpu_us = cpu_us() - cpu;
}

static void on_up(void *user)
{
    (void) user;
    is_up = true;
    bt_loop_stop(&loop);
}

static void on_freed(void *user)
{
    (void) user;
    bt_loop_stop(&loop);
}

/* Of three rounds the one that was disturbed least. */
static void keep_better(figures_t *best, figures_t *one)
{
    figures_t kept = *best;

    if (best->wall_us != 0 && best->wall_us <= one->wall_us)
        return;
    *best = *one;
    one->latency_us = kept.latency_us;
}

static void compare(const redis_server_t *server, uint64_t ops, unsigned depth, bool is_script)
{
    bt_str_t sha = bt_redis_script_sha(BT_REDIS_WINDOW_TAKE);
    const char *add[] = {"INCRBY", "baton:{bench}:raw", "1"};
    const char *take[] = {"EVALSHA", sha.p, "1", "baton:{bench}:w", "1000000000", "60000", "1"};
    size_t add_n[] = {6, 17, 1}, take_n[] = {7, sha.n, 1, 15, 10, 5, 1};
    figures_t raw = {.ops = ops}, store = {.ops = ops};
    bt_store_op_t op = {.what = is_script ? BT_STORE_WINDOW_TAKE : BT_STORE_COUNTER_ADD,
                        .space = BT_STR("bench"),
                        .key = is_script ? BT_STR("w") : BT_STR("n"),
                        .amount = 1,
                        .limit = 1000000000,
                        .window_ms = 60000};
    const char *what = is_script ? "window_take" : "counter_add";

    uint32_t *spare = calloc(ops, sizeof(uint32_t));
    raw.latency_us = calloc(ops, sizeof(uint32_t));
    store.latency_us = calloc(ops, sizeof(uint32_t));
    for (unsigned i = 0; i < ROUNDS; i++) { /* in turn, so that a busy machine is busy for both */
        figures_t one = {.ops = ops, .latency_us = spare};
        run_store(&op, depth, &one);
        keep_better(&store, &one);
        spare = one.latency_us;
        one = (figures_t){.ops = ops, .latency_us = spare};
        if (is_script)
            run_raw(server, 7, take, take_n, depth, &one);
        else
            run_raw(server, 3, add, add_n, depth, &one);
        keep_better(&raw, &one);
        spare = one.latency_us;
    }
    free(spare);
    print(what, depth, "hiredis", &raw, 0);
    print(what, depth, "store", &store, (double) ops * 1e6 / (double) raw.wall_us);
    free(raw.latency_us);
    free(store.latency_us);
}

int main(int argc, char **argv)
{
    uint64_t ops = (argc > 1 ? strtoull(argv[1], NULL, 10) : 100) * 1000;
    redis_server_t server;
    bt_store_t *store;
    char url[64], err[256];

    if (redis_program() == NULL)
        return 77;
    redis_start(&server, NULL);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", server.port);
    bt_store_config_t config = {.url = url, .op_ms = 5000};
    if (bt_loop_init(&loop, 0) != 0 || bt_store_open(&store, &config, err, sizeof(err)) != 0 ||
        bt_store_client_new(&client, store, &loop, on_up, NULL) != 0)
        return 1;
    bt_loop_run(&loop);
    printf("%-12s %5s %-8s %10s %9s %9s %9s %7s\n", "operation", "depth", "by", "ops/s",
           "CPU us/op", "p50 us", "p99 us", "ratio");
    static const unsigned depths[] = {1, 16, 256};
    for (unsigned i = 0; i < 3; i++)
        for (int script = 0; script < 2; script++)
            compare(&server, depths[i] == 1 ? ops / 10 : ops, depths[i], script != 0);
    bt_store_client_free(client, on_freed, NULL);
    bt_loop_run(&loop);
    bt_store_close(store);
    bt_loop_fini(&loop);
    redis_end(&server);
    return is_up ? 0 : 1;
}
