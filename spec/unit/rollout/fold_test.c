/* What a log says: entry by entry, and then thousands of logs that nobody has thought of. */

#include "base/rand.h"
#include "rollout/fold.h"
#include "unit.h"

#include <stdio.h>

static bt_rollout_log_t lg;

/* ---- one log by hand ---- */

static bt_rollout_entry_t entry(enum bt_rollout_kind kind, uint64_t number, const char *uuid,
                                const char *replica)
{
    bt_rollout_entry_t e = {.kind = kind, .info.number = number};

    bt_str_copy(e.info.uuid, sizeof e.info.uuid, uuid);
    bt_str_copy(e.info.replica, sizeof e.info.replica, replica);
    return e;
}

/* As it comes out of a store. */
static void fold(bt_rollout_log_t *log, const bt_rollout_entry_t *e)
{
    bt_rollout_entry_t read;
    bt_text_t text;

    bt_text_init(&text);
    bt_rollout_entry_write(e, &text);
    bt_rollout_entry_read(&read, bt_text_str(&text));
    assert_int_equal(read.kind, e->kind);
    bt_rollout_fold(log, &read);
    bt_text_fini(&text);
}

static void propose(uint64_t number, const char *uuid, uint64_t base, const char *base_uuid,
                    const char *members)
{
    bt_rollout_entry_t e = entry(BT_ROLLOUT_PROPOSE, number, uuid, "a");

    e.info.previous = base;
    bt_str_copy(e.info.previous_uuid, sizeof e.info.previous_uuid, base_uuid);
    e.members = bt_str(members);
    fold(&lg, &e);
}

static void base(uint64_t number, const char *uuid, uint64_t top)
{
    bt_rollout_entry_t e = entry(BT_ROLLOUT_BASE, number, uuid, "a");

    e.top = top;
    fold(&lg, &e);
}

static void put(enum bt_rollout_kind kind, const char *uuid, const char *replica, const char *why)
{
    bt_rollout_entry_t e = entry(kind, 0, uuid, replica);

    bt_str_copy(e.why, sizeof e.why, why);
    fold(&lg, &e);
}

static void expect(const char *committed, const char *open)
{
    const bt_rollout_row_t *row = bt_rollout_open(&lg);

    assert_string_equal(lg.committed.uuid, committed);
    assert_string_equal(row != NULL ? row->info.uuid : "", open);
}

static void expect_end(const char *uuid, enum bt_rollout_kind end, const char *why)
{
    const bt_rollout_row_t *row = bt_rollout_row(&lg, uuid);

    assert_non_null(row);
    assert_int_equal(row->state, BT_ROLLOUT_ABORTED);
    assert_int_equal(row->end, end);
    assert_string_equal(row->why, why);
}

static int begin(void **state)
{
    memset(&lg, 0, sizeof lg);
    return 0;
}

/* Set 1 is committed: u1. */
static int begin_with_one(void **state)
{
    begin(state);
    base(0, "", 0);
    propose(1, "u1", 0, "", "[\"a\"]");
    put(BT_ROLLOUT_YES, "u1", "a", "");
    return 0;
}

static void test_the_last_yes_commits(void **state)
{
    expect("u1", "");
    propose(2, "u2", 1, "u1", "[\"a\",\"b\",\"c\"]");
    expect("u1", "u2");
    put(BT_ROLLOUT_TRYING, "u2", "a", "");
    put(BT_ROLLOUT_YES, "u2", "a", "");
    put(BT_ROLLOUT_YES, "u2", "a", ""); /* twice is once */
    put(BT_ROLLOUT_YES, "u2", "d", ""); /* no member */
    put(BT_ROLLOUT_YES, "u1", "c", ""); /* of another */
    put(BT_ROLLOUT_YES, "u2", "b", "");
    expect("u1", "u2");
    put(BT_ROLLOUT_YES, "u2", "c", "");
    expect("u2", "");
    assert_int_equal(lg.committed.number, 2);
    assert_string_equal(lg.committed.previous_uuid, "u1");
    /* What stands first is so. */
    put(BT_ROLLOUT_NO, "u2", "c", "late");
    put(BT_ROLLOUT_EXPIRE, "u2", "", "9 ms");
    expect("u2", "");
    assert_int_equal(bt_rollout_row(&lg, "u2")->state, BT_ROLLOUT_COMMITTED);
}

