/* What a person reads: first the lines worth a look, as they come, then one table. Times are counted in buckets, 64 an octave,
 * so a file of any length needs the same memory. */
#include "tools/replay.h"

#include <stdio.h>
#include <stdlib.h>

#define COMPLAINTS 5     /* bad lines, and failures, that are printed */
#define NAMES_MAX 16384u /* different workers in the histogram */
#define NAMES_SIZE (4 * NAMES_MAX)
#define STEP_BITS 6 /* 64 buckets an octave: times are told to 2 % */
#define STEPS (1u << STEP_BITS)
#define BUCKETS (64u * STEPS)

enum leg { LEG_PREFILL, LEG_DECODE };

typedef struct worker_tally {
    enum leg leg;
    uint64_t hash;
    uint64_t counts[2]; /* old, new */
    size_t len;
    char name[];
} worker_tally_t;

struct bt_replay_tally {
    const bt_replay_report_t *report;
    uint64_t counts[BT_REPLAY_OUTCOMES];
    uint64_t shown, complaints, cut, reads_cut, unnamed;
    uint64_t buckets[BUCKETS];
    uint64_t timed, max_ns;
    unsigned name_count;
    worker_tally_t *names[NAMES_SIZE];
};

static const char *const leg_names[] = {"prefill", "decode"};

/* ---- choices by worker ---- */

static worker_tally_t *tally_of(bt_replay_tally_t *t, enum leg leg, bt_str_t name)
{
    const uint64_t hash = bt_str_hash(name) * 2 + (uint64_t) leg;
    worker_tally_t **at = &t->names[(hash ^ hash >> 32) % NAMES_SIZE];

    for (; *at != NULL; at = at + 1 < t->names + NAMES_SIZE ? at + 1 : t->names)
        if ((*at)->hash == hash && (*at)->leg == leg &&
            bt_str_eq((bt_str_t){(*at)->name, (*at)->len}, name))
            return *at;
    if (t->name_count == NAMES_MAX || (*at = calloc(1, sizeof **at + name.n + 1)) == NULL)
        return NULL;
    (*at)->leg = leg;
    (*at)->hash = hash;
    (*at)->len = name.n;
    memcpy((*at)->name, name.p, name.n);
    t->name_count++;
    return *at;
}

static void count_name(bt_replay_tally_t *t, enum leg leg, bt_str_t name, int side)
{
    worker_tally_t *w = name.n > 0 ? tally_of(t, leg, name) : NULL;

    if (w != NULL)
        w->counts[side]++;
    else if (name.n > 0)
        t->unnamed++;
}

static void count_side(bt_replay_tally_t *t, const bt_replay_side_t *s, int side)
{
    count_name(t, LEG_PREFILL, s->prefill, side);
    count_name(t, LEG_DECODE, s->decode, side);
}

/* ---- single lines ---- */

static void put_score(bt_text_t *out, bool has, double score)
{
    if (has)
        bt_text_printf(out, "%.6g", score);
    else
        bt_text_puts(out, "-");
}

static void put_side(bt_text_t *out, const char *title, const bt_replay_side_t *s)
{
    bt_text_printf(out, "%s ", title);
    if (s->decode.n == 0 && s->prefill.n == 0) {
        bt_text_puts(out, "nobody");
        return;
    }
    if (s->prefill.n > 0)
        bt_text_printf(out, "%.*s / ", BT_STR_ARG(s->prefill));
    else if (s->lacks_prefill)
        bt_text_puts(out, "open / ");
    bt_text_printf(out, "%.*s", BT_STR_ARG(s->decode.n > 0 ? s->decode : BT_STR("open")));
    if (!s->has_prefill_score && !s->has_decode_score)
        return;
    bt_text_puts(out, " (score ");
    if (s->prefill.n > 0) {
        put_score(out, s->has_prefill_score, s->prefill_score);
        bt_text_puts(out, " / ");
    }
    put_score(out, s->has_decode_score, s->decode_score);
    bt_text_puts(out, ")");
}

static void put_json_member(bt_text_t *out, const char *name, bt_str_t value)
{
    if (value.n == 0)
        return;
    bt_text_printf(out, "%s\"%s\":", out->data[out->len - 1] == '{' ? "" : ",", name);
    bt_text_json_str(out, value);
}

static void put_json_score(bt_text_t *out, const char *name, bool has, double score)
{
    if (has)
        bt_text_printf(out, "%s\"%s\":%.6g", out->data[out->len - 1] == '{' ? "" : ",", name,
                       score);
}

