/* error.h - an error as the API family of its path tells it, as a body or as an event of a stream that has begun.
 *
 * Owner: nobody; values.
 * Life:  static tables.
 * Flow:  path -> family -> text. Every error that the gateway makes itself goes this way, whoever finds it; what an engine has said
 *        itself goes on as it came.
 * Cost:  not for the request path.
 */
#ifndef BT_API_ERROR_H
#define BT_API_ERROR_H

#include "base/text.h"

enum bt_error_family {
    BT_ERRORS_OPENAI,
    BT_ERRORS_RESPONSES, /* OpenAI's bodies, with events of its own */
    BT_ERRORS_ANTHROPIC,
    BT_ERRORS_SGLANG, /* its native routes */
    BT_ERRORS_VLLM    /* likewise */
};

/* Of a canonical path (path.h); OpenAI's for whatever belongs to nobody. */
enum bt_error_family bt_error_family_of(bt_str_t path);
void bt_error_put(bt_text_t *t, enum bt_error_family family, unsigned status, const char *message);
/* limit: the name of the one that refuses it, a member of its own; NULL = none does. */
void bt_error_put_limit(bt_text_t *t, enum bt_error_family family, unsigned status,
                        const char *message, const char *limit);
/* The stream's last event, and what the family ends a stream with. events: how many have gone before it. */
void bt_error_put_event(bt_text_t *t, enum bt_error_family family, unsigned status,
                        const char *message, uint64_t events);

#endif
