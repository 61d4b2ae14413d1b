/* ring.c - the last lines of one loop, by request id.
 *
 * Lines lie one after the other in a block of bytes used in a circle, each with its id before it; the oldest make room. The
 * block doubles while it is what limits the number of lines, up to BT_RECORD_RING_BYTES, so that a quiet gateway stays
 * small. Entries are a circle too, chained by hash: a new one is put first in its chain, so the newest of an id is found.
 */
#include "record/record.h"

#include <stdlib.h>

#define FIRST_BYTES ((size_t) 256 << 10)
#define CHAINS 2048 /* a power of two */
#define NONE UINT16_MAX

_Static_assert(BT_RECORD_RING < NONE, "entries are numbered in 16 bits");
_Static_assert(FIRST_BYTES > 2 * BT_RECORD_LINE_MAX, "a line fits, wherever the circle stands");

struct entry {
    uint64_t hash;
    size_t at; /* of the id; the line follows */
    uint32_t id_n, line_n;
    uint16_t next; /* in its chain: older */
    bool is_draft;
};

struct bt_record_ring {
    char *bytes;
    size_t cap, head;      /* head: where the next line goes */
    unsigned first, count; /* the oldest entry */
    uint16_t chains[CHAINS];
    struct entry entries[BT_RECORD_RING];
    bt_text_t scratch;
    bt_record_draft_t draft;
};

bt_record_ring_t *bt_record_ring_new(void)
{
    bt_record_ring_t *ring = calloc(1, sizeof(*ring));

    if (ring == NULL)
        return NULL;
    ring->bytes = malloc(FIRST_BYTES);
    if (ring->bytes == NULL) {
        free(ring);
        return NULL;
    }
    ring->cap = FIRST_BYTES;
    for (unsigned i = 0; i < CHAINS; i++)
        ring->chains[i] = NONE;
    bt_text_init(&ring->scratch);
    return ring;
}

void bt_record_ring_free(bt_record_ring_t *ring)
{
    if (ring == NULL)
        return;
    bt_text_fini(&ring->scratch);
    bt_record_draft_fini(&ring->draft);
    free(ring->bytes);
    free(ring);
}

bt_text_t *bt_record_ring_scratch(bt_record_ring_t *ring)
{
    ring->scratch.len = 0;
    return &ring->scratch;
}

bt_record_draft_t *bt_record_ring_draft(bt_record_ring_t *ring)
{
    ring->draft.len = 0;
    ring->draft.failed = false;
    return &ring->draft;
}

/* ---- room ---- */

static size_t size_of(const struct entry *e)
{
    return (size_t) e->id_n + e->line_n;
}

static void drop_oldest(bt_record_ring_t *ring)
{
    const unsigned oldest = ring->first;
    uint16_t *link = &ring->chains[ring->entries[oldest].hash % CHAINS];

    while (*link != oldest)
        link = &ring->entries[*link].next;
    *link = ring->entries[oldest].next;
    ring->first = (oldest + 1) % BT_RECORD_RING;
    ring->count--;
}

/* Where n bytes can go without touching a live line, or SIZE_MAX. head == the oldest one's place means empty: it is only
 * reached by dropping. */
static size_t place_for(const bt_record_ring_t *ring, size_t n)
{
    const size_t tail = ring->count > 0 ? ring->entries[ring->first].at : 0;

    if (ring->count == 0)
        return 0;
    if (tail < ring->head) /* live: tail .. head */
        return ring->cap - ring->head >= n ? ring->head : tail > n ? 0 : SIZE_MAX;
    return tail - ring->head > n ? ring->head : SIZE_MAX;
}

