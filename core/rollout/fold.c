/* A number is its proposer's claim (one above all that it has seen), and stands only if that is so
 * in the log's order too. Everything else refers to the uuid: words about a proposal that a store
 * has lost cannot be taken for words about its successor.
 *
 * Where the log's beginning is cut off, the first proposal or base that is found names what is
 * committed. A proposal that names a later one than we know was made by somebody who knows more: no
 * one can know less than the entries before his own. */
#include "rollout/fold.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- rows ---- */

const bt_rollout_row_t *bt_rollout_open(const bt_rollout_log_t *log)
{
    if (log->row_count > 0 && log->rows[0].state == BT_ROLLOUT_PROPOSED)
        return &log->rows[0];
    return log->dry.info.uuid[0] != '\0' && log->dry.state == BT_ROLLOUT_PROPOSED ? &log->dry
                                                                                  : NULL;
}

const bt_rollout_row_t *bt_rollout_row(const bt_rollout_log_t *log, const char *uuid)
{
    for (unsigned i = 0; i < log->row_count; i++)
        if (strcmp(log->rows[i].info.uuid, uuid) == 0)
            return &log->rows[i];
    return NULL;
}

/* What serves and what served before it must be there to go back to, however many were refused
 * since. */
static void make_place(bt_rollout_log_t *log)
{
    unsigned i = log->row_count - 1;

    while (i > 0 && (strcmp(log->rows[i].info.uuid, log->committed.uuid) == 0 ||
                     strcmp(log->rows[i].info.uuid, log->committed.previous_uuid) == 0))
        i--;
    memcpy(log->dropped, log->rows[i].info.uuid, sizeof log->dropped);
    log->row_count--;
    memmove(&log->rows[i], &log->rows[i + 1], (log->row_count - i) * sizeof log->rows[0]);
}

static void add_row(bt_rollout_log_t *log, const bt_rollout_info_t *info,
                    enum bt_rollout_state state)
{
    if (log->row_count == BT_ROLLOUT_ROWS_MAX)
        make_place(log);
    memmove(&log->rows[1], &log->rows[0], log->row_count * sizeof log->rows[0]);
    log->rows[0] = (bt_rollout_row_t){.info = *info, .state = state};
    log->row_count++;
}

static void end_open(bt_rollout_log_t *log, enum bt_rollout_kind end, const char *why)
{
    bt_rollout_row_t *row = (bt_rollout_row_t *) bt_rollout_open(log);

    if (row == NULL)
        return;
    row->state = BT_ROLLOUT_ABORTED;
    row->end = end;
    snprintf(row->why, sizeof row->why, "%s", why);
}

/* Whatever is open was proposed for another base. */
static void commit(bt_rollout_log_t *log, const bt_rollout_info_t *info)
{
    bt_rollout_row_t *row = (bt_rollout_row_t *) bt_rollout_row(log, info->uuid);

    if (row != NULL)
        row->state = BT_ROLLOUT_COMMITTED;
    end_open(log, BT_ROLLOUT_BASE, "the shared store has forgotten the proposal");
    log->is_known = true;
    log->committed = row != NULL ? row->info : *info;
    log->since = 0;
    if (row == NULL && info->number > 0)
        add_row(log, info, BT_ROLLOUT_COMMITTED);
}

/* ---- members ---- */

const bt_rollout_member_t *bt_rollout_member(const bt_rollout_log_t *log, const char *name)
{
    for (unsigned i = 0; i < log->member_count; i++)
        if (strcmp(log->members[i].name, name) == 0)
            return &log->members[i];
    return NULL;
}

/* False: nobody, or too many. */
static bool read_members(bt_rollout_log_t *log, bt_str_t json)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    int rc = bt_json_array(&c, json);

    log->member_count = 0;
    while (rc == 0 && bt_json_next(&c, &item) > 0) {
        bt_rollout_member_t *m = &log->members[log->member_count];
        if (log->member_count == BT_ROLLOUT_MEMBERS_MAX)
            return false;
        *m = (bt_rollout_member_t){0};
        if (bt_json_unescape(item.value, m->name, sizeof m->name - 1) > 0)
            log->member_count++;
    }
    return log->member_count > 0;
}

static void count(bt_rollout_log_t *log)
{
    unsigned yes = 0;

    for (unsigned i = 0; i < log->member_count; i++) {
        const enum bt_rollout_kind answer = log->members[i].answer;
        if (answer != BT_ROLLOUT_YES && answer != BT_ROLLOUT_GONE)
            return;
        yes += answer == BT_ROLLOUT_YES;
    }
    if (yes > 0 && bt_rollout_open(log) == &log->dry)
        log->dry.state = BT_ROLLOUT_TRIED;
    else if (yes > 0)
        commit(log, &log->rows[0].info);
    else
        end_open(log, BT_ROLLOUT_GONE, "no replica is left that could say whether it would serve");
}

static void expire(bt_rollout_log_t *log, const char *after)
{
    char why[BT_ROLLOUT_WHY_MAX];
    const char *comma = "";
    int used = snprintf(why, sizeof why, "no vote within %.32s from", after);

    for (unsigned i = 0; i < log->member_count && used < (int) sizeof why; i++) {
        if (log->members[i].answer > BT_ROLLOUT_TRYING)
            continue;
        used += snprintf(why + used, sizeof why - (size_t) used, "%s %.64s", comma,
                         log->members[i].name);
        comma = ",";
    }
    end_open(log, BT_ROLLOUT_EXPIRE, why);
}

