/* sha1.h - SHA-1 (RFC 3174), because EVALSHA names scripts by it. For nothing else. Private to core/state.
 *
 * Owner: nobody.
 * Life:  a call.
 * Flow:  bytes -> 40 hex digits and a NUL.
 * Cost:  once per script at start-up.
 */
#ifndef BT_STATE_SHA1_H
#define BT_STATE_SHA1_H

#include "base/str.h"

#define BT_SHA1_HEX 40
void bt_sha1_hex(bt_str_t bytes, char out[BT_SHA1_HEX + 1]);

#endif
