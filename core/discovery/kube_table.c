/* place: nobody's -> wanted -> named by us at the registry -> not wanted -> gone. Whatever happens to it puts it into `dirty` once, and what it
 * is then is what the registry is told, so a pod that changes ten times in a moment costs one change. A pod that does not serve any more (terminating, not
 * ready) keeps its places unwanted: legs may still run there, and whoever waits on them has to hear of the process's end.
 */
#include "discovery/kube_table.h"

#include "base/err.h"
#include "base/log.h"
#include "base/map.h"
#include "cluster/url.h"

#include <stdio.h>
#include <stdlib.h>

#define GATHER_MS 50
#define NEXT_MS 1
#define AGAIN_MS 1000
#define DESCRIBED_MAX 100

typedef struct pod pod_t;

typedef struct place {
    bt_map_entry_t entry;
    bt_list_t dirty;
    bt_worker_spec_t spec;
    pod_t *owner;    /* NULL = it is to go */
    bool is_wanted;  /* its owner serves */
    bool is_named;   /* the registry knows it by us, or may */
    bool was_named;  /* it did: legs of then may run */
    bool is_refused; /* by the sink, as it is described now */
    bool has_ended;  /* the process that the registry knows there */
} place_t;

struct pod {
    bt_map_entry_t entry;
    bt_list_t link;
    char *name; /* "namespace/name" */
    enum bt_kube_state state;
    char *why; /* NULL unless it was refused */
    place_t *places[BT_KUBE_PORTS_MAX];
    unsigned place_count;
    uint64_t life; /* of its processes (kube_pod.h) */
    uint64_t list; /* in which it was seen last */
};

struct bt_kube_table {
    bt_loop_t *loop;
    const char *label, *pool;
    bt_kube_sink sink;
    void *user;
    bt_map_t pods, places;
    bt_list_t all, dirty;
    bt_timer_t flush;
    uint64_t list;
    bool was_full;
    place_t *batch[BT_KUBE_BATCH];
    bt_found_change_t changes[BT_KUBE_BATCH];
};

static uint64_t hash(const char *text)
{
    return bt_str_hash(bt_str(text));
}

/* ---- places ---- */

static void touch(bt_kube_table_t *t, place_t *place)
{
    if (!bt_list_empty(&place->dirty))
        return;
    bt_list_push(&t->dirty, &place->dirty);
    if (!bt_timer_active(&t->flush))
        bt_timer_start(&t->flush, GATHER_MS);
}

static place_t *find_place(const bt_kube_table_t *t, const bt_worker_spec_t *spec)
{
    const uint64_t key = hash(bt_url_place(spec->url));
    bt_list_t *bucket = bt_map_bucket(&t->places, key), *it, *tmp;

    bt_list_each (bucket, it, tmp) {
        place_t *place = bt_container_of(it, place_t, entry.link);
        if (place->entry.key == key &&
            strcmp(bt_url_place(place->spec.url), bt_url_place(spec->url)) == 0 &&
            place->spec.dp_rank == spec->dp_rank)
            return place;
    }
    return NULL;
}

static void free_place(bt_kube_table_t *t, place_t *place)
{
    bt_map_remove(&t->places, &place->entry);
    bt_list_remove(&place->dirty);
    bt_worker_spec_fini(&place->spec);
    free(place);
}

/* Whoever is there next is not who was there. */
static void end_process(bt_kube_table_t *t, place_t *place)
{
    if (!place->is_wanted && !place->is_named && !place->was_named)
        return; /* the registry has never heard of it */
    place->has_ended = true;
    touch(t, place);
}

/* Its pod does not have it any more. */
static void leave_place(bt_kube_table_t *t, place_t *place)
{
    place->owner = NULL;
    place->is_wanted = false;
    if (place->is_named || (place->was_named && place->has_ended))
        touch(t, place);
    else
        free_place(t, place);
}

/* Its pod has it, but does not serve. */
static void rest_place(bt_kube_table_t *t, place_t *place)
{
    place->is_wanted = false;
    if (place->is_named)
        touch(t, place);
    else if (!place->has_ended)
        bt_list_remove(&place->dirty);
}

static void forget_place(pod_t *pod, const place_t *place)
{
    for (unsigned i = 0; i < pod->place_count; i++)
        if (pod->places[i] == place) {
            pod->places[i] = pod->places[--pod->place_count];
            return;
        }
}

