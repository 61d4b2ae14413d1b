/* What every store does: its types and their times, and what it refuses. */
#include "suite_impl.h"

const bt_store_config_t *suite_config;
rig_t suite_rig;

int suite_setup(void **state)
{
    rig_open(&rig, suite_config);
    TURN_UNTIL(&rig.loop, rig.ups == 1);
    return 0;
}

int suite_teardown(void **state)
{
    rig_close(&rig);
    return 0;
}

/* ---- counters and cells ---- */
static void test_counter(void **state)
{
    assert_int_equal(DO(COUNTER_ADD, "n", .amount = 5).number, 5);
    assert_int_equal(DO(COUNTER_ADD, "n", .amount = -7).number, -2);
    assert_int_equal(DO(COUNTER_ADD, "m", .amount = 0).number, 0);
    assert_string_equal(DO(CELL_GET, "n").text, "-2"); /* read without adding */
    int64_t large = INT64_C(9007199254740993);         /* no double */
    assert_int_equal(DO(COUNTER_ADD, "l", .amount = large).number, large);
    assert_int_equal(DO(COUNTER_ADD, "t", .amount = large, .ttl_ms = 60000).number, large);
}

static void test_counter_overflow(void **state)
{
    DO(COUNTER_ADD, "n", .amount = INT64_MAX);
    assert_int_equal(ASK(COUNTER_ADD, "n", .amount = 1).rc, BT_E_LIMIT);
    assert_int_equal(ASK(COUNTER_ADD, "n", .amount = 1, .ttl_ms = 1000).rc, BT_E_LIMIT);
    assert_int_equal(DO(COUNTER_ADD, "n", .amount = 0).number, INT64_MAX);
}

static void test_counter_ttl(void **state)
{
    DO(COUNTER_ADD, "n", .amount = 3, .ttl_ms = 150);
    uint64_t begun = bt_clock_ms();
    /* The time runs from the first add, later ones do not move it. */
    UNTIL(DO(COUNTER_ADD, "n", .amount = 1, .ttl_ms = 150).number == 1);
    assert_in_range(bt_clock_ms() - begun, 130, 60000);
}

static void test_cell(void **state)
{
    assert_true(DO(CELL_GET, "c").is_none);
    assert_int_equal(DO(CELL_SET, "c", .value = S("one")).number, 1);
    assert_string_equal(DO(CELL_GET, "c").text, "one");
    assert_int_equal(DO(CELL_SET, "c", .value = S("two"), .if_absent = true).number, 0);
    assert_string_equal(DO(CELL_GET, "c").text, "one");
    assert_int_equal(DO(CELL_SET, "c", .value = S("")).number, 1);
    told_t empty = DO(CELL_GET, "c");
    assert_false(empty.is_none);
    assert_int_equal(empty.text_n, 0);
    assert_int_equal(DO(CELL_DROP, "c").number, 1);
    assert_int_equal(DO(CELL_DROP, "c").number, 0);
    assert_int_equal(DO(CELL_SET, "c", .value = S("three"), .if_absent = true).number, 1);
}

static void test_cell_holds_any_bytes(void **state)
{
    bt_store_op_t op = OP(CELL_SET, "a\0b\r\n}", .value = S("x\0y\r\n$3\r\n"));

    rig_do(&rig, op);
    op.what = BT_STORE_CELL_GET;
    assert_int_equal(rig_do(&rig, op).text_n, 9);
    assert_true(DO(CELL_GET, "a").is_none);
}

static void test_cell_ttl(void **state)
{
    DO(CELL_SET, "c", .value = S("short"), .ttl_ms = 60);
    DO(CELL_SET, "d", .value = S("long"), .ttl_ms = UINT64_MAX);
    UNTIL(DO(CELL_GET, "c").is_none);
    assert_string_equal(DO(CELL_GET, "d").text, "long");
    DO(CELL_SET, "d", .value = S("for ever"));
    assert_string_equal(DO(CELL_GET, "d").text, "for ever");
}

