/* Engines of our own making register over real ZeroMQ: whose word is taken, who is refused and how often that is told, and what
 * becomes of those that fall silent. */
#include "cluster/help.h"
#include "loop/util.h"
#include "transfer/registration.h"
#include "zmq/sender.h"

#include <limits.h>
#include <stdio.h>

static bt_loop_t loop;
static bt_registry_t *registry;
static bt_registration_t *registration;
static unsigned ports[BT_REGISTRATION_KINDS];
static bt_zmq_sender_t *senders[BT_REGISTRATION_KINDS];
static bool is_closed;
static FILE *said;

static void on_publish(void *user, bt_workers_t *workers)
{
    (void) user;
    if (registration != NULL)
        bt_registration_set_workers(registration, workers);
}

static void on_closed(void *user)
{
    (void) user;
    is_closed = true;
}

/* p0 on port 8001 and d0 on 8002 of this host, with this connector. */
static void open_rig(const char *connector, const bt_registration_config_t *more)
{
    bt_registration_config_t config = {.host = "127.0.0.1", .ports = {0, 0}, .change_ms = 1};
    bt_worker_spec_t specs[2];
    const bt_worker_spec_t *list[1] = {specs};
    unsigned counts[1] = {2};
    bt_pool_spec_t pool;
    char err[256] = "", endpoint[64];

    if (more != NULL) {
        config.takes_new = more->takes_new;
        config.new_has_tls = more->new_has_tls;
        config.change_ms = more->change_ms > 0 ? more->change_ms : 1;
        memcpy(config.expiry_ms, more->expiry_ms, sizeof config.expiry_ms);
    }
    said = tmpfile();
    bt_log_set(BT_LOG_INFO, false, fileno(said));
    alarm(50);
    assert_int_equal(bt_loop_init(&loop, BT_LOOP_CONTROL), 0);
    bt_pool_spec_init(&pool);
    pool.name = text("default");
    make_spec(&specs[0], BT_ROLE_PREFILL, "http://127.0.0.1:8001", connector);
    make_spec(&specs[1], BT_ROLE_DECODE, "http://localhost:8002", connector);
    assert_int_equal(bt_registry_new(&registry, NULL, on_publish, NULL), 0);
    assert_int_equal(bt_registry_apply(registry, &pool, 1, list, counts, err, sizeof err), 0);
    assert_int_equal(bt_registration_open(&registration, &loop, &config, ports, err, sizeof err),
                     0);
    assert_int_equal(bt_registration_start(registration, registry), 0);
    bt_registration_set_workers(registration, bt_registry_current(registry));
    for (unsigned i = 0; i < BT_REGISTRATION_KINDS; i++) {
        snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", ports[i]);
        assert_int_equal(bt_zmq_sender_new(&senders[i], BT_ZMQ_DEALER, endpoint, BT_STR("")), 0);
    }
    bt_pool_spec_fini(&pool);
    bt_worker_spec_fini(&specs[0]);
    bt_worker_spec_fini(&specs[1]);
    is_closed = false;
}

static void close_rig(void)
{
    for (unsigned i = 0; i < BT_REGISTRATION_KINDS; i++)
        bt_zmq_sender_free(senders[i]);
    bt_registration_close(registration, on_closed, NULL);
    TURN_UNTIL(&loop, is_closed);
    registration = NULL;
    bt_registry_free(registry);
    bt_loop_fini(&loop);
    bt_log_set(BT_LOG_ERROR, false, 2);
    fclose(said);
}

static unsigned times_said(const char *part)
{
    static char all[65536];
    unsigned times = 0;

    rewind(said);
    all[fread(all, 1, sizeof all - 1, said)] = '\0';
    for (const char *at = all; (at = strstr(at, part)) != NULL; at++)
        times++;
    return times;
}

static char *put(char *at, const char *word)
{
    *at++ = '\xd9';
    *at++ = (char) strlen(word);
    memcpy(at, word, strlen(word));
    return at + strlen(word);
}

static void send_bytes(enum bt_registration_kind kind, bt_str_t frame)
{
    STEP_UNTIL(bt_zmq_sender_send(senders[kind], &frame, 1) == 0, turn_once(&loop));
}

static void register_p2p(const char *type, const char *http, const char *kv)
{
    char bytes[400] = "\x83", *at = bytes + 1;

    at = put(put(at, "type"), type);
    at = put(put(at, "http_address"), http);
    at = put(put(at, "zmq_address"), kv);
    send_bytes(BT_REGISTRATION_P2P_NCCL, (bt_str_t){bytes, (size_t) (at - bytes)});
}

