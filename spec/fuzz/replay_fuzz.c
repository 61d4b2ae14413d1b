/* replay_fuzz.c - any bytes as a file of records: every line is read or refused with a reason.
 *
 * What must hold: no crash, no leak; a record that was read names workers with loads that are numbers, its texts lie in the line
 * or the fleet, and reading the same line again gives the same workers.
 */
#include "base/err.h"
#include "tools/replay.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "replay_fuzz: %s (line %d)\n", #cond, __LINE__);                       \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ASan looks at every byte. */
static uint64_t touch(bt_str_t s)
{
    return s.n > 0 ? bt_str_hash(s) : 0;
}

static uint64_t touch_all(const bt_replay_record_t *r)
{
    const bt_str_t texts[] = {r->id,          r->req.path,   r->req.model,
                              r->req.session, r->req.tenant, r->req.klass,
                              r->view.pool,   r->prefill,    r->decode};
    uint64_t sum = 0;

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        sum ^= touch(texts[i]);
    for (unsigned i = 0; r->req.head != NULL && i < r->req.head->header_count; i++)
        sum ^= touch(r->req.head->headers[i].name) ^ touch(r->req.head->headers[i].value);
    return sum;
}

static void check_set(const bt_worker_set_t *set)
{
    for (unsigned i = 0; i < set->count; i++) {
        const bt_worker_t *w = set->items[i];
        CHECK(w->id != 0 && w->name != NULL && w->spec.url != NULL);
        CHECK(w->load.kv_used_ppm <= 1000000);
        CHECK(w->ttft_ema_us >= 0 && w->tpot_ema_us >= 0);
    }
}

static void check_record(bt_replay_workers_t *fleet, const bt_replay_record_t *r)
{
    unsigned candidates = 0;
    double score = 0;

    (void) touch_all(r);
    for (int list = 0; list < BT_LIST_COUNT; list++) {
        check_set(r->view.sets[list]);
        candidates += r->view.sets[list]->count;
    }
    CHECK(r->has_candidates == (candidates > 0));
    if (bt_replay_score(fleet, r->decode, &score))
        CHECK(isfinite(score));
}

static void read_line(bt_replay_workers_t *fleet, bt_str_t line)
{
    char err[256] = "";
    bt_replay_record_t r;
    uint64_t key;

    if (bt_replay_read(fleet, line, &r, err, sizeof err) < 0) {
        CHECK(err[0] != '\0');
        return;
    }
    check_record(fleet, &r);
    key = r.view.key;
    CHECK(bt_replay_read(fleet, line, &r, err, sizeof err) == 0);
    CHECK(r.view.key == key);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bt_replay_workers_t *fleet = bt_replay_workers_new();
    const char *at = (const char *) data, *end = at + size;

    CHECK(fleet != NULL);
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t) (end - at));
        const bt_str_t line = {at, (size_t) ((newline != NULL ? newline : end) - at)};
        read_line(fleet, line);
        at += line.n + 1;
    }
    bt_replay_workers_free(fleet);
    return 0;
}
