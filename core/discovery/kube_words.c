/* A place keeps each source's word and whose was told last. Told is what the words come to now, wherever that is another source's or the same one's
 * new description; so a change that could not be told for want of memory may just come again. A word that is refused is dropped, and it is the
 * next one's turn. */
#include "discovery/kube_words.h"

#include "base/err.h"
#include "base/log.h"
#include "base/map.h"
#include "cluster/url.h"

#include <stdlib.h>

#define NOBODY (-1)

typedef struct place {
    bt_map_entry_t entry; /* by url */
    char *url, *pool;     /* pool: NULL = the first */
    int dp_rank;
    int told; /* whose word; or NOBODY */
    bt_worker_spec_t *said[];
} place_t;

struct bt_kube_words {
    unsigned sources;
    bt_kube_sink sink;
    void *user;
    bt_map_t places;
};

/* ---- places ---- */

static bool is_same_pool(const char *a, const char *b, const char *first_pool)
{
    return strcmp(a != NULL ? a : first_pool, b != NULL ? b : first_pool) == 0;
}

static place_t *find(const bt_kube_words_t *w, const bt_found_t *found, const char *first_pool)
{
    const uint64_t key = bt_str_hash(bt_str(bt_url_place(found->spec.url)));
    bt_list_t *bucket = bt_map_bucket(&w->places, key), *it, *tmp;

    bt_list_each (bucket, it, tmp) {
        place_t *p = bt_container_of(it, place_t, entry.link);
        if (p->entry.key == key &&
            strcmp(bt_url_place(p->url), bt_url_place(found->spec.url)) == 0 &&
            p->dp_rank == found->spec.dp_rank && is_same_pool(p->pool, found->pool, first_pool))
            return p;
    }
    return NULL;
}

static void drop_word(place_t *p, unsigned source)
{
    if (p->said[source] != NULL)
        bt_worker_spec_fini(p->said[source]);
    free(p->said[source]);
    p->said[source] = NULL;
}

static void free_place(bt_kube_words_t *w, place_t *p)
{
    for (unsigned i = 0; i < w->sources; i++)
        drop_word(p, i);
    bt_map_remove(&w->places, &p->entry);
    free(p->url);
    free(p->pool);
    free(p);
}

static place_t *add(bt_kube_words_t *w, const bt_found_t *found)
{
    place_t *p = calloc(1, sizeof *p + w->sources * sizeof p->said[0]);

    if (p == NULL)
        return NULL;
    bt_list_init(&p->entry.link);
    p->told = NOBODY;
    p->dp_rank = found->spec.dp_rank;
    p->url = bt_str_dup(bt_str(found->spec.url));
    p->pool = found->pool != NULL ? bt_str_dup(bt_str(found->pool)) : NULL;
    if (p->url == NULL || (found->pool != NULL && p->pool == NULL)) {
        free_place(w, p);
        return NULL;
    }
    bt_map_put(&w->places, &p->entry, bt_str_hash(bt_str(bt_url_place(p->url))));
    return p;
}

static int say(place_t *p, unsigned source, const bt_worker_spec_t *spec)
{
    bt_worker_spec_t *said = malloc(sizeof *said);

    if (said == NULL || bt_worker_spec_copy(said, spec) < 0) {
        free(said);
        return BT_E_NOMEM;
    }
    drop_word(p, source);
    p->said[source] = said;
    return 0;
}

static int winner_of(const bt_kube_words_t *w, const place_t *p)
{
    for (unsigned i = 0; i < w->sources; i++)
        if (p->said[i] != NULL)
            return (int) i;
    return NOBODY;
}

/* ---- changes ---- */

typedef struct open { /* a change whose place has to be told */
    place_t *place;
    bt_found_change_t *change;
    int winner;
} open_t;

