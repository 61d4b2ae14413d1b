/* list.h - intrusive doubly linked list.
 *
 * Owner: the struct that embeds the link.
 * Life:  a link is either initialised-and-alone or in exactly one list.
 * Flow:  init -> insert -> remove (remove leaves the link alone again, so it is idempotent).
 * Cost:  O(1), no allocation.
 */
#ifndef BT_BASE_LIST_H
#define BT_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct bt_list {
    struct bt_list *next, *prev;
} bt_list_t;

#define bt_container_of(ptr, type, member)                                                         \
    ((type *) (void *) ((char *) (ptr) -offsetof(type, member)))

static inline void bt_list_init(bt_list_t *l)
{
    l->next = l->prev = l;
}

static inline bool bt_list_empty(const bt_list_t *l)
{
    return l->next == l;
}

static inline void bt_list_push(bt_list_t *head, bt_list_t *l) /* at the tail */
{
    l->prev = head->prev;
    l->next = head;
    head->prev->next = l;
    head->prev = l;
}

static inline void bt_list_push_front(bt_list_t *head, bt_list_t *l)
{
    bt_list_push(head->next, l);
}

static inline void bt_list_remove(bt_list_t *l)
{
    l->prev->next = l->next;
    l->next->prev = l->prev;
    bt_list_init(l);
}

/* The body may remove `it`, and nothing else. */
#define bt_list_each(head, it, tmp)                                                                \
    for ((it) = (head)->next, (tmp) = (it)->next; (it) != (head); (it) = (tmp), (tmp) = (it)->next)

#endif
