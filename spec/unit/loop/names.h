/* names.h - host names with addresses of a spec's choice: one spec of a program includes it. All other names are the system's. */
#ifndef SPEC_UNIT_LOOP_NAMES_H
#define SPEC_UNIT_LOOP_NAMES_H

#include <dlfcn.h>
#include <netdb.h>
#include <stddef.h>
#include <string.h>

#define NAMES_MAX 4

/* Written before the loop asks: its look-ups run on other threads. */
static const char *names_host, *names_addresses[NAMES_MAX]; /* the first NULL ends them */

/* libuv finds this one before libc's. */
int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **list_p)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    struct addrinfo **end = list_p;
    int rc = 0;

    *(void **) &real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (host == NULL || names_host == NULL || strcmp(host, names_host) != 0)
        return real(host, service, hints, list_p);
    for (unsigned i = 0; rc == 0 && i < NAMES_MAX && names_addresses[i] != NULL; i++) {
        rc = real(names_addresses[i], service, hints, end);
        if (rc == 0)
            end = &(*end)->ai_next; /* a number is one row */
    }
    return rc;
}

#endif