static void put_json_side(bt_text_t *out, const char *title, const bt_replay_side_t *s)
{
    bt_text_printf(out, ",\"%s\":{", title);
    put_json_member(out, "prefill", s->prefill);
    put_json_member(out, "decode", s->decode);
    put_json_score(out, "prefill_score", s->has_prefill_score, s->prefill_score);
    put_json_score(out, "decode_score", s->has_decode_score, s->decode_score);
    bt_text_puts(out, "}");
}

static void print_text(bt_text_t *text)
{
    if (text->data != NULL)
        bt_str_tame(text->data, text->len);
    bt_text_puts(text, "\n");
    if (text->data != NULL)
        fwrite(text->data, 1, text->len, stdout);
    bt_text_fini(text);
}

static void print_difference(const bt_replay_tally_t *t, const bt_replay_record_t *r,
                             const bt_replay_side_t *old, const bt_replay_side_t *new)
{
    bt_text_t text;

    bt_text_init(&text);
    if (t->report->json) {
        bt_text_puts(&text, "{\"type\":\"difference\",\"id\":");
        bt_text_json_str(&text, r->id);
        put_json_side(&text, "old", old);
        put_json_side(&text, "new", new);
        bt_text_puts(&text, "}");
    } else {
        bt_text_printf(&text, "different %.*s: ", BT_STR_ARG(r->id));
        put_side(&text, "old", old);
        put_side(&text, ", new", new);
    }
    print_text(&text);
}

static void print_failure(bt_replay_tally_t *t, const bt_replay_record_t *r, const char *name,
                          const char *error)
{
    bt_text_t text;

    if (t->complaints++ >= COMPLAINTS)
        return;
    bt_text_init(&text);
    if (t->report->json) {
        bt_text_puts(&text, "{\"type\":\"failure\",\"id\":");
        bt_text_json_str(&text, r->id);
        bt_text_puts(&text, ",\"policy\":");
        bt_text_json_str(&text, bt_str(name));
        bt_text_puts(&text, ",\"error\":");
        bt_text_json_str(&text, bt_str(error));
        bt_text_puts(&text, "}");
    } else {
        bt_text_printf(&text, "failed %.*s: %s: %s", BT_STR_ARG(r->id), name, error);
    }
    print_text(&text);
}

void bt_replay_malformed(bt_replay_tally_t *t, const char *file, uint64_t line, const char *why)
{
    char text[512];

    if (t->counts[BT_REPLAY_MALFORMED]++ >= COMPLAINTS)
        return;
    bt_str_copy(text, sizeof text, why); /* it may quote the record */
    bt_str_tame(text, strlen(text));
    fprintf(stderr, "%s:%llu: %s\n", file, (unsigned long long) line, text);
}

/* ---- counting ---- */

void bt_replay_skip(bt_replay_tally_t *t)
{
    t->counts[BT_REPLAY_SKIPPED]++;
}

enum bt_replay_outcome bt_replay_compare(bt_replay_tally_t *t, const bt_replay_record_t *r,
                                         const bt_replay_side_t *old, const bt_replay_side_t *new)
{
    enum bt_replay_outcome outcome = BT_REPLAY_SAME;

    if (old->error != NULL)
        print_failure(t, r, t->report->old_name, old->error);
    if (new->error != NULL)
        print_failure(t, r, t->report->new_name, new->error);
    t->cut += r->is_cut;
    t->reads_cut += r->reads_cut;
    count_side(t, old, 0);
    count_side(t, new, 1);
    if (old->error != NULL || new->error != NULL)
        outcome = BT_REPLAY_FAILED;
    else if (!t->report->is_against && r->decider != BT_REPLAY_POLICY)
        outcome = BT_REPLAY_BY_OTHER;
    else if (!bt_str_eq(old->prefill, new->prefill) || !bt_str_eq(old->decode, new->decode) ||
             old->lacks_prefill != new->lacks_prefill)
        outcome = BT_REPLAY_DIFFERENT;
    t->counts[outcome]++;
    if (outcome == BT_REPLAY_DIFFERENT && t->shown++ < t->report->show)
        print_difference(t, r, old, new);
    return outcome;
}

/* Below STEPS every value has a bucket; above, each octave has STEPS of them. */
static unsigned bucket_of(uint64_t ns)
{
    unsigned octave = ns < STEPS ? 0 : (unsigned) (63 - __builtin_clzll(ns)) - STEP_BITS;

    return ns < STEPS ? (unsigned) ns : (octave + 1) * STEPS + (unsigned) (ns >> octave) % STEPS;
}

