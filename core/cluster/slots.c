#include "cluster/slots.h"

#include "base/err.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#define WORDS (BT_SLOTS_MAX / 64)

struct bt_slots {
    _Atomic unsigned refs;
    _Atomic uint64_t words[WORDS];
};

int bt_slots_new(bt_slots_t **slots_p)
{
    bt_slots_t *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return BT_E_NOMEM;
    s->refs = 1;
    *slots_p = s;
    return 0;
}

void bt_slots_unref(bt_slots_t *s)
{
    if (s != NULL && atomic_fetch_sub(&s->refs, 1) == 1)
        free(s);
}

/* Only the control loop takes, so what is seen free stays free. */
int bt_slots_take(bt_slots_t *s, unsigned *slot_p)
{
    for (unsigned i = 0; i < WORDS; i++) {
        uint64_t unused = ~atomic_load(&s->words[i]);
        if (unused == 0)
            continue;
        unsigned bit = (unsigned) __builtin_ctzll(unused);
        atomic_fetch_or(&s->words[i], UINT64_C(1) << bit);
        atomic_fetch_add(&s->refs, 1);
        *slot_p = i * 64 + bit;
        return 0;
    }
    return BT_E_LIMIT;
}

void bt_slots_give(void *slots, unsigned slot)
{
    bt_slots_t *s = slots;

    atomic_fetch_and(&s->words[slot / 64], ~(UINT64_C(1) << (slot % 64)));
    bt_slots_unref(s);
}
