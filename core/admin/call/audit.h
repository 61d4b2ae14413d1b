/* audit.h - the audit log: a line of JSON for everything that was changed by an operator, and what it changed.
 *
 * Owner: the gateway. Control loop only; the file is written by a thread (record.h's), so nobody waits for it.
 * Life:  open -> set_sources -> begin and end of each change -> close.
 * Flow:  begin notes a digest of the state; end notes it again and writes the line. Discovery is not in it, nor is what is only read.
 * Cost:  two digests a change, O(workers + policies' text).
 */
#ifndef BT_ADMIN_CALL_AUDIT_H
#define BT_ADMIN_CALL_AUDIT_H

#include "base/sha1.h"
#include "cluster/workers.h"
#include "dispatch/dispatcher.h"
#include "record/record.h"
#include "reload/reload.h"

typedef struct bt_audit bt_audit_t;

/* What the digests are of. All of it may be NULL, and outlives the log. */
typedef struct bt_audit_sources {
    bt_registry_t *registry;
    const bt_reload_t *reload;
    const bt_dispatch_shared_t *shared;
} bt_audit_sources_t;

typedef struct bt_audit_state {
    char workers[BT_SHA1_HEX + 1];  /* the set, roles and drains */
    char policies[BT_SHA1_HEX + 1]; /* texts and parameters of all pools, rules, the fleet's set */
    char keys[BT_SHA1_HEX + 1];     /* of clients */
} bt_audit_state_t;

/* One change. Texts are the caller's; those that are NULL or empty are null in the line. */
typedef struct bt_audit_change {
    bt_audit_t *audit;  /* NULL = it is not written */
    const char *method; /* NULL = it came by no request */
    const char *what;   /* the route, as routes.c has it, or "reload" and the like */
    const char *by;     /* "admin_key", "anyone", or NULL: the gateway itself */
    const char *via;    /* "admin_port", "client_port", "signal", "file", "fleet", ... */
    bt_str_t address;   /* of who asked */
    char object[256], args[128];
    bt_audit_state_t before; /* begin's */
} bt_audit_change_t;

/* where: a file, or "stderr"; NULL: *audit_p is NULL, and all is well. err: one line. */
int bt_audit_open(bt_audit_t **audit_p, const char *where, char *err, size_t err_size);
/* From here on there is a state. Writes that the gateway has started. */
void bt_audit_set_sources(bt_audit_t *audit, const bt_audit_sources_t *sources);
void bt_audit_reopen(bt_audit_t *audit); /* the file by its name; NULL: nothing */
void bt_audit_close(bt_audit_t *audit);  /* writes what waits; NULL: nothing */
void bt_audit_stats(const bt_audit_t *audit, bt_recorder_stats_t *stats_p); /* NULL: zeros */

void bt_audit_begin(bt_audit_change_t *change);
/* status: of the answer; 0 = there was none to give, or its client left first. error: why not, "" = it was done. Once. */
void bt_audit_end(bt_audit_change_t *change, unsigned status, bt_str_t error);

#endif
