/* The pool: who is taken, who is dropped, when, and what survives an upstream's end. */
#include "http/client_rig.h"

static void test_newest_idle_connection_is_taken(void **state)
{
    rig_call_t a = {0}, b = {0}, c = {0};

    rig_start(&a);
    int fd_a = worker_accept();
    rig_start(&b);
    int fd_b = worker_accept();
    assert_int_equal(bt_upstream_active_count(rig.up), 2);
    worker_read(fd_a, "\r\n\r\n");
    worker_read(fd_b, "\r\n\r\n");
    worker_write(fd_a, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    pump_until(a.ends == 1);
    worker_write(fd_b, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    pump_until(b.ends == 1);
    assert_int_equal(bt_upstream_active_count(rig.up), 0);
    assert_int_equal(bt_upstream_idle_count(rig.up), 2);
    assert_false(a.last.reused);

    rig_start(&c);
    assert_int_equal(bt_upstream_idle_count(rig.up), 1);
    worker_read(fd_b, "\r\n\r\n");
    worker_write(fd_b, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    pump_until(c.ends == 1);
    assert_true(c.last.reused);
    assert_false(c.last.retried);
    assert_true(nobody_waits());
    close(fd_a);
    close(fd_b);
    rig_drop(&a);
    rig_drop(&b);
    rig_drop(&c);
}

static void test_idle_connection_goes_when_the_worker_speaks_or_leaves(void **state)
{
    int fd = rig_exchange(-1);
    close(fd);
    pump_until(bt_upstream_idle_count(rig.up) == 0);
    fd = rig_exchange(-1);
    worker_reset(fd);
    pump_until(bt_upstream_idle_count(rig.up) == 0);
    fd = rig_exchange(-1);
    worker_write(fd, "H");
    pump_until(bt_upstream_idle_count(rig.up) == 0);
    pump_until(client_has_left(fd));
    close(fd);
}

static void test_idle_timeout(void **state)
{
    rig_use(&(bt_upstream_config_t){.idle_timeout_ms = 60, .idle_max = 4});
    int fd = rig_exchange(-1);
    uint64_t since_us = bt_clock_us();
    assert_int_equal(bt_upstream_idle_count(rig.up), 1);
    pump_until(client_has_left(fd));
    assert_true(bt_clock_us() - since_us >= 50000);
    assert_int_equal(bt_upstream_idle_count(rig.up), 0);
    close(fd);
}

static void test_idle_max_closes_the_oldest(void **state)
{
    rig_call_t calls[3] = {{0}};
    int fds[3];

    rig_use(&(bt_upstream_config_t){.idle_max = 2});
    for (int i = 0; i < 3; i++) {
        rig_start(&calls[i]);
        fds[i] = worker_accept();
        worker_read(fds[i], "\r\n\r\n");
    }
    for (int i = 0; i < 3; i++) {
        worker_write(fds[i], "HTTP/1.1 204 No Content\r\n\r\n");
        pump_until(calls[i].ends == 1);
        rig_drop(&calls[i]);
    }
    assert_int_equal(bt_upstream_idle_count(rig.up), 2);
    pump_until(client_has_left(fds[0]));
    assert_false(client_has_left(fds[1]));
    for (int i = 0; i < 3; i++)
        close(fds[i]);
}

static void test_no_keep_alive(void **state)
{
    rig_use(&(bt_upstream_config_t){.idle_max = 0});
    int fd = rig_exchange(-1);
    assert_int_equal(bt_upstream_idle_count(rig.up), 0);
    pump_until(client_has_left(fd));
    close(fd);
}

static void test_new_address(void **state)
{
    struct sockaddr_in elsewhere;
    int other = rig_listen(&elsewhere, 4), own = rig.listener;
    rig_call_t c = {0};

    int idle = rig_exchange(-1);
    rig_start(&c); /* takes the idle one: it stays with its call */
    int busy = idle;
    bt_upstream_set_addr(rig.up, (struct sockaddr *) &rig.addr); /* the same: nothing happens */
    idle = -1;
    bt_upstream_set_addr(rig.up, (struct sockaddr *) &elsewhere);
    worker_read(busy, "\r\n\r\n");
    worker_write(busy, "HTTP/1.1 204 No Content\r\n\r\n");
    pump_until(c.ends == 1);
    assert_int_equal(bt_upstream_idle_count(rig.up), 0);
    pump_until(client_has_left(busy));
    close(busy);

    rig.listener = other;
    idle = rig_exchange(-1);
    assert_int_equal(bt_upstream_idle_count(rig.up), 1);
    bt_upstream_set_addr(rig.up, (struct sockaddr *) &elsewhere);
    assert_int_equal(bt_upstream_idle_count(rig.up), 1);
    bt_upstream_set_addr(rig.up, (struct sockaddr *) &rig.addr);
    assert_int_equal(bt_upstream_idle_count(rig.up), 0);
    pump_until(client_has_left(idle));
    close(idle);
    close(other);
    rig.listener = own;
    rig_drop(&c);
}

static void test_free_waits_for_the_last_call(void **state)
{
    rig_call_t c = {0};

    int idle = rig_exchange(-1);
    int busy = idle;
    rig_start(&c);
    bt_upstream_free(rig.up);
    rig.up = NULL;
    worker_read(busy, "\r\n\r\n");
    worker_write(busy, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    pump_until(c.ends == 1);
    assert_int_equal(c.body_len, 2);
    pump_until(client_has_left(busy)); /* not parked */
    close(busy);
    rig_drop(&c);
}

static void test_free_closes_idle_ones(void **state)
{
    int fd = rig_exchange(-1);
    bt_upstream_free(rig.up);
    rig.up = NULL;
    pump_until(client_has_left(fd));
    close(fd);
}

static void test_unusable_address_is_refused(void **state)
{
    struct sockaddr_storage addr = {.ss_family = AF_UNIX};
    bt_upstream_t *up;

    assert_int_equal(bt_upstream_new(&up, &rig.loop, (struct sockaddr *) &addr, NULL), BT_E_INVAL);
}

#define SPEC(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SPEC(test_newest_idle_connection_is_taken),
        SPEC(test_idle_connection_goes_when_the_worker_speaks_or_leaves),
        SPEC(test_idle_timeout),
        SPEC(test_idle_max_closes_the_oldest),
        SPEC(test_no_keep_alive),
        SPEC(test_new_address),
        SPEC(test_free_waits_for_the_last_call),
        SPEC(test_free_closes_idle_ones),
        SPEC(test_unusable_address_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
