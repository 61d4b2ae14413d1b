/* policy_source.h - the code of a policy and where it came from.
 *
 * Owner: shared by reference count (any thread); immutable once made.
 * Life:  read once, on one thread, so that every loop builds its VM from the same bytes even while the file is being written.
 * Flow:  name -> policy_dir/name.lua, else a shipped policy; a path -> that file -> code -> bt_policy_load_source (policy.h) on each loop.
 * Cost:  one read of the file; never on the request path.
 */
#ifndef BT_SCRIPT_POLICY_SOURCE_H
#define BT_SCRIPT_POLICY_SOURCE_H

#include "base/str.h"

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
/* NULL-terminated list of shipped policies. */
const char *const *bt_policy_embedded_names(void);
/* The name's last part without ".lua": what a file is called by. */
bt_str_t bt_policy_base_name(const char *name);
/* Is it the path of a file, and not a name? */
bool bt_policy_is_path(const char *name);

#endif
