/* A heap in an array, the next event on top. What is forgotten stays in it as NOTHING, at its place. */
#include "simulator/events.h"

#include "base/err.h"

#include <stdbool.h>
#include <stdlib.h>

static bool is_before(const bt_sim_event_t *a, const bt_sim_event_t *b)
{
    return a->at_s != b->at_s ? a->at_s < b->at_s : a->number < b->number;
}

void bt_sim_events_push(bt_sim_events_t *events, double at_s, enum bt_sim_event_kind kind,
                        unsigned engine, void *of)
{
    const bt_sim_event_t e = {at_s, events->next_number++, kind, engine, of};
    unsigned at = events->count;

    if (events->count == events->cap) {
        const unsigned cap = events->cap > 0 ? 2 * events->cap : 1024;
        bt_sim_event_t *heap = realloc(events->heap, cap * sizeof *heap);
        if (heap == NULL) {
            events->rc = BT_E_NOMEM;
            return;
        }
        events->heap = heap;
        events->cap = cap;
    }
    events->count++;
    for (; at > 0 && is_before(&e, &events->heap[(at - 1) / 2]); at = (at - 1) / 2)
        events->heap[at] = events->heap[(at - 1) / 2];
    events->heap[at] = e;
}

bt_sim_event_t bt_sim_events_pop(bt_sim_events_t *events)
{
    bt_sim_event_t *heap = events->heap;
    const bt_sim_event_t top = heap[0], last = heap[--events->count];
    unsigned at = 0;

    for (;;) {
        unsigned child = 2 * at + 1;
        if (child >= events->count)
            break;
        if (child + 1 < events->count && is_before(&heap[child + 1], &heap[child]))
            child++;
        if (!is_before(&heap[child], &last))
            break;
        heap[at] = heap[child];
        at = child;
    }
    if (events->count > 0)
        heap[at] = last;
    return top;
}

void bt_sim_events_forget(bt_sim_events_t *events, enum bt_sim_event_kind kind, unsigned engine,
                          const void *of)
{
    for (unsigned i = 0; i < events->count; i++) {
        bt_sim_event_t *e = &events->heap[i];
        if (e->kind == kind && e->engine == engine && (of == NULL || e->of == of))
            e->kind = BT_SIM_NOTHING;
    }
}

void bt_sim_events_fini(bt_sim_events_t *events)
{
    free(events->heap);
    *events = (bt_sim_events_t){0};
}
