/* What this replica owes the log, found anew after every reading. One entry at a time, and the next
 * one only when a reading has shown what the last one made of it: an entry whose reply was lost is
 * seen, or sent again, which changes nothing.
 *
 * What anybody may say (gone, expire, base) all would say at once: each waits a heartbeat interval
 * longer than the member before it. */
#include "rollout/rollout_impl.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- what it has said ---- */

static const bt_rollout_mark_t *find_mark(const bt_rollout_t *r, const char *uuid)
{
    for (unsigned i = 0; i < BT_ROLLOUT_MARKS_MAX; i++)
        if (r->marks[i].kind != BT_ROLLOUT_NONE && strcmp(r->marks[i].uuid, uuid) == 0)
            return &r->marks[i];
    return NULL;
}

void bt_rollout_mark(bt_rollout_t *r, const bt_rollout_entry_t *e)
{
    bt_rollout_mark_t *mark = (bt_rollout_mark_t *) find_mark(r, e->info.uuid);

    if (e->kind < BT_ROLLOUT_TRYING || e->kind == BT_ROLLOUT_EXPIRE || e->process[0] == '\0' ||
        strcmp(e->info.replica, r->replica) != 0)
        return;
    if (mark == NULL)
        mark = &r->marks[r->next_mark++ % BT_ROLLOUT_MARKS_MAX];
    *mark =
        (bt_rollout_mark_t){.number = e->info.number, .kind = e->kind, .is_killed = e->is_killed};
    memcpy(mark->uuid, e->info.uuid, sizeof mark->uuid);
    memcpy(mark->process, e->process, sizeof mark->process);
}

bool bt_rollout_is_trying(const bt_rollout_t *r, const char *uuid)
{
    const bt_rollout_mark_t *mark = find_mark(r, uuid);

    return mark != NULL && mark->kind == BT_ROLLOUT_TRYING &&
           strcmp(mark->process, r->process) == 0;
}

/* The last that was heard of an earlier process is that it began to try it. */
bool bt_rollout_is_fatal(const bt_rollout_t *r, const char *uuid)
{
    const bt_rollout_mark_t *mark = find_mark(r, uuid);

    return mark != NULL && (mark->is_killed || (mark->kind == BT_ROLLOUT_TRYING &&
                                                strcmp(mark->process, r->process) != 0));
}

bool bt_rollout_is_blocked(const bt_rollout_t *r, const bt_rollout_set_t *set)
{
    return bt_rollout_is_fatal(r, set->info.uuid);
}

void bt_rollout_log_fatal(const bt_rollout_t *r)
{
    for (unsigned i = 0; i < BT_ROLLOUT_MARKS_MAX; i++)
        if (r->marks[i].kind == BT_ROLLOUT_TRYING && bt_rollout_is_fatal(r, r->marks[i].uuid))
            bt_log_warn("fleet", "set %" PRIu64 " was being tried when this replica ended last",
                        r->marks[i].number);
}

/* ---- saying it ---- */

static bt_store_op_t add_op(const bt_rollout_entry_t *e, bt_text_t *text)
{
    bt_text_init(text);
    bt_rollout_entry_write(e, text);
    return (bt_store_op_t){.what = BT_STORE_LOG_ADD,
                           .key = BT_STR("policy_log"),
                           .value = bt_text_str(text),
                           .limit = BT_ROLLOUT_LOG_MAX};
}

void bt_rollout_add(bt_rollout_t *r, bt_rollout_call_t *call, const bt_rollout_entry_t *e,
                    void (*done)(bt_rollout_t *r, const bt_store_reply_t *reply))
{
    bt_text_t text;

    bt_rollout_call(r, call, add_op(e, &text), done);
    bt_text_fini(&text);
}

static void on_added(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    r->fresh = bt_rollout_reads_from_now(r);
    if (reply->rc == 0)
        bt_rollout_read_log(r);
}

static bool send_entry(bt_rollout_t *r, const bt_rollout_entry_t *e)
{
    if (r->add_call.is_out || r->reads < r->fresh)
        return false;
    bt_rollout_add(r, &r->add_call, e, on_added);
    return true;
}

static bt_rollout_entry_t about(const bt_rollout_t *r, enum bt_rollout_kind kind,
                                const bt_rollout_info_t *info, const char *who)
{
    bt_rollout_entry_t e = {.kind = kind, .info.number = info->number};

    memcpy(e.info.uuid, info->uuid, sizeof e.info.uuid);
    bt_str_copy(e.info.replica, sizeof e.info.replica, who);
    if (strcmp(who, r->replica) == 0)
        memcpy(e.process, r->process, sizeof e.process);
    return e;
}

bool bt_rollout_send_about(bt_rollout_t *r, enum bt_rollout_kind kind,
                           const bt_rollout_info_t *info, const char *who, const char *why)
{
    bt_rollout_entry_t e = about(r, kind, info, who);

    bt_str_copy(e.why, sizeof e.why, why);
    e.is_killed = kind == BT_ROLLOUT_NO && bt_rollout_is_fatal(r, info->uuid);
    return send_entry(r, &e);
}

