/* One change on its way, at the replica that was asked: READ (the log and the table, from now;
 * texts that are brought back) -> TEXTS (into a cell) -> PROPOSE (into the log) -> VOTE -> SPREAD
 * (until all serve it) -> the answer. From PROPOSE on the fleet goes its way without us: we only
 * wait for what the log says of it. A step whose reply is an error is done again with the next
 * heartbeat. */
#include "rollout/rollout_impl.h"

#include "base/err.h"
#include "base/log.h"
#include "base/rand.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define EARLY_MS UINT64_C(3000)    /* until it is proposed: nobody waits longer for the store */
#define TEXTS_MS UINT64_C(3600000) /* then the texts are gone, if nobody has committed them */

enum step { READ, TEXTS, PROPOSE, VOTE, SPREAD };

typedef struct bt_rollout_push {
    bt_rollout_t *r;
    bt_rollout_change_t change;
    char by[BT_ROLLOUT_BY_MAX + 1];
    enum step step;
    uint64_t deadline_ms, began_ms;
    uint64_t reads, peers_read; /* what counts was read after so many times */
    uint64_t back_number;
    bt_rollout_call_t call;
    bt_rollout_set_t *back; /* texts of what is brought back, or NULL */
    bt_rollout_set_t *set;  /* the proposal */
    bt_text_t members;
    bool is_sent; /* maybe it is in the log */
} push_t;

/* ---- the end ---- */

void bt_rollout_push_free(bt_rollout_t *r)
{
    push_t *p = r->push;

    if (p == NULL)
        return;
    r->push = NULL;
    if (p->call.is_out)
        bt_store_cancel(&p->call.op);
    bt_rollout_set_unref(p->back);
    bt_rollout_set_unref(p->set);
    bt_text_fini(&p->members);
    free(p);
}

static void finish(push_t *p, const bt_rollout_outcome_t *outcome)
{
    bt_rollout_set_t *set = bt_rollout_set_ref(p->set);
    const bt_rollout_change_t change = p->change;

    bt_rollout_push_free(p->r);
    if (change.done != NULL)
        change.done(change.arg, outcome);
    bt_rollout_set_unref(set);
}

__attribute__((format(printf, 3, 4))) static void fail(push_t *p, unsigned status, const char *fmt,
                                                       ...)
{
    char why[BT_ROLLOUT_WHY_MAX + 256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    finish(p, &(bt_rollout_outcome_t){.status = status, .why = why});
}

/* ---- the set ---- */

static uint64_t wall_ms(void)
{
    struct timespec now = {0};

    (void) clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t) now.tv_sec * 1000 + (uint64_t) now.tv_nsec / 1000000;
}

static void name_set(push_t *p)
{
    const bt_rollout_t *r = p->r;
    const bt_rollout_info_t *base = &r->held->info;
    bt_rollout_info_t *info = &p->set->info;

    info->number = (r->log.top > base->number ? r->log.top : base->number) + 1;
    info->previous = base->number;
    memcpy(info->previous_uuid, base->uuid, sizeof info->previous_uuid);
    info->copy_of = p->back != NULL ? p->back->info.number : 0;
    info->at_ms = wall_ms();
    bt_rand_uuid(info->uuid);
    bt_str_copy(info->by, sizeof info->by, p->by);
    bt_str_copy(info->replica, sizeof info->replica, r->replica);
}

/* False: it has ended. */
static bool make_set(push_t *p)
{
    char err[BT_ROLLOUT_WHY_MAX] = "out of memory";
    int rc = bt_rollout_set_copy(&p->set, p->back != NULL ? p->back : p->r->held);
    unsigned status = rc < 0 ? 503 : 0;

    if (status == 0 && p->back == NULL)
        status = p->change.edit(p->change.arg, p->set, err, sizeof err);
    if (status != 0) {
        fail(p, status, "%s", err);
        return false;
    }
    bt_rollout_set_seal(p->set);
    if (strcmp(p->set->info.hash, p->r->held->info.hash) == 0) {
        finish(p, &(bt_rollout_outcome_t){
                      .status = 200, .set = p->r->held, .is_dry_run = p->change.is_dry_run});
        return false;
    }
    name_set(p);
    return true;
}

/* ---- what is brought back ---- */

static const bt_rollout_row_t *row_of(const bt_rollout_log_t *log, uint64_t number)
{
    for (unsigned i = 0; i < log->row_count; i++)
        if (log->rows[i].info.number == number)
            return &log->rows[i];
    return NULL;
}

static void on_back(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    push_t *p = r->push;

    if (reply->rc < 0)
        return;
    if (reply->is_none || bt_rollout_set_read(&p->back, reply->text) < 0) {
        fail(p, 409, "the store does not have the texts of set %" PRIu64 " any more",
             p->back_number);
        return;
    }
    bt_rollout_push_go_on(r);
}

