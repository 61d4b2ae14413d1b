/* shm_area.h - what two processes share: one memfd a path and side, written only by the side that made it.
 *
 * Owner: its maker writes, the peer maps it read-only (F_SEAL_FUTURE_WRITE makes sure); it cannot shrink (F_SEAL_SHRINK), so reading it cannot fault.
 * Life:  made with the path; the peer's mapping keeps it after its maker has gone.
 * Flow:  maker as sender: batch slot, runs, run_head. Maker as receiver of the other direction: status, run_tail, batch_done.
 * Cost:  a 16 KiB page takes about five cache lines: run_head's, the batch slot's two, the run's, batch_done's.
 *
 * A reader trusts nothing here: bt_shm_take copies a record once, word by word; only the copy is checked and used.
 */
#ifndef BT_TRANSPORT_SHM_AREA_H
#define BT_TRANSPORT_SHM_AREA_H

#include <stddef.h>
#include <stdint.h>

#include "transport/backends/backend.h"

#define BT_SHM_VERSION 1u   /* of this file; the offer carries it */
#define BT_SHM_RUNS 4096u   /* records in a ring; a power of two */
#define BT_SHM_BATCHES 256u /* batches under way on a path; a power of two */
#define BT_SHM_WINDOW_BYTES ((size_t) 2 << 20)

enum bt_shm_how {
    BT_SHM_MAPPED = 1, /* source: a pool that the receiver has mapped */
    BT_SHM_PULLED = 2, /* source: private memory of the sender */
    BT_SHM_WINDOW = 3, /* source: the area's window, rows packed */
    BT_SHM_NOTHING = 4 /* moves nothing: ends a batch without runs, or one cut short */
};
#define BT_SHM_FIRST 1u /* the next batch slot belongs to this run and those after it */
#define BT_SHM_LAST 2u

enum bt_shm_status { BT_SHM_DONE, BT_SHM_REFUSED, BT_SHM_UNREADABLE };

typedef struct bt_shm_run {
    uint8_t how, flags;
    uint16_t unused;
    uint32_t src; /* the sender's region */
    uint64_t src_offset;
    uint64_t dst_offset;
    uint32_t dst; /* the receiver's region */
    uint32_t bytes, rows, src_stride, dst_stride;
    uint32_t unused2;
} bt_shm_run_t;

typedef struct bt_shm_batch {
    uint64_t tag;
    uint32_t note_bytes;
    uint32_t is_cancelled; /* set at any time: what was copied since may be rubbish */
    uint8_t note[BT_KV_NOTE_BYTES];
    uint8_t unused[48];
} bt_shm_batch_t;

typedef struct bt_shm_area {
    _Alignas(64) uint64_t arm; /* 0 = awake, else the number of this sleep */
    /* as sender */
    _Alignas(64) uint64_t run_head;
    uint64_t is_closed; /* what was copied since may be rubbish */
    /* as receiver */
    _Alignas(64) uint64_t run_tail;
    uint64_t batch_done;
    _Alignas(64) uint8_t status[BT_SHM_BATCHES];
    _Alignas(64) bt_shm_batch_t batches[BT_SHM_BATCHES];
    _Alignas(64) bt_shm_run_t runs[BT_SHM_RUNS];
    _Alignas(4096) char window[BT_SHM_WINDOW_BYTES];
} bt_shm_area_t;

_Static_assert(sizeof(bt_shm_run_t) == 48 && sizeof(bt_shm_batch_t) == 128, "wire format");
_Static_assert((BT_SHM_RUNS & (BT_SHM_RUNS - 1)) == 0 &&
                   (BT_SHM_BATCHES & (BT_SHM_BATCHES - 1)) == 0,
               "indices wrap by a mask");

/* Copies `bytes` (a multiple of 8) out of shared memory, each word read exactly once whatever the compiler thinks. */
static inline void bt_shm_take(void *to, const void *from, size_t bytes)
{
    uint64_t *out = to;
    const uint64_t *in = from;
    for (size_t i = 0; i < bytes / 8; i++)
        out[i] = __atomic_load_n(&in[i], __ATOMIC_RELAXED);
}

#endif
