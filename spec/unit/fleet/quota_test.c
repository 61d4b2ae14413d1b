/* Quotas over one store: never more than the limit, refunds to the unit, windows that end, a store that goes and comes back. */
#include "../store/redis_server.h"
#include "../store/rig.h"

#include "fleet/quota.h"

#include <pthread.h>
#include <stdio.h>

#define LONG_MS (UINT64_C(86400000) * 3650) /* one window, as far as a test can see */
#define QUOTAS 4

/* A process of its own, as far as the store can tell. */
struct gateway {
    bt_loop_t loop;
    bt_store_client_t *client;
    bt_quotas_t *quotas;
    bt_quota_client_t *room;
    bool is_gone;
};

static char space[64];

static void new_space(void)
{
    static unsigned number;

    snprintf(space, sizeof(space), "quota-%ld-%u", (long) getpid(), ++number);
}

static void open_gateway(struct gateway *g, bt_store_t *store, unsigned replicas)
{
    *g = (struct gateway){.client = NULL};
    assert_int_equal(bt_loop_init(&g->loop, 0), 0);
    assert_int_equal(bt_store_client_new(&g->client, store, &g->loop, NULL, NULL), 0);
    assert_int_equal(bt_quotas_new(&g->quotas, space), 0);
    bt_quota_set_replicas(g->quotas, replicas);
    assert_int_equal(bt_quota_client_new(&g->room, g->quotas, g->client, &g->loop), 0);
}

static void on_gone(void *user)
{
    ((struct gateway *) user)->is_gone = true;
}

static void close_gateway(struct gateway *g)
{
    bt_quota_client_free(g->room);
    bt_store_client_free(g->client, on_gone, g);
    TURN_UNTIL(&g->loop, g->is_gone);
    bt_quotas_free(g->quotas);
    bt_loop_fini(&g->loop);
}

struct asked {
    bt_quota_take_t take;
    bool is_told;
};

static void on_taken(bt_quota_take_t *take)
{
    bt_container_of(take, struct asked, take)->is_told = true;
}

static bt_quota_take_t take_of(struct gateway *g, const char *key, int64_t limit,
                               uint64_t window_ms, int64_t amount)
{
    struct asked a = {.take = {.key = bt_str(key),
                               .limit = limit,
                               .amount = amount,
                               .window_ms = window_ms,
                               .cb = on_taken}};

    if (bt_quota_take(g->room, &a.take) == 1)
        TURN_UNTIL(&g->loop, a.is_told);
    return a.take;
}

static bool takes(struct gateway *g, int64_t limit, int64_t amount)
{
    const bt_quota_take_t take = take_of(g, "k", limit, LONG_MS, amount);

    assert_int_equal(take.rc, 0);
    return take.is_granted;
}

/* Takes until it is denied. */
static int64_t drain(struct gateway *g, int64_t limit, int64_t amount)
{
    int64_t sum = 0;

    while (takes(g, limit, amount))
        sum += amount;
    return sum;
}

static bt_store_t *open_store(const char *url)
{
    const bt_store_config_t config = {.url = url};
    bt_store_t *store = NULL;
    char err[256];

    if (bt_store_open(&store, &config, err, sizeof(err)) != 0)
        fail_msg("%s", err);
    return store;
}

/* ---- one store, which answers ---- */

static void grants_the_limit_and_no_more(void **state)
{
    bt_store_t *store = open_store(NULL);
    struct gateway g;
    bt_quota_stats_t stats;

    new_space();
    open_gateway(&g, store, 4);
    assert_int_equal(drain(&g, 6400, 1), 6400);
    const bt_quota_take_t denied = take_of(&g, "k", 6400, LONG_MS, 1);
    assert_false(denied.is_granted);
    assert_true(denied.retry_ms > 0 && denied.retry_ms <= LONG_MS);
    bt_quota_stats(g.quotas, &stats);
    assert_int_equal(stats.granted, 6400);
    /* A chunk is 6400 / (16 * 4): a lease for each hundred. */
    assert_true(stats.leases >= 64 && stats.leases <= 70);
    assert_false(takes(&g, 6400, 6401)); /* more than there ever is */
    assert_true(take_of(&g, "other", 1, LONG_MS, 1).is_granted);
    assert_int_equal(take_of(&g, "", 1, LONG_MS, 1).rc, BT_E_INVAL);
    assert_int_equal(take_of(&g, "k", 1, 0, 1).rc, BT_E_INVAL);
    assert_int_equal(take_of(&g, "k", 1, LONG_MS, 0).rc, BT_E_INVAL);
    close_gateway(&g);
    bt_store_close(store);
}

