/* verbs_job.h - batches on their way: cut into shares, posted as messages, over.
 *
 * Owner: a path.
 * Life:  put -> started -> over (bt_kv_batch_over), or cancelled.
 * Flow:  jobs start in order while a connection has nothing left to post. Big ones are cut into one share per live connection.
 * Cost:  O(messages).
 */
#ifndef BT_TRANSPORT_VERBS_JOB_H
#define BT_TRANSPORT_VERBS_JOB_H

#include "transport/backends/verbs/verbs.h"

/* A remote write: pieces of ours that lie side by side at the receiver. */
typedef struct bt_verbs_write {
    bt_kv_region_t dst;
    uint64_t dst_offset, bytes;
    unsigned count; /* of its pieces */
} bt_verbs_write_t;

/* The next write from the cursor on, at most bytes_max bytes and as many pieces as the rail gathers. */
void bt_verbs_write_next(const bt_kv_batch_t *batch, bt_verbs_cursor_t *at, uint64_t bytes_max,
                         const bt_verbs_rail_t *rail, struct ibv_sge *pieces,
                         bt_verbs_write_t *write_p);
/* Moves the cursor over so many bytes. */
void bt_verbs_cursor_skip(const bt_kv_batch_t *batch, bt_verbs_cursor_t *at, uint64_t bytes);

int bt_verbs_job_put(bt_kv_path_t *path, bt_kv_batch_t *batch);
/* Posts what there is room for. Calls nothing back. */
int bt_verbs_job_pump(bt_verbs_path_t *path);
/* The connection is gone, the peer got the first `closings` of its telling messages: the other shares are done again elsewhere. */
void bt_verbs_job_settle(bt_verbs_conn_t *conn, uint64_t closings);
/* True: nothing of this tag is on its way. */
bool bt_verbs_job_drain(bt_verbs_path_t *path, uint64_t tag);
/* The peer has drained this tag: it takes nothing more of it. */
bool bt_verbs_job_refuses(const bt_verbs_path_t *path, uint64_t tag);
void bt_verbs_job_cancel_all(bt_verbs_path_t *path);

#endif
