/* Replicas name workers differently and give them different ids; where a worker listens is the same for all. One that stands in
 * several pools has several places of one key: what is said of it goes to all of them. */
#include "fleet/fleet_impl.h"

#include "base/err.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t add_text(uint64_t hash, const char *text, bool any_case)
{
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char) (any_case ? tolower((unsigned char) *text) : *text)) *
               1099511628211ULL;
    return (hash ^ 0xff) * 1099511628211ULL;
}

uint64_t bt_worker_key_of(const bt_worker_t *w)
{
    char number[32];
    uint64_t hash = add_text(14695981039346656037ULL, w->host, true);

    snprintf(number, sizeof(number), "%u %d", w->port, w->spec.dp_rank);
    hash = add_text(hash, number, false);
    return add_text(hash, w->base_path, false);
}

static int compare_keys(const void *a, const void *b)
{
    const bt_worker_key_t *x = a, *y = b;

    return x->key < y->key ? -1 : x->key > y->key;
}

static int compare_ids(const void *a, const void *b)
{
    const bt_worker_key_t *x = *(bt_worker_key_t *const *) a, *y = *(bt_worker_key_t *const *) b;

    return x->worker->id < y->worker->id ? -1 : x->worker->id > y->worker->id;
}

static unsigned count_workers(const bt_workers_t *workers)
{
    unsigned count = 0;

    for (unsigned i = 0; i < workers->pool_count; i++)
        count += workers->pools[i].all.count;
    return count;
}

static void fill(bt_fleet_t *fleet, bt_worker_key_t *worker_keys, bt_worker_key_t **by_id,
                 const bt_workers_t *workers)
{
    unsigned count = 0;

    for (unsigned i = 0; i < workers->pool_count; i++)
        for (unsigned j = 0; j < workers->pools[i].all.count; j++) {
            bt_worker_t *w = workers->pools[i].all.items[j];
            const bt_worker_key_t *old = bt_worker_key_by_id(fleet, (uint32_t) w->id);
            worker_keys[count] = old != NULL && old->worker == w
                                     ? *old
                                     : (bt_worker_key_t){.key = bt_worker_key_of(w), .worker = w};
            count++;
        }
    qsort(worker_keys, count, sizeof(*worker_keys), compare_keys);
    for (unsigned i = 0; i < count; i++)
        by_id[i] = &worker_keys[i];
    qsort(by_id, count, sizeof(*by_id), compare_ids);
}

int bt_worker_keys_build(bt_fleet_t *fleet, bt_workers_t *workers)
{
    const unsigned count = count_workers(workers);
    bt_worker_key_t *worker_keys = calloc(count + 1, sizeof(*worker_keys));
    bt_worker_key_t **by_id = calloc(count + 1, sizeof(bt_worker_key_t *));

    if (worker_keys == NULL || by_id == NULL) {
        free(worker_keys);
        free(by_id);
        return BT_E_NOMEM;
    }
    fill(fleet, worker_keys, by_id, workers);
    free(fleet->worker_keys);
    free(fleet->by_id);
    fleet->worker_keys = worker_keys;
    fleet->by_id = by_id;
    fleet->worker_key_count = count;
    return 0;
}

bt_worker_key_t *bt_worker_key_find(const bt_fleet_t *fleet, uint64_t key)
{
    unsigned low = 0, high = fleet->worker_key_count;

    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        if (fleet->worker_keys[middle].key < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low < fleet->worker_key_count && fleet->worker_keys[low].key == key
               ? &fleet->worker_keys[low]
               : NULL;
}

bt_worker_key_t *bt_worker_key_by_id(const bt_fleet_t *fleet, uint32_t id)
{
    unsigned low = 0, high = fleet->worker_key_count;

    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        if ((uint32_t) fleet->by_id[middle]->worker->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < fleet->worker_key_count && (uint32_t) fleet->by_id[low]->worker->id == id
               ? fleet->by_id[low]
               : NULL;
}

bool bt_fleet_next_word(bt_str_t *text, char separator, bt_str_t *word_p)
{
    const char *end = text->n > 0 ? memchr(text->p, separator, text->n) : NULL;
    size_t n = end != NULL ? (size_t) (end - text->p) : text->n;

    if (text->n == 0)
        return false;
    *word_p = (bt_str_t){text->p, n};
    *text = end != NULL ? (bt_str_t){end + 1, text->n - n - 1} : (bt_str_t){text->p + n, 0};
    return true;
}
