/* kv_bench.h - `baton kv-bench`: what libbaton_kv moves a second, beside what the machine can.
 *
 * Owner: main; one command a process, and a second process of its own (the receiver), forked before any thread is made.
 * Life:  the command's.
 * Flow:  for each repetition: the floors, then each mode and shape, a row each; at last the ratios. Every cell ends with a verified pass.
 * Cost:  takes the machine: figures mean nothing while something else runs on it.
 */
#ifndef BT_TOOLS_KV_BENCH_H
#define BT_TOOLS_KV_BENCH_H

#include "tools/plot.h"
#include "transport/baton_kv.h"

#include <stdatomic.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

int bt_kv_bench(int argc, const char *const *argv);
void bt_kv_bench_help(bt_text_t *out);

/* ---- between the files ---- */
#define BENCH_PAGE ((size_t) 16384)
#define BENCH_PAGES 8192u
#define BENCH_BYTES (BENCH_PAGE * BENCH_PAGES)
#define BENCH_SAMPLES 200000u /* of a cell; more are timed, not kept */
#define BENCH_ROWS 1024u
#define BENCH_MODES 4u

typedef struct bench_shape {
    const char *name;
    uint32_t pages; /* of an operation */
    uint32_t run;   /* pages that adjoin on both sides */
    uint32_t in_flight;
    bool is_flow; /* rooms overlap: the rate is of the whole, not of one after the other */
} bench_shape_t;
extern const bench_shape_t bench_shapes[];
#define BENCH_SHAPES 7u

typedef struct bench_options {
    enum bt_kv_kind backend;
    const char *backend_name, *label, *memory, *plot;
    bool shapes[BENCH_SHAPES];
    uint32_t reps;
    uint64_t cell_ns; /* how long each is measured */
    bool is_json, is_private;
    bool is_thread[2], is_sleep[2]; /* which modes: [0] the first one named ... */
    uint32_t progress_count, receiver_count, streams;
} bench_options_t;

typedef struct bench_mode {
    bool is_thread, is_sleep;
} bench_mode_t;

/* A line of the result; times in microseconds, CPU in seconds a GB (10^9 bytes). */
typedef struct bench_row {
    char engine[48], copy[48]; /* copy: how the bytes were copied, "" = not by this program */
    const char *shape;
    bench_mode_t mode;
    bool is_floor;
    uint32_t rep, rooms, descs; /* descs: pages of an operation */
    uint64_t n, bad;
    double gbps, p50, p99, local_p50, prep_p50, post_p50, tx_cpu, rx_cpu, desc_per_s, merge;
} bench_row_t;

typedef struct bench_rows {
    bench_row_t at[BENCH_ROWS];
    uint32_t count;
} bench_rows_t;

/* Shared by the two processes. */
typedef struct bench_shared {
    _Atomic uint32_t step, answer; /* the floors' turn-taking */
    _Atomic uint32_t port;
    _Atomic uint32_t opened, ended,
        may_open; /* rooms: opened by the receiver; over there; it may open so many */
    _Atomic uint32_t is_over, has_failed, is_ready;
    _Atomic uint64_t bad, rx_cpu_ns;
    _Atomic uint64_t flag;
    char copy[48];                   /* how the receiver's agent copies; written before is_ready */
    uint64_t done_ns[BENCH_SAMPLES]; /* when the receiver's code held the completion, by room */
} bench_shared_t;

static inline uint64_t bench_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000000u + (uint64_t) t.tv_nsec;
}
/* Between single pages, for a receiver that should be asleep: 150 us, awake. */
static inline void bench_pause(void)
{
    for (uint64_t until = bench_now_ns() + 150000; bench_now_ns() < until;)
        ;
}
/* This thread, and those it makes: on the first (0, sender) or second (1, receiver) of our CPUs. */
void bench_pin(uint32_t which);
uint64_t bench_cpu_ns(void); /* of this process, all threads */
/* The p-th percentile (sorts); in us. */
double bench_percentile(uint64_t *ns, size_t n, double p);

/* The pages of operation k: the same in both processes. */
void bench_pages_init(void);
void bench_pages(const bench_shape_t *shape, uint32_t k, uint32_t *from, uint32_t *to);
/* Pieces of memory that the pages make, adjoining ones merged; their number. */
uint32_t bench_pieces(const bench_shape_t *shape, const uint32_t *pages, char *base,
                      struct iovec *iov);

/* A pool of the library's, or (private) memory as an engine would map it. The agent is needed for the former. */
char *bench_memory(bt_kv_agent_t *agent, bool is_private, bt_kv_region_t *region_p);

bench_row_t *bench_row(bench_rows_t *rows, const char *engine, const bench_shape_t *shape,
                       uint32_t rep);
/* Rate, percentiles, CPU of `n` operations that took sum_ns and used this CPU. Sorts ns. */
void bench_row_fill(bench_row_t *row, const bench_shape_t *shape, uint64_t *ns, uint64_t n,
                    uint64_t sum_ns, uint64_t tx_cpu_ns, uint64_t rx_cpu_ns);

/* tools/kv_bench_options.c: 0, or the exit status. */
int bench_options_read(bench_options_t *o, int argc, const char *const *argv);
/* tools/kv_bench_floor.c */
void bench_floors(const bench_options_t *o, bench_shared_t *shared, bench_rows_t *rows,
                  uint32_t rep);
/* tools/kv_bench_run.c: one cell. < 0: it could not be measured, a line on stderr says why. */
int bench_cell(const bench_options_t *o, bench_shared_t *shared, const bench_mode_t *mode,
               const bench_shape_t *shape, bench_rows_t *rows, uint32_t rep);
/* tools/kv_bench_peer.c: the second process; its exit status. */
int bench_receive(const bench_options_t *o, bench_shared_t *shared, const bench_mode_t *mode,
                  const bench_shape_t *shape);
bt_kv_agent_t *bench_agent(const bench_options_t *o, const bench_mode_t *mode, const char *name,
                           bt_kv_layout_t *layout_p, char **p_p);
void bench_fill_page(char *p, uint32_t page, uint64_t seed);
bool bench_page_is(const char *p, uint32_t page, uint64_t seed);
/* "memcpy"; "32/4+8192": stores of 32 bytes around the cache in 4 lanes, 8,192 ahead. */
void bench_way_text(char *text, size_t size, const bt_kv_copy_way_t *way);
#define BENCH_VERIFY_SEED UINT64_C(0x5eed)
/* tools/kv_bench_report.c */
enum bench_figure { BENCH_GBPS, BENCH_P50, BENCH_P99, BENCH_CPU };
/* Of a floor (mode NULL), or of the engine in this mode; 0 = not measured. */
double bench_median(const bench_rows_t *rows, const char *engine, const bench_mode_t *mode,
                    const char *shape, enum bench_figure which);
/* "copy": the better one of memcpy and of stores around the cache. */
double bench_floor(const bench_rows_t *rows, const char *floor, const char *shape,
                   enum bench_figure which);
/* What this back end's rates are held against. */
const char *bench_floor_name(const bench_options_t *o);
void bench_print_head(const bench_options_t *o);
void bench_print_row(const bench_options_t *o, const bench_row_t *row);
void bench_print_ratios(const bench_options_t *o, const bench_rows_t *rows);
/* tools/kv_bench_plot.c: medians beside their floors. 0, or an exit status. */
int bench_draw(const bench_options_t *o, const bench_rows_t *rows, bt_plot_t *out);

#endif
