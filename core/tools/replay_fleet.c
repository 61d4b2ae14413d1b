/* How it works: a worker of a record is known by its id and by everything about it that cannot change; these facts are compared
 * as the bytes that they were written as, so a known worker costs one look-up and the policy's VM keeps its row. The views' key
 * is a hash of who is in them, so lists are made anew only when the candidates are others.
 *
 * Two gateways may have given one id to different workers: the later one gets an id of its own, far above theirs. */
#include "tools/replay.h"

#include "base/err.h"
#include "base/json.h"
#include "script/shared/prefix_index.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define WORKERS_MAX 65536u
#define TABLE_SIZE (4 * WORKERS_MAX) /* a power of two, never more than a quarter full */
#define FRESH_MS 5000                /* reports of engines count for so long */
#define OWN_IDS ((uint64_t) 1 << 31)

typedef struct known {
    uint64_t hash, said_id;
    bt_str_t facts[BT_REPLAY_FACT_COUNT]; /* as written, in text */
    bt_worker_t *worker;
    uint64_t read; /* number of the last record that named it */
    bool has_score;
    double score;
    char text[];
} known_t;

struct list {
    bt_worker_set_t set;
    unsigned cap;
};

struct bt_replay_workers {
    known_t **table;
    unsigned count;
    uint64_t max_id, next_own;
    uint64_t reads;
    known_t **named; /* by the last record */
    unsigned named_count, named_cap;
    struct list lists[BT_LIST_COUNT];
    char *scratch; /* texts of a line without their escapes */
    size_t scratch_len;
    bt_breaker_config_t breaker;
};

/* A string's bytes: where they stand, or without escapes in the scratch, which has room for the whole line. */
bt_str_t bt_replay_text(bt_replay_workers_t *f, bt_str_t value)
{
    char *out = f->scratch + f->scratch_len;
    long n;

    if (value.n < 2) /* not there */
        return BT_STR("");
    if (memchr(value.p, '\\', value.n) == NULL)
        return (bt_str_t){value.p + 1, value.n - 2};
    n = bt_json_unescape(value, out, BT_REPLAY_LINE_MAX - f->scratch_len);
    if (n < 0)
        return BT_STR("");
    f->scratch_len += (size_t) n;
    return (bt_str_t){out, (size_t) n};
}

/* ---- workers ---- */

/* {"a":"x","b":true} -> "a=x,b". */
static char *labels_text(bt_replay_workers_t *f, bt_str_t labels)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    bt_text_t text;

    if (labels.n == 0 || bt_json_object(&c, labels) < 0)
        return NULL;
    bt_text_init(&text);
    while (bt_json_next(&c, &item) > 0) {
        if (text.len > 0)
            bt_text_puts(&text, ",");
        bt_text_put(&text, item.key);
        if (item.type != BT_JSON_STRING)
            continue;
        bt_text_puts(&text, "=");
        bt_text_put(&text, bt_replay_text(f, item.value));
    }
    return text.data; /* NULL when there is none */
}

static char *fact_text(bt_replay_workers_t *f, const bt_replay_row_t *row, enum bt_replay_fact fact)
{
    return row->facts[fact].n > 0 ? bt_str_dup(bt_replay_text(f, row->facts[fact])) : NULL;
}

/* 0: not said, or none that can be. */
static int fact_size(const bt_replay_row_t *row, enum bt_replay_fact fact)
{
    uint64_t size = 0;

    return bt_str_u64(row->facts[fact], &size) == 0 && size <= INT_MAX ? (int) size : 0;
}

/* Its dialect is a connector's name as well: taken where the configuration said more than the name
 * (a dispatch_profile, a MultiConnector's children). */
static char *connector_of(bt_replay_workers_t *f, const bt_replay_row_t *row)
{
    char *name = fact_text(f, row, BT_REPLAY_FACT_CONNECTOR);
    char *dialect = fact_text(f, row, BT_REPLAY_FACT_DIALECT);
    const char *derived = NULL, *why;
    enum bt_capability capability;

    bt_capability_derive(BT_ENGINE_UNKNOWN, bt_str(name), NULL, 0, BT_STR_NULL, &capability,
                         &derived, &why);
    if (name != NULL &&
        (dialect == NULL || (derived != NULL && strcmp(derived, dialect) == 0 && why == NULL))) {
        free(dialect);
        return name;
    }
    free(name);
    return dialect;
}

