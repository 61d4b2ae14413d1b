/* The shm back end between two agents of one process: what moves, how, in which order, and how it stops. */
#include "shm_pair.h"

#include "base/rand.h"

#define MIB ((size_t) 1 << 20)

static void test_opens_and_describes(void **state)
{
    pair_t p;
    char text[300];

    pair_open(&p);
    assert_true(p.la->is_ready && p.lb->is_ready);
    p.a.ops->describe(p.la->path, text, sizeof(text));
    assert_non_null(strstr(text, "by process_vm_readv"));
    assert_false(p.a.ops->peer_is_dead(p.la->path));
    pair_close(&p);
}

/* Runs that do not overlap at the destination: 4 MiB of it in slots of random shapes. */
static uint32_t make_runs(bt_kv_run_t *runs, uint32_t max, bt_kv_mem_t *src, bt_kv_mem_t *dst)
{
    uint64_t at = 0;
    uint32_t n = 0;
    for (; n < max; n++) {
        uint32_t rows = bt_rand_below(3) == 0 ? 1 + (uint32_t) bt_rand_below(40) : 1;
        uint32_t bytes = 1 + (uint32_t) bt_rand_below(rows > 1 ? 3000 : 20000);
        uint32_t gap = (uint32_t) bt_rand_below(100), src_gap = (uint32_t) bt_rand_below(300);
        bt_kv_run_t run = {.src = src,
                           .dst = dst->id,
                           .dst_offset = at,
                           .bytes = bytes,
                           .rows = rows,
                           .src_stride = bytes + src_gap,
                           .dst_stride = bytes + gap};
        uint64_t src_span = (uint64_t) run.src_stride * (rows - 1) + bytes;
        uint64_t dst_span = (uint64_t) run.dst_stride * (rows - 1) + bytes;
        if (at + dst_span > dst->size || src_span > src->size)
            break;
        run.src_offset = bt_rand_below(src->size - src_span + 1);
        runs[n] = run;
        at += dst_span + bt_rand_below(50);
    }
    return n;
}

static void move_and_compare(pair_t *p, bt_kv_mem_t *src, bt_kv_mem_t *dst, const bt_kv_run_t *runs,
                             uint32_t count)
{
    rig_batch_t batch;
    char *expected = malloc(dst->size);

    memset(dst->p, 0x5a, dst->size);
    memset(expected, 0x5a, dst->size);
    model(expected, runs, count);
    uint32_t notes = p->lb->note_count;
    assert_int_equal(rig_post(p->la, &batch, 1, runs, count, 77), 0);
    RIG_UNTIL(&p->a, &p->b, batch.over > 0);
    assert_int_equal(batch.rc, 0);
    assert_int_equal(batch.over, 1);
    assert_int_equal(p->lb->note_count, notes + 1);
    assert_memory_equal(dst->p, expected, dst->size);
    free(expected);
    (void) src;
}

static void shapes(pair_t *p, bt_kv_mem_t *src, bt_kv_mem_t *dst)
{
    enum { MAX = 400 };
    bt_kv_run_t runs[MAX];

    fill(src, (unsigned) src->id);
    runs[0] = plain(src, 3, dst, 5, 1);
    move_and_compare(p, src, dst, runs, 1);
    runs[0] = plain(src, 1, dst, 2, (uint32_t) (3 * MIB + 12345)); /* many slices */
    move_and_compare(p, src, dst, runs, 1);
    runs[0] = (bt_kv_run_t){.src = src,
                            .dst = dst->id,
                            .bytes = 16,
                            .rows = 50000,
                            .src_stride = 48,
                            .dst_stride = 80}; /* very short rows, more than a slice has */
    move_and_compare(p, src, dst, runs, 1);
    runs[0] = (bt_kv_run_t){.src = src,
                            .dst = dst->id,
                            .bytes = 600000,
                            .rows = 5,
                            .src_stride = 600001,
                            .dst_stride = 700000}; /* rows beyond a slice */
    move_and_compare(p, src, dst, runs, 1);
    for (int i = 0; i < 20; i++)
        move_and_compare(p, src, dst, runs,
                         make_runs(runs, 1 + (uint32_t) bt_rand_below(MAX), src, dst));
}

