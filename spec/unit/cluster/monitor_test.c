#include "cluster/checks/monitor.h"

#include "cluster/engine_ids.h"
#include "help.h"
#include "loop/resolve.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A server of one thread that answers as the test says at that moment. It is a plain blocking program on purpose: nothing
 * of the code under test is in it. */

enum mode { OK, STATUS_500, DEAD_503, SCALING_503, SILENT };

typedef struct server {
    int fd;
    unsigned port;
    pthread_t thread;
    _Atomic int mode; /* of /health */
    _Atomic bool is_over;
    _Atomic unsigned health_hits, metrics_hits, loads_hits, keyed_hits;
    const char *metrics, *loads; /* bodies; NULL = 404 */
    const char *_Atomic query;   /* the same */
    _Atomic unsigned query_hits;
    int held[64]; /* connections left without an answer */
    unsigned held_count;
} server_t;

static void answer(int fd, const char *status, const char *body)
{
    char text[4096];
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s", status,
                     strlen(body), body);
    assert_true(n > 0 && (size_t) n < sizeof text);
    if (send(fd, text, (size_t) n, MSG_NOSIGNAL) < 0)
        return;
}

static bool answer_health(server_t *s, int fd)
{
    switch (atomic_load(&s->mode)) {
    case OK:
        answer(fd, "200 OK", "");
        break;
    case STATUS_500:
        answer(fd, "500 Internal Server Error", "oops");
        break;
    case DEAD_503:
        answer(fd, "503 Service Unavailable", "EngineDeadError");
        break;
    case SCALING_503:
        answer(fd, "503 Service Unavailable",
               "{\"error\":\"The model is currently scaling. Please try again later.\"}");
        break;
    default:
        return false;
    }
    return true;
}

static void answer_body(int fd, const char *body)
{
    answer(fd, body != NULL ? "200 OK" : "404 Not Found",
           body != NULL ? body : "{\"detail\":\"Not Found\"}");
}

static bool serve_one(server_t *s, int fd)
{
    char head[4096];
    size_t n = 0;
    while (n + 1 < sizeof head) {
        ssize_t got = recv(fd, head + n, sizeof head - 1 - n, 0);
        if (got <= 0)
            return true;
        n += (size_t) got;
        head[n] = '\0';
        if (strstr(head, "\r\n\r\n") != NULL)
            break;
    }
    if (strstr(head, "\r\nAuthorization: Bearer sesame\r\n") != NULL)
        atomic_fetch_add(&s->keyed_hits, 1);
    if (strncmp(head, "GET /health HTTP/1.1\r\n", 22) == 0) {
        atomic_fetch_add(&s->health_hits, 1);
        return answer_health(s, fd);
    }
    if (strncmp(head, "GET /metrics ", 13) == 0) {
        atomic_fetch_add(&s->metrics_hits, 1);
        answer_body(fd, s->metrics);
    } else if (strncmp(head, "GET /v1/loads?include=core ", 27) == 0) {
        atomic_fetch_add(&s->loads_hits, 1);
        answer_body(fd, s->loads);
    } else if (strncmp(head, "GET /query ", 11) == 0) {
        atomic_fetch_add(&s->query_hits, 1);
        answer_body(fd, atomic_load(&s->query));
    } else {
        answer(fd, "400 Bad Request", "");
    }
    return true;
}

static void *serve(void *arg)
{
    server_t *s = arg;
    while (!atomic_load(&s->is_over)) {
        struct pollfd pfd = {.fd = s->fd, .events = POLLIN};
        if (poll(&pfd, 1, 20) <= 0)
            continue;
        int fd = accept(s->fd, NULL, NULL);
        if (fd >= 0 && (serve_one(s, fd) || s->held_count == 64))
            close(fd);
        else if (fd >= 0)
            s->held[s->held_count++] = fd;
    }
    while (s->held_count > 0)
        close(s->held[--s->held_count]);
    return NULL;
}

static void open_socket(server_t *s)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t) s->port)};
    socklen_t size = sizeof addr;
    int one = 1;
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(s->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    assert_int_equal(bind(s->fd, (struct sockaddr *) &addr, sizeof addr), 0);
    assert_int_equal(listen(s->fd, 64), 0);
    assert_int_equal(getsockname(s->fd, (struct sockaddr *) &addr, &size), 0);
    s->port = ntohs(addr.sin_port);
}

