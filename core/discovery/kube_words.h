/* kube_words.h - several --workers-kubernetes whose selectors choose the same pod name one worker: the word of the one that is listed first is told.
 *
 * Owner: the control loop.
 * Life:  new -> change, as the sink of every source's table -> free, when the tables have gone.
 * Flow:  a source's change -> what the place comes to by all their words -> the registry's sink hears of it where that is another thing.
 * Cost:  O(sources) a change; a copy of each description.
 */
#ifndef BT_DISCOVERY_KUBE_WORDS_H
#define BT_DISCOVERY_KUBE_WORDS_H

#include "discovery/kube_table.h"

typedef struct bt_kube_words bt_kube_words_t;
/* sources: they are numbered from 0, as they are listed. */
int bt_kube_words_new(bt_kube_words_t **words_p, unsigned sources, bt_kube_sink sink, void *user);
void bt_kube_words_free(bt_kube_words_t *w); /* NULL is fine */
/* As a bt_kube_sink. A description that another one's goes before is taken (rc 0) without being judged. first_pool: what a NULL pool means. */
int bt_kube_words_change(bt_kube_words_t *w, unsigned source, const char *first_pool,
                         bt_found_change_t *changes, unsigned count);

#endif
