/* The sender: batches into the ring.
 *
 *     post -> sending -> (first run: a batch slot; last run) -> flying -> (batch_done of the receiver) -> batch_over
 *
 * Batches are FIFO on a path, so "so many are done" says which. A batch longer than the ring goes in as space frees. One that is given up half-way
 * (drain) gets its slot marked and its runs cut short by a NOTHING run that carries LAST, so that the receiver never waits for the rest.
 *
 * The window: runs of private memory that the peer cannot read are copied into our area, rows packed, and named by their place there. It is a ring of
 * its own; a run's record says where it ends (window_end), so the receiver's run_tail frees both.
 */
#include <string.h>

#include "transport/backends/shm/shm.h"

static bt_kv_batch_t *first_of(const bt_list_t *list)
{
    return bt_container_of(list->next, bt_kv_batch_t, link);
}

static bool has_begun(const bt_kv_batch_t *batch)
{
    return batch->posted != 0; /* its slot + 1 */
}

static bt_shm_batch_t *slot_of(bt_shm_path_t *path, const bt_kv_batch_t *batch)
{
    return &path->mine->batches[(batch->posted - 1) & (BT_SHM_BATCHES - 1)];
}

static enum bt_shm_how how_of(const bt_shm_path_t *path, const bt_kv_run_t *run)
{
    const bt_shm_region_t *region = run->src->keys[bt_kv_backend_index(BT_KV_SHM)];
    if (region != NULL && region->is_pool)
        return BT_SHM_MAPPED;
    return path->tx.may_pull ? BT_SHM_PULLED : BT_SHM_WINDOW;
}

/* ---- ring ---- */
static bool check_tail(bt_shm_path_t *path)
{
    bt_shm_tx_t *tx = &path->tx;
    uint64_t tail = __atomic_load_n(&path->theirs->run_tail, __ATOMIC_SEQ_CST);

    if (tail - tx->run_tail > tx->run_head - tx->run_tail) {
        bt_shm_path_break(path, BT_E_INVAL, "the peer has taken runs that it was not sent");
        return false;
    }
    if (tail != tx->run_tail)
        tx->window_tail = tx->window_end[(tail - 1) & (BT_SHM_RUNS - 1)];
    tx->run_tail = tail;
    return true;
}

static bool has_space(bt_shm_path_t *path)
{
    bt_shm_tx_t *tx = &path->tx;
    if (tx->run_head - tx->run_tail < BT_SHM_RUNS)
        return true;
    return check_tail(path) && tx->run_head - tx->run_tail < BT_SHM_RUNS;
}

static void publish(bt_shm_path_t *path)
{
    __atomic_store_n(&path->mine->run_head, path->tx.run_head, __ATOMIC_SEQ_CST);
    bt_shm_kick(path);
}

static void put(bt_shm_path_t *path, bt_kv_batch_t *batch, bt_shm_run_t run)
{
    bt_shm_tx_t *tx = &path->tx;

    if (!has_begun(batch)) {
        batch->posted = ++tx->batch_head;
        bt_shm_batch_t *slot = slot_of(path, batch);
        slot->tag = batch->tag;
        slot->note_bytes = batch->note_bytes;
        __atomic_store_n(&slot->is_cancelled, 0, __ATOMIC_RELAXED);
        memcpy(slot->note, batch->note, batch->note_bytes);
        run.flags |= BT_SHM_FIRST;
    }
    tx->window_end[tx->run_head & (BT_SHM_RUNS - 1)] = tx->window_head;
    path->mine->runs[tx->run_head & (BT_SHM_RUNS - 1)] = run;
    tx->run_head++;
    if ((run.flags & BT_SHM_LAST) != 0) {
        bt_list_remove(&batch->link);
        bt_list_push(&tx->flying, &batch->link);
        tx->is_cut = false;
    }
}

static bool is_at_end(const bt_shm_path_t *path, const bt_kv_batch_t *batch)
{
    return path->tx.is_cut || batch->next_run == batch->run_count;
}