static void answers_from_the_chunk_at_once(void **state)
{
    bt_store_t *store = open_store(NULL);
    struct gateway g;
    bt_quota_take_t take = {.key = BT_STR("k"), .limit = 1600, .amount = 1, .window_ms = LONG_MS};

    new_space();
    open_gateway(&g, store, 1);
    assert_false(bt_quota_try(g.room, &take));
    assert_true(takes(&g, 1600, 1));
    for (int i = 0; i < 50; i++) {
        assert_true(bt_quota_try(g.room, &take)); /* no turn of the loop between them */
        assert_true(take.is_granted);
    }
    close_gateway(&g);
    bt_store_close(store);
}

static void gives_back_to_the_unit(void **state)
{
    bt_store_t *store = open_store(NULL);
    struct gateway a, b;

    new_space();
    open_gateway(&a, store, 2);
    open_gateway(&b, store, 2);
    const uint64_t window = take_of(&a, "k", 1000, LONG_MS, 1).window;
    assert_int_equal(drain(&a, 1000, 1), 999);
    assert_false(takes(&b, 1000, 1));
    bt_quota_give(a.room, BT_STR("k"), LONG_MS, 300, window);
    bt_quota_give(a.room, BT_STR("k"), LONG_MS, 50, window + 1); /* not this one */
    bt_quota_give(b.room, BT_STR("k"), LONG_MS, 50, 0);          /* was never granted there */
    /* What heaps up goes back to the store: the other one finds it. */
    int64_t found = 0;
    while (found < 300) {
        turn_once(&a.loop);
        found += drain(&b, 1000, 1);
    }
    assert_int_equal(found, 300);
    assert_int_equal(drain(&a, 1000, 1), 0);
    close_gateway(&a);
    close_gateway(&b);
    bt_store_close(store);
}

static void takes_what_was_used_beyond(void **state)
{
    bt_store_t *store = open_store(NULL);
    struct gateway a, b;

    new_space();
    open_gateway(&a, store, 2);
    open_gateway(&b, store, 2);
    assert_true(takes(&a, 1000, 100));
    bt_quota_give(a.room, BT_STR("k"), LONG_MS, -600, 0);
    bt_quota_stats_t stats;
    bt_quota_stats(a.quotas, &stats);
    const uint64_t before = stats.leases;
    while (stats.leases <
           before + 1) { /* nobody takes here any more: the debt is paid all the same */
        turn_once(&a.loop);
        bt_quota_stats(a.quotas, &stats);
    }
    turn(&a.loop, 20);
    assert_int_equal(drain(&b, 1000, 1), 300);
    close_gateway(&a);
    close_gateway(&b);
    bt_store_close(store);
}

static void gives_the_rest_back_when_idle(void **state)
{
    bt_store_t *store = open_store(NULL);
    struct gateway a, b;

    new_space();
    open_gateway(&a, store, 1);
    open_gateway(&b, store, 1);
    assert_true(takes(&a, 1600, 1)); /* and 99 leased ahead */
    const int64_t first = drain(&b, 1600, 1);
    assert_int_equal(first, 1500);
    int64_t more = 0;
    while (more < 99) {
        turn_once(&a.loop);
        more += drain(&b, 1600, 1);
    }
    assert_int_equal(more, 99);
    close_gateway(&a);
    close_gateway(&b);
    bt_store_close(store);
}