/* Twice the room, the lines in order. False: it stays as it is. */
static bool grow(bt_record_ring_t *ring)
{
    char *bytes = ring->cap < BT_RECORD_RING_BYTES ? malloc(2 * ring->cap) : NULL;
    size_t at = 0;

    if (bytes == NULL)
        return false;
    for (unsigned i = 0; i < ring->count; i++) {
        struct entry *e = &ring->entries[(ring->first + i) % BT_RECORD_RING];
        memcpy(bytes + at, ring->bytes + e->at, size_of(e));
        e->at = at;
        at += size_of(e);
    }
    free(ring->bytes);
    ring->bytes = bytes;
    ring->cap *= 2;
    ring->head = at;
    return true;
}

static size_t make_room(bt_record_ring_t *ring, size_t n)
{
    size_t at;

    if (ring->count == BT_RECORD_RING)
        drop_oldest(ring);
    while ((at = place_for(ring, n)) == SIZE_MAX)
        if (!grow(ring))
            drop_oldest(ring);
    return at;
}

/* Eight bytes at a time: ids are long, and one byte after the other would wait for itself. */
static uint64_t hash_of(bt_str_t id)
{
    uint64_t hash = id.n, word = 0;

    for (; id.n > 0; id.p += sizeof(word), id.n -= sizeof(word)) {
        const bool is_whole = id.n >= sizeof(word);

        memcpy(&word, id.p, is_whole ? sizeof(word) : id.n);
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
        if (!is_whole)
            break;
    }
    return hash;
}

/* ---- lines ---- */

static bool put(bt_record_ring_t *ring, bt_str_t id, bt_str_t line, bool is_draft)
{
    const uint64_t hash = hash_of(id);
    uint16_t *chain = &ring->chains[hash % CHAINS];
    size_t at;
    unsigned i;

    if (id.n == 0 || id.n + line.n > BT_RECORD_LINE_MAX)
        return false;
    at = make_room(ring, id.n + line.n);
    i = (ring->first + ring->count) % BT_RECORD_RING;
    ring->entries[i] = (struct entry){
        .hash = hash,
        .at = at,
        .id_n = (uint32_t) id.n,
        .line_n = (uint32_t) line.n,
        .next = *chain,
        .is_draft = is_draft,
    };
    memcpy(ring->bytes + at, id.p, id.n);
    memcpy(ring->bytes + at + id.n, line.p, line.n);
    ring->head = at + id.n + line.n;
    *chain = (uint16_t) i;
    ring->count++;
    return true;
}

bool bt_record_ring_put(bt_record_ring_t *ring, bt_str_t id, bt_str_t line)
{
    return put(ring, id, line, false);
}

bool bt_record_ring_put_draft(bt_record_ring_t *ring, bt_str_t id, const bt_record_draft_t *draft)
{
    return put(ring, id, bt_record_draft_str(draft), true);
}

static void give(const bt_record_ring_t *ring, const struct entry *e, bt_text_t *out)
{
    const bt_str_t line = {ring->bytes + e->at + e->id_n, e->line_n};

    if (e->is_draft)
        bt_record_draft_render(line, out);
    else
        bt_text_put(out, line);
}

bool bt_record_ring_find(const bt_record_ring_t *ring, bt_str_t id, bt_text_t *out)
{
    const uint64_t hash = hash_of(id);

    if (ring == NULL)
        return false;
    for (uint16_t i = ring->chains[hash % CHAINS]; i != NONE; i = ring->entries[i].next) {
        const struct entry *e = &ring->entries[i];
        const char *p = ring->bytes + e->at;
        if (e->hash != hash || !bt_str_eq(id, (bt_str_t){p, e->id_n}))
            continue;
        give(ring, e, out);
        return true;
    }
    return false;
}

void bt_record_ring_recent(const bt_record_ring_t *ring, unsigned max, bt_text_t *out)
{
    const unsigned count = ring == NULL ? 0 : ring->count < max ? ring->count : max;

    for (unsigned i = 0; i < count; i++) {
        const struct entry *e =
            &ring->entries[(ring->first + ring->count - 1 - i) % BT_RECORD_RING];
        give(ring, e, out);
        bt_text_puts(out, "\n");
    }
}
