/* dispatcher.c - one loop's requests: their life, cancelling them, what the admin API tells of them. */
#include "dispatch/dispatcher.h"

#include "base/line.h"
#include "dispatch/answer/sink.h"
#include "dispatch/attempt/attempt.h"
#include "dispatch/attempt/lost_legs.h"
#include "dispatch/attempt/task.h"
#include "dispatch/models.h"
#include "dispatch/plan/candidates.h"
#include "dispatch/plan/tokenize.h"
#include "dispatch/request.h"
#include "dispatch/telemetry/model_stats.h"
#include "dispatch/telemetry/observe.h"
#include "dispatch/warmup.h"

#include <stdio.h>
#include <stdlib.h>

int bt_dispatcher_new(bt_dispatcher_t **d_p, bt_loop_t *loop, bt_dispatch_shared_t *shared,
                      char *err, size_t err_size)
{
    bt_dispatcher_t *d = calloc(1, sizeof(*d));
    int rc;

    if (d == NULL)
        return BT_E_NOMEM;
    d->loop = loop;
    d->shared = shared;
    d->generations.warm = bt_candidates_warm;
    d->generations.warm_user = d;
    bt_list_init(&d->live);
    bt_list_init(&d->draining);
    bt_list_init(&d->walks);
    bt_lost_legs_init(d);
    bt_slab_init(&d->request_slab, sizeof(bt_request_t), 1024);
    d->request_slab.raw_bytes = BT_REQUEST_ROOM;
    bt_slab_init(&d->background_slab, bt_background_call_bytes(), 64);
    d->records = bt_record_ring_new();
    d->observer = bt_observer_new(d);
    rc = d->records != NULL && d->observer != NULL ? bt_rooms_init(&d->rooms, loop->index)
                                                   : BT_E_NOMEM;
    if (rc == 0 && shared->identities != NULL)
        rc = bt_checker_new(&d->checker, shared->identities);
    if (rc == 0)
        rc = bt_dialects_new(&d->dialects, shared->config.dialect_dir, err, err_size);
    if (rc < 0) {
        bt_checker_free(d->checker);
        bt_rooms_fini(&d->rooms);
        bt_record_ring_free(d->records);
        bt_observer_free(d->observer);
        free(d);
        return rc;
    }
    if (shared->config.warm_pairs && loop->index == 0)
        rc = bt_warmups_new(d);
    if (rc < 0) {
        bt_dispatcher_free(d);
        return rc;
    }
    *d_p = d;
    return 0;
}

/* ---- fleet ---- */

int bt_dispatcher_set_workers(bt_dispatcher_t *d, bt_workers_t *workers, char *err, size_t err_size)
{
    struct bt_candidates *candidates = bt_candidates_new(workers->pool_count);
    struct bt_upstream_slot *slots = d->upstreams;
    int rc = candidates == NULL ? BT_E_NOMEM : 0;

    if (rc == 0 && workers->slot_count > d->upstream_count) {
        slots = realloc(d->upstreams, workers->slot_count * sizeof(*slots));
        if (slots == NULL)
            rc = BT_E_NOMEM;
    }
    if (rc < 0) {
        free(candidates);
        snprintf(err, err_size, "%s", bt_err_text(rc));
        return rc;
    }
    if (workers->slot_count > d->upstream_count) {
        memset(slots + d->upstream_count, 0,
               (workers->slot_count - d->upstream_count) * sizeof(*slots));
        d->upstreams = slots;
        d->upstream_count = workers->slot_count;
    }
    bt_candidates_free(d->candidates, d->pool_count);
    d->candidates = candidates;
    d->pool_count = workers->pool_count;
    bt_workers_unref(d->workers);
    d->workers = bt_workers_ref(workers);
    return 0;
}

/* ---- life ---- */

int bt_dispatcher_set_store(bt_dispatcher_t *d, bt_store_client_t *client)
{
    bt_quota_client_free(d->quotas);
    d->quotas = NULL;
    d->store = NULL;
    if (client == NULL)
        return 0;
    int rc = bt_quota_client_new(&d->quotas, d->shared->quotas, client, d->loop);
    if (rc == 0)
        d->store = client;
    return rc;
}

static void on_send(void *user, const bt_hook_op_t *hook_op)
{
    const bt_wait_ctx_t room = bt_dispatcher_wait_ctx(user);

    bt_wait_store_send(&room, hook_op);
}

