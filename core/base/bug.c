/* bug.c - what err.h's assertions do: they log, so they stand above the log. */
#include "base/err.h"
#include "base/log.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <execinfo.h>
#endif

#define SOFT_SITES 256 /* power of two */

static atomic_ulong soft_count;
static _Atomic uint64_t soft_sites[SOFT_SITES];

void bt_bug(const char *cond, const char *file, int line)
{
    const bool is_heard = bt_log_last_words();

    bt_log_write(NULL, BT_LOG_ERROR, "bug", "%s at %s:%d", cond, file, line);
#ifdef __GLIBC__
    void *frames[32];
    if (is_heard)
        backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
#else
    (void) is_heard;
#endif
    abort();
}

/* True for the first caller of a site. The table never forgets; once it is full, new sites only
 * count. */
static bool claim_soft_site(const char *file, int line)
{
    uint64_t key = ((uint64_t) (uintptr_t) file << 16) ^ (uint64_t) line;
    uint64_t slot = (key * UINT64_C(0x9e3779b97f4a7c15)) >> 56;

    for (unsigned i = 0; i < SOFT_SITES; i++, slot++) {
        uint64_t seen = 0;
        if (atomic_compare_exchange_strong(&soft_sites[slot % SOFT_SITES], &seen, key))
            return true;
        if (seen == key)
            return false;
    }
    return false;
}

int bt_soft(const char *cond, const char *file, int line)
{
    atomic_fetch_add_explicit(&soft_count, 1, memory_order_relaxed);
    if (claim_soft_site(file, line))
        bt_log_write(NULL, BT_LOG_ERROR, "soft", "unexpected: %s at %s:%d", cond, file, line);
    return 1;
}

unsigned long bt_soft_count(void)
{
    return atomic_load_explicit(&soft_count, memory_order_relaxed);
}
