/* sha256.h - SHA-256 of OpenSSL, without an allocation.
 *
 * Owner: nobody.
 * Life:  a call.
 * Flow:  two pieces are hashed as if they were one: a salt and what it salts.
 * Cost:  about 100 ns for a key where the processor has SHA instructions.
 */
#ifndef BT_IDENTITY_SHA256_H
#define BT_IDENTITY_SHA256_H

#include "base/str.h"

#define BT_SHA256_BYTES 32

void bt_sha256_of(bt_str_t a, bt_str_t b, unsigned char out[BT_SHA256_BYTES]);
/* The time taken depends on n only. */
bool bt_sha256_same(const void *a, const void *b, size_t n);

#endif
