/* host.c - a luajit that has policies in it: the interpreter of the policy specs.
 *
 * Usage: policy_host script.lua argument...   (busted --lua=policy_host)
 *
 * The same as `baton policy test`, but for any script, and without the rest of the program.
 */
#include "script/testing/testing.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: policy_host script.lua argument...\n");
        return 2;
    }
    return bt_testing_run(argv[1], argc - 2, (const char *const *) argv + 2);
}
