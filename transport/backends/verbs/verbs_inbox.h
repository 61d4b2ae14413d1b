/* verbs_inbox.h - the receiver's side: notices and immediates become notes.
 *
 * Owner: a path (entries) and a rail (its receive queue).
 * Life:  an entry is opened by the first sign of a batch and closed when all its shares have told.
 * Flow:  a batch is over when its notice is here and each of its shares has ticked; notes are handed on then, in any order of batches.
 * Cost:  O(1) a completion.
 */
#ifndef BT_TRANSPORT_VERBS_INBOX_H
#define BT_TRANSPORT_VERBS_INBOX_H

#include "transport/backends/verbs/verbs.h"

/* Takes what has come to a rail; number of completions. */
int bt_verbs_inbox_poll(bt_verbs_t *verbs, bt_verbs_rail_t *rail);

#endif