static void server_start(server_t *s)
{
    atomic_store(&s->is_over, false);
    open_socket(s);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void server_stop(server_t *s)
{
    atomic_store(&s->is_over, true);
    pthread_join(s->thread, NULL);
    close(s->fd);
}

/* ---- the monitor on this thread's loop ---- */

static server_t server, boot;
static bt_loop_t loop;
static bt_monitor_t *monitor;
static bt_monitor_config_t config;
static bt_registry_t *registry;
static bt_pool_spec_t pool;
static bt_worker_spec_t spec;

static void on_publish(void *user, bt_workers_t *workers)
{
    (void) user;
    bt_monitor_set_workers(monitor, workers);
}

static int setup(void **state)
{
    memset(&server, 0, sizeof server);
    memset(&boot, 0, sizeof boot);
    server_start(&server);
    assert_int_equal(bt_loop_init(&loop, BT_LOOP_CONTROL), 0);
    bt_monitor_config_defaults(&config);
    config.health.interval_ms = 60; /* quick rounds; the specs wait for states, never for times */
    config.startup_interval_ms = 30;
    config.timeout_ms = 300;
    config.load_interval_ms = 0;
    bt_pool_spec_init(&pool);
    pool.name = text("default");
    bt_worker_spec_init(&spec);
    return 0;
}

static int teardown(void **state)
{
    bt_monitor_stop(monitor);
    bt_registry_free(registry);
    bt_loop_fini(&loop);
    server_stop(&server);
    bt_pool_spec_fini(&pool);
    bt_worker_spec_fini(&spec);
    return 0;
}

/* Begins to watch one worker at the server. */
static bt_worker_t *watch(enum bt_role role, const char *host, const char *connector)
{
    char url[128], err[256] = "";
    const bt_worker_spec_t *lists[1] = {&spec};
    unsigned count = 1;
    snprintf(url, sizeof url, "http://%s:%u", host, server.port);
    spec.role = role;
    spec.url = text(url);
    spec.connector = text(connector);
    assert_int_equal(bt_monitor_start(&monitor, &loop, &config), 0);
    assert_int_equal(bt_registry_new(&registry, NULL, on_publish, NULL), 0);
    if (bt_registry_apply(registry, &pool, 1, lists, &count, err, sizeof err) != 0)
        fail_msg("%s", err);
    return bt_registry_current(registry)->pools[0].all.items[0];
}

/* Turns the loop until the condition holds; the limit only ends a test that has failed. */
#define UNTIL(cond)                                                                                \
    do {                                                                                           \
        uint64_t limit_ms_ = bt_clock_ms() + 20000;                                                \
        while (!(cond)) {                                                                          \
            if (bt_clock_ms() > limit_ms_)                                                         \
                fail_msg("never: %s", #cond);                                                      \
            uv_run(&loop.uv, UV_RUN_ONCE);                                                         \
        }                                                                                          \
    } while (0)

static enum bt_health health(const bt_worker_t *w)
{
    return (enum bt_health) atomic_load(&w->health);
}

static void first_good_answer_counts_at_once(void **state)
{
    bt_worker_t *w = watch(BT_ROLE_HYBRID, "127.0.0.1", NULL);
    assert_int_equal(health(w), BT_HEALTH_UNKNOWN);
    UNTIL(health(w) != BT_HEALTH_UNKNOWN);
    assert_int_equal(health(w), BT_HEALTH_UP);
    assert_int_equal(atomic_load(&server.health_hits), 1);
}

static void first_bad_answer_counts_at_once(void **state)
{
    atomic_store(&server.mode, STATUS_500);
    bt_worker_t *w = watch(BT_ROLE_HYBRID, "127.0.0.1", NULL);
    UNTIL(health(w) != BT_HEALTH_UNKNOWN);
    assert_int_equal(health(w), BT_HEALTH_DOWN);
    assert_int_equal(atomic_load(&server.health_hits), 1);
}

static void three_bad_answers_then_two_good_ones(void **state)
{
    bt_worker_t *w = watch(BT_ROLE_HYBRID, "127.0.0.1", NULL);
    UNTIL(health(w) == BT_HEALTH_UP);
    atomic_store(&server.mode, STATUS_500);
    unsigned before = atomic_load(&server.health_hits);
    UNTIL(health(w) == BT_HEALTH_DOWN);
    assert_true(atomic_load(&server.health_hits) - before >= 3);
    before = atomic_load(&server.health_hits);
    atomic_store(&server.mode, OK);
    UNTIL(health(w) == BT_HEALTH_UP);
    assert_true(atomic_load(&server.health_hits) - before >= 2);
}

static void silence_is_a_failure(void **state)
{
    bt_worker_t *w = watch(BT_ROLE_HYBRID, "127.0.0.1", NULL);
    UNTIL(health(w) == BT_HEALTH_UP);
    atomic_store(&server.mode, SILENT);
    unsigned before = atomic_load(&server.health_hits);
    UNTIL(health(w) == BT_HEALTH_DOWN);
    assert_true(atomic_load(&server.health_hits) - before >= 3);
}

static void refused_is_down_at_once(void **state)
{
    config.health.failures =
        1000; /* no row of failures is long enough: one refusal alone does it */
    bt_worker_t *w = watch(BT_ROLE_HYBRID, "127.0.0.1", NULL);
    UNTIL(health(w) == BT_HEALTH_UP);
    server_stop(&server);
    UNTIL(health(w) == BT_HEALTH_DOWN);
    server_start(&server); /* same port */
    UNTIL(health(w) == BT_HEALTH_UP);
}

static void engine_dead_is_down_at_once(void **state)
{
    config.health.failures = 1000;
    bt_worker_t *w = watch(BT_ROLE_HYBRID, "127.0.0.1", NULL);
    UNTIL(health(w) == BT_HEALTH_UP);
    atomic_store(&server.mode, DEAD_503);
    UNTIL(health(w) == BT_HEALTH_DOWN);
}

static unsigned lost_count;

static void on_lost(void *user)
{
    assert_ptr_equal(user, &lost_count);
    lost_count++;
}

static bt_worker_t *watch_for_loss(enum mode mode)
{
    bt_worker_t *w = watch(BT_ROLE_HYBRID, "127.0.0.1", NULL);

    lost_count = 0;
    bt_monitor_on_lost(monitor, on_lost, &lost_count);
    UNTIL(health(w) == BT_HEALTH_UP);
    atomic_store(&server.mode, mode);
    return w;
}

static void a_dead_engine_is_lost_until_it_is_back(void **state)
{
    bt_worker_t *w = watch_for_loss(DEAD_503);
    UNTIL(bt_worker_is_lost(w));
    unsigned hits = atomic_load(&server.health_hits);
    UNTIL(atomic_load(&server.health_hits) > hits + 3);
    assert_int_equal(lost_count, 1);
    atomic_store(&server.mode, OK);
    UNTIL(health(w) == BT_HEALTH_UP);
    assert_false(bt_worker_is_lost(w));
}

static void a_silent_worker_is_lost(void **state)
{
    config.timeout_ms = 50;
    bt_worker_t *w = watch_for_loss(SILENT);
    uint64_t began_ms = bt_clock_ms();
    UNTIL(bt_worker_is_lost(w));
    assert_true(bt_worker_lost_since(w) >= began_ms);
    assert_true(bt_worker_lost_since(w) < bt_clock_ms());
    assert_int_equal(lost_count, 1);
}

static void who_refuses_is_not_lost(void **state)
{
    bt_worker_t *w = watch_for_loss(OK);
    server_stop(&server);
    UNTIL(health(w) == BT_HEALTH_DOWN);
    uint64_t until_ms = bt_clock_ms() + 300;
    UNTIL(bt_clock_ms() > until_ms);
    assert_false(bt_worker_is_lost(w));
    server_start(&server);
}

static void scaling_drains(void **state)
{
    bt_worker_t *w = watch(BT_ROLE_HYBRID, "127.0.0.1", "NixlConnector");
    UNTIL(health(w) == BT_HEALTH_UP);
    atomic_store(&server.mode, SCALING_503);
    UNTIL(health(w) != BT_HEALTH_UP);
    assert_int_equal(health(w), BT_HEALTH_DRAIN);
    assert_string_equal(bt_worker_why_not(w, bt_clock_ms()), "scaling");
    atomic_store(&server.mode, OK);
    UNTIL(health(w) != BT_HEALTH_DRAIN);
    assert_int_equal(health(w), BT_HEALTH_UP);
}

static void a_passive_signal_is_followed_up(void **state)
{
    config.health.interval_ms =
        3600000; /* its own next probe is far: the sweep has to bring it near */
    bt_worker_t *w = watch(BT_ROLE_HYBRID, "127.0.0.1", NULL);
    UNTIL(health(w) == BT_HEALTH_UP);
    bt_health_note_engine_dead(w);
    assert_int_equal(health(w), BT_HEALTH_DOWN);
    UNTIL(health(w) == BT_HEALTH_UP);
    assert_true(atomic_load(&server.health_hits) >= 3);
}

/* However often it is asked, it looks once at a time, and three failures in a row are what they were. */
static void who_is_asked_to_look_looks_now(void **state)
{
    config.health.interval_ms = 3600000;
    config.startup_interval_ms = 60000;
    bt_worker_t *w = watch(BT_ROLE_HYBRID, "127.0.0.1", NULL);
    UNTIL(health(w) == BT_HEALTH_UP);
    atomic_store(&server.mode, STATUS_500);
    UNTIL(health(w) == BT_HEALTH_DOWN || (bt_monitor_check(monitor, w), false));
    assert_int_equal(atomic_load(&server.health_hits), 1 + 3);
}

static void sglang_prefill_needs_its_bootstrap_port_too(void **state)
{
    server_start(&boot);
    spec.bootstrap_port = (int) boot.port;
    bt_worker_t *w = watch(BT_ROLE_PREFILL, "127.0.0.1", "sglang");
    UNTIL(health(w) == BT_HEALTH_UP);
    assert_true(atomic_load(&boot.health_hits) >= 1);
    server_stop(&boot);
    UNTIL(health(w) == BT_HEALTH_DOWN);
    unsigned before = atomic_load(&server.health_hits);
    UNTIL(atomic_load(&server.health_hits) >= before + 3);
    assert_int_equal(health(w), BT_HEALTH_DOWN); /* the worker's own port is fine all the while */
    server_start(&boot);
    UNTIL(health(w) == BT_HEALTH_UP);
    server_stop(&boot);
}

static bool is_called(bt_worker_t *w, const char *wanted)
{
    char id[BT_ENGINE_ID_MAX];
    return bt_engine_ids_get(w, 0, id, sizeof id) && strcmp(id, wanted) == 0;
}

static void mooncake_prefill_needs_its_engine_ids(void **state)
{
    config.disabled = true; /* it is asked all the same */
    config.health.interval_ms = 3600000;
    server_start(&boot);
    spec.bootstrap_port = (int) boot.port;
    bt_worker_t *w = watch(BT_ROLE_PREFILL, "127.0.0.1", "MooncakeConnector");
    UNTIL(atomic_load(&boot.query_hits) >= 2);
    assert_false(bt_worker_usable(w, bt_clock_ms())); /* 404 */
    atomic_store(&boot.query, "{\"0\":{\"engine_id\":\"first\"}}");
    UNTIL(bt_worker_usable(w, bt_clock_ms()));
    assert_true(is_called(w, "first"));
    atomic_store(&boot.query, "{\"0\":{\"engine_id\":\"second\"}}");
    bt_engine_ids_doubt(w); /* before its interval is over */
    UNTIL(is_called(w, "second"));
    assert_true(bt_worker_usable(w, bt_clock_ms()));
    server_stop(&boot);
}

static void keys_are_sent(void **state)
{
    config.api_key = "wrong";
    spec.api_key = text("sesame");
    bt_worker_t *w = watch(BT_ROLE_HYBRID, "127.0.0.1", NULL);
    UNTIL(health(w) == BT_HEALTH_UP);
    assert_int_equal(atomic_load(&server.keyed_hits), atomic_load(&server.health_hits));
}

/* Names are looked up without a name server: this one is known here, all others go the real way. */
static unsigned lookups;
static unsigned known_as; /* last number of 127.0.0.x */
int __real_bt_resolve_start(bt_resolve_t *r, bt_loop_t *l, const char *host, unsigned port,
                            bt_resolve_cb cb);
int __wrap_bt_resolve_start(bt_resolve_t *r, bt_loop_t *l, const char *host, unsigned port,
                            bt_resolve_cb cb);
int __wrap_bt_resolve_start(bt_resolve_t *r, bt_loop_t *l, const char *host, unsigned port,
                            bt_resolve_cb cb)
{
    char addr[32];
    lookups++;
    snprintf(addr, sizeof addr, "127.0.0.%u", known_as);
    return __real_bt_resolve_start(r, l, strcmp(host, "engine.test") == 0 ? addr : host, port, cb);
}

static void a_moved_name_is_followed_after_a_refused_connect(void **state)
{
    known_as = 1;
    lookups = 0;
    bt_worker_t *w = watch(BT_ROLE_HYBRID, "engine.test", NULL);
    assert_false(atomic_load(&w->has_addr));
    UNTIL(health(w) == BT_HEALTH_UP);
    assert_int_equal(lookups, 1);
    known_as = 9; /* nobody listens there */
    bt_health_note_connect_failure(w, false);
    UNTIL(health(w) == BT_HEALTH_DOWN);
    known_as = 1;
    UNTIL(health(w) == BT_HEALTH_UP);
    assert_true(lookups >= 3);
}

static void unresolvable_is_down(void **state)
{
    char name[80]; /* a label of more than 63 bytes: refused before anybody is asked */
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    bt_worker_t *w = watch(BT_ROLE_HYBRID, name, NULL);
    UNTIL(health(w) == BT_HEALTH_DOWN);
    assert_int_equal(atomic_load(&server.health_hits), 0);
}

static void checks_off(void **state)
{
    config.disabled = true;
    bt_worker_t *w = watch(BT_ROLE_HYBRID, "127.0.0.1", NULL);
    assert_int_equal(health(w), BT_HEALTH_UP);
    bt_health_note_connect_failure(w, true);
    assert_int_equal(health(w), BT_HEALTH_DOWN);
    UNTIL(health(w) == BT_HEALTH_UP); /* tried again by traffic */
    assert_int_equal(atomic_load(&server.health_hits), 0);
}

static void load_of_vllm(void **state)
{
    config.load_interval_ms = 20;
    server.metrics =
        "vllm:num_requests_running{engine=\"0\"} 3.0\nvllm:num_requests_waiting{engine=\"0\"} 2.0\n"
        "vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n";
    bt_worker_t *w = watch(BT_ROLE_HYBRID, "127.0.0.1", "NixlConnector");
    atomic_store(&w->load.started_since, 9);
    UNTIL(atomic_load(&w->load.at_ms) != 0);
    assert_int_equal(atomic_load(&w->load.running), 3);
    assert_int_equal(atomic_load(&w->load.waiting), 2);
    assert_int_equal(atomic_load(&w->load.kv_used_ppm), 500000);
    assert_int_equal(atomic_load(&w->load.started_since), 0);
    UNTIL(atomic_load(&server.metrics_hits) >= 3); /* goes on */
    assert_int_equal(atomic_load(&server.loads_hits), 0);
}

static void load_of_an_unnamed_sglang_without_metrics(void **state)
{
    config.load_interval_ms = 20;
    server.loads = "{\"loads\":[{\"dp_rank\":0,\"num_running_reqs\":1,\"num_waiting_reqs\":4,\"num_"
                   "total_tokens\":77,"
                   "\"token_usage\":0.25}]}";
    bt_worker_t *w = watch(BT_ROLE_HYBRID, "127.0.0.1", NULL);
    UNTIL(atomic_load(&w->load.at_ms) != 0);
    assert_int_equal(atomic_load(&w->load.waiting), 4);
    assert_int_equal(atomic_load(&w->load.total_tokens), 77);
    UNTIL(atomic_load(&server.loads_hits) >= 3);
    assert_int_equal(atomic_load(&server.metrics_hits), 1); /* learned once */
}

static void no_report_is_asked_for_rarely(void **state)
{
    config.load_interval_ms = 20;
    bt_worker_t *w = watch(BT_ROLE_HYBRID, "127.0.0.1", "NixlConnector");
    UNTIL(atomic_load(&server.health_hits) >= 10); /* many load intervals */
    assert_int_equal(atomic_load(&server.metrics_hits), 1);
    assert_int_equal(atomic_load(&w->load.at_ms), 0);
}

static void removed_workers_are_left_alone(void **state)
{
    bt_worker_t *w = bt_worker_ref(watch(BT_ROLE_HYBRID, "127.0.0.1", NULL));
    UNTIL(health(w) == BT_HEALTH_UP);
    assert_int_equal(bt_registry_remove(registry, BT_STR("w0")), 0);
    assert_int_equal(atomic_load(&w->refs), 1); /* only ours: the watch is gone */
    bt_worker_unref(w);
}

static void a_removed_worker_is_watched_until_its_last_leg_has_ended(void **state)
{
    bt_worker_t *w = bt_worker_ref(watch_for_loss(OK));
    atomic_store(&bt_worker_total(w, BT_PHASE_DECODE)->requests, 1);
    assert_int_equal(bt_registry_remove(registry, BT_STR("w0")), 0);
    assert_int_equal(atomic_load(&w->refs), 2);
    atomic_store(&server.mode, DEAD_503);
    UNTIL(bt_worker_is_lost(w));
    assert_int_equal(lost_count, 1);
    atomic_store(&bt_worker_total(w, BT_PHASE_DECODE)->requests, 0);
    UNTIL(atomic_load(&w->refs) == 1);
    bt_worker_unref(w);
}

static void stopping_with_everything_in_flight(void **state)
{
    config.load_interval_ms = 20;
    atomic_store(&server.mode, SILENT);
    (void) watch(BT_ROLE_HYBRID, "127.0.0.1", NULL);
    UNTIL(atomic_load(&server.health_hits) >= 1);
    /* teardown stops the monitor now; the sanitizers look for what is left */
}

/* More workers than may be probed at once, all silent: every one of them is judged in the end. */
static void many_silent_workers(void **state)
{
    static bt_worker_spec_t many[200];
    char err[256] = "";
    const bt_worker_spec_t *lists[1] = {many};
    unsigned count = 200;
    config.timeout_ms = 50;
    atomic_store(&server.mode, SILENT);
    (void) watch(BT_ROLE_HYBRID, "127.0.0.1", NULL);
    for (unsigned i = 0; i < count; i++) {
        char url[64];
        snprintf(url, sizeof url, "http://127.0.0.1:%u/base%u", server.port, i);
        bt_worker_spec_init(&many[i]);
        many[i].url = text(url);
    }
    assert_int_equal(bt_registry_apply(registry, &pool, 1, lists, &count, err, sizeof err), 0);
    const bt_worker_set_t *all = &bt_registry_current(registry)->pools[0].all;
    for (unsigned i = 0; i < count; i++)
        UNTIL(health(all->items[i]) == BT_HEALTH_DOWN);
    for (unsigned i = 0; i < count; i++)
        bt_worker_spec_fini(&many[i]);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(first_good_answer_counts_at_once),
        CASE(first_bad_answer_counts_at_once),
        CASE(three_bad_answers_then_two_good_ones),
        CASE(silence_is_a_failure),
        CASE(refused_is_down_at_once),
        CASE(engine_dead_is_down_at_once),
        CASE(a_dead_engine_is_lost_until_it_is_back),
        CASE(a_silent_worker_is_lost),
        CASE(who_refuses_is_not_lost),
        CASE(scaling_drains),
        CASE(a_passive_signal_is_followed_up),
        CASE(who_is_asked_to_look_looks_now),
        CASE(sglang_prefill_needs_its_bootstrap_port_too),
        CASE(mooncake_prefill_needs_its_engine_ids),
        CASE(keys_are_sent),
        CASE(a_moved_name_is_followed_after_a_refused_connect),
        CASE(unresolvable_is_down),
        CASE(checks_off),
        CASE(load_of_vllm),
        CASE(load_of_an_unnamed_sglang_without_metrics),
        CASE(no_report_is_asked_for_rarely),
        CASE(removed_workers_are_left_alone),
        CASE(a_removed_worker_is_watched_until_its_last_leg_has_ended),
        CASE(stopping_with_everything_in_flight),
        CASE(many_silent_workers),
    };
    bt_log_set(BT_LOG_ERROR, false, 2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