static void test_the_first_no_or_expire_aborts(void **state)
{
    propose(2, "u2", 1, "u1", "[\"a\",\"b\"]");
    put(BT_ROLLOUT_NO, "u2", "d", "no member");
    expect("u1", "u2");
    put(BT_ROLLOUT_NO, "u2", "b", "x.lua:1: no");
    expect("u1", "");
    expect_end("u2", BT_ROLLOUT_NO, "replica b refuses: x.lua:1: no");
    put(BT_ROLLOUT_YES, "u2", "a", "");
    put(BT_ROLLOUT_YES, "u2", "b", "");
    expect("u1", "");
    propose(3, "u3", 1, "u1", "[\"a\",\"b\",\"c\",\"d\"]");
    put(BT_ROLLOUT_YES, "u3", "a", "");
    put(BT_ROLLOUT_TRYING, "u3", "b", "");
    put(BT_ROLLOUT_GONE, "u3", "c", "");
    put(BT_ROLLOUT_EXPIRE, "u3", "", "10 ms");
    expect("u1", "");
    expect_end("u3", BT_ROLLOUT_EXPIRE, "no vote within 10 ms from b, d");
    put(BT_ROLLOUT_YES, "u3", "b", "");
    expect("u1", "");
    assert_int_equal(lg.top, 3); /* a number is never used twice */
}

static void test_who_is_gone_is_not_waited_for(void **state)
{
    propose(2, "u2", 1, "u1", "[\"a\",\"b\"]");
    put(BT_ROLLOUT_GONE, "u2", "b", "");
    put(BT_ROLLOUT_NO, "u2", "b", "too late");
    expect("u1", "u2");
    put(BT_ROLLOUT_YES, "u2", "a", "");
    expect("u2", "");
    propose(3, "u3", 2, "u2", "[\"a\",\"b\"]");
    put(BT_ROLLOUT_YES, "u3", "a", "");
    put(BT_ROLLOUT_GONE, "u3", "a", ""); /* its yes stands */
    put(BT_ROLLOUT_GONE, "u3", "b", "");
    expect("u3", "");
    propose(4, "u4", 3, "u3", "[\"a\",\"b\"]");
    put(BT_ROLLOUT_GONE, "u4", "a", "");
    put(BT_ROLLOUT_GONE, "u4", "b", "");
    expect("u3", "");
    assert_int_equal(bt_rollout_row(&lg, "u4")->end, BT_ROLLOUT_GONE);
}

static void test_void_proposals(void **state)
{
    static char many[BT_ROLLOUT_MEMBERS_MAX * 8 + 64] = "[\"m\"";

    propose(2, "outdated", 0, "", "[\"a\"]");
    propose(2, "other base", 1, "lost", "[\"a\"]");
    propose(1, "used", 1, "u1", "[\"a\"]");
    propose(2, "", 1, "u1", "[\"a\"]");
    propose(2, "nobody", 1, "u1", "[]");
    propose(2, "nonsense", 1, "u1", "7");
    for (unsigned i = 0; i < BT_ROLLOUT_MEMBERS_MAX; i++)
        sprintf(many + strlen(many), ",\"m%u\"", i);
    propose(2, "too many", 1, "u1", strcat(many, "]"));
    expect("u1", "");
    assert_int_equal(lg.row_count, 1);
    propose(2, "u2", 1, "u1", "[\"a\"]");
    propose(3, "while one is open", 1, "u1", "[\"b\"]");
    put(BT_ROLLOUT_YES, "while one is open", "b", "");
    propose(2, "u2", 1, "u1", "[\"a\"]"); /* said twice: its reply was lost */
    expect("u1", "u2");
    put(BT_ROLLOUT_YES, "u2", "a", "");
    propose(2, "u2", 1, "u1", "[\"a\"]");
    expect("u2", "");
    assert_int_equal(lg.top, 2);
}