static bool is_same(const bt_worker_spec_t *a, const bt_worker_spec_t *b)
{
    return bt_worker_spec_same(a, b) &&
           strcmp(a->name != NULL ? a->name : "", b->name != NULL ? b->name : "") == 0;
}

static place_t *new_place(bt_kube_table_t *t, const bt_worker_spec_t *spec)
{
    place_t *place = calloc(1, sizeof *place);

    if (place == NULL)
        return NULL;
    place->spec = *spec;
    bt_list_init(&place->dirty);
    bt_list_init(&place->entry.link);
    bt_map_put(&t->places, &place->entry, hash(bt_url_place(spec->url)));
    return place;
}

/* Takes spec, unless there is no memory. */
static int claim_place(bt_kube_table_t *t, pod_t *pod, bt_worker_spec_t *spec, place_t **place_p)
{
    place_t *place = find_place(t, spec);

    *place_p = place;
    if (place == NULL) {
        if ((*place_p = place = new_place(t, spec)) == NULL)
            return BT_E_NOMEM;
    } else if (place->owner == pod && place->is_wanted && is_same(&place->spec, spec)) {
        bt_worker_spec_fini(spec);
        return 0;
    } else {
        if (place->owner != NULL && place->owner != pod) {
            forget_place(place->owner, place);
            end_process(t, place);
        }
        bt_worker_spec_fini(&place->spec);
        place->spec = *spec;
    }
    bt_worker_spec_init(spec);
    place->owner = pod;
    place->is_wanted = true;
    place->is_refused = false;
    touch(t, place);
    return 0;
}

/* ---- pods ---- */

static pod_t *find_pod(const bt_kube_table_t *t, const char *name)
{
    const uint64_t key = hash(name);
    bt_list_t *bucket = bt_map_bucket(&t->pods, key), *it, *tmp;

    bt_list_each (bucket, it, tmp) {
        pod_t *pod = bt_container_of(it, pod_t, entry.link);
        if (pod->entry.key == key && strcmp(pod->name, name) == 0)
            return pod;
    }
    return NULL;
}

static int new_pod(bt_kube_table_t *t, const char *name, pod_t **pod_p)
{
    pod_t *pod;

    if (t->pods.count >= BT_KUBE_PODS_MAX) {
        if (!t->was_full)
            bt_log_error("discovery",
                         "%s: more than %u pods, the others are left out: narrow the "
                         "selector",
                         t->label, BT_KUBE_PODS_MAX);
        t->was_full = true;
        return BT_E_LIMIT;
    }
    if ((pod = calloc(1, sizeof *pod)) == NULL)
        return BT_E_NOMEM;
    if ((pod->name = bt_str_dup(bt_str(name))) == NULL) {
        free(pod);
        return BT_E_NOMEM;
    }
    bt_list_init(&pod->entry.link);
    bt_map_put(&t->pods, &pod->entry, hash(name));
    bt_list_push(&t->all, &pod->link);
    *pod_p = pod;
    return 0;
}

static void end_processes(bt_kube_table_t *t, const pod_t *pod)
{
    for (unsigned i = 0; i < pod->place_count; i++)
        end_process(t, pod->places[i]);
}

static void free_pod(bt_kube_table_t *t, pod_t *pod)
{
    end_processes(t, pod);
    while (pod->place_count > 0)
        leave_place(t, pod->places[--pod->place_count]);
    bt_map_remove(&t->pods, &pod->entry);
    bt_list_remove(&pod->link);
    free(pod->name);
    free(pod->why);
    free(pod);
}

/* Logged when it is another reason than before. */
static void set_why(const bt_kube_table_t *t, pod_t *pod, const char *why)
{
    const bool is_news = why != NULL && (pod->why == NULL || strcmp(pod->why, why) != 0);

    if (is_news)
        bt_log_warn("discovery", "%s: pod %s is no worker: %s", t->label, pod->name, why);
    if (is_news || why == NULL) {
        free(pod->why);
        pod->why = why != NULL ? bt_str_dup(bt_str(why)) : NULL;
    }
}