static void put_end(bt_shm_path_t *path, bt_kv_batch_t *batch)
{
    put(path, batch, (bt_shm_run_t){.how = BT_SHM_NOTHING, .flags = BT_SHM_LAST});
}

static void put_run(bt_shm_path_t *path, bt_kv_batch_t *batch, enum bt_shm_how how)
{
    const bt_kv_run_t *from = &batch->runs[batch->next_run++];
    put(path, batch,
        (bt_shm_run_t){.how = (uint8_t) how,
                       .flags = batch->next_run == batch->run_count ? BT_SHM_LAST : 0,
                       .src = from->src->id,
                       .src_offset = from->src_offset,
                       .dst = from->dst,
                       .dst_offset = from->dst_offset,
                       .bytes = from->bytes,
                       .rows = from->rows,
                       .src_stride = from->src_stride,
                       .dst_stride = from->dst_stride});
}

int bt_shm_pump(bt_shm_path_t *path)
{
    bt_shm_tx_t *tx = &path->tx;
    uint64_t began = tx->run_head, told = tx->run_head;

    if (path->stage != BT_SHM_READY || tx->in_window || bt_list_empty(&tx->sending))
        return 0;
    tx->is_blocked = !bt_list_empty(&path->unsent); /* a region goes out before its first run */
    while (!tx->is_blocked && !bt_list_empty(&tx->sending)) {
        bt_kv_batch_t *batch = first_of(&tx->sending);
        if (!has_space(path)) {
            tx->is_blocked = true;
            break;
        }
        if (is_at_end(path, batch)) {
            put_end(path, batch);
            continue;
        }
        enum bt_shm_how how = how_of(path, &batch->runs[batch->next_run]);
        if (how == BT_SHM_WINDOW)
            break;
        put_run(path, batch, how);
        if (tx->run_head - told >= BT_SHM_RUNS / 16) {
            publish(path); /* the receiver begins while we go on */
            told = tx->run_head;
        }
    }
    if (tx->run_head != told && path->stage == BT_SHM_READY)
        publish(path);
    return tx->run_head != began;
}

/* ---- window ---- */

/* Room in one piece, at most `want`; 0 = none now. */
static size_t window_room(bt_shm_tx_t *tx, size_t want)
{
    size_t at = tx->window_head & (BT_SHM_WINDOW_BYTES - 1);
    size_t in_piece = BT_SHM_WINDOW_BYTES - at;
    size_t is_free = BT_SHM_WINDOW_BYTES - (size_t) (tx->window_head - tx->window_tail);

    if (want > in_piece && in_piece < BT_SHM_WINDOW_BYTES / 16) { /* a stub: from the start again */
        if (is_free < in_piece)
            return 0;
        tx->window_head += in_piece;
        is_free -= in_piece;
        in_piece = BT_SHM_WINDOW_BYTES;
    }
    size_t room = in_piece < is_free ? in_piece : is_free;
    if (want <= room)
        return want;
    return room < BT_SHM_WINDOW_BYTES / 16 ? 0 : room; /* not in crumbs */
}

