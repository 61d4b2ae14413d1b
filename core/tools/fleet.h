/* fleet.h - `baton fleet ...`: what an operator asks of a running fleet, over the admin listeners
 * of its gateways.
 *
 * Owner: main; one command a process.
 * Life:  the command's.
 * Flow:  words -> one call or a few, each with a deadline -> a table for people, or the gateway's
 *        own JSON.
 * Cost:  not measured; nothing on a request's way.
 */
#ifndef BT_TOOLS_FLEET_H
#define BT_TOOLS_FLEET_H

#include "base/text.h"
#include "http/message.h"
#include "tools/print.h"

/* argv begins after "fleet". Exit status: 0; 1 it could not be done, or something is not well; 2 a
 * wrong command line; of what changes the fleet's set: 3 a replica is behind, 4 the outcome is
 * unknown. */
int bt_fleet_tool(int argc, const char *const *argv);
void bt_fleet_tool_help(bt_text_t *out);

/* ---- between the files ---- */
#define FLEET_WORDS_MAX 256
#define FLEET_GATEWAYS_MAX 64 /* flags; each may be a list */
/* Behind who it is and where. */
#define FLEET_UNTRUSTED                                                                            \
    "the admin key goes only to gateways that you name: add --gateway URL, or --trust-store to "   \
    "believe all addresses of the store"

typedef struct fleet_tool {
    const char *admin, *key, *replica, *rules; /* replica, rules: of the commands that have them */
    const char *tls_ca, *tls_cert,
        *tls_key;        /* of https:// gateways; NULL: the system's CAs; none */
    uint64_t timeout_ms; /* of one call */
    bool is_json, is_all, is_replace, is_dry_run;
    const char *gateways[FLEET_GATEWAYS_MAX]; /* as written; each "URL" or "URL,URL" */
    unsigned gateway_count;
    bool does_trust_store;
    const char *words[FLEET_WORDS_MAX]; /* behind the command */
    unsigned count;
} fleet_tool_t;

typedef struct fleet_reply {
    unsigned status;
    bool is_cut; /* it may have been heard, and what came of it is not known */
    bt_text_t body;
} fleet_reply_t;

/* "baton: fleet: ..." on stderr. refuse returns 2, fail 1. */
#define fleet_refuse(...) bt_tool_error(BT_TOOL_WRONG, "fleet: ", __VA_ARGS__)
#define fleet_fail(...) bt_tool_error(BT_TOOL_FAILED, "fleet: ", __VA_ARGS__)

/* tools/fleet_trust.c: 0, or what is wrong with --gateway was told. */
int fleet_check_gateways(const fleet_tool_t *t);
/* False: the key would go to an address that only the store has named. */
bool fleet_may_ask(const fleet_tool_t *t, const char *url);

/* tools/fleet_call.c: one request to the gateway at url, with the key only where fleet_may_ask;
 * redirects are not followed. reply to be fini'ed in any case. err: one line that names the url. */
int fleet_call(const fleet_tool_t *t, const char *url, enum bt_method method, const char *path,
               bt_str_t body, uint64_t timeout_ms, fleet_reply_t *reply, char *err,
               size_t err_size);
void fleet_reply_fini(fleet_reply_t *reply);
/* The same to --admin; what it refuses, or that it does not answer, is told. 0, or the exit status. */
int fleet_ask(const fleet_tool_t *t, enum bt_method method, const char *path, bt_str_t body,
              uint64_t timeout_ms, fleet_reply_t *reply);
/* The gateway's own words of an answer that is not 2xx. */
void fleet_why(const fleet_reply_t *reply, char *out, size_t size);
void fleet_path_put(bt_text_t *path, const char *text); /* percent-encoded */
void fleet_put_by(bt_text_t *path);                     /* "by=user%40host" */

/* tools/fleet_print.c. A member of an object; "" or 0 when it is not there or null. */
void fleet_get(bt_str_t json, const char *key, char *out, size_t size);
uint64_t fleet_get_number(bt_str_t json, const char *key);
bool fleet_get_bool(bt_str_t json, const char *key);
bt_str_t fleet_get_raw(bt_str_t json, const char *key); /* n = 0: not there */
/* A cell of a table: cells are separated by tabs, rows by newlines; "" is shown as "-". */
void fleet_cell(bt_text_t *table, const char *text, bool is_last);
void fleet_cell_number(bt_text_t *table, uint64_t number, bool is_last);
void fleet_print_table(const bt_text_t *table);
void fleet_print_time(uint64_t at_ms, char *out, size_t size);
void fleet_print_json(const fleet_reply_t *reply);
/* A command without arguments that shows what one path answers. what: the command's words. */
int fleet_list(const fleet_tool_t *t, const char *what, const char *path,
               void (*print)(bt_str_t told));

/* tools/fleet_status.c, tools/fleet_policy.c, tools/fleet_workers.c, tools/fleet_room.c */
int fleet_status(const fleet_tool_t *t);
int fleet_policy(const fleet_tool_t *t);
int fleet_rules(const fleet_tool_t *t);
int fleet_workers(const fleet_tool_t *t);
int fleet_room(const fleet_tool_t *t);
int fleet_advice(const fleet_tool_t *t); /* tools/fleet_advice.c */
int fleet_top(const fleet_tool_t *t);    /* tools/top.c */
/* Calls each for every replica that tells its admin url; those that do not are named. 0, or the
 * exit status of GET /admin/fleet. */
int fleet_each_replica(const fleet_tool_t *t,
                       void (*each)(void *user, const char *name, const char *url), void *user);

#endif