static void begins_anew_with_each_window(void **state)
{
    enum { WINDOW_MS = 250, LIMIT = 40, WINDOWS = 4, SEEN = 16 };
    bt_store_t *store = open_store(NULL);
    struct gateway g[2];
    uint64_t first = 0;
    int64_t granted[SEEN] = {0};
    bool is_seen[SEEN] = {false};
    unsigned full = 0;

    new_space();
    open_gateway(&g[0], store, 2);
    open_gateway(&g[1], store, 2);
    for (unsigned i = 0; full < WINDOWS; i++) {
        struct gateway *at = &g[i % 2];
        const bt_quota_take_t take = take_of(at, "w", LIMIT, WINDOW_MS, 1);
        if (first == 0)
            first = take.window;
        const uint64_t n = take.window - first;
        assert_true(n < SEEN);
        granted[n] += take.is_granted;
        if (!take.is_granted && !is_seen[n]) {
            is_seen[n] = true;
            full++;
        }
        if (!take.is_granted)
            turn_once(&at->loop);
    }
    for (unsigned n = 0; n < SEEN; n++)
        assert_true(granted[n] <= LIMIT);
    bt_quota_stats_t stats;
    do { /* what nobody asks for is forgotten */
        turn_once(&g[0].loop);
        turn_once(&g[1].loop);
        bt_quota_stats(g[0].quotas, &stats);
    } while (stats.live > 0);
    close_gateway(&g[0]);
    close_gateway(&g[1]);
    bt_store_close(store);
}

static void is_cancelled(void **state)
{
    bt_store_t *store = open_store(NULL);
    struct gateway g;
    struct asked a = {.take = {.key = BT_STR("k"),
                               .limit = 10,
                               .amount = 1,
                               .window_ms = LONG_MS,
                               .cb = on_taken}},
                 b = a;

    new_space();
    open_gateway(&g, store, 1);
    assert_int_equal(bt_quota_take(g.room, &a.take), 1);
    assert_int_equal(bt_quota_take(g.room, &b.take), 1);
    bt_quota_cancel(&a.take);
    TURN_UNTIL(&g.loop, b.is_told);
    turn(&g.loop, 10);
    assert_false(a.is_told);
    assert_int_equal(drain(&g, 10, 1), 9); /* only b has taken */
    struct asked c = {
        .take = {
            .key = BT_STR("c"), .limit = 10, .amount = 1, .window_ms = LONG_MS, .cb = on_taken}};
    assert_int_equal(bt_quota_take(g.room, &c.take), 1);
    close_gateway(&g); /* one under way */
    assert_false(c.is_told);
    bt_store_close(store);
}

/* ---- four, each on a thread of its own ---- */

struct hammer {
    pthread_t thread;
    struct gateway g;
    int64_t limit, most, sum;
};

static void *hammer(void *arg)
{
    struct hammer *h = arg;
    unsigned denied = 0;

    for (unsigned i = 0; denied < 20; i++) {
        const int64_t amount = 1 + (int64_t) i % h->most;
        if (takes(&h->g, h->limit, amount))
            h->sum += amount;
        else
            denied++;
    }
    return NULL;
}

static int64_t hammer_all(struct hammer *all, bt_store_t *store, int64_t limit, int64_t most)
{
    int64_t sum = 0;

    new_space();
    for (unsigned i = 0; i < QUOTAS; i++) {
        all[i] = (struct hammer){.limit = limit, .most = most};
        open_gateway(&all[i].g, store, QUOTAS);
        assert_int_equal(pthread_create(&all[i].thread, NULL, hammer, &all[i]), 0);
    }
    for (unsigned i = 0; i < QUOTAS; i++) {
        pthread_join(all[i].thread, NULL);
        sum += all[i].sum;
    }
    return sum;
}

static void hold_the_limit_together(void **state)
{
    static struct hammer all[QUOTAS];
    bt_store_t *store = open_store(NULL);

    assert_int_equal(hammer_all(all, store, 50000, 1), 50000);
    for (unsigned i = 0; i < QUOTAS; i++)
        close_gateway(&all[i].g);
    int64_t sum = hammer_all(all, store, 50000, 7);
    assert_true(sum <= 50000);
    while (sum < 50000) { /* the rests of chunks are too small for most, and come back */
        for (unsigned i = 0; i < QUOTAS; i++)
            turn_once(&all[i].g.loop);
        sum += drain(&all[0].g, 50000, 1);
    }
    assert_int_equal(sum, 50000);
    for (unsigned i = 0; i < QUOTAS; i++)
        close_gateway(&all[i].g);
    bt_store_close(store);
}

