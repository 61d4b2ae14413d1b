/* reservation.c - how it works: a hold for each count of each limit that fits, taken one after the other.
 *
 *      concurrent  limits.c's table of this process, which has an even share of it where replicas share limits
 *      the others  quotas (fleet/quota.h): fixed windows that begin where the clock's do, leased in chunks from the store
 *
 * What is refused has been given back by the time its answer is out: leave goes over all holds, whatever the end was. A subject that finds
 * no room among the quotas is counted together with all others that find none, so that an attacker with a million addresses costs
 * bounded memory, and is held to one address's limit.
 */
#include "dispatch/intake/reservation.h"

#include "dispatch/answer/answer.h"
#include "dispatch/answer/token_replay.h"
#include "dispatch/answer/usage.h"
#include "dispatch/state/reservation_state.h"

#include <inttypes.h>

/* Of the quotas of a process, which are BT_E_LIMIT at 65,536; policies have the rest. */
#define SUBJECTS_MAX 49152U

/* ---- which ---- */

static bt_limit_subject_t subject_of(bt_request_t *r, char *address)
{
    return (bt_limit_subject_t){{[BT_LIMIT_ADDRESS] = bt_limit_address(bt_str(r->x->peer), address),
                                 [BT_LIMIT_KEY] = r->identity->id,
                                 [BT_LIMIT_TENANT] = r->tenant,
                                 [BT_LIMIT_MODEL] = r->intent.model}};
}

static int64_t amount_of(const struct bt_reservation *v, enum bt_limit_what what)
{
    switch (what) {
    case BT_LIMIT_TOKENS:
        return v->input + v->output;
    case BT_LIMIT_INPUT_TOKENS:
        return v->input;
    case BT_LIMIT_OUTPUT_TOKENS:
        return v->output;
    default:
        return 1;
    }
}

static bt_str_t key_of(bt_request_t *r, const bt_limit_t *limit, enum bt_limit_what what,
                       const bt_limit_subject_t *subject)
{
    char key[BT_LIMIT_KEY_MAX];

    return bt_arena_str(&r->arena, (bt_str_t){key, bt_limit_key(limit, what, subject, key)});
}

/* 0: this route makes no tokens. */
static int64_t answer_of(const bt_request_t *r, const bt_limit_t *limit)
{
    const uint64_t each =
        r->intent.max_tokens != 0 ? r->intent.max_tokens : (uint64_t) limit->answer_tokens;
    const uint64_t answers =
        (uint64_t) r->intent.n * (r->intent.prompt_count > 1 ? r->intent.prompt_count : 1);

    if (!bt_route_info(r->route)->generates)
        return 0;
    if (each == 0)
        return 1;
    return each < BT_LIMIT_AMOUNT_MAX / answers ? (int64_t) (each * answers) : BT_LIMIT_AMOUNT_MAX;
}

/* As high as it is configured, times what admit has said. */
static int64_t most_of(const bt_request_t *r, const bt_limit_t *limit, enum bt_limit_what what)
{
    double most = (double) limit->most[what];

    for (const struct bt_limit_factor *f = r->limit_factors; f != NULL; f = f->next)
        if (bt_str_eq(f->limit, bt_str(limit->name)))
            most *= f->by;
    return most < (double) BT_LIMIT_AMOUNT_MAX ? (int64_t) most : BT_LIMIT_AMOUNT_MAX;
}

static void add_holds(struct bt_reservation *v, const bt_limit_t *limit,
                      const bt_limit_subject_t *subject)
{
    v->output = answer_of(v->request, limit);
    for (enum bt_limit_what what = 0; what < BT_LIMIT_WHATS; what++) {
        if (limit->most[what] < 0 || amount_of(v, what) == 0)
            continue;
        const int64_t most = most_of(v->request, limit, what);
        v->holds[v->count++] =
            (struct bt_limit_hold){.limit = limit,
                                   .what = what,
                                   .key = key_of(v->request, limit, what, subject),
                                   .most = most,
                                   .amount = amount_of(v, what),
                                   .rest = most};
    }
}

