/* policy_source.h - the code of a policy and where it came from.
 *
 * Owner: shared by reference count (any thread); immutable once made.
 * Life:  read once, on one thread, so that every loop builds its VM from the same bytes even while the file is being written.
 * Flow:  name -> policy_dir/name.lua, else a shipped policy; a path -> that file -> code -> bt_policy_load_source on each loop.
 * Cost:  one read of the file; never on the request path.
 */
#ifndef BT_SCRIPT_POLICY_SOURCE_H
#define BT_SCRIPT_POLICY_SOURCE_H

#include "script/policy/policy.h"

enum bt_source_kind {
    BT_SOURCE_SHIPPED,
    BT_SOURCE_DIR,
    BT_SOURCE_FILE,
    BT_SOURCE_ADMIN,
    BT_SOURCE_FLEET
};
const char *bt_source_kind_name(
    enum bt_source_kind kind); /* "shipped", "dir", "file", "admin", "fleet" */

typedef struct bt_policy_source {
    _Atomic unsigned refs;
    enum bt_source_kind kind;
    char *name; /* as it was asked for */
    char *path; /* what messages begin with: "policies/random.lua" */
    char *code; /* NUL-terminated */
    size_t size;
} bt_policy_source_t;

/* name as for bt_policy_load. err: one line. */
int bt_policy_source_open(bt_policy_source_t **source_p, const char *name, const char *policy_dir,
                          char *err, size_t err_size);
/* From code in memory. */
int bt_policy_source_new(bt_policy_source_t **source_p, enum bt_source_kind kind, const char *name,
                         const char *path, bt_str_t code);
bt_policy_source_t *bt_policy_source_ref(bt_policy_source_t *source); /* NULL is fine */
void bt_policy_source_unref(bt_policy_source_t *source);              /* likewise */
/* Same place and same bytes. */
bool bt_policy_source_same(const bt_policy_source_t *a, const bt_policy_source_t *b);
/* The name's last part without ".lua": what a file is called by. */
bt_str_t bt_policy_base_name(const char *name);
/* Is it the path of a file, and not a name? */
bool bt_policy_is_path(const char *name);

int bt_policy_load_source(bt_policy_t **policy_p, const bt_policy_source_t *source, char *err,
                          size_t err_size);

/* Asks the policy for a plan as it may come to be asked: without workers, with one, with all of them down, with 512. nil is a
 * fine answer where nobody can be chosen; an error or a choice that cannot be is not. For any thread; the fleet is private. */
int bt_policy_self_test(bt_policy_t *policy, char *err, size_t err_size);
/* Does a policy fail with these words because it found nobody of the kind that it chooses from? */
bool bt_policy_is_absence(const char *err);
/* Does it serve pairs, or single workers? One of each role; a policy need not serve both, and nil is no answer here. */
int bt_policy_self_test_kind(bt_policy_t *policy, bool single, char *err, size_t err_size);

#endif
