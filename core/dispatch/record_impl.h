/* record_impl.h - what the files behind record.h share. Private to core/dispatch.
 *
 * Owner: rows are in the request's arena; a ring belongs to one loop; the recorder locks for itself.
 * Life:  rows from the first plan to the end of the request.
 * Flow:  record.c keeps what passes by -> record_json.c makes the line -> record_ring.c keeps it, recorder.c writes it.
 * Cost:  the line is made in a buffer of the ring's that is used again: no allocation once it has its size.
 */
#ifndef BT_DISPATCH_RECORD_IMPL_H
#define BT_DISPATCH_RECORD_IMPL_H

#include "dispatch/record.h"

/* One candidate as the policy saw it. NAN = not known then. */
struct bt_record_row {
    uint64_t id;
    enum bt_role role;
    const char *name, *url, *zone, *labels,
        *dialect; /* copies in the request's arena; NULL = none */
    int64_t prefill_tokens, decode_tokens, requests;
    double running, waiting, kv_free, ttft_ema_ms, tpot_ema_ms, age_ms;
    double score;
};

struct bt_record_rows {
    unsigned total; /* candidates there were */
    unsigned count; /* of which these many are here */
    struct bt_record_row rows[];
};

/* The line without its newline. is_brief: totals instead of candidates' rows. */
void bt_record_write(const struct bt_request *r, uint64_t now_us, bool is_brief, bt_text_t *out);

#define BT_RECORD_LINE_MAX ((size_t) 64 << 10) /* longer ones are kept without their candidates */
#define BT_RECORD_RING_BYTES                                                                       \
    ((size_t) 8                                                                                    \
     << 20) /* of lines in one ring; the oldest go before there are BT_RECORD_RING then */

/* Keeps copies. False: it is too long, or memory is short. */
bool bt_record_ring_put(bt_record_ring_t *ring, bt_str_t id, bt_str_t line);
/* An empty text to make a line in; the same each time. */
bt_text_t *bt_record_ring_scratch(bt_record_ring_t *ring);

/* Copies the line and adds its newline. False: dropped, and counted. */
bool bt_recorder_put(bt_recorder_t *recorder, bt_str_t line);

#endif