/* False: it has ended, or the texts are being read. */
static bool has_back(push_t *p, uint64_t number)
{
    bt_rollout_t *r = p->r;
    const bt_rollout_set_t *held = r->held;
    const bt_rollout_row_t *row = row_of(&r->log, number);
    const char *uuid = row != NULL                     ? row->info.uuid
                       : number == held->info.previous ? held->info.previous_uuid
                                                       : "lost";

    if (held->info.number == 0)
        fail(p, 409, "there is nothing to roll back: no set has been committed");
    else if (number > held->info.number || (row != NULL && row->state != BT_ROLLOUT_COMMITTED))
        fail(p, 400,
             "set %" PRIu64 " was never committed: GET /admin/fleet/policies lists those that were",
             number);
    else if (number == 0)
        return bt_rollout_set_new(&p->back) == 0;
    else if (number == held->info.number || (r->before != NULL && r->before->info.number == number))
        p->back = bt_rollout_set_ref(number == held->info.number ? r->held : r->before);
    else {
        p->back_number = number;
        bt_rollout_call(r, &p->call,
                        (bt_store_op_t){.what = BT_STORE_CELL_GET,
                                        .key = bt_rollout_key(&p->call, "policy_set", uuid)},
                        on_back);
    }
    return r->push == p && p->back != NULL;
}

/* ---- the steps ---- */

/* Who has a vote: who lives, and follows the fleet. */
static bool list_members(push_t *p)
{
    const bt_rollout_t *r = p->r;
    unsigned count = 0;

    bt_text_fini(&p->members);
    bt_text_puts(&p->members, "[");
    for (unsigned i = 0; i < r->peer_count; i++) {
        if (r->peers[i].is_pinned)
            continue;
        bt_text_puts(&p->members, count++ > 0 ? "," : "");
        bt_text_json_str(&p->members, bt_str(r->peers[i].name));
    }
    bt_text_puts(&p->members, "]");
    if (count == 0)
        fail(p, 409, "every replica is pinned: nobody can say whether it would serve");
    else if (count > BT_ROLLOUT_MEMBERS_MAX)
        fail(p, 409, "%u replicas are more than the %d that can vote: pin some", count,
             BT_ROLLOUT_MEMBERS_MAX);
    return count > 0 && count <= BT_ROLLOUT_MEMBERS_MAX;
}

/* After a loss the table of replicas is lost too: each tells its row again within a quarter of its
 * expiry. */
static bool is_ready(const push_t *p)
{
    const bt_rollout_t *r = p->r;

    return r->reads >= p->reads && r->peers_read >= p->peers_read && bt_rollout_is_current(r) &&
           (r->lost_ms == 0 || bt_clock_ms() - r->lost_ms >= r->config.expiry_ms / 2);
}

static void begin(push_t *p)
{
    const bt_rollout_row_t *open = bt_rollout_open(&p->r->log);
    const uint64_t back = p->change.back > 0 ? p->change.back : p->r->held->info.previous;

    if (!is_ready(p))
        return;
    if (open != NULL) {
        fail(p, 409, "replica %s is rolling something out: try again when it is done",
             open->info.replica);
        return;
    }
    if ((p->change.edit == NULL && p->back == NULL && !has_back(p, back)) || !list_members(p) ||
        !make_set(p))
        return;
    p->step = TEXTS;
    bt_rollout_push_go_on(p->r);
}

static void on_texts(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    if (reply->rc == BT_E_INVAL || reply->rc == BT_E_LIMIT)
        fail(r->push, 400, "the set is too large for the store: %s", r->unavailable);
    if (reply->rc < 0)
        return;
    r->push->step = PROPOSE;
    bt_rollout_push_go_on(r);
}

static void put_texts(push_t *p)
{
    bt_text_t text;

    bt_text_init(&text);
    bt_rollout_set_write(p->set, &text);
    bt_rollout_call(
        p->r, &p->call,
        (bt_store_op_t){.what = BT_STORE_CELL_SET,
                        .key = bt_rollout_key(&p->call, "policy_set", p->set->info.uuid),
                        .value = bt_text_str(&text),
                        .ttl_ms = TEXTS_MS},
        on_texts);
    bt_text_fini(&text);
}

static void on_proposed(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    push_t *p = r->push;

    if (reply->rc < 0)
        return; /* maybe it was done all the same: once more changes nothing */
    p->step = VOTE;
    p->reads = bt_rollout_reads_from_now(r);
    p->deadline_ms =
        bt_clock_ms() + r->config.vote_ms + r->config.vote_ms / 2; /* somebody says expire */
    bt_log_info("fleet", "set %" PRIu64 " is %s, by %s", p->set->info.number,
                p->change.is_dry_run ? "tried by all replicas" : "proposed", p->set->info.by);
    bt_rollout_read_log(r);
}

static void propose(push_t *p)
{
    const bt_rollout_entry_t e = {.kind =
                                      p->change.is_dry_run ? BT_ROLLOUT_ASK : BT_ROLLOUT_PROPOSE,
                                  .info = p->set->info,
                                  .members = bt_text_str(&p->members)};

    p->is_sent = true;
    bt_rollout_add(p->r, &p->call, &e, on_proposed);
}

