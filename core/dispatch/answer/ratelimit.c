#include "dispatch/answer/ratelimit.h"

#include "dispatch/state/reservation_state.h"

#include <inttypes.h>

/* As OpenAI writes it: 350ms, 7s, 6m0s, 1h30m0s. */
static bt_str_t duration(bt_request_t *r, uint64_t ms)
{
    const uint64_t s = (ms + 999) / 1000;

    if (ms < 1000)
        return bt_arena_printf(&r->arena, "%" PRIu64 "ms", ms);
    if (s < 60)
        return bt_arena_printf(&r->arena, "%" PRIu64 "s", s);
    if (s < 3600)
        return bt_arena_printf(&r->arena, "%" PRIu64 "m%" PRIu64 "s", s / 60, s % 60);
    return bt_arena_printf(&r->arena, "%" PRIu64 "h%" PRIu64 "m%" PRIu64 "s", s / 3600, s / 60 % 60,
                           s % 60);
}

/* Those that were refused show how it is; those after the one that refused were not asked. */
static const struct bt_limit_hold *tightest(const struct bt_reservation *v, enum bt_limit_what what)
{
    const struct bt_limit_hold *least = NULL;

    for (unsigned i = 0; i < v->count; i++) {
        const struct bt_limit_hold *h = &v->holds[i];
        if (h->what == what && h->reset_ms != 0 && (least == NULL || h->rest < least->rest))
            least = h;
    }
    return least;
}

void bt_ratelimit_headers(bt_request_t *r, bt_header_t *out, unsigned *n, unsigned max)
{
    static const struct {
        bt_str_t limit, remaining, reset;
    } names[BT_LIMIT_WHATS] = {
#define NAMES(of)                                                                                  \
    {BT_STR("x-ratelimit-limit-" of), BT_STR("x-ratelimit-remaining-" of),                         \
     BT_STR("x-ratelimit-reset-" of)}
        [BT_LIMIT_REQUESTS] = NAMES("requests"),
        [BT_LIMIT_TOKENS] = NAMES("tokens"),
        [BT_LIMIT_INPUT_TOKENS] = NAMES("input-tokens"),
        [BT_LIMIT_OUTPUT_TOKENS] = NAMES("output-tokens"),
#undef NAMES
    };

    for (enum bt_limit_what what = BT_LIMIT_REQUESTS; what < BT_LIMIT_WHATS; what++) {
        const struct bt_limit_hold *h = tightest(r->reservation, what);
        if (h == NULL || *n + 3 > max)
            continue;
        out[(*n)++] =
            (bt_header_t){names[what].limit, bt_arena_printf(&r->arena, "%" PRId64, h->most)};
        out[(*n)++] =
            (bt_header_t){names[what].remaining, bt_arena_printf(&r->arena, "%" PRId64, h->rest)};
        out[(*n)++] = (bt_header_t){names[what].reset, duration(r, h->reset_ms)};
    }
}