static void test_bases(void **state)
{
    propose(2, "u2", 1, "u1", "[\"a\"]");
    base(1, "u1", 0); /* known: nothing */
    base(0, "", 0);
    base(1, "another of that number", 0); /* the first stands */
    expect("u1", "u2");
    base(5, "u5", 7); /* the highest wins, and what is open is void */
    expect("u5", "");
    expect_end("u2", BT_ROLLOUT_BASE, "the shared store has forgotten the proposal");
    assert_int_equal(lg.top, 7);
    put(BT_ROLLOUT_YES, "u2", "a", "");
    expect("u5", "");
    propose(8, "u8", 5, "u5", "[\"a\"]");
    base(8, "u8", 0); /* somebody has seen its last yes, and then the store lost it */
    expect("u8", "");
    assert_int_equal(bt_rollout_row(&lg, "u8")->state, BT_ROLLOUT_COMMITTED);
}

static void test_the_tail_is_enough(void **state)
{
    put(BT_ROLLOUT_YES, "u3", "b", "");
    assert_false(lg.is_known);
    propose(5, "u5", 4, "u4", "[\"a\"]");
    assert_true(lg.is_known);
    expect("u4", "u5");
    assert_int_equal(lg.committed.number, 4);
    /* The tail began with what was void: who proposes next knows better. */
    propose(7, "u7", 6, "u6", "[\"a\"]");
    expect("u6", "u7");
    put(BT_ROLLOUT_YES, "u5", "a", "");
    put(BT_ROLLOUT_YES, "u7", "a", "");
    expect("u7", "");
}

static void test_what_can_be_gone_back_to_is_kept(void **state)
{
    char uuid[16];
    unsigned dropped = 0;

    propose(2, "u2", 1, "u1", "[\"a\"]");
    put(BT_ROLLOUT_YES, "u2", "a", "");
    for (unsigned n = 3; n < 60; n++) {
        snprintf(uuid, sizeof uuid, "u%u", n);
        propose(n, uuid, 2, "u2", "[\"a\"]");
        assert_string_not_equal(lg.dropped, "u1");
        assert_string_not_equal(lg.dropped, "u2");
        dropped += lg.dropped[0] != '\0';
        put(BT_ROLLOUT_NO, uuid, "a", "no");
        assert_string_equal(lg.dropped, "");
    }
    assert_non_null(bt_rollout_row(&lg, "u1"));
    assert_non_null(bt_rollout_row(&lg, "u2"));
    assert_null(bt_rollout_row(&lg, "u3"));
    assert_int_equal(lg.row_count, BT_ROLLOUT_ROWS_MAX);
    assert_int_equal(dropped, 59 - BT_ROLLOUT_ROWS_MAX);
}

static void test_what_cannot_be_read_changes_nothing(void **state)
{
    static const char *const texts[] = {"",
                                        "x",
                                        "[]",
                                        "{}",
                                        "{\"what\":\"later\",\"uuid\":\"u2\"}",
                                        "{\"what\":7,\"number\":-1}",
                                        "{\"what\":\"yes\",\"uuid\":\"u2\"}"};
    bt_rollout_entry_t e;

    propose(2, "u2", 1, "u1", "[\"a\"]");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        bt_rollout_entry_read(&e, bt_str(texts[i]));
        bt_rollout_fold(&lg, &e);
        expect("u1", "u2");
    }
}

/* ---- logs that nobody has thought of ---- */

#define REPLICAS 5
#define ENTRIES 400

typedef struct replica {
    bt_rollout_log_t log;
    bool is_alive;
    unsigned process, epoch, read; /* of this log; 0 = from its oldest entry */
    bt_rollout_info_t held;
} replica_t;

/* What follows from a log's first n entries, found out in another way: each proposal is looked at
 * from its own entry on. */
typedef struct said {
    char committed[BT_ROLLOUT_UUID_BYTES], open[BT_ROLLOUT_UUID_BYTES];
    uint64_t number, top;
    bool is_known;
} said_t;

