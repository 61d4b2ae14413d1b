/* err.h - error codes and how far each one reaches.
 *
 * Owner: nobody; pure values.
 * Life:  static.
 * Flow:  functions return 0 or a negative code; libuv's negative errno values pass through as they are.
 * Cost:  a search of one table, on error paths only; no allocation.
 */
#ifndef BT_BASE_ERR_H
#define BT_BASE_ERR_H

#include <stddef.h>

/* Codes live below -20000, so they never collide with libuv's (-1 .. -4095, and UV_EOF). */
#define BT_ERR_MAP(X)                                                                              \
    X(BT_E_NOMEM, -20001, PROCESS, "out of memory")                                                \
    X(BT_E_INVAL, -20002, REQUEST, "invalid argument")                                             \
    X(BT_E_LIMIT, -20003, REQUEST, "limit exceeded")                                               \
    X(BT_E_AGAIN, -20004, REQUEST, "try again")                                                    \
    X(BT_E_JSON, -20010, REQUEST, "malformed JSON")                                                \
    X(BT_E_JSON_DEPTH, -20011, REQUEST, "JSON nested too deep")                                    \
    X(BT_E_JSON_UTF8, -20012, REQUEST, "JSON is not valid UTF-8")                                  \
    X(BT_E_JSON_DUP, -20013, REQUEST, "duplicate JSON key")                                        \
    X(BT_E_HTTP, -20020, CONNECTION, "malformed HTTP")                                             \
    X(BT_E_HTTP_HEAD_SIZE, -20021, CONNECTION, "HTTP head too large")                              \
    X(BT_E_HTTP_BODY_SIZE, -20022, REQUEST, "HTTP body too large")                                 \
    X(BT_E_CLIENT_GONE, -20030, REQUEST, "client closed the connection")                           \
    X(BT_E_CANCELLED, -20031, ATTEMPT, "cancelled")                                                \
    X(BT_E_DESCRIPTORS, -20032, PROCESS,                                                           \
      "this gateway has no descriptor left for a connection to a worker, try again")               \
    X(BT_E_CONNECT, -20040, WORKER, "connect failed")                                              \
    X(BT_E_CONNECT_TIMEOUT, -20041, WORKER, "connect timed out")                                   \
    X(BT_E_RESOLVE, -20042, WORKER, "host name not resolved")                                      \
    X(BT_E_RESET, -20043, CONNECTION, "connection lost before the answer was complete")            \
    X(BT_E_FIRST_BYTE_TIMEOUT, -20044, ATTEMPT, "no first byte in time")                           \
    X(BT_E_STALL, -20045, ATTEMPT, "answer stalled")                                               \
    X(BT_E_TOTAL_TIMEOUT, -20046, REQUEST, "request took too long")                                \
    X(BT_E_UPSTREAM_HTTP, -20047, WORKER, "worker sent malformed HTTP")                            \
    X(BT_E_UPSTREAM_STATUS, -20048, ATTEMPT, "worker answered with an error status")               \
    X(BT_E_UPSTREAM_BODY, -20049, ATTEMPT, "worker answered 200 with an error inside")             \
    X(BT_E_LOST, -20054, WORKER, "worker is lost: it is dead or silent, and its checks fail")      \
    X(BT_E_REDIRECT, -20053, WORKER, "worker answered with a redirect, which is not followed")     \
    X(BT_E_HANDOFF, -20050, ATTEMPT, "hand-off parameters missing or wrong")                       \
    X(BT_E_RECOMPUTED, -20057, ATTEMPT, "decode has given the request up, to be computed again")   \
    X(BT_E_LEASE, -20051, ATTEMPT, "prefill lease ran out")                                        \
    X(BT_E_KV_TRANSFER, -20052, ATTEMPT, "KV transfer between the pair failed")                    \
    X(BT_E_CALLBACK, -20055, ATTEMPT, "decode's call for prefill is wrong")                        \
    X(BT_E_CALLBACK_TIMEOUT, -20056, ATTEMPT, "decode did not call for prefill in time")           \
    X(BT_E_NO_WORKER, -20060, REQUEST, "no usable worker")                                         \
    X(BT_E_POLICY, -20061, REQUEST, "policy failed")                                               \
    X(BT_E_DIALECT, -20062, ATTEMPT, "dialect failed")                                             \
    X(BT_E_STORE_UNAVAILABLE, -20063, REQUEST, "the shared store does not answer")                 \
    X(BT_E_STORE, -20064, REQUEST, "the shared store answered with an error")                      \
    X(BT_E_TLS, -20065, WORKER, "TLS: the handshake failed")                                       \
    X(BT_E_PLAIN, -20066, CONNECTION, "plain bytes where TLS was expected")                        \
    X(BT_E_CONFIG, -20070, PROCESS, "invalid configuration")

enum bt_err {
#define BT_ERR_ENUM(name, code, scope, text) name = code,
    BT_ERR_MAP(BT_ERR_ENUM)
#undef BT_ERR_ENUM
};

/* Blast radius; the same words reach Lua as failure.scope, metric labels and log fields. */
enum bt_scope {
    BT_SCOPE_REQUEST,
    BT_SCOPE_ATTEMPT,
    BT_SCOPE_CONNECTION,
    BT_SCOPE_WORKER,
    BT_SCOPE_DEVICE,
    BT_SCOPE_PROCESS
};

/* "BT_E_STALL" style names are shortened to "stall"; libuv codes give uv_err_name() in lower case. */
const char *bt_err_name(int rc);
const char *bt_err_text(int rc);
/* libuv codes map to CONNECTION, ENOMEM to PROCESS. */
enum bt_scope bt_err_scope(int rc);
const char *bt_scope_name(enum bt_scope scope);
/* Says in `why`, on one line, what is wrong with what a user wrote. Returns BT_E_CONFIG. */
int bt_err_refuse(char *why, size_t size, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Debug assertion / always-on assertion / "cannot happen but keep serving" (counts, logs once per site). */
#ifdef NDEBUG
#define BT_ASSERT(cond) ((void) sizeof(cond))
#else
#define BT_ASSERT(cond) BT_BUG_ON(!(cond))
#endif
#define BT_BUG_ON(cond)                                                                            \
    do {                                                                                           \
        if (__builtin_expect(!!(cond), 0))                                                         \
            bt_bug(#cond, __FILE__, __LINE__);                                                     \
    } while (0)
#define BT_SOFT(cond) (__builtin_expect(!!(cond), 0) && bt_soft(#cond, __FILE__, __LINE__))

/* bug.c */
__attribute__((noreturn)) void bt_bug(const char *cond, const char *file, int line);
/* Always returns 1; logs a site once, counts every time (bt_soft_count()). */
int bt_soft(const char *cond, const char *file, int line);
unsigned long bt_soft_count(void);

#endif
