/* words.h - the simulator's KV and the text that it makes of it.
 *
 * Owner: nobody; pure values.
 * Life:  static.
 * Flow:  prompt bytes -> running state (one per block boundary) -> kv -> words. README.md has the formula.
 * Cost:  one multiplication per 8 prompt bytes and per word.
 */
#ifndef SIM_WORDS_H
#define SIM_WORDS_H

#include "base/str.h"
#include "base/text.h"

#define SIM_STATE_FIRST UINT64_C(0x9E3779B97F4A7C15)
#define SIM_WORD_CHARS 5
#define SIM_TOKEN_BYTES 4 /* prompt bytes a token */

uint64_t sim_mix(uint64_t x);
/* State after n more bytes; a last group of less than 8 bytes is padded with zeros, so only the end may be ragged. */
uint64_t sim_state_add(uint64_t state, const char *p, size_t n);
uint64_t sim_kv_of_state(uint64_t state, size_t bytes);
uint64_t sim_kv(bt_str_t prompt);
unsigned sim_tokens_of_bytes(size_t bytes);
/* Word i of the answer, five mail, no NUL. */
void sim_word(uint64_t kv, uint64_t seed, unsigned i, char out[SIM_WORD_CHARS]);
/* Words 0 .. count-1 joined by blanks. */
void sim_words(bt_text_t *out, uint64_t kv, uint64_t seed, unsigned count);
/* The word that an id of 18 bits is. */
void sim_word_of_id(unsigned id, char out[SIM_WORD_CHARS]);
/* The id that stands for word i where ids are asked for. */
unsigned sim_word_id(uint64_t kv, uint64_t seed, unsigned i);

#endif