static enum bt_engine engine_of(bt_replay_workers_t *f, const bt_replay_row_t *row,
                                const char *connector)
{
    enum bt_engine engine;

    if (row->facts[BT_REPLAY_FACT_ENGINE].n > 0 &&
        bt_engine_parse(bt_replay_text(f, row->facts[BT_REPLAY_FACT_ENGINE]), &engine) == 0)
        return engine;
    return connector != NULL && strcmp(connector, "sglang") == 0 ? BT_ENGINE_SGLANG
                                                                 : BT_ENGINE_VLLM;
}

static int make_worker(bt_replay_workers_t *f, const bt_replay_row_t *row, enum bt_role role,
                       uint64_t id, bt_worker_t **worker_p, char *err, size_t err_size)
{
    char url[64];
    bt_worker_spec_t spec;
    int rc;

    bt_worker_spec_init(&spec);
    spec.role = role;
    snprintf(url, sizeof url, "http://worker-%llu:1", (unsigned long long) id);
    spec.url = row->facts[BT_REPLAY_FACT_URL].n > 0
                   ? fact_text(f, row, BT_REPLAY_FACT_URL)
                   : bt_str_dup(bt_str(url)); /* native functions hash it */
    spec.name = fact_text(f, row, BT_REPLAY_FACT_NAME);
    spec.zone = fact_text(f, row, BT_REPLAY_FACT_ZONE);
    spec.labels = labels_text(f, row->facts[BT_REPLAY_FACT_LABELS]);
    spec.connector = connector_of(f, row);
    spec.engine = engine_of(f, row, spec.connector);
    spec.version = fact_text(f, row, BT_REPLAY_FACT_VERSION);
    spec.dp_size = fact_size(row, BT_REPLAY_FACT_DP_SIZE);
    spec.tp_size = fact_size(row, BT_REPLAY_FACT_TP_SIZE);
    spec.pp_size = fact_size(row, BT_REPLAY_FACT_PP_SIZE);
    rc = bt_worker_new(worker_p, &spec, id, f->count, &f->breaker, err, err_size);
    bt_worker_spec_fini(&spec);
    if (rc == 0)
        atomic_store_explicit(&(*worker_p)->health, BT_HEALTH_UP, memory_order_relaxed);
    return rc;
}

static bool is_taken(const bt_replay_workers_t *f, uint64_t id)
{
    for (unsigned i = 0; id <= f->max_id && i < TABLE_SIZE; i++)
        if (f->table[i] != NULL && f->table[i]->said_id == id)
            return true;
    return false;
}

static uint64_t id_for(bt_replay_workers_t *f, uint64_t said)
{
    if (said == 0 || said >= OWN_IDS || is_taken(f, said))
        return f->next_own++;
    if (said > f->max_id)
        f->max_id = said;
    return said;
}

static known_t *keep(const bt_replay_row_t *row, uint64_t hash, bt_worker_t *worker)
{
    size_t size = 0;
    known_t *k;
    char *at;

    for (int i = 0; i < BT_REPLAY_FACT_COUNT; i++)
        size += row->facts[i].n;
    k = malloc(sizeof *k + size + 1);
    if (k == NULL)
        return NULL;
    *k = (known_t){.hash = hash, .said_id = row->id, .worker = worker};
    at = k->text;
    for (int i = 0; i < BT_REPLAY_FACT_COUNT; i++) {
        if (row->facts[i].n > 0)
            memcpy(at, row->facts[i].p, row->facts[i].n);
        k->facts[i] = (bt_str_t){at, row->facts[i].n};
        at += row->facts[i].n;
    }
    return k;
}

static int add_worker(bt_replay_workers_t *f, const bt_replay_row_t *row, uint64_t hash,
                      unsigned at, known_t **known_p, char *err, size_t err_size)
{
    enum bt_role role = BT_ROLE_HYBRID;
    bt_worker_t *worker;
    int rc;

    if (f->count == WORKERS_MAX)
        return bt_replay_bad(err, err_size, "more than %u different workers", WORKERS_MAX);
    if (row->facts[BT_REPLAY_FACT_NAME].n == 0)
        return bt_replay_bad(err, err_size, "a candidate has no name");
    if (bt_role_parse(bt_replay_text(f, row->facts[BT_REPLAY_FACT_ROLE]), &role) < 0)
        return bt_replay_bad(err, err_size, "a candidate's role is no prefill, decode or hybrid");
    rc = make_worker(f, row, role, id_for(f, row->id), &worker, err, err_size);
    if (rc < 0)
        return rc == BT_E_NOMEM ? rc : BT_E_INVAL;
    if (row->facts[BT_REPLAY_FACT_DIALECT].n > 0 && worker->refusal != NULL) {
        rc = bt_replay_bad(err, err_size, "worker %s: dialect: %s", worker->name, worker->refusal);
        bt_worker_unref(worker);
        return rc;
    }
    f->table[at] = keep(row, hash, worker);
    if (f->table[at] == NULL) {
        bt_worker_unref(worker);
        return BT_E_NOMEM;
    }
    f->count++;
    *known_p = f->table[at];
    return 0;
}

