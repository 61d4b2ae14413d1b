/* A peer that lies: in the ring, in the indices, in what it passes over the socket. The honest side ends the path with a reason, or refuses the batch; it
 * never writes where it was not asked to, and never crashes. */
#include "shm_pair.h"

#include "base/rand.h"

#include <fcntl.h>

#define MIB ((size_t) 1 << 20)

/* Writes a run into a's ring as a liar would. */
static void forge(pair_t *p, bt_shm_run_t run)
{
    bt_shm_path_t *path = shm_path(p->la);
    for (uint32_t i = 0; i < BT_SHM_BATCHES; i++)
        path->mine->batches[i].tag = 1; /* 0 is refused */
    path->mine->runs[path->tx.run_head++ % BT_SHM_RUNS] = run;
    __atomic_store_n(&path->mine->run_head, path->tx.run_head, __ATOMIC_SEQ_CST);
}

static bt_shm_run_t honest(const bt_kv_mem_t *src, const bt_kv_mem_t *dst)
{
    return (bt_shm_run_t){.how = BT_SHM_MAPPED,
                          .flags = BT_SHM_FIRST | BT_SHM_LAST,
                          .src = src->id,
                          .dst = dst->id,
                          .bytes = 64,
                          .rows = 1};
}

/* What a ring must not hold: the path breaks, and the reason says which. */
static void breaks(void (*lie)(bt_shm_run_t *run), const char *why)
{
    pair_t p;
    pair_open(&p);
    bt_kv_mem_t *src = rig_pool(&p.a, MIB), *dst = rig_pool(&p.b, MIB);
    fill(src, 3);
    bt_shm_run_t run = honest(src, dst);
    lie(&run);
    forge(&p, run);
    RIG_UNTIL(&p.b, NULL, p.lb->has_failed);
    assert_non_null(strstr(p.lb->why, why));
    assert_int_equal(p.lb->note_count, 0);
    for (size_t i = 0; i < dst->size; i++)
        assert_int_equal(dst->p[i], 0);
    pair_close(&p);
}

static void no_first(bt_shm_run_t *run)
{
    run->flags = BT_SHM_LAST;
}
static void no_rows(bt_shm_run_t *run)
{
    run->rows = 0;
}
static void no_bytes(bt_shm_run_t *run)
{
    run->bytes = 0;
}
static void unknown_how(bt_shm_run_t *run)
{
    run->how = 99;
}
static void overlapping_rows(bt_shm_run_t *run)
{
    run->rows = 2;
    run->src_stride = 64;
    run->dst_stride = 63;
}

static void test_malformed_runs(void **state)
{
    breaks(no_first, "malformed run");
    breaks(no_rows, "malformed run");
    breaks(no_bytes, "malformed run");
    breaks(unknown_how, "malformed run");
    breaks(overlapping_rows, "malformed run");
}

static void test_a_batch_inside_a_batch(void **state)
{
    pair_t p;
    pair_open(&p);
    bt_kv_mem_t *src = rig_pool(&p.a, MIB), *dst = rig_pool(&p.b, MIB);
    bt_shm_run_t run = honest(src, dst);
    run.flags = BT_SHM_FIRST;
    forge(&p, run);
    forge(&p, run);
    RIG_UNTIL(&p.b, NULL, p.lb->has_failed);
    assert_non_null(strstr(p.lb->why, "malformed run"));
    pair_close(&p);
}

static void test_an_index_out_of_range(void **state)
{
    static const uint64_t heads[] = {BT_SHM_RUNS + 1, UINT64_MAX, 1ull << 63};
    for (int i = 0; i < 3; i++) {
        pair_t p;
        pair_open(&p);
        __atomic_store_n(&shm_path(p.la)->mine->run_head, heads[i], __ATOMIC_SEQ_CST);
        RIG_UNTIL(&p.b, NULL, p.lb->has_failed);
        assert_non_null(strstr(p.lb->why, "index out of range"));
        pair_close(&p);
    }
}

