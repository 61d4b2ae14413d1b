/* redact.h - blanks a top-level "kv_transfer_params" object in a JSON answer that is passing by.
 *
 * Owner: the relay of one decode leg.
 * Life:  init -> feed every body byte in order.
 * Flow:  all between the braces of that key's object becomes spaces: an empty object of the same length, so Content-Length
 *        and every other byte stay as the engine wrote them. Works across any split of the body.
 * Cost:  one pass; no allocation.
 */
#ifndef BT_API_REDACT_H
#define BT_API_REDACT_H

#include "base/str.h"

typedef struct bt_redact {
    unsigned depth;   /* open brackets */
    unsigned key_len; /* bytes of the current key seen */
    unsigned
        hit; /* depth of the key that names the parameters, until its value has ended; 0 = none */
    unsigned char in_string, escaped, is_key, blanking, done;
    unsigned char expect_key[4]; /* by depth */
    char key[20];
} bt_redact_t;

/* False: an answer that is here as a whole has nothing to blank. */
bool bt_redact_may_have(bt_str_t answer);
void bt_redact_init(bt_redact_t *r);
/* Changes p[0..n) in place. True once something was blanked. */
bool bt_redact_feed(bt_redact_t *r, char *p, size_t n);

#endif
