/* counts.c - the failures' names. */
#include "tls/counts.h"

const char *bt_tls_failure_name(enum bt_tls_failure failure)
{
    static const char *const names[BT_TLS_FAILURES] = {"closed",      "plain", "version", "cipher",
                                                       "certificate", "alert", "other"};

    return names[failure];
}