/* The next piece of the run: whole rows, or a part of one. False: no room for it now. */
static bool window_piece(bt_shm_path_t *path, bt_kv_batch_t *batch, bt_shm_slice_t *slice)
{
    bt_shm_tx_t *tx = &path->tx;
    const bt_kv_run_t *run = &batch->runs[batch->next_run];
    uint64_t row = batch->next_byte / run->bytes, byte = batch->next_byte % run->bytes;
    uint64_t total = (uint64_t) run->bytes * run->rows;
    size_t want = BT_KV_SLICE_BYTES - slice->bytes;

    if (want > total - batch->next_byte)
        want = (size_t) (total - batch->next_byte);
    size_t n = window_room(tx, want);
    if (n == 0)
        return false;
    uint32_t rows = byte == 0 ? (uint32_t) (n / run->bytes) : 0;
    uint32_t bytes = run->bytes;
    if (rows == 0) { /* part of a row */
        rows = 1;
        bytes = (uint32_t) (n < run->bytes - byte ? n : run->bytes - byte);
    }
    n = (size_t) bytes * rows;
    size_t at = tx->window_head & (BT_SHM_WINDOW_BYTES - 1);
    slice->pieces[slice->count++] =
        (bt_kv_copy_piece_t){.dst = path->mine->window + at,
                             .src = run->src->p + run->src_offset + row * run->src_stride + byte,
                             .bytes = bytes,
                             .rows = rows,
                             .src_stride = run->src_stride,
                             .dst_stride = bytes};
    slice->bytes += n;
    tx->window_head += (n + 63) & ~(size_t) 63;
    batch->next_byte += n;
    bool is_whole = batch->next_byte == total;
    if (is_whole) {
        batch->next_run++;
        batch->next_byte = 0;
    }
    put(path, batch,
        (bt_shm_run_t){.how = BT_SHM_WINDOW,
                       .flags = is_whole && batch->next_run == batch->run_count ? BT_SHM_LAST : 0,
                       .src_offset = at,
                       .dst = run->dst,
                       .dst_offset = run->dst_offset + row * run->dst_stride + byte,
                       .bytes = bytes,
                       .rows = rows,
                       .src_stride = bytes,
                       .dst_stride = run->dst_stride});
    return true;
}

static void window_gather(bt_shm_path_t *path, bt_kv_batch_t *batch, bt_shm_slice_t *slice)
{
    slice->count = 0;
    slice->bytes = 0;
    while (slice->bytes < BT_KV_SLICE_BYTES && slice->count < BT_SHM_PIECES) {
        if (!has_space(path) || !check_tail(path))
            break;
        if (!window_piece(path, batch, slice)) {
            path->tx.is_blocked = true;
            break;
        }
        if (batch->next_run == batch->run_count ||
            how_of(path, &batch->runs[batch->next_run]) != BT_SHM_WINDOW)
            break;
    }
}

int bt_shm_window(bt_shm_path_t *path)
{
    bt_shm_tx_t *tx = &path->tx;
    bt_shm_slice_t *slice = &bt_shm_of(path)->slice;

    if (path->stage != BT_SHM_READY || bt_list_empty(&tx->sending) || tx->is_cut)
        return 0;
    bt_kv_batch_t *batch = first_of(&tx->sending);
    if (!bt_list_empty(&path->unsent) || batch->next_run == batch->run_count ||
        how_of(path, &batch->runs[batch->next_run]) != BT_SHM_WINDOW)
        return 0;
    window_gather(path, batch, slice);
    if (slice->count == 0 || path->stage != BT_SHM_READY)
        return 0;
    tx->in_window = true;
    bt_shm_copy_begin(path, batch->tag);
    bt_kv_copy(slice->pieces, slice->count, slice->bytes);
    bt_shm_copy_end(path);
    tx->in_window = false;
    if (path->stage == BT_SHM_READY)
        publish(path);
    return 1;
}

/* ---- post, the end ---- */
int bt_shm_post(bt_kv_path_t *base, bt_kv_batch_t *batch)
{
    bt_shm_path_t *path = bt_shm_path_of(base);
    bt_shm_t *shm = bt_shm_of(path);

    BT_ASSERT(batch->note_bytes <= BT_KV_NOTE_BYTES);
    if (path->stage == BT_SHM_BROKEN)
        return path->rc;
    if (path->stage != BT_SHM_READY || path->tx.held == BT_SHM_BATCHES)
        return BT_E_AGAIN;
    batch->next_run = 0;
    batch->next_byte = batch->posted = batch->done = 0;
    bt_list_push(&path->tx.sending, &batch->link);
    path->tx.held++;
    (void) bt_shm_pump(path);
    if (shm->is_armed && !bt_list_empty(&path->tx.sending) && !path->tx.is_blocked)
        bt_shm_wake_self(path); /* the window is its own thread's work */
    return 0;
}

static void over(bt_shm_path_t *path, bt_kv_batch_t *batch, int rc)
{
    bt_list_remove(&batch->link);
    path->tx.held--;
    batch->done = rc == 0 ? batch->bytes : batch->done;
    bt_kv_batch_over(batch, rc);
}