static void test_spaces_are_apart(void **state)
{
    bt_store_op_t other = OP(CELL_GET, "c");
    char name[64];

    DO(CELL_SET, "c", .value = S("here"));
    snprintf(name, sizeof(name), "%.*s-other", BT_STR_ARG(other.space));
    other.space = bt_str(name);
    assert_true(rig_do(&rig, other).is_none);
}

/* ---- leases ---- */
static void test_lease(void **state)
{
    told_t first = DO(LEASE_TAKE, "l", .value = S("a"), .ttl_ms = 60000);

    assert_true(first.number > 0);
    told_t refused = DO(LEASE_TAKE, "l", .value = S("b"), .ttl_ms = 60000);
    assert_int_equal(refused.number, 0);
    assert_string_equal(refused.text, "a");
    assert_int_equal(DO(LEASE_TAKE, "l", .value = S("a"), .ttl_ms = 60000).number, first.number);
    assert_int_equal(DO(LEASE_DROP, "l", .value = S("b")).number, 0);
    assert_int_equal(DO(LEASE_DROP, "l", .value = S("a")).number, 1);
    assert_int_equal(DO(LEASE_DROP, "l", .value = S("a")).number, 0);
    told_t second = DO(LEASE_TAKE, "l", .value = S("b"), .ttl_ms = 60000);
    assert_true(second.number > first.number);
}

static void test_lease_runs_out(void **state)
{
    told_t first = DO(LEASE_TAKE, "l", .value = S("a"), .ttl_ms = 60), taken;

    UNTIL((taken = DO(LEASE_TAKE, "l", .value = S("b"), .ttl_ms = 60)).number != 0);
    assert_true(taken.number > first.number);
    UNTIL((taken = DO(LEASE_TAKE, "l", .value = S("c"), .ttl_ms = 60000)).number != 0);
    assert_int_equal(DO(LEASE_DROP, "l", .value = S("b")).number, 0);
}

/* Whoever lost it without knowing gets another fence, though nobody else had it in between. */
static void test_lease_comes_back_with_another_fence(void **state)
{
    told_t first = DO(LEASE_TAKE, "l", .value = S("a"), .ttl_ms = 40);
    uint64_t until = bt_clock_ms() + 60;

    UNTIL(bt_clock_ms() > until);
    assert_true(DO(LEASE_TAKE, "l", .value = S("a"), .ttl_ms = 40).number > first.number);
}

static void test_lease_of_a_lost_key_has_a_larger_fence(void **state)
{
    told_t first = DO(LEASE_TAKE, "l", .value = S("a"), .ttl_ms = 60000);
    uint64_t until = bt_clock_ms() + 5; /* fences are as fine as a millisecond then */

    UNTIL(bt_clock_ms() > until);
    DO(CELL_DROP, "l");
    assert_true(DO(LEASE_TAKE, "l", .value = S("b"), .ttl_ms = 60000).number > first.number);
}

/* ---- windows ---- */
#define TAKE(n) DO(WINDOW_TAKE, "w", .limit = 10, .window_ms = 3600000, .amount = n)

static void test_window(void **state)
{
    told_t first = TAKE(4);

    assert_int_equal(first.number, 4);
    assert_in_range(first.left_ms, 1, 3600000);
    assert_int_equal(TAKE(4).number, 4);
    told_t last = TAKE(4);
    if (last.window != first.window)
        skip(); /* the hour has just turned */
    assert_int_equal(last.number, 2);
    assert_int_equal(TAKE(1).number, 0);
    assert_int_equal(
        DO(WINDOW_GIVE, "w", .window_ms = 3600000, .amount = 3, .window = first.window).number, 3);
    assert_int_equal(TAKE(10).number, 3);
    /* More than was taken does not come back. */
    assert_int_equal(
        DO(WINDOW_GIVE, "w", .window_ms = 3600000, .amount = 99, .window = first.window).number,
        10);
    assert_int_equal(TAKE(11).number, 10);
    assert_int_equal(DO(WINDOW_TAKE, "v", .limit = 0, .window_ms = 1000, .amount = 1).number, 0);
    assert_int_equal(DO(WINDOW_TAKE, "v", .limit = 1, .window_ms = 1000, .amount = 0).number, 0);
}

