#include "cluster/checks/health.h"

#include <uv.h>

#include "base/err.h"

/* vLLM's /health answers 503 for one reason only: its engine process is gone. While it is being scaled every route answers 503
 * with a text about scaling, which is no death. SGLang's 503 means starting, stopping or stuck: it counts like any failure. */

static bool has_word(bt_str_t body, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= body.n; i++)
        if (strncasecmp(body.p + i, word, n) == 0)
            return true;
    return false;
}

bool bt_health_is_engine_dead(bt_str_t body)
{
    return has_word(body, "EngineDeadError") || has_word(body, "engine dead") ||
           has_word(body, "engine is dead") || has_word(body, "EngineCore encountered an issue");
}

bool bt_health_is_scaling(unsigned status, bt_str_t body)
{
    return status == 503 && has_word(body, "scaling");
}

static bool is_vllm_family(enum bt_engine engine)
{
    return engine == BT_ENGINE_VLLM || engine == BT_ENGINE_VLLM_ASCEND;
}

static bool is_our_shortage(int rc)
{
    return rc == UV_EMFILE || rc == UV_ENFILE || rc == UV_ENOBUFS || rc == UV_ENOMEM ||
           rc == UV_EADDRNOTAVAIL || rc == BT_E_DESCRIPTORS || rc == BT_E_NOMEM ||
           rc == BT_E_CANCELLED;
}

enum bt_verdict bt_health_judge(const bt_worker_t *w, int rc, unsigned status, bt_str_t body)
{
    if (rc == BT_E_CONNECT || rc == BT_E_TLS || rc == UV_ECONNREFUSED)
        return BT_VERDICT_REFUSED;
    if (rc < 0)
        return is_our_shortage(rc) ? BT_VERDICT_OURS : BT_VERDICT_FAIL;
    if (status >= 200 && status < 300)
        return BT_VERDICT_OK;
    if (bt_health_is_scaling(status, body))
        return BT_VERDICT_SCALING;
    if (status >= 500 && bt_health_is_engine_dead(body))
        return BT_VERDICT_DEAD;
    return status == 503 && is_vllm_family(w->engine) ? BT_VERDICT_DEAD : BT_VERDICT_FAIL;
}

static enum bt_verdict soften(const bt_worker_t *w, enum bt_verdict verdict, uint64_t began_ms,
                              uint64_t now_ms, uint64_t interval_ms)
{
    uint64_t bytes_ms = atomic_load_explicit(&w->last_bytes_ms, memory_order_relaxed);
    if (bytes_ms == 0)
        return verdict;
    if (verdict == BT_VERDICT_FAIL && now_ms - bytes_ms < interval_ms)
        return BT_VERDICT_OK;
    const bool is_final = verdict == BT_VERDICT_DEAD || verdict == BT_VERDICT_REFUSED;
    return is_final && bytes_ms > began_ms ? BT_VERDICT_FAIL : verdict;
}

/* The health that the row of verdicts leads to. */
static enum bt_health decide(const bt_health_track_t *t, enum bt_verdict verdict, bool is_first,
                             enum bt_health now, const bt_health_rules_t *rules)
{
    switch (verdict) {
    case BT_VERDICT_OK:
        /* A scaled worker never was down: its first good answer is enough. */
        return is_first || now == BT_HEALTH_DRAIN || t->oks >= rules->successes ? BT_HEALTH_UP
                                                                                : now;
    case BT_VERDICT_FAIL:
        return is_first || t->fails >= rules->failures ? BT_HEALTH_DOWN : now;
    case BT_VERDICT_DEAD:
    case BT_VERDICT_REFUSED:
        return BT_HEALTH_DOWN;
    case BT_VERDICT_SCALING:
        return BT_HEALTH_DRAIN;
    case BT_VERDICT_OURS:
        break;
    }
    return now;
}

void bt_health_count(bt_health_track_t *t, bt_worker_t *w, enum bt_verdict verdict, const char *why,
                     uint64_t began_ms, uint64_t now_ms, const bt_health_rules_t *rules)
{
    enum bt_health now = (enum bt_health) atomic_load(&w->health);
    if (verdict == BT_VERDICT_OURS)
        return;
    bool is_first = !t->answered && now == BT_HEALTH_UNKNOWN;
    if (t->answered && t->last_health != (int) now)
        t->oks = t->fails = 0; /* what was counted is older than the passive signal */
    t->answered = true;
    verdict = soften(w, verdict, began_ms, now_ms, rules->interval_ms);
    if (verdict == BT_VERDICT_OK || verdict == BT_VERDICT_SCALING) {
        t->fails = 0;
        t->oks = verdict == BT_VERDICT_OK ? t->oks + 1 : 0;
    } else {
        t->oks = 0;
        t->fails++;
    }
    enum bt_health next = decide(t, verdict, is_first, now, rules);
    t->last_health = (int) next;
    bt_worker_set_health(w, next, why);
}

void bt_health_note_connect_failure(bt_worker_t *w, bool refused)
{
    atomic_store_explicit(&w->resolve_soon, true, memory_order_relaxed);
    if (refused)
        bt_worker_set_health(w, BT_HEALTH_DOWN, "connect refused");
}

void bt_health_note_engine_dead(bt_worker_t *w)
{
    bt_worker_set_health(w, BT_HEALTH_DOWN, "its engine died");
}

void bt_health_note_scaling(bt_worker_t *w)
{
    /* A worker that is down stays down: only its own /health can say otherwise. */
    if (atomic_load(&w->health) != BT_HEALTH_DOWN)
        bt_worker_set_health(w, BT_HEALTH_DRAIN, "it is being scaled");
}
