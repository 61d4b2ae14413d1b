/* The program of a folder's specs. Each file's main() is compiled as spec_<file> (see
 * CMakeLists.txt), and specs.h lists them. */
#include <stdio.h>
#include <string.h>

#define SPEC(name) int spec_##name(void);
#include "specs.h"
#include "unit.h"
#undef SPEC
#define SPEC(name) {#name, spec_##name},

static const struct {
    const char *name;
    int (*run)(void);
} specs[] = {
#include "specs.h"
};

#define SPEC_COUNT (sizeof(specs) / sizeof(specs[0]))

static int usage(const char *program)
{
    fprintf(stderr, "usage: %s SPEC [TEST]\nTEST is a pattern such as 'test_a*'. Specs:\n",
            program);
    for (size_t i = 0; i < SPEC_COUNT; i++)
        fprintf(stderr, "  %s\n", specs[i].name);
    return 2;
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 3)
        return usage(argv[0]);
    if (argc == 3)
        cmocka_set_test_filter(argv[2]);
    for (size_t i = 0; i < SPEC_COUNT; i++)
        if (strcmp(specs[i].name, argv[1]) == 0)
            return specs[i].run();
    return usage(argv[0]);
}
