/* hmac.h - HMAC (RFC 2104) with SHA-256 (FIPS 180-4), for libbaton_kv, which links no OpenSSL: engines bring one of their own.
 *
 * Owner: nobody.
 * Life:  a call.
 * Flow:  a key and pieces, hashed as if they were one -> 32 bytes.
 * Cost:  no allocation; four blocks and one for each 64 bytes, in portable C.
 */
#ifndef BT_BASE_HMAC_H
#define BT_BASE_HMAC_H

#include "base/str.h"

#include <stdint.h>

#define BT_HMAC_BYTES 32

void bt_hmac_sha256(bt_str_t key, const bt_str_t *pieces, unsigned count,
                    uint8_t out[BT_HMAC_BYTES]);

#endif