static bt_rollout_entry_t entries[ENTRIES];
static char member_texts[ENTRIES][64];
static said_t said[ENTRIES + 1]; /* by count of entries */
static unsigned count, oldest, epoch, uuids, commits, aborts;
static replica_t replicas[REPLICAS];

static bool is_member(const bt_rollout_entry_t *e, const char *name)
{
    char quoted[16];

    snprintf(quoted, sizeof quoted, "\"%s\"", name);
    return bt_str_find(e->members, bt_str(quoted)) >= 0;
}

/* +1 committed, -1 aborted, 0 open, by the entries up to `to`. */
static int outcome_of(unsigned at, unsigned to)
{
    char answers[REPLICAS] = {0};

    for (unsigned i = at + 1; i < to; i++) {
        const bt_rollout_entry_t *e = &entries[i];
        const unsigned who = (unsigned) (e->info.replica[0] - 'a');
        unsigned waiting = 0, yes = 0;
        if (strcmp(e->info.uuid, entries[at].info.uuid) != 0 || e->kind == BT_ROLLOUT_PROPOSE ||
            e->kind == BT_ROLLOUT_BASE)
            continue;
        if (e->kind == BT_ROLLOUT_EXPIRE)
            return -1;
        if (!is_member(&entries[at], e->info.replica) || answers[who] != 0)
            continue;
        if (e->kind == BT_ROLLOUT_NO)
            return -1;
        if (e->kind != BT_ROLLOUT_TRYING)
            answers[who] = e->kind == BT_ROLLOUT_YES ? 'y' : 'g';
        for (unsigned k = 0; k < REPLICAS; k++) {
            const char name[2] = {(char) ('a' + k), '\0'};
            waiting += is_member(&entries[at], name) && answers[k] == 0;
            yes += answers[k] == 'y';
        }
        if (waiting == 0)
            return yes > 0 ? 1 : -1;
    }
    return 0;
}

static void work_out(void)
{
    said_t s = said[count - 1];
    const bt_rollout_entry_t *e = &entries[count - 1];
    unsigned at = 0;

    if (e->kind == BT_ROLLOUT_BASE) {
        s.top = s.top > e->top ? s.top : e->top;
        s.top = s.top > e->info.number ? s.top : e->info.number;
        if (!s.is_known || e->info.number > s.number) {
            s.number = e->info.number;
            memcpy(s.committed, e->info.uuid, sizeof s.committed);
            s.open[0] = '\0';
        }
        s.is_known = true;
    } else if (e->kind == BT_ROLLOUT_PROPOSE) {
        if (!s.is_known || e->info.previous > s.number) { /* its proposer has seen that */
            s.number = e->info.previous;
            s.top = s.top > s.number ? s.top : s.number;
            memcpy(s.committed, e->info.previous_uuid, sizeof s.committed);
            s.open[0] = '\0';
        }
        s.is_known = true;
        if (s.open[0] == '\0' && strcmp(e->info.previous_uuid, s.committed) == 0 &&
            e->info.number > s.top) {
            memcpy(s.open, e->info.uuid, sizeof s.open);
            s.top = e->info.number;
        }
    } else if (s.open[0] != '\0') {
        while (entries[at].kind != BT_ROLLOUT_PROPOSE || strcmp(entries[at].info.uuid, s.open) != 0)
            at++;
        const int outcome = outcome_of(at, count);
        commits += outcome > 0;
        aborts += outcome < 0;
        if (outcome > 0) {
            s.number = entries[at].info.number;
            memcpy(s.committed, s.open, sizeof s.committed);
        }
        if (outcome != 0)
            s.open[0] = '\0';
    }
    said[count] = s;
}

static void append(const bt_rollout_entry_t *e)
{
    if (count == ENTRIES)
        return;
    entries[count] = *e;
    if (e->members.n > 0) {
        snprintf(member_texts[count], sizeof member_texts[0], "%.*s", BT_STR_ARG(e->members));
        entries[count].members = bt_str(member_texts[count]);
    }
    count++;
    work_out();
}