static void test_shapes(void **state)
{
    pair_t p;

    bt_rand_seed(5);
    pair_open(&p);
    bt_kv_mem_t *pool = rig_pool(&p.a, 4 * MIB), *own = rig_private(&p.a, 4 * MIB);
    bt_kv_mem_t *to_pool = rig_pool(&p.b, 4 * MIB), *to_own = rig_private(&p.b, 4 * MIB);
    shapes(&p, pool, to_pool);
    shapes(&p, pool, to_own);
    shapes(&p, own, to_pool);
    shapes(&p, own, to_own);
    pair_close(&p);
}

static void test_shapes_through_the_window(void **state)
{
    pair_t p;
    char text[300];

    bt_rand_seed(6);
    bt_shm_hooks.probe_failures = -1;
    pair_open(&p);
    p.a.ops->describe(p.la->path, text, sizeof(text));
    assert_non_null(strstr(text, "copy window: Operation not permitted"));
    bt_kv_mem_t *own = rig_private(&p.a, 4 * MIB), *pool = rig_pool(&p.a, 4 * MIB);
    bt_kv_mem_t *dst = rig_pool(&p.b, 4 * MIB);
    shapes(&p, own, dst);
    shapes(&p, pool, dst);

    /* Both kinds in one batch keep their order. */
    bt_kv_run_t runs[64];
    for (uint32_t i = 0; i < 64; i++)
        runs[i] = plain(i % 2 == 0 ? own : pool, i * 40000, dst, i * 50000, 40000);
    move_and_compare(&p, own, dst, runs, 64);
    pair_close(&p);
}

static void test_a_grant_makes_the_pull_possible(void **state)
{
    pair_t p;

    bt_shm_hooks.probe_failures = 2; /* one of each side's */
    pair_open(&p);
    assert_true(p.la->is_ready && p.lb->is_ready);
    assert_true(shm_path(p.lb)->can_pull && shm_path(p.la)->can_pull);
    assert_true(shm_path(p.lb)->has_asked);
    assert_true(shm_path(p.la)->tx.may_pull);
    pair_close(&p);
}

static void test_neither_pull_nor_window(void **state)
{
    pair_t p;

    bt_shm_hooks.probe_failures = -1;
    bt_shm_hooks.no_window = true;
    pair_open(&p);
    RIG_UNTIL(&p.a, &p.b, p.la->has_failed && p.lb->has_failed);
    /* Whoever hears the verdict first says why; the other sees it close, or says the same. */
    assert_true(strstr(p.la->why, "no memory for a copy window") != NULL ||
                strstr(p.lb->why, "no memory for a copy window") != NULL);
    pair_close(&p);
}

static void test_a_pool_that_cannot_be_mapped_is_pulled(void **state)
{
    pair_t p;

    pair_open(&p);
    bt_shm_hooks.no_map = true;
    bt_kv_mem_t *pool = rig_pool(&p.a, 4 * MIB), *dst = rig_pool(&p.b, 4 * MIB);
    shapes(&p, pool, dst);
    assert_null(bt_shm_maps_find(&shm_path(p.lb)->maps, pool->id)->view.p);
    pair_close(&p);
}

/* The message waits, as with a full socket, and its batch with it. */
static void test_a_host_short_of_memory_is_no_end(void **state)
{
    pair_t p;

    pair_open(&p);
    bt_shm_hooks.short_sends = 3;
    bt_kv_mem_t *pool = rig_pool(&p.a, MIB), *dst = rig_pool(&p.b, MIB);
    const bt_kv_run_t run = plain(pool, 0, dst, 0, 4096);
    move_and_compare(&p, pool, dst, &run, 1);
    assert_int_equal(bt_shm_hooks.short_sends, 0); /* else this shows nothing */
    assert_false(p.la->has_failed || p.lb->has_failed);
    pair_close(&p);
}

