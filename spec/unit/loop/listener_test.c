/* Listeners: a taken port is found, sockets spread over the loops, draining loses nobody, running out of descriptors. */
#include "base/err.h"
#include "loop/listener.h"

#include "util.h"

#include <pthread.h>
#include <sys/resource.h>

#define LOOPS 4
#define CLIENTS 200

static int dial_port(unsigned port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t) port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *) &addr, sizeof(addr)) == 0)
        return fd;
    close(fd);
    return -1;
}

/* ---- ports ---- */

/* Stands for another program: its descriptor has a number that no listener of ours ever had. */
static int foreign_socket(int family)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 500);

    assert_true(high >= 500);
    close(fd);
    return high;
}

static int foreign_listener(unsigned *port_p, bool reuse_port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET};
    socklen_t len = sizeof(addr);
    int on = 1, fd = foreign_socket(AF_INET);

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (reuse_port)
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
    assert_int_equal(bind(fd, (struct sockaddr *) &addr, sizeof(addr)), 0);
    assert_int_equal(listen(fd, 8), 0);
    getsockname(fd, (struct sockaddr *) &addr, &len);
    *port_p = ntohs(addr.sin_port);
    return fd;
}

static void test_port_taken(void **state)
{
    for (int reuse = 0; reuse < 2; reuse++) {
        unsigned port, bound = 7;
        int foreign = foreign_listener(&port, reuse == 1);
        assert_int_equal(bt_listener_bind("127.0.0.1", port, true, &bound), UV_EADDRINUSE);
        assert_int_equal(bt_listener_bind("127.0.0.1", port, false, &bound), UV_EADDRINUSE);
        assert_int_equal(bound, 7);
        close(foreign);
        int fd = bt_listener_bind("127.0.0.1", port, true, &bound);
        assert_true(fd >= 0);
        assert_int_equal(bound, port);
        close(fd);
    }
}

static void test_loops_share_a_port(void **state)
{
    unsigned port, again;
    int fds[LOOPS];

    fds[0] = bt_listener_bind("127.0.0.1", 0, true, &port);
    assert_true(fds[0] >= 0);
    assert_true(port > 0);
    for (int i = 1; i < LOOPS; i++) {
        fds[i] = bt_listener_bind("127.0.0.1", port, true, &again);
        assert_true(fds[i] >= 0);
        assert_int_equal(again, port);
    }
    assert_int_equal(bt_listener_bind("127.0.0.1", port, false, NULL), UV_EADDRINUSE);
    for (int i = 0; i < LOOPS; i++)
        close(fds[i]);
}