static void check(const replica_t *r)
{
    const said_t *s = &said[r->read];
    const bt_rollout_row_t *open = bt_rollout_open(&r->log);

    assert_int_equal(r->log.is_known, s->is_known);
    assert_string_equal(r->log.committed.uuid, s->committed);
    assert_int_equal(r->log.committed.number, s->number);
    assert_string_equal(open != NULL ? open->info.uuid : "", s->open);
    assert_int_equal(r->log.top, s->top);
}

static void read_some(replica_t *r)
{
    unsigned more = 1 + (unsigned) bt_rand_below(8);

    if (r->epoch != epoch || r->read < oldest) {
        memset(&r->log, 0, sizeof r->log);
        r->epoch = epoch;
        r->read = oldest;
        more = ENTRIES; /* who begins anew reads to the end before he acts */
    }
    for (; more > 0 && r->read < count; more--)
        fold(&r->log, &entries[r->read++]);
    check(r);
    if (r->log.is_known && r->log.committed.number >= r->held.number)
        r->held = r->log.committed;
}

static void act_propose(const replica_t *r, const char *name)
{
    bt_rollout_entry_t e = entry(BT_ROLLOUT_PROPOSE, 0, "", name);
    char members[64] = "";

    if (!r->log.is_known)
        return;
    for (unsigned i = 0; i < REPLICAS; i++)
        if (replicas[i].is_alive && bt_rand_below(4) > 0)
            sprintf(members + strlen(members), "%s\"%c\"", members[0] != '\0' ? "," : "[",
                    (char) ('a' + i));
    if (members[0] == '\0')
        return;
    snprintf(e.info.uuid, sizeof e.info.uuid, "u%u", ++uuids);
    e.info.number = r->log.top + 1;
    e.info.previous = r->log.committed.number;
    memcpy(e.info.previous_uuid, r->log.committed.uuid, sizeof e.info.previous_uuid);
    e.members = bt_str(strcat(members, "]"));
    append(&e);
}

static void act_answer(const replica_t *r, const char *name)
{
    static const enum bt_rollout_kind kinds[] = {BT_ROLLOUT_TRYING, BT_ROLLOUT_YES, BT_ROLLOUT_YES,
                                                 BT_ROLLOUT_YES,    BT_ROLLOUT_YES, BT_ROLLOUT_YES,
                                                 BT_ROLLOUT_NO,     BT_ROLLOUT_GONE};
    const bt_rollout_row_t *open = bt_rollout_open(&r->log);
    const char other[2] = {(char) ('a' + bt_rand_below(REPLICAS)), '\0'};
    const enum bt_rollout_kind kind = kinds[bt_rand_below(sizeof kinds / sizeof kinds[0])];
    bt_rollout_entry_t e;

    if (open == NULL)
        return;
    e = entry(kind, open->info.number, open->info.uuid, kind == BT_ROLLOUT_GONE ? other : name);
    if (bt_rand_below(40) == 0)
        e.kind = BT_ROLLOUT_EXPIRE;
    append(&e);
}

static void act_base(const replica_t *r, const char *name)
{
    bt_rollout_entry_t e = entry(BT_ROLLOUT_BASE, 0, "", name);

    if (r->log.is_known && r->held.number <= r->log.committed.number)
        return;
    e.info = r->held;
    e.top = r->log.top;
    append(&e);
}

/* The tail that is left begins with a proposal that counts, or a base. */
static void trim(void)
{
    for (unsigned i = count; i-- > oldest;)
        if ((entries[i].kind == BT_ROLLOUT_PROPOSE &&
             strcmp(said[i + 1].open, entries[i].info.uuid) == 0) ||
            (entries[i].kind == BT_ROLLOUT_BASE &&
             strcmp(said[i + 1].committed, entries[i].info.uuid) == 0 &&
             said[i + 1].open[0] == '\0' && entries[i].top >= said[i + 1].top)) {
            oldest = i;
            return;
        }
}

