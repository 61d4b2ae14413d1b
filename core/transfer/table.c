/* A chained hash table with links inside the rooms. The ids are random and the gateway's own, so nobody else can choose ones that collide. When there is no
 * memory to grow it, the chains get longer.
 */
#include "transfer_impl.h"

#include <stdlib.h>

#define BITS_MIN 6U

static bt_transfer_node_t **bucket_of(bt_transfer_node_t **buckets, unsigned bits, uint64_t key)
{
    return &buckets[(key * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - bits)];
}

int bt_transfer_table_init(bt_transfer_table_t *table)
{
    table->bits = BITS_MIN;
    table->count = 0;
    table->buckets = calloc((size_t) 1 << table->bits, sizeof(bt_transfer_node_t *));
    return table->buckets != NULL ? 0 : BT_E_NOMEM;
}

static void push(bt_transfer_node_t **bucket, bt_transfer_node_t *node)
{
    node->next = *bucket;
    *bucket = node;
}

static void grow(bt_transfer_table_t *table)
{
    unsigned bits = table->bits + 1;
    bt_transfer_node_t **buckets = calloc((size_t) 1 << bits, sizeof(bt_transfer_node_t *));

    if (buckets == NULL)
        return;
    for (size_t i = 0; i < (size_t) 1 << table->bits; i++)
        for (bt_transfer_node_t *node = table->buckets[i], *next; node != NULL; node = next) {
            next = node->next;
            push(bucket_of(buckets, bits, node->key), node);
        }
    free(table->buckets);
    table->buckets = buckets;
    table->bits = bits;
}

void bt_transfer_table_put(bt_transfer_table_t *table, bt_transfer_node_t *node, uint64_t key,
                           bt_transfer_room_t *room)
{
    if (table->count >> table->bits > 0 && table->bits < 30)
        grow(table);
    node->key = key;
    node->room = room;
    push(bucket_of(table->buckets, table->bits, key), node);
    table->count++;
}

void bt_transfer_table_remove(bt_transfer_table_t *table, bt_transfer_node_t *node)
{
    if (node->key == 0)
        return;
    bt_transfer_node_t **at = bucket_of(table->buckets, table->bits, node->key);
    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    node->key = 0;
    table->count--;
}

bt_transfer_node_t *bt_transfer_table_find(const bt_transfer_table_t *table, uint64_t key)
{
    bt_transfer_node_t *node = *bucket_of(table->buckets, table->bits, key);

    while (node != NULL && node->key != key)
        node = node->next;
    return node;
}

bt_transfer_room_t *bt_transfer_room_find(const bt_transfer_t *t, uint64_t name)
{
    bt_transfer_node_t *node = name != 0 ? bt_transfer_table_find(&t->table, name) : NULL;

    return node != NULL ? node->room : NULL;
}