#define SHORT(n) DO(WINDOW_TAKE, "w", .limit = 5, .window_ms = 200, .amount = n)

static void test_window_turns(void **state)
{
    told_t first = SHORT(5), next;

    UNTIL((next = SHORT(1)).window != first.window);
    assert_int_equal(next.number, 1);
    assert_true(next.window > first.window);
    /* A refund of a window that is over changes nothing in this one. */
    told_t back = DO(WINDOW_GIVE, "w", .window_ms = 200, .amount = 5, .window = first.window);
    assert_int_equal(back.number, 0);
    told_t more = SHORT(5);
    if (more.window == next.window)
        assert_int_equal(more.number, 4);
}

/* ---- tables ---- */
static void put(const char *field, const char *value, uint64_t ttl_ms)
{
    DO(TABLE_PUT, "t", .field = bt_str(field), .value = bt_str(value), .ttl_ms = ttl_ms);
}

static void test_table(void **state)
{
    assert_int_equal(DO(TABLE_ALL, "t").row_count, 0);
    put("b", "2", 0);
    put("a", "1:x", 60000);
    put("b", "two", 0);
    told_t all = DO(TABLE_ALL, "t");
    assert_int_equal(all.row_count, 2);
    assert_string_equal(all.names[0], "a");
    assert_string_equal(all.values[0], "1:x");
    assert_string_equal(all.names[1], "b");
    assert_string_equal(all.values[1], "two");
    assert_int_equal(all.text_n, 0);
    told_t sync = DO(TABLE_SYNC, "t", .field = S("c"), .value = S(""), .ttl_ms = 1000);
    assert_int_equal(sync.row_count, 3);
    assert_string_equal(sync.names[2], "c");
    assert_int_equal(DO(TABLE_DROP, "t", .field = S("b")).number, 1);
    assert_int_equal(DO(TABLE_DROP, "t", .field = S("b")).number, 0);
    assert_int_equal(DO(TABLE_ALL, "t").row_count, 2);
}

static void test_table_fields_run_out_one_by_one(void **state)
{
    told_t all;

    put("dead", "1", 60);
    put("short", "1", 300);
    put("ever", "1", 0);
    UNTIL((all = DO(TABLE_ALL, "t")).row_count < 3);
    assert_string_equal(all.names[0], "ever");
    UNTIL((all = DO(TABLE_ALL, "t")).row_count < 2);
    assert_string_equal(all.names[0], "ever");
    assert_int_equal(DO(TABLE_DROP, "t", .field = S("dead")).number, 0);
}

/* A writer that comes again lives on; the key itself must outlive its longest field. */
static void test_table_renewed(void **state)
{
    put("long", "1", 60000);
    put("short", "1", 50);
    told_t all;
    UNTIL((all = DO(TABLE_SYNC, "t", .field = S("me"), .value = S("1"), .ttl_ms = 50)).row_count ==
          2);
    assert_string_equal(all.names[0], "long");
    assert_string_equal(all.names[1], "me");
}

static void test_table_field_of_any_name(void **state)
{
    put("t", "L", 0); /* what marks a lease inside Redis */
    put("", "empty", 0);
    told_t all = DO(TABLE_ALL, "t");
    assert_int_equal(all.row_count, 2);
    assert_string_equal(all.values[0], "empty");
    assert_string_equal(all.values[1], "L");
}

/* ---- logs ---- */
static void add(const char *value, int64_t keep, char *position)
{
    told_t told = DO(LOG_ADD, "log", .value = bt_str(value), .limit = keep);

    assert_true(told.text_n > 2);
    if (position != NULL)
        snprintf(position, 48, "%.47s", told.text);
}