/* Two loops of one process. */
static void loops_share_what_was_leased(void **state)
{
    static struct hammer all[2];
    bt_store_t *store = open_store(NULL);

    new_space();
    for (unsigned i = 0; i < 2; i++) {
        all[i] = (struct hammer){.limit = 20000, .most = 1};
        open_gateway(&all[i].g, store, 1);
    }
    bt_quota_client_free(all[1].g.room);
    bt_quotas_free(all[1].g.quotas);
    all[1].g.quotas = NULL;
    assert_int_equal(
        bt_quota_client_new(&all[1].g.room, all[0].g.quotas, all[1].g.client, &all[1].g.loop), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&all[i].thread, NULL, hammer, &all[i]), 0);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(all[i].thread, NULL);
    int64_t sum = all[0].sum + all[1].sum;
    while (sum < 20000) { /* a thread may end while a lease of its loop is under way */
        turn_once(&all[0].g.loop);
        turn_once(&all[1].g.loop);
        sum += drain(&all[0].g, 20000, 1);
    }
    assert_int_equal(sum, 20000);
    close_gateway(&all[1].g);
    close_gateway(&all[0].g);
    bt_store_close(store);
}

/* ---- the store goes ---- */

static void holds_to_its_part_without_the_store(void **state)
{
    bt_store_t *store = open_store("redis://127.0.0.1:1");
    struct gateway g;
    bt_quota_stats_t stats;

    new_space();
    open_gateway(&g, store, 4);
    assert_int_equal(drain(&g, 1000, 1), 250);
    assert_false(takes(&g, 1000, 1));
    bt_quota_give(g.room, BT_STR("k"), LONG_MS, 10, 0);
    assert_int_equal(drain(&g, 1000, 1), 10);
    bt_quota_set_replicas(g.quotas, 2);
    assert_int_equal(drain(&g, 1000, 1), 250);
    assert_true(take_of(&g, "small", 2, LONG_MS, 1).is_granted); /* at least one */
    bt_quota_set_replicas(g.quotas, 4);
    assert_false(take_of(&g, "small", 2, LONG_MS, 1).is_granted);
    assert_false(take_of(&g, "none", 0, LONG_MS, 1).is_granted);
    bt_quota_stats(g.quotas, &stats);
    assert_true(stats.away > 500);
    close_gateway(&g);
    bt_store_close(store);
}

static void turn_both(struct gateway *a, struct gateway *b)
{
    turn_once(&a->loop);
    turn_once(&b->loop);
}

/* What the server has granted of "k". */
static long used_of(const redis_server_t *server)
{
    redisReply *reply = redis_ask(server, "HGET baton:{%s}:k n", space);
    const long n = reply->str != NULL ? strtol(reply->str, NULL, 10) : 0;

    freeReplyObject(reply);
    return n;
}

/* Frozen, not killed: what it has granted stays granted. */
static void is_exact_again_when_it_is_back(void **state)
{
    redis_server_t server;
    struct gateway a, b;
    char url[64];

    if (redis_program() == NULL)
        skip();
    redis_start(&server, NULL);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", server.port);
    bt_store_t *store = open_store(url);
    new_space();
    open_gateway(&a, store, 2);
    open_gateway(&b, store, 2);
    while (bt_store_health(store, NULL, 0) != BT_STORE_UP)
        turn_both(&a, &b);
    for (int i = 0; i < 100; i++)
        assert_true(takes(&a, 1000, 1));
    redis_freeze(&server);
    assert_int_equal(drain(&a, 1000, 1), 400); /* 500 in all */
    assert_int_equal(drain(&b, 1000, 1), 500);
    redis_thaw(&server);
    while (bt_store_health(store, NULL, 0) != BT_STORE_UP)
        turn_both(&a, &b);
    while (used_of(&server) < 1000) /* what is owed is taken, though nobody asks for more */
        turn_both(&a, &b);
    turn(&a.loop, 20);
    turn(&b.loop, 20);
    const int64_t sum = drain(&a, 1000, 1) + drain(&b, 1000, 1);
    assert_int_equal(sum, 0);
    assert_int_equal(take_of(&a, "n", 20, LONG_MS, 15).is_granted, true);
    assert_int_equal(take_of(&b, "n", 20, LONG_MS, 15).is_granted,
                     false); /* its part would be 10 */
    assert_int_equal(take_of(&b, "n", 20, LONG_MS, 5).is_granted, true);
    close_gateway(&a);
    close_gateway(&b);
    bt_store_close(store);
    redis_end(&server);
}

