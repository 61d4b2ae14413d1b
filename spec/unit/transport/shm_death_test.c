/* The peer as another process: it works, is killed in the middle of a copy, is stopped and goes on too late. */
#include "shm_pair.h"

#include <signal.h>

#include "base/sanitize.h"

#define MIB ((size_t) 1 << 20)

enum { GO_ON = 1, DIE = 2 };

typedef struct child {
    pid_t pid;
    rig_t rig; /* this process's end */
    rig_link_t *link;
} child_t;

/* Opens this side, with the child (who runs `body` with its own end) on the other. */
static void spawn(child_t *c, void (*body)(rig_t *rig, rig_link_t *link), bool child_receives)
{
    int fds[2];
    rig_sockets(fds);
    c->pid = fork();
    assert_true(c->pid >= 0);
    if (c->pid == 0) {
        rig_t rig;
        close(fds[0]);
        rig_open(&rig, &bt_kv_shm_ops);
        rig_link_t *link = rig_link(&rig, fds[1], child_receives);
        RIG_UNTIL(&rig, NULL, link->is_ready);
        body(&rig, link);
        _exit(99); /* bodies end by themselves */
    }
    close(fds[1]);
    rig_open(&c->rig, &bt_kv_shm_ops);
    c->link = rig_link(&c->rig, fds[0], !child_receives);
    RIG_UNTIL(&c->rig, NULL, c->link->is_ready);
}

static int exit_code(const child_t *c)
{
    int status;
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

/* ---- both kinds of memory, many batches ---- */
enum { ROUNDS = BT_TSAN || BT_ASAN ? 40 : 200, PAGE = 16384, PAGES = 64 };

static void receive_rounds(rig_t *rig, rig_link_t *link)
{
    bt_kv_mem_t *dst = rig_pool(rig, MIB);
    rig_say(link, dst->id);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        RIG_UNTIL(rig, NULL, link->note_count >= i);
        for (size_t at = 0; at < MIB; at++) {
            size_t page = PAGES - 1 - at / PAGE;
            if ((uint8_t) dst->p[at] != (uint8_t) (i + page + at % PAGE))
                _exit(1);
        }
        rig_say(link, 1000 + i);
    }
    RIG_UNTIL(rig, NULL, link->said == GO_ON);
    rig_close(rig);
    _exit(0);
}

static void rounds(bool is_pool)
{
    child_t c;
    rig_batch_t batch;
    bt_kv_run_t runs[PAGES];

    spawn(&c, receive_rounds, true);
    RIG_UNTIL(&c.rig, NULL, c.link->said != 0);
    bt_kv_mem_t dst = {.id = c.link->said};
    bt_kv_mem_t *src = is_pool ? rig_pool(&c.rig, MIB) : rig_private(&c.rig, MIB);
    for (uint32_t i = 0; i < PAGES; i++)
        runs[i] = plain(src, i * PAGE, &dst, (PAGES - 1 - i) * PAGE, PAGE);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        for (size_t at = 0; at < MIB; at++)
            src->p[at] = (char) (i + at / PAGE + at % PAGE);
        assert_int_equal(rig_post(c.link, &batch, 1, runs, PAGES, i), 0);
        RIG_UNTIL(&c.rig, NULL, batch.over > 0 && c.link->said == 1000 + i);
        assert_int_equal(batch.rc, 0);
    }
    rig_say(c.link, GO_ON);
    assert_int_equal(exit_code(&c), 0);
    rig_close(&c.rig);
}

static void test_pool(void **state)
{
    rounds(true);
}
static void test_private(void **state)
{
    rounds(false);
}
static void test_window(void **state)
{
    bt_shm_hooks.probe_failures = -1;
    rounds(false);
    bt_shm_hooks = (bt_shm_hooks_t){0};
}

/* ---- a receiver that ends in a copy ---- */
static int signal_in_copy;
static const bt_shm_path_t *falling;
static void raise_in_copy(void) /* of a batch: pools are faulted in by copies too */
{
    if (falling->rx.in_batch) {
        rig_hooks.in_copy = NULL;
        raise(signal_in_copy);
    }
}

static void receive_and_fall(rig_t *rig, rig_link_t *link)
{
    bt_kv_mem_t *dst = rig_pool(rig, 4 * MIB);
    rig_say(link, dst->id);
    falling = shm_path(link);
    rig_hooks.in_copy = raise_in_copy;
    RIG_UNTIL(rig, NULL, link->has_failed);
    /* Stopped, and woken when the sender had given up: */
    _exit(link->note_count == 0 ? 0 : 1);
}

static void test_receiver_killed_while_copying(void **state)
{
    child_t c;
    rig_batch_t batches[3];

    signal_in_copy = SIGKILL;
    spawn(&c, receive_and_fall, true);
    bt_kv_mem_t *src = rig_pool(&c.rig, 4 * MIB);
    RIG_UNTIL(&c.rig, NULL, c.link->said != 0);
    bt_kv_mem_t dst = {.id = c.link->said};
    bt_kv_run_t run = plain(src, 0, &dst, 0, 4 * (uint32_t) MIB);
    for (int i = 0; i < 3; i++)
        assert_int_equal(rig_post(c.link, &batches[i], 5, &run, 1, 1), 0);
    RIG_UNTIL(&c.rig, NULL, c.link->has_failed);
    assert_non_null(strstr(c.link->why, "the peer's process has ended"));
    RIG_UNTIL(&c.rig, NULL, c.rig.ops->peer_is_dead(c.link->path)); /* the socket goes first */
    assert_true(rig_drain(c.link, 5));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(batches[i].over, 1);
        assert_int_equal(batches[i].rc, BT_E_CANCELLED);
    }
    assert_int_equal(rig_post(c.link, &batches[0], 6, &run, 1, 1), BT_E_RESET);
    assert_int_equal(exit_code(&c), 100 + SIGKILL);
    rig_close(&c.rig);
}

