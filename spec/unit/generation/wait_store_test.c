/* What hooks want of the fleet's state: every operation, what can be answered at once, what is given up, what is sent; and start, on a thread without a loop. */
#include "generation/wait.h"

#include "../store/redis_server.h"

#include "base/err.h"
#include "base/pages.h"
#include "loop/util.h"

#include <stdio.h>

#define FAR_MS 30000
#define LONG_MS (UINT64_C(86400000) * 3650) /* one window, as far as a test can see */

static bt_loop_t loop;
static bt_store_t *store;
static bt_quotas_t *quotas;
static bt_wait_ctx_t room;
static bool is_gone;

static struct seen {
    unsigned times;
    int rc;
    int64_t number;
    uint64_t window, left_ms;
    char text[256], rows[256];
    bool is_none;
} seen;

static int setup(void **state)
{
    const bt_store_config_t config = {.url = NULL};
    char err[128];

    seen = (struct seen){.times = 0};
    is_gone = false;
    assert_int_equal(bt_loop_init(&loop, 0), 0);
    assert_int_equal(bt_store_open(&store, &config, err, sizeof(err)), 0);
    assert_int_equal(bt_quotas_new(&quotas, "space"), 0);
    room = (bt_wait_ctx_t){.loop = &loop, .space = "space", .replica = "gateway-1"};
    assert_int_equal(bt_store_client_new(&room.store, store, &loop, NULL, NULL), 0);
    return bt_quota_client_new(&room.quotas, quotas, room.store, &loop);
}

static void on_gone(void *user)
{
    (void) user;
    is_gone = true;
}

static int teardown(void **state)
{
    bt_wait_store_of_process(NULL);
    bt_quota_client_free(room.quotas);
    bt_store_client_free(room.store, on_gone, NULL);
    TURN_UNTIL(&loop, is_gone);
    bt_quotas_free(quotas);
    bt_store_close(store);
    bt_loop_fini(&loop);
    bt_pages_thread_fini();
    assert_int_equal(bt_soft_count(), 0);
    return 0;
}

static void note(const bt_hook_answer_t *answer)
{
    const bt_store_reply_t *reply = answer->store;
    size_t n = 0;

    seen.times++;
    seen.rc = answer->rc;
    if (answer->rc != 0)
        return;
    seen.number = reply->number;
    seen.window = reply->window;
    seen.left_ms = reply->left_ms;
    seen.is_none = reply->is_none;
    snprintf(seen.text, sizeof(seen.text), "%.*s", BT_STR_ARG(reply->text));
    seen.rows[0] = '\0';
    for (unsigned i = 0; i < reply->row_count; i++)
        n += (size_t) snprintf(seen.rows + n, sizeof(seen.rows) - n, "%.*s=%.*s ",
                               BT_STR_ARG(reply->rows[i].name), BT_STR_ARG(reply->rows[i].value));
}

static void on_done(bt_wait_t *wait, const bt_hook_answer_t *answer)
{
    assert_ptr_equal(bt_wait_user(wait), &seen);
    note(answer);
    bt_wait_free(&wait); /* from inside: what answer points to is not looked at any more */
}

static bt_hook_op_t want_of(enum bt_store_what what, const char *key)
{
    bt_hook_op_t hook_op = {.kind = BT_HOOK_OP_STORE, .ms = UINT64_MAX / 4};

    hook_op.store.what = what;
    hook_op.store.key = bt_str(key);
    return hook_op;
}

static void ask(const bt_hook_op_t *hook_op)
{
    const unsigned before = seen.times;
    bt_wait_t *wait = NULL;

    assert_int_equal(bt_wait_start(&wait, &room, hook_op, bt_clock_ms() + FAR_MS, on_done, &seen),
                     0);
    assert_int_equal(seen.times, before); /* never from inside */
    TURN_UNTIL(&loop, seen.times > before);
    turn(&loop, 5);
    assert_int_equal(seen.times, before + 1);
}