static int take_places(bt_kube_table_t *t, pod_t *pod, bt_kube_pod_t *said)
{
    place_t *before[BT_KUBE_PORTS_MAX];
    const unsigned count = pod->place_count;
    int rc = 0;

    memcpy(before, pod->places, sizeof before);
    pod->place_count = 0;
    for (unsigned i = 0; i < said->worker_count && rc == 0; i++) {
        place_t *place;
        rc = claim_place(t, pod, &said->workers[i], &place);
        bool is_twice = rc < 0; /* one port said twice */
        for (unsigned k = 0; k < pod->place_count; k++)
            is_twice |= pod->places[k] == place;
        if (!is_twice)
            pod->places[pod->place_count++] = place;
    }
    for (unsigned i = 0; i < count; i++) {
        bool stays = false;
        for (unsigned k = 0; k < pod->place_count; k++)
            stays |= pod->places[k] == before[i];
        if (!stays)
            leave_place(t, before[i]);
    }
    return rc;
}

static void join_name(const bt_kube_pod_t *pod, char *out, size_t size)
{
    snprintf(out, size, "%s/%s", pod->namespace, pod->name);
}

int bt_kube_table_take(bt_kube_table_t *t, bt_kube_pod_t *said)
{
    char name[2 * BT_KUBE_NAME_MAX + 2];
    pod_t *pod;
    int rc = 0;

    join_name(said, name, sizeof name);
    if ((pod = find_pod(t, name)) == NULL && (rc = new_pod(t, name, &pod)) < 0)
        return rc;
    pod->list = t->list;
    if (pod->life != said->life)
        end_processes(t, pod);
    pod->life = said->life;
    pod->state = said->state;
    if (said->state == BT_KUBE_ENDED)
        end_processes(t, pod);
    /* What the sink has said of it holds until it is described otherwise. */
    if (said->state == BT_KUBE_REFUSED)
        set_why(t, pod, said->why);
    else if (said->state != BT_KUBE_READY)
        set_why(t, pod, NULL);
    if (said->state == BT_KUBE_READY || said->state == BT_KUBE_ENDED)
        return take_places(t, pod, said);
    for (unsigned i = 0; i < pod->place_count; i++)
        rest_place(t, pod->places[i]);
    return 0;
}

void bt_kube_table_drop(bt_kube_table_t *t, const bt_kube_pod_t *said)
{
    char name[2 * BT_KUBE_NAME_MAX + 2];
    pod_t *pod;

    join_name(said, name, sizeof name);
    if ((pod = find_pod(t, name)) != NULL)
        free_pod(t, pod);
}

void bt_kube_table_begin_list(bt_kube_table_t *t)
{
    t->list++;
    t->was_full = false;
}

void bt_kube_table_end_list(bt_kube_table_t *t)
{
    bt_list_t *it, *tmp;

    bt_list_each (&t->all, it, tmp) {
        pod_t *pod = bt_container_of(it, pod_t, link);
        if (pod->list != t->list)
            free_pod(t, pod);
    }
}

/* ---- what has changed ---- */

static unsigned gather(bt_kube_table_t *t)
{
    unsigned count = 0;

    while (count < BT_KUBE_BATCH && !bt_list_empty(&t->dirty)) {
        place_t *place = bt_container_of(t->dirty.next, place_t, dirty);
        bt_list_remove(&place->dirty);
        t->batch[count] = place;
        t->changes[count++] =
            (bt_found_change_t){.found = {.pool = t->pool, .spec = place->spec}, /* borrowed */
                                .is_gone = !place->is_wanted || place->is_refused,
                                .has_ended = place->has_ended};
    }
    return count;
}

static bool has_refused(const pod_t *pod)
{
    for (unsigned i = 0; i < pod->place_count; i++)
        if (pod->places[i]->is_wanted && pod->places[i]->is_refused)
            return true;
    return false;
}

static void settle(bt_kube_table_t *t, place_t *place, const bt_found_change_t *change)
{
    if (change->rc == 0 && place->has_ended)
        place->has_ended = place->was_named = false;
    if (change->is_gone) {
        place->was_named |= place->is_named && !change->has_ended;
        place->is_named = false;
        if (place->owner == NULL)
            free_place(t, place);
        return;
    }
    if (change->rc < 0) {
        place->is_refused = true;
        set_why(t, place->owner, change->why);
        if (place->is_named)
            touch(t, place); /* what the registry has is not true any more */
        return;
    }
    place->is_named = true;
    if (!has_refused(place->owner))
        set_why(t, place->owner, NULL);
}

