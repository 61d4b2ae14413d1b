/* sha1.h - SHA-1 (RFC 3174): EVALSHA names scripts by it, and clients' keys are told apart by it without being shown. Not where
 * anybody gains from a collision.
 *
 * Owner: nobody.
 * Life:  a call.
 * Flow:  bytes -> 40 hex digits and a NUL.
 * Cost:  once per script or key at start-up.
 */
#ifndef BT_BASE_SHA1_H
#define BT_BASE_SHA1_H

#include "base/str.h"

#define BT_SHA1_HEX 40
void bt_sha1_hex(bt_str_t bytes, char out[BT_SHA1_HEX + 1]);

#endif
