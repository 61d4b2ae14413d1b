/* What a decision record costs a request: its line and its place in the ring, and for a sampled one the copies and the queue of
 * the file's thread. Prints one line per kind (CPU time, the median of its hundreds); not a test. Build it as users do (release).
 * With an argument: only those that are not sampled, for a profiler.
 */
#include "dispatch/record_fixture.h"

#include <time.h>

#define ROUNDS 200000
#define HUNDREDS (ROUNDS / 100)

static record_rig_t rig;

static char id[40];

static void one_request(unsigned i, bool sampled)
{
    bt_policy_view_t view;

    snprintf(id, sizeof id, "6f1c7a52-93a1-4f6e-9d1e-%012u", i);
    rig_request(&rig, id);
    rig.shared.record.sample = sampled ? 1 : 0;
    rig.x.head.header_count = 0;
    rig_header(&rig, "Host", "127.0.0.1");
    rig_header(&rig, "X-Tenant-Id", "acme");
    rig_header(&rig, "X-Session-Id", "session-1");
    view = rig_view(&rig);
    rig_choose(&rig, rig.prefill[0], rig.decode[0]);
    rig_attempt(&rig, 0, rig.prefill[0], rig.decode[0], 200, 90000)->prefill_done_us = 1031000;
    rig.r.first_byte_us = 1040123;
    rig.r.policy_name = "least_load";
    rig.r.policy_version = "1";
    rig.r.policy_generation = 3;
    rig.r.record.decided_by = "policy";
    rig.r.record.plan_us = 9;
    rig.r.status = 200;
    (void) view;
}

/* CPU time of this thread: other load on the machine disturbs it least. */
static double cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double) now.tv_sec * 1e9 + (double) now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

/* Only what records add: begin, candidates, finish. */
static void measure(const char *name, bool sampled, unsigned pairs)
{
    static double ns[HUNDREDS];
    const unsigned hundreds = sampled ? HUNDREDS / 10 : HUNDREDS;
    bt_text_t line;

    rig_open(&rig, pairs);
    rig_end_request(&rig);
    for (unsigned i = 0; i < hundreds; i++) {
        /* a hundred at a time, so that the clock is read rarely: the same request ends again and again */
        one_request(100 * i, sampled);
        const bt_policy_view_t view = {.sets = {&rig.sets[0], &rig.sets[1], &rig.sets[2]},
                                       .key = 1,
                                       .pool = BT_STR("default")};
        const double start_ns = cpu_ns();
        rig.r.id = id;
        for (unsigned k = 0; k < 100; k++) {
            id[34] = (char) ('0' + k / 10); /* or the ring would search among a hundred of one id */
            id[35] = (char) ('0' + k % 10);
            bt_record_begin(&rig.r);
            bt_record_candidates(&rig.r, &view);
            bt_record_finish(&rig.r);
        }
        ns[i] = (cpu_ns() - start_ns) / 100;
        rig_end_request(&rig);
    }
    qsort(ns, hundreds, sizeof(*ns), compare);
    rig_request(&rig, id);
    bt_text_init(&line);
    bt_record_ring_find(rig.d.records, bt_str(id), &line);
    printf("%-44s %6zu bytes  %8.0f ns\n", name, line.len, ns[hundreds / 2]);
    bt_text_fini(&line);
    rig_close(&rig);
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/baton-record-bench-XXXXXX", path[64], command[80], err[256];
    bt_record_config_t config = {.file = path, .max_bytes = (uint64_t) 64 << 20};
    bt_recorder_stats_t stats;

    (void) argv;
    measure("not sampled", false, 2);
    if (argc > 1)
        return 0;
    measure("sampled, 2 + 2 candidates", true, 2);
    measure("sampled, 64 + 64 candidates", true, 64);
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(path, sizeof path, "%s/records", folder);
    bt_recorder_t *recorder = NULL;
    if (bt_recorder_open(&recorder, &config, err, sizeof err) == 0) {
        static const char text[900];
        uint64_t start = bt_clock_us();
        for (unsigned i = 0; i < ROUNDS; i++)
            bt_recorder_put(recorder, (bt_str_t){text, sizeof text});
        uint64_t spent_us = bt_clock_us() - start;
        bt_recorder_stats(recorder, &stats);
        printf("%-44s %6zu bytes  %8.0f ns  (%llu of %u dropped at this rate)\n",
               "given to the file's thread", sizeof text, (double) spent_us * 1000.0 / ROUNDS,
               (unsigned long long) stats.dropped, ROUNDS);
        bt_recorder_close(recorder);
    }
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}