static double bucket_us(unsigned bucket)
{
    unsigned octave = bucket / STEPS;
    uint64_t ns = octave == 0 ? bucket : (uint64_t) (STEPS + bucket % STEPS) << (octave - 1);

    return (double) ns / 1e3;
}

void bt_replay_time(bt_replay_tally_t *t, uint64_t ns)
{
    t->buckets[bucket_of(ns)]++;
    t->timed++;
    if (ns > t->max_ns)
        t->max_ns = ns;
}

uint64_t bt_replay_count(const bt_replay_tally_t *t, enum bt_replay_outcome outcome)
{
    return t->counts[outcome];
}

uint64_t bt_replay_total(const bt_replay_tally_t *t)
{
    uint64_t total = 0;

    for (int i = 0; i < BT_REPLAY_OUTCOMES; i++)
        total += t->counts[i];
    return total;
}

static double percentile_us(const bt_replay_tally_t *t, double share)
{
    uint64_t wanted = (uint64_t) (share * (double) t->timed), seen = 0;

    for (unsigned i = 0; i < BUCKETS; i++) {
        seen += t->buckets[i];
        if (seen > wanted)
            return bucket_us(i);
    }
    return (double) t->max_ns / 1e3;
}

/* ---- the table ---- */

static int compare_tallies(const void *a, const void *b)
{
    const worker_tally_t *x = *(worker_tally_t *const *) a, *y = *(worker_tally_t *const *) b;
    const uint64_t xs = x->counts[0] + x->counts[1], ys = y->counts[0] + y->counts[1];

    if (x->leg != y->leg)
        return x->leg < y->leg ? -1 : 1;
    return xs != ys ? (xs < ys ? 1 : -1) : strcmp(x->name, y->name);
}

/* Packs the table to its front, in order; nothing is looked up afterwards. */
static void sort_names(bt_replay_tally_t *t)
{
    unsigned n = 0;

    for (unsigned i = 0; i < NAMES_SIZE; i++) {
        worker_tally_t *w = t->names[i];
        t->names[i] = NULL;
        if (w != NULL)
            t->names[n++] = w;
    }
    qsort(t->names, n, sizeof(worker_tally_t *), compare_tallies);
}

static void put_count(bt_text_t *out, const char *title, uint64_t count, uint64_t of,
                      const char *note)
{
    bt_text_printf(out, "%-12s %10llu", title, (unsigned long long) count);
    if (of > 0)
        bt_text_printf(out, "  %5.1f %%", 100.0 * (double) count / (double) of);
    bt_text_printf(out, "%s%s\n", *note != '\0' ? "  " : "", note);
}

static void put_notes(const bt_replay_tally_t *t, bt_text_t *out)
{
    if (t->counts[BT_REPLAY_SKIPPED] > 0)
        bt_text_printf(out,
                       "note: %llu records have no candidates: only sampled requests carry them "
                       "(--record-sample)\n",
                       (unsigned long long) t->counts[BT_REPLAY_SKIPPED]);
    if (t->cut > 0)
        bt_text_printf(out,
                       "note: %llu records list a part of their candidates only; nobody else could "
                       "be chosen here\n",
                       (unsigned long long) t->cut);
    if (t->reads_cut > 0)
        bt_text_printf(out,
                       "note: %llu decisions are not exact: their records hold a part of what they "
                       "read of counters, windows and prefixes only\n",
                       (unsigned long long) t->reads_cut);
    if (t->report->learner != NULL)
        bt_text_printf(
            out,
            "note: %s learns between decisions (observe, tick), and no record holds what "
            "it had learned: what differs may be that\n",
            t->report->learner);
    if (t->unnamed > 0)
        bt_text_printf(out, "note: %llu choices of further workers are not in the table below\n",
                       (unsigned long long) t->unnamed);
}