static bool is_known_as(const known_t *k, const bt_replay_row_t *row, uint64_t hash)
{
    bool same = k->hash == hash && k->said_id == row->id;

    for (int i = 0; same && i < BT_REPLAY_FACT_COUNT; i++)
        same = bt_str_eq(k->facts[i], row->facts[i]);
    return same;
}

static int find_worker(bt_replay_workers_t *f, const bt_replay_row_t *row, known_t **known_p,
                       char *err, size_t err_size)
{
    uint64_t hash = row->id * UINT64_C(0x9e3779b97f4a7c15);
    unsigned at;

    for (int i = 0; i < BT_REPLAY_FACT_COUNT; i++)
        hash = (hash ^ bt_str_hash(row->facts[i])) * UINT64_C(0x9e3779b97f4a7c15);
    for (at = (unsigned) (hash >> 40) % TABLE_SIZE; f->table[at] != NULL;
         at = (at + 1) % TABLE_SIZE)
        if (is_known_as(f->table[at], row, hash)) {
            *known_p = f->table[at];
            return 0;
        }
    return add_worker(f, row, hash, at, known_p, err, err_size);
}

/* ---- loads ---- */

static int64_t whole(const bt_replay_row_t *row, enum bt_replay_number n)
{
    double value = row->numbers[n];

    return value > -9e15 && value < 9e15 ? (int64_t) value : 0;
}

/* What an engine has reported is known while it is fresh; the recorder leaves out the rest. */
static void set_sample(bt_worker_t *w, const bt_replay_row_t *row, uint64_t now_ms)
{
    const unsigned fresh =
        1u << BT_REPLAY_RUNNING | 1u << BT_REPLAY_WAITING | 1u << BT_REPLAY_KV_FREE;
    double age_ms = fmax(0, row->numbers[BT_REPLAY_AGE]),
           used = 1 - row->numbers[BT_REPLAY_KV_FREE];

    if ((row->has & fresh) != 0)
        age_ms = fmin(age_ms, FRESH_MS);
    w->load.at_ms = 0;
    if ((row->has & (fresh | 1u << BT_REPLAY_AGE)) != 0)
        w->load.at_ms = age_ms < (double) now_ms ? now_ms - (uint64_t) age_ms : 1;
    w->load.running = whole(row, BT_REPLAY_RUNNING);
    w->load.waiting = whole(row, BT_REPLAY_WAITING);
    w->load.kv_used_ppm = (uint32_t) (fmin(1, fmax(0, used)) * 1e6 + 0.5);
}

static void set_loads(known_t *k, const bt_replay_row_t *row, uint64_t now_ms)
{
    bt_worker_t *w = k->worker;
    const enum bt_phase phase =
        w->spec.role == BT_ROLE_PREFILL ? BT_PHASE_PREFILL : BT_PHASE_DECODE;

    bt_worker_total(w, BT_PHASE_PREFILL)->tokens = whole(row, BT_REPLAY_PREFILL_TOKENS);
    bt_worker_total(w, BT_PHASE_DECODE)->tokens = whole(row, BT_REPLAY_DECODE_TOKENS);
    bt_worker_total(w, phase)->requests = whole(row, BT_REPLAY_REQUESTS);
    w->transfer_bytes = whole(row, BT_REPLAY_TRANSFER_BYTES);
    w->ttft_ema_us = (int64_t) fmin(1e15, fmax(0, row->numbers[BT_REPLAY_TTFT] * 1000));
    w->tpot_ema_us = (int64_t) fmin(1e15, fmax(0, row->numbers[BT_REPLAY_TPOT] * 1000));
    set_sample(w, row, now_ms);
    k->has_score = (row->has & 1u << BT_REPLAY_SCORE) != 0;
    bt_prefix_set_cached((uint32_t) w->id, (unsigned) whole(row, BT_REPLAY_PREFIX_CACHED));
    k->score = row->numbers[BT_REPLAY_SCORE];
}

/* ---- candidates ---- */

static int push(struct list *list, bt_worker_t *w)
{
    if (list->set.count == list->cap) {
        unsigned cap = list->cap > 0 ? 2 * list->cap : 64;
        bt_worker_t **items = realloc(list->set.items, cap * sizeof *items);
        if (items == NULL)
            return BT_E_NOMEM;
        list->set.items = items;
        list->cap = cap;
    }
    list->set.items[list->set.count++] = w;
    return 0;
}

