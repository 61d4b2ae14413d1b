/* The receiver: takes runs from the peer's ring, copies, and says what is done.
 *
 * A slice is up to BT_KV_SLICE_BYTES (pulled: BT_SHM_PULL_BYTES) of one batch and one kind of source. It is gathered under the lock (each record copied once and checked, each destination
 * asked of the agent), moved without it, and then the batch goes on or ends. Whatever is wrong with a run's place (unknown region, beyond its end, a destination
 * that the agent does not grant) spoils its batch only: the rest of it is taken and not moved, and the sender hears REFUSED. What no honest
 * sender can write (a broken order of FIRST and LAST, an index out of range, zero rows) breaks the path.
 *
 * Before a note is delivered the copy is proven good: the slot was not cancelled, the area not closed (their maker sets them before it gives the source
 * pages back), and, where memory was pulled by pid, the peer still lives, so that the pid was its own all the time.
 *
 * run_tail, which frees the ring, is told at the end of a batch, after each quarter of the ring, and after each slice from the window: a
 * sleeping sender is not woken more often than it can use.
 */
#include <string.h>

#include "transport/backends/shm/shm.h"

#define WARM_BYTES 16384u
#define ROWS_MAX 4096u /* in a piece: bounds the time a slice of very short rows takes */

static void refuse(bt_shm_rx_t *rx, enum bt_shm_status status)
{
    if (rx->status == BT_SHM_DONE)
        rx->status = (uint8_t) status;
}

static void begin_batch(bt_shm_path_t *path)
{
    bt_shm_rx_t *rx = &path->rx;
    const bt_shm_batch_t *slot = &path->theirs->batches[rx->batch_count & (BT_SHM_BATCHES - 1)];

    bt_shm_take(&rx->batch, slot, sizeof(rx->batch));
    rx->in_batch = true;
    rx->status = BT_SHM_DONE;
    rx->has_pulled = rx->has_window = false;
    if (rx->batch.note_bytes > BT_KV_NOTE_BYTES)
        bt_shm_path_break(path, BT_E_INVAL, "the peer's ring holds a note of %u bytes",
                          rx->batch.note_bytes);
}

static bool is_sane(const bt_shm_run_t *run)
{
    if (run->how == BT_SHM_NOTHING)
        return true;
    if (run->how < BT_SHM_MAPPED || run->how > BT_SHM_WINDOW || run->bytes == 0 || run->rows == 0)
        return false;
    return run->rows == 1 || (run->src_stride >= run->bytes && run->dst_stride >= run->bytes);
}

/* The next record becomes rx->run. */
static bool take_run(bt_shm_path_t *path)
{
    bt_shm_rx_t *rx = &path->rx;

    bt_shm_take(&rx->run, &path->theirs->runs[rx->taken & (BT_SHM_RUNS - 1)], sizeof(rx->run));
    rx->taken++;
    rx->row = rx->byte = 0;
    if (((rx->run.flags & BT_SHM_FIRST) != 0) == rx->in_batch || !is_sane(&rx->run)) {
        bt_shm_path_break(path, BT_E_INVAL, "the peer's ring holds a malformed run");
        return false;
    }
    if (!rx->in_batch)
        begin_batch(path);
    rx->in_run = true;
    return path->stage == BT_SHM_READY;
}

/* Where the run's bytes are, the whole of it checked; NULL: nowhere that may be read. */
static const char *source_of(bt_shm_path_t *path, bool *is_pulled_p)
{
    const bt_shm_run_t *run = &path->rx.run;
    uint64_t span = (uint64_t) (run->rows - 1) * run->src_stride + run->bytes; /* < 2^64 */
    const char *base = path->theirs->window;
    uint64_t size = BT_SHM_WINDOW_BYTES;

    *is_pulled_p = false;
    if (run->how != BT_SHM_WINDOW) {
        const bt_shm_map_t *map = bt_shm_maps_find(&path->maps, run->src);
        if (map == NULL) { /* it was sent before the run: it must be in the socket */
            bt_shm_path_read(path);
            map = bt_shm_maps_find(&path->maps, run->src);
        }
        if (map == NULL || path->stage != BT_SHM_READY)
            return NULL;
        base = map->view.p;
        size = map->size;
        if (run->how == BT_SHM_PULLED || base == NULL) {
            if (!path->can_pull)
                return NULL;
            *is_pulled_p = true;
            base = (const char *) (uintptr_t) map->address;
        }
    }
    if (run->src_offset > size || span > size - run->src_offset)
        return NULL;
    return base + run->src_offset;
}

