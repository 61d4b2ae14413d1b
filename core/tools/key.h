/* key.h - `baton key ...`: keys for clients and operators, in the file that --client-api-keys-file names.
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
    const char *path; /* links resolved */
    bt_text_t text;   /* as it is, then as it shall be */
    bool is_new;
    int lock; /* descriptor, -1 = none */
    char resolved[4096];
} bt_key_file_t;

/* With must_exist false a file that is not there is empty. Status as above; open holds the lock until close. */
int bt_key_file_open(bt_key_file_t *f, const char *path, bool must_exist, bool is_change);
/* In its place, at once or not at all: mode 0600 where it is new, else as it was. What gateways would refuse is not written. */
int bt_key_file_replace(const bt_key_file_t *f);
void bt_key_file_close(bt_key_file_t *f);

#endif
