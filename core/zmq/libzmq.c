/* libzmq.c - the functions of libzmq that are used here, as those of a library that is loaded when somebody asks (base/library.h).
 */
#include "zmq/libzmq.h"

#include "base/library.h"

#include <pthread.h>
#include <zmq.h>

#define FUNCTIONS(X)                                                                               \
    X(void *, zmq_ctx_new, (void), ())                                                             \
    X(int, zmq_ctx_set, (void *context, int option, int value), (context, option, value))          \
    X(int, zmq_ctx_term, (void *context), (context))                                               \
    X(void *, zmq_socket, (void *context, int type), (context, type))                              \
    X(int, zmq_close, (void *socket), (socket))                                                    \
    X(int, zmq_bind, (void *socket, const char *endpoint), (socket, endpoint))                     \
    X(int, zmq_connect, (void *socket, const char *endpoint), (socket, endpoint))                  \
    X(int, zmq_setsockopt, (void *socket, int option, const void *value, size_t size),             \
      (socket, option, value, size))                                                               \
    X(int, zmq_getsockopt, (void *socket, int option, void *value, size_t *size_p),                \
      (socket, option, value, size_p))                                                             \
    X(int, zmq_send, (void *socket, const void *p, size_t n, int flags), (socket, p, n, flags))    \
    X(int, zmq_recv, (void *socket, void *p, size_t n, int flags), (socket, p, n, flags))          \
    X(int, zmq_socket_monitor, (void *socket, const char *address, int events),                    \
      (socket, address, events))                                                                   \
    X(int, zmq_poll, (zmq_pollitem_t * items, int count, long ms), (items, count, ms))             \
    X(int, zmq_msg_init, (zmq_msg_t * m), (m))                                                     \
    X(int, zmq_msg_close, (zmq_msg_t * m), (m))                                                    \
    X(int, zmq_msg_recv, (zmq_msg_t * m, void *socket, int flags), (m, socket, flags))             \
    X(void *, zmq_msg_data, (zmq_msg_t * m), (m))                                                  \
    X(size_t, zmq_msg_size, (const zmq_msg_t *m), (m))                                             \
    X(int, zmq_msg_more, (const zmq_msg_t *m), (m))                                                \
    X(const char *, zmq_msg_gets, (const zmq_msg_t *m, const char *property), (m, property))

FUNCTIONS(BT_LIBRARY_POINTER)
FUNCTIONS(BT_LIBRARY_FORWARD)

static const bt_library_function_t functions[] = {FUNCTIONS(BT_LIBRARY_ENTRY)};
static char why_not[256];

static void load(void)
{
    (void) bt_library_load(BT_LIBZMQ, functions, sizeof(functions) / sizeof(functions[0]), why_not,
                           sizeof(why_not));
}

const char *bt_libzmq_load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, load);
    return why_not[0] != '\0' ? why_not : NULL;
}