/* What pure hooks write of the fleet's state leaves by this loop's client. */
static void set_senders(bt_dispatcher_t *d)
{
    const bt_generation_t *g = d->generations.serving;

    for (unsigned i = 0; g != NULL && i < g->bundle->pool_count; i++) {
        bt_policy_t *all[BT_SLOT_COUNT];
        const unsigned count = bt_pool_policies_all(&g->pools[i], all);
        for (unsigned k = 0; k < count; k++)
            bt_policy_set_sender(all[k], on_send, d);
    }
}

void bt_dispatcher_commit(bt_dispatcher_t *d)
{
    bt_generations_commit(&d->generations);
    set_senders(d);
    bt_observer_refresh(d->observer);
}

bool bt_dispatcher_idle(const bt_dispatcher_t *d)
{
    return bt_list_empty(&d->live) && bt_list_empty(&d->draining) && d->background_count == 0;
}

void bt_dispatcher_cancel_all(bt_dispatcher_t *d)
{
    bt_list_t *it, *tmp;

    bt_list_each (&d->live, it, tmp) {
        bt_request_t *r = bt_container_of(it, bt_request_t, link);
        bt_exchange_t *x = r->x;
        r->x = NULL;
        r->fail_name = "cancelled";
        if (x != NULL)
            bt_exchange_abort(x);
        r->ops->finish(r);
    }
    bt_list_each (&d->draining, it, tmp)
        bt_request_cut(bt_container_of(it, bt_request_t, link));
    bt_warmups_stop(d->warmups); /* or another one would begin, and outlive the dispatcher */
    bt_observer_stop(d->observer);
}

void bt_dispatcher_free(bt_dispatcher_t *d)
{
    bt_warmups_free(d->warmups);
    bt_lost_legs_fini(d);
    for (unsigned i = 0; i < d->upstream_count; i++)
        if (d->upstreams[i].up != NULL)
            bt_upstream_free(d->upstreams[i].up);
    free(d->upstreams);
    bt_observer_free(d->observer);
    (void) bt_dispatcher_set_store(d, NULL);
    bt_generations_fini(&d->generations);
    bt_model_stats_fini(&d->model_stats);
    bt_candidates_free(d->candidates, d->pool_count);
    bt_workers_unref(d->workers);
    bt_dialects_free(d->dialects);
    bt_checker_free(d->checker);
    bt_limits_drop(&d->limits);
    bt_rooms_fini(&d->rooms);
    bt_slab_fini(&d->request_slab);
    bt_slab_fini(&d->background_slab);
    bt_record_ring_free(d->records);
    bt_models_free(d->models);
    bt_tokenizer_free(d->tokenizer);
    free(d);
}

/* ---- walks ---- */

void bt_request_walk_start(bt_dispatcher_t *d, bt_request_walk_t *walk)
{
    walk->at = d->live.next;
    bt_list_push(&d->walks, &walk->link);
}

bt_request_t *bt_request_walk_next(bt_dispatcher_t *d, bt_request_walk_t *walk)
{
    bt_list_t *it = walk->at;

    if (it == &d->live)
        it = d->draining.next;
    if (it == &d->draining) {
        bt_list_remove(&walk->link);
        walk->at = NULL;
        return NULL;
    }
    walk->at = it->next;
    return bt_container_of(it, bt_request_t, link);
}

void bt_request_unlink(bt_dispatcher_t *d, bt_list_t *link)
{
    for (bt_list_t *it = d->walks.next; it != &d->walks; it = it->next) {
        bt_request_walk_t *walk = bt_container_of(it, bt_request_walk_t, link);
        if (walk->at == link)
            walk->at = link->next;
    }
    bt_list_remove(link);
}

/* ---- cancelling by id, over all loops ---- */

#define CANCEL_A_TURN 1024 /* of a loop's requests are looked at */

static bool is_meant(const bt_request_t *r, bt_str_t id, uint64_t owner)
{
    if (r->finished || (owner != 0 && r->owner != owner))
        return false;
    return bt_str_eq(bt_str(r->id), id) ||
           (r->intent.client_rid.n != 0 && bt_str_eq(r->intent.client_rid, id));
}

static void cancel_one(bt_request_t *r)
{
    const bt_failure_t f = {
        .rc = BT_E_CANCELLED, .reason = "cancelled by request id", .leg = BT_LEG_DECODE};

    for (unsigned i = 0; i < r->task_count; i++)
        bt_task_cancel(&r->tasks[i]);
    r->fail_name = "cancelled";
    r->sink->fail(&r->tasks[0], &f);
}

