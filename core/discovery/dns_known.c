/* DNS is often wrong for a moment, and a worker that answers its checks is not:
 *
 *   the answer is ...      and a worker that it leaves out ...
 *                          fails its checks         passes them
 *   others' addresses      goes                     goes after the hold time
 *   nobody (NXDOMAIN too)  goes after the hold time stays
 *   an error               stays                    stays
 *
 * The hold time runs from the first answer that leaves it out, and ends with an answer that leaves it out still. A name that gives other addresses with
 * every answer has only so many of them held: those that are missing longest go before their time. */
#include "discovery/dns_known.h"

#include "base/err.h"
#include "base/log.h"
#include "base/map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bt_dns_known_init(bt_dns_known_t *known, const char *name, unsigned port)
{
    *known = (bt_dns_known_t){.name = name, .port = port};
}

void bt_dns_known_fini(bt_dns_known_t *known)
{
    free(known->items);
    *known = (bt_dns_known_t){0};
}

static const char *text_of(const bt_dns_place_t *p, char *out, size_t size)
{
    const char *host = p->target[0] != '\0' ? p->target : p->host;

    snprintf(out, size, strchr(host, ':') != NULL ? "[%s]:%u" : "%s:%u", host, p->port);
    return out;
}

/* ---- who is named ---- */

/* An SRV target is itself at whatever address. */
static bool is_same(const bt_dns_place_t *a, const bt_dns_place_t *b)
{
    return a->port == b->port && strcmp(a->target, b->target) == 0 &&
           (a->target[0] != '\0' || strcmp(a->host, b->host) == 0);
}

/* Places by what is_same compares, for the time of one answer. */
typedef struct entry {
    bt_map_entry_t entry;
    unsigned at;
} entry_t;

typedef struct index {
    bt_map_t map;
    entry_t *entries;
    unsigned used;
} index_t;

static uint64_t key_of(const bt_dns_place_t *p)
{
    return bt_str_hash(bt_str(p->target[0] != '\0' ? p->target : p->host)) ^ p->port;
}

static void index_put(index_t *x, const bt_dns_known_t *known, unsigned at)
{
    entry_t *e = &x->entries[x->used++];

    e->at = at;
    bt_map_put(&x->map, &e->entry, key_of(&known->items[at].place));
}

/* All that is known, and room for more. On failure, too, it is to be ended. */
static int index_init(index_t *x, const bt_dns_known_t *known, unsigned room)
{
    *x = (index_t){.entries = calloc(known->count + room + 1, sizeof *x->entries)};
    if (x->entries == NULL || bt_map_init(&x->map, 64) < 0)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < known->count; i++)
        index_put(x, known, i);
    return 0;
}

static void index_fini(index_t *x)
{
    free(x->map.buckets);
    free(x->entries);
}

static bt_dns_known_place_t *find(const index_t *x, const bt_dns_known_t *known,
                                  const bt_dns_place_t *p)
{
    const bt_list_t *bucket = bt_map_bucket(&x->map, key_of(p));

    for (const bt_list_t *it = bucket->next; it != bucket; it = it->next) {
        const entry_t *e =
            bt_container_of(bt_container_of(it, bt_map_entry_t, link), entry_t, entry);
        if (is_same(&known->items[e->at].place, p))
            return &known->items[e->at];
    }
    return NULL;
}

static bool is_v6(const char *host)
{
    return strchr(host, ':') != NULL;
}

/* A target of both families would change between them with each A lookup that comes back empty. */
static bool keeps_host(const bt_dns_place_t *now, const bt_dns_place_t *named,
                       const bt_dns_judge_t *judge)
{
    return named->host[0] == '\0' ||
           (!is_v6(now->host) && is_v6(named->host) && !judge->is_down(judge->user, now));
}

static bool update(bt_dns_known_place_t *k, const bt_dns_place_t *named,
                   const bt_dns_judge_t *judge)
{
    bt_dns_place_t now = *named;

    if (keeps_host(&k->place, named, judge))
        memcpy(now.host, k->place.host, sizeof now.host);
    const bool is_other = strcmp(now.host, k->place.host) != 0 ||
                          now.priority != k->place.priority || now.weight != k->place.weight;
    *k =
        (bt_dns_known_place_t){.place = now, .is_named = true, .has_other_name = k->has_other_name};
    return is_other;
}

