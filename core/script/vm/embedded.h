/* embedded.h - the Lua files that were compiled into the program.
 *
 * Owner: the program image; read-only, shared by all threads.
 * Life:  the whole run.
 * Flow:  generated at build time from the lists in lua/CMakeLists.txt and policies/CMakeLists.txt.
 * Cost:  a walk over a few dozen entries; only at start and on reload.
 */
#ifndef BT_SCRIPT_EMBEDDED_H
#define BT_SCRIPT_EMBEDDED_H

#include <stddef.h>

struct bt_embedded {
    const char *path; /* from the top folder: "lua/baton/dialects/nixl.lua"; NULL ends the table */
    const char *data; /* the file's bytes, NUL-terminated after size bytes */
    size_t size;      /* bytes without the NUL */
};

extern const struct bt_embedded bt_embedded_files[];

#endif
