/* names.h - what one data-parallel rank of one worker has said: its own names of blocks, and ours for them.
 *
 * Owner: the index's writer; no reader looks here.
 * Life:  a part is opened for a worker, cleared whenever its engine is another process or something was missed, and closed.
 * Flow:  the engine's hash -> our hash of all tokens up to that block. Parents are found so, and what is removed.
 * Cost:  16 bytes an entry, of which at most three quarters are used.
 */
#ifndef BT_KVINDEX_NAMES_H
#define BT_KVINDEX_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bt_kv_name {
    uint64_t engine, own; /* engine 0 = free */
} bt_kv_name_t;

typedef struct bt_kv_names {
    bt_kv_name_t *slots;
    uint64_t mask, count;
} bt_kv_names_t;

void bt_kv_names_clear(bt_kv_names_t *n);
size_t bt_kv_names_bytes(const bt_kv_names_t *n);
const uint64_t *bt_kv_names_find(const bt_kv_names_t *n, uint64_t engine);
void bt_kv_names_prefetch(const bt_kv_names_t *n, uint64_t engine);
/* BT_E_NOMEM: nothing has changed. */
int bt_kv_names_put(bt_kv_names_t *n, uint64_t engine, uint64_t own);
void bt_kv_names_remove(bt_kv_names_t *n, uint64_t engine);
/* Those for which keep says no go. */
void bt_kv_names_sweep(bt_kv_names_t *n, bool (*keep)(void *user, uint64_t own), void *user);

#endif