static void register_moriio(const char *type, const char *http, const char *mode)
{
    char bytes[400] = "\x86", *at = bytes + 1;

    at = put(put(at, "type"), type);
    at = put(put(at, "http_address"), http);
    at = put(put(at, "zmq_address"), "host:10.0.0.1,handshake:6301,notify:61005");
    at = put(at, "dp_size");
    *at++ = 2;
    at = put(at, "tp_size");
    *at++ = 4;
    at = put(put(at, "transfer_mode"), mode);
    send_bytes(BT_REGISTRATION_MORIIO, (bt_str_t){bytes, (size_t) (at - bytes)});
}

/* The next millisecond: words may change again. */
static void wait_for_the_clock(void)
{
    const uint64_t now_ms = bt_clock_ms();

    TURN_UNTIL(&loop, bt_clock_ms() > now_ms);
}

static bt_worker_t *worker(const char *name)
{
    return bt_workers_find(bt_registry_current(registry), bt_str(name));
}

static uint64_t count(enum bt_registration_result result)
{
    return bt_registration_count(registration, result);
}

/* ---- words that are taken ---- */

static void a_word_is_taken_and_refreshed(void **state)
{
    open_rig("P2pNcclConnector", NULL);
    assert_false(atomic_load(&worker("p0")->is_registered));
    register_p2p("P", "127.0.0.1:8001", "10.0.0.1:14579");
    TURN_UNTIL(&loop, atomic_load(&worker("p0")->is_registered));
    bt_worker_t *first = worker("p0");
    assert_string_equal(first->kv_address, "10.0.0.1:14579");
    assert_false(atomic_load(&worker("d0")->is_registered));
    register_p2p("P", "127.0.0.1:8001", "10.0.0.1:14579");
    TURN_UNTIL(&loop, count(BT_REGISTRATION_TAKEN) == 2);
    assert_ptr_equal(worker("p0"), first);
    wait_for_the_clock();
    register_p2p("P", "127.0.0.1:8001", "10.0.0.1:14580"); /* restarted, on another port */
    TURN_UNTIL(&loop, count(BT_REGISTRATION_TAKEN) == 3);
    assert_ptr_not_equal(worker("p0"), first);
    assert_string_equal(worker("p0")->kv_address, "10.0.0.1:14580");
    assert_true(atomic_load(&worker("p0")->is_registered));
    register_p2p("D", "127.0.0.1:8002", "10.0.0.2:14579"); /* whose url has a name */
    TURN_UNTIL(&loop, atomic_load(&worker("d0")->is_registered));
    close_rig();
}

static void moriio_says_sizes_and_mode(void **state)
{
    open_rig("MoRIIOConnector", NULL);
    register_moriio("P", "127.0.0.1:8001", "READ");
    register_moriio("D", "localhost:8002", "WRITE");
    TURN_UNTIL(&loop, count(BT_REGISTRATION_TAKEN) == 2);
    assert_string_equal(worker("p0")->dialect, "moriio_read");
    assert_int_equal(worker("p0")->dp_size, 2);
    assert_int_equal(worker("p0")->tp_size, 4);
    assert_string_equal(worker("d0")->dialect, "moriio");
    assert_non_null(strstr(bt_workers_pair_refusal(worker("p0"), worker("d0")), "modes differ"));
    wait_for_the_clock();
    register_moriio("D", "localhost:8002", "READ");
    TURN_UNTIL(&loop, count(BT_REGISTRATION_TAKEN) == 3);
    assert_null(bt_workers_pair_refusal(worker("p0"), worker("d0")));
    close_rig();
}

/* Two engines that say they are at one address: the first word stands, and who says it is heard. */
static void a_word_does_not_change_all_the_time(void **state)
{
    open_rig("P2pNcclConnector", &(bt_registration_config_t){.change_ms = 60000});
    register_p2p("P", "127.0.0.1:8001", "10.0.0.1:14579");
    TURN_UNTIL(&loop, atomic_load(&worker("p0")->is_registered));
    bt_worker_t *first = worker("p0");
    for (unsigned i = 0; i < 10; i++) {
        register_p2p("P", "127.0.0.1:8001", "10.0.0.1:14580");
        register_p2p("P", "127.0.0.1:8001", "10.0.0.1:14579");
    }
    TURN_UNTIL(&loop, count(BT_REGISTRATION_CONFLICT) == 10 && count(BT_REGISTRATION_TAKEN) == 11);
    assert_ptr_equal(worker("p0"), first);
    assert_int_equal(times_said("do two engines have this address?"), 1);
    close_rig();
}

static unsigned usable(void)
{
    return atomic_load(&worker("p0")->breaker.group->usable);
}