static int rc_of(uint8_t status)
{
    if (status == BT_SHM_DONE)
        return 0;
    return status == BT_SHM_REFUSED ? BT_E_CANCELLED : BT_E_KV_TRANSFER;
}

int bt_shm_reap(bt_shm_path_t *path)
{
    bt_shm_tx_t *tx = &path->tx;
    int count = 0;

    if (path->stage != BT_SHM_READY)
        return 0;
    uint64_t done = __atomic_load_n(&path->theirs->batch_done, __ATOMIC_SEQ_CST);
    while (tx->batch_done != done && !path->is_closed) {
        if (bt_list_empty(&tx->flying)) {
            bt_shm_path_break(path, BT_E_INVAL, "the peer has finished what it was not sent");
            break;
        }
        const uint8_t *at = &path->theirs->status[tx->batch_done & (BT_SHM_BATCHES - 1)];
        tx->batch_done++;
        over(path, first_of(&tx->flying), rc_of(__atomic_load_n(at, __ATOMIC_RELAXED)));
        count++;
    }
    return count;
}

bool bt_shm_tx_has_news(const bt_shm_path_t *path)
{
    const bt_shm_tx_t *tx = &path->tx;
    if (__atomic_load_n(&path->theirs->batch_done, __ATOMIC_SEQ_CST) != tx->batch_done)
        return true;
    if (bt_list_empty(&tx->sending))
        return false;
    return !tx->is_blocked ||
           __atomic_load_n(&path->theirs->run_tail, __ATOMIC_SEQ_CST) != tx->run_tail;
}

static bt_kv_batch_t *find(bt_list_t *list, uint64_t tag, bool begun)
{
    bt_list_t *it, *tmp;
    bt_list_each (list, it, tmp) {
        bt_kv_batch_t *batch = bt_container_of(it, bt_kv_batch_t, link);
        if (batch->tag == tag && has_begun(batch) == begun)
            return batch;
    }
    return NULL;
}

static void cancel_flying(bt_shm_path_t *path, uint64_t tag)
{
    bt_list_t *it, *tmp;
    bt_list_each (&path->tx.flying, it, tmp) {
        bt_kv_batch_t *batch = bt_container_of(it, bt_kv_batch_t, link);
        if (batch->tag == tag)
            __atomic_store_n(&slot_of(path, batch)->is_cancelled, 1, __ATOMIC_SEQ_CST);
    }
}

bool bt_shm_tx_drain(bt_shm_path_t *path, uint64_t tag)
{
    bt_shm_tx_t *tx = &path->tx;
    bt_kv_batch_t *batch;

    if (path->stage != BT_SHM_BROKEN && !bt_shm_path_peer_lives(path))
        bt_shm_path_break(path, BT_E_RESET, "the peer's process has ended");
    bool is_over = path->stage == BT_SHM_BROKEN;
    while ((batch = find(&tx->sending, tag, false)) != NULL)
        over(path, batch, BT_E_CANCELLED);
    if (tx->in_window && bt_shm_of(path)->busy_tag == tag)
        is_over = false; /* its source is being read: after this copy */
    else if (is_over)
        while ((batch = find(&tx->sending, tag, true)) != NULL ||
               (batch = find(&tx->flying, tag, true)) != NULL)
            over(path, batch, BT_E_CANCELLED);
    batch = find(&tx->sending, tag, true);
    if (batch != NULL) { /* the first one: batches are begun in order */
        tx->is_cut = true;
        __atomic_store_n(&slot_of(path, batch)->is_cancelled, 1, __ATOMIC_SEQ_CST);
    }
    cancel_flying(path, tag);
    (void) bt_shm_pump(path);
    return find(&tx->sending, tag, true) == NULL && find(&tx->flying, tag, true) == NULL;
}

void bt_shm_tx_drop(bt_shm_path_t *path)
{
    while (!bt_list_empty(&path->tx.sending))
        over(path, first_of(&path->tx.sending), BT_E_CANCELLED);
    while (!bt_list_empty(&path->tx.flying))
        over(path, first_of(&path->tx.flying), BT_E_CANCELLED);
}