static void on_flush(bt_timer_t *timer)
{
    bt_kube_table_t *t = bt_container_of(timer, bt_kube_table_t, flush);
    const unsigned count = gather(t);
    const int rc = count > 0 ? t->sink(t->user, t->changes, count) : 0;

    for (unsigned i = 0; i < count; i++) {
        if (rc < 0) {
            t->batch[i]->is_named |= !t->changes[i].is_gone; /* some may have been taken */
            bt_list_push(&t->dirty, &t->batch[i]->dirty);
        } else {
            settle(t, t->batch[i], &t->changes[i]);
        }
    }
    if (rc < 0)
        bt_log_error("discovery", "%s: %s: %u changes are tried again", t->label, bt_err_text(rc),
                     count);
    if (!bt_list_empty(&t->dirty))
        bt_timer_start(&t->flush, rc < 0 ? AGAIN_MS : NEXT_MS);
}

void bt_kube_table_again(bt_kube_table_t *t)
{
    bt_list_t *it, *tmp;

    bt_list_each (&t->all, it, tmp) {
        pod_t *pod = bt_container_of(it, pod_t, link);
        for (unsigned i = 0; i < pod->place_count; i++) {
            pod->places[i]->is_refused = false;
            if (pod->places[i]->is_wanted)
                touch(t, pod->places[i]);
        }
    }
}

/* ---- telling ---- */

static enum bt_kube_state shown_state(const pod_t *pod)
{
    return pod->why != NULL ? BT_KUBE_REFUSED : pod->state;
}

void bt_kube_table_count(const bt_kube_table_t *t, bt_kube_counts_t *counts)
{
    const bt_list_t *it;

    *counts = (bt_kube_counts_t){0};
    for (it = t->all.next; it != &t->all; it = it->next) {
        counts->pods++;
        counts->by_state[shown_state(bt_container_of(it, pod_t, link))]++;
    }
}

void bt_kube_table_describe(const bt_kube_table_t *t, bt_text_t *out)
{
    bt_kube_counts_t counts;
    unsigned shown = 0;

    bt_kube_table_count(t, &counts);
    bt_text_puts(out, ",\"pods\":{");
    for (unsigned i = 0; i < BT_KUBE_STATES; i++)
        bt_text_printf(out, "%s\"%s\":%u", i > 0 ? "," : "",
                       bt_kube_state_name((enum bt_kube_state) i), counts.by_state[i]);
    bt_text_puts(out, "},\"refused\":[");
    for (const bt_list_t *it = t->all.next; it != &t->all && shown < DESCRIBED_MAX; it = it->next) {
        const pod_t *pod = bt_container_of(it, pod_t, link);
        if (pod->why == NULL)
            continue;
        bt_text_puts(out, shown++ > 0 ? ",{\"pod\":" : "{\"pod\":");
        bt_text_json_str(out, bt_str(pod->name));
        bt_text_puts(out, ",\"why\":");
        bt_text_json_str(out, bt_str(pod->why));
        bt_text_puts(out, "}");
    }
    bt_text_puts(out, "]");
}

/* ---- life ---- */

int bt_kube_table_new(bt_kube_table_t **table_p, bt_loop_t *loop, const char *label,
                      const char *pool, bt_kube_sink sink, void *user)
{
    bt_kube_table_t *t = calloc(1, sizeof *t);

    if (t == NULL || bt_map_init(&t->pods, 64) < 0 || bt_map_init(&t->places, 64) < 0) {
        if (t != NULL)
            free(t->pods.buckets);
        free(t);
        return BT_E_NOMEM;
    }
    t->loop = loop;
    t->label = label;
    t->pool = pool;
    t->sink = sink;
    t->user = user;
    bt_list_init(&t->all);
    bt_list_init(&t->dirty);
    bt_timer_init(loop, &t->flush, on_flush);
    *table_p = t;
    return 0;
}

void bt_kube_table_free(bt_kube_table_t *t)
{
    if (t == NULL)
        return;
    while (!bt_list_empty(&t->all))
        free_pod(t, bt_container_of(t->all.next, pod_t, link));
    while (!bt_list_empty(&t->dirty))
        free_place(t, bt_container_of(t->dirty.next, place_t, dirty));
    bt_timer_stop(&t->flush);
    free(t->pods.buckets);
    free(t->places.buckets);
    free(t);
}
