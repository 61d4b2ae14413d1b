/* cors.h - which pages of a browser may read answers (the fetch standard's CORS).
 *
 * Owner: the configuration; servers borrow it.
 * Life:  constant.
 * Flow:  head read -> origin -> headers of whatever answer comes, refusals too; a preflight is answered here, for it carries no key.
 * Cost:  none where no origin is listed.
 */
#ifndef BT_HTTP_CORS_H
#define BT_HTTP_CORS_H

#include "http/message.h"

#define BT_CORS_HEADERS_MAX 4 /* of an answer */
#define BT_CORS_PREFLIGHT_MAX 8
#define BT_CORS_ASKED_MAX 1024 /* Access-Control-Request-Headers that are echoed */

typedef struct bt_cors {
    const char *const *origins; /* NULL-terminated; "*" = all; NULL = off. Borrowed */
    bool has_credentials;       /* cookies, client certificates; never with "*" */
} bt_cors_t;

/* What Access-Control-Allow-Origin says to this request; static. NULL: nothing, it is not a page's, or of an origin that is not listed. */
const char *bt_cors_origin(const bt_cors_t *cors, const bt_head_t *head);
/* Headers of every answer, filled in; origin as above. Returns their number. */
unsigned bt_cors_answer(const bt_cors_t *cors, const char *origin,
                        bt_header_t out[BT_CORS_HEADERS_MAX]);
/* Does a browser ask whether it may ask? */
bool bt_cors_is_preflight(const bt_cors_t *cors, const bt_head_t *head);
/* Its own headers; those of every answer come beside them. *count_p is 0 where origin is NULL. Returns the status. */
unsigned bt_cors_preflight(const char *origin, const bt_head_t *head,
                           bt_header_t out[BT_CORS_PREFLIGHT_MAX], unsigned *count_p);

#endif
