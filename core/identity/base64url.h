/* base64url.h - base64url as RFC 7515 has it: no padding, no blanks, no second spelling of the same bytes.
 *
 * Owner: nobody.
 * Life:  a call.
 * Flow:  text -> bytes, or a refusal.
 * Cost:  a table look-up a character.
 */
#ifndef BT_IDENTITY_BASE64URL_H
#define BT_IDENTITY_BASE64URL_H

#include "base/str.h"

/* Bytes written, or -1: not strict base64url, or more than size bytes. */
long bt_base64url_decode(bt_str_t text, unsigned char *out, size_t size);

#endif