static void test_a_note_too_long(void **state)
{
    pair_t p;
    pair_open(&p);
    bt_kv_mem_t *src = rig_pool(&p.a, MIB), *dst = rig_pool(&p.b, MIB);
    shm_path(p.la)->mine->batches[0].note_bytes = BT_KV_NOTE_BYTES + 1;
    forge(&p, honest(src, dst));
    RIG_UNTIL(&p.b, NULL, p.lb->has_failed);
    assert_non_null(strstr(p.lb->why, "a note of 65 bytes"));
    pair_close(&p);
}

static void test_acknowledging_what_was_not_sent(void **state)
{
    for (int i = 0; i < 2; i++) {
        pair_t p;
        rig_batch_t batch;
        pair_open(&p);
        bt_kv_mem_t *src = rig_pool(&p.a, MIB), *dst = rig_pool(&p.b, MIB);
        bt_kv_run_t *runs = calloc(2 * BT_SHM_RUNS, sizeof(*runs));
        for (uint32_t r = 0; r < 2 * BT_SHM_RUNS; r++)
            runs[r] = plain(src, 0, dst, 0, 1);
        bt_shm_area_t *theirs = shm_path(p.lb)->mine;
        __atomic_store_n(i == 0 ? &theirs->batch_done : &theirs->run_tail, 1ull << 40,
                         __ATOMIC_SEQ_CST);
        assert_int_equal(rig_post(p.la, &batch, 1, runs, 2 * BT_SHM_RUNS, 1), 0);
        RIG_UNTIL(&p.a, NULL, p.la->has_failed);
        assert_non_null(strstr(p.la->why, "not sent"));
        rig_unlink(p.la);
        assert_int_equal(batch.over, 1);
        assert_int_equal(batch.rc, BT_E_CANCELLED);
        free(runs);
        pair_close(&p);
    }
}

/* Well-formed, but not its place: the batch is refused, others go on. */
static void test_places_that_are_not_granted(void **state)
{
    pair_t p;
    rig_batch_t batch;
    char bytes[64] = "private";

    pair_open(&p);
    bt_kv_mem_t *src = rig_pool(&p.a, MIB), *own = rig_add(&p.a, bytes, sizeof(bytes), -1);
    bt_kv_mem_t *dst = rig_pool(&p.b, MIB);
    fill(src, 3);
    bt_shm_run_t ok = honest(src, dst), lies[9];
    for (int i = 0; i < 9; i++)
        lies[i] = ok;
    lies[0].src_offset = MIB - 63;
    lies[1].src_offset = UINT64_MAX - 10;
    lies[2].dst_offset = MIB - 63;
    lies[3].dst_offset = UINT64_MAX - 10;
    lies[4].src = 4711;
    lies[5].dst = 4711;
    lies[6].rows = UINT32_MAX;
    lies[6].src_stride = lies[6].dst_stride = UINT32_MAX;
    lies[7].how = BT_SHM_WINDOW;
    lies[7].src_offset = BT_SHM_WINDOW_BYTES - 63;
    lies[8].dst_offset = MIB - 100; /* only its second row is beyond */
    lies[8].rows = 2;
    lies[8].src_stride = lies[8].dst_stride = 64;
    for (int i = 0; i < 9; i++)
        forge(&p, lies[i]);
    shm_path(p.la)->tx.batch_head = shm_path(p.la)->tx.batch_done = 9;
    bt_shm_area_t *answers = shm_path(p.lb)->mine;
    RIG_UNTIL(&p.b, NULL, answers->batch_done == 9);
    for (int i = 0; i < 9; i++)
        assert_int_equal(answers->status[i], BT_SHM_REFUSED);
    for (size_t i = 0; i < dst->size; i++)
        assert_int_equal(dst->p[i], 0);
    assert_int_equal(p.lb->note_count, 0);

    bt_kv_run_t runs[2] = {plain(src, 0, dst, 0, 64), plain(own, 0, dst, 64, 64)};
    assert_int_equal(rig_post(p.la, &batch, 1, runs, 2, 5), 0);
    RIG_UNTIL(&p.a, &p.b, batch.over > 0);
    assert_int_equal(batch.rc, 0);
    assert_int_equal(p.lb->notes[0], 5);
    assert_memory_equal(dst->p + 64, bytes, 64);
    own->p = NULL; /* the stack's */
    p.a.ops->region_remove(p.a.backend, own);
    pair_close(&p);
}