/* Its word into the place. True: what the place comes to is to be told. */
static int note(bt_kube_words_t *w, unsigned source, const char *first_pool, bt_found_change_t *c,
                open_t *open)
{
    place_t *p = find(w, &c->found, first_pool);
    int rc = 0;

    c->rc = 0;
    if (p == NULL && c->is_gone && !c->has_ended)
        return 0; /* else legs of one that nobody names any more may wait on it */
    if (p == NULL && (p = add(w, &c->found)) == NULL)
        return BT_E_NOMEM;
    if (c->is_gone)
        drop_word(p, source);
    else
        rc = say(p, source, &c->found.spec);
    *open = (open_t){.place = p, .change = c, .winner = winner_of(w, p)};
    const bool is_news = open->winner != p->told || (open->winner == (int) source && !c->is_gone) ||
                         (open->winner == NOBODY && c->has_ended);
    if (rc == 0 && !is_news && p->told == NOBODY)
        free_place(w, p);
    return rc < 0 ? rc : is_news;
}

static void make_change(const open_t *o, bt_found_change_t *out)
{
    *out = (bt_found_change_t){.found = {.pool = o->place->pool},
                               .is_gone = o->winner == NOBODY,
                               .has_ended = o->change->has_ended};
    if (o->winner != NOBODY) {
        out->found.spec = *o->place->said[o->winner]; /* borrowed */
        return;
    }
    bt_worker_spec_init(&out->found.spec);
    out->found.spec.url = o->place->url;
    out->found.spec.dp_rank = o->place->dp_rank;
}

/* False: another word's turn has come. */
static bool settle(bt_kube_words_t *w, unsigned source, open_t *o, const bt_found_change_t *out)
{
    place_t *p = o->place;

    if (out->rc == 0) {
        p->told = o->winner;
        if (o->winner == NOBODY)
            free_place(w, p);
        return true;
    }
    if (o->winner == (int) source) {
        o->change->rc = out->rc;
        memcpy(o->change->why, out->why, sizeof o->change->why);
    } else if (o->winner != NOBODY) {
        bt_log_warn("discovery",
                    "worker %s: the word of another --workers-kubernetes is refused: "
                    "%s",
                    p->url, out->why);
    }
    if (o->winner == NOBODY) { /* nobody knows it, so it cannot go */
        if (p->told == NOBODY)
            free_place(w, p);
        return true;
    }
    drop_word(p, (unsigned) o->winner);
    o->winner = winner_of(w, p);
    if (o->winner != p->told)
        return false;
    if (p->told == NOBODY)
        free_place(w, p);
    return true;
}

static int tell(bt_kube_words_t *w, unsigned source, open_t *open, unsigned count,
                bt_found_change_t *out)
{
    while (count > 0) {
        unsigned left = 0;
        for (unsigned i = 0; i < count; i++)
            make_change(&open[i], &out[i]);
        const int rc = w->sink(w->user, out, count);
        if (rc < 0)
            return rc;
        for (unsigned i = 0; i < count; i++)
            if (!settle(w, source, &open[i], &out[i]))
                open[left++] = open[i];
        count = left;
    }
    return 0;
}

int bt_kube_words_change(bt_kube_words_t *w, unsigned source, const char *first_pool,
                         bt_found_change_t *changes, unsigned count)
{
    open_t *open = calloc(count + 1, sizeof *open);
    bt_found_change_t *out = calloc(count + 1, sizeof *out);
    int rc = open != NULL && out != NULL ? 0 : BT_E_NOMEM;
    unsigned n = 0;

    for (unsigned i = 0; i < count && rc >= 0; i++)
        if ((rc = note(w, source, first_pool, &changes[i], &open[n])) > 0)
            n++;
    if (rc >= 0)
        rc = tell(w, source, open, n, out);
    free(open);
    free(out);
    return rc;
}

/* ---- life ---- */

int bt_kube_words_new(bt_kube_words_t **words_p, unsigned sources, bt_kube_sink sink, void *user)
{
    bt_kube_words_t *w = calloc(1, sizeof *w);

    if (w == NULL || bt_map_init(&w->places, 64) < 0) {
        free(w);
        return BT_E_NOMEM;
    }
    w->sources = sources;
    w->sink = sink;
    w->user = user;
    *words_p = w;
    return 0;
}

void bt_kube_words_free(bt_kube_words_t *w)
{
    if (w == NULL)
        return;
    for (uint32_t i = 0; i <= w->places.mask; i++)
        while (!bt_list_empty(&w->places.buckets[i]))
            free_place(w, bt_container_of(w->places.buckets[i].next, place_t, entry.link));
    free(w->places.buckets);
    free(w);
}
