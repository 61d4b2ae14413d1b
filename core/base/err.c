/* One table serves our codes and libuv's: an index per code from the two X-maps, found by a switch.
 * Names are lower-cased once, because the maps spell them as C identifiers and people read them in
 * logs and metric labels.
 */
#include "base/err.h"

#include "base/log.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <uv.h>
#ifdef __GLIBC__
#include <execinfo.h>
#endif

#define NAME_BYTES 32
#define SOFT_SITES 256 /* power of two */

/* The formatter takes the maps for expressions. */
/* clang-format off */
enum {
#define OURS(name, code, scope, text) AT_##name,
    BT_ERR_MAP(OURS)
#undef OURS
#define LIBUV(name, text) AT_UV_##name,
    UV_ERRNO_MAP(LIBUV)
#undef LIBUV
    AT_UNKNOWN
};

static const struct {
    const char *spelled, *text;
    enum bt_scope scope;
} entries[] = {
#define OURS(name, code, reach, txt) {&#name[sizeof("BT_E_") - 1], txt, BT_SCOPE_##reach},
    BT_ERR_MAP(OURS)
#undef OURS
#define LIBUV(name, txt) {#name, txt, BT_SCOPE_CONNECTION},
    UV_ERRNO_MAP(LIBUV)
#undef LIBUV
    {"unknown", "unknown error", BT_SCOPE_REQUEST},
};
/* clang-format on */

static char names[AT_UNKNOWN + 1][NAME_BYTES];
static pthread_once_t names_once = PTHREAD_ONCE_INIT;
static atomic_ulong soft_count;
static _Atomic uint64_t soft_sites[SOFT_SITES];

static void spell_names(void)
{
    for (size_t i = 0; i <= AT_UNKNOWN; i++)
        for (size_t k = 0; k + 1 < NAME_BYTES && entries[i].spelled[k] != '\0'; k++)
            names[i][k] = (char) tolower((unsigned char) entries[i].spelled[k]);
}

static size_t index_of(int rc)
{
    switch (rc) {
#define OURS(name, code, scope, text)                                                              \
    case name:                                                                                     \
        return AT_##name;
        BT_ERR_MAP(OURS)
#undef OURS
#define LIBUV(name, text)                                                                          \
    case UV_##name:                                                                                \
        return AT_UV_##name;
        UV_ERRNO_MAP(LIBUV)
#undef LIBUV
    default:
        return AT_UNKNOWN;
    }
}

const char *bt_err_name(int rc)
{
    if (rc == 0)
        return "ok";
    pthread_once(&names_once, spell_names);
    return names[index_of(rc)];
}

const char *bt_err_text(int rc)
{
    return rc == 0 ? "success" : entries[index_of(rc)].text;
}

enum bt_scope bt_err_scope(int rc)
{
    if (rc == UV_ENOMEM)
        return BT_SCOPE_PROCESS;
    return rc == 0 ? BT_SCOPE_REQUEST : entries[index_of(rc)].scope;
}

const char *bt_scope_name(enum bt_scope scope)
{
    switch (scope) {
    case BT_SCOPE_REQUEST:
        return "request";
    case BT_SCOPE_ATTEMPT:
        return "attempt";
    case BT_SCOPE_CONNECTION:
        return "connection";
    case BT_SCOPE_WORKER:
        return "worker";
    case BT_SCOPE_DEVICE:
        return "device";
    case BT_SCOPE_PROCESS:
        return "process";
    }
    return "unknown";
}

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
