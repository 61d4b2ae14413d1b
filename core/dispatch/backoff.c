/* A pair's places follow that of its hash, so pairs of one hash wait side by side. */
#include "dispatch/backoff.h"

#include <stddef.h>

#define AGAIN_MS 500
#define AGAIN_MAX_MS 60000

static uint64_t place_of(uint64_t prefill, uint64_t decode)
{
    return ((prefill ^ decode << 40) * UINT64_C(0x9e3779b97f4a7c15)) >> 32;
}

/* Its place, or NULL; soonest_p: the one that another pair may rather have. */
static const struct bt_backoff_place *find(const bt_backoff_t *b, uint64_t prefill, uint64_t decode,
                                           const struct bt_backoff_place **soonest_p)
{
    const uint64_t first = place_of(prefill, decode);

    *soonest_p = &b->places[first % BT_BACKOFF_PLACES];
    for (uint64_t i = 0; i < BT_BACKOFF_PROBES; i++) {
        const struct bt_backoff_place *p = &b->places[(first + i) % BT_BACKOFF_PLACES];
        if (p->prefill == prefill && p->decode == decode)
            return p;
        if (p->again_ms < (*soonest_p)->again_ms)
            *soonest_p = p;
    }
    return NULL;
}

bool bt_backoff_must_wait(const bt_backoff_t *b, uint64_t prefill, uint64_t decode, uint64_t now_ms)
{
    const struct bt_backoff_place *soonest, *p = find(b, prefill, decode, &soonest);

    return p != NULL && now_ms < p->again_ms;
}

unsigned bt_backoff_failed(bt_backoff_t *b, uint64_t prefill, uint64_t decode, uint64_t now_ms,
                           uint64_t *wait_ms_p)
{
    const struct bt_backoff_place *soonest, *found = find(b, prefill, decode, &soonest);
    struct bt_backoff_place *p = &b->places[(found != NULL ? found : soonest) - b->places];

    if (found == NULL)
        *p = (struct bt_backoff_place){.prefill = prefill, .decode = decode};
    *wait_ms_p = p->count < 7 ? (uint64_t) AGAIN_MS << p->count : AGAIN_MAX_MS;
    p->again_ms = now_ms + *wait_ms_p;
    return ++p->count;
}
