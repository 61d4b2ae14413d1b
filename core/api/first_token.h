/* first_token.h - the text of a prefill's one token: may it go out before decode's answer, and where it ends in that answer.
 *
 * Owner: nobody; values.
 * Life:  static.
 * Flow:  intent -> NULL or why not, once a request; prefill's text -> is it all that decode will say of that token?; decode's texts ->
 *        what of each is that text again.
 * Cost:  the body's index is looked through once for each name of a short list; linear in a token's text.
 */
#ifndef BT_API_FIRST_TOKEN_H
#define BT_API_FIRST_TOKEN_H

#include "api/intent.h"

/* Of a token's text; what is longer is none. */
#define BT_FIRST_TOKEN_BYTES 256

/* NULL: the first token's text, alone, is what a stream of this request begins with. Else a static sentence. */
const char *bt_first_token_refusal(const bt_intent_t *intent);
/* No token that follows can change it: it has no half of a character, and no blank at its end. text: unescaped. */
bool bt_first_token_is_whole(bt_str_t text);
/* value: a JSON string. How many of its bytes behind the quote spell the beginning of *left_p, which is shortened by what they
 * say; BT_E_INVAL: it says something else. */
long bt_first_token_cut(bt_str_t value, bt_str_t *left_p);

#endif