void bt_rollout_leave(bt_rollout_t *r)
{
    for (unsigned i = 0; r != NULL && i < BT_ROLLOUT_MARKS_MAX; i++) {
        bt_rollout_info_t info = {.number = r->marks[i].number};
        bt_rollout_entry_t e;
        bt_text_t text;
        memcpy(info.uuid, r->marks[i].uuid, sizeof info.uuid);
        if (!bt_rollout_is_trying(r, info.uuid))
            continue;
        e = about(r, BT_ROLLOUT_GONE, &info, r->replica);
        bt_store_op_t op = add_op(&e, &text);
        op.space = bt_str(r->space);
        (void) bt_store_send(r->config.client, &op); /* a client's operations are done in order */
        bt_text_fini(&text);
    }
}

/* ---- what is due ---- */

/* What is here is not known there: it was lost, or is about to be cut off. */
static bool send_base(bt_rollout_t *r)
{
    bt_rollout_entry_t e = {.kind = BT_ROLLOUT_BASE, .info = r->held->info, .top = r->log.top};

    if (r->log.is_known && r->held->info.number <= r->log.committed.number &&
        (r->log.since < BT_ROLLOUT_LOG_MAX / 2 || !bt_rollout_is_current(r)))
        return false;
    if (strcmp(r->kept, e.info.uuid) == 0) /* its texts first */
        (void) send_entry(r, &e);
    return true;
}

/* What was tried when it began, or in a proposal that has ended meanwhile, has not killed it. */
static bool send_survived(bt_rollout_t *r, const bt_rollout_row_t *open)
{
    for (unsigned i = 0; i < BT_ROLLOUT_MARKS_MAX; i++) {
        bt_rollout_info_t info = {.number = r->marks[i].number};
        memcpy(info.uuid, r->marks[i].uuid, sizeof info.uuid);
        if (bt_rollout_is_trying(r, info.uuid) && r->trials == 0 && r->taking == NULL &&
            (open == NULL || strcmp(info.uuid, open->info.uuid) != 0))
            return bt_rollout_send_about(r, BT_ROLLOUT_YES, &info, r->replica, "");
    }
    return false;
}

static bool send_vote(bt_rollout_t *r, const bt_rollout_row_t *open)
{
    const bt_rollout_member_t *me = bt_rollout_member(&r->log, r->replica);
    const bt_rollout_trial_t *t = &r->trial;
    const bt_rollout_info_t *info = &open->info;

    if (me == NULL || me->answer > BT_ROLLOUT_TRYING)
        return false;
    if (bt_rollout_is_fatal(r, info->uuid))
        return bt_rollout_send_about(r, BT_ROLLOUT_NO, info, r->replica,
                                     "it brought this replica down before");
    if (t->answer != BT_ROLLOUT_NONE)
        return bt_rollout_send_about(r, t->answer, info, r->replica, t->why);
    return t->set != NULL && !bt_rollout_is_trying(r, info->uuid) &&
           bt_rollout_send_about(r, BT_ROLLOUT_TRYING, info, r->replica, "");
}

static bool is_live(const bt_rollout_t *r, const char *name)
{
    for (unsigned i = 0; i < r->peer_count; i++)
        if (strcmp(r->peers[i].name, name) == 0)
            return true;
    return false;
}

/* Another member that is waited for, and whose row has run out since it was proposed; or NULL. */
static const bt_rollout_member_t *find_gone(const bt_rollout_t *r)
{
    for (unsigned i = 0; r->peers_ms > r->trial.since_ms && i < r->log.member_count; i++) {
        const bt_rollout_member_t *m = &r->log.members[i];
        if (m->answer <= BT_ROLLOUT_TRYING && strcmp(m->name, r->replica) != 0 &&
            !is_live(r, m->name))
            return m;
    }
    return NULL;
}

static void watch(bt_rollout_t *r, const bt_rollout_row_t *open)
{
    const bt_rollout_member_t *gone = find_gone(r), *me = bt_rollout_member(&r->log, r->replica);
    const uint64_t now_ms = bt_clock_ms();
    const unsigned rank = me != NULL ? (unsigned) (me - r->log.members) : r->log.member_count;
    const uint64_t turn_ms = rank * r->config.interval_ms;
    char after[32];

    if (gone == NULL)
        r->trial.gone_ms = 0;
    else if (r->trial.gone_ms == 0)
        r->trial.gone_ms = now_ms;
    if (gone != NULL && now_ms - r->trial.gone_ms >= turn_ms &&
        bt_rollout_send_about(r, BT_ROLLOUT_GONE, &open->info, gone->name, ""))
        return;
    snprintf(after, sizeof after, "%" PRIu64 " ms", r->config.vote_ms);
    if (now_ms - r->trial.since_ms >= r->config.vote_ms + turn_ms)
        (void) bt_rollout_send_about(r, BT_ROLLOUT_EXPIRE, &open->info, "", after);
}

void bt_rollout_send_due(bt_rollout_t *r)
{
    const bt_rollout_row_t *open = bt_rollout_open(&r->log);

    if (!r->is_running || r->reads == 0 || send_base(r) || send_survived(r, open) || open == NULL ||
        strcmp(r->trial.uuid, open->info.uuid) != 0)
        return;
    if (!send_vote(r, open))
        watch(r, open);
}
