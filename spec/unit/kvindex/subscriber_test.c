/* Real sockets: publishers that come late, lose batches, say them again or cannot, die and come back. */
#include "kvindex/subscriber.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "kvindex/payload.h"
#include "kvindex/query.h"
#include "unit.h"
#include "zmq/publisher.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#define DEADLINE_MS 20000
#define PROMPT 64u

static bt_kv_index_t *index_;
static bt_kv_subscriber_t *subscriber;
static bt_kv_query_t *query;
static bt_zmq_publisher_t *publisher;
static unsigned port, replay_port;
static _Atomic uint32_t first_part;
static _Atomic unsigned part_count, gone;

static void on_parts(void *user, uint32_t first, unsigned count)
{
    (void) user;
    atomic_store(&first_part, first);
    atomic_store(&part_count, count);
}

static void on_gone(void *user)
{
    (void) user;
    atomic_fetch_add(&gone, 1);
}

/* Two that follow each other, free a moment ago. */
static unsigned free_ports(void)
{
    for (;;) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t n = sizeof(a);
        const int one = socket(AF_INET, SOCK_STREAM, 0), two = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(bind(one, (struct sockaddr *) &a, n), 0);
        assert_int_equal(getsockname(one, (struct sockaddr *) &a, &n), 0);
        const unsigned found = ntohs(a.sin_port);
        a.sin_port = htons((uint16_t) (found + 1));
        const int rc = found < 65535 ? bind(two, (struct sockaddr *) &a, n) : -1;
        close(one);
        close(two);
        if (rc == 0)
            return found;
    }
}

static void publish_with(unsigned kept, bool is_old)
{
    const bt_zmq_publisher_config_t config = {
        .port = port, .replay_port = kept > 0 ? replay_port : 0, .kept = kept, .is_old = is_old};

    assert_int_equal(bt_zmq_publisher_new(&publisher, &config), 0);
}

static void add(bool has_replay)
{
    char events[64], replay[64];

    snprintf(events, sizeof(events), "tcp://127.0.0.1:%u", port);
    snprintf(replay, sizeof(replay), "tcp://127.0.0.1:%u", replay_port);
    assert_int_equal(
        bt_kv_subscriber_add(subscriber, &(bt_kv_source_t){.user = &port,
                                                           .name = "w0",
                                                           .events = events,
                                                           .replay = has_replay ? replay : NULL}),
        0);
}

static void begin(const char *snapshot, unsigned snapshot_ms)
{
    atomic_store(&gone, 0);
    atomic_store(&first_part, 0);
    assert_int_equal(bt_kv_index_new(&index_, &(bt_kv_index_config_t){0}), 0);
    assert_int_equal(bt_kv_query_new(&query, index_), 0);
    const bt_kv_subscriber_config_t config = {.index = index_,
                                              .snapshot = snapshot,
                                              .snapshot_ms = snapshot_ms,
                                              .on_parts = on_parts,
                                              .on_gone = on_gone};
    assert_int_equal(bt_kv_subscriber_new(&subscriber, &config), 0);
}

static void finish(void)
{
    assert_true(bt_kv_subscriber_close(subscriber, DEADLINE_MS));
    assert_int_equal(atomic_load(&gone), 1);
    assert_int_equal(atomic_load(&first_part), 0);
    bt_kv_query_free(query);
    bt_kv_index_free(index_);
}

static int setup(void **state)
{
    port = free_ports();
    replay_port = port + 1;
    begin(NULL, 0);
    return 0;
}

static int teardown(void **state)
{
    finish();
    bt_zmq_publisher_free(publisher);
    publisher = NULL;
    return 0;
}

static char folder[64], path[96];

static int setup_with_snapshot(void **state)
{
    snprintf(folder, sizeof(folder), "/tmp/kv-subscriber-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/index", folder);
    port = free_ports();
    replay_port = port + 1;
    begin(path, 0);
    return 0;
}

static int teardown_with_snapshot(void **state)
{
    (void) teardown(state);
    (void) unlink(path);
    return rmdir(folder);
}