static bool add(bt_dns_known_t *known, const bt_dns_place_t *named)
{
    if (known->count == known->cap) {
        const unsigned cap = known->cap == 0 ? 8 : known->cap * 2;
        bt_dns_known_place_t *items = realloc(known->items, cap * sizeof *items);
        if (items == NULL)
            return false; /* the next answer names it too */
        known->items = items;
        known->cap = cap;
    }
    known->items[known->count++] = (bt_dns_known_place_t){.place = *named, .is_named = true};
    return true;
}

static bt_dns_place_t with_port(const bt_dns_known_t *known, const bt_dns_place_t *place)
{
    bt_dns_place_t named = *place;

    if (named.port == 0)
        named.port = known->port;
    return named;
}

static bool name_again(bt_dns_known_t *known, bt_dns_known_place_t *k, const bt_dns_place_t *named,
                       const bt_dns_judge_t *judge)
{
    char text[BT_DNS_NAME_MAX + 16];

    if (k->missing_ms != 0)
        bt_log_info("discovery", "%s: %s is among the answers again", known->name,
                    text_of(named, text, sizeof text));
    return update(k, named, judge);
}

/* Those that are known; fresh_p: how many are not. */
static bool take_known(bt_dns_known_t *known, const index_t *x, const bt_dns_answer_t *answer,
                       const bt_dns_judge_t *judge, unsigned *fresh_p)
{
    bool is_other = false;

    *fresh_p = 0;
    for (unsigned i = 0; i < answer->count; i++) {
        const bt_dns_place_t named = with_port(known, &answer->places[i]);
        bt_dns_known_place_t *k = find(x, known, &named);
        if (k != NULL)
            is_other |= name_again(known, k, &named, judge);
        else
            ++*fresh_p;
    }
    return is_other;
}

static int compare_missing(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

    return (x > y) - (x < y);
}

static uint64_t missing_since(const bt_dns_known_place_t *k)
{
    return k->missing_ms != 0 ? k->missing_ms : UINT64_MAX;
}

/* So many must go: those that are missing longest. */
static bool drop_oldest(bt_dns_known_t *known, unsigned count)
{
    uint64_t *since = calloc(known->count, sizeof *since);
    unsigned missing = 0, left = 0;

    for (unsigned i = 0; since != NULL && i < known->count; i++)
        if (!known->items[i].is_named)
            since[missing++] = missing_since(&known->items[i]);
    if (since == NULL || count > missing) {
        free(since);
        return false;
    }
    qsort(since, missing, sizeof *since, compare_missing);
    const uint64_t last = since[count - 1];
    free(since);
    for (unsigned i = 0; i < known->count; i++) {
        const bt_dns_known_place_t *k = &known->items[i];
        if (count > 0 && !k->is_named && missing_since(k) <= last)
            count--;
        else
            known->items[left++] = *k;
    }
    known->count = left;
    return true;
}

static bool has_room(bt_dns_known_t *known, unsigned fresh)
{
    const unsigned all = known->count + fresh;
    const bool is_full = all > BT_DNS_KNOWN_MAX;

    if (is_full && !known->is_full)
        bt_log_warn("discovery",
                    "%s: more than %u addresses within the hold time: those that are missing "
                    "longest go before it. Does each answer give others?",
                    known->name, BT_DNS_KNOWN_MAX);
    known->is_full = is_full;
    return !is_full || drop_oldest(known, all - BT_DNS_KNOWN_MAX);
}

/* An answer may name a place twice. */
static bool add_fresh(bt_dns_known_t *known, const bt_dns_answer_t *answer)
{
    bool is_other = false;
    index_t x;
    int rc = index_init(&x, known, answer->count);

    for (unsigned i = 0; i < answer->count && rc == 0; i++) {
        const bt_dns_place_t named = with_port(known, &answer->places[i]);
        if (named.host[0] == '\0' || find(&x, known, &named) != NULL || !add(known, &named))
            continue;
        index_put(&x, known, known->count - 1);
        is_other = true;
    }
    index_fini(&x);
    return is_other;
}