static void does_every_operation(void **state)
{
    bt_hook_op_t hook_op = want_of(BT_STORE_COUNTER_ADD, "n");

    hook_op.store.amount = 5;
    ask(&hook_op);
    assert_int_equal(seen.number, 5);
    hook_op = want_of(BT_STORE_CELL_SET, "c");
    hook_op.store.value = BT_STR("x");
    ask(&hook_op);
    assert_int_equal(seen.number, 1);
    hook_op.store.if_absent = true;
    ask(&hook_op);
    assert_int_equal(seen.number, 0);
    hook_op = want_of(BT_STORE_CELL_GET, "c");
    ask(&hook_op);
    assert_string_equal(seen.text, "x");
    hook_op = want_of(BT_STORE_CELL_DROP, "c");
    ask(&hook_op);
    hook_op = want_of(BT_STORE_CELL_GET, "c");
    ask(&hook_op);
    assert_true(seen.is_none);
    hook_op = want_of(BT_STORE_TABLE_PUT, "t");
    hook_op.store.field = BT_STR("f");
    hook_op.store.value = BT_STR("v");
    ask(&hook_op);
    hook_op = want_of(BT_STORE_TABLE_ALL, "t");
    ask(&hook_op);
    assert_string_equal(seen.rows, "f=v ");
    hook_op = want_of(BT_STORE_COUNTER_ADD, "t"); /* of another type */
    ask(&hook_op);
    assert_int_equal(seen.rc, BT_E_INVAL);
}

static void leases_are_the_gateways(void **state)
{
    bt_hook_op_t hook_op = want_of(BT_STORE_LEASE_TAKE, "l");

    hook_op.store.ttl_ms = FAR_MS;
    ask(&hook_op);
    const int64_t fence = seen.number;
    assert_true(fence > 0);
    room.replica = "gateway-2";
    ask(&hook_op);
    assert_int_equal(seen.number, 0);
    assert_string_equal(seen.text, "gateway-1");
    room.replica = "gateway-1";
    hook_op = want_of(BT_STORE_LEASE_DROP, "l");
    ask(&hook_op);
    assert_int_equal(seen.number, 1);
}

static void answers_quotas_at_once_where_it_can(void **state)
{
    bt_hook_op_t hook_op = want_of(BT_STORE_WINDOW_TAKE, "q"),
                 get = want_of(BT_STORE_CELL_GET, "c");
    const bt_hook_op_t nap = {.kind = BT_HOOK_OP_SLEEP, .ms = 1};
    bt_hook_answer_t answer;
    bt_store_reply_t reply;

    hook_op.store.limit = 160;
    hook_op.store.amount = 1;
    hook_op.store.window_ms = LONG_MS;
    assert_false(bt_wait_store_now(&room, &hook_op, &answer, &reply));
    ask(&hook_op);
    assert_int_equal(seen.number, 1);
    for (unsigned i = 1; i < 10; i++) {
        assert_true(bt_wait_store_now(&room, &hook_op, &answer, &reply));
        assert_int_equal(answer.rc, 0);
        assert_int_equal(answer.store->number, 1);
        assert_int_equal(answer.store->window, seen.window);
    }
    hook_op.store.amount = 161;
    assert_true(bt_wait_store_now(&room, &hook_op, &answer, &reply));
    assert_int_equal(answer.store->number, 0);
    assert_true(answer.store->left_ms > 0);
    hook_op.store.amount = 1;
    ask(&hook_op); /* whatever there is now: never from inside */
    assert_false(bt_wait_store_now(&room, &get, &answer, &reply));
    assert_false(bt_wait_store_now(&room, &nap, &answer, &reply));
}

static void refunds_are_sent(void **state)
{
    bt_hook_op_t take = want_of(BT_STORE_WINDOW_TAKE, "q"),
                 give = want_of(BT_STORE_WINDOW_GIVE, "q");

    take.store.limit = 10;
    take.store.amount = 10;
    take.store.window_ms = give.store.window_ms = LONG_MS;
    ask(&take);
    assert_int_equal(seen.number, 1);
    give.store.amount = 4;
    give.store.window = seen.window;
    bt_wait_store_send(&room, &give);
    take.store.amount = 4;
    ask(&take);
    assert_int_equal(seen.number, 1);
    take.store.amount = 1;
    ask(&take);
    assert_int_equal(seen.number, 0);
}