static void store(unsigned block, bool is_lost)
{
    char bytes[64];

    assert_int_equal(bt_zmq_publish(publisher, payload_stored(block, bytes), is_lost), 0);
}

static unsigned read_tokens(void *user, unsigned wanted, const uint32_t **tokens_p)
{
    static uint32_t tokens[PROMPT];

    (void) user;
    for (unsigned i = 0; i < PROMPT; i++)
        tokens[i] = i;
    *tokens_p = tokens;
    return wanted < PROMPT ? wanted : PROMPT;
}

static unsigned hit(void)
{
    (void) bt_kv_query_find(query, &(bt_kv_prompt_t){read_tokens, NULL, 0});
    return bt_kv_query_hit(query, atomic_load(&first_part)).blocks;
}

static bool is_live(void)
{
    return bt_kv_part_is_live(index_, atomic_load(&first_part));
}

/* Beside that, questions are answered. */
#define UNTIL(condition)                                                                           \
    do {                                                                                           \
        const uint64_t end_ms = bt_clock_ms() + DEADLINE_MS;                                       \
        while (!(condition)) {                                                                     \
            assert_true(bt_clock_ms() < end_ms);                                                   \
            if (publisher != NULL)                                                                 \
                bt_zmq_publisher_serve(publisher);                                                 \
            usleep(1000);                                                                          \
        }                                                                                          \
    } while (0)

static void test_late_joiner(void **state)
{
    publish_with(100, false);
    for (unsigned i = 0; i < 5; i++)
        store(i, false); /* nobody is there yet */
    add(true);
    UNTIL(is_live());
    assert_int_equal(hit(), 5);
    store(5, false);
    UNTIL(hit() == 6);
    assert_int_equal(bt_kv_subscriber_remove(subscriber, &port), 0);
    UNTIL(atomic_load(&gone) == 1);
    assert_int_equal(hit(), 0);
}

static void gap_is_healed(bool is_old)
{
    publish_with(100, is_old);
    add(true);
    UNTIL(is_live());
    store(0, false);
    UNTIL(hit() == 1);
    for (unsigned i = 1; i < 4; i++)
        store(i, true);
    store(4, false);
    UNTIL(hit() == 5);
}

static void test_gap_is_healed(void **state)
{
    gap_is_healed(false);
}

static void test_gap_is_healed_in_the_old_shape(void **state)
{
    gap_is_healed(true);
}

static void test_gap_without_replay(void **state)
{
    bt_kv_subscriber_stats_t stats;

    publish_with(0, false);
    add(false);
    UNTIL(is_live());
    store(0, false);
    UNTIL(hit() == 1);
    store(1, true);
    store(2, false);
    UNTIL(hit() == 0);
    UNTIL((bt_kv_subscriber_stats(subscriber, &stats), stats.follow.losses[BT_KV_LOSS_GAP] == 1));
    assert_int_equal(stats.sources, 1);
    assert_int_equal(stats.live, 1);
}

static void test_engine_restarts(void **state)
{
    publish_with(100, false);
    add(true);
    UNTIL(is_live());
    for (unsigned i = 0; i < 3; i++)
        store(i, false);
    UNTIL(hit() == 3);
    bt_zmq_publisher_free(publisher);
    publisher = NULL;
    UNTIL(!is_live());
    assert_int_equal(hit(), 0);
    publish_with(100, false);
    store(0, false);
    UNTIL(is_live() && hit() == 1);
}

/* Nobody is there, for good: the end comes all the same. */
static void test_nobody_is_there(void **state)
{
    add(true);
    UNTIL(atomic_load(&part_count) == 1);
    assert_false(is_live());
}

/* The engine says only its last two batches again: whoever comes anew without a snapshot knows nothing of those before. */
static void fill_with_two_kept(void)
{
    publish_with(2, false);
    add(true);
    UNTIL(is_live());
    for (unsigned i = 0; i < 5; i++)
        store(i, false);
    UNTIL(hit() == 5);
}

