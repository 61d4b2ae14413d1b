#include "base/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static bool is_loaded(const bt_library_function_t *f)
{
    void *const *at = f->pointer;

    return *at != NULL;
}

bool bt_library_load(const char *file, const bt_library_function_t *functions, unsigned count,
                     char *why, size_t why_size)
{
    if (is_loaded(&functions[count - 1]))
        return true;
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(why, why_size, "%s", dlerror());
        return false;
    }
    for (unsigned i = 0; i < count; i++) {
        void *function = dlsym(library, functions[i].name);
        if (function == NULL) {
            snprintf(why, why_size, "%s has no %s", file, functions[i].name);
            return false;
        }
        memcpy(functions[i].pointer, &function, sizeof(function)); /* POSIX: of one size */
    }
    return true;
}