/* NULL: no limit fits. */
static struct bt_reservation *select_holds(bt_request_t *r, bt_limit_table_t *table)
{
    char address[BT_LIMIT_ADDRESS_MAX];
    const bt_limit_subject_t subject = subject_of(r, address);
    uint64_t fits = 0, named = 0;
    struct bt_reservation *v;
    unsigned count = 0;

    for (unsigned i = 0; i < table->count; i++) {
        const uint64_t name = UINT64_C(1) << table->items[i].first;
        if ((named & name) != 0 || !bt_limit_fits(&table->items[i], &subject))
            continue;
        named |= name;
        fits |= UINT64_C(1) << i;
        count++;
    }
    if (count == 0)
        return NULL;
    v = bt_arena_zalloc(&r->arena,
                        sizeof *v + (size_t) count * BT_LIMIT_WHATS * sizeof v->holds[0]);
    v->request = r;
    v->table = bt_limit_table_ref(table);
    v->input = r->prompt_tokens != 0 ? (int64_t) r->prompt_tokens : 1;
    for (unsigned i = 0; i < table->count; i++)
        if ((fits & UINT64_C(1) << i) != 0)
            add_holds(v, &table->items[i], &subject);
    return v;
}

/* ---- refusing ---- */

static const char *whose(bt_request_t *r, const bt_limit_t *limit)
{
    const char *text = "";

    for (unsigned i = 0; i < BT_LIMIT_PARTS; i++)
        if ((limit->per & 1U << i) != 0)
            text = bt_arena_printf(&r->arena, "%s%s%s", text,
                                   text[0] != '\0' ? " and " : " of this ", bt_limit_part_name(i))
                       .p;
    return text;
}

static const char *words_of(enum bt_limit_what what)
{
    static const char *const words[] = {"requests at a time", "requests", "tokens", "input tokens",
                                        "output tokens"};

    return words[what];
}

static enum bt_progress refuse(struct bt_reservation *v, const struct bt_limit_hold *h)
{
    bt_request_t *r = v->request;
    const bt_limit_t *limit = h->limit;
    const char *window = "";

    v->refused = h;
    r->fail_name = "limited";
    bt_limit_count_add(&limit->counts->refused[h->what], 1);
    if (h->what != BT_LIMIT_CONCURRENT)
        window = bt_arena_printf(&r->arena, " in %g s", (double) limit->window_ms / 1000).p;
    bt_answer_error(r, 429,
                    bt_arena_printf(&r->arena, "limit \"%s\": all %" PRId64 " %s%s%s are in use",
                                    limit->name, h->most, words_of(h->what), window,
                                    whose(r, limit))
                        .p,
                    h->what == BT_LIMIT_CONCURRENT ? 1 : (unsigned) ((h->reset_ms + 999) / 1000));
    return BT_PROGRESS_ENDED;
}

/* No window would ever let it in: waiting is no use. */
static enum bt_progress refuse_size(struct bt_reservation *v, const struct bt_limit_hold *h)
{
    bt_request_t *r = v->request;

    v->refused = h;
    r->fail_name = "limited";
    bt_limit_count_add(&h->limit->counts->too_large, 1);
    bt_answer_error(r, 413,
                    bt_arena_printf(&r->arena,
                                    "limit \"%s\": a prompt of about %" PRId64
                                    " tokens is more than the %" PRId64 " %s of a whole window",
                                    h->limit->name, v->input, h->most, words_of(h->what))
                        .p,
                    0);
    return BT_PROGRESS_ENDED;
}

/* ---- taking ---- */

static bool enter_running(struct bt_reservation *v, struct bt_limit_hold *h)
{
    bt_dispatcher_t *d = v->request->d;
    const int64_t replicas = d->quotas != NULL ? bt_quota_replicas(d->shared->quotas) : 1;
    const int64_t part = h->most / replicas;
    int64_t now;

    h->is_held =
        bt_limits_enter(d->shared->limits, h->key, part > 0 || h->most == 0 ? part : 1, &now);
    if (h->is_held)
        atomic_fetch_add_explicit(&h->limit->counts->running, 1, memory_order_relaxed);
    return h->is_held;
}

/* Of what the client may get, not more than there can be: it is a bound, and seldom reached. */
static void clamp(struct bt_limit_hold *h)
{
    if (h->amount > h->most && h->most > 0)
        h->amount = h->most;
}

