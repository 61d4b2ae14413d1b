/* snapshot.h - the index in a file, so that a gateway that starts again does not begin with nothing.
 *
 * Owner: one thread, the index's writer or whoever comes after it.
 * Life:  a writer: begin -> put, a part each -> commit, or abort. A snapshot: read whole -> restore, a part each -> free.
 * Flow:  a part stands there under its endpoint, with the last batch that is in it: its number, and the hash of its payload. Who restores a part
 *        asks the engine for that batch (follow.h): the same bytes, time of the engine included, can only come from the process that said them
 *        first.
 * Cost:  24 bytes a block and part; 50 bytes and the endpoint a part.
 *
 * A file that is cut, changed, another program's or another version's is refused whole, with the reason. Nothing is synced to the disk: a file that
 * a power failure has left half-written is one of those.
 */
#ifndef BT_KVINDEX_SNAPSHOT_H
#define BT_KVINDEX_SNAPSHOT_H

#include "kvindex/index.h"

/* The last batch that a part's content has in it. */
typedef struct bt_kv_place {
    uint64_t number, hash;
} bt_kv_place_t;

typedef struct bt_kv_snapshot_writer bt_kv_snapshot_writer_t;
typedef struct bt_kv_snapshot bt_kv_snapshot_t;

/* Beside the file until commit. A negative errno, or BT_E_NOMEM. */
int bt_kv_snapshot_begin(bt_kv_snapshot_writer_t **writer_p, const char *path);
void bt_kv_snapshot_put(bt_kv_snapshot_writer_t *writer, const bt_kv_index_t *index, uint32_t part,
                        const char *endpoint, bt_kv_place_t place);
/* Takes the writer, and the place of the file that was there. Without a part that one stays. A negative errno: so it does. */
int bt_kv_snapshot_commit(bt_kv_snapshot_writer_t *writer, const bt_kv_index_t *index);
void bt_kv_snapshot_abort(bt_kv_snapshot_writer_t *writer);

/* BT_E_INVAL: why says what is wrong with it. A negative errno; -ENOENT: there is none. */
int bt_kv_snapshot_read(bt_kv_snapshot_t **snapshot_p, const char *path, const char **why_p);
/* Into a part that is empty. False: it has nothing for that endpoint, or the index takes no blocks of that size. */
bool bt_kv_snapshot_restore(bt_kv_snapshot_t *snapshot, bt_kv_index_t *index, uint32_t part,
                            const char *endpoint, bt_kv_place_t *place_p);
void bt_kv_snapshot_free(bt_kv_snapshot_t *snapshot);

#endif
