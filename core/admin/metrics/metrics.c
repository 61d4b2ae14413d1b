/* What is not about one worker: the process, requests over all loops, and each loop. Counters are the loops' own and only
 * grow, so sums over loops are good counters too; a value may be a moment older than its neighbour.
 */
#include "admin/metrics/metrics.h"

#include "api/route.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sandbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define N(array) ((unsigned) (sizeof(array) / sizeof((array)[0])))

static uint64_t load(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

/* ---- process ---- */

static uint64_t resident_bytes(void)
{
    unsigned long long total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    if (f == NULL)
        return 0;
    int n = fscanf(f, "%llu %llu", &total, &resident);
    fclose(f);
    return n == 2 ? resident * (uint64_t) sysconf(_SC_PAGESIZE) : 0;
}

static uint64_t cpu_us(void)
{
    struct rusage u;

    if (getrusage(RUSAGE_SELF, &u) != 0)
        return 0;
    return (uint64_t) (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
           (uint64_t) (u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void write_memory(bt_prom_t *p)
{
    bt_prom_family(p, "baton_memory_bytes", "gauge", "The same by kind");
    for (unsigned kind = 0; kind < BT_MEM_KINDS; kind++) {
        const bt_label_t label = {"kind", bt_str(bt_mem_kind_name((enum bt_mem_kind) kind))};
        bt_prom_count(p, &label, 1, bt_mem_bytes((enum bt_mem_kind) kind));
    }
}

static void write_sandbox(bt_prom_t *p)
{
    const bt_sandbox_state_t is = bt_sandbox_state();
    const bt_label_t landlock = {"layer", BT_STR("landlock")},
                     seccomp = {"layer", BT_STR("seccomp")};

    bt_prom_family(p, "baton_sandbox", "gauge",
                   "1 where this layer of --sandbox holds the process");
    bt_prom_count(p, &landlock, 1, is.has_landlock);
    bt_prom_count(p, &seccomp, 1, is.has_seccomp);
}

static void write_process(bt_prom_t *p, const bt_dispatch_shared_t *shared, const char *version)
{
    const bt_label_t label = {"version", bt_str(version)};

    bt_prom_family(p, "baton_build_info", "gauge", "The running build, in its label");
    bt_prom_count(p, &label, 1, 1);
    write_sandbox(p);
    bt_prom_one(p, "baton_draining", "gauge",
                "1 while the gateway is shutting down and takes no new requests",
                atomic_load(&shared->draining));
    bt_prom_one(p, "baton_concurrent_requests", "gauge", "Requests admitted now",
                atomic_load(&shared->concurrent));
    bt_prom_one(p, "baton_buffered_bytes", "gauge",
                "Memory that requests and answers hold: what --max-buffered-bytes limits",
                bt_mem_total_bytes());
    write_memory(p);
    if (shared->unfinished != NULL)
        bt_prom_one(p, "baton_requests_evicted_total", "counter",
                    "Unfinished requests refused half-way because memory was short",
                    bt_unfinished_evicted(shared->unfinished));
    bt_prom_one(p, "baton_soft_failures_total", "counter",
                "Internal checks that failed while serving went on: each is a bug",
                bt_soft_count());
    bt_prom_one(p, "baton_log_dropped_total", "counter",
                "Log lines lost because stderr did not take them", bt_log_dropped());
    bt_prom_one(p, "baton_process_resident_bytes", "gauge", "Resident memory of the process",
                resident_bytes());
    bt_prom_one_micro(p, "baton_process_cpu_seconds_total", "counter",
                      "CPU time of the process, user and system", cpu_us());
}

/* ---- requests ---- */

static void write_requests(bt_prom_t *p, const bt_dispatch_shared_t *shared)
{
    bt_prom_family(
        p, "baton_requests_total", "counter",
        "Requests answered, by route and status; gone: the client left before it had one");
    for (unsigned route = 0; route < BT_ROUTE_COUNT; route++)
        for (unsigned status = 0; status < BT_STATS_STATUSES; status++) {
            uint64_t sum = 0;
            char text[16] = "gone";
            for (unsigned i = 0; i < shared->dispatcher_count; i++)
                sum += load(&shared->dispatchers[i]->stats.requests[route][status]);
            if (sum == 0)
                continue;
            if (status != 0)
                snprintf(text, sizeof text, "%u", status);
            const bt_label_t labels[] = {
                {"route", bt_str(bt_route_info((enum bt_route) route)->label)},
                {"status", bt_str(text)}};
            bt_prom_count(p, labels, N(labels), sum);
        }
}

static void write_counters(bt_prom_t *p, const bt_dispatch_shared_t *shared)
{
#define WRITE_COUNTER(name, help)                                                                  \
    bt_prom_one(p, "baton_" #name "_total", "counter", help,                                       \
                bt_dispatch_sum(shared, offsetof(bt_stats_t, name)));
    BT_COUNTER_MAP(WRITE_COUNTER)
#undef WRITE_COUNTER
}

/* Nobody is refused where nobody is asked, but a family that comes and goes is no help to who reads it. */
static void write_refused(bt_prom_t *p, const bt_dispatch_shared_t *shared)
{
    bt_prom_family(p, "baton_auth_refused_total", "counter",
                   "requests refused because of who has sent them, by reason");
    for (unsigned i = BT_AUTH_OK + 1; i < BT_AUTH_COUNT; i++) {
        const bt_label_t label = {"reason", bt_str(bt_auth_label((enum bt_auth_refusal) i))};
        bt_prom_count(
            p, &label, 1,
            bt_dispatch_sum(shared, offsetof(bt_stats_t, refused) + i * sizeof(_Atomic uint64_t)));
    }
}

static void write_replays(bt_prom_t *p, const bt_dispatch_shared_t *shared)
{
    const bt_label_t recomputed = {"reason", BT_STR("recomputed")},
                     lost = {"reason", BT_STR("lost")};

    bt_prom_family(p, "baton_replays_total", "counter",
                   "Answers continued at another worker by their token ids, by reason");
    bt_prom_count(p, &recomputed, 1,
                  bt_dispatch_sum(shared, offsetof(bt_stats_t, replays_recomputed)));
    bt_prom_count(p, &lost, 1, bt_dispatch_sum(shared, offsetof(bt_stats_t, replays_lost)));
}

struct exemplars {
    bt_trace_queue_t *traces;
    enum bt_trace_metric metric;
};

static bool find_exemplar(void *user, unsigned bucket, bt_trace_exemplar_t *exemplar_p)
{
    const struct exemplars *e = user;

    return bt_trace_queue_exemplar(e->traces, e->metric, bucket, exemplar_p);
}

static void write_histograms(bt_prom_t *p, const bt_dispatch_shared_t *shared)
{
    static const struct {
        const char *name, *help;
        size_t offset;
        enum bt_trace_metric exemplars; /* BT_TRACE_METRICS = it has none */
    } rows[] = {
        {"baton_ttft_seconds", "From the request's arrival to its first answer byte",
         offsetof(bt_stats_t, ttft), BT_TRACE_TTFT},
        {"baton_tpot_seconds", "Time per output token after the first, per request",
         offsetof(bt_stats_t, tpot), BT_TRACE_TPOT},
        {"baton_itl_seconds", "Time between two events of a stream", offsetof(bt_stats_t, itl),
         BT_TRACE_METRICS},
        {"baton_request_duration_seconds", "From the request's arrival to its last answer byte",
         offsetof(bt_stats_t, duration), BT_TRACE_DURATION},
        {"baton_encode_seconds", "From a request's media to the last encoder's reply",
         offsetof(bt_stats_t, encode), BT_TRACE_ENCODE},
        {"baton_prefill_seconds", "Duration of prefill legs", offsetof(bt_stats_t, prefill),
         BT_TRACE_PREFILL},
        {"baton_handoff_wait_seconds", "From prefill's end to decode's first byte",
         offsetof(bt_stats_t, handoff_wait), BT_TRACE_HANDOFF_WAIT},
        {"baton_callback_wait_seconds", "From asking decode to its call for prefill",
         offsetof(bt_stats_t, callback_wait), BT_TRACE_CALLBACK_WAIT},
        {"baton_queue_wait_seconds", "In line for a place in the pool, of those that had to wait",
         offsetof(bt_stats_t, queue_wait), BT_TRACE_QUEUE_WAIT},
        {"baton_queue_prediction_error_seconds",
         "By how much the predicted wait in line was wrong, of those that were called",
         offsetof(bt_stats_t, queue_error), BT_TRACE_QUEUE_ERROR},
        {"baton_admission_seconds", "In policies' admit, waiting included",
         offsetof(bt_stats_t, admission), BT_TRACE_ADMISSION},
        {"baton_route_seconds", "In policies' route, waiting included", offsetof(bt_stats_t, route),
         BT_TRACE_ROUTE},
        {"baton_tokenize_seconds", "Waiting for a prompt's token ids from an engine",
         offsetof(bt_stats_t, tokenize), BT_TRACE_METRICS},
        {"baton_decode_seconds", "From a request's first answer byte to its last",
         offsetof(bt_stats_t, decode), BT_TRACE_DECODE},
        {"baton_decision_seconds", "In policies' plan", offsetof(bt_stats_t, decision),
         BT_TRACE_DECISION},
    };
    const bt_histogram_t **parts = calloc(shared->dispatcher_count + 1, sizeof(*parts));

    for (unsigned r = 0; parts != NULL && r < N(rows); r++) {
        for (unsigned i = 0; i < shared->dispatcher_count; i++)
            parts[i] =
                (const void *) ((const char *) &shared->dispatchers[i]->stats + rows[r].offset);
        bt_prom_family(p, rows[r].name, "histogram", rows[r].help);
        struct exemplars e = {shared->traces, rows[r].exemplars};
        bt_prom_histogram(
            p,
            &(bt_prom_histogram_t){
                .parts = parts,
                .part_count = shared->dispatcher_count,
                .unit = rows[r].offset == offsetof(bt_stats_t, decision) ? BT_DECISION_UNIT : 1,
                .exemplar = e.traces != NULL && e.metric != BT_TRACE_METRICS ? find_exemplar : NULL,
                .user = &e});
    }
    free(parts);
}

/* ---- traces and decision records ---- */

static void write_traces(bt_prom_t *p, const bt_dispatch_shared_t *shared)
{
    bt_trace_stats_t stats;

    if (shared->traces == NULL)
        return;
    bt_trace_queue_stats(shared->traces, &stats);
    bt_prom_family(p, "baton_traces_kept_total", "counter",
                   "Traces kept for the collector, by why");
    for (unsigned i = 0; i < BT_TRACE_WHYS; i++) {
        const bt_label_t label = {"why", bt_str(bt_trace_why_name((enum bt_trace_why) i))};
        bt_prom_count(p, &label, 1, stats.kept[i]);
    }
    const struct {
        const char *name;
        uint64_t value;
    } outcomes[] = {
        {"exported", stats.exported}, {"rejected", stats.rejected}, {"dropped", stats.dropped}};
    bt_prom_family(p, "baton_trace_spans_total", "counter",
                   "Spans by what became of them; rejected: by the collector; dropped: too many "
                   "waited for it");
    for (unsigned i = 0; i < N(outcomes); i++) {
        const bt_label_t label = {"outcome", bt_str(outcomes[i].name)};
        bt_prom_count(p, &label, 1, outcomes[i].value);
    }
    bt_prom_one(p, "baton_trace_spans_waiting", "gauge", "Spans that wait for the collector",
                stats.waiting);
    bt_prom_one(p, "baton_trace_export_errors_total", "counter",
                "Calls of the collector that failed", stats.errors);
}

static void write_records(bt_prom_t *p, const bt_dispatch_shared_t *shared)
{
    bt_recorder_stats_t stats;

    bt_recorder_stats(shared->recorder, &stats);
    bt_prom_one(p, "baton_records_written_total", "counter", "Decision records in --record-file",
                stats.written);
    bt_prom_one(p, "baton_records_dropped_total", "counter",
                "Decision records lost because the file's writer was behind or could not write",
                stats.dropped);
    bt_prom_one(p, "baton_record_errors_total", "counter", "Failed writes to --record-file",
                stats.errors);
}

void bt_metrics_audit(bt_prom_t *p, const bt_audit_t *audit)
{
    bt_recorder_stats_t stats;

    if (audit == NULL)
        return;
    bt_audit_stats(audit, &stats);
    bt_prom_one(p, "baton_audit_lines_total", "counter", "Lines in the file of --audit-log",
                stats.written);
    bt_prom_one(p, "baton_audit_lines_dropped_total", "counter",
                "Lines lost because the file could not be written", stats.dropped);
    bt_prom_one(p, "baton_audit_errors_total", "counter", "Failed writes to --audit-log",
                stats.errors);
}

/* ---- loops ---- */

static void write_loop(bt_prom_t *p, unsigned loop, uint64_t value)
{
    char text[16];

    snprintf(text, sizeof text, "%u", loop);
    const bt_label_t label = {"loop", bt_str(text)};
    bt_prom_count(p, &label, 1, value);
}

static void write_gathered(bt_prom_t *p, const bt_loop_facts_t *facts, unsigned count)
{
    static const struct {
        const char *name, *help;
        size_t offset;
    } rows[] = {
        {"baton_live_requests", "Requests being served", offsetof(bt_loop_facts_t, requests)},
        {"baton_live_rooms", "Bootstrap rooms that are open", offsetof(bt_loop_facts_t, rooms)},
        {"baton_background_calls", "Release, abort and question calls under way",
         offsetof(bt_loop_facts_t, background)},
        {"baton_upstream_connections_idle", "Connections to workers kept for the next request",
         offsetof(bt_loop_facts_t, upstream_idle)},
        {"baton_upstream_connections_active", "Connections to workers that carry a leg",
         offsetof(bt_loop_facts_t, upstream_active)},
    };

    for (unsigned r = 0; r < N(rows); r++) {
        bt_prom_family(p, rows[r].name, "gauge", rows[r].help);
        for (unsigned i = 0; i < count; i++)
            if (facts[i].answered)
                write_loop(
                    p, facts[i].loop,
                    *(const unsigned *) (const void *) ((const char *) &facts[i] + rows[r].offset));
    }
}

static void write_loops(bt_prom_t *p, const bt_dispatch_shared_t *shared,
                        const bt_loop_facts_t *facts, unsigned count)
{
    bt_prom_family(p, "baton_client_connections", "gauge", "Client connections held by each loop");
    for (unsigned i = 0; i < shared->dispatcher_count; i++) {
        bt_loop_t *loop = shared->dispatchers[i]->loop;
        write_loop(p, loop->index, atomic_load_explicit(&loop->connections, memory_order_relaxed));
    }
    bt_prom_family(p, "baton_loop_responsive", "gauge",
                   "1 when the loop answered this scrape in time");
    for (unsigned i = 0; i < count; i++)
        write_loop(p, facts[i].loop, facts[i].answered);
    bt_prom_family(p, "baton_loop_delay_seconds", "gauge",
                   "How long this scrape's mail waited for the loop");
    for (unsigned i = 0; i < count; i++) {
        char text[16];
        snprintf(text, sizeof text, "%u", facts[i].loop);
        const bt_label_t label = {"loop", bt_str(text)};
        if (facts[i].answered)
            bt_prom_micro(p, &label, 1, facts[i].delay_us);
    }
    write_gathered(p, facts, count);
}

void bt_metrics_write(bt_prom_t *p, const bt_workers_t *workers, bt_dispatch_shared_t *shared,
                      const bt_loop_facts_t *facts, unsigned fact_count, const char *version)
{
    write_process(p, shared, version);
    write_requests(p, shared);
    bt_metrics_queues(p, shared);
    write_counters(p, shared);
    write_replays(p, shared);
    write_refused(p, shared);
    write_histograms(p, shared);
    bt_metrics_models(p, shared);
    write_records(p, shared);
    write_traces(p, shared);
    write_loops(p, shared, facts, fact_count);
    bt_metrics_pools(p, workers, bt_clock_ms());
}
