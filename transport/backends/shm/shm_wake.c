/* Sleep and wake-up. A lost wake-up is impossible:
 *
 *     sleeper                                producer (another process)
 *     S1  mine.arm = number of this sleep    P1  store what is new (run_head, run_tail, batch_done)
 *     S2  look at all that is news           P2  look at theirs.arm; not 0 and not yet woken: write the eventfd
 *     S3  nothing: epoll_wait
 *
 * S1, S2, P1, P2 are sequentially consistent, so all four stand in one order. If P1 comes before S2, S2 sees the news. Else S2 < P1, hence S1 < P2, and P2 sees
 * the arm word: it writes the eventfd. Written before S3, it stays readable. A producer writes once a sleep (last_woken), whatever it
 * produces while the sleeper is on its way: it cannot clear the arm word, the area being the sleeper's alone. Nobody reads the eventfd: it
 * is watched edge-triggered, where each write is an event, so waking takes one system call less than read(2) would.
 *
 * The end of a batch is told lazily. It is stored at once, for a sender that looks, but P1, the same
 * value again, and P2 wait for the producer's next turn, or its own S1 (bt_shm_kick_owed): the first
 * would wait for the copy's stores and the second is a system call, and the note of the same batch
 * is to reach its reader before. Both come soon: an agent that takes no turns sends no heartbeats
 * either.
 *
 * An API call that posts while the agent's thread sleeps needs nothing more: what it waits for (ring space, the end of a batch) is P1 of the other side, and
 * S1 of this one came before. Only the window needs this side's own thread, so bt_shm_post writes this side's eventfd.
 */
#include <unistd.h>

#include "transport/backends/shm/shm.h"

void bt_shm_kick(bt_shm_path_t *path)
{
    uint64_t arm = __atomic_load_n(&path->theirs->arm, __ATOMIC_SEQ_CST);
    if (arm == 0 || arm == path->last_woken)
        return;
    path->last_woken = arm;
    uint64_t one = 1;
    (void) !write(path->wake_out, &one, sizeof(one));
}

void bt_shm_kick_owed(bt_shm_path_t *path)
{
    if (path->rx.owes_kick && path->stage == BT_SHM_READY) {
        __atomic_store_n(&path->mine->batch_done, path->rx.batch_count, __ATOMIC_SEQ_CST);
        bt_shm_kick(path);
    }
    path->rx.owes_kick = false;
}

void bt_shm_wake_self(bt_shm_path_t *path)
{
    uint64_t one = 1;
    (void) !write(path->wake_in, &one, sizeof(one));
}

static bool has_news(const bt_shm_path_t *path)
{
    if (path->stage == BT_SHM_BROKEN)
        return !path->is_told;
    if (path->stage != BT_SHM_READY)
        return path->stage == BT_SHM_START;
    return bt_shm_rx_has_news(path) || bt_shm_tx_has_news(path);
}

bool bt_shm_arm(bt_kv_backend_t *backend)
{
    bt_shm_t *shm = (bt_shm_t *) (void *) backend;
    bt_list_t *it, *tmp;
    bool found = false;

    shm->sleeps++;
    shm->is_armed = true;
    bt_list_each (&shm->paths, it, tmp) {
        bt_shm_path_t *path = bt_container_of(it, bt_shm_path_t, link);
        bt_shm_kick_owed(path);
        __atomic_store_n(&path->mine->arm, shm->sleeps, __ATOMIC_SEQ_CST);
        found = found || has_news(path);
    }
    if (found)
        bt_shm_disarm(shm);
    return found;
}

void bt_shm_disarm(bt_shm_t *shm)
{
    bt_list_t *it, *tmp;
    bt_list_each (&shm->paths, it, tmp)
        __atomic_store_n(&bt_container_of(it, bt_shm_path_t, link)->mine->arm, 0, __ATOMIC_RELAXED);
    shm->is_armed = false;
}
