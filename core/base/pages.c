#include "base/pages.h"

#include "base/blocks.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/sanitize.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define REGION_BYTES ((size_t) 1 << 20) /* asked of the system at once */
#define KEEP_BYTES ((size_t) 1 << 20)   /* of each size and thread, needed or not */
#define TIDY_MAX 256U                   /* pieces at once */

enum { SMALL, LARGE, SIZES };

static const size_t bytes_of[SIZES] = {BT_PAGES_SMALL, BT_PAGES_LARGE};

/* A thread's free pieces, linked through their first bytes. */
static _Thread_local struct {
    void *head;
    size_t count, low; /* low: the least since bt_pages_tidy */
} warm[SIZES];

/* Free pieces without memory. There is room for all that were ever made, so that giving cannot fail. */
static struct {
    void **pieces;
    size_t count, made;
} cold[SIZES];
static pthread_mutex_t cold_lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned size_of(size_t bytes)
{
    BT_BUG_ON(bytes != BT_PAGES_SMALL && bytes != BT_PAGES_LARGE);
    return bytes == BT_PAGES_SMALL ? SMALL : LARGE;
}

static void *take_warm(unsigned size)
{
    void *p = warm[size].head;

    if (p == NULL)
        return NULL;
    memcpy(&warm[size].head, p, sizeof(void *));
    if (--warm[size].count < warm[size].low)
        warm[size].low = warm[size].count;
    return p;
}

static void add_region(unsigned size)
{
    const size_t more = REGION_BYTES / bytes_of[size];
    void **pieces = realloc(cold[size].pieces, (cold[size].made + more) * sizeof(*pieces));
    char *region;

    if (pieces == NULL)
        return;
    cold[size].pieces = pieces;
    region = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED)
        return;
    cold[size].made += more;
    for (size_t i = more; i-- > 0;)
        pieces[cold[size].count++] = region + i * bytes_of[size];
}

static void *take_cold(unsigned size)
{
    void *p = NULL;

    pthread_mutex_lock(&cold_lock);
    if (cold[size].count == 0)
        add_region(size);
    if (cold[size].count > 0)
        p = cold[size].pieces[--cold[size].count];
    pthread_mutex_unlock(&cold_lock);
    return p;
}

static void give_cold(unsigned size, void *p)
{
    (void) madvise(p, bytes_of[size], MADV_DONTNEED);
    pthread_mutex_lock(&cold_lock);
    BT_BUG_ON(cold[size].count == cold[size].made);
    cold[size].pieces[cold[size].count++] = p;
    pthread_mutex_unlock(&cold_lock);
}

void *bt_pages_take(size_t bytes)
{
    const unsigned size = size_of(bytes);
    void *p;

    if (BT_ASAN)
        return malloc(bytes);
    p = take_warm(size);
    return p != NULL ? p : take_cold(size);
}

void bt_pages_give(void *p, size_t bytes)
{
    const unsigned size = size_of(bytes);

    if (BT_ASAN) {
        free(p);
        return;
    }
    memcpy(p, &warm[size].head, sizeof(void *));
    warm[size].head = p;
    warm[size].count++;
}

bool bt_pages_tidy(void)
{
    bool has_more = bt_blocks_tidy();

    bt_mem_hand_over();
    for (unsigned size = 0; size < SIZES; size++) {
        const size_t kept = KEEP_BYTES / bytes_of[size];
        const size_t spare = warm[size].low > kept ? warm[size].low - kept : 0;
        for (size_t i = 0; i < spare && i < TIDY_MAX; i++)
            give_cold(size, take_warm(size));
        has_more |= spare > TIDY_MAX;
        warm[size].low = warm[size].count;
    }
    return has_more;
}

void bt_pages_thread_fini(void)
{
    void *p;

    for (unsigned size = 0; size < SIZES; size++)
        while ((p = take_warm(size)) != NULL)
            give_cold(size, p);
    bt_blocks_thread_fini();
    bt_mem_hand_over();
}
