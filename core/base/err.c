/* One table serves our codes and libuv's, made of the two X-maps. Names are lower-cased once,
 * because the maps spell them as C identifiers and people read them in logs and metric labels.
 */
#include "base/err.h"

#include <ctype.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <uv.h>

#define NAME_BYTES 32

/* The formatter takes the maps for expressions. */
/* clang-format off */
static const struct {
    int code;
    const char *spelled, *text;
    enum bt_scope scope;
} entries[] = {
#define OURS(name, code, reach, txt) {code, &#name[sizeof("BT_E_") - 1], txt, BT_SCOPE_##reach},
    BT_ERR_MAP(OURS)
#undef OURS
#define LIBUV(name, txt) {UV_##name, #name, txt, BT_SCOPE_CONNECTION},
    UV_ERRNO_MAP(LIBUV)
#undef LIBUV
    {0, "unknown", "unknown error", BT_SCOPE_REQUEST},
};
/* clang-format on */

#define UNKNOWN (sizeof(entries) / sizeof(entries[0]) - 1)

static char names[UNKNOWN + 1][NAME_BYTES];
static pthread_once_t names_once = PTHREAD_ONCE_INIT;

static void spell_names(void)
{
    for (size_t i = 0; i <= UNKNOWN; i++)
        for (size_t k = 0; k + 1 < NAME_BYTES && entries[i].spelled[k] != '\0'; k++)
            names[i][k] = (char) tolower((unsigned char) entries[i].spelled[k]);
}

static size_t index_of(int rc)
{
    size_t i = 0;

    while (i < UNKNOWN && entries[i].code != rc)
        i++;
    return i;
}

const char *bt_err_name(int rc)
{
    if (rc == 0)
        return "ok";
    pthread_once(&names_once, spell_names);
    return names[index_of(rc)];
}

const char *bt_err_text(int rc)
{
    return rc == 0 ? "success" : entries[index_of(rc)].text;
}

enum bt_scope bt_err_scope(int rc)
{
    if (rc == UV_ENOMEM)
        return BT_SCOPE_PROCESS;
    return rc == 0 ? BT_SCOPE_REQUEST : entries[index_of(rc)].scope;
}

const char *bt_scope_name(enum bt_scope scope)
{
    static const char *const words[] = {"request", "attempt", "connection",
                                        "worker",  "device",  "process"};
    return (size_t) scope < sizeof(words) / sizeof(words[0]) ? words[scope] : "unknown";
}

int bt_err_refuse(char *why, size_t size, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(why, size, fmt, args);
    va_end(args);
    return BT_E_CONFIG;
}
