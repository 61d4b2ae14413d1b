/* estimate.c - means that move by an eighth with each lesson. Lessons of two loops at once may cost one of them, which the next ones make good. */
#include "limits/estimate.h"

#define WEIGHT 8
#define TEXT_MAX 32 /* bytes of a token; what has more is no text: a picture in base64 */

static uint64_t load(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

void bt_estimate_init(bt_estimate_t *e)
{
    atomic_init(&e->milli, BT_ESTIMATE_START_MILLI);
    atomic_init(&e->count, 0);
    atomic_flag_clear(&e->is_adding);
}

static uint64_t hash_of(bt_str_t model)
{
    const uint64_t hash = bt_str_hash(model);

    return hash != 0 ? hash : 1;
}

static bt_estimate_model_t *find(bt_estimate_t *e, uint64_t hash)
{
    const unsigned count = atomic_load_explicit(&e->count, memory_order_acquire);

    for (unsigned i = 0; i < count; i++)
        if (load(&e->models[i].hash) == hash)
            return &e->models[i];
    return NULL;
}

/* NULL: there is no room, or another loop is adding one just now. */
static bt_estimate_model_t *add(bt_estimate_t *e, uint64_t hash, bt_str_t model, uint64_t milli)
{
    bt_estimate_model_t *m = NULL;

    if (atomic_flag_test_and_set_explicit(&e->is_adding, memory_order_acquire))
        return NULL;
    const unsigned count = atomic_load_explicit(&e->count, memory_order_relaxed);
    if ((m = find(e, hash)) == NULL && count < BT_ESTIMATE_MODELS) {
        m = &e->models[count];
        const size_t n = model.n < BT_ESTIMATE_NAME_MAX ? model.n : BT_ESTIMATE_NAME_MAX;
        if (n != 0)
            memcpy(m->name, model.p, n);
        m->name[n] = '\0';
        atomic_init(&m->milli, milli);
        atomic_init(&m->hash, hash);
        atomic_store_explicit(&e->count, count + 1, memory_order_release);
    }
    atomic_flag_clear_explicit(&e->is_adding, memory_order_release);
    return m;
}

uint64_t bt_estimate_model_milli(const bt_estimate_t *e, bt_str_t model)
{
    const uint64_t hash = hash_of(model);
    const unsigned count = atomic_load_explicit(&e->count, memory_order_acquire);

    for (unsigned i = 0; i < count; i++)
        if (load(&e->models[i].hash) == hash)
            return load(&e->models[i].milli);
    return load(&e->milli);
}

static void move(_Atomic uint64_t *milli, uint64_t now)
{
    const uint64_t old = load(milli);

    atomic_store_explicit(milli, old - old / WEIGHT + now / WEIGHT, memory_order_relaxed);
}

void bt_estimate_learn(bt_estimate_t *e, bt_str_t model, uint64_t bytes, uint64_t tokens)
{
    uint64_t expected, now;

    if (tokens == 0 || bytes == 0 || bytes / TEXT_MAX > tokens)
        return;
    now = bytes * 1000 / tokens;
    if (now == 0)
        now = 1;
    const uint64_t hash = hash_of(model), milli = bt_estimate_milli(e, model);
    bt_estimate_model_t *m = find(e, hash);
    expected = bytes * 1000 / (milli != 0 ? milli : 1);
    if (m == NULL)
        m = add(e, hash, model, now);
    else
        move(&m->milli, now);
    move(&e->milli, now);
    if (m == NULL)
        return;
    atomic_fetch_add_explicit(&m->said, tokens, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->off, expected > tokens ? expected - tokens : tokens - expected,
                              memory_order_relaxed);
}
