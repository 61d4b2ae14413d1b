/* counts.h - what became of the handshakes of one port, or of all workers.
 *
 * Owner: whoever has the context; sessions of all loops count into it.
 * Life:  the context's.
 * Flow:  counts only grow. A handshake is counted once, when it has ended.
 * Cost:  an atomic a handshake.
 */
#ifndef BT_TLS_COUNTS_H
#define BT_TLS_COUNTS_H

#include <stdatomic.h>
#include <stdint.h>

enum bt_tls_failure {
    BT_TLS_FAILED_CLOSED,      /* the peer closed, or there was no time left */
    BT_TLS_FAILED_PLAIN,       /* it does not speak TLS */
    BT_TLS_FAILED_VERSION,     /* no version in common */
    BT_TLS_FAILED_CIPHER,      /* no cipher, group or signature in common */
    BT_TLS_FAILED_CERTIFICATE, /* its certificate is missing, or not to be trusted */
    BT_TLS_FAILED_ALERT,       /* it refused us: our certificate, mostly */
    BT_TLS_FAILED_OTHER,
    BT_TLS_FAILURES
};

typedef struct bt_tls_counts {
    _Atomic uint64_t done_12, done_13, resumed, failed[BT_TLS_FAILURES];
} bt_tls_counts_t;

/* "closed", "plain", ...: label of a metric, word of a log line. */
const char *bt_tls_failure_name(enum bt_tls_failure failure);

static inline void bt_tls_count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

#endif