/* One for all loops: the last that looks frees it, and says elsewhere what nobody here has found. */
struct cancel {
    bt_dispatch_shared_t *shared;
    bool may_be_elsewhere;
    uint64_t owner;
    _Atomic unsigned waiting;
    _Atomic bool is_found;
    size_t n;
    char *id;
    struct cancel_mail {
        bt_mail_t envelope;
        struct cancel *cancel;
        bt_dispatcher_t *d;
        bt_request_walk_t walk;
    } mails[];
};

/* Several requests may carry one client's rid, so a walk goes on to its end. False: not yet. */
static bool cancel_some(struct cancel_mail *mail)
{
    struct cancel *c = mail->cancel;

    for (unsigned i = 0; i < CANCEL_A_TURN; i++) {
        bt_request_t *r = bt_request_walk_next(mail->d, &mail->walk);
        if (r == NULL)
            return true;
        if (!is_meant(r, (bt_str_t){c->id, c->n}, c->owner))
            continue;
        cancel_one(r);
        atomic_store(&c->is_found, true);
    }
    return false;
}

static void on_cancel(bt_loop_t *loop, bt_mail_t *envelope)
{
    struct cancel_mail *mail = bt_container_of(envelope, struct cancel_mail, envelope);
    struct cancel *c = mail->cancel;
    bt_dispatch_shared_t *shared = c->shared;
    const bt_str_t id = {c->id, c->n};

    if (mail->walk.at == NULL) {
        bt_request_walk_start(mail->d, &mail->walk);
        mail->d->background_count++; /* the loop does not end before it */
    }
    if (!cancel_some(mail)) {
        bt_loop_post(loop, envelope, on_cancel);
        return;
    }
    mail->d->background_count--;
    if (atomic_fetch_sub(&c->waiting, 1) > 1)
        return;
    if (c->may_be_elsewhere && !atomic_load(&c->is_found) && shared->cancel_elsewhere != NULL)
        shared->cancel_elsewhere(shared->cancel_elsewhere_user, id, c->owner);
    free(c);
}

static void cancel(bt_dispatch_shared_t *shared, bt_str_t id, uint64_t owner, bool may_be_elsewhere)
{
    const unsigned count = shared->dispatcher_count;
    struct cancel *c = calloc(1, sizeof(*c) + count * sizeof(c->mails[0]) + id.n);

    if (c == NULL)
        return;
    *c = (struct cancel){
        .shared = shared, .may_be_elsewhere = may_be_elsewhere, .owner = owner, .n = id.n};
    atomic_init(&c->waiting, count);
    c->id = (char *) &c->mails[count];
    memcpy(c->id, id.p, id.n);
    for (unsigned i = 0; i < count; i++)
        c->mails[i] = (struct cancel_mail){.cancel = c, .d = shared->dispatchers[i]};
    if (count == 0)
        free(c);
    for (unsigned i = 0; i < count; i++) /* the last one may free it */
        bt_loop_post(shared->dispatchers[i]->loop, &c->mails[i].envelope, on_cancel);
}

void bt_dispatch_shared_cancel(bt_dispatch_shared_t *shared, bt_str_t id, uint64_t owner)
{
    cancel(shared, id, owner, true);
}

void bt_dispatch_shared_cancel_here(bt_dispatch_shared_t *shared, bt_str_t id, uint64_t owner)
{
    cancel(shared, id, owner, false);
}

/* ---- for the admin API ---- */

/* Without printf: the dashboard asks an event thread for up to 200 rows a second. */
static void put_count(bt_text_t *out, const char *member, uint64_t n)
{
    char z[BT_STR_U64_MAX], *end = z + sizeof z, *from = bt_str_digits(end, n, 1);

    bt_text_puts(out, member);
    bt_text_put(out, (bt_str_t){from, (size_t) (end - from)});
}

static void put_ms(bt_text_t *out, const char *member, uint64_t us)
{
    if (us == 0)
        return;
    put_count(out, out->data[out->len - 1] == '{' ? member + 1 : member, (us + 50) / 1000);
    put_count(out, ".", (us + 50) / 100 % 10);
}