static void one_that_falls_silent_is_not_used(void **state)
{
    open_rig("p2p_nccl", &(bt_registration_config_t){.expiry_ms = {600, 0}});
    register_p2p("P", "127.0.0.1:8001", "10.0.0.1:14579");
    TURN_UNTIL(&loop, atomic_load(&worker("p0")->is_registered));
    bt_worker_set_health(worker("p0"), BT_HEALTH_UP, "test");
    assert_int_equal(usable(), 1);
    TURN_UNTIL(&loop, !atomic_load(&worker("p0")->is_registered));
    assert_int_equal(usable(), 0);
    assert_string_equal(worker("p0")->kv_address, "10.0.0.1:14579");
    assert_int_equal(times_said("p0 has not registered for"), 1);
    register_p2p("P", "127.0.0.1:8001", "10.0.0.1:14579");
    TURN_UNTIL(&loop, atomic_load(&worker("p0")->is_registered));
    assert_int_equal(usable(), 1);
    close_rig();
}

/* ---- words that are not ---- */

static void refusals_are_counted_and_told_once(void **state)
{
    open_rig("p2p_nccl", NULL);
    for (unsigned i = 1; i <= 3; i++) {
        send_bytes(BT_REGISTRATION_P2P_NCCL, BT_STR("not msgpack"));
        register_p2p("P", "127.0.0.1:9999", "10.0.0.1:14579");
        register_p2p("D", "127.0.0.1:8001", "10.0.0.1:14579");
        register_moriio("P", "127.0.0.1:8001", "READ");
        register_p2p("P", "nowhere", "10.0.0.1:14579");
    }
    TURN_UNTIL(&loop, count(BT_REGISTRATION_MALFORMED) == 3 &&
                          count(BT_REGISTRATION_UNKNOWN) == 6 &&
                          count(BT_REGISTRATION_CONFLICT) == 6);
    assert_int_equal(count(BT_REGISTRATION_TAKEN), 0);
    assert_int_equal(times_said("is malformed: the payload is not msgpack"), 1);
    assert_int_equal(times_said("127.0.0.1:9999 is no worker's"), 1);
    assert_int_equal(times_said("role is the other one"), 1);
    assert_int_equal(times_said("connector is another one"), 1);
    assert_false(atomic_load(&worker("p0")->is_registered));
    close_rig();
}

/* More frames than a message may have, and fewer. */
static void frames_that_are_no_message(void **state)
{
    const bt_str_t three[] = {BT_STR("a"), BT_STR("b"), BT_STR("c")};
    const bt_str_t five[] = {BT_STR("a"), BT_STR("b"), BT_STR("c"), BT_STR("d"), BT_STR("e")};

    open_rig("p2p_nccl", NULL);
    STEP_UNTIL(bt_zmq_sender_send(senders[0], three, 3) == 0, turn_once(&loop));
    STEP_UNTIL(bt_zmq_sender_send(senders[0], five, 5) == 0, turn_once(&loop));
    TURN_UNTIL(&loop, count(BT_REGISTRATION_MALFORMED) == 2);
    assert_int_equal(times_said("it has not two frames"), 1);
    close_rig();
}

static void what_the_configuration_says_holds(void **state)
{
    bt_worker_spec_t spec;
    char err[256];

    open_rig("p2p_nccl", NULL);
    make_spec(&spec, BT_ROLE_PREFILL, "http://127.0.0.1:8003", "moriio_read");
    spec.tp_size = 8;
    assert_int_equal(bt_registry_add(registry, NULL, &spec, err, sizeof err), 0);
    register_moriio("P", "127.0.0.1:8003", "READ");
    TURN_UNTIL(&loop, count(BT_REGISTRATION_CONFLICT) == 1);
    assert_int_equal(times_said("tp_size differs"), 1);
    bt_worker_spec_fini(&spec);
    make_spec(&spec, BT_ROLE_PREFILL, "http://127.0.0.1:8004", "moriio_read");
    assert_int_equal(bt_registry_add(registry, NULL, &spec, err, sizeof err), 0);
    register_moriio("P", "127.0.0.1:8004", "WRITE");
    TURN_UNTIL(&loop, count(BT_REGISTRATION_CONFLICT) == 2);
    assert_int_equal(times_said("it writes, but the configuration says moriio_read"), 1);
    bt_worker_spec_fini(&spec);
    make_spec(&spec, BT_ROLE_PREFILL, "http://127.0.0.1:8005", "p2p_nccl");
    spec.kv_address = text("10.0.0.5:1");
    assert_int_equal(bt_registry_add(registry, NULL, &spec, err, sizeof err), 0);
    register_p2p("P", "127.0.0.1:8005", "10.0.0.5:2");
    TURN_UNTIL(&loop, count(BT_REGISTRATION_CONFLICT) == 3);
    assert_int_equal(times_said("kv_address differs"), 1);
    register_p2p("P", "127.0.0.1:8005", "10.0.0.5:1");
    TURN_UNTIL(&loop, count(BT_REGISTRATION_TAKEN) == 1);
    bt_worker_spec_fini(&spec);
    close_rig();
}

