/* Every heartbeat reads what is new in the log and follows it:
 *
 *   another set is committed than is here --> read its texts --> hold --> take (unless pinned)
 *   one is proposed, and we are a member ---> read its texts --> "trying" in the log --> try aside
 *   --> "yes" or "no" in the log
 *
 * Nothing is remembered of how far we were: what is due (rollout/duty.c) is found anew from the log
 * at every reading, so a store that fails at any step, or a process that is killed at any, leaves
 * nothing that has to be undone. */
#include "rollout/rollout_impl.h"

#include "base/err.h"
#include "base/log.h"
#include "base/rand.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define INTERVAL_MS 100
#define EXPIRY_MS 2000
#define VOTE_MS 10000
#define SPREAD_MS 5000
#define JOIN_INTERVAL_MS 20
#define AGAIN_MS 1000 /* what failed is tried again after it, twice that, ... */
#define AGAIN_MAX_MS 30000
#define LOG_ROWS 1000 /* of one reading */

/* ---- the store ---- */

static void on_reply(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    bt_rollout_call_t *call = bt_container_of(op, bt_rollout_call_t, op);
    bt_rollout_t *r = call->r;

    call->is_out = false;
    r->is_unavailable = reply->rc < 0;
    if (reply->rc < 0)
        snprintf(r->unavailable, sizeof r->unavailable, "%s",
                 reply->error != NULL ? reply->error : bt_err_text(reply->rc));
    call->done(r, reply);
}

void bt_rollout_call(bt_rollout_t *r, bt_rollout_call_t *call, bt_store_op_t op,
                     void (*done)(bt_rollout_t *r, const bt_store_reply_t *reply))
{
    op.space = bt_str(r->space);
    op.cb = on_reply;
    call->op = op;
    call->r = r;
    call->done = done;
    call->is_out = true;
    r->config.store_do(r->config.client, &call->op);
}

/* ---- what is known ---- */

uint64_t bt_rollout_committed(const bt_rollout_t *r)
{
    const uint64_t number = r->log.committed.number;

    return number > r->held->info.number ? number : r->held->info.number;
}

uint64_t bt_rollout_number(const bt_rollout_t *r)
{
    return r->serving->info.number;
}

void bt_rollout_view(const bt_rollout_t *r, bt_rollout_view_t *view_p)
{
    *view_p = (bt_rollout_view_t){.space = r->space,
                                  .replica = r->replica,
                                  .serving = r->serving,
                                  .log = &r->log,
                                  .peers = r->peers,
                                  .peer_count = r->peer_count,
                                  .trouble = r->trouble,
                                  .unavailable = r->is_unavailable ? r->unavailable : ""};
}

bool bt_rollout_is_pinned(const bt_rollout_t *r)
{
    return r->pinned != NULL;
}

bt_rollout_set_t *bt_rollout_held(const bt_rollout_t *r)
{
    return r->pinned != NULL ? r->pinned : r->held;
}

static bool is_same(const bt_rollout_info_t *a, const bt_rollout_info_t *b)
{
    return strcmp(a->uuid, b->uuid) == 0;
}

bool bt_rollout_is_current(const bt_rollout_t *r)
{
    return r->log.is_known && is_same(&r->log.committed, &r->held->info);
}

bool bt_rollout_has_joined(const bt_rollout_t *r)
{
    return r->reads > 0 && r->is_pin_known && (!r->log.is_known || bt_rollout_is_current(r));
}

uint64_t bt_rollout_reads_from_now(const bt_rollout_t *r)
{
    return r->reads + (r->log_call.is_out ? 2 : 1);
}

void bt_rollout_set_to(bt_rollout_set_t **at, bt_rollout_set_t *set)
{
    bt_rollout_set_t *old = *at;

    *at = bt_rollout_set_ref(set);
    bt_rollout_set_unref(old);
}

/* ---- taking ---- */

static void set_trouble(bt_rollout_t *r, const bt_rollout_set_t *set, const char *why)
{
    char trouble[sizeof r->trouble];

    snprintf(trouble, sizeof trouble, "set %" PRIu64 " does not serve here: %s", set->info.number,
             why);
    r->must_report |= strcmp(trouble, r->trouble) != 0;
    memcpy(r->trouble, trouble, sizeof trouble);
}