static void on_taken(bt_quota_take_t *take);

/* 0: answered. 1: on_taken follows. */
static int take(struct bt_reservation *v, const struct bt_limit_hold *h)
{
    v->take = (bt_quota_take_t){.key = h->key,
                                .limit = h->most,
                                .amount = h->amount,
                                .window_ms = h->limit->window_ms,
                                .live_max = v->is_crowded ? 0 : SUBJECTS_MAX,
                                .cb = on_taken};
    const int rc = bt_quota_take(v->request->d->quotas, &v->take);
    v->is_waiting = rc == 1;
    return rc;
}

enum outcome { TAKEN, REFUSED, AGAIN };

/* Who finds no room shares one count; when even that has none nobody new comes in. Where our own memory is short nothing is limited. */
static enum outcome read_take(struct bt_reservation *v, struct bt_limit_hold *h)
{
    if (v->take.rc == BT_E_LIMIT && !v->is_crowded) {
        v->is_crowded = true;
        bt_limit_count_add(&h->limit->counts->crowded, 1);
        h->key = key_of(v->request, h->limit, h->what, NULL);
        return AGAIN;
    }
    v->is_crowded = false;
    if (v->take.rc != 0) {
        h->reset_ms = 1000;
        return v->take.rc == BT_E_LIMIT ? REFUSED : TAKEN;
    }
    h->is_held = v->take.is_granted;
    h->window = v->take.window;
    h->rest = v->take.rest;
    h->reset_ms = v->take.reset_ms;
    return h->is_held ? TAKEN : REFUSED;
}

static enum bt_progress admit(struct bt_reservation *v)
{
    const bt_limit_t *last = NULL;

    for (unsigned i = 0; i < v->count; i++) {
        bt_limit_count_t *counts = v->holds[i].limit->counts;
        if (v->holds[i].limit == last)
            continue;
        last = v->holds[i].limit;
        bt_limit_count_add(&counts->admitted, 1);
        bt_limit_count_add(&counts->reserved[0], (uint64_t) v->input);
        bt_limit_count_add(&counts->reserved[1], (uint64_t) answer_of(v->request, last));
    }
    return BT_PROGRESS_NEXT;
}

static bool is_too_large(const struct bt_reservation *v, const struct bt_limit_hold *h)
{
    return (h->what == BT_LIMIT_TOKENS || h->what == BT_LIMIT_INPUT_TOKENS) && h->most > 0 &&
           v->input > h->most;
}

/* is_answered: v->take is, for the hold at which it stands. */
static enum bt_progress go_on(struct bt_reservation *v, bool is_answered)
{
    while (v->at < v->count) {
        struct bt_limit_hold *h = &v->holds[v->at];
        enum outcome outcome = TAKEN;
        if (h->what == BT_LIMIT_CONCURRENT) {
            outcome = enter_running(v, h) ? TAKEN : REFUSED;
        } else if (!is_answered) {
            clamp(h);
            if (take(v, h) == 1)
                return BT_PROGRESS_WAITS;
            is_answered = true;
        }
        if (h->what != BT_LIMIT_CONCURRENT)
            outcome = read_take(v, h);
        is_answered = false;
        if (outcome == REFUSED)
            return refuse(v, h);
        if (outcome == TAKEN)
            v->at++;
    }
    return admit(v);
}

static void on_taken(bt_quota_take_t *take)
{
    struct bt_reservation *v = bt_container_of(take, struct bt_reservation, take);

    v->is_waiting = false;
    v->request->ops->go_on(v->request, go_on(v, true));
}

enum bt_progress bt_reservation_enter(bt_request_t *r)
{
    bt_dispatcher_t *d = r->d;

    if (d->shared->limits == NULL)
        return BT_PROGRESS_NEXT;
    bt_limits_renew(d->shared->limits, &d->limits);
    if (d->limits.table == NULL || d->quotas == NULL)
        return BT_PROGRESS_NEXT;
    r->reservation = select_holds(r, d->limits.table);
    if (r->reservation == NULL)
        return BT_PROGRESS_NEXT;
    for (unsigned i = 0; i < r->reservation->count; i++)
        if (is_too_large(r->reservation, &r->reservation->holds[i]))
            return refuse_size(r->reservation, &r->reservation->holds[i]);
    return go_on(r->reservation, false);
}