static told_t read_from(const char *position, int64_t rows)
{
    return DO(LOG_READ, "log", .field = bt_str(position), .limit = rows);
}

static void test_log(void **state)
{
    char first[48], last[48];

    add("one", 100, first);
    add("two", 100, NULL);
    add("three", 100, last);
    told_t all = read_from("0", 10);
    assert_int_equal(all.row_count, 3);
    assert_string_equal(all.names[0], first);
    assert_string_equal(all.values[0], "one");
    assert_string_equal(all.values[2], "three");
    assert_string_equal(all.text, last);
    assert_false(all.is_gap);
    told_t rest = read_from(first, 1);
    assert_int_equal(rest.row_count, 1);
    assert_string_equal(rest.values[0], "two");
    assert_string_equal(rest.text, rest.names[0]);
    told_t none = read_from(last, 10);
    assert_int_equal(none.row_count, 0);
    assert_string_equal(none.text, last);
    assert_false(none.is_gap);
}

static void test_log_from_now_on(void **state)
{
    told_t empty = read_from("", 10);

    assert_string_equal(empty.text, "0-0");
    assert_false(empty.is_gap);
    add("one", 100, NULL);
    told_t first = read_from(empty.text, 10);
    assert_int_equal(first.row_count, 1);
    assert_false(first.is_gap);
    told_t now = read_from("", 10);
    assert_int_equal(now.row_count, 0);
    assert_string_equal(now.text, first.text);
}

static void test_log_gap(void **state)
{
    char seen[48], text[16];

    add("old", 5, seen);
    for (int i = 0; i < 5; i++) {
        snprintf(text, sizeof(text), "%d", i);
        add(text, 5, NULL);
    }
    /* Only what was read already has gone. */
    told_t whole = read_from(seen, 10);
    assert_false(whole.is_gap);
    assert_int_equal(whole.row_count, 5);
    add("5", 5, NULL);
    told_t gap = read_from(seen, 10);
    assert_true(gap.is_gap);
    assert_int_equal(gap.row_count, 5);
    assert_string_equal(gap.values[0], "1");
    assert_string_equal(gap.values[4], "5");
    assert_false(read_from(gap.text, 10).is_gap);
    assert_false(read_from("0", 10).is_gap); /* asked for what there is */
    assert_true(read_from("0-0", 10).is_gap);
}

static void test_log_lost_and_begun_anew(void **state)
{
    char old[48];

    add("one", 5, NULL);
    add("two", 5, old);
    DO(CELL_DROP, "log");
    told_t lost = read_from(old, 10);
    assert_true(lost.is_gap);
    assert_int_equal(lost.row_count, 0);
    assert_false(read_from(lost.text, 10).is_gap);
    uint64_t until = bt_clock_ms() + 5;
    UNTIL(bt_clock_ms() > until);
    for (int i = 0; i < 3; i++) /* its numbers pass the old position */
        add("new", 5, NULL);
    told_t anew = read_from(old, 10);
    assert_true(anew.is_gap);
    assert_int_equal(anew.row_count, 3);
}