static void test_snapshot(void **state)
{
    fill_with_two_kept();
    finish();
    store(5, false); /* while nobody is there */
    begin(path, 0);
    add(true);
    UNTIL(is_live());
    assert_int_equal(hit(), 6);
    store(6, false);
    UNTIL(hit() == 7);
}

static void test_snapshot_of_an_engine_that_is_gone(void **state)
{
    bt_kv_subscriber_stats_t stats;

    fill_with_two_kept();
    finish();
    bt_zmq_publisher_free(publisher);
    publish_with(100, false);
    for (unsigned i = 0; i < 5; i++)
        store(i == 4 ? 0 : i, false); /* as many batches; another last one */
    begin(path, 0);
    add(true);
    UNTIL(is_live());
    assert_int_equal(hit(), 4);
    UNTIL((bt_kv_subscriber_stats(subscriber, &stats),
           stats.follow.losses[BT_KV_LOSS_SNAPSHOT] == 1));
}

/* Now and then, and when asked: without an end. */
static void test_snapshot_while_it_goes_on(void **state)
{
    fill_with_two_kept();
    assert_int_not_equal(access(path, F_OK), 0);
    bt_kv_subscriber_save(subscriber);
    UNTIL(access(path, F_OK) == 0);
    assert_int_equal(unlink(path), 0);
    finish();
    assert_int_equal(access(path, F_OK), 0);
    begin(path, 20);
    add(true);
    UNTIL(is_live());
    assert_int_equal(unlink(path), 0);
    UNTIL(access(path, F_OK) == 0);
}

/* Nobody waits for the end to hear that nothing will be there. */
static void test_snapshot_that_cannot_be_written_is_told_at_the_start(void **state)
{
    char nowhere[128], text[512] = "";
    int log[2];

    add(false);
    finish();
    snprintf(nowhere, sizeof(nowhere), "%s/none/index", folder);
    assert_int_equal(pipe(log), 0);
    bt_log_set(BT_LOG_ERROR, false, log[1]);
    begin(nowhere, 0);
    add(false);
    assert_int_equal(poll(&(struct pollfd){.fd = log[0], .events = POLLIN}, 1, DEADLINE_MS), 1);
    assert_true(read(log[0], text, sizeof(text) - 1) > 0);
    assert_non_null(strstr(text, nowhere));
    assert_non_null(strstr(text, "its directory must be there"));
    finish();
    bt_log_set(BT_LOG_ERROR, false, STDERR_FILENO);
    close(log[0]);
    close(log[1]);
    begin(path, 0);
    add(false);
}

/* A pipe that nobody reads is a disk that takes nothing. */
static void test_end_on_a_disk_that_hangs(void **state)
{
    char beside[128];
    int disk;

    fill_with_two_kept();
    snprintf(beside, sizeof(beside), "%s.%ld", path, (long) getpid());
    assert_int_equal(mkfifo(beside, 0600), 0);
    assert_false(bt_kv_subscriber_close(subscriber, 100));
    disk = open(beside, O_RDONLY | O_NONBLOCK);
    assert_true(disk >= 0);
    finish();
    close(disk);
    assert_int_equal(unlink(path), 0);
    begin(path, 0);
    add(false);
}

int main(void)
{
#define S(name)                                                                                    \
    cmocka_unit_test_setup_teardown(test_##name, setup_with_snapshot, teardown_with_snapshot)
#define T(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)
    const struct CMUnitTest tests[] = {T(late_joiner),
                                       T(gap_is_healed),
                                       T(gap_is_healed_in_the_old_shape),
                                       T(gap_without_replay),
                                       T(engine_restarts),
                                       T(nobody_is_there),
                                       S(snapshot),
                                       S(snapshot_of_an_engine_that_is_gone),
                                       S(snapshot_while_it_goes_on),
                                       S(snapshot_that_cannot_be_written_is_told_at_the_start),
                                       S(end_on_a_disk_that_hangs)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
