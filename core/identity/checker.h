/* checker.h - whose request is it? One loop's answer.
 *
 * Owner: one loop.
 * Life:  new -> check a request -> free.
 * Flow:  what was shown -> a token, if tokens are believed and it looks like one; else a key. Tokens that were verified are remembered by
 *        their hash until they expire, at most so many, the one that was not seen the longest goes first; another key set forgets them all.
 * Cost:  a hash and a look-up; for a token that is new, a signature (30 to 150 us, on the loop: the request that brings it would wait for a
 *        thread's answer about as long). No allocation but for a new token.
 */
#ifndef BT_IDENTITY_CHECKER_H
#define BT_IDENTITY_CHECKER_H

#include "identity/identities.h"

typedef struct bt_checker bt_checker_t;

#define BT_CHECKER_TOKENS_MAX 4096

int bt_checker_new(bt_checker_t **checker_p, bt_identities_t *all);
void bt_checker_free(bt_checker_t *checker); /* NULL is fine */
/* given: the key or token, without "Bearer". identity borrows from the checker until its next call. */
enum bt_auth_refusal bt_checker_check(bt_checker_t *checker, bt_str_t given, uint64_t wall_ms,
                                      bt_identity_t *identity);
/* Signatures looked at so far. */
uint64_t bt_checker_verified(const bt_checker_t *checker);

#endif
