/* prefix_sent.h - blocks that workers were sent just now: engines tell of them once they have begun with them, and who asks before shall know.
 *
 * Owner: the process; all loops read and write it. Private to core/script.
 * Life:  static; what was noted counts for two seconds (as llm-d's speculative indexing), then it is what the engine tells, or nothing.
 * Flow:  choice -> note; the next prompt that begins so -> count.
 * Cost:  no locks; 2 MiB; a store a block, a load a block that was sent and one more. What is written over is forgotten, which costs a hit.
 */
#ifndef BT_SCRIPT_PREFIX_SENT_H
#define BT_SCRIPT_PREFIX_SENT_H

#include <stdint.h>

#define BT_PREFIX_SENT_MS 2000u

void bt_prefix_sent_note(const uint64_t *hashes, unsigned count, uint32_t worker, uint64_t now_ms);
/* Leading blocks that the worker has, if it has the first `known`, or was just sent. */
unsigned bt_prefix_sent_count(const uint64_t *hashes, unsigned known, unsigned count,
                              uint32_t worker, uint64_t now_ms);

#endif