static void test_receiver_stopped_while_copying(void **state)
{
    child_t c;
    rig_batch_t batch;
    int status;

    signal_in_copy = SIGSTOP; /* in the only slice: what follows is the note */
    spawn(&c, receive_and_fall, true);
    bt_kv_mem_t *src = rig_pool(&c.rig, 4 * MIB);
    RIG_UNTIL(&c.rig, NULL, c.link->said != 0);
    bt_kv_mem_t dst = {.id = c.link->said};
    bt_kv_run_t run = plain(src, 0, &dst, 0, BT_KV_SLICE_BYTES);
    assert_int_equal(rig_post(c.link, &batch, 5, &run, 1, 1), 0);
    assert_int_equal(waitpid(c.pid, &status, WUNTRACED), c.pid);
    assert_true(WIFSTOPPED(status));

    /* It may still read our pages: not drained, and not dead. */
    for (int i = 0; i < 100; i++) {
        rig_turn(&c.rig);
        assert_false(rig_drain(c.link, 5));
    }
    assert_false(c.rig.ops->peer_is_dead(c.link->path));
    assert_int_equal(batch.over, 0);

    /* release_ms is over: the path is closed, the pages are used again; then it goes on. */
    bt_kv_path_t *path = c.link->path;
    c.link->path = NULL;
    c.rig.ops->path_close(path);
    assert_int_equal(batch.rc, BT_E_CANCELLED);
    memset(src->p, 0x66, src->size);
    assert_int_equal(kill(c.pid, SIGCONT), 0);
    assert_int_equal(exit_code(&c), 0); /* 1: it has believed them */
    rig_close(&c.rig);
}

/* ---- a sender that ends ---- */
static void send_for_ever(rig_t *rig, rig_link_t *link)
{
    rig_batch_t batch;
    bt_kv_mem_t *src = rig_private(rig, 4 * MIB);
    RIG_UNTIL(rig, NULL, link->said != 0);
    bt_kv_mem_t dst = {.id = link->said};
    bt_kv_run_t run = plain(src, 0, &dst, 0, 4 * (uint32_t) MIB);
    for (;;) {
        assert_int_equal(rig_post(link, &batch, 1, &run, 1, 1), 0);
        RIG_UNTIL(rig, NULL, batch.over > 0);
    }
}

static void test_sender_killed_while_it_is_read(void **state)
{
    child_t c;

    spawn(&c, send_for_ever, false);
    bt_kv_mem_t *dst = rig_pool(&c.rig, 4 * MIB);
    rig_say(c.link, dst->id);
    RIG_UNTIL(&c.rig, NULL, c.link->note_count > 3);
    assert_int_equal(kill(c.pid, SIGKILL), 0);
    RIG_UNTIL(&c.rig, NULL, c.link->has_failed);
    assert_non_null(strstr(c.link->why, "the peer's process has ended"));
    assert_true(rig_drain(c.link, 1));
    assert_int_equal(exit_code(&c), 100 + SIGKILL);
    rig_close(&c.rig);
}

/* Killed when all has been read: the pid may have been somebody else's meanwhile, so there is no note. */
static child_t *victim;
static void kill_sender(void)
{
    int status;
    if (!shm_path(victim->link)->rx.in_batch)
        return;
    rig_hooks.after_copy = NULL;
    kill(victim->pid, SIGKILL);
    waitpid(victim->pid, &status, 0);
}

static void send_one(rig_t *rig, rig_link_t *link)
{
    rig_batch_t batch;
    bt_kv_mem_t *src = rig_private(rig, MIB);
    RIG_UNTIL(rig, NULL, link->said != 0);
    bt_kv_mem_t dst = {.id = link->said};
    bt_kv_run_t run = plain(src, 0, &dst, 0, 4096);
    assert_int_equal(rig_post(link, &batch, 1, &run, 1, 1), 0);
    RIG_UNTIL(rig, NULL, batch.over > 0);
}

static void test_no_note_from_a_dead_sender(void **state)
{
    child_t c;

    spawn(&c, send_one, false);
    bt_kv_mem_t *dst = rig_pool(&c.rig, MIB);
    victim = &c;
    rig_hooks.after_copy = kill_sender;
    rig_say(c.link, dst->id);
    RIG_UNTIL(&c.rig, NULL, c.link->has_failed);
    assert_null(rig_hooks.after_copy); /* it was killed there */
    assert_int_equal(c.link->note_count, 0);
    rig_close(&c.rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_private),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_receiver_killed_while_copying),
        cmocka_unit_test(test_receiver_stopped_while_copying),
        cmocka_unit_test(test_sender_killed_while_it_is_read),
        cmocka_unit_test(test_no_note_from_a_dead_sender),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
