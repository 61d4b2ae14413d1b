/* How it works: entries hang in the chains of a table that never grows, and in one list by their last use. */
#include "dispatch/plan/token_cache.h"

#include "base/list.h"

#include <stdlib.h>

#define CHAINS BT_TOKEN_CACHE_ENTRIES_MAX /* a power of two */

typedef struct entry {
    bt_list_t used; /* the one that was used last stands first */
    struct entry *next;
    uint64_t key;
    bt_buf_t *ids;
} entry_t;

struct bt_token_cache {
    bt_list_t used;
    unsigned count;
    size_t bytes;
    entry_t *chains[CHAINS];
};

bt_token_cache_t *bt_token_cache_new(void)
{
    bt_token_cache_t *c = calloc(1, sizeof(*c));

    if (c != NULL)
        bt_list_init(&c->used);
    return c;
}

static entry_t **place_of(bt_token_cache_t *c, uint64_t key)
{
    entry_t **at = &c->chains[key & (CHAINS - 1)];

    while (*at != NULL && (*at)->key != key)
        at = &(*at)->next;
    return at;
}

static void drop(bt_token_cache_t *c, entry_t *e)
{
    *place_of(c, e->key) = e->next;
    bt_list_remove(&e->used);
    c->bytes -= e->ids->cap;
    c->count--;
    bt_buf_unref(e->ids);
    free(e);
}

static void keep_bounds(bt_token_cache_t *c)
{
    while (c->bytes > BT_TOKEN_CACHE_BYTES_MAX || c->count > BT_TOKEN_CACHE_ENTRIES_MAX)
        drop(c, bt_container_of(c->used.prev, entry_t, used));
}

void bt_token_cache_free(bt_token_cache_t *c)
{
    while (c != NULL && !bt_list_empty(&c->used))
        drop(c, bt_container_of(c->used.prev, entry_t, used));
    free(c);
}

static void touch(bt_token_cache_t *c, entry_t *e)
{
    bt_list_remove(&e->used);
    bt_list_push_front(&c->used, &e->used);
}

bt_buf_t *bt_token_cache_get(bt_token_cache_t *c, uint64_t key)
{
    entry_t *e = *place_of(c, key);

    if (e == NULL)
        return NULL;
    touch(c, e);
    return e->ids;
}

void bt_token_cache_put(bt_token_cache_t *c, uint64_t key, bt_buf_t *ids)
{
    entry_t **at = place_of(c, key), *e = *at;

    if (e != NULL) { /* two asked at once */
        touch(c, e);
        return;
    }
    if (ids->cap > BT_TOKEN_CACHE_BYTES_MAX / 4 || (e = malloc(sizeof(*e))) == NULL)
        return;
    *e = (entry_t){.key = key, .ids = bt_buf_ref(ids)};
    *at = e;
    bt_list_init(&e->used);
    bt_list_push_front(&c->used, &e->used);
    c->bytes += ids->cap;
    c->count++;
    keep_bounds(c);
}