static void put_table(const bt_replay_tally_t *t, double seconds, bt_text_t *out)
{
    const uint64_t *n = t->counts;
    const uint64_t compared = n[BT_REPLAY_SAME] + n[BT_REPLAY_DIFFERENT];
    const uint64_t total = bt_replay_total(t);

    bt_text_printf(out, "old: %s, new: %s\n", t->report->old_name, t->report->new_name);
    put_count(out, "records", total, 0, "");
    put_count(out, "compared", compared, 0, "");
    put_count(out, "same", n[BT_REPLAY_SAME], compared, "");
    put_count(out, "different", n[BT_REPLAY_DIFFERENT], compared, "");
    put_count(out, "failed", n[BT_REPLAY_FAILED], 0, "");
    if (!t->report->is_against)
        put_count(out, "default", n[BT_REPLAY_BY_OTHER], 0,
                  "the default choice had decided, or nobody: not compared");
    put_count(out, "skipped", n[BT_REPLAY_SKIPPED], 0, "no candidates in the record");
    put_count(out, "malformed", n[BT_REPLAY_MALFORMED], 0, "");
    bt_text_printf(out, "us per plan  p50 %.2f  p99 %.2f  max %.2f\n", percentile_us(t, 0.5),
                   percentile_us(t, 0.99), (double) t->max_ns / 1e3);
    bt_text_printf(out, "%.2f s, %.0f records a second\n", seconds,
                   seconds > 0 ? (double) total / seconds : 0);
    put_notes(t, out);
}

static void put_names(const bt_replay_tally_t *t, bt_text_t *out)
{
    for (unsigned i = 0; i < t->name_count; i++) {
        const worker_tally_t *w = t->names[i];
        if (i == 0 || t->names[i - 1]->leg != w->leg)
            bt_text_printf(out, "\n%-24s %10s %10s\n", leg_names[w->leg], "old", "new");
        bt_str_tame(t->names[i]->name, w->len);
        bt_text_printf(out, "  %-22s %10llu %10llu\n", w->name, (unsigned long long) w->counts[0],
                       (unsigned long long) w->counts[1]);
    }
}

static void put_json(const bt_replay_tally_t *t, double seconds, bt_text_t *out)
{
    static const char *const names[] = {"same",    "different", "failed",
                                        "default", "skipped",   "malformed"};

    for (unsigned i = 0; i < t->name_count; i++) {
        const worker_tally_t *w = t->names[i];
        bt_text_printf(out, "{\"type\":\"worker\",\"leg\":\"%s\",\"name\":", leg_names[w->leg]);
        bt_text_json_str(out, (bt_str_t){w->name, w->len});
        bt_text_printf(out, ",\"old\":%llu,\"new\":%llu}\n", (unsigned long long) w->counts[0],
                       (unsigned long long) w->counts[1]);
    }
    bt_text_puts(out, "{\"type\":\"summary\",\"old\":");
    bt_text_json_str(out, bt_str(t->report->old_name));
    bt_text_puts(out, ",\"new\":");
    bt_text_json_str(out, bt_str(t->report->new_name));
    bt_text_printf(
        out, ",\"records\":%llu,\"compared\":%llu", (unsigned long long) bt_replay_total(t),
        (unsigned long long) (t->counts[BT_REPLAY_SAME] + t->counts[BT_REPLAY_DIFFERENT]));
    for (int i = 0; i < BT_REPLAY_OUTCOMES; i++)
        bt_text_printf(out, ",\"%s\":%llu", names[i], (unsigned long long) t->counts[i]);
    bt_text_printf(
        out,
        ",\"cut\":%llu,\"reads_cut\":%llu,\"learns\":%s,\"plan_us\":{\"p50\":%.3f,\"p99\":%.3f,"
        "\"max\":%.3f},\"seconds\":%.3f}\n",
        (unsigned long long) t->cut, (unsigned long long) t->reads_cut,
        t->report->learner != NULL ? "true" : "false", percentile_us(t, 0.5),
        percentile_us(t, 0.99), (double) t->max_ns / 1e3, seconds);
}

void bt_replay_print(bt_replay_tally_t *t, double seconds)
{
    bt_text_t text;

    sort_names(t);
    bt_text_init(&text);
    if (t->report->json) {
        put_json(t, seconds, &text);
    } else {
        if (t->shown > 0 || t->complaints > 0)
            bt_text_puts(&text, "\n");
        put_table(t, seconds, &text);
        put_names(t, &text);
    }
    if (text.data != NULL)
        fwrite(text.data, 1, text.len, stdout);
    bt_text_fini(&text);
}

/* ---- life ---- */

bt_replay_tally_t *bt_replay_tally_new(const bt_replay_report_t *report)
{
    bt_replay_tally_t *t = calloc(1, sizeof *t);

    if (t != NULL)
        t->report = report;
    return t;
}

void bt_replay_tally_free(bt_replay_tally_t *t)
{
    for (unsigned i = 0; t != NULL && i < NAMES_SIZE; i++)
        free(t->names[i]);
    free(t);
}
