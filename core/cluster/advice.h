/* advice.h - which role of a pool is short of workers, and how many of each would balance it: the formulas.
 *
 * Owner: nobody; pure functions of what advisor.c has measured.
 * Life:  static.
 * Flow:  advisor.c -> bt_advice_make -> admin, metrics, policies' tick.
 * Cost:  O(1).
 */
#ifndef BT_CLUSTER_ADVICE_H
#define BT_CLUSTER_ADVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* By what a worker's use was judged, most of the time. */
enum bt_advice_by {
    BT_ADVICE_BY_TIME,    /* some request was on it: all of prefill; a decode that says nothing */
    BT_ADVICE_BY_KV,      /* share of its KV cache in use, as its engine reports */
    BT_ADVICE_BY_WAITING, /* requests wait for room at its engine: it is full */
    BT_ADVICE_BY_LIMIT,   /* its legs, of --engine-request-limit */
    BT_ADVICE_BY_TPOT,    /* its TPOT, of --advice-tpot-ms */
    BT_ADVICE_BY_COUNT
};
const char *bt_advice_by_name(enum bt_advice_by by);

/* One role over the window, of all gateways' requests. */
typedef struct bt_advice_role {
    unsigned workers; /* usable now */
    double worker_s;  /* seconds of usable workers */
    double used_s;    /* of them in use; a half-used worker counts by half */
    double requests;  /* legs that ended well */
    double tokens;    /* of prompts (prefill), of answers (decode) */
    double cached;    /* of prompts, in the workers' own prefix caches */
    double inflight;  /* requests, now */
    double inflight_tokens;
    double waiting;    /* in the engines' own queues, now, as they report */
    double latency_ms; /* prefill: first byte of its reply; decode: TPOT; 0 = not known */
    enum bt_advice_by by;
} bt_advice_role_t;

typedef struct bt_advice_input {
    double window_s, seen_s; /* asked for; looked at so far, fading */
    bt_advice_role_t prefill, decode;
} bt_advice_input_t;

/* BOTH: they are used alike, and well; NONE: there is room in both. */
enum bt_bottleneck {
    BT_BOTTLENECK_UNKNOWN,
    BT_BOTTLENECK_NONE,
    BT_BOTTLENECK_PREFILL,
    BT_BOTTLENECK_DECODE,
    BT_BOTTLENECK_BOTH,
    BT_BOTTLENECK_COUNT
};
const char *bt_bottleneck_name(enum bt_bottleneck b);

enum bt_confidence {
    BT_CONFIDENCE_NONE,
    BT_CONFIDENCE_LOW,
    BT_CONFIDENCE_MEDIUM,
    BT_CONFIDENCE_HIGH
};
const char *bt_confidence_name(enum bt_confidence c);

#define BT_ADVICE_REQUESTS_MIN 10 /* of each role in the window */
#define BT_ADVICE_GAIN_MIN 1.1    /* a split that gains less is not advised */
#define BT_ADVICE_HEADROOM 0.8    /* use that `needed` leaves its workers with */

typedef struct bt_advice {
    enum bt_bottleneck bottleneck;
    enum bt_confidence confidence;    /* NONE: nothing is advised, why says for what reason */
    double prefill_used, decode_used; /* mean use of a worker; 1 = it is at its limit */
    double prefill_rate, decode_rate; /* tokens a second of a worker in use; 0 = not known */
    double service_ms;                /* of a prefill worker's time, that one request takes */
    double ttft_ms;                   /* of a request that came now; 0 = not known */
    unsigned prefill, decode;         /* the advised split; the present one where none is better */
    double gain;                      /* load that it takes, by what the present one takes */
    double model_ttft_ms; /* with it, in the long run; 0 = not known, or no end of the queue */
    unsigned prefill_needed, decode_needed; /* for the present load */
    char why[200];
} bt_advice_t;
void bt_advice_make(const bt_advice_input_t *in, bt_advice_t *out);
/* The mean wait and service of a queue with one server and equal requests, M/D/1; < 0: the queue has no end. */
double bt_advice_md1_ms(double requests_per_s, double service_ms);

/* What loops may know of it: written on the control loop. */
typedef struct bt_pool_advice {
    _Atomic int bottleneck; /* UNKNOWN: the rest says nothing */
    _Atomic unsigned prefill, decode, advised_prefill, advised_decode;
    _Atomic uint32_t prefill_used_milli, decode_used_milli, ttft_ms;
} bt_pool_advice_t;

#endif