static void step(unsigned at)
{
    replica_t *r = &replicas[at];
    const char name[2] = {(char) ('a' + at), '\0'};
    const uint64_t dice = bt_rand_below(100);

    if (!r->is_alive) {
        if (dice < 20) /* it comes again, and knows nothing */
            *r = (replica_t){.is_alive = true, .epoch = UINT32_MAX};
    } else if (dice < 45) {
        read_some(r);
    } else if (dice < 55) {
        act_propose(r, name);
    } else if (dice < 90) {
        act_answer(r, name);
    } else if (dice < 95) {
        act_base(r, name);
    } else if (dice < 98) {
        r->is_alive = false;
    } else if (dice < 99) {
        trim();
    }
}

/* The store is flushed: another log begins. */
static void flush(void)
{
    count = oldest = 0;
    epoch++;
    said[0] = (said_t){0};
}

static void ask(const char *uuid, const char *members)
{
    bt_rollout_entry_t e = entry(BT_ROLLOUT_ASK, 9, uuid, "a");

    e.members = bt_str(members);
    fold(&lg, &e);
}

/* It is voted on, and that is all. */
static void test_dry_runs(void **state)
{
    ask("d1", "[\"a\",\"b\"]");
    expect("u1", "d1");
    ask("d2", "[\"a\"]"); /* one at a time */
    expect("u1", "d1");
    put(BT_ROLLOUT_YES, "d1", "a", "");
    put(BT_ROLLOUT_YES, "d1", "b", "");
    expect("u1", "");
    assert_int_equal(lg.dry.state, BT_ROLLOUT_TRIED);
    assert_int_equal(lg.top, 1);
    assert_int_equal(lg.row_count, 1);
    ask("d1", "[\"a\",\"b\"]"); /* sent twice: it was over */
    expect("u1", "");
    ask("d3", "[\"a\",\"b\"]");
    put(BT_ROLLOUT_NO, "d3", "b", "x.lua:1: no");
    expect("u1", "");
    assert_int_equal(lg.dry.end, BT_ROLLOUT_NO);
    assert_string_equal(lg.dry.why, "replica b refuses: x.lua:1: no");
    ask("d4", "[\"a\",\"b\"]");
    put(BT_ROLLOUT_YES, "d4", "a", "");
    put(BT_ROLLOUT_EXPIRE, "d4", "", "10 s");
    assert_string_equal(lg.dry.why, "no vote within 10 s from b");
    /* It is in no proposal's way, nor does it come into one's. */
    ask("d5", "[\"a\",\"b\"]");
    propose(2, "u2", 1, "u1", "[\"a\"]");
    expect("u1", "u2");
    assert_int_equal(lg.dry.end, BT_ROLLOUT_PROPOSE);
    ask("d6", "[\"b\"]");
    assert_string_equal(lg.dry.info.uuid, "d5");
    put(BT_ROLLOUT_YES, "d5", "a", "");
    expect("u1", "u2");
    put(BT_ROLLOUT_YES, "u2", "a", "");
    expect("u2", "");
}

static void test_whoever_has_read_the_same_says_the_same(void **state)
{
    for (unsigned run = 0; run < 100; run++) {
        bt_rand_seed(run + 1);
        flush();
        uuids = 0;
        for (unsigned i = 0; i < REPLICAS; i++)
            replicas[i] = (replica_t){.is_alive = true, .epoch = UINT32_MAX};
        for (unsigned i = 0; i < 1500 && count < ENTRIES; i++) {
            step((unsigned) bt_rand_below(REPLICAS));
            if (bt_rand_below(600) == 0)
                flush();
        }
        for (unsigned i = 0; i < REPLICAS; i++)
            while (replicas[i].epoch != epoch || replicas[i].read < count)
                read_some(&replicas[i]);
    }
    assert_true(commits > 200 && aborts > 200); /* it was about something */
}

#define TEST(name) cmocka_unit_test_setup(name, begin_with_one)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_the_last_yes_commits),
        TEST(test_the_first_no_or_expire_aborts),
        TEST(test_who_is_gone_is_not_waited_for),
        TEST(test_void_proposals),
        TEST(test_bases),
        TEST(test_dry_runs),
        cmocka_unit_test_setup(test_the_tail_is_enough, begin),
        TEST(test_what_can_be_gone_back_to_is_kept),
        TEST(test_what_cannot_be_read_changes_nothing),
        cmocka_unit_test(test_whoever_has_read_the_same_says_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