/* A prefill worker may stand in two lists. */
static int name_it(bt_replay_workers_t *f, known_t *k)
{
    if (k->read == f->reads)
        return 0;
    k->read = f->reads;
    if (f->named_count == f->named_cap) {
        unsigned cap = f->named_cap > 0 ? 2 * f->named_cap : 64;
        known_t **named = realloc(f->named, cap * sizeof *named);
        if (named == NULL)
            return BT_E_NOMEM;
        f->named = named;
        f->named_cap = cap;
    }
    f->named[f->named_count++] = k;
    return 0;
}

void bt_replay_workers_begin(bt_replay_workers_t *f)
{
    f->reads++;
    f->named_count = 0;
    f->scratch_len = 0;
    for (int i = 0; i < BT_LIST_COUNT; i++)
        f->lists[i].set.count = 0;
}

/* Its row stood in an earlier list of this record. */
static int add_again(bt_replay_workers_t *f, int list, uint64_t id, char *err, size_t err_size)
{
    for (unsigned i = 0; i < f->named_count; i++)
        if (f->named[i]->said_id == id)
            return push(&f->lists[list], f->named[i]->worker);
    return bt_replay_bad(err, err_size, "candidate %" PRIu64 " has no row", id);
}

int bt_replay_workers_add(bt_replay_workers_t *f, int list, const bt_replay_row_t *row,
                          uint64_t now_ms, char *err, size_t err_size)
{
    known_t *k = NULL;
    int rc;

    if (list > 0 && row->facts[BT_REPLAY_FACT_NAME].n == 0)
        return add_again(f, list, row->id, err, err_size);
    rc = find_worker(f, row, &k, err, err_size);
    if (rc < 0)
        return rc;
    set_loads(k, row, now_ms);
    rc = name_it(f, k);
    return rc == 0 ? push(&f->lists[list], k->worker) : rc;
}

unsigned bt_replay_workers_count(const bt_replay_workers_t *f, int list)
{
    return f->lists[list].set.count;
}

void bt_replay_workers_view(const bt_replay_workers_t *f, bt_policy_view_t *view)
{
    uint64_t key = bt_str_hash(view->pool);

    for (int i = 0; i < BT_LIST_COUNT; i++) {
        view->sets[i] = &f->lists[i].set;
        key = (key ^ (uint64_t) i) * UINT64_C(0x9e3779b97f4a7c15);
        for (unsigned k = 0; k < f->lists[i].set.count; k++) {
            key = (key ^ f->lists[i].set.items[k]->id) * UINT64_C(0x9e3779b97f4a7c15);
            key ^= key >> 29;
        }
    }
    view->key = key != 0 ? key : 1;
}

bool bt_replay_score(const bt_replay_workers_t *f, bt_str_t name, double *score_p)
{
    for (unsigned i = 0; i < f->named_count; i++)
        if (bt_str_eq(bt_str(f->named[i]->worker->name), name)) {
            *score_p = f->named[i]->score;
            return f->named[i]->has_score;
        }
    return false;
}

double bt_replay_load(const bt_replay_workers_t *f, bt_str_t name, enum bt_phase phase)
{
    for (unsigned i = 0; i < f->named_count; i++)
        if (bt_str_eq(bt_str(f->named[i]->worker->name), name))
            return (double) bt_worker_total(f->named[i]->worker, phase)->tokens;
    return 0;
}

/* ---- life ---- */

bt_replay_workers_t *bt_replay_workers_new(void)
{
    bt_replay_workers_t *f = calloc(1, sizeof *f);

    if (f == NULL)
        return NULL;
    f->table = calloc(TABLE_SIZE, sizeof(known_t *));
    f->scratch = malloc(BT_REPLAY_LINE_MAX);
    f->next_own = OWN_IDS;
    bt_breaker_config_defaults(&f->breaker);
    if (f->table != NULL && f->scratch != NULL)
        return f;
    bt_replay_workers_free(f);
    return NULL;
}

void bt_replay_workers_free(bt_replay_workers_t *f)
{
    if (f == NULL)
        return;
    for (unsigned i = 0; f->table != NULL && i < TABLE_SIZE; i++)
        if (f->table[i] != NULL) {
            bt_worker_unref(f->table[i]->worker);
            free(f->table[i]);
        }
    for (int i = 0; i < BT_LIST_COUNT; i++)
        free(f->lists[i].set.items);
    free(f->table);
    free(f->named);
    free(f->scratch);
    free(f);
}