void bt_rollout_serve(bt_rollout_t *r)
{
    bt_rollout_set_t *set = bt_rollout_held(r);

    if (!r->is_running || r->reads == 0 || r->taking != NULL ||
        is_same(&set->info, &r->serving->info) || bt_clock_ms() < r->take_again_ms)
        return;
    if (bt_rollout_is_blocked(r, set)) {
        set_trouble(r, set,
                    "it brought this replica down before; push one without what did it, or roll "
                    "back");
        return;
    }
    r->taking = bt_rollout_set_ref(set);
    r->config.ops->take_set(r->config.user, set);
}

void bt_rollout_taken(bt_rollout_t *r, bt_rollout_set_t *set, int rc, const char *why)
{
    if (r->taking != set)
        return;
    if (rc == 0) {
        bt_rollout_set_to(&r->serving, set);
        r->trouble[0] = '\0';
        r->take_wait_ms = r->take_again_ms = 0;
    } else {
        set_trouble(r, set, why);
        r->take_wait_ms = r->take_wait_ms > 0 ? 2 * r->take_wait_ms : AGAIN_MS;
        if (r->take_wait_ms > AGAIN_MAX_MS)
            r->take_wait_ms = AGAIN_MAX_MS;
        r->take_again_ms = bt_clock_ms() + r->take_wait_ms;
    }
    r->must_report = true;
    bt_rollout_set_to(&r->taking, NULL);
    bt_rollout_serve(r);
}

static void hold(bt_rollout_t *r, bt_rollout_set_t *set)
{
    bt_rollout_set_to(&r->before, r->held);
    bt_rollout_set_to(&r->held, set);
    r->take_again_ms = r->take_wait_ms = 0; /* what failed is not what is wanted now */
    r->must_report = true;
    bt_rollout_serve(r);
}

/* ---- texts ---- */

/* NULL: they are not what the log speaks of. */
static bt_rollout_set_t *read_texts(const bt_rollout_t *r, bt_str_t json)
{
    const bt_rollout_row_t *row = bt_rollout_row(&r->log, bt_rollout_whose(&r->set_call));
    bt_rollout_set_t *set;

    if (bt_rollout_set_read(&set, json) < 0)
        return NULL;
    if (strcmp(set->info.uuid, bt_rollout_whose(&r->set_call)) == 0 &&
        (row == NULL || row->info.hash[0] == '\0' || strcmp(row->info.hash, set->info.hash) == 0))
        return set;
    bt_rollout_set_unref(set);
    return NULL;
}

static void follow(bt_rollout_t *r);

static void on_texts(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    bt_rollout_set_t *set = reply->rc == 0 && !reply->is_none ? read_texts(r, reply->text) : NULL;
    bt_rollout_trial_t *t = &r->trial;

    if (reply->rc < 0)
        return;
    if (set == NULL && !reply->is_none && strcmp(t->uuid, bt_rollout_whose(&r->set_call)) == 0) {
        t->answer = BT_ROLLOUT_NO;
        snprintf(t->why, sizeof t->why, "its texts in the store cannot be read");
    }
    r->missing[0] = '\0';
    if (set == NULL) {
        r->must_report = true;
        r->missing_ms = bt_clock_ms();
        bt_str_copy(r->missing, sizeof r->missing, bt_rollout_whose(&r->set_call));
    } else if (is_same(&set->info, &r->log.committed)) {
        hold(r, set);
    } else if (strcmp(t->uuid, set->info.uuid) == 0) {
        bt_rollout_set_to(&t->set, set);
    }
    bt_rollout_set_unref(set);
    follow(r);
}

static void fetch(bt_rollout_t *r, const char *uuid)
{
    if (r->set_call.is_out ||
        (strcmp(r->missing, uuid) == 0 && bt_clock_ms() - r->missing_ms < AGAIN_MS))
        return;
    bt_rollout_call(r, &r->set_call,
                    (bt_store_op_t){.what = BT_STORE_CELL_GET,
                                    .key = bt_rollout_key(&r->set_call, "policy_set", uuid)},
                    on_texts);
}

/* ---- a proposal ---- */

/* Its texts stay until others come: a lost log may say only later that they are committed. */
static void forget_trial(bt_rollout_t *r)
{
    r->trial = (bt_rollout_trial_t){.set = r->trial.set};
}