/* Our old descriptor number now belongs to a connection with the same local address: still not our listener. */
static void test_stale_memory_of_own_sockets(void **state)
{
    unsigned port;
    int fd = bt_listener_bind("127.0.0.1", 0, true, &port);
    int on = 1;

    int foreign = foreign_socket(AF_INET);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t) port)};
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(foreign, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
    setsockopt(foreign, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    assert_int_equal(bind(foreign, (struct sockaddr *) &addr, sizeof(addr)), 0);
    close(fd);
    assert_int_equal(listen(foreign, 8), 0);
    int client = dial_port(port);
    int accepted = accept(foreign, NULL, NULL);
    assert_int_equal(dup2(accepted, fd), fd);
    assert_int_equal(bt_listener_bind("127.0.0.1", port, true, NULL), UV_EADDRINUSE);
    close(fd);
    close(accepted);
    close(client);
    close(foreign);
}

static void test_names_and_families(void **state)
{
    unsigned port;
    int fd = bt_listener_bind("localhost", 0, true, &port);

    assert_true(fd >= 0);
    int client = dial_port(port);
    assert_true(client >= 0); /* "localhost" is 127.0.0.1 where there is a choice */
    close(client);
    close(fd);
    struct sockaddr_storage addr;
    int raw = raw_listen(AF_INET6, &addr);
    if (raw < 0)
        return; /* no IPv6 on this host */
    close(raw);
    fd = bt_listener_bind("::1", 0, true, &port);
    assert_true(fd >= 0);
    int second = bt_listener_bind("::1", port, true, NULL);
    assert_true(second >= 0);
    close(second);
    close(fd);
    assert_true(bt_listener_bind("127.0.0.1", 70000, true, &port) < 0);
}

/* ---- spreading ---- */

struct node {
    bt_loop_t loop;         /* first: on_accept gets it back */
    pthread_t thread, self; /* for join; as the thread itself says */
    bt_listener_t *listener;
    _Atomic unsigned accepted;
    _Atomic unsigned strangers; /* callbacks on a thread that is not the loop's */
    int fds[CLIENTS];
    bt_mail_t close_mail;
};

static struct node nodes[LOOPS];
static bt_loop_t *node_loops[LOOPS];
static const bt_loop_group_t group = {node_loops, LOOPS};

static void on_node_accept(bt_loop_t *loop, int fd, void *user)
{
    struct node *node = bt_container_of(loop, struct node, loop);

    assert_ptr_equal(user, nodes);
    if (!pthread_equal(node->self, pthread_self()))
        atomic_fetch_add(&node->strangers, 1);
    node->fds[atomic_load(&node->accepted)] = fd;
    atomic_fetch_add(&node->accepted, 1);
}

static void on_close_mail(bt_loop_t *loop, bt_mail_t *envelope)
{
    (void) loop;
    bt_listener_close(bt_container_of(envelope, struct node, close_mail)->listener);
}

static void *run_node(void *arg)
{
    struct node *node = arg;

    node->self = pthread_self();
    bt_loop_run(&node->loop);
    return NULL;
}

static unsigned accepted_total(void)
{
    unsigned total = 0;

    for (int i = 0; i < LOOPS; i++)
        total += atomic_load(&nodes[i].accepted);
    return total;
}

static void start_nodes(unsigned listeners, unsigned *port_p)
{
    unsigned port = 0;

    for (unsigned i = 0; i < LOOPS; i++) {
        memset(&nodes[i], 0, sizeof(nodes[i]));
        assert_int_equal(bt_loop_init(&nodes[i].loop, i), 0);
        node_loops[i] = &nodes[i].loop;
    }
    for (unsigned i = 0; i < listeners; i++) {
        int fd = bt_listener_bind("127.0.0.1", port, true, &port);
        assert_true(fd >= 0);
        assert_int_equal(bt_listener_start(&nodes[i].listener, &nodes[i].loop, fd, &group,
                                           on_node_accept, nodes),
                         0);
    }
    for (unsigned i = 0; i < LOOPS; i++)
        assert_int_equal(pthread_create(&nodes[i].thread, NULL, run_node, &nodes[i]), 0);
    *port_p = port;
}

static void stop_nodes(unsigned listeners)
{
    for (unsigned i = 0; i < listeners; i++)
        bt_loop_post(&nodes[i].loop, &nodes[i].close_mail, on_close_mail);
    for (unsigned i = 0; i < LOOPS; i++) {
        bt_loop_stop(&nodes[i].loop);
        pthread_join(nodes[i].thread, NULL);
    }
    for (unsigned i = 0; i < LOOPS; i++) {
        for (unsigned k = 0; k < atomic_load(&nodes[i].accepted); k++)
            close(nodes[i].fds[k]);
        bt_loop_fini(&nodes[i].loop);
    }
}

static void connect_all(unsigned port, int *clients)
{
    for (unsigned i = 0; i < CLIENTS; i++) {
        clients[i] = dial_port(port);
        assert_true(clients[i] >= 0);
    }
    STEP_UNTIL(accepted_total() >= CLIENTS, sched_yield());
}

/* Nobody closes, so the counters only rise, and the bound holds at the end. */
static void assert_spread(void)
{
    unsigned total = 0;

    for (unsigned i = 0; i < LOOPS; i++) {
        unsigned held = atomic_load(&nodes[i].loop.connections);
        assert_int_equal(held, atomic_load(&nodes[i].accepted));
        assert_int_equal(atomic_load(&nodes[i].strangers), 0);
        assert_true(held * 4 * LOOPS <= 5 * CLIENTS + 32 * LOOPS + 4 * LOOPS * LOOPS);
        total += held;
    }
    assert_int_equal(total, CLIENTS);
}

/* The worst case: all connections arrive at one loop. */
static void test_one_listener_hands_over(void **state)
{
    int clients[CLIENTS];
    unsigned port;

    start_nodes(1, &port);
    connect_all(port, clients);
    assert_spread();
    for (unsigned i = 1; i < LOOPS; i++)
        assert_true(atomic_load(&nodes[i].accepted) > 20);
    stop_nodes(1);
    for (unsigned i = 0; i < CLIENTS; i++)
        close(clients[i]);
}

static void test_four_listeners_spread(void **state)
{
    int clients[CLIENTS];
    unsigned port;

    start_nodes(LOOPS, &port);
    connect_all(port, clients);
    assert_spread();
    stop_nodes(LOOPS);
    for (unsigned i = 0; i < CLIENTS; i++)
        close(clients[i]);
}

/* ---- one loop, no threads ---- */

static struct node solo;
static bool close_on_accept;

static void on_solo_accept(bt_loop_t *loop, int fd, void *user)
{
    (void) user;
    atomic_fetch_sub(&loop->connections, 1);
    solo.accepted++;
    close(fd);
    if (close_on_accept)
        bt_listener_close(solo.listener);
}

static unsigned start_solo(void)
{
    unsigned port = 0;

    memset(&solo, 0, sizeof(solo));
    close_on_accept = false;
    assert_int_equal(bt_loop_init(&solo.loop, 0), 0);
    int fd = bt_listener_bind("127.0.0.1", 0, false, &port);
    assert_true(fd >= 0);
    assert_int_equal(bt_listener_start(&solo.listener, &solo.loop, fd, NULL, on_solo_accept, NULL),
                     0);
    return port;
}

static void test_drain_accepts_what_is_waiting(void **state)
{
    unsigned port = start_solo();
    int clients[100];

    for (int i = 0; i < 100; i++)
        clients[i] = dial_port(port);
    assert_int_equal(solo.accepted, 0); /* the loop has not run: they wait in the backlog */
    bt_listener_close(solo.listener);
    assert_int_equal(solo.accepted, 100);
    assert_int_equal(dial_port(port), -1);
    for (int i = 0; i < 100; i++)
        close(clients[i]);
    bt_loop_fini(&solo.loop);
    assert_int_equal(atomic_load(&solo.loop.connections), 0);
}

static void test_a_turn_accepts_a_bounded_number(void **state)
{
    unsigned port = start_solo();
    int clients[100];

    for (int i = 0; i < 100; i++)
        clients[i] = dial_port(port);
    uv_run(&solo.loop.uv, UV_RUN_ONCE);
    assert_true(solo.accepted > 0 && solo.accepted < 100);
    TURN_UNTIL(&solo.loop, solo.accepted == 100);
    for (int i = 0; i < 100; i++)
        close(clients[i]);
    bt_listener_close(solo.listener);
    bt_loop_fini(&solo.loop);
}

static void test_close_from_on_accept(void **state)
{
    unsigned port = start_solo();
    int clients[3];

    for (int i = 0; i < 3; i++)
        clients[i] = dial_port(port);
    close_on_accept = true;
    TURN_UNTIL(&solo.loop, solo.accepted == 3);
    turn(&solo.loop, 2);
    assert_int_equal(dial_port(port), -1);
    for (int i = 0; i < 3; i++)
        close(clients[i]);
    bt_loop_fini(&solo.loop);
}

static void test_out_of_descriptors(void **state)
{
    unsigned port = start_solo();
    struct rlimit old, tight;
    char byte;

    turn(&solo.loop, 1);
    int first = dial_port(port);
    int probe = dup(first); /* the lowest free descriptor */
    assert_true(probe >= 0);
    close(probe);
    getrlimit(RLIMIT_NOFILE, &old);
    tight = old;
    tight.rlim_cur = (rlim_t) probe;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    assert_int_equal(dup(first), -1);
    SPIN_UNTIL(&solo.loop, wait_readable(first, 0));
    assert_true(recv(first, &byte, 1, 0) <= 0); /* shed, and told so */
    assert_int_equal(solo.accepted, 0);
    setrlimit(RLIMIT_NOFILE, &old);
    int second = dial_port(port);
    TURN_UNTIL(&solo.loop, solo.accepted == 1);
    close(first);
    close(second);
    bt_listener_close(solo.listener);
    bt_loop_fini(&solo.loop);
}

static int full_answer; /* of the next on_full */
static unsigned full_count;
static int spare;

/* What somebody frees is `spare`. */
static int on_full(bt_loop_t *loop, void *user)
{
    assert_ptr_equal(loop, &solo.loop);
    assert_ptr_equal(user, &solo);
    full_count++;
    if (full_answer == 0)
        close(spare);
    return full_answer;
}

static void test_a_descriptor_is_freed_for_one_that_waits(void **state)
{
    unsigned port = start_solo();
    struct rlimit old, tight;

    bt_listener_on_full(solo.listener, on_full, &solo);
    turn(&solo.loop, 1);
    int first = dial_port(port), second = dial_port(port);
    spare = dup(first);
    int next = dup(first); /* the lowest free descriptor */
    close(next);
    getrlimit(RLIMIT_NOFILE, &old);
    tight = old;
    tight.rlim_cur = (rlim_t) next;
    setrlimit(RLIMIT_NOFILE, &tight);
    full_count = 0;
    full_answer = BT_E_AGAIN; /* another loop was asked: both wait, nobody is shed */
    SPIN_UNTIL(&solo.loop, full_count == 1);
    assert_int_equal(solo.accepted, 0);
    assert_false(wait_readable(first, 0) || wait_readable(second, 0));
    full_answer = 0;
    TURN_UNTIL(&solo.loop,
               solo.accepted == 2); /* on_solo_accept closes: the second finds it free */
    assert_int_equal(full_count, 2);
    setrlimit(RLIMIT_NOFILE, &old);
    close(first);
    close(second);
    bt_listener_close(solo.listener);
    bt_loop_fini(&solo.loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_port_taken),
        cmocka_unit_test(test_loops_share_a_port),
        cmocka_unit_test(test_stale_memory_of_own_sockets),
        cmocka_unit_test(test_names_and_families),
        cmocka_unit_test(test_one_listener_hands_over),
        cmocka_unit_test(test_four_listeners_spread),
        cmocka_unit_test(test_drain_accepts_what_is_waiting),
        cmocka_unit_test(test_a_turn_accepts_a_bounded_number),
        cmocka_unit_test(test_close_from_on_accept),
        cmocka_unit_test(test_out_of_descriptors),
        cmocka_unit_test(test_a_descriptor_is_freed_for_one_that_waits),
    };
    alarm(55);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
