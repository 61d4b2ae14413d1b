/* How it works: an entry is a row of words. Its first is the entry's number, 0 while it is written:
 *
 *     writer: number = 0, words, number = n        reader: number, words, number again; equal and not 0, or skipped
 *
 * Words are stored with release and read with acquire: a reader that has seen a word of a later write sees the 0 before it, or what
 * came after. These are plain moves on x86-64; fences would do too, but ThreadSanitizer does not know them. */
#include "base/flight.h"

#include "base/clock.h"
#include "base/err.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS (sizeof(bt_flight_event_t) / sizeof(uint64_t))
#define LOOK_BACK 8U /* entries that an equal note is looked for in */
#define SAME_US 1000000U

_Static_assert(sizeof(bt_flight_event_t) % sizeof(uint64_t) == 0, "an event is whole words");

typedef struct entry {
    _Atomic uint64_t number; /* 1 is the ring's first; 0 = none, or being written */
    _Atomic uint64_t words[WORDS];
} entry_t;

typedef struct ring {
    _Atomic uint64_t last; /* number of the newest */
    entry_t entries[BT_FLIGHT_ENTRIES];
} ring_t;

static ring_t *_Atomic rings;
static _Atomic unsigned ring_count;
static _Thread_local ring_t *own;

int bt_flight_open(unsigned count)
{
    ring_t *all = calloc(count, sizeof *all);

    if (all == NULL)
        return BT_E_NOMEM;
    atomic_store(&rings, all);
    atomic_store(&ring_count, count);
    return 0;
}

void bt_flight_close(void)
{
    atomic_store(&ring_count, 0);
    free(atomic_exchange(&rings, NULL));
    own = NULL;
}

void bt_flight_bind(unsigned ring)
{
    own = ring < atomic_load(&ring_count) ? &atomic_load(&rings)[ring] : NULL;
}

unsigned bt_flight_rings(void)
{
    return atomic_load(&ring_count);
}

const char *bt_flight_kind_name(uint32_t kind)
{
    static const char *const names[BT_FLIGHT_KINDS] = {
        "loop_stall", "slow_policy", "gc_pause", "worker", "breaker", "reload", "store", "queue",
    };

    return kind < BT_FLIGHT_KINDS ? names[kind] : "?";
}

static entry_t *entry_of(ring_t *ring, uint64_t number)
{
    return &ring->entries[number % BT_FLIGHT_ENTRIES];
}

static void read_words(entry_t *entry, bt_flight_event_t *event)
{
    uint64_t words[WORDS];

    for (size_t i = 0; i < WORDS; i++)
        words[i] = atomic_load_explicit(&entry->words[i], memory_order_acquire);
    memcpy(event, words, sizeof *event);
}

static void write_entry(ring_t *ring, uint64_t number, const bt_flight_event_t *event)
{
    entry_t *entry = entry_of(ring, number);
    uint64_t words[WORDS];

    memcpy(words, event, sizeof words);
    atomic_store_explicit(&entry->number, 0, memory_order_relaxed);
    for (size_t i = 0; i < WORDS; i++)
        atomic_store_explicit(&entry->words[i], words[i], memory_order_release);
    atomic_store_explicit(&entry->number, number, memory_order_release);
}

/* Its own thread's: the newest few that say the same and are young enough. 0: none. */
static uint64_t find_same(ring_t *ring, const bt_flight_event_t *event, bt_flight_event_t *same_p)
{
    const uint64_t last = atomic_load_explicit(&ring->last, memory_order_relaxed);

    for (uint64_t number = last; number > 0 && last - number < LOOK_BACK; number--) {
        read_words(entry_of(ring, number), same_p);
        if (event->at_us - same_p->at_us >= SAME_US)
            return 0;
        if (same_p->kind == event->kind && strcmp(same_p->detail, event->detail) == 0)
            return number;
    }
    return 0;
}

static void put(bt_flight_event_t *event)
{
    bt_flight_event_t same;
    uint64_t number = find_same(own, event, &same);

    if (number != 0) {
        same.last_us = event->at_us;
        same.count++;
        if (event->us > same.us) {
            same.us = event->us;
            same.cpu_us = event->cpu_us;
        }
        write_entry(own, number, &same);
        return;
    }
    number = atomic_load_explicit(&own->last, memory_order_relaxed) + 1;
    write_entry(own, number, event);
    atomic_store_explicit(&own->last, number, memory_order_release);
}

static bt_flight_event_t begin(enum bt_flight_kind kind, uint64_t us, uint64_t cpu_us)
{
    const uint64_t now_us = bt_clock_us();

    return (bt_flight_event_t){.at_us = now_us,
                               .last_us = now_us,
                               .us = us,
                               .cpu_us = cpu_us,
                               .kind = (uint32_t) kind,
                               .count = 1};
}

void bt_flight_note(enum bt_flight_kind kind, uint64_t us, const char *fmt, ...)
{
    va_list args;

    if (own == NULL)
        return;
    bt_flight_event_t event = begin(kind, us, BT_FLIGHT_CPU_UNKNOWN);
    va_start(args, fmt);
    vsnprintf(event.detail, sizeof event.detail, fmt, args);
    va_end(args);
    put(&event);
}

void bt_flight_stall(uint64_t us, uint64_t cpu_us, const char *what)
{
    if (own == NULL)
        return;
    bt_flight_event_t event = begin(BT_FLIGHT_STALL, us, cpu_us < us ? cpu_us : us);
    snprintf(event.detail, sizeof event.detail, "%s", what);
    put(&event);
}

uint64_t bt_flight_last(unsigned ring)
{
    return ring < bt_flight_rings()
               ? atomic_load_explicit(&atomic_load(&rings)[ring].last, memory_order_acquire)
               : 0;
}

bool bt_flight_read(unsigned ring, uint64_t number, bt_flight_event_t *event_p)
{
    bt_flight_event_t event;

    if (ring >= bt_flight_rings() || number == 0)
        return false;
    entry_t *entry = entry_of(&atomic_load(&rings)[ring], number);
    if (atomic_load_explicit(&entry->number, memory_order_acquire) != number)
        return false;
    read_words(entry, &event);
    if (atomic_load_explicit(&entry->number, memory_order_relaxed) != number)
        return false;
    *event_p = event;
    return true;
}
