/* kv_peer_script.h - a hostile peer as a script of bytes.
 *
 * Owner: the fuzz program; new agents each time, in CALLER mode over the mem back end.
 * Life:  of a call.
 * Flow:  the peer says a valid hello and then breaks every rule it can, as a receiver (it dialled the agent) and as a sender (the agent dialled
 *        it), while the agent's own engine opens, sends, aborts and releases rooms. At the end every room of the agent comes back, and an
 *        honest pair's room on the same agent succeeds with the right bytes, and no others, in the honest receiver's memory. Else it aborts.
 * Cost:  some milliseconds.
 */
#ifndef SPEC_FUZZ_KV_PEER_SCRIPT_H
#define SPEC_FUZZ_KV_PEER_SCRIPT_H

#include <stddef.h>
#include <stdint.h>

void kv_peer_script(const uint8_t *p, size_t n);

#endif
