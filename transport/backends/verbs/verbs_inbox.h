/* verbs_inbox.h - the receiver's side: letters and immediates become notes.
 *
 * Owner: a path (entries) and a rail (its receive queue).
 * Life:  an entry is opened by the first sign of a batch and closed when all its shares have told.
 * Flow:  a batch is over when its letter is here and each of its shares has ticked; notes are handed on then, in any order of batches.
 * Cost:  O(1) a completion.
 */
#ifndef BT_TRANSPORT_VERBS_INBOX_H
#define BT_TRANSPORT_VERBS_INBOX_H

#include "transport/backends/verbs/verbs.h"

enum bt_verbs_letter_kind { BT_VERBS_LETTER_NOTE = 1, BT_VERBS_LETTER_TICK, BT_VERBS_LETTER_PROBE };

/* What is sent as a message; little-endian as the machine is (checked at the handshake by the magic). */
typedef struct bt_verbs_letter {
    uint8_t kind;
    uint8_t ticks;  /* 1 = it is also the share's telling message */
    uint8_t shares; /* of the batch, in all */
    uint8_t is_cancelled;
    uint32_t serial;
    uint8_t note_bytes;
    uint8_t note[BT_KV_NOTE_BYTES];
    uint8_t pad[7];
} bt_verbs_letter_t;

/* Takes what has come to a rail; number of completions. */
int bt_verbs_inbox_poll(bt_verbs_t *verbs, bt_verbs_rail_t *rail);

#endif
