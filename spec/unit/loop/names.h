/* names.h - host names with addresses of a spec's choice: one spec of a program includes it. All other names are the system's. */
#ifndef SPEC_UNIT_LOOP_NAMES_H
#define SPEC_UNIT_LOOP_NAMES_H

#include <dlfcn.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#define NAMES_MAX 4

/* Written before the loop asks: its look-ups run on other threads. */
static const char *names_host, *names_addresses[NAMES_MAX]; /* the first NULL ends them */
static atomic_bool names_are_silent; /* look-ups of that host wait while it is so */
static atomic_uint names_waiting;    /* and are so many */

/* The loop finds this one before libc's. */
int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **list_p)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    struct addrinfo **end = list_p;
    int rc = 0;

    *(void **) &real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (host == NULL || names_host == NULL || strcmp(host, names_host) != 0)
        return real(host, service, hints, list_p);
    atomic_fetch_add(&names_waiting, 1);
    while (atomic_load(&names_are_silent))
        usleep(1000);
    atomic_fetch_sub(&names_waiting, 1);
    for (unsigned i = 0; rc == 0 && i < NAMES_MAX && names_addresses[i] != NULL; i++) {
        rc = real(names_addresses[i], service, hints, end);
        if (rc == 0)
            end = &(*end)->ai_next; /* a number is one row */
    }
    return rc;
}

#endif
