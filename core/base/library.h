/* library.h - a shared library that few need, loaded by whoever does.
 *
 * libcurl and libzmq bring fifty others, which cost every gateway that links with them 6 MB and time at the start. So nobody does: the
 * functions of such a library are defined once more (BT_LIBRARY_FORWARD), and go on to the real ones.
 *
 * Owner: the process; nothing is ever unloaded.
 * Life:  load, from one thread at a time; then the functions, from any.
 */
#ifndef BT_BASE_LIBRARY_H
#define BT_BASE_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

typedef struct bt_library_function {
    const char *name;
    void *pointer; /* to a pointer to such a function */
} bt_library_function_t;

/* All functions or false, with why: the file or the function that is not there. Once they are there, a second call is free. */
bool bt_library_load(const char *file, const bt_library_function_t *functions, unsigned count,
                     char *why, size_t why_size);

/* One of FUNCTIONS(X), a list of X(type, name, (parameters), (arguments)): its pointer, its place in the table, the function itself. */
#define BT_LIBRARY_POINTER(type, name, parameters, arguments) static type(*real_##name) parameters;
#define BT_LIBRARY_ENTRY(type, name, parameters, arguments) {#name, &real_##name},
#define BT_LIBRARY_FORWARD(type, name, parameters, arguments)                                      \
    type(name) parameters                                                                          \
    {                                                                                              \
        return real_##name arguments;                                                              \
    }

#endif