static const bt_rollout_row_t *own_row(const push_t *p)
{
    const bt_rollout_log_t *log = &p->r->log;

    if (!p->change.is_dry_run)
        return bt_rollout_row(log, p->set->info.uuid);
    return strcmp(log->dry.info.uuid, p->set->info.uuid) == 0 ? &log->dry : NULL;
}

static void see_outcome(push_t *p)
{
    bt_rollout_t *r = p->r;
    const bt_rollout_row_t *row = own_row(p);

    if (row == NULL && r->reads >= p->reads && r->lost_ms < p->began_ms) {
        fail(p, 409, "another replica was faster: try again when it is done");
    } else if (row != NULL && row->state == BT_ROLLOUT_COMMITTED) {
        p->step = SPREAD;
        p->peers_read = r->peers_read + (r->table_call.is_out ? 2 : 1);
        p->deadline_ms = bt_clock_ms() + r->config.spread_ms;
    } else if (row != NULL && row->state == BT_ROLLOUT_TRIED) {
        finish(p, &(bt_rollout_outcome_t){
                      .status = 200, .set = p->set, .is_changed = true, .is_dry_run = true});
    } else if (row != NULL && row->state == BT_ROLLOUT_ABORTED) {
        fail(p,
             row->end == BT_ROLLOUT_NO        ? 400
             : row->end == BT_ROLLOUT_PROPOSE ? 409
             : row->end == BT_ROLLOUT_EXPIRE  ? 504
                                              : 503,
             p->change.is_dry_run ? "not all replicas would serve it (set %" PRIu64 "): %s"
                                  : "set %" PRIu64 " is committed nowhere: %s",
             row->info.number, row->why);
    }
}

static void see_spread(push_t *p)
{
    const bt_rollout_t *r = p->r;
    bool is_behind = r->peers_read < p->peers_read;

    for (unsigned i = 0; i < r->peer_count; i++)
        is_behind |= !r->peers[i].is_pinned && r->peers[i].number < p->set->info.number;
    if (!is_behind || bt_clock_ms() >= p->deadline_ms)
        finish(p, &(bt_rollout_outcome_t){.status = 200, .set = p->set, .is_changed = true});
}

static bool is_over(push_t *p)
{
    const bt_rollout_t *r = p->r;
    const char *why = r->is_unavailable ? r->unavailable : "it has lost its log";

    if (p->step == SPREAD || bt_clock_ms() < p->deadline_ms)
        return false;
    if (p->is_sent && p->change.is_dry_run)
        fail(p, 503, "the shared store became unavailable (%s): ask again; nothing has changed",
             why);
    else if (p->is_sent)
        fail(p, 502,
             "the shared store became unavailable (%s): whether set %" PRIu64
             " is committed will be seen when it is back",
             why, p->set->info.number);
    else if (r->is_unavailable)
        fail(p, 503, "the shared store does not do it: %s; nothing has changed", why);
    else
        fail(p, 503, "this replica does not have set %" PRIu64 ", which is committed: try again",
             bt_rollout_committed(r));
    return true;
}

void bt_rollout_push_go_on(bt_rollout_t *r)
{
    push_t *p = r->push;

    if (p == NULL || p->call.is_out || is_over(p))
        return;
    if (p->step == READ)
        begin(p);
    else if (p->step == TEXTS)
        put_texts(p);
    else if (p->step == PROPOSE)
        propose(p);
    else if (p->step == VOTE)
        see_outcome(p);
    else if (p->step == SPREAD)
        see_spread(p);
}

/* ---- asking for a change ---- */

int bt_rollout_change(bt_rollout_t *r, const bt_rollout_change_t *change)
{
    push_t *p;

    if (r->is_ending || r->push != NULL)
        return r->is_ending ? BT_E_CANCELLED : BT_E_AGAIN;
    p = calloc(1, sizeof *p);
    if (p == NULL)
        return BT_E_NOMEM;
    *p = (push_t){.r = r, .change = *change, .began_ms = bt_clock_ms()};
    bt_str_copy(p->by, sizeof p->by, change->by);
    p->reads = bt_rollout_reads_from_now(r);
    p->peers_read = r->peers_read + (r->table_call.is_out ? 2 : 1);
    p->deadline_ms = p->began_ms + (r->config.vote_ms < EARLY_MS ? r->config.vote_ms : EARLY_MS);
    r->push = p;
    return 0;
}

void bt_rollout_stop_changes(bt_rollout_t *r)
{
    r->is_ending = true;
}

void bt_rollout_forget(bt_rollout_t *r, void *arg)
{
    if (r->push == NULL || r->push->change.arg != arg)
        return;
    r->push->change.done = NULL;
    if (r->push->set == NULL) /* what it asks for goes with it */
        bt_rollout_push_free(r);
}