/* As much of the run as fits: whole rows, or a part of one. */
static bt_kv_copy_piece_t cut(const bt_shm_rx_t *rx, const char *source, size_t room,
                              uint32_t rows_max)
{
    const bt_shm_run_t *run = &rx->run;
    bt_kv_copy_piece_t piece = {.src = source + rx->row * run->src_stride + rx->byte,
                                .rows = 1,
                                .src_stride = run->src_stride,
                                .dst_stride = run->dst_stride};

    if (rx->byte == 0 && run->bytes <= room) {
        uint64_t rows = room / run->bytes, left = run->rows - rx->row;
        rows = rows < left ? rows : left;
        piece.rows = (uint32_t) (rows < rows_max ? rows : rows_max);
        piece.bytes = run->bytes;
    } else {
        uint64_t left = run->bytes - rx->byte;
        piece.bytes = (uint32_t) (left < room ? left : room);
    }
    return piece;
}

static void advance(bt_shm_rx_t *rx, const bt_kv_copy_piece_t *piece)
{
    rx->byte += piece->bytes;
    if (rx->byte == rx->run.bytes) {
        rx->byte = 0;
        rx->row += piece->rows;
    }
    if (rx->row == rx->run.rows)
        rx->in_run = false;
}

/* The first copy of a slice would begin with misses, of the cache and of the address tables; they pass while the rest is gathered. */
static void warm(const bt_kv_copy_piece_t *piece)
{
    for (uint32_t at = 0; at < piece->bytes && at < WARM_BYTES; at += 4096) {
        __builtin_prefetch(piece->src + at, 0);
        __builtin_prefetch(piece->dst + at, 1);
    }
}

/* Adds pieces of the run at hand. False: the slice is full, or of another kind. */
static bool add_pieces(bt_shm_path_t *path, bt_shm_slice_t *slice)
{
    bt_shm_rx_t *rx = &path->rx;
    bool is_pulled;
    const char *source = source_of(path, &is_pulled);

    if (source == NULL) {
        refuse(rx, BT_SHM_REFUSED);
        return true;
    }
    if (slice->count > 0 && slice->is_pulled != is_pulled)
        return false;
    slice->is_pulled = is_pulled;
    uint32_t rows_max = is_pulled ? BT_SHM_IOVS - slice->iovs : ROWS_MAX;
    size_t full = is_pulled ? BT_SHM_PULL_BYTES : BT_KV_SLICE_BYTES;
    while (rx->in_run) {
        if (slice->bytes >= full || slice->count == BT_SHM_PIECES || rows_max == 0)
            return false;
        bt_kv_copy_piece_t piece = cut(rx, source, full - slice->bytes, rows_max);
        uint64_t span = (uint64_t) (piece.rows - 1) * rx->run.dst_stride + piece.bytes;
        piece.dst =
            bt_kv_destination(&path->base, rx->batch.tag, rx->run.dst,
                              rx->run.dst_offset + rx->row * rx->run.dst_stride + rx->byte, span);
        if (piece.dst == NULL) {
            refuse(rx, BT_SHM_REFUSED);
            return true;
        }
        if (slice->count == 0 && !is_pulled)
            warm(&piece);
        slice->pieces[slice->count++] = piece;
        slice->bytes += (size_t) piece.bytes * piece.rows;
        slice->iovs += piece.rows;
        rows_max -= piece.rows;
        rx->has_pulled |= is_pulled;
        rx->has_window |= rx->run.how == BT_SHM_WINDOW;
        advance(rx, &piece);
    }
    return true;
}

/* Runs of one batch until the slice is full. True: the batch's last run is in it. */
static bool gather(bt_shm_path_t *path, uint64_t head, bt_shm_slice_t *slice)
{
    bt_shm_rx_t *rx = &path->rx;

    slice->count = slice->iovs = 0;
    slice->bytes = 0;
    while (path->stage == BT_SHM_READY) {
        if (!rx->in_run && (rx->taken == head || !take_run(path)))
            return false;
        if (rx->status == BT_SHM_DONE && rx->run.how != BT_SHM_NOTHING && !add_pieces(path, slice))
            return false;
        rx->in_run = rx->in_run && rx->status == BT_SHM_DONE && rx->run.how != BT_SHM_NOTHING;
        if (!rx->in_run && (rx->run.flags & BT_SHM_LAST) != 0)
            return true;
    }
    return false;
}