static void test_a_batch_longer_than_the_ring(void **state)
{
    enum { RUNS = 3 * BT_SHM_RUNS + 17 };
    pair_t p;
    bt_kv_run_t *runs = calloc(RUNS, sizeof(*runs));

    pair_open(&p);
    bt_kv_mem_t *src = rig_pool(&p.a, 4 * MIB), *dst = rig_pool(&p.b, 4 * MIB);
    fill(src, 9);
    for (uint32_t i = 0; i < RUNS; i++)
        runs[i] = plain(src, (RUNS - 1 - i) * 256, dst, i * 256, 255);
    for (int i = 0; i < 5; i++)
        move_and_compare(&p, src, dst, runs, RUNS);
    free(runs);
    pair_close(&p);
}

static void test_back_pressure_and_order(void **state)
{
    enum { N = 3000 };
    pair_t p;
    rig_batch_t *batches = calloc(N, sizeof(*batches));
    uint32_t posted = 0, refused = 0;

    pair_open(&p);
    bt_kv_mem_t *src = rig_pool(&p.a, MIB), *dst = rig_pool(&p.b, MIB);
    bt_kv_run_t run = plain(src, 0, dst, 0, 4096);
    while (posted < N) { /* note only, every third */
        int rc = rig_post(p.la, &batches[posted], 1, &run, posted % 3 == 0 ? 0 : 1, posted + 1);
        if (rc == 0) {
            posted++;
            continue;
        }
        assert_int_equal(rc, BT_E_AGAIN);
        uint32_t before = p.lb->note_count;
        RIG_UNTIL(&p.a, &p.b, p.lb->note_count > before);
        refused++;
    }
    RIG_UNTIL(&p.a, &p.b, batches[N - 1].over > 0);
    assert_true(refused > 0);
    assert_int_equal(p.lb->note_count, N);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(p.lb->notes[i], i + 1);
        assert_int_equal(batches[i].over, 1);
        assert_int_equal(batches[i].rc, 0);
    }
    free(batches);
    pair_close(&p);
}

static void test_both_directions_at_once(void **state)
{
    pair_t p;
    rig_batch_t there[50], back[50];

    pair_open(&p);
    bt_kv_mem_t *at_a = rig_private(&p.a, 2 * MIB), *at_b = rig_pool(&p.b, 2 * MIB);
    fill(at_a, 1);
    fill(at_b, 2);
    bt_kv_run_t to_b = plain(at_a, 0, at_b, MIB, (uint32_t) MIB);
    bt_kv_run_t to_a = plain(at_b, 0, at_a, MIB, (uint32_t) MIB);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(rig_post(p.la, &there[i], 1, &to_b, 1, 1), 0);
        assert_int_equal(rig_post(p.lb, &back[i], 2, &to_a, 1, 1), 0);
    }
    RIG_UNTIL(&p.a, &p.b, there[49].over > 0 && back[49].over > 0);
    assert_int_equal(p.la->note_count, 50);
    assert_int_equal(p.lb->note_count, 50);
    assert_memory_equal(at_a->p, at_b->p + MIB, MIB);
    assert_memory_equal(at_b->p, at_a->p + MIB, MIB);
    pair_close(&p);
}

