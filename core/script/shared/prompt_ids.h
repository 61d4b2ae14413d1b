/* prompt_ids.h - the token ids of a prompt, read once for all who ask of it. For core/script and core/dispatch.
 *
 * Owner: a thread; whoever asks borrows.
 * Life:  of -> read, until the thread's next `of` with another key; thread_fini.
 * Flow:  raw JSON -> ids, read no further than they are wanted, and a step ahead.
 * Cost:  about 1 ns an id where the processor has wide registers; 4 bytes an id, kept up to KEPT of them.
 */
#ifndef BT_SCRIPT_PROMPT_IDS_H
#define BT_SCRIPT_PROMPT_IDS_H

#include "base/str.h"

#define BT_PROMPT_IDS_MAX                                                                          \
    (1u << 20) /* of a prompt that are looked at: as many as prefix_hash.h asks for */
#define BT_PROMPT_IDS_KEPT (1u << 17) /* room that stays for the next prompt */

/* Who asks: what has the same key and stands in the same place is the same prompt. */
typedef struct bt_prompt_key {
    uint64_t owner, number;
} bt_prompt_key_t;

typedef struct bt_prompt_ids bt_prompt_ids_t;

/* prompt: raw JSON. NULL: it is no list that begins with an id. */
bt_prompt_ids_t *bt_prompt_ids_of(bt_str_t prompt, bt_prompt_key_t key);
/* Makes at least `wanted` ready, or all that there are, and returns how many are. */
unsigned bt_prompt_ids_read(bt_prompt_ids_t *ids, unsigned wanted, const uint32_t **ids_p);
void bt_prompt_ids_thread_fini(void);

/* A key's number that the thread has not had: a request's, so that all its calls share what was read. Never 0. */
uint64_t bt_prompt_number(void);
bool bt_prompt_is_ids(bt_str_t prompt);

#endif
