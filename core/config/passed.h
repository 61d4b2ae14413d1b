/* passed.h - listening sockets that whoever started this process has opened for it: systemd (LISTEN_FDS), or the gateway whose place
 * it takes (gateway/upgrade.h).
 *
 * Owner: the process; who listens on a socket takes it.
 * Life:  taken once, before a configuration is read; what it says of addresses stays until the end.
 * Flow:  bt_passed_take -> bt_config_load puts their addresses where host and port were, on SIGHUP too, so that what is checked
 *        and told is what is listened on -> the gateway listens on them.
 * Cost:  start-up only.
 */
#ifndef BT_CONFIG_PASSED_H
#define BT_CONFIG_PASSED_H

#include <stdbool.h>
#include <stddef.h>

/* What FileDescriptorName= tells apart. */
enum bt_passed_side { BT_PASSED_CLIENT, BT_PASSED_ADMIN, BT_PASSED_SIDES };

typedef struct bt_passed {
    int *fds; /* listening TCP sockets, neither blocking nor inherited by children */
    unsigned count;
    char host[64]; /* of the first that others reach, else of the first */
    unsigned port;
} bt_passed_t;

/* Reads and forgets LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES; sockets meant for another process are left alone.
 * BT_E_CONFIG: err says which socket is wrong. */
int bt_passed_take(char *err, size_t err_size);
const bt_passed_t *bt_passed(enum bt_passed_side side);

/* A gateway cannot know our process id when it says for whom the sockets are, so it says its own: "PID:FD", and BT_PASSED_HELD behind it where
 * bt_passed_is_held. */
#define BT_PASSED_UPGRADE "BATON_UPGRADE"
/* Where that gateway waits for a word, or -1: nobody is replaced. */
int bt_passed_upgrade_fd(void);
#define BT_PASSED_HELD ":held"
/* systemd holds the client port, too: it stays open when this process ends. */
bool bt_passed_is_held(void);

#endif
