/* pages.h - a room's pages by number.
 *
 * Owner: the caller's arrays.
 * Life:  of a call.
 * Flow:  pages in the prompt's order in, by number out.
 * Cost:  O(n); two passes for pages below 65,536.
 */
#ifndef BT_TRANSPORT_PAGES_H
#define BT_TRANSPORT_PAGES_H

#include <stdbool.h>
#include <stdint.h>

/* Sorts; spare has room for n, too. False: a page is there twice. */
bool bt_kv_pages_sort(uint32_t *pages, uint32_t *spare, uint32_t n);

#endif