/* Memory that has gone at the sender: the batch fails at both ends, nothing else. */
static void test_unreadable_source(void **state)
{
    pair_t p;
    rig_batch_t batch, next;

    pair_open(&p);
    bt_kv_mem_t *src = rig_private(&p.a, MIB), *dst = rig_pool(&p.b, MIB);
    assert_int_equal(mprotect(src->p + MIB / 2, MIB / 2, PROT_NONE), 0);
    bt_kv_run_t all = plain(src, 0, dst, 0, (uint32_t) MIB), half = plain(src, 0, dst, 0, 4096);
    assert_int_equal(rig_post(p.la, &batch, 1, &all, 1, 1), 0);
    assert_int_equal(rig_post(p.la, &next, 1, &half, 1, 2), 0);
    RIG_UNTIL(&p.a, &p.b, next.over > 0);
    assert_int_equal(batch.rc, BT_E_KV_TRANSFER);
    assert_int_equal(next.rc, 0);
    assert_int_equal(p.lb->note_count, 1);
    assert_int_equal(p.lb->notes[0], 2);
    pair_close(&p);
}

/* The source pages are given back while they are copied: no note. */
static bt_shm_path_t *sender;
static void close_while_copying(void)
{
    __atomic_store_n(&sender->mine->is_closed, 1, __ATOMIC_SEQ_CST);
}
static void cancel_while_copying(void)
{
    __atomic_store_n(&sender->mine->batches[0].is_cancelled, 1, __ATOMIC_SEQ_CST);
}

static void test_no_note_for_pages_given_back_meanwhile(void **state)
{
    for (int i = 0; i < 2; i++) {
        pair_t p;
        rig_batch_t batch;
        pair_open(&p);
        bt_kv_mem_t *src = rig_pool(&p.a, MIB), *dst = rig_pool(&p.b, MIB);
        bt_kv_run_t run = plain(src, 0, dst, 0, 4096);
        assert_int_equal(rig_post(p.la, &batch, 1, &run, 1, 1), 0);
        sender = shm_path(p.la);
        rig_hooks.in_copy = i == 0 ? close_while_copying : cancel_while_copying;
        RIG_UNTIL(&p.a, &p.b, batch.over > 0);
        assert_int_equal(batch.rc, BT_E_CANCELLED);
        assert_int_equal(p.lb->note_count, 0);
        pair_close(&p);
    }
}

static void fill_random(void *to, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *) to)[i] = (uint8_t) bt_rand_u64();
}

