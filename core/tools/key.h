/* key.h - `baton key ...`: keys for clients and operators, in the file that --client-api-keys-file names, or in a fleet's store.
 *
 * Owner: main; one command a process.
 * Life:  the command's.
 * Flow:  the file is read, changed and replaced as a whole (rename), under a lock on its folder; gateways that follow it need no restart.
 * Cost:  not measured.
 */
#ifndef BT_TOOLS_KEY_H
#define BT_TOOLS_KEY_H

#include "tools/print.h"

/* argv begins after "key". Exit status: 0, 1 the file could not be read or written, 2 a wrong command line or file. */
int bt_key_tool(int argc, const char *const *argv);
void bt_key_tool_help(bt_text_t *out);

/* ---- between the files ---- */
typedef struct bt_key_file {
    const char *path;  /* links resolved */
    bt_text_t text;    /* as it is, then as it shall be */
    size_t changed_at; /* of text: where the line that is new or changed begins */
    unsigned count;    /* lines in the store */
    bool is_new;
    bool
        is_shared; /* many write it: what is no key is told, and left out as gateways leave it out */
    int lock;      /* descriptor, -1 = none */
    char resolved[4096];
} bt_key_file_t;

/* With must_exist false a file that is not there is empty. Status as above; open holds the lock until close. */
int bt_key_file_open(bt_key_file_t *f, const char *path, bool must_exist, bool is_change);
/* In its place, at once or not at all: mode 0600 where it is new, else as it was. What gateways would refuse is not written. */
int bt_key_file_replace(const bt_key_file_t *f);
void bt_key_file_close(bt_key_file_t *f);

/* A fleet's keys in Redis instead: its rows are the text. */
typedef struct bt_key_place {
    const char *url, *fleet, *ca_file;
} bt_key_place_t;
int bt_key_store_open(bt_key_file_t *f, const bt_key_place_t *place);
/* The line at changed_at; others may have changed other rows meanwhile. */
int bt_key_store_put(const bt_key_file_t *f, const bt_key_place_t *place, bool is_new);

#endif
