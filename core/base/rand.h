/* rand.h - random numbers and ids.
 *
 * Owner: each thread has its own generator (xoshiro256++, seeded from getrandom).
 * Life:  seeded on first use in a thread; bt_rand_seed makes a thread deterministic for tests.
 * Flow:  not for secrets, except bt_rand_secure.
 * Cost:  a few ns.
 */
#ifndef BT_BASE_RAND_H
#define BT_BASE_RAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void bt_rand_seed(uint64_t seed);
/* From begin to end the thread draws what this seed gives, and then goes on where it was. */
typedef struct bt_rand_state {
    uint64_t s[4];
    bool is_seeded;
} bt_rand_state_t;
void bt_rand_begin(bt_rand_state_t *before, uint64_t seed);
void bt_rand_end(const bt_rand_state_t *before);
uint64_t bt_rand_u64(void);
uint64_t bt_rand_below(uint64_t bound); /* [0, bound), unbiased; bound 0 gives 0 */
double bt_rand_unit(void);              /* [0, 1) */
void bt_rand_secure(void *out, size_t size);
#define BT_UUID_CHARS 36
void bt_rand_uuid(char out[BT_UUID_CHARS + 1]); /* version 4, lower case, NUL-terminated */

#endif