/* ---- what is refused ---- */
static void test_other_types(void **state)
{
    DO(CELL_SET, "cell", .value = S("x"));
    DO(LEASE_TAKE, "lease", .value = S("a"), .ttl_ms = 60000);
    TAKE(1);
    put("f", "v", 0);
    add("x", 5, NULL);
    static const unsigned types[] = {0, 1, 2, 3, 4,
                                     1, 2, 3, 4, 3}; /* an op's own, by number in keys */
    static const char *const keys[] = {"cell", "lease", "w", "t", "log"};
    for (unsigned i = 0; i < 5; i++) {
        bt_store_op_t ops[] = {
            OP(COUNTER_ADD, "", .amount = 1),
            OP(LEASE_TAKE, "", .value = S("a"), .ttl_ms = 60000),
            OP(WINDOW_TAKE, "", .limit = 1, .window_ms = 60000, .amount = 1),
            OP(TABLE_PUT, "", .field = S("f"), .value = S("v")),
            OP(LOG_ADD, "", .value = S("v"), .limit = 5),
            OP(LEASE_DROP, "", .value = S("a")),
            OP(WINDOW_GIVE, "", .window_ms = 60000, .amount = 1),
            OP(TABLE_ALL, ""),
            OP(LOG_READ, "", .field = S("0"), .limit = 5),
            OP(TABLE_DROP, "", .field = S("f")),
        };
        for (unsigned k = 0; k < sizeof(ops) / sizeof(ops[0]); k++) {
            if (i > 0 && types[k] == i)
                continue;
            ops[k].key = bt_str(keys[i]);
            told_t told = rig_ask(&rig, ops[k]);
            if (told.rc != BT_E_INVAL)
                fail_msg("op %u on %s: rc %d", k, keys[i], told.rc);
        }
    }
    assert_int_equal(rig_health(&rig), BT_STORE_UP); /* the caller's fault, not the store's */
    assert_int_equal(DO(CELL_SET, "t", .value = S("over")).number, 1); /* takes any key over */
    assert_string_equal(DO(CELL_GET, "t").text, "over");
}

static void test_bad_ops(void **state)
{
    static char large[(1 << 20) + 1], long_key[513];
    bt_store_op_t ops[] = {
        OP(CELL_GET, ""),
        {.what = BT_STORE_CELL_GET, .space = rig_space(), .key = {long_key, 513}},
        OP(CELL_SET, "k", .value = {large, sizeof(large)}),
        OP(LEASE_TAKE, "k", .value = S("a")),
        OP(LEASE_TAKE, "k", .ttl_ms = 1000),
        OP(WINDOW_TAKE, "k", .limit = 1, .amount = 1),
        OP(WINDOW_TAKE, "k", .limit = 1, .amount = -1, .window_ms = 1000),
        OP(WINDOW_TAKE, "k", .limit = -1, .amount = 1, .window_ms = 1000),
        OP(WINDOW_TAKE, "k", .limit = INT64_MAX, .amount = 1, .window_ms = 1000),
        OP(LOG_ADD, "k"),
        OP(LOG_READ, "k", .limit = 5, .field = S("yesterday")),
        OP(LOG_READ, "k", .limit = 5, .field = S("1-")),
        {.what = (enum bt_store_what) 99, .space = rig_space(), .key = BT_STR("k")},
    };

    memset(long_key, 'k', sizeof(long_key));
    for (unsigned i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        assert_int_equal(rig_ask(&rig, ops[i]).rc, BT_E_INVAL);
    bt_store_op_t braces = OP(CELL_GET, "k");
    braces.space = S("a}b");
    assert_int_equal(rig_ask(&rig, braces).rc, BT_E_INVAL);
    braces.space = S("");
    assert_int_equal(rig_ask(&rig, braces).rc, BT_E_INVAL);
}

int suite_run(const char *name, const bt_store_config_t *config)
{
    const struct CMUnitTest tests[] = {
        T(test_counter),
        T(test_counter_overflow),
        T(test_counter_ttl),
        T(test_cell),
        T(test_cell_holds_any_bytes),
        T(test_cell_ttl),
        T(test_spaces_are_apart),
        T(test_lease),
        T(test_lease_runs_out),
        T(test_lease_comes_back_with_another_fence),
        T(test_lease_of_a_lost_key_has_a_larger_fence),
        T(test_window),
        T(test_window_turns),
        T(test_table),
        T(test_table_fields_run_out_one_by_one),
        T(test_table_renewed),
        T(test_table_field_of_any_name),
        T(test_log),
        T(test_log_from_now_on),
        T(test_log_gap),
        T(test_log_lost_and_begun_anew),
        T(test_other_types),
        T(test_bad_ops),
    };

    suite_config = config;
    return cmocka_run_group_tests_name(name, tests, NULL, NULL) + suite_run_life(name);
}