static void writes_are_sent(void **state)
{
    bt_hook_op_t add = want_of(BT_STORE_COUNTER_ADD, "n"), get = want_of(BT_STORE_CELL_GET, "n");

    add.store.amount = 1;
    for (unsigned i = 0; i < 20; i++)
        bt_wait_store_send(&room, &add);
    ask(&get);
    assert_string_equal(seen.text, "20");
    bt_wait_store_send(&room, &add); /* under way when the client goes: teardown frees it */
}

static void is_given_up(void **state)
{
    bt_hook_op_t get = want_of(BT_STORE_CELL_GET, "c"), take = want_of(BT_STORE_WINDOW_TAKE, "q");
    bt_wait_t *waits[3] = {NULL};

    take.store.limit = 10;
    take.store.amount = 1;
    take.store.window_ms = LONG_MS;
    const uint64_t until_ms = bt_clock_ms() + FAR_MS;
    assert_int_equal(bt_wait_start(&waits[0], &room, &get, until_ms, on_done, &seen), 0);
    assert_int_equal(bt_wait_start(&waits[1], &room, &take, until_ms, on_done, &seen), 0);
    take.store.amount = 11; /* answered at once, told later */
    assert_int_equal(bt_wait_start(&waits[2], &room, &take, until_ms, on_done, &seen), 0);
    for (unsigned i = 0; i < 3; i++)
        bt_wait_free(&waits[i]);
    turn(&loop, 20);
    assert_int_equal(seen.times, 0);
}

static void a_deadline_that_has_passed(void **state)
{
    const bt_hook_op_t get = want_of(BT_STORE_CELL_GET, "c");
    bt_wait_t *wait = NULL;

    assert_int_equal(bt_wait_start(&wait, &room, &get, bt_clock_ms(), on_done, &seen), 0);
    TURN_UNTIL(&loop, seen.times == 1);
    assert_int_equal(seen.rc, BT_E_TOTAL_TIMEOUT);
}

static void without_a_store(void **state)
{
    const bt_wait_ctx_t none = {.loop = &loop};
    const bt_hook_op_t get = want_of(BT_STORE_CELL_GET, "c");
    bt_hook_answer_t answer;
    bt_store_reply_t reply;
    bt_wait_t *wait = NULL;

    assert_true(bt_wait_store_now(&none, &get, &answer, &reply));
    assert_int_equal(answer.rc, BT_E_STORE_UNAVAILABLE);
    assert_int_equal(bt_wait_start(&wait, &none, &get, bt_clock_ms() + FAR_MS, on_done, &seen),
                     BT_E_STORE_UNAVAILABLE);
    bt_wait_store_send(&none, &get);
}

/* ---- on a thread without a loop ---- */

static void block(const bt_hook_op_t *hook_op)
{
    bt_hook_answer_t answer;
    char *body = NULL;

    assert_int_equal(bt_wait_blocking(hook_op, bt_clock_ms() + FAR_MS, &answer, &body), 0);
    note(&answer);
    free(body);
}

static void blocks_for_the_process_store(void **state)
{
    const bt_wait_process_t process = {
        .store = store, .quotas = quotas, .space = "space", .replica = "gateway-1"};
    bt_hook_op_t hook_op = want_of(BT_STORE_TABLE_PUT, "t");

    bt_wait_store_of_process(&process);
    hook_op.store.field = BT_STR("f");
    hook_op.store.value = BT_STR("v");
    block(&hook_op);
    hook_op = want_of(BT_STORE_TABLE_ALL, "t");
    block(&hook_op);
    assert_string_equal(seen.rows, "f=v ");
    ask(&hook_op); /* the loops see the same */
    assert_string_equal(seen.rows, "f=v ");
    hook_op = want_of(BT_STORE_CELL_SET, "c");
    hook_op.store.value = BT_STR("text");
    block(&hook_op);
    hook_op = want_of(BT_STORE_CELL_GET, "c");
    block(&hook_op);
    assert_string_equal(seen.text, "text");
    hook_op = want_of(BT_STORE_WINDOW_TAKE, "q");
    hook_op.store.limit = hook_op.store.amount = 3;
    hook_op.store.window_ms = LONG_MS;
    block(&hook_op);
    assert_int_equal(seen.number, 1);
    hook_op.store.amount = 1;
    ask(&hook_op);
    assert_int_equal(seen.number, 0);
}