static void test_regions_come_and_go(void **state)
{
    pair_t p;
    rig_batch_t batch;

    pair_open(&p);
    bt_kv_mem_t *dst = rig_pool(&p.b, MIB);
    for (unsigned i = 0; i < 40; i++) { /* the same id, each time another memory, used at once */
        bt_kv_mem_t *src = i % 2 == 0 ? rig_pool(&p.a, MIB) : rig_private(&p.a, MIB);
        fill(src, i);
        bt_kv_run_t run = plain(src, 0, dst, 0, (uint32_t) MIB);
        assert_int_equal(rig_post(p.la, &batch, 1, &run, 1, 1), 0);
        RIG_UNTIL(&p.a, &p.b, batch.over > 0);
        assert_int_equal(batch.rc, 0);
        assert_memory_equal(src->p, dst->p, MIB);
        rig_remove(&p.a, src);
    }
    pair_close(&p);
}

static void test_more_regions_than_the_socket_holds(void **state)
{
    enum { N = 700 };
    static bt_kv_mem_t mems[N];
    pair_t p;
    rig_batch_t batch;
    static char bytes[N][64];

    pair_open(&p);
    bt_kv_mem_t *dst = rig_pool(&p.b, MIB);
    for (uint32_t i = 0; i < N; i++) {
        memset(bytes[i], (int) i, 64);
        mems[i] = (bt_kv_mem_t){.id = 1000 + i, .p = bytes[i], .size = 64, .fd = -1};
        assert_int_equal(p.a.ops->region_add(p.a.backend, &mems[i]), 0);
    }
    assert_false(bt_list_empty(&shm_path(p.la)->unsent)); /* else this shows nothing */
    bt_kv_run_t run = plain(&mems[N - 1], 0, dst, 0, 64);
    assert_int_equal(rig_post(p.la, &batch, 1, &run, 1, 1), 0);
    RIG_UNTIL(&p.a, &p.b, batch.over > 0);
    assert_int_equal(batch.rc, 0);
    assert_memory_equal(dst->p, bytes[N - 1], 64);
    for (uint32_t i = 0; i < N; i++)
        p.a.ops->region_remove(p.a.backend, &mems[i]);
    RIG_UNTIL(&p.a, &p.b, shm_path(p.lb)->maps.count == 0);
    pair_close(&p);
}

/* A failed room: of three batches in the ring the receiver skips two, and its neighbour still arrives. */
static void drained(bool window)
{
    enum { RUNS = 2 * BT_SHM_RUNS };
    pair_t p;
    rig_batch_t one, two, other;
    bt_kv_run_t *runs = calloc(RUNS, sizeof(*runs)), last;

    bt_shm_hooks.probe_failures = window ? -1 : 0;
    pair_open(&p);
    bt_kv_mem_t *src = rig_private(&p.a, 4 * MIB), *dst = rig_pool(&p.b, 4 * MIB);
    for (uint32_t i = 0; i < RUNS; i++)
        runs[i] = plain(src, i * 500, dst, i * 500, 500);
    last = plain(src, 0, dst, 0, 4096);
    assert_int_equal(rig_post(p.la, &one, 7, runs, RUNS, 1), 0); /* half of it in the ring */
    assert_int_equal(rig_post(p.la, &two, 7, runs, RUNS, 2), 0);
    assert_int_equal(rig_post(p.la, &other, 8, &last, 1, 3), 0);
    rig_turn(&p.a);
    assert_false(rig_drain(p.la, 7));
    assert_int_equal(two.over, 1); /* not begun: at once */
    assert_int_equal(two.rc, BT_E_CANCELLED);
    assert_int_equal(one.over, 0);
    p.lb->refused_tag = 7;
    memset(dst->p, 0x5a, dst->size);
    assert_true(rig_drain(p.lb, 7));
    RIG_UNTIL(&p.a, &p.b, rig_drain(p.la, 7) && other.over > 0);
    assert_int_equal(one.over, 1);
    assert_int_equal(one.rc, BT_E_CANCELLED);
    assert_int_equal(other.rc, 0);
    assert_int_equal(p.lb->note_count, 1);
    assert_int_equal(p.lb->notes[0], 3);
    for (size_t i = 4096; i < dst->size; i++)
        assert_int_equal(dst->p[i], 0x5a);
    free(runs);
    pair_close(&p);
}