void bt_rollout_tried(bt_rollout_t *r, const bt_rollout_set_t *set, int rc, const char *why)
{
    bt_rollout_trial_t *t = &r->trial;

    r->trials--;
    if (t->set == set) {
        t->answer = rc == 0 ? BT_ROLLOUT_YES : BT_ROLLOUT_NO;
        snprintf(t->why, sizeof t->why, "%s", rc == 0 ? "" : why);
    }
    bt_rollout_send_due(r);
}

static void attend(bt_rollout_t *r, const bt_rollout_row_t *open)
{
    bt_rollout_trial_t *t = &r->trial;

    if (t->uuid[0] == '\0') {
        memcpy(t->uuid, open->info.uuid, sizeof t->uuid);
        t->since_ms = bt_clock_ms();
        if (t->set != NULL && strcmp(t->set->info.uuid, t->uuid) != 0)
            bt_rollout_set_to(&t->set, NULL);
    }
    if (bt_rollout_member(&r->log, r->replica) == NULL || !r->is_running || t->is_running ||
        t->answer != BT_ROLLOUT_NONE)
        return;
    if (t->set == NULL) {
        fetch(r, t->uuid);
    } else if (bt_rollout_is_trying(r, t->uuid)) {
        t->is_running = true;
        r->trials++;
        r->config.ops->try_set(r->config.user, t->set);
    }
}

/* ---- following ---- */

void bt_rollout_end_join(bt_rollout_t *r)
{
    void (*on_joined)(void *user) = r->on_joined;
    const bt_rollout_set_t *set = bt_rollout_held(r);

    if (on_joined == NULL || !bt_rollout_has_joined(r))
        return;
    if (set->info.number > 0 && !bt_rollout_is_blocked(r, set) &&
        !bt_rollout_is_trying(r, set->info.uuid)) {
        (void) bt_rollout_send_about(r, BT_ROLLOUT_TRYING, &set->info, r->replica, "");
        return;
    }
    r->on_joined = NULL;
    on_joined(r->joined_user);
}

static void follow(bt_rollout_t *r)
{
    const bt_rollout_row_t *open = bt_rollout_open(&r->log);
    const bt_rollout_info_t *committed = &r->log.committed;

    if (!bt_rollout_is_current(r) && committed->number > 0 &&
        committed->number >= r->held->info.number) {
        if (r->trial.set != NULL && is_same(&r->trial.set->info, committed))
            hold(r, r->trial.set);
        else
            fetch(r, committed->uuid);
    }
    if (open == NULL || strcmp(r->trial.uuid, open->info.uuid) != 0)
        forget_trial(r);
    if (open != NULL)
        attend(r, open);
    bt_rollout_serve(r);
    bt_rollout_keep(r);
    bt_rollout_send_due(r);
    if (r->push != NULL)
        bt_rollout_push_go_on(r);
    bt_rollout_end_join(r);
}

/* ---- the log ---- */

/* It is read again from the oldest entry that is left: what follows from it is what counts now. */
static void lose(bt_rollout_t *r)
{
    if (r->reads > 0)
        bt_log_warn("fleet", "the shared store has lost its log of policies, or part of it");
    memset(&r->log, 0, sizeof r->log);
    memset(r->marks, 0, sizeof r->marks);
    r->kept[0] = '\0';
    r->kept_ms = 0;
    r->must_store_pin |= r->pinned != NULL;
    r->must_report = true;
    r->lost_ms = bt_clock_ms();
}

/* Of what was open before this entry. */
static void log_outcome(const bt_rollout_t *r, const char *uuid)
{
    const bt_rollout_row_t *row = bt_rollout_row(&r->log, uuid);

    if (row != NULL && row->state == BT_ROLLOUT_COMMITTED)
        bt_log_info("fleet", "set %" PRIu64 " is committed", row->info.number);
    else if (row != NULL && row->state == BT_ROLLOUT_ABORTED)
        bt_log_warn("fleet", "set %" PRIu64 " is aborted: %s", row->info.number, row->why);
}