/* ---- giving back ---- */

struct used {
    int64_t requests, input, output;
    bool is_open; /* an answer does not say its tokens: what was reserved for them is spent */
};

/* As the engine says, else as estimated and counted. Of samples of one prompt each says all of it. */
static struct used used_by(const bt_request_t *r)
{
    const uint64_t before = bt_token_replay_before(r);
    uint64_t input = 0, output = before;
    bool is_open = false;

    for (unsigned i = 0; i < r->task_count; i++) {
        const bt_task_t *task = &r->tasks[i];
        bt_leg_usage_t said = {.is_output_known = true};
        if (task->attempt != NULL)
            said = bt_usage_of_leg(&task->attempt->legs[1]);
        if (!said.is_output_known && task->attempt->legs[1].state == BT_LEG_DONE)
            is_open = r->status == 200 && bt_route_info(r->route)->generates;
        if (task->attempt != NULL && said.prompt == 0)
            said.prompt = task->attempt->legs[0].reply_tokens;
        input += said.prompt > before ? said.prompt - before : task->prompt_tokens - before;
        output += said.output;
    }
    if (r->task_count > 1 && r->intent.n > 1)
        input /= r->intent.n;
    return (struct used){1, (int64_t) input, (int64_t) output, is_open};
}

/* Whoever was refused or met no worker has used nothing; whom an engine failed, its request. Who leaves pays for the prompt that was sent on. */
static struct used settle(const bt_request_t *r)
{
    if (r->attempts == 0)
        return (struct used){0};
    if (r->status >= 400 && r->status != 499)
        return (struct used){.requests = 1};
    return used_by(r);
}

static int64_t output_of(const struct used *used, int64_t reserved)
{
    return used->is_open && reserved > used->output ? reserved : used->output;
}

/* What was reserved may be less than what may come, see clamp. */
static int64_t used_of(const struct used *used, const struct bt_limit_hold *h, int64_t input)
{
    switch (h->what) {
    case BT_LIMIT_TOKENS:
        return used->input + output_of(used, h->amount - input);
    case BT_LIMIT_INPUT_TOKENS:
        return used->input;
    case BT_LIMIT_OUTPUT_TOKENS:
        return output_of(used, h->amount);
    default:
        return used->requests;
    }
}

static void true_up(bt_dispatcher_t *d, const struct bt_limit_hold *h, int64_t used)
{
    const bt_quota_take_t more = {.key = h->key,
                                  .limit = h->most,
                                  .amount = used - h->amount,
                                  .window_ms = h->limit->window_ms};

    if (used > h->amount)
        bt_quota_charge(d->quotas, &more);
    else if (used < h->amount)
        bt_quota_give(d->quotas, h->key, h->limit->window_ms, h->amount - used, h->window);
}

static void give_back(bt_request_t *r, struct bt_limit_hold *h, const struct used *used)
{
    if (!h->is_held)
        return;
    h->is_held = false;
    if (h->what != BT_LIMIT_CONCURRENT) {
        true_up(r->d, h, used_of(used, h, r->reservation->input));
        return;
    }
    bt_limits_leave(r->d->shared->limits, h->key);
    atomic_fetch_sub_explicit(&h->limit->counts->running, 1, memory_order_relaxed);
}

void bt_reservation_leave(bt_request_t *r)
{
    struct bt_reservation *v = r->reservation;
    const bt_limit_t *last = NULL;

    if (v == NULL)
        return;
    if (v->is_waiting)
        bt_quota_cancel(&v->take);
    v->is_waiting = false;
    const struct used used = settle(r);
    for (unsigned i = 0; i < v->count; i++) {
        const struct bt_limit_hold *h = &v->holds[i];
        give_back(r, &v->holds[i], &used);
        if (h->limit == last)
            continue;
        last = h->limit;
        bt_limit_count_add(&last->counts->used[0], (uint64_t) used.input);
        bt_limit_count_add(&last->counts->used[1], (uint64_t) output_of(&used, answer_of(r, last)));
    }
    r->reservation = NULL;
    bt_limit_table_unref(v->table);
}
