/* libcurl.c - the functions of libcurl that are used here, as those of a library that is loaded for whoever asks Kubernetes (base/library.h).
 */
#include "discovery/libcurl.h"

#include "base/err.h"
#include "base/library.h"

#include <curl/curl.h>
#include <stdarg.h>

#define FUNCTIONS(X)                                                                               \
    X(CURLcode, curl_global_init, (long flags), (flags))                                           \
    X(CURL *, curl_easy_init, (void), ())                                                          \
    X(CURLcode, curl_easy_pause, (CURL * easy, int what), (easy, what))                            \
    X(const char *, curl_easy_strerror, (CURLcode code), (code))                                   \
    X(CURLM *, curl_multi_init, (void), ())                                                        \
    X(CURLMcode, curl_multi_cleanup, (CURLM * multi), (multi))                                     \
    X(CURLMcode, curl_multi_add_handle, (CURLM * multi, CURL * easy), (multi, easy))               \
    X(CURLMcode, curl_multi_remove_handle, (CURLM * multi, CURL * easy), (multi, easy))            \
    X(CURLMcode, curl_multi_assign, (CURLM * multi, curl_socket_t fd, void *user),                 \
      (multi, fd, user))                                                                           \
    X(CURLMcode, curl_multi_socket_action,                                                         \
      (CURLM * multi, curl_socket_t fd, int events, int *running), (multi, fd, events, running))   \
    X(CURLMsg *, curl_multi_info_read, (CURLM * multi, int *left), (multi, left))                  \
    X(struct curl_slist *, curl_slist_append, (struct curl_slist * list, const char *text),        \
      (list, text))

/* Those that return nothing. */
#define ENDS(X)                                                                                    \
    X(void, curl_global_cleanup, (void), ())                                                       \
    X(void, curl_easy_cleanup, (CURL * easy), (easy))                                              \
    X(void, curl_slist_free_all, (struct curl_slist * list), (list))

/* One value follows: a long, a curl_off_t or a pointer, which are passed alike wherever Linux has 64 bits. */
#define OPTIONS(X)                                                                                 \
    X(CURLcode, curl_easy_setopt, (CURL * easy, CURLoption what, ...), (easy, what, value))        \
    X(CURLcode, curl_easy_getinfo, (CURL * easy, CURLINFO what, ...), (easy, what, value))         \
    X(CURLMcode, curl_multi_setopt, (CURLM * multi, CURLMoption what, ...), (multi, what, value))

#define FORWARD_END(type, name, parameters, arguments)                                             \
    type(name) parameters                                                                          \
    {                                                                                              \
        real_##name arguments;                                                                     \
    }

#define FORWARD_OPTION(type, name, parameters, arguments)                                          \
    type(name) parameters                                                                          \
    {                                                                                              \
        va_list more;                                                                              \
        void *value;                                                                               \
        va_start(more, what);                                                                      \
        value = va_arg(more, void *);                                                              \
        va_end(more);                                                                              \
        return real_##name arguments;                                                              \
    }

_Static_assert(sizeof(long) == sizeof(void *) && sizeof(curl_off_t) == sizeof(void *),
               "options are passed on as pointers");

FUNCTIONS(BT_LIBRARY_POINTER)
ENDS(BT_LIBRARY_POINTER)
OPTIONS(BT_LIBRARY_POINTER)
FUNCTIONS(BT_LIBRARY_FORWARD)
ENDS(FORWARD_END)
OPTIONS(FORWARD_OPTION)

static const bt_library_function_t functions[] = {FUNCTIONS(BT_LIBRARY_ENTRY) ENDS(BT_LIBRARY_ENTRY)
                                                      OPTIONS(BT_LIBRARY_ENTRY)};

int bt_libcurl_load(char *err, size_t err_size)
{
    char why[256];

    if (bt_library_load(BT_LIBCURL, functions, sizeof(functions) / sizeof(functions[0]), why,
                        sizeof(why)))
        return 0;
    return bt_err_refuse(err, err_size,
                         "cannot load libcurl: %s; install the Debian package libcurl4", why);
}
