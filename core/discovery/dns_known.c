/* DNS is often wrong for a moment, and a worker that answers its checks is not:
 *
 *   the answer is ...      and a worker that it leaves out ...
 *                          fails its checks         passes them
 *   others' addresses      goes                     goes after the hold time
 *   nobody (NXDOMAIN too)  goes after the hold time stays
 *   an error               stays                    stays
 *
 * The hold time runs from the first answer that leaves it out, and ends with an answer that leaves it out still. */
#include "discovery/dns_known.h"

#include "base/err.h"
#include "base/log.h"

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

static bt_dns_known_place_t *find(bt_dns_known_t *known, const bt_dns_place_t *p)
{
    for (unsigned i = 0; i < known->count; i++)
        if (is_same(&known->items[i].place, p))
            return &known->items[i];
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
    *k = (bt_dns_known_place_t){.place = now, .is_named = true};
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

static bool take_named(bt_dns_known_t *known, const bt_dns_place_t *place,
                       const bt_dns_judge_t *judge)
{
    bt_dns_place_t named = *place;
    char text[BT_DNS_NAME_MAX + 16];

    if (named.port == 0)
        named.port = known->port;
    bt_dns_known_place_t *k = find(known, &named);
    if (k == NULL)
        return named.host[0] != '\0' && add(known, &named);
    if (k->missing_ms != 0)
        bt_log_info("discovery", "%s: %s is among the answers again", known->name,
                    text_of(&named, text, sizeof text));
    return update(k, &named, judge);
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

bool bt_dns_known_take(bt_dns_known_t *known, const bt_dns_answer_t *answer,
                       const bt_dns_judge_t *judge)
{
    bool is_other = false;

    if (answer->result > BT_DNS_NXDOMAIN)
        return false;
    for (unsigned i = 0; i < known->count; i++)
        known->items[i].is_named = false;
    if (answer->result == BT_DNS_OK)
        known->empty_ms = 0;
    else if (known->empty_ms == 0)
        known->empty_ms = judge->now_ms;
    for (unsigned i = 0; answer->result == BT_DNS_OK && i < answer->count; i++)
        is_other |= take_named(known, &answer->places[i], judge);
    return drop_missing(known, judge) || is_other;
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
