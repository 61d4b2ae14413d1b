/* flag.h - the one table of settings and flags.
 *
 * Owner: nobody; constant tables (flag_table.c: what is honoured, flag_peers.c: other routers').
 * Life:  static.
 * Flow:  a row yields the flag's parsing, the key of the configuration file (same name, '_' for '-'), the line of --help and
 *        the refusal text.
 * Cost:  linear search; start-up only.
 */
#ifndef BT_CONFIG_FLAG_H
#define BT_CONFIG_FLAG_H

#include "config/config.h"
#include "config/option.h"

enum bt_flag_group {
    BT_GROUP_WORKERS,
    BT_GROUP_LISTEN,
    BT_GROUP_DECIDE,
    BT_GROUP_DEADLINE,
    BT_GROUP_HEALTH,
    BT_GROUP_FLEET,
    BT_GROUP_LIMIT,
    BT_GROUP_SECURITY,
    BT_GROUP_TLS,
    BT_GROUP_LOG,
    BT_GROUP_PROCESS,
    BT_GROUP_COUNT
};
const char *bt_flag_group_title(enum bt_flag_group group);

enum bt_flag_kind {
    BT_FLAG_SETTING, /* option in bt_config_t; also a key of the file's top level */
    BT_FLAG_POOL,    /* option in bt_config_pool_t; at the top level for all pools, or in one */
    BT_FLAG_ACTION   /* apply; a flag only */
};
enum bt_flag_arity { BT_ARITY_ONE, BT_ARITY_NONE, BT_ARITY_ONE_AND_PORT, BT_ARITY_MANY };

typedef int (*bt_flag_apply)(bt_config_t *c, const char *const *values, unsigned count, char *err,
                             size_t err_size);

typedef struct bt_flag {
    const char *name; /* without the dashes */
    const char *hint; /* of the value; NULL = a switch */
    enum bt_flag_group group;
    bool live; /* SIGHUP changes it; others need a restart */
    enum bt_flag_kind kind;
    bt_option_t option;
    enum bt_flag_arity arity; /* of actions, as apply */
    bt_flag_apply apply;
    const char *help;
} bt_flag_t;

extern const bt_flag_t bt_flags[];
extern const unsigned bt_flag_count;

/* What becomes of another router's flag. */
enum bt_peer_kind {
    BT_PEER_ALIAS,  /* text: our name; a number beyond our range becomes the nearest */
    BT_PEER_MEANS,  /* a switch; text: our name and its value, "log-format=json" */
    BT_PEER_PARAM,  /* text: a shipped policy and its parameter, "consistent_hash.factor" */
    BT_PEER_UNUSED, /* accepted with a warning; text: why, or what is like it */
    BT_PEER_REFUSED /* to go without it would be unsafe; text: what to use */
};
typedef struct bt_peer_flag {
    const char *name; /* a '*' at the end stands for any rest */
    enum bt_peer_kind kind;
    const char *text;
    unsigned divisor; /* of a parameter: ours counts in so many of theirs; 0 = 1 */
} bt_peer_flag_t;
extern const bt_peer_flag_t bt_peer_flags[];
extern const unsigned bt_peer_flag_count;

/* What other routers call a policy, and what serves it here. */
typedef struct bt_peer_policy {
    const char *theirs, *ours;
    const char *but; /* what differs; NULL: ours is only the nearest, theirs is refused */
} bt_peer_policy_t;
extern const bt_peer_policy_t bt_peer_policies[]; /* ends with NULLs */

const bt_flag_t *bt_flag_find(bt_str_t name); /* ours only; NULL */
const bt_peer_flag_t *bt_flag_find_peer(bt_str_t name);
bool bt_flag_is_switch(const bt_flag_t *flag);

extern const bt_word_t bt_engine_words[];

/* Keys of one worker in the file: options in bt_worker_spec_t. */
typedef struct bt_worker_key {
    const char *name;
    bt_option_t option;
    const char *help;
} bt_worker_key_t;
extern const bt_worker_key_t bt_worker_keys[];
extern const unsigned bt_worker_key_count;

#endif