/* Where it is, and what it has behind it: durations, and then times since it came. */
static void describe_way(const bt_request_t *r, bt_text_t *out)
{
    static const char *const steps[] = {[BT_STEP_FOLLOW_UP] = "follow_up",
                                        [BT_STEP_RULES] = "rules",
                                        [BT_STEP_ADMIT] = "admit",
                                        [BT_STEP_ROUTE] = "route",
                                        [BT_STEP_LIMITS] = "limits",
                                        [BT_STEP_QUEUE] = "queue",
                                        [BT_STEP_ENCODE] = "encode",
                                        [BT_STEP_TOKENIZE] = "tokenize",
                                        [BT_STEP_PLAN] = "plan",
                                        [BT_STEP_RUN] = "run",
                                        [BT_STEP_END] = "end"};
    const bt_attempt_t *a = r->last;
    const bt_leg_t *prefill = a != NULL && a->legs[0].worker != NULL ? &a->legs[0] : NULL;
    const uint64_t since = r->start_us;

    bt_text_puts(out, ",\"step\":\"");
    bt_text_puts(out, steps[r->step]);
    bt_text_puts(out, "\",\"phases_ms\":{");
    put_ms(out, ",\"admit\":", r->record.admit_us);
    put_ms(out, ",\"route\":", r->record.route_us);
    put_ms(out, ",\"queue\":", r->record.queue_us);
    put_ms(out, ",\"plan\":", r->record.plan_us);
    if (prefill != NULL && prefill->call.start_us > since)
        put_ms(out, ",\"prefill_start\":", prefill->call.start_us - since);
    if (prefill != NULL && a->prefill_done_us > since)
        put_ms(out, ",\"prefill_end\":", a->prefill_done_us - since);
    if (r->first_byte_us > since)
        put_ms(out, ",\"first_byte\":", r->first_byte_us - since);
    bt_text_puts(out, "}");
}

static void describe_one(const bt_request_t *r, bt_text_t *out)
{
    static const char *const members[] = {",\"prefill\":", ",\"decode\":", ",\"worker\":"};

    bt_text_puts(out, "{\"id\":\"");
    bt_text_puts(out, r->id);
    bt_text_puts(out, "\",\"route\":\"");
    bt_text_puts(out, bt_route_info(r->route)->label);
    bt_text_puts(out, "\",\"model\":");
    bt_text_json_cut(out, r->intent.model, BT_LINE_FIELD_MAX);
    put_count(out, ",\"age_ms\":", (bt_clock_event_us() - r->start_us) / 1000);
    bt_text_puts(out, ",\"plan\":\"");
    bt_text_puts(out, bt_plan_kind_name(bt_request_kind(r)));
    bt_text_puts(out, "\"");
    for (unsigned i = 0; i < sizeof members / sizeof members[0]; i++) {
        bt_text_puts(out, members[i]);
        bt_text_json_str(out, bt_str(bt_request_worker(r, i)));
    }
    put_count(out, ",\"attempts\":", r->attempts);
    bt_text_puts(out, r->intent.stream ? ",\"stream\":true" : ",\"stream\":false");
    bt_text_puts(out, r->first_byte_us != 0 ? ",\"first_byte\":true" : ",\"first_byte\":false");
    put_count(out, ",\"events\":", r->events);
    put_count(out, ",\"bytes\":", r->sent_bytes);
    put_count(out, ",\"tasks\":", r->task_count);
    describe_way(r, out);
    bt_text_puts(out, "}");
}

void bt_dispatcher_describe(bt_dispatcher_t *d, unsigned limit, bt_text_t *out)
{
    bt_list_t *it, *tmp;
    unsigned count = 0;

    bt_list_each (&d->live, it, tmp) {
        if (count == limit)
            break;
        if (count++ > 0)
            bt_text_puts(out, ",");
        describe_one(bt_container_of(it, bt_request_t, link), out);
    }
}

/* One with a room is a pair. Of a split request each child has its own; the request's row names one of them. */
static void describe_attempt(const bt_attempt_t *a, bt_text_t *out)
{
    bt_text_printf(out, "{\"id\":\"%s\",\"n\":%u", a->id, a->number);
    if (a->task->request->task_count > 1)
        bt_text_printf(out, ",\"child\":%u", a->task->index);
    bt_text_puts(out, ",\"prefill\":");
    bt_text_json_str(out, bt_str(a->pair.prefill != NULL ? a->pair.prefill->name : ""));
    bt_text_puts(out, ",\"decode\":");
    bt_text_json_str(out, bt_str(a->pair.decode != NULL ? a->pair.decode->name : ""));
    bt_text_printf(out, ",\"age_ms\":%llu}",
                   (unsigned long long) (bt_clock_event_us() - a->start_us) / 1000);
}

bool bt_dispatcher_describe_room(bt_dispatcher_t *d, uint64_t room, bt_text_t *out,
                                 uint64_t *hub_room_p)
{
    const bt_attempt_t *a = bt_rooms_owner(&d->rooms, room);

    if (a == NULL)
        return false;
    bt_text_puts(out, "\"request\":");
    describe_one(a->task->request, out);
    bt_text_puts(out, ",\"attempt\":");
    describe_attempt(a, out);
    *hub_room_p = a->kv.room;
    return true;
}