/* Anything at all in the area, and more of it while it is read. The sanitizers watch; what is around the granted region must stay. */
static void scribble(bt_shm_area_t *area)
{
    uint64_t head = area->run_head;
    uint32_t n = (uint32_t) bt_rand_below(40);
    for (uint32_t i = 0; i < n; i++, head++) {
        bt_shm_run_t run = {.how = (uint8_t) (1 + bt_rand_below(4)),
                            .flags = (uint8_t) bt_rand_below(4),
                            .src = (uint32_t) bt_rand_below(3),
                            .src_offset = bt_rand_u64() >> bt_rand_below(64),
                            .dst = (uint32_t) bt_rand_below(4),
                            .dst_offset = bt_rand_u64() >> bt_rand_below(64),
                            .bytes = (uint32_t) (bt_rand_u64() >> (32 + bt_rand_below(32))),
                            .rows = (uint32_t) (bt_rand_u64() >> (32 + bt_rand_below(32))),
                            .src_stride = (uint32_t) (bt_rand_u64() >> (32 + bt_rand_below(32))),
                            .dst_stride = (uint32_t) (bt_rand_u64() >> (32 + bt_rand_below(32)))};
        if (bt_rand_below(2) == 0) /* a sane neighbour, so that the next lie is reached */
            run = (bt_shm_run_t){.how = BT_SHM_MAPPED,
                                 .flags = 3,
                                 .src = 1,
                                 .dst = 1,
                                 .bytes = 9,
                                 .rows = 3,
                                 .src_stride = 9,
                                 .dst_stride = 9};
        if (bt_rand_below(8) == 0)
            fill_random(&run, sizeof(run));
        area->runs[head % BT_SHM_RUNS] = run;
    }
    for (uint32_t i = 0; i < BT_SHM_BATCHES; i++)
        area->batches[i].tag = 1;
    area->batches[bt_rand_below(BT_SHM_BATCHES)].note_bytes = (uint32_t) bt_rand_below(70);
    __atomic_store_n(&area->run_head, head, __ATOMIC_SEQ_CST);
    if (bt_rand_below(50) == 0)
        __atomic_store_n(&area->batch_done, bt_rand_u64() >> bt_rand_below(64), __ATOMIC_SEQ_CST);
}

static void test_scribbles(void **state)
{
    bt_rand_seed(2026);
    uint32_t broken = 0, written = 0;
    for (int round = 0; round < 150; round++) {
        pair_t p;
        pair_open(&p);
        memset(rig_pool(&p.a, MIB)->p, 1, MIB);
        rig_private(&p.a, MIB);
        bt_kv_mem_t *dst = rig_pool(&p.b, MIB);
        bt_kv_mem_t *around = rig_private(&p.b, MIB); /* id 2: not granted */
        memset(around->p, 0x5a, MIB);
        p.lb->refused_region = around->id;
        bt_shm_area_t *area = shm_path(p.la)->mine;
        for (int i = 0; i < 30 && !p.lb->has_failed; i++) {
            scribble(area);
            rig_turn(&p.b);
        }
        broken += p.lb->has_failed;
        for (size_t i = 0; i < MIB; i++)
            assert_int_equal(around->p[i], 0x5a);
        written += dst->p[0] != 0;
        pair_close(&p);
    }
    assert_in_range(broken, 100, 150);
    assert_in_range(written, 10, 150); /* some of it was let in, where it may be */
}

/* ---- descriptors ---- */
static void test_a_ring_without_seals(void **state)
{
    pair_t p;
    bt_shm_hooks.no_seal = true;
    pair_open(&p);
    RIG_UNTIL(&p.a, &p.b, p.la->has_failed && p.lb->has_failed);
    assert_true(strstr(p.la->why, "the peer's ring is refused: it is not sealed") != NULL ||
                strstr(p.lb->why, "the peer's ring is refused: it is not sealed") != NULL);
    pair_close(&p);
}

static void test_a_pool_without_seals(void **state)
{
    pair_t p;
    pair_open(&p);
    bt_shm_hooks.no_seal = true;
    rig_pool(&p.a, MIB);
    RIG_UNTIL(&p.a, &p.b, p.lb->has_failed);
    assert_non_null(strstr(p.lb->why, "it is not sealed against shrinking"));
    pair_close(&p);
}

static void refuses_region(int fd, uint64_t size, const char *why)
{
    pair_t p;
    pair_open(&p);
    bt_shm_msg_t msg = {.type = BT_SHM_REGION, .id = 9, .a = size, .c = 1};
    assert_int_equal(bt_shm_send(shm_path(p.la), &msg, &fd, fd >= 0 ? 1 : 0), 0);
    RIG_UNTIL(&p.b, NULL, p.lb->has_failed);
    assert_non_null(strstr(p.lb->why, why));
    if (fd >= 0)
        close(fd);
    pair_close(&p);
}

