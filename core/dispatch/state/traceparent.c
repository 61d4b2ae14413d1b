#include "dispatch/state/traceparent.h"

#include "base/rand.h"

/* ---- ids ---- */

/* splitmix64's finalizer: no two numbers of one root have the same. */
uint64_t bt_span_id(const bt_request_trace_t *t, uint64_t number)
{
    uint64_t x = t->root + number * UINT64_C(0x9e3779b97f4a7c15);

    if (number == 0)
        return t->root;
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return x != 0 ? x : 1; /* 0 means none */
}

enum slot { SLOT_ATTEMPT, SLOT_TRANSFER, SLOT_LEGS };

static uint64_t attempt_number(const bt_attempt_t *a, unsigned slot)
{
    const bool is_encode = a->legs[1].role == BT_LEG_ENCODE;

    return (uint64_t) is_encode << 62 | (uint64_t) (a->task->index + 1) << 32 |
           (uint64_t) (a->number & 0xffffU) << 16 | slot;
}

unsigned bt_span_replaced(const bt_attempt_t *a, enum bt_leg_role role)
{
    unsigned count = 0;

    for (const struct bt_replaced *s = a->replaced; s != NULL; s = s->before)
        count += s->role == role;
    return count;
}

/* index: of the leg's workers, the first one is 0. */
uint64_t bt_span_leg_id(const bt_request_trace_t *t, const bt_attempt_t *a, enum bt_leg_role role,
                        unsigned index)
{
    return bt_span_id(t, attempt_number(a, SLOT_LEGS + 4 * (index & 0xfffU) + role));
}

uint64_t bt_span_attempt_id(const bt_request_trace_t *t, const bt_attempt_t *a)
{
    return bt_span_id(t, attempt_number(a, SLOT_ATTEMPT));
}

uint64_t bt_span_transfer_id(const bt_request_trace_t *t, const bt_attempt_t *a)
{
    return bt_span_id(t, attempt_number(a, SLOT_TRANSFER));
}

/* ---- the client's ---- */

/* The only one of its name. */
static const bt_header_t *only(const bt_head_t *head, bt_str_t name)
{
    const bt_header_t *found = NULL;

    for (unsigned i = 0; i < head->header_count; i++)
        if (bt_str_ieq(head->headers[i].name, name)) {
            if (found != NULL)
                return NULL;
            found = &head->headers[i];
        }
    return found;
}

static bool is_state_good(const bt_head_t *head)
{
    unsigned members = 0;

    for (unsigned i = 0; i < head->header_count; i++)
        if (bt_str_ieq(head->headers[i].name, BT_STR("tracestate")) &&
            !bt_trace_state_ok(head->headers[i].value, &members))
            return false;
    return true;
}

static void begin_new(const bt_request_t *r, bt_request_trace_t *t)
{
    bt_trace_print_span(t->id, bt_rand_u64() | 1); /* not all zeros */
    bt_trace_print_span(t->id + BT_TRACE_SPAN_CHARS, bt_rand_u64());
    t->is_sampled = bt_rand_unit() < r->d->shared->trace_sample;
}

void bt_traceparent_read(bt_request_t *r)
{
    bt_request_trace_t *t = bt_arena_zalloc(&r->arena, sizeof(*t));
    const bt_header_t *parent = only(&r->x->head, BT_STR("traceparent"));
    bt_trace_context_t context;

    r->trace = t;
    t->root = bt_rand_u64() | 1;
    if (parent == NULL || !bt_trace_parse(parent->value, &context)) {
        begin_new(r, t);
        return;
    }
    memcpy(t->id, context.trace, sizeof(context.trace));
    t->parent = context.parent;
    t->is_sampled = context.is_sampled;
    t->keeps_state = is_state_good(&r->x->head);
}

/* ---- a leg's ---- */

bool bt_traceparent_drops(const bt_request_t *r, bt_str_t name)
{
    return bt_str_ieq(name, BT_STR("traceparent")) ||
           (!r->trace->keeps_state && bt_str_ieq(name, BT_STR("tracestate")));
}

void bt_traceparent_write(const bt_leg_t *leg, char out[BT_TRACE_PARENT_CHARS])
{
    const bt_attempt_t *a = leg->attempt;
    const bt_request_trace_t *t = a->task->request->trace;

    bt_trace_print(out, t->id, bt_span_leg_id(t, a, leg->role, bt_span_replaced(a, leg->role)),
                   t->is_sampled);
}
