/* set.h - what a fleet decides by, as one thing: texts of policies, and maybe the rules.
 *
 * Owner: shared by reference count, control loop only.
 * Life:  copy of another (or empty) -> put, drop -> seal: immutable from then on.
 * Flow:  written as JSON into one cell of the store, read back by every replica; the hash says that
 *        nothing is missing.
 * Cost:  a copy of all texts; only when somebody pushes, or joins.
 */
#ifndef BT_ROLLOUT_SET_H
#define BT_ROLLOUT_SET_H

#include "base/text.h"

#define BT_ROLLOUT_HASH_BYTES 33
#define BT_ROLLOUT_UUID_BYTES 37
#define BT_ROLLOUT_NAME_MAX 64
#define BT_ROLLOUT_BY_MAX 96
#define BT_ROLLOUT_REPLICA_MAX 128
#define BT_ROLLOUT_FILES_MAX 256
#define BT_ROLLOUT_TEXT_MAX ((size_t) 2 << 20) /* of all texts together */
#define BT_ROLLOUT_RULES "" /* the name under which the rules lie among the files */

/* Which set, and how it came about: in its cell, in the log, and in what people are told. */
typedef struct bt_rollout_info {
    uint64_t number;   /* 0 = the one before the first: empty */
    uint64_t previous; /* committed when this one was proposed */
    uint64_t copy_of;  /* it brings that one back; 0 = it is new */
    uint64_t at_ms;    /* since 1970 */
    char uuid[BT_ROLLOUT_UUID_BYTES], previous_uuid[BT_ROLLOUT_UUID_BYTES]; /* "" of number 0 */
    char hash[BT_ROLLOUT_HASH_BYTES]; /* of all names and texts */
    char by[BT_ROLLOUT_BY_MAX + 1], replica[BT_ROLLOUT_REPLICA_MAX + 1];
} bt_rollout_info_t;

typedef struct bt_rollout_file {
    char name[BT_ROLLOUT_NAME_MAX + 1];
    char hash[BT_ROLLOUT_HASH_BYTES];
    char *text; /* NUL-terminated */
    size_t size;
} bt_rollout_file_t;

typedef struct bt_rollout_set {
    unsigned refs;
    bt_rollout_info_t info;
    bt_rollout_file_t *files; /* by name */
    unsigned count;
    size_t text_bytes;
} bt_rollout_set_t;

int bt_rollout_set_new(bt_rollout_set_t **set_p); /* empty, number 0, sealed */
int bt_rollout_set_copy(bt_rollout_set_t **set_p, const bt_rollout_set_t *from); /* texts only */
bt_rollout_set_t *bt_rollout_set_ref(bt_rollout_set_t *set);                     /* NULL is fine */
void bt_rollout_set_unref(bt_rollout_set_t *set);                                /* likewise */
const bt_rollout_file_t *bt_rollout_set_find(const bt_rollout_set_t *set, const char *name);
/* A text under a name, new or another one. BT_E_LIMIT: too many or too long; BT_E_JSON_UTF8: it is
 * no UTF-8. */
int bt_rollout_set_put(bt_rollout_set_t *set, const char *name, bt_str_t text);
bool bt_rollout_set_drop(bt_rollout_set_t *set, const char *name); /* false: it was not there */
void bt_rollout_set_clear(bt_rollout_set_t *set);
void bt_rollout_set_seal(bt_rollout_set_t *set);
void bt_rollout_set_write(const bt_rollout_set_t *set, bt_text_t *out);
/* BT_E_INVAL: it is not what bt_rollout_set_write has written. */
int bt_rollout_set_read(bt_rollout_set_t **set_p, bt_str_t json);

/* The members of an object, without its braces. */
void bt_rollout_info_write(const bt_rollout_info_t *info, bt_text_t *out);
/* Members that are unknown or of another type are passed over: a newer version wrote them. */
void bt_rollout_info_read(bt_rollout_info_t *info, bt_str_t json);
/* A member of an object, cut to fit; "" or 0: none. */
void bt_rollout_get(bt_str_t json, const char *key, char *out, size_t size);
uint64_t bt_rollout_get_number(bt_str_t json, const char *key);

#endif