static void take_entry(bt_rollout_t *r, bt_str_t json)
{
    const bt_rollout_row_t *open = bt_rollout_open(&r->log);
    char uuid[BT_ROLLOUT_UUID_BYTES] = "";
    bt_rollout_call_t name;
    bt_rollout_entry_t e;

    if (open != NULL)
        memcpy(uuid, open->info.uuid, sizeof uuid);
    bt_rollout_entry_read(&e, json);
    bt_rollout_mark(r, &e);
    bt_rollout_fold(&r->log, &e);
    if (r->reads == 0)
        return; /* what has been, others have seen to */
    log_outcome(r, uuid);
    if (r->log.dropped[0] != '\0')
        (void) bt_store_send(
            r->config.client,
            &(bt_store_op_t){.what = BT_STORE_CELL_DROP,
                             .space = bt_str(r->space),
                             .key = bt_rollout_key(&name, "policy_set", r->log.dropped)});
}

static void on_log(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    if (reply->rc < 0)
        return;
    if (reply->is_gap)
        lose(r);
    for (unsigned i = 0; i < reply->row_count; i++)
        take_entry(r, reply->rows[i].value);
    snprintf(r->at, sizeof r->at, "%.*s", BT_STR_ARG(reply->text));
    if (reply->row_count == LOG_ROWS) {
        bt_rollout_read_log(r);
        return;
    }
    if (r->reads++ == 0)
        bt_rollout_log_fatal(r);
    follow(r);
}

void bt_rollout_read_log(bt_rollout_t *r)
{
    if (!r->log_call.is_out)
        bt_rollout_call(r, &r->log_call,
                        (bt_store_op_t){.what = BT_STORE_LOG_READ,
                                        .key = BT_STR("policy_log"),
                                        .field = bt_str(r->at),
                                        .limit = LOG_ROWS},
                        on_log);
}

/* ---- the table ---- */

static void write_report(const bt_rollout_t *r, bt_text_t *out)
{
    const char *missing = bt_rollout_is_current(r) ? "" : r->missing;
    char trouble[BT_ROLLOUT_WHY_MAX] = "";

    if (r->trouble[0] != '\0')
        bt_str_copy(trouble, sizeof trouble, r->trouble);
    else if (missing[0] != '\0')
        snprintf(trouble, sizeof trouble, "the store does not have the texts of set %" PRIu64,
                 bt_rollout_committed(r));
    else
        r->config.ops->trouble(r->config.user, trouble, sizeof trouble);
    bt_text_printf(out, "{\"number\":%" PRIu64 ",\"pinned\":%d", r->serving->info.number,
                   r->pinned != NULL);
    bt_text_json_member(out, "missing", missing);
    bt_text_json_member(out, "trouble", trouble);
    bt_text_puts(out, "}");
}

static int by_name(const void *a, const void *b)
{
    const bt_rollout_peer_t *x = a, *y = b;

    return strcmp(x->name, y->name);
}

static void read_peers(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    bt_rollout_peer_t *peers = calloc(reply->row_count + 1, sizeof *peers);

    if (peers == NULL)
        return;
    free(r->peers);
    r->peers = peers;
    r->peer_count = reply->row_count;
    for (unsigned i = 0; i < reply->row_count; i++) {
        const bt_str_t json = reply->rows[i].value;
        snprintf(peers[i].name, sizeof peers[i].name, "%.*s", BT_STR_ARG(reply->rows[i].name));
        peers[i].number = bt_rollout_get_number(json, "number");
        peers[i].is_pinned = bt_rollout_get_number(json, "pinned") > 0;
        bt_rollout_get(json, "missing", peers[i].missing, sizeof peers[i].missing);
        bt_rollout_get(json, "trouble", peers[i].trouble, sizeof peers[i].trouble);
    }
    qsort(peers, r->peer_count, sizeof *peers, by_name);
}

static void on_table(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    if (reply->rc < 0) {
        r->must_report = true;
        return;
    }
    read_peers(r, reply);
    r->peers_read++;
    r->peers_ms = bt_clock_ms();
    for (unsigned i = 0; i < r->peer_count; i++)
        if (r->peers[i].missing[0] != '\0' && strcmp(r->peers[i].missing, r->held->info.uuid) == 0)
            r->kept[0] = '\0';
    if (r->push != NULL)
        bt_rollout_push_go_on(r);
}