/* ---- entries ---- */

static void propose(bt_rollout_log_t *log, const bt_rollout_entry_t *e)
{
    bt_rollout_info_t base = {.number = e->info.previous};

    memcpy(base.uuid, e->info.previous_uuid, sizeof base.uuid);
    if (!log->is_known || base.number > log->committed.number) {
        commit(log, &base);
        log->top = log->top > base.number ? log->top : base.number;
    }
    const bt_rollout_row_t *open = bt_rollout_open(log);
    if ((open != NULL && open != &log->dry) || strcmp(base.uuid, log->committed.uuid) != 0 ||
        e->info.uuid[0] == '\0' || e->info.number <= log->top || !read_members(log, e->members))
        return;
    end_open(log, BT_ROLLOUT_PROPOSE, "a set was proposed meanwhile");
    log->top = e->info.number;
    log->since = 0;
    memcpy(log->proposed, e->info.uuid, sizeof log->proposed);
    add_row(log, &e->info, BT_ROLLOUT_PROPOSED);
}

static void ask(bt_rollout_log_t *log, const bt_rollout_entry_t *e)
{
    /* One whose reply was lost is sent again, when it may be over. */
    const bool is_known = strcmp(log->dry.info.uuid, e->info.uuid) == 0;

    if (bt_rollout_open(log) != NULL || is_known || !read_members(log, e->members))
        return;
    memcpy(log->proposed, e->info.uuid, sizeof log->proposed);
    log->dry = (bt_rollout_row_t){.info = e->info, .state = BT_ROLLOUT_PROPOSED};
}

static void take_base(bt_rollout_log_t *log, const bt_rollout_entry_t *e)
{
    const uint64_t top = e->top > e->info.number ? e->top : e->info.number;

    if (!log->is_known || e->info.number > log->committed.number)
        commit(log, &e->info);
    else if (strcmp(e->info.uuid, log->committed.uuid) == 0)
        log->since = 0;
    log->top = log->top > top ? log->top : top;
}

/* What a member says, or what is said of it, while it is waited for. */
static void answer(bt_rollout_log_t *log, const bt_rollout_entry_t *e)
{
    bt_rollout_member_t *m = (bt_rollout_member_t *) bt_rollout_member(log, e->info.replica);
    char why[BT_ROLLOUT_WHY_MAX];

    if (m == NULL || m->answer > BT_ROLLOUT_TRYING)
        return;
    m->answer = e->kind;
    memcpy(m->process, e->process, sizeof m->process);
    if (e->kind == BT_ROLLOUT_NO) {
        snprintf(why, sizeof why, "replica %.128s refuses: %.480s", m->name, e->why);
        end_open(log, BT_ROLLOUT_NO, why);
    } else if (e->kind != BT_ROLLOUT_TRYING) {
        count(log);
    }
}

void bt_rollout_fold(bt_rollout_log_t *log, const bt_rollout_entry_t *e)
{
    const bt_rollout_row_t *open = bt_rollout_open(log);

    log->dropped[0] = '\0';
    log->since++;
    if (e->kind == BT_ROLLOUT_PROPOSE)
        propose(log, e);
    else if (e->kind == BT_ROLLOUT_BASE)
        take_base(log, e);
    else if (e->kind == BT_ROLLOUT_ASK)
        ask(log, e);
    else if (open == NULL || strcmp(open->info.uuid, e->info.uuid) != 0)
        return;
    else if (e->kind == BT_ROLLOUT_EXPIRE)
        expire(log, e->why);
    else if (e->kind != BT_ROLLOUT_NONE)
        answer(log, e);
}

/* ---- JSON ---- */

static const char *const kinds[] = {"",   "propose", "base",   "trying", "yes",
                                    "no", "gone",    "expire", "ask"};
#define KIND_COUNT (sizeof kinds / sizeof kinds[0])

void bt_rollout_entry_write(const bt_rollout_entry_t *e, bt_text_t *out)
{
    bt_text_puts(out, "{");
    bt_rollout_info_write(&e->info, out);
    bt_text_json_member(out, "what", kinds[e->kind]);
    bt_text_json_member(out, "process", e->process);
    bt_text_json_member(out, "why", e->why);
    bt_text_printf(out, ",\"killed\":%d,\"top\":%" PRIu64, e->is_killed, e->top);
    if (e->members.n > 0)
        bt_text_printf(out, ",\"members\":%.*s", BT_STR_ARG(e->members));
    bt_text_puts(out, "}");
}

void bt_rollout_entry_read(bt_rollout_entry_t *e, bt_str_t json)
{
    char kind[16];
    bt_json_item_t members;

    *e = (bt_rollout_entry_t){0};
    bt_rollout_info_read(&e->info, json);
    bt_rollout_get(json, "what", kind, sizeof kind);
    for (unsigned i = 1; i < KIND_COUNT; i++)
        if (strcmp(kind, kinds[i]) == 0)
            e->kind = (enum bt_rollout_kind) i;
    bt_rollout_get(json, "process", e->process, sizeof e->process);
    bt_rollout_get(json, "why", e->why, sizeof e->why);
    e->is_killed = bt_rollout_get_number(json, "killed") > 0;
    e->top = bt_rollout_get_number(json, "top");
    if (bt_json_get(json, BT_STR("members"), &members) == 0 && members.type == BT_JSON_ARRAY)
        e->members = members.value;
}