static void blocks_for_a_store_of_the_moment(void **state)
{
    bt_hook_op_t hook_op = want_of(BT_STORE_COUNTER_ADD, "n");

    hook_op.store.amount = 1;
    block(&hook_op);
    assert_int_equal(seen.number, 1);
    block(&hook_op);
    assert_int_equal(seen.number, 1); /* it forgets */
}

static void blocks_no_longer_than_it_may(void **state)
{
    const bt_store_config_t config = {.url = "redis://127.0.0.1:1"};
    bt_hook_op_t hook_op = want_of(BT_STORE_CELL_GET, "c");
    bt_store_t *away;
    char err[128];

    assert_int_equal(bt_store_open(&away, &config, err, sizeof(err)), 0);
    const bt_wait_process_t process = {
        .store = away, .quotas = quotas, .space = "space", .replica = "gateway-1"};
    bt_wait_store_of_process(&process);
    block(&hook_op);
    assert_int_equal(seen.rc, BT_E_STORE_UNAVAILABLE);
    hook_op = want_of(BT_STORE_WINDOW_TAKE, "q");
    hook_op.store.limit = hook_op.store.amount = 3;
    hook_op.store.window_ms = LONG_MS;
    block(&hook_op);
    assert_int_equal(seen.number, 1); /* this gateway's part */
    bt_wait_store_of_process(NULL);
    bt_store_close(away);
}

/* The store's deadline is not the hook's: a hook that hears it may still wait for something else. */
static void a_late_answer_is_none_of_the_hooks_time(void **state)
{
    redis_server_t server;
    char url[64], err[128];
    const bt_store_config_t config = {.url = url};
    bt_wait_ctx_t slow = room;
    const bt_hook_op_t hook_op = want_of(BT_STORE_CELL_GET, "c");
    bt_store_t *shared;
    bt_wait_t *wait = NULL;

    if (redis_program() == NULL)
        skip();
    redis_start(&server, NULL);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", server.port);
    assert_int_equal(bt_store_open(&shared, &config, err, sizeof(err)), 0);
    assert_int_equal(bt_store_client_new(&slow.store, shared, &loop, NULL, NULL), 0);
    TURN_UNTIL(&loop, bt_store_health(shared, err, sizeof(err)) == BT_STORE_UP);
    redis_freeze(&server);
    assert_int_equal(bt_wait_start(&wait, &slow, &hook_op, bt_clock_ms() + FAR_MS, on_done, &seen),
                     0);
    TURN_UNTIL(&loop, seen.times == 1);
    assert_int_equal(seen.rc, BT_E_STORE_UNAVAILABLE);
    bt_store_client_free(slow.store, on_gone, NULL);
    TURN_UNTIL(&loop, is_gone);
    is_gone = false;
    bt_store_close(shared);
    redis_end(&server);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(does_every_operation),
        TEST(leases_are_the_gateways),
        TEST(answers_quotas_at_once_where_it_can),
        TEST(refunds_are_sent),
        TEST(writes_are_sent),
        TEST(is_given_up),
        TEST(a_deadline_that_has_passed),
        TEST(without_a_store),
        TEST(blocks_for_the_process_store),
        TEST(blocks_for_a_store_of_the_moment),
        TEST(blocks_no_longer_than_it_may),
        TEST(a_late_answer_is_none_of_the_hooks_time),
    };

    alarm(50);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