static void report(bt_rollout_t *r)
{
    const uint64_t now_ms = bt_clock_ms();
    bt_text_t row;

    if (r->table_call.is_out || (!r->must_report && r->push == NULL && r->trial.uuid[0] == '\0' &&
                                 now_ms - r->reported_ms < r->config.expiry_ms / 4))
        return;
    r->must_report = false;
    r->reported_ms = now_ms;
    bt_text_init(&row);
    write_report(r, &row);
    bt_rollout_call(r, &r->table_call,
                    (bt_store_op_t){.what = BT_STORE_TABLE_SYNC,
                                    .key = BT_STR(BT_ROLLOUT_TABLE),
                                    .field = bt_str(r->replica),
                                    .value = bt_text_str(&row),
                                    .ttl_ms = r->config.expiry_ms},
                    on_table);
    bt_text_fini(&row);
}

/* ---- life ---- */

static void on_heartbeat(bt_timer_t *timer)
{
    bt_rollout_t *r = bt_container_of(timer, bt_rollout_t, heartbeat);

    bt_timer_start(timer, r->is_running ? r->config.interval_ms : JOIN_INTERVAL_MS);
    bt_rollout_read_log(r);
    bt_rollout_sync_pin(r);
    if (r->is_running)
        report(r);
    bt_rollout_serve(r);
    if (r->push != NULL)
        bt_rollout_push_go_on(r);
}

static uint64_t or_else(uint64_t given, uint64_t otherwise)
{
    return given > 0 ? given : otherwise;
}

int bt_rollout_new(bt_rollout_t **rollout_p, bt_loop_t *loop, const bt_rollout_config_t *config)
{
    bt_rollout_t *r = calloc(1, sizeof *r);
    bt_rollout_config_t *c = &r->config;

    if (r == NULL || bt_rollout_set_new(&r->held) < 0) {
        free(r);
        return BT_E_NOMEM;
    }
    r->serving = bt_rollout_set_ref(r->held);
    r->loop = loop;
    *c = *config;
    bt_str_copy(r->space, sizeof r->space, config->space);
    bt_str_copy(r->replica, sizeof r->replica, config->replica);
    c->space = r->space;
    c->replica = r->replica;
    c->interval_ms = or_else(c->interval_ms, INTERVAL_MS);
    c->expiry_ms = or_else(c->expiry_ms, EXPIRY_MS);
    c->vote_ms = or_else(c->vote_ms, VOTE_MS);
    c->spread_ms = or_else(c->spread_ms, SPREAD_MS);
    if (c->store_do == NULL)
        c->store_do = bt_store_do;
    snprintf(r->process, sizeof r->process, "%016" PRIx64, bt_rand_u64());
    snprintf(r->at, sizeof r->at, "0");
    snprintf(r->unavailable, sizeof r->unavailable, "it has not been reached yet");
    r->is_unavailable = true;
    bt_timer_init(loop, &r->heartbeat, on_heartbeat);
    *rollout_p = r;
    return 0;
}

void bt_rollout_join(bt_rollout_t *r, void (*on_joined)(void *user), void *user)
{
    r->on_joined = on_joined;
    r->joined_user = user;
    bt_timer_start(&r->heartbeat, 0);
}

void bt_rollout_begin(bt_rollout_t *r, bt_rollout_set_t *served)
{
    r->is_running = r->must_report = true;
    r->on_joined = NULL;
    if (served != NULL)
        bt_rollout_set_to(&r->serving, served);
    bt_timer_start(&r->heartbeat, 0);
}

void bt_rollout_free(bt_rollout_t *r)
{
    if (r == NULL)
        return;
    bt_rollout_call_t *const calls[] = {&r->log_call, &r->add_call,  &r->table_call,
                                        &r->set_call, &r->keep_call, &r->pin_call};
    bt_rollout_set_t *const sets[] = {r->held,   r->before, r->serving,
                                      r->taking, r->pinned, r->trial.set};

    bt_timer_stop(&r->heartbeat);
    bt_rollout_push_free(r);
    for (unsigned i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if (calls[i]->is_out)
            bt_store_cancel(&calls[i]->op);
    for (unsigned i = 0; i < sizeof sets / sizeof sets[0]; i++)
        bt_rollout_set_unref(sets[i]);
    free(r->peers);
    free(r);
}
