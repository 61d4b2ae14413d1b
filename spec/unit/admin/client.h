/* client.h - a raw HTTP client on the thread that turns the loop. */
#ifndef SPEC_ADMIN_CLIENT_H
#define SPEC_ADMIN_CLIENT_H

#include "admin/help.h"
#include "loop/listener.h"
#include "loop/util.h"

#include <stdio.h>

typedef struct client {
    int fd;
    char *got;
    size_t len;
} client_t;

static inline void client_open(client_t *c, unsigned port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t) port)};

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *c = (client_t){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_int_equal(connect(c->fd, (struct sockaddr *) &to, sizeof to), 0);
    assert_int_equal(fcntl(c->fd, F_SETFL, O_NONBLOCK), 0);
}

static inline void client_close(client_t *c)
{
    if (c->fd >= 0)
        close(c->fd);
    free(c->got);
    *c = (client_t){.fd = -1};
}

static inline void client_send(client_t *c, const char *method, const char *target,
                               const char *headers, const char *body)
{
    char *text;
    int n = asprintf(&text, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%sContent-Length: %zu\r\n\r\n%s",
                     method, target, headers, strlen(body), body);

    assert_true(n > 0);
    for (int done = 0; done < n;) {
        ssize_t sent = send(c->fd, text + done, (size_t) (n - done), MSG_NOSIGNAL);
        if (sent < 0)
            break; /* refused before the end: the answer says why */
        done += (int) sent;
    }
    free(text);
}

static inline void client_read(client_t *c)
{
    char piece[65536];
    ssize_t n = recv(c->fd, piece, sizeof piece, MSG_DONTWAIT);

    if (n <= 0)
        return;
    c->got = realloc(c->got, c->len + (size_t) n + 1);
    assert_non_null(c->got);
    memcpy(c->got + c->len, piece, (size_t) n);
    c->len += (size_t) n;
    c->got[c->len] = '\0';
}

/* One whole answer with a Content-Length is there. */
static inline bool client_has_answer(client_t *c)
{
    client_read(c);
    const char *end = c->len > 0 ? strstr(c->got, "\r\n\r\n") : NULL;
    const char *length = end != NULL ? strcasestr(c->got, "content-length: ") : NULL;
    return length != NULL && c->len >= (size_t) (end + 4 - c->got) + strtoul(length + 16, NULL, 10);
}

static inline unsigned client_status(const client_t *c)
{
    assert_true(c->len > 12);
    return (unsigned) strtoul(c->got + 9, NULL, 10);
}

static inline const char *client_body(const client_t *c)
{
    return strstr(c->got, "\r\n\r\n") + 4;
}

#endif