static void test_pools_that_are_something_else(void **state)
{
    int small = memfd_create("small", MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(small, 4096), 0);
    assert_true(bt_shm_seal(small));
    refuses_region(small, 8192, "smaller than the peer says");
    int empty = memfd_create("empty", MFD_ALLOW_SEALING);
    assert_true(bt_shm_seal(empty));
    refuses_region(empty, 0, "smaller than the peer says");
    refuses_region(open("/dev/null", O_RDWR), 4096, "it is not a memfd");
    refuses_region(-1, 4096, "no descriptor");
}

static void test_nobody_else_can_write_a_ring_or_pool(void **state)
{
    pair_t p;
    pair_open(&p);
    bt_kv_mem_t *src = rig_pool(&p.a, MIB);
    int fds[2] = {src->fd, shm_path(p.la)->area_fd};
    for (int i = 0; i < 2; i++) {
        assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0),
                         MAP_FAILED);
        assert_int_equal(pwrite(fds[i], "x", 1, 0), -1);
        assert_int_equal(ftruncate(fds[i], 0), -1);
        assert_int_equal(fallocate(fds[i], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096),
                         -1);
    }
    src->p[0] = 'y'; /* its owner can */
    pair_close(&p);
}

static void sends(uint32_t type, const char *why)
{
    pair_t p;
    pair_open(&p);
    bt_shm_msg_t msg = {.type = type};
    if (type == 0) /* cut short */
        assert_int_equal(send(shm_path(p.la)->sock, &msg, 7, MSG_NOSIGNAL), 7);
    else
        assert_int_equal(bt_shm_send(shm_path(p.la), &msg, NULL, 0), 0);
    RIG_UNTIL(&p.b, NULL, p.lb->has_failed);
    assert_non_null(strstr(p.lb->why, why));
    pair_close(&p);
}

static void test_messages_out_of_turn(void **state)
{
    sends(BT_SHM_HELLO, "malformed greeting");
    sends(BT_SHM_VERDICT, "unexpected message 2");
    sends(4711, "unexpected message 4711");
    sends(0, "malformed message");
}

/* ---- offers and strangers ---- */
static void offered(void (*lie)(bt_shm_offer_t *), size_t size, const char *why)
{
    rig_t rig;
    uint8_t text[BT_KV_OFFER_BYTES];
    bt_shm_offer_t offer;
    int fds[2];

    rig_open(&rig, &bt_kv_shm_ops);
    assert_int_equal(rig.ops->offer(rig.backend, text, sizeof(text)), sizeof(offer));
    memcpy(&offer, text, sizeof(offer));
    lie(&offer);
    rig_sockets(fds);
    rig_link_t *link = rig_link(&rig, fds[0], true);
    text[0] = 'O';
    memcpy(text + 1, &offer, size);
    assert_int_equal(send(fds[1], text, size + 1, 0), (ssize_t) size + 1);
    RIG_UNTIL(&rig, NULL, link->has_failed);
    assert_non_null(strstr(link->why, why));
    close(fds[1]);
    rig_close(&rig);
}
static void no_lie(bt_shm_offer_t *offer)
{
    (void) offer;
}
static void other_host(bt_shm_offer_t *offer)
{
    offer->boot_id[3] ^= 1;
}
static void other_user(bt_shm_offer_t *offer)
{
    offer->uid = 4711;
}
static void other_version(bt_shm_offer_t *offer)
{
    offer->version = 9;
}
static void nobody_there(bt_shm_offer_t *offer)
{
    offer->incarnation[0] ^= 1;
}

static void test_offers(void **state)
{
    size_t size = sizeof(bt_shm_offer_t);
    offered(no_lie, 0, "malformed offer");
    offered(no_lie, size - 1, "malformed offer");
    offered(other_host, size, "on another host");
    offered(other_user, size, "another user (uid 4711");
    offered(other_version, size, "has version 9, ours 1");
    offered(nobody_there, size, "cannot be reached (Connection refused)");
}

