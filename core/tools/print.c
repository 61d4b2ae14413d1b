#include "tools/print.h"

#include <stdarg.h>
#include <stdio.h>

int bt_tool_error(int status, const char *who, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fprintf(stderr, "baton: %s", who);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    return status;
}

int bt_tool_flushed(void)
{
    return fflush(stdout) == 0 ? 0 : BT_TOOL_FAILED;
}

int bt_tool_print(void (*make)(bt_text_t *out))
{
    bt_text_t text;

    bt_text_init(&text);
    make(&text);
    fwrite(text.data, 1, text.len, stdout);
    bt_text_fini(&text);
    return bt_tool_flushed();
}