static void move(bt_shm_path_t *path, const bt_shm_slice_t *slice)
{
    pid_t pid = path->pid;
    int error = 0;

    bt_shm_copy_begin(path, path->rx.batch.tag);
    if (slice->is_pulled)
        error = bt_shm_pull(pid, slice);
    else
        bt_kv_copy(slice->pieces, slice->count, slice->bytes);
    bt_shm_copy_end(path);
    if (error != 0) {
        path->pull_errno = error;
        refuse(&path->rx, BT_SHM_UNREADABLE);
    }
}

static bool is_good(bt_shm_path_t *path)
{
    bt_shm_rx_t *rx = &path->rx;
    const bt_shm_batch_t *slot = &path->theirs->batches[rx->batch_count & (BT_SHM_BATCHES - 1)];

    bt_shm_read_fence();
    if (__atomic_load_n(&slot->is_cancelled, __ATOMIC_ACQUIRE) != 0 ||
        __atomic_load_n(&path->theirs->is_closed, __ATOMIC_ACQUIRE) != 0)
        refuse(rx, BT_SHM_REFUSED);
    if (rx->has_pulled && !bt_shm_path_peer_lives(path))
        refuse(rx, BT_SHM_UNREADABLE);
    return rx->status == BT_SHM_DONE;
}

static void end_batch(bt_shm_path_t *path)
{
    bt_shm_rx_t *rx = &path->rx;
    uint64_t done = rx->batch_count + 1;
    bool is_note = is_good(path) && rx->batch.note_bytes > 0;

    __atomic_store_n(&path->mine->status[rx->batch_count & (BT_SHM_BATCHES - 1)], rx->status,
                     __ATOMIC_RELAXED);
    rx->batch_count = done;
    rx->in_batch = false;
    rx->run_tail = rx->taken;
    /* The note first: who waits for it is nearer than the sender. */
    if (is_note)
        bt_kv_got_note(&path->base, rx->batch.note, rx->batch.note_bytes);
    if (path->stage != BT_SHM_READY)
        return;
    __atomic_store_n(&path->mine->run_tail, rx->run_tail, __ATOMIC_RELEASE);
    __atomic_store_n(&path->mine->batch_done, done, __ATOMIC_RELEASE);
    rx->owes_kick =
        true; /* the next turn's, or the sleep's: it is a system call, and the note's reader waits */
}

static void free_ring(bt_shm_path_t *path)
{
    bt_shm_rx_t *rx = &path->rx;
    uint64_t free_to = rx->in_run ? rx->taken - 1 : rx->taken; /* a run half taken is still read */

    if (free_to - rx->run_tail < BT_SHM_RUNS / 4 && !(rx->has_window && free_to != rx->run_tail))
        return;
    rx->run_tail = free_to;
    __atomic_store_n(&path->mine->run_tail, free_to, __ATOMIC_SEQ_CST);
    bt_shm_kick(path);
}

int bt_shm_rx_step(bt_shm_path_t *path, size_t *budget)
{
    bt_shm_rx_t *rx = &path->rx;
    bt_shm_slice_t *slice = &bt_shm_of(path)->slice;
    uint32_t runs = BT_SHM_RUNS; /* skipping costs time too */
    int count = 0;

    while (*budget > 0 && runs > 0 && path->stage == BT_SHM_READY) {
        uint64_t began = rx->taken,
                 head = __atomic_load_n(&path->theirs->run_head, __ATOMIC_ACQUIRE);
        if (head - rx->taken > BT_SHM_RUNS) {
            bt_shm_path_break(path, BT_E_INVAL, "the peer's ring has an index out of range");
            break;
        }
        if (head == rx->taken && !rx->in_run)
            break;
        bool is_last = gather(path, head, slice);
        if (slice->count > 0 && path->stage == BT_SHM_READY)
            move(path, slice);
        if (path->stage != BT_SHM_READY)
            break;
        if (is_last)
            end_batch(path);
        else
            free_ring(path);
        *budget -= slice->bytes < *budget ? slice->bytes : *budget;
        runs -= rx->taken - began < runs ? (uint32_t) (rx->taken - began) : runs;
        count++;
    }
    return count;
}

bool bt_shm_rx_has_news(const bt_shm_path_t *path)
{
    return path->rx.in_run ||
           __atomic_load_n(&path->theirs->run_head, __ATOMIC_SEQ_CST) != path->rx.taken;
}
