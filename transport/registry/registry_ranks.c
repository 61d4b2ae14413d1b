/*                      same life and topology: the rank is set
 *                     .--------.
 *     (none) --first--> served <--- a new incarnation: a new, empty set, at once
 *                         ^ |
 *           takes over    | | another topology (or no incarnation where there was one)
 *                        aside <--'
 *
 * A set is never changed into another: it is thrown away whole, so that what is served was registered by one life of one shape.
 */
#include "transport/registry/registry_ranks.h"

#include "base/err.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

static bt_kv_rank_t *find(const bt_kv_rank_set_t *set, int64_t dp, int64_t cp, int64_t tp,
                          int64_t pp)
{
    const bt_kv_topology_t *t = &set->topology;

    if (set->ranks == NULL || dp < 0 || cp < 0 || tp < 0 || pp < 0 || dp >= t->dp || cp >= t->cp ||
        tp >= t->tp || pp >= t->pp)
        return NULL;
    return &set->ranks[((dp * t->cp + cp) * t->tp + tp) * t->pp + pp];
}

static bt_kv_rank_t *find_key(const bt_kv_rank_set_t *set, const bt_kv_rank_key_t *key)
{
    return find(set, key->dp, key->cp, key->tp, key->pp);
}

const bt_kv_rank_t *bt_kv_ranks_get(const bt_kv_ranks_t *ranks, int64_t dp, int64_t cp, int64_t tp,
                                    int64_t pp)
{
    const bt_kv_rank_t *rank = find(&ranks->served, dp, cp, tp, pp);
    return rank != NULL && rank->port != 0 ? rank : NULL;
}

static void drop(bt_kv_rank_set_t *set)
{
    free(set->ranks);
    *set = (bt_kv_rank_set_t){.ranks = NULL};
}

void bt_kv_ranks_fini(bt_kv_ranks_t *ranks)
{
    drop(&ranks->served);
    drop(&ranks->aside);
}

/* An empty set in place of the old one, which stays when memory runs out. */
static int begin(bt_kv_rank_set_t *set, const bt_kv_registration_t *r)
{
    const bt_kv_topology_t *t = &r->topology;
    uint32_t total = t->dp * t->cp * t->tp * t->pp; /* bounded by the reader */
    bt_kv_rank_t *list = calloc(total, sizeof(*list));

    if (list == NULL)
        return BT_E_NOMEM;
    drop(set);
    set->topology = *t;
    set->ranks = list;
    set->total = total;
    memcpy(set->incarnation, r->incarnation, sizeof(set->incarnation));
    return 0;
}

/* True: the rank was not in the set before. */
static bool put(bt_kv_rank_set_t *set, const bt_kv_registration_t *r, uint64_t now_ms)
{
    bt_kv_rank_t *rank = find_key(set, &r->key);
    bool is_new = rank->port == 0;

    rank->port = r->port;
    memcpy(rank->ip, r->ip, sizeof(rank->ip));
    set->count += is_new;
    set->newest_ms = now_ms;
    if (r->prefill_http_port != 0)
        set->prefill_http_port = r->prefill_http_port;
    return is_new;
}

static bool belongs(const bt_kv_rank_set_t *set, const bt_kv_registration_t *r)
{
    return set->ranks != NULL && strcmp(set->incarnation, r->incarnation) == 0 &&
           bt_kv_topology_eq(&set->topology, &r->topology);
}

static bool is_quiet(const bt_kv_ranks_t *ranks, const bt_kv_rank_set_t *set, uint64_t now_ms)
{
    return now_ms > set->newest_ms && now_ms - set->newest_ms > ranks->ttl_ms;
}

static bool is_former(const bt_kv_ranks_t *ranks, const char *incarnation)
{
    for (unsigned i = 0; i < BT_KV_FORMER_LIVES && incarnation[0] != '\0'; i++)
        if (strcmp(ranks->former[i], incarnation) == 0)
            return true;
    return false;
}

static void count_replaced(bt_kv_ranks_t *ranks, const char *incarnation)
{
    if (incarnation[0] != '\0') {
        memcpy(ranks->former[ranks->former_at], incarnation, BT_KV_WORD_BYTES);
        ranks->former_at = (ranks->former_at + 1) % BT_KV_FORMER_LIVES;
    }
    ranks->replaced++;
    ranks->again = 0;
    bt_log_info("kv", "registry: another prefill has taken the place of the registered one");
}

static int start_new_life(bt_kv_ranks_t *ranks, const bt_kv_registration_t *r, uint64_t now_ms)
{
    char old[BT_KV_WORD_BYTES];
    bool is_first = ranks->served.ranks == NULL;

    memcpy(old, ranks->served.incarnation, sizeof(old));
    int rc = begin(&ranks->served, r);
    if (rc < 0)
        return rc;
    put(&ranks->served, r, now_ms);
    drop(&ranks->aside);
    if (!is_first)
        count_replaced(ranks, old);
    return 0;
}

static int put_aside(bt_kv_ranks_t *ranks, const bt_kv_registration_t *r, uint64_t now_ms)
{
    bt_kv_rank_set_t *served = &ranks->served, *aside = &ranks->aside;

    if (!belongs(aside, r) || is_quiet(ranks, aside, now_ms)) {
        int rc = begin(aside, r);
        if (rc < 0)
            return rc;
        ranks->again = 0;
    }
    bool is_new = put(aside, r, now_ms);
    const bt_kv_rank_t *old = find_key(served, &r->key);
    ranks->again += is_new && old != NULL && old->port != 0;
    if (aside->count < aside->total && ranks->again < served->count &&
        !is_quiet(ranks, served, now_ms))
        return 0;
    bt_kv_rank_set_t former = *served;
    *served = *aside;
    *aside = (bt_kv_rank_set_t){.ranks = NULL};
    count_replaced(ranks, former.incarnation);
    free(former.ranks);
    return 0;
}

int bt_kv_ranks_put(bt_kv_ranks_t *ranks, const bt_kv_registration_t *r, uint64_t now_ms, char *why)
{
    bt_kv_rank_set_t *served = &ranks->served;
    bool has_life = r->incarnation[0] != '\0';

    if (is_former(ranks, r->incarnation)) {
        snprintf(why, BT_KV_SENTENCE_BYTES,
                 "This incarnation has been replaced by a later one; a restarted prefill needs a "
                 "new one");
        return BT_E_AGAIN;
    }
    if (belongs(served, r)) {
        put(served, r, now_ms);
        return 0;
    }
    if (has_life && served->ranks != NULL && strcmp(served->incarnation, r->incarnation) == 0) {
        snprintf(why, BT_KV_SENTENCE_BYTES,
                 "This incarnation has registered another topology; all its ranks must agree");
        return BT_E_AGAIN;
    }
    if (has_life || served->ranks == NULL)
        return start_new_life(ranks, r, now_ms);
    return put_aside(ranks, r, now_ms);
}