static void test_strangers_at_the_socket(void **state)
{
    pair_t p;
    bt_shm_msg_t msg = {.type = BT_SHM_HELLO, .cookie = {1, 2, 3}};
    int silent[80], liar, noisy;
    char byte;

    pair_open(&p);
    bt_shm_t *shm = (bt_shm_t *) (void *) p.a.backend;
    noisy = bt_shm_connect(&shm->offer);
    assert_int_equal(send(noisy, "hello", 5, 0), 5);
    liar = bt_shm_connect(&shm->offer);
    assert_int_equal(send(liar, &msg, sizeof(msg), 0), sizeof(msg));
    RIG_UNTIL(&p.a, NULL, recv(noisy, &byte, 1, MSG_DONTWAIT) == 0); /* thrown out */
    RIG_UNTIL(&p.a, NULL, shm->guest_count == 1);                    /* the liar waits for a path */
    for (uint32_t i = 0; i < 80; i++) {
        silent[i] = bt_shm_connect(&shm->offer);
        if (i + 2 <= BT_SHM_GUESTS_MAX)
            RIG_UNTIL(&p.a, NULL, shm->guest_count == i + 2);
        else
            RIG_UNTIL(&p.a, NULL, recv(silent[i], &byte, 1, MSG_DONTWAIT) == 0);
    }
    assert_int_equal(shm->guest_count, BT_SHM_GUESTS_MAX);
    bt_shm_guests_expire(shm, bt_clock_ms() + BT_SHM_HANDSHAKE_MS + 1);
    assert_int_equal(shm->guest_count, 0);
    for (int i = 0; i < 80; i++)
        close(silent[i]);
    close(noisy);
    close(liar);
    assert_false(p.la->has_failed);
    pair_close(&p);
}

static void test_another_user_is_turned_away(void **state)
{
    pair_t p;
    int ready[2], status;

    if (geteuid() != 0)
        skip(); /* only root can become somebody else */
    pair_open(&p);
    bt_shm_t *shm = (bt_shm_t *) (void *) p.a.backend;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        int sock = setresuid(65534, 65534, 65534) == 0 ? bt_shm_connect(&shm->offer) : -1;
        (void) !write(ready[1], "x", 1);
        /* Closed on us without a word. */
        int flags = sock < 0 ? -1 : fcntl(sock, F_SETFL, 0);
        _exit(flags == 0 && recv(sock, &byte, 1, 0) <= 0 ? 0 : 1);
    }
    assert_int_equal(read(ready[0], &status, 1), 1);
    RIG_UNTIL(&p.a, &p.b, waitpid(child, &status, WNOHANG) == child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(shm->guest_count, 0);
    close(ready[0]);
    close(ready[1]);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malformed_runs),
        cmocka_unit_test(test_a_batch_inside_a_batch),
        cmocka_unit_test(test_an_index_out_of_range),
        cmocka_unit_test(test_a_note_too_long),
        cmocka_unit_test(test_acknowledging_what_was_not_sent),
        cmocka_unit_test(test_places_that_are_not_granted),
        cmocka_unit_test(test_unreadable_source),
        cmocka_unit_test(test_no_note_for_pages_given_back_meanwhile),
        cmocka_unit_test(test_scribbles),
        cmocka_unit_test(test_a_ring_without_seals),
        cmocka_unit_test(test_a_pool_without_seals),
        cmocka_unit_test(test_pools_that_are_something_else),
        cmocka_unit_test(test_nobody_else_can_write_a_ring_or_pool),
        cmocka_unit_test(test_messages_out_of_turn),
        cmocka_unit_test(test_offers),
        cmocka_unit_test(test_strangers_at_the_socket),
        cmocka_unit_test(test_another_user_is_turned_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