static void says_what_is_left(void **state)
{
    bt_store_t *store = open_store(NULL);
    struct gateway a, b;

    new_space();
    open_gateway(&a, store, 2);
    open_gateway(&b, store, 2);
    assert_int_equal(take_of(&a, "k", 1000, LONG_MS, 100).rest, 900);
    assert_int_equal(take_of(&b, "k", 1000, LONG_MS, 300).rest, 600);
    const bt_quota_take_t take = take_of(&a, "k", 1000, LONG_MS, 100);
    assert_int_equal(take.rest, 500);
    assert_true(take.reset_ms > 0 && take.reset_ms <= LONG_MS);
    bt_quota_give(a.room, BT_STR("k"), LONG_MS, 50, take.window);
    assert_false(take_of(&a, "k", 1000, LONG_MS, 999).is_granted);
    assert_int_equal(take_of(&a, "k", 1000, LONG_MS, 1).rest, 549);
    assert_int_equal(take_of(&a, "none", 0, LONG_MS, 1).rest, 0);
    close_gateway(&a);
    close_gateway(&b);
    bt_store_close(store);
}

/* Of nobody that took anything here, too: a stream may end in a window after its own. */
static void is_charged_whatever_the_limit(void **state)
{
    bt_quota_take_t charge = {
        .key = BT_STR("k"), .limit = 1000, .amount = 900, .window_ms = LONG_MS};
    bt_store_t *store = open_store(NULL);
    struct gateway a, b;

    new_space();
    open_gateway(&a, store, 2);
    open_gateway(&b, store, 2);
    bt_quota_charge(a.room, &charge);
    assert_false(takes(&a, 1000, 101));
    assert_true(takes(&a, 1000, 100));
    while (takes(&b, 1000, 1)) /* until the debt is the store's */
        bt_quota_give(b.room, BT_STR("k"), LONG_MS, 1, 0), turn_once(&a.loop);
    charge.amount = 5000;
    bt_quota_charge(a.room, &charge);
    assert_false(takes(&a, 1000, 1));
    charge.amount = 0;
    bt_quota_charge(a.room, &charge); /* of nothing: nothing */
    close_gateway(&a);
    close_gateway(&b);
    bt_store_close(store);
}

static void leaves_room_for_others(void **state)
{
    bt_store_t *store = open_store(NULL);
    struct gateway g;
    bt_quota_take_t take = {.key = BT_STR("c"), .limit = 9, .amount = 1, .window_ms = LONG_MS};

    new_space();
    open_gateway(&g, store, 1);
    assert_true(take_of(&g, "a", 9, LONG_MS, 1).is_granted);
    assert_true(take_of(&g, "b", 9, LONG_MS, 1).is_granted);
    take.live_max = 2;
    assert_int_equal(bt_quota_take(g.room, &take), 0);
    assert_int_equal(take.rc, BT_E_LIMIT);
    take.key = BT_STR("a"); /* is there already */
    assert_int_equal(bt_quota_take(g.room, &take), 1);
    bt_quota_cancel(&take);
    assert_true(take_of(&g, "c", 9, LONG_MS, 1).is_granted); /* who does not leave room */
    close_gateway(&g);
    bt_store_close(store);
}

static void takes_a_higher_limit_at_once(void **state)
{
    bt_store_t *store = open_store(NULL);
    struct gateway g;

    new_space();
    open_gateway(&g, store, 1);
    assert_int_equal(drain(&g, 3, 1), 3);
    assert_int_equal(drain(&g, 5, 1), 2);
    close_gateway(&g);
    bt_store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grants_the_limit_and_no_more),
        cmocka_unit_test(answers_from_the_chunk_at_once),
        cmocka_unit_test(gives_back_to_the_unit),
        cmocka_unit_test(takes_what_was_used_beyond),
        cmocka_unit_test(gives_the_rest_back_when_idle),
        cmocka_unit_test(begins_anew_with_each_window),
        cmocka_unit_test(is_cancelled),
        cmocka_unit_test(hold_the_limit_together),
        cmocka_unit_test(loops_share_what_was_leased),
        cmocka_unit_test(holds_to_its_part_without_the_store),
        cmocka_unit_test(is_exact_again_when_it_is_back),
        cmocka_unit_test(says_what_is_left),
        cmocka_unit_test(is_charged_whatever_the_limit),
        cmocka_unit_test(leaves_room_for_others),
        cmocka_unit_test(takes_a_higher_limit_at_once),
    };

    alarm(120);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