/* ---- workers that nobody has named ---- */

static void one_that_is_unknown_becomes_a_worker(void **state)
{
    open_rig("p2p_nccl", &(bt_registration_config_t){.takes_new = true});
    register_p2p("D", "127.0.0.1:9999", "10.0.0.9:14579");
    TURN_UNTIL(&loop, count(BT_REGISTRATION_TAKEN) == 1);
    bt_worker_t *w = worker("d1");
    assert_non_null(w);
    assert_int_equal(w->spec.role, BT_ROLE_DECODE);
    assert_int_equal(w->port, 9999);
    assert_true(atomic_load(&w->is_registered) && w->spec.registered.is_new);
    assert_null(bt_workers_pair_refusal(worker("p0"), w));
    wait_for_the_clock();
    register_p2p("D", "127.0.0.1:9999", "10.0.0.9:14580");
    TURN_UNTIL(&loop, count(BT_REGISTRATION_TAKEN) == 2);
    assert_true(worker("d1")->spec.registered.is_new);
    assert_int_equal(bt_registry_current(registry)->pools[0].all.count, 3);
    close_rig();
}

static void one_that_is_unknown_may_speak_tls(void **state)
{
    open_rig("p2p_nccl", &(bt_registration_config_t){.takes_new = true, .new_has_tls = true});
    register_p2p("D", "127.0.0.1:9999", "10.0.0.9:14579");
    TURN_UNTIL(&loop, count(BT_REGISTRATION_TAKEN) == 1);
    assert_string_equal(worker("d1")->spec.url, "https://127.0.0.1:9999");
    assert_non_null(worker("d1")->tls);
    close_rig();
}

static void name_in_file(const char *url)
{
    bt_found_t one = {0};
    char err[256] = "";

    make_spec(&one.spec, BT_ROLE_DECODE, url, "p2p_nccl");
    assert_int_equal(bt_registry_set_found(registry, BT_NAMED_FILE, &one, 1, err, sizeof err), 0);
    bt_worker_spec_fini(&one.spec);
}

static bool is_named_by(const bt_worker_t *w, enum bt_source source)
{
    return (atomic_load(&w->sources) & BT_NAMED_BIT(source)) != 0;
}

/* The engine's word goes with its silence, whoever else names it; and those after it go, too. */
static void those_that_fall_silent_are_forgotten(void **state)
{
    const uint64_t long_ago_ms = bt_clock_ms() - 61000;

    open_rig("p2p_nccl", &(bt_registration_config_t){.takes_new = true});
    register_p2p("D", "127.0.0.1:9998", "10.0.0.8:14579");
    TURN_UNTIL(&loop, count(BT_REGISTRATION_TAKEN) == 1);
    register_p2p("D", "127.0.0.1:9999", "10.0.0.9:14579");
    TURN_UNTIL(&loop, count(BT_REGISTRATION_TAKEN) == 2);
    name_in_file("http://127.0.0.1:9998");
    worker("d1")->registered_at_ms = worker("d2")->registered_at_ms = long_ago_ms;
    TURN_UNTIL(&loop, worker("d2") == NULL);
    assert_true(is_named_by(worker("d1"), BT_NAMED_FILE));
    assert_false(is_named_by(worker("d1"), BT_NAMED_ENGINE));
    close_rig();
}

static void a_port_that_is_taken(void **state)
{
    struct sockaddr_storage addr;
    char err[256] = "";
    int fd = raw_listen(AF_INET, &addr);
    bt_registration_config_t config = {
        .host = "127.0.0.1", .ports = {UINT_MAX, ntohs(((struct sockaddr_in *) &addr)->sin_port)}};
    bt_registration_t *none = NULL;

    assert_int_equal(bt_loop_init(&loop, BT_LOOP_CONTROL), 0);
    assert_int_equal(bt_registration_open(&none, &loop, &config, ports, err, sizeof err),
                     BT_E_CONFIG);
    assert_non_null(strstr(err, "--moriio-port: cannot listen on 127.0.0.1:"));
    assert_null(none);
    close(fd);
    bt_loop_fini(&loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_word_is_taken_and_refreshed),
        cmocka_unit_test(a_word_does_not_change_all_the_time),
        cmocka_unit_test(moriio_says_sizes_and_mode),
        cmocka_unit_test(one_that_falls_silent_is_not_used),
        cmocka_unit_test(refusals_are_counted_and_told_once),
        cmocka_unit_test(frames_that_are_no_message),
        cmocka_unit_test(what_the_configuration_says_holds),
        cmocka_unit_test(one_that_is_unknown_becomes_a_worker),
        cmocka_unit_test(one_that_is_unknown_may_speak_tls),
        cmocka_unit_test(those_that_fall_silent_are_forgotten),
        cmocka_unit_test(a_port_that_is_taken),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