/* ---- who is not ---- */

/* It is missing, or nobody is named. */
static bool goes(const bt_dns_known_t *known, const bt_dns_known_place_t *k,
                 const bt_dns_judge_t *judge)
{
    const bool is_empty = known->empty_ms != 0;
    const uint64_t since_ms = is_empty ? known->empty_ms : k->missing_ms;
    const bool is_held = judge->now_ms - since_ms < judge->hold_ms;
    const bool is_down = judge->is_down(judge->user, &k->place);

    return is_empty ? is_down && !is_held : is_down || !is_held;
}

static void note_missing(const bt_dns_known_t *known, bt_dns_known_place_t *k,
                         const bt_dns_judge_t *judge)
{
    char text[BT_DNS_NAME_MAX + 16];

    if (known->empty_ms != 0 || k->missing_ms != 0)
        return;
    k->missing_ms = judge->now_ms;
    bt_log_info("discovery",
                "%s: %s is missing from the answers, it stays for %llu ms or until its checks fail",
                known->name, text_of(&k->place, text, sizeof text),
                (unsigned long long) judge->hold_ms);
}

static bool drop_missing(bt_dns_known_t *known, const bt_dns_judge_t *judge)
{
    const unsigned before = known->count;
    char text[BT_DNS_NAME_MAX + 16];
    unsigned left = 0;

    for (unsigned i = 0; i < before; i++) {
        bt_dns_known_place_t *k = &known->items[i];
        if (!k->is_named)
            note_missing(known, k, judge);
        if (!k->is_named && goes(known, k, judge))
            bt_log_info("discovery", "%s: %s goes", known->name,
                        text_of(&k->place, text, sizeof text));
        else
            known->items[left++] = *k;
    }
    known->count = left;
    return left != before;
}

static bool take_answer(bt_dns_known_t *known, const index_t *x, const bt_dns_answer_t *answer,
                        const bt_dns_judge_t *judge)
{
    bool is_other = false;
    unsigned fresh = 0;

    for (unsigned i = 0; i < known->count; i++)
        known->items[i].is_named = false;
    if (answer->result == BT_DNS_OK)
        known->empty_ms = 0;
    else if (known->empty_ms == 0)
        known->empty_ms = judge->now_ms;
    if (answer->result == BT_DNS_OK)
        is_other = take_known(known, x, answer, judge, &fresh);
    if (fresh > 0 && has_room(known, fresh))
        is_other |= add_fresh(known, answer);
    return drop_missing(known, judge) || is_other;
}

bool bt_dns_known_take(bt_dns_known_t *known, const bt_dns_answer_t *answer,
                       const bt_dns_judge_t *judge)
{
    bool is_other = false;
    index_t x;

    if (answer->result > BT_DNS_NXDOMAIN)
        return false;
    if (index_init(&x, known, 0) == 0) /* else the next answer tells it again */
        is_other = take_answer(known, &x, answer, judge);
    index_fini(&x);
    return is_other;
}

unsigned bt_dns_known_missing(const bt_dns_known_t *known)
{
    unsigned n = 0;

    for (unsigned i = 0; i < known->count; i++)
        n += known->empty_ms != 0 || known->items[i].missing_ms != 0;
    return n;
}

uint64_t bt_dns_known_due_ms(const bt_dns_known_t *known, const bt_dns_judge_t *judge)
{
    uint64_t first_ms = known->empty_ms != 0 ? known->empty_ms : UINT64_MAX;

    for (unsigned i = 0; known->empty_ms == 0 && i < known->count; i++)
        if (known->items[i].missing_ms != 0 && known->items[i].missing_ms < first_ms)
            first_ms = known->items[i].missing_ms;
    if (first_ms == UINT64_MAX || first_ms + judge->hold_ms <= judge->now_ms)
        return UINT64_MAX;
    return first_ms + judge->hold_ms - judge->now_ms;
}