static void test_drain(void **state)
{
    drained(false);
}

static void test_drain_of_the_window(void **state)
{
    drained(true);
}

static void test_close_gives_batches_back_once(void **state)
{
    pair_t p;
    rig_batch_t batches[10];

    pair_open(&p);
    bt_kv_mem_t *src = rig_pool(&p.a, MIB), *dst = rig_pool(&p.b, MIB);
    bt_kv_run_t run = plain(src, 0, dst, 0, (uint32_t) MIB);
    for (int i = 0; i < 10; i++)
        assert_int_equal(rig_post(p.la, &batches[i], 1, &run, 1, 1), 0);
    rig_turn(&p.b);
    rig_unlink(p.la);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(batches[i].over, 1);
        assert_int_equal(batches[i].rc, BT_E_CANCELLED);
    }
    uint32_t notes = p.lb->note_count;
    RIG_UNTIL(&p.b, NULL, p.lb->has_failed);
    assert_non_null(strstr(p.lb->why, "the peer has closed it"));
    assert_int_equal(p.lb->note_count, notes); /* none after the close */
    pair_close(&p);
}

static void test_two_receivers(void **state)
{
    pair_t p;
    rig_t c;
    int fds[2];
    rig_batch_t first, second;

    pair_open(&p);
    rig_open(&c, &bt_kv_shm_ops);
    rig_sockets(fds);
    rig_link_t *la = rig_link(&p.a, fds[0], false), *lc = rig_link(&c, fds[1], true);
    RIG_UNTIL(&p.a, &c, la->is_ready && lc->is_ready);
    bt_kv_mem_t *src = rig_private(&p.a, MIB), *to_b = rig_pool(&p.b, MIB),
                *to_c = rig_pool(&c, MIB);
    fill(src, 4);
    bt_kv_run_t run_b = plain(src, 0, to_b, 0, (uint32_t) MIB);
    bt_kv_run_t run_c = plain(src, 0, to_c, 0, (uint32_t) MIB);
    assert_int_equal(rig_post(p.la, &first, 1, &run_b, 1, 1), 0);
    assert_int_equal(rig_post(la, &second, 1, &run_c, 1, 1), 0);
    RIG_UNTIL(&p.a, &p.b, first.over > 0);
    RIG_UNTIL(&p.a, &c, second.over > 0);
    assert_memory_equal(src->p, to_b->p, MIB);
    assert_memory_equal(src->p, to_c->p, MIB);
    rig_close(&c);
    RIG_UNTIL(&p.a, NULL, la->has_failed);
    assert_false(p.la->has_failed);
    pair_close(&p);
}

static void test_a_device_buffer_is_refused(void **state)
{
    rig_t rig;
    bt_kv_mem_t mem = {.id = 1, .size = 4096, .fd = 0};

    rig_open(&rig, &bt_kv_shm_ops);
    assert_int_equal(rig.ops->region_add(rig.backend, &mem), BT_E_INVAL);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opens_and_describes),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_shapes_through_the_window),
        cmocka_unit_test(test_a_grant_makes_the_pull_possible),
        cmocka_unit_test(test_neither_pull_nor_window),
        cmocka_unit_test(test_a_pool_that_cannot_be_mapped_is_pulled),
        cmocka_unit_test(test_a_host_short_of_memory_is_no_end),
        cmocka_unit_test(test_a_batch_longer_than_the_ring),
        cmocka_unit_test(test_back_pressure_and_order),
        cmocka_unit_test(test_both_directions_at_once),
        cmocka_unit_test(test_regions_come_and_go),
        cmocka_unit_test(test_more_regions_than_the_socket_holds),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_drain_of_the_window),
        cmocka_unit_test(test_close_gives_batches_back_once),
        cmocka_unit_test(test_two_receivers),
        cmocka_unit_test(test_a_device_buffer_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
