/* slots.h - small numbers for workers, by which loops index arrays of their own.
 *
 * Owner: the registry takes; whoever lets go of a worker last gives back, on any thread.
 * Life:  new -> take, give -> unref; kept until the last slot is given back, which may be after the registry's end.
 * Flow:  the lowest free one -> a worker -> free again with the worker's memory: legs of a removed one still index with it.
 * Cost:  a bit each.
 */
#ifndef BT_CLUSTER_SLOTS_H
#define BT_CLUSTER_SLOTS_H

#define BT_SLOTS_MAX 16384U

typedef struct bt_slots bt_slots_t;

int bt_slots_new(bt_slots_t **slots_p);
void bt_slots_unref(bt_slots_t *slots); /* NULL is fine */
/* On the control loop only. BT_E_LIMIT: all are taken. */
int bt_slots_take(bt_slots_t *slots, unsigned *slot_p);
/* For bt_worker_t.on_free. */
void bt_slots_give(void *slots, unsigned slot);

#endif
